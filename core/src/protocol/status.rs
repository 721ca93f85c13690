//! The status of a replica, for operators.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, SnapshotVersion};
use crate::topology::Topology;

/// The status of a replica, for operators. The same for all protocols.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The newest snapshot version that readers use.
    pub version: SnapshotVersion,
    /// The coordinator, if the protocol has one and this replica knows it.
    pub coordinator: Option<NodeId>,
    /// The nodes in the current configuration.
    pub members: Vec<NodeId>,
    /// The progress of the replica's first start; `None` once the replica is ready.
    pub first_start: Option<FirstStart>,
    /// The progress of a rejoin; `None` unless this node is replacing one that lost its disk.
    pub rejoin: Option<Rejoining>,
    /// Why the replica can't continue on its own, and what the operator can do: its procedures
    /// differ from those that an epoch needs. `None` normally.
    pub refused: Option<String>,
    /// Whether the replica has restarted, and may have shown later data to clients before than it
    /// can show now.
    pub is_restarting: bool,
    /// The nodes that have delayed this replica for longer than they should, most epochs behind
    /// first.
    pub waits_for: Vec<WaitsFor>,
    /// The nodes whose writes or rows differ from this node's: nodes with a defect, which have
    /// stopped or will stop.
    pub differing: Vec<NodeId>,
    /// The connected nodes whose logs are not those that this replica knows, and which it ignores:
    /// their directories, or the addresses that lead to them, are of another cluster, or they have
    /// lost their logs.
    pub strangers: Vec<NodeId>,
    /// Counters and gauges by name, such as `txns_committed`.
    pub counters: BTreeMap<String, u64>,
}

impl Status {
    /// Replaces the numbers of nodes, which are those of a shard's replicas, by others.
    pub fn renumber(&mut self, node: impl Fn(NodeId) -> NodeId) {
        let node = |replica: &mut NodeId| *replica = node(*replica);
        self.coordinator.iter_mut().for_each(node);
        self.members.iter_mut().for_each(node);
        self.differing.iter_mut().chain(&mut self.strangers).for_each(node);
        if let Some(first) = &mut self.first_start {
            first.missing.iter_mut().for_each(node);
        }
        if let Some(rejoin) = &mut self.rejoin {
            rejoin.missing.iter_mut().chain(&mut rejoin.forgetful).for_each(node);
        }
    }
}

/// The first start of a replica, if the protocol requires more nodes for it than for normal
/// operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstStart {
    /// The number of nodes that it requires, including this one.
    pub needed: usize,
    /// The nodes with which this one has not completed the greeting.
    pub missing: Vec<NodeId>,
}

/// The rejoin of a replica that lost its disk. The replica accepts no requests until it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejoining {
    /// The nodes that have not answered yet. All other nodes must answer.
    pub missing: Vec<NodeId>,
    /// The nodes that answered without any state, because they are rejoining too.
    pub forgetful: Vec<NodeId>,
    /// The number of nodes that must answer with their state.
    pub needed: usize,
    /// The version that the replica must reach, once it is known.
    pub upto: Option<SnapshotVersion>,
}

/// A node that is behind and delays a replica: another node, or the replica itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsFor {
    /// The node.
    pub node: NodeId,
    /// The kind of input that is missing from it, such as `slices`.
    pub what: String,
    /// The number of epochs by which it is behind.
    pub epochs: u64,
}

/// An epoch that the operator has listed to be skipped, because no node can apply it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEpoch {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// What became of it on this replica.
    pub fate: ListedFate,
}

/// What became of an epoch that the operator has listed to be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedFate {
    /// Its transactions were aborted.
    Skipped {
        /// The number of its transactions.
        txns: u64,
    },
    /// It is not listed any more, but an earlier run of the replica skipped it. Its transactions
    /// were aborted again.
    SkippedBefore {
        /// The number of its transactions.
        txns: u64,
    },
    /// The replica had applied it before it was listed, and replayed its effects.
    Applied,
    /// The checkpoint that the replica started from contains it, with or without its effects.
    Contained {
        /// The version of the checkpoint.
        checkpoint: SnapshotVersion,
    },
}

impl WaitsFor {
    /// Describes the node by its name and its number of missing epochs, which the protocol calls
    /// `epoch`.
    pub fn describe(&self, topology: &Topology, epoch: &str) -> String {
        let Self { node, what, epochs } = self;
        let name = topology.node_name(*node);
        match epochs {
            1 => format!("{name}, which is 1 {epoch} behind with {what}"),
            _ => format!("{name}, which is {epochs} {epoch}s behind with {what}"),
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
        assert_eq!(
            late(1).describe(&whole, "epoch"),
            "eu (node 1), which is 1 epoch behind with slices"
        );
        let divided = whole.divided(Partitions::new(2, Rule::Everywhere));
        assert_eq!(
            late(300).describe(&divided, "cell"),
            "us.1 (node 1), which is 300 cells behind with slices"
        );
    }
}
