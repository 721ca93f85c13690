//! Draws small histories, as databases of several kinds produce them.

use super::*;
use crate::record::Range;

const TXNS_MAX: u64 = 5;
const KEYS: u64 = 3;
const OPS_MAX: u64 = 3;

/// The data of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Lists,
    Registers,
    Rows,
}

impl Kind {
    /// The name, used to fork the generator.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lists => "lists",
            Self::Registers => "registers",
            Self::Rows => "rows",
        }
    }
}

/// The way in which the database runs transactions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// One transaction after the other.
    Serially,
    /// Each transaction reads the state at its begin.
    OnSnapshots,
    /// One operation at a time, interleaved.
    Torn,
}

/// Draws a history whose operations took effect in a drawn order.
pub fn drawn(dice: &mut SimRng, kind: Kind) -> Recorded {
    let mut recorded = Recorded::default();
    let count = dice.between(1, TXNS_MAX) as usize;
    for id in 1..=count {
        let outcome = match dice.between(0, 9) {
            0 => Outcome::Aborted,
            1 | 2 => Outcome::Unknown,
            _ => Outcome::Committed,
        };
        recorded.txns.push(Txn { id, outcome, ..super::super::txn_by_hand() });
    }
    let runs = match dice.between(0, 3) {
        0 | 1 => Runs::Serially,
        2 => Runs::OnSnapshots,
        _ => Runs::Torn,
    };
    let mut turns: Vec<usize> =
        (0..count).flat_map(|txn| vec![txn; dice.between(1, OPS_MAX) as usize]).collect();
    if runs != Runs::Serially {
        for at in (1..turns.len()).rev() {
            turns.swap(at, dice.index(at + 1));
        }
    }
    let mut state = State::default();
    let mut snapshots: Vec<Option<State>> = vec![None; count];
    let mut times = vec![(i64::MAX, 0); count];
    for (time, &txn) in turns.iter().enumerate() {
        let at = 10 * (time as i64 + 1);
        times[txn] = (times[txn].0.min(at), at + 9);
        let snapshot = snapshots[txn].get_or_insert_with(|| state.clone());
        let now = if runs == Runs::OnSnapshots { &*snapshot } else { &state };
        let value = 1_000 * (txn as i64 + 1) + time as i64;
        let op = draw_op(dice, kind, now, value, &mut recorded.names);
        let is_aborted = recorded.txns[txn].outcome == Outcome::Aborted;
        snapshot.apply(&op);
        // An aborted transaction leaves a trace only if operations are interleaved.
        let is_seen_at_once = match runs {
            Runs::Serially => !is_aborted,
            Runs::Torn => true,
            Runs::OnSnapshots => false,
        };
        if is_seen_at_once {
            state.apply(&op);
        }
        recorded.txns[txn].ops.push(op);
        let is_last = !turns[time + 1..].contains(&txn);
        if runs == Runs::OnSnapshots && is_last && !is_aborted {
            recorded.txns[txn].ops.iter().for_each(|op| state.apply(op));
        }
    }
    time(dice, &mut recorded, &times);
    if dice.between(0, 1) == 0 {
        add_final(&mut recorded, kind, &state);
    }
    recorded
}

fn key(dice: &mut SimRng, names: &mut Names) -> Name {
    names.name(Atom::Number(dice.between(1, KEYS) as i64))
}

fn draw_op(dice: &mut SimRng, kind: Kind, now: &State, value: i64, names: &mut Names) -> Op {
    let key = key(dice, names);
    let is_read = dice.between(0, 1) == 0;
    match kind {
        Kind::Lists if !is_read => Op::Append { key, value: names.name(Atom::Number(value)) },
        Kind::Rows if !is_read && dice.between(0, 2) == 0 => Op::Delete { key },
        Kind::Registers | Kind::Rows if !is_read => {
            Op::Write { key, value: names.name(Atom::Number(value)) }
        }
        Kind::Rows if dice.between(0, 2) > 0 => {
            let from = dice.between(1, KEYS) as i64;
            let to = from + dice.between(1, KEYS) as i64;
            let (from, to) = (names.name(Atom::Number(from)), names.name(Atom::Number(to)));
            scan(Range { from: Some(from), to: Some(to) }, now, names)
        }
        _ => Op::Read { key, seen: now.seen(key, kind == Kind::Lists) },
    }
}

