//! A sequencer's batch and its encoding (§3.1).
//!
//! A batch is encoded once, by its sequencer. The same bytes are written to its log, sent to every
//! peer, and written to every peer's log.
//!
//! ```text
//!   +--------+-----+----------------+-------+-----------+-----------+--
//!   | source | bid | first sequence | count | request 0 | request 1 | ..
//!   | u16    | u64 | u64            | var   |           |           |
//!   +--------+-----+----------------+-------+-----------+-----------+--
//!   source: and 32768, where it is a master's
//!   request: see `request.rs`
//! ```

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, TxnId};
use pangea_core::partition::ShardSet;
use pangea_core::txn::{Footprint, Program};

pub use crate::request::Request;
pub(super) use crate::request::has_seen_what_is_final;
use crate::request::weight;
use crate::streams;
pub use crate::streams::Bid;

/// A request without a place in the order, and therefore without a name.
#[derive(Clone)]
pub(super) struct UnsequencedRequest {
    pub program: Program,
    /// §3.2.1: the footprint that a reconnaissance found; `None` if the arguments determine it.
    pub footprint: Option<Footprint>,
    /// The participating shards; empty if tables are not partitioned.
    pub shards: ShardSet,
    /// How often it has left its footprint.
    pub tries: u32,
}

/// An entry of a sequencer's log.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The sequencer.
    pub source: NodeId,
    /// The number of the batch in its log.
    pub bid: Bid,
    /// The number of the first request; the others follow without a gap.
    pub first_sequence: u64,
    /// Whether a master created it, under asynchronous replication: it is void if no cut of its
    /// master term contains it.
    pub is_of_master: bool,
    /// The requests, in the order of their arrival.
    pub requests: Vec<Request>,
}

/// Added to the source of a master's batch: no node has so large a number.
const OF_MASTER: u16 = 1 << 15;

impl UnsequencedRequest {
    /// A program that determines its own footprint.
    pub(super) fn new(program: Program, shards: ShardSet) -> Self {
        Self { program, footprint: None, shards, tries: 0 }
    }

    /// An upper bound on its encoded size in bytes.
    pub(super) fn weight(&self) -> usize {
        weight(&self.program, self.footprint.as_ref(), self.shards)
    }

    /// The request with its name, and with the name that another replica has for it.
    pub(super) fn placed(self, txn: TxnId, origin: Option<(NodeId, u64)>) -> Request {
        let Self { program, footprint, shards, .. } = self;
        Request { txn, program, footprint, shards, origin }
    }
}

impl Request {
    /// The request without its name, which has left its footprint `tries` times.
    pub(super) fn unplaced(self, tries: u32) -> UnsequencedRequest {
        let Self { program, footprint, shards, .. } = self;
        UnsequencedRequest { program, footprint, shards, tries }
    }
}

impl Batch {
    /// Encodes the batch.
    pub fn encode(&self) -> Bytes {
        let requests: usize = self.requests.iter().map(Request::size_hint).sum();
        let mut out = Vec::with_capacity(64 + requests);
        assert!(self.source.0 < OF_MASTER, "node ids are small enough");
        out.put_u16(self.source.0 | if self.is_of_master { OF_MASTER } else { 0 });
        out.put_u64(self.bid.0);
        out.put_u64(self.first_sequence);
        out.put_varint(self.requests.len() as u64);
        self.requests.iter().for_each(|request| request.encode(&mut out));
        out.into()
    }
}

impl streams::Batch for Batch {
    fn source(&self) -> NodeId {
        self.source
    }

    fn bid(&self) -> Bid {
        self.bid
    }

    fn first_sequence(&self) -> u64 {
        self.first_sequence
    }

    fn end_sequence(&self) -> u64 {
        self.first_sequence + self.requests.len() as u64
    }

