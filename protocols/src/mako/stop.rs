//! Stops in order: another replica leads, and this one takes a last checkpoint.
//!
//! ```text
//!   refuses new requests, and says that it is stopping
//!        --> another replica leads, if enough stay
//!        --> its own clients are answered, and so are those of others that are stopping
//!        --> takes a checkpoint
//!        --> may end
//! ```
//!
//! The log has results, and not programs: the next program continues with whatever is in it. A node
//! that hears nothing of the others waits for them for seconds only.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::Mako;
use super::state::{Role, State};

/// How long a node that is stopping waits for others, besides some of the longest round trips.
const PATIENCE: Span = Span::from_ms(3_000);

/// The number of these round trips: an epoch may have to begin first.
const PATIENCE_ROUND_TRIPS: u64 = 8;

/// The maximum number of checkpoints that a stop takes. The others continue, and if they have load,
/// each checkpoint is behind again when it is written.
const CHECKPOINTS_MAX: u32 = 2;

/// The progress of this replica's stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    since: Timestamp,
    /// Whether it waits for nobody any more.
    is_over: bool,
    /// The number of its checkpoints.
    checkpoints: u32,
    /// Whether this node may end.
    pub may_end: bool,
}

impl State {
    /// Whether the voters that are connected and not stopping are enough to go on.
    fn do_enough_stay(&self) -> bool {
        let stays = |node: &NodeId| {
            let is_leaving = self.epochs.told[node.index()].flags.is_leaving;
            *node != self.replica.me && self.replica.is_up[node.index()] && !is_leaving
        };
        let count = self.replica.topology.voter_ids().filter(stays).count();
        count >= self.replica.topology.majority()
    }

    /// Whether all connected nodes have answered their clients.
    fn are_others_settled(&self) -> bool {
        let up = self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]);
        let mut told = up.map(|peer| self.epochs.told[peer.index()].flags);
        told.all(|flags| flags.is_settled)
    }

    /// Whether this replica waits for nobody.
    fn may_leave(&self, is_late: bool) -> bool {
        let leads = !matches!(self.role, Role::Following);
        let can_go = match self.do_enough_stay() {
            true => !leads,
            false => !leads || self.are_others_settled(),
        };
        !self.presence.is_ready || is_late || self.is_settled() && can_go
    }
}

impl Mako {
    /// Handles the request to stop in order: new requests are refused, and the manager lets another
    /// replica lead.
    pub(super) fn on_stop(&mut self, cx: &mut Cx<'_, Self>) {
        let since = cx.now.at;
        let stop = Stop { since, is_over: false, checkpoints: 0, may_end: false };
        self.state.stop.get_or_insert(stop);
        self.give_up_moves(cx);
        self.send_progress(cx);
    }

    /// Makes progress with the stop of this replica.
    pub(super) fn advance_stop(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(stop) = self.state.stop else { return };
        if stop.may_end || self.state.checkpoints.is_writing() {
            return;
        }
        let round_trips = PATIENCE_ROUND_TRIPS * self.state.replica.topology.round_trip_max().us;
        let is_late = cx.now.at.since(stop.since).us >= PATIENCE.us + round_trips;
        if !stop.is_over && !self.state.may_leave(is_late) {
            return;
        }
        let published = cx.store.published();
        let is_outside = !self.state.presence.is_ready || published.0 == 0;
        let State { checkpoints, stop, .. } = &mut self.state;
        let Some(stop) = stop else { return };
        stop.is_over = true;
        let is_covered = checkpoints.last == published && checkpoints.installed.is_none();
        let has_failed = stop.checkpoints > 0 && checkpoints.rests;
        if is_outside || is_covered || has_failed || stop.checkpoints == CHECKPOINTS_MAX {
            cx.mark("mako.stop_over");
            stop.may_end = true;
            return;
        }
        stop.checkpoints += 1;
        checkpoints.rests = false;
        self.start_checkpoint(cx);
    }
}
