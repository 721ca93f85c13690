//! Runs PostgreSQL statements as transactions.
//!
//! The cargo feature `relational`, on by default, is for queries that need DataFusion: joins,
//! subqueries, views, and the system catalog. Without it the crate builds in a fraction of the
//! time, and such a query fails with SQLSTATE 0A000 when it is planned.

// Functions over plans, and the rows of the system catalog, have no other callers.
#![cfg_attr(not(feature = "relational"), allow(dead_code, unused_imports))]

mod access;
mod authorization;
pub mod catalog;
mod concurrent_index;
mod conflict;
mod copy;
mod data_fusion;
mod delta;
pub mod engine;
pub mod error;
mod exec;
mod explain;
mod expr;
mod guarded;
pub mod history;
mod insight;
mod keys;
pub mod losses;
pub mod memory;
pub mod native;
pub mod notice;
mod plan;
mod procedure;
mod profile;
#[cfg_attr(not(feature = "relational"), path = "relational/absent.rs")]
mod relational;
pub mod remote_rows;
mod replay;
mod result_memory;
mod rows;
pub mod scram;
mod search_path;
mod sequence;
pub mod session;
mod settings;
mod statement;
mod subtransaction;
mod syntax;
mod system;
#[cfg(test)]
mod testing;
pub mod types;
mod vocabulary;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pangea_core::txn::Procedure;

use pangea_core::ids::{SnapshotVersion, TableId};

pub use insight::activity::Signals;
use plan::cache::PlanCache;
pub use result_memory::RESULTS_BYTES_DEFAULT;
use result_memory::ResultMemory;
pub use statement::STATEMENT;
pub use vocabulary::column::{Origin, OutputColumn};

/// The tables of catalog records and of the positions of sequences. Every node has all their rows,
/// even if tables are partitioned.
pub const SYSTEM_TABLES: [TableId; 2] = [catalog::CATALOG, catalog::sequence::SEQUENCES];

/// State shared by all sessions of a node.
#[derive(Debug, Default)]
pub struct Shared {
    plans: PlanCache,
    blocks: sequence::Blocks,
    replays: Replays,
    told: Acknowledged,
    insight: insight::Insight,
    results: Arc<ResultMemory>,
    natives: BTreeMap<String, Arc<native::Native>>,
    /// First parts of setting names that sessions may not make up.
    reserved_prefixes: Arc<[&'static str]>,
}

/// The last version that a client of this node was told of before the node had published it. The
/// next reads of all its sessions wait for that: a client may use one after the other.
#[derive(Debug, Default)]
struct Acknowledged(AtomicU64);

impl Acknowledged {
    fn note(&self, version: SnapshotVersion) {
        self.0.fetch_max(version.0, Ordering::Relaxed);
    }

    fn last(&self) -> SnapshotVersion {
        SnapshotVersion(self.0.load(Ordering::Relaxed))
    }
}

/// Counters of replayed transactions.
#[derive(Debug, Default)]
pub struct Replays {
    tried: AtomicU64,
    committed: AtomicU64,
}

impl Replays {
    fn count(&self, is_committed: bool) {
        self.tried.fetch_add(1, Ordering::Relaxed);
        self.committed.fetch_add(u64::from(is_committed), Ordering::Relaxed);
    }

    /// Returns the number of replays, and how many of them committed.
    pub fn counts(&self) -> (u64, u64) {
        (self.tried.load(Ordering::Relaxed), self.committed.load(Ordering::Relaxed))
    }
}

impl Shared {
    /// Returns the state of a node with a limit for the memory of unread results, in bytes.
    pub fn with_results_max(bytes: usize) -> Self {
        Self { results: Arc::new(ResultMemory::up_to(bytes)), ..Self::default() }
    }

    /// Adds procedures in Rust, which must be in the node's registry too.
    #[must_use]
    pub fn with_procedures(mut self, natives: &[Arc<native::Native>]) -> Self {
        let named = |native: &Arc<native::Native>| (native.name().to_owned(), native.clone());
        self.natives = natives.iter().map(named).collect();
        self
    }

    /// With first parts of setting names (`minerva` in `minerva.epoch_ms`) that a session may not
    /// make up: they are names of settings elsewhere, and `SET` would set nothing.
    #[must_use]
    pub fn with_reserved_prefixes(mut self, prefixes: Vec<&'static str>) -> Self {
        self.reserved_prefixes = prefixes.into();
        self
    }

    /// Returns the memory of results that clients have yet to read, in bytes.
    pub fn results_bytes(&self) -> usize {
        self.results.bytes()
    }

    /// Returns the counters of replayed transactions.
    pub fn replays(&self) -> &Replays {
        &self.replays
    }
}

/// Returns the procedures that a node must register to run SQL.
pub fn procedures() -> Vec<Arc<dyn Procedure>> {
    vec![
        Arc::new(sequence::Reserve),
        Arc::new(statement::Statement::default()),
        Arc::new(concurrent_index::BuildIndex),
        Arc::new(replay::Replay::default()),
    ]
}
