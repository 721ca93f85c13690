//! Progress reports: replicas tell each other that they are alive, and what has to be sent again.

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
        self.retry_late(cx);
        self.ask_again(cx);
    }

    /// Tells the peers the state of this replica.
    pub(super) fn send_progress(&mut self, cx: &mut Cx<'_, Self>) {
        let PeerState { view, last: (normal, last), committed, leads, is_leaving } =
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
            };
            self.state.replica.send(cx, peer, message);
        }
    }

    pub(super) fn on_progress(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        told: PeerState,
        (sent, delay): (u64, u64),
    ) {
        let delays = &mut self.state.delays;
        delays.note_arrival(from.index(), sent, cx.now.at.us);
        decode_delay(delay).into_iter().for_each(|delay| delays.note_told(from.index(), delay));
        self.state.views.told[from.index()] = told;
        self.start_view_at(cx, from);
        let views = &self.state.views;
        if views.leader() == Some(from) && views.view.number == told.view && !told.leads {
            // The log that it was sent may have arrived before it knew the view.
            self.send_view_change(cx);
        }
    }
}
