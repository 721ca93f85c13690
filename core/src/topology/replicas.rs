//! Partial replication: the regions that have a replica of each shard.

use std::collections::BTreeSet;

use super::{NodePlace, Topology};
use crate::ids::{NodeId, RegionId, ShardId};
use crate::partition::Partitions;

/// For each shard, the regions that have a replica of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas(Vec<BTreeSet<RegionId>>);

impl Replicas {
    /// The replicas of shards 0, 1 and so on.
    ///
    /// # Errors
    /// If a shard has none.
    pub fn new(of: Vec<BTreeSet<RegionId>>) -> Result<Self, String> {
        match of.iter().position(BTreeSet::is_empty) {
            Some(shard) => Err(format!("shard {shard} has no replica")),
            None => Ok(Self(of)),
        }
    }

    /// Parses the names of regions, separated by commas, for each shard, separated by slashes:
    /// `us-east,eu-west/eu-west,ap-northeast`.
    ///
    /// # Errors
    /// If a region is unknown, or is named twice for a shard.
    pub fn parse(text: &str, regions: &[String]) -> Result<Self, String> {
        let mut all = Vec::new();
        for (shard, names) in text.split('/').enumerate() {
            let mut of = BTreeSet::new();
            for name in names.split(',') {
                let Some(region) = regions.iter().position(|region| region == name) else {
                    return Err(format!(
                        "there is no region {name:?}; expected one of {}",
                        regions.join(", ")
                    ));
                };
                if !of.insert(RegionId(region as u16)) {
                    return Err(format!("shard {shard} has region {name:?} twice"));
                }
            }
            all.push(of);
        }
        Self::new(all)
    }

    /// The text of which [`Replicas::parse`] makes the same.
    pub fn text(&self, regions: &[String]) -> String {
        let name = |region: &RegionId| regions[usize::from(region.0)].as_str();
        let of = |of: &BTreeSet<RegionId>| of.iter().map(name).collect::<Vec<_>>().join(",");
        self.0.iter().map(of).collect::<Vec<_>>().join("/")
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.0.len()
    }

    /// Whether a region has a replica of a shard.
    pub fn contains(&self, region: RegionId, shard: ShardId) -> bool {
        self.0.get(usize::from(shard.0)).is_some_and(|of| of.contains(&region))
    }

    /// The nodes of a cluster of this number of regions, in order: by region, then by shard.
    pub fn places(&self, regions: usize) -> Vec<NodePlace> {
        let shards = 0..self.0.len() as u16;
        let places = (0..regions as u16).flat_map(|region| {
            let place = move |shard| NodePlace { region: RegionId(region), shard: ShardId(shard) };
            shards.clone().map(place)
        });
        places.filter(|place| self.contains(place.region, place.shard)).collect()
    }
}

/// The places of a learner for each shard, beside the first of these replicas.
pub fn learner_places(voters: &[NodePlace]) -> Vec<NodePlace> {
    let mut first: Vec<NodePlace> = Vec::new();
    for place in voters {
        if first.iter().all(|it| it.shard != place.shard) {
            first.push(*place);
        }
    }
    first.sort_by_key(|place| place.shard);
    first
}

impl Topology {
    /// The same regions with partitioned tables, and with these replicas only.
    ///
    /// # Errors
    /// If they are replicas of another number of shards.
    pub fn placed(self, partitions: Partitions, replicas: &Replicas) -> Result<Self, String> {
        let (shards, found) = (usize::from(partitions.shards()), replicas.shards());
        if shards != found {
            return Err(format!("there are replicas of {found} shards, and {shards} partitions"));
        }
        Ok(Self { nodes: replicas.places(self.regions.len()), partitions, ..self })
    }

    /// The nodes of a region, in order.
    pub fn nodes_in(&self, region: RegionId) -> impl Iterator<Item = NodeId> {
        self.node_ids().filter(move |node| self.nodes[node.index()].region == region)
    }

    /// The same cluster with non-voting replicas at these places.
    #[must_use]
    pub fn with_non_voting(mut self, places: &[NodePlace]) -> Self {
        self.nodes.extend_from_slice(places);
        self.non_voting += places.len() as u16;
        self
    }

    /// The same cluster with a learner for each shard, beside its first replica.
    #[must_use]
    pub fn with_learners(self) -> Self {
        let places = learner_places(&self.nodes[..self.voter_count()]);
        self.with_non_voting(&places)
    }

    /// The number of nodes that vote.
    pub fn voter_count(&self) -> usize {
        self.nodes.len() - usize::from(self.non_voting)
    }

