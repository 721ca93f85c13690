//! The ordered index: which keys a table has, in order.
//!
//! The key space is cut into runs, each a sorted vector behind its own lock, so that a scan and an
//! insert meet only where they touch the same keys. A run that grows is split, one that shrinks is
//! joined to the run before it.
//!
//! ```text
//!   runs:   ""       "cat"      "horse"        first key that belongs to the run
//!           |          |           |
//!         lock       lock        lock
//!         ant ..     cat ..      horse ..      sorted vectors of keys
//! ```
//!
//! Keys most often come in clusters, as the lines of an order do, and at the end of what is there:
//! a cluster costs one descent and one copy.
//!
//! Reads and updates of a key that exists never come here: they go through the hash table beside
//! it ([`super::table`]). This module is a boundary: an index of another kind has to offer the same
//! four functions.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::RwLock;

use super::{read, unlocked, write};
use crate::ids::TableId;
use crate::key::{Direction, Key};

/// A run is split when it holds more keys than this: 6 KB, of which an insert moves half.
const RUN_KEYS_MAX: usize = if cfg!(test) { 16 } else { 256 };

/// A run that shrinks to this many keys is joined to its neighbour, if the two then hold at most
/// half of what a run may.
const RUN_KEYS_MIN: usize = RUN_KEYS_MAX / 8;

/// Every key of a table, in order.
#[derive(Debug)]
pub(super) struct OrderedIndex {
    runs: RwLock<Runs>,
}

/// A key that is new in this table.
pub(super) type NewKey = (TableId, Key);

/// Runs by the first key that belongs to them.
type Runs = BTreeMap<Key, RwLock<Run>>;

/// The keys from one bound to the next.
#[derive(Debug, Default)]
struct Run {
    /// In ascending order.
    keys: Vec<Key>,
    /// Where the next run begins.
    end: Option<Key>,
}

impl Run {
    /// Where the keys within two bounds are.
    fn within(&self, start: Bound<&Key>, end: Bound<&Key>) -> Range<usize> {
        let before = |bound: &Key| self.keys.partition_point(|key| key < bound);
        let upto = |bound: &Key| self.keys.partition_point(|key| key <= bound);
        let from = match start {
            Bound::Included(key) => before(key),
            Bound::Excluded(key) => upto(key),
            Bound::Unbounded => 0,
        };
        let end = match end {
            Bound::Included(key) => upto(key),
            Bound::Excluded(key) => before(key),
            Bound::Unbounded => self.keys.len(),
        };
        from..end.max(from)
    }

    /// How many of these ascending keys belong to the run.
    fn count_of(&self, keys: &[NewKey]) -> usize {
        match &self.end {
            Some(end) => keys.partition_point(|(_, key)| key < end),
            None => keys.len(),
        }
    }

    /// Adds ascending keys.
    fn insert(&mut self, added: &[NewKey]) {
        let ((_, first), (_, last)) = (&added[0], &added[added.len() - 1]);
        let cloned = added.iter().map(|(_, key)| key.clone());
        if self.keys.last().is_none_or(|key| key < first) {
            return self.keys.extend(cloned);
        }
        let mut from = self.keys.partition_point(|key| key < first);
        if last < &self.keys[from] {
            self.keys.splice(from..from, cloned);
            return;
        }
        for (_, key) in added {
            from += self.keys[from..].partition_point(|other| other < key);
            if self.keys.get(from) != Some(key) {
                self.keys.insert(from, key.clone());
            }
        }
    }
}

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
fn run_of<'a>(runs: &'a Runs, key: &Key) -> &'a RwLock<Run> {
    let last = runs.range::<Key, _>(..=key).next_back();
    last.expect("the first run begins with the smallest key").1
}

impl OrderedIndex {
    /// Adds keys, in ascending order, that may be there already.
    pub(super) fn insert(&self, mut keys: &[NewKey]) {
        while let Some((_, first)) = keys.first() {
            let (count, len) = {
                let runs = read(&self.runs);
                let mut run = write(run_of(&runs, first));
                let count = run.count_of(keys).min(RUN_KEYS_MAX / 2);
                run.insert(&keys[..count]);
                (count, run.keys.len())
            };
            if len > RUN_KEYS_MAX {
                self.split(&keys[count - 1].1);
            }
            keys = &keys[count..];
        }
    }

