//! The pending transactions and their conflicts.
//!
//! Each row has its readers and writers in the order of their versions. A writer is at the head of
//! a row if it is the first of all, and a reader if no writer is before it. A transaction counts
//! the rows at which it is not at the head, and the transactions before it that conflict because of
//! a range. At zero it is at the head.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use crate::hash::HashMap;
use crate::ids::{SnapshotVersion, TableId, TxnId};
use crate::key::{Key, KeyRange};
use crate::txn::{Footprint, LockMode};

/// The transactions that wait for their turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    txns: HashMap<TxnId, Txn>,
    order: BTreeMap<SnapshotVersion, TxnId>,
    tables: BTreeMap<TableId, Table>,
    changes: Vec<Change>,
}

/// A transaction that is not ready begins or stops to be at the head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub txn: TxnId,
    pub version: SnapshotVersion,
    pub is_head: bool,
}

#[derive(Clone, Debug)]
struct Txn {
    version: SnapshotVersion,
    footprint: Arc<Footprint>,
    is_ready: bool,
    /// The rows at which it is not at the head, and the neighbours with a smaller version.
    waits: usize,
    /// The transactions that conflict with it because of a range, each also in the other direction.
    neighbours: Vec<TxnId>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    rows: BTreeMap<Key, Accesses>,
    ranges: BTreeSet<(SnapshotVersion, TxnId, KeyRange, LockMode)>,
}

/// The accesses to one row. An access that reads and writes counts as a write.
#[derive(Clone, Debug, Default)]
struct Accesses {
    readers: BTreeMap<SnapshotVersion, TxnId>,
    writers: BTreeMap<SnapshotVersion, TxnId>,
}

impl Pending {
    pub fn insert(&mut self, txn: TxnId, version: SnapshotVersion, footprint: Arc<Footprint>) {
        assert!(!self.txns.contains_key(&txn), "{txn} is pending already");
        let other = self.order.insert(version, txn);
        assert!(other.is_none(), "two transactions with version {version}");
        let neighbours = self.conflicts_by_ranges(txn, &footprint);
        let mut waits = 0;
        for neighbour in &neighbours {
            let other = self.txn(*neighbour);
            other.neighbours.push(txn);
            let is_before = other.version < version;
            waits += usize::from(is_before);
            if !is_before {
                self.block(*neighbour);
            }
        }
        for lock in &footprint.points {
            let rows = &mut self.tables.entry(lock.table).or_default().rows;
            let row = rows.entry(lock.key.clone()).or_default();
            let writes = lock.mode.writes();
            waits += usize::from(!row.is_at_head(version, writes));
            let blocked = row.behind(version, writes);
            row.of_mode(writes).insert(version, txn);
            blocked.into_iter().for_each(|blocked| self.block(blocked));
        }
        for lock in &footprint.ranges {
            let ranges = &mut self.tables.entry(lock.table).or_default().ranges;
            ranges.insert((version, txn, lock.range.clone(), lock.mode));
        }
        self.txns.insert(txn, Txn { version, footprint, is_ready: false, waits, neighbours });
        if waits == 0 {
            self.changes.push(Change { txn, version, is_head: true });
        }
    }

    pub fn raise(&mut self, txn: TxnId, version: SnapshotVersion) {
        let footprint = self.remove(txn);
        self.insert(txn, version, footprint);
    }

    /// Removes a transaction, which does not count as a change of its own state.
    pub fn remove(&mut self, txn: TxnId) -> Arc<Footprint> {
        let removed = self.txns.remove(&txn).expect("the transaction is pending");
        let (version, footprint) = (removed.version, removed.footprint);
        self.order.remove(&version);
        for neighbour in removed.neighbours {
            let other = self.txn(neighbour);
            other.neighbours.retain(|it| *it != txn);
            if version < other.version {
                self.unblock(neighbour);
            }
        }
        for lock in &footprint.points {
            let table = self.tables.get_mut(&lock.table).expect("the table has the row");
            let row = table.rows.get_mut(&lock.key).expect("the row has the access");
            let writes = lock.mode.writes();
            row.of_mode(writes).remove(&version);
            let unblocked = row.behind(version, writes);
            if row.readers.is_empty() && row.writers.is_empty() {
                table.rows.remove(&lock.key);
            }
            unblocked.into_iter().for_each(|unblocked| self.unblock(unblocked));
        }
        for lock in &footprint.ranges {
            let table = self.tables.get_mut(&lock.table).expect("the table has the range");
            table.ranges.remove(&(version, txn, lock.range.clone(), lock.mode));
        }
        footprint
    }

    /// Marks a transaction as ready. Returns its footprint.
    pub fn make_ready(&mut self, txn: TxnId) -> Arc<Footprint> {
        let txn = self.txn(txn);
        txn.is_ready = true;
        Arc::clone(&txn.footprint)
    }

    pub fn is_taken(&self, version: SnapshotVersion) -> bool {
        self.order.contains_key(&version)
    }

    pub fn version(&self, txn: TxnId) -> Option<SnapshotVersion> {
        self.txns.get(&txn).map(|txn| txn.version)
    }

    pub fn is_ready(&self, txn: TxnId) -> bool {
        self.txns.get(&txn).is_some_and(|txn| txn.is_ready)
    }

    pub fn footprint(&self, txn: TxnId) -> &Footprint {
        &self.txns[&txn].footprint
    }

    pub fn in_order(&self) -> impl Iterator<Item = (SnapshotVersion, TxnId)> {
        self.order.iter().map(|(version, txn)| (*version, *txn))
    }

