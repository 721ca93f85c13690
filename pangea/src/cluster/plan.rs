//! The plan of a cluster, and the configuration of each of its nodes.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use pangea_baselines::free_ports;
use pangea_core::ids::{NodeId, RegionId, ShardId};
use pangea_core::partition::Partitions;
use pangea_core::topology::{NodePlace, Replicas};
use pangea_node::clock::ClockConfig;
use pangea_node::config::{
    Config, NodeConfig, PartitionsConfig, RoundTripConfig, Tuning, WanConfig,
};
use pangea_node::log::Durability;
use serde::Serialize;

use crate::failure::Failure;
use crate::protocol::{
    CheckOptions, NodesMin, SupportsCaches, SupportsPartial, SupportsPartitions, with_protocol,
};
use crate::regions;

/// The largest number of regions of a cluster: each is a process on this machine.
const REGIONS_MAX: usize = 15;
/// The largest number of nodes of a cluster with partitioned tables.
const NODES_MAX: usize = 32;

/// The first port of a node that has its own address: all ports of the address are free.
const PORT_FIRST: u16 = 21_000;

/// The distance of two regions of a cluster.
pub type RoundTrip = RoundTripConfig;

/// The plan of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The cluster's name.
    pub cluster: String,
    /// The protocol's name.
    pub protocol: String,
    /// The protocol's settings that are not the default.
    pub options: toml::Table,
    /// The regions' names. Each region has one node for each shard, unless `replicas` says
    /// otherwise.
    pub regions: Vec<String>,
    /// The number of shards, and the partitioning rules.
    pub partitions: Partitions,
    /// The regions that have a replica of each shard, if some lack one.
    pub replicas: Option<Replicas>,
    /// The regions that have only a non-voting replica of the first shard.
    pub non_voting: Vec<String>,
    /// The number of caches of each node.
    pub caches: u16,
    /// The round trip of each pair of regions.
    pub round_trips: Vec<RoundTrip>,
    /// The maximum additional random delay of each frame, in milliseconds.
    pub jitter_ms: f64,
    /// The errors of the nodes' clocks, if they are emulated.
    pub clock: Option<ClockConfig>,
    /// When a record counts as durable.
    pub durability: Durability,
    /// The keys of each node with a number.
    pub tuning: Tuning,
    /// Whether the nodes meter their CPU time by kind of work.
    pub is_metered: bool,
    /// The placement of each node, if not on loopback. Distances are then real and not emulated by
    /// the nodes.
    pub placements: Vec<Placement>,
}

/// A separate network environment for a node, as a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The address of the node, all of whose ports are free.
    pub address: IpAddr,
    /// The command prefix that runs a program in this environment. The program replaces it in the
    /// same process.
    pub command_prefix: Vec<OsString>,
}

/// The format of a configuration file.
#[derive(Serialize)]
struct File<'a> {
    cluster: &'a str,
    protocol: &'a str,
    node: u16,
    data_dir: &'a Path,
    durability: Durability,
    #[serde(flatten)]
    tuning: Tuning,
    insecure: bool,
    regions: &'a [String],
    nodes: &'a [NodeConfig],
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<PartitionsConfig>,
    #[serde(skip_serializing_if = "<[RoundTrip]>::is_empty")]
    round_trips: &'a [RoundTrip],
    #[serde(skip_serializing_if = "Option::is_none")]
    clock: Option<ClockConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wan: Option<WanConfig>,
}

impl Plan {
    /// Returns a cluster of named cloud regions, with their real distances.
    ///
    /// # Errors
    /// If a region is unknown or named twice, or if there are no regions or too many.
    pub fn of_named_regions(protocol: &str, regions: &[String]) -> Result<Self, Failure> {
        if let Some(unknown) = regions.iter().find(|name| !regions::NAMES.contains(&name.as_str()))
        {
            return Err(Failure::Usage(format!(
                "there is no region {unknown:?}; expected one of {}",
                regions::NAMES.join(", ")
            )));
        }
        let between = |a: &str, b: &str| {
            regions::round_trip_ms(a, b).expect("known regions have a round trip")
        };
        Self::new(protocol, regions, between)
    }

