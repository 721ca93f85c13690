//! Greetings with the knowledge of batches and promises.
//!
//! A peer that has more of a replica's log than the replica, or a later promise of it, stops it:
//! the replica has lost a part of its log. The way back is in `rejoin.rs`.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;

use super::stop::Stopping;
use super::{Event, Host, Inputs};
use crate::agreement::Term;
use crate::messages::NUMBER_MAX;
use crate::presence::{Asked, Message, Met};
use crate::streams::{Bid, lost_batches, lost_log};

/// The knowledge of the receiver that is in a greeting, besides its identity, and whether the
/// sender is stopping.
struct Evidence {
    /// The last batch of the receiver's log that the sender has without gaps.
    batches: Bid,
    /// The latest ballot that the receiver has promised to the sender.
    promise: Term,
    /// The latest ballot that the sender has promised to any replica.
    follows: Term,
    /// The life of the sender: a number that it draws at each start.
    incarnation: u64,
    /// Whether the sender is stopping in order.
    stopping: Stopping,
}

impl Evidence {
    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_varint(self.batches.0);
        self.promise.encode(&mut out);
        self.follows.encode(&mut out);
        out.put_u64(self.incarnation);
        out.put_u8(self.stopping as u8);
        out.into()
    }

    fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "greeting";
        let from = &mut Reader::new(bytes);
        let batches = Bid(from.varint(WHAT)?);
        let (promise, follows) = (Term::decode(from)?, Term::decode(from)?);
        let incarnation = from.u64(WHAT)?;
        let stopping = Stopping::of(from.u8(WHAT)?).ok_or_else(|| DecodeError::new(WHAT))?;
        let are_sound = promise.is_sound(node_count) && follows.is_sound(node_count);
        match batches.0 <= NUMBER_MAX && are_sound && from.is_empty() {
            true => Ok(Self { batches, promise, follows, incarnation, stopping }),
            false => Err(DecodeError::new(WHAT)),
        }
    }
}

impl<H: Host> Inputs<H> {
    /// Handles a peer's message about identities.
    pub(super) fn on_presence(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        message: Message,
    ) -> Option<Event<H>> {
        match message {
            Message::Greeting { log_identity, receiver_identity, known } => {
                return self.on_greeting(cx, from, (log_identity, receiver_identity), &known);
            }
            Message::Rejoin { nonce, log_identity } => {
                let is_catching_up = self.target.is_some();
                let (presence, replica) = (&mut self.presence, &self.replica);
                match presence.on_rejoin(replica, from, (nonce, log_identity), is_catching_up) {
                    Asked::TooEarly => cx.mark("inputs.rejoin_too_early"),
                    Asked::KnowsNothing => self.answer_rejoin(cx, from, nonce, None),
                    Asked::Answers { is_new, is_whole } => {
                        if is_new {
                            self.end_earlier_life(cx, from, log_identity);
                        }
                        self.answer_rejoin(cx, from, nonce, Some(is_whole));
                    }
                }
                self.presence.note_rejoin_message(from, log_identity);
            }
            Message::RejoinReply { nonce, log_identity, known } => {
                let (presence, replica) = (&mut self.presence, &self.replica);
                let all =
                    presence.on_rejoin_reply(cx, replica, from, (nonce, log_identity), &known);
                presence.note_rejoin_message(from, log_identity);
                if let Some(all) = all {
                    self.end_asking(cx, all);
                }
            }
        }
        None
    }

    /// Starts the exchange after the log was read. `was_ready` is whether this replica has
    /// participated before; `is_replaced` is whether it may have done so before its disk was lost.
    pub(crate) fn begin_greetings(
        &mut self,
        cx: &mut Cx<'_, H>,
        was_ready: bool,
        is_replaced: bool,
    ) {
        self.presence.begin(&self.replica, was_ready);
        if is_replaced && !was_ready {
            return self.presence.start_rejoin(cx, &self.replica);
        }
        if self.holds_target() {
            // An earlier run had already reached it.
            self.target = None;
        }
        if is_replaced && self.target.is_none() {
            // An earlier run completed the rejoin but stopped before the driver had recorded it.
            cx.rejoined();
        }
        self.presence.draw_log_identity(cx, &mut self.replica);
        if self.replica.topology.node_count() == 1 {
            // There is nothing to send yet.
            self.presence.become_ready(cx);
            // The batches in its log are available, although nothing is being synced.
            self.streams.update_available(cx, &self.replica);
        }
    }

