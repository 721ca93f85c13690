//! Reconnaissance over several shards (Calvin §3.2.1): finds the present footprint of a program
//! that may read rows of other shards.
//!
//! The program runs on the rows that are known. If it reads a row of another shard that is not
//! known yet, the run ends and returns the missing keys. The caller fetches those rows and runs the
//! program again. No locks are taken, and shards may answer from different versions. A
//! reconnaissance may therefore be wrong; this is detected when the transaction runs.
//!
//! **Limits.** A shard answers with at least one row and at most about the size of one message. The
//! next run requests the rows that were left out. A program whose reads, writes or locks exceed the
//! limits of a transaction ends the reconnaissance with 54000.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::call;
use super::merge;
use super::ordered::locked_part;
use super::remote_rows::{RemoteRows, Rows};
use super::size::{TXN_BYTES_MAX, bytes_of, check_bytes, writes_bytes};
use super::spread::{Recorder, Versions};
use super::writes::OwnWrites;
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{ProcedureId, ShardId, SnapshotVersion, TableId};
use crate::key::{Direction, HashedKey, Key, KeyRange};
use crate::partition::{Partitions, ShardSet};
use crate::store::Store;
use crate::txn::{
    Abort, Context, Footprint, LockMode, PointLock, Program, RangeLock, ReadSet, Registry, Scan,
    SqlState, Stop, Visit, Write,
};
use crate::value::Value;

/// The maximum number of rows of a range in one answer.
const ROWS_MAX: usize = if cfg!(test) { 2 } else { 1_000 };

/// The approximate maximum size in bytes of an answer, for one range and for all requested rows
/// together.
const BYTES_MAX: usize = 1 << 20;

/// The maximum size in bytes of the hinted keys in one request.
const HINTED_BYTES_MAX: usize = 4 << 20;

/// The maximum size in bytes of the known rows of other shards. It exceeds the limit of a
/// transaction, because an answer may have more rows of a range than the program reads.
const KNOWN_BYTES_MAX: usize = 4 * TXN_BYTES_MAX;

/// A lookup request to one shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LookupKeys {
    /// Single rows.
    pub points: BTreeSet<(TableId, Key)>,
    /// Ranges, each in the direction in which it is read.
    pub ranges: Vec<Scan>,
}

/// A shard's answer to a lookup request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LookupRows {
    /// The rows found.
    pub rows: Vec<Write>,
    /// The number of requested single rows that the answer covers, counted from the first.
    pub points: usize,
    /// The parts of the requested ranges that the answer covers, in their order. The last ranges
    /// may be missing.
    pub covered: Vec<(TableId, KeyRange)>,
}

/// The known rows of other shards.
#[derive(Clone, Debug, Default)]
pub struct KnownRows {
    pub(super) rows: Rows,
    points: BTreeSet<(TableId, Key)>,
    covered: BTreeMap<ShardId, Vec<RangeLock>>,
    /// The size of the known rows.
    bytes: usize,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconnaissance {
    /// The complete footprint of the program.
    Footprint(Footprint),
    /// The rows that the program needs first, by shard.
    Wants(BTreeMap<ShardId, LookupKeys>),
    /// The program reads or writes more than a transaction may.
    TooMuch(Abort),
}

impl LookupKeys {
    /// Appends the encoding to `out`. [`LookupKeys::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.points.len() as u64);
        for (table, key) in &self.points {
            out.put_varint(u64::from(table.0));
            out.put_bytes(key);
        }
        out.put_varint(self.ranges.len() as u64);
        for Scan { table, range, direction } in &self.ranges {
            out.put_u8(u8::from(*direction == Direction::Reverse));
            encode_covered(*table, range, out);
        }
    }