    // Arguments remain slices of `bytes`.
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let source = from.u16("batch source")?;
        let (source, is_of_master) = (NodeId(source & !OF_MASTER), source & OF_MASTER != 0);
        let bid = Bid(from.u64("batch id")?);
        let first_sequence = from.u64("batch sequence")?;
        let count = from.count("batch")?;
        streams::check_names(source, first_sequence, count)?;
        let requests = (0..count as u64)
            .map(|i| Request::decode(TxnId::new(source, first_sequence + i), from, bytes))
            .collect::<Result<_, _>>()?;
        if !from.is_empty() {
            return Err(DecodeError::new("batch"));
        }
        Ok(Self { source, bid, first_sequence, is_of_master, requests })
    }

    fn check(&self) -> Result<(), DecodeError> {
        match self.requests.iter().all(|it| has_seen_what_is_final(&it.program)) {
            true => Ok(()),
            false => Err(DecodeError::new("request")),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::streams::Batch as _;
    use pangea_core::ids::{ProcedureId, ShardId, SnapshotVersion, TableId};
    use pangea_core::key::Key;
    use pangea_core::partition::SHARDS_MAX;
    use pangea_core::txn::{
        Certified, LockMode, PointLock, PointRead, ReadSet, ReadVersion, Write,
    };
    use pangea_core::value::Value;

    /// A batch with one request of each kind.
    pub fn batch() -> Batch {
        let table = TableId(1);
        let key = Key::from(&b"k"[..]);
        let seen = ReadVersion::At(SnapshotVersion(3));
        let points = vec![PointRead { table, key: key.clone(), seen }];
        let reads = ReadSet { points, ranges: vec![] };
        let value = Some(Value::copy_from(b"v"));
        let writes = vec![Write { table, key: key.clone(), value }];
        let lock = PointLock { table, key, mode: LockMode::Exclusive };
        let footprint = Some(Footprint::new(vec![lock], vec![]));
        let call = Program::Call { procedure: ProcedureId(2), args: Bytes::from_static(b"args") };
        let all = [
            (call.clone(), None),
            (call, footprint),
            (Program::Certified(Certified { reads, writes, ..Certified::default() }), None),
        ];
        let source = NodeId(2);
        let request = |(i, (program, footprint))| {
            let txn = TxnId::new(source, 40 + i as u64);
            let shards = (0..i as u16).map(ShardId).collect();
            let origin = (i > 0).then_some((NodeId(1), 300 + i as u64));
            Request { txn, program, footprint, shards, origin }
        };
        let requests = all.into_iter().enumerate().map(request).collect();
        Batch { source, bid: Bid(7), first_sequence: 40, is_of_master: false, requests }
    }

    /// The largest requests of each kind: the bytes in addition to the arguments are within the
    /// constant.
    #[test]
    fn a_request_takes_no_more_than_it_weighs() {
        for request in batch().requests {
            let shards: ShardSet = (0..SHARDS_MAX).map(ShardId).collect();
            let origin = Some((NodeId(u16::MAX), u64::MAX));
            for shards in [ShardSet::default(), shards] {
                let request = Request { shards, origin, ..request.clone() };
                let mut bytes = Vec::new();
                request.encode(&mut bytes);
                assert!(bytes.len() <= request.weight(), "{} {request:?}", bytes.len());
            }
        }
    }

    /// Calvin §3.1: a batch is replicated as the transactional input.
    #[test]
    fn a_batch_survives_its_encoding_and_a_cut_one_is_refused() {
        let of_master = Batch { is_of_master: true, ..batch() };
        assert_eq!(Batch::decode(&of_master.encode()), Ok(of_master));
        let bytes = batch().encode();
        assert_eq!(Batch::decode(&bytes), Ok(batch()));
        assert_eq!(batch().check(), Ok(()));
        for len in 0..bytes.len() {
            assert!(Batch::decode(&bytes.slice(..len)).is_err(), "truncated to {len}");
        }
    }

    #[test]
    fn an_interactive_transaction_that_saw_what_is_not_committed_is_refused() {
        let mut batch = batch();
        let Program::Certified(certified) = &mut batch.requests[2].program else { panic!() };
        certified.reads.points[0].seen = ReadVersion::Local(TxnId::new(NodeId(2), 1));
        assert!(batch.check().is_err());
    }

    proptest::proptest! {
        #[test]
        fn a_batch_with_a_flipped_byte_never_panics(at in 0usize..200, flip in 1u8..=255) {
            let mut bytes = batch().encode().to_vec();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            let _ = Batch::decode(&bytes.into());
        }
    }
}
