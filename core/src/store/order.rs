//! The ordered index: the keys of a table, in order.
//!
//! The key space is divided into runs. Each is a sorted vector with its own lock, so a scan and an
//! insert wait for each other only if they access the same keys. A run that grows is split; one
//! that shrinks is joined to the run before it.
//!
//! ```text
//!   runs:   ""       "cat"      "horse"        first key that belongs to the run
//!           |          |           |
//!         lock       lock        lock
//!         ant ..     cat ..      horse ..      sorted vectors of keys
//! ```
//!
//! A descent to a run causes many cache misses, and new keys usually come in clusters after the
//! existing ones, like order lines. New keys are therefore kept in a pending list until a scan
//! needs them or there are many. Then they are sorted, and a cluster costs one descent and one
//! copy, even if its keys come from different transactions.
//!
//! Reads and updates of existing keys never use this index; they use the hash table
//! ([`super::table`]). This module is a boundary: another kind of index would have to offer the
//! same four functions.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::atomic::Ordering;

use super::search::count_before;
use super::{lock, read, unlocked, write};
use crate::key::{Direction, Key};
use crate::pool::{Pool, Sequential};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Mutex, RwLock};

/// The maximum number of keys in a run: 6 KB, of which an insert moves half.
const RUN_KEYS_MAX: usize = if cfg!(test) { 16 } else { 256 };

/// A run that shrinks to this many keys is joined to its predecessor, if the two then have at most
/// half of the maximum.
const RUN_KEYS_MIN: usize = RUN_KEYS_MAX / 8;

/// The maximum number of pending keys. More of them would share descents, but the thread that
/// reaches the limit must sort and insert all, which should take no more than some milliseconds.
const WAITING_KEYS_MAX: usize = if cfg!(test) { 64 } else { 1 << 13 };

/// The maximum capacity that the pending list keeps when it is emptied.
const WAITING_KEYS_KEPT: usize = 1 << 14;

/// The minimum number of keys for each worker. An estimate, not measured: a wake-up takes about 5
/// us.
const PART_KEYS_MIN: usize = if cfg!(test) { 2 } else { 128 };

/// The minimum average size of clusters for which sorting clusters is faster than sorting keys.
const CLUSTER_KEYS_MIN: usize = 3;

/// All keys of a table, in order.
#[derive(Debug)]
pub(super) struct OrderedIndex {
    runs: RwLock<Runs>,
    /// Pending keys, which are not in a run yet. Locked until they all are, so that a thread that
    /// finds none pending finds all of them in the runs.
    waiting: Mutex<Waiting>,
    /// Whether keys are pending. Readable without the lock.
    has_waiting: AtomicBool,
}

/// Runs by the first key that belongs to them.
type Runs = BTreeMap<Key, RwLock<Run>>;

/// Pending keys, in any order.
#[derive(Debug, Default)]
struct Waiting {
    keys: Vec<Key>,
    /// The indexes at which groups of keys that were added together begin, usually one for each
    /// transaction.
    starts: Vec<u32>,
}

/// The keys from one bound to the next.
#[derive(Debug, Default)]
struct Run {
    /// In ascending order.
    keys: Vec<Key>,
    /// The first key of the next run.
    end: Option<Key>,
}

impl Run {
    /// The positions of the keys within two bounds.
    fn within(&self, start: Bound<&Key>, end: Bound<&Key>) -> Range<usize> {
        let from = match start {
            Bound::Included(key) => count_before(&self.keys, |other| other.is_before(key)),
            Bound::Excluded(key) => count_before(&self.keys, |other| !key.is_before(other)),
            Bound::Unbounded => 0,
        };
        let after = &self.keys[from..];
        let len = match end {
            Bound::Included(key) => gallop(after, |other| other <= key),
            Bound::Excluded(key) => gallop(after, |other| other < key),
            Bound::Unbounded => after.len(),
        };
        from..from + len
    }

    /// Whether all keys up to a bound are in this run or earlier ones.
    fn reaches(&self, end: Bound<&Key>) -> bool {
        let Some(next) = &self.end else { return true };
        match end {
            Bound::Included(key) => key < next,
            Bound::Excluded(key) => key <= next,
            Bound::Unbounded => false,
        }
    }

    /// The number of these ascending keys that belong to the run.
    fn count_of(&self, keys: &[Key]) -> usize {
        match &self.end {
            Some(end) => keys.partition_point(|key| key < end),
            None => keys.len(),
        }
    }

