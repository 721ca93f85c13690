//! What nodes say to each other: replicas of a shard as those of any input log do, and the shards
//! of a region among themselves.

use bytes::{Buf, Bytes};
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::scout::{Found, Wanted};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::protocol::{Lane, Message as PeerMessage};
use pangea_core::store::ColdMap;
use pangea_core::time::Span;

use super::batch::Request;
use super::shards::items::Items;
use super::shards::pieces::{Piece, decode_flag};
use super::shards::slice::Slice;
use crate::agreement::Term;
use crate::inputs::{self, ProposalName};

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
        /// It was told to go on with that ([`Message::More`]), and has all that came before.
        goes_on: bool,
    },
    /// It comes from elsewhere now.
    Unsubscribe,
    /// §3.1: what an epoch of the sender's shard has for the receiver's.
    Slice(Slice),
    /// A part of such a slice that is too large for one message.
    Piece(Piece),
    /// §3.1.1, asynchronous: what slices up to an epoch were of is decided, of those that were sent
    /// before it was.
    Decided {
        /// The epoch.
        upto: SnapshotVersion,
        /// Its cut.
        name: ProposalName,
    },
    /// What was subscribed to is more than is sent at a time: subscribe again.
    More,
    /// §3.2, phase 3: rows for transactions of an epoch, and results.
    Items(Items),
    /// How far the sender's shard is.
    Kept {
        /// All of its replicas have what was sent for epochs up to this one.
        upto: SnapshotVersion,
        /// The sender has run up to this one.
        applied: SnapshotVersion,
        /// For which other node it waits, where that is far or has been long.
        waits_for: Option<NodeId>,
    },
    /// What was asked for is not there any more, up to this epoch.
    Missed {
        /// The epoch.
        upto: SnapshotVersion,
    },
    /// §5: the sender stands still at this epoch, and serves nothing of later ones.
    Frozen {
        /// The epoch.
        at: SnapshotVersion,
    },
    /// §5: to replicas of the sender's shard, while it is its turn to stand still: it has what
    /// became of its requests up to this epoch.
    AskOutcomes {
        /// The epoch.
        after: SnapshotVersion,
        /// The receiver is to tell it of those after it.
        is_wanted: bool,
    },
    /// §5: what became of the receiver's requests of an epoch.
    Outcomes(Items),
    /// To the coordinator of the sender's group: how far the other groups are.
    Others {
        /// All of them have come to this epoch.
        least: SnapshotVersion,
        /// One of them has come to this one.
        most: SnapshotVersion,
    },
    /// §4: a transaction that is about to be ordered will look at these rows.
    Warm {
        /// The sender's name for it.
        token: u64,
        /// Those of the receiver's.
        keys: Vec<(TableId, Key)>,
    },
    /// §4: they are in memory.
    Warmed {
        /// The name that the receiver gave it.
        token: u64,
        /// How long it took to fetch them.
        took: Span,
    },
    /// §4.2: which rows of the sender are not in memory.
    Cold {
        /// How many words the map has.
        words: usize,
        /// What was told before does not count.
        is_all: bool,
        /// The words that are not as they were.
        changes: Vec<(usize, u64)>,
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
    /// §3.1.1, asynchronous: requests for the master's sequencer, each with the sender's name for
    /// it.
    Forward {
        /// The requests, in their order.
        requests: Vec<(u64, Request)>,
    },
    /// The master has put them into its log.
    Taken {
        /// The term in which it is the master.
        term: Term,
        /// The receiver's names for them.
        tokens: Vec<u64>,
    },
    /// The receiver's requests are not in the sender's log and never will be.
    NotTaken {
        /// The receiver's names for them.
        tokens: Vec<u64>,
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
    pub const PIECE: u8 = 73;
    pub const MORE: u8 = 74;
    pub const FORWARD: u8 = 75;
    pub const TAKEN: u8 = 76;
    pub const NOT_TAKEN: u8 = 77;
    pub const WARM: u8 = 78;
    pub const WARMED: u8 = 79;
    pub const COLD: u8 = 80;
    pub const FROZEN: u8 = 81;
    pub const ASK_OUTCOMES: u8 = 82;
    pub const OUTCOMES: u8 = 83;
    pub const DECIDED: u8 = 84;
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
            Self::Subscribe { slices, items, goes_on } => {
                numbers(tag::SUBSCRIBE, &[slices.0, items.0, u64::from(*goes_on)]);
            }
            Self::Unsubscribe => numbers(tag::UNSUBSCRIBE, &[]),
            Self::More => numbers(tag::MORE, &[]),
            Self::Piece(piece) => {
                numbers(tag::PIECE, &[]);
                piece.encode(out);
            }
            Self::Slice(slice) => {
                numbers(tag::SLICE, &[u64::from(slice.is_decided)]);
                out.extend_from_slice(slice.bytes());
            }
            Self::Decided { upto, name } => {
                numbers(tag::DECIDED, &[upto.0]);
                name.encode(out);
            }
            Self::Items(items) => encode_items(tag::ITEMS, items, out),
            Self::Kept { upto, applied, waits_for } => put_kept(*upto, *applied, *waits_for, out),
            Self::Missed { upto } => numbers(tag::MISSED, &[upto.0]),
            Self::Frozen { at } => numbers(tag::FROZEN, &[at.0]),
            Self::AskOutcomes { after, is_wanted } => {
                numbers(tag::ASK_OUTCOMES, &[after.0, u64::from(*is_wanted)]);
            }
            Self::Outcomes(items) => encode_items(tag::OUTCOMES, items, out),
            Self::Others { least, most } => numbers(tag::OTHERS, &[least.0, most.0]),
            Self::Warm { token, keys } => {
                numbers(tag::WARM, &[*token, keys.len() as u64]);
                for (table, key) in keys {
                    out.put_varint(table.0.into());
                    out.put_bytes(key);
                }
            }
            Self::Warmed { token, took } => numbers(tag::WARMED, &[*token, took.us]),
            Self::Cold { words, is_all, changes } => put_cold(*words, *is_all, changes, out),
            Self::Look { token, wanted } => {
                numbers(tag::LOOK, &[*token]);
                wanted.encode(out);
            }
            Self::Found { token, found } => {
                numbers(tag::FOUND, &[*token]);
                found.encode(out);
            }
            Self::Forward { requests } => {
                numbers(tag::FORWARD, &[requests.len() as u64]);
                for (token, request) in requests {
                    out.put_varint(*token);
                    request.encode(out);
                }
            }
            Self::Taken { term, tokens } => {
                numbers(tag::TAKEN, &[tokens.len() as u64]);
                term.encode(out);
                tokens.iter().for_each(|token| out.put_varint(*token));
            }
            Self::NotTaken { tokens } => {
                numbers(tag::NOT_TAKEN, &[tokens.len() as u64]);
                tokens.iter().for_each(|token| out.put_varint(*token));
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
            let is_decided = decode_flag(&mut Reader::new(&rest))?;
            rest.advance(1);
            let slice = Slice::decode(&rest)?;
            return Ok(Self::Slice(slice.said_to_be(is_decided)));
        }
        let from = &mut Reader::new(&rest);
        let epoch = |from: &mut Reader<'_>| Ok(SnapshotVersion(inputs::number(from, WHAT)?));
        let message = match tag {
            tag::SUBSCRIBE => decode_subscribe(from)?,
            tag::UNSUBSCRIBE => Self::Unsubscribe,
            tag::MORE => Self::More,
            tag::PIECE => Self::Piece(Piece::decode(from, &rest)?),
            tag::DECIDED => {
                Self::Decided { upto: epoch(from)?, name: ProposalName::decode(from, WHAT)? }
            }
            tag::ITEMS => Self::Items(Items::decode(from, &rest)?),
            tag::KEPT => Self::Kept {
                upto: epoch(from)?,
                applied: epoch(from)?,
                waits_for: decode_node(from)?,
            },
            tag::FROZEN => Self::Frozen { at: epoch(from)? },
            tag::ASK_OUTCOMES => {
                Self::AskOutcomes { after: epoch(from)?, is_wanted: from.varint(WHAT)? == 1 }
            }
            tag::OUTCOMES => Self::Outcomes(Items::decode(from, &rest)?),
            tag::MISSED => Self::Missed { upto: epoch(from)? },
            tag::OTHERS => Self::Others { least: epoch(from)?, most: epoch(from)? },
            tag::LOOK => Self::Look { token: from.varint(WHAT)?, wanted: Wanted::decode(from)? },
            tag::WARM => Self::Warm { token: from.varint(WHAT)?, keys: decode_keys(from)? },
            tag::WARMED => {
                let (token, took) = (from.varint(WHAT)?, inputs::number(from, WHAT)?);
                Self::Warmed { token, took: Span::from_us(took) }
            }
            tag::COLD => decode_cold(from)?,
            tag::FOUND => Self::Found { token: from.varint(WHAT)?, found: Found::decode(from)? },
            tag::FORWARD => {
                let request = |from: &mut Reader<'_>| {
                    Ok((from.varint(WHAT)?, Request::decode(TxnId::default(), from, &rest)?))
                };
                let count = from.count(WHAT)?;
                let requests = (0..count).map(|_| request(from)).collect::<Result<_, _>>()?;
                Self::Forward { requests }
            }
            tag::TAKEN => {
                let count = from.count(WHAT)?;
                let term = Term::decode(from)?;
                let tokens = (0..count).map(|_| from.varint(WHAT)).collect::<Result<_, _>>()?;
                Self::Taken { term, tokens }
            }
            tag::NOT_TAKEN => {
                let count = from.count(WHAT)?;
                let tokens = (0..count).map(|_| from.varint(WHAT)).collect::<Result<_, _>>()?;
                Self::NotTaken { tokens }
            }
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
            Self::Slice(_) | Self::Piece(_) => "message_slice",
            Self::Items(_) | Self::Outcomes(_) => "message_items",
            Self::Subscribe { .. }
            | Self::Unsubscribe
            | Self::More
            | Self::Kept { .. }
            | Self::Decided { .. }
            | Self::Missed { .. }
            | Self::Frozen { .. }
            | Self::AskOutcomes { .. }
            | Self::Others { .. }
            | Self::Warm { .. }
            | Self::Warmed { .. }
            | Self::Cold { .. }
            | Self::Look { .. }
            | Self::Forward { .. }
            | Self::Taken { .. }
            | Self::NotTaken { .. }
            | Self::Found { .. } => "message_other",
        }
    }

    fn payload_bytes(&self) -> usize {
        match self {
            Self::Inputs(message) => message.payload_bytes(),
            Self::Slice(slice) => slice.bytes().len(),
            Self::Piece(piece) => piece.len(),
            Self::Items(items) | Self::Outcomes(items) => items.len(),
            Self::Forward { requests } => requests.iter().map(|(_, it)| it.weight()).sum(),
            Self::Subscribe { .. }
            | Self::Unsubscribe
            | Self::More
            | Self::Kept { .. }
            | Self::Decided { .. }
            | Self::Missed { .. }
            | Self::Frozen { .. }
            | Self::AskOutcomes { .. }
            | Self::Others { .. }
            | Self::Warm { .. }
            | Self::Warmed { .. }
            | Self::Cold { .. }
            | Self::Look { .. }
            | Self::Taken { .. }
            | Self::NotTaken { .. }
            | Self::Found { .. } => 0,
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Inputs(message) => message.lane(),
            // What is missed is told in the place of what would have been sent.
            Self::Slice(_)
            | Self::Piece(_)
            | Self::Decided { .. }
            | Self::More
            | Self::Items(_)
            | Self::Outcomes(_)
            | Self::Missed { .. }
            | Self::Cold { .. }
            | Self::Look { .. }
            | Self::Forward { .. }
            | Self::Taken { .. }
            | Self::NotTaken { .. }
            | Self::Found { .. } => Lane::Bulk,
            Self::Subscribe { .. }
            | Self::Unsubscribe
            | Self::Kept { .. }
            | Self::Warm { .. }
            | Self::Warmed { .. }
            | Self::Frozen { .. }
            | Self::AskOutcomes { .. }
            | Self::Others { .. } => Lane::Control,
        }
    }
}

