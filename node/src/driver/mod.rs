//! The event loop: one thread that owns the protocol and executes its effects.
//!
//! ```text
//!   sessions --submit-->  +-------+   turn    +--------+ step  +----------+
//!   network  --messages-> | inbox | --------> | driver | ----> | protocol |
//!   log      --durable--> |       |           |        | <---- |          |
//!   checkpointer -------> +-------+           +--------+ effects +--------+
//!                                               |  |  |
//!                       network <--send---------'  |  `--persist--> log
//!                       sessions <--reply----------'
//! ```
//!
//! Each iteration drains the inbox. Each message is one step, in the order of arrival from its
//! peer; all submissions together are one step. Before each step the loop reads the clock and the
//! durable position, so that timers and acknowledgements never wait for the rest of a long
//! iteration.
//!
//! Effects that depend on durability ([`Effect::Send`], [`Effect::Reply`]) are deferred in
//! `DeferredEffects`, and leave it in the order in which they were requested. When the log fails,
//! no further record becomes durable: the driver stops, deferred effects are dropped, and every
//! client receives an unknown outcome. Therefore no write is ever acknowledged that could be lost.

mod deferred;
mod effects;
mod handle;
mod inbox;
mod latency;
mod metered;
mod publications;
mod reachability;
mod stopping;
mod table_names;
mod timers;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::hash::HashMap;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, Ticket};
use pangea_core::pool::Pool;
use pangea_core::protocol::{
    Cx, Durable, Effect, Input, Lane, ListedEpoch, ListedFate, Protocol, Request, Status,
    Submission,
};
use pangea_core::store::Store;
use pangea_core::time::{ClockReading, Span, Timestamp};
use pangea_sql::engine::Trace;

use crate::checkpoint::Checkpointer;
use crate::clock::{Clock, ClockConfig};
use crate::cold::ColdThreads;
use crate::disk::{DiskError, Syncs};
use crate::log::{Append, Log};
use crate::meter::{Meter, StepTap};
use crate::pool::ThreadedPool;
use deferred::DeferredEffects;
use effects::{Discarded, Truncations};
pub use handle::{Handle, Shared};
pub use inbox::{
    Answer, Closed, CommitReply, FreshReply, IN_FLIGHT_MAX, Inbox, PEER_BYTES_MAX, Receive,
    StatusReply,
};
use inbox::{NextAction, PeerEvent, Waiting};
use latency::Follower;
pub use latency::{LatencySample, LatencySamples, LatencyStage, RunKind, SAMPLES_MAX};
pub use reachability::Reachability;
use reachability::StartWaits;
pub use stopping::Stopped;
use stopping::Stopping;
use timers::Timers;

/// The maximum number of submissions in one step, so that a burst does not delay messages.
const SUBMISSIONS_PER_STEP: usize = 2_048;

/// The interval at which the protocol is asked for lagging nodes.
const WAITS_TOLD: Span = Span::from_ms(250);

/// The connections to the other nodes.
pub trait Network: Send + Sync + 'static {
    /// Sends a frame to a peer, or drops it if the peer is disconnected. Never blocks.
    fn send(&self, to: NodeId, lane: Lane, frame: Bytes);

    /// Closes all connections like [`Self::stop`], once what was sent has arrived, or after a
    /// bounded time.
    fn finish(&self) {
        self.stop();
    }

    /// Closes all connections. What was sent may be lost. No event arrives after this returns.
    fn stop(&self);
}

/// The components of a driver.
pub struct Parts<P: Protocol> {
    /// The protocol, before its first input.
    pub protocol: P,
    /// The node's id.
    pub me: NodeId,
    /// The state recovered from disk: the protocol's first input.
    pub durable: Durable,
    /// The position of the last record that was ever persisted.
    pub log_head: LogPosition,
    /// The tables, as of the checkpoint.
    pub store: Arc<Store>,
    /// The queue of inputs.
    pub inbox: Arc<Inbox<P>>,
    /// The log that receives records.
    pub log: Log,
    /// The checkpoint writer; `None` if nothing is durable.
    pub checkpointer: Option<Checkpointer>,
    /// The evictor; `None` if memory is not limited.
    pub cold_threads: Option<ColdThreads>,
    /// The network that carries messages.
    pub network: Arc<dyn Network>,
    /// The pool for data-parallel work.
    pub pool: ThreadedPool,
    /// Records that the node has finished replacing one that lost its disk.
    pub on_rejoined: Box<dyn FnMut() -> Result<(), DiskError> + Send>,
    /// Meter that records the cost of steps, if metering is on.
    pub meter: Option<Arc<Meter>>,
    /// The counter of syncs of the node's files.
    pub syncs: Arc<Syncs>,
    /// The time for a stop in order.
    pub stop_within: Span,
    /// The quality of the clock.
    pub clock: ClockConfig,
}

