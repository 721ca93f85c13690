//! The messages between the replicas of a group.
//!
//! Each variant says who sends it, when, and the effect on the receiver.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::{NodeId, SnapshotVersion};

use super::{Batch, Bid, Heads, decode_heads, encode_heads};
use crate::agreement::Term;
pub(crate) use crate::messages::NUMBER_MAX;
use crate::messages::{Codec, NonZero, Number, Random, Unchecked, Varint, messages};

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

impl Codec for Term {
    type Value = Term;

    fn encode(value: &Term, out: &mut Vec<u8>) {
        (*value).encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, _: &'static str) -> Result<Term, DecodeError> {
        Term::decode(from)
    }

    fn is_sound(value: &Term, node_count: usize) -> bool {
        (*value).is_sound(node_count)
    }
}

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
    /// A message between two replicas of a group.
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
        } control "message_ack", malformed "inputs.malformed_ack";
        /// Minerva §3.3: the sender's own log is available up to this batch: f + 1 replicas have
        /// persisted it. The source sends it to every peer when that head advances, if
        /// acknowledgements go only to the source. The receiver may then name these batches in
        /// cuts.
        3 => ProofOfAvailability {
            /// The last available batch.
            head: Bid,
        } control "message_other", malformed "inputs.malformed_proof";
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
        } control "message_other", malformed "inputs.malformed_fetch" unless (from <= upto);
        /// Minerva §4: the reply to a [`Message::Fetch`] of batches that the sender has discarded,
        /// because they are part of every checkpoint. The receiver tries another peer; if none has
        /// them it requests a checkpoint.
        5 => Gone {
            /// The source of the log.
            source: NodeId,
            /// The first batch that the sender still has.
            first: Bid,
        } control "message_other", malformed "inputs.malformed_gone";
        /// Minerva §3.4: a message of the agreement component to its counterpart on another
        /// replica.
        6 => Agreement {
            /// The message as that component encoded it.
            bytes: Bytes,
        } sized "message_agreement";
        /// Minerva §4: the progress of the sender, sent to every peer at a fixed interval. The
        /// receiver computes the low watermark from it, and the replicas to remove from the
        /// configuration.
        7 => Progress {
            /// The last epoch that the sender has applied and that is confirmed.
            applied: SnapshotVersion,
            /// The last epoch that survives a restart of the sender.
            durable: SnapshotVersion,
            /// The log heads of the applied epoch.
            heads: Heads as AllHeads,
        } control "message_other", malformed "inputs.malformed_progress";
        /// Calvin §5: whether the sender wants a checkpoint turn or still needs the one that it
        /// has, as of the last cut that it knows. Sent to every peer along with
        /// [`Message::Progress`], if replicas are frozen for their checkpoints. The coordinator
        /// names the next holder of the turn in a cut.
        19 => Turn {
            /// Whether the sender wants or still needs a turn.
            wants: bool,
            /// Whether the sender is frozen.
            is_frozen: bool,
            /// The epoch of the last cut that the sender knows.
            known: SnapshotVersion as Unchecked<SnapshotVersion>,
        } control "message_other";
        /// A replica sends it to the coordinator when strict reads have arrived. The coordinator
        /// replies with [`Message::Barrier`] after the next cut that it proposes.
        8 => BarrierRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
        } control "message_other";
        /// The reply of the coordinator to a [`Message::BarrierRequest`]: the named cut was
        /// proposed after the request arrived. The receiver runs its strict reads once that cut is
        /// applied.
        9 => Barrier {
            /// The name that the requester gave to the request.
            token: u64 as Varint,
            /// The incarnation of the proposer.
            incarnation: u64 as Random,
            /// The number of the cut among the proposals of that incarnation.
            nonce: u64 as Number,
        } control "message_other", malformed "inputs.malformed_barrier";
        /// Minerva §4: requests a checkpoint, or the rest of one. A replica sends it to a peer that
        /// is far enough ahead when the batches or cuts that it needs have been truncated, and to
        /// continue a transfer after a reconnect. The receiver replies with
        /// [`Message::CheckpointChunk`] messages or with [`Message::CheckpointGone`].
        10 => CheckpointRequest {
            /// The number that the sender gives to the transfer.
            transfer: u64 as Number,
            /// The first chunk that the sender needs; 0 starts a new transfer.
            index: u64 as Number,
        } control "message_other", malformed "inputs.malformed_checkpoint_request";
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
        } bulk "message_other", malformed "inputs.malformed_chunk";
        /// Identifies the sender and reports its knowledge of the receiver. Sent to each peer on
        /// connect, and in reply to a greeting with an unknown identity. The receiver logs the
        /// sender's identity. It stops if the greeting proves that it lost part of its own log.
        13 => Greeting {
            /// The sender's log identity.
            birth: u64 as NonZero,
            /// The receiver's log identity as known to the sender; 0 if unknown.
            yours: u64 as Random,
            /// The last batch of the receiver's log that the sender has without gaps.
            batches: Bid,
            /// The latest ballot that the receiver has promised to the sender.
            promise: Term,
            /// The latest ballot that the sender has promised to any replica.
            follows: Term,
        } control "message_other", malformed "inputs.malformed_greeting";
        /// Sent by a replica that lost its disk to each peer, on connect and periodically until all
        /// have replied. The receiver forgets the sender's previous log and replies with
        /// [`Message::Recollection`].
        14 => Rejoin {
            /// Identifies the request.
            nonce: u64 as Random,
            /// The sender's new log identity, which ends its previous one.
            birth: u64 as NonZero,
        } control "message_other", malformed "inputs.malformed_rejoin";
        /// The reply to a [`Message::Rejoin`]: the sender's knowledge of the receiver's batches and
        /// votes. It is sent once that knowledge is durable on the sender. The receiver resumes
        /// when all peers have replied and enough of them remember.
        15 => Recollection {
            /// The `nonce` of the request.
            nonce: u64 as Random,
            /// The sender's log identity.
            birth: u64 as NonZero,
            /// The encoded knowledge; see `rejoin.rs`. Empty if the sender has lost its disk too.
            known: Bytes,
        } sized "message_other", malformed "inputs.malformed_recollection";
        /// Acknowledges a chunk of a checkpoint, and allows its sender to send another one.
        12 => CheckpointAck {
            /// The number that the receiver of the checkpoint gave to the transfer.
            transfer: u64 as Number,
            /// The number of the chunk.
            index: u64 as Number,
        } control "message_other", malformed "inputs.malformed_checkpoint_ack";
        /// The reply to a [`Message::CheckpointRequest`] for the rest of a transfer that the sender
        /// no longer retains. The receiver starts a new transfer.
        16 => CheckpointGone {
            /// The number that the receiver of the checkpoint gave to the transfer.
            transfer: u64 as Number,
        } control "message_other", malformed "inputs.malformed_checkpoint_gone";
        /// Calvin §3.1.1: requests mastership. The preferred master sends it to the leader of
        /// agreement, which stops accepting transactions until it can reply with
        /// [`Message::Yield`].
        17 => Wish {} control "message_other";
        /// Calvin §3.1.1: transfers mastership, in reply to a [`Message::Wish`]. The master sends
        /// it when all transactions that it accepted are decided, and it accepts no more. The
        /// receiver campaigns to lead.
        18 => Yield {
            /// The term in which the sender leads.
            term: Term,
        } control "message_other", malformed "inputs.malformed_yield";
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::CONTROL_MAX;
    use pangea_core::protocol::{Lane, Message as _};

    #[test]
    fn every_message_survives_its_encoding() {
        let (source, version) = (NodeId(2), SnapshotVersion(300));
        let heads = vec![Bid(0), Bid(1), Bid(70_000)];
        let bytes = Bytes::from_static(b"bytes");
        let all = [
            Message::Batch { bytes: bytes.clone() },
            Message::Ack { heads: heads.clone() },
            Message::ProofOfAvailability { head: Bid(9) },
            Message::Fetch { source, from: Bid(1), upto: Bid(300) },
            Message::Gone { source, first: Bid(300) },
            Message::Agreement { bytes: bytes.clone() },
            Message::Progress { applied: version, durable: SnapshotVersion(2), heads },
            Message::Turn { wants: true, is_frozen: false, known: SnapshotVersion(300) },
            Message::BarrierRequest { token: 5 },
            Message::Barrier { token: 5, incarnation: u64::MAX, nonce: 1 << 40 },
            Message::Greeting {
                birth: 7,
                yours: u64::MAX,
                batches: Bid(3),
                promise: Term::default(),
                follows: Term::default(),
            },
            Message::Rejoin { nonce: 1, birth: u64::MAX },
            Message::Recollection { nonce: 1, birth: 2, known: bytes.clone() },
            Message::Recollection { nonce: 1, birth: 2, known: Bytes::new() },
            Message::CheckpointRequest { transfer: 300, index: 1 },
            Message::CheckpointChunk {
                transfer: 300,
                number: ChunkNumber { index: 3, is_last: true },
                payload: bytes,
            },
            Message::CheckpointAck { transfer: 300, index: 3 },
            Message::CheckpointGone { transfer: 300 },
            Message::Wish {},
            Message::Yield { term: Term::default() },
        ];
        for message in all {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            assert_eq!(Message::decode(&encoded.into()), Ok(message));
        }
    }

    /// The backlog of a replica that had been disconnected was one message of many megabytes on the
    /// lane of heartbeats. That lane has a size limit, so its connection was closed again and
    /// again.
    #[test]
    fn a_large_message_of_agreement_takes_the_lane_for_large_ones() {
        let lane = |len| Message::Agreement { bytes: vec![0; len].into() }.lane();
        assert_eq!(lane(CONTROL_MAX), Lane::Control);
        assert_eq!(lane(CONTROL_MAX + 1), Lane::Bulk);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Message::decode(&bytes.into());
        }
    }
}
