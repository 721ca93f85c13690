//! Running a graph of jobs on the workers of a pool.
//!
//! A node runs when its counter of unfinished predecessors is zero (Minerva §4). Who ends a node
//! counts its followers down, goes on with one of those that became free, and leaves the others to
//! whoever has nothing to do.
//!
//! A pool may run the workers one after the other on one thread: the first then does everything. It
//! only ever waits while another worker holds a node, which is then on another thread and will end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::schedule::Graph;
use crate::pool::{Pool, each};

/// Calls `job` once for each job of the graph, after all that it waits for, and returns the results
/// in the order of the jobs. Each worker has a scratch space that its jobs use one after the other.
///
/// # Panics
/// When a job panics.
pub(super) fn run<S: Default, R: Send>(
    pool: &dyn Pool,
    graph: &Graph,
    job: &(dyn Fn(&mut S, usize) -> R + Sync),
) -> Vec<R> {
    let dispatch = Dispatch::new(graph);
    let workers = pool.workers().min(graph.jobs).max(1);
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
    results.into_iter().map(|result| result.expect("each job ran")).collect()
}

struct Dispatch<'a> {
    graph: &'a Graph,
    /// How many unfinished predecessors each node has.
    waits: Vec<AtomicU32>,
    /// How many nodes have not ended.
    left: AtomicUsize,
    ready: Mutex<Ready>,
    changed: Condvar,
}

struct Ready {
    nodes: VecDeque<u32>,
    /// A worker panicked, so some nodes will never be ready.
    is_broken: bool,
}

impl<'a> Dispatch<'a> {
    fn new(graph: &'a Graph) -> Self {
        let nodes = (0..graph.nodes() as u32).filter(|&node| graph.waits[node as usize] == 0);
        Self {
            graph,
            waits: graph.waits.iter().map(|&count| AtomicU32::new(count)).collect(),
            left: AtomicUsize::new(graph.nodes()),
            ready: Mutex::new(Ready { nodes: nodes.collect(), is_broken: false }),
            changed: Condvar::new(),
        }
    }

    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work<S: Default, R>(&self, job: &(dyn Fn(&mut S, usize) -> R + Sync)) -> Vec<(usize, R)> {
        let mut scratch = S::default();
        let mut results = Vec::new();
        let mut freed = Vec::new();
        let mut next = self.wait();
        while let Some(node) = next {
            let at = node as usize;
            if at < self.graph.jobs {
                results.push((at, job(&mut scratch, at)));
            }
            for &follower in self.graph.followers(at) {
                // AcqRel: who counts down to zero sees what all the others did.
                if self.waits[follower as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
                    freed.push(follower);
                }
            }
            next = self.end(&mut freed);
            next = next.or_else(|| self.wait());
        }
        results
    }

    /// Ends a node, and shares out those that it freed; one is for the caller.
    fn end(&self, freed: &mut Vec<u32>) -> Option<u32> {
        let mine = freed.pop();
        if !freed.is_empty() {
            self.ready().nodes.extend(freed.drain(..));
            self.changed.notify_all();
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Under the lock, so that nobody is between looking at `left` and waiting.
            let _ready = self.ready();
            self.changed.notify_all();
        }
        mine
    }

    /// The next node that is ready, or nothing when all have ended.
    fn wait(&self) -> Option<u32> {
        let mut ready = self.ready();
        loop {
            if ready.is_broken || self.left.load(Ordering::Acquire) == 0 {
                return None;
            }
            if let Some(node) = ready.nodes.pop_front() {
                return Some(node);
            }
            ready = self.changed.wait(ready).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Sends all workers home when one panics: what it held will never end.
struct Alarm<'a, 'b>(&'a Dispatch<'b>);

impl Drop for Alarm<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.ready().is_broken = true;
            self.0.changed.notify_all();
        }
    }
}
