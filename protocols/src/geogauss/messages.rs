//! The messages between replicas: the streams of batches, and the ends of epochs without any.

use pangea_core::ids::SnapshotVersion;

use crate::messages::messages;
use crate::streams::{self, Bid};

messages! {
    /// A message between two replicas.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message
    wraps Streams(streams::Message), "Between replicas, about the logs of batches."
    {
        /// §4.1, §5.1: the sender adds nothing more to the epochs up to this one. Sent to every
        /// peer when an epoch ends without a batch that says so, and after a reconnect. The
        /// receiver can apply these epochs once it has the batches. It may be lost: a later one
        /// replaces it.
        64 => Eof {
            /// The last epoch.
            through: SnapshotVersion,
            /// The last batch of these epochs, or of earlier ones.
            last: Bid,
        } control "message_other", malformed "geogauss.malformed_eof";
    }
    kinds &["message_batch", "message_ack", "message_agreement", "message_other"];
}
