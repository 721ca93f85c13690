//! The log of a shard: what its leaders have executed, slice by slice (§4.3).
//!
//! ```text
//!   entry:  version, version before, outcomes of transactions, writes
//!
//!   log     [1.1] [1.2] [1.3] | [2.1] [2.2] ..         epoch.count
//!                             ^ the leader of epoch 2 found these, and goes on
//! ```
//!
//! A version names an entry: the leader of its epoch has made one entry of it, after the same
//! entries. So two logs that have the same version have the same entries up to it.
//!
//! Each log also has an *epoch*: that of the leader whose log it is a beginning of. A replica takes
//! the log of a new leader only as a whole (`closing.rs`). Among logs, one of a later epoch has
//! everything that was committed before, and of one epoch the longest has.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, TxnId};
use pangea_core::store::RecordHeader;
use pangea_core::txn::{Abort, Write};

use super::across::{Across, Kind};
use super::versions::{Epoch, epoch_of};
use crate::messages::NUMBER_MAX;
use crate::streams::number;

/// The result of a program, or the reason for its abort.
pub(super) type RunResult = Result<Vec<u8>, Abort>;

/// A transaction that has been executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Executed {
    /// Its name.
    pub txn: TxnId,
    /// Its outcome, which its client is told when the entry is committed.
    pub outcome: Result<Vec<u8>, Abort>,
}

/// A slice of transactions: all have one version.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The version of its writes.
    pub version: SnapshotVersion,
    /// The version of the entry before it.
    pub before: SnapshotVersion,
    /// Its transactions, in the serial order.
    pub txns: Vec<Executed>,
    /// The nodes whose transactions below a number are over.
    pub over: Vec<(NodeId, u64)>,
    /// The last write of each key, with the place of its transaction.
    pub writes: Vec<(usize, Write)>,
    /// What only several shards need: `None` if there is one.
    pub across: Option<Across>,
}

/// An entry in memory.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    pub entry: Arc<Entry>,
    /// The entry, encoded.
    pub bytes: Bytes,
}

impl Entry {
    /// The version of its writes.
    pub fn at(&self) -> SnapshotVersion {
        self.across.as_ref().map_or(self.version, |across| across.at)
    }

    /// The version up to which no later entry writes.
    pub fn closed(&self) -> SnapshotVersion {
        self.across.as_ref().map_or(self.version, |across| across.closed)
    }

    /// Whether the outcomes of its transactions are in another shard's log.
    pub fn is_piece(&self) -> bool {
        self.across.as_ref().is_some_and(|across| across.kind == Kind::Piece)
    }

    /// Whether it has rows of slots that move, and no transactions.
    fn is_moved(&self) -> bool {
        self.across.as_ref().is_some_and(|across| across.kind == Kind::Moved)
    }

    /// The epoch that begins and the last closed versions of those before, if the entry has them.
    pub fn cut(&self) -> Option<(Epoch, &[SnapshotVersion])> {
        match &self.across.as_ref()?.kind {
            Kind::Cut { epoch, finals } => Some((*epoch, finals)),
            Kind::Own | Kind::Piece | Kind::Moved => None,
        }
    }

