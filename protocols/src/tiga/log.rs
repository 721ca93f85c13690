//! The log of a shard's cells on one replica (§3.7).
//!
//! ```text
//!   positions   1    2    3    4    5    6    7    8
//!               |---------|---------|---------|----|
//!                forgotten committed  durable   not yet
//!                       base
//! ```
//!
//! A log belongs to a view: it is what the leader of the view has, as far as this replica knows. In
//! a later view it may be replaced from some position on, which is never a committed one.
//!
//! The cells up to the *base* are forgotten (`collection.rs`): their effects are in a checkpoint.

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

    /// The part after a position, if the suffix begins before it.
    #[must_use]
    pub(super) fn beyond(mut self, position: Position) -> Self {
        let skipped = position.0.saturating_sub(self.after.0) as usize;
        self.cells.drain(..skipped.min(self.cells.len()));
        Self { after: self.after.max(position), ..self }
    }

    /// Encodes the suffix. [`Suffix::decode`] is the inverse.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_varint(self.view.0);
        out.put_varint(self.after.0);
        encode_cells(&self.cells, &mut out);
        out.into()
    }

    /// Decodes the bytes that a replica sends or persists.
    ///
    /// # Errors
    /// If the bytes are malformed, or the cells are not in order.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
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

/// The log of this replica, from its base on.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// The last view in which it was complete when the view began.
    pub view: ViewNumber,
    /// The position before the first cell, and the version there.
    base: (Position, SnapshotVersion),
    cells: VecDeque<Cell>,
    /// The place of each transaction of these cells.
    places: BTreeMap<TxnId, Position>,
    /// Positions that are not durable yet, each with its record.
    syncing: VecDeque<(Position, LogPosition)>,
    /// The last position whose record is durable.
    recorded: Position,
    /// The last position up to which the log survives a restart, in the view.
    durable: Position,
    /// Whether the base is in memory alone: it is that of a peer's checkpoint. The cells after it
    /// do not survive a restart.
    has_skipped: bool,
    /// The end of a log that a peer's checkpoint has replaced, and its view.
    had: (ViewNumber, Position),
}

impl Log {
    /// The position before the first cell.
    pub(super) fn base(&self) -> Position {
        self.base.0
    }

    /// The position of the last cell.
    pub(super) fn last(&self) -> Position {
        Position(self.base.0.0 + self.cells.len() as u64)
    }

