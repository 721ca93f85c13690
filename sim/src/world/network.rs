//! Connections between nodes: whether and when a message arrives.
//!
//! Two nodes share one connection with two lanes in each direction. Each lane preserves order, but
//! lanes are independent of each other. While a direction is blocked, arriving messages are
//! stalled, as TCP would retransmit them. A blocked connection is eventually dropped together with
//! the messages in flight. Each side notices a loss at its own time, and messages that it sends
//! before that are lost too.

use std::collections::VecDeque;

use bytes::Bytes;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;
use pangea_core::time::{Span, Timestamp};
use pangea_core::topology::Topology;

use crate::faults::LINK_TIMES_MAX;
use crate::rng::SimRng;

/// The bandwidth of each lane of a connection: 100 MB/s.
const BYTES_PER_MS: u64 = 100_000;

/// The lanes of a connection.
pub(super) const LANES: [Lane; 2] = [Lane::Control, Lane::Bulk];

/// The maximum stall of a message, as by retransmission of lost packets.
const STALL_US_MAX: u64 = 400_000;
/// The share of stalled messages in a thousand: the maximum under faults, and on a healthy network.
/// Messages after a stalled one wait too, so each stall affects a lane of hundreds of messages per
/// second.
const STALLS_PER_MILLE_MAX: u64 = 10;
const STALLS_PER_MILLE_WELL: u64 = 1;

/// The number of a connection among all connections of a pair of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionId(pub(super) u64);

/// A message in flight.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) lane: Lane,
    pub(super) connection: ConnectionId,
    pub(super) bytes: Bytes,
}

/// The outcome of an arriving message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is delivered to the receiver.
    Received,
    /// It waits until the direction is unblocked.
    Stalled,
    /// Its connection was lost.
    Lost,
}

/// All links.
pub(super) struct Network {
    nodes: usize,
    one_way: Vec<Span>,
    links: Vec<Link>,
    stalls_per_mille: u64,
    dice: SimRng,
}

/// The link between two nodes.
#[derive(Clone, Debug)]
struct Link {
    connection: ConnectionId,
    is_up: bool,
    attempt: u64,
    slowness: u64,
    bytes_per_ms: u64,
    /// The sides, the lower node first.
    sides: [Side; 2],
}

/// One side's view of the connection, and its outgoing lanes.
#[derive(Clone, Debug, Default)]
struct Side {
    sees_up: bool,
    blocked: [u32; 2],
    lane_free: [Timestamp; 2],
    stalled: [VecDeque<Flight>; 2],
}

impl Network {
    pub(super) fn new(topology: &Topology, dice: SimRng) -> Self {
        let nodes = topology.all_ids().count();
        let pairs = topology.all_ids().flat_map(|a| topology.all_ids().map(move |b| (a, b)));
        let one_way = pairs.map(|(a, b)| topology.one_way_between(a, b)).collect();
        let link = Link {
            connection: ConnectionId(0),
            is_up: false,
            attempt: 0,
            slowness: 1,
            bytes_per_ms: BYTES_PER_MS,
            sides: [Side::default(), Side::default()],
        };
        let stalls_per_mille = STALLS_PER_MILLE_WELL;
        Self { nodes, one_way, links: vec![link; nodes * nodes], stalls_per_mille, dice }
    }

    /// Draws a new share of stalled messages, from now on.
    pub(super) fn worsen(&mut self) {
        self.stalls_per_mille = self.dice.between(0, STALLS_PER_MILLE_MAX);
    }

    /// Makes the network healthy from now on.
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

    /// Draws a one-way delay from one node to another.
    pub(super) fn delay(&mut self, from: NodeId, to: NodeId) -> Span {
        let slowness = self.link(from, to).slowness;
        let typical = self.one_way[from.index() * self.nodes + to.index()].us.max(50);
        let jitter = self.dice.between(0, typical / 4);
        let is_stalled = self.dice.chance(self.stalls_per_mille);
        let stall = if is_stalled { self.dice.between(0, STALL_US_MAX) } else { 0 };
        Span::from_us((typical + jitter) * slowness + stall)
    }

