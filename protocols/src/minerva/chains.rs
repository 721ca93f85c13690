//! Transaction chains (§3.2, Figure 3; §4 "Transaction Chains Building").
//!
//! A chain is a connected component of the local dependencies among the transactions of one epoch.
//! A transaction depends on transactions of the same source whose uncommitted writes it read. A
//! chain is valid as a whole or not at all. Dependencies cross the batches of the epoch, so chains
//! do too.

use std::sync::Arc;

use pangea_core::hash::HashMap;
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::txn::ReadVersion;

use super::batch::{Batch, TxnRecord};

/// A transaction of the epoch, with the epoch that its source had applied when it ran.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub record: &'a TxnRecord,
    pub base: SnapshotVersion,
}

/// The transactions of batches.
pub(super) fn entries_of(batches: &[Arc<Batch>]) -> Vec<Entry<'_>> {
    let mut entries = Vec::with_capacity(batches.iter().map(|batch| batch.records.len()).sum());
    for batch in batches {
        entries.extend(batch.records.iter().map(|record| Entry { record, base: batch.base }));
    }
    entries
}

/// Transactions whose runs depend on each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// Chains of one origin don't conflict: they were executed one after the other, and each saw
    /// the writes of the earlier ones.
    pub origin: Origin,
    /// Its transactions, as positions among the epoch's entries, ascending.
    pub members: Vec<usize>,
}

/// The origin of runs that saw each other's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Origin {
    /// The replica that ran them.
    pub source: NodeId,
    /// The epoch on which they ran, if the temporary state is reset every epoch: then runs of one
    /// source saw each other's writes only between two resets. Otherwise zero.
    pub base: SnapshotVersion,
}

/// Groups the optimistic transactions of an epoch into chains, in the order of their first members.
pub(super) fn build(entries: &[Entry<'_>], keep_uncommitted: bool) -> Vec<Chain> {
    let position: HashMap<TxnId, usize> =
        entries.iter().enumerate().map(|(i, entry)| (entry.record.txn, i)).collect();
    let mut components = Components::new(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        let Some((reads, _)) = entry.record.learned() else { continue };
        let points = reads.points.iter().map(|read| read.seen);
        let rows = reads.ranges.iter().flat_map(|range| range.rows.iter().map(|row| row.1));
        for writer in points.chain(rows).filter_map(ReadVersion::local_writer) {
            if let Some(&j) = position.get(&writer) {
                mutate!(ChainsNotJoined: components.join(i, j) => ());
            }
        }
    }
    let mut chain_of_root: HashMap<usize, usize> = HashMap::default();
    let mut chains: Vec<Chain> = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        if entry.record.learned().is_none() {
            continue;
        }
        let base = if keep_uncommitted { SnapshotVersion::ZERO } else { entry.base };
        let origin = Origin { source: entry.record.txn.node(), base };
        let chain = *chain_of_root.entry(components.root(i)).or_insert_with(|| {
            chains.push(Chain { origin, members: Vec::new() });
            chains.len() - 1
        });
        assert_eq!(chains[chain].origin, origin, "a chain has one origin");
        chains[chain].members.push(i);
    }
    chains
}

/// Disjoint sets of positions; the root of a set is its smallest member.
struct Components {
    parent: Vec<usize>,
}

impl Components {
    fn new(count: usize) -> Self {
        Self { parent: (0..count).collect() }
    }

    fn root(&mut self, mut i: usize) -> usize {
        while self.parent[i] != i {
            self.parent[i] = self.parent[self.parent[i]];
            i = self.parent[i];
        }
        i
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a.max(b)] = a.min(b);
    }
}
