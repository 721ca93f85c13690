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

/// The share of late messages in a thousand, during that fault, and the maximum by which they are
/// late.
const LATE_PER_MILLE: u64 = 100;
const LATE_US_MAX: u64 = 500_000;

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
    /// The number of directions with late messages.
    late: usize,
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
    /// Whether the last messages of steps may be late.
    is_late: bool,
    /// The arrival of the last message of each lane that is late.
    late_until: [Timestamp; 2],
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
        let links = vec![link; nodes * nodes];
        Self { nodes, one_way, links, stalls_per_mille, late: 0, dice }
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
    /// at once. `is_last` says whether it is the last message of a step in this direction.
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        (from, to): (NodeId, NodeId),
        lane: Lane,
        bytes: Bytes,
        is_last: bool,
    ) -> Option<(Timestamp, Flight)> {
        let link = self.link(from, to);
        let (is_up, connection, bytes_per_ms) = (link.is_up, link.connection, link.bytes_per_ms);
        if !is_up || !self.side(from, to).sees_up {
            return None;
        }
        let delay = self.delay(from, to);
        let sending = Span::from_us(bytes.len() as u64 * 1_000 / bytes_per_ms);
        let late = self.lateness((from, to), lane, is_last.then_some(now + delay));
        let side = self.side(from, to);
        let lane_free = &mut side.lane_free[lane as usize];
        *lane_free = (now + delay + late).max(*lane_free) + sending;
        if late > Span::ZERO {
            side.late_until[lane as usize] = *lane_free;
        }
        Some((*lane_free, Flight { from, to, lane, connection, bytes }))
    }

    /// Draws the lateness of a message. `last_at` is the arrival of the last message of a step; no
    /// other is late.
    fn lateness(
        &mut self,
        (from, to): (NodeId, NodeId),
        lane: Lane,
        last_at: Option<Timestamp>,
    ) -> Span {
        let side = self.side(from, to);
        // A message that waits for a late one is late enough. Otherwise most would be late.
        let is_behind = |at: &Timestamp| *at < side.late_until[lane as usize];
        let may_be_late = side.is_late && last_at.filter(|at| !is_behind(at)).is_some();
        match may_be_late && self.dice.chance(LATE_PER_MILLE) {
            true => Span::from_us(self.dice.between(1, LATE_US_MAX)),
            false => Span::ZERO,
        }
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

    /// Sets whether the last messages of steps may be late in a direction.
    pub(super) fn set_late(&mut self, from: NodeId, to: NodeId, is_late: bool) {
        let was_late = std::mem::replace(&mut self.side(from, to).is_late, is_late);
        self.late = self.late + usize::from(is_late) - usize::from(was_late);
    }

    /// Whether any messages may be late.
    pub(super) fn has_late(&self) -> bool {
        self.late > 0
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
            side.late_until = [now; 2];
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
        network.send(Timestamp::from_us(us), (A, B), lane, Bytes::from(us.to_string()), true)
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
    fn one_in_ten_last_messages_is_late_in_one_direction_and_no_message_is_overtaken() {
        const COUNT: u64 = 2_000;
        let mut network = connected();
        network.set_late(A, B, true);
        assert!(network.has_late());
        let (mut late, mut before) = (0, Timestamp::default());
        for second in 1..=COUNT {
            let now = Timestamp::from_us(second * 1_000_000);
            let mut delay = |(from, to), is_last| {
                let (at, _) =
                    network.send(now, (from, to), Lane::Control, Bytes::new(), is_last).unwrap();
                (at, at.since(now).us)
            };
            let (first, usual) = delay((A, B), false);
            let (last, delayed) = delay((A, B), true);
            // Some messages are late on a healthy network, too.
            let is_late = usual < 15_000 && delayed > 15_000;
            late += u64::from(is_late);
            assert!(before <= first && first <= last, "in order");
            assert!(delayed < LATE_US_MAX + STALL_US_MAX + 15_000);
            before = last;
            delay((B, A), true);
        }
        let share = late * 1_000 / COUNT;
        assert!((LATE_PER_MILLE - 25..LATE_PER_MILLE + 25).contains(&share), "{share}");
        network.set_late(A, B, false);
        assert!(!network.has_late());
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
