//! Whose transactions versions have, as nodes have said it, and which of them are given up.
//!
//! Where a master runs transactions before they are agreed on, what it has answered may be lost
//! with it. Nodes say whose reign the versions are that they publish, and which are for good
//! ([`pangea_core::protocol::Effect::Reign`]). If from one of the versions up to that of an answer
//! on others have them for good, and one of these is of another master, or the master's disk is
//! lost, then the transaction and all that it saw have not happened. Nothing else is excused: a
//! master that starts again finds what it has answered.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::ids::{NodeId, SnapshotVersion};

/// A master, and the number of the first transaction of its reign.
pub(crate) type Reign = (NodeId, u64);

/// From which versions on they reign.
pub(crate) type Line = BTreeMap<SnapshotVersion, Reign>;

/// What nodes have said.
pub(crate) struct Lines {
    /// For good.
    settled: Line,
    /// On each node, since it started.
    nodes: Vec<Line>,
    /// Whose disks are lost.
    lost: BTreeSet<NodeId>,
}

impl Lines {
    pub(crate) fn new(node_count: usize) -> Self {
        let nodes = vec![Line::new(); node_count];
        Self { settled: Line::new(), nodes, lost: BTreeSet::new() }
    }

    /// A node starts, or has taken a checkpoint of another, and will say what it knows.
    pub(crate) fn on_start(&mut self, node: NodeId) {
        self.nodes[node.index()].clear();
    }

    /// What a node has written is lost.
    pub(crate) fn on_disk_lost(&mut self, node: NodeId) {
        self.lost.insert(node);
    }

    /// A node says whose versions are from one on. Returns what another has said instead, if that
    /// was for good too.
    pub(crate) fn on_reign(
        &mut self,
        node: NodeId,
        from: SnapshotVersion,
        reign: Reign,
        is_final: bool,
    ) -> Option<Reign> {
        let line = if is_final { &mut self.settled } else { &mut self.nodes[node.index()] };
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
    pub(crate) fn up_to(&self, node: NodeId, version: SnapshotVersion) -> Line {
        let line = self.nodes[node.index()].range(..=version);
        line.map(|(from, reign)| (*from, *reign)).collect()
    }

    /// Whether a version is given up that had these reigns up to it.
    pub(crate) fn is_lost(&self, version: SnapshotVersion, line: &Line) -> bool {
        let settled = self.settled.range(..=version).map(|(from, _)| from);
        let changes = settled.chain(line.keys()).filter(|from| {
            let reign = at(line, **from);
            reign.is_some() && at(&self.settled, **from) != reign
        });
        let Some(first) = changes.min() else { return false };
        let (master, _) = at(line, *first).expect("looked at above");
        let mut since = self.settled.range(*first..=version);
        let is_first = at(&self.settled, *first).is_some_and(|(settled, _)| settled != master);
        let is_other = is_first || since.any(|(_, (other, _))| *other != master);
        is_other || self.lost.contains(&master)
    }
}

/// Whose a version is.
fn at(line: &Line, version: SnapshotVersion) -> Option<Reign> {
    line.range(..=version).next_back().map(|(_, reign)| *reign)
}
