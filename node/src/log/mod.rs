//! The write-ahead log: what a replica acknowledges, it has made durable here first.
//!
//! The bytes are [`pangea_core::log`]'s; this module has the files and the threads.
//!
//! ```text
//!   driver --append--> waiting --all that waits--> writer --write, sync--> log-000..0100.seg
//!                                                    |  `--Durable(position)--> driver
//!                                                    |
//!                        preparer <--next, retired---'
//!                           `--> spare-0.seg: filled with zeros (or recycled) ahead of need
//! ```
//!
//! - **Group commit**: while one group is written and synced, records gather for the next. So the
//!   number of syncs follows the disk's speed and never the load.
//! - **Segments** are filled in advance by the preparer: a sync of a file that does not grow has no
//!   metadata to write and is many times faster. A new log begins with a small segment and doubles
//!   from there, so that the first start is quick. A segment that is truncated away becomes a
//!   spare, of which some are kept.
//! - **Failure**: the first error of a write or a sync, or a panic there, ends the log. After a
//!   failed sync nobody knows what is on the disk (the operating system may drop the pages and
//!   report success the next time), so nothing is tried again: [`LogEvent::Failed`] is reported, no
//!   later position ever becomes durable, and a restart reads what is really there.
//! - **Recovery** is [`recovery`]'s; it leaves a log that ends with zeros.
//!
//! `durability = os` leaves out the sync of each group: what was acknowledged survives the process
//! and not the machine. `durability = memory` writes nothing at all.

#[cfg(test)]
mod fuzz;
mod preparer;
pub mod recovery;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use pangea_core::ids::LogPosition;
use pangea_core::log::{Mark, SegmentError};
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskError};
use crate::meter::Meter;
use crate::panics::caught;
pub use recovery::{Cut, Recovered};

/// How many bytes of records may wait for the disk. Beyond it the driver waits too, so that a disk
/// that can't keep up slows the node down and never fills its memory. One record may be
/// longer: it is taken while no more than that waits before it.
const WAITING_BYTES_MAX: usize = 128 << 20;

/// The name of the thread that writes.
const WRITER: &str = "log-writer";

/// What a record must have survived before it counts as durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The loss of power: written and synced.
    #[default]
    Fsync,
    /// The end of the process: handed to the operating system.
    Os,
    /// Nothing. For measurement alone: a node that stops has lost its copy.
    Memory,
}

impl Durability {
    /// The name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Os => "os",
            Self::Memory => "memory",
        }
    }
}

/// Where a log is and how it is kept.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The directory of the segments. Made when it is not there.
    pub dir: PathBuf,
    /// When a record is durable.
    pub durability: Durability,
    /// The length of a segment, once the log has grown to it.
    pub segment_bytes: u64,
    /// What is told how long writing takes, if anything is.
    pub meter: Option<Arc<Meter>>,
}

/// What a log reports, from its own thread.
#[derive(Clone, Debug, PartialEq)]
pub enum LogEvent {
    /// Every record up to this position is durable.
    Durable(LogPosition),
    /// The log has ended: nothing becomes durable any more.
    Failed(LogError),
}

/// Takes a log's reports. Must not block: the next group waits for it.
pub type LogEvents = Arc<dyn Fn(LogEvent) + Send + Sync>;

/// What is wrong with a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// A file operation failed.
    Disk(DiskError),
    /// A segment can't be believed.
    Segment {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: SegmentError,
    },
    /// A segment is named after another record than the first one in it.
    Misnamed {
        /// The file.
        path: PathBuf,
        /// The first record by the file's header.
        first: LogPosition,
    },
    /// Records that are still needed are in no segment.
    Missing {
        /// The directory.
        dir: PathBuf,
        /// The first missing record.
        from: LogPosition,
        /// The first record that is there again.
        to: LogPosition,
    },
    /// A thread of the log is gone: which, and why.
    Panicked(String),
}

impl From<DiskError> for LogError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

impl LogError {
    /// Whether something that was whole is not any more.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Disk(_) | Self::Panicked(_) => false,
            Self::Misnamed { .. } | Self::Missing { .. } => true,
            Self::Segment { error, .. } => {
                !matches!(error, SegmentError::OtherFormat { .. } | SegmentError::NewerFrame { .. })
            }
        }
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(error) => write!(f, "log: {error}"),
            Self::Segment { path, error } => write!(f, "log {}: {error}", path.display()),
            Self::Misnamed { path, first } => {
                write!(f, "log {}: the file begins with record {}", path.display(), first.0)
            }
            Self::Missing { dir, from, to } => {
                let last = to.0 - 1;
                write!(f, "log {}: records {} to {last} are missing", dir.display(), from.0)
            }
            Self::Panicked(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for LogError {}

/// One record on its way to the disk.
#[derive(Clone, Debug)]
pub struct Append {
    /// Its number.
    pub position: LogPosition,
    /// Its bytes, in parts.
    pub record: Vec<Bytes>,
}

/// What the log has done so far.
#[derive(Debug, Default)]
pub struct LogCounters {
    /// Records written.
    pub records: AtomicU64,
    /// Bytes written, frames and all.
    pub bytes: AtomicU64,
    /// Groups written: each was one write and, with `durability = fsync`, one sync.
    pub groups: AtomicU64,
    /// Microseconds spent in writing and syncing.
    pub busy_us: AtomicU64,
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    queue: Arc<Queue>,
    counters: Arc<LogCounters>,
    writer: Option<JoinHandle<()>>,
    /// With `durability = memory` there is no writer, and reports come from the caller's thread.
    memory: Option<MemoryLog>,
}

struct MemoryLog {
    events: LogEvents,
}

impl fmt::Debug for MemoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryLog")
    }
}

