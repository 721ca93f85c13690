//! Transactions in a batch, and the encoding of a batch (§5.1, mini-batches).
//!
//! A batch is a part of one epoch of its source. The last one of an epoch says so: the paper's EOF.
//! It is encoded once, and the same bytes are logged and sent everywhere.
//!
//! ```text
//!   +--------+-----+-------+----+------+-------+----------------+-------+----------+--
//!   | source | bid | epoch | is | view | rules | first sequence | count | record 0 | ..
//!   | u16    | u64 | u64   |last| var  |       | u64            | var   |          |
//!   +--------+-----+-------+----+------+-------+----------------+-------+----------+--
//!   after the view, if bit 1 of "is last" is set: epochs since the base var, its lineage u64
//!   record: work u8, attempt u8, epochs since its start var, offset in the epoch var, then for
//!     0 writes     epochs since its base var, read set, count var, writes
//!     1 in order   procedure u32, args, has footprint u8, [footprint]
//!     2 additions  as 0, then count var, additions
//!   write: table << 2 | is checked << 1 | has value var, key, [value]
//!   addition: table var, key, adder u32, amount
//! ```

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ProcedureId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::txn::{Add, Footprint, Program, ReadSet, Write};
use pangea_core::value::Value;

use super::isolation::{CheckedWrite, Checks};
use super::lineage::Base;
use super::rank::RankInputs;
use super::rules::Rules;
use super::views::ViewNumber;
use crate::messages::NUMBER_MAX;
use crate::streams::{self, Bid};

/// A transaction in a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct TxnRecord {
    /// Its name, and the values that its rank depends on.
    pub inputs: RankInputs,
    /// The work of each replica at its place in the order.
    pub work: Work,
}

/// The work of a replica for a transaction at its place in the order.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// It ran at its source, and its writes are merged (§4.1).
    Merge {
        /// The epoch of the snapshot on which it ran.
        base: SnapshotVersion,
        /// Its writes, and the rows to check.
        checks: Checks,
    },
    /// Each replica runs it, after the writes of the others.
    InOrder {
        /// The call.
        program: Program,
        /// The footprint; `None` if the arguments determine it or it is too large to be sent.
        footprint: Option<Footprint>,
    },
}

impl Work {
    /// Whether it adds to rows, so that each replica needs the code of the adders.
    pub fn has_adds(&self) -> bool {
        matches!(self, Self::Merge { checks, .. } if checks.has_adds())
    }
}

/// A part of an epoch of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The replica at which the transactions arrived.
    pub source: NodeId,
    /// The number of the batch in that replica's log.
    pub bid: Bid,
    /// The epoch in which its transactions commit: the paper's `cen`.
    pub epoch: SnapshotVersion,
    /// Whether it is the last one of the source in this epoch.
    pub is_last: bool,
    /// The view in which the source has created it.
    pub view: ViewNumber,
    /// The last epoch that its transactions can have read, unless that was confirmed.
    pub base: Option<Base>,
    /// The rules of the source.
    pub rules: Rules,
    /// The number of the first transaction; the others follow without a gap.
    pub first_sequence: u64,
    /// The transactions, in the order of their numbers.
    pub records: Vec<TxnRecord>,
}

impl TxnRecord {
    /// The changes and checks of a transaction that is merged.
    ///
    /// # Panics
    /// If it runs in order.
    pub fn checks(&self) -> &Checks {
        match &self.work {
            Work::Merge { checks, .. } => checks,
            Work::InOrder { .. } => panic!("programs run in order"),
        }
    }

    fn encode(&self, epoch: SnapshotVersion, out: &mut Vec<u8>) {
        let RankInputs { attempt, start, offset_us, .. } = self.inputs;
        out.put_u8(match self.work {
            Work::InOrder { .. } => 1,
            Work::Merge { .. } => u8::from(self.work.has_adds()) << 1,
        });
        out.put_u8(attempt);
        out.put_varint(epoch.0 - start.0);
        out.put_varint(offset_us.into());
        match &self.work {
            Work::Merge { base, checks } => {
                out.put_varint(epoch.0 - base.0);
                checks.reads.encode(out);
                out.put_varint(checks.writes.len() as u64);
                checks.writes.iter().for_each(|write| encode_write(write, out));
                if checks.has_adds() {
                    out.put_varint(checks.adds.len() as u64);
                    checks.adds.iter().for_each(|add| add.encode(out));
                }
            }
            Work::InOrder { program, footprint } => {
                let Program::Call { procedure, args } = program else {
                    panic!("only calls run in order");
                };
                out.put_u32(procedure.0);
                out.put_bytes(args);
                out.put_u8(u8::from(footprint.is_some()));
                footprint.iter().for_each(|footprint| footprint.encode(out));
            }
        }
    }

