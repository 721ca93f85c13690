//! The directory that stores a node's state: it belongs to one node, and only one process uses it.
//!
//! ```text
//!   data_dir/
//!     lock              locked by the process that runs the node
//!     identity.toml     which node of which cluster this is
//!     log/              segments, see [`crate::log`]
//!     cold.redb         values that are not in memory, see [`crate::cold`]; new with each start
//!     checkpoints/      checkpoints, see [`crate::checkpoint`]
//!     log-head          a record of the log that was durable, to notice its loss
//!     replaced          exists while the node replaces one that lost its disk
//!     set-aside-N/      the previous contents, set aside by a replacement
//! ```

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId};
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskError};

/// The directory layout that this program creates, and the newest that it reads.
const LAYOUT: u32 = 1;

const REPLACED: &str = "replaced";

/// The contents of the `replaced` file until all previous state has been set aside.
const EMPTYING: &[u8] = b"emptying";

/// The entries that contain a node's state, excluding the identity file.
const KEPT: [&str; 3] = ["log", "checkpoints", LOG_HEAD];

const LOG_HEAD: &str = "log-head";

const IDENTITY: &str = "identity.toml";

/// The node and cluster that a data directory belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster's name.
    pub cluster: String,
    /// The name of the commit protocol.
    pub protocol: String,
    /// The node's id.
    pub node: NodeId,
    /// The region of each node of the cluster, by node id, with its shard if tables are
    /// partitioned.
    pub regions: Vec<String>,
    /// The partitioning rules, if tables are partitioned. They can't change, because rows stay on
    /// their shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<String>,
    /// The number of the first nodes, which vote, if others do not. It can't change: a majority of
    /// other nodes may lack what was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voters: Option<usize>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, protocol, node, regions, partitions, voters } = self;
        let (node, regions) = (node.0, regions.join(", "));
        write!(
            f,
            "node {node} of cluster {cluster:?} with protocol {protocol:?} and nodes in {regions}"
        )?;
        if let Some(voters) = voters {
            write!(f, ", of which the first {voters} vote")?;
        }
        let Some(partitions) = partitions else { return Ok(()) };
        write!(f, ", with tables partitioned over {partitions}")
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct IdentityFile {
    layout: u32,
    #[serde(flatten)]
    identity: Identity,
}

/// Why a data directory can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataDirError {
    /// A file operation failed.
    Disk(DiskError),
    /// Another process uses the directory.
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory belongs to another node, cluster or protocol.
    NotOurs {
        /// The directory.
        dir: PathBuf,
        /// The identity found in the directory.
        found: Box<Identity>,
        /// The identity of the node that was started.
        wanted: Box<Identity>,
    },
    /// The directory was created by a newer program.
    NewerLayout {
        /// The directory.
        dir: PathBuf,
        /// The layout found.
        found: u32,
    },
    /// The identity file can't be read.
    Damaged {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
}

impl From<DiskError> for DataDirError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

impl fmt::Display for DataDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(error) => write!(f, "data_dir: {error}"),
            Self::InUse { dir } => {
                write!(f, "data_dir {} is in use by another process", dir.display())
            }
            Self::NotOurs { dir, found, wanted } => {
                write!(f, "data_dir {} belongs to {found}, not to {wanted}", dir.display())
            }
            Self::NewerLayout { dir, found } => write!(
                f,
                "data_dir {} has layout {found}, written by a newer version of Pangea; this \
                 version reads layouts up to {LAYOUT}. Nothing was changed: start the version that \
                 wrote it, or a newer one",
                dir.display()
            ),
            Self::Damaged { path, reason } => {
                write!(
                    f,
                    "data_dir: {} is damaged: {reason}. Nothing was changed: restore this file \
                     from a copy, or write it again like that of another node, with the id of \
                     this one. If other nodes have the same rows, pangea start --replace sets it \
                     and the data aside, and fetches everything from them",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for DataDirError {}

/// A data directory, locked by this process until this is dropped.
pub struct DataDir {
    path: PathBuf,
    _lock: Box<dyn Send + Sync>,
}

impl fmt::Debug for DataDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataDir({})", self.path.display())
    }
}

