//! Pins: the snapshot versions that readers still need.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::garbage::Garbage;
use super::{Store, lock};
use crate::ids::SnapshotVersion;
use crate::mutate;

/// The pinned versions, and the progress of reclamation.
#[derive(Debug, Default)]
pub(super) struct Pins {
    readers: BTreeMap<SnapshotVersion, usize>,
    /// A point: a version that one reader sees completely and that does not count among `readers`.
    /// With its number of pins.
    point: Option<(SnapshotVersion, usize)>,
    /// Readers below this version may miss reclaimed versions.
    reclaimed: SnapshotVersion,
    /// Incremented when the store is cleared.
    generation: u64,
    /// The versions to which the store was rolled back, in the order of the rollbacks.
    retreats: Vec<SnapshotVersion>,
}

/// A reference that keeps a snapshot version readable until it is dropped.
#[derive(Debug)]
pub struct Pin {
    store: Arc<Store>,
    version: SnapshotVersion,
    generation: u64,
    /// The number of rollbacks before the pin was taken: its timeline.
    timeline: usize,
    /// The store's count of losses at that time.
    losses: u64,
    is_point: bool,
}

/// The reason why a version cannot be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinError {
    /// Some versions that a reader would see were reclaimed.
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
            Self::Reclaimed { oldest } => {
                write!(f, "snapshots before {oldest} are no longer available")
            }
            Self::Unpublished { newest } => {
                write!(f, "snapshots after {newest} are not available yet")
            }
        }
    }
}

impl std::error::Error for PinError {}

impl Pin {
    /// The pinned snapshot version.
    pub fn version(&self) -> SnapshotVersion {
        self.version
    }

    /// The store that contains the version.
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn shared_store(&self) -> Arc<Store> {
        self.store.clone()
    }

    pub(super) fn is_point(&self) -> bool {
        self.is_point
    }

    /// Whether the store was cleared since, or rolled back to before the version. The snapshot is
    /// then gone, and its reader must start again. If this is false after a reader's last read, the
    /// reader has seen its whole snapshot.
    pub fn is_lost(&self) -> bool {
        // The counter changes before the rows do, so a reader of changed rows sees the new count.
        self.store.losses.load(Ordering::Acquire) != self.losses
            && self.is_lost_in(&lock(&self.store.pins))
    }

    fn is_lost_in(&self, pins: &Pins) -> bool {
        pins.generation != self.generation
            || pins.retreats[self.timeline..].iter().any(|upto| *upto < self.version)
    }

