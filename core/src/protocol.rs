//! The waist: the interface between a commit protocol and the node or simulator that runs it.
//!
//! A protocol is a deterministic state machine, one instance for each replica, with one entry
//! point: [`Protocol::step`]. A step takes an [`Input`] and a [`Cx`], changes the protocol's state
//! and emits [`Effect`]s. The driver (a real node or the simulator) carries the effects out and
//! feeds their results back as inputs. Two replicas that see the same inputs are in the same state,
//! byte for byte.
//!
//! ```text
//!              Input                                    Effect
//!   submit, message, timer,      +----------+    send, send after durable,
//!   durable, peer up or down --> | Protocol | -> persist, set a timer, reply,
//!   restart, checkpointed        |  ::step  |    publish, checkpoint, truncate
//!                                +----------+
//!                                  | Cx: now, rng, store, pool
//! ```
//!
//! Each family of protocols uses the waist in its own way:
//! - Execute first (Minerva, GeoGauss): the protocol runs submissions through [`crate::exec`] at
//!   once and replicates the reads and writes that the runs recorded. It validates each transaction
//!   at its place in the order.
//! - Order first (Calvin): the protocol persists and sends submissions unexecuted, and executes
//!   them when their order is known. A read of another shard interrupts the run, which is repeated
//!   when a message has delivered the value.
//! - Certify, then replicate (Mako): the protocol runs, locks and validates within one step, and
//!   delays replies until a watermark passes them.
//! - Wait for a timestamp (Tiga): the protocol sets a timer for the moment when it is over.

mod first_run;
mod input;
mod lane;
mod mark;
mod setup;
mod status;
mod words;

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use crate::codec::DecodeError;
use crate::cpu_stage::{CpuStage, Meter};
use crate::guarantee::{Guarantee, Isolation, Isolations, TortureSetting, Variant};
use crate::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TableId, Ticket, TxnId};
use crate::key::Key;
use crate::latency::{LatencyObserver, Milestone};
use crate::partition::Partitions;
use crate::pool::Pool;
use crate::store::{Pin, Store};
use crate::time::{ClockReading, Span, Timestamp};
use crate::topology::Topology;
use crate::txn::Outcome;
pub use first_run::FirstRun;
pub use input::{Checkpoint, Durable, Input, Request, Submission};
pub use lane::Lane;
pub use mark::{Mark, Rarity};
pub use setup::Setup;
pub use status::{FirstStart, ListedEpoch, ListedFate, Rejoining, Status, WaitsFor};
pub use words::{STAGES, Words};

