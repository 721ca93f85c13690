//! The merge of additions is compared with one transaction after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{AdderId, NodeId, TxnId};
use pangea_core::pool::{Pool, Sequential};
use pangea_core::store::{RecordHeader, Version};
use pangea_core::txn::{Abort, Adder, Context, Procedure, SqlState, Stop};
use proptest::prelude::*;

use super::*;
use crate::geogauss::deletions::Deletions;
use crate::geogauss::isolation::CheckedWrite;
use crate::geogauss::merge::{Before, Candidate, MergeRule, decide};
use crate::geogauss::rank::{Rank, RankInputs};

const TABLE: TableId = TableId(1);
const KEYS: u8 = 4;
/// The epoch before the one that is merged.
const APPLIED: SnapshotVersion = SnapshotVersion(3);
/// The largest value that a row can have.
const LIMIT: u8 = 9;

/// Adds a byte to a row of one byte.
struct AddByte;

impl Adder for AddByte {
    fn name(&self) -> &str {
        "add_byte"
    }

    fn add(&self, row: &Value, amount: &[u8]) -> Result<Value, Abort> {
        match row[0] + amount[0] {
            sum if sum <= LIMIT => Ok(Value::copy_from(&[sum])),
            _ => Err(Abort::new(SqlState::RAISE_EXCEPTION, "too much")),
        }
    }
}

/// A procedure that only names the adder.
struct Adds;

impl Procedure for Adds {
    fn name(&self) -> &str {
        "adds"
    }

    fn run(&self, _: &[u8], _: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        Ok(Vec::new())
    }

    fn adders(&self) -> Vec<Arc<dyn Adder>> {
        vec![Arc::new(AddByte)]
    }
}

fn registry() -> Registry {
    Registry::new([Arc::new(Adds) as Arc<dyn Procedure>])
}

/// A pool that runs its jobs backwards.
struct Backwards;

impl Pool for Backwards {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).rev().for_each(job);
    }

    fn workers(&self) -> usize {
        4
    }
}

/// What a transaction does to a row.
#[derive(Clone, Copy, Debug)]
enum Op {
    Put(u8),
    Delete,
    /// Puts a value that follows from the row as it was before the epoch.
    CheckedPut(u8),
    /// Adds these amounts.
    Add(u8, u8),
}

type Ran = BTreeMap<u8, Op>;

/// The fate of a transaction, in short.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Commits,
    Lost,
    Failed,
}

fn key(key: u8) -> Key {
    Key::from(&[key][..])
}

fn add(row: u8, amount: u8) -> Add {
    let (adder, amount) = (AdderId::of("add_byte"), Bytes::copy_from_slice(&[amount]));
    Add { table: TABLE, key: key(row), adder, amount }
}

fn checks(ran: &Ran) -> Checks {
    let mut checks = Checks::default();
    for (row, op) in ran {
        let (value, is_checked) = match op {
            Op::Put(value) => (Some(*value), false),
            Op::CheckedPut(value) => (Some(*value), true),
            Op::Delete => (None, false),
            Op::Add(one, other) => {
                checks.adds.extend([*one, *other].map(|amount| add(*row, amount)));
                continue;
            }
        };
        let value = value.map(|value| Value::copy_from(&[value]));
        let write = Write { table: TABLE, key: key(*row), value };
        checks.writes.push(CheckedWrite { write, is_checked });
    }
    checks
}

/// One transaction after the other, each on the rows as they are then.
fn one_by_one(
    rule: MergeRule,
    before: &BTreeMap<u8, u8>,
    all: &[Ran],
) -> (Vec<End>, BTreeMap<u8, u8>) {
    let (mut rows, mut changed) = (before.clone(), BTreeSet::<u8>::new());
    let mut ends = Vec::new();
    for ran in all {
        let meets = |(row, op): (&u8, &Op)| {
            let is_met = match op {
                Op::CheckedPut(_) => true,
                Op::Put(_) | Op::Delete => rule == MergeRule::Claims,
                Op::Add(..) => false,
            };
            is_met && changed.contains(row)
        };
        let (mut after, mut end) = (rows.clone(), End::Commits);
        if ran.iter().any(meets) {
            end = End::Lost;
        }
        for (row, op) in ran {
            if end != End::Commits {
                break;
            }
            match op {
                Op::Put(value) | Op::CheckedPut(value) => drop(after.insert(*row, *value)),
                Op::Delete => drop(after.remove(row)),
                Op::Add(one, other) => match after.get_mut(row) {
                    None => end = End::Lost,
                    Some(value) if *value + one + other > LIMIT => end = End::Failed,
                    Some(value) => *value += one + other,
                },
            }
        }
        if end == End::Commits {
            rows = after;
        }
        if end == End::Commits || rule == MergeRule::Claims {
            changed.extend(ran.keys());
        }
        ends.push(end);
    }
    (ends, rows)
}