    /// Appends the entry to `out`. [`Entry::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.version.0);
        out.put_varint(self.before.0);
        Across::encode(self.across.as_ref(), out);
        out.put_varint(self.txns.len() as u64);
        for Executed { txn, outcome } in &self.txns {
            out.put_u64(txn.to_bits());
            match outcome {
                Ok(result) => {
                    out.put_u8(0);
                    out.put_bytes(result);
                }
                Err(abort) => {
                    out.put_u8(1);
                    out.put_bytes(&encode_abort(abort));
                }
            }
        }
        out.put_varint(self.over.len() as u64);
        for (node, below) in &self.over {
            out.put_u16(node.0);
            out.put_varint(*below);
        }
        out.put_varint(self.writes.len() as u64);
        for (place, write) in &self.writes {
            out.put_varint(*place as u64);
            write.encode(out);
        }
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// If the bytes are malformed, or no leader makes such an entry.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "log entry";
        let version = SnapshotVersion(number(from, WHAT)?);
        let before = SnapshotVersion(number(from, WHAT)?);
        let across = Across::decode(from)?;
        let txns = (0..from.count(WHAT)?).map(|_| {
            let txn = TxnId::from_bits(from.u64(WHAT)?);
            let outcome = match from.u8(WHAT)? {
                0 => Ok(from.bytes(WHAT)?.to_vec()),
                1 => Err(decode_abort(from.bytes(WHAT)?)?),
                _ => return Err(DecodeError::new(WHAT)),
            };
            Ok(Executed { txn, outcome })
        });
        let txns: Vec<Executed> = txns.collect::<Result<_, DecodeError>>()?;
        let over = (0..from.count(WHAT)?)
            .map(|_| Ok((NodeId(from.u16(WHAT)?), number(from, WHAT)?)))
            .collect::<Result<_, DecodeError>>()?;
        let writes = (0..from.count(WHAT)?)
            .map(|_| Ok((from.varint(WHAT)? as usize, Write::decode(from)?)))
            .collect::<Result<Vec<_>, DecodeError>>()?;
        let is_name = |it: &Executed| it.txn.to_bits() >> 63 == 0;
        let is_moved = across.as_ref().is_some_and(|across| across.kind == Kind::Moved);
        let places = if is_moved { 1 } else { txns.len() };
        let is_sound = before < version
            && epoch_of(version) > Epoch(0)
            && version.0 < NUMBER_MAX
            && across.iter().all(|across| across.at <= version && across.closed <= version)
            && txns.iter().all(is_name)
            && (txns.is_empty() || !is_moved)
            && writes.iter().all(|(place, _)| *place < places);
        match is_sound {
            true => Ok(Self { version, before, txns, over, writes, across }),
            false => Err(DecodeError::new(WHAT)),
        }
    }

    /// The header of a write. That of a row that was moved names no transaction.
    pub(super) fn header(&self, place: usize) -> RecordHeader {
        match self.is_moved() {
            true => RecordHeader::default(),
            false => RecordHeader::new(self.txns[place].txn),
        }
    }
}

/// Encodes the reason for an abort. [`decode_abort`] is the inverse.
pub(super) fn encode_abort(abort: &Abort) -> Vec<u8> {
    postcard::to_stdvec(abort).expect("an abort can be encoded")
}

/// Decodes what [`encode_abort`] wrote.
///
/// # Errors
/// If the bytes are malformed.
pub(super) fn decode_abort(bytes: &[u8]) -> Result<Abort, DecodeError> {
    postcard::from_bytes(bytes).map_err(|_| DecodeError::new("abort"))
}

/// Encodes entries, which are in order.
pub(super) fn encode_entries<'a>(entries: impl IntoIterator<Item = &'a Logged>) -> Bytes {
    let mut out = Vec::new();
    for logged in entries {
        out.put_bytes(&logged.bytes);
    }
    out.into()
}

/// Decodes entries that follow each other, the first one after the version `after`.
///
/// # Errors
/// If the bytes are malformed, or an entry is missing.
pub(super) fn decode_entries(
    bytes: &Bytes,
    after: SnapshotVersion,
) -> Result<Vec<Logged>, DecodeError> {
    let (from, mut last, mut entries) = (&mut Reader::new(bytes), after, Vec::new());
    while !from.is_empty() {
        let bytes = bytes.slice_ref(from.bytes("log entries")?);
        let reader = &mut Reader::new(&bytes);
        let entry = Arc::new(Entry::decode(reader)?);
        if entry.before != last || !reader.is_empty() {
            return Err(DecodeError::new("log entries"));
        }
        last = entry.version;
        entries.push(Logged { entry, bytes });
    }
    Ok(entries)
}

impl Logged {
    pub(super) fn new(entry: Entry) -> Self {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        Self { entry: Arc::new(entry), bytes: bytes.into() }
    }

    pub(super) fn version(&self) -> SnapshotVersion {
        self.entry.version
    }

