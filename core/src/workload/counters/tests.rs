//! Tests of the mixes, the load and the check.

use super::*;
use crate::workload::Workload;
use crate::workload::tests::{Bench, small};
use std::collections::BTreeMap;

/// The counters of many transactions of a client in region 1.
fn drawn(mix: Mix, settings: &Settings) -> Vec<(Vec<Counter>, What)> {
    let counters = Counters::new(mix, settings).expect("valid settings");
    let mut generator = counters.generator(Client::new(1, 3, 3));
    let mut dice = WorkloadRng::new(3);
    let calls = (0..2_000).map(|_| generator.next(&mut dice));
    calls.map(|call| decode_args(&call.args).expect("well formed")).collect()
}

fn share(of: &[(Vec<Counter>, What)], is: impl Fn(&[Counter]) -> bool) -> f64 {
    of.iter().filter(|(counters, _)| is(counters)).count() as f64 / of.len() as f64
}

#[test]
fn calvins_take_one_hot_record_of_each_shard() {
    let settings = Settings { hot: 5, remote: 10, ..small() };
    let all = drawn(Mix::Calvin, &settings);
    for (counters, what) in &all {
        assert!(*what == What::ReadAndIncrement && counters.len() == 10);
        let mut by_shard = BTreeMap::<u16, (u32, u32)>::new();
        for counter in counters {
            let (hot, cold) = by_shard.entry(counter.shard).or_default();
            *if counter.row < 5 { hot } else { cold } += 1;
        }
        assert!(by_shard.contains_key(&1), "the home shard has counters");
        let expected = if by_shard.len() == 1 { (1, 9) } else { (1, 4) };
        assert!(by_shard.values().all(|counts| *counts == expected), "{by_shard:?}");
    }
    let multi = share(&all, |counters| counters.iter().any(|it| it.shard != 1));
    assert!((0.07..0.13).contains(&multi), "{multi}");
}

/// Only the chosen transactions access cold records, drawn from all of them. The other records
/// conflict as without cold ones.
#[test]
fn some_of_calvins_take_one_cold_record_of_their_own_shard() {
    let settings = Settings { rows: 1_000, hot: 5, payload: 100, cold: 30, ..small() };
    let all = drawn(Mix::Calvin, &settings);
    let cold = |counters: &[Counter]| -> Vec<(u16, u32)> {
        counters.iter().filter(|it| it.row >= 100).map(|it| (it.shard, it.row)).collect()
    };
    let taken: Vec<_> = all.iter().flat_map(|(of, _)| cold(of)).collect();
    assert!(taken.iter().all(|(shard, _)| *shard == 1), "counters of the home shard");
    let distinct: std::collections::BTreeSet<_> = taken.iter().collect();
    assert!(distinct.len() > 350, "{} of 900", distinct.len());
    let has_one = share(&all, |counters| cold(counters).len() == 1);
    assert!((0.26..0.34).contains(&has_one), "{has_one}");
    assert_eq!(taken.len(), (has_one * 2_000.0).round() as usize, "no transaction has two");
    let is_hot = |counters: &[Counter]| counters.iter().any(|it| it.row < 5);
    assert_eq!(share(&all, is_hot), 1.0);
    let without = drawn(Mix::Calvin, &Settings { cold: 0, ..settings });
    assert!(without.iter().all(|(counters, _)| cold(counters).is_empty()));
}

#[test]
fn a_record_keeps_its_payload_and_another_s_is_a_violation() {
    let settings = Settings { rows: 300, hot: 5, payload: 40, cold: 50, ..small() };
    let mut bench = Bench::new("calvin-micro", &settings);
    let ended = bench.run_many(200);
    assert!(ended["cold"].0 > 50, "{ended:?}");
    let committed: i64 = ended.values().map(|(committed, _)| i64::from(*committed)).sum();
    assert_eq!(bench.check().facts[INCREMENTS], 10 * committed);
    for wrong in [vec![1; 40], vec![1; 39], Vec::new()] {
        let mut model = bench.model.clone();
        let at = key(Counter { shard: 1, row: 299 });
        model.put(COUNTERS, at, Some(encode(0, &wrong)));
        assert!(bench.workload.check(&model).is_err(), "{wrong:?}");
    }
}

#[test]
fn makos_are_half_reads_and_seldom_leave_their_shard() {
    let all = drawn(Mix::Mako, &Settings { remote: 5, zipf: 0.0, ..small() });
    assert!(all.iter().all(|(counters, _)| counters.len() == 4));
    let increments = all.iter().filter(|(_, what)| *what == What::ReadAndIncrement).count();
    assert!((900..1_100).contains(&increments), "{increments}");
    let stays = share(&all, |counters| counters.iter().all(|it| it.shard == 1));
    assert!((0.78..0.85).contains(&stays), "0.95 to the fourth, not {stays}");
}

