//! Compares the checker with four exhaustive ones, on small histories that are right, wrong, or
//! made wrong.
//!
//! - [`by_order`] tries every order of transactions: serializable and strictly so, by definition.
//! - [`by_snapshot`] tries every order of begins and commits: snapshot isolation.
//! - [`by_version`] tries every order of the versions of every key, and every version that a read
//!   may have seen, and builds Adya's graph: all models of one level but the strict one.
//! - [`by_level`] tries every order of begins and commits, at the level of each transaction.

mod by_level;
mod by_order;
mod by_snapshot;
mod by_version;
mod draw;

use std::collections::BTreeMap;

use pangea_core::guarantee::Isolation;

use super::{Atom, Name, Outcome, Recorded, Txn};
use crate::check::model::Model;
use crate::check::recorded::{Verdict, check};
use crate::record::write::write;
use crate::record::{Names, Op, Seen};
use crate::rng::SimRng;
use draw::{Kind, draw_levels, drawn, spoil};

const HISTORIES: u64 = 10_000;

/// A database of lists and rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    lists: BTreeMap<Name, Vec<Name>>,
    rows: BTreeMap<Name, Name>,
}

impl State {
    /// Returns the state after a transaction, if its reads match the state.
    fn after(&self, txn: &Txn, names: &Names) -> Option<Self> {
        let mut state = self.clone();
        for op in &txn.ops {
            if !state.agrees(op, names) {
                return None;
            }
            state.apply(op);
        }
        Some(state)
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Append { key, value } => self.lists.entry(*key).or_default().push(*value),
            Op::Write { key, value } => drop(self.rows.insert(*key, *value)),
            Op::Delete { key } => drop(self.rows.remove(key)),
            Op::Read { .. } | Op::Scan { .. } => {}
        }
    }

    /// Returns the result of a read of a key.
    fn seen(&self, key: Name, is_list: bool) -> Seen {
        match self.rows.get(&key) {
            _ if is_list => Seen::List(self.lists.get(&key).cloned().unwrap_or_default()),
            Some(value) => Seen::Value(*value),
            None => Seen::Nothing,
        }
    }

    fn agrees(&self, op: &Op, names: &Names) -> bool {
        match op {
            Op::Append { .. } | Op::Write { .. } | Op::Delete { .. } => true,
            Op::Read { key, seen } => self.seen(*key, matches!(seen, Seen::List(_))) == *seen,
            Op::Scan { range, rows } => {
                let inside = |(key, _): &(&Name, &Name)| range.contains(names, **key);
                let there: BTreeMap<Name, Name> =
                    self.rows.iter().filter(inside).map(|(key, value)| (*key, *value)).collect();
                there == rows.iter().copied().collect()
            }
        }
    }
}

/// The numbers of wrong and right histories.
#[derive(Debug, Default)]
struct Tally([u64; 2]);

impl Tally {
    #[track_caller]
    fn assert(&mut self, seed: u64, history: &Recorded, model: Model, is_right: bool) {
        let verdict = check(history, model, "agreement");
        let expected = if is_right { "right" } else { "wrong" };
        let agrees = match &verdict {
            Verdict::Holds => is_right,
            Verdict::Broken(_) => !is_right,
            Verdict::Open => false,
        };
        assert!(agrees, "seed {seed}, {model}, {expected}: {verdict:?}\n{}", in_words(history));
        self.0[usize::from(is_right)] += 1;
    }

    #[track_caller]
    fn assert_both(&self, least: u64) {
        assert!(self.0.iter().all(|count| *count > least), "{self:?} wrong and right");
    }
}

