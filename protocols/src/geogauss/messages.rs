//! The messages between replicas: the streams of batches, the ends of epochs without any, and
//! membership.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};

use crate::digests::EpochDigest;
use crate::messages::{Codec, NUMBER_MAX, Number, Varint, messages};
use crate::streams::{self, AllHeads, Bid, Heads};
use crate::{presence, transfer};

messages! {
    /// A message between two replicas.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message
    wraps Streams(streams::Message), "Between replicas, about the logs of batches."
    wraps Presence(presence::Message), "Between replicas, about their log identities."
    wraps Transfer(transfer::Message), "Between replicas, about a checkpoint transfer."
    {
        /// §4.1, §5.1: the sender adds nothing more to the epochs up to this one. Sent to every
        /// peer when an epoch ends without a batch that says so, and after a reconnect. The
        /// receiver can apply these epochs once it has the batches. It may be lost: a later one
        /// replaces it.
        64 => Eof {
            /// The last epoch.
            through: SnapshotVersion,
            /// The epoch that the sender has reached, and that others follow. An idle replica ends
            /// epochs ahead of it.
            reached: SnapshotVersion,
            /// The last batch of these epochs, or of earlier ones.
            last: Bid,
            /// The view of the sender. It counts only in this view and later ones.
            view: u64 as Number,
        } control "message_other", malformed "geogauss.malformed_eof";
        /// §5.2: a message of the agreement component to its counterpart on another replica, about
        /// seals and views.
        65 => Agreement {
            /// The message as that component encoded it.
            bytes: Bytes,
        } sized "message_agreement";
        /// §5.2: the sender's report on a seal. Sent to every peer once it is
        /// durable, and again until the next view. The leader proposes that when all of its members
        /// have reported.
        66 => Report {
            /// The number of the decision of the seal.
            seal: u64 as Number,
            /// The report.
            report: Bytes,
        } control "message_other", malformed "geogauss.malformed_report";
        /// The progress of the sender, sent to every peer at a fixed interval. The receiver drops
        /// the batches that all members have merged. The leader finds out who is to be removed,
        /// and who can join.
        67 => Progress {
            /// The last epoch that the sender has merged.
            applied: SnapshotVersion,
            /// The last epoch that survives a restart of the sender.
            durable: SnapshotVersion,
            /// The view of the sender.
            view: u64 as Number,
            /// The number of the decision of the last view that survives a restart of the sender.
            decision: u64 as Number,
            /// The view in which the sender began its life; 0 if it lost its disk since.
            life: u64 as Number,
            /// Whether the sender may begin a life: it has all batches that it has acknowledged.
            may_join: bool,
            /// The log heads of the merged epochs.
            heads: Heads as AllHeads,
        } control "message_other", malformed "geogauss.malformed_progress";
        /// Asks whether the sender may have been removed, for strict reads. The receiver replies
        /// with [`Message::Membership`].
        68 => MembershipRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
            /// The view in which the sender joined last, as far as it knows.
            joined: u64 as Number,
        } control "message_other", malformed "geogauss.malformed_request";
        /// The reply to a [`Message::MembershipRequest`].
        69 => Membership {
            /// The name that the requester gave to the request.
            token: u64 as Varint,
            /// Whether the sender knows of no decision that removes the receiver, or has removed it
            /// since it joined.
            is_member: bool,
            /// The last epoch of which the sender has a batch.
            known: SnapshotVersion,
        } control "message_other";
        /// The sender is stopping in order. Sent to every peer when the stop begins, when its
        /// transactions are decided, and with its progress. The leader removes it if enough members
        /// stay.
        70 => Stopping {
            /// Whether no transaction of the sender is in flight.
            is_settled: bool,
        } control "message_other";
        /// The digests of the sender's epochs since its last message of this kind. A replica sends
        /// it to every peer with its progress, if it has merged any. The receiver compares them
        /// with its own, and stops if a majority agrees on another digest.
        71 => Digests {
            /// The digests, in the order of their epochs.
            digests: Vec<EpochDigest> as Vec<EpochDigest>,
        } sized "message_other", malformed "digests.malformed";
        /// §5.2: a batch of the sender, for a cache of it. Sent in order, once it is durable, from
        /// the first batch on that some member may lack. The cache persists it, if it has the one
        /// before, and replies with [`Message::Kept`].
        72 => Keep {
            /// Every member has merged the batches up to this one.
            collected: Bid,
            /// The batch before it.
            after: Bid,
            /// The batch as its source encoded it.
            bytes: Bytes,
        } bulk "message_batch", malformed "geogauss.cache_of_another";
        /// §5.2: a cache has the batches of the receiver durably up to this one. The receiver may
        /// answer its clients.
        73 => Kept {
            /// The last batch.
            head: Bid,
        } control "message_ack", malformed "geogauss.cache_of_another";
        /// Every member has merged some batches of the sender. Sent to its caches with its
        /// progress. They drop these batches.
        74 => Collected {
            /// The last one of them.
            upto: Bid,
        } control "message_other", malformed "geogauss.cache_of_another";
        /// §5.2: asks a cache of a replica that is about to be removed for its last batch. The
        /// receiver confirms no more batches of the view, and replies with [`Message::CacheHead`].
        75 => CacheRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
            /// The view that is about to end.
            view: u64 as Number,
        } control "message_other", malformed "geogauss.cache_of_another";
        /// The reply to a [`Message::CacheRequest`], once all batches are durable.
        76 => CacheHead {
            /// The name that the requester gave to the request.
            token: u64 as Varint,
            /// The last batch of the cache.
            head: Bid,
        } control "message_other", malformed "geogauss.cache_of_another";
        /// The ends of epochs that the sender has heard from others, for replicas that cannot hear
        /// each other. All are sent to every peer with its progress. A single one is sent at once
        /// to a peer that has told the sender that it does not hear the source.
        77 => Ends {
            /// The last end of each of them.
            ends: Vec<HeardEnd> as Vec<HeardEnd>,
        } control "message_other", malformed "geogauss.malformed_eof";
    }
    kinds &["message_batch", "message_ack", "message_agreement", "message_other"];
}

