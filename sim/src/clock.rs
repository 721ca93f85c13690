//! A node's clock: near the true time, never equal to it, never backwards.
//!
//! A reading comes with its uncertainty, and the true time is within it, whatever happens to the
//! clock: an offset, a drift, a jump, another rate, a standstill. Only a clock that lies breaks
//! that. No clock goes backwards while its node runs.

use pangea_core::time::{ClockReading, Span, Timestamp};

use crate::rng::SimRng;

/// The reading of an exact clock at virtual time 0; large enough that no reading is negative.
const ORIGIN_US: i64 = 1_000_000_000;

/// The deviation of the rate of a clock that stands still, in ppm.
pub const STANDSTILL_PPM: i64 = -PPM;

const PPM: i64 = 1_000_000;

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
    ticks: Ticks,
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

/// The time that the clock has counted since virtual time 0. Without a fault of its rate, that is
/// the true time.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    /// The count at the last change of the rate.
    counted_us: u64,
    /// The true time of that change.
    since: Timestamp,
    /// The deviation of the rate.
    ppm: i64,
}

impl Ticks {
    fn at(&self, now: Timestamp) -> u64 {
        let elapsed_us = now.since(self.since).us as i64;
        self.counted_us + (elapsed_us + elapsed_us * self.ppm / PPM) as u64
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
            ticks: Ticks::default(),
        }
    }

    /// Shifts the clock by `by_us`; `is_known` shifts also widen its uncertainty.
    pub fn shift(&mut self, by_us: i64, is_known: bool) {
        if is_known { self.known.add(by_us) } else { self.lie.add(by_us) }
    }

    /// Changes the rate of the clock from the true time `now` on, by `ppm` microseconds per second.
    /// If its rate is right again (0), a clock that is behind is corrected at once, as after a
    /// machine was suspended. A clock that is ahead stays so until the next start.
    pub fn set_rate(&mut self, now: Timestamp, ppm: i64) {
        assert!(ppm >= STANDSTILL_PPM, "a clock would go backwards");
        let counted_us = self.ticks.at(now);
        let counted_us = if ppm == 0 { counted_us.max(now.us) } else { counted_us };
        self.ticks = Ticks { counted_us, since: now, ppm };
    }

    /// Rereads the wall clock because the node starts. A wrong rate stays wrong.
    pub fn restart(&mut self, now: Timestamp) {
        for shift in [&mut self.known, &mut self.lie] {
            shift.in_force_us = shift.wall_us;
        }
        self.ticks = Ticks { counted_us: now.us, since: now, ppm: self.ticks.ppm };
    }

    /// Returns the clock's reading at the true time `now`. The drift is far below one second per
    /// second, so the clock never goes backwards.
    pub fn reading(&self, now: Timestamp) -> ClockReading {
        let ticks = self.ticks.at(now);
        let drifted = now.us.max(ticks) * self.bounds.drift_ppm_max / 1_000_000;
        let known = self.known.in_force_us.unsigned_abs() + ticks.abs_diff(now.us);
        let uncertainty = Span::from_us(self.bounds.offset_max.us + drifted + known + 1);
        ClockReading { at: self.at(now), uncertainty }
    }

    /// Returns the first true time, not before `now`, at which the clock reads `at` or later, if
    /// its rate stays as it is. `None` if it stands still before that.
    pub fn true_time(&self, now: Timestamp, at: Timestamp) -> Option<Timestamp> {
        let fast_ppm = self.ticks.ppm.max(0) as u64;
        // Ticks and drift are both rounded.
        let rounded_us = if self.ticks.ppm == 0 { 0 } else { 2 };
        let mut guess = now;
        loop {
            let missing = at.since(self.at(guess)).us;
            if missing == 0 {
                return Some(guess);
            }
            if self.ticks.ppm == STANDSTILL_PPM {
                return None;
            }
            // Undershoots if the clock runs fast, so that the loop converges from below.
            let true_missing = missing * PPM as u64 / (PPM as u64 + fast_ppm);
            let drifted = true_missing * self.bounds.drift_ppm_max / 1_000_000;
            guess.us += (true_missing - drifted).saturating_sub(rounded_us).max(1);
        }
    }

    /// The reading of an exact clock at virtual time 0.
    pub fn origin() -> Timestamp {
        Timestamp::from_us(ORIGIN_US as u64)
    }

    fn at(&self, now: Timestamp) -> Timestamp {
        let counted_us = self.ticks.at(now) as i64;
        let wrong_us = self.offset_us + self.known.in_force_us + self.lie.in_force_us;
        let us = ORIGIN_US + counted_us + wrong_us + counted_us * self.drift_ppm / PPM;
        // No clock shows a time before its origin.
        Timestamp::from_us(us.max(0) as u64)
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
                let wake = clock.true_time(now, at).expect("the clock runs");
                assert!(clock.reading(wake).at >= at && wake > now);
                let before = Timestamp::from_us(wake.us - 1);
                assert!(clock.reading(before).at < at, "the earliest such time");
            }
        }
    }

    const BOUNDS: ClockBounds = ClockBounds { offset_max: Span::from_ms(5), drift_ppm_max: 200 };

    fn ms(ms: u64) -> Timestamp {
        Timestamp::from_us(ms * 1_000)
    }

    /// Asserts that the true time is within the uncertainty, and returns the reading.
    fn sound(clock: &Clock, now: Timestamp) -> ClockReading {
        let reading = clock.reading(now);
        let wrong = reading.at.us.abs_diff(now.us + ORIGIN_US as u64);
        assert!(wrong <= reading.uncertainty.us, "off by {wrong} us at {now:?}");
        reading
    }

    #[test]
    fn a_clock_of_a_wrong_rate_says_how_wrong_it_is_and_never_goes_back() {
        for (index, ppm) in [50_000, -50_000, 1, -1, STANDSTILL_PPM].into_iter().enumerate() {
            let clock = &mut Clock::new(BOUNDS, &mut SimRng::fork(2, "clock", index as u64));
            let mut before = sound(clock, ms(0)).at;
            for step in 0..10_000 {
                let now = Timestamp::from_us(step * 1_003);
                match step {
                    2_000 => clock.set_rate(now, ppm),
                    6_000 => clock.set_rate(now, 0),
                    _ => {}
                }
                let at = sound(clock, now).at;
                assert!(before <= at, "{ppm} ppm at step {step}");
                let stands_still = ppm == STANDSTILL_PPM && (2_001..6_000).contains(&step);
                assert_eq!(before == at && step > 0, stands_still, "{ppm} ppm at step {step}");
                before = at;
            }
        }
    }

    #[test]
    fn a_clock_that_was_slow_is_corrected_at_once_and_a_fast_one_at_the_next_start() {
        let right = Clock::new(BOUNDS, &mut SimRng::fork(3, "clock", 0));
        let after = |ppm| {
            let mut clock = right.clone();
            clock.set_rate(ms(1_000), ppm);
            clock.set_rate(ms(3_000), 0);
            clock
        };
        let ahead_ms = |clock: &Clock| {
            let (is, should) = (clock.reading(ms(4_000)).at.us, right.reading(ms(4_000)).at.us);
            (is as i64 - should as i64 + 500).div_euclid(1_000)
        };
        assert_eq!(ahead_ms(&after(-50_000)), 0);
        assert_eq!(ahead_ms(&after(STANDSTILL_PPM)), 0);
        let mut fast = after(50_000);
        assert_eq!(ahead_ms(&fast), 100);
        fast.restart(ms(3_500));
        assert_eq!(ahead_ms(&fast), 0);
        let mut still_fast = right.clone();
        still_fast.set_rate(ms(1_000), 50_000);
        still_fast.restart(ms(3_000));
        assert_eq!(ahead_ms(&still_fast), 50, "its rate is still wrong");
    }

    #[test]
    fn a_timer_expires_when_the_clock_says_so_whatever_its_rate() {
        for (index, ppm) in [50_000, 20_001, -20_001, -50_000].into_iter().enumerate() {
            let mut clock = Clock::new(BOUNDS, &mut SimRng::fork(4, "clock", index as u64));
            clock.set_rate(ms(1_000), ppm);
            for now in (1_000..5_000).step_by(7).map(ms) {
                let at = clock.reading(now).at + Span::from_ms(800);
                let wake = clock.true_time(now, at).expect("the clock runs");
                assert!(clock.reading(wake).at >= at && wake > now);
                let before = Timestamp::from_us(wake.us - 1);
                assert!(clock.reading(before).at < at, "the earliest such time at {ppm} ppm");
            }
        }
        let mut clock = Clock::new(BOUNDS, &mut SimRng::fork(4, "clock", 9));
        clock.set_rate(ms(1_000), STANDSTILL_PPM);
        let at = clock.reading(ms(1_000)).at;
        assert_eq!(clock.true_time(ms(2_000), at), Some(ms(2_000)), "it is that late already");
        assert_eq!(clock.true_time(ms(2_000), at + Span::from_us(1)), None);
    }
}
