//! Scheduling (§3.2): every transaction of an epoch runs on this replica, in the serial order.
//!
//! ```text
//!   batches of the cut --> round robin --> slices --> locks, in order --> run --> store
//!                                                        ^                 |
//!                                                        `-- left its footprint: again,
//!                                                            behind its slice (§3.2.1)
//! ```
//!
//! Locks are requested in the serial order and granted strictly in it: a transaction runs when all
//! earlier ones that it conflicts with have ended ([`pangea_core::exec::ordered`]). Of the paper's
//! five phases, the two for remote reads do not occur, because there are none.
//!
//! A client is answered when the epoch has run. Its cut is durable on a majority and its batches on
//! f + 1 replicas, so the outcome, which follows from them, can't be lost.

use std::sync::Arc;

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::{self, Finished, Job, ResultDetail, ShardOutcome};
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::protocol::{Cx, ListedFate};
use pangea_core::store::RecordHeader;

use super::batch::{Batch, Request};
use super::interleaving::round_robin;
use super::{Calvin, Cut};
use crate::inputs::{EPOCH_COUNTS_AS, STEP_TXNS_MAX, attempt, skipped};

/// The bytes that a transaction counts towards the next checkpoint in addition to its request,
/// because a restart has to replay it.
pub(super) const RUN_BYTES: usize = 1_024;

/// A running epoch. Each step runs at most `slice_txns` of its transactions, so that a large epoch
/// does not delay the inputs of the next ones: batches, acknowledgements, agreement.
pub(super) struct Running {
    epoch: SnapshotVersion,
    cut: Cut,
    /// The batches, in serial order.
    batches: Vec<Arc<Batch>>,
    /// The first request that has not run: the index of its batch, and its index in the batch.
    next: (usize, usize),
    /// The outcomes so far of requests whose clients wait on this replica or that it has accepted.
    own: Vec<(RequestOrigin, TxnId, Finished)>,
    /// The outcomes so far of requests of the replica that has the checkpoint turn.
    for_other: Vec<(u64, ShardOutcome)>,
}

/// The reason why this replica needs the outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOrigin {
    /// It is in a batch of this replica.
    Sequenced,
    /// It was sent to the master, under this name.
    Forwarded(u64),
}

impl Running {
    pub(super) fn epoch(&self) -> SnapshotVersion {
        self.epoch
    }

    fn is_done(&self) -> bool {
        self.next.0 == self.batches.len()
    }

    /// The requests that run next, at most `len_max`.
    fn slice(&self, len_max: usize) -> Vec<&Request> {
        let (batch, place) = self.next;
        let requests = self.batches[batch..].iter().flat_map(|batch| &batch.requests);
        requests.skip(place).take(len_max).collect()
    }

    /// Records that `count` more requests have run.
    fn advance(&mut self, count: usize) {
        self.next.1 += count;
        while let Some(batch) = self.batches.get(self.next.0)
            && self.next.1 >= batch.requests.len()
        {
            self.next = (self.next.0 + 1, self.next.1 - batch.requests.len());
        }
    }
}

impl Calvin {
    /// Runs the epochs whose batches have all arrived, in order.
    pub(super) fn run_ready_epochs(&mut self, cx: &mut Cx<'_, Self>) {
        let mut begun = 0;
        while self.state.running.is_none() && !self.is_frozen() {
            let Some((epoch, cut)) = self.state.inputs.next_cut(cx) else { return };
            if mutate!(StepsUnbounded: begun >= STEP_TXNS_MAX => false) {
                cx.mark("calvin.cuts_in_steps");
                return cx.resume();
            }
            if !self.state.inputs.is_fixed(epoch) {
                self.log_epoch(cx, epoch, &cut);
            }
            begun += EPOCH_COUNTS_AS + self.begin_epoch(cx, epoch, cut);
            self.confirm_epochs(cx);
        }
    }

    /// Reports to the latency observer that the execution of a cut begins. The phases coincide,
    /// because no outcome is known before execution.
    pub(super) fn note_begun(&self, cx: &Cx<'_, Self>, cut: &Cut) {
        let inputs = &self.state.inputs;
        let head = cut.heads[inputs.replica.me.index()];
        for phase in [Milestone::Begun, Milestone::Validated] {
            inputs.note_reached(cx, phase, head);
        }
    }

