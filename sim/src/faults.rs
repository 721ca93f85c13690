//! Faults, their times and their durations: rules, drawn from a seed or read from a scenario.
//!
//! A rule is data. The rules that a seed draws can be printed, written to a scenario, and removed
//! one by one until only the relevant ones are left.
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

pub use draw::{Dice, draw, draw_for_caches, kinds_for};

/// The largest jump or unreported error of a clock, in ms.
const CLOCK_MS_MAX: u64 = 3_000;
/// The largest deviation of the rate of a clock that does not stand still.
const CLOCK_RATE_PPM_MAX: u64 = 50_000;

/// The largest factor by which a message is slowed down.
pub const LINK_TIMES_MAX: u64 = 30;
/// The largest factor by which an fsync is slowed down.
pub const DISK_TIMES_MAX: u64 = 100;
/// The largest factor by which a step is slowed down.
pub const PROCESSOR_TIMES_MAX: u64 = 200;

/// The largest number of times that a fault waits for a mark.
const MARK_TIMES_MAX: u64 = 1_000;

/// A fault with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The start of the fault in ms, counted from the start of the clients.
    pub at_ms: u64,
    /// The duration in ms. All faults end when the world is healed.
    pub lasts_ms: u64,
    /// The fault.
    pub fault: Fault,
}

/// The node that a rule affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Target {
    /// The node with this id.
    Node(u16),
    /// The node with this role when the fault begins, or node 0 if no node has it.
    Role(Role),
}

/// A role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The leader of agreement.
    Coordinator,
}

/// One of the two lanes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaneName {
    /// The lane of small messages.
    Control,
    /// The lane of large messages.
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

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// A node stops as in a power failure and restarts when the fault ends.
    Crash {
        /// The affected node.
        node: Target,
        /// The number of effects that the node still carries out.
        #[serde(default)]
        after_effects: u64,
    },
    /// A node stops as in a power failure soon after it has counted a mark of the protocol, however
    /// late that is. It restarts when it has been down for the duration of the fault.
    CrashAfterMark {
        /// The affected node. Without one, it is the first that counts the mark often enough.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<Target>,
        /// The name of the mark.
        mark: String,
        /// How often the node counts the mark after the fault begins, until it is about to crash.
        #[serde(default = "once")]
        times: u64,
        /// The number of effects that the node then still carries out.
        #[serde(default)]
        after_effects: u64,
    },
    /// A node stops and never returns. Only a minority of a group can be destroyed; other faults of
    /// this kind are skipped.
    Destroy {
        /// The affected node.
        node: Target,
    },
    /// A node stops and its disk is lost; a node with an empty disk replaces it when the fault
    /// ends. The fault is skipped if the cluster might not survive it: groups have fewer than three
    /// nodes, a node has not begun or was destroyed, or another one is being replaced.
    DiskLoss {
        /// The affected node.
        node: Target,
    },
    /// A node stops, a durable bit of its log flips, and it restarts when the fault ends. It
    /// detects the damage and is replaced. The same limits apply as to [`Fault::DiskLoss`].
    BitFlip {
        /// The affected node.
        node: Target,
    },
    /// All nodes stop at once. Each restarts at some time before the fault ends.
    FullStop {},
    /// Clients begin no transactions.
    Quiet {},
    /// All nodes restart with a later version of their program, which has one more procedure. The
    /// duration is the downtime of each. What their errors advise is done, until all continue.
    Upgrade {
        /// Whether nodes are stopped in order, and not as in a power failure.
        #[serde(default)]
        in_order: bool,
        /// Whether one node restarts after the other, and not all at once.
        #[serde(default)]
        rolling: bool,
        /// Whether no node starts with the new program before all have stopped.
        #[serde(default)]
        after_all: bool,
    },
    /// No messages pass from some nodes to others.
    Cut {
        /// The senders.
        from: Vec<u16>,
        /// The receivers.
        to: Vec<u16>,
        /// Whether the opposite direction stays open.
        #[serde(default)]
        one_way: bool,
    },
    /// A connection is lost.
    Flap {
        /// The target of the fault.
        between: [u16; 2],
        /// The number of losses, spread evenly over the duration.
        times: u64,
    },
    /// Messages are slowed down by a factor.
    SlowLink {
        /// The two nodes of the link.
        between: [u16; 2],
        /// The factor.
        times: u64,
    },
    /// A connection has little bandwidth.
    NarrowLink {
        /// The two nodes of the link.
        between: [u16; 2],
        /// The bandwidth of each lane in each direction.
        bytes_per_ms: u64,
    },
    /// The messages of one lane are delayed until the fault ends, while those of the other lane
    /// pass.
    HeldLane {
        /// The sender.
        from: u16,
        /// The receiver.
        to: u16,
        /// The lane.
        lane: LaneName,
    },
    /// Fsyncs are slowed down by a factor.
    SlowDisk {
        /// The target of the fault.
        node: Target,
        /// The factor.
        times: u64,
    },
    /// No fsync ends before the fault does.
    StuckDisk {
        /// The target of the fault.
        node: Target,
    },
    /// The disk is full: the node stops at its next write and restarts when the fault ends.
    FullDisk {
        /// The target of the fault.
        node: Target,
    },
    /// Checkpoints cannot be written, while all other writes succeed.
    FailedCheckpoint {
        /// The target of the fault.
        node: Target,
    },
    /// A node is paused.
    Pause {
        /// The affected node.
        node: Target,
    },
    /// A node's steps are slowed down by a factor.
    SlowProcessor {
        /// The target of the fault.
        node: Target,
        /// The factor.
        times: u64,
    },
    /// A clock's error grows, and its uncertainty includes that. A running node's clock never goes
    /// back, so a jump back takes effect when the node next starts.
    ClockJump {
        /// The target of the fault.
        node: Target,
        /// The additional error in ms; may be negative.
        by_ms: i64,
    },
    /// A clock's error grows, and its uncertainty does not include that.
    LyingClock {
        /// The target of the fault.
        node: Target,
        /// The additional error in ms; may be negative.
        by_ms: i64,
    },
    /// A clock runs at another rate, and its uncertainty includes that. When the fault ends, a
    /// clock that is behind is corrected at once; one that is ahead stays so until the node next
    /// starts.
    ClockRate {
        /// The target of the fault.
        node: Target,
        /// The deviation in microseconds per second; negative for a slow clock.
        ppm: i64,
    },
    /// A clock stands still, and its uncertainty includes that. It is corrected when the fault
    /// ends.
    ClockFreeze {
        /// The target of the fault.
        node: Target,
    },
    /// One in ten messages of one direction is late by up to half a second, if it is the last one
    /// that a step sends there. Later messages of its lane arrive after it.
    LateMessages {
        /// The sender.
        from: u16,
        /// The receiver.
        to: u16,
    },
}

