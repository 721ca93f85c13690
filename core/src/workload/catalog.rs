//! A table whose schema changes while it is written, and its index.
//!
//! Every row contains the form in which it was written. The schema contains the current form of
//! rows and whether there is an index. A transaction that writes a row reads the schema, and
//! maintains the index if there is one. A schema change rewrites all rows, or creates or drops the
//! index, concurrently with writers. No transaction ever sees half of a change, or an index that
//! does not match its table. Below the serializable level, that takes
//! [guards](crate::txn::Guards), as SQL has them: a writer depends on the schema that it has read,
//! and a schema change on all rows.
//!
//! | mix | transactions |
//! |---|---|
//! | `index` | inserts, deletes and changes of the group; reads of the index against the table |
//! | `ddl` | the same, and every twelfth changes the schema |

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::definition::{Definition, Facts, Generate};
use super::rng::WorkloadRng;
use super::{Call, Client, InvalidSettings, Settings, bounded, ended, malformed, setting};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Direction, Key, KeyRange};
use crate::time::Timestamp;
use crate::txn::{
    Abort, Context, Footprint, LockMode, PointLock, Procedure, RangeLock, Scan, SqlState, Stop,
};
use crate::value::Value;

/// The single row with the schema: its form, and 1 if there is an index.
pub const SCHEMA: TableId = TableId(37);
/// Row number, big-endian, to its form and its group.
pub const ROWS: TableId = TableId(38);
/// Group and row number, big-endian, to an empty value.
pub const INDEX: TableId = TableId(39);

/// The maximum number of different rows.
const ROWS_MAX: u64 = 10_000;
/// The number of groups.
const GROUPS: u64 = 3;
/// The percentage of transactions that compare the index with the table.
const READ_PERCENT: u64 = 25;
/// The percentage of writes that are deletes.
const DELETE_PERCENT: u64 = 25;
/// The percentage of transactions of `ddl` that change the schema.
const ALTER_PERCENT: u64 = 8;

/// The mix of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Writes of rows and their index, and reads.
    Index,
    /// Also schema changes.
    Ddl,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Self; 2] = [Self::Index, Self::Ddl];

    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Ddl => "ddl",
        }
    }
}

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalog {
    mix: Mix,
    rows: u64,
}

/// The operation of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Sets the group of a row, whether the row exists or not.
    Put { row: u64, group: u64 },
    /// Deletes a row, if it exists.
    Delete { row: u64 },
    /// Reads the schema, all rows, and the index.
    Read,
    /// Rewrites all rows in another form.
    Rewrite,
    /// Creates the index, or drops it.
    SwitchIndex,
    /// Empties the table.
    Truncate,
}

impl Op {
    const PUT: u8 = 0;
    const DELETE: u8 = 1;
    const READ: u8 = 2;
    const REWRITE: u8 = 3;
    const SWITCH_INDEX: u8 = 4;
    const TRUNCATE: u8 = 5;

    fn encode(self) -> Vec<u8> {
        let mut args = Vec::new();
        match self {
            Self::Put { row, group } => {
                args.put_u8(Self::PUT);
                args.put_varint(row);
                args.put_varint(group);
            }
            Self::Delete { row } => {
                args.put_u8(Self::DELETE);
                args.put_varint(row);
            }
            Self::Read => args.put_u8(Self::READ),
            Self::Rewrite => args.put_u8(Self::REWRITE),
            Self::SwitchIndex => args.put_u8(Self::SWITCH_INDEX),
            Self::Truncate => args.put_u8(Self::TRUNCATE),
        }
        args
    }

    fn decode(args: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(args);
        let kind = from.u8("operation")?;
        let row = |from: &mut Reader<'_>| bounded(from.varint("row")?, 0, ROWS_MAX - 1, "row");
        let op = match kind {
            Self::PUT => {
                let row = row(from)?;
                let group = bounded(from.varint("group")?, 0, GROUPS - 1, "group")?;
                Self::Put { row, group }
            }
            Self::DELETE => Self::Delete { row: row(from)? },
            Self::READ => Self::Read,
            Self::REWRITE => Self::Rewrite,
            Self::SWITCH_INDEX => Self::SwitchIndex,
            Self::TRUNCATE => Self::Truncate,
            _ => return Err(DecodeError::new("operation")),
        };
        ended(from, "operation")?;
        Ok(op)
    }

