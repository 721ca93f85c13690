//! The driver's only queue, for all its inputs.
//!
//! It is bounded, in a different way for each kind of input. Submissions are rejected when too many
//! requests are in flight. A thread that delivers a peer's message blocks while too many bytes of
//! messages are queued, which throttles the peer's connection. Reports of the log and of
//! checkpoints are only a number each, and need no bound.

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
use pangea_sql::losses::Losses;

use super::Stopped;
use super::latency::LatencySamples;
use super::publications::Publications;
use super::reachability::{LagChange, Majority, Reachability, StartWaits};

/// The maximum number of unanswered requests, in the inbox and in the protocol: one second of
/// requests at the highest rate, and some 100 MB of memory at 1 KB each.
pub const IN_FLIGHT_MAX: usize = 100_000;

/// The maximum size of queued messages of peers: two of the longest batches from each of many
/// peers.
pub const PEER_BYTES_MAX: usize = 128 << 20;

/// The maximum number of queued requests for the status; more are rejected.
const QUERIES_MAX: usize = 1_024;

/// A callback that receives an answer, once.
pub type Receive<T> = Box<dyn FnOnce(Result<T, Unavailable>) + Send>;

/// The receiver of an answer. Dropped unused, it reports that there is no answer.
pub struct Answer<T> {
    receive: Option<Receive<T>>,
    /// The trace of the request, if it is traced.
    trace: Option<Arc<Trace>>,
    /// The arrival time of the request.
    arrived: Option<Instant>,
}

/// The receiver of a program's outcome.
pub type CommitReply = Answer<Outcome>;
/// The receiver of a version for a strict read.
pub type FreshReply = Answer<SnapshotVersion>;
/// The receiver of the status.
pub type StatusReply = Answer<Status>;

impl<T> Answer<T> {
    /// Calls `receive` with the answer, once, on the driver's thread: it must not block.
    pub fn new(receive: impl FnOnce(Result<T, Unavailable>) + Send + 'static) -> Self {
        Self { receive: Some(Box::new(receive)), trace: None, arrived: None }
    }

    /// Returns the same receiver, which also records the request's progress in `trace`.
    pub fn traced(self, trace: Arc<Trace>) -> Self {
        let mut traced = self;
        traced.trace = Some(trace);
        traced
    }

    /// Returns the same receiver with the arrival time of the request.
    pub(super) fn arrived_at(self, at: Instant) -> Self {
        let mut noted = self;
        noted.arrived = Some(at);
        noted
    }

    /// The arrival time of the request, if it was recorded.
    pub(super) fn arrived(&self) -> Option<Instant> {
        self.arrived
    }

    /// Records an event in the request's trace, if it is traced.
    pub fn note(&self, note: impl FnOnce(&Trace)) {
        if let Some(trace) = &self.trace {
            note(trace);
        }
    }

    /// Delivers the answer.
    pub fn send(mut self, answer: Result<T, Unavailable>) {
        if let Some(receive) = self.receive.take() {
            receive(answer);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(receive) = self.receive.take() {
            let reason =
                "the node stopped before it answered; the outcome of the request is unknown";
            receive(Err(Unavailable { reason: reason.to_owned() }));
        }
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

/// The receiver for a ticket.
#[derive(Debug)]
pub(super) enum Waiting {
    Commit(CommitReply),
    Fresh(FreshReply),
}

impl Waiting {
    /// Rejects the request because too many are in flight, and names the nodes that cause the wait
    /// if they are known. A transaction has not committed and won't.
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

    /// Rejects the request because the node takes none. A transaction has not committed and won't.
    fn refuse_at_closed(self, reason: String) {
        match self {
            Self::Commit(reply) => {
                let abort = Abort::new(SqlState::CANNOT_CONNECT_NOW, reason);
                reply.send(Ok(Outcome::Aborted(abort.with_hint("Use another node."))));
            }
            Self::Fresh(reply) => reply.send(Err(Unavailable { reason })),
        }
    }

    /// Reports that the node stops, and that the outcome is unknown.
    pub fn give_up(self, reason: &str) {
        let unavailable = Unavailable { reason: reason.to_owned() };
        match self {
            Self::Commit(reply) => reply.send(Err(unavailable)),
            Self::Fresh(reply) => reply.send(Err(unavailable)),
        }
    }
}

/// An event of the network.
#[derive(Debug)]
pub(super) enum PeerEvent<P: Protocol> {
    Up(NodeId),
    Down(NodeId),
    Message { from: NodeId, message: P::Message },
}

/// The inputs taken from the inbox.
#[derive(Debug)]
pub(super) struct Inputs<P: Protocol> {
    pub peers: VecDeque<PeerEvent<P>>,
    pub submissions: Vec<(Request, Waiting)>,
    pub queries: Vec<StatusReply>,
    pub checkpointed: Option<SnapshotVersion>,
    pub checkpoint_failed: Option<SnapshotVersion>,
    /// The fetches from the cold store that have finished, with their durations.
    pub fetched: Vec<(u64, Span)>,
    /// The node is to stop in order.
    pub stop: bool,
}

/// The driver's next action.
pub(super) enum NextAction<P: Protocol> {
    /// Handle these inputs. They are empty if a timer is due or the log has progressed.
    Inputs(Inputs<P>),
    /// Stop the node.
    Closed,
}

struct State<P: Protocol> {
    inputs: Inputs<P>,
    peer_bytes: usize,
    /// The reason why the node stops, once it does.
    closed: Option<Closed>,
    is_idle: bool,
    /// The log has become durable further since the driver last checked.
    has_durable: bool,
    /// The node was asked to stop in order, and accepts no more requests.
    is_stopping: bool,
}

/// The reason why a node has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It was asked to stop.
    Requested(Stopped),
    /// It failed, for this reason.
    Failed(String),
}

impl Closed {
    /// The reason, for waiting clients.
    fn reason(&self) -> &str {
        match self {
            Self::Requested(_) => "the node was stopped",
            Self::Failed(reason) => reason,
        }
    }
}

/// The driver's queue.
pub struct Inbox<P: Protocol> {
    reachability: Reachability,
    latency: Arc<LatencySamples>,
    losses: Losses,
    publications: Publications,
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
            stop: false,
        }
    }
}