const fn once() -> u64 {
    1
}

impl Fault {
    /// Returns the kind of the fault in a cluster of `nodes` nodes.
    pub fn kind(&self, nodes: usize) -> FaultKind {
        match self {
            Self::Crash { node: Target::Role(Role::Coordinator), .. } => {
                FaultKind::CoordinatorCrash
            }
            Self::Crash { node: Target::Node(_), .. } => FaultKind::Crash,
            Self::CrashAfterMark { .. } => FaultKind::CrashAfterMark,
            Self::Destroy { .. } => FaultKind::Destroy,
            Self::DiskLoss { .. } => FaultKind::DiskLoss,
            Self::BitFlip { .. } => FaultKind::BitFlip,
            Self::FullStop {} => FaultKind::FullStop,
            Self::Quiet {} => FaultKind::Quiet,
            Self::Upgrade { .. } => FaultKind::Upgrade,
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
            Self::ClockRate { .. } => FaultKind::ClockRate,
            Self::ClockFreeze { .. } => FaultKind::ClockFreeze,
            Self::LateMessages { .. } => FaultKind::LateMessages,
        }
    }

    /// Checks the fault's numbers against a cluster of `nodes` nodes.
    ///
    /// # Errors
    /// The number that is wrong, and its valid range.
    pub fn check(&self, nodes: usize) -> Result<(), String> {
        let is_there = |node: u16| match usize::from(node) < nodes {
            true => Ok(()),
            false => Err(format!("node {node} does not exist: nodes are 0 to {}", nodes - 1)),
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
            Self::FullStop {} | Self::Quiet {} | Self::Upgrade { .. } => Ok(()),
            Self::Crash { node, .. }
            | Self::Destroy { node }
            | Self::DiskLoss { node }
            | Self::BitFlip { node }
            | Self::StuckDisk { node }
            | Self::FullDisk { node }
            | Self::FailedCheckpoint { node }
            | Self::ClockFreeze { node }
            | Self::Pause { node } => target(*node),
            Self::CrashAfterMark { node, times, .. } => {
                node.map_or(Ok(()), target).and(within("times", *times, MARK_TIMES_MAX))
            }
            Self::Cut { from, to, .. } => {
                if from.is_empty() || to.is_empty() {
                    return Err("a cut needs nodes in both `from` and `to`".to_owned());
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
            Self::HeldLane { from, to, .. } | Self::LateMessages { from, to } => pair(*from, *to),
            Self::SlowDisk { node, times } => {
                target(*node).and(within("times", *times, DISK_TIMES_MAX))
            }
            Self::SlowProcessor { node, times } => {
                target(*node).and(within("times", *times, PROCESSOR_TIMES_MAX))
            }
            Self::ClockJump { node, by_ms } | Self::LyingClock { node, by_ms } => {
                target(*node).and(within("by_ms", by_ms.unsigned_abs(), CLOCK_MS_MAX))
            }
            Self::ClockRate { node, ppm } => {
                target(*node).and(within("ppm", ppm.unsigned_abs(), CLOCK_RATE_PPM_MAX))
            }
        }
    }
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A node stops before one of its effects and restarts later.
    Crash,
    /// The coordinator stops.
    CoordinatorCrash,
    /// All nodes stop at once.
    FullStop,
    /// Some nodes can't reach the others, in both directions.
    Partition,
    /// Some nodes can't be reached by the others, in one direction.
    OneWay,
    /// Two nodes can't reach each other, but both reach all other nodes.
    Partial,
    /// The connection between two nodes is lost once or repeatedly.
    Flap,
    /// Messages between two nodes are slowed down by a factor.
    SlowLink,
    /// A connection has little bandwidth.
    NarrowLink,
    /// Messages of one lane are delayed while those of the other lane pass.
    HeldLane,
    /// A node's fsyncs are slowed down by a factor.
    SlowDisk,
    /// A node's fsync is stuck for a while.
    StuckDisk,
    /// A node's disk is full.
    FullDisk,
    /// A node is paused for a while.
    Pause,
    /// A node's steps are slowed down by a factor.
    SlowProcessor,
    /// A clock jumps, and its uncertainty includes the jump.
    ClockJump,
    /// A clock's error exceeds its uncertainty.
    LyingClock,
    /// A node stops permanently.
    Destroy,
    /// A node loses its disk and is replaced.
    DiskLoss,
    /// A bit of a node's log flips; the node detects it and is replaced.
    BitFlip,
    /// A node's checkpoints can't be written.
    FailedCheckpoint,
    /// A node stops soon after it has counted a mark.
    CrashAfterMark,
    /// Clients begin nothing for a while.
    Quiet,
    /// All nodes restart with a later version of their program.
    Upgrade,
    /// A clock runs too fast or too slow.
    ClockRate,
    /// A clock stands still.
    ClockFreeze,
    /// Some messages of one direction are late.
    LateMessages,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 27] = [
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
        Self::CrashAfterMark,
        Self::Quiet,
        Self::Upgrade,
        Self::ClockRate,
        Self::ClockFreeze,
        Self::LateMessages,
    ];

    /// The kind's name on the command line.
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
            Self::CrashAfterMark => "crash-after-mark",
            Self::Quiet => "quiet",
            Self::Upgrade => "upgrade",
            Self::ClockRate => "clock-rate",
            Self::ClockFreeze => "clock-freeze",
            Self::LateMessages => "late-messages",
        }
    }

    /// Whether the fault affects a link.
    fn needs_peers(self) -> bool {
        match self {
            Self::Partition
            | Self::OneWay
            | Self::Partial
            | Self::Flap
            | Self::SlowLink
            | Self::NarrowLink
            | Self::HeldLane
            | Self::LateMessages => true,
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
            | Self::ClockRate
            | Self::ClockFreeze
            | Self::Destroy
            | Self::DiskLoss
            | Self::BitFlip
            | Self::FailedCheckpoint
            | Self::CrashAfterMark
            | Self::Quiet
            | Self::Upgrade => false,
        }
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("unknown fault {name:?}; known: {}", names.join(", "))
        })
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
