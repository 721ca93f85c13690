//! Collection: batches that every replica of a set has applied are dropped (Minerva §4).

use bytes::Bytes;
use pangea_core::codec::Writer;
use pangea_core::ids::NodeId;
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::{Bid, Heads, Host, SourceLog, Streams};
use crate::replica::{Replica, kind};

impl<H: Host> Streams<H> {
    /// Records the batches that a replica has applied and will not need after a restart.
    pub(crate) fn note_applied(&mut self, node: NodeId, heads: Heads) {
        self.applied[node.index()] = heads;
        self.has_reported[node.index()] = true;
    }

    /// Drops the batches below the low watermark: those that all `members` have applied, as far as
    /// this replica has applied them too (`own`). `retained` is the lowest batch number after which
    /// a source's batches are retained for other reasons.
    pub(crate) fn collect(
        &mut self,
        members: &[NodeId],
        own: &[Bid],
        retained: impl Fn(usize) -> Option<Bid>,
    ) {
        let applied = &self.applied;
        for (source, log) in self.logs.iter_mut().enumerate() {
            let heads = members.iter().map(|node| applied[node.index()][source]);
            let watermark = mutate!(CollectedForOne: heads.min() => heads.max());
            let watermark = watermark.unwrap_or_default();
            // A removed replica does not count, and may be ahead or behind. A batch that is not
            // durable here must still be acknowledged.
            let watermark = watermark.min(own[source]).min(log.durable);
            let watermark = retained(source).map_or(watermark, |retained| retained.min(watermark));
            log.collect(watermark);
        }
    }

    /// The bytes of batches on this node that replicas further ahead retain for one that has not
    /// applied them, according to its last report.
    pub(crate) fn bytes_kept_for(&self, node: NodeId) -> u64 {
        if !self.has_reported[node.index()] {
            return 0;
        }
        let of_log = |(source, log): (usize, &SourceLog<H::Batch>)| {
            let furthest = self.applied.iter().map(|heads| heads[source]).max().unwrap_or_default();
            log.bytes_between(self.applied[node.index()][source], furthest)
        };
        self.logs.iter().enumerate().map(of_log).sum()
    }

    /// The bytes of the batches on this node after the first heads up to the second ones, without
    /// those after a gap.
    pub(crate) fn bytes_between(&self, after: &[Bid], upto: &[Bid]) -> u64 {
        let heads = after.iter().zip(upto);
        let logs = self.logs.iter().zip(heads);
        logs.map(|(log, (after, upto))| log.bytes_between(*after, *upto)).sum()
    }

    /// The bytes of the batches on this node, without those after a gap.
    pub(crate) fn bytes_buffered(&self) -> u64 {
        self.logs.iter().map(|log| log.bytes_between(log.collected, log.received)).sum()
    }

    /// Forgets the state of a peer's previous log. Batches of its log after a gap are discarded: no
    /// replica has acknowledged them, and their numbers may be used again.
    pub(crate) fn end_earlier_life(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        node: NodeId,
    ) {
        let log = &self.logs[node.index()];
        let received = log.received;
        let has_orphans = log.slots.range(received.next()..).next().is_some();
        if mutate!(OrphansKept: has_orphans => false) {
            cx.mark("streams.orphans_dropped");
            let mut discard = Vec::new();
            discard.put_u16(node.0);
            discard.put_u64(received.0);
            replica.persist(cx, &kind::DISCARD, Bytes::from(discard));
            self.logs[node.index()].discard_after(received);
        }
        let nothing = vec![Bid(0); self.logs.len()];
        self.durable[node.index()].clone_from(&nothing);
        self.applied[node.index()] = nothing;
        self.has_reported[node.index()] = false;
        self.forget_gone_of(node);
    }
}
