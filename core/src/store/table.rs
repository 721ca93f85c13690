//! One table: its rows by hash and its keys in order.
//!
//! A row is a key with its version chain. It is in a hash table that is divided into shards, each
//! with a lock; reads and writes of single keys use only this table. An ordered index contains the
//! keys for scans. It changes only when a key is inserted or removed.
//!
//! ```text
//!   hash of key -> shard: lock, [ key, chain of versions | ... ]
//!                                  ^ looked up key by key
//!   key order   -> run:   lock, [ key < key < key ... ]          (scans)
//! ```
//!
//! The alternative design would store the rows in the runs themselves, without a hash table.
//! `benches/store.rs` measures both. The results below are for a million keys of 12 bytes, on a
//! machine that was busy with other work, so only the ratios are meaningful:
//!
//! | design | random read | scan, per row |
//! |---|---|---|
//! | rows in the runs of an ordered index | 1,890 ns | 32 ns |
//! | rows in a hash table, keys in an ordered index | 490 ns | 380 ns |
//!
//! A transaction accesses single keys far more often than it scans, and most scans are short. Rows
//! are therefore found by hash: an access costs a quarter, at the expense of long ordered scans,
//! which run outside the event loop. Nearly all of either cost is cache misses. Long scans that
//! need no order use the hash table directly ([`super::unordered_scan`]). A key takes 116 bytes in
//! addition to its value. The measurement predates the present hash table.
//!
//! Invariants under concurrency:
//! - A key is in the hash table before it is in the ordered index, and in the ordered index before
//!   a scan reads its first version.
//! - A key is removed from the ordered index only while its run is locked and it is not in the hash
//!   table. A key that is inserted again concurrently is therefore not lost.
//!
//! A thread that holds a run may lock a shard, never the other way round.

use std::sync::TryLockError;
use std::sync::atomic::Ordering;

use super::chain::{Chain, PushOutcome, Truncated};
use super::cold::Tier;
use super::cold_placeholder::is_cold;
use super::order::OrderedIndex;
use super::rows::{Place, Rows};
use super::zigzag::{NeededVersions, OverwriteContext};
use super::{Version, read, write};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::{HashedKey, Key};
use crate::pool::Sequential;
use crate::sync::atomic::AtomicUsize;
use crate::sync::{RwLock, RwLockReadGuard};

/// The number of shards of a table's hash table. With this number, cores seldom need the same
/// shard, and a shard of a table with ten million keys grows in a millisecond. An empty table takes
/// 16 KiB.
pub(super) const HASH_SHARDS: usize = 256;

/// The rows of one table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) shards: Box<[Shard]>,
    pub(super) order: OrderedIndex,
}

// One cache line for each, so that locking one shard does not slow down adjacent ones, and a single
// miss loads all of it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard {
    pub(super) rows: RwLock<Rows<Row>>,
    /// The memory of the shard's rows, for [`Table::memory_bytes`]. Changed while they are locked.
    bytes: AtomicUsize,
}

impl Shard {
    /// Adds to and subtracts from the memory of the rows. They must be locked for writing; no other
    /// thread changes the counter then, so no atomic read-modify-write is needed.
    pub(super) fn count_bytes(&self, more: usize, less: usize) {
        let bytes = self.bytes.load(Ordering::Relaxed) + more;
        self.bytes.store(bytes.wrapping_sub(less), Ordering::Relaxed);
    }
}

/// A key and its versions: one cache line, with headers of eight bytes.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) chain: Chain,
}

/// A shard that is locked for reading.
pub(super) struct ShardRows<'a>(RwLockReadGuard<'a, Rows<Row>>);

impl ShardRows<'_> {
    /// The place at the ideal position of this hash.
    #[inline]
    pub(super) fn place(&self, hash: u64) -> Place {
        self.0.place(hash)
    }

    /// A row that may have this hash, found without reading the row. Almost always the row with
    /// this hash, if there is one.
    #[inline]
    pub(super) fn candidate(&self, hash: u64) -> Option<&Row> {
        self.0.candidate(hash)
    }
}

/// The follow-up work that [`Table::put`] leaves for a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IndexUpdate {
    /// The key is new and must be added to the order.
    pub is_new: bool,
    /// The write is a deletion.
    pub is_deletion: bool,
    /// There are versions to reclaim, once every reader sees this one, that the next write will not
    /// overwrite.
    pub has_more: bool,
    /// There is an older version.
    pub is_superseding: bool,
    /// The previous newest value is not in memory.
    pub was_cold: bool,
}

impl Row {
    /// An estimate of the bytes of a row with one version, without its value, including its key in
    /// the ordered index.
    pub(super) fn bytes(&self) -> usize {
        // On average, the runs are two thirds full and half of the places are taken.
        const ORDER_BYTES: usize = size_of::<Key>() * 3 / 2;
        size_of::<Self>() + 2 * size_of::<Place>() + ORDER_BYTES + 2 * self.key.heap_bytes()
    }
}

