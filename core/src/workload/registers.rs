//! Registers, and rows that are inserted and deleted, for checkers that reconstruct dependencies.
//!
//! There is one table of numbered rows. A transaction writes, deletes, reads and scans rows
//! according to its arguments. Every value is written once in a run, so a value that is read
//! identifies its writer. Each mix targets one kind of anomaly (Kingsbury and Alvaro, "Elle", 2020,
//! and the workloads of Jepsen):
//!
//! | mix | transactions | detects |
//! |---|---|---|
//! | `register` | reads, writes, and reads before writes | lost updates, stale and dirty reads |
//! | `long-fork` | one write, or reads of a few adjacent rows | two orders of two writes |
//! | `write-skew` | reads of two rows and a write of one of them | write skew |
//! | `cycle` | a write of one row and a read of the next, in a ring | circular information flow |
//! | `ranges` | a scan, with inserts and deletes in its range | phantoms |
//! | `chain` | updates of adjacent rows, and of two rows one after the other | orders that differ from real time |
//!
//! In a chain, transactions update a row and the next one, so that each conflicts with its
//! neighbours alone. A client that waits for the end of an update of one row, and then updates
//! another one, orders the two in real time. Only the transactions in between could order them the
//! other way. Adjacent rows are on different shards, if there are several: then each of these
//! transactions is ordered by two shards, and no shard orders all of them.
//!
//! The order of writes without a read in between remains unknown. Clients therefore change to new
//! rows like those of [`super::list_append`], and sooner. A delete leaves no visible trace. A
//! transaction that deletes therefore also inserts a witness row, which shows at the end whether it
//! took effect.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::definition::{Definition, Facts, Generate};
use super::rng::WorkloadRng;
use super::{Call, Client, InvalidSettings, Reach, Settings, bounded, malformed, setting};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::partition::{self, Partitions};
use crate::time::Timestamp;
use crate::txn::{Context, Footprint, LockMode, PointLock, Procedure, RangeLock, Stop};
use crate::value::Value;

/// Row number, big-endian, to value, little-endian.
pub const REGISTERS: TableId = TableId(59);

/// The number of transactions after which a client changes to new rows.
pub const TXNS_PER_ERA: u64 = 20;
/// The first of the witness rows for deletes. No client reaches this number.
pub const WITNESSES: u64 = 1 << 63;
/// The maximum number of rows in a scan.
const SCAN_MAX: u64 = 1_000;
/// The maximum number of rows that clients scan.
const SCANNED_MAX: u64 = 4;
/// The maximum number of transactions in a chain between the two rows that a client updates one
/// after the other.
const LINKS_MAX: u64 = 3;
/// The percentage of writes that delete their row instead, except in the mix of ranges, which has
/// its own, and in chains.
const DELETE_PERCENT: u64 = 10;
/// The minimum number of rows in use at a time, so that each has a next one.
const ROWS_MIN: u64 = 2;

/// The mix of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Random reads and writes.
    Register,
    /// One write, or reads of several rows.
    LongFork,
    /// Reads of two rows and a write of one.
    WriteSkew,
    /// A write of one row and a read of the next.
    Cycle,
    /// Scans with inserts and deletes.
    Ranges,
    /// Updates of a row and the next one, and of two rows one after the other.
    Chain,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Self; 6] =
        [Self::Register, Self::LongFork, Self::WriteSkew, Self::Cycle, Self::Ranges, Self::Chain];

    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::LongFork => "long-fork",
            Self::WriteSkew => "write-skew",
            Self::Cycle => "cycle",
            Self::Ranges => "ranges",
            Self::Chain => "chain",
        }
    }
}

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Registers {
    mix: Mix,
    rows: u64,
}

/// An operation of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets the value of a row, whether the row exists or not.
    Write {
        /// The row.
        row: u64,
        /// The value, which is unique in the run.
        value: u64,
    },
    /// Reads a row, and deletes it if it exists.
    Delete {
        /// The row.
        row: u64,
    },
    /// Reads a row.
    Read {
        /// The row.
        row: u64,
    },
    /// Reads the existing rows among `count` rows from `first` on.
    Scan {
        /// The first row.
        first: u64,
        /// The number of rows.
        count: u64,
        /// The direction, and the number of rows after which it ends.
        reach: Reach,
    },
}

/// A row's key.
pub fn key(row: u64) -> Key {
    Key::from(&row.to_be_bytes()[..])
}

fn range(first: u64, count: u64) -> KeyRange {
    let end = (first + count).to_be_bytes().to_vec();
    KeyRange { start: first.to_be_bytes().to_vec(), end: Some(end) }
}

