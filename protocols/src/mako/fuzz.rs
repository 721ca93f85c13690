//! Messages of peers, and contents of the log and of checkpoints, that are nearly right.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::exec::Change;
use pangea_core::exec::reconnaissance::LookupKeys;
use pangea_core::exec::spread::FoundRows;
use pangea_core::ids::{
    LogPosition, NodeId, ProcedureId, ShardId, SnapshotVersion, TableId, TxnId,
};
use pangea_core::key::Key;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Message as _;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{Abort, PointRead, Program, ReadSet, ReadVersion, SqlState, Write};
use pangea_core::value::Value;

use super::Message;
use super::across::{Across, Kind};
use super::checkpoint::Meta;
use super::clocks::{Clock, Slot};
use super::closing::Adopted;
use super::epochs::{Decided, Leadership};
use super::forwarding::{decode_requests, encode_all};
use super::log::{Entry, Executed, Logged, decode_abort, decode_entries, encode_entries};
use super::outcomes::Outcomes;
use super::rejoin::{Known, Rejoined, Replaced};
use super::shards::Config;
use super::shards::items::{Attempt, Item, Named, decode_items, encode_in_parts};
use super::shards::migration::{Piece, decode_cursor};
use super::shards::placement::Moves;
use super::shards::termination::{Fate, decode_fates, encode_fates};
use super::streams::Appended;
use super::versions::{Epoch, version_of};
use crate::agreement::{Agreement, Record};
use crate::digests::EpochDigest;
use crate::fuzzing::{Outcome, Target, run, size};
use crate::presence::Memory as _;
use crate::request::Request;

const NODES: usize = 3;
const FROM: NodeId = NodeId(1);

fn txn(sequence: u64) -> TxnId {
    TxnId::new(FROM, sequence)
}

fn at(count: u64) -> SnapshotVersion {
    version_of(Epoch(3), count)
}

fn entry(count: u64) -> Entry {
    let abort = Abort::new(SqlState::RAISE_EXCEPTION, "no").with_detail("of this kind");
    let write = |value: Option<&[u8]>| Write {
        table: TableId(7),
        key: Key::from(&b"key"[..]),
        value: value.map(Value::copy_from),
    };
    Entry {
        version: at(count),
        before: at(count - 1),
        txns: vec![
            Executed { txn: txn(40), outcome: Ok(vec![1, 2]) },
            Executed { txn: txn(41), outcome: Err(abort) },
        ],
        over: vec![(NodeId(2), 300)],
        writes: vec![(0, write(Some(b"value"))), (0, write(None))],
        across: None,
    }
}

fn entries() -> Vec<Logged> {
    [6, 7].map(|count| Logged::new(entry(count))).to_vec()
}

fn requests() -> Bytes {
    let request = |sequence| Request {
        txn: txn(sequence),
        program: Program::Call { procedure: ProcedureId(2), args: Bytes::from_static(b"args") },
        footprint: None,
        shards: ShardSet::default(),
        origin: None,
    };
    encode_all(&[request(40), request(41)])
}

fn clock() -> Clock {
    let mut clock = Clock::default();
    clock.raise(Slot(1), at(4));
    clock
}

fn piece() -> Bytes {
    let value = Some(Value::copy_from(b"value"));
    let rows = vec![Write { table: TableId(7), key: Key::from(&b"k"[..]), value }];
    let after = Some((TableId(7), Key::from(&b"j"[..])));
    Piece { after: after.clone(), next: after, rows }.encode()
}

/// An entry of one of several shards.
fn divided_entry(count: u64, kind: Kind) -> Logged {
    let written = [ShardId(1)].into_iter().collect();
    let across = Across { closed: at(count - 2), at: at(count - 1), clock: clock(), kind, written };
    Logged::new(Entry { across: Some(across), ..entry(count) })
}

