//! Who should lead, beyond what an election settles: a replica that others reach, near to all.
//!
//! An election is content with any leader that a majority follows. A replica that reaches the
//! majority, and not the leader, would then have nobody to follow for as long as that lasts. So
//! replicas tell each other whom they hear, and one that more links are whole to than to the leader
//! asks for leadership.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::ids::NodeId;
use pangea_core::topology::Topology;

use super::{election_ticks, pid};

/// Notices that this replica takes no part although it hears the others.
///
/// A replica that promised a ballot of its own and then lost the election, or crashed, refuses the
/// leader's lower ballot, and the leader has no reason to take a higher one: `omnipaxos` leaves
/// that replica behind for good. So after a while it asks for leadership with a higher ballot,
/// which all will follow.
pub(super) struct Stall {
    ticks: u64,
    ticks_max: u64,
    heard: BTreeSet<u64>,
    heard_min: usize,
}

/// Elections end within this many timeouts; more means that nothing will come of it.
const ELECTION_TIMEOUTS_MAX: u64 = 6;

impl Stall {
    pub(super) fn new(me: NodeId, topology: &Topology) -> Self {
        // Of several that are stuck, one comes first.
        let ticks_max = election_ticks(topology) * (ELECTION_TIMEOUTS_MAX + u64::from(me.0));
        Self { ticks: 0, ticks_max, heard: BTreeSet::new(), heard_min: topology.majority() - 1 }
    }

    pub(super) fn on_heard(&mut self, peer: u64) {
        self.heard.insert(peer);
    }

    /// Counts a tick; true when it is time to do something, and then the count starts anew.
    pub(super) fn is_over(&mut self, is_following: bool) -> bool {
        self.ticks = if is_following { 0 } else { self.ticks + 1 };
        let is_over = self.ticks >= self.ticks_max && self.heard.len() >= self.heard_min;
        if is_following || self.ticks >= self.ticks_max {
            self.heard.clear();
            self.ticks = 0;
        }
        is_over
    }
}

/// Who hears whom, as far as this replica knows.
pub(super) struct Hearing {
    me: u64,
    ticks: u64,
    window_ticks: u64,
    /// Whom it has heard in this window.
    now: BTreeSet<u64>,
    /// Whom it heard in the last window, and itself.
    mine: BTreeSet<u64>,
    /// What the peers that it hears have said of themselves.
    theirs: BTreeMap<u64, BTreeSet<u64>>,
}

/// A replica that is heard says something within this many election timeouts.
const WINDOW_TIMEOUTS: u64 = 2;

impl Hearing {
    pub(super) fn new(me: NodeId, topology: &Topology) -> Self {
        let window_ticks = WINDOW_TIMEOUTS * election_ticks(topology);
        // Until the first window is over it hears everybody: nothing is known of who is away.
        let mine = topology.node_ids().map(pid).collect();
        let (now, theirs) = (BTreeSet::new(), BTreeMap::new());
        Self { me: pid(me), ticks: 0, window_ticks, now, mine, theirs }
    }

    pub(super) fn on_heard(&mut self, peer: u64) {
        self.now.insert(peer);
    }

    /// A peer says whom it hears.
    pub(super) fn on_hears(&mut self, peer: u64, hears: BTreeSet<u64>) {
        self.theirs.insert(peer, hears);
    }

    /// Counts a tick. At the end of a window, whom this replica heard in it, which it should tell
    /// its peers.
    pub(super) fn tick(&mut self) -> Option<BTreeSet<u64>> {
        self.ticks += 1;
        if self.ticks < self.window_ticks {
            return None;
        }
        self.ticks = 0;
        self.mine = std::mem::take(&mut self.now);
        self.mine.insert(self.me);
        let mine = &self.mine;
        self.theirs.retain(|peer, _| mine.contains(peer));
        Some(self.mine.clone())
    }

