//! Batches of peers, and epoch records of the log, that are nearly right.

use bytes::Bytes;
use pangea_core::exec::ordered::{RemoteReads, ShardOutcome};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::protocol::Message as _;

use super::Cut;
use super::batch::{Batch, tests::batch};
use super::messages::{Accepted, Message};
use super::recovery::{EpochRecord, ShardEpochRecord};
use super::shards::chunks::tests::chunks;
use super::shards::remote_results::{RemoteResult, RemoteResults};
use super::shards::slice::Lineage;
use super::shards::slice::tests::slice;
use crate::agreement::Term;
use crate::fuzzing::{Outcome, Target, run, size};
use crate::inputs::MasterTerm;
use crate::streams::{Bid, decode_batch};

const NODES: usize = 3;

fn look_at_batch(input: &[u8]) -> Outcome {
    match decode_batch::<Batch>(&Bytes::copy_from_slice(input), NODES) {
        Ok(batch) => {
            let again = decode_batch::<Batch>(&batch.encode(), NODES);
            assert_eq!(again.as_ref(), Ok(&batch), "the encoding is reversible");
            Outcome::taken(size(batch.requests.len()))
        }
        Err(error) => Outcome::refused(error),
    }
}

#[test]
fn calvin_batches() {
    run(Target {
        name: "calvin-batch",
        seeds: vec![batch().encode().to_vec()],
        mend: |_| {},
        look: look_at_batch,
        bytes_max: 4 << 10,
        // A range read of four bytes takes 80, and there are two copies of it at a time.
        bytes_per_byte: 256,
    });
}

fn record() -> EpochRecord {
    let heads = vec![Bid(1), Bid(300), Bid(0)];
    let master_term = Some(MasterTerm { term: Term::default(), first: 300 });
    let cut = Cut { heads, removed: vec![NodeId(1)], master_term, ..Cut::default() };
    EpochRecord { epoch: SnapshotVersion(5), cut: Some(cut), of_shards: None }
}

/// The same if tables are partitioned.
fn divided_record() -> EpochRecord {
    let (slice, shard) = (slice(), ShardId(1));
    let txn = TxnId::new(NodeId(3), 9);
    let parts = [RemoteReads::Certified(None), RemoteReads::TooLarge(1 << 30)]
        .map(|it| RemoteResult::Reads(txn, it));
    let all = [vec![RemoteResult::Outcome(txn, ShardOutcome::FootprintViolated)], parts.to_vec()]
        .concat();
    let results = RemoteResults::new((SnapshotVersion(5), Lineage(300)), &all);
    let of_shards = ShardEpochRecord {
        received_slices: vec![slice.clone()],
        received: vec![(shard, results.clone())],
        sent: vec![(shard, slice)],
        served: vec![(shard, results)],
        dropped: vec![(shard, SnapshotVersion(4))],
    };
    EpochRecord { of_shards: Some(of_shards), ..record() }
}

fn look_at_record(input: &[u8]) -> Outcome {
    match EpochRecord::decode(&Bytes::copy_from_slice(input)) {
        Ok(record) => {
            let again = EpochRecord::decode(&record.encode().into());
            assert_eq!(again.as_ref(), Ok(&record), "the encoding is reversible");
            Outcome::taken(size(record.cut.map_or(0, |cut| cut.heads.len())))
        }
        Err(error) => Outcome::refused(error),
    }
}

#[test]
fn calvin_epoch_records() {
    run(Target {
        name: "calvin-epoch-record",
        seeds: vec![record().encode(), divided_record().encode()],
        mend: |_| {},
        look: look_at_record,
        // Serde's initial reservation for each of the three lists of a cut.
        bytes_max: 4 << 20,
        bytes_per_byte: 256,
    });
}

fn look_at_message(input: &[u8]) -> Outcome {
    match Message::decode(&Bytes::copy_from_slice(input)) {
        Ok(message) => {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(
                Message::decode(&bytes.into()).as_ref(),
                Ok(&message),
                "the encoding is reversible"
            );
            Outcome::taken(size(message.payload_bytes()))
        }
        Err(error) => Outcome::refused(error),
    }
}

#[test]
fn calvin_messages() {
    let results = divided_record().of_shards.unwrap().served[0].1.clone();
    let chunk = Message::SliceChunk { chunk: chunks().swap_remove(1) };
    let request = batch().requests.swap_remove(2);
    let forward = Message::Forward { requests: vec![(300, request)] };
    let accepted = Message::ForwardAccepted {
        accepted: Accepted { term: Term::default(), tokens: vec![300, 1] },
    };
    let all = [
        Message::Slice { slice: slice() },
        chunk,
        Message::RemoteResults { results },
        Message::SlicesDecided { upto: SnapshotVersion(5), name: slice().cut.name },
        Message::Unsubscribe {},
        forward,
        accepted,
        Message::ForwardRejected { tokens: vec![7] },
    ];
    let bytes = |message: &Message| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    };
    run(Target {
        name: "calvin-message",
        seeds: all.iter().map(bytes).collect(),
        mend: |_| {},
        look: look_at_message,
        bytes_max: 4 << 20,
        bytes_per_byte: 256,
    });
}
