//! Optimistic execution over several shards (Mako §4.2): a program runs on one node, with rows of
//! other shards, and its reads are recorded with their versions.
//!
//! The program runs on the newest rows of this shard and on the rows of others that are known. If
//! it reads a row that is not known, the run ends with the keys that it needs. The caller asks for
//! them, and runs the program again. When it is complete, its reads and writes are divided by
//! shard, and each shard checks its part ([`is_stale`]). Rows of several shards may never have been
//! current together, so the result counts only if all reads are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::call::gave_up;
use super::certify::Change;
use super::optimistic;
use super::reconnaissance::{self, KnownRows, LookupKeys, LookupRows, Recording};
use super::remote_rows::RemoteRows;
use super::size::check_size;
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{ProcedureId, ShardId, SnapshotVersion, TableId};
use crate::key::{Key, KeyRange};
use crate::partition::Partitions;
use crate::store::Store;
use crate::txn::{Abort, PointRead, RangeRead, ReadSet, ReadVersion, Registry, Stop, Write};

/// The newest version of all.
const NEWEST: SnapshotVersion = SnapshotVersion(u64::MAX);

/// The versions of rows of other shards.
pub(super) type Versions = BTreeMap<(TableId, Key), SnapshotVersion>;

/// The known rows of other shards, with their versions.
#[derive(Clone, Debug, Default)]
pub struct Known {
    rows: KnownRows,
    versions: Versions,
}

/// A shard's answer to a request for rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundRows {
    rows: LookupRows,
    /// The versions of the rows.
    versions: Vec<SnapshotVersion>,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Spread {
    /// It is complete.
    Ran {
        /// The program's result, or the reason for its abort.
        result: Result<Vec<u8>, Abort>,
        /// The reads.
        reads: ReadSet,
        /// The writes, each key once. Empty after an abort.
        writes: Vec<Write>,
    },
    /// The rows that it needs first, by shard.
    Wants(BTreeMap<ShardId, LookupKeys>),
}

/// The reads and writes of a transaction on one shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// The reads of rows of the shard.
    pub reads: ReadSet,
    /// The writes to rows of the shard.
    pub writes: Vec<Write>,
}

impl FoundRows {
    /// Looks up the newest rows of a shard.
    pub fn look(keys: &LookupKeys, store: &Store, place: (&Partitions, ShardId)) -> Self {
        let rows = keys.look_at(store, NEWEST, Some(place));
        let version = |row: &Write| {
            store.head_with(row.table, &row.key, NEWEST, |found| found.version).unwrap_or_default()
        };
        let versions = rows.rows.iter().map(version).collect();
        Self { rows, versions }
    }

    /// Appends the encoding to `out`. [`FoundRows::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.rows.encode(out);
        self.versions.iter().for_each(|version| out.put_varint(version.0));
    }

    /// Decodes the bytes that [`FoundRows::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let rows = LookupRows::decode(from)?;
        let version = |_| Ok(SnapshotVersion(from.varint("versions of rows")?));
        let versions = (0..rows.rows.len()).map(version).collect::<Result<_, DecodeError>>()?;
        Ok(Self { rows, versions })
    }
}

impl Known {
    /// Adds a shard's answer to a request, which may cover only the first part of it.
    pub fn learn(&mut self, shard: ShardId, wanted: &LookupKeys, found: FoundRows) {
        let rows = found.rows.rows.iter().zip(&found.versions);
        self.versions.extend(rows.map(|(row, at)| ((row.table, row.key.clone()), *at)));
        self.rows.learn(shard, wanted, found.rows);
    }
}

/// Records reads.
pub(super) struct Recorder<'a> {
    pub versions: &'a Versions,
    pub reads: ReadSet,
    /// The keys that were read.
    pub points: BTreeSet<(TableId, Key)>,
}

