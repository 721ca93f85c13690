//! Lists whose element order reveals the order of transactions.
//!
//! A transaction appends values to lists and reads lists. Every value is appended once in a run. A
//! list that is read therefore names all earlier transactions that appended to it, in order, and a
//! checker can reconstruct the dependencies (Kingsbury and Alvaro, "Elle", 2020). A range read
//! counts as a read of every list in it, including empty ones, so that a checker detects phantoms
//! like other anomalies. Half of them go backwards, and some end early.
//!
//! Lists grow, so clients change to new lists after [`TXNS_PER_ERA`] transactions. Clients of about
//! the same speed use the same lists at the same time.
//!
//! Some of the transactions that append also leave a note, under a name that depends on their reads
//! ([`Follow`]), and some of these delete another note. Their footprint does not follow from their
//! arguments.
//!
//! In the mix `list-add`, half of the transactions only append. Their program is divisible over
//! shards ([`Add`]), and conflicts with the others.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::definition::{Definition, Facts, Generate};
use super::rng::WorkloadRng;
use super::zipf::Zipf;
use super::{
    Call, Client, InvalidSettings, Reach, Settings, bounded, malformed, setting, setting_zipf,
};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::time::Timestamp;
use crate::txn::{
    Abort, Context, Footprint, LockMode, PointLock, Procedure, RangeLock, SqlState, Stop,
};
use crate::value::Value;

/// List number, big-endian, to the list, which [`decode_list`] decodes.
pub const LISTS: TableId = TableId(61);

/// The name of a note, a byte, to the value appended by the last transaction that left it.
pub const NOTES: TableId = TableId(63);
/// The number of different notes.
const NOTE_NAMES: u64 = 4;
/// One of this many notes deletes the one with the next name, whether there is one or not.
const NOTES_PER_DELETION: u64 = 3;
/// One of this many transactions of a client is a [`Follow`], if it appends.
const TXNS_PER_NOTE: u64 = 6;

/// The number of transactions after which a client changes to new lists.
pub const TXNS_PER_ERA: u64 = 50;
/// The maximum number of operations in a transaction.
const OPS_MAX: u64 = 5;
/// The maximum number of lists in a range read.
const RANGE_MAX: u64 = 1_000;
/// The maximum size of a list in bytes, so that a list that is never abandoned does not grow
/// forever.
const LIST_LEN_MAX: usize = 1 << 20;

/// In the mix `list-add`: the percentage of transactions that only append.
const ADD_PERCENT: u64 = 50;

/// The mix of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Appends and reads.
    Append,
    /// The same, and transactions that only append, by a divisible program.
    Add,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Self; 2] = [Self::Append, Self::Add];

    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Append => "list-append",
            Self::Add => "list-add",
        }
    }
}

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct ListAppend {
    mix: Mix,
    lists: u32,
    zipf: f64,
}

/// An operation of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Appends a value to a list.
    Append {
        /// The list.
        list: u64,
        /// The value, which is unique in the run.
        value: u64,
    },
    /// Reads a list.
    Read {
        /// The list.
        list: u64,
    },
    /// Reads `count` lists from `first` on, or as far as it reaches.
    ReadRange {
        /// The first list.
        first: u64,
        /// The number of lists.
        count: u64,
        /// The direction, and the number of lists that are not empty after which it ends.
        reach: Reach,
    },
}

/// A list that a transaction read, with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The list.
    pub list: u64,
    /// Its values, in order.
    pub values: Vec<u64>,
}

/// A list's key.
pub fn key(list: u64) -> Key {
    Key::from(&list.to_be_bytes()[..])
}

/// The keys of `count` lists from `first` on.
pub fn range(first: u64, count: u64) -> KeyRange {
    let end = first.checked_add(count).map(|end| end.to_be_bytes().to_vec());
    KeyRange { start: first.to_be_bytes().to_vec(), end }
}

/// The list of a key.
///
/// # Errors
/// If it is not the key of a list.
pub fn decode_key(key: &[u8]) -> Result<u64, DecodeError> {
    Ok(u64::from_be_bytes(key.try_into().map_err(|_| DecodeError::new("list key"))?))
}

