//! Why a peer could not be used.

use std::fmt;

/// What went wrong, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What was asked for can't be done here: nothing was started.
    Usage(String),
    /// It was tried and did not work, or a check failed.
    Failed(String),
}

impl Failure {
    /// Something that did not work, and why.
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