/// The state machine of one replica.
pub trait Protocol: Sized + Send + 'static {
    /// The protocol's name in configuration files, on command lines and in reports.
    const NAME: &'static str;

    /// The minimum number of nodes of a cluster.
    const NODES_MIN: usize = 1;

    /// Whether a node can replace one that lost its disk: see [`Durable::is_replaced`].
    const REJOINS: bool = false;

    /// Whether tables can be partitioned among the nodes of a region.
    const PARTITIONED: bool = false;

    /// Whether a region may lack replicas of some shards.
    const PARTIAL: bool = false;

    /// Whether a shard can have learners, which may lead it: see [`Topology::is_learner`].
    const LEARNERS: bool = false;

    /// Whether nodes can have caches: see [`Topology::caches`].
    const CACHES: bool = false;

    /// Whether the order of transactions depends on clocks. Then the simulator draws faults for
    /// this protocol that others hardly notice: wrong rates of clocks, and late messages.
    const NEEDS_CLOCKS: bool = false;

    /// The protocol's words for what every protocol has.
    const WORDS: Words = Words::OF_EPOCHS;

    /// All marks that the protocol counts with [`Cx::mark`]. The simulator reports any other mark
    /// as a violation. A swarm reports those that it never reached.
    const MARKS: &'static [Mark] = &[];

    /// Settings that runs of minutes on real nodes (`pangea torture`) change to reach rare states:
    /// frequent checkpoints in each of their modes. A setting that the user gives takes precedence.
    const TORTURE_SETTINGS: &'static [TortureSetting] = &[];

    /// Settings that a user may prefer to the defaults. `pangea advise` tries each of them.
    const VARIANTS: &'static [Variant] = &[];

    /// The messages between peers.
    type Message: Message;
    /// The timers that the protocol sets.
    type Timer: Copy + Ord + Debug + Send;
    /// The protocol's settings, each with a default.
    type Options: Clone
        + Debug
        + Default
        + Send
        + Sync
        + serde::Serialize
        + serde::de::DeserializeOwned;

    /// The isolation levels that transactions can choose with these settings.
    fn isolations(options: &Self::Options) -> Isolations {
        let _ = options;
        Isolations::new(Isolation::Serializable, &[])
    }

    /// The guarantee of a history with these settings if all transactions have the default level,
    /// read-only transactions included.
    fn guarantee(options: &Self::Options) -> Guarantee;

    /// Returns whether commits may be acknowledged with these settings before another region has a
    /// copy, so that the loss of a region may lose them.
    fn may_lose_commits(options: &Self::Options) -> bool {
        let _ = options;
        false
    }

    /// Returns whether commits may be lost with these settings that no node names in its log, so
    /// that a check of what clients saw can't know them.
    fn may_lose_unnamed(options: &Self::Options) -> bool {
        let _ = options;
        false
    }

    /// What an operator should know of these settings when a node starts: what they may lose, and
    /// which of them have no effect on this node.
    fn warnings(options: &Self::Options, topology: &Topology, me: NodeId) -> Vec<String> {
        let _ = (options, topology, me);
        Vec::new()
    }

    /// Returns random settings for runs that search for bugs. Every switch is drawn both ways, and
    /// limits are so low that small runs reach them.
    fn drawn_options(rng: &mut fastrand::Rng) -> Self::Options {
        let _ = rng;
        Self::Options::default()
    }

    /// The default settings, with limits so low that seconds with few clients reach states that
    /// take a real node hours under load: checkpoints, their transfer, truncated cuts and slices.
    fn scaled_down_options() -> Self::Options {
        Self::Options::default()
    }

    /// Checks whether a cluster of this topology can use these settings.
    ///
    /// # Errors
    /// The key of the setting that it cannot use, first, and why.
    fn check_options(options: &Self::Options, topology: &Topology) -> Result<(), String> {
        let _ = (options, topology);
        Ok(())
    }

    /// Creates a replica. [`Input::Restart`] is always its first input.
    fn new(setup: Setup<Self>) -> Self;

    /// Processes one input and appends effects to `cx`.
    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>);

    /// Returns the replica's current status, for operators.
    fn status(&self) -> Status;

    /// The last published version that is confirmed, if later ones can still be discarded: see
    /// [`Effect::MasterTerm`] and [`Effect::Lineage`].
    fn confirmed(&self) -> Option<SnapshotVersion> {
        None
    }

    /// The epochs that the operator lists to be skipped and that this run has met, in that order.
    fn listed_epochs(&self) -> &[ListedEpoch] {
        &[]
    }

    /// Whether a node that got [`Input::Stop`] may end now. Asked after each step.
    fn may_stop(&self) -> bool {
        true
    }

    /// Whether a node that may end leaves epochs that may be undecided, because too few others were
    /// connected: a program with other procedures may refuse them.
    fn ends_alone(&self) -> bool {
        false
    }

    /// Returns the last confirmed version, and a digest of what all replicas of a shard agree on at
    /// that version besides the rows, such as the configuration, for the simulator.
    fn agreed(&self) -> Option<(SnapshotVersion, u64)> {
        None
    }

    /// The partitioning of tables in the snapshot of a version, if slots were moved to other
    /// shards; `None` if it is that of the topology.
    ///
    /// # Errors
    /// If that is forgotten, because slots were moved many times since.
    fn partitions_at(&self, _version: SnapshotVersion) -> Result<Option<Arc<Partitions>>, String> {
        Ok(None)
    }

    /// Asserts the invariants that hold between any two steps.
    ///
    /// # Panics
    /// If an invariant is violated, which is a bug.
    fn invariants(&self);
}

/// A message to a peer.
pub trait Message: Clone + Debug + Send + Sized + 'static {
    /// Appends the message to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes the bytes that [`Message::encode`] wrote. The message may share memory with `bytes`.
    ///
    /// # Errors
    /// If the bytes are malformed.
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError>;

    /// The lane on which the message travels.
    fn lane(&self) -> Lane;

    /// The kinds of messages whose costs are measured separately. Each name begins with `message`.
    const KINDS: &'static [&'static str] = &["message"];

    /// The kind of this message: one of [`Message::KINDS`].
    fn kind(&self) -> &'static str {
        "message"
    }

    /// Approximate size of the payload, if the cost of the message grows with it.
    fn payload_bytes(&self) -> usize {
        0
    }
}

