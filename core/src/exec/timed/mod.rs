//! Timed execution: transactions wait in the order of their versions, which are timestamps that
//! were chosen before they arrived (Tiga §3.2, §3.3).
//!
//! ```text
//!                     pending, by version                               floors
//!   insert --> [7: row a] [9: row b] [12: row a, row b]   --ready-->    row a: read 7, written 5
//!                  |          |            |                            row b: written 4
//!               at the     at the      waits for 7 and 9                table: range written 6
//!                head       head                                        all rows: window 3
//! ```
//!
//! A transaction is *at the head* if no pending transaction with a smaller version conflicts with
//! it. At the head it can become *ready*: from then on nothing that conflicts with it may have a
//! smaller version. The floors ensure that: they are raised before a transaction runs, and a
//! transaction is inserted above the floors of its footprint only. A ready transaction stays at the
//! head until it is released, or until it is raised to a larger version.
//!
//! The ordered executor gets its jobs in their order, so a request never waits for a later one. In
//! this queue any transaction may arrive before any other, and may move. Conflicts therefore have
//! no fixed direction, and the order of the versions decides it.
//!
//! Nothing in this module knows messages, shards or clocks. It is in this crate because whatever
//! runs the transactions needs the same conflicts, and the store's versions are its only numbers.
//!
//! **Costs.** Inserting, raising and releasing a transaction takes logarithmic time for each of its
//! keys, and the time of those that stop or begin to be at the head. Ranges are compared one by
//! one with the other ranges of their table, and wait for each conflicting transaction separately.

mod floors;
mod pending;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::hash::Hasher;
use std::sync::Arc;

use crate::ids::{SnapshotVersion, TxnId};
use crate::mutate;
use crate::txn::Footprint;

use floors::Floors;
use pending::Pending;

/// The pending transactions of one shard, and the floors below which no more may arrive.
#[derive(Clone, Debug, Default)]
pub struct TimedQueue {
    pending: Pending,
    floors: Floors,
    /// The transactions at the head that are not ready.
    heads: BTreeSet<(SnapshotVersion, TxnId)>,
}

impl TimedQueue {
    /// The largest version at which a transaction with this footprint may no longer be inserted.
    pub fn floor(&self, footprint: &Footprint) -> SnapshotVersion {
        self.floors.of(footprint)
    }

    /// Adds a transaction.
    ///
    /// # Panics
    /// If its version is not above its floor, if it is pending, or if another pending transaction
    /// has the version.
    pub fn insert(&mut self, txn: TxnId, version: SnapshotVersion, footprint: Arc<Footprint>) {
        assert!(version > self.floor(&footprint), "{txn} is too late for version {version}");
        self.pending.insert(txn, version, footprint);
        self.update_heads();
    }

    /// Moves a pending transaction to a larger version. If it was ready, it is not any more.
    ///
    /// It needs no comparison with the floors: while it was pending, no conflicting transaction
    /// with a larger version could become ready.
    ///
    /// # Panics
    /// If the transaction is not pending or its version is not smaller.
    pub fn raise(&mut self, txn: TxnId, version: SnapshotVersion) {
        let old = self.version(txn).expect("only a pending transaction is raised");
        assert!(old < version, "{txn} is raised from {old} to {version}");
        self.heads.remove(&(old, txn));
        self.pending.raise(txn, version);
        self.update_heads();
    }

    /// Makes a transaction at the head ready, and raises the floors of its footprint.
    ///
    /// # Panics
    /// If the transaction is not at the head, or is ready.
    pub fn make_ready(&mut self, txn: TxnId) {
        let version = self.version(txn).expect("only a pending transaction becomes ready");
        assert!(self.heads.remove(&(version, txn)), "{txn} is not at the head");
        let footprint = self.pending.make_ready(txn);
        // Tiga, Algorithm 1, lines 15 and 16: before the execution.
        mutate!(FloorAtRelease: self.floors.raise(txn, version, footprint) => ());
    }

    /// Removes a ready transaction, whose writes are now in the store.
    ///
    /// # Panics
    /// If the transaction is not ready.
    pub fn release(&mut self, txn: TxnId) {
        let version = self.version(txn).expect("only a pending transaction is released");
        assert!(self.is_ready(txn), "{txn} is released before it is ready");
        let footprint = self.pending.remove(txn);
        mutate!(FloorAtRelease: () => self.floors.raise(txn, version, footprint));
        self.update_heads();
    }

    /// Removes a pending transaction, ready or not, which will not be released here.
    ///
    /// # Panics
    /// If the transaction is not pending.
    pub fn remove(&mut self, txn: TxnId) {
        let version = self.version(txn).expect("only a pending transaction is removed");
        self.heads.remove(&(version, txn));
        self.pending.remove(txn);
        self.update_heads();
    }

    /// The version of a transaction, if it is pending.
    pub fn version(&self, txn: TxnId) -> Option<SnapshotVersion> {
        self.pending.version(txn)
    }

    /// Whether a pending transaction has this version.
    pub fn is_taken(&self, version: SnapshotVersion) -> bool {
        self.pending.is_taken(version)
    }

    /// Whether a transaction is pending and ready.
    pub fn is_ready(&self, txn: TxnId) -> bool {
        self.pending.is_ready(txn)
    }

    /// The transactions at the head that are not ready, in the order of their versions.
    pub fn heads(&self) -> impl Iterator<Item = (SnapshotVersion, TxnId)> {
        self.heads.iter().copied()
    }

    /// All pending transactions in the order of their versions.
    pub fn pending(&self) -> impl Iterator<Item = (SnapshotVersion, TxnId)> {
        self.pending.in_order()
    }

    /// Raises the floors of a transaction that was released elsewhere.
    pub fn raise_floor(&mut self, txn: TxnId, version: SnapshotVersion, of: Arc<Footprint>) {
        self.floors.raise(txn, version, of);
    }

    /// Raises the window: the single floor of all rows, below which floors are not kept.
    pub fn raise_window(&mut self, version: SnapshotVersion) {
        self.floors.raise_window(version);
    }

    /// Adds the state to a digest. Footprints are left out, because they belong to the ids.
    pub fn digest(&self, hasher: &mut impl Hasher) {
        self.pending.digest(hasher);
        self.floors.digest(hasher);
    }

    /// Checks the state against its definition, from scratch.
    ///
    /// # Panics
    /// If a part of the state does not follow from the pending transactions.
    pub fn invariants(&self) {
        let heads = self.pending.invariants();
        assert_eq!(self.heads, heads, "the transactions at the head");
        self.floors.invariants();
        for (version, txn) in self.pending() {
            let floor = self.floor(self.pending.footprint(txn));
            let is_above = version > floor || version == floor && self.is_ready(txn);
            assert!(
                is_above || version <= self.floors.window(),
                "{txn} at {version} is not above its floor {floor}"
            );
        }
    }

    fn update_heads(&mut self) {
        for change in self.pending.take_changes() {
            let is_present = match change.is_head {
                true => self.heads.insert((change.version, change.txn)),
                false => self.heads.remove(&(change.version, change.txn)),
            };
            assert!(is_present, "each change of the head is reported once");
        }
    }
}
