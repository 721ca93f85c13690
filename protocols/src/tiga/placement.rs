//! The choice of the leaders of a view: one replica of each shard, all in one region if possible,
//! so that they agree quickly (§3.8), or where the settings want them.
//!
//! Leaders that have failed are replaced at once. Those that are merely in the wrong place are
//! moved when the better place has been there for a while:
//!
//! ```text
//!   region a   leaders  x . . . . back . . . . . . . . . . .  leaders
//!   region b            leaders                 view decided  x
//!                                 |-- move_ms --|
//! ```
//!
//! The same holds for leaders that too few others hear, although the view manager hears them, and
//! for leaders that do not hear each other: they can't commit anything. Those that can take their
//! place, the first one with the fewest such links, and each attempt doubles the time before the
//! next, too.
//!
//! A region may lack replicas of some shards. Leaders that should be there are together in the
//! nearest region that has all shards. If there is none, each is in the nearest region with a
//! replica of its shard. Regions of the leaders are then compared by the longest way between two of
//! them.
//!
//! The old leaders go on until the view is decided. A region that comes and goes must not take the
//! leaders along each time, so that each move doubles the time before the next.

use std::cmp::Reverse;

use pangea_core::ids::{NodeId, RegionId, ShardId};
use pangea_core::time::{Span, Timestamp};
use pangea_core::topology::Topology;

use super::log::{Position, ViewNumber};
use super::state::State;

/// A replica that lacks more cells than this does not become a leader without need.
const BEHIND_MAX: u64 = 1_000;

/// The time before a move doubles at most this often.
const DOUBLINGS_MAX: u32 = 6;

/// After this number of waiting times in the right place, the next one is short again.
const CALM: u64 = 10;

/// Where the leaders should be (§3.8, §5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Preference {
    /// In one region, whichever.
    Together,
    /// In these regions, in the order of the shards.
    In(Vec<RegionId>),
    /// Each shard's leader in another region.
    Rotated,
}

impl Preference {
    /// The score of leaders that agree with it.
    fn best(&self, topology: &Topology) -> usize {
        match self {
            Self::Together => 1,
            Self::In(_) => 2,
            Self::Rotated => usize::from(topology.partitions.shards()),
        }
    }

    /// How well the leaders, in the order of their shards, agree with the preference.
    fn score(&self, topology: &Topology, leaders: &[NodeId]) -> usize {
        let regions = || leaders.iter().map(|node| topology.nodes[node.index()].region);
        let are_together = regions().all(|region| Some(region) == regions().next());
        match self {
            Self::Together => usize::from(are_together),
            Self::In(homes) if regions().eq(homes.iter().copied()) => 2,
            Self::In(_) => usize::from(are_together),
            Self::Rotated => {
                let turns = (0..).map(|shard| turn_of(topology, ShardId(shard)));
                regions().zip(turns).filter(|(region, turn)| region == turn).count()
            }
        }
    }

    /// The region where the leader of a shard should be.
    fn home_of(&self, topology: &Topology, shard: ShardId) -> Option<RegionId> {
        match self {
            Self::Together => None,
            Self::In(homes) => homes.get(usize::from(shard.0)).copied(),
            Self::Rotated => Some(turn_of(topology, shard)),
        }
    }
}

/// The region of a shard's leader if leaders are rotated: the next one that has a replica.
pub(super) fn turn_of(topology: &Topology, shard: ShardId) -> RegionId {
    let count = topology.regions.len() as u16;
    let mut turns = (0..count).map(|turn| RegionId((shard.0 + turn) % count));
    let next = turns.find(|region| topology.voter_at(*region, shard).is_some());
    next.unwrap_or(RegionId(shard.0 % count))
}

/// The configured round trip between two regions, in microseconds.
fn round_trip_us(topology: &Topology, one: RegionId, other: RegionId) -> u64 {
    let (one, other) = (usize::from(one.0), usize::from(other.0));
    if one == other { 0 } else { topology.one_way[one][other].us + topology.one_way[other][one].us }
}

