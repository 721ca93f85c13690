//! The part of a source's log that is on one replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::LogPosition;
use pangea_core::mutate;
use pangea_core::time::{Span, Timestamp};

use super::{Batch, Bid, Bounds};

/// A source counts as streaming until it has sent no new batch for this multiple of the wait for a
/// missing batch. If batches are large and connections full, batches arrive further apart than the
/// wait itself.
const STREAM_PATIENCE: u64 = 4;

/// A batch further ahead of the log's head than this is not stored: it is fetched when it is
/// needed.
const AHEAD_MAX: u64 = 1 << 16;

/// The maximum total size of the batches of one log after a gap, in bytes: a few of the largest
/// batches. Those above it are not stored either. The batch that fills the gap always is.
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// The part of a replica's log that is on this node.
pub(crate) struct SourceLog<B> {
    /// The batches on this node.
    pub slots: BTreeMap<Bid, BufferedBatch<B>>,
    /// The last batch received without gaps; collected batches count.
    pub received: Bid,
    /// The total size of these batches in bytes; those skipped by a checkpoint do not count.
    pub received_bytes: u64,
    /// The total size of the batches after a gap in bytes.
    pub ahead_bytes: u64,
    /// The last batch that is durable on this node, without gaps.
    pub durable: Bid,
    /// The last batch that was dropped because every member has applied it.
    pub collected: Bid,
    /// The last batch that some replica is known to have.
    pub known: Bid,
    /// All transactions in batches that were ever on this node have lower numbers than this.
    pub next_sequence: u64,
    pub missing: BatchGap,
    /// When the last new batch arrived from the source itself.
    pub heard_at: Timestamp,
    /// The value of `known` when a batch was last fetched.
    pub fetched_upto: Bid,
    /// Whether no batch of the source is stored until the owner knows which of them count.
    pub is_sealed: bool,
    /// The numbers whose batches count.
    pub bounds: Bounds,
}

/// The first missing batch.
#[derive(Clone, Copy, Default)]
pub(crate) struct BatchGap {
    pub bid: Bid,
    /// When it was first found missing, or was last requested.
    pub since: Timestamp,
    /// How often it was requested.
    pub requests: u32,
}

/// A batch on this node.
pub(crate) struct BufferedBatch<B> {
    pub bytes: Bytes,
    pub batch: Arc<B>,
    /// Its position in this node's log.
    pub position: LogPosition,
    /// The total bytes of its log up to and including this batch; valid once all earlier batches
    /// are here.
    pub end: u64,
}

impl<B> Default for SourceLog<B> {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            received: Bid(0),
            received_bytes: 0,
            ahead_bytes: 0,
            durable: Bid(0),
            collected: Bid(0),
            known: Bid(0),
            next_sequence: 0,
            missing: BatchGap::default(),
            heard_at: Timestamp::default(),
            fetched_upto: Bid(0),
            is_sealed: false,
            bounds: Bounds::default(),
        }
    }
}

