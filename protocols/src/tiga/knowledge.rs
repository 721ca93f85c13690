//! What replicas know of each other's past, and its comparison when they greet each other.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;

use super::Tiga;
use super::coordinator::Resend;
use super::log::{Position, ViewNumber};
use super::rejoin::Known;
use super::state::State;
use super::views::PeerState;
use crate::agreement::{Term, lost_promises};
use crate::presence::{self, Presence};
use crate::replica::Replica;
use crate::streams::{lost_log, number};

/// What a peer knows of this replica.
pub struct Evidence {
    /// The view and the position up to which this replica has told that its log is durable.
    synced: (ViewNumber, Position),
    /// The term of agreement that it has promised to follow.
    promise: Term,
}

impl presence::Owner for Tiga {
    type Host = Self;
    type Evidence = Evidence;

    fn parts(&mut self) -> (&mut Presence<Self>, &mut Replica) {
        (&mut self.state.presence, &mut self.state.replica)
    }

    fn evidence(&self, peer: NodeId) -> Bytes {
        let (view, upto) = self.state.commit.last_synced_of(peer);
        let mut out = Vec::new();
        out.put_varint(view.0);
        out.put_varint(upto.0);
        self.state.views.driver.agreement().promise_of(peer).encode(&mut out);
        out.into()
    }

    fn decode_evidence(&self, known: &[u8]) -> Result<Evidence, DecodeError> {
        let from = &mut Reader::new(known);
        let view = ViewNumber(number(from, "greeting")?);
        let upto = Position(number(from, "greeting")?);
        let promise = Term::decode(from)?;
        let is_sound = promise.is_sound(self.state.replica.topology.node_count());
        match is_sound && from.is_empty() {
            true => Ok(Evidence { synced: (view, upto), promise }),
            false => Err(DecodeError::new("greeting")),
        }
    }

    fn note_evidence(&mut self, _: NodeId, _: &Evidence) {}

    fn lost(&self, from: NodeId, known: &Evidence) -> Option<String> {
        if known.synced > self.state.log.had() {
            let ((view, upto), node) = (known.synced, self.state.replica.node(from).0);
            return Some(lost_log(&format!(
                "node {node} knows that this node had its log up to cell {} of view {}, but the \
                 log ends before",
                upto.0, view.0
            )));
        }
        let has_lost = known.promise > self.state.views.driver.agreement().term();
        has_lost.then(|| lost_promises(from))
    }

    fn repeat_messages(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let State { presence, views, transfer, replica, .. } = &mut self.state;
        if presence.is_ready {
            views.driver.agreement_mut().on_peer_up(peer);
        }
        if transfer.resume(cx, replica, peer) {
            self.retry_transfer(cx);
        }
        self.send_progress(cx);
        self.tell_synced(cx);
        self.send_view_change(cx);
        let node = self.state.replica.node(peer);
        self.submit_again(cx, Resend::AllTo(node));
    }

    fn is_catching_up(&self) -> bool {
        !self.state.is_whole()
    }

    fn end_earlier_life(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId, log_identity: u64) {
        let State { presence, replica, commit, transfer, views, .. } = &mut self.state;
        presence.note_log_identity(cx, replica, peer, log_identity);
        commit.forget_synced(peer);
        transfer.stop(peer);
        views.reports.remove(&peer);
        views.told[replica.node(peer).index()] = PeerState::default();
    }

    fn memory_of(&self, peer: NodeId, is_whole: bool) -> Bytes {
        self.state.known_of(peer, is_whole).encode()
    }

    fn end_asking(&mut self, cx: &mut Cx<'_, Self>, all: Vec<(NodeId, Known)>) {
        self.continue_from(cx, all);
    }
}
