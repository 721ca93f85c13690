//! The configuration manager: replaces a leader that has failed (§5.2).
//!
//! ```text
//!   manager                       voters                         leader of epoch 2
//!     | agreement: epoch 2 -----> | take part in no earlier one
//!     |                           | Report 2, which log ------> | takes the best log
//!     |                           | <--------------------- Append, all of it
//!     |                           | Ack ----------------------> | a majority has it
//!     | <----------------------------------- Progress: closed --|
//!     | agreement: closed ------------------------------------> | executes transactions
//! ```
//!
//! The leader of agreement is the manager. It chooses the replica with the best log of those that
//! are heard, and then the first one, so that leaders are in the first region (§4.1). If some nodes
//! do not hear the leader, it prefers the replicas with the most links (`links.rs`).

use std::cmp::Reverse;
use std::sync::Arc;

use pangea_core::ids::{NodeId, ShardId};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};
use pangea_core::topology::Topology;

use super::epochs::{Decided, Leadership};
use super::progress::PeerState;
use super::state::State;
use super::versions::{COUNT_ENOUGH, EPOCH_MAX, Epoch, count_of, epoch_of};
use super::{Mako, Timer};
use crate::agreement::TICK;

/// A leader has this multiple of the time of a suspicion to close the log, and some of the longest
/// round trips. Both are doubled with each epoch that did not begin.
const CLOSING_TIMES: u64 = 3;

/// The number of these round trips.
const CLOSING_ROUND_TRIPS: u64 = 8;

/// An epoch is short if it ends before this multiple of the time of a suspicion.
const SHORT_TIMES: u64 = 8;

/// After this number of short epochs in a row the time of a suspicion doubles with each one.
const SHORT_MAX: u32 = 3;

/// The maximum number of doublings.
const DOUBLINGS_MAX: u32 = 4;

impl State {
    /// How long a node may be silent. If epochs are short, nodes are too busy to be heard in time:
    /// otherwise leaders would change without end.
    pub(super) fn patience(&self) -> Span {
        let us = self.options.failure(self.replica.topology.round_trip_max()).us;
        let doublings = self.epochs.short.saturating_sub(SHORT_MAX).min(DOUBLINGS_MAX);
        Span::from_us(us << doublings)
    }

    /// Notes that an epoch has ended.
    pub(super) fn note_length(&mut self, now: Timestamp) {
        let us = self.options.failure(self.replica.topology.round_trip_max()).us;
        let is_short = now.since(self.epochs.since).us < SHORT_TIMES * us;
        self.epochs.short = if is_short { self.epochs.short + 1 } else { 0 };
    }

    /// The clock of agreement ticks. If that is late, this node did not run for a while: the others
    /// were not silent in that time.
    fn note_tick(&mut self, now: Timestamp) {
        let late = now.since(self.epochs.ticked_at).us.saturating_sub(2 * TICK.us);
        self.epochs.ticked_at = now;
        if late == 0 {
            return;
        }
        let others = self.shards.iter_mut().flat_map(|shards| shards.others.values_mut());
        let heard = others.map(|other| &mut other.heard_at);
        for heard in self.epochs.heard_at.iter_mut().chain(heard) {
            *heard = (*heard + Span::from_us(late)).min(now);
        }
    }

    /// Whether a node was heard lately. A connection that is lost may be back soon.
    pub(super) fn is_heard(&self, node: NodeId, now: Timestamp) -> bool {
        let patience = self.patience();
        let is_recent = now.since(self.epochs.heard_at[node.index()]).us < patience.us;
        node == self.replica.me || is_recent
    }

    /// The nodes that this one does not hear.
    pub(super) fn unheard(&self, now: Timestamp) -> Vec<NodeId> {
        self.replica.peers().filter(|peer| !self.is_heard(*peer, now)).collect()
    }

    /// Whether the leader takes too long to close the log.
    pub(super) fn is_stuck(&self, now: Timestamp) -> bool {
        let epochs = &self.epochs;
        let (has_begun, since) = match &self.shards {
            Some(shards) => (shards.config.begun == shards.config.number, shards.since),
            None => (epochs.begun == epochs.current.number, epochs.since),
        };
        let round_trip = self.replica.topology.round_trip_max();
        let us = CLOSING_TIMES * self.options.failure(round_trip).us
            + CLOSING_ROUND_TRIPS * round_trip.us;
        let patience = us << epochs.failures.min(DOUBLINGS_MAX);
        !has_begun && now.since(since).us >= patience
    }

    /// What this node knows of the replicas of its shard.
    pub(super) fn view(&self, now: Timestamp) -> View {
        let me = self.replica.me;
        let nodes: Vec<NodeId> = self.replica.topology.node_ids().collect();
        let told = |node: &NodeId| match *node == me {
            true => self.told(self.unheard(now)),
            false => self.epochs.told[node.index()].clone(),
        };
        let is_up = |node: &NodeId| *node == me || self.replica.is_up[node.index()];
        let Leadership { number, .. } = self.epochs.current;
        View {
            topology: self.replica.topology.clone(),
            number,
            counted: self.epoch(),
            leader: self.leader(),
            has_begun: self.epochs.begun == number,
            is_stuck: self.is_stuck(now),
            // Managers are of the first shard.
            is_outdone: self.is_outdone(ShardId(0), now),
            told: nodes.iter().map(told).collect(),
            heard: nodes.iter().map(|node| self.is_heard(*node, now)).collect(),
            up: nodes.iter().map(is_up).collect(),
        }
    }
}

