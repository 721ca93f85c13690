//! Ordered execution: locks granted strictly in the given order (Calvin §3.2; Minerva §4, "OCC and
//! Deterministic Locking").
//!
//! The order of the jobs is the serial order. Each job's locks are known before it runs: its
//! footprint, of keys and of ranges, shared and exclusive. A job runs when every earlier job whose
//! locks conflict with its own has ended, so it reads what it would read if all earlier ones had
//! run alone, and no two jobs ever wait for each other.
//!
//! ```text
//!   jobs in order --> footprints --> graph --> workers --> store, all at one version
//!                        |        (schedule)  (dispatch)
//!                        ^                        |
//!                        `--- next pass <-- those that touched more than their footprint
//! ```
//!
//! **Restarts.** A program whose keys depend on data may touch something outside of its footprint.
//! It is stopped there, has changed nothing, and takes part in the next pass: after all jobs of
//! this one, in order among its like, with the footprint that a reconnaissance run found at the
//! state between the passes, added to the one that it had. A job that comes without a footprint
//! gets one the same way before the first pass and keeps its place (Calvin §3.2.1). So the serial
//! order is (pass, place among the jobs). The first job of a later pass sees just the state of its
//! reconnaissance, so each pass ends at least one job; after [`PASSES_MAX`] passes the rest run
//! alone, in order, with nothing to check.
//!
//! **Determinism.** A job is stopped at its footprint's edge even where nothing runs beside it, so
//! results, restarts and pass numbers follow from the jobs and the store alone, not from the number
//! of workers or from timing. With one worker there is no lock table: jobs run in order.
//! There is one exception: with one worker a job is not held to a footprint that its procedure
//! calls certain ([`Procedure::is_footprint_certain`]), as to compute and to check it takes longer
//! than much of what runs. One that leaves it all the same ends in its place there, and is
//! restarted with several workers: replicas may differ then, for which the procedure is to blame.
//!
//! [`Procedure::is_footprint_certain`]: crate::txn::Procedure::is_footprint_certain
//!
//! **Writes** go to the rows at once: a job has its locks, and nobody reads at a version that is
//! not published. What a job wrote that is stopped or aborts is taken back before its locks are let
//! go ([`crate::store`]).
//!
//! **Certified** jobs are checked at their place, and their writes applied if all that they read is
//! still current. They touch just what they name, so they never restart.
//!
//! What differs from the papers: there is no lock manager with a queue for each key. All jobs are
//! known, so the waiting is a graph that is computed at once, on all workers, before the first job
//! starts; at run time each job has one atomic counter. Ranges are locked too, which neither paper
//! does.

mod dispatch;
mod extent;
mod locked;
mod part;
mod participants;
mod queues;
mod schedule;
mod sharded;

#[cfg(test)]
mod tests;

pub use self::part::Part;
pub use self::sharded::{Ended, Served, Sharded, Went, concerned};

pub(super) use self::extent::locked_part;

use self::locked::{Attempt, Runner, Scratch};
use self::schedule::{Graph, Locks};
use super::optimistic::probe;
use super::overlay::Overlay;
use crate::ids::{ProcedureId, SnapshotVersion, TxnId};
use crate::pool::{Pool, map};
use crate::store::{RecordHeader, Store};
use crate::txn::{Abort, Footprint, Program, Registry, Write};

/// After so many passes, what is left runs without footprints, one job at a time. Data-dependent
/// keys settle in two passes unless they depend on each other in a chain.
pub const PASSES_MAX: u32 = 4;

/// Up to so many jobs, a graph and a wake-up of workers cost more than they save.
const IN_ORDER_JOBS_MAX: usize = 2;

/// A transaction with its place in the order.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Its name, which goes into the headers of what it writes.
    pub txn: TxnId,
    /// What to run or to check.
    pub program: &'a Program,
    /// What it will touch, where that is known. A certified program needs none.
    pub footprint: Option<&'a Footprint>,
}

/// What a caller of [`execute`] is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// How the jobs ended.
    Outcomes,
    /// And what they wrote.
    Writes,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// What the program returned, or why it aborted.
    pub outcome: Result<Vec<u8>, Abort>,
    /// What it wrote, each key once, in the order of first writing: nothing for one that aborted,
    /// and nothing where nobody wants to be told.
    pub writes: Vec<Write>,
    /// The pass in which it ended, from 1. The serial order is (passes, place among the jobs).
    pub passes: u32,
}

