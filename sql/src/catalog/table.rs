//! The definition of a table: columns, keys, indexes and constraints.
//!
//! The position of a column never changes, because rows store values by position. A row written
//! before a column was added lacks that column's value. A dropped column remains, hidden, and is
//! NULL in new rows.
//!
//! Expressions are stored as SQL text and bound to the columns when a statement is planned.

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
    /// Name.
    pub name: String,
    /// Type.
    #[serde(with = "column_type")]
    pub ty: ColumnType,
    /// Whether NULL is rejected.
    pub is_not_null: bool,
    /// SQL text of the default.
    pub default: Option<String>,
    /// Identity properties, if the column is `GENERATED .. AS IDENTITY`.
    pub identity: Option<Identity>,
    /// SQL text of the generation expression, if the column is `GENERATED ALWAYS AS .. STORED`.
    pub generated: Option<String>,
    /// Value in rows that are older than the column, encoded as a row of one value. `None` means
    /// NULL.
    pub missing: Option<Vec<u8>>,
    /// Whether the column was dropped.
    pub is_dropped: bool,
}

impl Column {
    /// Creates a nullable column without a default.
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

/// The properties of an identity column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Name of the sequence.
    pub sequence: QualifiedName,
    /// Whether statements can't assign a value (`GENERATED ALWAYS`).
    pub is_always: bool,
}

/// One element of an index key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexKey {
    /// The indexed column or expression.
    pub target: KeyTarget,
    /// Whether the order is descending.
    pub is_descending: bool,
    /// Whether NULLs sort first.
    pub is_nulls_first: bool,
}

/// The column or expression that an index key element contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum KeyTarget {
    /// A column, by position.
    Column(usize),
    /// SQL text of an expression over the columns.
    Expr(String),
}

/// A secondary index. Its entries are rows of a table of the store. The entry's key consists of the
/// indexed values and, unless these are unique, the row's key; the entry's value is the row's key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// Number in the store.
    pub id: TableId,
    /// Name, in the schema of the table.
    pub name: String,
    /// Elements of the index key.
    pub keys: Vec<IndexKey>,
    /// Whether no two rows may have equal keys.
    pub is_unique: bool,
    /// Whether a unique index treats NULLs as distinct.
    pub is_nulls_distinct: bool,
    /// SQL text of the predicate of a partial index; `None` if the index contains all rows.
    pub predicate: Option<String>,
    /// Whether the index implements a `UNIQUE` constraint of the same name.
    pub is_constraint: bool,
    /// Whether the index is fully built, so that queries may read it.
    pub is_ready: bool,
}

impl Index {
    /// Provisional number of an index that is not stored yet.
    pub const NEW: TableId = TableId(0);
    /// Provisional number of a new index on a table that every node stores.
    pub(crate) const NEW_EVERYWHERE: TableId = TableId(1 << 24);
}

/// A `CHECK` constraint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Name.
    pub name: String,
    /// SQL text of the condition.
    pub condition: String,
}

/// A referential action: the effect on referencing rows when the referenced row is deleted or its
/// key changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// The statement fails.
    NoAction,
    /// The statement fails.
    Restrict,
    /// The referencing rows are deleted or updated, too.
    Cascade,
    /// The referencing columns become NULL.
    SetNull,
    /// The referencing columns get their defaults.
    SetDefault,
}

/// A `FOREIGN KEY` constraint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignKey {
    /// Name.
    pub name: String,
    /// Referencing columns of this table, by position.
    pub columns: Vec<usize>,
    /// Name of the referenced table.
    pub parent: QualifiedName,
    /// Referenced columns, by position in `parent`.
    pub parent_columns: Vec<usize>,
    /// Action when the referenced row is deleted.
    pub on_delete: Action,
    /// Action when the key of the referenced row changes.
    pub on_update: Action,
    /// Whether the referencing columns must be all NULL or all non-NULL (`MATCH FULL`).
    pub is_full: bool,
    /// Whether the constraint is `DEFERRABLE`, and whether it is `INITIALLY DEFERRED`, i.e. checked
    /// at COMMIT.
    pub deferral: (bool, bool),
}

