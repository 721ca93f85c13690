//! Clocks: how far each shard's log must be replicated before a transaction is told (§4.2, §4.4).
//!
//! The paper gives each row a vector with an entry for every shard. Here a transaction has one
//! number, its version, and a clock names only the shards on which it depends:
//!
//! ```text
//!   T writes on shards 0 and 2 at version 9,     clock of T    { 0: 9, 2: 9, 3: 7 }
//!   and has read a row of version 7 of shard 3
//!                                                watermarks    [ 9, 4, 9, 6 ]   not settled
//! ```
//!
//! Entries that the watermarks have passed are left out, and nearly all local transactions have no
//! other entry. If a transaction has read what another one wrote, its clock is not below the
//! other's, in any entry that is not settled (Lemma 2).
//!
//! With many shards, several can share an entry (§6.1): the entry has the maximum of their numbers,
//! and waits for the minimum of their watermarks.

use std::collections::BTreeMap;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{ShardId, SnapshotVersion};
use pangea_core::mutate;

use crate::streams::number;

/// The number of an entry of a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// The division of shards into groups that share an entry: K shards in M entries (§6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    shards: u16,
    slots: u16,
}

impl Groups {
    /// Divides `shards` shards into `slots` groups. If there are fewer shards, or `slots` is 0,
    /// each has its own.
    pub fn new(shards: u16, slots: u16) -> Self {
        assert!(shards > 0, "there is a shard");
        let slots = if slots == 0 { shards } else { slots.min(shards) };
        Self { shards, slots }
    }

    /// The entry of a shard. Consecutive shards share one, and the groups differ in size by one at
    /// most.
    pub fn slot_of(self, shard: ShardId) -> Slot {
        assert!(shard.0 < self.shards, "{shard} is a shard");
        Slot((u32::from(shard.0) * u32::from(self.slots) / u32::from(self.shards)) as u16)
    }

    /// The number of groups: that of the entries of a clock.
    pub fn slots(self) -> u16 {
        self.slots
    }

    /// The watermark of each entry: the least one of its shards (§4.4).
    pub fn watermarks(self, of_shards: &[SnapshotVersion]) -> Vec<SnapshotVersion> {
        assert_eq!(of_shards.len(), usize::from(self.shards), "each shard has a watermark");
        let mut all = vec![SnapshotVersion(u64::MAX); usize::from(self.slots)];
        for (shard, watermark) in (0..self.shards).map(ShardId).zip(of_shards) {
            let least = &mut all[usize::from(self.slot_of(shard).0)];
            *least = mutate!(MakoGroupOfFirstMember: (*least).min(*watermark) => match *least {
                SnapshotVersion(u64::MAX) => *watermark,
                of_first => of_first,
            });
        }
        all
    }
}

/// The versions of other transactions, by entry, without which a transaction can't be told.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Clock(BTreeMap<Slot, SnapshotVersion>);

