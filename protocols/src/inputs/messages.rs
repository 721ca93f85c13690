//! What replicas say to each other.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::{NodeId, SnapshotVersion};

use super::{Batch, Bid, Heads, decode_heads, encode_heads};
use crate::agreement::Term;
pub(crate) use crate::messages::NUMBER_MAX;
use crate::messages::{Codec, NonZero, Number, Random, Unchecked, Varint, messages};

/// Whether these can be the log heads of so many replicas.
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
    /// One message.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message {
        /// §3.3: a batch, from its source or, after a fetch, from whoever has it.
        1 => Batch {
            /// The batch as its source encoded it.
            bytes: Bytes,
        } bulk "message_batch";
        /// §3.3: the sender has each log durably up to these heads, without gaps.
        2 => Ack {
            /// A head for each source.
            heads: Heads as AllHeads,
        } control "message_ack", malformed "inputs.malformed_ack";
        /// §3.3: the sender's own log is available, f + 1 times durable, up to this batch.
        3 => ProofOfAvailability {
            /// The last available batch.
            head: Bid,
        } control "message_other", malformed "inputs.malformed_proof";
        /// §3.3: please send these batches.
        4 => Fetch {
            /// Whose log.
            source: NodeId,
            /// The first batch.
            from: Bid,
            /// The last batch.
            upto: Bid,
        } control "message_other", malformed "inputs.malformed_fetch" unless (from <= upto);
        /// The batches that were asked for are gone: they are part of every checkpoint.
        5 => Gone {
            /// Whose log.
            source: NodeId,
            /// The first batch that is still here.
            first: Bid,
        } control "message_other", malformed "inputs.malformed_gone";
        /// §3.4: a message of the agreement component.
        6 => Agreement {
            /// As the component encoded it.
            bytes: Bytes,
        } sized "message_agreement";
        /// §4: how far the sender is, for the low watermark.
        7 => Progress {
            /// The last epoch applied.
            applied: SnapshotVersion,
            /// The last epoch that survives a restart of the sender.
            durable: SnapshotVersion,
            /// The log heads of the applied epoch.
            heads: Heads as AllHeads,
        } control "message_other", malformed "inputs.malformed_progress";
        /// Whether the sender wants a turn to stand still for its checkpoint, or has use for the one
        /// that it has, as of the last cut that it knows.
        19 => Turn {
            /// Whether it does.
            wants: bool,
            /// Whether it stands still.
            is_frozen: bool,
            /// The epoch of that cut.
            known: SnapshotVersion as Unchecked<SnapshotVersion>,
        } control "message_other";
        /// A strict read arrived: answer when a cut was proposed after this.
        8 => BarrierRequest {
            /// The sender's name for it.
            token: u64 as Varint,
        } control "message_other";
        /// The cut with this number was proposed after the request came.
        9 => Barrier {
            /// The name that the requester gave.
            token: u64 as Varint,
            /// The run of the proposer.
            incarnation: u64 as Random,
            /// The number of the cut among those of the run.
            nonce: u64 as Number,
        } control "message_other", malformed "inputs.malformed_barrier";
        /// Please send a checkpoint, or the rest of one.
        10 => CheckpointRequest {
            /// The number that the receiver gives it.
            transfer: u64 as Number,
            /// The first part that it lacks: from 1 on, of one that was on its way before.
            index: u64 as Number,
        } control "message_other", malformed "inputs.malformed_checkpoint_request";
        /// A part of a checkpoint.
        11 => CheckpointChunk {
            /// The number that the receiver has given it.
            transfer: u64 as Number,
            /// The number of the part, and whether it is the last.
            number: ChunkNumber,
            /// In part 0, its version and the state beside the tables; in the others, rows.
            payload: Bytes,
        } bulk "message_other", malformed "inputs.malformed_chunk";
        /// Who the sender is, and what it knows of the receiver.
        13 => Greeting {
            /// The sender's birth.
            birth: u64 as NonZero,
            /// The receiver's, 0 where the sender does not know it.
            yours: u64 as Random,
            /// The sender has the receiver's log up to here.
            batches: Bid,
            /// The latest ballot that the receiver has promised the sender.
            promise: Term,
            /// The latest that the sender has promised anybody.
            follows: Term,
        } control "message_other", malformed "inputs.malformed_greeting";
        /// The sender's disk is gone: what does the receiver know of it?
        14 => Rejoin {
            /// Names the question.
            nonce: u64 as Random,
            /// The sender's birth, which ends its earlier life.
            birth: u64 as NonZero,
        } control "message_other", malformed "inputs.malformed_rejoin";
        /// What the sender knows, for a replica that has forgotten.
        15 => Recollection {
            /// The question's name.
            nonce: u64 as Random,
            /// The sender's birth.
            birth: u64 as NonZero,
            /// See `rejoin.rs`. Empty where the sender has forgotten too.
            known: Bytes,
        } sized "message_other", malformed "inputs.malformed_recollection";
        /// The part came; another may be sent.
        12 => CheckpointAck {
            /// The number that the receiver has given it.
            transfer: u64 as Number,
            /// The number of the part.
            index: u64 as Number,
        } control "message_other", malformed "inputs.malformed_checkpoint_ack";
        /// The rest of a checkpoint is not kept any more.
        16 => CheckpointGone {
            /// The number that the receiver has given it.
            transfer: u64 as Number,
        } control "message_other", malformed "inputs.malformed_checkpoint_gone";
        /// Calvin §3.1.1: the sender should be the master.
        17 => Wish {} control "message_other";
        /// Calvin §3.1.1: all that the sender took as the master is decided, and it takes nothing more:
        /// the receiver may lead instead.
        18 => Yield {
            /// The term in which the sender leads.
            term: Term,
        } control "message_other", malformed "inputs.malformed_yield";
    }
    kinds &["message_batch", "message_ack", "message_agreement", "message_other"];
}

/// A batch that came in a message, decoded.
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

    /// What a replica missed while it was away was one message of many megabytes on the lane of
    /// heartbeats, which has a limit and was closed, again and again.
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
