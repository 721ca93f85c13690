//! Placement: which slots were moved to which shards, since which epoch, and which are on their way
//! (§6.2, B). It is part of the configuration.
//!
//! ```text
//!   epoch 4: slots 1 and 3 are to move to shard 2        the migration begins
//!   epoch 5: a leader has failed                         it begins anew
//!   epoch 6: slots 1 and 3 are on shard 2                it has ended
//!              `-- snapshots from the first version of epoch 6 on read them there
//! ```

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::partition::{Placement, SHARDS_MAX, SLOTS, Slot, SlotSet};
use serde::{Deserialize, Serialize};

use super::super::versions::{EPOCH_MAX, Epoch, start_of};
use crate::streams::number;

/// The number of changes that are remembered. Older snapshots can't be read.
pub(crate) const CHANGES_MAX: usize = 64;

const WHAT: &str = "placement";

/// Slots, each with the shard to which it is moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves(Vec<(u16, u16)>);

impl Moves {
    /// Of a client, or none if the same slot is there twice.
    pub(crate) fn new(mut moves: Vec<(Slot, ShardId)>) -> Option<Self> {
        moves.sort_unstable();
        let is_twice = moves.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (!is_twice).then(|| Self(moves.into_iter().map(|(slot, to)| (slot.0, to.0)).collect()))
    }

    /// The slots, each with its next shard.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, ShardId)> {
        self.0.iter().map(|(slot, shard)| (Slot(*slot), ShardId(*shard)))
    }

    /// Whether each slot and each of `shards` shards exists.
    pub(crate) fn is_sound(&self, shards: u16) -> bool {
        let is_one = |(slot, shard): &(u16, u16)| *slot < SLOTS && *shard < shards;
        self.0.iter().all(is_one) && self.0.is_sorted_by(|a, b| a.0 < b.0)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.0.len() as u64);
        let mut next = 0;
        for (slot, shard) in &self.0 {
            // Slots that follow each other take two bytes each.
            out.put_varint(u64::from(slot - next));
            out.put_varint(u64::from(*shard));
            next = slot + 1;
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut next = 0;
        let moves = (0..from.count(WHAT)?).map(|_| {
            let (slot, shard) = (next + number(from, WHAT)?, number(from, WHAT)?);
            if slot >= u64::from(SLOTS) || shard >= u64::from(SHARDS_MAX) {
                return Err(DecodeError::new(WHAT));
            }
            next = slot + 1;
            Ok((slot as u16, shard as u16))
        });
        Ok(Self(moves.collect::<Result<_, _>>()?))
    }
}

/// Names a client's request to move slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId {
    /// The node of the client.
    pub node: NodeId,
    /// The node's name for it.
    pub token: u64,
}

impl RequestId {
    fn encode(self, out: &mut Vec<u8>) {
        out.put_u16(self.node.0);
        out.put_u64(self.token);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { node: NodeId(from.u16(WHAT)?), token: from.u64(WHAT)? })
    }
}

/// Slots that move together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// The request for it.
    pub(crate) request: RequestId,
    /// The slots.
    pub(crate) moves: Moves,
}

/// A migration that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// The slots are on their shards since this epoch.
    pub epoch: u64,
    pub migration: Migration,
}

/// The changes of the placement, and the migration that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// The slots that were moved by changes which are forgotten.
    before: Moves,
    /// The epoch of the last one of these.
    forgotten: u64,
    changes: Vec<Change>,
    /// The migration that runs.
    pub(crate) migration: Option<Migration>,
}

impl Slots {
    /// Whether any slot was moved, or is moving.
    pub(crate) fn have_moved(&self) -> bool {
        self.migration.is_some() || !self.changes.is_empty() || !self.before.0.is_empty()
    }

    /// The epoch since which the placement is the present one.
    pub(crate) fn since(&self) -> Epoch {
        Epoch(self.changes.last().map_or(self.forgotten, |change| change.epoch))
    }

    /// The present placement.
    pub(crate) fn placement(&self, initial: &Placement) -> Placement {
        self.placement_of(initial, self.changes.len())
    }

