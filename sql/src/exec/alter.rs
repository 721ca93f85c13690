//! Execution of ALTER TABLE, CREATE INDEX and DROP INDEX: replaces a table's record and adapts its
//! rows and indexes.

use std::collections::BTreeSet;
use std::sync::Arc;

use pangea_core::key::{Key, KeyRange};
use pangea_core::txn::Context;
use pangea_core::value::Value;

use super::prefetch::{self, Batches};
use super::write::{self, hidden_key};
use super::{Executed, ddl, roles, scan, sequences, views};
use crate::access::path::{Path, Paths};
use crate::catalog::comment::{self, Subject};
use crate::catalog::role::{self, Object};
use crate::catalog::{self, Index, QualifiedName, Relation, Table, stored};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::notice::Notice;
use crate::plan::{Alter, Change, Utility};
use crate::rows;
use crate::system::primary_key;
use crate::types::datum::Datum;
use crate::vocabulary::system::PG_CLASS;

impl Utility for Alter {
    fn command(&self) -> &'static str {
        self.command
    }

    fn run(&self, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
        run(self, env, cx)
    }

    fn is_bulk(&self) -> bool {
        true
    }

    fn change(&self) -> Option<&Change> {
        self.change.as_ref()
    }
}

/// Applies a change to a table.
fn run(alter: &Alter, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let notices = alter.notice.iter().cloned().map(Notice::plain).collect();
    let done = Executed { notices, ..Executed::default() };
    let Some(change) = &alter.change else { return Ok(done) };
    let before = &change.before;
    let mut after = change.after.clone();
    for (at, default) in &change.missing {
        let mut bytes = Vec::new();
        rows::encode_stored(&[default.eval(&[], env)?], &mut bytes);
        after.columns[*at].missing = Some(bytes);
    }
    if after.name != before.name {
        rename(before, &after, cx)?;
        roles::follow_name(&before.name, &after.name, cx)?;
        views::follow_name(&before.name, &after.name, cx)?;
    }
    let is_kept = |name: &QualifiedName| after.sequences.iter().any(|(_, kept)| kept == name);
    for (_, name) in before.sequences.iter().filter(|(_, name)| !is_kept(name)) {
        sequences::forget(name, cx)?;
    }
    for (name, sequence) in &change.sequences {
        sequences::make(name, sequence, env, cx)?;
        // The sequence gets the table's owner, whoever runs the statement.
        let owner = role::access(&Object::Table(before.name.clone()), cx)?.owner;
        roles::give(&Object::Sequence(name.clone()), &owner, cx)?;
    }
    let new = change_indexes(before, &mut after, cx)?;
    if env.fills_later {
        let made = after.indexes.iter_mut().filter(|index| new.contains(&index.name));
        made.for_each(|index| index.is_ready = false);
    }
    catalog::put_table(&after, cx)?;
    for (at, (old, new)) in before.columns.iter().zip(&after.columns).enumerate() {
        if new.is_dropped && !old.is_dropped {
            let (class, object, part) = (PG_CLASS, stored(after.id.0), at as u32 + 1);
            comment::put(Subject { class, object, part }, None, cx)?;
        }
    }
    follow_parents(before, &after, cx)?;
    views::check_dependent(before, &after, env, cx)?;
    let paths = Paths::new(Arc::new(after))?;
    let moves = paths.table.primary_key != before.primary_key;
    if moves || !change.fill.is_empty() || !change.numbered.is_empty() {
        rewrite(change, &paths, env, cx)?;
        for path in paths.indexes() {
            ddl::delete_all(path.store, cx)?;
            build(&paths.table, path, env, cx)?;
        }
    } else if !env.fills_later {
        for path in paths.indexes().iter().filter(|path| new.contains(&path.name)) {
            build(&paths.table, path, env, cx)?;
        }
    }
    write::validate(&change.checked, &paths.table, env, cx)?;
    Ok(done)
}

/// Claims a name for an index or a constraint of a table.
pub(super) fn claim(
    name: &str,
    table: &QualifiedName,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let name = &table.beside(name);
    if catalog::find(name, cx)?.is_some() {
        let message = format!("relation \"{name}\" already exists");
        return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
    }
    Ok(catalog::put(name, &Relation::Index { table: table.clone() }, cx)?)
}

/// Changes the record of a table, if the table exists.
pub(super) fn change_table(
    name: &QualifiedName,
    cx: &mut dyn Context,
    change: impl FnOnce(&mut Table),
) -> Result<(), Failure> {
    if let Some(Relation::Table(mut table)) = catalog::find(name, cx)? {
        change(&mut table);
        catalog::put_table(&table, cx)?;
    }
    Ok(())
}

