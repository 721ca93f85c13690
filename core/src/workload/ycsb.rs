//! YCSB: Yahoo's cloud serving benchmark (Cooper et al., SoCC 2010), with ten operations in a
//! transaction.
//!
//! There is one table of rows with keys of ten decimal digits and values of `value_len` random
//! bytes. The six mixes are those of the paper:
//!
//! | mix | operations | keys |
//! |---|---|---|
//! | A | 50 % reads, 50 % updates | Zipf |
//! | B | 95 % reads, 5 % updates | Zipf |
//! | C | reads | Zipf |
//! | D | 95 % reads, 5 % inserts | the latest rows |
//! | E | 95 % scans of 1 to 100 rows, 5 % inserts | Zipf |
//! | F | 50 % reads, 50 % read-modify-writes | Zipf |
//!
//! An update is a blind write of the whole value, as in the evaluation of Minerva (§6). A
//! read-modify-write stores the row's counter plus one in the first eight bytes of the new value,
//! so that the sum of the counters reveals a lost update. A lost blind write is visible until
//! another write of the row follows (`writes`). Values are arguments of the call, as a client would
//! send them, and reads return the values read.
//!
//! With [`Settings::long`], that percentage of the transactions is long, with `long_times` as many
//! operations of the same mix. This is an extension of YCSB.
//!
//! A fixed hash scatters the ranks of Zipf's law over the key space, so that hot rows are not
//! adjacent. Two ranks may map to the same row, as in the original. Inserted rows follow the loaded
//! ones: client `c` of `n` inserts rows `rows + c`, `rows + c + n`, and so on. A client assumes
//! that the other clients have inserted as many rows as itself, so some of "the latest" rows of mix
//! D may not exist yet. Reading a missing row is a read like any other. A scan of `n` rows covers
//! `n` row numbers, so that its footprint follows from its arguments.

mod load;
mod writes;

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::commits::{Commits, Watch};
use super::definition::{Definition, Facts, Generate};
use super::rng::{WorkloadRng, scatter};
use super::zipf::Zipf;
use super::{
    Call, Client, InvalidSettings, Settings, bounded, ended, malformed, setting, setting_zipf,
};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Direction, Key, KeyRange};
use crate::time::Timestamp;
use crate::txn::{Context, Footprint, LockMode, PointLock, Procedure, RangeLock, Scan, Stop};
use crate::value::Value;
pub use load::Load;
use load::LoadArgs;
pub(super) use writes::written;
pub use writes::{check_newest, mark, marks_read, reads_of};

/// Ten decimal digits to value.
pub const ROWS: TableId = TableId(62);

/// The number of operations in a transaction.
pub const OPS_PER_TXN: usize = 10;
/// Row numbers have ten digits.
const ROW_END: u64 = 10_000_000_000;
const KEY_LEN: usize = 10;
/// The maximum number of rows that clients scan.
const SCAN_ROWS_MAX: u64 = 100;
/// The maximum number of operations that the program accepts in a transaction.
const OPS_ACCEPTED_MAX: usize = 1_000;
/// The maximum number of rows that one load call writes.
const LOAD_ROWS_MAX: u64 = 10_000;
/// The maximum number of value bytes that one load call writes.
const LOAD_BYTES_MAX: u64 = 10_000_000;
const VALUE_LEN_MAX: u64 = 1_000_000;
/// The maximum number of value bytes that a long transaction may write: well below the limit of a
/// transaction.
const LONG_BYTES_MAX: u64 = 16_000_000;
/// The maximum length of an operation without its value: the kind, the row, and the length of the
/// scan or value.
const OP_LEN_MAX: usize = 1 + 5 + 3;
/// The length of the counter at the start of a value.
const COUNTER_LEN: usize = 8;

/// The mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Update heavy.
    A,
    /// Read mostly.
    B,
    /// Read only.
    C,
    /// Read latest.
    D,
    /// Short ranges.
    E,
    /// Read-modify-write.
    F,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];

    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "ycsb-a",
            Self::B => "ycsb-b",
            Self::C => "ycsb-c",
            Self::D => "ycsb-d",
            Self::E => "ycsb-e",
            Self::F => "ycsb-f",
        }
    }
}

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Ycsb {
    mix: Mix,
    seed: u64,
    rows: u64,
    value_len: u32,
    zipf: f64,
    /// The percentage of long transactions, and the factor by which they have more operations.
    long: (u32, u32),
}

