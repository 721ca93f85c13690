//! Messages of peers, and contents of the log and of checkpoints, that are nearly right.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::{LogPosition, NodeId, ProcedureId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Message as _;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{CodeDigest, Footprint, LockMode, PointLock, Program};

use super::Message;
use super::ceiling::Limit;
use super::cells::Cell;
use super::checkpoint::Meta;
use super::decided::{Decided, View};
use super::done::Done;
use super::fast_replies::{Reply, decode_replies, encode_replies};
use super::hashes::PrefixHash;
use super::log::{Position, Suffix, ViewNumber};
use super::notices::Notices;
use super::rebuild::Entry;
use super::rejoin::{Known, Rejoined, Replaced};
use super::shards::decode_items;
use super::stamp::{Issuer, Role, Stamp};
use super::transactions::{self, Stamped};
use super::verification::Proposal;
use super::view_change::ViewReport;
use crate::agreement::{Agreement, Record};
use crate::fuzzing::{Outcome, Target, run, size};
use crate::presence::Memory as _;
use crate::request::Request;

const NODES: usize = 3;

fn stamp(us: u64) -> Stamp {
    Issuer::new(NodeId(1), Role::Coordinator, Stamp::ZERO).issue(us)
}

fn txn(sequence: u64) -> TxnId {
    TxnId::new(NodeId(1), sequence)
}

fn suffix() -> Suffix {
    let cell = |version: u64, us: &[u64]| {
        let txns = us.iter().map(|us| (txn(*us), stamp(*us))).collect();
        Cell { version: SnapshotVersion(version), txns }
    };
    let cells = vec![cell(2, &[1_200, 1_700]), cell(3, &[]), cell(500, &[499_000])];
    Suffix { view: ViewNumber(7), after: Position(300), cells }
}

fn bodies() -> Bytes {
    let point = PointLock { table: TableId(1), key: Key::from(&b"p"[..]), mode: LockMode::Shared };
    let footprint = Some(Footprint::new(vec![point], vec![]));
    let of = |(sequence, code, footprint)| {
        let program = Program::Call { procedure: ProcedureId(2), args: Bytes::from_static(b"a") };
        let (txn, shards, origin) = (txn(sequence), ShardSet::default(), None);
        let request = Request { txn, program, footprint, shards, origin };
        Stamped { stamp: stamp(sequence), code: CodeDigest(code), request }
    };
    let all = [(40, 7, None), (41, 7, footprint), (42, 9, None)].map(of);
    transactions::encode(all.iter())
}

fn entries() -> Vec<Entry> {
    [40, 41].map(|us| Entry { stamp: stamp(us), txn: txn(us) }).to_vec()
}

fn report() -> Bytes {
    ViewReport { suffix: suffix(), unsynced: entries(), told: stamp(900) }.encode()
}

fn proposal() -> Bytes {
    let (before, floor) = (SnapshotVersion(2), stamp(900));
    Proposal { suffix: suffix(), before, floor }.encode()
}

fn replies() -> Bytes {
    let prefix = Some(PrefixHash::from_bits(1 << 100 | 5));
    let of = |(us, prefix, result)| Reply { txn: txn(us), stamp: stamp(us), prefix, result };
    encode_replies(&[(1, prefix, Some(Ok(vec![1, 2]))), (2, prefix, None)].map(of))
}

fn agreement() -> Vec<Record<Decided>> {
    let view = Decided::View { number: 3, leaders: vec![NodeId(2)], is_detective: true };
    let start = Decided::Start { number: 3, base: 2, logs: vec![suffix().encode().to_vec()] };
    let entries = vec![view, start];
    vec![Record::Trimmed(3), Record::Entries { from: 3, entries }, Record::Decided(4)]
}

fn done() -> Done {
    let mut done = Done::new(NODES);
    let cell = Cell { version: SnapshotVersion(3), txns: vec![(txn(9), stamp(2_500))] };
    done.note(&cell, |_| Some(stamp(9_000)));
    done.raise(NodeId(2), 300);
    done
}

