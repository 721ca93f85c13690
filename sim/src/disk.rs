//! A node's disk and the data that survives a crash.
//!
//! The log is stored in the real format ([`pangea_core::log`]), and after a crash the real code
//! reads it. Records become durable in order, when an fsync that began after they were appended
//! ends. In a crash, each sector that was not yet durable is kept, lost or torn, because a disk may
//! write unsynced sectors in any order. Truncation frees whole segments, as a real log does.
//! Therefore some truncated records may reappear after a restart.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::ids::{LogPosition, SnapshotVersion, TableId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::log::{Item, SegmentError, SegmentHeader, SegmentScan, encode_record};
use pangea_core::protocol::{Checkpoint, Durable};
use pangea_core::store::{Loading, RecordHeader, Store, Version};

use crate::rng::SimRng;

/// Records in a segment of the log, the unit of truncation.
const SEGMENT_RECORDS: u64 = 32;
/// The maximum payload of a frame of the log, small enough that some records span several frames.
const PAYLOAD_BYTES_MAX: usize = 4_096;
/// The unit that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// The data that one node has written.
#[derive(Debug, Default)]
pub struct Disk {
    checkpoint: Option<(Checkpoint, Rows)>,
    /// The log; records are appended to the last segment. Each segment is durable in full before
    /// the next one begins.
    segments: VecDeque<Segment>,
    /// The number of segments ever begun.
    begun: u64,
    head: LogPosition,
    synced: LogPosition,
}

/// A file of the log.
#[derive(Debug)]
struct Segment {
    header: SegmentHeader,
    bytes: Vec<u8>,
    /// The end offset of each record.
    ends: Vec<usize>,
    /// Per record: the number of durable bytes when it was appended, as stored in the record.
    reported: Vec<usize>,
    /// The number of durable bytes.
    synced: usize,
}

impl Segment {
    fn new(header: SegmentHeader) -> Self {
        Self { bytes: header.encode(), header, ends: Vec::new(), reported: Vec::new(), synced: 0 }
    }

    /// Returns the records that the real code finds in the segment.
    fn records(&self) -> Result<Vec<(LogPosition, Bytes)>, SegmentError> {
        let mut scan = SegmentScan::open(Bytes::copy_from_slice(&self.bytes))?;
        let mut records = Vec::new();
        while let Item::Record { position, record } = scan.advance()? {
            records.push((position, record));
        }
        Ok(records)
    }
}

/// The rows of a checkpoint, with their encoded headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows(Vec<(TableId, Key, SnapshotVersion, Bytes)>);

impl Disk {
    /// The position of the last record appended.
    pub fn head(&self) -> LogPosition {
        self.head
    }

    /// The position through which all records are durable.
    pub fn synced(&self) -> LogPosition {
        self.synced
    }

    /// Appends a record.
    pub fn append(&mut self, position: LogPosition, record: &[Bytes]) {
        assert_eq!(position.0, self.head.0 + 1, "records have no gaps");
        let is_full = |segment: &Segment| {
            let records = segment.ends.len() as u64;
            segment.synced == segment.bytes.len() && records >= SEGMENT_RECORDS
        };
        if self.segments.back().is_none_or(is_full) {
            self.begun += 1;
            let header = SegmentHeader { salt: self.begun, first: position };
            self.segments.push_back(Segment::new(header));
        }
        let segment = self.segments.back_mut().expect("a segment exists now");
        let at = (position, segment.synced as u64);
        encode_record(at, segment.header.salt, record, PAYLOAD_BYTES_MAX, &mut segment.bytes);
        segment.ends.push(segment.bytes.len());
        segment.reported.push(segment.synced);
        self.head = position;
    }

    /// Completes an fsync that began when `position` was the head.
    pub fn sync_to(&mut self, position: LogPosition) {
        assert!(position <= self.head, "the synced position was written");
        self.synced = self.synced.max(position);
        let Some(segment) = self.segments.back_mut() else { return };
        let durable = (position.0 + 1).saturating_sub(segment.header.first.0) as usize;
        if let Some(last) = durable.checked_sub(1) {
            segment.synced = segment.synced.max(segment.ends[last]);
        }
    }

    /// Frees the segments that contain only records below `position`.
    pub fn truncate(&mut self, position: LogPosition) {
        while let Some(next) = self.segments.get(1)
            && next.header.first <= position
        {
            self.segments.pop_front();
        }
    }

