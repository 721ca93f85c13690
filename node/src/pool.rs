//! Pools of threads for data-parallel work.
//!
//! The event loop is a worker of its own pool: with `n` workers there are `n - 1` threads beside
//! it, and with one there is none. Queries have a pool in which they only wait, and whose threads
//! give way to all others: a scan of a large table takes what commits leave of the cores. Jobs are
//! handed out one by one, so that a slow one holds up nobody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use pangea_core::pool::Pool;
use rayon_core::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// More threads than this are a mistake in a configuration.
pub const WORKERS_MAX: usize = 1_024;

/// How much the threads of queries give way to others: a third of the weight of those.
const NICE: i32 = 5;

/// Runs jobs on threads of its own, which end when it is dropped, and maybe on the caller's too.
#[derive(Debug)]
pub struct ThreadedPool {
    workers: usize,
    /// Whether the caller's thread is one of the workers.
    has_caller: bool,
    threads: Option<ThreadPool>,
    ended: Arc<Ended>,
}

/// How many threads have ended.
#[derive(Debug, Default)]
struct Ended {
    count: Mutex<usize>,
    changed: Condvar,
}

impl ThreadedPool {
    /// A pool of `workers`, the caller's thread among them; 0 is one for each core.
    ///
    /// # Errors
    /// When the system has no threads to give.
    pub fn new(workers: usize) -> Result<Self, ThreadPoolBuildError> {
        Self::build(workers, true)
    }

    /// A pool of `workers` whose threads give way to all others; 0 is one for each core. The
    /// caller waits, unless there is one worker alone.
    ///
    /// # Errors
    /// When the system has no threads to give.
    pub fn giving_way(workers: usize) -> Result<Self, ThreadPoolBuildError> {
        Self::build(workers, false)
    }

    fn build(workers: usize, has_caller: bool) -> Result<Self, ThreadPoolBuildError> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let workers = if workers == 0 { cores() } else { workers }.clamp(1, WORKERS_MAX);
        let ended = Arc::new(Ended::default());
        let on_end = ended.clone();
        let build = || {
            let builder = ThreadPoolBuilder::new().num_threads(workers - usize::from(has_caller));
            let (name, nice) = if has_caller { ("pool", 0) } else { ("query", NICE) };
            let builder = builder.thread_name(move |i| format!("{name}-{}", i + 1));
            let builder = builder.start_handler(move |_| give_way(nice));
            builder.exit_handler(move |_| on_end.add_one()).build()
        };
        let threads = (workers > 1).then(build).transpose()?;
        Ok(Self { workers, has_caller, threads, ended })
    }
}

impl Ended {
    fn add_one(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }
}

/// Lets the thread that runs have less of the cores where others want them too. Who may not change
/// that has it as it is.
fn give_way(nice: i32) {
    #[cfg(target_os = "linux")]
    if nice > 0
        && let Err(error) = rustix::process::setpriority_process(None, nice)
    {
        tracing::debug!("a thread can't give way to others: {error}");
    }
}

impl Drop for ThreadedPool {
    fn drop(&mut self) {
        let Some(threads) = self.threads.take() else { return };
        // Tells the threads to end and does not wait for it.
        drop(threads);
        let mut count = self.ended.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count < self.workers - usize::from(self.has_caller) {
            count = self.ended.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Pool for ThreadedPool {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let workers = self.workers.min(count);
        let Some(threads) = self.threads.as_ref().filter(|_| workers > 1 || !self.has_caller)
        else {
            return (0..count).for_each(job);
        };
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                job(index);
            }
        };
        threads.in_place_scope(|scope| {
            let others = workers - usize::from(self.has_caller);
            (0..others).for_each(|_| scope.spawn(|_| work()));
            if self.has_caller {
                work();
            }
        });
    }

    fn workers(&self) -> usize {
        self.workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn every_job_runs_once() {
        let kinds = [ThreadedPool::new, ThreadedPool::giving_way];
        for (workers, kind) in [1, 2, 4].into_iter().flat_map(|n| kinds.map(|kind| (n, kind))) {
            let pool = kind(workers).unwrap();
            assert_eq!(pool.workers(), workers);
            for count in [0, 1, 2, 3, 100] {
                let runs: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.run(count, &|i| {
                    runs[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn as_many_jobs_run_at_a_time_as_there_are_workers() {
        for pool in [ThreadedPool::new(3).unwrap(), ThreadedPool::giving_way(3).unwrap()] {
            // Returns only if all three are in it together.
            let barrier = Barrier::new(3);
            pool.run(3, &|_| {
                barrier.wait();
            });
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn queries_give_way_and_nobody_else_does() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let own = nice();
        let kinds =
            [(ThreadedPool::new(2).unwrap(), 0), (ThreadedPool::giving_way(2).unwrap(), NICE)];
        for (pool, more) in kinds {
            pool.run(8, &|_| assert_eq!(nice(), own.max(more)));
        }
        assert_eq!(nice(), own);
    }
}
