//! The tables of `pg_catalog` and their columns.

use std::sync::OnceLock;

use crate::types::SqlType;
use crate::types::datum::Datum;

/// One line for each table: its OID, its name, and its columns. A name without a schema is in
/// `pg_catalog`. Each column has the name of its type in `pg_type`. An exclamation mark means NOT
/// NULL, an underscore before a type means its array type.
const CATALOGS: &str = include_str!("data/catalogs.txt");

/// The transaction that precedes all others.
const FROZEN: u32 = 2;

/// A table of the catalog.
#[derive(Debug)]
pub(crate) struct SystemTable {
    pub oid: u32,
    pub schema: &'static str,
    pub name: String,
    pub columns: Vec<SystemColumn>,
}

/// A column of a catalog table.
#[derive(Debug)]
pub(crate) struct SystemColumn {
    pub name: String,
    pub base: SqlType,
    pub is_not_null: bool,
}

impl SystemTable {
    /// Returns whether its rows are local to a node and differ between nodes.
    pub(crate) fn is_of_node(&self) -> bool {
        let is_pangea = self.schema == "pangea" && self.name != "partitions";
        is_pangea || self.name == "pg_stat_activity"
    }

    /// Returns its columns, followed by the columns that `*` does not expand to: the OID of the
    /// table, and the transaction that created the row, which is the frozen one.
    pub(crate) fn all_columns(&self) -> impl Iterator<Item = (String, SqlType)> {
        let own = self.columns.iter().map(|column| (column.name.clone(), column.base));
        own.chain(["tableoid", "xmin"].map(|name| (name.to_owned(), SqlType::Oid)))
    }
}

impl PartialEq for SystemTable {
    fn eq(&self, other: &Self) -> bool {
        self.oid == other.oid
    }
}

/// Returns all tables.
pub(super) fn all() -> &'static [SystemTable] {
    static ALL: OnceLock<Vec<SystemTable>> = OnceLock::new();
    ALL.get_or_init(|| CATALOGS.lines().map(table).collect())
}

/// Returns a table by name.
pub(crate) fn find(schema: &str, name: &str) -> Option<&'static SystemTable> {
    all().iter().find(|table| table.name == name && table.schema == schema)
}

fn table(line: &str) -> SystemTable {
    let mut words = line.split(' ');
    let oid = words.next().and_then(|word| word.parse().ok()).expect("a number first");
    let name = words.next().expect("a name");
    let (schema, name) = match name.split_once('.') {
        Some(("pangea", name)) => ("pangea", name.to_owned()),
        Some((_, name)) => ("information_schema", name.to_owned()),
        None => ("pg_catalog", name.to_owned()),
    };
    let column = |word: &str| {
        let (name, ty) = word.split_once(':').expect("a name and a type");
        let (ty, is_not_null) = ty.strip_suffix('!').map_or((ty, false), |ty| (ty, true));
        SystemColumn { name: name.to_owned(), base: base_named(ty), is_not_null }
    };
    SystemTable { oid, schema, name, columns: words.map(column).collect() }
}

/// Returns the type of a name in `pg_type`.
fn base_named(name: &str) -> SqlType {
    if let Some(element) = name.strip_prefix('_') {
        return base_named(element).array().expect("a type of which there are arrays");
    }
    let found = SqlType::ALL.into_iter().find(|base| base.internal_name() == *name);
    found.unwrap_or_else(|| panic!("no type {name}"))
}

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

    /// Two relations with one name broke the subqueries in which drivers look up the OID of a name.
    #[test]
    fn each_relation_of_the_catalog_has_a_name_and_a_number_of_its_own() {
        let views = crate::system::views::all().iter();
        let views = views.map(|view| (view.schema.clone(), view.name.clone(), view.oid));
        let tables = all().iter();
        let tables = tables.map(|table| (table.schema.to_owned(), table.name.clone(), table.oid));
        let all: Vec<_> = tables.chain(views).collect();
        let names: BTreeSet<_> = all.iter().map(|(schema, name, _)| (schema, name)).collect();
        let numbers: BTreeSet<_> = all.iter().map(|(.., oid)| oid).collect();
        assert_eq!((names.len(), numbers.len()), (all.len(), all.len()));
    }

    #[test]
    fn tables_are_read_with_their_columns() {
        let class = find("pg_catalog", "pg_class").unwrap();
        assert_eq!((class.oid, class.columns[1].name.as_str()), (1_259, "relname"));
        assert_eq!((class.columns[1].base, class.columns[1].is_not_null), (SqlType::Name, true));
        assert!(find("pg_catalog", "pg_nothing").is_none());
    }
}