    /// The timeline of the version: see [`Store::timeline`].
    pub fn timeline(&self) -> u64 {
        self.timeline as u64
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        let mut pins = lock(&self.store.pins);
        // The clone of a lost pin is lost too.
        if !self.is_lost_in(&pins) {
            match &mut pins.point {
                Some((_, count)) if self.is_point => *count += 1,
                _ => *pins.readers.entry(self.version).or_default() += 1,
            }
        }
        let Self { version, generation, timeline, losses, is_point, .. } = *self;
        Self { store: self.store.clone(), version, generation, timeline, losses, is_point }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = lock(&self.store.pins);
        if self.is_lost_in(&pins) {
            return;
        }
        if self.is_point {
            let (_, count) = pins.point.as_mut().expect("the pin is the current point");
            *count -= 1;
            if *count == 0 {
                pins.point = None;
                self.store.overwriting.set_point(None);
            }
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

impl Store {
    /// Pins the newest published version.
    pub fn pin(self: &Arc<Self>) -> Pin {
        let mut pins = lock(&self.pins);
        let version = self.published();
        self.pin_in(&mut pins, version)
    }

    /// Pins a version that was published earlier.
    ///
    /// # Errors
    /// If the version is not published yet, or was reclaimed.
    pub fn pin_at(self: &Arc<Self>, version: SnapshotVersion) -> Result<Pin, PinError> {
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

    fn pin_in(self: &Arc<Self>, pins: &mut Pins, version: SnapshotVersion) -> Pin {
        *pins.readers.entry(version).or_default() += 1;
        let (generation, timeline) = (pins.generation, pins.retreats.len());
        let losses = self.losses.load(Ordering::Relaxed);
        Pin { store: self.clone(), version, generation, timeline, losses, is_point: false }
    }

    /// Pins a version for a checkpoint. If writers overwrite and no other checkpoint is being
    /// written, the version becomes a point: only one version of each key is kept for it.
    ///
    /// # Errors
    /// If the version is not published yet, or was reclaimed.
    pub fn pin_checkpoint(self: &Arc<Self>, version: SnapshotVersion) -> Result<Pin, PinError> {
        let pin = self.pin_at(version)?;
        let mut pins = lock(&self.pins);
        if !self.overwrites() || pins.point.is_some() {
            return Ok(pin);
        }
        pins.point = Some((version, 1));
        self.overwriting.set_point(Some(version));
        drop(pins);
        let Pin { generation, timeline, losses, .. } = pin;
        // Dropped only after the point has begun.
        drop(pin);
        Ok(Pin { store: self.clone(), version, generation, timeline, losses, is_point: true })
    }

    /// Publishes a version that was loaded as a whole: another replica's checkpoint, or one from
    /// disk. The versions between the last published one and this one are missing, and cannot be
    /// pinned.
    ///
    /// # Panics
    /// If a later version is published.
    pub fn publish_alone(&self, version: SnapshotVersion) {
        let mut pins = lock(&self.pins);
        pins.reclaimed = pins.reclaimed.max(version);
        self.publish(version);
    }

    /// The oldest version that a reader may still use.
    pub fn oldest_pinned(&self) -> SnapshotVersion {
        let pins = lock(&self.pins);
        self.oldest_in(&pins)
    }

    fn oldest_in(&self, pins: &Pins) -> SnapshotVersion {
        pins.readers.keys().next().copied().unwrap_or_else(|| self.published())
    }

    /// Closes the versions below `floor` to new readers, as far as existing pins allow. Returns the
    /// oldest version that can still be pinned.
    pub(super) fn close_below(&self, floor: SnapshotVersion) -> SnapshotVersion {
        let mut pins = lock(&self.pins);
        let oldest = mutate!(ReclaimedBelowPin: self.oldest_in(&pins) => self.published());
        let oldest = mutate!(OverwrittenPinned: oldest => self.published());
        let floor = floor.min(oldest);
        let floor = mutate!(ReclaimedEarly: floor => floor.next());
        pins.reclaimed = pins.reclaimed.max(floor);
        floor
    }

    /// Rolls back to a published version: later versions are removed as if they had never been
    /// written. No other writes may run concurrently. Pins of removed versions are lost: see
    /// [`Pin::is_lost`].
    ///
    /// # Panics
    /// If some versions that a reader of the version would see were reclaimed.
    pub fn retreat_to(&self, version: SnapshotVersion) {
        // This happens before the rows change, so that concurrent readers find their pins lost.
        {
            let mut pins = lock(&self.pins);
            assert!(pins.reclaimed <= version, "the versions to roll back to are retained");
            pins.retreats.push(version);
            self.losses.fetch_add(1, Ordering::Release);
            pins.readers.retain(|pinned, _| *pinned <= version);
            if pins.point.take_if(|(point, _)| *point > version).is_some() {
                self.overwriting.set_point(None);
            }
            self.published.store(version.0.min(self.published().0), Ordering::Release);
        }
        self.digests.retreat_to(version);
        for id in self.table_ids() {
            let table = self.tables.table(id).expect("a listed table exists");
            let tier = self.tier.as_deref().map(|tier| (id, tier));
            for (at, hash, key) in table.retreat_to(version, tier) {
                self.garbage.push(at, [Garbage { table: id, hash, key }]);
            }
        }
        // Incremented again for threads that began to fetch old values during the rollback.
        self.losses.fetch_add(1, Ordering::Release);
    }

    /// The timeline: the number of rollbacks. Versions of the same number have the same content
    /// only on the same timeline.
    pub fn timeline(&self) -> u64 {
        lock(&self.pins).retreats.len() as u64
    }

    /// Removes all data, for a replica that installs another's checkpoint. No other writes may run
    /// concurrently. Existing pins are lost: see [`Pin::is_lost`].
    pub fn clear(&self) {
        // Pins are taken under this lock, so no pin can combine the old content with the new
        // generation.
        let mut pins = lock(&self.pins);
        let retreats = std::mem::take(&mut pins.retreats);
        *pins = Pins { generation: pins.generation + 1, retreats, ..Pins::default() };
        self.losses.fetch_add(1, Ordering::Release);
        self.published.store(0, Ordering::Release);
        self.tables.clear();
        self.garbage.clear();
        self.tier.iter().for_each(|tier| tier.clear());
        self.overwriting.clear();
        self.digests.clear();
        self.losses.fetch_add(1, Ordering::Release);
    }
}
