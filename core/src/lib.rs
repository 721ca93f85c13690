//! A database minus agreement.
//!
//! Everything that the commit protocols share lives here: names and numbers ([`ids`], [`time`],
//! [`topology`]), what a transaction is ([`txn`]), where its data is ([`key`], [`store`]), how it
//! runs ([`exec`]), what a replica writes down ([`log`]), the work that it is measured by
//! ([`workload`]), and the waist that every protocol is written against ([`protocol`]).
//!
//! Nothing in this crate reads a clock, starts a thread, opens a socket or a file, or draws a
//! random number that it was not handed: the same inputs give the same outputs, byte for byte.

pub mod choice;
pub mod codec;
pub mod exec;
pub mod hash;
pub mod ids;
pub mod key;
pub mod log;
pub mod partition;
pub mod planted;
pub mod pool;
pub mod protocol;
pub mod store;
mod sync;
pub mod time;
pub mod topology;
pub mod txn;
pub mod value;
pub mod way;
pub mod work;
pub mod workload;

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may look outside")]
#[path = "../../fuzz/engine/mod.rs"]
mod fuzzing;