    fn decode(
        txn: TxnId,
        epoch: SnapshotVersion,
        from: &mut Reader<'_>,
        bytes: &Bytes,
    ) -> Result<Self, DecodeError> {
        const WHAT: &str = "transaction record";
        let malformed = || DecodeError::new(WHAT);
        let back = |epochs: u64| epoch.0.checked_sub(epochs).map(SnapshotVersion);
        let (kind, attempt) = (from.u8(WHAT)?, from.u8(WHAT)?);
        let start = back(from.varint(WHAT)?).ok_or_else(malformed)?;
        let offset_us = u32::try_from(from.varint(WHAT)?).map_err(|_| malformed())?;
        let inputs = RankInputs { txn, attempt, start, offset_us };
        let work = match kind {
            0 | 2 => {
                let base = back(from.varint(WHAT)?).ok_or_else(malformed)?;
                let reads = ReadSet::decode(from)?;
                let writes = (0..from.count(WHAT)?).map(|_| decode_write(from));
                let writes = writes.collect::<Result<_, _>>()?;
                let count = if kind == 2 { from.count(WHAT)? } else { 0 };
                let adds = (0..count).map(|_| Add::decode(from)).collect::<Result<_, _>>()?;
                Work::Merge { base, checks: Checks { reads, writes, adds } }
            }
            1 => {
                let procedure = ProcedureId(from.u32(WHAT)?);
                let args = bytes.slice_ref(from.bytes(WHAT)?);
                let is_given = from.u8(WHAT)? == 1;
                let footprint = is_given.then(|| Footprint::decode(from)).transpose()?;
                Work::InOrder { program: Program::Call { procedure, args }, footprint }
            }
            _ => return Err(malformed()),
        };
        Ok(Self { inputs, work })
    }
}

fn encode_write(it: &CheckedWrite, out: &mut Vec<u8>) {
    let Write { table, key, value } = &it.write;
    let flags = u64::from(it.is_checked) << 1 | u64::from(value.is_some());
    out.put_varint(u64::from(table.0) << 2 | flags);
    out.put_bytes(key);
    value.iter().for_each(|value| out.put_bytes(value));
}

fn decode_write(from: &mut Reader<'_>) -> Result<CheckedWrite, DecodeError> {
    let tagged = from.varint("write")?;
    let table = u32::try_from(tagged >> 2).map_err(|_| DecodeError::new("table id"))?;
    let key = Key::from(from.bytes("key")?);
    let has_value = tagged & 1 == 1;
    let value = has_value.then(|| from.bytes("value").map(Value::copy_from)).transpose()?;
    let write = Write { table: TableId(table), key, value };
    Ok(CheckedWrite { write, is_checked: tagged & 2 == 2 })
}

fn decode_base(from: &mut Reader<'_>, of: SnapshotVersion) -> Result<Base, DecodeError> {
    const WHAT: &str = "batch base";
    let epoch = of.0.checked_sub(from.varint(WHAT)?).ok_or(DecodeError::new(WHAT))?;
    Ok(Base { epoch: SnapshotVersion(epoch), lineage: from.u64(WHAT)? })
}

/// The part of a batch by which a replica decides whether it may arrive.
pub(super) struct Place {
    pub source: NodeId,
    pub bid: Bid,
    pub epoch: SnapshotVersion,
    pub view: ViewNumber,
}

