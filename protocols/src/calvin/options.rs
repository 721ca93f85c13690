//! Settings. Every replica of a cluster must have the same: they are part of what is decided alike.

use std::num::NonZeroUsize;

use pangea_core::choice::{Guarantee, Variant};
use pangea_core::ids::SnapshotVersion;
use pangea_core::time::Span;
use pangea_core::txn::CodeDigest;
use serde::{Deserialize, Serialize};

use crate::inputs::{self, Settings, at_least_one, within};

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
    /// What read-only procedures see: the last epoch here, or everything acknowledged anywhere.
    pub reads: Reads,
    /// The scheduler locks and runs so many transactions at a time, between which the node does
    /// what has arrived meanwhile. One that leaves its footprint runs again behind those.
    #[serde(deserialize_with = "at_least_one")]
    pub slice_txns: NonZeroUsize,
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
    /// So many cuts that a majority has applied and holds on disk are kept for a replica that lacks
    /// them. One that lacks more takes a checkpoint.
    #[serde(deserialize_with = "within::<1, 262_144, _, _>")]
    pub cuts_kept: u64,
}

/// What a user may want otherwise.
pub(super) const VARIANTS: &[Variant] = &[
    Variant { key: "reads", value: "snapshot", what: "reads see a state of the past, at once" },
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

/// What a read that changes nothing sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The last epoch that this replica has run: serializable, and without waiting.
    Snapshot,
    /// Waits for an epoch that was proposed after the read arrived: strictly serializable.
    Strict,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            epoch_ms: 10,
            batch_bytes: 4 << 20,
            reads: Reads::Strict,
            slice_txns: NonZeroUsize::new(64).expect("64 is not zero"),
            checkpoint_bytes: 512 << 20,
            chunk_bytes: 1 << 19,
            removal_ms: 10_000,
            // At one each 10 ms, five minutes; a few megabytes.
            cuts_kept: 32_768,
        }
    }
}

impl Options {
    /// Settings at random: every switch both ways, and limits that runs of seconds reach.
    pub fn drawn(rng: &mut fastrand::Rng) -> Self {
        fn one_of<T: Copy>(rng: &mut fastrand::Rng, choices: &[T]) -> T {
            choices[rng.usize(..choices.len())]
        }
        let slice = NonZeroUsize::new(one_of(rng, &[1, 4, 64])).expect("none of them is zero");
        Self {
            epoch_ms: one_of(rng, &[5, 10, 10, 60]),
            batch_bytes: one_of(rng, &[1_024, 4 << 20]),
            reads: if rng.bool() { Reads::Snapshot } else { Reads::Strict },
            slice_txns: slice,
            checkpoint_bytes: one_of(rng, &[10_000, 30_000, 300_000]),
            // Sixteen to a round trip, and TPC-C's tables must come over within seconds.
            chunk_bytes: one_of(rng, &[5_000, 20_000, 1 << 20]),
            removal_ms: one_of(rng, &[1_000, 2_000, 10_000]),
            cuts_kept: one_of(rng, &[5, 20, 32_768]),
        }
    }

    /// What of them the input log follows, where the procedures are these.
    pub(super) fn of_inputs(&self, code: CodeDigest) -> Settings<Rules> {
        Settings {
            epoch: self.epoch(),
            ack_everyone: true,
            checkpoint_bytes: self.checkpoint_bytes,
            chunk_bytes: self.chunk_bytes,
            removal: Span::from_ms(self.removal_ms),
            cuts_kept: self.cuts_kept,
            rules: Rules { slice_txns: self.slice_txns, code },
        }
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
