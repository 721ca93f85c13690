//! The catalog as tables: `pg_catalog`, over the records of [`crate::catalog`].
//!
//! ```text
//!   records, read once per statement -> SystemCatalog -> rows of pg_class, pg_attribute, ...
//!                                              |
//!                                              +-> names: 't'::regclass, format_type(), ...
//! ```
//!
//! A statement that names a table of the catalog, or asks for a name, reads all records of the
//! catalog when it begins: with them it conflicts like with any other row. Numbers (`oid`) are
//! those of PostgreSQL where it has such a thing; others follow from the records, and are the same
//! on every replica.

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

use pangea_core::ids::TableId;
use pangea_core::key::Direction;
use pangea_core::partition::said_by;
use pangea_core::txn::{Context, Scan};

use crate::catalog::comment::{self, Subject};
use crate::catalog::enums as records;
use crate::catalog::procedure::{self, Procedure};
use crate::catalog::role::{self, Access, Owned, Role};
use crate::catalog::{
    BOOTSTRAP, CATALOG, Enums, QualifiedName, Relation, Sequence, Table, View, relation_keys,
    relation_of_key, schema,
};
use crate::error::Failure;
use crate::expr::Env;
use crate::plan::OutputColumn;
use crate::search_path::SearchPath;
use crate::syntax::quoted_ident;
use crate::types::datum::Datum;
pub(crate) use relations::PG_CLASS;
pub(crate) use roles::{DATABASE, ENCODING, default_acl};
pub(crate) use tables::SystemTable;
pub(crate) use types::{is_class_of, is_operator_class};
pub(crate) use views::SystemView;

/// `pg_catalog`
const PG_CATALOG: u32 = 11;
/// `public`
const PUBLIC: u32 = 2_200;
/// `information_schema`
const INFORMATION_SCHEMA: u32 = 13_000;
/// `pangea`: what is not PostgreSQL's.
const PANGEA: u32 = 13_001;
/// What PostgreSQL would call that schema: an extension, which tools leave alone.
const PANGEA_EXTENSION: u32 = 13_002;
const PG_EXTENSION: u32 = 3_079;
/// The numbers of the tables that list schemas and databases.
pub(crate) const PG_NAMESPACE: u32 = 2_615;
pub(crate) const PG_DATABASE: u32 = 1_262;
/// The number of the table that lists types.
pub(crate) const PG_TYPE: u32 = 1_247;
/// The bootstrap superuser.
const BOOTSTRAP_ROLE: u32 = 10;
/// The first number of what users make.
const USER_OID_FIRST: u32 = 16_384;
/// Numbers from here on are not stored: primary keys', as they are in their tables.
const PRIMARY_KEY_FIRST: u32 = 1 << 30;
/// What has a name alone gets its number from the name.
const NAMED_FIRST: u32 = 1 << 31;

/// What the records of the catalog say, when a statement began.
#[derive(Debug)]
pub(crate) struct SystemCatalog {
    /// In the order of their numbers.
    relations: BTreeMap<u32, Entry>,
    /// Its schemas, by their numbers.
    schemas: BTreeMap<u32, String>,
    /// Where names without a schema are looked for.
    path: SearchPath,
    /// The numbers of the relations of each schema and name.
    by_name: BTreeMap<(u32, String), u32>,
    roles: BTreeMap<u32, Role>,
    access: BTreeMap<QualifiedName, Access>,
    schema_access: BTreeMap<String, Access>,
    constraints: BTreeMap<u32, constraints::Constraint>,
    comments: BTreeMap<Subject, String>,
    procedures: Vec<Procedure>,
    enums: Enums,
    /// The rows of its tables that were asked for.
    made: Mutex<BTreeMap<u32, Arc<Vec<Vec<Datum>>>>>,
}

/// A relation with all that is known of it.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    namespace: u32,
    kind: Kind,
}

