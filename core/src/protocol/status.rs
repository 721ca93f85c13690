//! What an operator would want to know of a replica.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, SnapshotVersion};
use crate::topology::Topology;

/// What an operator would want to know of a replica, whatever the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The newest snapshot version that readers use.
    pub version: SnapshotVersion,
    /// The node that coordinates, where the protocol has one and this replica knows it.
    pub coordinator: Option<NodeId>,
    /// The nodes that are in the configuration now.
    pub members: Vec<NodeId>,
    /// What it waits for before it takes part for the first time; nothing once it has.
    pub first_start: Option<FirstStart>,
    /// What it waits for before it takes the place of a node whose disk is gone.
    pub rejoin: Option<Rejoining>,
    /// What it waits for, for longer than it should: those first that are the furthest behind.
    pub waits_for: Vec<WaitsFor>,
    /// Counters and gauges by name, such as `txns_committed`.
    pub counters: BTreeMap<String, u64>,
}

/// A replica's first start, where the protocol needs more nodes for it than for going on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstStart {
    /// How many nodes it takes, this one included.
    pub needed: usize,
    /// The nodes that this one has yet to agree with.
    pub missing: Vec<NodeId>,
}

/// A replica that lost its disk, on its way back. It takes no request until it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejoining {
    /// The nodes that have yet to say what they know of it: all the others have to.
    pub missing: Vec<NodeId>,
    /// The nodes that said that they know nothing, as they are on their way back too.
    pub forgetful: Vec<NodeId>,
    /// So many nodes have to remember.
    pub needed: usize,
    /// The version that it has to reach, once that is known.
    pub upto: Option<SnapshotVersion>,
}

/// A node that is behind, so that a replica waits: another one, or the replica itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsFor {
    /// Which.
    pub node: NodeId,
    /// What has yet to come of it, such as `slices`.
    pub what: String,
    /// By how many epochs it is behind.
    pub epochs: u64,
}

impl WaitsFor {
    /// The node by its name and how far behind it is.
    pub fn describe(&self, topology: &Topology) -> String {
        let Self { node, what, epochs } = self;
        let name = topology.node_name(*node);
        match epochs {
            1 => format!("{name}, which is 1 epoch behind with {what}"),
            _ => format!("{name}, which is {epochs} epochs behind with {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::{Partitions, Rule};
    use crate::time::Span;

    #[test]
    fn who_is_waited_for_is_named_by_its_region_and_its_shard() {
        let whole = Topology::one_node_per_region("t", &["us", "eu"], Span::ZERO);
        let late = |epochs| WaitsFor { node: NodeId(1), what: "slices".to_owned(), epochs };
        assert_eq!(late(1).describe(&whole), "eu (node 1), which is 1 epoch behind with slices");
        let divided = whole.divided(Partitions::new(2, Rule::Everywhere));
        assert_eq!(
            late(300).describe(&divided),
            "us.1 (node 1), which is 300 epochs behind with slices"
        );
    }
}
