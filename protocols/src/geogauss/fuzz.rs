//! Messages of peers, and contents of the log and of checkpoints, that are nearly right.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::{
    AdderId, LogPosition, NodeId, ProcedureId, SnapshotVersion, TableId, TxnId,
};
use pangea_core::key::{Key, KeyRange};
use pangea_core::protocol::Message as _;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{
    Add, CodeDigest, Footprint, LockMode, PointLock, PointRead, Program, RangeRead, ReadSet,
    ReadVersion, Write,
};
use pangea_core::value::Value;

use super::Message;
use super::batch::{Batch, TxnRecord, Work};
use super::checkpoint::{Configuration, Meta};
use super::deletions::Deletions;
use super::isolation::{CheckedWrite, Checks};
use super::knowledge::{Configured, Known, Rejoined};
use super::lineage::{Base, Lineages};
use super::membership::{Sealed, decode_report, encode_report};
use super::merge::MergeRule;
use super::messages::HeardEnd;
use super::rank::RankInputs;
use super::recovery::EpochRecord;
use super::rules::Rules;
use super::views::{Change, Ended, Report, Seal, View, ViewNumber};
use crate::agreement::{Agreement, Record};
use crate::decisions::{Decisions, Ordered, WriteSetRef};
use crate::fuzzing::{Outcome, Target, run, size};
use crate::inputs;
use crate::presence::Memory as _;
use crate::streams::{self, Bid, Bounds, decode_batch};
use crate::transfer::Configuration as _;

const NODES: usize = 3;

fn key(text: &str) -> Key {
    Key::from(text.as_bytes())
}

fn writes() -> Vec<Write> {
    let value = |text: &str| Some(Value::copy_from(text.as_bytes()));
    let write = |name, value| Write { table: TableId(7), key: key(name), value };
    vec![write("a", value("one")), write("gone", None)]
}

fn checks() -> Checks {
    let (table, head) = (TableId(300), TxnId::new(NodeId(1), 39));
    let seen = [ReadVersion::Absent, ReadVersion::At(SnapshotVersion(3)), ReadVersion::Present];
    let local = [ReadVersion::Local(head), ReadVersion::LocalDeleted(head)];
    let point = |seen| PointRead { table, key: key("k"), seen };
    let points = seen.into_iter().chain(local).map(point).collect();
    let rows = seen.map(|seen| (key("row"), seen)).to_vec();
    let ranges = vec![RangeRead { table, range: KeyRange::prefix(b"r"), rows }];
    let checked = |(i, write)| CheckedWrite { write, is_checked: i == 0 };
    let writes = writes().into_iter().enumerate().map(checked).collect();
    let add = |row| {
        let (adder, amount) = (AdderId::of("adder"), Bytes::from_static(b"one"));
        Add { table: TableId(7), key: key(row), adder, amount }
    };
    let adds = ["added", "added", "other"].map(add).to_vec();
    Checks { reads: ReadSet { points, ranges }, writes, adds }
}

fn batch() -> Bytes {
    let call = || Program::Call { procedure: ProcedureId(2), args: Bytes::from_static(b"args") };
    let point = PointLock { table: TableId(1), key: key("p"), mode: LockMode::Exclusive };
    let footprint = Some(Footprint::new(vec![point], vec![]));
    let all = [
        Work::Merge { base: SnapshotVersion(3), checks: checks() },
        Work::Merge { base: SnapshotVersion(0), checks: Checks::default() },
        Work::InOrder { program: call(), footprint },
        Work::InOrder { program: call(), footprint: None },
    ];
    let (source, epoch) = (NodeId(1), SnapshotVersion(9));
    let record = |(i, work)| {
        let txn = TxnId::new(source, 40 + i as u64);
        let inputs = RankInputs { txn, attempt: 1, start: SnapshotVersion(7), offset_us: 300 };
        TxnRecord { inputs, work }
    };
    let records = all.into_iter().enumerate().map(record).collect();
    let rules = Rules { merge: MergeRule::Greedy, horizon: 600, code: CodeDigest(7) };
    let (bid, view, is_last) = (Bid(7), ViewNumber(2), true);
    let base = Some(Base { epoch: SnapshotVersion(8), lineage: 99 });
    Batch { source, bid, epoch, is_last, view, base, rules, first_sequence: 40, records }.encode()
}

