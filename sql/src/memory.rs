//! An engine of one node without a protocol: programs run one after another, in memory.
//!
//! It serves tests, and SQL without a cluster. A lock orders programs, the reads of interactive
//! transactions are certified, and all data is lost when the engine is dropped.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pangea_core::exec::Change;
use pangea_core::guarantee::Isolation;
use pangea_core::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::{Direction, Key};
use pangea_core::pool::Pool;
use pangea_core::protocol::Status;
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{
    Abort, Certified, Outcome, Procedure, Program, ReadVersion, Registry, SqlState, Stop,
};

use crate::engine::{Engine, NodeInfo, Unavailable};
use crate::history::{History, Retention};
use crate::session::local::LocalContext;
use crate::session::now;

/// The limits of this engine's history.
const HISTORY: Retention =
    Retention { time: Duration::from_secs(300), versions_max: 100_000, deletions_max: 200 };

/// A pool that starts threads for each run.
#[derive(Debug, Default)]
struct Threads {
    /// The number of parallel runs.
    count: AtomicU64,
}

impl Pool for Threads {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        self.count.fetch_add(1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers().min(count))
                .map(|first| {
                    let jobs = (first..count).step_by(self.workers());
                    scope.spawn(move || jobs.for_each(job))
                })
                .collect();
            // A panic of a job becomes a panic of the caller.
            for worker in workers {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
    }

    fn workers(&self) -> usize {
        3
    }
}

/// An engine of one node without a protocol.
#[derive(Clone, Debug)]
pub struct MemoryEngine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    registry: Arc<Registry>,
    topology: Topology,
    /// The number of the last transaction; locked while a transaction runs.
    last: Mutex<u64>,
    /// The number of requests for a fresh snapshot.
    fresh_count: AtomicU64,
    /// The number of programs that were procedure calls.
    program_count: AtomicU64,
    threads: Threads,
    history: History,
}

impl Default for MemoryEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryEngine {
    /// Returns an empty database.
    pub fn new() -> Self {
        Self::with_procedures([])
    }

    /// Returns an empty database whose registry has more procedures than SQL needs.
    pub fn with_procedures(more: impl IntoIterator<Item = Arc<dyn Procedure>>) -> Self {
        Self::made(Retention { time: Duration::ZERO, ..HISTORY }, more)
    }

    /// Returns an empty database that records its history at each commit.
    pub fn remembering() -> Self {
        Self::made(HISTORY, [])
    }

    fn made(retention: Retention, more: impl IntoIterator<Item = Arc<dyn Procedure>>) -> Self {
        let shared = Shared {
            store: Arc::new(Store::new()),
            registry: Arc::new(Registry::new(crate::procedures().into_iter().chain(more))),
            topology: Topology::one_node_per_region("memory", &["here"], Span::ZERO),
            last: Mutex::new(0),
            fresh_count: AtomicU64::new(0),
            program_count: AtomicU64::new(0),
            threads: Threads::default(),
            history: History::new(retention),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns how often sessions requested a fresh snapshot, which costs a round trip in a
    /// cluster.
    pub fn fresh_count(&self) -> u64 {
        self.shared.fresh_count.load(Ordering::Relaxed)
    }

    /// Returns the number of programs that every replica of a cluster would run; all other
    /// transactions were certified.
    pub fn program_count(&self) -> u64 {
        self.shared.program_count.load(Ordering::Relaxed)
    }

    /// Returns the number of parallel reads.
    pub fn side_by_side_count(&self) -> u64 {
        self.shared.threads.count.load(Ordering::Relaxed)
    }

    fn run(&self, program: Program) -> Outcome {
        let mut last = self.shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        let store = &self.shared.store;
        let (writes, result) = match program {
            Program::Call { procedure, args } => {
                self.shared.program_count.fetch_add(1, Ordering::Relaxed);
                let Some(procedure) = self.shared.registry.procedure(procedure) else {
                    return Outcome::Aborted(Abort::new(SqlState::INTERNAL_ERROR, "no procedure"));
                };
                let mut cx = LocalContext::transaction(store.pin());
                match procedure.run(&args, &mut cx) {
                    Ok(result) => (
                        cx.into_certified().map_or(Vec::new(), |certified| certified.writes),
                        result,
                    ),
                    Err(Stop::Abort(abort)) => return Outcome::Aborted(abort),
                    Err(Stop::Interrupted) => {
                        let abort = Abort::new(SqlState::INTERNAL_ERROR, "interrupted");
                        return Outcome::Aborted(abort);
                    }
                }
            }
            Program::Certified(certified) => match self.certify(&certified) {
                Ok(()) => (certified.writes, Vec::new()),
                Err(abort) => return Outcome::Aborted(abort),
            },
        };
        *last += 1;
        let txn = TxnId::new(NodeId(0), *last);
        let version = store.published().next();
        for write in writes {
            let row = Version { version, header: RecordHeader::new(txn), value: write.value };
            store.apply(write.table, write.key, row);
        }
        store.publish(version);
        self.shared.history.tick(store, now());
        Outcome::Committed { txn, version, result }
    }

    /// Checks that the transaction would read the same now.
    fn certify(&self, certified: &Certified) -> Result<(), Abort> {
        let store = &self.shared.store;
        let at = store.published();
        for read in &certified.reads.points {
            let version = store.read(read.table, &read.key, at);
            if seen(version.as_ref()) != read.seen {
                return Err(self.conflict(read.table, &read.key));
            }
        }
        for read in &certified.reads.ranges {
            let mut rows = Vec::new();
            store.scan(read.table, &read.range, Direction::Forward, at, |key, version| {
                if version.value.is_some() {
                    rows.push((key.clone(), seen(Some(version))));
                }
                ControlFlow::Continue(())
            });
            let changed = rows
                .iter()
                .chain(&read.rows)
                .find(|row| !(rows.contains(row) && read.rows.contains(row)));
            if let Some((key, _)) = changed {
                return Err(self.conflict(read.table, key));
            }
        }
        Ok(())
    }

    fn conflict(&self, table: TableId, key: &Key) -> Abort {
        let version = self.shared.store.read(table, key, self.shared.store.published());
        let winner = version.map(|version| version.header.writer());
        Change { table, key: key.clone(), winner }.into_abort()
    }
}

fn seen(version: Option<&Version>) -> ReadVersion {
    let live = version.filter(|version| version.value.is_some());
    live.map_or(ReadVersion::Absent, |version| ReadVersion::At(version.version))
}

#[async_trait]
impl Engine for MemoryEngine {
    fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.shared.registry
    }

    fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    fn pool(&self) -> &dyn Pool {
        &self.shared.threads
    }

    async fn commit(&self, program: Program, _: Isolation) -> Result<Outcome, Unavailable> {
        Ok(self.run(program))
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.shared.fresh_count.fetch_add(1, Ordering::Relaxed);
        Ok(self.shared.store.published())
    }

    fn history(&self) -> Option<&History> {
        Some(&self.shared.history)
    }

    fn about(&self) -> NodeInfo {
        let (me, connected) = (Some(NodeId(0)), vec![NodeId(0)]);
        let (durability, settings) = ("memory".to_owned(), String::new());
        NodeInfo { me, protocol: "memory", durability, settings, connected, ..NodeInfo::default() }
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        let version = self.shared.store.published();
        let members = vec![NodeId(0)];
        Ok(Status { version, members, ..Status::default() })
    }
}
