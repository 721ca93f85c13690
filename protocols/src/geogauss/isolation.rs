//! The checks of a transaction at each isolation level (§4.1.5).
//!
//! A transaction ran on the snapshot of an epoch: its base. At its place in the order, each replica
//! checks the following against the rows as they are then:
//!
//! | level | rows that must be as on the base | reads that travel |
//! |---|---|---|
//! | read committed | those that it wrote after reading them | none |
//! | repeatable read | those that it read | rows, one by one |
//! | snapshot | those that it wrote | none |
//! | serializable | those that it read, and the ranges | all |
//!
//! So no update is lost at any level. A blind write overwrites the row as it is, except at the
//! snapshot level, where the first committer wins.
//!
//! In the paper nothing is compared with the epochs between the base and the commit at read
//! committed, the other levels are validated at the origin before the write set is sent, and the
//! test of snapshot isolation misses the epoch after the base (`row.cen - 1 > lsn`). All three
//! lose updates.

use pangea_core::guarantee::Isolation;
use pangea_core::hash::HashSet;
use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::{Certified, PointRead, ReadSet, Write};

/// The writes of a transaction, and the checks before they are applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checks {
    /// The reads that must be current.
    pub reads: ReadSet,
    /// The writes.
    pub writes: Vec<CheckedWrite>,
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedWrite {
    /// The write.
    pub write: Write,
    /// Whether the row must not have changed since the transaction's base.
    pub is_checked: bool,
}

/// The checks of a run with these reads and writes.
pub fn checks(level: Isolation, reads: ReadSet, writes: Vec<Write>) -> Checks {
    let were_read = match level {
        Isolation::Snapshot => HashSet::default(),
        Isolation::ReadCommitted | Isolation::RepeatableRead | Isolation::Serializable => {
            rows_read(&reads)
        }
    };
    let is_checked = |write: &Write| {
        level == Isolation::Snapshot || were_read.contains(&(write.table, &write.key))
    };
    let writes: Vec<_> = writes
        .into_iter()
        .map(|write| CheckedWrite { is_checked: is_checked(&write), write })
        .collect();
    drop(were_read);
    let reads = match level {
        Isolation::ReadCommitted | Isolation::Snapshot => ReadSet::default(),
        Isolation::RepeatableRead => without_written(rows_one_by_one(reads), &writes),
        Isolation::Serializable => without_written(reads, &writes),
    };
    Checks { reads, writes }
}

/// The checks of an interactive transaction. Below the snapshot level each of its statements
/// has read a snapshot of its own, so the reads say which version they saw.
pub fn certified(level: Isolation, certified: Certified) -> Checks {
    let Certified { reads, writes, .. } = certified;
    let reads = match level {
        Isolation::ReadCommitted => of_written(rows_one_by_one(reads), &writes),
        Isolation::RepeatableRead => rows_one_by_one(reads),
        Isolation::Snapshot => ReadSet::default(),
        Isolation::Serializable => reads,
    };
    let is_checked = level == Isolation::Snapshot;
    let writes = writes.into_iter().map(|write| CheckedWrite { write, is_checked }).collect();
    Checks { reads, writes }
}

/// Reads of rows that are written.
fn of_written(mut reads: ReadSet, writes: &[Write]) -> ReadSet {
    let written: HashSet<_> = writes.iter().map(|write| (write.table, &write.key)).collect();
    reads.points.retain(|read| written.contains(&(read.table, &read.key)));
    reads
}

/// The rows that were read, one by one or in ranges.
fn rows_read(reads: &ReadSet) -> HashSet<(TableId, &Key)> {
    let points = reads.points.iter().map(|read| (read.table, &read.key));
    let in_range = reads
        .ranges
        .iter()
        .flat_map(|read| read.rows.iter().map(move |(key, _)| (read.table, key)));
    points.chain(in_range).collect()
}

/// The rows of all reads as reads of single keys, each once: a row that appears later in a range is
/// not noticed.
fn rows_one_by_one(reads: ReadSet) -> ReadSet {
    let points = reads.points.iter();
    let mut seen: HashSet<_> = points.map(|it| (it.table, it.key.clone())).collect();
    let mut points = reads.points;
    for read in reads.ranges {
        for (key, version) in read.rows {
            if seen.insert((read.table, key.clone())) {
                points.push(PointRead { table: read.table, key, seen: version });
            }
        }
    }
    ReadSet { points, ranges: Vec::new() }
}

/// Leaves out reads of single keys that a checked write stands for.
fn without_written(reads: ReadSet, writes: &[CheckedWrite]) -> ReadSet {
    let checked = writes.iter().filter(|it| it.is_checked);
    let checked: HashSet<_> = checked.map(|it| (it.write.table, &it.write.key)).collect();
    let ReadSet { mut points, ranges } = reads;
    points.retain(|read| !checked.contains(&(read.table, &read.key)));
    ReadSet { points, ranges }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::SnapshotVersion;
    use pangea_core::key::KeyRange;
    use pangea_core::txn::{RangeRead, ReadVersion};

    const TABLE: TableId = TableId(1);
    const SEEN: ReadVersion = ReadVersion::At(SnapshotVersion(3));

    fn key(key: u8) -> Key {
        Key::from(&[key][..])
    }

    /// Reads rows 1 and 2 one by one and rows 2 to 4 in a range.
    fn reads() -> ReadSet {
        let point = |k| PointRead { table: TABLE, key: key(k), seen: SEEN };
        let rows = [2, 3, 4].map(|k| (key(k), SEEN)).to_vec();
        let range = RangeRead { table: TABLE, range: KeyRange::prefix(b""), rows };
        ReadSet { points: vec![point(1), point(2)], ranges: vec![range] }
    }

    /// Writes rows 1, 4 and 9.
    fn writes() -> Vec<Write> {
        [1, 4, 9].map(|k| Write { table: TABLE, key: key(k), value: None }).to_vec()
    }

    /// The rows that are checked one by one, the ranges, and whether each write is checked.
    fn described(checks: &Checks) -> (Vec<u8>, usize, Vec<bool>) {
        let points = checks.reads.points.iter().map(|read| read.key[0]).collect();
        let are_checked = checks.writes.iter().map(|it| it.is_checked).collect();
        (points, checks.reads.ranges.len(), are_checked)
    }

    #[test]
    fn each_level_checks_its_rows() {
        let of = |level| described(&checks(level, reads(), writes()));
        assert_eq!(of(Isolation::ReadCommitted), (vec![], 0, vec![true, true, false]));
        assert_eq!(of(Isolation::RepeatableRead), (vec![2, 3], 0, vec![true, true, false]));
        assert_eq!(of(Isolation::Snapshot), (vec![], 0, vec![true, true, true]));
        assert_eq!(of(Isolation::Serializable), (vec![2], 1, vec![true, true, false]));
    }
    #[test]
    fn each_level_checks_the_rows_of_an_interactive_transaction() {
        let of = |level| {
            let it = Certified { reads: reads(), writes: writes(), ..Certified::default() };
            described(&certified(level, it))
        };
        let unchecked = vec![false; 3];
        assert_eq!(of(Isolation::ReadCommitted), (vec![1, 4], 0, unchecked.clone()));
        assert_eq!(of(Isolation::RepeatableRead), (vec![1, 2, 3, 4], 0, unchecked.clone()));
        assert_eq!(of(Isolation::Snapshot), (vec![], 0, vec![true; 3]));
        assert_eq!(of(Isolation::Serializable), (vec![1, 2], 1, unchecked));
    }
}