/// Runs jobs, with the same results as one after the other, and writes to the store at `version`,
/// which must not be published yet. They read the newest versions up to `version`.
///
/// The header of a job names it ([`RecordHeader::writer`]), and no other job of the version, of this call
/// or another one, has its name where both write a key.
///
/// Every replica that has the same store gets the same results, whatever its pool.
///
/// A certified job that read a local write of another transaction ([`Seen::Local`]) counts it as
/// current when that one is the newest writer and wrote it when it was first executed: its header
/// is not flagged ([`RecordHeader::is_flagged`]).
///
/// [`Seen::Local`]: crate::txn::Seen::Local
///
/// # Panics
/// When the store has a newer version of a key that a job writes.
pub fn execute(
    pool: &dyn Pool,
    registry: &Registry,
    store: &Store,
    version: SnapshotVersion,
    jobs: &[Job<'_>],
    header: &(dyn Fn(&Job<'_>) -> RecordHeader + Sync),
    told: Told,
) -> Vec<Finished> {
    assert!(version > store.published(), "readers already use the version that is to be written");
    assert!(u32::try_from(jobs.len()).is_ok(), "too many jobs in one call");
    let result_bytes_max = usize::MAX;
    let runner = Runner { registry, store, version, jobs, header, told, result_bytes_max };
    let mut finished: Vec<Option<Finished>> = jobs.iter().map(|_| None).collect();
    let is_one_at_a_time = pool.workers() == 1;
    let mut pending =
        map(pool, jobs, |place, job| Pending::new(registry, is_one_at_a_time, place, job));
    let mut passes = 1;
    while passes < PASSES_MAX && pending.len() > 1 {
        find_footprints(pool, &runner, &mut pending, passes);
        let attempts = run_pass(pool, &runner, &pending);
        assert_eq!(attempts.len(), pending.len(), "each job is tried once in a pass");
        let mut restarted = Vec::new();
        for (tried, attempt) in pending.into_iter().zip(attempts) {
            match attempt {
                Attempt::Ended { outcome, writes } => {
                    finished[tried.place] = Some(Finished { outcome, writes, passes });
                }
                // Also one whose procedure calls its footprint certain, and is wrong. To stop here
                // would stop every start that runs the same epoch again.
                Attempt::LeftItsFootprint => restarted.push(tried),
            }
        }
        pending = restarted;
        passes += 1;
    }
    let mut scratch = Scratch::default();
    for Pending { place, .. } in pending {
        let (outcome, writes) = runner.run_alone(place, &mut scratch);
        finished[place] = Some(Finished { outcome, writes, passes });
    }
    finished.into_iter().map(|done| done.expect("a job ends in some pass")).collect()
}

/// Whether a procedure's runs stay within what it declares.
fn is_certain(registry: &Registry, procedure: ProcedureId) -> bool {
    registry.procedure(procedure).is_some_and(|code| code.is_footprint_certain())
}

/// A job that has not ended.
struct Pending<'a> {
    place: usize,
    locks: Locks<'a>,
}

impl<'a> Pending<'a> {
    fn new(registry: &Registry, is_one_at_a_time: bool, place: usize, job: &Job<'a>) -> Self {
        let locks = match (job.program, job.footprint) {
            (Program::Certified(certified), _) => Locks::Certified(certified),
            (Program::Call { .. }, Some(given)) => Locks::Given(given),
            (Program::Call { procedure, .. }, None)
                if is_one_at_a_time && is_certain(registry, *procedure) =>
            {
                Locks::NotNeeded
            }
            (Program::Call { procedure, args }, None) => {
                let declared = super::call::footprint(registry, *procedure, args);
                declared.map_or(Locks::Unknown, Locks::Found)
            }
        };
        Self { place, locks }
    }
}

/// Runs, at the state before the pass, the jobs whose footprint is not known or was left.
fn find_footprints(pool: &dyn Pool, runner: &Runner<'_>, pending: &mut [Pending<'_>], pass: u32) {
    let needs_one = |job: &Pending<'_>| pass > 1 || matches!(job.locks, Locks::Unknown);
    if !pending.iter().any(needs_one) {
        return;
    }
    let nothing = Overlay::new();
    let found = map(pool, pending, |_, job| {
        let program = runner.jobs[job.place].program;
        needs_one(job)
            .then(|| probe(runner.registry, program, runner.store, runner.version, &nothing))
    });
    for (job, found) in pending.iter_mut().zip(found) {
        let Some(found) = found else { continue };
        job.locks = Locks::Found(match std::mem::replace(&mut job.locks, Locks::Unknown) {
            Locks::Unknown => found,
            Locks::Given(before) => found.union(before.clone()),
            Locks::Found(before) => found.union(before),
            Locks::Certified(_) => unreachable!("a certified job ends in the first pass"),
            Locks::NotNeeded => unreachable!("a job without locks leaves nothing"),
        });
    }
}

/// Tries each pending job once, as if in order.
fn run_pass(pool: &dyn Pool, runner: &Runner<'_>, pending: &[Pending<'_>]) -> Vec<Attempt> {
    if pool.workers() == 1 || pending.len() <= IN_ORDER_JOBS_MAX {
        let mut scratch = Scratch::default();
        let in_order = |(at, job): (usize, &Pending<'_>)| {
            runner.warm(pending[at..].iter().map(|next| next.place), &mut scratch);
            runner.run(job.place, &job.locks, &mut scratch)
        };
        return pending.iter().enumerate().map(in_order).collect();
    }
    let locks: Vec<&Locks<'_>> = pending.iter().map(|job| &job.locks).collect();
    let graph = Graph::new(pool, &locks);
    dispatch::run(pool, &graph, &|scratch: &mut Scratch, at, next| {
        let places = std::iter::once(at).chain(next).map(|at| pending[at].place);
        runner.warm(places, scratch);
        runner.run(pending[at].place, &pending[at].locks, scratch)
    })
}
