//! Rows that jobs may not access now, because transactions beside the order are about to change
//! them, or because of the transactions that have written them.

use std::ops::ControlFlow;

use crate::ids::{SnapshotVersion, TableId};
use crate::key::KeyRange;
use crate::store::Store;
use crate::txn::Certified;

/// Decides which rows the jobs of a call may access. A job that is refused one is put off: it has
/// no effect. `place` is that of the job in the call.
///
/// The answers must not change during a call, so that the result does not depend on the number of
/// workers.
pub trait Guard: Sync {
    /// Whether a job may read this key.
    fn may_read(&self, place: usize, table: TableId, key: &[u8]) -> bool;
    /// Whether a job may read this range.
    fn may_read_range(&self, place: usize, table: TableId, range: &KeyRange) -> bool;
    /// Whether a job may write this key.
    fn may_write(&self, place: usize, table: TableId, key: &[u8]) -> bool;
    /// Whether a job may see a row, or its deletion, of this version.
    fn may_see(&self, place: usize, version: SnapshotVersion) -> bool;
}

/// Whether a certified job may access all of its rows.
pub(super) fn may_certify(
    guard: &dyn Guard,
    place: usize,
    certified: &Certified,
    store: &Store,
    at: SnapshotVersion,
) -> bool {
    let may_see = |table, key: &[u8]| {
        let seen = store.head_with(table, key, at, |found| found.version);
        seen.is_none_or(|seen| guard.may_see(place, seen))
    };
    let Certified { reads, writes, .. } = certified;
    let points = reads.points.iter();
    let mut points = points.map(|read| (read.table, &read.key));
    if !points.all(|(table, key)| guard.may_read(place, table, key) && may_see(table, key)) {
        return false;
    }
    let may_range = |table, range: &KeyRange| {
        let mut may = guard.may_read_range(place, table, range);
        if may {
            store.scan_heads(table, range, at, |_, found| {
                may = guard.may_see(place, found.version);
                if may { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        may
    };
    reads.ranges.iter().all(|read| may_range(read.table, &read.range))
        && writes.iter().all(|write| guard.may_write(place, write.table, &write.key))
}
