//! Checkers: they decide whether the results that clients observed are possible in a serial order.
//!
//! - [`recorded`] checks the history of any database against a [`model`]. It derives the
//!   dependencies between transactions from their reads, and searches for cycles.
//! - [`observed`] converts the simulator's histories and the final state into recorded ones:
//!   [`list_append`] those of lists and [`rows`] those of registers. Both also check the versions
//!   that nodes returned.
//! - [`bank`] checks that all audits find the same total, [`catalog`] that indexes match their
//!   tables.
//! - Workloads check their own final data, and data at sampled versions; the world compares
//!   replicas.

pub mod bank;
pub mod catalog;
mod certain;
pub mod commits;
mod explain;
mod facts;
mod graph;
pub mod list_append;
mod lists;
pub mod model;
mod objects;
pub mod observed;
mod order_search;
mod orders;
mod phenomena;
mod reach;
pub mod recorded;
mod registers;
pub mod rows;
mod search;

use std::fmt;

use pangea_core::workload::{Rows, Workload};

use crate::history::History;
use crate::record::Recorded;
use crate::settings::RealTime;
use model::Model;
use observed::Observed;
use recorded::Verdict;

/// A property that a run violated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The checker that found it.
    pub checker: &'static str,
    /// The name of the anomaly: `G-single`, `lost append`, `liveness`.
    pub anomaly: &'static str,
    /// A description for humans.
    pub story: String,
}

impl Violation {
    /// Creates a violation.
    pub fn new(checker: &'static str, anomaly: &'static str, story: String) -> Self {
        Self { checker, anomaly, story }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.checker)?;
        if self.anomaly != self.checker {
            write!(f, ": {}", self.anomaly)?;
        }
        write!(f, ": {}", self.story)
    }
}

impl std::error::Error for Violation {}

/// The result of checking a run.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// The history in the recorded form, if the workload has one.
    pub recorded: Option<Recorded>,
    /// The violation, if the check failed.
    pub violation: Option<Violation>,
    /// Whether the checker could not decide.
    pub is_open: bool,
}

/// Checks a workload's history, given the final state of the database. `real_time` says which
/// transactions must appear to take place between their start and their end, as far as their levels
/// promise it.
pub fn history(
    workload: &Workload,
    history: &History,
    end: &dyn Rows,
    real_time: RealTime,
) -> Checked {
    let observed = match observe(workload, history, Some(end), real_time) {
        Ok(observed) => observed,
        Err(violation) => return Checked { violation: Some(violation), ..Checked::default() },
    };
    if let Some(mut observed) = observed {
        if let Workload::ListAppend(_) = workload {
            list_append::forget_missing_lists(&mut observed);
        }
        let (is_open, verdict) = hold(&observed, workload.name());
        let recorded = Some(observed.recorded);
        return Checked { recorded, violation: verdict.err(), is_open };
    }
    let checked = match workload {
        Workload::Bank(bank) => bank::check(bank, history),
        Workload::Catalog(_) => catalog::check(history),
        // These are checked only by the invariants of their data.
        _ => Ok(()),
    };
    Checked { violation: checked.err(), ..Checked::default() }
}

/// Converts a history to the recorded form, if its workload has one, with the final state if it is
/// known.
///
/// # Errors
/// If a result or the final state can't be decoded.
pub fn observe(
    workload: &Workload,
    history: &History,
    end: Option<&dyn Rows>,
    real_time: RealTime,
) -> Result<Option<Observed>, Violation> {
    match workload {
        Workload::ListAppend(_) => list_append::observe(history, end, real_time).map(Some),
        Workload::Registers(registers) => {
            rows::observe(registers, history, end, real_time).map(Some)
        }
        _ => Ok(None),
    }
}

/// Checks each transaction of a history against its level, and returns whether the verdict is open.
/// Real-time order applies to transactions with `is_held`.
fn hold(observed: &Observed, checker: &'static str) -> (bool, Result<(), Violation>) {
    let is_mixed = observed.recorded.txns.iter().any(|txn| txn.level.is_some());
    let model = if is_mixed { Model::Mixed } else { Model::StrictSerializable };
    let verdict = recorded::check(&observed.recorded, model, checker);
    let is_open = verdict == Verdict::Open;
    let verdict = verdict.into_result();
    let verdict = verdict.and_then(|()| list_append::check_versions(observed));
    (is_open, verdict.and_then(|()| rows::check_versions(observed, checker)))
}

#[cfg(test)]
mod tests;
