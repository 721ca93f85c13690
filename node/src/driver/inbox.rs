//! The driver's one queue: whoever wants something of it puts it here.
//!
//! Bounded, each kind in its own way: submissions are refused when too many requests are in flight,
//! and whoever brings a peer's message waits while too many bytes of messages do, which the peer's
//! connection then feels. Reports of the log and of checkpoints are a number each and take no room.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::protocol::{Message, Protocol, Request, Status, WaitsFor};
use pangea_core::time::Span;
use pangea_core::txn::{Abort, Outcome, SqlState};
use pangea_sql::engine::{Trace, Unavailable};

use super::reach::{Majority, Pressure, Reach, StartWaits};
use super::ways::Ways;

/// How many requests may be unanswered, in the inbox and in the protocol: a second's worth at the
/// highest rate, and some 100 MB of memory at 1 KB each.
pub const IN_FLIGHT_MAX: usize = 100_000;

/// How many bytes of peers' messages may wait: two of the longest batches from each of many peers.
pub const PEER_BYTES_MAX: usize = 128 << 20;

/// A request of status is refused when this many wait.
const QUERIES_MAX: usize = 1_024;

/// What is called with an answer, once.
pub type Receive<T> = Box<dyn FnOnce(Result<T, Unavailable>) + Send>;

/// Who waits for an answer. Told that there is none when it is dropped.
pub struct Answer<T> {
    receive: Option<Receive<T>>,
    /// What wants to know of the request's way.
    trace: Option<Arc<Trace>>,
    /// When the node was asked.
    arrived: Option<Instant>,
}

/// Who waits for the outcome of a program.
pub type CommitReply = Answer<Outcome>;
/// Who waits for a fresh version.
pub type FreshReply = Answer<SnapshotVersion>;
/// Who waits for the status.
pub type StatusReply = Answer<Status>;

impl<T> Answer<T> {
    /// Calls `receive` with the answer, once, on the driver's thread: it must not block.
    pub fn new(receive: impl FnOnce(Result<T, Unavailable>) + Send + 'static) -> Self {
        Self { receive: Some(Box::new(receive)), trace: None, arrived: None }
    }

    /// The same, which notes the request's way in `trace`.
    pub fn traced(self, trace: Arc<Trace>) -> Self {
        let mut traced = self;
        traced.trace = Some(trace);
        traced
    }

    /// The same, which knows when the node was asked.
    pub(super) fn arrived_at(self, at: Instant) -> Self {
        let mut noted = self;
        noted.arrived = Some(at);
        noted
    }

    /// When the node was asked, where that was noted.
    pub(super) fn arrived(&self) -> Option<Instant> {
        self.arrived
    }

    /// Notes something of the request's way, where somebody wants to know.
    pub fn note(&self, note: impl FnOnce(&Trace)) {
        if let Some(trace) = &self.trace {
            note(trace);
        }
    }

