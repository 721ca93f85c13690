//! Tallies: rows to which transactions add, beside others that read, write, delete and insert them.
//!
//! Each increment adds 1 to a row, or to the pot if that row does not exist. Other transactions
//! move counts between rows and to the pot. So the sum of all rows is the number of committed
//! increments, at each isolation level. A row has a limit, so an addition may fail where the
//! transaction commits, although it was possible where it ran.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::commits::Commits;
use super::definition::{Definition, Facts, Generate};
use super::rng::WorkloadRng;
use super::{Call, Client, InvalidSettings, Settings, bounded, ended, malformed, setting};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Direction, Key, KeyRange};
use crate::time::Timestamp;
use crate::txn::{
    Abort, Adder, Context, Footprint, LockMode, PointLock, Procedure, RangeLock, Scan, SqlState,
    Stop,
};
use crate::value::Value;

/// Number, big-endian, to count and limit, little-endian.
pub const TALLIES: TableId = TableId(31);

/// The maximum number of tallies.
const TALLIES_MAX: u64 = 10_000;
/// The maximum number of increments of a transaction.
const INCREMENTS_MAX: u64 = 3;
/// The number of the pot, which always exists.
const POT: u64 = u64::MAX;
/// The limit of a tally. A few additions in a hundred exceed it.
const LIMIT: i64 = 20;
/// The name of the sum of all rows in a report.
const TALLIED: &str = "tallied";

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Tallies {
    tallies: u64,
}

/// The operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Op {
    /// Increments these tallies; one that is named twice, twice.
    Add(Vec<u64>),
    /// Increments a tally, reads it, writes it, and increments it again.
    Around(u64),
    /// Moves half of a tally to another one.
    Move(u64, u64),
    /// Moves a tally to the pot.
    Drain(u64),
    /// Deletes a tally, and moves its count to the pot.
    Delete(u64),
    /// Inserts a tally if it does not exist.
    Insert(u64),
    /// Reads all.
    Audit,
}

impl Op {
    const ADD: u8 = 0;
    const AROUND: u8 = 1;
    const MOVE: u8 = 2;
    const DRAIN: u8 = 3;
    const DELETE: u8 = 4;
    const INSERT: u8 = 5;
    const AUDIT: u8 = 6;

    fn encode(&self) -> Vec<u8> {
        let (kind, numbers) = match self {
            Self::Add(rows) => (Self::ADD, rows.clone()),
            Self::Around(row) => (Self::AROUND, vec![*row]),
            Self::Move(from, to) => (Self::MOVE, vec![*from, *to]),
            Self::Drain(row) => (Self::DRAIN, vec![*row]),
            Self::Delete(row) => (Self::DELETE, vec![*row]),
            Self::Insert(row) => (Self::INSERT, vec![*row]),
            Self::Audit => (Self::AUDIT, Vec::new()),
        };
        let mut args = vec![kind];
        args.put_varint(numbers.len() as u64);
        numbers.into_iter().for_each(|number| args.put_varint(number));
        args
    }

    fn decode(args: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "operation";
        let from = &mut Reader::new(args);
        let kind = from.u8(WHAT)?;
        let count = bounded(from.varint(WHAT)?, 0, INCREMENTS_MAX, "count of tallies")?;
        let row = |_| bounded(from.varint("tally")?, 0, TALLIES_MAX - 1, "tally");
        let rows = (0..count).map(row).collect::<Result<Vec<_>, _>>()?;
        ended(from, WHAT)?;
        Ok(match (kind, &rows[..]) {
            (Self::ADD, [_, ..]) => Self::Add(rows),
            (Self::AROUND, &[row]) => Self::Around(row),
            (Self::MOVE, &[from, to]) => Self::Move(from, to),
            (Self::DRAIN, &[row]) => Self::Drain(row),
            (Self::DELETE, &[row]) => Self::Delete(row),
            (Self::INSERT, &[row]) => Self::Insert(row),
            (Self::AUDIT, []) => Self::Audit,
            _ => return Err(DecodeError::new(WHAT)),
        })
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Add(rows) => ["add-1", "add-2", "add-3"][rows.len() - 1],
            Self::Around(_) => "around",
            Self::Move(..) => "move",
            Self::Drain(_) => "drain",
            Self::Delete(_) => "delete",
            Self::Insert(_) => "insert",
            Self::Audit => "audit",
        }
    }
}

