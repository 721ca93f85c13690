//! The store: ordered multi-version tables in memory.
//!
//! A table maps a [`Key`] to a version chain, newest first. A version is a value (or a deletion),
//! the [`SnapshotVersion`] from which it is visible, and a record header chosen by the protocol.
//! The event loop of one node writes, on its own thread or on its pool. Any thread reads at a
//! published snapshot version, while the next one is being written.
//!
//! ```text
//!   table -> key -> [ version 9: header, value ] -> [ version 4: header, deleted ] -> ...
//!                     ^ newest                       ^ visible to a reader at version 5
//! ```
//!
//! | file | content |
//! |---|---|
//! | `directory` | tables by number, found without a lock |
//! | `table` | the rows of a table by hash, for single keys; the reasons and the locks |
//! | `rows` | the hash table of a shard |
//! | `order` | the keys of a table in order, for scans |
//! | `search` | search among sorted keys |
//! | `header` | the writer of a version, and the protocol's flag |
//! | `chain` | the versions of a key |
//! | `batch` | batches of writes, on all cores |
//! | `in_place` | the writes of a transaction, one by one, and how they are undone |
//! | `expunge` | removal of single versions that nobody may see |
//! | `pins` | the versions that readers need |
//! | `garbage` | reclaiming versions that no reader needs |
//! | `zigzag` | overwriting versions that no reader needs, and those that a checkpoint needs |
//! | `unordered_scan` | unordered scans of a whole table, by several threads |
//! | `cache_prefetch` | prefetching many rows in parallel |
//! | `digest` | digests of the writes of a version, and of rows |
//! | `cold` | values that are not in memory |
//! | `cold_placeholder` | their placeholders |
//! | `cold_map` | a compact map of their rows |
//! | `cold_memory` | an in-memory cold store, for tests |
//! | `flip` | a flipped bit, for tests |
//!
//! # Guarantees for readers
//!
//! A reader at a *published* version that it has *pinned* sees all writes up to that version and
//! none after it, regardless of concurrent writes. A read at an older version that is not pinned
//! may miss reclaimed versions. A read at a version that is not published sees the writes applied
//! so far; only the writer may use it.
//!
//! A reclaimed deletion looks like a key that never existed. Replicas reclaim at different times,
//! so their decisions must not depend on the difference.
//!
//! # Measuring
//!
//! `cargo bench -p pangea-core --bench store` prints the nanoseconds of each operation.

mod batch;
mod cache_prefetch;
mod chain;
mod cold;
mod cold_loading;
mod cold_map;
mod cold_memory;
mod cold_placeholder;
mod digest;
mod directory;
mod expunge;
#[cfg(feature = "planted")]
mod flip;
mod garbage;
mod header;
mod in_place;
#[cfg(feature = "shuttle")]
#[cfg(test)]
mod interleavings;
mod order;
mod pins;
mod rows;
mod search;
mod table;
#[cfg(test)]
mod tests;
mod unordered_scan;
mod zigzag;

use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::Xxh3;

use self::cold::Tier;
use self::digest::VersionDigests;
use self::directory::Directory;
use self::garbage::GarbageQueue;
use self::pins::Pins;
use self::table::Table;
use self::zigzag::Overwriting;
use crate::hash::HashMap;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::{Direction, HashedKey, Key, KeyRange};
use crate::mutate;
use crate::pool::Sequential;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::value::Value;

pub use self::cache_prefetch::CachePrefetcher;
pub use self::cold::{Chosen, Cold, ColdCounts, Copied};
pub use self::cold_loading::Loading;
pub use self::cold_map::ColdMap;
pub use self::cold_memory::ColdMemory;
pub use self::digest::{SEGMENTS, TableDigests};
pub use self::header::RecordHeader;
pub use self::pins::{Pin, PinError};
pub use self::unordered_scan::UnorderedScan;

pub(crate) use self::in_place::Written;

