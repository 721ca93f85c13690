//! Instruction counts of the store and the executors, measured with valgrind: `cargo bench -p
//! pangea-core --bench instructions`. docs/TESTING.md lists the requirements and explains the
//! output.
//!
//! Inputs are small and drawn from fixed seeds, so the count is the same in each run of one build.
//! It reflects only changes of the code, not the load of the machine.

#![allow(missing_docs, reason = "the macros make modules")]
#![allow(clippy::disallowed_types, reason = "the macros open files; the measured code does not")]

#[path = "fixture/engine.rs"]
mod engine;
mod fixture;
#[path = "fixture/limits.rs"]
mod limits;

use std::hint::black_box;

use gungraun::prelude::*;
use pangea_core::exec::optimistic::Run;
use pangea_core::exec::ordered::Finished;
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::pool::Sequential;
use pangea_core::store::Store;
use pangea_core::txn::Program;
use pangea_core::workload::Workload;

use self::engine::Engine;
use self::fixture::{TABLE, Write};

/// The maximum number of instructions of each benchmark: the measured count plus about 6 % for
/// other compilers and C libraries. These numbers only go down. After an optimization, run the
/// benchmark, take the count that it prints, add 6 % and write the result here in the same commit.
/// A commit that raises a limit must justify it in its message.
const LIMITS: &[(&str, u64)] = &[
    ("store_get", 237_000),
    ("store_scan", 555_000),
    ("store_put", 659_000),
    ("store_put_new", 1_314_000),
    ("store_apply_batch", 837_000),
    ("store_apply_batch_digested", 1_014_000),
    ("store_reclaim", 606_000),
    ("ordered_new_order", 3_411_000),
    ("ordered_payment", 1_118_000),
    ("ordered_ycsb_a", 903_000),
    ("optimistic_new_order", 4_600_000),
    ("optimistic_payment", 1_345_000),
    ("optimistic_ycsb_a", 1_186_000),
];

const KEYS: u64 = 4_096;
const PROBES: usize = 1_000;
const SCANS: u64 = 10;
const SCAN_ROWS: u64 = 100;
const TXNS: usize = 50;

fn at_most(name: &str) -> LibraryBenchmarkConfig {
    limits::at_most(LIMITS, name)
}

fn rows() -> (Store, Vec<Key>) {
    let store = fixture::table(KEYS);
    // Sorts pending new keys into the index first, so that the measurement does not include it.
    fixture::scan_range(&store, &KeyRange::all(), Direction::Forward);
    (store, fixture::probes(KEYS, PROBES))
}

fn updates() -> (Store, Vec<Write>) {
    let (store, probes) = rows();
    let writes = probes.iter().map(|key| fixture::write(key, 2)).collect();
    (store, writes)
}

fn new_rows() -> (Store, Vec<Write>) {
    let (store, _) = rows();
    let mut numbers: Vec<u64> = (KEYS..KEYS + PROBES as u64).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut numbers);
    let writes = numbers.into_iter().map(|number| fixture::write(&fixture::key(number), 2));
    (store, writes.collect())
}

fn superseded() -> Store {
    let (store, writes) = updates();
    store.apply_batch(&Sequential, SnapshotVersion(2), writes);
    store.publish(SnapshotVersion(2));
    store
}

#[library_benchmark(config = at_most("store_get"))]
#[bench::random(rows())]
fn store_get((store, probes): (Store, Vec<Key>)) -> (Store, Vec<Key>, u64) {
    let sum = fixture::get(&store, black_box(&probes));
    (store, probes, sum)
}

#[library_benchmark(config = at_most("store_scan"))]
#[bench::ranges(rows().0)]
fn store_scan(store: Store) -> (Store, u64) {
    let ranges = (0..SCANS).map(|i| i * (KEYS - SCAN_ROWS) / SCANS);
    let scan = |from| fixture::scan(&store, black_box(from), SCAN_ROWS, Direction::Forward);
    let sum = ranges.map(scan).sum();
    (store, sum)
}

fn apply_each(store: &Store, writes: Vec<Write>) {
    for (table, key, version) in writes {
        store.apply(table, key, version);
    }
}

#[library_benchmark(config = at_most("store_put"))]
#[bench::updates(updates())]
fn store_put((store, writes): (Store, Vec<Write>)) -> Store {
    apply_each(&store, black_box(writes));
    store
}

