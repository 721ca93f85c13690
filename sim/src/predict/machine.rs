//! A machine: cores that serve threads, each with a queue of jobs.
//!
//! A thread runs on one core at a time and runs its jobs one after the other. The ready thread with
//! the least CPU time so far runs next, for at most one slice. A thread with little work therefore
//! hardly waits for busy ones, as under a fair scheduler. All cores are identical.

use std::collections::{BTreeSet, VecDeque};

/// The maximum time that a thread runs before another gets its turn.
const SLICE_NS: u64 = 1_000_000;

/// Identifies a thread of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadId(pub usize);

/// A time slice that has begun on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The end of the slice.
    pub until_ns: u64,
    /// The thread that runs.
    pub thread: ThreadId,
}

/// Cores and threads. `T` is the continuation of a job.
#[derive(Debug)]
pub struct Machine<T> {
    idle_cores: usize,
    cores: usize,
    threads: Vec<Thread<T>>,
    /// Threads that could run but have no core, by their CPU time.
    ready: BTreeSet<(u64, ThreadId)>,
    /// The CPU time of the thread that was scheduled last.
    floor_ns: u64,
    busy_ns: u64,
}

#[derive(Debug)]
struct Thread<T> {
    todo: VecDeque<(u64, T)>,
    had_ns: u64,
    is_running: bool,
    slice_ns: u64,
    busy_ns: u64,
}

impl<T> Machine<T> {
    /// Creates an idle machine.
    ///
    /// # Panics
    /// If `cores` is 0.
    pub fn new(cores: usize) -> Self {
        assert!(cores > 0, "a machine needs a core");
        Self {
            idle_cores: cores,
            cores,
            threads: Vec::new(),
            ready: BTreeSet::new(),
            floor_ns: 0,
            busy_ns: 0,
        }
    }

    /// Adds a thread.
    pub fn spawn(&mut self) -> ThreadId {
        let (todo, had_ns) = (VecDeque::new(), self.floor_ns);
        self.threads.push(Thread { todo, had_ns, is_running: false, slice_ns: 0, busy_ns: 0 });
        ThreadId(self.threads.len() - 1)
    }

    /// Queues a job of `ns` at a thread; its continuation is `then`.
    pub fn give(&mut self, id: ThreadId, ns: u64, then: T) {
        let thread = &mut self.threads[id.0];
        let was_idle = thread.todo.is_empty();
        thread.todo.push_back((ns, then));
        if was_idle {
            // A thread that was idle gets no credit for that time beyond one slice, so it is served
            // soon but does not catch up.
            thread.had_ns = thread.had_ns.max(self.floor_ns.saturating_sub(SLICE_NS));
            self.ready.insert((thread.had_ns, id));
        }
    }

    /// Whether a thread has no job.
    pub fn is_idle(&self, id: ThreadId) -> bool {
        self.threads[id.0].todo.is_empty()
    }

    /// Begins a slice if a core is idle and a thread is ready.
    pub fn begin(&mut self, now_ns: u64) -> Option<Slice> {
        if self.idle_cores == 0 {
            return None;
        }
        let (had_ns, id) = self.ready.pop_first()?;
        self.floor_ns = self.floor_ns.max(had_ns);
        self.idle_cores -= 1;
        let thread = &mut self.threads[id.0];
        assert!(!thread.is_running, "a thread runs on one core at a time");
        thread.is_running = true;
        let (left_ns, _) = thread.todo.front().expect("a ready thread has work");
        thread.slice_ns = (*left_ns).min(SLICE_NS);
        Some(Slice { until_ns: now_ns + thread.slice_ns, thread: id })
    }

    /// Ends a slice. Returns the continuation of the job if the job is complete.
    pub fn end(&mut self, id: ThreadId) -> Option<T> {
        let thread = &mut self.threads[id.0];
        assert!(std::mem::take(&mut thread.is_running), "the thread was running");
        let ran_ns = thread.slice_ns;
        self.idle_cores += 1;
        self.busy_ns += ran_ns;
        thread.busy_ns += ran_ns;
        thread.had_ns += ran_ns;
        let (left_ns, _) = thread.todo.front_mut().expect("the thread had work");
        *left_ns -= ran_ns;
        let done = if *left_ns == 0 { thread.todo.pop_front() } else { None };
        if !thread.todo.is_empty() {
            self.ready.insert((thread.had_ns, id));
        }
        done.map(|(_, then)| then)
    }

