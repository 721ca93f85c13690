//! Stops in order: a last checkpoint, so that a program with other procedures can continue.
//!
//! The log of epochs can be replayed only by a program that gives them the same results. A
//! checkpoint can be read by any. A node that is asked to stop therefore
//!
//! ```text
//!   refuses new requests, and announces the stop
//!        --> waits until its own transactions are decided, the coordinator has released it, and
//!            all decided cuts are applied
//!        --> takes a checkpoint
//!        --> takes another one if epochs were applied meanwhile
//!        --> may end
//! ```
//!
//! It continues to vote, to acknowledge and to propose until it ends.
//!
//! # The last cut
//!
//! If all nodes stop, no cut may remain that was proposed and not decided. The next program would
//! decide it, but could not run it. Therefore the coordinator knows who stops:
//!
//! ```text
//!   stopping node                     coordinator
//!     | Stopping(is_settled: false) --> |
//!     | Stopping(is_settled: true)  --> |  enough replicas stay: continues
//!     |                                 |  else: waits until all that stop are settled, and
//!     |                                 |  then proposes no more
//!     | <------------- MayStop(n)       |  n is the last cut that it has proposed
//!     applies cut n, takes its checkpoint, ends
//! ```
//!
//! The replicas that stay, with those that stop and are not released, are a majority when a cut is
//! proposed. So it is decided before the last of them ends, unless a connection is lost meanwhile
//! or one of them rejoins or needs a checkpoint. A release is void in another term of agreement:
//! the new coordinator knows of the same stops, and decides itself.
//!
//! This does not hold over several shards, which advance together: a shard must propose epochs that
//! the others wait for.
//!
//! Without a majority no further cut can be decided, and without the nodes of another shard no
//! further epoch can be applied, so a node waits for none. If the whole cluster stops, the last
//! coordinator has applied every decided cut, and the others take its checkpoint when they start
//! again.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;

use super::messages::Message;
use super::{Host, Inputs};
use crate::agreement::Term;

/// The maximum number of checkpoints that a stop takes. The others continue, and if they have load,
/// each checkpoint is behind again when it is written.
const CHECKPOINTS_MAX: u32 = 2;

/// The stops in order of this replica and of its peers.
pub(crate) struct Stops {
    /// `Some` from the request on.
    own: Option<Stop>,
    /// The stop that each peer has announced. It counts after the peer has ended, too, until the
    /// peer connects again.
    peers: Vec<Option<PeerStop>>,
}

/// The progress of this replica's stop: see [`Inputs::advance_stop`].
#[derive(Debug, Default)]
struct Stop {
    /// Whether no transaction of this replica is in flight.
    is_settled: bool,
    /// The coordinator's release: its term, and the last cut that it has proposed.
    released: Option<(Term, SnapshotVersion)>,
    /// The number of checkpoints requested since.
    checkpoints: u32,
    /// Whether this node may end.
    is_over: bool,
}

/// A peer's stop.
#[derive(Clone, Copy, Debug)]
struct PeerStop {
    /// Whether no transaction of the peer is in flight.
    is_settled: bool,
    /// The last term in which this replica, as the coordinator, has released the peer.
    released_in: Option<Term>,
    /// Whether it has said so since the last announcement.
    is_told: bool,
}

impl Stops {
    pub(super) fn new(node_count: usize) -> Self {
        Self { own: None, peers: vec![None; node_count] }
    }

    /// Whether this replica or a peer is stopping or has stopped.
    fn are_any(&self) -> bool {
        self.own.is_some() || self.peers.iter().any(Option::is_some)
    }

    /// Whether a peer has announced that it is stopping.
    pub(crate) fn is_stopping(&self, peer: NodeId) -> bool {
        self.peers[peer.index()].is_some()
    }

    /// A peer has connected: it stays, unless it announces otherwise.
    pub(super) fn on_peer_up(&mut self, peer: NodeId) {
        self.peers[peer.index()] = None;
    }

