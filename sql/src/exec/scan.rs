//! Reading the rows that an access names.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use pangea_core::ids::TableId;
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Scan};
use pangea_core::value::Value;

use crate::catalog::Table;
use crate::error::{Failure, SqlError, code};
use crate::explain::profile::{Step, Watch};
use crate::expr::{Env, Expr};
use crate::plan::access::{Access, Place};
use crate::types::datum::Datum;

/// So many entries of an index are read at first, and twice as many each time.
const ENTRIES_FIRST: usize = 8;
/// But no more than these.
const ENTRIES_MAX: usize = 1_024;

/// And no more than so many bytes of rows.
const BYTES_MAX: usize = 1 << 20;

/// What is done with each row; it says whether to go on.
pub(super) type OnRow<'a> = dyn FnMut(&[u8], Vec<Datum>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Visits the rows that an access names and a condition leaves, in order.
pub(super) fn rows(
    access: &Access,
    filter: Option<&Expr>,
    env: &Env,
    cx: &mut dyn Context,
    on_row: &mut OnRow<'_>,
) -> Result<(), Failure> {
    let table = &access.table;
    let mut visit = |key: &[u8], value: &[u8]| -> Result<ControlFlow<()>, Failure> {
        let row = table.decode_row(value)?;
        env.profile.iter().for_each(|profile| profile.on_visit());
        match filter {
            Some(filter) if !filter.is_true(&row, env)? => Ok(ControlFlow::Continue(())),
            _ => on_row(key, row),
        }
    };
    let is_index = access.path.index.is_some();
    for place in access.places(env)? {
        let flow = match place {
            Place::Point(key) if is_index => match cx.get(access.path.store, &key)? {
                Some(row_key) => by_entry(table, &row_key, cx, &mut visit)?,
                None => ControlFlow::Continue(()),
            },
            Place::Point(key) => match cx.get(table.id, &key)? {
                Some(value) => visit(&key, &value)?,
                None => ControlFlow::Continue(()),
            },
            Place::Range(range) if is_index => by_entries(access, range, cx, &mut visit)?,
            Place::Range(range) => {
                let mut outcome = Ok(ControlFlow::Continue(()));
                let scan = Scan { table: table.id, range, direction: access.direction };
                cx.scan(&scan, &mut |key, value| {
                    outcome = visit(key, value);
                    match outcome {
                        Ok(flow) => flow,
                        Err(_) => ControlFlow::Break(()),
                    }
                })?;
                outcome?
            }
        };
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// What is done with a row as it is kept.
type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Failure> + 'a;

/// Visits the row that an entry of an index leads to.
fn by_entry(
    table: &Table,
    row_key: &[u8],
    cx: &mut dyn Context,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, Failure> {
    let Some(value) = cx.get(table.id, row_key)? else {
        return Err(leads_nowhere().into());
    };
    visit(row_key, &value)
}

/// Visits the rows that the entries in a range lead to, some entries at a time: few at first, for
/// what is read is held to be so when the transaction commits.
fn by_entries(
    access: &Access,
    mut range: KeyRange,
    cx: &mut dyn Context,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, Failure> {
    let mut most = ENTRIES_FIRST;
    loop {
        let mut entries: Vec<(Key, Value)> = Vec::with_capacity(most);
        let (table, direction) = (access.path.store, access.direction);
        let scan = Scan { table, range: range.clone(), direction };
        cx.scan(&scan, &mut |key, row_key| {
            entries.push((Key::from(key), row_key.clone()));
            if entries.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let is_last = entries.len() < most;
        let rest = entries.last().and_then(|(last, _)| after(range, last, direction));
        for (_, row_key) in &entries {
            if by_entry(&access.table, row_key, cx, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        match rest.filter(|_| !is_last) {
            Some(rest) => range = rest,
            None => break,
        }
        most = (most * 2).min(ENTRIES_MAX);
    }
    Ok(ControlFlow::Continue(()))
}

/// The rows that an access names and a condition leaves, with their keys.
pub(super) fn collect(
    access: &Access,
    filter: Option<&Expr>,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Vec<(Key, Vec<Datum>)>, Failure> {
    let mut found = Vec::new();
    let mut bytes = 0;
    let mut watch = Watch::start(env.profile.as_ref(), Step::Scan);
    rows(access, filter, env, cx, &mut |key, row| {
        bytes += key.len() + row.iter().map(Datum::size).sum::<usize>();
        super::check_size(found.len() + 1, bytes)?;
        found.push((Key::from(key), row));
        watch.on_row();
        Ok(ControlFlow::Continue(()))
    })?;
    watch.end();
    Ok(found)
}

/// What is done with each row.
type OnFound<'a> = dyn FnMut(&[u8], Vec<Datum>) -> Result<(), Failure> + 'a;

/// A reading of the rows that accesses name, some at a time.
#[derive(Debug)]
pub(crate) struct Cursor {
    access: Access,
    /// What is left, the next one first.
    places: VecDeque<Place>,
}

impl Cursor {
    pub(crate) fn new(access: Access, env: &Env) -> Result<Self, SqlError> {
        let places = access.places(env)?.into();
        Ok(Self { access, places })
    }

    /// One of all rows that several accesses by one path name; nothing where there is no access.
    pub(crate) fn of_all(accesses: Vec<Access>, env: &Env) -> Result<Option<Self>, SqlError> {
        let mut places = Vec::new();
        for access in &accesses {
            places.extend(access.places(env)?);
        }
        places.sort();
        places.dedup();
        let access = accesses.into_iter().next();
        Ok(access.map(|access| Self { access, places: places.into() }))
    }

    /// Visits so many more rows, of which a condition leaves some. Whether that were the last.
    pub(crate) fn fill(
        &mut self,
        filter: Option<&Expr>,
        most: usize,
        env: &Env,
        cx: &mut dyn Context,
        on_row: &mut OnFound<'_>,
    ) -> Result<bool, Failure> {
        let mut visited = 0;
        let table = self.access.table.clone();
        let mut visit = |key: &[u8], value: &[u8]| -> Result<(), Failure> {
            let row = table.decode_row(value)?;
            match filter {
                Some(filter) if !filter.is_true(&row, env)? => Ok(()),
                _ => on_row(key, row),
            }
        };
        let is_index = self.access.path.index.is_some();
        while visited < most
            && let Some(place) = self.places.pop_front()
        {
            let (range, key) = match place {
                Place::Range(range) => (range, None),
                Place::Point(key) => (KeyRange::all(), Some(key)),
            };
            let (store, direction) = (self.access.path.store, self.access.direction);
            let mut found: Vec<(Key, Value)> = Vec::new();
            let wanted = most - visited;
            match key {
                Some(key) => found.extend(cx.get(store, &key)?.map(|value| (key, value))),
                None => {
                    let scan = Scan { table: store, range: range.clone(), direction };
                    let mut bytes = 0;
                    let mut is_cut = false;
                    cx.scan(&scan, &mut |key, value| {
                        found.push((Key::from(key), value.clone()));
                        bytes += value.len();
                        is_cut = found.len() >= wanted || bytes >= BYTES_MAX;
                        if is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })?;
                    if is_cut {
                        visited = most;
                    }
                    if is_cut
                        && let Some((last, _)) = found.last()
                        && let Some(rest) = after(range, last, direction)
                    {
                        self.places.push_front(Place::Range(rest));
                    }
                }
            }
            visited += found.len().max(1);
            for (key, value) in found {
                match is_index {
                    false => visit(&key, &value)?,
                    true => {
                        let row = cx.get(table.id, &value)?.ok_or_else(leads_nowhere)?;
                        visit(&value, &row)?;
                    }
                }
            }
        }
        Ok(self.places.is_empty())
    }
}

/// What of a range is left behind a key.
fn after(mut range: KeyRange, last: &Key, direction: Direction) -> Option<KeyRange> {
    match direction {
        Direction::Forward => range.start = [last.as_bytes(), &[0][..]].concat(),
        Direction::Reverse => range.end = Some(last.to_vec()),
    }
    (!range.is_empty()).then_some(range)
}

fn leads_nowhere() -> SqlError {
    SqlError::new(code::DATA_CORRUPTED, "an index entry leads to no row")
}

/// What is done with some rows at a time, as they are kept.
type OnChunk<'a> = dyn FnMut(Vec<(Key, Value)>, &mut dyn Context) -> Result<(), Failure> + 'a;

/// Visits all that is in a range of a table of the store, some rows at a time.
pub(super) fn chunks(
    table: TableId,
    mut range: KeyRange,
    cx: &mut dyn Context,
    on_chunk: &mut OnChunk<'_>,
) -> Result<(), Failure> {
    loop {
        let mut rows = Vec::new();
        let scan = Scan { table, range: range.clone(), direction: Direction::Forward };
        cx.scan(&scan, &mut |key, value| {
            rows.push((Key::from(key), value.clone()));
            if rows.len() < ENTRIES_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        let Some((last, _)) = rows.last() else { return Ok(()) };
        range.start = [last, &[0][..]].concat();
        on_chunk(rows, cx)?;
    }
}
