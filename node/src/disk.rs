//! The file operations that the log and the checkpoints need.
//!
//! They are a trait, so that tests can run a node on a disk that fills up or fails. [`OsDisk`] is
//! the real disk. Creating, renaming or removing a file is durable only after [`Disk::sync_dir`]; a
//! write is durable only after [`DiskFile::sync`].

use std::fmt::{self, Debug};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file system.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Creates a directory and its missing ancestors durably. Does nothing if it exists.
    ///
    /// # Errors
    /// The operating system's error.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names in a directory, in order.
    ///
    /// # Errors
    /// The operating system's error.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// The contents of a file.
    ///
    /// # Errors
    /// The operating system's error.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Creates an empty file and opens it, replacing an existing one.
    ///
    /// # Errors
    /// The operating system's error.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// The operating system's error.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Renames a file, replacing any file at `to`.
    ///
    /// # Errors
    /// The operating system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a file that only one process can lock, and locks it until the result is dropped or
    /// the process ends.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when another process has the lock.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;

    /// Makes creations, renames and removals in a directory durable.
    ///
    /// # Errors
    /// The operating system's error.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Debug + Send {
    /// The file's length in bytes.
    ///
    /// # Errors
    /// The operating system's error.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// The operating system's error.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Reads from `offset` into the start of `buffer`, and returns the number of bytes read.
    ///
    /// # Errors
    /// The operating system's error.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The operating system's error. The number of bytes written is then unknown.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all writes, and the file's length, durable.
    ///
    /// # Errors
    /// The operating system's error. Writes since the last sync may then be lost, and the result of
    /// another sync says nothing about them.
    fn sync(&mut self) -> io::Result<()>;
}

fn is_missing(dir: &Path) -> bool {
    !dir.as_os_str().is_empty() && !dir.exists()
}

fn dir_above(path: &Path) -> &Path {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    above.unwrap_or(Path::new("."))
}

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

impl Disk for OsDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let new: Vec<&Path> = dir.ancestors().take_while(|it| is_missing(it)).collect();
        fs::create_dir_all(dir)?;
        // Each new directory is an entry of its parent, which must be synced.
        new.into_iter().try_for_each(|made| self.sync_dir(dir_above(made)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // The node creates only names that are valid UTF-8.
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(OsFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OsFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        // The file is not truncated, because it may be another process's.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

#[derive(Debug)]
struct OsFile(File);

impl DiskFile for OsFile {
    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        // fdatasync covers the file's length, but not its timestamps.
        self.0.sync_data()
    }
}

/// Counts the syncs of a node's files.
#[derive(Debug, Default)]
pub struct Syncs(AtomicU64);

impl Syncs {
    /// The number of syncs so far: files and directories, of the log and of checkpoints.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A wrapper around a disk that counts its syncs.
#[derive(Debug)]
pub struct CountedDisk {
    disk: Arc<dyn Disk>,
    syncs: Arc<Syncs>,
}

impl CountedDisk {
    /// Counts the syncs of `disk` in `syncs`.
    pub fn new(disk: Arc<dyn Disk>, syncs: Arc<Syncs>) -> Self {
        Self { disk, syncs }
    }

    fn counted(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(CountedFile { file, syncs: self.syncs.clone() })
    }
}

impl Disk for CountedDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.counted(self.disk.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.counted(self.disk.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.disk.lock(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.syncs.add();
        self.disk.sync_dir(dir)
    }
}

#[derive(Debug)]
struct CountedFile {
    file: Box<dyn DiskFile>,
    syncs: Arc<Syncs>,
}

impl DiskFile for CountedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.syncs.add();
        self.file.sync()
    }
}

/// A failed file operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskError {
    /// The operation: "write", "sync".
    pub doing: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The kind of the operating system's error.
    pub kind: io::ErrorKind,
    /// The operating system's error message.
    pub message: String,
}

impl DiskError {
    /// Returns a closure for `map_err`, with the operation and its file.
    pub fn new(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| Self { doing, path, kind: error.kind(), message: error.to_string() }
    }

    /// The failure, without a hint for the operator.
    pub fn what(&self) -> String {
        format!("can't {} {}: {}", self.doing, self.path.display(), self.message)
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        if self.kind == io::ErrorKind::StorageFull {
            f.write_str(". The disk is full: free some space and restart the node")?;
        }
        Ok(())
    }
}

impl std::error::Error for DiskError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sync_is_counted_once_and_nothing_else_is() {
        let (directory, syncs) = (tempfile::tempdir().unwrap(), Arc::new(Syncs::default()));
        let disk = CountedDisk::new(Arc::new(OsDisk), syncs.clone());
        let path = directory.path().join("file");
        let mut file = disk.create(&path).unwrap();
        file.write_at(b"written", 0).unwrap();
        assert_eq!(syncs.count(), 0);
        file.sync().unwrap();
        disk.sync_dir(directory.path()).unwrap();
        let mut again = disk.open(&path).unwrap();
        again.sync().unwrap();
        let mut read = [0; 16];
        assert_eq!(again.read_at(&mut read, 0).unwrap(), 7);
        assert_eq!((&read[..7], again.len().unwrap(), syncs.count()), (&b"written"[..], 7, 3));
    }
}
