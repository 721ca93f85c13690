//! Calls whose time is laid beside what their node says of it.
//!
//! A node follows some of its transactions: those whose number is a multiple of a power of two,
//! which grows with how many there were. The same rule here picks the same ones, so that neither
//! has to tell the other beforehand.

use std::time::Duration;

use pangea_core::hash::HashMap;
use pangea_core::txn::Outcome;
use pangea_node::driver::KEPT_MAX;

/// A call that a node may have followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What kind of transaction it was.
    pub label: &'static str,
    /// How long its client waited.
    pub latency: Duration,
}

/// Calls of one node, by their transaction's number there.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// Numbers are kept whose bits under this mask are 0.
    mask: u64,
    calls: HashMap<u64, Call>,
}

impl Followed {
    /// A call has ended.
    pub fn add(&mut self, label: &'static str, latency: Duration, outcome: &Outcome) {
        let Outcome::Committed { txn, .. } = outcome else { return };
        // What took no place in the order has no number, and by PostgreSQL's protocol nobody tells.
        if txn.sequence() == 0 || txn.sequence() & self.mask != 0 {
            return;
        }
        self.calls.insert(txn.sequence(), Call { label, latency });
        if self.calls.len() > KEPT_MAX {
            let mask = self.mask << 1 | 1;
            self.calls.retain(|sequence, _| sequence & mask == 0);
            self.mask = mask;
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The call that is the node's transaction with this number.
    pub fn call(&self, sequence: u64) -> Option<Call> {
        self.calls.get(&sequence).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};

    #[test]
    fn calls_are_those_that_a_node_follows_and_not_many() {
        let mut followed = Followed::default();
        let version = SnapshotVersion(1);
        for sequence in 0..100_000 {
            let txn = TxnId::new(NodeId(2), sequence);
            let outcome = Outcome::Committed { txn, version, result: Vec::new() };
            followed.add("pay", Duration::from_micros(sequence), &outcome);
        }
        assert!((KEPT_MAX / 2..=KEPT_MAX).contains(&followed.calls.len()));
        let found = followed.call(1 << 14).expect("a power of two is kept for long");
        assert_eq!(found.latency, Duration::from_micros(1 << 14));
        assert_eq!((followed.call(0), followed.call((1 << 14) + 1)), (None, None));
    }
}
