//! What replicas say to each other.

use bytes::{Buf, Bytes};
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Lane, Message as PeerMessage};

use crate::agreement::Term;

use super::{Batch, Bid, Heads, decode_heads, encode_heads};

/// An agreement message that is larger than this takes the lane for large ones.
const AGREEMENT_CONTROL_MAX: usize = 64 << 10;

/// No batch, epoch or proposal has a number above this, so that one can be added to any of them.
/// Local transactions end here too, and a batch holds at least one.
pub(crate) const NUMBER_MAX: u64 = 1 << 48;

/// Whether these can be the log heads of so many replicas.
pub(crate) fn are_heads(heads: &[Bid], node_count: usize) -> bool {
    heads.len() == node_count && heads.iter().all(|head| head.0 <= NUMBER_MAX)
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// §3.3: a batch, from its source or, after a fetch, from whoever has it.
    Batch {
        /// The batch as its source encoded it.
        bytes: Bytes,
    },
    /// §3.3: the sender has each log durably up to these heads, without gaps.
    Ack {
        /// A head for each source.
        heads: Heads,
    },
    /// §3.3: the sender's own log is available, f + 1 times durable, up to this batch.
    ProofOfAvailability {
        /// The last available batch.
        head: Bid,
    },
    /// §3.3: please send these batches.
    Fetch {
        /// Whose log.
        source: NodeId,
        /// The first batch.
        from: Bid,
        /// The last batch.
        upto: Bid,
    },
    /// The batches that were asked for are gone: they are part of every checkpoint.
    Gone {
        /// Whose log.
        source: NodeId,
        /// The first batch that is still here.
        first: Bid,
    },
    /// §3.4: a message of the agreement component.
    Agreement {
        /// As the component encoded it.
        bytes: Bytes,
    },
    /// §4: how far the sender is, for the low watermark.
    Progress {
        /// The last epoch applied.
        applied: SnapshotVersion,
        /// The last epoch that survives a restart of the sender.
        durable: SnapshotVersion,
        /// The log heads of the applied epoch.
        heads: Heads,
    },
    /// Whether the sender wants a turn to stand still for its checkpoint, or has use for the one
    /// that it has, as of the last cut that it knows.
    Turn {
        /// Whether it does.
        wants: bool,
        /// Whether it stands still.
        is_frozen: bool,
        /// The epoch of that cut.
        known: SnapshotVersion,
    },
    /// A strict read arrived: answer when a cut was proposed after this.
    BarrierRequest {
        /// The sender's name for it.
        token: u64,
    },
    /// The cut with this number was proposed after the request came.
    Barrier {
        /// The name that the requester gave.
        token: u64,
        /// The run of the proposer.
        incarnation: u64,
        /// The number of the cut among those of the run.
        nonce: u64,
    },
    /// Please send a checkpoint, or the rest of one.
    CheckpointRequest {
        /// The number that the receiver gives it.
        transfer: u64,
        /// The first part that it lacks: from 1 on, of one that was on its way before.
        index: u64,
    },
    /// A part of a checkpoint.
    CheckpointChunk {
        /// The number that the receiver has given it.
        transfer: u64,
        /// The number of the part, from 0.
        index: u64,
        /// Whether it is the last.
        is_last: bool,
        /// In part 0, its version and the state beside the tables; in the others, rows.
        payload: Bytes,
    },
    /// Who the sender is, and what it knows of the receiver.
    Greeting {
        /// The sender's birth.
        birth: u64,
        /// The receiver's, 0 where the sender does not know it.
        yours: u64,
        /// The sender has the receiver's log up to here.
        batches: Bid,
        /// The latest ballot that the receiver has promised the sender.
        promise: Term,
        /// The latest that the sender has promised anybody.
        follows: Term,
    },
    /// The sender's disk is gone: what does the receiver know of it?
    Rejoin {
        /// Names the question.
        nonce: u64,
        /// The sender's birth, which ends its earlier life.
        birth: u64,
    },
    /// What the sender knows, for a replica that has forgotten.
    Recollection {
        /// The question's name.
        nonce: u64,
        /// The sender's birth.
        birth: u64,
        /// See `rejoin.rs`. Empty where the sender has forgotten too.
        known: Bytes,
    },
    /// The part came; another may be sent.
    CheckpointAck {
        /// The number that the receiver has given it.
        transfer: u64,
        /// The number of the part.
        index: u64,
    },
    /// The rest of a checkpoint is not kept any more.
    CheckpointGone {
        /// The number that the receiver has given it.
        transfer: u64,
    },
    /// Calvin §3.1.1: the sender should be the master.
    Wish,
    /// Calvin §3.1.1: all that the sender took as the master is decided, and it takes nothing more:
    /// the receiver may lead instead.
    Yield {
        /// The term in which the sender leads.
        term: Term,
    },
}

