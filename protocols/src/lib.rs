//! Ways to agree: each commit protocol is a folder, and a state machine behind
//! [`pangea_core::protocol::Protocol`].
//!
//! A protocol reads no clock and starts no thread; it never imports a sibling. What two of them
//! need unchanged is beside them: [`agreement`], and the input log over it, [`inputs`].

pub mod agreement;
pub mod calvin;
#[cfg(test)]
mod exhaustive;
pub mod inputs;
pub mod minerva;

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may look outside")]
#[path = "../../fuzz/engine/mod.rs"]
mod fuzzing;
