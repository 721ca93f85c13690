//! Parallel scans of whole tables in any order, for grouping and sorting.
//!
//! ```text
//!   partitions           0 1 2 3 | 4 5 6 7 | ...     rounds; workers are released in between
//!                        \ | | /
//!   workers              each takes the next partition and has its own state
//!   states               are merged at the end
//! ```
//!
//! A statement that every replica runs scans in order, on one thread, because its result must be
//! the same everywhere. The same holds for a transaction whose reads are recorded or that has
//! written.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pangea_core::key::{Direction, Key};
use pangea_core::txn::{Context, Parts, Taken};
use pangea_core::value::Value;

use crate::access::Access;
use crate::error::{Failure, SqlError};
use crate::expr::{Env, Expr};
use crate::plan::Source;
use crate::result_memory::ResultReservation;
use crate::rows::Columns;
use crate::settings::Values;
use crate::settings::units::parse_bytes;
use crate::types::datum::Datum;

/// Approximate number of rows that each worker reads in a round; takes some 10 ms.
const ROUND_ROWS: usize = 1 << 16;

/// Approximate size of these rows, in bytes.
const ROUND_BYTES: usize = 8 << 20;

/// Number of rows that a worker reads between two checks for cancellation.
const ROWS_PER_LOOK: usize = 256;

/// Maximum size of the rows that are collected for ordering, in bytes.
const GATHERED_BYTES_MAX: usize = 8 << 20;

/// Rows of a table, in key order.
#[derive(Debug)]
pub(crate) struct Found {
    pub rows: std::vec::IntoIter<(Key, Value)>,
    _reservation: ResultReservation,
}

/// A parallel scan of a table.
pub(crate) struct ParallelScan {
    parts: Arc<dyn Parts>,
    workers: usize,
    round: usize,
}

/// The state of one thread.
struct Worker<S> {
    env: Env,
    taken: Taken,
    state: S,
    failure: Option<Failure>,
}

/// Callback for each row. Its arguments are the worker's state, its environment, the key and the
/// value.
pub(crate) type OnRow<'a, S> =
    dyn Fn(&mut S, &Env, &[u8], &[u8]) -> Result<(), SqlError> + Sync + 'a;