    /// Decodes the bytes that [`LookupKeys::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "wanted rows";
        let points = (0..from.count(WHAT)?)
            .map(|_| Ok((decode_table(from)?, Key::from(from.bytes(WHAT)?))))
            .collect::<Result<_, DecodeError>>()?;
        let ranges = (0..from.count(WHAT)?)
            .map(|_| {
                let is_reverse = from.u8(WHAT)? == 1;
                let direction = if is_reverse { Direction::Reverse } else { Direction::Forward };
                let (table, range) = decode_covered(from)?;
                Ok(Scan { table, range, direction })
            })
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self { points, ranges })
    }

    /// Looks the rows up in a store at version `at`. The answer may cover only the first part of
    /// the request.
    pub fn look(&self, store: &Store, at: SnapshotVersion) -> LookupRows {
        self.look_at(store, at, None)
    }

    /// Like [`LookupKeys::look`], in the store of a shard, which may have rows of other shards.
    pub fn look_at(
        &self,
        store: &Store,
        at: SnapshotVersion,
        place: Option<(&Partitions, ShardId)>,
    ) -> LookupRows {
        self.look_up_to(BYTES_MAX, (store, at), place)
    }

    /// Like [`LookupKeys::look`], for rows and ranges of `most` bytes or slightly more.
    fn look_up_to(
        &self,
        most: usize,
        (store, at): (&Store, SnapshotVersion),
        place: Option<(&Partitions, ShardId)>,
    ) -> LookupRows {
        let counts = |table: TableId, key: &Key| {
            place.is_none_or(|(partitions, here)| partitions.counts(here, table, key))
        };
        let (mut found, mut bytes) = (LookupRows::default(), 0);
        if store.has_cold() {
            store.warm_at(at, self.points.iter().map(|(table, key)| (*table, key)));
        }
        for (table, key) in &self.points {
            if bytes >= most {
                return found;
            }
            found.points += 1;
            let value = store.read(*table, key, at).and_then(|version| version.value);
            if let Some(value) = value {
                bytes += bytes_of(1, key.len() + value.len());
                found.rows.push(row(*table, key, value));
            }
        }
        for Scan { table, range, direction } in &self.ranges {
            if bytes >= most {
                return found;
            }
            let mut left = ROWS_MAX;
            let mut covered = range.clone();
            store.scan(*table, range, *direction, at, |key, version| {
                if let Some(value) = version.value.as_ref().filter(|_| counts(*table, key)) {
                    found.rows.push(row(*table, key, value.clone()));
                    left -= 1;
                    bytes += bytes_of(1, key.len() + value.len());
                }
                if left > 0 && bytes < most {
                    return ControlFlow::Continue(());
                }
                covered = range.seen_up_to(key, *direction);
                ControlFlow::Break(())
            });
            bytes += range_bytes(&covered);
            found.covered.push((*table, covered));
        }
        found
    }
}

fn range_bytes(range: &KeyRange) -> usize {
    bytes_of(2, range.start.len() + range.end.as_ref().map_or(0, |end| end.len()))
}

impl LookupRows {
    /// Appends the encoding to `out`. [`LookupRows::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.rows.len() as u64);
        self.rows.iter().for_each(|row| row.encode(out));
        out.put_varint(self.points as u64);
        out.put_varint(self.covered.len() as u64);
        self.covered.iter().for_each(|(table, range)| encode_covered(*table, range, out));
    }

    /// Decodes the bytes that [`LookupRows::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "found rows";
        let rows = (0..from.count(WHAT)?).map(|_| Write::decode(from)).collect::<Result<_, _>>()?;
        let points = usize::try_from(from.varint(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        let covered =
            (0..from.count(WHAT)?).map(|_| decode_covered(from)).collect::<Result<_, _>>()?;
        Ok(Self { rows, points, covered })
    }
}

fn row(table: TableId, key: &Key, value: Value) -> Write {
    Write { table, key: key.clone(), value: Some(value) }
}

fn encode_covered(table: TableId, range: &KeyRange, out: &mut Vec<u8>) {
    out.put_varint(u64::from(table.0));
    out.put_bytes(&range.start);
    out.put_u8(u8::from(range.end.is_some()));
    range.end.iter().for_each(|end| out.put_bytes(end));
}