    /// Sends a peer this replica's identity and its knowledge of the peer.
    pub(super) fn greet(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        let known = Evidence {
            batches: self.streams.logs[peer.index()].received,
            promise: self.agreement().promise_of(peer),
            follows: self.agreement().term(),
            incarnation: self.cut.last_proposal.incarnation,
            stopping: self.stops.own_stopping(),
        };
        self.presence.greet(cx, &self.replica, peer, known.encode());
    }

    /// Handles a peer's greeting: its identity and its knowledge of this replica.
    fn on_greeting(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        (log_identity, receiver_identity): (u64, u64),
        known: &[u8],
    ) -> Option<Event<H>> {
        let Ok(known) = Evidence::decode(known, self.replica.topology.node_count()) else {
            cx.mark("presence.malformed_greeting");
            return None;
        };
        let was_stranger = self.presence.is_stranger(from);
        let met =
            self.presence.meet(cx, &mut self.replica, from, (log_identity, receiver_identity));
        // Two strangers would reply to each other's replies without end.
        if met != Met::Again && !was_stranger {
            self.greet(cx, from);
        }
        if met == Met::Stranger {
            self.presence.is_foreign(&self.replica).into_iter().for_each(|why| cx.stop(why));
            return None;
        }
        self.cut.follows = self.cut.follows.max(known.follows);
        self.stops.on_greeting(from, known.incarnation, known.stopping);
        let is_late = self.presence.is_late(&self.replica, from, receiver_identity);
        if !is_late {
            self.presence.note_known(&self.replica, from, receiver_identity);
            let lost = self.forgotten(from, &known);
            let forgotten = self.presence.forgotten(&self.replica, from, lost.is_some());
            if let Some(forgotten) = forgotten.or(lost) {
                cx.stop(forgotten);
                return None;
            }
            if self.presence.is_stranger(from) {
                return None;
            }
        }
        if self.presence.has_asked_early(from) {
            self.greet(cx, from);
        }
        let is_first = self.presence.note_greeting(from);
        if self.presence.end_rejoin_of(from) || is_first {
            self.repeat_messages(cx, from);
        }
        if is_late {
            cx.mark("inputs.greeting_late");
            return None;
        }
        self.presence.confirm(cx, &self.replica, from, receiver_identity).then_some(Event::Ready)
    }

    /// The evidence that this replica has lost part of its log: batches or promises that a peer
    /// knows and that it does not have.
    fn forgotten(&self, from: NodeId, known: &Evidence) -> Option<String> {
        let received = self.streams.own_head(&self.replica);
        let from = self.node(from);
        if known.batches > received {
            return Some(lost_batches(from, known.batches, received));
        }
        (known.promise > self.agreement().term()).then(|| {
            lost_log(&format!(
                "this node made promises to node {} in agreement that are missing from its log",
                from.0
            ))
        })
    }
}

/// The knowledge of a greeting, for the fuzzer.
#[cfg(test)]
pub(crate) fn knowledge(batches: Bid, term: Term) -> Bytes {
    let stopping = Stopping::Stays;
    Evidence { batches, promise: term, follows: term, incarnation: 1, stopping }.encode()
}

/// Decodes the knowledge of a greeting, and returns its number of batches.
#[cfg(test)]
pub(crate) fn decode_evidence(bytes: &[u8], node_count: usize) -> Result<usize, DecodeError> {
    Evidence::decode(bytes, node_count).map(|known| known.batches.0 as usize)
}