/// The event loop's state.
pub struct Driver<P: Protocol> {
    protocol: P,
    me: NodeId,
    store: Arc<Store>,
    inbox: Arc<Inbox<P>>,
    log: Log,
    checkpointer: Option<Checkpointer>,
    cold_threads: Option<ColdThreads>,
    network: Arc<dyn Network>,
    pool: ThreadedPool,
    clock: Clock,
    rng: fastrand::Rng,
    /// The last record persisted.
    log_head: LogPosition,
    /// The version that the store had published when sessions were last told.
    published_told: SnapshotVersion,
    /// The last record known to be durable.
    durable: LogPosition,
    timers: Timers<P::Timer>,
    deferred: DeferredEffects<P>,
    truncations: Truncations,
    pending: HashMap<Ticket, Waiting>,
    next_ticket: u64,
    /// The protocol has more work, to be done after the pending inputs.
    wants_resume: bool,
    /// The protocol can't continue: no step and no effect follows.
    is_stopped: bool,
    /// The protocol has ended by itself or in order, so that what it has sent must arrive: its
    /// peers may wait for it, or have to stop as well.
    has_last_words: bool,
    /// The time for a stop in order.
    stop_within: Span,
    stopping: Stopping,
    /// The protocol's start may still be waiting for something.
    is_starting: bool,
    /// The number of epochs listed to be skipped that were reported to the operator.
    listed_told: usize,
    /// The time when the protocol last reported lagging nodes.
    waits_told: Timestamp,
    /// The nodes that the protocol ignores, as it last reported them.
    strangers_told: Vec<NodeId>,
    /// The members, as the protocol last reported them.
    members_told: Vec<NodeId>,
    /// Records that the node has finished replacing one that lost its disk.
    on_rejoined: Box<dyn FnMut() -> Result<(), DiskError> + Send>,
    counters: BTreeMap<&'static str, u64>,
    /// What this node had discarded of earlier masters at the last confirmed master term.
    discarded: Discarded,
    /// The numbers of lost commits that the operator was not told of yet: of those that are lost
    /// for certain, and of those whose fate is unknown.
    untold_losses: [u64; 2],
    /// Filled by each step and emptied after it.
    effects: Vec<Effect<P>>,
    appends: Vec<Append>,
    /// The frame sent last, for reuse if the next peer gets the same message.
    last_frame: Bytes,
    tap: Option<StepTap>,
    follower: Follower,
    /// The counter of syncs of the node's files.
    syncs: Arc<Syncs>,
}

impl<P: Protocol> Driver<P> {
    /// Creates a driver and gives the protocol its first input.
    pub fn new(parts: Parts<P>) -> Self {
        let clock = Clock::start(parts.clock, parts.me);
        let follower = Follower::new(parts.inbox.latency().clone(), clock);
        let checkpoint = parts.durable.checkpoint.as_ref().map(|checkpoint| checkpoint.version);
        let mut driver = Self {
            protocol: parts.protocol,
            me: parts.me,
            store: parts.store,
            inbox: parts.inbox,
            log: parts.log,
            checkpointer: parts.checkpointer,
            cold_threads: parts.cold_threads,
            network: parts.network,
            pool: parts.pool,
            clock,
            rng: fastrand::Rng::with_seed(crate::random::seed()),
            log_head: parts.log_head,
            published_told: SnapshotVersion::ZERO,
            durable: parts.log_head,
            timers: Timers::default(),
            deferred: DeferredEffects::default(),
            truncations: Truncations::new(checkpoint),
            pending: HashMap::default(),
            next_ticket: 1,
            wants_resume: false,
            is_stopped: false,
            has_last_words: false,
            stop_within: parts.stop_within,
            stopping: Stopping::new(checkpoint),
            is_starting: true,
            listed_told: 0,
            waits_told: Timestamp::default(),
            strangers_told: Vec::new(),
            members_told: Vec::new(),
            on_rejoined: parts.on_rejoined,
            counters: BTreeMap::new(),
            discarded: Discarded::default(),
            untold_losses: [0; 2],
            effects: Vec::new(),
            appends: Vec::new(),
            last_frame: Bytes::new(),
            tap: parts.meter.map(StepTap::new),
            follower,
            syncs: parts.syncs,
        };
        driver.step(Input::Restart(parts.durable));
        driver
    }

