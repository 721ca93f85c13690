//! What an epoch of one shard's sequencers has for another shard (§3.1: "all transaction inputs
//! that the recipient will need to participate in").
//!
//! ```text
//!   +-------+-------+-------+---------+--
//!   | epoch | shard | count | batch 0 | ..
//!   +-------+-------+-------+---------+--
//!   batch: turn, sequencer, first sequence, count; then for each request
//!          how many sequence numbers are passed over, and the request as in a batch
//! ```
//!
//! A slice is encoded once. The same bytes go to the shard's node and into its log.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};

use super::super::batch::Request;
use crate::inputs::number;

/// One slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// Whose sequencers took the requests.
    pub shard: ShardId,
    /// In the order of their turns, and then of their sequencers.
    pub batches: Vec<Part>,
    bytes: Bytes,
}

/// What concerns a shard of a sequencer's batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// How many batches of the sequencer come before it in the epoch.
    pub turn: u64,
    /// The sequencer.
    pub sequencer: NodeId,
    /// The requests, in their order.
    pub requests: Vec<Request>,
}

const WHAT: &str = "slice";

impl Slice {
    /// A slice of these batches.
    pub fn new(epoch: SnapshotVersion, shard: ShardId, batches: Vec<Part>) -> Self {
        let mut out = Vec::new();
        out.put_varint(epoch.0);
        out.put_u16(shard.0);
        out.put_varint(batches.len() as u64);
        batches.iter().for_each(|batch| batch.encode(&mut out));
        Self { epoch, shard, batches, bytes: out.into() }
    }

    /// The slice as bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Reads one. Its requests' arguments stay slices of `bytes`.
    ///
    /// # Errors
    /// When the bytes are malformed.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let epoch = SnapshotVersion(number(from, WHAT)?);
        let shard = ShardId(from.u16(WHAT)?);
        let batches = (0..from.count(WHAT)?).map(|_| Part::decode(from, bytes));
        let batches = batches.collect::<Result<_, _>>()?;
        if !from.is_empty() {
            return Err(DecodeError::new(WHAT));
        }
        Ok(Self { epoch, shard, batches, bytes: bytes.clone() })
    }
}

impl Part {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.turn);
        out.put_u16(self.sequencer.0);
        out.put_varint(self.requests.len() as u64);
        let mut next = 0;
        for request in &self.requests {
            let sequence = request.txn.sequence();
            out.put_varint(sequence - next);
            next = sequence + 1;
            request.encode(out);
        }
    }

    fn decode(from: &mut Reader<'_>, bytes: &Bytes) -> Result<Self, DecodeError> {
        let (turn, sequencer) = (from.varint(WHAT)?, NodeId(from.u16(WHAT)?));
        if sequencer.0 >= 1 << 15 {
            return Err(DecodeError::new(WHAT));
        }
        let mut next = 0;
        let requests = (0..from.count(WHAT)?).map(|_| {
            let sequence = number(from, WHAT)? + next;
            if sequence >= crate::inputs::NUMBER_MAX {
                return Err(DecodeError::new(WHAT));
            }
            next = sequence + 1;
            Request::decode(TxnId::new(sequencer, sequence), from, bytes)
        });
        let requests = requests.collect::<Result<_, _>>()?;
        Ok(Self { turn, sequencer, requests })
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::super::super::batch::tests::batch;
    use super::*;

    /// One of two batches.
    pub fn slice() -> Slice {
        let requests = batch().requests;
        let sequencer = requests[0].txn.node();
        let some = Part { turn: 0, sequencer, requests: requests[..1].to_vec() };
        let others = Part { turn: 1, sequencer, requests: requests[1..].to_vec() };
        Slice::new(SnapshotVersion(300), ShardId(1), vec![some, others])
    }

    #[test]
    fn a_slice_survives_its_encoding() {
        let slice = slice();
        assert_eq!(Slice::decode(slice.bytes()), Ok(slice));
    }
}
