//! Tables, indexes and sequences: `pg_class` and the tables that refer to it.

use super::tables::{Rows, int, ints, text};
use super::{Entry, Kind, PG_CATALOG, SystemCatalog, definitions, primary_key, roles, stored};
use crate::catalog::role::Privileges;
use crate::catalog::{Index, IndexKey, KeyTarget, QualifiedName, Table, View};
use crate::syntax;
use crate::types::datum::Datum;
use crate::types::{ColumnType, SqlType};

/// OID of the access method of tables.
const HEAP: u32 = 2;
/// OID of the access method of indexes.
pub(super) const BTREE: u32 = 403;
/// Bits of `indoption`: descending order, and NULLs first.
const DESCENDING: i64 = 1;
const NULLS_FIRST: i64 = 2;
/// OIDs of collations: that of the database, and that of names.
pub(super) const DEFAULT_COLLATION: u32 = 100;
pub(super) const C_COLLATION: u32 = 950;

impl Kind {
    /// Returns `relkind`.
    pub(super) fn letter(&self) -> &'static str {
        match self {
            Self::Table(_) | Self::System(_) => "r",
            Self::PrimaryKey(_) | Self::Index(..) => "i",
            Self::Sequence(_) => "S",
            Self::View(_) | Self::SystemView(..) => "v",
        }
    }
}

/// Returns the collation of a column.
fn collation(base: SqlType) -> u32 {
    match base.element().unwrap_or(base) {
        SqlType::Name => C_COLLATION,
        SqlType::Text | SqlType::Varchar | SqlType::Bpchar => DEFAULT_COLLATION,
        _ => 0,
    }
}

/// Returns the names and types of the columns of an index.
fn index_columns(table: &Table, index: &Index) -> Vec<(String, ColumnType)> {
    let column = |(at, key): (usize, &IndexKey)| match &key.target {
        KeyTarget::Column(at) => (table.columns[*at].name.clone(), table.columns[*at].ty),
        KeyTarget::Expr(expr) => {
            // PostgreSQL names the column after the function, or by its position.
            let called = expr.split_once('(').map(|(name, _)| name);
            let is_name = |name: &&str| !name.is_empty() && syntax::quoted(name) == *name;
            let name = called.filter(is_name).map_or_else(
                || if at == 0 { "expr".to_owned() } else { format!("expr{at}") },
                str::to_owned,
            );
            (name, definitions::type_of(table, expr))
        }
    };
    index.keys.iter().enumerate().map(column).collect()
}

impl Entry {
    /// Returns whether a user has created the relation.
    pub(super) fn is_of_user(&self) -> bool {
        !matches!(self.kind, Kind::System(_) | Kind::SystemView(..))
    }

    /// Returns the number of columns, including dropped ones.
    fn width(&self) -> usize {
        match &self.kind {
            Kind::Table(table) => table.columns.len(),
            Kind::PrimaryKey(table) => table.primary_key.len(),
            Kind::Index(table, at) => table.indexes[*at].keys.len(),
            Kind::Sequence(_) => 3,
            Kind::View(view) => view.columns.len(),
            Kind::System(system) => system.columns.len(),
            Kind::SystemView(_, columns) => columns.len(),
        }
    }
}

/// A column of any relation.
struct Attribute {
    name: String,
    ty: ColumnType,
    is_not_null: bool,
    has_default: bool,
    identity: &'static str,
    is_generated: bool,
    is_dropped: bool,
}

impl Attribute {
    fn new(name: &str, ty: ColumnType, is_not_null: bool) -> Self {
        Self {
            name: name.to_owned(),
            ty,
            is_not_null,
            has_default: false,
            identity: "",
            is_generated: false,
            is_dropped: false,
        }
    }
}