impl Table {
    pub(super) fn new() -> Self {
        let shard = || Shard { rows: RwLock::default(), bytes: AtomicUsize::new(0) };
        let shards = std::iter::repeat_with(shard).take(HASH_SHARDS).collect();
        Self { shards, order: OrderedIndex::default() }
    }

    /// The shard of a hash. The hash table of the shard uses the lowest 32 bits.
    #[inline]
    pub(super) fn shard_of(hash: u64) -> usize {
        (hash >> 40) as usize % HASH_SHARDS
    }

    /// Calls `look` with the newest version of a key that is visible at `at`. Its value may be a
    /// placeholder.
    #[inline]
    pub(super) fn with_head<R>(
        &self,
        key: &HashedKey,
        at: SnapshotVersion,
        look: impl FnOnce(&Version) -> R,
    ) -> Option<R> {
        let rows = read(&self.shards[Self::shard_of(key.hash())].rows);
        rows.find(key.hash(), |row| row.key == *key.key())?.chain.visible(at).map(look)
    }

    /// Like [`Table::with_head`], for a caller that reads the value, which counts as used. If the
    /// value is not in memory, returns `look` and the version with its placeholder.
    #[inline]
    pub(super) fn with_visible<R, L: FnOnce(&Version) -> R>(
        &self,
        key: &HashedKey,
        at: SnapshotVersion,
        look: L,
    ) -> Option<Result<R, (L, Version)>> {
        let rows = read(&self.shards[Self::shard_of(key.hash())].rows);
        let row = rows.find(key.hash(), |row| row.key == *key.key())?;
        let version = row.chain.visible(at)?;
        match &version.value {
            Some(value) if value.is_cold() => return Some(Err((look, version.clone()))),
            Some(value) => value.on_use(),
            None => {}
        }
        Some(Ok(look(version)))
    }

    /// Calls `look` with the row of a key.
    #[inline]
    pub(super) fn with_row<R>(
        &self,
        hash: u64,
        key: &Key,
        look: impl FnOnce(&Row) -> R,
    ) -> Option<R> {
        let rows = read(&self.shards[Self::shard_of(hash)].rows);
        rows.find(hash, |row| row.key == *key).map(look)
    }

    /// The byte count of a hash's shard. Loads its cache line without taking its lock.
    pub(super) fn shard_bytes(&self, hash: u64) -> usize {
        self.shards[Self::shard_of(hash)].bytes.load(Ordering::Relaxed)
    }

