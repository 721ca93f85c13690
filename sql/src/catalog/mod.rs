//! The catalog: records of all schema objects, stored like any other data.
//!
//! Table 1 has one record for each relation (table, index, sequence or view), keyed by name, and a
//! counter from which stored objects are numbered. A schema change is therefore an ordinary
//! transaction, and a statement planned against a schema has read that schema's record.
//!
//! ```text
//!   00         -> next table number, u32
//!   01 name    -> version u8, record
//!   02 .. 06   -> roles and access lists: see `role`
//!   07         -> comments: see `comment`
//!   08 name    -> procedures: see `procedure`
//!   0a, 0b     -> enums: see `enums`
//!   0c name    -> schemas other than `public`: see `schema`
//! ```

pub(crate) mod comment;
pub(crate) mod enums;
mod numbers;
pub(crate) mod partition;
pub(crate) mod procedure;
pub(crate) mod role;
pub(crate) mod schema;
pub(crate) mod sequence;
mod table;
mod view;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::TableId;
use pangea_core::key::{Key, KeyRange};
use pangea_core::partition::said_by;
use pangea_core::txn::{Context, SqlState, Stop};
use pangea_core::value::Value;
use serde::{Deserialize, Serialize};

use crate::error::{Failure, SqlError};
pub use crate::vocabulary::name::{PUBLIC, QualifiedName};
pub use enums::{Enum, EnumLabel, Enums};
pub use numbers::describe_tables;
pub use partition::{Partition, PartitionBy, Ranges};
pub use role::BOOTSTRAP;
pub use sequence::Sequence;
pub use table::{Action, Check, Column, ForeignKey, Identity, Index, IndexKey, KeyTarget, Table};
pub use view::{CheckOption, View, ViewColumn};

/// Table that stores the catalog.
pub const CATALOG: TableId = TableId(1);
/// First number of user tables. The numbers below it belong to the system and to workloads.
pub const USER_TABLE_FIRST: u32 = 1_000;
/// First OID of objects that users create.
pub(crate) const USER_OID_FIRST: u32 = 16_384;
/// Exclusive upper bound of table numbers: the bits above it encode the partitioning rule.
const TABLES_MAX: u32 = 1 << 24;

const COUNTER_KEY: &[u8] = &[0];
const RELATION_PREFIX: u8 = 1;
/// Version of the record layout that this code writes.
const VERSION: u8 = 5;

/// The catalog record of a relation, found by its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Relation {
    /// A table with its columns, constraints and indexes.
    Table(Table),
    /// A sequence.
    Sequence(Sequence),
    /// An index of a table.
    Index {
        /// Name of the indexed table.
        table: QualifiedName,
    },
    /// A view.
    View(View),
}

impl Relation {
    /// Returns PostgreSQL's word for this kind of relation.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Table(_) => "table",
            Self::Sequence(_) => "sequence",
            Self::Index { .. } => "index",
            Self::View(_) => "view",
        }
    }

    fn encode(&self) -> Value {
        let mut out = vec![VERSION];
        out.extend(postcard::to_stdvec(self).expect("a vector takes anything"));
        Value::from(out)
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// Fails if the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = || DecodeError::new("catalog record");
        let (version, record) = bytes.split_first().ok_or_else(malformed)?;
        if *version != VERSION {
            return Err(DecodeError::new("version of a catalog record"));
        }
        match postcard::take_from_bytes(record) {
            Ok((relation, [])) => Ok(relation),
            _ => Err(malformed()),
        }
    }
}

/// Key of a relation's record.
pub fn relation_key(name: &QualifiedName) -> Key {
    key_of(RELATION_PREFIX, name.as_kept())
}

/// Key of a record that is stored under a name.
fn key_of(prefix: u8, name: &str) -> Key {
    let mut key = Vec::with_capacity(name.len() + 1);
    key.push(prefix);
    key.extend_from_slice(name.as_bytes());
    Key::from(&key[..])
}

/// Returns the name of the relation whose record has this key.
pub(crate) fn relation_of_key(key: &[u8]) -> Option<QualifiedName> {
    let (&prefix, name) = key.split_first()?;
    QualifiedName::kept(name).ok().filter(|_| prefix == RELATION_PREFIX)
}