fn attributes(entry: &Entry) -> Vec<Attribute> {
    match &entry.kind {
        Kind::Table(table) => (table.columns.iter().enumerate())
            .map(|(at, column)| {
                let identity = match &column.identity {
                    Some(identity) if identity.is_always => "a",
                    Some(_) => "d",
                    None => "",
                };
                let dropped = format!("........pg.dropped.{}........", at + 1);
                Attribute {
                    name: if column.is_dropped { dropped } else { column.name.clone() },
                    ty: column.ty,
                    is_not_null: column.is_not_null,
                    has_default: column.default.is_some() || column.generated.is_some(),
                    identity,
                    is_generated: column.generated.is_some(),
                    is_dropped: column.is_dropped,
                }
            })
            .collect(),
        Kind::PrimaryKey(table) => (table.primary_key.iter())
            .map(|at| Attribute::new(&table.columns[*at].name, table.columns[*at].ty, false))
            .collect(),
        Kind::Index(table, at) => index_columns(table, &table.indexes[*at])
            .into_iter()
            .map(|(name, ty)| Attribute::new(&name, ty, false))
            .collect(),
        Kind::Sequence(_) => {
            let columns = [
                ("last_value", SqlType::Int8),
                ("log_cnt", SqlType::Int8),
                ("is_called", SqlType::Bool),
            ];
            columns.map(|(name, base)| Attribute::new(name, base.into(), true)).into()
        }
        Kind::View(view) => (view.columns.iter())
            .map(|column| Attribute::new(&column.name, column.ty, false))
            .collect(),
        Kind::SystemView(_, columns) => {
            (columns.iter()).map(|column| Attribute::new(&column.name, column.ty, false)).collect()
        }
        Kind::System(system) => (system.columns.iter())
            .map(|column| Attribute::new(&column.name, column.base.into(), column.is_not_null))
            .collect(),
    }
}

/// Returns the storage of a type's values: whether they are passed by value, the alignment, and the
/// strategy.
fn storage(base: SqlType) -> (bool, &'static str, &'static str) {
    if matches!(base, SqlType::Enum(_)) {
        return (true, "i", "p");
    }
    let row = super::types::row(base.oid());
    row.map_or((false, "i", "x"), |row| (row.is_by_value, row.align.as_str(), row.storage.as_str()))
}

impl SystemCatalog {
    /// Returns the name of the relation that determines the owner: for an index, its table.
    pub(super) fn owned_as(&self, entry: &Entry) -> QualifiedName {
        match &entry.kind {
            Kind::PrimaryKey(table) | Kind::Index(table, _) => table.name.clone(),
            _ => QualifiedName::new(self.namespace_name(entry.namespace), &entry.name),
        }
    }

    pub(super) fn pg_class(&self, mut rows: Rows) -> Rows {
        for (oid, entry) in &self.relations {
            let kind = entry.kind.letter();
            let is_index = kind == "i";
            let (mut checks, mut has_index, mut has_keys) = (0, false, false);
            let mut options = Datum::Null;
            if let Kind::View(View { check: Some(check), .. }) = &entry.kind {
                options = Datum::array(vec![text(&format!("check_option={}", check.name()))]);
            }
            if let Kind::Table(table) = &entry.kind {
                checks = table.checks.len() as i64;
                has_index = !table.primary_key.is_empty() || !table.indexes.is_empty();
                has_keys = !table.foreign_keys.is_empty() || !table.children.is_empty();
            }
            let owned_as = self.owned_as(entry);
            let access = self.access.get(&owned_as).filter(|_| !is_index);
            let is_sequence = matches!(entry.kind, Kind::Sequence(_));
            let privileges = if is_sequence { Privileges::SEQUENCE } else { Privileges::TABLE };
            rows.add(&[
                ("oid", int(*oid)),
                ("relname", text(&entry.name)),
                ("relnamespace", int(entry.namespace)),
                ("relowner", int(self.role_oid(self.owner(&owned_as)))),
                (
                    "relam",
                    int(if is_index {
                        BTREE
                    } else if kind == "r" {
                        HEAP
                    } else {
                        0
                    }),
                ),
                ("relfilenode", int(*oid)),
                ("reltuples", Datum::Float(-1.0)),
                ("relhasindex", Datum::Bool(has_index)),
                ("relpersistence", text("p")),
                ("relkind", text(kind)),
                ("relnatts", int(entry.width() as i64)),
                ("relchecks", int(checks)),
                ("relhastriggers", Datum::Bool(has_keys)),
                ("relhasrules", Datum::Bool(kind == "v")),
                ("relispopulated", Datum::Bool(true)),
                (
                    "relreplident",
                    text(if kind == "r" && entry.namespace != PG_CATALOG { "d" } else { "n" }),
                ),
                ("reloptions", options),
                ("relacl", access.map_or(Datum::Null, |access| roles::acl(access, privileges))),
            ]);
        }
        rows
    }

