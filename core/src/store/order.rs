//! The ordered index: which keys a table has, in order.
//!
//! The key space is cut into runs, each a B-tree behind its own lock, so that a scan and an insert
//! meet only where they touch the same keys. A run that grows is split, one that shrinks is joined
//! to the run before it.
//!
//! ```text
//!   runs:   ""       "cat"      "horse"        first key that belongs to the run
//!           |          |           |
//!         lock       lock        lock
//!         ant ..     cat ..      horse ..      B-trees, key -> record
//! ```
//!
//! Reads and updates of a key that exists never come here: they go through the hash table beside
//! it ([`super::table`]). This module is a boundary: an index of another kind has to offer the same
//! four functions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::RwLock;

use super::{read, unlocked, write};
use crate::key::{Direction, Key};

/// A run is split when it holds more keys than this. From 2 to 128 thousand keys, the speed of one
/// thread did not differ by more than the noise; small runs keep splits short and let scans and
/// inserts pass each other, and a table of ten million keys still has fewer than 3,000.
const RUN_KEYS_MAX: usize = if cfg!(test) { 16 } else { 8 * 1024 };

/// A run that shrinks to this many keys is joined to its neighbour, if the two then hold at most
/// half of what a run may.
const RUN_KEYS_MIN: usize = RUN_KEYS_MAX / 8;

/// Every key of a table, in order.
#[derive(Debug)]
pub(super) struct OrderedIndex {
    runs: RwLock<Runs>,
}

/// Runs by the first key that belongs to them.
type Runs = BTreeMap<Key, RwLock<BTreeSet<Key>>>;

impl Default for OrderedIndex {
    fn default() -> Self {
        Self { runs: RwLock::new(first_run()) }
    }
}

/// The run that is always there: its first key is the smallest one that can be.
fn first_run() -> Runs {
    BTreeMap::from([(Key::from(&[][..]), RwLock::default())])
}

/// The run that `key` belongs to.
fn run_of<'a>(runs: &'a Runs, key: &Key) -> &'a RwLock<BTreeSet<Key>> {
    let last = runs.range::<Key, _>(..=key).next_back();
    last.expect("the first run begins with the smallest key").1
}

impl OrderedIndex {
    /// Adds a key, if it is not there yet.
    pub(super) fn insert(&self, key: &Key) {
        let len = {
            let runs = read(&self.runs);
            let mut run = write(run_of(&runs, key));
            run.insert(key.clone());
            run.len()
        };
        if len > RUN_KEYS_MAX {
            self.split(key);
        }
    }

    /// Splits the run that `inserted` went to, if it is still too large.
    fn split(&self, inserted: &Key) {
        let mut runs = write(&self.runs);
        let mut run = write(run_of(&runs, inserted));
        if run.len() <= RUN_KEYS_MAX {
            return;
        }
        // Keys that come in ascending order leave full runs behind, not half empty ones.
        let is_append = run.last() == Some(inserted);
        let middle = if is_append { inserted } else { run.iter().nth(run.len() / 2).expect("len") };
        let middle = middle.clone();
        let upper = run.split_off(&middle);
        drop(run);
        let before = runs.insert(middle, RwLock::new(upper));
        assert!(before.is_none(), "two runs would begin with the same key");
    }

    /// Removes a key, unless it is `wanted` again by the time that its run is locked.
    pub(super) fn remove_unless(&self, key: &Key, wanted: impl FnOnce() -> bool) {
        let len = {
            let runs = read(&self.runs);
            let mut run = write(run_of(&runs, key));
            if wanted() || !run.remove(key) {
                return;
            }
            run.len()
        };
        // Asked at two lengths alone, so that a small run beside a full one does not ask each time.
        if len == RUN_KEYS_MIN || len == 0 {
            self.join(key);
        }
    }

    /// Joins the run that `key` belongs to with the run before it, if they are small.
    fn join(&self, key: &Key) {
        let mut runs = write(&self.runs);
        let mut upto = runs.range_mut::<Key, _>(..=key);
        let (Some((first, upper)), Some((_, lower))) = (upto.next_back(), upto.next_back()) else {
            return;
        };
        let (upper, lower) = (unlocked(upper), unlocked(lower));
        let is_small = upper.len() <= RUN_KEYS_MIN;
        if upper.is_empty() || is_small && upper.len() + lower.len() <= RUN_KEYS_MAX / 2 {
            lower.append(upper);
            let first = first.clone();
            runs.remove(&first);
        }
    }

