//! What goes wrong, when, and for how long: rules, drawn from a seed or read from a scenario.
//!
//! A rule is data. What a seed draws can be printed, written down as a scenario, and made shorter
//! rule by rule until only what matters is left.
//!
//! ```toml
//! [[rules]]
//! at_ms = 1000
//! lasts_ms = 500
//! fault.crash = { node = "coordinator" }
//!
//! [[rules]]
//! at_ms = 1200
//! lasts_ms = 2000
//! fault.cut = { from = [0], to = [1], one_way = true }
//! ```

mod draw;

use std::fmt;
use std::str::FromStr;

use pangea_core::protocol::Lane;
use serde::{Deserialize, Serialize};

pub use draw::draw;

/// How far a clock jumps or lies at most.
const CLOCK_MS_MAX: u64 = 3_000;

/// How many times as long a message takes at most.
pub const LINK_TIMES_MAX: u64 = 30;
/// How many times as long an fsync takes at most.
pub const DISK_TIMES_MAX: u64 = 100;
/// How many times as long a step takes at most.
pub const PROCESSOR_TIMES_MAX: u64 = 200;

/// A fault with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// When it begins, counted from when clients begin.
    pub at_ms: u64,
    /// How long it lasts. All faults end when the world is healed.
    pub lasts_ms: u64,
    /// What goes wrong.
    pub fault: Fault,
}

/// Whom a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Target {
    /// This node.
    Node(u16),
    /// Who coordinates when the fault begins, and node 0 where nobody does.
    Role(Role),
}

/// A part that a node plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It leads agreement.
    Coordinator,
}

/// One of the two lanes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaneName {
    /// Small messages.
    Control,
    /// Large ones.
    Bulk,
}

impl From<LaneName> for Lane {
    fn from(name: LaneName) -> Self {
        match name {
            LaneName::Control => Self::Control,
            LaneName::Bulk => Self::Bulk,
        }
    }
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// A node stops as if its power were cut, and starts again when the fault ends.
    Crash {
        /// Which.
        node: Target,
        /// How many effects it still carries out.
        #[serde(default)]
        after_effects: u64,
    },
    /// A node stops and never comes back. A minority at most is lost so; what is beyond is
    /// spared.
    Destroy {
        /// Which.
        node: Target,
    },
    /// A node stops, all that it has written is gone, and another takes its place when the fault
    /// ends. One at a time, of three at least, and none while a node is lost for good; what is
    /// beyond is spared.
    DiskLoss {
        /// Which.
        node: Target,
    },
    /// A node stops, a bit of its log has flipped that was durable, and it starts again when the
    /// fault ends. It notices, and another takes its place. So many as of the above.
    BitFlip {
        /// Which.
        node: Target,
    },
    /// All nodes stop at once. Each starts again at some time before the fault ends.
    FullStop {},
    /// Nothing passes from some nodes to others.
    Cut {
        /// From these.
        from: Vec<u16>,
        /// To these.
        to: Vec<u16>,
        /// Whether the way back is open.
        #[serde(default)]
        one_way: bool,
    },
    /// A connection is lost.
    Flap {
        /// Whose.
        between: [u16; 2],
        /// How often, spread over the fault's life.
        times: u64,
    },
    /// Messages take many times as long.
    SlowLink {
        /// Between these.
        between: [u16; 2],
        /// How many.
        times: u64,
    },
    /// A connection carries little.
    NarrowLink {
        /// Between these.
        between: [u16; 2],
        /// So much, each way on each lane.
        bytes_per_ms: u64,
    },
    /// One lane's messages are held until the fault ends, while those of the other pass them.
    HeldLane {
        /// From this node.
        from: u16,
        /// To this one.
        to: u16,
        /// Which lane.
        lane: LaneName,
    },
    /// Fsyncs take many times as long.
    SlowDisk {
        /// Whose.
        node: Target,
        /// How many.
        times: u64,
    },
    /// No fsync ends before the fault does.
    StuckDisk {
        /// Whose.
        node: Target,
    },
    /// Nothing can be written: the node stops when it tries, until there is space again.
    FullDisk {
        /// Whose.
        node: Target,
    },
    /// No checkpoint can be written, while all else can.
    FailedCheckpoint {
        /// Whose.
        node: Target,
    },
    /// A node does nothing.
    Pause {
        /// Which.
        node: Target,
    },
    /// A node's steps take many times as long.
    SlowProcessor {
        /// Whose.
        node: Target,
        /// How many.
        times: u64,
    },
    /// A clock is wrong by so much more, and its uncertainty says so. As a node's clock never goes
    /// back while it runs, a jump back shows when it starts next.
    ClockJump {
        /// Whose.
        node: Target,
        /// By so much.
        by_ms: i64,
    },
    /// A clock is wrong by so much more, and does not know.
    LyingClock {
        /// Whose.
        node: Target,
        /// By so much.
        by_ms: i64,
    },
}

