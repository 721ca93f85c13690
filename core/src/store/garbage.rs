//! A queue of reclaimable versions, so that reclamation need not search for them.
//!
//! A write that supersedes a version or deletes a key leaves an entry under its own version. Once
//! every reader is at that version or later, the superseded version can be removed. Each superseded
//! version is visited once, regardless of the size of the store.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::cache_prefetch::WARM_GROUP;
use super::zigzag::NeededVersions;
use super::{Store, lock};
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;

/// A key that has versions to reclaim.
#[derive(Debug)]
pub(super) struct Garbage {
    pub(super) table: TableId,
    /// The hash of the key.
    pub(super) hash: u64,
    pub(super) key: Key,
}

/// Keys by the version from which on they can be reclaimed.
#[derive(Debug, Default)]
pub(super) struct GarbageQueue {
    queued: Mutex<Queued>,
    /// The total number of keys that were ever queued.
    total: AtomicU64,
    /// The total number of deletions that were ever written.
    deletions: AtomicU64,
}

#[derive(Debug, Default)]
struct Queued {
    by_version: BTreeMap<SnapshotVersion, Vec<Garbage>>,
    /// An empty list whose capacity is reused, because successive versions leave similar amounts of
    /// garbage.
    spare: Vec<Garbage>,
}

impl Queued {
    fn of_version(&mut self, version: SnapshotVersion) -> &mut Vec<Garbage> {
        let Self { by_version, spare } = self;
        by_version.entry(version).or_insert_with(|| std::mem::take(spare))
    }
}

/// The maximum number of keys taken from the queue at a time.
const TAKEN_MAX: usize = 1024;

/// The maximum capacity of the spare list: some megabytes.
const SPARE_MAX: usize = 1 << 16;

impl GarbageQueue {
    pub(super) fn push(
        &self,
        version: SnapshotVersion,
        garbage: impl IntoIterator<Item = Garbage>,
    ) {
        let mut all = lock(&self.queued);
        let queued = all.of_version(version);
        let before = queued.len();
        queued.extend(garbage);
        self.total.fetch_add((queued.len() - before) as u64, Ordering::Relaxed);
    }

    /// Queues a key again that may have been visited too early. It is not counted again.
    pub(super) fn push_again(&self, version: SnapshotVersion, garbage: Garbage) {
        lock(&self.queued).of_version(version).push(garbage);
    }

    pub(super) fn count_deletions(&self, count: usize) {
        self.deletions.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Takes up to `limit` keys that can be reclaimed at `floor`.
    fn take(&self, floor: SnapshotVersion, limit: usize) -> Vec<Garbage> {
        let by_version = &mut lock(&self.queued).by_version;
        let Some(mut first) = by_version.first_entry().filter(|first| *first.key() <= floor) else {
            return Vec::new();
        };
        match first.get().len().saturating_sub(limit) {
            0 => first.remove(),
            kept => first.get_mut().drain(kept..).collect(),
        }
    }

    /// Returns a list whose keys were reclaimed, so that its capacity is reused.
    fn give_back(&self, mut taken: Vec<Garbage>) {
        taken.clear();
        let spare = &mut lock(&self.queued).spare;
        if (spare.capacity()..=SPARE_MAX).contains(&taken.capacity()) {
            *spare = taken;
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.queued).by_version.is_empty()
    }

    pub(super) fn clear(&self) {
        *lock(&self.queued) = Queued::default();
    }
}

impl Store {
    /// The number of times that a version was superseded or a key deleted since the store was
    /// created. The difference of two counts is the number of versions that old readers prevent
    /// from being reclaimed.
    pub fn superseded(&self) -> u64 {
        self.garbage.total.load(Ordering::Relaxed)
    }

    /// The number of deletions written since the store was created. Until they are reclaimed, scans
    /// must skip them.
    pub fn deletions(&self) -> u64 {
        self.garbage.deletions.load(Ordering::Relaxed)
    }

    /// Removes every version that no reader at or above [`Store::oldest_pinned`] and `floor` sees.
    /// Returns the number of removed versions. Lower versions can no longer be pinned.
    pub fn reclaim(&self, floor: SnapshotVersion) -> usize {
        self.reclaim_at_most(floor, usize::MAX)
    }

    /// Like [`Store::reclaim`], for at most `keys` written keys. The next call continues with the
    /// rest, so a caller can spread the work over its idle time.
    pub fn reclaim_at_most(&self, floor: SnapshotVersion, mut keys: usize) -> usize {
        let floor = self.close_below(floor);
        let needed = NeededVersions { floor, point: self.overwriting.point() };
        let (mut reclaimed, tier) = (0, self.tier.as_deref());
        while keys > 0 {
            let taken = self.garbage.take(floor, keys.min(TAKEN_MAX));
            if taken.is_empty() {
                break;
            }
            keys -= taken.len();
            for group in taken.chunks(WARM_GROUP) {
                self.warm_hashed(group.iter().map(|it| (it.table, it.hash)));
                for Garbage { table, hash, key } in group {
                    let rows = self.tables.table(*table).expect("the table of a key exists");
                    reclaimed += rows.reclaim((*table, *hash, key), needed, tier);
                }
            }
            self.garbage.give_back(taken);
        }
        reclaimed
    }
}
