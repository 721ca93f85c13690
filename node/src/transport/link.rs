//! The state of the link to one peer, across all sessions: the emulated pipe, the measured round
//! trips, and the traffic counters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;
use pangea_core::time::Span;
use serde::{Deserialize, Serialize};

use super::wan::{Gate, LinkSettings, Pipe};

/// The number of recent round trips in a report.
const ROUND_TRIPS_KEPT: usize = 16;

/// A report on the link to one peer, for an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The node at the other end.
    pub peer: NodeId,
    /// Whether both lanes are connected.
    pub is_up: bool,
    /// Whether the frames from this node to the peer are delayed by a cut.
    pub is_cut: bool,
    /// The emulation in this direction.
    pub settings: LinkSettings,
    /// The measured round trips over both directions, including emulation.
    pub round_trip: Option<RoundTrip>,
    /// The control lane's counters.
    pub control: LaneReport,
    /// The bulk lane's counters.
    pub bulk: LaneReport,
}

/// Statistics of round trips on the control lane, from one node's transport to the other's and
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// The shortest recent round trip.
    pub min: Span,
    /// The mean of the recent round trips.
    pub mean: Span,
    /// The last round trip.
    pub last: Span,
    /// The number of round trips included, at most sixteen.
    pub samples: u32,
}

/// The traffic of one lane since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneReport {
    /// Frames written.
    pub frames_sent: u64,
    /// Bytes of their bodies before compression.
    pub bytes_sent: u64,
    /// Bytes on the wire, including headers and after compression.
    pub wire_bytes_sent: u64,
    /// Frames read.
    pub frames_received: u64,
    /// Bytes of their bodies after decompression.
    pub bytes_received: u64,
    /// Bytes on the wire, including headers and after compression.
    pub wire_bytes_received: u64,
}

/// The counters behind a [`LaneReport`].
#[derive(Debug, Default)]
struct LaneCounters {
    frames_sent: AtomicU64,
    bytes_sent: AtomicU64,
    wire_bytes_sent: AtomicU64,
    frames_received: AtomicU64,
    bytes_received: AtomicU64,
    wire_bytes_received: AtomicU64,
}

/// The link to one peer.
#[derive(Debug)]
pub(crate) struct Link {
    pipe: Mutex<Pipe>,
    round_trips: Mutex<VecDeque<Duration>>,
    control: LaneCounters,
    bulk: LaneCounters,
}

impl Link {
    pub(crate) fn new(settings: LinkSettings, seed: u64) -> Self {
        Self {
            pipe: Mutex::new(Pipe::new(settings, seed)),
            round_trips: Mutex::default(),
            control: LaneCounters::default(),
            bulk: LaneCounters::default(),
        }
    }

    pub(crate) fn pipe(&self) -> MutexGuard<'_, Pipe> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn gate(&self) -> Gate {
        self.pipe().gate()
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.pipe().is_cut()
    }

    /// The emulated one-way delay.
    pub(crate) fn delay(&self) -> Duration {
        self.pipe().settings().delay()
    }

    pub(crate) fn cut(&self) {
        self.pipe().cut();
    }

    pub(crate) fn heal(&self, now: Instant) {
        self.pipe().heal(now);
    }

    /// Sets new settings, and discards the round trips measured under the old ones.
    pub(crate) fn set(&self, settings: LinkSettings) {
        self.pipe().set(settings);
        self.round_trips().clear();
    }

    fn round_trips(&self) -> MutexGuard<'_, VecDeque<Duration>> {
        self.round_trips.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record_round_trip(&self, took: Duration) {
        let mut round_trips = self.round_trips();
        if round_trips.len() == ROUND_TRIPS_KEPT {
            round_trips.pop_front();
        }
        round_trips.push_back(took);
    }

    pub(crate) fn round_trip(&self) -> Option<RoundTrip> {
        let round_trips = self.round_trips();
        let span = |took: Duration| Span::from_us(took.as_micros() as u64);
        let samples = round_trips.len() as u32;
        let (min, last) = (round_trips.iter().min()?, round_trips.back()?);
        let mean = round_trips.iter().sum::<Duration>() / samples;
        Some(RoundTrip { min: span(*min), mean: span(mean), last: span(*last), samples })
    }

    fn counters(&self, lane: Lane) -> &LaneCounters {
        match lane {
            Lane::Control => &self.control,
            Lane::Bulk => &self.bulk,
        }
    }

    pub(crate) fn count_sent(&self, lane: Lane, bytes: usize, wire_bytes: usize) {
        let counters = self.counters(lane);
        counters.frames_sent.fetch_add(1, Ordering::Relaxed);
        counters.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
        counters.wire_bytes_sent.fetch_add(wire_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_received(&self, lane: Lane, bytes: usize, wire_bytes: usize) {
        let counters = self.counters(lane);
        counters.frames_received.fetch_add(1, Ordering::Relaxed);
        counters.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
        counters.wire_bytes_received.fetch_add(wire_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, peer: NodeId, is_up: bool) -> LinkReport {
        let (settings, is_cut) = {
            let pipe = self.pipe();
            (pipe.settings(), pipe.is_cut())
        };
        LinkReport {
            peer,
            is_up,
            is_cut,
            settings,
            round_trip: self.round_trip(),
            control: self.control.report(),
            bulk: self.bulk.report(),
        }
    }
}

impl LaneCounters {
    fn report(&self) -> LaneReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LaneReport {
            frames_sent: read(&self.frames_sent),
            bytes_sent: read(&self.bytes_sent),
            wire_bytes_sent: read(&self.wire_bytes_sent),
            frames_received: read(&self.frames_received),
            bytes_received: read(&self.bytes_received),
            wire_bytes_received: read(&self.wire_bytes_received),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_trip_is_of_the_latest_samples() {
        let link = Link::new(LinkSettings::default(), 1);
        assert_eq!(link.round_trip(), None);
        link.record_round_trip(Duration::from_micros(1));
        (10..26).for_each(|us| link.record_round_trip(Duration::from_micros(us)));
        let span = Span::from_us;
        let expected = RoundTrip { min: span(10), mean: span(17), last: span(25), samples: 16 };
        assert_eq!(link.round_trip(), Some(expected));
        link.set(LinkSettings::default());
        assert_eq!(link.round_trip(), None, "the delay changed, and measuring restarts");
    }
}
