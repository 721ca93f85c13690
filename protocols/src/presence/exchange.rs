//! The order of steps in a greeting and in a rejoin, with the knowledge that the owner adds.
//!
//! A peer that knows more of a replica's past than the replica stops it: the replica has lost a
//! part of its log. The way back is a rejoin.

use bytes::Bytes;
use pangea_core::codec::DecodeError;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;

use super::{Asked, Host, Message, Met, Presence};
use crate::replica::Replica;

/// The owner of this component: it knows what the replicas decide, and adds its knowledge to
/// greetings and answers.
pub(crate) trait Owner {
    /// The protocol.
    type Host: Host;

    /// The knowledge in a greeting.
    type Evidence;

    /// The parts that this component works on.
    fn parts(&mut self) -> (&mut Presence<Self::Host>, &mut Replica);

    /// The knowledge of a peer, for a greeting.
    fn evidence(&self, peer: NodeId) -> Bytes;

    /// Decodes the knowledge in a greeting.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    fn decode_evidence(&self, known: &[u8]) -> Result<Self::Evidence, DecodeError>;

    /// Notes what a peer tells about itself in its greeting.
    fn note_evidence(&mut self, from: NodeId, known: &Self::Evidence);

    /// The evidence that this replica has lost part of its log.
    fn lost(&self, from: NodeId, known: &Self::Evidence) -> Option<String>;

    /// Repeats the messages to a peer that may have been lost, or that it may have ignored.
    fn repeat_messages(&mut self, cx: &mut Cx<'_, Self::Host>, peer: NodeId);

    /// Whether this replica lost its disk and has not recovered all data yet.
    fn is_catching_up(&self) -> bool;

    /// Forgets the state of a peer's previous log, and records its new identity.
    fn end_earlier_life(&mut self, cx: &mut Cx<'_, Self::Host>, peer: NodeId, log_identity: u64);

    /// The knowledge of a peer that has lost its disk. `is_whole` is whether this replica has its
    /// complete log.
    fn memory_of(&self, peer: NodeId, is_whole: bool) -> Bytes;

    /// Continues from the knowledge of the peers, after a lost disk.
    fn end_asking(
        &mut self,
        cx: &mut Cx<'_, Self::Host>,
        all: Vec<(NodeId, <Self::Host as Host>::Memory)>,
    );
}

/// Sends a peer this replica's identity and its knowledge of the peer.
pub(crate) fn greet<O: Owner>(owner: &mut O, cx: &mut Cx<'_, O::Host>, peer: NodeId) {
    let known = owner.evidence(peer);
    let (presence, replica) = owner.parts();
    presence.greet(cx, replica, peer, known);
}

/// Starts to communicate with a peer that has answered this replica.
pub(crate) fn meet<O: Owner>(owner: &mut O, cx: &mut Cx<'_, O::Host>, peer: NodeId) {
    greet(owner, cx, peer);
    owner.repeat_messages(cx, peer);
}

/// Handles a peer's message about identities. Returns whether this replica became ready.
pub(crate) fn on_message<O: Owner>(
    owner: &mut O,
    cx: &mut Cx<'_, O::Host>,
    from: NodeId,
    message: Message,
) -> bool {
    match message {
        Message::Greeting { log_identity, receiver_identity, known } => {
            return on_greeting(owner, cx, from, (log_identity, receiver_identity), &known);
        }
        Message::Rejoin { nonce, log_identity } => {
            on_rejoin(owner, cx, from, (nonce, log_identity));
            owner.parts().0.note_rejoin_message(from, log_identity);
        }
        Message::RejoinReply { nonce, log_identity, known } => {
            let (presence, replica) = owner.parts();
            let all = presence.on_rejoin_reply(cx, replica, from, (nonce, log_identity), &known);
            presence.note_rejoin_message(from, log_identity);
            if let Some(all) = all {
                owner.end_asking(cx, all);
            }
        }
    }
    false
}

/// Handles a peer's greeting: its identity and its knowledge of this replica.
fn on_greeting<O: Owner>(
    owner: &mut O,
    cx: &mut Cx<'_, O::Host>,
    from: NodeId,
    (log_identity, receiver_identity): (u64, u64),
    known: &[u8],
) -> bool {
    let Ok(known) = owner.decode_evidence(known) else {
        cx.mark("presence.malformed_greeting");
        return false;
    };
    let (presence, replica) = owner.parts();
    let was_stranger = presence.is_stranger(from);
    let met = presence.meet(cx, replica, from, (log_identity, receiver_identity));
    // Two strangers would reply to each other's replies without end.
    if met != Met::Again && !was_stranger {
        greet(owner, cx, from);
    }
    let (presence, replica) = owner.parts();
    if met == Met::Stranger {
        presence.is_foreign(replica).into_iter().for_each(|why| cx.stop(why));
        return false;
    }
    let is_late = presence.is_late(replica, from, receiver_identity);
    owner.note_evidence(from, &known);
    if !is_late {
        let (presence, replica) = owner.parts();
        presence.note_known(replica, from, receiver_identity);
        let lost = owner.lost(from, &known);
        let (presence, replica) = owner.parts();
        if let Some(forgotten) = presence.forgotten(replica, from, lost.is_some()).or(lost) {
            cx.stop(forgotten);
            return false;
        }
        if presence.is_stranger(from) {
            return false;
        }
    }
    if owner.parts().0.has_asked_early(from) {
        greet(owner, cx, from);
    }
    let (presence, _) = owner.parts();
    let is_first = presence.note_greeting(from);
    if presence.end_rejoin_of(from) || is_first {
        owner.repeat_messages(cx, from);
    }
    if is_late {
        cx.mark("presence.greeting_late");
        return false;
    }
    let (presence, replica) = owner.parts();
    presence.confirm(cx, replica, from, receiver_identity)
}

/// Handles the request of a peer that lost its disk.
fn on_rejoin<O: Owner>(
    owner: &mut O,
    cx: &mut Cx<'_, O::Host>,
    from: NodeId,
    (nonce, log_identity): (u64, u64),
) {
    let is_catching_up = owner.is_catching_up();
    let (presence, replica) = owner.parts();
    // It is empty if this replica has lost its disk, too.
    let known = match presence.on_rejoin(replica, from, (nonce, log_identity), is_catching_up) {
        Asked::TooEarly => return cx.mark("presence.rejoin_too_early"),
        Asked::KnowsNothing => Bytes::new(),
        Asked::Answers { is_new, is_whole } => {
            if is_new {
                owner.end_earlier_life(cx, from, log_identity);
            }
            owner.memory_of(from, is_whole)
        }
    };
    cx.mark("presence.rejoin_answered");
    let (presence, replica) = owner.parts();
    presence.answer(cx, replica, from, (nonce, known));
}
