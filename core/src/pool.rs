//! Data-parallel steps: one function over many items, on one or many threads.
//!
//! A pool affects only the duration of a step. Each item is processed once, results are returned in
//! the order of the items, and no item sees another's result.

use std::sync::Mutex;

/// Runs independent jobs: in simulation one after the other, on a node on all cores.
pub trait Pool: Send + Sync {
    /// Calls `job(0) .. job(count - 1)`, each once, in any order, and returns when all have
    /// finished.
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync));

    /// The number of jobs that can run in parallel. At least 1.
    fn workers(&self) -> usize;

    /// Announces `jobs` jobs that wait for each other. `rounds(workers)` returns the number of
    /// rounds that they take if each job takes one. Only pools that model time need this.
    fn on_schedule(&self, jobs: usize, rounds: &dyn Fn(usize) -> usize) {
        let _ = (jobs, rounds);
    }
}

/// A pool that runs one job after the other on the caller's thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequential;

impl Pool for Sequential {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(job);
    }

    fn workers(&self) -> usize {
        1
    }
}

/// The minimum number of items in a chunk. Waking a thread takes about 5 us, and an item about 1
/// us.
const CHUNK_ITEMS_MIN: usize = 16;

/// Maps `items` through `f`, in chunks on the pool's workers. Results are in the order of the
/// items.
pub fn map<T: Sync, R: Send>(
    pool: &dyn Pool,
    items: &[T],
    f: impl Fn(usize, &T) -> R + Sync,
) -> Vec<R> {
    let chunks_max = items.len().div_ceil(CHUNK_ITEMS_MIN);
    let chunks = pool.workers().min(chunks_max);
    if chunks <= 1 {
        return items.iter().enumerate().map(|(i, item)| f(i, item)).collect();
    }
    let chunk_len = items.len().div_ceil(chunks);
    let parts: Vec<Mutex<Vec<R>>> = (0..chunks).map(|_| Mutex::new(Vec::new())).collect();
    pool.run(chunks, &|c| {
        let start = c * chunk_len;
        let slice = items.get(start..items.len().min(start + chunk_len)).unwrap_or(&[]);
        let part = slice.iter().enumerate().map(|(i, item)| f(start + i, item)).collect();
        *parts[c].lock().expect("no job panicked while it held the lock of its part") = part;
    });
    let take = |part: Mutex<Vec<R>>| part.into_inner().expect("each job returned");
    parts.into_iter().flat_map(take).collect()
}

/// Calls `f(0) .. f(count - 1)`, each as one job, and returns the results in this order.
pub fn each<R: Send>(pool: &dyn Pool, count: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = (0..count).map(|_| Mutex::new(None)).collect();
    pool.run(count, &|i| {
        let result = f(i);
        *results[i].lock().expect("no job panicked while it held the lock of its result") =
            Some(result);
    });
    let take = |result: Mutex<Option<R>>| result.into_inner().ok().flatten();
    results.into_iter().map(|result| take(result).expect("each job returned")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Backwards;
    impl Pool for Backwards {
        fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
            (0..count).rev().for_each(job);
        }
        fn workers(&self) -> usize {
            4
        }
    }

    #[test]
    fn each_keeps_the_order_of_the_jobs() {
        assert_eq!(each(&Backwards, 5, |i| i * i), [0, 1, 4, 9, 16]);
        assert_eq!(each(&Backwards, 0, |i| i), []);
    }

    #[test]
    fn map_keeps_the_order_of_the_items_whatever_order_the_jobs_run_in() {
        for len in [0, 1, 15, 16, 17, 63, 64, 65, 1000] {
            let items: Vec<usize> = (0..len).collect();
            let doubled = map(&Backwards, &items, |i, &item| {
                assert_eq!(i, item);
                item * 2
            });
            assert_eq!(doubled, items.iter().map(|i| i * 2).collect::<Vec<_>>(), "{len} items");
        }
    }
}
