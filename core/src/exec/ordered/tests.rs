//! Tests of the ordered executor.

mod certified;
mod divisible;
mod graph;
mod guarded;
mod sharded;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use proptest::prelude::*;

use super::*;
use crate::exec::optimistic;
use crate::exec::testing::{
    Backwards, Model, Op, TABLES, Threads, covering, header_of, key, ops, program, registry, rows,
    store, txn,
};
use crate::ids::TableId;
use crate::key::KeyRange;
use crate::pool::Sequential;
use crate::store::Version;
use crate::txn::{Certified, LockMode, PointLock, RangeLock, Stop};

const BEFORE: SnapshotVersion = SnapshotVersion(5);
const AT: SnapshotVersion = SnapshotVersion(6);

type Rows = BTreeMap<(u32, u8), Option<u8>>;

/// Runs programs with their footprints on a new store. Returns the results and the rows afterwards.
fn execute_on(
    rows: &Rows,
    pool: &dyn Pool,
    work: &[(Program, Option<Footprint>)],
) -> (Vec<Finished>, Model) {
    let store = store(rows);
    let jobs: Vec<Job<'_>> = work
        .iter()
        .enumerate()
        .map(|(n, (program, footprint))| Job {
            txn: txn(n as u64),
            program,
            footprint: footprint.as_ref(),
        })
        .collect();
    let finished = execute(pool, &registry(), &store, AT, &jobs, &header_of, ResultDetail::Writes);
    let after = Model::of(&store, AT);
    assert_eq!(written(rows, &finished), after, "the reported writes differ from the store");
    assert_nothing_is_left(&store, &after);
    (finished, after)
}

/// The rows after applying the reported writes in the serial order.
fn written(rows: &Rows, finished: &[Finished]) -> Model {
    let mut model = Model::new(rows);
    let mut order: Vec<&Finished> = finished.iter().collect();
    order.sort_by_key(|done| done.passes);
    for Write { table, key, value } in order.into_iter().flat_map(|done| done.writes.clone()) {
        match value {
            Some(value) => model.rows.insert((table, key), value),
            None => model.rows.remove(&(table, key)),
        };
    }
    model
}

/// Asserts that, once all versions are published and reclaimed, the store equals a new one with the
/// same rows.
fn assert_nothing_is_left(store: &Store, after: &Model) {
    store.publish(AT);
    store.reclaim(AT);
    let fresh = Store::new();
    for ((table, key), value) in &after.rows {
        let value = Some(value.clone());
        let version = Version { version: AT, header: RecordHeader::new(txn(0)), value };
        fresh.apply(*table, key.clone(), version);
    }
    let size = |store: &Store| {
        let lens = (0..TABLES).map(|table| store.len(TableId(table))).collect::<Vec<_>>();
        (lens, store.memory_bytes())
    };
    assert_eq!(size(store), size(&fresh));
}

/// Runs programs on pools of every kind and asserts that the results are equal.
fn execute_everywhere(
    rows: &Rows,
    work: &[(Program, Option<Footprint>)],
) -> (Vec<Finished>, Model) {
    let expected = execute_on(rows, &Sequential, work);
    let threads = (2..=8).map(|n| Box::new(Threads(n)) as Box<dyn Pool>);
    let single = [2, 5].map(|n| Box::new(Backwards(n)) as Box<dyn Pool>);
    for pool in threads.chain(single) {
        let found = execute_on(rows, &*pool, work);
        assert_eq!(found, expected, "with {} workers", pool.workers());
    }
    expected
}

fn put(k: u8, v: u8) -> Op {
    Op::Put(1, k, v)
}

fn sum_into(start: u8, end: u8, to: u8) -> Op {
    Op::Scan { table: 1, start, end, is_reverse: false, limit: 9, to: Some(to) }
}

fn with_covering(ops: &[Op]) -> (Program, Option<Footprint>) {
    (program(ops), Some(covering(ops)))
}

/// Several lists of steps of one program. One step may panic.
fn longer() -> impl Strategy<Value = Vec<Op>> {
    (prop::collection::vec(ops(), 1..5), prop::option::weighted(0.3, any::<prop::sample::Index>()))
        .prop_map(|(parts, panics)| {
            let mut all = parts.concat();
            if let Some(at) = panics.filter(|_| !all.is_empty()) {
                all.insert(at.index(all.len()), Op::Panic);
            }
            all
        })
}

#[derive(Clone, Debug)]
enum Known {
    Nothing,
    Everything,
    /// The footprint of another program.
    SomethingElse(Vec<Op>),
    /// The footprint that a run on the initial state found.
    FirstRun,
    /// The program is certified with the reads and writes of a run on the initial state.
    Certified,
}

