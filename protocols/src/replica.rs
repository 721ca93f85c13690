//! A replica of a group: its number, its connections, and the log that its components write.
//!
//! The components ([`crate::streams`], [`crate::presence`], [`crate::transfer`], and the protocols
//! above them) share one connection to each peer and one log. They receive the replica as an
//! argument.

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::{Cx, Protocol};
use pangea_core::topology::{Group, Topology};

/// The kinds of log records: the first byte of each.
pub(crate) mod kind {
    /// A batch of this replica or of a peer.
    pub const BATCH: u8 = 1;
    /// Changes of the state of agreement.
    pub const AGREEMENT: u8 = 2;
    /// The record of an epoch, in the protocol's encoding.
    pub const EPOCH: u8 = 3;
    /// The log identity of a replica.
    pub const LOG_IDENTITY: u8 = 4;
    /// The state that a replica which lost its disk recovered from its peers.
    pub const REJOINED: u8 = 5;
    /// Batches of a replica that are discarded.
    pub const DISCARD: u8 = 6;
    /// A cut that was fixed before it is decided.
    pub const EARLY: u8 = 7;
    /// Early cuts from this epoch on, in records before this one, are void.
    pub const GIVEN_UP: u8 = 8;
    /// An epoch whose transactions are all aborted, because the operator has listed it.
    pub const SKIPPED: u8 = 9;
    /// The epochs that a replica may end before it logs this again.
    pub const RESERVED: u8 = 10;
    /// A seal, and the report of this replica. For a cache, the view that is about to end.
    pub const SEALED: u8 = 11;
    /// A view.
    pub const VIEW: u8 = 12;
    /// A cache: every member has merged the batches up to this one.
    pub const COLLECTED: u8 = 13;
    /// Transactions that a coordinator has stamped.
    pub const TRANSACTIONS: u8 = 14;
    /// The end of the log of a shard, and its view.
    pub const CELLS: u8 = 15;
    /// The last view that a replica has promised to follow.
    pub const PROMISED_VIEW: u8 = 16;
    /// What a replica may issue before it logs this again.
    pub const CEILING: u8 = 17;
    /// Rows of other shards that cells have used.
    pub const RECEIVED: u8 = 18;
    /// The next entries of a log, from the leader of an epoch.
    pub const ENTRIES: u8 = 19;
    /// The log with which an epoch begins.
    pub const ADOPTED: u8 = 20;
    /// The last epoch that a replica has promised to follow.
    pub const PROMISED_EPOCH: u8 = 21;
    /// The leaders of all shards, and the cut with which their epoch has begun.
    pub const CONFIGURATION: u8 = 22;
    /// The number of entries of clocks, if it is not that of the shards.
    pub const GROUPING: u8 = 23;
}

/// The reason why records of the log can always be decoded.
pub(crate) const INTACT: &str = "the driver has checked the record";

/// A replica of a group.
pub(crate) struct Replica {
    /// This replica's number in the group: all replicas have these numbers in the components.
    pub me: NodeId,
    pub group: Group,
    /// The group, as a cluster.
    pub topology: Arc<Topology>,
    /// Whether each replica is connected.
    pub is_up: Vec<bool>,
    /// Bytes persisted since the last checkpoint was requested, including those that a restart
    /// would replay. The maximum value makes a checkpoint due unconditionally.
    pub bytes_since_checkpoint: u64,
    /// The name of this run's last request to another node.
    token: u64,
}

/// The names of a run's requests begin below this number. They fit in a varint of seven bytes for
/// longer than any run.
const FIRST_TOKEN_MAX: u64 = 1 << 47;

impl Replica {
    pub(crate) fn new(me: NodeId, group: Group) -> Self {
        let topology = group.topology.clone();
        let me = group.member(me).expect("a replica is a member of its group");
        let is_up = vec![false; topology.node_count()];
        Self { me, group, topology, is_up, bytes_since_checkpoint: 0, token: 0 }
    }

    /// Begins a run, which is named by a random number.
    pub(crate) fn begin_run(&mut self, incarnation: u64) {
        self.token = incarnation % FIRST_TOKEN_MAX + 1;
    }

    /// Names a request to another node. No two requests of a replica have the same name, also if it
    /// restarts: a peer may still reply to a request of an earlier run, in a session with this one.
    /// All components take their names here.
    pub(crate) fn next_token(&mut self) -> u64 {
        assert!(self.token > 0, "a request belongs to a run");
        self.token += 1;
        self.token
    }

    /// The name of this run's last request, for the exhaustive search.
    #[cfg(test)]
    pub(crate) fn last_token(&self) -> u64 {
        self.token
    }

    /// The node id of a replica of the group.
    pub(crate) fn node(&self, replica: NodeId) -> NodeId {
        self.group.node(replica)
    }

    /// The other replicas of the group.
    pub(crate) fn peers(&self) -> impl Iterator<Item = NodeId> + use<> {
        self.topology.peers_of(self.me)
    }

    /// The other replicas of the group that vote.
    pub(crate) fn voting_peers(&self) -> impl Iterator<Item = NodeId> + use<> {
        let me = self.me;
        self.topology.voter_ids().filter(move |peer| *peer != me)
    }

    /// Whether this replica votes.
    pub(crate) fn votes(&self) -> bool {
        self.topology.votes(self.me)
    }

    /// Sends a message to a peer.
    pub(crate) fn send<P, M>(&self, cx: &mut Cx<'_, P>, peer: NodeId, message: M)
    where
        P: Protocol<Message: From<M>>,
    {
        cx.send(self.node(peer), message.into());
    }

    /// Sends a message to a peer once the log is durable up to `position`.
    pub(crate) fn send_after<P, M>(
        &self,
        cx: &mut Cx<'_, P>,
        position: LogPosition,
        peer: NodeId,
        message: M,
    ) where
        P: Protocol<Message: From<M>>,
    {
        cx.send_after(position, self.node(peer), message.into());
    }

    /// Appends a record of this kind to the log.
    pub(crate) fn persist<P: Protocol>(
        &mut self,
        cx: &mut Cx<'_, P>,
        kind: &'static u8,
        payload: Bytes,
    ) -> LogPosition {
        self.owe(payload.len());
        cx.persist(vec![Bytes::from_static(std::slice::from_ref(kind)), payload])
    }

    /// Appends a record of this kind to the log that consists of two parts.
    pub(crate) fn persist_parts<P: Protocol>(
        &mut self,
        cx: &mut Cx<'_, P>,
        kind: &'static u8,
        parts: [Bytes; 2],
    ) -> LogPosition {
        self.owe(parts.iter().map(Bytes::len).sum());
        let [header, payload] = parts;
        cx.persist(vec![Bytes::from_static(std::slice::from_ref(kind)), header, payload])
    }

    /// Counts bytes that a restart will have to read or write again.
    pub(crate) fn owe(&mut self, bytes: usize) {
        self.bytes_since_checkpoint = self.bytes_since_checkpoint.saturating_add(bytes as u64);
    }
}
