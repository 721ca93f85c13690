//! Keeping memory at its limit while a store is loaded, also where that can't be done.
//!
//! What can't be put away, keys and headers before all, may be more than the limit. To look through
//! all rows for each block of rows that comes takes time in the square of how many there are. So
//! after a look in vain there is none before memory has grown by a part of what it is.

use super::Store;
use crate::ids::SnapshotVersion;

/// Memory grows by one part of so many after a look in vain. It is above what can be kept by no
/// more than that.
const GROWN_PART: usize = 8;

/// How the loading of a store gets on. Each row is written once, and nothing is published.
#[derive(Debug, Default)]
pub struct Loading {
    /// What memory was after a look in vain.
    in_vain_at: Option<usize>,
}

impl Loading {
    /// Rows have come: puts values away while memory is above its limit, if that may be of use.
    pub fn evict(&mut self, store: &Store) {
        let is_early = |at: usize| store.memory_bytes() < at + at / GROWN_PART;
        if store.has_cold() && !self.in_vain_at.is_some_and(is_early) {
            let is_kept = store.evict_upto(SnapshotVersion(u64::MAX));
            self.in_vain_at = (!is_kept).then(|| store.memory_bytes());
        }
    }

    /// All rows have come.
    pub fn end(self, store: &Store) {
        store.evict_upto(SnapshotVersion(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;
    use crate::store::ColdMemory;
    use crate::store::tests::{key, version};

    const ROWS: u32 = 20_000;
    const BLOCK: u32 = 50;

    /// Loads rows of this value in blocks, and returns how often it was looked in vain, and the
    /// most that was in memory.
    fn load(store: &Store, value: &[u8]) -> (usize, usize) {
        let (mut loading, mut looks, mut most) = (Loading::default(), 0, 0);
        for row in 0..ROWS {
            store.apply(TableId(1), key(&row.to_be_bytes()), version(1, Some(value)));
            if row % BLOCK == 0 {
                let before = loading.in_vain_at;
                loading.evict(store);
                looks += usize::from(loading.in_vain_at.is_some() && loading.in_vain_at != before);
                most = most.max(store.memory_bytes());
            }
        }
        loading.end(store);
        (looks, most)
    }

    /// Each block of a checkpoint went round all rows so far, twice.
    #[test]
    fn a_limit_that_cant_be_kept_is_not_tried_for_each_block() {
        let store = Store::with_cold(Box::new(ColdMemory::default()), 10_000);
        // So short that it is within its row.
        let (looks, most) = load(&store, b"short");
        assert!(most > 20 * 10_000, "{most} bytes can't be put away");
        assert!((5..80).contains(&looks), "{looks} looks in vain for {} blocks", ROWS / BLOCK);
    }

    #[test]
    fn what_can_be_put_away_does_not_grow_meanwhile() {
        let all = Store::with_cold(Box::new(ColdMemory::default()), usize::MAX);
        let (_, whole) = load(&all, &[7; 1_000]);
        let none = Store::with_cold(Box::new(ColdMemory::default()), 10_000);
        let (_, most) = load(&none, &[7; 1_000]);
        assert!(most < whole / 4, "{most} of {whole} bytes are in memory");
        assert_eq!(none.cold_counts().cold, u64::from(ROWS));
    }
}
