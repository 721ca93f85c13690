//! What nodes say to each other: replicas of a shard as those of any input log do, and the shards
//! of a region among themselves.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::scout::{Found, Wanted};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::store::ColdMap;
use pangea_core::time::Span;

use super::batch::Request;
use super::shards::items::Items;
use super::shards::pieces::{Piece, decode_flag};
use super::shards::slice::Slice;
use crate::agreement::Term;
use crate::inputs::{self, ProposalName};
use crate::messages::{Codec, Strict, Varint, messages};

messages! {
    /// One message.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message wraps Inputs(inputs::Message) below 64, "Between replicas of a shard." {
        /// §3.1: please send what concerns the sender's shard, from after these epochs on.
        64 => Subscribe {
            /// The sender has what was sequenced up to here.
            slices: SnapshotVersion as Strict<SnapshotVersion>,
            /// And what was served to it up to here.
            items: SnapshotVersion as Strict<SnapshotVersion>,
            /// It was told to go on with that ([`Message::More {}`]), and has all that came before.
            goes_on: bool,
        } control "message_other";
        /// It comes from elsewhere now.
        72 => Unsubscribe {
        } control "message_other";
        /// §3.1: what an epoch of the sender's shard has for the receiver's.
        65 => Slice {
            /// The slice.
            slice: Slice,
        } bulk "message_slice";
        /// A part of such a slice that is too large for one message.
        73 => Piece {
            /// The part.
            piece: Piece,
        } bulk "message_slice";
        /// §3.1.1, asynchronous: what slices up to an epoch were of is decided, of those that were sent
        /// before it was.
        84 => Decided {
            /// The epoch.
            upto: SnapshotVersion as Strict<SnapshotVersion>,
            /// Its cut.
            name: ProposalName,
        } bulk "message_other";
        /// What was subscribed to is more than is sent at a time: subscribe again.
        74 => More {
        } bulk "message_other";
        /// §3.2, phase 3: rows for transactions of an epoch, and results.
        66 => Items {
            /// The rows and results.
            items: Items,
        } bulk "message_items";
        /// How far the sender's shard is.
        67 => Kept {
            /// All of its replicas have what was sent for epochs up to this one.
            upto: SnapshotVersion as Strict<SnapshotVersion>,
            /// The sender has run up to this one.
            applied: SnapshotVersion as Strict<SnapshotVersion>,
            /// For which other node it waits, where that is far or has been long.
            waits_for: Option<NodeId> as SomeNode,
        } control "message_other";
        /// What was asked for is not there any more, up to this epoch.
        68 => Missed {
            /// The epoch.
            upto: SnapshotVersion as Strict<SnapshotVersion>,
        } bulk "message_other";
        /// §5: the sender stands still at this epoch, and serves nothing of later ones.
        81 => Frozen {
            /// The epoch.
            at: SnapshotVersion as Strict<SnapshotVersion>,
        } control "message_other";
        /// §5: to replicas of the sender's shard, while it is its turn to stand still: it has what
        /// became of its requests up to this epoch.
        82 => AskOutcomes {
            /// The epoch.
            after: SnapshotVersion as Strict<SnapshotVersion>,
            /// The receiver is to tell it of those after it.
            is_wanted: bool,
        } control "message_other";
        /// §5: what became of the receiver's requests of an epoch.
        83 => Outcomes {
            /// The results.
            items: Items,
        } bulk "message_items";
        /// To the coordinator of the sender's group: how far the other groups are.
        71 => Others {
            /// All of them have come to this epoch.
            least: SnapshotVersion as Strict<SnapshotVersion>,
            /// One of them has come to this one.
            most: SnapshotVersion as Strict<SnapshotVersion>,
        } control "message_other";
        /// §4: a transaction that is about to be ordered will look at these rows.
        78 => Warm {
            /// The sender's name for it.
            token: u64 as Varint,
            /// Those of the receiver's.
            keys: Vec<(TableId, Key)> as Vec<(TableId, Key)>,
        } control "message_other";
        /// §4: they are in memory.
        79 => Warmed {
            /// The name that the receiver gave it.
            token: u64 as Varint,
            /// How long it took to fetch them.
            took: Span,
        } control "message_other";
        /// §4.2: which rows of the sender are not in memory.
        80 => Cold {
            /// The changed words.
            map: ColdWords,
        } bulk "message_other";
        /// §3.2.1: a reconnaissance wants to see rows of the receiver's shard.
        69 => Look {
            /// The sender's name for it.
            token: u64 as Varint,
            /// Which.
            wanted: Wanted,
        } bulk "message_other";
        /// §3.2.1: what is there of them.
        70 => Found {
            /// The name that the receiver gave it.
            token: u64 as Varint,
            /// What is there.
            found: Found,
        } bulk "message_other";
        /// §3.1.1, asynchronous: requests for the master's sequencer, each with the sender's name for
        /// it.
        75 => Forward {
            /// The requests, in their order.
            requests: Vec<(u64, Request)> as Vec<(Varint, Request)>,
        } bulk "message_other";
        /// The master has put them into its log.
        76 => Taken {
            /// The term and the tokens.
            taken: Taken,
        } bulk "message_other";
        /// The receiver's requests are not in the sender's log and never will be.
        77 => NotTaken {
            /// The receiver's names for them.
            tokens: Vec<u64> as Vec<Varint>,
        } bulk "message_other";
    }
    kinds &[
        "message_batch",
        "message_ack",
        "message_agreement",
        "message_other",
        "message_slice",
        "message_items",
    ];
}

