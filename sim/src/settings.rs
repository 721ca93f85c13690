//! What a run is made of: the seed, and everything else that can be chosen.
//!
//! All of it is printed before a run and is part of the command that replays it.

use std::fmt;
use std::str::FromStr;

use pangea_core::choice::Guarantee;
use pangea_core::planted::Bug;
use pangea_core::time::Span;
use pangea_core::topology::Topology;

use crate::clock::ClockBounds;
use crate::dice::Dice;
use crate::faults::{FaultKind, Rule};
use crate::trace::Lines;

/// Node counts above this are not simulated.
pub const NODES_MAX: usize = 32;

/// Names for the regions of a simulated cluster.
const REGIONS: [&str; 8] =
    ["eu-west", "us-east", "ap-south", "us-west", "sa-east", "ap-north", "af-south", "me-central"];

/// Everything that a run is made of, beside the protocol and its own options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Everything random follows from it.
    pub seed: u64,
    /// The file that says everything else.
    pub scenario: Option<String>,
    /// Whether everything else is drawn from the seed, as [`Settings::drawn`] does.
    pub is_drawn: bool,
    /// How many nodes, each in a region of its own; with several shards, how many regions.
    pub nodes: usize,
    /// Over how many shards tables are spread, each on a node of its own in each region.
    pub shards: u16,
    /// What clients do: one of `pangea_core::workload::NAMES`.
    pub workload: String,
    /// How many clients each region has.
    pub clients_per_node: usize,
    /// List-append: lists in use at a time.
    pub lists: u32,
    /// Bank: accounts.
    pub accounts: u32,
    /// How long clients work under faults. A quarter as long again they work healed.
    pub duration: Span,
    /// Which faults may happen. Each seed turns on some of them.
    pub faults: Vec<FaultKind>,
    /// How many faults happen at most.
    pub faults_max: u64,
    /// What goes wrong, where that is not drawn.
    pub rules: Option<Vec<Rule>>,
    /// The longest one-way delay between two regions; each seed draws a matrix below it.
    pub one_way_max: Span,
    /// One-way delays in ms, `[from][to]`, where they are not drawn.
    pub one_way: Option<Vec<Vec<u64>>>,
    /// How wrong clocks may be.
    pub clocks: ClockBounds,
    /// Which transactions the checker holds to real-time order.
    pub real_time: RealTime,
    /// The protocol's settings that were asked for, as `--set` takes them: what repeats the run has
    /// to have them too.
    pub given: Vec<String>,
    /// A mistake that is made on purpose. Needs the cargo feature `planted`.
    pub planted: Option<Bug>,
    /// How many bytes of rows a node keeps in memory, but for what can't be put away; without a
    /// limit all.
    pub memory_bytes: Option<usize>,
    /// What becomes of the trace's lines.
    pub lines: Lines,
}

/// Which transactions must appear to take place between their start and their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealTime {
    /// None: serializability.
    None,
    /// Those that committed writes, and strict reads. Other reads may be of the past, as where a
    /// protocol answers programs that only read from its newest snapshot.
    Writes,
    /// Those that were ordered, if they wrote or not, and strict reads.
    Ordered,
}

impl RealTime {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::None, Self::Writes, Self::Ordered];

    /// What clients can rely on under this guarantee.
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
        found.ok_or_else(|| format!("no choice of real time is called {name:?}"))
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
            real_time: RealTime::Writes,
            given: Vec::new(),
            planted: None,
            memory_bytes: None,
            lines: Lines::Off,
        }
    }
}

/// Workloads that [`Settings::drawn`] chooses from, those that find most more often.
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
    /// Everything drawn from the seed: what clients do, the cluster, which faults happen, and how
    /// often.
    pub fn drawn(seed: u64) -> Self {
        let mut dice = Dice::fork(seed, "settings", 0);
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

    /// How many nodes there are in all.
    pub fn node_count(&self) -> usize {
        self.nodes * usize::from(self.shards)
    }

    /// The cluster's topology: each node in its own region, delays to be drawn by the world.
    pub fn topology(&self) -> Topology {
        assert!((1..=NODES_MAX).contains(&self.nodes), "from 1 to {NODES_MAX} nodes");
        let names: Vec<String> = (0..self.nodes)
            .map(|i| match i / REGIONS.len() {
                0 => REGIONS[i].to_owned(),
                again => format!("{}-{}", REGIONS[i % REGIONS.len()], again + 1),
            })
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Topology::one_node_per_region("sim", &names, self.one_way_max)
    }

    /// The command that repeats the run of `protocol`.
    pub fn replay_command(&self, protocol: &str) -> String {
        format!("pangea sim --protocol {protocol} {self}")
    }
}

/// A limit on the memory of nodes, in every other run: so little that most values are put away, or
/// what about half of the rows take.
fn drawn_memory(seed: u64) -> Option<usize> {
    let mut dice = Dice::fork(seed, "memory", 0);
    [None, None, None, Some(1_000), Some(6_000), Some(30_000)][dice.index(6)]
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_run(f)?;
        self.given.iter().try_for_each(|setting| write!(f, " --set {setting}"))
    }
}

impl Settings {
    /// All but the protocol's own settings.
    fn write_run(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, workload, clients_per_node, .. } = self;
        if let Some(bug) = self.planted {
            write!(f, "--planted {bug} ")?;
        }
        if self.is_drawn {
            return write!(f, "--swarm --seed {seed}");
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
        write!(f, " --clients {clients_per_node} --ms {}", self.duration.us / 1_000)?;
        write!(f, " --lists {} --accounts {}", self.lists, self.accounts)?;
        write!(f, " --faults {faults} --faults-max {}", self.faults_max)?;
        write!(f, " --one-way-ms {}", self.one_way_max.us / 1_000)?;
        write!(f, " --clock-offset-us {}", self.clocks.offset_max.us)?;
        write!(f, " --clock-drift-ppm {}", self.clocks.drift_ppm_max)?;
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
