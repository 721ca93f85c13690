//! Stops in order: a last checkpoint, so that a program with other procedures can continue.
//!
//! ```text
//!   refuses new requests, and says that it is stopping
//!        --> another replica leads, if enough stay
//!        --> its own transactions are published
//!        --> enough stay; or else the leader is sealed, and all have published the same
//!        --> takes a checkpoint; another one if cells were published meanwhile
//!        --> may end
//! ```
//!
//! If all nodes stop, no cell may remain that was not run: the next program could not run it
//! (`programs.rs`). So a leader is *sealed* as soon as too few stay to commit more: it orders
//! nothing more. With a fast path it still adds a cell after all that followers may have accepted
//! in time. Those that are stopping wait until all have published its log. A node that hears
//! nothing of the others waits for them for seconds only.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::Tiga;
use super::cells::end_of;
use super::state::State;

/// How long a node that is stopping waits for others.
const PATIENCE: Span = Span::from_ms(3_000);

/// The maximum number of checkpoints that a stop takes. The others continue, and if they have load,
/// each checkpoint is behind again when it is written.
const CHECKPOINTS_MAX: u32 = 2;

/// The progress of this replica's stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    /// Since when it waits for its own transactions, or else for others.
    since: Timestamp,
    /// Whether none of its transactions is in flight.
    pub is_settled: bool,
    /// Whether it waits for nobody any more.
    pub is_over: bool,
    /// The number of its checkpoints.
    checkpoints: u32,
    /// Whether it ends although others may need it.
    pub is_alone: bool,
    /// Whether this node may end.
    pub may_end: bool,
}

impl State {
    /// Whether no transaction of this replica is in flight or unpublished, and no read waits.
    fn is_settled(&self) -> bool {
        self.coordinator.in_flight.is_empty()
            && self.coordinator.unsettled.is_empty()
            && self.waiting_reads.is_empty()
            && self.shards.as_ref().is_none_or(|shards| shards.lookups.len() == 0)
            && self.fresh.is_idle()
    }

    /// Whether the connected replicas that are not stopping are enough to go on.
    fn do_enough_stay(&self) -> bool {
        let stays = |peer: &NodeId| {
            self.replica.is_up[peer.index()] && !self.views.told_by(&self.replica, *peer).is_leaving
        };
        let staying = self.replica.peers().filter(stays).count();
        staying >= self.replica.topology.majority()
    }

    /// Whether another replica leads.
    fn is_led(&self) -> bool {
        let is_leading = |leader: NodeId| {
            let told = self.views.told[leader.index()];
            let is_here = leader != self.node && self.is_up[leader.index()];
            is_here && told.leads && told.view == self.views.view.number
        };
        self.leader().is_some_and(is_leading)
    }

    /// Whether this replica, as the leader, orders nothing more: too few others are there or stay
    /// to commit it, and those that are stopping wait for no transaction.
    pub(super) fn is_sealed(&self) -> bool {
        let stopping = |node: NodeId| match node == self.replica.me {
            true => self.stop.map(|stop| stop.is_settled),
            false => {
                let told = self.views.told_by(&self.replica, node);
                told.is_leaving.then_some(told.kept.is_settled)
            }
        };
        let is_here = |node: &NodeId| *node == self.replica.me || self.replica.is_up[node.index()];
        let here = || self.replica.topology.node_ids().filter(is_here);
        let staying = here().filter(|node| stopping(*node).is_none()).count();
        let majority = self.replica.topology.majority();
        let are_settled = || here().filter_map(stopping).all(|is_settled| is_settled);
        // The others may have heard that it has ended, and be about to end themselves.
        let is_final = || self.has_ended() || here().count() < majority || are_settled();
        staying < majority && is_final()
    }

    /// Notes since when this leader is sealed. The shard's clock reads `now`.
    pub(super) fn note_seal(&mut self, now: u64) {
        let is_sealed = self.leading.is_some() && self.is_sealed();
        self.sealed_at = is_sealed.then(|| self.sealed_at.unwrap_or(now));
    }

