//! Whole tables read with all cores, in no order: for groups, and for rows that are sorted.
//!
//! ```text
//!   parts of the table   0 1 2 3 | 4 5 6 7 | ...     a round, beyond which nothing is held
//!                        \ | | /
//!   workers              each takes the next part, and has a state of its own
//!   states               come together at the end
//! ```
//!
//! A statement that every replica runs reads in order, on one thread: what it comes to must be the
//! same everywhere. So does a transaction whose reads are recorded or that has written.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pangea_core::key::{Direction, Key};
use pangea_core::txn::{Context, Parts, Taken};
use pangea_core::value::Value;

use crate::error::{Failure, SqlError};
use crate::expr::{Env, Expr};
use crate::held::Held;
use crate::plan::Source;
use crate::plan::access::Access;
use crate::rows::Columns;
use crate::session::settings::Values;
use crate::session::units::parse_bytes;
use crate::types::datum::Datum;

/// So many rows each worker reads in a round, about: some 10 ms.
const ROUND_ROWS: usize = 1 << 16;

/// And so many bytes of them.
const ROUND_BYTES: usize = 8 << 20;

/// How many rows a worker reads between two looks at whether the statement must end.
const ROWS_PER_LOOK: usize = 256;

/// What rows may take that are gathered to be put in order.
const GATHERED_BYTES_MAX: usize = 8 << 20;

/// Rows of a table in the order of their keys.
#[derive(Debug)]
pub(crate) struct Found {
    pub rows: std::vec::IntoIter<(Key, Value)>,
    _held: Held,
}

/// A table that is read whole.
pub(crate) struct Whole {
    parts: Arc<dyn Parts>,
    workers: usize,
    round: usize,
}

/// What one thread does.
struct Worker<S> {
    env: Env,
    taken: Taken,
    state: S,
    failure: Option<Failure>,
}

/// What is done with a row: with what the worker has, its environment, the key and the value.
pub(crate) type OnRow<'a, S> =
    dyn Fn(&mut S, &Env, &[u8], &[u8]) -> Result<(), SqlError> + Sync + 'a;

impl Whole {
    /// The table of a source, where all of it is read and what is computed of its rows lets them
    /// come in any order.
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

    /// The table of an access, where it is worth it.
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

    /// Where the round ends that begins at a part.
    pub(crate) fn upto(&self, first: usize) -> usize {
        (first + self.round).min(self.count())
    }

    /// How many parts there are.
    pub(crate) fn count(&self) -> usize {
        self.parts.count()
    }

    /// How many rows the table has.
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

    /// Reads all parts, and returns what the workers have come to.
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

    /// Reads some parts, each worker with its state.
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

    /// Visits rows, and looks every few whether the statement must end.
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

    /// The rows that a condition leaves, as they are kept, in the order of their keys: for who
    /// wants them as a scan would give them. Nothing where they are too many to be gathered.
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
        let mut held = Held::of(env.results.as_ref());
        held.take(gathered.into_inner())?;
        let mut rows: Vec<(Key, Value)> = states.into_iter().flat_map(|(found, _)| found).collect();
        rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Some(Found { rows: rows.into_iter(), _held: held }))
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }
}

fn value<'a>(settings: &'a Values, name: &str) -> Option<&'a str> {
    settings.get(name).map(String::as_str)
}

/// Whether an expression has no effect, and comes to the same whatever was computed before.
pub(super) fn is_calm(expr: &Expr) -> bool {
    expr.all(&mut |part| match part {
        Expr::Sequence(..) | Expr::Subquery(_) | Expr::Outer(..) => false,
        Expr::Call(function, _) => !function.is_volatile(),
        _ => true,
    })
}
