//! Settings. They must be the same on every replica of a cluster, because decisions depend on them.

use std::num::NonZeroUsize;

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::SnapshotVersion;
use pangea_core::time::Span;
use pangea_core::txn::CodeDigest;
use serde::{Deserialize, Serialize};

use crate::inputs::{self, Settings, SkippedEpochs, slice_txns, within};

/// Minerva's settings, with the paper's values as defaults (§5.1), and switches for extensions of
/// the paper, with the better value as default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The interval at which the coordinator proposes cuts, in milliseconds.
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub epoch_ms: u64,
    /// The time after its first transaction at which a batch is sent, in milliseconds.
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub batch_ms: u64,
    /// The size at which a batch is sent, in bytes.
    #[serde(deserialize_with = "within::<1_024, 16_777_216, _, _>")]
    pub batch_bytes: usize,
    /// The algorithm for the independent set.
    pub solver: Solver,
    /// The number of nodes of the search tree that the exact solver may visit in one epoch.
    #[serde(deserialize_with = "within::<1, 1_000_000, _, _>")]
    pub solver_nodes_max: u64,
    /// The number of conflicts in one epoch that a key may have for each access to it. The
    /// independent set is searched without the losers of a key with more.
    #[serde(deserialize_with = "within::<1, 1_000_000, _, _>")]
    pub conflicts_max: u64,
    /// Whether replicas stop optimistic execution when most of it is wasted (§4).
    pub high_contention_mode: bool,
    /// The percentage of re-executed transactions above which it counts as wasted.
    #[serde(deserialize_with = "within::<1, 100, _, _>")]
    pub high_contention_percent: u64,
    /// The time for which the percentage must be above it, in milliseconds.
    #[serde(deserialize_with = "within::<0, 600_000, _, _>")]
    pub high_contention_ms: u64,
    /// The time after which optimistic execution is tried again, in milliseconds. Doubled each time
    /// the trial fails, up to sixteen times this.
    #[serde(deserialize_with = "within::<1, 600_000, _, _>")]
    pub high_contention_hold_ms: u64,
    /// The state that read-only procedures see: the last epoch on this node, or everything
    /// acknowledged anywhere.
    pub reads: Reads,
    /// An extension of the paper: uncommitted local writes remain visible to local transactions
    /// across epoch boundaries, and a read of one is valid if exactly that writer committed as
    /// executed. Off: the temporary state is reset every epoch and such reads are stale (§3.2,
    /// §3.6).
    pub keep_uncommitted: bool,
    /// An extension of the paper: validation, graph and application use every worker of the pool.
    pub parallel_commit: bool,
    /// An extension of the paper: a batch is acknowledged to every replica, so that each computes
    /// availability independently. Off: to the batch's source, which then broadcasts the proof
    /// (§3.3).
    pub ack_everyone: bool,
    /// An extension of the paper: in a cluster of one node, a procedure that declares its footprint
    /// goes straight to the ordered queue. An optimistic run gains time during the round trip to
    /// the other replicas, and there are none. Off: it runs at once like any other, and its writes
    /// are validated and applied.
    pub lone_in_order: bool,
    /// An extension of the paper: the log does not contain the writes of the ordered queue, and a
    /// restart re-executes it. The bytes that it would have to re-execute count towards the next
    /// checkpoint as if they were in the log. Off: the log contains them (§4), and a restart does
    /// not depend on code that was there before it.
    pub rerun_on_restart: bool,
    /// The number of transactions of an epoch's ordered queue that run at a time. In between, the
    /// node handles inputs that have arrived.
    #[serde(deserialize_with = "slice_txns")]
    pub slice_txns: NonZeroUsize,
    /// A checkpoint is taken when the log has grown by this number of bytes since the last one.
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
}

/// Checkpoints every few seconds.
pub(super) const TORTURE_SETTINGS: &[TortureSetting] =
    &[TortureSetting { key: "checkpoint_bytes", values: &["100000"] }];

/// Settings that a user may want to change; the others are for comparisons with the paper.
pub(super) const VARIANTS: &[Variant] = &[
    Variant { key: "reads", value: "strict", what: "reads see everything acknowledged anywhere" },
    Variant { key: "solver", value: "greedy", what: "a good independent set, computed faster" },
    Variant { key: "epoch_ms", value: "5", what: "cuts three times as often" },
    Variant { key: "epoch_ms", value: "50", what: "cuts a third as often" },
];

