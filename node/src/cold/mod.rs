//! Values of rows that are not in memory (Calvin §4), where `memory_mb` says that not all can be.
//!
//! ```text
//!   store --put, when memory is above its limit--> cold.redb     one thread
//!   store <--get, when a reader finds a mark------ cold.redb     whoever reads: it waits
//!   store <--get, ahead, as the protocol asks----- cold.redb     a few threads
//! ```
//!
//! The file is made anew with each start: what is in it follows from the checkpoint and the log. So
//! nothing of it is ever synced.

mod file;
mod keeper;
mod start;

pub use file::ColdFile;
pub use keeper::{Keeper, OnFetched, OnPanic};
pub(crate) use start::{keeper_of, new_store};
