//! The node's clock: microseconds since the Unix epoch that never go backwards.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pangea_core::time::{ClockReading, Span, Timestamp};

/// How far a node's clock is taken to be from the true time, until peers have been measured.
const UNCERTAINTY: Span = Span::from_ms(10);

/// Reads the wall clock once and counts on from there with the monotonic clock: a step of the wall
/// clock changes nothing until the next start, while its slewing is followed.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
    base_us: u64,
}

impl Clock {
    /// A clock that starts at the wall clock's time.
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base: Instant::now(), base_us: since_epoch.as_micros() as u64 }
    }

    /// The time now.
    pub fn now(&self) -> ClockReading {
        ClockReading { at: self.at(Instant::now()), uncertainty: UNCERTAINTY }
    }

    /// The time at a moment; one before the start counts as the start.
    pub fn at(&self, moment: Instant) -> Timestamp {
        let since = moment.saturating_duration_since(self.base);
        Timestamp::from_us(self.base_us + since.as_micros() as u64)
    }
}
