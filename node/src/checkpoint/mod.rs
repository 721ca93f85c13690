//! Checkpoints: the store as of one snapshot version, in a file.
//!
//! The bytes are [`pangea_core::log`]'s; this module has the files and the thread that writes them
//! while the node goes on.
//!
//! ```text
//!   checkpoints/
//!     checkpoint-00000000000000000512.ckp      the newest
//!     checkpoint-00000000000000000256.ckp      the one before it
//!     checkpoint.tmp                           being written, or left by a crash
//! ```
//!
//! A checkpoint is written under another name, synced, renamed, and its directory synced: a file
//! with a checkpoint's name is whole. The newest two are kept. The log keeps the records since the
//! older of them (the driver holds a truncation back until the next checkpoint), so that a node
//! whose newest checkpoint has rotted starts from the one before it and the log.

mod load;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};

use pangea_core::ids::SnapshotVersion;
use pangea_core::log::CheckpointError;

use crate::disk::DiskError;
pub use load::{Loaded, load};
pub use writer::{CheckpointEvent, CheckpointEvents, Checkpointer, write};

/// How many checkpoints are kept.
const KEPT: usize = 2;

/// The file that is being written.
const TEMP_NAME: &str = "checkpoint.tmp";

/// Why a node can't start from its checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// A file operation failed.
    Disk(DiskError),
    /// The newest checkpoint can't be read by this program at all.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: CheckpointError,
    },
    /// A checkpoint is another protocol's.
    Protocol {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// What this node runs.
        wanted: String,
    },
    /// No checkpoint that the log goes on from can be read.
    NotCovered {
        /// The directory.
        dir: PathBuf,
        /// The log has what came after this version.
        log_from: SnapshotVersion,
        /// What is wrong with the checkpoints that would do.
        damaged: Vec<(PathBuf, CheckpointError)>,
    },
}

impl From<DiskError> for LoadError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

impl LoadError {
    /// Whether something that was whole is not any more.
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
                "checkpoint {} was written by protocol {found:?}; this node runs {wanted:?}",
                path.display()
            ),
            Self::NotCovered { dir, log_from, damaged } => {
                let dir = dir.display();
                write!(
                    f,
                    "checkpoints {dir}: the log begins after snapshot version {}, and no \
                     checkpoint of it or a later one can be read",
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

/// The name of the checkpoint of a version.
fn file_name(version: SnapshotVersion) -> String {
    format!("checkpoint-{:020}.ckp", version.0)
}

/// The version of the checkpoint with this name, if it is one.
fn version_of(name: &str) -> Option<SnapshotVersion> {
    let digits = name.strip_prefix("checkpoint-")?.strip_suffix(".ckp")?;
    (digits.len() == 20).then(|| digits.parse().ok().map(SnapshotVersion))?
}

/// The versions of the checkpoints in a directory, the newest first.
fn versions(disk: &dyn crate::disk::Disk, dir: &Path) -> Result<Vec<SnapshotVersion>, DiskError> {
    let names = disk.list(dir).map_err(DiskError::new("list", dir))?;
    let mut versions: Vec<_> = names.iter().filter_map(|name| version_of(name)).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    Ok(versions)
}
