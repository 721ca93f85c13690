//! Settings. Every replica of a cluster must have the same: they are part of what is decided alike.

use std::num::NonZeroUsize;

use pangea_core::choice::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::SnapshotVersion;
use pangea_core::time::Span;
use serde::{Deserialize, Serialize};

use crate::inputs::{self, Settings, When, slice_txns, within};

/// Minerva's settings, with the paper's values as defaults (§5.1), and switches for what goes
/// beyond it, with the better one as default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How often the coordinator proposes a cut, in milliseconds.
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub epoch_ms: u64,
    /// A batch is sent this long after its first transaction, in milliseconds.
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub batch_ms: u64,
    /// A batch is sent when it is this large, in bytes.
    #[serde(deserialize_with = "within::<1_024, 16_777_216, _, _>")]
    pub batch_bytes: usize,
    /// How the independent set is found.
    pub solver: Solver,
    /// How many nodes of the search tree the exact solver may visit in one epoch.
    #[serde(deserialize_with = "within::<1, 1_000_000, _, _>")]
    pub solver_nodes_max: u64,
    /// Whether replicas stop executing optimistically when most of it is in vain (§4).
    pub high_contention_mode: bool,
    /// The share of re-executed transactions above which that is so, in percent.
    #[serde(deserialize_with = "within::<1, 100, _, _>")]
    pub high_contention_percent: u64,
    /// For how long the share must be above it, in milliseconds.
    #[serde(deserialize_with = "within::<0, 600_000, _, _>")]
    pub high_contention_ms: u64,
    /// How long to stay before optimistic execution is tried again, in milliseconds. Doubled each
    /// time the trial fails, up to sixteen times this.
    #[serde(deserialize_with = "within::<1, 600_000, _, _>")]
    pub high_contention_hold_ms: u64,
    /// What read-only procedures see: the last epoch here, or everything acknowledged anywhere.
    pub reads: Reads,
    /// Beyond the paper: uncommitted local writes stay visible to local transactions across epoch
    /// boundaries, and a read of one is valid if exactly that writer committed as it was executed.
    /// Off: the temporary state is reset every epoch and such reads are stale (§3.2, §3.6).
    pub keep_uncommitted: bool,
    /// Beyond the paper: validation, graph and application use every worker of the pool.
    pub parallel_commit: bool,
    /// Beyond the paper: a batch is acknowledged to every replica, so that each sees availability
    /// for itself. Off: to the batch's source, which then broadcasts the proof (§3.3).
    pub ack_everyone: bool,
    /// Beyond the paper: in a cluster of one node, a procedure that tells its footprint goes
    /// straight to the ordered queue. An optimistic run gains time while the others are asked, and
    /// there are none. Off: it runs at once like any other, and its writes are validated and
    /// applied.
    pub lone_in_order: bool,
    /// Beyond the paper: the log does not keep what the ordered queue wrote, and a restart runs the
    /// queue again. What it would have to run again counts towards
    /// the next checkpoint as if it were in the log. Off: the log keeps it (§4), and a restart
    /// needs no code that was there before it.
    pub rerun_on_restart: bool,
    /// An epoch's ordered queue runs in slices of so many transactions, between which the node does
    /// what has arrived meanwhile.
    #[serde(deserialize_with = "slice_txns")]
    pub slice_txns: NonZeroUsize,
    /// A checkpoint is taken when the log has grown by this much since the last one, in bytes.
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
}

/// Checkpoints every few seconds.
pub(super) const TORTURE_SETTINGS: &[TortureSetting] = &[
    TortureSetting { key: "checkpoint_bytes", values: &["100000"] },
];

/// What a user may want otherwise; the other settings are for those who compare with the paper.
pub(super) const VARIANTS: &[Variant] = &[
    Variant { key: "reads", value: "strict", what: "reads see all that was acknowledged anywhere" },
    Variant { key: "solver", value: "greedy", what: "a good independent set, found sooner" },
    Variant { key: "epoch_ms", value: "5", what: "cuts three times as often" },
    Variant { key: "epoch_ms", value: "50", what: "cuts a third as often" },
];

/// The settings on which the outcome of an epoch depends. A cut names those of who proposed it: an
/// epoch that is decided before the settings change, and applied after, must not be applied by some
/// replicas under the old ones and by others under the new.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    solver: Solver,
    solver_nodes_max: u64,
    keep_uncommitted: bool,
    slice_txns: NonZeroUsize,
}

impl inputs::Rules for Rules {
    /// They were changed while an epoch that was proposed under the old ones had not been applied
    /// here.
    fn refuses(&self, epoch: SnapshotVersion, cut: &Self) -> Option<String> {
        (self != cut).then(|| {
            format!(
                "epoch {} was proposed under other settings than this node has, and must be \
                 applied under those: {cut:?}. Start all nodes with them, let all reach the same \
                 version, stop them, and change the settings then",
                epoch.0
            )
        })
    }
}

