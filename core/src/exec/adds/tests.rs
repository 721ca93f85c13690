//! Runs that record additions are compared with runs that read and write instead.

use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::Overlay;
use super::super::optimistic::{Recorded, Run, run_recording};
use super::*;
use crate::ids::{NodeId, ProcedureId, TxnId};
use crate::key::{Direction, KeyRange};
use crate::store::{RecordHeader, Store, Version};
use crate::txn::{Adder, Context, Procedure, Program, ReadVersion, Scan, Stop};

const TABLE: TableId = TableId(1);
const AT: SnapshotVersion = SnapshotVersion(3);

/// Adds a byte to a row of one byte, up to 200.
struct AddByte;

impl Adder for AddByte {
    fn name(&self) -> &str {
        "add_byte"
    }

    fn add(&self, row: &Value, amount: &[u8]) -> Result<Value, Abort> {
        match row[0].checked_add(amount[0]).filter(|sum| *sum <= 200) {
            Some(sum) => Ok(Value::copy_from(&[sum])),
            None => Err(Abort::new(SqlState::RAISE_EXCEPTION, "too much")),
        }
    }
}

/// Runs operations of two bytes: a kind and a row. Returns what they have seen.
struct Script;

impl Procedure for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let mut seen = Vec::new();
        for op in args.chunks(2) {
            let row = key(op[1]);
            match op[0] {
                b'a' => seen.push(u8::from(cx.add(TABLE, row, &AddByte, &[3])?)),
                b'g' => seen.extend(cx.get(TABLE, &row)?.map(|row| row[0])),
                b'p' => cx.put(TABLE, row, Value::copy_from(&[op[1] + 10]))?,
                b'd' => cx.delete(TABLE, row)?,
                _ => {
                    let range = KeyRange { start: vec![op[1]], end: None };
                    let scan = Scan { table: TABLE, range, direction: Direction::Forward };
                    cx.scan(&scan, &mut |_, row| {
                        seen.push(row[0]);
                        ControlFlow::Continue(())
                    })?;
                }
            }
        }
        Ok(seen)
    }

    fn adders(&self) -> Vec<Arc<dyn Adder>> {
        vec![Arc::new(AddByte)]
    }
}

fn key(row: u8) -> Key {
    Key::from(&[row][..])
}

fn registry() -> Registry {
    Registry::new([Arc::new(Script) as Arc<dyn Procedure>])
}

/// Row 1 exists, row 2 does not, and row 3 is of an undecided transaction and in the snapshot.
fn run(ops: &[u8], adds: bool) -> Run {
    let (store, mut overlay) = (Store::new(), Overlay::new());
    for row in [1, 3] {
        let (header, value) = (RecordHeader::default(), Some(Value::copy_from(&[row])));
        store.apply(TABLE, key(row), Version { version: AT, header, value });
    }
    store.publish(AT);
    let write = Write { table: TABLE, key: key(3), value: Some(Value::copy_from(&[100])) };
    overlay.insert(TxnId::new(NodeId(1), 7), &[write]);
    let (procedure, args) = (ProcedureId::of("script"), Bytes::copy_from_slice(ops));
    let program = Program::Call { procedure, args };
    run_recording(&registry(), &program, &store, AT, &overlay, Recorded { guards: false, adds })
}

/// The writes of a run, with the results of its additions on row 1 of the snapshot.
fn changes(run: &Run) -> BTreeMap<Key, Option<Value>> {
    let written = run.writes.iter().map(|write| (write.key.clone(), write.value.clone()));
    let mut changes: BTreeMap<_, _> = written.collect();
    for Add { key, adder, amount, .. } in &run.adds {
        assert_eq!(key.as_bytes(), [1], "only this row can be added to");
        let row = changes.entry(key.clone()).or_insert_with(|| Some(Value::copy_from(&[1])));
        let before = row.take().expect("it exists");
        *row = Some(add_to(&registry(), &before, *adder, amount).expect("it has succeeded before"));
    }
    changes
}

fn reads_row_1(run: &Run) -> bool {
    let seen = (key(1), ReadVersion::At(AT));
    run.reads.points.iter().any(|read| (&read.key, read.seen) == (&seen.0, seen.1))
        || run.reads.ranges.iter().any(|read| read.rows.contains(&seen))
}

proptest! {
    #[test]
    fn a_recorded_addition_is_a_read_and_a_write(
        ops in prop::collection::vec((prop::sample::select(b"aagpds".to_vec()), 1u8..4), 0..9),
    ) {
        let ops: Vec<u8> = ops.into_iter().flat_map(|(kind, row)| [kind, row]).collect();
        let (recorded, plain) = (run(&ops, true), run(&ops, false));
        prop_assert!(plain.adds.is_empty());
        prop_assert_eq!(&recorded.result, &plain.result);
        prop_assert_eq!(changes(&recorded), changes(&plain));
        prop_assert_eq!(recorded.footprint(), plain.footprint());
        prop_assert_eq!(recorded.is_reader(), plain.is_reader());
        let all_add = ops.chunks(2).filter(|op| op[1] == 1).all(|op| op[0] == b'a');
        let is_scanned = ops.chunks(2).any(|op| op[0] == b's' && op[1] == 1);
        let only_adds = all_add && !is_scanned;
        if only_adds {
            prop_assert!(!reads_row_1(&recorded) && recorded.writes.iter().all(|it| it.key[0] > 1));
        }
        let depends = only_adds || recorded.adds.is_empty() || reads_row_1(&recorded);
        prop_assert!(depends, "a row that the program also reads or writes is read");
    }
}

#[test]
fn a_program_with_many_additions_to_a_row_writes_it() {
    let ops = |count: usize| b"a\x01".repeat(count);
    let most = run(&ops(OF_ROW_MAX), true);
    assert_eq!((most.adds.len(), most.writes.len()), (OF_ROW_MAX, 0));
    let more = run(&ops(OF_ROW_MAX + 1), true);
    assert_eq!((more.adds.len(), more.writes.len()), (0, 1));
    assert!(reads_row_1(&more) && !reads_row_1(&most));
    assert!(run(&ops(67), true).result.is_err(), "1 + 67 * 3 is too much");
}

#[test]
fn a_panic_of_an_adder_is_an_abort() {
    let add = |row: &[u8], adder| add_to(&registry(), &Value::copy_from(row), adder, &[1]);
    let known = AdderId::of("add_byte");
    assert_eq!(add(&[4], known), Ok(Value::copy_from(&[5])));
    assert_eq!(add(&[], known).unwrap_err().code, SqlState::INTERNAL_ERROR);
    assert_eq!(add(&[4], AdderId::of("other")).unwrap_err().code, SqlState::INTERNAL_ERROR);
}
