//! The messages between the replicas of a shard.

use bytes::Bytes;
use pangea_core::ids::SnapshotVersion;

use crate::digests::EpochDigest;
use crate::messages::{Number, Random, Varint, messages};
use crate::{presence, transfer};

messages! {
    /// A message between two replicas.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message
    wraps Presence(presence::Message), "Between replicas, about their log identities."
    wraps Transfer(transfer::Message), "Between replicas, about a checkpoint transfer."
    {
        /// §3.1: transactions with the stamps of their coordinator, which is the sender. Sent to
        /// all replicas. The receiver persists them. The leader orders them.
        64 => Submit {
            /// The transactions, as `transactions.rs` encodes them.
            transactions: Bytes,
        } sized "message_batch";
        /// §3.7: the next cells of the log, from the leader to its followers. A follower appends
        /// them when it has their transactions, and persists them.
        65 => LogSync {
            /// The end of the leader's log.
            suffix: Bytes,
        } sized "message_log";
        /// §3.7: the sender has the log of a view durably up to a position. Sent to all replicas.
        66 => Synced {
            /// The view.
            view: u64 as Number,
            /// The position of the last cell.
            upto: u64 as Number,
        } control "message_ack", malformed "tiga.malformed_synced";
        /// §3.7: asks for transactions of which the sender has the place in the log alone. The
        /// receiver replies with [`Message::Found`].
        67 => Fetch {
            /// The transactions.
            txns: Vec<u64> as Vec<Random>,
        } sized "message_other";
        /// The reply to a [`Message::Fetch`]: those that the sender has.
        68 => Found {
            /// The transactions, as `transactions.rs` encodes them.
            transactions: Bytes,
        } sized "message_batch";
        /// §4: a message of the agreement component to its counterpart on another replica, about
        /// views.
        69 => Agreement {
            /// The message as that component encoded it.
            bytes: Bytes,
        } sized "message_agreement";
        /// §4: the log of the sender, for the leader of a new view. The sender takes part in no
        /// earlier view any more.
        70 => ViewChange {
            /// The new view.
            view: u64 as Number,
            /// The report, as `view_change.rs` encodes it.
            report: Bytes,
        } sized "message_log";
        /// §4: the log with which a view begins, from its leader.
        71 => StartView {
            /// The end of the log, from what the leader knows to be committed at the receiver.
            suffix: Bytes,
        } sized "message_log";
        /// The state of the sender, sent to every peer at a fixed interval. It tells that the
        /// sender is alive, and which messages have to be sent again.
        72 => Progress {
            /// The clock of the sender, in microseconds.
            sent: u64 as Varint,
            /// The last view that the sender has heard of.
            view: u64 as Number,
            /// The view of its log.
            normal: u64 as Number,
            /// The last position of its log, which may not be durable yet.
            last: u64 as Number,
            /// The last position that it knows to be committed, as far as it is durable there.
            committed: u64 as Number,
            /// Whether it leads its view.
            leads: bool,
            /// Whether it is stopping.
            is_leaving: bool,
            /// How long messages of the receiver took, by both clocks, as `delays.rs` encodes it.
            delay: u64 as Varint,
            /// The position before the first cell that it can send.
            first: u64 as Number,
            /// The last position that readers see there.
            published: u64 as Number,
            /// The number below which its own transactions are over.
            done_below: u64 as Number,
            /// One more than a view, if the sender lost its disk and does not count before it has
            /// the log of a later one; else 0.
            replaced: u64 as Number,
            /// The code of its procedures.
            code: u64 as Random,
            /// The number of decisions about views that survive its restart.
            decisions: u64 as Number,
            /// Whether none of its transactions is in flight, and it is stopping.
            is_settled: bool,
            /// Whether it leads and adds nothing more to the log, because too few stay.
            is_sealed: bool,
            /// Whether it is stopping and waits for nobody.
            is_over: bool,
        } control "message_other", malformed "tiga.malformed_progress";
        /// For a strict read: asks for the last cell of the receiver's log.
        73 => FreshRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
        } control "message_other";
        /// The reply to a [`Message::FreshRequest`].
        74 => FreshReply {
            /// The name that the requester gave to the request.
            token: u64 as Varint,
            /// The version of the last cell.
            version: SnapshotVersion,
        } control "message_other", malformed "tiga.malformed_reply";
        /// §3.4: transactions of the receiver are ready at the sender, which has them durably.
        75 => FastReplies {
            /// The view.
            view: u64 as Number,
            /// The replies, as `fast_replies.rs` encodes them.
            replies: Bytes,
        } sized "message_ack";
        /// Digests of published cells. The receiver compares them with its own
        /// ([`crate::digests`]).
        76 => Digests {
            /// The digests, in the order of their versions.
            digests: Vec<EpochDigest>,
        } sized "message_other", malformed "digests.malformed";
    }
    kinds &["message_batch", "message_log", "message_ack", "message_agreement", "message_other"];
}