/// The regions of the leaders, in the order of their shards, if they should be in a region: all of
/// them there, or in the nearest region with all shards, or else each as near as possible.
pub(super) fn homes_near(topology: &Topology, home: RegionId) -> Vec<RegionId> {
    let regions = || (0..topology.regions.len() as u16).map(RegionId);
    let distance =
        |region: &RegionId| (*region != home, round_trip_us(topology, home, *region), *region);
    let shards = (0..topology.partitions.shards()).map(ShardId);
    if let Some(whole) = regions().filter(|it| topology.is_whole(*it)).min_by_key(distance) {
        return shards.map(|_| whole).collect();
    }
    let nearest = |shard| {
        let has_it = |region: &RegionId| topology.voter_at(*region, shard).is_some();
        regions().filter(has_it).min_by_key(distance).unwrap_or(home)
    };
    shards.map(nearest).collect()
}

/// Where leaders can be together: in each region that has all shards; or else near each region.
pub(super) fn all_homes(topology: &Topology) -> Vec<Vec<RegionId>> {
    let regions = || (0..topology.regions.len() as u16).map(RegionId);
    let has_whole = regions().any(|region| topology.is_whole(region));
    let homes = regions().filter(|region| !has_whole || topology.is_whole(*region));
    homes.map(|home| homes_near(topology, home)).collect()
}

/// Where leaders should be if nothing is known of the clients: in one region, or else in those that
/// are the nearest to each other.
pub(super) fn anywhere(topology: &Topology) -> Preference {
    let spread = |homes: &Vec<RegionId>| {
        let trips = homes.iter().flat_map(|one| homes.iter().map(|other| (*one, *other)));
        trips.map(|(one, other)| round_trip_us(topology, one, other)).max().unwrap_or_default()
    };
    let all = all_homes(topology);
    let is_one = |homes: &Vec<RegionId>| homes.iter().all(|home| *home == homes[0]);
    match all.iter().any(is_one) {
        true => Preference::Together,
        // Of equal ones the first.
        false => all.into_iter().min_by_key(spread).map_or(Preference::Together, Preference::In),
    }
}

/// The plans of a view manager for its next move.
#[derive(Clone, Debug, Default)]
pub(super) struct Plans {
    /// Better leaders, and since when they have been there.
    better: Option<(Timestamp, Vec<NodeId>)>,
    /// The number of moves of late.
    moves: u32,
}

impl Plans {
    /// Whether it is time for a move to better leaders. The present view began at `began`.
    fn is_due(&mut self, now: Timestamp, began: Timestamp, rest: Span, better: &[NodeId]) -> bool {
        let rest = Span::from_us(rest.us << self.moves.min(DOUBLINGS_MAX));
        if self.better.as_ref().is_none_or(|(_, leaders)| leaders != better) {
            self.better = Some((now, better.to_vec()));
        }
        let since = self.better.as_ref().map_or(now, |(since, _)| *since);
        let is_due = now.since(since.max(began)) >= rest;
        if is_due {
            *self = Self { better: None, moves: self.moves + 1 };
        }
        is_due
    }

    /// The present leaders are in the right place.
    fn note_calm(&mut self, now: Timestamp, began: Timestamp, rest: Span) {
        self.better = None;
        if now.since(began).us >= (CALM * rest.us) << self.moves.min(DOUBLINGS_MAX) {
            self.moves = 0;
        }
    }
}

/// How well a replica would lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fitness {
    /// Whether it is not a leader that has failed in the present view.
    pub is_sound: bool,
    /// The view of its log, and the position of its last cell.
    pub last: (ViewNumber, Position),
}

/// The number of pairs of leaders that do not hear each other.
fn unlinked(leaders: &[NodeId], are_linked: impl Fn(NodeId, NodeId) -> bool) -> usize {
    let pairs = leaders
        .iter()
        .enumerate()
        .flat_map(|(at, one)| leaders[..at].iter().map(move |other| (*one, *other)));
    pairs.filter(|(one, other)| !are_linked(*one, *other)).count()
}

/// What is known of the links between nodes.
pub(super) struct Links<L, D> {
    /// Whether two nodes hear each other.
    pub are_linked: L,
    /// The round trip between two nodes in microseconds.
    pub round_trip_us: D,
}

