//! Settings. They must be the same on every replica of a cluster, because decisions depend on them.

use std::num::NonZeroUsize;

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::{RegionId, SnapshotVersion};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::CodeDigest;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::checkpoint_turns::CheckpointSchedule;
use crate::inputs::{self, Settings, SkippedEpochs, slice_txns, within};

/// Calvin's settings. The defaults are the paper's values if it has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The time for which a sequencer collects requests into a batch, and the interval at which the
    /// coordinator proposes cuts, in milliseconds (§3.1).
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub epoch_ms: u64,
    /// The size at which a batch is closed before that time, in bytes.
    #[serde(deserialize_with = "within::<1_024, 16_777_216, _, _>")]
    pub batch_bytes: usize,
    /// Whether clients are answered when a majority has agreed on their transactions, or when the
    /// master has them on its disk (§3.1.1).
    pub replication: Replication,
    /// The region whose nodes are the preferred masters, if replication is asynchronous. Empty for
    /// the first region of the cluster.
    pub master_region: String,
    /// The state that read-only procedures see: the last epoch on this node, or everything
    /// acknowledged anywhere.
    pub reads: Reads,
    /// The number of transactions that the scheduler locks and runs at a time. In between, the node
    /// handles inputs that have arrived. A transaction that leaves its footprint runs again after
    /// those that were scheduled with it.
    #[serde(deserialize_with = "slice_txns")]
    pub slice_txns: NonZeroUsize,
    /// How a checkpoint is taken concurrently with execution (§5).
    pub checkpoints: Checkpoints,
    /// A checkpoint is taken when a restart would have about this much to read and to replay, in
    /// bytes of the log. A transaction to replay counts as a kilobyte in addition to its request.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub checkpoint_bytes: u64,
    /// The approximate size of the chunks in which a peer's checkpoint is transferred, in bytes.
    #[serde(deserialize_with = "within::<64, 16_777_216, _, _>")]
    pub chunk_bytes: usize,
    /// A replica from which no message has arrived for this long is removed from the configuration,
    /// in milliseconds.
    #[serde(deserialize_with = "within::<1_000, 86_400_000, _, _>")]
    pub removal_ms: u64,
    /// A replica is also removed if the others would retain more than this number of bytes of
    /// batches for it.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub behind_bytes: u64,
    /// The number of cuts, applied and persisted by a majority, that are retained for replicas that
    /// have not received them. A replica that is missing more installs a checkpoint.
    #[serde(deserialize_with = "within::<1, 262_144, _, _>")]
    pub cuts_kept: u64,
    /// Epochs whose transactions are all aborted, because a bug stops every node at them.
    pub skip_epochs: SkippedEpochs,
    /// The delay of a request that reads rows which are not in memory (§4.1).
    pub cold_delay: ColdDelay,
    /// The percentage of cases in which a predicted delay must be long enough.
    #[serde(deserialize_with = "within::<1, 100, _, _>")]
    pub cold_percent: u64,
}

/// The delay of a request that reads rows which are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdDelay {
    /// No delay, and no fetch before the transaction runs.
    Off,
    /// A delay predicted from the times of earlier fetches.
    Predicted,
    /// A fixed delay in milliseconds.
    Fixed(u64),
}

/// The maximum fixed delay, in milliseconds.
const COLD_DELAY_MS_MAX: u64 = 10_000;

impl Serialize for ColdDelay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Predicted => serializer.serialize_str("predicted"),
            Self::Fixed(ms) => serializer.serialize_u64(*ms),
        }
    }
}

impl<'de> Deserialize<'de> for ColdDelay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Ms(u64),
            Word(String),
        }
        match Given::deserialize(deserializer) {
            Ok(Given::Ms(ms)) if ms <= COLD_DELAY_MS_MAX => Ok(Self::Fixed(ms)),
            Ok(Given::Word(word)) if word == "off" => Ok(Self::Off),
            Ok(Given::Word(word)) if word == "predicted" => Ok(Self::Predicted),
            _ => Err(D::Error::custom(format_args!(
                "must be \"predicted\", \"off\" or from 0 to {COLD_DELAY_MS_MAX} milliseconds"
            ))),
        }
    }
}

/// Checkpoints every few seconds.
/// A transaction counts as a kilobyte of `checkpoint_bytes`.
pub(super) const TORTURE_SETTINGS: &[TortureSetting] = &[
    TortureSetting { key: "checkpoint_bytes", values: &["300000"] },
    TortureSetting { key: "checkpoints", values: &["versions", "frozen", "zigzag"] },
];

