//! The waist: what a commit protocol is given, and all that it may do.
//!
//! A protocol is one replica's brain, a state machine with one way in: [`Protocol::step`]. It is
//! given an [`Input`] and a [`Cx`]; it changes its state and leaves [`Effect`]s behind. The driver
//! (a real node or the simulator) carries the effects out and comes back with what they led to. Two
//! nodes that see the same inputs are in the same state, byte for byte.
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
//! How each family of protocols uses it:
//! - one that executes first (Minerva, GeoGauss) runs submissions through [`crate::exec`] at once,
//!   replicates what the runs learned, and validates at its place in the order;
//! - one that orders first (Calvin) persists and sends submissions as they came, and executes when
//!   the order is known; a read of another shard ends a run as interrupted, and the run is repeated
//!   when the value has come in a message;
//! - one that certifies and then replicates (Mako) runs, locks and validates within a step, and
//!   holds replies until a watermark passes them;
//! - one that waits for a timestamp (Tiga) sets a timer for the moment when `now` has surely passed
//!   it.

mod status;

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use crate::choice::{Guarantee, TortureSetting, Variant};
use crate::codec::DecodeError;
use crate::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TableId, Ticket};
use crate::key::Key;
use crate::pool::Pool;
use crate::store::{Pin, Store};
use crate::time::{ClockReading, Span, Timestamp};
use crate::topology::Topology;
use crate::txn::{Outcome, Program, Registry};
use crate::way::{Phase, Witness};
use crate::work::{Meter, Work};
pub use status::{FirstStart, Rejoining, Status, WaitsFor};

/// One replica's brain.
pub trait Protocol: Sized + Send + 'static {
    /// The name in configuration files, on command lines and in reports.
    const NAME: &'static str;

    /// The fewest nodes that a cluster can have.
    const NODES_MIN: usize = 1;

    /// Whether a node can take the place of one whose disk is gone: see [`Durable::is_replaced`].
    const REJOINS: bool = false;

    /// Whether tables can be divided among the nodes of a region.
    const DIVIDES: bool = false;

    /// Every mark that it makes with [`Cx::mark`]. The simulator takes another one for a violation,
    /// and a swarm tells which of these it has not seen.
    const MARKS: &'static [Mark] = &[];

    /// Settings that runs of minutes on real nodes (`pangea torture`) change to reach rare states:
    /// frequent checkpoints in each of their modes. A setting that the user gives takes precedence.
    const TORTURE_SETTINGS: &'static [TortureSetting] = &[];

    /// Settings that a user may want to choose otherwise than by default: `pangea advise` tries
    /// each.
    const VARIANTS: &'static [Variant] = &[];

    /// What it says to its peers.
    type Message: Message;
    /// What it waits for.
    type Timer: Copy + Ord + Debug + Send;
    /// Its settings, each with a default.
    type Options: Clone
        + Debug
        + Default
        + Send
        + Sync
        + serde::Serialize
        + serde::de::DeserializeOwned;

    /// What all transactions may rely on with these settings, those that only read included.
    fn guarantee(options: &Self::Options) -> Guarantee;

    /// Settings at random, for runs that look for what is wrong: every switch both ways, and limits
    /// so low that small runs reach them.
    fn drawn_options(rng: &mut fastrand::Rng) -> Self::Options {
        let _ = rng;
        Self::Options::default()
    }

    /// The default settings, with limits so low that seconds with few clients reach states that
    /// take a real node hours under load: checkpoints, truncated cuts, checkpoints sent in several
    /// chunks, and epochs that are run in slices.
    fn scaled_down_options() -> Self::Options {
        Self::Options::default()
    }

    /// Whether a cluster like this can have these settings.
    ///
    /// # Errors
    /// Which one it can't have, and why.
    fn check_options(options: &Self::Options, topology: &Topology) -> Result<(), String> {
        let _ = (options, topology);
        Ok(())
    }

    /// A replica that has not yet seen [`Input::Restart`], which is always its first input.
    fn new(setup: Setup<Self>) -> Self;

    /// Takes one input and leaves effects in `cx`.
    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>);

    /// What an operator would want to know now.
    fn status(&self) -> Status;

    /// The last version that is published here for good, where later ones may be given up:
    /// [`Effect::Reign`].
    fn settled(&self) -> Option<SnapshotVersion> {
        None
    }

    /// Asserts what must hold between any two steps.
    ///
    /// # Panics
    /// When something does not hold, which is a bug.
    fn invariants(&self);
}

