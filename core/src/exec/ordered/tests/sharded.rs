//! Shards that run an order of transactions together get the same result as a single store.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::exec::ordered::remote_reads::Limits;
use crate::exec::ordered::{Ended, RemoteReads, Served, ShardOutcome, Sharded};
use crate::ids::{ShardId, TxnId};
use crate::key::Key;
use crate::partition::{Partitions, Rule};
use crate::store::Store;
use crate::txn::{Abort, RangeRead, ReadSet, ReadVersion};

/// One shard with its rows.
pub(super) struct Shard {
    pub sharded: Sharded,
    pub store: Store,
    pub ended: BTreeMap<TxnId, Ended>,
}

/// All shards, and the messages in flight between them.
pub(super) struct Shards {
    partitions: Arc<Partitions>,
    pub all: Vec<Shard>,
    /// The transactions for which a shard has sent something.
    pub sent: BTreeSet<TxnId>,
    /// Sender, receiver, transaction and message.
    under_way: Vec<(ShardId, ShardId, TxnId, RemoteReads)>,
    /// The number of transactions pushed to each shard.
    given: Vec<usize>,
}

/// A transaction as pushed to all shards.
pub(super) struct Work {
    pub version: SnapshotVersion,
    pub program: Program,
    pub footprint: Option<Footprint>,
    pub home: ShardId,
}

impl Shards {
    pub(super) fn new(partitions: Partitions, rows: &Rows, limits: Limits) -> Self {
        let partitions = Arc::new(partitions);
        let shard = |here: ShardId| {
            let holds = |(table, k): (u32, u8)| partitions.holds(here, TableId(table), &[k]);
            let own = rows.iter().filter(|(row, _)| holds(**row));
            let own: Rows = own.map(|(row, value)| (*row, *value)).collect();
            let sharded = Sharded::within(limits, partitions.clone(), here);
            Shard { sharded, store: store(&own), ended: BTreeMap::new() }
        };
        let all: Vec<Shard> = (0..partitions.shards()).map(|s| shard(ShardId(s))).collect();
        let given = vec![0; all.len()];
        Self { partitions, all, sent: BTreeSet::new(), under_way: Vec::new(), given }
    }

    pub(super) fn give(&mut self, at: usize, work: &[Work]) {
        let place = self.given[at];
        let Work { version, program, footprint, home } = &work[place];
        let pushed = (program, footprint.as_ref());
        self.all[at].sharded.push(&registry(), *version, txn(place as u64), *home, pushed);
        self.given[at] += 1;
    }

    pub(super) fn advance(&mut self, at: usize, pool: &dyn Pool) {
        let Shard { sharded, store, ended } = &mut self.all[at];
        // Few at a time, to test the limit.
        let (served, over) = sharded.advance(pool, &registry(), store, &header_of, 3);
        for it in over {
            assert!(ended.insert(it.txn, it).is_none(), "a transaction ends once");
        }
        for Served { txn, to, part, .. } in served {
            let from = ShardId(at as u16);
            self.sent.insert(txn);
            self.under_way.extend(to.iter().map(|to| (from, to, txn, part.clone())));
        }
    }

    /// Runs everything, in an order drawn from `dice`.
    pub(super) fn run(&mut self, work: &[Work], pool: &dyn Pool, dice: &mut fastrand::Rng) {
        loop {
            let can_give: Vec<usize> =
                (0..self.all.len()).filter(|&at| self.given[at] < work.len()).collect();
            if can_give.is_empty() && self.under_way.is_empty() {
                let before: usize = self.all.iter().map(|shard| shard.ended.len()).sum();
                (0..self.all.len()).for_each(|at| self.advance(at, pool));
                let after: usize = self.all.iter().map(|shard| shard.ended.len()).sum();
                if before == after && self.under_way.is_empty() {
                    return;
                }
            }
            match dice.u8(..3) {
                0 if !can_give.is_empty() => {
                    self.give(can_give[dice.usize(..can_give.len())], work)
                }
                1 => self.advance(dice.usize(..self.all.len()), pool),
                _ if !self.under_way.is_empty() => {
                    let at = dice.usize(..self.under_way.len());
                    let (from, to, txn, part) = match dice.u8(..4) {
                        // The message arrives twice.
                        0 => self.under_way[at].clone(),
                        _ => self.under_way.swap_remove(at),
                    };
                    let mut bytes = Vec::new();
                    part.encode(&mut bytes);
                    let read = RemoteReads::decode(&mut crate::codec::Reader::new(&bytes));
                    assert_eq!(read.as_ref(), Ok(&part));
                    self.all[usize::from(to.0)].sharded.receive(txn, from, part);
                }
                _ => {}
            }
        }
    }

