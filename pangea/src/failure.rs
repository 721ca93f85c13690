//! How a command ends when it does not end well: one line on stderr, and an exit code.

use std::fmt;
use std::process::ExitCode;

/// Why a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What was asked for makes no sense: exit code 2.
    Usage(String),
    /// It was tried and did not work, or a check failed: exit code 1.
    Failed(String),
    /// Somebody ended it before it was done: exit code 130, as shells have it for Ctrl-C.
    Interrupted(String),
}

impl Failure {
    /// The code that the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(_) => ExitCode::from(1),
            Self::Usage(_) => ExitCode::from(2),
            Self::Interrupted(_) => ExitCode::from(130),
        }
    }

    /// Something that did not work, and why.
    pub fn failed(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Failed(message) | Self::Interrupted(message) => {
                f.write_str(message)
            }
        }
    }
}

impl std::error::Error for Failure {}

impl From<pangea_peers::Failure> for Failure {
    fn from(failure: pangea_peers::Failure) -> Self {
        match failure {
            pangea_peers::Failure::Usage(message) => Self::Usage(message),
            pangea_peers::Failure::Failed(message) => Self::Failed(message),
        }
    }
}
