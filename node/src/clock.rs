//! The node's clock: microseconds since the Unix epoch, never going backwards.
//!
//! For experiments with clocks of several qualities on one machine (Tiga §5.7), a clock can be
//! emulated: with an offset, a drift, and an error that comes and goes.

use std::f64::consts::TAU;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pangea_core::ids::NodeId;
use pangea_core::time::{ClockReading, Span, Timestamp};
use serde::{Deserialize, Serialize};

/// The period of the error of an emulated clock that comes and goes.
const WANDER_PERIOD_S: f64 = 60.0;

/// The maximum offset of an emulated clock: a day.
pub(crate) const OFFSET_MS_MAX: u64 = 86_400_000;
/// The maximum drift of an emulated clock: a tenth.
pub(crate) const DRIFT_PPM_MAX: u64 = 100_000;
/// The maximum error of an emulated clock that comes and goes. With it, the clock is slower or
/// faster by at most half.
pub(crate) const WANDER_MS_MAX: u64 = 4_000;
/// The maximum bound on the error of a clock.
pub(crate) const ERROR_MS_MAX: u64 = 60_000;

/// The quality of a node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClockConfig {
    /// The largest deviation of the clock from the true time, in milliseconds.
    pub error_ms: u64,
    /// The errors that are added to the clock, if it is emulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulate: Option<Emulation>,
}

impl Default for ClockConfig {
    fn default() -> Self {
        Self { error_ms: 10, emulate: None }
    }
}

impl ClockConfig {
    /// Checks the bounds of all numbers.
    ///
    /// # Errors
    /// A description of the one that is out of its bounds.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Emulation { offset_ms, drift_ppm, wander_ms, .. } = self.emulate.unwrap_or_default();
        let all = [
            ("error_ms", self.error_ms, ERROR_MS_MAX),
            ("emulate.offset_ms", offset_ms, OFFSET_MS_MAX),
            ("emulate.drift_ppm", drift_ppm, DRIFT_PPM_MAX),
            ("emulate.wander_ms", wander_ms, WANDER_MS_MAX),
        ];
        match all.iter().find(|(_, value, most)| value > most) {
            Some((key, value, most)) => Err(format!("{key} = {value}: must be from 0 to {most}")),
            None => Ok(()),
        }
    }
}

/// The errors that are added to a clock. Each node draws its own within these bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Emulation {
    /// The largest constant error in milliseconds, in either direction.
    pub offset_ms: u64,
    /// The largest drift in microseconds per second, in either direction.
    pub drift_ppm: u64,
    /// The largest error that comes and goes within a minute, in milliseconds.
    pub wander_ms: u64,
    /// The number from which nodes draw their errors, each with its id.
    pub seed: u64,
}

/// The errors of one node.
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    offset_us: f64,
    drift: f64,
    wander_us: f64,
    /// Where in its period the wandering error begins.
    phase: f64,
}

impl Errors {
    fn draw(emulation: Emulation, node: NodeId) -> Self {
        let seed = emulation.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(node.0);
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut either_way = |most: u64| (2.0 * dice.f64() - 1.0) * most as f64;
        Self {
            offset_us: either_way(emulation.offset_ms) * 1e3,
            drift: either_way(emulation.drift_ppm) / 1e6,
            wander_us: emulation.wander_ms as f64 * 1e3,
            phase: dice.f64() * TAU,
        }
    }

    /// The error this many microseconds after the start. Its slope is above -1, so that a clock
    /// with it never goes back.
    fn after(&self, us: u64) -> i64 {
        let us = us as f64;
        let angle = self.phase + TAU * us / (WANDER_PERIOD_S * 1e6);
        (self.offset_us + self.drift * us + self.wander_us * angle.sin()) as i64
    }
}

/// Reads the wall clock once and then counts with the monotonic clock: a step of the wall clock has
/// no effect until the next start, but its slewing is followed.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
    base_us: u64,
    uncertainty: Span,
    errors: Option<Errors>,
}

impl Clock {
    /// Creates a clock that starts at the wall clock's time.
    pub fn start(config: ClockConfig, node: NodeId) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            base: Instant::now(),
            base_us: since_epoch.as_micros() as u64,
            uncertainty: Span::from_ms(config.error_ms),
            errors: config.emulate.map(|emulation| Errors::draw(emulation, node)),
        }
    }

    /// The current time.
    pub fn now(&self) -> ClockReading {
        ClockReading { at: self.at(Instant::now()), uncertainty: self.uncertainty }
    }

    /// The time at `moment`; moments before the start count as the start.
    pub fn at(&self, moment: Instant) -> Timestamp {
        let since = moment.saturating_duration_since(self.base).as_micros() as u64;
        let error = self.errors.map_or(0, |errors| errors.after(since));
        Timestamp::from_us((self.base_us + since).saturating_add_signed(error))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BAD: Emulation =
        Emulation { offset_ms: 100, drift_ppm: 100_000, wander_ms: WANDER_MS_MAX, seed: 7 };

    fn clock(emulate: Option<Emulation>, node: u16) -> Clock {
        Clock::start(ClockConfig { error_ms: 25, emulate }, NodeId(node))
    }

    #[test]
    fn the_uncertainty_is_the_bound_of_the_operator() {
        assert_eq!(clock(None, 0).now().uncertainty, Span::from_ms(25));
        assert_eq!(ClockConfig::default().check(), Ok(()));
        let wrong = ClockConfig { error_ms: ERROR_MS_MAX + 1, emulate: None };
        assert_eq!(wrong.check(), Err("error_ms = 60001: must be from 0 to 60000".to_owned()));
    }

    #[test]
    fn an_emulated_clock_never_goes_back_and_is_the_same_for_the_same_seed() {
        for node in 0..20 {
            let clock = clock(Some(BAD), node);
            let at = |ms| clock.at(clock.base + Duration::from_millis(ms));
            assert!((0..200_000).map(at).is_sorted(), "node {node}");
            let (one, other) = (Errors::draw(BAD, NodeId(node)), Errors::draw(BAD, NodeId(node)));
            assert_eq!(one.after(12_345_678), other.after(12_345_678));
            assert!(one.offset_us.abs() <= 1e5 && one.drift.abs() <= 0.1, "{one:?}");
        }
    }

    #[test]
    fn nodes_and_seeds_have_different_errors() {
        let of = |seed, node| Errors::draw(Emulation { seed, ..BAD }, NodeId(node)).after(1_000);
        assert!(of(7, 0) != of(7, 1) && of(7, 0) != of(8, 0));
        let none = Errors::draw(Emulation::default(), NodeId(3));
        assert_eq!(none.after(50_000_000), 0);
    }
}