impl Batch {
    /// Encodes the batch.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(64 + 128 * self.records.len());
        out.put_u16(self.source.0);
        out.put_u64(self.bid.0);
        out.put_u64(self.epoch.0);
        out.put_u8(u8::from(self.is_last) | u8::from(self.base.is_some()) << 1);
        out.put_varint(self.view.0);
        if let Some(Base { epoch, lineage }) = self.base {
            out.put_varint(self.epoch.0 - epoch.0);
            out.put_u64(lineage);
        }
        self.rules.encode(&mut out);
        out.put_u64(self.first_sequence);
        out.put_varint(self.records.len() as u64);
        self.records.iter().for_each(|record| record.encode(self.epoch, &mut out));
        out.into()
    }

    /// Decodes the place of a batch, and whether it is the last of its epoch and names a base.
    pub(super) fn decode_place(from: &mut Reader<'_>) -> Result<(Place, u8), DecodeError> {
        let source = NodeId(from.u16("batch source")?);
        let bid = Bid(from.u64("batch id")?);
        let epoch = SnapshotVersion(from.u64("batch epoch")?);
        let flags = from.u8("batch end")?;
        let view = ViewNumber(streams::number(from, "batch view")?);
        Ok((Place { source, bid, epoch, view }, flags))
    }

    /// Whether an encoded batch is of this source.
    pub(super) fn is_of(source: NodeId, bytes: &[u8]) -> bool {
        Self::decode_place(&mut Reader::new(bytes)).is_ok_and(|(place, _)| place.source == source)
    }

    /// Decodes a batch that [`Batch::encode`] wrote. Arguments remain slices of `bytes`.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let (Place { source, bid, epoch, view }, flags) = Self::decode_place(from)?;
        if flags > 3 {
            return Err(DecodeError::new("batch end"));
        }
        let (is_last, has_base) = (flags & 1 == 1, flags & 2 == 2);
        let base = has_base.then(|| decode_base(from, epoch)).transpose()?;
        let rules = Rules::decode(from)?;
        let first_sequence = from.u64("batch sequence")?;
        let count = from.count("batch")?;
        streams::check_names(source, first_sequence, count)?;
        let name = |i| TxnId::new(source, first_sequence + i);
        let records = (0..count as u64)
            .map(|i| TxnRecord::decode(name(i), epoch, from, bytes))
            .collect::<Result<_, _>>()?;
        if !from.is_empty() {
            return Err(DecodeError::new("batch"));
        }
        Ok(Self { source, bid, epoch, is_last, view, base, rules, first_sequence, records })
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
        let is_before = self.base.is_none_or(|base| base.epoch < self.epoch);
        if !(1..=NUMBER_MAX).contains(&self.epoch.0) || !is_before {
            return Err(DecodeError::new("batch epoch"));
        }
        match self.records.iter().all(is_sound) {
            true => Ok(()),
            false => Err(DecodeError::new("batch record")),
        }
    }

    /// Nothing is added to an epoch after its end, or after a transaction of a later one.
    fn follows(&self, before: &Self) -> bool {
        before.epoch < self.epoch || before.epoch == self.epoch && !before.is_last
    }
}