/// The definition of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Number in the store.
    pub id: TableId,
    /// Name.
    pub name: QualifiedName,
    /// Columns, in order, including dropped ones.
    pub columns: Vec<Column>,
    /// Positions of the primary key's columns, in key order. Empty if rows are stored under hidden
    /// keys.
    pub primary_key: Vec<usize>,
    /// Name of the primary key constraint.
    pub primary_key_name: String,
    /// Partitioning, if declared by PARTITION BY.
    pub partition: Option<Partition>,
    /// Secondary indexes.
    pub indexes: Vec<Index>,
    /// `CHECK` constraints.
    pub checks: Vec<Check>,
    /// `FOREIGN KEY` constraints.
    pub foreign_keys: Vec<ForeignKey>,
    /// Names of the tables that reference this table.
    pub children: Vec<QualifiedName>,
    /// Sequences owned by columns: position of the column and name of the sequence.
    pub sequences: Vec<(usize, QualifiedName)>,
    /// The enums of the columns, and others that expressions may name. Records refer to them by
    /// number.
    #[serde(skip)]
    pub enums: Enums,
}

impl Table {
    /// Creates a table without columns and without a number.
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

    /// Types of the columns.
    pub fn types(&self) -> impl ExactSizeIterator<Item = SqlType> + '_ {
        self.columns.iter().map(|column| column.ty.base)
    }

    /// Columns that are not dropped, with their positions.
    pub fn live_columns(&self) -> impl Iterator<Item = (usize, &Column)> + '_ {
        self.columns.iter().enumerate().filter(|(_, column)| !column.is_dropped)
    }

    /// Returns the position of a column.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.live_columns().find(|(_, column)| column.name == name).map(|(at, _)| at)
    }

    /// Whether every node stores all rows, even if tables are partitioned.
    pub(crate) fn is_everywhere(&self) -> bool {
        said_by(self.id).0 == Some(&Rule::Everywhere)
    }

    /// The ranges of the primary key, if the table is partitioned by range.
    pub(crate) fn ranges(&self) -> Option<&Ranges> {
        match self.partition.as_ref().map(|partition| &partition.by) {
            Some(PartitionBy::Range(ranges)) => Some(ranges),
            Some(PartitionBy::Hash) | None => None,
        }
    }

    /// Decodes the values of a stored key. The key may be truncated; values past the end are left
    /// out.
    pub(crate) fn key_values(&self, key: &[u8]) -> Vec<Datum> {
        let plain = if self.ranges().is_some() { Ranges::plain(key) } else { key };
        let types = self.primary_key.iter().map(|&at| self.columns[at].ty.base);
        self.known_values(types.clone(), keys::decode(types, plain))
    }

    /// Name of the primary key constraint, if the table has a primary key.
    pub fn primary_key_name(&self) -> Option<&str> {
        (!self.primary_key.is_empty()).then_some(self.primary_key_name.as_str())
    }

    /// Names of all constraints.
    pub fn constraint_names(&self) -> impl Iterator<Item = &str> + '_ {
        let primary = self.primary_key_name();
        let unique = self.indexes.iter().filter(|index| index.is_constraint);
        let unique = unique.map(|index| index.name.as_str());
        let checks = self.checks.iter().map(|check| check.name.as_str());
        let foreign = self.foreign_keys.iter().map(|key| key.name.as_str());
        primary.into_iter().chain(unique).chain(checks).chain(foreign)
    }

    /// Completes enum values of some columns with their labels. A value with an unknown label is
    /// returned unchanged.
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

    /// Decodes a stored row and fills in the columns that it lacks.
    ///
    /// # Errors
    /// Fails if the row is malformed.
    pub fn decode_row(&self, bytes: &[u8]) -> Result<Vec<Datum>, DecodeError> {
        self.decode_wanted(&Columns::All, bytes)
    }

    /// Like [`Self::decode_row`], with NULL for columns that are not in `wanted`.
    pub(crate) fn decode_wanted(
        &self,
        wanted: &Columns,
        bytes: &[u8],
    ) -> Result<Vec<Datum>, DecodeError> {
        let mut row = Vec::new();
        self.decode_to(wanted, bytes, &mut row)?;
        Ok(row)
    }

    /// Like [`Self::decode_wanted`], into an existing buffer.
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

/// Serializes a type as its OID in `pg_type` and its modifier.
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