    /// Stores a completed checkpoint; only the newest one is retained.
    pub fn keep_checkpoint(&mut self, checkpoint: Checkpoint, rows: Rows) {
        let is_newer = |(old, _): &(Checkpoint, Rows)| old.version <= checkpoint.version;
        if self.checkpoint.as_ref().is_none_or(is_newer) {
            self.checkpoint = Some((checkpoint, rows));
        }
    }

    /// Stops the node and returns the number of records lost.
    pub fn crash(&mut self, dice: &mut SimRng) -> u64 {
        let Some(segment) = self.segments.back_mut() else { return 0 };
        // The header of a file is durable before the file becomes a segment.
        let durable = segment.synced.max(segment.header.encode().len());
        tear(&mut segment.bytes, durable, dice);
        let records = segment.records().expect("a crash loses no durable record");
        let kept = records.len();
        segment.ends.truncate(kept);
        segment.reported.truncate(kept);
        // Recovery cuts off the remains of a torn group when it reads the log.
        let end = segment.ends.last().copied().unwrap_or(segment.header.encode().len());
        segment.bytes.truncate(end);
        segment.synced = end;
        let head = LogPosition(segment.header.first.0 + kept as u64 - 1);
        assert!(head >= self.synced, "a crash lost a durable record");
        let lost = self.head.0 - head.0;
        (self.head, self.synced) = (head, head);
        lost
    }

    /// Flips one durable bit of the log. In the last segment only bytes that a later record names
    /// as durable qualify, because damage to the last records looks like a torn write. Returns the
    /// log's records before the flip, or `None` if no byte qualifies.
    pub fn flip_bit(&mut self, dice: &mut SimRng) -> Option<Vec<(LogPosition, Bytes)>> {
        let before = self.records().expect("the log is intact");
        let last = self.segments.len().saturating_sub(1);
        let extent = |(index, segment): (usize, &Segment)| match index == last {
            true => segment.reported.last().copied().unwrap_or_default(),
            false => segment.bytes.len(),
        };
        let extents: Vec<usize> = self.segments.iter().enumerate().map(extent).collect();
        let all: usize = extents.iter().sum();
        if all == 0 {
            return None;
        }
        let mut at = dice.index(all);
        for (segment, extent) in self.segments.iter_mut().zip(extents) {
            if at < extent {
                segment.bytes[at] ^= 1 << dice.index(8);
                return Some(before);
            }
            at -= extent;
        }
        None
    }

    /// Returns the data that a starting node finds, after loading the checkpoint's rows into
    /// `store`, which must be empty.
    ///
    /// # Errors
    /// A description of the damage, if durable data is damaged.
    pub fn recover(&self, store: Store) -> Result<(Durable, Arc<Store>), String> {
        let records = self.records()?;
        let store = Arc::new(store);
        if let Some((checkpoint, rows)) = &self.checkpoint {
            rows.load(&store);
            Loading::default().end(&store);
            store.publish_alone(checkpoint.version);
        }
        let checkpoint = self.checkpoint.as_ref().map(|(checkpoint, _)| checkpoint.clone());
        Ok((Durable { checkpoint, records, is_replaced: false }, store))
    }

    fn records(&self) -> Result<Vec<(LogPosition, Bytes)>, String> {
        let mut records: Vec<(LogPosition, Bytes)> = Vec::new();
        for segment in &self.segments {
            let next = records.last().map(|(position, _)| LogPosition(position.0 + 1));
            if next.is_some_and(|next| next != segment.header.first) {
                return Err(format!("records before {} are missing", segment.header.first));
            }
            records.extend(segment.records().map_err(|error| error.to_string())?);
        }
        Ok(records)
    }
}