/// Chooses the leaders, in the order of their shards. `fitness` is `None` for a replica that can't
/// lead. Returns `None` if a shard has no other.
///
/// The leader of the first shard comes first: it is in a region with sound replicas of many shards.
/// The others hear it and each other if they can, and are in its region if they can be, or else
/// near it. Present leaders stay, if nothing else matters.
pub(super) fn place(
    topology: &Topology,
    preference: &Preference,
    present: &[NodeId],
    fitness: impl Fn(NodeId) -> Option<Fitness>,
    links: &Links<impl Fn(NodeId, NodeId) -> bool, impl Fn(NodeId, NodeId) -> u64>,
) -> Option<Vec<NodeId>> {
    let region = |node: NodeId| topology.nodes[node.index()].region;
    let shard = |node: NodeId| topology.nodes[node.index()].shard;
    let is_sound = |node: &NodeId| fitness(*node).is_some_and(|fit| fit.is_sound);
    let sound_in = |home: RegionId| topology.nodes_in(home).filter(is_sound).count();
    let shards = || (0..topology.partitions.shards()).map(ShardId);
    let is_home_sound = |of: ShardId| {
        let home = preference.home_of(topology, of);
        let is_there = |node: NodeId| shard(node) == of && Some(region(node)) == home;
        topology.voter_ids().any(|node| is_there(node) && is_sound(&node))
    };
    let are_homes_sound = shards().all(is_home_sound);
    let is_rotated = *preference == Preference::Rotated;
    let distance = |one: NodeId, other: NodeId| match region(one) == region(other) {
        true => 0,
        false => (links.round_trip_us)(one, other),
    };
    // The replicas of a shard, the best one first, if others have these leaders.
    let ranked = |of: ShardId, leaders: &[NodeId]| -> Vec<NodeId> {
        let first = leaders.first().copied();
        let home = preference.home_of(topology, of);
        let rank = |node: NodeId| {
            let Fitness { is_sound, last } = fitness(node)?;
            let links = leaders.iter().filter(|it| (links.are_linked)(node, **it)).count();
            let is_at_home = home == Some(region(node));
            let company = match first {
                _ if is_rotated => usize::from(is_at_home),
                Some(first) => usize::from(region(first) == region(node)),
                None => sound_in(region(node)),
            };
            let nearness = match is_rotated {
                true => None,
                false => leaders.iter().map(|leader| distance(node, *leader)).max().map(Reverse),
            };
            let is_home = !is_rotated && is_at_home && are_homes_sound;
            let is_present = present.contains(&node);
            Some((is_sound, links, is_home, company, nearness, is_present, last, Reverse(node)))
        };
        let fit = topology.node_ids().filter(|node| shard(*node) == of);
        let mut fit: Vec<_> = fit.filter_map(|node| Some((rank(node)?, node))).collect();
        fit.sort_unstable_by(|one, other| other.cmp(one));
        fit.into_iter().map(|(_, node)| node).collect()
    };
    let beside = |first: NodeId| {
        let mut leaders = vec![first];
        for of in shards().skip(1) {
            leaders.push(*ranked(of, &leaders).first()?);
        }
        Some(leaders)
    };
    let shard_count = usize::from(topology.partitions.shards());
    let is_any_whole = topology.nodes.iter().any(|it| sound_in(it.region) == shard_count);
    let cost = |leaders: &[NodeId]| {
        let sound = leaders.iter().filter(|leader| is_sound(leader)).count();
        let weakness = leaders.len() - sound + unlinked(leaders, &links.are_linked);
        let is_wanted = is_rotated || are_homes_sound && preference.score(topology, leaders) == 2;
        (weakness, if is_any_whole || is_wanted { 0 } else { spread(leaders, distance) })
    };
    cheapest(ranked(ShardId(0), &[]).into_iter().filter_map(beside), cost)
}

/// The longest way between two leaders.
fn spread(leaders: &[NodeId], distance: impl Fn(NodeId, NodeId) -> u64) -> u64 {
    let pairs = leaders.iter().flat_map(|one| leaders.iter().map(|other| (*one, *other)));
    pairs.map(|(one, other)| distance(one, other)).max().unwrap_or_default()
}

/// The first leaders with the least cost. None after those that cost nothing are looked at.
fn cheapest(
    candidates: impl Iterator<Item = Vec<NodeId>>,
    cost: impl Fn(&[NodeId]) -> (usize, u64),
) -> Option<Vec<NodeId>> {
    let mut chosen: Option<((usize, u64), Vec<NodeId>)> = None;
    for leaders in candidates {
        let cost = cost(&leaders);
        if chosen.as_ref().is_none_or(|(least, _)| cost < *least) {
            chosen = Some((cost, leaders));
        }
        if cost == (0, 0) {
            break;
        }
    }
    chosen.map(|(_, leaders)| leaders)
}

