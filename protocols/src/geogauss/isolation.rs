//! The checks of a transaction at each isolation level (§4.1.5).
//!
//! A transaction ran on the snapshot of an epoch: its base. At its place in the order, each replica
//! checks the following against the rows as they are then:
//!
//! | level | rows that must be as on the base | reads that travel |
//! |---|---|---|
//! | read committed | those that it wrote after reading them | guards |
//! | repeatable read | those that it read | rows, one by one, and guards |
//! | snapshot | those that it wrote | guards |
//! | serializable | those that it read, and the ranges | all |
//!
//! Rows of undecided transactions of the same node are checked at each level (`chains.rs`).
//! Guards are reads of constraints, locks and the schema ([`pangea_core::txn::Guards`]).
//! So no update is lost at any level. A blind write overwrites the row as it is, except at the
//! snapshot level, where the first committer wins. An addition (`adds.rs`) counts as a write of a
//! row: if the transaction has also read the row, that must be as on the base.
//!
//! In the paper nothing is compared with the epochs between the base and the commit at read
//! committed, the other levels are validated at the origin before the write set is sent, and the
//! test of snapshot isolation misses the epoch after the base (`row.cen - 1 > lsn`). All three
//! lose updates.

use pangea_core::exec::checked_reads;
use pangea_core::guarantee::Isolation;
use pangea_core::hash::HashSet;
use pangea_core::key::Key;
use pangea_core::mutate;
use pangea_core::txn::{Add, Certified, ReadSet, ReadVersion, Write};

use super::chains::{is_of_undecided, reads_of_undecided};

/// The writes of a transaction, and the checks before they are applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checks {
    /// The reads that must be current.
    pub reads: ReadSet,
    /// The writes.
    pub writes: Vec<CheckedWrite>,
    /// The additions to other rows than those, in the order of the rows.
    pub adds: Vec<Add>,
}

impl Checks {
    /// Whether it adds to rows, so that a replica needs the code of the adders.
    pub fn has_adds(&self) -> bool {
        !self.adds.is_empty()
    }
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedWrite {
    /// The write.
    pub write: Write,
    /// Whether the row must not have changed since the transaction's base.
    pub is_checked: bool,
}

/// The checks of a run with these reads, guards and changes. It read one snapshot, its base, so a
/// checked write stands for a read of the same row.
pub fn checks(
    level: Isolation,
    reads: ReadSet,
    guards: ReadSet,
    (writes, adds): (Vec<Write>, Vec<Add>),
) -> Checks {
    let written: HashSet<_> = writes.iter().map(|write| (write.table, &write.key)).collect();
    let is_written = |table, key: &Key| written.contains(&(table, key));
    let added: HashSet<_> = adds.iter().map(|add| (add.table, &add.key)).collect();
    let is_changed = |table, key: &Key| is_written(table, key) || added.contains(&(table, key));
    let undecided = reads_of_undecided(&reads, &guards);
    let mut reads = checked_reads(level, reads, guards, is_changed);
    reads.points.retain(|it| !is_of_undecided(it.seen));
    let (of_written, others): (Vec<_>, Vec<_>) = std::mem::take(&mut reads.points)
        .into_iter()
        .partition(|it| it.seen != ReadVersion::Present && is_written(it.table, &it.key));
    reads.points = others;
    reads.points.extend(mutate!(ChainOutlivesItsHead: undecided => Vec::new()));
    drop((written, added));
    let were_read: HashSet<_> = of_written.iter().map(|read| (read.table, &read.key)).collect();
    let is_checked = |write: &Write| {
        level == Isolation::Snapshot || were_read.contains(&(write.table, &write.key))
    };
    let writes = writes
        .into_iter()
        .map(|write| CheckedWrite { is_checked: is_checked(&write), write })
        .collect();
    let reads = mutate!(ValidatedAtOrigin: reads => ReadSet::default());
    Checks { reads, writes, adds }
}

/// The checks of an interactive transaction. At read committed each of its statements has read a
/// snapshot of its own, so the reads say which version they saw.
pub fn certified(level: Isolation, certified: Certified) -> Checks {
    let Certified { reads, writes, adds, .. } = certified;
    let is_checked = level == Isolation::Snapshot;
    let writes = writes.into_iter().map(|write| CheckedWrite { write, is_checked }).collect();
    Checks { reads, writes, adds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use pangea_core::ids::{AdderId, SnapshotVersion, TableId};
    use pangea_core::key::KeyRange;
    use pangea_core::txn::{PointRead, RangeRead};

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
        let changes = || (writes(), Vec::new());
        let of = |level| described(&checks(level, reads(), ReadSet::default(), changes()));
        assert_eq!(of(Isolation::ReadCommitted), (vec![], 0, vec![true, true, false]));
        assert_eq!(of(Isolation::RepeatableRead), (vec![2, 3], 0, vec![true, true, false]));
        assert_eq!(of(Isolation::Snapshot), (vec![], 0, vec![true, true, true]));
        assert_eq!(of(Isolation::Serializable), (vec![2], 1, vec![true, false, false]));
    }

    #[test]
    fn a_guard_is_checked_and_a_written_row_stands_for_its_own() {
        let point = |k, seen| PointRead { table: TABLE, key: key(k), seen };
        let points = vec![point(1, ReadVersion::Present), point(7, SEEN), point(9, SEEN)];
        let guards = ReadSet { points, ranges: Vec::new() };
        let changes = || (writes(), Vec::new());
        let of = |level| described(&checks(level, ReadSet::default(), guards.clone(), changes()));
        assert_eq!(of(Isolation::ReadCommitted), (vec![1, 7], 0, vec![false, false, true]));
        assert_eq!(of(Isolation::Snapshot), (vec![1, 7], 0, vec![true; 3]));
        assert_eq!(of(Isolation::Serializable), (vec![], 0, vec![false; 3]));
    }

    #[test]
    fn a_row_that_was_read_before_it_was_added_to_is_checked() {
        let add = |k| {
            let (adder, amount) = (AdderId::of("adder"), Bytes::from_static(b"one"));
            Add { table: TABLE, key: key(k), adder, amount }
        };
        let of = |level| {
            let changes = (Vec::new(), vec![add(1), add(4), add(9)]);
            described(&checks(level, reads(), ReadSet::default(), changes))
        };
        assert_eq!(of(Isolation::ReadCommitted), (vec![1, 4], 0, vec![]));
        assert_eq!(of(Isolation::RepeatableRead), (vec![1, 2, 3, 4], 0, vec![]));
        assert_eq!(of(Isolation::Serializable), (vec![1, 2], 1, vec![]));
    }

    #[test]
    fn an_interactive_transaction_names_the_reads_to_be_checked() {
        let of = |level| {
            let it = Certified { reads: reads(), writes: writes(), ..Certified::default() };
            described(&certified(level, it))
        };
        assert_eq!(of(Isolation::ReadCommitted), (vec![1, 2], 1, vec![false; 3]));
        assert_eq!(of(Isolation::Snapshot), (vec![1, 2], 1, vec![true; 3]));
    }
}