    /// Adds ascending keys.
    fn insert(&mut self, added: &[Key]) {
        let (first, last) = (&added[0], &added[added.len() - 1]);
        let cloned = added.iter().cloned();
        if self.keys.last().is_none_or(|key| key < first) {
            return self.keys.extend(cloned);
        }
        let mut from = count_before(&self.keys, |key| key.is_before(first));
        if last < &self.keys[from] {
            self.keys.splice(from..from, cloned);
            return;
        }
        for key in added {
            from += self.keys[from..].partition_point(|other| other < key);
            if self.keys.get(from) != Some(key) {
                self.keys.insert(from, key.clone());
            }
        }
    }
}

impl Waiting {
    fn extend(&mut self, keys: impl IntoIterator<Item = Key>) {
        let start = self.keys.len();
        self.keys.extend(keys);
        if self.keys.len() > start {
            self.starts.push(start as u32);
        }
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.keys.shrink_to(WAITING_KEYS_KEPT);
        self.starts.clear();
        self.starts.shrink_to(WAITING_KEYS_KEPT);
    }
}

/// Sorts keys and removes duplicates. Most keys come in clusters that are sorted already, like the
/// lines of one order; then only the clusters are sorted. Keys that were not added together do not
/// form a cluster, because other keys may be between them.
fn sort(Waiting { keys, starts }: &mut Waiting) {
    let ends = starts.iter().skip(1).map(|&next| next as usize).chain([keys.len()]);
    let together = starts.iter().zip(ends).map(|(&start, end)| &keys[start as usize..end]);
    let mut clusters: Vec<&[Key]> = together.flat_map(|keys| keys.chunk_by(|a, b| a < b)).collect();
    if clusters.len() <= keys.len() / CLUSTER_KEYS_MIN {
        clusters.sort_unstable_by(|a, b| a[0].cmp(&b[0]));
        if clusters.windows(2).all(|pair| pair[0].last() < pair[1].first()) {
            *keys = clusters.concat();
            return;
        }
    }
    keys.sort_unstable();
    keys.dedup();
}

/// The number of first keys for which `is_before` holds. Like a partition point, but with few
/// comparisons near the start, because most ranges are short.
fn gallop(keys: &[Key], is_before: impl Fn(&Key) -> bool) -> usize {
    let mut upto = 1;
    while upto < keys.len() && is_before(&keys[upto - 1]) {
        upto *= 2;
    }
    let from = upto / 2;
    from + keys[from..upto.min(keys.len())].partition_point(is_before)
}

impl Default for OrderedIndex {
    fn default() -> Self {
        Self {
            runs: RwLock::new(first_run()),
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
        }
    }
}

/// The run that always exists: its first key is the smallest possible one.
fn first_run() -> Runs {
    BTreeMap::from([(Key::from(&[][..]), RwLock::default())])
}

/// The run to which `key` belongs.
fn run_of<'a>(runs: &'a Runs, key: &Key) -> &'a RwLock<Run> {
    let last = runs.range::<Key, _>(..=key).next_back();
    last.expect("the first run begins with the smallest key").1
}

impl OrderedIndex {
    /// Adds keys, which may exist already, to the pending list. Returns whether none were pending
    /// before.
    pub(super) fn add(&self, keys: impl IntoIterator<Item = Key>) -> bool {
        let mut waiting = lock(&self.waiting);
        let is_first = waiting.keys.is_empty();
        waiting.extend(keys);
        if waiting.keys.len() >= WAITING_KEYS_MAX {
            self.insert_all(&Sequential, &mut waiting);
        }
        // Release: a thread that reads this sees at least the list of this moment.
        self.has_waiting.store(!waiting.keys.is_empty(), Ordering::Release);
        is_first
    }

    /// Inserts all pending keys into the runs.
    pub(super) fn settle(&self, pool: &dyn Pool) {
        if !self.has_waiting.load(Ordering::Acquire) {
            return;
        }
        let mut waiting = lock(&self.waiting);
        self.insert_all(pool, &mut waiting);
        self.has_waiting.store(false, Ordering::Release);
    }

