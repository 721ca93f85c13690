//! Reliable delivery between the nodes of a region.
//!
//! ```text
//!   receiver                       sender
//!      | Subscribe(slices, results)->|      on connect, or if another replica is unreachable
//!      |<== Slice, RemoteResults ====|      the retained messages after those, and new ones
//!      |<== Resubscribe =============|      if the backlog is large
//!      | Subscribe, goes on -------->|      the rest of it
//!      | ShardProgress(upto, ..) --->|      all replicas of the receiver's shard have it;
//!      |                             |      the receiver's progress, and the node it waits for
//!      |<-- Truncated(epoch) --------|      the requested epochs are no longer retained
//! ```

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::{Cx, Message as _};
use pangea_core::time::Span;

use super::super::{Calvin, Message};
use super::chunks::SliceChunk;
use super::remote_results::{RemoteResult, RemoteResults};
use super::results::LocalRequest;
use super::slice::{Lineage, Slice};
use super::{AHEAD_MAX, Sent, ShardStream, Shards};
use crate::inputs::PROGRESS;

/// A replica that is at least this number of epochs behind others of its shard is no longer used as
/// a source.
const STRAGGLES: u64 = 64;

/// The maximum size of the backlog sent at once to a new subscriber, in full messages.
const BACKLOG_MESSAGES: usize = 4;
/// If the replica of the region is unreachable for longer than this, another one is used.
const PATIENCE: Span = Span::from_ms(300);

impl Calvin {
    /// Handles a new connection to a node of another shard.
    pub(in super::super) fn on_shard_node_up(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let Some(shards) = &mut self.state.shards else { return };
        shards.up.insert(peer);
        let shard = shards.shard_of(peer);
        let is_source_up = shards.up.contains(&shards.streams[&shard].inbound.source);
        let stream = shards.stream(shard);
        stream.outbound.progress_sent = None;
        if let Some(at) = self.frozen_from() {
            cx.send(peer, Message::Frozen { at });
        }
        let stream = self.shards().stream(shard);
        if stream.inbound.source == peer || stream.replicas[0] == peer && !is_source_up {
            self.switch_source(cx, shard, peer);
        }
    }

    /// Handles the loss of a connection to a node of another shard.
    pub(in super::super) fn on_shard_node_down(&mut self, cx: &Cx<'_, Self>, peer: NodeId) {
        let Some(shards) = &mut self.state.shards else { return };
        shards.up.remove(&peer);
        let shard = shards.shard_of(peer);
        let stream = shards.stream(shard);
        stream.outbound.unsubscribe(peer);
        stream.reports.forget(peer);
        if stream.inbound.source == peer {
            stream.inbound.away_since = cx.now.at;
        }
    }

    /// Switches to another replica if the present source has been unreachable for some time or is
    /// far behind.
    pub(in super::super) fn replace_unreachable_sources(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(shards) = &mut self.state.shards else { return };
        shards.streams.values_mut().for_each(|stream| stream.inbound.has_resubscribed = false);
        let is_up = |node: &&NodeId| shards.up.contains(node);
        let is_away = |stream: &ShardStream| {
            !is_up(&&stream.inbound.source)
                && cx.now.at.since(stream.inbound.away_since).us >= PATIENCE.us
        };
        let away = shards.streams.iter().filter(|(_, stream)| is_away(stream));
        let others = away.filter_map(|(shard, stream)| {
            let is_usable =
                |node: &&NodeId| is_up(node) && !stream.reports.frozen.contains_key(node);
            stream.replicas.iter().find(is_usable).map(|other| (*shard, *other))
        });
        for (shard, other) in others.collect::<Vec<_>>() {
            cx.mark("calvin.other_replica_asked");
            self.switch_source(cx, shard, other);
        }
        self.leave_stragglers(cx);
        self.return_to_own_region(cx);
    }

