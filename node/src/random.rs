//! Random numbers that differ between processes.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 64 unpredictable bits from the operating system.
pub fn seed() -> u64 {
    // A hasher's keys are the standard library's only access to the operating system's generator.
    RandomState::new().build_hasher().finish()
}
