//! The headroom of stamps (§3.1, figure 13): by how much they are later than the expected arrival.
//!
//! Where transactions have to be in time, too little of it costs a round trip, and too much costs
//! the time itself. The paper adds a fixed 10 ms. Here a coordinator measures a sufficient one: if
//! a transaction was late, the headroom grows, and each one that was in time takes a hundredth of
//! that away. So about one of a hundred is late. `headroom_ms` sets a fixed one.
//!
//! A transaction has to be in time at the replicas of a super quorum if it is to commit by their
//! replies (§3.4), and at the leaders of its shards if these agree after the release (§3.8).

use pangea_core::partition::ShardSet;
use pangea_core::time::{Span, Timestamp};

use super::coordinator::InFlight;
use super::state::State;

/// The headroom of a coordinator that was never late, in microseconds.
const LEAST_US: u64 = 1_000;

/// The largest one of a first try. Each further one has four times the headroom.
const MOST_US: u64 = 200_000;

/// The maximum number of times that a transaction is stamped again because it was late.
pub(super) const LATE_MAX: u32 = 8;

/// By how much it grows if a transaction was late.
const LATE_US: u64 = 1_000;

/// By how much it shrinks if one was in time. So about one of a hundred is late.
const IN_TIME_US: u64 = 10;

/// The headroom that a coordinator has measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headroom {
    us: u64,
    /// When it last grew.
    grown_at: Timestamp,
}

impl Default for Headroom {
    fn default() -> Self {
        Self { us: LEAST_US, grown_at: Timestamp::default() }
    }
}

impl Headroom {
    /// A transaction that was stamped at some time was late. What was stamped before the headroom
    /// grew tells nothing new.
    fn grow(&mut self, stamped_at: Timestamp, now: Timestamp) {
        if stamped_at >= self.grown_at {
            self.us = (self.us + LATE_US).min(MOST_US);
            self.grown_at = now;
        }
    }

    /// A transaction was in time.
    fn shrink(&mut self) {
        self.us = self.us.saturating_sub(IN_TIME_US).max(LEAST_US);
    }
}

impl State {
    /// The headroom of a first try, in microseconds: the configured one, or as it is measured.
    pub(super) fn headroom_us(&self) -> u64 {
        let fixed = self.options.headroom_ms.map(|ms| Span::from_ms(ms).us);
        fixed.unwrap_or(self.coordinator.headroom.us)
    }

    /// By how much the stamp of a transaction is later than its expected arrival, in microseconds;
    /// `None` if it need not be in time. `late` is how often it was late.
    pub(super) fn headroom_for(
        &self,
        shards: ShardSet,
        wants_replies: bool,
        late: u32,
    ) -> Option<i64> {
        let most = Span::from_ms(self.options.future_max_ms).us / 2;
        if self.has_hashes() {
            return wants_replies.then(|| self.headroom_us().min(most) as i64);
        }
        if !self.views.view.is_detective || shards.len() < 2 {
            return None;
        }
        if late == 0 {
            return Some(self.headroom_us().min(most) as i64);
        }
        // Leaders accept nothing later.
        let most = most + self.clocks_differ_at_most().us;
        let headroom_us = self.headroom_us().max(LEAST_US) << (2 * late.min(LATE_MAX));
        Some(headroom_us.min(most) as i64)
    }

    /// A transaction of this node is answered, or void because it was late. Whether it was in time
    /// where it had to be is not known if logs were quicker than replies. What is sent again is
    /// always late.
    pub(super) fn note_arrival(&mut self, now: Timestamp, own: &InFlight) {
        let is_of_view = own.view == self.views.view.number;
        let is_first = own.tries.late == 0 && own.sent_at == own.stamped_at;
        let is_known = own.is_late || own.is_by_replies || self.is_divided();
        let headroom = &mut self.coordinator.headroom;
        if own.has_headroom && is_of_view && is_first && is_known {
            match own.is_late && !own.is_by_replies {
                true => headroom.grow(own.stamped_at, now),
                false => headroom.shrink(),
            }
        }
    }

    /// While the logs are expected to be quicker than replies, nothing tells what headroom would
    /// suffice. It shrinks slowly, so that replies are tried again.
    pub(super) fn forget_headroom(&mut self) {
        if self.has_hashes() && !self.coordinator.expects_replies {
            self.coordinator.headroom.shrink();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_grows_fast_and_shrinks_slowly() {
        let at = Timestamp::from_us;
        let mut headroom = Headroom::default();
        headroom.shrink();
        assert_eq!(headroom.us, LEAST_US);
        headroom.grow(at(5), at(90));
        headroom.grow(at(89), at(95));
        assert_eq!(headroom.us, LEAST_US + LATE_US, "both were on their way");
        (0..LATE_US / IN_TIME_US).for_each(|_| headroom.shrink());
        assert_eq!(headroom.us, LEAST_US);
        (0..1_000).for_each(|at_us| headroom.grow(at(100 + at_us), at(100 + at_us)));
        assert_eq!(headroom.us, MOST_US);
    }
}