fn items() -> Vec<Named> {
    let point =
        PointRead { table: TableId(7), key: Key::from(&b"k"[..]), seen: ReadVersion::At(at(4)) };
    let reads = || ReadSet { points: vec![point.clone()], ..ReadSet::default() };
    let write = Write { table: TableId(7), key: Key::from(&b"k"[..]), value: None };
    let winner = Some(txn(3));
    let change = Change { table: TableId(7), key: Key::from(&b"k"[..]), winner };
    let all = [
        Item::Read(LookupKeys::default()),
        Item::Found { rows: FoundRows::default(), counter: at(4) },
        Item::Prepare { reads: reads(), writes: vec![write] },
        Item::Prepared { draw: at(4), clock: clock() },
        Item::Refused(change),
        Item::Validate { version: at(4), reads: reads() },
        Item::Valid(clock()),
        Item::Install { version: at(4), clock: clock() },
        Item::Forget,
        Item::Inquire,
    ];
    let named = |item| Named { attempt: Attempt { txn: txn(40), number: 2 }, item };
    all.map(named).to_vec()
}

/// The messages of several shards.
fn divided_messages() -> Vec<Message> {
    let abort = postcard::to_stdvec(&Abort::new(SqlState::INTERNAL_ERROR, "no")).unwrap();
    let fates: [(TxnId, Fate); 2] = [(txn(40), None), (txn(41), Some((at(4), clock())))];
    let mut config = Vec::new();
    let mut known = Config::default();
    (known.number, known.begun) = (Epoch(4), Epoch(3));
    (known.leaders, known.finals) = (vec![NodeId(0), NodeId(2)], vec![at(3), at(4)]);
    known.since = vec![Epoch(3), Epoch(4)];
    known.encode(&mut config);
    let ended = |committed, result: &[u8]| {
        let result = Bytes::copy_from_slice(result);
        Message::Ended { txn: txn(40).to_bits(), version: at(4), committed, result }
    };
    let of_each = items().into_iter().flat_map(|named| encode_in_parts(&[named]));
    let of_each = of_each.map(|items| Message::Items { epoch: 3, items });
    let others = [
        ended(1, b"result"),
        ended(0, &abort),
        Message::Watermark { epoch: 3, version: at(4) },
        Message::Config { closed: at(4), config: config.into(), moved: 3 },
        Message::Copy { epoch: 3, after: Bytes::from_static(b"\x07\x01k") },
        Message::Piece { epoch: 3, piece: piece() },
        Message::Move { token: 7, moves: Bytes::from_static(b"\x02\x01\x01\x00\x00") },
        Message::MoveRefused { token: 7, epoch: 3, abort: Bytes::copy_from_slice(&abort) },
        Message::Ask { epoch: 3, txns: Bytes::copy_from_slice(&txn(40).to_bits().to_be_bytes()) },
        Message::Fates { epoch: 3, fates: encode_fates(&fates) },
    ];
    of_each.chain(others).collect()
}

fn outcomes() -> Outcomes {
    let mut outcomes = Outcomes::default();
    outcomes.note(&entry(6));
    outcomes
}

fn agreement() -> Vec<Record<Decided>> {
    let epoch = Decided::Epoch { number: 3, leader: NodeId(2) };
    let closed = Decided::Closed { number: 3, end: at(5) };
    let entries = vec![epoch, closed];
    vec![Record::Trimmed(3), Record::Entries { from: 3, entries }, Record::Decided(4)]
}

fn progress(numbers: [u64; 5], versions: [SnapshotVersion; 3]) -> Message {
    let [epoch, begun, log_epoch, replaced, decisions] = numbers;
    let [last, first, published] = versions;
    Message::Progress {
        epoch,
        leader: NodeId(2),
        begun,
        log_epoch,
        last,
        first,
        published,
        flags: 9,
        replaced,
        decisions,
        deaf_to: vec![NodeId(0)],
    }
}

