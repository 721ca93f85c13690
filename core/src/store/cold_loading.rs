//! The memory limit during the loading of a store, even if the limit cannot be kept.
//!
//! Data that cannot be evicted, above all keys and headers, may exceed the limit. Searching all
//! rows for each block of loaded rows would take quadratic time. After an unsuccessful search, the
//! next one therefore waits until memory has grown by a fraction.

use super::Store;
use crate::ids::SnapshotVersion;

/// After an unsuccessful search, memory must grow by one part in this many before the next. Memory
/// exceeds the possible minimum by no more than this.
const GROWN_PART: usize = 8;

/// The progress of loading a store. Each row is written once, and no version is published.
#[derive(Debug, Default)]
pub struct Loading {
    /// The memory after an unsuccessful search.
    in_vain_at: Option<usize>,
}

impl Loading {
    /// Called after rows were loaded. Evicts values while memory is above its limit, if that can
    /// succeed.
    pub fn evict(&mut self, store: &Store) {
        let is_early = |at: usize| store.memory_bytes() < at + at / GROWN_PART;
        if store.has_cold() && !self.in_vain_at.is_some_and(is_early) {
            let is_kept = store.evict_upto(SnapshotVersion(u64::MAX));
            self.in_vain_at = (!is_kept).then(|| store.memory_bytes());
        }
    }

    /// Called after the last row.
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

    /// Loads rows of this value in blocks. Returns the number of unsuccessful searches and the
    /// maximum memory.
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

    /// Each block of a checkpoint once caused two passes over all rows loaded so far.
    #[test]
    fn a_limit_that_cant_be_kept_is_not_tried_for_each_block() {
        let store = Store::with_cold(Box::new(ColdMemory::default()), 10_000);
        // So short that it is stored inline.
        let (looks, most) = load(&store, b"short");
        assert!(most > 20 * 10_000, "{most} bytes can't be evicted");
        assert!((5..80).contains(&looks), "{looks} unsuccessful checks of {} blocks", ROWS / BLOCK);
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