/// A branch that a run may take, and that somebody wants to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its name: the protocol's, a dot, and what happens.
    pub name: &'static str,
    /// The condition under which it is made, for humans.
    pub when: &'static str,
    /// Whether a swarm of the simulator hits it.
    pub rarity: Rarity,
}

/// Whether a swarm of the simulator hits a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rarity {
    /// A swarm of a hundred seeds hits it.
    Usual,
    /// Only larger swarms hit it, for this reason.
    Rare(&'static str),
    /// Honest replicas never make it in runs of seconds, for this reason.
    Never(&'static str),
}

impl Mark {
    /// A mark that a swarm of a hundred seeds hits.
    pub const fn new(name: &'static str, when: &'static str) -> Self {
        Self { name, when, rarity: Rarity::Usual }
    }

    /// The same mark, which only larger swarms hit.
    pub const fn rare(self, why: &'static str) -> Self {
        Self { rarity: Rarity::Rare(why), ..self }
    }

    /// The same mark, which no swarm hits.
    pub const fn never(self, why: &'static str) -> Self {
        Self { rarity: Rarity::Never(why), ..self }
    }
}

/// What a protocol says to its peers.
pub trait Message: Clone + Debug + Send + Sized + 'static {
    /// Appends the message to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads what [`Message::encode`] wrote. May keep slices of `bytes`.
    ///
    /// # Errors
    /// When the bytes are malformed.
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError>;

    /// Which of the two lanes to the peer it takes.
    fn lane(&self) -> Lane;

    /// The kinds of messages whose costs are told apart, each beginning with `message`.
    const KINDS: &'static [&'static str] = &["message"];

    /// Which of [`Message::KINDS`] it is.
    fn kind(&self) -> &'static str {
        "message"
    }

    /// About how many bytes of payload it carries, where that is what its cost grows with.
    fn payload_bytes(&self) -> usize {
        0
    }
}

/// One of the two connections to a peer. Messages on one lane arrive in the order in which they
/// were sent or not at all; between lanes there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Small and urgent: acknowledgements, votes, heads.
    Control,
    /// Large: batches, checkpoints.
    Bulk,
}

/// What a replica is told at birth.
#[derive(Clone, Debug)]
pub struct Setup<P: Protocol> {
    /// Which node it is.
    pub me: NodeId,
    /// The cluster.
    pub topology: Arc<Topology>,
    /// The procedures that programs may call.
    pub registry: Arc<Registry>,
    /// The protocol's settings.
    pub options: P::Options,
}

/// What can happen to a replica.
#[derive(Debug)]
pub enum Input<P: Protocol> {
    /// The node starts. The store holds the checkpoint, if there was one. Always the first input.
    Restart(Durable),
    /// Clients want something.
    Submit(Vec<Submission>),
    /// A peer said something.
    Message {
        /// Who.
        from: NodeId,
        /// What.
        message: P::Message,
    },
    /// A timer that was set has come.
    Timer(P::Timer),
    /// Every record up to this position is durable.
    Durable(LogPosition),
    /// Both lanes to a peer are connected. What was sent before and did not arrive is lost.
    PeerUp(NodeId),
    /// A lane to a peer was lost.
    PeerDown(NodeId),
    /// The checkpoint of this version is durable.
    Checkpointed(SnapshotVersion),
    /// The checkpoint of this version was not written, and nothing is kept for it any more: another
    /// one may be asked for, in some seconds, as it may fail again.
    CheckpointFailed(SnapshotVersion),
    /// Everything that had arrived when [`Effect::Resume`] was asked for has been taken.
    Resume,
    /// What [`Effect::Fetch`] asked for is in memory.
    Fetched {
        /// The name that it was given.
        token: u64,
        /// How long that took.
        took: Span,
    },
}

