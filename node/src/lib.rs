//! The world as it is: sockets, files, clocks and threads around the state machines of
//! `pangea-protocols`.

pub mod client;
pub mod transport;