impl Default for Rules {
    fn default() -> Self {
        Options::default().rules()
    }
}

/// How the maximum weight independent set is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Solver {
    /// The heaviest set, by reductions and branch and bound.
    Exact,
    /// A good set, by a greedy heuristic.
    Greedy,
}

/// What a read that changes nothing sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The last epoch that this replica applied: serializable, and without waiting.
    Snapshot,
    /// Waits for a cut that was proposed after the read arrived: strictly serializable.
    Strict,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            epoch_ms: 15,
            batch_ms: 5,
            batch_bytes: 4 << 20,
            solver: Solver::Exact,
            solver_nodes_max: super::independent_set::BUDGET_NODES,
            high_contention_mode: true,
            high_contention_percent: 50,
            high_contention_ms: 200,
            high_contention_hold_ms: 1_000,
            reads: Reads::Snapshot,
            keep_uncommitted: true,
            parallel_commit: true,
            ack_everyone: true,
            lone_in_order: true,
            rerun_on_restart: false,
            slice_txns: NonZeroUsize::new(64).expect("64 is not zero"),
            checkpoint_bytes: 512 << 20,
            chunk_bytes: 1 << 19,
            removal_ms: 10_000,
            // Several seconds at the highest rates, and minutes at usual ones.
            behind_bytes: 256 << 20,
            // At one each 15 ms, eight minutes; a few megabytes.
            cuts_kept: 32_768,
        }
    }
}

impl Options {
    /// The paper's protocol, with nothing added.
    pub fn paper() -> Self {
        Self {
            keep_uncommitted: false,
            parallel_commit: false,
            ack_everyone: false,
            lone_in_order: false,
            ..Self::default()
        }
    }

    /// The defaults with limits that runs of seconds reach: see
    /// [`Protocol::scaled_down_options`](pangea_core::protocol::Protocol::scaled_down_options).
    pub fn scaled_down() -> Self {
        Self {
            checkpoint_bytes: 30_000,
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
        Self {
            epoch_ms: one_of(rng, &[5, 15, 15, 60]),
            batch_ms: one_of(rng, &[1, 5, 5, 20]),
            batch_bytes: one_of(rng, &[1_024, 4 << 20]),
            solver: if rng.u8(..4) > 0 { Solver::Exact } else { Solver::Greedy },
            solver_nodes_max: one_of(rng, &[1, super::independent_set::BUDGET_NODES]),
            high_contention_mode: rng.u8(..4) > 0,
            high_contention_percent: one_of(rng, &[1, 20, 50]),
            high_contention_ms: one_of(rng, &[0, 50, 200]),
            high_contention_hold_ms: one_of(rng, &[50, 1_000]),
            reads: if rng.bool() { Reads::Snapshot } else { Reads::Strict },
            keep_uncommitted: rng.u8(..4) > 0,
            parallel_commit: rng.bool(),
            ack_everyone: rng.u8(..4) > 0,
            slice_txns: slice,
            checkpoint_bytes: one_of(rng, &[10_000, 30_000, 300_000]),
            // Sixteen to a round trip, and TPC-C's tables must come over within seconds.
            chunk_bytes: one_of(rng, &[5_000, 20_000, 1 << 20]),
            removal_ms: one_of(rng, &[1_000, 2_000, 10_000]),
            cuts_kept: one_of(rng, &[5, 20, 32_768]),
            lone_in_order: rng.bool(),
            rerun_on_restart: rng.bool(),
            // Last: what is drawn before stays as it was.
            behind_bytes: one_of(rng, &[20_000, 256 << 20]),
        }
    }

    /// What the outcome of an epoch depends on.
    fn rules(&self) -> Rules {
        Rules {
            solver: self.solver,
            solver_nodes_max: self.solver_nodes_max,
            keep_uncommitted: self.keep_uncommitted,
            slice_txns: self.slice_txns,
        }
    }

    /// What of them the input log follows.
    pub(super) fn of_inputs(&self) -> Settings<Rules> {
        Settings {
            epoch: Span::from_ms(self.epoch_ms),
            ack_everyone: self.ack_everyone,
            checkpoint_bytes: self.checkpoint_bytes,
            checkpoints: When::Due,
            chunk_bytes: self.chunk_bytes,
            removal: Span::from_ms(self.removal_ms),
            behind_bytes: self.behind_bytes,
            cuts_kept: self.cuts_kept,
            master: None,
            rules: self.rules(),
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

    /// How long the first transaction of a batch waits at most.
    pub fn batch(&self) -> Span {
        Span::from_ms(self.batch_ms)
    }
}
