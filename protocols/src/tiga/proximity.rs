//! Where leaders are best: near the clients, as far as load and delays are measured (§3.8).
//!
//! ```text
//!                 clients begin     round trip to a leader in
//!                 a second          a       b       c
//!   region a      100               20*     70      150
//!   region b      900               70      70*     200
//!   region c      0                 150     200     150*
//!
//!   sum of both columns             65,000  70,000  195,000      * to the nearest majority
//! ```
//!
//! Each node tells the replicas that decide views its round trips to all nodes, and the rate at
//! which its clients begin transactions. A round trip is the sum of the delays in both directions,
//! so the difference of the clocks cancels out. If a region is better than that of the present
//! leaders by a fifth, leaders should be there. They are moved as other leaders in the wrong place
//! are (`placement.rs`). If no region has all shards, leaders are near a region, and the longest
//! round trip to one of them counts, and the longest between two of them.

use pangea_core::ids::{NodeId, RegionId, ShardId};
use pangea_core::time::Timestamp;

use super::placement::{Preference, all_homes, anywhere};
use super::quorum::Sizes;
use super::state::State;

/// With fewer transactions a second in all, leaders stay where they are.
const LOAD_MIN: u64 = 10;

/// Rates are counted over this time, in microseconds.
const WINDOW_US: u64 = 1_000_000;

/// The unit of the round trips that nodes tell, in microseconds.
const UNIT_US: u64 = 100;

/// No round trip counts as longer than this, in units.
const UNITS_MAX: u64 = 1 << 20;

/// The loads and round trips of all nodes.
#[derive(Clone, Debug)]
pub(super) struct Proximity {
    /// The last report of each node: its round trips to all nodes, in units, or 0 if it has not
    /// measured one; and the transactions that its clients begin in a second.
    told: Vec<(Vec<u64>, u64)>,
    /// The transactions since the beginning of the window, and when it began.
    window: (u64, Timestamp),
    /// Those of a second.
    rate: u64,
}

impl Proximity {
    pub(super) fn new(node_count: usize) -> Self {
        Self { told: vec![Default::default(); node_count], window: Default::default(), rate: 0 }
    }

    /// A client of this node begins a transaction.
    pub(super) fn note_begun(&mut self) {
        self.window.0 += 1;
    }

    /// The rate of this node's clients.
    fn rate(&mut self, now: Timestamp) -> u64 {
        let (begun, since) = self.window;
        let passed = now.since(since).us;
        if passed >= WINDOW_US {
            // Half of it is what was before.
            self.rate = (self.rate + begun * 1_000_000 / passed) / 2;
            self.window = (0, now);
        }
        self.rate
    }

    /// A node has told its round trips and its rate.
    pub(super) fn note_told(&mut self, node: NodeId, round_trips: Vec<u64>, rate: u64) {
        self.told[node.index()] = (round_trips, rate);
    }

    /// The round trip between two nodes in microseconds, if one of them has measured it.
    fn measured(&self, one: NodeId, other: NodeId) -> Option<u64> {
        let of = |from: NodeId, to: NodeId| {
            let units = self.told[from.index()].0.get(to.index()).copied();
            units.filter(|units| *units > 0).map(|units| units.min(UNITS_MAX) * UNIT_US)
        };
        of(one, other).or_else(|| of(other, one))
    }
}

/// The place of the leaders for which the sum of rates and delays is the least, if it is less than
/// at `present` by a fifth; else `present`. `loads` are those of the regions, `delay` is that of a
/// region's clients with the leaders in a place.
fn best_home(
    loads: &[u64],
    homes: usize,
    present: Option<usize>,
    delay: impl Fn(usize, usize) -> u64,
) -> Option<usize> {
    if loads.iter().sum::<u64>() < LOAD_MIN {
        return None;
    }
    let of = |home: usize| -> u64 {
        loads.iter().enumerate().map(|(region, load)| load * delay(region, home)).sum()
    };
    let best = (0..homes).min_by_key(|home| of(*home))?;
    match present {
        Some(present) if of(best) * 5 > of(present) * 4 => Some(present),
        _ => Some(best),
    }
}

/// When a coordinator expects to hear of f + 1 logs, and how far the nearest super quorum is. The
/// word of each replica's log takes as long as `told`, and a message to it as long as `ways`.
fn expected(sizes: Sizes, mut told: Vec<u64>, mut ways: Vec<u64>) -> (u64, u64) {
    told.sort_unstable();
    ways.sort_unstable();
    (told[sizes.simple() - 1], ways[sizes.super_quorum() - 1])
}

impl State {
    /// What this node tells about itself: its round trips and its rate.
    pub(super) fn proximity(&mut self, now: Timestamp) -> (Vec<u64>, u64) {
        let rate = self.proximity.rate(now);
        let round_trip = |node: NodeId| {
            let there = self.delays.to(node.index())?;
            let us = there + self.delays.shortest(node.index())?;
            u64::try_from(us).ok().map(|us| (us / UNIT_US).max(1))
        };
        let round_trips = self.cluster.node_ids().map(|node| round_trip(node).unwrap_or(0));
        let told = (round_trips.collect::<Vec<_>>(), rate);
        self.proximity.note_told(self.node, told.0.clone(), rate);
        told
    }

    /// The round trip between two nodes in microseconds: measured, or as it is configured.
    pub(super) fn round_trip_us(&self, one: NodeId, other: NodeId) -> u64 {
        if one == other {
            return 0;
        }
        let configured = 2 * self.cluster.one_way_between(one, other).us;
        self.proximity.measured(one, other).unwrap_or(configured)
    }

