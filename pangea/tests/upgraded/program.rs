//! Another release of `pangea`, for tests of upgrades: it has one procedure more, whose name sorts
//! first.

use std::process::ExitCode;
use std::sync::Arc;

use pangea::{Context, Procedure, Stop};

/// Nodes allocate and free many small values on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A procedure that the previous release does not have.
struct First;

impl Procedure for First {
    fn name(&self) -> &str {
        "a.first"
    }

    fn run(&self, _: &[u8], _: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        Ok(Vec::new())
    }
}

fn main() -> ExitCode {
    pangea::command_line::run_with(vec![Arc::new(First)])
}
