//! Writing rows: maintains index entries and enforces constraints.
//!
//! ```text
//!   statement --> old index entries are deleted --> new ones are written, unique --> foreign keys:
//!   actions on referencing rows, until none is left; then checks
//! ```
//!
//! Unique keys are enforced at the end of a row's change. For UPDATE they are enforced at the end
//! of the statement, whatever the order of the rows. Foreign keys are enforced at the end of the
//! statement.

use std::collections::{BTreeSet, VecDeque};

use pangea_core::ids::TableId;
use pangea_core::key::{Key, KeyRange};
use pangea_core::txn::Context;
use pangea_core::value::Value;

use super::{alter, check_size, prefetch, scan};
use crate::access::Place;
use crate::access::path::Path;
use crate::catalog::{Action, ForeignKey, QualifiedName, Table};
use crate::conflict::shown_key;
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::guarded::{Hold, guarding};
use crate::plan::Checked;
use crate::plan::target::{self, Child, Parent, Target, Targets};
use crate::rows;
use crate::types::datum::Datum;
use crate::types::text;
use crate::vocabulary::deferred::Deferred;

/// A row with its key.
type Row = (Key, Vec<Datum>);

/// Writes rows of a statement's tables.
pub(super) struct Writer<'a> {
    targets: &'a Targets,
    env: &'a Env,
    cx: &'a mut dyn Context,
    pending: &'a mut Pending,
}

/// Changes for which foreign keys have not been processed.
#[derive(Default)]
pub(super) struct Pending {
    changes: VecDeque<Change>,
    /// Number and size in bytes of the changed rows.
    rows: usize,
    bytes: usize,
}