/// Decodes the number and value of a row.
///
/// # Errors
/// If the bytes are malformed.
pub fn decode_row(key: &[u8], value: &[u8]) -> Result<(u64, u64), DecodeError> {
    let row = key.try_into().map_err(|_| DecodeError::new("row key"))?;
    let value = value.try_into().map_err(|_| DecodeError::new("row"))?;
    Ok((u64::from_be_bytes(row), u64::from_le_bytes(value)))
}

impl Op {
    const WRITE: u8 = 0;
    const DELETE: u8 = 1;
    const READ: u8 = 2;
    const SCAN: u8 = 3;
    const SCAN_AS_FAR: u8 = 4;

    /// Whether the operation changes its row.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Delete { .. })
    }

    fn encode(self, out: &mut Vec<u8>) {
        let (kind, row, more) = match self {
            Self::Write { row, value } => (Self::WRITE, row, Some(value)),
            Self::Delete { row } => (Self::DELETE, row, None),
            Self::Read { row } => (Self::READ, row, None),
            Self::Scan { first, count, reach: Reach::ALL } => (Self::SCAN, first, Some(count)),
            Self::Scan { first, count, .. } => (Self::SCAN_AS_FAR, first, Some(count)),
        };
        out.put_u8(kind);
        out.put_varint(row);
        more.into_iter().for_each(|more| out.put_varint(more));
        if let Self::Scan { reach, .. } = self
            && kind == Self::SCAN_AS_FAR
        {
            reach.encode(out);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = from.u8("operation")?;
        let row = from.varint("row")?;
        match kind {
            Self::WRITE => Ok(Self::Write { row, value: from.varint("value")? }),
            Self::DELETE => Ok(Self::Delete { row }),
            Self::READ => Ok(Self::Read { row }),
            Self::SCAN | Self::SCAN_AS_FAR => {
                let count = bounded(from.varint("count")?, 1, SCAN_MAX, "count of rows")?;
                bounded(row, 0, u64::MAX - count, "row")?;
                let is_all = kind == Self::SCAN;
                let reach = if is_all { Reach::ALL } else { Reach::decode(from)? };
                Ok(Self::Scan { first: row, count, reach })
            }
            _ => Err(DecodeError::new("operation")),
        }
    }
}

/// The arguments of [`Run`].
pub fn encode_ops(ops: &[Op]) -> Vec<u8> {
    super::encode_ops(ops, |op, out| op.encode(out))
}

/// Decodes the bytes that [`encode_ops`] wrote.
///
/// # Errors
/// If the bytes are malformed.
pub fn decode_ops(args: &[u8]) -> Result<Vec<Op>, DecodeError> {
    super::decode_ops(args, Op::decode)
}

/// Decodes the rows that each read, scan and delete of a committed transaction found, in their
/// order. A read or delete finds one row or none.
///
/// # Errors
/// If the bytes are malformed.
pub fn decode_found(result: &[u8]) -> Result<Vec<Vec<(u64, u64)>>, DecodeError> {
    let from = &mut Reader::new(result);
    let mut found = Vec::new();
    while !from.is_empty() {
        let count = from.count("rows")?;
        let row = |_| Ok((from.varint("row")?, from.u64("value")?));
        found.push((0..count).map(row).collect::<Result<_, DecodeError>>()?);
    }
    Ok(found)
}

impl Registers {
    /// Creates a mix over the number of rows given by the setting `lists`.
    ///
    /// # Errors
    /// If the number is less than two, or too large.
    pub fn new(mix: Mix, settings: &Settings) -> Result<Self, InvalidSettings> {
        setting("lists", settings.lists.into(), ROWS_MIN, 1_000_000)?;
        Ok(Self { mix, rows: settings.lists.into() })
    }

    /// The name on command lines.
    pub fn name(&self) -> &'static str {
        self.mix.name()
    }
}

impl Definition for Registers {
    const NAMES: &'static [&'static str] = &[
        Mix::Register.name(),
        Mix::LongFork.name(),
        Mix::WriteSkew.name(),
        Mix::Cycle.name(),
        Mix::Ranges.name(),
        Mix::Chain.name(),
    ];
    const IS_RECORDED: bool = true;

    type Generator = Generator;

    fn named(name: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(super::mix(&Mix::ALL, Mix::name, name), settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Run)]
    }

    fn generator(&self, client: Client) -> Generator {
        let registers = self.clone();
        Generator { registers, client: client.index, txns: 0, values: 0, then: None }
    }
}