impl<P: Protocol> Inbox<P> {
    /// Creates the inbox of a node that is not connected to any other yet, and whose log is durable
    /// up to `durable`.
    pub fn new(reachability: Reachability, durable: LogPosition) -> Self {
        let state = State {
            inputs: Inputs::default(),
            peer_bytes: 0,
            closed: None,
            is_idle: false,
            has_durable: false,
            is_stopping: false,
        };
        Self {
            reachability,
            latency: Arc::default(),
            losses: Losses::default(),
            publications: Publications::default(),
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
        report(self.reachability.on_up(peer));
        let mut state = self.lock();
        state.inputs.peers.push_back(PeerEvent::Up(peer));
        self.wake(&mut state);
    }

    /// A peer refused this node's connection for this reason.
    pub fn on_peer_refusal(&self, peer: NodeId, reason: String) {
        self.reachability.on_refused(peer, reason);
    }

    /// A lane to a peer was lost.
    pub fn on_peer_down(&self, peer: NodeId) {
        let majority = self.reachability.on_down(peer);
        let mut state = self.lock();
        state.inputs.peers.push_back(PeerEvent::Down(peer));
        self.wake(&mut state);
        let is_ending = state.closed.is_some();
        drop(state);
        // A node that stops loses every peer, so this is not reported.
        if !is_ending {
            report(majority);
        }
    }

    /// The protocol reports what it waits for before it takes part, or `None` once it takes part.
    pub(super) fn on_start_waits(&self, waits: Option<StartWaits>) {
        report(self.reachability.on_start_waits(waits));
    }

    /// The protocol reports the lagging nodes that this one waits for.
    pub(super) fn on_waits(&self, late: Vec<WaitsFor>) {
        match self.reachability.on_waits(late) {
            LagChange::Unchanged => {}
            LagChange::Grown(whom) => tracing::warn!("{whom}"),
            LagChange::Over => {
                tracing::info!("no node lags any more: requests are no longer delayed")
            }
        }
    }

    /// The reachability of the other nodes.
    pub fn reachability(&self) -> &Reachability {
        &self.reachability
    }

    /// The latency samples of transactions.
    pub fn latency(&self) -> &Arc<LatencySamples> {
        &self.latency
    }

    /// The acknowledged commits that the node has lost.
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// The versions that the node publishes.
    pub fn publications(&self) -> &Publications {
        &self.publications
    }

    /// Handles a peer's message. Decodes it on the caller's thread, and blocks while too many bytes
    /// are queued.
    pub fn on_frame(&self, from: NodeId, frame: &Bytes) {
        let message = match P::Message::decode(frame) {
            Ok(message) => message,
            Err(error) => {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                let len = frame.len();
                tracing::error!(
                    "a message of {len} bytes from node {} can't be decoded and was dropped: \
                     {error}; check that both nodes run the same version",
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

    /// The log has become durable up to a position.
    pub fn on_durable(&self, position: LogPosition) {
        self.durable.fetch_max(position.0, Ordering::AcqRel);
        let mut state = self.lock();
        state.has_durable = true;
        self.wake(&mut state);
    }

    /// A checkpoint has become durable.
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

    /// Values that the protocol requested are in memory.
    pub fn on_fetched(&self, token: u64, took: Span) {
        let mut state = self.lock();
        state.inputs.fetched.push((token, took));
        self.wake(&mut state);
    }

    /// Queues requests, or rejects all of them.
    pub(super) fn submit(&self, requests: Vec<(Request, Waiting)>) {
        let count = requests.len();
        let before = self.in_flight.fetch_add(count, Ordering::AcqRel);
        if before + count > IN_FLIGHT_MAX {
            self.in_flight.fetch_sub(count, Ordering::AcqRel);
            let late = self.reachability.waits_for();
            requests.into_iter().for_each(|(_, waiting)| waiting.refuse(before, late.as_deref()));
            return;
        }
        let cache = self.reachability.cache();
        let mut state = self.lock();
        let reason = match &state.closed {
            Some(closed) => Some(closed.reason().to_owned()),
            None if state.is_stopping || cache.is_some() => None,
            None => {
                state.inputs.submissions.extend(requests);
                return self.wake(&mut state);
            }
        };
        drop(state);
        self.in_flight.fetch_sub(count, Ordering::AcqRel);
        requests.into_iter().for_each(|(_, waiting)| match &reason {
            Some(reason) => waiting.give_up(reason),
            None => {
                let why = cache.clone().unwrap_or_else(|| "the node is stopping".to_owned());
                waiting.refuse_at_closed(why);
            }
        });
    }

    /// Whether the node was asked to stop in order.
    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Asks the driver to stop the node in order. From now on requests are refused.
    pub(super) fn request_stop(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_stopping, true) {
            state.inputs.stop = true;
            self.wake(&mut state);
        }
    }

    /// Queues a request for the status.
    pub fn query(&self, reply: StatusReply) {
        let mut state = self.lock();
        let refusal = match &state.closed {
            Some(closed) => closed.reason().to_owned(),
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

    /// The number of messages that could not be decoded.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Stops the node because it can't continue.
    pub fn fail(&self, reason: String) {
        tracing::error!("{reason}");
        self.close(Closed::Failed(reason));
    }

    /// Stops the node; the first reason is recorded. Queued requests are answered with it.
    pub fn close(&self, closed: Closed) {
        let mut state = self.lock();
        let reason = state.closed.get_or_insert(closed).reason().to_owned();
        let inputs = std::mem::take(&mut state.inputs);
        state.is_idle = false;
        self.work.notify_all();
        self.room.notify_all();
        self.ended.notify_all();
        // The lock is released first, because the callbacks may make new requests.
        drop(state);
        inputs.submissions.into_iter().for_each(|(_, waiting)| waiting.give_up(&reason));
        let unavailable = || Unavailable { reason: reason.clone() };
        inputs.queries.into_iter().for_each(|reply| reply.send(Err(unavailable())));
    }

    /// The reason why the node stops, or an empty string while it runs.
    pub fn closed_because(&self) -> String {
        self.closed().map(|closed| closed.reason().to_owned()).unwrap_or_default()
    }

    /// The reason why the node stops, if it does.
    pub(super) fn closed(&self) -> Option<Closed> {
        self.lock().closed.clone()
    }

    /// Waits until the node stops, and returns the reason.
    pub fn wait_closed(&self) -> Closed {
        let mut state = self.lock();
        loop {
            if let Some(closed) = &state.closed {
                return closed.clone();
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the node stops, for at most `wait`. Returns whether it has.
    pub fn wait_closed_for(&self, wait: Duration) -> bool {
        let is_open = |state: &mut State<P>| state.closed.is_none();
        let waited = self.ended.wait_timeout_while(self.lock(), wait, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.closed.is_some()
    }

    /// Takes all queued inputs. If there are none, waits for at most `wait`.
    pub(super) fn take(&self, wait: Option<Span>) -> NextAction<P> {
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
            return NextAction::Closed;
        }
        state.peer_bytes = 0;
        state.has_durable = false;
        self.room.notify_all();
        NextAction::Inputs(std::mem::take(&mut state.inputs))
    }
}

/// Logs how the change affects writes.
fn report(majority: Majority) {
    match majority {
        Majority::Unchanged => {}
        Majority::Awaited(what) => tracing::warn!("{what}; writes and strict reads wait"),
        Majority::Closed(what) => tracing::warn!("{what}; no clients are accepted"),
        Majority::Reached(how) => tracing::info!("{how}; writes continue"),
        Majority::Lost(how) => {
            tracing::warn!("{how}; writes and strict reads wait until a majority is connected");
        }
    }
}

impl<P: Protocol> State<P> {
    fn is_empty(&self) -> bool {
        let Inputs { peers, submissions, queries, checkpointed, checkpoint_failed, fetched, stop } =
            &self.inputs;
        let is_quiet = peers.is_empty() && submissions.is_empty() && queries.is_empty();
        is_quiet
            && fetched.is_empty()
            && checkpointed.is_none()
            && checkpoint_failed.is_none()
            && !stop
            && !self.has_durable
            && self.closed.is_none()
    }
}
