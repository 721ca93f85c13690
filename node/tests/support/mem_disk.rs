//! An in-memory disk that forgets, fills up and fails on demand.
//!
//! Each file has its written and its synced contents; the directory has its names and its synced
//! names. A [crash](MemDisk::crash) retains the old or the new contents of each 512-byte sector
//! that was written and not synced, as a generator decides.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pangea_node::disk::{Disk, DiskFile};

const SECTOR_LEN: usize = 512;

#[derive(Clone, Debug, Default)]
pub struct MemDisk {
    inner: Arc<(Mutex<Inner>, Condvar)>,
}

#[derive(Debug, Default)]
struct Inner {
    files: Vec<File>,
    names: BTreeMap<PathBuf, usize>,
    synced_names: BTreeMap<PathBuf, usize>,
    /// The number of bytes by which files may still grow, if limited.
    room: Option<u64>,
    /// Whether syncs fail.
    fails_sync: bool,
    /// Whether syncs of data block.
    holds_sync: bool,
    /// The name of a thread that panics at its next write.
    panics: Option<&'static str>,
    /// Whether writing checkpoints fails.
    fails_checkpoints: bool,
    syncs: u64,
    /// The number of crashes. Handles opened before the last one have no effect.
    life: u64,
}

#[derive(Clone, Debug, Default)]
struct File {
    written: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Debug)]
struct Handle {
    disk: MemDisk,
    file: usize,
    life: u64,
}

/// Blocks syncs until it is dropped.
pub struct HeldSync(MemDisk);

impl Drop for HeldSync {
    fn drop(&mut self) {
        self.0.lock().holds_sync = false;
        self.0.inner.1.notify_all();
    }
}

fn full() -> io::Error {
    io::Error::from_raw_os_error(28)
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl MemDisk {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.0.lock().unwrap()
    }

    /// Limits the further growth of files.
    pub fn set_room(&self, room: Option<u64>) {
        self.lock().room = room;
    }

    pub fn set_fails_sync(&self, fails: bool) {
        self.lock().fails_sync = fails;
    }

    /// Makes the writing of checkpoints fail, as if the disk were full.
    pub fn set_fails_checkpoints(&self, fails: bool) {
        self.lock().fails_checkpoints = fails;
    }

    /// Makes a thread panic at its next write.
    pub fn set_panics(&self, thread: &'static str) {
        self.lock().panics = Some(thread);
    }

    /// Blocks syncs until the result is dropped, also if the test fails.
    #[must_use]
    pub fn hold_sync(&self) -> HeldSync {
        self.lock().holds_sync = true;
        HeldSync(self.clone())
    }

    /// The number of syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Simulates a power loss: unsynced writes may be lost, sector by sector.
    pub fn crash(&self, rng: &mut fastrand::Rng) {
        let mut inner = self.lock();
        inner.life += 1;
        if rng.bool() {
            inner.names = inner.synced_names.clone();
        } else {
            inner.synced_names = inner.names.clone();
        }
        for file in &mut inner.files {
            let len = if rng.bool() { file.synced.len() } else { file.written.len() };
            let mut kept = vec![0; len];
            for (sector, kept) in kept.chunks_mut(SECTOR_LEN).enumerate() {
                let source = if rng.bool() { &file.synced } else { &file.written };
                let source = source.get(sector * SECTOR_LEN..).unwrap_or(&[]);
                let len = source.len().min(kept.len());
                kept[..len].copy_from_slice(&source[..len]);
            }
            *file = File { written: kept.clone(), synced: kept };
        }
    }

    /// Changes a file's contents directly, to simulate damage.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut inner = self.lock();
        let file = inner.names[path];
        change(&mut inner.files[file].written);
        inner.files[file].synced = inner.files[file].written.clone();
    }

    /// The paths of all files, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.lock().names.keys().cloned().collect()
    }

    fn handle(&self, inner: &Inner, file: usize) -> Box<dyn DiskFile> {
        Box::new(Handle { disk: self.clone(), file, life: inner.life })
    }
}

impl Disk for MemDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let inner = self.lock();
        let here = inner.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(here.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let inner = self.lock();
        let file = *inner.names.get(path).ok_or_else(not_found)?;
        Ok(inner.files[file].written.clone())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.lock();
        if inner.fails_checkpoints && path.starts_with("/data/checkpoints") {
            return Err(full());
        }
        inner.files.push(File::default());
        let file = inner.files.len() - 1;
        inner.names.insert(path.to_owned(), file);
        Ok(self.handle(&inner, file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let inner = self.lock();
        let file = *inner.names.get(path).ok_or_else(not_found)?;
        Ok(self.handle(&inner, file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        let file = inner.names.remove(from).ok_or_else(not_found)?;
        inner.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        let file = inner.names.remove(path).ok_or_else(not_found)?;
        let len = inner.files[file].written.len() as u64;
        if let Some(room) = &mut inner.room {
            *room += len;
        }
        Ok(())
    }

    fn lock(&self, _path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        Ok(Box::new(()))
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        inner.synced_names = inner.names.clone();
        Ok(())
    }
}

impl DiskFile for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files[self.file].written.len() as u64)
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let inner = self.disk.lock();
        let rest = inner.files[self.file].written.get(offset as usize..).unwrap_or(&[]);
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let panics = self.disk.lock().panics;
        if panics.is_some() && std::thread::current().name() == panics {
            panic!("a bug in writing");
        }
        let mut inner = self.disk.lock();
        if inner.life != self.life {
            return Err(io::Error::other("the disk lost power"));
        }
        let end = offset as usize + bytes.len();
        let len = inner.files[self.file].written.len();
        let growth = end.saturating_sub(len) as u64;
        if let Some(room) = &mut inner.room {
            *room = room.checked_sub(growth).ok_or_else(full)?;
        }
        let written = &mut inner.files[self.file].written;
        written.resize(len.max(end), 0);
        written[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut inner = self.disk.lock();
        while inner.holds_sync && inner.life == self.life {
            inner = self.disk.inner.1.wait(inner).unwrap();
        }
        if inner.fails_sync || inner.life != self.life {
            return Err(io::Error::other("the disk is broken"));
        }
        inner.syncs += 1;
        let file = &mut inner.files[self.file];
        file.synced = file.written.clone();
        Ok(())
    }
}