    /// Leaves a source that is far behind the other replicas of its shard and not ahead of this
    /// node: it would stop this node needlessly.
    fn leave_stragglers(&mut self, cx: &mut Cx<'_, Self>) {
        let (applied, straggles) = (self.confirmed(), self.straggles());
        let streams = &self.shards().streams;
        let leave = streams.iter().filter_map(|(shard, stream)| {
            let (first, most) = stream.furthest(applied)?;
            let source = *stream.reports.applied.get(&stream.inbound.source)?;
            let is_behind = source <= applied && source.0 + straggles < most.0;
            is_behind.then_some((*shard, first, stream.inbound.source))
        });
        for (shard, other, before) in leave.collect::<Vec<_>>() {
            cx.mark("calvin.straggler_left");
            cx.send(before, Message::Unsubscribe {});
            self.switch_source(cx, shard, other);
        }
    }

    /// Returns to the region's own replica once it is connected, has everything that this node
    /// needs, and keeps up.
    fn return_to_own_region(&mut self, cx: &mut Cx<'_, Self>) {
        let (applied, straggles) = (self.confirmed(), self.straggles());
        let shards = self.shards();
        let has_all = |stream: &ShardStream| {
            let own = stream.replicas[0];
            let most = stream.furthest(applied).map_or(SnapshotVersion::ZERO, |(_, most)| most);
            let keeps_up = |upto: &SnapshotVersion| upto.0 + straggles / 2 >= most.0;
            stream.inbound.source != own
                && !stream.reports.frozen.contains_key(&own)
                && shards.up.contains(&own)
                && stream.may_have(own, applied)
                && stream.reports.applied.get(&own).is_some_and(keeps_up)
        };
        let back = shards.streams.iter().filter(|(_, stream)| has_all(stream));
        let back: Vec<_> = back
            .map(|(shard, stream)| (*shard, stream.replicas[0], stream.inbound.source))
            .collect();
        for (shard, own, before) in back {
            cx.send(before, Message::Unsubscribe {});
            self.switch_source(cx, shard, own);
        }
    }

    /// The number of epochs behind others at which a replica is no longer used: more than run
    /// between two progress reports of each.
    fn straggles(&self) -> u64 {
        STRAGGLES + 2 * PROGRESS.us / self.state.inputs.settings.epoch.us
    }

    /// Switches to this replica as the source of another shard's messages.
    fn switch_source(&mut self, cx: &mut Cx<'_, Self>, shard: ShardId, source: NodeId) {
        self.shards().stream(shard).inbound.source = source;
        self.subscribe(cx, shard);
        self.repeat_lookups(cx, shard);
    }

    /// Requests everything that this node does not have.
    pub(super) fn subscribe(&mut self, cx: &mut Cx<'_, Self>, shard: ShardId) {
        self.subscribe_to(cx, shard, false);
    }

    fn subscribe_to(&mut self, cx: &mut Cx<'_, Self>, shard: ShardId, is_continued: bool) {
        let confirmed = self.confirmed();
        let shards = self.shards();
        // An outcome may arrive long after its epoch.
        let upto = shards.outcomes_upto();
        let results = upto.get(&shard).map_or(confirmed, |upto| confirmed.min(*upto));
        let stream = shards.stream(shard);
        // A slice that is not known to be decided may be a different one on the new source.
        let (slices, source) =
            (stream.inbound.decided.max(stream.inbound.truncated), stream.inbound.source);
        cx.mark("calvin.subscribed");
        cx.send(source, Message::Subscribe { slices, results, is_continued });
    }

    /// Forgets the subscription of a node of another shard, which gets the slices elsewhere now.
    pub(in super::super) fn on_unsubscribe(&mut self, from: NodeId, shard: ShardId) {
        self.shards().stream(shard).outbound.unsubscribe(from);
    }

