//! What tables there are in `pg_catalog`, with their columns.

use std::sync::OnceLock;

use crate::types::SqlType;
use crate::types::datum::Datum;

/// A line for each table: its number, its name, which is of `pg_catalog` without a schema, and its
/// columns, each with the name of its type in `pg_type`. An exclamation mark is for NOT NULL, an
/// underscore before a type for its array.
const CATALOGS: &str = include_str!("data/catalogs.txt");

/// The transaction that is before all others.
const FROZEN: u32 = 2;

/// A table of the catalog.
#[derive(Debug)]
pub(crate) struct SystemTable {
    pub oid: u32,
    pub schema: &'static str,
    pub name: String,
    pub columns: Vec<SystemColumn>,
}

/// A column of one.
#[derive(Debug)]
pub(crate) struct SystemColumn {
    pub name: String,
    pub base: SqlType,
    pub is_not_null: bool,
}

impl SystemTable {
    /// Whether its rows are what one node knows, and another on another node.
    pub(crate) fn is_of_node(&self) -> bool {
        let is_pangea = self.schema == "pangea" && self.name != "partitions";
        is_pangea || self.name == "pg_stat_activity"
    }

    /// Its columns, and behind them what `*` does not show: the number of the table, and of the
    /// transaction that made the row, which is one that always was.
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

/// All tables.
pub(super) fn all() -> &'static [SystemTable] {
    static ALL: OnceLock<Vec<SystemTable>> = OnceLock::new();
    ALL.get_or_init(|| CATALOGS.lines().map(table).collect())
}

/// The table of a name.
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

/// The type of a name in `pg_type`.
fn base_named(name: &str) -> SqlType {
    if let Some(element) = name.strip_prefix('_') {
        return base_named(element).array().expect("a type of which there are arrays");
    }
    let found = SqlType::ALL.into_iter().find(|base| base.internal_name() == *name);
    found.unwrap_or_else(|| panic!("no type {name}"))
}

/// Rows that are made for a table.
#[derive(Debug)]
pub(super) struct Rows {
    table: &'static SystemTable,
    rows: Vec<Vec<Datum>>,
}

impl Rows {
    pub(super) fn new(table: &'static SystemTable) -> Self {
        Self { table, rows: Vec::new() }
    }

    /// A row. A column that is not named is NULL, or nothing of its type where that may not be.
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

/// What a column has that a row does not speak of.
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

/// A text.
pub(super) fn text(value: &str) -> Datum {
    Datum::Text(value.to_owned())
}

/// A number.
pub(super) fn int(value: impl Into<i64>) -> Datum {
    Datum::Int(value.into())
}

/// Numbers.
pub(super) fn ints(values: impl IntoIterator<Item = i64>) -> Datum {
    Datum::array(values.into_iter().map(Datum::Int).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Two of one name made subqueries of drivers, which ask for the number of a name, fail.
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
