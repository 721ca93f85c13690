//! Exhaustive search of the closing of a log (§5.2): three voters, leaders that replace each other,
//! and one that dies at any point of its closing.
//!
//! Every order of these steps is visited: a node follows an epoch and reports its log, a leader
//! takes the best log, a follower takes the leader's log or its next entry, the manager decides
//! that a log is closed, a leader executes a transaction, a leader restarts, the manager decides
//! another epoch. In some of these the leader stays. What a majority has is in the log of every
//! later leader, each epoch is closed with one end, and a version names the same log everywhere.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use pangea_core::hash::HashSet;
use pangea_core::ids::{NodeId, SnapshotVersion};

use super::super::closing::best_of;
use super::super::versions::{Epoch, start_of};
use super::super::watermark::commit_point;
use crate::exhaustive::IS_LARGE;

const NODES: usize = 3;

/// A deliberate error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A new leader takes the log of the first node that reports.
    FirstTailTaken,
    /// A new leader asks no other node.
    AsksNobody,
    /// A follower has the log of a new leader when it has the first part.
    PartTaken,
    /// A node acknowledges entries of a leader that was replaced.
    OldAcked,
    /// The log of a replica counts as one of a later epoch if its leader stays in that.
    RankRaised,
    /// A leader goes on before a majority has its log.
    BeginsAlone,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// The last epoch of which it has heard, and the epoch of the leader that it follows.
    heard: u64,
    promised: u64,
    /// The epoch of its log.
    epoch: u64,
    log: Vec<SnapshotVersion>,
    /// Whether it leads, and executes transactions.
    leads: bool,
    executes: bool,
    /// As a leader: the logs that the others have reported, and how much of its own they have.
    reports: [Option<(Epoch, SnapshotVersion)>; NODES],
    acked: [Option<SnapshotVersion>; NODES],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [Node; NODES],
    /// The last epoch, its leader, and since when that leads.
    number: u64,
    leader: usize,
    since: u64,
    /// The ends with which epochs have begun.
    ends: Vec<(u64, SnapshotVersion)>,
    committed: BTreeSet<SnapshotVersion>,
    epochs: u8,
    stays: u8,
    entries: u8,
    restarts: u8,
    is_wrong: bool,
}

impl Node {
    fn last(&self) -> SnapshotVersion {
        self.log.last().copied().unwrap_or_default()
    }

    fn rank(&self) -> (Epoch, SnapshotVersion) {
        (Epoch(self.epoch), self.last())
    }
}

