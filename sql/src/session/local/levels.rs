//! The isolation level of an interactive transaction: the snapshots that its statements read, and
//! what must be unchanged when it commits.
//!
//! ```text
//!   serializable, repeatable read    one snapshot; reads are recorded until the commit
//!   snapshot                         one snapshot; reads need no record, but guards do
//!   read committed                   a snapshot for each statement
//!
//!     statement 1        statement 2        COMMIT
//!     reads at v1        reads at v2        the rows of `held` must have the versions that
//!        |                  |               the statements have seen
//!        +--> held <--------+
//!        rows that the statement has read and then written, and guards
//! ```
//!
//! A row to which the transaction only adds counts as written, and must exist. If one of its
//! statements reads that row, it must be as it was when the transaction first added to it.
//!
//! If something in `held` has changed, the transaction cannot commit as it is. It then stays on its
//! snapshot, so that later statements do not see new rows beside its own writes to old ones. At
//! COMMIT it is replayed or fails.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use pangea_core::exec::{AddedRow, checked_reads, first_change};
use pangea_core::guarantee::{Isolation, Isolations};
use pangea_core::ids::{SnapshotVersion, TableId};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{
    Certified, Guards, PointRead, RangeRead, ReadSet, ReadVersion, Scan, Stop, Write,
};
use pangea_core::value::Value;

use super::{LocalContext, MergedRows, View, merge};
use crate::remote_rows::Snapshot;
use crate::writes::At;

/// Reads that must be current at COMMIT below the serializable level.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Guards, and at read committed the rows that earlier statements read and wrote.
    reads: ReadSet,
    /// The single rows, and whether only their existence is held.
    points: BTreeSet<(At, bool)>,
    ranges: BTreeSet<(TableId, KeyRange)>,
}

impl Held {
    /// Adds the rows that a statement has read and written. One that is held already has the same
    /// version, because the statement would not read this snapshot otherwise.
    fn add(&mut self, mut reads: ReadSet) {
        reads.points.retain(|it| self.points.insert(((it.table, it.key.clone()), false)));
        self.reads.append(reads);
    }

    /// The number of reads.
    fn count(&self) -> usize {
        let ranges = self.reads.ranges.iter().map(|range| range.rows.len() + 1);
        self.reads.points.len() + ranges.sum::<usize>()
    }
}

impl LocalContext {
    /// Makes a context for an interactive transaction.
    pub(crate) fn transaction(at: impl Into<Snapshot>, level: Isolation) -> Self {
        let is_recording = matches!(level, Isolation::RepeatableRead | Isolation::Serializable);
        Self { level, can_write: true, is_recording, ..Self::snapshot(at) }
    }

    /// The same context, in which additions to rows are recorded if the protocol merges them.
    pub(crate) fn merging_adds(self, of: Isolations) -> Self {
        Self { merges_adds: of.adds_at(self.level), ..self }
    }

    /// Records a read of a row, unless it is known.
    pub(super) fn record_point(
        &mut self,
        table: TableId,
        key: Key,
        seen: ReadVersion,
    ) -> Result<(), Stop> {
        let at = (table, key.clone());
        if self.points.contains(&at) {
            return Ok(());
        }
        // Checked first, because the transaction may continue from a savepoint after a failure.
        self.record(1)?;
        self.points.insert(at);
        self.reads.points.push(PointRead { table, key, seen });
        Ok(())
    }

    /// Notes that a statement depends on the result of the transaction's additions to a row. So the
    /// row must be as it was when the transaction added to it.
    pub(super) fn read_added(&mut self, table: TableId, key: &Key) -> Result<(), Stop> {
        let added = self.adds.row(table, key).filter(|_| self.is_recording);
        let Some(seen) = added.map(AddedRow::seen) else { return Ok(()) };
        self.record_point(table, key.clone(), ReadVersion::At(seen))
    }

    /// A row to which an addition can be recorded, with its version: one of the snapshot, after the
    /// transaction's own additions.
    pub(super) fn row_to_add_to(
        &self,
        table: TableId,
        key: &Key,
    ) -> Result<Option<(SnapshotVersion, Value)>, Stop> {
        if !self.merges_adds || self.is_read_only {
            return Ok(None);
        }
        if let Some(own) = self.own_write(table, key) {
            let added = self.adds.row(table, key).filter(|row| row.has_room());
            return Ok(added.and_then(|row| Some((row.seen(), own.clone()?))));
        }
        let found = self.find(table, key)?;
        self.check_kept()?;
        Ok(found.map(|found| (found.version, found.value)))
    }

    /// Makes a context for a transaction that can only read. It needs no record of its reads.
    pub(in crate::session) fn reader(at: impl Into<Snapshot>, level: Isolation) -> Self {
        Self { level, ..Self::snapshot(at) }
    }

    /// Whether each statement reads a snapshot of its own.
    pub(in crate::session) fn moves(&self) -> bool {
        self.level == Isolation::ReadCommitted
    }