impl Fault {
    /// What kind it is, in a cluster of so many nodes.
    pub fn kind(&self, nodes: usize) -> FaultKind {
        match self {
            Self::Crash { node: Target::Role(Role::Coordinator), .. } => {
                FaultKind::CoordinatorCrash
            }
            Self::Crash { node: Target::Node(_), .. } => FaultKind::Crash,
            Self::Destroy { .. } => FaultKind::Destroy,
            Self::DiskLoss { .. } => FaultKind::DiskLoss,
            Self::BitFlip { .. } => FaultKind::BitFlip,
            Self::FullStop {} => FaultKind::FullStop,
            Self::Cut { one_way: true, .. } => FaultKind::OneWay,
            Self::Cut { from, to, one_way: false } if from.len() + to.len() < nodes => {
                FaultKind::Partial
            }
            Self::Cut { one_way: false, .. } => FaultKind::Partition,
            Self::Flap { .. } => FaultKind::Flap,
            Self::SlowLink { .. } => FaultKind::SlowLink,
            Self::NarrowLink { .. } => FaultKind::NarrowLink,
            Self::HeldLane { .. } => FaultKind::HeldLane,
            Self::SlowDisk { .. } => FaultKind::SlowDisk,
            Self::StuckDisk { .. } => FaultKind::StuckDisk,
            Self::FullDisk { .. } => FaultKind::FullDisk,
            Self::FailedCheckpoint { .. } => FaultKind::FailedCheckpoint,
            Self::Pause { .. } => FaultKind::Pause,
            Self::SlowProcessor { .. } => FaultKind::SlowProcessor,
            Self::ClockJump { .. } => FaultKind::ClockJump,
            Self::LyingClock { .. } => FaultKind::LyingClock,
        }
    }

