//! The cost of each kind of step on this machine, as sums for a linear fit of CPU time over size.
//!
//! Metering is off unless a node is started for calibration. If it is on, each thread reports,
//! after each operation, the CPU time that it used since its last report. Therefore all of a
//! thread's time is attributed to exactly one kind, including system calls and wake-ups. A kind is
//! stored as six sums, so memory does not grow with the length of a run.
//!
//! A thread that does several operations at once (a write of many frames) reports their number.
//! They count as that number of operations of mean size.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pangea_core::cpu_stage::{CpuStage, Meter as StepMeter};
use rustix::time::{ClockId, clock_gettime};

/// The prefix of a meter's counters in a node's status.
pub const COUNTERS: &str = "meter_";
/// The number of fsync histogram buckets per doubling of the duration.
pub const BUCKETS_PER_DOUBLING: f64 = 8.0;

/// Sums over the measurements of one kind: number, size x, nanoseconds y, and their products.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// The number of measurements.
    pub n: f64,
    /// Sum of the sizes.
    pub x: f64,
    /// Sum of the times in nanoseconds.
    pub y: f64,
    /// Sum of the squared sizes.
    pub xx: f64,
    /// Sum of the products of size and time.
    pub xy: f64,
    /// Sum of the squared times, in square microseconds.
    pub yy: f64,
}

impl Sums {
    /// Adds `n` measurements of equal size, which took `ns` and had size `x` in total.
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

/// The measurements of a node.
#[derive(Default)]
pub struct Meter {
    kinds: Mutex<BTreeMap<&'static str, Sums>>,
    /// Histogram of fsync durations, by [`bucket`].
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

    /// Records an fsync by its wall-clock duration.
    pub fn fsync(&self, took: Duration) {
        *lock(&self.fsyncs).entry(bucket(took)).or_default() += 1;
    }

    /// All sums by name, for a node's status.
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

/// The histogram bucket of a duration.
fn bucket(took: Duration) -> u32 {
    let us = took.as_nanos() as f64 / 1e3;
    (us.max(1.0).log2() * BUCKETS_PER_DOUBLING) as u32
}

/// The CPU time used by this thread so far, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A thread's connection to the meter, if metering is on.
#[derive(Debug, Default)]
pub struct Tap(Option<(Arc<Meter>, u64)>);

impl Tap {
    /// Creates the tap of this thread: its CPU time counts from now on.
    pub fn new(meter: Option<&Arc<Meter>>) -> Self {
        Self(meter.map(|meter| (meter.clone(), thread_cpu_ns())))
    }

    /// Records `n` operations of a kind since the last call, of total size `size`. Time that led to
    /// no operation is included in the next record.
    pub fn did(&mut self, kind: &'static str, n: usize, size: usize) {
        if let Some((meter, last)) = &mut self.0
            && n > 0
        {
            let now = thread_cpu_ns();
            meter.add(kind, n as f64, size as f64, (now - std::mem::replace(last, now)) as f64);
        }
    }
}

/// The event loop's connection to the meter, which measures the parts of a step separately.
pub struct StepTap {
    meter: Arc<Meter>,
    open: RefCell<Open>,
}

struct Open {
    last_ns: u64,
    /// The own CPU time of the step and of each part that has not ended, excluding nested parts.
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
    /// Creates the tap for the event loop of a node with this meter.
    pub fn new(meter: Arc<Meter>) -> Self {
        let open = Open { last_ns: thread_cpu_ns(), own_ns: vec![0] };
        Self { meter, open: RefCell::new(open) }
    }

    /// Attributes the loop's time since the last call to `kind`.
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

    fn end(&self, work: CpuStage, size: usize) {
        let mut open = self.open.borrow_mut();
        open.lap();
        let own = open.own_ns.pop().expect("a part was begun");
        assert!(!open.own_ns.is_empty(), "a part was begun");
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
        found.unwrap_or_else(|| panic!("no counter {name} in {:?}", meter.counters())).1
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
        tap.end(CpuStage::Encode, 7);
        tap.end(CpuStage::Settle, 3);
        tap.did("submit", 1);
        let ns = |kind: &str| named(&meter, &format!("meter_{kind}.y"));
        for kind in ["work_encode", "work_settle"] {
            assert!((2_000_000..4_000_000).contains(&ns(kind)), "{kind} {}", ns(kind));
        }
        assert!(ns("submit") < 1_000_000, "the time of parts is not charged to the step");
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
        assert_eq!(sums, alone, "no work was done");
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
