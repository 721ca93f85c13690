//! Versions: the commit numbers of a shard, with the epoch in their first bits (§4.2, §5.2).
//!
//! ```text
//!   version = epoch (16 bits) | count (32 bits)        fits in a snapshot version
//! ```
//!
//! The paper's clock is a counter for each shard, and its epoch is beside it. With the epoch in the
//! version, all versions of an epoch are after all of the epochs before, and a new leader can begin
//! to count without knowing where the last one has stopped.

use pangea_core::ids::SnapshotVersion;
use serde::{Deserialize, Serialize};

/// The number of an epoch. Epoch 0 has no leader.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// The bits of a version that count within an epoch. At 500 slices a second, an epoch lasts 99
/// days.
const COUNT_BITS: u32 = 32;

/// The last epoch. With a new leader every hour, it comes after seven years.
pub const EPOCH_MAX: u64 = (1 << 16) - 1;

/// When a leader has counted this far, another epoch begins, in which it counts from the beginning.
pub const COUNT_ENOUGH: u64 = 1 << 31;

impl Epoch {
    /// The next one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A version of an epoch.
///
/// # Panics
/// If the count or the epoch does not fit.
pub fn version_of(epoch: Epoch, count: u64) -> SnapshotVersion {
    assert!(count < 1 << COUNT_BITS && epoch.0 <= EPOCH_MAX, "another epoch begins before");
    SnapshotVersion(epoch.0 << COUNT_BITS | count)
}

/// The version before the first one of an epoch: those of all epochs before are up to it.
pub fn start_of(epoch: Epoch) -> SnapshotVersion {
    SnapshotVersion(epoch.0 << COUNT_BITS)
}

/// The epoch of a version.
pub fn epoch_of(version: SnapshotVersion) -> Epoch {
    Epoch(version.0 >> COUNT_BITS)
}

/// The place of a version in its epoch.
pub fn count_of(version: SnapshotVersion) -> u64 {
    version.0 & ((1 << COUNT_BITS) - 1)
}

/// The version after the last one of a leader of this epoch.
pub fn next_version(epoch: Epoch, last: SnapshotVersion) -> SnapshotVersion {
    match epoch_of(last) == epoch {
        true => version_of(epoch, count_of(last) + 1),
        false => version_of(epoch, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::NUMBER_MAX;

    #[test]
    fn versions_of_an_epoch_are_after_those_of_all_epochs_before() {
        let last = version_of(Epoch(3), COUNT_ENOUGH);
        assert_eq!((epoch_of(last), count_of(last)), (Epoch(3), COUNT_ENOUGH));
        assert_eq!(next_version(Epoch(3), last), version_of(Epoch(3), COUNT_ENOUGH + 1));
        let first = next_version(Epoch(4), last);
        assert!(first > last);
        assert_eq!((epoch_of(first), count_of(first)), (Epoch(4), 1));
        assert!(version_of(Epoch(EPOCH_MAX), (1 << COUNT_BITS) - 1).0 <= NUMBER_MAX);
    }
}
