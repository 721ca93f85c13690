//! A persistent cluster directory. Its previous configuration and its lock are checked before
//! anything in it is changed.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use pangea_node::config::with_system_tables;
use pangea_node::data_dir::Identity;
use pangea_node::disk::{Disk, OsDisk};

use super::plan::Plan;
use crate::failure::Failure;

/// The identity of a node's data, relative to the directory of its region.
const IDENTITY: &str = "data/identity.toml";
/// The lock of a running node, relative to the directory of its region.
const NODE_LOCK: &str = "data/lock";
/// The lock of a running cluster, which is held even if its nodes are down.
const LOCK: &str = "lock";

/// A directory that is locked for one cluster, until this is dropped or the process ends.
pub struct PersistentDir {
    /// The path of the directory.
    pub path: PathBuf,
    _lock: Box<dyn Send + Sync>,
}

impl PersistentDir {
    /// Locks a directory, and creates it if necessary.
    ///
    /// # Errors
    /// If it is in use. Nothing in it has been changed then.
    pub fn take(directory: &Path) -> Result<Self, Failure> {
        let cant =
            |error| Failure::failed(format!("can't use directory {}", directory.display()), error);
        let in_use =
            || Failure::Failed(format!("{} is in use by another process", directory.display()));
        if is_any_node_running(directory) {
            return Err(in_use());
        }
        std::fs::create_dir_all(directory).map_err(cant)?;
        let path = std::path::absolute(directory).map_err(cant)?;
        match OsDisk.lock(&path.join(LOCK)) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(in_use()),
            Err(error) => Err(cant(error)),
        }
    }
}

/// Returns whether a node holds the lock of its data in this directory: a node that `pangea start`
/// runs, or one of a cluster that was just killed. Unreadable entries are ignored here; the node
/// that owns them reports the error.
pub(super) fn is_any_node_running(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let is_held = |entry: std::fs::DirEntry| {
        let lock = File::open(entry.path().join(NODE_LOCK));
        lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
    };
    entries.flatten().any(is_held)
}

/// Compares a plan with the data in a directory.
///
/// # Errors
/// If the directory belongs to a different cluster; the message names its options.
pub fn check(plan: &Plan, directory: &Path) -> Result<(), Failure> {
    let places = plan.places();
    let partitions =
        (plan.shards() > 1).then(|| with_system_tables(plan.partitions.clone()).to_string());
    let is_other = |found: &Identity| {
        found.regions != places
            || found.partitions != partitions
            || found.protocol != plan.protocol
            || found.cluster != plan.cluster
    };
    let Some(found) = identities(directory).into_iter().find(is_other) else { return Ok(()) };
    let directory = directory.display();
    if found.cluster != plan.cluster {
        let message =
            format!("{directory} contains the data of another cluster, {:?}", found.cluster);
        return Err(Failure::Usage(message));
    }
    let arguments = |places: &[String], protocol: &str, partitions: &Option<String>| {
        let divided =
            partitions.iter().map(|rules| format!(" and tables partitioned over {rules}"));
        let divided: String = divided.collect();
        format!("--regions {} --protocol {protocol}{divided}", places.join(","))
    };
    Err(Failure::Usage(format!(
        "{directory} was created with {}, and can't be used with {}",
        arguments(&found.regions, &found.protocol, &found.partitions),
        arguments(&places, &plan.protocol, &partitions),
    )))
}

/// Returns the identities of the data in a directory. Unreadable entries are ignored here; the node
/// that owns them reports the error.
fn identities(directory: &Path) -> Vec<Identity> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let identity = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path().join(IDENTITY)).ok()?;
        toml::from_str(&text).ok()
    };
    entries.flatten().filter_map(identity).collect()
}
