//! What is known of a table: columns, keys, indexes and constraints.
//!
//! A column keeps its position for good: rows hold values by position, and a row that is older than
//! a column lacks it. A column that is dropped stays, hidden, and is NULL from then on.
//!
//! Expressions are kept as SQL text and bound to the columns when a statement is planned.

use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::TableId;
use pangea_core::partition::{Rule, said_by};
use serde::{Deserialize, Serialize};

use super::partition::{Partition, PartitionBy, Ranges};
use super::{Enums, QualifiedName};
use crate::keys;
use crate::rows::{self, Columns};
use crate::types::datum::Datum;
use crate::types::{ColumnType, SqlType};

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(with = "column_type")]
    pub ty: ColumnType,
    /// Whether NULL is refused.
    pub is_not_null: bool,
    /// The SQL text of its default.
    pub default: Option<String>,
    /// How it gets its numbers, where it is `GENERATED .. AS IDENTITY`.
    pub identity: Option<Identity>,
    /// The SQL text that it is computed from, where it is `GENERATED ALWAYS AS .. STORED`.
    pub generated: Option<String>,
    /// What it is in rows that are older than the column, as a row of one. NULL where nothing.
    pub missing: Option<Vec<u8>>,
    /// Whether it was dropped.
    pub is_dropped: bool,
}

impl Column {
    /// A column that takes NULL and has no default.
    pub fn new(name: impl Into<String>, ty: impl Into<ColumnType>) -> Self {
        Self {
            name: name.into(),
            ty: ty.into(),
            is_not_null: false,
            default: None,
            identity: None,
            generated: None,
            missing: None,
            is_dropped: false,
        }
    }
}

/// What an identity column is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The name of its sequence.
    pub sequence: QualifiedName,
    /// Whether statements can't give it a value.
    pub is_always: bool,
}

/// What an index is sorted by, or a part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexKey {
    /// The column, by position, or the SQL text of an expression.
    pub target: KeyTarget,
    /// Whether large values come first.
    pub is_descending: bool,
    /// Whether NULLs come first.
    pub is_nulls_first: bool,
}

/// What an index has of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum KeyTarget {
    /// A column, by position.
    Column(usize),
    /// The SQL text of an expression over the columns.
    Expr(String),
}

/// A secondary index. Its entries are rows of a table of the store: the key is what the index is
/// sorted by, and where that is not unique, the key of the row; the value is the key of the row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// Its number in the store.
    pub id: TableId,
    /// Its name, in the schema of its table.
    pub name: String,
    /// What it is sorted by.
    pub keys: Vec<IndexKey>,
    /// Whether no two rows may have the same keys.
    pub is_unique: bool,
    /// Whether NULLs differ from each other in a unique index.
    pub is_nulls_distinct: bool,
    /// The SQL text of the condition on rows that are in it; nothing where all are.
    pub predicate: Option<String>,
    /// Whether it belongs to a `UNIQUE` constraint of its name.
    pub is_constraint: bool,
    /// Whether it has all rows, so that it may be read.
    pub is_ready: bool,
}

impl Index {
    /// The number of an index that is not stored yet.
    pub const NEW: TableId = TableId(0);
    /// The same of a table that is on every node.
    pub(crate) const NEW_EVERYWHERE: TableId = TableId(1 << 24);
}

/// A `CHECK` constraint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// The SQL text of its condition.
    pub condition: String,
}

/// What happens to rows whose referenced row goes or changes its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// The statement fails.
    NoAction,
    /// The statement fails.
    Restrict,
    /// They go or change too.
    Cascade,
    /// They refer to nothing.
    SetNull,
    /// They refer to what the default says.
    SetDefault,
}

/// A `FOREIGN KEY` constraint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignKey {
    /// Its name.
    pub name: String,
    /// The columns of this table, by position.
    pub columns: Vec<usize>,
    /// The name of the table that is referred to.
    pub parent: QualifiedName,
    /// The columns there, by position.
    pub parent_columns: Vec<usize>,
    /// When the row that is referred to is deleted.
    pub on_delete: Action,
    /// When it changes its key.
    pub on_update: Action,
    /// Whether either all columns are NULL or none (`MATCH FULL`).
    pub is_full: bool,
    /// Whether it was made `DEFERRABLE`, and whether `INITIALLY DEFERRED`: then it is checked when
    /// the transaction commits.
    pub deferral: (bool, bool),
}

/// A table's schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Its number in the store.
    pub id: TableId,
    /// Its name.
    pub name: QualifiedName,
    /// Its columns, in order, with those that were dropped.
    pub columns: Vec<Column>,
    /// The positions of the columns of its primary key, in the key's order. None means that rows
    /// are kept under hidden keys.
    pub primary_key: Vec<usize>,
    /// The name of the primary key's constraint.
    pub primary_key_name: String,
    /// Where its rows are, where PARTITION BY has said it.
    pub partition: Option<Partition>,
    /// Its secondary indexes.
    pub indexes: Vec<Index>,
    /// Its `CHECK` constraints.
    pub checks: Vec<Check>,
    /// Its `FOREIGN KEY` constraints.
    pub foreign_keys: Vec<ForeignKey>,
    /// The names of tables that refer to it.
    pub children: Vec<QualifiedName>,
    /// The names of sequences that go with its columns.
    pub sequences: Vec<(usize, QualifiedName)>,
    /// The enums of its columns, and others that its expressions may name: of them records know
    /// the numbers.
    #[serde(skip)]
    pub enums: Enums,
}

