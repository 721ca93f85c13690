//! Failures of a baseline database.

use std::fmt;

/// An error, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request is not supported here; nothing was started.
    Usage(String),
    /// The operation was tried and failed, or a check failed.
    Failed(String),
}

impl Failure {
    /// A failed operation, and the reason.
    pub fn failed(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Failed(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Failure {}