    fn placement_of(&self, initial: &Placement, changes: usize) -> Placement {
        let changes = self.changes[..changes].iter().flat_map(|it| it.migration.moves.iter());
        initial.with(self.before.iter().chain(changes))
    }

    /// The placement in the snapshot of a version, or none if it is forgotten.
    pub(crate) fn placement_at(
        &self,
        initial: &Placement,
        version: SnapshotVersion,
    ) -> Option<Placement> {
        if version < start_of(Epoch(self.forgotten)) {
            return None;
        }
        let is_before = |change: &Change| start_of(Epoch(change.epoch)) <= version;
        let count = self.changes.partition_point(is_before);
        let count = mutate!(MakoMovesNewOwnerOfOld: count => self.changes.len());
        Some(self.placement_of(initial, count))
    }

    /// The slots that no transaction may access, if the last epoch that has begun is this one.
    pub(crate) fn barred(&self, begun: Epoch) -> SlotSet {
        let last = self.changes.last().filter(|change| Epoch(change.epoch) > begun);
        let moves = self.migration.iter().chain(last.map(|change| &change.migration));
        moves.flat_map(|migration| migration.moves.iter()).map(|(slot, _)| slot).collect()
    }

    /// The migration that a request has led to, with the epoch of its end if it has ended.
    pub(crate) fn of_request(&self, request: RequestId) -> Option<Option<Epoch>> {
        let is_it = |migration: &Migration| migration.request == request;
        if self.migration.as_ref().is_some_and(is_it) {
            return Some(None);
        }
        let ended = self.changes.iter().find(|change| is_it(&change.migration))?;
        Some(Some(Epoch(ended.epoch)))
    }

    /// A migration begins.
    pub(crate) fn begin(&self, migration: Migration) -> Self {
        Self { migration: Some(migration), ..self.clone() }
    }

    /// The migration has ended with the epoch of this number.
    pub(crate) fn end(&self, initial: &Placement, epoch: u64) -> Self {
        let mut next = self.clone();
        let Some(migration) = next.migration.take() else { return next };
        next.changes.push(Change { epoch, migration });
        if next.changes.len() > CHANGES_MAX {
            let before = next.placement_of(initial, 1);
            let moves = before.changed_from(initial).collect();
            next.before = Moves::new(moves).expect("each slot is there once");
            next.forgotten = next.changes.remove(0).epoch;
        }
        next
    }

