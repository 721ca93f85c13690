//! Transactions in a batch, and the encoding of a batch (§3.2, Figure 3).
//!
//! A batch is encoded once, by its source. The same bytes are written to the source's log, sent to
//! every peer, and written to every peer's log.
//!
//! ```text
//!   +--------+-----+------+----------------+-------+----------+----------+--
//!   | source | bid | base | first sequence | count | record 0 | record 1 | ..
//!   | u16    | u64 | u64  | u64            | var   |          |          |
//!   +--------+-----+------+----------------+-------+----------+----------+--
//!   record: how u8, then for
//!     0 executed    procedure u32, args, read set, writes (`write_set_codec.rs`)
//!     1 ordered     procedure u32, args, has footprint u8, [footprint]
//!     2 certified   read set, write count, writes
//!     3 certified in order: as 2
//! ```

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ProcedureId, SnapshotVersion, TxnId};
use pangea_core::txn::{Certified, Footprint, Program, ReadSet, ReadVersion, Write};

use crate::messages::NUMBER_MAX;
use crate::streams;
pub use crate::streams::{Bid, Heads};
use crate::write_set_codec;

/// A transaction in a batch: the paper's `TxnRecord`.
#[derive(Clone, Debug, PartialEq)]
pub struct TxnRecord {
    /// The transaction's name.
    pub txn: TxnId,
    /// The program.
    pub program: Program,
    /// The execution mode of the transaction in its epoch.
    pub how: ExecutionMode,
}

/// The execution mode of a transaction in its epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecutionMode {
    /// It ran at its source: its writes are applied if it is valid, otherwise it is re-executed.
    Executed {
        /// The read set of the run.
        reads: ReadSet,
        /// The write set of the run.
        writes: Vec<Write>,
    },
    /// It goes straight to the ordered queue (§4, high-contention mode).
    Ordered {
        /// The footprint; `None` if the arguments determine it.
        footprint: Option<Footprint>,
    },
    /// The program is certified, and its reads and writes are validated like those of a run.
    Certified,
    /// The program is certified at its place in the ordered queue.
    CertifiedInOrder,
}

impl TxnRecord {
    /// The arguments of a call; a certified transaction has none.
    pub(super) fn args(&self) -> &[u8] {
        match &self.program {
            Program::Call { args, .. } => args,
            Program::Certified(_) => &[],
        }
    }

    /// The read set and write set of the run at its source, if they are to be validated.
    pub fn learned(&self) -> Option<(&ReadSet, &[Write])> {
        match (&self.how, &self.program) {
            (ExecutionMode::Executed { reads, writes }, _) => Some((reads, writes)),
            (ExecutionMode::Certified, Program::Certified(certified)) => {
                Some((&certified.reads, &certified.writes))
            }
            _ => None,
        }
    }

    /// The approximate size in bytes to reserve, so that a batch of large values is not copied
    /// repeatedly as it grows.
    fn size_hint(&self) -> usize {
        const BESIDE_KEY: usize = 12;
        let args = match &self.program {
            Program::Call { args, .. } => args.len(),
            Program::Certified(_) => 0,
        };
        let Some((reads, writes)) = self.learned() else { return BESIDE_KEY + args };
        // A value no longer than the arguments was most likely given in them.
        let value = |it: &Write| it.value.as_ref().map_or(0, |it| it.len());
        let in_full = |it: &Write| Some(value(it)).filter(|&len| len > args).unwrap_or(0);
        let reads = reads.points.iter().map(|it| BESIDE_KEY + it.key.len()).sum::<usize>();
        let write = |it: &Write| BESIDE_KEY + it.key.len() + in_full(it);
        BESIDE_KEY + args + reads + writes.iter().map(write).sum::<usize>()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match (&self.program, &self.how) {
            (Program::Call { procedure, args }, ExecutionMode::Executed { reads, writes }) => {
                out.put_u8(0);
                out.put_u32(procedure.0);
                out.put_bytes(args);
                reads.encode(out);
                write_set_codec::encode(writes, args, out);
            }
            (Program::Call { procedure, args }, ExecutionMode::Ordered { footprint }) => {
                out.put_u8(1);
                out.put_u32(procedure.0);
                out.put_bytes(args);
                out.put_u8(u8::from(footprint.is_some()));
                footprint.iter().for_each(|footprint| footprint.encode(out));
            }
            (
                Program::Certified(certified),
                ExecutionMode::Certified | ExecutionMode::CertifiedInOrder,
            ) => {
                out.put_u8(if self.how == ExecutionMode::Certified { 2 } else { 3 });
                encode_sets(&certified.reads, &certified.writes, out);
            }
            _ => panic!("a call is executed or ordered, and a certified transaction is certified"),
        }
    }