    /// All rows. Asserts that tables on all shards are identical.
    pub(super) fn rows(&self, at: SnapshotVersion) -> Model {
        let mut all = Model::default();
        for (here, shard) in self.all.iter().enumerate() {
            for ((table, key), value) in Model::of(&shard.store, at).rows {
                assert!(self.partitions.holds(ShardId(here as u16), table, &key));
                let before = all.rows.insert((table, key.clone()), value.clone());
                assert!(before.is_none_or(|before| before == value));
            }
        }
        for shard in &self.all {
            let own = Model::of(&shard.store, at).rows;
            let lacks = |(table, key): &(TableId, Key)| {
                self.partitions.shard_of(*table, key).is_none()
                    && !own.contains_key(&(*table, key.clone()))
            };
            assert!(!all.rows.keys().any(lacks), "a row is on all shards or on none");
        }
        all
    }

    /// The outcome of a transaction. Asserts that all shards that ran it agree.
    pub(super) fn went(&self, of: TxnId) -> Option<ShardOutcome> {
        let ran = self.all.iter().filter_map(|shard| shard.ended.get(&of));
        let ran = ran.map(|ended| &ended.outcome).filter(|went| **went != ShardOutcome::Served);
        let ran: Vec<&ShardOutcome> = ran.collect();
        assert!(ran.windows(2).all(|pair| pair[0] == pair[1]), "{of}: {ran:?}");
        ran.first().map(|went| (*went).clone())
    }
}

pub(super) fn partitions() -> impl Strategy<Value = Partitions> {
    let rule = |shards: u16| {
        let starts = prop::collection::btree_set(1u8..10, usize::from(shards - 1));
        prop_oneof![
            1 => Just(Rule::Everywhere),
            2 => Just(Rule::Hash { prefix_bytes: 1 }),
            2 => starts.prop_map(|starts| Rule::Ranges {
                starts: starts.into_iter().map(|start| vec![start]).collect()
            }),
        ]
    };
    (1u16..4).prop_flat_map(move |shards| {
        (rule(shards), rule(shards)).prop_map(move |(first, second)| {
            let partitions = Partitions::new(shards, Rule::Everywhere);
            partitions.with(TableId(0), first).with(TableId(1), second)
        })
    })
}

/// No limits, or limits so low that most transactions that read on one shard and write on another
/// exceed them.
fn limits() -> impl Strategy<Value = Limits> {
    let some = (0usize..40, 0usize..12).prop_map(|(part, result)| Limits { part, result });
    prop_oneof![2 => Just(Limits { part: usize::MAX, result: usize::MAX }), 1 => some]
}

/// The version of the last transactions.
pub(super) const LAST: SnapshotVersion = SnapshotVersion(30);