/// One version of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// The first snapshot version at which it is visible.
    pub version: SnapshotVersion,
    /// The protocol's header.
    pub header: RecordHeader,
    /// The value; `None` for a deletion.
    pub value: Option<Value>,
}

impl Version {
    /// An estimate of the value's memory in bytes.
    fn value_bytes(&self) -> usize {
        self.value.as_ref().map_or(0, Value::heap_bytes)
    }

    /// Whether the cold store has a copy of the value, which may be the only one.
    fn has_copy(&self) -> bool {
        self.value.as_ref().is_some_and(Value::has_copy)
    }

    /// An estimate of the memory in bytes that the version takes when it is not its key's newest.
    fn older_bytes(&self) -> usize {
        size_of::<Self>() + self.value_bytes()
    }
}

/// The tables of one node.
#[derive(Debug)]
pub struct Store {
    tables: Directory,
    published: AtomicU64,
    pins: Mutex<Pins>,
    /// The number of events that may have invalidated pins: clearing the store, and rollbacks.
    losses: AtomicU64,
    garbage: GarbageQueue,
    overwriting: Overwriting,
    digests: VersionDigests,
    /// The cold store, if there is a memory limit.
    tier: Option<Box<Tier>>,
}

/// A scan's use of the values that it visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// Reads values, and loads cold ones into memory.
    Values,
    /// Reads values, and leaves cold ones where they are.
    Passing,
    /// Reads no values, so placeholders suffice.
    Heads,
}