    /// The whole state, for the exhaustive search.
    #[cfg(test)]
    pub(crate) fn described(&self) -> String {
        format!("{:?} {:?}", self.own, self.peers)
    }
}

impl<H: Host> Inputs<H> {
    /// Handles the request to stop in order. [`Self::may_stop`] tells when the node may end.
    pub(crate) fn on_stop(&mut self, cx: &mut Cx<'_, H>) {
        if self.stops.own.is_none() {
            self.stops.own = Some(Stop::default());
            self.announce_stop(cx);
        }
    }

    /// Whether a node that was asked to stop may end.
    pub(crate) fn may_stop(&self) -> bool {
        self.stops.own.as_ref().is_some_and(|stop| stop.is_over)
    }

    /// Whether this node was asked to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stops.own.is_some()
    }

    /// Tells the peers that this replica is stopping, if it is. An announcement can be lost with a
    /// connection, so it is repeated.
    pub(super) fn announce_stop(&self, cx: &mut Cx<'_, H>) {
        let Some(stop) = &self.stops.own else { return };
        for peer in self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]) {
            let message = Message::Stopping { is_settled: stop.is_settled };
            self.replica.send(cx, peer, message);
        }
    }

    /// Handles the announcement of a peer.
    pub(super) fn on_stopping(&mut self, from: NodeId, is_settled: bool) {
        let stop = &mut self.stops.peers[from.index()];
        let released_in = stop.and_then(|stop| stop.released_in);
        *stop = Some(PeerStop { is_settled, released_in, is_told: false });
    }

    /// Handles the release by the coordinator of a term.
    pub(super) fn on_may_stop(&mut self, term: Term, last: SnapshotVersion) {
        let Some(stop) = &mut self.stops.own else { return };
        // Each release of a term is valid on its own, so the earliest cut is enough. One of an
        // earlier term comes from a coordinator that was deposed.
        stop.released = match stop.released {
            Some(later) if later.0 > term => Some(later),
            Some((same, earlier)) if same == term => Some((term, earlier.min(last))),
            _ => Some((term, last)),
        };
    }

    /// Whether the coordinator proposes no more cuts, because replicas stop and too few stay.
    pub(crate) fn is_sealed(&self) -> bool {
        self.stops.are_any()
            && !H::has_other_logs(self)
            && !self.do_enough_stay()
            && (self.are_stops_settled() || !self.are_enough_held())
    }

    /// Whether the connected replicas that are not stopping are a majority.
    fn do_enough_stay(&self) -> bool {
        let stays = |node: &NodeId| match *node == self.replica.me {
            true => !self.is_stopping(),
            false => self.replica.is_up[node.index()] && self.stops.peers[node.index()].is_none(),
        };
        let topology = &self.replica.topology;
        topology.node_ids().filter(stays).count() >= topology.majority()
    }

    /// Whether the connected replicas that this one, as the coordinator, has not released are a
    /// majority with it: they do not end before another cut is decided.
    fn are_enough_held(&self) -> bool {
        let term = self.agreement().term();
        let is_held = |peer: &NodeId| {
            let stop = self.stops.peers[peer.index()];
            let is_released = stop.is_some_and(|stop| stop.released_in == Some(term));
            self.replica.is_up[peer.index()] && !is_released
        };
        self.replica.peers().filter(is_held).count() + 1 >= self.replica.topology.majority()
    }

    /// Whether no connected replica that is stopping has a transaction in flight.
    fn are_stops_settled(&self) -> bool {
        let own = self.stops.own.as_ref().is_none_or(|stop| stop.is_settled);
        let is_settled = |peer: NodeId| {
            let stop = self.stops.peers[peer.index()];
            !self.replica.is_up[peer.index()] || stop.is_none_or(|stop| stop.is_settled)
        };
        own && self.replica.peers().all(is_settled)
    }

    /// The coordinator releases the peers that are stopping, if it can do without them.
    fn release_stopping(&mut self, cx: &mut Cx<'_, H>) {
        let leads = self.presence.is_ready && self.agreement().is_leader();
        if !leads || !(self.do_enough_stay() || self.is_sealed()) {
            return;
        }
        let agreement = self.agreement();
        let (term, end) = (agreement.term(), SnapshotVersion(agreement.end()));
        let last = self.last_epoch().max(end);
        for peer in self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]) {
            let Some(stop) = &mut self.stops.peers[peer.index()] else { continue };
            let is_new = stop.released_in.replace(term) != Some(term);
            let was_told = std::mem::replace(&mut stop.is_told, true);
            if is_new || !was_told {
                cx.mark("inputs.stop_released");
                self.replica.send(cx, peer, Message::MayStop { term, last });
            }
        }
    }

    /// Makes progress with stops. `is_settled` tells whether no transaction of this replica is in
    /// flight, `is_running` whether an epoch is partly applied, and `can_run` whether epochs can be
    /// applied with the nodes that are connected.
    pub(crate) fn advance_stops(
        &mut self,
        cx: &mut Cx<'_, H>,
        is_settled: bool,
        (is_running, can_run): (bool, bool),
    ) {
        if !self.stops.are_any() {
            return;
        }
        if let Some(stop) = &mut self.stops.own {
            // No new requests are accepted, so it remains true.
            let is_new = !stop.is_settled && is_settled && self.barriers.is_idle();
            stop.is_settled |= is_new;
            if is_new {
                self.announce_stop(cx);
            }
        }
        // A coordinator that may end still releases the others, as long as it is there.
        self.release_stopping(cx);
        if !self.may_stop() {
            self.advance_own_stop(cx, is_running, can_run);
        }
    }

    fn advance_own_stop(&mut self, cx: &mut Cx<'_, H>, is_running: bool, can_run: bool) {
        let Some(stop) = &self.stops.own else { return };
        if self.collection.writing.is_some() {
            return;
        }
        // Without the state of agreement there is nothing to take a checkpoint of.
        let is_outside = !self.presence.is_ready || self.is_rejoining();
        let is_covered = self.collection.last == self.cut.confirmed.epoch;
        let has_failed = self.collection.rests;
        let may_settle = !is_outside && self.can_decide() && can_run && !self.is_stuck();
        let is_idle = stop.is_settled && !is_running && self.is_caught_up();
        if may_settle && !(is_idle && self.is_released(stop)) {
            return;
        }
        let is_covered = is_covered && self.cut.installed.is_none();
        if is_outside || has_failed || is_covered || stop.checkpoints == CHECKPOINTS_MAX {
            return self.end_stop(cx);
        }
        if let Some(stop) = &mut self.stops.own {
            stop.checkpoints += 1;
        }
        cx.mark("inputs.stop_checkpoint");
        // It freezes nobody: no turn, and no point in the order, is waited for.
        self.start_checkpoint(cx);
    }

    fn end_stop(&mut self, cx: &mut Cx<'_, H>) {
        if let Some(stop) = &mut self.stops.own {
            cx.mark("inputs.stop_over");
            stop.is_over = true;
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

    /// Whether every cut that this replica knows to be decided is applied and confirmed.
    fn is_caught_up(&self) -> bool {
        let cut = &self.cut;
        let is_applied = cut.waiting.is_empty() && cut.confirmed.epoch == cut.applied;
        is_applied && H::last_early(self).is_none_or(|early| early <= cut.applied)
    }

    /// Whether the others can do without this replica: they decide without it, or there is nothing
    /// left to decide.
    fn is_released(&self, stop: &Stop) -> bool {
        if H::has_other_logs(self) {
            return self.cut.undecided() == 0 || !self.agreement().is_leader();
        }
        let agreement = self.agreement();
        if agreement.is_leader() {
            let is_decided = agreement.end() == self.last_decided().0;
            return self.do_enough_stay() || self.is_sealed() && is_decided;
        }
        let is_reached = |(term, last): (Term, SnapshotVersion)| {
            term == agreement.term() && last <= self.cut.confirmed.epoch
        };
        stop.released.is_some_and(is_reached)
    }
}
