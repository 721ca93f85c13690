//! The real-world environment of a protocol's state machine: sockets, files, clocks and threads.

pub mod checkpoint;
pub mod client;
pub mod clock;
mod cold;
pub mod config;
pub mod data_dir;
pub mod disk;
pub mod driver;
pub mod log;
pub mod meter;
pub mod network;
pub mod node;
mod panics;
pub mod pgwire;
pub mod pool;
pub mod random;
pub mod remote_rows;
pub mod running;
mod start_report;
pub mod transport;
mod write_throttle;

#[cfg(test)]
#[path = "../../fuzz/engine/mod.rs"]
mod fuzzing;
