//! Hash maps for look-ups, with a hasher that is the same in every run.
//!
//! Where anything iterates, use an ordered map: the order of a hash map is not part of any result.

use std::hash::{BuildHasher, Hasher};

use crate::ids::TableId;
use crate::key::KeyRange;

/// A look-up table with a fixed hasher.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, rustc_hash::FxBuildHasher>;

/// A membership test with a fixed hasher.
pub type HashSet<K> = hashbrown::HashSet<K, rustc_hash::FxBuildHasher>;

/// A place in a look-up table, taken or free.
pub use hashbrown::hash_map::Entry;

/// A look-up table of things that know their key, asked with hashes that the caller computes.
pub use hashbrown::HashTable;

/// The hash of a byte string: the same on every node of one build, but not to be stored.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxBuildHasher.build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

/// A hash of one row's name. The same in every run of one build; never part of a result.
pub fn row_hash(table: TableId, key: &[u8]) -> u64 {
    rustc_hash::FxBuildHasher.hash_one((table.0, key))
}

/// A hash of a range of a table's rows: as that of a row's name, and another than that.
pub fn range_hash(table: TableId, range: &KeyRange) -> u64 {
    rustc_hash::FxBuildHasher.hash_one((range, table.0))
}