fn report() -> Report {
    let ended = [0, 7, 300].map(|epoch| Ended { epoch: SnapshotVersion(epoch), last: Bid(epoch) });
    Report { reserved: SnapshotVersion(1_000), head: Bid(300), ended: ended.to_vec() }
}

fn encoded_report() -> Bytes {
    let mut out = Vec::new();
    encode_report(&report(), &mut out);
    out.into()
}

fn view() -> View {
    let seal = Seal { of: ViewNumber(1), out: vec![NodeId(2)], joining: vec![NodeId(2)] };
    let reports: Vec<_> = (0..3).map(|node| (NodeId(node), report())).collect();
    View::first(NODES).next(&seal, &reports)
}

fn configured() -> Configured {
    let mut ended = Bounds::ended_at(Bid(9));
    ended.continue_after(Bid(300));
    let bounds = vec![Bounds::default(), Bounds::ended_at(Bid(4)), ended];
    Configured { decision: 4, view: view(), bounds }
}

fn target() -> inputs::Target {
    inputs::Target { epoch: SnapshotVersion(7), heads: vec![Bid(2), Bid(300), Bid(0)] }
}

fn agreement() -> Vec<Record<Change>> {
    let seal = Seal { of: ViewNumber(1), out: vec![NodeId(2)], joining: vec![] };
    let entries = vec![Change::Seal(seal), Change::View { seal: 3, view: view() }];
    vec![Record::Trimmed(3), Record::Entries { from: 3, entries }, Record::Decided(4)]
}

