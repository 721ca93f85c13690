//! Client latencies of the transactions that their nodes trace.
//!
//! A node traces some of its transactions: those whose number is a multiple of a power of two,
//! which grows with the number of transactions. Clients select calls by the same rule, so that no
//! coordination is necessary.

use std::time::Duration;

use pangea_core::hash::HashMap;
use pangea_core::txn::Outcome;
use pangea_node::driver::SAMPLES_MAX;

/// A call that a node may have traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The kind of the transaction.
    pub label: &'static str,
    /// The latency that the client saw.
    pub latency: Duration,
}

/// Calls of one node, by the number of the transaction on that node.
#[derive(Clone, Debug, Default)]
pub struct TracedCalls {
    /// Only numbers whose bits under this mask are 0 are recorded.
    mask: u64,
    calls: HashMap<u64, Call>,
}

impl TracedCalls {
    /// Records the end of a call.
    pub fn add(&mut self, label: &'static str, latency: Duration, outcome: &Outcome) {
        let Outcome::Committed { txn, .. } = outcome else { return };
        // Transactions outside of the serial order have no number, and PostgreSQL's protocol does
        // not report numbers.
        if txn.sequence() == 0 || txn.sequence() & self.mask != 0 {
            return;
        }
        self.calls.insert(txn.sequence(), Call { label, latency });
        if self.calls.len() > SAMPLES_MAX {
            let mask = self.mask << 1 | 1;
            self.calls.retain(|sequence, _| sequence & mask == 0);
            self.mask = mask;
        }
    }

    /// Returns whether no calls are recorded.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the call of the node's transaction with this number.
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
        let mut followed = TracedCalls::default();
        let version = SnapshotVersion(1);
        for sequence in 0..100_000 {
            let txn = TxnId::new(NodeId(2), sequence);
            let outcome = Outcome::Committed { txn, version, result: Vec::new() };
            followed.add("pay", Duration::from_micros(sequence), &outcome);
        }
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&followed.calls.len()));
        let found = followed.call(1 << 14).expect("powers of two are retained longest");
        assert_eq!(found.latency, Duration::from_micros(1 << 14));
        assert_eq!((followed.call(0), followed.call((1 << 14) + 1)), (None, None));
    }
}
