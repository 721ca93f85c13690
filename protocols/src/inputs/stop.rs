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
//!     | Stopping(is_settled: true)  --> |  enough replicas stay: goes on, and releases it at once
//!     |                                 |  else: waits until all that stop are settled, and
//!     |                                 |  then proposes no more
//!     | <------------- MayStop(n)       |  n is the last cut that it has proposed
//!     applies cut n, takes its checkpoint, ends
//! ```
//!
//! The replicas that stay, with those that stop and are not released, are a majority when a cut is
//! proposed. So it is decided before the last of them ends. A release is void in another term of
//! agreement: the new coordinator knows of the same stops, and decides itself. It releases nobody
//! before a majority has accepted its log, so that no cut of an earlier term can return.
//!
//! A replica that lacks its epochs, because it needs a checkpoint, votes as well. So it waits for
//! its release, but not for its transactions.
//!
//! Announcements can be lost with a connection. Therefore greetings contain them, with the life of
//! the sender: a release is forgotten when its receiver starts again.
//!
//! # Several shards
//!
//! Shards advance together: an epoch runs with the cuts of all, and each follows the others. So the
//! coordinators agree on the last epoch first, and nobody ends before all have applied it, unless
//! another shard does not stop for seconds:
//!
//! ```text
//!   coordinator of shard 0            coordinator of shard 1
//!     | sealed at epoch 7   ------->    |  begins no more epochs: follows, up to 7
//!     | <-------   sealed at epoch 7    |
//!     | applied 7, all nodes -------->  |
//!     | <------- applied 7, all nodes   |
//!     | MayStop(7), in its group        | MayStop(7), in its group
//! ```
//!
//! A shard whose others do not stop waits for them for seconds only.
//!
//! # Lost connections
//!
//! Without a majority no further cut can be decided, and without the nodes of another shard no
//! further epoch can be applied. A node waits for them for seconds, unless it knows that too many
//! have ended. If the whole cluster stops, the last coordinator has applied every decided cut,
//! unless it needs a checkpoint itself, and the others can take its checkpoint when they start.
//!
//! # The coordinator
//!
//! If enough replicas stay, a coordinator that is stopping leaves its place to one of them, so that
//! nobody waits for its absence to be noticed:
//!
//! ```text
//!   coordinator                       one that stays
//!     | TransferLeadership(term) ---->  |  campaigns
//!     | <------------- MayStop(n)       |
//! ```

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::cut::READMIT_EPOCHS_BEHIND_MAX;
use super::messages::Message;
use super::{Host, Inputs};
use crate::agreement::{Term, centrality};

/// The maximum number of checkpoints that a stop takes. The others continue, and if they have load,
/// each checkpoint is behind again when it is written.
const CHECKPOINTS_MAX: u32 = 2;

/// How long a node that is stopping waits for a majority and nodes of all shards to be connected,
/// and a coordinator for other shards to stop as well.
const PATIENCE: Span = Span::from_ms(3_000);

/// Whether a replica is stopping in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stopping {
    #[default]
    Stays = 0,
    /// It has transactions in flight.
    Unsettled = 1,
    /// No transaction of it is in flight, or it waits for none.
    Settled = 2,
    /// It takes its last checkpoint, and ends without waiting for others.
    Over = 3,
}

impl Stopping {
    pub(super) fn of(number: u8) -> Option<Self> {
        let all = [Self::Stays, Self::Unsettled, Self::Settled, Self::Over];
        all.into_iter().find(|it| *it as u8 == number)
    }
}

/// The stops in order of this replica and of its peers.
pub(crate) struct Stops {
    /// `Some` from the request on.
    own: Option<Stop>,
    peers: Vec<Peer>,
    /// `Some` if epochs run with the cuts of other logs.
    others: Option<OtherLogs>,
    /// Since when this coordinator begins no more epochs.
    sealed_since: Option<Timestamp>,
}

/// The logs of other shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherLogs {
    /// Whether a replica of each is connected, so that epochs can run.
    pub can_run: bool,
    /// The last epoch of any, if the coordinators of all begin no more epochs.
    pub sealed_at: Option<SnapshotVersion>,
    /// The last epoch that all connected replicas of these logs have applied.
    pub applied: SnapshotVersion,
}

