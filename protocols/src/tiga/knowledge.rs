//! What replicas know of each other's past, and its comparison when they greet each other.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;

use super::Tiga;
use super::log::{Position, ViewNumber};
use super::state::State;
use crate::agreement::{Term, lost_promises};
use crate::presence::{self, Memory, Presence};
use crate::replica::Replica;
use crate::streams::{lost_log, number};

/// What a peer knows of this replica.
pub struct Evidence {
    /// The view and the position up to which this replica has told that its log is durable.
    synced: (ViewNumber, Position),
    /// The term of agreement that it has promised to follow.
    promise: Term,
}

/// What peers know of a replica that lost its disk. Such a replica can't be replaced yet.
pub struct Known;

impl Memory for Known {
    fn decode(_: &[u8], _: usize) -> Result<Self, DecodeError> {
        Err(DecodeError::new("recollection"))
    }

    fn is_whole(&self) -> bool {
        false
    }
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
        let promise = match self.state.does_decide(self.state.node) {
            true => self.state.views.driver.agreement().promise_of(peer),
            false => Term::default(),
        };
        promise.encode(&mut out);
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
        if known.synced > (self.state.log.view, self.state.log.last()) {
            let ((view, upto), node) = (known.synced, self.state.replica.node(from).0);
            return Some(lost_log(&format!(
                "node {node} knows that this node had its log up to cell {} of view {}, but the \
                 log ends before",
                upto.0, view.0
            )));
        }
        let decides = self.state.does_decide(self.state.node);
        let has_lost = decides && known.promise > self.state.views.driver.agreement().term();
        has_lost.then(|| lost_promises(from))
    }

    fn repeat_messages(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        if self.state.presence.is_ready && self.state.does_decide(self.state.node) {
            self.state.views.driver.agreement_mut().on_peer_up(peer);
        }
        self.send_progress(cx);
        self.tell_synced(cx);
        self.send_view_change(cx);
        let node = self.state.replica.node(peer);
        self.submit_again(cx, Some(node));
    }

    fn is_catching_up(&self) -> bool {
        false
    }

    fn end_earlier_life(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId, log_identity: u64) {
        let State { presence, replica, .. } = &mut self.state;
        presence.note_log_identity(cx, replica, peer, log_identity);
    }

    fn memory_of(&self, _: NodeId, _: bool) -> Bytes {
        Bytes::new()
    }

    fn end_asking(&mut self, _: &mut Cx<'_, Self>, _: Vec<(NodeId, Known)>) {
        unreachable!("a node without its log is not replaced");
    }
}