/// The content of a [`Message::Eof`], as another replica tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeardEnd {
    /// The replica that has ended the epochs.
    pub source: NodeId,
    /// The last epoch.
    pub through: SnapshotVersion,
    /// The epoch that the source has reached.
    pub reached: SnapshotVersion,
    /// The last batch of these epochs, or of earlier ones.
    pub last: Bid,
    /// The view of the source.
    pub view: u64,
    /// Whether the sender hears the source itself.
    pub is_heard: bool,
}

impl Codec for HeardEnd {
    type Value = Self;

    fn encode(value: &Self, out: &mut Vec<u8>) {
        let Self { source, through, reached, last, view, is_heard } = *value;
        [source.0.into(), through.0, reached.0, last.0, view]
            .into_iter()
            .for_each(|it| out.put_varint(it));
        out.put_u8(is_heard.into());
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<Self, DecodeError> {
        let source = from.varint(what)?.try_into().map_err(|_| DecodeError::new(what))?;
        let (through, reached) = (from.varint(what)?, from.varint(what)?);
        Ok(Self {
            source: NodeId(source),
            through: SnapshotVersion(through),
            reached: SnapshotVersion(reached),
            last: Bid(from.varint(what)?),
            view: from.varint(what)?,
            is_heard: match from.u8(what)? {
                0 => false,
                1 => true,
                _ => return Err(DecodeError::new(what)),
            },
        })
    }

    fn is_sound(value: &Self, node_count: usize) -> bool {
        let numbers = [value.through.0, value.reached.0, value.last.0, value.view];
        value.source.index() < node_count && numbers.into_iter().all(|it| it <= NUMBER_MAX)
    }
}