impl World {
    fn first(epochs: u8, restarts: u8) -> Self {
        let mut nodes: [Node; NODES] = Default::default();
        for node in &mut nodes {
            (node.heard, node.promised, node.epoch) = (1, 1, 1);
        }
        (nodes[0].leads, nodes[0].executes) = (true, true);
        nodes[0].acked = [Some(SnapshotVersion::ZERO); NODES];
        Self {
            nodes,
            number: 1,
            leader: 0,
            since: 1,
            ends: vec![(1, SnapshotVersion::ZERO)],
            committed: BTreeSet::new(),
            epochs,
            stays: 1,
            entries: 2,
            restarts,
            is_wrong: false,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        change(&mut world);
        world
    }

    /// A node hears of the last epoch, and reports its log to a new leader.
    fn hear(&mut self, at: usize, mistake: Option<Mistake>) {
        let (number, since, leader) = (self.number, self.since, self.leader);
        let node = &mut self.nodes[at];
        node.heard = number;
        if mistake == Some(Mistake::RankRaised) && node.epoch == since {
            node.epoch = number;
        }
        if node.promised == since {
            return;
        }
        let log = (node.epoch, std::mem::take(&mut node.log));
        *node = Node { heard: number, promised: since, leads: at == leader, ..Node::default() };
        (node.epoch, node.log) = log;
    }

    /// The leader's log is taken by a follower: as a whole, or the next entry.
    fn deliver(&mut self, from: usize, to: usize, mistake: Option<Mistake>) {
        let leader = self.nodes[from].clone();
        let node = &mut self.nodes[to];
        if node.epoch == leader.epoch && leader.log.starts_with(&node.log) {
            let next = node.log.len() + 1;
            node.log = leader.log[..next.min(leader.log.len())].to_vec();
        } else {
            node.epoch = leader.epoch;
            let is_part = mistake == Some(Mistake::PartTaken);
            let count = if is_part { leader.log.len().min(1) } else { leader.log.len() };
            node.log = leader.log[..count].to_vec();
        }
        let last = node.last();
        self.nodes[from].acked[to] = Some(last);
        self.commit(from);
    }

    fn commit(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.acked[at] = Some(node.last());
        let point = commit_point(&node.acked);
        if node.executes {
            let all = node.log.iter().copied().filter(|version| Some(*version) <= point);
            self.committed.extend(all);
        }
    }

    /// The worlds after each possible step.
    fn next(&self, mistake: Option<Mistake>) -> Vec<Self> {
        let mut all = Vec::new();
        for at in 0..NODES {
            let node = &self.nodes[at];
            if node.heard < self.number {
                all.push(self.with(|world| world.hear(at, mistake)));
            }
            if node.leads {
                self.steps_of_leader(at, mistake, &mut all);
            }
            if self.restarts > 0 {
                all.push(self.with(|world| {
                    world.restarts -= 1;
                    (world.nodes[at].leads, world.nodes[at].executes) = (false, false);
                }));
            }
            if self.epochs > 0 {
                all.push(self.with(|world| {
                    (world.epochs, world.number) = (world.epochs - 1, world.number + 1);
                    (world.leader, world.since) = (at, world.number);
                }));
            }
        }
        if self.stays > 0 {
            all.push(self.with(|world| {
                (world.stays, world.number) = (world.stays - 1, world.number + 1);
            }));
        }
        all
    }

    fn steps_of_leader(&self, at: usize, mistake: Option<Mistake>, all: &mut Vec<Self>) {
        let node = &self.nodes[at];
        let others = (0..NODES).filter(|other| *other != at);
        if node.epoch < node.promised {
            for other in others {
                let follows = self.nodes[other].promised == node.promised;
                if follows && node.reports[other].is_none() {
                    let rank = self.nodes[other].rank();
                    all.push(self.with(|world| world.nodes[at].reports[other] = Some(rank)));
                }
            }
            let reported = node.reports.iter().enumerate();
            let reported = reported.filter_map(|(of, rank)| Some((NodeId(of as u16), (*rank)?)));
            let reported: Vec<_> = reported.collect();
            if !reported.is_empty() || mistake == Some(Mistake::AsksNobody) {
                let best = match mistake {
                    Some(Mistake::FirstTailTaken) => reported[0].0,
                    _ => best_of((NodeId(at as u16), node.rank()), reported.into_iter()),
                };
                let log = self.nodes[best.index()].log.clone();
                all.push(self.with(|world| {
                    let node = &mut world.nodes[at];
                    (node.epoch, node.log) = (node.promised, log);
                    world.commit(at);
                }));
            }
            return;
        }
        for other in others {
            let peer = &self.nodes[other];
            let follows = peer.promised == node.promised
                || mistake == Some(Mistake::OldAcked) && peer.promised > node.promised;
            let has_all = peer.epoch == node.epoch && peer.log == node.log;
            let is_known = node.acked[other] == Some(peer.last());
            if follows && !peer.leads && !(has_all && is_known) {
                all.push(self.with(|world| world.deliver(at, other, mistake)));
            }
        }
        let point = commit_point(&node.acked);
        let is_closed = point >= Some(node.last()) || mistake == Some(Mistake::BeginsAlone);
        if !node.executes && is_closed && node.promised == self.since {
            all.push(self.with(|world| {
                let (epoch, end) = (node.epoch, node.last());
                world.is_wrong |= world.ends.iter().any(|it| it.0 == epoch && it.1 != end);
                world.ends.push((epoch, end));
                // Whatever is in the log is published.
                world.committed.extend(world.nodes[at].log.clone());
                world.nodes[at].executes = true;
                world.commit(at);
            }));
        }
        if node.executes && self.entries > 0 {
            all.push(self.with(|world| {
                world.entries -= 1;
                let node = &mut world.nodes[at];
                let version = node.last().max(start_of(Epoch(node.heard))).next();
                node.log.push(version);
                world.commit(at);
            }));
        }
    }

    fn violation(&self) -> Option<String> {
        if self.is_wrong {
            return Some("an epoch has begun with two ends".to_owned());
        }
        for node in self.nodes.iter().filter(|node| node.executes && node.promised == self.since) {
            if let Some(lost) = self.committed.iter().find(|it| !node.log.contains(it)) {
                return Some(format!("{lost} is lost"));
            }
        }
        let logs: Vec<&[SnapshotVersion]> = self.nodes.iter().map(|node| &node.log[..]).collect();
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let place = |log: &[SnapshotVersion], it| log.iter().position(|of| *of == it);
            for (at, version) in logs[one].iter().enumerate() {
                if let Some(there) = place(logs[other], *version)
                    && logs[one][..at] != logs[other][..there]
                {
                    return Some(format!("{version} names two logs"));
                }
            }
        }
        None
    }
}