/// The settings on which the outcome of an epoch depends. A cut contains those of its proposer.
/// Otherwise an epoch decided before the settings change, and applied after, would be applied by
/// some replicas under the old ones and by others under the new ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    solver: Solver,
    solver_nodes_max: u64,
    conflicts_max: u64,
    keep_uncommitted: bool,
    slice_txns: NonZeroUsize,
    code: CodeDigest,
}

impl inputs::Rules for Rules {
    fn code(&self) -> CodeDigest {
        self.code
    }

    /// Refuses if the settings were changed before an epoch proposed under the old ones was applied
    /// on this node.
    fn refuses(&self, epoch: SnapshotVersion, cut: &Self) -> Option<String> {
        let is_same = *self == Self { code: self.code, ..cut.clone() };
        (!is_same).then(|| {
            format!(
                "epoch {} was proposed under settings that differ from this node's, and must be \
                 applied under those: {cut:?}. Start all nodes with these settings, let all nodes \
                 reach the same version, and stop them before you change the settings",
                epoch.0
            )
        })
    }
}

impl Default for Rules {
    fn default() -> Self {
        Options::default().rules(CodeDigest::default())
    }
}

/// The algorithm for the maximum weight independent set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Solver {
    /// The heaviest set, by reductions and branch and bound.
    Exact,
    /// A good set, by a greedy heuristic.
    Greedy,
}

/// The state that a read-only transaction sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The last epoch that this replica applied: serializable, without waiting.
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
            conflicts_max: super::conflict_graph::CONFLICTS_MAX,
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
            slice_txns: NonZeroUsize::new(64).expect("64 is nonzero"),
            checkpoint_bytes: 512 << 20,
            chunk_bytes: 1 << 19,
            removal_ms: 10_000,
            // Several seconds of batches at the highest rates, and minutes at usual ones.
            behind_bytes: 256 << 20,
            // Eight minutes with one cut every 15 ms; a few megabytes.
            cuts_kept: 32_768,
            skip_epochs: SkippedEpochs::default(),
        }
    }
}

impl Options {
    /// The paper's protocol, without extensions.
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
            // Sixteen chunks are sent in a round trip, and TPC-C's tables must be transferred
            // within seconds.
            chunk_bytes: one_of(rng, &[5_000, 20_000, 1 << 20]),
            removal_ms: one_of(rng, &[1_000, 2_000, 10_000]),
            cuts_kept: one_of(rng, &[5, 20, 32_768]),
            lone_in_order: rng.bool(),
            rerun_on_restart: rng.bool(),
            // Drawn last, so that the draws before stay the same.
            behind_bytes: one_of(rng, &[20_000, 256 << 20]),
            conflicts_max: one_of(rng, &[1, super::conflict_graph::CONFLICTS_MAX]),
            skip_epochs: SkippedEpochs::default(),
        }
    }

    /// The settings on which the outcome of an epoch depends, and the code of the procedures.
    fn rules(&self, code: CodeDigest) -> Rules {
        Rules {
            solver: self.solver,
            solver_nodes_max: self.solver_nodes_max,
            conflicts_max: self.conflicts_max,
            keep_uncommitted: self.keep_uncommitted,
            slice_txns: self.slice_txns,
            code,
        }
    }

    /// The settings of the input log, for procedures with this code.
    pub(super) fn of_inputs(&self, code: CodeDigest) -> Settings<Rules> {
        Settings {
            epoch: Span::from_ms(self.epoch_ms),
            ack_everyone: self.ack_everyone,
            checkpoint_bytes: self.checkpoint_bytes,
            chunk_bytes: self.chunk_bytes,
            removal: Span::from_ms(self.removal_ms),
            behind_bytes: self.behind_bytes,
            cuts_kept: self.cuts_kept,
            skipped: self.skip_epochs,
            rules: self.rules(code),
        }
    }

    /// Transactions that write are strictly serializable. Those that only read are as well with
    /// strict reads; otherwise they see an earlier state.
    pub(super) fn guarantee(&self) -> Guarantee {
        match self.reads {
            Reads::Strict => Guarantee::StrictSerializable,
            Reads::Snapshot => Guarantee::Serializable,
        }
    }

    /// The maximum time that the first transaction of a batch waits.
    pub fn batch(&self) -> Span {
        Span::from_ms(self.batch_ms)
    }
}