/// The result of the merge of candidates that arrive in this order.
fn merged(
    (pool, rule): (&dyn Pool, MergeRule),
    before: &BTreeMap<u8, u8>,
    all: &[Ran],
    arrival: &[usize],
) -> (Vec<End>, BTreeMap<u8, u8>) {
    let (store, deletions, registry) = (Store::new(), Deletions::default(), registry());
    for (row, value) in before {
        let (header, value) = (RecordHeader::default(), Some(Value::copy_from(&[*value])));
        store.apply(TABLE, key(*row), Version { version: APPLIED, header, value });
    }
    store.publish(APPLIED);
    let all: Vec<Checks> = all.iter().map(checks).collect();
    let candidate = |&i: &usize| {
        let txn = TxnId::new(NodeId((i % 3) as u16), i as u64);
        let inputs = RankInputs { txn, attempt: 0, start: APPLIED, offset_us: i as u32 };
        let rank = Rank::new(inputs, SnapshotVersion(5), 3);
        Candidate { txn, rank, base: APPLIED, checks: &all[i] }
    };
    let candidates: Vec<_> = arrival.iter().map(candidate).collect();
    let known =
        Before { store: &store, version: APPLIED, deletions: &deletions, registry: &registry };
    let verdict = decide(pool, rule, known, &candidates);
    let mut ends = vec![End::Lost; all.len()];
    for (&i, fate) in arrival.iter().zip(&verdict.fates) {
        ends[i] = match fate {
            Fate::Commits => End::Commits,
            Fate::Failed(_) => End::Failed,
            Fate::Lost(_) | Fate::TooOld => End::Lost,
        };
    }
    let mut rows = before.clone();
    for (&at, added) in verdict.order.iter().zip(verdict.added) {
        let written = candidates[at].checks.writes.iter().map(|it| it.write.clone());
        for Write { key, value, .. } in written.chain(added) {
            match value {
                Some(value) => rows.insert(key[0], value[0]),
                None => rows.remove(&key[0]),
            };
        }
    }
    (ends, rows)
}

fn ran() -> impl Strategy<Value = Ran> {
    let op = prop_oneof![
        (0..6u8).prop_map(Op::Put),
        Just(Op::Delete),
        (0..6u8).prop_map(Op::CheckedPut),
        (0..3u8, 0..3u8).prop_map(|(one, other)| Op::Add(one, other)),
        (0..3u8, 0..3u8).prop_map(|(one, other)| Op::Add(one, other)),
    ];
    prop::collection::btree_map(0..KEYS, op, 1..3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_merge_of_additions_is_one_transaction_after_the_other_in_rank_order(
        before in prop::collection::btree_map(0..KEYS, 0..LIMIT, 0..5),
        all in prop::collection::vec(ran(), 1..9),
        seed: u64,
    ) {
        let in_order: Vec<usize> = (0..all.len()).collect();
        let mut shuffled = in_order.clone();
        fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
        for rule in [MergeRule::Greedy, MergeRule::Claims] {
            let expected = one_by_one(rule, &before, &all);
            prop_assert_eq!(&merged((&Sequential, rule), &before, &all, &in_order), &expected);
            prop_assert_eq!(&merged((&Backwards, rule), &before, &all, &shuffled), &expected);
        }
    }
}

fn ends(before: Option<u8>, all: &[Op]) -> Vec<End> {
    let before = before.map(|value| (1, value)).into_iter().collect();
    let all: Vec<Ran> = all.iter().map(|op| Ran::from([(1, *op)])).collect();
    let arrival: Vec<usize> = (0..all.len()).collect();
    merged((&Sequential, MergeRule::Greedy), &before, &all, &arrival).0
}

#[test]
fn all_additions_of_an_epoch_commit_and_a_row_that_was_read_before_them_has_changed() {
    let add = Op::Add(1, 0);
    assert_eq!(ends(Some(0), &[add; 9]), [End::Commits; 9]);
    let read = Op::CheckedPut(3);
    assert_eq!(ends(Some(0), &[add, read]), [End::Commits, End::Lost]);
    assert_eq!(ends(Some(0), &[read, add]), [End::Commits, End::Commits]);
}

#[test]
fn an_addition_to_a_row_that_is_gone_is_lost_and_one_that_is_too_large_has_failed() {
    let add = Op::Add(1, 0);
    assert_eq!(ends(Some(0), &[add, Op::Delete, add]), [End::Commits, End::Commits, End::Lost]);
    assert_eq!(ends(Some(0), &[Op::Delete, Op::Put(1), add]), [End::Commits; 3]);
    assert_eq!(ends(None, &[add, Op::Put(1), add]), [End::Lost, End::Commits, End::Commits]);
    assert_eq!(
        ends(Some(8), &[add, add, Op::Put(1), add])[1..],
        [End::Failed, End::Commits, End::Commits]
    );
}

#[test]
fn an_adder_that_is_not_known_or_panics_aborts_its_transaction() {
    let (store, registry) = (Store::new(), registry());
    let (header, value) = (RecordHeader::default(), Some(Value::copy_from(b"")));
    store.apply(TABLE, key(1), Version { version: APPLIED, header, value });
    store.publish(APPLIED);
    let unknown = Add { adder: AdderId::of("another"), ..add(1, 1) };
    for add in [unknown, add(1, 1)] {
        let checks = Checks { adds: vec![add], ..Checks::default() };
        let mut rows = AddedRows::new(&registry, &store, APPLIED, std::iter::once(&checks));
        assert!(matches!(rows.advance(&checks), Err(Fate::Failed(_))), "{checks:?}");
    }
}