    /// Returns a cluster of regions with equal distances.
    ///
    /// # Errors
    /// If a region is named twice, or if there are no regions or too many.
    pub fn of_equal_distances(
        protocol: &str,
        regions: &[String],
        round_trip_ms: f64,
    ) -> Result<Self, Failure> {
        Self::new(protocol, regions, |_, _| round_trip_ms)
    }

    fn new(
        protocol: &str,
        regions: &[String],
        round_trip_ms: impl Fn(&str, &str) -> f64,
    ) -> Result<Self, Failure> {
        if regions.is_empty() || regions.len() > REGIONS_MAX {
            let count = regions.len();
            let message = format!("{count} regions; there must be from 1 to {REGIONS_MAX}");
            return Err(Failure::Usage(message));
        }
        let mut round_trips = Vec::new();
        for (i, b) in regions.iter().enumerate() {
            for a in &regions[..i] {
                if a == b {
                    return Err(Failure::Usage(format!("region {a:?} is listed twice")));
                }
                let ms = round_trip_ms(a, b);
                round_trips.push(RoundTrip { between: [a.clone(), b.clone()], ms });
            }
        }
        Ok(Self {
            cluster: "pangea".to_owned(),
            protocol: protocol.to_owned(),
            options: toml::Table::new(),
            regions: regions.to_vec(),
            partitions: Partitions::default(),
            replicas: None,
            non_voting: Vec::new(),
            caches: 0,
            round_trips,
            jitter_ms: 0.0,
            clock: None,
            durability: Durability::default(),
            // Most clusters are deleted when they stop.
            tuning: Tuning { workers: workers(regions.len()), stop_s: 0, ..Tuning::default() },
            is_metered: false,
            placements: Vec::new(),
        })
    }

    /// Returns the same cluster with its tables partitioned by these rules.
    #[must_use]
    pub fn divided(self, partitions: Partitions) -> Self {
        let workers = workers(self.regions.len() * usize::from(partitions.shards()));
        Self { partitions, tuning: Tuning { workers, ..self.tuning }, ..self }
    }

    /// Returns the same cluster with these replicas of its shards, as [`Replicas::parse`] reads
    /// them, and with non-voting replicas of the first shard in some regions. Without a text each
    /// other region has all shards.
    ///
    /// # Errors
    /// If they are not those of this cluster's shards and regions.
    pub fn placed(self, replicas: Option<&str>, non_voting: &[String]) -> Result<Self, Failure> {
        if replicas.is_none() && non_voting.is_empty() {
            return Ok(self);
        }
        let is_again = |(at, name): &(usize, &String)| non_voting[..*at].contains(name);
        if let Some((_, name)) = non_voting.iter().enumerate().find(is_again) {
            return Err(Failure::Usage(format!("--non-voting: region {name:?} is listed twice")));
        }
        if let Some(name) = non_voting.iter().find(|name| !self.regions.contains(name)) {
            return Err(Failure::Usage(format!("--non-voting: {name:?} is not among --regions")));
        }
        let has_votes =
            |region: &RegionId| !non_voting.contains(&self.regions[usize::from(region.0)]);
        let regions = || (0..self.regions.len() as u16).map(RegionId);
        let found = match replicas {
            Some(text) => Replicas::parse(text, &self.regions),
            None => {
                let of = |_| regions().filter(has_votes).collect();
                Replicas::new((0..self.shards()).map(of).collect())
            }
        };
        let replicas = found.and_then(|replicas| self.checked(replicas, non_voting));
        let replicas = replicas.map_err(|why| Failure::Usage(format!("--replicas-in: {why}")))?;
        let nodes = replicas.places(self.regions.len()).len() + non_voting.len();
        let tuning = Tuning { workers: workers(nodes), ..self.tuning };
        let non_voting = non_voting.to_vec();
        Ok(Self { replicas: Some(replicas), non_voting, tuning, ..self })
    }

    /// Checks that there are replicas of each shard, and in each region either voting ones or a
    /// non-voting one.
    fn checked(&self, replicas: Replicas, non_voting: &[String]) -> Result<Replicas, String> {
        let (found, shards) = (replicas.shards(), self.shards());
        if found != shards {
            return Err(format!("replicas of {found} shards are given, and --partitions {shards}"));
        }
        for (region, name) in (0..).map(RegionId).zip(&self.regions) {
            let mut shards = (0..self.partitions.shards()).map(ShardId);
            let has_some = shards.any(|shard| replicas.contains(region, shard));
            match (has_some, non_voting.contains(name)) {
                (true, true) => return Err(format!("region {name:?} has replicas that vote")),
                (false, false) => return Err(format!("region {name:?} has no replica")),
                (true, false) | (false, true) => {}
            }
        }
        Ok(replicas)
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        usize::from(self.partitions.shards())
    }

