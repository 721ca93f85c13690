//! The writer: each group of records is one write and one sync.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pangea_core::ids::LogPosition;
use pangea_core::log::{
    FrameHeader, Kind, Mark, PAYLOAD_LEN_MAX, SEGMENT_HEADER_LEN, SegmentHeader, encode_record,
    encoded_len,
};

use super::recovery::{Active, Sealed, Tail};
use super::segment_allocator::SegmentAllocator;
use super::{
    Append, Durability, End, LogCounters, LogError, LogEvent, LogEvents, LogOptions, Queue,
    segment_name,
};
use crate::disk::{Disk, DiskError, DiskFile};
use crate::meter::Tap;
use crate::random;

/// The length at which a group is closed, so that its first records don't wait for its last ones.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// Zeros after the last frame. They must be written because a recycled file has old bytes there.
const END: [u8; 4] = [0; 4];

/// The state of the writer.
#[derive(Debug)]
pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    counters: Arc<LogCounters>,
    allocator: SegmentAllocator,
    sealed: VecDeque<Sealed>,
    active: Active,
    file: Box<dyn DiskFile>,
    /// The synced length of the active segment.
    synced: u64,
    /// The last record that is written or in the group.
    head: LogPosition,
    /// The newest durable mark.
    mark: Mark,
    /// Frames that have not been written; they belong at the active segment's end.
    group: Vec<u8>,
    group_records: u64,
    tap: Tap,
}

impl Writer {
    /// Opens the end of a recovered log, or begins a new log.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: &LogOptions,
        tail: Tail,
        counters: &Arc<LogCounters>,
    ) -> Result<Self, DiskError> {
        let is_new = tail.active.is_none();
        let allocator =
            SegmentAllocator::start(disk.clone(), &options.dir, options.segment_bytes, is_new)?;
        let (active, file, synced) = match tail.active {
            Some(active) => {
                let mut file = disk.open(&active.path).map_err(open_error(&active.path))?;
                // With `os` durability the last process may have left unsynced records, and frames
                // written by this process will state that they are synced.
                file.sync().map_err(DiskError::new("sync", &active.path))?;
                let synced = active.offset;
                (active, file, synced)
            }
            None => {
                let first = LogPosition(tail.head.0 + 1);
                let (active, file) = begin_segment(&disk, &allocator, first, tail.mark, 0)?;
                let synced = active.offset;
                (active, file, synced)
            }
        };
        Ok(Self {
            disk,
            options: options.clone(),
            counters: counters.clone(),
            allocator,
            sealed: tail.sealed.into(),
            active,
            file,
            synced,
            head: tail.head,
            mark: tail.mark,
            group: Vec::new(),
            group_records: 0,
            tap: Tap::default(),
        })
    }

    /// Writes queued records until the log ends.
    pub fn run(mut self, queue: &Queue, events: &LogEvents) {
        // A tap belongs to the thread that creates it.
        self.tap = Tap::new(self.options.meter.as_ref());
        loop {
            let (appends, mark, end) = {
                let mut waiting = queue.lock();
                while waiting.appends.is_empty() && waiting.mark.is_none() && waiting.end.is_none()
                {
                    waiting = queue.work.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                }
                waiting.bytes = 0;
                queue.room.notify_all();
                let appends = std::mem::take(&mut waiting.appends);
                (appends, waiting.mark.take(), waiting.end)
            };
            if end == Some(End::Abandon) {
                return;
            }
            if let Err(error) = self.write(appends, mark, events) {
                queue.end(End::Abandon);
                events(LogEvent::Failed(error));
                return;
            }
            if end.is_some() && queue.lock().appends.is_empty() {
                return;
            }
        }
    }

    /// Writes records and a mark, and reports records as they become durable.
    fn write(
        &mut self,
        appends: Vec<Append>,
        mark: Option<Mark>,
        events: &LogEvents,
    ) -> Result<(), LogError> {
        for append in appends {
            assert_eq!(append.position.0, self.head.0 + 1, "records arrive in order");
            self.make_room(&append.record, events)?;
            let at = (append.position, self.synced);
            let salt = self.active.header.salt;
            encode_record(at, salt, &append.record, PAYLOAD_LEN_MAX, &mut self.group);
            self.head = append.position;
            self.group_records += 1;
            if self.group.len() >= GROUP_BYTES_MAX {
                self.flush(events)?;
            }
        }
        if let Some(mark) = mark {
            let payload = [mark.encode()];
            self.make_room(&payload, events)?;
            let header = FrameHeader { kind: Kind::Mark, position: self.head, synced: self.synced };
            header.encode(self.active.header.salt, &payload, &mut self.group);
        }
        self.flush(events)?;
        if let Some(mark) = mark {
            // The segments may be removed only now that the mark is durable.
            self.mark = mark;
            self.retire(mark);
        }
        Ok(())
    }

    /// Begins the next segment if a record or a mark does not fit this one. A record is always in
    /// one segment, however long it is.
    fn make_room(&mut self, payload: &[Bytes], events: &LogEvents) -> Result<(), LogError> {
        let payload_len: usize = payload.iter().map(Bytes::len).sum();
        let needed = (encoded_len(payload_len, PAYLOAD_LEN_MAX) + END.len()) as u64;
        if self.active.offset + self.group.len() as u64 + needed <= self.active.len {
            return Ok(());
        }
        self.flush(events)?;
        // A segment is synced before the next is written to, whatever the durability, so that only
        // the last segment of a log can be torn.
        self.file.sync().map_err(DiskError::new("sync", &self.active.path))?;
        let first = LogPosition(self.head.0 + 1);
        let next = begin_segment(&self.disk, &self.allocator, first, self.mark, needed)?;
        let Active { path, len, .. } = std::mem::replace(&mut self.active, next.0);
        self.file = next.1;
        self.synced = self.active.offset;
        // A segment without records has the same name as its successor, which has replaced it.
        if self.active.path != path {
            self.sealed.push_back(Sealed { path, len, end: first });
        }
        Ok(())
    }

    fn on_synced(&self, took: Duration) {
        if let Some(meter) = &self.options.meter {
            meter.fsync(took);
        }
    }

    /// Writes the group, syncs it, and reports its last record as durable.
    fn flush(&mut self, events: &LogEvents) -> Result<(), LogError> {
        if self.group.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let len = self.group.len() as u64;
        self.group.extend_from_slice(&END);
        let write = self.file.write_at(&self.group, self.active.offset);
        write.map_err(DiskError::new("write", &self.active.path))?;
        self.active.offset += len;
        if self.options.durability == Durability::Fsync {
            let synced = Instant::now();
            self.file.sync().map_err(DiskError::new("sync", &self.active.path))?;
            self.synced = self.active.offset;
            self.on_synced(synced.elapsed());
        }
        self.counters.add(self.group_records, len, started.elapsed().as_micros() as u64);
        self.group.clear();
        self.group.shrink_to(2 * GROUP_BYTES_MAX);
        self.group_records = 0;
        events(LogEvent::Durable(self.head));
        self.tap.did("log_write", 1, len as usize);
        Ok(())
    }

    /// Retires the segments that contain only records below the mark.
    fn retire(&mut self, mark: Mark) {
        let mut retired = Vec::new();
        while let Some(segment) = self.sealed.pop_front_if(|segment| segment.end <= mark.below) {
            retired.push(segment);
        }
        if !retired.is_empty() {
            self.allocator.retire(retired);
        }
    }
}

