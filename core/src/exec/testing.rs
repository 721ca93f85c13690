//! Fixtures for the tests of both executors: a small language of programs, a model based on a map,
//! and pools with real threads.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::exec::ordered::Job;
use crate::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use crate::key::{Direction, Key, KeyRange};
use crate::pool::Pool;
use crate::store::{RecordHeader, Store, Version};
use crate::txn::{
    Abort, Context, Footprint, LockMode, PointLock, Procedure, Program, RangeLock, Registry, Scan,
    SqlState, Stop, Visit,
};
use crate::value::Value;

/// Keys are one byte, below this value.
pub const KEYS: u8 = 10;
/// Table numbers are below this value.
pub const TABLES: u32 = 2;

/// The header of a job's writes: flagged if the job runs a program in serial order.
pub fn header_of(job: &Job<'_>) -> RecordHeader {
    match job.program {
        Program::Call { .. } => RecordHeader::new(job.txn).flagged(),
        Program::Certified(_) => RecordHeader::new(job.txn),
    }
}

pub fn txn(n: u64) -> TxnId {
    TxnId::new(NodeId(1), n)
}

pub fn key(k: u8) -> Key {
    Key::from(&[k][..])
}

pub fn value(v: u8) -> Value {
    Value::copy_from(&[v])
}

/// One step of a test program. Every value that a program reads is part of its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Op {
    Get(u32, u8),
    Put(u32, u8, u8),
    Delete(u32, u8),
    /// Sets the third key to the sum of the first two, plus one.
    CopySum(u32, u8, u8, u8),
    /// Sums at most `limit` rows and puts the sum at `to`.
    Scan {
        table: u32,
        start: u8,
        end: u8,
        is_reverse: bool,
        limit: u8,
        to: Option<u8>,
    },
    /// Writes to the key that a value names.
    Follow(u32, u8),
    AbortIfOdd(u32, u8),
    Panic,
}

impl Op {
    /// The largest possible footprint of the op.
    fn locks(&self, points: &mut Vec<PointLock>, ranges: &mut Vec<RangeLock>) {
        let mut point = |table: u32, k: u8, mode| {
            points.push(PointLock { table: TableId(table), key: key(k), mode });
        };
        match *self {
            Self::Get(table, k) | Self::AbortIfOdd(table, k) => point(table, k, LockMode::Shared),
            Self::Put(table, k, _) | Self::Delete(table, k) => point(table, k, LockMode::Exclusive),
            Self::CopySum(table, a, b, to) => {
                point(table, a, LockMode::Shared);
                point(table, b, LockMode::Shared);
                point(table, to, LockMode::Exclusive);
            }
            Self::Scan { table, start, end, to, .. } => {
                to.iter().for_each(|&to| point(table, to, LockMode::Exclusive));
                let range = KeyRange { start: vec![start], end: Some(vec![end]) };
                ranges.push(RangeLock { table: TableId(table), range, mode: LockMode::Shared });
            }
            Self::Follow(table, k) => {
                point(table, k, LockMode::Shared);
                let range = KeyRange { start: vec![2], end: Some(vec![6]) };
                ranges.push(RangeLock { table: TableId(table), range, mode: LockMode::Exclusive });
            }
            Self::Panic => {}
        }
    }
}

/// A footprint that covers all possible accesses of the ops.
pub fn covering(ops: &[Op]) -> Footprint {
    let (mut points, mut ranges) = (Vec::new(), Vec::new());
    ops.iter().for_each(|op| op.locks(&mut points, &mut ranges));
    Footprint::new(points, ranges)
}

/// Runs the ops in its arguments.
struct Interpreter;

/// The same, for ops that need no row of another shard. Its result has no values of rows.
struct Divisible;

fn number(value: Option<Value>) -> u8 {
    value.map_or(0, |value| value[0])
}

