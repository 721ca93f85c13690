//! The snapshot versions that readers still need.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Header, Store, lock};
use crate::ids::SnapshotVersion;
use crate::planted::{Bug, is_planted};

/// Which versions are pinned, and how far reclamation has come.
#[derive(Debug, Default)]
pub(super) struct Pins {
    readers: BTreeMap<SnapshotVersion, usize>,
    /// Readers before this version may miss what they should see.
    reclaimed: SnapshotVersion,
    /// Grows when the store is cleared.
    generation: u64,
}

/// Keeps the versions that a reader at one snapshot version sees, until it is dropped.
#[derive(Debug)]
pub struct Pin<H: Header> {
    store: Arc<Store<H>>,
    version: SnapshotVersion,
    generation: u64,
}

/// Why a version could not be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinError {
    /// Some of what a reader at the version would see was reclaimed.
    Reclaimed {
        /// The oldest version that can be pinned.
        oldest: SnapshotVersion,
    },
    /// The version is not published yet.
    Unpublished {
        /// The newest version that can be pinned.
        newest: SnapshotVersion,
    },
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reclaimed { oldest } => write!(f, "snapshots before {oldest} are gone"),
            Self::Unpublished { newest } => write!(f, "snapshots after {newest} are not final"),
        }
    }
}

impl std::error::Error for PinError {}

impl<H: Header> Pin<H> {
    /// The snapshot version that is pinned.
    pub fn version(&self) -> SnapshotVersion {
        self.version
    }

    /// The store that it is pinned in.
    pub fn store(&self) -> &Store<H> {
        &self.store
    }

    /// Whether the store was cleared since: what was pinned is gone, and a reader must start again.
    /// A reader that finds this false after its last read has read its snapshot.
    pub fn is_lost(&self) -> bool {
        lock(&self.store.pins).generation != self.generation
    }
}

impl<H: Header> Clone for Pin<H> {
    fn clone(&self) -> Self {
        let mut pins = lock(&self.store.pins);
        // Of one that is lost, a lost one.
        if pins.generation == self.generation {
            *pins.readers.entry(self.version).or_default() += 1;
        }
        Self { store: self.store.clone(), version: self.version, generation: self.generation }
    }
}

impl<H: Header> Drop for Pin<H> {
    fn drop(&mut self) {
        let mut pins = lock(&self.store.pins);
        if pins.generation != self.generation {
            return;
        }
        if let btree_map::Entry::Occupied(mut count) = pins.readers.entry(self.version) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl<H: Header> Store<H> {
    /// Pins the newest published version for a reader.
    pub fn pin(self: &Arc<Self>) -> Pin<H> {
        let mut pins = lock(&self.pins);
        let version = self.published();
        self.pin_in(&mut pins, version)
    }

    /// Pins a version that was published earlier.
    ///
    /// # Errors
    /// When the version is not published yet, or was reclaimed.
    pub fn pin_at(self: &Arc<Self>, version: SnapshotVersion) -> Result<Pin<H>, PinError> {
        let mut pins = lock(&self.pins);
        if version < pins.reclaimed {
            return Err(PinError::Reclaimed { oldest: pins.reclaimed });
        }
        let newest = self.published();
        if version > newest {
            return Err(PinError::Unpublished { newest });
        }
        Ok(self.pin_in(&mut pins, version))
    }

    fn pin_in(self: &Arc<Self>, pins: &mut Pins, version: SnapshotVersion) -> Pin<H> {
        *pins.readers.entry(version).or_default() += 1;
        Pin { store: self.clone(), version, generation: pins.generation }
    }

    /// The oldest version that a reader may still use.
    pub fn oldest_pinned(&self) -> SnapshotVersion {
        let pins = lock(&self.pins);
        self.oldest_in(&pins)
    }

    fn oldest_in(&self, pins: &Pins) -> SnapshotVersion {
        pins.readers.keys().next().copied().unwrap_or_else(|| self.published())
    }

    /// Closes the versions before `floor` to new readers, as far as present readers allow, and
    /// returns the oldest version that stays open.
    pub(super) fn close_below(&self, floor: SnapshotVersion) -> SnapshotVersion {
        let mut pins = lock(&self.pins);
        let floor = match is_planted(Bug::ReclaimedBelowPin) {
            true => floor.min(self.published()),
            false => floor.min(self.oldest_in(&pins)),
        };
        let floor = if is_planted(Bug::ReclaimedEarly) { floor.next() } else { floor };
        pins.reclaimed = pins.reclaimed.max(floor);
        floor
    }

    /// Removes everything: the store is as new. For a replica that takes another's checkpoint.
    /// Nothing else may write meanwhile; pins that readers hold are lost, see [`Pin::is_lost`].
    pub fn clear(&self) {
        // Pins are taken under this lock, so none can be of the old contents and the new
        // generation.
        let mut pins = lock(&self.pins);
        *pins = Pins { generation: pins.generation + 1, ..Pins::default() };
        self.published.store(0, Ordering::Release);
        self.tables.clear();
        self.garbage.clear();
    }
}
