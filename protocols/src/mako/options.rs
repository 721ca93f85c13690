//! Settings. They must be the same on every replica of a cluster.

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::protocol::Words;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use serde::{Deserialize, Serialize};

use crate::inputs::within;

/// Mako's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The maximum number of transactions that are executed together, at one version.
    #[serde(deserialize_with = "within::<1, 100_000, _, _>")]
    pub slice_txns: usize,
    /// The maximum number of transactions in a batch, which is replicated with one message (§4.3).
    #[serde(deserialize_with = "within::<1, 1_000_000, _, _>")]
    pub batch_txns: usize,
    /// The maximum age of a batch, in milliseconds. If nothing is being replicated, none waits.
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub batch_ms: u64,
    /// The size at which a batch is closed, in bytes.
    #[serde(deserialize_with = "within::<64, 67_108_864, _, _>")]
    pub batch_bytes: usize,
    /// A leader takes no more transactions while what it has executed and not replicated is larger
    /// than this, in bytes.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub unsettled_bytes_max: u64,
    /// The interval at which nodes tell that they are alive, in milliseconds (§5.2).
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub heartbeat_ms: u64,
    /// A leader that is silent for this long is replaced, in milliseconds; but not before one and a
    /// half round trips (§5.2). The paper waits for 10,000.
    #[serde(deserialize_with = "within::<50, 600_000, _, _>")]
    pub failure_ms: u64,
    /// Where procedures that only read are run.
    pub reads: Reads,
    /// Where the shards' leaders are, as long as none fails (§4.1).
    pub leaders: Leaders,
    /// Whether later transactions see writes that are not replicated yet. If not, this is the
    /// two-phase commit over replicated logs of the paper's figures (§7.2).
    pub speculation: bool,
    /// What clients are told of, and what is rolled back if a leader fails.
    pub ack_unit: AckUnit,
    /// With several shards: the number of entries of a clock, each of which consecutive shards
    /// share (§6.1). 0 is one for each shard.
    #[serde(deserialize_with = "within::<0, 128, _, _>")]
    pub clock_groups: u16,
    /// The maximum number of rows in a message that hands slots to another shard (§6.2).
    #[serde(deserialize_with = "within::<1, 1_000_000, _, _>")]
    pub move_rows: usize,
    /// A checkpoint is taken when the log has grown by this number of bytes since the last one.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub checkpoint_bytes: u64,
    /// The approximate size of the chunks in which a peer's checkpoint is transferred, in bytes.
    #[serde(deserialize_with = "within::<64, 16_777_216, _, _>")]
    pub chunk_bytes: usize,
    /// A replica takes a peer's checkpoint if the others would retain more than this number of
    /// bytes of the log for it.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub behind_bytes: u64,
}

/// Where procedures that only read are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// By the leader, in the order of all others: they see everything that was acknowledged before
    /// they began.
    #[default]
    Strict,
    /// On the node of the client, at the last published version, without a message (§8).
    Snapshot,
}

/// Where the shards' leaders are, as long as none fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leaders {
    /// On the first replica of each shard: in one region, if it has all shards.
    #[default]
    First,
    /// On the first replica of the first shard, the second one of the second shard, and so on.
    Rotated,
}

/// What clients are told of, and what is rolled back if a leader fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AckUnit {
    /// Each transaction, as soon as everything on which it depends is replicated.
    #[default]
    Clock,
    /// All transactions of all shards, up to a version: the paper's Mako-epoch (§7.8).
    Epoch,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slice_txns: 64,
            batch_txns: 400,
            batch_ms: 2,
            batch_bytes: 1 << 20,
            unsettled_bytes_max: 256 << 20,
            heartbeat_ms: 100,
            failure_ms: 1_000,
            reads: Reads::Strict,
            leaders: Leaders::First,
            speculation: true,
            ack_unit: AckUnit::Clock,
            clock_groups: 0,
            move_rows: 4_096,
            checkpoint_bytes: 256 << 20,
            chunk_bytes: 256 << 10,
            behind_bytes: 64 << 20,
        }
    }
}

/// A version has the transactions of a slice. The stages are those of `latency.rs`.
pub(super) const WORDS: Words = Words {
    coordinator: "leader",
    epoch: "slice",
    stages: [
        "waits for the event loop",
        "is checked and named",
        "runs in a batch, or is forwarded",
        "its entry is on the disk here",
        "a majority has its entry",
        "the watermark passes it",
        "slices before it are published",
        "its rows are applied",
        "the snapshot is published",
    ],
};

/// Checkpoints every few seconds.
pub(super) const TORTURE_SETTINGS: &[TortureSetting] =
    &[TortureSetting { key: "checkpoint_bytes", values: &["100000"] }];

