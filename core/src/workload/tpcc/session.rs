//! Common code of the five transactions: typed access to rows, and the selection of a customer.

use std::ops::ControlFlow;

use super::super::malformed;
use super::args::Who;
use super::rows::Row;
use super::tables::{self, CUSTOMER_BY_NAME, District};
use crate::ids::TableId;
use crate::key::{Direction, Key, KeyRange};
use crate::txn::{
    Abort, Adder, Context, Footprint, LockMode, PointLock, RangeLock, Scan, SqlState, Stop,
};
use crate::value::Value;

/// The approximate number of customers of one district with the same last name. Saves allocations.
const NAMESAKES_GUESS: usize = 16;
/// Most rows are shorter than this. In bytes.
const ROW_LEN_GUESS: usize = 128;

/// A context with typed access to rows.
pub struct Session<'a> {
    cx: &'a mut dyn Context,
    scratch: Vec<u8>,
}

/// Decodes a record.
pub fn row<'a, R: Row<'a>>(record: &'a [u8]) -> Result<R, Stop> {
    R::decode(record).map_err(malformed)
}

impl<'a> Session<'a> {
    /// Creates a session on `cx`.
    pub fn new(cx: &'a mut dyn Context) -> Self {
        Self { cx, scratch: Vec::with_capacity(ROW_LEN_GUESS) }
    }

    /// Names rows that are about to be read.
    pub fn fetch(&mut self, rows: &[(TableId, Key)]) {
        self.cx.fetch(rows);
    }

    /// Names rows that are about to be written without having been read.
    pub fn fetch_to_write(&mut self, rows: &[(TableId, Key)]) {
        self.cx.fetch_to_write(rows);
    }

    /// A record, if it exists.
    pub fn find(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        self.cx.get(table, key)
    }

    /// A record, which must exist.
    pub fn record(&mut self, table: TableId, key: &[u8]) -> Result<Value, Stop> {
        self.cx.get(table, key)?.ok_or_else(|| missing(table, key))
    }

    /// A row without strings, which must exist.
    pub fn row<R: for<'r> Row<'r>>(&mut self, table: TableId, key: &[u8]) -> Result<R, Stop> {
        row(&self.record(table, key)?)
    }

    /// Writes a row.
    pub fn put<'r>(&mut self, table: TableId, key: &[u8], row: &impl Row<'r>) -> Result<(), Stop> {
        self.scratch.clear();
        row.encode(&mut self.scratch);
        self.cx.put(table, Key::from(key), Value::copy_from(&self.scratch))
    }

    /// Adds to a row, which must exist.
    pub fn add(
        &mut self,
        table: TableId,
        key: &[u8],
        adder: &dyn Adder,
        amount: &[u8],
    ) -> Result<(), Stop> {
        match self.cx.add(table, Key::from(key), adder, amount)? {
            true => Ok(()),
            false => Err(missing(table, key)),
        }
    }

    /// Writes a record.
    pub fn put_record(&mut self, table: TableId, key: Key, record: &[u8]) -> Result<(), Stop> {
        self.cx.put(table, key, Value::copy_from(record))
    }

    /// Deletes a record.
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        self.cx.delete(table, Key::from(key))
    }

    /// Visits the records of a range in ascending order, until `visit` fails.
    pub fn scan(
        &mut self,
        table: TableId,
        range: KeyRange,
        mut visit: impl FnMut(&[u8], &Value) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let mut result = Ok(());
        let scan = Scan { table, range, direction: Direction::Forward };
        self.cx.scan(&scan, &mut |key, value| {
            result = visit(key, value);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result
    }

    /// The last number in the first key of a range, in this direction.
    pub fn first_number(
        &mut self,
        table: TableId,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Option<u32>, Stop> {
        let mut found = None;
        self.cx.scan(&Scan { table, range, direction }, &mut |key, _| {
            found = Some(tables::last_number(key));
            ControlFlow::Break(())
        })?;
        found.transpose().map_err(malformed)
    }

    /// The number of the selected customer. Among customers with the same last name, ordered by
    /// first name, it is the one at n / 2 rounded up (clauses 2.5.2.2 and 2.6.2.2).
    pub fn customer(&mut self, district: District, who: Who<'_>) -> Result<u32, Stop> {
        let last = match who {
            Who::Number(number) => return Ok(number),
            Who::LastName(last) => last,
        };
        let prefix = district.name_prefix(last);
        let mut namesakes = Vec::with_capacity(NAMESAKES_GUESS);
        self.scan(CUSTOMER_BY_NAME, KeyRange::prefix(&prefix), |key, _| {
            namesakes.push(tables::last_number(key).map_err(malformed)?);
            Ok(())
        })?;
        match namesakes.len().checked_sub(1) {
            Some(last_index) => Ok(namesakes[last_index / 2]),
            None => Err(missing(CUSTOMER_BY_NAME, &prefix)),
        }
    }
}

/// The abort of a program that needs a row that does not exist.
fn missing(table: TableId, key: &[u8]) -> Stop {
    let message = format!("row does not exist in table {table}");
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    Abort::new(SqlState::NO_DATA_FOUND, message).with_detail(format!("key {key}")).into()
}

/// A builder of footprints.
#[derive(Default)]
pub struct Touches {
    points: Vec<PointLock>,
    ranges: Vec<RangeLock>,
}

impl Touches {
    /// Creates an empty footprint with capacity for these numbers of keys and ranges.
    pub fn with_capacity(points: usize, ranges: usize) -> Self {
        Self { points: Vec::with_capacity(points), ranges: Vec::with_capacity(ranges) }
    }

    /// Adds a read of a key.
    pub fn reads(&mut self, table: TableId, key: &[u8]) {
        self.points.push(PointLock { table, key: Key::from(key), mode: LockMode::Shared });
    }

    /// Adds a write of a key, with or without a read.
    pub fn writes(&mut self, table: TableId, key: &[u8]) {
        self.points.push(PointLock { table, key: Key::from(key), mode: LockMode::Exclusive });
    }

    /// Adds reads within a range.
    pub fn reads_range(&mut self, table: TableId, range: KeyRange) {
        self.ranges.push(RangeLock { table, range, mode: LockMode::Shared });
    }

    /// Adds writes within a range, without reads.
    pub fn inserts_range(&mut self, table: TableId, range: KeyRange) {
        self.ranges.push(RangeLock { table, range, mode: LockMode::Write });
    }

    /// Adds writes within a range, with or without reads.
    pub fn writes_range(&mut self, table: TableId, range: KeyRange) {
        self.ranges.push(RangeLock { table, range, mode: LockMode::Exclusive });
    }

    /// The footprint.
    pub fn footprint(self) -> Footprint {
        Footprint::new(self.points, self.ranges)
    }
}
