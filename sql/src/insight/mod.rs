//! What a node knows of itself: its sessions, what statements took, and where they conflict.
//!
//! ```text
//!   sessions --- each in its own place ---> Activities -.
//!            --- one at the end of each --> Statements -+--> Facts --> pangea.*
//!            --- at each conflict --------> HotKeys ----'      ^       pg_stat_activity
//!   node ------- what its protocol says ----------------------'
//! ```
//!
//! All of it is this node's own: it is kept in memory, is gone with the process, and is another on
//! another node. A statement that reads it therefore never travels as a program; where it writes,
//! it is certified by what it wrote here.
//!
//! What is noted at each statement is small: a session writes to a place that no other writes to,
//! and to one of [`statements::SHARDS`] tables of sums. All of it is bounded.

pub(crate) mod activity;
pub(crate) mod hot_keys;
pub(crate) mod normal;
pub(crate) mod statements;

use std::sync::Arc;

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Status, WaitsFor};
use pangea_core::topology::Topology;

use crate::engine::About;
use crate::error::SqlError;
use activity::{Activities, Activity};
use hot_keys::{HotKey, HotKeys};
use statements::{Statements, Sums};

/// What the sessions of a node note.
#[derive(Debug, Default)]
pub(crate) struct Insight {
    pub activities: Arc<Activities>,
    pub statements: Statements,
    pub hot_keys: HotKeys,
}

/// Asks whether the statement must end.
pub(crate) struct Look(pub Box<dyn Fn() -> Result<(), SqlError> + Send + Sync>);

impl Look {
    /// # Errors
    /// When it must.
    pub(crate) fn check(&self) -> Result<(), SqlError> {
        self.0()
    }
}

impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Look")
    }
}

/// What a node knows of itself at one moment, for one statement.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Which process the session is to its client.
    pub process: i32,
    pub look: Look,
    pub about: About,
    pub topology: Topology,
    /// Nothing where the node's protocol did not answer.
    pub status: Option<Status>,
    /// Why nothing can be agreed on now.
    pub cut_off: Option<String>,
    /// Which nodes are behind, so that this one waits.
    pub waits_for: Option<String>,
    pub activities: Vec<Activity>,
    pub statements: Vec<Sums>,
    pub hot_keys: Vec<HotKey>,
    /// For each node, how far it is as far as this one knows.
    pub progress: Vec<Progress>,
}

/// How far a node is, as far as this one knows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Progress {
    pub node: NodeId,
    /// The version that it has applied, and that it has on disk.
    pub applied: Option<SnapshotVersion>,
    pub durable: Option<SnapshotVersion>,
    /// By how many versions it is behind this node, and since how many milliseconds this node has
    /// had what it lacks.
    pub versions_behind: Option<u64>,
    pub ms_behind: Option<f64>,
    /// What has yet to come of it, so that this node waits: most of that with which it is behind.
    pub awaited: Option<WaitsFor>,
}

impl Progress {
    /// What a status tells of each node. `ms_since` is how long this node has had what comes after
    /// a version.
    pub(crate) fn of(
        topology: &Topology,
        status: Option<&Status>,
        about: &About,
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
