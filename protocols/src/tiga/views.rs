//! The view manager: decides which replica leads the shard (§4).
//!
//! Views are decided by agreement, whose leader is the view manager. It begins a view with another
//! leader when the present one is silent, has restarted, or is about to stop.
//!
//! ```text
//!   manager                      replicas                     leader of view 2
//!     | agreement: view 2 -----> | take part in no earlier view
//!     |                          | ViewChange 2, log -------> | f + 1 logs: takes the best
//!     |                          | <--------- StartView, log  |
//! ```
//!
//! The paper's manager is a replicated service of its own. Here the replicas of the first shard
//! are that service.

use std::collections::BTreeMap;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

use super::collection::Kept;
use super::log::{Position, ViewNumber};
use super::messages::Message;
use super::rebuild::Report;
use super::state::State;
use super::view_change::ViewReport;
use super::{Tiga, Timer};
use crate::agreement::{Driver, Refused, Settled, TICK};
use crate::messages::NUMBER_MAX;
use crate::streams::number;

/// A view: what agreement decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// The number of the view.
    pub number: u64,
    /// The replica that leads it.
    pub leader: NodeId,
}

/// The view that a replica follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub number: ViewNumber,
    pub leader: NodeId,
}

impl View {
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.put_varint(self.number.0);
        out.put_u16(self.leader.0);
    }

    /// Decodes a view of a group of `node_count` replicas.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(from: &mut Reader<'_>, node_count: usize) -> Result<Self, DecodeError> {
        let (number, leader) = (ViewNumber(number(from, "view")?), NodeId(from.u16("view")?));
        match leader.index() < node_count {
            true => Ok(Self { number, leader }),
            false => Err(DecodeError::new("view")),
        }
    }
}

/// What a replica has told about itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerState {
    /// The last view that it has heard of.
    pub view: ViewNumber,
    /// The view of its log, and the position of its last cell.
    pub last: (ViewNumber, Position),
    /// The last position that it knows to be committed.
    pub committed: Position,
    /// Whether it leads its view.
    pub leads: bool,
    /// Whether it is stopping.
    pub is_leaving: bool,
    /// What concerns checkpoints.
    pub kept: Kept,
}

/// The views of this replica.
pub(super) struct Views {
    pub driver: Driver<Decided>,
    /// The number of the last decision taken.
    taken: u64,
    /// The last view that this replica has heard of.
    pub view: View,
    /// The record that says so.
    pub record: LogPosition,
    /// When this replica has heard of it.
    pub since: Timestamp,
    /// The logs for the view that this replica is to lead.
    pub logs: BTreeMap<NodeId, ViewReport>,
    /// The reports from which the view begins, once there are enough.
    pub reports: Vec<Report>,
    /// When each replica was last heard.
    heard_at: Vec<Timestamp>,
    pub told: Vec<PeerState>,
}

impl Views {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            driver: Driver::new(),
            taken: 0,
            view: View::default(),
            record: LogPosition(0),
            since: Timestamp::default(),
            logs: BTreeMap::new(),
            reports: Vec::new(),
            heard_at: vec![Timestamp::default(); node_count],
            told: vec![PeerState::default(); node_count],
        }
    }

    /// The leader of the view, if there is a view.
    pub(super) fn leader(&self) -> Option<NodeId> {
        (self.view.number > ViewNumber(0)).then_some(self.view.leader)
    }

    /// The number of decisions that have been taken; 0 as long as the last one can be lost. The log
    /// is durable up to `synced`.
    pub(super) fn durable_decisions(&self, synced: LogPosition) -> u64 {
        if self.record <= synced { self.taken } else { 0 }
    }

    /// Everybody counts as heard, because nobody could be.
    pub(super) fn hear_all(&mut self, now: Timestamp) {
        self.heard_at.fill(now);
        self.since = now;
    }

    pub(super) fn note_heard(&mut self, node: NodeId, now: Timestamp) {
        self.heard_at[node.index()] = now;
    }
}

impl State {
    /// What this replica tells about itself.
    pub(super) fn told(&self) -> PeerState {
        PeerState {
            view: self.views.view.number,
            last: (self.log.view, self.log.last()),
            // After a crash it still has these cells.
            committed: self.commit.committed.min(self.log.durable().max(self.log.base())),
            leads: self.leading.is_some(),
            is_leaving: self.stop.is_some(),
            kept: self.kept(),
        }
    }

    fn doubt(&self) -> Span {
        self.options.doubt(self.replica.topology.round_trip_max())
    }

    /// Whether a replica was heard lately, and is connected.
    fn is_heard(&self, node: NodeId, now: Timestamp) -> bool {
        let heard = now.since(self.views.heard_at[node.index()]) < self.doubt();
        node == self.me() || self.replica.is_up[node.index()] && heard
    }

