//! The facts about one workload, which its own file states.

use std::fmt::Debug;
use std::sync::Arc;

use super::check::{Report, Rows, Rule, Violation};
use super::commits::{Commits, Watch};
use super::rng::WorkloadRng;
use super::{Call, Client, InvalidSettings, Settings};
use crate::guarantee::Isolation;
use crate::partition::{self, Partitions};
use crate::time::Timestamp;
use crate::txn::Procedure;

/// The part of a workload that [`super::Workload`] looks up in its table.
pub(super) trait Definition: Facts + Sized {
    /// The names on command lines.
    const NAMES: &'static [&'static str];
    /// Whether histories can be recorded: no transaction writes a value that another one wrote.
    const IS_RECORDED: bool = false;

    type Generator: Generate + Clone + Debug;

    /// Creates the workload with one of its names.
    fn named(name: &str, settings: &Settings) -> Result<Self, InvalidSettings>;

    /// All of its procedures, for a node's registry.
    fn programs() -> Vec<Arc<dyn Procedure>>;

    fn generator(&self, client: Client) -> Self::Generator;
}

/// The part of a workload that [`super::Workload`] passes on. Its methods are described there.
pub(super) trait Facts {
    fn name(&self) -> &'static str;

    /// Whether it exists only for the simulator's checkers of histories.
    fn is_of_histories(&self) -> bool {
        false
    }

    /// The weakest isolation level at which the conditions of [`Self::check`] hold.
    fn weakest_level(&self) -> Isolation {
        Isolation::ReadCommitted
    }

    fn load_calls(&self) -> Vec<Call> {
        Vec::new()
    }

    fn partitions(&self, shards: u16) -> Partitions {
        Partitions::new(shards, partition::Rule::OF_WHOLE_KEY)
    }

    fn procedures(&self) -> Vec<&'static str>;

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation>;

    fn watch(&self) -> Watch {
        Watch::default()
    }

    /// Compares a report's facts with the commits. `rule` names the workload.
    fn check_commits(
        &self,
        _rule: &Rule<'_>,
        _fact: &dyn Fn(&str) -> i64,
        _rows: &dyn Rows,
        _commits: &Commits,
    ) -> Result<(), Violation> {
        Ok(())
    }
}

/// The transactions of one client.
pub(super) trait Generate {
    fn next_call(&mut self, dice: &mut WorkloadRng, now: Timestamp) -> Call;
}
