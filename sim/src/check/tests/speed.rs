//! The time to check a quarter of a million operations.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::*;
use crate::check::model::Model;
use crate::check::recorded::{Verdict, check};
use crate::record::read::read;
use crate::record::write::write;
use crate::record::{Names, Op, Range, Seen};
use crate::rng::SimRng;

const TXNS: usize = 62_500;
const OPS: usize = 4;
const CLIENTS: usize = 16;
/// Keys in use at a time; all are replaced together, as in the workload list-append.
const KEYS: u64 = 64;
const TXNS_PER_ERA: usize = 1_000;
/// The limit of CPU time. An algorithm that compares all pairs would take hours.
const LIMIT: Duration = Duration::from_secs(15);

/// The CPU time of this thread, which other tests do not prolong.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[derive(Clone, Copy)]
enum Data {
    Lists,
    Registers,
    Rows,
}

/// Draws the history of a serial database with `CLIENTS` open transactions at a time.
fn history(data: Data) -> Recorded {
    let mut dice = SimRng::fork(1, "speed", 0);
    let mut names = Names::default();
    let mut lists: Vec<Vec<Name>> = Vec::new();
    let mut rows: Vec<Option<Name>> = Vec::new();
    let (mut txns, mut values) = (Vec::with_capacity(TXNS), 0);
    for at in 0..TXNS {
        let era = (at / TXNS_PER_ERA) as u64 * KEYS;
        lists.resize(era as usize + KEYS as usize, Vec::new());
        rows.resize(lists.len(), None);
        let mut ops = Vec::with_capacity(OPS);
        for _ in 0..OPS {
            let place = era + dice.between(0, KEYS - 1);
            let key = names.name(Atom::Number(place as i64));
            let is_read = dice.between(0, 1) == 0;
            values += 1;
            let value = names.name(Atom::Number(values));
            let (list, row) = (&mut lists[place as usize], &mut rows[place as usize]);
            ops.push(match data {
                Data::Lists if is_read => Op::Read { key, seen: Seen::List(list.clone()) },
                Data::Lists => {
                    list.push(value);
                    Op::Append { key, value }
                }
                Data::Rows if is_read => {
                    let to = (place + 4).min(lists.len() as u64);
                    let found = (place..to).filter_map(|place| {
                        let key = names.name(Atom::Number(place as i64));
                        Some((key, rows[place as usize]?))
                    });
                    let found = found.collect();
                    let to = Some(names.name(Atom::Number(to as i64)));
                    Op::Scan { range: Range { from: Some(key), to }, rows: found }
                }
                Data::Rows if row.is_some() && dice.between(0, 1) == 0 => {
                    *row = None;
                    Op::Delete { key }
                }
                Data::Registers if is_read => {
                    Op::Read { key, seen: row.map_or(Seen::Nothing, Seen::Value) }
                }
                Data::Registers | Data::Rows => {
                    *row = Some(value);
                    Op::Write { key, value }
                }
            });
        }
        let begin = at as i64;
        let end = Some(begin + dice.between(1, CLIENTS as u64) as i64);
        let client = Atom::Number((at % CLIENTS) as i64);
        txns.push(Txn { id: at + 1, client, begin, end, is_held: true, ops, ..txn_by_hand() });
    }
    Recorded { txns, names }
}

/// Checks a history and a spoilt one, each within the limit.
fn assert_fast(data: Data, model: Model) {
    let mut recorded = history(data);
    for is_right in [true, false] {
        if !is_right {
            spoil(&mut recorded);
        }
        let begin = cpu_time();
        let verdict = check(&recorded, model, "speed");
        let taken = cpu_time() - begin;
        println!("{model}, {is_right}: {taken:?}");
        assert_eq!(verdict == Verdict::Holds, is_right, "{verdict:?}");
        assert!(verdict != Verdict::Open && taken < LIMIT, "{model}: {taken:?}");
    }
}

/// Lets one of the first transactions read the final value of the last list or register, so that
/// nearly all others are in cycles with it.
fn spoil(recorded: &mut Recorded) {
    let ops = recorded.txns.iter().rev().flat_map(|txn| txn.ops.iter().rev());
    let mut last = ops.filter(|op| match op {
        Op::Read { seen: Seen::List(values), .. } => values.len() > 1,
        Op::Read { seen, .. } => *seen != Seen::Nothing,
        Op::Scan { rows, .. } => !rows.is_empty(),
        _ => false,
    });
    let last = last.next().expect("some rows were read").clone();
    recorded.txns[5].ops.push(last);
}

#[test]
fn many_operations_on_lists() {
    assert_fast(Data::Lists, Model::StrictSerializable);
}

#[test]
fn many_operations_are_read_from_a_file() {
    let mut text = Vec::new();
    write(&history(Data::Lists), &mut text).expect("writing to memory does not fail");
    let begin = cpu_time();
    let recorded = read(&mut &text[..], &mut |_| {}).expect("as it was written");
    let taken = cpu_time() - begin;
    println!("{} MB: {taken:?}", text.len() >> 20);
    assert_eq!(recorded.txns.len(), TXNS);
    assert!(taken < LIMIT, "{taken:?}");
}

#[test]
fn many_operations_on_registers() {
    assert_fast(Data::Registers, Model::StrictSerializable);
}

#[test]
fn many_operations_on_rows_with_scans() {
    assert_fast(Data::Rows, Model::StrictSerializable);
}