/// Requests that a master has put into its log.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The term in which the sender is the master.
    pub term: Term,
    /// The receiver's names for the requests.
    pub tokens: Vec<u64>,
}

impl Codec for Taken {
    type Value = Taken;

    fn encode(value: &Taken, out: &mut Vec<u8>) {
        let Taken { term, tokens } = value;
        out.put_varint(tokens.len() as u64);
        term.encode(out);
        tokens.iter().for_each(|token| out.put_varint(*token));
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<Taken, DecodeError> {
        let count = from.count(what)?;
        let term = Term::decode(from)?;
        let tokens = (0..count).map(|_| from.varint(what)).collect::<Result<_, _>>()?;
        Ok(Taken { term, tokens })
    }
}

/// Changed words of the map of cold rows.
#[derive(Clone, Debug, PartialEq)]
pub struct ColdWords {
    /// The number of words in the map.
    pub words: usize,
    /// Whether these replace everything that was sent before.
    pub is_all: bool,
    /// The positions of the changed words, and their values.
    pub changes: Vec<(usize, u64)>,
}

impl Codec for ColdWords {
    type Value = ColdWords;

    fn encode(value: &ColdWords, out: &mut Vec<u8>) {
        let ColdWords { words, is_all, changes } = value;
        let counts = [*words, usize::from(*is_all), changes.len()];
        counts.into_iter().for_each(|count| out.put_varint(count as u64));
        for (at, word) in changes {
            out.put_varint(*at as u64);
            out.put_u64(*word);
        }
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        what: &'static str,
    ) -> Result<ColdWords, DecodeError> {
        let words = inputs::number(from, what)? as usize;
        let is_map = words == 0 || words.is_power_of_two() && words <= ColdMap::WORDS_MAX;
        let is_all = from.varint(what)? == 1;
        let changes = (0..from.count(what)?)
            .map(|_| Ok((inputs::number(from, what)? as usize, from.u64(what)?)))
            .collect::<Result<Vec<_>, DecodeError>>()?;
        match is_map && changes.iter().all(|(at, _)| *at < words) {
            true => Ok(ColdWords { words, is_all, changes }),
            false => Err(DecodeError::new(what)),
        }
    }
}

/// The number after that of a node, or 0 for none.
struct SomeNode;

impl Codec for SomeNode {
    type Value = Option<NodeId>;

    fn encode(value: &Option<NodeId>, out: &mut Vec<u8>) {
        out.put_varint(value.map_or(0, |node| u64::from(node.0) + 1));
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        what: &'static str,
    ) -> Result<Option<NodeId>, DecodeError> {
        let Some(node) = from.varint(what)?.checked_sub(1) else { return Ok(None) };
        u16::try_from(node).map(|node| Some(NodeId(node))).map_err(|_| DecodeError::new(what))
    }
}

impl Codec for TableId {
    type Value = TableId;

    fn encode(value: &TableId, out: &mut Vec<u8>) {
        out.put_varint(value.0.into());
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<TableId, DecodeError> {
        u32::try_from(from.varint(what)?).map(TableId).map_err(|_| DecodeError::new(what))
    }
}

impl Codec for Key {
    type Value = Key;