impl State {
    /// The number of leaders that too few replicas of their shards hear, and of pairs of leaders
    /// that do not hear each other.
    fn weakness(&self, leaders: &[NodeId], now: Timestamp) -> usize {
        if self.are_all_linked(now) {
            return 0;
        }
        let weak = leaders.iter().filter(|leader| !self.can_be_followed(**leader, now)).count();
        weak + unlinked(leaders, |one, other| self.are_linked(one, other, now))
    }

    /// The leaders of a view that begins because links are lost, although the view manager hears
    /// all present ones: too few replicas hear a leader, or leaders do not hear each other, and
    /// others have been better for a while.
    pub(super) fn better_linked(&mut self, now: Timestamp) -> Option<Vec<NodeId>> {
        let (present, rest) = (self.views.view.leaders.clone(), self.doubt());
        let weakness = self.weakness(&present, now);
        let is_better = |next: &Vec<NodeId>| self.weakness(next, now) < weakness;
        let better = if weakness == 0 { None } else { self.candidates(now).filter(is_better) };
        let began = self.views.since;
        let Some(better) = better else {
            self.views.mends.note_calm(now, began, rest);
            return None;
        };
        self.views.mends.is_due(now, began, rest, &better).then_some(better)
    }

    /// The leaders of a view that begins although all present ones are well: they are in the wrong
    /// place, and the right one has been there for a while.
    pub(super) fn planned_move(&mut self, now: Timestamp) -> Option<Vec<NodeId>> {
        let (rest, preference) = (Span::from_ms(self.options.move_ms), self.preference());
        let present = self.views.view.leaders.clone();
        let last_of = |leader: NodeId| self.told_by(leader).last;
        let is_near = |(next, leader): (&NodeId, &NodeId)| {
            let ((view, last), (of, end)) = (last_of(*next), last_of(*leader));
            view == of && last.0 + BEHIND_MAX >= end.0
        };
        let score = |leaders: &[NodeId]| preference.score(&self.cluster, leaders);
        let (at_present, weakness) = (score(&present), self.weakness(&present, now));
        let is_better =
            |next: &Vec<NodeId>| score(next) > at_present && self.weakness(next, now) <= weakness;
        let better = if at_present == preference.best(&self.cluster) {
            None
        } else {
            self.candidates(now).filter(is_better)
        };
        let better = better.filter(|next| next.iter().zip(&present).all(is_near));
        let began = self.views.since;
        let Some(better) = better else {
            self.views.plans.note_calm(now, began, rest);
            return None;
        };
        self.views.plans.is_due(now, began, rest, &better).then_some(better)
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::partition::{Partitions, Rule};
    use pangea_core::time::Span;
    use pangea_core::topology::Replicas;

    use super::*;

    /// Nodes 0, 2, 4 have shard 0, and 1, 3, 5 have shard 1.
    fn two_shards() -> Topology {
        let whole = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        whole.divided(Partitions::new(2, Rule::Everywhere))
    }

    type OfNodes<T> = fn(NodeId, NodeId) -> T;

    fn all_linked() -> Links<OfNodes<bool>, OfNodes<u64>> {
        Links { are_linked: |_, _| true, round_trip_us: |_, _| 50_000 }
    }

    fn of(leaders: Option<Vec<NodeId>>) -> Option<Vec<u16>> {
        leaders.map(|all| all.iter().map(|it| it.0).collect())
    }

    fn is(leaders: &[u16]) -> Option<Vec<u16>> {
        Some(leaders.to_vec())
    }

    fn sound(position: u64) -> Option<Fitness> {
        Some(Fitness { is_sound: true, last: (ViewNumber(1), Position(position)) })
    }

    #[test]
    fn leaders_are_together_where_all_shards_have_a_sound_replica() {
        let topology = two_shards();
        let place = |present: &[NodeId], fitness: &dyn Fn(NodeId) -> Option<Fitness>| {
            of(place(&topology, &Preference::Together, present, fitness, &all_linked()))
        };
        assert_eq!(place(&[], &|_| sound(0)), is(&[0, 1]));
        let present = [NodeId(2), NodeId(3)];
        assert_eq!(place(&present, &|_| sound(0)), is(&[2, 3]), "they stay");
        let without = |lost: u16| move |node: NodeId| sound(0).filter(|_| node.0 != lost);
        assert_eq!(place(&present, &without(3)), is(&[0, 1]), "both move");
        let one_each = |node: NodeId| sound(0).filter(|_| [0, 3].contains(&node.0));
        assert_eq!(place(&present, &one_each), is(&[0, 3]), "apart is better than nothing");
        let of_one = |node: NodeId| sound(0).filter(|_| node.0.is_multiple_of(2));
        assert_eq!(place(&present, &of_one), None, "a shard without a replica");
    }

    #[test]
    fn of_equal_replicas_the_one_with_the_longest_log_leads_and_a_failed_leader_is_the_last_resort()
    {
        let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        let present = [NodeId(0)];
        let place = |fitness: &dyn Fn(NodeId) -> Option<Fitness>| {
            place(&topology, &Preference::Together, &present, fitness, &all_linked())
        };
        let failed = Some(Fitness { is_sound: false, last: (ViewNumber(1), Position(9)) });
        let of = |node: NodeId| if node.0 == 0 { failed } else { sound(node.0.into()) };
        assert_eq!(place(&of), Some(vec![NodeId(2)]));
        assert_eq!(place(&|node| of(node).filter(|_| node.0 == 0)), Some(vec![NodeId(0)]));
    }

    #[test]
    fn leaders_are_in_their_region_while_it_is_whole_or_in_a_region_each() {
        let topology = two_shards();
        let present = [NodeId(0), NodeId(1)];
        let without = |lost: u16| move |node: NodeId| sound(0).filter(|_| node.0 != lost);
        let home = &Preference::In(vec![RegionId(1); 2]);
        let place = |preference, fitness: &dyn Fn(NodeId) -> Option<Fitness>| {
            of(place(&topology, preference, &present, fitness, &all_linked()))
        };
        assert_eq!(place(home, &without(9)), is(&[2, 3]));
        assert_eq!(place(home, &without(3)), is(&[0, 1]));
        assert_eq!(place(&Preference::Rotated, &without(9)), is(&[0, 3]));
        assert_eq!(place(&Preference::Rotated, &without(3)), is(&[0, 1]));
        let score = |preference: &Preference, leaders: [u16; 2]| {
            preference.score(&topology, &leaders.map(NodeId))
        };
        assert_eq!([[0, 1], [2, 3], [0, 3]].map(|it| score(home, it)), [1, 2, 0]);
        assert_eq!([[0, 1], [2, 3], [0, 3]].map(|it| score(&Preference::Together, it)), [1, 1, 0]);
        assert_eq!([[0, 1], [2, 1], [0, 3]].map(|it| score(&Preference::Rotated, it)), [1, 0, 2]);
    }

    /// Four regions in a row, 10 ms apart.
    fn in_a_row(replicas: &str) -> Topology {
        let names = ["a", "b", "c", "d"];
        let mut row = Topology::one_node_per_region("t", &names, Span::ZERO);
        for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
            row.one_way[from][to] = Span::from_ms(10 * from.abs_diff(to) as u64);
        }
        let replicas = Replicas::parse(replicas, &row.regions).unwrap();
        let shards = replicas.shards() as u16;
        row.placed(Partitions::new(shards, Rule::Everywhere), &replicas).unwrap()
    }

