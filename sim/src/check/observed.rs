//! Converts the simulator's histories to the recorded form.
//!
//! A history becomes a recorded one, with the final state as the reads of a last transaction, and
//! is checked like any other (`recorded.rs`). The simulator knows more than clients do: the version
//! that contains each transaction's writes, and the version that a reader of a snapshot saw.

use pangea_core::guarantee::Isolation;

use super::Violation;
use crate::history::{CallKind, End, History, Operation};
use crate::record::{Atom, Names, Op, Outcome, Recorded, Txn};
use crate::settings::RealTime;

/// The versions that nodes returned for a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The version that contains its writes.
    pub committed_at: Option<u64>,
    /// The version that it read, if it read a snapshot.
    pub read_at: Option<u64>,
}

/// A history in the recorded form, with the simulator's additional knowledge.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The history; the final state is last.
    pub recorded: Recorded,
    /// Versions by transaction. The final state has none.
    pub versions: Vec<Versions>,
}

/// Converts an operation of a workload to recorded operations with their results, or returns an
/// error message.
pub type OperationsOf = fn(&Operation, &mut Names) -> Result<Vec<Op>, String>;

impl Observed {
    /// Converts a history to the recorded form, without the final state.
    ///
    /// # Errors
    /// If a result can't be decoded.
    pub fn new(
        history: &History,
        real_time: RealTime,
        checker: &'static str,
        operations_of: OperationsOf,
    ) -> Result<Self, Violation> {
        let mut observed = Self::default();
        for (operation, id) in in_order(history).into_iter().zip(1..) {
            let ops = operations_of(operation, &mut observed.recorded.names);
            let ops = ops
                .map_err(|what| Violation::new(checker, "unreadable", format!("T{id}: {what}")))?;
            observed.recorded.txns.push(txn(id, operation, real_time, ops));
            observed.versions.push(match &operation.end {
                End::Committed { version, .. } => {
                    Versions { committed_at: Some(version.0), read_at: None }
                }
                End::Read { version, .. } => {
                    Versions { committed_at: None, read_at: Some(version.0) }
                }
                _ => Versions::default(),
            });
        }
        Ok(observed)
    }

    /// Adds the final state as the reads of a last transaction.
    pub fn push_final(&mut self, ops: Vec<Op>, at: u64) {
        let txns = &mut self.recorded.txns;
        txns.push(Txn {
            id: txns.len() + 1,
            client: Atom::Text("final".into()),
            begin: at as i64,
            end: Some(at as i64),
            outcome: Outcome::Committed,
            is_held: false,
            is_final: true,
            at: None,
            level: None,
            note: None,
            ops,
        });
        self.versions.push(Versions::default());
    }
}

/// Returns operations in the order of the versions that nodes returned, or of their invocation if
/// they have no version. The checker tries this order of writes first where reads do not determine
/// it.
fn in_order(history: &History) -> Vec<&Operation> {
    let mut newest = 0;
    let versions = history.operations.iter().map(|operation| {
        let version = match &operation.end {
            // A reader comes after all transactions that its version contains.
            End::Read { version, .. } => (version.0, true),
            End::Committed { version, .. } => (version.0, false),
            _ => (newest, false),
        };
        newest = newest.max(version.0);
        (version, operation)
    });
    let mut versions: Vec<((u64, bool), &Operation)> = versions.collect();
    versions.sort_by_key(|(version, _)| *version);
    versions.into_iter().map(|(_, operation)| operation).collect()
}

/// Creates a number as a key or a value.
pub fn number(number: u64) -> Atom {
    i64::try_from(number).map_or_else(|_| Atom::Text(number.to_string().into()), Atom::Number)
}

/// Returns the time at which the last result reached a client.
pub fn ended(history: &History) -> u64 {
    let ended = history.operations.iter().filter_map(|operation| operation.ended);
    ended.map(|at| at.us).max().unwrap_or_default()
}

fn txn(id: usize, operation: &Operation, real_time: RealTime, ops: Vec<Op>) -> Txn {
    let outcome = match operation.end {
        End::Committed { .. } | End::Read { .. } => Outcome::Committed,
        End::Ambiguous | End::Open => Outcome::Unknown,
        End::Aborted(_) | End::Refused => Outcome::Aborted,
    };
    let is_unknown = outcome == Outcome::Unknown;
    let ended = operation.ended.filter(|_| !is_unknown).unwrap_or(operation.invoked);
    Txn {
        id,
        client: Atom::Number(operation.client as i64),
        begin: operation.invoked.us as i64,
        end: (!is_unknown).then_some(ended.us as i64),
        outcome,
        is_held: is_held(operation, real_time),
        is_final: false,
        at: place(operation),
        level: level(operation),
        note: Some(format!("{:?} at {}", operation.how, operation.node).into()),
        ops,
    }
}

/// Returns an operation's position in the order: its version, with a reader of a snapshot after its
/// writers.
fn place(operation: &Operation) -> Option<i64> {
    match &operation.end {
        End::Committed { version, .. } => Some(2 * version.0 as i64),
        End::Read { version, .. } => Some(2 * version.0 as i64 + 1),
        _ => None,
    }
}

/// Returns the level that an operation is held to, if it is not the strictest. A call that only
/// reads sees one snapshot at every level, which is serializable as it is.
fn level(operation: &Operation) -> Option<Isolation> {
    let is_strictest = operation.level == Isolation::Serializable || operation.call.is_read_only;
    (!is_strictest).then_some(operation.level)
}

/// Whether real-time order applies to an operation.
fn is_held(operation: &Operation, real_time: RealTime) -> bool {
    let has_committed = match operation.end {
        End::Committed { .. } => true,
        // A transaction of unknown outcome whose writes were observed must follow all transactions
        // that ended before it.
        End::Ambiguous | End::Open => {
            matches!(operation.how, CallKind::Ordered | CallKind::Certified)
        }
        End::Read { .. } | End::Aborted(_) | End::Refused => false,
    };
    match real_time {
        RealTime::None => false,
        RealTime::Writes => {
            operation.how == CallKind::Strict || (has_committed && !operation.call.is_read_only)
        }
        RealTime::Ordered => operation.how == CallKind::Strict || has_committed,
    }
}