impl<B: Batch> SourceLog<B> {
    /// Returns the mark of the reason why a peer's batch of this size is not inserted, or `None` if
    /// it is.
    pub(super) fn refuses(&self, batch: &B, len: usize) -> Option<&'static str> {
        let bid = batch.bid();
        let is_next = bid == self.received.next();
        if bid <= self.received || self.slots.contains_key(&bid) {
            Some("streams.batch_again")
        } else if self.is_sealed || !self.bounds.counts(bid) {
            Some("streams.batch_of_sealed")
        } else if bid.0 > self.received.0 + AHEAD_MAX {
            Some("streams.batch_far_ahead")
        } else if !is_next && self.ahead_bytes + len as u64 > AHEAD_BYTES_MAX {
            Some("streams.too_much_ahead")
        } else if !self.fits(batch) {
            Some("streams.batch_out_of_sequence")
        } else {
            None
        }
    }

    /// Whether the missing batches are in flight from their source: new batches keep arriving from
    /// it in order, none of them is after a gap, and none was fetched. A fetch would send them a
    /// second time, over another link, and delay other messages there.
    pub(super) fn is_streaming(&self, now: Timestamp, patience: Span) -> bool {
        let has_gap = self.slots.range(self.received.next()..).next().is_some();
        let is_catching_up = self.received < self.fetched_upto;
        let quiet = now.since(self.heard_at);
        !has_gap && !is_catching_up && quiet.us < patience.us * STREAM_PATIENCE
    }

    /// Whether the batch's transactions are numbered between those of the batches before and after
    /// it, and the source can have created it between them.
    pub(crate) fn fits(&self, batch: &B) -> bool {
        let are_in_order = |a: &B, b: &B| a.end_sequence() <= b.first_sequence() && b.follows(a);
        let before = self.slots.range(..batch.bid()).next_back();
        let after = self.slots.range(batch.bid()..).next();
        before.is_none_or(|(_, slot)| are_in_order(&slot.batch, batch))
            && after.is_none_or(|(_, slot)| are_in_order(batch, &slot.batch))
    }

    /// Inserts a batch.
    pub(crate) fn insert(&mut self, bid: Bid, slot: BufferedBatch<B>) {
        if bid <= self.received {
            return;
        }
        self.next_sequence = self.next_sequence.max(slot.batch.end_sequence());
        self.ahead_bytes += slot.bytes.len() as u64;
        if let Some(before) = self.slots.insert(bid, slot) {
            self.ahead_bytes -= before.bytes.len() as u64;
        }
        self.known = self.known.max(bid);
        self.advance_held();
    }

    /// Advances the head over the batches that are present without a gap.
    pub(crate) fn advance_held(&mut self) {
        loop {
            if let Some(upto) = self.bounds.void_after(self.received) {
                self.received = upto;
                self.known = self.known.max(upto);
                continue;
            }
            let Some(slot) = self.slots.get_mut(&self.received.next()) else { break };
            self.received = self.received.next();
            let len = slot.bytes.len() as u64;
            self.received_bytes += len;
            self.ahead_bytes -= len;
            slot.end = self.received_bytes;
        }
        mutate!(HeldPastGap: () => held_past_gap(self));
    }

    /// The total bytes of the batches on this node after `after` up to `upto`, without those after
    /// a gap.
    pub(crate) fn bytes_between(&self, after: Bid, upto: Bid) -> u64 {
        let upto = upto.min(self.received);
        if after >= upto {
            return 0;
        }
        let mut slots = self.slots.range(after.next()..=upto).map(|(_, slot)| slot);
        let Some(first) = slots.next() else { return 0 };
        let last = slots.next_back().unwrap_or(first);
        (last.end + first.bytes.len() as u64).saturating_sub(first.end)
    }

    /// The head after `before` up to `available` before which there are at most `txns_max`
    /// transactions, but at least one batch. A batch that is not on this node counts as empty.
    pub(crate) fn head_within(&self, before: Bid, available: Bid, txns_max: u64) -> Bid {
        if before >= available {
            return available;
        }
        let mut txns = 0;
        for (&bid, slot) in self.slots.range(before.next()..=available) {
            txns += slot.batch.end_sequence() - slot.batch.first_sequence();
            if txns > txns_max {
                return Bid(bid.0 - 1).max(before.next());
            }
        }
        available
    }

    /// Advances the durable head over the batches that are durable without a gap.
    pub(super) fn advance_durable(&mut self, upto: LogPosition) {
        let mut durable = self.durable;
        while let Some((bid, slot)) = self.slots.range(durable.next()..).next()
            && *bid <= self.received
            && slot.position <= upto
        {
            durable = *bid;
        }
        self.durable = durable;
    }

    /// Skips batches up to `head`, which are part of the state and not needed on this node.
    pub(crate) fn skip_to(&mut self, head: Bid) {
        self.collect(head);
        self.received = self.received.max(head);
        self.durable = self.durable.max(head);
        self.known = self.known.max(head);
        self.count_ahead();
        self.advance_held();
    }

    /// Discards every batch after `head` that is not part of the state.
    pub(crate) fn discard_after(&mut self, head: Bid) {
        self.slots.split_off(&head.next());
        self.received = self.received.min(head).max(self.collected);
        self.known = self.received;
        self.count_ahead();
        self.advance_held();
    }

    /// Takes no more batches until the owner knows which of them count, and drops those after a
    /// gap. If a peer's checkpoint filled the gap, they would be taken later than those that the
    /// owner has reported. After a restart the gap may be before one that is `reported`.
    pub(crate) fn seal_at(&mut self, reported: Bid) {
        self.is_sealed = true;
        self.slots.split_off(&self.received.max(reported).next());
        self.count_ahead();
    }

    /// Ends the log at `last`: later batches of the source do not count. Earlier ones are missing
    /// as long as they are not here.
    pub(crate) fn end_at(&mut self, last: Bid) {
        self.discard_after(last);
        self.durable = self.durable.min(self.received);
        self.known = last.max(self.received);
        (self.is_sealed, self.bounds.last) = (false, Some(last));
    }

    /// Continues a log that has ended, from the batch after `head` on. Those in between do not
    /// exist.
    pub(crate) fn continue_after(&mut self, head: Bid) {
        self.is_sealed = false;
        self.bounds.continue_after(head);
        self.advance_held();
    }

    /// Takes the bounds of a replica that knows later ones.
    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        // It may have batches of a life whose end it had not heard of.
        self.slots.retain(|bid, _| self.bounds.counts(*bid));
        self.count_ahead();
        match self.bounds.last {
            Some(last) => self.end_at(last),
            None => self.advance_held(),
        }
    }

    /// Counts the bytes after a gap again, after the head was moved.
    fn count_ahead(&mut self) {
        let ahead = self.slots.range(self.received.next()..);
        self.ahead_bytes = ahead.map(|(_, slot)| slot.bytes.len() as u64).sum();
    }
}

