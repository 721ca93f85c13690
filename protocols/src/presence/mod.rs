//! Presence: whether a replica may take part in its group, and the identity of its log.
//!
//! A replica that lost its log would assign used numbers to new batches and vote twice. Therefore
//! it first asks the replicas that it has communicated with. Each replica draws a random log
//! identity at its first start and logs it. Peers log each other's log identities.
//!
//! ```text
//!   replica                                 peer
//!     | Greeting(identity, yours: none) ----> |   not known yet: logs it
//!     | <--- Greeting(identity, yours, what else it knows of this replica) |
//! ```
//!
//! | phase | file | messages | known after |
//! |---|---|---|---|
//! | greeting | `exchange.rs`, `greeting.rs` | Greeting | no peer knows more of a replica's log than the replica |
//! | rejoin | `exchange.rs`, `rejoin.rs` | Rejoin, RejoinReply | the knowledge that the peers of a replica without its disk have of it |
//!
//! Until it is ready, a replica takes no part in decisions.
//!
//! - At its first start it is ready when more than half of its peers have logged its identity. Two
//!   such sets share a peer. Therefore a replica that lost its disk and draws another identity
//!   never becomes ready.
//! - At a later start it is ready when enough peers have greeted it to form a majority with it. It
//!   could not commit without them, so this adds no wait. Peers that lost their disks greet only
//!   after it has answered them; it answers before it is ready if the other peers are too few.
//! - At its first start, a peer that knows another identity of the replica stops it. Later this
//!   takes so many of them that the replica can't become ready, because one may have an old disk
//!   itself. The way back is in `rejoin.rs`.
//! - Messages of a peer wait until it has greeted in the session (`session.rs`).
//! - A replica that knows another identity of a peer handles none of its messages. If as many peers
//!   as a majority has members also know another identity of the replica, it is the one that does
//!   not belong here, for example because its directory is of another cluster: it stops.
//!
//! This component does not know what the replicas decide. Its owner adds to greetings and answers
//! the knowledge that the group's decisions need, and compares it.

mod exchange;
mod greeting;
pub(crate) mod marks;
pub(crate) mod messages;
mod rejoin;
mod session;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::{Cx, FirstStart, Protocol, Rejoining};

use crate::replica::{INTACT, Replica, kind};

pub(crate) use exchange::{Owner, greet, meet, on_message};
pub(crate) use greeting::Met;
pub use messages::Message;
pub(crate) use rejoin::Asked;
use rejoin::{Answer, RejoinQueries};
use session::{Early, Session};

/// A protocol whose replicas greet each other.
pub(crate) trait Host: Protocol<Message: From<Message>, Timer: From<RejoinTimer>> {
    /// The knowledge about a replica that its peers return when it has lost its disk.
    type Memory: Memory;
}

/// The timer of this component: the replica repeats its `Rejoin` requests to its peers.
#[derive(Clone, Copy, Debug)]
pub struct RejoinTimer;

/// A peer's knowledge about a replica that lost its disk.
pub(crate) trait Memory: Sized {
    /// Decodes the knowledge of a replica of a group of `node_count`.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError>;

    /// Whether the peer has its complete log: it remembers everything that it ever sent.
    fn is_whole(&self) -> bool;
}

