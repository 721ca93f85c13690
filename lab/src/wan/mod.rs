//! The wide area: when does a packet arrive, and does it?
//!
//! A state machine over any kind of packet. It reads no clock and does no input or output: whoever
//! drives it says what time it is ([`Wan::send`], [`Wan::deliver`]) and when to come back is what
//! [`Wan::next_due`] says. The same seed and the same calls give the same answers.
//!
//! ```text
//!                  is it cut?   room in the queue?   lost on the way?
//!   send ------->------+---------------+-------------------+------> delay and jitter ----> deliver
//!                      |               |                   |
//!                      v               v                   v
//!                     cut             full               lost            what is dropped, by cause
//! ```
//!
//! Each ordered pair of regions has a link of its own, so the two directions between two regions
//! never wait for each other, and neither do links from one region to two others: it is the ways
//! between regions that are modelled, not a region's own connection.
//!
//! **Invariants.** A packet is never delivered before its delay is over. Packets of a link never
//! overtake each other, unless its shape allows it. Of each link, what was sent is what was
//! delivered, dropped and is on its way.

mod link;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use link::Link;
pub use link::Shape;

/// What all packets that are on their way may take of memory together: two links of 1 Gbit/s that
/// hold 200 ms are 50 MB, so this is where something was set that this machine can't carry.
pub const HELD_BYTES_MAX: usize = 512 << 20;

/// A point in time, in nanoseconds since the wide area began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// Later by so much. A duration that no run lasts is cut off.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// How long it is from an earlier moment to this; nothing when that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in nanoseconds, as long as a run may last.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A region, by its place in the list of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub usize);

/// How large something is that is sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Bytes on the link: what takes bandwidth and is counted.
    pub wire_bytes: u64,
    /// Packets on the link. The kernel hands over several of a connection as one where it may.
    pub packets: u32,
    /// Bytes that it takes of memory while it is on its way.
    pub held_bytes: usize,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Their bytes, with the headers of IP and what is above it.
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

/// What became of the packets of one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Given to the link.
    pub sent: Tally,
    /// Handed over at the other end.
    pub delivered: Tally,
    /// Dropped since the link was cut, or on their way when that happened.
    pub cut: Tally,
    /// Dropped since the link's queue was full.
    pub full: Tally,
    /// Dropped by the dice.
    pub lost: Tally,
    /// Dropped since the region at the other end would not take them.
    pub refused: Tally,
}

impl Counts {
    /// All that was dropped, whatever for.
    pub fn dropped(&self) -> Tally {
        let all = [self.cut, self.full, self.lost, self.refused];
        Tally {
            packets: all.iter().map(|tally| tally.packets).sum(),
            bytes: all.iter().map(|tally| tally.bytes).sum(),
        }
    }
}

/// Why a packet was dropped when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// The link is cut.
    Cut,
    /// The link's queue is full, or so many packets are on their way that memory would run out.
    Full,
    /// The dice said so.
    Lost,
}

/// A packet that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrival<P> {
    /// Where it was sent from.
    pub from: Place,
    /// Where it is to be handed over.
    pub to: Place,
    /// When it should arrive, which is not later than when it was asked for.
    pub due: Moment,
    /// What was said of its size.
    pub size: Size,
    /// The packet.
    pub packet: P,
}

/// A packet on its way.
#[derive(Debug)]
struct Flying<P> {
    due: Moment,
    size: Size,
    packet: P,
}

/// All links between some regions. `P` is a packet, of which nothing is known here but its size.
#[derive(Debug)]
pub struct Wan<P> {
    places: usize,
    /// From each place to each place, itself too, which is never used.
    links: Vec<Link>,
    /// What is on its way on each link, by when it is due.
    flying: Vec<VecDeque<Flying<P>>>,
    /// When the first of each is due: all that is looked at to find the next of all.
    heads: Vec<Moment>,
    held_bytes: usize,
    rng: fastrand::Rng,
}

/// A head where nothing is on its way.
const NEVER: Moment = Moment(u64::MAX);

impl<P> Wan<P> {
    /// Links of these shapes, from each of so many places to each other.
    ///
    /// # Panics
    /// When there are no places.
    pub fn new(places: usize, seed: u64, mut shape: impl FnMut(Place, Place) -> Shape) -> Self {
        assert!(places > 0, "a wide area needs a place");
        let pairs = (0..places).flat_map(|from| (0..places).map(move |to| (from, to)));
        let links: Vec<Link> =
            pairs.map(|(from, to)| Link::new(shape(Place(from), Place(to)))).collect();
        let flying = links.iter().map(|_| VecDeque::new()).collect();
        let heads = vec![NEVER; links.len()];
        let rng = fastrand::Rng::with_seed(seed);
        Self { places, links, flying, heads, held_bytes: 0, rng }
    }

    /// How many regions there are.
    pub fn places(&self) -> usize {
        self.places
    }

