//! Rows that are on other nodes of the region, for sessions that read on this one.
//!
//! Where tables are divided (Calvin §3), a node holds the rows of one shard. A session's snapshot
//! is then a version that the node keeps for it, and that a node of each other shard keeps too:
//! what a statement wants of those is asked for as it comes to it.

use std::fmt;
use std::sync::Arc;

use pangea_core::ids::{ShardId, SnapshotVersion, TableId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::partition::{Partitions, ShardSet};
use pangea_core::store::Pin;
use pangea_core::txn::{Abort, Scan, Stop};
use pangea_core::value::Value;

use crate::engine::Unavailable;
use crate::error::code;

/// What asks other nodes for rows of a snapshot. The snapshot is kept for as long as this is.
pub trait Elsewhere: fmt::Debug + Send + Sync {
    /// The first rows that a scan finds on a shard, so many at most or fewer, and whether those are
    /// all that it finds there. Waits for them.
    ///
    /// # Errors
    /// When the shard's node does not answer.
    fn rows(
        &self,
        shard: ShardId,
        scan: &Scan,
        most: usize,
    ) -> Result<(Vec<Row>, bool), Unavailable>;
}

/// A row as it is on a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its key.
    pub key: Key,
    /// The version that wrote it.
    pub version: SnapshotVersion,
    /// Its value.
    pub value: Value,
}

/// The rows of a snapshot that are not here.
#[derive(Clone, Debug)]
pub struct Beyond {
    partitions: Arc<Partitions>,
    here: ShardId,
    elsewhere: Arc<dyn Elsewhere>,
}

impl Beyond {
    /// What is not on shard `here`.
    pub fn new(partitions: Arc<Partitions>, here: ShardId, elsewhere: Arc<dyn Elsewhere>) -> Self {
        Self { partitions, here, elsewhere }
    }

    /// The other shard that has a row.
    pub(crate) fn shard_of(&self, table: TableId, key: &[u8]) -> Option<ShardId> {
        self.partitions.shard_of(table, key).filter(|shard| *shard != self.here)
    }

    /// The other shards that may have rows of a range.
    pub(crate) fn shards_of(&self, table: TableId, range: &KeyRange) -> ShardSet {
        let all = self.partitions.shards_of(table, range);
        all.map_or_else(ShardSet::default, |shards| shards.except(self.here))
    }

    /// How many shards have rows of a table.
    pub(crate) fn spread(&self, table: TableId) -> usize {
        self.partitions.shards_of(table, &KeyRange::all()).map_or(1, ShardSet::len)
    }

    /// What a scan finds first on a shard.
    pub(crate) fn rows(
        &self,
        shard: ShardId,
        scan: &Scan,
        most: usize,
    ) -> Result<(Vec<Row>, bool), Stop> {
        self.elsewhere.rows(shard, scan, most).map_err(|Unavailable { reason }| {
            let message = format!("rows of shard {} can't be read: {reason}", shard.0);
            Abort::new(code::UNAVAILABLE, message).with_hint("Try again.").into()
        })
    }
}

/// A snapshot: what of it is here, and what is elsewhere, if anything is.
#[derive(Debug)]
pub struct Snapshot {
    /// What is here.
    pub pin: Pin,
    /// What is not.
    pub beyond: Option<Beyond>,
}

impl From<Pin> for Snapshot {
    fn from(pin: Pin) -> Self {
        Self { pin, beyond: None }
    }
}
