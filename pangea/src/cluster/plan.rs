//! The plan of a cluster, and the configuration of each of its nodes.

mod learners;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use pangea_baselines::free_ports;
use pangea_core::ids::{NodeId, RegionId, ShardId};
use pangea_core::partition::Partitions;
use pangea_core::topology::{NodePlace, Replicas, learner_places};
use pangea_node::clock::ClockConfig;
use pangea_node::config::{
    Config, NodeConfig, PartitionsConfig, RoundTripConfig, Tuning, WanConfig,
};
use pangea_node::log::Durability;
use serde::Serialize;

use crate::failure::Failure;
use crate::protocol::{
    CheckOptions, NodesMin, SupportsCaches, SupportsPartial, SupportsPartitions, WarningsOf,
    partial_names, placed_names, with_protocol,
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
    /// Whether each shard has a learner beside its first replica.
    pub learners: bool,
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
            learners: false,
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
        let (named, others) = match replicas {
            Some(_) => (Self::REPLICAS_IN, placed_names()),
            None => (Self::NON_VOTING, partial_names()),
        };
        if !with_protocol(&self.protocol, SupportsPartial)? {
            return Err(Failure::Usage(format!(
                "{named}: protocol {:?} needs a voting replica of each shard in each region; use \
                 --protocol {others}",
                self.protocol
            )));
        }
        self.check_non_voting(non_voting)?;
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
        let usage = |(option, why)| Failure::Usage(format!("{option}: {why}"));
        let found = found.map_err(|why| usage((named, why)))?;
        let replicas = self.checked(found, non_voting).map_err(usage)?;
        let nodes = replicas.places(self.regions.len()).len() + non_voting.len();
        let tuning = Tuning { workers: workers(nodes), ..self.tuning };
        let non_voting = non_voting.to_vec();
        Ok(Self { replicas: Some(replicas), non_voting, tuning, ..self })
    }

    /// Checks that regions without a vote are some of the cluster's, each named once, and not all.
    fn check_non_voting(&self, non_voting: &[String]) -> Result<(), Failure> {
        let option = Self::NON_VOTING;
        let is_again = |(at, name): &(usize, &String)| non_voting[..*at].contains(name);
        if let Some((_, name)) = non_voting.iter().enumerate().find(is_again) {
            return Err(Failure::Usage(format!("{option}: region {name:?} is listed twice")));
        }
        if let Some(name) = non_voting.iter().find(|name| !self.regions.contains(name)) {
            return Err(Failure::Usage(format!("{option}: {name:?} is not among --regions")));
        }
        if non_voting.len() == self.regions.len() {
            return Err(Failure::Usage(format!(
                "{option}: it names all regions, and a region is needed that votes"
            )));
        }
        Ok(())
    }

    /// Checks that there are replicas of each shard, and in each region either voting ones or a
    /// non-voting one. An error has the option that it is about.
    fn checked(
        &self,
        replicas: Replicas,
        non_voting: &[String],
    ) -> Result<Replicas, (&'static str, String)> {
        let (found, shards) = (replicas.shards(), self.shards());
        if found != shards {
            let of = if found == 1 { "shard" } else { "shards" };
            let why = match shards {
                1 => format!("it names replicas of {found} {of}; add --partitions {found}"),
                _ => format!("it names replicas of {found} {of}, and --partitions is {shards}"),
            };
            return Err((Self::REPLICAS_IN, why));
        }
        for (region, name) in (0..).map(RegionId).zip(&self.regions) {
            let mut shards = (0..self.partitions.shards()).map(ShardId);
            let has_some = shards.any(|shard| replicas.contains(region, shard));
            match (has_some, non_voting.contains(name)) {
                (true, true) => {
                    let why = format!(
                        "region {name:?} is in {}, too, which names replicas that vote",
                        Self::REPLICAS_IN
                    );
                    return Err((Self::NON_VOTING, why));
                }
                (false, false) => {
                    let why = format!(
                        "region {name:?} has no replica; name it for a shard or in {}, or leave \
                         it out of --regions",
                        Self::NON_VOTING
                    );
                    return Err((Self::REPLICAS_IN, why));
                }
                (true, false) | (false, true) => {}
            }
        }
        Ok(replicas)
    }

    /// The options that place replicas.
    const REPLICAS_IN: &str = "--replicas-in";
    const NON_VOTING: &str = "--non-voting";

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        usize::from(self.partitions.shards())
    }

    /// Returns the region and the shard of each node, in order.
    fn node_places(&self) -> Vec<NodePlace> {
        let mut places = self.voter_places();
        let learners = if self.learners { learner_places(&places) } else { Vec::new() };
        let is_it = |region: &u16| self.non_voting.contains(&self.regions[usize::from(*region)]);
        let non_voting = (0..self.regions.len() as u16).filter(is_it);
        let place = |region| NodePlace { region: RegionId(region), shard: ShardId(0) };
        places.extend(non_voting.map(place));
        places.extend(learners);
        places
    }

    /// Returns the same of the nodes that vote, which are the first ones.
    fn voter_places(&self) -> Vec<NodePlace> {
        if let Some(replicas) = &self.replicas {
            return replicas.places(self.regions.len());
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
        let voters = self.voter_places();
        voters.iter().filter(|place| usize::from(place.shard.0) == shard).count()
    }

    /// Returns the names of the nodes, in order: their regions, with their shards if tables are
    /// partitioned.
    pub fn places(&self) -> Vec<String> {
        let first_learner = self.homes().len();
        let name = |(node, place): (usize, &NodePlace)| {
            let region = &self.regions[usize::from(place.region.0)];
            let learner = if node < first_learner { "" } else { ".learner" };
            match self.shards() {
                1 => format!("{region}{learner}"),
                _ => format!("{region}.{}{learner}", place.shard.0),
            }
        };
        self.node_places().iter().enumerate().map(name).collect()
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

    /// Returns the round trip from each region to the nearest majority of a shard's voting
    /// replicas, in milliseconds, for the shard with the shortest one. No commit that survives the
    /// loss of a region can be faster.
    pub fn majority_round_trips_ms(&self) -> Vec<f64> {
        let voters = self.voter_places();
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
        self.config(0, Path::new("data"), &self.unused_addresses())?;
        if self.shards() > 1 && !with_protocol(&self.protocol, SupportsPartitions)? {
            return Err(Failure::Usage(format!(
                "--partitions: protocol {:?} stores all rows on each node",
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

    /// Returns what the nodes would warn of when they start: settings without effect, and commits
    /// that may be lost. Each warning occurs once.
    ///
    /// # Errors
    /// Those of [`Self::check`].
    pub fn warnings(&self) -> Result<Vec<String>, Failure> {
        let addresses = self.unused_addresses();
        let mut all = Vec::new();
        for index in 0..self.process_count() {
            let config = self.config(index, Path::new("data"), &addresses)?;
            let warnings = with_protocol(&self.protocol, WarningsOf(&config))?;
            let warnings = warnings.map_err(Failure::Usage)?;
            let is_new: Vec<_> = warnings.into_iter().filter(|it| !all.contains(it)).collect();
            all.extend(is_new);
        }
        Ok(all)
    }

    /// Returns addresses for a configuration that no node runs with. Any are valid there.
    fn unused_addresses(&self) -> Vec<SocketAddr> {
        let addresses = (1..).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        addresses.take(2 * self.process_count()).collect()
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
        let (node_count, voter_count) = (places.len(), self.voter_places().len());
        let node = |(index, addresses): (usize, &[SocketAddr])| NodeConfig {
            id: NodeId(index as u16),
            region: self.regions[self.region_of(index)].clone(),
            shard: places[index % node_count].shard,
            votes: index % node_count < voter_count,
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
        let is_divided = shards > 1 && !with_protocol(&self.protocol, SupportsPartitions)?;
        let option = if is_divided { "--partitions" } else { "--set" };
        let setting = |wrong: String| Failure::Usage(format!("{option}: {wrong}"));
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

/// Returns the numbers of the nodes with a name: that of a region, which may have several nodes, or
/// that of one of them. If tables are not partitioned, and a region has a learner, the name of the
/// region is that of both.
pub fn nodes_named(places: &[String], name: &str) -> Vec<usize> {
    let exact = places.iter().position(|place| place == name);
    if let Some(node) = exact.filter(|_| name.contains('.')) {
        return vec![node];
    }
    let is_it = |place: &String| {
        let rest = place.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    (0..places.len()).filter(|&node| is_it(&places[node])).collect()
}

#[cfg(test)]
mod tests;