/// An action for the driver to carry out.
#[derive(Debug)]
pub enum Effect<P: Protocol> {
    /// Send a message once all records up to `after` are durable. Position 0 means at once.
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: P::Message,
        /// The last record that must be durable first.
        after: LogPosition,
    },
    /// Append a record to the log, at the next position.
    Persist {
        /// The position of the record.
        position: LogPosition,
        /// The record, in parts that are written one after the other.
        record: Vec<Bytes>,
    },
    /// Deliver [`Input::Timer`] at this time, not before. Replaces an earlier setting of the timer.
    SetTimer {
        /// The timer.
        timer: P::Timer,
        /// The time of expiry.
        at: Timestamp,
    },
    /// Cancel a timer.
    ClearTimer(P::Timer),
    /// Deliver [`Input::Resume`] after all inputs that have arrived by now. Long work is split into
    /// stages this way, so that urgent inputs need not wait for all of it. Two requests before the
    /// delivery may cause one delivery or two.
    Resume,
    /// Load the values of these keys into memory ([`Store::fetch_ahead`]), concurrently with other
    /// work, and deliver [`Input::Prefetched`].
    Prefetch {
        /// The protocol's name for the request.
        token: u64,
        /// The keys.
        keys: Vec<(TableId, Key)>,
    },
    /// Send the outcome of a transaction to its client, once all records up to `after` are durable.
    Reply {
        /// The request that is answered.
        ticket: Ticket,
        /// The outcome.
        outcome: Outcome,
        /// The last record that must be durable first.
        after: LogPosition,
        /// The fate of the transaction's first run. Used only by the latency breakdown and traces.
        first_run: FirstRun,
    },
    /// Answer a [`Request::Fresh`]: this version is published and fresh enough.
    Fresh {
        /// The request that is answered.
        ticket: Ticket,
        /// The version.
        version: SnapshotVersion,
    },
    /// Write a checkpoint of the store at this published version, concurrently with other work,
    /// once all records up to `after` are durable. This order ensures that a state never outlives
    /// the records that led to it. Answered by [`Input::Checkpointed`] or
    /// [`Input::CheckpointFailed`].
    Checkpoint {
        /// The version, and the protocol's state there.
        checkpoint: Checkpoint,
        /// Keeps the version readable until the checkpoint is written.
        pin: Pin,
        /// The last record that must be durable first.
        after: LogPosition,
    },
    /// Records below this position are no longer needed.
    Truncate(LogPosition),
    /// Report a master term. On this node, the transactions of a shard in versions from `from` on
    /// were ordered by one node, the shard's master. They are numbered from a first number on. If
    /// the versions are not confirmed yet, the node may have to roll them back: see
    /// [`Store::retreat_to`].
    MasterTerm {
        /// The shard.
        shard: ShardId,
        /// The version.
        from: SnapshotVersion,
        /// The master, and the first transaction number of its term. `None` if this node installed
        /// a peer's checkpoint and cannot know it; this then applies to all shards.
        master_term: Option<(NodeId, u64)>,
        /// Whether the term is confirmed. Then the effects of any other term on these versions are
        /// discarded, on all nodes.
        is_final: bool,
    },
    /// Name what has led to a version that this node has published before it is confirmed, or that
    /// is confirmed now. Two versions with one number have the same content if their lineages are
    /// the same.
    Lineage {
        /// The version.
        version: SnapshotVersion,
        /// A digest of the inputs of all versions up to it.
        lineage: u64,
        /// Whether it is confirmed: no node publishes this number with another lineage for good.
        is_final: bool,
    },
    /// This node rolls back unconfirmed versions: see [`Store::retreat_to`]. Transactions that it
    /// has acknowledged in them are lost, unless their inputs are also in later versions.
    Lost {
        /// The last version that stays.
        after: SnapshotVersion,
        /// The number of versions that are rolled back.
        versions: u64,
        /// The number of acknowledged transactions of this node that are in no version now.
        acknowledged: u64,
    },
    /// A transaction that this node has acknowledged as committed is lost, or may be. It comes
    /// before the version of the acknowledgement is confirmed ([`Effect::Lineage`]).
    LostCommit {
        /// Its name in the acknowledgement.
        txn: TxnId,
        /// Whether it is lost. Otherwise others have decided it, and this node does not know how.
        is_certain: bool,
    },
    /// The node has recovered all data of the node that it replaced, so its next start is an
    /// ordinary one. See [`Durable::is_replaced`].
    Rejoined,
    /// Stop the node, for a reason that an operator must resolve. No later effect is carried out.
    Stop {
        /// The cause, and the action that the operator should take.
        reason: String,
    },
    /// Count a mark: a rare branch or a phase that this step passed through.
    Mark(&'static str),
}

