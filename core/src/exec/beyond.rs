//! Rows of other shards, which came in messages, beside those of this shard's store.

use std::collections::BTreeMap;

use crate::ids::{ShardId, TableId};
use crate::key::{Direction, Key};
use crate::partition::Partitions;
use crate::txn::{Scan, Write};
use crate::value::Value;

/// Rows by table and key: values, and no deletions.
pub(super) type Rows = BTreeMap<(TableId, Key), Write>;

/// What a program sees of other shards.
#[derive(Clone, Copy)]
pub(super) struct Beyond<'a> {
    pub partitions: &'a Partitions,
    pub here: ShardId,
    /// The rows of other shards. What is not among them is not there, as far as it is known.
    pub rows: &'a Rows,
}

impl Beyond<'_> {
    /// Whether a row is one of this shard's.
    pub fn is_here(&self, table: TableId, key: &[u8]) -> bool {
        self.partitions.holds(self.here, table, key)
    }

    /// A row of another shard.
    pub fn get(&self, table: TableId, key: &Key) -> Option<Value> {
        self.rows.get(&(table, key.clone())).and_then(|row| row.value.clone())
    }

    /// The rows of other shards within a scan, in its order, under what the program wrote there.
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
