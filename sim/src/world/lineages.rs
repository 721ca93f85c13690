//! The answers from versions that were rolled back later.
//!
//! A node may publish versions before they are confirmed, and name what led to them
//! ([`pangea_core::protocol::Effect::Lineage`]). An answer is lost if its version was not confirmed
//! then, and another lineage of the same number, or none, is confirmed in the end: the transaction,
//! or what it read, may have happened with another outcome. Nothing else is excused.
//!
//! A node also reports which of its acknowledged transactions are lost
//! ([`pangea_core::protocol::Effect::LostCommit`]). Those are not among the final rows, and all
//! others of a node that has not stopped since are.

use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::protocol::Protocol;
use pangea_core::txn::{Abort, SqlState};

use super::World;
use crate::history::{End, History, OpId};

/// The lineages and answers that nodes reported.
pub(super) struct Lineages {
    confirmed: BTreeMap<SnapshotVersion, u64>,
    /// Those of the versions that each node has not confirmed.
    early: Vec<BTreeMap<SnapshotVersion, u64>>,
    /// The answers from versions that were not confirmed.
    answers: BTreeMap<OpId, Answer>,
    /// How often each node has started.
    starts: Vec<u64>,
    /// The acknowledged transactions that are lost, and whether that is certain.
    told: BTreeMap<TxnId, bool>,
}

/// An answer from a version that was not confirmed.
struct Answer {
    /// The last unconfirmed version up to that of the answer, with its lineage.
    at: (SnapshotVersion, u64),
    node: NodeId,
    /// How often the node had started.
    starts: u64,
}

impl Lineages {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            confirmed: BTreeMap::new(),
            early: vec![BTreeMap::new(); node_count],
            answers: BTreeMap::new(),
            starts: vec![0; node_count],
            told: BTreeMap::new(),
        }
    }

    /// A node starts: it reports its unconfirmed versions again.
    pub(super) fn on_start(&mut self, node: NodeId) {
        self.early[node.index()].clear();
        self.starts[node.index()] += 1;
    }

    /// Records the lineage of a version. Returns another one that was confirmed for it, if both
    /// are.
    fn on_lineage(
        &mut self,
        node: NodeId,
        (version, lineage): (SnapshotVersion, u64),
        is_final: bool,
    ) -> Option<u64> {
        let early = &mut self.early[node.index()];
        if !is_final {
            // The node may have rolled back.
            early.split_off(&version);
            early.insert(version, lineage);
            return None;
        }
        *early = early.split_off(&version.next());
        let confirmed = *self.confirmed.entry(version).or_insert(lineage);
        (confirmed != lineage).then_some(confirmed)
    }

    /// Records that a node answers an operation from its state at a version.
    pub(super) fn on_answer(&mut self, node: NodeId, op: OpId, version: SnapshotVersion) {
        if let Some((at, lineage)) = self.early[node.index()].range(..=version).next_back() {
            let starts = self.starts[node.index()];
            self.answers.insert(op, Answer { at: (*at, *lineage), node, starts });
        }
    }

    /// The answered operations whose version was rolled back.
    pub(super) fn lost<'a>(&'a self, history: &'a History) -> impl Iterator<Item = OpId> + 'a {
        let is_over = |end: &End| matches!(end, End::Committed { .. } | End::Read { .. });
        let lost = self.answers.iter().filter(|(_, answer)| {
            let (at, lineage) = answer.at;
            self.confirmed.get(&at).is_none_or(|confirmed| *confirmed != lineage)
        });
        lost.map(|(op, _)| *op).filter(move |op| is_over(&history[*op].end))
    }

    /// What is known of an answered operation whose version was rolled back: that its transaction
    /// is lost (`false`), or that it is not (`true`).
    fn survives(&self, op: OpId, end: &End, runs: impl Fn(NodeId) -> bool) -> Option<bool> {
        let End::Committed { txn, .. } = end else { return None };
        match self.told.get(txn) {
            Some(is_certain) => is_certain.then_some(false),
            // Reads of a snapshot take no place in the order, and have the number 0.
            None if txn.sequence() == 0 => None,
            None => {
                let Answer { node, starts, .. } = &self.answers[&op];
                let has_run = self.starts[node.index()] == *starts && runs(*node);
                has_run.then_some(true)
            }
        }
    }
}

