//! Sessions with peers: messages that arrive before a greeting, or from a stranger.
//!
//! A greeting is the first message that a peer sends in a session. Messages on the other lane, and
//! those that need not wait for the log, can overtake it. The peer may be a node of another cluster
//! with the same name, so they wait for its greeting. A peer that has lost its disk asks first, and
//! counts as known from its question on.

use pangea_core::ids::NodeId;
use pangea_core::protocol::{Cx, Message as _};

use super::{Host, Presence};
use crate::replica::Replica;

/// The maximum size of the messages of a peer that wait for its greeting: batches of a second at
/// 50 MB/s. A peer that has connected greets as soon as its disk has synced.
const EARLY_BYTES_MAX: usize = 64 << 20;

/// The size that a message counts, besides its payload.
const MESSAGE_BYTES: usize = 1 << 10;

/// A session with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    /// The peer has not greeted.
    New,
    /// It has not greeted, but has asked for a rejoin, or answered.
    Known,
    /// It has greeted with the recorded log identity.
    Greeted,
    /// It has greeted with another log identity than the recorded one, and knows this one of this
    /// replica, or 0.
    Stranger(u64),
    /// It has greeted with the recorded log identity, but knows another one of this replica, whose
    /// messages it ignores.
    Estranged,
}

impl Session {
    fn is_known(self) -> bool {
        matches!(self, Self::Known | Self::Greeted)
    }
}

/// The messages of a peer that wait for its greeting.
pub(super) struct Early<M> {
    pub messages: Vec<M>,
    bytes: usize,
}

impl<M> Default for Early<M> {
    fn default() -> Self {
        Self { messages: Vec::new(), bytes: 0 }
    }
}

impl<H: Host> Presence<H> {
    /// Handles a new session with a peer, or the end of one.
    pub(crate) fn forget_session(&mut self, peer: NodeId) {
        self.enter(peer, Session::New);
    }

    pub(super) fn enter(&mut self, peer: NodeId, session: Session) {
        self.sessions[peer.index()] = session;
        if !session.is_known() {
            self.early[peer.index()] = Early::default();
        }
    }

    /// Returns a message of a peer, which is not about identities, if it is handled now.
    pub(crate) fn admit(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        message: H::Message,
    ) -> Option<H::Message> {
        match self.sessions[from.index()] {
            Session::Known | Session::Greeted => return Some(message),
            // It handles none yet, and its peers repeat them.
            Session::New if self.is_asking() => return Some(message),
            Session::New => {
                let early = &mut self.early[from.index()];
                let bytes = MESSAGE_BYTES + message.payload_bytes();
                if early.bytes + bytes > EARLY_BYTES_MAX {
                    cx.mark("presence.too_much_before_greeting");
                } else {
                    cx.mark("presence.before_greeting");
                    early.bytes += bytes;
                    early.messages.push(message);
                }
            }
            Session::Stranger(_) | Session::Estranged => cx.mark("presence.stranger_ignored"),
        }
        None
    }

    /// Takes the messages of a peer that have waited for its greeting, if it is known now.
    pub(crate) fn take_admitted(&mut self, peer: NodeId) -> Vec<H::Message> {
        match self.sessions[peer.index()].is_known() {
            true => std::mem::take(&mut self.early[peer.index()]).messages,
            false => Vec::new(),
        }
    }

    /// Whether the messages of a peer are ignored: it has another log than the recorded one, or
    /// ignores those of this replica.
    pub(crate) fn is_stranger(&self, peer: NodeId) -> bool {
        matches!(self.sessions[peer.index()], Session::Stranger(_) | Session::Estranged)
    }

    /// Whether the messages of a peer are handled.
    pub(crate) fn is_known(&self, peer: NodeId) -> bool {
        self.sessions[peer.index()].is_known()
    }

    /// The connected peers whose messages are ignored.
    pub(crate) fn strangers(&self) -> impl Iterator<Item = NodeId> {
        (0..self.sessions.len() as u16).map(NodeId).filter(|peer| self.is_stranger(*peer))
    }

    /// Records the greeting of a peer that is no stranger. Returns whether it is the first of the
    /// session.
    pub(crate) fn note_greeting(&mut self, peer: NodeId) -> bool {
        let is_first = self.sessions[peer.index()] != Session::Greeted;
        self.enter(peer, Session::Greeted);
        is_first
    }

    /// Records that a peer has asked or answered under this log identity.
    pub(crate) fn note_rejoin_message(&mut self, peer: NodeId, log_identity: u64) {
        let is_recorded = self.log_identities[peer.index()] == log_identity;
        if is_recorded && self.sessions[peer.index()] == Session::New {
            self.enter(peer, Session::Known);
        }
    }

    /// The evidence that this replica is none of this cluster: most others are strangers, and it is
    /// a stranger to them.
    pub(crate) fn is_foreign(&self, replica: &Replica) -> Option<String> {
        let own = self.log_identities[replica.me.index()];
        let knows_another = |session: &&Session| match session {
            Session::Stranger(known) => ![0, own].contains(known),
            _ => false,
        };
        let strangers = self.sessions[..self.voters].iter().filter(knows_another).count();
        (strangers >= replica.topology.majority()).then(|| {
            "most other nodes have other logs than those that this node knows: its data directory \
             is of another cluster with the same name, or the addresses in its configuration lead \
             to another cluster. Check data_dir and the addresses"
                .to_owned()
        })
    }
}