/// Whether a source can have created this record: it ran on a snapshot, with writes of its own
/// transactions above it. Its additions are in the order of their rows, which it does not write.
fn is_sound(record: &TxnRecord) -> bool {
    let Work::Merge { checks, .. } = &record.work else { return true };
    let adds = &checks.adds;
    let is_sorted = adds.is_sorted_by(|a, b| (a.table, &a.key) <= (b.table, &b.key));
    let is_added = |write: &Write| {
        let row = (write.table, &write.key);
        adds.binary_search_by(|add| (add.table, &add.key).cmp(&row)).is_ok()
    };
    if !is_sorted || checks.writes.iter().any(|it| is_added(&it.write)) {
        return false;
    }
    let txn = record.inputs.txn;
    let is_before = |head: TxnId| head.node() == txn.node() && head < txn;
    let mut points = checks.reads.points.iter().map(|read| read.seen);
    let ranges = checks.reads.ranges.iter();
    let mut rows = ranges.flat_map(|read| read.rows.iter().map(|(_, seen)| *seen));
    points.all(|seen| seen.local_writer().is_none_or(is_before))
        && rows.all(|seen| seen.local_writer().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::Batch as _;
    use pangea_core::ids::AdderId;
    use pangea_core::key::KeyRange;
    use pangea_core::txn::{CodeDigest, LockMode, PointLock, PointRead, RangeRead, ReadVersion};

    use crate::geogauss::merge::MergeRule;

    fn added(row: &[u8]) -> Add {
        let (table, adder) = (TableId(300), AdderId::of("adder"));
        Add { table, key: Key::from(row), adder, amount: Bytes::from_static(b"one") }
    }

    fn batch() -> Batch {
        let (source, table) = (NodeId(2), TableId(300));
        let key = Key::from(&b"k"[..]);
        let seen = ReadVersion::At(SnapshotVersion(3));
        let points = [seen, ReadVersion::Present];
        let points = points.map(|seen| PointRead { table, key: key.clone(), seen }).to_vec();
        let rows = vec![(key.clone(), seen)];
        let ranges = vec![RangeRead { table, range: KeyRange::prefix(b"k"), rows }];
        let write = |value: Option<&[u8]>, is_checked| {
            let value = value.map(Value::copy_from);
            CheckedWrite { write: Write { table, key: key.clone(), value }, is_checked }
        };
        let writes = vec![write(Some(b"v"), true), write(None, false), write(Some(b""), false)];
        let adds = [b"added", b"added", b"other"].map(|row| added(row)).to_vec();
        let checks = Checks { reads: ReadSet { points, ranges }, writes, adds };
        let lock = PointLock { table, key: key.clone(), mode: LockMode::Exclusive };
        let program =
            Program::Call { procedure: ProcedureId(2), args: Bytes::from_static(b"args") };
        let all = [
            Work::Merge { base: SnapshotVersion(3), checks },
            Work::Merge { base: SnapshotVersion(0), checks: Checks::default() },
            Work::InOrder {
                program: program.clone(),
                footprint: Some(Footprint::new(vec![lock], vec![])),
            },
            Work::InOrder { program, footprint: None },
        ];
        let record = |(i, work)| {
            let txn = TxnId::new(source, 40 + i as u64);
            let start = SnapshotVersion(7 - i as u64);
            TxnRecord { inputs: RankInputs { txn, attempt: i as u8, start, offset_us: 999 }, work }
        };
        Batch {
            source,
            bid: Bid(7),
            epoch: SnapshotVersion(7),
            is_last: true,
            view: ViewNumber(3),
            base: Some(Base { epoch: SnapshotVersion(5), lineage: 99 }),
            rules: Rules { merge: MergeRule::Claims, horizon: 600, code: CodeDigest(7) },
            first_sequence: 40,
            records: all.into_iter().enumerate().map(record).collect(),
        }
    }

    #[test]
    fn a_batch_survives_its_encoding_and_a_cut_one_is_refused() {
        let alone = Batch { base: None, ..batch() };
        assert_eq!(Batch::decode(&alone.encode()), Ok(alone));
        let bytes = batch().encode();
        assert_eq!(Batch::decode(&bytes), Ok(batch()));
        assert_eq!(batch().check(), Ok(()));
        for len in 0..bytes.len() {
            assert!(Batch::decode(&bytes.slice(..len)).is_err(), "truncated to {len}");
        }
    }

    #[test]
    fn an_epoch_has_no_batch_after_its_last_one() {
        let of = |epoch, is_last| Batch { epoch: SnapshotVersion(epoch), is_last, ..batch() };
        assert!(of(7, true).follows(&of(7, false)) && of(8, false).follows(&of(7, true)));
        assert!(of(8, false).follows(&of(7, false)), "a later epoch ends an earlier one");
        assert!(!of(7, false).follows(&of(7, true)) && !of(6, true).follows(&of(7, false)));
    }

    #[test]
    fn a_batch_that_no_source_creates_is_refused() {
        let mut local = batch();
        let Work::Merge { checks, .. } = &mut local.records[0].work else { unreachable!() };
        checks.reads.points[0].seen = ReadVersion::Local(TxnId::new(NodeId(2), 39));
        assert_eq!(local.check(), Ok(()), "of an earlier transaction of the same node");
        for head in [TxnId::new(NodeId(2), 40), TxnId::new(NodeId(1), 1)] {
            let Work::Merge { checks, .. } = &mut local.records[0].work else { unreachable!() };
            checks.reads.points[0].seen = ReadVersion::Local(head);
            assert!(local.check().is_err(), "of {head}");
        }
        for epoch in [0, NUMBER_MAX + 1] {
            let batch = Batch { epoch: SnapshotVersion(epoch), records: Vec::new(), ..batch() };
            assert!(batch.check().is_err(), "epoch {epoch}");
        }
        for adds in [vec![added(b"b"), added(b"a")], vec![added(b"k")]] {
            let mut batch = batch();
            let Work::Merge { checks, .. } = &mut batch.records[0].work else { unreachable!() };
            checks.adds = adds;
            assert!(batch.check().is_err(), "they are not in order, or the row is written");
        }
        let base = Some(Base { epoch: batch().epoch, lineage: 1 });
        assert!(Batch { base, ..batch() }.check().is_err(), "it can't have read its own epoch");
    }

    proptest::proptest! {
        #[test]
        fn a_batch_with_a_flipped_byte_never_panics(at in 0usize..300, flip in 1u8..=255) {
            let mut bytes = batch().encode().to_vec();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            let _ = Batch::decode(&bytes.into());
        }
    }
}