/// The progress of this replica's stop: see [`Inputs::advance_stops`].
#[derive(Debug, Default)]
struct Stop {
    /// Whether no transaction of this replica is in flight. No new requests are accepted, so it
    /// remains true.
    is_settled: bool,
    /// Whether this replica can apply no epochs at present, and does not wait for its transactions.
    is_excused: bool,
    /// The coordinator's release: its term, and the last cut that it has proposed.
    released: Option<(Term, SnapshotVersion)>,
    /// Since when it has tried to.
    leaves_since: Option<Timestamp>,
    /// Since when too few are connected.
    alone_since: Option<Timestamp>,
    /// Whether this replica waits for nobody any more.
    is_over: bool,
    /// The number of checkpoints requested since.
    checkpoints: u32,
    /// Whether this node may end.
    may_end: bool,
    /// Whether it gave up waiting for others, and cuts that it knows of may be undecided.
    is_alone: bool,
}

/// What a peer has announced. It counts after the peer has ended, too, until it greets again.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    stopping: Stopping,
    /// The life of the peer, from its last greeting.
    incarnation: u64,
    /// The last term in which this replica, as the coordinator, has released the peer.
    released_in: Option<Term>,
    /// Whether it has said so since the last announcement.
    is_told: bool,
}

impl Stop {
    fn waits_for_none(&self) -> bool {
        self.is_settled || self.is_excused
    }
}

impl Stops {
    pub(super) fn new(node_count: usize) -> Self {
        let peers = vec![Peer::default(); node_count];
        Self { own: None, peers, others: None, sealed_since: None }
    }

    /// Whether this replica or a peer is stopping or has stopped.
    fn are_any(&self) -> bool {
        self.own.is_some() || self.peers.iter().any(|peer| peer.stopping != Stopping::Stays)
    }

    /// Whether a peer has announced that it is stopping.
    pub(crate) fn is_stopping(&self, peer: NodeId) -> bool {
        self.peers[peer.index()].stopping != Stopping::Stays
    }

    /// Whether this replica is stopping, for its peers.
    pub(super) fn own_stopping(&self) -> Stopping {
        match &self.own {
            None => Stopping::Stays,
            Some(Stop { is_over: true, .. }) => Stopping::Over,
            Some(stop) if stop.waits_for_none() => Stopping::Settled,
            Some(_) => Stopping::Unsettled,
        }
    }

    /// A peer has connected, and says whether it is stopping.
    pub(super) fn on_greeting(&mut self, from: NodeId, incarnation: u64, stopping: Stopping) {
        let peer = &mut self.peers[from.index()];
        if peer.incarnation != incarnation {
            (peer.incarnation, peer.released_in) = (incarnation, None);
        }
        (peer.stopping, peer.is_told) = (stopping, false);
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
        self.stops.own.as_ref().is_some_and(|stop| stop.may_end)
    }

    /// Whether this node gave up waiting for others, and cuts that it knows of may be undecided.
    pub(crate) fn ends_alone(&self) -> bool {
        self.stops.own.as_ref().is_some_and(|stop| stop.is_alone)
    }

