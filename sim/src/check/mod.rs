//! Checkers: whether what clients saw could have happened in a serial order.
//!
//! - [`recorded`] holds the history of any database to a [`model`]: it rebuilds from what
//!   transactions read what depended on what, and looks for cycles.
//! - [`list_append`] brings the simulator's histories of lists there, with the final state, and
//!   holds them to the versions that nodes named.
//! - [`bank`] holds every audit to the same total.
//! - Workloads check their own final data, and data at sampled versions; the world compares
//!   replicas.

pub mod bank;
mod certain;
mod explain;
mod facts;
mod graph;
pub mod list_append;
mod lists;
pub mod model;
mod objects;
mod orders;
mod phenomena;
mod reach;
pub mod recorded;
mod registers;
mod search;

use std::fmt;

use pangea_core::workload::{Rows, Workload};

use crate::history::History;
use crate::settings::RealTime;

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

/// Checks what clients of a workload saw, given the final state of the database.
pub fn history(
    workload: &Workload,
    history: &History,
    end: &dyn Rows,
    real_time: RealTime,
) -> Option<Violation> {
    let checked = match workload {
        Workload::ListAppend(_) => list_append::check(history, end, real_time),
        Workload::Bank(bank) => bank::check(bank, history),
        // These are checked by the conditions on their data alone.
        _ => Ok(()),
    };
    checked.err()
}

#[cfg(test)]
mod tests;