#[test]
fn tigas_take_three_shards_and_the_skew_that_is_asked_for() {
    let most = |zipf| {
        let settings = Settings { shards: 5, zipf, ..small() };
        let all = drawn(Mix::Tiga, &settings);
        let mut counts = BTreeMap::<u32, u32>::new();
        for (counters, _) in &all {
            let mut shards: Vec<u16> = counters.iter().map(|it| it.shard).collect();
            shards.sort_unstable();
            shards.dedup();
            assert_eq!(shards.len(), 3);
            counters.iter().for_each(|it| *counts.entry(it.row).or_default() += 1);
        }
        counts.into_values().max().expect("some counters were drawn")
    };
    assert!(most(0.99) > 3 * most(0.5));
}

#[test]
fn each_increment_that_commits_is_in_the_sum() {
    for mix in Mix::ALL {
        let mut bench = Bench::new(mix.name(), &small());
        let Workload::Counters(counters) = bench.workload.clone() else { panic!("{mix:?}") };
        let ended = bench.run_many(300);
        let expected: i64 = (ended.iter())
            .map(|(label, (committed, _))| counters.increments_of(label) * i64::from(*committed))
            .sum();
        assert_eq!(bench.check().facts[INCREMENTS], expected);
    }
}

#[test]
fn a_counter_that_is_named_twice_counts_twice() {
    let mut bench = Bench::new("tiga-micro", &small());
    let counter = Counter { shard: 0, row: 7 };
    let other = Counter { shard: 0, row: 8 };
    let read = encode_args(&[counter, other], What::Read);
    for (what, after) in [(What::ReadAndIncrement, 2), (What::Increment, 4)] {
        let args = encode_args(&[counter, counter], what);
        bench.model.run(&Run, &args).expect("the counter exists");
        assert_eq!(bench.model.run(&Run, &read).expect("the counters exist"), [2, after, 0]);
    }
    let nobody = encode_args(&[Counter { shard: 9, row: 0 }], What::Read);
    let stop = bench.model.run(&Run, &nobody).expect_err("the counter does not exist");
    assert!(matches!(stop, Stop::Abort(abort) if abort.code == SqlState::NO_DATA_FOUND));
}

/// The run of a divisible program on one shard: it never aborts, and increments what is there.
#[test]
fn increments_alone_are_divisible_and_leave_what_is_no_counter() {
    let mut bench = Bench::new("tiga-micro", &small());
    let [there, absent] = [0, 9].map(|shard| Counter { shard, row: 7 });
    let broken = Counter { shard: 1, row: 7 };
    bench.model.put(COUNTERS, key(broken), Some(Value::copy_from(b"odd")));
    let of = |what| encode_args(&[there, absent, broken], what);
    assert!(Run.is_divisible(&of(What::Increment)) && !Run.is_read_only(&of(What::Increment)));
    assert!([What::Read, What::ReadAndIncrement].iter().all(|what| !Run.is_divisible(&of(*what))));
    assert!(!Run.is_divisible(&[2, 200]), "a program whose arguments are malformed aborts");
    assert_eq!(bench.model.run(&Run, &of(What::Increment)), Ok(Vec::new()));
    let read = encode_args(&[there], What::Read);
    assert_eq!(bench.model.run(&Run, &read), Ok(vec![1, 1]));
}

/// All increments of a transaction of Tiga's benchmark are there, or none: its counters are on
/// three shards.
#[test]
fn an_increment_of_tigas_without_the_others_is_a_violation() {
    let mut bench = Bench::new("tiga-micro", &small());
    bench.run_many(50);
    let mut add = |shards: &[u16]| {
        let of: Vec<Counter> =
            shards.iter().map(|shard| Counter { shard: *shard, row: 0 }).collect();
        bench.model.run(&Run, &encode_args(&of, What::Increment)).expect("it never aborts");
        bench.workload.check(&bench.model).map(|_| ()).map_err(|violation| violation.left.0)
    };
    assert_eq!(add(&[0, 1, 2]), Ok(()));
    assert_eq!(add(&[1]), Err("increments without two others"));
    assert_eq!(add(&[1, 1]), Err("increments of one shard alone"));
    assert_eq!(add(&[0, 0, 0, 2, 2, 2]), Ok(()), "each shard has the same");
}
