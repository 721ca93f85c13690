//! Stops in order: a last checkpoint, so that a program with other procedures can continue.
//!
//! The log of epochs can be replayed only by a program that gives them the same results. A
//! checkpoint can be read by any. A node that is asked to stop therefore
//!
//! ```text
//!   refuses new requests
//!        --> waits until its own transactions are decided and all decided cuts are applied
//!        --> takes a checkpoint
//!        --> takes another one if epochs were applied meanwhile
//!        --> may end
//! ```
//!
//! It continues to vote, to acknowledge and to propose until it ends. Without a majority no further
//! cut can be decided, and without the nodes of another shard no further epoch can be applied, so
//! it waits for none. If the whole cluster stops, the last coordinator has applied every decided
//! cut, and the others take its checkpoint when they start again.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;

use super::state::Stop;
use super::{Host, Inputs};

/// The maximum number of checkpoints that a stop takes. The others continue, and if they have load,
/// each checkpoint is behind again when it is written.
const CHECKPOINTS_MAX: u32 = 2;

impl<H: Host> Inputs<H> {
    /// Handles the request to stop in order. [`Self::may_stop`] tells when the node may end.
    pub(crate) fn on_stop(&mut self) {
        self.collection.stop.get_or_insert_default();
    }

    /// Whether a node that was asked to stop may end.
    pub(crate) fn may_stop(&self) -> bool {
        self.collection.stop.as_ref().is_some_and(|stop| stop.is_over)
    }

    /// Whether this node was asked to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.collection.stop.is_some()
    }

    /// Makes progress with a stop. `is_settled` tells whether the protocol has no transactions of
    /// its own in flight and no epoch that is partly applied, and `can_run` whether epochs can be
    /// applied with the nodes that are connected.
    pub(crate) fn advance_stop(&mut self, cx: &mut Cx<'_, H>, is_settled: bool, can_run: bool) {
        let Some(stop) = &self.collection.stop else { return };
        if stop.is_over || self.collection.writing.is_some() {
            return;
        }
        // Without the state of agreement there is nothing to take a checkpoint of.
        let is_outside = !self.presence.is_ready || self.is_rejoining();
        let is_covered = self.collection.last == self.cut.confirmed.epoch;
        let has_failed = self.collection.rests;
        if is_outside || has_failed || stop.checkpoints == CHECKPOINTS_MAX {
            return self.end_stop(cx);
        }
        let may_settle = self.can_decide() && can_run && !self.is_stuck();
        if may_settle && !(is_settled && self.is_caught_up()) {
            return;
        }
        if is_covered && self.cut.installed.is_none() {
            return self.end_stop(cx);
        }
        if let Some(stop) = &mut self.collection.stop {
            stop.checkpoints += 1;
        }
        cx.mark("inputs.stop_checkpoint");
        // It freezes nobody: no turn, and no point in the order, is waited for.
        self.start_checkpoint(cx);
    }

    fn end_stop(&mut self, cx: &mut Cx<'_, H>) {
        if let Some(stop) = &mut self.collection.stop {
            cx.mark("inputs.stop_over");
            *stop = Stop { is_over: true, ..*stop };
        }
    }

    /// Whether a majority is connected, so that more cuts can be decided.
    fn can_decide(&self) -> bool {
        let is_up = |node: &NodeId| self.replica.is_up[node.index()];
        let connected = self.replica.peers().filter(is_up).count();
        connected + 1 >= self.replica.topology.majority()
    }

    /// Whether this replica needs a peer's checkpoint, which the next program can ask for as well.
    fn is_stuck(&self) -> bool {
        self.cut.lacks_cuts() || self.is_refusing()
    }

    /// Whether every cut that this replica knows or has proposed is applied and confirmed.
    fn is_caught_up(&self) -> bool {
        let cut = &self.cut;
        let is_decided = cut.undecided() == 0 || !self.agreement().is_leader();
        let is_applied = cut.waiting.is_empty() && cut.confirmed.epoch == cut.applied;
        is_decided && is_applied && H::last_early(self).is_none_or(|early| early <= cut.applied)
    }
}
