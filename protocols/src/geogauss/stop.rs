//! Stops in order: the others go on at once, and a last checkpoint lets any program continue.
//!
//! ```text
//!   stopping node                        leader
//!     | refuses new requests
//!     | Stopping(is_settled: false) --->   |
//!     | its transactions are decided
//!     | Stopping(is_settled: true)  --->   |  enough members stay: removes it
//!     | <--------------- a view without it |
//!     | merges nothing more, takes a checkpoint, ends
//! ```
//!
//! If too few members stay, because all nodes are stopped, nobody is removed. A node then ends when
//! all connected peers are settled, and have merged the same as it: nothing is left that one of
//! them lacks, and that a program with other procedures would refuse (`rules.rs`). It gives up
//! after some seconds.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::GeoGauss;
use super::messages::Message;
use super::state::State;

/// How long a node that is stopping waits for others.
const PATIENCE: Span = Span::from_ms(3_000);

/// The maximum number of checkpoints that a stop takes.
const CHECKPOINTS_MAX: u32 = 2;

/// Whether a replica is stopping in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stopping {
    #[default]
    Stays,
    /// It has transactions in flight.
    Unsettled,
    /// No transaction of it is in flight.
    Settled,
}

/// The stops in order of this replica and of its peers.
pub(super) struct Stops {
    /// `Some` from the request on.
    own: Option<Stop>,
    /// What each peer has announced. It counts after the peer has ended, too, until it connects
    /// again.
    peers: Vec<Stopping>,
}

/// The progress of this replica's stop.
#[derive(Debug)]
struct Stop {
    /// Since when it waits for others.
    since: Timestamp,
    /// Whether no transaction of this replica is in flight.
    is_settled: bool,
    /// Whether this replica waits for nobody any more, and merges nothing more.
    is_over: bool,
    /// The number of checkpoints requested since.
    checkpoints: u32,
    /// Whether this node may end.
    may_end: bool,
    /// Whether it gave up waiting, and epochs are not merged.
    is_alone: bool,
}

impl Stops {
    pub(super) fn new(node_count: usize) -> Self {
        Self { own: None, peers: vec![Stopping::Stays; node_count] }
    }

    /// Whether this node was asked to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.own.is_some()
    }

    /// Whether this replica merges nothing more, because it takes its last checkpoint.
    pub(super) fn is_over(&self) -> bool {
        self.own.as_ref().is_some_and(|stop| stop.is_over)
    }

    /// Whether a node that was asked to stop may end.
    pub(super) fn may_stop(&self) -> bool {
        self.own.as_ref().is_some_and(|stop| stop.may_end)
    }

    /// Whether this node gave up waiting for others, and epochs are not merged.
    pub(super) fn ends_alone(&self) -> bool {
        self.own.as_ref().is_some_and(|stop| stop.is_alone)
    }

    /// A peer has connected: it may have started anew.
    pub(super) fn forget(&mut self, peer: NodeId) {
        self.peers[peer.index()] = Stopping::Stays;
    }

    /// A peer is stopping.
    pub(super) fn on_stopping(&mut self, from: NodeId, is_settled: bool) {
        let stopping = if is_settled { Stopping::Settled } else { Stopping::Unsettled };
        self.peers[from.index()] = stopping;
    }
}

impl State {
    /// Whether a replica is stopping.
    pub(super) fn is_stopping(&self, node: NodeId) -> bool {
        match node == self.me() {
            true => self.stops.is_stopping(),
            false => self.stops.peers[node.index()] != Stopping::Stays,
        }
    }

    /// Whether a replica is stopping, and no transaction of it is in flight.
    pub(super) fn is_leaving(&self, node: NodeId) -> bool {
        match node == self.me() {
            true => self.stops.own.as_ref().is_some_and(|stop| stop.is_settled),
            false => self.stops.peers[node.index()] == Stopping::Settled,
        }
    }

    /// Whether the connected members that are not stopping are enough to go on.
    pub(super) fn do_enough_stay(&self) -> bool {
        let is_here = |node: &NodeId| *node == self.me() || self.replica.is_up[node.index()];
        let members = self.membership.view.members();
        let staying = members.filter(|node| is_here(node) && !self.is_stopping(*node)).count();
        staying >= self.replica.topology.majority()
    }

