//! Settings. They must be the same on every replica of a cluster, because decisions depend on them.

use std::num::NonZeroUsize;

use pangea_core::guarantee::{Guarantee, Isolation, Isolations, TortureSetting, Variant};
use pangea_core::time::Span;
use pangea_core::txn::CodeDigest;
use serde::{Deserialize, Serialize};

use super::merge::MergeRule;
use super::rules::Rules;
use crate::inputs::{SkippedEpochs, slice_txns, within};

/// GeoGauss's settings, with the paper's values as defaults (§4.1, §5.1) where they are sound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The length of an epoch, in milliseconds.
    #[serde(deserialize_with = "within::<1, 1_000, _, _>")]
    pub epoch_ms: u64,
    /// The time after its first transaction at which a batch is sent, in milliseconds, if its epoch
    /// has not ended before.
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub batch_ms: u64,
    /// The size at which a batch is sent, in bytes.
    #[serde(deserialize_with = "within::<1_024, 16_777_216, _, _>")]
    pub batch_bytes: usize,
    /// The isolation level of transactions that name none.
    pub isolation: Isolation,
    /// Whether transactions can ask for the serializable level, which the paper does not have.
    pub serializable: bool,
    /// Where transactions are validated.
    pub validation: Validation,
    /// When a program is run.
    pub execution: Execution,
    /// The rule that decides which of the transactions that write one row commits.
    pub merge: MergeRule,
    /// The fate of a program that loses.
    pub conflicts: Conflicts,
    /// Whether a program reads the writes of transactions of its node that are not decided yet. It
    /// loses if they do.
    pub chains: bool,
    /// Whether a transaction adds to a row (`SET v = v + 1`) without a check of its value, so that
    /// others add to it at the same time. Used with `validation = "merge"`, except at the snapshot
    /// level.
    pub deltas: bool,
    /// When an epoch is merged and its clients are answered.
    pub ack: Ack,
    /// The time for which the removal of a replica waits for its caches, in milliseconds.
    #[serde(deserialize_with = "within::<0, 60_000, _, _>")]
    pub cache_ms: u64,
    /// How often a program is run at its source before every replica runs it in order.
    #[serde(deserialize_with = "within::<1, 100, _, _>")]
    pub attempts_optimistic: u8,
    /// How long deletions are remembered, in milliseconds. A transaction that has read an older
    /// snapshot loses if it checks a row.
    #[serde(deserialize_with = "within::<1_000, 86_400_000, _, _>")]
    pub horizon_ms: u64,
    /// A replica from which no message has arrived for this long is removed, in milliseconds; but
    /// not before four round trips (§7.6).
    #[serde(deserialize_with = "within::<100, 600_000, _, _>")]
    pub removal_ms: u64,
    /// A member for which an epoch waits this long is removed although it is alive, in
    /// milliseconds.
    #[serde(deserialize_with = "within::<100, 600_000, _, _>")]
    pub lag_ms: u64,
    /// The number of epochs that an idle replica ends ahead, so that nobody waits for it. 0 turns
    /// that off.
    #[serde(deserialize_with = "within::<0, 1_000, _, _>")]
    pub silence_epochs: u64,
    /// A replica without transactions for this long is idle, in milliseconds. Until then it ends
    /// each epoch when its time is over, so that its next transaction waits for nobody.
    #[serde(deserialize_with = "within::<0, 3_600_000, _, _>")]
    pub idle_ms: u64,
    /// The number of programs that a step runs. In between, the node handles inputs that have
    /// arrived, and ends its epoch.
    #[serde(deserialize_with = "slice_txns")]
    pub slice_txns: NonZeroUsize,
    /// A checkpoint is taken when the log has grown by this number of bytes since the last one.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub checkpoint_bytes: u64,
    /// The approximate size of the chunks in which a peer's checkpoint is transferred, in bytes.
    #[serde(deserialize_with = "within::<64, 16_777_216, _, _>")]
    pub chunk_bytes: usize,
    /// A replica is also removed if the others would retain more than this number of bytes of
    /// batches for it.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub behind_bytes: u64,
    /// Epochs whose transactions are all aborted, because a bug stops every node at them.
    pub skip_epochs: SkippedEpochs,
}

/// Checkpoints every few seconds.
pub(super) const TORTURE_SETTINGS: &[TortureSetting] =
    &[TortureSetting { key: "checkpoint_bytes", values: &["100000"] }];