    /// Returns the region and the shard of each node, in order.
    fn node_places(&self) -> Vec<NodePlace> {
        if let Some(replicas) = &self.replicas {
            let mut places = replicas.places(self.regions.len());
            let is_it =
                |region: &u16| self.non_voting.contains(&self.regions[usize::from(*region)]);
            let non_voting = (0..self.regions.len() as u16).filter(is_it);
            let place = |region| NodePlace { region: RegionId(region), shard: ShardId(0) };
            places.extend(non_voting.map(place));
            return places;
        }
        let place = |index: usize| NodePlace {
            region: RegionId((index / self.shards()) as u16),
            shard: ShardId((index % self.shards()) as u16),
        };
        (0..self.regions.len() * self.shards()).map(place).collect()
    }

    /// Returns the shard of each node, in order.
    pub fn shards_of_nodes(&self) -> Vec<usize> {
        self.node_places().iter().map(|place| usize::from(place.shard.0)).collect()
    }

    /// Returns the number of voting replicas of a shard.
    pub fn voters_of(&self, shard: usize) -> usize {
        let all = self.shards_of_nodes();
        let voters = &all[..all.len() - self.non_voting.len()];
        voters.iter().filter(|it| **it == shard).count()
    }

    /// Returns the names of the nodes, in order: their regions, with their shards if tables are
    /// partitioned.
    pub fn places(&self) -> Vec<String> {
        let name = |place: &NodePlace| {
            let region = &self.regions[usize::from(place.region.0)];
            match self.shards() {
                1 => region.clone(),
                _ => format!("{region}.{}", place.shard.0),
            }
        };
        self.node_places().iter().map(name).collect()
    }

    /// Returns the name of a node or cache, by number: caches come after all nodes.
    pub fn name_of(&self, node: usize) -> String {
        let places = self.places();
        let (number, home) = (node / places.len(), &places[node % places.len()]);
        match number {
            0 => home.clone(),
            _ if self.caches == 1 => format!("{home}.cache"),
            number => format!("{home}.cache{number}"),
        }
    }

    /// Returns the region of a node or cache, by number.
    pub fn region_of(&self, node: usize) -> usize {
        let places = self.node_places();
        usize::from(places[node % places.len()].region.0)
    }

    /// Returns the number of nodes and caches.
    fn process_count(&self) -> usize {
        self.places().len() * (1 + usize::from(self.caches))
    }

    /// Returns the emulated round trip between two regions in milliseconds.
    pub fn round_trip_ms(&self, a: &str, b: &str) -> f64 {
        let is_it = |trip: &&RoundTrip| {
            let [c, d] = &trip.between;
            (c == a && d == b) || (c == b && d == a)
        };
        self.round_trips.iter().find(is_it).map_or(0.0, |trip| trip.ms)
    }

    /// Returns the longest round trip between any two regions in milliseconds.
    pub fn round_trip_ms_max(&self) -> f64 {
        self.round_trips.iter().map(|trip| trip.ms).fold(0.0, f64::max)
    }

    /// Returns the round trip from each region to the nearest majority of a shard's voting replicas,
    /// in milliseconds, for the shard with the shortest one. No commit that survives the loss of a
    /// region can be faster.
    pub fn majority_round_trips_ms(&self) -> Vec<f64> {
        let places = self.node_places();
        let voters = &places[..places.len() - self.non_voting.len()];
        let to_majority = |region: &String, shard: usize| {
            let of = voters.iter().filter(|place| usize::from(place.shard.0) == shard);
            let far = |place: &NodePlace| &self.regions[usize::from(place.region.0)];
            let mut trips: Vec<f64> =
                of.map(|place| self.round_trip_ms(region, far(place))).collect();
            trips.sort_by(f64::total_cmp);
            trips[trips.len() / 2]
        };
        let from = |region: &String| {
            let all = (0..self.shards()).map(|shard| to_majority(region, shard));
            all.min_by(f64::total_cmp).unwrap_or_default()
        };
        self.regions.iter().map(from).collect()
    }

