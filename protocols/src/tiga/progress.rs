//! Progress reports: replicas tell each other that they are alive, and what has to be sent again.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::time::Span;
use pangea_core::txn::CodeDigest;

use super::collection::Kept;
use super::delays::{decode_delay, encode_delay};
use super::log::{Position, ViewNumber};
use super::messages::Message;
use super::state::State;
use super::views::PeerState;
use super::{Tiga, Timer};
use crate::digests::EpochDigest;

impl PeerState {
    /// What a replica tells, with the reading of its clock and the delay that it has measured.
    fn of(message: Message) -> Option<(Self, (u64, u64))> {
        let Message::Progress {
            sent,
            view,
            normal,
            last,
            committed,
            leads,
            is_leaving,
            delay,
            first,
            published,
            done_below,
            replaced,
            code,
            decisions,
            is_settled,
            is_sealed,
            is_over,
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
            is_settled,
            is_sealed,
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
        Some((told, (sent, delay)))
    }
}

impl Tiga {
    /// The interval of progress reports is over.
    pub(super) fn on_progress_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Progress, Span::from_ms(self.state.options.heartbeat_ms));
        if self.state.presence.is_asking() {
            return;
        }
        self.state.collect();
        self.send_progress(cx);
        self.send_digests(cx);
        self.retry_late(cx);
        self.ask_again(cx);
        self.retry_transfer(cx);
        self.stop_abandoned(cx);
    }

    /// Tells the peers the state of this replica.
    pub(super) fn send_progress(&mut self, cx: &mut Cx<'_, Self>) {
        let PeerState { view, last: (normal, last), committed, leads, is_leaving, kept } =
            self.state.told();
        for peer in self.state.replica.peers() {
            let message = Message::Progress {
                sent: cx.now.at.us,
                view: view.0,
                normal: normal.0,
                last: last.0,
                committed: committed.0,
                leads,
                is_leaving,
                delay: encode_delay(self.state.delays.measured(peer.index())),
                first: kept.first.0,
                published: kept.published.0,
                done_below: kept.done_below,
                replaced: kept.replaced_after.map_or(0, |view| view.0 + 1),
                code: kept.code.0,
                decisions: kept.decisions,
                is_settled: kept.is_settled,
                is_sealed: kept.is_sealed,
                is_over: kept.is_over,
            };
            self.state.replica.send(cx, peer, message);
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
        let Some((told, (sent, delay))) = PeerState::of(message) else { return };
        let delays = &mut self.state.delays;
        delays.note_arrival(from.index(), sent, cx.now.at.us);
        decode_delay(delay).into_iter().for_each(|delay| delays.note_told(from.index(), delay));
        self.state.views.told[from.index()] = told;
        self.on_kept(cx, from, told);
        self.start_view_at(cx, from);
        let views = &self.state.views;
        if views.leader() == Some(from) && views.view.number == told.view && !told.leads {
            // The log that it was sent may have arrived before it knew the view.
            self.send_view_change(cx);
        }
    }
}
