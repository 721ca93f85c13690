//! Phase 2: asynchronous batched replication (Minerva §3.3, Algorithm 2).
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
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::greeting::lost_batches;
use super::messages::{Message, decode_batch};
use super::state::{Missing, Slot, SourceLog};
use super::{Batch, Bid, Event, Heads, Host, Inputs, LogRecord, Timer};

/// The interval at which a replica looks for batches that it should have by now.
pub(crate) const FETCH: Span = Span::from_ms(30);

/// The maximum bytes of batches that answer one fetch; the rest is requested again.
const FETCH_BYTES_MAX: usize = 8 << 20;

/// The maximum number of batches that one fetch requests.
const FETCH_BATCHES_MAX: u64 = 4_096;

/// The interval between two fetches of a batch doubles each time, this often at most: to 16 times.
const FETCH_DOUBLINGS_MAX: u32 = 4;

/// A source counts as streaming until it has sent no new batch for this multiple of the wait for a
/// missing batch. If batches are large and connections full, batches arrive further apart than the
/// wait itself.
const STREAM_PATIENCE: u64 = 4;

/// A batch further ahead of the log's head than this is not stored: it is fetched when it is
/// needed.
const AHEAD_MAX: u64 = 1 << 16;

impl<H: Host> Inputs<H> {
    /// Minerva §3.3, Algorithm 2, `BroadcastBatchAsync`: sends a batch of this replica once it is
    /// durable.
    pub(crate) fn broadcast(&mut self, cx: &mut Cx<'_, H>, batch: H::Batch, bytes: Bytes) {
        assert_eq!(batch.source(), self.me, "a replica only adds to its own log");
        assert_eq!(batch.bid(), self.own_log().held.next(), "batches have no gap");
        cx.mark("inputs.batch_sent");
        self.counters.batches_sent += 1;
        self.counters.batch_bytes += bytes.len() as u64;
        cx.reached(Milestone::Batched, batch.end_sequence());
        let position = self.hold(cx, Arc::new(batch), bytes.clone());
        let after = if is_planted(Bug::SendBeforeFsync) { LogPosition(0) } else { position };
        for peer in self.topology.peers_of(self.me) {
            cx.send_after(after, self.node(peer), Message::Batch { bytes: bytes.clone() }.into());
        }
    }

    /// Persists a batch and inserts it into its log. Returns its position in this node's log.
    pub(crate) fn hold(
        &mut self,
        cx: &mut Cx<'_, H>,
        batch: Arc<H::Batch>,
        bytes: Bytes,
    ) -> LogPosition {
        let position = self.persist(cx, LogRecord::Batch(bytes.clone()));
        let log = &mut self.replication.logs[batch.source().index()];
        log.insert(batch.bid(), Slot { bytes, batch, position, end: 0 });
        position
    }

    /// Minerva §3.3, Algorithm 2, `ReceivedBatch`.
    pub(crate) fn on_batch(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        bytes: Bytes,
    ) -> Option<Event<H>> {
        cx.begin_work();
        let batch = decode_batch::<H::Batch>(&bytes, self.topology.node_count());
        cx.end_work(CpuStage::Decode, bytes.len());
        let Ok(batch) = batch else {
            cx.mark("inputs.malformed_batch");
            return None;
        };
        let (source, bid) = (batch.source(), batch.bid());
        if source == self.me {
            // Only this replica creates entries of its log: the batch is from before it lost its
            // disk.
            return self.on_own_batch(cx, batch, bytes);
        }
        if from == source {
            // A source sends only batches that are durable on it.
            self.note_durable(source, source, bid);
        } else {
            cx.mark("inputs.batch_from_another");
        }
        let log = &mut self.replication.logs[source.index()];
        if let Some(refused) = log.refuses(&batch) {
            cx.mark(refused);
            return None;
        }
        if from == source {
            log.heard_at = cx.now.at;
        }
        if bid != log.held.next() {
            cx.mark("inputs.batch_after_gap");
        }
        let position = self.hold(cx, Arc::new(batch), bytes);
        if is_planted(Bug::AckBeforeFsync) {
            self.acknowledge(cx, position);
        }
        None
    }

