//! One direction between two regions.

use std::time::Duration;

use super::{Counts, Drop, Moment, Size, nanos};

/// The properties of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// The delay of a packet after its last bit has left.
    pub delay: Duration,
    /// The maximum additional delay, uniformly distributed.
    pub jitter: Duration,
    /// The bandwidth in bit/s; `None` for no limit.
    pub bits_per_sec: Option<u64>,
    /// The queue of a busy link in bytes. Without a bandwidth limit there is no queue.
    pub queue_bytes: u64,
    /// The probability that a packet is lost, from 0 to 1.
    pub loss: f64,
    /// Whether jitter may reorder the packets of the link.
    pub may_overtake: bool,
}

impl Shape {
    /// A link with a delay and no other effect.
    pub fn of_delay(delay: Duration) -> Self {
        Self {
            delay,
            jitter: Duration::ZERO,
            bits_per_sec: None,
            queue_bytes: 0,
            loss: 0.0,
            may_overtake: false,
        }
    }

    /// Returns the shape after checking it.
    ///
    /// # Panics
    /// When it is invalid.
    pub(super) fn checked(self) -> Self {
        assert!((0.0..=1.0).contains(&self.loss), "the loss is a probability");
        assert!(self.bits_per_sec != Some(0), "a bandwidth of 0 is not allowed");
        self
    }
}

/// A link and its packet counts. The packets in flight are stored in `Wan`.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) shape: Shape,
    pub(super) is_cut: bool,
    /// The time when the last bit of all accepted packets has left.
    free_at: Moment,
    /// The latest arrival time of all accepted packets.
    latest_due: Moment,
    pub(super) counts: Counts,
}

impl Link {
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            shape: shape.checked(),
            is_cut: false,
            free_at: Moment::default(),
            latest_due: Moment::default(),
            counts: Counts::default(),
        }
    }

    /// Returns the arrival time of a packet that is sent now.
    pub(super) fn send(
        &mut self,
        now: Moment,
        size: Size,
        has_room: bool,
        rng: &mut fastrand::Rng,
    ) -> Result<Moment, Drop> {
        self.counts.sent.add(size);
        if self.is_cut {
            self.counts.cut.add(size);
            return Err(Drop::Cut);
        }
        let left = has_room.then(|| self.leave(now, size)).flatten();
        let Some(left) = left else {
            self.counts.full.add(size);
            return Err(Drop::Full);
        };
        // A lost packet uses its time on the link too, because losses happen further along the
        // path.
        if self.is_lost(size, rng) {
            self.counts.lost.add(size);
            return Err(Drop::Lost);
        }
        let mut due = left.after(self.shape.delay).after(self.jitter(rng));
        if !self.shape.may_overtake {
            due = due.max(self.latest_due);
        }
        self.latest_due = due.max(self.latest_due);
        Ok(due)
    }

    /// The time when the last bit has left, or `None` if the queue is full.
    fn leave(&mut self, now: Moment, size: Size) -> Option<Moment> {
        let Some(bits_per_sec) = self.shape.bits_per_sec else { return Some(now) };
        let waiting = nanos(self.free_at.since(now));
        let bytes_waiting = u128::from(waiting) * u128::from(bits_per_sec) / 8_000_000_000;
        // A single packet always fits an empty queue, however small that is.
        let is_full = bytes_waiting + u128::from(size.wire_bytes)
            > u128::from(self.shape.queue_bytes.max(size.wire_bytes));
        if is_full {
            return None;
        }
        let nanos = u128::from(size.wire_bytes) * 8_000_000_000 / u128::from(bits_per_sec);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.free_at = self.free_at.max(now).after(Duration::from_nanos(nanos));
        Some(self.free_at)
    }

    /// Packets handed over at once are lost together, with the probability that at least one of
    /// them would be lost. A connection's speed depends on the number of loss events.
    fn is_lost(&self, size: Size, rng: &mut fastrand::Rng) -> bool {
        if self.shape.loss == 0.0 {
            return false;
        }
        let all_pass = (1.0 - self.shape.loss).powf(f64::from(size.packets));
        rng.f64() >= all_pass
    }

    fn jitter(&self, rng: &mut fastrand::Rng) -> Duration {
        match nanos(self.shape.jitter) {
            0 => Duration::ZERO,
            most => Duration::from_nanos(rng.u64(0..=most)),
        }
    }

    /// Drops the queue, so that later packets need not wait for it.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
        self.free_at = Moment::default();
        self.latest_due = Moment::default();
    }
}
