//! What a run takes: filled in while a statement runs that EXPLAIN ANALYZE asks about.
//!
//! A statement that nobody asks about has no profile, and looks once a row at whether it has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pangea_core::ids::{SnapshotVersion, TxnId};

use super::Actual;
use crate::relational::Physical;

/// A step of a query that our own code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Rows come from where they are, and a condition leaves some.
    Scan,
    Group,
    Distinct,
    Sort,
    Limit,
    /// Rows are written.
    Modify,
}

/// How many steps there are.
const STEPS: usize = 6;

/// How a statement became part of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As a program, which every node runs at its place in the order.
    Program,
    /// As what it read and wrote here, which every node certifies.
    Certified,
}

/// What was submitted, and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub way: Way,
    /// Bytes of the program's arguments.
    pub bytes: usize,
    /// What it read and wrote: rows and ranges, and rows.
    pub reads: usize,
    pub writes: usize,
    /// The snapshot that it was run on before it was submitted.
    pub snapshot: SnapshotVersion,
    pub txn: TxnId,
    pub version: SnapshotVersion,
    /// Whether it was run again at its place in the order, as far as that is known.
    pub ran_again: bool,
    /// How often it was submitted.
    pub tries: u32,
    pub times: CommitTimes,
}

/// Where the time of a commit went. Each part ends where the next one begins; what a node does not
/// tell is in the part before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CommitTimes {
    /// Until the node's event loop took it.
    pub queue: Option<Duration>,
    /// Until the protocol had decided it, which holds its way to the other nodes and back, its
    /// place in the order, and its run there.
    pub order: Option<Duration>,
    /// Until what the decision rests on was durable here.
    pub durability: Option<Duration>,
    /// Until the session went on.
    pub answer: Option<Duration>,
    pub total: Duration,
}

/// What was measured.
#[derive(Debug, Default)]
struct Measured {
    steps: [Option<Actual>; STEPS],
    /// How many rows were looked at, before a condition.
    visited: u64,
    is_scanning: bool,
    plans: Vec<Physical>,
}

/// What a run takes.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    measured: Mutex<Measured>,
    planning: Mutex<Duration>,
    execution: Mutex<Duration>,
    commit: Mutex<Option<Commit>>,
    tries: Mutex<u32>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

impl Profile {
    /// The run begins, or begins again: what was measured before counts no more.
    pub(crate) fn begin(&self) {
        *locked(&self.measured) = Measured::default();
    }

    /// The run has ended, and took so long.
    pub(crate) fn end(&self, took: Duration) {
        *locked(&self.execution) = took;
    }

    /// Planning took so long.
    pub(crate) fn planned(&self, took: Duration) {
        *locked(&self.planning) += took;
    }

    /// Something is submitted.
    pub(crate) fn on_submit(&self) {
        *locked(&self.tries) += 1;
    }

    /// It has committed.
    pub(crate) fn on_commit(&self, commit: Commit) {
        let tries = *locked(&self.tries);
        *locked(&self.commit) = Some(Commit { tries, ..commit });
    }

    /// DataFusion runs a plan.
    pub(crate) fn on_plan(&self, plan: Physical) {
        locked(&self.measured).plans.push(plan);
    }

    /// A row was looked at, before its condition.
    pub(crate) fn on_visit(&self) {
        self.on_visits(1);
    }

    /// So many rows were.
    pub(crate) fn on_visits(&self, rows: usize) {
        let mut measured = locked(&self.measured);
        if measured.is_scanning {
            measured.visited += rows as u64;
        }
    }

    pub(crate) fn actual(&self, step: Step) -> Option<Actual> {
        locked(&self.measured).steps[step as usize]
    }

    /// How many rows were looked at.
    pub(crate) fn visited(&self) -> u64 {
        locked(&self.measured).visited
    }

    /// What DataFusion ran, in order: what is run for itself beforehand, and then the query.
    pub(crate) fn plans(&self) -> Vec<Physical> {
        locked(&self.measured).plans.clone()
    }

    pub(crate) fn planning_ms(&self) -> f64 {
        ms(*locked(&self.planning))
    }

    pub(crate) fn execution_ms(&self) -> f64 {
        ms(*locked(&self.execution))
    }

    pub(crate) fn commit(&self) -> Option<Commit> {
        locked(&self.commit).clone()
    }

    fn note(&self, step: Step, actual: Actual) {
        let mut measured = locked(&self.measured);
        measured.is_scanning = false;
        measured.steps[step as usize] = Some(actual);
    }
}

/// Measures one step. Does nothing where there is no profile.
pub(crate) struct Watch<'a> {
    under_way: Option<UnderWay<'a>>,
}

struct UnderWay<'a> {
    profile: &'a Profile,
    step: Step,
    started: Instant,
    first: Option<Duration>,
    rows: u64,
}

impl<'a> Watch<'a> {
    pub(crate) fn start(profile: Option<&'a Arc<Profile>>, step: Step) -> Self {
        let under_way = profile.map(|profile| {
            locked(&profile.measured).is_scanning = step == Step::Scan;
            UnderWay { profile, step, started: Instant::now(), first: None, rows: 0 }
        });
        Self { under_way }
    }

    /// The step gave a row.
    pub(crate) fn on_row(&mut self) {
        if let Some(UnderWay { started, first, rows, .. }) = &mut self.under_way {
            first.get_or_insert_with(|| started.elapsed());
            *rows += 1;
        }
    }

    /// The step gave its last row.
    pub(crate) fn end(self) {
        let rows = self.under_way.as_ref().map_or(0, |under_way| under_way.rows);
        self.end_with(rows);
    }

    /// The step ended, and gave so many rows.
    pub(crate) fn end_with(self, rows: u64) {
        let Some(UnderWay { profile, step, started, first, .. }) = self.under_way else { return };
        let total = started.elapsed();
        let (startup_ms, total_ms) = (ms(first.unwrap_or(total)), ms(total));
        profile.note(step, Actual { startup_ms, total_ms, rows, loops: 1 });
    }
}
