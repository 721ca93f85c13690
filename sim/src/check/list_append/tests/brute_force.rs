//! The checker against one that tries every order, on small histories that are right, wrong, or
//! made wrong.
//!
//! A history is strictly serializable when its transactions can be put in a line, such that each
//! reads what the appends before it make of the lists, the end is the final lists, and none that
//! ended before another began stands after it. Those that nobody knows about may be left out.

use super::*;
use crate::dice::Dice;

const HISTORIES: u64 = 10_000;
const TXNS_MAX: u64 = 5;
const LISTS: u64 = 3;
const OPS_MAX: u64 = 3;

/// Whether some order explains everything.
fn has_order(txns: &[Txn], lists: &Lists) -> bool {
    let left: Vec<&Txn> = txns.iter().filter(|txn| txn.fate != Aborted).collect();
    extend(&left, &Lists::new(), lists)
}

/// Whether the transactions that are left can follow these lists.
fn extend(left: &[&Txn], now: &Lists, end: &Lists) -> bool {
    if left.iter().all(|txn| txn.fate == Unknown) && now == end {
        return true;
    }
    (0..left.len()).any(|next| {
        let begin = |txn: &Txn| txn.window.map(|(begin, _)| begin);
        let ended_before = |txn: &&Txn| match (txn.window, begin(left[next])) {
            (Some((_, ended)), Some(begin)) => ended < begin,
            _ => false,
        };
        // One of unknown fate that is left out is no reason for another to wait.
        let must_wait = |txn: &&&Txn| ended_before(txn) && txn.fate == Happened;
        if left.iter().any(|txn| must_wait(&txn)) {
            return false;
        }
        let Some(after) = replay(left[next], now) else { return false };
        let mut rest = left.to_vec();
        rest.remove(next);
        // Nor may it come later than one that began after it had ended.
        rest.retain(|txn| !(txn.fate == Unknown && ended_before(txn)));
        extend(&rest, &after, end)
    })
}

/// The lists after a transaction, if it reads just what they are.
fn replay(txn: &Txn, before: &Lists) -> Option<Lists> {
    let mut lists = before.clone();
    for done in &txn.did {
        match done {
            Did::Append { list, value } => lists.entry(*list).or_default().push(*value),
            Did::Read { list, values } => {
                if lists.get(list).map_or(&[][..], Vec::as_slice) != values {
                    return None;
                }
            }
        }
    }
    Some(lists)
}

/// A history whose operations took effect in an order that is drawn: transaction by transaction,
/// or one operation at a time.
fn drawn(dice: &mut Dice) -> (Vec<Txn>, Lists) {
    let count = dice.between(1, TXNS_MAX);
    let mut all: Vec<Txn> = (0..count)
        .map(|id| Txn {
            id: id as usize,
            who: "drawn".to_owned(),
            fate: match dice.between(0, 9) {
                0 => Aborted,
                1 | 2 => Unknown,
                _ => Happened,
            },
            did: Vec::new(),
            window: None,
            committed_at: None,
            read_at: None,
        })
        .collect();
    let is_serial = dice.between(0, 2) > 0;
    let mut turns: Vec<usize> =
        (0..count as usize).flat_map(|txn| vec![txn; dice.between(1, OPS_MAX) as usize]).collect();
    if !is_serial {
        for at in (1..turns.len()).rev() {
            turns.swap(at, dice.index(at + 1));
        }
    }
    let mut lists = Lists::new();
    let mut times = vec![(u64::MAX, 0); count as usize];
    for (time, &txn) in turns.iter().enumerate() {
        let (list, time) = (dice.between(1, LISTS), 10 * (time as u64 + 1));
        times[txn] = (times[txn].0.min(time), time + 9);
        let fate = all[txn].fate;
        if dice.between(0, 1) == 0 {
            let value = 1_000 * (txn as u64 + 1) + time;
            all[txn].did.push(append(list, value));
            // What aborts leaves a trace only where transactions are torn into operations.
            if fate != Aborted || !is_serial {
                lists.entry(list).or_default().push(value);
            }
        } else if fate == Happened {
            let values = lists.get(&list).cloned().unwrap_or_default();
            all[txn].did.push(read(list, &values));
        }
    }
    if dice.between(0, 1) == 0 {
        let slack = dice.between(0, 30);
        for (txn, (begin, end)) in all.iter_mut().zip(times) {
            let is_open = txn.fate == Unknown && dice.between(0, 1) == 0;
            let end = if is_open { u64::MAX } else { end + dice.between(0, slack) };
            txn.window = Some((begin.saturating_sub(dice.between(0, slack)), end));
        }
    }
    (all, lists)
}

/// Changes one thing that somebody saw, or the end.
fn spoil(dice: &mut Dice, txns: &mut [Txn], lists: &mut Lists) {
    let reads = txns.iter_mut().flat_map(|txn| &mut txn.did).filter_map(|done| match done {
        Did::Read { values, .. } => Some(values),
        Did::Append { .. } => None,
    });
    let mut seen: Vec<&mut Vec<u64>> = reads.chain(lists.values_mut()).collect();
    if seen.is_empty() {
        return;
    }
    let chosen = dice.index(seen.len());
    let values = &mut *seen[chosen];
    match dice.between(0, 3) {
        0 => drop(values.pop()),
        1 if !values.is_empty() => drop(values.remove(0)),
        2 if values.len() > 1 => {
            let at = dice.between(1, values.len() as u64 - 1) as usize;
            values.swap(at - 1, at);
        }
        _ => values.extend(values.first().copied()),
    }
    lists.retain(|_, values| !values.is_empty());
}

#[test]
fn the_checker_agrees_with_one_that_tries_every_order() {
    let mut tally = [0; 2];
    for seed in 0..HISTORIES {
        let dice = &mut Dice::fork(seed, "brute force", 0);
        let (mut txns, mut lists) = drawn(dice);
        if dice.between(0, 2) == 0 {
            spoil(dice, &mut txns, &mut lists);
        }
        let is_right = has_order(&txns, &lists);
        let checked = check_txns(&txns, &lists);
        assert_eq!(checked.is_ok(), is_right, "seed {seed}: {checked:?}\n{txns:#?}\n{lists:?}");
        tally[usize::from(is_right)] += 1;
    }
    assert!(tally.iter().all(|&count| count > HISTORIES / 5), "{tally:?} wrong and right");
}
