//! Batches of peers, and what the log holds of an epoch, that are nearly right.

use bytes::Bytes;
use pangea_core::ids::{NodeId, SnapshotVersion};

use super::Cut;
use super::batch::{Batch, tests::batch};
use super::recovery::EpochRecord;
use crate::fuzzing::{Outcome, Target, run, size};
use crate::inputs::{Bid, decode_batch};

const NODES: usize = 3;

fn look_at_batch(input: &[u8]) -> Outcome {
    match decode_batch::<Batch>(&Bytes::copy_from_slice(input), NODES) {
        Ok(batch) => {
            let again = decode_batch::<Batch>(&batch.encode(), NODES);
            assert_eq!(again.as_ref(), Ok(&batch), "it survives");
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
    let cut = Cut { heads, removed: vec![NodeId(1)], ..Cut::default() };
    EpochRecord { epoch: SnapshotVersion(5), cut }
}

fn look_at_record(input: &[u8]) -> Outcome {
    match EpochRecord::decode(input) {
        Ok(record) => {
            assert_eq!(EpochRecord::decode(&record.encode()).as_ref(), Ok(&record), "it survives");
            Outcome::taken(size(record.cut.heads.len()))
        }
        Err(error) => Outcome::refused(error),
    }
}

#[test]
fn calvin_epoch_records() {
    run(Target {
        name: "calvin-epoch-record",
        seeds: vec![record().encode()],
        mend: |_| {},
        look: look_at_record,
        // What serde takes beforehand for each of the three lists of a cut.
        bytes_max: 4 << 20,
        bytes_per_byte: 256,
    });
}