impl DataDir {
    /// Opens and locks a data directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// When another process uses it, it belongs to another node, or a file operation fails.
    pub fn open(
        disk: &Arc<dyn Disk>,
        path: &Path,
        wanted: &Identity,
    ) -> Result<Self, DataDirError> {
        disk.create_dir(path).map_err(DiskError::new("make directory", path))?;
        let lock_path = path.join("lock");
        let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => DataDirError::InUse { dir: path.to_owned() },
            _ => DataDirError::Disk(DiskError::new("lock", &lock_path)(error)),
        })?;
        match disk.read(&path.join(IDENTITY)) {
            Ok(bytes) => check_identity(path, &bytes, wanted)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_identity(disk.as_ref(), path, wanted)?;
            }
            Err(error) => return Err(DiskError::new("read", &path.join(IDENTITY))(error).into()),
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Empties the directory for a node that replaces one that lost its data. Existing state is set
    /// aside, not removed. Returns the directory that it was moved to, if any state existed. A
    /// crash may interrupt this; it must then be repeated.
    ///
    /// # Errors
    /// When a file operation fails.
    pub fn replace(&self, disk: &dyn Disk) -> Result<Option<PathBuf>, DiskError> {
        // This file is written first. A crash then never leaves an empty directory that looks like
        // a new node's, or a checkpoint without its log that looks like complete state.
        replace_file(disk, &self.path, REPLACED, EMPTYING)?;
        let aside = self.set_aside(disk)?;
        replace_file(disk, &self.path, REPLACED, b"")?;
        Ok(aside)
    }

    fn set_aside(&self, disk: &dyn Disk) -> Result<Option<PathBuf>, DiskError> {
        let names = disk.list(&self.path).map_err(DiskError::new("list", &self.path))?;
        let there: Vec<_> =
            KEPT.into_iter().filter(|kept| names.iter().any(|n| n == kept)).collect();
        if there.is_empty() {
            return Ok(None);
        }
        let is_free = |aside: &String| !names.contains(aside);
        let aside = (1..).map(|n: u32| format!("set-aside-{n}")).find(is_free);
        let aside = self.path.join(aside.expect("the number of names is bounded"));
        disk.create_dir(&aside).map_err(DiskError::new("make directory", &aside))?;
        for name in there {
            let path = self.path.join(name);
            disk.rename(&path, &aside.join(name)).map_err(DiskError::new("rename", &path))?;
        }
        disk.sync_dir(&aside).map_err(DiskError::new("sync directory", &aside))?;
        disk.sync_dir(&self.path).map_err(DiskError::new("sync directory", &self.path))?;
        Ok(Some(aside))
    }

    /// Whether the node still has to replace one that lost its data. Completes a
    /// [`DataDir::replace`] that a crash interrupted.
    ///
    /// # Errors
    /// When a file operation fails.
    pub fn is_replaced(&self, disk: &dyn Disk) -> Result<bool, DiskError> {
        let path = self.replaced();
        match disk.read(&path) {
            Ok(state) if state == EMPTYING => self.replace(disk).map(|_| true),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(DiskError::new("read", &path)(error)),
        }
    }

    /// The file that marks a replacement that has not finished.
    pub fn replaced(&self) -> PathBuf {
        self.path.join(REPLACED)
    }

    /// The directory of the log.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The file with the values that are not in memory.
    pub fn cold(&self) -> PathBuf {
        self.path.join("cold.redb")
    }

    /// The file with a durable position of the log.
    pub(crate) fn head_file(&self, disk: &Arc<dyn Disk>) -> HeadFile {
        HeadFile { disk: disk.clone(), dir: self.path.clone() }
    }

    /// The directory of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }
}

/// A position of the log that was durable when a checkpoint was written, or the node stopped. A log
/// that ends before it has lost records. Without the file, or with an older position, a shorter log
/// can't be distinguished from one that was never longer.
#[derive(Clone, Debug)]
pub(crate) struct HeadFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl HeadFile {
    /// Replaces the position. An error is ignored: the earlier position remains true.
    pub(crate) fn write(&self, position: LogPosition) {
        let text = format!("{}\n", position.0);
        let _ = replace_file(self.disk.as_ref(), &self.dir, LOG_HEAD, text.as_bytes());
    }

    /// The position, if there is one.
    pub(crate) fn read(&self) -> Option<LogPosition> {
        let bytes = self.disk.read(&self.dir.join(LOG_HEAD)).ok()?;
        let text = std::str::from_utf8(&bytes).ok()?.strip_suffix('\n')?;
        text.parse().ok().map(LogPosition)
    }
}

fn check_identity(dir: &Path, bytes: &[u8], wanted: &Identity) -> Result<(), DataDirError> {
    let damaged = |reason| DataDirError::Damaged { path: dir.join(IDENTITY), reason };
    let text = std::str::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    let layout = toml::from_str::<toml::Table>(text).map_err(|error| damaged(error.to_string()))?;
    // The layout is checked first because a newer layout may have a different identity.
    if let Some(found) = layout.get("layout").and_then(toml::Value::as_integer)
        && found > i64::from(LAYOUT)
    {
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        return Err(DataDirError::NewerLayout { dir: dir.to_owned(), found });
    }
    let file: IdentityFile = toml::from_str(text).map_err(|error| damaged(error.to_string()))?;
    if file.identity == *wanted {
        return Ok(());
    }
    let (found, wanted) = (Box::new(file.identity), Box::new(wanted.clone()));
    Err(DataDirError::NotOurs { dir: dir.to_owned(), found, wanted })
}