impl Ycsb {
    /// Creates a mix with the number of rows and the skew in the settings.
    ///
    /// # Errors
    /// If a setting is out of its bounds.
    pub fn new(mix: Mix, settings: &Settings) -> Result<Self, InvalidSettings> {
        let Settings { seed, rows, value_len, zipf, long, long_times, .. } = *settings;
        setting("rows", rows, 1, ROW_END / 2)?;
        setting("value_len", value_len.into(), COUNTER_LEN as u64, VALUE_LEN_MAX)?;
        setting_zipf(zipf)?;
        setting("long", long.into(), 0, 100)?;
        let times_max = OPS_ACCEPTED_MAX / OPS_PER_TXN;
        setting("long_times", long_times.into(), 1, times_max as u64)?;
        let ops = u64::from(long_times) * OPS_PER_TXN as u64;
        if long > 0 && ops * u64::from(value_len) > LONG_BYTES_MAX {
            return Err(InvalidSettings(format!(
                "long_times is {long_times} and value_len {value_len}: a transaction would write \
                 up to {} MB; the limit is {} MB",
                ops * u64::from(value_len) / 1_000_000,
                LONG_BYTES_MAX / 1_000_000
            )));
        }
        Ok(Self { mix, seed, rows, value_len, zipf, long: (long, long_times) })
    }
}

impl Definition for Ycsb {
    const NAMES: &'static [&'static str] =
        &[Mix::A.name(), Mix::B.name(), Mix::C.name(), Mix::D.name(), Mix::E.name(), Mix::F.name()];

    type Generator = Generator;

    fn named(name: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(super::mix(&Mix::ALL, Mix::name, name), settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Run), Arc::new(Load)]
    }

    fn generator(&self, client: Client) -> Generator {
        let zipf = Zipf::new(self.rows, self.zipf);
        Generator { ycsb: self.clone(), client, zipf, inserts: 0 }
    }
}

impl Facts for Ycsb {
    fn name(&self) -> &'static str {
        self.mix.name()
    }

    fn load_calls(&self) -> Vec<Call> {
        let step = (LOAD_BYTES_MAX / u64::from(self.value_len)).clamp(1, LOAD_ROWS_MAX);
        let call = |k| {
            let (start, value_len, seed) = (k * step, self.value_len, self.seed);
            let args = LoadArgs { start, end: self.rows.min(start + step), value_len, seed };
            let args = Bytes::from(args.encode());
            Call { procedure: "ycsb_load", args, label: "load", is_read_only: false }
        };
        (0..self.rows.div_ceil(step)).map(call).collect()
    }

    fn procedures(&self) -> Vec<&'static str> {
        vec!["ycsb"]
    }

    /// Checks that all loaded rows exist, with values of the right length.
    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        let mut report = Report::default();
        let (mut loaded, mut wrong_len, mut increments) = (0, 0, 0_i64);
        let end_loaded = key(self.rows);
        rows.scan(ROWS, &KeyRange::all(), &mut |key, value| {
            loaded += i64::from(key < end_loaded.as_bytes());
            wrong_len += i64::from(value.len() != self.value_len as usize);
            increments = increments.wrapping_add(counter(value) as i64);
            report.count(ROWS_THERE, 1);
            ControlFlow::Continue(())
        });
        let rule = Rule { rule: "YCSB", place: &"the table" };
        rule.equal(("loaded rows there", loaded), ("rows loaded", self.rows as i64))?;
        rule.equal(("values of another length", wrong_len), ("allowed", 0))?;
        if self.mix == Mix::F {
            report.count(INCREMENTS, increments);
        }
        Ok(report)
    }

    fn watch(&self) -> Watch {
        self.watched()
    }

    fn check_commits(
        &self,
        rule: &Rule<'_>,
        fact: &dyn Fn(&str) -> i64,
        rows: &dyn Rows,
        commits: &Commits,
    ) -> Result<(), Violation> {
        self.check_written(rule, fact, rows, commits)
    }
}

impl Generate for Generator {
    fn next_call(&mut self, dice: &mut WorkloadRng, _: Timestamp) -> Call {
        self.next(dice)
    }
}

/// The name of the sum of all rows' counters in a report.
const INCREMENTS: &str = "increments";
/// The name of the number of rows in a report. Includes inserted rows.
const ROWS_THERE: &str = "rows";

/// The key of a row.
pub fn key(row: u64) -> Key {
    Key::from(&digits(row)[..])
}

fn digits(row: u64) -> [u8; KEY_LEN] {
    assert!(row < ROW_END, "row numbers have ten digits");
    let mut digits = [b'0'; KEY_LEN];
    let mut rest = row;
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    digits
}

/// The number of read-modify-writes of the row with this value.
fn counter(value: &[u8]) -> u64 {
    value.first_chunk::<COUNTER_LEN>().map_or(0, |counter| u64::from_le_bytes(*counter))
}

/// Generates one client's transactions.
#[derive(Clone, Debug)]
pub struct Generator {
    ycsb: Ycsb,
    client: Client,
    zipf: Zipf,
    /// The number of rows that this client has inserted.
    inserts: u64,
}