    /// Splits the run that `inserted` went to, if it is still too large.
    fn split(&self, inserted: &Key) {
        let mut runs = write(&self.runs);
        let mut run = write(run_of(&runs, inserted));
        let len = run.keys.len();
        if len <= RUN_KEYS_MAX {
            return;
        }
        // The next key will most often come right after this one. It then goes to the end of a run,
        // and keys in ascending order leave full runs behind, not half empty ones.
        let after = run.keys.partition_point(|key| key <= inserted);
        let at = match after {
            _ if after == len => RUN_KEYS_MAX,
            RUN_KEYS_MIN.. if len - after >= RUN_KEYS_MIN => after,
            _ => len / 2,
        };
        let keys = run.keys.split_off(at);
        let middle = keys[0].clone();
        let upper = Run { keys, end: run.end.replace(middle.clone()) };
        drop(run);
        let before = runs.insert(middle, RwLock::new(upper));
        assert!(before.is_none(), "two runs would begin with the same key");
    }

    /// Removes a key, unless it is `wanted` again by the time that its run is locked.
    pub(super) fn remove_unless(&self, key: &Key, wanted: impl FnOnce() -> bool) {
        let len = {
            let runs = read(&self.runs);
            let mut run = write(run_of(&runs, key));
            let Ok(at) = run.keys.binary_search(key) else { return };
            if wanted() {
                return;
            }
            run.keys.remove(at);
            run.keys.len()
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
        let (upper_len, lower_len) = (upper.keys.len(), lower.keys.len());
        let is_small = upper_len <= RUN_KEYS_MIN && upper_len + lower_len <= RUN_KEYS_MAX / 2;
        if upper_len == 0 || is_small {
            lower.keys.append(&mut upper.keys);
            lower.end = upper.end.take();
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
            let keys = &run.keys[run.within(start, end)];
            match direction {
                Direction::Forward => found.extend_from_slice(&keys[..keys.len().min(room)]),
                Direction::Reverse => found.extend(keys.iter().rev().take(room).cloned()),
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

    fn new(key: Key) -> NewKey {
        (TableId(1), key)
    }

    fn run_lengths(index: &OrderedIndex) -> Vec<usize> {
        read(&index.runs).values().map(|run| read(run).keys.len()).collect()
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
        keys.iter().for_each(|key| index.insert(&[new(key.clone())]));
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
    fn clusters_go_where_they_belong_whatever_is_there() {
        let index = OrderedIndex::default();
        let mut expected = std::collections::BTreeSet::new();
        // Clusters that overlap, repeat, end runs and are longer than a run.
        for (step, len) in [3, 40, 1, 7, 19, 2].into_iter().cycle().take(90).enumerate() {
            let start = step as u16 * 83 % 500;
            let cluster: Vec<_> = (start..start + len).map(key).collect();
            let added: Vec<_> = cluster.iter().cloned().map(new).collect();
            index.insert(&added);
            expected.extend(cluster);
            assert!(collected(&index, Direction::Forward).iter().eq(&expected), "step {step}");
        }
        let runs = read(&index.runs);
        let ends = runs.values().map(|run| read(run).end.clone());
        let starts = runs.keys().skip(1).cloned().map(Some).chain([None]);
        assert!(ends.eq(starts), "each run ends where the next begins");
    }

    #[test]
    fn ascending_keys_leave_full_runs_behind() {
        let index = OrderedIndex::default();
        (0..100).for_each(|i| index.insert(&[new(key(i))]));
        let lengths = run_lengths(&index);
        assert!(lengths[..lengths.len() - 1].iter().all(|&len| len == RUN_KEYS_MAX), "{lengths:?}");
    }

    #[test]
    fn an_empty_run_goes_even_beside_a_full_one() {
        let index = OrderedIndex::default();
        (0..40).for_each(|i| index.insert(&[new(key(i))]));
        assert_eq!(run_lengths(&index), [16, 16, 8]);
        (16..32).for_each(|i| index.remove_unless(&key(i), || false));
        assert_eq!(run_lengths(&index), [16, 8]);
        assert_eq!(collected(&index, Direction::Reverse).len(), 24);
    }

    #[test]
    fn a_key_that_came_back_is_not_removed() {
        let index = OrderedIndex::default();
        index.insert(&[new(key(7))]);
        index.remove_unless(&key(7), || true);
        assert_eq!(collected(&index, Direction::Forward), [key(7)]);
        index.remove_unless(&key(7), || false);
        index.remove_unless(&key(7), || false);
        assert_eq!(collected(&index, Direction::Forward), []);
    }
}