fn decode_covered(from: &mut Reader<'_>) -> Result<(TableId, KeyRange), DecodeError> {
    const WHAT: &str = "range";
    let table = decode_table(from)?;
    let start = from.bytes(WHAT)?.to_vec();
    let has_end = from.u8(WHAT)? == 1;
    let end = has_end.then(|| from.bytes(WHAT).map(<[u8]>::to_vec)).transpose()?;
    Ok((table, KeyRange { start, end }))
}

fn decode_table(from: &mut Reader<'_>) -> Result<TableId, DecodeError> {
    const WHAT: &str = "table id";
    u32::try_from(from.varint(WHAT)?).map(TableId).map_err(|_| DecodeError::new(WHAT))
}

impl KnownRows {
    /// Adds a shard's answer to a request, which may cover only the first part of it.
    pub fn learn(&mut self, shard: ShardId, wanted: &LookupKeys, found: LookupRows) {
        let LookupRows { rows, points, covered } = found;
        let answered = wanted.points.iter().take(points);
        self.bytes += answered.clone().map(|(_, key)| bytes_of(1, key.len())).sum::<usize>();
        self.points.extend(answered.cloned());
        self.bytes += writes_bytes(&rows);
        let named = |row: Write| ((row.table, row.key.clone()), row);
        self.rows.extend(rows.into_iter().map(named));
        self.bytes += covered.iter().map(|(_, range)| range_bytes(range)).sum::<usize>();
        let of_shard = self.covered.entry(shard).or_default();
        let lock = |(table, range)| RangeLock { table, range, mode: LockMode::Shared };
        of_shard.extend(covered.into_iter().map(lock));
        of_shard.sort_unstable();
    }
}

/// Runs a program on this shard's rows at version `at` and the known rows of other shards.
pub fn reconnoiter(
    registry: &Registry,
    program: &Program,
    (store, at): (&Store, SnapshotVersion),
    (partitions, here): (&Partitions, ShardId),
    known: &KnownRows,
) -> Reconnaissance {
    let (procedure, args) = match program {
        Program::Certified(certified) => {
            return Reconnaissance::Footprint(Footprint::of_run(
                &certified.reads,
                &certified.writes,
            ));
        }
        Program::Call { procedure, args } => (*procedure, args),
    };
    let mut context = ReconnaissanceContext::new((store, at), (partitions, here), known, None);
    call::hint(registry, procedure, args, &mut |table, key| context.hint(table, Key::from(key)));
    // The result is ignored, because the program will run again at its place.
    let _result = call::call(registry, procedure, args, &mut context);
    let ReconnaissanceContext { points, ranges, mut wants, hinted, bytes, writes, .. } = context;
    if bytes > TXN_BYTES_MAX || !wants.is_empty() && known.bytes > KNOWN_BYTES_MAX {
        return Reconnaissance::TooMuch(too_much());
    }
    // All shards would run the transaction and then abort it for this.
    if let Err(abort) = check_bytes(writes_bytes(writes.rows()))
        && !call::is_bulk(registry, procedure, args)
    {
        return Reconnaissance::TooMuch(abort);
    }
    if wants.is_empty() {
        return Reconnaissance::Footprint(Footprint::new(points, ranges));
    }
    for (shard, points) in hinted {
        wants.entry(shard).or_default().points.extend(points);
    }
    Reconnaissance::Wants(wants)
}

pub(super) struct ReconnaissanceContext<'a> {
    store: &'a Store,
    at: SnapshotVersion,
    remote_rows: RemoteRows<'a>,
    known: &'a KnownRows,
    points: Vec<PointLock>,
    ranges: Vec<RangeLock>,
    writes: OwnWrites,
    /// Rows that the program hinted it will look up, and that are not known.
    hinted: BTreeMap<ShardId, BTreeSet<(TableId, Key)>>,
    /// The size in bytes of the hinted keys.
    hinted_bytes: usize,
    /// Rows that the program read and that are not known. They end the run.
    wants: BTreeMap<ShardId, LookupKeys>,
    /// The bytes read so far. They may have to be sent to another shard.
    bytes: usize,
    /// Records the reads with their versions, if they are wanted.
    pub(super) recorder: Option<Recorder<'a>>,
}

