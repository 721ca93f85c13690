//! A node's disk: what is still there after a crash.
//!
//! Records become durable in order, when an fsync that began after they were appended ends. At a
//! crash, of the records that were not yet durable a random number, from the first on, is kept, as
//! a disk may have written what nobody asked it to. Of the record after those a part may have been
//! written; the log's own reader says what it is worth. Truncation frees whole segments, as a real log
//! does, so that after a restart some truncated records may be back.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::ids::{LogPosition, SnapshotVersion, TableId};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::log::{FrameHeader, Item, Kind, SegmentHeader, SegmentScan};
use pangea_core::protocol::{Checkpoint, Durable};
use pangea_core::store::{Header, Store, Version};

use crate::dice::Dice;

/// Records in a segment of the log: truncation frees no less.
const SEGMENT_RECORDS: u64 = 32;

/// What one node has written.
#[derive(Debug, Default)]
pub struct Disk {
    checkpoint: Option<(Checkpoint, Rows)>,
    /// Every record that is kept, the durable ones first.
    log: VecDeque<(LogPosition, Bytes)>,
    head: LogPosition,
    synced: LogPosition,
}

/// The rows of a checkpoint, with their headers as bytes.
#[derive(Clone, Debug, Default)]
pub struct Rows(Vec<(TableId, Key, SnapshotVersion, Bytes)>);

impl Disk {
    /// The position of the last record appended.
    pub fn head(&self) -> LogPosition {
        self.head
    }

    /// Every record up to this position is durable.
    pub fn synced(&self) -> LogPosition {
        self.synced
    }

    /// Appends a record.
    pub fn append(&mut self, position: LogPosition, record: &[Bytes]) {
        assert_eq!(position.0, self.head.0 + 1, "records are numbered without gaps");
        self.log.push_back((position, record.concat().into()));
        self.head = position;
    }

    /// An fsync that began when `position` was the head has ended.
    pub fn sync_to(&mut self, position: LogPosition) {
        assert!(position <= self.head, "synced more than was written");
        self.synced = self.synced.max(position);
    }

    /// Frees the segments that hold only records below `position`.
    pub fn truncate(&mut self, position: LogPosition) {
        let below = position.0 - position.0 % SEGMENT_RECORDS;
        while self.log.front().is_some_and(|(p, _)| p.0 < below && *p <= self.synced) {
            self.log.pop_front();
        }
    }

    /// A checkpoint is complete; of two, the newer one is kept.
    pub fn keep_checkpoint(&mut self, checkpoint: Checkpoint, rows: Rows) {
        let is_newer = |(old, _): &(Checkpoint, Rows)| old.version <= checkpoint.version;
        if self.checkpoint.as_ref().is_none_or(is_newer) {
            self.checkpoint = Some((checkpoint, rows));
        }
    }

    /// The node stops now: returns how many records were lost.
    pub fn crash(&mut self, dice: &mut Dice) -> u64 {
        let kept = dice.between(self.synced.0, self.head.0);
        let lost = self.head.0 - kept;
        let torn = self.log.iter().find(|(position, _)| position.0 == kept + 1);
        let trusted = torn.and_then(|(position, record)| reread(*position, record, dice));
        self.log.retain(|(position, _)| position.0 <= kept);
        self.head = LogPosition(kept);
        if let Some(record) = trusted {
            self.head = LogPosition(kept + 1);
            self.log.push_back((self.head, record));
        }
        self.synced = self.head;
        lost
    }

    /// What a node that starts finds, with the checkpoint's rows in a new store.
    pub fn recover<H: Header>(&self) -> (Durable, Arc<Store<H>>) {
        let store = Arc::new(Store::new());
        if let Some((checkpoint, rows)) = &self.checkpoint {
            rows.load(&store);
            store.publish(checkpoint.version);
        }
        let checkpoint = self.checkpoint.as_ref().map(|(checkpoint, _)| checkpoint.clone());
        let records = self.log.iter().cloned().collect();
        (Durable { checkpoint, records }, store)
    }
}

/// What the log's reader makes of a record of which only the beginning was written. The file was
/// filled with zeros in advance.
fn reread(position: LogPosition, record: &Bytes, dice: &mut Dice) -> Option<Bytes> {
    let header = SegmentHeader { salt: position.0, first: position };
    let mut segment = header.encode();
    let start = segment.len();
    let frame = FrameHeader { kind: Kind::Record, position, synced: start as u64 };
    frame.encode(header.salt, std::slice::from_ref(record), &mut segment);
    let written = dice.between(start as u64, segment.len() as u64 - 1) as usize;
    segment[written..].fill(0);
    let mut scan = SegmentScan::open(segment.into()).expect("the header was written long ago");
    match scan.advance() {
        Ok(Item::Record { record, .. }) => Some(record),
        Ok(Item::Mark(_) | Item::End(_)) | Err(_) => None,
    }
}

impl Rows {
    /// The live rows of `store` at a version.
    pub fn of<H: Header>(store: &Store<H>, at: SnapshotVersion) -> Self {
        let mut rows = Vec::new();
        for table in store.table_ids() {
            store.scan(table, &KeyRange::all(), Direction::Forward, at, |key, version| {
                if let Some(value) = &version.value {
                    let mut bytes = Vec::with_capacity(value.len() + 16);
                    version.header.encode(&mut bytes);
                    bytes.extend_from_slice(value);
                    rows.push((table, key.clone(), version.version, bytes.into()));
                }
                std::ops::ControlFlow::Continue(())
            });
        }
        Self(rows)
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn load<H: Header>(&self, store: &Store<H>) {
        for (table, key, version, bytes) in &self.0 {
            let mut reader = Reader::new(bytes);
            let header = H::decode(&mut reader).expect("a header that was encoded is decoded");
            let value = Some(reader.rest().into());
            store.apply(*table, key.clone(), Version { version: *version, header, value });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appended(count: u64) -> Disk {
        let mut disk = Disk::default();
        (1..=count).for_each(|p| disk.append(LogPosition(p), &[Bytes::from(p.to_string())]));
        disk
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_a_prefix_of_the_rest() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut disk = appended(10);
            disk.sync_to(LogPosition(4));
            disk.crash(&mut Dice::fork(seed, "disk", 0));
            let positions: Vec<u64> = disk.log.iter().map(|(p, _)| p.0).collect();
            assert_eq!(positions, (1..=disk.head.0).collect::<Vec<_>>());
            lengths.insert(positions.len());
        }
        assert_eq!(lengths, (4..=10).collect());
    }

    #[test]
    fn truncation_frees_whole_segments_of_durable_records() {
        let mut disk = appended(3 * SEGMENT_RECORDS);
        disk.sync_to(LogPosition(SEGMENT_RECORDS + 5));
        disk.truncate(LogPosition(SEGMENT_RECORDS + 3));
        assert_eq!(disk.log[0].0, LogPosition(SEGMENT_RECORDS));
        disk.truncate(LogPosition(3 * SEGMENT_RECORDS));
        assert_eq!(disk.log[0].0, LogPosition(SEGMENT_RECORDS + 6), "the rest is not durable");
    }
}
