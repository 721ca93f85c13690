//! Latency breakdown of transactions, from the node's receipt of a transaction to its answer.
//!
//! The node samples those of its own transactions whose number is a multiple of a power of two. The
//! power starts at one, and doubles whenever the samples exceed the limit. The samples are
//! therefore spread evenly over all transactions since they were last taken, at little more than
//! the cost of [`KEPT_MAX`] samples. Clients can select the same transactions by the same rule, and
//! compare their own latency with the node's.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pangea_core::ids::Ticket;
use pangea_core::time::Timestamp;
use pangea_core::way::{Phase, Witness};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;

/// The maximum number of samples: some 300 KB, with about 80 samples above the p99.
pub const KEPT_MAX: usize = 8_192;
/// The maximum number of transactions followed at a time. If it is exceeded, the oldest were never
/// answered.
const OPEN_MAX: usize = 4_096;

/// The stages of a transaction's lifecycle, in order. Each begins when the previous one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
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

impl Part {
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
pub enum Ran {
    /// It was valid.
    Once,
    /// It was invalid: the transaction was re-executed in order.
    Again,
    /// There was no first run: the transaction ran only in order.
    InOrder,
}

/// The latency breakdown of one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The transaction's number on its node.
    pub sequence: u64,
    /// The result of its first run.
    pub ran: Ran,
    /// The duration of each stage in microseconds, in the order of [`Part::ALL`].
    pub us: [u32; Part::ALL.len()],
}

/// The latency samples of finished transactions, shared with the threads that query them.
#[derive(Debug)]
pub struct Ways {
    /// Transactions are sampled if the bits of their number under this mask are 0.
    mask: AtomicU64,
    kept: Mutex<Vec<Way>>,
}

impl Default for Ways {
    fn default() -> Self {
        Self { mask: AtomicU64::new(0), kept: Mutex::default() }
    }
}

impl Ways {
    fn lock(&self) -> MutexGuard<'_, Vec<Way>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns all samples since the last call, by the end of the transactions.
    pub fn take(&self) -> Vec<Way> {
        let mut kept = self.lock();
        self.mask.store(0, Ordering::Relaxed);
        std::mem::take(&mut *kept)
    }

    fn is_followed(&self, sequence: u64) -> bool {
        sequence & self.mask.load(Ordering::Relaxed) == 0
    }

    fn keep(&self, way: Way) {
        let mut kept = self.lock();
        if !self.is_followed(way.sequence) {
            return;
        }
        if kept.len() == KEPT_MAX {
            let mask = self.mask.load(Ordering::Relaxed) << 1 | 1;
            self.mask.store(mask, Ordering::Relaxed);
            kept.retain(|way| way.sequence & mask == 0);
            if way.sequence & mask != 0 {
                return;
            }
        }
        kept.push(way);
    }
}

/// A sampled transaction that has not ended.
#[derive(Debug)]
struct Open {
    ticket: Ticket,
    sequence: u64,
    taken: Timestamp,
    executed: Timestamp,
    passed: [Option<Timestamp>; Phase::ALL.len()],
}

/// The event loop's side: it observes the protocol's phases.
#[derive(Debug)]
pub(super) struct Follower {
    ways: Arc<Ways>,
    clock: Clock,
    /// The start time of the current step.
    step_at: Cell<Timestamp>,
    open: RefCell<VecDeque<Open>>,
}

impl Follower {
    pub fn new(ways: Arc<Ways>, clock: Clock) -> Self {
        let step_at = Cell::default();
        Self { ways, clock, step_at, open: RefCell::default() }
    }

    /// A step begins.
    pub fn on_step(&self, at: Timestamp) {
        self.step_at.set(at);
    }

    /// A transaction that arrived at `arrived` has committed.
    pub fn on_committed(&self, ticket: Ticket, sequence: u64, arrived: Timestamp, ran: Ran) {
        if !self.ways.is_followed(sequence) {
            return;
        }
        let mut open = self.open.borrow_mut();
        let Some(at) = open.iter().position(|open| open.ticket == ticket) else { return };
        let way = open.remove(at).expect("the sample was just found");
        let us = parts(arrived, &way, self.clock.now().at);
        self.ways.keep(Way { sequence, ran, us });
    }

    /// A transaction has ended without committing.
    pub fn on_aborted(&self, ticket: Ticket) {
        self.open.borrow_mut().retain(|open| open.ticket != ticket);
    }
}