    /// The shard of a hash, unless a writer holds it.
    pub(super) fn try_shard(&self, hash: u64) -> Option<ShardRows<'_>> {
        match self.shards[Self::shard_of(hash)].rows.try_read() {
            Ok(rows) => Some(ShardRows(rows)),
            Err(TryLockError::Poisoned(rows)) => Some(ShardRows(rows.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Writes a version, and removes versions that are not needed if `over` is given. Passes a
    /// replaced version of the same number to `replaced`. Does not add a new key to the order.
    #[inline]
    pub(super) fn put(
        &self,
        (hash, key): (u64, &Key),
        version: Version,
        mut over: Option<&mut OverwriteContext>,
        replaced: impl FnOnce(Version),
    ) -> IndexUpdate {
        let shard = &self.shards[Self::shard_of(hash)];
        let is_deletion = version.value.is_none();
        let (value_bytes, older_bytes) = (version.value_bytes(), version.older_bytes());
        let mut rows = write(&shard.rows);
        let Some(row) = rows.find_mut(hash, |row| row.key == *key) else {
            let row = Row { key: key.clone(), chain: Chain::new(version) };
            shard.count_bytes(row.bytes() + value_bytes, 0);
            rows.insert_unique(hash, row);
            return IndexUpdate { is_new: true, is_deletion, ..IndexUpdate::default() };
        };
        let was_cold = is_cold(row.chain.newest());
        if row.chain.newest().version == version.version {
            let before = row.chain.replace(version);
            shard.count_bytes(value_bytes, before.value_bytes());
            replaced(before);
            return IndexUpdate { is_deletion, was_cold, ..IndexUpdate::default() };
        }
        let pushed = match &mut over {
            Some(OverwriteContext { needed, copied }) => {
                row.chain.overwrite(version, *needed, copied)
            }
            None => row.chain.push(version),
        };
        match pushed {
            PushOutcome::Superseded => shard.count_bytes(older_bytes, 0),
            PushOutcome::Overwrote { bytes } => shard.count_bytes(older_bytes, bytes),
        }
        // Versions that the next write overwrites need not be reclaimed.
        let has_more = over.is_none_or(|over| row.chain.has_more(over.needed));
        IndexUpdate { is_new: false, is_deletion, has_more, is_superseding: true, was_cold }
    }

    /// Undoes [`Table::put`] of a key. `replaced` returns the version that it replaced, if any.
    /// Overwritten versions are not restored, because no reader needs them. Returns the version of
    /// a deletion that is the newest again.
    pub(super) fn take_back(
        &self,
        (hash, key): (u64, &Key),
        update: IndexUpdate,
        replaced: impl FnOnce() -> Version,
    ) -> Option<SnapshotVersion> {
        let shard = &self.shards[Self::shard_of(hash)];
        let mut rows = write(&shard.rows);
        let is = |row: &Row| row.key == *key;
        if update.is_new {
            let row = rows.remove(hash, is, |row| hash_bytes(&row.key));
            let row = row.expect("a written row exists");
            shard.count_bytes(0, row.bytes() + row.chain.newest().value_bytes());
            return None;
        }
        let row = rows.find_mut(hash, is).expect("a written row exists");
        if !update.is_superseding {
            let before = replaced();
            let bytes = before.value_bytes();
            shard.count_bytes(bytes, row.chain.replace(before).value_bytes());
            return None;
        }
        let taken = row.chain.pop().expect("superseded versions are retained");
        shard.count_bytes(0, taken.older_bytes());
        let newest = row.chain.newest();
        newest.value.is_none().then_some(newest.version)
    }

    /// Removes the versions of a key that are not needed and returns their number. Tells the cold
    /// store about those of which it has copies.
    #[inline]
    pub(super) fn reclaim(
        &self,
        (id, hash, key): (TableId, u64, &Key),
        needed: NeededVersions,
        tier: Option<&Tier>,
    ) -> usize {
        let shard = &self.shards[Self::shard_of(hash)];
        let (truncated, is_gone) = {
            let mut rows = write(&shard.rows);
            let is = |row: &Row| row.key == *key;
            let Some(row) = rows.find_mut(hash, is) else { return 0 };
            let truncated = row.chain.truncate(needed);
            let is_gone = row.chain.is_gone(needed.floor);
            let row_bytes = if is_gone { row.bytes() } else { 0 };
            if is_gone {
                rows.remove(hash, is, |row| hash_bytes(&row.key));
            }
            shard.count_bytes(0, truncated.bytes() + row_bytes);
            (truncated, is_gone)
        };
        if is_gone {
            // A key that is still pending would otherwise be added to the order afterwards.
            self.order.settle(&Sequential);
            self.leave_order(hash, key);
        }
        if let Some(tier) = tier {
            drop_cold_copies(tier, (id, key), &truncated);
        }
        // The values are freed on return, when the shard is no longer locked.
        truncated.len() + usize::from(is_gone)
    }

    /// Removes all versions after this one. Tells the cold store about removed copies and the rows
    /// left with a placeholder. Returns the deletions that are the newest again: reclamation may
    /// have visited them while they were not, and skipped them.
    pub(super) fn retreat_to(
        &self,
        version: SnapshotVersion,
        tier: Option<(TableId, &Tier)>,
    ) -> Vec<(SnapshotVersion, u64, Key)> {
        self.order.settle(&Sequential);
        let mut deletions = Vec::new();
        for shard in &self.shards {
            let mut gone = Vec::new();
            {
                let mut rows = write(&shard.rows);
                let is_newer = |row: &&Row| row.chain.newest().version > version;
                let newer: Vec<Key> =
                    rows.iter().filter(is_newer).map(|row| row.key.clone()).collect();
                for key in newer {
                    let hash = hash_bytes(&key);
                    let is = |row: &Row| row.key == key;
                    let row = rows.find_mut(hash, is).expect("the row was found just now");
                    let was_cold = is_cold(row.chain.newest());
                    let (bytes, copied) = row.chain.retreat_to(version);
                    let is_empty = row.chain.newest().version > version;
                    if let Some((id, tier)) = tier {
                        let is_left_cold = !is_empty && is_cold(row.chain.newest());
                        tier.on_retreat((id, hash, &key), (was_cold, is_left_cold), copied);
                    }
                    let row_bytes = if is_empty { row.bytes() } else { 0 };
                    shard.count_bytes(0, bytes + row_bytes);
                    let newest = row.chain.newest();
                    if is_empty {
                        rows.remove(hash, is, |row| hash_bytes(&row.key));
                        gone.push(key);
                    } else if newest.value.is_none() {
                        deletions.push((newest.version, hash, key));
                    }
                }
            }
            for key in gone {
                self.leave_order(hash_bytes(&key), &key);
            }
        }
        deletions
    }

    /// Removes a key from the order, unless it exists again.
    pub(super) fn leave_order(&self, hash: u64, key: &Key) {
        self.order.remove_unless(key, || self.contains(hash, key));
    }

    fn contains(&self, hash: u64, key: &Key) -> bool {
        let rows = read(&self.shards[Self::shard_of(hash)].rows);
        rows.find(hash, |row| row.key == *key).is_some()
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| read(&shard.rows).len()).sum()
    }

    /// An estimate of the memory of keys, versions and values.
    pub(super) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Removes all keys.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            *write(&shard.rows) = Rows::default();
            shard.bytes.store(0, Ordering::Relaxed);
        }
        self.order.clear();
    }
}

/// Tells the cold store about the copies of versions that are gone.
#[cold]
fn drop_cold_copies(tier: &Tier, (id, key): (TableId, &Key), truncated: &Truncated) {
    tier.on_gone(id, key, truncated.copied());
}
