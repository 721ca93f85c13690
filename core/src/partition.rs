//! Which shard holds a row (Calvin §3: tables are spread over the nodes of a region).
//!
//! A table is divided by a prefix of its keys, so that rows which begin alike are together: by the
//! prefix's hash, or by its order. A table that is small and seldom written may be everywhere
//! instead. The rules are part of what a cluster agrees on: where a row is never depends on who
//! asks.
//!
//! ```
//! use pangea_core::ids::{ShardId, TableId};
//! use pangea_core::partition::{Partitions, Rule};
//!
//! let halves = Rule::Ranges { starts: vec![vec![128]] };
//! let partitions = Partitions::new(2, Rule::Hash { prefix_bytes: 4 })
//!     .with(TableId(1), halves)
//!     .with(TableId(2), Rule::Everywhere);
//! assert_eq!(partitions.shard_of(TableId(1), &[127, 9]), Some(ShardId(0)));
//! assert_eq!(partitions.shard_of(TableId(1), &[128]), Some(ShardId(1)));
//! assert_eq!(partitions.shard_of(TableId(2), &[128]), None);
//! ```

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{ShardId, TableId};
use crate::key::KeyRange;

/// So many shards at most.
pub const SHARDS_MAX: u16 = 128;

/// How the rows of a table are spread over the shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Each shard has all rows. Who writes one writes it on every shard.
    Everywhere,
    /// By a hash of the first bytes of the key. A shorter key is hashed whole.
    Hash {
        /// So many bytes.
        prefix_bytes: usize,
    },
    /// In the order of the keys: shard 0 has those below the first start, and so on. Further shards
    /// than there are starts for have nothing of the table.
    Ranges {
        /// Where each shard but the first begins, in ascending order.
        starts: Vec<Vec<u8>>,
    },
}

impl Rule {
    fn check(&self, shards: u16) {
        if let Self::Ranges { starts } = self {
            assert!(starts.len() < usize::from(shards), "a shard for each range");
            assert!(starts.is_sorted_by(|a, b| a < b), "ranges are in order");
        }
    }
}

/// Where all rows are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    shards: u16,
    default: Rule,
    tables: BTreeMap<TableId, Rule>,
}

impl Default for Partitions {
    /// One shard, which has everything.
    fn default() -> Self {
        Self::new(1, Rule::Everywhere)
    }
}

impl Partitions {
    /// So many shards, over which tables are spread by `default` unless they have a rule.
    ///
    /// # Panics
    /// When there is no shard, or are more than [`SHARDS_MAX`]; and when the rule has ranges that
    /// are not in order, or more than there are shards for.
    pub fn new(shards: u16, default: Rule) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shards), "from 1 to {SHARDS_MAX} shards");
        default.check(shards);
        Self { shards, default, tables: BTreeMap::new() }
    }

    /// The same with a rule for a table.
    ///
    /// # Panics
    /// When the rule has ranges that are not in order, or more than there are shards for.
    #[must_use]
    pub fn with(mut self, table: TableId, rule: Rule) -> Self {
        rule.check(self.shards);
        self.tables.insert(table, rule);
        self
    }

    /// How many shards there are.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// The shard that has a row, or nothing where all have it.
    pub fn shard_of(&self, table: TableId, key: &[u8]) -> Option<ShardId> {
        match self.rule(table) {
            Rule::Everywhere => None,
            Rule::Hash { prefix_bytes } => Some(self.by_hash(key, *prefix_bytes)),
            Rule::Ranges { starts } => Some(by_order(starts, key)),
        }
    }

    /// The shards that may have rows of a range, or nothing where all have all of them.
    pub fn shards_of(&self, table: TableId, range: &KeyRange) -> Option<ShardSet> {
        match self.rule(table) {
            Rule::Everywhere => None,
            _ if range.is_empty() => Some(ShardSet::default()),
            Rule::Hash { prefix_bytes } => {
                let prefix = range.start.get(..*prefix_bytes);
                let is_within = |prefix: &&[u8]| match (&range.end, KeyRange::prefix(prefix).end) {
                    (_, None) => true,
                    (None, Some(_)) => false,
                    (Some(end), Some(end_of_prefix)) => *end <= end_of_prefix,
                };
                Some(match prefix.filter(is_within) {
                    Some(prefix) => ShardSet::one(self.by_hash(prefix, *prefix_bytes)),
                    None => ShardSet::all(self.shards),
                })
            }
            Rule::Ranges { starts } => {
                let first = by_order(starts, &range.start).0;
                let end = match &range.end {
                    Some(end) => starts.partition_point(|start| start < end) as u16,
                    None => starts.len() as u16,
                };
                Some((first..=end).map(ShardId).collect())
            }
        }
    }

    /// Whether a shard has a row.
    pub fn holds(&self, shard: ShardId, table: TableId, key: &[u8]) -> bool {
        self.shard_of(table, key).is_none_or(|of| of == shard)
    }

    fn rule(&self, table: TableId) -> &Rule {
        self.tables.get(&table).unwrap_or(&self.default)
    }

    fn by_hash(&self, key: &[u8], prefix_bytes: usize) -> ShardId {
        let prefix = &key[..key.len().min(prefix_bytes)];
        // Of all builds and machines alike, for rows stay where they are. The high half of the
        // product spreads hashes evenly over any number of shards.
        let spread = u128::from(xxh3_64(prefix)) * u128::from(self.shards);
        ShardId((spread >> 64) as u16)
    }
}

