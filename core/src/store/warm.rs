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
//!
//! Values that are not in memory at all ([`super::cold`]) come many at a time too.

use std::hint::black_box;

use super::Store;
use super::table::Table;
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;

/// So many rows are fetched side by side: about as many misses as a core keeps track of.
pub(super) const WARM_GROUP: usize = 32;

/// How much of a value is fetched. Most rows are shorter; of a long one a program seldom reads all,
/// and the processor itself goes on with what is read from its start.
const VALUE_BYTES_MAX: usize = 128;

const CACHE_LINE: usize = 64;

/// Gathers keys, and fetches their rows from memory as soon as there are enough of them.
#[derive(Debug)]
pub struct Warmer<'a> {
    store: &'a Store,
    /// The version that those read for whom rows are fetched.
    at: SnapshotVersion,
    places: Vec<Place<'a>>,
    /// Their keys, where values may not be in memory.
    keys: Vec<(TableId, Key)>,
}

/// Where a row is looked for: its table, and the hash of its key. What else has this hash in the
/// table is fetched in vain, which is seldom.
type Place<'a> = (&'a Table, u64);

impl Store {
    /// Fetches the rows of these keys from memory.
    pub fn warm<'k>(&self, keys: impl IntoIterator<Item = (TableId, &'k Key)>) {
        self.warm_hashed(keys.into_iter().map(|(table, key)| (table, hash_bytes(key))));
    }

    /// Fetches the rows of these keys for a reader at `at`, from wherever they are.
    pub fn warm_at<'k>(
        &self,
        at: SnapshotVersion,
        keys: impl IntoIterator<Item = (TableId, &'k Key)>,
    ) {
        let mut warmer = Warmer::new(self, at);
        keys.into_iter().for_each(|(table, key)| warmer.add(table, key));
        warmer.fetch();
    }

    /// Fetches the rows of keys from memory whose hashes are known.
    pub(crate) fn warm_hashed(&self, keys: impl Iterator<Item = (TableId, u64)>) {
        let mut places = keys.filter_map(|(id, hash)| Some((self.tables.table(id)?, hash)));
        while let Some(first) = places.next() {
            let mut group = [first; WARM_GROUP];
            let mut count = 1;
            for (place, next) in group[1..].iter_mut().zip(&mut places) {
                *place = next;
                count += 1;
            }
            fetch(&group[..count]);
        }
    }
}

impl<'a> Warmer<'a> {
    /// Gathers keys of `store` that will be read at `at`.
    pub fn new(store: &'a Store, at: SnapshotVersion) -> Self {
        Self { store, at, places: Vec::with_capacity(WARM_GROUP), keys: Vec::new() }
    }

    /// Adds a key, which need not exist.
    #[inline]
    pub fn add(&mut self, table: TableId, key: &[u8]) {
        let Some(rows) = self.store.tables.table(table) else { return };
        if self.places.len() == WARM_GROUP {
            self.fetch();
        }
        self.places.push((rows, hash_bytes(key)));
        if self.store.has_cold() {
            self.keys.push((table, Key::from(key)));
        }
    }

    /// Fetches the rows of the keys that were added. Changes nothing but how long a read takes.
    pub fn fetch(&mut self) {
        if !self.keys.is_empty() {
            self.store.fetch_for(&self.keys, self.at);
            self.keys.clear();
        }
        fetch(&self.places);
        self.places.clear();
    }
}

/// Fetches a group of rows, one kind of miss at a time, so that no look-up waits for what it has
/// just asked for.
///
/// What a loop loads decides over no branch in the same loop: a processor goes on past loads that
/// miss its caches, but not past a branch that it guessed wrong.
fn fetch(places: &[Place<'_>]) {
    let mut touched = 0;
    for (table, hash) in places {
        touched ^= table.shard_bytes(*hash);
    }
    let mut shards = [const { None }; WARM_GROUP];
    for (shard, (table, hash)) in shards.iter_mut().zip(places) {
        *shard = table.try_shard(*hash);
    }
    for (shard, (_, hash)) in shards.iter().zip(places) {
        touched ^= shard.as_ref().map_or(0, |shard| shard.place(*hash).bits() as usize);
    }
    let mut rows = [None; WARM_GROUP];
    for (row, (shard, (_, hash))) in rows.iter_mut().zip(shards.iter().zip(places)) {
        *row = shard.as_ref().and_then(|shard| shard.candidate(*hash));
        touched ^= row.map_or(0, |row| row.chain.newest().version.0 as usize);
    }
    let mut values = [const { None }; WARM_GROUP];
    for (value, row) in values.iter_mut().zip(&rows[..places.len()]) {
        let Some(chain) = row.map(|row| &row.chain) else { continue };
        touched ^= chain.older().map_or(0, |version| version.version.0 as usize);
        *value = chain.newest().value.as_ref().filter(|value| !value.is_cold());
        touched ^= value.map_or(0, |value| value.len());
    }
    for value in values.into_iter().flatten() {
        let more = value[..value.len().min(VALUE_BYTES_MAX)].iter().skip(CACHE_LINE);
        let lines = more.step_by(CACHE_LINE);
        touched ^= lines.fold(0, |sum, &byte| sum ^ usize::from(byte));
    }
    black_box(touched);
}
