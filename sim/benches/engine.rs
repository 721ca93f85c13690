//! Measures only the engine: `cargo bench -p pangea-sim --bench engine [-- WAREHOUSES [BATCHES]
//! [WORKLOAD]]`.
//!
//! TPC-C in batches on one thread, as a node's ordered queue runs them: execute at a version, order
//! new keys, publish, reclaim. There is no protocol, no log and no client, and calls are drawn
//! before the measurement. The result is the upper bound of one core. Each kind of transaction of a
//! batch has a version of its own, so that its time is known.
//!
//! The benchmark is in this crate because its tests count no allocations, so it can use the same
//! allocator as users.

// Only the measurement reads the clock, not the measured code.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use pangea_core::exec::ordered::{Job, ResultDetail, execute};
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::pool::Sequential;
use pangea_core::store::Store;
use pangea_core::time::Timestamp;
use pangea_core::txn::{Program, Registry};
use pangea_core::workload::{Call, Client, Generator, Settings, Snapshot, Workload, procedures};
use pangea_protocols::minerva::header;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const CLIENTS: u32 = 256;
/// Transactions that are executed at one version, as in an epoch of a loaded node.
const BATCH: usize = 400;
const BATCHES_WARMUP: usize = 100;
const BATCHES: usize = 1_500;
const WAREHOUSES_DEFAULT: u32 = 8;

struct Engine {
    registry: Registry,
    store: Store,
    version: SnapshotVersion,
    next_txn: u64,
    /// Time by stage.
    steps: BTreeMap<&'static str, Duration>,
    /// By kind of transaction: their number and total time.
    kinds: BTreeMap<&'static str, (usize, Duration)>,
}

impl Engine {
    fn new() -> Self {
        Self {
            registry: Registry::new(procedures()),
            store: Store::new(),
            version: SnapshotVersion(0),
            next_txn: 1,
            steps: BTreeMap::new(),
            kinds: BTreeMap::new(),
        }
    }

    /// Runs a batch, kind by kind, and returns the number of commits.
    fn run_batch(&mut self, mut calls: Vec<Call>) -> usize {
        calls.sort_by_key(|call| call.label);
        let mut committed = 0;
        for of_kind in calls.chunk_by(|a, b| a.label == b.label) {
            let began = Instant::now();
            committed += self.run(of_kind);
            let (count, time) = self.kinds.entry(of_kind[0].label).or_default();
            *count += of_kind.len();
            *time += began.elapsed();
        }
        committed
    }

    /// Runs calls at one version, and returns the number of commits.
    fn run(&mut self, calls: &[Call]) -> usize {
        self.version = self.version.next();
        let program = |call: &Call| Program::Call {
            procedure: self.registry.id(call.procedure).expect("registered"),
            args: call.args.clone(),
        };
        let programs: Vec<Program> = calls.iter().map(program).collect();
        let job = |(at, program)| {
            let txn = TxnId::new(NodeId(1), self.next_txn + at as u64);
            Job { txn, program, footprint: None }
        };
        let jobs: Vec<Job<'_>> = programs.iter().enumerate().map(job).collect();
        let header = |job: &Job<'_>| header::reexecuted(job.txn);
        let (store, version) = (&self.store, self.version);
        let took = |times: &mut BTreeMap<_, Duration>, name, since: Instant| {
            *times.entry(name).or_default() += since.elapsed();
        };
        let began = Instant::now();
        let registry = &self.registry;
        let detail = ResultDetail::Outcomes;
        let finished = execute(&Sequential, registry, store, version, &jobs, &header, detail);
        took(&mut self.steps, "execute", began);
        let began = Instant::now();
        store.publish(version);
        took(&mut self.steps, "publish", began);
        let began = Instant::now();
        store.reclaim(version);
        took(&mut self.steps, "reclaim", began);
        self.next_txn += calls.len() as u64;
        let began = Instant::now();
        let committed = finished.iter().filter(|done| done.outcome.is_ok()).count();
        drop(finished);
        took(&mut self.steps, "free", began);
        committed
    }
}

fn measure(name: &str, warehouses: u32, batches: usize) {
    let settings = Settings { warehouses, ..Settings::default() };
    let workload = Workload::named(name, &settings).expect("valid settings");
    let mut engine = Engine::new();
    for call in workload.load_calls() {
        engine.run(&[call]);
    }
    println!("{name}, {warehouses} warehouses: loaded");
    let mut rng = fastrand::Rng::with_seed(1);
    let mut clients: Vec<Generator> =
        (0..CLIENTS).map(|index| workload.generator(Client::new(index, CLIENTS, 3))).collect();
    let mut now = 0;
    let mut draw = || -> Vec<Call> {
        let mut call = |_| {
            now += 1;
            clients[now as usize % CLIENTS as usize].next(&mut rng, Timestamp::from_us(now))
        };
        (0..BATCH).map(&mut call).collect()
    };
    for _ in 0..BATCHES_WARMUP.min(batches) {
        engine.run_batch(draw());
    }
    (engine.steps, engine.kinds) = Default::default();
    let committed: usize = (0..batches).map(|_| engine.run_batch(draw())).sum();
    let txns = (batches * BATCH) as f64;
    let total: Duration = engine.steps.values().sum();
    let rate = txns / total.as_secs_f64();
    println!("{name}, {warehouses} warehouses: {rate:.0} a second, {committed} committed");
    let us = |time: Duration, count: f64| time.as_secs_f64() * 1e6 / count;
    for (kind, (count, time)) in &engine.kinds {
        println!("  {kind:<14} {count:>7} {:>8.2} us", us(*time, *count as f64));
    }
    for (step, time) in &engine.steps {
        println!("  {step:<22} {:>8.2} us", us(*time, txns));
    }
    let snapshot = Snapshot::new(&engine.store, engine.version);
    println!("  check: {}", workload.check(&snapshot).expect("the invariants hold"));
}

fn main() {
    // Cargo passes `--bench` when it measures; `cargo test --all-targets` only needs the build.
    let arguments: Vec<String> = std::env::args().collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let mut numbers = arguments.iter().filter_map(|argument| argument.parse().ok());
    let warehouses = numbers.next().unwrap_or(WAREHOUSES_DEFAULT);
    let batches = numbers.next().map_or(BATCHES, |batches| batches as usize);
    let named = |name: &&str| arguments.iter().any(|argument| argument == name);
    let workloads = ["tpcc", "tpcc-nopay"];
    let is_any_named = workloads.iter().any(&named);
    let chosen = workloads.into_iter().filter(|name| !is_any_named || named(name));
    chosen.for_each(|name| measure(name, warehouses, batches));
}
