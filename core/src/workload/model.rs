//! A reference database that runs one program after the other.
//!
//! It has no versions, concurrency or locks, and is so short that it is correct by inspection. It
//! checks every run against its declared footprint and panics on a violation, because each
//! violation costs every protocol a restart.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use super::check::Rows;
use crate::ids::TableId;
use crate::key::{Direction, Key, KeyRange};
use crate::txn::{Context, Footprint, LockMode, Procedure, Scan, Stop, Visit};
use crate::value::Value;

type Table = BTreeMap<Key, Value>;

/// The rows of the database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    tables: BTreeMap<TableId, Table>,
}

impl Model {
    /// Runs one program, and keeps its writes if it commits.
    ///
    /// # Errors
    /// The stop that the program returned.
    ///
    /// # Panics
    /// If the run violates its declared footprint, or writes although the program is declared
    /// read-only.
    pub fn run(&mut self, procedure: &dyn Procedure, args: &[u8]) -> Result<Vec<u8>, Stop> {
        self.run_within(procedure, args, procedure.footprint(args))
    }

    /// Like [`Model::run`], without checking the footprint. For measurements.
    ///
    /// # Errors
    /// The stop that the program returned.
    pub fn run_unchecked(
        &mut self,
        procedure: &dyn Procedure,
        args: &[u8],
    ) -> Result<Vec<u8>, Stop> {
        self.run_within(procedure, args, None)
    }

    fn run_within(
        &mut self,
        procedure: &dyn Procedure,
        args: &[u8],
        footprint: Option<Footprint>,
    ) -> Result<Vec<u8>, Stop> {
        let mut run = Run { model: self, footprint, writes: BTreeMap::new() };
        let result = procedure.run(args, &mut run)?;
        let writes = run.writes;
        assert!(writes.is_empty() || !procedure.is_read_only(args), "a read-only program wrote");
        for (table, rows) in writes {
            for (key, value) in rows {
                self.put(table, key, value);
            }
        }
        Ok(result)
    }

    /// Sets or deletes one row.
    pub fn put(&mut self, table: TableId, key: Key, value: Option<Value>) {
        let rows = self.tables.entry(table).or_default();
        match value {
            Some(value) => rows.insert(key, value),
            None => rows.remove(&key),
        };
    }

    /// The number of rows in a table.
    pub fn len(&self, table: TableId) -> usize {
        self.tables.get(&table).map_or(0, BTreeMap::len)
    }

    /// Whether a table has no rows.
    pub fn is_empty(&self, table: TableId) -> bool {
        self.len(table) == 0
    }
}

impl Rows for Model {
    fn get(&self, table: TableId, key: &[u8]) -> Option<Value> {
        self.tables.get(&table)?.get(key).cloned()
    }

    fn scan(&self, table: TableId, range: &KeyRange, visit: &mut Visit<'_>) {
        let Some(rows) = self.tables.get(&table) else { return };
        let _ = within(rows, range).try_for_each(|(key, value)| visit(key, value));
    }
}

fn within<'a, V>(
    rows: &'a BTreeMap<Key, V>,
    range: &KeyRange,
) -> std::collections::btree_map::Range<'a, Key, V> {
    let end = range.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let bounds = match range.is_empty() {
        true => (Bound::Included(&[][..]), Bound::Excluded(&[][..])),
        false => (Bound::Included(&range.start[..]), end),
    };
    rows.range::<[u8], _>(bounds)
}

struct Run<'a> {
    model: &'a Model,
    footprint: Option<Footprint>,
    writes: BTreeMap<TableId, BTreeMap<Key, Option<Value>>>,
}

impl Run<'_> {
    fn assert_covered(&self, table: TableId, key: &[u8], mode: LockMode) {
        let is_covered = self.footprint.as_ref().is_none_or(|f| f.covers(table, key, mode));
        assert!(is_covered, "{mode:?} use of {key:02x?} in table {table} is not in the footprint");
    }

    fn write(&mut self, table: TableId, key: Key, value: Option<Value>) {
        self.assert_covered(table, &key, LockMode::Write);
        self.writes.entry(table).or_default().insert(key, value);
    }
}

/// Visits the rows of `base`, replaced by those of `own`, until `visit` breaks. Both are in the
/// order given by `first`.
fn merge<'a>(
    base: impl Iterator<Item = (&'a Key, &'a Value)>,
    own: impl Iterator<Item = (&'a Key, &'a Option<Value>)>,
    first: fn(&Key, &Key) -> bool,
    visit: &mut Visit<'_>,
) {
    let (mut base, mut own) = (base.peekable(), own.peekable());
    loop {
        let flow = match (base.peek(), own.peek()) {
            (None, None) => return,
            (Some(&(key, value)), next) if next.is_none_or(|(own, _)| first(key, own)) => {
                base.next();
                visit(key, value)
            }
            (there, Some(&(key, value))) => {
                if there.is_some_and(|(replaced, _)| *replaced == key) {
                    base.next();
                }
                own.next();
                value.as_ref().map_or(ControlFlow::Continue(()), |value| visit(key, value))
            }
            (Some(_), None) => unreachable!("a row of the run itself is not before the last row"),
        };
        if flow.is_break() {
            return;
        }
    }
}

