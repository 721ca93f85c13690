//! Time as a value, read by a driver from its clock. No code in this crate reads a clock.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// Microseconds since an epoch that the driver chooses: the Unix epoch on a real node, the start of
/// the run in simulation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Microseconds since the epoch.
    pub us: u64,
}

/// A length of time in microseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Span {
    /// Microseconds.
    pub us: u64,
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self { us: 0 };

    /// `us` microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self { us }
    }

    /// `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self { us: ms * 1_000 }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ms", self.us / 1_000, self.us % 1_000)
    }
}

impl Timestamp {
    /// `us` microseconds after the epoch.
    pub const fn from_us(us: u64) -> Self {
        Self { us }
    }

    /// The time since `earlier`, or zero if the clock went backwards.
    pub fn since(self, earlier: Self) -> Span {
        Span { us: self.us.saturating_sub(earlier.us) }
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self { us: self.us + span.us }
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self { us: self.us.saturating_sub(span.us) }
    }
}

/// A clock reading with its error bound: the true time is within `uncertainty` of `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// The clock's reading. Never goes backwards within one run of a node.
    pub at: Timestamp,
    /// Half the width of the interval that contains the true time.
    pub uncertainty: Span,
}
