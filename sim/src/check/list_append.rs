//! The simulator's histories of list-append, with the final state and the versions that nodes
//! named.
//!
//! A history becomes a recorded one, with the final lists as what a last transaction read, and is
//! checked as any other ([`super::recorded`]). The simulator knows more than clients do: at which
//! version each transaction's appends are held, and which version a reader of a snapshot saw. These
//! must agree with the lists.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pangea_core::hash::HashMap;
use pangea_core::key::KeyRange;
use pangea_core::workload::Rows;
use pangea_core::workload::list_append::{LISTS, Op as Called, decode_key, decode_list};
use pangea_core::workload::list_append::{Read, decode_ops, decode_reads};

use super::model::Model;
use super::recorded::check as check_recorded;
use super::{Violation, explain};
use crate::history::{End, History, How, Operation};
use crate::record::{Atom, Name, Names, Op, Outcome, Recorded, Seen, Txn};
use crate::settings::RealTime;

/// The checker's name in stories.
const CHECKER: &str = "list-append";

/// The final lists.
pub type Lists = BTreeMap<u64, Vec<u64>>;

/// The versions that nodes named to the client of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The one that holds its appends.
    pub committed_at: Option<u64>,
    /// The one that it read, if it read a snapshot.
    pub read_at: Option<u64>,
}

/// A history in the recorded form, with what only the simulator knows.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The history, the final state last.
    pub recorded: Recorded,
    /// Versions, by transaction. The final state has none.
    pub versions: Vec<Versions>,
}

/// Checks a history of list-append against the final state.
///
/// # Errors
/// The first anomaly, and the transactions in it.
pub fn check(history: &History, end: &dyn Rows, real_time: RealTime) -> Result<(), Violation> {
    let mut observed = observe(history, real_time)?;
    observed.add_final(&final_lists(end)?, ended(history));
    check_observed(&observed)
}

/// A history of list-append as a recorded one, with the final lists if they are known.
///
/// # Errors
/// When an answer can't be read.
pub fn recorded(
    history: &History,
    end: Option<&Lists>,
    real_time: RealTime,
) -> Result<Recorded, Violation> {
    let mut observed = observe(history, real_time)?;
    if let Some(lists) = end {
        observed.add_final(lists, ended(history));
    }
    Ok(observed.recorded)
}

/// When the last client was told something.
fn ended(history: &History) -> u64 {
    let ended = history.operations.iter().filter_map(|operation| operation.ended);
    ended.map(|at| at.us).max().unwrap_or_default()
}

/// Checks a history in the recorded form. Only transactions that are held to real time are, so
/// strict serializability is what the others have as serializability.
///
/// # Errors
/// The first anomaly, and the transactions in it.
pub fn check_observed(observed: &Observed) -> Result<(), Violation> {
    let checked = check_recorded(&observed.recorded, Model::StrictSerializable, CHECKER);
    checked.into_result()?;
    observed.check_versions()
}

/// A history of list-append in the recorded form.
fn observe(history: &History, real_time: RealTime) -> Result<Observed, Violation> {
    let mut observed = Observed::default();
    for (at, operation) in history.operations.iter().enumerate() {
        let names = &mut observed.recorded.names;
        let (txn, versions) = txn(at + 1, operation, real_time, names)?;
        observed.recorded.txns.push(txn);
        observed.versions.push(versions);
    }
    Ok(observed)
}

fn violation(anomaly: &'static str, story: String) -> Violation {
    Violation::new(CHECKER, anomaly, story)
}

/// A number as a key or a value.
pub fn number(number: u64) -> Atom {
    i64::try_from(number).map_or_else(|_| Atom::Text(number.to_string().into()), Atom::Number)
}

/// The final lists.
///
/// # Errors
/// When a record can't be read.
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

fn txn(
    id: usize,
    operation: &Operation,
    real_time: RealTime,
    names: &mut Names,
) -> Result<(Txn, Versions), Violation> {
    let unreadable = |what: String| violation("unreadable", format!("T{id}: {what}"));
    let called = decode_ops(&operation.call.args).map_err(|error| unreadable(error.to_string()))?;
    let outcome = match operation.end {
        End::Committed { .. } | End::Read { .. } => Outcome::Committed,
        End::Ambiguous | End::Open => Outcome::Unknown,
        End::Aborted(_) | End::Refused => Outcome::Aborted,
    };
    let reads = operation.result().map(decode_reads).transpose();
    let reads = reads.map_err(|error| unreadable(error.to_string()))?;
    let ops = ops(&called, reads.as_deref(), names)
        .ok_or_else(|| unreadable("the answer is not to what was asked".to_owned()))?;
    let is_unknown = outcome == Outcome::Unknown;
    let ended = operation.ended.filter(|_| !is_unknown).unwrap_or(operation.invoked);
    let txn = Txn {
        id,
        client: Atom::Number(operation.client as i64),
        begin: operation.invoked.us as i64,
        end: (!is_unknown).then_some(ended.us as i64),
        outcome,
        is_held: is_held(operation, real_time),
        is_final: false,
        note: Some(format!("{:?} at {}", operation.how, operation.node).into()),
        ops,
    };
    let versions = match &operation.end {
        End::Committed { version, .. } => Versions { committed_at: Some(version.0), read_at: None },
        End::Read { version, .. } => Versions { committed_at: None, read_at: Some(version.0) },
        _ => Versions::default(),
    };
    Ok((txn, versions))
}