impl<P: Protocol> Input<P> {
    /// What a step that takes this is to who measures or models it: its kind, and what its cost
    /// grows with, in submissions or bytes.
    pub fn kind(&self) -> (&'static str, usize) {
        match self {
            Self::Submit(submissions) => ("submit", submissions.len()),
            Self::Message { message, .. } => (message.kind(), message.payload_bytes()),
            Self::Timer(_) => ("timer", 0),
            Self::Durable(_) => ("durable", 0),
            Self::Resume => ("resume", 0),
            Self::Fetched { .. } => ("fetched", 0),
            Self::Restart(_)
            | Self::PeerUp(_)
            | Self::PeerDown(_)
            | Self::Checkpointed(_)
            | Self::CheckpointFailed(_) => ("rare", 0),
        }
    }
}

/// What a node found on its disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durable {
    /// The newest complete checkpoint, which the store already holds.
    pub checkpoint: Option<Checkpoint>,
    /// The records of the log that were not truncated, in order.
    pub records: Vec<(LogPosition, Bytes)>,
    /// The node is to take the place of one of its name whose disk is gone, and that is not done
    /// until [`Effect::Rejoined`] says so, over any number of starts.
    pub is_replaced: bool,
}

/// What a protocol wrote beside the tables of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The snapshot version that the tables are at.
    pub version: SnapshotVersion,
    /// The protocol's own state.
    pub meta: Bytes,
}

/// Something that a client wants, and the name under which it waits.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Names it in [`Effect::Reply`] and [`Effect::Fresh`].
    pub ticket: Ticket,
    /// What it is.
    pub request: Request,
}

/// What a client can want of a protocol.
#[derive(Clone, Debug)]
pub enum Request {
    /// Order and commit this program; ends in [`Effect::Reply`].
    Commit(Program),
    /// Name a snapshot version that holds everything acknowledged anywhere before now; ends in
    /// [`Effect::Fresh`]. A strict read runs there.
    Fresh,
}

/// Something that the driver must do.
#[derive(Debug)]
pub enum Effect<P: Protocol> {
    /// Send, once every record up to `after` is durable. Position 0 means at once.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: P::Message,
        /// What must be durable first.
        after: LogPosition,
    },
    /// Append to the log. The position is the next one.
    Persist {
        /// Where it goes.
        position: LogPosition,
        /// The record, in parts that are written one after the other.
        record: Vec<Bytes>,
    },
    /// Come back with [`Input::Timer`] at this time, not before. Replaces an earlier setting.
    SetTimer {
        /// Which timer.
        timer: P::Timer,
        /// When.
        at: Timestamp,
    },
    /// Forget a timer.
    ClearTimer(P::Timer),
    /// Come back with [`Input::Resume`] after everything that has arrived by now. For work that is
    /// done in slices, so that what is urgent does not wait for all of it. Asked for twice in
    /// between, it comes once or twice.
    Resume,
    /// Bring the values of these keys into memory ([`Store::fetch_ahead`]) beside the work that
    /// goes on, and come back with [`Input::Fetched`].
    Fetch {
        /// The protocol's name for it.
        token: u64,
        /// Which.
        keys: Vec<(TableId, Key)>,
    },
    /// Tell a client how its transaction ended, once every record up to `after` is durable.
    Reply {
        /// Whom.
        ticket: Ticket,
        /// How it ended.
        outcome: Outcome,
        /// What must be durable first.
        after: LogPosition,
        /// What became of its first run. For whoever asks where the time went.
        first_run: FirstRun,
    },
    /// Tell a client that this version is published and fresh enough.
    Fresh {
        /// Whom.
        ticket: Ticket,
        /// The version.
        version: SnapshotVersion,
    },
    /// Write a checkpoint of the store at this published version, beside the work that goes on,
    /// once every record up to `after` is durable: what led to a state is never lost while the
    /// state is kept. Comes back as [`Input::Checkpointed`], or as [`Input::CheckpointFailed`].
    Checkpoint {
        /// What it is called, and the protocol's part of it.
        checkpoint: Checkpoint,
        /// Keeps the version readable until the checkpoint is written.
        pin: Pin,
        /// What must be durable first.
        after: LogPosition,
    },
    /// Records below this position are no longer needed.
    Truncate(LogPosition),
    /// On this node, a shard's transactions of versions from this one on are those of one node, its
    /// master, with numbers from a first one on. The node has versions before they are for good,
    /// and may have to give them up: [`Store::retreat_to`].
    Reign {
        /// Of which shard the transactions are.
        shard: ShardId,
        /// The version.
        from: SnapshotVersion,
        /// The master, and the first number of its reign; nothing where this node can't tell, as it
        /// took a peer's checkpoint: then it can tell of no shard.
        reign: Option<(NodeId, u64)>,
        /// Whether this is for good: then what any other reign has said of these versions is given
        /// up, everywhere.
        is_final: bool,
    },
    /// The node holds again what the one held whose place it took: its next start is like any
    /// other. See [`Durable::is_replaced`].
    Rejoined,
    /// End the node, for a reason that an operator has to deal with. Nothing is done after it.
    Stop {
        /// What happened, and what to do.
        reason: String,
    },
    /// A rare branch was taken, or a phase was passed through: counted by its name.
    Mark(&'static str),
}

