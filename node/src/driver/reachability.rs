//! Reachability of the other nodes, for operators and waiting clients.
//!
//! A cluster can agree if a majority of its nodes are connected to each other. A node that is
//! connected to fewer continues to serve snapshots, but everything that needs agreement waits, and
//! without these reports it would wait silently. A protocol may need more nodes than a majority at
//! its first start, which its status reports. A connection does not mean that a node keeps up
//! either: the status also names the lagging nodes that this one waits for. If tables are
//! partitioned, agreement is among the nodes of one shard, and a node also needs one node of each
//! other shard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pangea_core::ids::{NodeId, ShardId};
use pangea_core::protocol::{FirstStart, Rejoining, WaitsFor, Words};
use pangea_core::topology::{Group, Topology};

/// The nodes that this one can agree with.
#[derive(Debug)]
pub struct Reachability {
    me: NodeId,
    topology: Arc<Topology>,
    /// The replicas of this node's shard.
    group: Group,
    /// What the protocol calls an epoch.
    epoch: &'static str,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// The nodes that are connected to this one on both lanes, and this node.
    connected: BTreeSet<NodeId>,
    /// The reasons why reachable nodes refuse this one.
    refusals: BTreeMap<NodeId, String>,
    start: StartSeen,
    /// The lagging nodes that this one waits for, as the protocol last reported.
    late: Vec<WaitsFor>,
}

/// The progress of the protocol's start.
#[derive(Debug, PartialEq, Eq)]
enum StartSeen {
    /// Unknown: the protocol has had no input.
    Unknown,
    /// The start waits for this.
    Waits(StartWaits),
    /// The start is over.
    Over,
}

/// The condition that a protocol waits for before it takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartWaits {
    /// The first start of a cluster.
    First(FirstStart),
    /// The replacement of a node that lost its disk.
    Rejoin(Rejoining),
    /// Another program, or another node's checkpoint, because the procedures of this one differ
    /// from those that an epoch needs. May begin at any time.
    Refused(String),
    /// A restarted node, until it knows which of its last transactions are committed.
    Restart,
}

const RESTART: &str = "this node has restarted, and waits for others of its shard: they know which \
                       of its last transactions are committed";

impl StartSeen {
    /// Whether no clients are accepted.
    fn is_closed(&self) -> bool {
        match self {
            Self::Waits(StartWaits::First(_)) | Self::Unknown | Self::Over => false,
            Self::Waits(_) => true,
        }
    }
}

/// The effect of a change of connections on the majority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Majority {
    /// It was reached, or lost, before, and still is.
    Unchanged,
    /// It is reached now; contains a description.
    Reached(String),
    /// It is lost now; contains a description.
    Lost(String),
    /// It does not suffice, because this is the first start; describes what the start waits for.
    Awaited(String),
    /// It does not suffice, because this node is a replacement or runs another version; describes
    /// what it waits for.
    Closed(String),
}

/// The change of the set of lagging nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LagChange {
    /// The nodes are the same, or fewer.
    Unchanged,
    /// Some nodes were not lagging before; describes them.
    Grown(String),
    /// No node lags any more.
    Over,
}

impl Reachability {
    /// Creates the state of a node without connections.
    pub fn new(me: NodeId, topology: Arc<Topology>) -> Self {
        let connected = BTreeSet::from([me]);
        let seen = Seen {
            connected,
            refusals: BTreeMap::new(),
            start: StartSeen::Unknown,
            late: Vec::new(),
        };
        let group = topology.group(topology.place_of(me).shard);
        Self { me, topology, group, epoch: Words::OF_EPOCHS.epoch, seen: Mutex::new(seen) }
    }

