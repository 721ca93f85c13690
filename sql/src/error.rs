//! Errors as PostgreSQL reports them: SQLSTATE, message, detail, hint and position.

use std::fmt;

use pangea_core::txn::{Abort, SqlState, Stop};
use sqlparser::tokenizer::Location;

/// The error of a failed statement, as the client receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// SQLSTATE.
    pub code: SqlState,
    /// Primary message; one line.
    pub message: String,
    /// Detail: the row, key or value.
    pub detail: Option<String>,
    /// Advice for the user.
    pub hint: Option<String>,
    /// Position in data sent in addition to the query: the line and column of a COPY.
    pub context: Option<String>,
    /// Position in the query text: a character, counted from 1.
    pub position: Option<u32>,
    /// The violated constraint, if any.
    pub violated: Option<Box<Violated>>,
}

// The parts of the message of a NOT NULL violation, around column and table.
const NULL: &str = "null value in column \"";
const RELATION: &str = "\" of relation \"";
const NOT_NULL: &str = "\" violates not-null constraint";

// The parts of the message for an unknown type, around its name.
const TYPE: &str = "type \"";
const MISSING: &str = "\" does not exist";

/// A violated constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violated {
    /// Schema of the table.
    pub schema: String,
    /// Table.
    pub table: String,
    /// Column, if the constraint is on one.
    pub column: Option<String>,
    /// Name of the constraint, if it has one.
    pub constraint: Option<String>,
}

/// The SQLSTATEs of the SQL layer and the server. Each code is spelled once: here, or in
/// [`SqlState`] if procedures and protocols use it, too.
#[allow(missing_docs, reason = "what a code means is PostgreSQL's appendix A")]
pub mod code {
    use pangea_core::txn::SqlState;

