//! Running INSERT, UPDATE and DELETE.

use std::collections::BTreeSet;

use pangea_core::key::Key;
use pangea_core::txn::Context;

use super::query::{self, compute};
use super::write::{Writer, hidden_key};
use super::{Executed, RowBuffer, scan};
use crate::error::{Failure, SqlError, code};
use crate::expr::{Env, Expr};
use crate::plan::{Delete, Insert, Joined, OnConflict, Update};
use crate::types::datum::Datum;

/// The statement's own table among its targets.
const OWN: usize = 0;

pub(super) fn insert(
    insert: &Insert,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let mut returned = RowBuffer::default();
    let mut count = 0;
    // Rows that this statement has written already.
    let mut written = BTreeSet::new();
    let (source, _held) = query::run(&insert.source, env, cx)?;
    let mut writer = Writer::new(&insert.targets, env, cx);
    for (number, source) in source.into_iter().enumerate() {
        let mut row = compute(&insert.columns, &source, env)?;
        writer.complete(OWN, &mut row)?;
        let key = writer.key_of(OWN, &row)?.unwrap_or_else(|| hidden_key(number, env));
        let row = match existing(insert, &mut writer, (&key, &row))? {
            None => {
                writer.insert(OWN, key.clone(), row.clone())?;
                written.insert(key);
                row
            }
            Some(existing) => match &insert.on_conflict {
                OnConflict::Update { assignments, filter, .. } => {
                    if written.contains(&existing) {
                        return Err(affects_twice().into());
                    }
                    let old = read(insert, &mut writer, &existing)?;
                    let both = [&old[..], &row[..]].concat();
                    if !filter.as_ref().map_or(Ok(true), |it| it.is_true(&both, env))? {
                        continue;
                    }
                    let mut new = old.clone();
                    assign(assignments, &both, &mut new, env)?;
                    writer.complete(OWN, &mut new)?;
                    written.extend(writer.update(OWN, vec![((existing, old), new.clone())])?);
                    new
                }
                OnConflict::Fail | OnConflict::Skip { .. } => continue,
            },
        };
        count += 1;
        if !insert.returning.is_empty() {
            returned.push(compute(&insert.returning, &row, env)?)?;
        }
    }
    writer.finish()?;
    Ok(Executed { rows: returned.rows, count, ..Executed::default() })
}

