//! Tests of certified jobs: which reads are current, and which transaction is reported as the
//! winner.

use super::*;
use crate::exec::testing::value;
use crate::ids::NodeId;
use crate::store::Version;
use crate::txn::{PointRead, RangeRead, ReadSet, ReadVersion, Write};

fn point(k: u8, seen: ReadVersion) -> ReadSet {
    let read = PointRead { table: TableId(1), key: key(k), seen };
    ReadSet { points: vec![read], ranges: vec![] }
}

fn range(rows: &[(u8, ReadVersion)]) -> ReadSet {
    let rows = rows.iter().map(|&(k, seen)| (key(k), seen)).collect();
    let range = KeyRange { start: vec![0], end: Some(vec![8]) };
    ReadSet { points: vec![], ranges: vec![RangeRead { table: TableId(1), range, rows }] }
}

fn certified(reads: ReadSet) -> (Program, Option<Footprint>) {
    let write = Write { table: TableId(1), key: key(9), value: Some(value(99)) };
    (Program::Certified(Certified { reads, writes: vec![write], ..Certified::default() }), None)
}

/// Certifies these reads after another job. Returns the DETAIL of the abort, or `None` on success.
fn check(rows: &Rows, before: &[Op], reads: ReadSet) -> Option<String> {
    let work = [with_covering(before), certified(reads)];
    let (finished, after) = execute_everywhere(rows, &work);
    let has_written = after.rows.contains_key(&(TableId(1), key(9)));
    assert_eq!(has_written, finished[1].outcome.is_ok());
    let abort = finished[1].outcome.as_ref().err()?;
    assert_eq!(abort.code.as_str(), "40001");
    abort.detail.clone()
}

fn rows_1_to_3() -> Rows {
    Rows::from([((1, 1), Some(1)), ((1, 2), None), ((1, 3), Some(3))])
}

#[test]
fn a_point_is_current_when_its_version_is_the_one_seen() {
    let rows = rows_1_to_3();
    assert_eq!(check(&rows, &[], point(1, ReadVersion::At(BEFORE))), None);
    assert_eq!(check(&rows, &[], point(2, ReadVersion::Absent)), None, "a deletion is absent");
    assert_eq!(check(&rows, &[], point(4, ReadVersion::Absent)), None);
    assert_eq!(check(&rows, &[Op::Delete(1, 4)], point(4, ReadVersion::Absent)), None);
    let by_job = |k| Some(format!("Key \"\\x0{k}\" of table t1 was changed by transaction 1.0."));
    assert_eq!(
        check(&rows, &[put(1, 1)], point(1, ReadVersion::At(BEFORE))),
        by_job(1),
        "same value"
    );
    assert_eq!(check(&rows, &[Op::Delete(1, 1)], point(1, ReadVersion::At(BEFORE))), by_job(1));
    assert_eq!(check(&rows, &[put(2, 2)], point(2, ReadVersion::Absent)), by_job(2));
    let older = check(&rows, &[], point(1, ReadVersion::At(SnapshotVersion(4))));
    assert_eq!(older.unwrap(), "Key \"\\x01\" of table t1 was changed by transaction 9.0.");
    let gone = check(&rows, &[], point(2, ReadVersion::At(SnapshotVersion(4))));
    assert_eq!(gone.unwrap(), "Key \"\\x02\" of table t1 was deleted.");
}

#[test]
fn a_range_is_current_when_its_rows_are_the_same_and_no_other_came() {
    let rows = rows_1_to_3();
    let seen = range(&[(1, ReadVersion::At(BEFORE)), (3, ReadVersion::At(BEFORE))]);
    assert_eq!(check(&rows, &[], seen.clone()), None);
    assert_eq!(check(&rows, &[put(8, 1)], seen.clone()), None, "after the end of the range");
    assert_eq!(check(&rows, &[Op::Delete(1, 5)], seen.clone()), None, "no row was deleted");
    for (change, k) in [(put(5, 5), 5), (put(3, 3), 3), (Op::Delete(1, 3), 3), (put(2, 2), 2)] {
        let detail = format!("Key \"\\x0{k}\" of table t1 was changed by transaction 1.0.");
        assert_eq!(check(&rows, &[change], seen.clone()), Some(detail));
    }
}

#[test]
fn a_certified_transaction_that_wins_makes_the_next_reader_lose() {
    let read = || certified(point(9, ReadVersion::Absent));
    let (finished, _) = execute_everywhere(&Rows::new(), &[read(), read(), read()]);
    let won: Vec<bool> = finished.iter().map(|done| done.outcome.is_ok()).collect();
    assert_eq!(won, [true, false, false]);
    let detail = finished[2].outcome.as_ref().unwrap_err().detail.as_deref();
    assert_eq!(detail, Some("Key \"\\t\" of table t1 was changed by transaction 1.0."));
}

#[test]
fn a_local_write_is_current_when_its_transaction_committed_as_it_was_executed() {
    let writer = TxnId::new(NodeId(9), 0);
    let rows = rows_1_to_3();
    assert_eq!(check(&rows, &[], point(1, ReadVersion::Local(writer))), None);
    assert!(check(&rows, &[], point(1, ReadVersion::Local(txn(8)))).is_some(), "another writer");
    assert!(
        check(&rows, &[put(1, 4)], point(1, ReadVersion::Local(txn(0)))).is_some(),
        "re-executed"
    );
    let local = range(&[(1, ReadVersion::Local(writer)), (3, ReadVersion::At(BEFORE))]);
    assert_eq!(check(&rows, &[], local), None);
    let first = Write { table: TableId(1), key: key(5), value: Some(value(5)) };
    let first = Program::Certified(Certified {
        reads: ReadSet::default(),
        writes: vec![first],
        ..Certified::default()
    });
    let work = [(first, None), certified(point(5, ReadVersion::Local(txn(0))))];
    let (finished, _) = execute_everywhere(&rows, &work);
    assert!(finished[1].outcome.is_ok(), "the writes of a certified transaction do not change");
}

#[test]
fn a_deletion_that_some_replica_has_reclaimed_makes_no_difference() {
    let reads =
        [point(2, ReadVersion::Local(TxnId::new(NodeId(9), 0))), point(2, ReadVersion::At(BEFORE))];
    for reads in reads {
        let with_tombstone = check(&Rows::from([((1, 2), None)]), &[], reads.clone());
        assert_eq!(with_tombstone, check(&Rows::new(), &[], reads));
        assert!(with_tombstone.is_some());
    }
}

#[test]
fn writes_carry_the_version_and_the_writer() {
    let store = store(&Rows::new());
    let program = program(&[put(1, 7), Op::Delete(1, 2)]);
    let job = Job { txn: txn(3), program: &program, footprint: None };
    let finished =
        execute(&Sequential, &registry(), &store, AT, &[job], &header_of, ResultDetail::Writes);
    let found = store.read(TableId(1), &[1], AT).unwrap();
    assert_eq!(found, Version { version: AT, header: header_of(&job), value: Some(value(7)) });
    assert_eq!(store.read(TableId(1), &[2], AT).unwrap().value, None);
    assert_eq!(finished[0].writes.len(), 2);
}