    /// Acknowledges the batches in records up to `upto`, which are durable.
    pub(crate) fn acknowledge(&mut self, cx: &mut Cx<'_, H>, upto: LogPosition) {
        let me = self.me;
        self.replication.synced = upto;
        let mut grown = vec![false; self.replication.logs.len()];
        for (source, log) in self.replication.logs.iter_mut().enumerate() {
            if self.cut.installed.is_some() && source != me.index() {
                // The batches that a peer's checkpoint skipped become durable here with the next
                // local checkpoint. A crash before that would leave the batches after them behind a
                // gap.
                continue;
            }
            log.advance_durable(upto);
            let told = &mut self.replication.durable[me.index()][source];
            grown[source] = log.durable > *told;
            *told = log.durable;
        }
        if !grown.contains(&true) {
            return;
        }
        cx.mark("inputs.acknowledged");
        if grown[me.index()] {
            self.tell_reached(cx, Milestone::Durable, self.own_log().durable);
        }
        self.update_available(cx);
        let heads = self.replication.durable[me.index()].clone();
        for peer in self.topology.peers_of(me) {
            // An extension of the paper (c): to every replica. In the paper: to the source of the
            // batches.
            if self.settings.ack_everyone || grown[peer.index()] {
                cx.send(self.node(peer), Message::Ack { heads: heads.clone() }.into());
            }
        }
    }

    /// Minerva §3.3, Algorithm 2, `ReceivedAcknowledgement`.
    pub(crate) fn on_ack(&mut self, cx: &mut Cx<'_, H>, from: NodeId, heads: Heads) {
        let (own, held) = (heads[self.me.index()], self.own_head());
        if own > held {
            return cx.stop(lost_batches(self.node(from), own, held));
        }
        for (source, head) in heads.into_iter().enumerate() {
            self.note_durable(from, NodeId(source as u16), head);
        }
        self.update_available(cx);
    }

    /// Records the head that a replica has of a log. Each replica counts once for each batch,
    /// however often it acknowledges it.
    fn note_durable(&mut self, replica: NodeId, source: NodeId, head: Bid) {
        let known = &mut self.replication.durable[replica.index()][source.index()];
        *known = head.max(*known);
        let log = &mut self.replication.logs[source.index()];
        log.known = log.known.max(head);
    }

    /// Computes the batches that f + 1 replicas have. In the paper's variant it also broadcasts a
    /// proof for the local log.
    fn update_available(&mut self, cx: &mut Cx<'_, H>) {
        let quorum = self.topology.availability_quorum();
        let me = self.me;
        let before = self.replication.available[me.index()];
        let replication = &mut self.replication;
        for source in 0..replication.logs.len() {
            if !self.settings.ack_everyone && source != me.index() {
                continue;
            }
            let head = available_head(&replication.durable, source, quorum);
            replication.available[source] = head.max(replication.available[source]);
        }
        let own = replication.available[me.index()];
        if own > before {
            self.tell_reached(cx, Milestone::Replicated, own);
        }
        let replication = &mut self.replication;
        if !self.settings.ack_everyone && own > replication.proof_sent {
            replication.proof_sent = own;
            cx.mark("inputs.proof_sent");
            for peer in self.topology.peers_of(me) {
                cx.send(self.node(peer), Message::ProofOfAvailability { head: own }.into());
            }
        }
    }

    /// Notifies the latency observer that this replica's transactions up to the end of a batch of
    /// its log have reached a phase.
    pub(crate) fn tell_reached(&self, cx: &Cx<'_, H>, phase: Milestone, head: Bid) {
        if let Some(slot) = self.own_log().slots.get(&head) {
            cx.reached(phase, slot.batch.end_sequence());
        }
    }

