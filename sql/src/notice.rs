//! Notices sent to clients in addition to results.

use std::fmt;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::txn::SqlState;

use crate::error::code;

/// The severity of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// For debugging.
    Debug,
    /// For the operator of the server.
    Log,
    /// A notice with useful information.
    Notice,
    /// A requested effect did not happen.
    Warning,
    /// Information that the client requested; sent whatever `client_min_messages` is.
    Info,
}

impl Severity {
    /// All severities, by their number in the encoding.
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

/// One notice for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The severity.
    pub severity: Severity,
    /// The SQLSTATE.
    pub code: SqlState,
    /// The message: one line.
    pub message: String,
    /// The detail.
    pub detail: Option<String>,
    /// The hint: advice to the user.
    pub hint: Option<String>,
}

impl Notice {
    /// A notice with useful information.
    pub(crate) fn plain(message: impl Into<String>) -> Self {
        let (severity, message) = (Severity::Notice, message.into());
        Self { severity, code: code::SUCCESS, message, detail: None, hint: None }
    }

    /// Returns a warning about a statement without effect.
    pub(crate) fn warning(code: SqlState, message: &str) -> Self {
        Self { severity: Severity::Warning, code, ..Self::plain(message) }
    }

    /// Returns the warning for COMMIT or ROLLBACK outside of a transaction.
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
