//! The input log: the same batches in the same order on every replica, whatever is in them.
//!
//! Each source streams its batches to its peers, which acknowledge what they hold durably. Every
//! few milliseconds the coordinator proposes how far each stream counts; what agreement decides is
//! a cut, and the n-th cut is epoch n. What an epoch's transactions do is for the protocol that
//! holds this ([`Host`]): Minerva executes them before and validates, Calvin executes them after.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | replication | Minerva §3.3, Algorithm 2 | `replication.rs` | Batch, Ack, ProofOfAvailability, Fetch, Gone | f + 1 replicas have it |
//! | cut | Minerva §3.4, Algorithm 3 | `cut.rs` | Agreement | which batches are this epoch's |
//! | early cuts | Calvin §3.1.1, asynchronous | `early.rs` | Wish, Yield | that the master has a cut, and its batches |
//! | strict reads | | `barrier.rs` | BarrierRequest, Barrier | a cut proposed after the read came |
//! | greeting | | `greeting.rs` | Greeting | that nobody knows more of a replica than it does |
//! | rejoin | | `rejoin.rs` | Rejoin, Recollection | what a replica said whose disk is gone |
//! | turns | Calvin §5 | `turns.rs` | Turn, Agreement | whose turn it is to stand still for a checkpoint |
//! | back-pressure | | `waits.rs` | | which node is behind, so that this one waits |
//! | collection | Minerva §4 | `collection.rs` | Progress | what every replica has applied |
//! | checkpoint transfer | Minerva §4 | `transfer.rs` | CheckpointRequest, CheckpointChunk, CheckpointAck, CheckpointGone | the state at an epoch |
//! | recovery | Minerva §4 | `recovery.rs` | | what the log had decided |
//!
//! # How a protocol holds it
//!
//! Its message and timer are made from [`Message`] and [`Timer`], or are those. It gives each input
//! to the function of its name here. In turn it is told by an `Event`, which it takes care of
//! before it goes on, and by `Inputs::next_cut`, which hands out the cuts that can be applied.
//! When it has applied one it says so with `Inputs::finish_epoch`, and with `Inputs::confirm` when
//! that is for good.
//!
//! # Invariants
//!
//! - A replica that may have forgotten what it said says nothing; see `greeting.rs`, `rejoin.rs`.
//! - A replica acknowledges what is durable on it, and counts an acknowledgement once.
//! - A cut names available batches only; epoch n is the n-th decision.

mod answers;
mod barrier;
mod bid;
mod collection;
mod cut;
mod early;
mod greeting;
pub(crate) mod marks;
mod messages;
mod reads;
mod recovery;
mod rejoin;
mod replication;
mod state;
mod transfer;
mod turns;
mod waits;
pub(crate) mod weight;

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::{Cx, Protocol};
use pangea_core::time::Span;
use pangea_core::topology::{Group, Topology};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};

use crate::agreement::Agreement;
use barrier::Barriers;
use early::Mastery;
use greeting::Greetings;
use rejoin::{Rejoin, Rejoined};
use state::{Collection, Counters, CutState, Pace, Replication};
use transfer::Transfer;
use turns::{Told, Turns};
use waits::Waits;

pub(crate) use answers::{
    IN_FLIGHT_MAX, not_rejoined, outcome_unknown, too_far_behind, too_many_in_flight,
};
pub(crate) use barrier::Waiter;
pub use bid::{Bid, Heads};
pub(crate) use bid::{decode_heads, encode_heads};
#[cfg(test)]
pub(crate) use collection::Meta;
pub(crate) use collection::PROGRESS;
pub use early::Reign;
pub(crate) use messages::NUMBER_MAX;
#[cfg(test)]
pub(crate) use messages::decode_batch;
pub use messages::{ChunkNumber, Message};
pub(crate) use recovery::INTACT;
#[cfg(test)]
pub(crate) use rejoin::{Target, recollection, take_recollection};
pub use state::{Cut, ProposalName};
pub(crate) use transfer::Incoming;
#[cfg(test)]
pub(crate) use transfer::take_chunk;
pub(crate) use turns::{CAUGHT_UP, When};
pub(crate) use waits::{Awaited, BEHIND_MAX};

/// A protocol whose inputs are ordered here.
pub trait Host: Protocol<Message: From<Message>, Timer: From<Timer>> {
    /// What its sources replicate.
    type Batch: Batch;

    /// What the outcome of an epoch depends on beside its batches. A cut names those of who
    /// proposed it, so that no replica applies it under others.
    type Rules: Rules;
}

