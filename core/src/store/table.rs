//! One table: its rows by hash and its keys in order.
//!
//! A row is a key with its chain of versions. It lives in a hash table, cut into shards with a lock
//! each; a read or write of one key goes there alone. Beside it an ordered index holds the keys,
//! for scans: it changes only when a key comes or goes.
//!
//! ```text
//!   hash of key -> shard: lock, [ key, chain of versions | ... ]
//!                                  ^ looked up key by key
//!   key order   -> run:   lock, [ key < key < key ... ]          (scans)
//! ```
//!
//! The other design would keep the rows in the runs themselves, without a hash table.
//! `benches/store.rs` measures both. With a million keys of 12 bytes, on a machine that was busy
//! with other work, so that the ratios count:
//!
//! | design | read at random | scan, a row |
//! |---|---|---|
//! | rows in the runs of an ordered index | 1,890 ns | 32 ns |
//! | rows in the hash table, keys in order beside it | 490 ns | 380 ns |
//!
//! A transaction reads and writes single keys far more often than it scans, and most scans are
//! short, so rows are found by hash: an access costs a quarter, and long scans in order, which run
//! beside the event loop, pay for it. Nearly all of either is cache misses. Long scans that need no
//! order go through the hash table itself ([`super::sweep`]). A key counts as 116 bytes beside
//! its value. The hash table was another one when that was measured.
//!
//! Invariants, whoever runs at the same time:
//! - a key is in the hash table before it is in the order, and in the order before the version that
//!   brought it is read by a scan;
//! - a key leaves the order only while its run is locked and it is not in the hash table, so that
//!   one that comes back meanwhile is not lost.
//!
//! A shard may be locked by one who holds a run, never the other way round.

use std::sync::TryLockError;
use std::sync::atomic::Ordering;

use super::chain::{Chain, Pushed, Truncated};
use super::cold::Tier;
use super::cold_mark::is_cold;
use super::order::OrderedIndex;
use super::point::{Kept, Over};
use super::rows::{Place, Rows};
use super::{Version, read, write};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::{HashedKey, Key};
use crate::pool::Sequential;
use crate::sync::atomic::AtomicUsize;
use crate::sync::{RwLock, RwLockReadGuard};

/// Shards of a table's hash table. Enough that cores seldom meet in one, and that one of ten
/// million keys grows in a millisecond; few enough that an empty table is 16 KiB.
pub(super) const HASH_SHARDS: usize = 256;

/// The rows of one table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) shards: Box<[Shard]>,
    pub(super) order: OrderedIndex,
}

// A cache line each, so that locking one shard does not slow down its neighbours, and one miss is
// enough for all of it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard {
    pub(super) rows: RwLock<Rows<Row>>,
    /// What the shard's rows take, for [`Table::memory_bytes`]. Changed while they are locked.
    bytes: AtomicUsize,
}

impl Shard {
    /// Counts what the rows take more, and less. Only while they are locked for writing: nobody
    /// else changes it then, so that it takes no atomic step.
    pub(super) fn count_bytes(&self, more: usize, less: usize) {
        let bytes = self.bytes.load(Ordering::Relaxed) + more;
        self.bytes.store(bytes.wrapping_sub(less), Ordering::Relaxed);
    }
}

/// A key and its versions: one cache line, for headers of eight bytes.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) chain: Chain,
}

/// A shard that is locked for reading.
pub(super) struct ShardRows<'a>(RwLockReadGuard<'a, Rows<Row>>);

impl ShardRows<'_> {
    /// What is in the place where a row of this hash should be.
    #[inline]
    pub(super) fn place(&self, hash: u64) -> Place {
        self.0.place(hash)
    }

    /// A row that may have this hash, without touching it: nearly always the one that has it, if
    /// there is one.
    #[inline]
    pub(super) fn candidate(&self, hash: u64) -> Option<&Row> {
        self.0.candidate(hash)
    }
}

/// What [`Table::put`] leaves to do with the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// The key is new and must be put in order.
    pub is_new: bool,
    /// What was written is a deletion.
    pub is_deletion: bool,
    /// There are versions to reclaim once every reader sees this one, which the next write does not
    /// overwrite.
    pub has_more: bool,
    /// There is an older version.
    pub is_superseding: bool,
    /// What was its newest value is not in memory.
    pub was_cold: bool,
}