impl Clock {
    /// Whether it names no version.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = (Slot, SnapshotVersion)> {
        self.0.iter().map(|(slot, version)| (*slot, *version))
    }

    /// Depends on this version, too.
    pub fn raise(&mut self, slot: Slot, version: SnapshotVersion) {
        let entry = self.0.entry(slot).or_default();
        *entry = version.max(*entry);
    }

    /// Depends on everything on which the other one depends.
    pub fn merge(&mut self, other: &Self) {
        other.entries().for_each(|(slot, version)| self.raise(slot, version));
    }

    /// Whether everything on which it depends is below these watermarks (§4.4: "T's version falls
    /// below the latest vector watermark").
    pub fn is_below(&self, watermarks: &[SnapshotVersion]) -> bool {
        let is_below = |(slot, version): (Slot, SnapshotVersion)| {
            watermarks.get(usize::from(slot.0)).is_some_and(|watermark| version <= *watermark)
        };
        self.entries().all(is_below)
    }

    /// Leaves out the entries that the watermarks have passed.
    pub fn forget(&mut self, watermarks: &[SnapshotVersion]) {
        let is_above = |slot: &Slot, version: &SnapshotVersion| {
            watermarks.get(usize::from(slot.0)).is_none_or(|watermark| version > watermark)
        };
        self.0.retain(|slot, version| is_above(slot, version));
    }

    /// Appends the encoding to `out`. [`Clock::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.0.len() as u64);
        for (slot, version) in self.entries() {
            out.put_varint(slot.0.into());
            out.put_varint(version.0);
        }
    }

    /// The number of bytes of its encoding.
    pub fn size(&self) -> u64 {
        let mut out = Vec::new();
        self.encode(&mut out);
        out.len() as u64
    }

    /// Decodes a clock with entries for `slots` groups.
    ///
    /// # Errors
    /// If the bytes are malformed, or name another group.
    pub fn decode(from: &mut Reader<'_>, slots: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "clock";
        let entry = |from: &mut Reader<'_>| {
            let slot = number(from, WHAT)?;
            let version = SnapshotVersion(number(from, WHAT)?);
            match (slot as usize) < slots {
                true => Ok((Slot(slot as u16), version)),
                false => Err(DecodeError::new(WHAT)),
            }
        };
        Ok(Self((0..from.count(WHAT)?).map(|_| entry(from)).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clock(entries: &[(u16, u64)]) -> Clock {
        let mut clock = Clock::default();
        entries.iter().for_each(|(slot, at)| clock.raise(Slot(*slot), SnapshotVersion(*at)));
        clock
    }

    fn versions(all: &[u64]) -> Vec<SnapshotVersion> {
        all.iter().copied().map(SnapshotVersion).collect()
    }

    /// §4.4: "if a transaction .. has c_i <= w_i for each i .. can transition to COMMITTED".
    #[test]
    fn a_transaction_is_settled_when_all_entries_are_below_the_watermarks() {
        let mut one = clock(&[(0, 9), (2, 9)]);
        assert!(one.is_below(&versions(&[9, 0, 9])) && !one.is_below(&versions(&[9, 9, 8])));
        one.merge(&clock(&[(2, 4), (1, 3)]));
        assert_eq!(one, clock(&[(0, 9), (1, 3), (2, 9)]));
        one.forget(&versions(&[9, 2, 9]));
        assert_eq!(one, clock(&[(1, 3)]));
        assert!(Clock::default().is_below(&versions(&[0, 0, 0])));
    }

    #[test]
    fn clocks_survive_their_encoding() {
        let all = clock(&[(0, 1 << 40), (3, 7)]);
        let mut bytes = Vec::new();
        all.encode(&mut bytes);
        assert_eq!(all.size(), bytes.len() as u64);
        assert_eq!(Clock::decode(&mut Reader::new(&bytes), 4), Ok(all));
        assert!(Clock::decode(&mut Reader::new(&bytes), 3).is_err(), "there are three groups");
        for len in 0..bytes.len() {
            assert!(Clock::decode(&mut Reader::new(&bytes[..len]), 4).is_err());
        }
    }

    proptest! {
        /// §6.1, and Appendix D, whose division leaves the array if the numbers do not divide.
        #[test]
        fn groups_have_consecutive_shards_and_similar_sizes(
            shards in 1_u16..129,
            slots in 0_u16..140,
        ) {
            let groups = Groups::new(shards, slots);
            let all: Vec<u16> = (0..shards).map(|it| groups.slot_of(ShardId(it)).0).collect();
            prop_assert!(all.is_sorted());
            let count = all.last().unwrap() + 1;
            prop_assert_eq!(count, if slots == 0 { shards } else { slots.min(shards) });
            let sizes: Vec<usize> =
                (0..count).map(|slot| all.iter().filter(|of| **of == slot).count()).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            prop_assert!(*least > 0 && most - least <= 1, "{:?}", sizes);
        }

        /// A compressed clock is settled only if the complete one is.
        #[test]
        fn what_is_settled_in_groups_is_settled_in_each_shard(
            of_shards in prop::collection::vec(0_u64..9, 1..9),
            entries in prop::collection::vec((0_usize..9, 0_u64..9), 0..5),
            slots in 0_u16..9,
        ) {
            let shards = of_shards.len() as u16;
            let of_shards = versions(&of_shards);
            let (all, groups) = (Groups::new(shards, 0), Groups::new(shards, slots));
            let (mut complete, mut compressed) = (Clock::default(), Clock::default());
            for (shard, version) in entries {
                let shard = ShardId((shard % of_shards.len()) as u16);
                complete.raise(all.slot_of(shard), SnapshotVersion(version));
                compressed.raise(groups.slot_of(shard), SnapshotVersion(version));
            }
            let is_settled = complete.is_below(&all.watermarks(&of_shards));
            let watermarks = groups.watermarks(&of_shards);
            prop_assert!(is_settled || !compressed.is_below(&watermarks));
        }
    }
}
