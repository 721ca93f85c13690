//! The messages between the replicas of a group about their streams.
//!
//! Each variant says who sends it, when, and the effect on the receiver.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::NodeId;

use super::{Batch, Bid, Heads, decode_heads, encode_heads};
use crate::messages::{Codec, NUMBER_MAX, Number, messages};

/// Whether these can be the log heads of a group of `node_count` replicas.
pub(crate) fn are_heads(heads: &[Bid], node_count: usize) -> bool {
    heads.len() == node_count && heads.iter().all(|head| head.0 <= NUMBER_MAX)
}

impl Codec for Bid {
    type Value = Bid;

    fn encode(value: &Bid, out: &mut Vec<u8>) {
        Number::encode(&value.0, out);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<Bid, DecodeError> {
        from.varint(what).map(Bid)
    }

    fn is_sound(value: &Bid, _: usize) -> bool {
        value.0 <= NUMBER_MAX
    }
}

/// A head for each replica.
pub(crate) struct AllHeads;

impl Codec for AllHeads {
    type Value = Heads;

    fn encode(value: &Heads, out: &mut Vec<u8>) {
        encode_heads(value, out);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, _: &'static str) -> Result<Heads, DecodeError> {
        decode_heads(from)
    }

    fn is_sound(value: &Heads, node_count: usize) -> bool {
        are_heads(value, node_count)
    }
}

messages! {
    /// A message between two replicas of a group about their streams.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message {
        /// Minerva §3.3: a batch. The source sends it to every peer once it is durable there, and
        /// again after a reconnect. Any replica that has it sends it in reply to a
        /// [`Message::Fetch`]. The receiver persists it and acknowledges it.
        1 => Batch {
            /// The batch as its source encoded it.
            bytes: Bytes,
        } bulk "message_batch";
        /// Minerva §3.3: the sender has each log durably up to these heads, without gaps. Sent when
        /// a head advances, and after a reconnect. The receiver computes from it which batches f +
        /// 1 replicas have. An extension of the paper: it goes to every replica, unless the
        /// settings restrict it to the source.
        2 => Ack {
            /// One head for each source.
            heads: Heads as AllHeads,
        } control "message_ack", malformed "streams.malformed_ack";
        /// Minerva §3.3: the sender's own log is available up to this batch: f + 1 replicas have
        /// persisted it. The source sends it to every peer when that head advances, if
        /// acknowledgements go only to the source. The receiver may then name these batches in
        /// cuts.
        3 => ProofOfAvailability {
            /// The last available batch.
            head: Bid,
        } control "message_other", malformed "streams.malformed_proof";
        /// Minerva §3.3: requests batches. A replica sends it to one peer at a time for batches
        /// that are known to exist and that it has missed for longer than a round trip. The
        /// receiver replies with [`Message::Batch`] messages or with [`Message::Gone`].
        4 => Fetch {
            /// The source of the log.
            source: NodeId,
            /// The first batch.
            from: Bid,
            /// The last batch.
            upto: Bid,
        } control "message_other", malformed "streams.malformed_fetch" unless (from <= upto);
        /// Minerva §4: the reply to a [`Message::Fetch`] of batches that the sender has discarded,
        /// because they are part of every checkpoint. The receiver tries another peer; if none has
        /// them it requests a checkpoint.
        5 => Gone {
            /// The source of the log.
            source: NodeId,
            /// The first batch that the sender still has.
            first: Bid,
        } control "message_other", malformed "streams.malformed_gone";
    }
    kinds &["message_batch", "message_ack", "message_agreement", "message_other"];
}

/// Decodes a batch that arrived in a message.
pub(crate) fn decode_batch<B: Batch>(bytes: &Bytes, node_count: usize) -> Result<B, DecodeError> {
    let batch = B::decode(bytes)?;
    if batch.source().index() >= node_count {
        return Err(DecodeError::new("batch source"));
    }
    if !(1..=NUMBER_MAX).contains(&batch.bid().0) {
        return Err(DecodeError::new("batch number"));
    }
    batch.check()?;
    Ok(batch)
}