    fn bytes_held(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// The log of a replica, from some version on.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The epoch of the leader whose log it is a beginning of.
    pub epoch: Epoch,
    /// The version before the first entry: those up to it are forgotten.
    base: SnapshotVersion,
    /// The version up to which no entry after that one writes.
    base_closed: SnapshotVersion,
    entries: VecDeque<Logged>,
    /// The size of the entries.
    bytes: u64,
    /// The last version of this epoch that is on the disk; `None` before the epoch itself is.
    durable: Option<SnapshotVersion>,
    /// The records that are not, with the last version that each makes durable.
    unsynced: VecDeque<(LogPosition, SnapshotVersion)>,
    had: (Epoch, SnapshotVersion),
}

impl Log {
    pub(super) fn base(&self) -> SnapshotVersion {
        self.base
    }

    /// The version of the last entry, or the base if there is none.
    pub(super) fn last(&self) -> SnapshotVersion {
        self.entries.back().map_or(self.base, Logged::version)
    }

    /// The version up to which no entry after this one writes: one of the log, or the base.
    pub(super) fn closed_at(&self, version: SnapshotVersion) -> SnapshotVersion {
        match self.place_after(version) {
            Some(0) | None => self.base_closed,
            Some(after) => self.entries[after - 1].entry.closed(),
        }
    }

    /// The version up to which no entry after the last one writes.
    pub(super) fn closed(&self) -> SnapshotVersion {
        self.entries.back().map_or(self.base_closed, |logged| logged.entry.closed())
    }

    /// The last version of the log up to this one, or the base.
    pub(super) fn last_upto(&self, version: SnapshotVersion) -> SnapshotVersion {
        let count = self.entries.partition_point(|logged| logged.version() <= version);
        count.checked_sub(1).map_or(self.base, |last| self.entries[last].version())
    }

    /// All entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Logged> {
        self.entries.iter()
    }

    /// The size of the entries in bytes.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The size of the entries after a version, in bytes.
    pub(super) fn bytes_after(&self, version: SnapshotVersion) -> u64 {
        let after = self.entries.iter().rev().take_while(|logged| logged.version() > version);
        after.map(|logged| logged.bytes_held()).sum()
    }

    /// The greatest rank that this log ever had. A checkpoint may have taken the place of entries
    /// that no majority had.
    pub(super) fn had(&self) -> (Epoch, SnapshotVersion) {
        self.had.max(self.rank())
    }

    /// Restores what a checkpoint of this replica says about the log.
    pub(super) fn start_from(
        &mut self,
        (epoch, base): (Epoch, SnapshotVersion),
        base_closed: SnapshotVersion,
        had: (Epoch, SnapshotVersion),
    ) {
        assert!(self.entries.is_empty(), "a restart begins with the checkpoint");
        (self.epoch, self.base, self.had) = (epoch, base, had);
        self.base_closed = base_closed;
    }

    /// The epoch and the last version: the greater one is the better log.
    pub(super) fn rank(&self) -> (Epoch, SnapshotVersion) {
        (self.epoch, self.last())
    }

    /// The last version of this epoch that is on the disk.
    pub(super) fn durable(&self) -> Option<SnapshotVersion> {
        self.durable
    }

    /// The number of entries up to a version; `None` if the log does not have the version.
    fn place_after(&self, version: SnapshotVersion) -> Option<usize> {
        if version == self.base {
            return Some(0);
        }
        let place = self.entries.partition_point(|logged| logged.version() < version);
        let is_it = self.entries.get(place).is_some_and(|logged| logged.version() == version);
        is_it.then_some(place + 1)
    }

    pub(super) fn contains(&self, version: SnapshotVersion) -> bool {
        self.place_after(version).is_some()
    }

    /// The entries after a version that the log has.
    pub(super) fn after(&self, version: SnapshotVersion) -> Option<impl Iterator<Item = &Logged>> {
        self.place_after(version).map(|place| self.entries.range(place..))
    }

