//! Leader preferences in addition to elections: a replica that the others reach, near to all of
//! them.
//!
//! An election accepts any leader that a majority follows. A replica that reaches the majority but
//! not the leader would have no leader to follow for as long as that lasts. Therefore replicas
//! inform each other of whom they hear. A replica that has more working links than the leader
//! campaigns for leadership.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::ids::NodeId;
use pangea_core::topology::Topology;

use super::{election_ticks, pid};

/// Detects that this replica does not participate although it hears its peers.
///
/// A replica may have promised its own ballot and then lost the election, or crashed. It then
/// rejects the leader's lower ballot, and the leader has no reason to take a higher one:
/// `omnipaxos` would leave that replica behind permanently. Therefore it campaigns after a while
/// with a higher ballot, which all replicas will follow.
pub(super) struct Stall {
    ticks: u64,
    ticks_max: u64,
    heard: BTreeSet<u64>,
    heard_min: usize,
}

/// Elections end within this number of timeouts; after more, the election has failed.
const ELECTION_TIMEOUTS_MAX: u64 = 6;

impl Stall {
    pub(super) fn new(me: NodeId, topology: &Topology) -> Self {
        // The offset makes one of several stuck replicas the first.
        let ticks_max = election_ticks(topology) * (ELECTION_TIMEOUTS_MAX + u64::from(me.0));
        Self { ticks: 0, ticks_max, heard: BTreeSet::new(), heard_min: topology.majority() - 1 }
    }

    pub(super) fn on_heard(&mut self, peer: u64) {
        self.heard.insert(peer);
    }

    /// Counts a tick. Returns whether it is time to campaign; the count then restarts.
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

/// The replicas that each replica hears, as far as this replica knows.
pub(super) struct Hearing {
    me: u64,
    ticks: u64,
    window_ticks: u64,
    /// The replicas heard in this window.
    now: BTreeSet<u64>,
    /// The replicas heard in the last window, and this replica itself.
    heard: BTreeSet<u64>,
    /// The replicas that each peer hears, as reported by the peers that this replica hears.
    heard_by_peers: BTreeMap<u64, BTreeSet<u64>>,
}

/// A connected replica sends a message within this number of election timeouts.
const WINDOW_TIMEOUTS: u64 = 2;

impl Hearing {
    pub(super) fn new(me: NodeId, topology: &Topology) -> Self {
        let window_ticks = WINDOW_TIMEOUTS * election_ticks(topology);
        // Until the first window ends all replicas count as heard, because nothing is known of
        // failures.
        let heard = topology.node_ids().map(pid).collect();
        let (now, heard_by_peers) = (BTreeSet::new(), BTreeMap::new());
        Self { me: pid(me), ticks: 0, window_ticks, now, heard, heard_by_peers }
    }

    pub(super) fn on_heard(&mut self, peer: u64) {
        self.now.insert(peer);
    }

    /// Records the replicas that a peer hears.
    pub(super) fn on_hears(&mut self, peer: u64, hears: BTreeSet<u64>) {
        self.heard_by_peers.insert(peer, hears);
    }

    /// Counts a tick. At the end of a window, returns the replicas heard in it, to be sent to the
    /// peers.
    pub(super) fn tick(&mut self) -> Option<BTreeSet<u64>> {
        self.ticks += 1;
        if self.ticks < self.window_ticks {
            return None;
        }
        self.ticks = 0;
        self.heard = std::mem::take(&mut self.now);
        self.heard.insert(self.me);
        let heard = &self.heard;
        self.heard_by_peers.retain(|peer, _| heard.contains(peer));
        Some(self.heard.clone())
    }

    /// The replicas that `replica` hears, if known.
    fn heard_by(&self, replica: u64) -> Option<&BTreeSet<u64>> {
        if replica == self.me { Some(&self.heard) } else { self.heard_by_peers.get(&replica) }
    }

    /// The number of replicas with a working link to `replica`: each of the two hears the other, as
    /// far as this replica knows.
    fn reach(&self, replica: u64, nodes: u64) -> usize {
        let hears = |a: u64, b: u64| self.heard_by(a).is_none_or(|heard| heard.contains(&b));
        let is_whole = |other: &u64| hears(replica, *other) && hears(*other, replica);
        (1..=nodes).filter(|other| *other != replica).filter(is_whole).count()
    }
}

/// Moves leadership to the replica that reaches most others. Among several it chooses the one
/// nearest to all, where decisions are fastest.
///
/// Elections prefer the nearest replica only among equal ballots. Therefore the first replica at a
/// start, or one that took over during a failure, would lead permanently.
pub(super) struct Preference {
    /// The rank of each replica by its distance to all others; the farthest has rank 0.
    centralities: Vec<u32>,
    ticks: u64,
    wait_ticks: u64,
    wait_ticks_min: u64,
}

/// The better replica campaigns after it has followed another for this long.
const PREFERENCE_TICKS: u64 = 100;

/// The minimum number of windows in which it must have been the better one.
const PREFERENCE_WINDOWS: u64 = 3;

/// The wait doubles with each attempt, up to this value, so that leadership does not flap.
const PREFERENCE_TICKS_MAX: u64 = 100_000;

impl Preference {
    pub(super) fn new(topology: &Topology, master: Option<NodeId>) -> Self {
        let of = |node| centrality(node, topology, master);
        let centralities = topology.node_ids().map(of).collect();
        let windows = PREFERENCE_WINDOWS * WINDOW_TIMEOUTS * election_ticks(topology);
        let wait_ticks = PREFERENCE_TICKS.max(windows);
        Self { centralities, ticks: 0, wait_ticks, wait_ticks_min: wait_ticks }
    }

