//! A directory that is removed with its cluster, and the removal of directories left by others.
//!
//! A process that is killed cannot remove its directory. Therefore each process holds a lock within
//! its directory, which is released however the process ends. The next process of this kind removes
//! the directories whose lock exists and is not held.

use std::fs::File;
use std::path::Path;

use pangea_node::disk::{Disk, OsDisk};
use tempfile::TempDir;

use super::persistent_dir::is_any_node_running;
use crate::failure::Failure;

/// The prefix of directory names.
pub const PREFIX: &str = "pangea-";
/// The lock of the owner. Persistent directories have no file of this name.
const LOCK: &str = "temporary.lock";
/// The files of a node, in the directory of its region.
const OF_NODE: [&str; 3] = ["node.toml", "node.log", "data"];

/// A directory that is removed when it is dropped.
pub struct Temporary {
    directory: TempDir,
    _lock: Box<dyn Send + Sync>,
}

impl Temporary {
    /// Creates a directory within another, and removes the abandoned ones there.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(within: &Path) -> Result<Self, Failure> {
        tidy(within);
        let cant = |error| Failure::failed("can't create a temporary directory", error);
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(within);
        let directory = made.map_err(cant)?;
        let lock = OsDisk.lock(&directory.path().join(LOCK)).map_err(cant)?;
        Ok(Self { directory, _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Removes the directory.
    ///
    /// # Errors
    /// If something in it cannot be removed.
    pub fn close(self) -> std::io::Result<()> {
        self.directory.close()
    }
}

/// Removes the directories that killed processes have left. Unreadable ones are left for their
/// owner.
fn tidy(within: &Path) {
    let Ok(entries) = std::fs::read_dir(within) else { return };
    for entry in entries.flatten() {
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_directory = entry.file_type().is_ok_and(|it| it.is_dir());
        if is_named && is_directory {
            remove_if_abandoned(&entry.path());
        }
    }
}

fn remove_if_abandoned(directory: &Path) {
    // The file is opened, not created: a directory without it was not created by this program.
    let Ok(lock) = File::open(directory.join(LOCK)) else { return };
    // The lock is held until the directory is removed, so that only one process removes it. Nodes
    // outlive their owner by a moment.
    if lock.try_lock().is_ok() && !is_any_node_running(directory) && is_ours(directory) {
        // The system denies access to another user's directory.
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// Returns whether the directory contains only files that a cluster creates: the lock, and
/// directories of nodes.
fn is_ours(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let is_of_cluster = |entry: std::io::Result<std::fs::DirEntry>| {
        let Ok(entry) = entry else { return false };
        let is_directory = entry.file_type().is_ok_and(|it| it.is_dir());
        entry.file_name() == LOCK || (is_directory && is_of_node(&entry.path()))
    };
    entries.into_iter().all(is_of_cluster)
}

fn is_of_node(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let is_known = |name: &std::ffi::OsStr| OF_NODE.iter().any(|known| name == *known);
    entries.into_iter().all(|entry| entry.is_ok_and(|entry| is_known(&entry.file_name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a directory as a killed process leaves it.
    fn abandoned(within: &Path, name: &str) -> std::path::PathBuf {
        let path = within.join(name);
        std::fs::create_dir_all(path.join("us-east/data")).unwrap();
        std::fs::write(path.join(LOCK), "").unwrap();
        std::fs::write(path.join("us-east/node.toml"), "").unwrap();
        path
    }

    #[test]
    fn what_the_killed_have_left_is_removed_and_nothing_else() {
        let within = tempfile::tempdir().unwrap();
        let within = within.path();
        let left = abandoned(within, "pangea-left");
        let held = Temporary::new(within).unwrap();
        assert!(!left.exists(), "the lock is free");

        let other_name = abandoned(within, "postgres-1");
        let has_more = abandoned(within, "pangea-more");
        std::fs::write(has_more.join("notes.txt"), "mine").unwrap();
        let has_more_in_node = abandoned(within, "pangea-node");
        std::fs::write(has_more_in_node.join("us-east/notes.txt"), "mine").unwrap();
        let kept = abandoned(within, "pangea-kept");
        std::fs::rename(kept.join(LOCK), kept.join("lock")).unwrap();
        let runs = abandoned(within, "pangea-runs");
        let _node = OsDisk.lock(&runs.join("us-east/data/lock")).unwrap();
        let next = Temporary::new(within).unwrap();
        for path in [held.path(), &other_name, &has_more, &has_more_in_node, &kept, &runs] {
            assert!(path.exists(), "{}", path.display());
        }
        let (held_path, next_path) = (held.path().to_owned(), next.path().to_owned());
        held.close().unwrap();
        drop(next);
        assert!(!held_path.exists() && !next_path.exists());
    }
}