/// The number of increments of a transaction.
fn increments_of(label: &str) -> i64 {
    match label {
        "add-1" => 1,
        "add-2" | "around" => 2,
        "add-3" => 3,
        _ => 0,
    }
}

impl Tallies {
    /// Creates the workload with the number of tallies given by the setting `lists`.
    ///
    /// # Errors
    /// If the number is zero or too large.
    pub fn new(settings: &Settings) -> Result<Self, InvalidSettings> {
        setting("lists", settings.lists.into(), 1, TALLIES_MAX)?;
        Ok(Self { tallies: settings.lists.into() })
    }
}

impl Definition for Tallies {
    const NAMES: &'static [&'static str] = &["tallies"];

    type Generator = Self;

    fn named(_: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Run), Arc::new(Load)]
    }

    fn generator(&self, _: Client) -> Self {
        self.clone()
    }
}

impl Facts for Tallies {
    fn name(&self) -> &'static str {
        "tallies"
    }

    fn load_calls(&self) -> Vec<Call> {
        let mut args = Vec::new();
        args.put_varint(self.tallies);
        let (procedure, args) = ("tallies_load", Bytes::from(args));
        vec![Call { procedure, args, label: "load", is_read_only: false }]
    }

    fn procedures(&self) -> Vec<&'static str> {
        vec!["tallies"]
    }

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        let rule = Rule { rule: "tallies", place: &"the table" };
        let (mut pots, mut sum, mut outside, mut unreadable) = (0, 0, 0, 0);
        rows.scan(TALLIES, &KeyRange::all(), &mut |row, value| {
            pots += i64::from(row == key(POT).as_bytes());
            match decode(value) {
                Ok((count, limit)) => {
                    sum += count;
                    outside += i64::from(!(0..=limit).contains(&count));
                }
                Err(_) => unreadable += 1,
            }
            ControlFlow::Continue(())
        });
        rule.equal(("unreadable tallies", unreadable), ("allowed", 0))?;
        rule.equal(("tallies outside of their limits", outside), ("allowed", 0))?;
        rule.equal(("pots", pots), ("loaded", 1))?;
        let mut report = Report::default();
        report.count(TALLIED, sum);
        Ok(report)
    }

    fn check_commits(
        &self,
        rule: &Rule<'_>,
        fact: &dyn Fn(&str) -> i64,
        _: &dyn Rows,
        commits: &Commits,
    ) -> Result<(), Violation> {
        let increments = commits.sum(increments_of);
        rule.within(("the sum of all tallies", fact(TALLIED)), "increments committed", increments)
    }
}

impl Generate for Tallies {
    fn next_call(&mut self, dice: &mut WorkloadRng, _: Timestamp) -> Call {
        let mut row = || dice.below(self.tallies);
        let (first, second, third) = (row(), row(), row());
        let op = match dice.below(20) {
            0..9 => {
                let count = dice.between(1, INCREMENTS_MAX) as usize;
                Op::Add([first, second, third][..count].to_vec())
            }
            9 => Op::Around(first),
            10..12 => Op::Move(first, second),
            12..15 => Op::Drain(first),
            15 => Op::Delete(first),
            16..19 => Op::Insert(first),
            _ => Op::Audit,
        };
        let (args, label, is_read_only) = (op.encode().into(), op.label(), op == Op::Audit);
        Call { procedure: "tallies", args, label, is_read_only }
    }
}

fn key(number: u64) -> Key {
    Key::from(&number.to_be_bytes()[..])
}

/// A count and its limit.
fn decode(row: &[u8]) -> Result<(i64, i64), DecodeError> {
    let from = &mut Reader::new(row);
    let (count, limit) = (from.u64("tally")? as i64, from.u64("tally")? as i64);
    ended(from, "tally")?;
    Ok((count, limit))
}

fn encode(count: i64, limit: i64) -> Value {
    let mut row = Vec::with_capacity(16);
    row.put_u64(count as u64);
    row.put_u64(limit as u64);
    Value::copy_from(&row)
}

/// Adds to a tally: the amount is a number, little-endian.
struct Tally;

impl Adder for Tally {
    fn name(&self) -> &str {
        "tally"
    }

    fn add(&self, row: &Value, amount: &[u8]) -> Result<Value, Abort> {
        let malformed =
            |error: DecodeError| Abort::new(SqlState::INTERNAL_ERROR, error.to_string());
        let (count, limit) = decode(row).map_err(malformed)?;
        let amount = Reader::new(amount).u64("amount").map_err(malformed)? as i64;
        match count.checked_add(amount).filter(|sum| *sum <= limit) {
            Some(sum) => Ok(encode(sum, limit)),
            None => Err(Abort::new(SqlState::RAISE_EXCEPTION, "the tally is full")),
        }
    }
}