    /// Holds a rule's numbers against a cluster of so many nodes.
    ///
    /// # Errors
    /// Which number is wrong, and what it can be.
    pub fn check(&self, nodes: usize) -> Result<(), String> {
        let is_there = |node: u16| match usize::from(node) < nodes {
            true => Ok(()),
            false => Err(format!("there is no node {node}: nodes are 0 to {}", nodes - 1)),
        };
        let target = |target: Target| match target {
            Target::Node(node) => is_there(node),
            Target::Role(Role::Coordinator) => Ok(()),
        };
        let pair = |a: u16, b: u16| match a == b {
            true => Err(format!("node {a} has no link to itself")),
            false => is_there(a).and(is_there(b)),
        };
        let within = |what: &str, number: u64, most: u64| match (1..=most).contains(&number) {
            true => Ok(()),
            false => Err(format!("{what} = {number}: must be from 1 to {most}")),
        };
        match self {
            Self::FullStop {} => Ok(()),
            Self::Crash { node, .. }
            | Self::Destroy { node }
            | Self::DiskLoss { node }
            | Self::BitFlip { node }
            | Self::StuckDisk { node }
            | Self::FullDisk { node }
            | Self::FailedCheckpoint { node }
            | Self::Pause { node } => target(*node),
            Self::Cut { from, to, .. } => {
                if from.is_empty() || to.is_empty() {
                    return Err("a cut is from some nodes to some others".to_owned());
                }
                let mut pairs = from.iter().flat_map(|&a| to.iter().map(move |&b| (a, b)));
                pairs.try_for_each(|(a, b)| pair(a, b))
            }
            Self::Flap { between: [a, b], times } => {
                pair(*a, *b).and(within("times", *times, 1_000))
            }
            Self::SlowLink { between: [a, b], times } => {
                pair(*a, *b).and(within("times", *times, LINK_TIMES_MAX))
            }
            Self::NarrowLink { between: [a, b], bytes_per_ms } => {
                pair(*a, *b).and(within("bytes_per_ms", *bytes_per_ms, 1_000_000))
            }
            Self::HeldLane { from, to, .. } => pair(*from, *to),
            Self::SlowDisk { node, times } => {
                target(*node).and(within("times", *times, DISK_TIMES_MAX))
            }
            Self::SlowProcessor { node, times } => {
                target(*node).and(within("times", *times, PROCESSOR_TIMES_MAX))
            }
            Self::ClockJump { node, by_ms } | Self::LyingClock { node, by_ms } => {
                target(*node).and(within("by_ms", by_ms.unsigned_abs(), CLOCK_MS_MAX))
            }
        }
    }
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A node stops at some effect and starts again later.
    Crash,
    /// The node that coordinates stops.
    CoordinatorCrash,
    /// All nodes stop at once.
    FullStop,
    /// Some nodes can't reach the others, both ways.
    Partition,
    /// Some nodes can't be reached by the others, one way.
    OneWay,
    /// Two nodes can't reach each other, and both reach the others.
    Partial,
    /// The connection between two nodes is lost, once or over and over.
    Flap,
    /// Messages between two nodes take many times as long.
    SlowLink,
    /// A connection carries little.
    NarrowLink,
    /// One lane's messages wait while those of the other pass them.
    HeldLane,
    /// A node's fsyncs take many times as long.
    SlowDisk,
    /// A node's fsync does not end for a while.
    StuckDisk,
    /// A node can't write.
    FullDisk,
    /// A node does nothing for a while.
    Pause,
    /// A node's steps take many times as long.
    SlowProcessor,
    /// A clock jumps.
    ClockJump,
    /// A clock is further off than it says.
    LyingClock,
    /// A node stops for good.
    Destroy,
    /// A node loses all that it has written, and is replaced.
    DiskLoss,
    /// A bit of a node's log flips, which it notices, and it is replaced.
    BitFlip,
    /// A node's checkpoints can't be written.
    FailedCheckpoint,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [Self; 21] = [
        Self::Crash,
        Self::CoordinatorCrash,
        Self::FullStop,
        Self::Partition,
        Self::OneWay,
        Self::Partial,
        Self::Flap,
        Self::SlowLink,
        Self::NarrowLink,
        Self::HeldLane,
        Self::SlowDisk,
        Self::StuckDisk,
        Self::FullDisk,
        Self::Pause,
        Self::SlowProcessor,
        Self::ClockJump,
        Self::LyingClock,
        Self::Destroy,
        Self::DiskLoss,
        Self::BitFlip,
        Self::FailedCheckpoint,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::CoordinatorCrash => "coordinator-crash",
            Self::FullStop => "full-stop",
            Self::Partition => "partition",
            Self::OneWay => "one-way",
            Self::Partial => "partial",
            Self::Flap => "flap",
            Self::SlowLink => "slow-link",
            Self::NarrowLink => "narrow-link",
            Self::HeldLane => "held-lane",
            Self::SlowDisk => "slow-disk",
            Self::StuckDisk => "stuck-disk",
            Self::FullDisk => "full-disk",
            Self::Pause => "pause",
            Self::SlowProcessor => "slow-processor",
            Self::ClockJump => "clock-jump",
            Self::LyingClock => "lying-clock",
            Self::Destroy => "destroy",
            Self::DiskLoss => "disk-loss",
            Self::BitFlip => "bit-flip",
            Self::FailedCheckpoint => "failed-checkpoint",
        }
    }

    /// Whether it is of a link.
    fn needs_peers(self) -> bool {
        match self {
            Self::Partition
            | Self::OneWay
            | Self::Partial
            | Self::Flap
            | Self::SlowLink
            | Self::NarrowLink
            | Self::HeldLane => true,
            Self::Crash
            | Self::CoordinatorCrash
            | Self::FullStop
            | Self::SlowDisk
            | Self::StuckDisk
            | Self::FullDisk
            | Self::Pause
            | Self::SlowProcessor
            | Self::ClockJump
            | Self::LyingClock
            | Self::Destroy
            | Self::DiskLoss
            | Self::BitFlip
            | Self::FailedCheckpoint => false,
        }
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("no fault is called {name:?}; there are {}", names.join(", "))
        })
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::time::Span;

    use super::*;
    use crate::dice::Dice;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in FaultKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("earthquake".parse::<FaultKind>().unwrap_err().contains("full-stop"));
    }

    #[test]
    fn what_is_drawn_is_of_its_kind_and_within_bounds_and_ends_in_time() {
        let duration = Span::from_ms(8_000);
        for nodes in [1, 2, 3, 5] {
            for kind in FaultKind::ALL {
                let fork = |name| Dice::fork(1, name, nodes as u64);
                let (mut dice, mut later) = (fork(kind.name()), fork("later"));
                let rules = draw((&mut dice, &mut later), &[kind], 500, nodes, duration);
                assert!(rules.iter().all(|rule| rule.at_ms + rule.lasts_ms <= 8_000));
                for rule in &rules {
                    assert_eq!(rule.fault.check(nodes), Ok(()), "{rule:?}");
                    // In a cluster of two a pair is everybody.
                    if kind != FaultKind::Partial || nodes > 2 {
                        assert_eq!(rule.fault.kind(nodes), kind, "{rule:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_rule_is_read_and_written_and_what_is_wrong_with_it_is_said() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Rules {
            rules: Vec<Rule>,
        }
        let (dice, later) = (&mut Dice::fork(2, "faults", 0), &mut Dice::fork(2, "later", 0));
        let rules = draw((dice, later), &FaultKind::ALL, 1_000, 5, Span::from_ms(10_000));
        let text = toml::to_string(&Rules { rules: rules.clone() }).unwrap();
        assert_eq!(toml::from_str::<Rules>(&text).unwrap().rules, rules);

        let read = |fault: &str| {
            let text = format!("[[rules]]\nat_ms = 1\nlasts_ms = 2\nfault.{fault}");
            let rules = toml::from_str::<Rules>(&text).map_err(|error| error.to_string())?;
            rules.rules[0].fault.check(3)
        };
        assert_eq!(read("crash = { node = \"coordinator\" }"), Ok(()));
        assert_eq!(read("full-stop = {}"), Ok(()));
        for (fault, wrong) in [
            ("crash = { node = 7 }", "nodes are 0 to 2"),
            ("crash = { node = 1, who = 1 }", "available keys: node, after_effects"),
            ("explode = { node = 1 }", "explode"),
            ("cut = { from = [0], to = [] }", "to some others"),
            ("cut = { from = [0, 1], to = [1] }", "no link to itself"),
            ("slow-link = { between = [0, 1], times = 31 }", "from 1 to 30"),
            ("lying-clock = { node = 1, by_ms = -9000 }", "from 1 to 3000"),
        ] {
            let error = read(fault).unwrap_err();
            assert!(error.contains(wrong), "{fault}: {error}");
        }
    }
}