/// The environment of a step. Apart from its state and its input, a step accesses only this.
pub struct Cx<'a, P: Protocol> {
    /// The reading of the node's clock.
    pub now: ClockReading,
    /// The node's random number generator.
    pub rng: &'a mut fastrand::Rng,
    /// The node's tables.
    pub store: &'a Arc<Store>,
    /// Runs data-parallel work.
    pub pool: &'a dyn Pool,
    /// The position of the last record persisted.
    log_head: LogPosition,
    effects: &'a mut Vec<Effect<P>>,
    meter: Option<&'a dyn Meter>,
    observer: Option<&'a dyn LatencyObserver>,
}

/// The number of effects that a step has had at some point.
#[derive(Clone, Copy, Debug)]
pub struct EffectsSoFar(usize);

impl<'a, P: Protocol> Cx<'a, P> {
    /// Creates the context of a step. `log_head` is the last position ever persisted; the driver
    /// reads its new value from [`Cx::log_head`] after the step.
    pub fn new(
        now: ClockReading,
        rng: &'a mut fastrand::Rng,
        store: &'a Arc<Store>,
        pool: &'a dyn Pool,
        log_head: LogPosition,
        effects: &'a mut Vec<Effect<P>>,
    ) -> Self {
        Self { now, rng, store, pool, log_head, effects, meter: None, observer: None }
    }