    /// Whether this node was asked to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stops.own.is_some()
    }

    /// Tells the peers that this replica is stopping, if it is. An announcement can be lost with a
    /// connection, so it is repeated.
    pub(super) fn announce_stop(&self, cx: &mut Cx<'_, H>) {
        let stopping = self.stops.own_stopping();
        if stopping == Stopping::Stays {
            return;
        }
        let (is_settled, is_over) = (stopping != Stopping::Unsettled, stopping == Stopping::Over);
        for peer in self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]) {
            self.replica.send(cx, peer, Message::Stopping { is_settled, is_over });
        }
    }

    /// Handles the announcement of a peer.
    pub(super) fn on_stopping(&mut self, from: NodeId, is_settled: bool, is_over: bool) {
        let peer = &mut self.stops.peers[from.index()];
        peer.is_told = false;
        peer.stopping = match (is_settled, is_over) {
            (_, true) => Stopping::Over,
            (true, _) => Stopping::Settled,
            (false, _) => Stopping::Unsettled,
        };
    }

    /// Handles the release by the coordinator of a term.
    pub(super) fn on_may_stop(&mut self, term: Term, last: SnapshotVersion) {
        let Some(Stop { released, .. }) = &mut self.stops.own else { return };
        // Each release of a term is valid on its own, so the first is enough. One of an earlier
        // term comes from a coordinator that was deposed.
        if released.is_none_or(|(of, _)| of < term) {
            *released = Some((term, last));
        }
    }

    /// Whether the coordinator proposes no more cuts, because replicas stop and too few stay.
    fn is_sealed(&self) -> bool {
        if !self.stops.are_any() {
            return false;
        }
        let is_up = |peer: NodeId| self.replica.is_up[peer.index()];
        let are_ready = || self.are_stops_settled() || !self.are_enough_held(is_up);
        let is_over = self.stops.own_stopping() == Stopping::Over;
        !self.do_enough_stay() && (is_over || are_ready())
    }

    /// Whether the coordinator may propose a cut: it will be decided before too few replicas stay.
    pub(crate) fn may_propose(&self) -> bool {
        if !self.stops.are_any() {
            return true;
        }
        let votes = |peer| self.votes_for_this(peer);
        let may_begin = self.is_behind() || !self.is_sealed();
        may_begin && (self.do_enough_stay() || self.are_enough_held(votes))
    }

    /// The last epoch of this log, if this replica is the coordinator and begins no more epochs.
    pub(crate) fn sealed_at(&self) -> Option<SnapshotVersion> {
        (self.leads_surely() && self.is_sealed()).then(|| self.last_cut())
    }

    /// The last cut that this coordinator has proposed or found in its log.
    fn last_cut(&self) -> SnapshotVersion {
        self.last_epoch().max(SnapshotVersion(self.agreement().end()))
    }

    /// Whether all other logs end with the same epoch as this one, and their replicas have applied
    /// it; or whether they do not stop.
    fn are_others_ready(&self, now: Timestamp) -> bool {
        let Some(others) = self.stops.others else { return true };
        let last = self.last_cut();
        let do_end = others.sealed_at.is_some_and(|sealed| sealed <= last) && !self.is_behind();
        let has_waited = self.stops.sealed_since.is_some_and(|since| now.since(since) >= PATIENCE);
        has_waited || do_end && self.has_decided_all() && others.applied >= last
    }

    /// Whether a connected peer votes for this replica as the coordinator.
    fn votes_for_this(&self, peer: NodeId) -> bool {
        self.replica.is_up[peer.index()] && self.agreement().has_vote_of(peer)
    }

    /// The replicas that are not stopping and vote for this one, as the coordinator.
    fn staying(&self) -> impl Iterator<Item = NodeId> {
        self.replica.topology.node_ids().filter(|node| match *node == self.replica.me {
            true => !self.is_stopping(),
            false => self.votes_for_this(*node) && !self.stops.is_stopping(*node),
        })
    }

    /// Whether they are a majority.
    fn do_enough_stay(&self) -> bool {
        self.staying().count() >= self.replica.topology.majority()
    }

    /// Whether those of these peers that this replica, as the coordinator, has not released are a
    /// majority with it: they do not end before another cut is decided.
    fn are_enough_held(&self, is_it: impl Fn(NodeId) -> bool) -> bool {
        let term = self.agreement().term();
        let is_held = |peer: &NodeId| {
            is_it(*peer) && self.stops.peers[peer.index()].released_in != Some(term)
        };
        self.replica.peers().filter(is_held).count() + 1 >= self.replica.topology.majority()
    }

    /// Whether no connected replica that is stopping waits for a transaction.
    fn are_stops_settled(&self) -> bool {
        let own = self.stops.own.as_ref().is_none_or(Stop::waits_for_none);
        let is_settled = |peer: NodeId| {
            let stopping = self.stops.peers[peer.index()].stopping;
            !self.replica.is_up[peer.index()] || stopping != Stopping::Unsettled
        };
        own && self.replica.peers().all(is_settled)
    }

    /// Whether this replica is the coordinator, and no cut of an earlier term can return.
    fn leads_surely(&self) -> bool {
        let agreement = self.agreement();
        self.presence.is_ready && agreement.is_leader() && agreement.is_followed()
    }

    /// The coordinator releases the peers that are stopping, if it can do without them.
    fn release_stopping(&mut self, cx: &mut Cx<'_, H>) {
        let is_over = || self.is_sealed() && self.are_others_ready(cx.now.at);
        if !self.leads_surely() || !(self.do_enough_stay() || is_over()) {
            return;
        }
        let (term, last) = (self.agreement().term(), self.last_cut());
        for peer in self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]) {
            let stop = &mut self.stops.peers[peer.index()];
            if stop.stopping == Stopping::Stays {
                continue;
            }
            let is_new = stop.released_in.replace(term) != Some(term);
            let was_told = std::mem::replace(&mut stop.is_told, true);
            if is_new || !was_told {
                cx.mark("inputs.stop_released");
                self.replica.send(cx, peer, Message::MayStop { term, last });
            }
        }
    }

    /// A coordinator that is stopping leaves its place to a replica that stays, if enough do.
    fn leave_leadership(&mut self, cx: &mut Cx<'_, H>) {
        let Some(stop) = &self.stops.own else { return };
        if !self.presence.is_ready || !self.agreement().is_leader() || stop.may_end {
            return;
        }
        let is_done = stop.waits_for_none();
        let (heir, has_master) = (self.heir(), H::has_master(self));
        let Some(stop) = &mut self.stops.own else { return };
        let since = stop.leaves_since.unwrap_or(cx.now.at);
        stop.leaves_since = heir.map(|_| since);
        if has_master {
            return H::yield_mastership(self, cx, heir);
        }
        if let Some(heir) = heir.filter(|_| is_done) {
            self.leave_to(cx, heir);
        }
    }

    /// The replica that should lead in place of this one, if enough stay: not one that is far
    /// behind, if possible, and else the best placed.
    fn heir(&self) -> Option<NodeId> {
        let (topology, master) = (&self.replica.topology, H::preferred_master(self));
        let furthest = self.furthest();
        let rank = |node: &NodeId| {
            let behind = furthest.0.saturating_sub(self.collection.applied[node.index()].0);
            (behind <= READMIT_EPOCHS_BEHIND_MAX, centrality(*node, topology, master))
        };
        self.staying().max_by_key(rank).filter(|_| self.do_enough_stay())
    }

    /// Makes progress with stops. `is_settled` tells whether no transaction of this replica is in
    /// flight, and `is_running` whether an epoch is partly applied.
    pub(crate) fn advance_stops(
        &mut self,
        cx: &mut Cx<'_, H>,
        (is_settled, is_running): (bool, bool),
        others: Option<OtherLogs>,
    ) {
        if !self.stops.are_any() {
            return;
        }
        self.stops.others = others;
        let since = self.stops.sealed_since.unwrap_or(cx.now.at);
        self.stops.sealed_since = self.sealed_at().map(|_| since);
        let is_settled = is_settled && self.barriers.is_idle();
        let is_excused = !self.can_apply();
        let before = self.stops.own_stopping();
        if let Some(stop) = &mut self.stops.own {
            stop.is_settled |= is_settled;
            stop.is_excused = is_excused;
        }
        if self.stops.own_stopping() != before {
            self.announce_stop(cx);
        }
        self.leave_leadership(cx);
        // A coordinator that may end still releases the others, as long as it is there.
        self.release_stopping(cx);
        if !self.may_stop() {
            self.advance_own_stop(cx, is_running);
        }
    }

    fn advance_own_stop(&mut self, cx: &mut Cx<'_, H>, is_running: bool) {
        if self.checkpoints.is_writing() {
            return;
        }
        let can_apply = self.can_apply();
        let Some(stop) = &self.stops.own else { return };
        let is_ready = self.presence.is_ready;
        let may_end =
            is_ready && stop.waits_for_none() && self.is_released(stop, can_apply, cx.now.at);
        let is_idle = !can_apply || !is_running && self.is_caught_up();
        let has_failed = stop.checkpoints > 0 && self.checkpoints.rests;
        let is_last = stop.checkpoints == CHECKPOINTS_MAX;
        let (expects, is_patient) = match is_ready {
            true => self.expects_others(cx.now.at),
            false => (false, false),
        };
        if expects && !may_end || is_patient && !is_idle {
            return;
        }
        let is_sure = may_end || self.has_nothing_left() || !self.may_others_return();
        self.note_over(cx, is_ready && !is_sure);
        let is_covered = self.checkpoints.last == self.cut.confirmed.epoch
            && self.checkpoints.installed.is_none();
        // Without the state of agreement there is nothing to take a checkpoint of.
        let is_outside = !is_ready || self.is_rejoining();
        if is_outside || has_failed || is_covered || is_last {
            return self.end_stop(cx);
        }
        if let Some(stop) = &mut self.stops.own {
            stop.checkpoints += 1;
        }
        self.checkpoints.rests = false;
        cx.mark("inputs.stop_checkpoint");
        // It freezes nobody: no turn, and no point in the order, is waited for.
        self.start_checkpoint(cx);
    }

    fn note_over(&mut self, cx: &mut Cx<'_, H>, is_alone: bool) {
        let Some(stop) = &mut self.stops.own else { return };
        let was_over = std::mem::replace(&mut stop.is_over, true);
        // Once it was released, it may end, even if its coordinator ends first.
        stop.is_alone = is_alone && (stop.is_alone || !was_over);
        if !was_over {
            self.announce_stop(cx);
        }
    }

    fn end_stop(&mut self, cx: &mut Cx<'_, H>) {
        if let Some(stop) = &mut self.stops.own {
            cx.mark("inputs.stop_over");
            stop.may_end = true;
        }
    }

    /// Whether this replica coordinates, and waits for no cut and no transaction.
    fn has_nothing_left(&self) -> bool {
        let waits_for_none = self.stops.own.as_ref().is_some_and(Stop::waits_for_none);
        waits_for_none && self.agreement().is_leader() && self.has_decided_all()
    }

    /// Whether enough peers for more decisions have not said that they end. Those that have said so
    /// left nothing to decide.
    fn may_others_return(&self) -> bool {
        self.is_majority(|peer| self.stops.peers[peer.index()].stopping != Stopping::Over)
    }

    /// Whether these peers and this replica are a majority.
    fn is_majority(&self, is_it: impl Fn(NodeId) -> bool) -> bool {
        let count = self.replica.peers().filter(|peer| is_it(*peer)).count();
        count + 1 >= self.replica.topology.majority()
    }

    /// Whether more cuts can be decided and applied, because a majority and nodes of all shards are
    /// connected or may soon be, and whether it is too early to give up without them.
    fn expects_others(&mut self, now: Timestamp) -> (bool, bool) {
        let can_run = self.stops.others.is_none_or(|others| others.can_run);
        let is_up = |peer: NodeId| self.replica.is_up[peer.index()];
        let is_connected = can_run && self.is_majority(is_up);
        let is_possible = self.may_others_return();
        let leads = self.agreement().is_leader();
        let (has_decided_all, is_done) = (self.has_decided_all(), self.has_nothing_left());
        let Some(stop) = &mut self.stops.own else { return (false, false) };
        if is_connected && (is_possible || leads && !has_decided_all) {
            stop.alone_since = None;
            return (true, true);
        }
        let since = *stop.alone_since.get_or_insert(now);
        let is_patient = now.since(since) < PATIENCE;
        (is_possible && is_patient && !is_done, is_patient)
    }

    /// Whether every cut that this replica knows of is decided.
    fn has_decided_all(&self) -> bool {
        self.agreement().end() == self.last_decided().0 && !H::has_early_cuts(self)
    }

    /// Whether this replica can apply epochs. If not, it needs a peer's checkpoint or another
    /// program, and the next program can ask for it as well.
    fn can_apply(&self) -> bool {
        let is_stuck = self.cut.lacks_cuts() || self.is_refusing();
        self.presence.is_ready && !self.is_rejoining() && !is_stuck
    }

    /// Whether every cut that this replica knows to be decided is applied and confirmed.
    fn is_caught_up(&self) -> bool {
        let cut = &self.cut;
        let is_applied = cut.waiting.is_empty() && cut.confirmed.epoch == cut.applied;
        is_applied && H::last_early(self).is_none_or(|early| early <= cut.applied)
    }

    /// Whether the others can do without this replica: they decide without it, or there is nothing
    /// left to decide.
    fn is_released(&self, stop: &Stop, can_apply: bool, now: Timestamp) -> bool {
        let agreement = self.agreement();
        if agreement.is_leader() {
            // Those that stay should have another coordinator first.
            let since = stop.leaves_since.filter(|_| self.do_enough_stay());
            let has_tried = since.is_some_and(|since| now.since(since) >= PATIENCE);
            let has_ended = || self.is_sealed() && self.has_decided_all();
            let is_over = has_tried || has_ended() && self.are_others_ready(now);
            return self.leads_surely() && is_over;
        }
        let reached = match can_apply {
            true => self.cut.confirmed.epoch,
            false => SnapshotVersion(agreement.end()),
        };
        let is_valid =
            |(term, last): (Term, SnapshotVersion)| term == agreement.term() && last <= reached;
        stop.released.is_some_and(is_valid)
    }
}
