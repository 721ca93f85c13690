//! Progress reports: nodes tell each other that they are alive, and what has to be sent again.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::txn::CodeDigest;

use super::Tiga;
use super::collection::Kept;
use super::coordinator::Resend;
use super::delays::{decode_delay, encode_delay};
use super::log::{Position, ViewNumber};
use super::messages::Message;
use super::stamp::US_MAX;
use super::state::State;
use super::views::PeerState;
use crate::digests::EpochDigest;

/// No node's clients begin more transactions in a second.
const RATE_MAX: u64 = 1 << 24;

/// The other numbers of a report.
struct Readings {
    sent: u64,
    delay: u64,
    received: u64,
    /// The last version that readers see there.
    version: u64,
    clock: u64,
    difference: u64,
    knows_stop: bool,
    deaf_to: Vec<NodeId>,
    others_done: Vec<(NodeId, u64)>,
}

impl PeerState {
    /// The state that a replica tells, with the readings of its clock and the delays that it has
    /// measured. With several shards also the cell up to which it needs nothing more.
    fn of(message: Message) -> Option<(Self, Readings)> {
        let Message::Progress {
            sent,
            clock,
            difference,
            view,
            normal,
            last,
            committed,
            leads,
            is_leaving,
            received,
            version,
            delay,
            first,
            published,
            done_below,
            replaced,
            code,
            decisions,
            durable_view,
            is_settled,
            is_quiet,
            is_sealed,
            seal,
            accepted,
            is_over,
            knows_stop,
            deaf_to,
            others_done,
            ..
        } = message
        else {
            return None;
        };
        let kept = Kept {
            first: Position(first),
            published: Position(published),
            done_below,
            replaced_after: replaced.checked_sub(1).map(ViewNumber),
            code: CodeDigest(code),
            decisions,
            durable_view: ViewNumber(durable_view),
            is_settled,
            is_quiet,
            is_sealed,
            seal,
            accepted,
            is_over,
        };
        let told = Self {
            view: ViewNumber(view),
            last: (ViewNumber(normal), Position(last)),
            committed: Position(committed),
            leads,
            is_leaving,
            kept,
        };
        let readings = Readings {
            sent,
            delay,
            received,
            version,
            clock,
            difference,
            knows_stop,
            deaf_to,
            others_done,
        };
        Some((told, readings))
    }
}

