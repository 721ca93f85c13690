//! Statistics of a node: its sessions, the cost of statements, and conflicts.
//!
//! ```text
//!   sessions --- each in its own place ---> Activities -.
//!            --- one at the end of each --> Statements -+--> Facts --> pangea.*
//!            --- at each conflict --------> HotKeys ----'      ^       pg_stat_activity
//!   node ------- status of its protocol ----------------------'
//! ```
//!
//! The statistics belong to one node: they are in memory, are lost with the process, and differ
//! between nodes. A statement that reads them is therefore never sent as a program. If it writes,
//! it is certified by the writes that it made on this node.
//!
//! Recording a statement is cheap: a session writes to an entry that no other session writes to,
//! and to one of [`statements::SHARDS`] tables of sums. All of this memory is bounded.

pub(crate) mod activity;
pub(crate) mod hot_keys;
pub(crate) mod normal;
pub(crate) mod statements;

use std::sync::Arc;

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Status, WaitsFor};
use pangea_core::topology::Topology;

use crate::engine::NodeInfo;
use crate::error::SqlError;
use activity::{Activities, Activity};
use hot_keys::{HotKey, HotKeys};
use statements::{Statements, Sums};

/// The statistics that the sessions of a node record.
#[derive(Debug, Default)]
pub(crate) struct Insight {
    pub activities: Arc<Activities>,
    pub statements: Statements,
    pub hot_keys: HotKeys,
}

/// Checks whether the statement must end.
pub(crate) struct CancelCheck(pub Box<dyn Fn() -> Result<(), SqlError> + Send + Sync>);

impl CancelCheck {
    /// # Errors
    /// If the statement must end.
    pub(crate) fn check(&self) -> Result<(), SqlError> {
        self.0()
    }
}

impl std::fmt::Debug for CancelCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Look")
    }
}

/// The facts about a node at one moment, for one statement.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The process id that the client has for the session.
    pub process: i32,
    pub look: CancelCheck,
    pub about: NodeInfo,
    pub topology: Topology,
    /// `None` if the node's protocol did not answer.
    pub status: Option<Status>,
    /// The reason why no agreement is possible now, if so.
    pub cut_off: Option<String>,
    /// The lagging nodes that this one waits for, if any.
    pub waits_for: Option<String>,
    pub activities: Vec<Activity>,
    pub statements: Vec<Sums>,
    pub hot_keys: Vec<HotKey>,
    /// The progress of each node, as known to this node.
    pub progress: Vec<Progress>,
}

/// The progress of a node, as known to this node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Progress {
    pub node: NodeId,
    /// The versions that it has applied and persisted.
    pub applied: Option<SnapshotVersion>,
    pub durable: Option<SnapshotVersion>,
    /// The number of versions that it is behind this node, and for how many milliseconds this node
    /// has had the first version that it is missing.
    pub versions_behind: Option<u64>,
    pub ms_behind: Option<f64>,
    /// The input of the node that this node waits for, if so: the kind that lags the most.
    pub awaited: Option<WaitsFor>,
}

impl Progress {
    /// Computes the progress of each node from a status. `ms_since` returns for how long this node
    /// has had a version newer than the given one.
    pub(crate) fn of(
        topology: &Topology,
        status: Option<&Status>,
        about: &NodeInfo,
        ms_since: impl Fn(SnapshotVersion) -> Option<f64>,
    ) -> Vec<Self> {
        let counter = |name: &str, node: NodeId| {
            let counters = status.map(|status| &status.counters)?;
            counters.get(&format!("{name}_{}", node.0)).map(|value| SnapshotVersion(*value))
        };
        let newest = status.map(|status| status.version);
        let of = |node: NodeId| {
            let is_own = about.me == Some(node);
            let applied = if is_own { newest } else { counter("peer_applied", node) };
            let behind = newest.zip(applied).map(|(own, its)| own.0.saturating_sub(its.0));
            let ms_behind = match (behind, applied) {
                (Some(0), _) => Some(0.0),
                (Some(_), Some(applied)) => ms_since(applied),
                _ => None,
            };
            let durable = counter("peer_durable", node);
            let mut late = status.iter().flat_map(|status| &status.waits_for);
            let awaited = late.find(|late| late.node == node).cloned();
            Self { node, applied, durable, versions_behind: behind, ms_behind, awaited }
        };
        topology.node_ids().map(of).collect()
    }
}