fn some_progress() -> Message {
    Message::Progress {
        sent: 1_000_000,
        clock: 1_000_000,
        difference: 7,
        view: 3,
        normal: 2,
        last: 300,
        committed: 299,
        leads: true,
        is_leaving: false,
        received: 300,
        version: 301,
        delay: 7,
        first: 200,
        published: 299,
        done_below: 70_000,
        replaced: 3,
        code: 7,
        decisions: 4,
        durable_view: 3,
        is_settled: true,
        is_quiet: true,
        is_sealed: false,
        seal: 1_000_000,
        accepted: SnapshotVersion(310),
        is_over: false,
        knows_stop: true,
        deaf_to: vec![NodeId(2)],
        others_done: vec![(NodeId(2), 70_000)],
        next_ms: 1_000,
        round_trips: vec![0, 700, 2_000],
        rate: 300,
    }
}

fn fresh_reply(version: SnapshotVersion, told: SnapshotVersion) -> Message {
    Message::FreshReply { token: 5, view: 3, leads: true, version, told }
}

fn messages() -> Vec<Vec<u8>> {
    let all = [
        Message::Submit { transactions: bodies() },
        Message::LogSync { closed: SnapshotVersion(300), suffix: suffix().encode() },
        Message::Synced { view: 3, upto: 300 },
        Message::Fetch { txns: vec![1, 1 << 60] },
        Message::Found { transactions: bodies() },
        Message::Agreement { bytes: Bytes::from_static(b"bytes") },
        Message::ViewChange { view: 3, report: report() },
        Message::StartView { suffix: suffix().encode() },
        some_progress(),
        Message::FreshRequest { token: 5 },
        fresh_reply(SnapshotVersion(300), SnapshotVersion(310)),
        Message::FastReplies { view: 3, replies: replies() },
        Message::Prepare { view: 3, transactions: bodies() },
        Message::Prepared { view: 3 },
        Message::Proposal { view: 3, proposal: proposal() },
        Message::View {
            view: 4,
            leaders: vec![NodeId(2), NodeId(0)],
            is_detective: true,
            started: 3,
            base: 2,
            log: suffix().encode(),
        },
        Message::Notices { view: 3, notices: Bytes::from_static(&[0, 0, 0, 0]) },
        Message::Subscribe { kept: 300, has: SnapshotVersion(310) },
        Message::Resubscribe { has: SnapshotVersion(310) },
        Message::Truncated { upto: SnapshotVersion(310) },
        Message::Unsubscribe {},
        Message::Committed { view: 3, through: 300, cells: vec![298, 300], listed: 298 },
        Message::Close { view: 3, cell: SnapshotVersion(310), is_answered: true },
        Message::Closed { view: 3, cell: SnapshotVersion(310) },
        Message::Items { items: Bytes::new() },
        Message::Outcome { version: SnapshotVersion(300), result: Bytes::from_static(&[3; 9]) },
        Message::Digests {
            digests: vec![crate::digests::EpochDigest {
                epoch: SnapshotVersion(9),
                scope: 0,
                tables: vec![(TableId(7), 1)],
            }],
        },
    ];
    let encode = |message: &Message| {
        let mut out = Vec::new();
        message.encode(&mut out);
        out
    };
    all.iter().map(encode).collect()
}

