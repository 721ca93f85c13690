//! Where transactions meet: a key for each that had to be run again, for those who look for it.
//!
//! Nothing is decided here. What is looked at is little, as it is looked at for each transaction of
//! this replica that did not stand.

use pangea_core::ids::{SnapshotVersion, TableId};
use pangea_core::key::Key;
use pangea_core::protocol::{Cx, FirstRun};
use pangea_core::txn::{PointRead, Seen};

use super::Minerva;
use super::batch::TxnRecord;

/// So many of the keys that it read, and that it wrote, are looked at.
const LOOKS_MAX: usize = 4;

/// What became of a transaction's first run, when it was in the ordered queue and the epoch is
/// applied: there was none, or it fell for a key that it had read and that has changed since, by
/// another before itself.
pub(super) fn first_run(cx: &Cx<'_, Minerva>, record: &TxnRecord, is_ordered: bool) -> FirstRun {
    if !is_ordered {
        return FirstRun::Stood;
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
            (Some(newest), Seen::At(seen)) => newest != seen,
            (newest, Seen::Absent) => newest.is_some(),
            (_, Seen::Local(_) | Seen::LocalDeleted(_)) | (None, Seen::At(_)) => false,
        }
    };
    let changed: Vec<&PointRead> = reads.points.iter().take(LOOKS_MAX).filter(is_changed).collect();
    let by_others = changed.iter().find(|read| is_others(read.table, &read.key));
    let read = by_others.or(changed.first()).map(|read| (read.table, &read.key));
    let mut written = writes.iter().take(LOOKS_MAX).map(|write| (write.table, &write.key));
    let found = read.or_else(|| written.find(|(table, key)| is_others(*table, key)));
    FirstRun::Fell(found.map(|(table, key)| (table, key.clone())))
}
