//! What a step is to the meter: its kind, and what its cost grows with.

use pangea_core::ids::LogPosition;
use pangea_core::protocol::{Effect, Input, Message, Protocol};

/// The kind of the step that takes this input, and how large it is.
pub(super) fn kind_of<P: Protocol>(input: &Input<P>) -> (&'static str, usize) {
    match input {
        Input::Submit(submissions) => ("submit", submissions.len()),
        Input::Message { message, .. } => (message.kind(), message.payload_bytes()),
        Input::Timer(_) => ("timer", 0),
        Input::Durable(_) => ("durable", 0),
        Input::Resume => ("resume", 0),
        Input::Restart(_) | Input::PeerUp(_) | Input::PeerDown(_) | Input::Checkpointed(_) => {
            ("rare", 0)
        }
    }
}

/// The payload of an effect that is sent now.
pub(super) fn sent_bytes<P: Protocol>(effect: &Effect<P>, durable: LogPosition) -> Option<usize> {
    match effect {
        Effect::Send { message, after, .. } if *after <= durable => Some(message.payload_bytes()),
        _ => None,
    }
}
