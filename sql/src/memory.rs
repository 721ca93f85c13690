//! An engine of one node without a protocol: programs run one after another, in memory.
//!
//! It serves tests, and SQL without a cluster. A lock orders programs, the reads of interactive
//! transactions are certified, and all data is lost when the engine is dropped. Below the
//! serializable level programs run side by side, and what the level checks is checked in the lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pangea_core::exec::optimistic::{self, Recorded, Run};
use pangea_core::exec::{Change, Overlay, add_to, checked_reads, first_change};
use pangea_core::guarantee::{Isolation, Isolations};
use pangea_core::hash::HashSet;
use pangea_core::ids::{NodeId, ProcedureId, SnapshotVersion, TxnId};
use pangea_core::key::Key;
use pangea_core::pool::Pool;
use pangea_core::protocol::Status;
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{
    Abort, Add, Certified, Outcome, Procedure, Program, Registry, SqlState, Stop, Write,
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
    /// The levels that transactions can have.
    isolations: Isolations,
    /// The number of the last transaction; locked while a transaction commits.
    last: Mutex<u64>,
    /// The number of requests for a fresh snapshot.
    fresh_count: AtomicU64,
    /// The number of programs that were procedure calls.
    program_count: AtomicU64,
    /// The number of runs of programs that were repeated.
    lost_count: AtomicU64,
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
        Self::made(Retention { time: Duration::ZERO, ..HISTORY }, serializable(), more)
    }

    /// Returns an empty database that offers these isolation levels.
    pub fn offering(isolations: Isolations) -> Self {
        Self::made(Retention { time: Duration::ZERO, ..HISTORY }, isolations, [])
    }

    /// Returns an empty database that records its history at each commit.
    pub fn remembering() -> Self {
        Self::made(HISTORY, serializable(), [])
    }

    fn made(
        retention: Retention,
        isolations: Isolations,
        more: impl IntoIterator<Item = Arc<dyn Procedure>>,
    ) -> Self {
        let shared = Shared {
            store: Arc::new(Store::new()),
            registry: Arc::new(Registry::new(crate::procedures().into_iter().chain(more))),
            topology: Topology::one_node_per_region("memory", &["here"], Span::ZERO),
            isolations,
            last: Mutex::new(0),
            fresh_count: AtomicU64::new(0),
            program_count: AtomicU64::new(0),
            lost_count: AtomicU64::new(0),
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

    /// Returns how often a program had to run again, because a row that it depends on had changed.
    pub fn lost_count(&self) -> u64 {
        self.shared.lost_count.load(Ordering::Relaxed)
    }

    /// Returns the number of parallel reads.
    pub fn side_by_side_count(&self) -> u64 {
        self.shared.threads.count.load(Ordering::Relaxed)
    }

    fn run(&self, program: Program, level: Isolation) -> Outcome {
        match program {
            Program::Call { procedure, args } => {
                self.shared.program_count.fetch_add(1, Ordering::Relaxed);
                match level {
                    Isolation::Serializable => self.run_alone(procedure, &args),
                    _ => self.run_on_snapshot(&Program::Call { procedure, args }, level),
                }
            }
            Program::Certified(certified) => {
                let last = self.lock();
                match self.writes_of(&certified, level) {
                    Ok(Ok(writes)) => self.apply(last, writes, Vec::new()),
                    Ok(Err(abort)) => Outcome::Aborted(abort),
                    Err(change) => Outcome::Aborted(change.into_abort()),
                }
            }
        }
    }

    /// Runs a call while no other transaction commits.
    fn run_alone(&self, procedure: ProcedureId, args: &[u8]) -> Outcome {
        let last = self.lock();
        let Some(procedure) = self.shared.registry.procedure(procedure) else {
            return Outcome::Aborted(Abort::new(SqlState::INTERNAL_ERROR, "no procedure"));
        };
        let pin = self.shared.store.pin();
        let mut cx = LocalContext::transaction(pin, Isolation::Serializable);
        match procedure.run(args, &mut cx) {
            Ok(result) => {
                let writes = cx.into_certified().map_or(Vec::new(), |certified| certified.writes);
                self.apply(last, writes, result)
            }
            Err(Stop::Abort(abort)) => Outcome::Aborted(abort),
            Err(Stop::Interrupted) => {
                Outcome::Aborted(Abort::new(SqlState::INTERNAL_ERROR, "interrupted"))
            }
        }
    }

    /// Runs a call on the newest snapshot, again and again until what its level checks is unchanged
    /// at the end of the run.
    fn run_on_snapshot(&self, program: &Program, level: Isolation) -> Outcome {
        let Shared { store, registry, .. } = &*self.shared;
        loop {
            let pin = store.pin();
            let (at, timeline, nothing) = (pin.version(), pin.timeline(), Overlay::new());
            let recorded = Recorded { guards: true, adds: self.shared.isolations.adds_at(level) };
            let run = optimistic::run_recording(registry, program, store, at, &nothing, recorded);
            // In a cluster others commit meanwhile.
            std::thread::yield_now();
            let Run { result, reads, guards, writes, adds } = run;
            let result = match result {
                Ok(result) => result,
                Err(abort) => return Outcome::Aborted(abort),
            };
            let written = writes.iter().map(|it| (it.table, &it.key));
            let added = adds.iter().map(|it| (it.table, &it.key));
            let changed: HashSet<_> = written.chain(added).collect();
            let is_changed = |table, key: &Key| changed.contains(&(table, key));
            let reads = checked_reads(level, reads, guards, is_changed);
            drop(changed);
            let certified = Certified { reads, writes, adds, at, timeline };
            let last = self.lock();
            if let Ok(writes) = self.writes_of(&certified, level) {
                return writes.map_or_else(Outcome::Aborted, |it| self.apply(last, it, result));
            }
            self.shared.lost_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.shared.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits writes. Nothing else commits while the number of the last transaction is locked.
    fn apply(&self, mut last: MutexGuard<'_, u64>, writes: Vec<Write>, result: Vec<u8>) -> Outcome {
        let store = &self.shared.store;
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

    /// The writes of a transaction, also those that are the results of its additions, or the abort
    /// if a row can't hold one.
    ///
    /// # Errors
    /// If a row has changed that its level checks, or if a row to which it adds does not exist.
    fn writes_of(
        &self,
        certified: &Certified,
        level: Isolation,
    ) -> Result<Result<Vec<Write>, Abort>, Change> {
        if let Some(change) = self.changed(certified, level) {
            return Err(change);
        }
        let Shared { store, registry, .. } = &*self.shared;
        let mut writes = certified.writes.clone();
        for Add { table, key, adder, amount } in &certified.adds {
            let before = writes.iter().rev().find(|it| (it.table, &it.key) == (*table, key));
            let before = match before {
                Some(own) => own.value.clone(),
                None => store.read(*table, key, store.published()).and_then(|it| it.value),
            };
            let (table, key) = (*table, key.clone());
            let Some(before) = before else { return Err(Change { table, key, winner: None }) };
            match add_to(registry, &before, *adder, amount) {
                Ok(row) => writes.push(Write { table, key, value: Some(row) }),
                Err(abort) => return Ok(Err(abort)),
            }
        }
        Ok(Ok(writes))
    }

    /// The first row that has changed and that the transaction's level checks.
    fn changed(&self, certified: &Certified, level: Isolation) -> Option<Change> {
        let store = &self.shared.store;
        let now = store.published();
        let change = first_change(&certified.reads, store, now);
        if change.is_some() || level != Isolation::Snapshot {
            return change;
        }
        certified.writes.iter().find_map(|Write { table, key, .. }| {
            let newest = store.head(*table, key, now)?;
            let winner = newest.value.as_ref().map(|_| newest.header.writer());
            let change = Change { table: *table, key: key.clone(), winner };
            (newest.version > certified.at).then_some(change)
        })
    }
}

/// The levels of an engine that offers one.
fn serializable() -> Isolations {
    Isolations::new(Isolation::Serializable, &[])
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

    fn isolations(&self) -> Isolations {
        self.shared.isolations
    }

    async fn commit(&self, program: Program, level: Isolation) -> Result<Outcome, Unavailable> {
        Ok(self.run(program, level))
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