    /// Reports the work of the step to `meter`.
    pub fn metered(mut self, meter: &'a dyn Meter) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Reports the progress of local transactions to `observer`.
    pub fn observed(mut self, observer: &'a dyn LatencyObserver) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Reports that the request with this ticket is the local transaction with this number.
    pub fn named(&self, ticket: Ticket, sequence: u64) {
        if let Some(observer) = self.observer {
            observer.named(ticket, sequence);
        }
    }

    /// Reports that all local transactions with numbers below this one have finished a phase.
    pub fn reached(&self, milestone: Milestone, below: u64) {
        if let Some(observer) = self.observer {
            observer.reached(milestone, below);
        }
    }

    /// Whether anybody observes what [`Cx::reached`] reports.
    pub fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Begins a section of the step that [`Cx::end_work`] will name.
    pub fn begin_work(&self) {
        if let Some(meter) = self.meter {
            meter.begin();
        }
    }

    /// Ends the section that began last, with its kind and size.
    pub fn end_work(&self, work: CpuStage, size: usize) {
        if let Some(meter) = self.meter {
            meter.end(work, size);
        }
    }

    /// The position of the last persisted record. Messages that wait for it are safe to send.
    pub fn log_head(&self) -> LogPosition {
        self.log_head
    }

    /// Sends a message at once.
    pub fn send(&mut self, to: NodeId, message: P::Message) {
        self.send_after(LogPosition(0), to, message);
    }

    /// Sends a message once all records up to `after` are durable.
    pub fn send_after(&mut self, after: LogPosition, to: NodeId, message: P::Message) {
        assert!(after <= self.log_head, "a message waits for a record that was not persisted");
        self.effects.push(Effect::Send { to, message, after });
    }

    /// Appends a record to the log and returns its position.
    pub fn persist(&mut self, record: Vec<Bytes>) -> LogPosition {
        self.log_head = LogPosition(self.log_head.0 + 1);
        self.effects.push(Effect::Persist { position: self.log_head, record });
        self.log_head
    }

    /// Sets a timer to expire after `delay`.
    pub fn set_timer(&mut self, timer: P::Timer, delay: Span) {
        self.effects.push(Effect::SetTimer { timer, at: self.now.at + delay });
    }

    /// Cancels a timer.
    pub fn clear_timer(&mut self, timer: P::Timer) {
        self.effects.push(Effect::ClearTimer(timer));
    }

    /// Requests [`Input::Resume`] after all inputs that have arrived.
    pub fn resume(&mut self) {
        self.effects.push(Effect::Resume);
    }

    /// Requests values to be loaded into memory. [`Input::Prefetched`] reports the end.
    pub fn prefetch(&mut self, token: u64, keys: Vec<(TableId, Key)>) {
        self.effects.push(Effect::Prefetch { token, keys });
    }

    /// Replies to a client once all records up to `after` are durable.
    pub fn reply_after(&mut self, after: LogPosition, ticket: Ticket, outcome: Outcome) {
        assert!(after <= self.log_head, "a reply waits for a record that was not persisted");
        self.effects.push(Effect::Reply { ticket, outcome, after, first_run: FirstRun::Valid });
    }

    /// Replies to a client at once, with the fate of the program's first run.
    pub fn reply_of_run(&mut self, ticket: Ticket, outcome: Outcome, first_run: FirstRun) {
        let after = LogPosition(0);
        self.effects.push(Effect::Reply { ticket, outcome, after, first_run });
    }

    /// Replies to a client at once.
    pub fn reply(&mut self, ticket: Ticket, outcome: Outcome) {
        self.reply_after(LogPosition(0), ticket, outcome);
    }

    /// Answers a client's [`Request::Fresh`] with a published version.
    pub fn fresh(&mut self, ticket: Ticket, version: SnapshotVersion) {
        assert!(
            version <= self.store.published(),
            "a strict read waits until its version is published"
        );
        self.effects.push(Effect::Fresh { ticket, version });
    }

    /// Requests a checkpoint of the store at a version that can be pinned. It is written once all
    /// records persisted so far are durable.
    ///
    /// # Panics
    /// If the version is not published yet, or some of its rows were reclaimed.
    pub fn checkpoint(&mut self, version: SnapshotVersion, meta: Bytes) {
        let pin = match self.store.pin_checkpoint(version) {
            Ok(pin) => pin,
            Err(error) => panic!("a checkpoint needs a readable version: {error}"),
        };
        let checkpoint = Checkpoint { version, meta };
        self.effects.push(Effect::Checkpoint { checkpoint, pin, after: self.log_head });
    }

    /// Truncates the log below `position`.
    pub fn truncate(&mut self, position: LogPosition) {
        self.effects.push(Effect::Truncate(position));
    }

    /// Reports the master term of a shard's transactions from a version on: see
    /// [`Effect::MasterTerm`].
    pub fn master_term(
        &mut self,
        shard: ShardId,
        from: SnapshotVersion,
        master_term: Option<(NodeId, u64)>,
        is_final: bool,
    ) {
        self.effects.push(Effect::MasterTerm { shard, from, master_term, is_final });
    }

    /// Names what has led to a version: see [`Effect::Lineage`].
    pub fn lineage(&mut self, version: SnapshotVersion, lineage: u64, is_final: bool) {
        self.effects.push(Effect::Lineage { version, lineage, is_final });
    }

    /// Reports versions that are rolled back: see [`Effect::Lost`].
    pub fn lost(&mut self, after: SnapshotVersion, versions: u64, acknowledged: u64) {
        self.effects.push(Effect::Lost { after, versions, acknowledged });
    }

    /// Reports the loss of an acknowledged transaction: see [`Effect::LostCommit`].
    pub fn lost_commit(&mut self, txn: TxnId, is_certain: bool) {
        self.effects.push(Effect::LostCommit { txn, is_certain });
    }

    /// Reports that this node has completed the replacement of a lost one.
    pub fn rejoined(&mut self) {
        self.effects.push(Effect::Rejoined);
    }

    /// The effects of the step so far, for [`Cx::take_back`].
    pub fn effects_so_far(&self) -> EffectsSoFar {
        EffectsSoFar(self.effects.len())
    }

    /// Takes back the effects after these. The caller stops the node: the positions of records that
    /// are taken back are not used again, and no effect after the stop is carried out.
    pub fn take_back(&mut self, after: EffectsSoFar) {
        self.effects.truncate(after.0);
    }

    /// Stops the node because it cannot continue without doing harm.
    pub fn stop(&mut self, reason: String) {
        self.effects.push(Effect::Stop { reason });
    }

    /// Counts a mark, which must be one of [`Protocol::MARKS`].
    pub fn mark(&mut self, name: &'static str) {
        self.effects.push(Effect::Mark(name));
    }
}