/// Decodes the values in a list from its record. A missing record is an empty list.
///
/// # Errors
/// If the bytes are malformed.
pub fn decode_list(record: Option<&[u8]>) -> Result<Vec<u64>, DecodeError> {
    let (values, rest) = record.unwrap_or(&[]).as_chunks::<8>();
    match rest {
        [] => Ok(values.iter().map(|value| u64::from_le_bytes(*value)).collect()),
        _ => Err(DecodeError::new("list")),
    }
}

/// The record of a list after an append.
pub fn appended(record: Option<&[u8]>, value: u64) -> Value {
    let mut list = Vec::from(record.unwrap_or(&[]));
    list.put_u64(value);
    Value::from(list)
}

impl Op {
    const APPEND: u8 = 0;
    const READ: u8 = 1;
    const READ_RANGE: u8 = 2;
    const READ_AS_FAR: u8 = 3;

    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Append { list, value } => {
                out.put_u8(Self::APPEND);
                out.put_varint(list);
                out.put_varint(value);
            }
            Self::Read { list } => {
                out.put_u8(Self::READ);
                out.put_varint(list);
            }
            Self::ReadRange { first, count, reach } => {
                // Logs of older versions have only whole ranges.
                let is_all = reach == Reach::ALL;
                out.put_u8(if is_all { Self::READ_RANGE } else { Self::READ_AS_FAR });
                out.put_varint(first);
                out.put_varint(count);
                if !is_all {
                    reach.encode(out);
                }
            }
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = from.u8("operation")?;
        let list = from.varint("list")?;
        match kind {
            Self::APPEND => Ok(Self::Append { list, value: from.varint("value")? }),
            Self::READ => Ok(Self::Read { list }),
            Self::READ_RANGE | Self::READ_AS_FAR => {
                let count = bounded(from.varint("count")?, 1, RANGE_MAX, "count of lists")?;
                bounded(list, 0, u64::MAX - count, "list")?;
                let is_all = kind == Self::READ_RANGE;
                let reach = if is_all { Reach::ALL } else { Reach::decode(from)? };
                Ok(Self::ReadRange { first: list, count, reach })
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

/// Decodes the lists that a committed transaction read, in the order of its reads. A range read
/// counts as a read of each of its lists, up to the one at which it ended.
///
/// # Errors
/// If the bytes are malformed.
pub fn decode_reads(result: &[u8]) -> Result<Vec<Read>, DecodeError> {
    let from = &mut Reader::new(result);
    let mut reads = Vec::new();
    while !from.is_empty() {
        let list = from.varint("list")?;
        reads.push(Read { list, values: decode_list(Some(from.bytes("list")?))? });
    }
    Ok(reads)
}

impl ListAppend {
    /// Creates a mix with the number of lists in the settings.
    ///
    /// # Errors
    /// If a setting is out of its bounds.
    pub fn new(mix: Mix, settings: &Settings) -> Result<Self, InvalidSettings> {
        setting("lists", settings.lists.into(), 1, 1_000_000)?;
        setting_zipf(settings.zipf)?;
        Ok(Self { mix, lists: settings.lists, zipf: settings.zipf })
    }
}

impl Definition for ListAppend {
    const NAMES: &'static [&'static str] = &[Mix::Append.name(), Mix::Add.name()];
    const IS_RECORDED: bool = true;

    type Generator = Generator;

    fn named(name: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(super::mix(&Mix::ALL, Mix::name, name), settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Run), Arc::new(Follow), Arc::new(Add)]
    }

    fn generator(&self, client: Client) -> Generator {
        let zipf = Zipf::new(self.lists.into(), self.zipf);
        Generator { mix: self.mix, client: client.index, zipf, txns: 0, values: 0 }
    }
}

impl Facts for ListAppend {
    fn name(&self) -> &'static str {
        self.mix.name()
    }

    fn is_of_histories(&self) -> bool {
        true
    }

    fn procedures(&self) -> Vec<&'static str> {
        match self.mix {
            Mix::Append => vec!["list_append", "list_follow"],
            Mix::Add => vec!["list_append", "list_follow", "list_add"],
        }
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
    mix: Mix,
    client: u32,
    zipf: Zipf,
    txns: u64,
    values: u32,
}