/// What became of what a transaction learned when it was run first. Decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FirstRun {
    /// It stood.
    #[default]
    Stood,
    /// There was none: the transaction was run at its place in the order alone.
    Absent,
    /// The transaction was run, or looked at, once more at its place in the order: perhaps for what
    /// another did to this key of a table.
    Fell(Option<(TableId, Key)>),
}

/// All that a step may know or do beside its own state and its input.
pub struct Cx<'a, P: Protocol> {
    /// What the node's clock says.
    pub now: ClockReading,
    /// The node's generator.
    pub rng: &'a mut fastrand::Rng,
    /// The node's tables.
    pub store: &'a Arc<Store>,
    /// Runs data-parallel work.
    pub pool: &'a dyn Pool,
    /// The position of the last record persisted.
    log_head: LogPosition,
    effects: &'a mut Vec<Effect<P>>,
    meter: Option<&'a dyn Meter>,
    witness: Option<&'a dyn Witness>,
}

impl<'a, P: Protocol> Cx<'a, P> {
    /// What a driver hands to a step. `log_head` is the last position that was ever persisted,
    /// which the driver reads back from [`Cx::log_head`] afterwards.
    pub fn new(
        now: ClockReading,
        rng: &'a mut fastrand::Rng,
        store: &'a Arc<Store>,
        pool: &'a dyn Pool,
        log_head: LogPosition,
        effects: &'a mut Vec<Effect<P>>,
    ) -> Self {
        Self { now, rng, store, pool, log_head, effects, meter: None, witness: None }
    }

