//! The cost of the store's operations.
//!
//! `cargo bench -p pangea-core --bench store [-- KEYS]` fills a table and prints the mean
//! nanoseconds of each operation. By default the table has a million keys of 12 bytes with values
//! of 100 bytes. Run it on an idle machine; on a busy one only the ratios are meaningful. The first
//! lines are a baseline: the same keys in only one of the two indexes.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pangea_core::hash::HashMap;
use pangea_core::ids::{SnapshotVersion, TableId, TxnId};
use pangea_core::key::encode::{KeyEncoder, Order};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::pool::{Pool, Sequential};
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::value::Value;

const TABLE: TableId = TableId(1000);
const KEYS_DEFAULT: u64 = 1_000_000;
const VALUE_BYTES: usize = 100;
const PROBES: usize = 1_000_000;
const BATCH: usize = 4_096;
/// The number of keys in a run of the store's ordered index when keys are inserted in order: half
/// of the maximum.
const RUN_KEYS: u64 = 128;

/// Two threads, spawned for each step: the minimum cost of parallel work.
struct Two;

impl Pool for Two {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for i in 1..count {
                scope.spawn(move || job(i));
            }
            job(0);
        });
    }

    fn workers(&self) -> usize {
        2
    }
}

/// A key like those of TPC-C: warehouse, district, number.
fn key(number: u64) -> Key {
    let mut encoder = KeyEncoder::new();
    encoder.put_i32((number / 30_000) as i32, Order::Ascending);
    encoder.put_i32((number / 3_000 % 10) as i32, Order::Ascending);
    encoder.put_i32((number % 3_000) as i32, Order::Ascending);
    encoder.finish()
}

fn value() -> Value {
    Value::from(vec![7; VALUE_BYTES])
}

fn version(number: u64) -> Version {
    let header = RecordHeader::new(TxnId::from_bits(number));
    Version { version: SnapshotVersion(number), header, value: Some(value()) }
}

/// Runs `work`, which performs `count` operations, and prints the mean time of one.
fn measure<R>(name: &str, count: u64, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = black_box(work());
    print(name, start.elapsed(), count);
    result
}

fn print(name: &str, time: Duration, count: u64) {
    let ns = time.as_nanos() as f64 / count.max(1) as f64;
    println!("{name:<52} {ns:>9.1} ns");
}

fn first_byte(version: &Version) -> u64 {
    version.value.as_ref().map_or(0, |value| u64::from(value[0]))
}

fn shuffled(keys: u64, rng: &mut fastrand::Rng) -> Vec<u64> {
    let mut numbers: Vec<_> = (0..keys).collect();
    rng.shuffle(&mut numbers);
    numbers
}

/// Rows in the runs of an ordered index: the store without its hash table.
type Run = RwLock<Vec<(Key, Version)>>;

fn indexes_alone(keys: u64, probes: &[Key]) {
    let mut runs: BTreeMap<Key, Run> = BTreeMap::new();
    for first in (0..keys).step_by(RUN_KEYS as usize) {
        let numbers = first..keys.min(first + RUN_KEYS);
        let rows = numbers.map(|number| (key(number), version(1))).collect();
        runs.insert(key(first), RwLock::new(rows));
    }
    measure("ordered index only: get at random", probes.len() as u64, || {
        let look = |probe: &Key| {
            let (_, run) = runs.range::<Key, _>(..=probe).next_back().expect("the first run has 0");
            let rows = run.read().expect("one thread");
            let at = rows.binary_search_by(|(key, _)| key.cmp(probe)).expect("the key exists");
            first_byte(&rows[at].1)
        };
        probes.iter().map(look).sum::<u64>()
    });
    measure("ordered index only: scan all rows (a row)", keys, || {
        let rows = |run: &Run| {
            let rows = run.read().expect("one thread");
            rows.iter().map(|(_, version)| first_byte(version)).sum::<u64>()
        };
        runs.values().map(rows).sum::<u64>()
    });
    drop(runs);
    let hashed: RwLock<HashMap<Key, Version>> = RwLock::default();
    for number in 0..keys {
        hashed.write().expect("one thread").insert(key(number), version(1));
    }
    measure("hash table only: get at random", probes.len() as u64, || {
        let look = |probe: &Key| first_byte(&hashed.read().expect("one thread")[probe.as_bytes()]);
        probes.iter().map(look).sum::<u64>()
    });
}

fn gets(store: &Store, probes: &[Key]) {
    let at = store.published();
    let count = probes.len() as u64;
    measure("read_with: key at random", count, || {
        let look = |probe: &Key| store.read_with(TABLE, probe, at, first_byte).unwrap_or(0);
        probes.iter().map(look).sum::<u64>()
    });
    measure("read: key at random", count, || {
        let look = |probe: &Key| store.read(TABLE, probe, at).map_or(0, |v| first_byte(&v));
        probes.iter().map(look).sum::<u64>()
    });
    let hot = &probes[..1_000];
    measure("read_with: one of 1,000 hot keys", count, || {
        let look = |probe: &Key| store.read_with(TABLE, probe, at, first_byte).unwrap_or(0);
        hot.iter().cycle().take(probes.len()).map(look).sum::<u64>()
    });
    measure("read_with: no such key", count, || {
        let miss = |probe: &Key| store.read_with(TABLE, &probe[1..], at, first_byte).unwrap_or(0);
        probes.iter().map(miss).sum::<u64>()
    });
}

