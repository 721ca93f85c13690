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

    /// Whether a region has a replica of each shard.
    pub fn is_whole(&self, region: RegionId) -> bool {
        let mut shards = (0..self.partitions.shards()).map(ShardId);
        shards.all(|shard| self.node_at(region, shard).is_some())
    }

    /// Checks that each region with nodes has a replica of each shard, unless the protocol of this
    /// name has partial replication.
    ///
    /// # Errors
    /// The replica that is missing.
    pub fn check_replicas(&self, protocol: &str, is_partial: bool) -> Result<(), String> {
        if is_partial {
            return Ok(());
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