fn by_order(starts: &[Vec<u8>], key: &[u8]) -> ShardId {
    ShardId(starts.partition_point(|start| &start[..] <= key) as u16)
}

/// Some of the shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardSet(u128);

impl ShardSet {
    /// One shard alone.
    pub fn one(shard: ShardId) -> Self {
        assert!(shard.0 < SHARDS_MAX, "at most {SHARDS_MAX} shards");
        Self(1 << shard.0)
    }

    /// The first so many shards.
    pub fn all(shards: u16) -> Self {
        (0..shards).map(ShardId).collect()
    }

    /// Whether none is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many are in it.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether a shard is in it.
    pub fn contains(self, shard: ShardId) -> bool {
        self.0 & Self::one(shard).0 != 0
    }

    /// Those of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that `other` has not.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// All but one.
    #[must_use]
    pub fn except(self, shard: ShardId) -> Self {
        self.without(Self::one(shard))
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = ShardId> {
        (0..SHARDS_MAX).map(ShardId).filter(move |&shard| self.contains(shard))
    }
}

impl FromIterator<ShardId> for ShardSet {
    fn from_iter<I: IntoIterator<Item = ShardId>>(shards: I) -> Self {
        shards.into_iter().map(Self::one).fold(Self::default(), Self::union)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: TableId = TableId(1);

    fn rule() -> impl Strategy<Value = Rule> {
        let start = prop::collection::vec(any::<u8>(), 1..3);
        prop_oneof![
            Just(Rule::Everywhere),
            (0usize..3).prop_map(|prefix_bytes| Rule::Hash { prefix_bytes }),
            prop::collection::btree_set(start, 0..4)
                .prop_map(|starts| Rule::Ranges { starts: starts.into_iter().collect() }),
        ]
    }

    proptest! {
        #[test]
        fn the_shards_of_a_range_have_all_its_rows(
            shards in 4u16..9,
            rule in rule(),
            start in prop::collection::vec(any::<u8>(), 0..3),
            end in prop::option::of(prop::collection::vec(any::<u8>(), 0..3)),
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..40),
        ) {
            let partitions = Partitions::new(shards, Rule::Everywhere).with(TABLE, rule);
            let range = KeyRange { start, end };
            let found = partitions.shards_of(TABLE, &range);
            for key in keys.iter().filter(|key| range.contains(key)) {
                let shard = partitions.shard_of(TABLE, key);
                prop_assert_eq!(shard.is_none(), found.is_none());
                prop_assert!(shard.is_none_or(|shard| found.unwrap().contains(shard)));
                prop_assert!(shard.is_none_or(|shard| shard.0 < shards));
            }
        }
    }

    #[test]
    fn a_range_within_one_prefix_is_on_one_shard_and_a_wider_one_on_all() {
        let partitions = Partitions::new(5, Rule::Hash { prefix_bytes: 2 });
        let of = |start: &[u8], end: Option<&[u8]>| {
            let range = KeyRange { start: start.to_vec(), end: end.map(<[u8]>::to_vec) };
            partitions.shards_of(TABLE, &range).unwrap()
        };
        let one = ShardSet::one(partitions.shard_of(TABLE, &[1, 2, 9]).unwrap());
        assert_eq!(of(&[1, 2], Some(&[1, 3])), one);
        assert_eq!(of(&[1, 2, 7], Some(&[1, 2, 8])), one);
        assert_eq!(of(&[1, 2], Some(&[1, 3, 0])), ShardSet::all(5));
        assert_eq!(of(&[1], Some(&[1, 3])), ShardSet::all(5));
        assert_eq!(of(&[1, 2], None), ShardSet::all(5));
        assert_eq!(of(&[255, 255], None).len(), 1, "no prefix comes after it");
        assert!(of(&[3], Some(&[3])).is_empty());
    }

    #[test]
    fn hashes_spread_rows_evenly_and_are_those_of_every_build() {
        let partitions = Partitions::new(7, Rule::Hash { prefix_bytes: 4 });
        let mut counts = [0; 7];
        for key in 0u32..7_000 {
            counts[usize::from(partitions.shard_of(TABLE, &key.to_be_bytes()).unwrap().0)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        let first: Vec<u16> = (0u32..8)
            .map(|key| partitions.shard_of(TABLE, &key.to_be_bytes()).unwrap().0)
            .collect();
        assert_eq!(first, FIRST, "rows that are on disks would be looked for elsewhere");
    }

    /// Where keys 0 to 7 were when this was written.
    const FIRST: [u16; 8] = [1, 0, 4, 6, 1, 0, 1, 4];

    #[test]
    fn sets_of_shards_are_sets() {
        let some: ShardSet = [3, 0, 127].into_iter().map(ShardId).collect();
        assert_eq!(some.iter().collect::<Vec<_>>(), [0, 3, 127].map(ShardId));
        assert_eq!(some.except(ShardId(3)).len(), 2);
        assert!(some.without(some).is_empty());
        assert_eq!(ShardSet::all(SHARDS_MAX).len(), usize::from(SHARDS_MAX));
    }
}
