//! Every order of the transactions.
//!
//! A history is strictly serializable when its transactions can be put in a line, such that each
//! reads what those before it make of the database, the final state is what all of them make, and
//! none that ended before another began stands after it. Those that nobody knows about may be left
//! out. Serializable is the same without the ends and beginnings.

use super::*;

/// Whether some order explains everything.
pub fn has_order(history: &Recorded, is_strict: bool) -> bool {
    let may_be = |txn: &&Txn| txn.outcome != Outcome::Aborted && !txn.is_final;
    let left: Vec<&Txn> = history.txns.iter().filter(may_be).collect();
    extend(history, &left, &State::default(), is_strict)
}

/// Whether the final state is what the history saw of it.
pub fn is_end(history: &Recorded, state: &State) -> bool {
    let mut finals = history.txns.iter().filter(|txn| txn.is_final);
    finals.all(|txn| state.after(txn, &history.names).is_some())
}

/// Whether the transactions that are left can follow this state.
fn extend(history: &Recorded, left: &[&Txn], now: &State, is_strict: bool) -> bool {
    let is_optional = |txn: &&Txn| txn.outcome == Outcome::Unknown;
    if left.iter().all(is_optional) && is_end(history, now) {
        return true;
    }
    (0..left.len()).any(|next| {
        // One of unknown outcome that is left out is no reason for another to wait, and when its
        // client gave up says nothing.
        let ended_before = |txn: &&Txn| {
            let is_held = is_strict && txn.is_held && left[next].is_held;
            let is_told = txn.outcome == Outcome::Committed;
            is_held && is_told && txn.end.is_some_and(|end| end < left[next].begin)
        };
        if left.iter().any(ended_before) {
            return false;
        }
        let Some(after) = now.after(left[next], &history.names) else { return false };
        let mut rest = left.to_vec();
        rest.remove(next);
        extend(history, &rest, &after, is_strict)
    })
}