    /// Begins `epoch`, whose batches have all arrived. Returns the number of its transactions.
    pub(super) fn begin_epoch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: Cut,
    ) -> usize {
        assert_eq!(epoch, self.state.inputs.cut.applied.next(), "epochs run in order");
        assert!(self.state.running.is_none(), "one epoch runs at a time");
        let me = self.state.inputs.replica.me;
        self.note_begun(cx, &cut);
        self.overwrite_unneeded(cx);
        let batches = self.state.inputs.batches_of(&cut);
        let batches = mutate!(
            ReplayedBySource: round_robin(batches, me.0) => replayed_by_source(self, batches)
        );
        let requests: usize = batches.iter().map(|batch| batch.requests.len()).sum();
        let fate = ListedFate::Skipped { txns: requests as u64 };
        self.state.inputs.note_listed(&mut self.state.listed, epoch, fate);
        self.state.inputs.replica.owe(requests * RUN_BYTES);
        let (next, own, for_other) = ((0, 0), Vec::new(), Vec::new());
        self.state.running = Some(Running { epoch, cut, batches, next, own, for_other });
        self.resume_epoch(cx);
        requests
    }

    /// Runs the next transactions of the running epoch, and ends the epoch after the last ones.
    pub(super) fn resume_epoch(&mut self, cx: &mut Cx<'_, Self>) {
        let epoch = self.state.inputs.cut.applied.next();
        let resumed = attempt(cx, |cx| self.run_next_slice(cx));
        self.state.inputs.note_attempt(cx, epoch, resumed);
    }

    fn run_next_slice(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(mut running) = self.state.running.take() else { return };
        let len_max = running.cut.rules.slice_txns.get();
        let len_max = mutate!(SlicesDiffer: len_max => slices_differ(self, len_max));
        let slice = running.slice(len_max);
        cx.begin_work();
        let finished = self.run_slice(cx, running.epoch, &slice);
        cx.end_work(CpuStage::Order, slice.len());
        self.count(cx, &finished);
        let me = self.state.inputs.replica.me;
        let for_other: Vec<(u64, ShardOutcome)> = match self.outcomes_retained_for(running.cut.turn)
        {
            Some(other) => {
                let of_it = slice.iter().zip(&finished).filter(|(it, _)| it.txn.node() == other);
                let outcome = |it: &Finished| ShardOutcome::Ran(it.outcome.clone());
                of_it.map(|(request, it)| (request.txn.sequence(), outcome(it))).collect()
            }
            None => Vec::new(),
        };
        let origin_of = |request: &Request| match request.origin {
            _ if request.txn.node() == me => Some(RequestOrigin::Sequenced),
            Some((node, token)) if node == me => Some(RequestOrigin::Forwarded(token)),
            _ => None,
        };
        let own = slice.iter().zip(finished);
        let own = own.filter_map(|(it, finished)| Some((origin_of(it)?, it.txn, finished)));
        let own: Vec<_> = own.collect();
        let count = slice.len();
        running.own.extend(own);
        running.for_other.extend(for_other);
        running.advance(count);
        if !running.is_done() {
            cx.mark("calvin.epoch_in_slices");
            cx.resume();
            self.state.running = Some(running);
            return;
        }
        cx.begin_work();
        let size = running.own.len();
        self.end_epoch(cx, running);
        cx.end_work(CpuStage::Settle, size);
    }

    fn run_slice(
        &self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        slice: &[&Request],
    ) -> Vec<Finished> {
        if self.state.inputs.is_skipped(cx, epoch) {
            return slice.iter().map(|_| skipped(epoch)).collect();
        }
        let jobs: Vec<Job<'_>> = slice.iter().map(|request| job_of(request)).collect();
        let header = &|job: &Job<'_>| RecordHeader::new(job.txn);
        let registry = &self.state.registry;
        let (pool, detail) = (cx.pool, ResultDetail::Outcomes);
        let run = |jobs: &[Job<'_>]| {
            ordered::execute(pool, registry, cx.store, epoch, jobs, header, detail)
        };
        mutate!(GrantedOutOfOrder: run(&jobs) => granted_out_of_order(self, jobs, run))
    }

    fn count(&mut self, cx: &mut Cx<'_, Self>, finished: &[Finished]) {
        let restarted = finished.iter().filter(|finished| finished.passes > 1).count();
        if restarted > 0 {
            cx.mark("calvin.restarted");
        }
        let counters = &mut self.state.counters;
        counters.txns_restarted += restarted as u64;
        counters.txns_committed += finished.len() as u64;
    }

    /// Ends an epoch whose writes are all in the store: makes them visible and answers the waiting
    /// clients.
    fn end_epoch(&mut self, cx: &mut Cx<'_, Self>, running: Running) {
        let Running { epoch, cut, own, for_other, .. } = running;
        self.state.inputs.finish_epoch(cx, epoch, &cut);
        cx.store.publish(epoch);
        let is_early = self.state.inputs.is_fixed(epoch);
        if !is_early {
            self.state.inputs.confirm(cx, epoch, &cut);
        }
        // Round robin interleaves the sequencers and preserves the order of each.
        let mut forwarded = Vec::new();
        for (origin, txn, finished) in own {
            match origin {
                RequestOrigin::Sequenced => {
                    self.settle(cx, (epoch, cut.master_term.is_some()), txn, finished);
                }
                RequestOrigin::Forwarded(token) => forwarded.push((token, txn, finished)),
            }
        }
        self.settle_forwarded(cx, (epoch, &cut), forwarded);
        if !is_early {
            if let Some(other) = self.outcomes_retained_for(cut.turn) {
                self.retain_outcomes(cx, other, (epoch, &for_other));
            }
            self.checkpoint_if_due(cx);
            self.state.inputs.release_barriers(cx, &cut);
        }
        self.read_released(cx);
        // Now, while the epoch's writes are still in the processor's caches.
        self.state.inputs.reclaim(cx);
    }

    /// Answers the client of a request that has run.
    fn settle(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (version, is_of_master): (SnapshotVersion, bool),
        txn: TxnId,
        finished: Finished,
    ) {
        if is_of_master {
            self.skip_void(cx, txn.sequence());
            if self.state.sequencer.in_flight.front().is_none_or(|first| first.txn != txn) {
                // The request is from before a restart.
                return;
            }
        }
        let waiting = self.state.sequencer.in_flight.pop_front();
        let Some(waiting) = waiting else {
            panic!("transaction {txn} ran on its node, but is not in flight there");
        };
        assert_eq!(waiting.txn, txn, "requests run in order");
        self.state.outcomes.answered -= usize::from(waiting.is_answered);
        let Some(ticket) = waiting.ticket else { return };
        self.answer(cx, ticket, (txn, version), finished);
    }
}