impl<P: Protocol> World<P> {
    /// Handles a node's report of what led to a version.
    pub(super) fn on_lineage(
        &mut self,
        id: NodeId,
        version: SnapshotVersion,
        lineage: u64,
        is_final: bool,
    ) {
        let how = if is_final { "confirmed" } else { "here" };
        self.trace.event(self.now, id, "lineage", [version.0, lineage], || {
            format!("{version} has lineage {lineage:x}, {how}")
        });
        let other = self.lineages.on_lineage(id, (version, lineage), is_final);
        if let Some(other) = other {
            let story = format!("{id} confirmed {version} of {lineage:x}, another node {other:x}");
            self.violate("lineages", story);
        }
    }

    /// Handles a node's report that a transaction which it had acknowledged is lost.
    pub(super) fn on_lost_commit(&mut self, id: NodeId, txn: TxnId, is_certain: bool) {
        self.trace.event(self.now, id, "lost-commit", [txn.sequence(), 0], || {
            format!(
                "{txn} was acknowledged and is {}lost",
                if is_certain { "" } else { "perhaps " }
            )
        });
        if txn.node() != id {
            self.violate("losses", format!("{id} reports the loss of {txn} of another node"));
        }
        self.lineages.told.insert(txn, is_certain);
    }

    /// Records that a node answers an operation from its state at a version.
    pub(super) fn note_answer(&mut self, node: NodeId, op: OpId, version: SnapshotVersion) {
        self.master_terms.on_answer(node, op, version);
        self.lineages.on_answer(node, op, version);
    }

    /// The history without what failovers and removals have discarded. Operations that may have
    /// happened with another outcome count as unknown.
    pub(super) fn surviving_history(&self) -> History {
        let mut kept = self.master_terms.surviving_history(&self.history);
        for op in self.lineages.lost(&self.history) {
            let operation = &mut kept.operations[op.0];
            (operation.end, operation.ended) = (End::Ambiguous, None);
        }
        kept
    }

    /// The surviving history, with what nodes have told of acknowledged transactions whose version
    /// was rolled back. Their results may be others. `None` if it is the same.
    pub(super) fn told_history(&self, kept: &History) -> Option<History> {
        let mut told = None;
        for op in self.lineages.lost(&self.history) {
            let operation = &self.history[op];
            let runs = |node: NodeId| self.nodes[node.index()].running.is_some();
            let Some(survives) = self.lineages.survives(op, &operation.end, runs) else { continue };
            let kept = &mut told.get_or_insert_with(|| kept.clone()).operations[op.0];
            kept.end = match survives {
                true => operation.end.clone(),
                false => End::Aborted(Abort::new(SqlState::SERIALIZATION_FAILURE, "lost")),
            };
            kept.ended = operation.ended;
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{CallKind, Operation};
    use pangea_core::guarantee::Isolation;
    use pangea_core::ids::TxnId;
    use pangea_core::time::Timestamp;
    use pangea_core::workload::Call;

    const fn v(version: u64) -> SnapshotVersion {
        SnapshotVersion(version)
    }

    fn operation() -> Operation {
        let call =
            Call { procedure: "p", args: Default::default(), label: "p", is_read_only: false };
        let end = End::Committed { txn: TxnId::default(), version: v(1), result: Vec::new() };
        let (invoked, node, how) = (Timestamp::default(), NodeId(0), CallKind::Ordered);
        let level = Isolation::Serializable;
        Operation { client: 0, node, how, level, call, invoked, ended: Some(invoked), end }
    }

    #[test]
    fn an_answer_from_a_version_that_is_confirmed_with_another_lineage_is_lost() {
        let mut lineages = Lineages::new(2);
        let history = History { operations: (0..5).map(|_| operation()).collect() };
        let (node, other) = (NodeId(0), NodeId(1));
        for version in 1..4 {
            assert_eq!(lineages.on_lineage(node, (v(version), version), false), None);
        }
        assert_eq!(lineages.on_lineage(node, (v(1), 1), true), None);
        (0..4).for_each(|op| lineages.on_answer(node, OpId(op), v(op as u64)));
        lineages.on_answer(other, OpId(4), v(2));
        lineages.on_lineage(other, (v(1), 1), true);
        lineages.on_lineage(other, (v(2), 2), true);
        lineages.on_lineage(other, (v(3), 9), true);
        let lost: Vec<OpId> = lineages.lost(&history).collect();
        assert_eq!(lost, [OpId(3)], "1 was confirmed, and 2 is the same everywhere");
        assert_eq!(lineages.on_lineage(node, (v(3), 3), true), Some(9));
    }
}
