//! Sets of shards.

use super::SHARDS_MAX;
use crate::ids::ShardId;

/// A set of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardSet(u128);

impl ShardSet {
    /// The set of one shard.
    pub fn one(shard: ShardId) -> Self {
        assert!(shard.0 < SHARDS_MAX, "there must be at most {SHARDS_MAX} shards");
        Self(1 << shard.0)
    }

    /// The set of the first `shards` shards.
    pub fn all(shards: u16) -> Self {
        (0..shards).map(ShardId).collect()
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of shards in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set contains a shard.
    pub fn contains(self, shard: ShardId) -> bool {
        self.0 & Self::one(shard).0 != 0
    }

    /// The union of two sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The shards that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The set without one shard.
    #[must_use]
    pub fn except(self, shard: ShardId) -> Self {
        self.without(Self::one(shard))
    }

    /// Iterates over the shards in ascending order.
    pub fn iter(self) -> impl Iterator<Item = ShardId> {
        let rest = |left: &u128| Some(left & left.wrapping_sub(1));
        let left = std::iter::successors(Some(self.0), rest).take_while(|left| *left != 0);
        left.map(|left| ShardId(left.trailing_zeros() as u16))
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

    #[test]
    fn sets_of_shards_are_sets() {
        let some: ShardSet = [3, 0, 127].into_iter().map(ShardId).collect();
        assert_eq!(some.iter().collect::<Vec<_>>(), [0, 3, 127].map(ShardId));
        assert_eq!(some.except(ShardId(3)).len(), 2);
        assert!(some.without(some).is_empty());
        assert_eq!(ShardSet::all(SHARDS_MAX).len(), usize::from(SHARDS_MAX));
    }
}
