//! The access paths of a table: its primary key and its indexes.

use std::sync::Arc;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::key::encode::{KeyEncoder, Nulls, Order};

use super::{Place, text};
use crate::catalog::{Index, KeyTarget, Ranges, Table};
use crate::error::SqlError;
use crate::expr::{Env, Expr};
use crate::keys;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// A table and its access paths.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub table: Arc<Table>,
    /// The primary key, followed by the indexes in the table's order.
    pub all: Vec<Arc<Path>>,
}

/// An access path: a key by which rows are sorted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    /// The store's table of the rows or of the index entries.
    pub store: TableId,
    /// The name of the key's constraint or of the index.
    pub name: String,
    /// Empty if rows have hidden keys.
    pub parts: Vec<Part>,
    /// The ranges of PARTITION BY RANGE.
    pub ranges: Option<Ranges>,
    /// `None` for the primary key.
    pub index: Option<IndexPath>,
}

/// The properties of an index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IndexPath {
    /// The condition of the rows in a partial index.
    pub predicate: Option<Expr>,
    pub is_unique: bool,
    pub is_nulls_distinct: bool,
    pub is_ready: bool,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// An expression over the columns of the table.
    pub expr: Expr,
    /// The name in error messages.
    pub name: String,
    pub base: SqlType,
    pub order: Order,
    /// The position of NULLs; `None` if the column has none and keys have no marker.
    pub nulls: Option<Nulls>,
}

impl Paths {
    /// Returns all access paths of a table.
    pub(crate) fn new(table: Arc<Table>) -> Result<Self, SqlError> {
        let mut all = vec![Arc::new(Path::primary(&table))];
        for index in &table.indexes {
            all.push(Arc::new(Path::index(&table, index)?));
        }
        Ok(Self { table, all })
    }

    /// Returns the primary key.
    pub(crate) fn primary(&self) -> &Arc<Path> {
        &self.all[0]
    }

    /// Returns the indexes.
    pub(crate) fn indexes(&self) -> &[Arc<Path>] {
        &self.all[1..]
    }
}

impl Path {
    fn primary(table: &Table) -> Self {
        let part = |&at: &usize| Part {
            expr: Expr::Column(at),
            name: table.columns[at].name.clone(),
            base: table.columns[at].ty.base,
            order: Order::Ascending,
            nulls: None,
        };
        Self {
            store: table.id,
            name: table.primary_key_name.clone(),
            parts: table.primary_key.iter().map(part).collect(),
            ranges: table.ranges().cloned(),
            index: None,
        }
    }

    pub(crate) fn index(table: &Table, index: &Index) -> Result<Self, SqlError> {
        let mut parts = Vec::with_capacity(index.keys.len());
        for key in &index.keys {
            let (expr, name, base) = match &key.target {
                KeyTarget::Column(at) => {
                    let column = &table.columns[*at];
                    (Expr::Column(*at), column.name.clone(), column.ty.base)
                }
                KeyTarget::Expr(sql) => {
                    let bound = text::over_table(table, sql, "index expressions")?;
                    let base = bound.base();
                    // Some operators are bound to calls too, so the text decides.
                    let is_call = matches!(bound.expr, Expr::Call(..)) && text::is_call(sql);
                    let shown = if is_call { sql.clone() } else { format!("({sql})") };
                    (bound.expr, shown, base)
                }
            };
            let order = if key.is_descending { Order::Descending } else { Order::Ascending };
            let nulls = if key.is_nulls_first { Nulls::First } else { Nulls::Last };
            parts.push(Part { expr, name, base, order, nulls: Some(nulls) });
        }
        let predicate = index.predicate.as_deref();
        let predicate =
            predicate.map(|sql| text::condition(table, sql, "index predicates")).transpose()?;
        let is_unique = index.is_unique;
        let is_nulls_distinct = index.is_nulls_distinct;
        let index_path =
            IndexPath { predicate, is_unique, is_nulls_distinct, is_ready: index.is_ready };
        let (store, name) = (index.id, index.name.clone());
        Ok(Self { store, name, parts, ranges: None, index: Some(index_path) })
    }

    /// Whether keys are unique here, so that it can arbitrate conflicts. An index that is not ready
    /// is not known to be unique yet.
    pub(crate) fn is_unique(&self) -> bool {
        match &self.index {
            None => !self.parts.is_empty(),
            Some(index) => index.is_unique && index.is_ready,
        }
    }

    /// Whether it contains all rows.
    pub(crate) fn is_ready(&self) -> bool {
        self.index.as_ref().is_none_or(|index| index.is_ready)
    }

    /// Returns the values of the parts for a row.
    pub(crate) fn values(&self, row: &[Datum], env: &Env) -> Result<Vec<Datum>, SqlError> {
        self.parts.iter().map(|part| part.expr.eval(row, env)).collect()
    }

    /// Returns the store's key of a row from its primary key values.
    pub(crate) fn row_key<'d>(
        &self,
        values: impl Iterator<Item = &'d Datum>,
    ) -> Result<Key, SqlError> {
        let key = keys::encode(self.parts.iter().map(|part| part.base).zip(values))?;
        Ok(match &self.ranges {
            Some(ranges) => ranges.key(&key),
            None => key,
        })
    }

    /// Converts a place among the keys to the store's keys.
    pub(super) fn stored(&self, place: Place) -> Place {
        match (&self.ranges, place) {
            (None, place) => place,
            (Some(ranges), Place::Point(key)) => Place::Point(ranges.key(&key)),
            (Some(ranges), Place::Range(range)) => Place::Range(ranges.range(&range)),
        }
    }

    /// Returns the index entry of a row, and whether no other row may have the same one. `None` if
    /// the row is not in the index.
    pub(crate) fn entry(
        &self,
        row: &[Datum],
        row_key: &Key,
        env: &Env,
    ) -> Result<Option<(Key, bool)>, SqlError> {
        let index = self.index.as_ref().expect("rows have no entries in their own key");
        if let Some(predicate) = &index.predicate
            && !predicate.is_true(row, env)?
        {
            return Ok(None);
        }
        let values = self.values(row, env)?;
        let mut key = KeyEncoder::new();
        for (part, value) in self.parts.iter().zip(&values) {
            part.append(value, &mut key)?;
        }
        let has_null = values.iter().any(Datum::is_null);
        if index.is_unique && !(has_null && index.is_nulls_distinct) {
            return Ok(Some((key.finish(), true)));
        }
        let bytes = [key.as_bytes(), row_key].concat();
        Ok(Some((Key::from(&bytes[..]), false)))
    }
}

impl Part {
    /// Appends a value of this part to a key.
    pub(crate) fn append(&self, value: &Datum, key: &mut KeyEncoder) -> Result<(), SqlError> {
        match self.nulls {
            Some(nulls) => keys::append_nullable(self.base, (self.order, nulls), value, key),
            None => keys::append(self.base, self.order, value, key),
        }
    }

    /// Appends the marker before values that are not NULL.
    pub(crate) fn append_marker(&self, key: &mut KeyEncoder) {
        if let Some(nulls) = self.nulls {
            key.put_marker(false, nulls);
        }
    }
}
