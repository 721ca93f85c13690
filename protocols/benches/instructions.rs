//! Instruction counts of Minerva's phases, counted by valgrind: `cargo bench -p pangea-protocols
//! --features bench --bench instructions`. The requirements, and how to read the results, are in
//! docs/TESTING.md.
//!
//! All phases work on one epoch of three replicas: YCSB-A, or deliveries of TPC-C for ranges.

#![allow(missing_docs, reason = "the macros make modules")]
#![allow(clippy::disallowed_types, reason = "the macros open files; the measured code does not")]

#[path = "../../core/benches/fixture/engine.rs"]
mod engine;
mod epoch;
#[path = "../../core/benches/fixture/limits.rs"]
mod limits;

use std::hint::black_box;

use bytes::Bytes;
use gungraun::prelude::*;
use pangea_core::pool::Sequential;
use pangea_protocols::minerva::batch::Batch;
use pangea_protocols::minerva::bench::Chains;
use pangea_protocols::minerva::independent_set::{BUDGET_NODES, Graph, Solution, exact, greedy};

use self::epoch::Decided;

/// The maximum instruction count of each benchmark: the measured count, and about 6 % for another
/// compiler or C library. These numbers only go down. To lower one after a change that made
/// something faster, run the benchmark, take the count that it prints, add 6 % and write that here,
/// in the same commit. To raise one, state the benefit in the commit message.
const LIMITS: &[(&str, u64)] = &[
    ("chains", 122_000),
    ("stale_points", 444_000),
    ("stale_ranges", 873_000),
    ("graph_points", 699_000),
    ("graph_ranges", 1_231_000),
    ("exact_epoch", 3_960_000),
    ("exact_tangle", 41_700_000),
    ("greedy_tangle", 472_000),
    ("apply_valid", 355_000),
    ("batch_encode", 350_000),
    ("batch_decode", 728_000),
];

/// The number of transactions of each of three replicas.
const TXNS: usize = 50;
/// The number of deliveries of each: few enough that no district runs out of orders.
const DELIVERIES: usize = 3;
/// A number of vertices at which the search spends its budget.
const TANGLED: u32 = 200;

fn at_most(name: &str) -> LibraryBenchmarkConfig {
    limits::at_most(LIMITS, name)
}

fn ycsb_a() -> Decided {
    epoch::decided(&engine::ycsb_a(4_000, 100, 0.0), "write", TXNS)
}

/// Deliveries take the oldest order of each district: they scan for it.
fn deliveries() -> Decided {
    epoch::decided(&engine::tpcc_tiny(1), "delivery", DELIVERIES)
}

fn encoded() -> Vec<Bytes> {
    ycsb_a().batches.iter().map(Batch::encode).collect()
}

#[library_benchmark(config = at_most("chains"))]
#[bench::ycsb(ycsb_a())]
fn chains(decided: Decided) -> (Decided, Chains) {
    let chains = black_box(&decided.epoch).chains();
    (decided, chains)
}

fn stale(decided: Decided) -> (Decided, Vec<bool>) {
    let Decided { epoch, store, before, chains, .. } = black_box(&decided);
    let is_stale = epoch.stale(&Sequential, store, *before, chains);
    (decided, is_stale)
}

#[library_benchmark(config = at_most("stale_points"))]
#[bench::ycsb(ycsb_a())]
fn stale_points(decided: Decided) -> (Decided, Vec<bool>) {
    stale(decided)
}

#[library_benchmark(config = at_most("stale_ranges"))]
#[bench::tpcc(deliveries())]
fn stale_ranges(decided: Decided) -> (Decided, Vec<bool>) {
    stale(decided)
}

fn graph(decided: Decided) -> (Decided, Vec<(u32, u32)>) {
    let Decided { epoch, chains, vertices, .. } = black_box(&decided);
    let (_, edges) = epoch.graph(&Sequential, chains, vertices);
    (decided, edges)
}

#[library_benchmark(config = at_most("graph_points"))]
#[bench::ycsb(ycsb_a())]
fn graph_points(decided: Decided) -> (Decided, Vec<(u32, u32)>) {
    graph(decided)
}

#[library_benchmark(config = at_most("graph_ranges"))]
#[bench::tpcc(deliveries())]
fn graph_ranges(decided: Decided) -> (Decided, Vec<(u32, u32)>) {
    graph(decided)
}

#[library_benchmark(config = at_most("exact_epoch"))]
#[bench::ycsb(ycsb_a().graph)]
fn exact_epoch(graph: Graph) -> (Graph, Solution) {
    let solution = exact(black_box(&graph), BUDGET_NODES);
    (graph, solution)
}

#[library_benchmark(config = at_most("exact_tangle"))]
#[bench::tangle(epoch::tangle(TANGLED))]
fn exact_tangle(graph: Graph) -> (Graph, Solution) {
    let solution = exact(black_box(&graph), BUDGET_NODES);
    (graph, solution)
}

#[library_benchmark(config = at_most("greedy_tangle"))]
#[bench::tangle(epoch::tangle(TANGLED))]
fn greedy_tangle(graph: Graph) -> (Graph, Solution) {
    let solution = greedy(black_box(&graph));
    (graph, solution)
}

#[library_benchmark(config = at_most("apply_valid"))]
#[bench::ycsb(ycsb_a())]
fn apply_valid(decided: Decided) -> Decided {
    let Decided { epoch, store, before, is_valid, .. } = black_box(&decided);
    epoch.apply(&Sequential, store, before.next(), is_valid);
    decided
}

#[library_benchmark(config = at_most("batch_encode"))]
#[bench::ycsb(ycsb_a().batches)]
fn batch_encode(batches: &'static [Batch]) -> Vec<Bytes> {
    black_box(batches).iter().map(Batch::encode).collect()
}

#[library_benchmark(config = at_most("batch_decode"))]
#[bench::ycsb(encoded())]
fn batch_decode(encoded: Vec<Bytes>) -> Vec<Batch> {
    let decode = |bytes| Batch::decode(bytes).expect("just encoded");
    black_box(&encoded).iter().map(decode).collect()
}

library_benchmark_group!(
    name = phases,
    benchmarks = [
        chains,
        stale_points,
        stale_ranges,
        graph_points,
        graph_ranges,
        exact_epoch,
        exact_tangle,
        greedy_tangle,
        apply_valid,
        batch_encode,
        batch_decode
    ]
);
main!(library_benchmark_groups = phases);