/// Removes a table from the lists of children of the tables that it references.
pub(super) fn forget_child(table: &Table, cx: &mut dyn Context) -> Result<(), Failure> {
    let parents: BTreeSet<&QualifiedName> =
        table.foreign_keys.iter().map(|key| &key.parent).collect();
    for parent in parents {
        change_table(parent, cx, |parent| parent.children.retain(|child| *child != table.name))?;
    }
    Ok(())
}

/// Changes the name of a table in all records that refer to it.
fn rename(before: &Table, after: &Table, cx: &mut dyn Context) -> Result<(), Failure> {
    if catalog::find(&after.name, cx)?.is_some() {
        let message = format!("relation \"{}\" already exists", after.name);
        return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
    }
    catalog::remove(&before.name, cx)?;
    for child in before.children.iter().filter(|child| **child != before.name) {
        change_table(child, cx, |child| {
            let keys = child.foreign_keys.iter_mut();
            keys.filter(|key| key.parent == before.name)
                .for_each(|key| key.parent = after.name.clone());
        })?;
    }
    let parents: BTreeSet<&QualifiedName> =
        before.foreign_keys.iter().map(|key| &key.parent).collect();
    for parent in parents.into_iter().filter(|parent| **parent != before.name) {
        change_table(parent, cx, |parent| {
            let names = parent.children.iter_mut();
            names.filter(|name| **name == before.name).for_each(|name| *name = after.name.clone());
        })?;
    }
    for (_, sequence) in &before.sequences {
        sequences::follow_owner(sequence, &after.name, cx)?;
    }
    let names = before.indexes.iter().map(|index| index.name.as_str());
    for name in names.chain(before.primary_key_name()) {
        let name = after.name.beside(name);
        catalog::put(&name, &Relation::Index { table: after.name.clone() }, cx)?;
    }
    Ok(())
}

/// Deletes dropped indexes and allocates numbers for new ones. Returns the names of the new ones.
fn change_indexes(
    before: &Table,
    after: &mut Table,
    cx: &mut dyn Context,
) -> Result<BTreeSet<String>, Failure> {
    for index in &before.indexes {
        match after.indexes.iter().find(|kept| kept.id == index.id) {
            Some(kept) if kept.name == index.name => {}
            Some(renamed) => {
                catalog::remove(&before.name.beside(&index.name), cx)?;
                claim(&renamed.name, &after.name, cx)?;
            }
            None => forget_index(&before.name, index, cx)?,
        }
    }
    if before.primary_key_name() != after.primary_key_name() {
        if let Some(old) = before.primary_key_name() {
            catalog::remove(&before.name.beside(old), cx)?;
        }
        match after.primary_key_name() {
            Some(new) => claim(new, &after.name, cx)?,
            None => comment::forget(PG_CLASS, primary_key(after), cx)?,
        }
    }
    let mut new = BTreeSet::new();
    let is_everywhere = after.is_everywhere();
    for index in after.indexes.iter_mut().filter(|index| index.id == Index::NEW) {
        let meant = if is_everywhere { Index::NEW_EVERYWHERE } else { Index::NEW };
        index.id = catalog::number_like(meant, cx)?;
        claim(&index.name, &after.name, cx)?;
        new.insert(index.name.clone());
    }
    Ok(new)
}

/// Updates the lists of children of the referenced tables.
fn follow_parents(before: &Table, after: &Table, cx: &mut dyn Context) -> Result<(), Failure> {
    let parents = |table: &Table| -> BTreeSet<QualifiedName> {
        table.foreign_keys.iter().map(|key| key.parent.clone()).collect()
    };
    let (old, new) = (parents(before), parents(after));
    let name = &after.name;
    for parent in old.difference(&new).filter(|parent| **parent != before.name) {
        change_table(parent, cx, |parent| parent.children.retain(|child| child != name))?;
    }
    for parent in new.difference(&old) {
        change_table(parent, cx, |parent| {
            if !parent.children.contains(name) {
                parent.children.push(name.clone());
            }
        })?;
    }
    Ok(())
}

