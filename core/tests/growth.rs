//! The cost of what clients can make grow: writers and readers of one key, ranges over the same
//! rows, uncommitted rows, versions of a key, scans in one transaction.
//!
//! Each load runs with n and with 8 n of something. Its cost may grow 32-fold, which leaves room
//! for n log n and for a busy machine; a quadratic step costs 64 times as much. The cost is the
//! bytes that are allocated, and the time that the thread was on a processor, which does not count
//! waiting.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may access the environment"
)]

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::exec::ordered::{self, Job, ResultDetail, Sharded};
use pangea_core::exec::{Overlay, optimistic};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::partition::{Partitions, Rule};
use pangea_core::pool::{Pool, Sequential};
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::txn::{
    Certified, Context, PointRead, Procedure, Program, RangeRead, ReadSet, ReadVersion, Registry,
    Scan, Stop, Write,
};
use pangea_core::value::Value;

const TABLE: TableId = TableId(1);
/// The factor between the two sizes of a load.
const TIMES: usize = 8;
/// The factor by which its cost may grow.
const GROWS_MAX: u64 = 32;
/// The runs of which the cheapest counts.
const RUNS: usize = 3;
/// The clock of a thread may advance in steps of this length: a shorter time counts as one step.
const TICK_NS: u64 = 4_000_000;
/// Any load may allocate a megabyte.
const FREE_BYTES: u64 = 1 << 20;

/// Runs jobs one after the other, as if on several workers, so that graphs of locks are built.
struct Workers;

impl Pool for Workers {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(job);
    }

    fn workers(&self) -> usize {
        4
    }
}

/// The nanoseconds that this thread has been on a processor.
fn on_processor() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let first = text.split(' ').next().expect("the first of three numbers");
    first.parse().expect("a number of nanoseconds")
}

/// The cost of a load: bytes, and the least time of several runs.
fn cost<T>(prepare: impl Fn() -> T, run: impl Fn(T)) -> (u64, u64) {
    let once = |_| {
        let prepared = prepare();
        let before = on_processor();
        let memory = allocation_counter::measure(|| run(prepared));
        (memory.bytes_total, on_processor() - before)
    };
    let all: Vec<(u64, u64)> = (0..RUNS).map(once).collect();
    let least = |of: fn(&(u64, u64)) -> u64| all.iter().map(of).min().expect("some runs");
    (least(|it| it.0), least(|it| it.1))
}

/// Asserts that a load of size `few` and one of [`TIMES`] that size cost about as much for each.
fn grows<T>(load: &str, few: usize, prepare: impl Fn(usize) -> T, run: impl Fn(usize, T)) {
    let many = few * TIMES;
    let small = cost(|| prepare(few), |it| run(few, it));
    let large = cost(|| prepare(many), |it| run(many, it));
    eprintln!("{load}: {few} {small:?}, {many} {large:?}");
    assert!(
        large.0 < GROWS_MAX * small.0 + FREE_BYTES && large.1 < GROWS_MAX * small.1.max(TICK_NS),
        "{load}: bytes and ns of {few} are {small:?}, and of {many} {large:?}"
    );
}

fn txn(number: usize) -> TxnId {
    TxnId::new(NodeId(0), 1 + number as u64)
}

fn key(number: usize) -> Key {
    Key::from(&(number as u32).to_be_bytes()[..])
}

fn from(number: usize) -> KeyRange {
    KeyRange { start: (number as u32).to_be_bytes().to_vec(), end: None }
}

fn write(number: usize) -> Write {
    Write { table: TABLE, key: key(number), value: Some(Value::copy_from(&[1])) }
}

fn version(number: u64, writer: usize) -> Version {
    let header = RecordHeader::new(txn(writer));
    Version { version: SnapshotVersion(number), header, value: Some(Value::copy_from(&[2])) }
}

fn certified(reads: Vec<usize>, ranges: Vec<KeyRange>, writes: Vec<usize>) -> Program {
    let seen = ReadVersion::Absent;
    let point = |number| PointRead { table: TABLE, key: key(number), seen };
    let range = |range| RangeRead { table: TABLE, range, rows: Vec::new() };
    Program::Certified(Certified {
        reads: ReadSet {
            points: reads.into_iter().map(point).collect(),
            ranges: ranges.into_iter().map(range).collect(),
        },
        writes: writes.into_iter().map(write).collect(),
        ..Certified::default()
    })
}

fn header(job: &Job<'_>) -> RecordHeader {
    RecordHeader::new(job.txn)
}

