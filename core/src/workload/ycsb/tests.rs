//! Tests of the mixes, their keys, and the traces of lost writes.

use super::*;
use crate::workload::model::Model;
use crate::workload::tests::{Bench, small};
use std::collections::{BTreeMap, BTreeSet};

fn ops(args: &[u8]) -> Vec<Op<'_>> {
    operations(args).expect("well formed")
}

fn generator(mix: Mix, settings: &Settings, client: Client) -> Generator {
    Ycsb::new(mix, settings).expect("valid settings").generator(client)
}

/// The number of reads, writes, modifications and scans among 10,000 operations.
fn kinds(mix: Mix) -> [u32; 4] {
    let mut generator = generator(mix, &small(), Client::new(0, 1, 1));
    let (mut dice, mut kinds) = (WorkloadRng::new(1), [0; 4]);
    for _ in 0..1_000 {
        let call = generator.next(&mut dice);
        assert_eq!(ops(&call.args).len(), OPS_PER_TXN);
        for op in ops(&call.args) {
            kinds[match op {
                Op::Read { .. } => 0,
                Op::Write { value, .. } => {
                    assert_eq!(value.len(), 20);
                    1
                }
                Op::Modify { .. } => 2,
                Op::Scan { rows, .. } => {
                    assert!((1..=100).contains(&rows));
                    3
                }
            }] += 1;
        }
    }
    kinds
}

#[test]
fn each_mix_has_its_operations() {
    let half = 4_800..5_200;
    let few = 420..580;
    let [reads, writes, modifies, scans] = kinds(Mix::A);
    assert!(half.contains(&reads) && half.contains(&writes) && modifies + scans == 0);
    for mix in [Mix::B, Mix::D] {
        let [_, writes, modifies, scans] = kinds(mix);
        assert!(few.contains(&writes) && modifies + scans == 0, "{mix:?}");
    }
    assert_eq!(kinds(Mix::C), [10_000, 0, 0, 0]);
    let [reads, writes, modifies, _] = kinds(Mix::E);
    assert!(few.contains(&writes) && reads + modifies == 0);
    let [_, writes, modifies, scans] = kinds(Mix::F);
    assert!(half.contains(&modifies) && writes + scans == 0);
}

#[test]
fn keys_have_ten_digits_and_the_order_of_their_numbers() {
    assert_eq!(key(0).as_bytes(), b"0000000000");
    assert_eq!(key(ROW_END - 1).as_bytes(), b"9999999999");
    assert_eq!(key(120_045).as_bytes(), b"0000120045");
    assert!(Op::range(5, 10).contains(&key(14)) && !Op::range(5, 10).contains(&key(15)));
    assert!(Op::range(ROW_END - 1, 100).contains(&key(ROW_END - 1)));
}

#[test]
fn hot_rows_are_as_hot_as_the_law_says_and_are_not_neighbours() {
    let settings = Settings { rows: 1_000_000, zipf: 1.2, ..small() };
    let mut generator = generator(Mix::C, &settings, Client::new(0, 1, 1));
    let (mut dice, mut drawn) = (WorkloadRng::new(1), BTreeMap::<u64, u32>::new());
    for _ in 0..5_000 {
        for op in ops(&generator.next(&mut dice).args) {
            let Op::Read { row } = op else { panic!("mix C only reads") };
            *drawn.entry(row).or_default() += 1;
        }
    }
    let weights: f64 = (1..=1_000_000).map(|k| f64::from(k).powf(-1.2)).sum();
    let mut hottest: Vec<_> = drawn.iter().map(|(row, count)| (*count, *row)).collect();
    hottest.sort_unstable_by(|a, b| b.cmp(a));
    for (rank, (count, row)) in (1..=3).zip(&hottest) {
        let expected = 50_000.0 * f64::from(rank).powf(-1.2) / weights;
        let deviations = (f64::from(*count) - expected) / expected.sqrt();
        assert!(deviations.abs() < 5.0, "rank {rank}, row {row}: {count}, not {expected}");
    }
    assert!(hottest[0].1.abs_diff(hottest[1].1) > 1);
}

