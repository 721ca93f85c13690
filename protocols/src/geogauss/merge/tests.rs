//! Properties of the merge: what §4.3 claims, and what the paper's Algorithm 2 lacks.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::guarantee::Isolation;
use pangea_core::ids::NodeId;
use pangea_core::key::{Direction, KeyRange};
use pangea_core::pool::Sequential;
use pangea_core::store::{RecordHeader, Version};
use pangea_core::txn::{PointRead, RangeRead, ReadSet, ReadVersion, Write};
use pangea_core::value::Value;
use proptest::prelude::*;

use super::*;
use crate::geogauss::isolation::checks;
use crate::geogauss::rank::RankInputs;

const TABLE: TableId = TableId(1);
const KEYS: u8 = 6;
/// Epochs 1 to 3 are applied, and epoch 5 is merged.
const APPLIED: SnapshotVersion = SnapshotVersion(3);
const EPOCH: SnapshotVersion = SnapshotVersion(5);

/// A pool that runs its jobs backwards.
struct Backwards(usize);

impl Pool for Backwards {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).rev().for_each(job);
    }

    fn workers(&self) -> usize {
        self.0
    }
}

/// The writes of epochs 1 to 3: a key and a value, or a deletion.
type Past = [BTreeMap<u8, bool>; 3];

fn key(key: u8) -> Key {
    Key::from(&[key][..])
}

fn state(past: &Past) -> (Store, Deletions) {
    let (store, mut deletions) = (Store::new(), Deletions::default());
    for (epoch, writes) in (1..).map(SnapshotVersion).zip(past) {
        let header = RecordHeader::new(TxnId::new(NodeId(9), epoch.0));
        for (k, is_put) in writes {
            let value = is_put.then(|| Value::copy_from(&[*k]));
            store.apply(TABLE, key(*k), Version { version: epoch, header, value });
        }
        let deleted = writes.iter().filter(|(_, is_put)| !**is_put);
        deletions.note(epoch, deleted.map(|(k, _)| hash_row(TABLE, &[*k])), SnapshotVersion(0));
        store.publish(epoch);
    }
    (store, deletions)
}

/// The row that a reader of a snapshot sees.
fn seen(past: &Past, k: u8, base: u64) -> ReadVersion {
    let last = (1..=base).rev().find_map(|e| Some((e, *past[e as usize - 1].get(&k)?)));
    match last {
        Some((epoch, true)) => ReadVersion::At(SnapshotVersion(epoch)),
        Some((_, false)) | None => ReadVersion::Absent,
    }
}

/// A transaction as it ran at its origin.
#[derive(Clone, Debug)]
struct Ran {
    node: u16,
    attempt: u8,
    start: u64,
    offset_us: u32,
    base: u64,
    level: Isolation,
    points: BTreeSet<u8>,
    range: Option<(u8, u8)>,
    /// Rows whose existence is guarded.
    guards: BTreeSet<u8>,
    writes: BTreeMap<u8, bool>,
}

impl Ran {
    fn reads(&self, past: &Past) -> ReadSet {
        let point =
            |k: &u8| PointRead { table: TABLE, key: key(*k), seen: seen(past, *k, self.base) };
        let range = self.range.map(|(from, to)| {
            let rows = (from..to).map(|k| (key(k), seen(past, k, self.base)));
            let rows = rows.filter(|(_, seen)| *seen != ReadVersion::Absent).collect();
            let range = KeyRange { start: vec![from], end: Some(vec![to]) };
            RangeRead { table: TABLE, range, rows }
        });
        let points = self.points.iter().map(point).collect();
        ReadSet { points, ranges: range.into_iter().collect() }
    }