fn two_threads(store: &Store, probes: &[Key]) {
    let at = store.published();
    let read = |probes: &[Key]| {
        let look = |probe: &Key| store.read_with(TABLE, probe, at, first_byte).unwrap_or(0);
        black_box(probes.iter().map(look).sum::<u64>());
    };
    measure("read_with: key at random, two threads (each)", probes.len() as u64 / 2, || {
        let (a, b) = probes.split_at(probes.len() / 2);
        std::thread::scope(|scope| {
            scope.spawn(|| read(b));
            read(a);
        });
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let next = at.next().0;
            while !done.load(Ordering::Relaxed) {
                for probe in &probes[..BATCH] {
                    store.apply(TABLE, probe.clone(), version(next));
                }
            }
        });
        let count = probes.len() as u64;
        measure("read_with: key at random, with a concurrent writer", count, || read(probes));
        done.store(true, Ordering::Relaxed);
    });
}

fn scans(store: &Store, keys: u64, rng: &mut fastrand::Rng) {
    let at = store.published();
    let scan = |from: u64, rows: u64, direction| {
        let (first, last) = (key(from), key(from + rows));
        let range = KeyRange { start: first.to_vec(), end: Some(last.to_vec()) };
        let mut sum = 0;
        store.scan(TABLE, &range, direction, at, |_, version| {
            sum += first_byte(version);
            ControlFlow::Continue(())
        });
        sum
    };
    for (rows, direction) in [1, 10, 100].into_iter().flat_map(|rows| {
        [Direction::Forward, Direction::Reverse].map(|direction| (rows, direction))
    }) {
        let count = (PROBES as u64 / 10) / rows;
        let name = format!("scan: {rows} rows {direction:?} (a scan)");
        let starts: Vec<_> = (0..count).map(|_| rng.u64(..keys - rows)).collect();
        measure(&name, count, || starts.iter().map(|&f| scan(f, rows, direction)).sum::<u64>());
    }
    measure("scan: all rows (a row)", keys, || {
        let mut rows = 0;
        store.scan(TABLE, &KeyRange::all(), Direction::Forward, at, |_, version| {
            rows += first_byte(version);
            ControlFlow::Continue(())
        });
        rows
    });
    measure("digest (a row)", keys, || store.digest(at));
}

/// Applies batches of one version each. After each batch, reclaims the versions superseded two
/// versions ago. Returns the next version.
fn batches(store: &Store, probes: &[Key], pool: &dyn Pool, first: u64) -> u64 {
    let mut number = first;
    let (mut applying, mut reclaiming, mut reclaimed) = (Duration::ZERO, Duration::ZERO, 0);
    for keys in probes.chunks(BATCH) {
        let write = |key: &Key| (TABLE, key.clone(), version(number));
        let batch = keys.iter().map(write).collect();
        let start = Instant::now();
        store.apply_batch(pool, SnapshotVersion(number), batch);
        applying += start.elapsed();
        store.publish(SnapshotVersion(number));
        let start = Instant::now();
        reclaimed += store.reclaim(SnapshotVersion(number.saturating_sub(2)));
        reclaiming += start.elapsed();
        number += 1;
    }
    let name = format!("apply_batch: updates, {} workers (a write)", pool.workers());
    print(&name, applying, probes.len() as u64);
    print("reclaim (a superseded version)", reclaiming, reclaimed as u64);
    number
}

fn inserts(name: &str, numbers: &[u64]) -> Store {
    let store = Store::new();
    let rows: Vec<_> = numbers.iter().map(|&number| (key(number), version(1))).collect();
    measure(name, numbers.len() as u64, || {
        for (key, version) in rows {
            store.apply(TABLE, key, version);
        }
    });
    store
}

fn insert_batches(numbers: &[u64], pool: &dyn Pool) {
    let store = Store::new();
    let write = |&number: &u64| (TABLE, key(number), version(1));
    let batches: Vec<Vec<_>> =
        numbers.chunks(BATCH).map(|numbers| numbers.iter().map(write).collect()).collect();
    let name = format!("apply_batch: new keys at random, {} workers (a write)", pool.workers());
    measure(&name, numbers.len() as u64, || {
        for batch in batches {
            store.apply_batch(pool, SnapshotVersion(1), batch);
        }
    });
}

fn main() {
    let keys = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(KEYS_DEFAULT);
    assert!(keys > 1_000, "a table of more than a thousand keys");
    let mut rng = fastrand::Rng::with_seed(7);
    let probes: Vec<_> = (0..PROBES).map(|_| key(rng.u64(..keys))).collect();
    println!("{keys} keys of 12 bytes, values of {VALUE_BYTES} bytes");
    indexes_alone(keys, &probes);
    let random = shuffled(keys, &mut rng);
    drop(inserts("apply: new key at random", &random));
    insert_batches(&random, &Sequential);
    insert_batches(&random, &Two);
    let ascending: Vec<_> = (0..keys).collect();
    let store = inserts("apply: new key in order", &ascending);
    let overhead = store.memory_bytes() as u64 / keys - VALUE_BYTES as u64;
    println!("{:<52} {overhead:>9} bytes", "memory in addition to the value (a key)");
    store.publish(SnapshotVersion(1));
    gets(&store, &probes);
    scans(&store, keys, &mut rng);
    let updates: Vec<_> = probes.iter().map(|key| (key.clone(), version(2))).collect();
    measure("apply: update at random", PROBES as u64, || {
        for (key, version) in updates {
            store.apply(TABLE, key, version);
        }
    });
    store.publish(SnapshotVersion(2));
    store.reclaim(SnapshotVersion(2));
    let next = batches(&store, &probes, &Sequential, 3);
    batches(&store, &probes, &Two, next);
    two_threads(&store, &probes);
}
