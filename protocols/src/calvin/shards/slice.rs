//! A slice: the requests of an epoch of one shard's sequencers for another shard (§3.1: "all
//! transaction inputs that the recipient will need to participate in").
//!
//! ```text
//!   +-------+-------+-----+-------+---------+--
//!   | epoch | shard | cut | count | batch 0 | ..
//!   +-------+-------+-----+-------+---------+--
//!   cut: proposer, incarnation, number; first sequence of its master term plus one, or 0; code
//!   batch: round, sequencer, first sequence, count; then for each request
//!          how many sequence numbers are passed over, and the request as in a batch
//! ```
//!
//! A slice is encoded once. The same bytes are sent to the shard's node and written to its log.
//!
//! A master sends the slices of its fixed cuts before they are decided (§3.1.1). There may then be
//! slices of several cuts for one epoch, of which one will be decided, and each slice names its
//! cut. A cut is proposed after all cuts before it, so its name identifies those, too. Therefore
//! the names of all groups' cuts for an epoch, its **lineage**, identify everything that was
//! sequenced up to it.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::txn::CodeDigest;

use super::super::Cut;
use super::super::batch::Request;
use crate::inputs::{ProposalName, Rules as _};
use crate::streams::number;

/// A slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// The shard whose sequencers accepted the requests.
    pub shard: ShardId,
    /// The cut of that shard's group.
    pub cut: CutId,
    /// Whether the cut is decided, as far as the sender knows. Not encoded, because it is decided
    /// in any log.
    pub is_decided: bool,
    /// Sorted by round, and then by sequencer.
    pub batches: Vec<SliceBatch>,
    bytes: Bytes,
}

/// A cut, as known to other groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutId {
    /// The name, unique among the cuts of all groups.
    pub name: ProposalName,
    /// The number of the first transaction of its master term, if replication is asynchronous.
    pub first: Option<u64>,
    /// The code under which it was proposed.
    pub code: CodeDigest,
}

/// The lineage of an epoch: a hash of the names of all groups' cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lineage(pub u64);

impl Lineage {
    /// The lineage of these cuts, in the order of their groups.
    pub fn of(cuts: impl Iterator<Item = ProposalName>) -> Self {
        // FNV-1a, because the value is in logs and messages and must be the same in every build.
        const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let words = cuts.flat_map(|it| [u64::from(it.proposer.0), it.incarnation, it.nonce]);
        let bytes = words.flat_map(u64::to_le_bytes);
        Self(bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)))
    }
}

impl CutId {
    /// The part of a cut that other groups know.
    pub fn new(cut: &Cut) -> Self {
        let first = cut.master_term.map(|master_term| master_term.first);
        Self { name: cut.name, first, code: cut.rules.code() }
    }

    fn encode(self, out: &mut Vec<u8>) {
        self.name.encode(out);
        out.put_varint(self.first.map_or(0, |first| first + 1));
        out.put_u64(self.code.0);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let name = ProposalName::decode(from, WHAT)?;
        let first = number(from, WHAT)?.checked_sub(1);
        Ok(Self { name, first, code: CodeDigest(from.u64(WHAT)?) })
    }
}

/// The requests of one batch that a shard participates in.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceBatch {
    /// The number of the sequencer's batches before it in the epoch.
    pub round: u64,
    /// The sequencer.
    pub sequencer: NodeId,
    /// The requests, in their order.
    pub requests: Vec<Request>,
}

const WHAT: &str = "slice";

impl Slice {
    /// A slice of these batches, of a decided cut.
    pub fn new(
        epoch: SnapshotVersion,
        shard: ShardId,
        cut: CutId,
        batches: Vec<SliceBatch>,
    ) -> Self {
        let mut out = Vec::new();
        out.put_varint(epoch.0);
        out.put_u16(shard.0);
        cut.encode(&mut out);
        out.put_varint(batches.len() as u64);
        batches.iter().for_each(|batch| batch.encode(&mut out));
        Self { epoch, shard, cut, is_decided: true, batches, bytes: out.into() }
    }

    /// The same slice, of a cut that is decided or not as far as the sender knows.
    pub fn with_decided(self, is_decided: bool) -> Self {
        Self { is_decided, ..self }
    }

    /// The encoded slice.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Decodes a slice of a decided cut. The arguments of its requests remain slices of `bytes`.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let epoch = SnapshotVersion(number(from, WHAT)?);
        let shard = ShardId(from.u16(WHAT)?);
        let cut = CutId::decode(from)?;
        let batches = (0..from.count(WHAT)?).map(|_| SliceBatch::decode(from, bytes));
        let batches = batches.collect::<Result<_, _>>()?;
        if !from.is_empty() {
            return Err(DecodeError::new(WHAT));
        }
        Ok(Self { epoch, shard, cut, is_decided: true, batches, bytes: bytes.clone() })
    }
}

impl SliceBatch {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.round);
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
        let (round, sequencer) = (from.varint(WHAT)?, NodeId(from.u16(WHAT)?));
        if sequencer.0 >= 1 << 15 {
            return Err(DecodeError::new(WHAT));
        }
        let mut next = 0;
        let requests = (0..from.count(WHAT)?).map(|_| {
            let sequence = number(from, WHAT)? + next;
            if sequence >= crate::messages::NUMBER_MAX {
                return Err(DecodeError::new(WHAT));
            }
            next = sequence + 1;
            Request::decode(TxnId::new(sequencer, sequence), from, bytes)
        });
        let requests = requests.collect::<Result<_, _>>()?;
        Ok(Self { round, sequencer, requests })
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::super::super::batch::tests::batch;
    use super::*;

    /// A slice of two batches.
    pub fn slice() -> Slice {
        let requests = batch().requests;
        let sequencer = requests[0].txn.node();
        let some = SliceBatch { round: 0, sequencer, requests: requests[..1].to_vec() };
        let others = SliceBatch { round: 1, sequencer, requests: requests[1..].to_vec() };
        let name = ProposalName { proposer: NodeId(2), incarnation: u64::MAX, nonce: 300 };
        let cut = CutId { name, first: Some(40), code: CodeDigest(u64::MAX - 7) };
        Slice::new(SnapshotVersion(300), ShardId(1), cut, vec![some, others])
    }

    #[test]
    fn a_slice_survives_its_encoding() {
        let slice = slice();
        assert_eq!(Slice::decode(slice.bytes()), Ok(slice));
        let none = Slice::new(SnapshotVersion(1), ShardId(0), CutId::default(), Vec::new());
        assert_eq!(Slice::decode(none.bytes()), Ok(none));
    }

    #[test]
    fn a_line_tells_each_cut_from_every_other_one() {
        let name = |proposer, nonce| ProposalName { proposer: NodeId(proposer), nonce, ..name_0() };
        let line = |names: &[ProposalName]| Lineage::of(names.iter().copied());
        let all = [
            line(&[name(0, 1), name(0, 2)]),
            line(&[name(0, 2), name(0, 1)]),
            line(&[name(1, 1), name(0, 2)]),
            line(&[name(0, 1)]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one));
        }
        assert_eq!(line(&[name(0, 1), name(0, 2)]), all[0]);
        assert_eq!(
            line(&[name_0()]),
            Lineage(0x81d2_3fd7_003c_2305),
            "the hash is the same in all builds"
        );
    }

    fn name_0() -> ProposalName {
        ProposalName::default()
    }
}