    /// Handles the subscription of a node of another shard.
    pub(in super::super) fn on_subscribe(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (slices, results): (SnapshotVersion, SnapshotVersion),
        is_continued: bool,
    ) {
        let may_be_early = self.state.inputs.is_asynchronous();
        let shards = self.shards();
        let (shard, message_bytes) = (shards.shard_of(from), shards.message_bytes);
        let stream = shards.stream(shard);
        let mut sent =
            stream.outbound.paused.remove(&from).filter(|_| is_continued).unwrap_or_default();
        if slices.min(results) < stream.outbound.dropped {
            cx.mark("calvin.missed_told");
            cx.send(from, Message::Truncated { upto: stream.outbound.dropped });
        }
        let kept = stream.outbound.slices.keys().chain(stream.outbound.results.keys()).copied();
        let epochs: BTreeSet<SnapshotVersion> =
            kept.filter(|epoch| *epoch > slices.min(results)).collect();
        let mut left = BACKLOG_MESSAGES * message_bytes;
        for epoch in epochs {
            let done = sent.entry(epoch).or_default();
            for message in stream.after(epoch, (slices, results), *done, message_bytes) {
                if left == 0 {
                    // Messages created in the meantime are retained.
                    stream.outbound.subscribers.remove(&from);
                    stream.outbound.paused.insert(from, sent);
                    cx.mark("calvin.more");
                    return cx.send(from, Message::Resubscribe {});
                }
                left = left.saturating_sub(message.payload_bytes());
                match &message {
                    Message::RemoteResults { .. } => done.results += 1,
                    _ => done.slice += 1,
                }
                cx.send(from, message);
            }
        }
        stream.outbound.subscribers.insert(from);
        let decided = stream.outbound.slices.values().rev().find(|slice| slice.is_decided);
        let is_late = is_continued && may_be_early;
        if let Some(last) = decided.filter(|last| is_late && last.epoch > slices) {
            // The announcement of earlier slices as decided may have been sent only to subscribers.
            cx.send(from, Message::SlicesDecided { upto: last.epoch, name: last.cut.name });
        }
    }

    /// Handles the report that this node's subscription was not served completely.
    pub(in super::super) fn on_resubscribe(&mut self, cx: &mut Cx<'_, Self>, from: NodeId) {
        let shards = self.shards();
        let shard = shards.shard_of(from);
        if shards.stream(shard).inbound.source == from {
            self.subscribe_to(cx, shard, true);
        }
    }

    /// Handles a chunk of a slice from another shard.
    pub(in super::super) fn on_slice_chunk(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        chunk: SliceChunk,
    ) {
        let shards = self.shards();
        let shard = shards.shard_of(from);
        let stream = shards.stream(shard);
        let may_be_next =
            chunk.epoch > stream.inbound.decided && chunk.epoch <= stream.inbound.upto.next();
        if stream.inbound.source != from || !may_be_next {
            // The first chunk stands for all.
            if chunk.is_first() {
                self.on_slice_out_of_turn(cx, from, chunk.epoch);
            }
            return;
        }
        let is_decided = chunk.is_decided;
        let Some(whole) = stream.inbound.chunks.add(chunk) else { return };
        match Slice::decode(&whole) {
            Ok(slice) => self.on_slice(cx, from, slice.with_decided(is_decided)),
            Err(_) => cx.mark("calvin.slice_of_another"),
        }
    }

    /// Handles a slice from another shard.
    pub(in super::super) fn on_slice(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, slice: Slice) {
        let confirmed = self.confirmed();
        let shards = self.shards();
        let (shard, topology) = (shards.shard_of(from), shards.topology.clone());
        let stream = shards.stream(shard);
        let is_of = |node: NodeId| {
            topology.nodes.get(node.index()).is_some_and(|place| place.shard == shard)
        };
        let is_proposer = slice.cut.name.proposer.index() < stream.group.len();
        let is_of_it = slice.batches.iter().all(|batch| is_of(batch.sequencer));
        if slice.shard != shard || !is_of_it || !is_proposer {
            return cx.mark("calvin.slice_of_another");
        }
        // Only the source may send early slices and their replacements.
        let may_be_early = stream.inbound.source == from;
        let is_next = slice.epoch == stream.inbound.upto.next();
        let follows = is_next && slice.is_decided && stream.inbound.decided == stream.inbound.upto;
        if !may_be_early && !follows {
            return self.on_slice_out_of_turn(cx, from, slice.epoch);
        }
        if !is_next && !self.is_replaced(cx, shard, &slice) {
            return self.on_slice_out_of_turn(cx, from, slice.epoch);
        }
        let stream = self.shards().stream(shard);
        stream.inbound.upto = slice.epoch;
        stream.inbound.has_resubscribed = false;
        if slice.epoch > confirmed {
            stream.inbound.slices.insert(slice.epoch, slice);
            stream.raise_decided();
        }
    }