/// Whether an operation is held to real time.
fn is_held(operation: &Operation, real_time: RealTime) -> bool {
    let has_committed = match operation.end {
        End::Committed { .. } => true,
        // One that nobody knows of, and that was seen, must be after what ended before it.
        End::Ambiguous | End::Open => matches!(operation.how, How::Ordered | How::Certified),
        End::Read { .. } | End::Aborted(_) | End::Refused => false,
    };
    match real_time {
        RealTime::None => false,
        RealTime::Writes => {
            operation.how == How::Strict || (has_committed && !operation.call.is_read_only)
        }
        RealTime::Ordered => operation.how == How::Strict || has_committed,
    }
}

/// Operations with what they found; without an answer, the appends alone.
fn ops(called: &[Called], reads: Option<&[Read]>, names: &mut Names) -> Option<Vec<Op>> {
    let mut ops = Vec::new();
    let mut answers = reads.unwrap_or(&[]).iter();
    for call in called {
        let (first, count) = match *call {
            Called::Append { list, value } => {
                ops.push(append(names, list, value));
                continue;
            }
            Called::Read { list } => (list, 1),
            Called::ReadRange { first, count } => (first, count),
        };
        for list in (first..first + count).take_while(|_| reads.is_some()) {
            let answer = answers.next().filter(|read| read.list == list)?;
            ops.push(read(names, list, &answer.values));
        }
    }
    answers.next().is_none().then_some(ops)
}

/// An append.
pub fn append(names: &mut Names, list: u64, value: u64) -> Op {
    Op::Append { key: names.name(number(list)), value: names.name(number(value)) }
}

/// A read of a list.
pub fn read(names: &mut Names, list: u64, values: &[u64]) -> Op {
    let seen = Seen::List(values.iter().map(|value| names.name(number(*value))).collect());
    Op::Read { key: names.name(number(list)), seen }
}

impl Observed {
    /// Adds the final state as what a last transaction read: all lists that there are, and those
    /// that were appended to and are not there.
    pub fn add_final(&mut self, lists: &Lists, at: u64) {
        let Recorded { txns, names } = &mut self.recorded;
        let mut ops: Vec<Op> =
            lists.iter().map(|(list, values)| read(names, *list, values)).collect();
        let there: BTreeMap<Name, ()> = ops.iter().map(|op| (key(op), ())).collect();
        let appended = txns.iter().flat_map(|txn| &txn.ops).filter(is_append).map(key);
        let mut missing: Vec<Name> = appended.filter(|key| !there.contains_key(key)).collect();
        missing.sort_unstable();
        missing.dedup();
        ops.extend(missing.into_iter().map(|key| Op::Read { key, seen: Seen::List(Vec::new()) }));
        txns.push(Txn {
            id: txns.len() + 1,
            client: Atom::Text("final".into()),
            begin: at as i64,
            end: Some(at as i64),
            outcome: Outcome::Committed,
            is_held: false,
            is_final: true,
            note: None,
            ops,
        });
        self.versions.push(Versions::default());
    }

    /// Appends stand in the order of the versions that hold them, and a reader of a snapshot sees
    /// those of its version and no others.
    fn check_versions(&self) -> Result<(), Violation> {
        let Recorded { txns, names } = &self.recorded;
        let mut versions = HashMap::default();
        for (txn, named) in txns.iter().zip(&self.versions) {
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
        for (at, named) in (0..).zip(&self.versions) {
            if let Some(read_at) = named.read_at {
                self.check_snapshot(at, read_at, &lists, &versions)?;
            }
        }
        Ok(())
    }

    /// A reader of a version sees what that version holds.
    fn check_snapshot(
        &self,
        txn: u32,
        at: u64,
        lists: &HashMap<Name, &[Name]>,
        versions: &HashMap<(Name, Name), u64>,
    ) -> Result<(), Violation> {
        let Recorded { txns, names } = &self.recorded;
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
                    explain::txn(&self.recorded, txn),
                    names.atom(key),
                    names.atom(*value),
                    version(value).unwrap_or_default(),
                );
                return Err(violation("wrong snapshot", story));
            }
        }
        Ok(())
    }
}

fn is_append(op: &&Op) -> bool {
    matches!(op, Op::Append { .. })
}

fn key(op: &Op) -> Name {
    match op {
        Op::Append { key, .. } | Op::Read { key, .. } => *key,
        Op::Write { .. } | Op::Delete { .. } | Op::Scan { .. } => unreachable!("of lists alone"),
    }
}

/// A list that was read.
fn list(op: &Op) -> Option<(Name, &[Name])> {
    match op {
        Op::Read { key, seen: Seen::List(values) } => Some((*key, values)),
        _ => None,
    }
}
