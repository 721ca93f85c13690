//! Tracks the master terms of versions as nodes report them, and which versions a failover
//! discarded.
//!
//! If a master runs transactions before they are agreed on, a failover may discard transactions
//! that it has acknowledged. Nodes report the master term of the versions that they publish, per
//! shard, and which terms are confirmed ([`pangea_core::protocol::Effect::MasterTerm`]). An answer
//! is discarded if the confirmed terms differ from the node's terms at some version up to the
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
pub type MasterTerm = (NodeId, u64);

/// Master terms by the first version of each.
pub type MasterHistory = BTreeMap<SnapshotVersion, MasterTerm>;

/// Master terms of each shard, where known.
pub type HistoryByShard = BTreeMap<ShardId, MasterHistory>;

/// The master terms that nodes have reported.
pub struct MasterHistories {
    /// Confirmed terms.
    confirmed: HistoryByShard,
    /// Unconfirmed terms by node, since the node started.
    nodes: Vec<HistoryByShard>,
    /// Nodes whose disks were lost.
    lost: BTreeSet<NodeId>,
}

impl MasterHistories {
    /// Starts without reports, for this number of nodes.
    pub fn new(node_count: usize) -> Self {
        let nodes = vec![HistoryByShard::new(); node_count];
        Self { confirmed: HistoryByShard::new(), nodes, lost: BTreeSet::new() }
    }

    /// Forgets the terms of a node that starts or has installed another node's checkpoint; it will
    /// report them again.
    pub fn on_start(&mut self, node: NodeId) {
        self.nodes[node.index()].clear();
    }

    /// Records that the node's disk is lost.
    pub fn on_disk_lost(&mut self, node: NodeId) {
        self.lost.insert(node);
    }

    /// Records that a node reports the term of a shard's versions from `from` on. Returns the term
    /// that another report confirmed for the same version, if both are confirmed and differ.
    pub fn on_master_term(
        &mut self,
        node: NodeId,
        (shard, from): (ShardId, SnapshotVersion),
        term: MasterTerm,
        is_final: bool,
    ) -> Option<MasterTerm> {
        let histories = if is_final { &mut self.confirmed } else { &mut self.nodes[node.index()] };
        let history = histories.entry(shard).or_default();
        if !is_final {
            // The node may have rolled back.
            history.split_off(&from);
        }
        let before = at(history, from);
        if is_final && history.contains_key(&from) {
            return before.filter(|before| *before != term);
        }
        if before != Some(term) {
            history.insert(from, term);
        }
        None
    }

    /// Returns a node's terms of the versions up to `version`.
    pub fn up_to(&self, node: NodeId, version: SnapshotVersion) -> HistoryByShard {
        let upto = |history: &MasterHistory| {
            history.range(..=version).map(|(from, it)| (*from, *it)).collect()
        };
        let histories =
            self.nodes[node.index()].iter().map(|(shard, history)| (*shard, upto(history)));
        histories.filter(|(_, history): &(_, MasterHistory)| !history.is_empty()).collect()
    }

    /// Whether a version with these terms was discarded.
    pub fn is_lost(&self, version: SnapshotVersion, histories: &HistoryByShard) -> bool {
        histories.iter().any(|(shard, history)| self.is_lost_of(*shard, version, history))
    }

    fn is_lost_of(
        &self,
        shard: ShardId,
        version: SnapshotVersion,
        history: &MasterHistory,
    ) -> bool {
        let Some(confirmed) = self.confirmed.get(&shard) else { return false };
        let all = confirmed.range(..=version).map(|(from, _)| from);
        let changes = all.chain(history.keys()).filter(|from| {
            let term = at(history, **from);
            term.is_some() && at(confirmed, **from) != term
        });
        let Some(first) = changes.min() else { return false };
        let (master, _) = at(history, *first).expect("the term was found above");
        let mut since = confirmed.range(*first..=version);
        let is_first = at(confirmed, *first).is_some_and(|(confirmed, _)| confirmed != master);
        let is_other = is_first || since.any(|(_, (other, _))| *other != master);
        is_other || self.lost.contains(&master)
    }
}

/// Returns the term of a version.
fn at(history: &MasterHistory, version: SnapshotVersion) -> Option<MasterTerm> {
    history.range(..=version).next_back().map(|(_, term)| *term)
}