impl Generator {
    /// The operations of the next transaction, for clients that execute them themselves.
    pub fn next_ops(&mut self, dice: &mut WorkloadRng) -> Vec<Op> {
        let lists = self.zipf.ranks();
        let first_of_era = self.txns / TXNS_PER_ERA * lists;
        self.txns += 1;
        let ops = (0..dice.between(1, OPS_MAX)).map(|_| {
            let offset = self.zipf.draw(dice);
            let list = first_of_era + offset;
            match dice.below(20) {
                0..10 => self.append(list),
                10..18 => Op::Read { list },
                _ => {
                    let count = dice.between(1, (lists - offset).min(8));
                    Op::ReadRange { first: list, count, reach: Reach::ALL }
                }
            }
        });
        let mut ops: Vec<Op> = ops.collect();
        // Drawn last, so that a seed draws the same operations as before.
        for op in &mut ops {
            if let Op::ReadRange { reach, .. } = op {
                *reach = Reach::draw(dice);
            }
        }
        ops
    }

    fn append(&mut self, list: u64) -> Op {
        self.values = self.values.checked_add(1).expect("the values of the client are exhausted");
        Op::Append { list, value: u64::from(self.client) << 32 | u64::from(self.values) }
    }

    fn next(&mut self, dice: &mut WorkloadRng) -> Call {
        let mut ops = self.next_ops(dice);
        if self.mix == Mix::Add && dice.percent(ADD_PERCENT) {
            for op in &mut ops {
                if let Op::Read { list } | Op::ReadRange { first: list, .. } = *op {
                    *op = self.append(list);
                }
            }
            let args = Bytes::from(encode_ops(&ops));
            return Call { procedure: "list_add", args, label: "add", is_read_only: false };
        }
        let is_read_only = !ops.iter().any(is_append);
        let label = if is_read_only { "read" } else { "append" };
        let leaves_note = !is_read_only && self.txns.is_multiple_of(TXNS_PER_NOTE);
        let procedure = if leaves_note { "list_follow" } else { "list_append" };
        let args = Bytes::from(encode_ops(&ops));
        Call { procedure, args, label, is_read_only }
    }
}

fn is_append(op: &Op) -> bool {
    matches!(op, Op::Append { .. })
}

/// Appends to lists and reads them, according to its operations. Returns a result for
/// [`decode_reads`].
#[derive(Clone, Copy, Debug)]
pub struct Run;

impl Run {
    fn append(cx: &mut dyn Context, list: u64, value: u64) -> Result<(), Stop> {
        let key = key(list);
        let record = cx.get(LISTS, &key)?;
        if record.as_ref().is_some_and(|record| record.len() >= LIST_LEN_MAX) {
            return Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the list is full").into());
        }
        cx.put(LISTS, key, appended(record.as_deref(), value))
    }

    fn read_range(
        cx: &mut dyn Context,
        (first, count): (u64, u64),
        reach: Reach,
        result: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let mut found = Vec::new();
        let visited = reach.scan(cx, LISTS, range(first, count), |key, value| {
            found.push((decode_key(key)?, value.clone()));
            Ok(())
        })?;
        visited.map_err(malformed)?;
        let is_early = reach.is_over(found.len() as u64);
        let last = found.last().map(|(list, _)| *list).filter(|_| is_early);
        let mut found = found.into_iter().peekable();
        for list in reach.in_order(first, count) {
            let record = found.next_if(|(there, _)| *there == list);
            result.put_varint(list);
            result.put_bytes(record.as_ref().map_or(&[], |(_, value)| value));
            if last == Some(list) {
                break;
            }
        }
        Ok(())
    }
}

