//! Preallocation of segments, and removal of old ones.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::recovery::Sealed;
use super::{remove_if_there, spare_number};
use crate::disk::{Disk, DiskError, DiskFile};
use crate::panics::caught;
use crate::write_throttle::{PIECE_BYTES, rest_after};

/// The name of the thread.
const PREPARER: &str = "log-preparer";

/// The length of a new log's first segment. It is filled in milliseconds, so that a first start is
/// quick.
const FIRST_SEGMENT_BYTES: u64 = 4 << 20;

/// The maximum number of spares: the number of segments between checkpoints at the default
/// interval. Reusing a segment saves filling it with zeros, which costs the disk as much as writing
/// the records themselves.
const SPARES_MAX: usize = 8;

/// A preallocated segment.
#[derive(Debug)]
pub(super) struct Spare {
    pub path: PathBuf,
    pub len: u64,
    pub file: Box<dyn DiskFile>,
}

/// The thread that keeps a spare available.
#[derive(Debug)]
pub(super) struct SegmentAllocator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    spares: VecDeque<Spare>,
    /// The error of the last attempt to create a spare.
    failure: Option<DiskError>,
    /// The length of the next spare.
    len: u64,
    /// The minimum length of the next spare, used if the disk is almost full.
    len_min: u64,
    retired: Vec<Sealed>,
    /// The log is waiting for a spare.
    is_wanted: bool,
    /// The number in the next spare's name.
    next_name: u64,
    is_stopping: bool,
    /// The panic message, if the thread has panicked.
    panicked: Option<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl SegmentAllocator {
    /// Starts the thread. Spares left by an earlier process are reused.
    pub fn start(
        disk: Arc<dyn Disk>,
        dir: &Path,
        segment_bytes: u64,
        is_new_log: bool,
    ) -> Result<Self, DiskError> {
        let first = if is_new_log { FIRST_SEGMENT_BYTES } else { segment_bytes };
        let mut state = State {
            spares: VecDeque::new(),
            failure: None,
            len: first.min(segment_bytes),
            len_min: FIRST_SEGMENT_BYTES.min(segment_bytes),
            retired: Vec::new(),
            is_wanted: false,
            next_name: 0,
            is_stopping: false,
            panicked: None,
        };
        find_spares(disk.as_ref(), dir, &mut state)?;
        let shared = Arc::new(Shared {
            disk,
            dir: dir.to_owned(),
            segment_bytes,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let run = {
            let shared = shared.clone();
            move || caught(PREPARER, || shared.run(), |reason| shared.panicked(reason))
        };
        let builder = std::thread::Builder::new().name(PREPARER.to_owned());
        let thread = builder.spawn(run).map_err(DiskError::new("start a thread for", dir))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the next segment, of at least `len_min` bytes. Waits until it has been created.
    pub fn take(&self, len_min: u64) -> Result<Spare, DiskError> {
        let mut state = self.shared.lock();
        // An earlier failure may have been temporary, such as a full disk.
        state.failure = None;
        state.len_min = state.len_min.max(len_min);
        state.len = state.len.max(len_min);
        self.shared.changed.notify_all();
        let spare = loop {
            if let Some(reason) = &state.panicked {
                let reason = io::Error::other(reason.clone());
                return Err(DiskError::new("make a segment in", &self.shared.dir)(reason));
            }
            while let Some(spare) = state.spares.pop_front_if(|spare| spare.len < len_min) {
                remove_if_there(self.shared.disk.as_ref(), &spare.path)?;
            }
            if let Some(spare) = state.spares.pop_front() {
                break spare;
            }
            if let Some(failure) = state.failure.take() {
                state.is_wanted = false;
                return Err(failure);
            }
            state.is_wanted = true;
            self.shared.changed.notify_all();
            state = self.shared.wait(state);
        };
        state.is_wanted = false;
        state.len_min = FIRST_SEGMENT_BYTES.min(self.shared.segment_bytes);
        state.len =
            (spare.len * 2).clamp(state.len_min, self.shared.segment_bytes.max(state.len_min));
        self.shared.changed.notify_all();
        Ok(spare)
    }

    /// The log's directory.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Removes segments that are no longer needed, oldest first.
    pub fn retire(&self, segments: impl IntoIterator<Item = Sealed>) {
        self.shared.lock().retired.extend(segments);
        self.shared.changed.notify_all();
    }
}

impl Drop for SegmentAllocator {
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Panics are caught inside the thread.
            let _ = thread.join();
        }
    }
}

/// Opens the spares that an earlier process left, and removes its incomplete ones.
fn find_spares(disk: &dyn Disk, dir: &Path, state: &mut State) -> Result<(), DiskError> {
    for name in disk.list(dir).map_err(DiskError::new("list", dir))? {
        let path = dir.join(&name);
        if name.ends_with(".tmp") {
            remove_if_there(disk, &path)?;
        } else if let Some(number) = spare_number(&name) {
            state.next_name = state.next_name.max(number);
            if state.spares.len() < SPARES_MAX {
                let file = disk.open(&path).map_err(DiskError::new("open", &path))?;
                let len = file.len().map_err(DiskError::new("look at", &path))?;
                state.spares.push_back(Spare { path, len, file });
            } else {
                remove_if_there(disk, &path)?;
            }
        }
    }
    Ok(())
}

impl Shared {
    /// The thread has panicked: wakes all threads that wait for it.
    fn panicked(&self, reason: String) {
        self.lock().panicked = Some(reason);
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            let retired = std::mem::take(&mut state.retired);
            if !retired.is_empty() {
                drop(state);
                if let Err(error) = self.take_away(&retired) {
                    // The log continues. A segment that remains is removed after the next start.
                    tracing::warn!(
                        "an old log segment can't be removed and uses disk space: {error}"
                    );
                }
                state = self.lock();
            } else if state.is_stopping {
                return;
            } else if state.spares.is_empty() && state.failure.is_none() {
                let (number, len, len_min) = (next_number(&mut state), state.len, state.len_min);
                drop(state);
                // If a whole segment does not fit, a shorter one still has room for many records.
                let made = self.fill(number, len).or_else(|error| match len_min < len {
                    true => self.fill(number, len_min),
                    false => Err(error),
                });
                state = self.lock();
                match made {
                    Ok(spare) => state.spares.push_back(spare),
                    Err(error) => state.failure = Some(error),
                }
            } else {
                state = self.wait(state);
                continue;
            }
            self.changed.notify_all();
        }
    }

    /// Creates a file of zeros that are synced to disk. If the log is waiting for it, the file is
    /// written at once; otherwise in pieces, with pauses that leave the disk to the log.
    fn fill(&self, number: u64, len: u64) -> Result<Spare, DiskError> {
        let path = self.dir.join(format!("spare-{number}.tmp"));
        let result = self.try_fill(&path, len);
        if result.is_err() {
            // Frees the disk space. The first error is the one that is returned.
            let _ = remove_if_there(self.disk.as_ref(), &path);
        }
        let file = result?;
        let path = self.rename_to_spare(&path, number)?;
        self.disk.sync_dir(&self.dir).map_err(DiskError::new("sync directory", &self.dir))?;
        Ok(Spare { path, len, file })
    }

    fn try_fill(&self, path: &Path, len: u64) -> Result<Box<dyn DiskFile>, DiskError> {
        let mut file = self.disk.create(path).map_err(DiskError::new("make", path))?;
        let zeros = vec![0; PIECE_BYTES];
        let mut offset = 0;
        while offset < len {
            let State { is_stopping, is_wanted, .. } = *self.lock();
            if is_stopping {
                let stopped = io::Error::other("the log is stopping");
                return Err(DiskError::new("fill", path)(stopped));
            }
            let began = Instant::now();
            let chunk = &zeros[..(len - offset).min(PIECE_BYTES as u64) as usize];
            file.write_at(chunk, offset).map_err(DiskError::new("fill", path))?;
            offset += chunk.len() as u64;
            if !is_wanted && offset < len {
                file.sync().map_err(DiskError::new("sync", path))?;
                self.rest(began.elapsed());
            }
        }
        file.sync().map_err(DiskError::new("sync", path))?;
        Ok(file)
    }

    /// Pauses after a piece that took this long, unless the log is waiting for a spare.
    fn rest(&self, took: Duration) {
        let can_wait = |state: &mut State| !state.is_wanted && !state.is_stopping;
        let rest = self.changed.wait_timeout_while(self.lock(), rest_after(took), can_wait);
        drop(rest.unwrap_or_else(PoisonError::into_inner));
    }

    /// Removes segments, except those of full length that are needed as spares.
    fn take_away(&self, retired: &[Sealed]) -> Result<(), DiskError> {
        for segment in retired {
            let number = {
                let mut state = self.lock();
                let is_wanted = state.spares.len() < SPARES_MAX;
                (is_wanted && segment.len == self.segment_bytes).then(|| next_number(&mut state))
            };
            let Some(number) = number else {
                remove_if_there(self.disk.as_ref(), &segment.path)?;
                continue;
            };
            let path = self.rename_to_spare(&segment.path, number)?;
            let file = self.disk.open(&path).map_err(DiskError::new("open", &path))?;
            self.lock().spares.push_back(Spare { path, len: segment.len, file });
        }
        self.disk.sync_dir(&self.dir).map_err(DiskError::new("sync directory", &self.dir))
    }

    fn rename_to_spare(&self, from: &Path, number: u64) -> Result<PathBuf, DiskError> {
        let path = self.dir.join(format!("spare-{number}.seg"));
        self.disk.rename(from, &path).map_err(DiskError::new("rename", from))?;
        Ok(path)
    }
}

fn next_number(state: &mut State) -> u64 {
    state.next_name += 1;
    state.next_name
}