fn work_of(
    programs: &[(Vec<Op>, Known)],
    runs: &[optimistic::Run],
    (shards, dice): (u16, &mut fastrand::Rng),
) -> Vec<Work> {
    let mut version = AT;
    let each = |((ops, known), run): (&(Vec<Op>, Known), &optimistic::Run)| {
        let home = ShardId(dice.u16(..shards));
        if dice.bool() && version < LAST {
            version = version.next();
        }
        let (program, footprint) = match known {
            Known::Everything | Known::Nothing => with_covering(ops),
            Known::SomethingElse(others) => (program(ops), Some(covering(others))),
            Known::FirstRun => (program(ops), Some(Footprint::of_run(&run.reads, &run.writes))),
            Known::Certified => {
                let (reads, writes) = (run.reads.clone(), run.writes.clone());
                (Program::Certified(Certified { reads, writes, ..Certified::default() }), None)
            }
        };
        Work { version, program, footprint, home }
    };
    programs.iter().zip(runs).map(each).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn shards_come_to_what_one_store_comes_to(
        rows in rows(),
        partitions in partitions(),
        programs in prop::collection::vec((ops(), known()), 0..20),
        seed: u64,
        workers in 1usize..4,
        limits in limits(),
    ) {
        let first = store(&rows);
        let nothing = Overlay::new();
        let run = |ops: &[Op]| {
            optimistic::run(&registry(), &program(ops), &first, BEFORE, &nothing)
        };
        let runs: Vec<optimistic::Run> = programs.iter().map(|(ops, _)| run(ops)).collect();
        let mut dice = fastrand::Rng::with_seed(seed);
        let work = work_of(&programs, &runs, (partitions.shards(), &mut dice));
        let mut shards = Shards::new(partitions, &rows, limits);
        shards.run(&work, &Backwards(workers), &mut dice);
        let mut model = Model::new(&rows);
        for (place, (ops, known)) in programs.iter().enumerate() {
            let went = shards.went(txn(place as u64));
            prop_assert!(went.is_some(), "transaction {place} did not end");
            match (known, went.unwrap()) {
                (Known::Certified, ShardOutcome::Ran(Ok(_))) => {
                    let again = model.run(ops);
                    prop_assert_eq!(again, runs[place].result.clone().map_err(Stop::Abort));
                }
                (Known::Certified, ShardOutcome::Ran(Err(Abort { code, .. }))) => {
                    prop_assert_eq!(code.as_str(), "40001");
                }
                // All shards agree on the abort, and there are no effects.
                (_, ShardOutcome::Ran(Err(Abort { code, .. }))) if code.as_str() == "54000" => {
                    prop_assert!(limits.part < usize::MAX);
                }
                (_, ShardOutcome::Ran(result)) => {
                    let (result, expected) = (result.map_err(Stop::Abort), model.run(ops));
                    // The message of an abort may exceed the limit, too.
                    let code = |stop: Stop| match stop {
                        Stop::Abort(abort) => Some(abort.code),
                        Stop::Interrupted => None,
                    };
                    match limits.result {
                        usize::MAX => prop_assert_eq!(result, expected),
                        _ => prop_assert_eq!(result.map_err(code), expected.map_err(code)),
                    }
                }
                (Known::SomethingElse(_) | Known::FirstRun, ShardOutcome::FootprintViolated) => {}
                (_, went) => prop_assert!(false, "{place}: {went:?}"),
            }
        }
        prop_assert_eq!(shards.rows(LAST), model);
        for shard in &shards.all {
            prop_assert_eq!(shard.sharded.oldest(), None);
        }
    }
}

/// Runs a program that reads all rows of two shards and writes on both.
fn reads_all(limits: Limits, pool: &dyn Pool) -> (Vec<ShardOutcome>, Model, Model) {
    let starts = vec![vec![5]];
    let partitions = Partitions::new(2, Rule::Everywhere)
        .with(TableId(0), Rule::Ranges { starts: starts.clone() })
        .with(TableId(1), Rule::Ranges { starts });
    let rows: Rows = (0..10).map(|k| ((0, k), Some(k))).collect();
    let range = |start, end, to| Op::Scan {
        table: 0,
        start,
        end,
        is_reverse: false,
        limit: 9,
        to: Some(to),
    };
    // Writes a sum of the first shard's rows to the second one, and the other way round.
    let (program, footprint) = with_covering(&[range(0, 5, 7), range(5, 7, 2)]);
    let after = with_covering(&[put(1, 9)]);
    let work = [(program, footprint), after].map(|(program, footprint)| Work {
        version: AT,
        program,
        footprint,
        home: ShardId(0),
    });
    let mut shards = Shards::new(partitions, &rows, limits);
    shards.run(&work, pool, &mut fastrand::Rng::with_seed(1));
    let went = (0..2).map(|place| shards.went(txn(place)).expect("the transaction ends")).collect();
    (went, shards.rows(LAST), Model::new(&rows))
}