    /// Whether a node votes.
    pub fn votes(&self, node: NodeId) -> bool {
        node.index() < self.voter_count()
    }

    /// Whether a node is a learner: a non-voting replica in a region that has a voting one of the
    /// same shard, too (Mako §6.3).
    pub fn is_learner(&self, node: NodeId) -> bool {
        let place = self.nodes.get(node.index()).filter(|_| !self.votes(node));
        place.is_some_and(|place| self.voter_at(place.region, place.shard).is_some())
    }

    /// The nodes that vote, in order.
    pub fn voter_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.voter_count() as u16).map(NodeId)
    }

    /// The cluster of the nodes that vote.
    #[must_use]
    pub fn voters(&self) -> Self {
        let nodes = self.nodes[..self.voter_count()].to_vec();
        Self { nodes, non_voting: 0, ..self.clone() }
    }

    /// The cluster of one of the nodes.
    #[must_use]
    pub fn alone(&self, node: NodeId) -> Self {
        Self { nodes: vec![self.nodes[node.index()]], non_voting: 0, ..self.clone() }
    }

    /// The replica of a shard in a region, if it votes.
    pub fn voter_at(&self, region: RegionId, shard: ShardId) -> Option<NodeId> {
        let place = NodePlace { region, shard };
        self.voter_ids().find(|node| self.nodes[node.index()] == place)
    }

    /// Whether a region has a voting replica of each shard.
    pub fn is_whole(&self, region: RegionId) -> bool {
        let mut shards = (0..self.partitions.shards()).map(ShardId);
        shards.all(|shard| self.voter_at(region, shard).is_some())
    }

    /// Checks that no replica is a learner, unless the protocol of this name has learners.
    ///
    /// # Errors
    /// The learner.
    pub fn check_learners(&self, protocol: &str, has_learners: bool) -> Result<(), String> {
        match self.node_ids().find(|node| self.is_learner(*node)) {
            Some(learner) if !has_learners => Err(format!(
                "[[nodes]]: id = {} has `votes = false` in a region that has a voting \
                 replica of its shard; protocol {protocol:?} has no learners",
                learner.0
            )),
            _ => Ok(()),
        }
    }

    /// Checks that each shard has a voting replica;
    /// and that all replicas vote, and each region with
    /// nodes has one of each shard, unless the protocol of this name has partial replication.
    ///
    /// # Errors
    /// The replica that is missing, or has no vote.
    pub fn check_replicas(&self, protocol: &str, is_partial: bool) -> Result<(), String> {
        let has_voter = |shard: &ShardId| {
            self.nodes[..self.voter_count()].iter().any(|place| place.shard == *shard)
        };
        let mut shards = (0..self.partitions.shards()).map(ShardId);
        if let Some(shard) = shards.find(|shard| !has_voter(shard)) {
            return Err(format!("[[nodes]]: no node with shard = {} has a vote", shard.0));
        }
        if is_partial {
            return Ok(());
        }
        if self.non_voting > 0 {
            let first = self.voter_count();
            return Err(format!(
                "[[nodes]]: id = {first} has `votes = false`; all nodes of protocol {protocol:?} \
                 vote"
            ));
        }
        let regions = (0..self.regions.len() as u16).map(RegionId);
        let lacking = regions.filter(|region| self.nodes_in(*region).next().is_some());
        for region in lacking {
            let mut shards = (0..self.partitions.shards()).map(ShardId);
            if let Some(shard) = shards.find(|shard| self.node_at(region, *shard).is_none()) {
                return Err(format!(
                    "[[nodes]]: region {:?} has no node with shard = {}; protocol {protocol:?} \
                     needs a replica of each shard in each region",
                    self.regions[usize::from(region.0)],
                    shard.0
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::Rule;
    use crate::time::Span;

    fn regions() -> Vec<String> {
        ["a", "b", "c"].map(str::to_owned).to_vec()
    }

    #[test]
    fn replicas_without_a_vote_count_in_no_quorum() {
        let t = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        let place = |region, shard| NodePlace { region: RegionId(region), shard: ShardId(shard) };
        let divided = t.clone().divided(Partitions::new(2, Rule::Everywhere));
        let t = divided.with_non_voting(&[place(0, 1), place(1, 1)]);
        assert_eq!((t.node_count(), t.voter_count(), t.votes(NodeId(6))), (8, 6, false));
        let group = t.group(ShardId(1));
        assert_eq!(group.nodes(), [1, 3, 5, 6, 7].map(NodeId));
        assert_eq!((group.topology.majority(), group.topology.faults_tolerated()), (2, 1));
        assert_eq!((group.topology.voter_count(), group.topology.non_voting), (3, 2));
        assert_eq!(
            (group.topology.voters().node_count(), t.group(ShardId(0)).nodes().len()),
            (3, 3)
        );
        assert_eq!(t.voter_at(RegionId(0), ShardId(1)), Some(NodeId(1)));
        let why = "[[nodes]]: id = 6 has `votes = false`; all nodes of protocol \"other\" vote";
        assert_eq!(t.check_replicas("other", false), Err(why.to_owned()));
        assert_eq!(t.check_replicas("some", true), Ok(()));
        let none = Topology { non_voting: 3, ..t.voters() };
        assert_eq!(none.check_replicas("some", true), Ok(()));
        let none = Topology { non_voting: 5, ..t.voters() };
        let why = "[[nodes]]: no node with shard = 1 has a vote".to_owned();
        assert_eq!(none.check_replicas("some", true), Err(why));
    }

    #[test]
    fn learners_are_beside_the_first_replicas_of_their_shards() {
        let whole = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        let t = whole.clone().with_learners();
        let names: Vec<String> = t.node_ids().map(|node| t.place_name(node)).collect();
        assert_eq!(names, ["a", "b", "c", "a.learner"]);
        assert_eq!(
            (t.voter_count(), t.is_learner(NodeId(3)), t.is_learner(NodeId(0))),
            (3, true, false)
        );
        let replicas = Replicas::parse("b,c/a,b", &regions()).unwrap();
        let t = whole.placed(Partitions::new(2, Rule::Everywhere), &replicas).unwrap();
        let t = t.with_learners();
        let names: Vec<String> = t.node_ids().map(|node| t.place_name(node)).collect();
        assert_eq!(names, ["a.1", "b.0", "b.1", "c.0", "b.0.learner", "a.1.learner"]);
        let group = t.group(ShardId(1)).topology;
        assert_eq!((group.node_count(), group.is_learner(NodeId(2))), (3, true));
        assert_eq!(t.check_learners("some", true), Ok(()));
        let why = "[[nodes]]: id = 4 has `votes = false` in a region that has a voting replica of \
                   its shard; protocol \"other\" has no learners";
        assert_eq!(t.check_learners("other", false), Err(why.to_owned()));
    }

    #[test]
    fn replicas_are_read_and_written() {
        let replicas = Replicas::parse("c,a/b", &regions()).unwrap();
        assert_eq!((replicas.text(&regions()).as_str(), replicas.shards()), ("a,c/b", 2));
        for (text, why) in [
            ("a/d", "there is no region \"d\"; expected one of a, b, c"),
            ("a,a/b", "shard 0 has region \"a\" twice"),
            ("a/", "there is no region \"\"; expected one of a, b, c"),
        ] {
            assert_eq!(Replicas::parse(text, &regions()), Err(why.to_owned()));
        }
        assert_eq!(Replicas::new(vec![BTreeSet::new()]), Err("shard 0 has no replica".to_owned()));
    }

    #[test]
    fn a_shard_has_a_group_in_some_regions() {
        let whole = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        let replicas = Replicas::parse("a,b,c/b", &regions()).unwrap();
        let t = whole.clone().placed(Partitions::new(2, Rule::Everywhere), &replicas).unwrap();
        let names: Vec<String> = t.node_ids().map(|node| t.place_name(node)).collect();
        assert_eq!(names, ["a.0", "b.0", "b.1", "c.0"]);
        let sizes = [0, 1].map(|shard| {
            let group = t.group(ShardId(shard)).topology;
            (group.node_count(), group.majority(), group.faults_tolerated())
        });
        assert_eq!(sizes, [(3, 2, 1), (1, 1, 0)]);
        assert_eq!([0, 1, 2].map(|region| t.is_whole(RegionId(region))), [false, true, false]);
        assert_eq!(t.nodes_in(RegionId(1)).collect::<Vec<_>>(), [1, 2].map(NodeId));
        assert_eq!(t.check_replicas("some", true), Ok(()));
        let why = "[[nodes]]: region \"a\" has no node with shard = 1; protocol \"other\" needs a \
                   replica of each shard in each region";
        assert_eq!(t.check_replicas("other", false), Err(why.to_owned()));
        let full = whole.clone().divided(Partitions::new(2, Rule::Everywhere));
        assert_eq!(full.check_replicas("other", false), Ok(()));
        let why = "there are replicas of 2 shards, and 3 partitions".to_owned();
        assert_eq!(whole.placed(Partitions::new(3, Rule::Everywhere), &replicas), Err(why));
    }
}
