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

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

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

/// The maximum number of doublings.
const DOUBLINGS_MAX: u32 = 4;

impl State {
    /// Whether a node was heard lately. A connection that is lost may be back soon.
    pub(super) fn is_heard(&self, node: NodeId, now: Timestamp) -> bool {
        let patience = self.options.failure(self.replica.topology.round_trip_max());
        let is_recent = now.since(self.epochs.heard_at[node.index()]).us < patience.us;
        node == self.replica.me || is_recent
    }

    /// The nodes that this one does not hear.
    pub(super) fn unheard(&self, now: Timestamp) -> Vec<NodeId> {
        self.replica.peers().filter(|peer| !self.is_heard(*peer, now)).collect()
    }

    pub(super) fn told_by(&self, node: NodeId, now: Timestamp) -> PeerState {
        match node == self.replica.me {
            true => self.told(self.unheard(now)),
            false => self.epochs.told[node.index()].clone(),
        }
    }

    /// Whether a replica and enough others hear each other, as far as they have told.
    fn can_be_followed(&self, node: NodeId, now: Timestamp) -> bool {
        let told = self.told_by(node, now);
        let hears = |other: NodeId| {
            let is_deaf = self.is_heard(other, now) && {
                let other = self.told_by(other, now);
                other.deaf_to.contains(&node)
            };
            other == node || !told.deaf_to.contains(&other) && !is_deaf
        };
        let count = self.replica.topology.voter_ids().filter(|other| hears(*other)).count();
        count >= self.replica.topology.majority()
    }

    /// Whether the leader takes too long to close the log.
    fn is_stuck(&self, now: Timestamp) -> bool {
        let epochs = &self.epochs;
        let round_trip = self.replica.topology.round_trip_max();
        let us = CLOSING_TIMES * self.options.failure(round_trip).us
            + CLOSING_ROUND_TRIPS * round_trip.us;
        let patience = us << epochs.failures.min(DOUBLINGS_MAX);
        epochs.begun < epochs.current.number && now.since(epochs.since).us >= patience
    }

    /// Whether another epoch has to begin.
    fn is_epoch_due(&self, now: Timestamp) -> bool {
        let Some(leader) = self.leader() else { return true };
        let (number, told) = (self.epochs.current.number, self.told_by(leader, now));
        let has_begun = self.epochs.begun == number;
        // It does not know which entries it had sent before it restarted.
        let has_restarted =
            told.leadership.number == number && !told.flags.leads && !told.flags.is_closing;
        // A replica that lost its disk counts again in the next epoch.
        let is_awaited = |node: NodeId| {
            let replaced_after = self.told_by(node, now).replaced_after;
            self.is_heard(node, now) && replaced_after.is_some_and(|after| after >= number)
        };
        !self.is_heard(leader, now)
            || has_restarted
            || told.flags.is_leaving
            || self.is_stuck(now)
            || !self.can_be_followed(leader, now)
            || self.is_outdone(now)
            || epoch_of(told.rank.1) == number && count_of(told.rank.1) >= COUNT_ENOUGH
            || has_begun && self.replica.topology.voter_ids().any(is_awaited)
    }

    /// The replicas that may lead an epoch.
    pub(super) fn fit(&self, now: Timestamp) -> impl Iterator<Item = NodeId> {
        let is_fit = move |node: &NodeId| {
            let told = self.told_by(*node, now);
            let is_up = *node == self.replica.me || self.replica.is_up[node.index()];
            is_up
                && self.is_heard(*node, now)
                && told.replaced_after.is_none()
                && !told.flags.is_leaving
                && self.can_be_followed(*node, now)
        };
        self.replica.topology.voter_ids().filter(is_fit)
    }

    /// The leader of an epoch that begins now.
    fn candidate(&self, now: Timestamp) -> Option<NodeId> {
        let stuck = self.leader().filter(|_| self.is_stuck(now));
        // For a moment after a death, those who have not noticed it have one link more.
        let links = self.is_outdone(now).then(|| self.links(now));
        let rank = |node: &NodeId| {
            let links = links.as_ref().map_or(0, |links| links.count(*node));
            (stuck != Some(*node), links, self.told_by(*node, now).rank, Reverse(*node))
        };
        self.fit(now).max_by_key(rank)
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
        if self.state.presence.is_ready && self.state.replica.votes() {
            self.state.epochs.driver.agreement_mut().on_tick(true);
            self.manage(cx);
        }
    }

    /// The manager's part.
    fn manage(&mut self, cx: &mut Cx<'_, Self>) {
        let epochs = &self.state.epochs;
        let agreement = epochs.driver.agreement();
        let is_manager = agreement.is_leader();
        if !is_manager || agreement.end() != epochs.taken {
            return self.note_links(cx.now.at, is_manager);
        }
        self.note_links(cx.now.at, true);
        let epochs = &self.state.epochs;
        let (now, Leadership { number, leader }) = (cx.now.at, epochs.current);
        if self.state.is_epoch_due(now) {
            let Some(leader) = self.state.candidate(now) else { return };
            if number.0 < EPOCH_MAX {
                cx.mark("mako.epoch_proposed");
                if self.state.is_outdone(now) {
                    cx.mark("mako.outdone");
                }
                self.propose(Decided::Epoch { number: number.0 + 1, leader });
            }
        } else if epochs.begun < number {
            let told = self.state.told_by(leader, now);
            if told.leadership.number == number && told.flags.is_closed {
                cx.mark("mako.end_proposed");
                self.propose(Decided::Closed { number: number.0, end: told.rank.1 });
            }
        }
    }

    fn propose(&mut self, decision: Decided) {
        self.state.epochs.driver.agreement_mut().propose(decision);
    }
}

impl State {
    /// Whether no epoch can begin any more.
    pub(super) fn are_epochs_exhausted(&self) -> bool {
        self.epochs.current.number >= Epoch(EPOCH_MAX)
    }
}
