//! The protocol above the input log: its types, and the rules that it adds to the cuts.

use std::fmt::Debug;

use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::protocol::{Cx, Protocol};
use pangea_core::txn::CodeDigest;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::recovery::ProtocolRecord;
use super::{Configuration, Cut, Inputs, Message, RejoinState, Timer};
use crate::{presence, streams, transfer};

/// A protocol whose inputs are ordered by this module.
///
/// The functions are rules that a protocol may add to the cuts. Without them each cut is proposed
/// by the leader of agreement, runs when it is decided, and a checkpoint is taken when it is due.
pub(crate) trait Host:
    Protocol<Message: From<Message>, Timer: From<Timer>>
    + streams::Host
    + presence::Host<Memory = RejoinState<Self::Rules>>
    + transfer::Host<Configuration = Configuration>
{
    /// The settings, besides the batches, on which the outcome of an epoch depends. A cut contains
    /// those of its proposer, so that no replica applies it under different ones.
    type Rules: Rules;

    /// The state that the functions below keep in the input log; `()` without any.
    type Extension: Send;

    /// Whether the transactions of a batch between the heads of a cut are in its epoch.
    fn is_in(_cut: &Cut<Self::Rules>, _batch: &Self::Batch) -> bool {
        true
    }

    /// Whether nothing but another program can help this replica if it refuses an epoch. Then it
    /// stops at once.
    fn is_alone(log: &Inputs<Self>) -> bool {
        log.replica.topology.node_count() == 1
    }

    // --- Early cuts: those that a master has fixed, and runs before they are decided. -----------

    /// The replica that should lead agreement, if not any replica may.
    fn preferred_master(_log: &Inputs<Self>) -> Option<NodeId> {
        None
    }

    /// Whether a master fixes cuts before it proposes them.
    fn has_master(_log: &Inputs<Self>) -> bool {
        false
    }

    /// A master that is stopping should leave its place to `heir`, or stay without one.
    fn yield_mastership(_log: &mut Inputs<Self>, _cx: &Cx<'_, Self>, _heir: Option<NodeId>) {}

    /// Whether there are early cuts that are not confirmed.
    fn has_early_cuts(_log: &Inputs<Self>) -> bool {
        false
    }

    /// The master's part of the epoch timer: fixes a cut if there is something new, and proposes
    /// those that can be proposed.
    fn lead(_log: &mut Inputs<Self>, _cx: &mut Cx<'_, Self>) {}

    /// The last epoch whose cut this replica has fixed.
    fn last_early(_log: &Inputs<Self>) -> Option<SnapshotVersion> {
        None
    }

    /// The last epoch whose transactions this replica may have acknowledged before it was decided.
    fn last_acknowledged(_log: &Inputs<Self>) -> Option<SnapshotVersion> {
        None
    }

    /// The early cut of an epoch, if it may run and all of its batches are on this replica.
    fn early_cut(_log: &mut Inputs<Self>, _epoch: SnapshotVersion) -> Option<Cut<Self::Rules>> {
        None
    }

    /// A cut is decided. Returns whether it is the early cut of its epoch: then the log is not to
    /// queue it.
    fn is_decided_early(
        _log: &mut Inputs<Self>,
        _cx: &mut Cx<'_, Self>,
        _epoch: SnapshotVersion,
        _cut: &Cut<Self::Rules>,
    ) -> bool {
        false
    }

    /// Cuts were decided that this replica can't learn any more.
    fn on_skipped(_log: &mut Inputs<Self>, _cx: &mut Cx<'_, Self>) {}

    /// The first record that a checkpoint does not replace.
    fn first_needed(_log: &Inputs<Self>) -> Option<LogPosition> {
        None
    }

    /// The numbers of transactions that a replica without its disk has to skip, because it may have
    /// used them.
    fn numbers_skipped(_log: &Inputs<Self>) -> u64 {
        0
    }

    // --- Events. ---------------------------------------------------------------------------------

    /// This replica has started. `found` are the protocol's records of the log, in order.
    fn on_started(_log: &mut Inputs<Self>, _cx: &mut Cx<'_, Self>, _found: Vec<ProtocolRecord>) {}

    /// The clock of agreement ticks.
    fn on_tick(_log: &mut Inputs<Self>, _cx: &mut Cx<'_, Self>) {}

    /// This replica has sent its progress to its peers.
    fn on_progress_sent(_log: &mut Inputs<Self>, _cx: &mut Cx<'_, Self>) {}

    /// A peer has connected.
    fn on_peer_up(_log: &mut Inputs<Self>, _peer: NodeId) {}

    /// A decided cut is to be queued: it is not an early one.
    fn on_decided(
        _log: &mut Inputs<Self>,
        _cx: &mut Cx<'_, Self>,
        _epoch: SnapshotVersion,
        _cut: &Cut<Self::Rules>,
    ) {
    }

    /// An epoch was applied.
    fn on_applied(
        _log: &mut Inputs<Self>,
        _cx: &mut Cx<'_, Self>,
        _epoch: SnapshotVersion,
        _cut: &Cut<Self::Rules>,
    ) {
    }

    /// An epoch was confirmed.
    fn on_confirmed(
        _log: &mut Inputs<Self>,
        _cx: &mut Cx<'_, Self>,
        _epoch: SnapshotVersion,
        _cut: &Cut<Self::Rules>,
    ) {
    }

    /// A peer's checkpoint was installed.
    fn on_installed(_log: &mut Inputs<Self>, _cx: &mut Cx<'_, Self>) {}

    // --- Checkpoints. ----------------------------------------------------------------------------

    /// The replica that the next cut should name as the holder of the checkpoint turn.
    fn next_turn(_log: &mut Inputs<Self>, _cx: &mut Cx<'_, Self>) -> Option<NodeId> {
        None
    }

    /// Whether a cut with this holder would change the checkpoint turn.
    fn is_turn_news(_log: &Inputs<Self>, _turn: Option<NodeId>) -> bool {
        false
    }

    /// A cut with this holder of the checkpoint turn was proposed.
    fn on_turn_proposed(_log: &mut Inputs<Self>, _turn: Option<NodeId>) {}

    /// Whether a checkpoint that is due may be taken at the applied epoch.
    fn may_checkpoint(_log: &Inputs<Self>, _cx: &mut Cx<'_, Self>) -> bool {
        true
    }

    /// A checkpoint of the applied epoch was requested.
    fn on_checkpoint_begun(_log: &mut Inputs<Self>, _cx: &mut Cx<'_, Self>) {}

    /// The checkpoint is durable or has failed.
    fn on_checkpoint_ended(_log: &mut Inputs<Self>) {}

    /// Asserts the invariants of the extension that hold between any two steps.
    fn check_extension(_log: &Inputs<Self>) {}
}

/// The rules that cuts are proposed under: settings that determine the outcome of an epoch.
pub trait Rules:
    Clone + Debug + Default + PartialEq + Send + Serialize + DeserializeOwned + 'static
{
    /// The code of the procedures. A node with other code would compute another result.
    fn code(&self) -> CodeDigest;

    /// Returns why a node with these settings can't apply an epoch whose cut was proposed under the
    /// settings of `cut`, and how to fix it. Returns `None` if it can. Code is compared separately.
    fn refuses(&self, epoch: SnapshotVersion, cut: &Self) -> Option<String>;
}