/// What a relation is.
#[derive(Clone, Debug)]
enum Kind {
    Table(Arc<Table>),
    /// The index that a table is.
    PrimaryKey(Arc<Table>),
    /// An index, by its place among the table's.
    Index(Arc<Table>, usize),
    Sequence(Sequence),
    View(View),
    /// A table of the catalog.
    System(&'static SystemTable),
    /// A view of the catalog, with its columns.
    SystemView(&'static SystemView, &'static [OutputColumn]),
}

/// The number of a schema of the catalog.
fn schema_oid(name: &str) -> u32 {
    match name {
        "pg_catalog" => PG_CATALOG,
        "pangea" => PANGEA,
        _ => INFORMATION_SCHEMA,
    }
}

/// The number of a schema, with the one that it is kept with where it is one of users.
pub(crate) fn schema_number(name: &str, kept: Option<u32>) -> u32 {
    match (name, kept) {
        (crate::catalog::PUBLIC, _) => PUBLIC,
        (_, Some(number)) => stored(number),
        (name, None) => schema_oid(name),
    }
}

/// All schemas, by their numbers.
fn all_schemas(cx: &mut dyn Context) -> Result<BTreeMap<u32, String>, Failure> {
    let own = schema::SYSTEM.iter().chain(&[crate::catalog::PUBLIC]);
    let mut all: BTreeMap<u32, String> =
        own.map(|name| (schema_number(name, None), (*name).to_owned())).collect();
    all.extend(schema::all(cx)?.into_iter().map(|(name, number)| (stored(number), name)));
    Ok(all)
}

/// What of the catalog a name stands for. A table of it comes before one that users made.
pub(crate) enum Found {
    Table(&'static SystemTable),
    View(&'static SystemView),
}

/// The table or view of the catalog that a name stands for, where it is one.
pub(crate) fn find(parts: &[String]) -> Option<Found> {
    let (schema, name) = match parts {
        [name] => ("pg_catalog", name),
        [schema, name] => (schema.as_str(), name),
        _ => return None,
    };
    let table = tables::find(schema, name).map(Found::Table);
    table.or_else(|| views::find(schema, name).map(Found::View))
}

/// The number of what is stored under a number.
pub(crate) fn stored(id: u32) -> u32 {
    said_by(TableId(id)).1.0 - crate::catalog::USER_TABLE_FIRST + USER_OID_FIRST
}

/// The number of a primary key.
pub(crate) fn primary_key(table: &Table) -> u32 {
    PRIMARY_KEY_FIRST + stored(table.id.0)
}

/// A number for each of some names, none twice, however many there are.
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

/// The tables and views of the catalog itself, by their numbers.
fn own_relations() -> BTreeMap<u32, Entry> {
    let mut relations = BTreeMap::new();
    for system in tables::all() {
        let (name, kind) = (system.name.clone(), Kind::System(system));
        let namespace = schema_oid(system.schema);
        relations.insert(system.oid, Entry { name, namespace, kind });
    }
    for (view, columns) in views::all().iter().zip(views::columns()) {
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

/// The relations that users have made, by their numbers.
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
            // Its table has it.
            (_, Relation::Index { .. }) | (None, _) => {}
        }
    }
    Ok(())
}

impl SystemCatalog {
    /// Reads all records.
    pub(crate) fn load(path: &SearchPath, cx: &mut dyn Context) -> Result<Self, Failure> {
        let schemas = all_schemas(cx)?;
        let enums = all_enums(cx)?;
        let mut relations = own_relations();
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

    /// The rows of one of its tables: a query may read one many times.
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
            // Of what the others list Pangea has none; but for operators, casts and aggregates,
            // which are not listed yet.
            _ => rows,
        }
        .finish()
    }

    /// The number of the relation of a name in a schema; without one, where names are looked for.
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

    /// The number of a relation of users.
    fn named(&self, name: &QualifiedName) -> Option<u32> {
        self.relation(Some(self.namespace(name.schema())?), name.name())
    }

    /// A name with its schema, where it is not found without.
    fn shown_name(&self, name: &QualifiedName) -> String {
        let own = quoted_ident(name.name());
        match self.named(name) == self.relation(None, name.name()) {
            true => own,
            false => format!("{}.{own}", quoted_ident(name.schema())),
        }
    }

    /// Whose a relation is.
    fn owner(&self, name: &QualifiedName) -> &str {
        self.access.get(name).map_or(BOOTSTRAP, |access| access.owner.as_str())
    }

    /// The number of a role; 0 where there is none.
    fn role_oid(&self, name: &str) -> u32 {
        let found = self.roles.iter().find(|(_, role)| role.name == name);
        found.map_or(0, |(oid, _)| *oid)
    }
}
