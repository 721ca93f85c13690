//! A thread pool for a step's data-parallel work.
//!
//! The event loop is a worker too: `n` workers use `n - 1` additional threads, and one worker uses
//! none. Jobs are handed out one by one, so that a slow job does not delay others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use pangea_core::pool::Pool;
use rayon_core::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// The maximum number of threads; more are a configuration error.
pub const WORKERS_MAX: usize = 1_024;

/// Runs jobs on the caller's thread and on pool threads, which end when the pool is dropped.
#[derive(Debug)]
pub struct ThreadedPool {
    workers: usize,
    threads: Option<ThreadPool>,
    ended: Arc<Ended>,
}

/// The number of threads that have ended.
#[derive(Debug, Default)]
struct Ended {
    count: Mutex<usize>,
    changed: Condvar,
}

impl ThreadedPool {
    /// Creates a pool of `workers`, including the caller's thread; 0 means one for each core.
    ///
    /// # Errors
    /// When the operating system can't create threads.
    pub fn new(workers: usize) -> Result<Self, ThreadPoolBuildError> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let workers = if workers == 0 { cores() } else { workers }.clamp(1, WORKERS_MAX);
        let ended = Arc::new(Ended::default());
        let on_end = ended.clone();
        let build = || {
            let builder = ThreadPoolBuilder::new().num_threads(workers - 1);
            let builder = builder.thread_name(|i| format!("pool-{}", i + 1));
            builder.exit_handler(move |_| on_end.add_one()).build()
        };
        let threads = (workers > 1).then(build).transpose()?;
        Ok(Self { workers, threads, ended })
    }
}

impl Ended {
    fn add_one(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }
}

impl Drop for ThreadedPool {
    fn drop(&mut self) {
        let Some(threads) = self.threads.take() else { return };
        // Dropping signals the threads to end, but does not wait for them.
        drop(threads);
        let mut count = self.ended.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count < self.workers - 1 {
            count = self.ended.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Pool for ThreadedPool {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let others = self.workers.min(count).saturating_sub(1);
        let (Some(threads), 1..) = (&self.threads, others) else {
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
            (0..others).for_each(|_| scope.spawn(|_| work()));
            work();
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
        for workers in [1, 2, 4] {
            let pool = ThreadedPool::new(workers).unwrap();
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
        let pool = ThreadedPool::new(3).unwrap();
        // Returns only if all three run concurrently.
        let barrier = Barrier::new(3);
        pool.run(3, &|_| {
            barrier.wait();
        });
    }
}
