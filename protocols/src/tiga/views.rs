//! The view manager: decides which replicas lead the shards, and with which logs (§4).
//!
//! Views are decided by agreement among the replicas of the first shard, whose leader is the view
//! manager. It begins a view with other leaders when a present one is silent, has restarted, or is
//! about to stop.
//!
//! ```text
//!   manager                        replicas                     leaders of view 2
//!     | agreement: view 2 -------> | take part in no earlier view
//!     |                            | ViewChange 2, log -------> | f + 1 logs: takes the best
//!     | <------------------------------------ Proposal 2, log --|
//!     | agreement: logs of view 2  |                            |
//!     |--------------------------> | take them ---------------> | leads
//! ```
//!
//! The paper's manager is a replicated service of its own. Here the replicas of the first shard
//! are that service. Those of other shards hear of its decisions by `View`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::collection::Kept;
use super::commit::Commit;
use super::decided::{Decided, View};
use super::log::{Position, Suffix, ViewNumber};
use super::messages::Message;
use super::placement::{Fitness, Links, Plans, place};
use super::rebuild::Report;
use super::state::State;
use super::verification::{Proposal, verify};
use super::view_change::{Preparing, ViewReport};
use super::{Tiga, Timer};
use crate::agreement::{Driver, Refused, Settled, TICK};
use crate::replica::Replica;

/// The state of a node, as it tells the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerState {
    /// The last view that it has heard of.
    pub view: ViewNumber,
    /// The view of its log, and the position of its last cell.
    pub last: (ViewNumber, Position),
    /// The last position that it knows to be committed, on all shards.
    pub committed: Position,
    /// Whether it leads its view.
    pub leads: bool,
    /// Whether it is stopping.
    pub is_leaving: bool,
    /// The part about checkpoints.
    pub kept: Kept,
}

/// The views of this replica.
pub(super) struct Views {
    /// Only used on the replicas of the first shard.
    pub driver: Driver<Decided>,
    /// The number of the last decision taken.
    taken: u64,
    /// The number of the last view among the decisions taken; `None` if this replica has missed
    /// some of them, until the next view.
    pub decided: Option<ViewNumber>,
    /// The last view that this replica has heard of.
    pub view: View,
    /// The record that says so.
    pub record: LogPosition,
    /// When this replica has heard of it.
    pub since: Timestamp,
    /// The last view whose logs are decided, as far as this replica knows.
    pub started: ViewNumber,
    /// The logs with which it began: of all shards on a replica of the first one, else of the own.
    pub logs: Vec<Bytes>,
    /// The view of the logs that these continue.
    pub base: ViewNumber,
    /// The reports for the view that this replica is to lead.
    pub reports: BTreeMap<NodeId, ViewReport>,
    /// Those from which it makes its proposal, once there are enough.
    pub chosen: Vec<Report>,
    /// The position up to which these logs are committed.
    pub known: Position,
    /// `Some` while this replica prepares its proposal.
    pub preparing: Option<Preparing>,
    /// The transactions that the leader of this view needs, and that this replica has persisted.
    pub prepared: BTreeSet<TxnId>,
    /// On the replicas of the first shard: the proposals for the present view.
    proposals: BTreeMap<ShardId, Proposal>,
    /// The number of progress reports of each replica of this shard since it lacks the logs of the
    /// last view that has begun, or cells that it was sent; and the last position that it had.
    pub behind: Vec<(u32, Position)>,
    /// Where the view manager is about to move the leaders.
    pub plans: Plans,
    /// The same for leaders that are not heard by enough others.
    pub mends: Plans,
    /// Whether this replica leads as soon as the log of the view is durable.
    pub is_to_lead: bool,
    /// When each node was first heard to have the log of its view.
    entered_at: Vec<Timestamp>,
    /// When each node was last heard.
    heard_at: Vec<Timestamp>,
    /// When each node was last heard to have committed more.
    pub progressed_at: Vec<Timestamp>,
    /// The last report of each node.
    pub told: Vec<PeerState>,
}

impl PeerState {
    /// The node may come back, and not be stopping. How it has ended as a leader is still true.
    pub(super) fn forget_stop(&mut self) {
        self.is_leaving = false;
        let kept = &mut self.kept;
        (kept.is_settled, kept.is_over) = (false, false);
        (kept.seal, kept.accepted) = (0, SnapshotVersion::ZERO);
    }

