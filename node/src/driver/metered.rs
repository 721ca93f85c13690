//! The metering of sent messages.

use pangea_core::ids::LogPosition;
use pangea_core::protocol::{Effect, Message, Protocol};

/// The payload size of an effect that is sent now.
pub(super) fn sent_bytes<P: Protocol>(effect: &Effect<P>, durable: LogPosition) -> Option<usize> {
    match effect {
        Effect::Send { message, after, .. } if *after <= durable => Some(message.payload_bytes()),
        _ => None,
    }
}