/// The result of a run that records its reads.
pub(super) enum Recording {
    /// It is complete.
    Ran { result: Result<Vec<u8>, Stop>, reads: ReadSet, writes: Vec<Write> },
    /// It needs these rows of other shards first.
    Wants(BTreeMap<ShardId, LookupKeys>),
    /// It reads more than a transaction may.
    TooMuch(Abort),
}

/// Runs a call like [`reconnoiter`], and records its reads with their versions. `versions` are
/// those of the known rows.
pub(super) fn record(
    registry: &Registry,
    (procedure, args): (ProcedureId, &[u8]),
    store: &Store,
    place: (&Partitions, ShardId),
    (known, versions): (&KnownRows, &Versions),
) -> Recording {
    let at = SnapshotVersion(u64::MAX);
    let recorder = Recorder { versions, reads: ReadSet::default(), points: BTreeSet::new() };
    let mut context = ReconnaissanceContext::new((store, at), place, known, Some(recorder));
    call::hint(registry, procedure, args, &mut |table, key| context.hint(table, Key::from(key)));
    let result = call::call(registry, procedure, args, &mut context);
    let ReconnaissanceContext { mut wants, hinted, bytes, mut writes, recorder, .. } = context;
    if bytes > TXN_BYTES_MAX || !wants.is_empty() && known.bytes > KNOWN_BYTES_MAX {
        return Recording::TooMuch(too_much());
    }
    if !wants.is_empty() {
        for (shard, points) in hinted {
            wants.entry(shard).or_default().points.extend(points);
        }
        return Recording::Wants(wants);
    }
    let reads = recorder.map(|recorder| recorder.reads).unwrap_or_default();
    Recording::Ran { result, reads, writes: writes.take() }
}

/// The abort of a program on several shards that reads more than a transaction may.
fn too_much() -> Abort {
    let message = format!(
        "a transaction over several shards can't read more than {} MiB of rows",
        TXN_BYTES_MAX >> 20
    );
    let hint = "Read less at once, or use a transaction block (BEGIN .. COMMIT), which reads the \
                rows before it is sent.";
    Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message).with_hint(hint)
}

