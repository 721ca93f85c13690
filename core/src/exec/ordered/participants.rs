//! Which shards a transaction concerns (Calvin §3.2, phase 1).

use crate::ids::ShardId;
use crate::partition::{Partitions, ShardSet};
use crate::txn::Footprint;

/// The shards that a transaction concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Participants {
    /// Those on which it writes, which run it.
    pub active: ShardSet,
    /// All that have rows that it touches.
    pub reading: ShardSet,
}

impl Participants {
    /// Those of a transaction that `home` took.
    pub fn of(partitions: &Partitions, footprint: &Footprint, home: ShardId) -> Self {
        let everyone = ShardSet::all(partitions.shards());
        let (mut active, mut reading) = (ShardSet::default(), ShardSet::default());
        let points = footprint
            .points
            .iter()
            .map(|lock| (partitions.shard_of(lock.table, &lock.key).map(ShardSet::one), lock.mode));
        let ranges = footprint
            .ranges
            .iter()
            .map(|lock| (partitions.shards_of(lock.table, &lock.range), lock.mode));
        for (shards, mode) in points.chain(ranges) {
            // What is everywhere, each reads for itself.
            if let Some(shards) = shards.filter(|_| mode.reads()) {
                reading = reading.union(shards);
            }
            if mode.writes() {
                active = active.union(shards.unwrap_or(everyone));
            }
        }
        if active.is_empty() {
            active = ShardSet::one(home);
        }
        Self { active, reading }
    }

    pub fn all(self) -> ShardSet {
        self.active.union(self.reading)
    }
}