impl Generator {
    fn next(&mut self, dice: &mut WorkloadRng) -> Call {
        let percent = match self.ycsb.mix {
            Mix::A | Mix::F => 50,
            Mix::B | Mix::D | Mix::E => 5,
            Mix::C => 0,
        };
        let (long, times) = self.ycsb.long;
        if long > 0 && dice.percent(long.into()) {
            let ops = OPS_PER_TXN * times as usize;
            let writes: Vec<bool> = (0..ops).map(|_| dice.percent(percent)).collect();
            return self.call(&writes, ["long-read", "long-write"], dice);
        }
        let writes: [bool; OPS_PER_TXN] = std::array::from_fn(|_| dice.percent(percent));
        self.call(&writes, ["read", "write"], dice)
    }

    /// A call with one operation for each element of `writes`. The labels are for a read-only call
    /// and for one that writes.
    fn call(&mut self, writes: &[bool], labels: [&'static str; 2], dice: &mut WorkloadRng) -> Call {
        let values = writes.iter().filter(|writes| **writes).count();
        let is_read_only = values == 0;
        let len = values * self.ycsb.value_len as usize + writes.len() * OP_LEN_MAX;
        let mut args = Vec::with_capacity(len);
        args.put_varint(writes.len() as u64);
        writes.iter().for_each(|writes| self.put_op(*writes, dice, &mut args));
        let label = labels[usize::from(!is_read_only)];
        Call { procedure: "ycsb", args: Bytes::from(args), label, is_read_only }
    }

    /// Appends one operation.
    fn put_op(&mut self, writes: bool, dice: &mut WorkloadRng, out: &mut Vec<u8>) {
        let kind = match (self.ycsb.mix, writes) {
            (Mix::E, false) => Op::SCAN,
            (_, false) => Op::READ,
            (Mix::F, true) => Op::MODIFY,
            (_, true) => Op::WRITE,
        };
        out.put_u8(kind);
        match (self.ycsb.mix, writes) {
            (Mix::D | Mix::E, true) => out.put_varint(self.insert()),
            (Mix::D, false) => out.put_varint(self.latest(dice)),
            _ => out.put_varint(scatter(self.zipf.draw(dice)) % self.ycsb.rows),
        }
        if kind == Op::SCAN {
            out.put_varint(dice.between(1, SCAN_ROWS_MAX));
        }
        if writes {
            let len = self.ycsb.value_len as usize;
            out.put_varint(len as u64);
            dice.bytes(len, out);
        }
    }

    fn insert(&mut self) -> u64 {
        let row = self.inserts * u64::from(self.client.clients) + u64::from(self.client.index);
        self.inserts += 1;
        // A run would have to insert billions of rows to wrap around.
        self.ycsb.rows + row % (ROW_END - self.ycsb.rows)
    }

    fn latest(&self, dice: &mut WorkloadRng) -> u64 {
        let end = self.ycsb.rows + self.inserts * u64::from(self.client.clients);
        end.min(ROW_END) - 1 - self.zipf.draw(dice)
    }
}

/// A decoded operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Reads a row.
    Read {
        /// The row.
        row: u64,
    },
    /// Writes a row, whether it exists or not.
    Write {
        /// The row.
        row: u64,
        /// The new value.
        value: &'a [u8],
    },
    /// Reads a row's counter, and writes the row with the counter plus one.
    Modify {
        /// The row.
        row: u64,
        /// The new value, except for the counter.
        value: &'a [u8],
    },
    /// Reads the rows with these numbers.
    Scan {
        /// The first row.
        row: u64,
        /// The number of rows.
        rows: u64,
    },
}

impl<'a> Op<'a> {
    const READ: u8 = 0;
    const WRITE: u8 = 1;
    const MODIFY: u8 = 2;
    const SCAN: u8 = 3;

    fn decode(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let kind = from.u8("operation")?;
        let row = bounded(from.varint("row")?, 0, ROW_END - 1, "row")?;
        let value = |from: &mut Reader<'a>| {
            let value = from.bytes("value")?;
            bounded(value.len() as u64, COUNTER_LEN as u64, VALUE_LEN_MAX, "value length")?;
            Ok(value)
        };
        Ok(match kind {
            Self::READ => Self::Read { row },
            Self::WRITE => Self::Write { row, value: value(from)? },
            Self::MODIFY => Self::Modify { row, value: value(from)? },
            Self::SCAN => {
                let rows = bounded(from.varint("scan")?, 1, SCAN_ROWS_MAX, "scan")?;
                Self::Scan { row, rows }
            }
            _ => return Err(DecodeError::new("operation")),
        })
    }

    fn range(row: u64, rows: u64) -> KeyRange {
        let end = (row + rows < ROW_END).then(|| digits(row + rows).to_vec());
        KeyRange { start: digits(row).to_vec(), end }
    }
}