impl Table {
    /// A table without columns, which has no number yet.
    pub fn new(name: QualifiedName) -> Self {
        Self {
            id: TableId(0),
            primary_key_name: format!("{name}_pkey"),
            name,
            columns: Vec::new(),
            primary_key: Vec::new(),
            partition: None,
            indexes: Vec::new(),
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            children: Vec::new(),
            sequences: Vec::new(),
            enums: Enums::default(),
        }
    }

    /// The types of the columns.
    pub fn types(&self) -> impl ExactSizeIterator<Item = SqlType> + '_ {
        self.columns.iter().map(|column| column.ty.base)
    }

    /// The columns that were not dropped, with their positions.
    pub fn live_columns(&self) -> impl Iterator<Item = (usize, &Column)> + '_ {
        self.columns.iter().enumerate().filter(|(_, column)| !column.is_dropped)
    }

    /// The position of a column.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.live_columns().find(|(_, column)| column.name == name).map(|(at, _)| at)
    }

    /// Whether each node has all of its rows, also where tables are divided.
    pub(crate) fn is_everywhere(&self) -> bool {
        said_by(self.id).0 == Some(&Rule::Everywhere)
    }

    /// The ranges of its primary key that its rows are kept in, where there are such.
    pub(crate) fn ranges(&self) -> Option<&Ranges> {
        match self.partition.as_ref().map(|partition| &partition.by) {
            Some(PartitionBy::Range(ranges)) => Some(ranges),
            Some(PartitionBy::Hash) | None => None,
        }
    }

    /// The values of a key of the store, up to where it was cut off, if it was.
    pub(crate) fn key_values(&self, key: &[u8]) -> Vec<Datum> {
        let plain = if self.ranges().is_some() { Ranges::plain(key) } else { key };
        let types = self.primary_key.iter().map(|&at| self.columns[at].ty.base);
        self.known_values(types.clone(), keys::decode(types, plain))
    }

    /// The name of its primary key, where it has one.
    pub fn primary_key_name(&self) -> Option<&str> {
        (!self.primary_key.is_empty()).then_some(self.primary_key_name.as_str())
    }

    /// The names of all its constraints.
    pub fn constraint_names(&self) -> impl Iterator<Item = &str> + '_ {
        let primary = self.primary_key_name();
        let unique = self.indexes.iter().filter(|index| index.is_constraint);
        let unique = unique.map(|index| index.name.as_str());
        let checks = self.checks.iter().map(|check| check.name.as_str());
        let foreign = self.foreign_keys.iter().map(|key| key.name.as_str());
        primary.into_iter().chain(unique).chain(checks).chain(foreign)
    }

    /// Values of some of its columns, of which those of enums may have no texts.
    pub(crate) fn known_values(
        &self,
        types: impl Iterator<Item = SqlType>,
        values: Vec<Datum>,
    ) -> Vec<Datum> {
        let known = |(base, value): (SqlType, Datum)| {
            self.enums.value(base, value.clone()).unwrap_or(value)
        };
        types.zip(values).map(known).collect()
    }

    /// A row as it is kept, with what it lacks.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode_row(&self, bytes: &[u8]) -> Result<Vec<Datum>, DecodeError> {
        self.decode_wanted(&Columns::All, bytes)
    }

    /// The same, with NULL in the place of what nobody looks at.
    pub(crate) fn decode_wanted(
        &self,
        wanted: &Columns,
        bytes: &[u8],
    ) -> Result<Vec<Datum>, DecodeError> {
        let mut row = Vec::new();
        self.decode_to(wanted, bytes, &mut row)?;
        Ok(row)
    }

    /// The same to where a row was.
    pub(crate) fn decode_to(
        &self,
        wanted: &Columns,
        bytes: &[u8],
        row: &mut Vec<Datum>,
    ) -> Result<(), DecodeError> {
        rows::decode_wanted(self.types(), wanted, &mut Reader::new(bytes), row)?;
        for column in self.columns.iter().take(wanted.width()).skip(row.len()) {
            row.push(match &column.missing {
                Some(missing) => {
                    let one = rows::decode([column.ty.base].into_iter(), &mut Reader::new(missing));
                    one?.pop().ok_or(DecodeError::new("missing value"))?
                }
                None => Datum::Null,
            });
        }
        if self.enums.is_empty() {
            return Ok(());
        }
        for (datum, base) in row.iter_mut().zip(self.types()) {
            if base.enumeration().is_some() && !datum.is_null() {
                let known = self.enums.value(base, std::mem::replace(datum, Datum::Null));
                *datum = known.map_err(|_| DecodeError::new("label of an enum"))?;
            }
        }
        Ok(())
    }
}

/// Types as their number in `pg_type` and their modifier.
pub(super) mod column_type {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::types::{ColumnType, SqlType};

    pub fn serialize<S: Serializer>(ty: &ColumnType, to: S) -> Result<S::Ok, S::Error> {
        (ty.base.oid(), ty.modifier).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ColumnType, D::Error> {
        let (oid, modifier) = <(u32, i32)>::deserialize(from)?;
        let base = SqlType::from_oid(oid).ok_or_else(|| D::Error::custom("type"))?;
        Ok(ColumnType { base, modifier })
    }
}