    /// Where the leaders should be: as the settings say, and otherwise near the clients.
    pub(super) fn preference(&self) -> Preference {
        if let Some(preference) = self.options.preference(&self.cluster) {
            return preference;
        }
        let mut loads = vec![0; self.cluster.regions.len()];
        for node in self.cluster.node_ids() {
            loads[usize::from(self.region_of(node).0)] += self.proximity.told[node.index()].1;
        }
        let homes = all_homes(&self.cluster);
        let leaders = &self.views.view.leaders;
        let regions: Vec<RegionId> = leaders.iter().map(|it| self.region_of(*it)).collect();
        let present = homes.iter().position(|home| *home == regions);
        let delay =
            |region: usize, home: usize| self.delay_us(RegionId(region as u16), &homes[home]);
        let best = best_home(&loads, homes.len(), present, delay);
        best.map_or_else(|| anywhere(&self.cluster), |home| Preference::In(homes[home].clone()))
    }

    /// The round trip from a region to leaders in these regions, in the order of the shards, and
    /// between two of the leaders: the longest of each. To a leader in the region itself it is the
    /// one to its nearest majority.
    fn delay_us(&self, from: RegionId, homes: &[RegionId]) -> u64 {
        let to_leader = |(shard, home): (u16, &RegionId)| match *home == from {
            true => self.majority_us(ShardId(shard), from),
            false => self.between_us(from, *home),
        };
        let to_leaders = (0..).zip(homes).map(to_leader).max().unwrap_or_default();
        let pairs = homes.iter().flat_map(|one| homes.iter().map(move |other| (*one, *other)));
        let apart = pairs.filter(|(one, other)| one != other);
        to_leaders + apart.map(|(one, other)| self.between_us(one, other)).max().unwrap_or_default()
    }

    /// The round trip from the replica of a shard in a region to its nearest majority.
    fn majority_us(&self, shard: ShardId, home: RegionId) -> u64 {
        let voters = self.cluster.voter_ids().map(|node| self.cluster.nodes[node.index()]);
        let replicas = voters.filter(|place| place.shard == shard);
        let others = replicas.filter(|place| place.region != home);
        let mut all: Vec<u64> = others.map(|it| self.between_us(it.region, home)).collect();
        all.sort_unstable();
        // With itself one more.
        let needed = all.len().div_ceil(2);
        needed.checked_sub(1).map_or(0, |last| all[last])
    }

    /// The round trip between two regions.
    fn between_us(&self, one: RegionId, other: RegionId) -> u64 {
        let pairs = self
            .cluster
            .nodes_in(one)
            .flat_map(|from| self.cluster.nodes_in(other).map(move |to| (from, to)));
        let trips = pairs.map(|(from, to)| self.round_trip_us(from, to));
        trips.min().unwrap_or(u64::MAX >> 32)
    }

    /// §6: whether a super quorum's replies are expected before the logs of f + 1 replicas, if
    /// there is one shard.
    pub(super) fn are_replies_quicker(&self) -> bool {
        let Some(leader) = self.leader().filter(|_| self.has_hashes()) else { return false };
        let (me, group) = (self.node, &self.groups[usize::from(self.shard.0)]);
        let way = |from: NodeId, to: NodeId| self.round_trip_us(from, to) / 2;
        // This node hears of its own log when that of the leader arrives.
        let told = group.iter().map(|replica| match *replica == me {
            true => 2 * way(me, leader),
            false => way(me, leader) + way(leader, *replica) + way(*replica, me),
        });
        let (told, replies) = (told.collect(), group.iter().map(|it| way(me, *it)).collect());
        let (by_logs, furthest) = expected(Sizes::of(group.len()), told, replies);
        2 * furthest.max(way(me, leader)) + self.headroom_us() < by_logs
    }

    fn region_of(&self, node: NodeId) -> RegionId {
        self.cluster.nodes[node.index()].region
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIPS: [[u64; 3]; 3] = [[20, 70, 150], [70, 70, 200], [150, 200, 150]];

    fn best(loads: [u64; 3], present: Option<usize>) -> Option<usize> {
        best_home(&loads, 3, present, |from, to| ROUND_TRIPS[from][to])
    }

    #[test]
    fn leaders_are_where_the_sum_of_load_and_distance_is_the_least() {
        assert_eq!(best([100, 900, 0], None), Some(0));
        assert_eq!(best([0, 10, 990], None), Some(0), "a majority is as far from c as a is");
        assert_eq!(best([1, 1, 1], None), None, "there is too little load");
    }

    #[test]
    fn leaders_stay_unless_another_region_is_better_by_a_fifth() {
        assert_eq!(best([100, 900, 0], Some(1)), Some(1), "65,000 is more than 56,000");
        assert_eq!(best([300, 700, 0], Some(1)), Some(0), "55,000 is less than 56,000");
        assert_eq!(best([0, 10, 990], Some(2)), Some(2));
    }

    #[test]
    fn a_rate_follows_the_number_of_transactions() {
        let mut proximity = Proximity::new(1);
        let second = |number: u64| Timestamp::from_us(number * 1_000_000);
        (0..400).for_each(|_| proximity.note_begun());
        assert_eq!(proximity.rate(second(2)), 100);
        (0..400).for_each(|_| proximity.note_begun());
        assert_eq!(proximity.rate(Timestamp::from_us(2_500_000)), 100, "the window is not over");
        assert_eq!(proximity.rate(second(3)), 250);
        assert_eq!(proximity.rate(second(4)), 125);
    }

    #[test]
    fn a_round_trip_is_known_if_one_of_two_nodes_has_measured_it() {
        let mut proximity = Proximity::new(2);
        assert_eq!(proximity.measured(NodeId(0), NodeId(1)), None);
        proximity.note_told(NodeId(1), vec![7, 0], 5);
        assert_eq!(proximity.measured(NodeId(0), NodeId(1)), Some(700));
    }
}
