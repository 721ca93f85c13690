//! Execution of CREATE TABLE, DROP TABLE, TRUNCATE and SHOW TABLES.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use pangea_core::ids::TableId;
use pangea_core::key::{Direction, KeyRange};
use pangea_core::txn::{Context, Scan};

use super::{Executed, alter, enums, roles, scan, sequences, views};
use crate::authorization::{self, Required};
use crate::catalog::role::{Object, Privileges};
use crate::catalog::{
    self, CATALOG, PUBLIC, PartitionBy, QualifiedName, Relation, Table, comment, stored,
};
use crate::error::{Failure, SqlError, code};
use crate::expr::{Env, Expr};
use crate::keys;
use crate::notice::Notice;
use crate::plan::{CreateTable, DropTables, ShowTables, Truncate, Utility, utilities};
use crate::search_path::shown;
use crate::syntax::Written;
use crate::system::primary_key;
use crate::types::datum::Datum;
use crate::types::text;
use crate::vocabulary::system::PG_CLASS;

utilities! {
    CreateTable: "CREATE TABLE", create_table, {
        fn ranges(&self) -> usize {
            self.starts.len() + 1
        }
    };
    DropTables: "DROP TABLE", drop_tables, {
        fn is_bulk(&self) -> bool {
            true
        }
    };
    Truncate: "TRUNCATE TABLE", truncate, {
        fn is_bulk(&self) -> bool {
            true
        }
    };
    ShowTables: "SHOW", show_tables, {
        fn is_write(&self) -> bool {
            false
        }
    };
}

fn create_table(
    create: &CreateTable,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let name = &create.table.name;
    if catalog::find(name, cx)?.is_some() {
        let message = format!("relation \"{name}\" already exists");
        if create.if_not_exists {
            let notices = vec![Notice::plain(format!("{message}, skipping"))];
            return Ok(Executed { notices, ..Executed::default() });
        }
        return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
    }
    enums::check_no_type(name, cx)?;
    let mut table = create.table.clone();
    divide(&mut table, &create.starts, env)?;
    table.id = catalog::number_like(table.id, cx)?;
    for index in &mut table.indexes {
        index.id = catalog::number_like(index.id, cx)?;
        alter::claim(&index.name, name, cx)?;
    }
    if !table.primary_key.is_empty() {
        alter::claim(&table.primary_key_name, name, cx)?;
    }
    for (sequence_name, sequence) in &create.sequences {
        sequences::make(sequence_name, sequence, env, cx)?;
    }
    catalog::put_table(&table, cx)?;
    roles::adopt(name, env, cx)?;
    let parents: BTreeSet<&QualifiedName> =
        table.foreign_keys.iter().map(|key| &key.parent).collect();
    for parent in parents {
        alter::change_table(parent, cx, |parent| {
            if !parent.children.contains(name) {
                parent.children.push(name.clone());
            }
        })?;
    }
    Ok(Executed::default())
}

fn drop_tables(drop: &DropTables, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut notices = Vec::new();
    let dropped = drop.dropped();
    for meant in &drop.names {
        let error = missing("table", &meant.written);
        let Some(name) = meant.existing(drop.if_exists, error.clone(), &mut notices)? else {
            continue;
        };
        let table = match catalog::find(name, cx)? {
            Some(Relation::Table(table)) => table,
            Some(other) => return Err(wrong_kind(name, &other, "table").into()),
            None => return Err(error.into()),
        };
        drop_table(table, (&dropped, drop.is_cascade), env, cx)?;
    }
    Ok(Executed { notices, ..Executed::default() })
}

/// Computes where the ranges of a new table begin.
fn divide(table: &mut Table, starts: &[Vec<Expr>], env: &Env) -> Result<(), Failure> {
    let Some(partition) = &mut table.partition else { return Ok(()) };
    let PartitionBy::Range(ranges) = &mut partition.by else { return Ok(()) };
    let base = |at: &usize| table.columns[*at].ty.base;
    let mut last = String::new();
    for start in starts {
        let values: Result<Vec<Datum>, SqlError> =
            start.iter().map(|value| value.eval(&[], env)).collect();
        let values = values?;
        if values.iter().any(Datum::is_null) {
            let message = "cannot specify NULL in range bound";
            return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message).into());
        }
        let columns = || partition.columns.iter().map(base).zip(&values);
        let shown: Vec<String> =
            columns().map(|(base, value)| text::format(base, value, &env.zone)).collect();
        let shown = format!("({})", shown.join(", "));
        let start = keys::encode(columns())?.to_vec();
        if ranges.starts.last().is_some_and(|last| *last >= start) {
            let message = "SPLIT AT VALUES must be in ascending order";
            let detail = format!("{shown} does not come after {last}.");
            let error = SqlError::new(code::INVALID_OBJECT_DEFINITION, message);
            return Err(error.with_detail(detail).into());
        }
        ranges.starts.push(start);
        last = shown;
    }
    Ok(())
}

/// The error for DROP of an object that does not exist.
pub(super) fn missing(kind: &str, written: &Written) -> SqlError {
    let message = format!("{kind} \"{}\" does not exist", written.name);
    SqlError::new(code::UNDEFINED_TABLE, message)
}

