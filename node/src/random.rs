//! Randomness that differs from one process to the next.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 64 bits that nobody can foretell, from the operating system.
pub fn seed() -> u64 {
    // The standard library's only way to the operating system's generator: the keys of a hasher.
    RandomState::new().build_hasher().finish()
}
