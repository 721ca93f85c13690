//! The order of the transactions of an epoch (§4.1.2; §4.3, Lemma 2).
//!
//! The paper compares the rows of conflicting transactions: the shorter transaction wins, which is
//! the one with the larger start epoch `sen`, and among equals the first write, by the commit
//! sequence number `csn`. This order is the same on every replica because it depends only on what
//! travels with a transaction.
//!
//! Differences from the paper:
//! - Transactions that were tried before come first. With the paper's order a long transaction can
//!   lose forever.
//! - A `csn` counts from the start of the epoch on the transaction's node, and ties are broken in
//!   an order of the nodes that changes with each epoch. The paper compares clocks of different
//!   nodes, so that a node with a fast clock loses all conflicts.

use std::cmp::Reverse;

use pangea_core::ids::{SnapshotVersion, TxnId};

/// The place of a transaction among those of its epoch. The lowest wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    attempt: Reverse<u8>,
    start: Reverse<SnapshotVersion>,
    csn: Csn,
}

/// The commit sequence number (§4.1.1): unique, and the same on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Csn {
    /// The time since the start of the epoch on the transaction's node, in microseconds.
    offset_us: u32,
    /// The turn of the node in this epoch.
    turn: u64,
    txn: TxnId,
}

/// The values of a transaction that its rank depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankInputs {
    /// The transaction.
    pub txn: TxnId,
    /// How often it has lost before.
    pub attempt: u8,
    /// The epoch in which it began: the paper's `sen`.
    pub start: SnapshotVersion,
    /// The time from the start of the epoch to its commit request on its node, in microseconds.
    pub offset_us: u32,
}

impl Rank {
    /// The rank of a transaction in `epoch`, in a cluster of `node_count`.
    pub fn new(inputs: RankInputs, epoch: SnapshotVersion, node_count: usize) -> Self {
        let RankInputs { txn, attempt, start, offset_us } = inputs;
        let turn = (u64::from(txn.node().0) + epoch.0) % node_count as u64;
        let csn = Csn { offset_us, turn, txn };
        Self { attempt: Reverse(attempt), start: Reverse(start), csn }
    }

    /// The same rank with another turn.
    pub(super) fn with_turn(self, turn: u64) -> Self {
        Self { csn: Csn { turn, ..self.csn }, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::NodeId;

    fn rank(node: u16, attempt: u8, start: u64, offset_us: u32, epoch: u64) -> Rank {
        let txn = TxnId::new(NodeId(node), 7);
        let inputs = RankInputs { txn, attempt, start: SnapshotVersion(start), offset_us };
        Rank::new(inputs, SnapshotVersion(epoch), 3)
    }

    /// §4.1.2: "we let shorter transactions win", then "first-write-win".
    #[test]
    fn a_shorter_transaction_wins_then_the_earlier_one() {
        assert!(rank(0, 0, 9, 500, 10) < rank(1, 0, 8, 100, 10));
        assert!(rank(0, 0, 9, 100, 10) < rank(1, 0, 9, 101, 10));
    }

    #[test]
    fn who_has_lost_before_comes_first() {
        assert!(rank(0, 1, 3, 900, 10) < rank(1, 0, 10, 0, 10));
    }

    #[test]
    fn no_node_wins_all_ties() {
        let winner = |epoch| {
            let nodes = (0..3).map(|node| (rank(node, 0, 1, 5, epoch), node));
            nodes.min().map(|(_, node)| node)
        };
        let winners: std::collections::BTreeSet<_> = (10..13).map(winner).collect();
        assert_eq!(winners.len(), 3);
    }
}
