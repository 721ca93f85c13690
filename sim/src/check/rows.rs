//! Converts the simulator's histories of registers and rows, with the final state and the versions
//! that nodes returned.
//!
//! A history is observed (`observed.rs`) and checked like any other (`recorded.rs`). In addition, a
//! reader of a snapshot must see the content of its version.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pangea_core::key::{Direction, KeyRange};
use pangea_core::workload::Rows;
use pangea_core::workload::registers::{Op as Called, REGISTERS, decode_found, decode_ops};
use pangea_core::workload::registers::{Registers, decode_row};

use super::observed::{Observed, ended, number};
use super::{Violation, explain};
use crate::history::{History, Operation};
use crate::record::{Name, Names, Op, Outcome, Range, Seen, Txn};
use crate::settings::RealTime;

/// Rows with their values.
type Found = Vec<(u64, u64)>;

/// Converts a history of registers to the recorded form, with the final rows if they are known.
///
/// # Errors
/// If a result or a final row can't be decoded.
pub fn observe(
    registers: &Registers,
    history: &History,
    end: Option<&dyn Rows>,
    real_time: RealTime,
) -> Result<Observed, Violation> {
    let mut observed = Observed::new(history, real_time, registers.name(), operations_of)?;
    if let Some(end) = end {
        let rows = final_rows(end).map_err(|key| {
            let story = format!("key {key:02x?} in the final state");
            Violation::new(registers.name(), "unreadable", story)
        })?;
        let names = &mut observed.recorded.names;
        let all = Range { from: None, to: None };
        let ops = vec![Op::Scan { range: all, rows: named(&rows, names) }];
        observed.push_final(ops, ended(history));
    }
    Ok(observed)
}

