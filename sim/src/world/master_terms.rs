//! The answers whose transactions a failover discarded; see [`crate::master_terms`].

use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};
use pangea_core::protocol::Protocol;

use super::World;
use crate::history::{End, History, OpId};
use crate::master_terms::{HistoryByShard, MasterHistories, MasterTerm};

/// The master terms and answers that nodes reported.
pub(super) struct MasterTerms {
    pub(super) histories: MasterHistories,
    /// The version of each answer, and the node's master terms up to that version.
    answers: BTreeMap<OpId, (SnapshotVersion, HistoryByShard)>,
    /// Whether tables are partitioned. Then discarded transactions may be re-executed.
    is_divided: bool,
}

impl MasterTerms {
    pub(super) fn new(node_count: usize, is_divided: bool) -> Self {
        Self { histories: MasterHistories::new(node_count), answers: BTreeMap::new(), is_divided }
    }

    /// Records that a node answers an operation from its state at a version.
    pub(super) fn on_answer(&mut self, node: NodeId, op: OpId, version: SnapshotVersion) {
        let histories = self.histories.up_to(node, version);
        if !histories.is_empty() {
            self.answers.insert(op, (version, histories));
        }
    }

    /// Returns the acknowledged operations that were discarded.
    pub(super) fn given_up<'a>(&'a self, history: &'a History) -> impl Iterator<Item = OpId> + 'a {
        let is_over =
            |end: &End| matches!(end, End::Committed { .. } | End::Read { .. } | End::Aborted(_));
        let lost = self
            .answers
            .iter()
            .filter(|(_, (version, histories))| self.histories.is_lost(*version, histories));
        lost.map(|(op, _)| *op).filter(move |op| is_over(&history[*op].end))
    }

    /// Returns the history without the discarded operations. If tables are partitioned, their
    /// outcome is unknown.
    pub(super) fn surviving_history(&self, history: &History) -> History {
        let mut kept = history.clone();
        for op in self.given_up(history) {
            let operation = &mut kept.operations[op.0];
            if self.is_divided {
                (operation.end, operation.ended) = (End::Ambiguous, None);
            } else {
                operation.end = End::Refused;
            }
        }
        kept
    }
}

