//! Messages of peers, and contents of the log and of checkpoints, that are nearly right.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Writer};
use pangea_core::ids::{LogPosition, NodeId, ProcedureId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::protocol::Message as _;
use pangea_core::txn::{
    Certified, Footprint, LockMode, PointLock, PointRead, Program, RangeLock, RangeRead, ReadSet,
    ReadVersion, Write,
};
use pangea_core::value::Value;

use super::batch::{Batch, Bid, ExecutionMode, TxnRecord};
use super::epoch_record::EpochRecord;
use super::{Cut, Message, Rules};
use crate::agreement::{Record, Term};
use crate::decisions::{Decisions, Ordered, WriteSetRef};
use crate::fuzzing::{Outcome, Target, run, size};
use crate::inputs::{self, Meta, decode_evidence, decode_rejoin_state, knowledge, recollection};
use crate::presence;
use crate::streams::{self, decode_batch, encode_heads};
use crate::transfer::{self, ChunkNumber, take_chunk};

const NODES: usize = 3;

fn key(text: &str) -> Key {
    Key::from(text.as_bytes())
}

fn writes() -> Vec<Write> {
    let value = |text: &str| Some(Value::copy_from(text.as_bytes()));
    let write = |name, value| Write { table: TableId(7), key: key(name), value };
    vec![write("a", value("one")), write("gone", None)]
}

fn reads() -> ReadSet {
    let table = TableId(300);
    let seen = [
        ReadVersion::Absent,
        ReadVersion::At(SnapshotVersion(300)),
        ReadVersion::Local(TxnId::new(NodeId(1), 2)),
        ReadVersion::LocalDeleted(TxnId::new(NodeId(1), 3)),
        ReadVersion::Present,
    ];
    let points = seen.map(|seen| PointRead { table, key: key("k"), seen }).to_vec();
    let rows = seen.map(|seen| (key("row"), seen)).to_vec();
    let ranges = [KeyRange::prefix(b"r"), KeyRange::all()];
    let range = |range| RangeRead { table, range, rows: rows.clone() };
    ReadSet { points, ranges: ranges.map(range).to_vec() }
}

fn batch() -> Bytes {
    // One of the values is long enough to be searched for in the arguments, and found.
    const ARGS: &[u8] = b"args, and a value of forty bytes that is given";
    let call = Program::Call { procedure: ProcedureId(2), args: Bytes::from_static(ARGS) };
    let given = Some(Value::copy_from(&ARGS[6..]));
    let given = Write { table: TableId(7), key: key("given"), value: given };
    let certified = || {
        Program::Certified(Certified { reads: reads(), writes: writes(), ..Certified::default() })
    };
    let point = PointLock { table: TableId(1), key: key("p"), mode: LockMode::Exclusive };
    let range = RangeLock { table: TableId(1), range: KeyRange::all(), mode: LockMode::Shared };
    let footprint = Some(Footprint::new(vec![point], vec![range]));
    let all = [
        (
            call.clone(),
            ExecutionMode::Executed { reads: reads(), writes: [writes(), vec![given]].concat() },
        ),
        (call.clone(), ExecutionMode::Ordered { footprint }),
        (call, ExecutionMode::Ordered { footprint: None }),
        (certified(), ExecutionMode::Certified),
        (certified(), ExecutionMode::CertifiedInOrder),
    ];
    let source = NodeId(1);
    let record = |(program, how)| TxnRecord { txn: TxnId::new(source, 40), program, how };
    let records = all.map(record).to_vec();
    let (bid, base) = (Bid(7), SnapshotVersion(9));
    Batch { source, bid, base, first_sequence: 40, records }.encode()
}

fn chunk() -> Bytes {
    let mut out = Vec::new();
    out.put_varint(300);
    encode_heads(&[Bid(1), Bid(300), Bid(0)], &mut out);
    out.extend([1, 0, 1]);
    [1, 300, 0].into_iter().for_each(|sequence| out.put_varint(sequence));
    // No protocol state is sent in addition.
    out.put_varint(0);
    for (table, name) in [(1, "a"), (1, "b"), (300, "")] {
        out.put_varint(table);
        out.put_bytes(name.as_bytes());
        out.put_varint(3);
        out.put_u64(17);
        out.put_bytes(b"value");
    }
    out.into()
}

fn remembered() -> Bytes {
    let heads = vec![Bid(1), Bid(300), Bid(0)];
    let entries = Record::Entries { from: 3, entries: vec![Cut { heads, ..cut() }] };
    recollection(vec![Record::Trimmed(3), entries, Record::Decided(3)])
}

fn messages() -> Vec<Vec<u8>> {
    let (source, version) = (NodeId(2), SnapshotVersion(300));
    let heads = vec![Bid(0), Bid(1), Bid(70_000)];
    let chunk = |index| -> Message {
        let payload = chunk();
        transfer::Message::CheckpointChunk {
            transfer: 300,
            number: ChunkNumber { index, is_last: index > 0 },
            payload,
        }
        .into()
    };
    let all: [Message; 20] = [
        streams::Message::Batch { bytes: batch() }.into(),
        streams::Message::Ack { heads: heads.clone() }.into(),
        streams::Message::ProofOfAvailability { head: Bid(9) }.into(),
        streams::Message::Fetch { source, from: Bid(1), upto: Bid(300) }.into(),
        streams::Message::Gone { source, first: Bid(300) }.into(),
        inputs::Message::Agreement { bytes: Bytes::from_static(b"bytes") }.into(),
        inputs::Message::Progress { applied: version, durable: SnapshotVersion(2), heads }.into(),
        inputs::Message::Digests {
            digests: vec![crate::digests::EpochDigest {
                epoch: SnapshotVersion(9),
                scope: 0,
                tables: vec![(TableId(7), 1)],
            }],
        }
        .into(),
        inputs::Message::Stopping { is_settled: true, is_over: false }.into(),
        inputs::Message::MayStop { term: Term::default(), last: version }.into(),
        inputs::Message::TransferLeadership { term: Term::default() }.into(),
        inputs::Message::BarrierRequest { token: 5 }.into(),
        inputs::Message::Barrier {
            token: 5,
            incarnation: u64::MAX,
            nonce: 1 << 40,
            term: Term::default(),
        }
        .into(),
        presence::Message::Greeting {
            log_identity: 7,
            receiver_identity: u64::MAX,
            known: knowledge(Bid(3), Term::default()),
        }
        .into(),
        presence::Message::Rejoin { nonce: 3, log_identity: 7 }.into(),
        presence::Message::RejoinReply {
            nonce: 3,
            log_identity: 7,
            known: Bytes::from_static(b"known"),
        }
        .into(),
        transfer::Message::CheckpointRequest { transfer: 300, index: 3 }.into(),
        chunk(0),
        transfer::Message::CheckpointAck { transfer: 300, index: 3 }.into(),
        transfer::Message::CheckpointGone { transfer: 300 }.into(),
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
        Message::Inputs(inputs::Message::Streams(streams::Message::Batch { bytes })) => {
            let batch = decode_batch::<Batch>(bytes, NODES)?;
            assert_eq!(Batch::decode(&batch.encode()), Ok(batch.clone()));
            Ok(size(batch.records.len()))
        }
        Message::Inputs(inputs::Message::Transfer(transfer::Message::CheckpointChunk {
            number: ChunkNumber { index, .. },
            payload,
            ..
        })) => take_chunk::<inputs::Configuration>(SnapshotVersion(300), *index, payload, NODES)
            .map(size),
        Message::Inputs(inputs::Message::Presence(presence::Message::Greeting {
            known, ..
        })) => decode_evidence(known, NODES).map(size),
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
    assert_eq!(
        Message::decode(&encoded.into()).as_ref(),
        Ok(&message),
        "the encoding is reversible"
    );
    if let Err(refused) = message.check(NODES) {
        return Outcome::refused(refused);
    }
    match look_inside(&message) {
        Ok(inside) => Outcome::taken((input[0], "decoded", inside.leading_zeros())),
        Err(error) => Outcome::refused(error),
    }
}

#[test]
fn peer_messages() {
    run(Target {
        name: "peer-message",
        seeds: messages(),
        mend: |_| {},
        look: look_at_message,
        bytes_max: 4 << 10,
        // A range read of four bytes takes 80, and there are two copies of it at a time.
        bytes_per_byte: 256,
    });
}

fn look_at_recollection(input: &[u8]) -> Outcome {
    match decode_rejoin_state::<Rules>(input, NODES) {
        Ok(cuts) => Outcome::taken(size(cuts) > 1),
        Err(error) => Outcome::refused(error),
    }
}

#[test]
fn recollections() {
    run(Target {
        name: "recollection",
        seeds: vec![remembered().to_vec()],
        mend: |_| {},
        look: look_at_recollection,
        // Serde's initial reservation for a list of cuts, and for each of a cut's lists.
        bytes_max: 6 << 20,
        bytes_per_byte: 256,
    });
}

fn cut() -> Cut {
    Cut { heads: vec![Bid(1), Bid(300)], removed: vec![NodeId(1)], ..Cut::default() }
}

fn resolution(count: usize) -> Vec<u8> {
    let writes = writes();
    let here = WriteSetRef::Here { writes: &writes, args: b"arguments" };
    let ordered = [None, Some(here)].into_iter().take(count);
    let resolution = EpochRecord {
        epoch: SnapshotVersion(5),
        cut: cut(),
        decisions: Decisions {
            is_valid: (0..count).map(|i| i % 3 == 0).collect(),
            ordered: ordered.map(|writes| Ordered { entry: 0, writes }).collect(),
        },
    };
    let mut out = Vec::new();
    resolution.encode(&mut out);
    out
}

fn look_at_resolution(input: &[u8]) -> Outcome {
    let resolution = match EpochRecord::decode(input) {
        Ok(resolution) => resolution,
        Err(error) => return Outcome::refused(error),
    };
    let mut encoded = Vec::new();
    resolution.encode(&mut encoded);
    assert_eq!(
        EpochRecord::decode(&encoded).as_ref(),
        Ok(&resolution),
        "the encoding is reversible"
    );
    let (valid, ordered) =
        (size(resolution.decisions.is_valid.len()), size(resolution.decisions.ordered.len()));
    Outcome::taken((valid > 3, ordered > 1, resolution.cut.heads.is_empty()))
}

#[test]
fn epoch_records() {
    run(Target {
        name: "epoch-record",
        seeds: [0, 1, 9, 30].map(resolution).to_vec(),
        mend: |_| {},
        look: look_at_resolution,
        // Serde's initial reservation for each of the three lists of a cut.
        bytes_max: 4 << 20,
        bytes_per_byte: 256,
    });
}

fn meta() -> Vec<u8> {
    let meta = Meta {
        log_head: LogPosition(9),
        heads: vec![Bid(1), Bid(300), Bid(0)],
        is_member: vec![true, false, true],
        log_identities: vec![1, 2, 3],
        next_sequence: 70_000,
        sequences: vec![5, 300, 1],
        rejoin: Some(inputs::Target { epoch: SnapshotVersion(7), heads: vec![Bid(2); 3] }),
        agreement: vec![
            Record::Trimmed(3),
            Record::Entries { from: 3, entries: vec![cut(), Cut::default()] },
            Record::Decided(4),
        ],
    };
    meta.encode().to_vec()
}

fn look_at_meta(input: &[u8]) -> Outcome {
    let meta = match Meta::<Rules>::decode(input) {
        Ok(meta) => meta,
        Err(error) => return Outcome::refused(error),
    };
    let encoded = meta.encode();
    let again = Meta::<Rules>::decode(&encoded).expect("the encoding is reversible");
    assert_eq!(again.encode(), encoded);
    Outcome::taken((meta.heads.is_empty(), meta.heads.len() > 3, meta.agreement.is_empty()))
}

#[test]
fn checkpoint_meta_data() {
    run(Target {
        name: "checkpoint-meta",
        seeds: vec![meta()],
        mend: |_| {},
        look: look_at_meta,
        // Serde's initial reservation for a list of records, of cuts, and for each of a cut's
        // lists.
        bytes_max: 6 << 20,
        bytes_per_byte: 256,
    });
}