    /// The node has come back, and may lead.
    pub(super) fn forget_end(&mut self) {
        (self.kept.is_quiet, self.kept.is_sealed) = (false, false);
    }
}

impl Views {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            driver: Driver::new(),
            taken: 0,
            decided: Some(ViewNumber(0)),
            view: View::default(),
            record: LogPosition(0),
            since: Timestamp::default(),
            started: ViewNumber(0),
            logs: Vec::new(),
            base: ViewNumber(0),
            reports: BTreeMap::new(),
            chosen: Vec::new(),
            known: Position(0),
            preparing: None,
            prepared: BTreeSet::new(),
            proposals: BTreeMap::new(),
            behind: vec![Default::default(); node_count],
            plans: Plans::default(),
            mends: Plans::default(),
            is_to_lead: false,
            entered_at: vec![Timestamp::default(); node_count],
            heard_at: vec![Timestamp::default(); node_count],
            progressed_at: vec![Timestamp::default(); node_count],
            told: vec![PeerState::default(); node_count],
        }
    }

    /// The number of decisions that this replica keeps for others.
    pub(super) fn decisions_kept(&self) -> u64 {
        if !self.driver.is_started() {
            return 0;
        }
        let agreement = self.driver.agreement();
        agreement.end().saturating_sub(agreement.forgotten())
    }

    /// The leader of a shard in this view, if there is a view.
    pub(super) fn leader_of(&self, shard: ShardId) -> Option<NodeId> {
        self.view.leaders.get(usize::from(shard.0)).copied()
    }

    /// The last report of a replica of a group.
    pub(super) fn told_by(&self, replica: &Replica, peer: NodeId) -> PeerState {
        self.told[replica.node(peer).index()]
    }

    /// Everybody counts as heard, because nobody could be.
    pub(super) fn hear_all(&mut self, now: Timestamp) {
        self.heard_at.fill(now);
        self.since = now;
    }

    pub(super) fn note_heard(&mut self, node: NodeId, now: Timestamp) {
        self.heard_at[node.index()] = now;
    }

    /// A report of a node. Returns the one before.
    pub(super) fn note_told(&mut self, node: NodeId, told: PeerState, now: Timestamp) -> PeerState {
        let before = std::mem::replace(&mut self.told[node.index()], told);
        if before.last.0 != told.last.0 {
            self.entered_at[node.index()] = now;
        }
        if before.committed != told.committed {
            self.progressed_at[node.index()] = now;
        }
        before
    }

    /// Follows a view.
    pub(super) fn follow(&mut self, view: View, now: Timestamp) {
        (self.view, self.since) = (view, now);
        self.reports.clear();
        self.chosen.clear();
        self.preparing = None;
        self.is_to_lead = false;
        self.prepared.clear();
        self.proposals.clear();
    }
}

impl State {
    /// The leader of this shard.
    pub(super) fn leader(&self) -> Option<NodeId> {
        self.views.leader_of(self.shard)
    }

    /// Whether this replica leads its shard in the view, or will lead it.
    pub(super) fn is_leader(&self) -> bool {
        self.leader() == Some(self.node)
    }

    /// The number of decisions that have been taken; 0 as long as the effects of the last one can
    /// be lost.
    pub(super) fn durable_decisions(&self) -> u64 {
        let View { number, .. } = self.views.view;
        // Decisions are forgotten up to a begin. Then one that has missed some waits for a view.
        let is_promised = number == self.views.started && self.views.record <= self.synced;
        let has_begun = self.log.view == ViewNumber(0) || self.log.is_view_durable();
        if is_promised && has_begun && !self.lacks_start() { self.views.taken } else { 0 }
    }

    /// The view of the log, if its beginning is on the disk, and no later view has begun; else 0.
    pub(super) fn durable_view(&self) -> ViewNumber {
        let is_durable = self.log.is_view_durable() && !self.lacks_start();
        if is_durable { self.log.view } else { ViewNumber(0) }
    }

    /// What this replica tells about itself.
    pub(super) fn told(&self) -> PeerState {
        PeerState {
            view: self.views.view.number,
            last: (self.log.view, self.log.last()),
            // After a crash it still has these cells.
            committed: self.settled().min(self.log.durable().max(self.log.base())),
            leads: self.leading.is_some(),
            is_leaving: self.stop.is_some(),
            kept: self.kept(),
        }
    }

