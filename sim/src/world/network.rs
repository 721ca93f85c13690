//! Connections between nodes: when a message arrives, if it does.
//!
//! Between two nodes there is one connection with two lanes each way. A lane keeps its order; there
//! is none between lanes. While a direction is blocked, what arrives is stalled, as TCP would
//! retransmit it; a blocked connection is lost in the end, and with it what was under way. Each
//! side notices a loss in its own time, and what it sends until then is lost too.

use std::collections::VecDeque;

use bytes::Bytes;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;
use pangea_core::time::{Span, Timestamp};
use pangea_core::topology::Topology;

use crate::dice::Dice;
use crate::faults::LINK_TIMES_MAX;

/// What a connection carries: 100 MB/s for each lane.
const BYTES_PER_MS: u64 = 100_000;

/// The lanes of a connection.
pub(super) const LANES: [Lane; 2] = [Lane::Control, Lane::Bulk];

/// A message may be held up by this much more at most: lost packets that are sent again.
const STALL_US_MAX: u64 = 400_000;
/// How many messages in a thousand are held up, at worst and on a network that is well. As what
/// is behind waits too, a lane of hundreds of messages a second feels each of them.
const STALLS_PER_MILLE_MAX: u64 = 10;
const STALLS_PER_MILLE_WELL: u64 = 1;

/// Which connection, over the life of a pair of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Era(pub(super) u64);

/// A message under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) lane: Lane,
    pub(super) era: Era,
    pub(super) bytes: Bytes,
}

/// What becomes of a message that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is handed to the receiver.
    Received,
    /// It waits until the direction is open again.
    Stalled,
    /// Its connection is gone.
    Lost,
}

/// All links.
pub(super) struct Network {
    nodes: usize,
    one_way: Vec<Span>,
    links: Vec<Link>,
    stalls_per_mille: u64,
    dice: Dice,
}

/// The link between two nodes.
#[derive(Clone, Debug)]
struct Link {
    era: Era,
    is_up: bool,
    attempt: u64,
    slowness: u64,
    bytes_per_ms: u64,
    /// By side, the lower node first.
    sides: [Side; 2],
}

/// What one side of a link knows, and what it sends, by lane.
#[derive(Clone, Debug, Default)]
struct Side {
    sees_up: bool,
    blocked: [u32; 2],
    lane_free: [Timestamp; 2],
    stalled: [VecDeque<Flight>; 2],
}

impl Network {
    pub(super) fn new(topology: &Topology, dice: Dice) -> Self {
        let nodes = topology.node_count();
        let pairs = topology.node_ids().flat_map(|a| topology.node_ids().map(move |b| (a, b)));
        let one_way = pairs.map(|(a, b)| topology.one_way_between(a, b)).collect();
        let link = Link {
            era: Era(0),
            is_up: false,
            attempt: 0,
            slowness: 1,
            bytes_per_ms: BYTES_PER_MS,
            sides: [Side::default(), Side::default()],
        };
        let stalls_per_mille = STALLS_PER_MILLE_WELL;
        Self { nodes, one_way, links: vec![link; nodes * nodes], stalls_per_mille, dice }
    }

    /// From now on a drawn share of messages is held up.
    pub(super) fn worsen(&mut self) {
        self.stalls_per_mille = self.dice.between(0, STALLS_PER_MILLE_MAX);
    }

    /// From now on the network is well.
    pub(super) fn heal(&mut self) {
        self.stalls_per_mille = STALLS_PER_MILLE_WELL;
    }

    fn link(&mut self, a: NodeId, b: NodeId) -> &mut Link {
        assert!(a != b, "a node has no link to itself");
        &mut self.links[a.min(b).index() * self.nodes + a.max(b).index()]
    }

    fn side(&mut self, from: NodeId, to: NodeId) -> &mut Side {
        &mut self.link(from, to).sides[usize::from(from > to)]
    }