    fn encode(value: &Key, out: &mut Vec<u8>) {
        out.put_bytes(value);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<Key, DecodeError> {
        from.bytes(what).map(Key::from)
    }
}

/// In microseconds.
impl Codec for Span {
    type Value = Span;

    fn encode(value: &Span, out: &mut Vec<u8>) {
        out.put_varint(value.us);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<Span, DecodeError> {
        inputs::number(from, what).map(Span::from_us)
    }
}

impl Codec for ProposalName {
    type Value = ProposalName;

    fn encode(value: &ProposalName, out: &mut Vec<u8>) {
        (*value).encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        what: &'static str,
    ) -> Result<ProposalName, DecodeError> {
        ProposalName::decode(from, what)
    }
}

impl Codec for Request {
    type Value = Request;

    fn encode(value: &Request, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        _: &'static str,
    ) -> Result<Request, DecodeError> {
        Request::decode(TxnId::default(), from, message)
    }

    fn payload_bytes(value: &Request) -> usize {
        value.weight()
    }
}

impl Codec for Slice {
    type Value = Slice;

    fn encode(value: &Slice, out: &mut Vec<u8>) {
        out.put_u8(u8::from(value.is_decided));
        out.extend_from_slice(value.bytes());
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        what: &'static str,
    ) -> Result<Slice, DecodeError> {
        let is_decided = decode_flag(from)?;
        let slice = Slice::decode(&Bytes::decode(from, message, what)?)?;
        Ok(slice.said_to_be(is_decided))
    }

    fn payload_bytes(value: &Slice) -> usize {
        value.bytes().len()
    }
}

impl Codec for Piece {
    type Value = Piece;

    fn encode(value: &Piece, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        _: &'static str,
    ) -> Result<Piece, DecodeError> {
        Piece::decode(from, message)
    }

    fn payload_bytes(value: &Piece) -> usize {
        value.len()
    }
}

impl Codec for Items {
    type Value = Items;

    fn encode(value: &Items, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        _: &'static str,
    ) -> Result<Items, DecodeError> {
        Items::decode(from, message)
    }

    fn payload_bytes(value: &Items) -> usize {
        value.len()
    }
}

impl Codec for Wanted {
    type Value = Wanted;

    fn encode(value: &Wanted, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, _: &'static str) -> Result<Wanted, DecodeError> {
        Wanted::decode(from)
    }
}

impl Codec for Found {
    type Value = Found;

    fn encode(value: &Found, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, _: &'static str) -> Result<Found, DecodeError> {
        Found::decode(from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shards::items::Item;
    use super::super::shards::slice::Line;
    use super::super::shards::slice::tests::slice;
    use super::*;
    use pangea_core::protocol::Message as _;
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
            Message::Unsubscribe {},
            Message::More {},
            Message::Piece { piece: super::super::shards::pieces::tests::pieces().swap_remove(1) },
            Message::Slice { slice: slice() },
            Message::Slice { slice: slice().said_to_be(false) },
            Message::Decided { upto: epoch, name: slice().cut.name },
            Message::Items { items: Items::new((epoch, Line(u64::MAX)), &items) },
            Message::Kept { upto: epoch, applied: SnapshotVersion(301), waits_for: None },
            Message::Kept { upto: epoch, applied: epoch, waits_for: Some(NodeId(300)) },
            Message::Missed { upto: epoch },
            Message::Frozen { at: epoch },
            Message::AskOutcomes { after: epoch, is_wanted: true },
            Message::Outcomes { items: Items::new((epoch, Line::default()), &items[3..]) },
            Message::Others { least: SnapshotVersion(9), most: epoch },
            Message::Warm { token: 4, keys: vec![(table, key.clone())] },
            Message::Warmed { token: 4, took: Span::from_us(900) },
            Message::Cold { map: ColdWords { words: 64, is_all: true, changes: vec![(63, u64::MAX)] } },
            Message::Look { token: 3, wanted },
            Message::Found {
                token: 3,
                found: Found { rows: vec![row], points: 300, covered: vec![(table, range)] },
            },
            Message::Forward { requests: vec![(300, request)] },
            Message::Taken { taken: Taken { term: Term::default(), tokens: vec![300, 7] } },
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