fn scan(range: Range, now: &State, names: &Names) -> Op {
    let inside = now.rows.iter().filter(|(key, _)| range.contains(names, **key));
    Op::Scan { range, rows: inside.map(|(key, value)| (*key, *value)).collect() }
}

/// Gives transactions their times, or exempts all from real-time order. Some databases also report
/// an order, some of these reports are wrong, and some report the same position for several.
fn time(dice: &mut SimRng, recorded: &mut Recorded, times: &[(i64, i64)]) {
    let is_held = dice.between(0, 2) > 0;
    let slack = dice.between(0, 30);
    let (is_telling, is_lying, step) = (dice.chance(600), dice.chance(300), [1, 25][dice.index(2)]);
    for (txn, &(begin, end)) in recorded.txns.iter_mut().zip(times) {
        txn.is_held = is_held && dice.between(0, 9) > 0;
        txn.begin = begin - dice.between(0, slack) as i64;
        let is_open = txn.outcome == Outcome::Unknown && dice.between(0, 1) == 0;
        let place = if is_lying { dice.between(0, 100) as i64 } else { begin };
        txn.at = (is_telling && dice.chance(800)).then_some(place / step);
        txn.end = (!is_open).then_some(end + dice.between(0, slack) as i64);
    }
}

fn add_final(recorded: &mut Recorded, kind: Kind, state: &State) {
    let names = &mut recorded.names;
    let mut ops = Vec::new();
    if kind == Kind::Rows {
        ops.push(scan(Range { from: None, to: None }, state, names));
    } else {
        for key in 1..=KEYS as i64 {
            let key = names.name(Atom::Number(key));
            ops.push(Op::Read { key, seen: state.seen(key, kind == Kind::Lists) });
        }
    }
    let id = recorded.txns.len() + 1;
    recorded.txns.push(Txn { id, is_final: true, ops, ..super::super::txn_by_hand() });
}

/// Gives each transaction a level of its own, or none.
pub fn draw_levels(dice: &mut SimRng, recorded: &mut Recorded) {
    for txn in recorded.txns.iter_mut().filter(|txn| !txn.is_final) {
        txn.level = Isolation::ALL.get(dice.index(Isolation::ALL.len() + 1)).copied();
    }
}

/// Changes one value that a transaction read.
pub fn spoil(dice: &mut SimRng, recorded: &mut Recorded) {
    let written = recorded.txns.iter().flat_map(|txn| &txn.ops).filter_map(|op| match op {
        Op::Write { key, value } => Some((*key, *value)),
        _ => None,
    });
    let written: Vec<(Name, Name)> = written.collect();
    let reads = recorded.txns.iter_mut().flat_map(|txn| &mut txn.ops);
    let mut reads: Vec<&mut Op> =
        reads.filter(|op| matches!(op, Op::Read { .. } | Op::Scan { .. })).collect();
    if reads.is_empty() {
        return;
    }
    let chosen = dice.index(reads.len());
    match &mut *reads[chosen] {
        Op::Read { seen: Seen::List(values), .. } => spoil_list(dice, values),
        Op::Read { key, seen } => {
            let others: Vec<Name> =
                written.iter().filter(|(other, _)| other == key).map(|(_, v)| *v).collect();
            let at = dice.index(others.len() + 1);
            *seen = others.get(at).map_or(Seen::Nothing, |value| Seen::Value(*value));
        }
        Op::Scan { range, rows } => {
            let names = &recorded.names;
            let others = written.iter().filter(|(key, _)| range.contains(names, *key));
            let others: Vec<(Name, Name)> = others.copied().collect();
            if dice.between(0, 1) == 0 && !rows.is_empty() {
                rows.remove(dice.index(rows.len()));
            } else if !others.is_empty() {
                let (key, value) = others[dice.index(others.len())];
                rows.retain(|(other, _)| *other != key);
                rows.push((key, value));
            }
        }
        Op::Append { .. } | Op::Write { .. } | Op::Delete { .. } => unreachable!("only reads"),
    }
}

fn spoil_list(dice: &mut SimRng, values: &mut Vec<Name>) {
    match dice.between(0, 3) {
        0 => drop(values.pop()),
        1 if !values.is_empty() => drop(values.remove(0)),
        2 if values.len() > 1 => {
            let at = dice.between(1, values.len() as u64 - 1) as usize;
            values.swap(at - 1, at);
        }
        _ => values.extend(values.first().copied()),
    }
}
