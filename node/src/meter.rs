//! What each kind of step costs on this machine: sums for a line through (size, CPU time).
//!
//! Off unless a node is started to be calibrated; then each thread hands in, whenever it has done
//! something, the CPU time that it has used since it last did. So everything that a thread does is
//! in some kind, its system calls and wake-ups too, and nothing is there twice. What is kept of a
//! kind is six sums, so that a run of any length takes the same memory.
//!
//! A thread that does several things at once (a write of many frames) hands in their number, and
//! counts as so many of the mean size.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pangea_core::work::{Meter as StepMeter, Work};
use rustix::time::{ClockId, clock_gettime};

/// What the names of a meter's counters begin with in a node's status.
pub const COUNTERS: &str = "meter_";
/// How many times a span of time is divided between it and its double, in the counts of fsyncs.
pub const BUCKETS_PER_DOUBLING: f64 = 8.0;

/// Sums over what was measured of one kind: number, size x, nanoseconds y, and their products.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// How many there were.
    pub n: f64,
    /// Of the sizes.
    pub x: f64,
    /// Of the times in nanoseconds.
    pub y: f64,
    /// Of the squared sizes.
    pub xx: f64,
    /// Of sizes and times multiplied.
    pub xy: f64,
    /// Of the squared times, in square microseconds.
    pub yy: f64,
}

impl Sums {
    /// Takes in `n` of the same size that took `ns` and were `x` large together.
    pub fn add(&mut self, n: f64, x: f64, ns: f64) {
        if n > 0.0 {
            self.n += n;
            self.x += x;
            self.y += ns;
            self.xx += x * x / n;
            self.xy += x * ns / n;
            self.yy += ns / 1e3 * (ns / 1e3) / n;
        }
    }

    fn named(&self) -> [(&'static str, f64); 6] {
        let Self { n, x, y, xx, xy, yy } = *self;
        [("n", n), ("x", x), ("y", y), ("xx", xx), ("xy", xy), ("yy", yy)]
    }
}

/// The sums of a node.
#[derive(Default)]
pub struct Meter {
    kinds: Mutex<BTreeMap<&'static str, Sums>>,
    /// How many fsyncs took so long, by [`bucket`].
    fsyncs: Mutex<BTreeMap<u32, u64>>,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meter {
    fn add(&self, kind: &'static str, n: f64, x: f64, ns: f64) {
        lock(&self.kinds).entry(kind).or_default().add(n, x, ns);
    }

    /// An fsync took so long, by the clock on the wall.
    pub fn fsync(&self, took: Duration) {
        *lock(&self.fsyncs).entry(bucket(took)).or_default() += 1;
    }

    /// All of it, by name, for a node's status.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut counters = Vec::new();
        for (kind, sums) in lock(&self.kinds).iter() {
            let name = |sum| format!("{COUNTERS}{kind}.{sum}");
            counters.extend(sums.named().map(|(sum, value)| (name(sum), value as u64)));
        }
        for (bucket, count) in lock(&self.fsyncs).iter() {
            counters.push((format!("{COUNTERS}fsync.{bucket}"), *count));
        }
        counters
    }
}

/// Which of the counts of fsyncs this one is in.
fn bucket(took: Duration) -> u32 {
    let us = took.as_nanos() as f64 / 1e3;
    (us.max(1.0).log2() * BUCKETS_PER_DOUBLING) as u32
}

/// The CPU time of this thread so far, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One thread's way to the meter, if there is one.
#[derive(Debug, Default)]
pub struct Tap(Option<(Arc<Meter>, u64)>);

impl Tap {
    /// For this thread: it counts from now on.
    pub fn new(meter: Option<&Arc<Meter>>) -> Self {
        Self(meter.map(|meter| (meter.clone(), thread_cpu_ns())))
    }

