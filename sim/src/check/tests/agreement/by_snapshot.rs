//! Tries every order of begins and commits.
//!
//! A history satisfies snapshot isolation if all begins and commits can be ordered so that each
//! transaction reads the database as of its begin, with its own writes (Berenson et al. 1995,
//! §4.2), and none of its keys was written between its begin and its commit (first committer wins).

use super::*;

#[derive(Clone, Copy)]
struct Active<'a> {
    txn: &'a Txn,
    began: usize,
}

/// Whether some order explains the history.
pub fn has_order(history: &Recorded) -> bool {
    let may_be = |txn: &&Txn| txn.outcome != Outcome::Aborted && !txn.is_final;
    let left: Vec<&Txn> = history.txns.iter().filter(may_be).collect();
    let now = Now { state: State::default(), time: 0, written: BTreeMap::new() };
    extend(history, &left, &[], &now)
}

#[derive(Clone)]
struct Now {
    state: State,
    time: usize,
    /// The time of the last write of each key.
    written: BTreeMap<Name, usize>,
}

fn extend(history: &Recorded, left: &[&Txn], active: &[Active<'_>], now: &Now) -> bool {
    let is_over = left.iter().all(|txn| txn.outcome == Outcome::Unknown);
    if is_over && active.is_empty() && by_order::is_end(history, &now.state) {
        return true;
    }
    let commits = (0..active.len()).any(|next| {
        let Active { txn, began } = active[next];
        let mut after = now.clone();
        after.time += 1;
        for op in &txn.ops {
            let (Op::Append { key, .. } | Op::Write { key, .. } | Op::Delete { key }) = op else {
                continue;
            };
            if now.written.get(key).is_some_and(|at| *at > began) {
                return false;
            }
            after.written.insert(*key, after.time);
            after.state.apply(op);
        }
        let mut others = active.to_vec();
        others.remove(next);
        extend(history, left, &others, &after)
    });
    commits
        || (0..left.len()).any(|next| {
            if now.state.after(left[next], &history.names).is_none() {
                return false;
            }
            let mut rest = left.to_vec();
            let txn = rest.remove(next);
            let all = [active, &[Active { txn, began: now.time }]].concat();
            extend(history, &rest, &all, now)
        })
}