/// Drops a table. `dropped` names all tables that the statement drops.
pub(super) fn drop_table(
    table: Table,
    (dropped, is_cascade): (&[QualifiedName], bool),
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let name = &table.name;
    {
        views::drop_dependent(("table", name), (dropped, is_cascade), env, cx)?;
        let is_left = |child: &&QualifiedName| *child != name && !dropped.contains(child);
        for child in table.children.iter().filter(is_left) {
            if !is_cascade {
                return Err(depends(&table, child, env, cx)?.into());
            }
            alter::change_table(child, cx, |child| {
                child.foreign_keys.retain(|key| key.parent != *name);
            })?;
        }
        alter::forget_child(&table, cx)?;
        for (_, sequence) in &table.sequences {
            sequences::forget(sequence, cx)?;
        }
        for index in &table.indexes {
            delete_all(index.id, cx)?;
            comment::forget(PG_CLASS, stored(index.id.0), cx)?;
            catalog::remove(&name.beside(&index.name), cx)?;
        }
        if !table.primary_key.is_empty() {
            comment::forget(PG_CLASS, primary_key(&table), cx)?;
            catalog::remove(&name.beside(&table.primary_key_name), cx)?;
        }
        comment::forget(PG_CLASS, stored(table.id.0), cx)?;
        delete_all(table.id, cx)?;
        catalog::remove(name, cx)?;
        roles::forget(name, cx)?;
    }
    Ok(())
}

/// The error for DROP of an object of another kind.
pub(super) fn wrong_kind(name: &QualifiedName, relation: &Relation, wanted: &str) -> SqlError {
    let kind = relation.kind();
    let article = if kind == "index" { "an" } else { "a" };
    let message = format!("\"{name}\" is not a {wanted}");
    let hint = format!("Use DROP {} to remove {article} {kind}.", kind.to_uppercase());
    SqlError::new(code::WRONG_OBJECT_TYPE, message).with_hint(hint)
}

/// The error for DROP of a table that another table references.
fn depends(
    table: &Table,
    child: &QualifiedName,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<SqlError, Failure> {
    let name = shown(&table.name, &env.path_setting(), cx)?;
    let mut lines = Vec::new();
    if let Some(Relation::Table(child)) = catalog::find(child, cx)? {
        let of = shown(&child.name, &env.path_setting(), cx)?;
        for key in child.foreign_keys.iter().filter(|key| key.parent == table.name) {
            let (key, child) = (&key.name, &of);
            lines.push(format!("constraint {key} on table {child} depends on table {name}"));
        }
    }
    let message = format!("cannot drop table {name} because other objects depend on it");
    Ok(SqlError::new(code::DEPENDENT_OBJECTS, message)
        .with_detail(lines.join("\n"))
        .with_hint("Use DROP ... CASCADE to drop the dependent objects too."))
}

fn truncate(truncate: &Truncate, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut tables: Vec<Arc<Table>> = truncate.tables.clone();
    let mut at = 0;
    while at < tables.len() {
        let table = tables[at].clone();
        for child in &table.children {
            if tables.iter().any(|known| known.name == *child) {
                continue;
            }
            if !truncate.is_cascade {
                let message = "cannot truncate a table referenced in a foreign key constraint";
                let name = &table.name;
                let detail = format!("Table \"{child}\" references \"{name}\".");
                let hint = format!(
                    "Truncate table \"{child}\" at the same time, or use TRUNCATE ... CASCADE."
                );
                let error = SqlError::unsupported("").with_detail(detail).with_hint(hint);
                return Err(SqlError { message: message.to_owned(), ..error }.into());
            }
            let required = Required::on_table(child, Privileges::TRUNCATE);
            authorization::check(&[required], env.current_user(), cx)?;
            if let Some(Relation::Table(child)) = catalog::find(child, cx)? {
                tables.push(Arc::new(child));
            }
        }
        at += 1;
    }
    for table in tables {
        table.indexes.iter().try_for_each(|index| delete_all(index.id, cx))?;
        delete_all(table.id, cx)?;
        for (_, name) in table.sequences.iter().filter(|_| truncate.restarts) {
            authorization::check(
                &[Required::owner(Object::Sequence(name.clone()))],
                env.current_user(),
                cx,
            )?;
            if let Some(Relation::Sequence(sequence)) = catalog::find(name, cx)? {
                sequence.follow(&sequence, Some(sequence.start), cx)?;
            }
        }
    }
    Ok(Executed::default())
}

fn show_tables(_: &ShowTables, _: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut relations = Vec::new();
    let range = catalog::relation_keys();
    let scan = Scan { table: CATALOG, range, direction: Direction::Forward };
    cx.scan(&scan, &mut |_, record| {
        relations.push(Relation::decode(record));
        ControlFlow::Continue(())
    })?;
    let mut rows = Vec::new();
    for relation in relations {
        if let Relation::Table(table) = relation? {
            let shown = match table.name.schema() {
                PUBLIC => Written::plain(table.name.name()),
                _ => Written::whole(&table.name),
            };
            rows.push(vec![Datum::Text(shown.to_string())]);
        }
    }
    Ok(Executed { count: rows.len() as u64, rows, ..Executed::default() })
}

/// Deletes all rows of a table of the store.
pub(super) fn delete_all(table: TableId, cx: &mut dyn Context) -> Result<(), Failure> {
    scan::chunks(table, KeyRange::all(), cx, &mut |rows, cx| {
        for (key, _) in rows {
            cx.delete(table, key)?;
        }
        Ok(())
    })
}
