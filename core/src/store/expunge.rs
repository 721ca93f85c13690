//! Removal of single versions: a protocol gives up some transactions, and keeps later ones.
//!
//! ```text
//!   key a    [ 9 ] [ 7 ] [ 4 ]         7 is given up       [ 9 ] [ 4 ]
//!   key b    [ 7 ] [ 4 ]                                   [ 4 ]
//!   key c    [ 7 ]                                         no row
//! ```
//!
//! [`Store::retreat_to`] removes all versions after one. Where the transactions of several shards
//! are ordered by numbers, those that are given up are no suffix: others of later versions stay,
//! also above them on the same key. The caller knows the writes of each transaction, so the cost is
//! that of its rows, and not of the tables.
//!
//! Only versions that are not published can be removed, so no reader and no pin loses anything.

use super::chain::Expunged;
use super::cold::Tier;
use super::cold_placeholder::is_cold;
use super::garbage::Garbage;
use super::table::{Row, Table};
use super::{Store, Version, write};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;

impl Store {
    /// Removes these versions, as if they had never been written. Those that do not exist are
    /// skipped. Returns the number of removed ones. No other writes may run concurrently.
    ///
    /// # Panics
    /// If one of the versions is published.
    pub fn expunge<'a>(
        &self,
        versions: impl IntoIterator<Item = (TableId, &'a Key, SnapshotVersion)>,
    ) -> usize {
        let published = self.published();
        let mut count = 0;
        for (id, key, number) in versions {
            assert!(number > published, "{number} is given up, but readers see {published}");
            let Some(table) = self.tables.table(id) else { continue };
            let hash = hash_bytes(key);
            let tier = self.tier.as_deref();
            let Some((removed, deletion)) = table.expunge((id, hash, key), number, tier) else {
                continue;
            };
            count += 1;
            if let Some(mut sums) = self.digests.sums() {
                sums.subtract(id, key, &removed);
                self.digests.note(number, &sums);
            }
            if let Some(at) = deletion {
                // Reclamation may have visited it while it was not the newest.
                self.garbage.push_again(at, Garbage { table: id, hash, key: key.clone() });
            }
        }
        count
    }
}

impl Table {
    /// Removes a version of a key, and returns it, with the version of a deletion that is the
    /// newest again.
    fn expunge(
        &self,
        (id, hash, key): (TableId, u64, &Key),
        number: SnapshotVersion,
        tier: Option<&Tier>,
    ) -> Option<(Version, Option<SnapshotVersion>)> {
        let shard = &self.shards[Self::shard_of(hash)];
        let (expunged, deletion) = {
            let mut rows = write(&shard.rows);
            let is = |row: &Row| row.key == *key;
            let row = rows.find_mut(hash, is)?;
            let was_cold = is_cold(row.chain.newest());
            let expunged = row.chain.expunge(number)?;
            let removed = expunged.version();
            let mut deletion = None;
            let is_gone = matches!(expunged, Expunged::Only(_));
            match &expunged {
                Expunged::Only(_) => shard.count_bytes(0, row.bytes() + removed.value_bytes()),
                Expunged::Newest(_) | Expunged::Older(_) => {
                    shard.count_bytes(0, removed.older_bytes());
                    let newest = row.chain.newest();
                    let is_newest_again = matches!(expunged, Expunged::Newest(_));
                    if is_newest_again && newest.value.is_none() {
                        deletion = Some(newest.version);
                    }
                }
            }
            if let Some(tier) = tier {
                let copied = removed.has_copy().then_some(removed.version);
                let is_left_cold = !is_gone && is_cold(row.chain.newest());
                let copied = copied.into_iter().collect();
                tier.on_retreat((id, hash, key), (was_cold, is_left_cold), copied);
            }
            if is_gone {
                rows.remove(hash, is, |row| hash_bytes(&row.key));
            }
            (expunged, deletion)
        };
        if matches!(expunged, Expunged::Only(_)) {
            // A key that is still pending would otherwise be added to the order afterwards.
            self.order.settle(&crate::pool::Sequential);
            self.leave_order(hash, key);
        }
        let removed = match expunged {
            Expunged::Only(version) | Expunged::Newest(version) | Expunged::Older(version) => {
                version
            }
        };
        Some((removed, deletion))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{key, version};
    use super::*;

    const TABLE: TableId = TableId(1);

    #[test]
    fn a_version_under_a_later_one_is_removed() {
        let store = Store::new();
        for at in [2, 5, 7, 9] {
            store.apply(TABLE, key(b"a"), version(at, Some(&[at as u8])));
        }
        store.apply(TABLE, key(b"b"), version(7, Some(b"7")));
        store.publish(SnapshotVersion(5));
        let seven = SnapshotVersion(7);
        let all = [(TABLE, &key(b"a"), seven), (TABLE, &key(b"b"), seven)];
        assert_eq!(store.expunge(all), 2);
        assert_eq!(store.expunge(all), 0, "they are gone");
        let sees = |at| store.read(TABLE, b"a", SnapshotVersion(at)).map(|it| it.version.0);
        assert_eq!([sees(9), sees(8), sees(7), sees(5), sees(4)], [9, 5, 5, 5, 2].map(Some));
        assert_eq!((store.read(TABLE, b"b", SnapshotVersion(9)), store.len(TABLE)), (None, 1));
        store.publish(SnapshotVersion(9));
        store.reclaim(SnapshotVersion(9));
        assert_eq!(sees(8), None, "the versions before are reclaimed as before");
    }

    #[test]
    fn a_deletion_that_is_the_newest_again_is_reclaimed() {
        let store = Store::new();
        store.apply(TABLE, key(b"a"), version(2, Some(b"v")));
        store.apply(TABLE, key(b"a"), version(5, None));
        store.publish(SnapshotVersion(5));
        store.apply(TABLE, key(b"a"), version(6, Some(b"w")));
        store.reclaim(SnapshotVersion(5));
        store.expunge([(TABLE, &key(b"a"), SnapshotVersion(6))]);
        store.reclaim(SnapshotVersion(5));
        assert_eq!(store.len(TABLE), 0);
    }

    #[test]
    #[should_panic(expected = "v5 is given up, but readers see v5")]
    fn a_version_that_readers_see_is_never_given_up() {
        let store = Store::new();
        store.apply(TABLE, key(b"a"), version(5, Some(b"v")));
        store.publish(SnapshotVersion(5));
        store.expunge([(TABLE, &key(b"a"), SnapshotVersion(5))]);
    }
}