/// The number of rows that a scan first takes from the index. Most scans of transactions are short.
const SCAN_ROWS_FIRST: usize = if cfg!(test) { 2 } else { 16 };
/// The maximum number of rows that a scan takes from the index at a time. Inserts wait for about 10
/// us during that time.
const SCAN_ROWS_MAX: usize = 256;

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// Creates an empty store at version 0.
    pub fn new() -> Self {
        Self {
            tables: Directory::new(),
            published: AtomicU64::new(0),
            pins: Mutex::default(),
            losses: AtomicU64::new(0),
            garbage: GarbageQueue::default(),
            overwriting: Overwriting::default(),
            digests: VersionDigests::default(),
            tier: None,
        }
    }

    /// The newest version of a key that is visible at `at`. Deletions are versions too.
    #[inline]
    pub fn read(&self, table: TableId, key: &[u8], at: SnapshotVersion) -> Option<Version> {
        self.read_with(table, key, at, Version::clone)
    }

    /// Calls `look` with the newest version of a key that is visible at `at`, even if it is a
    /// deletion. The key is locked during the call, so `look` must not access the store.
    #[inline]
    pub fn read_with<R>(
        &self,
        table: TableId,
        key: &[u8],
        at: SnapshotVersion,
        look: impl FnOnce(&Version) -> R,
    ) -> Option<R> {
        self.see(table, &HashedKey::from(key), at, look)
    }

    /// The newest version of a key that is visible at `at`, even if it is a deletion. The caller
    /// must not read its value, which may not be in memory.
    #[inline]
    pub fn head(&self, table: TableId, key: &[u8], at: SnapshotVersion) -> Option<Version> {
        self.head_with(table, key, at, Version::clone)
    }

    /// Calls `look` with the version that [`Store::head`] returns, under the rules of
    /// [`Store::read_with`].
    #[inline]
    pub fn head_with<R>(
        &self,
        table: TableId,
        key: &[u8],
        at: SnapshotVersion,
        look: impl FnOnce(&Version) -> R,
    ) -> Option<R> {
        self.tables.table(table)?.with_head(&HashedKey::from(key), at, look)
    }

    #[inline]
    fn see<R>(
        &self,
        table: TableId,
        key: &HashedKey,
        at: SnapshotVersion,
        look: impl FnOnce(&Version) -> R,
    ) -> Option<R> {
        let rows = self.tables.table(table)?;
        if !self.has_cold() {
            return rows.with_head(key, at, look);
        }
        match rows.with_visible(key, at, look)? {
            Ok(seen) => Some(seen),
            Err((look, cold)) => self.see_cold(table, key, at, cold).as_ref().map(look),
        }
    }

    /// The value of a key that is visible at `at`, and its version.
    #[inline]
    pub(crate) fn read_value(
        &self,
        table: TableId,
        key: &HashedKey,
        at: SnapshotVersion,
    ) -> Option<(SnapshotVersion, Value)> {
        let live = |found: &Version| Some((found.version, found.value.clone()?));
        self.see(table, key, at, live)?
    }

    /// The newest version of a key, published or not.
    #[inline]
    pub fn latest(&self, table: TableId, key: &[u8]) -> Option<Version> {
        self.latest_with(table, key, Version::clone)
    }

    /// Calls `look` with the newest version of a key, published or not, under the rules of
    /// [`Store::read_with`].
    #[inline]
    pub fn latest_with<R>(
        &self,
        table: TableId,
        key: &[u8],
        look: impl FnOnce(&Version) -> R,
    ) -> Option<R> {
        self.read_with(table, key, SnapshotVersion(u64::MAX), look)
    }

    /// Visits, in order, the newest version visible at `at` of each key in the range until `visit`
    /// breaks. Includes deletions. No lock is held while `visit` runs.
    ///
    /// A key whose first version is after `at` may be inserted during the scan, which does not see
    /// it.
    pub fn scan(
        &self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        at: SnapshotVersion,
        visit: impl FnMut(&Key, &Version) -> ControlFlow<()>,
    ) {
        self.scan_for(Want::Values, table, (range, direction), at, visit);
    }

    /// Like [`Store::scan`] in ascending order, but loads no values into memory.
    pub fn scan_passing(
        &self,
        table: TableId,
        range: &KeyRange,
        at: SnapshotVersion,
        visit: impl FnMut(&Key, &Version) -> ControlFlow<()>,
    ) {
        self.scan_for(Want::Passing, table, (range, Direction::Forward), at, visit);
    }

    /// Like [`Store::scan`] in ascending order, but `visit` must not read values, which may not be
    /// in memory.
    pub fn scan_heads(
        &self,
        table: TableId,
        range: &KeyRange,
        at: SnapshotVersion,
        visit: impl FnMut(&Key, &Version) -> ControlFlow<()>,
    ) {
        self.scan_for(Want::Heads, table, (range, Direction::Forward), at, visit);
    }

    fn scan_for(
        &self,
        want: Want,
        table: TableId,
        (range, direction): (&KeyRange, Direction),
        at: SnapshotVersion,
        mut visit: impl FnMut(&Key, &Version) -> ControlFlow<()>,
    ) {
        if range.is_empty() {
            return;
        }
        let Some((id, table)) = self.tables.table(table).map(|found| (table, found)) else {
            return;
        };
        mutate!(ScanUnsettled: table.order.settle(&Sequential) => ());
        let mut start = Bound::Included(Key::from(&range.start[..]));
        let mut end = match &range.end {
            Some(end) => Bound::Excluded(Key::from(&end[..])),
            None => Bound::Unbounded,
        };
        let mut rows = SCAN_ROWS_FIRST;
        let mut found = Vec::with_capacity(rows);
        loop {
            table.order.collect((start.as_ref(), end.as_ref()), direction, rows, &mut found);
            // The first rows of a long range are not prefetched, because many scans break at the
            // first row.
            if found.len() < rows || rows > SCAN_ROWS_FIRST {
                self.warm(found.iter().map(|key| (id, key)));
            }
            if self.visit_all(want, (id, table), &found, at, &mut visit).is_break() {
                return;
            }
            let Some(last) = found.last().filter(|_| found.len() == rows).cloned() else { return };
            match direction {
                Direction::Forward => start = Bound::Excluded(last),
                Direction::Reverse => end = Bound::Excluded(last),
            }
            found.clear();
            rows = (rows * 4).min(SCAN_ROWS_MAX);
        }
    }

    /// Visits the visible version of each of these keys.
    fn visit_all(
        &self,
        want: Want,
        (id, table): (TableId, &Table),
        keys: &[Key],
        at: SnapshotVersion,
        visit: &mut impl FnMut(&Key, &Version) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if want == Want::Heads || !self.has_cold() {
            for key in keys {
                let hashed = HashedKey::from(key.clone());
                if let Some(version) = table.with_head(&hashed, at, Version::clone) {
                    visit(key, &version)?;
                }
            }
            return ControlFlow::Continue(());
        }
        self.visit_cold(want, (id, table), keys, at, visit)
    }

    /// Like [`Store::visit_all`], if values may not be in memory.
    fn visit_cold(
        &self,
        want: Want,
        (id, table): (TableId, &Table),
        keys: &[Key],
        at: SnapshotVersion,
        visit: &mut impl FnMut(&Key, &Version) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut passing = HashMap::default();
        if want == Want::Passing {
            passing = self.passing_of((id, table), keys, at);
        } else {
            let keys: Vec<_> = keys.iter().map(|key| (id, key.clone())).collect();
            self.fetch_for(&keys, at);
        }
        for key in keys {
            let hashed = HashedKey::from(key.clone());
            let version = match table.with_visible(&hashed, at, Version::clone) {
                None => None,
                Some(Ok(version)) => Some(version),
                Some(Err((_, cold))) => match passing.remove(&(key, cold.version)) {
                    Some(value) => Some(Version { value: Some(value), ..cold }),
                    None => self.see_cold(id, &hashed, at, cold),
                },
            };
            if let Some(version) = version {
                visit(key, &version)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Writes one version of a key. Writing the same version again replaces it.
    ///
    /// # Panics
    /// If the key already has a newer version: writes must be in the order of their versions.
    pub fn apply(&self, table: TableId, key: Key, version: Version) {
        let number = version.version;
        if let Some(garbage) = self.put_one(table, key, version) {
            self.garbage.push(number, [garbage]);
        }
    }

    /// The newest snapshot version that readers may use.
    pub fn published(&self) -> SnapshotVersion {
        SnapshotVersion(self.published.load(Ordering::Acquire))
    }

    /// Publishes a snapshot version to readers. All writes up to it must have been applied.
    ///
    /// # Panics
    /// If a later version is already published.
    pub fn publish(&self, version: SnapshotVersion) {
        let before = self.published.swap(version.0, Ordering::AcqRel);
        assert!(before <= version.0, "snapshot versions only increase");
    }

    /// The tables that have ever been written, in order.
    pub fn table_ids(&self) -> Vec<TableId> {
        self.tables.ids()
    }

    /// The number of keys of a table. A deleted key counts until it is reclaimed.
    pub fn len(&self, table: TableId) -> usize {
        self.tables.table(table).map_or(0, |table| table.len())
    }

    /// An estimate of the memory of all keys, versions and values, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.table_ids().into_iter().filter_map(|id| self.tables.table(id));
        tables.map(|table| table.memory_bytes()).sum()
    }

    /// A digest of all live keys and values at a version. Equal on replicas with the same state.
    pub fn digest(&self, at: SnapshotVersion) -> u64 {
        let mut hash = Xxh3::new();
        for table in self.table_ids() {
            self.scan_passing(table, &KeyRange::all(), at, |key, version| {
                if let Some(value) = &version.value {
                    hash.update(&table.0.to_le_bytes());
                    hash.update(&(key.len() as u64).to_le_bytes());
                    hash.update(key);
                    hash.update(&(value.len() as u64).to_le_bytes());
                    hash.update(value);
                }
                ControlFlow::Continue(())
            });
        }
        hash.digest()
    }
}

// A panic that unwinds through a lock is a bug in one caller. The data behind the locks is
// consistent at every point where that can happen, so other readers continue.

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn unlocked<T>(lock: &mut RwLock<T>) -> &mut T {
    lock.get_mut().unwrap_or_else(PoisonError::into_inner)
}