    /// Checks that the protocol and all its settings exist, and that it supports this number of
    /// regions and shards.
    ///
    /// # Errors
    /// If not, in the terms of the command line.
    pub fn check(&self) -> Result<(), Failure> {
        let nodes = self.places().len();
        if nodes > NODES_MAX && self.shards() > 1 {
            return Err(Failure::Usage(format!(
                "{} regions with {} partitions are {nodes} nodes; at most {NODES_MAX} run on one \
                 machine",
                self.regions.len(),
                self.shards()
            )));
        }
        // Any addresses are valid here: they are not used.
        let addresses = (1..).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let addresses: Vec<SocketAddr> = addresses.take(2 * self.process_count()).collect();
        self.config(0, Path::new("data"), &addresses)?;
        if self.shards() > 1 && !with_protocol(&self.protocol, SupportsPartitions)? {
            return Err(Failure::Usage(format!(
                "--partitions: protocol {:?} stores all rows on each node",
                self.protocol
            )));
        }
        if self.replicas.is_some() && !with_protocol(&self.protocol, SupportsPartial)? {
            return Err(Failure::Usage(format!(
                "--replicas-in, --non-voting: protocol {:?} needs a voting replica of each shard in each \
                 region",
                self.protocol
            )));
        }
        if self.caches > 0 && !with_protocol(&self.protocol, SupportsCaches)? {
            return Err(Failure::Usage(format!(
                "--caches: protocol {:?} has no caches",
                self.protocol
            )));
        }
        let (found, least) = (self.regions.len(), with_protocol(&self.protocol, NodesMin)?);
        if found < least {
            return Err(Failure::Usage(format!(
                "too few regions: protocol {:?} needs at least {least} regions, and 3 to survive \
                 the loss of one",
                self.protocol
            )));
        }
        Ok(())
    }

    /// Returns the configuration of every node, and then of every cache, with addresses that are
    /// currently free.
    ///
    /// # Errors
    /// If no port is free, or a setting has an invalid value.
    pub fn configs(&self, directory: &Path) -> Result<Vec<Config>, Failure> {
        let addresses = match &self.placements[..] {
            [] => free_addresses(2 * self.process_count())?,
            placements => {
                assert_eq!(placements.len(), self.regions.len(), "one environment per region");
                let mut ports = vec![PORT_FIRST; placements.len()];
                let of_node = |place: &NodePlace| {
                    let region = usize::from(place.region.0);
                    let (address, port) = (placements[region].address, ports[region]);
                    ports[region] += 2;
                    [port, port + 1].map(|port| SocketAddr::from((address, port)))
                };
                self.node_places().iter().flat_map(of_node).collect()
            }
        };
        assert!(self.caches == 0 || self.placements.is_empty(), "caches are on loopback");
        let config = |index: usize| {
            self.config(index, &directory.join(self.name_of(index)).join("data"), &addresses)
        };
        (0..self.process_count()).map(config).collect()
    }

