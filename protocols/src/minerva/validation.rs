//! Phase 4a: stale transactions (§3.5, §3.6; Algorithm 5, line 8).
//!
//! A transaction is stale if a version that it read was superseded before this epoch. A chain with
//! a stale member is stale as a whole. So is a chain that read a write of a transaction that was
//! itself invalidated: its read names a writer whose write the store does not have as executed.

use std::ops::ControlFlow;

use pangea_core::hash::HashSet;
use pangea_core::ids::{SnapshotVersion, TableId, TxnId};
use pangea_core::mutate;
use pangea_core::pool::{self, Pool};
use pangea_core::store::{Store, Version};
use pangea_core::txn::{RangeRead, ReadSet, ReadVersion};

use super::chains::{Chain, Entry};
use super::header;

/// The state that reads are checked against.
pub(super) struct Validator<'a> {
    /// The tables as of the end of the previous epoch.
    pub store: &'a Store,
    /// The previous epoch.
    pub before: SnapshotVersion,
    /// The transactions of this epoch.
    pub in_epoch: HashSet<TxnId>,
    /// Whether a read of a local writer that committed in an earlier epoch can be valid.
    pub keep_uncommitted: bool,
}

impl Validator<'_> {
    /// For each chain, whether it is stale.
    pub(super) fn stale(
        &self,
        pool: &dyn Pool,
        entries: &[Entry<'_>],
        chains: &[Chain],
    ) -> Vec<bool> {
        let reads: Vec<&ReadSet> = chains
            .iter()
            .flat_map(|chain| &chain.members)
            .map(|&i| entries[i].record.learned().expect("chains hold optimistic runs").0)
            .collect();
        let are_current = pool::map(pool, &reads, |_, reads| self.are_current(reads));
        let mut next = are_current.into_iter();
        chains
            .iter()
            .map(|chain| {
                let members = next.by_ref().take(chain.members.len());
                members.fold(
                    false,
                    |stale, is_current| mutate!(StaleAlone: stale | !is_current => !is_current),
                )
            })
            .collect()
    }

    fn are_current(&self, reads: &ReadSet) -> bool {
        self.store.warm(reads.points.iter().map(|read| (read.table, &read.key)));
        let mut ranges = reads.ranges.iter();
        reads.points.iter().all(|read| self.is_point_current(read.table, &read.key, read.seen))
            && mutate!(RangesNotValidated: ranges.all(|read| self.is_range_current(read)) => true)
    }

    fn is_point_current(&self, table: TableId, key: &[u8], seen: ReadVersion) -> bool {
        if let Some(writer) = seen.local_writer()
            && (self.in_epoch.contains(&writer) || !self.keep_uncommitted)
        {
            // A writer in this epoch is in the same chain, which is valid or invalid as a whole.
            return self.in_epoch.contains(&writer);
        }
        mutate!(PointsNotValidated: () => return true);
        let is_same = |version: &Version| is_version(seen, version);
        self.store
            .head_with(table, key, self.before, is_same)
            .unwrap_or(matches!(seen, ReadVersion::Absent | ReadVersion::LocalDeleted(_)))
    }

    /// Whether the range contains exactly the rows that were read there.
    fn is_range_current(&self, read: &RangeRead) -> bool {
        let mut rows = read.rows.iter().peekable();
        let mut is_current = true;
        self.store.scan_heads(read.table, &read.range, self.before, |key, version| {
            // Rows that the store does not have: correct if they are expected to be absent.
            while let Some((_, seen)) = rows.next_if(|(row, _)| row < key) {
                is_current &= self.is_right_when_absent(*seen);
            }
            match rows.next_if(|(row, _)| row == key) {
                Some((_, seen)) => is_current &= self.is_row_current(*seen, version),
                // A row that appeared: a phantom.
                None => is_current &= mutate!(PhantomsPass: version.value.is_none() => true),
            }
            if is_current { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        is_current && rows.all(|(_, seen)| self.is_right_when_absent(*seen))
    }

    fn is_row_current(&self, seen: ReadVersion, version: &Version) -> bool {
        match seen.local_writer() {
            Some(writer) if self.in_epoch.contains(&writer) => true,
            Some(_) => self.keep_uncommitted && is_version(seen, version),
            None => is_version(seen, version),
        }
    }

    fn is_right_when_absent(&self, seen: ReadVersion) -> bool {
        match seen {
            ReadVersion::Absent => true,
            ReadVersion::At(_) | ReadVersion::Present => false,
            ReadVersion::Local(writer) => self.in_epoch.contains(&writer),
            ReadVersion::LocalDeleted(writer) => {
                self.in_epoch.contains(&writer) || self.keep_uncommitted
            }
        }
    }
}

/// Whether the version that was read is the one in the store, with no transaction of the epoch
/// between.
///
/// An absent key is absent, whoever deleted it. Whether the store still has the deletion as a
/// version differs between replicas, so no decision may depend on it.
fn is_version(seen: ReadVersion, version: &Version) -> bool {
    match seen {
        ReadVersion::Absent | ReadVersion::LocalDeleted(_) => version.value.is_none(),
        ReadVersion::Present => version.value.is_some(),
        ReadVersion::At(at) => version.version == at && version.value.is_some(),
        ReadVersion::Local(writer) => {
            let is_its = version.header == header::as_executed(writer);
            let is_its = mutate!(LocalWriterSuffices: is_its => version.header.writer() == writer);
            is_its && version.value.is_some()
        }
    }
}
