//! What has become reclaimable, so that reclamation never searches for it.
//!
//! A write that supersedes a version, or deletes a key, leaves an entry under its own version:
//! once every reader is at that version or later, what it superseded can go. Each superseded
//! version is looked at once, however large the store is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::table::Record;
use super::{Header, Store, lock};
use crate::ids::{SnapshotVersion, TableId};

/// A record that has something to reclaim.
#[derive(Debug)]
pub(super) struct Garbage<H> {
    pub table: TableId,
    pub record: Arc<Record<H>>,
}

/// Records by the version from which on they have something to reclaim.
#[derive(Debug)]
pub(super) struct GarbageQueue<H> {
    by_version: Mutex<BTreeMap<SnapshotVersion, Vec<Garbage<H>>>>,
}

/// Records taken from the queue at a time.
const TAKEN_MAX: usize = 1024;

impl<H> GarbageQueue<H> {
    pub(super) fn new() -> Self {
        Self { by_version: Mutex::default() }
    }

    pub(super) fn push(
        &self,
        version: SnapshotVersion,
        garbage: impl IntoIterator<Item = Garbage<H>>,
    ) {
        lock(&self.by_version).entry(version).or_default().extend(garbage);
    }

    /// Takes up to `limit` records that have something to reclaim at `floor`.
    fn take(&self, floor: SnapshotVersion, limit: usize) -> Vec<Garbage<H>> {
        let mut by_version = lock(&self.by_version);
        let Some(mut first) = by_version.first_entry().filter(|first| *first.key() <= floor) else {
            return Vec::new();
        };
        if first.get().len() <= limit {
            return first.remove();
        }
        let kept = first.get().len() - limit;
        first.get_mut().split_off(kept)
    }

    pub(super) fn clear(&self) {
        lock(&self.by_version).clear();
    }
}

impl<H: Header> Store<H> {
    /// Takes away every version that no reader at or above [`Store::oldest_pinned`] and `floor`
    /// sees, and returns how many went. Versions below that can't be pinned from then on.
    pub fn reclaim(&self, floor: SnapshotVersion) -> usize {
        self.reclaim_at_most(floor, usize::MAX)
    }

    /// Does the same for at most `records` records that were written. The rest is left for the next
    /// call, so that a caller can spread the work over its idle moments.
    pub fn reclaim_at_most(&self, floor: SnapshotVersion, mut records: usize) -> usize {
        let floor = self.close_below(floor);
        let mut reclaimed = 0;
        while records > 0 {
            let taken = self.garbage.take(floor, records.min(TAKEN_MAX));
            if taken.is_empty() {
                break;
            }
            records -= taken.len();
            for Garbage { table, record } in taken {
                let table = self.tables.table(table).expect("a record's table is there");
                reclaimed += table.reclaim(&record, floor);
            }
        }
        reclaimed
    }
}