    /// The position up to which no view can change the log. With several shards only what has been
    /// published counts: until then a replica may need rows and lists of the other shards, and its
    /// peers keep the log for it.
    pub(super) fn settled(&self) -> Position {
        let Commit { committed, published, .. } = self.commit;
        let settled = if self.is_divided() { published } else { committed };
        settled.max(self.settled)
    }

    pub(super) fn doubt(&self) -> Span {
        self.options.doubt(self.cluster.round_trip_max(), Span::ZERO)
    }

    /// Whether a node was heard lately, and is connected.
    pub(super) fn is_heard(&self, node: NodeId, now: Timestamp) -> bool {
        let next = self.pace.next_of(node);
        let doubt = self.options.doubt(self.cluster.round_trip_max(), next);
        let heard_at = self.views.heard_at[node.index()];
        let is_silent = now.since(heard_at) >= doubt || self.owes_answer(node, heard_at, now);
        node == self.node || self.is_up[node.index()] && !is_silent
    }

    /// Whether a replica that lost its disk waits for a view that begins without its report. Those
    /// without a vote never report.
    fn is_view_awaited(&self, now: Timestamp) -> bool {
        let view = self.views.view.number;
        let mut nodes = self.cluster.voter_ids();
        nodes.any(|node| {
            let after = self.told_by(node).kept.replaced_after;
            after.is_some_and(|after| view <= after) && self.is_heard(node, now)
        })
    }

    /// Whether a leader has to be replaced.
    fn has_failed(&self, leader: NodeId, now: Timestamp) -> bool {
        let told = self.told_by(leader);
        let shard = |node: NodeId| self.cluster.nodes[node.index()].shard;
        let stays = |node: NodeId| self.is_fit(node, now) && !self.told_by(node).is_leaving;
        let do_others_stay =
            || self.cluster.node_ids().any(|node| shard(node) == shard(leader) && stays(node));
        if !self.is_heard(leader, now) || told.kept.is_over || told.is_leaving && do_others_stay() {
            return true;
        }
        let number = self.views.view.number;
        // A new leader needs logs and a decision first. One that has the log of its view, and does
        // not lead it, has restarted.
        let patience = 2 * self.doubt().us + 8 * self.cluster.round_trip_max().us;
        let is_late = now.since(self.views.since) >= Span::from_us(patience);
        let has_restarted = told.view == number && told.last.0 == number;
        // It leads when the log is on its disk.
        let has_entered = now.since(self.views.entered_at[leader.index()]) < self.doubt();
        let is_about_to = if leader == self.node { self.views.is_to_lead } else { has_entered };
        let has_restarted = has_restarted && !is_about_to;
        !(told.leads && told.view == number) && (is_late || has_restarted)
    }

    pub(super) fn told_by(&self, node: NodeId) -> PeerState {
        if node == self.node { self.told() } else { self.views.told[node.index()] }
    }

    /// The leaders of the next view: replicas that are heard and stay. If all replicas of a shard
    /// are stopping, one of those that still wait for others.
    pub(super) fn candidates(&self, now: Timestamp) -> Option<Vec<NodeId>> {
        let present = &self.views.view.leaders;
        let fitness = |node| {
            let told = self.told_by(node);
            let is_sound = !present.contains(&node) || !self.has_failed(node, now);
            let is_sound = is_sound && !told.is_leaving && self.can_be_followed(node, now);
            self.is_fit(node, now).then_some(Fitness { is_sound, last: told.last })
        };
        let links = Links {
            are_linked: |one, other| self.are_linked(one, other, now),
            round_trip_us: |one, other| self.round_trip_us(one, other),
        };
        place(&self.cluster, &self.preference(), present, fitness, &links)
    }

    /// Whether a replica can lead a view that begins now.
    fn is_fit(&self, node: NodeId, now: Timestamp) -> bool {
        let Kept { is_over, replaced_after, .. } = self.told_by(node).kept;
        let votes = self.cluster.votes(node);
        votes && self.is_heard(node, now) && !is_over && replaced_after.is_none()
    }

    /// Whether this replica of the first shard is the nearest one to a node.
    fn is_nearest_to(&self, node: NodeId) -> bool {
        let region = |node: NodeId| self.cluster.nodes[node.index()].region;
        let distance = |replica: &NodeId| {
            let is_far = region(*replica) != region(node);
            (is_far, self.cluster.one_way_between(*replica, node), *replica)
        };
        let deciding = self.cluster.node_ids().filter(|it| self.does_decide(*it));
        deciding.min_by_key(distance) == Some(self.node)
    }