    /// Inserts all keys of a pending list into the runs, and empties it.
    fn insert_all(&self, pool: &dyn Pool, waiting: &mut Waiting) {
        sort(waiting);
        let keys = &waiting.keys;
        let parts = pool.workers().min(keys.len() / PART_KEYS_MIN).max(1);
        let by_key: Vec<_> = keys.chunks(keys.len().div_ceil(parts).max(1)).collect();
        // Jobs access the same run only at the edges of their partitions.
        pool.run(by_key.len(), &|part| self.insert(by_key[part]));
        waiting.clear();
    }

    /// Inserts ascending keys, which may exist already.
    fn insert(&self, mut keys: &[Key]) {
        while let Some(first) = keys.first() {
            let (count, len) = {
                let runs = read(&self.runs);
                let mut run = write(run_of(&runs, first));
                let count = run.count_of(keys).min(RUN_KEYS_MAX / 2);
                run.insert(&keys[..count]);
                (count, run.keys.len())
            };
            if len > RUN_KEYS_MAX {
                self.split(&keys[count - 1]);
            }
            keys = &keys[count..];
        }
    }

    /// Splits the run that contains `inserted`, if it is still too large.
    fn split(&self, inserted: &Key) {
        let mut runs = write(&self.runs);
        let mut run = write(run_of(&runs, inserted));
        let len = run.keys.len();
        if len <= RUN_KEYS_MAX {
            return;
        }
        // The next key usually follows this one directly. After this split it is appended to a run,
        // so that ascending keys leave full runs instead of half-empty ones.
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

    /// Removes a key, unless it is `wanted` again once its run is locked.
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
        // Checked at only two lengths, so that a small run next to a full one does not check each
        // time.
        if len == RUN_KEYS_MIN || len == 0 {
            self.join(key);
        }
    }

    /// Joins the run of `key` with the run before it, if they are small.
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

