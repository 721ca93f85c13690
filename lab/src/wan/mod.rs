//! The emulated WAN: decides whether and when a packet arrives.
//!
//! This is a state machine over any type of packet. It reads no clock and does no I/O: its driver
//! passes the time to [`Wan::send`] and [`Wan::deliver`], and returns at the time given by
//! [`Wan::next_due`]. The same seed and the same calls give the same results.
//!
//! ```text
//!                  is it cut?   room in the queue?   lost on the way?
//!   send ------->------+---------------+-------------------+------> delay and jitter ----> deliver
//!                      |               |                   |
//!                      v               v                   v
//!                     cut             full               lost            dropped packets, by cause
//! ```
//!
//! Each ordered pair of regions has its own link. The two directions between two regions therefore
//! never wait for each other, and neither do links from one region to two others: the paths between
//! regions are modelled, not a region's own connection.
//!
//! **Invariants.** A packet is never delivered before its delay has elapsed. Packets of a link are
//! never reordered, unless its shape allows it. For each link, the packets sent are the packets
//! delivered, dropped and in flight.

mod link;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use link::Link;
pub use link::Shape;

/// The memory limit of all packets in flight together. Two links of 1 Gbit/s with 200 ms in flight
/// need 50 MB. A lab that exceeds the limit has settings that this machine can't support.
pub const HELD_BYTES_MAX: usize = 512 << 20;

/// A point in time, in nanoseconds since the start of the WAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment `duration` later. Overflow saturates.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// The time since an earlier moment; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in nanoseconds; overflow saturates.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A region, by its index in the list of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionIndex(pub usize);

/// The size of data that is sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Bytes on the link, which use bandwidth and are counted.
    pub wire_bytes: u64,
    /// Packets on the link. The kernel may hand over several packets of a connection at once.
    pub packets: u32,
    /// Bytes of memory used while in flight.
    pub held_bytes: usize,
}

/// Packet and byte counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Their bytes, including the headers of IP and higher layers.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, size: Size) {
        self.packets += u64::from(size.packets);
        self.bytes += size.wire_bytes;
    }

    fn remove(&mut self, size: Size) {
        self.packets -= u64::from(size.packets);
        self.bytes -= size.wire_bytes;
    }
}

/// The packet counts of a link by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Given to the link.
    pub sent: Tally,
    /// Delivered at the other end.
    pub delivered: Tally,
    /// Dropped because the link was cut, or in flight when it was cut.
    pub cut: Tally,
    /// Dropped because the link's queue was full.
    pub full: Tally,
    /// Dropped by random loss.
    pub lost: Tally,
    /// Dropped because the receiving region did not accept them.
    pub refused: Tally,
}

impl Counts {
    /// All dropped packets.
    pub fn dropped(&self) -> Tally {
        let all = [self.cut, self.full, self.lost, self.refused];
        Tally {
            packets: all.iter().map(|tally| tally.packets).sum(),
            bytes: all.iter().map(|tally| tally.bytes).sum(),
        }
    }
}

/// The reason why a packet was dropped when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// The link is cut.
    Cut,
    /// The link's queue is full, or the memory limit of packets in flight is reached.
    Full,
    /// Random loss.
    Lost,
}

/// A packet that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrival<P> {
    /// The sending region.
    pub from: RegionIndex,
    /// The receiving region.
    pub to: RegionIndex,
    /// The arrival time, which is not later than the time passed to [`Wan::deliver`].
    pub due: Moment,
    /// The size passed to [`Wan::send`].
    pub size: Size,
    /// The packet.
    pub packet: P,
}

/// A packet in flight.
#[derive(Debug)]
struct Flying<P> {
    due: Moment,
    size: Size,
    packet: P,
}

/// All links between the regions. `P` is the type of packets; only their size matters here.
#[derive(Debug)]
pub struct Wan<P> {
    places: usize,
    /// The link from each place to each place. Links to the same place are never used.
    links: Vec<Link>,
    /// The packets in flight on each link, by arrival time.
    flying: Vec<VecDeque<Flying<P>>>,
    /// The arrival time of the first packet of each link. Finding the next packet only reads these.
    heads: Vec<Moment>,
    held_bytes: usize,
    rng: fastrand::Rng,
}

/// The head of a link without packets in flight.
const NEVER: Moment = Moment(u64::MAX);

impl<P> Wan<P> {
    /// Creates links of these shapes between all pairs of `places` regions.
    ///
    /// # Panics
    /// When there are no places.
    pub fn new(
        places: usize,
        seed: u64,
        mut shape: impl FnMut(RegionIndex, RegionIndex) -> Shape,
    ) -> Self {
        assert!(places > 0, "a WAN needs a place");
        let pairs = (0..places).flat_map(|from| (0..places).map(move |to| (from, to)));
        let links: Vec<Link> =
            pairs.map(|(from, to)| Link::new(shape(RegionIndex(from), RegionIndex(to)))).collect();
        let flying = links.iter().map(|_| VecDeque::new()).collect();
        let heads = vec![NEVER; links.len()];
        let rng = fastrand::Rng::with_seed(seed);
        Self { places, links, flying, heads, held_bytes: 0, rng }
    }

