//! One version of each record, and two around a point (Calvin §5, after Zig-Zag).
//!
//! Where the protocol asks for it ([`Store::overwrite`]), a write takes away what no reader needs
//! of its key, and nothing is left to reclaim: of a key's two places a write takes the one that
//! does not hold the last version.
//!
//! ```text
//!   before a write at 9     [ 7 ] [ 4 ]        floor 8: readers are at 8 or later
//!   after it                [ 9 ] [ 7 ]        4 was overwritten, 7 is what readers at 8 see
//! ```
//!
//! A version goes when its key has a newer one at or below the floor: one that every reader sees,
//! present or future. The floor is the newest published version that the store never goes back
//! from, or the oldest pinned one, whichever is less, and is closed to new readers before anything
//! is overwritten. So nothing that is published is touched while the next version is being written,
//! nothing that is pinned, and nothing that [`Store::retreat_to`] comes back to.
//!
//! Where values may be put away ([`super::cold`]), the copies of versions that go are removed, and
//! the last version but one goes when nobody needs it, as without overwriting: what has an older
//! one beside it can't be put away.
//!
//! A checkpoint is of a point, a version that is published when it begins. Until it has ended each
//! key keeps its last version up to the point, the "before" version, beside the "after" versions,
//! which writers overwrite as ever. Other pins keep all versions since theirs; a point keeps one.

use std::sync::atomic::Ordering;

use super::chain::Truncated;
use super::cold::Tier;
use super::table::Table;
use super::{Pin, Store, write};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::planted::{Bug, is_planted};
use crate::sync::atomic::AtomicU64;

/// Which versions of a key are needed, beside its newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Readers are at this version or later.
    pub(super) floor: SnapshotVersion,
    /// But for one who reads at this version.
    pub(super) point: Option<SnapshotVersion>,
}

/// What writers who overwrite bring.
pub(super) struct Over {
    /// What they may not take away.
    pub(super) kept: Kept,
    /// The versions that they took away of which the cold store has a copy.
    pub(super) copied: Vec<SnapshotVersion>,
}

/// What writers know of [`Kept`].
#[derive(Debug, Default)]
pub(super) struct Overwriting {
    /// Zero where nothing is overwritten.
    floor: AtomicU64,
    /// Zero where there is no point.
    point: AtomicU64,
}

impl Overwriting {
    pub(super) fn point(&self) -> Option<SnapshotVersion> {
        let point = self.point.load(Ordering::Acquire);
        (point > 0 && !is_planted(Bug::BeforeOverwritten)).then_some(SnapshotVersion(point))
    }

    pub(super) fn set_point(&self, point: Option<SnapshotVersion>) {
        self.point.store(point.map_or(0, |point| point.0), Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.floor.store(0, Ordering::Release);
        self.set_point(None);
    }

    /// For a writer, where it may take anything away.
    #[inline]
    pub(super) fn over(&self) -> Option<Over> {
        self.kept().map(|kept| Over { kept, copied: Vec::new() })
    }

    /// What a write may not take away, where it may take anything.
    #[inline]
    pub(super) fn kept(&self) -> Option<Kept> {
        // The point is set before the floor goes beyond it.
        let floor = self.floor.load(Ordering::Acquire);
        (floor > 0).then(|| Kept { floor: SnapshotVersion(floor), point: self.point() })
    }
}

impl Store {
    /// Lets writers overwrite, from now on, what no reader needs at `final_upto`, at later
    /// versions, and at those that are pinned. The store never goes back to before `final_upto`.
    /// Called again before each version is written; nothing writes meanwhile. Versions below that
    /// can't be pinned from then on.
    pub fn overwrite(&self, final_upto: SnapshotVersion) {
        let floor = self.close_below(final_upto.min(self.published()));
        self.overwriting.floor.store(floor.0, Ordering::Release);
    }

    /// Whether writers overwrite.
    pub(super) fn overwrites(&self) -> bool {
        self.overwriting.kept().is_some()
    }

    /// Takes away the versions that writers would have overwritten, of all keys: after a
    /// checkpoint, the "before" versions. For a thread of its own; a shard at a time is locked.
    pub fn discard_overwritten(&self) -> usize {
        let mut discarded = 0;
        for id in self.table_ids() {
            let table = self.tables.table(id).expect("a table that is listed is there");
            for shard in 0..table.shards.len() {
                let Some(kept) = self.overwriting.kept() else { return discarded };
                discarded += table.discard(shard, kept, (id, self.tier.as_deref()));
            }
        }
        discarded
    }
}

impl Pin {
    /// Nobody reads the pinned version any more. Where it was a point, the versions that it kept
    /// go: that takes a look at each row, so it is for who has time.
    pub fn end(self) {
        let store = self.is_point().then(|| self.shared_store());
        drop(self);
        if let Some(store) = store {
            store.discard_overwritten();
        }
    }
}

impl Table {
    /// Returns how many versions went. Of those that the cold store has copies of, it is told.
    fn discard(&self, shard: usize, kept: Kept, (id, tier): (TableId, Option<&Tier>)) -> usize {
        let shard = &self.shards[shard];
        let mut truncated: Vec<Truncated> = Vec::new();
        let mut all_copied: Vec<(Key, Vec<SnapshotVersion>)> = Vec::new();
        let mut gone = Vec::new();
        {
            let mut rows = write(&shard.rows);
            for row in rows.iter_mut() {
                if row.chain.older().is_some() {
                    let taken = row.chain.truncate(kept);
                    shard.count_bytes(0, taken.bytes());
                    let copied: Vec<SnapshotVersion> = taken.copied().collect();
                    if !copied.is_empty() {
                        all_copied.push((row.key.clone(), copied));
                    }
                    truncated.push(taken);
                }
                if row.chain.is_gone(kept.floor) {
                    gone.push(row.key.clone());
                }
            }
        }
        // The values are freed when nobody waits for the shard.
        let mut count = truncated.iter().map(Truncated::len).sum::<usize>();
        for key in gone {
            // Unless it was written to meanwhile.
            count += self.reclaim((id, hash_bytes(&key), &key), kept, tier);
        }
        if let Some(tier) = tier {
            all_copied.into_iter().for_each(|(key, copied)| tier.on_gone(id, &key, copied));
        }
        count
    }
}
