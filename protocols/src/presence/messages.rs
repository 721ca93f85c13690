//! The messages between the replicas of a group about their identities.

use bytes::Bytes;

use crate::messages::{NonZero, Random, Uncounted, messages};

messages! {
    /// A message between two replicas of a group about their identities.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message {
        /// Not in a paper: identifies the sender and reports its knowledge of the receiver. Sent to
        /// each peer on connect, and in reply to a greeting with an unknown identity. The receiver
        /// logs the sender's identity. It stops if the greeting proves that it lost part of its own
        /// log.
        13 => Greeting {
            /// The sender's log identity.
            log_identity: u64 as NonZero,
            /// The receiver's log identity as known to the sender; 0 if unknown.
            receiver_identity: u64 as Random,
            /// The sender's other knowledge of the receiver, as the owner of the component encoded
            /// it.
            known: Bytes as Uncounted,
        } control "message_other", malformed "presence.malformed_greeting";
        /// Not in a paper: sent by a replica that lost its disk to each peer, on connect and
        /// periodically until all have replied. The receiver forgets the sender's previous log and
        /// replies with [`Message::RejoinReply`].
        14 => Rejoin {
            /// Identifies the request.
            nonce: u64 as Random,
            /// The sender's new log identity, which ends its previous one.
            log_identity: u64 as NonZero,
        } control "message_other", malformed "presence.malformed_rejoin";
        /// Not in a paper: the reply to a [`Message::Rejoin`], with the sender's knowledge of the
        /// receiver's batches and votes. It is sent once that knowledge is durable on the sender.
        /// The receiver resumes when all peers have replied and enough of them remember.
        15 => RejoinReply {
            /// The `nonce` of the request.
            nonce: u64 as Random,
            /// The sender's log identity.
            log_identity: u64 as NonZero,
            /// The encoded knowledge; see `rejoin.rs`. Empty if the sender has lost its disk too.
            known: Bytes,
        } sized "message_other", malformed "presence.malformed_recollection";
    }
    kinds &["message_other"];
}
