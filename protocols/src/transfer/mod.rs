//! Transfer: a replica that was disconnected for too long installs a peer's checkpoint (Minerva
//! §4).
//!
//! ```text
//!   behind                      peer
//!     | CheckpointRequest -----> |   pins its published version
//!     | <------- Chunk 0: version, configuration
//!     | <------- Chunk 1, ..: what the protocol hands on beside the rows
//!     | <------- Chunk n, ..: rows, in order; a few ahead of the Acks
//!     | CheckpointAck ---------> |
//! ```
//!
//! | phase | file | messages | known after |
//! |---|---|---|---|
//! | the sending side | `outgoing.rs` | CheckpointChunk, CheckpointGone | the receiver has the checkpoint |
//! | the receiving side | `incoming.rs` | CheckpointRequest, CheckpointAck | the state at a version |
//!
//! Chunks in flight when the connection was lost are sent again in the next session, from the chunk
//! that the receiver names. A peer that no longer has the transfer, because it restarted or timed
//! out, replies so, and the receiver begins again.
//!
//! The rows are installed as versions next to the local ones, so that readers of older snapshots
//! are not disturbed. A row that this replica does not have yet has the same version as on the
//! peer. A key that no longer exists there is deleted at the checkpoint's version.
//!
//! This component does not know why a checkpoint is needed. Its owner says so, describes the state
//! beside the rows (`Configuration`), and moves to the version of a checkpoint that has arrived.

mod incoming;
pub(crate) mod marks;
pub(crate) mod messages;
mod outgoing;

use std::collections::BTreeMap;

use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::NodeId;
use pangea_core::protocol::{Cx, Protocol};
use pangea_core::time::Timestamp;

use crate::replica::Replica;
use crate::streams::Bid;

pub(crate) use incoming::Incoming;
#[cfg(test)]
pub(crate) use incoming::take_chunk;
pub use messages::{ChunkNumber, Message};
use outgoing::{Outgoing, RetainedBatches};

/// A protocol whose replicas send each other checkpoints.
pub(crate) trait Host: Protocol<Message: From<Message>> {
    /// The state of a version that a replica needs in addition to the tables.
    type Configuration: Configuration;
}

/// The state of a version that a replica needs in addition to the tables.
pub(crate) trait Configuration: Sized {
    /// Decodes the configuration of a group of `node_count` replicas, which is followed by other
    /// data.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    fn decode(from: &mut Reader<'_>, node_count: usize) -> Result<Self, DecodeError>;
}

/// An event that the owner has to handle.
pub(crate) enum Event<H: Host> {
    /// A peer's checkpoint has arrived completely and is to be installed.
    Checkpoint(Incoming<H::Configuration>),
    /// A peer requests a checkpoint under this number: [`Transfer::send_checkpoint`].
    Asked {
        /// The peer's number in the group.
        from: NodeId,
        transfer: u64,
    },
    /// The peer no longer has the checkpoint in transfer: the owner calls [`Transfer::retry`].
    Lost,
}

/// The incoming and outgoing checkpoint transfers.
pub(crate) struct Transfer<H: Host> {
    /// Transfers to peers that are behind.
    outgoing: BTreeMap<NodeId, Outgoing>,
    /// The transfer to this replica.
    incoming: Option<Incoming<H::Configuration>>,
    /// The batches retained for peers that install a checkpoint or have just installed one.
    retained: BTreeMap<NodeId, RetainedBatches>,
    /// The number of transfers requested, which selects the peer round robin.
    count: u64,
    /// The number of transfers that stalled since the last chunk with rows arrived.
    stalls: u32,
    /// The approximate size of a chunk in bytes.
    chunk_bytes: usize,
    /// The number of checkpoints sent.
    pub sent: u64,
}

impl<H: Host> Transfer<H> {
    /// Without transfers.
    pub(crate) fn new(chunk_bytes: usize) -> Self {
        Self {
            outgoing: BTreeMap::new(),
            incoming: None,
            retained: BTreeMap::new(),
            count: 0,
            stalls: 0,
            chunk_bytes,
            sent: 0,
        }
    }

    /// Handles a message of a peer, whose fields the owner has checked (`Message::check`).
    pub(crate) fn on_message(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        from: NodeId,
        message: Message,
    ) -> Option<Event<H>> {
        match message {
            Message::CheckpointRequest { transfer, index } => {
                self.on_request(cx, replica, from, (transfer, index))
            }
            Message::CheckpointChunk {
                transfer,
                number: ChunkNumber { index, is_last },
                payload,
            } => self.on_chunk(cx, replica, from, (transfer, index), (is_last, &payload)),
            Message::CheckpointAck { transfer, index } => {
                self.on_acknowledged(cx, replica, from, (transfer, index));
                None
            }
            Message::CheckpointGone { transfer } => self.on_gone(from, transfer),
        }
    }

    /// Starts the time-out of transfers with a peer, because the connection to it was lost.
    pub(crate) fn pause(&mut self, peer: NodeId, now: Timestamp) {
        if let Some(incoming) = self.incoming.as_mut().filter(|it| it.from == peer) {
            incoming.left = now;
        }
        self.note_heard(peer, now);
    }

    /// Drops all transfers with a peer that has a new log identity.
    pub(crate) fn stop(&mut self, peer: NodeId) {
        self.outgoing.remove(&peer);
        self.retained.remove(&peer);
        self.incoming.take_if(|incoming| incoming.from == peer);
    }

    /// The lowest batch number after which a source's batches are retained for a peer.
    pub(crate) fn least_retained(&self, source: usize) -> Option<Bid> {
        self.retained.values().map(|retained| retained.heads[source]).min()
    }
}