    /// Handles a slice that does not follow the previous ones.
    fn on_slice_out_of_turn(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        epoch: SnapshotVersion,
    ) {
        let shards = self.shards();
        let shard = shards.shard_of(from);
        let stream = shards.stream(shard);
        if epoch <= stream.inbound.upto {
            return cx.mark("calvin.slice_again");
        }
        if stream.inbound.source != from {
            return cx.mark("calvin.slice_after_unsubscribed");
        }
        cx.mark("calvin.slice_after_gap");
        // Only once: the messages in flight after it are after the same gap.
        if !std::mem::replace(&mut stream.inbound.has_resubscribed, true) {
            self.subscribe(cx, shard);
        }
    }

    /// Handles rows and outcomes from another shard.
    pub(in super::super) fn on_remote_results(
        &mut self,
        cx: &mut Cx<'_, Self>,
        shard: ShardId,
        results: RemoteResults,
    ) {
        if results.epoch.0 > self.shards().stream(shard).inbound.upto.0 + AHEAD_MAX {
            // Slices arrive before the rows of their epochs.
            return cx.mark("calvin.items_too_far_ahead");
        }
        self.apply_results(cx, shard, &results);
    }

    /// Handles the report of another shard's node that it is frozen: switches to another replica if
    /// it is a source.
    pub(in super::super) fn on_source_frozen(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        at: SnapshotVersion,
    ) {
        let applied = self.confirmed();
        let shards = self.shards();
        let shard = shards.shard_of(from);
        let up = shards.up.clone();
        let stream = shards.stream(shard);
        stream.reports.frozen.insert(from, at);
        let is_usable = |node: &&NodeId| {
            let is_there = up.contains(node) && !stream.reports.frozen.contains_key(node);
            is_there && stream.may_have(**node, applied)
        };
        let other = stream.replicas.iter().find(is_usable).copied();
        if let Some(other) = other.filter(|_| stream.inbound.source == from) {
            cx.mark("calvin.source_frozen");
            cx.send(from, Message::Unsubscribe {});
            self.switch_source(cx, shard, other);
        }
    }

    /// The epoch at which this node is frozen: it sends no rows of later ones. Epochs that were
    /// passed to the executor before the freeze run to their end.
    fn frozen_from(&self) -> Option<SnapshotVersion> {
        let shards = self.state.shards.as_ref()?;
        self.state.inputs.extension.turns.frozen().map(|at| at.max(shards.scheduled_upto))
    }

    /// Informs the nodes of other shards that this one is frozen.
    pub(in super::super) fn send_frozen(&mut self, cx: &mut Cx<'_, Self>) {
        let (Some(shards), Some(at)) = (&self.state.shards, self.frozen_from()) else { return };
        shards.up.iter().for_each(|node| cx.send(*node, Message::Frozen { at }));
    }

    /// Handles the progress report of another shard's node: all members of its group have persisted
    /// the messages for epochs up to `upto`. The region's own replica may not be a member at the
    /// moment. What it may need is retained within limits (`settled.rs`).
    pub(in super::super) fn on_shard_progress(
        &mut self,
        from: NodeId,
        (upto, applied): (SnapshotVersion, SnapshotVersion),
        waits_for: Option<NodeId>,
    ) {
        let most = self.state.inputs.settings.retained_max();
        let shards = self.shards();
        let nodes = shards.topology.node_count();
        let stream = shards.stream(shards.shard_of(from));
        stream.reports.applied.insert(from, applied);
        match waits_for.filter(|node| node.index() < nodes) {
            Some(node) => stream.reports.waits_for.insert(from, node),
            None => stream.reports.waits_for.remove(&from),
        };
        if stream.reports.frozen.get(&from).is_some_and(|at| *at < applied) {
            stream.reports.frozen.remove(&from);
        }
        let is_own = stream.replicas[0] == from;
        let droppable = if is_own { upto } else { stream.outbound.settle(upto, most) };
        stream.drop_upto(droppable);
        let least =
            shards.streams.values().map(|stream| stream.outbound.dropped).min().unwrap_or_default();
        shards.records = shards.records.split_off(&least.next());
        self.retain_records();
    }

    /// Retains the log records of messages that may have to be sent again after a restart.
    pub(super) fn retain_records(&mut self) {
        let first = self.shards().records.values().min().copied();
        self.state.inputs.collection.kept_from = first;
    }

