//! Progress reports: nodes tell each other that they are alive, and what has to be sent again.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::delays::{decode_delay, encode_delay};
use super::messages::Message;
use super::views::PeerState;
use super::{Tiga, Timer};

impl Tiga {
    /// The interval of progress reports is over.
    pub(super) fn on_progress_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Progress, Span::from_ms(self.state.options.heartbeat_ms));
        self.send_progress(cx);
        self.send_proposal(cx);
        self.retry_late(cx);
        self.ask_again(cx);
        self.choose_sources(cx);
        self.repeat_notices(cx);
        if self.state.is_leader() && self.state.views.reports.is_empty() {
            self.send_view_change(cx);
        }
    }

    /// Tells all nodes the state of this replica.
    pub(super) fn send_progress(&mut self, cx: &mut Cx<'_, Self>) {
        let PeerState { view, last: (normal, last), committed, leads, is_leaving } =
            self.state.told();
        let sent = self.state.clock_us(cx);
        for node in self.state.cluster.peers_of(self.state.node) {
            let message = Message::Progress {
                sent,
                view: view.0,
                normal: normal.0,
                last: last.0,
                committed: committed.0,
                leads,
                is_leaving,
                kept: self.state.shards.as_ref().map_or(0, |shards| shards.kept.0),
                delay: encode_delay(self.state.delays.measured(node.index())),
            };
            cx.send(node, message);
        }
    }

    pub(super) fn on_progress(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        told: PeerState,
        (sent, delay): (u64, u64),
    ) {
        let now = self.state.clock_us(cx);
        let delays = &mut self.state.delays;
        delays.note_arrival(from.index(), sent, now);
        decode_delay(delay).into_iter().for_each(|delay| delays.note_told(from.index(), delay));
        let before = std::mem::replace(&mut self.state.views.told[from.index()], told);
        let begins_to_lead = told.leads && !(before.leads && before.view == told.view);
        if begins_to_lead && self.state.views.view.leaders.contains(&from) {
            self.submit_again(cx, Some(from));
        }
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
