//! Which answers are of transactions that a failover took away: see [`crate::reigns`].

use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Protocol;

use super::World;
use crate::history::{End, History, OpId};
use crate::reigns::{Line, Lines, Reign};

/// What nodes have said, and what they have answered.
pub(super) struct Reigns {
    pub(super) lines: Lines,
    /// Of each answer, its version, and whose the versions up to that were at the node.
    answers: BTreeMap<OpId, (SnapshotVersion, Line)>,
}

impl Reigns {
    pub(super) fn new(node_count: usize) -> Self {
        Self { lines: Lines::new(node_count), answers: BTreeMap::new() }
    }

    /// A node answers an operation with what it has at a version.
    pub(super) fn on_answer(&mut self, node: NodeId, op: OpId, version: SnapshotVersion) {
        let line = self.lines.up_to(node, version);
        if !line.is_empty() {
            self.answers.insert(op, (version, line));
        }
    }

    /// The operations that were given up.
    pub(super) fn given_up<'a>(&'a self, history: &'a History) -> impl Iterator<Item = OpId> + 'a {
        let is_over = |end: &End| matches!(end, End::Committed { .. } | End::Read { .. });
        let lost =
            self.answers.iter().filter(|(_, (version, line))| self.lines.is_lost(*version, line));
        lost.map(|(op, _)| *op).filter(move |op| is_over(&history[*op].end))
    }

    /// The history without them.
    pub(super) fn kept(&self, history: &History) -> History {
        let mut kept = history.clone();
        for op in self.given_up(history) {
            kept.operations[op.0].end = End::Refused;
        }
        kept
    }
}

impl<P: Protocol> World<P> {
    /// A node says whose transactions it has from a version on: here, or for good.
    pub(super) fn reign(
        &mut self,
        id: NodeId,
        from: SnapshotVersion,
        reign: Option<Reign>,
        is_final: bool,
    ) {
        let said = [from.0, reign.map_or(0, |(_, first)| first)];
        self.trace.event(self.now, id, "reign", said, || match reign {
            Some((master, first)) => {
                let how = if is_final { "for good" } else { "here" };
                format!("from {from} on transactions are of {master}, from {first} on, {how}")
            }
            None => "not known".into(),
        });
        let Some(reign) = reign else { return self.reigns.lines.on_start(id) };
        if let Some(other) = self.reigns.lines.on_reign(id, from, reign, is_final) {
            let story = format!("{id} has {from} of {reign:?} for good, another of {other:?}");
            self.violate("reigns", story);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{How, Operation};
    use pangea_core::ids::TxnId;
    use pangea_core::time::Timestamp;
    use pangea_core::workload::Call;

    const fn v(version: u64) -> SnapshotVersion {
        SnapshotVersion(version)
    }

    fn operation(version: u64) -> Operation {
        let call =
            Call { procedure: "p", args: Default::default(), label: "p", is_read_only: false };
        let end = End::Committed { txn: TxnId::default(), version: v(version), result: Vec::new() };
        let (invoked, node, how) = (Timestamp::default(), NodeId(0), How::Ordered);
        Operation { client: 0, node, how, call, invoked, ended: Some(invoked), end }
    }

    #[test]
    fn what_another_reign_has_for_good_is_given_up_and_nothing_else() {
        let (old, new) = ((NodeId(0), 1), (NodeId(1), 9));
        let mut reigns = Reigns::new(2);
        let said = |reigns: &mut Reigns, node, from, reign, is_final| {
            reigns.lines.on_reign(NodeId(node), v(from), reign, is_final)
        };
        let operations = (0..5).map(|at| operation(at + 1)).collect();
        let history = History { operations };
        // Of the first nobody has said anything yet.
        reigns.on_answer(NodeId(0), OpId(0), v(1));
        assert_eq!(said(&mut reigns, 0, 2, old, false), None);
        (1..4).for_each(|op| reigns.on_answer(NodeId(0), OpId(op), v(op as u64 + 1)));
        assert_eq!(said(&mut reigns, 1, 2, old, true), None);
        assert_eq!(reigns.given_up(&history).count(), 0);
        assert_eq!(said(&mut reigns, 1, 4, new, true), None);
        assert_eq!(said(&mut reigns, 1, 4, new, false), None);
        // The same version number, of the one that counts.
        reigns.on_answer(NodeId(1), OpId(4), v(5));
        let lost: Vec<OpId> = reigns.given_up(&history).collect();
        assert_eq!(lost, [OpId(3)], "version 4, and not 1 to 3, nor 5");
        assert_eq!(said(&mut reigns, 0, 4, old, true), Some(new), "they can't both be for good");
        let kept = reigns.kept(&history);
        assert_eq!(kept.operations[3].end, End::Refused);
        assert_eq!(kept.operations[2], history.operations[2]);
        // The old master has gone back, and is asked again.
        assert_eq!(said(&mut reigns, 0, 4, new, false), None);
        reigns.on_answer(NodeId(0), OpId(3), v(4));
        assert_eq!(reigns.given_up(&history).count(), 0);
    }

    /// Register, seed 925: a master whose term was renewed had begun another reign when it was
    /// deposed for what came before that.
    #[test]
    fn a_reign_goes_with_the_one_that_it_came_after() {
        let (first, second, other) = ((NodeId(0), 1), (NodeId(0), 7), (NodeId(1), 1));
        let mut reigns = Reigns::new(2);
        let history = History { operations: vec![operation(4)] };
        reigns.lines.on_reign(NodeId(0), v(1), first, false);
        reigns.lines.on_reign(NodeId(0), v(3), second, false);
        reigns.on_answer(NodeId(0), OpId(0), v(4));
        reigns.lines.on_reign(NodeId(1), v(1), first, true);
        reigns.lines.on_reign(NodeId(1), v(2), other, true);
        reigns.lines.on_reign(NodeId(1), v(3), (NodeId(0), 9), true);
        assert_eq!(reigns.given_up(&history).count(), 1);
    }

    #[test]
    fn a_master_that_starts_again_has_lost_nothing_unless_its_disk_is_lost() {
        let (before, after) = ((NodeId(0), 1), (NodeId(0), 7));
        let mut reigns = Reigns::new(2);
        let history = History { operations: vec![operation(3)] };
        reigns.lines.on_reign(NodeId(0), v(1), before, false);
        reigns.lines.on_reign(NodeId(1), v(1), before, true);
        reigns.on_answer(NodeId(0), OpId(0), v(3));
        reigns.lines.on_start(NodeId(0));
        reigns.lines.on_reign(NodeId(1), v(3), after, true);
        assert_eq!(reigns.given_up(&history).count(), 0, "the checkers will find it missing");
        reigns.lines.on_disk_lost(NodeId(0));
        assert_eq!(reigns.given_up(&history).count(), 1);
    }
}
