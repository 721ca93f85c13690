//! Runs a graph of jobs on the workers of a pool.
//!
//! A node of the graph runs when its counter of unfinished predecessors is zero (Minerva §4). The
//! worker that finishes a node decrements the counters of its successors and keeps those that
//! became ready. It therefore knows its next jobs while it runs one and can prefetch their rows. If
//! another worker is idle, it gives half of them away.
//!
//! A pool may run the workers one after the other on one thread; the first worker then runs all
//! jobs. A worker waits only while another worker holds a node, which then runs on another thread
//! and will finish.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::schedule::Graph;
use crate::pool::{Pool, each};

/// The maximum number of nodes that a worker takes at once and keeps. Enough jobs for a useful
/// prefetch, and few enough that their successors do not wait long.
const KEPT_MAX: usize = 4;

/// The number of polls of an idle worker before it sleeps. They take some microseconds, like a
/// wake-up.
const LOOKS: usize = 200;

/// The function that runs a job. Its arguments are the worker's scratch space, the job, and the
/// jobs that this worker will most likely run next.
pub(super) type Run<'a, S, R> =
    dyn Fn(&mut S, usize, &mut dyn Iterator<Item = usize>) -> R + Sync + 'a;

/// Calls `job` once for each job of the graph, after all its predecessors, and returns the results
/// in the order of the jobs. Each worker has a scratch space that its jobs use one after the other.
///
/// # Panics
/// If a job panics.
pub(super) fn run<S: Default, R: Send>(
    pool: &dyn Pool,
    graph: &Graph,
    job: &Run<'_, S, R>,
) -> Vec<R> {
    let workers = pool.workers().min(graph.jobs).max(1);
    let dispatch = Dispatch::new(graph, workers);
    pool.on_schedule(graph.jobs, &|workers| graph.rounds(workers));
    let done = each(pool, workers, |_| {
        let _alarm = Alarm(&dispatch);
        dispatch.work(job)
    });
    let mut results: Vec<Option<R>> = (0..graph.jobs).map(|_| None).collect();
    for (at, result) in done.into_iter().flatten() {
        assert!(results[at].is_none(), "a job ran twice");
        results[at] = Some(result);
    }
    results.into_iter().map(|result| result.expect("each job has run")).collect()
}

struct Dispatch<'a> {
    graph: &'a Graph,
    workers: usize,
    /// The number of unfinished predecessors of each node.
    waits: Vec<AtomicU32>,
    /// The number of unfinished nodes.
    left: AtomicUsize,
    ready: Mutex<Ready>,
    /// The number of ready nodes that no worker holds. Readable without the lock.
    ready_count: AtomicUsize,
    /// The number of idle workers.
    idle: AtomicUsize,
    changed: Condvar,
}

/// The ready nodes that no worker holds.
struct Ready {
    nodes: VecDeque<u32>,
    /// Whether a worker panicked, so that some nodes will never become ready.
    is_broken: bool,
}

impl<'a> Dispatch<'a> {
    fn new(graph: &'a Graph, workers: usize) -> Self {
        let nodes = (0..graph.nodes() as u32).filter(|&node| graph.waits[node as usize] == 0);
        let nodes: VecDeque<u32> = nodes.collect();
        Self {
            graph,
            workers,
            waits: graph.waits.iter().map(|&count| AtomicU32::new(count)).collect(),
            left: AtomicUsize::new(graph.nodes()),
            ready_count: AtomicUsize::new(nodes.len()),
            ready: Mutex::new(Ready { nodes, is_broken: false }),
            idle: AtomicUsize::new(0),
            changed: Condvar::new(),
        }
    }

    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work<S: Default, R>(&self, job: &Run<'_, S, R>) -> Vec<(usize, R)> {
        let jobs = self.graph.jobs;
        let mut scratch = S::default();
        let mut results = Vec::new();
        let mut local = VecDeque::new();
        while let Some(node) = local.pop_front().or_else(|| self.take(&mut local)) {
            let at = node as usize;
            if at < jobs {
                let mut next = local.iter().map(|&node| node as usize).filter(|&at| at < jobs);
                results.push((at, job(&mut scratch, at, &mut next)));
            }
            for &follower in self.graph.followers(at) {
                // AcqRel: the worker that decrements the counter to zero sees the effects of all
                // predecessors.
                if self.waits[follower as usize].fetch_sub(1, Ordering::AcqRel) != 1 {
                    continue;
                }
                // A joint takes no time and has successors that wait for it, so it goes first.
                match follower as usize >= jobs {
                    true => local.push_front(follower),
                    false => local.push_back(follower),
                }
            }
            self.give(&mut local);
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                // Taken so that no worker is between checking `left` and waiting.
                let _ready = self.ready();
                self.changed.notify_all();
            }
        }
        results
    }

    /// Gives away the nodes above the limit that a worker keeps, or half of its nodes if another
    /// worker is idle.
    fn give(&self, local: &mut VecDeque<u32>) {
        let is_wanted = self.idle.load(Ordering::Relaxed) > 0;
        let kept = if is_wanted { local.len().div_ceil(2) } else { KEPT_MAX };
        if local.len() <= kept {
            return;
        }
        let mut ready = self.ready();
        ready.nodes.extend(local.drain(kept..));
        self.ready_count.store(ready.nodes.len(), Ordering::Relaxed);
        if is_wanted {
            self.changed.notify_all();
        }
    }

    /// Takes the worker's share of the ready nodes. Returns the first and appends the others to
    /// `mine`. Returns `None` when all nodes have finished.
    fn take(&self, local: &mut VecDeque<u32>) -> Option<u32> {
        let has_ended = |ready: &Ready| ready.is_broken || self.left.load(Ordering::Acquire) == 0;
        let mut ready = self.ready();
        if ready.nodes.is_empty() && !has_ended(&ready) {
            drop(ready);
            self.idle.fetch_add(1, Ordering::Relaxed);
            let has_work = || {
                let ready_count = self.ready_count.load(Ordering::Relaxed);
                ready_count > 0 || self.left.load(Ordering::Relaxed) == 0
            };
            for _ in 0..LOOKS {
                if has_work() {
                    break;
                }
                spin_loop();
            }
            ready = self.ready();
            while ready.nodes.is_empty() && !has_ended(&ready) {
                ready = self.changed.wait(ready).unwrap_or_else(PoisonError::into_inner);
            }
            self.idle.fetch_sub(1, Ordering::Relaxed);
        }
        if has_ended(&ready) {
            return None;
        }
        let share = (ready.nodes.len() / self.workers).clamp(1, KEPT_MAX);
        let first = ready.nodes.pop_front();
        local.extend(ready.nodes.drain(..share - 1));
        self.ready_count.store(ready.nodes.len(), Ordering::Relaxed);
        first
    }
}

/// Ends all workers if one panics, because the node that it held will never finish.
struct Alarm<'a, 'b>(&'a Dispatch<'b>);

impl Drop for Alarm<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.ready().is_broken = true;
            self.0.changed.notify_all();
        }
    }
}
