//! Running INSERT, UPDATE and DELETE.

use std::collections::BTreeSet;

use pangea_core::key::Key;
use pangea_core::txn::Context;
use pangea_core::value::Value;

use super::{Executed, RowBuffer, query, scan};
use crate::catalog::Table;
use crate::conflict::shown_key;
use crate::error::{Failure, SqlError};
use crate::expr::{Env, Expr};
use crate::keys;
use crate::plan::{Delete, Insert, Update, key_types};
use crate::rows;
use crate::types::datum::Datum;
use crate::types::text;

pub(super) fn insert(
    insert: &Insert,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let table = &insert.table;
    let mut returned = RowBuffer::default();
    let mut count = 0;
    for (number, source) in query::run(&insert.source, env, cx)?.into_iter().enumerate() {
        let row = compute(&insert.columns, &source, env)?;
        check_not_null(table, &row, env)?;
        let key = if table.primary_key.is_empty() {
            hidden_key(number, env)
        } else {
            let key = key_of(table, &row)?;
            if cx.get(table.id, &key)?.is_some() {
                if insert.skips_duplicates {
                    continue;
                }
                return Err(duplicate(table, &row, env).into());
            }
            key
        };
        put(table, key, &row, cx)?;
        count += 1;
        if !insert.returning.is_empty() {
            returned.push(compute(&insert.returning, &row, env)?)?;
        }
    }
    Ok(Executed { rows: returned.rows, count, notice: None })
}

pub(super) fn update(
    update: &Update,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let table = &update.access.table;
    let mut returned = RowBuffer::default();
    let mut moved = Vec::new();
    // All rows are found before the first changes, so that no row is found twice.
    let found = scan::collect(&update.access, update.filter.as_ref(), env, cx)?;
    let count = found.len() as u64;
    let changes_key = update.assignments.iter().any(|(at, _)| table.primary_key.contains(at));
    for (key, old) in found {
        let mut row = old.clone();
        for (at, expr) in &update.assignments {
            row[*at] = expr.eval(&old, env)?;
        }
        check_not_null(table, &row, env)?;
        if !update.returning.is_empty() {
            returned.push(compute(&update.returning, &row, env)?)?;
        }
        if changes_key && key_of(table, &row)? != key {
            cx.delete(table.id, key)?;
            moved.push(row);
        } else {
            put(table, key, &row, cx)?;
        }
    }
    // Keys are unique at the end of the statement, whatever the order of the rows.
    let mut taken = BTreeSet::new();
    for row in moved {
        let key = key_of(table, &row)?;
        if !taken.insert(key.clone()) || cx.get(table.id, &key)?.is_some() {
            return Err(duplicate(table, &row, env).into());
        }
        put(table, key, &row, cx)?;
    }
    Ok(Executed { rows: returned.rows, count, notice: None })
}

pub(super) fn delete(
    delete: &Delete,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let mut returned = RowBuffer::default();
    let found = scan::collect(&delete.access, delete.filter.as_ref(), env, cx)?;
    let count = found.len() as u64;
    for (key, row) in found {
        if !delete.returning.is_empty() {
            returned.push(compute(&delete.returning, &row, env)?)?;
        }
        cx.delete(delete.access.table.id, key)?;
    }
    Ok(Executed { rows: returned.rows, count, notice: None })
}

fn compute(exprs: &[Expr], row: &[Datum], env: &Env) -> Result<Vec<Datum>, SqlError> {
    exprs.iter().map(|expr| expr.eval(row, env)).collect()
}

fn put(table: &Table, key: Key, row: &[Datum], cx: &mut dyn Context) -> Result<(), Failure> {
    assert_eq!(row.len(), table.columns.len(), "a row has all columns");
    let mut bytes = Vec::with_capacity(16 + row.len() * 8);
    rows::encode(row, &mut bytes);
    Ok(cx.put(table.id, key, Value::from(bytes))?)
}

fn key_of(table: &Table, row: &[Datum]) -> Result<Key, SqlError> {
    keys::encode(key_types(table).map(|(at, base)| (base, &row[at])))
}

/// The key of a row without one: the time, what is random, and the number in the statement, so that
/// rows come in about the order in which they were inserted.
fn hidden_key(number: usize, env: &Env) -> Key {
    let mut bytes = Vec::with_capacity(20);
    bytes.extend((env.statement_now as u64 ^ 1 << 63).to_be_bytes());
    bytes.extend(env.row_seed.to_be_bytes());
    bytes.extend((number as u32).to_be_bytes());
    Key::from(&bytes[..])
}

fn check_not_null(table: &Table, row: &[Datum], env: &Env) -> Result<(), SqlError> {
    let mut columns = table.columns.iter().zip(row);
    let violated = columns.find(|(column, datum)| column.is_not_null && datum.is_null());
    let Some((column, _)) = violated else { return Ok(()) };
    let shown: Vec<String> = row
        .iter()
        .zip(table.types())
        .map(|(datum, base)| match datum {
            Datum::Null => "null".to_owned(),
            datum => text::format(base, datum, &env.zone),
        })
        .collect();
    let detail = format!("Failing row contains ({}).", shown.join(", "));
    Err(SqlError::null_in_column(&column.name, &table.name).with_detail(detail))
}

fn duplicate(table: &Table, row: &[Datum], env: &Env) -> SqlError {
    let values: Vec<Datum> = key_types(table).map(|(at, _)| row[at].clone()).collect();
    let detail = format!("{} already exists.", shown_key(table, &values, &env.zone));
    SqlError::duplicate_key(&table.primary_key_name).with_detail(detail)
}