    /// The first entry after a version.
    pub(super) fn next(&self, version: SnapshotVersion) -> Option<&Logged> {
        let place = self.entries.partition_point(|logged| logged.version() <= version);
        self.entries.get(place)
    }

    /// Appends an entry that a record makes durable.
    pub(super) fn push(&mut self, logged: Logged) {
        assert_eq!(logged.entry.before, self.last(), "entries follow each other");
        self.bytes += logged.bytes_held();
        self.entries.push_back(logged);
    }

    /// The entries up to here are in a record.
    pub(super) fn note_record(&mut self, position: LogPosition) {
        self.unsynced.push_back((position, self.last()));
    }

    /// The records up to a position are on the disk. Returns whether that is news.
    pub(super) fn on_durable(&mut self, position: LogPosition) -> bool {
        let before = self.durable;
        while let Some((_, version)) = self.unsynced.pop_front_if(|(at, _)| *at <= position) {
            self.durable = Some(version);
        }
        self.durable != before
    }

    /// Takes the log of a leader: the entries after a version that this log has are replaced.
    pub(super) fn adopt(&mut self, epoch: Epoch, after: SnapshotVersion, entries: Vec<Logged>) {
        let place = self.place_after(after).expect("the logs are the same up to there");
        let dropped = self.entries.drain(place..);
        self.bytes -= dropped.map(|logged| logged.bytes_held()).sum::<u64>();
        entries.into_iter().for_each(|logged| self.push(logged));
        self.epoch = epoch;
        self.durable = None;
        self.unsynced.clear();
    }

    /// Continues from a checkpoint, whose version may or may not be in the log. No entry after it
    /// writes up to `closed`.
    pub(super) fn skip_to(&mut self, version: SnapshotVersion, closed: SnapshotVersion) {
        if self.contains(version) {
            return self.forget(version);
        }
        self.had = self.had();
        let Self { entries, unsynced, durable, bytes, base, base_closed, .. } = self;
        entries.clear();
        unsynced.clear();
        (*bytes, *base, *base_closed) = (0, version, closed);
        *durable = durable.map(|_| version);
    }

    /// Forgets the entries up to a version that it has.
    pub(super) fn forget(&mut self, upto: SnapshotVersion) {
        let place = self.place_after(upto).expect("the log has the version");
        self.base_closed = self.closed_at(upto);
        let forgotten = self.entries.drain(..place);
        self.bytes -= forgotten.map(|logged| logged.bytes_held()).sum::<u64>();
        self.base = upto;
    }

    /// The version up to which entries have to be forgotten so that no more than these bytes are
    /// left, but none after `upto`.
    pub(super) fn too_old(&self, bytes_max: u64, upto: SnapshotVersion) -> SnapshotVersion {
        let (mut left, mut version) = (self.bytes, self.base);
        for logged in &self.entries {
            if left <= bytes_max || logged.version() > upto {
                break;
            }
            left -= logged.bytes_held();
            version = logged.version();
        }
        version
    }

    /// The log of a restart is on the disk.
    pub(super) fn finish_restore(&mut self) {
        self.unsynced.clear();
        self.durable = Some(self.last());
    }