    pub(super) fn pg_attribute(&self, mut rows: Rows) -> Rows {
        for (oid, entry) in &self.relations {
            for (at, attribute) in attributes(entry).into_iter().enumerate() {
                let base = attribute.ty.base;
                let (is_by_value, align, storage) = storage(base);
                let is_there = !attribute.is_dropped;
                rows.add(&[
                    ("attrelid", int(*oid)),
                    ("attname", text(&attribute.name)),
                    ("atttypid", int(if is_there { base.oid() } else { 0 })),
                    ("attstattarget", int(if is_there { -1 } else { 0 })),
                    ("attlen", int(base.wire_len())),
                    ("attnum", int(at as i64 + 1)),
                    ("attndims", int(i64::from(matches!(base, SqlType::Array(_))))),
                    ("attcacheoff", int(-1)),
                    ("atttypmod", int(attribute.ty.modifier)),
                    ("attbyval", Datum::Bool(is_by_value)),
                    ("attalign", text(align)),
                    ("attstorage", text(storage)),
                    ("attnotnull", Datum::Bool(is_there && attribute.is_not_null)),
                    ("atthasdef", Datum::Bool(is_there && attribute.has_default)),
                    ("attidentity", text(attribute.identity)),
                    ("attgenerated", text(if attribute.is_generated { "s" } else { "" })),
                    ("attisdropped", Datum::Bool(!is_there)),
                    ("attislocal", Datum::Bool(true)),
                    ("attcollation", int(collation(base))),
                ]);
            }
        }
        rows
    }

    /// Returns the tables that users created.
    pub(super) fn tables(&self) -> impl Iterator<Item = (u32, &Table)> {
        self.relations.iter().filter_map(|(oid, entry)| match &entry.kind {
            Kind::Table(table) => Some((*oid, &**table)),
            _ => None,
        })
    }

    pub(super) fn pg_attrdef(&self, mut rows: Rows) -> Rows {
        for (oid, table) in self.tables() {
            for (at, column) in table.live_columns() {
                let Some(expr) = column.default.as_ref().or(column.generated.as_ref()) else {
                    continue;
                };
                rows.add(&[
                    ("oid", int(default_oid(oid, at))),
                    ("adrelid", int(oid)),
                    ("adnum", int(at as i64 + 1)),
                    ("adbin", text(expr)),
                ]);
            }
        }
        rows
    }

    /// Returns the rules that are the queries of views.
    pub(super) fn pg_rewrite(&self, mut rows: Rows) -> Rows {
        for (oid, entry) in &self.relations {
            let Kind::View(view) = &entry.kind else { continue };
            rows.add(&[
                ("oid", int(rule_oid(*oid))),
                ("rulename", text("_RETURN")),
                ("ev_class", int(*oid)),
                ("ev_type", text("1")),
                ("ev_enabled", text("O")),
                ("is_instead", Datum::Bool(true)),
                ("ev_qual", text("<>")),
                ("ev_action", text(&view.query)),
            ]);
        }
        rows
    }