/// The first byte of a message.
mod tag {
    pub const BATCH: u8 = 1;
    pub const ACK: u8 = 2;
    pub const PROOF: u8 = 3;
    pub const FETCH: u8 = 4;
    pub const GONE: u8 = 5;
    pub const AGREEMENT: u8 = 6;
    pub const PROGRESS: u8 = 7;
    pub const BARRIER_REQUEST: u8 = 8;
    pub const BARRIER: u8 = 9;
    pub const CHECKPOINT_REQUEST: u8 = 10;
    pub const CHECKPOINT_CHUNK: u8 = 11;
    pub const CHECKPOINT_ACK: u8 = 12;
    pub const GREETING: u8 = 13;
    pub const REJOIN: u8 = 14;
    pub const RECOLLECTION: u8 = 15;
    pub const CHECKPOINT_GONE: u8 = 16;
    pub const WISH: u8 = 17;
    pub const YIELD: u8 = 18;
    pub const TURN: u8 = 19;
}

impl PeerMessage for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Batch { bytes } => encode_bytes(tag::BATCH, bytes, out),
            Self::Ack { heads } => {
                out.put_u8(tag::ACK);
                encode_heads(heads, out);
            }
            Self::ProofOfAvailability { head } => encode_numbers(tag::PROOF, &[head.0], out),
            Self::Fetch { source, from, upto } => {
                out.put_u8(tag::FETCH);
                out.put_u16(source.0);
                [from.0, upto.0].into_iter().for_each(|bid| out.put_varint(bid));
            }
            Self::Gone { source, first } => {
                out.put_u8(tag::GONE);
                out.put_u16(source.0);
                out.put_varint(first.0);
            }
            Self::Agreement { bytes } => encode_bytes(tag::AGREEMENT, bytes, out),
            Self::Progress { applied, durable, heads } => {
                encode_numbers(tag::PROGRESS, &[applied.0, durable.0], out);
                encode_heads(heads, out);
            }
            Self::Turn { wants, is_frozen, known } => {
                encode_numbers(
                    tag::TURN,
                    &[u64::from(*wants), u64::from(*is_frozen), known.0],
                    out,
                );
            }
            Self::BarrierRequest { token } => encode_numbers(tag::BARRIER_REQUEST, &[*token], out),
            Self::Barrier { token, incarnation, nonce } => {
                out.put_u8(tag::BARRIER);
                out.put_varint(*token);
                out.put_u64(*incarnation);
                out.put_varint(*nonce);
            }
            Self::CheckpointRequest { transfer, index } => {
                encode_numbers(tag::CHECKPOINT_REQUEST, &[*transfer, *index], out);
            }
            Self::CheckpointChunk { transfer, index, is_last, payload } => {
                let tagged = *index << 1 | u64::from(*is_last);
                encode_numbers(tag::CHECKPOINT_CHUNK, &[*transfer, tagged], out);
                out.extend_from_slice(payload);
            }
            Self::Greeting { birth, yours, batches, promise, follows } => {
                out.put_u8(tag::GREETING);
                [*birth, *yours].into_iter().for_each(|number| out.put_u64(number));
                out.put_varint(batches.0);
                promise.encode(out);
                follows.encode(out);
            }
            Self::Rejoin { nonce, birth } => encode_question(tag::REJOIN, *nonce, *birth, out),
            Self::Recollection { nonce, birth, known } => {
                encode_question(tag::RECOLLECTION, *nonce, *birth, out);
                out.extend_from_slice(known);
            }
            Self::CheckpointAck { transfer, index } => {
                encode_numbers(tag::CHECKPOINT_ACK, &[*transfer, *index], out);
            }
            Self::CheckpointGone { transfer } => {
                encode_numbers(tag::CHECKPOINT_GONE, &[*transfer], out);
            }
            Self::Wish => out.put_u8(tag::WISH),
            Self::Yield { term } => {
                out.put_u8(tag::YIELD);
                term.encode(out);
            }
        }
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        let tag = from.u8("message")?;
        let mut rest = bytes.clone();
        rest.advance(1);
        match tag {
            tag::BATCH => return Ok(Self::Batch { bytes: rest }),
            tag::AGREEMENT => return Ok(Self::Agreement { bytes: rest }),
            tag::CHECKPOINT_CHUNK => {
                let transfer = from.varint("checkpoint")?;
                let tagged = from.varint("checkpoint")?;
                let payload = bytes.slice_ref(from.rest());
                let (index, is_last) = (tagged >> 1, tagged & 1 == 1);
                return Ok(Self::CheckpointChunk { transfer, index, is_last, payload });
            }
            tag::RECOLLECTION => {
                let (nonce, birth) = (from.u64("recollection")?, from.u64("recollection")?);
                return Ok(Self::Recollection {
                    nonce,
                    birth,
                    known: bytes.slice_ref(from.rest()),
                });
            }
            _ => {}
        }
        let message = decode_small(tag, &mut from)?;
        if from.is_empty() { Ok(message) } else { Err(DecodeError::new("message")) }
    }

    const KINDS: &'static [&'static str] =
        &["message_batch", "message_ack", "message_agreement", "message_other"];

    fn kind(&self) -> &'static str {
        match self {
            Self::Batch { .. } => "message_batch",
            Self::Ack { .. } => "message_ack",
            Self::Agreement { .. } => "message_agreement",
            Self::ProofOfAvailability { .. }
            | Self::Fetch { .. }
            | Self::Gone { .. }
            | Self::Progress { .. }
            | Self::Turn { .. }
            | Self::BarrierRequest { .. }
            | Self::Barrier { .. }
            | Self::Greeting { .. }
            | Self::CheckpointRequest { .. }
            | Self::CheckpointChunk { .. }
            | Self::CheckpointGone { .. }
            | Self::Rejoin { .. }
            | Self::Recollection { .. }
            | Self::Wish
            | Self::Yield { .. }
            | Self::CheckpointAck { .. } => "message_other",
        }
    }

    fn payload_bytes(&self) -> usize {
        match self {
            Self::Batch { bytes } | Self::Agreement { bytes } => bytes.len(),
            Self::CheckpointChunk { payload, .. } => payload.len(),
            Self::Recollection { known, .. } => known.len(),
            Self::Ack { .. }
            | Self::ProofOfAvailability { .. }
            | Self::Fetch { .. }
            | Self::Gone { .. }
            | Self::Progress { .. }
            | Self::Turn { .. }
            | Self::BarrierRequest { .. }
            | Self::Barrier { .. }
            | Self::Greeting { .. }
            | Self::Rejoin { .. }
            | Self::CheckpointRequest { .. }
            | Self::CheckpointGone { .. }
            | Self::Wish
            | Self::Yield { .. }
            | Self::CheckpointAck { .. } => 0,
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Batch { .. } | Self::CheckpointChunk { .. } => Lane::Bulk,
            // What a replica missed while it was away.
            Self::Agreement { bytes } if bytes.len() > AGREEMENT_CONTROL_MAX => Lane::Bulk,
            Self::Recollection { known, .. } if known.len() > AGREEMENT_CONTROL_MAX => Lane::Bulk,
            Self::Ack { .. }
            | Self::ProofOfAvailability { .. }
            | Self::Fetch { .. }
            | Self::Gone { .. }
            | Self::Agreement { .. }
            | Self::Progress { .. }
            | Self::Turn { .. }
            | Self::BarrierRequest { .. }
            | Self::Barrier { .. }
            | Self::Greeting { .. }
            | Self::Rejoin { .. }
            | Self::Recollection { .. }
            | Self::CheckpointRequest { .. }
            | Self::CheckpointGone { .. }
            | Self::Wish
            | Self::Yield { .. }
            | Self::CheckpointAck { .. } => Lane::Control,
        }
    }
}

