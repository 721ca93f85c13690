//! Chains: transactions that read the writes of others of their node before those are decided.
//!
//! ```text
//!   node A, epoch 7:   T1 writes x ---> T2 reads x of T1, writes x ---> T3 reads x of T2 ..
//!   each replica:      T1 commits       T2 commits if x is of T1        T3 if x is of T2
//! ```
//!
//! Without chains one transaction commits for each row and each time from a snapshot to the merge,
//! because all others have read the row as it was before. The paper has no chains.
//!
//! A transaction that has read a row of an undecided one names that one in its checks. In the merge
//! it loses unless the row is of that transaction then: so it loses if that one does. It ranks
//! after it: it takes over its attempts and its start. All other checks are those of its level.
//!
//! A program that reads such rows in a range, that fails, or that writes nothing is run again
//! without them: its answer must not depend on a transaction that may lose. Nobody reads the
//! additions of undecided transactions (`adds.rs`): their results are not known yet.

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::Overlay;
use pangea_core::exec::optimistic::{self, Recorded, Run};
use pangea_core::guarantee::Isolation;
use pangea_core::hash::HashSet;
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::protocol::Cx;
use pangea_core::store::Store;
use pangea_core::txn::{PointRead, Program, ReadSet, ReadVersion, Registry};

use super::GeoGauss;
use super::batch::Work;
use super::commit::Decision;
use super::isolation::Checks;
use super::options::Options;
use super::state::{Execution, Job, State};
use crate::streams::Bid;

/// Runs a program at its level, with the writes of undecided transactions above the snapshot.
pub(super) fn run_at(
    level: Isolation,
    (registry, options): (&Registry, &Options),
    program: &Program,
    (store, at): (&Store, SnapshotVersion),
    overlay: &Overlay,
) -> Run {
    let guards = level != Isolation::Serializable;
    let recorded = Recorded { guards, adds: options.isolations().adds_at(level) };
    optimistic::run_recording(registry, program, store, at, overlay, recorded)
}

/// Whether a read saw the write of an undecided transaction.
pub(super) fn is_of_undecided(seen: ReadVersion) -> bool {
    matches!(seen, ReadVersion::Local(_) | ReadVersion::LocalDeleted(_))
}

/// The reads of rows of undecided transactions, each row once.
pub(super) fn reads_of_undecided(reads: &ReadSet, guards: &ReadSet) -> Vec<PointRead> {
    let all = reads.points.iter().chain(&guards.points);
    let mut seen = HashSet::default();
    let is_new = |read: &&PointRead| seen.insert((read.table, read.key.clone()));
    all.filter(|read| is_of_undecided(read.seen)).filter(is_new).cloned().collect()
}

/// The transactions on which one with these checks depends.
pub(super) fn heads(checks: &Checks) -> impl Iterator<Item = TxnId> {
    checks.reads.points.iter().filter_map(|read| read.seen.local_writer())
}

fn has_range_of_undecided(reads: &ReadSet) -> bool {
    reads.ranges.iter().flat_map(|read| &read.rows).any(|(_, seen)| is_of_undecided(*seen))
}

impl Execution {
    /// The attempts and the start of a transaction in an epoch, so that it ranks after those on
    /// which it depends.
    pub(super) fn rank_after_heads(
        &self,
        epoch: SnapshotVersion,
        work: &Work,
        (attempt, start): (u8, SnapshotVersion),
    ) -> (u8, SnapshotVersion) {
        let Work::Merge { checks, .. } = work else { return (attempt, start) };
        let in_flight = |head: TxnId| {
            let at = self.in_flight.binary_search_by_key(&head, |it| it.txn).ok()?;
            Some(&self.in_flight[at])
        };
        let of_epoch = heads(checks).filter_map(in_flight).filter(|it| it.epoch == epoch);
        of_epoch.fold((attempt, start), |(attempt, start), head| {
            (attempt.min(head.attempt), start.min(head.start))
        })
    }
}

impl State {
    /// Nobody reads the writes of transactions any more that depend on one of `own` that has lost:
    /// they will lose, too. Otherwise two groups of transactions that are tried again in turn would
    /// each read the writes of the other one, and lose forever. `decided` is the last batch of this
    /// replica whose transactions are decided.
    pub(super) fn doom_dependents(
        &mut self,
        cx: &mut Cx<'_, GeoGauss>,
        own: &[(TxnId, Decision)],
        decided: Bid,
    ) {
        let lost = own.iter().filter(|(_, decision)| !decision.is_commit()).map(|(txn, _)| *txn);
        let mut doomed: HashSet<TxnId> = lost.collect();
        if doomed.is_empty() || self.execution.overlay.is_empty() {
            return;
        }
        let Execution { current, overlay, .. } = &mut self.execution;
        let sent = self.streams.logs[self.replica.me.index()].slots.range(decided.next()..);
        let sent = sent.flat_map(|(_, slot)| &slot.batch.records);
        // Each transaction comes after those that it depends on.
        for record in sent.chain(current.iter()) {
            let Work::Merge { checks, .. } = &record.work else { continue };
            let is_doomed = heads(checks).any(|head| doomed.contains(&head));
            if is_doomed {
                cx.mark("geogauss.doomed");
                doomed.insert(record.inputs.txn);
                overlay.remove(record.inputs.txn, checks.writes.iter().map(|it| &it.write));
            }
        }
    }
}

impl GeoGauss {
    /// The run of a program that may read the writes of undecided transactions, after the programs
    /// before it have been added to the epoch.
    pub(super) fn chained(&mut self, cx: &mut Cx<'_, Self>, job: &Job, run: Run) -> Run {
        if !self.state.options.chains_at(job.level) {
            return run;
        }
        let State { registry, options, execution, .. } = &self.state;
        let (code, overlay) = ((&**registry, options), &execution.overlay);
        let state: (&Store, _) = (cx.store, self.state.applied.epoch);
        let mut run = run;
        if !optimistic::is_current(&run.reads, overlay) {
            cx.begin_work();
            run = run_at(job.level, code, &job.program, state, overlay);
            cx.end_work(CpuStage::Execute, 1);
        }
        let is_chained = !reads_of_undecided(&run.reads, &run.guards).is_empty();
        let has_range = has_range_of_undecided(&run.reads) || has_range_of_undecided(&run.guards);
        let has_answer = run.result.is_err() || run.is_reader();
        if has_range || is_chained && has_answer {
            cx.mark("geogauss.not_chained");
            cx.begin_work();
            run = run_at(job.level, code, &job.program, state, &Overlay::new());
            cx.end_work(CpuStage::Execute, 1);
        } else if is_chained {
            cx.mark("geogauss.chained");
        }
        run
    }
}
