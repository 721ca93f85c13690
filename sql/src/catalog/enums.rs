//! Enums: user-defined types that consist of labels.
//!
//! ```text
//!   0a number u32 -> version u8, enum     big-endian: its OID in `pg_type`
//!   0b name       -> number u32
//! ```
//!
//! Columns, parameters and results refer to an enum by number; SQL text refers to it by name. A
//! plan contains the enums that it needs ([`Enums`]) with their records. It is therefore rebuilt
//! when one of them changes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Scan, Stop};
use pangea_core::value::Value;
use serde::{Deserialize, Serialize};

use super::{CATALOG, Relation, Table, next_table_id, stored};
use crate::error::{Failure, SqlError, code};
use crate::types::array::Array;
use crate::types::datum::Datum;
use crate::types::label::{Label, Place};
use crate::types::{EnumId, SqlType};
use crate::vocabulary::quoting::quoted_ident;

const PREFIX: u8 = 10;
const NAME_PREFIX: u8 = 11;
/// Version of the record layout that this code writes.
const VERSION: u8 = 1;

/// A label of an enum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnumLabel {
    /// Number drawn from the table counter.
    pub id: u32,
    /// Position in the order of the enum's labels.
    pub place: Place,
    /// The same position as `pg_enum.enumsortorder`. Nothing else depends on it.
    pub sort_order: f32,
    /// Text of the label.
    pub text: String,
}

/// An enum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Enum {
    /// OID in `pg_type`.
    pub oid: u32,
    /// Name of the enum.
    pub name: String,
    /// Labels, in sort order.
    pub labels: Vec<EnumLabel>,
    /// The labels as values, in the same order.
    #[serde(skip)]
    values: Arc<Vec<Datum>>,
}

impl Enum {
    /// Creates an enum from numbered labels.
    pub(crate) fn new(oid: u32, name: &str, labels: Vec<EnumLabel>) -> Self {
        Self { oid, name: name.to_owned(), labels, values: Arc::default() }.with_values()
    }

    fn with_values(mut self) -> Self {
        let value =
            |label: &EnumLabel| Datum::Enum(Arc::new(Label::new(label.place.clone(), &label.text)));
        self.values = Arc::new(self.labels.iter().map(value).collect());
        self
    }

    /// Returns the enum's type.
    ///
    /// # Panics
    /// Panics if the OID is not in the range of enums.
    pub(crate) fn base(&self) -> SqlType {
        SqlType::Enum(EnumId::new(self.oid).expect("an enum has a number of its own"))
    }

    /// All values, in sort order.
    pub(crate) fn values(&self) -> &[Datum] {
        &self.values
    }

    /// Completes a value of which only the text or the place is known.
    ///
    /// # Errors
    /// Fails if the enum has no such label.
    pub(crate) fn value(&self, of: &Label) -> Result<Datum, SqlError> {
        value_among(&self.values, &quoted_ident(&self.name), of)
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.split_first() {
            Some((&VERSION, record)) => match postcard::take_from_bytes::<Self>(record) {
                Ok((found, [])) => Ok(found.with_values()),
                _ => Err(DecodeError::new("enum")),
            },
            _ => Err(DecodeError::new("version of an enum")),
        }
    }
}

/// Finds the value of an enum that a label denotes. `values` are all its values, in sort order.
///
/// # Errors
/// Fails with 22P02 if the enum has no such label.
pub(crate) fn value_among(values: &[Datum], name: &str, of: &Label) -> Result<Datum, SqlError> {
    let label = |value: &Datum| match value {
        Datum::Enum(label) => label.clone(),
        other => panic!("{other:?} is no value of an enum"),
    };
    let found = match of.place() {
        Some(place) => values.binary_search_by(|value| label(value).known_place().cmp(place)).ok(),
        None => values.iter().position(|value| label(value).text() == of.text()),
    };
    found.map(|at| values[at].clone()).ok_or_else(|| {
        let message = format!("invalid input value for enum {name}: \"{}\"", of.shown());
        SqlError::new(code::INVALID_TEXT, message)
    })
}

/// A set of enums, by OID.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Enums(Arc<BTreeMap<u32, Arc<Enum>>>);

impl Enums {
    pub(crate) fn insert(&mut self, one: Enum) {
        Arc::make_mut(&mut self.0).insert(one.oid, Arc::new(one));
    }

    pub(crate) fn get(&self, id: EnumId) -> Option<&Arc<Enum>> {
        self.0.get(&id.oid())
    }