    pub const SUCCESS: SqlState = SqlState(*b"00000");
    pub const WARNING: SqlState = SqlState(*b"01000");
    pub const OUTCOME_UNKNOWN: SqlState = SqlState::OUTCOME_UNKNOWN;
    pub const PROTOCOL_VIOLATION: SqlState = SqlState(*b"08P01");
    pub const FEATURE_NOT_SUPPORTED: SqlState = SqlState(*b"0A000");
    pub const STACKED_DIAGNOSTICS: SqlState = SqlState(*b"0Z002");
    pub const CASE_NOT_FOUND: SqlState = SqlState(*b"20000");
    pub const DATA_EXCEPTION: SqlState = SqlState(*b"22000");
    pub const STRING_TOO_LONG: SqlState = SqlState(*b"22001");
    pub const NUMERIC_OUT_OF_RANGE: SqlState = SqlState(*b"22003");
    pub const NULL_NOT_ALLOWED: SqlState = SqlState(*b"22004");
    pub const ASSIGNMENT: SqlState = SqlState(*b"22005");
    pub const DATETIME_FORMAT: SqlState = SqlState(*b"22007");
    pub const DATETIME_OVERFLOW: SqlState = SqlState(*b"22008");
    pub const SUBSTRING_LENGTH: SqlState = SqlState(*b"22011");
    pub const DIVISION_BY_ZERO: SqlState = SqlState(*b"22012");
    pub const INTERVAL_FIELD: SqlState = SqlState(*b"22015");
    pub const ESCAPE_CHARACTER: SqlState = SqlState(*b"22019");
    pub const REGULAR_EXPRESSION: SqlState = SqlState(*b"2201B");
    pub const LOG_ARGUMENT: SqlState = SqlState(*b"2201E");
    pub const WIDTH_BUCKET: SqlState = SqlState(*b"2201G");
    pub const POWER_ARGUMENT: SqlState = SqlState(*b"2201F");
    pub const SEQUENCE_LIMIT: SqlState = SqlState(*b"2200H");
    pub const ARRAY_SUBSCRIPT: SqlState = SqlState(*b"2202E");
    pub const LIMIT_ROWS: SqlState = SqlState(*b"2201W");
    pub const OFFSET_ROWS: SqlState = SqlState(*b"2201X");
    pub const INVALID_BYTES: SqlState = SqlState(*b"22021");
    pub const INVALID_PARAMETER: SqlState = SqlState(*b"22023");
    pub const ESCAPE_SEQUENCE: SqlState = SqlState(*b"22025");
    pub const INVALID_TEXT: SqlState = SqlState(*b"22P02");
    pub const INVALID_BINARY: SqlState = SqlState(*b"22P03");
    pub const BAD_COPY_FORMAT: SqlState = SqlState(*b"22P04");
    pub const UNTRANSLATABLE: SqlState = SqlState(*b"22P05");
    pub const NOT_NULL: SqlState = SqlState(*b"23502");
    pub const FOREIGN_KEY: SqlState = SqlState(*b"23503");
    pub const UNIQUE: SqlState = SqlState::UNIQUE_VIOLATION;
    pub const CHECK: SqlState = SqlState(*b"23514");
    pub const CHECK_OPTION: SqlState = SqlState(*b"44000");
    pub const TRANSACTION_END: SqlState = SqlState(*b"2D000");
    pub const CARDINALITY: SqlState = SqlState(*b"21000");
    pub const SNAPSHOT_TOO_OLD: SqlState = SqlState(*b"72000");
    pub const ACTIVE_TRANSACTION: SqlState = SqlState(*b"25001");
    pub const READ_ONLY: SqlState = SqlState(*b"25006");
    pub const DEPENDENT_OBJECTS: SqlState = SqlState(*b"2BP01");
    pub const NO_TRANSACTION: SqlState = SqlState(*b"25P01");
    pub const FAILED_TRANSACTION: SqlState = SqlState(*b"25P02");
    pub const IDLE_IN_TRANSACTION: SqlState = SqlState(*b"25P03");
    pub const NO_STATEMENT: SqlState = SqlState(*b"26000");
    pub const INVALID_AUTHORIZATION: SqlState = SqlState(*b"28000");
    pub const WRONG_PASSWORD: SqlState = SqlState(*b"28P01");
    pub const NO_PORTAL: SqlState = SqlState(*b"34000");
    pub const NO_SAVEPOINT: SqlState = SqlState(*b"3B001");
    pub const INVALID_GRANT: SqlState = SqlState(*b"0LP01");
    pub const UNDEFINED_SCHEMA: SqlState = SqlState(*b"3F000");
    pub const NO_PRIVILEGE: SqlState = SqlState(*b"42501");
    pub const SYNTAX: SqlState = SqlState(*b"42601");
    pub const INVALID_NAME: SqlState = SqlState(*b"42602");
    pub const NAME_TOO_LONG: SqlState = SqlState(*b"42622");
    pub const DUPLICATE_COLUMN: SqlState = SqlState(*b"42701");
    pub const AMBIGUOUS_COLUMN: SqlState = SqlState(*b"42702");
    pub const UNDEFINED_COLUMN: SqlState = SqlState(*b"42703");
    pub const UNDEFINED_OBJECT: SqlState = SqlState(*b"42704");
    pub const WINDOWING: SqlState = SqlState(*b"42P20");
    pub const INVALID_RECURSION: SqlState = SqlState(*b"42P19");
    pub const AMBIGUOUS_ALIAS: SqlState = SqlState(*b"42P09");
    pub const DUPLICATE_SCHEMA: SqlState = SqlState(*b"42P06");
    pub const DUPLICATE_ALIAS: SqlState = SqlState(*b"42712");
    pub const OUT_OF_MEMORY: SqlState = SqlState(*b"53200");
    pub const GROUPING: SqlState = SqlState(*b"42803");
    pub const TYPE_MISMATCH: SqlState = SqlState(*b"42804");
    pub const WRONG_OBJECT_TYPE: SqlState = SqlState(*b"42809");
    pub const CANNOT_COERCE: SqlState = SqlState(*b"42846");
    pub const UNDEFINED_FUNCTION: SqlState = SqlState::UNDEFINED_FUNCTION;
    pub const UNDEFINED_TABLE: SqlState = SqlState(*b"42P01");
    pub const UNDEFINED_PARAMETER: SqlState = SqlState(*b"42P02");
    pub const AMBIGUOUS_FUNCTION: SqlState = SqlState(*b"42725");
    pub const DUPLICATE_CURSOR: SqlState = SqlState(*b"42P03");
    pub const DUPLICATE_STATEMENT: SqlState = SqlState(*b"42P05");
    pub const DUPLICATE_TABLE: SqlState = SqlState(*b"42P07");
    pub const DUPLICATE_OBJECT: SqlState = SqlState(*b"42710");
    pub const DUPLICATE_FUNCTION: SqlState = SqlState(*b"42723");
    pub const RESERVED_NAME: SqlState = SqlState(*b"42939");
    pub const GENERATED_ALWAYS: SqlState = SqlState(*b"428C9");
    pub const INVALID_FOREIGN_KEY: SqlState = SqlState(*b"42830");
    pub const INVALID_OBJECT_DEFINITION: SqlState = SqlState(*b"42P17");
    pub const INVALID_COLUMN_REFERENCE: SqlState = SqlState(*b"42P10");
    pub const INVALID_FUNCTION: SqlState = SqlState(*b"42P13");
    pub const INVALID_TABLE_DEFINITION: SqlState = SqlState(*b"42P16");
    pub const INDETERMINATE_TYPE: SqlState = SqlState(*b"42P18");
    pub const TOO_MANY_CLIENTS: SqlState = SqlState(*b"53300");
    pub const LIMIT_EXCEEDED: SqlState = SqlState::PROGRAM_LIMIT_EXCEEDED;
    /// Internal, never sent to clients: the statement is rerun with more numbers of a sequence.
    pub const TOO_FEW_NUMBERS: SqlState = SqlState(*b"PN001");
    /// Internal, never sent to clients: the statement is rerun on one node only.
    pub const NOT_REPEATABLE: SqlState = SqlState(*b"PN002");
    pub const OBJECT_IN_USE: SqlState = SqlState(*b"55006");
    pub const TOO_COMPLEX: SqlState = SqlState(*b"54001");
    pub const TOO_MANY_COLUMNS: SqlState = SqlState(*b"54011");
    pub const TOO_MANY_ARGUMENTS: SqlState = SqlState(*b"54023");
    pub const NOT_PREREQUISITE: SqlState = SqlState(*b"55000");
    pub const FIXED_PARAMETER: SqlState = SqlState(*b"55P02");
    pub const QUERY_CANCELED: SqlState = SqlState(*b"57014");
    pub const ADMIN_SHUTDOWN: SqlState = SqlState(*b"57P01");
    pub const UNAVAILABLE: SqlState = SqlState(*b"57P03");
    pub const RAISED: SqlState = SqlState(*b"P0001");
    pub const NO_DATA_FOUND: SqlState = SqlState(*b"P0002");
    pub const TOO_MANY_ROWS: SqlState = SqlState(*b"P0003");
    pub const ASSERT_FAILURE: SqlState = SqlState(*b"P0004");
    pub const INTERNAL: SqlState = SqlState::INTERNAL_ERROR;
    pub const DATA_CORRUPTED: SqlState = SqlState(*b"XX001");
}

