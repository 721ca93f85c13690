//! The ownership of a lab, and its removal.
//!
//! ```text
//!   /run/pangea-lab/lock           locked while labs are created or cleared
//!   /run/pangea-lab/PID-N/lock     locked by the lab's process for as long as it lives
//!   /run/pangea-lab/PID-N/control  its socket
//!   /run/netns/pangea-PID-N-NAME   its regions
//! ```
//!
//! The kernel releases a lock when the process that holds it ends, for any reason. A lab with a
//! free lock therefore has no owner. A process id would not prove that, because another process may
//! have it by now.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LabError;
use crate::error::run;
use crate::processes;

/// The directory in which labs register themselves.
const HOME: &str = "/run/pangea-lab";

/// The directory of `ip netns` for namespaces.
const NAMESPACES: &str = "/run/netns";

/// The prefix of the names of labs' namespaces.
const PREFIX: &str = "pangea-";

/// The maximum number of labs of one process.
const LABS_MAX: u32 = 1_000;

/// The file of a namespace.
pub(crate) fn namespace_path(name: &str) -> PathBuf {
    Path::new(NAMESPACES).join(name)
}

/// The lab that a namespace belongs to, if any.
fn lab_of(namespace: &str) -> Option<&str> {
    let rest = namespace.strip_prefix(PREFIX)?;
    let mut parts = rest.splitn(3, '-');
    let (pid, number, region) = (parts.next()?, parts.next()?, parts.next()?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let is_ours = is_number(pid) && is_number(number) && !region.is_empty();
    is_ours.then(|| &rest[..pid.len() + 1 + number.len()])
}

/// The resources of a lab on this machine. They are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct LabResources {
    id: String,
    namespaces: Vec<String>,
    is_removed: bool,
    /// Keeps the lock; never read.
    _lock: File,
}

impl LabResources {
    /// Claims resources for a new lab of this process. The remains of killed labs are removed.
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
        Err(LabError::Usage(format!("this process already has {LABS_MAX} labs")))
    }

    /// The lab's name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The path of the lab's socket.
    pub(crate) fn control(&self) -> PathBuf {
        control_path(&self.id)
    }

    /// Creates a namespace for a region.
    pub(crate) fn add_namespace(&mut self, region: &str) -> Result<String, LabError> {
        let name = format!("{PREFIX}{}-{region}", self.id);
        assert_eq!(lab_of(&name), Some(self.id.as_str()), "the lab of the name can be found again");
        // It is registered first, so that an incomplete namespace is removed too.
        self.namespaces.push(name.clone());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        Ok(name)
    }

    /// Ends all processes in the regions.
    pub(crate) fn end_processes(&self) -> Result<(), LabError> {
        end_processes(&self.namespaces).map(drop)
    }

    /// Removes all resources.
    pub(crate) fn remove(&mut self) -> Result<(), LabError> {
        if std::mem::replace(&mut self.is_removed, true) {
            return Ok(());
        }
        let removed = end_processes(&self.namespaces).map(drop);
        let removed = removed.and(remove_namespaces(&self.namespaces));
        removed.and(remove_directory(&self.id))
    }
}

impl Drop for LabResources {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!("the lab {} was not completely removed: {error}", self.id);
        }
    }
}

/// The removed remains of labs without an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// The labs' names, which begin with their process ids.
    pub labs: Vec<String>,
    /// The number of their regions.
    pub namespaces: usize,
    /// The number of processes that were still running in the regions.
    pub processes: usize,
}

/// Removes the remains of labs with killed processes. Running labs are not affected.
///
/// # Errors
/// When the caller is not root, or something can't be removed.
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

/// The names of the running labs.
pub(crate) fn running() -> Result<Vec<String>, LabError> {
    let mut running = Vec::new();
    for id in labs()? {
        if is_live(&id)? {
            running.push(id);
        }
    }
    Ok(running)
}

/// The path of a lab's socket.
pub(crate) fn control_path(id: &str) -> PathBuf {
    Path::new(HOME).join(id).join("control")
}

/// All labs with a directory.
fn labs() -> Result<Vec<String>, LabError> {
    let mut names = names_in(Path::new(HOME))?;
    names.retain(|name| lab_of(&format!("{PREFIX}{name}-x")) == Some(name));
    Ok(names)
}

/// Whether the process of a lab is alive.
fn is_live(id: &str) -> Result<bool, LabError> {
    let directory = Path::new(HOME).join(id);
    match open_lock(&directory)?.try_lock() {
        Ok(()) => Ok(false),
        Err(fs::TryLockError::WouldBlock) => Ok(true),
        Err(fs::TryLockError::Error(error)) => Err(cant_use(&directory, error)),
    }
}

/// Locks out the creation and clearing of labs by others until it is dropped.
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

/// The names in a directory, or none if it does not exist.
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
    // All removals are attempted before the first error is returned.
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