fn messages() -> Vec<Vec<u8>> {
    let abort = postcard::to_stdvec(&Abort::new(SqlState::INTERNAL_ERROR, "no")).unwrap();
    let entries = encode_entries(&entries());
    let digest = EpochDigest { epoch: at(6), scope: 0, tables: vec![(TableId(7), 9)] };
    let all = [
        Message::Forward { epoch: 3, below: 40, requests: requests() },
        Message::Append {
            epoch: 3,
            end: at(1),
            after: at(5),
            committed: at(4),
            stable: SnapshotVersion::ZERO,
            entries: entries.clone(),
        },
        Message::Ack { epoch: 3, upto: at(7) },
        Message::Report {
            epoch: 3,
            log_epoch: 2,
            last: at(7),
            published: at(4),
            is_whole: true,
            is_again: false,
        },
        Message::Fetch { epoch: 3, after: at(4) },
        Message::Tail { epoch: 3, after: at(5), entries },
        Message::Agreement { bytes: Bytes::from_static(b"bytes") },
        progress([3, 3, 2, 1, 70_000], [at(7), at(1), at(4)]),
        Message::Refused { epoch: 3, txn: txn(40).to_bits(), abort: abort.into() },
        Message::FreshRequest { token: 5 },
        Message::FreshReply { token: 5, version: at(7) },
        Message::Digests { digests: vec![digest] },
    ];
    let encode = |message: &Message| {
        let mut out = Vec::new();
        message.encode(&mut out);
        out
    };
    let kinds = [Kind::Own, Kind::Piece, Kind::Cut { epoch: Epoch(3), finals: vec![at(3), at(4)] }];
    let divided = kinds.map(|kind| Message::Tail {
        epoch: 3,
        after: at(5),
        entries: encode_entries(&[divided_entry(6, kind)]),
    });
    all.iter().chain(&divided).chain(&divided_messages()).map(encode).collect()
}

/// Decodes the contents of a message that are decoded separately.
fn look_inside(message: &Message) -> Result<u32, DecodeError> {
    match message {
        Message::Forward { requests, .. } => {
            let all = decode_requests(FROM, requests)?;
            assert_eq!(decode_requests(FROM, &encode_all(&all)), Ok(all.clone()));
            Ok(size(all.len()))
        }
        Message::Append { after, entries, .. } | Message::Tail { after, entries, .. } => {
            let all = decode_entries(entries, *after)?;
            for logged in &all {
                let again = Logged::new((*logged.entry).clone());
                let again = Entry::decode(&mut Reader::new(&again.bytes));
                assert_eq!(again.as_ref(), Ok(&*logged.entry), "the encoding is reversible");
            }
            Ok(size(all.len()))
        }
        Message::Piece { piece, .. } => {
            let piece = Piece::decode(piece)?;
            assert_eq!(Piece::decode(&piece.encode()), Ok(piece.clone()));
            Ok(size(piece.rows.len()))
        }
        Message::Copy { after, .. } => decode_cursor(after).map(|_| 0),
        Message::Move { moves, .. } => {
            let all = Moves::decode(&mut Reader::new(moves))?;
            Ok(size(all.iter().count()))
        }
        Message::MoveRefused { abort, .. } => {
            decode_abort(abort).map(|abort| size(abort.text_bytes()))
        }
        Message::Refused { abort, .. } | Message::Ended { committed: 0, result: abort, .. } => {
            decode_abort(abort).map(|abort| size(abort.text_bytes()))
        }
        Message::Items { items, .. } => {
            let all = decode_items(items)?;
            for part in encode_in_parts(&all) {
                assert_eq!(decode_items(&part), Ok(all.clone()), "the encoding is reversible");
            }
            Ok(size(all.len()))
        }
        Message::Config { config, .. } => {
            let config = Config::decode(&mut Reader::new(config))?;
            let mut again = Vec::new();
            config.encode(&mut again);
            assert_eq!(Config::decode(&mut Reader::new(&again)), Ok(config.clone()));
            Ok(size(config.leaders.len()))
        }
        Message::Fates { fates, .. } => {
            let all = decode_fates(fates)?;
            assert_eq!(decode_fates(&encode_fates(&all)), Ok(all.clone()));
            Ok(size(all.len()))
        }
        _ => Ok(0),
    }
}

