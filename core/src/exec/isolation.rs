//! What is checked at each isolation level when a transaction commits.
//!
//! | level | reads that must be current | writes |
//! |---|---|---|
//! | read committed | of rows that the transaction wrote after reading them | |
//! | repeatable read | of rows, one by one | |
//! | snapshot | | no row has changed since the snapshot |
//! | serializable | all, ranges too | |
//!
//! Below serializable the [guards](crate::txn::Guards) of the transaction must be current, too. So
//! no update is lost at any level, and no constraint is violated.

use crate::guarantee::Isolation;
use crate::hash::HashSet;
use crate::ids::TableId;
use crate::key::Key;
use crate::mutate;
use crate::txn::{PointRead, ReadSet};

/// The reads that must be current when a transaction of this level commits, from all of its reads,
/// its guards, and whether it has written a row.
pub fn checked_reads(
    level: Isolation,
    reads: ReadSet,
    guards: ReadSet,
    is_written: impl Fn(TableId, &Key) -> bool,
) -> ReadSet {
    let mut checked = match level {
        Isolation::ReadCommitted => rows(reads, is_written),
        Isolation::RepeatableRead => rows(reads, |_, _| true),
        Isolation::Snapshot => ReadSet::default(),
        Isolation::Serializable => return reads,
    };
    mutate!(GuardsSkipped: checked.append(guards) => ());
    checked
}

/// The rows of these reads as reads of single keys, each once, so that a row that appears later in
/// a range is not noticed.
fn rows(reads: ReadSet, is_wanted: impl Fn(TableId, &Key) -> bool) -> ReadSet {
    let ReadSet { mut points, ranges } = reads;
    points.retain(|read| is_wanted(read.table, &read.key));
    let mut known: HashSet<_> = points.iter().map(|it| (it.table, it.key.clone())).collect();
    for read in ranges {
        for (key, seen) in read.rows {
            if is_wanted(read.table, &key) && known.insert((read.table, key.clone())) {
                points.push(PointRead { table: read.table, key, seen });
            }
        }
    }
    ReadSet { points, ranges: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SnapshotVersion;
    use crate::key::KeyRange;
    use crate::txn::{RangeRead, ReadVersion};

    const TABLE: TableId = TableId(1);
    const SEEN: ReadVersion = ReadVersion::At(SnapshotVersion(3));

    fn point(key: u8, seen: ReadVersion) -> PointRead {
        PointRead { table: TABLE, key: Key::from(&[key][..]), seen }
    }

    #[test]
    fn each_level_checks_its_reads_and_all_but_the_strongest_check_guards() {
        // Rows 1 and 2 one by one, and rows 2 to 4 in a range. Rows 1, 4 and 9 are written.
        let rows = [2, 3, 4].map(|key: u8| (Key::from(&[key][..]), SEEN)).to_vec();
        let range = RangeRead { table: TABLE, range: KeyRange::all(), rows };
        let points = vec![point(1, SEEN), point(2, SEEN)];
        let reads = ReadSet { points, ranges: vec![range.clone()] };
        let guard = point(7, ReadVersion::Present);
        let guards = ReadSet { points: vec![guard.clone()], ranges: vec![range] };
        let is_written = |_, key: &Key| [1, 4, 9].contains(&key[0]);
        let of = |level| {
            let checked = checked_reads(level, reads.clone(), guards.clone(), is_written);
            let points: Vec<u8> = checked.points.iter().map(|read| read.key[0]).collect();
            (points, checked.ranges.len())
        };
        assert_eq!(of(Isolation::ReadCommitted), (vec![1, 4, 7], 1));
        assert_eq!(of(Isolation::RepeatableRead), (vec![1, 2, 3, 4, 7], 1));
        assert_eq!(of(Isolation::Snapshot), (vec![7], 1));
        assert_eq!(of(Isolation::Serializable), (vec![1, 2], 1));
    }
}
