//! Distributed execution of an epoch (§3.1, §3.2): each group's batches are cut into slices, the
//! slices of all groups form the serial order, and each shard runs the transactions that it
//! participates in. It sends and receives no rows for a divisible program, so the record of an
//! epoch has none.

use std::collections::BTreeMap;

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::{Ended, RemoteReads, Served, ShardOutcome};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::RecordHeader;

use super::super::interleaving::rounds;
use super::super::scheduler::RUN_BYTES;
use super::super::{Calvin, Cut};
use super::remote_results::RemoteResult;
use super::results::LocalRequest;
use super::slice::{CutId, Slice, SliceBatch as OfBatch};
use super::upgrade::EpochCode;
use super::{EPOCHS_MAX, OwnEpoch, PENDING_MAX, Shards};
use crate::inputs::attempt;

impl Calvin {
    /// §3.1: cuts the group's next epochs into one slice for each shard.
    pub(super) fn slice_epochs(&mut self, cx: &mut Cx<'_, Self>) {
        loop {
            let epoch = self.shards().sliced.next();
            let Some(cut) = self.state.inputs.cut_of(cx, epoch) else { return };
            self.slice_epoch(cx, epoch, cut);
        }
    }

    /// Cuts one epoch into slices. Its batches have all arrived.
    pub(in super::super) fn slice_epoch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: Cut,
    ) {
        cx.begin_work();
        let inputs = &self.state.inputs;
        let shards = self.state.shards.as_ref().expect("only called if tables are partitioned");
        self.note_begun(cx, &cut);
        let batches = inputs.batches_between(&shards.sliced_heads, &cut);
        let mut slices: BTreeMap<ShardId, Vec<OfBatch>> = BTreeMap::new();
        let mut local_requests = Vec::new();
        let mut count = 0;
        for (round, batch) in rounds(batches) {
            let (round, sequencer) = (round as u64, inputs.node(batch.source));
            local_requests.extend(batch.requests.iter().filter_map(|request| {
                let origin = self.origin_of(request)?;
                let local = LocalRequest::new(origin, epoch, request.shards);
                Some((TxnId::new(sequencer, request.txn.sequence()), local))
            }));
            count += batch.requests.len();
            for request in &batch.requests {
                for shard in request.shards.iter() {
                    let of_shard = slices.entry(shard).or_default();
                    if of_shard
                        .last()
                        .is_none_or(|it| (it.round, it.sequencer) != (round, sequencer))
                    {
                        of_shard.push(OfBatch { round, sequencer, requests: Vec::new() });
                    }
                    let part = of_shard.last_mut().expect("the batch was added above");
                    part.requests.push(request.clone().named(sequencer));
                }
            }
        }
        cx.mark("calvin.sliced");
        let is_decided = self.state.inputs.decided_before().is_none_or(|upto| epoch <= upto);
        if !is_decided {
            cx.mark("calvin.early_slice");
        }
        let shards = self.shards();
        let here = shards.own_shard;
        let all: Vec<ShardId> = shards.streams.keys().copied().collect();
        let of_cut = CutId::new(&cut);
        let slice = |batches| Slice::new(epoch, here, of_cut, batches).with_decided(is_decided);
        for shard in all {
            let of_shard = slices.remove(&shard).unwrap_or_default();
            shards.send_slice(cx, shard, slice(of_shard));
        }
        for (head, upto) in shards.sliced_heads.iter_mut().zip(&cut.heads) {
            *head = (*head).max(*upto);
        }
        let slice = slice(slices.remove(&here).unwrap_or_default());
        let named = local_requests.iter().map(|(txn, _)| *txn).collect();
        shards.local_requests.extend(local_requests);
        shards.own.insert(epoch, OwnEpoch { cut, slice, local_requests: named });
        shards.sliced = epoch;
        cx.end_work(CpuStage::Slice, count);
    }

    /// Passes the next epoch to the executor, if the limit of running epochs allows it and the
    /// slices of all shards have arrived. Returns whether it did.
    pub(super) fn schedule_epoch(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        let applied = self.state.inputs.cut.applied;
        let (is_frozen, has_failed) = (self.is_frozen(), self.state.inputs.has_failed);
        // A peer's checkpoint must contain all epochs that are partly applied when it arrives.
        let is_transfer = self.state.inputs.wants_checkpoint();
        let shards = self.shards();
        let epoch = shards.scheduled_upto.next();
        let is_first = shards.scheduled_upto == applied;
        let is_full = epoch.0 > applied.0 + EPOCHS_MAX || shards.sharded.len() >= PENDING_MAX;
        if is_frozen || has_failed || !is_first && (is_full || is_transfer) {
            return false;
        }
        if !shards.own.contains_key(&epoch) {
            return false;
        }
        match self.code_of_epoch(epoch) {
            None => {
                cx.mark("calvin.epoch_waits_for_slice");
                return false;
            }
            Some(EpochCode::Other(code)) => {
                // Earlier epochs run first, so that a checkpoint contains them.
                if is_first {
                    self.state.inputs.refuse(cx, epoch, code);
                }
                return false;
            }
            Some(EpochCode::Mixed) => {
                cx.mark("calvin.epoch_of_two_programs");
                self.shards().pass_over(epoch);
                return true;
            }
            Some(EpochCode::Own) => {}
        }
        let given = attempt(cx, |cx| self.give_epoch(cx, epoch));
        self.state.inputs.note_attempt_of_shard(cx, (epoch, epoch), given);
        !self.state.inputs.has_failed
    }

    /// Passes an epoch to the executor. The slices of all shards have arrived.
    fn give_epoch(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion) {
        let registry = self.state.registry.clone();
        let me = self.state.inputs.node(self.state.inputs.replica.me);
        let shards = self.shards();
        cx.begin_work();
        let received = shards.streams.values().map(|stream| &stream.inbound.slices[&epoch]);
        let own = &shards.own[&epoch];
        let batches = received.chain([&own.slice]).flat_map(|slice| &slice.batches);
        let mut order: Vec<&OfBatch> = batches.collect();
        order.sort_by_key(|batch| (batch.round, batch.sequencer));
        mutate!(RegionsOrderDiffers: () => regions_order_differs(&mut order, shards, me));
        let mut count = 0;
        for batch in order {
            let home = shards.topology.nodes[batch.sequencer.index()].shard;
            for request in &batch.requests {
                let program = (&request.program, request.footprint.as_ref());
                shards.sharded.push(&registry, epoch, request.txn, home, program);
                count += 1;
            }
        }
        shards.scheduled_upto = epoch;
        cx.end_work(CpuStage::Lock, count);
        self.state.inputs.replica.owe(count * RUN_BYTES);
        self.take_received_before(cx, epoch);
    }

    /// Runs some of the transactions that are ready, and ends the epochs of which they were the
    /// last.
    pub(in super::super) fn run_given(&mut self, cx: &mut Cx<'_, Self>) {
        let (applied, given) = (self.state.inputs.cut.applied, self.shards().scheduled_upto);
        if applied < given && !self.state.inputs.has_failed {
            let run = attempt(cx, |cx| self.run_ready(cx, given));
            self.state.inputs.note_attempt_of_shard(cx, (applied.next(), given), run);
        }
    }

    fn run_ready(&mut self, cx: &mut Cx<'_, Self>, given: SnapshotVersion) {
        let registry = self.state.registry.clone();
        let header = &|job: &pangea_core::exec::ordered::Job<'_>| RecordHeader::new(job.txn);
        self.overwrite_unneeded(cx);
        cx.begin_work();
        let most = self.state.options.slice_txns.get().saturating_mul(cx.pool.workers());
        let shards = self.shards();
        let (served, ended) = shards.sharded.advance(cx.pool, &registry, cx.store, header, most);
        let is_more = shards.sharded.is_ready();
        shards.has_yielded = is_more;
        let oldest = shards.sharded.oldest();
        let count = served.len() + ended.len();
        cx.end_work(CpuStage::Order, count);
        if is_more {
            // First the messages that other nodes wait for are sent, and those that have arrived
            // are handled.
            cx.mark("calvin.epoch_in_steps");
            cx.resume();
        } else if oldest.is_some() {
            cx.mark("calvin.waits_for_rows");
        }
        cx.begin_work();
        self.serve(cx, served, &ended);
        self.note_ended(cx, ended);
        cx.end_work(CpuStage::Serve, count);
        self.end_divided_epochs(cx, given, oldest);
    }

    /// Ends the epochs that were passed to the executor and are before the oldest unfinished one.
    fn end_divided_epochs(
        &mut self,
        cx: &mut Cx<'_, Self>,
        scheduled_upto: SnapshotVersion,
        oldest: Option<SnapshotVersion>,
    ) {
        loop {
            let epoch = self.state.inputs.cut.applied.next();
            if epoch > scheduled_upto || oldest.is_some_and(|oldest| oldest <= epoch) {
                return;
            }
            if epoch < scheduled_upto {
                cx.mark("calvin.epochs_overlap");
            }
            self.end_divided_epoch(cx, epoch);
        }
    }

    /// §3.2, phase 3: sends rows to the active participants, and outcomes to the shards that
    /// sequenced a transaction and do not run it.
    fn serve(&mut self, cx: &mut Cx<'_, Self>, served: Vec<Served>, ended: &[Ended]) {
        let shards = self.shards();
        let mut by_shard: BTreeMap<(SnapshotVersion, ShardId), Vec<RemoteResult>> = BTreeMap::new();
        for Served { txn, version, to, part } in served {
            if matches!(part, RemoteReads::TooLarge(_)) {
                cx.mark("calvin.part_too_large");
            }
            for shard in to.iter() {
                by_shard
                    .entry((version, shard))
                    .or_default()
                    .push(RemoteResult::Reads(txn, part.clone()));
            }
        }
        for Ended { txn, version, active, outcome } in ended {
            // The first of the active participants sends the outcome.
            let home = shards.shard_of(txn.node());
            if active.iter().next() == Some(shards.own_shard) && !active.contains(home) {
                let results = by_shard.entry((*version, home)).or_default();
                results.push(RemoteResult::Outcome(*txn, outcome.clone()));
            }
        }
        for ((epoch, shard), results) in by_shard {
            cx.mark("calvin.served");
            let line = shards.line_of(epoch).expect("the epoch is running");
            shards.send_results(cx, shard, ((epoch, line), &results));
        }
    }

    /// Retains the outcomes of the transactions of a replica that has the checkpoint turn.
    pub(super) fn retain_for_peer(&mut self, cx: &mut Cx<'_, Self>, ended: &[Ended]) {
        let mut of: BTreeMap<(NodeId, SnapshotVersion), Vec<(u64, ShardOutcome)>> = BTreeMap::new();
        for Ended { txn, version, outcome, .. } in ended {
            let turn = self.shards().own.get(version).and_then(|own| own.cut.turn);
            if let Some(replica) = self.outcomes_retained_for(turn)
                && self.state.inputs.node(replica) == txn.node()
            {
                of.entry((replica, *version)).or_default().push((txn.sequence(), outcome.clone()));
            }
        }
        for ((replica, version), results) in of {
            self.retain_outcomes(cx, replica, (version, &results));
        }
    }

    /// Ends an epoch whose writes are all in this shard's store: advances the applied epoch, and
    /// answers the clients that need not wait for its confirmation.
    fn end_divided_epoch(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion) {
        cx.begin_work();
        let shards = self.shards();
        let line = shards.line_of(epoch).expect("the epoch was started");
        let cut = shards.own[&epoch].cut.clone();
        let received = shards.streams.values().map(|stream| &stream.inbound.slices[&epoch]);
        let slices = received.chain([&shards.own[&epoch].slice]);
        let batches = slices.flat_map(|slice| &slice.batches);
        let count = batches.map(|batch| batch.requests.len()).sum();
        let received = shards.received.get(&epoch).and_then(|lines| lines.get(&line));
        // Rows that arrived twice.
        for (_, txn) in received.into_iter().flat_map(BTreeMap::keys) {
            shards.sharded.forget(*txn);
        }
        self.state.inputs.finish_epoch(cx, epoch, &cut);
        self.note_master_terms(cx, epoch);
        self.answer_early(cx, epoch);
        self.confirm_divided(cx);
        self.state.inputs.reclaim(cx);
        cx.end_work(CpuStage::Settle, count);
    }
}

impl super::super::batch::Request {
    /// The same request under the name that all shards use for it.
    fn named(self, sequencer: NodeId) -> Self {
        Self { txn: TxnId::new(sequencer, self.txn.sequence()), ..self }
    }
}

fn regions_order_differs(order: &mut [&OfBatch], shards: &Shards, me: NodeId) {
    if shards.topology.nodes[me.index()].region.0 == 0 {
        order.sort_by_key(|batch| (batch.sequencer, batch.round));
    }
}
