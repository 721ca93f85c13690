//! Comments on objects, as set by `COMMENT ON`.
//!
//! ```text
//!   07 class u32 | number u32 | part u32 -> text      all big-endian
//! ```
//!
//! As in `pg_description`, a comment refers to its object by number, so it survives a rename. The
//! part is the number of a column, or 0 for the object itself.

use std::ops::ControlFlow;

use pangea_core::codec::DecodeError;
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Scan, Stop};
use pangea_core::value::Value;

use super::CATALOG;
use crate::error::Failure;

const PREFIX: u8 = 7;

/// The subject of a comment: the number of the system catalog that lists the object, the object's
/// number there, and the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub class: u32,
    pub object: u32,
    pub part: u32,
}

impl Subject {
    fn key(self) -> Key {
        let mut key = prefix(self.class, self.object);
        key.extend_from_slice(&self.part.to_be_bytes());
        Key::from(&key[..])
    }
}

fn prefix(class: u32, object: u32) -> Vec<u8> {
    let mut key = vec![PREFIX];
    key.extend_from_slice(&class.to_be_bytes());
    key.extend_from_slice(&object.to_be_bytes());
    key
}

/// Sets the comment on an object, or removes it.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn put(subject: Subject, text: Option<&str>, cx: &mut dyn Context) -> Result<(), Stop> {
    let key = subject.key();
    match text.filter(|text| !text.is_empty()) {
        Some(text) => cx.put(CATALOG, key, Value::from(text.as_bytes())),
        None if cx.get(CATALOG, &key)?.is_some() => cx.delete(CATALOG, key),
        None => Ok(()),
    }
}

type Said = Vec<(Key, String)>;

fn scan(range: KeyRange, cx: &mut dyn Context) -> Result<Said, Failure> {
    let mut found = Vec::new();
    let scan = Scan { table: CATALOG, range, direction: Direction::Forward };
    cx.scan(&scan, &mut |key, text| {
        found.push((Key::from(key), std::str::from_utf8(text).map(str::to_owned)));
        ControlFlow::Continue(())
    })?;
    let said = |(key, text): (Key, Result<String, _>)| Ok((key, text?));
    let all: Result<Said, std::str::Utf8Error> = found.into_iter().map(said).collect();
    Ok(all.map_err(|_| DecodeError::new("comment"))?)
}

/// Removes the comments on a dropped object and on its parts.
///
/// # Errors
/// Fails if a comment is malformed or the executor stops the run.
pub(crate) fn forget(class: u32, object: u32, cx: &mut dyn Context) -> Result<(), Failure> {
    for (key, _) in scan(KeyRange::prefix(&prefix(class, object)), cx)? {
        cx.delete(CATALOG, key)?;
    }
    Ok(())
}

/// Returns all comments.
///
/// # Errors
/// Fails if a comment is malformed or the executor stops the run.
pub(crate) fn all(cx: &mut dyn Context) -> Result<Vec<(Subject, String)>, Failure> {
    let subject = |key: &Key| {
        let number = |at: usize| -> Result<u32, DecodeError> {
            let bytes = key.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_be_bytes).ok_or(DecodeError::new("subject of a comment"))
        };
        Ok(Subject { class: number(1)?, object: number(5)?, part: number(9)? })
    };
    let said = scan(KeyRange::prefix(&[PREFIX]), cx)?.into_iter();
    let all: Result<_, DecodeError> = said.map(|(key, text)| Ok((subject(&key)?, text))).collect();
    Ok(all?)
}
