//! The words of transcripts: each message, log record, batch and outcome as one line of text.
//!
//! No other file of the transcripts names the variants of messages, the kinds of log records and
//! the fields of batches. The words are the glossary's, and the names of messages are those of the
//! phase tables. Random numbers are left out: log identities, incarnations, and names of transfers
//! and forwarded requests.

mod calvin_messages;
mod geogauss;
mod mako;
mod tiga;

use std::collections::BTreeSet;

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::exec::ordered::{RemoteReads, ShardOutcome};
use pangea_core::exec::reconnaissance::{LookupKeys, LookupRows};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TableId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::protocol::{self, FirstRun, Protocol};
use pangea_core::txn::{Abort, Footprint, LockMode, Outcome, Program, ReadSet, ReadVersion, Write};
use pangea_protocols::agreement::Record;
use pangea_protocols::calvin::batch::Request;
use pangea_protocols::calvin::{self, Calvin, RemoteResult};
use pangea_protocols::geogauss::GeoGauss;
use pangea_protocols::inputs::{self, Cut};
use pangea_protocols::minerva::batch::{ExecutionMode, TxnRecord};
use pangea_protocols::minerva::{self, Minerva};
use pangea_protocols::streams::{self, Batch, Bid};
use pangea_protocols::transfer::ChunkNumber;
use pangea_protocols::{presence, transfer};
use serde::de::DeserializeOwned;

pub use pangea_protocols::inputs::Timer;

/// A protocol whose transcripts can be read.
pub trait Transcribed: Protocol<Message: PartialEq, Timer: From<Timer>> {
    /// The batches of its logs.
    type Batch: Batch;

    /// A message of the logs of batches.
    fn of_streams(message: streams::Message) -> Self::Message;

    /// Changes of the state of agreement.
    fn agreement(bytes: &[u8]) -> String;

    /// A log record that only this protocol has, given its kind.
    fn record(kind: u8, rest: &[u8]) -> Option<String> {
        let _ = (kind, rest);
        None
    }

    /// The name of a message and its main fields.
    fn message(message: &Self::Message) -> String;

    /// The transactions of a batch, one line for each.
    fn transactions(batch: &Self::Batch) -> Vec<String>;

    /// Options with which nothing happens that the test does not request.
    fn by_hand() -> Self::Options;

    /// The name of a version.
    fn version(version: SnapshotVersion) -> String {
        format!("epoch {}", version.0)
    }
}

/// With this interval a timer never expires by itself.
const NEVER_MS: u64 = 1 << 40;

impl Transcribed for Minerva {
    type Batch = minerva::batch::Batch;

    fn of_streams(message: streams::Message) -> minerva::Message {
        inputs::Message::from(message).into()
    }

    fn agreement(bytes: &[u8]) -> String {
        agreement(bytes, |number, it: &Cut<minerva::Rules>| format!("cut {number} {}", cut(it)))
    }

    fn message(message: &minerva::Message) -> String {
        let minerva::Message::Inputs(message) = message;
        input_message::<Self>(message)
    }

    fn transactions(batch: &Self::Batch) -> Vec<String> {
        batch.records.iter().map(record_of_minerva).collect()
    }

    fn by_hand() -> minerva::Options {
        minerva::Options {
            epoch_ms: NEVER_MS,
            batch_ms: NEVER_MS,
            removal_ms: NEVER_MS,
            ..minerva::Options::default()
        }
    }
}

impl Transcribed for Calvin {
    type Batch = calvin::batch::Batch;

    fn of_streams(message: streams::Message) -> calvin::Message {
        inputs::Message::from(message).into()
    }

    fn agreement(bytes: &[u8]) -> String {
        agreement(bytes, |number, it: &Cut<calvin::Rules>| format!("cut {number} {}", cut(it)))
    }

    fn record(kind: u8, rest: &[u8]) -> Option<String> {
        (kind == 7).then(|| {
            let fixed: Cut<calvin::Rules> = postcard::from_bytes(&rest[8..]).expect(COMPLETE);
            format!("the fixed cut {} {}", u64_of(rest), cut(&fixed))
        })
    }

    fn message(message: &calvin::Message) -> String {
        match message {
            calvin::Message::Inputs(message) => input_message::<Self>(message),
            message => calvin_messages::message(message),
        }
    }

    fn transactions(batch: &Self::Batch) -> Vec<String> {
        batch.requests.iter().map(request).collect()
    }

    fn by_hand() -> calvin::Options {
        calvin::Options { epoch_ms: NEVER_MS, removal_ms: NEVER_MS, ..calvin::Options::default() }
    }
}

