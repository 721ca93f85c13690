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

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock};

use super::table::Record;
use super::{read, write};
use crate::key::{Direction, Key};

/// A run is split when it holds more keys than this. Measured with `benches/store.rs`: inserts into
/// runs of 4 to 16 thousand keys are the fastest, larger ones cost more cache misses and longer
/// locks, smaller ones more splits.
const RUN_KEYS_MAX: usize = if cfg!(test) { 16 } else { 8 * 1024 };

/// A run that shrinks to this many keys is joined to its neighbour, if the two then hold at most
/// half of what a run may.
const RUN_KEYS_MIN: usize = RUN_KEYS_MAX / 8;

/// Every key of a table with its record, in order.
#[derive(Debug)]
pub(super) struct OrderedIndex<H> {
    runs: RwLock<BTreeMap<Key, RwLock<Run<H>>>>,
}

type Run<H> = BTreeMap<Key, Arc<Record<H>>>;

impl<H> Default for OrderedIndex<H> {
    fn default() -> Self {
        Self { runs: RwLock::new(first_run()) }
    }
}

/// The run that is always there: its first key is the smallest one that can be.
fn first_run<H>() -> BTreeMap<Key, RwLock<Run<H>>> {
    BTreeMap::from([(Key::from(&[][..]), RwLock::default())])
}

/// The run that `key` belongs to.
fn run_of<'a, H>(runs: &'a BTreeMap<Key, RwLock<Run<H>>>, key: &[u8]) -> &'a RwLock<Run<H>> {
    let upto = (Bound::Unbounded, Bound::Included(key));
    runs.range::<[u8], _>(upto).next_back().expect("the first run begins with the smallest key").1
}

impl<H> OrderedIndex<H> {
    /// Adds a key, or gives it another record.
    pub(super) fn insert(&self, record: Arc<Record<H>>) {
        let key = record.key().clone();
        let len = {
            let runs = read(&self.runs);
            let mut run = write(run_of(&runs, &key));
            run.insert(key.clone(), record);
            run.len()
        };
        if len > RUN_KEYS_MAX {
            self.split(&key);
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
        let is_append = run.last_key_value().is_some_and(|(last, _)| last == inserted);
        let middle = if is_append { inserted } else { run.keys().nth(run.len() / 2).expect("len") };
        let middle = middle.clone();
        let upper = run.split_off(&middle);
        drop(run);
        let before = runs.insert(middle, RwLock::new(upper));
        assert!(before.is_none(), "two runs would begin with the same key");
    }

    /// Removes a key if it still has this record.
    pub(super) fn remove(&self, record: &Arc<Record<H>>) {
        let key = record.key();
        let len = {
            let runs = read(&self.runs);
            let mut run = write(run_of(&runs, key));
            if !run.get(key).is_some_and(|found| Arc::ptr_eq(found, record)) {
                return;
            }
            run.remove(key);
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
        let (upper, lower) = (super::unlocked(upper), super::unlocked(lower));
        let is_small = upper.len() <= RUN_KEYS_MIN;
        if upper.is_empty() || is_small && upper.len() + lower.len() <= RUN_KEYS_MAX / 2 {
            lower.append(upper);
            let first = first.clone();
            runs.remove(&first);
        }
    }

    /// Appends to `found` up to `limit` records of the keys between two bounds, from the end that
    /// `direction` names. Fewer than `limit` mean that there are no more.
    pub(super) fn collect(
        &self,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        found: &mut Vec<Arc<Record<H>>>,
    ) {
        let runs = read(&self.runs);
        let first = match start {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        // The run before the first one that begins after the start holds the start.
        let from = runs.range::<[u8], _>((Bound::Unbounded, Bound::Included(first))).next_back();
        let from = from.map_or(Bound::Unbounded, |(key, _)| Bound::Included(&key[..]));
        let mut touched = runs.range::<[u8], _>((from, end));
        while found.len() < limit {
            let next = match direction {
                Direction::Forward => touched.next(),
                Direction::Reverse => touched.next_back(),
            };
            let Some((_, run)) = next else { return };
            let run = read(run);
            let room = limit - found.len();
            let keys = run.range::<[u8], _>((start, end)).map(|(_, record)| record.clone());
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
    use super::super::table::Table;
    use super::super::tests::{TestHeader, version};
    use super::*;
    use crate::hash::hash_bytes;

    fn record(table: &Table<TestHeader>, number: u16) -> Arc<Record<TestHeader>> {
        let key = Key::from(&number.to_be_bytes()[..]);
        table.put(hash_bytes(&key), key, version(1, None)).record.expect("the key is new")
    }

    fn run_lengths(index: &OrderedIndex<TestHeader>) -> Vec<usize> {
        read(&index.runs).values().map(|run| read(run).len()).collect()
    }

    fn collected(index: &OrderedIndex<TestHeader>, direction: Direction) -> Vec<Key> {
        let mut found = Vec::new();
        let all = (Bound::Unbounded, Bound::Unbounded);
        index.collect(all, direction, usize::MAX, &mut found);
        found.iter().map(|record| record.key().clone()).collect()
    }

    #[test]
    fn runs_split_as_they_grow_and_are_joined_as_they_shrink() {
        let (table, index) = (Table::new(), OrderedIndex::default());
        // 37 is coprime to 200: every number once, in no order.
        let records: Vec<_> = (0..200).map(|i| record(&table, i * 37 % 200)).collect();
        records.iter().for_each(|record| index.insert(record.clone()));
        let lengths = run_lengths(&index);
        assert!(
            lengths.len() > 10 && lengths.iter().all(|&len| len <= RUN_KEYS_MAX),
            "{lengths:?}"
        );
        let keys = collected(&index, Direction::Forward);
        assert!(keys.len() == 200 && keys.is_sorted());
        assert!(collected(&index, Direction::Reverse).iter().eq(keys.iter().rev()));
        records.iter().for_each(|record| index.remove(record));
        assert_eq!(run_lengths(&index), [0]);
    }

    #[test]
    fn ascending_keys_leave_full_runs_behind() {
        let (table, index) = (Table::new(), OrderedIndex::default());
        (0..100).for_each(|i| index.insert(record(&table, i)));
        let lengths = run_lengths(&index);
        assert!(lengths[..lengths.len() - 1].iter().all(|&len| len == RUN_KEYS_MAX), "{lengths:?}");
    }

    #[test]
    fn a_key_that_came_back_is_not_removed_with_its_old_record() {
        let (before, after, index) = (Table::new(), Table::new(), OrderedIndex::default());
        let old = record(&before, 7);
        index.insert(old.clone());
        index.insert(record(&after, 7));
        index.remove(&old);
        assert_eq!(collected(&index, Direction::Forward).len(), 1);
    }
}
