//! Rejoin: a replica that lost its disk recovers, under the same id.
//!
//! The replica has made promises, acknowledged batches and numbered its own batches, and has no
//! record of that. Therefore it asks all other replicas for their knowledge of it. Until they have
//! answered, it sends and accepts no other messages.
//!
//! ```text
//!   replaced                                every other
//!     | Rejoin(nonce, identity) ------------> |   logs the identity: the previous log is over
//!     | <-------- RejoinReply(nonce, known)   |   sent when the reported state is durable there
//!   all have answered, enough of them remember: the owner logs their knowledge, in one record
//!     | Greeting, .. -----------------------> |   takes part, and fetches the data that it held
//! ```
//!
//! If n - majority + 1 peers remember, every majority in which the replica took part has a member
//! among them.
//!
//! Messages in flight from its previous log do no harm. A peer answers in the session of the new
//! log, and no message of an earlier session arrives after that. A greeting that a peer sent in the
//! same session before its answer, on another lane, is ignored ([`Presence::is_late`]). A peer that
//! has lost its disk too replies that it knows nothing, and is asked again later. A peer that
//! participates again but is still catching up reports its knowledge, because it may have data that
//! no other replica has. It does not count among the peers that remember.

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::{Host, Memory, Message, Presence, RejoinTimer, remembering_min};
use crate::replica::Replica;

/// The interval at which peers that have not answered are asked again.
const RETRY: Span = Span::from_ms(500);

/// The requests and the answers received.
pub(crate) struct RejoinQueries<M> {
    nonce: u64,
    pub(super) answers: Vec<Answer<M>>,
}

/// The answer of a peer.
pub(crate) enum Answer<M> {
    None,
    KnowsNothing,
    Knows(M),
}

impl<M: Memory> Answer<M> {
    /// Whether the peer remembers everything that it ever sent.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Knows(known) if known.is_whole())
    }
}

/// A request of a peer that lost its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// This replica does not answer yet: it may have lost its own log, and other peers will tell.
    TooEarly,
    /// This replica has lost its disk too, and answers that it knows nothing.
    KnowsNothing,
    /// This replica answers. `is_new` is whether the peer has lost its disk since its last request;
    /// `is_whole` is whether this replica has its complete log.
    Answers { is_new: bool, is_whole: bool },
}

impl<H: Host> Presence<H> {
    /// Whether this replica does not know its earlier promises yet.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Starts a rejoin: the node was started to replace one that lost its disk.
    pub(crate) fn start_rejoin(&mut self, cx: &mut Cx<'_, H>, replica: &Replica) {
        cx.mark("presence.rejoin_asks");
        let nonce = cx.rng.u64(..);
        let answers = replica.topology.node_ids().map(|_| Answer::None).collect();
        self.log_identities[replica.me.index()] = cx.rng.u64(1..);
        self.asking = Some(RejoinQueries { nonce, answers });
        self.is_ready = mutate!(VotesWhileRejoining: false => true);
        cx.set_timer(RejoinTimer.into(), RETRY);
    }

    /// Asks the peers again that have not answered or do not remember.
    pub(crate) fn on_rejoin_timeout(&self, cx: &mut Cx<'_, H>, replica: &Replica) {
        let Some(asking) = &self.asking else { return };
        let knows = |peer: &NodeId| asking.answers[peer.index()].is_whole();
        let unanswered = replica.peers().filter(|peer| replica.is_up[peer.index()] && !knows(peer));
        unanswered.for_each(|peer| self.ask(cx, replica, peer));
        cx.set_timer(RejoinTimer.into(), RETRY);
    }

    /// Asks a peer for its knowledge.
    pub(crate) fn ask(&self, cx: &mut Cx<'_, H>, replica: &Replica, peer: NodeId) {
        let Some(RejoinQueries { nonce, .. }) = self.asking else { return };
        let log_identity = self.log_identities[replica.me.index()];
        replica.send(cx, peer, Message::Rejoin { nonce, log_identity });
    }

