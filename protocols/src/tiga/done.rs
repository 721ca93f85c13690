//! Transactions that are over: a coordinator may send one again long after it was committed, and
//! then it must not run twice.
//!
//! ```text
//!   coordinator 3:   1 .. 70 are over   | 71  72  73  74  ..
//!                    below 71           |     in forgotten cells: 72, 74
//! ```
//!
//! A log knows the transactions of its cells. When a cell is forgotten, its transactions are noted
//! here, until their coordinator says that it is done with them. It says so when the cell of each
//! earlier one is published there. So the table has at most the transactions that are in flight.
//! Checkpoints contain it.
//!
//! A leader may give a transaction an earlier stamp than its coordinator had, if that is too far in
//! the future. Followers may have accepted the later one, and report it to a new leader, whatever
//! the coordinator says. Such transactions are kept until their stamps are in the past.
//!
//! A coordinator that restarts is done with all earlier transactions, because their clients are
//! gone and it does not send them again.

use std::collections::BTreeMap;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::mutate;

use super::cells::{Cell, last_of};
use super::coordinator::Coordinator;
use super::stamp::Stamp;
use crate::inputs::IN_FLIGHT_MAX;
use crate::messages::NUMBER_MAX;
use crate::streams::number;

/// The transactions that are over, on one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// For each coordinator, the number below which its transactions are over.
    below: Vec<u64>,
    /// The others of forgotten cells, with the versions of the cells.
    committed: BTreeMap<TxnId, SnapshotVersion>,
    /// Those of forgotten cells that a leader gave an earlier stamp than their coordinator had,
    /// with the stamp of the coordinator. A follower may have accepted it.
    lowered: BTreeMap<TxnId, Stamp>,
}

impl Done {
    pub(super) fn new(node_count: usize) -> Self {
        let (committed, lowered) = (BTreeMap::new(), BTreeMap::new());
        Self { below: vec![0; node_count], committed, lowered }
    }

    /// Whether a transaction is over.
    pub(super) fn contains(&self, txn: TxnId) -> bool {
        txn.sequence() < self.below_of(txn.node()) || self.committed.contains_key(&txn)
    }

    /// Whether a transaction is in a cell that was forgotten, although its coordinator's stamp is
    /// after all of those cells, or its coordinator is not done with it.
    pub(super) fn is_committed(&self, txn: TxnId) -> bool {
        self.committed.contains_key(&txn) || self.lowered.contains_key(&txn)
    }

    /// The number below which the transactions of a coordinator are over.
    pub(super) fn below_of(&self, node: NodeId) -> u64 {
        self.below.get(node.index()).copied().unwrap_or_default()
    }

    /// The largest number of a coordinator's transactions that are over; 0 if there is none.
    pub(super) fn last_of(&self, node: NodeId) -> u64 {
        let all = TxnId::new(node, 0)..=TxnId::new(node, NUMBER_MAX - 1);
        let last = self.committed.range(all).next_back().map_or(0, |(txn, _)| txn.sequence());
        last.max(self.below_of(node).saturating_sub(1))
    }

    /// A coordinator is done with all transactions below this number.
    pub(super) fn raise(&mut self, node: NodeId, below: u64) {
        if below <= self.below_of(node) {
            return;
        }
        self.below[node.index()] = below;
        let all = TxnId::new(node, 0)..TxnId::new(node, below.min(NUMBER_MAX - 1));
        let over: Vec<TxnId> = self.committed.range(all).map(|(txn, _)| *txn).collect();
        for txn in over {
            self.committed.remove(&txn);
        }
    }

    /// The log forgets a cell. `stamp_of` knows the stamps of coordinators.
    pub(super) fn note(&mut self, cell: &Cell, stamp_of: impl Fn(TxnId) -> Option<Stamp>) {
        let last = last_of(cell.version);
        for (txn, _) in &cell.txns {
            if txn.sequence() >= self.below_of(txn.node()) {
                self.committed.insert(*txn, cell.version);
            }
            let lowered = stamp_of(*txn).filter(|stamp| *stamp > last);
            self.lowered.extend(lowered.map(|stamp| (*txn, stamp)));
        }
    }

    /// All cells up to a version are forgotten: nothing at or below it is accepted any more.
    pub(super) fn close(&mut self, version: SnapshotVersion) {
        let closed = last_of(version);
        self.lowered.retain(|_, stamp| *stamp > closed);
    }

    /// Adds the table of another replica.
    pub(super) fn merge(&mut self, other: Self) {
        for (node, below) in (0..).map(NodeId).zip(&other.below) {
            self.raise(node, *below);
        }
        let committed = other.committed.into_iter();
        let are_open = committed.filter(|(txn, _)| txn.sequence() >= self.below_of(txn.node()));
        let are_open: Vec<_> = are_open.collect();
        self.committed.extend(are_open);
        self.lowered.extend(other.lowered);
    }

