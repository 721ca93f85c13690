//! Which nodes this one can talk to, and what an operator and waiting clients are told of it.
//!
//! A cluster agrees where a majority of its nodes talk to each other. A node that sees fewer goes
//! on to serve snapshots, and whatever needs agreement waits: without a word, unless somebody says
//! it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pangea_core::ids::NodeId;
use pangea_core::topology::Topology;

/// The nodes that are connected to this one, on both lanes.
#[derive(Debug)]
pub struct Reach {
    me: NodeId,
    topology: Arc<Topology>,
    connected: Mutex<BTreeSet<NodeId>>,
}

/// What became of the majority with a node more or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Majority {
    /// It was reached, or lost, before, and still is.
    Unchanged,
    /// It is reached now: how, in words.
    Reached(String),
    /// It is lost now: how, in words.
    Lost(String),
}

impl Reach {
    /// A node that no other has connected to yet.
    pub fn new(me: NodeId, topology: Arc<Topology>) -> Self {
        Self { me, topology, connected: Mutex::new(BTreeSet::from([me])) }
    }

    fn connected(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node as operators know it.
    pub(crate) fn name(topology: &Topology, node: NodeId) -> String {
        format!("{} (node {})", topology.region_name(node), node.0)
    }

    pub(super) fn on_up(&self, peer: NodeId) -> Majority {
        self.change(|connected| connected.insert(peer))
    }

    pub(super) fn on_down(&self, peer: NodeId) -> Majority {
        self.change(|connected| connected.remove(&peer))
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<NodeId>) -> bool) -> Majority {
        let mut connected = self.connected();
        let had = self.is_majority(&connected);
        change(&mut connected);
        match (had, self.is_majority(&connected)) {
            (false, true) => {
                let nodes = self.names(connected.iter().copied());
                Majority::Reached(format!("a majority of nodes is connected: {nodes}"))
            }
            (true, false) => Majority::Lost(self.describe(&connected)),
            (true, true) | (false, false) => Majority::Unchanged,
        }
    }

    /// Why nothing can be agreed on now, in words; nothing where a majority is connected.
    pub fn cut_off(&self) -> Option<String> {
        let connected = self.connected();
        (!self.is_majority(&connected)).then(|| self.describe(&connected))
    }

    fn is_majority(&self, connected: &BTreeSet<NodeId>) -> bool {
        connected.len() >= self.topology.majority()
    }

    fn describe(&self, connected: &BTreeSet<NodeId>) -> String {
        let is_away = |node: &NodeId| !connected.contains(node);
        format!(
            "no majority of nodes is reachable from {}; reachable: {}; unreachable: {}",
            self.topology.region_name(self.me),
            self.names(connected.iter().copied()),
            self.names(self.topology.node_ids().filter(is_away))
        )
    }

    fn names(&self, nodes: impl Iterator<Item = NodeId>) -> String {
        let names: Vec<_> = nodes.map(|node| Self::name(&self.topology, node)).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::time::Span;

    use super::*;

    #[test]
    fn a_majority_is_told_of_once_when_it_comes_and_once_when_it_goes() {
        let regions = ["us", "eu", "ap", "sa", "af"];
        let topology = Topology::one_node_per_region("test", &regions, Span::ZERO);
        let reach = Reach::new(NodeId(0), Arc::new(topology));
        let alone = "no majority of nodes is reachable from us; reachable: us (node 0); \
                     unreachable: eu (node 1), ap (node 2), sa (node 3), af (node 4)";
        assert_eq!(reach.cut_off().as_deref(), Some(alone));
        assert_eq!(reach.on_up(NodeId(3)), Majority::Unchanged);
        let reached = "a majority of nodes is connected: us (node 0), eu (node 1), sa (node 3)";
        assert_eq!(reach.on_up(NodeId(1)), Majority::Reached(reached.to_owned()));
        assert_eq!(reach.cut_off(), None);
        assert_eq!(reach.on_up(NodeId(4)), Majority::Unchanged);
        assert_eq!(reach.on_down(NodeId(3)), Majority::Unchanged);
        let lost = "no majority of nodes is reachable from us; reachable: us (node 0), \
                    af (node 4); unreachable: eu (node 1), ap (node 2), sa (node 3)";
        assert_eq!(reach.on_down(NodeId(1)), Majority::Lost(lost.to_owned()));
        assert_eq!(reach.on_down(NodeId(1)), Majority::Unchanged, "told of before");
        assert_eq!(reach.cut_off().as_deref(), Some(lost));
    }

    #[test]
    fn a_cluster_of_one_is_its_own_majority() {
        let topology = Topology::one_node_per_region("test", &["here"], Span::ZERO);
        assert_eq!(Reach::new(NodeId(0), Arc::new(topology)).cut_off(), None);
    }
}