    /// Handles a source's report that it no longer has the epochs that this node needs. Another
    /// replica may have them; if none does, this node can only continue from a checkpoint. If this
    /// node has itself run all those epochs, only outcomes of its own transactions are missing,
    /// which the source would have to send.
    pub(in super::super) fn on_truncated(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        upto: SnapshotVersion,
    ) {
        cx.mark("calvin.missed");
        let applied = self.confirmed();
        let shards = self.shards();
        let shard = shards.shard_of(from);
        let up = shards.up.clone();
        let stream = shards.stream(shard);
        stream.inbound.truncated_at.insert(from, upto);
        if stream.inbound.source != from {
            return;
        }
        let may_have = |node: &&NodeId| up.contains(node) && stream.may_have(**node, applied);
        let is_run = upto <= applied;
        if !is_run && let Some(other) = stream.replicas.iter().find(may_have).copied() {
            cx.mark("calvin.other_replica_has_it");
            cx.send(from, Message::Unsubscribe {});
            return self.switch_source(cx, shard, other);
        }
        stream.inbound.upto = stream.inbound.upto.max(upto);
        stream.inbound.truncated = stream.inbound.truncated.max(upto);
        let is_lost = |request: &LocalRequest| {
            request.confirmed.is_some() && request.epoch <= upto && request.shards.contains(shard)
        };
        let lost = shards.local_requests.iter().filter(|(_, it)| is_lost(it)).map(|(txn, _)| *txn);
        let lost: Vec<TxnId> = lost.collect();
        lost.into_iter().for_each(|txn| self.lose_result(cx, txn));
        if is_run {
            return;
        }
        // The checkpoint must contain the partly applied epochs, unless this node can roll back.
        let given = self.shards().scheduled_upto;
        let least = if self.state.inputs.is_asynchronous() { upto } else { upto.max(given) };
        self.state.inputs.want_checkpoint(least);
    }

    /// Reports to the nodes of other shards the last epoch that all replicas of this shard have
    /// persisted, this node's progress, and the node for which it waits. Nodes of other regions are
    /// included, because the node of this shard in their region may be unreachable. An epoch counts
    /// only after all outcomes of this node's transactions in it have arrived, so that the shard
    /// that sends them retains it until then.
    pub(in super::super) fn send_shard_progress(&mut self, cx: &mut Cx<'_, Self>) {
        let upto = self.state.inputs.durable_everywhere();
        let (applied, waits_for) = (self.confirmed(), self.waits_for());
        let Some(shards) = &mut self.state.shards else { return };
        let outcomes_upto = shards.outcomes_upto();
        let Shards { streams, up, .. } = shards;
        for (shard, stream) in streams {
            let upto = outcomes_upto.get(shard).map_or(upto, |complete| upto.min(*complete));
            let news = Some((upto, applied, waits_for));
            if stream.outbound.progress_sent == news {
                continue;
            }
            stream.outbound.progress_sent = news;
            for node in stream.replicas.iter().filter(|node| up.contains(node)) {
                cx.send(*node, Message::ShardProgress { upto, applied, waits_for });
            }
        }
    }

    /// Handles a report on the other groups by a replica of this shard, which may see more than
    /// this node.
    pub(in super::super) fn on_group_progress(
        &mut self,
        least: SnapshotVersion,
        most: SnapshotVersion,
    ) {
        let inputs = &mut self.state.inputs;
        let last = inputs.last_epoch();
        // No group can be further ahead than that.
        inputs.follow(most.min(SnapshotVersion(last.0 + AHEAD_MAX)));
        let shards = self.shards();
        shards.reached_by_groups = shards.reached_by_groups.max(least.min(last));
    }

    /// Reports the other groups' progress to the group's coordinator, which may not reach the other
    /// nodes of its region.
    pub(in super::super) fn send_group_progress(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(leader) = self.leader() else { return };
        let Some(shards) = &mut self.state.shards else { return };
        let (least, most) = shards.reached();
        if shards.group_progress_sent.replace((leader, least)) != Some((leader, least)) {
            cx.send(leader, Message::GroupProgress { least, most });
        }
    }