    fn config(
        &self,
        index: usize,
        data_dir: &Path,
        addresses: &[SocketAddr],
    ) -> Result<Config, Failure> {
        let shards = self.shards();
        assert_eq!(addresses.len(), 2 * self.process_count(), "two for each node");
        let places = self.node_places();
        let node_count = places.len();
        let node = |(index, addresses): (usize, &[SocketAddr])| NodeConfig {
            id: NodeId(index as u16),
            region: self.regions[self.region_of(index)].clone(),
            shard: places[index % node_count].shard,
            votes: index % node_count + self.non_voting.len() < node_count,
            cache_of: (index >= node_count).then(|| NodeId((index % node_count) as u16)),
            peer: addresses[0],
            sql: addresses[1],
        };
        let nodes: Vec<NodeConfig> = addresses.chunks(2).enumerate().map(node).collect();
        // Old versions stay in memory, regardless of its limit.
        let history_s = if self.tuning.memory_mb.is_some() { 0 } else { self.tuning.history_s };
        let is_far = self.jitter_ms > 0.0 || self.round_trip_ms_max() > 0.0;
        let is_emulated = is_far && self.placements.is_empty();
        let file = File {
            cluster: &self.cluster,
            protocol: &self.protocol,
            node: index as u16,
            data_dir,
            durability: self.durability,
            tuning: Tuning { history_s, ..self.tuning },
            // Only the cluster and its clients can reach these addresses.
            insecure: !self.placements.is_empty(),
            regions: &self.regions,
            nodes: &nodes,
            partitions: (shards > 1).then(|| PartitionsConfig::of(&self.partitions)),
            round_trips: &self.round_trips,
            clock: self.clock,
            wan: is_emulated
                .then_some(WanConfig { jitter_ms: self.jitter_ms, bandwidth_mbit: None }),
        };
        let mut text = toml::to_string(&file).expect("a plan can be written as TOML");
        if !self.options.is_empty() {
            let options = toml::Value::Table(self.options.clone());
            let table = toml::Table::from_iter([(self.protocol.clone(), options)]);
            text.push_str(&toml::to_string(&table).expect("it was read from TOML"));
        }
        let usage = |error: pangea_node::config::ConfigError| Failure::Usage(error.message);
        let config = Config::parse("node.toml", &text).map_err(usage)?;
        let setting = |wrong: String| Failure::Usage(format!("--set: {wrong}"));
        with_protocol(&self.protocol, CheckOptions(&config))?.map_err(setting)?;
        Ok(config)
    }
}

/// Returns the number of threads for a node's data-parallel work, if all nodes share this machine's
/// cores.
fn workers(nodes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / nodes).max(1)
}

/// Returns loopback addresses with ports that are currently free.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, Failure> {
    free_ports(Ipv4Addr::LOCALHOST.into(), count)
        .map_err(|error| Failure::failed("no free port on 127.0.0.1", error))
}