impl Recorder<'_> {
    /// The version of a known row of another shard.
    fn seen(&self, row: &(TableId, Key)) -> ReadVersion {
        self.versions.get(row).map_or(ReadVersion::Absent, |version| ReadVersion::At(*version))
    }

    /// A row was read: of this shard at a version, or a known one.
    pub fn note_point(
        &mut self,
        (table, key): (TableId, &Key),
        is_here: bool,
        seen: Option<SnapshotVersion>,
    ) {
        let row = (table, key.clone());
        let seen = match is_here {
            true => seen.map_or(ReadVersion::Absent, ReadVersion::At),
            false => self.seen(&row),
        };
        if self.points.insert(row) {
            self.reads.points.push(PointRead { table, key: key.clone(), seen });
        }
    }

    /// A range was read, whose rows on other shards are known. The program's own writes do not
    /// count.
    pub fn note_range(
        &mut self,
        store: &Store,
        remote_rows: RemoteRows<'_>,
        (table, range): (TableId, &KeyRange),
    ) {
        let mut rows: BTreeMap<Key, ReadVersion> = BTreeMap::new();
        store.scan_heads(table, range, NEWEST, |key, found| {
            if found.value.is_some() && remote_rows.is_here(table, key) {
                rows.insert(key.clone(), ReadVersion::At(found.version));
            }
            ControlFlow::Continue(())
        });
        let first = (table, Key::from(&range.start[..]));
        let known = remote_rows.rows.range(first..);
        let is_within = |row: &(TableId, Key)| row.0 == table && range.contains(&row.1);
        for (row, _) in known.take_while(|(row, _)| is_within(row)) {
            if !remote_rows.is_here(table, &row.1) {
                rows.insert(row.1.clone(), self.seen(row));
            }
        }
        let rows = rows.into_iter().collect();
        self.reads.ranges.push(RangeRead { table, range: range.clone(), rows });
    }
}

/// Runs a call on the newest rows of this shard and the known rows of others.
pub fn run(
    registry: &Registry,
    (procedure, args): (ProcedureId, &[u8]),
    store: &Store,
    place: (&Partitions, ShardId),
    known: &Known,
) -> Spread {
    let known = (&known.rows, &known.versions);
    match reconnaissance::record(registry, (procedure, args), store, place, known) {
        Recording::Wants(wants) => Spread::Wants(wants),
        Recording::TooMuch(abort) => {
            let (reads, writes) = Default::default();
            Spread::Ran { result: Err(abort), reads, writes }
        }
        Recording::Ran { result, reads, writes } => {
            let result = match result {
                Ok(result) => check_size(&reads, &writes).map(|()| result),
                Err(Stop::Abort(abort)) => Err(abort),
                Err(Stop::Interrupted) => Err(gave_up()),
            };
            let writes = if result.is_ok() { writes } else { Vec::new() };
            Spread::Ran { result, reads, writes }
        }
    }
}

/// Divides reads and writes by shard. Rows that all shards have are read at `here`, and written
/// everywhere.
pub fn divide(
    partitions: &Partitions,
    here: ShardId,
    reads: &ReadSet,
    writes: &[Write],
) -> BTreeMap<ShardId, Part> {
    let mut parts: BTreeMap<ShardId, Part> = BTreeMap::new();
    for read in &reads.points {
        let shard = partitions.shard_of(read.table, &read.key).unwrap_or(here);
        parts.entry(shard).or_default().reads.points.push(read.clone());
    }
    for read in &reads.ranges {
        let Some(shards) = partitions.shards_of(read.table, &read.range) else {
            parts.entry(here).or_default().reads.ranges.push(read.clone());
            continue;
        };
        for shard in shards.iter() {
            let is_of = |row: &&(Key, ReadVersion)| partitions.holds(shard, read.table, &row.0);
            let rows = read.rows.iter().filter(is_of).cloned().collect();
            let (table, range) = (read.table, read.range.clone());
            let of_shard = &mut parts.entry(shard).or_default().reads;
            of_shard.ranges.push(RangeRead { table, range, rows });
        }
    }
    for write in writes {
        match partitions.shard_of(write.table, &write.key) {
            Some(shard) => parts.entry(shard).or_default().writes.push(write.clone()),
            None => (0..partitions.shards()).map(ShardId).for_each(|shard| {
                parts.entry(shard).or_default().writes.push(write.clone());
            }),
        }
    }
    parts
}

/// The first of these reads of rows of this shard that is not the newest.
pub fn is_stale(reads: &ReadSet, store: &Store, place: (&Partitions, ShardId)) -> Option<Change> {
    optimistic::first_change_of(place, reads, store, NEWEST)
}

/// Visits the version of each row and each deletion that these reads touch now.
pub fn touched(
    reads: &ReadSet,
    store: &Store,
    (partitions, here): (&Partitions, ShardId),
    visit: &mut dyn FnMut(SnapshotVersion),
) {
    for read in &reads.points {
        if let Some(found) = store.head_with(read.table, &read.key, NEWEST, |found| found.version) {
            visit(found);
        }
    }
    for read in &reads.ranges {
        store.scan_heads(read.table, &read.range, NEWEST, |key, found| {
            if partitions.counts(here, read.table, key) {
                visit(found.version);
            }
            ControlFlow::Continue(())
        });
    }
}

#[cfg(test)]
mod tests;
