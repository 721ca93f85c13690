//! The node's clock: microseconds since the Unix epoch, never going backwards.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pangea_core::time::{ClockReading, Span, Timestamp};

/// The assumed deviation of a node's clock from the true time, until peers have been measured.
const UNCERTAINTY: Span = Span::from_ms(10);

/// Reads the wall clock once and then counts with the monotonic clock: a step of the wall clock has
/// no effect until the next start, but its slewing is followed.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
    base_us: u64,
}

impl Clock {
    /// Creates a clock that starts at the wall clock's time.
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base: Instant::now(), base_us: since_epoch.as_micros() as u64 }
    }

    /// The current time.
    pub fn now(&self) -> ClockReading {
        ClockReading { at: self.at(Instant::now()), uncertainty: UNCERTAINTY }
    }

    /// The time at `moment`; moments before the start count as the start.
    pub fn at(&self, moment: Instant) -> Timestamp {
        let since = moment.saturating_duration_since(self.base);
        Timestamp::from_us(self.base_us + since.as_micros() as u64)
    }
}
