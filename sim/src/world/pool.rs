//! The worker pool of a simulated node, on the single thread of a run.

use std::sync::atomic::{AtomicU64, Ordering};

use pangea_core::pool::Pool;

use crate::rng::SimRng;

/// Worker counts of a node. Replicas with different counts must compute the same results.
const WORKERS: [usize; 3] = [1, 2, 4];

/// Runs jobs one after the other, in an order that changes with each call. A result that depends on
/// the order of jobs therefore makes replicas differ.
#[derive(Debug)]
pub(super) struct Workers {
    count: usize,
    calls: AtomicU64,
}

impl Workers {
    pub(super) fn draw(mut dice: SimRng) -> Self {
        let count = WORKERS[dice.index(WORKERS.len())];
        Self { count, calls: AtomicU64::new(dice.between(0, u64::from(u32::MAX))) }
    }
}

impl Pool for Workers {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        // Any multiplier that mixes will do. Only one thread calls, so the counter is
        // deterministic.
        let drawn = self.calls.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (drawn >> 40) as usize % count.max(1);
        let rotated = (0..count).map(|i| (first + i) % count);
        match drawn >> 63 {
            0 => rotated.for_each(job),
            _ => rotated.rev().for_each(job),
        }
    }

    fn workers(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn each_job_runs_once_and_the_order_changes() {
        let workers = Workers::draw(SimRng::fork(1, "workers", 0));
        let mut orders = std::collections::BTreeSet::new();
        for count in [0, 1, 5] {
            for _ in 0..20 {
                let order = Mutex::new(Vec::new());
                workers.run(count, &|job| order.lock().unwrap().push(job));
                let order = order.into_inner().unwrap();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..count).collect::<Vec<_>>());
                orders.insert(order);
            }
        }
        assert!(orders.len() > 5, "{orders:?}");
    }
}