    pub(super) fn pg_index(&self, mut rows: Rows) -> Rows {
        for (oid, table) in self.tables() {
            if !table.primary_key.is_empty() {
                let columns = table.primary_key.iter().map(|at| *at as i64 + 1);
                let count = table.primary_key.len();
                let types = table.primary_key.iter().map(|at| table.columns[*at].ty.base);
                let types: Vec<SqlType> = types.collect();
                rows.add(&[
                    ("indexrelid", int(primary_key(table))),
                    ("indrelid", int(oid)),
                    ("indnatts", int(count as i64)),
                    ("indnkeyatts", int(count as i64)),
                    ("indisunique", Datum::Bool(true)),
                    ("indisprimary", Datum::Bool(true)),
                    ("indimmediate", Datum::Bool(true)),
                    ("indisvalid", Datum::Bool(true)),
                    ("indisready", Datum::Bool(true)),
                    ("indislive", Datum::Bool(true)),
                    ("indkey", ints(columns)),
                    ("indcollation", ints(types.iter().map(|base| collation(*base).into()))),
                    ("indclass", ints(types.iter().map(|base| super::types::class(*base).into()))),
                    ("indoption", ints(std::iter::repeat_n(0, count))),
                ]);
            }
            for index in &table.indexes {
                rows.add(&index_row(oid, table, index));
            }
        }
        rows
    }

    pub(super) fn pg_sequence(&self, mut rows: Rows) -> Rows {
        for (oid, entry) in &self.relations {
            let Kind::Sequence(sequence) = &entry.kind else { continue };
            rows.add(&[
                ("seqrelid", int(*oid)),
                ("seqtypid", int(sequence.type_oid)),
                ("seqstart", int(sequence.start)),
                ("seqincrement", int(sequence.increment)),
                ("seqmax", int(sequence.max)),
                ("seqmin", int(sequence.min)),
                ("seqcache", int(1)),
                ("seqcycle", Datum::Bool(sequence.is_cycle)),
            ]);
        }
        rows
    }
}

/// The position of a view's query, after the positions of all column defaults.
const RULE: usize = 2_047;

/// Returns the OID of the rule that is a view's query.
pub(super) fn rule_oid(view: u32) -> u32 {
    default_oid(view, RULE)
}

/// Returns the OID of a column default.
pub(super) fn default_oid(table: u32, at: usize) -> u32 {
    super::NAMED_FIRST | table.wrapping_mul(2_048).wrapping_add(at as u32)
}

fn index_row(oid: u32, table: &Table, index: &Index) -> [(&'static str, Datum); 18] {
    let types: Vec<SqlType> =
        index_columns(table, index).into_iter().map(|(_, ty)| ty.base).collect();
    let place = |key: &IndexKey| match key.target {
        KeyTarget::Column(at) => at as i64 + 1,
        KeyTarget::Expr(_) => 0,
    };
    let option = |key: &IndexKey| {
        i64::from(key.is_descending) * DESCENDING + i64::from(key.is_nulls_first) * NULLS_FIRST
    };
    let exprs: Vec<&str> = (index.keys.iter())
        .filter_map(|key| match &key.target {
            KeyTarget::Expr(expr) => Some(expr.as_str()),
            KeyTarget::Column(_) => None,
        })
        .collect();
    let count = index.keys.len() as i64;
    [
        ("indexrelid", int(stored(index.id.0))),
        ("indrelid", int(oid)),
        ("indnatts", int(count)),
        ("indnkeyatts", int(count)),
        ("indisunique", Datum::Bool(index.is_unique)),
        ("indnullsnotdistinct", Datum::Bool(!index.is_nulls_distinct)),
        ("indisprimary", Datum::Bool(false)),
        ("indimmediate", Datum::Bool(true)),
        ("indisvalid", Datum::Bool(index.is_ready)),
        ("indisready", Datum::Bool(true)),
        ("indislive", Datum::Bool(true)),
        ("indkey", ints(index.keys.iter().map(place))),
        ("indcollation", ints(types.iter().map(|base| collation(*base).into()))),
        ("indclass", ints(types.iter().map(|base| super::types::class(*base).into()))),
        ("indoption", ints(index.keys.iter().map(option))),
        ("indexprs", if exprs.is_empty() { Datum::Null } else { text(&exprs.join(", ")) }),
        ("indpred", index.predicate.as_deref().map_or(Datum::Null, text)),
        ("indisclustered", Datum::Bool(false)),
    ]
}
