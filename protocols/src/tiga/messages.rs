//! The messages between the replicas of a shard.

use bytes::Bytes;
use pangea_core::exec::reconnaissance::{LookupKeys, LookupRows};
use pangea_core::ids::{NodeId, SnapshotVersion};

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
        /// §3.1: transactions with the stamps of their coordinator. Sent to all replicas. The
        /// receiver persists them. The leader orders them. If that does not hear the coordinator,
        /// the others hand them on to it.
        64 => Submit {
            /// The transactions, as `transactions.rs` encodes them.
            transactions: Bytes,
        } sized "message_batch";
        /// §3.7: the next cells of the log, from the leader to its followers, or from a follower to
        /// one that does not hear the leader. A follower appends them when it has their
        /// transactions, and persists them.
        65 => LogSync {
            /// With several shards: nothing more comes up to this version, or 0.
            closed: SnapshotVersion,
            /// The end of the leader's log.
            suffix: Bytes,
        } sized "message_log", malformed "tiga.malformed_synced";
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
        /// §4: the log of a view, from a replica that has it. The receiver lacks cells before those
        /// with which the view begins.
        71 => StartView {
            /// The end of the log, from what the sender knows to be committed at the receiver.
            suffix: Bytes,
        } sized "message_log";
        /// The state of the sender, sent to every peer at a fixed interval. It tells that the
        /// sender is alive, and which messages have to be sent again.
        72 => Progress {
            /// The clock of the sender, in microseconds.
            sent: u64 as Varint,
            /// The clock of its node, uncorrected, in microseconds.
            clock: u64 as Varint,
            /// The shortest time that messages of the receiver took by the clocks of both nodes,
            /// as `delays.rs` encodes it.
            difference: u64 as Varint,
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
            /// With several shards: it needs nothing more from others for cells up to this one.
            received: u64 as Number,
            /// The last version that readers see there.
            version: u64 as Number,
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
            /// The view of its log, if it has the beginning of that view on its disk; else 0.
            durable_view: u64 as Number,
            /// Whether none of its transactions is in flight, and it is stopping.
            is_settled: bool,
            /// Whether it leads, orders nothing more because too few stay, and all of its
            /// transactions are in the log.
            is_quiet: bool,
            /// Whether it leads and adds nothing more to the log, because too few stay.
            is_sealed: bool,
            /// Since when it orders nothing more, as the leader, in microseconds; or what its
            /// leader has told of that. 0 if it does.
            seal: u64 as Varint,
            /// The last cell for which it has transactions in time that are not in its log, or 0.
            accepted: SnapshotVersion,
            /// Whether it is stopping and waits for nobody.
            is_over: bool,
            /// Whether it knows that the receiver is stopping, and takes part.
            knows_stop: bool,
            /// The nodes that the sender does not hear.
            deaf_to: Vec<NodeId>,
            /// The numbers below which the transactions of other coordinators are over: of those
            /// that the receiver does not hear.
            others_done: Vec<(NodeId, u64)> as Vec<(NodeId, Number)>,
            /// The next report follows within this number of milliseconds.
            next_ms: u64 as Varint,
            /// The round trips from the sender to all nodes, in units of 100 microseconds, or 0
            /// if it has not measured one. For replicas of the first shard.
            round_trips: Vec<u64> as Vec<Varint>,
            /// The transactions that its clients begin in a second.
            rate: u64 as Varint,
        } control "message_other", malformed "tiga.malformed_progress";
        /// For a strict read: asks for the end of the receiver's log, and its last fast reply.
        73 => FreshRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
        } control "message_other";
        /// The reply to a [`Message::FreshRequest`].
        74 => FreshReply {
            /// The name that the requester gave to the request.
            token: u64 as Varint,
            /// The view of the sender's log.
            view: u64 as Number,
            /// Whether the sender is the leader of this view.
            leads: bool,
            /// The version of the last cell of its log.
            version: SnapshotVersion,
            /// The last cell up to which the sender may have replied on the fast path.
            told: SnapshotVersion,
        } control "message_other", malformed "tiga.malformed_reply";
        /// §3.4: transactions of the receiver are ready at the sender, which has them durably.
        75 => FastReplies {
            /// The view.
            view: u64 as Number,
            /// The replies, as `fast_replies.rs` encodes them.
            replies: Bytes,
        } sized "message_ack";
        /// §4: transactions of the log that the sender is about to propose, as the leader of a
        /// view, and that the receiver has not reported. The receiver persists them and replies
        /// with [`Message::Prepared`].
        76 => Prepare {
            /// The view.
            view: u64 as Number,
            /// The transactions, as `transactions.rs` encodes them.
            transactions: Bytes,
        } sized "message_batch";
        /// The reply to a [`Message::Prepare`]: they are on the disk of the sender.
        77 => Prepared {
            /// The view.
            view: u64 as Number,
        } control "message_other", malformed "tiga.malformed_view";
        /// §4: the log with which a shard could begin a view, from its leader to the replicas of
        /// the first shard, which decide the logs of all shards.
        78 => Proposal {
            /// The view.
            view: u64 as Number,
            /// The proposal, as `verification.rs` encodes it.
            proposal: Bytes,
        } sized "message_log";
        /// §4: which view there is, from a replica of the first shard to one of another shard.
        79 => View {
            /// The last view.
            view: u64 as Number,
            /// Its leaders, in the order of the shards.
            leaders: Vec<NodeId>,
            /// Whether they release transactions before they agree.
            is_detective: bool,
            /// The last view whose logs are decided.
            started: u64 as Number,
            /// The view of the log that it continues.
            base: u64 as Number,
            /// The log with which the receiver's shard began it.
            log: Bytes,
        } sized "message_log", malformed "tiga.malformed_view";
        /// §3.5: notices to the leader of another shard, from a leader of the same view.
        80 => Notices {
            /// The view.
            view: u64 as Number,
            /// The notices, as `notices.rs` encodes them.
            notices: Bytes,
        } sized "message_ack";
        /// Subscribes to the rows and progress that the receiver sends to the shard of the sender.
        81 => Subscribe {
            /// The sender needs nothing for cells up to this one.
            kept: u64 as Number,
            /// It has the rows for cells up to this one, or 0.
            has: SnapshotVersion,
        } control "message_other", malformed "tiga.malformed_progress";
        /// Ends a subscription.
        82 => Unsubscribe {} control "message_other";
        /// The shard of the sender is committed through a version. To the subscribers of other
        /// shards.
        83 => Committed {
            /// The view of the sender's log.
            view: u64 as Number,
            /// The version.
            through: u64 as Number,
            /// The versions of the cells that are new, or of the last cell.
            cells: Vec<u64> as Vec<Number>,
            /// The last cell up to there of which the receiver's shard gets the places of its
            /// transactions ([`Message::Items`]), or 0.
            listed: u64 as Number,
        } control "message_ack", malformed "tiga.malformed_synced";
        /// Rows of the sender's shard that transactions on the receiver's shard have read, and the
        /// places of transactions of both shards in the log of the sender's.
        84 => Items {
            /// The rows by cell, as `shards/delivery.rs` encodes them.
            items: Bytes,
        } sized "message_batch";
        /// §3.8: a coordinator has transactions up to a cell in which the shard of the receiver has
        /// no part, or a strict read waits for the cell. If the receiver leads, it tells its
        /// followers when nothing comes before any more.
        91 => Close {
            /// The view.
            view: u64 as Number,
            /// The cell.
            cell: SnapshotVersion,
            /// Whether the sender waits for a [`Message::Closed`].
            is_answered: bool,
        } control "message_ack", malformed "tiga.malformed_notices";
        /// §3.4: the reply to a [`Message::Close`], when the sender accepts nothing more up to a
        /// cell, in a view.
        92 => Closed {
            /// The view.
            view: u64 as Number,
            /// The cell.
            cell: SnapshotVersion,
        } control "message_ack", malformed "tiga.malformed_notices";
        /// The outcome of a transaction of the receiver, whose shard does not run it.
        85 => Outcome {
            /// The version of its cell.
            version: SnapshotVersion,
            /// The outcome, as a remote result.
            result: Bytes,
        } sized "message_ack", malformed "tiga.malformed_reply";
        /// The keys and ranges that a reconnaissance reads on the receiver's shard. The receiver
        /// replies with [`Message::LookupReply`].
        86 => LookupRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
            /// The requested rows.
            keys: LookupKeys,
        } bulk "message_other";
        /// The reply to a [`Message::LookupRequest`].
        87 => LookupReply {
            /// The name that the receiver gave to the request.
            token: u64 as Varint,
            /// The rows found.
            rows: LookupRows,
        } bulk "message_other";
        /// The receiver subscribes again: there is more than what it was sent, or the sender has
        /// taken a checkpoint.
        89 => Resubscribe {
            /// The receiver has the rows for cells up to this one, or 0.
            has: SnapshotVersion,
        } control "message_other", malformed "tiga.malformed_progress";
        /// The sender does not retain the rows for cells up to this one, which the receiver needs.
        90 => Truncated {
            /// The cell.
            upto: SnapshotVersion,
        } control "message_other", malformed "tiga.malformed_progress";
        /// Digests of published cells. The receiver compares them with its own
        /// ([`crate::digests`]).
        88 => Digests {
            /// The digests, in the order of their versions.
            digests: Vec<EpochDigest>,
        } sized "message_other", malformed "digests.malformed";
    }
    kinds &["message_batch", "message_log", "message_ack", "message_agreement", "message_other"];
}