    /// Minerva §3.3, Algorithm 2, `ReceivedPoA`.
    pub(crate) fn on_proof(&mut self, cx: &mut Cx<'_, H>, from: NodeId, head: Bid) {
        self.note_durable(from, from, head);
        let replication = &mut self.replication;
        if replication.logs[from.index()].held < head {
            cx.mark("inputs.proof_before_batch");
        }
        let available = &mut replication.available[from.index()];
        *available = head.max(*available);
    }

    /// Fetches batches that are known to exist and were already missing at the last pass.
    pub(crate) fn on_fetch_timeout(&mut self, cx: &mut Cx<'_, H>) {
        cx.set_timer(Timer::Fetch.into(), FETCH);
        let patience = Span::from_us(FETCH.us + self.topology.round_trip_max().us);
        for source in self.topology.node_ids() {
            let log = &mut self.replication.logs[source.index()];
            let first_missing = log.held.next();
            let Missing { bid, since, asked } = log.missing;
            if log.known <= log.held || bid != first_missing {
                log.missing = Missing { bid: first_missing, since: cx.now.at, asked: 0 };
                continue;
            }
            if self.replication.is_up[source.index()] && log.is_streaming(cx.now.at, patience) {
                continue;
            }
            // An acknowledgement may take a shorter path than the batch, and a large batch that was
            // requested may be in flight on a slow link.
            let doublings = asked.min(FETCH_DOUBLINGS_MAX);
            if cx.now.at.since(since).us < patience.us << doublings {
                continue;
            }
            log.missing = Missing { since: cx.now.at, asked: asked + 1, ..log.missing };
            log.fetched_upto = log.fetched_upto.max(log.known);
            let last = log.slots.keys().next_back().copied().unwrap_or_default();
            let next_held = log.slots.range(first_missing..).next().map(|(bid, _)| bid.0 - 1);
            let upto = next_held.unwrap_or(log.known.0.max(last.0));
            let upto = Bid(upto.min(first_missing.0 + FETCH_BATCHES_MAX));
            self.send_fetch(cx, source, first_missing, upto);
        }
    }

    /// The connected peers that should have a batch and have not reported that it is gone.
    pub(crate) fn who_has(&self, source: NodeId, bid: Bid) -> impl Iterator<Item = NodeId> {
        let replication = &self.replication;
        self.topology.peers_of(self.me).filter(move |peer| {
            // A replica has all batches that it has applied. In the paper's variant it acknowledges
            // only to the source.
            let head = replication.durable[peer.index()][source.index()];
            let head = head.max(self.collection.heads[peer.index()][source.index()]);
            let is_gone = self.has_said_gone(*peer, source, bid);
            replication.is_up[peer.index()] && head >= bid && !is_gone
        })
    }

    /// Requests batches from one peer that has them, another one each time.
    pub(crate) fn send_fetch(&mut self, cx: &mut Cx<'_, H>, source: NodeId, from: Bid, upto: Bid) {
        let candidates: Vec<_> = self.who_has(source, from).collect();
        if candidates.is_empty() {
            return;
        }
        let replication = &mut self.replication;
        let peer = candidates[replication.fetch_turn % candidates.len()];
        replication.fetch_turn += 1;
        cx.mark("inputs.fetch");
        cx.send(self.node(peer), Message::Fetch { source, from, upto }.into());
    }

    /// Handles the request of a peer for batches that it is missing.
    pub(crate) fn on_fetch(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        source: NodeId,
        first: Bid,
        upto: Bid,
    ) {
        let log = &self.replication.logs[source.index()];
        if first <= log.collected {
            cx.mark("inputs.fetch_of_collected");
            let first = log.collected.next();
            return cx.send(self.node(from), Message::Gone { source, first }.into());
        }
        let mut bytes_sent = 0;
        // Only the source may send batches after a gap: they may be from before it lost its disk.
        let upto = upto.min(log.held);
        if first > upto {
            return;
        }
        for slot in log.slots.range(first..=upto).map(|(_, slot)| slot) {
            if bytes_sent > FETCH_BYTES_MAX {
                break;
            }
            bytes_sent += slot.bytes.len();
            self.counters.batches_fetched += 1;
            // A batch of the local log was durable before it was first sent. For batches of other
            // logs, the receiver records no acknowledgement by this replica.
            cx.send_after(
                slot.position.min(cx.log_head()),
                self.node(from),
                Message::Batch { bytes: slot.bytes.clone() }.into(),
            );
        }
    }

