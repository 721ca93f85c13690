//! The answer of an engine to statements, in one form for Pangea and PostgreSQL.

use std::fmt;

use sqllogictest::{ColumnType, DB, DBOutput};

/// The types of columns: the letter in scripts, the OID in `pg_type`, and the name. A capital
/// letter is the array type of the small one.
const TYPES: [(char, u32, &str); 54] = [
    ('b', 16, "boolean"),
    ('B', 1000, "boolean[]"),
    ('s', 21, "smallint"),
    ('S', 1005, "smallint[]"),
    ('i', 23, "integer"),
    ('I', 1007, "integer[]"),
    ('l', 20, "bigint"),
    ('L', 1016, "bigint[]"),
    ('r', 700, "real"),
    ('R', 1021, "real[]"),
    ('d', 701, "double precision"),
    ('D', 1022, "double precision[]"),
    ('n', 1700, "numeric"),
    ('N', 1231, "numeric[]"),
    ('t', 25, "text"),
    ('T', 1009, "text[]"),
    ('v', 1043, "character varying"),
    ('V', 1015, "character varying[]"),
    ('c', 1042, "character"),
    ('C', 1014, "character[]"),
    ('x', 17, "bytea"),
    ('X', 1001, "bytea[]"),
    ('y', 1082, "date"),
    ('Y', 1182, "date[]"),
    ('h', 1083, "time without time zone"),
    ('H', 1183, "time without time zone[]"),
    ('m', 1114, "timestamp without time zone"),
    ('M', 1115, "timestamp without time zone[]"),
    ('z', 1184, "timestamp with time zone"),
    ('Z', 1185, "timestamp with time zone[]"),
    ('p', 1186, "interval"),
    ('P', 1187, "interval[]"),
    ('u', 2950, "uuid"),
    ('U', 2951, "uuid[]"),
    ('j', 114, "json"),
    ('J', 199, "json[]"),
    ('k', 3802, "jsonb"),
    ('K', 3807, "jsonb[]"),
    ('g', 19, "name"),
    ('G', 1003, "name[]"),
    ('e', 18, "\"char\""),
    ('E', 1002, "\"char\"[]"),
    ('o', 26, "oid"),
    ('O', 1028, "oid[]"),
    ('w', 2249, "record"),
    ('q', 705, "unknown"),
    ('1', 2205, "regclass"),
    ('2', 2206, "regtype"),
    ('3', 4089, "regnamespace"),
    ('6', 24, "regproc"),
    ('7', 2202, "regprocedure"),
    ('4', 22, "int2vector"),
    ('5', 30, "oidvector"),
    ('0', 2278, "void"),
];

/// The letter of a type that is not in [`TYPES`].
const OTHER: char = '?';

/// The type of a column, as a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter(char);

impl Letter {
    /// Returns the letter of an OID in `pg_type`.
    pub fn of(oid: u32) -> Self {
        Self(TYPES.iter().find(|row| row.1 == oid).map_or(OTHER, |row| row.0))
    }

    /// Returns PostgreSQL's name of the type.
    pub fn name(self) -> &'static str {
        TYPES.iter().find(|row| row.0 == self.0).map_or("another type", |row| row.2)
    }
}

impl ColumnType for Letter {
    fn from_char(value: char) -> Option<Self> {
        (value == OTHER || TYPES.iter().any(|row| row.0 == value)).then_some(Self(value))
    }

    fn to_char(&self) -> char {
        self.0
    }
}

/// The result of a statement that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Rows, each as one line.
    Rows {
        /// The types of the columns.
        types: Vec<Letter>,
        /// The lines, in order.
        lines: Vec<String>,
    },
    /// A command, with the number of rows written if it writes rows.
    Done(Option<u64>),
}

/// The error of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// SQLSTATE.
    pub code: String,
    /// The message for humans.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Failure {}

/// A session of a database.
pub trait Engine {
    /// The name of the engine in `onlyif` and `skipif`.
    const NAME: &'static str;

    /// Runs statements, and returns the result of the last one or the first error.
    fn answer(&mut self, sql: &str) -> Result<Answer, Failure>;
}

/// Formats a row as a line: values with bars between them, or `()` without values. The format is
/// unambiguous, because ambiguous values are quoted.
pub fn line(values: impl IntoIterator<Item = Option<String>>) -> String {
    let show = |value: Option<String>| {
        let Some(text) = value else { return "NULL".to_owned() };
        let is_plain = !text.is_empty()
            && text != "NULL"
            && text.trim() == text
            && !text.starts_with('"')
            && !text.contains(['|', '\\'])
            && !text.contains(char::is_control);
        if is_plain { text } else { format!("{text:?}") }
    };
    let values: Vec<String> = values.into_iter().map(show).collect();
    if values.is_empty() { "()".to_owned() } else { values.join("|") }
}

/// Returns the number of rows in a tag such as `INSERT 0 2`. Returns `None` if the tag does not
/// count written rows.
pub fn rows_written(tag: &str) -> Option<u64> {
    let writes = ["INSERT", "UPDATE", "DELETE", "MERGE", "COPY"];
    let (command, rest) = tag.split_once(' ')?;
    let count = rest.rsplit(' ').next()?;
    if writes.contains(&command) { count.parse().ok() } else { None }
}

/// Splits a statement from the lines after it that are the input of a COPY FROM STDIN.
pub fn with_copied(sql: &str) -> (&str, Option<&str>) {
    let is_copy = sql.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("copy "));
    match sql.split_once(";\n") {
        Some((statement, data)) if is_copy => (statement, Some(data)),
        _ => (sql, None),
    }
}

/// Returns the output of a COPY TO STDOUT as rows of one text.
pub fn copied(bytes: &[u8]) -> (Vec<Letter>, Vec<String>) {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(|text| line([Some(text.to_owned())])).collect();
    (vec![Letter::of(25)], lines)
}

/// Adapts an engine to the crate that runs scripts.
pub struct Scripted<E>(pub E);

impl<E: Engine> DB for Scripted<E> {
    type Error = Failure;
    type ColumnType = Letter;

    fn run(&mut self, sql: &str) -> Result<DBOutput<Letter>, Failure> {
        Ok(match self.0.answer(sql)? {
            Answer::Rows { types, lines } => {
                DBOutput::Rows { types, rows: lines.into_iter().map(|line| vec![line]).collect() }
            }
            Answer::Done(count) => DBOutput::StatementComplete(count.unwrap_or(0)),
        })
    }

    fn engine_name(&self) -> &str {
        E::NAME
    }

    fn error_sql_state(error: &Failure) -> Option<String> {
        Some(error.code.clone())
    }
}
