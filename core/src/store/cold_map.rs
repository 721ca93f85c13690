//! A compact map of the cold rows, for other nodes, which order transactions that need them (Calvin
//! §4.2).
//!
//! All rows whose hashes map to the same bit share it. A warm row that shares the bit of a cold one
//! is reported as cold; this costs time but is otherwise harmless.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::lock;
use crate::hash::hash_bytes;
use crate::ids::TableId;
use crate::key::Key;
use crate::sync::Mutex;

/// The minimum and maximum number of bits in a map: two kilobytes and two megabytes.
const BITS: (usize, usize) = (1 << 14, 1 << 24);
/// The memory limit in bytes for each bit. There may be ten times as many cold rows as warm ones.
const BYTES_A_BIT: usize = 16;
/// A map with more than one in this many bits set is ignored. At this density it would delay one in
/// six transactions that have ten warm rows each, and with a quarter of its bits set nearly all.
const FULL_PART: u32 = 64;

/// Counting Bloom filter: the number of cold rows for each bit.
#[derive(Debug)]
pub(super) struct ColdRows {
    counts: Box<[AtomicU8]>,
    /// One bit for each word of the map that may be out of date.
    stale: Box<[AtomicU64]>,
    /// The last computed map, of which only the stale words are updated.
    made: Mutex<Vec<u64>>,
}

impl ColdRows {
    /// Creates counters for a store with this memory limit.
    pub(super) fn new(bytes_max: usize) -> Self {
        let bits = (bytes_max / BYTES_A_BIT).next_power_of_two().clamp(BITS.0, BITS.1);
        let stale = (0..bits / 64 / 64).map(|_| AtomicU64::new(0)).collect();
        let counts = (0..bits).map(|_| AtomicU8::new(0)).collect();
        Self { counts, stale, made: Mutex::new(vec![0; bits / 64]) }
    }

    /// Records that a row became cold.
    pub(super) fn add(&self, table: TableId, hash: u64) {
        self.change((table, hash), 0, |count| Some(count.saturating_add(1)));
    }

    /// Records that a row is no longer cold.
    pub(super) fn remove(&self, table: TableId, hash: u64) {
        // A saturated counter stays saturated, because its true value is unknown.
        self.change((table, hash), 1, |count| (count < u8::MAX).then(|| count.saturating_sub(1)));
    }

    /// Updates the counter of a row's bit. If the counter was `last`, the bit changes.
    fn change(&self, (table, hash): Place, last: u8, change: impl FnMut(u8) -> Option<u8>) {
        let bit = bit_of(table, hash, self.counts.len());
        let changed = self.counts[bit].fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        if changed == Ok(last) {
            let word = bit / 64;
            // A thread that sees this bit sees the counter too.
            self.stale[word / 64].fetch_or(1 << (word % 64), Ordering::Release);
        }
    }

    pub(super) fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.stale.iter().for_each(|words| words.store(u64::MAX, Ordering::Release));
    }

    pub(super) fn map(&self) -> ColdMap {
        let mut made = lock(&self.made);
        for (at, stale) in self.stale.iter().enumerate() {
            let mut stale = match stale.load(Ordering::Relaxed) {
                0 => continue,
                _ => stale.swap(0, Ordering::Acquire),
            };
            while stale != 0 {
                let word = at * 64 + stale.trailing_zeros() as usize;
                made[word] = self.word(word);
                stale &= stale - 1;
            }
        }
        ColdMap::new(made.clone())
    }

    fn word(&self, word: usize) -> u64 {
        let counts = self.counts[word * 64..(word + 1) * 64].iter().enumerate();
        counts.map(|(at, count)| u64::from(count.load(Ordering::Relaxed) > 0) << at).sum()
    }
}

/// A row's table and the hash of its key.
type Place = (TableId, u64);

