//! The locks that jobs hold which can't run yet.

use std::collections::BTreeMap;

use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::txn::{Footprint, Mode, RangeLock};

/// What is locked, by any of them.
#[derive(Debug, Default)]
pub(super) struct Held {
    points: BTreeMap<(TableId, Key), Mode>,
    ranges: Vec<RangeLock>,
}

impl Held {
    /// Whether some of these locks would have to wait.
    pub fn conflicts(&self, locks: &Footprint) -> bool {
        if self.points.is_empty() && self.ranges.is_empty() {
            return false;
        }
        let is_point_held = locks.points.iter().any(|lock| {
            let held = self.points.get(&(lock.table, lock.key.clone()));
            held.is_some_and(|held| held.conflicts(lock.mode))
                || self.ranges.iter().any(|held| {
                    held.table == lock.table
                        && held.mode.conflicts(lock.mode)
                        && held.range.contains(&lock.key)
                })
        });
        is_point_held || locks.ranges.iter().any(|lock| self.is_range_held(lock))
    }

    fn is_range_held(&self, lock: &RangeLock) -> bool {
        let is_held = |held: &RangeLock| {
            held.table == lock.table
                && held.mode.conflicts(lock.mode)
                && held.range.overlaps(&lock.range)
        };
        let within = self.within(lock.table, &lock.range);
        self.ranges.iter().any(is_held)
            || within.into_iter().flatten().any(|mode| mode.conflicts(lock.mode))
    }

    /// How the keys of a range are locked that are.
    fn within(&self, table: TableId, range: &KeyRange) -> Option<impl Iterator<Item = Mode>> {
        let first = (table, Key::from(&range.start[..]));
        let rows = (!range.is_empty()).then(|| self.points.range(first..))?;
        let is_within = move |key: &(TableId, Key)| key.0 == table && range.contains(&key.1);
        Some(rows.take_while(move |(key, _)| is_within(key)).map(|(_, mode)| *mode))
    }

    /// A job that can't run yet has these locks, or waits for them.
    pub fn add(&mut self, locks: &Footprint) {
        for lock in &locks.points {
            let held = self.points.entry((lock.table, lock.key.clone())).or_insert(lock.mode);
            if lock.mode.writes() {
                *held = lock.mode;
            }
        }
        self.ranges.extend(locks.ranges.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::PointLock;

    const TABLE: TableId = TableId(1);

    fn locks(points: &[(u8, Mode)], ranges: &[(u8, u8, Mode)]) -> Footprint {
        let point =
            |&(k, mode): &(u8, Mode)| PointLock { table: TABLE, key: Key::from(&[k][..]), mode };
        let range = |&(start, end, mode): &(u8, u8, Mode)| {
            let range = KeyRange { start: vec![start], end: Some(vec![end]) };
            RangeLock { table: TABLE, range, mode }
        };
        Footprint::new(points.iter().map(point).collect(), ranges.iter().map(range).collect())
    }

    #[test]
    fn what_is_written_waits_for_readers_and_what_is_read_for_writers() {
        use Mode::{Exclusive, Shared};
        let mut held = Held::default();
        assert!(
            !held.conflicts(&locks(&[(1, Exclusive)], &[(0, 9, Exclusive)])),
            "nothing is held"
        );
        held.add(&locks(&[(1, Shared), (2, Exclusive)], &[(5, 7, Shared)]));
        let cases = [
            (locks(&[(1, Shared)], &[]), false),
            (locks(&[(1, Exclusive)], &[]), true),
            (locks(&[(2, Shared)], &[]), true),
            (locks(&[(3, Exclusive), (7, Exclusive)], &[]), false),
            (locks(&[(5, Shared)], &[]), false),
            (locks(&[(6, Exclusive)], &[]), true),
            (locks(&[], &[(0, 2, Shared)]), false),
            (locks(&[], &[(0, 2, Exclusive)]), true),
            (locks(&[], &[(2, 3, Shared)]), true),
            (locks(&[], &[(3, 6, Shared)]), false),
            (locks(&[], &[(3, 6, Exclusive)]), true),
            (locks(&[], &[(6, 6, Exclusive)]), false),
        ];
        for (case, is_conflict) in cases {
            assert_eq!(held.conflicts(&case), is_conflict, "{case:?}");
        }
        held.add(&locks(&[(1, Exclusive)], &[]));
        held.add(&locks(&[(1, Shared)], &[]));
        assert!(held.conflicts(&locks(&[(1, Shared)], &[])), "the strongest mode counts");
        assert!(held.conflicts(&locks(&[(1, Mode::Write)], &[])));
    }
}
