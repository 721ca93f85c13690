//! What nodes say to each other: replicas of a shard as those of any input log do, and the shards
//! of a region among themselves.

use bytes::{Buf, Bytes};
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::scout::{Found, Wanted};
use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::{Lane, Message as PeerMessage};

use super::shards::items::Items;
use super::shards::slice::Slice;
use crate::inputs;

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Between replicas of a shard.
    Inputs(inputs::Message),
    /// §3.1: please send what concerns the sender's shard, from after these epochs on.
    Subscribe {
        /// The sender has what was sequenced up to here.
        slices: SnapshotVersion,
        /// And what was served to it up to here.
        items: SnapshotVersion,
    },
    /// It comes from elsewhere now.
    Unsubscribe,
    /// §3.1: what an epoch of the sender's shard has for the receiver's.
    Slice(Slice),
    /// §3.2, phase 3: rows for transactions of an epoch, and results.
    Items(Items),
    /// How far the sender's shard is.
    Kept {
        /// All of its replicas have what was sent for epochs up to this one.
        upto: SnapshotVersion,
        /// The sender has run up to this one.
        applied: SnapshotVersion,
    },
    /// What was asked for is not there any more, up to this epoch.
    Missed {
        /// The epoch.
        upto: SnapshotVersion,
    },
    /// To the coordinator of the sender's group: how far the other groups are.
    Others {
        /// All of them have come to this epoch.
        least: SnapshotVersion,
        /// One of them has come to this one.
        most: SnapshotVersion,
    },
    /// §3.2.1: a reconnaissance wants to see rows of the receiver's shard.
    Look {
        /// The sender's name for it.
        token: u64,
        /// Which.
        wanted: Wanted,
    },
    /// §3.2.1: what is there of them.
    Found {
        /// The name that the receiver gave it.
        token: u64,
        /// What is there.
        found: Found,
    },
}

/// The first byte of a message, above those of [`inputs::Message`].
mod tag {
    pub const FIRST: u8 = 64;
    pub const SUBSCRIBE: u8 = 64;
    pub const SLICE: u8 = 65;
    pub const ITEMS: u8 = 66;
    pub const KEPT: u8 = 67;
    pub const MISSED: u8 = 68;
    pub const LOOK: u8 = 69;
    pub const FOUND: u8 = 70;
    pub const OTHERS: u8 = 71;
    pub const UNSUBSCRIBE: u8 = 72;
}

impl From<inputs::Message> for Message {
    fn from(message: inputs::Message) -> Self {
        Self::Inputs(message)
    }
}