fn bit_of(table: TableId, hash: u64, bits: usize) -> usize {
    let mixed = (hash ^ u64::from(table.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as usize & (bits - 1)
}

/// The cold rows of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColdMap {
    words: Vec<u64>,
    is_full: bool,
}

impl ColdMap {
    /// The maximum number of words in a map.
    pub const WORDS_MAX: usize = BITS.1 / 64;

    fn new(words: Vec<u64>) -> Self {
        let ones: u32 = words.iter().map(|word| word.count_ones()).sum();
        let is_full = ones as usize > words.len() * 64 / FULL_PART as usize;
        Self { words, is_full }
    }

    /// Whether a row may be cold, according to the map.
    pub fn has(&self, table: TableId, key: &Key) -> bool {
        if self.words.is_empty() || self.is_full {
            return false;
        }
        let bit = bit_of(table, hash_bytes(key), self.words.len() * 64);
        self.words[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// The number of words: a power of two, or zero.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether the map has no words.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The words that differ from `before`, with their indexes.
    pub fn changes_since(&self, before: &Self) -> Vec<(usize, u64)> {
        let was = |at: usize| before.words.get(at).copied().unwrap_or(0);
        let words = self.words.iter().copied().enumerate();
        words.filter(|(at, word)| was(*at) != *word).collect()
    }

    /// Updates words of the map. If its length changes, the map is cleared first.
    ///
    /// # Panics
    /// If `len` is neither a power of two nor 0, or an index is out of range.
    pub fn change(&mut self, len: usize, changes: &[(usize, u64)]) {
        assert!(len == 0 || len.is_power_of_two(), "a map of {len} words");
        let mut words = std::mem::take(&mut self.words);
        if words.len() != len {
            words = vec![0; len];
        }
        changes.iter().for_each(|(at, word)| words[*at] = *word);
        *self = Self::new(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_follows_what_becomes_cold_and_warm_by_its_changes() {
        let (rows, table) = (ColdRows::new(0), TableId(3));
        let keys: Vec<Key> = (0..40_u8).map(|i| Key::from(&[i][..])).collect();
        keys.iter().for_each(|key| rows.add(table, hash_bytes(key)));
        let (first, mut copy) = (rows.map(), ColdMap::default());
        copy.change(first.len(), &first.changes_since(&ColdMap::default()));
        assert!(copy == first && keys.iter().all(|key| copy.has(table, key)));
        keys[..30].iter().for_each(|key| rows.remove(table, hash_bytes(key)));
        let second = rows.map();
        copy.change(second.len(), &second.changes_since(&first));
        assert_eq!(copy, second);
        let still = keys.iter().filter(|key| copy.has(table, key)).count();
        assert!((10..14).contains(&still), "{still}, some of which share a bit");
    }

    #[test]
    fn a_map_that_is_full_says_nothing() {
        let (rows, key) = (ColdRows::new(0), Key::from(&b"k"[..]));
        let has = |rows: &ColdRows| rows.map().has(TableId(1), &key);
        rows.add(TableId(1), hash_bytes(&key));
        assert!(has(&rows));
        (0..300_u64).for_each(|i| rows.add(TableId(2), hash_bytes(&i.to_le_bytes())));
        assert!(!has(&rows));
    }

    /// With a quarter of its bits set, a map once delayed nearly all transactions that needed ten
    /// warm rows.
    #[test]
    fn a_map_that_says_something_seldom_says_that_a_warm_row_is_cold() {
        let (rows, table) = (ColdRows::new(0), TableId(1));
        let key = |i: u64| Key::from(&i.to_le_bytes()[..]);
        let mut wrong = 0;
        for cold in 0..300 {
            rows.add(table, hash_bytes(&key(cold)));
            let map = rows.map();
            wrong = wrong.max((1_000..2_000).filter(|i| map.has(table, &key(*i))).count());
        }
        assert!((1..30).contains(&wrong), "{wrong} of 1000");
    }

    /// Rows that share a bit are counted up to a limit. Above it nobody knows how many are cold.
    #[test]
    fn a_bit_stays_while_one_of_its_rows_is_cold() {
        let (rows, key) = (ColdRows::new(0), Key::from(&b"k"[..]));
        let place = (TableId(1), hash_bytes(&key));
        let add = |count: usize| (0..count).for_each(|_| rows.add(place.0, place.1));
        let remove = |count: usize| (0..count).for_each(|_| rows.remove(place.0, place.1));
        let has = || rows.map().has(TableId(1), &key);
        add(2);
        remove(1);
        assert!(has(), "one of two is left");
        remove(1);
        assert!(!has());
        add(300);
        remove(299);
        assert!(has(), "one of three hundred is left");
        remove(1);
        assert!(has(), "their number is unknown");
    }
}
