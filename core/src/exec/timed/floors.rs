//! Floors: the versions at which a row or range was read or written, so that nothing that conflicts
//! is inserted below them.
//!
//! Tiga §3.2 keeps two maps with an entry for each row that was ever used. Here a *window* bounds
//! them: entries at or below it are dropped, and all rows have at least the window as their floor.
//! A transaction that arrives below the window is late, although nothing may conflict with it.
//! That costs latency and is never wrong.
//!
//! The writers of a row are a list within the window, because replicas compare them. Of its readers
//! only the newest counts.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::ids::{SnapshotVersion, TableId, TxnId};
use crate::key::{Key, KeyRange};
use crate::mutate;
use crate::txn::{Footprint, LockMode, PointLock, RangeLock};

/// The maximum number of transactions in the window. The window follows the newest ones, so that
/// memory is bounded whatever the clocks say.
const TXNS_MAX: usize = if cfg!(test) { 64 } else { 131_072 };

/// The floors of all rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Floors {
    /// The floor of rows without an entry.
    window: SnapshotVersion,
    tables: BTreeMap<TableId, Table>,
    /// The transactions with entries, the oldest first.
    txns: BTreeMap<(SnapshotVersion, TxnId), Arc<Footprint>>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    rows: BTreeMap<Key, Row>,
    /// The ranges that were used; each transaction may have several.
    ranges: BTreeSet<(SnapshotVersion, TxnId, KeyRange, LockMode)>,
}

/// The uses of one row.
#[derive(Clone, Debug, Default)]
struct Row {
    /// The largest version of a reader.
    read: SnapshotVersion,
    /// The writers, in ascending order. Nearly all are added at the end.
    writes: Vec<(SnapshotVersion, TxnId)>,
}

impl Floors {
    pub fn window(&self) -> SnapshotVersion {
        self.window
    }

    /// The floor of a footprint: the largest version of anything that conflicts with it.
    pub fn of(&self, footprint: &Footprint) -> SnapshotVersion {
        let points = footprint.points.iter().filter_map(|lock| {
            let table = self.tables.get(&lock.table)?;
            let of_row = table.rows.get(&lock.key).map(|row| row.floor(lock.mode));
            of_row.max(table.of_ranges(lock.mode, |range| range.contains(&lock.key)))
        });
        let ranges = footprint.ranges.iter().filter(|lock| !lock.range.is_empty());
        let ranges = ranges.filter_map(|lock| {
            let table = self.tables.get(&lock.table)?;
            let rows = table.rows_within(&lock.range).map(|(_, row)| row.floor(lock.mode));
            rows.max().max(table.of_ranges(lock.mode, |range| range.overlaps(&lock.range)))
        });
        points.chain(ranges).fold(self.window, SnapshotVersion::max)
    }

    /// Adds the uses of a transaction.
    pub fn raise(&mut self, txn: TxnId, version: SnapshotVersion, footprint: Arc<Footprint>) {
        if version <= self.window {
            return;
        }
        for lock in points_that_count(&footprint) {
            let rows = &mut self.tables.entry(lock.table).or_default().rows;
            let row = rows.entry(lock.key.clone()).or_default();
            if lock.mode.reads() {
                row.read = row.read.max(version);
            }
            if lock.mode.writes() {
                let at = row.writes.partition_point(|write| *write < (version, txn));
                row.writes.insert(at, (version, txn));
            }
        }
        for lock in ranges_that_count(&footprint) {
            let ranges = &mut self.tables.entry(lock.table).or_default().ranges;
            ranges.insert((version, txn, lock.range.clone(), lock.mode));
        }
        self.txns.insert((version, txn), footprint);
        if self.txns.len() > TXNS_MAX {
            let ((oldest, _), _) = self.txns.first_key_value().expect("there are some");
            self.raise_window(*oldest);
        }
    }

