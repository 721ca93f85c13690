//! Ordered execution: locks are granted strictly in the given order (Calvin §3.2; Minerva §4, "OCC
//! and Deterministic Locking").
//!
//! The order of the jobs is the serial order. The locks of each job are known before it runs: its
//! footprint of keys and ranges, shared and exclusive. A job runs when all earlier jobs with
//! conflicting locks have finished. It therefore reads the same values as in serial execution, and
//! deadlocks are impossible.
//!
//! ```text
//!   jobs in order --> footprints --> graph --> workers --> store, all at one version
//!                        |        (schedule)  (dispatch)
//!                        ^                        |
//!                        `--- next pass <-- jobs that violated their footprint
//! ```
//!
//! **Restarts.** A program whose keys depend on data may access a row outside its footprint. It is
//! interrupted there, rolled back, and repeated in the next pass: after all jobs of this pass, in
//! order among the restarted jobs. Its new footprint is the old one plus that of a reconnaissance
//! run at the state between the passes. A job without a footprint gets one in the same way before
//! the first pass and keeps its place (Calvin §3.2.1). The serial order is therefore (pass, place
//! among the jobs). The first job of a later pass sees exactly the state of its reconnaissance, so
//! each pass finishes at least one job. After [`PASSES_MAX`] passes the remaining jobs run
//! serially, without footprints.
//!
//! **Determinism.** A job is interrupted at the edge of its footprint even if no other job runs
//! concurrently. Results, restarts and pass numbers therefore depend only on the jobs and the
//! store, not on the number of workers or on timing. With one worker there is no lock table: jobs
//! run in order.
//!
//! There is one exception. With one worker, a job is not checked against a footprint that its
//! procedure calls certain ([`Procedure::is_footprint_certain`]), because computing and checking it
//! would cost more than many programs. If the job violates that footprint anyway, it finishes at
//! its place with one worker and is restarted with several. Replicas may then diverge, which is a
//! bug of the procedure.
//!
//! [`Procedure::is_footprint_certain`]: crate::txn::Procedure::is_footprint_certain
//!
//! **Writes** go directly to the rows: a job holds its locks, and no reader uses a version that is
//! not published. The writes of a job that is interrupted or aborts are rolled back before its
//! locks are released ([`crate::store`]).
//!
//! **Certified** jobs are checked at their place. Their writes are applied if all their reads are
//! still current. They access only the rows that they name, so they never restart.
//!
//! Differences from the papers: there is no lock manager with a queue for each key. All jobs are
//! known in advance, so the waits form a graph. It is computed in parallel on all workers before
//! the first job starts; at run time each job has one atomic counter. Ranges are locked too, which
//! neither paper covers.

mod dispatch;
mod divisible;
mod extent;
mod guard;
mod locked;
mod participants;
mod queues;
mod remote_reads;
mod schedule;
mod sharded;

#[cfg(test)]
mod tests;

pub use self::guard::Guard;
pub use self::remote_reads::RemoteReads;
pub use self::sharded::{Ended, Served, ShardOutcome, Sharded, concerned};

pub(super) use self::extent::locked_part;

use self::locked::{Attempt, Runner, Scratch};
use self::schedule::{Graph, Locks};
use super::optimistic::probe;
use super::overlay::Overlay;
use crate::ids::{ProcedureId, SnapshotVersion, TxnId};
use crate::pool::{Pool, map};
use crate::store::{RecordHeader, Store};
use crate::txn::{Abort, Footprint, Program, Registry, Write};

/// The maximum number of passes with footprints. The remaining jobs then run without footprints,
/// one at a time. Data-dependent keys need two passes, unless they depend on each other in a chain.
pub const PASSES_MAX: u32 = 4;

/// Up to this number of jobs, a graph and a wake-up of workers cost more than they save.
const IN_ORDER_JOBS_MAX: usize = 2;

/// A transaction at its place in the order.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The id of the transaction, stored in the headers of its writes.
    pub txn: TxnId,
    /// The program to run or to check.
    pub program: &'a Program,
    /// The footprint, if it is known. A certified program needs none.
    pub footprint: Option<&'a Footprint>,
}

/// The results that a caller of [`execute`] requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultDetail {
    /// Only the outcomes of the jobs.
    Outcomes,
    /// The outcomes and the writes.
    Writes,
}