    fn checks(&self, past: &Past) -> Checks {
        let write = |(k, is_put): (&u8, &bool)| {
            let value = is_put.then(|| Value::copy_from(&[*k]));
            Write { table: TABLE, key: key(*k), value }
        };
        let existence = |k: &u8| match seen(past, *k, self.base) {
            ReadVersion::At(_) => ReadVersion::Present,
            seen => seen,
        };
        let guard = |k: &u8| PointRead { table: TABLE, key: key(*k), seen: existence(k) };
        let points = self.guards.iter().map(guard).collect();
        let guards = ReadSet { points, ranges: Vec::new() };
        let writes = self.writes.iter().map(write).collect();
        checks(self.level, self.reads(past), guards, (writes, Vec::new()))
    }

    fn inputs(&self, sequence: usize) -> RankInputs {
        let txn = TxnId::new(NodeId(self.node), sequence as u64);
        let start = SnapshotVersion(self.start);
        RankInputs { txn, attempt: self.attempt, start, offset_us: self.offset_us }
    }
}

fn before<'a>(store: &'a Store, deletions: &'a Deletions, registry: &'a Registry) -> Before<'a> {
    Before { store, version: APPLIED, deletions, registry }
}

/// The transactions that commit, and the rows that they leave.
type Outcome = (BTreeSet<TxnId>, BTreeMap<u8, (TxnId, bool)>);

fn merged(
    pool: &dyn Pool,
    rule: MergeRule,
    past: &Past,
    txns: &[(RankInputs, Checks)],
    bases: &BTreeMap<TxnId, u64>,
) -> Outcome {
    let (store, deletions) = state(past);
    let registry = Registry::default();
    let before = before(&store, &deletions, &registry);
    let candidate = |(inputs, checks)| {
        let inputs: &RankInputs = inputs;
        Candidate {
            txn: inputs.txn,
            rank: Rank::new(*inputs, EPOCH, 3),
            base: SnapshotVersion(bases[&inputs.txn]),
            checks,
        }
    };
    let candidates: Vec<_> =
        txns.iter().map(|(inputs, checks)| candidate((inputs, checks))).collect();
    let verdict = decide(pool, rule, before, &candidates);
    let committed = verdict.fates.iter().zip(&candidates);
    let committed = committed.filter(|(fate, _)| **fate == Fate::Commits);
    let committed: BTreeSet<_> = committed.map(|(_, candidate)| candidate.txn).collect();
    let mut rows = BTreeMap::new();
    for i in verdict.order {
        let Candidate { txn, checks, .. } = candidates[i];
        assert!(committed.contains(&txn));
        for it in &checks.writes {
            rows.insert(it.write.key[0], (txn, it.write.value.is_some()));
        }
    }
    (committed, rows)
}

/// The definition of the greedy rule: one transaction after the other, each compared with the rows
/// as they are then.
fn one_by_one(past: &Past, txns: &[(RankInputs, Ran)]) -> BTreeSet<TxnId> {
    let mut order: Vec<_> = txns.iter().collect();
    order.sort_by_key(|(inputs, _)| Rank::new(*inputs, EPOCH, 3));
    let (mut written, mut deleted) = (BTreeSet::<u8>::new(), BTreeSet::<u8>::new());
    let mut committed = BTreeSet::new();
    for (inputs, ran) in order {
        let is_written = |k: &u8| {
            let later = (ran.base + 1..=3).any(|e| past[e as usize - 1].contains_key(k));
            later || written.contains(k)
        };
        let is_other =
            |k: &u8| seen(past, *k, ran.base) != seen(past, *k, 3) || written.contains(k);
        let in_range = || ran.range.into_iter().flat_map(|(from, to)| from..to);
        let rows_in_range =
            || in_range().filter(|k| seen(past, *k, ran.base) != ReadVersion::Absent);
        let was_read = |k: &u8| ran.points.contains(k) || rows_in_range().any(|row| row == *k);
        let is_guard_broken = |k: &u8| match seen(past, *k, ran.base) {
            ReadVersion::Absent if ran.writes.contains_key(k) => is_written(k),
            ReadVersion::Absent => is_other(k),
            _ => seen(past, *k, 3) == ReadVersion::Absent || deleted.contains(k),
        };
        let has_guards = ran.level != Isolation::Serializable;
        let loses = has_guards && ran.guards.iter().any(is_guard_broken);
        let loses = loses
            || match ran.level {
                Isolation::Snapshot => ran.writes.keys().any(is_written),
                Isolation::ReadCommitted => ran.writes.keys().any(|k| was_read(k) && is_written(k)),
                level => {
                    let of_writes = ran.writes.keys().any(|k| was_read(k) && is_written(k));
                    let of_points = ran.points.iter().any(is_other);
                    let is_serializable = level == Isolation::Serializable;
                    of_writes
                        || of_points
                        || rows_in_range().any(|k| is_other(&k))
                        || is_serializable && in_range().any(|k| is_other(&k))
                }
            };
        if !loses {
            written.extend(ran.writes.keys());
            deleted.extend(ran.writes.iter().filter(|(_, is_put)| !**is_put).map(|(k, _)| k));
            committed.insert(inputs.txn);
        }
    }
    committed
}

