//! Checkpoints: the store as of one snapshot version, in a file.
//!
//! [`pangea_core::log`] defines the encoding; this module contains the files and the thread that
//! writes them concurrently with execution.
//!
//! ```text
//!   checkpoints/
//!     checkpoint-00000000000000000512.ckp      the newest
//!     checkpoint-00000000000000000256.ckp      the previous one
//!     checkpoint.tmp                           being written, or left by a crash
//! ```
//!
//! A checkpoint is written under a temporary name, synced and renamed, and then its directory is
//! synced: a file with a checkpoint's name is complete. The newest two are retained. The log
//! retains the records since the older of them, because the driver delays a truncation until the
//! next checkpoint. A node whose newest checkpoint is damaged therefore starts from the previous
//! one and the log.

mod load;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};

use pangea_core::ids::SnapshotVersion;
use pangea_core::log::CheckpointError;

use crate::disk::DiskError;
pub use load::{Loaded, load};
pub use writer::{CheckpointEvent, CheckpointEvents, Checkpointer, write};

/// The number of checkpoints retained.
const KEPT: usize = 2;

/// The name of the file being written.
const TEMP_NAME: &str = "checkpoint.tmp";

/// The reason why a node can't start from its checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// A file operation failed.
    Disk(DiskError),
    /// This program can't read the newest checkpoint at all.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: CheckpointError,
    },
    /// A checkpoint was written by another protocol.
    Protocol {
        /// The file.
        path: PathBuf,
        /// The protocol that wrote it.
        found: String,
        /// The protocol that this node runs.
        wanted: String,
    },
    /// No checkpoint that the log continues from can be read.
    NotCovered {
        /// The directory.
        dir: PathBuf,
        /// The log contains the records after this version.
        log_from: SnapshotVersion,
        /// The usable checkpoints that are damaged, with the reasons.
        damaged: Vec<(PathBuf, CheckpointError)>,
    },
}

impl From<DiskError> for LoadError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

impl LoadError {
    /// Whether data that was once complete is damaged.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::NotCovered { .. })
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(error) => write!(f, "checkpoint: {error}"),
            Self::Unreadable { path, error } => {
                write!(f, "checkpoint {}: {error}", path.display())
            }
            Self::Protocol { path, found, wanted } => write!(
                f,
                "checkpoint {} was written by protocol {found:?}; this node runs {wanted:?}: set \
                 protocol = {found:?}, or use an empty data_dir",
                path.display()
            ),
            Self::NotCovered { dir, log_from, damaged } => {
                let dir = dir.display();
                write!(
                    f,
                    "checkpoints {dir}: the log begins after snapshot version {}, and no \
                     checkpoint of that or a later version can be read",
                    log_from.0
                )?;
                for (path, error) in damaged {
                    write!(f, "; {}: {error}", path.display())?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// The file name of a version's checkpoint.
fn file_name(version: SnapshotVersion) -> String {
    format!("checkpoint-{:020}.ckp", version.0)
}

/// The version of the checkpoint with this file name, or `None` for other names.
fn version_of(name: &str) -> Option<SnapshotVersion> {
    let digits = name.strip_prefix("checkpoint-")?.strip_suffix(".ckp")?;
    (digits.len() == 20).then(|| digits.parse().ok().map(SnapshotVersion))?
}

/// The versions of the checkpoints in a directory, newest first.
fn versions(disk: &dyn crate::disk::Disk, dir: &Path) -> Result<Vec<SnapshotVersion>, DiskError> {
    let names = disk.list(dir).map_err(DiskError::new("list", dir))?;
    let mut versions: Vec<_> = names.iter().filter_map(|name| version_of(name)).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    Ok(versions)
}
