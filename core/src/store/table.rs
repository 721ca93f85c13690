//! One table: its records by hash and by order.
//!
//! A record is the key with its chain of versions behind a lock of its own. Two indexes lead to it:
//! a hash table, for reads and writes of one key, and an ordered index, for scans, which changes
//! only when a key comes or goes.
//!
//! ```text
//!   hash of key -> shard (lock, hash table) ---.
//!                                              +--> record: key, lock, chain of versions
//!   key order   -> run (lock, B-tree) ---------'
//! ```
//!
//! Measured (`benches/store.rs`, a million keys of 12 bytes on a loaded machine): a random read
//! through the B-tree alone takes 950 ns and through the hash table 245 ns, most of it cache
//! misses. The hash table costs 16 bytes a key at its fullest and 32 after it has doubled.
//!
//! Invariants, whoever runs at the same time:
//! - a record is in the hash table before it is in the order, and leaves it first;
//! - a version is pushed to a record only while its shard is locked, for reading at least, and a
//!   record leaves only while its shard is locked for writing: nothing is written to a record that
//!   has left.
//!
//! Locks are taken in the order shard, record, and an index's lock is never held with another's.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use super::chain::{Chain, Pushed};
use super::order::OrderedIndex;
use super::{Header, Version, read, write};
use crate::hash::{HashTable, hash_bytes};
use crate::ids::SnapshotVersion;
use crate::key::Key;

/// Shards of a table's hash table. Enough that cores seldom meet in one, and that one of ten
/// million keys grows in a millisecond; few enough that an empty table is 8 KiB.
pub(super) const HASH_SHARDS: usize = 128;

/// A key and its versions.
#[derive(Debug)]
pub(super) struct Record<H> {
    key: Key,
    chain: RwLock<Chain<H>>,
}

/// The records of one table.
#[derive(Debug)]
pub(super) struct Table<H> {
    shards: Box<[Shard<H>]>,
    pub(super) order: OrderedIndex<H>,
}

// A cache line each, so that locking one shard does not slow down its neighbours.
#[derive(Debug)]
#[repr(align(64))]
struct Shard<H> {
    slots: RwLock<HashTable<Slot<H>>>,
    /// What the shard's records take, for [`Table::memory_bytes`].
    bytes: AtomicUsize,
}

/// The hash stands beside the record, so that growing the hash table does not visit the records.
#[derive(Debug)]
struct Slot<H> {
    hash: u64,
    record: Arc<Record<H>>,
}

/// What [`Table::put`] did.
#[derive(Debug)]
pub(super) struct Written<H> {
    /// The record, if something is left to do with it.
    pub record: Option<Arc<Record<H>>>,
    /// Whether the key is new, so that it must be put in order.
    pub is_new: bool,
    /// Whether there is now something to reclaim once every reader sees this version.
    pub is_garbage: bool,
}

impl<H> Record<H> {
    pub(super) fn key(&self) -> &Key {
        &self.key
    }
}

impl<H: Header> Record<H> {
    /// The newest version that a reader at `at` sees.
    pub(super) fn visible(&self, at: SnapshotVersion) -> Option<Version<H>> {
        read(&self.chain).visible(at).cloned()
    }

    /// An estimate of the bytes of a record with one version and of its entries in both indexes.
    fn bytes(&self) -> usize {
        // Two thirds full on average, both of them.
        const INDEX_BYTES: usize = (size_of::<(Key, usize)>() + size_of::<(u64, usize)>()) * 3 / 2;
        const ARC_COUNTS: usize = 2 * size_of::<usize>();
        ARC_COUNTS + size_of::<Self>() + INDEX_BYTES + 2 * self.key.heap_bytes()
    }
}

impl<H: Header> Table<H> {
    pub(super) fn new() -> Self {
        let shard = || Shard { slots: RwLock::default(), bytes: AtomicUsize::new(0) };
        let shards = std::iter::repeat_with(shard).take(HASH_SHARDS).collect();
        Self { shards, order: OrderedIndex::default() }
    }

    /// Which shard a hash belongs to. The table inside the shard uses the lowest and highest bits.
    pub(super) fn shard_of(hash: u64) -> usize {
        (hash >> 40) as usize % HASH_SHARDS
    }