/// Key range of all relation records.
pub fn relation_keys() -> KeyRange {
    KeyRange::prefix(&[RELATION_PREFIX])
}

/// Finds the relation of this name.
pub(crate) fn find(
    name: &QualifiedName,
    cx: &mut dyn Context,
) -> Result<Option<Relation>, Failure> {
    let record = cx.get(CATALOG, &relation_key(name))?;
    enums::attach_to(record.map(|record| Relation::decode(&record)).transpose()?, cx)
}

/// Writes a table's record.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn put_table(table: &Table, cx: &mut dyn Context) -> Result<(), Stop> {
    put(&table.name, &Relation::Table(table.clone()), cx)
}

/// Writes a relation's record.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn put(
    name: &QualifiedName,
    relation: &Relation,
    cx: &mut dyn Context,
) -> Result<(), Stop> {
    cx.put(CATALOG, relation_key(name), relation.encode())
}

/// Deletes a relation's record.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn remove(name: &QualifiedName, cx: &mut dyn Context) -> Result<(), Stop> {
    cx.delete(CATALOG, relation_key(name))
}

/// Allocates a number for a table or an index that is about to be stored. The number encodes the
/// same partitioning rule as its provisional number, `meant`.
///
/// # Errors
/// Fails like [`next_table_id`].
pub(crate) fn number_like(meant: TableId, cx: &mut dyn Context) -> Result<TableId, Failure> {
    let number = next_table_id(cx)?;
    let said = said_by(meant).0.and_then(|rule| rule.number(number));
    Ok(said.unwrap_or(number))
}

/// Allocates a number for a stored object. Numbers are never reused.
///
/// # Errors
/// Fails with 54000 if no number is left. Also fails if the counter is malformed or the executor
/// stops the run.
pub(crate) fn next_table_id(cx: &mut dyn Context) -> Result<TableId, Failure> {
    let next = match cx.get(CATALOG, COUNTER_KEY)? {
        Some(counter) => Reader::new(&counter).u32("table counter")?,
        None => USER_TABLE_FIRST,
    };
    if next >= TABLES_MAX {
        let message = "the object numbers of the catalog are exhausted";
        return Err(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message).into());
    }
    let mut counter = Vec::new();
    counter.put_u32(next + 1);
    cx.put(CATALOG, Key::from(COUNTER_KEY), Value::from(counter))?;
    Ok(TableId(next))
}

/// Returns the OID of an object that is stored under a number.
pub(crate) fn stored(id: u32) -> u32 {
    said_by(TableId(id)).1.0 - USER_TABLE_FIRST + USER_OID_FIRST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;
    use crate::types::SqlType;
    use crate::types::datum::Datum;

    fn table() -> Table {
        let mut table = Table::new(QualifiedName::public("t"));
        table.columns = vec![
            Column { is_not_null: true, ..Column::new("a", SqlType::Int4) },
            Column { default: Some("'x'".to_owned()), ..Column::new("b", SqlType::Text) },
        ];
        table.primary_key = vec![1, 0];
        table
    }

    #[test]
    fn a_record_survives_its_encoding_and_no_part_of_it_is_one() {
        let relation = Relation::Table(table());
        let bytes = relation.encode();
        assert_eq!(Relation::decode(&bytes), Ok(relation));
        let other_version = [&[VERSION - 1], &bytes[1..]].concat();
        assert!(Relation::decode(&other_version).is_err(), "tables were others then");
        for len in 0..bytes.len() {
            assert!(Relation::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
        assert!(Relation::decode(&[&bytes[..], &[0]].concat()).is_err(), "one byte too many");
    }

    #[test]
    fn a_row_that_is_older_than_a_column_has_what_was_missing() {
        let mut table = table();
        let old = vec![Datum::Int(1), Datum::Text("b".to_owned())];
        let mut bytes = Vec::new();
        rows::encode(&old, &mut bytes);
        let mut seven = Vec::new();
        rows::encode(&[Datum::Int(7)], &mut seven);
        table.columns.push(Column { missing: Some(seven), ..Column::new("c", SqlType::Int8) });
        table.columns.push(Column::new("d", SqlType::Bool));
        let whole = [&old[..], &[Datum::Int(7), Datum::Null]].concat();
        assert_eq!(table.decode_row(&bytes), Ok(whole));
    }
}
