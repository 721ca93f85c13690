//! The catalog as tables: `pg_catalog`, over the records of [`crate::catalog`].
//!
//! ```text
//!   records, read once per statement -> SystemCatalog -> rows of pg_class, pg_attribute, ...
//!                                              |
//!                                              +-> names: 't'::regclass, format_type(), ...
//! ```
//!
//! A statement that names a table of the catalog, or resolves a name, reads all records of the
//! catalog at its start. It conflicts with changes of these records as with changes of any other
//! row. An OID is PostgreSQL's if PostgreSQL has the object. Other OIDs are derived from the
//! records, and are identical on all replicas.

mod constraints;
mod definitions;
mod depends;
mod enums;
mod insight;
mod names;
mod objects;
mod partitions;
mod procedures;
mod relations;
mod roles;
mod tables;
mod types;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use pangea_core::key::Direction;
use pangea_core::txn::{Context, Scan};

use crate::catalog::comment::{self, Subject};
use crate::catalog::procedure::{self, Procedure};
use crate::catalog::role::{self, Access, Owned, Role};
use crate::catalog::{
    BOOTSTRAP, CATALOG, Enums, QualifiedName, Relation, Sequence, Table, View, enums as records,
    relation_keys, relation_of_key, schema, stored,
};
use crate::error::Failure;
use crate::expr::Env;
use crate::search_path::SearchPath;
use crate::syntax::quoted_ident;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::system::{
    PG_DATABASE, PG_NAMESPACE, SystemTable, schema_and_name, table_named, tables as system_tables,
};
pub(crate) use types::{is_class_of, is_operator_class};
pub(crate) use views::{SystemView, all as views};

/// OID of `pg_catalog`.
const PG_CATALOG: u32 = 11;
/// OID of `public`.
const PUBLIC: u32 = 2_200;
/// OID of `information_schema`.
const INFORMATION_SCHEMA: u32 = 13_000;
/// OID of `pangea`, the schema of relations that PostgreSQL does not have.
const PANGEA: u32 = 13_001;
/// OID of the extension that owns this schema. Tools leave the members of extensions unchanged.
const PANGEA_EXTENSION: u32 = 13_002;
const PG_EXTENSION: u32 = 3_079;
/// OID of the bootstrap superuser.
const BOOTSTRAP_ROLE: u32 = 10;
/// First OID of primary keys. These OIDs are not stored: they follow from those of the tables.
const PRIMARY_KEY_FIRST: u32 = 1 << 30;
/// First OID of objects whose OID is derived from their name.
const NAMED_FIRST: u32 = 1 << 31;

/// The records of the catalog, as of the start of a statement.
#[derive(Debug)]
pub(crate) struct SystemCatalog {
    /// Relations by OID.
    relations: BTreeMap<u32, Entry>,
    /// Schemas by OID.
    schemas: BTreeMap<u32, String>,
    /// The schemas that are searched for unqualified names.
    path: SearchPath,
    /// OIDs of the relations by schema and name.
    by_name: BTreeMap<(u32, String), u32>,
    roles: BTreeMap<u32, Role>,
    access: BTreeMap<QualifiedName, Access>,
    schema_access: BTreeMap<String, Access>,
    constraints: BTreeMap<u32, constraints::Constraint>,
    comments: BTreeMap<Subject, String>,
    procedures: Vec<Procedure>,
    enums: Enums,
    /// The rows of catalog tables that the statement has read so far, by OID.
    made: Mutex<BTreeMap<u32, Arc<Vec<Vec<Datum>>>>>,
}

/// A relation: its name, its schema, and its definition.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    namespace: u32,
    kind: Kind,
}