    /// Answers.
    pub fn send(mut self, answer: Result<T, Unavailable>) {
        if let Some(receive) = self.receive.take() {
            receive(answer);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(receive) = self.receive.take() {
            let reason = "the node ended before it answered; what became of the request is unknown";
            receive(Err(Unavailable { reason: reason.to_owned() }));
        }
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

/// Who waits for a ticket.
#[derive(Debug)]
pub(super) enum Waiting {
    Commit(CommitReply),
    Fresh(FreshReply),
}

impl Waiting {
    /// Tells that the request was not taken, because too many are, and for which nodes they wait
    /// where that is known. A transaction has not committed and won't.
    fn refuse(self, in_flight: usize, late: Option<&str>) {
        let reason = format!("the node is overloaded: {in_flight} requests are in flight");
        match self {
            Self::Commit(reply) => {
                let abort = Abort::new(SqlState::INSUFFICIENT_RESOURCES, reason);
                let detail = late.map(|late| format!("The node is {late}."));
                let abort = Abort { detail, ..abort.with_hint("Try again later.") };
                reply.send(Ok(Outcome::Aborted(abort)));
            }
            Self::Fresh(reply) => reply.send(Err(Unavailable { reason })),
        }
    }

    /// Tells that the node ends, and that the outcome is not known.
    pub fn give_up(self, reason: &str) {
        let unavailable = Unavailable { reason: reason.to_owned() };
        match self {
            Self::Commit(reply) => reply.send(Err(unavailable)),
            Self::Fresh(reply) => reply.send(Err(unavailable)),
        }
    }
}

/// What the network reports.
#[derive(Debug)]
pub(super) enum PeerEvent<P: Protocol> {
    Up(NodeId),
    Down(NodeId),
    Message { from: NodeId, message: P::Message },
}

/// Everything that was in the inbox.
#[derive(Debug)]
pub(super) struct Inputs<P: Protocol> {
    pub peers: VecDeque<PeerEvent<P>>,
    pub submissions: Vec<(Request, Waiting)>,
    pub queries: Vec<StatusReply>,
    pub checkpointed: Option<SnapshotVersion>,
    pub checkpoint_failed: Option<SnapshotVersion>,
    /// What was fetched from the cold store, and how long that took.
    pub fetched: Vec<(u64, Span)>,
}

/// What the driver does next.
pub(super) enum Turn<P: Protocol> {
    /// There may be none: then it was a timer's time, or the log's.
    Inputs(Inputs<P>),
    /// The node ends.
    Closed,
}

struct State<P: Protocol> {
    inputs: Inputs<P>,
    peer_bytes: usize,
    /// Why the node ends.
    closed: Option<Closed>,
    is_idle: bool,
    /// The log has got further since the driver last looked.
    has_durable: bool,
}

/// Why a node has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// In words.
    pub reason: String,
    /// Whether nobody asked for it.
    pub is_failure: bool,
}

/// The driver's queue.
pub struct Inbox<P: Protocol> {
    reach: Reach,
    ways: Arc<Ways>,
    state: Mutex<State<P>>,
    work: Condvar,
    room: Condvar,
    ended: Condvar,
    durable: AtomicU64,
    in_flight: AtomicUsize,
    malformed: AtomicU64,
}

impl<P: Protocol> fmt::Debug for Inbox<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({} in flight)", self.in_flight.load(Ordering::Relaxed))
    }
}

impl<P: Protocol> Default for Inputs<P> {
    fn default() -> Self {
        Self {
            peers: VecDeque::new(),
            submissions: Vec::new(),
            queries: Vec::new(),
            checkpointed: None,
            checkpoint_failed: None,
            fetched: Vec::new(),
        }
    }
}

