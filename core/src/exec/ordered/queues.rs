//! The lock manager of one shard (Calvin §3.2): locks are requested in the serial order and granted
//! strictly in that order.
//!
//! ```text
//!   row 7     [4 writes] <- 6 <- 9          a writer holds the lock exclusively
//!   row 8     [5] [6] <- 9 writes           readers share the lock
//!   1 to 9    [3] <- 8 writes               a range has its own queue; requests for a row in it,
//!                                           or for an overlapping range, wait for those in it
//! ```
//!
//! A request waits for all earlier requests that conflict with it and never for a later one, so
//! deadlocks are impossible. The cost of a release does not depend on the number of waiting
//! requests.
//!
//! The ranges of one table are compared one by one: n waiting requests with different ranges cost n
//! squared comparisons, and as many waits if the ranges overlap and some write. Only the number of
//! transactions that a shard begins at a time limits it.

use std::collections::{BTreeMap, VecDeque};

use crate::hash::{Entry, HashMap, range_hash, row_hash};
use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::txn::{Footprint, RangeLock};

/// The number of requests after the last range lock of a table during which row locks of the table
/// are recorded.
const NOTED_FOR: u64 = if cfg!(test) { 64 } else { 4_096 };

/// The queues of all locks.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// All requests from the first one that has not released its locks.
    requests: VecDeque<Request>,
    /// The number of the first of these requests.
    first: u64,
    /// Queues by the hash of a row or range. A hash collision causes an unnecessary wait and is
    /// otherwise harmless.
    queues: HashMap<u64, Queue>,
    /// The tables with range locks.
    ranged: HashMap<TableId, Ranged>,
}

#[derive(Debug)]
struct Request {
    /// The number of queues and earlier requests that this request still waits for.
    waits: usize,
    is_released: bool,
    /// The queues that contain the request.
    places: Vec<u64>,
    /// Later requests that wait for this one because of ranges, outside the queues.
    before: Vec<u64>,
}

/// The requests for one row or range, in order, each with whether it writes.
#[derive(Debug)]
enum Queue {
    /// The common case: one request holds the lock, and none waits.
    One((u64, bool)),
    Many(Box<LockQueue>),
}

#[derive(Debug)]
struct LockQueue {
    entries: VecDeque<(u64, bool)>,
    /// The number of requests at the front that hold the lock.
    granted: usize,
}

/// The locks of one table, held or waited for, that conflict checks of ranges need.
#[derive(Debug)]
struct Ranged {
    /// The first request whose row locks are recorded below.
    since: u64,
    /// The last request for a range.
    last: u64,
    rows: BTreeMap<Key, LockRequests>,
    ranges: BTreeMap<KeyRange, LockRequests>,
}

#[derive(Clone, Copy, Debug)]
struct LockRequests {
    /// The hash of the queue.
    hash: u64,
    /// The number of requests for this row or range.
    count: usize,
}

