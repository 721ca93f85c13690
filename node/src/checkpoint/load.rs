//! Loading of the newest readable checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pangea_core::ids::SnapshotVersion;
use pangea_core::log::{CheckpointError, CheckpointHeader, Decoder, Part};
use pangea_core::protocol::Checkpoint;
use pangea_core::store::{Loading, Store};

use super::{LoadError, TEMP_NAME, file_name, versions};
use crate::disk::{Disk, DiskError};
use crate::log::remove_if_there;

/// The number of bytes per read.
const READ_BYTES: usize = 1 << 20;

/// The state that a node starts from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// The checkpoint loaded into the store, if any.
    pub checkpoint: Option<Checkpoint>,
    /// The number of its rows.
    pub rows: u64,
    /// Newer checkpoints that could not be read, with the reasons. They have been renamed.
    pub damaged: Vec<(PathBuf, CheckpointError)>,
}

/// Loads the newest readable checkpoint in `dir` into an empty store, and publishes its version.
/// The log contains the records after `log_from`, so an older checkpoint is useless.
///
/// # Errors
/// When no checkpoint that the log continues from can be read, or one was written by a newer
/// program or another protocol.
pub fn load(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    protocol: &str,
    log_from: SnapshotVersion,
    store: &Store,
) -> Result<Loaded, LoadError> {
    assert!(store.table_ids().is_empty(), "a checkpoint is only loaded into an empty store");
    disk.create_dir(dir).map_err(DiskError::new("make directory", dir))?;
    remove_if_there(disk.as_ref(), &dir.join(TEMP_NAME))?;
    let mut damaged = Vec::new();
    for version in versions(disk.as_ref(), dir)? {
        if version < log_from {
            break;
        }
        let path = dir.join(file_name(version));
        match load_one(disk, &path, protocol, version, store)? {
            Ok((checkpoint, rows)) => {
                store.publish_alone(checkpoint.version);
                set_aside(disk.as_ref(), dir, &damaged)?;
                return Ok(Loaded { checkpoint: Some(checkpoint), rows, damaged });
            }
            Err(error) => {
                store.clear();
                tracing::error!(
                    "checkpoint {} can't be read; trying an older one: {error}",
                    path.display()
                );
                damaged.push((path, error));
            }
        }
    }
    if log_from > SnapshotVersion::ZERO {
        return Err(LoadError::NotCovered { dir: dir.to_owned(), log_from, damaged });
    }
    // The log contains all records since the empty database.
    set_aside(disk.as_ref(), dir, &damaged)?;
    Ok(Loaded { checkpoint: None, rows: 0, damaged })
}

/// The inner error means a damaged file, which another checkpoint may replace.
type Attempt = Result<(Checkpoint, u64), CheckpointError>;

fn load_one(
    disk: &Arc<dyn Disk>,
    path: &Path,
    protocol: &str,
    version: SnapshotVersion,
    store: &Store,
) -> Result<Attempt, LoadError> {
    let mut file = disk.open(path).map_err(DiskError::new("open", path))?;
    let mut decoder = Decoder::new();
    let mut chunk = vec![0; READ_BYTES];
    let mut offset = 0;
    let mut found: Option<CheckpointHeader> = None;
    let (mut rows, mut loading) = (0, Loading::default());
    loop {
        let len = file.read_at(&mut chunk, offset).map_err(DiskError::new("read", path))?;
        if len == 0 {
            break;
        }
        offset += len as u64;
        decoder.feed(&chunk[..len]);
        loop {
            match decoder.advance() {
                Ok(None) => break,
                Ok(Some(Part::Header(header))) => {
                    if header.protocol != protocol {
                        let (path, wanted) = (path.to_owned(), protocol.to_owned());
                        return Err(LoadError::Protocol { path, found: header.protocol, wanted });
                    }
                    found = Some(header);
                }
                Ok(Some(Part::Rows(table, part))) => {
                    part.into_iter().for_each(|row| store.apply(table, row.key, row.version));
                    // The rows may exceed the memory budget.
                    loading.evict(store);
                }
                Ok(Some(Part::Footer { rows: count })) => rows = count,
                // Falling back to an older checkpoint would hide that this program is too old for
                // the directory.
                Err(error @ CheckpointError::NewerFormat { .. }) => {
                    return Err(LoadError::Unreadable { path: path.to_owned(), error });
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }
    loading.end(store);
    let whole = decoder.finish();
    Ok(match (whole, found) {
        (Ok(()), Some(header)) if header.version == version => {
            Ok((Checkpoint { version, meta: header.meta }, rows))
        }
        (Ok(()), _) => Err(CheckpointError::NotACheckpoint),
        (Err(error), _) => Err(error),
    })
}

/// Renames damaged checkpoints. They are retained for diagnosis, but no longer loaded.
fn set_aside(
    disk: &dyn Disk,
    dir: &Path,
    damaged: &[(PathBuf, CheckpointError)],
) -> Result<(), DiskError> {
    for (path, _) in damaged {
        let aside = path.with_extension("damaged");
        disk.rename(path, &aside).map_err(DiskError::new("rename", path))?;
    }
    if damaged.is_empty() {
        return Ok(());
    }
    disk.sync_dir(dir).map_err(DiskError::new("sync directory", dir))
}