    fn label(self) -> &'static str {
        match self {
            Self::Put { .. } | Self::Delete { .. } => "write",
            Self::Read => "read",
            Self::Rewrite | Self::SwitchIndex | Self::Truncate => "alter",
        }
    }
}

impl Catalog {
    /// Creates a mix over the number of rows given by the setting `lists`.
    ///
    /// # Errors
    /// If the number is zero or too large.
    pub fn new(mix: Mix, settings: &Settings) -> Result<Self, InvalidSettings> {
        setting("lists", settings.lists.into(), 1, ROWS_MAX)?;
        Ok(Self { mix, rows: settings.lists.into() })
    }

    fn next(&self, dice: &mut WorkloadRng) -> Call {
        let op = if self.mix == Mix::Ddl && dice.percent(ALTER_PERCENT) {
            [Op::Rewrite, Op::SwitchIndex, Op::Truncate][dice.below(3) as usize]
        } else if dice.percent(READ_PERCENT) {
            Op::Read
        } else {
            let row = dice.below(self.rows);
            match dice.percent(DELETE_PERCENT) {
                true => Op::Delete { row },
                false => Op::Put { row, group: dice.below(GROUPS) },
            }
        };
        let (args, label) = (Bytes::from(op.encode()), op.label());
        Call { procedure: "catalog", args, label, is_read_only: op == Op::Read }
    }
}

impl Definition for Catalog {
    const NAMES: &'static [&'static str] = &[Mix::Index.name(), Mix::Ddl.name()];

    type Generator = Self;

    fn named(name: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(super::mix(&Mix::ALL, Mix::name, name), settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Run), Arc::new(Load)]
    }

    fn generator(&self, _: Client) -> Self {
        self.clone()
    }
}

impl Facts for Catalog {
    fn name(&self) -> &'static str {
        self.mix.name()
    }

    fn is_of_histories(&self) -> bool {
        true
    }

    fn load_calls(&self) -> Vec<Call> {
        let (procedure, label) = ("catalog_load", "load");
        vec![Call { procedure, args: Bytes::new(), label, is_read_only: false }]
    }

    fn procedures(&self) -> Vec<&'static str> {
        vec!["catalog"]
    }

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        let rule = Rule { rule: "catalog", place: &"the table" };
        let mut found = Ok(CatalogSnapshot::default());
        let mut read = |table, take: Take| {
            rows.scan(table, &KeyRange::all(), &mut |key, value| {
                take_row(&mut found, take, key, value)
            });
        };
        read(SCHEMA, CatalogSnapshot::take_schema);
        read(ROWS, CatalogSnapshot::take_row);
        read(INDEX, CatalogSnapshot::take_entry);
        rule.equal(("unreadable rows", i64::from(found.is_err())), ("allowed", 0))?;
        let picture = found.unwrap_or_default();
        let wrong = picture.wrong();
        rule.equal(("rows, entries and schema that disagree", wrong.len() as i64), ("allowed", 0))?;
        let mut report = Report::default();
        report.count("rows", picture.rows.len() as i64);
        Ok(report)
    }
}

impl Generate for Catalog {
    fn next_call(&mut self, dice: &mut WorkloadRng, _: Timestamp) -> Call {
        self.next(dice)
    }
}

/// The schema, the table and the index, as seen by one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogSnapshot {
    /// The form of the rows, and whether there is an index. `None` before the table exists.
    pub schema: Option<(u64, bool)>,
    /// Each row with its form and its group.
    pub rows: Vec<(u64, u64, u64)>,
    /// The index: groups with rows.
    pub entries: Vec<(u64, u64)>,
}

type Take = fn(&mut CatalogSnapshot, &[u8], &[u8]) -> Result<(), DecodeError>;

