//! Conflict keys: for each re-executed transaction, a key that explains it, for operators who look
//! for contention.
//!
//! No decision depends on this. Few keys are checked, because it is done for each transaction of
//! this replica that was invalidated.

use pangea_core::ids::{SnapshotVersion, TableId};
use pangea_core::key::Key;
use pangea_core::protocol::{Cx, FirstRun};
use pangea_core::txn::{PointRead, ReadVersion};

use super::Minerva;
use super::batch::TxnRecord;

/// The maximum number of read keys, and of written keys, that are checked.
const LOOKS_MAX: usize = 4;

/// The result of a transaction's first run after its epoch is applied, given whether it was in the
/// ordered queue. Either there was no first run, or it was invalidated by a key that it had read
/// and that has changed since, preferably by another transaction.
pub(super) fn first_run(cx: &Cx<'_, Minerva>, record: &TxnRecord, is_ordered: bool) -> FirstRun {
    if !is_ordered {
        return FirstRun::Valid;
    }
    let Some((reads, writes)) = record.learned() else { return FirstRun::Absent };
    let is_others = |table: TableId, key: &Key| {
        let last = SnapshotVersion(u64::MAX);
        let writer = cx.store.head_with(table, key, last, |version| version.header.writer());
        writer.is_some_and(|writer| writer != record.txn)
    };
    let is_changed = |read: &&PointRead| {
        let (key, last) = (&read.key, SnapshotVersion(u64::MAX));
        let newest = cx.store.head_with(read.table, key, last, |version| version.version);
        match (newest, read.seen) {
            (Some(newest), ReadVersion::At(seen)) => newest != seen,
            (newest, ReadVersion::Absent) => newest.is_some(),
            (newest, ReadVersion::Present) => newest.is_none(),
            (_, ReadVersion::Local(_) | ReadVersion::LocalDeleted(_))
            | (None, ReadVersion::At(_)) => false,
        }
    };
    let changed: Vec<&PointRead> = reads.points.iter().take(LOOKS_MAX).filter(is_changed).collect();
    let by_others = changed.iter().find(|read| is_others(read.table, &read.key));
    let read = by_others.or(changed.first()).map(|read| (read.table, &read.key));
    let mut written = writes.iter().take(LOOKS_MAX).map(|write| (write.table, &write.key));
    let found = read.or_else(|| written.find(|(table, key)| is_others(*table, key)));
    FirstRun::Invalidated(found.map(|(table, key)| (table, key.clone())))
}