    /// Asserts the invariants that hold between any two steps.
    pub(super) fn invariants(&self) {
        let first = self.entries.front().map_or(self.base, |logged| logged.entry.before);
        assert_eq!(first, self.base, "the log has no gap at its beginning");
        assert!(self.durable.is_none_or(|durable| durable <= self.last()), "it is in the log");
        let sum: u64 = self.entries.iter().rev().take(2).map(Logged::bytes_held).sum();
        assert!(sum <= self.bytes, "entries are counted");
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::TableId;
    use pangea_core::key::Key;
    use pangea_core::txn::SqlState;
    use pangea_core::value::Value;

    use super::super::versions::version_of;
    use super::*;

    pub(crate) fn entry(version: SnapshotVersion, before: SnapshotVersion) -> Entry {
        let txn = TxnId::new(NodeId(1), version.0 & 0xff);
        let other = TxnId::new(NodeId(2), 7);
        let abort = Abort::new(SqlState::RAISE_EXCEPTION, "no");
        let txns = vec![
            Executed { txn, outcome: Ok(vec![1, 2]) },
            Executed { txn: other, outcome: Err(abort) },
        ];
        let key = Key::from(&b"k"[..]);
        let write = Write { table: TableId(3), key, value: Some(Value::copy_from(b"v")) };
        Entry {
            version,
            before,
            txns,
            over: vec![(NodeId(2), 5)],
            writes: vec![(0, write)],
            across: None,
        }
    }

    fn log(versions: &[(u64, u64)]) -> Log {
        let mut log = Log::default();
        for &(epoch, count) in versions {
            let version = version_of(Epoch(epoch), count);
            log.push(Logged::new(entry(version, log.last())));
            log.epoch = Epoch(epoch);
        }
        log.note_record(LogPosition(versions.len() as u64));
        log
    }

    #[test]
    fn entries_survive_their_encoding_and_follow_each_other() {
        let log = log(&[(1, 1), (1, 2), (2, 1)]);
        let bytes = encode_entries(log.after(SnapshotVersion::ZERO).unwrap());
        let entries = decode_entries(&bytes, SnapshotVersion::ZERO).unwrap();
        let all: Vec<_> = log.after(SnapshotVersion::ZERO).unwrap().collect();
        assert!(entries.iter().zip(&all).all(|(one, other)| one.entry == other.entry));
        assert_eq!(entries.len(), 3);
        assert!(decode_entries(&bytes, SnapshotVersion(1)).is_err(), "after another version");
        let gap = encode_entries(all.into_iter().step_by(2));
        assert!(decode_entries(&gap, SnapshotVersion::ZERO).is_err(), "one is missing");
        for len in 1..bytes.len() {
            let part = decode_entries(&bytes.slice(..len), SnapshotVersion::ZERO);
            assert!(part.is_err() || part.unwrap().len() < 3, "truncated to {len}");
        }
    }

    #[test]
    fn the_log_of_a_new_leader_replaces_what_was_not_committed() {
        let mut own = log(&[(1, 1), (1, 2), (1, 3)]);
        own.on_durable(LogPosition(9));
        assert_eq!(own.durable(), Some(version_of(Epoch(1), 3)));
        let leader = log(&[(1, 1), (2, 1)]);
        let after = version_of(Epoch(1), 1);
        let entries: Vec<_> = leader.after(after).unwrap().cloned().collect();
        own.adopt(Epoch(2), after, entries);
        own.note_record(LogPosition(10));
        assert_eq!((own.rank(), own.durable()), (leader.rank(), None));
        assert!(!own.contains(version_of(Epoch(1), 2)));
        assert!(own.on_durable(LogPosition(10)));
        assert_eq!(own.durable(), Some(version_of(Epoch(2), 1)));
        assert_eq!(own.bytes(), leader.bytes());
        own.invariants();
    }

    #[test]
    fn a_checkpoint_keeps_what_follows_it_in_the_same_log() {
        let mut own = log(&[(1, 1), (1, 2), (1, 3)]);
        let skip = |own: &mut Log, version| own.skip_to(version, version);
        skip(&mut own, version_of(Epoch(1), 2));
        assert_eq!((own.base(), own.last()), (version_of(Epoch(1), 2), version_of(Epoch(1), 3)));
        skip(&mut own, version_of(Epoch(4), 2));
        assert_eq!((own.base(), own.last()), (version_of(Epoch(4), 2), version_of(Epoch(4), 2)));
        assert_eq!(own.bytes(), 0);
        own.invariants();
    }

    #[test]
    fn old_entries_are_forgotten_by_their_size() {
        let own = log(&[(1, 1), (1, 2), (1, 3)]);
        let last = own.last();
        assert_eq!(own.too_old(own.bytes(), last), SnapshotVersion::ZERO);
        assert_eq!(own.too_old(own.bytes() - 1, last), version_of(Epoch(1), 1));
        assert_eq!(own.too_old(0, version_of(Epoch(1), 2)), version_of(Epoch(1), 2));
    }
}