/// Returns the numbers of the nodes with a name: that of a node, or that of a region, which may
/// have several nodes.
pub fn nodes_named(places: &[String], name: &str) -> Vec<usize> {
    let is_it = |place: &String| {
        let rest = place.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    (0..places.len()).filter(|&node| is_it(&places[node])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::partition::Rule;
    use pangea_node::config::with_system_tables;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn plan() -> Plan {
        Plan::of_named_regions("minerva", &names(&["us-east", "eu-west", "af-south"])).unwrap()
    }

    #[test]
    fn each_node_has_its_own_addresses_and_directory_and_the_same_distances() {
        let plan = Plan { jitter_ms: 1.5, ..plan() };
        let configs = plan.configs(Path::new("/d")).unwrap();
        assert_eq!(configs.len(), 3);
        for (index, config) in configs.iter().enumerate() {
            assert_eq!(config.node.index(), index);
            assert_eq!(config.nodes, configs[0].nodes);
            assert_eq!(config.data_dir, Path::new("/d").join(&plan.regions[index]).join("data"));
            assert_eq!(config.tuning, plan.tuning);
            let wan = config.emulated_wan().unwrap();
            assert_eq!(wan.one_way[0][1].us, 34_000, "half of the 68 ms to eu-west");
            assert_eq!(wan.one_way[1][2], wan.one_way[2][1]);
            assert_eq!(wan.jitter.us, 1_500);
            assert_eq!(Config::parse("again", &config.to_toml()).unwrap().nodes, config.nodes);
        }
        let ports: std::collections::BTreeSet<u16> =
            configs[0].nodes.iter().flat_map(|node| [node.peer.port(), node.sql.port()]).collect();
        assert_eq!(ports.len(), 6, "no port twice");
    }

    #[test]
    fn each_region_has_a_node_for_each_shard() {
        let partitions = Partitions::new(2, Rule::Hash { prefix_bytes: 4 });
        let plan = Plan { protocol: "calvin".to_owned(), ..plan() }.divided(partitions.clone());
        plan.check().unwrap();
        assert_eq!(plan.places()[..3], ["us-east.0", "us-east.1", "eu-west.0"]);
        let configs = plan.configs(Path::new("/d")).unwrap();
        assert_eq!(configs[3].data_dir, Path::new("/d/eu-west.1/data"));
        let topology = configs[3].topology();
        let of_nodes = with_system_tables(partitions);
        assert_eq!((topology.node_count(), &topology.partitions), (6, &of_nodes));
        assert_eq!(topology.place_name(NodeId(3)), plan.places()[3]);
        let of_other = Plan { protocol: "minerva".to_owned(), ..plan.clone() }.check().unwrap_err();
        assert!(of_other.to_string().contains("all rows on each node"), "{of_other}");
        let too_many = plan.divided(Partitions::new(20, Rule::Everywhere)).check().unwrap_err();
        assert!(too_many.to_string().contains("60 nodes"), "{too_many}");
    }

    #[test]
    fn regions_have_the_replicas_that_are_given() {
        let partitions = Partitions::new(2, Rule::Hash { prefix_bytes: 4 });
        let plan = Plan { protocol: "tiga".to_owned(), ..plan() }.divided(partitions);
        let text = "us-east,eu-west,af-south/eu-west";
        let placed = plan.clone().placed(Some(text), &[]).unwrap();
        placed.check().unwrap();
        assert_eq!(placed.places(), ["us-east.0", "eu-west.0", "eu-west.1", "af-south.0"]);
        assert_eq!([0, 1, 2, 3].map(|node| placed.region_of(node)), [0, 1, 1, 2]);
        assert_eq!(placed.shards_of_nodes(), [0, 0, 1, 0]);
        let topology = placed.configs(Path::new("/d")).unwrap()[0].topology();
        let named: Vec<_> = topology.node_ids().map(|node| topology.place_name(node)).collect();
        assert_eq!(named, placed.places());
        let placement = |number: u8| Placement {
            address: [10, 9, number, 1].into(),
            command_prefix: Vec::new(),
        };
        let placements = (1..=3).map(placement).collect();
        let apart = Plan { placements, ..placed.clone() }.configs(Path::new("/d")).unwrap();
        let peers = apart[0].nodes.iter().map(|node| node.peer.to_string());
        assert_eq!(peers.collect::<Vec<_>>()[1..3], ["10.9.2.1:21000", "10.9.2.1:21002"]);
        let calvin = Plan { protocol: "calvin".to_owned(), ..placed }.check().unwrap_err();
        assert!(calvin.to_string().contains("needs a voting replica of each shard"), "{calvin}");
        let few = plan.clone().placed(Some("us-east"), &[]).unwrap_err().to_string();
        assert!(few.contains("replicas of 1 shards are given, and --partitions 2"), "{few}");
        let south = names(&["af-south"]);
        let without = plan.clone().placed(None, &south).unwrap();
        without.check().unwrap();
        let expected = ["us-east.0", "us-east.1", "eu-west.0", "eu-west.1", "af-south.0"];
        assert_eq!(without.places(), expected);
        let topology = without.configs(Path::new("/d")).unwrap()[4].topology();
        assert_eq!((topology.non_voting, topology.voter_count()), (1, 4));
        let both = plan.placed(Some(&format!("{text}/us-east")), &south).unwrap_err().to_string();
        assert!(both.contains("replicas of 3 shards"), "{both}");
    }

    #[test]
    fn without_distance_nothing_is_emulated() {
        let plan = Plan::of_equal_distances("minerva", &names(&["a", "b"]), 0.0).unwrap();
        assert_eq!(plan.configs(Path::new("/d")).unwrap()[0].emulated_wan(), None);
    }

    #[test]
    fn in_places_of_their_own_nodes_know_the_distances_and_do_not_emulate_them() {
        let placement = |number: u8| Placement {
            address: [10, 9, number, 1].into(),
            command_prefix: Vec::new(),
        };
        let plan = Plan { jitter_ms: 1.0, placements: (1..=3).map(placement).collect(), ..plan() };
        let config = &plan.configs(Path::new("/d")).unwrap()[1];
        assert_eq!(config.emulated_wan(), None);
        assert_eq!(config.topology().one_way[0][1].us, 34_000);
        let me = config.me();
        assert_eq!((me.peer.to_string(), me.sql.to_string()), {
            ("10.9.2.1:21000".to_owned(), "10.9.2.1:21001".to_owned())
        });
    }

    #[test]
    fn options_reach_the_protocol_and_unknown_ones_are_named() {
        let mut plan = plan();
        plan.options.insert("epoch_ms".to_owned(), toml::Value::Integer(40));
        let config = &plan.configs(Path::new("/d")).unwrap()[1];
        let options: pangea_protocols::minerva::Options = config.protocol_options().unwrap();
        assert_eq!(options.epoch_ms, 40);
        plan.options.insert("speed".to_owned(), toml::Value::Integer(9));
        let error = plan.check().unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains("speed")), "{error}");
    }

    /// Story: a cluster with these options was once started, and its nodes reported the error and
    /// exited.
    #[test]
    fn options_that_this_cluster_cant_have_are_refused_before_it_starts() {
        for (options, word) in [
            ("replication = \"asynchronous\"\nmaster_region = \"nowhere\"", "us-east, eu-west"),
            ("replication = \"asynchronous\"\ncheckpoints = \"frozen\"", "zigzag"),
            ("master_region = \"eu-west\"", "remove master_region"),
        ] {
            let options = options.parse().unwrap();
            let plan = Plan { protocol: "calvin".to_owned(), options, ..plan() };
            let error = plan.check().unwrap_err();
            assert!(matches!(&error, Failure::Usage(text) if text.contains(word)), "{error}");
        }
        let options = "replication = \"asynchronous\"\nmaster_region = \"eu-west\"";
        let options = options.parse().unwrap();
        Plan { protocol: "calvin".to_owned(), options, ..plan() }.check().unwrap();
    }

    #[test]
    fn what_is_no_cluster_is_refused() {
        let of_named = |regions: &[&str]| Plan::of_named_regions("minerva", &names(regions));
        for (regions, word) in [
            (&["us-east", "atlantis"][..], "atlantis"),
            (&["us-east", "us-east"], "twice"),
            (&[], "0 regions"),
        ] {
            let error = of_named(regions).unwrap_err();
            assert!(matches!(&error, Failure::Usage(text) if text.contains(word)), "{error}");
        }
        of_named(&["us-east"]).unwrap().check().expect("one region is a cluster, too");
        let unknown = Plan { protocol: "raft".to_owned(), ..plan() };
        assert!(matches!(unknown.check(), Err(Failure::Usage(text)) if text.contains("minerva")));
        let far = Plan::of_equal_distances("minerva", &names(&["a", "b"]), 1e6).unwrap();
        assert!(matches!(far.check(), Err(Failure::Usage(text)) if text.contains("1000000")));
    }

    #[test]
    fn a_majority_is_as_far_as_the_last_region_that_it_needs() {
        let of = |names: &[&str]| {
            let regions = self::names(names);
            Plan::of_named_regions("minerva", &regions).unwrap().majority_round_trips_ms()
        };
        assert_eq!(of(&["us-east"]), [0.0]);
        assert_eq!(of(&["us-east", "eu-west", "ap-northeast"]), [68.0, 68.0, 149.0]);
        let five = of(&["us-east", "eu-west", "ap-northeast", "us-west", "eu-north"]);
        assert_eq!(five, [68.0, 68.0, 149.0, 97.0, 112.0]);
    }

    #[test]
    fn caches_come_after_all_nodes_and_are_named_after_their_homes() {
        let plan = Plan { protocol: "geogauss".to_owned(), caches: 2, ..plan() };
        plan.check().unwrap();
        let configs = plan.configs(Path::new("/d")).unwrap();
        let homes: Vec<_> = configs[8].nodes.iter().filter_map(|node| node.cache_of).collect();
        assert_eq!(homes, [0, 1, 2, 0, 1, 2].map(NodeId));
        let names: Vec<String> = (2..9).map(|node| plan.name_of(node)).collect();
        assert_eq!(names[..3], ["af-south", "us-east.cache1", "eu-west.cache1"]);
        assert_eq!(names[6], "af-south.cache2");
        assert_eq!(configs[8].me().region, "af-south");
        assert_eq!(Plan { caches: 1, ..plan }.name_of(3), "us-east.cache");
    }

    #[test]
    fn a_region_of_several_nodes_is_all_of_them() {
        let places: Vec<String> = ["a.0", "a.1", "ab.0", "ab.1"].map(str::to_owned).into();
        assert_eq!(nodes_named(&places, "a"), [0, 1]);
        assert_eq!(nodes_named(&places, "ab.1"), [3]);
        assert!(nodes_named(&places, "b").is_empty());
    }
}
