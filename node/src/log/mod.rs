//! The write-ahead log. A replica makes everything that it acknowledges durable here first.
//!
//! [`pangea_core::log`] defines the encoding; this module contains the files and the threads.
//!
//! ```text
//!   driver --append--> waiting --all that waits--> writer --write, sync--> log-000..0100.seg
//!                                                    |  `--Durable(position)--> driver
//!                                                    |
//!                        allocator <-next, retired---'
//!                           `--> spare-0.seg: filled with zeros (or recycled) ahead of need
//! ```
//!
//! - **Group commit**: while one group is written and synced, records gather for the next. The
//!   number of syncs therefore depends on the disk's speed and not on the load.
//! - **Segments** are preallocated by the allocator, because a sync of a file that does not grow
//!   has no metadata to write and is many times faster. A new log begins with a small segment, and
//!   segment lengths double from there, so that the first start is quick. A truncated segment
//!   becomes a spare, up to a limit.
//! - **Failure**: the first error of a write or a sync, or a panic there, ends the log. After a
//!   failed sync the state of the disk is unknown: the operating system may drop the pages and
//!   report success the next time. Therefore nothing is retried. [`LogEvent::Failed`] is reported,
//!   no later position ever becomes durable, and a restart reads what is really on disk.
//! - **Recovery** is in [`recovery`]; it leaves a log that ends with zeros.
//!
//! `durability = os` omits the sync of each group: acknowledged writes survive a crash of the
//! process, but not of the machine. `durability = memory` writes nothing at all.

#[cfg(test)]
mod fuzz;
pub mod recovery;
mod segment_allocator;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, SnapshotVersion};
use pangea_core::log::{Mark, SegmentError};
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskError};
use crate::meter::Meter;
use crate::panics::caught;
pub use recovery::{Cut, Recovered};

/// The maximum size of the records that wait for the disk. Above it the driver blocks, so that a
/// slow disk slows the node down instead of filling its memory. A single record may be longer: it
/// is accepted if no more than this waits before it.
const WAITING_BYTES_MAX: usize = 128 << 20;

/// The name of the writer's thread.
const WRITER: &str = "log-writer";

/// The failures that a record must survive before it counts as durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A power failure: the record is written and synced.
    #[default]
    Fsync,
    /// A crash of the process: the record has been handed to the operating system.
    Os,
    /// None. Only for measurements: a node that stops loses its copy of the data.
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

/// The location and settings of a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The directory of the segments. It is created if it does not exist.
    pub dir: PathBuf,
    /// The condition under which a record counts as durable.
    pub durability: Durability,
    /// The full length of a segment; the first segments of a new log are shorter.
    pub segment_bytes: u64,
    /// Meter that records the cost of writes, if metering is on.
    pub meter: Option<Arc<Meter>>,
}

/// A log's report, sent from its own thread.
#[derive(Clone, Debug, PartialEq)]
pub enum LogEvent {
    /// Every record up to this position is durable.
    Durable(LogPosition),
    /// The log has failed: no further record becomes durable.
    Failed(LogError),
}

/// Receives a log's reports. Must not block, because the next group waits for it.
pub type LogEvents = Arc<dyn Fn(LogEvent) + Send + Sync>;

/// An error of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// A file operation failed.
    Disk(DiskError),
    /// A segment is invalid.
    Segment {
        /// The file.
        path: PathBuf,
        /// The error.
        error: SegmentError,
    },
    /// A segment's name does not match the first record in its header.
    Misnamed {
        /// The file.
        path: PathBuf,
        /// The first record according to the file's header.
        first: LogPosition,
    },
    /// Records that are still needed are missing from all segments.
    Missing {
        /// The directory.
        dir: PathBuf,
        /// The first missing record.
        from: LogPosition,
        /// The first record after the gap.
        to: LogPosition,
    },
    /// The log has no record, but there is a checkpoint, which is written after records.
    Gone {
        /// The directory.
        dir: PathBuf,
        /// The checkpoint's version.
        checkpoint: SnapshotVersion,
    },
    /// A thread of the log has panicked: which one, and the message.
    Panicked(String),
}

impl From<DiskError> for LogError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

