//! What can go wrong.

use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Why something was not done. The message says what to do where anything can be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabError {
    /// What was asked for makes no sense, and nothing was done.
    Usage(String),
    /// The machine lacks something, or does not allow it, and nothing was done.
    Missing(String),
    /// It was tried and did not work.
    Failed(String),
}

impl LabError {
    /// Something that did not work, and why.
    pub(crate) fn failed(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Missing(message) | Self::Failed(message) => {
                f.write_str(message)
            }
        }
    }
}

impl std::error::Error for LabError {}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<(), LabError> {
    let shown = || {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let shown = shown();
    // Ctrl-C in a terminal is meant for who runs this, which may be about to clean up.
    match command.process_group(0).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(LabError::failed(shown, format!("{}: {}", output.status, said.trim())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let program = command.get_program().to_string_lossy().into_owned();
            Err(LabError::Missing(format!("{program} is not installed")))
        }
        Err(error) => Err(LabError::failed(shown, error)),
    }
}
