//! The keys with the most conflicts between transactions: `pangea.hot_keys`.
//!
//! The sketch is "space saving" (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent
//! and Top-k Elements in Data Streams, 2005). It counts n keys; a new key replaces the key with the
//! lowest count and inherits that count. Any key with more than 1/n of all conflicts is among the
//! counted ones. Its count is too large by at most [`HotKey::error`].

use std::sync::{Mutex, MutexGuard, PoisonError};

use pangea_core::ids::TableId;
use pangea_core::key::Key;

/// The number of keys that are counted.
pub(crate) const KEYS_MAX: usize = 128;
/// The maximum length of a stored key; longer keys are truncated.
const KEY_BYTES_MAX: usize = 256;

/// A key that transactions conflict on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HotKey {
    /// The table or index of the store that contains the key.
    pub table: TableId,
    pub key: Key,
    pub conflicts: u64,
    /// The maximum error of `conflicts`, which may be too large.
    pub error: u64,
    /// The time of the last conflict: microseconds since 2000-01-01.
    pub last: i64,
}

/// The hot keys of a node.
#[derive(Debug, Default)]
pub(crate) struct HotKeys {
    counted: Mutex<Vec<HotKey>>,
}

impl HotKeys {
    fn counted(&self) -> MutexGuard<'_, Vec<HotKey>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a conflict of two transactions at a key.
    pub(crate) fn note(&self, table: TableId, key: &[u8], now: i64) {
        let key = &key[..key.len().min(KEY_BYTES_MAX)];
        let mut counted = self.counted();
        let is_it = |it: &&mut HotKey| it.table == table && it.key.as_bytes() == key;
        if let Some(found) = counted.iter_mut().find(is_it) {
            found.conflicts += 1;
            found.last = now;
            return;
        }
        let new =
            |conflicts, error| HotKey { table, key: Key::from(key), conflicts, error, last: now };
        if counted.len() < KEYS_MAX {
            return counted.push(new(1, 0));
        }
        if let Some(least) = counted.iter_mut().min_by_key(|it| it.conflicts) {
            *least = new(least.conflicts + 1, least.conflicts);
        }
    }

    /// Returns the keys, hottest first.
    pub(crate) fn all(&self) -> Vec<HotKey> {
        let mut all = self.counted().clone();
        all.sort_by_key(|it| std::cmp::Reverse((it.conflicts, it.last)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_key_stays_however_many_others_there_are() {
        let hot_keys = HotKeys::default();
        for round in 0..2_000u32 {
            hot_keys.note(TableId(1), b"hot", i64::from(round));
            hot_keys.note(TableId(1), &round.to_be_bytes(), i64::from(round));
        }
        let all = hot_keys.all();
        assert_eq!(all.len(), KEYS_MAX);
        assert_eq!((all[0].key.as_bytes(), all[0].conflicts), (&b"hot"[..], 2_000));
        assert_eq!((all[0].error, all[0].last), (0, 1_999));
        assert!(all[1].conflicts - all[1].error <= 1, "the others came once: {:?}", all[1]);
        let total: u64 = all.iter().map(|it| it.conflicts).sum();
        assert_eq!(total, 4_000, "no conflict is lost");
    }

    #[test]
    fn keys_of_two_tables_are_two_and_long_ones_are_cut() {
        let hot_keys = HotKeys::default();
        hot_keys.note(TableId(1), b"k", 0);
        hot_keys.note(TableId(2), b"k", 0);
        hot_keys.note(TableId(2), &[7; 1_000], 0);
        let lengths: Vec<_> = hot_keys.all().iter().map(|it| it.key.len()).collect();
        assert_eq!(lengths, [1, 1, KEY_BYTES_MAX]);
    }
}