/// Formats a history as in a file.
fn in_words(history: &Recorded) -> String {
    let mut text = Vec::new();
    write(history, &mut text).expect("writing to memory does not fail");
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// The same history with every combination of deletes of unknown outcome that found no row.
fn variants(history: &Recorded) -> Vec<Recorded> {
    let mut all = vec![history.clone()];
    for (txn, it) in history.txns.iter().enumerate() {
        let mut changed = Vec::new();
        for (at, op) in it.ops.iter().enumerate() {
            if let Op::Append { key, .. } | Op::Write { key, .. } | Op::Delete { key } = op {
                let is_first = !changed.contains(key);
                changed.push(*key);
                if it.outcome == Outcome::Unknown && is_first && matches!(op, Op::Delete { .. }) {
                    let mut others = all.clone();
                    let seen = Seen::Nothing;
                    others.iter_mut().for_each(|other| {
                        other.txns[txn].ops[at] = Op::Read { key: *key, seen: seen.clone() };
                    });
                    all.append(&mut others);
                }
            }
        }
    }
    all
}

/// Visits the histories of one kind of data that all tests use.
fn each(kind: Kind, mut visit: impl FnMut(u64, &mut Recorded)) {
    for seed in 0..HISTORIES {
        let dice = &mut SimRng::fork(seed, kind.name(), 0);
        let mut history = drawn(dice, kind);
        if dice.between(0, 2) == 0 {
            spoil(dice, &mut history);
        }
        visit(seed, &mut history);
    }
}

/// Checks agreement on serializability, strict and plain.
fn agree_by_order(kind: Kind) {
    let (mut plain, mut strict) = (Tally::default(), Tally::default());
    each(kind, |seed, history| {
        let is_right = by_order::has_order(history, false);
        plain.assert(seed, history, Model::Serializable, is_right);
        let is_right = by_order::has_order(history, true);
        strict.assert(seed, history, Model::StrictSerializable, is_right);
    });
    plain.assert_both(HISTORIES / 8);
    strict.assert_both(HISTORIES / 8);
}

/// Checks agreement on the weaker models, and agreement of the exhaustive checkers with each other.
fn agree_by_version(kind: Kind) {
    let mut tallies = [(); 4].map(|()| Tally::default());
    each(kind, |seed, history| {
        let variants = variants(history);
        for (model, tally) in Model::ALL[1..].iter().zip(&mut tallies) {
            let is_right = variants.iter().any(|it| by_version::is_possible(it, *model));
            let other = match model {
                Model::Serializable => by_order::has_order(history, false),
                Model::SnapshotIsolation => variants.iter().any(by_snapshot::has_order),
                _ => is_right,
            };
            assert_eq!(other, is_right, "seed {seed}, {model}\n{}", in_words(history));
            tally.assert(seed, history, *model, is_right);
        }
    });
    tallies.iter().for_each(|tally| tally.assert_both(HISTORIES / 20));
}

/// Checks agreement on mixed levels, and that one level is the same as its model.
fn agree_by_level(kind: Kind) {
    let mut mixed = Tally::default();
    each(kind, |seed, history| {
        let strict = check(history, Model::StrictSerializable, "agreement") == Verdict::Holds;
        mixed.assert(seed, history, Model::Mixed, strict);
        for level in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Snapshot] {
            history.txns.iter_mut().for_each(|txn| txn.level = Some(level));
            let alone = check(history, Model::of(level.guarantee()), "agreement");
            mixed.assert(seed, history, Model::Mixed, alone == Verdict::Holds);
        }
    });
    let mut mixed = Tally::default();
    each(kind, |seed, history| {
        draw_levels(&mut SimRng::fork(seed, "levels", 0), history);
        let is_right = variants(history).iter().any(by_level::has_order);
        mixed.assert(seed, history, Model::Mixed, is_right);
    });
    mixed.assert_both(HISTORIES / 20);
}

#[test]
fn lists_agree_with_every_order() {
    agree_by_order(Kind::Lists);
}

#[test]
fn registers_agree_with_every_order() {
    agree_by_order(Kind::Registers);
}

#[test]
fn ranges_agree_with_every_order() {
    agree_by_order(Kind::Rows);
}

#[test]
fn lists_agree_with_every_order_of_versions() {
    agree_by_version(Kind::Lists);
}

#[test]
fn registers_agree_with_every_order_of_versions() {
    agree_by_version(Kind::Registers);
}

#[test]
fn ranges_agree_with_every_order_of_versions() {
    agree_by_version(Kind::Rows);
}

#[test]
fn lists_agree_with_every_order_at_levels_of_their_own() {
    agree_by_level(Kind::Lists);
}

#[test]
fn registers_agree_with_every_order_at_levels_of_their_own() {
    agree_by_level(Kind::Registers);
}

#[test]
fn ranges_agree_with_every_order_at_levels_of_their_own() {
    agree_by_level(Kind::Rows);
}