impl Witness for Follower {
    fn named(&self, ticket: Ticket, sequence: u64) {
        if !self.ways.is_followed(sequence) {
            return;
        }
        let mut open = self.open.borrow_mut();
        if open.len() == OPEN_MAX {
            open.pop_front();
        }
        let passed = [None; Phase::ALL.len()];
        let (taken, executed) = (self.step_at.get(), self.clock.now().at);
        open.push_back(Open { ticket, sequence, taken, executed, passed });
    }

    fn reached(&self, phase: Phase, below: u64) {
        let mut open = self.open.borrow_mut();
        if open.is_empty() {
            return;
        }
        let now = self.clock.now().at;
        for way in open.iter_mut().filter(|way| way.sequence < below) {
            way.passed[phase as usize].get_or_insert(now);
        }
    }
}

/// The duration of each stage of a transaction that ends now.
///
/// Some phases can end out of order: a cut may be decided by replicas that knew earlier than this
/// one that a batch is available. A stage then ends when the next one does, so that the stages add
/// up to the whole.
fn parts(arrived: Timestamp, way: &Open, now: Timestamp) -> [u32; Part::ALL.len()] {
    let mut ends = [now; Part::ALL.len()];
    (ends[0], ends[1]) = (way.taken, way.executed);
    let mut next = now;
    for (end, passed) in ends[2..].iter_mut().zip(way.passed).rev() {
        next = passed.map_or(next, |passed| passed.min(next));
        *end = next;
    }
    let mut began = arrived.min(way.taken);
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

    fn way(sequence: u64) -> Way {
        Way { sequence, ran: Ran::Once, us: [1; Part::ALL.len()] }
    }

    #[test]
    fn what_is_kept_is_bounded_and_spread_over_all() {
        let ways = Ways::default();
        let mut followed = 0;
        for sequence in 0_u64..100_000 {
            if ways.is_followed(sequence) {
                followed += 1;
                ways.keep(way(sequence));
            }
        }
        let kept = ways.take();
        assert!((KEPT_MAX / 2..=KEPT_MAX).contains(&kept.len()), "{}", kept.len());
        assert!(kept.iter().all(|way| way.sequence % 16 == 0), "one in sixteen samples is left");
        assert!(kept.windows(2).all(|pair| pair[1].sequence - pair[0].sequence == 16));
        assert!(followed < 5 * KEPT_MAX, "{followed} were followed for {}", kept.len());
        assert!(ways.take().is_empty() && ways.is_followed(1), "sampling starts again");
    }

    #[test]
    fn parts_are_the_whole_whatever_order_phases_came_in() {
        let at = |us: u64| Timestamp::from_us(1_000_000 + us);
        let mut open = Open {
            ticket: Ticket(1),
            sequence: 1,
            taken: at(10),
            executed: at(30),
            passed: [None; Phase::ALL.len()],
        };
        for (phase, us) in [
            (Phase::Batched, 100),
            (Phase::Durable, 150),
            // This node learns of it later than of the agreement.
            (Phase::Replicated, 900),
            (Phase::Ordered, 600),
            (Phase::Validated, 700),
        ] {
            open.passed[phase as usize] = Some(at(us));
        }
        let us = parts(at(0), &open, at(1_000));
        // Replication ends with agreement, and a phase that was not reported takes no time.
        assert_eq!(us, [10, 20, 70, 50, 450, 0, 100, 0, 300]);
        assert_eq!(us.iter().sum::<u32>(), 1_000);
        open.passed = [None; Phase::ALL.len()];
        assert_eq!(parts(at(0), &open, at(50)), [10, 20, 20, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_follower_hears_of_its_transactions_alone() {
        let ways = Arc::new(Ways::default());
        let follower = Follower::new(ways.clone(), Clock::start());
        follower.on_step(follower.clock.now().at);
        (1_u64..=3).for_each(|n| follower.named(Ticket(10 + n), n));
        follower.reached(Phase::Batched, 3);
        follower.on_aborted(Ticket(12));
        let arrived = follower.step_at.get();
        follower.on_committed(Ticket(11), 1, arrived, Ran::Again);
        follower.on_committed(Ticket(99), 2, arrived, Ran::Once);
        let taken = ways.take();
        assert_eq!(taken.len(), 1, "{taken:?}");
        assert_eq!((taken[0].sequence, taken[0].ran), (1, Ran::Again));
        assert_eq!(follower.open.borrow().len(), 1);
    }
}