fn decode_subscribe(from: &mut Reader<'_>) -> Result<Message, DecodeError> {
    const WHAT: &str = "epochs";
    let slices = SnapshotVersion(inputs::number(from, WHAT)?);
    let items = SnapshotVersion(inputs::number(from, WHAT)?);
    Ok(Message::Subscribe { slices, items, goes_on: from.varint(WHAT)? == 1 })
}

fn decode_keys(from: &mut Reader<'_>) -> Result<Vec<(TableId, Key)>, DecodeError> {
    const WHAT: &str = "keys";
    let key = |from: &mut Reader<'_>| {
        let table = u32::try_from(from.varint(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        Ok((TableId(table), Key::from(from.bytes(WHAT)?)))
    };
    (0..from.count(WHAT)?).map(|_| key(from)).collect()
}

/// The number after that of a node, or 0 for nobody.
fn decode_node(from: &mut Reader<'_>) -> Result<Option<NodeId>, DecodeError> {
    const WHAT: &str = "node";
    let Some(node) = from.varint(WHAT)?.checked_sub(1) else { return Ok(None) };
    u16::try_from(node).map(|node| Some(NodeId(node))).map_err(|_| DecodeError::new(WHAT))
}

fn decode_cold(from: &mut Reader<'_>) -> Result<Message, DecodeError> {
    const WHAT: &str = "cold rows";
    let words = inputs::number(from, WHAT)? as usize;
    let is_map = words == 0 || words.is_power_of_two() && words <= ColdMap::WORDS_MAX;
    let is_all = from.varint(WHAT)? == 1;
    let changes = (0..from.count(WHAT)?)
        .map(|_| Ok((inputs::number(from, WHAT)? as usize, from.u64(WHAT)?)))
        .collect::<Result<Vec<_>, DecodeError>>()?;
    match is_map && changes.iter().all(|(at, _)| *at < words) {
        true => Ok(Message::Cold { words, is_all, changes }),
        false => Err(DecodeError::new(WHAT)),
    }
}

fn put_kept(
    upto: SnapshotVersion,
    applied: SnapshotVersion,
    waits_for: Option<NodeId>,
    out: &mut Vec<u8>,
) {
    out.put_u8(tag::KEPT);
    let node = waits_for.map_or(0, |node| u64::from(node.0) + 1);
    [upto.0, applied.0, node].into_iter().for_each(|number| out.put_varint(number));
}

fn put_cold(words: usize, is_all: bool, changes: &[(usize, u64)], out: &mut Vec<u8>) {
    out.put_u8(tag::COLD);
    let counts = [words, usize::from(is_all), changes.len()];
    counts.into_iter().for_each(|count| out.put_varint(count as u64));
    for (at, word) in changes {
        out.put_varint(*at as u64);
        out.put_u64(*word);
    }
}

fn encode_items(tag: u8, items: &Items, out: &mut Vec<u8>) {
    out.put_u8(tag);
    items.encode(out);
}

#[cfg(test)]
mod tests {
    use super::super::shards::items::Item;
    use super::super::shards::slice::Line;
    use super::super::shards::slice::tests::slice;
    use super::*;
    use pangea_core::exec::ordered::{Part, Went};
    use pangea_core::key::{Direction, KeyRange};
    use pangea_core::txn::{Abort, Scan, SqlState, Write};
    use pangea_core::value::Value;

    #[test]
    fn every_message_survives_its_encoding() {
        let (epoch, txn) = (SnapshotVersion(300), TxnId::new(NodeId(3), 9));
        let (table, key) = (TableId(7), Key::from(&b"k"[..]));
        let row = Write { table, key: key.clone(), value: Some(Value::copy_from(b"v")) };
        let range = KeyRange { start: vec![1], end: None };
        let scan = Scan { table, range: range.clone(), direction: Direction::Reverse };
        let wanted = Wanted { points: [(table, key.clone())].into(), ranges: vec![scan] };
        let abort = Abort::new(SqlState::RAISE_EXCEPTION, "no");
        let items = vec![
            Item::Part(txn, Part::Rows(vec![row.clone()])),
            Item::Part(txn, Part::Certified(None)),
            Item::Part(txn, Part::TooLarge(1 << 40)),
            Item::Result(txn, Went::Ran(Ok(vec![1, 2]))),
            Item::Result(txn, Went::Ran(Err(abort))),
            Item::Result(txn, Went::Left),
        ];
        let request = super::super::batch::tests::batch().requests.swap_remove(1);
        let request = Request { txn: TxnId::default(), ..request };
        let all = [
            Message::Inputs(inputs::Message::BarrierRequest { token: 5 }),
            Message::Subscribe { slices: epoch, items: SnapshotVersion(2), goes_on: true },
            Message::Unsubscribe,
            Message::More,
            Message::Piece(super::super::shards::pieces::tests::pieces().swap_remove(1)),
            Message::Slice(slice()),
            Message::Slice(slice().said_to_be(false)),
            Message::Decided { upto: epoch, name: slice().cut.name },
            Message::Items(Items::new((epoch, Line(u64::MAX)), &items)),
            Message::Kept { upto: epoch, applied: SnapshotVersion(301), waits_for: None },
            Message::Kept { upto: epoch, applied: epoch, waits_for: Some(NodeId(300)) },
            Message::Missed { upto: epoch },
            Message::Frozen { at: epoch },
            Message::AskOutcomes { after: epoch, is_wanted: true },
            Message::Outcomes(Items::new((epoch, Line::default()), &items[3..])),
            Message::Others { least: SnapshotVersion(9), most: epoch },
            Message::Warm { token: 4, keys: vec![(table, key.clone())] },
            Message::Warmed { token: 4, took: Span::from_us(900) },
            Message::Cold { words: 64, is_all: true, changes: vec![(63, u64::MAX)] },
            Message::Look { token: 3, wanted },
            Message::Found {
                token: 3,
                found: Found { rows: vec![row], points: 300, covered: vec![(table, range)] },
            },
            Message::Forward { requests: vec![(300, request)] },
            Message::Taken { term: Term::default(), tokens: vec![300, 7] },
            Message::NotTaken { tokens: vec![1, 300] },
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
