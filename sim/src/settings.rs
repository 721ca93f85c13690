//! The settings of a run, including its seed.
//!
//! All settings are printed before a run and are part of the command that replays it.

use std::fmt;
use std::str::FromStr;

use pangea_core::guarantee::{Guarantee, Isolation};
use pangea_core::ids::{RegionId, ShardId};
use pangea_core::partition::Partitions;
use pangea_core::planted::Bug;
use pangea_core::time::Span;
use pangea_core::topology::{NodePlace, Replicas, Topology};
use pangea_core::workload::{self, InvalidSettings, Workload};

use crate::clock::ClockBounds;
use crate::faults::{FaultKind, Rule};
use crate::levels::Levels;
use crate::rng::SimRng;
use crate::trace::Lines;

/// The maximum number of nodes per shard in a simulation.
pub const NODES_MAX: usize = 32;

/// Region names of a simulated cluster.
const REGIONS: [&str; 8] =
    ["eu-west", "us-east", "ap-south", "us-west", "sa-east", "ap-north", "af-south", "me-central"];

/// YCSB in simulation: few rows, so that clients conflict.
const YCSB_ROWS: u64 = 200;
const YCSB_VALUE_LEN: u32 = 20;
/// A few counters and customers that most clients access.
const HOT: u32 = 10;
const CUSTOMERS: u32 = 100;

/// All settings of a run, besides the protocol and its own options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The seed from which everything random is derived.
    pub seed: u64,
    /// The scenario file that contains all other settings.
    pub scenario: Option<String>,
    /// Whether all other settings are drawn from the seed, as [`Settings::drawn`] does.
    pub is_drawn: bool,
    /// The number of nodes, each in its own region; with several shards, the number of regions.
    pub nodes: usize,
    /// The number of shards of the partitioned tables; each region has one node for each shard,
    /// unless `replicas` says otherwise.
    pub shards: u16,
    /// The regions that have a replica of each shard, if some lack one.
    pub replicas: Option<Replicas>,
    /// The number of further regions that each have one non-voting replica, of the shards in turn.
    pub non_voting: usize,
    /// When clients ask that slots are moved to other shards. Not part of commands.
    pub moves: Vec<SlotMove>,
    /// Whether each shard has a learner beside its first replica.
    pub learners: bool,
    /// The number of caches of each node.
    pub caches: usize,
    /// The workload: one of `pangea_core::workload::NAMES`.
    pub workload: String,
    /// The number of clients per region.
    pub clients_per_node: usize,
    /// List-append: the number of lists in use at a time.
    pub lists: u32,
    /// Bank: the number of accounts.
    pub accounts: u32,
    /// The time that clients work under faults. They work a quarter of it longer after healing.
    pub duration: Span,
    /// The kinds of faults that may happen. Each seed enables some of them.
    pub faults: Vec<FaultKind>,
    /// The maximum number of faults.
    pub faults_max: u64,
    /// The faults, unless they are drawn.
    pub rules: Option<Vec<Rule>>,
    /// The longest one-way delay between two regions; each seed draws a matrix below it.
    pub one_way_max: Span,
    /// One-way delays in ms, `[from][to]`, unless they are drawn.
    pub one_way: Option<Vec<Vec<u64>>>,
    /// Bounds on the error of clocks.
    pub clocks: ClockBounds,
    /// The isolation levels that clients ask for. Each transaction is held to its own.
    pub isolation: Levels,
    /// The levels that were given for a run whose other settings are drawn.
    pub given_levels: Option<Levels>,
    /// The transactions for which the checker requires real-time order. It leaves those of all
    /// levels, and enters those that only read and those of the serializable level.
    pub real_time: RealTime,
    /// The protocol settings that were given, in the form of `--set`; the replay command repeats
    /// them.
    pub given: Vec<String>,
    /// Whether acknowledgements may be lost, if the protocol's settings permit that.
    pub may_lose: bool,
    /// A bug that is planted. Needs the cargo feature `planted`.
    pub planted: Option<Bug>,
    /// The limit in bytes on the rows in a node's memory, excluding rows that cannot be evicted.
    /// `None` means no limit.
    pub memory_bytes: Option<usize>,
    /// The destination of trace lines.
    pub lines: Lines,
}

/// A request to move slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMove {
    /// When it is made, in ms from the start of the clients.
    pub at_ms: u64,
    /// The node that is asked; the next one that runs if it does not.
    pub node: u16,
    /// The slots.
    pub slots: Vec<u16>,
    /// The shard to which they are moved. Those that are there already are left out.
    pub to: u16,
}

/// The transactions that must appear to take place between their start and their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealTime {
    /// None: serializability.
    None,
    /// Transactions that committed writes, and strict reads. Other reads may return old states, for
    /// example if a protocol answers read-only programs from its newest snapshot.
    Writes,
    /// All ordered transactions, whether or not they wrote, and strict reads.
    Ordered,
}