fn step(op: &Op, cx: &mut dyn Context, log: &mut Vec<u8>) -> Result<(), Stop> {
    match *op {
        Op::Get(table, k) => log.push(number(cx.get(TableId(table), &[k])?)),
        Op::Put(table, k, v) => cx.put(TableId(table), key(k), value(v))?,
        Op::Delete(table, k) => cx.delete(TableId(table), key(k))?,
        Op::CopySum(table, a, b, to) => {
            let table = TableId(table);
            let (a, b) = (number(cx.get(table, &[a])?), number(cx.get(table, &[b])?));
            cx.put(table, key(to), value(a.wrapping_add(b).wrapping_add(1)))?;
        }
        Op::Scan { table, start, end, is_reverse, limit, to } => {
            let direction = if is_reverse { Direction::Reverse } else { Direction::Forward };
            let range = KeyRange { start: vec![start], end: Some(vec![end]) };
            let mut left = limit;
            let mut sum = 0u8;
            cx.scan(&Scan { table: TableId(table), range, direction }, &mut |k, v| {
                log.extend([k[0], v[0]]);
                sum = sum.wrapping_add(v[0]);
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            to.map_or(Ok(()), |to| cx.put(TableId(table), key(to), value(sum)))?;
        }
        Op::Follow(table, k) => {
            let found = number(cx.get(TableId(table), &[k])?);
            log.push(found);
            cx.put(TableId(table), key(2 + found % 4), value(found.wrapping_add(3)))?;
        }
        Op::AbortIfOdd(table, k) => {
            if number(cx.get(TableId(table), &[k])?) % 2 == 1 {
                return Err(Abort::new(SqlState::RAISE_EXCEPTION, "odd").into());
            }
        }
        Op::Panic => panic!("a test program panics"),
    }
    Ok(())
}

impl Procedure for Interpreter {
    fn name(&self) -> &str {
        "interpreter"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let ops: Vec<Op> = postcard::from_bytes(args).expect("tests pass ops");
        let mut log = Vec::new();
        ops.iter().try_for_each(|op| step(op, cx, &mut log))?;
        Ok(log)
    }
}

impl Procedure for Divisible {
    fn name(&self) -> &str {
        "divisible"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        Interpreter.run(args, cx).map(|_| Vec::new())
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        Some(covering(&postcard::from_bytes::<Vec<Op>>(args).expect("tests pass ops")))
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn is_divisible(&self, _: &[u8]) -> bool {
        true
    }
}

pub fn registry() -> Registry {
    Registry::new([Arc::new(Interpreter) as Arc<dyn Procedure>, Arc::new(Divisible)])
}

pub fn program(ops: &[Op]) -> Program {
    call("interpreter", ops)
}

/// A program that each shard runs with its own rows.
pub fn divisible(ops: &[Op]) -> Program {
    call("divisible", ops)
}

fn call(name: &str, ops: &[Op]) -> Program {
    let procedure = registry().id(name).expect("the registry has both procedures");
    let args = postcard::to_allocvec(ops).expect("ops can be encoded");
    Program::Call { procedure, args: Bytes::from(args) }
}

fn op() -> impl Strategy<Value = Op> {
    let (t, k) = (0..TABLES, 0..KEYS);
    prop_oneof![
        2 => (t.clone(), k.clone()).prop_map(|(t, k)| Op::Get(t, k)),
        2 => (t.clone(), k.clone(), any::<u8>()).prop_map(|(t, k, v)| Op::Put(t, k, v)),
        1 => (t.clone(), k.clone()).prop_map(|(t, k)| Op::Delete(t, k)),
        3 => (t.clone(), k.clone(), k.clone(), k.clone())
            .prop_map(|(t, a, b, c)| Op::CopySum(t, a, b, c)),
        3 => (t.clone(), k.clone(), k.clone(), any::<bool>(), 1u8..5, prop::option::of(k.clone()))
            .prop_map(|(table, start, end, is_reverse, limit, to)| {
                Op::Scan { table, start, end, is_reverse, limit, to }
            }),
        2 => (t.clone(), k.clone()).prop_map(|(t, k)| Op::Follow(t, k)),
        1 => (t, k).prop_map(|(t, k)| Op::AbortIfOdd(t, k)),
    ]
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 0..6)
}

/// Initial rows, and deletions, which must look like absent rows.
pub fn rows() -> impl Strategy<Value = BTreeMap<(u32, u8), Option<u8>>> {
    prop::collection::btree_map(
        (0..TABLES, 0..KEYS),
        prop::option::weighted(0.8, any::<u8>()),
        0..12,
    )
}

/// A store with these rows at version 5, written by transaction 0 of node 9.
pub fn store(rows: &BTreeMap<(u32, u8), Option<u8>>) -> Store {
    let store = Store::new();
    for (&(table, k), v) in rows {
        let header = RecordHeader::new(TxnId::new(NodeId(9), 0));
        let version = Version { version: SnapshotVersion(5), header, value: v.map(value) };
        store.apply(TableId(table), key(k), version);
    }
    store
}

/// The database as a map: the reference for both executors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    pub rows: BTreeMap<(TableId, Key), Value>,
}

impl Model {
    pub fn new(rows: &BTreeMap<(u32, u8), Option<u8>>) -> Self {
        let live =
            |(&(t, k), v): (&(u32, u8), &Option<u8>)| Some(((TableId(t), key(k)), value((*v)?)));
        Self { rows: rows.iter().filter_map(live).collect() }
    }

    /// The live rows of a store.
    pub fn of(store: &Store, at: SnapshotVersion) -> Self {
        let mut rows = BTreeMap::new();
        for table in store.table_ids() {
            store.scan(table, &KeyRange::all(), Direction::Forward, at, |key, version| {
                rows.extend(version.value.clone().map(|value| ((table, key.clone()), value)));
                ControlFlow::Continue(())
            });
        }
        Self { rows }
    }

    /// Runs ops in isolation, and keeps their effects unless they abort.
    pub fn run(&mut self, ops: &[Op]) -> Result<Vec<u8>, Stop> {
        let mut after = self.clone();
        let mut log = Vec::new();
        ops.iter().try_for_each(|op| step(op, &mut after, &mut log))?;
        *self = after;
        Ok(log)
    }
}

impl Context for Model {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        Ok(self.rows.get(&(table, Key::from(key))).cloned())
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        let within = |((table, key), _): &(&(TableId, Key), &Value)| {
            *table == scan.table && scan.range.contains(key)
        };
        let mut found: Vec<_> = self.rows.iter().filter(within).collect();
        if scan.direction == Direction::Reverse {
            found.reverse();
        }
        let _ = found.into_iter().try_for_each(|((_, key), value)| visit(key, value));
        Ok(())
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.rows.insert((table, key), value);
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.rows.remove(&(table, key));
        Ok(())
    }
}

/// A pool of this many real threads.
pub struct Threads(pub usize);

impl Pool for Threads {
    #[expect(clippy::disallowed_methods, reason = "tests need a pool with threads, like a node's")]
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.0.min(count) {
                scope.spawn(|| {
                    loop {
                        let mine = next.fetch_add(1, Ordering::Relaxed);
                        if mine >= count {
                            break;
                        }
                        job(mine);
                    }
                });
            }
        });
    }

    fn workers(&self) -> usize {
        self.0
    }
}

/// A pool that claims several workers but has one thread, which runs the last job first.
pub struct Backwards(pub usize);

impl Pool for Backwards {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).rev().for_each(job);
    }

    fn workers(&self) -> usize {
        self.0
    }
}
