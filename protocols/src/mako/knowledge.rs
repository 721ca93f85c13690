//! What replicas know of each other's past, and its comparison when they greet each other.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;

use super::Mako;
use super::progress::PeerState;
use super::rejoin::Known;
use super::state::State;
use super::versions::{Epoch, count_of};
use crate::agreement::{Term, lost_promises};
use crate::presence::{self, Presence};
use crate::replica::Replica;
use crate::streams::{lost_log, number};

/// What a peer knows of this replica.
pub struct Evidence {
    /// The epoch and the version up to which this replica has told that its log is durable.
    acked: (Epoch, SnapshotVersion),
    /// The term of agreement that it has promised to follow.
    promise: Term,
}

impl presence::Owner for Mako {
    type Host = Self;
    type Evidence = Evidence;

    fn parts(&mut self) -> (&mut Presence<Self>, &mut Replica) {
        (&mut self.state.presence, &mut self.state.replica)
    }

    fn evidence(&self, peer: NodeId) -> Bytes {
        let (epoch, upto) = self.state.commit.acked_ever[peer.index()];
        let mut out = Vec::new();
        out.put_varint(epoch.0);
        out.put_varint(upto.0);
        self.state.epochs.driver.agreement().promise_of(peer).encode(&mut out);
        out.into()
    }

    fn decode_evidence(&self, known: &[u8]) -> Result<Evidence, DecodeError> {
        let from = &mut Reader::new(known);
        let epoch = Epoch(number(from, "greeting")?);
        let upto = SnapshotVersion(number(from, "greeting")?);
        let promise = Term::decode(from)?;
        let is_sound = promise.is_sound(self.state.replica.topology.node_count());
        match is_sound && from.is_empty() {
            true => Ok(Evidence { acked: (epoch, upto), promise }),
            false => Err(DecodeError::new("greeting")),
        }
    }

    fn note_evidence(&mut self, _: NodeId, _: &Evidence) {}

    fn lost(&self, from: NodeId, known: &Evidence) -> Option<String> {
        if known.acked > self.state.log.had() {
            let ((epoch, upto), node) = (known.acked, self.state.replica.node(from).0);
            return Some(lost_log(&format!(
                "node {node} knows that this node had the log of epoch {} up to entry {}, but the \
                 log ends before",
                epoch.0,
                count_of(upto)
            )));
        }
        let has_lost = known.promise > self.state.epochs.driver.agreement().term();
        has_lost.then(|| lost_promises(from))
    }

    fn repeat_messages(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let State { presence, epochs, transfer, replica, .. } = &mut self.state;
        if presence.is_ready && replica.votes() && replica.topology.votes(peer) {
            epochs.driver.agreement_mut().on_peer_up(peer);
        }
        if transfer.resume(cx, replica, peer) {
            self.retry_transfer(cx);
        }
        if self.state.leader() == Some(peer) {
            self.state.origin.send_again();
            let node = self.state.replica.node(peer);
            self.forward_again(node);
            self.state.fresh.ask_anew();
            self.send_report(cx, false);
        }
        self.fetch_again(peer);
        self.send_progress(cx);
    }

    fn is_catching_up(&self) -> bool {
        !self.state.is_whole()
    }

    fn end_earlier_life(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId, log_identity: u64) {
        let State { presence, replica, commit, transfer, epochs, reports, sent, .. } =
            &mut self.state;
        presence.note_log_identity(cx, replica, peer, log_identity);
        commit.acked[peer.index()] = None;
        commit.acked_ever[peer.index()] = Default::default();
        transfer.stop(peer);
        (reports[peer.index()], sent[peer.index()]) = (None, None);
        epochs.told[peer.index()] = PeerState::default();
    }

    fn memory_of(&self, peer: NodeId, is_whole: bool) -> Bytes {
        self.state.known_of(peer, is_whole).encode()
    }

    fn end_asking(&mut self, cx: &mut Cx<'_, Self>, all: Vec<(NodeId, Known)>) {
        self.continue_from(cx, all);
    }
}