fn nodes(what: &str, nodes: &[NodeId]) -> String {
    nodes.iter().map(|node| format!(" {what} {node}")).collect()
}

/// A message between replicas of a group.
fn input_message<P: Transcribed>(message: &inputs::Message) -> String {
    use inputs::Message;
    match message {
        Message::Streams(message) => streams_message::<P>(message),
        Message::Presence(message) => presence_message(message),
        Message::Transfer(message) => transfer_message(message),
        Message::Agreement { .. } => "Agreement".to_owned(),
        Message::Progress { applied, durable, heads } => format!(
            "Progress, applied {}, durable {}, heads {}",
            applied.0,
            durable.0,
            vector(heads)
        ),
        Message::Digests { digests } => {
            let epochs: Vec<u64> = digests.iter().map(|digest| digest.epoch.0).collect();
            format!("Digests of epochs {epochs:?}")
        }
        Message::Stopping { is_over: true, .. } => "Stopping, over".to_owned(),
        Message::Stopping { is_settled: false, .. } => "Stopping, with transactions".to_owned(),
        Message::Stopping { is_settled: true, .. } => "Stopping, settled".to_owned(),
        Message::TransferLeadership { .. } => "TransferLeadership".to_owned(),
        Message::MayStop { last, .. } => format!("MayStop after epoch {}", last.0),
        Message::BarrierRequest { .. } => "BarrierRequest".to_owned(),
        Message::Barrier { nonce, .. } => format!("Barrier, proposal {nonce}"),
    }
}

/// A message about logs of batches.
fn streams_message<P: Transcribed>(message: &streams::Message) -> String {
    use streams::Message;
    match message {
        Message::Batch { bytes } => format!("Batch {}", name_of::<P>(bytes)),
        Message::Ack { heads } => format!("Ack {}", vector(heads)),
        Message::ProofOfAvailability { head } => format!("ProofOfAvailability {}", head.0),
        Message::Fetch { source, from, upto } => {
            format!("Fetch {0}.{1} to {0}.{2}", source.0, from.0, upto.0)
        }
        Message::Gone { source, first } => format!("Gone, before {}.{}", source.0, first.0),
    }
}

/// A message about identities.
fn presence_message(message: &presence::Message) -> String {
    use presence::Message;
    match message {
        Message::Greeting { receiver_identity, known, .. } => {
            let knows =
                if *receiver_identity == 0 { "your identity is unknown" } else { "you are known" };
            let batches = Reader::new(known).varint("greeting").expect("its first field");
            format!("Greeting, {knows}, your batches up to {batches}")
        }
        Message::Rejoin { .. } => "Rejoin".to_owned(),
        Message::RejoinReply { known, .. } => {
            let known = if known.is_empty() { "nothing is known" } else { "all that is known" };
            format!("RejoinReply, {known}")
        }
    }
}

/// A message of a checkpoint transfer.
fn transfer_message(message: &transfer::Message) -> String {
    use transfer::Message;
    match message {
        Message::CheckpointRequest { index, .. } => format!("CheckpointRequest from {index}"),
        Message::CheckpointChunk { number: ChunkNumber { index, is_last }, .. } => {
            let last = if *is_last { ", the last" } else { "" };
            format!("CheckpointChunk {index}{last}")
        }
        Message::CheckpointAck { index, .. } => format!("CheckpointAck {index}"),
        Message::CheckpointGone { .. } => "CheckpointGone".to_owned(),
    }
}

/// The name of a batch: its source and its number in the log of that source.
fn name_of<P: Transcribed>(bytes: &Bytes) -> String {
    let batch = decoded::<P>(bytes);
    format!("{}.{}", batch.source().0, batch.bid().0)
}

/// The transactions of an encoded batch, one line for each.
pub fn transactions<P: Transcribed>(bytes: &Bytes) -> Vec<String> {
    P::transactions(&decoded::<P>(bytes))
}

fn decoded<P: Transcribed>(bytes: &Bytes) -> P::Batch {
    P::Batch::decode(bytes).expect("replicas send and persist complete batches")
}