fn known() -> impl Strategy<Value = Known> {
    prop_oneof![
        2 => Just(Known::Nothing),
        3 => Just(Known::Everything),
        1 => ops().prop_map(Known::SomethingElse),
        3 => Just(Known::FirstRun),
        1 => Just(Known::Certified),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn covered_jobs_equal_serial_execution_in_their_order(
        rows in rows(),
        programs in prop::collection::vec(ops(), 0..24),
    ) {
        let work: Vec<_> = programs.iter().map(|ops| with_covering(ops)).collect();
        let (finished, after) = execute_everywhere(&rows, &work);
        let mut model = Model::new(&rows);
        for (ops, done) in programs.iter().zip(&finished) {
            prop_assert_eq!(done.outcome.clone().map_err(Stop::Abort), model.run(ops));
            prop_assert_eq!(done.passes, 1);
        }
        prop_assert_eq!(after, model);
    }

    /// Programs with longer lists of steps panic at random places. They run in several calls at one
    /// version, like the slices of an epoch.
    #[test]
    fn what_aborts_and_what_is_stopped_was_never_there(
        rows in rows(),
        programs in prop::collection::vec((longer(), any::<bool>()), 1..12),
        slice in 1..6_usize,
    ) {
        let store = store(&rows);
        let mut model = Model::new(&rows);
        let registry = registry();
        for (at, slice) in programs.chunks(slice).enumerate() {
            let work: Vec<_> = slice
                .iter()
                .map(|(ops, is_known)| (program(ops), is_known.then(|| covering(ops))))
                .collect();
            let job = |(n, (program, footprint)): (usize, &'_ (Program, Option<Footprint>))| {
                (txn((at * 100 + n) as u64), program.clone(), footprint.clone())
            };
            let jobs: Vec<_> = work.iter().enumerate().map(job).collect();
            let jobs: Vec<Job<'_>> = jobs
                .iter()
                .map(|(txn, program, footprint)| {
                    Job { txn: *txn, program, footprint: footprint.as_ref() }
                })
                .collect();
            let detail = ResultDetail::Outcomes;
            let finished = execute(&Sequential, &registry, &store, AT, &jobs, &header_of, detail);
            let mut order: Vec<usize> = (0..jobs.len()).collect();
            order.sort_by_key(|&place| finished[place].passes);
            for place in order {
                let (ops, _) = &slice[place];
                let expected = std::panic::catch_unwind(AssertUnwindSafe(|| {
                    let mut after = model.clone();
                    (after.run(ops), after)
                }));
                match (&finished[place].outcome, expected) {
                    (Err(abort), Err(_)) => prop_assert_eq!(abort.code.as_str(), "XX000"),
                    (outcome, Ok((expected, after))) => {
                        prop_assert_eq!(outcome.clone().map_err(Stop::Abort), expected);
                        model = after;
                    }
                    (Ok(_), Err(_)) => prop_assert!(false, "a panic was not propagated"),
                }
            }
        }
        prop_assert_eq!(&Model::of(&store, AT), &model);
        assert_nothing_is_left(&store, &model);
    }

    #[test]
    fn any_jobs_equal_serial_execution_by_pass_and_place(
        rows in rows(),
        programs in prop::collection::vec((ops(), known()), 0..24),
    ) {
        let first = store(&rows);
        let nothing = Overlay::new();
        let runs: Vec<_> = programs
            .iter()
            .map(|(ops, _)| optimistic::run(&registry(), &program(ops), &first, BEFORE, &nothing))
            .collect();
        let work: Vec<_> = programs
            .iter()
            .zip(&runs)
            .map(|((ops, known), run)| match known {
                Known::Nothing => (program(ops), None),
                Known::Everything => with_covering(ops),
                Known::SomethingElse(others) => (program(ops), Some(covering(others))),
                Known::FirstRun => {
                    (program(ops), Some(Footprint::of_run(&run.reads, &run.writes)))
                }
                Known::Certified => {
                    let (reads, writes) = (run.reads.clone(), run.writes.clone());
                    (Program::Certified(Certified { reads, writes, ..Certified::default() }), None)
                }
            })
            .collect();
        let (finished, after) = execute_everywhere(&rows, &work);
        let mut order: Vec<usize> = (0..programs.len()).collect();
        order.sort_by_key(|&place| finished[place].passes);
        let mut model = Model::new(&rows);
        for place in order {
            let done = &finished[place];
            prop_assert!((1..=PASSES_MAX).contains(&done.passes));
            let (ops, known) = &programs[place];
            match (known, &done.outcome) {
                // It wrote what a run at its place would have written, or nothing.
                (Known::Certified, Ok(_)) => {
                    let again = model.run(ops);
                    prop_assert_eq!(again, runs[place].result.clone().map_err(Stop::Abort));
                }
                (Known::Certified, Err(abort)) => {
                    prop_assert_eq!(abort.code.as_str(), "40001");
                    prop_assert!(done.writes.is_empty());
                }
                (_, outcome) => {
                    prop_assert_eq!(outcome.clone().map_err(Stop::Abort), model.run(ops));
                }
            }
        }
        prop_assert_eq!(after, model);
    }
}

#[test]
fn a_job_that_leaves_its_footprint_runs_after_the_others_with_what_it_found() {
    // Key 1 has the value 0, so a run before the pass writes key 2. Then the first job sets key 1
    // to 1.
    let rows = Rows::from([((1, 1), Some(0))]);
    let follow = [Op::Follow(1, 1)];
    let first_run = {
        let found =
            optimistic::run(&registry(), &program(&follow), &store(&rows), BEFORE, &Overlay::new());
        Footprint::of_run(&found.reads, &found.writes)
    };
    let last = [Op::Get(1, 3), Op::Get(1, 2)];
    let work = [
        with_covering(&[put(1, 1)]),
        (program(&follow), Some(first_run)),
        (program(&follow), None),
        with_covering(&last),
    ];
    let (finished, after) = execute_everywhere(&rows, &work);
    let passes: Vec<u32> = finished.iter().map(|done| done.passes).collect();
    assert_eq!(passes, [1, 2, 2, 1]);
    assert_eq!(finished[3].outcome, Ok(vec![0, 0]), "the last job read writes of a restarted job");
    assert_eq!(finished[1].outcome, Ok(vec![1]));
    let live: Vec<u8> = after.rows.keys().map(|(_, key)| key[0]).collect();
    assert_eq!(live, [1, 3], "a stopped run wrote a row");
}

#[test]
fn jobs_whose_keys_depend_on_each_other_in_a_chain_end_alone_after_the_last_pass() {
    // The value of key 1 names the key to write, and each job increments it, so each pass finishes
    // one job.
    let next = [Op::Follow(1, 1), Op::CopySum(1, 1, 9, 1)];
    let work: Vec<_> = (0..6).map(|_| (program(&next), None)).collect();
    let (finished, after) = execute_everywhere(&Rows::new(), &work);
    let passes: Vec<u32> = finished.iter().map(|done| done.passes).collect();
    assert_eq!(passes, [1, 2, 3, PASSES_MAX, PASSES_MAX, PASSES_MAX]);
    assert_eq!(after.rows[&(TableId(1), key(1))][0], 6);
}

/// A node with several workers used to panic here, and again at each restart.
#[test]
fn a_program_that_leaves_what_it_calls_certain_is_restarted_as_any() {
    use crate::txn::{Context, Procedure, Registry};
    struct Mistaken;
    impl Procedure for Mistaken {
        fn name(&self) -> &str {
            "mistaken"
        }
        fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
            cx.put(TableId(1), key(args[0]), crate::exec::testing::value(7))?;
            Ok(vec![args[0]])
        }
        fn footprint(&self, _: &[u8]) -> Option<Footprint> {
            let lock = PointLock { table: TableId(1), key: key(0), mode: LockMode::Exclusive };
            Some(Footprint::new(vec![lock], vec![]))
        }
        fn is_footprint_certain(&self) -> bool {
            true
        }
    }
    let registry = Registry::new([std::sync::Arc::new(Mistaken) as _]);
    let procedure = registry.id("mistaken").unwrap();
    let call = |key: u8| Program::Call { procedure, args: bytes::Bytes::from(vec![key]) };
    let programs: Vec<Program> = (0..6).map(call).collect();
    let run = |pool: &dyn Pool| {
        let job = |(n, program)| Job { txn: txn(n), program, footprint: None };
        let jobs: Vec<Job<'_>> = (0..).zip(&programs).map(job).collect();
        let store = store(&Rows::new());
        let finished =
            execute(pool, &registry, &store, AT, &jobs, &header_of, ResultDetail::Outcomes);
        let ends: Vec<_> = finished.into_iter().map(|done| (done.outcome, done.passes)).collect();
        (ends, Model::of(&store, AT))
    };
    let (alone, rows) = run(&Sequential);
    assert_eq!(alone, (0..6).map(|key| (Ok(vec![key]), 1)).collect::<Vec<_>>());
    let (several, same) = run(&Threads(4));
    assert_eq!(
        several,
        (0..6).map(|key| (Ok(vec![key]), 1 + u32::from(key > 0))).collect::<Vec<_>>()
    );
    assert_eq!(same, rows, "no row that the jobs access has kept its value");
}