impl<P: Protocol> Inbox<P> {
    /// An empty inbox of a node that reaches no other yet, and whose log is durable up to
    /// `durable`.
    pub fn new(reach: Reach, durable: LogPosition) -> Self {
        let state = State {
            inputs: Inputs::default(),
            peer_bytes: 0,
            closed: None,
            is_idle: false,
            has_durable: false,
        };
        Self {
            reach,
            ways: Arc::default(),
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            ended: Condvar::new(),
            durable: AtomicU64::new(durable.0),
            in_flight: AtomicUsize::new(0),
            malformed: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, state: &mut State<P>) {
        if std::mem::take(&mut state.is_idle) {
            self.work.notify_one();
        }
    }

    /// Both lanes to a peer are connected.
    pub fn on_peer_up(&self, peer: NodeId) {
        report(self.reach.on_up(peer));
        let mut state = self.lock();
        state.inputs.peers.push_back(PeerEvent::Up(peer));
        self.wake(&mut state);
    }

    /// A peer does not take this node, for this reason.
    pub fn on_peer_refusal(&self, peer: NodeId, reason: String) {
        self.reach.on_refused(peer, reason);
    }

    /// A lane to a peer was lost.
    pub fn on_peer_down(&self, peer: NodeId) {
        let majority = self.reach.on_down(peer);
        let mut state = self.lock();
        state.inputs.peers.push_back(PeerEvent::Down(peer));
        self.wake(&mut state);
        let is_ending = state.closed.is_some();
        drop(state);
        // A node that ends loses every peer, which is no news.
        if !is_ending {
            report(majority);
        }
    }

    /// The protocol says what it waits for before it takes part; nothing when that is over.
    pub(super) fn on_start_waits(&self, waits: Option<StartWaits>) {
        report(self.reach.on_start_waits(waits));
    }

    /// The protocol says which nodes are behind, so that this one waits.
    pub(super) fn on_waits(&self, late: Vec<WaitsFor>) {
        match self.reach.on_waits(late) {
            Pressure::Unchanged => {}
            Pressure::Grown(whom) => tracing::warn!("{whom}"),
            Pressure::Over => tracing::info!("no node is behind any more, so that this one waits"),
        }
    }

    /// Which nodes are connected.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Where the time of transactions went.
    pub fn ways(&self) -> &Arc<Ways> {
        &self.ways
    }

    /// A peer sent a message. Decodes it on the caller's thread, and waits while too many wait.
    pub fn on_frame(&self, from: NodeId, frame: &Bytes) {
        let message = match P::Message::decode(frame) {
            Ok(message) => message,
            Err(error) => {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                let len = frame.len();
                tracing::error!(
                    "a message of {len} bytes from node {} can't be read and was dropped: {error}; \
                     do both nodes run the same version?",
                    from.0
                );
                return;
            }
        };
        let mut state = self.lock();
        while state.peer_bytes > PEER_BYTES_MAX && state.closed.is_none() {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.peer_bytes += frame.len();
        state.inputs.peers.push_back(PeerEvent::Message { from, message });
        self.wake(&mut state);
    }

    /// The log is durable up to a position.
    pub fn on_durable(&self, position: LogPosition) {
        self.durable.fetch_max(position.0, Ordering::AcqRel);
        let mut state = self.lock();
        state.has_durable = true;
        self.wake(&mut state);
    }

    /// A checkpoint is durable.
    pub fn on_checkpointed(&self, version: SnapshotVersion) {
        let mut state = self.lock();
        state.inputs.checkpointed = state.inputs.checkpointed.max(Some(version));
        self.wake(&mut state);
    }

    /// A checkpoint was not written.
    pub fn on_checkpoint_failed(&self, version: SnapshotVersion) {
        let mut state = self.lock();
        state.inputs.checkpoint_failed = Some(version);
        self.wake(&mut state);
    }

    /// Values that the protocol asked for are in memory.
    pub fn on_fetched(&self, token: u64, took: Span) {
        let mut state = self.lock();
        state.inputs.fetched.push((token, took));
        self.wake(&mut state);
    }

    /// Takes requests, all or none.
    pub(super) fn submit(&self, requests: Vec<(Request, Waiting)>) {
        let count = requests.len();
        let before = self.in_flight.fetch_add(count, Ordering::AcqRel);
        if before + count > IN_FLIGHT_MAX {
            self.in_flight.fetch_sub(count, Ordering::AcqRel);
            let late = self.reach.waits_for();
            requests.into_iter().for_each(|(_, waiting)| waiting.refuse(before, late.as_deref()));
            return;
        }
        let mut state = self.lock();
        let Some(closed) = &state.closed else {
            state.inputs.submissions.extend(requests);
            return self.wake(&mut state);
        };
        let reason = closed.reason.clone();
        drop(state);
        self.in_flight.fetch_sub(count, Ordering::AcqRel);
        requests.into_iter().for_each(|(_, waiting)| waiting.give_up(&reason));
    }

    /// Asks for the status.
    pub fn query(&self, reply: StatusReply) {
        let mut state = self.lock();
        let refusal = match &state.closed {
            Some(closed) => closed.reason.clone(),
            None if state.inputs.queries.len() >= QUERIES_MAX => "too many queries".to_owned(),
            None => {
                state.inputs.queries.push(reply);
                return self.wake(&mut state);
            }
        };
        drop(state);
        reply.send(Err(Unavailable { reason: refusal }));
    }

    /// A request has been answered.
    pub(super) fn on_answered(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// The last durable position.
    pub fn durable(&self) -> LogPosition {
        LogPosition(self.durable.load(Ordering::Acquire))
    }

    /// How many messages could not be decoded.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Ends the node, which can't go on.
    pub fn fail(&self, reason: String) {
        tracing::error!("{reason}");
        self.close(Closed { reason, is_failure: true });
    }

    /// Ends the node. The first reason counts. Whoever still waits here is told.
    pub fn close(&self, closed: Closed) {
        let mut state = self.lock();
        let reason = state.closed.get_or_insert(closed).reason.clone();
        let inputs = std::mem::take(&mut state.inputs);
        state.is_idle = false;
        self.work.notify_all();
        self.room.notify_all();
        self.ended.notify_all();
        // Not under the lock: whoever is told may ask for something.
        drop(state);
        inputs.submissions.into_iter().for_each(|(_, waiting)| waiting.give_up(&reason));
        let unavailable = || Unavailable { reason: reason.clone() };
        inputs.queries.into_iter().for_each(|reply| reply.send(Err(unavailable())));
    }

    /// Why the node ends, in words; empty while it does not.
    pub fn closed_because(&self) -> String {
        self.lock().closed.as_ref().map(|closed| closed.reason.clone()).unwrap_or_default()
    }

    /// Waits until the node ends, and says why.
    pub fn wait_closed(&self) -> Closed {
        let mut state = self.lock();
        loop {
            if let Some(closed) = &state.closed {
                return closed.clone();
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the node ends, for at most so long. Whether it has.
    pub fn wait_closed_for(&self, wait: Duration) -> bool {
        let is_open = |state: &mut State<P>| state.closed.is_none();
        let waited = self.ended.wait_timeout_while(self.lock(), wait, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.closed.is_some()
    }

    /// Everything that is there, after waiting for something for at most `wait`.
    pub(super) fn take(&self, wait: Option<Span>) -> Turn<P> {
        let mut state = self.lock();
        let is_idle = |state: &mut State<P>| state.is_idle;
        if state.is_empty() {
            state.is_idle = true;
            state = match wait {
                None => {
                    self.work.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner)
                }
                Some(wait) => {
                    let wait = Duration::from_micros(wait.us);
                    let waited = self.work.wait_timeout_while(state, wait, is_idle);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.is_idle = false;
        }
        if state.closed.is_some() {
            return Turn::Closed;
        }
        state.peer_bytes = 0;
        state.has_durable = false;
        self.room.notify_all();
        Turn::Inputs(std::mem::take(&mut state.inputs))
    }
}

/// Tells the operator what writes do from here on.
fn report(majority: Majority) {
    match majority {
        Majority::Unchanged => {}
        Majority::Awaited(what) => tracing::warn!("{what}; writes and strict reads wait"),
        Majority::Rejoins(what) => tracing::warn!("{what}; no clients are taken"),
        Majority::Reached(how) => tracing::info!("{how}; writes go on"),
        Majority::Lost(how) => {
            tracing::warn!("{how}; writes and strict reads wait until a majority is back");
        }
    }
}

impl<P: Protocol> State<P> {
    fn is_empty(&self) -> bool {
        let Inputs { peers, submissions, queries, checkpointed, checkpoint_failed, fetched } =
            &self.inputs;
        let is_quiet = peers.is_empty() && submissions.is_empty() && queries.is_empty();
        is_quiet
            && fetched.is_empty()
            && checkpointed.is_none()
            && checkpoint_failed.is_none()
            && !self.has_durable
            && self.closed.is_none()
    }
}
