//! Execution of INSERT, UPDATE and DELETE.

use std::borrow::Cow;
use std::collections::BTreeSet;

use pangea_core::key::Key;
use pangea_core::txn::Context;

use super::parallel_scan::is_calm;
use super::prefetch::Batches;
use super::query::{self, compute};
use super::steps::Run;
use super::write::{self, Pending, Writer, failing_row};
use super::{Executed, RowBuffer, scan};
use crate::access::{Access, Place};
use crate::delta::AddIntegers;
use crate::error::{Failure, SqlError, code};
use crate::expr::{Env, Expr};
use crate::plan::target::Targets;
use crate::plan::{Delete, Insert, Joined, OnConflict, Returning, Update, ViewCheck};
use crate::types::datum::Datum;

/// Position of the statement's own table among its targets.
const OWN: usize = 0;

impl<'a> Run<'a> {
    pub(super) fn insert(&mut self, insert: &'a Insert) -> Result<Executed, Failure> {
        let env = self.env;
        let mut returned = ReturnedRows::new(&insert.returning);
        let mut count = 0;
        let mut pending = Pending::default();
        let (rows, _reservation) = query::run(&insert.source, env, self.before())?;
        let mut batches = match rows.len() < 2 || may_be_made_ahead(insert) {
            true => Batches::new(rows.into_iter()),
            false => Batches::one_by_one(rows.into_iter()),
        };
        loop {
            let new = batches.next(|source| {
                let number = self.inserted;
                self.inserted += 1;
                let row = compute(&insert.columns, &source, env)?;
                write::made(insert.targets.own(), row, number, env)
            })?;
            if new.is_empty() {
                break;
            }
            let mut writer = Writer::new(&insert.targets, env, self.now(), &mut pending);
            writer.name(OWN, &new);
            if let OnConflict::Update { path, .. } = &insert.on_conflict {
                writer.name_in_the_way(OWN, *path, &new)?;
            }
            for (key, row) in new {
                let Some(row) = self.add(insert, key, row, &mut pending)? else { continue };
                count += 1;
                returned.push(&row, env)?;
            }
        }
        self.put_off(&insert.targets, pending);
        Ok(Executed { rows: returned.end(self)?, count, ..Executed::default() })
    }

    /// Inserts a row, or handles its conflict. Returns the written row, or `None` if no row was
    /// written.
    fn add(
        &mut self,
        insert: &Insert,
        key: Key,
        row: Vec<Datum>,
        pending: &mut Pending,
    ) -> Result<Option<Vec<Datum>>, Failure> {
        let env = self.env;
        let mut writer = Writer::new(&insert.targets, env, self.now(), pending);
        if let Some(existing) = existing(insert, &mut writer, (&key, &row))? {
            return self.replace(insert, existing, &row, pending);
        }
        writer.insert(OWN, key.clone(), row.clone())?;
        check_view(&insert.checks, &insert.targets, &row, env)?;
        self.touch(insert.targets.own().table.id, key);
        Ok(Some(row))
    }

    /// Updates the row that conflicts with a new one, if the statement has DO UPDATE. Returns the
    /// updated row.
    fn replace(
        &mut self,
        insert: &Insert,
        existing: Key,
        row: &[Datum],
        pending: &mut Pending,
    ) -> Result<Option<Vec<Datum>>, Failure> {
        let OnConflict::Update { assignments, filter, asked, .. } = &insert.on_conflict else {
            return Ok(None);
        };
        let env = self.env;
        let table = insert.targets.own().table.id;
        if self.has_touched(table, &existing) {
            return Err(affects_twice().into());
        }
        let old = read(insert, &existing, self.now())?;
        let both = [&old[..], row].concat();
        let mut new = old.clone();
        match asked {
            None => {
                if !filter.as_ref().map_or(Ok(true), |it| it.is_true(&both, env))? {
                    return Ok(None);
                }
                assign(assignments, &both, &mut new, env)?;
            }
            Some(asked) => {
                let numbered = [both, vec![Datum::Int(0)]].concat();
                let values = self.ask(asked, vec![numbered])?.pop().unwrap_or_default();
                let condition = filter.as_ref().map(|_| values.last());
                if condition.flatten().is_some_and(|is_true| is_true.truth() != Some(true)) {
                    return Ok(None);
                }
                for ((at, _), value) in assignments.iter().zip(values) {
                    new[*at] = value;
                }
            }
        }
        let mut writer = Writer::new(&insert.targets, env, self.now(), pending);
        write::complete(insert.targets.own(), &mut new, env)?;
        let keys = writer.update(OWN, vec![((existing, old), new.clone())])?;
        check_view(&insert.checks, &insert.targets, &new, env)?;
        keys.into_iter().for_each(|key| self.touch(table, key));
        Ok(Some(new))
    }