#[test]
fn a_program_that_goes_on_after_it_was_stopped_is_still_stopped() {
    use crate::txn::{Context, Procedure, Registry};
    struct Stubborn;
    impl Procedure for Stubborn {
        fn name(&self) -> &str {
            "stubborn"
        }
        fn run(&self, _: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
            let seen = cx.get(TableId(1), &[1]);
            let _ = cx.put(TableId(1), key(2), crate::exec::testing::value(9));
            Ok(vec![u8::from(seen.is_ok())])
        }
    }
    let registry = Registry::new([std::sync::Arc::new(Stubborn) as _]);
    let procedure = registry.id("stubborn").unwrap();
    let program = Program::Call { procedure, args: bytes::Bytes::new() };
    let exclusive = PointLock { table: TableId(1), key: key(2), mode: LockMode::Exclusive };
    let wrong = Footprint::new(vec![exclusive], vec![]);
    let job = |n| Job { txn: txn(n), program: &program, footprint: Some(&wrong) };
    let store = store(&Rows::new());
    let finished = execute(
        &Sequential,
        &registry,
        &store,
        AT,
        &[job(1), job(2)],
        &header_of,
        ResultDetail::Outcomes,
    );
    for done in finished {
        assert_eq!((done.outcome, done.passes), (Ok(vec![1]), 2));
    }
}

