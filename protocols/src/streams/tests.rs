//! Tests of a source's log, with batches that have numbers and nothing else.

use pangea_core::codec::Writer;

use super::*;

/// A batch of one transaction.
#[derive(Debug)]
struct Numbered {
    source: u16,
    bid: u64,
}

impl Batch for Numbered {
    fn source(&self) -> NodeId {
        NodeId(self.source)
    }

    fn bid(&self) -> Bid {
        Bid(self.bid)
    }

    fn first_sequence(&self) -> u64 {
        self.bid
    }

    fn end_sequence(&self) -> u64 {
        self.bid + 1
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        Ok(Self { source: from.u16("source")?, bid: from.u64("bid")? })
    }

    fn check(&self) -> Result<(), DecodeError> {
        Ok(())
    }
}

const LEN: u64 = 10;

fn log_of(bids: &[u64]) -> SourceLog<Numbered> {
    let mut log = SourceLog::default();
    for &bid in bids {
        let batch = Arc::new(Numbered { source: 1, bid });
        let bytes = Bytes::from(vec![0; LEN as usize]);
        let slot = BufferedBatch { bytes, batch, position: LogPosition(bid), end: 0 };
        log.insert(Bid(bid), slot);
    }
    log
}

#[test]
fn a_batch_is_taken_once_also_when_it_is_collected_or_after_a_gap() {
    let mut log = log_of(&[1, 2, 3, 5]);
    log.advance_durable(LogPosition(3));
    log.collect(Bid(2));
    let refused = |bid| log.refuses(&Numbered { source: 1, bid }, LEN as usize);
    for bid in [1, 2, 3, 5] {
        assert_eq!(refused(bid), Some("streams.batch_again"), "batch {bid}");
    }
    for bid in [4, 6] {
        assert_eq!(refused(bid), None, "batch {bid}");
    }
}

#[test]
fn what_is_discarded_ends_at_the_head_and_never_before_what_was_collected() {
    for (head, received, left) in [(1, 2, 0), (2, 2, 0), (3, 3, 1), (4, 3, 1), (5, 3, 2)] {
        let mut log = log_of(&[1, 2, 3, 5, 6]);
        log.collect(Bid(2));
        log.discard_after(Bid(head));
        assert_eq!((log.received, log.known), (Bid(received), Bid(received)), "after {head}");
        assert_eq!(log.slots.len(), left, "after {head}");
        let ahead = log.slots.range(Bid(received).next()..).count() as u64;
        assert_eq!(log.ahead_bytes, ahead * LEN, "after {head}");
    }
}

#[test]
fn a_batch_of_no_node_or_without_a_number_is_malformed() {
    let decoded = |source: u16, bid: u64| {
        let mut bytes = Vec::new();
        bytes.put_u16(source);
        bytes.put_u64(bid);
        decode_batch::<Numbered>(&Bytes::from(bytes), 3).is_ok()
    };
    assert!(decoded(0, 1) && decoded(2, NUMBER_MAX));
    assert!(!decoded(3, 1) && !decoded(4, 1), "the cluster has three nodes");
    assert!(!decoded(1, 0) && !decoded(1, NUMBER_MAX + 1), "batches are numbered from 1");
}

#[test]
fn a_number_that_nobody_counts_to_is_malformed() {
    let decoded = |value: u64| {
        let mut bytes = Vec::new();
        bytes.put_varint(value);
        number(&mut Reader::new(&bytes), "a number").ok()
    };
    assert_eq!(decoded(NUMBER_MAX), Some(NUMBER_MAX));
    assert_eq!(decoded(NUMBER_MAX + 1), None);
}