/// A log record, and the encoded batch if it contains one.
pub fn record<P: Transcribed>(record: &Bytes) -> (String, Option<Bytes>) {
    let rest = record.slice(1..);
    let two_bytes = || u16::from_le_bytes([rest[0], rest[1]]);
    let text = match record[0] {
        1 => return (format!("batch {}", name_of::<P>(&rest)), Some(rest)),
        2 => format!("agreement: {}", P::agreement(&rest)),
        3 => "the record of an epoch".to_owned(),
        4 => format!("the log identity of n{}", two_bytes()),
        5 => "the state from its peers".to_owned(),
        6 => format!("that batches of n{} are discarded", two_bytes()),
        8 => format!("that fixed cuts from {} on are void", u64_of(&rest)),
        9 => format!("that epoch {} is skipped", u64_of(&rest)),
        other => match P::record(other, &rest) {
            Some(text) => text,
            None => panic!("{other} is no kind of a log record"),
        },
    };
    (text, None)
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect(COMPLETE))
}

const COMPLETE: &str = "replicas persist complete records";

/// Changes of the state of agreement. `of` describes a decision with its number.
fn agreement<E: DeserializeOwned>(bytes: &[u8], of: impl Fn(usize, &E) -> String) -> String {
    let records: Vec<Record<E>> = postcard::from_bytes(bytes).expect(COMPLETE);
    let texts = records.iter().map(|record| match record {
        Record::Entries { from, entries } => {
            let entries = entries.iter().enumerate();
            let entries: Vec<_> = entries.map(|(at, entry)| of(from + at + 1, entry)).collect();
            if entries.is_empty() { format!("no cuts after {from}") } else { entries.join(", ") }
        }
        Record::Promise(_) => "a promise".to_owned(),
        Record::AcceptedRound(_) => "the accepted round".to_owned(),
        Record::Decided(count) => format!("decided up to {count}"),
        Record::Trimmed(count) => format!("truncated up to {count}"),
    });
    texts.collect::<Vec<_>>().join("; ")
}

fn cut<R>(cut: &Cut<R>) -> String {
    let Cut { heads, removed, readmitted, master_term: term, turn, .. } = cut;
    let term = term.map_or(String::new(), |term| format!(" of a term from txn {}", term.first));
    let turn = turn.map_or(String::new(), |turn| format!(" turn of {turn}"));
    let (removed, readmitted) = (nodes("removes", removed), nodes("readmits", readmitted));
    format!("{}{removed}{readmitted}{term}{turn}", vector(heads))
}

/// A timer.
pub fn timer(timer: Timer) -> &'static str {
    match timer {
        Timer::Batch => "closes its batch",
        Timer::Epoch => "begins an epoch",
        Timer::Tick => "ticks",
        Timer::Fetch => "looks for missing batches",
        Timer::Progress => "reports its progress",
        Timer::Rejoin => "asks its peers again",
        Timer::Checkpoint => "may try a checkpoint again",
    }
}

/// The request of a client.
pub fn submitted(request: &protocol::Request) -> String {
    match request {
        protocol::Request::Commit(what, _) => format!("calls {}", program(what)),
        protocol::Request::Fresh => "asks for a fresh version".to_owned(),
        protocol::Request::Move(moves) => format!("asks to move {} slots", moves.len()),
    }
}

/// Descriptions of marks that say the same as a message, a record or an answer next to them.
/// Transcripts leave them out.
const SAID_ANYWAY: &[&str] = &[
    "a batch is sent to all peers",
    "batches are acknowledged",
    "a proof of availability is sent",
    "a missing batch is requested",
    "the coordinator proposes a cut",
    "a cut is decided",
    "an epoch is applied",
    "a strict read continues",
    "a checkpoint is requested from the driver",
    "a peer's log identity is recorded for the first time",
    "a rejoining peer gets an answer",
    "a replica that lost its disk queries its peers",
    "a request is put into a batch",
    "requests are forwarded to the master",
    "the master has put forwarded requests into a batch",
    "the master fixes the cut of the next epoch",
    "another replica requests mastership from the master",
    "the master transfers mastership",
    "an epoch of the group is split into a slice for each shard",
    "a master sends a slice before its cut is decided",
    "this shard subscribes to the slices of another",
    "the slice of another shard has not arrived",
    "rows or results are sent to another shard",
    "a reconnaissance requests rows from another shard",
    "the result of a transaction that another shard ran has not arrived",
    "this node announces its cold rows to the other nodes",
];

/// The description of a mark, unless something else says the same.
pub fn mark<P: Transcribed>(name: &str) -> Option<&'static str> {
    let mark = P::MARKS.iter().find(|mark| mark.name == name).expect("the mark is in the table");
    (!SAID_ANYWAY.contains(&mark.when)).then_some(mark.when)
}

