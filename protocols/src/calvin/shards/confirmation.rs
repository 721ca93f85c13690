//! Confirms epochs, and rolls back if epochs were run on void slices (§3.1.1, asynchronous).
//!
//! ```text
//!   master of group 0       node of shard 1
//!     | == Slice(n, early) ==> |  runs epoch n
//!     | == Decided(n) =======> |  confirms it: log, checkpoints, what waits for that
//!
//!     | == Slice(n, early) ==> |  runs epoch n
//!     | another cut n is decided
//!     | == Slice(n) =========> |  goes back to before n, and runs it again
//! ```

use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::super::recovery::{EpochRecord, ShardEpochRecord};
use super::super::{Calvin, Message};
use super::remote_results::{RemoteResult, RemoteResults};
use super::slice::{Lineage, Slice};
use super::{OwnEpoch, Received, ShardStream, Shards};
use crate::inputs::ProposalName;

impl Calvin {
    /// The last epoch that this node has run and confirmed.
    pub(in super::super) fn confirmed(&self) -> SnapshotVersion {
        self.state.inputs.cut.confirmed.epoch
    }

    /// Confirms the epochs that have run and of which all cuts are decided.
    pub(in super::super) fn confirm_divided(&mut self, cx: &mut Cx<'_, Self>) {
        self.send_slices_decided(cx);
        loop {
            let epoch = self.confirmed().next();
            let applied = self.state.inputs.cut.applied;
            let shards = self.shards();
            let decided = shards.streams.values().map(|stream| stream.inbound.decided);
            let decided = decided.chain([shards.decided, applied]).min().unwrap_or_default();
            if epoch > decided {
                return;
            }
            self.confirm_divided_epoch(cx, epoch);
        }
    }

    fn confirm_divided_epoch(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion) {
        let is_replay = !self.state.inputs.cut.driver.is_started();
        let shards = self.shards();
        let line = shards.line_of(epoch).expect("the epoch was run");
        let OwnEpoch { cut, local_requests, .. } =
            shards.own.remove(&epoch).expect("the epoch was run");
        let of_shards = shards.take_epoch((epoch, line));
        if !is_replay {
            let record = EpochRecord { epoch, cut: Some(cut.clone()), of_shards: Some(of_shards) };
            let position = self.state.inputs.log_epoch(cx, epoch, record.encode().into());
            self.shards().records.insert(epoch, position);
            self.retain_records();
        }
        // No reader sees an epoch that may be rolled back, because the nodes would not roll back
        // all at once.
        cx.store.publish(epoch);
        self.state.inputs.confirm(cx, epoch, &cut);
        self.checkpoint_if_due(cx);
        self.settle_confirmed(cx, (epoch, line), local_requests);
        self.answer_void_requests(cx, &cut);
        self.state.inputs.release_barriers(cx, &cut);
        self.read_released(cx);
    }

    /// Announces to the other shards that the cuts of slices sent early are now decided.
    fn send_slices_decided(&mut self, cx: &mut Cx<'_, Self>) {
        let before = self.state.inputs.decided_before();
        let shards = self.shards();
        let (from, sliced) = (shards.decided, shards.sliced);
        let upto = before.map_or(sliced, |before| before.min(sliced));
        if upto <= from {
            return;
        }
        shards.decided = upto;
        let mut is_news = false;
        for (_, own) in shards.own.range_mut(from.next()..=upto) {
            is_news |= !std::mem::replace(&mut own.slice.is_decided, true);
        }
        let Some(own) = shards.own.get(&upto).filter(|_| is_news) else { return };
        let name = own.cut.name;
        for stream in shards.streams.values_mut() {
            let slices = stream.outbound.slices.range_mut(from.next()..=upto);
            slices.for_each(|(_, slice)| slice.is_decided = true);
            for node in &stream.outbound.subscribers {
                cx.send(*node, Message::SlicesDecided { upto, name });
            }
        }
    }

    /// Handles a source's announcement that slices sent early are decided.
    pub(in super::super) fn on_slices_decided(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        upto: SnapshotVersion,
        name: ProposalName,
    ) {
        let shards = self.shards();
        let shard = shards.shard_of(from);
        let stream = shards.stream(shard);
        if stream.inbound.source != from || upto <= stream.inbound.decided {
            return cx.mark("calvin.decided_again");
        }
        if stream.inbound.slices.get(&upto).is_some_and(|slice| slice.cut.name == name) {
            let received = stream.inbound.slices.range_mut(..=upto);
            received.for_each(|(_, slice)| slice.is_decided = true);
            stream.raise_decided();
        } else if !std::mem::replace(&mut stream.inbound.has_resubscribed, true) {
            // It refers to a slice that this node does not have: some were lost with a connection.
            cx.mark("calvin.decided_after_gap");
            self.subscribe(cx, shard);
        }
    }

    /// Handles a slice for an epoch of which this node has an undecided one. Returns whether the
    /// new slice is of another cut and replaces it.
    pub(super) fn is_replaced(
        &mut self,
        cx: &mut Cx<'_, Self>,
        shard: ShardId,
        slice: &Slice,
    ) -> bool {
        let stream = self.shards().stream(shard);
        let epoch = slice.epoch;
        let Some(known) = stream.inbound.slices.get_mut(&epoch) else { return false };
        if known.cut.name == slice.cut.name {
            known.is_decided |= slice.is_decided;
            stream.raise_decided();
            return false;
        }
        if known.is_decided {
            return false;
        }
        cx.mark("calvin.slice_void");
        let is_run = self.shards().scheduled_upto >= epoch;
        if is_run {
            mutate!(NeighbourStays: () => return neighbour_stays(self.shards().stream(shard)));
            self.roll_back_to(cx, SnapshotVersion(epoch.0 - 1));
        }
        let stream = self.shards().stream(shard);
        stream.inbound.slices.split_off(&epoch);
        stream.inbound.upto = SnapshotVersion(epoch.0 - 1);
        true
    }