/// An insertion, deletion or change of a row.
struct Change {
    target: usize,
    old: Option<Vec<Datum>>,
    new: Option<Vec<Datum>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        targets: &'a Targets,
        env: &'a Env,
        cx: &'a mut dyn Context,
        pending: &'a mut Pending,
    ) -> Self {
        Self { targets, env, cx, pending }
    }

    /// Announces the lookups of an insertion of rows.
    pub(super) fn name(&mut self, at: usize, rows: &[(Key, Vec<Datum>)]) {
        prefetch::name(&prefetch::of_new(&self.targets.all[at], rows, self.env), self.cx);
    }

    /// Announces the rows that conflict with new ones on a path and will be updated.
    pub(super) fn name_in_the_way(
        &mut self,
        at: usize,
        path: usize,
        rows: &[(Key, Vec<Datum>)],
    ) -> Result<(), Failure> {
        let target = &self.targets.all[at];
        // Conflicts on the primary key are announced already.
        if rows.len() < 2 || target.paths[path].index.is_none() {
            return Ok(());
        }
        let mut named = Vec::new();
        for (key, row) in rows {
            match self.in_the_way(at, path, (key, row)) {
                Ok(found) => named.extend(found.map(|key| (target.table.id, key))),
                Err(Failure::Sql(_)) => {}
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            }
        }
        prefetch::name(&named, self.cx);
        Ok(())
    }

    /// Returns the key of the row that conflicts with a new one on a path.
    pub(super) fn in_the_way(
        &mut self,
        at: usize,
        path: usize,
        (key, row): (&Key, &[Datum]),
    ) -> Result<Option<Key>, Failure> {
        let path = &self.targets.all[at].paths[path];
        let mut look_up =
            |entry: &Key| guarding(self.cx, Hold::Existence, |cx| cx.get(path.store, entry));
        if path.index.is_none() {
            let is_there = !path.parts.is_empty() && look_up(key)?.is_some();
            return Ok(is_there.then(|| key.clone()));
        }
        match path.entry(row, key, self.env)? {
            Some((entry, true)) => {
                let found = look_up(&entry)?;
                Ok(found.map(|row_key| Key::from(&row_key[..])))
            }
            _ => Ok(None),
        }
    }

    /// Inserts a row.
    pub(super) fn insert(&mut self, at: usize, key: Key, row: Vec<Datum>) -> Result<(), Failure> {
        self.link(at, &key, &row, None)?;
        self.note(at, None, Some(row))
    }

    /// Updates rows and returns their new keys.
    pub(super) fn update(
        &mut self,
        at: usize,
        changed: Vec<(Row, Vec<Datum>)>,
    ) -> Result<Vec<Key>, Failure> {
        let target = &self.targets.all[at];
        let mut keys = Vec::with_capacity(changed.len());
        let mut named = Vec::new();
        for ((key, old), new) in &changed {
            let new_key = key_of(target, new)?.unwrap_or_else(|| key.clone());
            self.unlink(at, (key, old), Some((&new_key, new)), &mut named)?;
            keys.push(new_key);
        }
        prefetch::name(&named, self.cx);
        for (((key, old), new), new_key) in changed.into_iter().zip(&keys) {
            self.link(at, new_key, &new, Some((&key, &old)))?;
            self.note(at, Some(old), Some(new))?;
        }
        Ok(keys)
    }

    /// Deletes a row.
    pub(super) fn delete(&mut self, at: usize, (key, old): Row) -> Result<(), Failure> {
        self.unlink(at, (&key, &old), None, &mut Vec::new())?;
        self.note(at, Some(old), None)
    }

    fn note(
        &mut self,
        target: usize,
        old: Option<Vec<Datum>>,
        new: Option<Vec<Datum>>,
    ) -> Result<(), Failure> {
        let concerned = &self.targets.all[target];
        if concerned.parents.is_empty() && concerned.children.is_empty() {
            return Ok(());
        }
        let pending = &mut *self.pending;
        pending.rows += 1;
        pending.bytes +=
            [&old, &new].into_iter().flatten().flatten().map(Datum::size).sum::<usize>();
        check_size(pending.rows, pending.bytes)?;
        pending.changes.push_back(Change { target, old, new });
        Ok(())
    }

    /// Deletes the index entries and the key that a row no longer has. Adds the new ones that have
    /// to be looked up to `named`.
    fn unlink(
        &mut self,
        at: usize,
        (key, old): (&Key, &[Datum]),
        new: Option<(&Key, &[Datum])>,
        named: &mut Vec<(TableId, Key)>,
    ) -> Result<(), Failure> {
        let target = &self.targets.all[at];
        for path in &target.paths[1..] {
            let Some((entry, is_only)) = path.entry(old, key, self.env)? else { continue };
            // An index under construction may not contain this row yet, and may have another row at
            // its entry.
            if is_only && !path.is_ready() {
                let has = guarding(self.cx, Hold::Reads, |cx| cx.get(path.store, &entry))?;
                if has.is_some_and(|row| *row != **key) {
                    continue;
                }
            }
            let kept = new.map(|(key, new)| path.entry(new, key, self.env)).transpose()?.flatten();
            if kept.as_ref().is_none_or(|(kept, _)| *kept != entry) {
                self.cx.delete(path.store, entry)?;
                let only = kept.filter(|(_, is_only)| *is_only);
                named.extend(only.map(|(kept, _)| (path.store, kept)));
            }
        }
        if new.is_none_or(|(new_key, _)| new_key != key) {
            self.cx.delete(target.table.id, key.clone())?;
            named.extend(new.map(|(new_key, _)| (target.table.id, new_key.clone())));
        }
        Ok(())
    }

    /// Writes a row and its index entries. Fails if another row has one of its unique keys.
    fn link(
        &mut self,
        at: usize,
        key: &Key,
        row: &[Datum],
        old: Option<(&Key, &[Datum])>,
    ) -> Result<(), Failure> {
        let target = &self.targets.all[at];
        let has_moved = old.is_none_or(|(old_key, _)| old_key != key);
        let primary = &target.paths[0];
        if has_moved && primary.is_unique() && self.cx.get(primary.store, key)?.is_some() {
            return Err(duplicate(primary, row, self.env)?.into());
        }
        for path in &target.paths[1..] {
            let Some((entry, is_only)) = path.entry(row, key, self.env)? else { continue };
            let before = old.map(|(key, old)| path.entry(old, key, self.env)).transpose()?;
            let had_it = before.flatten().is_some_and(|(before, _)| before == entry);
            if is_only && !had_it && self.cx.get(path.store, &entry)?.is_some() {
                return Err(duplicate(path, row, self.env)?.into());
            }
            if !had_it || has_moved {
                self.cx.put(path.store, entry, Value::copy_from(key))?;
            }
        }
        let mut bytes = Vec::with_capacity(16 + row.len() * 8);
        rows::encode_stored(row, &mut bytes);
        Ok(self.cx.put(target.table.id, key.clone(), Value::from(bytes))?)
    }

    /// Runs foreign key actions at the end of the statement. Returns all changes.
    fn act_all(&mut self) -> Result<Vec<Change>, Failure> {
        let mut seen = Vec::new();
        while let Some(change) = self.pending.changes.pop_front() {
            for child in &self.targets.all[change.target].children {
                self.act(child, &change)?;
            }
            seen.push(change);
        }
        Ok(seen)
    }

    /// Checks foreign keys for all changes.
    fn check_all(&mut self, seen: &[Change]) -> Result<(), Failure> {
        self.name_parents(seen)?;
        for change in seen {
            let target = &self.targets.all[change.target];
            self.check_parents(target, change)?;
            for child in &target.children {
                self.check_child(target, child, change)?;
            }
        }
        Ok(())
    }

    /// Applies the foreign key action to the rows that reference a row that was deleted or changed
    /// its key.
    fn act(&mut self, child: &Child, change: &Change) -> Result<(), Failure> {
        let Some(old) = lost_key(child, change) else { return Ok(()) };
        let action = if change.new.is_some() { child.key.on_update } else { child.key.on_delete };
        let Some(at) = child.target else { return Ok(()) };
        if matches!(action, Action::NoAction | Action::Restrict) {
            return Ok(());
        }
        let env = self.env.with_params(old);
        let found = guarding(self.cx, Hold::Reads, |cx| {
            scan::collect(&child.access, Some(&child.filter), &env, cx)
        })?;
        let mut changed = Vec::with_capacity(found.len());
        for (key, row) in found {
            let mut new = row.clone();
            for (number, &column) in child.key.columns.iter().enumerate() {
                let parent_column = child.key.parent_columns[number];
                new[column] = match (action, &change.new) {
                    (Action::Cascade, Some(parent)) => parent[parent_column].clone(),
                    (Action::SetDefault, _) => child.defaults[number].eval(&[], self.env)?,
                    _ => Datum::Null,
                };
            }
            if action == Action::Cascade && change.new.is_none() {
                self.delete(at, (key, row))?;
            } else {
                complete(&self.targets.all[at], &mut new, self.env)?;
                changed.push(((key, row), new));
            }
        }
        self.update(at, changed).map(drop)
    }

    /// Announces the rows that new rows reference.
    fn name_parents(&mut self, changes: &[Change]) -> Result<(), Failure> {
        if changes.len() < 2 {
            return Ok(());
        }
        let own = self.env;
        let mut env = own.with_params(Vec::new());
        for (at, target) in self.targets.all.iter().enumerate() {
            let changes = changes.iter().filter(|change| change.target == at);
            let parents = target.parents.iter().filter(|parent| !defers(&parent.key, own));
            for Parent { key, access, .. } in parents {
                let mut points = BTreeSet::new();
                for change in changes.clone() {
                    let Some(values) = referred_to(key, change) else { continue };
                    env.params = values;
                    let places = access.places(&env).unwrap_or_default();
                    points.extend(places.iter().filter_map(Place::as_point).cloned());
                }
                prefetch::name_points(access, points, self.cx)?;
            }
        }
        Ok(())
    }

    /// Checks that the rows that a new row references exist.
    fn check_parents(&mut self, target: &Target, change: &Change) -> Result<(), Failure> {
        for parent in &target.parents {
            let Some(values) = referred_to(&parent.key, change) else { continue };
            let nulls = values.iter().filter(|value| value.is_null()).count();
            let (table, key) = (&target.table.name, &parent.key);
            let name = &key.name;
            let message = format!(
                "insert or update on table \"{table}\" violates foreign key constraint \"{name}\""
            );
            let error = SqlError::new(code::FOREIGN_KEY, message);
            if nulls > 0 {
                let detail = "MATCH FULL does not allow mixing of null and nonnull key values.";
                return Err(error.with_detail(detail).into());
            }
            let shown = shown(&target.table, &key.columns, &values, self.env);
            let detail = format!("{shown} is not present in table \"{}\".", key.parent);
            let error = error.with_detail(detail);
            if self.is_deferred(table, key, &values, &error) {
                continue;
            }
            let env = self.env.with_params(values);
            if !scan::exists((&parent.access, &parent.filter), Hold::Existence, &env, self.cx)? {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Defers the check of a foreign key to COMMIT, if the constraint is deferred. Returns whether
    /// it did.
    fn is_deferred(
        &self,
        child: &QualifiedName,
        key: &ForeignKey,
        values: &[Datum],
        error: &SqlError,
    ) -> bool {
        let Some(deferred) = self.env.deferred.as_ref().filter(|_| defers(key, self.env)) else {
            return false;
        };
        let (child, key, values) = (child.clone(), key.name.clone(), values.to_vec());
        deferred.borrow_mut().push(Deferred { child, key, values, error: error.clone() });
        true
    }

    /// Checks that no row references a deleted key.
    fn check_child(
        &mut self,
        target: &Target,
        child: &Child,
        change: &Change,
    ) -> Result<(), Failure> {
        let Some(old) = lost_key(child, change) else { return Ok(()) };
        let shown = shown(&target.table, &child.key.parent_columns, &old, self.env);
        let env = self.env.with_params(old.clone());
        if !scan::exists((&child.access, &child.filter), Hold::Reads, &env, self.cx)? {
            return Ok(());
        }
        // Another row may have the key by now.
        let is_restricted = child.key.on_delete == Action::Restrict;
        let (access, filter) = &child.back;
        if !is_restricted && scan::exists((access, filter), Hold::Existence, &env, self.cx)? {
            return Ok(());
        }
        let (name, table) = (&child.key.name, &child.table.name);
        let message = format!(
            "update or delete on table \"{}\" violates foreign key constraint \"{name}\" on table \
             \"{table}\"",
            target.table.name
        );
        let detail = format!("{shown} is still referenced from table \"{table}\".");
        let error = SqlError::new(code::FOREIGN_KEY, message).with_detail(detail);
        if !is_restricted && self.is_deferred(table, &child.key, &old, &error) {
            return Ok(());
        }
        Err(error.into())
    }
}

/// Ends a statement: runs foreign key actions and then checks for everything that its steps have
/// written.
pub(super) fn finish(
    steps: Vec<(&Targets, Pending)>,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let mut acted = Vec::with_capacity(steps.len());
    for (targets, mut pending) in steps {
        let seen = Writer::new(targets, env, cx, &mut pending).act_all();
        acted.push((targets, seen.map_err(|failure| failure.in_table(&targets.own().table.name))?));
    }
    for (targets, seen) in &acted {
        let checked = Writer::new(targets, env, cx, &mut Pending::default()).check_all(seen);
        checked.map_err(|failure| failure.in_table(&targets.own().table.name))?;
    }
    Ok(())
}

/// Completes a computed row and returns it with its key. Without a primary key the key is hidden
/// and derived from the row's number in the statement.
pub(super) fn made(
    target: &Target,
    mut row: Vec<Datum>,
    number: usize,
    env: &Env,
) -> Result<Row, Failure> {
    complete(target, &mut row, env)?;
    let key = key_of(target, &row)?.unwrap_or_else(|| hidden_key(number, env));
    Ok((key, row))
}

/// Computes generated columns. Checks NOT NULL and CHECK constraints.
pub(super) fn complete(target: &Target, row: &mut [Datum], env: &Env) -> Result<(), Failure> {
    for (column, expr) in &target.generated {
        row[*column] = expr.eval(row, env)?;
    }
    check_not_null(&target.table, row, env)?;
    for (check, condition) in target.table.checks.iter().zip(&target.checks) {
        // Unknown is no violation.
        if condition.eval(row, env)?.truth() == Some(false) {
            let message = format!(
                "new row for relation \"{}\" violates check constraint \"{}\"",
                target.table.name, check.name
            );
            let detail = failing_row(&target.table, row, env);
            return Err(SqlError::new(code::CHECK, message).with_detail(detail).into());
        }
    }
    Ok(())
}

/// Returns the key of a row, or `None` if the table has no primary key.
fn key_of(target: &Target, row: &[Datum]) -> Result<Option<Key>, SqlError> {
    let path = &target.paths[0];
    if path.parts.is_empty() {
        return Ok(None);
    }
    path.row_key(target.table.primary_key.iter().map(|&column| &row[column])).map(Some)
}

/// Whether the check of a foreign key is deferred to COMMIT.
fn defers(key: &ForeignKey, env: &Env) -> bool {
    key.deferral.1 && env.deferred.is_some()
}

/// Returns the foreign key values of a new or changed row. `None` if they need no check.
fn referred_to(key: &ForeignKey, change: &Change) -> Option<Vec<Datum>> {
    let values = pick(change.new.as_ref()?, &key.columns);
    let is_same = change.old.as_ref().is_some_and(|old| pick(old, &key.columns) == values);
    let nulls = values.iter().filter(|value| value.is_null()).count();
    (!is_same && nulls < values.len() && (nulls == 0 || key.is_full)).then_some(values)
}

/// Returns the referenced key that a change removed, unless it contains NULL.
fn lost_key(child: &Child, change: &Change) -> Option<Vec<Datum>> {
    let old = pick(change.old.as_ref()?, &child.key.parent_columns);
    let is_kept =
        change.new.as_ref().is_some_and(|new| pick(new, &child.key.parent_columns) == old);
    (!is_kept && !old.iter().any(Datum::is_null)).then_some(old)
}

fn pick(row: &[Datum], columns: &[usize]) -> Vec<Datum> {
    columns.iter().map(|&column| row[column].clone()).collect()
}

/// Checks the deferred foreign keys of a transaction.
pub(crate) fn check_deferred(
    all: &[Deferred],
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    for Deferred { child, key, values, error } in all {
        // The constraint may have been dropped since.
        let sides = guarding(cx, Hold::Reads, |cx| target::both_sides(child, key, cx))?;
        let Some((child, parent)) = sides else { continue };
        let env = env.with_params(values.clone());
        if scan::exists((&child.0, &child.1), Hold::Reads, &env, cx)?
            && !scan::exists((&parent.0, &parent.1), Hold::Existence, &env, cx)?
        {
            return Err(error.clone().into());
        }
    }
    Ok(())
}

/// Returns the key of a row in a table without a primary key: statement time, random seed, and
/// number in the statement. Rows therefore sort approximately in insertion order.
pub(super) fn hidden_key(number: usize, env: &Env) -> Key {
    let mut bytes = Vec::with_capacity(20);
    bytes.extend((env.statement_now as u64 ^ 1 << 63).to_be_bytes());
    bytes.extend(env.row_seed.to_be_bytes());
    bytes.extend((number as u32).to_be_bytes());
    Key::from(&bytes[..])
}

/// Checks all rows of a table against new constraints.
pub(super) fn validate(
    new: &Checked,
    table: &Table,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let Some(targets) = &new.targets else { return Ok(()) };
    let own = targets.own();
    scan::chunks(table.id, KeyRange::all(), cx, &mut |rows, cx| {
        let mut pending = Pending::default();
        let mut writer = Writer::new(targets, env, cx, &mut pending);
        let mut changes = Vec::new();
        for (_, value) in rows {
            let row = table.decode_row(&value)?;
            if let Some(&at) = new.not_null.iter().find(|&&at| row[at].is_null()) {
                return Err(alter::contains_null(table, at).into());
            }
            for &at in &new.checks {
                if own.checks[at].eval(&row, env)?.truth() == Some(false) {
                    let (name, check) = (&table.name, &table.checks[at].name);
                    let message = format!(
                        "check constraint \"{check}\" of relation \"{name}\" is violated by some \
                         row"
                    );
                    return Err(SqlError::new(code::CHECK, message).into());
                }
            }
            if new.has_foreign_keys {
                changes.push(Change { target: 0, old: None, new: Some(row) });
            }
        }
        writer.name_parents(&changes)?;
        changes.iter().try_for_each(|change| writer.check_parents(own, change))
    })
}

fn check_not_null(table: &Table, row: &[Datum], env: &Env) -> Result<(), SqlError> {
    let mut columns = table.columns.iter().zip(row);
    let violated = columns.find(|(column, datum)| column.is_not_null && datum.is_null());
    let Some((column, _)) = violated else { return Ok(()) };
    let detail = failing_row(table, row, env);
    Err(SqlError::null_in_column(&column.name, table.name.name()).with_detail(detail))
}

pub(super) fn failing_row(table: &Table, row: &[Datum], env: &Env) -> String {
    let shown: Vec<String> = table
        .live_columns()
        .map(|(at, column)| match &row[at] {
            Datum::Null => "null".to_owned(),
            datum => text::format(column.ty.base, datum, &env.zone),
        })
        .collect();
    format!("Failing row contains ({}).", shown.join(", "))
}

fn duplicate(path: &Path, row: &[Datum], env: &Env) -> Result<SqlError, SqlError> {
    let detail = format!("{} already exists.", shown_path(path, row, env)?);
    Ok(SqlError::duplicate_key(&path.name).with_detail(detail))
}

/// Formats a row's values of a path as `Key (a, b)=(1, x)`.
pub(super) fn shown_path(path: &Path, row: &[Datum], env: &Env) -> Result<String, SqlError> {
    let values = path.values(row, env)?;
    let names = path.parts.iter().map(|part| part.name.as_str());
    let values = path.parts.iter().map(|part| part.base).zip(&values);
    Ok(shown_key(names, values, &env.zone))
}

/// Formats columns of a table as `Key (a, b)=(1, x)`.
fn shown(table: &Table, columns: &[usize], values: &[Datum], env: &Env) -> String {
    let columns = columns.iter().map(|&at| &table.columns[at]);
    let types = columns.clone().map(|column| column.ty.base);
    shown_key(columns.map(|column| column.name.as_str()), types.zip(values), &env.zone)
}