impl Queues {
    /// Adds the next request. Returns whether all of its locks are granted at once.
    pub fn ask(&mut self, locks: &Footprint) -> bool {
        let number = self.first + self.requests.len() as u64;
        let mut waits = self.wait_for_ranges(number, locks);
        let points = locks.points.iter();
        let places = points.map(|lock| (row_hash(lock.table, &lock.key), lock.mode.writes()));
        let ranges =
            ranges_of(locks).map(|lock| (range_hash(lock.table, &lock.range), lock.mode.writes()));
        let mut places: Vec<(u64, bool)> = places.chain(ranges).collect();
        places.sort_unstable();
        // If any request for a hash writes, the merged one does.
        places.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                kept.1 |= later.1;
            }
            is_same
        });
        for (hash, writes) in &places {
            let is_held = match self.queues.entry(*hash) {
                Entry::Vacant(free) => {
                    free.insert(Queue::One((number, *writes)));
                    true
                }
                Entry::Occupied(mut taken) => taken.get_mut().push(number, *writes),
            };
            waits += usize::from(!is_held);
        }
        let (places, before) = (places.into_iter().map(|(hash, _)| hash).collect(), Vec::new());
        self.requests.push_back(Request { waits, is_released: false, places, before });
        waits == 0
    }

    /// Whether a request holds all of its locks, or held them before.
    pub fn has_all(&self, number: u64) -> bool {
        number < self.first || self.requests[(number - self.first) as usize].waits == 0
    }

    /// Whether a request has released its locks.
    pub fn is_released(&self, number: u64) -> bool {
        number < self.first || self.requests[(number - self.first) as usize].is_released
    }

    /// Releases the locks of a request, which must hold all of them. `locks` is its footprint.
    /// Appends the requests that now hold all of their locks to `granted`.
    pub fn release(&mut self, number: u64, locks: &Footprint, granted: &mut Vec<u64>) {
        let request = self.request(number);
        assert!(request.waits == 0 && !request.is_released, "only a held lock is released");
        request.is_released = true;
        let places = std::mem::take(&mut request.places);
        let mut freed = std::mem::take(&mut request.before);
        for hash in places {
            let Entry::Occupied(mut queue) = self.queues.entry(hash) else {
                panic!("the queue of the lock exists");
            };
            if !queue.get_mut().remove(number, &mut freed) {
                queue.remove();
            }
        }
        self.unnote(number, locks);
        for number in freed {
            let request = self.request(number);
            request.waits -= 1;
            if request.waits == 0 {
                granted.push(number);
            }
        }
        while self.requests.pop_front_if(|first| first.is_released).is_some() {
            self.first += 1;
        }
    }

    fn request(&mut self, number: u64) -> &mut Request {
        &mut self.requests[(number - self.first) as usize]
    }

    /// Makes a request wait for conflicting earlier requests because of ranges, and records it.
    /// Covers its ranges, and its rows in tables with range locks. Returns the number of requests
    /// that it waits for.
    fn wait_for_ranges(&mut self, number: u64, locks: &Footprint) -> usize {
        if locks.ranges.is_empty() && self.ranged.is_empty() {
            return 0;
        }
        let mut waits = Vec::new();
        for lock in ranges_of(locks) {
            let ranged = self.ranged.entry(lock.table).or_insert_with(|| Ranged::new(number));
            waits.extend(self.first..ranged.since.min(number));
            let others = ranged.ranges.iter();
            let others = others.filter(|(range, _)| **range != lock.range);
            let others = others.filter(|(range, _)| range.overlaps(&lock.range));
            let rows = ranged.rows_within(&lock.range);
            for requests in others.map(|(_, requests)| requests).chain(rows) {
                waits.extend(conflicting(&self.queues, requests.hash, lock.mode.writes()));
            }
        }
        for lock in &locks.points {
            let Some(ranged) = self.ranged.get(&lock.table) else { continue };
            let around = ranged.ranges.iter().filter(|(range, _)| range.contains(&lock.key));
            for (_, requests) in around {
                waits.extend(conflicting(&self.queues, requests.hash, lock.mode.writes()));
            }
        }
        self.note(number, locks);
        waits.sort_unstable();
        waits.dedup();
        waits.retain(|earlier| {
            let request = &mut self.requests[(earlier - self.first) as usize];
            if !request.is_released {
                request.before.push(number);
            }
            !request.is_released
        });
        waits.len()
    }

    fn note(&mut self, number: u64, locks: &Footprint) {
        for lock in ranges_of(locks) {
            let ranged = self.ranged.get_mut(&lock.table).expect("the table was added before");
            let hash = range_hash(lock.table, &lock.range);
            let none = LockRequests { hash, count: 0 };
            ranged.ranges.entry(lock.range.clone()).or_insert(none).count += 1;
            ranged.last = number;
        }
        for lock in &locks.points {
            let Some(ranged) = self.ranged.get_mut(&lock.table) else { continue };
            if ranged.ranges.is_empty() && number > ranged.last + NOTED_FOR {
                self.ranged.remove(&lock.table);
                continue;
            }
            let none = LockRequests { hash: row_hash(lock.table, &lock.key), count: 0 };
            ranged.rows.entry(lock.key.clone()).or_insert(none).count += 1;
        }
    }

    /// Removes the record of a request.
    fn unnote(&mut self, number: u64, locks: &Footprint) {
        if self.ranged.is_empty() {
            return;
        }
        for lock in ranges_of(locks) {
            let ranged = self.ranged.get_mut(&lock.table).expect("the table was added before");
            take_back(&mut ranged.ranges, &lock.range);
        }
        for lock in &locks.points {
            let ranged = self.ranged.get_mut(&lock.table);
            if let Some(ranged) = ranged.filter(|ranged| number >= ranged.since) {
                take_back(&mut ranged.rows, &lock.key);
            }
        }
    }
}

