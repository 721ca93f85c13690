//! Errors in PostgreSQL's words: SQLSTATE, message, detail, hint and position.

use std::fmt;

use pangea_core::txn::{Abort, SqlState, Stop};
use sqlparser::tokenizer::Location;

/// What a client is told when a statement fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// The SQLSTATE.
    pub code: SqlState,
    /// One line.
    pub message: String,
    /// The row, the key, the value.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// The character of the query text that the error is about, from 1.
    pub position: Option<u32>,
}

/// SQLSTATE codes that more than one place uses.
pub(crate) mod code {
    pub const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub const PROTOCOL_VIOLATION: &str = "08P01";
    pub const NUMERIC_OUT_OF_RANGE: &str = "22003";
    pub const STRING_TOO_LONG: &str = "22001";
    pub const DATETIME_FORMAT: &str = "22007";
    pub const DATETIME_OVERFLOW: &str = "22008";
    pub const DIVISION_BY_ZERO: &str = "22012";
    pub const INVALID_PARAMETER: &str = "22023";
    pub const INVALID_TEXT: &str = "22P02";
    pub const INVALID_BINARY: &str = "22P03";
    pub const NOT_NULL: &str = "23502";
    pub const UNIQUE: &str = "23505";
    pub const ACTIVE_TRANSACTION: &str = "25001";
    pub const READ_ONLY: &str = "25006";
    pub const FAILED_TRANSACTION: &str = "25P02";
    pub const NO_STATEMENT: &str = "26000";
    pub const NO_PORTAL: &str = "34000";
    pub const SYNTAX: &str = "42601";
    pub const DUPLICATE_COLUMN: &str = "42701";
    pub const AMBIGUOUS_COLUMN: &str = "42702";
    pub const UNDEFINED_COLUMN: &str = "42703";
    pub const UNDEFINED_OBJECT: &str = "42704";
    pub const GROUPING: &str = "42803";
    pub const TYPE_MISMATCH: &str = "42804";
    pub const CANNOT_COERCE: &str = "42846";
    pub const UNDEFINED_FUNCTION: &str = "42883";
    pub const UNDEFINED_TABLE: &str = "42P01";
    pub const UNDEFINED_PARAMETER: &str = "42P02";
    pub const DUPLICATE_STATEMENT: &str = "42P05";
    pub const DUPLICATE_TABLE: &str = "42P07";
    pub const INVALID_COLUMN_REFERENCE: &str = "42P10";
    pub const INVALID_TABLE_DEFINITION: &str = "42P16";
    pub const INDETERMINATE_TYPE: &str = "42P18";
    pub const TOO_COMPLEX: &str = "54001";
    pub const LIMIT_EXCEEDED: &str = "54000";
    pub const UNAVAILABLE: &str = "57P03";
    pub const INTERNAL: &str = "XX000";
    pub const DATA_CORRUPTED: &str = "XX001";
}

impl SqlError {
    /// An error with a code and a message alone.
    ///
    /// # Panics
    /// When the code does not have five characters.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        let code = code.as_bytes().try_into().expect("a SQLSTATE has five characters");
        let message = message.into();
        Self { code: SqlState(code), message, detail: None, hint: None, position: None }
    }

    /// The feature is part of PostgreSQL, and not yet of Pangea.
    pub fn unsupported(feature: impl fmt::Display) -> Self {
        Self::new(code::FEATURE_NOT_SUPPORTED, format!("{feature} is not supported yet"))
    }

    /// The same error, with a detail.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same error, with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error, at a place of `text`, unless it has one already.
    #[must_use]
    pub(crate) fn at(mut self, text: &str, location: Location) -> Self {
        if self.position.is_none() {
            self.position = offset(text, location).map(|offset| offset as u32 + 1);
        }
        self
    }
}

/// The number of characters of `text` before a location.
fn offset(text: &str, location: Location) -> Option<usize> {
    let line = usize::try_from(location.line).ok()?.checked_sub(1)?;
    let column = usize::try_from(location.column).ok()?.checked_sub(1)?;
    let before: usize = text.split('\n').take(line).map(|line| line.chars().count() + 1).sum();
    Some(before + column)
}

/// The number of bytes of `text` before a location.
pub(crate) fn byte_offset(text: &str, location: Location) -> usize {
    let Some(chars) = offset(text, location) else { return 0 };
    text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)
    }
}

impl std::error::Error for SqlError {}

impl From<Abort> for SqlError {
    fn from(abort: Abort) -> Self {
        let Abort { code, message, detail, hint } = abort;
        Self { code, message, detail, hint, position: None }
    }
}

impl From<SqlError> for Abort {
    fn from(error: SqlError) -> Self {
        let SqlError { code, message, detail, hint, position: _ } = error;
        Self { code, message, detail, hint }
    }
}

impl From<pangea_core::codec::DecodeError> for SqlError {
    fn from(error: pangea_core::codec::DecodeError) -> Self {
        Self::new(code::DATA_CORRUPTED, error.to_string())
    }
}

/// Why a run of a statement ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The statement failed: an answer, the same on every replica.
    Sql(SqlError),
    /// The executor needs the run to end, and may start it again.
    Interrupted,
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        Self::Sql(error)
    }
}

impl From<pangea_core::codec::DecodeError> for Failure {
    fn from(error: pangea_core::codec::DecodeError) -> Self {
        Self::Sql(error.into())
    }
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Abort(abort) => Self::Sql(abort.into()),
            Stop::Interrupted => Self::Interrupted,
        }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sql(error) => Self::Abort(error.into()),
            Failure::Interrupted => Self::Interrupted,
        }
    }
}

impl From<Failure> for SqlError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sql(error) => error,
            Failure::Interrupted => Self::new(code::INTERNAL, "a local run was interrupted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_characters_over_lines() {
        let error = SqlError::new(code::SYNTAX, "x").at("é\nab", Location { line: 2, column: 2 });
        assert_eq!(error.position, Some(4));
        assert_eq!(byte_offset("é\nab", Location { line: 2, column: 2 }), 4);
    }
}
