//! The epoch of a moment (§3, §4.1): epochs have a fixed length in physical time.
//!
//! ```text
//!   epoch   e          e+1         e+2
//!         --|-----------|-----------|---------> the node's clock
//!           start       start + length
//! ```
//!
//! Each replica counts the epochs on its own clock, since the Unix epoch. So replicas with
//! synchronized clocks end an epoch at the same moment. Replicas follow the fastest clock: when a
//! peer reaches a later epoch, so does this replica, at once. In the paper every commit waits for
//! the slowest clock. A replica that is ahead of its clock, because it has followed another one or
//! has ended epochs ahead, counts more slowly until the clock has caught up.
//!
//! Numbers only grow and may be skipped. Nothing but the latency depends on the clock: if it jumps
//! forward, epochs get other numbers, and if it stands still, epochs get longer until a peer or the
//! clock goes on.

use pangea_core::ids::SnapshotVersion;
use pangea_core::time::{Span, Timestamp};

/// Ahead of its clock a replica makes epochs longer by this part of their length.
const SLOWER_BY: u64 = 8;

/// A clock of epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochClock {
    length: Span,
    /// An epoch that was reached before its time, and when.
    early: (SnapshotVersion, Timestamp),
}

impl EpochClock {
    /// A clock that counts since the Unix epoch. If `least` is later, that epoch begins now.
    pub fn new(length: Span, least: SnapshotVersion, now: Timestamp) -> Self {
        assert!(length.us > 0, "epochs take time");
        Self { length, early: (least, now) }
    }

    /// The length of an epoch of a replica that is ahead of its clock.
    fn slow_us(&self) -> u64 {
        self.length.us + self.length.us / SLOWER_BY
    }

    /// The epoch of this moment. Never before an epoch that the clock has been set to.
    pub fn epoch_at(&self, now: Timestamp) -> SnapshotVersion {
        let (epoch, at) = self.early;
        let early = epoch.0 + now.since(at).us / self.slow_us();
        SnapshotVersion(early.max(now.us / self.length.us))
    }

    /// The start of an epoch, as far as this clock knows it.
    pub fn start_of(&self, epoch: SnapshotVersion) -> Timestamp {
        let (first, at) = self.early;
        let later = self.slow_us().saturating_mul(epoch.0.saturating_sub(first.0));
        let early = at.us.saturating_add(later);
        Timestamp::from_us(early.min(epoch.0.saturating_mul(self.length.us)))
    }

    /// Follows a faster clock, on which `epoch` begins now, or later than that.
    pub fn follow(&mut self, epoch: SnapshotVersion, now: Timestamp) {
        if epoch > self.epoch_at(now) {
            self.early = (epoch, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTH: Span = Span::from_ms(10);

    fn at_ms(ms: u64) -> Timestamp {
        Timestamp::from_us(ms * 1_000)
    }

    #[test]
    fn replicas_that_start_at_other_times_count_alike() {
        let clock = |ms| EpochClock::new(LENGTH, SnapshotVersion(7), at_ms(ms));
        for at in [104, 119, 120, 999] {
            assert_eq!(clock(104).epoch_at(at_ms(at)).0, at / 10);
            assert_eq!(clock(101).epoch_at(at_ms(at)), clock(104).epoch_at(at_ms(at)));
        }
        assert_eq!(clock(104).start_of(SnapshotVersion(12)), at_ms(120));
    }

    #[test]
    fn epochs_ahead_of_the_clock_are_longer_until_it_has_caught_up() {
        // It has reached epoch 18 at 100 ms, and the clock is 80 ms behind.
        let clock = EpochClock::new(LENGTH, SnapshotVersion(18), at_ms(100));
        let epochs = [0, 100, 111, 112, 211, 213].map(|ms| clock.epoch_at(at_ms(ms)).0);
        assert_eq!(epochs, [18, 18, 18, 19, 27, 28]);
        assert_eq!(clock.start_of(SnapshotVersion(20)).us, 122_500);
        let caught_up = (100..2_000).find(|ms| clock.epoch_at(at_ms(*ms)).0 == ms / 10);
        assert!(caught_up.is_some_and(|ms| (700..900).contains(&ms)), "{caught_up:?}");
        for ms in 900..1_000 {
            assert_eq!(clock.epoch_at(at_ms(ms)).0, ms / 10);
        }
        assert_eq!(clock.start_of(SnapshotVersion(95)), at_ms(950));
    }

    #[test]
    fn a_slow_clock_follows_a_fast_one_and_a_fast_one_does_not_go_back() {
        let mut clock = EpochClock::new(LENGTH, SnapshotVersion(7), at_ms(100));
        clock.follow(SnapshotVersion(50), at_ms(105));
        assert_eq!(clock.epoch_at(at_ms(105)).0, 50);
        assert_eq!(clock.epoch_at(at_ms(117)).0, 51);
        clock.follow(SnapshotVersion(20), at_ms(117));
        assert_eq!(clock.epoch_at(at_ms(117)).0, 51);
    }

    proptest! {
        #[test]
        fn epochs_never_go_back_while_the_clock_does_not(
            steps in prop::collection::vec((0u64..30_000, prop::option::of(0u64..200)), 1..40),
        ) {
            let mut clock = EpochClock::new(LENGTH, SnapshotVersion(1), at_ms(0));
            let (mut now, mut before) = (at_ms(0), SnapshotVersion(1));
            for (us, heard) in steps {
                now = now + Span::from_us(us);
                let heard = heard.map(SnapshotVersion);
                heard.into_iter().for_each(|epoch| clock.follow(epoch, now));
                let epoch = clock.epoch_at(now);
                prop_assert!(epoch >= before.max(heard.unwrap_or_default()));
                prop_assert!(clock.start_of(epoch) <= now);
                prop_assert!(clock.start_of(epoch.next()) > now);
                before = epoch;
            }
        }
    }
}