    fn regions(all: &[u16]) -> Vec<RegionId> {
        all.iter().copied().map(RegionId).collect()
    }

    #[test]
    fn a_region_without_all_shards_has_its_leaders_in_the_nearest_one_or_each_as_near_as_possible()
    {
        let near = |topology: &Topology, home: u16| homes_near(topology, RegionId(home));
        let whole = in_a_row("a,b,c/b,c,d");
        assert_eq!([0, 1, 2, 3].map(|it| near(&whole, it)[0].0), [1, 1, 2, 2]);
        assert_eq!(all_homes(&whole), [regions(&[1, 1]), regions(&[2, 2])]);
        assert_eq!(anywhere(&whole), Preference::Together);
        let apart = in_a_row("a,b/c,d");
        assert_eq!(near(&apart, 0), regions(&[0, 2]));
        assert_eq!(near(&apart, 3), regions(&[1, 3]));
        assert_eq!(anywhere(&apart), Preference::In(regions(&[1, 2])), "the least way");
        let turns = |topology: &Topology| [0, 1].map(|shard| turn_of(topology, ShardId(shard)).0);
        assert_eq!((turns(&whole), turns(&apart)), ([0, 1], [0, 2]));
    }

    #[test]
    fn leaders_without_a_common_region_are_near_each_other() {
        // Nodes 0 and 1 have the first shard, in a and b; 2 and 3 the second one, in c and d.
        let topology = in_a_row("a,b/c,d");
        let round_trip_us = |one: NodeId, other: NodeId| u64::from(one.0.abs_diff(other.0));
        let links = Links { are_linked: |_, _| true, round_trip_us };
        let place = |preference: &Preference, fitness: &dyn Fn(NodeId) -> Option<Fitness>| {
            of(place(&topology, preference, &[NodeId(0), NodeId(3)], fitness, &links))
        };
        let without = |lost: u16| move |node: NodeId| sound(0).filter(|_| node.0 != lost);
        let preference = anywhere(&topology);
        assert_eq!(place(&preference, &without(9)), is(&[1, 2]));
        assert_eq!(place(&preference, &without(1)), is(&[0, 2]), "one is not there");
        assert_eq!(place(&preference, &without(2)), is(&[1, 3]));
        let home = Preference::In(homes_near(&topology, RegionId(0)));
        assert_eq!(place(&home, &without(9)), is(&[0, 2]), "as the settings say");
        assert_eq!(place(&home, &without(0)), is(&[1, 2]));
    }