fn pasts() -> impl Strategy<Value = Past> {
    let writes = || prop::collection::btree_map(0..KEYS, any::<bool>(), 0..4);
    [writes(), writes(), writes()]
}

fn runs() -> impl Strategy<Value = Vec<Ran>> {
    let level = prop::sample::select(Isolation::ALL.to_vec());
    let keys = || prop::collection::btree_set(0..KEYS, 0..3);
    let range = prop::option::of((0..KEYS, 1..3u8).prop_map(|(from, len)| (from, from + len)));
    let writes = prop::collection::btree_map(0..KEYS, any::<bool>(), 1..4);
    let reads = (keys(), range, keys());
    let ran = (0u16..3, 0u8..2, 3u64..6, 0u32..4, 0u64..4, level, reads, writes);
    let ran = ran.prop_map(|(node, attempt, start, offset_us, base, level, reads, writes)| {
        let (points, range, guards) = reads;
        Ran { node, attempt, start, offset_us, base, level, points, range, guards, writes }
    });
    prop::collection::vec(ran, 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// §4.3, Lemma 2, of the rules that are built here.
    #[test]
    fn the_result_depends_on_no_order_of_arrival_and_no_number_of_workers(
        past in pasts(),
        runs in runs(),
        seed: u64,
    ) {
        let name = |(i, ran): (usize, &Ran)| (ran.inputs(i), ran.clone());
        let named: Vec<_> = runs.iter().enumerate().map(name).collect();
        let bases = named.iter().map(|(inputs, ran)| (inputs.txn, ran.base)).collect();
        let txns: Vec<_> = named.iter().map(|(inputs, ran)| (*inputs, ran.checks(&past))).collect();
        let mut shuffled = txns.clone();
        fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
        let mut all = Vec::new();
        for rule in [MergeRule::Claims, MergeRule::Greedy] {
            let here = merged(&Sequential, rule, &past, &txns, &bases);
            prop_assert_eq!(&merged(&Backwards(4), rule, &past, &shuffled, &bases), &here);
            all.push(here.0);
        }
        prop_assert!(all[0].is_subset(&all[1]), "the greedy rule commits at least the others");
        prop_assert_eq!(&all[1], &one_by_one(&past, &named));
    }
}

/// Two transactions that write one row, and what the first does to the second.
fn second_loses(level: Isolation, reads: [bool; 2], rule: MergeRule) -> bool {
    let past = Past::default();
    let ran = |(i, reads): (usize, bool)| Ran {
        node: i as u16,
        attempt: 0,
        start: 5,
        offset_us: i as u32,
        base: 3,
        level,
        points: reads.then_some(1).into_iter().collect(),
        range: None,
        guards: BTreeSet::new(),
        writes: BTreeMap::from([(1, true)]),
    };
    let runs: Vec<_> = reads.into_iter().enumerate().map(ran).collect();
    let named = runs.iter().enumerate().map(|(i, ran)| (ran.inputs(i), ran.checks(&past)));
    let txns: Vec<_> = named.collect();
    let bases = txns.iter().map(|(inputs, _)| (inputs.txn, 3)).collect();
    let (committed, rows) = merged(&Sequential, rule, &past, &txns, &bases);
    assert!(committed.contains(&txns[0].0.txn), "the first one commits");
    let last = if committed.len() == 2 { 1 } else { 0 };
    assert_eq!(rows[&1].0, txns[last].0.txn, "the last that commits is what remains");
    committed.len() == 1
}

#[test]
fn an_update_of_a_row_that_was_read_is_lost_at_no_level() {
    for rule in [MergeRule::Greedy, MergeRule::Claims] {
        for level in Isolation::ALL {
            assert!(second_loses(level, [true, true], rule), "{level}");
            assert!(second_loses(level, [false, true], rule), "{level}");
        }
    }
}

#[test]
fn blind_writes_conflict_where_the_first_committer_wins() {
    for level in Isolation::ALL {
        let is_first_committer_wins = level == Isolation::Snapshot;
        assert_eq!(second_loses(level, [true, false], MergeRule::Greedy), is_first_committer_wins);
        assert!(second_loses(level, [true, false], MergeRule::Claims), "§4.1.2: any write claims");
    }
}

/// Whether each of these transactions commits. All read and write row 1, at the given offset in the
/// epoch: as it was before, or as one of the others has written it.
fn chain(all: &[(u16, u32, Option<usize>)], is_reader: bool) -> Vec<bool> {
    let past = Past::default();
    let (store, deletions) = state(&past);
    let name = |i: usize| TxnId::new(NodeId(all[i].0), i as u64);
    let of = |(i, (_, offset_us, head)): (usize, &(u16, u32, Option<usize>))| {
        let seen = head.map_or(ReadVersion::Absent, |head| ReadVersion::Local(name(head)));
        let points = vec![PointRead { table: TABLE, key: key(1), seen }];
        let reads = ReadSet { points, ranges: Vec::new() };
        let written = if is_reader && i + 1 == all.len() { 2 } else { 1 };
        let value = Some(Value::copy_from(&[i as u8]));
        let writes = vec![Write { table: TABLE, key: key(written), value }];
        let changes = (writes, Vec::new());
        let checks = checks(Isolation::ReadCommitted, reads, ReadSet::default(), changes);
        let (txn, offset_us) = (name(i), *offset_us);
        (RankInputs { txn, attempt: 0, start: EPOCH, offset_us }, checks)
    };
    let txns: Vec<_> = all.iter().enumerate().map(of).collect();
    let registry = Registry::default();
    let before = before(&store, &deletions, &registry);
    let candidate = |(inputs, checks)| {
        let inputs: &RankInputs = inputs;
        let rank = Rank::new(*inputs, EPOCH, 3);
        Candidate { txn: inputs.txn, rank, base: APPLIED, checks }
    };
    let candidates: Vec<_> =
        txns.iter().map(|(inputs, checks)| candidate((inputs, checks))).collect();
    let verdict = decide(&Sequential, MergeRule::Greedy, before, &candidates);
    verdict.fates.iter().map(|fate| *fate == Fate::Commits).collect()
}

#[test]
fn a_chain_commits_up_to_the_first_that_loses() {
    let of_node_0 = [(0, 1, None), (0, 2, Some(0)), (0, 3, Some(1))];
    assert_eq!(chain(&of_node_0, false), [true, true, true]);
    assert_eq!(chain(&of_node_0, true), [true, true, true], "the last one only reads the row");
    // Node 1 is first, so the head loses, and with it all that have read its row.
    let after_another = [(0, 1, None), (1, 0, None), (0, 2, Some(0)), (0, 3, Some(2))];
    assert_eq!(chain(&after_another, false), [false, true, false, false]);
    assert_eq!(chain(&after_another, true), [false, true, false, false], "it read nothing real");
    // Node 1 comes between, but it has read the row as it was before.
    let between = [(0, 1, None), (1, 2, None), (0, 3, Some(0))];
    assert_eq!(chain(&between, false), [true, false, true]);
    // The second to read the first one's row has missed that of the third.
    assert_eq!(
        chain(&[(0, 1, None), (0, 2, Some(0)), (0, 3, Some(0))], false),
        [true, true, false]
    );
}

#[test]
fn a_base_before_the_horizon_loses_if_a_row_is_checked() {
    let (store, mut deletions) = state(&Past::default());
    deletions.note(SnapshotVersion(4), [], SnapshotVersion(3));
    let registry = Registry::default();
    let before = before(&store, &deletions, &registry);
    let write = Write { table: TABLE, key: key(1), value: None };
    let fate = |level, base| {
        let changes = (vec![write.clone()], Vec::new());
        let checks = checks(level, ReadSet::default(), ReadSet::default(), changes);
        let inputs =
            RankInputs { txn: TxnId::new(NodeId(1), 1), attempt: 0, start: EPOCH, offset_us: 0 };
        let rank = Rank::new(inputs, EPOCH, 3);
        let base = SnapshotVersion(base);
        let candidate = Candidate { txn: inputs.txn, rank, base, checks: &checks };
        decide(&Sequential, MergeRule::Greedy, before, &[candidate]).fates[0].clone()
    };
    assert_eq!(fate(Isolation::Snapshot, 2), Fate::TooOld);
    assert_eq!(fate(Isolation::Snapshot, 3), Fate::Commits);
    assert_eq!(fate(Isolation::ReadCommitted, 2), Fate::Commits, "a blind write checks nothing");
}

/// Algorithm 2 as it is printed: a transaction that loses a row leaves the loop (lines 14 and 19),
/// and claims none of its other rows. Rows are letters; the smaller number wins.
fn as_printed(arrival: &[(u32, &str)]) -> BTreeSet<u32> {
    let mut headers: BTreeMap<char, u32> = BTreeMap::new();
    let mut aborted = BTreeSet::new();
    for (csn, rows) in arrival {
        for row in rows.chars() {
            match headers.get(&row) {
                Some(other) if other < csn => {
                    aborted.insert(*csn);
                    break;
                }
                _ => headers.insert(row, *csn),
            };
        }
    }
    let holds_all = |(csn, rows): &&(u32, &str)| rows.chars().all(|row| headers[&row] == *csn);
    let committed = arrival.iter().filter(|(csn, _)| !aborted.contains(csn));
    committed.filter(holds_all).map(|(csn, _)| *csn).collect()
}

/// §4.3, Lemma 2, does not hold for Algorithm 2 as printed: it argues about one row at a time.
#[test]
fn the_printed_algorithm_depends_on_the_order_of_arrival() {
    let (first, second, third) = ((1, "x"), (2, "xy"), (3, "y"));
    assert_eq!(as_printed(&[first, second, third]), BTreeSet::from([1, 3]));
    assert_eq!(as_printed(&[second, third, first]), BTreeSet::from([1]));
}

#[test]
fn the_ranges_of_the_store_and_of_the_test_agree() {
    let past: Past =
        [BTreeMap::from([(1, true), (2, true)]), BTreeMap::from([(2, false)]), BTreeMap::new()];
    let (store, _) = state(&past);
    let mut found = Vec::new();
    store.scan(TABLE, &KeyRange::prefix(b""), Direction::Forward, APPLIED, |key, version| {
        found.extend(version.value.is_some().then_some(key[0]));
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!(found, [1]);
    assert_eq!(seen(&past, 2, 3), ReadVersion::Absent);
}