    /// A packet leaves a region. Says when it will arrive.
    ///
    /// # Errors
    /// When it won't, with the packet.
    ///
    /// # Panics
    /// When one of the places is none of this wide area, or both are the same.
    pub fn send(
        &mut self,
        now: Moment,
        (from, to): (Place, Place),
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

    /// Puts a packet where it belongs among those of its link: nearly always at the end.
    fn fly(&mut self, at: usize, new: Flying<P>) {
        let flying = &mut self.flying[at];
        let earlier = flying.iter().rev().take_while(|other| other.due > new.due).count();
        let place = flying.len() - earlier;
        flying.insert(place, new);
        self.heads[at] = flying[0].due;
    }

    /// When the next packet arrives, or nothing when none is on its way.
    pub fn next_due(&self) -> Option<Moment> {
        self.heads.iter().copied().min().filter(|due| *due != NEVER)
    }

    /// The packet that should have arrived first of those that should have arrived by now.
    pub fn deliver(&mut self, now: Moment) -> Option<Arrival<P>> {
        let (at, head) = self.heads.iter().copied().enumerate().min_by_key(|(_, due)| *due)?;
        if head > now || head == NEVER {
            return None;
        }
        let first = self.flying[at].pop_front().expect("a head is that of a packet");
        let Flying { due, size, packet } = first;
        self.heads[at] = self.flying[at].front().map_or(NEVER, |next| next.due);
        self.held_bytes -= size.held_bytes;
        self.links[at].counts.delivered.add(size);
        let (from, to) = (Place(at / self.places), Place(at % self.places));
        Some(Arrival { from, to, due, size, packet })
    }

    /// What [`Wan::deliver`] gave was not taken.
    pub fn refuse(&mut self, from: Place, to: Place, size: Size) {
        let at = self.index(from, to);
        let counts = &mut self.links[at].counts;
        counts.delivered.remove(size);
        counts.refused.add(size);
    }

    /// Cuts a link: nothing passes any more, and what is on its way is gone.
    pub fn cut(&mut self, from: Place, to: Place) {
        let at = self.index(from, to);
        for gone in self.flying[at].drain(..) {
            self.held_bytes -= gone.size.held_bytes;
            self.links[at].counts.cut.add(gone.size);
        }
        self.heads[at] = NEVER;
        self.links[at].cut();
    }

    /// Heals a link that was cut.
    pub fn heal(&mut self, from: Place, to: Place) {
        let at = self.index(from, to);
        self.links[at].is_cut = false;
    }

    /// Whether a link is cut.
    pub fn is_cut(&self, from: Place, to: Place) -> bool {
        self.links[self.index(from, to)].is_cut
    }

    /// How a link is at the moment.
    pub fn shape(&self, from: Place, to: Place) -> Shape {
        self.links[self.index(from, to)].shape
    }

    /// Changes a link, for what is sent from now on. Where packets may not overtake each other,
    /// those on a link that became shorter arrive after those that are on their way.
    pub fn set_shape(&mut self, from: Place, to: Place, shape: Shape) {
        let at = self.index(from, to);
        self.links[at].shape = shape.checked();
    }

    /// What became of a link's packets.
    pub fn counts(&self, from: Place, to: Place) -> Counts {
        self.links[self.index(from, to)].counts
    }

    /// What is on its way on a link.
    pub fn flying(&self, from: Place, to: Place) -> Tally {
        let mut tally = Tally::default();
        for flying in &self.flying[self.index(from, to)] {
            tally.add(flying.size);
        }
        tally
    }

    fn index(&self, from: Place, to: Place) -> usize {
        assert!(from.0 < self.places && to.0 < self.places, "there is no such region");
        assert!(from != to, "a region has no link to itself");
        from.0 * self.places + to.0
    }

    /// Checks what the module's documentation says always holds.
    #[cfg(test)]
    fn invariants(&self) {
        let mut held_bytes = 0;
        for (at, flying) in self.flying.iter().enumerate() {
            assert!(flying.iter().is_sorted_by_key(|flying| flying.due), "by when it is due");
            assert_eq!(self.heads[at], flying.front().map_or(NEVER, |first| first.due));
            held_bytes += flying.iter().map(|flying| flying.size.held_bytes).sum::<usize>();
            let (from, to) = (Place(at / self.places), Place(at % self.places));
            if from != to {
                let (counts, on_its_way) = (self.counts(from, to), self.flying(from, to));
                let all = [counts.delivered, counts.dropped(), on_its_way];
                assert_eq!(counts.sent.packets, all.iter().map(|tally| tally.packets).sum::<u64>());
                assert_eq!(counts.sent.bytes, all.iter().map(|tally| tally.bytes).sum::<u64>());
            }
        }
        assert_eq!(self.held_bytes, held_bytes, "memory is accounted for");
    }
}
