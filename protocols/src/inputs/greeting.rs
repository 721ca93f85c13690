//! Greetings with the knowledge of batches and promises.
//!
//! A peer that has more of a replica's log than the replica, or a later promise of it, stops it:
//! the replica has lost a part of its log. The way back is in `rejoin.rs`.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;

use super::stop::Stopping;
use super::{Host, Inputs, RejoinState};
use crate::agreement::{Term, lost_promises};
use crate::messages::NUMBER_MAX;
use crate::presence::{self, Presence};
use crate::replica::Replica;
use crate::streams::{Bid, lost_batches};

/// The knowledge of the receiver that is in a greeting, besides its identity, and whether the
/// sender is stopping.
pub(crate) struct Evidence {
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

impl<H: Host> presence::Owner for Inputs<H> {
    type Host = H;
    type Evidence = Evidence;

    fn parts(&mut self) -> (&mut Presence<H>, &mut Replica) {
        (&mut self.presence, &mut self.replica)
    }

    fn evidence(&self, peer: NodeId) -> Bytes {
        let known = Evidence {
            batches: self.streams.logs[peer.index()].received,
            promise: self.agreement().promise_of(peer),
            follows: self.agreement().term(),
            incarnation: self.cut.last_proposal.incarnation,
            stopping: self.stops.own_stopping(),
        };
        known.encode()
    }

    fn decode_evidence(&self, known: &[u8]) -> Result<Evidence, DecodeError> {
        Evidence::decode(known, self.replica.topology.node_count())
    }

    fn note_evidence(&mut self, from: NodeId, known: &Evidence) {
        self.cut.follows = self.cut.follows.max(known.follows);
        self.stops.on_greeting(from, known.incarnation, known.stopping);
    }

    /// Batches or promises that a peer knows and that this replica does not have.
    fn lost(&self, from: NodeId, known: &Evidence) -> Option<String> {
        let received = self.streams.own_head(&self.replica);
        let from = self.node(from);
        if known.batches > received {
            return Some(lost_batches(from, known.batches, received));
        }
        let has_lost = known.promise > self.agreement().term();
        has_lost.then(|| lost_promises(from))
    }

    fn repeat_messages(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        if self.presence.is_ready {
            self.agreement_mut().on_peer_up(peer);
        }
        self.streams.resend(cx, &self.replica, peer);
        if self.transfer.resume(cx, &self.replica, peer) {
            self.retry_transfer(cx);
        }
        self.retry_barriers(cx, Some(peer));
        self.announce_stop(cx);
    }

    fn is_catching_up(&self) -> bool {
        self.target.is_some()
    }

    fn end_earlier_life(&mut self, cx: &mut Cx<'_, H>, peer: NodeId, log_identity: u64) {
        self.presence.note_log_identity(cx, &mut self.replica, peer, log_identity);
        self.streams.end_earlier_life(cx, &mut self.replica, peer);
        self.collection.applied[peer.index()] = SnapshotVersion::ZERO;
        self.collection.durable[peer.index()] = SnapshotVersion::ZERO;
        self.transfer.stop(peer);
    }

    fn memory_of(&self, peer: NodeId, is_whole: bool) -> Bytes {
        self.known_of(peer, is_whole).encode()
    }

    fn end_asking(&mut self, cx: &mut Cx<'_, H>, all: Vec<(NodeId, RejoinState<H::Rules>)>) {
        self.continue_from(cx, all);
    }
}

impl<H: Host> Inputs<H> {
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
