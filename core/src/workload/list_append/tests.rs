//! Tests of the workload.

use super::*;
use crate::key::Direction;
use crate::workload::model::Model;
use std::collections::BTreeSet;

fn run(model: &mut Model, ops: &[Op]) -> Vec<Read> {
    let result = model.run(&Run, &encode_ops(ops)).expect("well formed");
    decode_reads(&result).expect("well formed")
}

fn read(list: u64, values: &[u64]) -> Read {
    Read { list, values: values.to_vec() }
}

#[test]
fn reads_return_the_values_in_the_order_of_their_appends() {
    let mut model = Model::default();
    let append = |list, value| Op::Append { list, value };
    assert_eq!(run(&mut model, &[append(3, 10), Op::Read { list: 3 }]), [read(3, &[10])]);
    let reads = run(&mut model, &[append(3, 7), append(5, 8), Op::Read { list: 4 }]);
    assert_eq!(reads, [read(4, &[])]);
    let range = Op::ReadRange { first: 2, count: 4, reach: Reach::ALL };
    let all = [read(2, &[]), read(3, &[10, 7]), read(4, &[]), read(5, &[8])];
    assert_eq!(run(&mut model, &[range]), all, "empty lists are read as well");
    let mut as_far = |direction, rows| {
        let reach = Reach { direction, rows };
        run(&mut model, &[Op::ReadRange { first: 2, count: 5, reach }, Op::Read { list: 9 }])
    };
    let [none, other] = [read(6, &[]), read(9, &[])];
    let [two, three, four, five] = all;
    let expected = [none, five, four.clone(), three.clone(), two.clone(), other.clone()];
    assert_eq!(as_far(Direction::Reverse, None), expected);
    assert_eq!(as_far(Direction::Reverse, Some(2)), [&expected[..4], &expected[5..]].concat());
    assert_eq!(as_far(Direction::Forward, Some(1)), [two, three, other]);
}

#[test]
fn operations_survive_their_encoding() {
    let list = u64::MAX - 1;
    let ops = [
        Op::Append { list, value: u64::MAX },
        Op::Read { list },
        Op::ReadRange { first: list - 1, count: 1, reach: Reach::ALL },
        Op::ReadRange {
            first: list - 1,
            count: 1,
            reach: Reach { direction: Direction::Reverse, rows: Some(2) },
        },
    ];
    assert_eq!(decode_ops(&encode_ops(&ops)), Ok(ops.to_vec()));
    let beyond = Op::ReadRange { first: list, count: 3, reach: Reach::ALL };
    assert!(decode_ops(&encode_ops(&[beyond])).is_err());
}

#[test]
fn no_two_appends_of_a_run_have_the_same_value_and_lists_are_left_in_time() {
    let settings = Settings { lists: 4, ..Settings::default() };
    let workload = ListAppend::new(Mix::Append, &settings).expect("valid settings");
    let (mut values, mut lists) = (BTreeSet::new(), BTreeSet::new());
    for index in 0..4 {
        let mut generator = workload.generator(Client::new(index, 4, 2));
        let mut dice = WorkloadRng::new(index.into());
        for txn in 0..3 * TXNS_PER_ERA {
            let era = txn / TXNS_PER_ERA;
            for op in generator.next_ops(&mut dice) {
                let last = match op {
                    Op::Append { list, value } => {
                        assert!(values.insert(value), "value {value} twice");
                        list
                    }
                    Op::Read { list } => list,
                    Op::ReadRange { first, count, .. } => first + count - 1,
                };
                assert!((4 * era..4 * (era + 1)).contains(&last));
                lists.insert(last);
            }
        }
    }
    assert_eq!(lists.len(), 12, "all lists of three eras");
}

#[test]
fn a_value_that_is_there_twice_is_a_violation() {
    let mut model = Model::default();
    run(&mut model, &[Op::Append { list: 1, value: 5 }]);
    assert!(check(&model).is_ok());
    run(&mut model, &[Op::Append { list: 2, value: 5 }]);
    let violation = check(&model).expect_err("value 5 occurs twice");
    assert_eq!((violation.left.1, violation.right.1), (2, 1));
}

#[test]
fn a_note_is_left_under_a_name_that_follows_from_the_list() {
    let mut model = Model::default();
    let mut follow = |value| {
        let ops = encode_ops(&[Op::Append { list: 1, value }, Op::Read { list: 1 }]);
        let result = model.run(&Follow, &ops).expect("well formed");
        let mut notes = Vec::new();
        model.scan(NOTES, &KeyRange::all(), &mut |name, value| {
            notes.push((name[0], decode_list(Some(value)).expect("a value")[0]));
            ControlFlow::Continue(())
        });
        (decode_reads(&result).expect("well formed")[0].values.len(), notes)
    };
    assert_eq!(follow(7), (1, vec![(0, 7)]));
    assert_eq!(follow(11), (2, vec![(0, 7), (3, 11)]));
    assert_eq!(follow(12), (3, vec![(3, 12)]), "and the next name is deleted");
    assert!(check(&model).is_ok());
    model.put(LISTS, key(1), None);
    let violation = check(&model).expect_err("clients with notes have not appended");
    assert_eq!((violation.left.1, violation.right.1), (1, 0));
}

#[test]
fn a_list_that_is_full_takes_no_more() {
    let mut model = Model::default();
    let full = Value::from(vec![0; LIST_LEN_MAX]);
    model.put(LISTS, key(1), Some(full));
    let append = encode_ops(&[Op::Append { list: 1, value: 5 }]);
    let stop = model.run(&Run, &append).expect_err("full");
    let limit = SqlState::PROGRAM_LIMIT_EXCEEDED;
    assert!(matches!(stop, Stop::Abort(abort) if abort.code == limit));
}

/// A program that only appends does not need the rows of other lists, and never aborts.
#[test]
fn half_of_the_transactions_of_list_add_are_divisible() {
    let workload = ListAppend::new(Mix::Add, &Settings::default()).expect("valid settings");
    let mut generator = workload.generator(Client::new(0, 1, 1));
    let mut dice = WorkloadRng::new(7);
    let calls: Vec<Call> = (0..1_000).map(|_| generator.next(&mut dice)).collect();
    let adds: Vec<_> = calls.iter().filter(|call| call.procedure == "list_add").collect();
    assert!((420..580).contains(&adds.len()), "{}", adds.len());
    for call in adds {
        assert!(Add.is_divisible(&call.args) && !call.is_read_only);
        assert!(decode_ops(&call.args).expect("well formed").iter().all(is_append));
    }
    let mut model = Model::default();
    model.put(LISTS, key(1), Some(Value::from(vec![0; LIST_LEN_MAX])));
    let appends = [1, 2].map(|list| Op::Append { list, value: 5 });
    assert_eq!(model.run(&Add, &encode_ops(&appends)), Ok(Vec::new()));
    assert_eq!(run(&mut model, &[Op::Read { list: 2 }]), [read(2, &[5])]);
}
