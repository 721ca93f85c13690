//! Many writes at once, on every core.
//!
//! ```text
//!   writes, in order --> parts by hash shard --> put, one job a part
//!                                                  | new keys
//!                                                  v
//!                        parts by key order  --> put in order, one job a part
//! ```
//!
//! A part holds whole shards of the hash table, so that two jobs never wait for each other there,
//! and all writes of one key in their order. New keys are sorted before they go into the ordered
//! index, so that jobs meet at the edges of their parts alone.

use std::sync::Mutex;

use super::garbage::Garbage;
use super::order::NewKey;
use super::table::{HASH_SHARDS, Table};
use super::{Header, Store, Version, lock};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::pool::{Pool, Sequential};

/// Below this many items for each worker, waking the workers costs more than they save (some 5 us
/// against about 0.5 us an item).
const PART_ITEMS_MIN: usize = if cfg!(test) { 2 } else { 32 };

/// A write with the hash of its key.
type Hashed<H> = (u64, TableId, Key, Version<H>);
type Writes<H> = Vec<Hashed<H>>;
type NewKeys = Vec<NewKey>;

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
            let hashed = |(table, key, version): (TableId, Key, Version<H>)| {
                (hash_bytes(&key), table, key, version)
            };
            self.warm(writes.iter().map(|(table, key, _)| (*table, key)));
            let new_keys = self.put_part(version, writes.into_iter().map(hashed));
            return self.put_in_order(&Sequential, new_keys);
        }
        let by_shard = partition(writes, parts);
        let new_keys: Vec<_> = (0..parts).map(|_| Mutex::new(NewKeys::new())).collect();
        pool.run(parts, &|part| {
            let writes = std::mem::take(&mut *lock(&by_shard[part]));
            self.warm(writes.iter().map(|(_, table, key, _)| (*table, key)));
            *lock(&new_keys[part]) = self.put_part(version, writes.into_iter());
        });
        let new_keys = new_keys.into_iter().flat_map(|part| std::mem::take(&mut *lock(&part)));
        self.put_in_order(pool, new_keys.collect());
    }

    /// Applies writes whose keys are in shards that no other job writes to, and returns the keys
    /// that are new.
    fn put_part(
        &self,
        version: SnapshotVersion,
        writes: impl ExactSizeIterator<Item = Hashed<H>>,
    ) -> NewKeys {
        let mut new_keys = NewKeys::with_capacity(writes.len());
        let mut garbage = Vec::with_capacity(writes.len());
        for (hash, id, key, version) in writes {
            let left = self.tables.table_to_write(id).put(hash, &key, version);
            if left.is_new {
                new_keys.push((id, key.clone()));
            }
            if left.is_garbage {
                garbage.push((id, key));
            }
        }
        if !garbage.is_empty() {
            self.garbage.push(version, garbage);
        }
        new_keys
    }

    fn put_in_order(&self, pool: &dyn Pool, mut new_keys: NewKeys) {
        new_keys.sort_unstable();
        let parts = parts_for(pool, new_keys.len());
        let part_len = new_keys.len().div_ceil(parts).max(1);
        let insert = |keys: &[NewKey]| {
            for of_table in keys.chunk_by(|(a, _), (b, _)| a == b) {
                self.tables.table_to_write(of_table[0].0).order.insert(of_table);
            }
        };
        if parts == 1 {
            return insert(&new_keys);
        }
        let by_key: Vec<_> = new_keys.chunks(part_len).collect();
        pool.run(by_key.len(), &|part| insert(by_key[part]));
    }

    /// Applies one write, and says if there is something to reclaim later.
    pub(super) fn put_one(&self, id: TableId, key: Key, version: Version<H>) -> Option<Garbage> {
        let table = self.tables.table_to_write(id);
        let left = table.put(hash_bytes(&key), &key, version);
        if left.is_new {
            table.order.insert(&[(id, key.clone())]);
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