    /// Whether a node is a replica of the first shard: one of those that decide views.
    pub(super) fn does_decide(&self, node: NodeId) -> bool {
        self.cluster.nodes[node.index()].shard == ShardId(0) && self.cluster.votes(node)
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
        if !self.state.pace.is_slow || self.state.does_decide(self.state.node) {
            cx.set_timer(Timer::Tick, TICK);
        }
        self.fetch_missing(cx);
        self.fetch_unknown(cx);
        if self.state.presence.is_ready && self.state.does_decide(self.state.node) {
            self.state.views.driver.agreement_mut().on_tick(true);
            self.manage(cx);
        }
    }

    /// The view manager's part.
    fn manage(&mut self, cx: &mut Cx<'_, Self>) {
        let views = &self.state.views;
        let agreement = views.driver.agreement();
        if !agreement.is_leader() || agreement.end() != views.taken {
            return;
        }
        let (now, present) = (cx.now.at, &views.view);
        let mut leaders = present.leaders.iter();
        let is_needed = leaders.len() == 0
            || leaders.any(|leader| self.state.has_failed(*leader, now))
            || self.state.is_view_awaited(now);
        if is_needed {
            let Some(leaders) = self.state.candidates(now) else { return };
            cx.mark("tiga.view_proposed");
            let is_detective = self.state.should_detect(&leaders);
            let decision = Decided::View { number: present.number.0 + 1, leaders, is_detective };
            self.state.views.driver.agreement_mut().propose(decision);
        } else if present.number > views.started {
            self.decide_start(cx);
        } else if let Some(leaders) = self.state.better_linked(now) {
            cx.mark("tiga.leaders_unlinked");
            self.move_leaders(leaders);
        } else if let Some(leaders) = self.state.planned_move(now) {
            cx.mark("tiga.leaders_moved");
            self.move_leaders(leaders);
        }
    }

    /// Proposes a view with other leaders, although the present ones have not failed.
    fn move_leaders(&mut self, leaders: Vec<NodeId>) {
        let number = self.state.views.view.number.0 + 1;
        let is_detective = self.state.should_detect(&leaders);
        let decision = Decided::View { number, leaders, is_detective };
        self.state.views.driver.agreement_mut().propose(decision);
    }

    /// Proposes the logs with which the view begins, if all leaders have proposed theirs.
    fn decide_start(&mut self, cx: &mut Cx<'_, Self>) {
        let State { views, cluster, .. } = &mut self.state;
        let are_there = views.proposals.len() == usize::from(cluster.partitions.shards());
        // Otherwise the logs may have been decided already.
        if !are_there || views.decided != Some(views.view.number) {
            return;
        }
        cx.mark("tiga.start_proposed");
        let proposals: Vec<Proposal> = views.proposals.values().cloned().collect();
        let logs = verify(&proposals);
        let logs = logs.iter().map(|log| Suffix { view: views.view.number, ..log.clone() });
        let logs = logs.map(|log| log.encode().to_vec()).collect();
        let decision = Decided::Start { number: views.view.number.0, base: views.started.0, logs };
        views.driver.agreement_mut().propose(decision);
    }

    /// The leader of a shard proposes the log with which it begins a view.
    pub(super) fn on_proposal(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        view: ViewNumber,
        bytes: &[u8],
    ) {
        let Ok(proposal) = Proposal::decode(bytes) else {
            return cx.mark("tiga.malformed_log");
        };
        let State { views, cluster, .. } = &mut self.state;
        let shard = cluster.nodes[from.index()].shard;
        let is_present = views.view.number == view && views.started < view;
        let is_present = is_present && proposal.suffix.view == views.started;
        if is_present && views.leader_of(shard) == Some(from) {
            views.proposals.insert(shard, proposal);
        }
    }

    /// Passes a peer's message to agreement.
    pub(super) fn on_agreement(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: &[u8]) {
        if !self.state.presence.is_ready || !self.state.does_decide(self.state.node) {
            return cx.mark("tiga.agreement_too_early");
        }
        if !self.state.replica.topology.votes(from) {
            return cx.mark("tiga.agreement_too_early");
        }
        let State { views, cluster, .. } = &mut self.state;
        let is_sound = |decided: &Decided| decided.is_sound(cluster);
        if let Err(Refused(why)) = views.driver.agreement_mut().on_message(from, bytes, &is_sound) {
            cx.mark(why);
        }
    }

