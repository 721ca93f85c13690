//! Schemas other than `public`, which always exists.
//!
//! ```text
//!   0c name -> version u8, number u32       owner and grants: see `role`
//! ```

use std::ops::ControlFlow;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Scan, Stop};
use pangea_core::value::Value;

use super::{CATALOG, PUBLIC, next_table_id};
use crate::error::Failure;

const PREFIX: u8 = 12;
/// Version of the record layout that this code writes.
const VERSION: u8 = 1;

/// Schemas in which users cannot create objects, in the order in which they are searched.
pub(crate) const SYSTEM: [&str; 3] = ["pg_catalog", "information_schema", PANGEA];

/// The schema of Pangea's own objects: its views and its callable programs.
pub(crate) const PANGEA: &str = "pangea";

/// Key of a schema's record.
fn key(name: &str) -> Key {
    super::key_of(PREFIX, name)
}

fn decode(record: &[u8]) -> Result<u32, DecodeError> {
    let mut from = Reader::new(record);
    match from.u8("version of a schema")? {
        VERSION => from.u32("number of a schema"),
        _ => Err(DecodeError::new("version of a schema")),
    }
}

/// Whether a schema of this name exists.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn is_there(name: &str, cx: &mut dyn Context) -> Result<bool, Stop> {
    Ok(name == PUBLIC || SYSTEM.contains(&name) || cx.get(CATALOG, &key(name))?.is_some())
}

/// Returns the number of a schema other than `public`.
///
/// # Errors
/// Fails if the record is malformed or the executor stops the run.
pub(crate) fn number(name: &str, cx: &mut dyn Context) -> Result<Option<u32>, Failure> {
    let record = cx.get(CATALOG, &key(name))?;
    Ok(record.map(|record| decode(&record)).transpose()?)
}

/// Creates a schema.
///
/// # Errors
/// Fails like [`next_table_id`], or if the executor stops the run.
pub(crate) fn make(name: &str, cx: &mut dyn Context) -> Result<(), Failure> {
    let number = next_table_id(cx)?;
    let mut record = vec![VERSION];
    record.put_u32(number.0);
    Ok(cx.put(CATALOG, key(name), Value::from(record))?)
}

/// Deletes a schema's record.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn remove(name: &str, cx: &mut dyn Context) -> Result<(), Stop> {
    cx.delete(CATALOG, key(name))
}

/// Returns all schemas other than `public`, with their numbers.
///
/// # Errors
/// Fails if a record is malformed or the executor stops the run.
pub(crate) fn all(cx: &mut dyn Context) -> Result<Vec<(String, u32)>, Failure> {
    let (table, range) = (CATALOG, KeyRange::prefix(&[PREFIX]));
    let mut found = Vec::new();
    cx.scan(&Scan { table, range, direction: Direction::Forward }, &mut |key, record| {
        found.push((key[1..].to_vec(), decode(record)));
        ControlFlow::Continue(())
    })?;
    let one = |(name, number): (Vec<u8>, Result<u32, DecodeError>)| {
        let name = String::from_utf8(name).map_err(|_| DecodeError::new("name of a schema"))?;
        Ok((name, number?))
    };
    let all: Result<_, DecodeError> = found.into_iter().map(one).collect();
    Ok(all?)
}