    /// A peer has reconnected: repeats the messages that were lost in flight.
    pub(crate) fn resend(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        let me = self.me;
        let replication = &self.replication;
        let heads = replication.durable[me.index()].clone();
        cx.send(self.node(peer), Message::Ack { heads }.into());
        if !self.settings.ack_everyone {
            let head = replication.proof_sent;
            cx.send(self.node(peer), Message::ProofOfAvailability { head }.into());
        }
        let acknowledged = replication.durable[peer.index()][me.index()];
        let log = &replication.logs[me.index()];
        let mut bytes_sent = 0;
        for slot in log.slots.range(acknowledged.next()..).map(|(_, slot)| slot) {
            // The peer most likely has them: after a restart its acknowledgements are unknown here.
            // It fetches those that it is missing.
            if bytes_sent > FETCH_BYTES_MAX {
                break;
            }
            bytes_sent += slot.bytes.len();
            cx.send_after(
                slot.position,
                self.node(peer),
                Message::Batch { bytes: slot.bytes.clone() }.into(),
            );
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

impl<B: Batch> SourceLog<B> {
    /// Returns the mark of the reason why a peer's batch is not inserted, or `None` if it is.
    fn refuses(&self, batch: &B) -> Option<&'static str> {
        let bid = batch.bid();
        if bid <= self.held || self.slots.contains_key(&bid) {
            Some("inputs.batch_again")
        } else if bid.0 > self.held.0 + AHEAD_MAX {
            Some("inputs.batch_far_ahead")
        } else if !self.fits(batch) {
            Some("inputs.batch_out_of_sequence")
        } else {
            None
        }
    }

    /// Whether the missing batches are in flight from their source: new batches keep arriving from
    /// it in order, none of them is after a gap, and none was fetched. A fetch would send them a
    /// second time, over another link, and delay other messages there.
    fn is_streaming(&self, now: Timestamp, patience: Span) -> bool {
        let has_gap = self.slots.range(self.held.next()..).next().is_some();
        let is_catching_up = self.held < self.fetched_upto;
        let quiet = now.since(self.heard_at);
        !has_gap && !is_catching_up && quiet.us < patience.us * STREAM_PATIENCE
    }

    /// Whether the batch's transactions are numbered between those of the batches before and after
    /// it.
    pub(crate) fn fits(&self, batch: &B) -> bool {
        let before = self.slots.range(..batch.bid()).next_back();
        let after = self.slots.range(batch.bid()..).next();
        before.is_none_or(|(_, slot)| slot.batch.end_sequence() <= batch.first_sequence())
            && after.is_none_or(|(_, slot)| batch.end_sequence() <= slot.batch.first_sequence())
    }

    /// Inserts a batch.
    pub(crate) fn insert(&mut self, bid: Bid, slot: Slot<B>) {
        if bid <= self.held {
            return;
        }
        self.next_sequence = self.next_sequence.max(slot.batch.end_sequence());
        self.slots.insert(bid, slot);
        self.known = self.known.max(bid);
        self.advance_held();
    }

    /// Advances the head over the batches that are present without a gap.
    pub(crate) fn advance_held(&mut self) {
        while let Some(slot) = self.slots.get_mut(&self.held.next()) {
            self.held = self.held.next();
            self.held_bytes += slot.bytes.len() as u64;
            slot.end = self.held_bytes;
        }
        if is_planted(Bug::HeldPastGap) {
            let last = self.slots.keys().next_back().copied().unwrap_or_default();
            self.held = self.held.max(last);
        }
    }

    /// The total bytes of the batches on this node after `after` up to `upto`, without those after
    /// a gap.
    pub(crate) fn bytes_between(&self, after: Bid, upto: Bid) -> u64 {
        let upto = upto.min(self.held);
        if after >= upto {
            return 0;
        }
        let mut slots = self.slots.range(after.next()..=upto).map(|(_, slot)| slot);
        let Some(first) = slots.next() else { return 0 };
        let last = slots.next_back().unwrap_or(first);
        (last.end + first.bytes.len() as u64).saturating_sub(first.end)
    }

    /// Advances the durable head over the batches that are durable without a gap.
    fn advance_durable(&mut self, upto: LogPosition) {
        while let Some(slot) = self.slots.get(&self.durable.next())
            && slot.position <= upto
        {
            self.durable = self.durable.next();
        }
    }
}

/// The last batch of `source`'s log that `quorum` replicas have along with all before it.
///
/// `durable[replica]` contains the heads that a replica has acknowledged; each counts once.
pub(crate) fn available_head(durable: &[Heads], source: usize, quorum: usize) -> Bid {
    let mut heads: Vec<Bid> = durable.iter().map(|heads| heads[source]).collect();
    heads.sort_unstable_by(|a, b| b.cmp(a));
    if is_planted(Bug::AckCountedTwice) {
        heads.insert(0, heads[0]);
    }
    heads[quorum - 1]
}

#[cfg(test)]
mod tests {
    use pangea_core::codec::DecodeError;

    use super::*;

    /// A batch without transactions.
    #[derive(Debug)]
    struct Empty(Bid);

    impl Batch for Empty {
        fn source(&self) -> NodeId {
            NodeId(0)
        }

        fn bid(&self) -> Bid {
            self.0
        }

        fn first_sequence(&self) -> u64 {
            1
        }

        fn end_sequence(&self) -> u64 {
            1
        }

        fn decode(_: &Bytes) -> Result<Self, DecodeError> {
            Err(DecodeError::new("an empty batch"))
        }

        fn check(&self) -> Result<(), DecodeError> {
            Ok(())
        }
    }

    #[test]
    fn bytes_are_counted_of_what_is_here_without_a_gap() {
        fn insert(log: &mut SourceLog<Empty>, bid: u64, len: usize) {
            let bid = Bid(bid);
            let (batch, bytes) = (Arc::new(Empty(bid)), Bytes::from(vec![0; len]));
            log.insert(bid, Slot { bytes, batch, position: LogPosition(1), end: 0 });
        }
        let mut log = SourceLog::default();
        (1..=4).for_each(|bid| insert(&mut log, bid, 10));
        insert(&mut log, 6, 1_000);
        let between =
            |log: &SourceLog<Empty>, after, upto| log.bytes_between(Bid(after), Bid(upto));
        assert_eq!(between(&log, 0, 9), 40, "the last batch is after a gap");
        assert_eq!((between(&log, 1, 2), between(&log, 1, 4)), (10, 30));
        assert_eq!((between(&log, 4, 4), between(&log, 9, 3)), (0, 0));
        log.collect(Bid(2));
        assert_eq!(
            (between(&log, 0, 9), between(&log, 3, 9)),
            (20, 10),
            "only retained batches count"
        );
        insert(&mut log, 5, 100);
        assert_eq!(between(&log, 3, 9), 1_110);
        log.skip_to(Bid(8));
        insert(&mut log, 9, 7);
        assert_eq!((between(&log, 0, 9), between(&log, 9, 9)), (7, 0));
    }

    #[test]
    fn a_batch_is_available_when_f_plus_1_replicas_have_it_and_all_before_it() {
        let durable = |heads: [u64; 3]| heads.map(|head| vec![Bid(head)]).to_vec();
        assert_eq!(available_head(&durable([5, 0, 0]), 0, 2), Bid(0));
        assert_eq!(available_head(&durable([5, 3, 0]), 0, 2), Bid(3));
        assert_eq!(available_head(&durable([5, 3, 4]), 0, 2), Bid(4));
        assert_eq!(available_head(&durable([5, 5, 5]), 0, 3), Bid(5));
    }
}
