//! The participants of a transaction (Calvin §3.2, phase 1).

use crate::ids::ShardId;
use crate::mutate;
use crate::partition::{Partitions, ShardSet};
use crate::txn::Footprint;

/// The shards that participate in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Participants {
    /// The active participants: the shards on which the transaction writes, and which run it.
    pub active: ShardSet,
    /// All shards with rows that the transaction reads.
    pub reading: ShardSet,
}

impl Participants {
    /// The participants of a transaction that shard `home` accepted.
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
            // Each shard reads its own copy of a table that is on every shard.
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

    /// The participants of a transaction whose program is divided over them: those on which it
    /// writes. They need no rows of others.
    pub fn divided(self) -> Self {
        let first = || self.active.iter().next().map_or(self.active, ShardSet::one);
        let active = mutate!(DividedOnFirst: self.active => first());
        Self { active, reading: ShardSet::default() }
    }

    /// All participants.
    pub fn all(self) -> ShardSet {
        self.active.union(self.reading)
    }
}
