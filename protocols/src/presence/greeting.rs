//! Detects a lost log before a replica takes part in decisions.

use bytes::Bytes;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;

use super::session::Session;
use super::{Host, Message, Presence};
use crate::replica::Replica;
use crate::streams::lost_log;

/// The relation of a greeting's identity to the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// It is recorded now, for the first time. The owner greets the peer.
    First,
    /// It is the recorded one.
    Again,
    /// Another one is recorded. The owner greets the peer, which then stops, and ignores the
    /// greeting.
    Stranger,
}

impl<H: Host> Presence<H> {
    /// Starts the exchange after the log was read. `was_ready` is whether this replica has
    /// participated before.
    pub(crate) fn begin(&mut self, replica: &Replica, was_ready: bool) {
        let topology = &replica.topology;
        let own = usize::from(topology.votes(replica.me));
        let peers = topology.voter_count() - own;
        self.voters = topology.voter_count();
        self.was_ready = was_ready;
        self.enough = match was_ready {
            true => topology.majority() - own,
            false => peers.min(peers / 2 + 1),
        };
    }

    /// Draws and logs this replica's identity if it has none.
    pub(crate) fn draw_log_identity(&mut self, cx: &mut Cx<'_, H>, replica: &mut Replica) {
        if self.log_identities[replica.me.index()] == 0 {
            cx.mark("presence.born");
            let log_identity = cx.rng.u64(1..);
            self.note_log_identity(cx, replica, replica.me, log_identity);
        }
    }

    /// Sends a peer this replica's identity and its knowledge of the peer.
    pub(crate) fn greet(&self, cx: &mut Cx<'_, H>, replica: &Replica, peer: NodeId, known: Bytes) {
        let log_identity = self.log_identities[replica.me.index()];
        let receiver_identity = self.log_identities[peer.index()];
        replica.send_after(
            cx,
            self.logged,
            peer,
            Message::Greeting { log_identity, receiver_identity, known },
        );
    }

    /// Compares the identity in a peer's greeting with the recorded one.
    pub(crate) fn meet(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        from: NodeId,
        (log_identity, receiver_identity): (u64, u64),
    ) -> Met {
        let known = self.log_identities[from.index()];
        if known == 0 {
            self.note_log_identity(cx, replica, from, log_identity);
            Met::First
        } else if known != log_identity {
            cx.mark("presence.stranger");
            self.enter(from, Session::Stranger(receiver_identity));
            Met::Stranger
        } else {
            Met::Again
        }
    }

    /// Whether a peer may have ignored this replica's greeting, and got no answer that tells it the
    /// identity in its place.
    pub(crate) fn has_asked_early(&self, peer: NodeId) -> bool {
        self.asked_early[peer.index()]
    }

    /// Records that a peer has greeted. Returns whether it was rejoining, and has ignored all other
    /// messages in the meantime.
    pub(crate) fn end_rejoin_of(&mut self, peer: NodeId) -> bool {
        self.asked_early[peer.index()] = false;
        self.rejoins[peer.index()].take().is_some()
    }

    /// Whether a greeting was sent before the peer's answer to a rejoin request, in which it
    /// recorded the new identity, and the answer overtook it.
    pub(crate) fn is_late(&self, replica: &Replica, from: NodeId, receiver_identity: u64) -> bool {
        receiver_identity != 0
            && receiver_identity != self.log_identities[replica.me.index()]
            && self.answered[from.index()]
    }

    /// Records whether a peer knows another identity of this replica. Then it ignores this
    /// replica's messages, and its own are ignored, too.
    pub(crate) fn note_known(&mut self, replica: &Replica, from: NodeId, receiver_identity: u64) {
        let is_another =
            receiver_identity != 0 && receiver_identity != self.log_identities[replica.me.index()];
        self.knows_another[from.index()] = is_another;
        if is_another {
            self.enter(from, Session::Estranged);
        }
    }

    /// The evidence that this replica has lost its log: a peer knows another identity of it. One
    /// such peer may have an old disk itself, if this replica has participated before. Then it
    /// takes so many that this replica can't become ready, or `has_lost`: the peer has more of the
    /// log.
    pub(crate) fn forgotten(
        &self,
        replica: &Replica,
        from: NodeId,
        has_lost: bool,
    ) -> Option<String> {
        let others = replica.voting_peers();
        let others = others.filter(|peer| !self.knows_another[peer.index()]).count();
        let is_sure = has_lost || !self.is_ready && (!self.was_ready || others < self.enough);
        (self.knows_another[from.index()] && is_sure).then(|| {
            lost_log(&format!(
                "node {} knows an earlier start of this node that is missing from its log",
                replica.node(from).0
            ))
        })
    }

    /// Records that a peer knows an identity of this replica. Returns whether the replica became
    /// ready now.
    pub(crate) fn confirm(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        from: NodeId,
        receiver_identity: u64,
    ) -> bool {
        if receiver_identity != self.log_identities[replica.me.index()] {
            return false;
        }
        self.knows[from.index()] = true;
        self.become_ready(cx)
    }

    /// Makes this replica ready once enough peers have confirmed. Returns whether that changed now.
    pub(crate) fn become_ready(&mut self, cx: &mut Cx<'_, H>) -> bool {
        // Those without a vote are in no quorum.
        let count = self.knows[..self.voters].iter().filter(|knows| **knows).count();
        if self.is_ready || count < self.enough {
            return false;
        }
        self.is_ready = true;
        cx.mark("presence.ready");
        true
    }
}