impl Procedure for Run {
    fn name(&self) -> &str {
        "list_append"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let mut result = Vec::new();
        for op in decode_ops(args).map_err(malformed)? {
            match op {
                Op::Append { list, value } => Self::append(cx, list, value)?,
                Op::Read { list } => {
                    let record = cx.get(LISTS, &key(list))?;
                    result.put_varint(list);
                    result.put_bytes(record.as_deref().unwrap_or(&[]));
                }
                Op::ReadRange { first, count, reach } => {
                    Self::read_range(cx, (first, count), reach, &mut result)?;
                }
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
                |list, mode| points.push(PointLock { table: LISTS, key: key(list), mode });
            match op {
                Op::Append { list, .. } => point(list, LockMode::Exclusive),
                Op::Read { list } => point(list, LockMode::Shared),
                Op::ReadRange { first, count, .. } => {
                    let range = range(first, count);
                    ranges.push(RangeLock { table: LISTS, range, mode: LockMode::Shared });
                }
            }
        }
        Some(Footprint::new(points, ranges))
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        decode_ops(args).is_ok_and(|ops| !ops.iter().any(is_append))
    }
}

/// Like [`Run`], and leaves a note under a name that depends on its first append: on the value
/// before its own in the list. Its footprint is known only after a run, and another run may have a
/// different one.
#[derive(Clone, Copy, Debug)]
pub struct Follow;

impl Procedure for Follow {
    fn name(&self) -> &str {
        "list_follow"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let result = Run.run(args, cx)?;
        let ops = decode_ops(args).map_err(malformed)?;
        let append = ops.into_iter().find_map(|op| match op {
            Op::Append { list, value } => Some((list, value)),
            Op::Read { .. } | Op::ReadRange { .. } => None,
        });
        if let Some((list, value)) = append {
            let values = decode_list(cx.get(LISTS, &key(list))?.as_deref()).map_err(malformed)?;
            let before = values.into_iter().take_while(|there| *there != value).last();
            let name = [(before.unwrap_or(0) % NOTE_NAMES) as u8];
            cx.put(NOTES, Key::from(&name[..]), appended(None, value))?;
            if value.is_multiple_of(NOTES_PER_DELETION) {
                let next = [(name[0] + 1) % NOTE_NAMES as u8];
                cx.delete(NOTES, Key::from(&next[..]))?;
            }
        }
        Ok(result)
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        Run.is_read_only(args)
    }
}

/// Appends to lists, each by itself. Other operations, and appends to lists that are full, have no
/// effect, so that it never aborts.
#[derive(Clone, Copy, Debug)]
pub struct Add;

impl Procedure for Add {
    fn name(&self) -> &str {
        "list_add"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        for op in decode_ops(args).map_err(malformed)? {
            let Op::Append { list, value } = op else { continue };
            let record = cx.get(LISTS, &key(list))?;
            if record.as_ref().is_none_or(|record| record.len() < LIST_LEN_MAX) {
                cx.put(LISTS, key(list), appended(record.as_deref(), value))?;
            }
        }
        Ok(Vec::new())
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        Run.footprint(args)
    }

    fn is_divisible(&self, args: &[u8]) -> bool {
        decode_ops(args).is_ok()
    }
}

/// Checks that no value is in the lists twice, and that each note's transaction has appended to a
/// list.
fn check(rows: &dyn Rows) -> Result<Report, Violation> {
    let mut lists = Vec::new();
    rows.scan(LISTS, &KeyRange::all(), &mut |key, value| {
        lists.push((decode_key(key), value.clone()));
        ControlFlow::Continue(())
    });
    let mut report = Report::default();
    let mut all = Vec::new();
    for (list, record) in lists {
        let rule = Rule { rule: "list-append", place: &"a list" };
        let list = rule.readable(list)?;
        let place = format!("list {list}");
        let values = Rule { place: &place, ..rule }.readable(decode_list(Some(&record)))?;
        report.count("lists", 1);
        report.count("values", values.len() as i64);
        all.extend(values);
    }
    all.sort_unstable();
    let distinct = {
        let mut distinct = all.clone();
        distinct.dedup();
        distinct.len() as i64
    };
    let rule = Rule { rule: "list-append: values are unique", place: &"all lists" };
    rule.equal(("values", all.len() as i64), ("distinct values", distinct))?;
    let mut notes = Vec::new();
    rows.scan(NOTES, &KeyRange::all(), &mut |_, value| {
        notes.push(value.clone());
        ControlFlow::Continue(())
    });
    let rule = Rule { rule: "list-append: clients with a note have appended", place: &"all notes" };
    let mut known = 0;
    for note in &notes {
        let values = rule.readable(decode_list(Some(note)))?;
        known += i64::from(values.iter().all(|value| all.binary_search(value).is_ok()));
    }
    rule.equal(("notes", notes.len() as i64), ("notes with a known value", known))?;
    Ok(report)
}

#[cfg(test)]
mod tests;