    fn decode(txn: TxnId, from: &mut Reader<'_>, bytes: &Bytes) -> Result<Self, DecodeError> {
        let what = from.u8("transaction record")?;
        let (program, how) = match what {
            0 | 1 => {
                let procedure = ProcedureId(from.u32("procedure id")?);
                let args = bytes.slice_ref(from.bytes("arguments")?);
                let how = if what == 0 {
                    let (reads, writes) =
                        (ReadSet::decode(from)?, write_set_codec::decode(from, &args)?);
                    ExecutionMode::Executed { reads, writes }
                } else {
                    let is_given = from.u8("footprint")? == 1;
                    let footprint = is_given.then(|| Footprint::decode(from)).transpose()?;
                    ExecutionMode::Ordered { footprint }
                };
                (Program::Call { procedure, args }, how)
            }
            2 | 3 => {
                let (reads, writes) = decode_sets(from)?;
                let how = if what == 2 {
                    ExecutionMode::Certified
                } else {
                    ExecutionMode::CertifiedInOrder
                };
                (Program::Certified(Certified { reads, writes, ..Certified::default() }), how)
            }
            _ => return Err(DecodeError::new("transaction record")),
        };
        Ok(Self { txn, program, how })
    }
}

fn encode_sets(reads: &ReadSet, writes: &[Write], out: &mut Vec<u8>) {
    reads.encode(out);
    encode_writes(writes, out);
}

fn decode_sets(from: &mut Reader<'_>) -> Result<(ReadSet, Vec<Write>), DecodeError> {
    Ok((ReadSet::decode(from)?, decode_writes(from)?))
}

/// Appends a list of writes to `out`.
pub(super) fn encode_writes(writes: &[Write], out: &mut Vec<u8>) {
    out.put_varint(writes.len() as u64);
    writes.iter().for_each(|write| write.encode(out));
}

/// Decodes a list of writes that [`encode_writes`] wrote.
pub(super) fn decode_writes(from: &mut Reader<'_>) -> Result<Vec<Write>, DecodeError> {
    (0..from.count("write set")?).map(|_| Write::decode(from)).collect()
}

/// An entry of a replica's log.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The replica that executed the transactions.
    pub source: NodeId,
    /// The number of the batch in that replica's log.
    pub bid: Bid,
    /// The epoch that the source had applied when the transactions ran.
    pub base: SnapshotVersion,
    /// The number of the first transaction; the others follow without a gap.
    pub first_sequence: u64,
    /// The transactions, in the order in which they ran.
    pub records: Vec<TxnRecord>,
}

impl Batch {
    /// Encodes the batch.
    pub fn encode(&self) -> Bytes {
        let records: usize = self.records.iter().map(TxnRecord::size_hint).sum();
        let mut out = Vec::with_capacity(64 + records);
        out.put_u16(self.source.0);
        out.put_u64(self.bid.0);
        out.put_u64(self.base.0);
        out.put_u64(self.first_sequence);
        out.put_varint(self.records.len() as u64);
        self.records.iter().for_each(|record| record.encode(&mut out));
        out.into()
    }