    /// A one-way delay from one node to another, drawn.
    pub(super) fn delay(&mut self, from: NodeId, to: NodeId) -> Span {
        let slowness = self.link(from, to).slowness;
        let typical = self.one_way[from.index() * self.nodes + to.index()].us.max(50);
        let jitter = self.dice.between(0, typical / 4);
        let is_stalled = self.dice.chance(self.stalls_per_mille);
        let stall = if is_stalled { self.dice.between(0, STALL_US_MAX) } else { 0 };
        Span::from_us((typical + jitter) * slowness + stall)
    }

    /// Sends: when the message arrives and in which era, or nothing when it is lost at once.
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        from: NodeId,
        to: NodeId,
        lane: Lane,
        bytes: Bytes,
    ) -> Option<(Timestamp, Flight)> {
        let link = self.link(from, to);
        let (is_up, era, bytes_per_ms) = (link.is_up, link.era, link.bytes_per_ms);
        if !is_up || !self.side(from, to).sees_up {
            return None;
        }
        let delay = self.delay(from, to);
        let sending = Span::from_us(bytes.len() as u64 * 1_000 / bytes_per_ms);
        let lane_free = &mut self.side(from, to).lane_free[lane as usize];
        *lane_free = (now + delay).max(*lane_free) + sending;
        Some((*lane_free, Flight { from, to, lane, era, bytes }))
    }

    /// What becomes of a message that arrives now. A stalled one is kept here.
    pub(super) fn arrive(&mut self, flight: &Flight) -> Arrival {
        if !self.is_up_in(flight.from, flight.to, flight.era) {
            return Arrival::Lost;
        }
        let side = self.side(flight.from, flight.to);
        let lane = flight.lane as usize;
        // Behind a stalled message others stall too: a lane keeps its order.
        if side.blocked[lane] > 0 || !side.stalled[lane].is_empty() {
            side.stalled[lane].push_back(flight.clone());
            return Arrival::Stalled;
        }
        Arrival::Received
    }

    /// The stalled messages of a direction that arrive now: those of lanes that are open.
    pub(super) fn flush(&mut self, from: NodeId, to: NodeId) -> VecDeque<Flight> {
        let side = self.side(from, to);
        let open = side.stalled.iter_mut().zip(side.blocked).filter(|(_, blocked)| *blocked == 0);
        open.flat_map(|(stalled, _)| std::mem::take(stalled)).collect()
    }

    /// Blocks a lane of a direction once more.
    pub(super) fn block(&mut self, from: NodeId, to: NodeId, lane: Lane) {
        self.side(from, to).blocked[lane as usize] += 1;
    }

    /// Takes back one [`Network::block`].
    pub(super) fn unblock(&mut self, from: NodeId, to: NodeId, lane: Lane) {
        let blocked = &mut self.side(from, to).blocked[lane as usize];
        assert!(*blocked > 0, "the lane is not blocked");
        *blocked -= 1;
    }

    /// The connection that the two have, or had last.
    pub(super) fn era(&mut self, a: NodeId, b: NodeId) -> Era {
        self.link(a, b).era
    }

    /// Whether nothing passes in a direction between the two. What keeps a connection alive takes
    /// the lane that is open.
    pub(super) fn is_blocked(&mut self, a: NodeId, b: NodeId) -> bool {
        let is_blocked = |side: &Side| side.blocked.iter().all(|&blocked| blocked > 0);
        self.link(a, b).sides.iter().any(is_blocked)
    }

    /// How many times as long everything between the two takes.
    pub(super) fn set_slowness(&mut self, a: NodeId, b: NodeId, slowness: u64) {
        assert!((1..=LINK_TIMES_MAX).contains(&slowness), "a slowness within limits");
        self.link(a, b).slowness = slowness;
    }

    /// What the connection between the two carries on each lane, if not as much as usual.
    pub(super) fn set_width(&mut self, a: NodeId, b: NodeId, bytes_per_ms: Option<u64>) {
        self.link(a, b).bytes_per_ms = bytes_per_ms.unwrap_or(BYTES_PER_MS);
    }

    /// The connection is lost, with all that is under way. Returns its era if it was up.
    pub(super) fn lose(&mut self, a: NodeId, b: NodeId) -> Option<Era> {
        let link = self.link(a, b);
        let was_up = std::mem::take(&mut link.is_up);
        for side in &mut link.sides {
            side.stalled.iter_mut().for_each(VecDeque::clear);
        }
        was_up.then_some(link.era)
    }

    /// Whether the pair is connected in this era.
    pub(super) fn is_up_in(&mut self, a: NodeId, b: NodeId, era: Era) -> bool {
        let link = self.link(a, b);
        link.is_up && link.era == era
    }

    /// Whether the pair was connected again after this era.
    pub(super) fn is_up_since(&mut self, a: NodeId, b: NodeId, era: Era) -> bool {
        let link = self.link(a, b);
        link.is_up && link.era.0 > era.0
    }

    /// One side notices that the connection is gone: whether it had not before.
    pub(super) fn notice_loss(&mut self, me: NodeId, peer: NodeId) -> bool {
        std::mem::take(&mut self.side(me, peer).sees_up)
    }

    /// A new attempt to connect; earlier ones are given up.
    pub(super) fn new_attempt(&mut self, a: NodeId, b: NodeId) -> u64 {
        let link = self.link(a, b);
        link.attempt += 1;
        link.attempt
    }

    /// Whether the attempt is still the newest and the pair is not connected.
    pub(super) fn is_attempting(&mut self, a: NodeId, b: NodeId, attempt: u64) -> bool {
        let link = self.link(a, b);
        link.attempt == attempt && !link.is_up
    }

    /// Connects: both sides see it.
    pub(super) fn connect(&mut self, now: Timestamp, a: NodeId, b: NodeId) {
        let link = self.link(a, b);
        assert!(!link.is_up, "connected twice");
        link.is_up = true;
        link.era = Era(link.era.0 + 1);
        for side in &mut link.sides {
            assert!(!side.sees_up, "a side that did not notice the loss");
            let is_empty = side.stalled.iter().all(VecDeque::is_empty);
            assert!(is_empty, "messages of an earlier connection");
            side.sees_up = true;
            side.lane_free = [now; 2];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn connected() -> Network {
        let topology = Topology::one_node_per_region("t", &["a", "b"], Span::from_ms(10));
        let mut network = Network::new(&topology, Dice::fork(1, "network", 0));
        network.connect(Timestamp::default(), A, B);
        network
    }

    fn send(network: &mut Network, us: u64, lane: Lane) -> Option<(Timestamp, Flight)> {
        network.send(Timestamp::from_us(us), A, B, lane, Bytes::from(us.to_string()))
    }

    #[test]
    fn a_lane_keeps_its_order_and_lanes_overtake_each_other() {
        let mut network = connected();
        let mut arrivals = [Vec::new(), Vec::new()];
        for us in 0..5_000 {
            let lane = if us % 2 == 0 { Lane::Control } else { Lane::Bulk };
            let (at, _) = send(&mut network, us, lane).unwrap();
            arrivals[us as usize % 2].push(at);
        }
        assert!(arrivals.iter().all(|lane| lane.is_sorted()));
        let overtaken = arrivals[0].iter().zip(&arrivals[1]).filter(|(a, b)| a > b).count();
        assert!(overtaken > 0, "the lanes are independent");
    }

    #[test]
    fn what_is_stalled_arrives_in_order_after_the_block_and_is_lost_with_the_connection() {
        let mut network = connected();
        let flights: Vec<Flight> =
            (0..3).map(|us| send(&mut network, us, Lane::Bulk).unwrap().1).collect();
        network.block(A, B, Lane::Bulk);
        assert_eq!(network.arrive(&flights[0]), Arrival::Stalled);
        assert!(network.flush(A, B).is_empty(), "still blocked");
        network.unblock(A, B, Lane::Bulk);
        assert_eq!(network.arrive(&flights[1]), Arrival::Stalled, "behind another");
        let flushed: Vec<Bytes> = network.flush(A, B).into_iter().map(|f| f.bytes).collect();
        assert_eq!(flushed, ["0", "1"]);
        assert!(network.lose(A, B).is_some());
        assert_eq!(network.arrive(&flights[2]), Arrival::Lost);
        assert!(send(&mut network, 9, Lane::Bulk).is_none(), "nobody noticed, but it is lost");
    }
}