impl Facts for Registers {
    fn name(&self) -> &'static str {
        self.mix.name()
    }

    fn is_of_histories(&self) -> bool {
        true
    }

    fn partitions(&self, shards: u16) -> Partitions {
        let by_hash = Partitions::new(shards, partition::Rule::OF_WHOLE_KEY);
        match self.mix {
            Mix::Chain => by_hash
                .with(REGISTERS, partition::Rule::Number { bytes: size_of::<u64>(), first: 0 }),
            _ => by_hash,
        }
    }

    fn procedures(&self) -> Vec<&'static str> {
        vec!["registers"]
    }

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        check(rows)
    }
}

impl Generate for Generator {
    fn next_call(&mut self, dice: &mut WorkloadRng, _: Timestamp) -> Call {
        self.next(dice)
    }
}

/// Generates one client's transactions.
#[derive(Clone, Debug)]
pub struct Generator {
    registers: Registers,
    client: u32,
    txns: u64,
    values: u32,
    /// In a chain: the row that the next transaction updates, after the one of the last.
    then: Option<u64>,
}

impl Generator {
    /// The operations of the next transaction, for clients that execute them themselves.
    pub fn next_ops(&mut self, dice: &mut WorkloadRng) -> Vec<Op> {
        let mut ops = self.drawn_ops(dice);
        // What follows is drawn last, so that a seed draws the same operations as before.
        let is_of_writes = !matches!(self.registers.mix, Mix::Ranges | Mix::Chain);
        for op in &mut ops {
            match op {
                Op::Write { row, .. } if is_of_writes && dice.percent(DELETE_PERCENT) => {
                    *op = Op::Delete { row: *row };
                }
                Op::Scan { reach, .. } => *reach = Reach::draw(dice),
                Op::Write { .. } | Op::Delete { .. } | Op::Read { .. } => {}
            }
        }
        if ops.iter().any(|op| matches!(op, Op::Delete { .. })) {
            let witness = WITNESSES | u64::from(self.client) << 32 | self.txns;
            ops.push(self.write(witness));
        }
        ops
    }

    fn drawn_ops(&mut self, dice: &mut WorkloadRng) -> Vec<Op> {
        let Registers { mix, rows } = self.registers;
        let base = self.txns / TXNS_PER_ERA * rows;
        self.txns += 1;
        let drawn = dice.below(rows);
        let row = |offset: u64| base + (drawn + offset) % rows;
        match mix {
            Mix::Register => self.register(base, dice),
            Mix::LongFork if dice.percent(40) => vec![self.write(row(0))],
            Mix::LongFork => {
                let count = dice.between(2, rows.min(4));
                (0..count).map(|offset| Op::Read { row: row(offset) }).collect()
            }
            Mix::WriteSkew => {
                let pair = [row(0), row(1)];
                let mut ops: Vec<Op> = pair.iter().map(|row| Op::Read { row: *row }).collect();
                if dice.percent(80) {
                    ops.push(self.write(pair[dice.below(2) as usize]));
                }
                ops
            }
            Mix::Cycle => {
                let mut ops = vec![self.write(row(0)), Op::Read { row: row(1) }];
                match dice.below(4) {
                    0 => ops.reverse(),
                    1..3 => ops.insert(0, Op::Read { row: row(0) }),
                    _ => {}
                }
                ops
            }
            Mix::Ranges => self.ranges(base, dice),
            Mix::Chain => self.chain(base, dice),
        }
    }

    fn register(&mut self, base: u64, dice: &mut WorkloadRng) -> Vec<Op> {
        let mut ops = Vec::new();
        for _ in 0..dice.between(1, 3) {
            let row = base + dice.below(self.registers.rows);
            match dice.below(10) {
                0..4 => ops.push(Op::Read { row }),
                4..8 => ops.extend([Op::Read { row }, self.write(row)]),
                _ => ops.push(self.write(row)),
            }
        }
        ops
    }

    fn ranges(&mut self, base: u64, dice: &mut WorkloadRng) -> Vec<Op> {
        let count = dice.between(1, self.registers.rows.min(SCANNED_MAX));
        let first = base + dice.below(self.registers.rows - count + 1);
        let scan = Op::Scan { first, count, reach: Reach::ALL };
        let mut ops = vec![scan];
        if dice.percent(30) {
            return ops;
        }
        for _ in 0..dice.between(1, 2) {
            let row = first + dice.below(count);
            let is_insert = dice.percent(60);
            ops.push(if is_insert { self.write(row) } else { Op::Delete { row } });
        }
        if dice.percent(20) {
            ops.push(scan);
        }
        ops
    }

