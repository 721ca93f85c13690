//! Delivery between the nodes of a region: through which cell a shard is committed, the rows that
//! its transactions read, and their places in its log.
//!
//! ```text
//!   receiver                    sender, a replica of another shard
//!      | Subscribe(kept) ------> |      on connect, or if the nearest replica is not usable
//!      | <==== Items ============|      retained rows of later cells, and new ones
//!      | <---- Resubscribe ----- |      there is more, or the sender has taken a checkpoint
//!      | <---- Truncated ------- |      some rows are retained no more
//!      | <---- Committed ------- |
//!      | Progress(kept) -------> |      nothing more is needed up to this cell
//! ```
//!
//! All replicas of a shard send the same. A node is subscribed to the nearest usable one: one that
//! has the log of the view, and keeps up with its shard. Rows are retained until every replica of
//! the receiving shard has them in its log, or a majority if they are too many (`retained.rs`). A
//! node that starts runs the cells of its log after its checkpoint again, and so has the rows that
//! it had sent.
//!
//! A new subscriber is sent what is retained in several steps. One that has no room for rows which
//! arrive too early drops the last ones, and subscribes again later.

use std::collections::BTreeSet;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::ordered::RemoteReads;
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::super::Tiga;
use super::super::coordinator::Resend;
use super::super::log::{Log, Position};
use super::super::messages::Message;
use super::super::stamp::Stamp;
use super::super::state::State;
use super::detection::{Places, decode_txns};
use super::{OfCell, Shards, Stream};
use crate::remote_results::RemoteResult;
use crate::replica::INTACT;
use crate::streams::number;

/// For this long after the begin of a view, a replica that has not entered it is usable.
const PATIENCE: Span = Span::from_ms(500);

/// The approximate maximum size of a message to a new subscriber.
const MESSAGE_BYTES: usize = 1 << 20;

/// The approximate size of the rows that a new subscriber is sent in one step.
const BACKLOG_BYTES: usize = 4 << 20;

/// Encodes items of a cell. [`decode_items`] is the inverse for several cells.
pub(super) fn encode_items(
    version: SnapshotVersion,
    places: Option<&Places>,
    items: &[RemoteResult],
) -> Bytes {
    let mut out = Vec::new();
    out.put_varint(version.0);
    out.put_u8(u8::from(places.is_some()));
    if let Some(places) = places {
        places.encode(&mut out);
    }
    out.put_varint(items.len() as u64);
    items.iter().for_each(|item| item.encode(&mut out));
    out.into()
}

/// Items of one cell: the places of transactions, and rows.
pub(in super::super) type Items = (SnapshotVersion, Option<Places>, Vec<RemoteResult>);

/// Decodes the items of several cells.
///
/// # Errors
/// If the bytes are malformed.
pub(in super::super) fn decode_items(bytes: &[u8]) -> Result<Vec<Items>, DecodeError> {
    const WHAT: &str = "items";
    let from = &mut Reader::new(bytes);
    let mut all = Vec::new();
    while !from.is_empty() {
        let version = SnapshotVersion(number(from, WHAT)?);
        let has_places = from.u8(WHAT)? == 1;
        let places = has_places.then(|| Places::decode(from)).transpose()?;
        let items = (0..from.count(WHAT)?).map(|_| RemoteResult::decode(from));
        all.push((version, places, items.collect::<Result<_, _>>()?));
    }
    Ok(all)
}

impl State {
    /// Whether a replica of another shard can be the source of this node.
    fn is_usable(&self, node: NodeId, now: Timestamp) -> bool {
        let has_entered = self.views.told[node.index()].last.0 >= self.log.view;
        let is_new = now.since(self.views.since) < PATIENCE;
        let is_whole = self.views.told[node.index()].kept.replaced_after.is_none();
        let is_part = is_whole && (has_entered || is_new);
        self.is_up[node.index()] && is_part && !self.is_stuck(node, now)
    }