impl Row {
    /// An estimate of the bytes of a row with one version, without the value, and of its key in the
    /// ordered index.
    fn bytes(&self) -> usize {
        // Two thirds of the order are full on average, and half of the places.
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

    /// Which shard a hash belongs to. The hash table in the shard uses the lowest 32 bits.
    pub(super) fn shard_of(hash: u64) -> usize {
        (hash >> 40) as usize % HASH_SHARDS
    }

    /// Calls `look` with the newest version of a key that a reader at `at` sees. In the place of
    /// the value there may be a mark.
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

    /// Does the same for one who looks at the value: it counts as used. Where it is not in memory,
    /// gives back `look` and the version, with a mark in the place of the value.
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
    pub(super) fn with_row<R>(
        &self,
        hash: u64,
        key: &Key,
        look: impl FnOnce(&Row) -> R,
    ) -> Option<R> {
        let rows = read(&self.shards[Self::shard_of(hash)].rows);
        rows.find(hash, |row| row.key == *key).map(look)
    }

    /// The bytes of the shard that a hash belongs to: to have its cache line, without its lock.
    pub(super) fn shard_bytes(&self, hash: u64) -> usize {
        self.shards[Self::shard_of(hash)].bytes.load(Ordering::Relaxed)
    }

    /// The shard that a hash belongs to, unless a writer has it.
    pub(super) fn try_shard(&self, hash: u64) -> Option<ShardRows<'_>> {
        match self.shards[Self::shard_of(hash)].rows.try_read() {
            Ok(rows) => Some(ShardRows(rows)),
            Err(TryLockError::Poisoned(rows)) => Some(ShardRows(rows.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Writes a version, and takes away what is not needed, where anything may go. One of the same
    /// number is given to `replaced`. A new key is not in order yet.
    pub(super) fn put(
        &self,
        (hash, key): (u64, &Key),
        version: Version,
        mut over: Option<&mut Over>,
        replaced: impl FnOnce(Version),
    ) -> Left {
        let shard = &self.shards[Self::shard_of(hash)];
        let is_deletion = version.value.is_none();
        let (value_bytes, older_bytes) = (version.value_bytes(), version.older_bytes());
        let mut rows = write(&shard.rows);
        let Some(row) = rows.find_mut(hash, |row| row.key == *key) else {
            let row = Row { key: key.clone(), chain: Chain::new(version) };
            shard.count_bytes(row.bytes() + value_bytes, 0);
            rows.insert_unique(hash, row);
            return Left { is_new: true, is_deletion, ..Left::default() };
        };
        let was_cold = is_cold(row.chain.newest());
        if row.chain.newest().version == version.version {
            let before = row.chain.replace(version);
            shard.count_bytes(value_bytes, before.value_bytes());
            replaced(before);
            return Left { is_deletion, was_cold, ..Left::default() };
        }
        let pushed = match &mut over {
            Some(Over { kept, copied }) => row.chain.overwrite(version, *kept, copied),
            None => row.chain.push(version),
        };
        match pushed {
            Pushed::Superseded => shard.count_bytes(older_bytes, 0),
            Pushed::Overwrote { bytes } => shard.count_bytes(older_bytes, bytes),
        }
        // What a write takes away need not be looked for.
        let has_more = over.is_none_or(|over| row.chain.has_more(over.kept));
        Left { is_new: false, is_deletion, has_more, is_superseding: true, was_cold }
    }

    /// Takes back what [`Table::put`] did to a key; `replaced` is what it gave away, if it did.
    /// What was overwritten stays away: no reader needs it. Returns the version of a deletion that
    /// is the newest again.
    pub(super) fn take_back(
        &self,
        (hash, key): (u64, &Key),
        left: Left,
        replaced: impl FnOnce() -> Version,
    ) -> Option<SnapshotVersion> {
        let shard = &self.shards[Self::shard_of(hash)];
        let mut rows = write(&shard.rows);
        let is = |row: &Row| row.key == *key;
        if left.is_new {
            let row = rows.remove(hash, is, |row| hash_bytes(&row.key));
            let row = row.expect("what was written is there");
            shard.count_bytes(0, row.bytes() + row.chain.newest().value_bytes());
            return None;
        }
        let row = rows.find_mut(hash, is).expect("what was written is there");
        if !left.is_superseding {
            let before = replaced();
            let bytes = before.value_bytes();
            shard.count_bytes(bytes, row.chain.replace(before).value_bytes());
            return None;
        }
        let taken = row.chain.pop().expect("what was superseded is kept");
        shard.count_bytes(0, taken.older_bytes());
        let newest = row.chain.newest();
        newest.value.is_none().then_some(newest.version)
    }

    /// Takes away what is not needed of a key, and returns how many versions went. Of those that
    /// the cold store has copies of, it is told.
    pub(super) fn reclaim(
        &self,
        (id, hash, key): (TableId, u64, &Key),
        kept: Kept,
        tier: Option<&Tier>,
    ) -> usize {
        let shard = &self.shards[Self::shard_of(hash)];
        let (truncated, is_gone) = {
            let mut rows = write(&shard.rows);
            let is = |row: &Row| row.key == *key;
            let Some(row) = rows.find_mut(hash, is) else { return 0 };
            let truncated = row.chain.truncate(kept);
            let is_gone = row.chain.is_gone(kept.floor);
            let row_bytes = if is_gone { row.bytes() } else { 0 };
            if is_gone {
                rows.remove(hash, is, |row| hash_bytes(&row.key));
            }
            shard.count_bytes(0, truncated.bytes() + row_bytes);
            (truncated, is_gone)
        };
        if is_gone {
            // One that still waits for its place in the order would come to it after this.
            self.order.settle(&Sequential);
            self.leave_order(hash, key);
        }
        if let Some(tier) = tier {
            tell_gone(tier, (id, key), &truncated);
        }
        // The values are freed when this returns: nobody waits for the shard meanwhile.
        truncated.len() + usize::from(is_gone)
    }

    /// Takes away all versions after this one. What the cold store has of them it is told, and
    /// which rows are left with a mark. Returns the deletions that are newest again, which may have
    /// been looked at when they were not, and so were not reclaimed.
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
                    let row = rows.find_mut(hash, is).expect("it was seen just now");
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

    /// Takes a key out of the order, unless it is there again.
    pub(super) fn leave_order(&self, hash: u64, key: &Key) {
        self.order.remove_unless(key, || self.contains(hash, key));
    }

    fn contains(&self, hash: u64, key: &Key) -> bool {
        let rows = read(&self.shards[Self::shard_of(hash)].rows);
        rows.find(hash, |row| row.key == *key).is_some()
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| read(&shard.rows).len()).sum()
    }

    /// An estimate of the memory that keys, versions and values take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Removes every key.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            *write(&shard.rows) = Rows::default();
            shard.bytes.store(0, Ordering::Relaxed);
        }
        self.order.clear();
    }
}

/// Tells of the copies of versions that are gone.
#[cold]
fn tell_gone(tier: &Tier, (id, key): (TableId, &Key), truncated: &Truncated) {
    tier.on_gone(id, key, truncated.copied());
}
