//! Commit protocols: each is a folder, and a state machine that implements
//! [`pangea_core::protocol::Protocol`].
//!
//! A protocol reads no clock and starts no thread, and never imports a sibling. Code that two of
//! them share unchanged is next to them: the [`inputs`] log, and the components below it.

pub mod agreement;
pub mod calvin;
mod checkpoints;
mod decisions;
pub mod digests;
#[cfg(test)]
mod exhaustive;
pub mod geogauss;
pub mod inputs;
mod lookup;
pub mod mako;
mod marks;
mod messages;
pub mod minerva;
pub mod presence;
mod remote_results;
mod replica;
pub mod request;
mod retention;
pub mod streams;
pub mod tiga;
pub mod transfer;
mod write_set_codec;

use std::fmt;

use pangea_core::protocol::Protocol;

/// A task that runs with a protocol as its type.
pub trait WithProtocol {
    /// The result of the task.
    type Output;

    /// Runs the task.
    fn run<P: Protocol>(self) -> Self::Output;
}

/// Makes [`NAMES`] and [`with_protocol`] from one list.
macro_rules! protocols {
    ($($module:ident::$protocol:ident),+ $(,)?) => {
        /// The names of the protocols, the default one first.
        pub const NAMES: &[&str] = &[$(<$module::$protocol as Protocol>::NAME),+];

        /// Runs a task with the protocol of a name.
        ///
        /// # Errors
        /// When no protocol has the name.
        pub fn with_protocol<W: WithProtocol>(
            name: &str,
            task: W,
        ) -> Result<W::Output, UnknownProtocol> {
            match name {
                $(<$module::$protocol as Protocol>::NAME => {
                    Ok(task.run::<$module::$protocol>())
                })+
                _ => Err(UnknownProtocol { name: name.to_owned() }),
            }
        }
    };
}

// Outside of its folder, a protocol is known only here and by its `mod` above.
protocols!(minerva::Minerva, calvin::Calvin, geogauss::GeoGauss, tiga::Tiga, mako::Mako);

/// Error: no protocol has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProtocol {
    /// The name that was given.
    pub name: String,
}

impl fmt::Display for UnknownProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&not_among(&self.name, NAMES))
    }
}

impl std::error::Error for UnknownProtocol {}

/// Says that no protocol among the known ones has this name.
pub fn not_among(name: &str, known: &[&str]) -> String {
    format!("unknown protocol {name:?}; known: {}", known.join(", "))
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may access the environment"
)]
#[path = "../../fuzz/engine/mod.rs"]
mod fuzzing;