/// The key of the row that is in the way of a new one, where the statement says what then.
fn existing(
    insert: &Insert,
    writer: &mut Writer<'_>,
    row: (&Key, &[Datum]),
) -> Result<Option<Key>, Failure> {
    match &insert.on_conflict {
        OnConflict::Fail => Ok(None),
        OnConflict::Skip { path: Some(path) } | OnConflict::Update { path, .. } => {
            writer.in_the_way(OWN, *path, row)
        }
        OnConflict::Skip { path: None } => {
            for path in 0..insert.targets.own().paths.len() {
                if let Some(found) = writer.in_the_way(OWN, path, row)? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        }
    }
}

fn read(insert: &Insert, writer: &mut Writer<'_>, key: &Key) -> Result<Vec<Datum>, Failure> {
    let table = &insert.targets.own().table;
    let bytes = writer.cx().get(table.id, key)?;
    let missing = || SqlError::new(code::DATA_CORRUPTED, "an index entry leads to no row");
    Ok(table.decode_row(&bytes.ok_or_else(missing)?)?)
}

fn affects_twice() -> SqlError {
    let message = "ON CONFLICT DO UPDATE command cannot affect row a second time";
    SqlError::new(code::CARDINALITY, message).with_hint(
        "Ensure that no rows proposed for insertion within the same command have duplicate \
         constrained values.",
    )
}

fn assign(
    assignments: &[(usize, Expr)],
    from: &[Datum],
    row: &mut [Datum],
    env: &Env,
) -> Result<(), SqlError> {
    for (at, expr) in assignments {
        row[*at] = expr.eval(from, env)?;
    }
    Ok(())
}

pub(super) fn update(
    update: &Update,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    if let Some(joined) = &update.joined {
        return joined_update(update, joined, env, cx);
    }
    let mut returned = RowBuffer::default();
    // All rows are found before the first changes, so that no row is found twice.
    let found = scan::collect(&update.access, update.filter.as_ref(), env, cx)?;
    let count = found.len() as u64;
    let mut writer = Writer::new(&update.targets, env, cx);
    let mut changed = Vec::with_capacity(found.len());
    for (key, old) in found {
        let mut row = old.clone();
        assign(&update.assignments, &old, &mut row, env)?;
        writer.complete(OWN, &mut row)?;
        if !update.returning.is_empty() {
            returned.push(compute(&update.returning, &row, env)?)?;
        }
        changed.push(((key, old), row));
    }
    writer.update(OWN, changed)?;
    writer.finish()?;
    Ok(Executed { rows: returned.rows, count, ..Executed::default() })
}

pub(super) fn delete(
    delete: &Delete,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    if let Some(joined) = &delete.joined {
        return joined_delete(delete, joined, env, cx);
    }
    let mut returned = RowBuffer::default();
    let found = scan::collect(&delete.access, delete.filter.as_ref(), env, cx)?;
    let count = found.len() as u64;
    let mut writer = Writer::new(&delete.targets, env, cx);
    for (key, row) in found {
        if !delete.returning.is_empty() {
            returned.push(compute(&delete.returning, &row, env)?)?;
        }
        writer.delete(OWN, (key, row))?;
    }
    writer.finish()?;
    Ok(Executed { rows: returned.rows, count, ..Executed::default() })
}

/// A row that a query found: its key, what it is, and what came with it.
type Found = (Key, Vec<Datum>, Vec<Datum>);

/// The rows that a query found, each once.
fn found(
    joined: &Joined,
    width: usize,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Vec<Found>, Failure> {
    let mut known = BTreeSet::new();
    let mut all = Vec::new();
    let (rows, _held) = query::run(&joined.rows, env, cx)?;
    for mut row in rows {
        let others = row.split_off(width);
        let Datum::Bytea(key) = &others[0] else { unreachable!("a row has a key") };
        let key = Key::from(&key[..]);
        // A row that meets several others changes once.
        if known.insert(key.clone()) {
            all.push((key, row, others));
        }
    }
    Ok(all)
}

fn joined_update(
    update: &Update,
    joined: &Joined,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let mut returned = RowBuffer::default();
    let width = update.access.table.columns.len();
    let found = found(joined, width, env, cx)?;
    let count = found.len() as u64;
    let mut writer = Writer::new(&update.targets, env, cx);
    let mut changed = Vec::with_capacity(found.len());
    for (key, old, others) in found {
        let all = [&old[..], &others[..]].concat();
        let mut row = old.clone();
        assign(&update.assignments, &all, &mut row, env)?;
        writer.complete(OWN, &mut row)?;
        if !update.returning.is_empty() {
            let shown = [&row[..], &others[..]].concat();
            returned.push(compute(&update.returning, &shown, env)?)?;
        }
        changed.push(((key, old), row));
    }
    writer.update(OWN, changed)?;
    writer.finish()?;
    Ok(Executed { rows: returned.rows, count, ..Executed::default() })
}

fn joined_delete(
    delete: &Delete,
    joined: &Joined,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let mut returned = RowBuffer::default();
    let found = found(joined, delete.access.table.columns.len(), env, cx)?;
    let count = found.len() as u64;
    let mut writer = Writer::new(&delete.targets, env, cx);
    for (key, row, others) in found {
        if !delete.returning.is_empty() {
            let shown = [&row[..], &others[..]].concat();
            returned.push(compute(&delete.returning, &shown, env)?)?;
        }
        writer.delete(OWN, (key, row))?;
    }
    writer.finish()?;
    Ok(Executed { rows: returned.rows, count, ..Executed::default() })
}
