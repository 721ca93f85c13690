//! Rows of the tables of `pg_catalog`.

use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::system::{SystemColumn, SystemTable};

/// The transaction that precedes all others.
const FROZEN: u32 = 2;

/// Rows built for a table.
#[derive(Debug)]
pub(super) struct Rows {
    table: &'static SystemTable,
    rows: Vec<Vec<Datum>>,
}

impl Rows {
    pub(super) fn new(table: &'static SystemTable) -> Self {
        Self { table, rows: Vec::new() }
    }

    /// Adds a row. A column without a value is NULL, or the empty value of its type if it is NOT
    /// NULL.
    pub(super) fn add(&mut self, values: &[(&str, Datum)]) {
        let mut row: Vec<Datum> = self.table.columns.iter().map(absent).collect();
        for (name, value) in values {
            let at = self.table.columns.iter().position(|column| column.name == *name);
            row[at.unwrap_or_else(|| panic!("{} has no {name}", self.table.name))] = value.clone();
        }
        row.extend([int(self.table.oid), int(FROZEN)]);
        self.rows.push(row);
    }

    pub(super) fn finish(self) -> Vec<Vec<Datum>> {
        self.rows
    }
}

/// Returns the value of a column that a row does not specify.
fn absent(column: &SystemColumn) -> Datum {
    match column.base {
        _ if !column.is_not_null => Datum::Null,
        SqlType::Bool => Datum::Bool(false),
        SqlType::Float4 | SqlType::Float8 => Datum::Float(0.0),
        base if base.is_integer() || base.is_oid() => Datum::Int(0),
        base if base.element().is_some() => Datum::array(Vec::new()),
        SqlType::Timestamptz => Datum::Timestamp(0),
        _ => Datum::Text(String::new()),
    }
}

/// Returns a text datum.
pub(super) fn text(value: &str) -> Datum {
    Datum::Text(value.to_owned())
}

/// Returns an integer datum.
pub(super) fn int(value: impl Into<i64>) -> Datum {
    Datum::Int(value.into())
}

/// Returns a datum that is an array of integers.
pub(super) fn ints(values: impl IntoIterator<Item = i64>) -> Datum {
    Datum::array(values.into_iter().map(Datum::Int).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::vocabulary::system::{table_named, tables};

    /// Two relations with one name broke the subqueries in which drivers look up the OID of a name.
    #[test]
    fn each_relation_of_the_catalog_has_a_name_and_a_number_of_its_own() {
        let views = crate::system::views::all().iter();
        let views = views.map(|view| (view.schema.clone(), view.name.clone(), view.oid));
        let tables = tables().iter();
        let tables = tables.map(|table| (table.schema.to_owned(), table.name.clone(), table.oid));
        let all: Vec<_> = tables.chain(views).collect();
        let names: BTreeSet<_> = all.iter().map(|(schema, name, _)| (schema, name)).collect();
        let numbers: BTreeSet<_> = all.iter().map(|(.., oid)| oid).collect();
        assert_eq!((names.len(), numbers.len()), (all.len(), all.len()));
    }

    #[test]
    fn tables_are_read_with_their_columns() {
        let class = table_named("pg_catalog", "pg_class").unwrap();
        assert_eq!((class.oid, class.columns[1].name.as_str()), (1_259, "relname"));
        assert_eq!((class.columns[1].base, class.columns[1].is_not_null), (SqlType::Name, true));
        assert!(table_named("pg_catalog", "pg_nothing").is_none());
    }
}
