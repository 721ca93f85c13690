//! Reading the rows of an access path.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use pangea_core::ids::TableId;
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Scan};
use pangea_core::value::Value;

use super::prefetch;
use crate::access::path::Path;
use crate::access::{Access, Place};
use crate::catalog::Table;
use crate::error::{Failure, SqlError, code};
use crate::expr::{Env, Expr};
use crate::guarded::{Hold, guarding};
use crate::profile::{Step, Watch};
use crate::rows::Columns;
use crate::types::datum::Datum;

/// Number of index entries in the first batch; it doubles with each batch.
const ENTRIES_FIRST: usize = 8;
/// Maximum number of index entries in a batch.
const ENTRIES_MAX: usize = 1_024;

/// Maximum size of the rows of a batch, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// Callback for each row; returns whether to continue.
pub(super) type OnRow<'a> = dyn FnMut(&[u8], Vec<Datum>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Visits the rows of an access that satisfy a condition, in order.
pub(super) fn rows(
    access: &Access,
    filter: Option<&Expr>,
    env: &Env,
    cx: &mut dyn Context,
    on_row: &mut OnRow<'_>,
) -> Result<(), Failure> {
    let table = &access.table;
    let mut visit = |key: &[u8], value: &[u8]| -> Result<ControlFlow<()>, Failure> {
        let row = table.decode_wanted(&access.wanted, value)?;
        env.profile.iter().for_each(|profile| profile.on_visit());
        match filter {
            Some(filter) if !filter.is_true(&row, env)? => Ok(ControlFlow::Continue(())),
            _ => on_row(key, row),
        }
    };
    let is_index = access.path.index.is_some();
    let places = access.places(env)?;
    prefetch::name(&points(access, &places), cx);
    let mut places = places.into_iter().peekable();
    let mut most = ENTRIES_FIRST;
    while let Some(place) = places.next() {
        let flow = match place {
            Place::Point(key) if is_index => {
                let mut entries = vec![key];
                while entries.len() < most
                    && let Some(Place::Point(key)) =
                        places.next_if(|place| matches!(place, Place::Point(_)))
                {
                    entries.push(key);
                }
                most = (most * 2).min(ENTRIES_MAX);
                by_points(access, &entries, cx, &mut visit)?
            }
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

/// Whether a row satisfies a condition, for a constraint.
pub(super) fn exists(
    (access, filter): (&Access, &Expr),
    hold: Hold,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<bool, Failure> {
    let mut is_found = false;
    guarding(cx, hold, |cx| {
        rows(access, Some(filter), env, cx, &mut |_, _| {
            is_found = true;
            Ok(ControlFlow::Break(()))
        })
    })?;
    Ok(is_found)
}

/// Returns the single keys among `places`, to announce them.
fn points(access: &Access, places: &[Place]) -> Vec<(TableId, Key)> {
    if places.len() < 2 {
        return Vec::new();
    }
    let keys = places.iter().filter_map(Place::as_point);
    keys.map(|key| (access.path.store, key.clone())).collect()
}

/// Callback for each encoded row; returns whether to continue.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Failure> + 'a;

/// Visits the row that an index entry refers to.
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

/// Visits the rows that some index entries refer to.
fn by_points(
    access: &Access,
    entries: &[Key],
    cx: &mut dyn Context,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, Failure> {
    let mut found = Vec::with_capacity(entries.len());
    for entry in entries {
        found.extend(cx.get(access.path.store, entry)?);
    }
    by_row_keys(&access.table, &found, cx, visit)
}

/// Visits rows by keys found in an index.
fn by_row_keys(
    table: &Table,
    row_keys: &[Value],
    cx: &mut dyn Context,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, Failure> {
    let named = row_keys.iter().map(|row_key| (table.id, Key::from(&row_key[..])));
    prefetch::name(&named.collect::<Vec<_>>(), cx);
    for row_key in row_keys {
        if by_entry(table, row_key, cx, visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Visits the rows that a range of index entries refers to. Entries are read in batches, small ones
/// at first, because everything that is read is validated when the transaction commits.
fn by_entries(
    access: &Access,
    mut range: KeyRange,
    cx: &mut dyn Context,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, Failure> {
    let mut most = ENTRIES_FIRST;
    loop {
        let mut row_keys: Vec<Value> = Vec::with_capacity(most);
        let mut last = None;
        let (table, direction) = (access.path.store, access.direction);
        let scan = Scan { table, range: range.clone(), direction };
        cx.scan(&scan, &mut |key, row_key| {
            row_keys.push(row_key.clone());
            if row_keys.len() < most {
                return ControlFlow::Continue(());
            }
            last = Some(Key::from(key));
            ControlFlow::Break(())
        })?;
        let rest = last.and_then(|last| after(range, &last, direction));
        if by_row_keys(&access.table, &row_keys, cx, visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        match rest {
            Some(rest) => range = rest,
            None => break,
        }
        most = (most * 2).min(ENTRIES_MAX);
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the rows of an access that satisfy a condition, with their keys.
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

/// A cursor: reads the rows of accesses in batches.
#[derive(Debug)]
pub(crate) struct Cursor {
    table: Arc<Table>,
    path: Arc<Path>,
    direction: Direction,
    wanted: Columns,
    /// Remaining places, in order.
    places: VecDeque<Place>,
    /// Number of index entries in the next batch.
    entries: usize,
}

impl Cursor {
    pub(crate) fn new(access: &Access, env: &Env) -> Result<Self, SqlError> {
        Ok(Self::over(access, access.places(env)?))
    }

    fn over(access: &Access, places: Vec<Place>) -> Self {
        let (table, path) = (access.table.clone(), access.path.clone());
        let (direction, places) = (access.direction, places.into());
        let wanted = access.wanted.clone();
        Self { table, path, direction, wanted, places, entries: ENTRIES_FIRST }
    }

    /// Creates a cursor over all rows of several accesses by one path. `None` if there are no
    /// accesses.
    pub(crate) fn of_all(accesses: &[Access], env: &Env) -> Result<Option<Self>, SqlError> {
        let mut places = Vec::new();
        for access in accesses {
            places.extend(access.places(env)?);
        }
        places.sort();
        places.dedup();
        Ok(accesses.first().map(|access| Self::over(access, places)))
    }

    /// Reads up to `most` more rows and visits those that satisfy the condition. It may stop early.
    /// Returns whether all rows have been read.
    pub(crate) fn fill(
        &mut self,
        filter: Option<&Expr>,
        most: usize,
        env: &Env,
        cx: &mut dyn Context,
        on_row: &mut OnRow<'_>,
    ) -> Result<bool, Failure> {
        let (table, wanted) = (self.table.clone(), self.wanted.clone());
        self.visit(most, cx, &mut |key, value| {
            let row = table.decode_wanted(&wanted, value)?;
            match filter {
                Some(filter) if !filter.is_true(&row, env)? => Ok(ControlFlow::Continue(())),
                _ => on_row(key, row),
            }
        })
    }

    /// Visits up to `most` more encoded rows. It may stop early. Returns whether all rows have been
    /// read.
    pub(crate) fn visit(
        &mut self,
        most: usize,
        cx: &mut dyn Context,
        visit: &mut Visit<'_>,
    ) -> Result<bool, Failure> {
        let table = self.table.clone();
        let is_index = self.path.index.is_some();
        let mut left = Budget { rows: most, bytes: BYTES_MAX };
        while left.is_some()
            && let Some(place) = self.places.pop_front()
        {
            let flow = match place {
                Place::Point(key) => {
                    left.rows -= 1;
                    match cx.get(self.path.store, &key)? {
                        None => ControlFlow::Continue(()),
                        Some(row_key) if is_index => by_entry(&table, &row_key, cx, visit)?,
                        Some(value) => visit(&key, &value)?,
                    }
                }
                Place::Range(range) if is_index => self.entries(range, &mut left, cx, visit)?,
                Place::Range(range) => self.range(range, &mut left, cx, visit)?,
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(self.places.is_empty())
    }

    /// Visits rows of a range of the table while the budget lasts, and re-queues the rest of the
    /// range.
    fn range(
        &mut self,
        range: KeyRange,
        left: &mut Budget,
        cx: &mut dyn Context,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, Failure> {
        let direction = self.direction;
        let scan = Scan { table: self.path.store, range: range.clone(), direction };
        let mut outcome = Ok(ControlFlow::Continue(()));
        let mut last = None;
        cx.scan(&scan, &mut |key, value| {
            left.take(value.len());
            outcome = visit(key, value);
            if matches!(outcome, Ok(ControlFlow::Continue(()))) && left.is_some() {
                return ControlFlow::Continue(());
            }
            last = Some(Key::from(key));
            ControlFlow::Break(())
        })?;
        let rest = last.and_then(|last| after(range, &last, direction));
        if let Some(rest) = rest {
            self.places.push_front(Place::Range(rest));
        }
        outcome
    }

    /// Visits rows that a range of index entries refers to while the budget lasts, and re-queues
    /// the rest of the range.
    fn entries(
        &mut self,
        range: KeyRange,
        left: &mut Budget,
        cx: &mut dyn Context,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, Failure> {
        let direction = self.direction;
        let most = self.entries.min(left.rows);
        self.entries = (self.entries * 2).min(ENTRIES_MAX);
        let mut entries: Vec<(Key, Value)> = Vec::with_capacity(most);
        let scan = Scan { table: self.path.store, range: range.clone(), direction };
        cx.scan(&scan, &mut |key, row_key| {
            entries.push((Key::from(key), row_key.clone()));
            if entries.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let is_last = entries.len() < most;
        for (at, (key, row_key)) in entries.iter().enumerate() {
            let Some(value) = cx.get(self.table.id, row_key)? else {
                return Err(leads_nowhere().into());
            };
            left.take(value.len());
            let flow = visit(row_key, &value)?;
            let is_end = at + 1 == entries.len();
            if flow.is_break() || !left.is_some() || is_end {
                let is_rest = !(is_end && is_last);
                let rest = is_rest.then(|| after(range, key, direction)).flatten();
                if let Some(rest) = rest {
                    self.places.push_front(Place::Range(rest));
                }
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Number of rows that may still be visited, and their maximum size in bytes.
struct Budget {
    rows: usize,
    bytes: usize,
}

impl Budget {
    fn take(&mut self, bytes: usize) {
        self.rows = self.rows.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_some(&self) -> bool {
        self.rows > 0 && self.bytes > 0
    }
}

/// Returns the rest of a range after a key.
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

/// Callback for each chunk of encoded rows.
type OnChunk<'a> = dyn FnMut(Vec<(Key, Value)>, &mut dyn Context) -> Result<(), Failure> + 'a;

/// Visits all rows in a range of a table of the store, in chunks.
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