fn write_identity(disk: &dyn Disk, dir: &Path, identity: &Identity) -> Result<(), DiskError> {
    let file = IdentityFile { layout: LAYOUT, identity: identity.clone() };
    let text = toml::to_string(&file).expect("an identity can be encoded");
    replace_file(disk, dir, IDENTITY, text.as_bytes())
}

/// Replaces the contents of a file atomically: after a crash it has the old contents or the new
/// ones.
fn replace_file(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
    let (temp, path) = (dir.join(format!("{name}.tmp")), dir.join(name));
    let mut file = disk.create(&temp).map_err(DiskError::new("make", &temp))?;
    file.write_at(bytes, 0).map_err(DiskError::new("write", &temp))?;
    file.sync().map_err(DiskError::new("sync", &temp))?;
    disk.rename(&temp, &path).map_err(DiskError::new("rename", &temp))?;
    disk.sync_dir(dir).map_err(DiskError::new("sync directory", dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OsDisk;

    fn identity(cluster: &str, protocol: &str, node: u16) -> Identity {
        let (cluster, protocol) = (cluster.to_owned(), protocol.to_owned());
        let regions = ["west", "east"].map(str::to_owned).into();
        Identity { cluster, protocol, node: NodeId(node), regions, partitions: None, voters: None }
    }

    fn disk() -> Arc<dyn Disk> {
        Arc::new(OsDisk)
    }

    #[test]
    fn a_data_dir_is_one_process_at_a_time_s() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/b");
        let us = identity("shop", "toy", 1);
        let held = DataDir::open(&disk(), &path, &us).unwrap();
        let error = DataDir::open(&disk(), &path, &us).expect_err("in use").to_string();
        assert!(error.contains("in use") && error.contains("a/b"), "{error}");
        drop(held);
        DataDir::open(&disk(), &path, &us).expect("the lock is released");
    }

    #[test]
    fn another_s_data_dir_is_refused_by_both_names() {
        let temp = tempfile::tempdir().unwrap();
        let us = identity("shop", "toy", 1);
        drop(DataDir::open(&disk(), temp.path(), &us).unwrap());
        let others = [
            identity("bank", "toy", 1),
            identity("shop", "mako", 1),
            identity("shop", "toy", 2),
            Identity { regions: vec!["west".to_owned()], ..us.clone() },
            Identity { partitions: Some("2 shards, everywhere".to_owned()), ..us.clone() },
            Identity { voters: Some(1), ..us.clone() },
        ];
        for other in others {
            let error = DataDir::open(&disk(), temp.path(), &other).expect_err("another's");
            let text = error.to_string();
            assert!(text.contains(&us.to_string()) && text.contains(&other.to_string()), "{text}");
        }
        DataDir::open(&disk(), temp.path(), &us).expect("a refused start changes nothing");
    }

    #[test]
    fn a_newer_or_damaged_identity_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let us = identity("shop", "toy", 1);
        std::fs::write(temp.path().join(IDENTITY), "layout = 2\nnew = true\n").unwrap();
        let error = DataDir::open(&disk(), temp.path(), &us).expect_err("newer").to_string();
        assert!(error.contains("newer version") && error.contains("start the version"), "{error}");
        std::fs::write(temp.path().join(IDENTITY), "layout = 1\n").unwrap();
        let error = DataDir::open(&disk(), temp.path(), &us).expect_err("damaged").to_string();
        assert!(error.contains("damaged") && error.contains(IDENTITY), "{error}");
        assert!(error.contains("restore this file") && error.contains("--replace"), "{error}");
    }

    #[test]
    fn a_crash_while_things_are_set_aside_leaves_nothing_that_passes_for_a_memory() {
        let (temp, us) = (tempfile::tempdir().unwrap(), identity("shop", "toy", 1));
        let dir = DataDir::open(&disk(), temp.path(), &us).unwrap();
        let make = |name: &str| std::fs::create_dir(temp.path().join(name)).unwrap();
        let is_there = |name: &str| temp.path().join(name).exists();
        make("checkpoints");
        // The crash came after the log was set aside, but before the checkpoints were.
        make("set-aside-1");
        make("set-aside-1/log");
        std::fs::write(dir.replaced(), EMPTYING).unwrap();
        assert_eq!(dir.is_replaced(disk().as_ref()), Ok(true));
        assert!(!is_there("checkpoints") && is_there("set-aside-2/checkpoints"));
        // Data that appears from now on was fetched by the replacement, and is not set aside.
        make("log");
        assert_eq!(dir.is_replaced(disk().as_ref()), Ok(true));
        assert!(is_there("log"));
        std::fs::remove_file(dir.replaced()).unwrap();
        assert_eq!(dir.is_replaced(disk().as_ref()), Ok(false));
    }
}