    pub(super) fn update(&mut self, update: &'a Update) -> Result<Executed, Failure> {
        if let Some(count) = self.add_to_row(update)? {
            return Ok(Executed { count, ..Executed::default() });
        }
        let env = self.env;
        let rows = (&update.access, update.filter.as_ref(), update.joined.as_ref());
        // All rows are found before the first one changes, so no row is found twice.
        let found = self.found(rows)?;
        let count = found.len() as u64;
        let mut returned = ReturnedRows::new(&update.returning);
        let mut pending = Pending::default();
        let mut changed = Vec::with_capacity(found.len());
        for (key, old, others) in found {
            let mut row = old.clone();
            assign(&update.assignments, &with(&old, &others), &mut row, env)?;
            write::complete(update.targets.own(), &mut row, env)?;
            check_view(&update.checks, &update.targets, &row, env)?;
            returned.push(&with(&row, &others), env)?;
            changed.push(((key, old), row));
        }
        let before: Vec<Key> = match self.is_several {
            true => changed.iter().map(|((key, _), _)| key.clone()).collect(),
            false => Vec::new(),
        };
        let mut writer = Writer::new(&update.targets, env, self.now(), &mut pending);
        let after = writer.update(OWN, changed)?;
        if self.is_several {
            let table = update.access.table.id;
            before.into_iter().chain(after).for_each(|key| self.touch(table, key));
        }
        self.put_off(&update.targets, pending);
        Ok(Executed { rows: returned.end(self)?, count, ..Executed::default() })
    }

    /// Runs an update that only adds to a row. Returns the number of rows, or `None` if it is not
    /// such an update.
    fn add_to_row(&mut self, update: &Update) -> Result<Option<u64>, Failure> {
        let delta = update.delta.as_ref().filter(|_| !self.is_several);
        let Some(amount) = delta.and_then(|delta| delta.amount(self.env)) else { return Ok(None) };
        let places = update.access.places(self.env)?;
        let [Place::Point(key)] = &places[..] else { return Ok(None) };
        let table = update.access.table.id;
        let exists = self.now().add(table, key.clone(), &AddIntegers, &amount)?;
        Ok(Some(u64::from(exists)))
    }

    pub(super) fn delete(&mut self, delete: &'a Delete) -> Result<Executed, Failure> {
        let env = self.env;
        let rows = (&delete.access, delete.filter.as_ref(), delete.joined.as_ref());
        let found = self.found(rows)?;
        let count = found.len() as u64;
        let mut returned = ReturnedRows::new(&delete.returning);
        let mut pending = Pending::default();
        for (key, row, others) in found {
            returned.push(&with(&row, &others), env)?;
            if self.is_several {
                self.touch(delete.access.table.id, key.clone());
            }
            let mut writer = Writer::new(&delete.targets, env, self.now(), &mut pending);
            writer.delete(OWN, (key, row))?;
        }
        self.put_off(&delete.targets, pending);
        Ok(Executed { rows: returned.end(self)?, count, ..Executed::default() })
    }

