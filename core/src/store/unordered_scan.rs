//! Unordered scans of a whole table, in memory order.
//!
//! An ordered scan finds each key's row by its hash, which causes a few cache misses for each. A
//! reader that needs all rows in no particular order scans the hash table itself, shard by shard,
//! on any number of threads. This leaves one miss for the value of a row that is not stored inline;
//! those of a group are prefetched in parallel.

use std::hint::black_box;
use std::ops::ControlFlow;

use super::cache_prefetch::WARM_GROUP;
use super::table::{HASH_SHARDS, Table};
use super::{Pin, Store, Version, Want, read};
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::txn::Taken;

/// The number of values not in memory that are fetched at a time.
const PASSING_ROWS: usize = if cfg!(test) { 2 } else { 256 };

/// A table at one snapshot, in partitions that can be read in parallel.
#[derive(Debug)]
pub struct UnorderedScan {
    pin: Pin,
    table: TableId,
}

impl Pin {
    /// An unordered scan of a table.
    pub fn unordered_scan(&self, table: TableId) -> UnorderedScan {
        UnorderedScan { pin: self.clone(), table }
    }
}

impl UnorderedScan {
    /// The number of partitions. Each row is in one of them.
    pub const PARTS: usize = HASH_SHARDS;

    /// An estimate of the table's memory in bytes.
    pub fn bytes(&self) -> usize {
        self.table().map_or(0, Table::memory_bytes)
    }

    /// The number of rows in a partition. Reads no values.
    ///
    /// # Panics
    /// If there is no such partition.
    pub fn count(&self, part: usize) -> usize {
        self.table().map_or(0, |table| table.count_part(part, self.pin.version()))
    }

    /// Appends the rows of a partition to `taken`. The partition is locked during the call, so the
    /// caller processes the rows afterwards.
    ///
    /// # Panics
    /// If there is no such partition.
    pub fn take(&self, part: usize, taken: &mut Taken) {
        let Some(table) = self.table() else { return };
        let cold = table.take_part(part, self.pin.version(), taken);
        if !cold.is_empty() {
            self.pin.store().take_passing(self.table, table, &cold, self.pin.version(), taken);
        }
    }

    fn table(&self) -> Option<&Table> {
        self.pin.store().tables.table(self.table)
    }
}

impl Table {
    fn count_part(&self, part: usize, at: SnapshotVersion) -> usize {
        let rows = read(&self.shards[part].rows);
        let is_live = |version: &&Version| version.value.is_some();
        rows.iter().filter_map(|row| row.chain.visible(at)).filter(is_live).count()
    }

    /// Takes the rows of a partition whose values are in memory. Returns the keys of the others.
    fn take_part(&self, part: usize, at: SnapshotVersion, taken: &mut Taken) -> Vec<Key> {
        let rows = read(&self.shards[part].rows);
        taken.reserve(rows.len());
        let mut cold = Vec::new();
        let mut live = rows.iter().filter_map(|row| {
            let value = row.chain.visible(at)?.value.as_ref()?;
            if value.is_cold() {
                cold.push(row.key.clone());
                return None;
            }
            Some((&row.key, value))
        });
        loop {
            let mut group = [const { None }; WARM_GROUP];
            let mut touched = 0;
            for (place, row) in group.iter_mut().zip(&mut live) {
                *place = Some(row);
            }
            // One kind of miss at a time, so that those of a group overlap.
            for (_, value) in group.iter().flatten() {
                touched ^= value.first().copied().unwrap_or(0);
            }
            black_box(touched);
            group.iter().flatten().for_each(|(key, value)| taken.push(key, value));
            if group[WARM_GROUP - 1].is_none() {
                break;
            }
        }
        drop(live);
        cold
    }
}

impl Store {
    /// Takes rows whose values are not in memory, without loading them.
    fn take_passing(
        &self,
        id: TableId,
        table: &Table,
        keys: &[Key],
        at: SnapshotVersion,
        taken: &mut Taken,
    ) {
        let take = &mut |key: &Key, version: &Version| {
            version.value.iter().for_each(|value| taken.push(key, value));
            ControlFlow::Continue(())
        };
        for keys in keys.chunks(PASSING_ROWS) {
            let _ = self.visit_all(Want::Passing, (id, table), keys, at, take);
        }
    }
}
