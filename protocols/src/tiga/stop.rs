//! Stops in order: a last checkpoint, so that a program with other procedures can continue.
//!
//! ```text
//!   refuses new requests, and says that it is stopping
//!        --> another replica leads, if enough stay
//!        --> its own transactions are published
//!        --> enough stay, and know that it does not; or else the leader is sealed, and all have
//!            published the same
//!        --> takes a checkpoint; another one if cells were published meanwhile
//!        --> may end
//! ```
//!
//! Nodes may be asked to stop at the same time. Those that have not heard of each other all see
//! enough that stay. So one that leaves the log to those counts only replicas that have told both
//! that they know of its stop and that they stay. If one of them stops later, it does not count
//! this node. Of all nodes that leave so, the last one to be asked leaves behind a majority of each
//! shard that commits the rest: these replicas stop later, and by the other rule.
//!
//! If all nodes stop, no cell may remain that was not run: the next program could not run it
//! (`programs.rs`). So a leader is *sealed* as soon as too few stay to commit more: it orders
//! nothing more. With a fast path its followers then accept nothing in time, and it adds a cell
//! after all that they had accepted. Those that are stopping wait until all have published its log.
//! A node that hears nothing of the others waits for them for seconds only.
//!
//! With several shards, too few replicas of one of them are too few for all. A sealed leader still
//! orders what leaders of other shards have told it. When its own transactions are in its log it is
//! *quiet*, and when all leaders are quiet they have ended. A node that stops waits until the nodes
//! of all shards have published their logs, because they may need its rows.

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::Tiga;
use super::cells::{cell_of, end_of};
use super::state::State;

/// How long a node that is stopping waits for others, besides some of the longest round trips.
const PATIENCE: Span = Span::from_ms(3_000);

/// The number of these round trips: a view may have to begin first, and shards wait for each other.
const PATIENCE_ROUND_TRIPS: u64 = 8;

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

/// The replicas of a shard while some of them stop.
#[derive(Clone, Copy, Debug, Default)]
struct Attendance {
    replicas: usize,
    here: usize,
    staying: usize,
    /// Those of the staying ones that know of this node's stop.
    knowing: usize,
}

impl Attendance {
    fn majority(self) -> usize {
        self.replicas / 2 + 1
    }
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

    /// For each shard, how many of its replicas are here, and stay. Nodes of other shards that are
    /// not connected may be connected to their own.
    fn attendance(&self) -> Vec<Attendance> {
        let mut all = vec![Attendance::default(); usize::from(self.cluster.partitions.shards())];
        for node in self.cluster.voter_ids() {
            let shard = self.cluster.nodes[node.index()].shard;
            let is_here = match shard == self.shard {
                true => node == self.node || self.is_up[node.index()],
                false => !self.has_left[node.index()],
            };
            let of = &mut all[usize::from(shard.0)];
            of.replicas += 1;
            // One that waits for nobody takes part in nothing more.
            let is_here = is_here && (node == self.node || !self.told_by(node).kept.is_over);
            let is_staying = is_here && !self.is_stopping(node);
            let is_known = self.stop_known_by[node.index()] || !self.is_up[node.index()];
            of.here += usize::from(is_here);
            of.staying += usize::from(is_staying);
            of.knowing += usize::from(is_staying && is_known);
        }
        all
    }

    /// Whether this replica knows that a node is stopping, and takes part when that has left. One
    /// that does not count yet may leave at any time.
    pub(super) fn knows_stop_of(&self, node: NodeId) -> bool {
        let is_leaving = self.views.told[node.index()].is_leaving;
        is_leaving && self.presence.is_ready && self.is_whole()
    }

    fn is_stopping(&self, node: NodeId) -> bool {
        let is_leaving = self.views.told[node.index()].is_leaving;
        if node == self.node { self.stop.is_some() } else { is_leaving }
    }

    /// Whether the replicas of each shard that are not stopping are enough to go on.
    fn do_enough_stay(&self) -> bool {
        self.attendance().iter().all(|of| of.staying >= of.majority())
    }

    /// Whether this node can leave the log to those that stay.
    fn can_leave_it_to_others(&self) -> bool {
        self.attendance().iter().all(|of| of.knowing >= of.majority())
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
        let all = self.attendance();
        let is_short = all.iter().any(|of| of.staying < of.majority());
        let settled = |node: NodeId| match node == self.node {
            true => self.stop.is_some_and(|stop| stop.is_settled),
            false => self.views.told[node.index()].kept.is_settled,
        };
        let are_settled = || {
            let stopping = self.cluster.node_ids().filter(|node| self.is_stopping(*node));
            stopping.into_iter().all(settled)
        };
        // The others may have heard that it has ended, and be about to end themselves.
        let is_final = || self.has_ended() || all.iter().any(|of| of.here < of.majority());
        is_short && (is_final() || are_settled())
    }

    /// Notes since when this leader is sealed. The shard's clock reads `now`. Returns whether the
    /// others have to know at once how far its end is.
    pub(super) fn note_seal(&mut self, now: u64) -> bool {
        let before = (self.seal(), self.ending);
        let is_sealed = self.leading.is_some() && self.is_sealed();
        self.sealed_at = is_sealed.then(|| self.sealed_at.unwrap_or(now));
        let has_ended = self.has_ended();
        if let Some(leading) = &mut self.leading {
            leading.has_ended = has_ended;
        }
        self.ending = (self.is_quiet(), has_ended);
        (self.seal(), self.ending) != before
    }

