//! Where the rows of a table are, as it was made: PARTITION BY.
//!
//! What the store knows of it is the table's number ([`Rule::number`]), which can't say where
//! ranges begin. So the keys of a table by RANGE say it: each begins with the number of its range,
//! which is that of its shard. Only who has read the table's record makes keys of it, and knows
//! from there where its ranges begin: in the transaction that makes the table, in a snapshot of the
//! past, and after a restart.
//!
//! ```text
//!   PRIMARY KEY (a)   range   key in the store
//!   7                 0       00 | 7
//!   100               1       01 | 100         SPLIT AT VALUES ((100))
//! ```
//!
//! Keys are in the order of the primary key still: a range of that is one range of keys, of the
//! shards that have rows of it.

use pangea_core::key::{Key, KeyRange};
use pangea_core::partition::Rule;
use serde::{Deserialize, Serialize};

/// Where rows are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// The columns that say it, by position: the first of the primary key.
    pub columns: Vec<usize>,
    /// How.
    pub by: PartitionBy,
}

/// How columns say where rows are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartitionBy {
    /// By their hash.
    Hash,
    /// By their order.
    Range(Ranges),
}

/// Ranges of a primary key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    /// The key that each range but the first begins with, in ascending order.
    pub starts: Vec<Vec<u8>>,
}

impl Ranges {
    /// What the number of a table says that has ranges.
    pub(crate) const RULE: Rule = Rule::OF_FIRST_BYTE;

    /// A primary key as the store has it.
    pub fn key(&self, plain: &[u8]) -> Key {
        Key::from(&self.numbered(plain)[..])
    }

    /// A range of primary keys as the store has it.
    pub fn range(&self, plain: &KeyRange) -> KeyRange {
        let end = match &plain.end {
            // What begins where this ends has nothing of it.
            Some(end) => Self::behind(self.starts.partition_point(|start| start < end), end),
            None => Self::behind(self.starts.len() + 1, &[]),
        };
        KeyRange { start: self.numbered(&plain.start), end: Some(end) }
    }

    /// The primary key that a key of the store is of.
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
            // Those that could have a row, and no others.
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
