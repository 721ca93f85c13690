//! Wall-clock benchmarks of the store and the executors with criterion: `cargo bench -p pangea-core
//! --bench micro`. Append `-- store/get` to run only those with that prefix.
//!
//! Tables are larger than a processor's caches. Criterion compares with the previous run, which is
//! meaningful only on an idle machine; instructions.rs counts instructions instead.

#![allow(missing_docs, reason = "the macros make functions")]

#[path = "fixture/engine.rs"]
mod engine;
mod fixture;

use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::key::{Direction, Key};
use pangea_core::pool::Sequential;
use pangea_core::store::Store;
use pangea_core::workload::Workload;

use self::engine::Engine;
use self::fixture::{TABLE, Write};

/// About 250 MB of rows.
const KEYS: u64 = 1_000_000;
/// Rows read or written in one measured step.
const STEP: usize = 1_000;
const SCAN_ROWS: u64 = 100;
/// Transactions executed together, as in an epoch of a loaded node.
const TXNS: usize = 100;
const TXNS_DRAWN: usize = 10_000;
/// Rows of YCSB, 1,000 bytes each.
const YCSB_ROWS: u64 = 200_000;

fn in_order() -> Vec<Key> {
    (0..KEYS).map(fixture::key).collect()
}

fn reads(criterion: &mut Criterion) {
    let store = fixture::table(KEYS);
    let mut group = criterion.benchmark_group("store");
    group.throughput(Throughput::Elements(STEP as u64));
    let orders = [("random", fixture::probes(KEYS, KEYS as usize)), ("in order", in_order())];
    for (order, probes) in &orders {
        let mut steps = probes.chunks_exact(STEP).cycle();
        group.bench_function(format!("get, {order}"), |bencher| {
            bencher.iter(|| fixture::get(&store, steps.next().expect("a cycle")));
        });
    }
    group.throughput(Throughput::Elements(SCAN_ROWS));
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut rng = fastrand::Rng::with_seed(7);
        group.bench_function(format!("scan, random, {direction:?}"), |bencher| {
            bencher
                .iter(|| fixture::scan(&store, rng.u64(..KEYS - SCAN_ROWS), SCAN_ROWS, direction));
        });
        let mut from = 0;
        group.bench_function(format!("scan, in order, {direction:?}"), |bencher| {
            bencher.iter(|| {
                from = (from + SCAN_ROWS) % (KEYS - SCAN_ROWS);
                fixture::scan(&store, from, SCAN_ROWS, direction)
            });
        });
    }
    group.finish();
}

/// Creates the next version of rows, after reclaiming the versions that the previous one
/// superseded.
fn next_version(store: &Store, keys: &[Key]) -> (SnapshotVersion, Vec<Write>) {
    let now = store.published();
    store.reclaim(now);
    let next = now.next();
    store.publish(next);
    // A version must not be published before it is complete, so the writes are at the version after
    // `next`.
    let written = next.next();
    (written, keys.iter().map(|key| fixture::write(key, written.0)).collect())
}

fn apply_each(store: &Store, writes: Vec<Write>) {
    for (table, key, version) in writes {
        store.apply(table, key, version);
    }
}

fn writes(criterion: &mut Criterion) {
    let store = fixture::table(KEYS);
    let mut group = criterion.benchmark_group("store");
    group.throughput(Throughput::Elements(STEP as u64));
    let orders = [("random", fixture::probes(KEYS, KEYS as usize)), ("in order", in_order())];
    for (order, probes) in &orders {
        let mut steps = probes.chunks_exact(STEP).cycle();
        let mut next = || next_version(&store, steps.next().expect("a cycle"));
        group.bench_function(format!("put, {order}"), |bencher| {
            let write = |(_, writes)| apply_each(&store, writes);
            bencher.iter_batched(&mut next, write, BatchSize::PerIteration);
        });
        group.bench_function(format!("apply_batch, {order}"), |bencher| {
            let apply = |(at, writes)| store.apply_batch(&Sequential, at, writes);
            bencher.iter_batched(&mut next, apply, BatchSize::PerIteration);
        });
    }
    // New rows accumulate, so the measurement is short.
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let mut rng = fastrand::Rng::with_seed(7);
    group.bench_function("put, new keys", |bencher| {
        let rows = || {
            let first = store.len(TABLE) as u64;
            let mut numbers: Vec<u64> = (first..first + STEP as u64).collect();
            rng.shuffle(&mut numbers);
            let keys: Vec<Key> = numbers.into_iter().map(fixture::key).collect();
            next_version(&store, &keys)
        };
        let write = |(_, writes)| apply_each(&store, writes);
        bencher.iter_batched(rows, write, BatchSize::PerIteration);
    });
    group.finish();
}

fn execution(criterion: &mut Criterion, name: &str, workload: &Workload, labels: &[&str]) {
    let mut engine = Engine::loaded(workload, pangea_core::store::RecordHeader::new);
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(TXNS as u64));
    for label in labels {
        let programs = engine.draw(workload, label, TXNS_DRAWN);
        let mut steps = programs.chunks_exact(TXNS).cycle();
        let mut next = || steps.next().expect("a cycle");
        let at = engine.store.published();
        group.bench_function(format!("optimistic, {label}"), |bencher| {
            bencher.iter(|| engine.run_optimistic(NodeId(1), at, next()));
        });
        group.bench_function(format!("ordered, {label}"), |bencher| {
            bencher.iter(|| {
                let finished = engine.run_ordered(next());
                engine.store.reclaim(engine.store.published());
                finished
            });
        });
    }
    group.finish();
}

fn tpcc(criterion: &mut Criterion) {
    execution(criterion, "tpcc", &engine::tpcc(1), &["new-order", "payment"]);
}

fn ycsb_a(criterion: &mut Criterion) {
    execution(criterion, "ycsb-a", &engine::ycsb_a(YCSB_ROWS, 1_000, 0.99), &["write"]);
}

criterion_group!(micro, reads, writes, tpcc, ycsb_a);
criterion_main!(micro);