/// Settings that a user may want to change; the others are for comparisons with the paper.
pub(super) const VARIANTS: &[Variant] = &[
    Variant {
        key: "isolation",
        value: "serializable",
        what: "rows that a transaction has read are checked as well",
    },
    Variant {
        key: "isolation",
        value: "snapshot-isolation",
        what: "all statements of a transaction read one snapshot",
    },
    Variant { key: "epoch_ms", value: "5", what: "epochs end twice as often" },
    Variant { key: "epoch_ms", value: "50", what: "epochs end a fifth as often" },
];

/// The fate of a program that loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conflicts {
    /// It is run again at its source, and after some attempts by every replica, in order. It never
    /// fails for a conflict.
    #[default]
    InOrder,
    /// It is run again at its source until it wins.
    Retry,
    /// Its client gets an error (§4.1.2).
    Abort,
}

/// Where transactions are validated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validation {
    /// In the merge, on each replica: updates are never lost.
    #[default]
    Merge,
    /// At their source, before they are sent (§4.1.5). Updates are lost.
    Origin,
}

/// When a program is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// At once, on the newest snapshot (§4.1).
    #[default]
    Asynchronous,
    /// When all epochs before the one in which it arrived are merged.
    Synchronous,
}

/// When an epoch is merged and its clients are answered (§5.2), once all members have ended it and
/// all of its batches are here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ack {
    /// Each batch is on f + 1 disks.
    #[default]
    Replicated,
    /// Those of this replica are on its disk, and on that of one of its caches. Commits can be
    /// lost with both. While no cache is connected, as [`Ack::Replicated`].
    Cached,
    /// Those of this replica are on its disk. Commits can be lost with it.
    Merged,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            epoch_ms: 10,
            batch_ms: 5,
            batch_bytes: 1 << 20,
            isolation: Isolation::ReadCommitted,
            serializable: true,
            validation: Validation::Merge,
            execution: Execution::Asynchronous,
            merge: MergeRule::Greedy,
            conflicts: Conflicts::InOrder,
            chains: true,
            deltas: true,
            ack: Ack::Replicated,
            cache_ms: 2_000,
            attempts_optimistic: 3,
            horizon_ms: 60_000,
            removal_ms: 500,
            lag_ms: 2_000,
            silence_epochs: 20,
            idle_ms: 10_000,
            slice_txns: NonZeroUsize::new(64).expect("it is not zero"),
            checkpoint_bytes: 512 << 20,
            chunk_bytes: 1 << 19,
            // Several seconds of batches at the highest rates, and minutes at usual ones.
            behind_bytes: 256 << 20,
            skip_epochs: SkippedEpochs::default(),
        }
    }
}

impl Options {
    /// The paper's protocol: validation at the source, and a client gets an error if its
    /// transaction loses. Updates are lost at all of its levels. Its two errors that make replicas
    /// differ are mended.
    pub fn paper() -> Self {
        Self {
            serializable: false,
            validation: Validation::Origin,
            merge: MergeRule::Claims,
            conflicts: Conflicts::Abort,
            chains: false,
            deltas: false,
            ack: Ack::Cached,
            silence_epochs: 0,
            ..Self::default()
        }
    }

