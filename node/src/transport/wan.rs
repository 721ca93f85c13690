//! Emulation of a WAN between the regions on one machine: the departure times of frames.
//!
//! Every node delays its outgoing frames, so three regions fit on a laptop, and each direction of a
//! link has its own delay. A frame that is enqueued at `t` arrives at
//!
//! ```text
//!   max(t, link free) + bytes / bandwidth + one-way delay + jitter
//! ```
//!
//! and never before its predecessor on its lane: jitter makes a frame late, but does not reorder a
//! TCP stream. The real connection is loopback or a local network, which adds some tens of
//! microseconds.
//!
//! The two lanes share the link's bandwidth as two queues, and the control lane has priority. Its
//! frames delay the bulk lane, but a batch never delays them, which is the purpose of two lanes.
//!
//! A cut link delays its frames, as TCP does in a partition. They leave one one-way delay after the
//! link heals. During the cut the receiver receives nothing, not even pings, and closes the
//! connection after a while, as it would in a real partition.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use serde::{Deserialize, Serialize};

/// The maximum one-way delay, including jitter. A connection is closed after three seconds of
/// silence, and its first frame takes this long.
pub const ONE_WAY_MAX: Span = Span::from_ms(2_000);
/// The minimum bandwidth, a modem's. Below it a frame takes unreasonably long.
pub const BANDWIDTH_BITS_MIN: u64 = 56_000;

/// The emulated distances between the regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wan {
    /// One-way delay from region to region: `one_way[from][to]`. Need not be symmetric.
    pub one_way: Vec<Vec<Span>>,
    /// The maximum additional delay of a frame, uniformly distributed.
    pub jitter: Span,
    /// The bandwidth from one node to another in bit/s, or `None` for no limit.
    pub bandwidth_bits: Option<u64>,
}

impl Wan {
    /// The settings of the link from one node to another.
    pub fn link(&self, topology: &Topology, from: NodeId, to: NodeId) -> LinkSettings {
        let region = |node: NodeId| usize::from(topology.place_of(node).region.0);
        LinkSettings {
            one_way: self.one_way[region(from)][region(to)],
            jitter: self.jitter,
            bandwidth_bits: self.bandwidth_bits,
        }
    }

    /// Checks that all values are in the range that the emulation supports.
    ///
    /// # Errors
    /// A description of the invalid value.
    pub fn check(&self, regions: usize) -> Result<(), String> {
        let is_square =
            self.one_way.len() == regions && self.one_way.iter().all(|row| row.len() == regions);
        if !is_square {
            return Err(format!(
                "the delay matrix of the emulated WAN is not {regions} by {regions}"
            ));
        }
        self.one_way.iter().flatten().try_for_each(|&one_way| {
            let Self { jitter, bandwidth_bits, .. } = *self;
            LinkSettings { one_way, jitter, bandwidth_bits }.check()
        })
    }
}

/// The settings of one direction between two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSettings {
    /// The delay of a frame.
    pub one_way: Span,
    /// The maximum additional delay of a frame.
    pub jitter: Span,
    /// The bandwidth in bit/s, or `None` for no limit.
    pub bandwidth_bits: Option<u64>,
}

impl LinkSettings {
    /// Checks that all values are in the range that the emulation supports.
    ///
    /// # Errors
    /// A description of the invalid value.
    pub fn check(&self) -> Result<(), String> {
        if self.one_way.us.saturating_add(self.jitter.us) > ONE_WAY_MAX.us {
            return Err(format!(
                "one-way delay {} and jitter {} together exceed {ONE_WAY_MAX}",
                self.one_way, self.jitter
            ));
        }
        match self.bandwidth_bits {
            Some(bits) if bits < BANDWIDTH_BITS_MIN => {
                Err(format!("bandwidth {bits} bit/s is below {BANDWIDTH_BITS_MIN}"))
            }
            _ => Ok(()),
        }
    }

