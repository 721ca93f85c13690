//! The messages of a checkpoint transfer between two replicas of a group.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};

use crate::messages::{Codec, NUMBER_MAX, Number, Varint, messages};

/// The number of a chunk of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkNumber {
    /// From 0 on.
    pub index: u64,
    /// Whether it is the last chunk.
    pub is_last: bool,
}

impl Codec for ChunkNumber {
    type Value = ChunkNumber;

    fn encode(value: &ChunkNumber, out: &mut Vec<u8>) {
        Varint::encode(&(value.index << 1 | u64::from(value.is_last)), out);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        what: &'static str,
    ) -> Result<ChunkNumber, DecodeError> {
        let tagged = from.varint(what)?;
        Ok(ChunkNumber { index: tagged >> 1, is_last: tagged & 1 == 1 })
    }

    fn is_sound(value: &ChunkNumber, _: usize) -> bool {
        value.index <= NUMBER_MAX
    }
}

messages! {
    /// A message of a checkpoint transfer.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message {
        /// Minerva §4: requests a checkpoint, or the rest of one. A replica sends it to a peer that
        /// is far enough ahead when the batches or cuts that it needs have been truncated, and to
        /// continue a transfer after a reconnect. The receiver replies with
        /// [`Message::CheckpointChunk`] messages or with [`Message::CheckpointGone`].
        10 => CheckpointRequest {
            /// The number that the sender gives to the transfer.
            transfer: u64 as Number,
            /// The first chunk that the sender needs; 0 starts a new transfer.
            index: u64 as Number,
        } control "message_other", malformed "transfer.malformed_checkpoint_request";
        /// A chunk of a checkpoint, in reply to a [`Message::CheckpointRequest`]. The receiver
        /// acknowledges it, and installs the checkpoint after the last one.
        11 => CheckpointChunk {
            /// The number that the receiver of the checkpoint gave to the transfer.
            transfer: u64 as Number,
            /// The number of the part, and whether it is the last.
            number: ChunkNumber,
            /// Chunk 0: version, log heads, configuration. Then the protocol's state, and then
            /// rows.
            payload: Bytes,
        } bulk "message_other", malformed "transfer.malformed_chunk";
        /// Minerva §4: acknowledges a chunk of a checkpoint. The receiver of the checkpoint sends
        /// it for each chunk that it has received in order, and gets another one.
        12 => CheckpointAck {
            /// The number that the receiver of the checkpoint gave to the transfer.
            transfer: u64 as Number,
            /// The number of the chunk.
            index: u64 as Number,
        } control "message_other", malformed "transfer.malformed_checkpoint_ack";
        /// Minerva §4: the reply to a [`Message::CheckpointRequest`] for the rest of a transfer
        /// that the sender no longer retains. The receiver starts a new transfer.
        16 => CheckpointGone {
            /// The number that the receiver of the checkpoint gave to the transfer.
            transfer: u64 as Number,
        } control "message_other", malformed "transfer.malformed_checkpoint_gone";
    }
    kinds &["message_other"];
}