    /// Handles that cuts of this node's group from an epoch on, which it has sent to other shards,
    /// are void.
    pub(in super::super) fn void_own(&mut self, cx: &mut Cx<'_, Self>, from: SnapshotVersion) {
        if self.shards().scheduled_upto >= from {
            self.roll_back_to(cx, SnapshotVersion(from.0 - 1));
        }
        let shards = self.shards();
        assert!(shards.decided < from, "decided cuts are not void");
        for own in shards.own.split_off(&from).into_values() {
            for txn in own.local_requests {
                shards.local_requests.remove(&txn);
                shards.results.remove(&txn);
            }
        }
        for stream in shards.streams.values_mut() {
            stream.outbound.slices.split_off(&from);
            stream.outbound.paused.clear();
        }
        let sliced = shards.sliced.min(SnapshotVersion(from.0 - 1));
        let heads = self.state.inputs.heads_at(sliced);
        (self.shards().sliced, self.shards().sliced_heads) = (sliced, heads);
    }

    /// Rolls back to this epoch, or to the last complete one before it, because later epochs ran on
    /// void slices. The rows of later epochs are sent again.
    pub(in super::super) fn roll_back_to(&mut self, cx: &mut Cx<'_, Self>, upto: SnapshotVersion) {
        cx.mark("calvin.went_back");
        let upto = upto.min(self.state.inputs.cut.applied);
        self.state.inputs.retreat(cx, upto);
        let shards = self.shards();
        shards.reschedule_from(upto);
        shards.has_yielded = false;
        for own in shards.own.range(upto.next()..).map(|(_, own)| own) {
            own.local_requests.iter().for_each(|txn| drop(shards.results.remove(txn)));
        }
        for (shard, stream) in &mut shards.streams {
            stream.outbound.results.split_off(&upto.next());
            stream.outbound.paused.clear();
            let last = stream
                .inbound
                .slices
                .range(..=upto)
                .rev()
                .find_map(|(_, it)| stream.master_term_of(it));
            stream.masters.applied = last.or(stream.masters.confirmed);
            if stream.masters.applied.is_some() {
                cx.master_term(*shard, upto, stream.masters.applied, false);
            }
        }
    }

    /// Rolls back to the confirmed epoch before a peer's checkpoint is installed. The checkpoint
    /// contains only decided epochs, which may differ from those that ran here early.
    pub(in super::super) fn roll_back_to_confirmed(&mut self, cx: &mut Cx<'_, Self>) {
        let confirmed = self.confirmed();
        let is_early = self.state.shards.as_ref().is_some_and(|it| it.scheduled_upto > confirmed);
        if is_early && self.state.inputs.is_asynchronous() {
            self.roll_back_to(cx, confirmed);
        }
    }

    /// Reports the master terms of the other shards in an epoch that has run, if they are new.
    pub(super) fn note_master_terms(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion) {
        for (shard, stream) in &mut self.shards().streams {
            let master_term = stream.master_term_of(&stream.inbound.slices[&epoch]);
            if master_term.is_some() && stream.masters.applied != master_term {
                stream.masters.applied = master_term;
                cx.master_term(*shard, epoch, master_term, false);
            }
        }
    }
}

impl ShardStream {
    /// The master whose transactions are in a slice, and the first number of its master term.
    fn master_term_of(&self, slice: &Slice) -> Option<(NodeId, u64)> {
        Some((self.group[slice.cut.name.proposer.index()], slice.cut.first?))
    }

    /// Advances `decided` over all received slices of decided cuts without a gap.
    pub(super) fn raise_decided(&mut self) {
        while self
            .inbound
            .slices
            .get(&self.inbound.decided.next())
            .is_some_and(|slice| slice.is_decided)
        {
            self.inbound.decided = self.inbound.decided.next();
        }
    }
}

impl Shards {
    /// Takes the messages from and to other shards of a confirmed epoch, for its log record.
    fn take_epoch(&mut self, (epoch, line): (SnapshotVersion, Lineage)) -> ShardEpochRecord {
        let mut of_shards = ShardEpochRecord::default();
        for (shard, stream) in &mut self.streams {
            let slice = stream.inbound.slices.remove(&epoch).expect("the epoch was run");
            stream.masters.confirmed = stream.master_term_of(&slice).or(stream.masters.confirmed);
            of_shards.received_slices.push(slice);
            of_shards.add_sent(*shard, stream, epoch);
            of_shards.dropped.push((*shard, stream.outbound.dropped));
        }
        let mut lines = self.received.remove(&epoch).unwrap_or_default();
        let received = by_shard((epoch, line), lines.remove(&line).unwrap_or_default());
        of_shards.received = mutate!(ReceivedNotLogged: received => Vec::new());
        of_shards
    }
}

/// The rows that each shard sent, as if in one message.
fn by_shard(at: (SnapshotVersion, Lineage), received: Received) -> Vec<(ShardId, RemoteResults)> {
    let mut of: BTreeMap<ShardId, Vec<RemoteResult>> = BTreeMap::new();
    let is_part =
        |(_, item): &((ShardId, TxnId), RemoteResult)| matches!(item, RemoteResult::Reads(..));
    for ((shard, _), item) in received.into_iter().filter(is_part) {
        of.entry(shard).or_default().push(item);
    }
    of.into_iter().map(|(shard, results)| (shard, RemoteResults::new(at, &results))).collect()
}

fn neighbour_stays(stream: &mut ShardStream) -> bool {
    stream.inbound.slices.values_mut().for_each(|slice| slice.is_decided = true);
    stream.raise_decided();
    false
}
