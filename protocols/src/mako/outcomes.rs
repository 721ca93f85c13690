//! Outcomes that nodes may still ask for: a transaction that was sent again is executed once.
//!
//! A node numbers its transactions, and uses no number twice (`forwarding.rs`). It sends those that
//! have no outcome again to a new leader, and says below which number it will not ask any more. The
//! leader puts that in the log, so that all replicas forget the same outcomes.
//!
//! ```text
//!   node 3:   .. 70 are over | 71  72  73  74
//!                            |     outcomes: 72, 74
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::mutate;

use super::log::{Entry, RunResult, decode_abort, encode_abort};
use crate::messages::NUMBER_MAX;
use crate::streams::number;

/// The outcomes in the published versions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcomes {
    /// For each node, the number below which its transactions are over.
    below: BTreeMap<NodeId, u64>,
    known: BTreeMap<TxnId, (SnapshotVersion, RunResult)>,
}

impl Outcomes {
    /// The outcome of a transaction, and its version.
    pub(super) fn of(&self, txn: TxnId) -> Option<&(SnapshotVersion, RunResult)> {
        self.known.get(&txn)
    }

    /// Whether a transaction was executed, or its node does not ask for it any more.
    pub(super) fn contains(&self, txn: TxnId) -> bool {
        self.known.contains_key(&txn) || txn.sequence() < self.below(txn.node())
    }

    /// The number below which the transactions of a node are over.
    fn below(&self, node: NodeId) -> u64 {
        self.below.get(&node).copied().unwrap_or_default()
    }

    /// The last number of a node that is known here; 0 if there is none.
    pub(super) fn last_of(&self, node: NodeId) -> u64 {
        let all = TxnId::new(node, 0)..=TxnId::new(node, NUMBER_MAX - 1);
        let last = self.known.range(all).next_back().map_or(0, |(txn, _)| txn.sequence());
        last.max(self.below(node).saturating_sub(1))
    }

    /// The number of outcomes.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// An entry is published.
    pub(super) fn note(&mut self, entry: &Entry) {
        let own = entry.txns.iter().filter(|_| !entry.is_piece());
        for executed in own {
            let outcome = (entry.at(), executed.outcome.clone());
            mutate!(MakoForwardedTwice: {
                self.known.insert(executed.txn, outcome);
            } => {
                let _ = outcome;
            });
        }
        for (node, below) in &entry.over {
            self.raise(*node, *below);
        }
    }

    /// A node does not ask for transactions below a number any more.
    fn raise(&mut self, node: NodeId, below: u64) {
        if below <= self.below(node) {
            return;
        }
        self.below.insert(node, below);
        let all = TxnId::new(node, 0)..TxnId::new(node, below.min(NUMBER_MAX - 1));
        let over: Vec<TxnId> = self.known.range(all).map(|(txn, _)| *txn).collect();
        over.into_iter().for_each(|txn| {
            self.known.remove(&txn);
        });
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_varint(self.below.len() as u64);
        for (node, below) in &self.below {
            out.put_u16(node.0);
            out.put_varint(*below);
        }
        out.put_varint(self.known.len() as u64);
        for (txn, (version, outcome)) in &self.known {
            out.put_u64(txn.to_bits());
            out.put_varint(version.0);
            out.put_u8(u8::from(outcome.is_ok()));
            match outcome {
                Ok(result) => out.put_bytes(result),
                Err(abort) => out.put_bytes(&encode_abort(abort)),
            }
        }
        out.into()
    }

    /// Decodes what [`Outcomes::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "outcomes";
        let below = (0..from.count(WHAT)?)
            .map(|_| Ok((NodeId(from.u16(WHAT)?), number(from, WHAT)?)))
            .collect::<Result<_, DecodeError>>()?;
        let known = (0..from.count(WHAT)?)
            .map(|_| {
                let txn = TxnId::from_bits(from.u64(WHAT)?);
                let version = SnapshotVersion(number(from, WHAT)?);
                let outcome = match from.u8(WHAT)? {
                    1 => Ok(from.bytes(WHAT)?.to_vec()),
                    0 => Err(decode_abort(from.bytes(WHAT)?)?),
                    _ => return Err(DecodeError::new(WHAT)),
                };
                Ok((txn, (version, outcome)))
            })
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self { below, known })
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::Executed;
    use super::*;

    fn entry(version: u64, sequences: &[u64], over: &[(NodeId, u64)]) -> Entry {
        let executed = |sequence: &u64| Executed {
            txn: TxnId::new(NodeId(1), *sequence),
            outcome: Ok(vec![*sequence as u8]),
        };
        let (version, before) = (SnapshotVersion(version), SnapshotVersion(version - 1));
        let txns = sequences.iter().map(executed).collect();
        Entry { version, before, txns, over: over.to_vec(), writes: Vec::new(), across: None }
    }

    #[test]
    fn outcomes_are_kept_until_their_node_does_not_ask_any_more() {
        let txn = |sequence| TxnId::new(NodeId(1), sequence);
        let mut outcomes = Outcomes::default();
        outcomes.note(&entry(1, &[70, 72], &[]));
        assert!(outcomes.contains(txn(70)) && !outcomes.contains(txn(71)));
        outcomes.note(&entry(2, &[74], &[(NodeId(1), 72), (NodeId(2), 500)]));
        assert_eq!(outcomes.of(txn(70)), None, "it is over");
        assert!(outcomes.contains(txn(70)) && outcomes.contains(txn(71)), "they are over");
        assert_eq!(outcomes.of(txn(72)), Some(&(SnapshotVersion(1), Ok(vec![72]))));
        outcomes.note(&entry(3, &[], &[(NodeId(1), 71)]));
        assert!(outcomes.contains(txn(71)), "a late message says less");
        assert_eq!((outcomes.last_of(NodeId(1)), outcomes.last_of(NodeId(2))), (74, 499));
        let bytes = outcomes.encode();
        assert_eq!(Outcomes::decode(&mut Reader::new(&bytes)), Ok(outcomes.clone()));
        for len in 0..bytes.len() {
            assert!(Outcomes::decode(&mut Reader::new(&bytes[..len])).is_err());
        }
    }
}
