//! The messages between nodes: those of any input log between the replicas of a shard, and those
//! between the shards of a region.
//!
//! Each variant says who sends it, when, and the effect on the receiver. Sections are those of the
//! paper; it has no messages for the delivery between shards, which it leaves to the
//! implementation.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::reconnaissance::{LookupKeys, LookupRows};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::store::ColdMap;
use pangea_core::time::Span;

use super::batch::Request;
use super::shards::chunks::{SliceChunk, decode_flag};
use super::shards::remote_results::RemoteResults;
use super::shards::slice::Slice;
use crate::agreement::Term;
use crate::inputs::{self, ProposalName};
use crate::messages::{Codec, Strict, Unchecked, Varint, messages};
use crate::streams::number;
use crate::{presence, streams, transfer};

messages! {
    /// A message between two nodes.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Message
    wraps Inputs(inputs::Message: streams::Message, presence::Message, transfer::Message),
        "Between replicas of a shard, about the input log."
    {
        /// §3.1.1: requests mastership. The preferred master sends it to the leader of
        /// agreement, which stops accepting transactions until it can reply with
        /// [`inputs::Message::TransferLeadership`].
        17 => RequestMastership {} control "message_other";
        /// §5: whether the sender wants a checkpoint turn or still needs the one that it
        /// has, as of the last cut that it knows. Sent to every peer along with
        /// `Progress`, if replicas are frozen for their checkpoints. The coordinator
        /// names the next holder of the turn in a cut.
        19 => CheckpointTurn {
            /// Whether the sender wants or still needs a turn.
            wants: bool,
            /// Whether the sender is frozen.
            is_frozen: bool,
            /// The epoch of the last cut that the sender knows.
            known: SnapshotVersion as Unchecked<SnapshotVersion>,
        } control "message_other";
        /// §3.1: requests the slices, rows and outcomes for the sender's shard, of epochs after
        /// these. A node sends it to one replica of each other shard: when they connect, when it
        /// switches to another replica, when it detects a gap, and in reply to
        /// [`Message::Resubscribe`]. The receiver sends its backlog and then everything new.
        64 => Subscribe {
            /// The last epoch through which the sender has all slices.
            slices: SnapshotVersion as Strict<SnapshotVersion>,
            /// The last epoch through which the sender has all rows and outcomes.
            results: SnapshotVersion as Strict<SnapshotVersion>,
            /// Whether this continues a subscription that the receiver paused with
            /// [`Message::Resubscribe`].
            is_continued: bool,
        } control "message_other";
        /// Not in the paper: ends a subscription. A node sends it to the replica that it was
        /// subscribed to when it switches to another one. The receiver stops sending.
        72 => Unsubscribe {
        } control "message_other";
        /// §3.1: the requests of an epoch of the sender's shard that the receiver's shard
        /// participates in. Sent to all subscribers when the cut of the epoch is known, and from
        /// the backlog. The receiver runs an epoch once it has the slices of all shards.
        65 => Slice {
            /// The slice.
            slice: Slice,
        } bulk "message_slice";
        /// §3.1: a chunk of a slice that is too large for one [`Message::Slice`]. Sent in the place
        /// of the slice, all chunks in order. The receiver assembles the slice and handles it.
        73 => SliceChunk {
            /// The chunk, with its number.
            chunk: SliceChunk,
        } bulk "message_slice";
        /// §3.1.1, asynchronous: the cuts of the slices up to an epoch, which were sent before they
        /// were decided, are now decided. Sent to all subscribers. The receiver may then confirm
        /// these epochs.
        84 => SlicesDecided {
            /// The last epoch of the sender's group whose cut is decided.
            upto: SnapshotVersion as Strict<SnapshotVersion>,
            /// The name of the cut of that epoch: a slice of another cut is void.
            name: ProposalName,
        } bulk "message_other";
        /// Not in the paper: pauses a subscription. A node sends it to a subscriber after a part of
        /// a large backlog, or when a checkpoint made it skip epochs. The receiver subscribes again
        /// from after the messages that it has.
        74 => Resubscribe {
        } bulk "message_other";
        /// §3.2, phase 3: rows for transactions of an epoch, and outcomes. Sent to all subscribers
        /// of a shard that needs them, as soon as the sender has them, and from the backlog. The
        /// receiver runs the transactions that wait for them, or answers their clients.
        66 => RemoteResults {
            /// The rows and outcomes of one epoch.
            results: RemoteResults,
        } bulk "message_items";
        /// Not in the paper: the progress of the sender and its shard. A node sends it to all
        /// connected nodes of other shards when it has changed. The receiver truncates its stream
        /// to the sender's shard, and chooses by it the replica to subscribe to.
        67 => ShardProgress {
            /// The last epoch that all replicas of the sender's shard have persisted, and for which
            /// and before which they need no further message.
            upto: SnapshotVersion as Strict<SnapshotVersion>,
            /// The last epoch that the sender has run and confirmed.
            applied: SnapshotVersion as Strict<SnapshotVersion>,
            /// The other node for which the sender waits, if that node is far behind or has been
            /// late for long.
            waits_for: Option<NodeId> as SomeNode,
        } control "message_other";
        /// Not in the paper: the sender is the coordinator of its group, whose replicas stop in
        /// order. Sent to all connected nodes of other shards at a fixed interval. A coordinator
        /// whose group stops, too, waits until all groups have ended with the same epoch.
        85 => Sealed {
            /// The last epoch of the group.
            at: SnapshotVersion as Strict<SnapshotVersion>,
            /// Whether the group begins no more epochs of its own.
            is_sealed: bool,
        } control "message_other";
        /// Not in the paper: the reply to a [`Message::Subscribe`] for epochs that the sender has
        /// truncated. The receiver subscribes to another replica. If none has these epochs, it
        /// installs a checkpoint of its group.
        68 => Truncated {
            /// The last truncated epoch.
            upto: SnapshotVersion as Strict<SnapshotVersion>,
        } bulk "message_other";
        /// §5: the sender is frozen at this epoch, and sends no rows of later ones. Sent to all
        /// connected nodes of other shards when it freezes, and to those that connect later. The
        /// receiver subscribes to another replica of the sender's shard.
        81 => Frozen {
            /// The last epoch whose rows the sender sends before its checkpoint is durable.
            at: SnapshotVersion as Strict<SnapshotVersion>,
        } control "message_other";
        /// §5: the sender has the checkpoint turn, and has received the outcomes of its requests up
        /// to this epoch. Sent to all connected replicas of its shard at a fixed interval. The
        /// receiver discards older retained outcomes.
        82 => OutcomesRequest {
            /// The last epoch through which the sender has its outcomes.
            after: SnapshotVersion as Strict<SnapshotVersion>,
            /// Whether the receiver is to send the outcomes of later epochs: only one replica is.
            is_wanted: bool,
        } control "message_other";
        /// §5: the outcomes of the receiver's requests of an epoch, in reply to
        /// [`Message::OutcomesRequest`]. The receiver, which may be frozen, answers its clients.
        83 => Outcomes {
            /// The outcomes of one epoch.
            outcomes: RemoteResults,
        } bulk "message_items";
        /// Not in the paper: the progress of the other groups, as seen by the sender. Sent to the
        /// coordinator of the sender's group when it has changed, and at once if the group has been
        /// behind for long. The receiver follows the furthest group, and does not get too far ahead
        /// of the slowest.
        71 => GroupProgress {
            /// The last epoch that all other groups have reached.
            least: SnapshotVersion as Strict<SnapshotVersion>,
            /// The last epoch that some other group has reached.
            most: SnapshotVersion as Strict<SnapshotVersion>,
        } control "message_other";
        /// §4: the sender delays a transaction that reads these cold rows. Sent to all connected
        /// replicas of their shards. The receiver fetches the rows into memory and replies with
        /// [`Message::WarmReply`].
        78 => WarmRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
            /// The rows that are stored on the receiver.
            keys: Vec<(TableId, Key)> as Vec<(TableId, Key)>,
        } control "message_other";
        /// §4: the reply to a [`Message::WarmRequest`]: the rows are in memory. The receiver
        /// sequences the transaction once all replicas have replied.
        79 => WarmReply {
            /// The name that the receiver gave to the request.
            token: u64 as Varint,
            /// The time that the fetch took.
            took: Span,
        } control "message_other";
        /// §4.2: the rows of the sender that are not in memory, as a map of bits. Sent to all
        /// connected nodes when it has changed, and to each node on connect.
        80 => ColdMapUpdate {
            /// The changed words.
            map: ColdWords,
        } bulk "message_other";
        /// §3.2.1: requests rows for a reconnaissance from another shard. Sent to the replica that
        /// the sender is subscribed to, which replies with [`Message::LookupReply`].
        69 => LookupRequest {
            /// The sender's name for the request.
            token: u64 as Varint,
            /// The requested rows.
            keys: LookupKeys,
        } bulk "message_other";
        /// §3.2.1: the reply to a [`Message::LookupRequest`]. The receiver continues the
        /// reconnaissance.
        70 => LookupReply {
            /// The name that the receiver gave to the request.
            token: u64 as Varint,
            /// The rows found.
            rows: LookupRows,
        } bulk "message_other";
        /// §3.1.1, asynchronous: requests of a replica's clients for the master's sequencer, each
        /// with the sender's name for it. The receiver replies with [`Message::ForwardAccepted`] or
        /// [`Message::ForwardRejected`].
        75 => Forward {
            /// The requests, in their order.
            requests: Vec<(u64, Request)> as Vec<(Varint, Request)>,
        } bulk "message_other";
        /// §3.1.1, asynchronous: the reply of the master to a [`Message::Forward`]: it has accepted
        /// the requests into the batch that it collects. The receiver answers its clients once it
        /// has run them.
        76 => ForwardAccepted {
            /// The term and the tokens.
            accepted: Accepted,
        } bulk "message_other";
        /// §3.1.1, asynchronous: the reply to a [`Message::Forward`] by a replica that is not the
        /// master or has reached a limit: the requests are not in the sender's log and never will
        /// be. The receiver forwards them again later.
        77 => ForwardRejected {
            /// The receiver's names for the requests.
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
pub struct Accepted {
    /// The term in which the sender is the master.
    pub term: Term,
    /// The receiver's names for the requests.
    pub tokens: Vec<u64>,
}

impl Codec for Accepted {
    type Value = Accepted;

    fn encode(value: &Accepted, out: &mut Vec<u8>) {
        let Accepted { term, tokens } = value;
        out.put_varint(tokens.len() as u64);
        term.encode(out);
        tokens.iter().for_each(|token| out.put_varint(*token));
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        what: &'static str,
    ) -> Result<Accepted, DecodeError> {
        let count = from.count(what)?;
        let term = Term::decode(from)?;
        let tokens = (0..count).map(|_| from.varint(what)).collect::<Result<_, _>>()?;
        Ok(Accepted { term, tokens })
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
        let words = number(from, what)? as usize;
        let is_map = words == 0 || words.is_power_of_two() && words <= ColdMap::WORDS_MAX;
        let is_all = from.varint(what)? == 1;
        let changes = (0..from.count(what)?)
            .map(|_| Ok((number(from, what)? as usize, from.u64(what)?)))
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

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        what: &'static str,
    ) -> Result<TableId, DecodeError> {
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
        number(from, what).map(Span::from_us)
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
        Ok(slice.with_decided(is_decided))
    }

    fn payload_bytes(value: &Slice) -> usize {
        value.bytes().len()
    }
}

impl Codec for SliceChunk {
    type Value = SliceChunk;

    fn encode(value: &SliceChunk, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        _: &'static str,
    ) -> Result<SliceChunk, DecodeError> {
        SliceChunk::decode(from, message)
    }

    fn payload_bytes(value: &SliceChunk) -> usize {
        value.len()
    }
}

impl Codec for RemoteResults {
    type Value = RemoteResults;

    fn encode(value: &RemoteResults, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        message: &Bytes,
        _: &'static str,
    ) -> Result<RemoteResults, DecodeError> {
        RemoteResults::decode(from, message)
    }

    fn payload_bytes(value: &RemoteResults) -> usize {
        value.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::shards::remote_results::RemoteResult;
    use super::super::shards::slice::Lineage;
    use super::super::shards::slice::tests::slice;
    use super::*;
    use pangea_core::exec::ordered::{RemoteReads, ShardOutcome};
    use pangea_core::key::{Direction, KeyRange};
    use pangea_core::protocol::Message as _;
    use pangea_core::txn::{Abort, Scan, SqlState, Write};
    use pangea_core::value::Value;

    #[test]
    fn every_message_survives_its_encoding() {
        let (epoch, txn) = (SnapshotVersion(300), TxnId::new(NodeId(3), 9));
        let (table, key) = (TableId(7), Key::from(&b"k"[..]));
        let row = Write { table, key: key.clone(), value: Some(Value::copy_from(b"v")) };
        let range = KeyRange { start: vec![1], end: None };
        let scan = Scan { table, range: range.clone(), direction: Direction::Reverse };
        let keys = LookupKeys { points: [(table, key.clone())].into(), ranges: vec![scan] };
        let abort = Abort::new(SqlState::RAISE_EXCEPTION, "no");
        let results = vec![
            RemoteResult::Reads(txn, RemoteReads::Rows(vec![row.clone()])),
            RemoteResult::Reads(txn, RemoteReads::Certified(None)),
            RemoteResult::Reads(txn, RemoteReads::TooLarge(1 << 40)),
            RemoteResult::Outcome(txn, ShardOutcome::Ran(Ok(vec![1, 2]))),
            RemoteResult::Outcome(txn, ShardOutcome::Ran(Err(abort))),
            RemoteResult::Outcome(txn, ShardOutcome::FootprintViolated),
        ];
        let request = super::super::batch::tests::batch().requests.swap_remove(1);
        let request = Request { txn: TxnId::default(), ..request };
        let all = [
            Message::Inputs(inputs::Message::BarrierRequest { token: 5 }),
            Message::RequestMastership {},
            Message::CheckpointTurn { wants: true, is_frozen: false, known: SnapshotVersion(300) },
            Message::Subscribe { slices: epoch, results: SnapshotVersion(2), is_continued: true },
            Message::Unsubscribe {},
            Message::Resubscribe {},
            Message::SliceChunk {
                chunk: super::super::shards::chunks::tests::chunks().swap_remove(1),
            },
            Message::Slice { slice: slice() },
            Message::Slice { slice: slice().with_decided(false) },
            Message::SlicesDecided { upto: epoch, name: slice().cut.name },
            Message::RemoteResults {
                results: RemoteResults::new((epoch, Lineage(u64::MAX)), &results),
            },
            Message::ShardProgress { upto: epoch, applied: SnapshotVersion(301), waits_for: None },
            Message::Sealed { at: epoch, is_sealed: true },
            Message::ShardProgress { upto: epoch, applied: epoch, waits_for: Some(NodeId(300)) },
            Message::Truncated { upto: epoch },
            Message::Frozen { at: epoch },
            Message::OutcomesRequest { after: epoch, is_wanted: true },
            Message::Outcomes {
                outcomes: RemoteResults::new((epoch, Lineage::default()), &results[3..]),
            },
            Message::GroupProgress { least: SnapshotVersion(9), most: epoch },
            Message::WarmRequest { token: 4, keys: vec![(table, key.clone())] },
            Message::WarmReply { token: 4, took: Span::from_us(900) },
            Message::ColdMapUpdate {
                map: ColdWords { words: 64, is_all: true, changes: vec![(63, u64::MAX)] },
            },
            Message::LookupRequest { token: 3, keys },
            Message::LookupReply {
                token: 3,
                rows: LookupRows { rows: vec![row], points: 300, covered: vec![(table, range)] },
            },
            Message::Forward { requests: vec![(300, request)] },
            Message::ForwardAccepted {
                accepted: Accepted { term: Term::default(), tokens: vec![300, 7] },
            },
            Message::ForwardRejected { tokens: vec![1, 300] },
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