/// Recomputes all rows and stores them under their current keys.
fn rewrite(change: &Change, paths: &Paths, env: &Env, cx: &mut dyn Context) -> Result<(), Failure> {
    let (before, after) = (&change.before, &paths.table);
    let mut old_rows = Vec::new();
    let mut bytes = 0;
    scan::chunks(before.id, KeyRange::all(), cx, &mut |rows, cx| {
        for (key, value) in rows {
            bytes += key.len() + value.len();
            super::check_size(old_rows.len() + 1, bytes)?;
            old_rows.push(before.decode_row(&value)?);
            cx.delete(before.id, key)?;
        }
        Ok(())
    })?;
    let mut numbered = Vec::with_capacity(change.numbered.len());
    for (at, sequence) in &change.numbered {
        numbered.push((*at, sequences::numbers(sequence, old_rows.len(), cx)?));
    }
    let mut batches = Batches::new(old_rows.into_iter().enumerate());
    loop {
        let new = batches.next(|(number, old)| {
            let mut new = old.clone();
            new.resize(after.columns.len(), Datum::Null);
            for (at, _) in &change.missing {
                new[*at] = missing(after, *at)?;
            }
            for (at, expr) in &change.fill {
                new[*at] = expr.eval(&old, env)?;
            }
            for (at, numbers) in &numbered {
                new[*at] = Datum::Int(numbers[number]);
            }
            let key = match after.primary_key.is_empty() {
                true => hidden_key(number, env),
                false => key_of(after, paths.primary(), &new)?,
            };
            Ok((key, new))
        })?;
        if new.is_empty() {
            return Ok(());
        }
        prefetch::name(&new.iter().map(|(key, _)| (after.id, key.clone())).collect::<Vec<_>>(), cx);
        for (key, new) in new {
            if cx.get(after.id, &key)?.is_some() {
                return Err(duplicated(paths.primary(), &new, env)?.into());
            }
            let mut bytes = Vec::new();
            rows::encode_stored(&new, &mut bytes);
            cx.put(after.id, key, Value::from(bytes))?;
        }
    }
}

fn missing(table: &Table, at: usize) -> Result<Datum, Failure> {
    let mut empty = Vec::new();
    rows::encode(&[], &mut empty);
    Ok(table.decode_row(&empty)?.swap_remove(at))
}

fn key_of(table: &Table, path: &Path, row: &[Datum]) -> Result<Key, Failure> {
    if let Some(&at) = table.primary_key.iter().find(|&&at| row[at].is_null()) {
        return Err(contains_null(table, at).into());
    }
    Ok(path.row_key(table.primary_key.iter().map(|&at| &row[at]))?)
}

/// The error for a column that becomes NOT NULL and contains NULLs.
pub(super) fn contains_null(table: &Table, at: usize) -> SqlError {
    let (name, column) = (&table.name, &table.columns[at].name);
    let message = format!("column \"{column}\" of relation \"{name}\" contains null values");
    SqlError::new(code::NOT_NULL, message)
}

/// Adds all rows to an empty index.
fn build(table: &Table, path: &Path, env: &Env, cx: &mut dyn Context) -> Result<(), Failure> {
    fill(table, path, KeyRange::all(), env, cx)
}

/// Adds the rows of a range to an index. The index may contain some of them already.
fn fill(
    table: &Table,
    path: &Path,
    range: KeyRange,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    scan::chunks(table.id, range, cx, &mut |rows, cx| {
        let mut made = Vec::with_capacity(rows.len());
        for (key, value) in rows {
            let row = table.decode_row(&value)?;
            let entry = path.entry(&row, &key, env);
            made.push((key, row, entry));
        }
        let entries = made.iter().filter_map(|(.., entry)| entry.as_ref().ok()?.as_ref());
        let entries = entries.map(|(entry, _)| (path.store, entry.clone()));
        prefetch::name(&entries.collect::<Vec<_>>(), cx);
        for (key, row, entry) in made {
            let Some((entry, is_only)) = entry? else { continue };
            match cx.get(path.store, &entry)? {
                Some(known) if *known == *key => {}
                Some(_) if is_only => return Err(duplicated(path, &row, env)?.into()),
                _ => cx.put(path.store, entry, Value::copy_from(&key))?,
            }
        }
        Ok(())
    })
}

/// Adds the rows of a range to an index of a table, given by position.
///
/// # Errors
/// Fails if two rows have the same key in a unique index.
pub(crate) fn fill_index(
    table: &Table,
    at: usize,
    range: KeyRange,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let path = Path::index(table, &table.indexes[at])?;
    fill(table, &path, range, &Env::nobody(), cx)
}

/// Drops an index of a table, given by position.
///
/// # Errors
/// Fails if the executor stops the run.
pub(crate) fn drop_index(mut table: Table, at: usize, cx: &mut dyn Context) -> Result<(), Failure> {
    let index = table.indexes.remove(at);
    forget_index(&table.name, &index, cx)?;
    Ok(catalog::put_table(&table, cx)?)
}

/// Deletes everything about an index except its entry in the table's record.
fn forget_index(table: &QualifiedName, index: &Index, cx: &mut dyn Context) -> Result<(), Failure> {
    comment::forget(PG_CLASS, stored(index.id.0), cx)?;
    ddl::delete_all(index.id, cx)?;
    Ok(catalog::remove(&table.beside(&index.name), cx)?)
}

fn duplicated(path: &Path, row: &[Datum], env: &Env) -> Result<SqlError, SqlError> {
    let message = format!("could not create unique index \"{}\"", path.name);
    let detail = format!("{} is duplicated.", write::shown_path(path, row, env)?);
    Ok(SqlError::new(code::UNIQUE, message).with_detail(detail))
}
