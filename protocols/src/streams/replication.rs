//! Asynchronous batched replication (Minerva §3.3, Algorithm 2).
//!
//! Each replica has one append-only log of batches. A batch is sent to every peer as soon as it is
//! durable locally, without waiting for agreement. A peer acknowledges the batches that it has
//! persisted, as the head of a prefix without gaps. A batch that f + 1 replicas have is available.
//!
//! ```text
//!   source          peer          coordinator
//!     | Batch ------> |               |
//!     | Batch --------+-------------> |      persisted at each
//!     | <------ Ack   | -- Ack -----> |      beyond the paper: to everyone
//!     | ProofOfAvailability --------> |      the paper: from the source
//! ```

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::cpu_stage::CpuStage;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::fetch::FETCH_BYTES_MAX;
use super::{Batch, Bid, BufferedBatch, Event, Heads, Host, Message, Streams, decode_batch};
use crate::replica::{Replica, kind};

impl<H: Host> Streams<H> {
    /// Minerva §3.3, Algorithm 2, `BroadcastBatchAsync`: sends a batch of this replica once it is
    /// durable.
    pub(crate) fn broadcast(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        batch: H::Batch,
        bytes: Bytes,
    ) {
        assert_eq!(batch.source(), replica.me, "a replica only adds to its own log");
        assert_eq!(batch.bid(), self.own(replica).received.next(), "batches have no gap");
        cx.mark("streams.batch_sent");
        self.counters.batches_sent += 1;
        self.counters.batch_bytes += bytes.len() as u64;
        cx.reached(Milestone::Batched, batch.end_sequence());
        let position = self.hold(cx, replica, Arc::new(batch), bytes.clone());
        let after = mutate!(SendBeforeFsync: position => LogPosition(0));
        for peer in replica.peers() {
            replica.send_after(cx, after, peer, Message::Batch { bytes: bytes.clone() });
        }
    }

    /// Persists a batch and inserts it into its log. Returns its position in this node's log.
    fn hold(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        batch: Arc<H::Batch>,
        bytes: Bytes,
    ) -> LogPosition {
        let position = replica.persist(cx, &kind::BATCH, bytes.clone());
        let log = &mut self.logs[batch.source().index()];
        log.insert(batch.bid(), BufferedBatch { bytes, batch, position, end: 0 });
        position
    }

    /// Minerva §3.3, Algorithm 2, `ReceivedBatch`.
    pub(super) fn on_batch(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        from: NodeId,
        bytes: Bytes,
    ) -> Option<Event<H>> {
        cx.begin_work();
        let batch = decode_batch::<H::Batch>(&bytes, replica.topology.node_count());
        cx.end_work(CpuStage::Decode, bytes.len());
        let Ok(batch) = batch else {
            cx.mark("streams.malformed_batch");
            return None;
        };
        let (source, bid) = (batch.source(), batch.bid());
        if source == replica.me {
            // Only this replica creates entries of its log: the batch is from before it lost its
            // disk.
            return self.on_own_batch(cx, replica, batch, bytes);
        }
        if from == source {
            // A source sends only batches that are durable on it.
            self.note_durable(source, source, bid);
        } else {
            cx.mark("streams.batch_from_another");
        }
        let log = &mut self.logs[source.index()];
        if let Some(refused) = log.refuses(&batch, bytes.len()) {
            cx.mark(refused);
            return None;
        }
        if from == source {
            log.heard_at = cx.now.at;
        }
        if bid != log.received.next() {
            cx.mark("streams.batch_after_gap");
        }
        let position = self.hold(cx, replica, Arc::new(batch), bytes);
        mutate!(AckBeforeFsync: () => self.acknowledge(cx, replica, position));
        None
    }

    /// Handles a batch of this replica's own log, from before it lost its disk. It commits like any
    /// other, and no client waits for it. Later batches may already have been fetched, after a
    /// checkpoint that a crash took away.
    fn on_own_batch(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        batch: H::Batch,
        bytes: Bytes,
    ) -> Option<Event<H>> {
        let log = self.own(replica);
        let is_next = batch.bid() == log.received.next() && batch.bid() <= self.own_head(replica);
        let counts = log.bounds.counts(batch.bid()) && !log.is_sealed;
        if !is_next || !counts || !log.fits(&batch) {
            cx.mark("streams.own_batch_from_another");
            return None;
        }
        cx.mark("streams.own_batch_fetched");
        let batch = Arc::new(batch);
        self.hold(cx, replica, batch.clone(), bytes);
        Some(Event::OwnBatch(batch))
    }

    /// Acknowledges the batches in records up to `upto`, which are durable.
    pub(crate) fn acknowledge(&mut self, cx: &mut Cx<'_, H>, replica: &Replica, upto: LogPosition) {
        let me = replica.me;
        self.synced = upto;
        let mut grown = vec![false; self.logs.len()];
        for (source, log) in self.logs.iter_mut().enumerate() {
            let is_behind = self.has_skipped && source != me.index();
            if mutate!(AckedBehindCheckpoint: is_behind => false) {
                // The batches that a peer's checkpoint skipped become durable here with the next
                // local checkpoint. A crash before that would leave the batches after them behind a
                // gap.
                continue;
            }
            log.advance_durable(upto);
            let reported = &mut self.durable[me.index()][source];
            grown[source] = log.durable > *reported;
            *reported = log.durable;
        }
        if !grown.contains(&true) {
            return;
        }
        cx.mark("streams.acknowledged");
        if grown[me.index()] {
            self.note_reached(cx, replica, Milestone::Durable, self.own(replica).durable);
        }
        self.update_available(cx, replica);
        let heads = self.durable[me.index()].clone();
        for peer in replica.peers() {
            // An extension of the paper (c): to every replica. In the paper: to the source of the
            // batches.
            let is_asked = self.ack_everyone || grown[peer.index()];
            if is_asked && !self.is_behind[peer.index()] {
                replica.send(cx, peer, Message::Ack { heads: heads.clone() });
            }
        }
    }

