//! Digests of the writes of a version, and of rows, which replicas compare as they run.
//!
//! The digest of a table's writes at a version is the sum of the hashes of all keys that have a
//! value or a deletion of that version. A sum does not depend on the order of the writes, so
//! replicas with different numbers of workers get the same. If a key is written several times at a
//! version, only the last write counts, so the sum does not depend on how writes are grouped,
//! either.
//!
//! ```text
//!   write        sum + hash(key, new) - hash(key, replaced value of the same version)
//!   take_back    the sum of a transaction is added when the transaction is kept, or dropped
//!   retreat_to   the sums of later versions are dropped
//!   take_digest  returns the sums of a version, and drops those of earlier versions
//! ```
//!
//! A digest covers writes and not stored rows: replicas differ in whether a deletion is still
//! stored. It does not cover headers. The hash is part of what nodes send to each other, so it is
//! the same in all builds.
//!
//! Rows that no transaction reads or writes are covered by [`Store::digest_segments`], a few
//! segments of the hash tables at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::xxh3_64;

use super::table::{HASH_SHARDS, Table};
use super::{Store, Version, lock, read};
use crate::hash::hash_bytes;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;

/// The digest of some rows or writes of each table, in the order of the tables. Tables whose digest
/// is zero are left out.
pub type TableDigests = Vec<(TableId, u64)>;

/// The number of segments of [`Store::digest_segments`].
pub const SEGMENTS: u32 = (HASH_SHARDS * TAGS) as u32;

/// The number of segments of a shard.
const TAGS: usize = 256;

/// The maximum number of versions whose digests are retained. The digests of more versions are only
/// collected if the protocol confirms none of them for long.
const VERSIONS_MAX: usize = if cfg!(test) { 4 } else { 4_096 };

/// The digests of versions that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct VersionDigests {
    is_on: AtomicBool,
    kept: Mutex<Kept>,
}

/// The sums of versions.
#[derive(Debug, Default)]
struct Kept {
    versions: BTreeMap<SnapshotVersion, BTreeMap<TableId, u64>>,
    /// The sums of versions up to this one were dropped, or may lack writes.
    lost_upto: SnapshotVersion,
}

/// The sums of some writes of one version.
#[derive(Debug, Default)]
pub(super) struct Sums(Vec<(TableId, u64)>);

impl Sums {
    /// Adds a write.
    #[inline]
    pub(super) fn add(&mut self, table: TableId, key: &[u8], version: &Version) {
        self.change(table, row_hash(key, version));
    }

    /// Subtracts a write that another one of the same version replaces.
    #[inline]
    pub(super) fn subtract(&mut self, table: TableId, key: &[u8], version: &Version) {
        self.change(table, row_hash(key, version).wrapping_neg());
    }

