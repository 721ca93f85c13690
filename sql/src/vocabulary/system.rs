//! The relations of the system catalog by name, and the numbers of its objects.

use std::sync::OnceLock;

use crate::types::SqlType;

/// OIDs of the tables that list relations, schemas, databases and types.
pub(crate) const PG_CLASS: u32 = 1_259;
pub(crate) const PG_NAMESPACE: u32 = 2_615;
pub(crate) const PG_DATABASE: u32 = 1_262;
pub(crate) const PG_TYPE: u32 = 1_247;
/// OID of the only database.
pub(crate) const DATABASE: u32 = 16_384;
/// The encoding UTF8.
pub(crate) const ENCODING: u32 = 6;

/// The statements that would create the views.
pub(crate) const VIEWS: &str = include_str!("../system/data/views.sql");

/// One line for each table: its OID, its name, and its columns. A name without a schema is in
/// `pg_catalog`. Each column has the name of its type in `pg_type`. An exclamation mark means NOT
/// NULL, an underscore before a type means its array type.
const CATALOGS: &str = include_str!("../system/data/catalogs.txt");

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
pub(crate) fn tables() -> &'static [SystemTable] {
    static ALL: OnceLock<Vec<SystemTable>> = OnceLock::new();
    ALL.get_or_init(|| CATALOGS.lines().map(table).collect())
}

/// Returns a table by name.
pub(crate) fn table_named(schema: &str, name: &str) -> Option<&'static SystemTable> {
    tables().iter().find(|table| table.name == name && table.schema == schema)
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

/// Returns the schema and the name of each view, in the order of [`VIEWS`].
pub(crate) fn views() -> &'static [(&'static str, &'static str)] {
    static ALL: OnceLock<Vec<(&str, &str)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let heads = VIEWS.lines().filter_map(|line| line.strip_prefix("create view "));
        let names = heads.filter_map(|head| head.split(' ').next()?.split_once('.'));
        names.collect()
    })
}

/// Returns the schema of a name in the system catalog, and the name without it. `None` for a name
/// with a database.
pub(crate) fn schema_and_name(parts: &[String]) -> Option<(&str, &str)> {
    match parts {
        [name] => Some(("pg_catalog", name)),
        [schema, name] => Some((schema, name)),
        _ => None,
    }
}

/// Whether a name denotes a table or a view of the system catalog.
pub(crate) fn is_name(parts: &[String]) -> bool {
    schema_and_name(parts).is_some_and(|(schema, name)| {
        table_named(schema, name).is_some() || views().contains(&(schema, name))
    })
}