fn job_of(request: &Request) -> Job<'_> {
    Job { txn: request.txn, program: &request.program, footprint: request.footprint.as_ref() }
}

fn replayed_by_source(calvin: &Calvin, batches: Vec<Arc<Batch>>) -> Vec<Arc<Batch>> {
    match calvin.state.inputs.cut.driver.is_started() {
        true => round_robin(batches, calvin.state.inputs.replica.me.0),
        false => batches,
    }
}

fn slices_differ(calvin: &Calvin, len_max: usize) -> usize {
    if calvin.state.inputs.replica.me.0 == 0 { 1 } else { len_max }
}

fn granted_out_of_order<'a>(
    calvin: &Calvin,
    mut jobs: Vec<Job<'a>>,
    run: impl Fn(&[Job<'a>]) -> Vec<Finished>,
) -> Vec<Finished> {
    if calvin.state.inputs.replica.me.0 != 0 {
        return run(&jobs);
    }
    jobs.reverse();
    let mut finished = run(&jobs);
    finished.reverse();
    finished
}

#[cfg(test)]
mod tests {
    use super::super::batch::tests::batch;
    use super::*;

    /// Calvin §3.2: locks are requested in the serial order, whatever batch a transaction is in.
    #[test]
    fn slices_follow_each_other_over_the_ends_of_batches() {
        let empty = Batch { requests: Vec::new(), ..batch() };
        let batches = [batch(), empty, batch()].map(Arc::new).to_vec();
        let (cut, next, own, for_other) = (Cut::default(), (0, 0), Vec::new(), Vec::new());
        let epoch = SnapshotVersion(1);
        let mut running = Running { epoch, cut, batches, next, own, for_other };
        let mut seen = Vec::new();
        while !running.is_done() {
            let slice: Vec<_> = running.slice(2).iter().map(|it| it.txn.sequence()).collect();
            running.advance(slice.len());
            seen.push(slice);
        }
        assert_eq!(seen, [[40, 41], [42, 40], [41, 42]]);
    }
}