/// Simulates a crash while `bytes` are written, of which the first `durable` are durable. The rest
/// is cut to a prefix, or each sector is kept, lost or damaged.
fn tear(bytes: &mut [u8], durable: usize, dice: &mut SimRng) {
    let prefix = dice.between(durable as u64, bytes.len() as u64) as usize;
    let is_prefix = dice.chance(500);
    let first = durable / SECTOR_BYTES;
    for (index, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate().skip(first) {
        let start = index * SECTOR_BYTES;
        let from = durable.saturating_sub(start);
        if is_prefix {
            let kept = prefix.saturating_sub(start).clamp(from, sector.len());
            sector[kept..].fill(0);
        } else if dice.chance(500) {
            sector[from..].fill(0);
        } else if dice.chance(200) && from < sector.len() {
            let at = from + dice.index(sector.len() - from);
            sector[at] ^= 1 << dice.index(8);
        }
    }
}

impl Rows {
    /// Returns the live rows of `store` at a version.
    pub fn of(store: &Store, at: SnapshotVersion) -> Self {
        let mut rows = Vec::new();
        for table in store.table_ids() {
            store.scan_passing(table, &KeyRange::all(), at, |key, version| {
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

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the checkpoint has no rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn load(&self, store: &Store) {
        for (table, key, version, bytes) in &self.0 {
            let mut reader = Reader::new(bytes);
            let header =
                RecordHeader::decode(&mut reader).expect("an encoded header can be decoded");
            let value = Some(reader.rest().into());
            store.apply(*table, key.clone(), Version { version: *version, header, value });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_synced_and_a_prefix_of_the_rest() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let mut disk = Disk::default();
            let record = |p: u64| Bytes::from(vec![p as u8; 300]);
            (1..=10).for_each(|p| disk.append(LogPosition(p), &[record(p)]));
            disk.sync_to(LogPosition(4));
            let lost = disk.crash(&mut SimRng::fork(seed, "disk", 0));
            let records = disk.records().unwrap();
            let expected = (1..=10 - lost).map(|p| (LogPosition(p), record(p)));
            assert_eq!(records, expected.collect::<Vec<_>>());
            assert_eq!((disk.head().0, disk.synced().0), (10 - lost, 10 - lost));
            lengths.insert(records.len());
            // The log accepts further records.
            disk.append(LogPosition(11 - lost), &[record(9)]);
            assert_eq!(disk.records().unwrap().len(), records.len() + 1);
        }
        assert_eq!(lengths, (4..=10).collect());
    }

    #[test]
    fn a_crash_takes_all_of_a_record_of_several_frames_or_nothing() {
        let mut lost = std::collections::BTreeMap::<u64, u64>::new();
        for seed in 0..300 {
            let mut disk = Disk::default();
            let record = |p: u64| Bytes::from(vec![p as u8; 2 * PAYLOAD_BYTES_MAX + 300]);
            (1..=3).for_each(|p| disk.append(LogPosition(p), &[record(p)]));
            disk.sync_to(LogPosition(1));
            let count = disk.crash(&mut SimRng::fork(seed, "disk", 0));
            let expected = (1..=3 - count).map(|p| (LogPosition(p), record(p)));
            assert_eq!(disk.records().unwrap(), expected.collect::<Vec<_>>());
            *lost.entry(count).or_default() += 1;
            disk.append(LogPosition(4 - count), &[record(9)]);
            assert_eq!(disk.records().unwrap().len() as u64, 4 - count);
        }
        assert!(lost[&1] > 10 && lost[&2] > 10, "{lost:?}");
    }

    #[test]
    fn a_bit_that_flips_is_noticed_wherever_it_is() {
        let mut noticed = 0;
        for seed in 0..500 {
            let mut disk = Disk::default();
            for position in 1..=2 * SEGMENT_RECORDS + 5 {
                let len = if position % 16 == 0 { PAYLOAD_BYTES_MAX + 40 } else { 40 };
                disk.append(LogPosition(position), &[Bytes::from(vec![position as u8; len])]);
                disk.sync_to(LogPosition(position));
            }
            let records = disk.records().unwrap();
            assert_eq!(records.len() as u64, 2 * SEGMENT_RECORDS + 5);
            let before = disk.flip_bit(&mut SimRng::fork(seed, "disk", 0));
            assert_eq!(before.as_ref(), Some(&records));
            // Two bytes of a segment's header are unused.
            let found = disk.records();
            noticed += u64::from(found.is_err());
            assert!(found.is_err() || found == Ok(records), "seed {seed}: {found:?}");
        }
        assert!(noticed > 490, "{noticed} of 500");
        assert_eq!(Disk::default().flip_bit(&mut SimRng::fork(1, "disk", 0)), None);
    }

    #[test]
    fn truncation_frees_whole_segments_of_durable_records() {
        let mut disk = Disk::default();
        for position in 1..=3 * SEGMENT_RECORDS {
            disk.append(LogPosition(position), &[Bytes::from_static(b"x")]);
            disk.sync_to(LogPosition(position));
        }
        let first = |disk: &Disk| disk.records().unwrap()[0].0.0;
        assert_eq!(disk.segments.len(), 3);
        disk.truncate(LogPosition(SEGMENT_RECORDS));
        assert_eq!(first(&disk), 1);
        disk.truncate(LogPosition(SEGMENT_RECORDS + 3));
        assert_eq!(first(&disk), SEGMENT_RECORDS + 1);
        disk.truncate(LogPosition(3 * SEGMENT_RECORDS + 1));
        assert_eq!(first(&disk), 2 * SEGMENT_RECORDS + 1, "the last segment is retained");
    }
}