impl RealTime {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::None, Self::Writes, Self::Ordered];

    /// Returns the order that clients can rely on under this guarantee.
    pub fn promised_by(guarantee: Guarantee) -> Self {
        match guarantee {
            Guarantee::StrictSerializable => Self::Ordered,
            _ => Self::Writes,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Writes => "writes",
            Self::Ordered => "ordered",
        }
    }
}

impl FromStr for RealTime {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|choice| choice.name() == name);
        found.ok_or_else(|| format!("unknown choice of real time {name:?}"))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            scenario: None,
            is_drawn: false,
            nodes: 3,
            shards: 1,
            replicas: None,
            non_voting: 0,
            moves: Vec::new(),
            learners: false,
            caches: 0,
            workload: "list-append".to_owned(),
            clients_per_node: 3,
            lists: 8,
            accounts: 12,
            duration: Span::from_ms(8_000),
            faults: FaultKind::ALL.to_vec(),
            faults_max: 12,
            rules: None,
            one_way_max: Span::from_ms(75),
            one_way: None,
            clocks: ClockBounds { offset_max: Span::from_ms(5), drift_ppm_max: 200 },
            isolation: Isolation::Serializable.into(),
            given_levels: None,
            real_time: RealTime::Writes,
            given: Vec::new(),
            may_lose: true,
            planted: None,
            memory_bytes: None,
            lines: Lines::Off,
        }
    }
}

/// Workloads that [`Settings::drawn`] chooses from; those that find the most bugs are repeated.
const DRAWN_WORKLOADS: [&str; 18] = [
    "list-append",
    "list-append",
    "list-append",
    "list-append",
    "register",
    "register",
    "bank",
    "bank",
    "long-fork",
    "write-skew",
    "cycle",
    "ranges",
    "ranges",
    "index",
    "ddl",
    "tpcc",
    "ycsb-a",
    "ycsb-e",
];

/// Node counts that [`Settings::drawn`] chooses from.
const DRAWN_NODES: [usize; 10] = [3, 3, 3, 3, 3, 1, 5, 5, 4, 2];

impl Settings {
    /// Draws all settings from the seed: the workload, the cluster, the kinds of faults and their
    /// number.
    pub fn drawn(seed: u64) -> Self {
        let mut dice = SimRng::fork(seed, "settings", 0);
        let one_way_max = [1, 10, 75, 75, 200][dice.index(5)];
        Self {
            seed,
            is_drawn: true,
            workload: DRAWN_WORKLOADS[dice.index(DRAWN_WORKLOADS.len())].to_owned(),
            nodes: DRAWN_NODES[dice.index(DRAWN_NODES.len())],
            clients_per_node: [1, 3, 3, 6][dice.index(4)],
            lists: [2, 8, 8, 40][dice.index(4)],
            accounts: [3, 12, 50][dice.index(3)],
            duration: Span::from_ms([4_000, 8_000, 8_000, 15_000][dice.index(4)]),
            faults_max: [0, 6, 12, 30][dice.index(4)],
            one_way_max: Span::from_ms(one_way_max),
            memory_bytes: drawn_memory(seed),
            ..Self::default()
        }
    }

    /// Returns drawn settings with those of these that are given for drawn runs, too.
    ///
    /// # Panics
    /// If the drawn workload does not exist.
    #[must_use]
    pub fn beside_drawn(&self, drawn: Self) -> Self {
        let workload = drawn.workload().expect("drawn workloads are known");
        let given = self.given_levels.map(|levels| levels.for_workload(&workload));
        Self {
            isolation: given.unwrap_or(drawn.isolation),
            given_levels: self.given_levels,
            lines: self.lines,
            planted: self.planted,
            given: self.given.clone(),
            ..drawn
        }
    }

    /// The workload that clients run.
    ///
    /// # Errors
    /// If there is no workload of that name, or a setting is out of its bounds.
    pub fn workload(&self) -> Result<Workload, InvalidSettings> {
        let sizes = workload::Settings {
            seed: self.seed,
            lists: self.lists,
            accounts: self.accounts,
            warehouses: self.nodes as u32,
            scale: workload::tpcc::Scale::TINY,
            rows: YCSB_ROWS,
            value_len: YCSB_VALUE_LEN,
            hot: HOT,
            customers: CUSTOMERS,
            ..workload::Settings::default()
        };
        Workload::named(&self.workload, &sizes)
    }

    /// The total number of nodes.
    pub fn node_count(&self) -> usize {
        let voting = match &self.replicas {
            Some(replicas) => replicas.places(self.nodes).len(),
            None => self.nodes * usize::from(self.shards),
        };
        let learners = if self.learners { usize::from(self.shards) } else { 0 };
        voting + self.non_voting + learners
    }

    /// The total number of regions.
    pub fn regions(&self) -> usize {
        self.nodes + self.non_voting
    }

