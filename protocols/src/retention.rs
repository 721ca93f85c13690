//! How long versions are kept for readers of several shards.
//!
//! A reader of several shards pins the last version that its own node has published, and then asks
//! nodes of the other shards to pin it, too. They may have published later versions meanwhile, and
//! must not have removed rows of this one.

use std::collections::VecDeque;

use pangea_core::ids::SnapshotVersion;
use pangea_core::time::{Span, Timestamp};

/// Readers can pin a version for this time after a later one is published. It is longer than a
/// message within a region takes, and than nodes of a region are apart in what they publish.
const KEPT: Span = Span::from_ms(250);
/// The distance between two versions that are remembered.
const STEP: Span = Span::from_ms(10);

/// The versions that a replica published lately.
#[derive(Debug, Default)]
pub struct Retention(VecDeque<(Timestamp, SnapshotVersion)>);

impl Retention {
    /// Notes the last published version. Returns the last one whose predecessors no reader needs,
    /// besides those that have pinned them.
    pub fn unneeded(&mut self, now: Timestamp, published: SnapshotVersion) -> SnapshotVersion {
        let is_old = |at: Timestamp, age: Span| now.since(at).us >= age.us;
        if self.0.back().is_none_or(|(at, _)| is_old(*at, STEP)) {
            self.0.push_back((now, published));
        }
        while self.0.get(1).is_some_and(|(at, _)| is_old(*at, KEPT)) {
            self.0.pop_front();
        }
        match self.0.front() {
            Some((at, version)) if is_old(*at, KEPT) => *version,
            _ => SnapshotVersion::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_kept_for_a_while() {
        let mut retention = Retention::default();
        let mut unneeded = |ms: u64, version: u64| {
            retention.unneeded(Timestamp::from_us(ms * 1_000), SnapshotVersion(version)).0
        };
        assert_eq!(unneeded(1_000, 5), 0);
        assert_eq!(unneeded(1_005, 6), 0, "it is not remembered");
        assert_eq!(unneeded(1_020, 7), 0);
        assert_eq!(unneeded(1_249, 8), 0);
        assert_eq!(unneeded(1_250, 9), 5, "version 5 was published 250 ms ago");
        assert_eq!(unneeded(1_270, 9), 7);
        assert_eq!(unneeded(9_000, 9), 9);
    }
}