fn messages() -> Vec<Vec<u8>> {
    let version = SnapshotVersion(300);
    let (head, token) = (Bid(300), 5);
    let all: [Message; 15] = [
        streams::Message::Batch { bytes: batch() }.into(),
        Message::Eof { through: version, reached: SnapshotVersion(7), last: Bid(9), view: 2 },
        Message::Agreement { bytes: Bytes::from_static(b"bytes") },
        Message::Report { seal: 3, report: encoded_report() },
        Message::Progress {
            applied: version,
            durable: SnapshotVersion(2),
            view: 2,
            decision: 4,
            life: 1,
            may_join: true,
            heads: vec![Bid(0), Bid(1), Bid(70_000)],
        },
        Message::MembershipRequest { token: 5, joined: 2 },
        Message::Membership { token: 5, is_member: true, known: version },
        Message::Stopping { is_settled: true },
        Message::Keep { collected: Bid(6), after: Bid(8), bytes: batch() },
        Message::Kept { head },
        Message::Collected { upto: head },
        Message::CacheRequest { token, view: 2 },
        Message::CacheHead { token, head },
        Message::Ends {
            ends: vec![HeardEnd {
                source: NodeId(1),
                through: version,
                reached: SnapshotVersion(7),
                last: Bid(9),
                view: 2,
                is_heard: true,
            }],
        },
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

/// Checks whether the contents of a message can be decoded, if they are decoded separately.
fn look_inside(message: &Message) -> Result<u32, DecodeError> {
    match message {
        Message::Streams(streams::Message::Batch { bytes }) => {
            let batch = decode_batch::<Batch>(bytes, NODES)?;
            assert_eq!(Batch::decode(&batch.encode()), Ok(batch.clone()));
            Ok(size(batch.records.len()))
        }
        Message::Report { report, .. } => {
            decode_report(&mut Reader::new(report), NODES).map(|it| size(it.ended.len()))
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
fn geogauss_messages() {
    run(Target {
        name: "geogauss-message",
        seeds: messages(),
        mend: |_| {},
        look: look_at_message,
        bytes_max: 4 << 10,
        // A range read of four bytes takes 80, and there are two copies of it at a time.
        bytes_per_byte: 256,
    });
}

/// Decodes the contents of a record or of a checkpoint, and encodes them again.
fn look_at_state(input: &[u8]) -> Outcome {
    let Some((kind, bytes)) = input.split_first() else { return Outcome::refused("nothing") };
    let from = &mut Reader::new(bytes);
    let again = match kind % 6 {
        0 => Configured::decode(from, NODES).map(|it| {
            let mut out = Vec::new();
            it.encode(&mut out);
            assert_eq!(Configured::decode(&mut Reader::new(&out), NODES), Ok(it));
            out.len()
        }),
        1 => Sealed::decode(from, NODES).map(|it| {
            let mut out = Vec::new();
            it.encode(&mut out);
            out.len()
        }),
        2 => EpochRecord::decode(bytes).map(|it| {
            let out = it.encode();
            assert_eq!(EpochRecord::decode(&out).as_ref(), Ok(&it));
            out.len()
        }),
        3 => Meta::decode(bytes, NODES).map(|it| {
            let out = it.encode();
            let again = Meta::decode(&out, NODES).expect("the encoding is reversible");
            assert_eq!(again.encode(), out);
            out.len()
        }),
        4 => Known::decode(bytes, NODES).map(|it| it.encode().len()),
        _ => Rejoined::decode(bytes, NODES).map(|it| it.encode().len()),
    };
    match again {
        Ok(len) => Outcome::taken((kind % 6, size(len).leading_zeros())),
        Err(error) => Outcome::refused((kind % 6, error.to_string())),
    }
}

fn states() -> Vec<Vec<u8>> {
    let mut view = Vec::new();
    configured().encode(&mut view);
    let mut sealed = Vec::new();
    let seal = Seal { of: ViewNumber(1), out: vec![NodeId(2)], joining: vec![] };
    Sealed::new(3, seal, report()).encode(&mut sealed);
    let writes = writes();
    let here = WriteSetRef::Here { writes: &writes, args: b"arguments" };
    let ordered = [None, Some(here)].map(|writes| Ordered { entry: 0, writes }).into();
    let decisions = Decisions { is_valid: vec![true, false, true], ordered };
    let heads = vec![Bid(1), Bid(300), Bid(0)];
    let (number, before) = (SnapshotVersion(9), SnapshotVersion(7));
    let epoch = EpochRecord { epoch: number, before, heads: heads.clone(), decisions };
    let mut deletions = Deletions::default();
    deletions.note(SnapshotVersion(5), [1, 2], SnapshotVersion(2));
    let mut lineages = Lineages::default();
    lineages.note(SnapshotVersion(5), &[Bid(2), Bid(300), Bid(0)], SnapshotVersion(2));
    let meta = Meta {
        log_head: LogPosition(9),
        configuration: Configuration::of(heads, vec![5, 300, 1], configured()),
        log_identities: vec![1, 2, 3],
        own_head: Bid(300),
        next_sequence: 70_000,
        reserved: SnapshotVersion(1_000),
        has_no_life: true,
        rejoin: Some(target()),
        sealed: None,
        agreement: agreement(),
        deletions,
        lineages,
    };
    let topology = Topology::one_node_per_region("fuzz", &["a", "b", "c"], Span::ZERO);
    let known = Known {
        is_whole: true,
        target: target(),
        own_head: Bid(300),
        next_sequence: 70_000,
        configuration: configured(),
        agreement: Agreement::new(NodeId(0), &topology, agreement(), 0).durable_state(),
    };
    let rejoined = Rejoined {
        target: target(),
        log_identities: vec![1, 2, 3],
        own_head: Bid(300),
        next_sequence: 70_000,
        configuration: configured(),
        agreement: agreement(),
    };
    let all: [Vec<u8>; 6] = [
        view,
        sealed,
        epoch.encode().to_vec(),
        meta.encode().to_vec(),
        known.encode().to_vec(),
        rejoined.encode().to_vec(),
    ];
    let with_kind = |(kind, mut bytes): (usize, Vec<u8>)| {
        bytes.insert(0, kind as u8);
        bytes
    };
    all.into_iter().enumerate().map(with_kind).collect()
}

#[test]
fn geogauss_records_and_checkpoints() {
    run(Target {
        name: "geogauss-state",
        seeds: states(),
        mend: |_| {},
        look: look_at_state,
        // Serde's initial reservation for a list of lives, and for the lists of a seal.
        bytes_max: 8 << 20,
        bytes_per_byte: 256,
    });
}

#[test]
fn a_chunk_of_a_checkpoint_has_the_state_that_was_sent() {
    let heads = vec![Bid(1), Bid(300), Bid(0)];
    let sent = Configuration::of(heads, vec![5, 300, 1], configured());
    let bytes = sent.encode();
    let received = Configuration::decode(&mut Reader::new(&bytes), NODES).expect("it is sound");
    assert_eq!(received.encode(), bytes);
}
