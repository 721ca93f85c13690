//! Measurements of a run for EXPLAIN ANALYZE.
//!
//! Other statements have no profile. It costs them one check for each row.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pangea_core::ids::{SnapshotVersion, TxnId};

use crate::data_fusion::Physical;

/// A step of a query that this executor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Rows are read and filtered.
    Scan,
    Group,
    Distinct,
    Sort,
    Limit,
    /// Rows are written.
    Modify,
}

/// Number of steps.
const STEPS: usize = 6;

/// How a statement was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitPath {
    /// As a program: its effects are decided at its place in the order.
    Program,
    /// As a certified transaction: its local reads and writes, which every node certifies.
    Certified,
}

/// A submitted program and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub way: CommitPath,
    /// Size of the program's arguments, in bytes.
    pub bytes: usize,
    /// Number of rows and ranges read, and of rows written.
    pub reads: usize,
    pub writes: usize,
    /// Snapshot of the run before submission.
    pub snapshot: SnapshotVersion,
    pub txn: TxnId,
    pub version: SnapshotVersion,
    /// Whether the program was re-executed at its place in the order, as far as known.
    pub ran_again: bool,
    /// Number of submissions.
    pub tries: u32,
    pub times: CommitTimes,
}

/// Latency breakdown of a commit. Each stage ends where the next one begins. A stage is `None` if
/// the node did not record its beginning or its end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CommitTimes {
    /// Until the node's event loop accepted the program.
    pub queue: Option<Duration>,
    /// Until the protocol decided the outcome: messages to other nodes, ordering, and the run in
    /// order.
    pub order: Option<Duration>,
    /// Until the records that the outcome depends on were durable on this node.
    pub durability: Option<Duration>,
    /// Until the session continued.
    pub answer: Option<Duration>,
    pub total: Duration,
}

/// The measurements of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Actual {
    /// Milliseconds to the first row.
    pub startup_ms: f64,
    /// Milliseconds to the last row, including the children.
    pub total_ms: f64,
    pub rows: u64,
    /// Number of runs; 0 if never executed.
    pub loops: u64,
}

/// The measurements.
#[derive(Debug, Default)]
struct Measured {
    steps: [Option<Actual>; STEPS],
    /// Number of rows read, before filtering.
    visited: u64,
    is_scanning: bool,
    plans: Vec<Physical>,
}

/// The profile of a run.
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
    /// Starts or restarts the run. Earlier measurements are discarded.
    pub(crate) fn begin(&self) {
        *locked(&self.measured) = Measured::default();
    }

    /// Records the duration of the run.
    pub(crate) fn end(&self, took: Duration) {
        *locked(&self.execution) = took;
    }

    /// Adds the duration of planning.
    pub(crate) fn planned(&self, took: Duration) {
        *locked(&self.planning) += took;
    }

    /// Counts a submission.
    pub(crate) fn on_submit(&self) {
        *locked(&self.tries) += 1;
    }

    /// Records the commit.
    pub(crate) fn on_commit(&self, commit: Commit) {
        let tries = *locked(&self.tries);
        *locked(&self.commit) = Some(Commit { tries, ..commit });
    }

    /// Records a plan that DataFusion runs.
    pub(crate) fn on_plan(&self, plan: Physical) {
        locked(&self.measured).plans.push(plan);
    }

    /// Counts a row that was read, before filtering.
    pub(crate) fn on_visit(&self) {
        self.on_visits(1);
    }

    /// Counts rows that were read, before filtering.
    pub(crate) fn on_visits(&self, rows: usize) {
        let mut measured = locked(&self.measured);
        if measured.is_scanning {
            measured.visited += rows as u64;
        }
    }

    pub(crate) fn actual(&self, step: Step) -> Option<Actual> {
        locked(&self.measured).steps[step as usize]
    }

    /// The number of rows read.
    pub(crate) fn visited(&self) -> u64 {
        locked(&self.measured).visited
    }

    /// The plans that DataFusion ran, in order: first the InitPlans, then the query.
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

/// Measures one step. Does nothing if there is no profile.
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

    /// Counts a row that the step returned.
    pub(crate) fn on_row(&mut self) {
        if let Some(UnderWay { started, first, rows, .. }) = &mut self.under_way {
            first.get_or_insert_with(|| started.elapsed());
            *rows += 1;
        }
    }

    /// Ends the step after its last row.
    pub(crate) fn end(self) {
        let rows = self.under_way.as_ref().map_or(0, |under_way| under_way.rows);
        self.end_with(rows);
    }

    /// Ends the step, which returned `rows` rows.
    pub(crate) fn end_with(self, rows: u64) {
        let Some(UnderWay { profile, step, started, first, .. }) = self.under_way else { return };
        let total = started.elapsed();
        let (startup_ms, total_ms) = (ms(first.unwrap_or(total)), ms(total));
        profile.note(step, Actual { startup_ms, total_ms, rows, loops: 1 });
    }
}
