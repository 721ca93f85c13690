//! The messages between the replicas of a shard.

use bytes::Bytes;
use pangea_core::ids::{NodeId, SnapshotVersion};

use crate::digests::EpochDigest;
use crate::messages::{Number, Random, messages};
use crate::{presence, transfer};

messages! {
    /// A message between two replicas.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message
    wraps Presence(presence::Message), "Between replicas, about their log identities."
    wraps Transfer(transfer::Message), "Between replicas, about a checkpoint transfer."
    {
        /// §4.1: transactions of the sender's clients, for the leader. A leader of another epoch
        /// ignores them, and the sender sends them to it when it leads.
        64 => Forward {
            /// The epoch that the receiver leads.
            epoch: u64 as Number,
            /// The sender does not ask for the outcomes of its transactions below this number.
            below: u64 as Number,
            /// The transactions, as `forwarding.rs` encodes them.
            requests: Bytes,
        } sized "message_batch";
        /// §4.3: the next entries of the log, from the leader. A follower persists them, and
        /// publishes what is committed.
        65 => Append {
            /// The epoch of the leader.
            epoch: u64 as Number,
            /// The last version of the log with which the epoch began.
            end: SnapshotVersion,
            /// The version before the first entry.
            after: SnapshotVersion,
            /// The last version that is committed.
            committed: SnapshotVersion,
            /// With several shards: the version up to which all of them have everything.
            stable: SnapshotVersion,
            /// The entries.
            entries: Bytes,
        } bulk "message_log", malformed "mako.malformed_log";
        /// §4.3: the sender has the log of the epoch on its disk, up to a version.
        66 => Ack {
            /// The epoch.
            epoch: u64 as Number,
            /// The version of the last entry.
            upto: SnapshotVersion,
        } control "message_ack", malformed "mako.malformed_log";
        /// §5.2: the log of the sender, for the leader of a new epoch. The sender takes part in no
        /// earlier epoch any more.
        67 => Report {
            /// The new epoch.
            epoch: u64 as Number,
            /// The epoch of its log.
            log_epoch: u64 as Number,
            /// The last version of its log.
            last: SnapshotVersion,
            /// The last version that readers see there.
            published: SnapshotVersion,
            /// Whether it has everything that it ever acknowledged.
            is_whole: bool,
            /// Whether entries that it was sent in this session are missing.
            is_again: bool,
        } control "message_other", malformed "mako.malformed_log";
        /// §5.2: asks for the tail of a better log than that of the new leader. The receiver
        /// replies with [`Message::Tail`].
        68 => Fetch {
            /// The new epoch.
            epoch: u64 as Number,
            /// The last version that readers see at the sender.
            after: SnapshotVersion,
        } control "message_other", malformed "mako.malformed_log";
        /// The reply to a [`Message::Fetch`]: the sender's log.
        69 => Tail {
            /// The new epoch.
            epoch: u64 as Number,
            /// The version before the first entry.
            after: SnapshotVersion,
            /// The entries.
            entries: Bytes,
        } bulk "message_log", malformed "mako.malformed_log";
        /// §5.2: a message of the agreement component to its counterpart on another replica, about
        /// epochs.
        70 => Agreement {
            /// The message as that component encoded it.
            bytes: Bytes,
        } sized "message_agreement";
        /// §5.2: the state of the sender, sent to every peer at a fixed interval.
        71 => Progress {
            /// The last epoch that the sender has heard of.
            epoch: u64 as Number,
            /// The leader of that epoch.
            leader: NodeId,
            /// The last epoch of which it knows that it has begun.
            begun: u64 as Number,
            /// The epoch of its log.
            log_epoch: u64 as Number,
            /// The last version of its log.
            last: SnapshotVersion,
            /// The version before the first entry that it can send.
            first: SnapshotVersion,
            /// The last version that readers see there.
            published: SnapshotVersion,
            /// What it does, as `progress.rs` encodes it.
            flags: u64 as Number,
            /// One more than an epoch, if the sender lost its disk and does not count before it has
            /// the log of a later one; else 0.
            replaced: u64 as Number,
            /// The number of decisions about epochs that survive its restart.
            decisions: u64 as Number,
            /// The nodes that it does not hear.
            deaf_to: Vec<NodeId> as Vec<NodeId>,
        } control "message_other", malformed "mako.malformed_progress";
        /// §4.1: the leader does not take a transaction. It was not executed.
        72 => Refused {
            /// The epoch since which the sender leads.
            epoch: u64 as Number,
            /// The transaction.
            txn: u64 as Random,
            /// The reason.
            abort: Bytes,
        } control "message_other", malformed "mako.malformed_transactions";
        /// §8: asks the leader for a version that is not older than now. The receiver replies with
        /// [`Message::FreshReply`] when it has put an entry in the log.
        73 => FreshRequest {
            /// The name of the request.
            token: u64 as Number,
        } control "message_other";
        /// The reply to a [`Message::FreshRequest`].
        74 => FreshReply {
            /// The name of the request.
            token: u64 as Number,
            /// The version of an entry that was made after the request.
            version: SnapshotVersion,
        } control "message_other", malformed "mako.malformed_log";
        /// Digests of published entries. The receiver compares them with its own
        /// ([`crate::digests`]).
        75 => Digests {
            /// The digests, in the order of their versions.
            digests: Vec<EpochDigest>,
        } sized "message_other", malformed "digests.malformed";
        /// §4.2: what the leaders of two shards say about transactions over both.
        76 => Items {
            /// The epoch of the sender.
            epoch: u64 as Number,
            /// The items, as `shards/items.rs` encodes them.
            items: Bytes,
        } bulk "message_items", malformed "mako.malformed_items";
        /// §4.1: a transaction of the receiver's client has ended.
        77 => Ended {
            /// The transaction.
            txn: u64 as Random,
            /// Its version.
            version: SnapshotVersion,
            /// 1 if it has committed, 0 if it is aborted.
            committed: u64 as Number,
            /// Its result, or the reason of the abort.
            result: Bytes,
        } sized "message_other", malformed "mako.malformed_log";
        /// §4.4: the watermark of the sender's shard, for the leaders of the others.
        78 => Watermark {
            /// The epoch of the sender.
            epoch: u64 as Number,
            /// The watermark.
            version: SnapshotVersion,
        } control "message_other", malformed "mako.malformed_log";
        /// §5.2: who leads each shard.
        79 => Config {
            /// The version up to which the sender's log is closed.
            closed: SnapshotVersion,
            /// The last epoch whose migration has all its rows in the sender's log, on a majority.
            moved: u64 as Number,
            /// The configuration, as `shards/configuration.rs` encodes it.
            config: Bytes,
        } control "message_other", malformed "mako.malformed_log";
        /// §5.2: asks the next leader of another shard how transactions have ended that hang here.
        /// It replies with [`Message::Fates`].
        80 => Ask {
            /// The epoch.
            epoch: u64 as Number,
            /// The transactions.
            txns: Bytes,
        } sized "message_other", malformed "mako.malformed_items";
        /// The reply to a [`Message::Ask`].
        81 => Fates {
            /// The epoch.
            epoch: u64 as Number,
            /// The versions and clocks of those that are certified.
            fates: Bytes,
        } sized "message_other", malformed "mako.malformed_items";
        /// §6.2: asks for rows of slots that move to the sender's shard. The receiver replies with
        /// [`Message::Piece`].
        82 => Copy {
            /// The epoch.
            epoch: u64 as Number,
            /// The last row that the sender has, as `shards/migration.rs` encodes it.
            after: Bytes,
        } control "message_other", malformed "mako.malformed_rows";
        /// The reply to a [`Message::Copy`].
        83 => Piece {
            /// The epoch.
            epoch: u64 as Number,
            /// The rows, as `shards/migration.rs` encodes them.
            piece: Bytes,
        } bulk "message_log", malformed "mako.malformed_rows";
        /// §6.2, B: a client of the sender asks that slots are moved, for the manager.
        84 => Move {
            /// The sender's name for the request.
            token: u64 as Random,
            /// The slots, as `shards/placement.rs` encodes them.
            moves: Bytes,
        } control "message_other", malformed "mako.malformed_rows";
        /// The manager does not move slots that the receiver has asked for.
        85 => MoveRefused {
            /// The receiver's name for the request.
            token: u64 as Random,
            /// The last epoch of which the manager knows.
            epoch: u64 as Number,
            /// The reason.
            abort: Bytes,
        } control "message_other", malformed "mako.malformed_rows";
    }
    kinds &[
        "message_batch",
        "message_log",
        "message_ack",
        "message_agreement",
        "message_items",
        "message_other",
    ];
}
