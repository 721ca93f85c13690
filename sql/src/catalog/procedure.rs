//! Stored procedures: what CALL runs.
//!
//! ```text
//!   08 name -> version u8, list of all procedures of the name
//! ```
//!
//! Procedures of one name differ in the types of what they are given. They are kept as text, and
//! read when a CALL is planned.

use pangea_core::codec::DecodeError;
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Scan, Stop};
use pangea_core::value::Value;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

use super::table::column_type;
use super::{CATALOG, QualifiedName};
use crate::error::Failure;
use crate::types::{ColumnType, SqlType};

const PREFIX: u8 = 8;
/// The layout of a record that this code writes.
const VERSION: u8 = 1;

/// What a procedure is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Language {
    /// Statements, one after the other.
    Sql,
    /// Statements with variables and control flow.
    PlPgSql,
}

impl Language {
    /// Its name in `pg_language`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sql => "sql",
            Self::PlPgSql => "plpgsql",
        }
    }
}

/// Which way a parameter goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    In,
    Out,
    InOut,
}

impl Mode {
    /// Whether the procedure is given a value.
    pub(crate) fn is_in(self) -> bool {
        self != Self::Out
    }

    /// Whether the caller is.
    pub(crate) fn is_out(self) -> bool {
        self != Self::In
    }
}

/// A parameter of a procedure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameter {
    /// Empty where it has none.
    pub name: String,
    pub mode: Mode,
    #[serde(with = "column_type")]
    pub ty: ColumnType,
    /// The SQL text of its default.
    pub default: Option<String>,
}

/// A procedure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Procedure {
    /// Its number, of those that tables are given.
    pub id: u32,
    pub name: QualifiedName,
    /// The role that may replace and drop it.
    pub owner: String,
    pub language: Language,
    pub parameters: Vec<Parameter>,
    /// What it does, as it was written.
    pub body: String,
}

impl Procedure {
    /// The types of what it is called with: OUT parameters are there too, and ignored.
    pub(crate) fn types(&self) -> impl ExactSizeIterator<Item = SqlType> + '_ {
        self.parameters.iter().map(|parameter| parameter.ty.base)
    }

    /// The types of what it is given: by them procedures of one name differ.
    pub(crate) fn identity(&self) -> Vec<SqlType> {
        let given = self.parameters.iter().filter(|parameter| parameter.mode.is_in());
        given.map(|parameter| parameter.ty.base).collect()
    }

    /// Whether it is meant by the types of what it is given, or of all of its parameters.
    pub(crate) fn is_given(&self, types: &[SqlType]) -> bool {
        self.identity() == types || self.types().eq(types.iter().copied())
    }

    /// `name(integer,text)`
    pub(crate) fn signature(&self) -> String {
        let types: Vec<String> = self.identity().iter().map(ToString::to_string).collect();
        format!("{}({})", self.name, types.join(","))
    }
}

/// The key of all procedures of a name.
fn key(name: &QualifiedName) -> Key {
    super::key_of(PREFIX, name.as_kept())
}

fn decode(bytes: &[u8]) -> Result<Vec<Procedure>, DecodeError> {
    match bytes.split_first() {
        Some((&VERSION, record)) => match postcard::take_from_bytes(record) {
            Ok((procedures, [])) => Ok(procedures),
            _ => Err(DecodeError::new("procedure")),
        },
        _ => Err(DecodeError::new("version of a procedure")),
    }
}

/// The procedures of a name.
///
/// # Errors
/// When the record is malformed, or the executor needs the run to end.
pub(crate) fn find(name: &QualifiedName, cx: &mut dyn Context) -> Result<Vec<Procedure>, Failure> {
    let record = cx.get(CATALOG, &key(name))?;
    Ok(record.map(|record| decode(&record)).transpose()?.unwrap_or_default())
}

/// Writes the procedures of a name, all of them.
///
/// # Errors
/// When the executor needs the run to end.
pub(crate) fn put(
    name: &QualifiedName,
    procedures: &[Procedure],
    cx: &mut dyn Context,
) -> Result<(), Stop> {
    if procedures.is_empty() {
        return cx.delete(CATALOG, key(name));
    }
    let mut record = vec![VERSION];
    record.extend(postcard::to_stdvec(procedures).expect("a vector takes anything"));
    cx.put(CATALOG, key(name), Value::from(record))
}

/// All procedures, by their names.
///
/// # Errors
/// When a record is malformed, or the executor needs the run to end.
pub(crate) fn all(cx: &mut dyn Context) -> Result<Vec<Procedure>, Failure> {
    let mut records = Vec::new();
    let (table, range) = (CATALOG, KeyRange::prefix(&[PREFIX]));
    cx.scan(&Scan { table, range, direction: Direction::Forward }, &mut |_, record| {
        records.push(record.clone());
        ControlFlow::Continue(())
    })?;
    let mut procedures = Vec::new();
    for record in records {
        procedures.extend(decode(&record)?);
    }
    Ok(procedures)
}
