//! Stops in order: a leader hands the shard over first, and a coordinator waits for its
//! transactions.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::Tiga;
use super::state::State;

/// How long a node that is stopping waits for others.
const PATIENCE: Span = Span::from_ms(3_000);

/// The progress of this replica's stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    since: Timestamp,
    /// Whether this node may end.
    pub may_end: bool,
}

impl Tiga {
    /// Handles the request to stop in order: new requests are refused, and the view manager lets
    /// another replica lead.
    pub(super) fn on_stop(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.stop.is_none() {
            self.state.stop = Some(Stop { since: cx.now.at, may_end: false });
            self.send_progress(cx);
        }
    }

    /// Makes progress with the stop of this replica.
    pub(super) fn advance_stop(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(stop) = self.state.stop else { return };
        let is_settled = self.state.coordinator.in_flight.is_empty()
            && self.state.waiting_reads.is_empty()
            && self.state.fresh.is_idle();
        let State { replica, views, leading, .. } = &self.state;
        let is_leaving = |peer: NodeId| views.told[replica.node(peer).index()].is_leaving;
        let stays = |peer: &NodeId| replica.is_up[peer.index()] && !is_leaving(*peer);
        // Nobody could lead if all others are stopping, too.
        let is_last = replica.peers().filter(stays).count() < replica.topology.majority();
        let may_leave = is_settled && (leading.is_none() || is_last);
        if may_leave || cx.now.at.since(stop.since) >= PATIENCE {
            cx.mark("tiga.stop_over");
            self.state.stop = Some(Stop { may_end: true, ..stop });
        }
    }
}