#[test]
fn a_range_that_is_locked_is_safe_from_phantoms() {
    let rows = Rows::from([((1, 2), Some(1))]);
    let work = [
        with_covering(&[put(3, 10)]),
        with_covering(&[sum_into(0, 6, 8)]),
        with_covering(&[put(4, 20)]),
        with_covering(&[sum_into(0, 6, 9)]),
        with_covering(&[Op::Delete(1, 2)]),
        with_covering(&[sum_into(0, 6, 7)]),
    ];
    for _ in 0..50 {
        let (_, after) = execute_everywhere(&rows, &work);
        let sums = [8, 9, 7].map(|k| after.rows[&(TableId(1), key(k))][0]);
        assert_eq!(sums, [11, 31, 30]);
    }
}

#[test]
fn a_scan_that_reads_past_its_locked_range_is_stopped_and_one_that_breaks_off_is_not() {
    let rows = Rows::from([((1, 2), Some(1)), ((1, 4), Some(1))]);
    let first_of = [Op::Scan { table: 1, start: 0, end: 9, is_reverse: false, limit: 1, to: None }];
    let up_to_2 = RangeLock {
        table: TableId(1),
        range: KeyRange { start: vec![0], end: Some(vec![2, 0]) },
        mode: LockMode::Shared,
    };
    let narrow = Some(Footprint::new(vec![], vec![up_to_2]));
    let work = [
        (program(&first_of), narrow.clone()),
        with_covering(&[Op::Delete(1, 2)]),
        (program(&first_of), narrow),
    ];
    let (finished, _) = execute_everywhere(&rows, &work);
    let ends: Vec<_> = finished.iter().map(|done| (done.outcome.clone(), done.passes)).collect();
    assert_eq!(ends, [(Ok(vec![2, 1]), 1), (Ok(vec![]), 1), (Ok(vec![4, 1]), 2)]);
}

#[test]
fn a_program_that_aborts_or_panics_changes_nothing_and_stops_no_other() {
    let rows = Rows::from([((1, 1), Some(1))]);
    let work = [
        with_covering(&[put(2, 2), Op::AbortIfOdd(1, 1)]),
        with_covering(&[put(2, 3), Op::Panic]),
        (program(&[put(5, 5), Op::AbortIfOdd(1, 1)]), None),
        with_covering(&[put(3, 3), Op::Get(1, 2)]),
    ];
    let (finished, after) = execute_everywhere(&rows, &work);
    let codes: Vec<_> = finished
        .iter()
        .map(|done| done.outcome.as_ref().err().map(|abort| abort.code.as_str()))
        .collect();
    assert_eq!(codes, [Some("P0001"), Some("XX000"), Some("P0001"), None]);
    assert!(finished.iter().all(|done| done.passes == 1));
    assert_eq!(after.rows.len(), 2);
}

#[test]
#[should_panic(expected = "panicked")]
fn a_panic_of_the_executor_itself_ends_all_workers() {
    let ops = [Op::CopySum(1, 1, 1, 1)];
    let program = program(&ops);
    let footprint = covering(&ops);
    let jobs: Vec<_> = (0..32)
        .map(|n| Job { txn: txn(n), program: &program, footprint: Some(&footprint) })
        .collect();
    let header = |job: &Job<'_>| {
        assert!(job.txn != txn(9), "a bug");
        header_of(job)
    };
    execute(
        &Threads(4),
        &registry(),
        &store(&Rows::new()),
        AT,
        &jobs,
        &header,
        ResultDetail::Outcomes,
    );
}
