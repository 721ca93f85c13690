//! The store: ordered multi-version tables in memory.
//!
//! A table maps a [`Key`] to a chain of versions, newest first. A version is a value (or a
//! deletion), the [`SnapshotVersion`] from which it is visible, and a record header that the
//! protocol chose. One node's event loop writes, by itself or on its pool; any thread reads at a
//! snapshot version that is published, while the next one is being written.
//!
//! ```text
//!   table -> key -> [ version 9: header, value ] -> [ version 4: header, deleted ] -> ...
//!                     ^ latest                       ^ what a reader at version 5 sees
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | `directory` | tables by number, found without a lock |
//! | `table` | a table's rows by hash, for single keys; why, and which locks there are |
//! | `rows` | the hash table of a shard |
//! | `order` | a table's keys in order, for scans |
//! | `search` | where a key is among sorted ones |
//! | `header` | the writer of a version, and the protocol's flag |
//! | `chain` | the versions of a key |
//! | `batch` | many writes at once, on every core |
//! | `in_place` | a transaction's writes, one by one, and how they are taken back |
//! | `pins` | which versions readers need |
//! | `garbage` | taking away what no reader needs |
//! | `point` | overwriting what no reader needs, and what a checkpoint keeps meanwhile |
//! | `sweep` | a whole table in no order, by several threads |
//! | `warm` | fetching many rows from memory side by side |
//! | `cold` | values that are not in memory |
//! | `cold_mark` | what is in their places |
//! | `cold_map` | which rows these are, in few bytes |
//! | `cold_memory` | a place for them that is in memory after all, for tests |
//!
//! # What a reader may rely on
//!
//! A reader at a *published* version that it has *pinned* sees every write up to that version and
//! none after it, whatever else runs. A read at an older version that is not pinned may miss what
//! was reclaimed. A read at a version that is not published sees what has been applied so far: that
//! is for the one who applies.
//!
//! A deletion that was reclaimed looks like a key that never was. Replicas reclaim at different
//! times, so what they must agree on must not depend on the difference.
//!
//! # Measuring
//!
//! `cargo bench -p pangea-core --bench store` prints the nanoseconds of each operation.

mod batch;
mod chain;
mod cold;
mod cold_loading;
mod cold_map;
mod cold_mark;
mod cold_memory;
mod directory;
mod garbage;
mod header;
mod in_place;
#[cfg(feature = "shuttle")]
#[cfg(test)]
mod interleavings;
mod order;
mod pins;
mod point;
mod rows;
mod search;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod warm;

use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::Xxh3;

use self::cold::Tier;
use self::directory::Directory;
use self::garbage::GarbageQueue;
use self::pins::Pins;
use self::point::Overwriting;
use self::table::Table;
use crate::hash::HashMap;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::{Direction, HashedKey, Key, KeyRange};
use crate::planted::{Bug, is_planted};
use crate::pool::Sequential;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::value::Value;

pub use self::cold::{Chosen, Cold, ColdCounts, Copied};
pub use self::cold_loading::Loading;
pub use self::cold_map::ColdMap;
pub use self::cold_memory::ColdMemory;
pub use self::header::RecordHeader;
pub use self::pins::{Pin, PinError};
pub use self::sweep::Sweep;
pub use self::warm::Warmer;

pub(crate) use self::in_place::Written;

/// One version of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// The first snapshot version that sees it.
    pub version: SnapshotVersion,
    /// The protocol's header.
    pub header: RecordHeader,
    /// The value, or nothing for a deletion.
    pub value: Option<Value>,
}

impl Version {
    /// An estimate of the memory that the value takes.
    fn value_bytes(&self) -> usize {
        self.value.as_ref().map_or(0, Value::heap_bytes)
    }

    /// Whether the cold store has the value too, or alone.
    fn has_copy(&self) -> bool {
        self.value.as_ref().is_some_and(Value::has_copy)
    }

    /// An estimate of the memory that the version takes when it is not its key's newest.
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
    /// How often what is pinned may have been lost: it was cleared, or went back.
    losses: AtomicU64,
    garbage: GarbageQueue,
    overwriting: Overwriting,
    /// What keeps values that are not in memory, where there is a limit.
    tier: Option<Box<Tier>>,
}

/// What a scan wants of the rows that it visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// Their values, which come back into memory.
    Values,
    /// Their values, which stay where they are.
    Passing,
    /// No values: marks will do.
    Heads,
}

