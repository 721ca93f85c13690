//! The cost of a step: the sum of its measured parts, divided by the workers that share each.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use pangea_core::cpu_stage::{CpuStage, Meter};
use pangea_core::pool::Pool;

use super::costs::Costs;

/// The minimum number of data-parallel items in a chunk, as in `pangea_core::pool::map`.
const CHUNK_ITEMS: usize = 16;

/// Runs jobs one after the other, and counts how many would run in parallel.
#[derive(Debug)]
pub(super) struct ModelPool {
    workers: usize,
    jobs: AtomicU64,
    rounds: AtomicU64,
}

impl ModelPool {
    pub fn new(workers: usize) -> Self {
        Self { workers, jobs: AtomicU64::new(0), rounds: AtomicU64::new(0) }
    }

    /// Returns the jobs and rounds since the last call.
    fn take(&self) -> (u64, u64) {
        (self.jobs.swap(0, Ordering::Relaxed), self.rounds.swap(0, Ordering::Relaxed))
    }
}

impl Pool for ModelPool {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(job);
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn on_schedule(&self, jobs: usize, rounds: &dyn Fn(usize) -> usize) {
        self.jobs.fetch_add(jobs as u64, Ordering::Relaxed);
        self.rounds.fetch_add(rounds(self.workers) as u64, Ordering::Relaxed);
    }
}

/// Adds up the costs of a step's parts.
pub(super) struct StepCost<'a> {
    costs: &'a Costs,
    pool: &'a ModelPool,
    total: RefCell<Cost>,
}

/// The time of one step in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// CPU time of the event loop.
    pub own_ns: f64,
    /// Total CPU time of the pool's other threads.
    pub pool_ns: f64,
}

impl<'a> StepCost<'a> {
    pub fn new(costs: &'a Costs, pool: &'a ModelPool) -> Self {
        Self { costs, pool, total: RefCell::default() }
    }

    /// Adds a cost on the event loop.
    pub fn charge(&self, kind: &str, size: f64) {
        self.total.borrow_mut().own_ns += self.costs.line(kind).cost_ns(1.0, size);
    }

    pub fn total(&self) -> Cost {
        *self.total.borrow()
    }
}

impl Meter for StepCost<'_> {
    fn begin(&self) {
        self.pool.take();
    }

    fn end(&self, work: CpuStage, size: usize) {
        let cost_ns = self.costs.line(work.name()).cost_ns(1.0, size as f64);
        let (jobs, rounds) = self.pool.take();
        let speed = match work {
            CpuStage::Order if rounds > 0 => jobs as f64 / rounds as f64,
            CpuStage::Execute
            | CpuStage::Validate
            | CpuStage::Stale
            | CpuStage::Graph
            | CpuStage::Solve
            | CpuStage::Apply => self.pool.workers.min(size.div_ceil(CHUNK_ITEMS)).max(1) as f64,
            CpuStage::Slice
            | CpuStage::Lock
            | CpuStage::Order
            | CpuStage::Probe
            | CpuStage::Serve
            | CpuStage::Settle
            | CpuStage::Encode
            | CpuStage::Decode => 1.0,
        };
        let mut total = self.total.borrow_mut();
        total.own_ns += cost_ns / speed;
        total.pool_ns += cost_ns - cost_ns / speed;
    }
}
