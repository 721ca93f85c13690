//! Run times of Minerva's phases, by criterion: `cargo bench -p pangea-protocols --features bench
//! --bench micro`.
//!
//! All phases work on one epoch of three replicas under YCSB-A, whose keys are uniform. The solvers
//! also work on a tangle that no reduction solves.

#![allow(missing_docs, reason = "the macros make functions")]

#[path = "../../core/benches/fixture/engine.rs"]
mod engine;
mod epoch;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pangea_core::pool::Sequential;
use pangea_protocols::minerva::batch::Batch;
use pangea_protocols::minerva::independent_set::{BUDGET_NODES, exact, greedy};

use self::epoch::{Decided, decided, tangle};

/// Some 250 MB of rows.
const ROWS: u64 = 200_000;
const VALUE_BYTES: u32 = 1_000;
/// The transactions of each of three replicas in an epoch: 15 ms of some 25,000 a second.
const TXNS: usize = 400;
/// The size of the largest kernel that the solver's budget is meant for.
const TANGLED: u32 = 600;

fn phases(criterion: &mut Criterion) {
    let decided = decided(&engine::ycsb_a(ROWS, VALUE_BYTES, 0.0), "write", TXNS);
    let Decided { store, before, epoch, chains, vertices, graph, is_valid, batches } = &decided;
    let mut group = criterion.benchmark_group("epoch");
    group.throughput(Throughput::Elements(epoch.txns() as u64));
    group.bench_function("chains", |bencher| bencher.iter(|| epoch.chains()));
    group.bench_function("stale", |bencher| {
        bencher.iter(|| epoch.stale(&Sequential, store, *before, chains));
    });
    group.bench_function("conflict graph", |bencher| {
        bencher.iter(|| epoch.graph(&Sequential, chains, vertices));
    });
    group.bench_function("exact", |bencher| bencher.iter(|| exact(graph, BUDGET_NODES)));
    group.bench_function("greedy", |bencher| bencher.iter(|| greedy(graph)));
    // The same version each time: a write replaces the one of the iteration before.
    group.bench_function("apply", |bencher| {
        bencher.iter(|| epoch.apply(&Sequential, store, before.next(), is_valid));
    });
    group.bench_function("encode", |bencher| {
        bencher.iter(|| batches.iter().map(Batch::encode).collect::<Vec<Bytes>>());
    });
    let encoded: Vec<Bytes> = batches.iter().map(Batch::encode).collect();
    group.bench_function("decode", |bencher| {
        let decode = |bytes| Batch::decode(bytes).expect("just encoded");
        bencher.iter(|| encoded.iter().map(decode).collect::<Vec<Batch>>());
    });
    group.finish();
}

fn solvers(criterion: &mut Criterion) {
    let graph = tangle(TANGLED);
    let mut group = criterion.benchmark_group("tangle");
    group.throughput(Throughput::Elements(u64::from(TANGLED)));
    group.bench_function("exact", |bencher| bencher.iter(|| exact(&graph, BUDGET_NODES)));
    group.bench_function("greedy", |bencher| bencher.iter(|| greedy(&graph)));
    group.finish();
}

criterion_group!(micro, phases, solvers);
criterion_main!(micro);
