//! The world as it is: sockets, files, clocks and threads around a protocol's state machine.

pub mod disk;
pub mod log;
pub mod random;