    fn change(&mut self, table: TableId, by: u64) {
        // Few tables are written at a time, and the last one is the most likely.
        match self.0.iter_mut().rev().find(|(other, _)| *other == table) {
            Some((_, sum)) => *sum = sum.wrapping_add(by),
            None => self.0.push((table, by)),
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The hash of a key with its value or deletion.
#[inline]
fn row_hash(key: &[u8], version: &Version) -> u64 {
    // Odd numbers without a pattern.
    const KEY: u64 = 0x9E37_79B9_7F4A_7C15;
    const ALL: u64 = 0xD6E8_FEB8_6659_FD93;
    const DELETED: u64 = 0xA5CB_9243_1C5A_7D3B;
    let value = version.value.as_ref().map_or(DELETED, |value| xxh3_64(value));
    let hash = xxh3_64(key).wrapping_mul(KEY) ^ value.rotate_left(23);
    let hash = (hash ^ (hash >> 32)).wrapping_mul(ALL);
    hash ^ (hash >> 29)
}

impl VersionDigests {
    /// Whether digests are collected.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Empty sums, if digests are collected.
    #[inline]
    pub(super) fn sums(&self) -> Option<Sums> {
        self.is_on().then(Sums::default)
    }

    /// Adds the sums of some writes to those of their version.
    pub(super) fn note(&self, version: SnapshotVersion, sums: &Sums) {
        if sums.0.is_empty() {
            return;
        }
        let Kept { versions, lost_upto } = &mut *lock(&self.kept);
        if version <= *lost_upto {
            return;
        }
        let tables = versions.entry(version).or_default();
        for (table, sum) in &sums.0 {
            let all = tables.entry(*table).or_default();
            *all = all.wrapping_add(*sum);
        }
        if versions.len() > VERSIONS_MAX {
            *lost_upto = versions.pop_first().map_or(*lost_upto, |(dropped, _)| dropped);
        }
    }

    pub(super) fn retreat_to(&self, version: SnapshotVersion) {
        let Kept { versions, lost_upto } = &mut *lock(&self.kept);
        versions.retain(|other, _| *other <= version);
        *lost_upto = version.min(*lost_upto);
    }

    /// Drops all digests, and collects none until [`Store::collect_digests`].
    pub(super) fn clear(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        *lock(&self.kept) = Kept::default();
    }
}

impl Store {
    /// Collects the digests of writes from now on. No writes may run concurrently.
    pub fn collect_digests(&self) {
        self.digests.is_on.store(true, Ordering::Relaxed);
    }

    /// The digests of the writes of a version, and drops those of versions before it. `None` if
    /// digests are not collected, or if those of the version were dropped, because too many
    /// versions had been written before it was taken. The writes of the version must be complete.
    pub fn take_digest(&self, version: SnapshotVersion) -> Option<TableDigests> {
        if !self.digests.is_on() {
            return None;
        }
        let Kept { versions, lost_upto } = &mut *lock(&self.digests.kept);
        let later = versions.split_off(&version.next());
        let taken = std::mem::replace(versions, later).remove(&version).unwrap_or_default();
        if version <= *lost_upto {
            return None;
        }
        Some(taken.into_iter().filter(|(_, sum)| *sum != 0).collect())
    }

    /// The number of rows of all tables. Deleted rows count until they are reclaimed.
    pub fn row_count(&self) -> usize {
        self.table_ids().into_iter().map(|table| self.len(table)).sum()
    }

    /// A number that two nodes have in common if they divide rows into the same segments.
    pub fn segmentation() -> u8 {
        hash_bytes(b"a key of some length") as u8
    }

    /// The digests of the rows in these segments, as of a version that can be read. A row's segment
    /// depends on the hash of its key.
    ///
    /// # Panics
    /// If the store has a memory limit: values that are not in memory would have to be fetched.
    pub fn digest_segments(&self, at: SnapshotVersion, segments: Range<u32>) -> TableDigests {
        assert!(!self.has_cold(), "the values are in memory");
        let digest = |id: TableId| {
            let table = self.tables.table(id)?;
            let sum = table.digest_segments(at, segments.clone());
            (sum != 0).then_some((id, sum))
        };
        self.table_ids().into_iter().filter_map(digest).collect()
    }

    /// Changes a row's newest value behind the back of the protocol, as a defect of the memory
    /// would: for tests of the digests. Returns whether the row has a value.
    pub fn flip(&self, table: TableId, key: &Key) -> bool {
        let Some(found) = self.latest(table, key) else { return false };
        let Some(value) = found.value.clone().filter(|value| !value.is_empty()) else {
            return false;
        };
        let mut bytes = value.to_vec();
        bytes[0] ^= 1;
        let rows = self.tables.table_to_write(table);
        let value = Some(crate::value::Value::copy_from(&bytes));
        let flipped = Version { value, ..found };
        rows.put((hash_bytes(key), key), flipped, None, drop);
        true
    }
}

impl Table {
    fn digest_segments(&self, at: SnapshotVersion, segments: Range<u32>) -> u64 {
        let (mut sum, mut next) = (0_u64, segments.start);
        while next < segments.end {
            let shard = next as usize / TAGS;
            let first = next as usize % TAGS;
            let end = (segments.end as usize - shard * TAGS).min(TAGS);
            let rows = read(&self.shards[shard].rows);
            for row in rows.of_tags(first as u8..=(end - 1) as u8) {
                if let Some(version) = row.chain.visible(at).filter(|it| it.value.is_some()) {
                    sum = sum.wrapping_add(row_hash(&row.key, version));
                }
            }
            next = ((shard + 1) * TAGS) as u32;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::in_place::Written;
    use super::super::tests::{key, version};
    use super::*;
    use crate::ids::{NodeId, TxnId};
    use crate::key::HashedKey;
    use crate::store::RecordHeader;

    const TABLE: TableId = TableId(1);
    const OTHER: TableId = TableId(2);

    fn store() -> Store {
        let store = Store::new();
        store.collect_digests();
        store
    }

    fn write(store: &Store, written: &mut Written, txn: u64, row: &[u8], at: u64, value: &[u8]) {
        let header = RecordHeader::new(TxnId::new(NodeId(0), txn));
        let version = Version { header, ..version(at, Some(value)) };
        store.write(written, (TABLE, HashedKey::from(key(row))), version);
    }

    #[test]
    fn a_digest_depends_on_the_last_writes_and_not_on_how_they_were_made() {
        let one_by_one = store();
        for (table, row, value) in [
            (TABLE, &b"a"[..], Some(&b"old"[..])),
            (TABLE, b"a", Some(b"1")),
            (OTHER, b"a", None),
            (TABLE, b"b", Some(b"2")),
        ] {
            one_by_one.apply(table, key(row), version(3, value));
        }
        let at_once = store();
        let writes =
            [(TABLE, &b"b"[..], Some(&b"2"[..])), (TABLE, b"a", Some(b"1")), (OTHER, b"a", None)];
        let writes = writes.map(|(table, row, value)| (table, key(row), version(3, value)));
        at_once.apply_batch(&crate::pool::Sequential, SnapshotVersion(3), writes.to_vec());
        let in_place = store();
        let mut written = Written::default();
        write(&in_place, &mut written, 1, b"a", 3, b"lost");
        in_place.take_back(&mut written);
        write(&in_place, &mut written, 2, b"a", 3, b"older");
        write(&in_place, &mut written, 2, b"a", 3, b"old");
        in_place.keep(&mut written, SnapshotVersion(3));
        write(&in_place, &mut written, 3, b"a", 3, b"never");
        in_place.take_back(&mut written);
        write(&in_place, &mut written, 4, b"a", 3, b"1");
        write(&in_place, &mut written, 4, b"b", 3, b"2");
        in_place.keep(&mut written, SnapshotVersion(3));
        in_place.apply(OTHER, key(b"a"), version(3, None));
        let expected = one_by_one.take_digest(SnapshotVersion(3)).unwrap();
        assert_eq!(expected.len(), 2);
        for store in [at_once, in_place] {
            assert_eq!(store.take_digest(SnapshotVersion(3)).unwrap(), expected);
        }
        let different = store();
        different.apply(TABLE, key(b"a"), version(3, Some(b"2")));
        different.apply(TABLE, key(b"b"), version(3, Some(b"1")));
        different.apply(OTHER, key(b"a"), version(3, None));
        let found = different.take_digest(SnapshotVersion(3)).unwrap();
        assert_ne!(found[0], expected[0], "values that changed places are not the same");
        assert_eq!(found[1], expected[1]);
    }

    #[test]
    fn digests_of_versions_that_are_rolled_back_or_never_taken_are_dropped() {
        let store = store();
        for at in 1..4 {
            store.apply(TABLE, key(b"a"), version(at, Some(&[at as u8])));
        }
        store.retreat_to(SnapshotVersion(2));
        assert_eq!(store.take_digest(SnapshotVersion(3)), Some(Vec::new()));
        assert_eq!(store.take_digest(SnapshotVersion(2)), Some(Vec::new()), "dropped by the first");
        for at in 3..20 {
            store.apply(TABLE, key(b"a"), version(at, Some(b"v")));
        }
        assert_eq!(lock(&store.digests.kept).versions.len(), VERSIONS_MAX);
        store.apply(TABLE, key(b"b"), version(15, Some(b"late")));
        assert_eq!(
            store.take_digest(SnapshotVersion(15)),
            None,
            "it was dropped, and is not empty"
        );
        let kept = store.take_digest(SnapshotVersion(16));
        assert!(kept.is_some_and(|kept| kept.len() == 1));
        store.clear();
        assert_eq!(store.take_digest(SnapshotVersion(19)), None);
    }

    #[test]
    fn each_row_is_in_one_segment_and_a_flipped_bit_changes_its_digest() {
        let (one, other) = (store(), store());
        for row in 0..500_u16 {
            for store in [&one, &other] {
                store.apply(TABLE, key(&row.to_be_bytes()), version(1, Some(&row.to_le_bytes())));
            }
        }
        other.apply(TABLE, key(b"gone"), version(1, None));
        let at = SnapshotVersion(1);
        let all = one.digest_segments(at, 0..SEGMENTS);
        assert_eq!(all, other.digest_segments(at, 0..SEGMENTS), "deletions do not count");
        let parts = |store: &Store, by: u32| {
            let starts = (0..SEGMENTS).step_by(by as usize);
            starts.map(|from| store.digest_segments(at, from..from + by)).collect::<Vec<_>>()
        };
        for by in [1 << 12, 1 << 6, 1] {
            let sums = parts(&one, by).into_iter().flatten().map(|(_, sum)| sum);
            assert_eq!(sums.fold(0, u64::wrapping_add), all[0].1);
        }
        assert!(other.flip(TABLE, &key(&[1, 0])));
        let differ = parts(&one, 64).into_iter().zip(parts(&other, 64)).filter(|(a, b)| a != b);
        assert_eq!(differ.count(), 1);
    }
}
