//! A database without agreement.
//!
//! This crate contains everything that the commit protocols share:
//! - ids, time and topology ([`ids`], [`time`], [`topology`]);
//! - transactions ([`txn`]), keys and rows ([`key`], [`store`]), and executors ([`exec`]);
//! - the formats of a replica's log and checkpoints ([`log`]);
//! - the workloads of benchmarks and simulations ([`workload`]);
//! - the waist, the interface that every protocol implements ([`protocol`]).
//!
//! The crate is deterministic. No function in it reads a clock, starts a thread, opens a socket or
//! a file, or draws a random number from a generator that was not passed in. The same inputs give
//! the same outputs, byte for byte.

pub mod codec;
pub mod cpu_stage;
pub mod exec;
pub mod guarantee;
pub mod hash;
pub mod ids;
pub mod key;
pub mod latency;
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
pub mod workload;

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may access the environment"
)]
#[path = "../../fuzz/engine/mod.rs"]
mod fuzzing;