    /// The one-way delay without jitter.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.one_way.us)
    }

    fn jitter_sample(&self, rng: &mut fastrand::Rng) -> Duration {
        match self.jitter.us {
            0 => Duration::ZERO,
            us => Duration::from_nanos(rng.u64(0..=us * 1_000)),
        }
    }

    fn serialisation(&self, bytes: usize) -> Duration {
        let Some(bits_per_second) = self.bandwidth_bits else { return Duration::ZERO };
        let nanos = bytes as u128 * 8 * 1_000_000_000 / u128::from(bits_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The current state of one direction between two nodes.
#[derive(Debug)]
pub(crate) struct Pipe {
    settings: LinkSettings,
    is_cut: bool,
    /// No frame leaves before this time: the end of the last cut plus a one-way delay.
    floor: Option<Instant>,
    control_free: Option<Instant>,
    bulk_free: Option<Instant>,
    rng: fastrand::Rng,
}

impl Pipe {
    pub(crate) fn new(settings: LinkSettings, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { settings, is_cut: false, floor: None, control_free: None, bulk_free: None, rng }
    }

    pub(crate) fn settings(&self) -> LinkSettings {
        self.settings
    }

    /// Sets the settings of frames enqueued from now on.
    pub(crate) fn set(&mut self, settings: LinkSettings) {
        self.settings = settings;
        // Frames queued for the old bandwidth do not delay later ones.
        (self.control_free, self.bulk_free) = (None, None);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    pub(crate) fn heal(&mut self, now: Instant) {
        if self.is_cut {
            self.is_cut = false;
            self.floor = Some(now + self.settings.delay());
        }
    }

    /// The gate for frames: shut, open from some time on, or open.
    pub(crate) fn gate(&self) -> Gate {
        match (self.is_cut, self.floor) {
            (true, _) => Gate::Shut,
            (false, Some(at)) => Gate::OpenFrom(at),
            (false, None) => Gate::Open,
        }
    }

    /// The departure time of a frame of `bytes` that was enqueued at `at`, ignoring other frames on
    /// its lane.
    fn departure(&mut self, lane: Lane, at: Instant, bytes: usize) -> Instant {
        let took = self.settings.serialisation(bytes);
        let late = self.settings.delay() + self.settings.jitter_sample(&mut self.rng);
        if took.is_zero() {
            return at + late;
        }
        let free = |until: Option<Instant>| until.map_or(at, |until| until.max(at)) + took;
        let sent = match lane {
            Lane::Control => {
                self.bulk_free = Some(free(self.bulk_free));
                let sent = free(self.control_free);
                self.control_free = Some(sent);
                sent
            }
            Lane::Bulk => {
                let sent = free(self.bulk_free);
                self.bulk_free = Some(sent);
                sent
            }
        };
        sent + late
    }
}

/// Whether frames may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    OpenFrom(Instant),
    Shut,
}

impl Gate {
    /// The actual departure time of a frame due at `departure`; `None` while the link is cut.
    fn pass(self, departure: Instant) -> Option<Instant> {
        match self {
            Self::Open => Some(departure),
            Self::OpenFrom(at) => Some(departure.max(at)),
            Self::Shut => None,
        }
    }
}

/// The frames of one lane that wait for their departure, in order.
#[derive(Debug)]
pub(crate) struct DelayQueue<F> {
    lane: Lane,
    frames: VecDeque<(Instant, F)>,
}

impl<F> DelayQueue<F> {
    pub(crate) fn new(lane: Lane) -> Self {
        Self { lane, frames: VecDeque::new() }
    }

    /// Adds a frame of `bytes` that was enqueued at `at`.
    pub(crate) fn push(&mut self, pipe: &mut Pipe, at: Instant, bytes: usize, frame: F) {
        let alone = pipe.departure(self.lane, at, bytes);
        // A frame never leaves before its predecessor, because a lane is a TCP stream.
        let departure = self.frames.back().map_or(alone, |&(last, _)| last.max(alone));
        self.frames.push_back((departure, frame));
    }

    /// The departure time of the next frame; `None` while the link is cut or the queue is empty.
    pub(crate) fn next_departure(&self, gate: Gate) -> Option<Instant> {
        self.frames.front().and_then(|&(departure, _)| gate.pass(departure))
    }

    /// Removes and returns the next frame, if it leaves by `now`.
    pub(crate) fn pop_due(&mut self, gate: Gate, now: Instant) -> Option<F> {
        self.next_departure(gate).filter(|&departure| departure <= now)?;
        self.frames.pop_front().map(|(_, frame)| frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn settings(one_way_ms: u64, jitter_ms: u64, bandwidth_bits: Option<u64>) -> LinkSettings {
        LinkSettings {
            one_way: Span::from_ms(one_way_ms),
            jitter: Span::from_ms(jitter_ms),
            bandwidth_bits,
        }
    }

    #[test]
    fn jitter_makes_frames_late_within_its_bound_and_never_reorders_them() {
        let start = Instant::now();
        let mut pipe = Pipe::new(settings(10, 5, None), 7);
        let mut queue = DelayQueue::new(Lane::Control);
        (0..1000).for_each(|i| queue.push(&mut pipe, start, 100, i));
        let mut last = start;
        for i in 0..1000 {
            let departure = queue.next_departure(Gate::Open).unwrap();
            assert!(departure >= last && departure >= start + ms(10));
            assert!(departure <= start + ms(15));
            assert_eq!(queue.pop_due(Gate::Open, departure), Some(i));
            last = departure;
        }
        assert!(last > start + ms(14), "some of a thousand samples are near the limit");
    }

    #[test]
    fn a_narrow_link_serialises_and_the_control_lane_has_the_right_of_way() {
        let start = Instant::now();
        // At this bandwidth a megabyte takes a second.
        let mut pipe = Pipe::new(settings(10, 0, Some(8_000_000)), 7);
        let mut bulk = DelayQueue::new(Lane::Bulk);
        let mut control = DelayQueue::new(Lane::Control);
        bulk.push(&mut pipe, start, 1_000_000, ());
        control.push(&mut pipe, start, 1_000, ());
        bulk.push(&mut pipe, start, 1_000_000, ());
        assert_eq!(control.next_departure(Gate::Open), Some(start + ms(11)));
        assert!(bulk.pop_due(Gate::Open, start + ms(1009)).is_none());
        assert!(bulk.pop_due(Gate::Open, start + ms(1010)).is_some());
        assert_eq!(bulk.next_departure(Gate::Open), Some(start + ms(2011)), "delayed by the queue");
    }

    #[test]
    fn a_cut_link_holds_its_frames_until_a_delay_after_it_heals() {
        let start = Instant::now();
        let mut pipe = Pipe::new(settings(10, 0, None), 7);
        let mut queue = DelayQueue::new(Lane::Bulk);
        queue.push(&mut pipe, start, 100, 'a');
        pipe.cut();
        assert_eq!(queue.next_departure(pipe.gate()), None);
        pipe.heal(start + ms(500));
        queue.push(&mut pipe, start + ms(502), 100, 'b');
        assert_eq!(queue.next_departure(pipe.gate()), Some(start + ms(510)));
        assert_eq!(queue.pop_due(pipe.gate(), start + ms(511)), Some('a'));
        assert_eq!(queue.pop_due(pipe.gate(), start + ms(511)), None);
        assert_eq!(queue.pop_due(pipe.gate(), start + ms(512)), Some('b'));
    }

    #[test]
    fn a_shorter_delay_does_not_overtake_what_is_on_its_way() {
        let start = Instant::now();
        let mut pipe = Pipe::new(settings(100, 0, None), 7);
        let mut queue = DelayQueue::new(Lane::Control);
        queue.push(&mut pipe, start, 100, 'a');
        pipe.set(settings(1, 0, None));
        queue.push(&mut pipe, start + ms(1), 100, 'b');
        assert_eq!(queue.pop_due(Gate::Open, start + ms(99)), None);
        assert_eq!(queue.pop_due(Gate::Open, start + ms(100)), Some('a'));
        assert_eq!(queue.pop_due(Gate::Open, start + ms(100)), Some('b'));
    }

    #[test]
    fn settings_that_the_emulation_is_not_built_for_are_refused() {
        let wan = |one_way, jitter, bandwidth_bits| Wan { one_way, jitter, bandwidth_bits };
        let flat = |ms| vec![vec![Span::from_ms(ms); 2]; 2];
        assert_eq!(wan(flat(2000), Span::ZERO, Some(56_000)).check(2), Ok(()));
        assert!(wan(flat(2000), Span::from_ms(1), None).check(2).is_err());
        assert!(wan(flat(1), Span::ZERO, Some(55_999)).check(2).is_err());
        assert!(wan(flat(1), Span::ZERO, None).check(3).is_err());
        assert!(wan(vec![vec![Span::ZERO; 2], vec![]], Span::ZERO, None).check(2).is_err());
    }
}