    /// Since when this leader is sealed, or what its leader has told; 0 if it is not.
    pub(super) fn seal(&self) -> u64 {
        match (self.leading.is_some(), self.leader()) {
            (true, _) => self.sealed_at.unwrap_or(0),
            (false, Some(leader)) if self.is_normal() => self.views.told[leader.index()].kept.seal,
            (false, _) => 0,
        }
    }

    /// The last cell for which transactions are in time here that are not in the log.
    pub(super) fn last_accepted(&self) -> SnapshotVersion {
        let last = || self.fast.unsynced().last().map(|entry| cell_of(entry.stamp));
        if self.seal() == 0 { SnapshotVersion::ZERO } else { last().unwrap_or_default() }
    }

    /// Whether the log of a sealed leader has a cell after everything that a follower has accepted
    /// in time before it knew: the next leader recovers none of it.
    pub(super) fn is_closed(&self) -> bool {
        let Some(sealed_at) = self.sealed_at else { return false };
        let last = self.log.last_version();
        let has_closed = |peer: NodeId| {
            let told = self.views.told_by(&self.replica, peer).kept;
            match self.replica.is_up[peer.index()] {
                true => told.seal == sealed_at && told.accepted <= last,
                false => end_of(last) > sealed_at + Span::from_ms(self.options.future_max_ms).us,
            }
        };
        !self.is_fast_view() || self.replica.voting_peers().all(has_closed)
    }

    /// Whether this replica is a sealed leader all of whose transactions are in the log.
    pub(super) fn is_quiet(&self) -> bool {
        let is_idle = self.leading.as_ref().is_some_and(|leading| leading.is_idle());
        is_idle && self.sealed_at.is_some() && self.is_closed()
    }

    /// Whether this replica is a sealed leader that adds nothing more to the log: those of other
    /// shards have told that they have no transaction either.
    ///
    /// A transaction that still comes would have been accepted by another leader before that was
    /// sealed. It is quiet only with the transaction in its log, for which it has waited for the
    /// word of this one.
    pub(super) fn has_ended(&self) -> bool {
        let number = self.views.view.number;
        let is_quiet = |leader: &NodeId| {
            let told = self.views.told[leader.index()];
            *leader == self.node || told.kept.is_quiet && told.view == number
        };
        let has_told = self.leading.as_ref().is_some_and(|leading| leading.has_ended);
        let are_quiet = || self.views.view.leaders.iter().all(is_quiet);
        self.is_quiet() && (has_told || are_quiet())
    }

    /// Whether the leaders add nothing more to the logs, and all connected nodes have published all
    /// of them.
    fn is_all_published(&self) -> bool {
        let published = self.commit.published;
        let told = |node: NodeId| self.views.told[node.index()];
        let is_up = |node: &NodeId| self.is_up[node.index()];
        // One that has left may have led until another view began, of which this node has not
        // heard. So it must have told that it adds nothing more.
        let number = self.views.view.number;
        let has_ended = |leader: &NodeId| match *leader == self.node {
            true => self.has_ended(),
            false => told(*leader).kept.is_sealed && told(*leader).view == number,
        };
        let have_ended = self.views.view.leaders.iter().all(has_ended);
        let shard = |node: NodeId| self.cluster.nodes[node.index()].shard;
        let last_of = |of: ShardId| {
            let up = self.cluster.node_ids().filter(|node| shard(*node) == of && is_up(node));
            let last = up.map(|node| told(node).last.1).max().unwrap_or_default();
            if of == self.shard { last.max(published) } else { last }
        };
        let has_all = |of: ShardId, node: NodeId| {
            let (told, last) = (told(node), last_of(of));
            told.last.1 == last && told.kept.published == last
        };
        let have_all = |of: ShardId| {
            let mut up = self.cluster.node_ids().filter(|node| shard(*node) == of && is_up(node));
            up.all(|node| has_all(of, node))
        };
        let shards = || (0..self.cluster.partitions.shards()).map(ShardId);
        let is_here = self.incoming.is_empty() && published == self.log.last();
        let is_here = is_here && published == last_of(self.shard);
        have_ended && is_here && shards().all(have_all)
    }

    /// Whether its log has cells that were not published here.
    fn has_unpublished(&self) -> bool {
        self.commit.published < self.log.last()
    }

    /// Whether this replica waits for nobody. `is_late` is whether it has waited for long enough.
    fn may_leave(&self, stop: &Stop, is_late: bool) -> bool {
        // One that has just started may have cells that only this program can run.
        let is_not_ready = !self.presence.is_ready && !self.has_unpublished();
        let is_outside = is_not_ready || !self.is_whole() || self.is_refusing;
        let can_go = match self.do_enough_stay() {
            true => self.can_leave_it_to_others() && self.is_led(),
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
        let round_trips = PATIENCE_ROUND_TRIPS * self.state.cluster.round_trip_max().us;
        let is_late = cx.now.at.since(stop.since).us >= PATIENCE.us + round_trips;
        let may_leave = self.state.may_leave(&stop, is_late);
        if may_leave {
            let is_done = self.state.can_leave_it_to_others() || self.state.is_all_published();
            let is_part = self.state.presence.is_ready || self.state.has_unpublished();
            let is_alone = is_part && !is_done;
            self.state.stop = Some(Stop { is_over: true, is_alone, ..stop });
            // The others may wait for this replica's last report.
            self.send_progress(cx);
        }
        may_leave
    }
}
