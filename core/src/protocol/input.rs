//! The inputs of a replica: what its driver and its clients tell it.

use bytes::Bytes;

#[cfg(doc)]
use super::Effect;
use super::{Message, Protocol};
use crate::guarantee::Isolation;
use crate::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, Ticket};
use crate::partition::Slot;
use crate::time::Span;
use crate::txn::Program;

/// An event that a replica reacts to.
#[derive(Debug)]
pub enum Input<P: Protocol> {
    /// The node starts. The store already contains the checkpoint, if there was one. Always the
    /// first input.
    Restart(Durable),
    /// Clients submit requests.
    Submit(Vec<Submission>),
    /// A message from a peer arrives.
    Message {
        /// The sender.
        from: NodeId,
        /// The message.
        message: P::Message,
    },
    /// A timer that was set expires.
    Timer(P::Timer),
    /// All records up to this position are durable.
    Durable(LogPosition),
    /// Both lanes to a peer are connected. Messages sent earlier that have not arrived are lost.
    PeerUp(NodeId),
    /// A lane to a peer was disconnected.
    PeerDown(NodeId),
    /// The checkpoint of this version is durable.
    Checkpointed(SnapshotVersion),
    /// Writing the checkpoint of this version failed, and its pin was released. The protocol may
    /// request another checkpoint after some seconds, because the next attempt may fail again.
    CheckpointFailed(SnapshotVersion),
    /// The node is to stop, in order: no client submits anything any more, and the driver waits
    /// until [`Protocol::may_stop`]. The protocol should take a checkpoint of all that it has
    /// applied, so that a later version of the program, which might not be able to replay the log,
    /// can continue. At most once in a run.
    Stop,
    /// All inputs that had arrived when [`Effect::Resume`] was emitted have been processed.
    Resume,
    /// The values requested by [`Effect::Prefetch`] are in memory.
    Prefetched {
        /// The token of the request.
        token: u64,
        /// The duration of the fetch.
        took: Span,
    },
}

impl<P: Protocol> Input<P> {
    /// The kind of the input and the size that its cost grows with, in submissions or bytes. Used
    /// to measure and model the cost of steps.
    pub fn kind(&self) -> (&'static str, usize) {
        match self {
            Self::Submit(submissions) => ("submit", submissions.len()),
            Self::Message { message, .. } => (message.kind(), message.payload_bytes()),
            Self::Timer(_) => ("timer", 0),
            Self::Durable(_) => ("durable", 0),
            Self::Resume => ("resume", 0),
            Self::Prefetched { .. } => ("fetched", 0),
            Self::Restart(_)
            | Self::Stop
            | Self::PeerUp(_)
            | Self::PeerDown(_)
            | Self::Checkpointed(_)
            | Self::CheckpointFailed(_) => ("rare", 0),
        }
    }
}

/// The state that a node recovered from its disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durable {
    /// The newest complete checkpoint. The store already contains its rows.
    pub checkpoint: Option<Checkpoint>,
    /// The records of the log that were not truncated, in order.
    pub records: Vec<(LogPosition, Bytes)>,
    /// Whether this node replaces a node of the same name that lost its disk. Remains true over any
    /// number of restarts, until [`Effect::Rejoined`] ends the replacement.
    pub is_replaced: bool,
}

/// The protocol's part of a checkpoint, stored in addition to the tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The snapshot version of the tables.
    pub version: SnapshotVersion,
    /// The protocol's own state.
    pub meta: Bytes,
}

/// A client's request, with the ticket under which the client waits for the answer.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Identifies the request in [`Effect::Reply`] and [`Effect::Fresh`].
    pub ticket: Ticket,
    /// The request.
    pub request: Request,
}

/// The kinds of requests that clients submit.
#[derive(Clone, Debug)]
pub enum Request {
    /// Order and commit this program, at an isolation level that the protocol offers
    /// ([`Protocol::isolations`]). Answered by [`Effect::Reply`].
    Commit(Program, Isolation),
    /// Find a snapshot version that contains every transaction acknowledged anywhere before now.
    /// Answered by [`Effect::Fresh`]; a strict read runs at that version.
    Fresh,
    /// Move slots of partitioned tables to other shards, each to the one that is given. Answered by
    /// [`Effect::Reply`], when all rows are on their shards, or with the reason why they are not
    /// moved.
    Move(Vec<(Slot, ShardId)>),
}

impl Request {
    /// Order and commit this program at the strongest level.
    pub fn serializable(program: Program) -> Self {
        Self::Commit(program, Isolation::Serializable)
    }
}