/// The kind of a relation, with its definition.
#[derive(Clone, Debug)]
enum Kind {
    Table(Arc<Table>),
    /// The primary key index of a table.
    PrimaryKey(Arc<Table>),
    /// An index, by its position among those of the table.
    Index(Arc<Table>, usize),
    Sequence(Sequence),
    View(View),
    /// A table of the catalog.
    System(&'static SystemTable),
    /// A view of the catalog, with its columns.
    SystemView(&'static SystemView, &'static [OutputColumn]),
}

/// Returns the OID of a schema of the catalog.
fn schema_oid(name: &str) -> u32 {
    match name {
        "pg_catalog" => PG_CATALOG,
        "pangea" => PANGEA,
        _ => INFORMATION_SCHEMA,
    }
}

/// Returns the OID of a schema. `kept` is the number in the record of a user's schema.
pub(crate) fn schema_number(name: &str, kept: Option<u32>) -> u32 {
    match (name, kept) {
        (crate::catalog::PUBLIC, _) => PUBLIC,
        (_, Some(number)) => stored(number),
        (name, None) => schema_oid(name),
    }
}

/// Returns all schemas by OID.
fn all_schemas(cx: &mut dyn Context) -> Result<BTreeMap<u32, String>, Failure> {
    let own = schema::SYSTEM.iter().chain(&[crate::catalog::PUBLIC]);
    let mut all: BTreeMap<u32, String> =
        own.map(|name| (schema_number(name, None), (*name).to_owned())).collect();
    all.extend(schema::all(cx)?.into_iter().map(|(name, number)| (stored(number), name)));
    Ok(all)
}

/// The relation of the catalog that a name denotes. It takes precedence over users' relations.
pub(crate) enum Found {
    Table(&'static SystemTable),
    View(&'static SystemView),
}

/// Returns the table or view of the catalog that a name denotes, if any.
pub(crate) fn find(parts: &[String]) -> Option<Found> {
    let (schema, name) = schema_and_name(parts)?;
    let table = table_named(schema, name).map(Found::Table);
    table.or_else(|| views::find(schema, name).map(Found::View))
}

/// Returns the OID of a primary key.
pub(crate) fn primary_key(table: &Table) -> u32 {
    PRIMARY_KEY_FIRST + stored(table.id.0)
}

/// Assigns an OID to each name. The OIDs are distinct, however many names there are.
fn numbered<T>(named: impl IntoIterator<Item = (String, T)>) -> BTreeMap<u32, T> {
    let mut found = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (name, value) in named {
        let mut oid = NAMED_FIRST | xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as u32;
        while !taken.insert(oid) {
            oid = NAMED_FIRST | oid.wrapping_add(1);
        }
        found.insert(oid, value);
    }
    found
}

/// Returns the tables and views of the catalog itself, by OID.
fn own_relations(columns: &'static [Vec<OutputColumn>]) -> BTreeMap<u32, Entry> {
    let mut relations = BTreeMap::new();
    for system in system_tables() {
        let (name, kind) = (system.name.clone(), Kind::System(system));
        let namespace = schema_oid(system.schema);
        relations.insert(system.oid, Entry { name, namespace, kind });
    }
    for (view, columns) in views::all().iter().zip(columns) {
        let (name, kind) = (view.name.clone(), Kind::SystemView(view, columns));
        let namespace = schema_oid(&view.schema);
        relations.insert(view.oid, Entry { name, namespace, kind });
    }
    relations
}

fn all_enums(cx: &mut dyn Context) -> Result<Enums, Failure> {
    let mut enums = Enums::default();
    records::all(cx)?.into_iter().for_each(|one| enums.insert(one));
    Ok(enums)
}

/// Adds the relations that users have created, by OID.
fn add_relations(
    relations: &mut BTreeMap<u32, Entry>,
    schemas: &BTreeMap<u32, String>,
    enums: &Enums,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let mut records = Vec::new();
    let (range, direction) = (relation_keys(), Direction::Forward);
    cx.scan(&Scan { table: CATALOG, range, direction }, &mut |key, record| {
        records.push((relation_of_key(key), Relation::decode(record)));
        ControlFlow::Continue(())
    })?;
    let numbers: BTreeMap<&str, u32> =
        schemas.iter().map(|(oid, name)| (name.as_str(), *oid)).collect();
    let mut add = |oid, name: &QualifiedName, kind| {
        let namespace = numbers.get(name.schema()).copied().unwrap_or_default();
        let name = name.name().to_owned();
        relations.insert(oid, Entry { name, namespace, kind });
    };
    for (name, record) in records {
        match (name, record?) {
            (_, Relation::Table(mut table)) => {
                table.enums = enums.clone();
                let table = Arc::new(table);
                add(stored(table.id.0), &table.name, Kind::Table(table.clone()));
                if !table.primary_key.is_empty() {
                    let kind = Kind::PrimaryKey(table.clone());
                    let name = table.name.beside(&table.primary_key_name);
                    add(primary_key(&table), &name, kind);
                }
                for (at, index) in table.indexes.iter().enumerate() {
                    let name = table.name.beside(&index.name);
                    add(stored(index.id.0), &name, Kind::Index(table.clone(), at));
                }
            }
            (Some(name), Relation::Sequence(sequence)) => {
                add(stored(sequence.id), &name, Kind::Sequence(sequence));
            }
            (_, Relation::View(view)) => {
                add(stored(view.id.0), &view.name.clone(), Kind::View(view));
            }
            // An index is part of its table's record.
            (_, Relation::Index { .. }) | (None, _) => {}
        }
    }
    Ok(())
}

impl SystemCatalog {
    /// Reads all records of the catalog. `columns` are those of its views, in the order of the
    /// views.
    pub(crate) fn load(
        path: &SearchPath,
        columns: &'static [Vec<OutputColumn>],
        cx: &mut dyn Context,
    ) -> Result<Self, Failure> {
        let schemas = all_schemas(cx)?;
        let enums = all_enums(cx)?;
        let mut relations = own_relations(columns);
        add_relations(&mut relations, &schemas, &enums, cx)?;
        let constraints = constraints::all(&relations);
        let by_name = relations
            .iter()
            .map(|(oid, entry)| ((entry.namespace, entry.name.clone()), *oid))
            .collect();
        let (first, others): (Vec<Role>, Vec<Role>) =
            role::all(cx)?.into_iter().partition(|role| role.name == BOOTSTRAP);
        let first = first.into_iter().next().unwrap_or_else(|| Role::superuser(BOOTSTRAP));
        let mut roles = numbered(others.into_iter().map(|role| (role.name.clone(), role)));
        roles.insert(BOOTSTRAP_ROLE, first);
        let (mut access, mut schema_access) = (BTreeMap::new(), BTreeMap::new());
        for (_, of, record) in role::all_access(cx)? {
            match of {
                Owned::Relation(name) => drop(access.insert(name, record)),
                Owned::Schema(name) => drop(schema_access.insert(name, record)),
            }
        }
        let comments = comment::all(cx)?.into_iter().collect();
        Ok(Self {
            relations,
            schemas,
            path: path.clone(),
            by_name,
            roles,
            access,
            schema_access,
            constraints,
            comments,
            procedures: procedure::all(cx)?,
            enums,
            made: Mutex::default(),
        })
    }

    /// Returns the rows of a catalog table. They are cached, because a query may read a table many
    /// times.
    pub(crate) fn rows(&self, table: &'static SystemTable, env: &Env) -> Arc<Vec<Vec<Datum>>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry(table.oid).or_insert_with(|| Arc::new(self.make(table, env))).clone()
    }

    fn make(&self, table: &'static SystemTable, env: &Env) -> Vec<Vec<Datum>> {
        let rows = tables::Rows::new(table);
        if table.is_of_node() {
            return self.of_node(&table.name, rows, env).finish();
        }
        match table.name.as_str() {
            "pg_class" => self.pg_class(rows),
            "pg_attribute" => self.pg_attribute(rows),
            "pg_attrdef" => self.pg_attrdef(rows),
            "pg_index" => self.pg_index(rows),
            "pg_sequence" => self.pg_sequence(rows),
            "pg_constraint" => self.pg_constraint(rows),
            "pg_depend" => self.pg_depend(rows),
            "pg_rewrite" => self.pg_rewrite(rows),
            "pg_init_privs" => self.pg_init_privs(rows),
            "pg_extension" => objects::pg_extension(rows),
            "pg_authid" => self.pg_authid(rows, env),
            "pg_auth_members" => self.pg_auth_members(rows),
            "pg_database" => self.pg_database(rows, env),
            "pg_namespace" => self.pg_namespace(rows),
            "pg_type" => self.pg_type(rows),
            "pg_enum" => self.pg_enum(rows),
            "pg_proc" => self.pg_proc(rows),
            "routines" => self.routines(rows, &env.database),
            "parameters" => self.parameters(rows, &env.database),
            "pg_opclass" => types::pg_opclass(rows),
            "pg_opfamily" => types::pg_opfamily(rows),
            "pg_am" => objects::pg_am(rows),
            "pg_collation" => objects::pg_collation(rows),
            "pg_language" => objects::pg_language(rows),
            "pg_tablespace" => objects::pg_tablespace(rows),
            "pg_description" => self.pg_description(rows),
            "pg_shdescription" => self.pg_shdescription(rows),
            "pg_cursors" => objects::pg_cursors(rows, env),
            "partitions" => self.partitions(rows, env),
            "pg_settings" => objects::pg_settings(rows, env),
            // The other tables list objects that Pangea does not have. Operators, casts and
            // aggregates are exceptions: they are not listed yet.
            _ => rows,
        }
        .finish()
    }

    /// Returns the OID of a relation by name in a schema. Without a schema, it searches the search
    /// path.
    fn relation(&self, namespace: Option<u32>, name: &str) -> Option<u32> {
        let found = |namespace| self.by_name.get(&(namespace, name.to_owned())).copied();
        match namespace {
            Some(namespace) => found(namespace),
            None => found(PG_CATALOG).or_else(|| {
                let path = self.path.names().iter().filter_map(|name| self.namespace(name));
                path.filter_map(found).next()
            }),
        }
    }

    /// Returns the OID of a user's relation.
    fn named(&self, name: &QualifiedName) -> Option<u32> {
        self.relation(Some(self.namespace(name.schema())?), name.name())
    }

    /// Formats a name, with its schema if the search path does not find the relation.
    fn shown_name(&self, name: &QualifiedName) -> String {
        let own = quoted_ident(name.name());
        match self.named(name) == self.relation(None, name.name()) {
            true => own,
            false => format!("{}.{own}", quoted_ident(name.schema())),
        }
    }

    /// Returns the owner of a relation.
    fn owner(&self, name: &QualifiedName) -> &str {
        self.access.get(name).map_or(BOOTSTRAP, |access| access.owner.as_str())
    }

    /// Returns the OID of a role, or 0 if it does not exist.
    fn role_oid(&self, name: &str) -> u32 {
        let found = self.roles.iter().find(|(_, role)| role.name == name);
        found.map_or(0, |(oid, _)| *oid)
    }
}
