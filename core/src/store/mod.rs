//! The store: ordered multi-version tables in memory.
//!
//! A table maps a [`Key`] to a chain of versions, newest first. A version is a value (or a
//! deletion), the [`SnapshotVersion`] from which it is visible, and a record header that the
//! protocol chose. One node's event loop writes; any thread reads at a snapshot version that is
//! published, while the next one is being written.
//!
//! ```text
//!   table -> key -> [ version 9: header, value ] -> [ version 4: header, deleted ] -> ...
//!                     ^ latest                       ^ what a reader at version 5 sees
//! ```
//!
//! Versions that no reader can see any more are taken away below the oldest pinned version.

use std::collections::{BTreeMap, btree_map};
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use xxhash_rust::xxh3::Xxh3;

use crate::codec::{DecodeError, Reader};
use crate::ids::{SnapshotVersion, TableId, TxnId};
use crate::key::{Direction, Key, KeyRange};
use crate::value::Value;

/// What a protocol keeps with each version of a record.
pub trait Header: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// The transaction that wrote the version.
    fn writer(&self) -> TxnId;

    /// Appends the header to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads what [`Header::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are malformed.
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// One version of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Version<H> {
    /// The first snapshot version that sees it.
    pub version: SnapshotVersion,
    /// The protocol's header.
    pub header: H,
    /// The value, or nothing for a deletion.
    pub value: Option<Value>,
}

/// The tables of one node.
#[derive(Debug)]
pub struct Store<H> {
    tables: RwLock<BTreeMap<TableId, Arc<Table<H>>>>,
    published: AtomicU64,
    pins: Mutex<BTreeMap<SnapshotVersion, usize>>,
}

#[derive(Debug)]
struct Table<H> {
    rows: RwLock<BTreeMap<Key, Vec<Version<H>>>>,
}

/// Keeps the versions that a reader at one snapshot version sees, until it is dropped.
#[derive(Debug)]
pub struct Pin<H: Header> {
    store: Arc<Store<H>>,
    version: SnapshotVersion,
}

impl<H: Header> Pin<H> {
    /// The snapshot version that is pinned.
    pub fn version(&self) -> SnapshotVersion {
        self.version
    }

    /// The store that it is pinned in.
    pub fn store(&self) -> &Store<H> {
        &self.store
    }
}

impl<H: Header> Drop for Pin<H> {
    fn drop(&mut self) {
        let mut pins = self.store.pins.lock().unwrap_or_else(PoisonError::into_inner);
        if let btree_map::Entry::Occupied(mut count) = pins.entry(self.version) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl<H: Header> Default for Store<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Header> Store<H> {
    /// An empty store at version 0.
    pub fn new() -> Self {
        Self { tables: RwLock::default(), published: AtomicU64::new(0), pins: Mutex::default() }
    }

    /// The newest version of a key that a reader at `at` sees; a deletion counts as a version.
    pub fn read(&self, table: TableId, key: &[u8], at: SnapshotVersion) -> Option<Version<H>> {
        let table = self.table(table)?;
        let rows = table.rows.read().unwrap_or_else(PoisonError::into_inner);
        visible(rows.get(key)?, at).cloned()
    }

    /// Visits, in order, the newest version that a reader at `at` sees of each key in the range,
    /// deletions too, until `visit` breaks.
    pub fn scan(
        &self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        at: SnapshotVersion,
        mut visit: impl FnMut(&Key, &Version<H>) -> ControlFlow<()>,
    ) {
        if range.is_empty() {
            return;
        }
        let Some(table) = self.table(table) else { return };
        let rows = table.rows.read().unwrap_or_else(PoisonError::into_inner);
        let end = range.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = rows.range::<[u8], _>((Bound::Included(&range.start[..]), end));
        let mut step = |(key, versions): (&Key, &Vec<Version<H>>)| match visible(versions, at) {
            Some(version) => visit(key, version),
            None => ControlFlow::Continue(()),
        };
        let _ = match direction {
            Direction::Forward => found.try_for_each(&mut step),
            Direction::Reverse => found.rev().try_for_each(&mut step),
        };
    }

    /// Writes one version of a key. Writing the same version again replaces it.
    ///
    /// # Panics
    /// When the key already has a newer version: writes come in the order of their versions.
    pub fn apply(&self, table: TableId, key: Key, version: Version<H>) {
        let table = self.table_or_new(table);
        let mut rows = table.rows.write().unwrap_or_else(PoisonError::into_inner);
        let versions = rows.entry(key).or_default();
        match versions.first_mut() {
            Some(newest) if newest.version == version.version => *newest = version,
            newest => {
                assert!(newest.is_none_or(|n| n.version < version.version), "version order");
                versions.insert(0, version);
            }
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

    /// Pins the newest published version for a reader.
    pub fn pin(self: &Arc<Self>) -> Pin<H> {
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.published();
        *pins.entry(version).or_default() += 1;
        Pin { store: self.clone(), version }
    }

    /// The oldest version that a reader may still use.
    pub fn oldest_pinned(&self) -> SnapshotVersion {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.keys().next().copied().unwrap_or_else(|| self.published())
    }

    /// Takes away every version that no reader at or above [`Store::oldest_pinned`] and `floor` sees,
    /// and returns how many went.
    pub fn reclaim(&self, floor: SnapshotVersion) -> usize {
        let floor = floor.min(self.oldest_pinned());
        let mut reclaimed = 0;
        for id in self.table_ids() {
            let Some(table) = self.table(id) else { continue };
            let mut rows = table.rows.write().unwrap_or_else(PoisonError::into_inner);
            rows.retain(|_, versions| {
                let kept = versions.iter().position(|v| v.version <= floor);
                if let Some(oldest_needed) = kept {
                    reclaimed += versions.len() - oldest_needed - 1;
                    versions.truncate(oldest_needed + 1);
                }
                let is_gone = versions.len() == 1
                    && versions[0].value.is_none()
                    && versions[0].version <= floor;
                reclaimed += usize::from(is_gone);
                !is_gone
            });
        }
        reclaimed
    }

    /// The tables that have ever been written, in order.
    pub fn table_ids(&self) -> Vec<TableId> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.keys().copied().collect()
    }

    /// Removes everything: the store is as new. For a replica that takes another's checkpoint.
    pub fn clear(&self) {
        self.tables.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.published.store(0, Ordering::Release);
    }

    /// A digest of every live key and value at a version. Equal on replicas that are equal there.
    pub fn digest(&self, at: SnapshotVersion) -> u64 {
        let mut hash = Xxh3::new();
        for table in self.table_ids() {
            self.scan(table, &KeyRange::all(), Direction::Forward, at, |key, version| {
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

    fn table(&self, id: TableId) -> Option<Arc<Table<H>>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn table_or_new(&self, id: TableId) -> Arc<Table<H>> {
        if let Some(table) = self.table(id) {
            return table;
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Table { rows: RwLock::default() });
        tables.entry(id).or_insert_with(new).clone()
    }
}

/// The newest of `versions`, newest first, that a reader at `at` sees.
fn visible<H>(versions: &[Version<H>], at: SnapshotVersion) -> Option<&Version<H>> {
    versions.iter().find(|version| version.version <= at)
}
