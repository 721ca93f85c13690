//! Settings. Every replica of a cluster must have the same: they are part of what is decided alike.

use std::num::NonZeroUsize;

use pangea_core::choice::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::{NodeId, RegionId, SnapshotVersion};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::CodeDigest;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::inputs::{self, Settings, When, slice_txns, within};

/// Calvin's settings, with the paper's values as defaults where it has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How long a sequencer collects requests before it makes a batch of them, and how often the
    /// coordinator proposes which batches an epoch has, in milliseconds (§3.1).
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub epoch_ms: u64,
    /// A batch is made before that when it is this large, in bytes.
    #[serde(deserialize_with = "within::<1_024, 16_777_216, _, _>")]
    pub batch_bytes: usize,
    /// Whether clients are answered when a majority has agreed on their transactions, or when the
    /// master has them on its disk (§3.1.1).
    pub replication: Replication,
    /// The region whose nodes are the master replica while they can, where replication is
    /// asynchronous; without a name the first of the cluster's.
    pub master_region: String,
    /// What read-only procedures see: the last epoch here, or everything acknowledged anywhere.
    pub reads: Reads,
    /// The scheduler locks and runs so many transactions at a time, between which the node does
    /// what has arrived meanwhile. One that leaves its footprint runs again behind those.
    #[serde(deserialize_with = "slice_txns")]
    pub slice_txns: NonZeroUsize,
    /// How a checkpoint is taken beside what goes on (§5).
    pub checkpoints: Checkpoints,
    /// A checkpoint is taken when a restart would have about this much to read and to run again, in
    /// bytes of the log; a transaction that would be run counts as a kilobyte beside its request.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub checkpoint_bytes: u64,
    /// A replica that takes a checkpoint from a peer gets its rows in parts of about this size, in
    /// bytes.
    #[serde(deserialize_with = "within::<64, 16_777_216, _, _>")]
    pub chunk_bytes: usize,
    /// A replica that was not heard of for this long is removed from the configuration, in
    /// milliseconds.
    #[serde(deserialize_with = "within::<1_000, 86_400_000, _, _>")]
    pub removal_ms: u64,
    /// So is one that runs so far behind the others that these would keep more than so many bytes
    /// of batches for it.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub behind_bytes: u64,
    /// So many cuts that a majority has applied and holds on disk are kept for a replica that lacks
    /// them. One that lacks more takes a checkpoint.
    #[serde(deserialize_with = "within::<1, 262_144, _, _>")]
    pub cuts_kept: u64,
    /// How long a request is held back that wants rows which are not in memory (§4.1).
    pub cold_delay: ColdDelay,
    /// In so many of a hundred cases a predicted delay is to be long enough.
    #[serde(deserialize_with = "within::<1, 100, _, _>")]
    pub cold_percent: u64,
}

/// How long a request is held back that wants rows which are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdDelay {
    /// Not at all, and nothing is fetched before it is run.
    Off,
    /// As long as it took before.
    Predicted,
    /// So many milliseconds.
    Fixed(u64),
}

/// The longest delay that can be asked for, in milliseconds.
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

/// What a user may want otherwise.
pub(super) const VARIANTS: &[Variant] = &[
    Variant { key: "reads", value: "snapshot", what: "reads see a state of the past, at once" },
    Variant { key: "checkpoints", value: "zigzag", what: "one version of a record is kept" },
    Variant {
        key: "replication",
        value: "asynchronous",
        what: "the master answers before other regions have it: a failover may lose it",
    },
    Variant { key: "epoch_ms", value: "5", what: "batches twice as often" },
    Variant { key: "epoch_ms", value: "50", what: "batches a fifth as often" },
];

/// What the outcome of an epoch depends on beside its batches: how they are scheduled, and what the
/// procedures do. An epoch is scheduled as its cut says, whatever this node would have proposed.
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
    fn refuses(&self, epoch: SnapshotVersion, cut: &Self) -> Option<String> {
        (self.code != cut.code).then(|| {
            format!(
                "epoch {} was proposed where procedures do something else than in this program, \
                 and must be run as there. Start all nodes with the program that proposed it; to \
                 take the data to another one, dump it there and restore it here",
                epoch.0
            )
        })
    }
}

/// How transactional input is replicated (§3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Replication {
    /// A majority agrees on an epoch before it is run.
    Synchronous,
    /// One replica, the master, runs an epoch when its own disk has it. If it is lost then, so is
    /// what it has run and the others have not agreed on.
    Asynchronous,
}

/// What a read that changes nothing sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The last epoch that this replica has run: serializable, and without waiting.
    Snapshot,
    /// Waits for an epoch that was proposed after the read arrived: strictly serializable.
    Strict,
}

