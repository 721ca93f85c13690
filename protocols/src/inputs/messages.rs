//! The messages of agreement on cuts, and of the components below it.
//!
//! Each variant says who sends it, when, and the effect on the receiver.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::SnapshotVersion;

use crate::agreement::Term;
use crate::digests::EpochDigest;
use crate::messages::{Codec, Number, Random, Varint, messages};
use crate::streams::{AllHeads, Heads};
use crate::{presence, streams, transfer};

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

messages! {
    /// A message between two replicas of a group.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message
    wraps Streams(streams::Message), "Between replicas of a group, about the logs of batches."
    wraps Presence(presence::Message), "Between replicas of a group, about their log identities."
    wraps Transfer(transfer::Message), "Between replicas of a group, about a checkpoint transfer."
    {
        /// Minerva §3.4: a message of the agreement component to its counterpart on another
        /// replica. Sent when a cut is proposed, accepted or decided, during elections, and on each
        /// tick that has something to repeat. The receiver passes it to its agreement, which may
        /// then vote, or decide cuts.
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
        /// Not in a paper: requests a cut for strict reads. A replica sends it to the coordinator
        /// when strict reads have arrived. The coordinator replies with [`Message::Barrier`] after
        /// the next cut that it proposes.
        8 => BarrierRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
        } control "message_other";
        /// Not in a paper: the reply of the coordinator to a [`Message::BarrierRequest`]. The named
        /// cut was proposed after the request arrived. The receiver runs its strict reads once that
        /// cut is applied.
        9 => Barrier {
            /// The name that the requester gave to the request.
            token: u64 as Varint,
            /// The incarnation of the proposer.
            incarnation: u64 as Random,
            /// The number of the cut among the proposals of that incarnation.
            nonce: u64 as Number,
            /// The agreement term of the proposal.
            term: Term,
        } control "message_other", malformed "inputs.malformed_barrier";
        /// Not in a paper: the digests of the sender's epochs since its last message of this kind.
        /// A replica sends it to every peer with its progress, if it has confirmed any. The
        /// receiver compares them with its own, and stops if a majority agrees on another digest.
        20 => Digests {
            /// The digests, in the order of their epochs.
            digests: Vec<EpochDigest> as Vec<EpochDigest>,
        } sized "message_other", malformed "digests.malformed";
        /// Not in a paper: the sender is stopping in order. Sent to every peer when the stop
        /// begins, when its transactions are decided, and when it takes its last checkpoint. A
        /// coordinator without enough replicas that stay proposes no more cuts.
        21 => Stopping {
            /// Whether no transaction of the sender is in flight.
            is_settled: bool,
            /// Whether the sender takes its last checkpoint, and waits for nobody.
            is_over: bool,
        } control "message_other";
        /// Not in a paper: the coordinator can do without the receiver, which is stopping. The
        /// receiver ends once it has applied the last cut that the coordinator has proposed.
        22 => MayStop {
            /// The agreement term of the coordinator. In another term the release is void.
            term: Term,
            /// The epoch of the last proposed cut.
            last: SnapshotVersion,
        } control "message_other", malformed "inputs.malformed_release";
        /// Not in a paper: the leader of agreement asks the receiver to lead instead. It is
        /// stopping in order, or the receiver is the preferred master and has asked for it (Calvin
        /// §3.1.1). A master sends it when all transactions that it accepted are decided, and
        /// accepts no more. The receiver campaigns.
        23 => TransferLeadership {
            /// The term in which the sender leads.
            term: Term,
        } control "message_other", malformed "inputs.malformed_transfer";
    }
    kinds &["message_batch", "message_ack", "message_agreement", "message_other"];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::CONTROL_MAX;
    use crate::streams::Bid;
    use crate::transfer::ChunkNumber;
    use pangea_core::ids::{NodeId, TableId};
    use pangea_core::protocol::{Lane, Message as _};

    #[test]
    fn every_message_survives_its_encoding() {
        let (source, version) = (NodeId(2), SnapshotVersion(300));
        let heads = vec![Bid(0), Bid(1), Bid(70_000)];
        let bytes = Bytes::from_static(b"bytes");
        let epoch_digest =
            EpochDigest { epoch: version, scope: 259, tables: vec![(TableId(7), u64::MAX)] };
        let all: [Message; 21] = [
            streams::Message::Batch { bytes: bytes.clone() }.into(),
            streams::Message::Ack { heads: heads.clone() }.into(),
            streams::Message::ProofOfAvailability { head: Bid(9) }.into(),
            streams::Message::Fetch { source, from: Bid(1), upto: Bid(300) }.into(),
            streams::Message::Gone { source, first: Bid(300) }.into(),
            Message::Agreement { bytes: bytes.clone() },
            Message::Progress { applied: version, durable: SnapshotVersion(2), heads },
            Message::Digests { digests: vec![epoch_digest] },
            Message::BarrierRequest { token: 5 },
            Message::Barrier {
                token: 5,
                incarnation: u64::MAX,
                nonce: 1 << 40,
                term: Term::default(),
            },
            Message::Stopping { is_settled: true, is_over: false },
            Message::MayStop { term: Term::default(), last: version },
            Message::TransferLeadership { term: Term::default() },
            presence::Message::Greeting {
                log_identity: 7,
                receiver_identity: u64::MAX,
                known: bytes.clone(),
            }
            .into(),
            presence::Message::Rejoin { nonce: 1, log_identity: u64::MAX }.into(),
            presence::Message::RejoinReply { nonce: 1, log_identity: 2, known: bytes.clone() }
                .into(),
            presence::Message::RejoinReply { nonce: 1, log_identity: 2, known: Bytes::new() }
                .into(),
            transfer::Message::CheckpointRequest { transfer: 300, index: 1 }.into(),
            transfer::Message::CheckpointChunk {
                transfer: 300,
                number: ChunkNumber { index: 3, is_last: true },
                payload: bytes,
            }
            .into(),
            transfer::Message::CheckpointAck { transfer: 300, index: 3 }.into(),
            transfer::Message::CheckpointGone { transfer: 300 }.into(),
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
