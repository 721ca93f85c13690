//! What the five transactions share: typed access to rows, and how a customer is found.

use std::ops::ControlFlow;

use super::super::malformed;
use super::args::Who;
use super::rows::Row;
use super::tables::{self, CUSTOMER_BY_NAME, District};
use crate::ids::TableId;
use crate::key::{Direction, Key, KeyRange};
use crate::txn::{Abort, Context, Footprint, Mode, PointLock, RangeLock, Scan, SqlState, Stop};
use crate::value::Value;

/// Customers of one district who share a last name, about: a guess that saves allocations.
const NAMESAKES_GUESS: usize = 16;
/// Most rows are shorter than this.
const ROW_LEN_GUESS: usize = 128;

/// A context that speaks in rows.
pub struct Session<'a> {
    cx: &'a mut dyn Context,
    scratch: Vec<u8>,
}

/// Decodes a row that is there.
pub fn row<'a, R: Row<'a>>(record: &'a [u8]) -> Result<R, Stop> {
    R::decode(record).map_err(malformed)
}

impl<'a> Session<'a> {
    /// Speaks with `cx`.
    pub fn new(cx: &'a mut dyn Context) -> Self {
        Self { cx, scratch: Vec::with_capacity(ROW_LEN_GUESS) }
    }

    /// Says which rows are about to be read.
    pub fn fetch(&mut self, rows: &[(TableId, Key)]) {
        self.cx.fetch(rows);
    }

    /// Says which rows are about to be written that were not read.
    pub fn fetch_to_write(&mut self, rows: &[(TableId, Key)]) {
        self.cx.fetch_to_write(rows);
    }

    /// A record, if it is there.
    pub fn find(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        self.cx.get(table, key)
    }

    /// A record that must be there.
    pub fn record(&mut self, table: TableId, key: &[u8]) -> Result<Value, Stop> {
        self.cx.get(table, key)?.ok_or_else(|| missing(table, key))
    }

    /// A row without strings, which must be there.
    pub fn row<R: for<'r> Row<'r>>(&mut self, table: TableId, key: &[u8]) -> Result<R, Stop> {
        row(&self.record(table, key)?)
    }

    /// Writes a row.
    pub fn put<'r>(&mut self, table: TableId, key: &[u8], row: &impl Row<'r>) -> Result<(), Stop> {
        self.scratch.clear();
        row.encode(&mut self.scratch);
        self.cx.put(table, Key::from(key), Value::copy_from(&self.scratch))
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

    /// The last number in the first key of a range, from the given end.
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

    /// The number of the customer that is meant. Of those who share a last name, ordered by first
    /// name, the one at n / 2 rounded up (clauses 2.5.2.2 and 2.6.2.2).
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

/// What becomes of a program that needs a row that is not there.
fn missing(table: TableId, key: &[u8]) -> Stop {
    let message = format!("there is no such row in table {table}");
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    Abort::new(SqlState::NO_DATA_FOUND, message).with_detail(format!("key {key}")).into()
}

/// A footprint in the making.
#[derive(Default)]
pub struct Touches {
    points: Vec<PointLock>,
    ranges: Vec<RangeLock>,
}

impl Touches {
    /// Nothing yet, with room for so many keys and ranges.
    pub fn with_capacity(points: usize, ranges: usize) -> Self {
        Self { points: Vec::with_capacity(points), ranges: Vec::with_capacity(ranges) }
    }

    /// Reads a key.
    pub fn reads(&mut self, table: TableId, key: &[u8]) {
        self.points.push(PointLock { table, key: Key::from(key), mode: Mode::Shared });
    }

    /// Writes a key, or reads and writes it.
    pub fn writes(&mut self, table: TableId, key: &[u8]) {
        self.points.push(PointLock { table, key: Key::from(key), mode: Mode::Exclusive });
    }

    /// Reads within a range.
    pub fn reads_range(&mut self, table: TableId, range: KeyRange) {
        self.ranges.push(RangeLock { table, range, mode: Mode::Shared });
    }

    /// Writes within a range, and looks at nothing there.
    pub fn inserts_range(&mut self, table: TableId, range: KeyRange) {
        self.ranges.push(RangeLock { table, range, mode: Mode::Write });
    }

    /// Writes within a range, or reads and writes there.
    pub fn writes_range(&mut self, table: TableId, range: KeyRange) {
        self.ranges.push(RangeLock { table, range, mode: Mode::Exclusive });
    }

    /// The footprint.
    pub fn footprint(self) -> Footprint {
        Footprint::new(self.points, self.ranges)
    }
}