    #[test]
    fn leaders_hear_each_other_if_any_choice_permits_that() {
        let topology = two_shards();
        let place = |lost: &[[u16; 2]], fitness: &dyn Fn(NodeId) -> Option<Fitness>| {
            let are_linked = |one: NodeId, other: NodeId| {
                !lost.iter().any(|pair| pair.contains(&one.0) && pair.contains(&other.0))
            };
            let present = [NodeId(0), NodeId(1)];
            let links = Links { are_linked, round_trip_us: |_, _| 50_000 };
            of(place(&topology, &Preference::Together, &present, fitness, &links))
        };
        let all = |_: NodeId| sound(0);
        assert_eq!(place(&[], &all), is(&[0, 1]));
        assert_eq!(place(&[[0, 1]], &all), is(&[0, 3]), "node 0 hears another one");
        assert_eq!(place(&[[0, 1], [0, 3], [0, 5]], &all), is(&[2, 3]), "it hears none of them");
        let few = |node: NodeId| {
            let is_sound = node.0 % 2 == 1 || node.0 == 0;
            Some(Fitness { is_sound, last: (ViewNumber(1), Position(0)) })
        };
        let lost = [[0, 1], [0, 3], [0, 5]];
        assert_eq!(place(&lost, &few), is(&[0, 1]), "nobody is better");
    }

    #[test]
    fn a_region_that_comes_and_goes_takes_the_leaders_along_less_and_less() {
        let (ms, better) = (|ms| Timestamp::from_us(1_000 * ms), [NodeId(1)]);
        let rest = Span::from_ms(100);
        let mut plans = Plans::default();
        let mut moved_after = |began: u64| {
            let mut after = (began..).filter(|at| plans.is_due(ms(*at), ms(began), rest, &better));
            after.next().unwrap() - began
        };
        assert_eq!([1_000, 2_000, 3_000].map(&mut moved_after), [100, 200, 400]);
        plans.note_calm(ms(9_000), ms(3_000), rest);
        assert_eq!(plans.moves, 3, "not for long enough");
        plans.note_calm(ms(11_000), ms(3_000), rest);
        assert_eq!(plans.moves, 0);
        assert!(!plans.is_due(ms(12_000), ms(3_000), rest, &better), "it is seen now");
        assert!(!plans.is_due(ms(12_099), ms(3_000), rest, &[NodeId(2)]), "another one");
        assert!(!plans.is_due(ms(12_150), ms(3_000), rest, &[NodeId(2)]));
        assert!(plans.is_due(ms(12_199), ms(3_000), rest, &[NodeId(2)]));
    }
}
