//! Writing a checkpoint while the node goes on.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use pangea_core::ids::SnapshotVersion;
use pangea_core::key::KeyRange;
use pangea_core::log::{CheckpointHeader, Encoder};
use pangea_core::store::Pin;

use super::{KEPT, TEMP_NAME, file_name, versions};
use crate::disk::{Disk, DiskError, DiskFile};
use crate::log::remove_if_there;
use crate::pace::{PIECE_BYTES, rest_after};
use crate::panics::caught;

/// How far behind the node's other threads the one that writes checkpoints stands, as `nice` counts
/// it. Reading all of a store takes seconds of a core. Where cores are short, as many threads that
/// answer somebody would wait for it; at 5 it has a quarter of a core that it shares with one of
/// them, so that a checkpoint, and what it pins, ends soon all the same.
#[cfg(target_os = "linux")]
const NICE: i32 = 5;

/// The name of the thread.
const THREAD: &str = "checkpoint";

/// What a checkpointer reports, from its own thread.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointEvent {
    /// The checkpoint of this version, and so of every earlier one that was asked for, is durable.
    Written(SnapshotVersion),
    /// That of this version was not written, for want of room most likely, and nothing is kept for
    /// it any more. The log has what it would have held, until another one is written.
    Failed {
        /// Which.
        version: SnapshotVersion,
        /// Why, in words.
        reason: String,
    },
    /// The thread is gone: nothing that is asked for is written.
    Panicked(String),
}

/// Takes a checkpointer's reports.
pub type CheckpointEvents = Arc<dyn Fn(CheckpointEvent) + Send + Sync>;

/// The thread that writes checkpoints, one at a time.
#[derive(Debug)]
pub struct Checkpointer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The newest that was asked for and is not being written.
    next: Option<Request>,
    is_stopping: bool,
}

#[derive(Debug)]
struct Request {
    pin: Pin,
    meta: Bytes,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Checkpointer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn start(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        protocol: &'static str,
        events: CheckpointEvents,
    ) -> Result<Self, DiskError> {
        let state = Mutex::new(State { next: None, is_stopping: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let error = DiskError::new("start a thread for", &dir);
        let run = {
            let shared = shared.clone();
            let run = move |events: &CheckpointEvents| shared.run(&disk, &dir, protocol, events);
            move || {
                let panicked = |reason| events(CheckpointEvent::Panicked(reason));
                caught(THREAD, || run(&events), panicked);
            }
        };
        let builder = std::thread::Builder::new().name(THREAD.to_owned());
        let thread = builder.spawn(run).map_err(error)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Asks for a checkpoint of what is pinned. One that still waits for its turn is given up for
    /// it.
    pub fn request(&self, pin: Pin, meta: Bytes) {
        self.shared.lock().next = Some(Request { pin, meta });
        self.shared.changed.notify_all();
    }
}

impl Drop for Checkpointer {
    /// Gives up what is being written, and ends.
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Panics are caught where they happen.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, disk: &Arc<dyn Disk>, dir: &Path, protocol: &str, events: &CheckpointEvents) {
        // On Linux that is the thread's own. Where it is not to be had, nothing is lost but time.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, NICE);
        let mut state = self.lock();
        while !state.is_stopping {
            let Some(Request { pin, meta }) = state.next.take() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let is_stopping = || self.lock().is_stopping;
            let written = write(disk, dir, protocol, &pin, &meta, &is_stopping);
            if is_stopping() {
                return;
            }
            let version = pin.version();
            // What was kept for it goes before another is asked for.
            pin.end();
            let failed = |reason| CheckpointEvent::Failed { version, reason };
            events(match written {
                Ok(Some(_)) => CheckpointEvent::Written(version),
                Ok(None) => failed("what it was to hold is gone".to_owned()),
                Err(error) => failed(error.what()),
            });
            state = self.lock();
        }
    }
}

/// Writes the checkpoint of what is pinned, and removes those that are too old. Returns how many
/// rows it has, or nothing when `is_stopping` said so or the store was cleared on the way.
///
/// # Errors
/// When a file operation fails. The earlier checkpoints are then as they were.
pub fn write(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    protocol: &str,
    pin: &Pin,
    meta: &Bytes,
    is_stopping: &dyn Fn() -> bool,
) -> Result<Option<u64>, DiskError> {
    disk.create_dir(dir).map_err(DiskError::new("make directory", dir))?;
    let temp = dir.join(TEMP_NAME);
    let result = write_rows(disk, &temp, protocol, pin, meta, is_stopping);
    let Ok(Some(rows)) = result else {
        // Gives the room back; the error that counts is the first.
        let _ = remove_if_there(disk.as_ref(), &temp);
        return result;
    };
    let path = dir.join(file_name(pin.version()));
    disk.rename(&temp, &path).map_err(DiskError::new("rename", &temp))?;
    disk.sync_dir(dir).map_err(DiskError::new("sync directory", dir))?;
    for version in versions(disk.as_ref(), dir)?.into_iter().skip(KEPT) {
        remove_if_there(disk.as_ref(), &dir.join(file_name(version)))?;
    }
    disk.sync_dir(dir).map_err(DiskError::new("sync directory", dir))?;
    Ok(Some(rows))
}

/// A file that is written from the front, and synced as it grows.
struct Output<'a> {
    path: &'a Path,
    file: Box<dyn DiskFile>,
    waiting: Vec<u8>,
    offset: u64,
}

impl Output<'_> {
    /// Makes what waits durable, and leaves the disk to others for a while.
    fn write(&mut self) -> Result<(), DiskError> {
        let began = Instant::now();
        let write = self.file.write_at(&self.waiting, self.offset);
        write.map_err(DiskError::new("write", self.path))?;
        self.offset += self.waiting.len() as u64;
        self.waiting.clear();
        self.file.sync().map_err(DiskError::new("sync", self.path))?;
        // The thread has nothing else to do and holds no lock; who stops it waits for one rest.
        std::thread::sleep(rest_after(began.elapsed()));
        Ok(())
    }
}

fn write_rows(
    disk: &Arc<dyn Disk>,
    path: &Path,
    protocol: &str,
    pin: &Pin,
    meta: &Bytes,
    is_stopping: &dyn Fn() -> bool,
) -> Result<Option<u64>, DiskError> {
    let (protocol, meta) = (protocol.to_owned(), meta.clone());
    let header = CheckpointHeader { version: pin.version(), protocol, meta };
    let file = disk.create(path).map_err(DiskError::new("make", path))?;
    let mut output = Output { path, file, waiting: Vec::new(), offset: 0 };
    let mut encoder = Encoder::new(&header, &mut output.waiting);
    for table in pin.store().table_ids() {
        let mut result = Ok(());
        pin.store().scan_passing(table, &KeyRange::all(), pin.version(), |key, version| {
            encoder.push(table, key, version, &mut output.waiting);
            if output.waiting.len() < PIECE_BYTES {
                return ControlFlow::Continue(());
            }
            result = output.write();
            if result.is_err() || is_stopping() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        result?;
        if is_stopping() {
            return Ok(None);
        }
    }
    let rows = encoder.finish(&mut output.waiting);
    output.write()?;
    // A replica that took a peer's checkpoint meanwhile has cleared what was being read.
    Ok((!pin.is_lost()).then_some(rows))
}
