//! Whose lab it is, and how all of it is removed.
//!
//! ```text
//!   /run/pangea-lab/lock           held while labs are made or cleared
//!   /run/pangea-lab/PID-N/lock     held by the lab's process for as long as it lives
//!   /run/pangea-lab/PID-N/control  its socket
//!   /run/netns/pangea-PID-N-NAME   its regions
//! ```
//!
//! The kernel lets go of a lock when the process that holds it is gone, however it went: a lab
//! whose lock can be had is one that nobody looks after. The number of a process would not tell,
//! since another process may have it by now.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LabError;
use crate::error::run;
use crate::processes;

/// Where labs say that they are there.
const HOME: &str = "/run/pangea-lab";

/// Where `ip netns` has namespaces.
const NAMESPACES: &str = "/run/netns";

/// With what the names of a lab's namespaces begin.
const PREFIX: &str = "pangea-";

/// The most labs of one process.
const LABS_MAX: u32 = 1_000;

/// The file of a namespace.
pub(crate) fn namespace_path(name: &str) -> PathBuf {
    Path::new(NAMESPACES).join(name)
}

/// The lab that a namespace is of, if it is of any.
fn lab_of(namespace: &str) -> Option<&str> {
    let rest = namespace.strip_prefix(PREFIX)?;
    let mut parts = rest.splitn(3, '-');
    let (pid, number, region) = (parts.next()?, parts.next()?, parts.next()?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let is_ours = is_number(pid) && is_number(number) && !region.is_empty();
    is_ours.then(|| &rest[..pid.len() + 1 + number.len()])
}

/// What a lab has on this machine. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Site {
    id: String,
    namespaces: Vec<String>,
    is_removed: bool,
    /// Held, never read.
    _lock: File,
}

impl Site {
    /// A place for a new lab of this process. What killed ones have left is removed.
    pub(crate) fn claim() -> Result<Self, LabError> {
        let _registry = registry()?;
        clear_locked()?;
        for number in 0..LABS_MAX {
            let id = format!("{}-{number}", std::process::id());
            let directory = Path::new(HOME).join(&id);
            match DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(cant_use(&directory, error)),
            }
            let lock = open_lock(&directory)?;
            lock.try_lock().map_err(|error| cant_use(&directory, error))?;
            return Ok(Self { id, namespaces: Vec::new(), is_removed: false, _lock: lock });
        }
        Err(LabError::Usage(format!("this process has {LABS_MAX} labs already")))
    }

    /// The lab's name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The lab's socket.
    pub(crate) fn control(&self) -> PathBuf {
        control_path(&self.id)
    }

    /// Makes a namespace for a region.
    pub(crate) fn add_namespace(&mut self, region: &str) -> Result<String, LabError> {
        let name = format!("{PREFIX}{}-{region}", self.id);
        assert_eq!(lab_of(&name), Some(self.id.as_str()), "it must be found again");
        // Before it is there: half of one is to be removed, too.
        self.namespaces.push(name.clone());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        Ok(name)
    }

    /// Ends what runs in the regions.
    pub(crate) fn end_processes(&self) -> Result<(), LabError> {
        end_processes(&self.namespaces).map(drop)
    }

    /// Removes everything.
    pub(crate) fn remove(&mut self) -> Result<(), LabError> {
        if std::mem::replace(&mut self.is_removed, true) {
            return Ok(());
        }
        let removed = end_processes(&self.namespaces).map(drop);
        let removed = removed.and(remove_namespaces(&self.namespaces));
        removed.and(remove_directory(&self.id))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!("the lab {} is not wholly removed: {error}", self.id);
        }
    }
}

/// What was removed of labs that nobody looks after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Their names, which begin with the number of their process.
    pub labs: Vec<String>,
    /// How many regions they had.
    pub namespaces: usize,
    /// How many processes were still running in these.
    pub processes: usize,
}

/// Removes what labs have left whose processes were killed. Labs that run are left alone.
///
/// # Errors
/// When this is not root, or something can't be removed.
pub fn clear() -> Result<Cleared, LabError> {
    let _registry = registry()?;
    clear_locked()
}