/// Runs one operation. The result of an audit is the sum of all rows; of another one, whether the
/// tally existed.
#[derive(Clone, Copy, Debug)]
pub struct Run;

impl Run {
    /// Adds to a tally, or to the pot if there is no such tally. Returns whether there is.
    fn add(cx: &mut dyn Context, row: u64, amount: i64) -> Result<bool, Stop> {
        let amount = amount.to_le_bytes();
        let exists = cx.add(TALLIES, key(row), &Tally, &amount)?;
        if !exists && !cx.add(TALLIES, key(POT), &Tally, &amount)? {
            return Err(Abort::new(SqlState::NO_DATA_FOUND, "there is no pot").into());
        }
        Ok(exists)
    }

    /// The count of a tally, if it exists.
    fn count(cx: &mut dyn Context, row: u64) -> Result<Option<i64>, Stop> {
        let row = cx.get(TALLIES, &key(row))?;
        row.map(|row| Ok(decode(&row).map_err(malformed)?.0)).transpose()
    }

    fn around(cx: &mut dyn Context, row: u64) -> Result<bool, Stop> {
        let exists = Self::add(cx, row, 1)?;
        if let Some(count) = Self::count(cx, row)? {
            cx.put(TALLIES, key(row), encode(count, LIMIT))?;
        }
        Self::add(cx, row, 1)?;
        Ok(exists)
    }

    fn move_half(cx: &mut dyn Context, from: u64, to: u64) -> Result<bool, Stop> {
        let Some(count) = Self::count(cx, from)? else { return Ok(false) };
        let half = count / 2;
        cx.put(TALLIES, key(from), encode(count - half, LIMIT))?;
        Self::add(cx, to, half)?;
        Ok(true)
    }

    fn empty(cx: &mut dyn Context, row: u64, is_deleted: bool) -> Result<bool, Stop> {
        let Some(count) = Self::count(cx, row)? else { return Ok(false) };
        match is_deleted {
            true => cx.delete(TALLIES, key(row))?,
            false => cx.put(TALLIES, key(row), encode(0, LIMIT))?,
        }
        Self::add(cx, POT, count)?;
        Ok(true)
    }

    fn insert(cx: &mut dyn Context, row: u64) -> Result<bool, Stop> {
        let exists = Self::count(cx, row)?.is_some();
        if !exists {
            cx.put(TALLIES, key(row), encode(0, LIMIT))?;
        }
        Ok(exists)
    }

    fn audit(cx: &mut dyn Context) -> Result<i64, Stop> {
        let (mut sum, mut failed) = (0_i64, None);
        let range = KeyRange::all();
        let scan = Scan { table: TALLIES, range, direction: Direction::Forward };
        cx.scan(&scan, &mut |_, row| {
            match decode(row) {
                Ok((count, _)) => sum = sum.wrapping_add(count),
                Err(error) => failed = Some(error),
            }
            ControlFlow::Continue(())
        })?;
        failed.map_or(Ok(sum), |error| Err(malformed(error)))
    }
}

impl Procedure for Run {
    fn name(&self) -> &str {
        "tallies"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let exists = match Op::decode(args).map_err(malformed)? {
            Op::Add(rows) => {
                let mut exist = rows.into_iter().map(|row| Self::add(cx, row, 1));
                exist.try_fold(true, |all, exists| Ok::<_, Stop>(all & exists?))?
            }
            Op::Around(row) => Self::around(cx, row)?,
            Op::Move(from, to) => Self::move_half(cx, from, to)?,
            Op::Drain(row) => Self::empty(cx, row, false)?,
            Op::Delete(row) => Self::empty(cx, row, true)?,
            Op::Insert(row) => Self::insert(cx, row)?,
            Op::Audit => return Ok(Self::audit(cx)?.to_le_bytes().to_vec()),
        };
        Ok(vec![u8::from(exists)])
    }