    /// Goes on to the snapshot of the next statement, unless something that must be unchanged at
    /// COMMIT has changed.
    pub(in crate::session) fn move_to(&mut self, at: Snapshot) {
        let reads = std::mem::take(&mut self.reads);
        let is_written = |table, key: &Key| self.writes.contains_key(&(table, key.clone()));
        let reads = checked_reads(self.level, reads, ReadSet::default(), is_written);
        let held = self.held.get_or_insert_default();
        held.add(reads);
        self.points.clear();
        self.reads_recorded = held.count();
        self.is_recording = false;
        let (store, version) = (at.pin.store(), at.pin.version());
        if version == self.pin.version() || self.pin.is_lost() {
            return;
        }
        if first_change(&held.reads, store, version).is_none() {
            (self.pin, self.remote) = (at.pin, at.remote);
        }
    }

    /// Marks the start of a statement that is not a plain query.
    pub(crate) fn begin_statement(&mut self, is_write: bool) {
        self.is_writer |= is_write;
        self.is_recording |= self.can_write && self.moves();
    }

    /// Returns the transaction to be certified. `None` if it only read, because then each of its
    /// snapshots was one state. At the serializable level an UPDATE that found no row does not
    /// count as only reading: the row may have been inserted after the snapshot.
    pub(crate) fn into_certified(self) -> Option<Certified> {
        let is_search = self.is_writer && self.level == Isolation::Serializable;
        if self.writes.is_empty() && !is_search {
            return None;
        }
        let (writes, mut adds) = (Arc::unwrap_or_clone(self.writes), self.adds);
        let is_written = |table, key: &Key| writes.contains_key(&(table, key.clone()));
        let guards = self.held.map(|held| held.reads).unwrap_or_default();
        let reads = checked_reads(self.level, self.reads, guards, is_written);
        let write = |((table, key), value)| Write { table, key, value };
        let mut writes = writes.into_iter().map(write).collect();
        let adds = adds.take(&mut writes);
        let (at, timeline) = (self.pin.version(), self.pin.timeline());
        Some(Certified { reads, writes, adds, at, timeline })
    }

    /// Returns the state that a query of the transaction reads from now on.
    pub(in crate::session) fn view(&self) -> View {
        let snapshot =
            self.moves().then(|| Snapshot { pin: self.pin.clone(), remote: self.remote.clone() });
        View { writes: self.writes.clone(), snapshot, bytes: self.write_bytes }
    }

    /// Reads the state of a view. The reads count as reads of the transaction, except at read
    /// committed: a plain query depends on nothing there.
    pub(in crate::session) fn under<T>(
        &mut self,
        view: &mut View,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let is_recording = self.is_recording;
        self.is_recording &= view.snapshot.is_none();
        self.exchange(view);
        let done = read(self);
        self.exchange(view);
        self.is_recording = is_recording;
        done
    }

    fn exchange(&mut self, view: &mut View) {
        std::mem::swap(&mut self.writes, &mut view.writes);
        if let Some(snapshot) = &mut view.snapshot {
            std::mem::swap(&mut self.pin, &mut snapshot.pin);
            std::mem::swap(&mut self.remote, &mut snapshot.remote);
        }
    }

    /// Holds a read of a row.
    fn hold(&mut self, at: At, is_existence: bool) -> Result<(), Stop> {
        if !self.held.get_or_insert_default().points.insert((at.clone(), is_existence)) {
            return Ok(());
        }
        self.record(1)?;
        let (table, key) = at;
        let seen = match self.find(table, &key)? {
            None => ReadVersion::Absent,
            Some(_) if is_existence => ReadVersion::Present,
            Some(found) => ReadVersion::At(found.version),
        };
        let held = self.held.get_or_insert_default();
        held.reads.points.push(PointRead { table, key, seen });
        self.check_kept()
    }
}

/// Beneath the transaction's own writes.
impl Guards for LocalContext {
    fn row(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.hold((table, Key::from(key)), false)
    }

    fn existence(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.hold((table, Key::from(key)), true)
    }

    fn range(&mut self, table: TableId, range: &KeyRange) -> Result<(), Stop> {
        if !self.held.get_or_insert_default().ranges.insert((table, range.clone())) {
            return Ok(());
        }
        let scan = Scan { table, range: range.clone(), direction: Direction::Forward };
        let remote = self.remote.as_ref();
        let remote = remote.map(|remote| (remote, remote.shards_of(table, range)));
        let mut found = MergedRows::new(&self.pin, &scan, remote);
        let mut rows = Vec::new();
        merge(&mut found, Vec::new(), scan.direction, &mut |key, _, version| {
            rows.extend(version.map(|version| (key.clone(), ReadVersion::At(version))));
            ControlFlow::Continue(())
        });
        if let Some(failure) = found.failure {
            return Err(failure);
        }
        self.record(rows.len() + 1)?;
        let held = self.held.get_or_insert_default();
        held.reads.ranges.push(RangeRead { table, range: scan.range, rows });
        self.check_kept()
    }
}
