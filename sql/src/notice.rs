//! What clients are told beside their results.

use std::fmt;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::txn::SqlState;

use crate::error::code;

/// How much a client should mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// For who looks for a mistake.
    Debug,
    /// For who keeps the server.
    Log,
    /// Something to know.
    Notice,
    /// Something did not happen that the client asked for.
    Warning,
    /// What the client asked to be told, whatever it wants to hear of.
    Info,
}

impl Severity {
    /// All of them, by their numbers.
    const ALL: [Self; 5] = [Self::Debug, Self::Log, Self::Notice, Self::Warning, Self::Info];
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Debug => "DEBUG",
            Self::Log => "LOG",
            Self::Notice => "NOTICE",
            Self::Warning => "WARNING",
            Self::Info => "INFO",
        })
    }
}

/// One thing that a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How much it should mind.
    pub severity: Severity,
    /// The SQLSTATE.
    pub code: SqlState,
    /// One line.
    pub message: String,
    /// More of it.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Notice {
    /// Something to know.
    pub(crate) fn plain(message: impl Into<String>) -> Self {
        let (severity, message) = (Severity::Notice, message.into());
        Self { severity, code: code::SUCCESS, message, detail: None, hint: None }
    }

    /// Something that has no effect.
    pub(crate) fn warning(code: SqlState, message: &str) -> Self {
        Self { severity: Severity::Warning, code, ..Self::plain(message) }
    }

    /// COMMIT or ROLLBACK outside of a transaction.
    pub(crate) fn no_transaction() -> Self {
        Self::warning(code::NO_TRANSACTION, "there is no transaction in progress")
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let number = Severity::ALL.iter().position(|it| *it == self.severity);
        out.put_u8(number.unwrap_or_default() as u8);
        out.put_bytes(self.code.as_str().as_bytes());
        out.put_bytes(self.message.as_bytes());
        for text in [&self.detail, &self.hint] {
            out.put_u8(u8::from(text.is_some()));
            out.put_bytes(text.as_deref().unwrap_or_default().as_bytes());
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        fn text(from: &mut Reader<'_>) -> Result<String, DecodeError> {
            let bytes = from.bytes("notice")?.to_vec();
            String::from_utf8(bytes).map_err(|_| DecodeError::new("notice"))
        }
        let optional = |from: &mut Reader<'_>| {
            let is_there = from.u8("notice flag")? != 0;
            Ok::<_, DecodeError>(Some(text(from)?).filter(|_| is_there))
        };
        let severity = Severity::ALL.get(usize::from(from.u8("severity")?));
        let severity = *severity.ok_or(DecodeError::new("severity"))?;
        let code = from.bytes("notice")?.try_into().map_err(|_| DecodeError::new("SQLSTATE"))?;
        let message = text(from)?;
        let (detail, hint) = (optional(from)?, optional(from)?);
        Ok(Self { severity, code: SqlState(code), message, detail, hint })
    }
}
