//! Reads that are checked on the store of one shard, which may have rows of other shards: their
//! slots have moved.

use std::ops::ControlFlow;

use super::super::certify::{self, Change, CurrentState, CurrentVersion, VisitState};
use super::super::overlay::Overlay;
use super::Base;
use crate::ids::{ShardId, SnapshotVersion, TableId};
use crate::key::KeyRange;
use crate::partition::Partitions;
use crate::store::Store;
use crate::txn::ReadSet;

/// The rows of a shard.
struct OnShard<'a> {
    base: Base<'a>,
    partitions: &'a Partitions,
    here: ShardId,
}

impl CurrentState for OnShard<'_> {
    fn point(&self, table: TableId, key: &[u8]) -> CurrentVersion {
        self.base.point(table, key)
    }

    fn range(&self, table: TableId, range: &KeyRange, visit: &mut VisitState<'_>) {
        self.base.range(table, range, &mut |key, standing| match self
            .partitions
            .counts(self.here, table, key)
        {
            true => visit(key, standing),
            false => ControlFlow::Continue(()),
        });
    }
}

/// Like [`super::first_change`], on the store of a shard, which may have rows of other shards.
pub fn first_change_of(
    (partitions, here): (&Partitions, ShardId),
    reads: &ReadSet,
    store: &Store,
    at: SnapshotVersion,
) -> Option<Change> {
    let base = Base { store, at, overlay: &Overlay::new() };
    certify::first_change(reads, &OnShard { base, partitions, here })
}
