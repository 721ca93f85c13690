//! A transaction's writes, put into the store one by one while it runs.
//!
//! Who runs a transaction alone on its rows ([`crate::exec::ordered`]) needs no copy of what it
//! wrote: at a version that is not published nobody else looks at it, and it sees its own writes
//! where it sees all others. What it did is noted, so that it can be taken back.
//!
//! ```text
//!                       write                    take_back               keep
//!   key is new          a row, not in order      the row goes            the key is put in order
//!   older version       superseded, overwritten  it is the newest again  garbage is queued
//!   this version, of    replaced, and kept       it comes back           it is freed
//!    another
//!   this version, own   replaced                 (is noted already)
//! ```
//!
//! **What is done at once, and what at the end.** Rows, versions, and the count of their bytes
//! change at once. What others hear of them, the order of keys, garbage, the count of deletions and
//! which rows are cold, changes when the transaction is kept, so that there is less to take back.
//! Before it scans, its new keys are put in order ([`Store::show`]); taken back, they leave it.
//!
//! What a write overwrites ([`super::point`]) does not come back: no reader needs it, and the
//! version that the write superseded, which is what they see, is never among it. So it is as if the
//! version had been reclaimed. A row whose newest value is in the cold store counts as cold until
//! the end: meanwhile nothing can be put away in it or brought back.

use std::mem::take;

use super::garbage::Garbage;
use super::table::Left;
use super::{Store, Version};
use crate::ids::{SnapshotVersion, TableId, TxnId};
use crate::key::{HashedKey, Key};
use crate::pool::Sequential;
use crate::txn::Write;

/// What a transaction has written so far, of one version. Used again for the next one.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// A key each, in the order in which they were first written.
    rows: Vec<Row>,
    /// What others wrote at the same version, of the rows that say so, in their order.
    replaced: Vec<Version>,
    /// The new keys among so many of the rows are in order.
    shown: usize,
    /// How many of the rows are deletions now.
    deletions: usize,
    /// Whether a deletion was written over, or a value deleted, of the transaction's own.
    is_turned: bool,
    /// How long the keys and their values are now.
    contents_bytes: usize,
}

/// A key that was written.
#[derive(Debug)]
struct Row {
    table: TableId,
    /// What the first write left to do.
    left: Left,
    hash: u64,
    key: Key,
}

impl Written {
    /// How many keys were written.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// How long keys and values are together.
    pub(crate) fn contents_bytes(&self) -> usize {
        self.contents_bytes
    }

    /// Whether nothing is noted.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.replaced.is_empty()
    }

    /// The new keys that are not in order yet.
    fn unshown(&self) -> impl Iterator<Item = (TableId, Key)> {
        let new = self.rows[self.shown..].iter().filter(|row| row.left.is_new);
        new.map(|row| (row.table, row.key.clone()))
    }

    /// Keeps the memory alone.
    fn clear(&mut self) {
        self.rows.clear();
        self.replaced.clear();
        (self.shown, self.deletions, self.contents_bytes) = (0, 0, 0);
        self.is_turned = false;
    }
}

fn value_len(version: &Version) -> usize {
    version.value.as_ref().map_or(0, |value| value.len())
}

impl Store {
    /// Writes a version of a key, which nobody else touches until it is kept or taken back. All
    /// that is noted in `written` is of one version and one transaction, and no other transaction
    /// of this version has its name.
    ///
    /// # Panics
    /// When the key already has a newer version.
    #[inline]
    pub(crate) fn write(
        &self,
        written: &mut Written,
        (table, key): (TableId, HashedKey),
        version: Version,
    ) {
        let (writer, is_deletion) = (version.header.writer(), version.value.is_none());
        let (hash, key, len) = (key.hash(), Key::from(key), value_len(&version));
        let mut over = self.overwriting.over();
        let (mut own, replaced) = (None, &mut written.replaced);
        let rows = self.tables.table_to_write(table);
        let left = rows.put((hash, &key), version, over.as_mut(), |before| {
            match before.header.writer() == writer {
                true => own = Some((before.value.is_none(), value_len(&before))),
                false => replaced.push(before),
            }
        });
        self.note_gone(over.as_mut(), (table, &key));
        written.deletions += usize::from(is_deletion);
        written.contents_bytes += len;
        if let Some((was_deletion, len_before)) = own {
            written.deletions -= usize::from(was_deletion);
            written.contents_bytes -= len_before;
            written.is_turned |= is_deletion != was_deletion;
        } else {
            written.contents_bytes += key.len();
            written.rows.push(Row { table, left, hash, key });
        }
    }