impl PeerMessage for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut numbers = |tag: u8, numbers: &[u64]| {
            out.put_u8(tag);
            numbers.iter().for_each(|number| out.put_varint(*number));
        };
        match self {
            Self::Inputs(message) => message.encode(out),
            Self::Subscribe { slices, items } => numbers(tag::SUBSCRIBE, &[slices.0, items.0]),
            Self::Unsubscribe => numbers(tag::UNSUBSCRIBE, &[]),
            Self::Slice(slice) => {
                numbers(tag::SLICE, &[]);
                out.extend_from_slice(slice.bytes());
            }
            Self::Items(items) => {
                numbers(tag::ITEMS, &[]);
                items.encode(out);
            }
            Self::Kept { upto, applied } => numbers(tag::KEPT, &[upto.0, applied.0]),
            Self::Missed { upto } => numbers(tag::MISSED, &[upto.0]),
            Self::Others { least, most } => numbers(tag::OTHERS, &[least.0, most.0]),
            Self::Look { token, wanted } => {
                numbers(tag::LOOK, &[*token]);
                wanted.encode(out);
            }
            Self::Found { token, found } => {
                numbers(tag::FOUND, &[*token]);
                found.encode(out);
            }
        }
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        const WHAT: &str = "message";
        let mut rest = bytes.clone();
        let tag = *bytes.first().ok_or(DecodeError::new(WHAT))?;
        if tag < tag::FIRST {
            return inputs::Message::decode(bytes).map(Self::Inputs);
        }
        rest.advance(1);
        if tag == tag::SLICE {
            return Slice::decode(&rest).map(Self::Slice);
        }
        let from = &mut Reader::new(&rest);
        let epoch = |from: &mut Reader<'_>| Ok(SnapshotVersion(inputs::number(from, WHAT)?));
        let message = match tag {
            tag::SUBSCRIBE => Self::Subscribe { slices: epoch(from)?, items: epoch(from)? },
            tag::UNSUBSCRIBE => Self::Unsubscribe,
            tag::ITEMS => Self::Items(Items::decode(from, &rest)?),
            tag::KEPT => Self::Kept { upto: epoch(from)?, applied: epoch(from)? },
            tag::MISSED => Self::Missed { upto: epoch(from)? },
            tag::OTHERS => Self::Others { least: epoch(from)?, most: epoch(from)? },
            tag::LOOK => Self::Look { token: from.varint(WHAT)?, wanted: Wanted::decode(from)? },
            tag::FOUND => Self::Found { token: from.varint(WHAT)?, found: Found::decode(from)? },
            _ => return Err(DecodeError::new(WHAT)),
        };
        if from.is_empty() { Ok(message) } else { Err(DecodeError::new(WHAT)) }
    }

    const KINDS: &'static [&'static str] = &[
        "message_batch",
        "message_ack",
        "message_agreement",
        "message_other",
        "message_slice",
        "message_items",
    ];

    fn kind(&self) -> &'static str {
        match self {
            Self::Inputs(message) => message.kind(),
            Self::Slice(_) => "message_slice",
            Self::Items(_) => "message_items",
            Self::Subscribe { .. }
            | Self::Unsubscribe
            | Self::Kept { .. }
            | Self::Missed { .. }
            | Self::Others { .. }
            | Self::Look { .. }
            | Self::Found { .. } => "message_other",
        }
    }

    fn payload_bytes(&self) -> usize {
        match self {
            Self::Inputs(message) => message.payload_bytes(),
            Self::Slice(slice) => slice.bytes().len(),
            Self::Items(items) => items.len(),
            Self::Subscribe { .. }
            | Self::Unsubscribe
            | Self::Kept { .. }
            | Self::Missed { .. }
            | Self::Others { .. }
            | Self::Look { .. }
            | Self::Found { .. } => 0,
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Inputs(message) => message.lane(),
            // What is missed is told in the place of what would have been sent.
            Self::Slice(_)
            | Self::Items(_)
            | Self::Missed { .. }
            | Self::Look { .. }
            | Self::Found { .. } => Lane::Bulk,
            Self::Subscribe { .. }
            | Self::Unsubscribe
            | Self::Kept { .. }
            | Self::Others { .. } => Lane::Control,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shards::items::Item;
    use super::*;
    use pangea_core::exec::ordered::{Part, Went};
    use pangea_core::ids::{NodeId, TableId, TxnId};
    use pangea_core::key::{Direction, Key, KeyRange};
    use pangea_core::txn::{Abort, Scan, SqlState, Write};
    use pangea_core::value::Value;

    #[test]
    fn every_message_survives_its_encoding() {
        let (epoch, txn) = (SnapshotVersion(300), TxnId::new(NodeId(3), 9));
        let (table, key) = (TableId(7), Key::from(&b"k"[..]));
        let row = Write { table, key: key.clone(), value: Some(Value::copy_from(b"v")) };
        let range = KeyRange { start: vec![1], end: None };
        let scan = Scan { table, range: range.clone(), direction: Direction::Reverse };
        let wanted = Wanted { points: [(table, key)].into(), ranges: vec![scan] };
        let abort = Abort::new(SqlState::RAISE_EXCEPTION, "no");
        let items = vec![
            Item::Part(txn, Part::Rows(vec![row.clone()])),
            Item::Part(txn, Part::Certified(None)),
            Item::Result(txn, Went::Ran(Ok(vec![1, 2]))),
            Item::Result(txn, Went::Ran(Err(abort))),
            Item::Result(txn, Went::Left),
        ];
        let all = [
            Message::Inputs(inputs::Message::BarrierRequest { token: 5 }),
            Message::Subscribe { slices: epoch, items: SnapshotVersion(2) },
            Message::Unsubscribe,
            Message::Slice(super::super::shards::slice::tests::slice()),
            Message::Items(Items::new(epoch, &items)),
            Message::Kept { upto: epoch, applied: SnapshotVersion(301) },
            Message::Missed { upto: epoch },
            Message::Others { least: SnapshotVersion(9), most: epoch },
            Message::Look { token: 3, wanted },
            Message::Found {
                token: 3,
                found: Found { rows: vec![row], covered: vec![(table, range)] },
            },
        ];
        for message in all {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            assert_eq!(Message::decode(&encoded.into()), Ok(message));
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Message::decode(&bytes.into());
        }
    }
}