impl LogError {
    /// Whether data that was once complete is damaged.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Disk(_) | Self::Panicked(_) => false,
            Self::Misnamed { .. } | Self::Missing { .. } | Self::Gone { .. } => true,
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
                write!(
                    f,
                    "log {}: the name of the file does not match its first record {}",
                    path.display(),
                    first.0
                )
            }
            Self::Missing { dir, from, to } => {
                let last = to.0 - 1;
                write!(f, "log {}: records {} to {last} are missing", dir.display(), from.0)
            }
            Self::Gone { dir, checkpoint } => write!(
                f,
                "log {}: no records, but there is a checkpoint of snapshot version {}, which was \
                 written after records: the log is missing, and with it all later transactions",
                dir.display(),
                checkpoint.0
            ),
            Self::Panicked(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for LogError {}

/// A record to be appended.
#[derive(Clone, Debug)]
pub struct Append {
    /// The record's position.
    pub position: LogPosition,
    /// The record's bytes, in parts.
    pub record: Vec<Bytes>,
}

/// Counters of the log's work so far.
#[derive(Debug, Default)]
pub struct LogCounters {
    /// Records written.
    pub records: AtomicU64,
    /// Bytes written, including frame headers.
    pub bytes: AtomicU64,
    /// Groups written: each was one write and, with `durability = fsync`, one sync.
    pub groups: AtomicU64,
    /// Microseconds spent on writes and syncs.
    pub busy_us: AtomicU64,
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    queue: Arc<Queue>,
    counters: Arc<LogCounters>,
    writer: Option<JoinHandle<()>>,
    /// With `durability = memory` there is no writer, and the caller's thread reports.
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

/// The input that waits for the writer.
#[derive(Debug, Default)]
struct Waiting {
    appends: Vec<Append>,
    bytes: usize,
    mark: Option<Mark>,
    end: Option<End>,
}

/// The way in which a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The waiting records are written first.
    Stop,
    /// The waiting records are dropped, as after a kill of the process or a disk failure.
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
        // An abandoned log remains abandoned.
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
    /// Recovers the log in a directory, and opens it for appends.
    ///
    /// # Errors
    /// When the log can't be read or is invalid, or its next segment can't be created.
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

    /// Queues records, in order. Each is reported when it is durable. Blocks only while too many
    /// bytes wait for the disk.
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
            // The log has failed and reported it: later records never become durable.
            appends.clear();
            return;
        }
        waiting.bytes += appends.iter().map(len).sum::<usize>();
        waiting.appends.append(appends);
        self.queue.work.notify_one();
    }

    /// Discards the records below a position. Whole segments are removed once the mark itself is
    /// durable.
    pub fn truncate(&self, mark: Mark) {
        self.queue.lock().mark = Some(mark);
        self.queue.work.notify_one();
    }

    /// Counters of the log's work so far.
    pub fn counters(&self) -> &LogCounters {
        &self.counters
    }

    /// Writes the waiting records, and ends the log: no thread and no open file remains.
    pub fn stop(mut self) {
        self.end(End::Stop);
    }

    fn end(&mut self, end: End) {
        self.queue.end(end);
        if let Some(writer) = self.writer.take() {
            // Panics are caught inside the thread.
            let _ = writer.join();
        }
    }
}

impl Drop for Log {
    /// Ends the log like a crash: waiting records are not written.
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

/// The name of the segment whose first record is `first`.
fn segment_name(first: LogPosition) -> String {
    format!("log-{:020}.seg", first.0)
}

/// The first record of the segment with this name, or `None` for other names.
fn segment_first(name: &str) -> Option<LogPosition> {
    let digits = name.strip_prefix("log-")?.strip_suffix(".seg")?;
    (digits.len() == 20).then(|| digits.parse().ok().map(LogPosition))?
}

/// The number of the spare segment with this name, or `None` for other names.
fn spare_number(name: &str) -> Option<u64> {
    name.strip_prefix("spare-")?.strip_suffix(".seg")?.parse().ok()
}

/// Removes a file, if it exists.
pub(crate) fn remove_if_there(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    match disk.remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DiskError::new("remove", path)(error))
        }
        _ => Ok(()),
    }
}