fn open_error(path: &Path) -> impl FnOnce(std::io::Error) -> DiskError {
    DiskError::new("open", path)
}

/// Turns a spare into the segment that begins with record `first` and has room for `needed` bytes.
fn begin_segment(
    disk: &Arc<dyn Disk>,
    allocator: &SegmentAllocator,
    first: LogPosition,
    mark: Mark,
    needed: u64,
) -> Result<(Active, Box<dyn DiskFile>), DiskError> {
    let header = SegmentHeader { salt: random::seed(), first };
    let mut bytes = header.encode();
    // Each segment begins with the mark, so that the newest mark is never in a segment that it
    // discards.
    let frame = FrameHeader {
        kind: Kind::Mark,
        position: LogPosition(first.0 - 1),
        synced: SEGMENT_HEADER_LEN as u64,
    };
    frame.encode(header.salt, &[mark.encode()], &mut bytes);
    let offset = bytes.len() as u64;
    bytes.extend_from_slice(&END);
    let mut spare = allocator.take(bytes.len() as u64 + needed)?;
    spare.file.write_at(&bytes, 0).map_err(DiskError::new("write", &spare.path))?;
    spare.file.sync().map_err(DiskError::new("sync", &spare.path))?;
    let dir = allocator.dir();
    let path = dir.join(segment_name(first));
    disk.rename(&spare.path, &path).map_err(DiskError::new("rename", &spare.path))?;
    disk.sync_dir(dir).map_err(DiskError::new("sync directory", dir))?;
    Ok((Active { path, header, len: spare.len, offset }, spare.file))
}