/// The ranges that are not empty.
fn ranges_of(locks: &Footprint) -> impl Iterator<Item = &RangeLock> {
    locks.ranges.iter().filter(|lock| !lock.range.is_empty())
}

/// The requests in a queue that conflict with a request that does or does not write.
fn conflicting(queues: &HashMap<u64, Queue>, hash: u64, writes: bool) -> impl Iterator<Item = u64> {
    let queue = queues.get(&hash);
    let (one, many) = match queue {
        None => (None, None),
        Some(Queue::One(one)) => (Some(one), None),
        Some(Queue::Many(queue)) => (None, Some(&queue.entries)),
    };
    let entries = one.into_iter().chain(many.into_iter().flatten());
    entries.filter(move |(_, other)| writes || *other).map(|(number, _)| *number)
}

/// Decrements the number of requests for a row or range.
fn take_back<K: Ord>(requests: &mut BTreeMap<K, LockRequests>, key: &K) {
    let one = requests.get_mut(key).expect("the lock was counted before");
    one.count -= 1;
    if one.count == 0 {
        requests.remove(key);
    }
}

impl Ranged {
    fn new(since: u64) -> Self {
        Self { since, last: since, rows: BTreeMap::new(), ranges: BTreeMap::new() }
    }

    fn rows_within<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = &'a LockRequests> {
        let first = Key::from(&range.start[..]);
        let rows = self.rows.range(first..).take_while(|(key, _)| range.contains(key));
        rows.map(|(_, requests)| requests)
    }
}

impl Queue {
    /// Appends the next request. Returns whether it holds the lock at once.
    fn push(&mut self, number: u64, writes: bool) -> bool {
        if let Self::One(one) = *self {
            *self = Self::Many(Box::new(LockQueue { entries: VecDeque::from([one]), granted: 1 }));
        }
        let Self::Many(queue) = self else { unreachable!("the queue was created above") };
        let holds = queue.granted == queue.entries.len() && !writes && !queue.entries[0].1;
        queue.granted += usize::from(holds);
        queue.entries.push_back((number, writes));
        holds
    }

