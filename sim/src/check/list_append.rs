//! Converts the simulator's histories of list-append, with the final state and the versions that
//! nodes returned.
//!
//! A history is observed (`observed.rs`) and checked like any other (`recorded.rs`). In addition,
//! the versions must agree with the lists.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pangea_core::guarantee::Isolation;
use pangea_core::hash::HashMap;
use pangea_core::key::KeyRange;
use pangea_core::workload::list_append::{LISTS, Op as Called, decode_key, decode_list};
use pangea_core::workload::list_append::{Read, decode_ops, decode_reads};
use pangea_core::workload::{Reach, Rows};

use super::observed::{Observed, ended, number};
use super::{Violation, explain};
use crate::history::{History, Operation};
use crate::record::{Name, Names, Op, Recorded, Seen, Txn};
use crate::settings::RealTime;

/// The checker's name in violations.
const CHECKER: &str = "list-append";

/// The final lists.
pub type Lists = BTreeMap<u64, Vec<u64>>;

/// Converts a history of list-append to the recorded form, with the final lists if they are known.
///
/// # Errors
/// If a result or a final list can't be decoded.
pub fn observe(
    history: &History,
    end: Option<&dyn Rows>,
    real_time: RealTime,
) -> Result<Observed, Violation> {
    let mut observed = Observed::new(history, real_time, CHECKER, operations_of)?;
    if let Some(end) = end {
        observed.add_final_lists(&final_lists(end)?, ended(history));
    }
    Ok(observed)
}

fn violation(anomaly: &'static str, story: String) -> Violation {
    Violation::new(CHECKER, anomaly, story)
}

/// Returns the final lists.
///
/// # Errors
/// If a record can't be decoded.
pub fn final_lists(end: &dyn Rows) -> Result<Lists, Violation> {
    let mut lists = Ok(Lists::new());
    end.scan(LISTS, &KeyRange::all(), &mut |key, value| match (
        decode_key(key),
        decode_list(Some(value)),
        &mut lists,
    ) {
        (Ok(list), Ok(values), Ok(lists)) => {
            lists.insert(list, values);
            ControlFlow::Continue(())
        }
        _ => {
            lists = Err(violation("unreadable", format!("key {key:02x?} in the final state")));
            ControlFlow::Break(())
        }
    });
    lists
}

/// Returns an operation's calls with their results.
fn operations_of(operation: &Operation, names: &mut Names) -> Result<Vec<Op>, String> {
    let called = decode_ops(&operation.call.args).map_err(|error| error.to_string())?;
    let reads = operation.result().map(decode_reads).transpose();
    let reads = reads.map_err(|error| error.to_string())?;
    ops(&called, reads.as_deref(), names)
        .ok_or_else(|| "the answer does not match the request".into())
}

/// Returns operations with their results; without results, only the appends.
fn ops(called: &[Called], reads: Option<&[Read]>, names: &mut Names) -> Option<Vec<Op>> {
    let mut ops = Vec::new();
    let mut answers = reads.unwrap_or(&[]).iter();
    for call in called {
        let (first, count, reach) = match *call {
            Called::Append { list, value } => {
                ops.push(append(names, list, value));
                continue;
            }
            Called::Read { list } => (list, 1, Reach::ALL),
            Called::ReadRange { first, count, reach } => (first, count, reach),
        };
        let mut found = 0;
        for list in reach.in_order(first, count).take_while(|_| reads.is_some()) {
            let answer = answers.next().filter(|read| read.list == list)?;
            ops.push(read(names, list, &answer.values));
            found += u64::from(!answer.values.is_empty());
            if reach.is_over(found) {
                break;
            }
        }
    }
    answers.next().is_none().then_some(ops)
}

/// Creates an append.
pub fn append(names: &mut Names, list: u64, value: u64) -> Op {
    Op::Append { key: names.name(number(list)), value: names.name(number(value)) }
}

/// Creates a read of a list.
pub fn read(names: &mut Names, list: u64, values: &[u64]) -> Op {
    let seen = Seen::List(values.iter().map(|value| names.name(number(*value))).collect());
    Op::Read { key: names.name(number(list)), seen }
}

impl Observed {
    /// Adds the final state as the reads of a last transaction: all lists that exist, and lists
    /// that have appends but do not exist.
    pub fn add_final_lists(&mut self, lists: &Lists, at: u64) {
        let Recorded { txns, names } = &mut self.recorded;
        let mut ops: Vec<Op> =
            lists.iter().map(|(list, values)| read(names, *list, values)).collect();
        let there: BTreeMap<Name, ()> = ops.iter().map(|op| (key(op), ())).collect();
        let appended = txns.iter().flat_map(|txn| &txn.ops).filter(is_append).map(key);
        let mut missing: Vec<Name> = appended.filter(|key| !there.contains_key(key)).collect();
        missing.sort_unstable();
        missing.dedup();
        ops.extend(missing.into_iter().map(|key| Op::Read { key, seen: Seen::List(Vec::new()) }));
        self.push_final(ops, at);
    }
}