    fn adders(&self) -> Vec<Arc<dyn Adder>> {
        vec![Arc::new(Tally)]
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        Op::decode(args) == Ok(Op::Audit)
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(op) = Op::decode(args) else { return Some(Footprint::default()) };
        let rows = match op {
            Op::Add(rows) => rows,
            Op::Move(from, to) => vec![from, to],
            Op::Around(row) | Op::Drain(row) | Op::Delete(row) | Op::Insert(row) => vec![row],
            Op::Audit => {
                let (range, mode) = (KeyRange::all(), LockMode::Shared);
                let all = RangeLock { table: TALLIES, range, mode };
                return Some(Footprint::new(Vec::new(), vec![all]));
            }
        };
        let lock = |row| PointLock { table: TALLIES, key: key(row), mode: LockMode::Exclusive };
        Some(Footprint::new(rows.into_iter().chain([POT]).map(lock).collect(), Vec::new()))
    }
}

/// Puts all tallies and the pot. Takes the number of tallies.
#[derive(Clone, Copy, Debug)]
pub struct Load;

impl Load {
    fn tallies(args: &[u8]) -> Result<u64, DecodeError> {
        let from = &mut Reader::new(args);
        let tallies = bounded(from.varint("tallies")?, 1, TALLIES_MAX, "tallies")?;
        ended(from, "tallies")?;
        Ok(tallies)
    }
}

impl Procedure for Load {
    fn name(&self) -> &str {
        "tallies_load"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let tallies = Self::tallies(args).map_err(malformed)?;
        (0..tallies).try_for_each(|row| cx.put(TALLIES, key(row), encode(0, LIMIT)))?;
        cx.put(TALLIES, key(POT), encode(0, i64::MAX))?;
        Ok(Vec::new())
    }

    fn is_bulk(&self, _: &[u8]) -> bool {
        true
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, _: &[u8]) -> Option<Footprint> {
        let (range, mode) = (KeyRange::all(), LockMode::Exclusive);
        Some(Footprint::new(Vec::new(), vec![RangeLock { table: TALLIES, range, mode }]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::{Bench, small};

    fn sum(bench: &Bench) -> i64 {
        bench.check().facts[TALLIED]
    }

    #[test]
    fn the_sum_of_all_rows_is_the_number_of_committed_increments() {
        let mut bench = Bench::new("tallies", &small());
        let ended = bench.run_many(2_000);
        let committed = |(label, (committed, _)): (&&str, &(u32, u32))| {
            increments_of(label) * i64::from(*committed)
        };
        assert_eq!(sum(&bench), ended.iter().map(committed).sum::<i64>());
        assert!(ended.len() == 9, "{ended:?}");
        let full: u32 = ended.values().map(|(_, aborted)| aborted).sum();
        assert!((10..200).contains(&full), "some tallies were full: {ended:?}");
    }

    #[test]
    fn an_increment_of_a_row_that_does_not_exist_is_in_the_pot() {
        let mut bench = Bench::new("tallies", &small());
        let mut run = |op: Op| bench.model.run(&Run, &op.encode()).expect("it commits")[0] == 1;
        assert!(run(Op::Add(vec![3, 3])) && run(Op::Move(3, 4)));
        assert!(run(Op::Delete(3)) && !run(Op::Add(vec![3])) && !run(Op::Delete(3)));
        assert!(!run(Op::Insert(3)) && run(Op::Insert(3)) && run(Op::Around(3)));
        let count = |row| decode(&bench.model.get(TALLIES, &key(row)).unwrap()).unwrap().0;
        assert_eq!([count(3), count(4), count(POT), sum(&bench)], [2, 1, 2, 5]);
    }

    #[test]
    fn a_lost_increment_and_a_doubled_one_are_found() {
        let mut bench = Bench::new("tallies", &small());
        bench.model.run(&Run, &Op::Add(vec![1]).encode()).expect("it commits");
        let report = bench.check();
        let commits = |committed| Commits {
            committed: [("add-1".to_owned(), committed)].into(),
            ..Commits::default()
        };
        let check =
            |committed| bench.workload.check_commits(&report, &bench.model, &commits(committed));
        assert_eq!(check(1), Ok(()));
        assert!(check(0).is_err() && check(2).is_err());
    }

    #[test]
    fn operations_are_decoded_as_they_were_encoded() {
        let all = [
            Op::Add(vec![1, 300, 1]),
            Op::Around(3),
            Op::Move(3, 2),
            Op::Drain(1),
            Op::Delete(1),
            Op::Insert(1),
            Op::Audit,
        ];
        for op in all {
            assert_eq!(Op::decode(&op.encode()), Ok(op));
        }
        for op in [Op::Add(vec![]), Op::Add(vec![1; 4]), Op::Drain(TALLIES_MAX)] {
            assert!(Op::decode(&op.encode()).is_err(), "{op:?}");
        }
    }
}