/// What a manager knows of the replicas of a shard.
pub(super) struct View {
    pub topology: Arc<Topology>,
    /// The epoch since which the leader leads.
    pub number: Epoch,
    /// The last epoch, in whose versions leaders count.
    pub counted: Epoch,
    /// Its leader of the shard.
    pub leader: Option<NodeId>,
    /// Whether it has begun.
    pub has_begun: bool,
    /// Whether the leader takes too long to close the log.
    pub is_stuck: bool,
    /// Whether another replica has had more links than the leader for long.
    pub is_outdone: bool,
    /// The last report of each replica.
    pub told: Vec<PeerState>,
    /// Whether each replica was heard lately.
    pub heard: Vec<bool>,
    /// Whether each replica is connected.
    pub up: Vec<bool>,
}

impl View {
    pub fn told_by(&self, node: NodeId) -> &PeerState {
        &self.told[node.index()]
    }

    pub fn is_heard(&self, node: NodeId) -> bool {
        self.heard[node.index()]
    }

    /// Whether a replica and enough others hear each other, as far as they have told.
    fn can_be_followed(&self, node: NodeId) -> bool {
        let told = self.told_by(node);
        let hears = |other: NodeId| {
            let is_deaf = self.is_heard(other) && self.told_by(other).deaf_to.contains(&node);
            other == node || !told.deaf_to.contains(&other) && !is_deaf
        };
        let count = self.topology.voter_ids().filter(|other| hears(*other)).count();
        count >= self.topology.majority()
    }

    /// Whether another epoch has to begin.
    pub(super) fn is_epoch_due(&self) -> bool {
        let Some(leader) = self.leader else { return true };
        let (number, told) = (self.number, self.told_by(leader));
        // It does not know which entries it had sent before it restarted.
        let has_restarted =
            told.leadership.number == number && !told.flags.leads && !told.flags.is_closing;
        // A replica that lost its disk counts again in the next epoch.
        let is_awaited = |node: NodeId| {
            let replaced_after = self.told_by(node).replaced_after;
            self.is_heard(node) && replaced_after.is_some_and(|after| after >= number)
        };
        !self.is_heard(leader)
            || has_restarted
            || told.flags.is_leaving
            || self.is_stuck
            || !self.can_be_followed(leader)
            || self.is_outdone
            || epoch_of(told.rank.1) == self.counted && count_of(told.rank.1) >= COUNT_ENOUGH
            || self.has_begun && self.topology.voter_ids().any(is_awaited)
    }

    /// The replicas that may lead an epoch.
    pub fn fit(&self) -> impl Iterator<Item = NodeId> {
        let is_fit = |node: &NodeId| {
            let told = self.told_by(*node);
            self.up[node.index()]
                && self.is_heard(*node)
                && told.replaced_after.is_none()
                && !told.flags.is_leaving
                && self.can_be_followed(*node)
        };
        self.topology.voter_ids().filter(is_fit)
    }

    /// The leader of an epoch that begins now.
    pub(super) fn candidate(&self) -> Option<NodeId> {
        let stuck = self.leader.filter(|_| self.is_stuck);
        // For a moment after a death, those who have not noticed it have one link more.
        let links = self.is_outdone.then(|| self.links());
        let rank = |node: &NodeId| {
            let links = links.as_ref().map_or(0, |links| links.count(*node));
            (stuck != Some(*node), links, self.told_by(*node).rank, Reverse(*node))
        };
        self.fit().max_by_key(rank)
    }
}

impl Mako {
    /// Starts the timers, after the log was read.
    pub(super) fn start_timers(&mut self, cx: &mut Cx<'_, Self>) {
        self.state.epochs.hear_all(cx.now.at);
        cx.set_timer(Timer::Tick, TICK);
        cx.set_timer(Timer::Progress, Span::from_ms(self.state.options.heartbeat_ms));
    }

    /// The clock of agreement ticks.
    pub(super) fn on_tick(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Tick, TICK);
        self.state.note_tick(cx.now.at);
        if self.state.presence.is_ready && self.state.decides() {
            self.state.epochs.driver.agreement_mut().on_tick(true);
            self.manage(cx);
        }
    }

    /// The manager's part.
    fn manage(&mut self, cx: &mut Cx<'_, Self>) {
        let epochs = &self.state.epochs;
        let agreement = epochs.driver.agreement();
        let is_manager = agreement.is_leader();
        let is_up_to_date = agreement.end() == epochs.taken;
        self.state.note_links(cx.now.at, is_manager);
        if !is_manager || !is_up_to_date {
            return;
        }
        if self.state.shards.is_some() {
            return self.manage_shards(cx);
        }
        let epochs = &self.state.epochs;
        let Leadership { number, leader } = epochs.current;
        let view = self.state.view(cx.now.at);
        if view.is_epoch_due() {
            let Some(leader) = view.candidate() else { return };
            if number.0 < EPOCH_MAX {
                cx.mark("mako.epoch_proposed");
                if view.is_outdone {
                    cx.mark("mako.outdone");
                }
                self.propose(Decided::Epoch { number: number.0 + 1, leader });
            }
        } else if epochs.begun < number {
            let told = view.told_by(leader);
            if told.leadership.number == number && told.flags.is_closed {
                cx.mark("mako.end_proposed");
                self.propose(Decided::Closed { number: number.0, end: told.rank.1 });
            }
        }
    }

    pub(super) fn propose(&mut self, decision: Decided) {
        self.state.epochs.driver.agreement_mut().propose(decision);
    }
}

impl State {
    /// Whether no epoch can begin any more.
    pub(super) fn are_epochs_exhausted(&self) -> bool {
        self.epochs.current.number >= Epoch(EPOCH_MAX)
    }
}
