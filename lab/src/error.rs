//! The errors of a lab.

use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// An error. The message contains a hint if there is a remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabError {
    /// The request is invalid; it had no effect.
    Usage(String),
    /// The machine lacks a requirement or a permission; the request had no effect.
    Missing(String),
    /// The operation was tried and failed.
    Failed(String),
}

impl LabError {
    /// A failed operation, and the reason.
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

/// Runs a command and waits for it.
pub(crate) fn run(command: &mut Command) -> Result<(), LabError> {
    let shown = || {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let shown = shown();
    // The command runs in its own process group, because Ctrl-C in the terminal is for this
    // program, which may be about to clean up.
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