fn look_at_message(input: &[u8]) -> Outcome {
    let message = match Message::decode(&Bytes::copy_from_slice(input)) {
        Ok(message) => message,
        Err(error) => return Outcome::refused(error),
    };
    let mut encoded = Vec::new();
    message.encode(&mut encoded);
    let again = Message::decode(&encoded.into());
    assert_eq!(again.as_ref(), Ok(&message), "the encoding is reversible");
    if let Err(refused) = message.check(NODES) {
        return Outcome::refused(refused);
    }
    match look_inside(&message) {
        Ok(inside) => Outcome::taken((input[0], inside.leading_zeros())),
        Err(error) => Outcome::refused(error),
    }
}

#[test]
fn mako_messages() {
    run(Target {
        name: "mako-message",
        seeds: messages(),
        mend: |_| {},
        look: look_at_message,
        bytes_max: 4 << 10,
        // A transaction of some 20 bytes takes 200, and there are copies of it.
        bytes_per_byte: 256,
    });
}

/// Decodes the contents of a record or of a checkpoint, and encodes them again.
fn look_at_state(input: &[u8]) -> Outcome {
    let Some((kind, bytes)) = input.split_first() else { return Outcome::refused("nothing") };
    let bytes = &Bytes::copy_from_slice(bytes);
    let again = match kind % 6 {
        0 => Meta::decode(bytes, NODES).map(|it| {
            let out = it.encode();
            let again = Meta::decode(&out, NODES).expect("the encoding is reversible");
            assert_eq!(again.encode(), out);
            out.len()
        }),
        1 => Known::decode(bytes, NODES).map(|it| it.encode().len()),
        2 => Rejoined::decode(bytes, NODES).map(|it| it.encode().len()),
        3 => Outcomes::decode(&mut Reader::new(bytes)).map(|it| {
            let out = it.encode();
            assert_eq!(Outcomes::decode(&mut Reader::new(&out)), Ok(it));
            out.len()
        }),
        4 => Appended::decode(bytes).map(|it| it.entries.len()),
        _ => Adopted::decode(bytes).map(|it| it.entries.len()),
    };
    match again {
        Ok(len) => Outcome::taken((kind % 6, size(len).leading_zeros())),
        Err(error) => Outcome::refused((kind % 6, error.to_string())),
    }
}

fn states() -> Vec<Vec<u8>> {
    let leadership = Leadership { number: Epoch(4), leader: NodeId(2) };
    let log = || Adopted { epoch: Epoch(3), after: at(5), entries: entries() };
    let meta = Meta {
        log_head: LogPosition(9),
        log: log(),
        had: (Epoch(3), at(7)),
        committed: at(6),
        closed: at(5),
        config: Config::default(),
        leadership,
        reserved: 70_000,
        replaced: Some(Replaced { after: Epoch(3), upto: at(4) }),
        log_identities: vec![1, 2, 3],
        outcomes: outcomes(),
        agreement: agreement(),
        grouping: Some(2),
    };
    let topology = Topology::one_node_per_region("fuzz", &["a", "b", "c"], Span::ZERO);
    let known = Known {
        is_whole: true,
        leadership,
        config: Config::default(),
        published: at(4),
        last_name: 70_000,
        agreement: Agreement::new(NodeId(0), &topology, agreement(), 0).durable_state(),
    };
    let rejoined = Rejoined {
        leadership,
        upto: at(4),
        reserved: 70_000,
        log_identities: vec![1, 2, 3],
        agreement: agreement(),
    };
    let appended = Appended { committed: at(4), after: at(5), entries: entries() };
    let all: [Vec<u8>; 6] = [
        meta.encode().to_vec(),
        known.encode().to_vec(),
        rejoined.encode().to_vec(),
        outcomes().encode().to_vec(),
        appended.encode().to_vec(),
        log().encode().to_vec(),
    ];
    let with_kind = |(kind, mut bytes): (usize, Vec<u8>)| {
        bytes.insert(0, kind as u8);
        bytes
    };
    all.into_iter().enumerate().map(with_kind).collect()
}