/// Decodes the contents of a message that are decoded separately.
fn look_inside(message: &Message) -> Result<u32, DecodeError> {
    match message {
        Message::Submit { transactions } | Message::Found { transactions } => {
            let all = transactions::decode(transactions)?;
            let again = transactions::encode(all.iter());
            assert_eq!(transactions::decode(&again), Ok(all.clone()));
            Ok(size(all.len()))
        }
        Message::LogSync { suffix, .. } | Message::StartView { suffix } => {
            let suffix = Suffix::decode(suffix)?;
            assert_eq!(Suffix::decode(&suffix.encode()), Ok(suffix.clone()));
            Ok(size(suffix.cells.len()))
        }
        Message::ViewChange { report, .. } => {
            let report = ViewReport::decode(report)?;
            assert_eq!(ViewReport::decode(&report.encode()), Ok(report.clone()));
            Ok(size(report.unsynced.len()))
        }
        Message::FastReplies { replies, .. } => {
            let replies = decode_replies(replies)?;
            assert_eq!(decode_replies(&encode_replies(&replies)), Ok(replies.clone()));
            Ok(size(replies.len()))
        }
        Message::Prepare { transactions, .. } => {
            Ok(size(transactions::decode(transactions)?.len()))
        }
        Message::Proposal { proposal, .. } => {
            let proposal = Proposal::decode(proposal)?;
            assert_eq!(Proposal::decode(&proposal.encode()), Ok(proposal.clone()));
            Ok(size(proposal.suffix.cells.len()))
        }
        Message::Notices { notices, .. } => Notices::decode(notices).map(|_| 0),
        Message::Items { items } => Ok(size(decode_items(items)?.len())),
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
fn tiga_messages() {
    run(Target {
        name: "tiga-message",
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
    let from = &mut Reader::new(bytes);
    let again = match kind % 5 {
        0 => Meta::decode(bytes, (NODES, NODES)).map(|it| {
            let out = it.encode();
            let again = Meta::decode(&out, (NODES, NODES)).expect("the encoding is reversible");
            assert_eq!(again.encode(), out);
            out.len()
        }),
        1 => Known::decode(bytes, NODES).map(|it| it.encode().len()),
        2 => Rejoined::decode(bytes, NODES).map(|it| it.encode().len()),
        3 => Done::decode(from, NODES).map(|it| {
            let mut out = Vec::new();
            it.encode(&mut out);
            assert_eq!(Done::decode(&mut Reader::new(&out), NODES), Ok(it));
            out.len()
        }),
        _ => transactions::decode_record(bytes).map(|(_, all)| all.len()),
    };
    match again {
        Ok(len) => Outcome::taken((kind % 5, size(len).leading_zeros())),
        Err(error) => Outcome::refused((kind % 5, error.to_string())),
    }
}

fn states() -> Vec<Vec<u8>> {
    let (number, leaders) = (ViewNumber(4), vec![NodeId(2)]);
    let view = View { number, leaders, is_detective: true };
    let limit = Limit { us: 1_000_000, sequence: 70_000 };
    let meta = Meta {
        log_head: LogPosition(9),
        suffix: suffix(),
        had: (ViewNumber(3), Position(310)),
        view: view.clone(),
        decided: Some(ViewNumber(4)),
        started: (ViewNumber(3), ViewNumber(2), vec![suffix().encode()]),
        told: stamp(900),
        in_time: entries(),
        limit,
        done: done(),
        log_identities: vec![1, 2, 3],
        replaced: Some(Replaced { after: ViewNumber(3), upto: SnapshotVersion(300) }),
        agreement: agreement(),
        transactions: bodies(),
        settled: Position(250),
        of_shards: (Bytes::from_static(b"for others"), Bytes::from_static(b"used")),
    };
    let topology = Topology::one_node_per_region("fuzz", &["a", "b", "c"], Span::ZERO);
    let known = Known {
        is_whole: true,
        view: view.clone(),
        published: SnapshotVersion(300),
        issued: limit,
        agreement: Agreement::new(NodeId(0), &topology, agreement(), 0).durable_state(),
    };
    let rejoined = Rejoined {
        view,
        upto: SnapshotVersion(300),
        issued: limit,
        log_identities: vec![1, 2, 3],
        agreement: agreement(),
    };
    let mut table = Vec::new();
    done().encode(&mut table);
    let header = transactions::encode_in_time(ViewNumber(3), [0, 2].into_iter());
    let all: [Vec<u8>; 5] = [
        meta.encode().to_vec(),
        known.encode().to_vec(),
        rejoined.encode().to_vec(),
        table,
        [&header[..], &bodies()].concat(),
    ];
    let with_kind = |(kind, mut bytes): (usize, Vec<u8>)| {
        bytes.insert(0, kind as u8);
        bytes
    };
    all.into_iter().enumerate().map(with_kind).collect()
}

#[test]
fn tiga_records_and_checkpoints() {
    run(Target {
        name: "tiga-state",
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
            0 => Meta::decode(&bytes, (NODES, NODES)).expect("it was encoded").encode(),
            1 => Known::decode(&bytes, NODES).expect("it was encoded").encode(),
            2 => Rejoined::decode(&bytes, NODES).expect("it was encoded").encode(),
            _ => continue,
        };
        assert_eq!(again, bytes, "kind {kind}");
    }
}

/// A progress report with one number changed.
fn progress(change: impl FnOnce(&mut [u64; 10])) -> Message {
    let mut numbers = [1; 10];
    change(&mut numbers);
    let [view, normal, last, committed, first, published, rest @ ..] = numbers;
    let [done_below, replaced, decisions, durable] = rest;
    Message::Progress {
        sent: u64::MAX,
        clock: u64::MAX,
        difference: u64::MAX,
        view,
        normal,
        last,
        committed,
        leads: true,
        is_leaving: false,
        received: 0,
        version: 0,
        delay: u64::MAX,
        first,
        published,
        done_below,
        replaced,
        code: u64::MAX,
        decisions,
        durable_view: durable,
        is_settled: false,
        is_quiet: false,
        is_sealed: false,
        seal: u64::MAX,
        accepted: SnapshotVersion(1),
        is_over: false,
        knows_stop: false,
        deaf_to: Vec::new(),
        others_done: Vec::new(),
        next_ms: u64::MAX,
        round_trips: vec![u64::MAX; 2],
        rate: u64::MAX,
    }
}

#[test]
fn numbers_that_no_replica_reaches_are_refused() {
    const TOO_LARGE: u64 = (1 << 48) + 1;
    assert_eq!(progress(|_| {}).check(NODES), Ok(()), "times and codes can be anything");
    for index in 0..10 {
        let refused = progress(|numbers| numbers[index] = TOO_LARGE).check(NODES);
        assert_eq!(refused, Err("tiga.malformed_progress"), "number {index}");
    }
    let version = SnapshotVersion(TOO_LARGE);
    let all = [
        Message::Synced { view: TOO_LARGE, upto: 1 },
        Message::Synced { view: 1, upto: TOO_LARGE },
        fresh_reply(version, SnapshotVersion(1)),
        fresh_reply(SnapshotVersion(1), version),
    ];
    assert!(all.iter().all(|message| message.check(NODES).is_err()));
}

#[test]
fn logs_and_reports_of_the_far_future_are_refused() {
    let of = |view: u64, after: u64, version: u64| {
        let cells = vec![Cell { version: SnapshotVersion(version), txns: Vec::new() }];
        Suffix { view: ViewNumber(view), after: Position(after), cells }
    };
    let is_taken = |suffix: &Suffix| Suffix::decode(&suffix.encode()).is_ok();
    assert!(is_taken(&of(1, 1, 1)));
    for huge in [(1 << 48) + 1, u64::MAX] {
        assert!(!is_taken(&of(huge, 1, 1)) && !is_taken(&of(1, huge, 1)), "{huge}");
        assert!(!is_taken(&of(1, 1, huge)), "{huge}");
    }
    let last = Stamp::from_bits(u64::MAX);
    let of = |told, stamp| {
        let unsynced = vec![Entry { stamp, txn: txn(1) }];
        ViewReport { suffix: suffix(), unsynced, told }
    };
    let is_taken = |report: ViewReport| ViewReport::decode(&report.encode()).is_ok();
    assert!(is_taken(of(stamp(1), stamp(2))));
    assert!(!is_taken(of(last, stamp(2))) && !is_taken(of(stamp(1), last)));
}

#[test]
fn transactions_have_stamps_of_their_coordinators() {
    let all = transactions::decode(&bodies()).expect("they were encoded");
    let is_taken = |all: &[Stamped]| transactions::are_sound(all, NODES);
    assert!(is_taken(&all));
    assert!(!transactions::are_sound(&all, 1), "there is no such node");
    let with = |stamp| {
        let mut all = all.clone();
        all[0].stamp = stamp;
        is_taken(&all)
    };
    assert!(with(stamp(1)));
    assert!(!with(Stamp::from_bits(u64::MAX)), "of the far future");
    let raised = Issuer::new(NodeId(1), Role::Leader, Stamp::ZERO).issue(5);
    let of_another = Issuer::new(NodeId(2), Role::Coordinator, Stamp::ZERO).issue(5);
    assert!(!with(raised) && !with(of_another), "it did not issue that");
}
