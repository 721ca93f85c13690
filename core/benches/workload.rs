//! The cost of the programs themselves: `cargo bench -p pangea-core --bench workload`.
//!
//! Each program runs twice. The first run uses the model, an in-memory B-tree without versions,
//! read sets or protocol. The second runs in isolation, on a context that replays the reads of the
//! first run and drops all writes. Its time is a lower bound for every executor.

// A benchmark reads the clock; the measured code does not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::time::Timestamp;
use pangea_core::txn::{Context, Procedure, Registry, Scan, Stop, Visit};
use pangea_core::value::Value;
use pangea_core::workload::model::Model;
use pangea_core::workload::{Call, Client, Settings, Workload, procedures};

const CLIENTS: u32 = 64;
const TXNS: usize = 100_000;

/// The values that a run read, in order, for replay.
#[derive(Default)]
struct Replay {
    gets: Vec<Option<Value>>,
    next_get: usize,
    scans: Vec<Vec<(Vec<u8>, Value)>>,
    next_scan: usize,
    puts: u64,
}

impl Context for Replay {
    fn get(&mut self, _: TableId, _: &[u8]) -> Result<Option<Value>, Stop> {
        self.next_get += 1;
        Ok(self.gets[self.next_get - 1].clone())
    }

    fn scan(&mut self, _: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        self.next_scan += 1;
        let _ = self.scans[self.next_scan - 1].iter().try_for_each(|(k, v)| visit(k, v));
        Ok(())
    }

    fn put(&mut self, _: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.puts += 1;
        black_box((key, value));
        Ok(())
    }

    fn delete(&mut self, _: TableId, key: Key) -> Result<(), Stop> {
        self.puts += 1;
        black_box(key);
        Ok(())
    }
}

/// Forwards accesses to another context and records the values read.
struct Record<'a> {
    inner: &'a mut dyn Context,
    read: Replay,
}

impl Context for Record<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        let value = self.inner.get(table, key)?;
        self.read.gets.push(value.clone());
        Ok(value)
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        let mut rows = Vec::new();
        self.inner.scan(scan, &mut |key, value| {
            rows.push((key.to_vec(), value.clone()));
            visit(key, value)
        })?;
        self.read.scans.push(rows);
        Ok(())
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.inner.put(table, key, value)
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.inner.delete(table, key)
    }
}

/// A procedure whose reads are recorded.
struct Recorded<'a> {
    inner: &'a dyn Procedure,
    read: Mutex<Replay>,
}

impl Procedure for Recorded<'_> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let mut record = Record { inner: cx, read: Replay::default() };
        let result = self.inner.run(args, &mut record);
        *self.read.lock().expect("no run panicked") = record.read;
        result
    }
}

#[derive(Default)]
struct Costs {
    txns: u64,
    aborted: u64,
    args_len: u64,
    run_ns: u64,
    footprint_ns: u64,
    alone_ns: u64,
    gets: u64,
    puts: u64,
}

fn measure(name: &str, settings: &Settings) {
    let workload = Workload::named(name, settings).expect("valid settings");
    let registry = Registry::new(procedures());
    let mut model = Model::default();
    let procedure = |call: &Call| {
        let id = registry.id(call.procedure).expect("registered");
        registry.procedure(id).expect("registered")
    };
    let start = Instant::now();
    for call in workload.load_calls() {
        model.run(procedure(&call), &call.args).expect("a load commits");
    }
    println!("{name}: loaded in {} ms", start.elapsed().as_millis());

    let mut rng = fastrand::Rng::with_seed(1);
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|index| workload.generator(Client::new(index, CLIENTS, 3))).collect();
    let start = Instant::now();
    let calls: Vec<Call> = (0..TXNS)
        .map(|i| clients[i % CLIENTS as usize].next(&mut rng, Timestamp::from_us(i as u64)))
        .collect();
    println!("  drawing: {} ns", start.elapsed().as_nanos() as u64 / TXNS as u64);

    let mut costs = BTreeMap::<&str, Costs>::new();
    for call in &calls {
        let procedure = procedure(call);
        let cost = costs.entry(call.label).or_default();
        let start = Instant::now();
        black_box(procedure.footprint(&call.args));
        cost.footprint_ns += start.elapsed().as_nanos() as u64;
        let recorded = Recorded { inner: procedure, read: Mutex::default() };
        let start = Instant::now();
        let result = model.run_unchecked(&recorded, &call.args);
        cost.run_ns += start.elapsed().as_nanos() as u64;
        let mut replay = recorded.read.into_inner().expect("no run panicked");
        let start = Instant::now();
        let again = black_box(procedure.run(&call.args, &mut replay));
        cost.alone_ns += start.elapsed().as_nanos() as u64;
        assert_eq!(again, result, "the same reads have the same result");
        cost.gets += replay.gets.len() as u64;
        cost.puts += replay.puts;
        assert!(!matches!(result, Err(Stop::Interrupted)), "the model does not interrupt");
        cost.txns += 1;
        cost.aborted += u64::from(result.is_err());
        cost.args_len += call.args.len() as u64;
    }
    for (label, cost) in costs {
        let n = cost.txns;
        println!(
            "  {label:14} {:6} run, {} aborted: alone {} ns, on the model {} ns, footprint {} ns; \
             {} gets, {} puts, {} bytes of arguments",
            n,
            cost.aborted,
            cost.alone_ns / n,
            cost.run_ns / n,
            cost.footprint_ns / n,
            cost.gets / n,
            cost.puts / n,
            cost.args_len / n,
        );
    }
    println!("  check: {}", workload.check(&model).expect("the invariants hold"));
}

fn main() {
    // Cargo passes this argument only to measure; `cargo test --all-targets` only builds and starts
    // it.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    measure("tpcc-nopay", &Settings { warehouses: 2, ..Settings::default() });
    measure("tpcc", &Settings { warehouses: 2, ..Settings::default() });
    measure("ycsb-a", &Settings { rows: 100_000, ..Settings::default() });
    measure("ycsb-a", &Settings { rows: 100_000, zipf: 1.2, ..Settings::default() });
    measure("ycsb-f", &Settings { rows: 100_000, ..Settings::default() });
}
