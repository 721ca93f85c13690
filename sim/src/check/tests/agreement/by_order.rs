//! Tries every order of the transactions.
//!
//! A history is strictly serializable if its transactions can be ordered so that each reads the
//! state that those before it produce, the final state is the one that all of them produce, and no
//! transaction comes after one that began after it had ended. Transactions of unknown outcome may
//! be left out. Serializability is the same without the times.

use super::*;

/// Whether some order explains the history.
pub fn has_order(history: &Recorded, is_strict: bool) -> bool {
    let may_be = |txn: &&Txn| txn.outcome != Outcome::Aborted && !txn.is_final;
    let left: Vec<&Txn> = history.txns.iter().filter(may_be).collect();
    extend(history, &left, &State::default(), is_strict)
}

/// Whether the state matches the history's reads of the final state.
pub fn is_end(history: &Recorded, state: &State) -> bool {
    let mut finals = history.txns.iter().filter(|txn| txn.is_final);
    finals.all(|txn| state.after(txn, &history.names).is_some())
}

/// Whether the remaining transactions can follow this state.
fn extend(history: &Recorded, left: &[&Txn], now: &State, is_strict: bool) -> bool {
    let is_optional = |txn: &&Txn| txn.outcome == Outcome::Unknown;
    if left.iter().all(is_optional) && is_end(history, now) {
        return true;
    }
    (0..left.len()).any(|next| {
        // A transaction of unknown outcome that is left out does not delay others, and the time at
        // which its client stopped waiting implies nothing.
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