/// The result of a finished job.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The program's result, or the reason for its abort.
    pub outcome: Result<Vec<u8>, Abort>,
    /// The writes, each key once, in the order of its first write. Empty after an abort, and if the
    /// caller requested only outcomes.
    pub writes: Vec<Write>,
    /// The pass in which the job finished, from 1. The serial order is (passes, place among the
    /// jobs).
    pub passes: u32,
}

/// Runs jobs with the same results as serial execution and writes to the store at `version`, which
/// must not be published yet. Jobs read the newest versions up to `version`.
///
/// The header of a job contains its id ([`RecordHeader::writer`]). Two jobs of one version that
/// write the same key must have different ids, even in different calls.
///
/// Every replica with the same store gets the same results, whatever its pool.
///
/// A certified job may have read a local write of another transaction ([`ReadVersion::Local`]).
/// That read is current if the transaction is the newest writer and wrote the row in its first
/// execution, so that its header is not flagged ([`RecordHeader::is_flagged`]).
///
/// [`ReadVersion::Local`]: crate::txn::ReadVersion::Local
///
/// # Panics
/// If the store has a newer version of a key that a job writes.
pub fn execute(
    pool: &dyn Pool,
    registry: &Registry,
    store: &Store,
    version: SnapshotVersion,
    jobs: &[Job<'_>],
    header: &(dyn Fn(&Job<'_>) -> RecordHeader + Sync),
    detail: ResultDetail,
) -> Vec<Finished> {
    let finished = execute_guarded(pool, registry, (store, version), jobs, header, detail, None);
    finished.into_iter().map(|done| done.expect("nobody puts jobs off")).collect()
}

/// Like [`execute`], with rows that not all jobs may access now. A job that the guard puts off has
/// no effect, and its place in the result is `None`: for the other jobs it is not in the order.
///
/// # Panics
/// If the store has a newer version of a key that a job writes.
pub fn execute_guarded(
    pool: &dyn Pool,
    registry: &Registry,
    (store, version): (&Store, SnapshotVersion),
    jobs: &[Job<'_>],
    header: &(dyn Fn(&Job<'_>) -> RecordHeader + Sync),
    detail: ResultDetail,
    guard: Option<&dyn Guard>,
) -> Vec<Option<Finished>> {
    assert!(version > store.published(), "the version to write is already readable");
    assert!(u32::try_from(jobs.len()).is_ok(), "too many jobs in a call");
    let result_bytes_max = usize::MAX;
    let runner = Runner { registry, store, version, jobs, header, detail, result_bytes_max, guard };
    let mut finished: Vec<Option<Finished>> = jobs.iter().map(|_| None).collect();
    let is_one_at_a_time = pool.workers() == 1;
    let mut pending =
        map(pool, jobs, |place, job| Pending::new(registry, is_one_at_a_time, place, job));
    let mut passes = 1;
    while passes < PASSES_MAX && pending.len() > 1 {
        find_footprints(pool, &runner, &mut pending, passes);
        let attempts = run_pass(pool, &runner, &pending);
        assert_eq!(attempts.len(), pending.len(), "each job runs once in a pass");
        let mut restarted = Vec::new();
        for (tried, attempt) in pending.into_iter().zip(attempts) {
            match attempt {
                Attempt::Ended { outcome, writes } => {
                    finished[tried.place] = Some(Finished { outcome, writes, passes });
                }
                // Includes a job whose procedure wrongly calls its footprint certain. A panic would
                // recur at every restart that runs the same epoch again.
                Attempt::FootprintViolated => restarted.push(tried),
                Attempt::PutOff => {}
            }
        }
        pending = restarted;
        passes += 1;
    }
    let mut scratch = Scratch::default();
    for Pending { place, .. } in pending {
        let ended = runner.run_alone(place, &mut scratch);
        finished[place] = ended.map(|(outcome, writes)| Finished { outcome, writes, passes });
    }
    finished
}

/// Whether a procedure guarantees that its runs stay within the footprint that it declares.
fn is_certain(registry: &Registry, procedure: ProcedureId) -> bool {
    registry.procedure(procedure).is_some_and(|code| code.is_footprint_certain())
}

/// An unfinished job.
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

/// Runs a reconnaissance, at the state before the pass, of the jobs whose footprint is unknown or
/// was violated.
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
            Locks::NotNeeded => unreachable!("a job without locks can't leave its footprint"),
        });
    }
}

/// Attempts each pending job once, with the result of serial execution.
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
