//! Latency breakdown of transactions, from the node's receipt of a transaction to its answer.
//!
//! The node samples those of its own transactions whose number is a multiple of a power of two. The
//! power starts at one, and doubles whenever the samples exceed the limit. The samples are
//! therefore spread evenly over all transactions since they were last taken, at little more than
//! the cost of [`SAMPLES_MAX`] samples. Clients can select the same transactions by the same rule,
//! and compare their own latency with the node's.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pangea_core::ids::Ticket;
use pangea_core::latency::{LatencyObserver, Milestone};
use pangea_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;

/// The maximum number of samples: some 300 KB, with about 80 samples above the p99.
pub const SAMPLES_MAX: usize = 8_192;
/// The maximum number of transactions followed at a time. If it is exceeded, the oldest were never
/// answered.
const OPEN_MAX: usize = 4_096;

/// The stages of a transaction's lifecycle, in order. Each begins when the previous one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LatencyStage {
    /// Until the node's event loop took it from the inbox.
    Inbox,
    /// Until its local execution at its source ended, if it has one.
    Execute,
    /// Until its batch was closed.
    Batch,
    /// Until the batch was durable at the source.
    Log,
    /// Until enough replicas had the batch, and the source knew it.
    Replicate,
    /// Until its place in the order was agreed on, and the source knew it.
    Agree,
    /// Until everything before it in the order was applied.
    Turn,
    /// Until it was known whether its first run is valid.
    Validate,
    /// Until its outcome was handed to its client's connection. This includes ordered execution,
    /// and other work before the epoch is published.
    Order,
}

impl LatencyStage {
    /// All stages.
    pub const ALL: [Self; 9] = [
        Self::Inbox,
        Self::Execute,
        Self::Batch,
        Self::Log,
        Self::Replicate,
        Self::Agree,
        Self::Turn,
        Self::Validate,
        Self::Order,
    ];

    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Execute => "execute",
            Self::Batch => "batch",
            Self::Log => "log",
            Self::Replicate => "replicate",
            Self::Agree => "agree",
            Self::Turn => "turn",
            Self::Validate => "validate",
            Self::Order => "order",
        }
    }
}

/// The result of a transaction's first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunKind {
    /// It was valid.
    FirstRunValid,
    /// It was invalid: the transaction was re-executed in order.
    ReExecuted,
    /// There was no first run: the transaction ran only in order.
    OrderedOnly,
}

/// The latency breakdown of one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencySample {
    /// The transaction's number on its node.
    pub sequence: u64,
    /// The result of its first run.
    pub ran: RunKind,
    /// The duration of each stage in microseconds, in the order of [`LatencyStage::ALL`].
    pub us: [u32; LatencyStage::ALL.len()],
}

/// The latency samples of finished transactions, shared with the threads that query them.
#[derive(Debug)]
pub struct LatencySamples {
    /// Transactions are sampled if the bits of their number under this mask are 0.
    mask: AtomicU64,
    samples: Mutex<Vec<LatencySample>>,
}

impl Default for LatencySamples {
    fn default() -> Self {
        Self { mask: AtomicU64::new(0), samples: Mutex::default() }
    }
}

impl LatencySamples {
    fn lock(&self) -> MutexGuard<'_, Vec<LatencySample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns all samples since the last call, by the end of the transactions.
    pub fn take(&self) -> Vec<LatencySample> {
        let mut samples = self.lock();
        self.mask.store(0, Ordering::Relaxed);
        std::mem::take(&mut *samples)
    }

    fn is_followed(&self, sequence: u64) -> bool {
        sequence & self.mask.load(Ordering::Relaxed) == 0
    }

    fn keep(&self, sample: LatencySample) {
        let mut samples = self.lock();
        if !self.is_followed(sample.sequence) {
            return;
        }
        if samples.len() == SAMPLES_MAX {
            let mask = self.mask.load(Ordering::Relaxed) << 1 | 1;
            self.mask.store(mask, Ordering::Relaxed);
            samples.retain(|sample| sample.sequence & mask == 0);
            if sample.sequence & mask != 0 {
                return;
            }
        }
        samples.push(sample);
    }
}

/// A sampled transaction that has not ended.
#[derive(Debug)]
struct Open {
    ticket: Ticket,
    sequence: u64,
    taken: Timestamp,
    executed: Timestamp,
    passed: [Option<Timestamp>; Milestone::ALL.len()],
}

/// The event loop's side: it observes the protocol's phases.
#[derive(Debug)]
pub(super) struct Follower {
    latency: Arc<LatencySamples>,
    clock: Clock,
    /// The start time of the current step.
    step_at: Cell<Timestamp>,
    open: RefCell<VecDeque<Open>>,
}

impl Follower {
    pub fn new(latency: Arc<LatencySamples>, clock: Clock) -> Self {
        let step_at = Cell::default();
        Self { latency, clock, step_at, open: RefCell::default() }
    }

    /// A step begins.
    pub fn on_step(&self, at: Timestamp) {
        self.step_at.set(at);
    }