/// Returns the final rows.
///
/// # Errors
/// The key of a row that can't be decoded.
fn final_rows(end: &dyn Rows) -> Result<Found, Vec<u8>> {
    let mut found = Ok(Found::new());
    end.scan(REGISTERS, &KeyRange::all(), &mut |key, value| {
        match (decode_row(key, value), &mut found) {
            (Ok(row), Ok(rows)) => rows.push(row),
            _ => found = Err(key.to_vec()),
        }
        if found.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    found
}

fn named(rows: &Found, names: &mut Names) -> Vec<(Name, Name)> {
    rows.iter().map(|(row, v)| (names.name(number(*row)), names.name(number(*v)))).collect()
}

/// Returns an operation's calls with their results; without results, only the writes.
fn operations_of(operation: &Operation, names: &mut Names) -> Result<Vec<Op>, String> {
    let called = decode_ops(&operation.call.args).map_err(|error| error.to_string())?;
    let found = operation.result().map(decode_found).transpose();
    let found = found.map_err(|error| error.to_string())?;
    let is_answered = found.is_some();
    let mut answers = found.unwrap_or_default().into_iter();
    let mut ops = Vec::new();
    for call in called {
        match call {
            Called::Write { row, value } => ops
                .push(Op::Write { key: names.name(number(row)), value: names.name(number(value)) }),
            Called::Delete { row } if !is_answered => {
                ops.push(Op::Delete { key: names.name(number(row)) });
            }
            Called::Read { .. } | Called::Scan { .. } if !is_answered => {}
            Called::Read { row } | Called::Delete { row } => {
                let answer = answers.next().ok_or("the answer is too short")?;
                let seen = match answer[..] {
                    [] => Seen::Nothing,
                    [(found, value)] if found == row => Seen::Value(names.name(number(value))),
                    _ => return Err(format!("a read of {row} found {answer:?}")),
                };
                let key = names.name(number(row));
                let is_deleted = matches!(call, Called::Delete { .. }) && seen != Seen::Nothing;
                ops.push(Op::Read { key, seen });
                ops.extend(is_deleted.then_some(Op::Delete { key }));
            }
            Called::Scan { first, count, reach } => {
                let mut answer = answers.next().ok_or("the answer is too short")?;
                let (is_back, is_early) =
                    (reach.direction == Direction::Reverse, reach.is_over(answer.len() as u64));
                // The range is what the scan has visited.
                let last = answer.last().map(|(row, _)| *row).filter(|_| is_early);
                let (first, end) = match last {
                    Some(last) if is_back => (last, first + count),
                    Some(last) => (first, last + 1),
                    None => (first, first + count),
                };
                if is_back {
                    answer.reverse();
                }
                let is_inside = |(row, _): &(u64, u64)| (first..end).contains(row);
                let is_in_order = answer.windows(2).all(|pair| pair[0].0 < pair[1].0);
                if !is_in_order || !answer.iter().all(is_inside) {
                    return Err(format!("a scan of {count} rows from {first} found {answer:?}"));
                }
                let bound = |row, names: &mut Names| Some(names.name(number(row)));
                let (from, to) = (bound(first, names), bound(end, names));
                ops.push(Op::Scan { range: Range { from, to }, rows: named(&answer, names) });
            }
        }
    }
    match answers.next() {
        None => Ok(ops),
        Some(more) => Err(format!("the answer has {more:?} in addition to the requested rows")),
    }
}

/// The known versions of one row.
#[derive(Default)]
struct Row {
    /// Versions with the last value of each writer, or `None` if it deleted.
    writes: Vec<(u64, Option<Name>)>,
    /// Whether a transaction of unknown version may have changed the row.
    is_open: bool,
}

/// Checks readers of snapshots against the versions that nodes returned.
///
/// # Errors
/// The first reader that did not see the content of its version.
pub fn check_versions(observed: &Observed, checker: &'static str) -> Result<(), Violation> {
    let txns = &observed.recorded.txns;
    let mut rows: BTreeMap<Name, Row> = BTreeMap::new();
    for (txn, named) in txns.iter().zip(&observed.versions) {
        for (key, value) in left(txn) {
            let row = rows.entry(key).or_default();
            match named.committed_at {
                Some(at) => row.writes.push((at, value)),
                None => row.is_open |= txn.outcome == Outcome::Unknown,
            }
        }
    }
    for (at, (txn, named)) in (0..).zip(txns.iter().zip(&observed.versions)) {
        let Some(read_at) = named.read_at else { continue };
        for (key, seen) in each_read(txn, &rows, &observed.recorded.names) {
            let Some(what) = rows.get(&key).and_then(|row| row.wrong_at(read_at, seen)) else {
                continue;
            };
            let names = &observed.recorded.names;
            let seen = seen.map_or("nothing".to_owned(), |value| names.atom(value).to_string());
            let reader = explain::txn(&observed.recorded, at);
            let key = names.atom(key);
            let story = format!("{reader} read {key} at version {read_at} and saw {seen}; {what}");
            return Err(Violation::new(checker, "wrong snapshot", story));
        }
    }
    Ok(())
}

/// Returns the last value of each row that a transaction changed.
fn left(txn: &Txn) -> BTreeMap<Name, Option<Name>> {
    let changes = txn.ops.iter().filter_map(|op| match op {
        Op::Write { key, value } => Some((*key, Some(*value))),
        Op::Delete { key } => Some((*key, None)),
        _ => None,
    });
    changes.collect()
}

/// Returns the values that a read-only transaction saw of each row that was ever changed.
fn each_read(txn: &Txn, rows: &BTreeMap<Name, Row>, names: &Names) -> Vec<(Name, Option<Name>)> {
    let mut all = Vec::new();
    for op in &txn.ops {
        match op {
            Op::Read { key, seen: Seen::Value(value) } => all.push((*key, Some(*value))),
            Op::Read { key, .. } => all.push((*key, None)),
            Op::Scan { range, rows: found } => {
                let found: BTreeMap<Name, Name> = found.iter().copied().collect();
                let inside = rows.keys().filter(|key| range.contains(names, **key));
                all.extend(inside.map(|key| (*key, found.get(key).copied())));
            }
            _ => {}
        }
    }
    all
}

impl Row {
    /// Describes the error if a reader of version `at` must not see `seen`.
    fn wrong_at(&self, at: u64, seen: Option<Name>) -> Option<String> {
        let visible = || self.writes.iter().filter(|(version, _)| *version <= at);
        let newest = visible().map(|(version, _)| *version).max();
        let Some(seen) = seen else {
            let newest = newest.filter(|_| !self.is_open)?;
            // The order of writes of one version is unknown.
            let is_deleted =
                visible().any(|(version, value)| *version == newest && value.is_none());
            return (!is_deleted).then(|| format!("the row was written at {newest}"));
        };
        // A value of unknown version may belong to any version.
        let (written, _) = self.writes.iter().find(|(_, value)| *value == Some(seen))?;
        if *written > at {
            return Some(format!("that value was written at {written}"));
        }
        newest.filter(|newest| newest > written).map(|newest| {
            format!("that value was written at {written}, and another one at {newest}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{CallKind, End};
    use pangea_core::codec::Writer;
    use pangea_core::guarantee::Isolation;
    use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
    use pangea_core::time::Timestamp;
    use pangea_core::workload::model::Model;
    use pangea_core::workload::registers::{Mix, encode_ops, key};
    use pangea_core::workload::{Call, Reach};

    fn registers() -> Registers {
        Registers::new(Mix::Ranges, &Default::default()).unwrap()
    }

    fn answer(found: &[&[(u64, u64)]]) -> Vec<u8> {
        let mut result = Vec::new();
        for rows in found {
            result.put_varint(rows.len() as u64);
            for (row, value) in *rows {
                result.put_varint(*row);
                result.put_u64(*value);
            }
        }
        result
    }

    fn operation(ops: &[Called], end: End) -> Operation {
        let args = encode_ops(ops).into();
        let call = Call { procedure: "registers", args, label: "write", is_read_only: false };
        let (invoked, node) = (Timestamp::default(), NodeId(0));
        let ended = (end != End::Ambiguous).then_some(invoked);
        let (how, level) = (CallKind::Ordered, Isolation::Serializable);
        Operation { client: 0, node, how, level, call, invoked, ended, end }
    }

    fn committed(version: u64, found: &[&[(u64, u64)]]) -> End {
        let (txn, version) = (TxnId::default(), SnapshotVersion(version));
        End::Committed { txn, version, result: answer(found) }
    }

    fn read_at(version: u64, found: &[&[(u64, u64)]]) -> End {
        End::Read { version: SnapshotVersion(version), result: answer(found) }
    }

    fn found(operations: Vec<Operation>, end: &Model) -> Result<(), (&'static str, String)> {
        let history = History { operations };
        let observed = observe(&registers(), &history, Some(end), RealTime::Writes);
        let checked = observed.and_then(|observed| super::super::hold(&observed, "test").1);
        checked.map_err(|violation| (violation.anomaly, violation.story))
    }

    const WRITE: Called = Called::Write { row: 1, value: 10 };
    const SCAN: Called = Called::Scan { first: 0, count: 4, reach: Reach::ALL };

    fn with_row_1(value: u64) -> Model {
        let mut model = Model::default();
        model.put(REGISTERS, key(1), Some(value.to_le_bytes().to_vec().into()));
        model
    }

    #[test]
    fn an_answer_that_is_not_to_what_was_asked_is_unreadable() {
        for (ops, rows, words) in [
            (&[Called::Read { row: 1 }][..], &[][..], "short"),
            (&[Called::Read { row: 1 }], &[&[(2, 5)][..]][..], "a read of 1 found [(2, 5)]"),
            (&[SCAN], &[&[(4, 5)]], "from 0 found [(4, 5)]"),
            (&[SCAN], &[&[(1, 5), (1, 6)]], "found [(1, 5), (1, 6)]"),
            (&[WRITE], &[&[]], "in addition to"),
        ] {
            let operations = vec![operation(ops, committed(1, rows))];
            let (anomaly, story) = found(operations, &Model::default()).unwrap_err();
            assert_eq!(anomaly, "unreadable");
            assert!(story.starts_with("T1: ") && story.contains(words), "{story}");
        }
        let mut torn = Model::default();
        torn.put(REGISTERS, key(1), Some(vec![1].into()));
        assert_eq!(found(Vec::new(), &torn).unwrap_err().0, "unreadable");
    }

    /// A row that the scan did not reach may have any value.
    #[test]
    fn a_scan_that_ended_early_has_seen_no_more_than_it_visited() {
        let scan = |direction| {
            let reach = Reach { direction, rows: Some(1) };
            Called::Scan { first: 0, count: 4, reach }
        };
        let write = |row, version| {
            operation(&[Called::Write { row, value: row * 10 }], committed(version, &[]))
        };
        let end = || {
            let mut end = with_row_1(10);
            end.put(REGISTERS, key(2), Some(20_u64.to_le_bytes().to_vec().into()));
            end
        };
        let read = |direction, rows: &[(u64, u64)]| {
            let reader = operation(&[scan(direction)], read_at(5, &[rows]));
            found(vec![write(1, 3), write(2, 3), reader], &end())
        };
        assert_eq!(read(Direction::Forward, &[(1, 10)]), Ok(()));
        assert_eq!(read(Direction::Reverse, &[(2, 20)]), Ok(()));
        assert_eq!(read(Direction::Forward, &[(2, 20)]).unwrap_err().0, "wrong snapshot");
        assert_eq!(read(Direction::Reverse, &[(1, 10)]).unwrap_err().0, "wrong snapshot");
    }

    #[test]
    fn the_final_rows_tell_what_was_lost_and_what_an_unknown_one_left() {
        let write = |end| vec![operation(&[WRITE], end)];
        assert_eq!(found(write(committed(1, &[])), &with_row_1(10)), Ok(()));
        assert_eq!(found(write(End::Ambiguous), &with_row_1(10)), Ok(()));
        assert_eq!(found(write(End::Ambiguous), &Model::default()), Ok(()));
        let lost = found(write(committed(1, &[])), &Model::default()).unwrap_err();
        assert_eq!(lost.0, "lost write", "{}", lost.1);
        assert_eq!(found(write(End::Refused), &with_row_1(10)).unwrap_err().0, "G1a");
        assert_eq!(found(write(committed(1, &[])), &with_row_1(11)).unwrap_err().0, "garbage");
        let mut deleted = write(committed(1, &[]));
        deleted.push(operation(&[Called::Delete { row: 1 }], End::Ambiguous));
        assert_eq!(found(deleted.clone(), &Model::default()), Ok(()));
        assert_eq!(found(deleted, &with_row_1(10)), Ok(()));
    }

    #[test]
    fn a_reader_of_a_version_sees_what_it_holds() {
        let at = |version, rows: &[(u64, u64)]| {
            let operations = vec![
                operation(&[WRITE], committed(3, &[])),
                operation(&[Called::Delete { row: 1 }], committed(5, &[&[(1, 10)]])),
                operation(&[Called::Write { row: 1, value: 11 }], committed(7, &[])),
                operation(&[SCAN], read_at(version, &[rows])),
            ];
            found(operations, &with_row_1(11))
        };
        for (version, rows) in [(2, &[][..]), (3, &[(1, 10)]), (5, &[]), (7, &[(1, 11)])] {
            assert_eq!(at(version, rows), Ok(()), "at {version}");
        }
        for (version, rows, words) in [
            (4, &[][..], "the row was written at 3"),
            (2, &[(1, 10)], "that value was written at 3"),
            (6, &[(1, 10)], "written at 3, and another one at 5"),
            (6, &[(1, 11)], "that value was written at 7"),
            (9, &[], "the row was written at 7"),
        ] {
            let (anomaly, story) = at(version, rows).unwrap_err();
            assert_eq!(anomaly, "wrong snapshot", "{story}");
            assert!(story.contains(words), "{words:?} is not in: {story}");
        }
    }
}
