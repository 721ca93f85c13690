//! Validation at the source, as in the paper (§4.1.1, Algorithm 1, lines 7 to 21; §4.1.5).
//!
//! Before a transaction is sent, its source compares the rows that it has read with the newest
//! snapshot there. Nothing compares them with the epochs between that snapshot and the commit, so
//! updates are lost at every level. This exists to measure the paper's protocol: sessions refuse to
//! work with it, because no constraint would hold.

use pangea_core::exec::{Change, first_change};
use pangea_core::guarantee::Isolation;
use pangea_core::ids::SnapshotVersion;
use pangea_core::store::Store;
use pangea_core::txn::{Certified, Write};

use super::isolation::{CheckedWrite, Checks};

/// The writes of a transaction that was validated: no replica checks anything else.
pub(super) fn unchecked(writes: Vec<Write>) -> Checks {
    let unchecked = |write| CheckedWrite { write, is_checked: false };
    Checks { writes: writes.into_iter().map(unchecked).collect(), ..Checks::default() }
}

/// The first row that has changed, by the rule of the level.
pub(super) fn validate(
    level: Isolation,
    certified: &Certified,
    store: &Store,
    newest: SnapshotVersion,
) -> Option<Change> {
    match level {
        Isolation::ReadCommitted => None,
        Isolation::RepeatableRead => first_change(&certified.reads, store, newest),
        // Line 17 compares with the epoch before that of the row, so it misses the epoch after the
        // snapshot.
        _ => certified.writes.iter().find_map(|write| {
            let (table, key) = (write.table, &write.key);
            let (version, writer) = store
                .head_with(table, key, newest, |found| (found.version, found.header.writer()))?;
            let is_new = version > certified.at.next();
            is_new.then(|| Change { table, key: key.clone(), winner: Some(writer) })
        }),
    }
}