#[test]
fn every_mark_that_is_left_out_is_in_a_table() {
    let all = Minerva::MARKS.iter().chain(Calvin::MARKS).chain(GeoGauss::MARKS);
    let all: BTreeSet<&str> = all.map(|mark| mark.when).collect();
    let unknown: Vec<_> = SAID_ANYWAY.iter().filter(|when| !all.contains(*when)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// The request for a batch of a source.
pub fn fetch<P: Transcribed>(source: NodeId, bid: u64) -> P::Message {
    let fetch = streams::Message::Fetch { source, from: Bid(bid), upto: Bid(bid) };
    P::of_streams(fetch)
}

/// The begin of a checkpoint.
pub fn begun_checkpoint<P: Transcribed>(version: SnapshotVersion) -> String {
    format!("begins a checkpoint of {}", P::version(version))
}

/// The report of a master term.
pub fn master_term(
    (shard, from): (ShardId, SnapshotVersion),
    term: Option<(NodeId, u64)>,
    is_final: bool,
) -> String {
    let master = term.map_or("unknown".to_owned(), |(node, first)| {
        format!("{node}, whose first txn is {first}")
    });
    let final_ = if is_final { "confirmed" } else { "not confirmed" };
    format!("reports: the master of {shard} from epoch {} on is {master}, {final_}", from.0)
}

/// The report of epochs that are rolled back.
pub fn lost(after: SnapshotVersion, epochs: u64, acknowledged: u64) -> String {
    let what = format!("{acknowledged} acknowledged transactions are lost");
    format!("rolls back {epochs} epochs after {}: {what}", after.0)
}

/// The answer to a client.
pub fn outcome<P: Transcribed>(outcome: &Outcome, first_run: &FirstRun) -> String {
    let rerun = match first_run {
        FirstRun::Invalidated(Some((_, key))) => {
            format!(", its first run was invalidated by a write to {}", text(key))
        }
        FirstRun::Invalidated(None) => ", its first run was invalidated".to_owned(),
        FirstRun::Valid | FirstRun::Absent => String::new(),
    };
    match outcome {
        Outcome::Committed { txn, version, result } => {
            let result = match result.is_empty() {
                true => String::new(),
                false => format!(" with result {}", text(result)),
            };
            format!("{txn} committed in {}{result}{rerun}", P::version(*version))
        }
        Outcome::Aborted(it) => format!("{}{rerun}", abort(it)),
    }
}

fn abort(abort: &Abort) -> String {
    let detail = abort.detail.as_ref().map_or(String::new(), |detail| format!("; {detail}"));
    format!("aborted: {} {}{detail}", abort.code, abort.message)
}

fn record_of_minerva(record: &TxnRecord) -> String {
    let TxnRecord { txn, program: what, how } = record;
    let how = match how {
        ExecutionMode::Executed { reads, writes } => format!("ran, {}", sets(reads, writes)),
        ExecutionMode::Ordered { footprint } => format!("not run, {}", locks(footprint.as_ref())),
        ExecutionMode::Certified => "certified".to_owned(),
        ExecutionMode::CertifiedInOrder => "certified in order".to_owned(),
    };
    format!("{txn} {}: {how}", program(what))
}

fn request(it: &Request) -> String {
    format!("{} {}", it.txn, unnamed(it))
}

/// A request without its name, which the master gives.
fn unnamed(request: &Request) -> String {
    let origin =
        request.origin.map_or(String::new(), |(node, _)| format!(", for a client of {node}"));
    let shards: Vec<String> = request.shards.iter().map(|shard| shard.to_string()).collect();
    let shards = if shards.is_empty() { String::new() } else { format!(", {}", shards.join(" ")) };
    let locks =
        request.footprint.as_ref().map_or(String::new(), |it| format!(", {}", locks(Some(it))));
    format!("{}{locks}{shards}{origin}", program(&request.program))
}

fn program(program: &Program) -> String {
    match program {
        Program::Call { args, .. } => format!("({})", text(args)),
        Program::Certified(it) => format!("(certified {})", sets(&it.reads, &it.writes)),
    }
}

fn sets(reads: &ReadSet, writes: &[Write]) -> String {
    let seen = |seen: &ReadVersion| match seen {
        ReadVersion::Absent => "absent".to_owned(),
        ReadVersion::At(version) => format!("of epoch {}", version.0),
        ReadVersion::Local(txn) => format!("of {txn}"),
        ReadVersion::LocalDeleted(txn) => format!("deleted by {txn}"),
        ReadVersion::Present => "present".to_owned(),
    };
    let points = reads.points.iter().map(|it| format!("{} {}", text(&it.key), seen(&it.seen)));
    let ranges = reads.ranges.iter().map(|it| {
        let rows = it.rows.iter().map(|(key, at)| format!(" {} {}", text(key), seen(at)));
        format!("{}{}", range(&it.range), rows.collect::<String>())
    });
    let mut all: Vec<String> = Vec::new();
    let reads: Vec<String> = points.chain(ranges).collect();
    if !reads.is_empty() {
        all.push(format!("read {}", reads.join(", ")));
    }
    if !writes.is_empty() {
        all.push(format!("wrote {}", rows(writes)));
    }
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

fn locks(footprint: Option<&Footprint>) -> String {
    let Some(Footprint { points, ranges }) = footprint else {
        return "locks as its arguments say".to_owned();
    };
    let mode = |mode: LockMode| match mode {
        LockMode::Shared => "to read",
        LockMode::Write => "to write",
        LockMode::Exclusive => "to read and write",
    };
    let points = points.iter().map(|it| format!("{} {}", text(&it.key), mode(it.mode)));
    let ranges = ranges.iter().map(|it| format!("{} {}", range(&it.range), mode(it.mode)));
    format!("locks {}", points.chain(ranges).collect::<Vec<_>>().join(", "))
}

fn results_of<E>(results: Result<Vec<RemoteResult>, E>) -> String {
    let Ok(results) = results else { panic!("replicas send complete rows and outcomes") };
    results.iter().map(remote_result).collect::<Vec<_>>().join("; ")
}

fn remote_result(result: &RemoteResult) -> String {
    match result {
        RemoteResult::Reads(txn, reads) => match reads {
            RemoteReads::Rows(it) if it.is_empty() => format!("no rows for {txn}"),
            RemoteReads::Rows(it) => format!("rows for {txn}: {}", rows(it)),
            RemoteReads::TooLarge(bytes) => format!("{bytes} bytes of rows for {txn}"),
            RemoteReads::Certified(None) => format!("the reads of {txn} are current"),
            RemoteReads::Certified(Some(_)) => format!("a read of {txn} is not current"),
        },
        RemoteResult::Outcome(txn, outcome) => match outcome {
            ShardOutcome::Ran(Ok(it)) if it.is_empty() => format!("{txn} committed"),
            ShardOutcome::Ran(Ok(it)) => format!("{txn} committed with result {}", text(it)),
            ShardOutcome::Ran(Err(it)) => format!("{txn} {}", abort(it)),
            ShardOutcome::FootprintViolated | ShardOutcome::Served => {
                format!("{txn} violated its footprint")
            }
            ShardOutcome::Void => format!("{txn} is void"),
        },
    }
}

fn lookup_keys(keys: &LookupKeys) -> String {
    let points = keys.points.iter().map(|(_, key)| text(key));
    let ranges = keys.ranges.iter().map(|scan| range(&scan.range));
    points.chain(ranges).collect::<Vec<_>>().join(" ")
}

fn lookup_rows(found: &LookupRows) -> String {
    let found = rows(&found.rows);
    if found.is_empty() { "no rows".to_owned() } else { found }
}

/// The keys of rows, in their order.
pub fn keys_of(keys: &[(TableId, Key)]) -> String {
    keys.iter().map(|(_, key)| text(key)).collect::<Vec<_>>().join(" ")
}

/// Rows as `key=value`, or `key deleted`.
pub fn rows(writes: &[Write]) -> String {
    let row = |write: &Write| match &write.value {
        Some(value) => format!("{}={}", text(&write.key), text(value)),
        None => format!("{} deleted", text(&write.key)),
    };
    writes.iter().map(row).collect::<Vec<_>>().join(" ")
}

/// The state of a node at a version.
pub fn state<P: Transcribed>(version: SnapshotVersion, writes: &[Write]) -> String {
    match writes.is_empty() {
        true => format!("{}: no rows", P::version(version)),
        false => format!("{}: {}", P::version(version), rows(writes)),
    }
}

fn range(range: &KeyRange) -> String {
    let end = range.end.as_ref().map_or(String::new(), |end| text(end));
    format!("{}..{end}", text(&range.start))
}

fn vector(heads: &[Bid]) -> String {
    let heads: Vec<String> = heads.iter().map(|head| head.0.to_string()).collect();
    format!("[{}]", heads.join(" "))
}

/// Bytes as text. Long texts are cut.
fn text(bytes: &[u8]) -> String {
    const CHARS_MAX: usize = 60;
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.into_owned(),
    }
}
