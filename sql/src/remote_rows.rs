//! Rows on other nodes of the region, for sessions that read a snapshot on this node.
//!
//! If tables are partitioned (Calvin §3), a node stores the rows of one shard. The snapshot of a
//! session is then a version that is pinned on this node and on a node of every other shard. Remote
//! rows are fetched when a statement reads them.

use std::fmt;
use std::sync::Arc;

use pangea_core::ids::{ShardId, SnapshotVersion, TableId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::partition::{Partitions, ShardSet};
use pangea_core::store::Pin;
use pangea_core::txn::{Abort, Scan, Stop};
use pangea_core::value::Value;

use crate::error::{Unavailable, code};

/// A source of remote rows of a snapshot. The snapshot stays pinned until this is dropped.
pub trait RemoteRowSource: fmt::Debug + Send + Sync {
    /// Returns the first rows, at most `most`, that a scan finds on a shard, and whether they are
    /// all. Blocks until they arrive.
    ///
    /// # Errors
    /// Fails if the shard's node does not answer.
    fn rows(
        &self,
        shard: ShardId,
        scan: &Scan,
        most: usize,
    ) -> Result<(Vec<Row>, bool), Unavailable>;
}

/// A row on a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Key.
    pub key: Key,
    /// Version that wrote the row.
    pub version: SnapshotVersion,
    /// Value.
    pub value: Value,
}

/// The remote rows of a snapshot.
#[derive(Clone, Debug)]
pub struct RemoteSnapshot {
    partitions: Arc<Partitions>,
    here: ShardId,
    source: Arc<dyn RemoteRowSource>,
    oldest: Option<SnapshotVersion>,
}

impl RemoteSnapshot {
    /// Creates the view of all rows that are not on shard `here`.
    pub fn new(
        partitions: Arc<Partitions>,
        here: ShardId,
        source: Arc<dyn RemoteRowSource>,
    ) -> Self {
        Self { partitions, here, source, oldest: None }
    }

    /// With the oldest version that can be read, if nodes of other shards have already removed rows
    /// of this one.
    #[must_use]
    pub fn reclaimed_before(self, oldest: Option<SnapshotVersion>) -> Self {
        Self { oldest, ..self }
    }

    /// The oldest version that can be read, if rows of this one have been removed.
    pub(crate) fn reclaimed(&self) -> Option<SnapshotVersion> {
        self.oldest
    }

    /// Returns the shard of a row, or `None` if the row is local.
    pub(crate) fn shard_of(&self, table: TableId, key: &[u8]) -> Option<ShardId> {
        self.partitions.shard_of(table, key).filter(|shard| *shard != self.here)
    }

    /// Returns the remote shards that may have rows in a range.
    pub(crate) fn shards_of(&self, table: TableId, range: &KeyRange) -> ShardSet {
        let all = self.partitions.shards_of(table, range);
        all.map_or_else(ShardSet::default, |shards| shards.except(self.here))
    }

    /// The number of shards that have rows of a table.
    pub(crate) fn spread(&self, table: TableId) -> usize {
        self.partitions.shards_of(table, &KeyRange::all()).map_or(1, ShardSet::len)
    }

    /// Returns the first rows that a scan finds on a shard.
    pub(crate) fn rows(
        &self,
        shard: ShardId,
        scan: &Scan,
        most: usize,
    ) -> Result<(Vec<Row>, bool), Stop> {
        self.source.rows(shard, scan, most).map_err(|Unavailable { reason }| {
            let message = format!("could not read rows of shard {}: {reason}", shard.0);
            Abort::new(code::UNAVAILABLE, message).with_hint("Try again.").into()
        })
    }
}

/// A snapshot: its local rows and, if tables are partitioned, its remote rows.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Local rows.
    pub pin: Pin,
    /// Remote rows, if there are any.
    pub remote: Option<RemoteSnapshot>,
}

impl From<Pin> for Snapshot {
    fn from(pin: Pin) -> Self {
        Self { pin, remote: None }
    }
}
