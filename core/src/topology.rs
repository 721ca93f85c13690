//! The topology of a cluster: its nodes, their locations, and the delays between them.

mod replicas;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, RegionId, ShardId};
use crate::partition::Partitions;
use crate::time::Span;
pub use replicas::{Replicas, learner_places};

/// The cluster as configured. The same on every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The cluster's name. Nodes reject peers with another cluster name.
    pub cluster: String,
    /// Region names, indexed by [`RegionId`].
    pub regions: Vec<String>,
    /// The region and shard of each node, indexed by [`NodeId`].
    pub nodes: Vec<NodePlace>,
    /// The home of each cache: a node without tables, in the region of a replica, that keeps the
    /// replica's last batches. Caches are numbered after the nodes with tables. They count in no
    /// quorum, and `nodes`, [`Topology::node_ids`] and all numbers of nodes leave them out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<NodeId>,
    /// The number of non-voting replicas: nodes that follow the log of their shard, count in no
    /// quorum and lead nothing. They are the last nodes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub non_voting: u16,
    /// Expected one-way delay from region to region: `one_way[from][to]`.
    pub one_way: Vec<Vec<Span>>,
    /// The partitioning of tables over the shards.
    #[serde(skip)]
    pub partitions: Partitions,
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

/// The location of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlace {
    /// The node's region.
    pub region: RegionId,
    /// The shard of which the node has a copy.
    pub shard: ShardId,
}

impl Topology {
    /// A fully replicated cluster with one node in each region and the same delay between any two
    /// regions.
    pub fn one_node_per_region(cluster: &str, regions: &[&str], one_way: Span) -> Self {
        let n = regions.len();
        let delay = |from, to| if from == to { Span::ZERO } else { one_way };
        Self {
            cluster: cluster.to_owned(),
            regions: regions.iter().map(|&name| name.to_owned()).collect(),
            nodes: (0..n)
                .map(|i| NodePlace { region: RegionId(i as u16), shard: ShardId(0) })
                .collect(),
            caches: Vec::new(),
            non_voting: 0,
            one_way: (0..n).map(|a| (0..n).map(|b| delay(a, b)).collect()).collect(),
            partitions: Partitions::default(),
        }
    }

    /// The same regions with partitioned tables: each region has one node for each shard.
    #[must_use]
    pub fn divided(self, partitions: Partitions) -> Self {
        let places = (0..self.regions.len() as u16).flat_map(|region| {
            let place = move |shard| NodePlace { region: RegionId(region), shard: ShardId(shard) };
            (0..partitions.shards()).map(place)
        });
        Self { nodes: places.collect(), partitions, ..self }
    }

    /// The node with the copy of a shard in a region.
    pub fn node_at(&self, region: RegionId, shard: ShardId) -> Option<NodeId> {
        let is_it = |node: &NodeId| self.nodes[node.index()] == NodePlace { region, shard };
        self.node_ids().find(is_it)
    }

    /// The replication group of a shard.
    pub fn group(&self, shard: ShardId) -> Group {
        let is_of_it = |node: &NodeId| self.nodes[node.index()].shard == shard;
        let nodes: Vec<NodeId> = self.node_ids().filter(is_of_it).collect();
        let places = nodes.iter().map(|node| self.nodes[node.index()]).collect();
        let non_voting = nodes.iter().filter(|node| !self.votes(**node)).count() as u16;
        let topology = Arc::new(Self { nodes: places, non_voting, ..self.clone() });
        Group { topology, nodes }
    }