fn take_row(
    found: &mut Result<CatalogSnapshot, DecodeError>,
    take: Take,
    key: &[u8],
    value: &[u8],
) -> ControlFlow<()> {
    let Ok(picture) = found else { return ControlFlow::Break(()) };
    match take(picture, key, value) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            *found = Err(error);
            ControlFlow::Break(())
        }
    }
}

/// The big-endian number at this index of a key.
fn number(bytes: &[u8], at: usize) -> Result<u64, DecodeError> {
    let number = bytes.get(8 * at..8 * at + 8).and_then(|bytes| bytes.try_into().ok());
    number.map(u64::from_be_bytes).ok_or(DecodeError::new("number"))
}

impl CatalogSnapshot {
    fn take_schema(&mut self, _: &[u8], value: &[u8]) -> Result<(), DecodeError> {
        self.schema = Some((number(value, 0)?, number(value, 1)? == 1));
        Ok(())
    }

    fn take_row(&mut self, key: &[u8], value: &[u8]) -> Result<(), DecodeError> {
        self.rows.push((number(key, 0)?, number(value, 0)?, number(value, 1)?));
        Ok(())
    }

    fn take_entry(&mut self, key: &[u8], _: &[u8]) -> Result<(), DecodeError> {
        self.entries.push((number(key, 0)?, number(key, 1)?));
        Ok(())
    }

    /// Descriptions of the inconsistencies, for humans.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let (form, has_index) = self.schema.unwrap_or_default();
        for (row, its_form, _) in self.rows.iter().filter(|(_, its_form, _)| *its_form != form) {
            wrong.push(format!("row {row} has form {its_form}, and the schema form {form}"));
        }
        let expected: BTreeSet<(u64, u64)> = match has_index {
            true => self.rows.iter().map(|(row, _, group)| (*group, *row)).collect(),
            false => BTreeSet::new(),
        };
        let entries: BTreeSet<(u64, u64)> = self.entries.iter().copied().collect();
        for (group, row) in expected.difference(&entries) {
            wrong.push(format!("row {row} of group {group} is missing from the index"));
        }
        for (group, row) in entries.difference(&expected) {
            wrong.push(format!("the index has row {row} of group {group}, but the table does not"));
        }
        wrong
    }

    fn encode(&self) -> Vec<u8> {
        let mut result = Vec::new();
        let (form, has_index) = self.schema.unwrap_or_default();
        result.put_u8(u8::from(self.schema.is_some()) + 2 * u8::from(has_index));
        result.put_varint(form);
        result.put_varint(self.rows.len() as u64);
        for (row, form, group) in &self.rows {
            [row, form, group].into_iter().for_each(|number| result.put_varint(*number));
        }
        result.put_varint(self.entries.len() as u64);
        for (group, row) in &self.entries {
            [group, row].into_iter().for_each(|number| result.put_varint(*number));
        }
        result
    }

    /// Decodes the result of a committed read-only transaction.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(result: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(result);
        let (flags, form) = (from.u8("schema")?, from.varint("form")?);
        let schema = (flags & 1 == 1).then_some((form, flags & 2 == 2));
        let row = |from: &mut Reader<'_>| {
            Ok((from.varint("row")?, from.varint("form")?, from.varint("group")?))
        };
        let rows =
            (0..from.count("rows")?).map(|_| row(from)).collect::<Result<_, DecodeError>>()?;
        let entry = |from: &mut Reader<'_>| Ok((from.varint("group")?, from.varint("row")?));
        let entries =
            (0..from.count("entries")?).map(|_| entry(from)).collect::<Result<_, DecodeError>>()?;
        ended(from, "picture")?;
        Ok(Self { schema, rows, entries })
    }
}

fn schema_key() -> Key {
    Key::from(&b"rows"[..])
}

fn row_key(row: u64) -> Key {
    Key::from(&row.to_be_bytes()[..])
}

fn entry_key(group: u64, row: u64) -> Key {
    Key::from(&pair(group, row)[..])
}

/// Two numbers, big-endian.
fn pair(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_be_bytes());
    bytes[8..].copy_from_slice(&second.to_be_bytes());
    bytes
}

