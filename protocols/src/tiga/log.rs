//! The log of a shard's cells on one replica (§3.7).
//!
//! ```text
//!   positions   1    2    3    4    5    6
//!               |---------|---------|----|
//!                committed  durable   not yet
//! ```
//!
//! A log belongs to a view: it is what the leader of the view has, as far as this replica knows. In
//! a later view it may be replaced from some position on, which is never a committed one.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, SnapshotVersion, TxnId};

use super::cells::{Cell, decode_cells, encode_cells};
pub use super::quorum::{Position, View as ViewNumber};
use super::stamp::Stamp;
use crate::streams::number;

/// The end of a log in a view: its cells from some position on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suffix {
    /// The view.
    pub view: ViewNumber,
    /// The position before the first cell.
    pub after: Position,
    /// The cells.
    pub cells: Vec<Cell>,
}

impl Suffix {
    /// The position of the last cell.
    pub fn last(&self) -> Position {
        Position(self.after.0 + self.cells.len() as u64)
    }

    /// Encodes the suffix. [`Suffix::decode`] is the inverse.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_varint(self.view.0);
        out.put_varint(self.after.0);
        encode_cells(&self.cells, &mut out);
        out.into()
    }

    /// Decodes the bytes that [`Suffix::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed, or the cells are not in order.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "log";
        let from = &mut Reader::new(bytes);
        let view = ViewNumber(number(from, WHAT)?);
        let after = Position(number(from, WHAT)?);
        let cells = decode_cells(from)?;
        match from.is_empty() {
            true => Ok(Self { view, after, cells }),
            false => Err(DecodeError::new(WHAT)),
        }
    }
}

/// The log of this replica. It is kept from its first cell on.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// The last view in which it was complete when the view began.
    pub view: ViewNumber,
    cells: Vec<Cell>,
    /// The place of each of its transactions.
    places: BTreeMap<TxnId, Position>,
    /// Positions that are not durable yet, each with its record.
    syncing: VecDeque<(Position, LogPosition)>,
    /// The last position that is durable in the view.
    durable: Position,
}

impl Log {
    /// The position of the last cell.
    pub(super) fn last(&self) -> Position {
        Position(self.cells.len() as u64)
    }

    /// The last position that is durable.
    pub(super) fn durable(&self) -> Position {
        self.durable
    }

    /// The version of the last cell.
    pub(super) fn last_version(&self) -> SnapshotVersion {
        self.version_at(self.last())
    }

    /// The version of the cell at a position, or of the empty database at position 0.
    pub(super) fn version_at(&self, position: Position) -> SnapshotVersion {
        let index = position.0.checked_sub(1);
        index.map_or(SnapshotVersion::ZERO, |index| self.cells[index as usize].version)
    }

    /// The cell at a position.
    pub(super) fn cell(&self, position: Position) -> &Cell {
        &self.cells[position.0 as usize - 1]
    }

    /// The cells after a position, with the view.
    pub(super) fn suffix(&self, after: Position) -> Suffix {
        let cells = self.cells[after.0 as usize..].to_vec();
        Suffix { view: self.view, after, cells }
    }

    /// Whether a transaction is in the log.
    pub(super) fn contains(&self, txn: TxnId) -> bool {
        self.places.contains_key(&txn)
    }

    /// The stamp of a transaction in the log.
    pub(super) fn stamp_of(&self, txn: TxnId) -> Option<Stamp> {
        let cell = self.cell(*self.places.get(&txn)?);
        cell.txns.iter().find(|(it, _)| *it == txn).map(|(_, stamp)| *stamp)
    }

    /// Replaces the cells after a position, in the record at `record` of the node's log.
    ///
    /// # Panics
    /// If the log ends before the position.
    pub(super) fn replace(&mut self, suffix: Suffix, record: LogPosition) {
        let Suffix { view, after, cells } = suffix;
        assert!(after <= self.last(), "a log has no gap");
        for cell in self.cells.drain(after.0 as usize..) {
            for (txn, _) in cell.txns {
                self.places.remove(&txn);
            }
        }
        let first = after.0 + 1;
        for (position, cell) in (first..).zip(&cells) {
            let position = Position(position);
            let places = cell.txns.iter().map(|(txn, _)| (*txn, position));
            self.places.extend(places);
        }
        self.cells.extend(cells);
        if view != self.view {
            // What was durable in an earlier view is not known to be the log of this one.
            (self.view, self.durable) = (view, Position(0));
            self.syncing.clear();
        }
        self.syncing.push_back((self.last(), record));
    }

    /// All of the log was read from the disk.
    pub(super) fn finish_restore(&mut self) {
        self.syncing.clear();
        self.durable = self.last();
    }

    /// The node's log is durable up to `record`. Returns whether more of this log is durable.
    pub(super) fn on_durable(&mut self, record: LogPosition) -> bool {
        let before = self.durable;
        while let Some((position, _)) = self.syncing.pop_front_if(|(_, at)| *at <= record) {
            self.durable = position;
        }
        self.durable > before
    }

    /// Asserts what always holds.
    pub(super) fn invariants(&self) {
        let versions = self.cells.iter().map(|cell| cell.version);
        assert!(versions.is_sorted_by(|a, b| a < b), "cells are in the order of their versions");
        let count: usize = self.cells.iter().map(|cell| cell.txns.len()).sum();
        assert_eq!(count, self.places.len(), "no transaction is in the log twice");
        assert!(self.durable <= self.last(), "only what is there is durable");
    }
}
