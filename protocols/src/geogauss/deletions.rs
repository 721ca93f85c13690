//! The rows that were deleted within the horizon.
//!
//! The store reclaims a deletion when no reader of its node needs it, so one replica may still have
//! it and another may not. A check whether a row has changed since a snapshot must not depend on
//! that. Therefore each replica keeps the hashes of the rows that the epochs within the horizon
//! have deleted. They are part of the state of an epoch: all replicas have the same ones, and a
//! checkpoint contains them.
//!
//! A transaction whose snapshot is older than the horizon cannot be checked, and loses on every
//! replica. Two rows with one hash make a transaction lose for nothing, also on every replica.

use std::collections::VecDeque;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::hash::HashMap;
use pangea_core::ids::{SnapshotVersion, TableId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::streams::number;

/// The deletions of the epochs after the horizon.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deletions {
    /// The last deletion of each row, by the hash of the row.
    last: HashMap<u64, SnapshotVersion>,
    /// The hashes of the rows that each epoch has deleted, oldest epoch first.
    by_epoch: VecDeque<(SnapshotVersion, Vec<u64>)>,
    /// All deletions after this epoch are here.
    horizon: SnapshotVersion,
}

/// The hash of a row. The same on every node and in every build.
pub fn hash_row(table: TableId, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, table.0.into())
}

impl Deletions {
    /// Records the rows that an epoch has deleted, and forgets those of the epochs up to `horizon`.
    ///
    /// # Panics
    /// If the epoch is not later than all before it.
    pub fn note(
        &mut self,
        epoch: SnapshotVersion,
        rows: impl IntoIterator<Item = u64>,
        horizon: SnapshotVersion,
    ) {
        assert!(
            self.by_epoch.back().is_none_or(|(last, _)| *last < epoch),
            "epochs are recorded in order"
        );
        let mut rows: Vec<u64> = rows.into_iter().collect();
        // A restart finds them in another order.
        rows.sort_unstable();
        rows.dedup();
        self.last.extend(rows.iter().map(|row| (*row, epoch)));
        if !rows.is_empty() {
            self.by_epoch.push_back((epoch, rows));
        }
        self.forget_upto(horizon);
    }

    fn forget_upto(&mut self, horizon: SnapshotVersion) {
        self.horizon = self.horizon.max(horizon);
        while let Some((epoch, rows)) = self.by_epoch.pop_front_if(|it| it.0 <= self.horizon) {
            for row in rows {
                // A later epoch may have deleted the row again.
                if self.last.get(&row) == Some(&epoch) {
                    self.last.remove(&row);
                }
            }
        }
    }

    /// Whether a row was deleted after this epoch.
    ///
    /// # Panics
    /// If the epoch is before the horizon: see [`Deletions::reaches`].
    pub fn has_since(&self, row: u64, epoch: SnapshotVersion) -> bool {
        assert!(self.reaches(epoch), "earlier deletions are not known");
        self.last.get(&row).is_some_and(|deleted| *deleted > epoch)
    }

    /// Whether all deletions after this epoch are known.
    pub fn reaches(&self, epoch: SnapshotVersion) -> bool {
        epoch >= self.horizon
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Whether no deletion is known.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Appends the deletions to `out`. [`Deletions::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.horizon.0);
        out.put_varint(self.by_epoch.len() as u64);
        for (epoch, rows) in &self.by_epoch {
            out.put_varint(epoch.0);
            out.put_varint(rows.len() as u64);
            rows.iter().for_each(|row| out.put_u64(*row));
        }
    }

    /// Decodes the bytes that [`Deletions::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "deletions";
        let horizon = SnapshotVersion(number(from, WHAT)?);
        let mut deletions = Self { horizon, ..Self::default() };
        let mut before = horizon;
        for _ in 0..from.count(WHAT)? {
            let epoch = SnapshotVersion(number(from, WHAT)?);
            let count = from.count(WHAT)?;
            let rows = (0..count).map(|_| from.u64(WHAT)).collect::<Result<Vec<_>, _>>()?;
            if epoch <= before {
                return Err(DecodeError::new(WHAT));
            }
            before = epoch;
            deletions.note(epoch, rows, horizon);
        }
        Ok(deletions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(epoch: u64) -> SnapshotVersion {
        SnapshotVersion(epoch)
    }

    fn encoded(deletions: &Deletions) -> Vec<u8> {
        let mut bytes = Vec::new();
        deletions.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_row_counts_as_deleted_until_the_horizon_passes() {
        let mut deletions = Deletions::default();
        deletions.note(at(5), [1, 2], at(0));
        deletions.note(at(7), [2], at(0));
        assert!(deletions.has_since(1, at(4)) && !deletions.has_since(1, at(5)));
        assert!(deletions.has_since(2, at(6)) && !deletions.has_since(2, at(7)));
        deletions.note(at(8), [], at(5));
        assert!(!deletions.reaches(at(4)) && deletions.reaches(at(5)));
        assert_eq!(deletions.len(), 1, "the later deletion stays");
        assert!(deletions.has_since(2, at(5)));
        deletions.note(at(9), [], at(7));
        assert!(deletions.is_empty());
    }

    #[test]
    fn rows_of_two_tables_have_different_hashes() {
        assert_ne!(hash_row(TableId(1), b"k"), hash_row(TableId(2), b"k"));
    }

    #[test]
    fn malformed_bytes_are_refused() {
        let mut deletions = Deletions::default();
        deletions.note(at(5), [1, 2], at(0));
        deletions.note(at(70), [2], at(0));
        let bytes = encoded(&deletions);
        for len in 0..bytes.len() {
            assert!(Deletions::decode(&mut Reader::new(&bytes[..len])).is_err(), "{len} bytes");
        }
        for epochs in [[5, 5], [5, 4], [0, 5]] {
            let mut out = Vec::new();
            out.put_varint(0);
            out.put_varint(2);
            for epoch in epochs {
                out.put_varint(epoch);
                out.put_varint(0);
            }
            assert!(Deletions::decode(&mut Reader::new(&out)).is_err(), "{epochs:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_known_is_what_a_list_of_all_deletions_says(
            epochs in prop::collection::vec(
                (prop::collection::vec(0u64..6, 0..4), 0u64..12),
                1..12,
            ),
            row in 0u64..6,
            base in 0u64..14,
        ) {
            let mut deletions = Deletions::default();
            let mut all = Vec::new();
            let mut horizon = 0;
            for (epoch, (rows, upto)) in (1..).zip(epochs) {
                horizon = horizon.max(upto.min(epoch));
                deletions.note(at(epoch), rows.iter().copied(), at(upto.min(epoch)));
                all.extend(rows.into_iter().map(|row| (epoch, row)));
            }
            prop_assert_eq!(deletions.reaches(at(base)), base >= horizon);
            if base >= horizon {
                let is_deleted = all.iter().any(|it| it.0 > base && it.1 == row);
                prop_assert_eq!(deletions.has_since(row, at(base)), is_deleted);
            }
            let left = |it: &&(u64, u64)| it.0 > horizon;
            let rows: std::collections::BTreeSet<_> =
                all.iter().filter(left).map(|it| it.1).collect();
            prop_assert_eq!(deletions.len(), rows.len(), "nothing else is kept");
            let bytes = encoded(&deletions);
            prop_assert_eq!(Deletions::decode(&mut Reader::new(&bytes)).unwrap(), deletions);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Deletions::decode(&mut Reader::new(&bytes));
        }
    }
}