/// The rows of one shard for others once had no size limit: they filled a frame that could not be
/// sent, and all shards waited for it forever.
#[test]
fn where_a_shard_would_have_to_send_too_much_all_abort_alike_and_go_on() {
    for workers in 1..3 {
        let pool = Backwards(workers);
        // Five rows of ten bytes on the first shard; the second shard reads two of them.
        let (went, _, _) = reads_all(Limits { part: 50, result: 14 }, &pool);
        assert!(matches!(went[0], ShardOutcome::Ran(Ok(_))), "{went:?}");
        let (went, rows, mut before) = reads_all(Limits { part: 49, result: 14 }, &pool);
        let ShardOutcome::Ran(Err(abort)) = &went[0] else { panic!("{went:?}") };
        assert_eq!(abort.code.as_str(), "54000");
        assert!(
            abort.message.contains("shard 0 would have to send at least 50 bytes"),
            "{abort:?}"
        );
        assert!(matches!(went[1], ShardOutcome::Ran(Ok(_))), "the next one runs: {went:?}");
        assert_eq!(before.run(&[put(1, 9)]), Ok(Vec::new()));
        assert_eq!(rows, before, "no other row is written");
    }
}

#[test]
fn a_result_that_is_too_long_to_be_told_is_an_abort_on_all_shards() {
    let (went, rows, mut before) = reads_all(Limits { part: 50, result: 13 }, &Backwards(1));
    let ShardOutcome::Ran(Err(abort)) = &went[0] else { panic!("{went:?}") };
    assert_eq!(abort.code.as_str(), "54000");
    assert_eq!(before.run(&[put(1, 9)]), Ok(Vec::new()));
    assert_eq!(rows, before);
}

/// Whether a transaction commits that has read two ranges, each with the rows 1 and 2. The first
/// range is on one shard, the second one on all; and the transaction writes on another shard.
fn commits_after_ranges(rows: &Rows) -> bool {
    let starts = vec![vec![5]];
    let partitions = Partitions::new(2, Rule::Everywhere).with(TableId(0), Rule::Ranges { starts });
    let range = |table| {
        let rows = [1, 2].map(|k| (key(k), ReadVersion::At(BEFORE))).into();
        let range = KeyRange { start: vec![0], end: Some(vec![5]) };
        RangeRead { table: TableId(table), range, rows }
    };
    let reads = ReadSet { points: Vec::new(), ranges: vec![range(0), range(1)] };
    let write = Write { table: TableId(0), key: key(9), value: None };
    let program =
        Program::Certified(Certified { reads, writes: vec![write], ..Certified::default() });
    let work = [Work { version: AT, program, footprint: None, home: ShardId(0) }];
    let mut shards = Shards::new(partitions, rows, Limits { part: usize::MAX, result: 99 });
    shards.run(&work, &Sequential, &mut fastrand::Rng::with_seed(1));
    match shards.went(txn(0)).expect("the transaction ends") {
        ShardOutcome::Ran(Ok(_)) => true,
        ShardOutcome::Ran(Err(abort)) if abort.code.as_str() == "40001" => false,
        went => panic!("{went:?}"),
    }
}

/// Each range is checked where its rows are: on its shard, or on all if its table is on all.
#[test]
fn a_range_is_checked_on_the_shard_of_its_rows_or_by_each_on_its_own_copy() {
    let mut rows: Rows =
        [0, 1].into_iter().flat_map(|t| [1, 2].map(|k| ((t, k), Some(k)))).collect();
    assert!(commits_after_ranges(&rows), "nothing has changed");
    for table in [0, 1] {
        rows.insert((table, 3), Some(3));
        assert!(!commits_after_ranges(&rows), "table {table} has one more row");
        rows.remove(&(table, 3));
    }
}