    /// Persists the records of agreement, sends its messages, and takes its decisions.
    pub(super) fn settle_agreement(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.presence.is_ready || !self.state.does_decide(self.state.node) {
            return;
        }
        let State { views, replica, synced, .. } = &mut self.state;
        let wrap = |bytes| Message::Agreement { bytes };
        let Settled { skipped, decided } = views.driver.settle(cx, replica, *synced, wrap);
        if let Some(skipped) = skipped.filter(|skipped| *skipped > views.taken) {
            (views.taken, views.decided) = (skipped, None);
        }
        for (number, decision) in decided {
            if number > self.state.views.taken {
                self.state.views.taken = number;
                self.take_decision(cx, decision);
            }
        }
    }

    fn take_decision(&mut self, cx: &mut Cx<'_, Self>, decision: Decided) {
        if !decision.is_sound(&self.state.cluster) {
            // A peer's memory of them is not checked where it arrives.
            return cx.mark("tiga.malformed_view");
        }
        let views = &mut self.state.views;
        match decision {
            Decided::View { number, leaders, is_detective } => {
                // Two managers may have proposed the same view.
                let number = ViewNumber(number);
                if views.decided.is_some_and(|decided| number <= decided) {
                    return;
                }
                views.decided = Some(number);
                self.begin_view(cx, View { number, leaders, is_detective });
            }
            Decided::Start { number, base, logs } => {
                // The logs of a view that was given up are void, on all replicas alike. After a
                // restart, the log may be of this view already.
                let number = ViewNumber(number);
                let is_known = number == views.started && !views.logs.is_empty();
                if views.decided != Some(number) || number < views.started || is_known {
                    return;
                }
                (views.started, views.base) = (number, ViewNumber(base));
                views.logs = logs.into_iter().map(Bytes::from).collect();
                self.take_start(cx);
            }
        }
        for node in self.state.cluster.peers_of(self.state.node) {
            self.tell_view(cx, node);
        }
    }

    /// Tells a node of another shard which view there is, and its part of the logs.
    pub(super) fn tell_view(&mut self, cx: &mut Cx<'_, Self>, to: NodeId) {
        let State { views, cluster, node, is_up, presence, .. } = &self.state;
        let of = |node: NodeId| cluster.nodes[node.index()];
        if !self.state.does_decide(*node) || self.state.does_decide(to) || !is_up[to.index()] {
            return;
        }
        // It may not hear those that tell it usually.
        let mut unheard = self.state.relays.unheard_by(to);
        let is_near = self.state.is_nearest_to(to) || unheard.any(|it| self.state.does_decide(it));
        let is_manager = presence.is_ready && views.driver.agreement().is_leader();
        if !is_near && !is_manager || views.view.number == ViewNumber(0) {
            return;
        }
        // A replica that has just started may not know the logs yet.
        let log = views.logs.get(usize::from(of(to).shard.0)).cloned();
        let started = if log.is_some() { views.started.0 } else { 0 };
        let message = Message::View {
            view: views.view.number.0,
            leaders: views.view.leaders.clone(),
            is_detective: views.view.is_detective,
            started,
            base: views.base.0,
            log: log.unwrap_or_default(),
        };
        cx.send(to, message);
    }

    /// A replica of the first shard tells which view there is.
    pub(super) fn on_view(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        view: View,
        (started, base, log): (ViewNumber, ViewNumber, Bytes),
    ) {
        let is_log = started.0 == 0 || Suffix::decode(&log).is_ok_and(|it| it.view == started);
        let is_sound = view.is_sound(&self.state.cluster) && is_log && started <= view.number;
        if !is_sound || !self.state.does_decide(from) || self.state.does_decide(self.state.node) {
            return cx.mark("tiga.malformed_view");
        }
        if !self.state.presence.is_ready {
            // It is told again.
            return cx.mark("tiga.agreement_too_early");
        }
        let is_later = view.number > self.state.views.view.number;
        if started > self.state.views.started {
            let views = &mut self.state.views;
            (views.started, views.base, views.logs) = (started, base, vec![log]);
            if !is_later {
                self.take_start(cx);
            }
        }
        if is_later {
            self.begin_view(cx, view);
        }
    }
}