/// What waits for the writer.
#[derive(Debug, Default)]
struct Waiting {
    appends: Vec<Append>,
    bytes: usize,
    mark: Option<Mark>,
    end: Option<End>,
}

/// How a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// What waits is written first.
    Stop,
    /// What waits is dropped, as when the process is killed, or the disk has failed.
    Abandon,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    work: Condvar,
    room: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, end: End) {
        let mut waiting = self.lock();
        // An abandoned log stays abandoned.
        if waiting.end != Some(End::Abandon) {
            waiting.end = Some(end);
        }
        if end == End::Abandon {
            waiting.appends.clear();
            waiting.bytes = 0;
        }
        self.work.notify_all();
        self.room.notify_all();
    }
}

impl Log {
    /// Recovers the log in a directory, and opens it for more.
    ///
    /// # Errors
    /// When the log can't be read or believed, or its next segment can't be made.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: &LogOptions,
        events: LogEvents,
    ) -> Result<(Self, Recovered), LogError> {
        let queue = Arc::new(Queue::default());
        let counters = Arc::new(LogCounters::default());
        if options.durability == Durability::Memory {
            let memory = Some(MemoryLog { events });
            return Ok((Self { queue, counters, writer: None, memory }, Recovered::default()));
        }
        let (recovered, tail) = recovery::recover(&disk, &options.dir)?;
        let writer = writer::Writer::open(disk, options, tail, &counters)?;
        let thread = {
            let queue = queue.clone();
            let run = move || {
                let failed = |reason| {
                    queue.end(End::Abandon);
                    events(LogEvent::Failed(LogError::Panicked(reason)));
                };
                caught(WRITER, || writer.run(&queue, &events), failed);
            };
            let builder = std::thread::Builder::new().name(WRITER.to_owned());
            builder.spawn(run).map_err(DiskError::new("start a thread for", &options.dir))?
        };
        Ok((Self { queue, counters, writer: Some(thread), memory: None }, recovered))
    }

    /// Takes records, in order, and returns at once; each is reported when it is durable. Waits
    /// only while more than a bound waits for the disk.
    pub fn append(&self, appends: &mut Vec<Append>) {
        let Some(last) = appends.last().map(|append| append.position) else { return };
        if let Some(memory) = &self.memory {
            appends.clear();
            (memory.events)(LogEvent::Durable(last));
            return;
        }
        let len = |append: &Append| append.record.iter().map(Bytes::len).sum::<usize>();
        let mut waiting = self.queue.lock();
        while waiting.bytes > WAITING_BYTES_MAX && waiting.end.is_none() {
            waiting = self.queue.room.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        if waiting.end.is_some() {
            // The log has failed, and said so: what comes late is never durable.
            appends.clear();
            return;
        }
        waiting.bytes += appends.iter().map(len).sum::<usize>();
        waiting.appends.append(appends);
        self.queue.work.notify_one();
    }

    /// Gives up the records below a position. Whole segments go, once the mark itself is durable.
    pub fn truncate(&self, mark: Mark) {
        self.queue.lock().mark = Some(mark);
        self.queue.work.notify_one();
    }

    /// What the log has done so far.
    pub fn counters(&self) -> &LogCounters {
        &self.counters
    }

    /// Writes what waits, and ends: no thread and no open file is left.
    pub fn stop(mut self) {
        self.end(End::Stop);
    }

    fn end(&mut self, end: End) {
        self.queue.end(end);
        if let Some(writer) = self.writer.take() {
            // Panics are caught where they happen.
            let _ = writer.join();
        }
    }
}

impl Drop for Log {
    /// Ends the log as a crash would: what waits is not written.
    fn drop(&mut self) {
        self.end(End::Abandon);
    }
}

impl LogCounters {
    fn add(&self, records: u64, bytes: u64, busy_us: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.busy_us.fetch_add(busy_us, Ordering::Relaxed);
    }
}

/// The name of the segment that begins with this record.
fn segment_name(first: LogPosition) -> String {
    format!("log-{:020}.seg", first.0)
}

/// The first record of the segment with this name, if it is one.
fn segment_first(name: &str) -> Option<LogPosition> {
    let digits = name.strip_prefix("log-")?.strip_suffix(".seg")?;
    (digits.len() == 20).then(|| digits.parse().ok().map(LogPosition))?
}

/// The number of the spare segment with this name, if it is one.
fn spare_number(name: &str) -> Option<u64> {
    name.strip_prefix("spare-")?.strip_suffix(".seg")?.parse().ok()
}

/// Removes a file that may be there.
pub(crate) fn remove_if_there(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    match disk.remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DiskError::new("remove", path)(error))
        }
        _ => Ok(()),
    }
}
