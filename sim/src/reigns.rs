//! Whose transactions versions have, as nodes have said it, and which of them are given up.
//!
//! Where a master runs transactions before they are agreed on, what it has answered may be lost
//! with it. Nodes say whose reign the versions are that they publish, of each shard, and which are
//! for good ([`pangea_core::protocol::Effect::Reign`]). If from one of the versions up to that of
//! an answer on others have them for good, and one of these is of another master, or the master's
//! disk is lost, then the transaction and all that it saw have not happened. Nothing else is
//! excused: a master that starts again finds what it has answered.
//!
//! Where tables are divided, a version is what the masters of all shards have put into it. If one
//! of them is deposed for it, the others' transactions of it stay where they are, and are run again
//! beside others: they may have happened, with another outcome.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};

/// A master, and the number of the first transaction of its reign.
pub(crate) type Reign = (NodeId, u64);

/// From which versions on they reign.
pub(crate) type Line = BTreeMap<SnapshotVersion, Reign>;

/// The same of each shard of which it is known.
pub(crate) type OfShards = BTreeMap<ShardId, Line>;

/// What nodes have said.
pub(crate) struct Lines {
    /// For good.
    settled: OfShards,
    /// On each node, since it started.
    nodes: Vec<OfShards>,
    /// Whose disks are lost.
    lost: BTreeSet<NodeId>,
}

impl Lines {
    pub(crate) fn new(node_count: usize) -> Self {
        let nodes = vec![OfShards::new(); node_count];
        Self { settled: OfShards::new(), nodes, lost: BTreeSet::new() }
    }

    /// A node starts, or has taken a checkpoint of another, and will say what it knows.
    pub(crate) fn on_start(&mut self, node: NodeId) {
        self.nodes[node.index()].clear();
    }

    /// What a node has written is lost.
    pub(crate) fn on_disk_lost(&mut self, node: NodeId) {
        self.lost.insert(node);
    }

    /// A node says whose versions of a shard are from one on. Returns what another has said
    /// instead, if that was for good too.
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
            // The node may have gone back.
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

    /// Whose the versions up to one are at a node.
    pub(crate) fn up_to(&self, node: NodeId, version: SnapshotVersion) -> OfShards {
        let upto = |line: &Line| line.range(..=version).map(|(from, it)| (*from, *it)).collect();
        let lines = self.nodes[node.index()].iter().map(|(shard, line)| (*shard, upto(line)));
        lines.filter(|(_, line): &(_, Line)| !line.is_empty()).collect()
    }

    /// Whether a version is given up that had these reigns up to it.
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
        let (master, _) = at(line, *first).expect("looked at above");
        let mut since = settled.range(*first..=version);
        let is_first = at(settled, *first).is_some_and(|(settled, _)| settled != master);
        let is_other = is_first || since.any(|(_, (other, _))| *other != master);
        is_other || self.lost.contains(&master)
    }
}

/// Whose a version is.
fn at(line: &Line, version: SnapshotVersion) -> Option<Reign> {
    line.range(..=version).next_back().map(|(_, reign)| *reign)
}
