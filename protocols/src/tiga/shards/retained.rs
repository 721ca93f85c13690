//! The rows that a node retains for another shard, within a limit.
//!
//! ```text
//!   cells:   .. dropped | a majority has them | some replica lacks them | being run
//!                       ^ forgotten if they are too large
//! ```
//!
//! A replica of the other shard that lacks rows which nobody retains takes a checkpoint of a peer
//! of its own shard. There is one as long as the shard can commit: a majority has told that it has
//! them on its disks.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;
use pangea_core::mutate;

use crate::streams::number;

/// The rows for another shard by cell, encoded as in messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Retained {
    cells: BTreeMap<SnapshotVersion, Vec<Bytes>>,
    /// Their size.
    bytes: u64,
    /// Rows of cells up to this one are retained no more.
    pub dropped: SnapshotVersion,
    /// The cells with lists of places, each with the one before it.
    lists: BTreeMap<SnapshotVersion, SnapshotVersion>,
    /// The last cell with a list, or 0.
    listed: SnapshotVersion,
}

impl Retained {
    /// Adds rows of a cell. After a restart, those of dropped cells come again.
    pub(super) fn push(&mut self, version: SnapshotVersion, rows: Bytes) {
        if version <= self.dropped {
            return;
        }
        self.bytes += rows.len() as u64;
        self.cells.entry(version).or_default().push(rows);
    }

    /// The last cell with a list of places, or 0.
    pub(super) fn listed(&self) -> SnapshotVersion {
        self.listed
    }

    /// A list of places was added for a cell.
    pub(super) fn note_list(&mut self, version: SnapshotVersion) {
        if version > self.dropped {
            self.lists.insert(version, self.listed);
        }
        self.listed = version;
    }

    /// The rows of the cells after one.
    pub(super) fn after(
        &self,
        version: SnapshotVersion,
    ) -> impl Iterator<Item = (SnapshotVersion, &[Bytes])> {
        let cells = self.cells.range(version.next()..);
        cells.map(|(version, parts)| (*version, &parts[..]))
    }

    /// The part up to a cell.
    pub(super) fn upto(&self, version: SnapshotVersion) -> Self {
        let mut part = Self { dropped: self.dropped, ..Self::default() };
        for (version, parts) in self.cells.range(..=version) {
            parts.iter().for_each(|rows| part.push(*version, rows.clone()));
        }
        let later = self.lists.range(version.next()..).next();
        // If lists after the version are forgotten, everybody has all up to there.
        part.listed = later.map_or(self.listed, |(_, before)| *before).min(version);
        part.lists = self.lists.range(..=version).map(|(it, before)| (*it, *before)).collect();
        part
    }

    /// Forgets the rows of cells up to this one.
    pub(super) fn drop_upto(&mut self, upto: SnapshotVersion) {
        while self.cells.first_key_value().is_some_and(|(version, _)| *version <= upto) {
            self.drop_first();
        }
    }

    /// Forgets rows of cells up to this one, as long as there are more than `most` bytes.
    pub(super) fn shrink(&mut self, upto: SnapshotVersion, most: u64) {
        let is_first = |cells: &BTreeMap<SnapshotVersion, _>| {
            cells.first_key_value().is_some_and(|(version, _)| *version <= upto)
        };
        while self.bytes > most && is_first(&self.cells) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some((version, parts)) = self.cells.pop_first() else { return };
        self.bytes -= parts.iter().map(|rows| rows.len() as u64).sum::<u64>();
        self.lists = self.lists.split_off(&version.next());
        self.dropped = mutate!(TruncatedUntold: self.dropped.max(version) => self.dropped);
    }

    /// Whether it can be what a node retains at a version.
    pub(super) fn is_sound(&self, upto: SnapshotVersion) -> bool {
        let first = self.cells.keys().next().is_none_or(|first| *first > self.dropped);
        let is_listed = self.listed <= upto;
        first && is_listed && self.cells.keys().next_back().is_none_or(|last| *last <= upto)
    }

    /// Appends it to `out`. [`Retained::decode`] is the inverse.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.dropped.0);
        out.put_varint(self.listed.0);
        out.put_varint(self.lists.len() as u64);
        for (version, before) in &self.lists {
            out.put_varint(version.0);
            out.put_varint(before.0);
        }
        out.put_varint(self.cells.len() as u64);
        for (version, parts) in &self.cells {
            out.put_varint(version.0);
            out.put_varint(parts.len() as u64);
            parts.iter().for_each(|rows| out.put_bytes(rows));
        }
    }

    /// Decodes what [`Retained::encode`] wrote, in `bytes`.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(from: &mut Reader<'_>, bytes: &Bytes) -> Result<Self, DecodeError> {
        const WHAT: &str = "rows for another shard";
        let dropped = SnapshotVersion(number(from, WHAT)?);
        let listed = SnapshotVersion(number(from, WHAT)?);
        let mut retained = Self { dropped, listed, ..Self::default() };
        for _ in 0..from.count(WHAT)? {
            let version = SnapshotVersion(number(from, WHAT)?);
            retained.lists.insert(version, SnapshotVersion(number(from, WHAT)?));
        }
        for _ in 0..from.count(WHAT)? {
            let version = SnapshotVersion(number(from, WHAT)?);
            for _ in 0..from.count(WHAT)? {
                retained.push(version, bytes.slice_ref(from.bytes(WHAT)?));
            }
        }
        Ok(retained)
    }

    /// The versions of the cells.
    #[cfg(test)]
    fn versions(&self) -> Vec<u64> {
        self.cells.keys().map(|version| version.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cells: &[(u64, usize)]) -> Retained {
        let mut retained = Retained::default();
        for (version, len) in cells {
            retained.push(SnapshotVersion(*version), vec![7; *len].into());
        }
        retained
    }

    #[test]
    fn rows_are_forgotten_if_all_have_them_or_a_majority_and_they_are_too_large() {
        let mut retained = of(&[(3, 10), (5, 10), (5, 20), (9, 10), (12, 10)]);
        retained.drop_upto(SnapshotVersion(4));
        assert_eq!((retained.versions(), retained.dropped), (vec![5, 9, 12], SnapshotVersion(3)));
        retained.shrink(SnapshotVersion(9), 50);
        assert_eq!(retained.versions(), [5, 9, 12], "the limit is not exceeded");
        retained.shrink(SnapshotVersion(9), 5);
        assert_eq!((retained.versions(), retained.dropped), (vec![12], SnapshotVersion(9)));
        let after: Vec<_> = retained.after(SnapshotVersion(11)).collect();
        assert_eq!(after.len(), 1);
    }

    #[test]
    fn retained_rows_survive_their_encoding() {
        let mut retained = of(&[(3, 10), (5, 0), (9, 10)]);
        retained.note_list(SnapshotVersion(5));
        retained.note_list(SnapshotVersion(9));
        retained.drop_upto(SnapshotVersion(3));
        let mut bytes = Vec::new();
        retained.encode(&mut bytes);
        let bytes = Bytes::from(bytes);
        assert_eq!(Retained::decode(&mut Reader::new(&bytes), &bytes), Ok(retained.clone()));
        assert!(retained.is_sound(SnapshotVersion(9)) && !retained.is_sound(SnapshotVersion(8)));
        let part = retained.upto(SnapshotVersion(8));
        assert_eq!((part.versions(), part.listed()), (vec![5], SnapshotVersion(5)));
    }
}