impl<P: Protocol> World<P> {
    /// Handles a node's report of the master term of a shard's versions from one on, either on this
    /// node or confirmed.
    pub(super) fn on_master_term(
        &mut self,
        id: NodeId,
        (shard, from): (ShardId, SnapshotVersion),
        term: Option<MasterTerm>,
        is_final: bool,
    ) {
        let numbers = [from.0, term.map_or(0, |(_, first)| first)];
        self.trace.event(self.now, id, "master term", numbers, || match term {
            Some((master, first)) => {
                let how = if is_final { "confirmed" } else { "here" };
                format!(
                    "from {from} on, the versions of {shard} are of {master}, from {first} on, \
                     {how}"
                )
            }
            None => "not known".into(),
        });
        let Some(term) = term else { return self.master_terms.histories.on_start(id) };
        if let Some(other) =
            self.master_terms.histories.on_master_term(id, (shard, from), term, is_final)
        {
            let story = format!(
                "{id} confirmed {from} of {term:?}, but another node of {other:?}, of {shard}"
            );
            self.violate("master terms", story);
        }
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

    /// A version of the only shard.
    const fn at(version: u64) -> (ShardId, SnapshotVersion) {
        (ShardId(0), v(version))
    }

    fn operation(version: u64) -> Operation {
        let call =
            Call { procedure: "p", args: Default::default(), label: "p", is_read_only: false };
        let end = End::Committed { txn: TxnId::default(), version: v(version), result: Vec::new() };
        let (invoked, node, how) = (Timestamp::default(), NodeId(0), CallKind::Ordered);
        let level = Isolation::Serializable;
        Operation { client: 0, node, how, level, call, invoked, ended: Some(invoked), end }
    }

    #[test]
    fn what_another_term_has_for_good_is_given_up_and_nothing_else() {
        let (old, new) = ((NodeId(0), 1), (NodeId(1), 9));
        let mut master_terms = MasterTerms::new(2, false);
        let said = |master_terms: &mut MasterTerms, node, from, term, is_final| {
            master_terms.histories.on_master_term(NodeId(node), at(from), term, is_final)
        };
        let operations = (0..5).map(|at| operation(at + 1)).collect();
        let history = History { operations };
        // No node has reported the first version yet.
        master_terms.on_answer(NodeId(0), OpId(0), v(1));
        assert_eq!(said(&mut master_terms, 0, 2, old, false), None);
        (1..4).for_each(|op| master_terms.on_answer(NodeId(0), OpId(op), v(op as u64 + 1)));
        assert_eq!(said(&mut master_terms, 1, 2, old, true), None);
        assert_eq!(master_terms.given_up(&history).count(), 0);
        assert_eq!(said(&mut master_terms, 1, 4, new, true), None);
        assert_eq!(said(&mut master_terms, 1, 4, new, false), None);
        // The same version number, but of the confirmed term.
        master_terms.on_answer(NodeId(1), OpId(4), v(5));
        let lost: Vec<OpId> = master_terms.given_up(&history).collect();
        assert_eq!(lost, [OpId(3)], "version 4, but not 1 to 3, or 5");
        assert_eq!(
            said(&mut master_terms, 0, 4, old, true),
            Some(new),
            "only one of the two can be confirmed"
        );
        let kept = master_terms.surviving_history(&history);
        assert_eq!(kept.operations[3].end, End::Refused);
        assert_eq!(kept.operations[2], history.operations[2]);
        // The old master has rolled back and answers again.
        assert_eq!(said(&mut master_terms, 0, 4, new, false), None);
        master_terms.on_answer(NodeId(0), OpId(3), v(4));
        assert_eq!(master_terms.given_up(&history).count(), 0);
    }

    /// Transactions of all shards contribute to a version.
    #[test]
    fn where_tables_are_divided_nobody_knows_what_became_of_what_is_given_up() {
        let (first, other, beside) = ((NodeId(0), 1), (NodeId(2), 1), (NodeId(1), 1));
        let mut master_terms = MasterTerms::new(3, true);
        let history = History { operations: vec![operation(2), operation(4)] };
        let said = |master_terms: &mut MasterTerms, node, shard, from, term, is_final| {
            master_terms.histories.on_master_term(
                NodeId(node),
                (ShardId(shard), v(from)),
                term,
                is_final,
            )
        };
        for (shard, term) in [(0, first), (1, beside)] {
            assert_eq!(said(&mut master_terms, 1, shard, 1, term, false), None);
            assert_eq!(said(&mut master_terms, 2, shard, 1, term, true), None);
        }
        master_terms.on_answer(NodeId(1), OpId(0), v(2));
        master_terms.on_answer(NodeId(1), OpId(1), v(4));
        assert_eq!(said(&mut master_terms, 2, 0, 3, other, true), None);
        let kept = master_terms.surviving_history(&history);
        assert_eq!(kept.operations[0], history.operations[0]);
        assert_eq!((&kept.operations[1].end, kept.operations[1].ended), (&End::Ambiguous, None));
    }

    /// Register workload, seed 925: a master whose term was renewed had begun another term when it
    /// was deposed for versions of the previous one.
    #[test]
    fn a_term_goes_with_the_one_that_it_came_after() {
        let (first, second, other) = ((NodeId(0), 1), (NodeId(0), 7), (NodeId(1), 1));
        let mut master_terms = MasterTerms::new(2, false);
        let history = History { operations: vec![operation(4)] };
        master_terms.histories.on_master_term(NodeId(0), at(1), first, false);
        master_terms.histories.on_master_term(NodeId(0), at(3), second, false);
        master_terms.on_answer(NodeId(0), OpId(0), v(4));
        master_terms.histories.on_master_term(NodeId(1), at(1), first, true);
        master_terms.histories.on_master_term(NodeId(1), at(2), other, true);
        master_terms.histories.on_master_term(NodeId(1), at(3), (NodeId(0), 9), true);
        assert_eq!(master_terms.given_up(&history).count(), 1);
    }

    #[test]
    fn a_master_that_starts_again_has_lost_nothing_unless_its_disk_is_lost() {
        let (before, after) = ((NodeId(0), 1), (NodeId(0), 7));
        let mut master_terms = MasterTerms::new(2, false);
        let history = History { operations: vec![operation(3)] };
        master_terms.histories.on_master_term(NodeId(0), at(1), before, false);
        master_terms.histories.on_master_term(NodeId(1), at(1), before, true);
        master_terms.on_answer(NodeId(0), OpId(0), v(3));
        master_terms.histories.on_start(NodeId(0));
        master_terms.histories.on_master_term(NodeId(1), at(3), after, true);
        assert_eq!(master_terms.given_up(&history).count(), 0, "the checkers find the loss");
        master_terms.histories.on_disk_lost(NodeId(0));
        assert_eq!(master_terms.given_up(&history).count(), 1);
    }
}