#[test]
fn mako_records_and_checkpoints() {
    run(Target {
        name: "mako-state",
        seeds: states(),
        mend: |_| {},
        look: look_at_state,
        // Serde's initial reservation for a list of decisions.
        bytes_max: 8 << 20,
        bytes_per_byte: 256,
    });
}

#[test]
fn records_and_checkpoints_survive_their_encoding() {
    for state in states() {
        let (kind, bytes) = (state[0], Bytes::copy_from_slice(&state[1..]));
        let again = match kind {
            0 => Meta::decode(&bytes, NODES).expect("it was encoded").encode(),
            1 => Known::decode(&bytes, NODES).expect("it was encoded").encode(),
            2 => Rejoined::decode(&bytes, NODES).expect("it was encoded").encode(),
            4 => Appended::decode(&bytes).expect("it was encoded").encode(),
            5 => Adopted::decode(&bytes).expect("it was encoded").encode(),
            _ => continue,
        };
        assert_eq!(again, bytes, "kind {kind}");
    }
}

#[test]
fn numbers_that_no_replica_reaches_are_refused() {
    const TOO_LARGE: u64 = (1 << 48) + 1;
    let version = SnapshotVersion(TOO_LARGE);
    assert_eq!(progress([1; 5], [at(1); 3]).check(NODES), Ok(()));
    for index in 0..5 {
        let mut numbers = [1; 5];
        numbers[index] = TOO_LARGE;
        let refused = progress(numbers, [at(1); 3]).check(NODES);
        assert_eq!(refused, Err("mako.malformed_progress"), "number {index}");
    }
    for index in 0..3 {
        let mut versions = [at(1); 3];
        versions[index] = version;
        let refused = progress([1; 5], versions).check(NODES);
        assert_eq!(refused, Err("mako.malformed_progress"), "version {index}");
    }
    let all = [
        Message::Ack { epoch: TOO_LARGE, upto: at(1) },
        Message::Ack { epoch: 1, upto: version },
        Message::FreshReply { token: 1, version },
        Message::Items { epoch: TOO_LARGE, items: Bytes::new() },
        Message::Watermark { epoch: TOO_LARGE, version: at(1) },
        Message::Watermark { epoch: 1, version },
        Message::Config { closed: version, config: Bytes::new(), moved: 1 },
        Message::Config { closed: at(1), config: Bytes::new(), moved: TOO_LARGE },
        Message::Copy { epoch: TOO_LARGE, after: Bytes::new() },
        Message::MoveRefused { token: 1, epoch: TOO_LARGE, abort: Bytes::new() },
        Message::Ended { txn: 1, version, committed: 1, result: Bytes::new() },
        Message::Ask { epoch: TOO_LARGE, txns: Bytes::new() },
        Message::Fates { epoch: TOO_LARGE, fates: Bytes::new() },
    ];
    assert!(all.iter().all(|message| message.check(NODES).is_err()));
}

#[test]
fn entries_that_no_leader_makes_are_refused() {
    let is_taken = |entry: Entry| {
        let bytes = Logged::new(entry).bytes;
        Entry::decode(&mut Reader::new(&bytes)).is_ok()
    };
    assert!(is_taken(entry(6)));
    assert!(!is_taken(Entry { before: at(6), ..entry(6) }), "after itself");
    let version = version_of(Epoch(0), 9);
    let before = SnapshotVersion::ZERO;
    assert!(!is_taken(Entry { version, before, ..entry(6) }), "epoch 0 has no leader");
    assert!(!is_taken(Entry { txns: Vec::new(), ..entry(6) }), "writes of no transaction");
    let flagged = TxnId::from_bits(1 << 63);
    let txns = vec![Executed { txn: flagged, outcome: Ok(Vec::new()) }];
    assert!(!is_taken(Entry { txns, ..entry(6) }), "not the name of a transaction");
}

#[test]
fn a_node_hands_on_transactions_of_its_own() {
    assert_eq!(decode_requests(FROM, &requests()).map(|all| all.len()), Ok(2));
    assert!(decode_requests(NodeId(2), &requests()).is_err());
}