/// A name, and the transactions of a load.
type Load = (&'static str, fn(usize) -> Program);

fn loads() -> Vec<Load> {
    vec![
        ("writers of one key", |_| certified(vec![], vec![], vec![7])),
        ("readers of one key", |_| certified(vec![7], vec![], vec![])),
        ("readers and writers of one key", |i| match i % 2 {
            0 => certified(vec![], vec![], vec![7]),
            _ => certified(vec![7], vec![], vec![]),
        }),
        ("writers of different keys", |i| certified(vec![], vec![], vec![i])),
        ("scans of written rows", |i| match i % 2 {
            0 => certified(vec![], vec![], vec![i]),
            _ => certified(vec![], vec![KeyRange::all()], vec![]),
        }),
        ("overlapping ranges and writes", |i| certified(vec![], vec![from(i)], vec![i])),
    ]
}

#[test]
fn the_cost_of_an_ordered_queue_grows_with_its_length() {
    for (load, program) in loads() {
        let prepare = |n| (Store::new(), (0..n).map(program).collect::<Vec<_>>());
        grows(load, 2_000, prepare, |_, (store, programs)| {
            let job = |(i, program)| Job { txn: txn(i), program, footprint: None };
            let jobs: Vec<Job<'_>> = programs.iter().enumerate().map(job).collect();
            let registry = Registry::new([]);
            let at = SnapshotVersion(1);
            let detail = ResultDetail::Outcomes;
            ordered::execute(&Workers, &registry, &store, at, &jobs, &header, detail);
        });
    }
}

/// The locks of a shard. Ranges that overlap are not here: see the note on `Queues`.
#[test]
fn the_cost_of_a_shard_s_locks_grows_with_its_transactions() {
    for (load, program) in loads().into_iter().take(4) {
        let prepare = |n| (Store::new(), (0..n).map(program).collect::<Vec<_>>());
        grows(load, 1_000, prepare, |_, (store, programs)| {
            let partitions = Arc::new(Partitions::new(1, Rule::Everywhere));
            let mut sharded = Sharded::new(partitions, ShardId(0));
            let (registry, at) = (Registry::new([]), SnapshotVersion(1));
            for (i, program) in programs.iter().enumerate() {
                sharded.push(&registry, at, txn(i), ShardId(0), (program, None));
            }
            while sharded.len() > 0 {
                sharded.advance(&Sequential, &registry, &store, &header, 64);
            }
        });
    }
}

/// A hot key has a write of each transaction in flight. They are decided from the oldest on; those
/// that read an invalidated one leave from the middle.
#[test]
fn the_cost_of_an_overlay_grows_with_its_writes() {
    type Order = fn(usize) -> Vec<usize>;
    let orders: [(&str, Order); 3] = [
        ("oldest first", |n| (0..n).collect()),
        ("newest first", |n| (0..n).rev().collect()),
        ("from the middle", |n| (n / 2..n).chain(0..n / 2).collect()),
    ];
    for (load, order) in orders {
        grows(load, 4_000, order, |n, order| {
            let mut overlay = Overlay::new();
            (0..n).for_each(|i| overlay.insert(txn(i), &[write(7)]));
            order.into_iter().for_each(|i| overlay.remove(txn(i), &[write(7)]));
            assert!(overlay.is_empty());
        });
    }
}

/// Reads a row of a table, if it is given one, and otherwise as many ranges as it is told.
struct Reader;

impl Procedure for Reader {
    fn name(&self) -> &str {
        "reader"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let direction = if args[0] == 0 { Direction::Forward } else { Direction::Reverse };
        let ranges = u32::from_be_bytes(args[1..5].try_into().expect("four bytes"));
        for number in 0..ranges as usize {
            let range = if ranges == 1 { KeyRange::all() } else { from(number) };
            let scan = Scan { table: TABLE, range, direction };
            cx.scan(&scan, &mut |_, _| ControlFlow::Break(()))?;
        }
        Ok(Vec::new())
    }
}

fn reader(direction: u8, ranges: usize) -> (Registry, Program) {
    let registry = Registry::new([Arc::new(Reader) as Arc<dyn Procedure>]);
    let procedure = registry.id("reader").expect("it is registered");
    let mut args = vec![direction];
    args.extend((ranges as u32).to_be_bytes());
    (registry, Program::Call { procedure, args: Bytes::from(args) })
}

/// A queue in a table: each transaction takes the first row, and many rows are uncommitted.
#[test]
fn a_scan_with_a_limit_does_not_look_at_all_uncommitted_rows() {
    for direction in [0, 1] {
        let prepare = |n: usize| {
            let mut overlay = Overlay::new();
            (0..n).for_each(|i| overlay.insert(txn(i), &[write(i)]));
            overlay
        };
        grows("a limit", 1_000, prepare, |n, overlay| {
            let (registry, program) = reader(direction, 1);
            let store = Store::new();
            let run = |_| optimistic::run(&registry, &program, &store, store.published(), &overlay);
            assert!((0..n).map(run).all(|run| run.reads.ranges[0].rows.len() == 1));
        });
    }
}

/// A join that looks each row up.
#[test]
fn a_transaction_may_read_many_ranges() {
    let prepare = |n: usize| {
        let store = Store::new();
        let writes = (0..n).map(|i| (TABLE, key(i), version(1, i))).collect();
        store.apply_batch(&Sequential, SnapshotVersion(1), writes);
        store.publish(SnapshotVersion(1));
        store
    };
    grows("ranges", 2_000, prepare, |n, store| {
        let (registry, program) = reader(0, n);
        let overlay = Overlay::new();
        let run = optimistic::run(&registry, &program, &store, store.published(), &overlay);
        assert_eq!(run.reads.ranges.len(), n);
    });
}

/// A session that stays open keeps a version of a hot key for each epoch.
#[test]
fn reads_of_a_key_with_many_versions_do_not_look_at_all() {
    let prepare = |n: usize| {
        let store = Arc::new(Store::new());
        store.apply(TABLE, key(7), version(1, 0));
        store.publish(SnapshotVersion(1));
        let pin = store.pin();
        for number in 2..n as u64 + 2 {
            store.apply(TABLE, key(7), version(number, number as usize));
            store.publish(SnapshotVersion(number));
        }
        (store, pin)
    };
    grows("newest", 2_000, prepare, |n, (store, _pin)| {
        for _ in 0..n {
            assert!(store.read(TABLE, &key(7), store.published()).is_some());
        }
    });
    grows("oldest", 2_000, prepare, |n, (store, pin)| {
        for _ in 0..n {
            assert!(store.read(TABLE, &key(7), pin.version()).is_some());
        }
    });
    grows("reclaim", 2_000, prepare, |n, (store, pin)| {
        drop(pin);
        assert!(store.reclaim(store.published()) >= n);
    });
}

/// New rows are sorted into a table's order.
#[test]
fn the_cost_of_new_rows_grows_with_their_number() {
    let empty = |_| Store::new();
    grows("rows", 8_000, empty, |n, store| {
        for (epoch, first) in (0..n).step_by(100).enumerate() {
            let at = SnapshotVersion(epoch as u64 + 1);
            // Neighbours come in different epochs.
            let place = |i: usize| key((first + i).wrapping_mul(7_919) % n);
            let writes = (0..100).map(|i| (TABLE, place(i), version(at.0, i))).collect();
            store.apply_batch(&Sequential, at, writes);
            store.publish(at);
            store.settle(&Sequential);
            let mut seen = 0;
            store.scan(TABLE, &KeyRange::all(), Direction::Forward, at, |_, _| {
                seen += 1;
                if seen == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
    });
}

/// A transaction, or an epoch, of many writes is one batch for the store.
#[test]
fn the_cost_of_an_epoch_s_writes_grows_with_their_number() {
    for (load, keys) in [("different keys", usize::MAX), ("few keys", 10)] {
        let prepare = |n: usize| {
            let place = |i: usize| key(i.wrapping_mul(7_919) % n.min(keys));
            (0..n).map(|i| (TABLE, place(i), version(1, i))).collect::<Vec<_>>()
        };
        grows(load, 4_000, prepare, |n, writes| {
            let (store, at) = (Store::new(), SnapshotVersion(1));
            store.apply_batch(&Sequential, at, writes);
            store.publish(at);
            store.settle(&Sequential);
            assert_eq!(store.len(TABLE), n.min(keys));
        });
    }
}

/// Tables are created one after the other, each with a row and in an epoch of its own.
#[test]
fn the_cost_of_tables_grows_with_their_number() {
    grows(
        "tables",
        100,
        |_| Store::new(),
        |n, store| {
            for number in 1..=n as u64 {
                let table = TableId(number.try_into().expect("few tables"));
                let writes = vec![(table, key(7), version(number, 7))];
                store.apply_batch(&Sequential, SnapshotVersion(number), writes);
                store.publish(SnapshotVersion(number));
                store.settle(&Sequential);
                store.reclaim(store.published());
                assert!(store.read(table, &key(7), store.published()).is_some());
            }
            assert_eq!(store.table_ids().len(), n);
            store.retreat_to(store.published());
        },
    );
}