    /// Minerva §3.3, Algorithm 2, `ReceivedAcknowledgement`.
    pub(super) fn on_ack(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        from: NodeId,
        heads: Heads,
    ) {
        let (own, received) = (heads[replica.me.index()], self.own_head(replica));
        if own > received {
            return cx.stop(lost_batches(replica.node(from), own, received));
        }
        for (source, head) in heads.into_iter().enumerate() {
            self.note_durable(from, NodeId(source as u16), head);
        }
        self.update_available(cx, replica);
    }

    /// Records the head that a replica has of a log. Each replica counts once for each batch,
    /// however often it acknowledges it.
    fn note_durable(&mut self, replica: NodeId, source: NodeId, head: Bid) {
        let log = &mut self.logs[source.index()];
        let head = log.bounds.last.map_or(head, |last| head.min(last));
        let known = &mut self.durable[replica.index()][source.index()];
        *known = head.max(*known);
        log.known = log.known.max(head);
    }

    /// Computes the batches that f + 1 replicas have. In the paper's variant it also broadcasts a
    /// proof for the local log.
    pub(crate) fn update_available(&mut self, cx: &mut Cx<'_, H>, replica: &Replica) {
        let quorum = replica.topology.availability_quorum();
        let me = replica.me;
        let before = self.available[me.index()];
        for source in 0..self.logs.len() {
            if !self.ack_everyone && source != me.index() {
                continue;
            }
            let head = available_head(&self.durable, source, quorum);
            self.available[source] = head.max(self.available[source]);
        }
        let own = self.available[me.index()];
        if own > before {
            self.note_reached(cx, replica, Milestone::Replicated, own);
        }
        if !self.ack_everyone && own > self.proof_sent {
            self.proof_sent = own;
            cx.mark("streams.proof_sent");
            for peer in replica.peers() {
                replica.send(cx, peer, Message::ProofOfAvailability { head: own });
            }
        }
    }

    /// Minerva §3.3, Algorithm 2, `ReceivedPoA`.
    pub(super) fn on_proof(&mut self, cx: &mut Cx<'_, H>, from: NodeId, head: Bid) {
        self.note_durable(from, from, head);
        if self.logs[from.index()].received < head {
            cx.mark("streams.proof_before_batch");
        }
        let available = &mut self.available[from.index()];
        *available = head.max(*available);
    }

    /// A peer has reconnected: repeats the messages that were lost in flight.
    pub(crate) fn resend(&mut self, cx: &mut Cx<'_, H>, replica: &Replica, peer: NodeId) {
        let me = replica.me;
        if !self.is_behind[peer.index()] {
            let heads = self.durable[me.index()].clone();
            replica.send(cx, peer, Message::Ack { heads });
        }
        if !self.ack_everyone {
            let head = self.proof_sent;
            replica.send(cx, peer, Message::ProofOfAvailability { head });
        }
        let acknowledged = self.durable[peer.index()][me.index()];
        let log = &self.logs[me.index()];
        let mut bytes_sent = 0;
        for slot in log.slots.range(acknowledged.next()..).map(|(_, slot)| slot) {
            // The peer most likely has them: after a restart its acknowledgements are unknown here.
            // It fetches those that it is missing.
            if bytes_sent > FETCH_BYTES_MAX {
                break;
            }
            bytes_sent += slot.bytes.len();
            let batch = Message::Batch { bytes: slot.bytes.clone() };
            replica.send_after(cx, slot.position, peer, batch);
        }
    }
}

/// The message with which a node stops that has lost part of its log; `how` names the evidence.
pub(crate) fn lost_log(how: &str) -> String {
    format!(
        "{how}: the data directory was emptied, restored from an old copy, or lost acknowledged \
         data (durability \"os\" or \"memory\", or a disk that ignores syncs). A node that lost \
         its promises and votes must not rejoin under its id. Restore its newest data directory, \
         or run pangea start --replace, which fetches everything from the other nodes"
    )
}

/// The message with which a node stops if a peer has batches of its log that it does not have
/// itself. It would reuse their numbers. They were durable here before they were sent, and so were
/// its votes.
pub(crate) fn lost_batches(peer: NodeId, theirs: Bid, ours: Bid) -> String {
    lost_log(&format!(
        "node {} has {} batches of this node's log, but this node has only {}",
        peer.0, theirs.0, ours.0
    ))
}

/// The last batch of `source`'s log that `quorum` replicas have along with all before it.
///
/// `durable[replica]` contains the heads that a replica has acknowledged; each counts once.
pub(crate) fn available_head(durable: &[Heads], source: usize, quorum: usize) -> Bid {
    let mut heads: Vec<Bid> = durable.iter().map(|heads| heads[source]).collect();
    heads.sort_unstable_by(|a, b| b.cmp(a));
    mutate!(AckCountedTwice: () => heads.insert(0, heads[0]));
    heads[quorum - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_available_when_f_plus_1_replicas_have_it_and_all_before_it() {
        let durable = |heads: [u64; 3]| heads.map(|head| vec![Bid(head)]).to_vec();
        assert_eq!(available_head(&durable([5, 0, 0]), 0, 2), Bid(0));
        assert_eq!(available_head(&durable([5, 3, 0]), 0, 2), Bid(3));
        assert_eq!(available_head(&durable([5, 3, 4]), 0, 2), Bid(4));
        assert_eq!(available_head(&durable([5, 5, 5]), 0, 3), Bid(5));
    }
}