    /// Counts a tick under this leader. Returns whether it is time to campaign.
    pub(super) fn is_due(&mut self, hearing: &Hearing, leader: Option<u64>) -> bool {
        let is_leader = leader == Some(hearing.me);
        let is_better = !is_leader && leader.is_some_and(|leader| self.is_better(hearing, leader));
        if !is_leader && !is_better {
            self.ticks = 0;
            return false;
        }
        self.ticks += 1;
        if self.ticks < self.wait_ticks {
            return false;
        }
        self.ticks = 0;
        if is_leader {
            // It has led for as long as it had waited, so leadership does not flap.
            self.wait_ticks = self.wait_ticks_min;
            return false;
        }
        self.wait_ticks = (self.wait_ticks * 2).min(PREFERENCE_TICKS_MAX);
        true
    }

    /// Whether this replica should lead in place of `leader`, and no other that it hears should.
    fn is_better(&self, hearing: &Hearing, leader: u64) -> bool {
        let nodes = self.centralities.len() as u64;
        let rank = |id: u64| (hearing.reach(id, nodes), self.centralities[(id - 1) as usize]);
        let own = rank(hearing.me);
        let others = hearing.heard.iter().copied().filter(|other| *other != hearing.me);
        own > rank(leader) && others.map(rank).all(|other| own > other)
    }
}

/// The rank of a node as a leader. Nodes that are closer to all others rank higher, and the
/// preferred master ranks highest; the farthest node has rank 0.
pub(crate) fn centrality(me: NodeId, topology: &Topology, master: Option<NodeId>) -> u32 {
    let distance = |node: NodeId| -> u64 {
        topology.node_ids().map(|other| topology.one_way_between(node, other).us).sum()
    };
    let rank = |node: NodeId| (Some(node) != master, distance(node), node);
    let is_farther = |other: &NodeId| rank(*other) > rank(me);
    topology.node_ids().filter(is_farther).count() as u32
}

#[cfg(test)]
mod tests {
    use pangea_core::time::Span;

    use super::*;

    fn topology() -> Topology {
        Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1))
    }

    #[test]
    fn a_replica_that_follows_nobody_campaigns_after_a_while_if_it_hears_enough() {
        let ticks = Stall::new(NodeId(1), &topology()).ticks_max;
        let over_at = |heard_at: u64, follows_at: u64| {
            let mut stall = Stall::new(NodeId(1), &topology());
            let is_over = |tick: &u64| {
                if *tick == heard_at {
                    stall.on_heard(1);
                }
                stall.is_over(*tick == follows_at)
            };
            (1..=3 * ticks).find(is_over)
        };
        assert_eq!(over_at(0, 0), None, "it hears nobody");
        assert_eq!(over_at(1, 0), Some(ticks));
        assert_eq!(over_at(6, 5), Some(ticks + 5), "the count begins anew");
        assert_eq!(over_at(1, 5), None, "what it heard before it followed is old");
        assert_eq!(over_at(ticks + 1, 0), Some(2 * ticks));
    }

    #[test]
    fn what_a_peer_heard_counts_as_long_as_it_is_heard_itself() {
        let mut hearing = Hearing::new(NodeId(0), &topology());
        let end_window = |hearing: &mut Hearing, heard: &[u64]| {
            heard.iter().for_each(|peer| hearing.on_heard(*peer));
            let told =
                (1..=hearing.window_ticks).filter_map(|_| hearing.tick()).collect::<Vec<_>>();
            let all = [1].into_iter().chain(heard.iter().copied()).collect();
            assert_eq!(told, [all], "one report at the end of the window");
        };
        assert_eq!(hearing.reach(3, 3), 2, "nothing is known of failures");
        hearing.on_hears(2, BTreeSet::from([1, 2]));
        assert_eq!(hearing.reach(3, 3), 1, "the second does not hear the third");
        end_window(&mut hearing, &[2, 3]);
        assert_eq!(hearing.reach(3, 3), 1);
        end_window(&mut hearing, &[3]);
        assert_eq!(hearing.reach(3, 3), 2, "the report of the second is old");
        assert_eq!(hearing.reach(2, 3), 1, "this replica does not hear it");
    }
}
