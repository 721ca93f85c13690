//! The messages between replicas: those of the input log. Minerva has no others, because each
//! replica validates and commits an epoch on its own (§3.5).

use crate::messages::messages;
use crate::{inputs, presence, streams, transfer};

messages! {
    /// A message between two replicas.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message
    wraps Inputs(inputs::Message: streams::Message, presence::Message, transfer::Message),
        "Between replicas, about the input log."
    {
    }
    kinds &["message_batch", "message_ack", "message_agreement", "message_other"];
}