    fn chain(&mut self, base: u64, dice: &mut WorkloadRng) -> Vec<Op> {
        if let Some(row) = self.then.take() {
            return vec![Op::Read { row }, self.write(row)];
        }
        let rows = self.registers.rows;
        let links = dice.between(1, (rows - 1).min(LINKS_MAX));
        let first = base + dice.below(rows - links);
        // A pair of updates stays in one era.
        let is_last_of_era = self.txns.is_multiple_of(TXNS_PER_ERA);
        match dice.below(10) {
            0..4 if !is_last_of_era => {
                let ends = [first, first + links];
                let at = dice.below(2) as usize;
                self.then = Some(ends[1 - at]);
                vec![Op::Read { row: ends[at] }, self.write(ends[at])]
            }
            4 => (first..=first + links).map(|row| Op::Read { row }).collect(),
            _ => {
                let pair = [first, first + 1];
                let reads = pair.map(|row| Op::Read { row });
                let writes = pair.map(|row| self.write(row));
                reads.into_iter().chain(writes).collect()
            }
        }
    }

    fn write(&mut self, row: u64) -> Op {
        self.values = self.values.checked_add(1).expect("the values of the client are exhausted");
        Op::Write { row, value: u64::from(self.client) << 32 | u64::from(self.values) }
    }

    fn next(&mut self, dice: &mut WorkloadRng) -> Call {
        let ops = self.next_ops(dice);
        let is_read_only = !ops.iter().any(Op::is_write);
        let label = if is_read_only { "read" } else { "write" };
        let args = Bytes::from(encode_ops(&ops));
        Call { procedure: "registers", args, label, is_read_only }
    }
}

/// Writes, deletes, reads and scans rows, according to its operations. Returns a result for
/// [`decode_found`].
#[derive(Clone, Copy, Debug)]
pub struct Run;

impl Run {
    fn read(cx: &mut dyn Context, row: u64) -> Result<Vec<(u64, u64)>, Stop> {
        let value = cx.get(REGISTERS, &key(row))?;
        let found = value.iter().map(|value| decode_row(&key(row), value));
        found.collect::<Result<_, _>>().map_err(malformed)
    }

    fn scan(
        cx: &mut dyn Context,
        (first, count): (u64, u64),
        reach: Reach,
    ) -> Result<Vec<(u64, u64)>, Stop> {
        let mut found = Vec::new();
        let visited = reach.scan(cx, REGISTERS, range(first, count), |key, value| {
            found.push(decode_row(key, value)?);
            Ok(())
        })?;
        visited.map(|()| found).map_err(malformed)
    }
}

impl Procedure for Run {
    fn name(&self) -> &str {
        "registers"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let mut result = Vec::new();
        for op in decode_ops(args).map_err(malformed)? {
            let found = match op {
                Op::Write { row, value } => {
                    cx.put(REGISTERS, key(row), Value::from(value.to_le_bytes().to_vec()))?;
                    continue;
                }
                Op::Delete { row } => {
                    let found = Self::read(cx, row)?;
                    if !found.is_empty() {
                        cx.delete(REGISTERS, key(row))?;
                    }
                    found
                }
                Op::Read { row } => Self::read(cx, row)?,
                Op::Scan { first, count, reach } => Self::scan(cx, (first, count), reach)?,
            };
            result.put_varint(found.len() as u64);
            for (row, value) in found {
                result.put_varint(row);
                result.put_u64(value);
            }
        }
        Ok(result)
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let (mut points, mut ranges) = (Vec::new(), Vec::new());
        for op in decode_ops(args).unwrap_or_default() {
            let mut point =
                |row, mode| points.push(PointLock { table: REGISTERS, key: key(row), mode });
            match op {
                Op::Write { row, .. } | Op::Delete { row } => point(row, LockMode::Exclusive),
                Op::Read { row } => point(row, LockMode::Shared),
                Op::Scan { first, count, .. } => {
                    let (range, mode) = (range(first, count), LockMode::Shared);
                    ranges.push(RangeLock { table: REGISTERS, range, mode });
                }
            }
        }
        Some(Footprint::new(points, ranges))
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        decode_ops(args).is_ok_and(|ops| !ops.iter().any(Op::is_write))
    }
}

/// Checks that no value is in two rows.
fn check(rows: &dyn Rows) -> Result<Report, Violation> {
    let rule = Rule { rule: "registers", place: &"the table" };
    let mut all = Vec::new();
    let mut unreadable = Ok(());
    rows.scan(REGISTERS, &KeyRange::all(), &mut |key, value| {
        match decode_row(key, value) {
            Ok((_, value)) => all.push(value),
            Err(error) => unreadable = Err(error),
        }
        ControlFlow::Continue(())
    });
    rule.readable(unreadable)?;
    let there = all.len() as i64;
    all.sort_unstable();
    all.dedup();
    let rule = Rule { rule: "registers: values are unique", ..rule };
    rule.equal(("values", there), ("distinct values", all.len() as i64))?;
    let mut report = Report::default();
    report.count("rows", there);
    Ok(report)
}

#[cfg(test)]
mod tests;