    /// Appends to `found` up to `limit` keys between two bounds, from the end that
    /// `direction` names. Fewer than `limit` mean that there are no more.
    pub(super) fn collect(
        &self,
        (start, end): (Bound<&Key>, Bound<&Key>),
        direction: Direction,
        limit: usize,
        found: &mut Vec<Key>,
    ) {
        let runs = read(&self.runs);
        // The last run that begins at or before the start holds the start.
        let from = match start {
            Bound::Included(key) | Bound::Excluded(key) => {
                let holding = runs.range::<Key, _>(..=key).next_back();
                holding.map_or(Bound::Unbounded, |(first, _)| Bound::Included(first))
            }
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut touched = runs.range::<Key, _>((from, end));
        while found.len() < limit {
            let next = match direction {
                Direction::Forward => touched.next(),
                Direction::Reverse => touched.next_back(),
            };
            let Some((_, run)) = next else { return };
            let run = read(run);
            let room = limit - found.len();
            let keys = run.range::<Key, _>((start, end)).cloned();
            match direction {
                Direction::Forward => found.extend(keys.take(room)),
                Direction::Reverse => found.extend(keys.rev().take(room)),
            }
        }
    }

    /// Removes every key.
    pub(super) fn clear(&self) {
        *write(&self.runs) = first_run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u16) -> Key {
        Key::from(&number.to_be_bytes()[..])
    }

    fn run_lengths(index: &OrderedIndex) -> Vec<usize> {
        read(&index.runs).values().map(|run| read(run).len()).collect()
    }

    fn collected(index: &OrderedIndex, direction: Direction) -> Vec<Key> {
        let mut found = Vec::new();
        index.collect((Bound::Unbounded, Bound::Unbounded), direction, usize::MAX, &mut found);
        found
    }

    #[test]
    fn runs_split_as_they_grow_and_are_joined_as_they_shrink() {
        let index = OrderedIndex::default();
        // 37 is coprime to 200: every number once, in no order.
        let keys: Vec<_> = (0..200).map(|i| key(i * 37 % 200)).collect();
        keys.iter().for_each(|key| index.insert(key));
        let lengths = run_lengths(&index);
        assert!(
            lengths.len() > 10 && lengths.iter().all(|&len| len <= RUN_KEYS_MAX),
            "{lengths:?}"
        );
        let found = collected(&index, Direction::Forward);
        assert!(found.len() == 200 && found.is_sorted());
        assert!(collected(&index, Direction::Reverse).iter().eq(found.iter().rev()));
        keys.iter().for_each(|key| index.remove_unless(key, || false));
        assert_eq!(run_lengths(&index), [0]);
    }

    #[test]
    fn ascending_keys_leave_full_runs_behind() {
        let index = OrderedIndex::default();
        (0..100).for_each(|i| index.insert(&key(i)));
        let lengths = run_lengths(&index);
        assert!(lengths[..lengths.len() - 1].iter().all(|&len| len == RUN_KEYS_MAX), "{lengths:?}");
    }

    #[test]
    fn an_empty_run_goes_even_beside_a_full_one() {
        let index = OrderedIndex::default();
        (0..40).for_each(|i| index.insert(&key(i)));
        assert_eq!(run_lengths(&index), [16, 16, 8]);
        (16..32).for_each(|i| index.remove_unless(&key(i), || false));
        assert_eq!(run_lengths(&index), [16, 8]);
        assert_eq!(collected(&index, Direction::Reverse).len(), 24);
    }

    #[test]
    fn a_key_that_came_back_is_not_removed() {
        let index = OrderedIndex::default();
        index.insert(&key(7));
        index.remove_unless(&key(7), || true);
        assert_eq!(collected(&index, Direction::Forward), [key(7)]);
        index.remove_unless(&key(7), || false);
        index.remove_unless(&key(7), || false);
        assert_eq!(collected(&index, Direction::Forward), []);
    }
}
