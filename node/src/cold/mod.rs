//! Values of rows that are not in memory (Calvin §4), if `memory_mb` limits memory.
//!
//! ```text
//!   store --put, when memory is above its limit--> cold.redb     one thread
//!   store <--get, when a reader finds a mark------ cold.redb     the reader's thread, which waits
//!   store <--get, ahead, as the protocol asks----- cold.redb     a few threads
//! ```
//!
//! The file is recreated at each start, because its contents can be rebuilt from the checkpoint and
//! the log. Therefore it is never synced.

mod file;
mod start;
mod threads;

pub use file::ColdFile;
pub(crate) use start::{cold_threads_of, new_store};
pub use threads::{ColdThreads, OnFetched, OnPanic};