impl Context for Run<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        if let Some(own) = self.writes.get(&table).and_then(|rows| rows.get(key)) {
            return Ok(own.clone());
        }
        self.assert_covered(table, key, LockMode::Shared);
        Ok(self.model.get(table, key))
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        let mut seen = scan.range.clone();
        let mut step = |key: &[u8], value: &Value| {
            let flow = visit(key, value);
            if flow.is_break() {
                seen = scan.range.seen_up_to(key, scan.direction);
            }
            flow
        };
        let (no_rows, no_writes) = (Table::new(), BTreeMap::new());
        let base = within(self.model.tables.get(&scan.table).unwrap_or(&no_rows), &scan.range);
        let own = within(self.writes.get(&scan.table).unwrap_or(&no_writes), &scan.range);
        match scan.direction {
            Direction::Forward => merge(base, own, |a, b| a < b, &mut step),
            Direction::Reverse => merge(base.rev(), own.rev(), |a, b| a > b, &mut step),
        }
        let is_covered = self.footprint.as_ref().is_none_or(|f| f.covers_range(scan.table, &seen));
        assert!(is_covered, "{seen:02x?} of table {} is not in the footprint", scan.table);
        Ok(())
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.write(table, key, Some(value));
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.write(table, key, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(1);

    /// Writes `b`, `d` and `e`, deletes `c`, and returns the rows that two scans over `a .. e` see.
    struct WriteAndScan;

    impl Procedure for WriteAndScan {
        fn name(&self) -> &str {
            "write_and_scan"
        }

        fn run(&self, _: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
            for key in [b"b", b"d", b"e"] {
                cx.put(TABLE, Key::from(&key[..]), Value::copy_from(b"new"))?;
            }
            cx.delete(TABLE, Key::from(&b"c"[..]))?;
            let mut seen = Vec::new();
            for direction in [Direction::Forward, Direction::Reverse] {
                let range = KeyRange { start: b"a".to_vec(), end: Some(b"e".to_vec()) };
                cx.scan(&Scan { table: TABLE, range, direction }, &mut |key, value| {
                    seen.extend_from_slice(key);
                    seen.push(value[0]);
                    ControlFlow::Continue(())
                })?;
            }
            Ok(seen)
        }
    }

    /// Declares only reads, but writes.
    struct Stray;

    impl Procedure for Stray {
        fn name(&self) -> &str {
            "stray"
        }

        fn run(&self, _: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
            cx.put(TABLE, Key::from(&b"a"[..]), Value::copy_from(b"new"))?;
            Ok(Vec::new())
        }

        fn footprint(&self, _: &[u8]) -> Option<Footprint> {
            let key = Key::from(&b"a"[..]);
            let lock = crate::txn::PointLock { table: TABLE, key, mode: LockMode::Shared };
            Some(Footprint::new(vec![lock], Vec::new()))
        }
    }

    fn model(keys: &[u8]) -> Model {
        let mut model = Model::default();
        for key in keys {
            model.put(TABLE, Key::from(&[*key][..]), Some(Value::copy_from(b"old")));
        }
        model
    }

    #[test]
    fn a_scan_sees_the_rows_and_the_runs_own_writes_in_order_from_either_end() {
        let mut rows = model(b"abcf");
        assert_eq!(rows.run(&WriteAndScan, &[]), Ok(b"aobndndnbnao".to_vec()));
        assert_eq!(model(b"").run(&WriteAndScan, &[]), Ok(b"bndndnbn".to_vec()));
        let mut expected = model(b"af");
        for key in [b"b", b"d", b"e"] {
            expected.put(TABLE, Key::from(&key[..]), Some(Value::copy_from(b"new")));
        }
        assert!(rows == expected);
    }

    #[test]
    #[should_panic(expected = "Write use of [61] in table t1 is not in the footprint")]
    fn a_run_that_leaves_its_footprint_is_noticed() {
        let _ = model(b"a").run(&Stray, &[]);
    }

    #[test]
    fn empty_ranges_have_no_rows() {
        let range = KeyRange { start: b"b".to_vec(), end: Some(b"a".to_vec()) };
        let mut seen = 0;
        model(b"abc").scan(TABLE, &range, &mut |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(seen, 0);
    }
}