    /// Whether a replica of another shard is behind others of it, and has committed nothing lately:
    /// it may be cut off from them.
    fn is_stuck(&self, node: NodeId, now: Timestamp) -> bool {
        let committed = |node: NodeId| self.views.told[node.index()].committed;
        let shard = |node: NodeId| self.cluster.nodes[node.index()].shard;
        let is_ahead = |other: NodeId| {
            let is_other = shard(other) == shard(node) && self.is_up[other.index()];
            is_other && committed(other) > committed(node)
        };
        let since = self.views.progressed_at[node.index()];
        now.since(since) >= PATIENCE && self.cluster.node_ids().any(is_ahead)
    }

    /// The version of the last cell that was run here.
    pub(super) fn executed_version(&self) -> SnapshotVersion {
        self.log.version_at(self.commit.executed)
    }

    /// The cell up to which no connected replica of another shard retains what this node needs:
    /// only a checkpoint of a peer leads there.
    pub(in super::super) fn missed_rows(&self) -> Option<SnapshotVersion> {
        let shards = self.shards.as_ref()?;
        let executed = self.executed_version();
        let missed_from = |stream: &Stream| {
            let up = stream.replicas.iter().filter(|node| self.is_up[node.index()]);
            let all = up.map(|node| stream.truncated.get(node).filter(|upto| **upto > executed));
            all.collect::<Option<Vec<_>>>()?.into_iter().min().copied()
        };
        shards.streams.values().filter_map(missed_from).max()
    }
}

impl Shards {
    /// The next cell of this shard that is not begun; or the last one, if there is none.
    fn next_cell(&self, log: &Log) -> SnapshotVersion {
        log.version_at(Position(self.scheduled.0 + 1).min(log.last()))
    }

    /// Drops the last rows that have arrived, if there are more than `most` bytes, and those of the
    /// first cell that waits for them stay. Cells up to `begun` have got theirs. Returns whether
    /// rows were dropped.
    fn evict(&mut self, begun: SnapshotVersion, most: u64) -> bool {
        let mut has_evicted = false;
        while self.sizes.1 as u64 > most
            && self.received.len() > 1
            && self.received.last_key_value().is_some_and(|(version, _)| *version > begun)
        {
            let Some((version, rows)) = self.received.pop_last() else { break };
            self.sizes.1 -= self.sizes.0.remove(&version).unwrap_or_default();
            let shards: BTreeSet<ShardId> = rows.shards().collect();
            for shard in shards {
                let Some(stream) = self.streams.get_mut(&shard) else { continue };
                stream.lists.drop_from(version);
                let first = stream.evicted.map_or(version, |first| first.min(version));
                stream.evicted = mutate!(EvictedForgotten: Some(first) => stream.evicted);
            }
            has_evicted = true;
        }
        has_evicted
    }

    /// The places of transactions in a cell of another shard have arrived.
    fn take_places(
        &mut self,
        (shard, version): (ShardId, SnapshotVersion),
        after: SnapshotVersion,
        txns: Vec<(TxnId, Stamp)>,
    ) {
        let weight = txns.len() * size_of::<(TxnId, Stamp)>();
        let received = self.received.entry(version).or_default();
        if received.places.insert(shard, txns).is_none() {
            self.count_size(version, weight);
        }
        let stream = self.streams.get_mut(&shard).expect("there is one for each shard");
        stream.lists.note(version, after);
    }

    fn count_size(&mut self, version: SnapshotVersion, weight: usize) {
        *self.sizes.0.entry(version).or_default() += weight;
        self.sizes.1 += weight;
    }

    /// This node needs nothing of the others for cells up to this one.
    pub(super) fn need_only_after(&mut self, version: SnapshotVersion) {
        self.kept = version;
        self.streams.values_mut().for_each(|stream| stream.lists.skip_to(version));
    }

    /// Cells up to this one have used their rows.
    pub(super) fn forget_sizes(&mut self, upto: SnapshotVersion) {
        let later = self.sizes.0.split_off(&upto.next());
        let used = std::mem::replace(&mut self.sizes.0, later);
        self.sizes.1 -= used.values().sum::<usize>();
    }
}

