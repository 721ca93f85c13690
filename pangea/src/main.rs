//! The program `pangea`. Everything is in the library, so that it is compiled once.

use std::process::ExitCode;

/// Nodes allocate and free many small values on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pangea::command_line::run()
}
