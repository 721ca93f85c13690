//! Writing of checkpoints concurrently with execution.

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
use crate::panics::caught;
use crate::write_throttle::{PIECE_BYTES, rest_after};

/// The `nice` value of the thread that writes checkpoints. Reading an entire store takes seconds of
/// CPU time. If cores are short, threads that serve requests would wait for it. At 5 the thread
/// gets a quarter of a core that it shares with one of them, so a checkpoint, and its pin, still
/// ends soon.
#[cfg(target_os = "linux")]
const NICE: i32 = 5;

/// The name of the thread.
const THREAD: &str = "checkpoint";

/// A checkpointer's report, sent from its own thread.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointEvent {
    /// The checkpoint of this version, and therefore every earlier requested one, is durable.
    Written(SnapshotVersion),
    /// The checkpoint of this version was not written, most likely for lack of disk space, and its
    /// pin was dropped. The log retains the records until another checkpoint is written.
    Failed {
        /// The version of the checkpoint.
        version: SnapshotVersion,
        /// The reason, for the operator.
        reason: String,
    },
    /// The thread has panicked: no more checkpoints are written.
    Panicked(String),
}

/// Receives a checkpointer's reports.
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
    /// The newest request that is not being written.
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
    /// When the operating system can't create the thread.
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

    /// Requests a checkpoint of the pinned version. It replaces a request that is still waiting.
    pub fn request(&self, pin: Pin, meta: Bytes) {
        self.shared.lock().next = Some(Request { pin, meta });
        self.shared.changed.notify_all();
    }
}

impl Drop for Checkpointer {
    /// Abandons the checkpoint being written, and ends the thread.
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Panics are caught inside the thread.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, disk: &Arc<dyn Disk>, dir: &Path, protocol: &str, events: &CheckpointEvents) {
        // On Linux the priority is set for the calling thread only. A failure costs only time.
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
            // The pin is dropped before another checkpoint is requested.
            pin.end();
            let failed = |reason| CheckpointEvent::Failed { version, reason };
            events(match written {
                Ok(Some(_)) => CheckpointEvent::Written(version),
                Ok(None) => failed("the snapshot of the checkpoint was discarded".to_owned()),
                Err(error) => failed(error.what()),
            });
            state = self.lock();
        }
    }
}

/// Writes the checkpoint of the pinned version, and removes checkpoints that are too old. Returns
/// the number of rows, or `None` if `is_stopping` returned true or the store was cleared in the
/// meantime.
///
/// # Errors
/// When a file operation fails. Earlier checkpoints are then unchanged.
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
        // Frees the disk space. The first error is the one that is returned.
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

/// A file that is written sequentially, and synced as it grows.
struct Output<'a> {
    path: &'a Path,
    file: Box<dyn DiskFile>,
    waiting: Vec<u8>,
    offset: u64,
}

impl Output<'_> {
    /// Makes the buffered bytes durable, and then leaves the disk to other writers for a while.
    fn write(&mut self) -> Result<(), DiskError> {
        let began = Instant::now();
        let write = self.file.write_at(&self.waiting, self.offset);
        write.map_err(DiskError::new("write", self.path))?;
        self.offset += self.waiting.len() as u64;
        self.waiting.clear();
        self.file.sync().map_err(DiskError::new("sync", self.path))?;
        // The thread has no other work and holds no lock. Stopping it waits for at most one pause.
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
    // A replica that installed a peer's checkpoint in the meantime has cleared the version being
    // read.
    Ok((!pin.is_lost()).then_some(rows))
}