/// Reads and writes rows, or changes the schema, according to its operation. Returns a result for
/// [`CatalogSnapshot::decode`] if it only read, and otherwise an empty one.
#[derive(Clone, Copy, Debug)]
pub struct Run;

impl Run {
    fn see(cx: &mut dyn Context) -> Result<CatalogSnapshot, Stop> {
        let mut found = Ok(CatalogSnapshot::default());
        let takes: [(TableId, Take); 3] = [
            (SCHEMA, CatalogSnapshot::take_schema),
            (ROWS, CatalogSnapshot::take_row),
            (INDEX, CatalogSnapshot::take_entry),
        ];
        for (table, take) in takes {
            let scan = Scan { table, range: KeyRange::all(), direction: Direction::Forward };
            cx.scan(&scan, &mut |key, value| take_row(&mut found, take, key, value))?;
        }
        found.map_err(malformed)
    }

    fn schema(cx: &mut dyn Context) -> Result<(u64, bool), Stop> {
        let value = cx.get(SCHEMA, &schema_key())?;
        let none = || Abort::new(SqlState::NO_DATA_FOUND, "the table does not exist yet");
        let value = value.ok_or_else(none)?;
        let mut picture = CatalogSnapshot::default();
        picture.take_schema(&[], &value).map_err(malformed)?;
        if let Some(guards) = cx.guards() {
            guards.row(SCHEMA, &schema_key())?;
        }
        Ok(picture.schema.unwrap_or_default())
    }

    /// Sets the group of a row, or deletes the row.
    fn write(cx: &mut dyn Context, row: u64, group: Option<u64>) -> Result<(), Stop> {
        let (form, has_index) = Self::schema(cx)?;
        let before = cx.get(ROWS, &row_key(row))?;
        let before = before.map(|value| number(&value, 1)).transpose().map_err(malformed)?;
        if let Some(before) = before.filter(|_| has_index) {
            cx.delete(INDEX, entry_key(before, row))?;
        }
        match group {
            Some(group) => {
                cx.put(ROWS, row_key(row), Value::copy_from(&pair(form, group)))?;
                if has_index {
                    cx.put(INDEX, entry_key(group, row), Value::copy_from(&[]))?;
                }
            }
            None if before.is_some() => cx.delete(ROWS, row_key(row))?,
            None => {}
        }
        Ok(())
    }

    fn alter(cx: &mut dyn Context, op: Op) -> Result<(), Stop> {
        let (form, has_index) = Self::schema(cx)?;
        let CatalogSnapshot { rows, entries, .. } = Self::see(cx)?;
        if let Some(guards) = cx.guards() {
            guards.range(ROWS, &KeyRange::all())?;
            guards.range(INDEX, &KeyRange::all())?;
        }
        let (form, has_index) = match op {
            Op::SwitchIndex => (form, !has_index),
            _ => (form + 1, has_index),
        };
        if op != Op::Rewrite {
            for (group, row) in entries {
                cx.delete(INDEX, entry_key(group, row))?;
            }
        }
        for (row, _, group) in rows {
            match op {
                Op::Truncate => cx.delete(ROWS, row_key(row))?,
                Op::Rewrite => cx.put(ROWS, row_key(row), Value::copy_from(&pair(form, group)))?,
                _ if has_index => cx.put(INDEX, entry_key(group, row), Value::copy_from(&[]))?,
                _ => {}
            }
        }
        cx.put(SCHEMA, schema_key(), Value::copy_from(&pair(form, has_index.into())))
    }
}

