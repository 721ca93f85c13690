//! Entry points for benchmarks: the work of the commit phase on an epoch, one phase at a time.
//!
//! Only with the feature `bench`, which no release enables. Each method calls the phase's own
//! function and adds nothing to it.

use pangea_core::ids::SnapshotVersion;
use pangea_core::pool::Pool;
use pangea_core::store::Store;

use super::batch::Batch;
use super::chains::{self, Chain, Entry};
use super::commit;
use super::conflict_graph::{self, CONFLICTS_MAX, Limit};
use super::validation::Validator;

/// The transactions of an epoch, in the order of its cut.
pub struct Epoch<'a> {
    entries: Vec<Entry<'a>>,
    keep_uncommitted: bool,
}

/// The chains of an epoch.
#[derive(Debug, PartialEq, Eq)]
pub struct Chains(Vec<Chain>);

impl Chains {
    /// The number of transactions in each of these chains.
    pub fn weights(&self, vertices: &[usize]) -> Vec<u64> {
        vertices.iter().map(|&chain| self.0[chain].members.len() as u64).collect()
    }
}

impl<'a> Epoch<'a> {
    /// The epoch of batches that are sorted by source and then by number.
    pub fn new(batches: &'a [Batch], keep_uncommitted: bool) -> Self {
        let entry = |batch: &'a Batch| {
            batch.records.iter().map(|record| Entry { record, base: batch.base })
        };
        Self { entries: batches.iter().flat_map(entry).collect(), keep_uncommitted }
    }

    /// The number of transactions.
    pub fn txns(&self) -> usize {
        self.entries.len()
    }

    /// The phase "chains".
    pub fn chains(&self) -> Chains {
        Chains(chains::build(&self.entries, self.keep_uncommitted))
    }

    /// The phase "validation": whether each chain is stale.
    pub fn stale(
        &self,
        pool: &dyn Pool,
        store: &Store,
        before: SnapshotVersion,
        chains: &Chains,
    ) -> Vec<bool> {
        let in_epoch = self.entries.iter().map(|entry| entry.record.txn).collect();
        let keep_uncommitted = self.keep_uncommitted;
        Validator { store, before, in_epoch, keep_uncommitted }.stale(
            pool,
            &self.entries,
            &chains.0,
        )
    }

    /// The phase "conflict graph": those of these chains that can be chosen, and the conflicts
    /// between them, as positions in the first list.
    pub fn graph(
        &self,
        pool: &dyn Pool,
        chains: &Chains,
        candidates: &[usize],
    ) -> (Vec<usize>, Vec<(u32, u32)>) {
        let limit = Limit(CONFLICTS_MAX);
        let graph = conflict_graph::build(pool, &self.entries, &chains.0, candidates, limit);
        (graph.vertices, graph.edges)
    }

    /// For each transaction, whether it is in one of these chains.
    pub fn in_chains(&self, chains: &Chains, chosen: impl IntoIterator<Item = usize>) -> Vec<bool> {
        let mut is_in = vec![false; self.entries.len()];
        for chain in chosen {
            chains.0[chain].members.iter().for_each(|&member| is_in[member] = true);
        }
        is_in
    }

    /// The phase "commit": applies the write sets of valid transactions.
    pub fn apply(&self, pool: &dyn Pool, store: &Store, epoch: SnapshotVersion, is_valid: &[bool]) {
        commit::apply_valid(store, pool, epoch, &self.entries, is_valid);
    }
}
