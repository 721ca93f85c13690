//! The failure of a command: one line on stderr, and an exit code.

use std::fmt;
use std::process::ExitCode;

/// The reason why a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request is invalid: exit code 2.
    Usage(String),
    /// The command failed, or a check did: exit code 1.
    Failed(String),
    /// A node was stopped, and ended without its last checkpoint: exit code 3.
    NoCheckpoint(String),
    /// Nobody reads stdout any more: exit code 141, as shells report for a broken pipe.
    NoReader,
    /// The command was interrupted: exit code 130, as shells report for Ctrl-C.
    Interrupted(String),
}

impl Failure {
    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(_) => ExitCode::from(1),
            Self::Usage(_) => ExitCode::from(2),
            Self::NoCheckpoint(_) => ExitCode::from(3),
            Self::Interrupted(_) => ExitCode::from(130),
            Self::NoReader => ExitCode::from(141),
        }
    }

    /// Creates a failure of `what`, and its cause.
    pub fn failed(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message)
            | Self::Failed(message)
            | Self::NoCheckpoint(message)
            | Self::Interrupted(message) => f.write_str(message),
            Self::NoReader => f.write_str("can't write to stdout: nobody reads it"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<pangea_baselines::Failure> for Failure {
    fn from(failure: pangea_baselines::Failure) -> Self {
        match failure {
            pangea_baselines::Failure::Usage(message) => Self::Usage(message),
            pangea_baselines::Failure::Failed(message) => Self::Failed(message),
        }
    }
}
