//! Fetching many rows from memory side by side.
//!
//! A row of a large table is three cache misses away: its place in the hash table, the row, the
//! value. A program that reads thirty rows one after the other waits for ninety, each some hundred
//! nanoseconds. What it will read is mostly known before it runs; looked up together, with nothing
//! between that has to wait, the misses of many rows overlap (group prefetching).
//!
//! Taking a lock waits for all loads before it, so the locks of a group are taken before its first
//! look-up. They are only tried: a row that a writer has is left for the program to fetch, and
//! holding several can't end in a deadlock.

use std::hint::black_box;

use super::{Header, Store};
use crate::hash::hash_bytes;
use crate::ids::TableId;
use crate::key::Key;

/// So many rows are fetched side by side: about as many misses as a core keeps track of.
pub(super) const WARM_GROUP: usize = 16;

/// How much of a value is fetched. Most rows are shorter; of a long one a program seldom reads all,
/// and the processor itself goes on with what is read from its start.
const VALUE_BYTES_MAX: usize = 128;

const CACHE_LINE: usize = 64;

/// Gathers keys, and fetches their rows from memory as soon as there are enough of them.
#[derive(Debug)]
pub struct Warmer<'a, H> {
    store: &'a Store<H>,
    keys: [Option<(TableId, Key)>; WARM_GROUP],
    count: usize,
}

impl<H: Header> Store<H> {
    /// Fetches the rows of these keys from memory.
    pub fn warm<'k>(&self, keys: impl IntoIterator<Item = (TableId, &'k Key)>) {
        let mut warmer = Warmer::new(self);
        keys.into_iter().for_each(|(table, key)| warmer.add(table, key));
        warmer.fetch();
    }
}

impl<'a, H: Header> Warmer<'a, H> {
    /// Gathers keys of `store`.
    pub fn new(store: &'a Store<H>) -> Self {
        Self { store, keys: [const { None }; WARM_GROUP], count: 0 }
    }

    /// Adds a key, which need not exist.
    pub fn add(&mut self, table: TableId, key: &[u8]) {
        if self.count == WARM_GROUP {
            self.fetch();
        }
        self.keys[self.count] = Some((table, Key::from(key)));
        self.count += 1;
    }

    /// Fetches the rows of the keys that were added. Changes nothing but how long a read takes.
    pub fn fetch(&mut self) {
        let keys = &self.keys[..std::mem::take(&mut self.count)];
        let mut places = [const { None }; WARM_GROUP];
        let mut touched = 0usize;
        for (place, (table, key)) in places.iter_mut().zip(keys.iter().flatten()) {
            let Some(table) = self.store.tables.table(*table) else { continue };
            let hash = hash_bytes(key);
            touched ^= table.shard_bytes(hash);
            *place = Some((table, hash, key));
        }
        let mut shards = [const { None }; WARM_GROUP];
        for (shard, (table, hash, key)) in shards.iter_mut().zip(places.iter().flatten()) {
            *shard = table.try_shard(*hash).map(|shard| (shard, *hash, *key));
        }
        // One kind of miss at a time, so that no look-up waits for what it has just asked for.
        let mut rows = [const { None }; WARM_GROUP];
        for (row, (shard, hash, key)) in rows.iter_mut().zip(shards.iter().flatten()) {
            *row = shard.first_candidate(*hash).map(|row| (row, *key));
        }
        let mut chains = [const { None }; WARM_GROUP];
        for (chain, (row, key)) in chains.iter_mut().zip(rows.iter().flatten()) {
            *chain = row.chain_of(key);
        }
        for chain in chains.iter().flatten() {
            touched ^= chain.older().map_or(0, |version| version.version.0 as usize);
            let Some(value) = &chain.newest().value else { continue };
            let lines = value[..value.len().min(VALUE_BYTES_MAX)].iter().step_by(CACHE_LINE);
            touched ^= lines.fold(0, |sum, &byte| sum ^ usize::from(byte));
        }
        black_box(touched);
    }
}