/// What cuts are proposed under.
pub trait Rules:
    Clone + Debug + Default + PartialEq + Send + Serialize + DeserializeOwned + 'static
{
    /// Why a node with these can't apply an epoch whose cut was proposed under those of `cut`, and
    /// what to do; nothing if it can.
    fn refuses(&self, epoch: SnapshotVersion, cut: &Self) -> Option<String>;
}

/// Some transactions of one source, in their order: an entry of its log.
pub trait Batch: Debug + Send + Sync + Sized {
    /// Whose log it is of.
    fn source(&self) -> NodeId;

    /// Its place there.
    fn bid(&self) -> Bid;

    /// The number of its first transaction.
    fn first_sequence(&self) -> u64;

    /// The number after that of its last transaction.
    fn end_sequence(&self) -> u64;

    /// Whether a master has made it, where replication is asynchronous. It counts in cuts of its
    /// reign alone.
    fn is_of_reign(&self) -> bool {
        false
    }

    /// Reads one. May keep slices of `bytes`.
    ///
    /// # Errors
    /// When the bytes are malformed.
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError>;

    /// Whether its source can have made it, as far as that is not looked at here.
    ///
    /// # Errors
    /// What it can't have.
    fn check(&self) -> Result<(), DecodeError>;
}

/// What a replica waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The current batch is old enough to be sent.
    Batch,
    /// The coordinator proposes a cut.
    Epoch,
    /// Agreement's clock.
    Tick,
    /// Looks for missing batches.
    Fetch,
    /// Tells the others how far it is.
    Progress,
    /// Asks again what the others know of it.
    Rejoin,
    /// A checkpoint failed long enough ago for another one.
    Checkpoint,
    /// Requests were held back for long enough. Calvin's alone.
    Held,
}

/// The settings of a protocol that its inputs follow.
#[derive(Clone, Debug)]
pub(crate) struct Settings<R> {
    /// How often the coordinator proposes a cut.
    pub epoch: Span,
    /// Whether batches are acknowledged to every replica, and not to their source alone.
    pub ack_everyone: bool,
    /// A checkpoint is taken when the log has grown by this much since the last one, in bytes.
    pub checkpoint_bytes: u64,
    /// When a checkpoint that is due is taken.
    pub checkpoints: When,
    /// About the size of a part of a checkpoint that a peer takes, in bytes.
    pub chunk_bytes: usize,
    /// A replica that was not heard of for this long is removed from the configuration.
    pub removal: Span,
    /// A replica for which others would keep more than so many bytes of batches is removed.
    pub behind_bytes: u64,
    /// So many cuts that a majority has applied and holds on disk are kept for one that lacks them.
    pub cuts_kept: u64,
    /// Where replication is asynchronous, who should be the master.
    pub master: Option<NodeId>,
    /// What cuts are proposed under.
    pub rules: R,
}

/// Reads a number that must be from `LEAST` to `MOST`. Beyond them a node runs and does not work.
pub(crate) fn within<'de, const LEAST: u64, const MOST: u64, D, T>(
    deserializer: D,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let value = u64::deserialize(deserializer)?;
    let fitting = (LEAST..=MOST).contains(&value).then(|| T::try_from(value).ok()).flatten();
    fitting.ok_or_else(|| D::Error::custom(format_args!("must be from {LEAST} to {MOST}")))
}

/// Reads how many transactions a slice has: not more than an epoch may have, which is no slice.
pub(crate) fn slice_txns<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<NonZeroUsize, D::Error> {
    let number = within::<1, 1_000_000, _, _>(deserializer)?;
    NonZeroUsize::new(number).ok_or_else(|| D::Error::custom("must be at least 1"))
}

/// Reads a number that is one of a batch, an epoch or a transaction.
pub(crate) fn number(from: &mut Reader<'_>, what: &'static str) -> Result<u64, DecodeError> {
    let number = from.varint(what)?;
    if number <= NUMBER_MAX { Ok(number) } else { Err(DecodeError::new(what)) }
}

/// Whether a batch can hold so many transactions of these names.
///
/// # Errors
/// When their names would not be those of transactions.
pub(crate) fn check_names(source: NodeId, first: u64, count: usize) -> Result<(), DecodeError> {
    let is_number = first.checked_add(count as u64).is_some_and(|end| end >> 48 == 0);
    if source.0 < 1 << 15 && is_number { Ok(()) } else { Err(DecodeError::new("batch sequence")) }
}

