//! Stored procedures, run by CALL.
//!
//! ```text
//!   08 name -> version u8, list of all procedures of the name
//! ```
//!
//! Procedures of one name are distinguished by the types of their input parameters. Bodies are
//! stored as text and parsed when a CALL is planned.

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
/// Version of the record layout that this code writes.
const VERSION: u8 = 1;

/// The language of a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Language {
    /// A sequence of statements.
    Sql,
    /// Statements with variables and control flow.
    PlPgSql,
}

impl Language {
    /// Name in `pg_language`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sql => "sql",
            Self::PlPgSql => "plpgsql",
        }
    }
}

/// The mode of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    In,
    Out,
    InOut,
}

impl Mode {
    /// Whether the caller passes a value to the procedure.
    pub(crate) fn is_in(self) -> bool {
        self != Self::Out
    }

    /// Whether the procedure returns a value to the caller.
    pub(crate) fn is_out(self) -> bool {
        self != Self::In
    }
}

/// A parameter of a procedure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameter {
    /// Empty for an unnamed parameter.
    pub name: String,
    pub mode: Mode,
    #[serde(with = "column_type")]
    pub ty: ColumnType,
    /// SQL text of the default.
    pub default: Option<String>,
}

/// A procedure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Procedure {
    /// Number drawn from the table counter.
    pub id: u32,
    pub name: QualifiedName,
    /// The role that may replace and drop the procedure.
    pub owner: String,
    pub language: Language,
    pub parameters: Vec<Parameter>,
    /// Source text.
    pub body: String,
}

impl Procedure {
    /// Types of all arguments of a CALL. These include OUT parameters, whose arguments are ignored.
    pub(crate) fn types(&self) -> impl ExactSizeIterator<Item = SqlType> + '_ {
        self.parameters.iter().map(|parameter| parameter.ty.base)
    }

    /// Types of the input parameters. They distinguish procedures of one name.
    pub(crate) fn identity(&self) -> Vec<SqlType> {
        let given = self.parameters.iter().filter(|parameter| parameter.mode.is_in());
        given.map(|parameter| parameter.ty.base).collect()
    }

    /// Whether `types` denote this procedure: they are the types of its input parameters or of all
    /// its parameters.
    pub(crate) fn is_given(&self, types: &[SqlType]) -> bool {
        self.identity() == types || self.types().eq(types.iter().copied())
    }

    /// Returns the signature in the form `name(integer,text)`.
    pub(crate) fn signature(&self) -> String {
        let types: Vec<String> = self.identity().iter().map(ToString::to_string).collect();
        format!("{}({})", self.name, types.join(","))
    }
}

/// Key of the record of all procedures of a name.
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

/// Returns the procedures of a name.
///
/// # Errors
/// Fails if the record is malformed or the executor stops the run.
pub(crate) fn find(name: &QualifiedName, cx: &mut dyn Context) -> Result<Vec<Procedure>, Failure> {
    let record = cx.get(CATALOG, &key(name))?;
    Ok(record.map(|record| decode(&record)).transpose()?.unwrap_or_default())
}

/// Writes all procedures of a name, replacing the earlier ones.
///
/// # Errors
/// Fails if the executor stops the run.
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

/// Returns all procedures, in name order.
///
/// # Errors
/// Fails if a record is malformed or the executor stops the run.
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