    /// The nodes with tables and the caches, in order.
    pub fn all_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..(self.nodes.len() + self.caches.len()) as u16).map(NodeId)
    }

    /// All nodes and caches except `me`, in order: those that `me` is connected to.
    pub fn neighbors_of(&self, me: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        self.all_ids().filter(move |&node| node != me)
    }

    /// The home of a cache; `None` for a node with tables.
    pub fn home_of(&self, node: NodeId) -> Option<NodeId> {
        self.caches.get(node.index().checked_sub(self.nodes.len())?).copied()
    }

    /// The caches of a node, in order.
    pub fn caches_of(&self, home: NodeId) -> impl Iterator<Item = NodeId> {
        let caches = (self.nodes.len() as u16..).map(NodeId).zip(&self.caches);
        caches.filter(move |(_, of)| **of == home).map(|(cache, _)| cache)
    }

    /// Checks that the protocol of this name has caches, if the cluster does.
    ///
    /// # Errors
    /// If it has none.
    pub fn check_caches(&self, protocol: &str, has_caches: bool) -> Result<(), String> {
        match self.caches.is_empty() || has_caches {
            true => Ok(()),
            false => {
                Err(format!("[[nodes]]: protocol {protocol:?} has no caches; remove `cache_of`"))
            }
        }
    }

    /// The location of a node, or of the home of a cache.
    pub fn place_of(&self, node: NodeId) -> NodePlace {
        self.nodes[self.home_of(node).unwrap_or(node).index()]
    }

    /// All nodes, in order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u16).map(NodeId)
    }

    /// All nodes except `me`, in order.
    pub fn peers_of(&self, me: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        self.node_ids().filter(move |&node| node != me)
    }

    /// The number of nodes.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// f: the number of nodes that may be lost, the largest with `2 f + 1 <= n`.
    pub fn faults_tolerated(&self) -> usize {
        (self.voter_count().max(1) - 1) / 2
    }

    /// f + 1: in any set of this size, at least one node survives f losses.
    pub fn availability_quorum(&self) -> usize {
        self.faults_tolerated() + 1
    }

    /// More than half: any two sets of this size share a node.
    pub fn majority(&self) -> usize {
        self.voter_count() / 2 + 1
    }

    /// The name of the region of `node`.
    pub fn region_name(&self, node: NodeId) -> &str {
        &self.regions[usize::from(self.place_of(node).region.0)]
    }

    /// The name of a node's location in reports: its region, its shard if tables are partitioned,
    /// and whether it is a learner.
    pub fn place_name(&self, node: NodeId) -> String {
        let region = self.region_name(node);
        if self.home_of(node).is_some() {
            return format!("{region}.cache");
        }
        let learner = if self.is_learner(node) { ".learner" } else { "" };
        match self.partitions.shards() {
            1 => format!("{region}{learner}"),
            _ => format!("{region}.{}{learner}", self.nodes[node.index()].shard.0),
        }
    }

    /// The name of a node for operators: its location and its number.
    pub fn node_name(&self, node: NodeId) -> String {
        format!("{} (node {})", self.place_name(node), node.0)
    }

    /// The expected one-way delay between two nodes.
    pub fn one_way_between(&self, from: NodeId, to: NodeId) -> Span {
        let region = |node: NodeId| usize::from(self.place_of(node).region.0);
        self.one_way[region(from)][region(to)]
    }

    /// The longest expected round trip between any two nodes.
    pub fn round_trip_max(&self) -> Span {
        let there_and_back = |a: usize, b: usize| self.one_way[a][b].us + self.one_way[b][a].us;
        let n = self.one_way.len();
        let us =
            (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).map(|(a, b)| there_and_back(a, b));
        Span { us: us.max().unwrap_or(0) }
    }
}

/// The replicas of one shard as a cluster of its own (Calvin §3.1.1: a replication group). Members
/// are numbered from 0, in the order of their nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group as a cluster.
    pub topology: Arc<Topology>,
    nodes: Vec<NodeId>,
}

impl Group {
    /// The node of a member.
    pub fn node(&self, member: NodeId) -> NodeId {
        self.nodes[member.index()]
    }

    /// The member number of a node, if it is in the group.
    pub fn member(&self, node: NodeId) -> Option<NodeId> {
        self.nodes.binary_search(&node).ok().map(|index| NodeId(index as u16))
    }

    /// The members' nodes, in order.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::Rule;

    #[test]
    fn quorums_follow_from_the_number_of_nodes() {
        for (regions, f, majority) in [(1, 0, 1), (2, 0, 2), (3, 1, 2), (4, 1, 3), (5, 2, 3)] {
            let names = ["a", "b", "c", "d", "e"];
            let t = Topology::one_node_per_region("t", &names[..regions], Span::from_ms(25));
            assert_eq!((t.faults_tolerated(), t.majority()), (f, majority), "{regions} regions");
            assert_eq!(t.availability_quorum(), f + 1);
        }
    }

    #[test]
    fn each_shard_has_a_group_of_one_node_in_each_region() {
        let whole = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        let t = whole.clone().divided(Partitions::new(2, Rule::Everywhere));
        assert_eq!(t.node_count(), 6);
        assert_eq!([t.place_name(NodeId(3)), whole.place_name(NodeId(1))], ["b.1", "b"]);
        let group = t.group(ShardId(1));
        assert_eq!(group.nodes(), [1, 3, 5].map(NodeId));
        assert_eq!((group.topology.node_count(), group.topology.majority()), (3, 2));
        assert_eq!(group.topology.region_name(NodeId(2)), "c");
        for member in group.topology.node_ids() {
            assert_eq!(group.member(group.node(member)), Some(member));
        }
        assert_eq!(group.member(NodeId(2)), None);
        assert_eq!(t.node_at(RegionId(2), ShardId(0)), Some(NodeId(4)));
        let group = whole.group(ShardId(0));
        assert_eq!((&*group.topology, group.nodes().len()), (&whole, 3), "one shard has all nodes");
    }

    #[test]
    fn a_cache_is_in_the_region_of_its_home_and_counts_nowhere() {
        let mut t = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        t.caches = vec![NodeId(2), NodeId(0), NodeId(2)];
        assert_eq!((t.node_count(), t.majority(), t.all_ids().count()), (3, 2, 6));
        assert_eq!(
            [2, 3, 4].map(|node| t.home_of(NodeId(node))),
            [None, Some(NodeId(2)), Some(NodeId(0))]
        );
        assert_eq!(t.caches_of(NodeId(2)).collect::<Vec<_>>(), [3, 5].map(NodeId));
        assert_eq!([t.place_name(NodeId(3)), t.place_name(NodeId(2))], ["c.cache", "c"]);
        assert_eq!(t.one_way_between(NodeId(4), NodeId(1)), Span::from_ms(25));
        assert_eq!(t.group(ShardId(0)).topology.node_count(), 3);
    }

    #[test]
    fn the_longest_round_trip_is_there_and_back() {
        let t = Topology::one_node_per_region("t", &["a", "b"], Span::from_ms(25));
        assert_eq!(t.round_trip_max(), Span::from_ms(50));
    }
}