/// Removes the reads of lists that did not exist by transactions of repeatable read. Transactions
/// read lists by scans, so at that level a list that they did not find may have appeared before
/// they commit.
pub fn forget_missing_lists(observed: &mut Observed) {
    let is_missing =
        |op: &Op| matches!(op, Op::Read { seen: Seen::List(values), .. } if values.is_empty());
    let is_held_to_items = |txn: &&mut Txn| txn.level == Some(Isolation::RepeatableRead);
    for txn in observed.recorded.txns.iter_mut().filter(is_held_to_items) {
        txn.ops.retain(|op| !is_missing(op));
    }
}

/// Checks that appends are in the order of their versions, and that a reader of a snapshot sees
/// exactly the appends up to its version.
///
/// # Errors
/// The first append or reader that violates this.
pub fn check_versions(observed: &Observed) -> Result<(), Violation> {
    let Recorded { txns, names } = &observed.recorded;
    let mut versions = HashMap::default();
    for (txn, named) in txns.iter().zip(&observed.versions) {
        let Some(at) = named.committed_at else { continue };
        for op in &txn.ops {
            if let Op::Append { key, value } = op {
                versions.insert((*key, *value), at);
            }
        }
    }
    let lists = txns.iter().filter(|txn| txn.is_final).flat_map(|txn| &txn.ops);
    let lists: HashMap<Name, &[Name]> = lists.filter_map(list).collect();
    let mut in_order: Vec<(&Name, &&[Name])> = lists.iter().collect();
    in_order.sort_unstable();
    for (key, values) in in_order {
        let mut newest = (0, None);
        for value in *values {
            let Some(&at) = versions.get(&(*key, *value)) else { continue };
            if at < newest.0 {
                let (at_before, before) = newest;
                let story = format!(
                    "in list {}, {} of version {at} follows {} of {at_before}",
                    names.atom(*key),
                    names.atom(*value),
                    names.atom(before.unwrap_or(*value)),
                );
                return Err(violation("version order", story));
            }
            newest = (at, Some(*value));
        }
    }
    for (at, named) in (0..).zip(&observed.versions) {
        if let Some(read_at) = named.read_at {
            check_snapshot(observed, at, read_at, &lists, &versions)?;
        }
    }
    Ok(())
}

/// Checks that a reader of a version sees the content of that version.
fn check_snapshot(
    observed: &Observed,
    txn: u32,
    at: u64,
    lists: &HashMap<Name, &[Name]>,
    versions: &HashMap<(Name, Name), u64>,
) -> Result<(), Violation> {
    let Recorded { txns, names } = &observed.recorded;
    for (key, values) in txns[txn as usize].ops.iter().filter_map(list) {
        let all = lists.get(&key).copied().unwrap_or_default();
        let (seen, unseen) = all.split_at(values.len());
        let version = |value: &Name| versions.get(&(key, *value)).copied();
        let is_late = |v: &&Name| version(v).is_some_and(|written| written > at);
        let is_early = |v: &&Name| version(v).is_some_and(|written| written <= at);
        let wrong = seen.iter().find(is_late).map(|v| (v, "holds"));
        if let Some((value, what)) =
            wrong.or_else(|| unseen.iter().find(is_early).map(|v| (v, "lacks")))
        {
            let story = format!(
                "{} read list {} at version {at}; it {what} {} of version {}",
                explain::txn(&observed.recorded, txn),
                names.atom(key),
                names.atom(*value),
                version(value).unwrap_or_default(),
            );
            return Err(violation("wrong snapshot", story));
        }
    }
    Ok(())
}

fn is_append(op: &&Op) -> bool {
    matches!(op, Op::Append { .. })
}

fn key(op: &Op) -> Name {
    match op {
        Op::Append { key, .. } | Op::Read { key, .. } => *key,
        Op::Write { .. } | Op::Delete { .. } | Op::Scan { .. } => {
            unreachable!("list-append has only lists")
        }
    }
}

/// Returns the list that an operation read.
fn list(op: &Op) -> Option<(Name, &[Name])> {
    match op {
        Op::Read { key, seen: Seen::List(values) } => Some((*key, values)),
        _ => None,
    }
}
