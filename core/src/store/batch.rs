//! Batches of writes, applied on all cores.
//!
//! ```text
//!   writes, in order --> partitions by hash shard --> put, one job for each partition
//!                                                       | new keys
//!                                                       v
//!                              pending; sorted into the ordered index before the next scan
//! ```
//!
//! A partition contains whole shards of the hash table, so two jobs never wait for each other
//! there. It contains all writes of a key, in their order.

use super::garbage::Garbage;
use super::table::{HASH_SHARDS, IndexUpdate, Table};
use super::zigzag::OverwriteContext;
use super::{Store, Version, lock};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::pool::Pool;
use crate::sync::Mutex;

/// The minimum number of items for each worker. Waking a worker takes about 5 us, and an item about
/// 0.5 us.
const PART_ITEMS_MIN: usize = if cfg!(test) { 2 } else { 32 };

/// The number of rows that are prefetched before they are written. Large enough for many parallel
/// misses, and small enough that no row leaves the processor's caches before its write.
const APPLY_GROUP: usize = if cfg!(test) { 3 } else { 128 };

/// A write with the hash of its key.
type Hashed = (u64, TableId, Key, Version);
type Writes = Vec<Hashed>;

impl Store {
    /// Applies many writes of one version, with the result of applying them one after the other. If
    /// a key is written several times, the last write wins.
    ///
    /// # Panics
    /// If a write has another version, or its key already has a newer one.
    pub fn apply_batch(
        &self,
        pool: &dyn Pool,
        version: SnapshotVersion,
        writes: Vec<(TableId, Key, Version)>,
    ) {
        assert!(writes.iter().all(|(.., v)| v.version == version), "a batch has one version");
        let parts = parts_for(pool, writes.len());
        if parts <= 1 {
            let hashed = |(table, key, version): (TableId, Key, Version)| {
                (hash_bytes(&key), table, key, version)
            };
            let writes: Writes = writes.into_iter().map(hashed).collect();
            return self.apply_part(version, writes);
        }
        let by_shard = partition(writes, parts);
        pool.run(parts, &|part| {
            let writes = std::mem::take(&mut *lock(&by_shard[part]));
            self.apply_part(version, writes);
        });
    }

    /// Applies writes whose keys are in shards that no other job writes to.
    fn apply_part(&self, version: SnapshotVersion, writes: Writes) {
        let mut writes = writes.into_iter();
        while !writes.as_slice().is_empty() {
            let left = writes.as_slice();
            let next = &left[..left.len().min(APPLY_GROUP)];
            self.warm_hashed(next.iter().map(|(hash, table, ..)| (*table, *hash)));
            let count = next.len();
            self.put_part(version, writes.by_ref().take(count));
        }
    }

    fn put_part(&self, version: SnapshotVersion, writes: impl ExactSizeIterator<Item = Hashed>) {
        let mut new_keys = Vec::with_capacity(writes.len());
        let mut garbage = Vec::with_capacity(writes.len());
        let mut deletions = 0;
        let mut over = self.overwriting.overwrite_context();
        let mut sums = self.digests.sums();
        for (hash, id, key, version) in writes {
            deletions += usize::from(version.value.is_none());
            sums.iter_mut().for_each(|sums| sums.add(id, &key, &version));
            let table = self.tables.table_to_write(id);
            let update = table.put((hash, &key), version, over.as_mut(), |before| {
                sums.iter_mut().for_each(|sums| sums.subtract(id, &key, &before));
            });
            self.note_warm(update, (id, hash));
            self.note_gone(over.as_mut(), (id, &key));
            if update.is_new {
                new_keys.push((id, key.clone()));
            }
            if self.is_garbage(update) {
                garbage.push(Garbage { table: id, hash, key });
            }
        }
        if deletions > 0 {
            self.garbage.count_deletions(deletions);
        }
        sums.iter().for_each(|sums| self.digests.note(version, sums));
        self.add_in_order(new_keys.into_iter());
        if !garbage.is_empty() {
            self.garbage.push(version, garbage);
        }
    }

    /// Tells the cold store that a row no longer has a placeholder.
    #[inline]
    pub(super) fn note_warm(&self, update: IndexUpdate, (table, hash): (TableId, u64)) {
        if update.was_cold
            && let Some(tier) = &self.tier
        {
            tier.on_warm(table, hash);
        }
    }

    /// Tells the cold store which versions of a row a write removed.
    #[inline]
    pub(super) fn note_gone(
        &self,
        over: Option<&mut OverwriteContext>,
        (table, key): (TableId, &Key),
    ) {
        if let (Some(tier), Some(over)) = (&self.tier, over) {
            tier.on_gone(table, key, over.copied.drain(..));
        }
    }

    /// Whether a key must be reclaimed once all readers see this write. With a memory limit, any
    /// superseded version must be: a value cannot be evicted while its row has an older version.
    #[inline]
    pub(super) fn is_garbage(&self, update: IndexUpdate) -> bool {
        update.is_deletion || update.has_more || update.is_superseding && self.tier.is_some()
    }

    /// Queues new keys for the ordered index.
    pub(super) fn add_in_order(&self, new_keys: impl Iterator<Item = (TableId, Key)>) {
        let mut new_keys = new_keys.peekable();
        while let Some(&(id, _)) = new_keys.peek() {
            let of_table = std::iter::from_fn(|| new_keys.next_if(|(other, _)| *other == id));
            self.tables.table_to_write(id).order.add(of_table.map(|(_, key)| key));
        }
    }

    /// Sorts all pending new keys into the ordered indexes, on all cores. A scan does the same for
    /// its table on one core.
    pub fn settle(&self, pool: &dyn Pool) {
        for table in self.table_ids().into_iter().filter_map(|id| self.tables.table(id)) {
            table.order.settle(pool);
        }
    }

    /// Applies one write. Returns the key if it must be reclaimed later.
    pub(super) fn put_one(&self, id: TableId, key: Key, version: Version) -> Option<Garbage> {
        if version.value.is_none() {
            self.garbage.count_deletions(1);
        }
        let hash = hash_bytes(&key);
        let table = self.tables.table_to_write(id);
        let mut over = self.overwriting.overwrite_context();
        let (number, mut sums) = (version.version, self.digests.sums());
        sums.iter_mut().for_each(|sums| sums.add(id, &key, &version));
        let update = table.put((hash, &key), version, over.as_mut(), |before| {
            sums.iter_mut().for_each(|sums| sums.subtract(id, &key, &before));
        });
        sums.iter().for_each(|sums| self.digests.note(number, sums));
        self.note_warm(update, (id, hash));
        self.note_gone(over.as_mut(), (id, &key));
        if update.is_new {
            table.order.add([key.clone()]);
        }
        self.is_garbage(update).then_some(Garbage { table: id, hash, key })
    }
}

/// The number of partitions for this many items.
fn parts_for(pool: &dyn Pool, items: usize) -> usize {
    pool.workers().min(items / PART_ITEMS_MIN).clamp(1, HASH_SHARDS)
}

fn partition(writes: Vec<(TableId, Key, Version)>, parts: usize) -> Vec<Mutex<Writes>> {
    let expected = writes.len() / parts + writes.len() / 8;
    let mut by_shard: Vec<_> = (0..parts).map(|_| Writes::with_capacity(expected)).collect();
    for (table, key, version) in writes {
        let hash = hash_bytes(&key);
        by_shard[Table::shard_of(hash) * parts / HASH_SHARDS].push((hash, table, key, version));
    }
    by_shard.into_iter().map(Mutex::new).collect()
}