    /// Finds the rows that a step writes, except those that another step has written.
    fn found(
        &mut self,
        (access, filter, joined): (&Access, Option<&Expr>, Option<&Joined>),
    ) -> Result<Vec<Found>, Failure> {
        let env = self.env;
        let mut found = match joined {
            Some(joined) => found_by(joined, access.table.columns.len(), env, self.before())?,
            None => {
                let found = scan::collect(access, filter, env, self.before())?;
                found.into_iter().map(|(key, row)| (key, row, Vec::new())).collect()
            }
        };
        if self.is_several {
            found.retain(|(key, ..)| !self.has_touched(access.table.id, key));
        }
        Ok(found)
    }
}

/// The rows of RETURNING so far.
struct ReturnedRows<'a> {
    returning: &'a Returning,
    rows: RowBuffer,
}

impl<'a> ReturnedRows<'a> {
    fn new(returning: &'a Returning) -> Self {
        Self { returning, rows: RowBuffer::default() }
    }

    /// Computes RETURNING for a written row.
    fn push(&mut self, row: &[Datum], env: &Env) -> Result<(), Failure> {
        let Returning { exprs, asked } = self.returning;
        if asked.is_some() {
            let number = Datum::Int(self.rows.rows.len() as i64);
            self.rows.push([row, &[number]].concat())?;
        } else if !exprs.is_empty() {
            self.rows.push(compute(exprs, row, env)?)?;
        }
        Ok(())
    }

    fn end(self, run: &mut Run<'_>) -> Result<Vec<Vec<Datum>>, Failure> {
        match &self.returning.asked {
            Some(asked) => run.ask(asked, self.rows.rows),
            None => Ok(self.rows.rows),
        }
    }
}

/// Whether rows may be computed before the preceding rows are written. They may not if both steps
/// draw from state of the statement, such as sequence numbers, because the order of draws is
/// visible.
fn may_be_made_ahead(insert: &Insert) -> bool {
    let then = match &insert.on_conflict {
        OnConflict::Update { asked: Some(_), .. } => return false,
        OnConflict::Update { assignments, filter, .. } => {
            assignments.iter().map(|(_, value)| value).chain(filter).collect()
        }
        OnConflict::Fail | OnConflict::Skip { .. } => Vec::new(),
    };
    let mut then = then.into_iter().chain(&insert.returning.exprs);
    insert.columns.iter().all(is_calm) || then.all(is_calm)
}

/// Returns the key of the row that conflicts with a new one, if the statement has ON CONFLICT.
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

fn read(insert: &Insert, key: &Key, cx: &mut dyn Context) -> Result<Vec<Datum>, Failure> {
    let table = &insert.targets.own().table;
    let bytes = cx.get(table.id, key)?;
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

/// Checks a row against the check options of the views that it was written through.
fn check_view(
    checks: &[ViewCheck],
    targets: &Targets,
    row: &[Datum],
    env: &Env,
) -> Result<(), SqlError> {
    for ViewCheck { view, condition } in checks {
        if !condition.is_true(row, env)? {
            let message = format!("new row violates check option for view \"{view}\"");
            let detail = failing_row(&targets.own().table, row, env);
            return Err(SqlError::new(code::CHECK_OPTION, message).with_detail(detail));
        }
    }
    Ok(())
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

/// A row followed by the values of the rows joined to it.
fn with<'r>(row: &'r [Datum], others: &[Datum]) -> Cow<'r, [Datum]> {
    if others.is_empty() { Cow::Borrowed(row) } else { Cow::Owned([row, others].concat()) }
}

/// A row to write: its key, its values, and the values of the rows joined to it.
type Found = (Key, Vec<Datum>, Vec<Datum>);

/// Returns the target rows that a query found, each once.
fn found_by(
    joined: &Joined,
    width: usize,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Vec<Found>, Failure> {
    let mut known = BTreeSet::new();
    let mut all = Vec::new();
    let (rows, _reservation) = query::run(&joined.rows, env, cx)?;
    for mut row in rows {
        let others = row.split_off(width);
        let Datum::Bytea(key) = &others[0] else { unreachable!("a row has a key") };
        let key = Key::from(&key[..]);
        // A row that joins with several others is changed only once.
        if known.insert(key.clone()) {
            all.push((key, row, others));
        }
    }
    Ok(all)
}