    /// Whether the voters of a cluster of `shards` shards can have decided this, in an epoch of
    /// this number or an earlier one.
    pub(crate) fn is_sound(&self, shards: u16, number: u64) -> bool {
        let epochs = self.changes.iter().map(|change| change.epoch);
        let epochs: Vec<u64> = std::iter::once(self.forgotten).chain(epochs).collect();
        let of_changes = self.changes.iter().map(|change| &change.migration);
        let all = of_changes.chain(&self.migration).map(|migration| &migration.moves);
        self.changes.len() <= CHANGES_MAX
            && epochs.is_sorted_by(|a, b| a < b)
            && epochs.iter().all(|epoch| *epoch <= number.min(EPOCH_MAX))
            && all.chain([&self.before]).all(|moves| moves.is_sound(shards))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let encode = |migration: &Migration, out: &mut Vec<u8>| {
            migration.request.encode(out);
            migration.moves.encode(out);
        };
        self.before.encode(out);
        out.put_varint(self.forgotten);
        out.put_varint(self.changes.len() as u64);
        for Change { epoch, migration } in &self.changes {
            out.put_varint(*epoch);
            encode(migration, out);
        }
        out.put_u8(u8::from(self.migration.is_some()));
        self.migration.iter().for_each(|migration| encode(migration, out));
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        fn migration(from: &mut Reader<'_>) -> Result<Migration, DecodeError> {
            Ok(Migration { request: RequestId::decode(from)?, moves: Moves::decode(from)? })
        }
        let before = Moves::decode(from)?;
        let forgotten = number(from, WHAT)?;
        let change = |from: &mut Reader<'_>| {
            Ok(Change { epoch: number(from, WHAT)?, migration: migration(from)? })
        };
        let changes = (0..from.count(WHAT)?).map(|_| change(from));
        let changes = changes.collect::<Result<_, DecodeError>>()?;
        let runs = match from.u8(WHAT)? {
            0 => None,
            1 => Some(migration(from)?),
            _ => return Err(DecodeError::new(WHAT)),
        };
        Ok(Self { before, forgotten, changes, migration: runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration(token: u64, moves: &[(u16, u16)]) -> Migration {
        let moves = moves.iter().map(|(slot, shard)| (Slot(*slot), ShardId(*shard))).collect();
        let request = RequestId { node: NodeId(2), token };
        Migration { request, moves: Moves::new(moves).unwrap() }
    }

    /// §6.2, B: until the migration has ended, its slots are where they were, and nobody may access
    /// them.
    #[test]
    fn slots_are_on_their_shards_when_the_epoch_of_the_end_has_begun() {
        let initial = Placement::initial(3);
        let first = Slots::default();
        assert!(!first.have_moved() && first.barred(Epoch(1)).is_empty());
        let request = RequestId { node: NodeId(2), token: 7 };
        assert_eq!(first.of_request(request), None);
        let runs = first.begin(migration(7, &[(1, 2), (3, 2)]));
        assert_eq!(runs.placement(&initial), initial);
        assert_eq!(runs.barred(Epoch(4)), [Slot(1), Slot(3)].into_iter().collect());
        assert_eq!(runs.of_request(request), Some(None));
        let ended = runs.end(&initial, 6);
        assert_eq!(ended.of_request(request), Some(Some(Epoch(6))));
        assert_eq!(ended.placement(&initial).owner(Slot(1)), ShardId(2));
        assert_eq!(ended.barred(Epoch(5)), runs.barred(Epoch(4)), "its epoch has not begun");
        assert!(ended.barred(Epoch(6)).is_empty());
        assert_eq!(ended.since(), Epoch(6));
        let before = SnapshotVersion(start_of(Epoch(6)).0 - 1);
        assert_eq!(ended.placement_at(&initial, before), Some(initial.clone()));
        let after = ended.placement_at(&initial, start_of(Epoch(6)));
        assert_eq!(after, Some(ended.placement(&initial)));
    }

    #[test]
    fn old_changes_are_forgotten_and_their_slots_stay_moved() {
        let initial = Placement::initial(3);
        let mut slots = Slots::default();
        for epoch in 1..=CHANGES_MAX as u64 + 2 {
            let moves = [(epoch as u16, 2), (900, (epoch % 3) as u16)];
            slots = slots.begin(migration(epoch, &moves)).end(&initial, 2 * epoch);
            assert!(slots.is_sound(3, 2 * epoch) && !slots.is_sound(3, 2 * epoch - 1));
        }
        assert!(!slots.is_sound(2, 1_000), "there is a shard 2");
        let now = slots.placement(&initial);
        assert!((1..=66).all(|slot| now.owner(Slot(slot)) == ShardId(2)));
        assert_eq!(slots.placement_at(&initial, start_of(Epoch(3))), None);
        let oldest = slots.placement_at(&initial, start_of(Epoch(5))).unwrap();
        assert_eq!([2, 4].map(|slot| oldest.owner(Slot(slot)).0), [2, 1]);
        let mut bytes = Vec::new();
        slots.encode(&mut bytes);
        assert_eq!(Slots::decode(&mut Reader::new(&bytes)), Ok(slots));
        for len in 0..bytes.len() {
            assert!(Slots::decode(&mut Reader::new(&bytes[..len])).is_err());
        }
    }

    #[test]
    fn a_slot_moves_to_one_shard() {
        let moves = |all: &[(u16, u16)]| {
            Moves::new(all.iter().map(|(slot, shard)| (Slot(*slot), ShardId(*shard))).collect())
        };
        assert_eq!(moves(&[(4, 1), (4, 0)]), None);
        assert!(moves(&[(4, 1), (2, 0)]).unwrap().is_sound(2));
        assert!(!moves(&[(4, 2)]).unwrap().is_sound(2));
    }
}