    /// Whom `replica` hears, if that is known here.
    fn heard_by(&self, replica: u64) -> Option<&BTreeSet<u64>> {
        if replica == self.me { Some(&self.mine) } else { self.theirs.get(&replica) }
    }

    /// To how many replicas the link is whole from `replica`: each of the two hears the other, as
    /// far as that is known here.
    fn reach(&self, replica: u64, nodes: u64) -> usize {
        let hears = |a: u64, b: u64| self.heard_by(a).is_none_or(|heard| heard.contains(&b));
        let is_whole = |other: &u64| hears(replica, *other) && hears(*other, replica);
        (1..=nodes).filter(|other| *other != replica).filter(is_whole).count()
    }
}

/// Brings leadership to the replica that reaches most others, and among these to the one that is
/// nearest to all, where decisions are made soonest.
///
/// Elections prefer the nearest only among equal ballots, so whoever was first at a start, or took
/// over while it was away, would lead for good.
pub(super) struct Preference {
    /// For each replica, from the farthest, how near it is to all others.
    centralities: Vec<u32>,
    ticks: u64,
    wait_ticks: u64,
    wait_ticks_min: u64,
}

/// The better replica has followed another for this long when it asks for leadership.
const PREFERENCE_TICKS: u64 = 100;

/// That is at least this many windows in which it is the better one.
const PREFERENCE_WINDOWS: u64 = 3;

/// The wait doubles with each attempt, up to this: leadership that comes and goes helps nobody.
const PREFERENCE_TICKS_MAX: u64 = 100_000;

impl Preference {
    pub(super) fn new(topology: &Topology, master: Option<NodeId>) -> Self {
        let of = |node| centrality(node, topology, master);
        let centralities = topology.node_ids().map(of).collect();
        let windows = PREFERENCE_WINDOWS * WINDOW_TIMEOUTS * election_ticks(topology);
        let wait_ticks = PREFERENCE_TICKS.max(windows);
        Self { centralities, ticks: 0, wait_ticks, wait_ticks_min: wait_ticks }
    }

    /// Counts a tick under this leader; true when it is time to ask for leadership.
    pub(super) fn is_due(&mut self, hearing: &Hearing, leader: Option<u64>) -> bool {
        let is_mine = leader == Some(hearing.me);
        let is_better = !is_mine && leader.is_some_and(|leader| self.is_better(hearing, leader));
        if !is_mine && !is_better {
            self.ticks = 0;
            return false;
        }
        self.ticks += 1;
        if self.ticks < self.wait_ticks {
            return false;
        }
        self.ticks = 0;
        if is_mine {
            // It led for as long as it waited: it does not come and go.
            self.wait_ticks = self.wait_ticks_min;
            return false;
        }
        self.wait_ticks = (self.wait_ticks * 2).min(PREFERENCE_TICKS_MAX);
        true
    }

    /// Whether this replica should lead in place of `leader`, and no other that it hears.
    fn is_better(&self, hearing: &Hearing, leader: u64) -> bool {
        let nodes = self.centralities.len() as u64;
        let rank = |id: u64| (hearing.reach(id, nodes), self.centralities[(id - 1) as usize]);
        let mine = rank(hearing.me);
        let others = hearing.mine.iter().copied().filter(|other| *other != hearing.me);
        mine > rank(leader) && others.map(rank).all(|other| mine > other)
    }
}

/// Nodes that are closer to all others make better leaders, and one that is named makes the best:
/// the rank from the far end.
pub(super) fn centrality(me: NodeId, topology: &Topology, master: Option<NodeId>) -> u32 {
    let distance = |node: NodeId| -> u64 {
        topology.node_ids().map(|other| topology.one_way_between(node, other).us).sum()
    };
    let rank = |node: NodeId| (Some(node) != master, distance(node), node);
    let is_farther = |other: &NodeId| rank(*other) > rank(me);
    topology.node_ids().filter(is_farther).count() as u32
}