    /// Finds an enum by its name or by its placeholder ([`EnumId::mark`]).
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Enum>> {
        let marked = EnumId::of_mark(name).and_then(|id| self.get(id));
        marked.or_else(|| self.0.values().find(|one| one.name == name))
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All enums, in OID order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Enum>> {
        self.0.values()
    }

    /// Completes enum values with their text and place. Values of other types are returned
    /// unchanged.
    ///
    /// # Errors
    /// Fails if the enum has no such label.
    pub(crate) fn value(&self, base: SqlType, datum: Datum) -> Result<Datum, SqlError> {
        let Some(known) = base.enumeration().and_then(|id| self.get(id)) else { return Ok(datum) };
        match &datum {
            Datum::Enum(label) => known.value(label),
            Datum::Array(array) => {
                let items = array.items().iter().map(|item| self.value(known.base(), item.clone()));
                let items = items.collect::<Result<_, _>>()?;
                Ok(Datum::Array(Arc::new(Array::new(array.dims().to_vec(), items)?)))
            }
            _ => Ok(datum),
        }
    }

    /// Replaces the placeholders of enums in a text by their names.
    pub(crate) fn unmarked(&self, mut text: String) -> String {
        if !self.0.is_empty() && text.contains("\"type ") {
            for one in self.0.values() {
                let mark = EnumId::new(one.oid).map(EnumId::mark).unwrap_or_default();
                text = text.replace(&format!("\"{mark}\""), &quoted_ident(&one.name));
            }
        }
        text
    }

    /// Replaces the placeholders of enums in all texts of an error.
    pub(crate) fn unmarked_error(&self, error: SqlError) -> SqlError {
        let texts = |text: Option<String>| text.map(|text| self.unmarked(text));
        SqlError {
            message: self.unmarked(error.message),
            detail: texts(error.detail),
            hint: texts(error.hint),
            context: texts(error.context),
            ..error
        }
    }
}

/// Key of an enum's record.
fn key(oid: u32) -> Key {
    let mut key = vec![PREFIX];
    key.extend_from_slice(&oid.to_be_bytes());
    Key::from(&key[..])
}

/// Key of the record that maps an enum's name to its number.
pub(crate) fn name_key(name: &str) -> Key {
    let mut key = vec![NAME_PREFIX];
    key.extend_from_slice(name.as_bytes());
    Key::from(&key[..])
}

fn decode(record: Option<&Value>) -> Result<Option<Enum>, DecodeError> {
    record.map(|record| Enum::decode(record)).transpose()
}

/// Decodes the record that maps a name to an enum's number.
///
/// # Errors
/// Fails if the record is malformed.
pub(crate) fn decode_number(record: Option<&Value>) -> Result<Option<u32>, DecodeError> {
    record.map(|record| Reader::new(record).u32("number of an enum")).transpose()
}

/// Finds an enum by its number.
pub(crate) fn find(id: EnumId, cx: &mut dyn Context) -> Result<Option<Enum>, Failure> {
    Ok(decode(cx.get(CATALOG, &key(id.oid()))?.as_ref())?)
}

/// Finds an enum by its name or its placeholder.
pub(crate) fn find_named(name: &str, cx: &mut dyn Context) -> Result<Option<Enum>, Failure> {
    if let Some(id) = EnumId::of_mark(name) {
        return find(id, cx);
    }
    let number = decode_number(cx.get(CATALOG, &name_key(name))?.as_ref())?;
    match number.and_then(EnumId::new) {
        Some(id) => find(id, cx),
        None => Ok(None),
    }
}

/// Loads the enums of a table's columns into the table.
pub(crate) fn attach(table: &mut Table, cx: &mut dyn Context) -> Result<(), Failure> {
    let types = table.types().filter_map(SqlType::enumeration);
    for id in types.collect::<Vec<_>>() {
        if table.enums.get(id).is_none()
            && let Some(found) = find(id, cx)?
        {
            table.enums.insert(found);
        }
    }
    Ok(())
}

/// Loads the enums of the columns if the relation is a table.
pub(super) fn attach_to(
    relation: Option<Relation>,
    cx: &mut dyn Context,
) -> Result<Option<Relation>, Failure> {
    match relation {
        Some(Relation::Table(mut table)) => {
            attach(&mut table, cx)?;
            Ok(Some(Relation::Table(table)))
        }
        other => Ok(other),
    }
}

/// Allocates a number for an enum. The next number is reserved for its array type.
pub(crate) fn next_oid(cx: &mut dyn Context) -> Result<u32, Failure> {
    loop {
        let oid = stored(next_table_id(cx)?.0);
        if EnumId::new(oid).is_some() {
            next_table_id(cx)?;
            return Ok(oid);
        }
    }
}

/// Writes an enum's record and its name record.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn put(one: &Enum, cx: &mut dyn Context) -> Result<(), Stop> {
    let mut record = vec![VERSION];
    record.extend(postcard::to_stdvec(one).expect("a vector takes anything"));
    cx.put(CATALOG, key(one.oid), Value::from(record))?;
    let mut number = Vec::new();
    number.put_u32(one.oid);
    cx.put(CATALOG, name_key(&one.name), Value::from(number))
}

/// Deletes the name record of an enum.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn remove_name(name: &str, cx: &mut dyn Context) -> Result<(), Stop> {
    cx.delete(CATALOG, name_key(name))
}

/// Deletes an enum and its name record.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn remove(one: &Enum, cx: &mut dyn Context) -> Result<(), Stop> {
    remove_name(&one.name, cx)?;
    cx.delete(CATALOG, key(one.oid))
}

/// Returns all enums, in the order of their numbers.
///
/// # Errors
/// Fails if a record is malformed or the executor stops the run.
pub(crate) fn all(cx: &mut dyn Context) -> Result<Vec<Enum>, Failure> {
    let mut records = Vec::new();
    let (table, range) = (CATALOG, KeyRange::prefix(&[PREFIX]));
    cx.scan(&Scan { table, range, direction: Direction::Forward }, &mut |_, record| {
        records.push(Enum::decode(record));
        ControlFlow::Continue(())
    })?;
    Ok(records.into_iter().collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_encoding_and_no_part_of_it_is_one() {
        let place = Place::between(None, None);
        let label = EnumLabel { id: 7, place, sort_order: 1.0, text: "sad".to_owned() };
        let one = Enum::new(16_384, "mood", vec![label]);
        let mut record = vec![VERSION];
        record.extend(postcard::to_stdvec(&one).unwrap());
        assert_eq!(Enum::decode(&record), Ok(one.clone()));
        for len in 0..record.len() {
            assert!(Enum::decode(&record[..len]).is_err(), "cut at {len}");
        }
        let mut enums = Enums::default();
        enums.insert(one.clone());
        let mark = one.base().name().into_owned();
        assert_eq!(enums.unmarked(format!("{mark} and {mark}[]")), "mood and mood[]");
        assert_eq!(enums.named(mark.trim_matches('"')).map(|found| found.oid), Some(16_384));
    }
}
