//! Tries every order of begins and commits of transactions with levels of their own.
//!
//! A transaction of the snapshot level has a begin and a commit, as in [`by_snapshot`]. All others
//! take place at their commit. At the serializable level, all reads are of the state then. At
//! repeatable read that is so for items, and a row that a scan did not find may have appeared. At
//! read committed, each read returns something that was committed at some time before. What ended
//! before the begin of a serializable transaction has committed before it.

use super::*;
use crate::record::Range;

/// Whether some order explains the history.
pub fn has_order(history: &Recorded) -> bool {
    let may_be = |txn: &&Txn| txn.outcome != Outcome::Aborted && !txn.is_final;
    let left: Vec<&Txn> = history.txns.iter().filter(may_be).collect();
    let now = Now { past: vec![State::default()], written: BTreeMap::new() };
    extend(history, &left, &[], &now)
}

#[derive(Clone, Copy)]
struct Active<'a> {
    txn: &'a Txn,
    began: usize,
}

#[derive(Clone)]
struct Now {
    /// The states after each commit.
    past: Vec<State>,
    /// The number of commits up to the last write of each key.
    written: BTreeMap<Name, usize>,
}

impl Now {
    fn state(&self) -> &State {
        self.past.last().expect("the first state exists")
    }

    fn commit(&self, txn: &Txn) -> Self {
        let mut after = self.clone();
        let mut state = self.state().clone();
        for op in &txn.ops {
            state.apply(op);
            if let Some(key) = written(op) {
                after.written.insert(key, self.past.len());
            }
        }
        after.past.push(state);
        after
    }
}

fn written(op: &Op) -> Option<Name> {
    match op {
        Op::Append { key, .. } | Op::Write { key, .. } | Op::Delete { key } => Some(*key),
        Op::Read { .. } | Op::Scan { .. } => None,
    }
}

fn extend(history: &Recorded, left: &[&Txn], active: &[Active<'_>], now: &Now) -> bool {
    let is_over = left.iter().all(|txn| txn.outcome == Outcome::Unknown);
    if is_over && active.is_empty() && by_order::is_end(history, now.state()) {
        return true;
    }
    let commits = (0..active.len()).any(|next| {
        let Active { txn, began } = active[next];
        let is_late = |key| now.written.get(&key).is_some_and(|at| *at >= began);
        if txn.ops.iter().filter_map(written).any(is_late) {
            return false;
        }
        let mut others = active.to_vec();
        others.remove(next);
        extend(history, left, &others, &now.commit(txn))
    });
    commits
        || (0..left.len()).any(|next| {
            let (mut rest, mut open) = (left.to_vec(), active.to_vec());
            let txn = rest.remove(next);
            let names = &history.names;
            let level = txn.level.unwrap_or(Isolation::Serializable);
            let must_be_before = |other: &Txn| {
                let is_held = txn.is_held && other.is_held && other.outcome == Outcome::Committed;
                is_held && other.end.is_some_and(|end| end < txn.begin)
            };
            let mut before = rest.iter().copied().chain(active.iter().map(|it| it.txn));
            match level {
                Isolation::Serializable if before.any(must_be_before) => false,
                Isolation::Serializable => {
                    let fits = now.state().after(txn, names).is_some();
                    fits && extend(history, &rest, active, &now.commit(txn))
                }
                Isolation::Snapshot => {
                    open.push(Active { txn, began: now.past.len() });
                    now.state().after(txn, names).is_some() && extend(history, &rest, &open, now)
                }
                Isolation::ReadCommitted | Isolation::RepeatableRead => {
                    let from =
                        if level == Isolation::ReadCommitted { 0 } else { now.past.len() - 1 };
                    let fits = reads_fit(txn, &now.past, from, history);
                    fits && extend(history, &rest, active, &now.commit(txn))
                }
            }
        })
}

/// Whether each read of an item returns what it was in one of the states after the first `from`,
/// with the transaction's own writes, and each row that a scan did not find was once missing.
fn reads_fit(txn: &Txn, past: &[State], from: usize, history: &Recorded) -> bool {
    (0..txn.ops.len()).all(|at| {
        let own = |key: Name| txn.ops[..at].iter().filter(move |op| written(op) == Some(key));
        let seen_in = |states: &[State], key: Name, seen: &Seen| {
            states.iter().any(|state| {
                let mut state = state.clone();
                own(key).for_each(|op| state.apply(op));
                state.seen(key, matches!(seen, Seen::List(_))) == *seen
            })
        };
        match &txn.ops[at] {
            Op::Read { key, seen } => seen_in(&past[from..], *key, seen),
            Op::Scan { range, rows } => all_rows(history, *range).into_iter().all(|key| match rows
                .iter()
                .find(|(row, _)| *row == key)
            {
                Some((_, value)) => seen_in(&past[from..], key, &Seen::Value(*value)),
                None => seen_in(past, key, &Seen::Nothing),
            }),
            Op::Append { .. } | Op::Write { .. } | Op::Delete { .. } => true,
        }
    })
}

/// Returns all rows within a range that occur in a history.
fn all_rows(history: &Recorded, range: Range) -> Vec<Name> {
    let mut all = Vec::new();
    for op in history.txns.iter().flat_map(|txn| &txn.ops) {
        match op {
            Op::Write { key, .. } | Op::Delete { key } | Op::Read { key, .. } => all.push(*key),
            Op::Scan { rows, .. } => all.extend(rows.iter().map(|(key, _)| *key)),
            Op::Append { .. } => {}
        }
    }
    all.retain(|key| range.contains(&history.names, *key));
    all
}
