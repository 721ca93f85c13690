//! The input of this crate's benchmarks: an epoch of three replicas with conflicting transactions,
//! the same in every run.

#![allow(dead_code, reason = "each benchmark uses a part")]

use pangea_core::exec::optimistic::Run;
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::pool::Sequential;
use pangea_core::store::Store;
use pangea_core::txn::Program;
use pangea_core::workload::Workload;
use pangea_protocols::minerva::batch::{Batch, Bid, ExecutionMode, TxnRecord};
use pangea_protocols::minerva::bench::{Chains, Epoch};
use pangea_protocols::minerva::header;
use pangea_protocols::minerva::independent_set::{BUDGET_NODES, Graph, exact};

use crate::engine::Engine;

const SOURCES: u16 = 3;

/// An epoch up to its last phase, so that each phase can run on the results of those before it.
pub struct Decided {
    /// The tables as of the end of the previous epoch.
    pub store: Store,
    /// The previous epoch.
    pub before: SnapshotVersion,
    /// One batch of each source.
    pub batches: &'static [Batch],
    /// Their transactions.
    pub epoch: Epoch<'static>,
    /// Their chains.
    pub chains: Chains,
    /// The chains that are not stale.
    pub vertices: Vec<usize>,
    /// The conflict graph.
    pub graph: Graph,
    /// For each transaction, whether it commits as it was executed.
    pub is_valid: Vec<bool>,
}

/// An epoch of `txns` transactions of each source. The last source ran on an older snapshot than
/// the others, so that some of its reads are stale.
pub fn decided(workload: &Workload, label: &str, txns: usize) -> Decided {
    let mut engine = Engine::loaded(workload, header::as_executed);
    let drawn = engine.draw(workload, label, txns * (usize::from(SOURCES) + 1));
    let (between, of_sources) = drawn.split_at(txns);
    let old = engine.store.published();
    engine.run_ordered(between);
    let before = engine.store.published();
    let batch = |(index, programs): (usize, &[Program])| {
        let is_last = index + 1 == usize::from(SOURCES);
        batch_of(&engine, NodeId(index as u16), if is_last { old } else { before }, programs)
    };
    let batches: Vec<Batch> = of_sources.chunks(txns).enumerate().map(batch).collect();
    // The epoch borrows them, and both live until the process ends.
    decide(engine.store, before, Vec::leak(batches))
}

fn batch_of(engine: &Engine, source: NodeId, base: SnapshotVersion, programs: &[Program]) -> Batch {
    let runs = engine.run_optimistic(source, base, programs);
    let record = |(i, (program, run)): (usize, (&Program, Run))| {
        let txn = TxnId::new(source, 1 + i as u64);
        let Run { reads, writes, .. } = run;
        TxnRecord { txn, program: program.clone(), how: ExecutionMode::Executed { reads, writes } }
    };
    let records = programs.iter().zip(runs).enumerate().map(record).collect();
    Batch { source, bid: Bid(1), base, first_sequence: 1, records }
}

/// Decides an epoch like the commit phase, and asserts that each phase had something to do.
fn decide(store: Store, before: SnapshotVersion, batches: &'static [Batch]) -> Decided {
    let epoch = Epoch::new(batches, true);
    let chains = epoch.chains();
    let is_stale = epoch.stale(&Sequential, &store, before, &chains);
    let candidates: Vec<usize> = (0..is_stale.len()).filter(|&chain| !is_stale[chain]).collect();
    assert!(!candidates.is_empty() && candidates.len() < is_stale.len(), "some are stale, not all");
    let (vertices, edges) = epoch.graph(&Sequential, &chains, &candidates);
    assert!(!edges.is_empty(), "some conflict");
    let graph = Graph::new(chains.weights(&vertices), edges);
    let chosen = exact(&graph, BUDGET_NODES).chosen;
    let of_chosen = chosen.iter().map(|&vertex| vertices[vertex as usize]);
    let is_valid = epoch.in_chains(&chains, of_chosen);
    Decided { store, before, batches, epoch, chains, vertices, graph, is_valid }
}

/// A graph that no reduction solves, so that the exact solver has to search.
pub fn tangle(vertices: u32) -> Graph {
    const EDGES_PER_VERTEX: u32 = 4;
    let mut rng = fastrand::Rng::with_seed(7);
    let weights = (0..vertices).map(|_| rng.u64(1..4)).collect();
    let mut edge = |i| {
        let a = i % vertices;
        (a, (a + rng.u32(1..vertices)) % vertices)
    };
    Graph::new(weights, (0..vertices * EDGES_PER_VERTEX).map(&mut edge).collect::<Vec<_>>())
}