    /// Tells `meter` what the step spends its time on.
    pub fn metered(mut self, meter: &'a dyn Meter) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Tells `witness` how far the node's own transactions get.
    pub fn witnessed(mut self, witness: &'a dyn Witness) -> Self {
        self.witness = Some(witness);
        self
    }

    /// What waits under this ticket is this node's transaction with this number.
    pub fn named(&self, ticket: Ticket, sequence: u64) {
        if let Some(witness) = self.witness {
            witness.named(ticket, sequence);
        }
    }

    /// All of this node's transactions with numbers below this one have come to the end of a phase.
    pub fn reached(&self, phase: Phase, below: u64) {
        if let Some(witness) = self.witness {
            witness.reached(phase, below);
        }
    }

    /// A part of the step begins that [`Cx::end_work`] will name.
    pub fn begin_work(&self) {
        if let Some(meter) = self.meter {
            meter.begin();
        }
    }

    /// The part that began last has ended: what it was, and how much of it.
    pub fn end_work(&self, work: Work, size: usize) {
        if let Some(meter) = self.meter {
            meter.end(work, size);
        }
    }

    /// The position of the last record persisted: what is sent or replied after it is safe.
    pub fn log_head(&self) -> LogPosition {
        self.log_head
    }

    /// Sends now.
    pub fn send(&mut self, to: NodeId, message: P::Message) {
        self.send_after(LogPosition(0), to, message);
    }

    /// Sends once every record up to `after` is durable.
    pub fn send_after(&mut self, after: LogPosition, to: NodeId, message: P::Message) {
        assert!(after <= self.log_head, "waits for a record that was not persisted");
        self.effects.push(Effect::Send { to, message, after });
    }

    /// Appends a record to the log and returns its position.
    pub fn persist(&mut self, record: Vec<Bytes>) -> LogPosition {
        self.log_head = LogPosition(self.log_head.0 + 1);
        self.effects.push(Effect::Persist { position: self.log_head, record });
        self.log_head
    }

    /// Asks for [`Input::Timer`] after `delay`.
    pub fn set_timer(&mut self, timer: P::Timer, delay: Span) {
        self.effects.push(Effect::SetTimer { timer, at: self.now.at + delay });
    }

    /// Forgets a timer.
    pub fn clear_timer(&mut self, timer: P::Timer) {
        self.effects.push(Effect::ClearTimer(timer));
    }

    /// Asks for [`Input::Resume`] after everything that has arrived.
    pub fn resume(&mut self) {
        self.effects.push(Effect::Resume);
    }

    /// Asks for values to be brought into memory, and for [`Input::Fetched`] then.
    pub fn fetch(&mut self, token: u64, keys: Vec<(TableId, Key)>) {
        self.effects.push(Effect::Fetch { token, keys });
    }

    /// Answers a client once every record up to `after` is durable.
    pub fn reply_after(&mut self, after: LogPosition, ticket: Ticket, outcome: Outcome) {
        assert!(after <= self.log_head, "waits for a record that was not persisted");
        self.effects.push(Effect::Reply { ticket, outcome, after, first_run: FirstRun::Stood });
    }

    /// Answers a client now, and says what became of the first run of its program.
    pub fn reply_of_run(&mut self, ticket: Ticket, outcome: Outcome, first_run: FirstRun) {
        let after = LogPosition(0);
        self.effects.push(Effect::Reply { ticket, outcome, after, first_run });
    }

    /// Answers a client now.
    pub fn reply(&mut self, ticket: Ticket, outcome: Outcome) {
        self.reply_after(LogPosition(0), ticket, outcome);
    }

    /// Tells a client which published version is fresh enough for it.
    pub fn fresh(&mut self, ticket: Ticket, version: SnapshotVersion) {
        assert!(version <= self.store.published(), "a strict read waits for its version");
        self.effects.push(Effect::Fresh { ticket, version });
    }

    /// Asks for a checkpoint of the store at a version that can be pinned, once all that was
    /// persisted is durable.
    ///
    /// # Panics
    /// When it is not published yet, or some of it was reclaimed.
    pub fn checkpoint(&mut self, version: SnapshotVersion, meta: Bytes) {
        let pin = match self.store.pin_checkpoint(version) {
            Ok(pin) => pin,
            Err(error) => panic!("a checkpoint is of a version that can be read: {error}"),
        };
        let checkpoint = Checkpoint { version, meta };
        self.effects.push(Effect::Checkpoint { checkpoint, pin, after: self.log_head });
    }

    /// Gives up the records below `position`.
    pub fn truncate(&mut self, position: LogPosition) {
        self.effects.push(Effect::Truncate(position));
    }

    /// Says whose transactions of a shard are in versions from this one on: see [`Effect::Reign`].
    pub fn reign(
        &mut self,
        shard: ShardId,
        from: SnapshotVersion,
        reign: Option<(NodeId, u64)>,
        is_final: bool,
    ) {
        self.effects.push(Effect::Reign { shard, from, reign, is_final });
    }

    /// Says that the node has taken the place of the one that it replaces.
    pub fn rejoined(&mut self) {
        self.effects.push(Effect::Rejoined);
    }

    /// Ends the node: it can't go on without doing harm.
    pub fn stop(&mut self, reason: String) {
        self.effects.push(Effect::Stop { reason });
    }

    /// Counts that a branch was taken: one of [`Protocol::MARKS`].
    pub fn mark(&mut self, name: &'static str) {
        self.effects.push(Effect::Mark(name));
    }
}