    /// A cluster of these regions with its nodes in place.
    ///
    /// # Errors
    /// If the replicas are those of another number of shards.
    pub fn placed(&self, topology: Topology, partitions: Partitions) -> Result<Topology, String> {
        let regions = 0..self.nodes as u16;
        let everywhere = || {
            let of = |_| regions.clone().map(RegionId).collect();
            Replicas::new((0..self.shards).map(of).collect())
        };
        let topology = match &self.replicas {
            Some(replicas) => topology.placed(partitions, replicas)?,
            None if self.shards > 1 || self.non_voting > 0 || self.learners => {
                topology.placed(partitions, &everywhere()?)?
            }
            None => topology,
        };
        let place = |number: usize| NodePlace {
            region: RegionId((self.nodes + number) as u16),
            shard: ShardId((number % usize::from(self.shards)) as u16),
        };
        let places: Vec<NodePlace> = (0..self.non_voting).map(place).collect();
        let topology = topology.with_non_voting(&places);
        Ok(if self.learners { topology.with_learners() } else { topology })
    }

    /// The cluster's topology with each node in its own region; the world draws the delays.
    pub fn topology(&self) -> Topology {
        assert!((1..=NODES_MAX).contains(&self.nodes), "there must be from 1 to {NODES_MAX} nodes");
        let names: Vec<String> = (0..self.regions())
            .map(|i| match i / REGIONS.len() {
                0 => REGIONS[i].to_owned(),
                again => format!("{}-{}", REGIONS[i % REGIONS.len()], again + 1),
            })
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut topology = Topology::one_node_per_region("sim", &names, self.one_way_max);
        let homes = topology.node_ids();
        topology.caches = homes.flat_map(|home| vec![home; self.caches]).collect();
        topology
    }

    /// Returns the command that repeats the run of `protocol`.
    pub fn replay_command(&self, protocol: &str) -> String {
        format!("pangea sim --protocol {protocol} {self}")
    }
}

/// Draws a memory limit for every other run: so low that most values are evicted, or about half of
/// the size of the rows.
fn drawn_memory(seed: u64) -> Option<usize> {
    let mut dice = SimRng::fork(seed, "memory", 0);
    [None, None, None, Some(1_000), Some(6_000), Some(30_000)][dice.index(6)]
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_run(f)?;
        self.given.iter().try_for_each(|setting| write!(f, " --set {setting}"))
    }
}

impl Settings {
    /// Writes all settings but the protocol's own.
    fn write_run(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, workload, clients_per_node, .. } = self;
        if let Some(bug) = self.planted {
            write!(f, "--planted {bug} ")?;
        }
        if self.is_drawn {
            write!(f, "--swarm --seed {seed}")?;
            let levels = &mut self.given_levels.iter();
            return levels.try_for_each(|levels| write!(f, " --isolation {levels}"));
        }
        if let Some(file) = &self.scenario {
            return write!(f, "--seed {seed} --scenario {file}");
        }
        let faults: Vec<&str> = self.faults.iter().map(|fault| fault.name()).collect();
        let faults = if faults.is_empty() { "none".to_owned() } else { faults.join(",") };
        write!(f, "--seed {seed} --workload {workload} --nodes {nodes}")?;
        if self.shards > 1 {
            write!(f, " --partitions {}", self.shards)?;
        }
        if self.non_voting > 0 {
            write!(f, " --non-voting {}", self.non_voting)?;
        }
        if self.learners {
            f.write_str(" --learners")?;
        }
        if let Some(replicas) = &self.replicas {
            write!(f, " --replicas-in {}", replicas.text(&self.topology().regions))?;
        }
        if self.caches > 0 {
            write!(f, " --caches {}", self.caches)?;
        }
        write!(f, " --clients {clients_per_node} --ms {}", self.duration.us / 1_000)?;
        write!(f, " --lists {} --accounts {}", self.lists, self.accounts)?;
        write!(f, " --faults {faults} --faults-max {}", self.faults_max)?;
        write!(f, " --one-way-ms {}", self.one_way_max.us / 1_000)?;
        write!(f, " --clock-offset-us {}", self.clocks.offset_max.us)?;
        write!(f, " --clock-drift-ppm {}", self.clocks.drift_ppm_max)?;
        if self.isolation != Isolation::Serializable.into() {
            write!(f, " --isolation {}", self.isolation)?;
        }
        write!(f, " --real-time {}", self.real_time.name())?;
        self.memory_bytes.iter().try_for_each(|bytes| write!(f, " --memory-bytes {bytes}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_found_by_its_name() {
        for choice in RealTime::ALL {
            assert_eq!(choice.name().parse(), Ok(choice));
        }
    }

    #[test]
    fn regions_have_different_names() {
        let topology = Settings { nodes: NODES_MAX, ..Settings::default() }.topology();
        let names: std::collections::BTreeSet<_> = topology.regions.iter().collect();
        assert_eq!(names.len(), NODES_MAX);
    }
}