    /// Appends the table to `out`. [`Done::decode`] is the inverse.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.below.iter().for_each(|below| out.put_varint(*below));
        let none = BTreeMap::new();
        let committed = mutate!(RunTwice: &self.committed => &none);
        out.put_varint(committed.len() as u64);
        for (txn, version) in committed {
            out.put_u64(txn.to_bits());
            out.put_varint(version.0);
        }
        out.put_varint(self.lowered.len() as u64);
        for (txn, stamp) in &self.lowered {
            out.put_u64(txn.to_bits());
            out.put_u64(stamp.to_bits());
        }
    }

    /// Decodes the table of a group of `node_count` replicas.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(from: &mut Reader<'_>, node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "transactions that are over";
        let below = (0..node_count).map(|_| number(from, WHAT)).collect::<Result<_, _>>()?;
        let txn = |from: &mut Reader<'_>| {
            let txn = TxnId::from_bits(from.u64(WHAT)?);
            match txn.node().index() < node_count {
                true => Ok(txn),
                false => Err(DecodeError::new(WHAT)),
            }
        };
        let mut done = Self { below, committed: BTreeMap::new(), lowered: BTreeMap::new() };
        for _ in 0..from.count(WHAT)? {
            done.committed.insert(txn(from)?, SnapshotVersion(number(from, WHAT)?));
        }
        for _ in 0..from.count(WHAT)? {
            done.lowered.insert(txn(from)?, Stamp::from_bits(from.u64(WHAT)?));
        }
        Ok(done)
    }
}

/// The maximum number of transactions from the first one that is not over on. All replicas keep the
/// ids of those after it.
const OPEN_MAX: u64 = 1 << 18;

impl Coordinator {
    /// Whether it takes no more transactions, beside those that wait for their footprints.
    pub(super) fn is_full(&self, looked_up: usize) -> bool {
        let open = self.next_sequence - self.done_below();
        self.in_flight.len() + looked_up >= IN_FLIGHT_MAX || open >= OPEN_MAX
    }

    /// The number below which the transactions of this coordinator are over.
    pub(super) fn done_below(&self) -> u64 {
        let in_flight = self.in_flight.keys().next();
        let open = in_flight.into_iter().chain(self.unsettled.keys().next());
        open.map(|txn| txn.sequence()).min().unwrap_or(self.next_sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txn(node: u16, sequence: u64) -> TxnId {
        TxnId::new(NodeId(node), sequence)
    }

    fn cell(version: u64, txns: &[TxnId]) -> Cell {
        let txns = txns.iter().map(|txn| (*txn, Stamp::ZERO)).collect();
        Cell { version: SnapshotVersion(version), txns }
    }

    #[test]
    fn a_transaction_is_over_until_and_after_its_coordinator_is_done_with_it() {
        let mut done = Done::new(3);
        done.note(&cell(5, &[txn(0, 7), txn(1, 2), txn(1, 3), txn(2, 1)]), |_| None);
        assert!(done.contains(txn(1, 2)) && !done.contains(txn(1, 1)));
        done.raise(NodeId(1), 3);
        assert!(done.contains(txn(1, 1)) && done.contains(txn(1, 2)) && done.contains(txn(1, 3)));
        assert!(!done.contains(txn(1, 4)) && !done.contains(txn(0, 6)));
        assert_eq!(done.committed.len(), 3, "2 of node 1 is below its bound");
        done.raise(NodeId(1), 2);
        assert_eq!(done.below_of(NodeId(1)), 3, "bounds do not go back");
        done.note(&cell(6, &[txn(1, 2)]), |_| None);
        assert_eq!(done.committed.len(), 3);
        let last = [0, 1, 2].map(|node| done.last_of(NodeId(node)));
        assert_eq!(last, [7, 3, 1]);
    }

    #[test]
    fn a_table_survives_its_encoding_and_is_merged_with_another() {
        let mut done = Done::new(2);
        let later = last_of(SnapshotVersion(9));
        let later = |it| (it == txn(0, 7)).then_some(later);
        done.note(&cell(5, &[txn(0, 7), txn(1, 300)]), later);
        done.raise(NodeId(0), 4);
        let mut bytes = Vec::new();
        done.encode(&mut bytes);
        let again = Done::decode(&mut Reader::new(&bytes), 2).expect("it was encoded");
        assert_eq!(again, done);
        let mut foreign = Vec::new();
        let mut one = Done::new(1);
        one.note(&cell(5, &[txn(1, 7)]), |_| None);
        one.encode(&mut foreign);
        assert!(Done::decode(&mut Reader::new(&foreign), 1).is_err(), "there is no such node");
        for len in 0..bytes.len() {
            assert!(Done::decode(&mut Reader::new(&bytes[..len]), 2).is_err(), "{len} bytes");
        }
        let mut other = Done::new(2);
        other.note(&cell(4, &[txn(0, 3), txn(1, 299)]), |_| None);
        other.raise(NodeId(1), 300);
        other.merge(done);
        assert!(other.contains(txn(0, 3)) && other.contains(txn(1, 299)));
        assert!(other.contains(txn(0, 7)) && other.contains(txn(1, 300)));
        assert_eq!(other.committed.len(), 2);
        other.raise(NodeId(0), 8);
        assert!(other.is_committed(txn(0, 7)), "followers may have it at a later stamp");
        other.close(SnapshotVersion(8));
        assert!(other.is_committed(txn(0, 7)));
        other.close(SnapshotVersion(9));
        assert!(!other.is_committed(txn(0, 7)));
    }
}