impl Procedure for Run {
    fn name(&self) -> &str {
        "catalog"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let op = Op::decode(args).map_err(malformed)?;
        match op {
            Op::Put { row, group } => Self::write(cx, row, Some(group))?,
            Op::Delete { row } => Self::write(cx, row, None)?,
            Op::Rewrite | Op::SwitchIndex | Op::Truncate => Self::alter(cx, op)?,
            Op::Read => return Ok(Self::see(cx)?.encode()),
        }
        Ok(Vec::new())
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(op) = Op::decode(args) else { return Some(Footprint::default()) };
        let point = |table, key, mode| PointLock { table, key, mode };
        let all = |mode| {
            let range = |table| RangeLock { table, range: KeyRange::all(), mode };
            Footprint::new(Vec::new(), [SCHEMA, ROWS, INDEX].map(range).to_vec())
        };
        Some(match op {
            Op::Put { row, .. } | Op::Delete { row } => {
                let mut points = vec![
                    point(SCHEMA, schema_key(), LockMode::Shared),
                    point(ROWS, row_key(row), LockMode::Exclusive),
                ];
                let entry = |group| point(INDEX, entry_key(group, row), LockMode::Exclusive);
                points.extend((0..GROUPS).map(entry));
                Footprint::new(points, Vec::new())
            }
            Op::Read => all(LockMode::Shared),
            Op::Rewrite | Op::SwitchIndex | Op::Truncate => all(LockMode::Exclusive),
        })
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        Op::decode(args).is_ok_and(|op| op == Op::Read)
    }
}

/// Creates the table, with an index.
#[derive(Clone, Copy, Debug)]
pub struct Load;

impl Procedure for Load {
    fn name(&self) -> &str {
        "catalog_load"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        ended(&Reader::new(args), "load arguments").map_err(malformed)?;
        cx.put(SCHEMA, schema_key(), Value::copy_from(&pair(1, 1)))?;
        Ok(Vec::new())
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, _: &[u8]) -> Option<Footprint> {
        let lock = PointLock { table: SCHEMA, key: schema_key(), mode: LockMode::Exclusive };
        Some(Footprint::new(vec![lock], Vec::new()))
    }

    fn is_bulk(&self, _: &[u8]) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::model::Model;
    use crate::workload::tests::{Bench, small};

    fn run(model: &mut Model, op: Op) -> Vec<u8> {
        model.run(&Run, &op.encode()).expect("it commits")
    }

    fn see(model: &mut Model) -> CatalogSnapshot {
        CatalogSnapshot::decode(&run(model, Op::Read)).expect("well formed")
    }

    #[test]
    fn rows_keep_their_index_through_every_change_of_the_schema() {
        let mut model = Bench::new("ddl", &small()).model;
        run(&mut model, Op::Put { row: 4, group: 2 });
        run(&mut model, Op::Put { row: 5, group: 0 });
        run(&mut model, Op::Put { row: 4, group: 1 });
        let before = see(&mut model);
        assert_eq!(before.rows, [(4, 1, 1), (5, 1, 0)]);
        assert_eq!(before.entries, [(0, 5), (1, 4)]);
        run(&mut model, Op::Rewrite);
        assert_eq!(see(&mut model).rows, [(4, 2, 1), (5, 2, 0)]);
        run(&mut model, Op::SwitchIndex);
        run(&mut model, Op::Delete { row: 5 });
        assert_eq!(see(&mut model).entries, []);
        run(&mut model, Op::SwitchIndex);
        assert_eq!(see(&mut model).entries, [(1, 4)]);
        run(&mut model, Op::Truncate);
        let after = see(&mut model);
        assert_eq!((after.schema, after.rows.len(), after.entries.len()), (Some((3, true)), 0, 0));
    }

    #[test]
    fn an_index_that_is_not_that_of_its_table_is_a_violation() {
        let Bench { mut model, workload, .. } = Bench::new("index", &small());
        run(&mut model, Op::Put { row: 4, group: 2 });
        assert!(workload.check(&model).is_ok());
        let is_wrong = |table, key: Key, value: Option<Value>| {
            let mut model = model.clone();
            model.put(table, key, value);
            let picture = see(&mut model);
            workload.check(&model).is_err() && !picture.wrong().is_empty()
        };
        assert!(is_wrong(INDEX, entry_key(2, 4), None));
        assert!(is_wrong(INDEX, entry_key(1, 4), Some(Value::copy_from(&[]))));
        assert!(is_wrong(ROWS, row_key(4), Some(Value::copy_from(&pair(1, 0)))));
        assert!(is_wrong(ROWS, row_key(4), Some(Value::copy_from(&pair(9, 2)))));
        assert!(is_wrong(SCHEMA, schema_key(), Some(Value::copy_from(&pair(1, 0)))));
    }
}
