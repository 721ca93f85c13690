//! A node from the view of its event loop: its queues and the choice of the next input.
//!
//! The order is that of the real driver. Durable positions and due timers come before each step.
//! Then come messages one by one, submissions together, and the work that the protocol has
//! deferred.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId, Ticket};
use pangea_core::protocol::{Effect, Input, Protocol, Submission};
use pangea_core::store::Store;
use pangea_core::time::Timestamp;

use super::machine::{Machine, ThreadId};
use super::steps::ModelPool;

/// The maximum number of submissions in a step, as in a node.
const SUBMISSIONS_PER_STEP: usize = 2_048;

/// One replica.
pub(super) struct Node<P: Protocol> {
    pub id: NodeId,
    pub protocol: P,
    pub store: Arc<Store>,
    pub pool: ModelPool,
    pub rng: fastrand::Rng,
    pub threads: Threads,
    /// Whether the event loop is in a step.
    pub is_busy: bool,
    pub effects: Vec<Effect<P>>,
    pub log_head: LogPosition,
    /// The position that the event loop knows to be durable.
    pub durable: LogPosition,
    /// The position that is durable.
    pub synced: LogPosition,
    pub pending_effects: BTreeMap<LogPosition, Vec<Effect<P>>>,
    pub timers: BTreeMap<P::Timer, Timestamp>,
    pub inbox: Inbox<P>,
    turn: Inbox<P>,
    is_in_turn: bool,
    pub wants_resume: bool,
    pub log: Writer,
    /// Calls that the request reader has not processed, by client.
    pub requests: Vec<(usize, Submission)>,
    /// Answers that the answer writer has not processed, by client.
    pub answers: Vec<(usize, bool)>,
    /// The client that waits for each ticket.
    pub waiting: BTreeMap<Ticket, usize>,
}

/// The threads of a node, on its machine.
#[derive(Debug)]
pub(super) struct Threads {
    pub machine: usize,
    pub event_loop: ThreadId,
    pub pool: Vec<ThreadId>,
    pub log: ThreadId,
    pub requests: ThreadId,
    pub answers: ThreadId,
    /// All work without a kind of its own: checkpoints, the log's next files.
    pub rest: ThreadId,
    /// By peer and lane.
    pub senders: Vec<[ThreadId; 2]>,
    pub readers: Vec<[ThreadId; 2]>,
}

impl Threads {
    /// Creates a node's threads on `machine`, which has number `at`.
    pub fn spawn<T>(machine: &mut Machine<T>, at: usize, nodes: usize, workers: usize) -> Self {
        let mut lanes = || (0..nodes).map(|_| [machine.spawn(), machine.spawn()]).collect();
        let (senders, readers) = (lanes(), lanes());
        Self {
            machine: at,
            event_loop: machine.spawn(),
            pool: (1..workers).map(|_| machine.spawn()).collect(),
            log: machine.spawn(),
            requests: machine.spawn(),
            answers: machine.spawn(),
            rest: machine.spawn(),
            senders,
            readers,
        }
    }
}

/// The log writer.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub is_busy: bool,
    pub bytes: u64,
    pub head: LogPosition,
    pub fsync_busy_ns: u64,
}

/// The inputs that have arrived.
pub(super) struct Inbox<P: Protocol> {
    pub peers: VecDeque<Input<P>>,
    pub submissions: Vec<Submission>,
}

impl<P: Protocol> Default for Inbox<P> {
    fn default() -> Self {
        Self { peers: VecDeque::new(), submissions: Vec::new() }
    }
}

impl<P: Protocol> Node<P> {
    pub fn new(
        id: NodeId,
        protocol: P,
        store: Arc<Store>,
        pool: ModelPool,
        seed: u64,
        threads: Threads,
    ) -> Self {
        Self {
            id,
            protocol,
            store,
            pool,
            rng: fastrand::Rng::with_seed(seed ^ (u64::from(id.0) + 1).wrapping_mul(0x9e37_79b9)),
            threads,
            is_busy: false,
            effects: Vec::new(),
            log_head: LogPosition(0),
            durable: LogPosition(0),
            synced: LogPosition(0),
            pending_effects: BTreeMap::new(),
            timers: BTreeMap::new(),
            inbox: Inbox::default(),
            turn: Inbox::default(),
            is_in_turn: false,
            wants_resume: false,
            log: Writer::default(),
            requests: Vec::new(),
            answers: Vec::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Returns the input of the next step, and deferred effects that may be carried out before it.
    pub fn next_input(&mut self, now: Timestamp) -> Option<(Input<P>, Vec<Effect<P>>)> {
        if self.synced > self.durable {
            self.durable = self.synced;
            let later = self.pending_effects.split_off(&LogPosition(self.durable.0 + 1));
            let ready = std::mem::replace(&mut self.pending_effects, later);
            let ready = ready.into_values().flatten().collect();
            return Some((Input::Durable(self.durable), ready));
        }
        let due = self.timers.iter().find(|(_, at)| **at <= now).map(|(timer, _)| *timer);
        if let Some(timer) = due {
            self.timers.remove(&timer);
            return Some((Input::Timer(timer), Vec::new()));
        }
        let input = self.next_of_turn().or_else(|| {
            if std::mem::take(&mut self.is_in_turn) && std::mem::take(&mut self.wants_resume) {
                return Some(Input::Resume);
            }
            self.turn = std::mem::take(&mut self.inbox);
            let next = self.next_of_turn();
            self.is_in_turn = next.is_some();
            next.or_else(|| std::mem::take(&mut self.wants_resume).then_some(Input::Resume))
        });
        input.map(|input| (input, Vec::new()))
    }

    fn next_of_turn(&mut self) -> Option<Input<P>> {
        if let Some(message) = self.turn.peers.pop_front() {
            return Some(message);
        }
        let submissions = &mut self.turn.submissions;
        if submissions.is_empty() {
            return None;
        }
        let rest = submissions.split_off(submissions.len().min(SUBMISSIONS_PER_STEP));
        Some(Input::Submit(std::mem::replace(submissions, rest)))
    }
}
