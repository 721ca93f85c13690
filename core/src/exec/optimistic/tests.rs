//! Tests of the optimistic executor.

use proptest::prelude::*;

use super::*;
use crate::exec::testing::{
    Backwards, Model, Op, Threads, key, ops, program, registry, rows, store, txn, value,
};
use crate::ids::NodeId;
use crate::pool::Sequential;
use crate::store::{RecordHeader, Version};

const AT: SnapshotVersion = SnapshotVersion(5);

fn scan(start: u8, end: u8, limit: u8) -> Op {
    Op::Scan { table: 1, start, end, is_reverse: false, limit, to: None }
}

fn seen(run: &Run) -> Vec<(u8, ReadVersion)> {
    run.reads.points.iter().map(|read| (read.key[0], read.seen)).collect()
}

fn run_ops(ops: &[Op], store: &Store, overlay: &Overlay) -> Run {
    run(&registry(), &program(ops), store, AT, overlay)
}

fn three_rows() -> Store {
    store(&[((1, 1), Some(10)), ((1, 3), None), ((1, 5), Some(50))].into())
}

fn write(k: u8, v: Option<u8>) -> Write {
    Write { table: TableId(1), key: key(k), value: v.map(value) }
}

#[test]
fn each_key_is_recorded_once_with_the_version_seen_and_own_writes_are_not() {
    let store = three_rows();
    let mut overlay = Overlay::new();
    overlay.insert(txn(7), &[write(5, None)]);
    let gets = [1, 1, 3, 4, 5].map(|k| Op::Get(1, k));
    let own = [Op::Put(1, 6, 9), Op::Get(1, 6), Op::Put(1, 1, 2), Op::Get(1, 1)];
    let run = run_ops(&[&gets[..], &own].concat(), &store, &overlay);
    let expected = [
        (1, ReadVersion::At(AT)),
        (3, ReadVersion::Absent),
        (4, ReadVersion::Absent),
        (5, ReadVersion::LocalDeleted(txn(7))),
    ];
    assert_eq!(seen(&run), expected);
    assert_eq!(run.result, Ok(vec![10, 10, 0, 0, 0, 9, 2]));
    assert_eq!(run.writes, [write(6, Some(9)), write(1, Some(2))]);
}

#[test]
fn guards_say_what_lies_under_own_writes_and_a_version_says_more_than_existence() {
    let (store, overlay, table) = (three_rows(), Overlay::new(), TableId(1));
    let base = Base { store: &store, at: AT, overlay: &overlay };
    let mut observed = Observed::new(base, Recorded { guards: true, adds: false });
    observed.put(table, key(4), value(40)).unwrap();
    assert_eq!(observed.get(table, &key(5)), Ok(Some(value(50))));
    let guards = observed.guards().expect("they are recorded");
    for k in [1, 4, 5, 5] {
        guards.existence(table, &key(k)).unwrap();
    }
    // Later, row 5 itself matters.
    guards.row(table, &key(5)).unwrap();
    guards.row(table, &key(3)).unwrap();
    guards.range(table, &KeyRange::all()).unwrap();
    guards.range(table, &KeyRange::all()).unwrap();
    let guards = observed.guards.expect("they are recorded").reads;
    let seen: Vec<_> = guards.points.iter().map(|read| (read.key[0], read.seen)).collect();
    let expected = [
        (1, ReadVersion::Present),
        (4, ReadVersion::Absent),
        (5, ReadVersion::At(AT)),
        (3, ReadVersion::Absent),
    ];
    assert_eq!(seen, expected);
    let rows = [1, 5].map(|k| (key(k), ReadVersion::At(AT))).to_vec();
    assert_eq!(guards.ranges, [RangeRead { table, range: KeyRange::all(), rows }]);
    assert!(Observed::new(base, Recorded::default()).guards().is_none(), "all reads are checked");
    // A value may change, and a row may not go.
    let change = |now, k, value: Option<u8>| {
        let now = SnapshotVersion(now);
        let header = RecordHeader::new(txn(3));
        let value = value.map(|v| Value::copy_from(&[v]));
        store.apply(table, key(k), Version { version: now, header, value });
        let points = guards.points[..1].to_vec();
        first_change(&ReadSet { points, ranges: Vec::new() }, &store, now).map(|it| it.key[0])
    };
    assert_eq!(change(8, 1, Some(11)), None);
    assert_eq!(change(9, 1, None), Some(1));
}

