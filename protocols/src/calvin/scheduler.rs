//! Scheduling (§3.2): every transaction of an epoch is run here, in the serial order.
//!
//! ```text
//!   batches of the cut --> round robin --> slices --> locks, in order --> run --> store
//!                                                        ^                 |
//!                                                        `-- left its footprint: again,
//!                                                            behind its slice (§3.2.1)
//! ```
//!
//! Locks are asked for in the serial order, and granted strictly in it: a transaction runs when all
//! earlier ones that it conflicts with have ended ([`pangea_core::exec::ordered`]). Of the paper's
//! five phases, reading remote data is left out, as there is none.
//!
//! A client is answered when the epoch has been run: its cut is durable on a majority and its
//! batches on f + 1 replicas, so the outcome, which follows from them, can't be lost.

use std::sync::Arc;

use pangea_core::exec::ordered::{self, Finished, Job};
use pangea_core::ids::SnapshotVersion;
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::{Cx, FirstRun};
use pangea_core::txn::Outcome;
use pangea_core::way::Phase;
use pangea_core::work::Work;

use super::batch::{Batch, Request};
use super::header::Header;
use super::interleaving::round_robin;
use super::{Calvin, Cut};
use crate::inputs::Batch as _;

/// What a transaction counts towards the next checkpoint beside its request, in bytes: a restart
/// has to run it again.
pub(super) const RUN_BYTES: usize = 1_024;

/// When a step has run so many transactions of small epochs it begins no other: where many have
/// waited, what is urgent must not wait for all of them.
pub(super) const STEP_TXNS_MAX: u64 = 64;

/// An epoch that is being run, in slices, one a step, so that a large epoch does not hold up what
/// the next ones need: batches, acknowledgements, agreement.
pub(super) struct Running {
    epoch: SnapshotVersion,
    cut: Cut,
    /// In the serial order.
    batches: Vec<Arc<Batch>>,
    /// The first request that has not been run: a batch, and a place in it.
    next: (usize, usize),
    /// What became of this replica's own requests so far.
    own: Vec<Finished>,
}

impl Running {
    fn is_done(&self) -> bool {
        self.next.0 == self.batches.len()
    }

    /// What is run next, at most so much.
    fn slice(&self, len_max: usize) -> Vec<&Request> {
        let (batch, place) = self.next;
        let requests = self.batches[batch..].iter().flat_map(|batch| &batch.requests);
        requests.skip(place).take(len_max).collect()
    }

    /// So many more have been run.
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
    /// Runs the epochs whose batches are all here, in order.
    pub(super) fn run_ready_epochs(&mut self, cx: &mut Cx<'_, Self>) {
        let before = self.state.counters.txns_committed;
        while self.state.running.is_none() {
            let Some((epoch, cut)) = self.state.inputs.next_cut(cx) else { return };
            if self.state.counters.txns_committed - before >= STEP_TXNS_MAX {
                return cx.resume();
            }
            self.log_epoch(cx, epoch, &cut);
            self.begin_epoch(cx, epoch, cut);
        }
    }

    /// Begins with the cut of `epoch`, whose batches are all here.
    pub(super) fn begin_epoch(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion, cut: Cut) {
        assert_eq!(epoch, self.state.inputs.cut.applied.next(), "epochs are run in order");
        assert!(self.state.running.is_none(), "one epoch at a time");
        let me = self.state.inputs.me;
        self.state.inputs.tell_reached(cx, Phase::Begun, cut.heads[me.index()]);
        let mut batches = self.state.inputs.batches_of(&cut);
        if !is_planted(Bug::ReplayedBySource) || self.state.inputs.cut.agreement.is_some() {
            batches = round_robin(batches, me.0);
        }
        let requests: usize = batches.iter().map(|batch| batch.requests.len()).sum();
        self.state.inputs.collection.owe(requests * RUN_BYTES);
        let (next, own) = ((0, 0), Vec::new());
        self.state.running = Some(Running { epoch, cut, batches, next, own });
        self.go_on(cx);
    }

