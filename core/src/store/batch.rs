//! Many writes at once, on every core.
//!
//! ```text
//!   writes, in order --> parts by hash shard --> put, one job a part
//!                                                  | new keys
//!                                                  v
//!                        they wait, and are put in order before somebody has to see them
//! ```
//!
//! A part holds whole shards of the hash table, so that two jobs never wait for each other there,
//! and all writes of one key in their order.

use super::garbage::Garbage;
use super::table::{HASH_SHARDS, Table};
use super::{Header, Store, Version, lock};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::pool::{Pool, Sequential};
use crate::sync::Mutex;

/// Below this many items for each worker, waking the workers costs more than they save (some 5 us
/// against about 0.5 us an item).
const PART_ITEMS_MIN: usize = if cfg!(test) { 2 } else { 32 };

/// A write with the hash of its key.
type Hashed<H> = (u64, TableId, Key, Version<H>);
type Writes<H> = Vec<Hashed<H>>;

impl<H: Header> Store<H> {
    /// Applies many writes of one version. Of several writes of one key the last one wins. The
    /// result is that of applying one after the other.
    ///
    /// # Panics
    /// When a write is of another version, or its key already has a newer one.
    pub fn apply_batch(
        &self,
        pool: &dyn Pool,
        version: SnapshotVersion,
        writes: Vec<(TableId, Key, Version<H>)>,
    ) {
        assert!(writes.iter().all(|(.., v)| v.version == version), "a batch is of one version");
        let parts = parts_for(pool, writes.len());
        if parts <= 1 {
            self.warm(writes.iter().map(|(table, key, _)| (*table, key)));
            return self.apply_in_turn(version, writes.into_iter());
        }
        let by_shard = partition(writes, parts);
        pool.run(parts, &|part| {
            let writes = std::mem::take(&mut *lock(&by_shard[part]));
            self.warm(writes.iter().map(|(_, table, key, _)| (*table, key)));
            self.put_part(version, writes.into_iter());
        });
    }

    /// Applies writes of one version, one after the other. Their rows had best be in the
    /// processor's caches ([`Store::warm`]).
    ///
    /// # Panics
    /// When a key already has a newer version.
    pub fn apply_in_turn(
        &self,
        version: SnapshotVersion,
        writes: impl ExactSizeIterator<Item = (TableId, Key, Version<H>)>,
    ) {
        let hashed = |(table, key, version): (TableId, Key, Version<H>)| {
            (hash_bytes(&key), table, key, version)
        };
        self.put_part(version, writes.map(hashed));
    }

    /// Applies writes whose keys are in shards that no other job writes to.
    fn put_part(&self, version: SnapshotVersion, writes: impl ExactSizeIterator<Item = Hashed<H>>) {
        let mut new_keys = Vec::with_capacity(writes.len());
        let mut garbage = Vec::with_capacity(writes.len());
        let mut deletions = 0;
        for (hash, id, key, version) in writes {
            deletions += usize::from(version.value.is_none());
            let left = self.tables.table_to_write(id).put(hash, &key, version);
            if left.is_new {
                new_keys.push((id, key.clone()));
            }
            if left.is_garbage {
                garbage.push((id, key));
            }
        }
        if deletions > 0 {
            self.garbage.count_deletions(deletions);
        }
        self.add_in_order(version, new_keys);
        if !garbage.is_empty() {
            self.garbage.push(version, garbage);
        }
    }

    /// Lets new keys wait for their place in the order, unless readers may look for them already.
    fn add_in_order(&self, version: SnapshotVersion, new_keys: Vec<(TableId, Key)>) {
        if new_keys.is_empty() {
            return;
        }
        let mut new_keys = new_keys.into_iter().peekable();
        while let Some(&(id, _)) = new_keys.peek() {
            let of_table = std::iter::from_fn(|| new_keys.next_if(|(other, _)| *other == id));
            if self.tables.table_to_write(id).order.add(of_table.map(|(_, key)| key)) {
                lock(&self.unsettled).push(id);
            }
        }
        if version <= self.published() {
            self.settle(&Sequential);
        }
    }

    /// Puts the keys that are new since the last publication in order, on every core. Publication
    /// does the same on one.
    pub fn settle(&self, pool: &dyn Pool) {
        let unsettled = std::mem::take(&mut *lock(&self.unsettled));
        for table in unsettled.into_iter().filter_map(|id| self.tables.table(id)) {
            table.order.settle(pool);
        }
    }

    /// Applies one write, and says if there is something to reclaim later.
    pub(super) fn put_one(&self, id: TableId, key: Key, version: Version<H>) -> Option<Garbage> {
        let number = version.version;
        if version.value.is_none() {
            self.garbage.count_deletions(1);
        }
        let left = self.tables.table_to_write(id).put(hash_bytes(&key), &key, version);
        if left.is_new {
            self.add_in_order(number, vec![(id, key.clone())]);
        }
        left.is_garbage.then_some((id, key))
    }
}

/// In how many parts the pool should work on this many items.
fn parts_for(pool: &dyn Pool, items: usize) -> usize {
    pool.workers().min(items / PART_ITEMS_MIN).clamp(1, HASH_SHARDS)
}

fn partition<H: Header>(
    writes: Vec<(TableId, Key, Version<H>)>,
    parts: usize,
) -> Vec<Mutex<Writes<H>>> {
    let expected = writes.len() / parts + writes.len() / 8;
    let mut by_shard: Vec<_> = (0..parts).map(|_| Writes::with_capacity(expected)).collect();
    for (table, key, version) in writes {
        let hash = hash_bytes(&key);
        by_shard[Table::<H>::shard_of(hash) * parts / HASH_SHARDS]
            .push((hash, table, key, version));
    }
    by_shard.into_iter().map(Mutex::new).collect()
}