    /// Removes a request that holds the lock. Appends the requests that now acquire the lock to
    /// `freed`. Returns whether any request is left.
    fn remove(&mut self, number: u64, freed: &mut Vec<u64>) -> bool {
        let queue = match self {
            Self::One((one, _)) => {
                assert_eq!(*one, number, "only a held lock is released");
                return false;
            }
            Self::Many(queue) => queue,
        };
        let at = queue.entries.binary_search_by_key(&number, |(number, _)| *number);
        let at = at.expect("the lock was requested");
        assert!(at < queue.granted, "only a held lock is released");
        queue.entries.remove(at);
        queue.granted -= 1;
        // While earlier readers share the lock, the first waiting request is a writer, so no other
        // acquires it.
        if queue.granted == 0 {
            let readers = || queue.entries.iter().take_while(|(_, writes)| !writes).count();
            queue.granted = match queue.entries.front() {
                None => 0,
                Some((_, true)) => 1,
                Some(_) => readers(),
            };
            freed.extend(queue.entries.iter().take(queue.granted).map(|(number, _)| *number));
        }
        !queue.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::{LockMode, PointLock};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const TABLES: u32 = 2;

    /// Keys and ranges of one or two tables, with lock modes.
    fn locks() -> impl Strategy<Value = Footprint> {
        let mode =
            prop_oneof![Just(LockMode::Shared), Just(LockMode::Write), Just(LockMode::Exclusive)];
        let table = (0..TABLES).prop_map(TableId);
        let point = (table.clone(), 0..12_u8, mode.clone())
            .prop_map(|(table, k, mode)| PointLock { table, key: Key::from(&[k][..]), mode });
        let range = (table, 0..12_u8, 0..5_u8, mode).prop_map(|(table, from, more, mode)| {
            let range = KeyRange { start: vec![from], end: Some(vec![from + more]) };
            RangeLock { table, range, mode }
        });
        let few = |most| 0..most;
        let points = prop::collection::vec(point, few(4));
        (points, prop::collection::vec(range, few(2)))
            .prop_map(|(points, ranges)| Footprint::new(points, ranges))
    }

    fn conflict(a: &Footprint, b: &Footprint) -> bool {
        let reach = |range: &RangeLock, point: &PointLock| {
            let is_in = range.table == point.table && range.range.contains(&point.key);
            is_in && range.mode.conflicts(point.mode)
        };
        let points = |a: &PointLock, b: &PointLock| {
            (a.table, &a.key) == (b.table, &b.key) && a.mode.conflicts(b.mode)
        };
        let ranges = |a: &RangeLock, b: &RangeLock| {
            let is_same = a.table == b.table && a.range.overlaps(&b.range);
            is_same && a.mode.conflicts(b.mode)
        };
        a.points.iter().any(|a_point| {
            b.points.iter().any(|b_point| points(a_point, b_point))
                || b.ranges.iter().any(|range| reach(range, a_point))
        }) || a.ranges.iter().any(|a_range| {
            b.ranges.iter().any(|b_range| ranges(a_range, b_range))
                || b.points.iter().any(|point| reach(a_range, point))
        })
    }

    /// A model with lists of all requests and of the released ones.
    struct Model {
        all: Vec<Footprint>,
        released: BTreeSet<usize>,
    }

    impl Model {
        fn held(&self, granted: &BTreeSet<u64>) -> Vec<u64> {
            let is_held = |it: &u64| !self.released.contains(&(*it as usize));
            granted.iter().copied().filter(is_held).collect()
        }

        fn in_the_way(&self, of: usize) -> bool {
            let earlier = (0..of).filter(|it| !self.released.contains(it));
            earlier.into_iter().any(|it| conflict(&self.all[it], &self.all[of]))
        }
    }

    proptest! {
        /// In any order of requests and releases, no request holds a lock that conflicts with an
        /// unreleased earlier request. Apart from the first range of a table, no request waits
        /// without a conflict.
        #[test]
        fn locks_are_granted_in_the_order_in_which_they_were_asked_for(
            all in prop::collection::vec(locks(), 1..40),
            choices in prop::collection::vec(any::<prop::sample::Index>(), 120),
        ) {
            let mut queues = Queues::default();
            let mut model = Model { all: Vec::new(), released: BTreeSet::new() };
            let mut granted: BTreeSet<u64> = BTreeSet::new();
            // The first request locks a range of each table, so row locks are recorded from the
            // start.
            let mut waiting = all.into_iter().fuse();
            let first = (0..TABLES).map(|table| {
                let range = KeyRange { start: vec![200], end: Some(vec![201]) };
                RangeLock { table: TableId(table), range, mode: LockMode::Shared }
            });
            let first = Footprint::new(Vec::new(), first.collect());
            assert!(queues.ask(&first));
            granted.insert(0);
            model.all.push(first);
            for choice in choices {
                let held = model.held(&granted);
                let at = choice.index(held.len() + 2);
                if at >= held.len() {
                    let Some(locks) = waiting.next() else { continue };
                    let number = model.all.len();
                    let has_all = queues.ask(&locks);
                    model.all.push(locks);
                    prop_assert_eq!(has_all, !model.in_the_way(number));
                    if has_all {
                        granted.insert(number as u64);
                    }
                    continue;
                }
                let number = held[at];
                let mut new = Vec::new();
                queues.release(number, &model.all[number as usize], &mut new);
                model.released.insert(number as usize);
                granted.extend(new);
                for number in 0..model.all.len() {
                    let is_free = !model.in_the_way(number);
                    prop_assert_eq!(granted.contains(&(number as u64)), is_free, "{}", number);
                    prop_assert_eq!(queues.has_all(number as u64), is_free);
                }
            }
            while let Some(number) = model.held(&granted).first().copied() {
                let mut new = Vec::new();
                queues.release(number, &model.all[number as usize], &mut new);
                model.released.insert(number as usize);
                granted.extend(new);
            }
            prop_assert_eq!(model.released.len(), model.all.len(), "all requests were granted");
            prop_assert!(queues.queues.is_empty() && queues.requests.is_empty());
            let is_empty = |it: &Ranged| it.rows.is_empty() && it.ranges.is_empty();
            prop_assert!(queues.ranged.values().all(is_empty));
        }
    }

    #[test]
    fn rows_are_noted_while_ranges_come_and_not_for_ever() {
        let locks = |ranges: Vec<RangeLock>| {
            let key = Key::from(&[1][..]);
            let point = PointLock { table: TableId(1), key, mode: LockMode::Shared };
            Footprint::new(vec![point], ranges)
        };
        let range = KeyRange { start: vec![5], end: Some(vec![9]) };
        let range = RangeLock { table: TableId(1), range, mode: LockMode::Exclusive };
        let mut queues = Queues::default();
        let (with_range, without) = (locks(vec![range]), locks(Vec::new()));
        let mut granted = Vec::new();
        for number in 0..=NOTED_FOR + 2 {
            let locks = if number == 0 { &with_range } else { &without };
            assert!(queues.ask(locks));
            assert_eq!(queues.ranged.len(), usize::from(number <= NOTED_FOR), "{number}");
            queues.release(number, locks, &mut granted);
        }
        // Earlier row locks are no longer recorded, so the next range waits for all of those
        // requests.
        assert!(queues.ask(&without) && !queues.ask(&with_range));
    }

    #[test]
    fn the_first_range_of_a_table_waits_for_all_before_it_and_no_other_does() {
        let point = |k: u8| PointLock {
            table: TableId(1),
            key: Key::from(&[k][..]),
            mode: LockMode::Exclusive,
        };
        let range = |from: u8, to: u8| RangeLock {
            table: TableId(1),
            range: KeyRange { start: vec![from], end: Some(vec![to]) },
            mode: LockMode::Exclusive,
        };
        let one = |k| Footprint::new(vec![point(k)], Vec::new());
        let several = |from, to| Footprint::new(Vec::new(), vec![range(from, to)]);
        let mut queues = Queues::default();
        let all = [one(1), one(8), several(0, 3), several(5, 7), one(6), one(9)];
        let has: Vec<bool> = all.iter().map(|locks| queues.ask(locks)).collect();
        // The row locks of the first two requests were not recorded, so the ranges must wait for
        // both.
        assert_eq!(has, [true, true, false, false, false, true]);
        let mut granted = Vec::new();
        queues.release(0, &all[0], &mut granted);
        assert!(granted.is_empty());
        queues.release(1, &all[1], &mut granted);
        assert_eq!(granted, [2, 3]);
        queues.release(3, &all[3], &mut granted);
        assert_eq!(granted, [2, 3, 4]);
    }
}