    /// Whether no transaction of this replica is in flight.
    fn is_settled(&self) -> bool {
        let execution = &self.execution;
        execution.queue.is_empty() && execution.in_flight.is_empty() && self.fresh.is_idle()
    }

    /// Whether all connected peers are about to end, and nothing is left that one of them lacks.
    fn is_all_merged(&self) -> bool {
        let is_up = |peer: &NodeId| self.replica.is_up[peer.index()];
        let mut peers = self.replica.peers().filter(is_up);
        self.has_merged_all()
            && peers.all(|peer| {
                self.stops.peers[peer.index()] == Stopping::Settled
                    && self.streams.applied[peer.index()] == self.confirmed().heads
            })
    }

    /// Whether this replica waits for nobody: the others can do without it, or nothing is left to
    /// do. `is_late` is whether it has waited for long enough.
    fn may_leave(&self, is_late: bool) -> bool {
        let is_outside = !self.presence.is_ready || self.is_rejoining() || self.is_refusing();
        let is_removed = !self.has_life();
        is_outside
            || is_late
            || self.stops.own.as_ref().is_some_and(|stop| stop.is_settled)
                && (is_removed || !self.do_enough_stay() && self.is_all_merged())
    }
}

impl GeoGauss {
    /// Handles the request to stop in order.
    pub(super) fn on_stop(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.stops.own.is_none() {
            self.state.stops.own = Some(Stop {
                since: cx.now.at,
                is_settled: false,
                is_over: false,
                checkpoints: 0,
                may_end: false,
                is_alone: false,
            });
            self.announce_stop(cx);
        }
    }

    /// Tells the peers that this replica is stopping, if it is. An announcement can be lost with a
    /// connection, so it is repeated.
    pub(super) fn announce_stop(&self, cx: &mut Cx<'_, Self>) {
        let State { stops, replica, .. } = &self.state;
        let Some(Stop { is_settled, .. }) = stops.own else { return };
        for peer in replica.peers().filter(|peer| replica.is_up[peer.index()]) {
            replica.send(cx, peer, Message::Stopping { is_settled });
        }
    }

    /// Makes progress with the stop of this replica.
    pub(super) fn advance_stop(&mut self, cx: &mut Cx<'_, Self>) {
        let is_settled = self.state.is_settled();
        let Some(stop) = &mut self.state.stops.own else { return };
        if stop.may_end || self.state.checkpoints.is_writing() {
            return;
        }
        if is_settled && !stop.is_settled {
            (stop.is_settled, stop.since) = (true, cx.now.at);
            // A peer that is idle may have ended the last epoch without having heard of it. It ends
            // when it has merged the same as all that are settled.
            self.send_progress(cx);
            self.announce_stop(cx);
        }
        if !self.state.stops.is_over() && !self.leave_if_possible(cx) {
            return;
        }
        let confirmed = self.state.confirmed().epoch;
        let State { checkpoints, presence, stops, target, .. } = &mut self.state;
        let Some(stop) = &mut stops.own else { return };
        let is_covered = checkpoints.last == confirmed && checkpoints.installed.is_none();
        let has_failed = stop.checkpoints > 0 && checkpoints.rests;
        // Without the state of agreement there is nothing to take a checkpoint of.
        let is_outside = !presence.is_ready || target.is_some() || confirmed.0 == 0;
        if is_outside || is_covered || has_failed || stop.checkpoints == CHECKPOINTS_MAX {
            cx.mark("geogauss.stop_over");
            stop.may_end = true;
            return;
        }
        stop.checkpoints += 1;
        checkpoints.rests = false;
        self.start_checkpoint(cx);
    }

    /// Stops to wait for others, if this replica need not. Returns whether it does.
    fn leave_if_possible(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        let since = self.state.stops.own.as_ref().map_or(cx.now.at, |stop| stop.since);
        let is_late = cx.now.at.since(since) >= PATIENCE;
        let may_leave = self.state.may_leave(is_late);
        if may_leave {
            let is_alone = self.state.presence.is_ready && !self.state.has_merged_all();
            let is_alone = is_alone && self.state.has_life();
            if let Some(stop) = &mut self.state.stops.own {
                (stop.is_over, stop.is_alone) = (true, is_alone);
            }
            // The others may wait for this replica's last report.
            self.send_progress(cx);
        }
        may_leave
    }
}