impl Tiga {
    /// The interval of progress reports is over.
    pub(super) fn on_progress_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        let is_new = self.set_pace(cx);
        if self.state.presence.is_asking() {
            return;
        }
        self.state.collect();
        let now = cx.now.at;
        let peers = self.state.cluster.peers_of(self.state.node);
        let due = peers.filter(|node| is_new || self.state.is_report_due(*node, now));
        self.report_to(cx, &due.collect::<Vec<_>>());
        self.send_proposal(cx);
        self.send_digests(cx);
        self.retry_late(cx);
        self.ask_again(cx);
        self.retry_transfer(cx);
        self.stop_abandoned(cx);
        self.choose_sources(cx);
        self.repeat_notices(cx);
        self.give_up_if_ahead(cx);
        self.note_waits(cx);
        if self.state.is_leader() && self.state.views.reports.is_empty() {
            self.send_view_change(cx);
        }
    }

    /// Tells all nodes the state of this replica.
    pub(super) fn send_progress(&mut self, cx: &mut Cx<'_, Self>) {
        let peers: Vec<NodeId> = self.state.cluster.peers_of(self.state.node).collect();
        self.report_to(cx, &peers);
    }

    /// Tells nodes the state of this replica.
    fn report_to(&mut self, cx: &mut Cx<'_, Self>, nodes: &[NodeId]) {
        let PeerState { view, last: (normal, last), committed, leads, is_leaving, kept } =
            self.state.told();
        let sent = self.state.clock_us(cx);
        // There a transaction has to be in time. Otherwise it may be a little late.
        let is_fast = self.state.is_fast_view() || self.state.views.view.is_detective;
        let deaf_to = self.state.unheard(cx.now.at);
        let (round_trips, rate) = self.state.proximity(cx.now.at);
        self.state.coordinator.expects_replies = self.state.are_replies_quicker();
        self.state.forget_headroom();
        for node in nodes.iter().copied() {
            self.state.pace.note_told(node, cx.now.at);
            let message = Message::Progress {
                sent,
                clock: cx.now.at.us,
                difference: encode_delay(self.state.clocks.told_to(node)),
                view: view.0,
                normal: normal.0,
                last: last.0,
                committed: committed.0,
                leads,
                is_leaving,
                received: self.state.shards.as_ref().map_or(0, |shards| shards.kept.0),
                version: self.state.published.0,
                delay: encode_delay(self.state.delays.of(node.index(), is_fast)),
                first: kept.first.0,
                published: kept.published.0,
                done_below: kept.done_below,
                replaced: kept.replaced_after.map_or(0, |view| view.0 + 1),
                code: kept.code.0,
                decisions: kept.decisions,
                durable_view: kept.durable_view.0,
                is_settled: kept.is_settled,
                is_quiet: kept.is_quiet,
                is_sealed: kept.is_sealed,
                seal: kept.seal,
                accepted: kept.accepted,
                is_over: kept.is_over,
                knows_stop: self.state.knows_stop_of(node),
                deaf_to: deaf_to.clone(),
                others_done: self.state.others_done(node),
                next_ms: self.state.pause_before(node).us / 1_000,
                round_trips: match self.state.does_decide(node) {
                    true => round_trips.clone(),
                    false => Vec::new(),
                },
                rate,
            };
            cx.send(node, message);
        }
    }

    /// Compares a published cell with those of the peers. Stops this replica if its rows differ
    /// from those of a majority.
    pub(super) fn compare_digests(&mut self, cx: &mut Cx<'_, Self>, version: SnapshotVersion) {
        let State { digests, replica, .. } = &mut self.state;
        let why = digests.note_epoch(cx, replica, version);
        self.stop_if_differing(cx, why);
    }

    /// Sends the digests of the cells since the last report to the peers.
    fn send_digests(&mut self, cx: &mut Cx<'_, Self>) {
        let digests = self.state.digests.take_unsent();
        if digests.is_empty() {
            return;
        }
        for peer in self.state.replica.peers() {
            self.state.replica.send(cx, peer, Message::Digests { digests: digests.clone() });
        }
    }

    pub(super) fn on_digests(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        all: Vec<EpochDigest>,
    ) {
        let State { digests, replica, .. } = &mut self.state;
        let why = digests.on_digests(cx, replica, from, all);
        self.stop_if_differing(cx, why);
    }

    fn stop_if_differing(&mut self, cx: &mut Cx<'_, Self>, why: Option<String>) {
        if let Some(why) = why {
            // The others learn from them that this replica differs.
            self.send_digests(cx);
            cx.stop(why);
        }
    }

    pub(super) fn on_progress(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        if let Message::Progress { next_ms, round_trips, rate, .. } = &message {
            self.state.pace.note_next(from, *next_ms);
            // Rates are added up.
            let rate = (*rate).min(RATE_MAX);
            self.state.proximity.note_told(from, round_trips.clone(), rate);
        }
        let Some((told, readings)) = PeerState::of(message) else { return };
        let Readings { sent, delay, received, version, clock, difference, .. } = readings;
        let is_link_new = self.state.relays.note_told(from, readings.deaf_to);
        let others = readings.others_done.into_iter();
        for (node, below) in others.filter(|(node, _)| *node != self.state.node) {
            self.state.done.raise(node, below);
        }
        self.note_clock(cx, from, (clock, decode_delay(difference)));
        if sent <= US_MAX {
            self.follow_leader(cx, from, sent);
        }
        self.note_kept(from, SnapshotVersion(received));
        self.state.published_by[from.index()] = SnapshotVersion(version);
        let now = self.state.clock_us(cx);
        let delays = &mut self.state.delays;
        delays.note_arrival(from.index(), sent, now);
        decode_delay(delay).into_iter().for_each(|delay| delays.note_told(from.index(), delay));
        let before = self.state.views.note_told(from, told, cx.now.at);
        if is_link_new || before != told {
            self.wake(cx);
        }
        self.state.stop_known_by[from.index()] = readings.knows_stop;
        if before.kept.seal != told.kept.seal && self.state.leader() == Some(from) {
            // The leader waits for the answer.
            self.send_progress(cx);
        } else if told.is_leaving && !before.is_leaving {
            self.report_to(cx, &[from]);
        }
        let begins_to_lead = told.leads && !(before.leads && before.view == told.view);
        if begins_to_lead && self.state.views.view.leaders.contains(&from) {
            self.submit_again(cx, Resend::AllTo(from));
        }
        self.on_kept(cx, from, told);
        let views = &self.state.views;
        if told.view < views.view.number || told.last.0 < views.started {
            self.tell_view(cx, from);
        }
        if let Some(peer) = self.state.replica.group.member(from) {
            self.start_view_at(cx, peer);
        }
        let views = &self.state.views;
        let is_leader = self.state.leader() == Some(from);
        if is_leader && views.view.number == told.view && !told.leads {
            // The log that it was sent may have arrived before it knew the view.
            self.send_view_change(cx);
        }
    }
}