    /// Runs the next slice of the epoch that is being run, and ends the epoch after the last.
    pub(super) fn go_on(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(mut running) = self.state.running.take() else { return };
        let len_max = match is_planted(Bug::SlicesDiffer) && self.state.inputs.me.0 == 0 {
            true => 1,
            false => running.cut.rules.slice_txns.get(),
        };
        let slice = running.slice(len_max);
        cx.begin_work();
        let finished = self.run_slice(cx, running.epoch, &slice);
        cx.end_work(Work::Order, slice.len());
        self.count(cx, &finished);
        let me = self.state.inputs.me;
        let own = slice.iter().zip(finished).filter(|(request, _)| request.txn.node() == me);
        let own: Vec<Finished> = own.map(|(_, finished)| finished).collect();
        let count = slice.len();
        running.own.extend(own);
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
        cx.end_work(Work::Settle, size);
    }

    fn run_slice(
        &self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        slice: &[&Request],
    ) -> Vec<Finished> {
        let mut jobs: Vec<Job<'_>> = slice.iter().map(|request| job_of(request)).collect();
        let is_reversed = is_planted(Bug::GrantedOutOfOrder) && self.state.inputs.me.0 == 0;
        if is_reversed {
            jobs.reverse();
        }
        let header = &|job: &Job<'_>| Header(job.txn);
        let registry = &self.state.registry;
        let mut finished = ordered::execute(cx.pool, registry, cx.store, epoch, &jobs, header);
        if is_reversed {
            finished.reverse();
        }
        finished
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

    /// The epoch's writes are all in the store: makes them visible, and tells who waits.
    fn end_epoch(&mut self, cx: &mut Cx<'_, Self>, running: Running) {
        let Running { epoch, cut, batches, own, .. } = running;
        self.state.inputs.finish_epoch(cx, epoch, &cut);
        self.state.inputs.checkpoint_if_due(cx);
        let me = self.state.inputs.me;
        let own_batches = batches.iter().filter(|batch| batch.source() == me);
        let requests = own_batches.flat_map(|batch| &batch.requests);
        for (request, finished) in requests.zip(own) {
            self.settle(cx, epoch, request, finished);
        }
        self.state.inputs.release_barriers(cx, &cut);
        self.read_released(cx);
        // Now, while what the epoch wrote is still in the processor's caches.
        self.state.inputs.reclaim(cx);
    }

    /// Answers the client of a request that was run.
    fn settle(
        &mut self,
        cx: &mut Cx<'_, Self>,
        version: SnapshotVersion,
        request: &Request,
        finished: Finished,
    ) {
        let txn = request.txn;
        let waiting = self.state.sequencer.in_flight.pop_front();
        let Some(waiting) = waiting else {
            panic!("transaction {txn} was run here and is not known here");
        };
        assert_eq!(waiting.txn, txn, "requests are run in their order");
        let Some(ticket) = waiting.ticket else { return };
        let outcome = match finished.outcome {
            Ok(result) => Outcome::Committed { txn, version, result },
            Err(abort) => {
                self.state.counters.txns_aborted += 1;
                Outcome::Aborted(abort)
            }
        };
        let first_run = match finished.passes {
            1 => FirstRun::Absent,
            _ => FirstRun::Fell(None),
        };
        cx.reply_of_run(ticket, outcome, first_run);
    }
}

fn job_of(request: &Request) -> Job<'_> {
    Job { txn: request.txn, program: &request.program, footprint: request.footprint.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::super::batch::tests::batch;
    use super::*;

    #[test]
    fn slices_follow_each_other_over_the_ends_of_batches() {
        let empty = Batch { requests: Vec::new(), ..batch() };
        let batches = [batch(), empty, batch()].map(Arc::new).to_vec();
        let (cut, next, own) = (Cut::default(), (0, 0), Vec::new());
        let mut running = Running { epoch: SnapshotVersion(1), cut, batches, next, own };
        let mut seen = Vec::new();
        while !running.is_done() {
            let slice: Vec<_> = running.slice(2).iter().map(|it| it.txn.sequence()).collect();
            running.advance(slice.len());
            seen.push(slice);
        }
        assert_eq!(seen, [[40, 41], [42, 40], [41, 42]]);
    }
}