impl Message {
    /// Whether a replica of a cluster of `node_count` can have said this.
    ///
    /// # Errors
    /// The name under which the refusal is counted. What the bytes of a batch, of a message of
    /// agreement or of a part of a checkpoint hold is looked at where they are read.
    pub(crate) fn check(&self, node_count: usize) -> Result<(), &'static str> {
        let is_node = |node: &NodeId| node.index() < node_count;
        let is_number = |number: u64| number <= NUMBER_MAX;
        let (is_sound, refused) = match self {
            Self::Batch { .. }
            | Self::Agreement { .. }
            | Self::Turn { .. }
            | Self::BarrierRequest { .. }
            | Self::Wish => {
                return Ok(());
            }
            Self::Yield { term } => (term.is_sound(node_count), "inputs.malformed_yield"),
            Self::Ack { heads } => (are_heads(heads, node_count), "inputs.malformed_ack"),
            Self::ProofOfAvailability { head } => (is_number(head.0), "inputs.malformed_proof"),
            Self::Fetch { source, from, upto } => {
                let is_range = from <= upto && is_number(upto.0);
                (is_node(source) && is_range, "inputs.malformed_fetch")
            }
            Self::Gone { source, first } => {
                (is_node(source) && is_number(first.0), "inputs.malformed_gone")
            }
            Self::Progress { applied, durable, heads } => {
                let are_numbers = is_number(applied.0) && is_number(durable.0);
                (are_numbers && are_heads(heads, node_count), "inputs.malformed_progress")
            }
            Self::Greeting { birth, batches, promise, follows, .. } => {
                let are_terms = promise.is_sound(node_count) && follows.is_sound(node_count);
                (*birth != 0 && is_number(batches.0) && are_terms, "inputs.malformed_greeting")
            }
            Self::Rejoin { birth, .. } => (*birth != 0, "inputs.malformed_rejoin"),
            Self::Recollection { birth, .. } => (*birth != 0, "inputs.malformed_recollection"),
            Self::Barrier { nonce, .. } => (is_number(*nonce), "inputs.malformed_barrier"),
            Self::CheckpointRequest { transfer, index } => {
                (is_number(*transfer.max(index)), "inputs.malformed_checkpoint_request")
            }
            Self::CheckpointChunk { transfer, index, .. } => {
                (is_number(*transfer.max(index)), "inputs.malformed_chunk")
            }
            Self::CheckpointAck { transfer, index } => {
                (is_number(*transfer.max(index)), "inputs.malformed_checkpoint_ack")
            }
            Self::CheckpointGone { transfer } => {
                (is_number(*transfer), "inputs.malformed_checkpoint_gone")
            }
        };
        if is_sound { Ok(()) } else { Err(refused) }
    }
}