impl OfCell {
    /// The shards that have sent something.
    fn shards(&self) -> impl Iterator<Item = ShardId> {
        let rows = self.rows.keys().map(|(shard, _)| *shard);
        rows.chain(self.places.keys().copied())
    }
}

impl Stream {
    /// Whether a replica of the shard retains nothing up to a cell that was not run here.
    fn has_truncated(&self, node: NodeId, executed: SnapshotVersion) -> bool {
        self.truncated.get(&node).is_some_and(|upto| *upto > executed)
    }
}

impl Tiga {
    /// Subscribes to the nearest usable replica of each other shard.
    pub(in super::super) fn choose_sources(&mut self, cx: &mut Cx<'_, Self>) {
        self.ask_for_evicted(cx);
        let Some(shards) = &self.state.shards else { return };
        let mut chosen: Vec<(ShardId, NodeId)> = Vec::new();
        for (shard, stream) in &shards.streams {
            let is_usable = |node: &&NodeId| self.state.is_usable(**node, cx.now.at);
            let is_up = |node: &&NodeId| self.state.is_up[node.index()];
            let executed = self.state.executed_version();
            let has_all = |node: &&NodeId| !stream.has_truncated(**node, executed);
            let replicas = || stream.replicas.iter();
            let nearest = replicas().find(|node| is_usable(node) && has_all(node));
            let nearest = nearest.or_else(|| replicas().find(|node| is_up(node) && has_all(node)));
            let nearest = nearest.or_else(|| replicas().find(is_usable));
            let nearest = nearest.or_else(|| replicas().find(is_up));
            if let Some(nearest) = nearest.filter(|nearest| stream.source != Some(**nearest)) {
                chosen.push((*shard, *nearest));
            }
        }
        for (shard, source) in chosen {
            cx.mark("tiga.subscribed");
            let shards = self.shards();
            let stream = shards.streams.get_mut(&shard).expect("there is a stream for each shard");
            let before = stream.source.replace(source);
            if let Some(before) = before {
                cx.send(before, Message::Unsubscribe {});
            }
            self.subscribe(cx, source, SnapshotVersion::ZERO);
            self.repeat_lookups(cx, shard);
        }
    }

    /// Asks for the rows of cells after those that this node needs no more, and after `has`.
    fn subscribe(&mut self, cx: &mut Cx<'_, Self>, source: NodeId, has: SnapshotVersion) {
        let kept = self.shards().kept.0;
        cx.send(source, Message::Subscribe { kept, has });
    }

    /// The source of a subscription has more: the rest of the rows after a cell, or all of them,
    /// because it has taken a checkpoint.
    pub(in super::super) fn on_resubscribe(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        has: SnapshotVersion,
    ) {
        let Some(shards) = &self.state.shards else { return };
        if shards.streams.values().any(|stream| stream.source == Some(from)) {
            cx.mark("tiga.resubscribed");
            self.subscribe(cx, from, has);
        }
    }

    /// The source of a subscription does not retain all that this node needs.
    pub(in super::super) fn on_truncated(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        upto: SnapshotVersion,
    ) {
        let shard = self.state.cluster.nodes[from.index()].shard;
        let Some(shards) = &mut self.state.shards else { return };
        let Some(stream) = shards.streams.get_mut(&shard) else { return };
        cx.mark("tiga.rows_missed");
        stream.truncated.insert(from, upto);
        self.choose_sources(cx);
        self.retry_transfer(cx);
    }

    /// A node of another shard is connected.
    pub(in super::super) fn on_other_shard_up(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        self.choose_sources(cx);
        if let Some(leading) = &mut self.state.leading {
            // Requests may be lost.
            leading.asked.clear();
        }
        self.tell_view(cx, node);
        self.submit_again(cx, Resend::AllTo(node));
    }

