//! The cost of the steps of a node.

use rustix::time::{ClockId, clock_gettime};

/// Bytes that were allocated, and nanoseconds on a processor, which do not count waiting.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepCost {
    pub bytes: u64,
    pub ns: u64,
}

impl StepCost {
    /// Adds the cost of a step.
    pub(super) fn add(&mut self, step: impl FnOnce()) {
        let before = on_processor_ns();
        let memory = allocation_counter::measure(step);
        self.ns += on_processor_ns() - before;
        self.bytes += memory.bytes_total;
    }

    pub fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), ns: self.ns.max(other.ns) }
    }

    pub fn min(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), ns: self.ns.min(other.ns) }
    }
}

fn on_processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let whole = u64::try_from(time.tv_sec).expect("a time since the thread began");
    whole * 1_000_000_000 + u64::try_from(time.tv_nsec).expect("less than a second")
}
