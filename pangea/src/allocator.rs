//! Configuration of a node's allocator.
//!
//! mimalloc returns freed memory to the system after one second. A node constantly frees and
//! allocates large blocks: growing tables, batches, frames. A block that was returned is mapped
//! again page by page, and the system zero-fills every page. Measured with TPC-C, that takes up to
//! a quarter of the engine's time. Therefore a node retains freed memory for longer.
//!
//! mimalloc reads this setting from the environment before `main` begins, and setting it later
//! needs unsafe code. A node that was started without the setting therefore re-executes itself, in
//! the same process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The environment variable for the time that freed memory is retained, in milliseconds. A value
/// set by the user takes precedence.
const VARIABLE: &str = "MIMALLOC_PURGE_DELAY";
/// mimalloc waits ten times as long for memory in its arenas, which is nearly all memory. Memory is
/// therefore returned after some 100 s without use.
const DELAY_MS: &str = "10000";

/// Makes the allocator retain freed memory, by executing this program again with the setting.
/// Returns the error if that is not possible: the node is then slower, but works.
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
    // Returns only on failure.
    Some(Command::new(program).arg0(name).args(arguments).env(VARIABLE, DELAY_MS).exec())
}
