//! Rows of other shards, received in messages, combined with those of this shard's store.

use std::collections::BTreeMap;

use crate::ids::{ShardId, TableId};
use crate::key::{Direction, Key};
use crate::partition::Partitions;
use crate::txn::{Scan, Write};
use crate::value::Value;

/// Rows by table and key. All have values; deletions are left out.
pub(super) type Rows = BTreeMap<(TableId, Key), Write>;

/// A program's view of other shards.
#[derive(Clone, Copy)]
pub(super) struct RemoteRows<'a> {
    pub partitions: &'a Partitions,
    pub here: ShardId,
    /// The known rows of other shards. A row that is missing here does not exist, as far as this
    /// node knows.
    pub rows: &'a Rows,
}

impl RemoteRows<'_> {
    /// Whether this shard stores the row.
    pub fn is_here(&self, table: TableId, key: &[u8]) -> bool {
        self.partitions.holds(self.here, table, key)
    }

    /// The value of another shard's row.
    pub fn get(&self, table: TableId, key: &Key) -> Option<Value> {
        self.rows.get(&(table, key.clone())).and_then(|row| row.value.clone())
    }

    /// The rows of other shards within a scan, in its order, with the program's own writes laid
    /// over them.
    pub fn under<'b>(&'b self, own: Vec<&'b Write>, scan: &Scan) -> Vec<&'b Write> {
        let first = (scan.table, Key::from(&scan.range.start[..]));
        let is_within =
            |(table, key): &(TableId, Key)| *table == scan.table && scan.range.contains(key);
        let rows = self.rows.range(first..).take_while(|(row, _)| is_within(row));
        let mut all: BTreeMap<&Key, &'b Write> = rows.map(|((_, key), row)| (key, row)).collect();
        all.extend(own.into_iter().map(|write| (&write.key, write)));
        let mut all: Vec<&'b Write> = all.into_values().collect();
        if scan.direction == Direction::Reverse {
            all.reverse();
        }
        all
    }
}