/// Something that the protocol has to take care of.
pub(crate) enum Event<H: Host> {
    /// This replica may make batches.
    Ready,
    /// A batch of its own log has come back, of an earlier life.
    OwnBatch(Arc<H::Batch>),
    /// A peer's checkpoint is here, and wants to be installed.
    Checkpoint(Incoming),
    /// A peer wants one under this number: [`Inputs::send_checkpoint`].
    CheckpointAsked {
        /// Its number in the group.
        from: NodeId,
        transfer: u64,
    },
}

/// One replica's part.
pub(crate) struct Inputs<H: Host> {
    /// Its number in the group: here all replicas go by those.
    pub me: NodeId,
    pub group: Group,
    /// The group, as a cluster.
    pub topology: Arc<Topology>,
    pub settings: Settings<H::Rules>,
    /// The number of this replica's next transaction.
    pub next_sequence: u64,
    pub replication: Replication<H::Batch>,
    pub cut: CutState<H::Rules>,
    pub pace: Pace,
    pub mastery: Mastery<H::Rules>,
    pub barriers: Barriers,
    pub greetings: Greetings,
    /// Where this replica's disk was lost, until it has its place again.
    pub rejoin: Option<Rejoin<H::Rules>>,
    pub collection: Collection,
    pub turns: Turns,
    pub transfer: Transfer,
    pub waits: Waits,
    pub counters: Counters,
}

/// What the first byte of a record of the log says.
pub(crate) mod kind {
    /// A batch, this replica's or a peer's.
    pub const BATCH: u8 = 1;
    /// Changes of agreement's state.
    pub const AGREEMENT: u8 = 2;
    /// What an epoch decided.
    pub const EPOCH: u8 = 3;
    /// A replica's birth.
    pub const BIRTH: u8 = 4;
    /// What the others knew of this replica, which had forgotten it.
    pub const REJOINED: u8 = 5;
    /// Batches of a replica that are given up.
    pub const DISCARD: u8 = 6;
    /// A cut that was fixed before it is decided.
    pub const EARLY: u8 = 7;
    /// Such cuts from this epoch on, before this record, are void.
    pub const GIVEN_UP: u8 = 8;
}

/// A record for the log.
enum LogRecord<'a, R> {
    Batch(Bytes),
    Agreement(Bytes),
    Epoch(Bytes),
    Birth(NodeId, u64),
    Rejoined(&'a Rejoined<R>),
    Discard(NodeId, Bid),
    Early(Bytes),
    GivenUp(SnapshotVersion),
}

impl<H: Host> Inputs<H> {
    /// A peer said something.
    pub(crate) fn on_message(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        message: Message,
    ) -> Option<Event<H>> {
        let is_of_rejoin = matches!(message, Message::Rejoin { .. } | Message::Recollection { .. });
        if !is_of_rejoin {
            // For one that only asks nothing is kept.
            self.cut.heard_at[from.index()] = cx.now.at;
        }
        if let Err(refused) = message.check(self.topology.node_count()) {
            cx.mark(refused);
            return None;
        }
        let is_vote = matches!(message, Message::Agreement { .. });
        if self.is_asking() && !is_of_rejoin && !(is_vote && is_planted(Bug::VotesWhileRejoining)) {
            cx.mark("inputs.not_while_rejoining");
            return None;
        }
        match message {
            Message::Greeting { birth, yours, batches, promise, follows } => {
                self.greetings.note_follows(follows);
                return self.on_greeting(cx, from, (birth, yours), batches, promise);
            }
            Message::Batch { bytes } => return self.on_batch(cx, from, bytes),
            Message::CheckpointChunk {
                transfer,
                number: ChunkNumber { index, is_last },
                payload,
            } => {
                return self.on_checkpoint_chunk(cx, from, (transfer, index), is_last, &payload);
            }
            Message::Rejoin { nonce, birth } => self.on_rejoin(cx, from, nonce, birth),
            Message::Recollection { nonce, birth, known } => {
                self.on_recollection(cx, from, (nonce, birth), &known);
            }
            Message::Ack { heads } => self.on_ack(cx, from, heads),
            Message::ProofOfAvailability { head } => self.on_proof(cx, from, head),
            Message::Fetch { source, from: first, upto } => {
                self.on_fetch(cx, from, source, first, upto);
            }
            Message::Gone { source, first } => self.on_gone(cx, from, source, first),
            Message::Agreement { bytes } => self.on_agreement(cx, from, &bytes),
            Message::Progress { applied, durable, heads } => {
                self.on_progress(cx, from, applied, durable, heads);
            }
            Message::Turn { wants, is_frozen, known } => {
                self.on_turn(cx, from, wants, Told { is_frozen, known });
            }
            Message::BarrierRequest { token } => self.on_barrier_request(from, token),
            Message::Barrier { token, incarnation, nonce } => {
                self.on_barrier(cx, token, ProposalName { proposer: from, incarnation, nonce });
            }
            Message::CheckpointRequest { transfer, index } => {
                return self.on_checkpoint_request(cx, from, transfer, index);
            }
            Message::CheckpointAck { transfer, index } => {
                self.on_checkpoint_ack(cx, from, transfer, index);
            }
            Message::CheckpointGone { transfer } => self.on_checkpoint_gone(cx, from, transfer),
            Message::Wish {} => self.on_wish(cx, from),
            Message::Yield { term } => self.on_yield(cx, from, term),
        }
        None
    }

