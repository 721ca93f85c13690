//! The native protocol: programs use it to submit transactions without SQL, and to query a node.
//!
//! A client connects to the port that the node's peers use, and sends a hello with the cluster's
//! name. The answer names the node that it reached. From then on it sends frames of calls and of
//! queries, and receives frames of answers, in any order. Each answer has the number of its
//! request. Both directions put all pending messages into one frame, so a busy connection carries
//! thousands of transactions with a few system calls.
//!
//! ```text
//!   Submit:  names [name ...]  calls [request, index of its name, args ...]
//!   Query:   request, query (postcard)
//!   Answers: [request u64, length u32, answer (postcard) ...]
//! ```
//!
//! Names are in the frame that uses them, so neither side keeps state of the other. New queries and
//! answers are appended to their enums; any other change raises the wire version, which is in every
//! frame.
//!
//! - [`Client`] is the client's side: `async`, pipelined, reconnecting;
//! - [`ClientCall`], [`ClientQuery`] and [`ClientReply`] are the node's side. The driver receives
//!   them as [`crate::transport::TransportEvent`]s.

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
pub use wire::{Answer, Pinned, Query, Row};

pub(crate) use server::serve;