    /// Whether the newest version of a key is what a transaction wrote at this version.
    pub(crate) fn is_written_by(
        &self,
        (table, key): (TableId, &HashedKey),
        at: SnapshotVersion,
        writer: TxnId,
    ) -> bool {
        let Some(table) = self.tables.table(table) else { return false };
        let is_own = |found: &Version| found.version == at && found.header.writer() == writer;
        table.with_head(key, at, is_own).unwrap_or(false)
    }

    /// Puts the new keys in order, so that a scan finds them.
    pub(crate) fn show(&self, written: &mut Written) {
        self.add_in_order(written.unshown());
        written.shown = written.rows.len();
    }

    /// What was written, each key once.
    pub(crate) fn writes_of(&self, written: &Written) -> Vec<Write> {
        let write = |row: &Row| {
            let value = self.newest_of(row, |newest| newest.value.clone());
            Write { table: row.table, key: row.key.clone(), value }
        };
        written.rows.iter().map(write).collect()
    }

    fn newest_of<R>(&self, row: &Row, look: impl FnOnce(&Version) -> R) -> R {
        let rows = self.tables.table(row.table).expect("it was written");
        let found = rows.with_row(row.hash, &row.key, |row| look(row.chain.newest()));
        found.expect("it was written")
    }

    /// Ends a transaction that wrote at `version`, and forgets what is noted.
    pub(crate) fn keep(&self, written: &mut Written, version: SnapshotVersion) {
        if take(&mut written.is_turned) {
            for row in &mut written.rows {
                row.left.is_deletion = self.newest_of(row, |newest| newest.value.is_none());
            }
        }
        if written.deletions > 0 {
            self.garbage.count_deletions(written.deletions);
        }
        self.add_in_order(written.unshown());
        written.rows.iter().for_each(|row| self.note_warm(row.left, (row.table, row.hash)));
        let garbage = written.rows.iter().filter(|row| self.is_garbage(row.left));
        let garbage = garbage.map(|Row { table, hash, key, .. }| Garbage {
            table: *table,
            hash: *hash,
            key: key.clone(),
        });
        let mut garbage = garbage.peekable();
        if garbage.peek().is_some() {
            self.garbage.push(version, garbage);
        }
        written.clear();
    }

    /// Takes back all that is noted, as if it had never been written, and forgets it. The tables
    /// that were written to stay.
    pub(crate) fn take_back(&self, written: &mut Written) {
        let Written { rows, replaced, shown, .. } = written;
        for (at, Row { table: id, left, hash, key }) in rows.drain(..).enumerate().rev() {
            let table = self.tables.table(id).expect("it was written");
            let before = || replaced.pop().expect("what was replaced is kept");
            let deleted_at = table.take_back((hash, &key), left, before);
            if left.is_new {
                if at < *shown {
                    // One that still waits for its place in the order would come to it after this.
                    table.order.settle(&Sequential);
                }
                // Who reclaimed the row of before may have left its key in the order for this one.
                table.leave_order(hash, &key);
            }
            if let Some(at) = deleted_at {
                // It may have been looked at when it was not the newest.
                self.garbage.push_again(at, Garbage { table: id, hash, key });
            }
        }
        assert!(written.replaced.is_empty(), "what was replaced came back");
        written.clear();
    }
}

#[cfg(test)]
mod tests;