    /// The changes since the last call, in their order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        mem::take(&mut self.changes)
    }

    fn txn(&mut self, txn: TxnId) -> &mut Txn {
        self.txns.get_mut(&txn).expect("the transaction is pending")
    }

    fn block(&mut self, id: TxnId) {
        let txn = self.txn(id);
        txn.waits += 1;
        if txn.waits == 1 && !txn.is_ready {
            let change = Change { txn: id, version: txn.version, is_head: false };
            self.changes.push(change);
        }
    }

    fn unblock(&mut self, id: TxnId) {
        let txn = self.txn(id);
        txn.waits -= 1;
        if txn.waits == 0 && !txn.is_ready {
            let change = Change { txn: id, version: txn.version, is_head: true };
            self.changes.push(change);
        }
    }

    /// The pending transactions that conflict with a footprint because of a range of either.
    fn conflicts_by_ranges(&self, txn: TxnId, footprint: &Footprint) -> Vec<TxnId> {
        let mut found = Vec::new();
        for lock in &footprint.points {
            let Some(table) = self.tables.get(&lock.table) else { continue };
            found.extend(table.of_ranges(lock.mode, |range| range.contains(&lock.key)));
        }
        for lock in &footprint.ranges {
            let Some(table) = self.tables.get(&lock.table) else { continue };
            found.extend(table.of_ranges(lock.mode, |range| range.overlaps(&lock.range)));
            let first = Key::from(&lock.range.start[..]);
            let rows = table.rows.range(first..);
            for (_, row) in rows.take_while(|(key, _)| lock.range.contains(key)) {
                found.extend(row.writers.values());
                let readers = row.readers.values().filter(|_| lock.mode.writes());
                found.extend(readers);
            }
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|other| *other != txn);
        found
    }

    pub fn digest(&self, hasher: &mut impl Hasher) {
        self.order.len().hash(hasher);
        for (version, txn) in &self.order {
            (version, txn, self.is_ready(*txn)).hash(hasher);
        }
    }

    /// Checks the state. Returns the transactions at the head that are not ready.
    pub fn invariants(&self) -> BTreeSet<(SnapshotVersion, TxnId)> {
        assert_eq!(self.order.len(), self.txns.len(), "each transaction has a place");
        assert!(self.changes.is_empty(), "changes were taken");
        let mut heads = BTreeSet::new();
        for (at, txn) in &self.order {
            let it = &self.txns[txn];
            assert_eq!(it.version, *at, "the place of {txn}");
            let mut before = self.order.range(..at).map(|(_, other)| &self.txns[other]);
            let is_head = !before.any(|other| do_conflict(&it.footprint, &other.footprint));
            assert_eq!(it.waits == 0, is_head, "{txn} waits for {} others", it.waits);
            assert!(is_head || !it.is_ready, "{txn} is ready behind another");
            if is_head && !it.is_ready {
                heads.insert((*at, *txn));
            }
        }
        heads
    }
}

impl Table {
    /// The transactions with ranges that conflict with an access of this mode.
    fn of_ranges(
        &self,
        mode: LockMode,
        is_met: impl Fn(&KeyRange) -> bool,
    ) -> impl Iterator<Item = TxnId> {
        let met = self.ranges.iter();
        let met = met.filter(move |(_, _, range, other)| other.conflicts(mode) && is_met(range));
        met.map(|(_, txn, ..)| *txn)
    }
}

impl Accesses {
    fn of_mode(&mut self, writes: bool) -> &mut BTreeMap<SnapshotVersion, TxnId> {
        if writes { &mut self.writers } else { &mut self.readers }
    }

    /// Whether nothing that conflicts is before an access.
    fn is_at_head(&self, version: SnapshotVersion, writes: bool) -> bool {
        let is_after = |of: &BTreeMap<SnapshotVersion, TxnId>| {
            of.first_key_value().is_none_or(|(first, _)| version < *first)
        };
        is_after(&self.writers) && (!writes || is_after(&self.readers))
    }

    /// The accesses at the head that would not be there with an access that the row does not have.
    fn behind(&self, version: SnapshotVersion, writes: bool) -> Vec<TxnId> {
        let mut behind = Vec::new();
        let writer = self.writers.first_key_value();
        if let Some((first, txn)) = writer
            && version < *first
            && self.readers.first_key_value().is_none_or(|(reader, _)| first < reader)
        {
            behind.push(*txn);
        }
        let upto = writer.map_or(Bound::Unbounded, |(first, _)| Bound::Excluded(*first));
        if writes && writer.is_none_or(|(first, _)| version < *first) {
            let readers = self.readers.range((Bound::Excluded(version), upto));
            behind.extend(readers.map(|(_, txn)| *txn));
        }
        behind
    }
}

/// The definition of a conflict: both access a row, and one writes.
pub(super) fn do_conflict(a: &Footprint, b: &Footprint) -> bool {
    let points = |a: &Footprint, b: &Footprint| {
        a.points.iter().any(|lock| {
            let at_row = b.points.iter().any(|other| {
                (other.table, &other.key) == (lock.table, &lock.key)
                    && lock.mode.conflicts(other.mode)
            });
            let in_range = b.ranges.iter().any(|other| {
                other.table == lock.table
                    && other.range.contains(&lock.key)
                    && lock.mode.conflicts(other.mode)
            });
            at_row || in_range
        })
    };
    let ranges = a.ranges.iter().any(|lock| {
        b.ranges.iter().any(|other| {
            other.table == lock.table
                && other.range.overlaps(&lock.range)
                && lock.mode.conflicts(other.mode)
        })
    });
    points(a, b) || points(b, a) || ranges
}
