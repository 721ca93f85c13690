//! What a node's allocator is told.
//!
//! mimalloc gives memory back to the system a second after it was freed. A node frees and takes
//! large pieces all the time: tables that grow, batches, frames. A piece that was given back is
//! handed out again page by page, each of which the system fills with zeros: up to a quarter of the
//! engine's time, measured with TPC-C. So a node keeps what it frees for longer.
//!
//! mimalloc reads that from the environment before `main` begins, and to set it later takes unsafe
//! code. A node that was started without it is therefore started once more, in the same process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// How long freed memory is kept, in milliseconds. Whoever sets it has their way.
const VARIABLE: &str = "MIMALLOC_PURGE_DELAY";
/// mimalloc waits ten times as long for what it has in its arenas, which is nearly everything: so
/// memory that nobody has used for some 100 s goes back.
const DELAY_MS: &str = "10000";

/// Has freed memory kept. Returns why that was not possible: the node is slower then, and nothing
/// else.
pub fn keep_freed_memory() -> Option<io::Error> {
    if std::env::var_os(VARIABLE).is_some() {
        return None;
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Some(error),
    };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into());
    // Returns only if it failed.
    Some(Command::new(program).arg0(name).args(arguments).env(VARIABLE, DELAY_MS).exec())
}
