//! Divisible programs have the same effects as on a single store, and no shard waits for another.

use std::panic::catch_unwind;

use super::sharded::{LAST, Shards, Work, partitions};
use super::*;
use crate::exec::ordered::ShardOutcome;
use crate::exec::ordered::remote_reads::Limits;
use crate::exec::testing::divisible;
use crate::ids::{ShardId, TxnId};
use crate::partition::{Partitions, Rule};

const NO_LIMITS: Limits = Limits { part: usize::MAX, result: usize::MAX };

/// Whether no shard needs rows of another one for an op, or aborts with it.
fn needs_no_other(partitions: &Partitions, op: &Op) -> bool {
    let shard = |table, k: u8| partitions.shard_of(TableId(table), &[k]);
    match *op {
        Op::Get(..) | Op::Put(..) | Op::Delete(..) => true,
        Op::CopySum(table, a, b, to) => {
            shard(table, a) == shard(table, to) && shard(table, b) == shard(table, to)
        }
        // Each shard has the same rows.
        Op::Follow(table, _) | Op::Scan { table, to: Some(_), .. } => shard(table, 0).is_none(),
        Op::Scan { to: None, .. } => true,
        Op::AbortIfOdd(..) | Op::Panic => false,
    }
}

/// The transactions, those that are divisible, and what each of them does.
fn work_of(
    programs: &[(Vec<Op>, bool)],
    partitions: &Partitions,
    dice: &mut fastrand::Rng,
) -> Vec<(Work, Vec<Op>, bool)> {
    let mut version = AT;
    let each = |(ops, is_divisible): &(Vec<Op>, bool)| {
        let home = ShardId(dice.u16(..partitions.shards()));
        if dice.bool() && version < LAST {
            version = version.next();
        }
        let mut ops = ops.clone();
        let (program, footprint) = match is_divisible {
            true => {
                ops.retain(|op| needs_no_other(partitions, op));
                (divisible(&ops), None)
            }
            false => with_covering(&ops),
        };
        (Work { version, program, footprint, home }, ops, *is_divisible)
    };
    programs.iter().map(each).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    /// Among others that exchange rows, they have the same places and effects as undivided ones,
    /// which a single store has. They send nothing.
    #[test]
    fn divisible_programs_come_to_what_one_store_comes_to(
        rows in rows(),
        partitions in partitions(),
        programs in prop::collection::vec((ops(), prop::bool::weighted(0.6)), 0..20),
        seed: u64,
        workers in 1usize..4,
    ) {
        let mut dice = fastrand::Rng::with_seed(seed);
        let work = work_of(&programs, &partitions, &mut dice);
        let is_wide = |ops: &[Op]| {
            concerned(&partitions, &covering(ops), ShardId(0)).len() > 1
        };
        let silent: Vec<TxnId> = (0..).zip(&work)
            .filter(|(_, (_, ops, is_divisible))| *is_divisible && is_wide(ops))
            .map(|(place, _)| txn(place))
            .collect();
        let (given, runs): (Vec<Work>, Vec<_>) =
            work.into_iter().map(|(work, ops, is_divisible)| (work, (ops, is_divisible))).unzip();
        let mut shards = Shards::new(partitions.clone(), &rows, NO_LIMITS);
        shards.run(&given, &Backwards(workers), &mut dice);
        let mut model = Model::new(&rows);
        for (place, (ops, is_divisible)) in (0..).zip(&runs) {
            let expected = model.run(ops);
            let expected = if *is_divisible { expected.map(|_| Vec::new()) } else { expected };
            match shards.went(txn(place)) {
                Some(ShardOutcome::Ran(result)) => {
                    prop_assert_eq!(result.map_err(Stop::Abort), expected);
                }
                went => prop_assert!(false, "{place}: {went:?}"),
            }
        }
        prop_assert_eq!(shards.rows(LAST), model);
        prop_assert!(silent.iter().all(|txn| !shards.sent.contains(txn)), "{:?}", shards.sent);
        for shard in &shards.all {
            prop_assert_eq!(shard.sharded.oldest(), None);
        }
    }
}

/// Two shards, the keys below 5 on the first one, and one work for them.
fn on_two_shards(program: Program) -> (Shards, Vec<Work>) {
    let by_range = Rule::Ranges { starts: vec![vec![5]] };
    let partitions = Partitions::new(2, Rule::Everywhere).with(TableId(1), by_range);
    let shards = Shards::new(partitions, &Rows::from([((1, 1), Some(1))]), NO_LIMITS);
    let work = Work { version: AT, program, footprint: None, home: ShardId(0) };
    (shards, vec![work])
}

/// A shard that has all of its rows does not wait for one that has not even begun.
#[test]
fn each_shard_runs_its_part_at_once_and_one_that_only_reads_none() {
    let (mut shards, work) = on_two_shards(divisible(&[put(1, 7), put(6, 8)]));
    shards.give(0, &work);
    shards.advance(0, &Sequential);
    assert!(shards.all[0].ended.contains_key(&txn(0)), "it ran without the other shard");
    assert!(!shards.all[1].ended.contains_key(&txn(0)));
    let rows = Model::of(&shards.all[0].store, AT).rows;
    assert_eq!(rows.into_keys().map(|(_, key)| key[0]).collect::<Vec<_>>(), [1]);
    let (mut shards, work) = on_two_shards(divisible(&[Op::Get(1, 1), put(6, 8)]));
    shards.give(0, &work);
    assert_eq!(shards.all[0].sharded.len(), 0, "it only reads there");
}

/// An abort on one shard would not undo the part of another one.
#[test]
fn a_part_that_fails_stops_its_shard_before_it_has_effects() {
    let aborts = [put(6, 8), put(2, 3), Op::AbortIfOdd(1, 1)];
    let panics = [put(6, 8), put(2, 3), Op::Panic];
    for (ops, why) in [(aborts, "aborted: odd"), (panics, "aborted: procedure")] {
        let (mut shards, work) = on_two_shards(divisible(&ops));
        shards.give(0, &work);
        let run = AssertUnwindSafe(|| shards.advance(0, &Sequential));
        let panic = catch_unwind(run).expect_err("the part fails");
        let text = panic.downcast_ref::<String>().expect("a message");
        let named = "procedure \"divisible\" is declared divisible, but ";
        assert!(text.starts_with(&format!("{named}{why}")), "{text}");
        assert!(text.contains("on shard 0, in transaction"), "{text}");
        assert_eq!(Model::of(&shards.all[0].store, AT), Model::new(&[((1, 1), Some(1))].into()));
    }
}

/// A program on one shard is run as any other, and may abort.
#[test]
fn a_divisible_program_on_one_shard_may_abort() {
    let (mut shards, work) = on_two_shards(divisible(&[put(2, 3), Op::AbortIfOdd(1, 1)]));
    shards.run(&work, &Sequential, &mut fastrand::Rng::with_seed(1));
    let went = shards.went(txn(0));
    assert!(matches!(went, Some(ShardOutcome::Ran(Err(_)))), "{went:?}");
}
