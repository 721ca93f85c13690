//! Checkers: whether what clients saw could have happened in a serial order.
//!
//! - [`recorded`] holds the history of any database to a [`model`]: it rebuilds from what
//!   transactions read what depended on what, and looks for cycles.
//! - [`observed`] brings the simulator's histories there, with the final state: [`list_append`]
//!   those of lists and [`rows`] those of registers. Both hold them to the versions that nodes
//!   named.
//! - [`bank`] holds every audit to the same total, [`catalog`] every index to its table.
//! - Workloads check their own final data, and data at sampled versions; the world compares
//!   replicas.

pub mod bank;
pub mod catalog;
mod certain;
mod explain;
mod facts;
mod graph;
mod guess;
pub mod list_append;
mod lists;
pub mod model;
mod objects;
pub mod observed;
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

/// Something that must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker found it.
    pub checker: &'static str,
    /// What it is called: `G-single`, `lost append`, `liveness`.
    pub anomaly: &'static str,
    /// What happened, in words.
    pub story: String,
}

impl Violation {
    /// A violation of one kind.
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

/// What came of checking a run.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// What clients did and saw in the recorded form, if their workload has one.
    pub recorded: Option<Recorded>,
    /// What was wrong.
    pub violation: Option<Violation>,
    /// Whether nobody can tell.
    pub is_open: bool,
}

/// Checks what clients of a workload saw, given the final state of the database.
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
    if let Some(observed) = observed {
        let (is_open, held) = hold(&observed, workload.name());
        let recorded = Some(observed.recorded);
        return Checked { recorded, violation: held.err(), is_open };
    }
    let checked = match workload {
        Workload::Bank(bank) => bank::check(bank, history),
        Workload::Catalog(_) => catalog::check(history),
        // These are checked by the conditions on their data alone.
        _ => Ok(()),
    };
    Checked { violation: checked.err(), ..Checked::default() }
}

/// A history in the recorded form, if its workload has one, with the final state if it is known.
///
/// # Errors
/// When an answer or the final state can't be read.
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

/// Holds a history to what a right database shows, and says whether that is left open. Only
/// transactions that are held to real time are, so strict serializability is what the others have
/// as serializability.
fn hold(observed: &Observed, checker: &'static str) -> (bool, Result<(), Violation>) {
    let verdict = recorded::check(&observed.recorded, Model::StrictSerializable, checker);
    let is_open = verdict == Verdict::Open;
    let held = verdict.into_result();
    let held = held.and_then(|()| list_append::check_versions(observed));
    (is_open, held.and_then(|()| rows::check_versions(observed, checker)))
}

#[cfg(test)]
mod tests;