#[library_benchmark(config = at_most("store_put_new"))]
#[bench::inserts(new_rows())]
fn store_put_new((store, writes): (Store, Vec<Write>)) -> (Store, usize) {
    apply_each(&store, black_box(writes));
    // A scan makes the store sort new keys into its index.
    fixture::scan(&store, KEYS, 1, Direction::Forward);
    let len = store.len(TABLE);
    (store, len)
}

#[library_benchmark(config = at_most("store_apply_batch"))]
#[bench::updates(updates())]
fn store_apply_batch((store, writes): (Store, Vec<Write>)) -> Store {
    store.apply_batch(&Sequential, SnapshotVersion(2), black_box(writes));
    store
}

// The same with digests, as nodes of several replicas collect them.
#[library_benchmark(config = at_most("store_apply_batch_digested"))]
#[bench::updates(updates())]
fn store_apply_batch_digested((store, writes): (Store, Vec<Write>)) -> Store {
    store.collect_digests();
    store.apply_batch(&Sequential, SnapshotVersion(2), black_box(writes));
    black_box(store.take_digest(SnapshotVersion(2)));
    store
}

#[library_benchmark(config = at_most("store_reclaim"))]
#[bench::superseded(superseded())]
fn store_reclaim(store: Store) -> (Store, usize) {
    let reclaimed = store.reclaim(SnapshotVersion(2));
    (store, reclaimed)
}

type Loaded = (Engine, Vec<Program>);

fn loaded(workload: &Workload, label: &str) -> Loaded {
    let engine = Engine::loaded(workload, pangea_core::store::RecordHeader::new);
    let programs = engine.draw(workload, label, TXNS);
    (engine, programs)
}

fn tpcc(label: &str) -> Loaded {
    loaded(&engine::tpcc_tiny(1), label)
}

fn ycsb_a() -> Loaded {
    loaded(&engine::ycsb_a(2_000, 100, 0.99), "write")
}

fn ordered((mut engine, programs): Loaded) -> (Loaded, Vec<Finished>) {
    let finished = engine.run_ordered(black_box(&programs));
    ((engine, programs), finished)
}

#[library_benchmark(config = at_most("ordered_new_order"))]
#[bench::tpcc(tpcc("new-order"))]
fn ordered_new_order(loaded: Loaded) -> (Loaded, Vec<Finished>) {
    ordered(loaded)
}

#[library_benchmark(config = at_most("ordered_payment"))]
#[bench::tpcc(tpcc("payment"))]
fn ordered_payment(loaded: Loaded) -> (Loaded, Vec<Finished>) {
    ordered(loaded)
}

#[library_benchmark(config = at_most("ordered_ycsb_a"))]
#[bench::ycsb(ycsb_a())]
fn ordered_ycsb_a(loaded: Loaded) -> (Loaded, Vec<Finished>) {
    ordered(loaded)
}

fn optimistic((engine, programs): Loaded) -> (Loaded, Vec<Run>) {
    let at = engine.store.published();
    let runs = engine.run_optimistic(NodeId(1), at, black_box(&programs));
    ((engine, programs), runs)
}

#[library_benchmark(config = at_most("optimistic_new_order"))]
#[bench::tpcc(tpcc("new-order"))]
fn optimistic_new_order(loaded: Loaded) -> (Loaded, Vec<Run>) {
    optimistic(loaded)
}

#[library_benchmark(config = at_most("optimistic_payment"))]
#[bench::tpcc(tpcc("payment"))]
fn optimistic_payment(loaded: Loaded) -> (Loaded, Vec<Run>) {
    optimistic(loaded)
}

#[library_benchmark(config = at_most("optimistic_ycsb_a"))]
#[bench::ycsb(ycsb_a())]
fn optimistic_ycsb_a(loaded: Loaded) -> (Loaded, Vec<Run>) {
    optimistic(loaded)
}

library_benchmark_group!(
    name = store,
    benchmarks = [
        store_get,
        store_scan,
        store_put,
        store_put_new,
        store_apply_batch,
        store_apply_batch_digested,
        store_reclaim
    ]
);
library_benchmark_group!(
    name = execution,
    benchmarks = [
        ordered_new_order,
        ordered_payment,
        ordered_ycsb_a,
        optimistic_new_order,
        optimistic_payment,
        optimistic_ycsb_a
    ]
);
main!(library_benchmark_groups = [store, execution]);
