//! What has become reclaimable, so that reclamation never searches for it.
//!
//! A write that supersedes a version, or deletes a key, leaves an entry under its own version:
//! once every reader is at that version or later, what it superseded can go. Each superseded
//! version is looked at once, however large the store is.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::point::Kept;
use super::warm::WARM_GROUP;
use super::{Store, lock};
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;

/// A key that has something to reclaim.
#[derive(Debug)]
pub(super) struct Garbage {
    pub(super) table: TableId,
    /// The hash of the key.
    pub(super) hash: u64,
    pub(super) key: Key,
}

/// Keys by the version from which on they have something to reclaim.
#[derive(Debug, Default)]
pub(super) struct GarbageQueue {
    queued: Mutex<Queued>,
    /// How many keys were ever put here.
    total: AtomicU64,
    /// How many deletions were ever written.
    deletions: AtomicU64,
}

#[derive(Debug, Default)]
struct Queued {
    by_version: BTreeMap<SnapshotVersion, Vec<Garbage>>,
    /// An empty list that has had room for what a version left: the next one leaves about as much.
    spare: Vec<Garbage>,
}

impl Queued {
    fn of_version(&mut self, version: SnapshotVersion) -> &mut Vec<Garbage> {
        let Self { by_version, spare } = self;
        by_version.entry(version).or_insert_with(|| std::mem::take(spare))
    }
}

/// Keys taken from the queue at a time.
const TAKEN_MAX: usize = 1024;

/// The spare list has room for so many keys at most: some megabytes.
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

    /// Puts a key back that may have been taken in vain. It was counted before.
    pub(super) fn push_again(&self, version: SnapshotVersion, garbage: Garbage) {
        lock(&self.queued).of_version(version).push(garbage);
    }

    pub(super) fn count_deletions(&self, count: usize) {
        self.deletions.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Takes up to `limit` keys that have something to reclaim at `floor`.
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

    /// Those that were taken are reclaimed: the room of their list is for others.
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
    /// How often a version of a key has been superseded, or a key deleted, since the store was
    /// made: what readers of old versions keep from being reclaimed is a difference of two counts.
    pub fn superseded(&self) -> u64 {
        self.garbage.total.load(Ordering::Relaxed)
    }

    /// How many deletions were written since the store was made: until they are reclaimed, scans
    /// pass over them.
    pub fn deletions(&self) -> u64 {
        self.garbage.deletions.load(Ordering::Relaxed)
    }

    /// Takes away every version that no reader at or above [`Store::oldest_pinned`] and `floor`
    /// sees, and returns how many went. Versions below that can't be pinned from then on.
    pub fn reclaim(&self, floor: SnapshotVersion) -> usize {
        self.reclaim_at_most(floor, usize::MAX)
    }

    /// Does the same for at most `keys` keys that were written. The rest is left for the next
    /// call, so that a caller can spread the work over its idle moments.
    pub fn reclaim_at_most(&self, floor: SnapshotVersion, mut keys: usize) -> usize {
        let floor = self.close_below(floor);
        let kept = Kept { floor, point: self.overwriting.point() };
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
                    let rows = self.tables.table(*table).expect("a key's table is there");
                    reclaimed += rows.reclaim((*table, *hash, key), kept, tier);
                }
            }
            self.garbage.give_back(taken);
        }
        reclaimed
    }
}