fn clear_locked() -> Result<Cleared, LabError> {
    let found = labs()?;
    let mut live = BTreeSet::new();
    let mut stale = BTreeSet::new();
    for id in found {
        if is_live(&id)? {
            live.insert(id)
        } else {
            stale.insert(id)
        };
    }
    let namespaces: Vec<String> = names_in(Path::new(NAMESPACES))?
        .into_iter()
        .filter(|name| lab_of(name).is_some_and(|lab| !live.contains(lab)))
        .collect();
    let processes = end_processes(&namespaces)?;
    remove_namespaces(&namespaces)?;
    stale.iter().try_for_each(|id| remove_directory(id))?;
    stale.extend(namespaces.iter().filter_map(|name| lab_of(name)).map(str::to_owned));
    Ok(Cleared { labs: stale.into_iter().collect(), namespaces: namespaces.len(), processes })
}

/// The names of labs that are running.
pub(crate) fn running() -> Result<Vec<String>, LabError> {
    let mut running = Vec::new();
    for id in labs()? {
        if is_live(&id)? {
            running.push(id);
        }
    }
    Ok(running)
}

/// A lab's socket.
pub(crate) fn control_path(id: &str) -> PathBuf {
    Path::new(HOME).join(id).join("control")
}

/// All labs that have a directory.
fn labs() -> Result<Vec<String>, LabError> {
    let mut names = names_in(Path::new(HOME))?;
    names.retain(|name| lab_of(&format!("{PREFIX}{name}-x")) == Some(name));
    Ok(names)
}

/// Whether the process of a lab is there.
fn is_live(id: &str) -> Result<bool, LabError> {
    let directory = Path::new(HOME).join(id);
    match open_lock(&directory)?.try_lock() {
        Ok(()) => Ok(false),
        Err(fs::TryLockError::WouldBlock) => Ok(true),
        Err(fs::TryLockError::Error(error)) => Err(cant_use(&directory, error)),
    }
}

/// Keeps others from making or clearing labs for as long as it is held.
fn registry() -> Result<File, LabError> {
    let home = Path::new(HOME);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(home);
    made.map_err(|error| cant_use(home, error))?;
    let lock = open_lock(home)?;
    lock.lock().map_err(|error| cant_use(home, error))?;
    Ok(lock)
}

fn open_lock(directory: &Path) -> Result<File, LabError> {
    let path = directory.join("lock");
    let opened = OpenOptions::new().create(true).write(true).truncate(false).open(&path);
    opened.map_err(|error| cant_use(&path, error))
}

fn cant_use(path: &Path, error: impl Into<io::Error>) -> LabError {
    let error: io::Error = error.into();
    if error.kind() == io::ErrorKind::PermissionDenied {
        return crate::lab::not_root();
    }
    LabError::failed(format!("can't use {}", path.display()), error)
}

/// The names of a folder's files, none when there is no such folder.
fn names_in(folder: &Path) -> Result<Vec<String>, LabError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cant_use(folder, error)),
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn end_processes(namespaces: &[String]) -> Result<usize, LabError> {
    let paths: Vec<PathBuf> = namespaces.iter().map(|name| namespace_path(name)).collect();
    processes::end_all(&paths)
}

fn remove_namespaces(namespaces: &[String]) -> Result<(), LabError> {
    let there = namespaces.iter().filter(|name| namespace_path(name).exists());
    let removed: Vec<Result<(), LabError>> =
        there.map(|name| run(Command::new("ip").args(["netns", "delete", name]))).collect();
    // All are tried.
    removed.into_iter().collect()
}

fn remove_directory(id: &str) -> Result<(), LabError> {
    let directory = Path::new(HOME).join(id);
    fs::remove_dir_all(&directory).map_err(|error| cant_use(&directory, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_lab_has_named_is_a_labs() {
        assert_eq!(lab_of("pangea-12-3-us-east"), Some("12-3"));
        for other in ["pangea-12-us-east", "pangea-12-3-", "pangea-12-3", "pangea--1-x", "us-east"]
        {
            assert_eq!(lab_of(other), None, "{other}");
        }
    }
}
