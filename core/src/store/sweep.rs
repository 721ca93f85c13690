//! Reading a whole table in no order, as its rows lie in memory.
//!
//! A scan in order finds each key's row by its hash: a few cache misses for each. Whoever wants all
//! rows and no order goes through the hash table itself, shard by shard, and any number of threads
//! can do so at a time. What is left is one miss for the value of a row that does not hold it in
//! place; those of a group are fetched side by side.

use std::hint::black_box;

use super::table::{HASH_SHARDS, Table};
use super::warm::WARM_GROUP;
use super::{Header, Pin, Version, read};
use crate::ids::{SnapshotVersion, TableId};
use crate::txn::Taken;

/// A table as of one snapshot, in parts that can be read side by side.
#[derive(Debug)]
pub struct Sweep<H: Header> {
    pin: Pin<H>,
    table: TableId,
}

impl<H: Header> Pin<H> {
    /// All of a table, in parts.
    pub fn sweep(&self, table: TableId) -> Sweep<H> {
        Sweep { pin: self.clone(), table }
    }
}

impl<H: Header> Sweep<H> {
    /// How many parts there are. Each row is in one of them.
    pub const PARTS: usize = HASH_SHARDS;

    /// About how much memory the table takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.table().map_or(0, Table::memory_bytes)
    }

    /// How many rows a part has. Looks at no value.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn count(&self, part: usize) -> usize {
        self.table().map_or(0, |table| table.count_part(part, self.pin.version()))
    }

    /// Appends the rows of a part to `taken`. Their shard is locked meanwhile: they are looked at
    /// afterwards.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn take(&self, part: usize, taken: &mut Taken) {
        if let Some(table) = self.table() {
            table.take_part(part, self.pin.version(), taken);
        }
    }

    fn table(&self) -> Option<&Table<H>> {
        self.pin.store().tables.table(self.table)
    }
}

impl<H: Header> Table<H> {
    fn count_part(&self, part: usize, at: SnapshotVersion) -> usize {
        let rows = read(&self.shards[part].rows);
        let is_live = |version: &&Version<H>| version.value.is_some();
        rows.iter().filter_map(|row| row.chain.visible(at)).filter(is_live).count()
    }

    fn take_part(&self, part: usize, at: SnapshotVersion, taken: &mut Taken) {
        let rows = read(&self.shards[part].rows);
        taken.reserve(rows.len());
        let mut live = rows.iter().filter_map(|row| {
            let value = row.chain.visible(at)?.value.as_ref()?;
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
                return;
            }
        }
    }
}
