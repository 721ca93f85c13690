//! One version of each record, and two around a point (Calvin §5, after Zig-Zag).
//!
//! If the protocol requests it ([`Store::overwrite`]), a write removes the versions of its key that
//! no reader needs, and leaves none to reclaim. Each key then has two slots, and a write uses the
//! slot without the newest version.
//!
//! ```text
//!   before a write at 9     [ 7 ] [ 4 ]        floor 8: readers are at 8 or later
//!   after it                [ 9 ] [ 7 ]        4 was overwritten, 7 is visible to readers at 8
//! ```
//!
//! A version is removed when its key has a newer one at or below the floor, which all present and
//! future readers see. The floor is the lesser of two versions: the newest published one to before
//! which the store never rolls back, and the oldest pinned one. It is closed to new readers before
//! any version is overwritten. While the next version is being written, no version changes that is
//! published, pinned, or the target of a later [`Store::retreat_to`].
//!
//! If values may be evicted ([`super::cold`]), the copies of removed versions are removed too. The
//! second newest version is reclaimed as without overwriting, because a value cannot be evicted
//! while the row has an older version.
//!
//! A checkpoint captures a point, a version that is published when it begins. Until the checkpoint
//! ends, each key retains its last version up to the point, the "before" version, in addition to
//! the "after" versions, which writers overwrite as usual. Other pins retain all versions since
//! theirs; a point retains one.

use std::sync::atomic::Ordering;

use super::chain::Truncated;
use super::cold::Tier;
use super::table::Table;
use super::{Pin, Store, write};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::mutate;
use crate::sync::atomic::AtomicU64;

/// The versions of a key that are needed, in addition to its newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeededVersions {
    /// Readers are at this version or later.
    pub(super) floor: SnapshotVersion,
    /// One additional reader is at this version.
    pub(super) point: Option<SnapshotVersion>,
}

/// The context of a write that overwrites.
pub(super) struct OverwriteContext {
    /// The versions that it must not remove.
    pub(super) needed: NeededVersions,
    /// The removed versions of which the cold store has a copy.
    pub(super) copied: Vec<SnapshotVersion>,
}

/// The writers' view of [`NeededVersions`].
#[derive(Debug, Default)]
pub(super) struct Overwriting {
    /// Zero if writers do not overwrite.
    floor: AtomicU64,
    /// Zero if there is no point.
    point: AtomicU64,
}

impl Overwriting {
    pub(super) fn point(&self) -> Option<SnapshotVersion> {
        let point = self.point.load(Ordering::Acquire);
        mutate!(BeforeOverwritten: (point > 0).then_some(SnapshotVersion(point)) => None)
    }

    pub(super) fn set_point(&self, point: Option<SnapshotVersion>) {
        self.point.store(point.map_or(0, |point| point.0), Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.floor.store(0, Ordering::Release);
        self.set_point(None);
    }

    /// The context for a write; `None` if writers do not overwrite.
    #[inline]
    pub(super) fn overwrite_context(&self) -> Option<OverwriteContext> {
        self.needed_versions().map(|needed| OverwriteContext { needed, copied: Vec::new() })
    }

    /// The versions that a write must not remove; `None` if it must not remove any.
    #[inline]
    pub(super) fn needed_versions(&self) -> Option<NeededVersions> {
        // The point is set before the floor rises above it.
        let floor = self.floor.load(Ordering::Acquire);
        (floor > 0).then(|| NeededVersions { floor: SnapshotVersion(floor), point: self.point() })
    }
}

impl Store {
    /// Lets writers overwrite, from now on, all versions that are not needed at `final_upto`, at
    /// later versions, or by pins. The store never rolls back to before `final_upto`. The caller
    /// repeats this before each version is written, while no writes run. Lower versions can no
    /// longer be pinned.
    pub fn overwrite(&self, final_upto: SnapshotVersion) {
        let floor = self.close_below(final_upto.min(self.published()));
        self.overwriting.floor.store(floor.0, Ordering::Release);
    }

    /// Whether writers overwrite.
    pub(super) fn overwrites(&self) -> bool {
        self.overwriting.needed_versions().is_some()
    }

    /// Removes the versions of all keys that writers would have overwritten: after a checkpoint,
    /// the "before" versions. Locks one shard at a time; meant for a background thread.
    pub fn discard_overwritten(&self) -> usize {
        let mut discarded = 0;
        for id in self.table_ids() {
            let table = self.tables.table(id).expect("a listed table exists");
            for shard in 0..table.shards.len() {
                let Some(needed) = self.overwriting.needed_versions() else { return discarded };
                discarded += table.discard(shard, needed, (id, self.tier.as_deref()));
            }
        }
        discarded
    }
}

impl Pin {
    /// Releases the pin. If it was a point, also removes the versions that it retained. This visits
    /// every row, so it is not for threads that must not wait.
    pub fn end(self) {
        let store = self.is_point().then(|| self.shared_store());
        drop(self);
        if let Some(store) = store {
            store.discard_overwritten();
        }
    }
}

impl Table {
    /// Returns the number of removed versions, and tells the cold store about those of which it has
    /// copies.
    fn discard(
        &self,
        shard: usize,
        needed: NeededVersions,
        (id, tier): (TableId, Option<&Tier>),
    ) -> usize {
        let shard = &self.shards[shard];
        let mut truncated: Vec<Truncated> = Vec::new();
        let mut all_copied: Vec<(Key, Vec<SnapshotVersion>)> = Vec::new();
        let mut gone = Vec::new();
        {
            let mut rows = write(&shard.rows);
            for row in rows.iter_mut() {
                if row.chain.older().is_some() {
                    let taken = row.chain.truncate(needed);
                    shard.count_bytes(0, taken.bytes());
                    let copied: Vec<SnapshotVersion> = taken.copied().collect();
                    if !copied.is_empty() {
                        all_copied.push((row.key.clone(), copied));
                    }
                    truncated.push(taken);
                }
                if row.chain.is_gone(needed.floor) {
                    gone.push(row.key.clone());
                }
            }
        }
        // The values are freed without the lock of the shard.
        let mut count = truncated.iter().map(Truncated::len).sum::<usize>();
        for key in gone {
            // Has no effect if the key was written in the meantime.
            count += self.reclaim((id, hash_bytes(&key), &key), needed, tier);
        }
        if let Some(tier) = tier {
            all_copied.into_iter().for_each(|(key, copied)| tier.on_gone(id, &key, copied));
        }
        count
    }
}