impl<'a> ReconnaissanceContext<'a> {
    fn new(
        (store, at): (&'a Store, SnapshotVersion),
        (partitions, here): (&'a Partitions, ShardId),
        known: &'a KnownRows,
        recorder: Option<Recorder<'a>>,
    ) -> Self {
        Self {
            store,
            at,
            remote_rows: RemoteRows { partitions, here, rows: &known.rows },
            known,
            points: Vec::new(),
            ranges: Vec::new(),
            writes: OwnWrites::default(),
            hinted: BTreeMap::new(),
            hinted_bytes: 0,
            wants: BTreeMap::new(),
            bytes: 0,
            recorder,
        }
    }

    /// Interrupts the run if the result is already known.
    fn stop_if_decided(&self) -> Result<(), Stop> {
        let is_over = !self.wants.is_empty() || self.bytes > TXN_BYTES_MAX;
        if is_over { Err(Stop::Interrupted) } else { Ok(()) }
    }

    /// The other shard that stores this row, if there is one and the row is not known.
    fn unknown(&self, table: TableId, key: &Key) -> Option<ShardId> {
        let RemoteRows { partitions, here, .. } = self.remote_rows;
        let shard = partitions.shard_of(table, key).filter(|shard| *shard != here)?;
        let covers = |lock: &RangeLock| lock.table == table && lock.range.contains(key);
        let is_known = self.known.points.contains(&(table, key.clone()))
            || self.known.covered.get(&shard).is_some_and(|all| all.iter().any(covers));
        (!is_known).then_some(shard)
    }

    fn hint(&mut self, table: TableId, key: Key) {
        // The next run requests the remaining hints.
        if self.hinted_bytes < HINTED_BYTES_MAX
            && let Some(shard) = self.unknown(table, &key)
        {
            self.hinted_bytes += bytes_of(1, key.len());
            self.hinted.entry(shard).or_default().insert((table, key));
        }
    }

    /// The part of a scan, from its start, that is known of all shards, and the other shards to ask
    /// for the rest.
    fn known_part(&self, scan: &Scan) -> (KeyRange, ShardSet) {
        let RemoteRows { partitions, here, .. } = self.remote_rows;
        let mut part = scan.range.clone();
        let shards = partitions.shards_of(scan.table, &scan.range).unwrap_or_default().except(here);
        for shard in shards.iter() {
            let ranges = self.known.covered.get(&shard).cloned().unwrap_or_default();
            let covered = Footprint { points: Vec::new(), ranges };
            part = locked_part(&covered, &Scan { range: part, ..scan.clone() });
        }
        (part, shards)
    }

    /// The part of a scan after its known part.
    fn rest(scan: &Scan, known: &KeyRange) -> Scan {
        if known.is_empty() {
            return scan.clone();
        }
        let range = match scan.direction {
            Direction::Forward => {
                let start = known.end.clone().expect("a scan with a rest has an end");
                KeyRange { start, end: scan.range.end.clone() }
            }
            Direction::Reverse => {
                KeyRange { start: scan.range.start.clone(), end: Some(known.start.clone()) }
            }
        };
        Scan { range, ..scan.clone() }
    }
}

impl Context for ReconnaissanceContext<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        self.stop_if_decided()?;
        let key = HashedKey::from(key);
        if let Some(own) = self.writes.find(table, &key) {
            return Ok(own.value.clone());
        }
        if let Some(shard) = self.unknown(table, key.key()) {
            self.wants.entry(shard).or_default().points.insert((table, key.key().clone()));
            return Err(Stop::Interrupted);
        }
        self.points.push(PointLock { table, key: key.key().clone(), mode: LockMode::Shared });
        let is_here = self.remote_rows.is_here(table, key.key());
        let (seen, value) = match is_here {
            true => self.store.read_value(table, &key, self.at).unzip(),
            false => (None, self.remote_rows.get(table, key.key())),
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.note_point((table, key.key()), is_here, seen);
        }
        self.bytes += key.key().len() + value.as_ref().map_or(0, |value| value.len());
        Ok(value)
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        self.stop_if_decided()?;
        if scan.range.is_empty() {
            return Ok(());
        }
        let (range, shards) = self.known_part(scan);
        let within = Scan { range, ..scan.clone() };
        let own = self.writes.within(scan.table, &within.range, scan.direction);
        let above = self.remote_rows.under(own.collect(), &within);
        let (mut stopped_at, mut bytes) = (None, 0);
        let RemoteRows { partitions, here, .. } = self.remote_rows;
        merge::scan(self.store, self.at, &within, above, |key, version, above| {
            let value = match above {
                Some(above) => above.value.as_ref(),
                None if !partitions.counts(here, scan.table, key) => None,
                None => version.and_then(|version| version.value.as_ref()),
            };
            bytes += key.len() + value.map_or(0, |value| value.len());
            let flow = value.map_or(ControlFlow::Continue(()), |value| visit(key, value));
            if flow.is_break() {
                stopped_at = Some(key.clone());
            }
            flow
        });
        self.bytes += bytes;
        let seen = match stopped_at {
            Some(last) => scan.range.seen_up_to(&last, scan.direction),
            None if within.range == scan.range => within.range,
            None => {
                let rest = Self::rest(scan, &within.range);
                for shard in shards.iter() {
                    self.wants.entry(shard).or_default().ranges.push(rest.clone());
                }
                return Err(Stop::Interrupted);
            }
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.note_range(self.store, self.remote_rows, (scan.table, &seen));
        }
        self.ranges.push(RangeLock { table: scan.table, range: seen, mode: LockMode::Shared });
        Ok(())
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.points.push(PointLock { table, key: key.clone(), mode: LockMode::Write });
        Ok(self.writes.set(table, key, Some(value))?)
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.points.push(PointLock { table, key: key.clone(), mode: LockMode::Write });
        Ok(self.writes.set(table, key, None)?)
    }

    fn fetch(&mut self, rows: &[(TableId, Key)]) {
        rows.iter().for_each(|(table, key)| self.hint(*table, key.clone()));
    }
}

#[cfg(test)]
mod tests;
