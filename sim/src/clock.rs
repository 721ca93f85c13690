//! A node's clock: near the true time, never equal to it, never backwards.

use pangea_core::time::{ClockReading, Span, Timestamp};

use crate::rng::SimRng;

/// The reading of an exact clock at virtual time 0; large enough that no reading is negative.
const ORIGIN_US: i64 = 1_000_000_000;

/// Bounds on the error of clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockBounds {
    /// The largest initial offset, in either direction.
    pub offset_max: Span,
    /// The largest drift in microseconds per second, in either direction.
    pub drift_ppm_max: u64,
}

/// One node's clock.
#[derive(Clone, Debug)]
pub struct Clock {
    bounds: ClockBounds,
    offset_us: i64,
    drift_ppm: i64,
    /// An additional error that the clock's uncertainty includes.
    known: Shift,
    /// An additional error that the clock's uncertainty does not include.
    lie: Shift,
}

/// The shift that faults have caused. A node reads the wall clock when it starts and counts from
/// there. Therefore a shift backwards takes effect only at its next start. A shift forwards takes
/// effect at once, as after a machine was suspended.
#[derive(Clone, Copy, Debug, Default)]
struct Shift {
    wall_us: i64,
    in_force_us: i64,
}

impl Shift {
    fn add(&mut self, by_us: i64) {
        self.wall_us += by_us;
        self.in_force_us = self.in_force_us.max(self.wall_us);
    }
}

impl Clock {
    /// Creates a clock with an offset and a drift drawn within the bounds.
    pub fn new(bounds: ClockBounds, dice: &mut SimRng) -> Self {
        let mut either_way = |max: u64| dice.between(0, 2 * max) as i64 - max as i64;
        assert!(bounds.offset_max.us < ORIGIN_US as u64, "an offset before the origin");
        Self {
            bounds,
            offset_us: either_way(bounds.offset_max.us),
            drift_ppm: either_way(bounds.drift_ppm_max),
            known: Shift::default(),
            lie: Shift::default(),
        }
    }

    /// Shifts the clock by `by_us`; `is_known` shifts also widen its uncertainty.
    pub fn shift(&mut self, by_us: i64, is_known: bool) {
        if is_known { self.known.add(by_us) } else { self.lie.add(by_us) }
    }

    /// Rereads the wall clock because the node starts.
    pub fn restart(&mut self) {
        for shift in [&mut self.known, &mut self.lie] {
            shift.in_force_us = shift.wall_us;
        }
    }

    /// Returns the clock's reading at the true time `now`. The drift is far below one second per
    /// second, so the clock never goes backwards.
    pub fn reading(&self, now: Timestamp) -> ClockReading {
        let drifted = now.us * self.bounds.drift_ppm_max / 1_000_000;
        let known = self.known.in_force_us.unsigned_abs();
        let uncertainty = Span::from_us(self.bounds.offset_max.us + drifted + known + 1);
        ClockReading { at: self.at(now), uncertainty }
    }

    /// Returns the first true time, not before `now`, at which the clock reads `at` or later.
    pub fn true_time(&self, now: Timestamp, at: Timestamp) -> Timestamp {
        let mut guess = now;
        loop {
            let missing = at.since(self.at(guess)).us;
            if missing == 0 {
                return guess;
            }
            // Undershoots if the clock runs fast, so that the loop converges from below.
            guess.us += (missing - missing * self.bounds.drift_ppm_max / 1_000_000).max(1);
        }
    }

    /// The reading of an exact clock at virtual time 0.
    pub fn origin() -> Timestamp {
        Timestamp::from_us(ORIGIN_US as u64)
    }

    fn at(&self, now: Timestamp) -> Timestamp {
        let now_us = now.us as i64;
        let wrong_us = self.offset_us + self.known.in_force_us + self.lie.in_force_us;
        let us = ORIGIN_US + now_us + wrong_us + now_us * self.drift_ppm / 1_000_000;
        Timestamp::from_us(us as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_time_is_within_the_uncertainty_and_timers_never_come_early() {
        let bounds = ClockBounds { offset_max: Span::from_ms(5), drift_ppm_max: 200 };
        for index in 0..100 {
            let clock = Clock::new(bounds, &mut SimRng::fork(1, "clock", index));
            for now in (0..60_000_000).step_by(7_000_003).map(Timestamp::from_us) {
                let reading = clock.reading(now);
                let wrong = reading.at.us.abs_diff(now.us + ORIGIN_US as u64);
                assert!(wrong <= reading.uncertainty.us, "off by {wrong} us");
                let at = reading.at + Span::from_us(12_345);
                let wake = clock.true_time(now, at);
                assert!(clock.reading(wake).at >= at && wake > now);
                let before = Timestamp::from_us(wake.us - 1);
                assert!(clock.reading(before).at < at, "the earliest such time");
            }
        }
    }
}