    /// A transaction that arrived at `arrived` has committed.
    pub fn on_committed(&self, ticket: Ticket, sequence: u64, arrived: Timestamp, ran: RunKind) {
        if !self.latency.is_followed(sequence) {
            return;
        }
        let mut open = self.open.borrow_mut();
        let Some(at) = open.iter().position(|open| open.ticket == ticket) else { return };
        let sample = open.remove(at).expect("the sample was just found");
        let us = parts(arrived, &sample, self.clock.now().at);
        self.latency.keep(LatencySample { sequence, ran, us });
    }

    /// A transaction has ended without committing.
    pub fn on_aborted(&self, ticket: Ticket) {
        self.open.borrow_mut().retain(|open| open.ticket != ticket);
    }
}

impl LatencyObserver for Follower {
    fn named(&self, ticket: Ticket, sequence: u64) {
        if !self.latency.is_followed(sequence) {
            return;
        }
        let mut open = self.open.borrow_mut();
        if open.len() == OPEN_MAX {
            open.pop_front();
        }
        let passed = [None; Milestone::ALL.len()];
        let (taken, executed) = (self.step_at.get(), self.clock.now().at);
        open.push_back(Open { ticket, sequence, taken, executed, passed });
    }

    fn reached(&self, milestone: Milestone, below: u64) {
        let mut open = self.open.borrow_mut();
        if open.is_empty() {
            return;
        }
        let now = self.clock.now().at;
        for sample in open.iter_mut().filter(|sample| sample.sequence < below) {
            sample.passed[milestone as usize].get_or_insert(now);
        }
    }
}

/// The duration of each stage of a transaction that ends now.
///
/// Some phases can end out of order: a cut may be decided by replicas that knew earlier than this
/// one that a batch is available. A stage then ends when the next one does, so that the stages add
/// up to the whole.
fn parts(arrived: Timestamp, sample: &Open, now: Timestamp) -> [u32; LatencyStage::ALL.len()] {
    let mut ends = [now; LatencyStage::ALL.len()];
    (ends[0], ends[1]) = (sample.taken, sample.executed);
    let mut next = now;
    for (end, passed) in ends[2..].iter_mut().zip(sample.passed).rev() {
        next = passed.map_or(next, |passed| passed.min(next));
        *end = next;
    }
    let mut began = arrived.min(sample.taken);
    ends.map(|end| {
        let end = end.max(began);
        let took = end.since(began);
        began = end;
        u32::try_from(took.us).unwrap_or(u32::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sequence: u64) -> LatencySample {
        LatencySample { sequence, ran: RunKind::FirstRunValid, us: [1; LatencyStage::ALL.len()] }
    }

    #[test]
    fn what_is_kept_is_bounded_and_spread_over_all() {
        let latency = LatencySamples::default();
        let mut followed = 0;
        for sequence in 0_u64..100_000 {
            if latency.is_followed(sequence) {
                followed += 1;
                latency.keep(sample(sequence));
            }
        }
        let samples = latency.take();
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&samples.len()), "{}", samples.len());
        assert!(
            samples.iter().all(|sample| sample.sequence % 16 == 0),
            "one in sixteen samples is left"
        );
        assert!(samples.windows(2).all(|pair| pair[1].sequence - pair[0].sequence == 16));
        assert!(followed < 5 * SAMPLES_MAX, "{followed} were followed for {}", samples.len());
        assert!(latency.take().is_empty() && latency.is_followed(1), "sampling starts again");
    }

    #[test]
    fn parts_are_the_whole_whatever_order_phases_came_in() {
        let at = |us: u64| Timestamp::from_us(1_000_000 + us);
        let mut open = Open {
            ticket: Ticket(1),
            sequence: 1,
            taken: at(10),
            executed: at(30),
            passed: [None; Milestone::ALL.len()],
        };
        for (milestone, us) in [
            (Milestone::Batched, 100),
            (Milestone::Durable, 150),
            // This node learns of it later than of the agreement.
            (Milestone::Replicated, 900),
            (Milestone::Ordered, 600),
            (Milestone::Validated, 700),
        ] {
            open.passed[milestone as usize] = Some(at(us));
        }
        let us = parts(at(0), &open, at(1_000));
        // Replication ends with agreement, and a phase that was not reported takes no time.
        assert_eq!(us, [10, 20, 70, 50, 450, 0, 100, 0, 300]);
        assert_eq!(us.iter().sum::<u32>(), 1_000);
        open.passed = [None; Milestone::ALL.len()];
        assert_eq!(parts(at(0), &open, at(50)), [10, 20, 20, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_follower_hears_of_its_transactions_alone() {
        let latency = Arc::new(LatencySamples::default());
        let clock = Clock::start(Default::default(), pangea_core::ids::NodeId(0));
        let follower = Follower::new(latency.clone(), clock);
        follower.on_step(follower.clock.now().at);
        (1_u64..=3).for_each(|n| follower.named(Ticket(10 + n), n));
        follower.reached(Milestone::Batched, 3);
        follower.on_aborted(Ticket(12));
        let arrived = follower.step_at.get();
        follower.on_committed(Ticket(11), 1, arrived, RunKind::ReExecuted);
        follower.on_committed(Ticket(99), 2, arrived, RunKind::FirstRunValid);
        let taken = latency.take();
        assert_eq!(taken.len(), 1, "{taken:?}");
        assert_eq!((taken[0].sequence, taken[0].ran), (1, RunKind::ReExecuted));
        assert_eq!(follower.open.borrow().len(), 1);
    }
}
