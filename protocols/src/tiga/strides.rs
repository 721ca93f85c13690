//! How many cells a leader of several shards adds to its log at a time.
//!
//! Each addition costs messages between all nodes. So under load a leader waits for the end of a
//! few more cells: of many transactions that wait, each waits a little longer. It does the same if
//! its followers are far away, since a commit takes much longer than a few cells then.

use std::ops::RangeInclusive;

use pangea_core::time::Span;

/// From these numbers of pending transactions on, a leader adds 2, 4 and 8 cells at a time.
const PENDING: [usize; 3] = [8, 16, 64];

/// Enough transactions for an addition.
const ENOUGH: u64 = 8;

/// With fewer transactions for the longest stride, each cell is added at once.
const FEW: u64 = 4;

/// A stride takes at most this part of a round trip to the nearest followers.
const PART: u64 = 8;

/// The largest stride.
const MOST: u64 = 8;

/// The time over which arrivals are counted, in microseconds.
const WINDOW_US: u64 = 100_000;

/// The stride of a leader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    /// The largest stride for a rate: a power of two. `None` with one shard, which has no strides.
    most: Option<u64>,
    /// The transactions since the beginning of the window, and when that was.
    window: (u64, u64),
    /// The transactions that have arrived in a second.
    rate: u64,
}

impl Strides {
    /// The strides of a leader to whose nearest followers a round trip takes this long.
    pub(super) fn new(is_divided: bool, round_trip: Span) -> Self {
        let cells = (round_trip.us / 1_000 / PART).clamp(1, MOST);
        let most = is_divided.then_some(1 << cells.ilog2());
        Self { most, window: (0, 0), rate: 0 }
    }

    /// A transaction has arrived, by the leader's clock in microseconds.
    pub(super) fn note_arrival(&mut self, now: u64) {
        let (count, since) = &mut self.window;
        *count += 1;
        let passed = now.saturating_sub(*since);
        if passed >= WINDOW_US {
            // Half of it is what was before.
            self.rate = (self.rate + *count * 1_000_000 / passed) / 2;
            self.window = (0, now);
        }
    }

    /// The number of cells of an addition, if so many transactions are pending: a power of two.
    pub(super) fn cells(&self, pending: usize) -> u64 {
        let Some(most) = self.most else { return 1 };
        let by_pending = 1 << PENDING.iter().filter(|from| pending >= **from).count();
        // In thousandths of a transaction.
        let in_cells = |cells: u64| self.rate * cells;
        let by_rate = match in_cells(most) {
            0..FEW_IN_THOUSANDTHS => 1,
            _ => powers(1..=most).find(|cells| in_cells(*cells) >= 1_000 * ENOUGH).unwrap_or(most),
        };
        by_rate.max(by_pending)
    }
}

const FEW_IN_THOUSANDTHS: u64 = 1_000 * FEW;

/// The powers of two in a range.
fn powers(range: RangeInclusive<u64>) -> impl Iterator<Item = u64> {
    (0..u64::BITS).map(|exponent| 1 << exponent).filter(move |power| range.contains(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strides after a second in which this many transactions arrived.
    fn at_rate(rate: u64, round_trip_ms: u64) -> Strides {
        let mut strides = Strides::new(true, Span::from_ms(round_trip_ms));
        (0..2 * rate).for_each(|txn| strides.note_arrival(5_000_000 + txn * 1_000_000 / rate));
        strides
    }

    #[test]
    fn more_cells_are_added_at_a_time_if_many_transactions_wait() {
        let near = Strides::new(true, Span::ZERO);
        let strides = [0, 7, 8, 15, 16, 63, 64, 10_000].map(|pending| near.cells(pending));
        assert_eq!(strides, [1, 1, 2, 2, 4, 4, 8, 8]);
        assert_eq!(Strides::new(false, Span::from_ms(200)).cells(10_000), 1, "one shard");
    }

    #[test]
    fn a_stride_is_a_small_part_of_a_round_trip() {
        let of = |rate, round_trip_ms| at_rate(rate, round_trip_ms).cells(0);
        assert_eq!([100, 500, 2_000, 4_100, 20_000].map(|rate| of(rate, 50)), [1, 1, 4, 2, 1]);
        assert_eq!([0, 10, 20, 50, 100, 400].map(|ms| of(2_100, ms)), [1, 1, 2, 4, 4, 4]);
        assert_eq!([0, 10, 20, 50, 100, 400].map(|ms| of(900, ms)), [1, 1, 1, 1, 8, 8]);
    }
}