/// The replicas' knowledge of each other's log identities.
pub(crate) struct Presence<H: Host> {
    /// The log identity of each replica; 0 if unknown.
    pub log_identities: Vec<u64>,
    /// Whether this replica takes part in decisions.
    pub is_ready: bool,
    /// `Some` while this replica has lost its disk and asks its peers for their knowledge.
    asking: Option<RejoinQueries<H::Memory>>,
    /// The nonce of the rejoin request of each peer that lost its disk, until it has greeted.
    rejoins: Vec<Option<u64>>,
    /// Whether each peer has asked too early, since this replica started.
    asked_early: Vec<bool>,
    /// The present session with each peer.
    sessions: Vec<Session>,
    /// The messages of each peer that wait for its greeting.
    early: Vec<Early<H::Message>>,
    /// The log position of the last record of a log identity.
    logged: LogPosition,
    /// Whether each peer has confirmed, since this replica started, that it logged this replica's
    /// identity.
    knows: Vec<bool>,
    /// Whether each peer knew another identity of this replica when it last greeted: this replica
    /// or the peer has an old disk, or none.
    knows_another: Vec<bool>,
    /// Whether each peer has answered this replica's rejoin request in this run.
    answered: Vec<bool>,
    /// The number of confirmations at which this replica is ready.
    enough: usize,
    /// The number of replicas that vote, the first ones.
    voters: usize,
    /// Whether this replica participated in an earlier run.
    was_ready: bool,
}

impl<H: Host> Presence<H> {
    /// The initial state, in which nothing is known.
    pub(crate) fn new(node_count: usize) -> Self {
        Self {
            log_identities: vec![0; node_count],
            is_ready: false,
            asking: None,
            rejoins: vec![None; node_count],
            asked_early: vec![false; node_count],
            sessions: vec![Session::New; node_count],
            early: (0..node_count).map(|_| Early::default()).collect(),
            logged: LogPosition(0),
            knows: vec![false; node_count],
            knows_another: vec![false; node_count],
            answered: vec![false; node_count],
            enough: 0,
            voters: node_count,
            was_ready: false,
        }
    }

    /// Restores a log identity from the log, after a restart.
    pub(crate) fn restore_log_identity(&mut self, payload: &Bytes) {
        let from = &mut Reader::new(payload);
        let node = NodeId(from.u16("birth").expect(INTACT));
        self.log_identities[node.index()] = from.u64("birth").expect(INTACT);
    }

    /// Records and logs the log identity of a replica.
    pub(crate) fn note_log_identity(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        node: NodeId,
        log_identity: u64,
    ) {
        self.log_identities[node.index()] = log_identity;
        let mut record = Vec::new();
        record.put_u16(node.0);
        record.put_u64(log_identity);
        self.logged = replica.persist(cx, &kind::LOG_IDENTITY, record.into());
    }

    /// The confirmations that this replica waits for at its first start; `None` at a later start or
    /// once it is ready.
    pub(crate) fn first_start(&self, replica: &Replica) -> Option<FirstStart> {
        let is_missing = |node: &NodeId| *node != replica.me && !self.knows[node.index()];
        let nodes = replica.topology.voter_ids();
        (!self.was_ready && !self.is_ready).then(|| FirstStart {
            needed: self.enough + usize::from(replica.topology.votes(replica.me)),
            missing: nodes.filter(is_missing).collect(),
        })
    }

    /// The sessions with peers, for the exhaustive search.
    #[cfg(test)]
    pub(crate) fn described(&self) -> String {
        let early: Vec<_> = self.early.iter().map(|early| &early.messages).collect();
        format!("{:?} {early:?}", self.sessions)
    }

    /// The status for operators while this replica asks its peers.
    pub(crate) fn asking_status(&self, replica: &Replica) -> Option<Rejoining> {
        let RejoinQueries { answers, .. } = self.asking.as_ref()?;
        let peers_with = |is_it: fn(&Answer<H::Memory>) -> bool| {
            replica.peers().filter(|peer| is_it(&answers[peer.index()])).collect()
        };
        Some(Rejoining {
            missing: peers_with(|answer| matches!(answer, Answer::None)),
            forgetful: peers_with(|answer| match answer {
                Answer::None => false,
                answer => !answer.is_whole(),
            }),
            needed: remembering_min(replica),
            upto: None,
        })
    }
}

/// The number of peers that must remember: every majority contains one of them.
pub(crate) fn remembering_min(replica: &Replica) -> usize {
    replica.topology.voter_count() - replica.topology.majority() + 1
}