/// Settings that a user may want to change.
pub(super) const VARIANTS: &[Variant] = &[
    Variant {
        key: "reads",
        value: "snapshot",
        what: "reads do not wait, and may see an earlier state",
    },
    Variant { key: "checkpoints", value: "zigzag", what: "one version of each row is retained" },
    Variant {
        key: "replication",
        value: "asynchronous",
        what: "the master acknowledges before other regions have a copy: a failover may lose \
               commits",
    },
    Variant { key: "epoch_ms", value: "5", what: "batches twice as often" },
    Variant { key: "epoch_ms", value: "50", what: "batches a fifth as often" },
];

/// The settings, besides the batches, on which the outcome of an epoch depends: the number of
/// transactions scheduled at a time, and the code of the procedures. An epoch is scheduled by the
/// rules in its cut, not by those of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    pub(super) slice_txns: NonZeroUsize,
    code: CodeDigest,
}

impl Default for Rules {
    fn default() -> Self {
        Self { slice_txns: NonZeroUsize::MIN, code: CodeDigest::default() }
    }
}

impl inputs::Rules for Rules {
    fn code(&self) -> CodeDigest {
        self.code
    }

    /// An epoch is scheduled by the rules in its cut, whatever this node's settings are.
    fn refuses(&self, _epoch: SnapshotVersion, _cut: &Self) -> Option<String> {
        None
    }
}

/// How transactional input is replicated (§3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Replication {
    /// A majority agrees on an epoch before it runs.
    Synchronous,
    /// One replica, the master, runs an epoch when its own disk has it. If the master is lost, so
    /// are the epochs that it has run and the other replicas have not agreed on.
    Asynchronous,
}

/// The state that a read-only transaction sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The last epoch that this replica has run: serializable, without waiting.
    Snapshot,
    /// Waits for an epoch that was proposed after the read arrived: strictly serializable.
    Strict,
}

/// How a checkpoint is taken (§5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checkpoints {
    /// The paper's third mode: a scan of one of the versions that the store retains for readers.
    Versions,
    /// The first mode: one replica of each group at a time runs no epochs until its checkpoint is
    /// written.
    Frozen,
    /// The second mode: one version of each record is retained, and two around a point in the
    /// order.
    Zigzag,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            epoch_ms: 10,
            batch_bytes: 4 << 20,
            replication: Replication::Synchronous,
            master_region: String::new(),
            reads: Reads::Strict,
            slice_txns: NonZeroUsize::new(64).expect("64 is nonzero"),
            checkpoints: Checkpoints::Versions,
            checkpoint_bytes: 512 << 20,
            chunk_bytes: 1 << 19,
            removal_ms: 10_000,
            // Several seconds of batches at the highest rates, and minutes at usual ones.
            behind_bytes: 256 << 20,
            // Five minutes with one cut every 10 ms; a few megabytes.
            cuts_kept: 32_768,
            skip_epochs: SkippedEpochs::default(),
            cold_delay: ColdDelay::Predicted,
            cold_percent: 99,
        }
    }
}

impl Options {
    /// The defaults with limits that runs of seconds reach: see
    /// [`Protocol::scaled_down_options`](pangea_core::protocol::Protocol::scaled_down_options).
    pub fn scaled_down() -> Self {
        Self {
            // A transaction counts as a kilobyte: about three times as much as in Minerva.
            checkpoint_bytes: 100_000,
            chunk_bytes: 500,
            slice_txns: NonZeroUsize::new(4).expect("4 is nonzero"),
            cuts_kept: 20,
            ..Self::default()
        }
    }