/// A scan takes this many rows from the index at first. Most scans of a transaction are short.
const SCAN_ROWS_FIRST: usize = if cfg!(test) { 2 } else { 16 };
/// A scan takes this many rows from the index at most: some 10 us during which inserts wait.
const SCAN_ROWS_MAX: usize = 256;

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// An empty store at version 0.
    pub fn new() -> Self {
        Self {
            tables: Directory::new(),
            published: AtomicU64::new(0),
            pins: Mutex::default(),
            losses: AtomicU64::new(0),
            garbage: GarbageQueue::default(),
            overwriting: Overwriting::default(),
            tier: None,
        }
    }

    /// The newest version of a key that a reader at `at` sees; a deletion counts as a version.
    pub fn read(&self, table: TableId, key: &[u8], at: SnapshotVersion) -> Option<Version> {
        self.read_with(table, key, at, Version::clone)
    }

    /// Calls `look` with the newest version of a key that a reader at `at` sees, a deletion too.
    /// The key is locked meanwhile: `look` must not come back to the store.
    pub fn read_with<R>(
        &self,
        table: TableId,
        key: &[u8],
        at: SnapshotVersion,
        look: impl FnOnce(&Version) -> R,
    ) -> Option<R> {
        self.see(table, &HashedKey::from(key), at, look)
    }

    /// Which version of a key a reader at `at` sees, a deletion too. Its value is not to be looked
    /// at: it may not be in memory.
    pub fn head(&self, table: TableId, key: &[u8], at: SnapshotVersion) -> Option<Version> {
        self.head_with(table, key, at, Version::clone)
    }

    /// Calls `look` with that version, as [`Store::read_with`] does.
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

    /// The value of a key that a reader at `at` sees, and since which version it is there.
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
    pub fn latest(&self, table: TableId, key: &[u8]) -> Option<Version> {
        self.latest_with(table, key, Version::clone)
    }

    /// Calls `look` with the newest version of a key, published or not, as [`Store::read_with`]
    /// does.
    pub fn latest_with<R>(
        &self,
        table: TableId,
        key: &[u8],
        look: impl FnOnce(&Version) -> R,
    ) -> Option<R> {
        self.read_with(table, key, SnapshotVersion(u64::MAX), look)
    }

    /// Visits, in order, the newest version that a reader at `at` sees of each key in the range,
    /// deletions too, until `visit` breaks. Nothing is locked while `visit` runs.
    ///
    /// A key whose first version is after `at` may come during the scan, and does not matter to it.
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

    /// Visits all of a table in order as [`Store::scan`] does, and brings nothing into memory.
    pub fn scan_passing(
        &self,
        table: TableId,
        range: &KeyRange,
        at: SnapshotVersion,
        visit: impl FnMut(&Key, &Version) -> ControlFlow<()>,
    ) {
        self.scan_for(Want::Passing, table, (range, Direction::Forward), at, visit);
    }

    /// Visits a range in order as [`Store::scan`] does. Values are not to be looked at: they may
    /// not be in memory.
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
        if !is_planted(Bug::ScanUnsettled) {
            table.order.settle(&Sequential);
        }
        let mut start = Bound::Included(Key::from(&range.start[..]));
        let mut end = match &range.end {
            Some(end) => Bound::Excluded(Key::from(&end[..])),
            None => Bound::Unbounded,
        };
        let mut rows = SCAN_ROWS_FIRST;
        let mut found = Vec::with_capacity(rows);
        loop {
            table.order.collect((start.as_ref(), end.as_ref()), direction, rows, &mut found);
            // Not what is first seen of a long range: many scans break at its first row.
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

    /// Visits what is seen of each of these keys.
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

    /// Does the same where values may not be in memory.
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
    /// When the key already has a newer version: writes come in the order of their versions.
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

    /// Opens a snapshot version to readers: every write up to it has been applied.
    ///
    /// # Panics
    /// When a later version is already published.
    pub fn publish(&self, version: SnapshotVersion) {
        let before = self.published.swap(version.0, Ordering::AcqRel);
        assert!(before <= version.0, "snapshot versions only grow");
    }

    /// The tables that have ever been written, in order.
    pub fn table_ids(&self) -> Vec<TableId> {
        self.tables.ids()
    }

    /// How many keys a table has. A deleted key counts until it is reclaimed.
    pub fn len(&self, table: TableId) -> usize {
        self.tables.table(table).map_or(0, |table| table.len())
    }

    /// An estimate of the memory that all keys, versions and values take, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.table_ids().into_iter().filter_map(|id| self.tables.table(id));
        tables.map(|table| table.memory_bytes()).sum()
    }

    /// A digest of every live key and value at a version. Equal on replicas that are equal there.
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

// A panic that unwinds through a lock is a bug in one caller. What the locks guard is whole at
// every point where that can happen, so it is no reason to take every other reader down.

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