#[test]
fn clients_never_insert_the_same_row_and_read_what_is_latest() {
    let mut inserted = BTreeSet::new();
    for index in 0..3 {
        let client = Client::new(index, 3, 1);
        let settings = Settings { zipf: 1.2, ..small() };
        let mut generator = generator(Mix::D, &settings, client);
        let (mut dice, mut latest, mut reads) = (WorkloadRng::new(index.into()), 0, 0);
        for _ in 0..200 {
            for op in ops(&generator.next(&mut dice).args) {
                match op {
                    Op::Write { row, .. } => {
                        assert!(row >= 200 && inserted.insert(row), "row {row}");
                    }
                    Op::Read { row } => {
                        let end = 200 + 3 * generator.inserts;
                        assert!(row < end);
                        latest += u32::from(row + 20 >= end);
                        reads += 1;
                    }
                    _ => panic!("mix D has no {op:?}"),
                }
            }
        }
        assert!(latest * 2 > reads, "{latest} of {reads} reads are of the last rows");
    }
    assert!(inserted.len() > 200);
}

#[test]
fn every_read_modify_write_counts() {
    let mut bench = Bench::new("ycsb-f", &small());
    let mut modifies = 0;
    for _ in 0..300 {
        let call = bench.next();
        let is_modify = |op: &&Op<'_>| matches!(op, Op::Modify { .. });
        modifies += ops(&call.args).iter().filter(is_modify).count() as i64;
        bench.run(&call).expect("YCSB never aborts");
    }
    assert_eq!(bench.check().facts["increments"], modifies);
}

#[test]
fn reads_return_what_was_written_and_scans_return_all_of_it() {
    let mut model = Model::default();
    let mut run = |ops: &[(u8, u64, &[u8])]| {
        let mut args = vec![ops.len() as u8];
        for (kind, row, rest) in ops {
            args.put_u8(*kind);
            args.put_varint(*row);
            args.extend_from_slice(rest);
        }
        model.run(&Run, &args).expect("well formed")
    };
    let value = |byte| [vec![8], vec![byte; 8]].concat();
    run(&[(Op::WRITE, 7, &value(1)), (Op::WRITE, 9, &value(2)), (Op::WRITE, 10, &value(3))]);
    assert_eq!(run(&[(Op::READ, 7, &[]), (Op::READ, 8, &[])]), [value(1), vec![0]].concat());
    assert_eq!(run(&[(Op::SCAN, 7, &[3])]), [value(1), value(2)].concat());
}

#[test]
fn lost_rows_and_values_of_another_length_are_violations() {
    let bench = Bench::new("ycsb-a", &small());
    let mut model = bench.model.clone();
    model.put(ROWS, key(199), None);
    let violation = bench.workload.check(&model).expect_err("a row is missing");
    assert_eq!((violation.left.1, violation.right.1), (199, 200));
    model.put(ROWS, key(199), Some(Value::copy_from(&[0; 21])));
    assert!(bench.workload.check(&model).is_err());
}

#[test]
fn long_transactions_are_as_many_and_as_long_as_they_are_asked_to_be() {
    let settings = Settings { long: 20, long_times: 30, ..small() };
    let mut bench = Bench::new("ycsb-f", &settings);
    let (mut long, mut modified) = (0, 0);
    for _ in 0..1_000 {
        let call = bench.next();
        let ops = ops(&call.args);
        let is_long = call.label == "long-write";
        assert_eq!(ops.len(), if is_long { 300 } else { OPS_PER_TXN }, "{}", call.label);
        long += u32::from(is_long);
        modified += ops.iter().filter(|op| matches!(op, Op::Modify { .. })).count() as i64;
        bench.run(&call).expect("nothing aborts");
    }
    assert!((150..250).contains(&long), "{long}");
    assert_eq!(
        bench.check().facts["increments"],
        modified,
        "no increment of a long transaction is lost"
    );
    let too_much = Settings { long: 1, long_times: 100, value_len: 100_000, ..small() };
    let refused = Ycsb::new(Mix::A, &too_much).unwrap_err();
    assert!(refused.to_string().contains("up to 100 MB"), "{refused}");
    assert!(Ycsb::new(Mix::A, &Settings { long: 101, ..small() }).is_err());
    assert!(Ycsb::new(Mix::A, &Settings { long_times: 101, ..small() }).is_err());
}