    /// Handles inputs until the inbox is closed. Then stops the network, the log and the
    /// checkpoints, and answers all waiting requests.
    pub fn run(mut self) {
        loop {
            self.catch_up();
            self.end_stop();
            let next = || self.timers.next().into_iter().chain(self.stopping.at).min();
            let until_timer = || next().map(|at| at.since(self.clock.now().at));
            let wait = if self.wants_resume { Some(Span::ZERO) } else { until_timer() };
            match self.inbox.take(wait) {
                NextAction::Inputs(inputs) => self.take_turn(inputs),
                NextAction::Closed => break,
            }
            if std::mem::take(&mut self.wants_resume) {
                self.catch_up();
                self.step(Input::Resume);
            }
        }
        // The network stops first, so that peers continue without this node, and clients do not
        // learn of it before the peers.
        match self.has_last_words {
            true => self.network.finish(),
            false => self.network.stop(),
        }
        let reason = self.inbox.closed_because();
        self.pending.drain().for_each(|(_, waiting)| waiting.give_up(&reason));
        let farewell = self.farewell();
        self.log.stop();
        if let Some(farewell) = farewell {
            tracing::info!("{farewell}");
        }
    }

    fn take_turn(&mut self, inputs: inbox::Inputs<P>) {
        if let Some(version) = inputs.checkpointed {
            self.truncations.on_checkpoint(version);
            self.stopping.on_checkpointed(version);
            self.step(Input::Checkpointed(version));
        }
        if let Some(version) = inputs.checkpoint_failed {
            self.catch_up();
            self.stopping.on_checkpoint_failed();
            self.step(Input::CheckpointFailed(version));
        }
        for (token, took) in inputs.fetched {
            self.catch_up();
            self.step(Input::Prefetched { token, took });
        }
        for event in inputs.peers {
            self.catch_up();
            match event {
                PeerEvent::Up(peer) => self.step(Input::PeerUp(peer)),
                PeerEvent::Down(peer) => self.step(Input::PeerDown(peer)),
                PeerEvent::Message { from, message } => self.step(Input::Message { from, message }),
            }
        }
        let mut submissions = inputs.submissions.into_iter().peekable();
        while submissions.peek().is_some() {
            self.catch_up();
            let batch = submissions.by_ref().take(SUBMISSIONS_PER_STEP);
            let batch = batch.map(|(request, waiting)| self.admit(request, waiting)).collect();
            self.step(Input::Submit(batch));
        }
        for query in inputs.queries {
            query.send(Ok(self.status()));
        }
        if inputs.stop {
            self.begin_stop();
        }
    }

    fn admit(&mut self, request: Request, waiting: Waiting) -> Submission {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        if let Waiting::Commit(reply) = &waiting {
            reply.note(Trace::on_taken);
        }
        self.pending.insert(ticket, waiting);
        Submission { ticket, request }
    }

    /// Handles elapsed timers and newly durable records.
    fn catch_up(&mut self) {
        let durable = self.inbox.durable();
        if durable > self.durable {
            self.durable = durable;
            let released = self.deferred.release(durable);
            self.carry_out_all(released);
            self.step(Input::Durable(durable));
        }
        // A timer that is set during this loop to fire immediately waits for the next round;
        // otherwise the loop might never end.
        let now = self.clock.now().at;
        while let Some(timer) = self.timers.pop_due(now) {
            self.step(Input::Timer(timer));
        }
    }

    /// Runs one step, and executes its effects.
    fn step(&mut self, input: Input<P>) {
        if self.is_stopped {
            return;
        }
        let now: ClockReading = self.clock.now();
        let pool: &dyn Pool = &self.pool;
        let effects = &mut self.effects;
        let cx = Cx::new(now, &mut self.rng, &self.store, pool, self.log_head, effects);
        self.follower.on_step(now.at);
        let mut cx = cx.observed(&self.follower);
        let (kind, size) = input.kind();
        if let Some(tap) = &self.tap {
            tap.did("turn", if kind == "submit" { size } else { 0 });
            cx = cx.metered(tap);
        }
        self.protocol.step(&mut cx, input);
        self.log_head = cx.log_head();
        let published = self.store.published();
        if std::mem::replace(&mut self.published_told, published) != published {
            self.inbox.publications().note(published);
        }
        if cfg!(debug_assertions) {
            self.protocol.invariants();
        }
        if let Some(tap) = &self.tap {
            tap.did(kind, size);
        }
        let mut effects = std::mem::take(&mut self.effects);
        self.carry_out_all(effects.drain(..));
        self.effects = effects;
        self.log.append(&mut self.appends);
        for listed in self.protocol.listed_epochs().iter().skip(self.listed_told) {
            self.listed_told += 1;
            tracing::warn!("{}", describe_listed(P::NAME, *listed));
        }
        self.watch_start();
        self.watch_waits(now.at);
    }

    /// Reports what the protocol's start waits for, until it is over.
    fn watch_start(&mut self) {
        if self.is_starting {
            let Status { first_start, rejoin, refused, is_restarting, .. } = self.protocol.status();
            let waits = rejoin.map(StartWaits::Rejoin);
            let waits = waits.or_else(|| first_start.map(StartWaits::First));
            let waits = waits.or_else(|| refused.map(StartWaits::Refused));
            let waits = waits.or_else(|| is_restarting.then_some(StartWaits::Restart));
            self.is_starting = waits.is_some();
            self.inbox.on_start_waits(waits);
        }
    }

