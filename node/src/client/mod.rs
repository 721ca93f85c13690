//! The native protocol: how programs submit transactions without SQL, and ask a node about itself.
//!
//! A client connects to the port where a node hears its peers, says hello with the cluster's name,
//! and is told which node it reached. From then on it sends frames of calls and of queries, and
//! gets frames of answers, each with the number of the request that it answers, in any order. Both
//! directions put into one frame all that waits, so a busy connection carries thousands of
//! transactions with a few system calls.
//!
//! ```text
//!   Submit:  names [name ...]  calls [request, index of its name, args ...]
//!   Query:   request, query (postcard)
//!   Answers: [request u64, length u32, answer (postcard) ...]
//! ```
//!
//! Names are in the frame that uses them, so neither side keeps state of the other. New queries and
//! answers are appended to their enums; anything else raises the wire version, which is in every
//! frame.
//!
//! - [`Client`] is the client's side: `async`, pipelined, reconnecting;
//! - [`ClientCall`], [`ClientQuery`] and [`ClientReply`] are the node's side, which come to the
//!   driver as [`crate::transport::TransportEvent`]s.

mod connection;
#[cfg(test)]
mod fuzz;
mod library;
mod reply;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use library::{Client, ClientError, REQUESTS_MAX};
pub use reply::{ClientCall, ClientQuery, ClientReply, UNREAD_BYTES_MAX};
pub use wire::{Answer, Query, Row};

pub(crate) use server::serve;