/// Visits all worlds, and counts them. Stops at the first violation.
fn search((epochs, restarts): (u8, u8), mistake: Option<Mistake>) -> (usize, Option<String>) {
    let digest = |world: &World| {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        hasher.finish()
    };
    let mut left = vec![World::first(epochs, restarts)];
    let mut seen: HashSet<u64> = left.iter().map(digest).collect();
    while let Some(world) = left.pop() {
        if let Some(violation) = world.violation() {
            return (seen.len(), Some(format!("{violation}: {world:?}")));
        }
        let next = world.next(mistake);
        left.extend(next.into_iter().filter(|world| seen.insert(digest(world))));
    }
    (seen.len(), None)
}

/// The numbers of epochs and of restarts. The last ones take minutes.
const ALL: [(u8, u8); 4] = [(1, 1), (2, 0), (2, 1), (3, 0)];
const QUICK: usize = 2;

/// Lemma 4: every epoch is closed once, with one end.
#[test]
fn a_log_is_closed_once_whenever_leaders_are_replaced_or_die() {
    for bounds in ALL.into_iter().take(if IS_LARGE { ALL.len() } else { QUICK }) {
        let (count, found) = search(bounds, None);
        println!("{bounds:?}: {count} worlds");
        assert_eq!(found, None, "{bounds:?}");
        assert!(count > 10_000, "{bounds:?}: {count} worlds");
    }
}

#[test]
fn every_mistake_in_the_closing_of_a_log_is_found() {
    for mistake in [
        Mistake::FirstTailTaken,
        Mistake::AsksNobody,
        Mistake::PartTaken,
        Mistake::OldAcked,
        Mistake::RankRaised,
        Mistake::BeginsAlone,
    ] {
        let all = [(1, 0), (2, 0)].into_iter().map(|bounds| search(bounds, Some(mistake)));
        let found = all.into_iter().find_map(|(count, found)| Some((count, found?)));
        let (count, found) = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: after {count} worlds: {found}");
    }
}

/// The choice of a log, and the count of those that have it, are those of leaders.
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_of_closings_are_found() {
    use pangea_core::planted::{Bug, Planted};

    for bug in [Bug::MakoFirstTailTaken, Bug::MakoOwnEntrySuffices] {
        let planted = Planted::new(Some(bug));
        let (count, found) = search((2, 0), None);
        drop(planted);
        let found = found.unwrap_or_else(|| panic!("{bug} is not found"));
        println!("{bug}: after {count} worlds: {found}");
    }
}
