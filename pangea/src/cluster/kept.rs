//! A directory that stays: what it was made with, and who uses it, looked at before anything in it
//! is touched.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use pangea_node::data_dir::Identity;
use pangea_node::disk::{Disk, OsDisk};

use super::plan::Plan;
use crate::failure::Failure;

/// Where a node says whose its data is, below the directory of its region.
const IDENTITY: &str = "data/identity.toml";
/// What a node that runs holds, below the directory of its region.
const NODE_LOCK: &str = "data/lock";
/// What a cluster that runs holds, as its nodes may be down.
const LOCK: &str = "lock";

/// A directory that is one cluster's at a time, until this is dropped or the process ends.
pub struct Kept {
    /// Where it is.
    pub path: PathBuf,
    _lock: Box<dyn Send + Sync>,
}

impl Kept {
    /// Takes a directory, or makes it.
    ///
    /// # Errors
    /// When it is in use: nothing in it was changed.
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

/// Whether a node holds its data here: one that `pangea start` runs, or one of a cluster that has
/// just been killed. What can't be read is left to the node that it belongs to.
pub(super) fn is_any_node_running(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let is_held = |entry: std::fs::DirEntry| {
        let lock = File::open(entry.path().join(NODE_LOCK));
        lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
    };
    entries.flatten().any(is_held)
}

/// Holds a plan against what is in a directory.
///
/// # Errors
/// When the directory is another cluster's: what it was made with.
pub fn check(plan: &Plan, directory: &Path) -> Result<(), Failure> {
    let places = plan.places();
    let partitions = (plan.shards() > 1).then(|| plan.partitions.to_string());
    let is_other = |found: &Identity| {
        found.regions != places
            || found.partitions != partitions
            || found.protocol != plan.protocol
            || found.cluster != plan.cluster
    };
    let Some(found) = identities(directory).into_iter().find(is_other) else { return Ok(()) };
    let directory = directory.display();
    if found.cluster != plan.cluster {
        let message = format!("{directory} has the data of another cluster, {:?}", found.cluster);
        return Err(Failure::Usage(message));
    }
    let arguments = |places: &[String], protocol: &str, partitions: &Option<String>| {
        let divided = partitions.iter().map(|rules| format!(" and tables on {rules}"));
        let divided: String = divided.collect();
        format!("--regions {} --protocol {protocol}{divided}", places.join(","))
    };
    Err(Failure::Usage(format!(
        "{directory} was made with {}, and can't be used with {}",
        arguments(&found.regions, &found.protocol, &found.partitions),
        arguments(&places, &plan.protocol, &partitions),
    )))
}

/// Whose the data in a directory is. What can't be read is left to the node that it belongs to.
fn identities(directory: &Path) -> Vec<Identity> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let identity = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path().join(IDENTITY)).ok()?;
        toml::from_str(&text).ok()
    };
    entries.flatten().filter_map(identity).collect()
}