#[test]
fn a_scan_records_what_lies_under_own_writes_and_stops_where_it_stopped() {
    let store = three_rows();
    let mut overlay = Overlay::new();
    overlay.insert(txn(7), &[write(2, None), write(4, Some(40))]);
    let own = [Op::Put(1, 1, 11), Op::Put(1, 0, 1)];
    let run = run_ops(&[&own[..], &[scan(0, 9, 3)]].concat(), &store, &overlay);
    assert_eq!(
        run.result,
        Ok(vec![0, 1, 1, 11, 4, 40]),
        "its own write, its own write over a stored row, a local write"
    );
    let rows = vec![
        (key(1), ReadVersion::At(AT)),
        (key(2), ReadVersion::LocalDeleted(txn(7))),
        (key(4), ReadVersion::Local(txn(7))),
    ];
    let range = KeyRange { start: vec![0], end: Some(vec![4, 0]) };
    assert_eq!(run.reads.ranges, [RangeRead { table: TableId(1), range, rows }]);
}

#[test]
fn a_reverse_scan_records_its_rows_in_ascending_order() {
    let reverse = Op::Scan { table: 1, start: 0, end: 9, is_reverse: true, limit: 2, to: None };
    let run = run_ops(&[reverse], &three_rows(), &Overlay::new());
    assert_eq!(run.result, Ok(vec![5, 50, 1, 10]));
    let range = KeyRange { start: vec![1], end: Some(vec![9]) };
    let rows = vec![(key(1), ReadVersion::At(AT)), (key(5), ReadVersion::At(AT))];
    assert_eq!(run.reads.ranges, [RangeRead { table: TableId(1), range, rows }]);
}

#[test]
fn an_aborted_program_keeps_its_reads_and_drops_its_writes() {
    let store = store(&[((1, 1), Some(11))].into());
    let ops = [Op::Put(1, 2, 2), Op::AbortIfOdd(1, 1), Op::Get(1, 3)];
    let run = run_ops(&ops, &store, &Overlay::new());
    assert_eq!(run.result.as_ref().map_err(|abort| abort.code.as_str()), Err("P0001"));
    assert_eq!((seen(&run), run.writes), (vec![(1, ReadVersion::At(AT))], vec![]));
    let footprint = probe(&registry(), &program(&ops), &store, AT, &Overlay::new());
    assert!(
        footprint.covers(TableId(1), &[2], crate::txn::LockMode::Write),
        "a probe retains the keys"
    );
}

#[test]
fn a_panic_in_a_procedure_and_an_unknown_procedure_are_aborts() {
    let run =
        run_ops(&[Op::Get(1, 1), Op::Put(1, 1, 1), Op::Panic], &three_rows(), &Overlay::new());
    assert_eq!(run.result.as_ref().map_err(|abort| abort.code.as_str()), Err("XX000"));
    assert_eq!((run.reads.points.len(), run.writes.len()), (1, 0));
    let unknown =
        Program::Call { procedure: crate::ids::ProcedureId(9), args: bytes::Bytes::new() };
    let run = super::run(&registry(), &unknown, &three_rows(), AT, &Overlay::new());
    assert!(run.result.is_err_and(|abort| abort.message.contains("number 9")));
}

#[test]
fn a_certified_transaction_is_checked_against_snapshot_and_overlay() {
    let store = three_rows();
    let mut overlay = Overlay::new();
    let first = run_ops(&[Op::Get(1, 1), scan(2, 9, 9), Op::Put(1, 7, 7)], &store, &overlay);
    let certified = Certified { reads: first.reads, writes: first.writes, ..Certified::default() };
    let check = |overlay: &Overlay| {
        let program = Program::Certified(certified.clone());
        run(&registry(), &program, &store, AT, overlay).result.map_err(|abort| abort.detail)
    };
    assert_eq!(check(&overlay), Ok(vec![]));
    overlay.insert(txn(3), &[write(0, Some(1))]);
    assert_eq!(check(&overlay), Ok(vec![]), "a key that was not read");
    overlay.insert(txn(4), &[write(8, Some(1))]);
    let detail = check(&overlay).unwrap_err().unwrap();
    assert_eq!(detail, "Key \"\\x08\" of table t1 was changed by transaction 1.4.", "a phantom");
}

#[test]
fn a_local_write_that_was_committed_since_is_still_what_was_read() {
    let store = three_rows();
    let mut overlay = Overlay::new();
    overlay.insert(txn(3), &[write(1, Some(77))]);
    let read = run_ops(&[Op::Get(1, 1)], &store, &overlay);
    let program =
        Program::Certified(Certified { reads: read.reads, writes: vec![], ..Certified::default() });
    let commit_as = |writer| {
        let store = three_rows();
        let version = Version {
            version: SnapshotVersion(6),
            header: RecordHeader::new(writer),
            value: Some(value(77)),
        };
        store.apply(TableId(1), key(1), version);
        run(&registry(), &program, &store, SnapshotVersion(6), &Overlay::new()).result
    };
    assert!(commit_as(txn(3)).is_ok());
    assert!(commit_as(TxnId::new(NodeId(2), 3)).is_err(), "another transaction won");
}