/// How a checkpoint is taken (§5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checkpoints {
    /// The paper's third mode: a scan of one of the versions that the store keeps for readers.
    Versions,
    /// The first: a replica of each group at a time runs no epochs until its own is written.
    Frozen,
    /// The second: one version of each record is kept, and two around a point in the order.
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
            slice_txns: NonZeroUsize::new(64).expect("64 is not zero"),
            checkpoints: Checkpoints::Versions,
            checkpoint_bytes: 512 << 20,
            chunk_bytes: 1 << 19,
            removal_ms: 10_000,
            // Several seconds at the highest rates, and minutes at usual ones.
            behind_bytes: 256 << 20,
            // At one each 10 ms, five minutes; a few megabytes.
            cuts_kept: 32_768,
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
            slice_txns: NonZeroUsize::new(4).expect("four is not zero"),
            cuts_kept: 20,
            ..Self::default()
        }
    }

    /// Settings at random: every switch both ways, and limits that runs of seconds reach.
    pub fn drawn(rng: &mut fastrand::Rng) -> Self {
        fn one_of<T: Copy>(rng: &mut fastrand::Rng, choices: &[T]) -> T {
            choices[rng.usize(..choices.len())]
        }
        let slice = NonZeroUsize::new(one_of(rng, &[1, 4, 64])).expect("none of them is zero");
        let mut options = Self {
            epoch_ms: one_of(rng, &[5, 10, 10, 60]),
            batch_bytes: one_of(rng, &[1_024, 4 << 20]),
            reads: if rng.bool() { Reads::Snapshot } else { Reads::Strict },
            slice_txns: slice,
            checkpoint_bytes: one_of(rng, &[10_000, 30_000, 300_000]),
            // Sixteen to a round trip, and TPC-C's tables must come over within seconds.
            chunk_bytes: one_of(rng, &[5_000, 20_000, 1 << 20]),
            removal_ms: one_of(rng, &[1_000, 2_000, 10_000]),
            cuts_kept: one_of(rng, &[5, 20, 32_768]),
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
            // Last: what is drawn before stays as it was.
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

    /// Whether a replica is to stand still where others wait for the master's word.
    fn is_frozen_master(&self) -> bool {
        self.replication == Replication::Asynchronous && self.checkpoints == Checkpoints::Frozen
    }

    /// What of them the input log follows, where the procedures are these.
    pub(super) fn of_inputs(&self, code: CodeDigest, master: Option<NodeId>) -> Settings<Rules> {
        Settings {
            epoch: self.epoch(),
            ack_everyone: true,
            checkpoint_bytes: self.checkpoint_bytes,
            checkpoints: match self.checkpoints {
                Checkpoints::Versions => When::Due,
                Checkpoints::Frozen => When::InTurn,
                Checkpoints::Zigzag => When::AtPoints,
            },
            chunk_bytes: self.chunk_bytes,
            removal: Span::from_ms(self.removal_ms),
            behind_bytes: self.behind_bytes,
            cuts_kept: self.cuts_kept,
            master,
            rules: Rules { slice_txns: self.slice_txns, code },
        }
    }

    /// The region that has the master, where replication is asynchronous.
    pub(super) fn master(&self, topology: &Topology) -> Option<RegionId> {
        if self.replication == Replication::Synchronous {
            return None;
        }
        let named = topology.regions.iter().position(|name| *name == self.master_region);
        Some(RegionId(named.unwrap_or_default() as u16))
    }

    /// Whether a cluster like this can have them.
    ///
    /// # Errors
    /// Which one it can't have, and why.
    pub(super) fn check(&self, topology: &Topology) -> Result<(), String> {
        let is_known =
            self.master_region.is_empty() || topology.regions.contains(&self.master_region);
        if !is_known {
            let (name, regions) = (&self.master_region, topology.regions.join(", "));
            return Err(format!("master_region = {name:?}: there are the regions {regions}"));
        }
        if !self.master_region.is_empty() && self.replication == Replication::Synchronous {
            return Err(format!(
                "master_region = {:?} with replication = \"synchronous\": no region has a master \
                 then; set replication to \"asynchronous\", or leave master_region out",
                self.master_region
            ));
        }
        if self.is_frozen_master() {
            return Err("checkpoints = \"frozen\" with replication = \"asynchronous\": all \
                        requests go to the master, which answers before others may run them, so \
                        nobody can answer for it while it stands still; set checkpoints to \
                        \"versions\" or \"zigzag\", or replication to \"synchronous\""
                .to_owned());
        }
        Ok(())
    }

    /// Transactions that write are strictly serializable; those that only read are that with strict
    /// reads, and else see a state of the past.
    pub(super) fn guarantee(&self) -> Guarantee {
        match self.reads {
            Reads::Strict => Guarantee::StrictSerializable,
            Reads::Snapshot => Guarantee::Serializable,
        }
    }

    /// How long a sequencer collects requests.
    pub(super) fn epoch(&self) -> Span {
        Span::from_ms(self.epoch_ms)
    }
}