    /// The connection to a node of another shard is lost.
    pub(in super::super) fn on_other_shard_down(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        let Some(shards) = &mut self.state.shards else { return };
        for stream in shards.streams.values_mut() {
            stream.subscribers.remove(&node);
            if stream.source == Some(node) {
                stream.source = None;
            }
        }
        self.choose_sources(cx);
    }

    /// A node of another shard subscribes: it gets the retained rows.
    pub(in super::super) fn on_subscribe(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (kept, has): (SnapshotVersion, SnapshotVersion),
    ) {
        let executed = self.state.executed_version();
        let shard = self.state.cluster.nodes[from.index()].shard;
        let Some(shards) = &mut self.state.shards else { return };
        let Some(stream) = shards.streams.get_mut(&shard) else { return };
        let (view, through) = shards.told;
        let last = self.state.log.version_at(shards.told_position).0;
        let cells = if last == 0 { Vec::new() } else { vec![last] };
        let listed = stream.retained.listed().0;
        cx.send(from, Message::Committed { view: view.0, through: through.0, cells, listed });
        let has = kept.max(has);
        if has < stream.retained.dropped {
            cx.mark("tiga.rows_truncated");
            cx.send(from, Message::Truncated { upto: stream.retained.dropped });
        }
        stream.kept.insert(from, kept);
        stream.subscribers.remove(&from);
        let (mut items, mut left): (Vec<u8>, usize) = (Vec::new(), BACKLOG_BYTES);
        for (version, parts) in stream.retained.after(has) {
            // More rows may come for later cells.
            if left == 0 && version <= executed {
                cx.mark("tiga.rows_later");
                let has = SnapshotVersion(version.0 - 1);
                return cx.send(from, Message::Resubscribe { has });
            }
            for part in parts {
                items.extend_from_slice(part);
                left = left.saturating_sub(part.len());
                if items.len() >= MESSAGE_BYTES || left == 0 {
                    cx.send(from, Message::Items { items: std::mem::take(&mut items).into() });
                }
            }
        }
        if !items.is_empty() {
            cx.send(from, Message::Items { items: items.into() });
        }
        stream.subscribers.insert(from);
    }

    pub(in super::super) fn on_unsubscribe(&mut self, from: NodeId) {
        let Some(shards) = &mut self.state.shards else { return };
        for stream in shards.streams.values_mut() {
            stream.subscribers.remove(&from);
        }
    }

    /// A node of another shard needs nothing more up to a cell.
    pub(in super::super) fn note_kept(&mut self, from: NodeId, kept: SnapshotVersion) {
        let shard = self.state.cluster.nodes[from.index()].shard;
        let Some(shards) = &mut self.state.shards else { return };
        let Some(stream) = shards.streams.get_mut(&shard) else { return };
        // It goes back if the node has lost its disk.
        stream.kept.insert(from, kept);
    }

    /// Sends items of a cell to a shard, and retains them.
    pub(super) fn send_for_cell(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (shard, version): (ShardId, SnapshotVersion),
        places: Option<Places>,
        items: &[RemoteResult],
    ) {
        let stream = self.shards().streams.get_mut(&shard).expect("there is one for each shard");
        let items = encode_items(version, places.as_ref(), items);
        // If all have them already, a node that loses its disk is told that they are gone.
        stream.retained.push(version, items.clone());
        if places.is_some() {
            stream.retained.note_list(version);
        }
        for node in &stream.subscribers {
            cx.send(*node, Message::Items { items: items.clone() });
        }
    }

