//! Placement: the shard of each slot.

use std::fmt;
use std::sync::Arc;

use super::{SHARDS_MAX, ShardSet};
use crate::ids::ShardId;

/// The number of slots. A table's rule maps each key to one of them.
pub const SLOTS: u16 = 1_024;

/// A slot: the rows that always are on one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

impl Slot {
    /// All slots, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SLOTS).map(Self)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// The shard of each slot.
#[derive(Clone, PartialEq, Eq)]
pub struct Placement {
    /// By slot.
    shards: Arc<[ShardId]>,
    /// The shards that have a slot.
    owners: ShardSet,
}

impl Placement {
    /// The slots are dealt to `shards` shards in turn.
    ///
    /// # Panics
    /// If `shards` is 0 or more than [`SHARDS_MAX`].
    pub fn initial(shards: u16) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shards), "there must be from 1 to {SHARDS_MAX} shards");
        Self::of(Slot::all().map(|slot| ShardId(slot.0 % shards)).collect())
    }

    fn of(shards: Vec<ShardId>) -> Self {
        assert_eq!(shards.len(), usize::from(SLOTS), "each slot has a shard");
        let owners = shards.iter().copied().collect();
        Self { shards: shards.into(), owners }
    }

    /// The same placement except for some slots, each with its shard.
    #[must_use]
    pub fn with(&self, moves: impl IntoIterator<Item = (Slot, ShardId)>) -> Self {
        let mut shards = self.shards.to_vec();
        for (slot, shard) in moves {
            shards[usize::from(slot.0)] = shard;
        }
        Self::of(shards)
    }

    /// The shard of a slot.
    #[inline]
    pub fn owner(&self, slot: Slot) -> ShardId {
        self.shards[usize::from(slot.0)]
    }

    /// The shards that have a slot.
    pub fn owners(&self) -> ShardSet {
        self.owners
    }

    /// The shards that have one of these slots.
    pub fn owners_of(&self, slots: &SlotSet) -> ShardSet {
        let mut owners = ShardSet::default();
        for slot in slots.iter() {
            owners = owners.union(ShardSet::one(self.owner(slot)));
            if owners == self.owners {
                break;
            }
        }
        owners
    }

    /// The slots of a shard.
    pub fn slots_of(&self, shard: ShardId) -> SlotSet {
        Slot::all().filter(|slot| self.owner(*slot) == shard).collect()
    }

    /// The slots that are on another shard here than in `other`, with their shards here.
    pub fn changed_from(&self, other: &Self) -> impl Iterator<Item = (Slot, ShardId)> {
        let changed = Slot::all().filter(|slot| self.owner(*slot) != other.owner(*slot));
        changed.map(|slot| (slot, self.owner(slot)))
    }
}

impl fmt::Debug for Placement {
    /// Leaves out the slots that are where they are at first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = self.owners.iter().last().map_or(1, |last| last.0 + 1);
        let initial = Self::initial(shards);
        let moved = self.changed_from(&initial);
        f.debug_map().entries(moved.map(|(slot, shard)| (slot.0, shard.0))).finish()
    }
}

const WORD: usize = u64::BITS as usize;

/// A set of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSet([u64; SLOTS as usize / WORD]);

impl SlotSet {
    /// The set of all slots.
    pub fn all() -> Self {
        Self([u64::MAX; SLOTS as usize / WORD])
    }

    /// The set of one slot.
    pub fn one(slot: Slot) -> Self {
        std::iter::once(slot).collect()
    }

    /// Adds a slot.
    pub fn insert(&mut self, slot: Slot) {
        assert!(slot.0 < SLOTS, "there are {SLOTS} slots");
        self.0[usize::from(slot.0) / WORD] |= 1 << (usize::from(slot.0) % WORD);
    }

    /// Whether the set contains a slot.
    #[inline]
    pub fn contains(&self, slot: Slot) -> bool {
        self.0[usize::from(slot.0) / WORD] & 1 << (usize::from(slot.0) % WORD) != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The number of slots in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the sets have a slot in common.
    pub fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(one, other)| one & other != 0)
    }

    /// Iterates over the slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        let rest = |left: &u64| Some(left & left.wrapping_sub(1));
        (0..).zip(&self.0).flat_map(move |(word, bits)| {
            let left = std::iter::successors(Some(*bits), rest).take_while(|left| *left != 0);
            left.map(move |left| Slot(word * WORD as u16 + left.trailing_zeros() as u16))
        })
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::default();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_dealt_to_the_shards_in_turn_and_stay_there_unless_they_are_moved() {
        let first = Placement::initial(3);
        let owners = [0, 1, 2, 3, 4, 1_023].map(|slot| first.owner(Slot(slot)).0);
        assert_eq!(owners, [0, 1, 2, 0, 1, 0]);
        assert_eq!(first.owners(), ShardSet::all(3));
        let moves = [(Slot(1), ShardId(0)), (Slot(3), ShardId(2))];
        let second = first.with(moves);
        assert_eq!(second.changed_from(&first).collect::<Vec<_>>(), moves);
        assert_eq!(second.slots_of(ShardId(0)).len(), first.slots_of(ShardId(0)).len());
        assert_eq!(second.owners_of(&[Slot(1), Slot(3)].into_iter().collect()).len(), 2);
    }

    #[test]
    fn a_shard_whose_slots_are_moved_away_owns_nothing() {
        let first = Placement::initial(3);
        let away = first.slots_of(ShardId(1));
        assert_eq!(away.len(), 341);
        let drained = first.with(away.iter().map(|slot| (slot, ShardId(0))));
        assert_eq!(drained.owners().iter().collect::<Vec<_>>(), [ShardId(0), ShardId(2)]);
        assert!(drained.slots_of(ShardId(1)).is_empty());
        assert_eq!(drained.owners_of(&SlotSet::all()), drained.owners());
    }

    #[test]
    fn sets_of_slots_are_sets() {
        let some: SlotSet = [3, 0, 64, 1_023].into_iter().map(Slot).collect();
        assert_eq!(some.iter().collect::<Vec<_>>(), [0, 3, 64, 1_023].map(Slot));
        assert_eq!((some.len(), SlotSet::all().len()), (4, usize::from(SLOTS)));
        assert!(some.contains(Slot(64)) && !some.contains(Slot(65)));
        assert!(some.meets(&SlotSet::one(Slot(3))) && !some.meets(&SlotSet::one(Slot(4))));
        assert!(SlotSet::default().is_empty() && !some.is_empty());
    }
}
