//! The partitioning of a table, as declared by PARTITION BY.
//!
//! The store sees only the table's number ([`Rule::number`]), which cannot encode where ranges
//! begin. Each key of a table that is partitioned by RANGE therefore begins with the number of its
//! range, which is also the number of its shard. Keys are built only by code that has read the
//! table's record and knows from it where the ranges begin. This works in the transaction that
//! creates the table, in a snapshot of the past, and after a restart.
//!
//! ```text
//!   PRIMARY KEY (a)   range   key in the store
//!   7                 0       00 | 7
//!   100               1       01 | 100         SPLIT AT VALUES ((100))
//! ```
//!
//! Stored keys still sort in the order of the primary key. A range of the primary key is one range
//! of stored keys, on exactly the shards that store rows in this range.

use pangea_core::key::{Key, KeyRange};
use pangea_core::partition::Rule;
use serde::{Deserialize, Serialize};

/// The partitioning of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Partitioning columns, by position: a prefix of the primary key.
    pub columns: Vec<usize>,
    /// Partitioning method.
    pub by: PartitionBy,
}

/// The partitioning method: how columns determine the shard of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartitionBy {
    /// By a hash of the columns.
    Hash,
    /// By ranges of the columns.
    Range(Ranges),
}

/// Ranges of a primary key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    /// First key of each range except the first, in ascending order.
    pub starts: Vec<Vec<u8>>,
}

impl Ranges {
    /// The partitioning rule that the numbers of range-partitioned tables encode.
    pub(crate) const RULE: Rule = Rule::OF_FIRST_BYTE;

    /// Returns the stored form of a primary key.
    pub fn key(&self, plain: &[u8]) -> Key {
        Key::from(&self.numbered(plain)[..])
    }

    /// Returns the stored form of a range of primary keys.
    pub fn range(&self, plain: &KeyRange) -> KeyRange {
        let end = match &plain.end {
            // A partition that begins at `end` has no key below `end`.
            Some(end) => Self::behind(self.starts.partition_point(|start| start < end), end),
            None => Self::behind(self.starts.len() + 1, &[]),
        };
        KeyRange { start: self.numbered(&plain.start), end: Some(end) }
    }

    /// Returns the primary key of a stored key.
    pub fn plain(key: &[u8]) -> &[u8] {
        key.get(1..).unwrap_or_default()
    }

    fn numbered(&self, plain: &[u8]) -> Vec<u8> {
        Self::behind(self.starts.partition_point(|start| &start[..] <= plain), plain)
    }

    fn behind(number: usize, plain: &[u8]) -> Vec<u8> {
        let number = u8::try_from(number).expect("as many ranges as there may be shards");
        [&[number], plain].concat()
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::{ShardId, TableId};
    use pangea_core::partition::Partitions;
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 0..3)
    }

    proptest! {
        #[test]
        fn a_range_of_keys_has_the_same_rows_in_the_same_order_on_the_shards_that_have_them(
            starts in prop::collection::btree_set(key(), 0..4),
            keys in prop::collection::btree_set(key(), 0..20),
            start in key(),
            end in prop::option::of(key()),
        ) {
            let ranges = Ranges { starts: starts.into_iter().collect() };
            let table = Ranges::RULE.number(TableId(1_000)).unwrap();
            let partitions = Partitions::new(5, Rule::OF_WHOLE_KEY);
            let plain = KeyRange { start, end };
            let stored = ranges.range(&plain);
            let kept: Vec<Key> = keys.iter().map(|key| ranges.key(key)).collect();
            prop_assert!(kept.is_sorted());
            for (key, kept) in keys.iter().zip(&kept) {
                prop_assert_eq!(Ranges::plain(kept), &key[..]);
                prop_assert_eq!(stored.contains(kept), plain.contains(key), "{:?}", key);
                let shard = partitions.shard_of(table, kept);
                let before = ranges.starts.iter().filter(|start| *start <= key).count();
                prop_assert_eq!(shard, Some(ShardId(before as u16)));
            }
            let shards = partitions.shards_of(table, &stored).unwrap();
            // Exactly the shards that could have a row.
            let has = |at: usize| {
                let from = at.checked_sub(1).map(|at| ranges.starts[at].clone());
                let start = from.unwrap_or_default().max(plain.start.clone());
                let ends = [ranges.starts.get(at), plain.end.as_ref()];
                ends.into_iter().flatten().all(|end| start < *end)
            };
            let expected = (0..=ranges.starts.len()).filter(|at| has(*at));
            let expected = expected.map(|at| ShardId(at as u16)).collect();
            prop_assert!(plain.is_empty() || shards == expected, "{:?} {:?}", shards, expected);
        }
    }
}