#[test]
fn a_certified_transaction_in_a_group_loses_to_one_before_it_and_makes_one_after_it_lose() {
    let store = three_rows();
    let read_and_write = run_ops(&[scan(0, 9, 9), Op::Put(1, 8, 8)], &store, &Overlay::new());
    let certified = || {
        let (reads, writes) = (read_and_write.reads.clone(), read_and_write.writes.clone());
        Program::Certified(Certified { reads, writes, ..Certified::default() })
    };
    let mut programs: Vec<_> = (0..30).map(|k| program(&[Op::Put(1, 20 + k, 1)])).collect();
    programs.extend([certified(), certified(), program(&[Op::Get(1, 8)])]);
    let named: Vec<_> = (0..).map(txn).zip(&programs).collect();
    for pool in [&Sequential as &dyn Pool, &Threads(3)] {
        let mut overlay = Overlay::new();
        let runs = run_group(pool, &registry(), &named, &store, AT, &mut overlay);
        assert_eq!(runs[30].result, Ok(vec![]));
        let abort = runs[31].result.clone().unwrap_err();
        let winner = "Key \"\\x08\" of table t1 was changed by transaction 1.30.";
        assert_eq!((abort.code.as_str(), abort.detail.as_deref()), ("40001", Some(winner)));
        assert_eq!(runs[32].result, Ok(vec![8]));
        assert_eq!(overlay.newest(TableId(1), &[8]), Some((txn(30), Some(&value(8)))));
    }
}

/// Reads stay current only if they saw each write of the overlay in their range.
#[test]
fn a_range_is_current_if_it_saw_the_writes_and_deletions_within() {
    let table = TableId(1);
    let key = Key::from(&[8][..]);
    let seen = |version| {
        let range = KeyRange { start: vec![7], end: Some(vec![9]) };
        let rows = vec![(key.clone(), version)];
        ReadSet { points: Vec::new(), ranges: vec![RangeRead { table, range, rows }] }
    };
    let write = |value| [Write { table, key: key.clone(), value }];
    let mut overlay = Overlay::new();
    overlay.insert(txn(1), &write(Some(value(5))));
    assert!(is_current(&seen(ReadVersion::local(txn(1), true)), &overlay));
    assert!(!is_current(&seen(ReadVersion::At(AT)), &overlay));
    overlay.insert(txn(2), &write(None));
    assert!(!is_current(&seen(ReadVersion::local(txn(1), true)), &overlay));
    assert!(!is_current(&seen(ReadVersion::local(txn(2), true)), &overlay));
    assert!(is_current(&seen(ReadVersion::local(txn(2), false)), &overlay));
}

proptest! {
    #[test]
    fn a_group_runs_as_if_one_after_the_other(
        rows in rows(),
        before in prop::collection::vec(ops(), 0..3),
        group in prop::collection::vec(ops(), 0..40),
        workers in 2usize..6,
    ) {
        let store = store(&rows);
        let mut model = Model::new(&rows);
        let programs: Vec<_> = before.iter().chain(&group).map(|ops| program(ops)).collect();
        let named: Vec<_> =
            programs.iter().enumerate().map(|(n, program)| (txn(n as u64), program)).collect();
        let (early, late) = named.split_at(before.len());
        let mut answers = Vec::new();
        for pool in [&Sequential as &dyn Pool, &Threads(workers), &Backwards(workers)] {
            let mut overlay = Overlay::new();
            let mut runs = run_group(&Sequential, &registry(), early, &store, AT, &mut overlay);
            runs.extend(run_group(pool, &registry(), late, &store, AT, &mut overlay));
            for (run, &(txn, _)) in runs.iter().zip(&named) {
                for write in &run.writes {
                    prop_assert!(overlay.newest(write.table, &write.key).is_some(), "{}", txn);
                }
            }
            answers.push(runs);
        }
        prop_assert_eq!(&answers[0], &answers[1]);
        prop_assert_eq!(&answers[0], &answers[2]);
        for (run, ops) in answers[0].iter().zip(before.iter().chain(&group)) {
            let expected = model.run(ops);
            prop_assert_eq!(run.result.clone().map_err(Stop::Abort), expected);
        }
    }
}
