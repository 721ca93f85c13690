//! Columns: of relations, of results, and of sort orders.

use crate::types::ColumnType;
use sqlparser::ast;

/// A column of a relation, unique within its statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ColumnId {
    pub relation: u32,
    pub column: u32,
}

impl ColumnId {
    /// Returns its name in DataFusion. The name is unique without a qualifier, because physical
    /// plans have no qualifiers.
    pub(crate) fn physical_name(self) -> String {
        let Self { relation, column } = self;
        format!("r{relation}c{column}")
    }
}

/// Returns DataFusion's name of a relation.
pub(crate) fn relation_name(relation: u32) -> String {
    format!("r{relation}")
}

/// An output column that the result is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SortKey {
    pub column: usize,
    pub is_descending: bool,
    pub is_nulls_first: bool,
}

/// A column of a result.
#[derive(Clone, Debug)]
pub struct OutputColumn {
    /// The name.
    pub name: String,
    /// The type.
    pub ty: ColumnType,
    /// The relation column that it shows unchanged, if any.
    pub origin: Option<Origin>,
}

/// A column of a relation, by its numbers in `pg_attribute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// `attrelid`
    pub relation: u32,
    /// `attnum`
    pub column: i16,
}

impl OutputColumn {
    /// Returns a computed column.
    pub fn new(name: impl Into<String>, ty: impl Into<ColumnType>) -> Self {
        Self { name: name.into(), ty: ty.into(), origin: None }
    }
}

impl PartialEq for OutputColumn {
    /// Compares names and types; the origin is ignored.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.ty == other.ty
    }
}

impl SortKey {
    pub(crate) fn new(column: usize, options: &ast::OrderByOptions) -> Self {
        let is_descending = options.asc == Some(false);
        // NULL sorts as the greatest value, unless NULLS FIRST or LAST is given.
        let is_nulls_first = options.nulls_first.unwrap_or(is_descending);
        Self { column, is_descending, is_nulls_first }
    }
}