    /// `n` things of a kind were done since the last time, `size` in all. What was done in vain is
    /// handed in with the next.
    pub fn did(&mut self, kind: &'static str, n: usize, size: usize) {
        if let Some((meter, last)) = &mut self.0
            && n > 0
        {
            let now = thread_cpu_ns();
            meter.add(kind, n as f64, size as f64, (now - std::mem::replace(last, now)) as f64);
        }
    }
}

/// The event loop's way to the meter: what its steps do is told apart.
pub struct StepTap {
    meter: Arc<Meter>,
    open: RefCell<Open>,
}

struct Open {
    last_ns: u64,
    /// What the step, and each part of it that has not ended, has taken for itself.
    own_ns: Vec<u64>,
}

impl Open {
    fn lap(&mut self) {
        let now = thread_cpu_ns();
        let own = self.own_ns.last_mut().expect("the step itself is open");
        *own += now - std::mem::replace(&mut self.last_ns, now);
    }
}

impl StepTap {
    /// For the event loop of a node with this meter.
    pub fn new(meter: Arc<Meter>) -> Self {
        let open = Open { last_ns: thread_cpu_ns(), own_ns: vec![0] };
        Self { meter, open: RefCell::new(open) }
    }

    /// What the loop did since the last time was this.
    pub fn did(&self, kind: &'static str, size: usize) {
        let mut open = self.open.borrow_mut();
        open.lap();
        let own = open.own_ns.last_mut().expect("the step itself is open");
        let own = std::mem::take(own);
        self.meter.add(kind, 1.0, size as f64, own as f64);
    }

    /// The node's meter.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl StepMeter for StepTap {
    fn begin(&self) {
        let mut open = self.open.borrow_mut();
        open.lap();
        open.own_ns.push(0);
    }

    fn end(&self, work: Work, size: usize) {
        let mut open = self.open.borrow_mut();
        open.lap();
        let own = open.own_ns.pop().expect("a part that began");
        assert!(!open.own_ns.is_empty(), "a part that began");
        self.meter.add(work.name(), 1.0, size as f64, own as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin() {
        let started = thread_cpu_ns();
        while thread_cpu_ns() < started + 2_000_000 {}
    }

    fn named(meter: &Meter, name: &str) -> u64 {
        let found = meter.counters().into_iter().find(|(found, _)| found == name);
        found.unwrap_or_else(|| panic!("{name} in {:?}", meter.counters())).1
    }

    #[test]
    fn a_part_of_a_step_is_charged_to_itself_and_not_to_the_step() {
        let meter = Arc::new(Meter::default());
        let tap = StepTap::new(meter.clone());
        tap.did("turn", 0);
        tap.begin();
        spin();
        tap.begin();
        spin();
        tap.end(Work::Encode, 7);
        tap.end(Work::Settle, 3);
        tap.did("submit", 1);
        let ns = |kind: &str| named(&meter, &format!("meter_{kind}.y"));
        for kind in ["work_encode", "work_settle"] {
            assert!((2_000_000..4_000_000).contains(&ns(kind)), "{kind} {}", ns(kind));
        }
        assert!(ns("submit") < 1_000_000, "what was its parts' is not the step's");
        assert_eq!(named(&meter, "meter_work_encode.x"), 7);
    }

    #[test]
    fn several_at_once_count_as_so_many_of_the_mean_size() {
        let mut sums = Sums::default();
        sums.add(4.0, 40.0, 8_000.0);
        let mut alone = Sums::default();
        (0..4).for_each(|_| alone.add(1.0, 10.0, 2_000.0));
        assert_eq!(sums, alone);
        sums.add(0.0, 0.0, 5.0);
        assert_eq!(sums, alone, "nothing was done");
    }

    #[test]
    fn fsyncs_are_counted_by_how_long_they_took() {
        let meter = Meter::default();
        meter.fsync(Duration::from_micros(1_024));
        meter.fsync(Duration::from_micros(1_030));
        meter.fsync(Duration::from_nanos(1));
        assert_eq!((named(&meter, "meter_fsync.80"), named(&meter, "meter_fsync.0")), (2, 1));
    }

    #[test]
    fn a_tap_without_a_meter_does_nothing() {
        Tap::new(None).did("send", 1, 1);
    }
}