    /// Whether the log of a sealed leader has a cell after everything that a follower may have
    /// accepted in time before it knew: the next leader recovers none of it.
    pub(super) fn is_closed(&self) -> bool {
        let future = Span::from_ms(self.options.future_max_ms);
        let is_over = |at: u64| end_of(self.log.last_version()) > at + future.us;
        !self.has_fast_path() || self.sealed_at.is_some_and(is_over)
    }

    /// Whether this replica is a sealed leader that adds nothing more to the log.
    pub(super) fn has_ended(&self) -> bool {
        let is_idle = self.leading.as_ref().is_some_and(|leading| leading.is_idle());
        is_idle && self.sealed_at.is_some() && self.is_closed()
    }

    /// Whether the leader adds nothing more to the log, and all connected replicas have published
    /// all of it.
    fn is_all_published(&self) -> bool {
        let published = self.commit.published;
        let up = || self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]);
        let told = |peer: NodeId| self.views.told_by(&self.replica, peer);
        let leader = self.leader().and_then(|node| self.replica.group.member(node));
        let has_ended = match leader {
            Some(leader) if leader == self.replica.me => self.has_ended(),
            Some(leader) => !up().any(|peer| peer == leader) || told(leader).kept.is_sealed,
            None => true,
        };
        let has_same =
            |peer: NodeId| told(peer).last.1 == published && told(peer).kept.published == published;
        has_ended && self.incoming.is_empty() && published == self.log.last() && up().all(has_same)
    }

    /// Whether this replica waits for nobody. `is_late` is whether it has waited for long enough.
    fn may_leave(&self, stop: &Stop, is_late: bool) -> bool {
        let is_outside = !self.presence.is_ready || !self.is_whole() || self.is_refusing;
        let can_go = match self.do_enough_stay() {
            true => self.is_led(),
            false => self.is_all_published(),
        };
        is_outside || is_late || stop.is_settled && can_go
    }
}

impl Tiga {
    /// Handles the request to stop in order: new requests are refused, and the view manager lets
    /// another replica lead.
    pub(super) fn on_stop(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.stop.is_none() {
            self.state.stop = Some(Stop {
                since: cx.now.at,
                is_settled: false,
                is_over: false,
                checkpoints: 0,
                is_alone: false,
                may_end: false,
            });
            self.send_progress(cx);
        }
    }

    /// Makes progress with the stop of this replica.
    pub(super) fn advance_stop(&mut self, cx: &mut Cx<'_, Self>) {
        let is_settled = self.state.is_settled();
        let Some(stop) = &mut self.state.stop else { return };
        if stop.may_end || self.state.checkpoints.is_writing() {
            return;
        }
        if is_settled && !stop.is_settled {
            (stop.is_settled, stop.since) = (true, cx.now.at);
            self.send_progress(cx);
        }
        if !self.leave_if_possible(cx) {
            return;
        }
        let published = cx.store.published();
        let is_outside = !self.state.presence.is_ready || published.0 == 0;
        let State { checkpoints, stop, .. } = &mut self.state;
        let Some(stop) = stop else { return };
        let is_covered = checkpoints.last == published && checkpoints.installed.is_none();
        let has_failed = stop.checkpoints > 0 && checkpoints.rests;
        if is_outside || is_covered || has_failed || stop.checkpoints == CHECKPOINTS_MAX {
            cx.mark("tiga.stop_over");
            stop.may_end = true;
            return;
        }
        stop.checkpoints += 1;
        checkpoints.rests = false;
        self.start_checkpoint(cx);
    }

    /// Stops to wait for others, if this replica need not. Returns whether it does not wait.
    fn leave_if_possible(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        let Some(stop) = self.state.stop else { return false };
        if stop.is_over {
            return true;
        }
        let is_late = cx.now.at.since(stop.since) >= PATIENCE;
        let may_leave = self.state.may_leave(&stop, is_late);
        if may_leave {
            let is_done = self.state.do_enough_stay() || self.state.is_all_published();
            let is_alone = self.state.presence.is_ready && !is_done;
            self.state.stop = Some(Stop { is_over: true, is_alone, ..stop });
            // The others may wait for this replica's last report.
            self.send_progress(cx);
        }
        may_leave
    }
}