impl ParallelScan {
    /// Plans a parallel scan of a source. `None` unless the source is a whole table and `exprs`
    /// allow its rows to arrive in any order.
    pub(super) fn of<'e>(
        source: &Source,
        exprs: impl IntoIterator<Item = &'e Expr>,
        env: &Env,
        cx: &dyn Context,
    ) -> Option<Self> {
        let Source::Table(access) = source else { return None };
        if access.direction != Direction::Forward || !exprs.into_iter().all(is_calm) {
            return None;
        }
        Self::of_access(access, env, cx)
    }

    /// Plans a parallel scan of an access. `None` unless it reads a whole table that is large
    /// enough.
    pub(crate) fn of_access(access: &Access, env: &Env, cx: &dyn Context) -> Option<Self> {
        if !access.is_whole_table() {
            return None;
        }
        let settings = env.settings.as_ref()?;
        let parts = cx.parts(access.table.id)?;
        let bytes_min = parse_bytes(value(settings, "min_parallel_table_scan_size")?)?;
        if (parts.bytes() as u64) < bytes_min {
            return None;
        }
        let helpers: usize = value(settings, "max_parallel_workers_per_gather")?.parse().ok()?;
        let workers = parts.pool().workers().min(helpers.saturating_add(1));
        let rows = cx.estimate(access.table.id).unwrap_or(0);
        let by_rows = (ROUND_ROWS * workers * parts.count()).div_ceil(rows.max(1));
        let by_bytes = (ROUND_BYTES * workers * parts.count()).div_ceil(parts.bytes().max(1));
        Some(Self { round: by_rows.min(by_bytes).max(workers), parts, workers })
    }

    /// Returns the end of the round that begins at partition `top_k`.
    pub(crate) fn upto(&self, first: usize) -> usize {
        (first + self.round).min(self.count())
    }

    /// The number of partitions.
    pub(crate) fn count(&self) -> usize {
        self.parts.count()
    }

    /// Counts the rows of the table.
    pub(super) fn rows(&self, env: &Env, cx: &mut dyn Context) -> Result<usize, Failure> {
        let total = AtomicUsize::new(0);
        cx.look()?;
        self.parts.pool().run(self.count(), &|part| {
            total.fetch_add(self.parts.rows(part), Ordering::Relaxed);
        });
        let total = total.into_inner();
        env.profile.iter().for_each(|profile| profile.on_visits(total));
        Ok(total)
    }

    /// Scans all partitions and returns the states of the workers.
    pub(super) fn read<S: Send>(
        &self,
        env: &Env,
        cx: &mut dyn Context,
        new: impl Fn() -> S,
        on_row: &OnRow<'_, S>,
    ) -> Result<Vec<S>, Failure> {
        let mut states: Vec<S> = (0..self.workers).map(|_| new()).collect();
        let mut first = 0;
        while first < self.count() {
            let upto = self.upto(first);
            states = self.round_of(first..upto, states, env, cx, on_row)?;
            first = upto;
        }
        Ok(states)
    }

    /// Scans some partitions, each worker with its state.
    pub(crate) fn round_of<S: Send>(
        &self,
        parts: std::ops::Range<usize>,
        states: Vec<S>,
        env: &Env,
        cx: &mut dyn Context,
        on_row: &OnRow<'_, S>,
    ) -> Result<Vec<S>, Failure> {
        cx.look()?;
        let worker = |state| {
            Mutex::new(Worker { env: env.fork(), taken: Taken::default(), state, failure: None })
        };
        let workers: Vec<_> = states.into_iter().map(worker).collect();
        let next = AtomicUsize::new(parts.start);
        let has_failed = AtomicBool::new(false);
        self.parts.pool().run(workers.len(), &|at| {
            let mut worker = workers[at].lock().unwrap_or_else(PoisonError::into_inner);
            let Worker { env, taken, state, failure } = &mut *worker;
            while !has_failed.load(Ordering::Relaxed) {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts.end {
                    return;
                }
                taken.clear();
                self.parts.take(part, taken);
                env.profile.iter().for_each(|profile| profile.on_visits(taken.len()));
                let on_row = |key: &[u8], value: &[u8]| on_row(state, env, key, value);
                if let Err(error) = self.each(taken, on_row) {
                    *failure = Some(error);
                    has_failed.store(true, Ordering::Relaxed);
                }
            }
        });
        let mut states = Vec::with_capacity(workers.len());
        for worker in workers {
            let worker = worker.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(failure) = worker.failure {
                return Err(failure);
            }
            states.push(worker.state);
        }
        Ok(states)
    }

    /// Visits rows, with a check for cancellation every few rows.
    fn each(
        &self,
        taken: &Taken,
        mut on_row: impl FnMut(&[u8], &[u8]) -> Result<(), SqlError>,
    ) -> Result<(), Failure> {
        for (at, (key, value)) in taken.iter().enumerate() {
            if at.is_multiple_of(ROWS_PER_LOOK) {
                self.parts.look()?;
            }
            on_row(key, value)?;
        }
        Ok(())
    }

    /// Returns the encoded rows that satisfy a condition, in key order, as a scan would. `None` if
    /// there are too many to collect.
    pub(crate) fn filtered(
        &self,
        access: &Access,
        filter: &Expr,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Option<Found>, Failure> {
        if !is_calm(filter) {
            return Ok(None);
        }
        let looks = Columns::these(filter.columns());
        let (table, gathered) = (&access.table, AtomicUsize::new(0));
        let is_too_much = || gathered.load(Ordering::Relaxed) > GATHERED_BYTES_MAX;
        type Gathering = (Vec<(Key, Value)>, Vec<Datum>);
        let on_row = |(found, row): &mut Gathering, env: &Env, key: &[u8], value: &[u8]| {
            if is_too_much() {
                return Ok(());
            }
            table.decode_to(&looks, value, row)?;
            if filter.is_true(row, env)? {
                gathered.fetch_add(key.len() + value.len() + 64, Ordering::Relaxed);
                found.push((Key::from(key), Value::from(value)));
            }
            Ok(())
        };
        let mut states: Vec<_> = (0..self.workers).map(|_| (Vec::new(), Vec::new())).collect();
        let mut first = 0;
        while first < self.count() {
            let upto = self.upto(first);
            states = self.round_of(first..upto, states, env, cx, &on_row)?;
            if is_too_much() {
                return Ok(None);
            }
            first = upto;
        }
        let mut reservation = ResultReservation::of(env.results.as_ref());
        reservation.take(gathered.into_inner())?;
        let mut rows: Vec<(Key, Value)> = states.into_iter().flat_map(|(found, _)| found).collect();
        rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Some(Found { rows: rows.into_iter(), _reservation: reservation }))
    }

    /// The number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }
}

fn value<'a>(settings: &'a Values, name: &str) -> Option<&'a str> {
    settings.get(name).map(String::as_str)
}

/// Whether an expression has no side effects and does not depend on earlier evaluations.
pub(super) fn is_calm(expr: &Expr) -> bool {
    expr.all(&mut |part| match part {
        Expr::Sequence(..) | Expr::Subquery(_) | Expr::Outer(..) => false,
        Expr::Call(function, _) => !function.is_volatile(),
        _ => true,
    })
}