    /// Decodes a batch that [`Batch::encode`] wrote. Arguments remain slices of `bytes`.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let source = NodeId(from.u16("batch source")?);
        let bid = Bid(from.u64("batch id")?);
        let base = SnapshotVersion(from.u64("batch base")?);
        let first_sequence = from.u64("batch sequence")?;
        let count = from.count("batch")?;
        streams::check_names(source, first_sequence, count)?;
        let records = (0..count as u64)
            .map(|i| TxnRecord::decode(TxnId::new(source, first_sequence + i), from, bytes))
            .collect::<Result<_, _>>()?;
        if !from.is_empty() {
            return Err(DecodeError::new("batch"));
        }
        Ok(Self { source, bid, base, first_sequence, records })
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
        self.first_sequence + self.records.len() as u64
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        Self::decode(bytes)
    }

    fn check(&self) -> Result<(), DecodeError> {
        if self.base.0 > NUMBER_MAX {
            return Err(DecodeError::new("batch number"));
        }
        match self.records.iter().all(sees_its_own_past) {
            true => Ok(()),
            false => Err(DecodeError::new("batch record")),
        }
    }
}

/// Whether every uncommitted write that a transaction read is of an earlier one of the same source:
/// no others are visible there.
fn sees_its_own_past(record: &TxnRecord) -> bool {
    let Some((reads, _)) = record.learned() else { return true };
    let points = reads.points.iter().map(|read| read.seen);
    let rows = reads.ranges.iter().flat_map(|read| read.rows.iter().map(|(_, seen)| *seen));
    points.chain(rows).all(|seen| match seen {
        ReadVersion::Local(writer) | ReadVersion::LocalDeleted(writer) => {
            writer.node() == record.txn.node() && writer < record.txn
        }
        ReadVersion::Absent | ReadVersion::At(_) | ReadVersion::Present => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::TableId;
    use pangea_core::key::Key;
    use pangea_core::txn::{LockMode, PointLock, PointRead};
    use pangea_core::value::Value;

    fn batch() -> Batch {
        let table = TableId(1);
        let key = Key::from(&b"k"[..]);
        let seen = ReadVersion::At(SnapshotVersion(3));
        let points = vec![PointRead { table, key: key.clone(), seen }];
        let reads = ReadSet { points, ranges: vec![] };
        let value = Some(Value::copy_from(b"v"));
        let writes = vec![Write { table, key: key.clone(), value }];
        let certified =
            Certified { reads: reads.clone(), writes: writes.clone(), ..Certified::default() };
        let lock = PointLock { table, key, mode: LockMode::Exclusive };
        let footprint = Some(Footprint::new(vec![lock], vec![]));
        let call = Program::Call { procedure: ProcedureId(2), args: Bytes::from_static(b"args") };
        let certified = Program::Certified(certified);
        let all = [
            (call.clone(), ExecutionMode::Executed { reads, writes }),
            (call.clone(), ExecutionMode::Ordered { footprint }),
            (call, ExecutionMode::Ordered { footprint: None }),
            (certified.clone(), ExecutionMode::Certified),
            (certified, ExecutionMode::CertifiedInOrder),
        ];
        let source = NodeId(2);
        let record = |(i, (program, how))| TxnRecord {
            txn: TxnId::new(source, 40 + i as u64),
            program,
            how,
        };
        let records = all.into_iter().enumerate().map(record).collect();
        Batch { source, bid: Bid(7), base: SnapshotVersion(9), first_sequence: 40, records }
    }

    #[test]
    fn a_batch_survives_its_encoding_and_a_cut_one_is_refused() {
        let bytes = batch().encode();
        assert_eq!(Batch::decode(&bytes), Ok(batch()));
        for len in 0..bytes.len() {
            assert!(Batch::decode(&bytes.slice(..len)).is_err(), "truncated to {len}");
        }
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
