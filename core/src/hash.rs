//! Hash maps for look-ups, with a hasher that is the same in every run.
//!
//! Where anything iterates, use an ordered map: the order of a hash map is not part of any result.

/// A look-up table with a fixed hasher.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, rustc_hash::FxBuildHasher>;

/// A membership test with a fixed hasher.
pub type HashSet<K> = hashbrown::HashSet<K, rustc_hash::FxBuildHasher>;