    /// Sends a message: returns its arrival time and the message in flight, or `None` if it is lost
    /// at once.
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        from: NodeId,
        to: NodeId,
        lane: Lane,
        bytes: Bytes,
    ) -> Option<(Timestamp, Flight)> {
        let link = self.link(from, to);
        let (is_up, connection, bytes_per_ms) = (link.is_up, link.connection, link.bytes_per_ms);
        if !is_up || !self.side(from, to).sees_up {
            return None;
        }
        let delay = self.delay(from, to);
        let sending = Span::from_us(bytes.len() as u64 * 1_000 / bytes_per_ms);
        let lane_free = &mut self.side(from, to).lane_free[lane as usize];
        *lane_free = (now + delay).max(*lane_free) + sending;
        Some((*lane_free, Flight { from, to, lane, connection, bytes }))
    }

    /// Returns the outcome of a message that arrives now. A stalled message is queued.
    pub(super) fn arrive(&mut self, flight: &Flight) -> Arrival {
        if !self.is_up_in(flight.from, flight.to, flight.connection) {
            return Arrival::Lost;
        }
        let side = self.side(flight.from, flight.to);
        let lane = flight.lane as usize;
        // Messages after a stalled one stall too, because a lane preserves order.
        if side.blocked[lane] > 0 || !side.stalled[lane].is_empty() {
            side.stalled[lane].push_back(flight.clone());
            return Arrival::Stalled;
        }
        Arrival::Received
    }

    /// Returns the stalled messages of a direction whose lanes are unblocked.
    pub(super) fn flush(&mut self, from: NodeId, to: NodeId) -> VecDeque<Flight> {
        let side = self.side(from, to);
        let open = side.stalled.iter_mut().zip(side.blocked).filter(|(_, blocked)| *blocked == 0);
        open.flat_map(|(stalled, _)| std::mem::take(stalled)).collect()
    }

    /// Adds a block to a lane of a direction.
    pub(super) fn block(&mut self, from: NodeId, to: NodeId, lane: Lane) {
        self.side(from, to).blocked[lane as usize] += 1;
    }

    /// Removes one [`Network::block`].
    pub(super) fn unblock(&mut self, from: NodeId, to: NodeId, lane: Lane) {
        let blocked = &mut self.side(from, to).blocked[lane as usize];
        assert!(*blocked > 0, "a blocked lane is unblocked");
        *blocked -= 1;
    }

    /// Returns the pair's current or most recent connection.
    pub(super) fn connection(&mut self, a: NodeId, b: NodeId) -> ConnectionId {
        self.link(a, b).connection
    }

    /// Whether both lanes of a direction between the two are blocked. If one lane is open,
    /// keep-alives use it.
    pub(super) fn is_blocked(&mut self, a: NodeId, b: NodeId) -> bool {
        let is_blocked = |side: &Side| side.blocked.iter().all(|&blocked| blocked > 0);
        self.link(a, b).sides.iter().any(is_blocked)
    }

    /// Sets the factor by which everything between the two is slowed down.
    pub(super) fn set_slowness(&mut self, a: NodeId, b: NodeId, slowness: u64) {
        assert!((1..=LINK_TIMES_MAX).contains(&slowness), "the slowness is within its limits");
        self.link(a, b).slowness = slowness;
    }

    /// Sets the bandwidth of each lane between the two, or resets it to the default.
    pub(super) fn set_width(&mut self, a: NodeId, b: NodeId, bytes_per_ms: Option<u64>) {
        self.link(a, b).bytes_per_ms = bytes_per_ms.unwrap_or(BYTES_PER_MS);
    }

    /// Drops the connection with all messages in flight. Returns its era if it was up.
    pub(super) fn lose(&mut self, a: NodeId, b: NodeId) -> Option<ConnectionId> {
        let link = self.link(a, b);
        let was_up = std::mem::take(&mut link.is_up);
        for side in &mut link.sides {
            side.stalled.iter_mut().for_each(VecDeque::clear);
        }
        was_up.then_some(link.connection)
    }

    /// Whether two nodes are connected.
    pub(super) fn is_connected(&self, a: NodeId, b: NodeId) -> bool {
        self.links[a.min(b).index() * self.nodes + a.max(b).index()].is_up
    }

    /// Whether the pair is connected by the connection of this era.
    pub(super) fn is_up_in(&mut self, a: NodeId, b: NodeId, connection: ConnectionId) -> bool {
        let link = self.link(a, b);
        link.is_up && link.connection == connection
    }

    /// Whether the pair has reconnected after this era.
    pub(super) fn is_up_since(&mut self, a: NodeId, b: NodeId, connection: ConnectionId) -> bool {
        let link = self.link(a, b);
        link.is_up && link.connection.0 > connection.0
    }

    /// Marks the connection as lost on one side. Returns whether that side saw it as up before.
    pub(super) fn notice_loss(&mut self, me: NodeId, peer: NodeId) -> bool {
        std::mem::take(&mut self.side(me, peer).sees_up)
    }

    /// Begins a new attempt to connect, which cancels earlier ones.
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

    /// Connects the pair; both sides see it at once.
    pub(super) fn connect(&mut self, now: Timestamp, a: NodeId, b: NodeId) {
        let link = self.link(a, b);
        assert!(!link.is_up, "a link is connected once");
        link.is_up = true;
        link.connection = ConnectionId(link.connection.0 + 1);
        for side in &mut link.sides {
            assert!(!side.sees_up, "both sides have noticed the loss");
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
        let mut network = Network::new(&topology, SimRng::fork(1, "network", 0));
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
        assert_eq!(network.arrive(&flights[1]), Arrival::Stalled, "after another message");
        let flushed: Vec<Bytes> = network.flush(A, B).into_iter().map(|f| f.bytes).collect();
        assert_eq!(flushed, ["0", "1"]);
        assert!(network.lose(A, B).is_some());
        assert_eq!(network.arrive(&flights[2]), Arrival::Lost);
        assert!(
            send(&mut network, 9, Lane::Bulk).is_none(),
            "the message is lost, although no side has noticed the loss"
        );
    }
}