/// Decodes the operations in the arguments of [`Run`], for use with other databases.
///
/// # Errors
/// If the arguments are malformed.
pub fn operations(args: &[u8]) -> Result<Vec<Op<'_>>, DecodeError> {
    let mut all = Vec::with_capacity(OPS_PER_TXN);
    for_each_op::<DecodeError>(args, |op| {
        all.push(op);
        Ok(())
    })?;
    Ok(all)
}

/// Calls `visit` with each operation in the arguments, in a single pass. Operations before an error
/// are therefore visited too; this is harmless, because [`Run::run`] aborts.
fn for_each_op<'a, E: From<DecodeError>>(
    args: &'a [u8],
    mut visit: impl FnMut(Op<'a>) -> Result<(), E>,
) -> Result<(), E> {
    let from = &mut Reader::new(args);
    let count = from.count("operations")?;
    bounded(count as u64, 0, OPS_ACCEPTED_MAX as u64, "count of operations")?;
    for _ in 0..count {
        visit(Op::decode(from)?)?;
    }
    Ok(ended(from, "operations")?)
}

/// A stop, or a malformed argument, which becomes a stop.
struct Ended(Stop);

impl From<DecodeError> for Ended {
    fn from(error: DecodeError) -> Self {
        Self(malformed(error))
    }
}

impl From<Stop> for Ended {
    fn from(stop: Stop) -> Self {
        Self(stop)
    }
}

/// Runs the operations in its arguments. Returns the value of each read (empty if the row does not
/// exist) and the values of each scan, all prefixed by their lengths.
#[derive(Clone, Copy, Debug)]
pub struct Run;

impl Run {
    fn run_op(cx: &mut dyn Context, op: Op<'_>, result: &mut Vec<u8>) -> Result<(), Stop> {
        match op {
            Op::Read { row } => {
                let value = cx.get(ROWS, &digits(row))?;
                result.put_bytes(value.as_deref().unwrap_or(&[]));
            }
            Op::Write { row, value } => cx.put(ROWS, key(row), Value::copy_from(value))?,
            Op::Modify { row, value } => {
                let before = cx.get(ROWS, &digits(row))?.map_or(0, |value| counter(&value));
                let mut value = value.to_vec();
                value[..COUNTER_LEN].copy_from_slice(&before.wrapping_add(1).to_le_bytes());
                cx.put(ROWS, key(row), Value::from(value))?;
            }
            Op::Scan { row, rows } => {
                let range = Op::range(row, rows);
                let scan = Scan { table: ROWS, range, direction: Direction::Forward };
                cx.scan(&scan, &mut |_, value| {
                    result.put_bytes(value);
                    ControlFlow::Continue(())
                })?;
            }
        }
        Ok(())
    }
}

impl Procedure for Run {
    fn name(&self) -> &str {
        "ycsb"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let mut result = Vec::new();
        let ran = for_each_op(args, |op| Self::run_op(cx, op, &mut result).map_err(Ended));
        ran.map_err(|Ended(stop)| stop)?;
        Ok(result)
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn hint(&self, args: &[u8], name: &mut dyn FnMut(TableId, &[u8])) {
        let _ = for_each_op::<DecodeError>(args, |op| {
            if let Op::Read { row } | Op::Write { row, .. } | Op::Modify { row, .. } = op {
                name(ROWS, &key(row));
            }
            Ok(())
        });
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let (mut points, mut ranges) = (Vec::with_capacity(OPS_PER_TXN), Vec::new());
        let mut point = |row, mode| points.push(PointLock { table: ROWS, key: key(row), mode });
        // A run with malformed arguments executes the operations before the error, so the footprint
        // includes them.
        let _ = for_each_op::<DecodeError>(args, |op| {
            match op {
                Op::Read { row } => point(row, LockMode::Shared),
                Op::Write { row, .. } => point(row, LockMode::Write),
                Op::Modify { row, .. } => point(row, LockMode::Exclusive),
                Op::Scan { row, rows } => {
                    let range = Op::range(row, rows);
                    ranges.push(RangeLock { table: ROWS, range, mode: LockMode::Shared });
                }
            }
            Ok(())
        });
        Some(Footprint::new(points, ranges))
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        let mut is_read_only = true;
        let decoded = for_each_op::<DecodeError>(args, |op| {
            is_read_only &= matches!(op, Op::Read { .. } | Op::Scan { .. });
            Ok(())
        });
        decoded.is_ok() && is_read_only
    }
}

#[cfg(test)]
mod tests;
