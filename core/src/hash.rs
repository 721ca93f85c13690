//! Hash maps for lookups, with a hasher that is the same in every run.
//!
//! Code that iterates must use an ordered map: the order of a hash map must never be part of a
//! result.

use std::hash::{BuildHasher, Hasher};

use crate::ids::TableId;
use crate::key::KeyRange;

/// A hash map with a fixed hasher.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, rustc_hash::FxBuildHasher>;

/// A hash set with a fixed hasher.
pub type HashSet<K> = hashbrown::HashSet<K, rustc_hash::FxBuildHasher>;

/// An occupied or vacant entry of a hash map.
pub use hashbrown::hash_map::Entry;

/// A hash table whose elements contain their keys. The caller computes the hashes.
pub use hashbrown::HashTable;

/// The hash of a byte string. The same on every node of one build, but must not be stored.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxBuildHasher.build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

/// The hash of a row's table and key. The same in every run of one build; never part of a result.
#[inline]
pub fn row_hash(table: TableId, key: &[u8]) -> u64 {
    rustc_hash::FxBuildHasher.hash_one((table.0, key))
}

/// The hash of a range of a table's rows, with the same properties as [`row_hash`] but different
/// values.
pub fn range_hash(table: TableId, range: &KeyRange) -> u64 {
    rustc_hash::FxBuildHasher.hash_one((range, table.0))
}