    /// The CPU time of a thread.
    pub fn busy_ns(&self, id: ThreadId) -> u64 {
        self.threads[id.0].busy_ns
    }

    /// The CPU time of all threads.
    pub fn all_busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// The number of cores.
    pub fn cores(&self) -> usize {
        self.cores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves jobs, each given at its time to its thread. Returns the time at which each was done.
    fn served(cores: usize, given: &[(u64, usize, u64)]) -> Vec<u64> {
        let mut machine = Machine::new(cores);
        let threads = given.iter().map(|given| given.1).max().map_or(0, |most| most + 1);
        (0..threads).for_each(|_| _ = machine.spawn());
        let (mut done, mut running, mut next) = (vec![0; given.len()], Vec::new(), 0);
        loop {
            let due = running.iter().map(|slice: &Slice| slice.until_ns).min();
            let comes = given.get(next).map(|given| given.0);
            let Some(now) = due.into_iter().chain(comes).min() else { return done };
            if let Some(at) = running.iter().position(|slice| slice.until_ns == now) {
                let slice = running.remove(at);
                if let Some(which) = machine.end(slice.thread) {
                    done[which] = now;
                }
            } else {
                let (_, thread, ns) = given[next];
                machine.give(ThreadId(thread), ns, next);
                next += 1;
            }
            while let Some(slice) = machine.begin(now) {
                running.push(slice);
            }
        }
    }

    #[test]
    fn one_thread_does_one_thing_after_the_other_on_any_number_of_cores() {
        let given = [(0, 0, 500), (100, 0, 300), (2_000, 0, 50)];
        for cores in [1, 4] {
            assert_eq!(served(cores, &given), [500, 800, 2_050]);
        }
    }

    #[test]
    fn two_threads_share_a_core_in_slices_and_not_two_cores() {
        let ms = 1_000_000;
        let given = [(0, 0, 3 * ms), (0, 1, 3 * ms), (ms / 2, 2, ms / 10)];
        assert_eq!(served(2, &given), [3 * ms, 3 * ms + ms / 10, ms + ms / 10]);
        let alone = served(1, &given[..2]);
        assert_eq!(alone, [5 * ms, 6 * ms], "alternately");
    }

    #[test]
    fn the_wait_for_a_server_is_that_of_an_m_d_1_queue() {
        // At a load of rho the mean wait is rho / (2 (1 - rho)) services (Pollaczek-Khinchine).
        let (service_ns, rho) = (1_000.0, 0.7);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut at = 0.0;
        let given: Vec<(u64, usize, u64)> = (0..200_000)
            .map(|_| {
                at += -(1.0 - rng.f64()).ln() * service_ns / rho;
                (at as u64, 0, service_ns as u64)
            })
            .collect();
        let done = served(1, &given);
        let waited: f64 =
            done.iter().zip(&given).map(|(done, given)| (done - given.0) as f64 - service_ns).sum();
        let mean = waited / given.len() as f64 / service_ns;
        let expected = rho / (2.0 * (1.0 - rho));
        assert!((mean / expected - 1.0).abs() < 0.03, "{mean} and {expected}");
    }

    #[test]
    fn more_cores_are_never_slower() {
        let mut rng = fastrand::Rng::with_seed(2);
        let mut at = 0;
        let given: Vec<(u64, usize, u64)> = (0..5_000)
            .map(|_| {
                at += rng.u64(0..400_000);
                (at, rng.usize(0..12), rng.u64(1..2_000_000))
            })
            .collect();
        let last = |cores| served(cores, &given).into_iter().max().unwrap();
        assert!(last(2) < last(1) && last(4) <= last(2) && last(8) <= last(4));
    }
}