impl SqlError {
    /// Creates an error with only a code and a message.
    pub fn new(code: SqlState, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            detail: None,
            hint: None,
            context: None,
            position: None,
            violated: None,
        }
    }

    /// The error for a PostgreSQL feature that Pangea does not support yet.
    pub fn unsupported(feature: impl fmt::Display) -> Self {
        Self::new(code::FEATURE_NOT_SUPPORTED, format!("{feature} is not supported yet"))
    }

    /// The error for a text whose invalid UTF-8 sequence begins with `bytes`.
    pub fn not_utf8(bytes: &[u8]) -> Self {
        // As in PostgreSQL: the number of bytes that the first byte announces.
        let len = match bytes.first() {
            Some(0xc0..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf7) => 4,
            _ => 1,
        };
        let shown: Vec<_> = bytes.iter().take(len).map(|byte| format!("0x{byte:02x}")).collect();
        let message = format!("invalid byte sequence for encoding \"UTF8\": {}", shown.join(" "));
        Self::new(code::INVALID_BYTES, message)
    }

    /// Adds the violated constraint to the error of a statement that writes a table. The column is
    /// parsed from the message, because replicas answer only with text.
    #[must_use]
    pub(crate) fn in_named_table(mut self, schema: &str, table: &str) -> Self {
        let violated = |column: Option<&str>, constraint: Option<&str>| Violated {
            schema: schema.to_owned(),
            table: table.to_owned(),
            column: column.map(str::to_owned),
            constraint: constraint.map(str::to_owned),
        };
        if [code::UNIQUE, code::CHECK, code::FOREIGN_KEY].contains(&self.code) {
            // The constraint is named first. A table is named only if it is not the one written.
            let (_, named) = self.message.split_once("constraint \"").unwrap_or_default();
            let (constraint, rest) = named.split_once('"').unwrap_or_default();
            let other = rest.strip_prefix(" on table \"").and_then(|it| it.strip_suffix('"'));
            let mut violated = violated(None, Some(constraint));
            violated.table = other.unwrap_or(table).to_owned();
            self.violated = Some(Box::new(violated));
        } else if self.code == code::NOT_NULL {
            let end = format!("{RELATION}{table}{NOT_NULL}");
            let column = self.message.strip_prefix(NULL).and_then(|rest| rest.strip_suffix(&end));
            self.violated = Some(Box::new(violated(column, None)));
        }
        self
    }

    /// The error for a relation that does not exist.
    pub(crate) fn undefined_table(name: impl fmt::Display) -> Self {
        Self::new(code::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))
    }

    /// The error for a schema that does not exist.
    pub(crate) fn undefined_schema(name: &str) -> Self {
        Self::new(code::UNDEFINED_SCHEMA, format!("schema \"{name}\" does not exist"))
    }

    /// The error for an unknown type. It may be an enum that has not been loaded yet: see
    /// [`Self::missing_type`].
    pub(crate) fn undefined_type(name: &str) -> Self {
        Self::new(code::UNDEFINED_OBJECT, format!("{TYPE}{name}{MISSING}"))
    }

    /// Returns the name of the unknown type, if this is the error.
    pub(crate) fn missing_type(&self) -> Option<&str> {
        let name = self.message.strip_prefix(TYPE)?.strip_suffix(MISSING)?;
        (self.code == code::UNDEFINED_OBJECT).then_some(name)
    }

    /// The error for a NULL in a NOT NULL column.
    pub(crate) fn null_in_column(column: &str, table: &str) -> Self {
        Self::new(code::NOT_NULL, format!("{NULL}{column}{RELATION}{table}{NOT_NULL}"))
    }

    /// The error for a duplicate key.
    pub(crate) fn duplicate_key(constraint: &str) -> Self {
        Self::new(
            code::UNIQUE,
            format!("duplicate key value violates unique constraint \"{constraint}\""),
        )
    }

    /// Sets the detail.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Sets the hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the position to a location of `text`, unless the error has a position.
    #[must_use]
    pub(crate) fn at(mut self, text: &str, location: Location) -> Self {
        if self.position.is_none() {
            self.position = offset(text, location).map(|offset| offset as u32 + 1);
        }
        self
    }
}

/// Number of characters of `text` before a location.
fn offset(text: &str, location: Location) -> Option<usize> {
    let line = usize::try_from(location.line).ok()?.checked_sub(1)?;
    let column = usize::try_from(location.column).ok()?.checked_sub(1)?;
    let before: usize = text.split('\n').take(line).map(|line| line.chars().count() + 1).sum();
    Some(before + column)
}

/// Number of bytes of `text` before a location.
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
        Self { code, message, detail, hint, context: None, position: None, violated: None }
    }
}

impl From<SqlError> for Abort {
    fn from(error: SqlError) -> Self {
        let SqlError { code, message, detail, hint, .. } = error;
        Self { code, message, detail, hint }
    }
}

impl From<pangea_core::codec::DecodeError> for SqlError {
    fn from(error: pangea_core::codec::DecodeError) -> Self {
        Self::new(code::DATA_CORRUPTED, error.to_string())
    }
}

/// The reason why a run of a statement ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The statement failed, identically on every replica.
    Sql(SqlError),
    /// The executor stopped the run and may restart it.
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

/// The node can't answer because it is stopping or overloaded. If a program was submitted, its
/// outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The cause, and advice for the client.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}

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
