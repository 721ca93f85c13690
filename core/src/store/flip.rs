//! A flipped bit of a row in memory, as a defective memory module makes one. Tests show with it
//! that replicas find such a row. The cargo feature `planted` enables it; no binary for users has
//! it.

use super::table::{Row, Table};
use super::{Store, read, write};
use crate::hash::hash_bytes;
use crate::ids::TableId;
use crate::key::Key;
use crate::value::Value;

impl Store {
    /// Flips the lowest bit of the last byte of a row's newest value, in place: its version does
    /// not change, and nothing notices. `choice` selects the row among those with a value in
    /// memory. Returns the key, or `None` if no row has one.
    pub fn flip_some(&self, table: TableId, choice: u64) -> Option<Key> {
        self.tables.table(table)?.flip(choice)
    }
}

impl Table {
    fn flip(&self, choice: u64) -> Option<Key> {
        let keys = self.keys_with_values();
        let len = u64::try_from(keys.len()).expect("a count of rows in memory");
        let key = keys.into_iter().nth(usize::try_from(choice.checked_rem(len)?).ok()?)?;
        let hash = hash_bytes(&key);
        let mut rows = write(&self.shards[Self::shard_of(hash)].rows);
        let row = rows.find_mut(hash, |row| row.key == key)?;
        let value = flipped(row)?;
        row.chain.replace_value(value);
        Some(key)
    }

    fn keys_with_values(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            let rows = read(&shard.rows);
            keys.extend(rows.iter().filter(|row| flipped(row).is_some()).map(|it| it.key.clone()));
        }
        keys.sort_unstable();
        keys
    }
}

/// The flipped value of a row, if it has one in memory that is nowhere else.
fn flipped(row: &Row) -> Option<Value> {
    let newest = row.chain.newest();
    let value = newest.value.as_ref().filter(|it| !it.is_cold() && !newest.has_copy())?;
    let mut bytes = value.to_vec();
    *bytes.last_mut()? ^= 1;
    Some(bytes.into())
}