    /// Calls `look` with the newest version of a key that a reader at `at` sees.
    pub(super) fn with_visible<R>(
        &self,
        key: &[u8],
        at: SnapshotVersion,
        look: impl FnOnce(&Version<H>) -> R,
    ) -> Option<R> {
        let hash = hash_bytes(key);
        let slots = read(&self.shards[Self::shard_of(hash)].slots);
        let slot = slots.find(hash, |slot| slot.record.key.as_bytes() == key)?;
        read(&slot.record.chain).visible(at).map(look)
    }

    /// Writes a version. A new key is not in order yet.
    pub(super) fn put(&self, hash: u64, key: Key, version: Version<H>) -> Written<H> {
        let shard = &self.shards[Self::shard_of(hash)];
        let is_deletion = version.value.is_none();
        let is_key = |slot: &Slot<H>| slot.record.key == key;
        if let Some(slot) = read(&shard.slots).find(hash, is_key) {
            return shard.push(&slot.record, version);
        }
        let mut slots = write(&shard.slots);
        // Another writer may have been faster between the two locks.
        if let Some(slot) = slots.find(hash, is_key) {
            return shard.push(&slot.record, version);
        }
        let value_bytes = version.value_bytes();
        let record = Arc::new(Record { key, chain: RwLock::new(Chain::new(version)) });
        shard.bytes.fetch_add(record.bytes() + value_bytes, Ordering::Relaxed);
        slots.insert_unique(hash, Slot { hash, record: record.clone() }, |slot| slot.hash);
        Written { record: Some(record), is_new: true, is_garbage: is_deletion }
    }

    /// Takes away what no reader at `floor` or later sees of a record, and returns how many
    /// versions went.
    pub(super) fn reclaim(&self, record: &Arc<Record<H>>, floor: SnapshotVersion) -> usize {
        let hash = hash_bytes(&record.key);
        let shard = &self.shards[Self::shard_of(hash)];
        let (truncated, is_gone) = {
            let mut chain = write(&record.chain);
            (chain.truncate(floor), chain.is_gone(floor))
        };
        shard.bytes.fetch_sub(truncated.bytes, Ordering::Relaxed);
        let is_removed = is_gone && shard.remove(hash, record, floor);
        if is_removed {
            self.order.remove(record);
        }
        truncated.versions + usize::from(is_removed)
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| read(&shard.slots).len()).sum()
    }

    /// An estimate of the memory that keys, versions and values take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Removes every key.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            *write(&shard.slots) = HashTable::new();
            shard.bytes.store(0, Ordering::Relaxed);
        }
        self.order.clear();
    }
}

impl<H: Header> Shard<H> {
    /// Adds a version to a record of this shard, which the caller has locked.
    fn push(&self, record: &Arc<Record<H>>, version: Version<H>) -> Written<H> {
        let is_deletion = version.value.is_none();
        let (value_bytes, older_bytes) = (version.value_bytes(), version.older_bytes());
        let is_superseding = match write(&record.chain).push(version) {
            Pushed::Superseded => {
                self.bytes.fetch_add(older_bytes, Ordering::Relaxed);
                true
            }
            Pushed::Replaced { value_bytes: before } => {
                self.bytes.fetch_add(value_bytes, Ordering::Relaxed);
                self.bytes.fetch_sub(before, Ordering::Relaxed);
                false
            }
        };
        let is_garbage = is_superseding || is_deletion;
        Written { record: is_garbage.then(|| record.clone()), is_new: false, is_garbage }
    }

    /// Removes a record if it is still in the shard and still deleted for all readers.
    fn remove(&self, hash: u64, record: &Arc<Record<H>>, floor: SnapshotVersion) -> bool {
        let mut slots = write(&self.slots);
        let Ok(slot) = slots.find_entry(hash, |slot| Arc::ptr_eq(&slot.record, record)) else {
            return false;
        };
        if !read(&record.chain).is_gone(floor) {
            return false;
        }
        slot.remove();
        self.bytes.fetch_sub(record.bytes(), Ordering::Relaxed);
        true
    }
}