    /// Handles the request of a peer that lost its disk. `is_catching_up` is whether this replica
    /// lost its own disk and has not recovered all data yet.
    pub(crate) fn on_rejoin(
        &mut self,
        replica: &Replica,
        from: NodeId,
        (nonce, log_identity): (u64, u64),
        is_catching_up: bool,
    ) -> Asked {
        self.knows_another[from.index()] = false;
        if self.is_asking() {
            // This replica's own record will contain the identity.
            self.log_identities[from.index()] = log_identity;
            return Asked::KnowsNothing;
        }
        if !is_catching_up && !self.is_ready {
            self.asked_early[from.index()] = true;
            // Of the peers that know another identity one may be right.
            let may_be_old = self.knows_another.contains(&true);
            if !self.was_ready || self.can_become_ready(replica) || may_be_old {
                return Asked::TooEarly;
            }
        }
        let is_new = self.rejoins[from.index()].replace(nonce) != Some(nonce);
        Asked::Answers { is_new, is_whole: !is_catching_up }
    }

    /// Whether the peers that have not lost their disks are enough to make this replica ready.
    fn can_become_ready(&self, replica: &Replica) -> bool {
        let intact = replica.voting_peers().filter(|peer| !self.asked_early[peer.index()]).count();
        intact >= self.enough
    }

    /// Answers a peer that lost its disk. All reported state must survive a restart of this node.
    pub(crate) fn answer(
        &self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        peer: NodeId,
        (nonce, known): (u64, Bytes),
    ) {
        let log_identity = self.log_identities[replica.me.index()];
        let after = cx.log_head();
        replica.send_after(cx, after, peer, Message::RejoinReply { nonce, log_identity, known });
    }

    /// Handles the answer of a peer. Returns the knowledge of the peers, by replica, once all have
    /// answered and every majority contains one that remembers.
    pub(crate) fn on_rejoin_reply(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        from: NodeId,
        (nonce, log_identity): (u64, u64),
        known: &Bytes,
    ) -> Option<Vec<(NodeId, H::Memory)>> {
        let answer = match known.is_empty() {
            true => Answer::KnowsNothing,
            false => match H::Memory::decode(known, replica.topology.node_count()) {
                Ok(known) => Answer::Knows(known),
                Err(_) => {
                    cx.mark("presence.malformed_recollection");
                    return None;
                }
            },
        };
        let Some(asking) = self.asking.as_mut().filter(|asking| asking.nonce == nonce) else {
            cx.mark("presence.recollection_late");
            return None;
        };
        if !answer.is_whole() {
            cx.mark("presence.peer_forgot_too");
        }
        asking.answers[from.index()] = answer;
        self.answered[from.index()] = true;
        self.log_identities[from.index()] = log_identity;
        if !self.is_enough(replica) {
            return None;
        }
        let answers = self.asking.take()?.answers.into_iter();
        let known = replica.topology.node_ids().zip(answers).filter_map(|(peer, answer)| {
            let Answer::Knows(known) = answer else { return None };
            Some((peer, known))
        });
        Some(known.collect())
    }

    /// Whether all peers have answered and every majority contains one that remembers.
    fn is_enough(&self, replica: &Replica) -> bool {
        let Some(RejoinQueries { answers, .. }) = &self.asking else { return false };
        let answered = answers.iter().filter(|answer| !matches!(answer, Answer::None)).count();
        let voters = &answers[..replica.topology.voter_count()];
        let known = voters.iter().filter(|answer| answer.is_whole()).count();
        let is_enough =
            answered == replica.topology.node_count() - 1 && known >= remembering_min(replica);
        mutate!(RejoinedAfterOne: is_enough => known > 0)
    }

    /// Ends the requests: the knowledge of the peers is in the log at `position`.
    pub(crate) fn end_asking(&mut self, cx: &mut Cx<'_, H>, position: LogPosition) {
        self.was_ready = true;
        self.logged = position;
        self.is_ready = true;
        cx.clear_timer(RejoinTimer.into());
        cx.mark("presence.rejoin_knows");
    }
}
