//! The file operations that the log and the checkpoints need, and no others.
//!
//! A trait, so that tests can put a disk under a node that fills up or fails: [`OsDisk`] is the
//! real one. Every operation that makes, renames or removes the name of a file is only durable
//! after [`Disk::sync_dir`]; every write only after [`DiskFile::sync`].

use std::fmt::{self, Debug};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file system.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Makes a directory and those above it, unless they are there, and makes that durable.
    ///
    /// # Errors
    /// The operating system's.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names in a directory, in order.
    ///
    /// # Errors
    /// The operating system's.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// All of a file.
    ///
    /// # Errors
    /// The operating system's.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Makes an empty file and opens it, also where one was there.
    ///
    /// # Errors
    /// The operating system's.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// The operating system's.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Gives a file another name, in place of a file that had it.
    ///
    /// # Errors
    /// The operating system's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a file that only one process can hold, and holds it until the result is dropped or the
    /// process ends.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;

    /// Makes durable which names are in a directory.
    ///
    /// # Errors
    /// The operating system's.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Debug + Send {
    /// How long it is.
    ///
    /// # Errors
    /// The operating system's.
    fn len(&self) -> io::Result<u64>;

    /// Whether it holds no bytes.
    ///
    /// # Errors
    /// The operating system's.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Fills the start of `buffer` with what is at `offset`, and returns how much there was.
    ///
    /// # Errors
    /// The operating system's.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The operating system's. How much was written is then not known.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes durable all that was written, and the file's length.
    ///
    /// # Errors
    /// The operating system's. What was written since the last sync may then be lost, and another
    /// sync says nothing about it.
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
        // Each is a name in the one above it.
        new.into_iter().try_for_each(|made| self.sync_dir(dir_above(made)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is not text is none of ours.
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
        // Not truncated: it may be another's.
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
        // fdatasync: it covers the length too, but no times.
        self.0.sync_data()
    }
}

/// How often the files of a node were synced.
#[derive(Debug, Default)]
pub struct Syncs(AtomicU64);

impl Syncs {
    /// How often so far: files and directories, of the log and of checkpoints.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Another disk, whose syncs are counted.
#[derive(Debug)]
pub struct CountedDisk {
    disk: Arc<dyn Disk>,
    syncs: Arc<Syncs>,
}

impl CountedDisk {
    /// Counts those of `disk` in `syncs`.
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

/// What a file operation failed at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskError {
    /// What was being done: "write", "sync".
    pub doing: &'static str,
    /// To which file or directory.
    pub path: PathBuf,
    /// The kind of the operating system's error.
    pub kind: io::ErrorKind,
    /// The operating system's words.
    pub message: String,
}

impl DiskError {
    /// For `map_err`: what was being done, and to what.
    pub fn new(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| Self { doing, path, kind: error.kind(), message: error.to_string() }
    }

    /// What happened, and not what to do.
    pub fn what(&self) -> String {
        format!("can't {} {}: {}", self.doing, self.path.display(), self.message)
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        if self.kind == io::ErrorKind::StorageFull {
            f.write_str(". The disk is full: make room and start the node again")?;
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