pub(super) const VARIANTS: &[Variant] = &[Variant {
    key: "reads",
    value: "snapshot",
    what: "procedures that only read are answered from the node's last snapshot, without a message",
}];

impl Options {
    /// The default settings with low limits.
    pub(super) fn scaled_down() -> Self {
        Self {
            checkpoint_bytes: 100_000,
            chunk_bytes: 1_000,
            behind_bytes: 20_000,
            slice_txns: 4,
            ..Self::default()
        }
    }

    /// Random settings, for searches.
    pub(super) fn drawn(rng: &mut fastrand::Rng) -> Self {
        Self {
            slice_txns: [1, 4, 64][rng.usize(..3)],
            batch_txns: [1, 8, 400][rng.usize(..3)],
            batch_ms: rng.u64(1..=20),
            batch_bytes: [64, 4_096, 1 << 20][rng.usize(..3)],
            unsettled_bytes_max: [64 << 20, 256 << 20, 256 << 20][rng.usize(..3)],
            heartbeat_ms: rng.u64(10..=200),
            failure_ms: rng.u64(150..=1_500),
            reads: [Reads::Strict, Reads::Snapshot][rng.usize(..2)],
            leaders: [Leaders::First, Leaders::Rotated][usize::from(rng.clone().u8(..4) == 0)],
            speculation: true,
            ack_unit: AckUnit::Clock,
            clock_groups: [1, 2, 0, 0, 0, 0][rng.clone().usize(..6)],
            move_rows: [1, 3, 4_096][usize::from(rng.clone().u8(..3))],
            checkpoint_bytes: [4_096, 30_000, 256 << 20][rng.usize(..3)],
            chunk_bytes: [5_000, 20_000, 1 << 20][rng.usize(..3)],
            behind_bytes: [4_096, 20_000, 64 << 20][rng.usize(..3)],
        }
    }

    /// The settings that have no effect in this cluster, each with the effect in its place and the
    /// way out.
    pub(super) fn warnings(&self, topology: &Topology) -> Vec<String> {
        let least = topology.round_trip_max().us * 3 / 2;
        let is_short = Span::from_ms(self.failure_ms).us < least;
        let of_failure = is_short.then(|| {
            format!(
                "mako.failure_ms = {} has no effect: a leader is replaced when it is silent for \
                 one and a half of the longest round trips, {} ms. Raise it, or leave it out",
                self.failure_ms,
                least.div_ceil(1_000)
            )
        });
        let is_unused = self.reads == Reads::Snapshot && topology.partitions.shards() > 1;
        let of_reads = is_unused.then(|| {
            "mako.reads = \"snapshot\" has no effect with partitions: procedures that only read \
             are run by the leaders. Leave it out"
                .to_owned()
        });
        let is_alone = topology.partitions.shards() == 1;
        let unused = [
            ("ack_unit = \"epoch\"", self.ack_unit == AckUnit::Epoch),
            ("move_rows", self.move_rows != Self::default().move_rows),
            ("leaders = \"rotated\"", self.leaders == Leaders::Rotated),
            ("clock_groups", self.clock_groups > 0),
        ];
        let of_shards = unused.into_iter().filter(|(_, is_set)| is_alone && *is_set);
        let of_shards = of_shards.map(|(setting, _)| {
            format!(
                "mako.{setting} has no effect: there is one shard. Partition the tables, or leave \
                 it out"
            )
        });
        let (shards, groups) = (topology.partitions.shards(), self.clock_groups);
        let of_clocks = (!is_alone && groups >= shards).then(|| {
            format!(
                "mako.clock_groups = {groups} has no effect: with {shards} shards, each has its \
                 own entry. Set it below the number of shards, or leave it out"
            )
        });
        let of_shards = of_shards.chain(of_clocks);
        of_failure.into_iter().chain(of_reads).chain(of_shards).collect()
    }

    /// Transactions are ordered by the leader of the shard. With snapshots, those that only read
    /// see an earlier state.
    pub(super) fn guarantee(&self) -> Guarantee {
        match self.reads {
            Reads::Strict => Guarantee::StrictSerializable,
            Reads::Snapshot => Guarantee::Serializable,
        }
    }

    /// How long a node may be silent, if a round trip to it takes `round_trip`.
    pub(super) fn failure(&self, round_trip: Span) -> Span {
        // A heartbeat may just have been sent before the first one that is missed.
        let us = Span::from_ms(self.failure_ms).us.max(round_trip.us * 3 / 2);
        Span::from_us(us + 2 * Span::from_ms(self.heartbeat_ms).us)
    }
}