    /// The group's coordinator, unless it is this node or unknown.
    fn leader(&self) -> Option<NodeId> {
        let inputs = &self.state.inputs;
        let leader = inputs.agreement().leader().filter(|leader| *leader != inputs.replica.me);
        leader.map(|leader| inputs.node(leader))
    }

    /// Reports at once that other groups are further ahead, if the coordinator does not notice it
    /// itself.
    pub(in super::super) fn report_lag(&mut self, cx: &mut Cx<'_, Self>) {
        let inputs = &self.state.inputs;
        let round_trip_us = inputs.replica.topology.round_trip_max().us;
        let patience = 3 + round_trip_us / inputs.settings.epoch.us;
        let (most, is_behind) = (inputs.pace.wanted, inputs.is_behind());
        let leader = self.leader();
        let Some(shards) = &mut self.state.shards else { return };
        shards.behind_for = if is_behind { shards.behind_for + 1 } else { 0 };
        if shards.behind_for > patience
            && let Some(leader) = leader
        {
            cx.mark("calvin.behind_told");
            let (least, _) = shards.reached();
            cx.send(leader, Message::GroupProgress { least, most });
        }
    }
}

impl ShardStream {
    /// The remaining messages of an epoch for a subscriber that has slices and results up to these,
    /// after those already sent.
    fn after(
        &self,
        epoch: SnapshotVersion,
        (slices, results): (SnapshotVersion, SnapshotVersion),
        sent: Sent,
        message_bytes: usize,
    ) -> Vec<Message> {
        let slice = self.outbound.slices.get(&epoch).filter(|_| epoch > slices);
        let slice = slice.into_iter().flat_map(|slice| slice.messages(message_bytes));
        let served =
            self.outbound.results.get(&epoch).filter(|_| epoch > results).into_iter().flatten();
        let served =
            served.skip(sent.results).map(|it| Message::RemoteResults { results: it.clone() });
        slice.skip(sent.slice).chain(served).collect()
    }
}

impl Shards {
    /// For each shard, the last epoch before the first confirmed one in which an outcome of this
    /// node's transactions is missing.
    fn outcomes_upto(&self) -> BTreeMap<ShardId, SnapshotVersion> {
        let mut awaited = BTreeMap::<SnapshotVersion, ShardSet>::new();
        for request in self.local_requests.values().filter(|request| request.confirmed.is_some()) {
            let shards = awaited.entry(request.epoch).or_default();
            *shards = shards.union(request.shards);
        }
        let mut all = BTreeMap::new();
        for (epoch, shards) in awaited {
            for shard in shards.iter() {
                all.entry(shard).or_insert(epoch);
            }
        }
        all.into_iter().map(|(shard, first)| (shard, SnapshotVersion(first.0 - 1))).collect()
    }

    pub(super) fn stream(&mut self, shard: ShardId) -> &mut ShardStream {
        self.streams.get_mut(&shard).expect("each other shard has a stream")
    }

    /// Retains and sends a slice for another shard.
    pub(super) fn send_slice(&mut self, cx: &mut Cx<'_, Calvin>, shard: ShardId, slice: Slice) {
        let messages = slice.messages(self.message_bytes);
        if messages.len() > 1 {
            cx.mark("calvin.slice_in_pieces");
        }
        let stream = self.stream(shard);
        for node in &stream.outbound.subscribers {
            messages.iter().for_each(|message| cx.send(*node, message.clone()));
        }
        if mutate!(SentNotKept: slice.epoch > stream.outbound.dropped => false) {
            stream.outbound.slices.insert(slice.epoch, slice);
        }
    }

    /// Retains and sends rows and outcomes for another shard.
    pub(super) fn send_results(
        &mut self,
        cx: &mut Cx<'_, Calvin>,
        shard: ShardId,
        (at, results): ((SnapshotVersion, Lineage), &[RemoteResult]),
    ) {
        let all = RemoteResults::split(at, results, self.message_bytes);
        let (epoch, _) = at;
        let stream = self.stream(shard);
        for node in &stream.outbound.subscribers {
            all.iter()
                .for_each(|it| cx.send(*node, Message::RemoteResults { results: it.clone() }));
        }
        if mutate!(SentNotKept: epoch > stream.outbound.dropped => false) {
            stream.outbound.results.entry(epoch).or_default().extend(all);
        }
    }
}