    /// Reports the lagging nodes to the inbox.
    fn watch_waits(&mut self, now: Timestamp) {
        if now.since(self.waits_told) >= WAITS_TOLD {
            self.waits_told = now;
            self.tell_losses();
            let Status { waits_for, refused, strangers, members, .. } = self.protocol.status();
            self.is_starting |= refused.is_some();
            self.inbox.on_waits(waits_for);
            self.warn_of_strangers(strangers);
            self.tell_members(members);
        }
    }

    /// Warns of each node that the protocol ignores, once for each time that it appears.
    fn warn_of_strangers(&mut self, strangers: Vec<NodeId>) {
        for node in strangers.iter().filter(|node| !self.strangers_told.contains(node)) {
            tracing::warn!(
                "{} is ignored, because its log is not the one that this node knows: its data \
                 directory, or the address in this node's configuration, is of another cluster \
                 with the same name, or it has lost its log",
                self.inbox.reachability().name(*node)
            );
        }
        self.strangers_told = strangers;
    }

    /// Reports each node that was removed from the members, or has joined them again.
    fn tell_members(&mut self, members: Vec<NodeId>) {
        let before = std::mem::replace(&mut self.members_told, members);
        if before.is_empty() {
            return;
        }
        let name = |node: &NodeId| self.inbox.reachability().name(*node);
        for node in before.iter().filter(|node| !self.members_told.contains(node)) {
            tracing::warn!("{} was removed: the others no longer wait for it", name(node));
        }
        for node in self.members_told.iter().filter(|node| !before.contains(node)) {
            tracing::info!("{} has joined again", name(node));
        }
    }

    fn status(&self) -> Status {
        use std::sync::atomic::Ordering::Relaxed;
        let mut status = self.protocol.status();
        let log = self.log.counters();
        let mut add = |name: &str, value| status.counters.insert(name.to_owned(), value);
        add("log_records", log.records.load(Relaxed));
        add("log_bytes", log.bytes.load(Relaxed));
        add("log_groups", log.groups.load(Relaxed));
        add("log_busy_us", log.busy_us.load(Relaxed));
        add("fsyncs", self.syncs.count());
        add("log_head", self.log_head.0);
        add("log_durable", self.durable.0);
        add("requests_in_flight", self.pending.len() as u64);
        add("effects_held", self.deferred.len() as u64);
        add("messages_malformed", self.inbox.malformed());
        if self.store.has_cold() {
            let counts = self.store.cold_counts();
            add("rows_bytes", self.store.memory_bytes() as u64);
            add("rows_cold", counts.cold);
            add("cold_evicted", counts.evicted);
            add("cold_fetched_ahead", counts.fetched_ahead);
            add("cold_reads", counts.reads);
            add("cold_stalls", counts.stalls);
        }
        for (name, count) in &self.counters {
            add(&format!("mark_{name}"), *count);
        }
        let metered = self.tap.iter().flat_map(|tap| tap.meter().counters());
        status.counters.extend(metered);
        status
    }

    fn count(&mut self, name: &'static str) {
        *self.counters.entry(name).or_default() += 1;
    }

    /// The log and the checkpoints may discard everything before this version.
    fn report_checkpointed(&self, version: SnapshotVersion) {
        self.inbox.on_checkpointed(version);
    }
}

/// Describes what became of an epoch that the operator has listed.
fn describe_listed(protocol: &str, ListedEpoch { epoch, fate }: ListedEpoch) -> String {
    let (epoch, setting) = (epoch.0, format!("skip_epochs in the table [{protocol}]"));
    match fate {
        ListedFate::Skipped { txns } => format!(
            "epoch {epoch} is skipped, because it is listed in {setting}: its transactions \
             ({txns}) are aborted"
        ),
        ListedFate::SkippedBefore { txns } => format!(
            "epoch {epoch} was skipped by an earlier run, when it was listed in {setting}, and \
             stays skipped: its transactions ({txns}) are aborted"
        ),
        ListedFate::Applied => format!(
            "epoch {epoch} is listed in {setting}, but this node had applied it before, and keeps \
             its effects. Nodes that skip it differ from this one: remove it from the list, or \
             replace this node with pangea start --replace"
        ),
        ListedFate::Contained { checkpoint } => format!(
            "epoch {epoch} is listed in {setting}, but the checkpoint of epoch {} on this node \
             contains it: it is not skipped again. If this node had not skipped it before, it \
             keeps its effects, and nodes that skip it differ from this one. Remove it from the \
             list once this holds for all nodes",
            checkpoint.0
        ),
    }
}