    /// Drops entries at or below a version, which becomes the floor of all rows.
    pub fn raise_window(&mut self, version: SnapshotVersion) {
        self.window = self.window.max(version);
        while let Some(oldest) = self.txns.first_entry() {
            let (version, txn) = *oldest.key();
            if version > self.window {
                break;
            }
            let footprint = oldest.remove();
            self.drop_entries(version, txn, &footprint);
        }
    }

    fn drop_entries(&mut self, version: SnapshotVersion, txn: TxnId, footprint: &Footprint) {
        // The window may have dropped a row already, together with a newer use.
        for lock in points_that_count(footprint) {
            let Some(table) = self.tables.get_mut(&lock.table) else { continue };
            let Some(row) = table.rows.get_mut(&lock.key) else { continue };
            row.writes.retain(|write| *write != (version, txn));
            if row.writes.is_empty() && row.read <= self.window {
                table.rows.remove(&lock.key);
            }
        }
        for lock in ranges_that_count(footprint) {
            let Some(table) = self.tables.get_mut(&lock.table) else { continue };
            table.ranges.remove(&(version, txn, lock.range.clone(), lock.mode));
        }
        let tables = footprint.points.iter().map(|lock| lock.table);
        for table in tables.chain(footprint.ranges.iter().map(|lock| lock.table)) {
            let is_empty = |it: &Table| it.rows.is_empty() && it.ranges.is_empty();
            if self.tables.get(&table).is_some_and(is_empty) {
                self.tables.remove(&table);
            }
        }
    }

    /// Adds the floors to a digest. How they came about is left out.
    pub fn digest(&self, hasher: &mut impl Hasher) {
        self.window.hash(hasher);
        for (id, table) in &self.tables {
            (id, table.rows.len(), &table.ranges).hash(hasher);
            for (key, row) in &table.rows {
                (key.as_bytes(), row.read, row.writes.last().map(|(at, _)| at)).hash(hasher);
            }
        }
    }

    pub fn invariants(&self) {
        assert!(self.txns.len() <= TXNS_MAX, "the window is bounded");
        assert!(self.txns.keys().all(|(version, _)| *version > self.window));
        for row in self.tables.values().flat_map(|table| table.rows.values()) {
            assert!(row.writes.is_sorted(), "writers ascend");
            assert!(row.writes.iter().all(|write| self.txns.contains_key(write)));
            assert!(!row.writes.is_empty() || row.read > self.window, "a row without uses");
        }
    }
}

impl Table {
    /// The largest version of a range that conflicts with a use of this mode.
    fn of_ranges(
        &self,
        mode: LockMode,
        is_met: impl Fn(&KeyRange) -> bool,
    ) -> Option<SnapshotVersion> {
        let mut newest_first = self.ranges.iter().rev();
        let found = newest_first.find(|(_, _, range, used)| used.conflicts(mode) && is_met(range));
        found.map(|(version, ..)| *version)
    }

    fn rows_within<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = (&'a Key, &'a Row)> {
        let first = Key::from(&range.start[..]);
        self.rows.range(first..).take_while(|(key, _)| range.contains(key))
    }
}

impl Row {
    /// The largest version of a use that conflicts with one of this mode.
    fn floor(&self, mode: LockMode) -> SnapshotVersion {
        let written = self.writes.last().map_or(SnapshotVersion::ZERO, |(version, _)| *version);
        if mode.writes() { written.max(self.read) } else { written }
    }
}

/// The point locks that leave a floor.
fn points_that_count(footprint: &Footprint) -> impl Iterator<Item = &PointLock> {
    let counts = |lock: &&PointLock| mutate!(ReadsLeaveNoFloor: true => lock.mode.writes());
    footprint.points.iter().filter(counts)
}

/// The range locks that leave a floor.
fn ranges_that_count(footprint: &Footprint) -> impl Iterator<Item = &RangeLock> {
    let counts = |lock: &&RangeLock| mutate!(RangesLeaveNoFloor: !lock.range.is_empty() => false);
    footprint.ranges.iter().filter(counts)
}
