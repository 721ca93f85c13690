//! Where the time of transactions went, between their node's first look at them and its answer.
//!
//! Of the node's own transactions those are followed whose number is a multiple of a power of two.
//! It is one to begin with, and doubles whenever more have been followed than are kept, so that
//! what is kept is spread evenly over all since it was last taken, at little more than a cost for
//! each of [`KEPT_MAX`]. Whoever made the calls can pick the same ones by the same rule, and lay
//! the time that it waited beside that of the node.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pangea_core::ids::Ticket;
use pangea_core::time::Timestamp;
use pangea_core::way::{Phase, Witness};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;

/// So many are kept until they are taken: some 300 KB, and enough for a p99 that is of eighty.
pub const KEPT_MAX: usize = 8_192;
/// So many are followed at a time. The oldest of more were never answered.
const OPEN_MAX: usize = 4_096;

/// The parts of a transaction's way, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Until the node's event loop took it.
    Inbox,
    /// Until it had been run at its source, where it was.
    Execute,
    /// Until its batch was closed.
    Batch,
    /// Until the batch was durable at the source.
    Log,
    /// Until enough replicas had the batch, and the source knew.
    Replicate,
    /// Until its place in the order was agreed on, and the source knew.
    Agree,
    /// Until everything before it was applied.
    Turn,
    /// Until it was known whether its first run stands.
    Validate,
    /// Until its outcome was handed to its client's connection: what is run in order runs here, and
    /// what else is done before the epoch is published.
    Order,
}

impl Part {
    /// Every part.
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

/// What became of a transaction's first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ran {
    /// It stood.
    Once,
    /// It fell: the transaction was run again in order.
    Again,
    /// There was none: it was run in order alone.
    InOrder,
}

/// One transaction's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Its number on its node.
    pub sequence: u64,
    /// What became of its first run.
    pub ran: Ran,
    /// How long each part took, in microseconds, by [`Part::ALL`].
    pub us: [u32; Part::ALL.len()],
}

/// The ways that were followed to their end. Shared with whoever asks for them.
#[derive(Debug)]
pub struct Ways {
    /// Numbers are followed whose bits under this mask are 0.
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

    /// All that were kept since this was last called, by the ends of their ways.
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

/// A transaction that is on its way.
#[derive(Debug)]
struct Open {
    ticket: Ticket,
    sequence: u64,
    taken: Timestamp,
    executed: Timestamp,
    passed: [Option<Timestamp>; Phase::ALL.len()],
}

/// The event loop's part: it listens to the protocol.
#[derive(Debug)]
pub(super) struct Follower {
    ways: Arc<Ways>,
    clock: Clock,
    /// When the step that is taken began.
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

    /// A transaction has committed that came to the node at a time.
    pub fn on_committed(&self, ticket: Ticket, sequence: u64, arrived: Timestamp, ran: Ran) {
        if !self.ways.is_followed(sequence) {
            return;
        }
        let mut open = self.open.borrow_mut();
        let Some(at) = open.iter().position(|open| open.ticket == ticket) else { return };
        let way = open.remove(at).expect("it was just found");
        let us = parts(arrived, &way, self.clock.now().at);
        self.ways.keep(Way { sequence, ran, us });
    }

    /// A transaction has ended without a commit.
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

/// How long each part of a way took that ends now.
///
/// Some phases pass each other: a cut may be decided by replicas that knew earlier than this one
/// that a batch is available. A part is then over when the next one is, so that all of them
/// together are the whole.
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
        assert!(kept.iter().all(|way| way.sequence % 16 == 0), "every sixteenth is left");
        assert!(kept.windows(2).all(|pair| pair[1].sequence - pair[0].sequence == 16));
        assert!(followed < 5 * KEPT_MAX, "{followed} were followed for {}", kept.len());
        assert!(ways.take().is_empty() && ways.is_followed(1), "it begins anew");
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
            // Known here later than that it was agreed on.
            (Phase::Replicated, 900),
            (Phase::Ordered, 600),
            (Phase::Validated, 700),
        ] {
            open.passed[phase as usize] = Some(at(us));
        }
        let us = parts(at(0), &open, at(1_000));
        // Replication ends with agreement, and a phase that was not told of takes no time.
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