    /// Appends up to `limit` keys between two bounds to `found`, in this direction. Fewer than
    /// `limit` keys mean that there are no more.
    pub(super) fn collect(
        &self,
        (start, end): (Bound<&Key>, Bound<&Key>),
        direction: Direction,
        limit: usize,
        found: &mut Vec<Key>,
    ) {
        let runs = read(&self.runs);
        let mut take = |run: &Run| {
            let room = limit - found.len();
            let keys = &run.keys[run.within(start, end)];
            match direction {
                Direction::Forward => found.extend_from_slice(&keys[..keys.len().min(room)]),
                Direction::Reverse => found.extend(keys.iter().rev().take(room).cloned()),
            }
            found.len() == limit
        };
        // The last run that begins at or before the start contains the start, and usually the end.
        let from = match start {
            Bound::Included(key) | Bound::Excluded(key) => {
                let holding = runs.range::<Key, _>(..=key).next_back();
                let (first, run) = holding.expect("the first run begins with the smallest key");
                let run = read(run);
                if run.reaches(end) {
                    take(&run);
                    return;
                }
                Bound::Included(first)
            }
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut touched = runs.range::<Key, _>((from, end));
        loop {
            let next = match direction {
                Direction::Forward => touched.next(),
                Direction::Reverse => touched.next_back(),
            };
            let Some((_, run)) = next else { return };
            if take(&read(run)) {
                return;
            }
        }
    }

    /// Removes all keys.
    pub(super) fn clear(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.clear();
        self.has_waiting.store(false, Ordering::Release);
        *write(&self.runs) = first_run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clusters overlap or not, and some keys occur twice or outside of a cluster.
    #[test]
    fn keys_are_sorted_by_clusters_as_they_would_be_one_by_one() {
        let mut rng = fastrand::Rng::with_seed(5);
        for round in 0..2_000 {
            let width = rng.u8(1..32);
            let mut starts: Vec<u8> = (0..8).map(|at| at * 32).collect();
            rng.shuffle(&mut starts);
            let mut waiting = Waiting::default();
            for mut start in starts {
                if round % 2 == 0 {
                    start = start.wrapping_add(rng.u8(..));
                }
                let cluster = start..start.saturating_add(rng.u8(1..=width));
                let keys: Vec<Key> = cluster.map(|byte| Key::from(&[byte][..])).collect();
                let (first, rest) = keys.split_at(rng.usize(0..=keys.len()));
                waiting.extend(rest.iter().cloned());
                waiting.extend(first.iter().cloned());
            }
            let mut expected = waiting.keys.clone();
            expected.sort();
            expected.dedup();
            sort(&mut waiting);
            assert_eq!(waiting.keys, expected);
        }
    }

    fn key(number: u16) -> Key {
        Key::from(&number.to_be_bytes()[..])
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
        // 37 is coprime to 200: each number occurs once, out of order.
        let keys: Vec<_> = (0..200).map(|i| key(i * 37 % 200)).collect();
        keys.chunks(1).for_each(|key| index.insert(key));
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
        // Clusters that overlap, repeat, end runs, or are longer than a run.
        for (step, len) in [3, 40, 1, 7, 19, 2].into_iter().cycle().take(90).enumerate() {
            let start = step as u16 * 83 % 500;
            let cluster: Vec<_> = (start..start + len).map(key).collect();
            index.insert(&cluster);
            expected.extend(cluster);
            assert!(collected(&index, Direction::Forward).iter().eq(&expected), "step {step}");
        }
        let runs = read(&index.runs);
        let ends = runs.values().map(|run| read(run).end.clone());
        let starts = runs.keys().skip(1).cloned().map(Some).chain([None]);
        assert!(ends.eq(starts), "each run ends where the next begins");
    }

    #[test]
    fn new_keys_wait_until_they_are_settled_or_are_too_many() {
        let index = OrderedIndex::default();
        assert!(index.add([key(9), key(3)]), "the first waiting keys");
        assert!(!index.add([key(5), key(3)]), "other keys already wait");
        assert_eq!(collected(&index, Direction::Forward), []);
        index.settle(&Sequential);
        assert_eq!(collected(&index, Direction::Forward), [key(3), key(5), key(9)]);
        assert!(index.add((10..10 + WAITING_KEYS_MAX as u16).map(key)), "no keys waited");
        assert_eq!(collected(&index, Direction::Forward).len(), 3 + WAITING_KEYS_MAX);
        index.add([key(1000)]);
        index.clear();
        index.settle(&Sequential);
        assert_eq!(collected(&index, Direction::Forward), []);
    }

    #[test]
    fn a_range_has_the_keys_within_its_bounds_wherever_runs_end() {
        let index = OrderedIndex::default();
        let keys: std::collections::BTreeSet<Key> = (0..60).map(|i| key(i * 37 % 60)).collect();
        (0..60).for_each(|i| index.insert(&[key(i * 37 % 60)]));
        assert!(run_lengths(&index).len() > 4, "runs end at many of these keys");
        let bounds = |at: u16| [Bound::Included(key(at)), Bound::Excluded(key(at))];
        for (start, end) in (0..60).flat_map(|start| (start + 1..62).map(move |end| (start, end))) {
            for (start, end) in bounds(start).iter().flat_map(|a| bounds(end).map(|b| (a, b))) {
                for direction in [Direction::Forward, Direction::Reverse] {
                    let mut found = Vec::new();
                    let range = (start.as_ref(), end.as_ref());
                    index.collect(range, direction, usize::MAX, &mut found);
                    if direction == Direction::Reverse {
                        found.reverse();
                    }
                    let expected = keys.range::<Key, _>(range);
                    assert!(found.iter().eq(expected), "{start:?} to {end:?}, {direction:?}");
                }
            }
        }
    }

    #[test]
    fn ascending_keys_leave_full_runs_behind() {
        let index = OrderedIndex::default();
        (0..100).for_each(|i| index.insert(&[key(i)]));
        let lengths = run_lengths(&index);
        assert!(lengths[..lengths.len() - 1].iter().all(|&len| len == RUN_KEYS_MAX), "{lengths:?}");
    }

    #[test]
    fn an_empty_run_goes_even_beside_a_full_one() {
        let index = OrderedIndex::default();
        (0..40).for_each(|i| index.insert(&[key(i)]));
        assert_eq!(run_lengths(&index), [16, 16, 8]);
        (16..32).for_each(|i| index.remove_unless(&key(i), || false));
        assert_eq!(run_lengths(&index), [16, 8]);
        assert_eq!(collected(&index, Direction::Reverse).len(), 24);
    }

    #[test]
    fn a_key_that_came_back_is_not_removed() {
        let index = OrderedIndex::default();
        index.insert(&[key(7)]);
        index.remove_unless(&key(7), || true);
        assert_eq!(collected(&index, Direction::Forward), [key(7)]);
        index.remove_unless(&key(7), || false);
        index.remove_unless(&key(7), || false);
        assert_eq!(collected(&index, Direction::Forward), []);
    }
}