    /// Whether the protocol can have these settings.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.isolation == Isolation::Serializable && !self.serializable {
            let why = "isolation = \"serializable\" needs serializable = true";
            return Err(why.to_owned());
        }
        if self.validation == Validation::Merge {
            return Ok(());
        }
        if self.merge == MergeRule::Greedy {
            let why = "validation = \"origin\" needs merge = \"claims\": with \"greedy\" nothing \
                       decides between two transactions that write one row";
            return Err(why.to_owned());
        }
        match self.isolation {
            Isolation::Serializable => {
                Err("validation = \"origin\" does not have the level \"serializable\"".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// What an operator of a node with this number of caches should know.
    pub(super) fn warnings(&self, caches: usize) -> Vec<String> {
        let why = match self.ack {
            Ack::Replicated => return Vec::new(),
            Ack::Merged => {
                "geogauss.ack = \"merged\": clients of this node are told of a commit as soon as \
                 it is on this node's disk. If the node is lost, or cut off and removed, its last \
                 commits can be lost"
            }
            Ack::Cached if caches == 0 => {
                "geogauss.ack = \"cached\" has no effect on this node, because no node is its \
                 cache (nodes.cache_of). Commits are acknowledged as with \"replicated\""
            }
            Ack::Cached => {
                "geogauss.ack = \"cached\": clients of this node are told of a commit as soon as \
                 it is on the disks of this node and one of its caches. If both are lost, the last \
                 commits can be lost"
            }
        };
        vec![why.to_owned()]
    }

    pub(super) fn epoch(&self) -> Span {
        Span::from_ms(self.epoch_ms)
    }

    pub(super) fn batch(&self) -> Span {
        Span::from_ms(self.batch_ms)
    }

    /// Whether a program of this level reads the writes of undecided transactions of its node. At
    /// the levels in between it would have to send all that it reads.
    pub(super) fn chains_at(&self, level: Isolation) -> bool {
        let is_checked = self.validation == Validation::Merge && self.merge == MergeRule::Greedy;
        let is_level = matches!(level, Isolation::ReadCommitted | Isolation::Serializable);
        self.chains && is_checked && is_level
    }

    pub(super) fn lag(&self) -> Span {
        Span::from_ms(self.lag_ms)
    }

    pub(super) fn removal(&self) -> Span {
        Span::from_ms(self.removal_ms)
    }

    /// The number of epochs without transactions after which a replica is idle.
    pub(super) fn idle_epochs(&self) -> u64 {
        self.idle_ms.div_ceil(self.epoch_ms)
    }

    /// The number of epochs within the horizon.
    pub(super) fn horizon_epochs(&self) -> u64 {
        self.horizon_ms.div_ceil(self.epoch_ms)
    }

    /// The rules of a replica with these settings and with procedures of this code.
    pub(super) fn rules(&self, code: CodeDigest) -> Rules {
        Rules { merge: self.merge, horizon: self.horizon_epochs(), code }
    }

    /// The levels that transactions can choose. With validation at the source all of them are read
    /// committed, and `isolation` says what the source compares.
    pub(super) fn isolations(&self) -> Isolations {
        if self.validation == Validation::Origin {
            return Isolations::new(Isolation::ReadCommitted, &[]).losing_updates();
        }
        let others: &[Isolation] = match self.serializable {
            true => &Isolation::ALL,
            false => &[Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Snapshot],
        };
        let levels = Isolations::new(self.isolation, others);
        if self.deltas { levels.merging_adds() } else { levels }
    }

    pub(super) fn guarantee(&self) -> Guarantee {
        self.isolations().default_level().guarantee()
    }

    pub(super) fn drawn(rng: &mut fastrand::Rng) -> Self {
        let drawn = Self::drawn_at_first(rng);
        // Of long runs, so that most replicas are idle at times.
        let idle_ms = match rng.clone().u8(..4) {
            0 => 10_000,
            _ => drawn.silence_epochs * drawn.epoch_ms,
        };
        Self { idle_ms, ..drawn }
    }

    fn drawn_at_first(rng: &mut fastrand::Rng) -> Self {
        // Kept seeds draw the other settings as they did before these existed.
        let mut later = rng.clone();
        Self {
            epoch_ms: [2, 10, 50][rng.usize(..3)],
            batch_ms: rng.u64(1..20),
            batch_bytes: [1_024, 4_096, 1 << 20][rng.usize(..3)],
            isolation: Isolation::ALL[rng.usize(..4)],
            serializable: true,
            validation: Validation::Merge,
            execution: match later.u8(..4) {
                0 => Execution::Synchronous,
                _ => Execution::Asynchronous,
            },
            merge: if rng.bool() { MergeRule::Greedy } else { MergeRule::Claims },
            conflicts: if rng.bool() { Conflicts::InOrder } else { Conflicts::Retry },
            chains: later.bool(),
            // Without additions there is nothing to test.
            deltas: true,
            attempts_optimistic: rng.u8(1..4),
            horizon_ms: [1_000, 60_000][rng.usize(..2)],
            removal_ms: [500, 2_000][rng.usize(..2)],
            lag_ms: [500, 2_000][later.usize(..2)],
            silence_epochs: [0, 3, 20][later.usize(..3)],
            idle_ms: 0,
            slice_txns: NonZeroUsize::new(rng.usize(1..20)).expect("it is not zero"),
            checkpoint_bytes: [10_000, 30_000, 300_000][rng.usize(..3)],
            // Sixteen chunks are sent in a round trip, and TPC-C's tables must be transferred
            // within seconds.
            chunk_bytes: [5_000, 20_000, 1 << 20][rng.usize(..3)],
            behind_bytes: [20_000, 256 << 20][rng.usize(..2)],
            skip_epochs: SkippedEpochs::default(),
            ack: [Ack::Replicated, Ack::Replicated, Ack::Cached, Ack::Merged][rng.usize(..4)],
            cache_ms: [100, 2_000][rng.usize(..2)],
        }
    }

    /// The defaults with limits that runs of seconds reach: see
    /// [`Protocol::scaled_down_options`](pangea_core::protocol::Protocol::scaled_down_options).
    pub(super) fn scaled_down() -> Self {
        Self {
            checkpoint_bytes: 30_000,
            chunk_bytes: 500,
            idle_ms: 200,
            slice_txns: NonZeroUsize::new(4).expect("it is not zero"),
            ..Self::default()
        }
    }
}