    /// The number of regions.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Sends a packet, and returns its arrival time.
    ///
    /// # Errors
    /// When it is dropped: the reason, with the packet.
    ///
    /// # Panics
    /// When a place does not exist, or both are the same.
    pub fn send(
        &mut self,
        now: Moment,
        (from, to): (RegionIndex, RegionIndex),
        size: Size,
        packet: P,
    ) -> Result<Moment, (Drop, P)> {
        let at = self.index(from, to);
        let has_room = self.held_bytes + size.held_bytes <= HELD_BYTES_MAX;
        match self.links[at].send(now, size, has_room, &mut self.rng) {
            Err(drop) => Err((drop, packet)),
            Ok(due) => {
                self.held_bytes += size.held_bytes;
                self.fly(at, Flying { due, size, packet });
                Ok(due)
            }
        }
    }

    /// Inserts a packet into its link's queue in order, nearly always at the end.
    fn fly(&mut self, at: usize, new: Flying<P>) {
        let flying = &mut self.flying[at];
        let earlier = flying.iter().rev().take_while(|other| other.due > new.due).count();
        let place = flying.len() - earlier;
        flying.insert(place, new);
        self.heads[at] = flying[0].due;
    }

    /// The arrival time of the next packet, or `None` if none is in flight.
    pub fn next_due(&self) -> Option<Moment> {
        self.heads.iter().copied().min().filter(|due| *due != NEVER)
    }

    /// Removes and returns the packet with the earliest arrival time up to `now`.
    pub fn deliver(&mut self, now: Moment) -> Option<Arrival<P>> {
        let (at, head) = self.heads.iter().copied().enumerate().min_by_key(|(_, due)| *due)?;
        if head > now || head == NEVER {
            return None;
        }
        let first = self.flying[at].pop_front().expect("each head has a packet");
        let Flying { due, size, packet } = first;
        self.heads[at] = self.flying[at].front().map_or(NEVER, |next| next.due);
        self.held_bytes -= size.held_bytes;
        self.links[at].counts.delivered.add(size);
        let (from, to) = (RegionIndex(at / self.places), RegionIndex(at % self.places));
        Some(Arrival { from, to, due, size, packet })
    }

    /// Counts a packet returned by [`Wan::deliver`] as refused by the receiver.
    pub fn refuse(&mut self, from: RegionIndex, to: RegionIndex, size: Size) {
        let at = self.index(from, to);
        let counts = &mut self.links[at].counts;
        counts.delivered.remove(size);
        counts.refused.add(size);
    }

    /// Cuts a link: packets no longer pass, and those in flight are dropped.
    pub fn cut(&mut self, from: RegionIndex, to: RegionIndex) {
        let at = self.index(from, to);
        for gone in self.flying[at].drain(..) {
            self.held_bytes -= gone.size.held_bytes;
            self.links[at].counts.cut.add(gone.size);
        }
        self.heads[at] = NEVER;
        self.links[at].cut();
    }

    /// Heals a link that was cut.
    pub fn heal(&mut self, from: RegionIndex, to: RegionIndex) {
        let at = self.index(from, to);
        self.links[at].is_cut = false;
    }

    /// Whether a link is cut.
    pub fn is_cut(&self, from: RegionIndex, to: RegionIndex) -> bool {
        self.links[self.index(from, to)].is_cut
    }

    /// The current properties of a link.
    pub fn shape(&self, from: RegionIndex, to: RegionIndex) -> Shape {
        self.links[self.index(from, to)].shape
    }

    /// Changes a link's properties, for packets sent from now on. If packets may not be reordered
    /// and the link becomes shorter, they still arrive after those in flight.
    pub fn set_shape(&mut self, from: RegionIndex, to: RegionIndex, shape: Shape) {
        let at = self.index(from, to);
        self.links[at].shape = shape.checked();
    }

    /// The packet counts of a link.
    pub fn counts(&self, from: RegionIndex, to: RegionIndex) -> Counts {
        self.links[self.index(from, to)].counts
    }

    /// The packets in flight on a link.
    pub fn flying(&self, from: RegionIndex, to: RegionIndex) -> Tally {
        let mut tally = Tally::default();
        for flying in &self.flying[self.index(from, to)] {
            tally.add(flying.size);
        }
        tally
    }

    fn index(&self, from: RegionIndex, to: RegionIndex) -> usize {
        assert!(from.0 < self.places && to.0 < self.places, "the regions exist");
        assert!(from != to, "a region has no link to itself");
        from.0 * self.places + to.0
    }

    /// Checks the invariants in the module's documentation.
    #[cfg(test)]
    fn invariants(&self) {
        let mut held_bytes = 0;
        for (at, flying) in self.flying.iter().enumerate() {
            assert!(
                flying.iter().is_sorted_by_key(|flying| flying.due),
                "packets are sorted by due time"
            );
            assert_eq!(self.heads[at], flying.front().map_or(NEVER, |first| first.due));
            held_bytes += flying.iter().map(|flying| flying.size.held_bytes).sum::<usize>();
            let (from, to) = (RegionIndex(at / self.places), RegionIndex(at % self.places));
            if from != to {
                let (counts, on_its_way) = (self.counts(from, to), self.flying(from, to));
                let all = [counts.delivered, counts.dropped(), on_its_way];
                assert_eq!(counts.sent.packets, all.iter().map(|tally| tally.packets).sum::<u64>());
                assert_eq!(counts.sent.bytes, all.iter().map(|tally| tally.bytes).sum::<u64>());
            }
        }
        assert_eq!(self.held_bytes, held_bytes, "the count of held bytes is right");
    }
}