    /// Random settings: every switch both ways, and limits that runs of seconds reach.
    pub fn drawn(rng: &mut fastrand::Rng) -> Self {
        fn one_of<T: Copy>(rng: &mut fastrand::Rng, choices: &[T]) -> T {
            choices[rng.usize(..choices.len())]
        }
        let slice = NonZeroUsize::new(one_of(rng, &[1, 4, 64])).expect("the values are nonzero");
        let mut options = Self {
            epoch_ms: one_of(rng, &[5, 10, 10, 60]),
            batch_bytes: one_of(rng, &[1_024, 4 << 20]),
            reads: if rng.bool() { Reads::Snapshot } else { Reads::Strict },
            slice_txns: slice,
            checkpoint_bytes: one_of(rng, &[10_000, 30_000, 300_000]),
            // Sixteen chunks are sent in a round trip, and TPC-C's tables must be transferred
            // within seconds.
            chunk_bytes: one_of(rng, &[5_000, 20_000, 1 << 20]),
            removal_ms: one_of(rng, &[1_000, 2_000, 10_000]),
            cuts_kept: one_of(rng, &[5, 20, 32_768]),
            skip_epochs: SkippedEpochs::default(),
            replication: match rng.u8(..3) {
                0 => Replication::Asynchronous,
                _ => Replication::Synchronous,
            },
            master_region: String::new(),
            cold_delay: match rng.u8(..8) {
                0 => ColdDelay::Off,
                1 => ColdDelay::Fixed(one_of(rng, &[0, 5, 80])),
                _ => ColdDelay::Predicted,
            },
            cold_percent: one_of(rng, &[10, 99, 100]),
            // Drawn last, so that the draws before stay the same.
            checkpoints: one_of(
                rng,
                &[Checkpoints::Versions, Checkpoints::Frozen, Checkpoints::Zigzag],
            ),
            behind_bytes: one_of(rng, &[20_000, 256 << 20]),
        };
        if options.is_frozen_master() {
            options.checkpoints = Checkpoints::Versions;
        }
        options
    }

    /// Whether a replica would be frozen although others wait for the master.
    fn is_frozen_master(&self) -> bool {
        self.replication == Replication::Asynchronous && self.checkpoints == Checkpoints::Frozen
    }

    /// The settings of the input log, for procedures with this code.
    pub(super) fn of_inputs(&self, code: CodeDigest) -> Settings<Rules> {
        Settings {
            epoch: self.epoch(),
            ack_everyone: true,
            checkpoint_bytes: self.checkpoint_bytes,
            chunk_bytes: self.chunk_bytes,
            removal: Span::from_ms(self.removal_ms),
            behind_bytes: self.behind_bytes,
            cuts_kept: self.cuts_kept,
            skipped: self.skip_epochs,
            rules: Rules { slice_txns: self.slice_txns, code },
        }
    }

    /// When a checkpoint that is due is taken.
    pub(super) fn checkpoint_schedule(&self) -> CheckpointSchedule {
        match self.checkpoints {
            Checkpoints::Versions => CheckpointSchedule::Due,
            Checkpoints::Frozen => CheckpointSchedule::InTurn,
            Checkpoints::Zigzag => CheckpointSchedule::AtPoints,
        }
    }

    /// The region of the preferred master, if replication is asynchronous.
    pub(super) fn master(&self, topology: &Topology) -> Option<RegionId> {
        if self.replication == Replication::Synchronous {
            return None;
        }
        let named = topology.regions.iter().position(|name| *name == self.master_region);
        Some(RegionId(named.unwrap_or_default() as u16))
    }

    /// Checks whether a cluster of this topology can have these settings.
    ///
    /// # Errors
    /// Names the setting that it can't have, and the reason.
    pub(super) fn check(&self, topology: &Topology) -> Result<(), String> {
        let is_known =
            self.master_region.is_empty() || topology.regions.contains(&self.master_region);
        if !is_known {
            let (name, regions) = (&self.master_region, topology.regions.join(", "));
            return Err(format!("master_region = {name:?}: unknown region; known: {regions}"));
        }
        if !self.master_region.is_empty() && self.replication == Replication::Synchronous {
            return Err(format!(
                "master_region = {:?} needs replication = \"asynchronous\": with \"synchronous\" \
                 there is no master; change replication, or remove master_region",
                self.master_region
            ));
        }
        if !self.skip_epochs.is_empty() && topology.partitions.shards() > 1 {
            return Err("skip_epochs can't be used with partitioned tables: the nodes of all \
                        shards would have to skip the same parts of transactions"
                .to_owned());
        }
        if self.is_frozen_master() {
            return Err("checkpoints = \"frozen\" can't be used with replication = \
                        \"asynchronous\": the master acknowledges requests before other replicas \
                        may run them, so no other replica can answer while the master is frozen; \
                        set checkpoints to \"versions\" or \"zigzag\", or replication to \
                        \"synchronous\""
                .to_owned());
        }
        Ok(())
    }

    /// Transactions that write are strictly serializable. Those that only read are as well with
    /// strict reads; otherwise they see an earlier state.
    pub(super) fn guarantee(&self) -> Guarantee {
        match self.reads {
            Reads::Strict => Guarantee::StrictSerializable,
            Reads::Snapshot => Guarantee::Serializable,
        }
    }

    /// The time for which a sequencer collects requests.
    pub(super) fn epoch(&self) -> Span {
        Span::from_ms(self.epoch_ms)
    }
}
