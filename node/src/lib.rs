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
mod pace;
mod panics;
pub mod pgwire;
pub mod pool;
pub mod random;
pub mod region;
pub mod running;
pub mod transport;

#[cfg(test)]
#[path = "../../fuzz/engine/mod.rs"]
mod fuzzing;
