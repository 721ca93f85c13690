//! Group prefetching: loading many rows into the CPU cache in parallel.
//!
//! Reading a row of a large table causes three cache misses: its place in the hash table, the row,
//! and the value. A program that reads thirty rows one after the other waits for ninety misses of
//! about a hundred nanoseconds each. Most of its rows are known before it runs. If they are looked
//! up together, with no dependent step in between, the misses of many rows overlap.
//!
//! Taking a lock waits for all earlier loads, so the locks of a group are taken before its first
//! lookup. They are only tried. A row that a writer holds is left for the program to load, and
//! holding several locks cannot cause a deadlock.
//!
//! Values that are not in memory at all ([`super::cold`]) are fetched in groups too.

use std::hint::black_box;

use super::Store;
use super::table::Table;
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;

/// The number of rows that are prefetched in parallel: about the number of misses that a core can
/// track.
pub(super) const WARM_GROUP: usize = 32;

/// The number of bytes of a value that are prefetched. Most rows are shorter. A program seldom
/// reads all of a long row, and the processor itself prefetches the rest when its start is read.
const VALUE_BYTES_MAX: usize = 128;

const CACHE_LINE: usize = 64;

/// Collects keys, and prefetches their rows as soon as a group is full.
#[derive(Debug)]
pub struct CachePrefetcher<'a> {
    store: &'a Store,
    /// The version at which the rows will be read.
    at: SnapshotVersion,
    places: Vec<Place<'a>>,
    /// The keys of the group, if values may not be in memory.
    keys: Vec<(TableId, Key)>,
}

/// A row to prefetch: its table and the hash of its key. Another row with the same hash may be
/// prefetched instead, which is rare and harmless.
type Place<'a> = (&'a Table, u64);

impl Store {
    /// Prefetches the rows of these keys into the CPU cache.
    pub fn warm<'k>(&self, keys: impl IntoIterator<Item = (TableId, &'k Key)>) {
        self.warm_hashed(keys.into_iter().map(|(table, key)| (table, hash_bytes(key))));
    }

    /// Prefetches the rows of these keys for a reader at `at`, including values that are not in
    /// memory.
    pub fn warm_at<'k>(
        &self,
        at: SnapshotVersion,
        keys: impl IntoIterator<Item = (TableId, &'k Key)>,
    ) {
        let mut prefetcher = CachePrefetcher::new(self, at);
        keys.into_iter().for_each(|(table, key)| prefetcher.add(table, key));
        prefetcher.fetch();
    }

    /// Prefetches the rows of keys whose hashes are known.
    pub(crate) fn warm_hashed(&self, mut keys: impl Iterator<Item = (TableId, u64)>) {
        // A plain loop, because the compiler does not always inline the steps of `filter_map`.
        let mut next = || {
            loop {
                let (id, hash) = keys.next()?;
                if let Some(table) = self.tables.table(id) {
                    return Some((table, hash));
                }
            }
        };
        while let Some(first) = next() {
            let mut group = [first; WARM_GROUP];
            let mut count = 1;
            while count < WARM_GROUP
                && let Some(place) = next()
            {
                group[count] = place;
                count += 1;
            }
            fetch(&group[..count]);
        }
    }
}

impl<'a> CachePrefetcher<'a> {
    /// Creates a prefetcher for keys of `store` that will be read at `at`.
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

    /// Prefetches the rows of the keys added so far. Affects only the duration of later reads.
    pub fn fetch(&mut self) {
        if !self.keys.is_empty() {
            self.store.fetch_for(&self.keys, self.at);
            self.keys.clear();
        }
        fetch(&self.places);
        self.places.clear();
    }
}

/// Prefetches a group of rows, one kind of miss at a time, so that no lookup waits for its own
/// previous load.
///
/// No loop branches on a value that it loads itself: a processor continues past loads that miss its
/// caches, but not past a mispredicted branch.
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
