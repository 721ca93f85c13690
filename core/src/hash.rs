//! Hash maps for look-ups, with a hasher that is the same in every run.
//!
//! Where anything iterates, use an ordered map: the order of a hash map is not part of any result.

use std::hash::{BuildHasher, Hasher};

/// A look-up table with a fixed hasher.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, rustc_hash::FxBuildHasher>;

/// A membership test with a fixed hasher.
pub type HashSet<K> = hashbrown::HashSet<K, rustc_hash::FxBuildHasher>;

/// A look-up table whose entries hold their own keys, under hashes from [`hash_bytes`].
pub type HashTable<T> = hashbrown::HashTable<T>;

/// The hash of a byte string: the same on every node of one build, but not to be stored.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxBuildHasher.build_hasher();
    hasher.write(bytes);
    hasher.finish()
}