    /// Whether the log with which the view began is durable.
    pub(super) fn is_view_durable(&self) -> bool {
        let is_recorded = self.recorded > Position(0) || self.syncing.is_empty();
        is_recorded && !self.has_skipped
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
    ///
    /// # Panics
    /// If the position is before the base.
    #[track_caller]
    pub(super) fn version_at(&self, position: Position) -> SnapshotVersion {
        let (base, version) = self.base;
        if position == base { version } else { self.cell(position).version }
    }

    /// The index of the cell after a position.
    #[track_caller]
    fn index_after(&self, position: Position) -> usize {
        let index = position.0.checked_sub(self.base.0.0);
        index.expect("cells up to the base are forgotten") as usize
    }

    /// The cell at a position.
    ///
    /// # Panics
    /// If the position is not after the base.
    #[track_caller]
    pub(super) fn cell(&self, position: Position) -> &Cell {
        &self.cells[self.index_after(position) - 1]
    }

    /// The cells after a position, with the view.
    ///
    /// # Panics
    /// If the position is before the base.
    #[track_caller]
    pub(super) fn suffix(&self, after: Position) -> Suffix {
        let cells = self.cells.range(self.index_after(after)..).cloned().collect();
        Suffix { view: self.view, after, cells }
    }

    /// Whether a transaction is in one of the cells.
    pub(super) fn contains(&self, txn: TxnId) -> bool {
        self.places.contains_key(&txn)
    }

    /// The place of a transaction in the cells.
    pub(super) fn place_of(&self, txn: TxnId) -> Option<Position> {
        self.places.get(&txn).copied()
    }

    /// The stamp of a transaction in the log.
    pub(super) fn stamp_of(&self, txn: TxnId) -> Option<Stamp> {
        let cell = self.cell(self.place_of(txn)?);
        cell.txns.iter().find(|(it, _)| *it == txn).map(|(_, stamp)| *stamp)
    }

    /// Replaces the cells after a position, in the record at `record` of the node's log. The cells
    /// up to the base are committed, so that those of the suffix are the same.
    ///
    /// # Panics
    /// If the log ends before the position, or the suffix before the base.
    pub(super) fn replace(&mut self, suffix: Suffix, record: LogPosition) {
        assert!(suffix.after <= self.last(), "a log has no gap");
        assert!(suffix.last() >= self.base(), "committed cells are in all later logs");
        let Suffix { view, after, mut cells } = suffix;
        cells.drain(..self.base().0.saturating_sub(after.0) as usize);
        let after = after.max(self.base());
        let index = self.index_after(after);
        for cell in self.cells.drain(index..) {
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
            (self.view, self.durable, self.recorded) = (view, Position(0), Position(0));
            self.syncing.clear();
        }
        self.syncing.push_back((self.last(), record));
    }

    /// Forgets the cells up to a position, and returns them.
    pub(super) fn forget(&mut self, upto: Position) -> Vec<Cell> {
        let version = self.version_at(upto);
        self.move_base(upto, version)
    }

    /// Moves the base to that of a peer's checkpoint, and returns the cells that are gone. They may
    /// differ from those that are committed. Later cells stay, if they can be what follows; else
    /// the log of a later view replaces them.
    pub(super) fn skip_to(&mut self, base: Position, version: SnapshotVersion) -> Vec<Cell> {
        self.has_skipped = true;
        self.had = self.had.max((self.view, self.last()));
        let mut skipped = self.move_base(base, version);
        // A cell of another log may have an earlier version than the committed ones before it.
        if self.cells.front().is_some_and(|cell| cell.version <= version) {
            skipped.extend(self.drop_cells(self.cells.len()));
            self.syncing.clear();
            (self.durable, self.recorded) = (self.durable.min(base), self.recorded.min(base));
        }
        skipped
    }

    /// The log begins after a checkpoint of this node, at a restart. It once ended at `had`.
    pub(super) fn start_from(
        &mut self,
        (base, version): (Position, SnapshotVersion),
        had: (ViewNumber, Position),
    ) {
        (self.base, self.had) = ((base, version), had);
    }

    /// The end of the log, and its view: the last one that this replica may have told.
    pub(super) fn had(&self) -> (ViewNumber, Position) {
        self.had.max((self.view, self.last()))
    }

    fn move_base(&mut self, base: Position, version: SnapshotVersion) -> Vec<Cell> {
        let count = self.index_after(base).min(self.cells.len());
        self.base = (base, version);
        self.drop_cells(count)
    }

    fn drop_cells(&mut self, count: usize) -> Vec<Cell> {
        let dropped: Vec<Cell> = self.cells.drain(..count).collect();
        for (txn, _) in dropped.iter().flat_map(|cell| &cell.txns) {
            self.places.remove(txn);
        }
        dropped
    }

    /// A checkpoint of this node, of the base or a later position, is durable. Returns whether more
    /// of the log is durable now.
    pub(super) fn end_skip(&mut self) -> bool {
        let was_skipped = std::mem::replace(&mut self.has_skipped, false);
        if was_skipped && self.recorded > Position(0) {
            self.durable = self.recorded.max(self.base());
        }
        was_skipped
    }

    /// The position of a peer's checkpoint behind which the cells are, until a checkpoint of this
    /// replica contains it; else 0. A record of them is of no use behind another log.
    pub(super) fn needed_base(&self) -> Position {
        if self.has_skipped { self.base() } else { Position(0) }
    }

    /// All of the log was read from the disk.
    pub(super) fn finish_restore(&mut self) {
        self.syncing.clear();
        self.durable = self.last();
        self.recorded = self.durable;
    }

    /// The node's log is durable up to `record`. Returns whether more of this log is durable.
    pub(super) fn on_durable(&mut self, record: LogPosition) -> bool {
        let before = self.durable;
        while let Some((position, _)) = self.syncing.pop_front_if(|(_, at)| *at <= record) {
            self.recorded = position;
        }
        if !self.has_skipped {
            self.durable = self.recorded;
        }
        self.durable > before
    }

    /// Asserts what always holds.
    pub(super) fn invariants(&self) {
        let versions = self.cells.iter().map(|cell| cell.version);
        let versions = std::iter::once(self.base.1).chain(versions);
        assert!(versions.is_sorted_by(|a, b| a < b), "cells are in the order of their versions");
        let count: usize = self.cells.iter().map(|cell| cell.txns.len()).sum();
        assert_eq!(count, self.places.len(), "no transaction is in the log twice");
        assert!(self.durable <= self.last(), "only what is there is durable");
    }
}
