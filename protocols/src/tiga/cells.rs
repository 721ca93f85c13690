//! Cells: the transactions of a shard in the order of their stamps, a millisecond each.
//!
//! ```text
//!   stamps   | 1.2  1.7  |           | 3.1  3.1  3.9 |
//!   cells       version 2               version 4        (no transaction: no cell 3)
//! ```
//!
//! A leader runs a cell when its clock has passed the end of it, and accepts nothing more for it.
//! All transactions of a cell are in one version of the store: the number of the cell. A snapshot
//! therefore contains whole cells, on each shard the same ones, and a replica has few versions
//! however many transactions there are.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{SnapshotVersion, TxnId};

use super::stamp::{Stamp, US_MAX};

/// The length of a cell in microseconds.
pub const CELL_US: u64 = 1_000;

/// No message has a cell after this one.
const VERSION_MAX: u64 = US_MAX / CELL_US;

/// The cell of a stamp.
pub fn cell_of(stamp: Stamp) -> SnapshotVersion {
    SnapshotVersion(stamp.us() / CELL_US + 1)
}

/// The last cell that is over when a clock reads this number of microseconds.
pub fn over_at(us: u64) -> SnapshotVersion {
    SnapshotVersion(us / CELL_US)
}

/// The microsecond at which a cell is over.
pub fn end_of(version: SnapshotVersion) -> u64 {
    version.0 * CELL_US
}

/// The last stamp of a cell, or the least stamp of all for version 0.
pub fn last_of(version: SnapshotVersion) -> Stamp {
    end_of(version).checked_sub(1).map_or(Stamp::ZERO, Stamp::last_of)
}

/// The transactions of a cell, in the order of their stamps. It may have none: then the leader
/// promises that no earlier cell will follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The version that contains its writes.
    pub version: SnapshotVersion,
    /// The transactions with their stamps.
    pub txns: Vec<(TxnId, Stamp)>,
}

impl Cell {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.version.0);
        out.put_varint(self.txns.len() as u64);
        for (txn, stamp) in &self.txns {
            out.put_u64(txn.to_bits());
            out.put_u64(stamp.to_bits());
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "cell";
        let version = SnapshotVersion(from.varint(WHAT)?);
        let txns = (0..from.count(WHAT)?)
            .map(|_| Ok((TxnId::from_bits(from.u64(WHAT)?), Stamp::from_bits(from.u64(WHAT)?))))
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self { version, txns })
    }

    fn is_sound(&self) -> bool {
        let is_own = |(_, stamp): &(TxnId, Stamp)| cell_of(*stamp) == self.version;
        let stamps = self.txns.iter().map(|(_, stamp)| stamp);
        let is_number = (1..=VERSION_MAX).contains(&self.version.0);
        is_number && self.txns.iter().all(is_own) && stamps.is_sorted_by(|a, b| a < b)
    }
}

/// Appends cells to `out`. [`decode_cells`] is the inverse.
pub(super) fn encode_cells(cells: &[Cell], out: &mut Vec<u8>) {
    out.put_varint(cells.len() as u64);
    cells.iter().for_each(|cell| cell.encode(out));
}

/// Decodes the bytes that [`encode_cells`] wrote.
///
/// # Errors
/// If the bytes are malformed, cells are not in the order of their versions, or a cell has a
/// transaction that does not belong to it.
pub(super) fn decode_cells(from: &mut Reader<'_>) -> Result<Vec<Cell>, DecodeError> {
    const WHAT: &str = "cells";
    let cells: Vec<Cell> =
        (0..from.count(WHAT)?).map(|_| Cell::decode(from)).collect::<Result<_, _>>()?;
    let are_in_order = cells.iter().map(|cell| cell.version).is_sorted_by(|a, b| a < b);
    if are_in_order && cells.iter().all(Cell::is_sound) {
        Ok(cells)
    } else {
        Err(DecodeError::new(WHAT))
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::NodeId;

    use super::super::stamp::{Issuer, Role};
    use super::*;

    fn stamp(us: u64) -> Stamp {
        Issuer::new(NodeId(1), Role::Coordinator, Stamp::ZERO).issue(us)
    }

    #[test]
    fn a_cell_ends_when_the_clock_has_passed_its_last_stamp() {
        assert_eq!(cell_of(stamp(999)), SnapshotVersion(1));
        assert_eq!(cell_of(stamp(1_000)), SnapshotVersion(2));
        assert_eq!((over_at(999), over_at(1_000)), (SnapshotVersion(0), SnapshotVersion(1)));
        for version in [1, 2, 1_800_000_000_000].map(SnapshotVersion) {
            assert_eq!(cell_of(last_of(version)), version);
            assert_eq!(over_at(end_of(version)), version);
            assert_eq!(over_at(end_of(version) - 1).next(), version);
        }
        assert_eq!(last_of(SnapshotVersion::ZERO), Stamp::ZERO);
    }

    #[test]
    fn cells_survive_their_encoding_and_ones_out_of_order_are_refused() {
        let txn = |sequence| TxnId::new(NodeId(2), sequence);
        let cell = |version, us: &[u64]| {
            let txns = us.iter().map(|us| (txn(*us), stamp(*us))).collect();
            Cell { version: SnapshotVersion(version), txns }
        };
        let decode = |cells: &[Cell]| {
            let mut bytes = Vec::new();
            encode_cells(cells, &mut bytes);
            decode_cells(&mut Reader::new(&bytes))
        };
        let cells = [cell(2, &[1_200, 1_700]), cell(3, &[]), cell(5, &[4_000])];
        assert_eq!(decode(&cells).as_deref(), Ok(&cells[..]));
        assert!(decode(&[cell(3, &[]), cell(2, &[])]).is_err(), "versions");
        assert!(decode(&[cell(2, &[1_700, 1_200])]).is_err(), "stamps");
        assert!(decode(&[cell(2, &[2_000])]).is_err(), "a stamp of the next cell");
        assert!(decode(&[cell(0, &[])]).is_err(), "no version");
        assert!(decode(&[cell(VERSION_MAX, &[])]).is_ok(), "the last version");
        assert!(decode(&[cell(VERSION_MAX + 1, &[])]).is_err(), "no such version");
        let last = last_of(SnapshotVersion(VERSION_MAX));
        assert_eq!(last.us(), US_MAX / CELL_US * CELL_US - 1);
    }
}
