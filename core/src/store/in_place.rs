//! In-place writes: a transaction's writes, applied to the store one by one while it runs.
//!
//! A transaction with locks on its rows ([`crate::exec::ordered`]) needs no buffer for its writes.
//! No other transaction reads them at a version that is not published, and the transaction finds
//! its own writes in the store like all others. Its writes are recorded so that they can be undone.
//!
//! ```text
//!                       write                     take_back            keep
//!   new key             adds a row, not in order  removes the row      adds the key to the order
//!   older version       superseded, overwritten   makes it the newest  queues garbage
//!   this version, of    replaced, remembered      restores it          frees it
//!    another writer
//!   this version, own   replaced                  (already recorded)
//! ```
//!
//! **Immediate and deferred effects.** Rows, versions and their byte counts change at once. The
//! order of keys, garbage, the number of deletions and the set of cold rows change only when the
//! transaction is kept, so that less must be undone. Before the transaction scans, its new keys are
//! added to the order ([`Store::show`]); undoing it removes them.
//!
//! A version that a write overwrote ([`super::zigzag`]) is not restored, as if it had been
//! reclaimed: no reader needs it. Readers see the version that the write superseded, which is never
//! overwritten. A row whose newest value is in the cold store counts as cold until the end; until
//! then its value cannot be evicted or loaded.

use std::mem::take;

use super::digest::Sums;
use super::garbage::Garbage;
use super::table::IndexUpdate;
use super::{Store, Version};
use crate::ids::{SnapshotVersion, TableId, TxnId};
use crate::key::{HashedKey, Key};
use crate::pool::Sequential;
use crate::txn::Write;

/// The writes of a transaction so far, all of one version. Reused for the next transaction.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// One row for each key, in the order of its first write.
    rows: Vec<Row>,
    /// Versions of other writers with the same number that were replaced, in the order of their
    /// rows.
    replaced: Vec<Version>,
    /// The new keys among the first `shown` rows are in the order.
    shown: usize,
    /// The number of rows that are deletions now.
    deletions: usize,
    /// Whether the transaction overwrote its own deletion, or deleted its own value.
    is_turned: bool,
    /// The current length of all keys and values in bytes.
    contents_bytes: usize,
    /// The change of the version's digests.
    sums: Sums,
}

/// A written key.
#[derive(Debug)]
struct Row {
    table: TableId,
    /// The follow-up work of the first write.
    update: IndexUpdate,
    hash: u64,
    key: Key,
}

impl Written {
    /// The number of written keys.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The length of all keys and values in bytes.
    pub(crate) fn contents_bytes(&self) -> usize {
        self.contents_bytes
    }

    /// Whether no write is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.replaced.is_empty()
    }

    /// The new keys that are not in the order yet.
    fn unshown(&self) -> impl Iterator<Item = (TableId, Key)> {
        let new = self.rows[self.shown..].iter().filter(|row| row.update.is_new);
        new.map(|row| (row.table, row.key.clone()))
    }

    /// Removes all records and keeps the memory.
    fn clear(&mut self) {
        self.rows.clear();
        self.replaced.clear();
        (self.shown, self.deletions, self.contents_bytes) = (0, 0, 0);
        self.is_turned = false;
        self.sums.clear();
    }
}

fn value_len(version: &Version) -> usize {
    version.value.as_ref().map_or(0, |value| value.len())
}

impl Store {
    /// Writes a version of a key. No other transaction may access it until it is kept or taken
    /// back. All writes recorded in `written` have one version and one transaction. No other
    /// transaction of this version may have the same id.
    ///
    /// # Panics
    /// If the key already has a newer version.
    #[inline]
    pub(crate) fn write(
        &self,
        written: &mut Written,
        (table, key): (TableId, HashedKey),
        version: Version,
    ) {
        let (writer, is_deletion) = (version.header.writer(), version.value.is_none());
        let (hash, key, len) = (key.hash(), Key::from(key), value_len(&version));
        let mut over = self.overwriting.overwrite_context();
        let (mut own, replaced) = (None, &mut written.replaced);
        let mut sums = self.digests.is_on().then_some(&mut written.sums);
        sums.iter_mut().for_each(|sums| sums.add(table, &key, &version));
        let rows = self.tables.table_to_write(table);
        let update = rows.put((hash, &key), version, over.as_mut(), |before| {
            sums.iter_mut().for_each(|sums| sums.subtract(table, &key, &before));
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
            written.rows.push(Row { table, update, hash, key });
        }
    }

    /// Whether the newest version of a key was written by this transaction at this version.
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

    /// Adds the new keys to the order, so that a scan finds them.
    pub(crate) fn show(&self, written: &mut Written) {
        self.add_in_order(written.unshown());
        written.shown = written.rows.len();
    }

    /// The writes of the transaction, each key once.
    pub(crate) fn writes_of(&self, written: &Written) -> Vec<Write> {
        let write = |row: &Row| {
            let value = self.newest_of(row, |newest| newest.value.clone());
            Write { table: row.table, key: row.key.clone(), value }
        };
        written.rows.iter().map(write).collect()
    }

    fn newest_of<R>(&self, row: &Row, look: impl FnOnce(&Version) -> R) -> R {
        let rows = self.tables.table(row.table).expect("the table was written");
        let found = rows.with_row(row.hash, &row.key, |row| look(row.chain.newest()));
        found.expect("the row was written")
    }

    /// Completes a transaction that wrote at `version`, and clears its record.
    pub(crate) fn keep(&self, written: &mut Written, version: SnapshotVersion) {
        if take(&mut written.is_turned) {
            for row in &mut written.rows {
                row.update.is_deletion = self.newest_of(row, |newest| newest.value.is_none());
            }
        }
        if written.deletions > 0 {
            self.garbage.count_deletions(written.deletions);
        }
        self.add_in_order(written.unshown());
        written.rows.iter().for_each(|row| self.note_warm(row.update, (row.table, row.hash)));
        let garbage = written.rows.iter().filter(|row| self.is_garbage(row.update));
        let garbage = garbage.map(|Row { table, hash, key, .. }| Garbage {
            table: *table,
            hash: *hash,
            key: key.clone(),
        });
        let mut garbage = garbage.peekable();
        if garbage.peek().is_some() {
            self.garbage.push(version, garbage);
        }
        self.digests.note(version, &written.sums);
        written.clear();
    }

    /// Undoes all recorded writes, as if they had never happened, and clears the record. The tables
    /// that were written to stay.
    pub(crate) fn take_back(&self, written: &mut Written) {
        let Written { rows, replaced, shown, .. } = written;
        for (at, Row { table: id, update, hash, key }) in rows.drain(..).enumerate().rev() {
            let table = self.tables.table(id).expect("the table was written");
            let before = || replaced.pop().expect("replaced versions are retained");
            let deleted_at = table.take_back((hash, &key), update, before);
            if update.is_new {
                if at < *shown {
                    // A key that is still pending would otherwise be added to the order afterwards.
                    table.order.settle(&Sequential);
                }
                // Reclaiming the previous row of this key may have left the key in the order.
                table.leave_order(hash, &key);
            }
            if let Some(at) = deleted_at {
                // Reclamation may have visited it while it was not the newest.
                self.garbage.push_again(at, Garbage { table: id, hash, key });
            }
        }
        assert!(written.replaced.is_empty(), "all replaced versions were restored");
        written.clear();
    }
}

#[cfg(test)]
mod tests;
