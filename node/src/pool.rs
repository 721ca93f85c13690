//! A pool of threads for a step's data-parallel work.
//!
//! The event loop is a worker too: with `n` workers there are `n - 1` threads beside it, and with
//! one there is none. Jobs are handed out one by one, so that a slow one holds up nobody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use pangea_core::pool::Pool;
use rayon_core::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// More threads than this are a mistake in a configuration.
pub const WORKERS_MAX: usize = 1_024;

/// Runs jobs on the caller's thread and on threads of its own, which end when it is dropped.
#[derive(Debug)]
pub struct ThreadedPool {
    workers: usize,
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
        // Tells the threads to end and does not wait for it.
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
        // Returns only if all three are in it together.
        let barrier = Barrier::new(3);
        pool.run(3, &|_| {
            barrier.wait();
        });
    }
}