impl<B> SourceLog<B> {
    /// Drops the batches up to `watermark`.
    pub(crate) fn collect(&mut self, watermark: Bid) {
        if watermark > self.collected {
            self.collected = watermark;
            self.slots = self.slots.split_off(&watermark.next());
        }
    }
}

fn held_past_gap<B>(log: &mut SourceLog<B>) {
    let last = log.slots.keys().next_back().copied().unwrap_or_default();
    log.received = log.received.max(last);
    log.ahead_bytes = 0;
}

#[cfg(test)]
mod tests {
    use pangea_core::codec::DecodeError;
    use pangea_core::ids::NodeId;

    use super::*;

    /// A batch of three transactions, without their contents.
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
            3 * self.0.0
        }

        fn end_sequence(&self) -> u64 {
            3 * self.0.0 + 3
        }

        fn decode(_: &Bytes) -> Result<Self, DecodeError> {
            Err(DecodeError::new("an empty batch"))
        }

        fn check(&self) -> Result<(), DecodeError> {
            Ok(())
        }
    }

    fn insert(log: &mut SourceLog<Empty>, bid: u64, len: usize) {
        let bid = Bid(bid);
        let (batch, bytes) = (Arc::new(Empty(bid)), Bytes::from(vec![0; len]));
        log.insert(bid, BufferedBatch { bytes, batch, position: LogPosition(1), end: 0 });
    }

    /// B10 of the audit: 65,536 batches of up to 16 MB were stored behind a gap.
    #[test]
    fn the_batches_behind_a_gap_are_limited_in_bytes_and_the_one_that_fills_it_is_not() {
        const MB: usize = 1 << 20;
        let mut log = SourceLog::default();
        (2..=5).for_each(|bid| {
            assert_eq!(log.refuses(&Empty(Bid(bid)), 16 * MB), None);
            insert(&mut log, bid, 16 * MB);
        });
        assert_eq!(log.refuses(&Empty(Bid(6)), 1), Some("streams.too_much_ahead"));
        assert_eq!(log.refuses(&Empty(Bid(1)), 16 * MB), None, "it fills the gap");
        insert(&mut log, 1, 16 * MB);
        assert_eq!((log.received, log.ahead_bytes), (Bid(5), 0));
        assert_eq!(log.refuses(&Empty(Bid(7)), 16 * MB), None);
        insert(&mut log, 7, 16 * MB);
        insert(&mut log, 9, 8 * MB);
        log.skip_to(Bid(8));
        assert_eq!((log.received, log.ahead_bytes), (Bid(9), 0));
        insert(&mut log, 11, MB);
        log.discard_after(Bid(9));
        assert_eq!(log.ahead_bytes, 0);
    }

    /// After a pause of the coordinator, the first cuts do not contain everything.
    #[test]
    fn a_cut_takes_as_many_transactions_as_it_may_and_at_least_one_batch() {
        let mut log = SourceLog::default();
        (1..=4).for_each(|bid| insert(&mut log, bid, 10));
        let head = |before, available, txns| log.head_within(Bid(before), Bid(available), txns).0;
        assert_eq!([head(0, 4, 0), head(0, 4, 5), head(0, 4, 6), head(0, 4, 100)], [1, 1, 2, 4]);
        assert_eq!([head(2, 4, 0), head(3, 3, 0), head(3, 2, 0)], [3, 3, 2]);
        assert_eq!(head(0, 6, 100), 6, "batches that are not here count as empty");
    }

    #[test]
    fn batches_that_do_not_count_are_dropped_when_the_bounds_are_known() {
        let mut log = SourceLog::default();
        [1, 2, 3, 4, 8].into_iter().for_each(|bid| insert(&mut log, bid, 10));
        let mut bounds = Bounds::ended_at(Bid(2));
        bounds.continue_after(Bid(5));
        log.set_bounds(bounds);
        let kept: Vec<u64> = log.slots.keys().map(|bid| bid.0).collect();
        assert_eq!((kept, log.received, log.ahead_bytes), (vec![1, 2, 8], Bid(5), 10));
    }

    #[test]
    fn bytes_are_counted_of_what_is_here_without_a_gap() {
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
}