    /// The log is durable up to `position`.
    pub(crate) fn on_durable(&mut self, cx: &mut Cx<'_, H>, position: LogPosition) {
        self.acknowledge(cx, position);
        let cut = &mut self.cut;
        while let Some((epoch, _)) = cut.epoch_records.pop_front_if(|(_, at)| *at <= position) {
            cut.logged = epoch;
            if cut.installed.is_none() {
                cut.durable = epoch;
            }
        }
    }

    /// A peer is connected.
    pub(crate) fn on_peer_up(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        self.replication.is_up[peer.index()] = true;
        self.turns.forget_told(peer);
        if self.is_asking() {
            return self.ask(cx, peer);
        }
        self.meet(cx, peer);
    }

    /// Begins to talk to a peer.
    fn meet(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        self.greet(cx, peer);
        self.say_again(cx, peer);
    }

    /// What was on its way to a peer is lost.
    fn say_again(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        if self.greetings.is_ready {
            self.agreement_mut().on_peer_up(peer);
        }
        self.resend(cx, peer);
        self.resume_transfer(cx, peer);
        self.retry_barriers(cx, Some(peer));
    }

    /// The connection to a peer is lost.
    pub(crate) fn on_peer_down(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        self.replication.is_up[peer.index()] = false;
        self.pause_transfers(peer, cx.now.at);
        self.retry_barriers(cx, Some(peer));
    }

    /// Appends a record to the log.
    fn persist(&mut self, cx: &mut Cx<'_, H>, record: LogRecord<'_, H::Rules>) -> LogPosition {
        let (kind, payload): (&'static [u8], Bytes) = match record {
            LogRecord::Batch(bytes) => (&[kind::BATCH], bytes),
            LogRecord::Agreement(bytes) => (&[kind::AGREEMENT], bytes),
            LogRecord::Epoch(bytes) => (&[kind::EPOCH], bytes),
            LogRecord::Early(bytes) => (&[kind::EARLY], bytes),
            LogRecord::GivenUp(from) => {
                (&[kind::GIVEN_UP], Bytes::copy_from_slice(&from.0.to_le_bytes()))
            }
            LogRecord::Rejoined(rejoined) => (&[kind::REJOINED], rejoined.encode()),
            LogRecord::Discard(node, after) => {
                let mut out = Vec::new();
                out.put_u16(node.0);
                out.put_u64(after.0);
                (&[kind::DISCARD], out.into())
            }
            LogRecord::Birth(node, birth) => {
                let mut out = Vec::new();
                out.put_u16(node.0);
                out.put_u64(birth);
                (&[kind::BIRTH], out.into())
            }
        };
        self.collection.owe(payload.len());
        cx.persist(vec![Bytes::from_static(kind), payload])
    }

    /// Writes down what was decided in an epoch, in the protocol's own words, which a restart is
    /// given again.
    pub(crate) fn log_epoch(
        &mut self,
        cx: &mut Cx<'_, H>,
        epoch: SnapshotVersion,
        record: Bytes,
    ) -> LogPosition {
        let position = self.persist(cx, LogRecord::Epoch(record));
        self.cut.epoch_records.push_back((epoch, position));
        position
    }

    /// Writes down something of an epoch that was not run here.
    pub(crate) fn log_handed_on(&mut self, cx: &mut Cx<'_, H>, record: Bytes) -> LogPosition {
        self.persist(cx, LogRecord::Epoch(record))
    }

    /// The node that a replica of the group is.
    pub(crate) fn node(&self, replica: NodeId) -> NodeId {
        self.group.node(replica)
    }

    pub(crate) fn agreement(&self) -> &Agreement<Cut<H::Rules>> {
        self.cut.agreement.as_ref().expect("the first input is the restart")
    }

    pub(crate) fn agreement_mut(&mut self) -> &mut Agreement<Cut<H::Rules>> {
        self.cut.agreement.as_mut().expect("the first input is the restart")
    }
}
