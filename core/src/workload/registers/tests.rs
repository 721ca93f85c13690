//! Tests of the workload.

use super::*;
use crate::key::Direction;
use crate::workload::model::Model;
use std::collections::BTreeSet;

fn run(model: &mut Model, ops: &[Op]) -> Vec<Vec<(u64, u64)>> {
    let result = model.run(&Run, &encode_ops(ops)).expect("well formed");
    decode_found(&result).expect("well formed")
}

#[test]
fn reads_and_scans_find_what_is_there_and_what_was_just_written() {
    let mut model = Model::default();
    let write = |row, value| Op::Write { row, value };
    let (read, scan) = (|row| Op::Read { row }, Op::Scan { first: 1, count: 3, reach: Reach::ALL });
    let found = run(&mut model, &[read(1), write(1, 10), write(3, 30), read(1), scan]);
    assert_eq!(found, [vec![], vec![(1, 10)], vec![(1, 10), (3, 30)]]);
    let found = run(&mut model, &[Op::Delete { row: 1 }, write(4, 40), read(1), scan]);
    assert_eq!(found, [vec![(1, 10)], vec![], vec![(3, 30)]], "row 4 is not in the range");
    assert_eq!(run(&mut model, &[read(4), read(9)]), [vec![(4, 40)], vec![]]);
}

fn back(rows: Option<u64>) -> Reach {
    Reach { direction: Direction::Reverse, rows }
}

#[test]
fn a_scan_goes_as_far_as_it_reaches() {
    let mut model = Model::default();
    let write = |row| Op::Write { row, value: row * 10 };
    run(&mut model, &[write(1), write(3), write(4)]);
    let mut scan = |reach| run(&mut model, &[Op::Scan { first: 1, count: 9, reach }]).remove(0);
    assert_eq!(scan(back(None)), [(4, 40), (3, 30), (1, 10)]);
    assert_eq!(scan(back(Some(2))), [(4, 40), (3, 30)]);
    assert_eq!(scan(Reach { rows: Some(1), ..Reach::ALL }), [(1, 10)]);
}

#[test]
fn operations_survive_their_encoding() {
    let row = u64::MAX - 1;
    let ops = [
        Op::Write { row, value: u64::MAX },
        Op::Delete { row },
        Op::Read { row },
        Op::Scan { first: row - 1, count: 2, reach: Reach::ALL },
        Op::Scan { first: row - 1, count: 2, reach: back(Some(1)) },
    ];
    assert_eq!(decode_ops(&encode_ops(&ops)), Ok(ops.to_vec()));
    assert!(
        decode_ops(&encode_ops(&[Op::Scan { first: row, count: 3, reach: Reach::ALL }])).is_err()
    );
    assert!(
        decode_ops(&encode_ops(&[Op::Scan { first: 0, count: 0, reach: Reach::ALL }])).is_err()
    );
}

#[test]
fn each_mix_does_what_it_is_for_and_writes_no_value_twice() {
    let settings = Settings { lists: 4, ..Settings::default() };
    for mix in Mix::ALL {
        let mut witnesses = BTreeSet::new();
        let workload = Registers::new(mix, &settings).expect("valid settings");
        let (mut values, mut deletes, mut scans, mut only_read) = (BTreeSet::new(), 0, 0, 0);
        for index in 0..4 {
            let mut generator = workload.generator(Client::new(index, 4, 2));
            let mut dice = WorkloadRng::new(index.into());
            for txn in 0..3 * TXNS_PER_ERA {
                let era = 4 * (txn / TXNS_PER_ERA)..4 * (txn / TXNS_PER_ERA + 1);
                let ops = generator.next_ops(&mut dice);
                only_read += u64::from(!ops.iter().any(Op::is_write));
                for op in ops {
                    let (first, last) = match op {
                        Op::Write { row, value } => {
                            assert!(values.insert(value), "value {value} twice");
                            if row >= WITNESSES {
                                assert!(witnesses.insert(row), "one row of two deletes");
                                continue;
                            }
                            (row, row)
                        }
                        Op::Delete { row } => {
                            deletes += 1;
                            (row, row)
                        }
                        Op::Read { row } => (row, row),
                        Op::Scan { first, count, .. } => {
                            scans += 1;
                            (first, first + count - 1)
                        }
                    };
                    assert!(era.contains(&first) && era.contains(&last), "{op:?}");
                }
            }
        }
        assert_eq!(scans > 0, mix == Mix::Ranges, "{mix:?}");
        // A witness would add a shard to a transaction of a chain.
        let has_deletes = mix != Mix::Chain;
        assert_eq!((deletes > 0, !witnesses.is_empty()), (has_deletes, has_deletes), "{mix:?}");
        assert_eq!(only_read > 0, mix != Mix::Cycle, "{mix:?}");
        assert!(!values.is_empty(), "{mix:?}");
    }
}

/// The shape in which orders of shards can differ from real time: a client updates a row, and then
/// another one nearby, while others update the rows in between in pairs.
#[test]
fn a_client_updates_both_ends_of_a_chain_one_after_the_other() {
    let workload = Registers::new(Mix::Chain, &Settings { lists: 6, ..Settings::default() });
    let workload = workload.expect("valid settings");
    let partitions = workload.partitions(3);
    let shard_of = |row| partitions.shard_of(REGISTERS, &key(row)).expect("it is on one shard");
    let mut generator = workload.generator(Client::new(0, 4, 2));
    let mut dice = WorkloadRng::new(1);
    let (mut lengths, mut ups, mut pairs) = (BTreeSet::new(), BTreeSet::new(), 0);
    let mut first_end = None;
    for _ in 0..20 * TXNS_PER_ERA {
        let ops = generator.next_ops(&mut dice);
        let rows: Vec<u64> = (ops.iter())
            .filter_map(|op| if let Op::Write { row, .. } = op { Some(*row) } else { None })
            .collect();
        match (&rows[..], first_end.take()) {
            (&[row], Some(first)) => {
                lengths.insert(row.abs_diff(first));
                ups.insert(row > first);
            }
            (&[row], None) => first_end = Some(row),
            (&[row, next], None) => {
                assert!(next == row + 1 && shard_of(row) != shard_of(next));
                pairs += 1;
            }
            (&[], None) => assert!(ops.len() > 1, "a read of adjacent rows"),
            (rows, first) => panic!("{rows:?} after {first:?}"),
        }
    }
    let lengths: Vec<u64> = lengths.into_iter().collect();
    assert_eq!((lengths, ups.len()), (vec![1, 2, 3], 2));
    assert!(pairs > 100, "{pairs}");
}

#[test]
fn a_value_that_is_there_twice_is_a_violation() {
    let mut model = Model::default();
    run(&mut model, &[Op::Write { row: 1, value: 5 }]);
    assert_eq!(check(&model).expect("the row exists once").facts["rows"], 1);
    run(&mut model, &[Op::Write { row: 2, value: 5 }]);
    let violation = check(&model).expect_err("value 5 occurs twice");
    assert_eq!((violation.left.1, violation.right.1), (2, 1));
    model.put(REGISTERS, key(3), Some(Value::from(vec![1])));
    assert!(check(&model).expect_err("a byte").rule.contains("malformed row"));
}