    /// Whether a replica that lost its disk waits for a view that begins without its report.
    fn is_view_awaited(&self, now: Timestamp) -> bool {
        let view = self.views.view.number;
        let mut nodes = self.replica.topology.node_ids();
        nodes.any(|node| {
            let after = self.told_by(node).kept.replaced_after;
            after.is_some_and(|after| view <= after) && self.is_heard(node, now)
        })
    }

    /// Whether the view needs another leader, or its leader another view.
    fn needs_view(&self, now: Timestamp) -> bool {
        let Some(leader) = self.views.leader() else { return true };
        if self.is_view_awaited(now) {
            return true;
        }
        let told = self.told_by(leader);
        let do_others_stay = || {
            let next = self.candidate(now);
            next.is_some_and(|node| !self.told_by(node).is_leaving)
        };
        if !self.is_heard(leader, now) || told.kept.is_over || told.is_leaving && do_others_stay() {
            return true;
        }
        let number = self.views.view.number;
        // A new leader needs the logs of others first. One that has the log of its view, and does
        // not lead it, has restarted.
        let is_late = now.since(self.views.since) >= Span::from_us(2 * self.doubt().us);
        let has_restarted = told.view == number && told.last.0 == number;
        !(told.leads && told.view == number) && (is_late || has_restarted)
    }

    fn told_by(&self, node: NodeId) -> PeerState {
        if node == self.me() { self.told() } else { self.views.told[node.index()] }
    }

    /// The next leader: of the replicas that are heard and stay, the one with the longest log. If
    /// all are stopping, one of those that still wait for others.
    fn candidate(&self, now: Timestamp) -> Option<NodeId> {
        let before = self.views.leader();
        let nodes = self.replica.topology.node_ids();
        let is_fit = |node: &NodeId| {
            let told = self.told_by(*node);
            let is_whole = told.kept.replaced_after.is_none();
            self.is_heard(*node, now) && !told.kept.is_over && is_whole
        };
        let rank = |node: &NodeId| {
            // The present leader may have restarted, and may be chosen again if nobody else is fit.
            let told = self.told_by(*node);
            (!told.is_leaving, Some(*node) != before, told.last, std::cmp::Reverse(*node))
        };
        nodes.filter(is_fit).max_by_key(rank)
    }
}

impl Tiga {
    /// Starts the timers, after the log was read.
    pub(super) fn start_views(&mut self, cx: &mut Cx<'_, Self>) {
        self.state.views.hear_all(cx.now.at);
        cx.set_timer(Timer::Tick, TICK);
        cx.set_timer(Timer::Progress, Span::from_ms(self.state.options.heartbeat_ms));
    }

    /// The clock of agreement ticks.
    pub(super) fn on_tick(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Tick, TICK);
        self.fetch_missing(cx);
        if self.state.presence.is_ready {
            self.state.views.driver.agreement_mut().on_tick(true);
            self.manage(cx);
        }
    }

    /// The view manager's part.
    fn manage(&mut self, cx: &mut Cx<'_, Self>) {
        let now = cx.now.at;
        let agreement = self.state.views.driver.agreement();
        let is_settled = agreement.end() == self.state.views.taken;
        if !agreement.is_leader() || !is_settled || !self.state.needs_view(now) {
            return;
        }
        let Some(leader) = self.state.candidate(now) else { return };
        let number = self.state.views.view.number.0 + 1;
        let is_awaited = self.state.is_view_awaited(now);
        if Some(leader) == self.state.views.leader() && self.state.told().leads && !is_awaited {
            return;
        }
        cx.mark("tiga.view_proposed");
        self.state.views.driver.agreement_mut().propose(Decided { number, leader });
    }

    /// Passes a peer's message to agreement.
    pub(super) fn on_agreement(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: &[u8]) {
        if !self.state.presence.is_ready {
            return cx.mark("tiga.agreement_too_early");
        }
        let node_count = self.state.replica.topology.node_count();
        let is_sound = |view: &Decided| {
            view.leader.index() < node_count && (1..=NUMBER_MAX).contains(&view.number)
        };
        let agreement = self.state.views.driver.agreement_mut();
        if let Err(Refused(why)) = agreement.on_message(from, bytes, &is_sound) {
            cx.mark(why);
        }
    }

    /// Persists the records of agreement, sends its messages, and takes its decisions.
    pub(super) fn settle_agreement(&mut self, cx: &mut Cx<'_, Self>) {
        let State { views, replica, synced, presence, .. } = &mut self.state;
        if !presence.is_ready {
            return;
        }
        let wrap = |bytes| Message::Agreement { bytes };
        let Settled { skipped, decided } = views.driver.settle(cx, replica, *synced, wrap);
        views.taken = views.taken.max(skipped.unwrap_or_default());
        for (number, Decided { number: view, leader }) in decided {
            if number <= self.state.views.taken {
                continue;
            }
            self.state.views.taken = number;
            // Two managers may have proposed the same view.
            if view == self.state.views.view.number.0 + 1 {
                self.begin_view(cx, View { number: ViewNumber(view), leader });
            }
        }
    }
}