    /// Rows and places of another shard arrive.
    pub(in super::super) fn on_items(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: &[u8]) {
        let Ok(all) = decode_items(bytes) else {
            return cx.mark("tiga.malformed_items");
        };
        let shard = self.state.cluster.nodes[from.index()].shard;
        let executed = self.state.log.version_at(self.state.commit.executed);
        let Some(shards) = &mut self.state.shards else { return };
        if !shards.streams.contains_key(&shard) {
            return cx.mark("tiga.malformed_items");
        }
        let scheduled = self.state.log.version_at(shards.scheduled);
        for (version, places, items) in all {
            // Rows of cells that were run have been received before. After a cell that lacks rows,
            // others would take the room that it needs.
            let is_room = |first: SnapshotVersion| version < first;
            let is_used = version <= executed || version <= shards.kept;
            if is_used || !shards.streams[&shard].evicted.is_none_or(is_room) {
                continue;
            }
            if let Some(Places { after, txns }) = places {
                shards.take_places((shard, version), after, txns);
            }
            for item in items {
                let weight = item.weight();
                let RemoteResult::Reads(txn, reads) = item else { continue };
                let received = &mut shards.received.entry(version).or_default().rows;
                if received.insert((shard, txn), reads.clone()).is_none() {
                    shards.count_size(version, weight);
                    if version <= scheduled {
                        shards.sharded.receive(txn, shard, reads);
                    }
                }
            }
        }
        let next = shards.next_cell(&self.state.log);
        if shards.evict(next.max(executed).max(shards.kept), self.state.options.behind_bytes) {
            cx.mark("tiga.rows_evicted");
        }
    }

    /// Asks again for items for which there was no room when they arrived. The next cell waits for
    /// them in any case.
    fn ask_for_evicted(&mut self, cx: &mut Cx<'_, Self>) {
        let State { shards: Some(shards), log, options, .. } = &mut self.state else { return };
        let is_room = shards.sizes.1 <= options.behind_bytes as usize / 2;
        let next = shards.next_cell(log);
        let streams = shards.streams.values_mut();
        let sources = streams.filter_map(|stream| {
            let first = stream.evicted?;
            (is_room || first <= next).then_some(())?;
            stream.evicted = None;
            stream.source
        });
        for source in sources.collect::<Vec<_>>() {
            self.subscribe(cx, source, SnapshotVersion::ZERO);
        }
    }

    /// Restores received rows after a restart.
    pub(in super::super) fn restore_received(state: &mut State, bytes: &[u8]) {
        let Some(shards) = &mut state.shards else { return };
        let from = &mut Reader::new(bytes);
        let base = Position(from.varint("received").expect(INTACT));
        if base > state.log.base() {
            // It is behind a checkpoint that a crash has taken.
            return;
        }
        let upto = SnapshotVersion(from.varint("received").expect(INTACT));
        while !from.is_empty() {
            let version = SnapshotVersion(from.varint("received").expect(INTACT));
            let shard = ShardId(from.u16("received").expect(INTACT));
            let received = shards.received.entry(version).or_default();
            if from.u8("received").expect(INTACT) == 1 {
                let txns = decode_txns(from).expect(INTACT);
                mutate!(PlacesForgotten: _ = received.places.insert(shard, txns) => ());
                continue;
            }
            let txn = TxnId::from_bits(from.u64("received").expect(INTACT));
            let reads = RemoteReads::decode(from).expect(INTACT);
            received.rows.insert((shard, txn), reads);
        }
        shards.need_only_after(shards.kept.max(upto));
        shards.logged = shards.kept;
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::exec::ordered::ShardOutcome;

    use super::*;

    #[test]
    fn items_survive_their_encoding() {
        let txn = TxnId::new(NodeId(1), 7);
        let items = vec![
            RemoteResult::Reads(txn, RemoteReads::TooLarge(9)),
            RemoteResult::Outcome(txn, ShardOutcome::FootprintViolated),
        ];
        let (one, other) = (SnapshotVersion(5), SnapshotVersion(900));
        let places = Places { after: one, txns: vec![(txn, Stamp::last_of(900_000))] };
        let mut bytes = encode_items(one, None, &items).to_vec();
        bytes.extend_from_slice(&encode_items(other, Some(&places), &[]));
        let all = vec![(one, None, items), (other, Some(places), Vec::new())];
        assert_eq!(decode_items(&bytes), Ok(all));
        assert!(decode_items(&bytes[..bytes.len() - 1]).is_err());
    }
}