    /// The same state, with the words of a protocol.
    #[must_use]
    pub fn in_words(self, words: &Words) -> Self {
        Self { epoch: words.epoch, ..self }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn on_up(&self, peer: NodeId) -> Majority {
        self.change(|seen| {
            seen.refusals.remove(&peer);
            seen.connected.insert(peer)
        })
    }

    /// A reachable peer refuses this node for this reason.
    pub(super) fn on_refused(&self, peer: NodeId, reason: String) {
        self.seen().refusals.insert(peer, reason);
    }

    pub(super) fn on_down(&self, peer: NodeId) -> Majority {
        self.change(|seen| seen.connected.remove(&peer))
    }

    /// The protocol reports what its start waits for, or `None` once it is over.
    pub(super) fn on_start_waits(&self, waits: Option<StartWaits>) -> Majority {
        let now = waits.map_or(StartSeen::Over, StartSeen::Waits);
        self.change(|seen| seen.start = now)
    }

    /// The protocol reports the lagging nodes, the furthest behind first.
    pub(super) fn on_waits(&self, late: Vec<WaitsFor>) -> LagChange {
        let mut seen = self.seen();
        let before = std::mem::replace(&mut seen.late, late);
        let was_late = |late: &WaitsFor| before.iter().any(|it| it.node == late.node);
        match seen.late.is_empty() {
            true if before.is_empty() => LagChange::Unchanged,
            true => LagChange::Over,
            false if seen.late.iter().all(was_late) => LagChange::Unchanged,
            false => LagChange::Grown(self.describe_late(&seen)),
        }
    }

    /// The name of a node.
    pub(super) fn name(&self, node: NodeId) -> String {
        self.topology.node_name(node)
    }

    /// Describes the lagging nodes that this one waits for.
    pub fn waits_for(&self) -> Option<String> {
        let seen = self.seen();
        (!seen.late.is_empty()).then(|| self.describe_late(&seen))
    }

    /// Lists each node once, with its largest lag, or as unreachable.
    fn describe_late(&self, seen: &Seen) -> String {
        let late = &seen.late;
        let is_first =
            |(at, it): &(usize, &WaitsFor)| late[..*at].iter().all(|other| other.node != it.node);
        let describe = |it: &WaitsFor| match seen.connected.contains(&it.node) {
            true => it.describe(&self.topology, self.epoch),
            false => format!("{}, which is not reachable", self.name(it.node)),
        };
        let each = late.iter().enumerate().filter(is_first);
        let words: Vec<_> = each.map(|(_, it)| describe(it)).collect();
        format!("waiting for {}", words.join("; "))
    }

    /// The nodes that are connected to this one, and this node.
    pub fn connected(&self) -> Vec<NodeId> {
        self.seen().connected.iter().copied().collect()
    }

    /// The reason why no clients are accepted: this node is a cache, replaces another node, or runs
    /// another version of the procedures.
    pub fn closed(&self) -> Option<String> {
        if let Some(why) = self.cache() {
            return Some(why);
        }
        let seen = self.seen();
        seen.start.is_closed().then(|| self.awaits(&seen)).flatten()
    }

    /// The reason why this node takes no requests, if it is a cache.
    pub fn cache(&self) -> Option<String> {
        let home = self.topology.node_name(self.topology.home_of(self.me)?);
        Some(format!("this node is a cache of {home} and has no tables: connect to that node"))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> Majority {
        let mut seen = self.seen();
        let (had, awaited) = (self.agrees(&seen), self.awaits(&seen));
        change(&mut seen);
        match self.awaits(&seen) {
            Some(now) if awaited.as_ref() != Some(&now) => {
                let is_closed = seen.start.is_closed();
                return if is_closed { Majority::Closed(now) } else { Majority::Awaited(now) };
            }
            Some(_) => return Majority::Unchanged,
            None => {}
        }
        match (had, self.agrees(&seen)) {
            (false, true) => {
                let nodes = self.names(seen.connected.iter().copied());
                Majority::Reached(format!("a majority of nodes is connected: {nodes}"))
            }
            (true, false) => Majority::Lost(self.describe(&seen)),
            (true, true) | (false, false) => Majority::Unchanged,
        }
    }

    /// The reason why agreement is impossible now; `None` if it is possible.
    pub fn cut_off(&self) -> Option<String> {
        let seen = self.seen();
        let no_majority = || (!self.is_enough(&seen)).then(|| self.describe(&seen));
        self.awaits(&seen).or_else(no_majority)
    }

    fn agrees(&self, seen: &Seen) -> bool {
        self.is_enough(seen) && seen.start == StartSeen::Over
    }

    /// Describes what the start waits for.
    fn awaits(&self, seen: &Seen) -> Option<String> {
        match &seen.start {
            StartSeen::Unknown | StartSeen::Over => None,
            StartSeen::Waits(StartWaits::First(first)) => Some(self.describe_first(first, seen)),
            StartSeen::Waits(StartWaits::Rejoin(rejoin)) => Some(self.describe_rejoin(rejoin)),
            StartSeen::Waits(StartWaits::Refused(why)) => Some(why.clone()),
            StartSeen::Waits(StartWaits::Restart) => Some(RESTART.to_owned()),
        }
    }

    fn describe_rejoin(&self, rejoin: &Rejoining) -> String {
        let Rejoining { missing, forgetful, needed, upto } = rejoin;
        if let Some(version) = upto {
            return format!(
                "this node is being replaced: fetching the data up to version {version}"
            );
        }
        let mut waits = Vec::new();
        if !missing.is_empty() {
            let missing = self.names(missing.iter().copied());
            waits.push(format!("waiting for {missing} to report their records of this node"));
        }
        if !forgetful.is_empty() {
            let forgetful = self.names(forgetful.iter().copied());
            waits.push(format!(
                "also being replaced: {forgetful}; {needed} other nodes that are not being \
                 replaced are needed"
            ));
        }
        format!("this node is being replaced: {}", waits.join("; "))
    }

    fn describe_first(&self, first: &FirstStart, seen: &Seen) -> String {
        let FirstStart { needed, missing } = first;
        let of = self.of_shard();
        let needs = match self.voters().len() {
            count if count == *needed => format!("all {count} nodes{of}"),
            count => format!("{needed} of the {count} nodes{of}"),
        };
        let missing = self.away(missing.iter().copied(), seen);
        format!("first start: waiting for {missing}; a new cluster needs {needs} once to start")
    }

    /// Whether the connected nodes can agree, and together have all rows.
    fn is_enough(&self, seen: &Seen) -> bool {
        self.is_majority(seen) && self.missing_shards(seen).next().is_none()
    }

    /// The replicas of this node's shard that vote.
    fn voters(&self) -> &[NodeId] {
        &self.group.nodes()[..self.group.topology.voter_count()]
    }

    fn is_majority(&self, seen: &Seen) -> bool {
        let is_connected = |node: &&NodeId| seen.connected.contains(node);
        let voters = self.voters().iter().filter(is_connected);
        voters.count() >= self.group.topology.majority()
    }

    /// The shards without a connected node.
    fn missing_shards<'a>(&'a self, seen: &'a Seen) -> impl Iterator<Item = ShardId> + 'a {
        // A cache has no rows.
        let shard = |node: &NodeId| Some(self.topology.nodes.get(node.index())?.shard);
        let is_there =
            move |wanted: &ShardId| seen.connected.iter().any(|it| shard(it) == Some(*wanted));
        let shards = (0..self.topology.partitions.shards()).map(ShardId);
        shards.filter(move |wanted| !is_there(wanted))
    }

    /// The shard whose nodes must agree, if there are several shards.
    fn of_shard(&self) -> String {
        match self.topology.partitions.shards() {
            1 => String::new(),
            _ => format!(" of shard {}", self.topology.place_of(self.me).shard.0),
        }
    }

    fn describe(&self, seen: &Seen) -> String {
        let here = self.topology.place_name(self.me);
        let is_away = |node: &NodeId| !seen.connected.contains(node);
        if self.is_majority(seen) {
            let all = self.missing_shards(seen).map(|shard| {
                let group = self.topology.group(shard);
                let nodes = self.away(group.nodes().iter().copied(), seen);
                format!(
                    "no node of shard {} is reachable from {here}; unreachable: {nodes}",
                    shard.0
                )
            });
            return all.collect::<Vec<_>>().join("; ");
        }
        let nodes = || self.voters().iter().copied();
        format!(
            "no majority of nodes{} is reachable from {here}; reachable: {}; unreachable: {}",
            self.of_shard(),
            self.names(nodes().filter(|node| seen.connected.contains(node))),
            self.away(nodes().filter(is_away), seen)
        )
    }

    /// Lists unreachable nodes, with their reasons for refusing this one if known.
    fn away(&self, nodes: impl Iterator<Item = NodeId>, seen: &Seen) -> String {
        let name = |node| match seen.refusals.get(&node) {
            Some(reason) => format!("{} ({reason})", self.topology.node_name(node)),
            None => self.topology.node_name(node),
        };
        nodes.map(name).collect::<Vec<_>>().join(", ")
    }

    fn names(&self, nodes: impl Iterator<Item = NodeId>) -> String {
        let names: Vec<_> = nodes.map(|node| self.topology.node_name(node)).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::SnapshotVersion;
    use pangea_core::partition::{Partitions, Rule};
    use pangea_core::time::Span;

    use super::*;

    #[test]
    fn a_majority_is_told_of_once_when_it_comes_and_once_when_it_goes() {
        let regions = ["us", "eu", "ap", "sa", "af"];
        let topology = Topology::one_node_per_region("test", &regions, Span::ZERO);
        let reachability = Reachability::new(NodeId(0), Arc::new(topology));
        assert_eq!(reachability.on_start_waits(None), Majority::Unchanged);
        let alone = "no majority of nodes is reachable from us; reachable: us (node 0); \
                     unreachable: eu (node 1), ap (node 2), sa (node 3), af (node 4)";
        assert_eq!(reachability.cut_off().as_deref(), Some(alone));
        assert_eq!(reachability.on_up(NodeId(3)), Majority::Unchanged);
        let reached = "a majority of nodes is connected: us (node 0), eu (node 1), sa (node 3)";
        assert_eq!(reachability.on_up(NodeId(1)), Majority::Reached(reached.to_owned()));
        assert_eq!(reachability.cut_off(), None);
        assert_eq!(reachability.on_up(NodeId(4)), Majority::Unchanged);
        assert_eq!(reachability.on_down(NodeId(3)), Majority::Unchanged);
        let lost = "no majority of nodes is reachable from us; reachable: us (node 0), \
                    af (node 4); unreachable: eu (node 1), ap (node 2), sa (node 3)";
        assert_eq!(reachability.on_down(NodeId(1)), Majority::Lost(lost.to_owned()));
        assert_eq!(reachability.on_down(NodeId(1)), Majority::Unchanged, "reported before");
        assert_eq!(reachability.cut_off().as_deref(), Some(lost));
    }

    /// A node of another cluster at a peer's address was reported as unreachable, without the
    /// reason.
    #[test]
    fn a_peer_that_refuses_is_told_of_with_its_reason_until_it_connects() {
        let topology = Topology::one_node_per_region("test", &["us", "eu", "ap"], Span::ZERO);
        let reachability = Reachability::new(NodeId(0), Arc::new(topology));
        reachability.on_start_waits(None);
        reachability.on_refused(NodeId(1), "it refuses this node: its cluster is \"b\"".to_owned());
        let refused = "no majority of nodes is reachable from us; reachable: us (node 0); \
                       unreachable: eu (node 1) (it refuses this node: its cluster is \"b\"), \
                       ap (node 2)";
        assert_eq!(reachability.cut_off().as_deref(), Some(refused));
        let first = FirstStart { needed: 3, missing: vec![NodeId(1)] };
        reachability.on_start_waits(Some(StartWaits::First(first)));
        let waits = "first start: waiting for eu (node 1) (it refuses this node: its cluster is \
                     \"b\"); a new cluster needs all 3 nodes once to start";
        assert_eq!(reachability.cut_off().as_deref(), Some(waits));
        reachability.on_start_waits(None);
        reachability.on_up(NodeId(1));
        reachability.on_down(NodeId(1));
        assert!(reachability.cut_off().is_some_and(|it| !it.contains("refuses")));
    }

    /// The first start of a cluster without one of its three nodes once reported that writes
    /// continue, although they did not.
    #[test]
    fn a_first_start_says_what_it_waits_for_and_nothing_of_a_majority_until_it_is_over() {
        let regions = ["us", "eu", "ap"];
        let topology = Topology::one_node_per_region("test", &regions, Span::ZERO);
        let reachability = Reachability::new(NodeId(0), Arc::new(topology));
        assert_eq!(reachability.on_up(NodeId(1)), Majority::Unchanged, "nothing is known yet");
        let awaits = |missing: &[u16]| {
            let missing = missing.iter().map(|node| NodeId(*node)).collect();
            reachability.on_start_waits(Some(StartWaits::First(FirstStart { needed: 3, missing })))
        };
        let both = "first start: waiting for eu (node 1), ap (node 2); a new cluster needs all 3 \
                    nodes once to start";
        let one =
            "first start: waiting for ap (node 2); a new cluster needs all 3 nodes once to start";
        assert_eq!(awaits(&[1, 2]), Majority::Awaited(both.to_owned()));
        assert_eq!(awaits(&[2]), Majority::Awaited(one.to_owned()));
        assert_eq!(awaits(&[2]), Majority::Unchanged, "reported before");
        assert_eq!(reachability.on_up(NodeId(2)), Majority::Unchanged);
        assert_eq!(reachability.cut_off().as_deref(), Some(one));
        let reached = "a majority of nodes is connected: us (node 0), eu (node 1), ap (node 2)";
        assert_eq!(reachability.on_start_waits(None), Majority::Reached(reached.to_owned()));
        assert_eq!(reachability.cut_off(), None);
    }

    #[test]
    fn a_replaced_node_says_whom_it_waits_for_and_then_how_far_it_has_to_go() {
        let regions = ["us", "eu", "ap"];
        let topology = Topology::one_node_per_region("test", &regions, Span::ZERO);
        let reachability = Reachability::new(NodeId(0), Arc::new(topology));
        let majority = |missing: &[u16], forgetful: &[u16], upto| {
            let nodes = |ids: &[u16]| ids.iter().map(|node| NodeId(*node)).collect();
            let (missing, forgetful) = (nodes(missing), nodes(forgetful));
            let rejoin = Rejoining { missing, forgetful, needed: 2, upto };
            reachability.on_start_waits(Some(StartWaits::Rejoin(rejoin)))
        };
        let both = "this node is being replaced: waiting for eu (node 1), ap (node 2) to report \
                    their records of this node";
        assert_eq!(majority(&[1, 2], &[], None), Majority::Closed(both.to_owned()));
        assert_eq!(reachability.closed().as_deref(), Some(both));
        let one = "this node is being replaced: waiting for eu (node 1) to report their records of \
                   this node; also being replaced: ap (node 2); 2 other nodes that are not being \
                   replaced are needed";
        assert_eq!(majority(&[1], &[2], None), Majority::Closed(one.to_owned()));
        let far = "this node is being replaced: fetching the data up to version v9";
        assert_eq!(majority(&[], &[], Some(SnapshotVersion(9))), Majority::Closed(far.to_owned()));
        assert_eq!(reachability.on_start_waits(None), Majority::Unchanged);
        assert_eq!(reachability.closed(), None);
    }

    #[test]
    fn a_node_of_a_divided_cluster_needs_a_majority_of_its_shard_and_one_of_each_other() {
        let whole = Topology::one_node_per_region("test", &["us", "eu", "ap"], Span::ZERO);
        let topology = whole.divided(Partitions::new(2, Rule::Everywhere));
        let reachability = Reachability::new(NodeId(0), Arc::new(topology));
        reachability.on_start_waits(None);
        let alone = "no majority of nodes of shard 0 is reachable from us.0; reachable: us.0 \
                     (node 0); unreachable: eu.0 (node 2), ap.0 (node 4)";
        assert_eq!(reachability.cut_off().as_deref(), Some(alone));
        assert_eq!(reachability.on_up(NodeId(3)), Majority::Unchanged);
        assert_eq!(
            reachability.cut_off().as_deref(),
            Some(alone),
            "nodes of another shard do not count"
        );
        assert!(matches!(reachability.on_up(NodeId(2)), Majority::Reached(_)));
        let no_other = "no node of shard 1 is reachable from us.0; unreachable: us.1 (node 1), \
                        eu.1 (node 3), ap.1 (node 5)";
        assert_eq!(reachability.on_down(NodeId(3)), Majority::Lost(no_other.to_owned()));
        assert!(matches!(reachability.on_up(NodeId(1)), Majority::Reached(_)));
    }

    #[test]
    fn who_is_behind_is_told_of_once_and_when_nobody_is() {
        let whole = Topology::one_node_per_region("test", &["us", "eu", "ap"], Span::ZERO);
        let topology = whole.divided(Partitions::new(2, Rule::Everywhere));
        let reachability = Reachability::new(NodeId(0), Arc::new(topology));
        let late = |node, what: &str, epochs| WaitsFor {
            node: NodeId(node),
            what: what.to_owned(),
            epochs,
        };
        assert_eq!(
            (reachability.on_waits(Vec::new()), reachability.waits_for()),
            (LagChange::Unchanged, None)
        );
        for peer in [1, 2] {
            reachability.on_up(NodeId(peer));
        }
        let one = "waiting for us.1 (node 1), which is 70 epochs behind with slices";
        let all = vec![late(1, "slices", 70), late(1, "rows", 60)];
        assert_eq!(reachability.on_waits(all), LagChange::Grown(one.to_owned()));
        assert_eq!(reachability.waits_for().as_deref(), Some(one));
        assert_eq!(reachability.on_waits(vec![late(1, "slices", 90)]), LagChange::Unchanged);
        let both = "waiting for us.1 (node 1), which is 99 epochs behind with slices; eu.0 (node \
                    2), which is 1 epoch behind with acknowledgements";
        let all = vec![late(1, "slices", 99), late(2, "acknowledgements", 1)];
        assert_eq!(reachability.on_waits(all), LagChange::Grown(both.to_owned()));
        assert_eq!(reachability.on_waits(vec![late(2, "rows", 1)]), LagChange::Unchanged);
        reachability.on_down(NodeId(2));
        let gone = "waiting for eu.0 (node 2), which is not reachable";
        assert_eq!(reachability.waits_for().as_deref(), Some(gone), "its lag tells nothing");
        assert_eq!(
            (reachability.on_waits(Vec::new()), reachability.waits_for()),
            (LagChange::Over, None)
        );
    }

    #[test]
    fn a_cluster_of_one_is_its_own_majority() {
        let topology = Topology::one_node_per_region("test", &["here"], Span::ZERO);
        assert_eq!(Reachability::new(NodeId(0), Arc::new(topology)).cut_off(), None);
    }
}