fn encode_numbers(tag: u8, numbers: &[u64], out: &mut Vec<u8>) {
    out.put_u8(tag);
    numbers.iter().for_each(|number| out.put_varint(*number));
}

fn encode_bytes(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.put_u8(tag);
    out.extend_from_slice(bytes);
}

fn encode_question(tag: u8, nonce: u64, birth: u64, out: &mut Vec<u8>) {
    out.put_u8(tag);
    out.put_u64(nonce);
    out.put_u64(birth);
}

fn decode_small(tag: u8, from: &mut Reader<'_>) -> Result<Message, DecodeError> {
    Ok(match tag {
        tag::ACK => Message::Ack { heads: decode_heads(from)? },
        tag::PROOF => Message::ProofOfAvailability { head: Bid(from.varint("proof")?) },
        tag::FETCH => Message::Fetch {
            source: NodeId(from.u16("fetch")?),
            from: Bid(from.varint("fetch")?),
            upto: Bid(from.varint("fetch")?),
        },
        tag::GONE => {
            let source = NodeId(from.u16("gone")?);
            Message::Gone { source, first: Bid(from.varint("gone")?) }
        }
        tag::PROGRESS => Message::Progress {
            applied: SnapshotVersion(from.varint("progress")?),
            durable: SnapshotVersion(from.varint("progress")?),
            heads: decode_heads(from)?,
        },
        tag::TURN => Message::Turn {
            wants: from.varint("turn")? == 1,
            is_frozen: from.varint("turn")? == 1,
            known: SnapshotVersion(from.varint("turn")?),
        },
        tag::BARRIER_REQUEST => Message::BarrierRequest { token: from.varint("barrier")? },
        tag::BARRIER => Message::Barrier {
            token: from.varint("barrier")?,
            incarnation: from.u64("barrier")?,
            nonce: from.varint("barrier")?,
        },
        tag::REJOIN => Message::Rejoin { nonce: from.u64("rejoin")?, birth: from.u64("rejoin")? },
        tag::CHECKPOINT_REQUEST => Message::CheckpointRequest {
            transfer: from.varint("checkpoint")?,
            index: from.varint("checkpoint")?,
        },
        tag::CHECKPOINT_GONE => Message::CheckpointGone { transfer: from.varint("checkpoint")? },
        tag::WISH => Message::Wish,
        tag::YIELD => Message::Yield { term: Term::decode(from)? },
        tag::GREETING => Message::Greeting {
            birth: from.u64("greeting")?,
            yours: from.u64("greeting")?,
            batches: Bid(from.varint("greeting")?),
            promise: Term::decode(from)?,
            follows: Term::decode(from)?,
        },
        tag::CHECKPOINT_ACK => Message::CheckpointAck {
            transfer: from.varint("checkpoint")?,
            index: from.varint("checkpoint")?,
        },
        _ => return Err(DecodeError::new("message tag")),
    })
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
            Message::CheckpointChunk { transfer: 300, index: 3, is_last: true, payload: bytes },
            Message::CheckpointAck { transfer: 300, index: 3 },
            Message::CheckpointGone { transfer: 300 },
            Message::Wish,
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
        assert_eq!(lane(AGREEMENT_CONTROL_MAX), Lane::Control);
        assert_eq!(lane(AGREEMENT_CONTROL_MAX + 1), Lane::Bulk);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Message::decode(&bytes.into());
        }
    }
}
