//! Tracks the master terms of versions as nodes report them, and which versions a failover
//! discarded.
//!
//! If a master runs transactions before they are agreed on, a failover may discard transactions
//! that it has acknowledged. Nodes report the master term of the versions that they publish, per
//! shard, and which terms are confirmed ([`pangea_core::protocol::Effect::Reign`]). An answer is
//! discarded if the confirmed terms differ from the node's terms at some version up to the
//! answer's, and the confirmed terms from there on name another master or the old master's disk is
//! lost. Then the transaction and everything that it read did not happen. No other loss is excused:
//! a master that restarts recovers the transactions that it has acknowledged.
//!
//! If tables are partitioned, the masters of all shards contribute to a version. If one of them is
//! deposed, the transactions of the others keep their places and are re-executed with the new
//! transactions: they may have happened with another outcome.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};

/// A master term: the master, and the number of its first transaction.
pub(crate) type Reign = (NodeId, u64);

/// Master terms by the first version of each.
pub(crate) type Line = BTreeMap<SnapshotVersion, Reign>;

/// Master terms of each shard, where known.
pub(crate) type OfShards = BTreeMap<ShardId, Line>;

/// The master terms that nodes have reported.
pub(crate) struct Lines {
    /// Confirmed terms.
    settled: OfShards,
    /// Unconfirmed terms by node, since the node started.
    nodes: Vec<OfShards>,
    /// Nodes whose disks were lost.
    lost: BTreeSet<NodeId>,
}

impl Lines {
    pub(crate) fn new(node_count: usize) -> Self {
        let nodes = vec![OfShards::new(); node_count];
        Self { settled: OfShards::new(), nodes, lost: BTreeSet::new() }
    }

    /// Forgets the terms of a node that starts or has installed another node's checkpoint; it will
    /// report them again.
    pub(crate) fn on_start(&mut self, node: NodeId) {
        self.nodes[node.index()].clear();
    }

    /// Records that the node's disk is lost.
    pub(crate) fn on_disk_lost(&mut self, node: NodeId) {
        self.lost.insert(node);
    }

    /// Records that a node reports the term of a shard's versions from `from` on. Returns the term
    /// that another report confirmed for the same version, if both are confirmed and differ.
    pub(crate) fn on_reign(
        &mut self,
        node: NodeId,
        (shard, from): (ShardId, SnapshotVersion),
        reign: Reign,
        is_final: bool,
    ) -> Option<Reign> {
        let lines = if is_final { &mut self.settled } else { &mut self.nodes[node.index()] };
        let line = lines.entry(shard).or_default();
        if !is_final {
            // The node may have rolled back.
            line.split_off(&from);
        }
        let before = at(line, from);
        if is_final && line.contains_key(&from) {
            return before.filter(|before| *before != reign);
        }
        if before != Some(reign) {
            line.insert(from, reign);
        }
        None
    }

    /// Returns a node's terms of the versions up to `version`.
    pub(crate) fn up_to(&self, node: NodeId, version: SnapshotVersion) -> OfShards {
        let upto = |line: &Line| line.range(..=version).map(|(from, it)| (*from, *it)).collect();
        let lines = self.nodes[node.index()].iter().map(|(shard, line)| (*shard, upto(line)));
        lines.filter(|(_, line): &(_, Line)| !line.is_empty()).collect()
    }

    /// Whether a version with these terms was discarded.
    pub(crate) fn is_lost(&self, version: SnapshotVersion, lines: &OfShards) -> bool {
        lines.iter().any(|(shard, line)| self.is_lost_of(*shard, version, line))
    }

    fn is_lost_of(&self, shard: ShardId, version: SnapshotVersion, line: &Line) -> bool {
        let Some(settled) = self.settled.get(&shard) else { return false };
        let all = settled.range(..=version).map(|(from, _)| from);
        let changes = all.chain(line.keys()).filter(|from| {
            let reign = at(line, **from);
            reign.is_some() && at(settled, **from) != reign
        });
        let Some(first) = changes.min() else { return false };
        let (master, _) = at(line, *first).expect("the term was found above");
        let mut since = settled.range(*first..=version);
        let is_first = at(settled, *first).is_some_and(|(settled, _)| settled != master);
        let is_other = is_first || since.any(|(_, (other, _))| *other != master);
        is_other || self.lost.contains(&master)
    }
}

/// Returns the term of a version.
fn at(line: &Line, version: SnapshotVersion) -> Option<Reign> {
    line.range(..=version).next_back().map(|(_, reign)| *reign)
}
