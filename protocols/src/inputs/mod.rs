//! The input log: the same batches in the same order on every replica, whatever they contain.
//!
//! Each source streams its batches to its peers, which acknowledge the batches that they have
//! persisted. Every few milliseconds the coordinator proposes a head for each log. A vector of
//! heads that agreement decides is a cut, and the n-th cut is epoch n. The protocol that embeds
//! this module ([`Host`]) determines how an epoch's transactions run: Minerva executes them before
//! the cut and validates, Calvin executes them after it.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | replication | Minerva §3.3, Algorithm 2 | `replication.rs` | Batch, Ack, ProofOfAvailability, Fetch, Gone | f + 1 replicas have the batch |
//! | cut | Minerva §3.4, Algorithm 3 | `cut.rs` | Agreement | the batches of the epoch |
//! | early cuts | Calvin §3.1.1, asynchronous | `early.rs` | Wish, Yield | the master has persisted a cut and its batches |
//! | strict reads | | `barrier.rs` | BarrierRequest, Barrier | a cut proposed after the read arrived |
//! | greeting | | `greeting.rs` | Greeting | no peer knows more of a replica's log than the replica |
//! | rejoin | | `rejoin.rs` | Rejoin, Recollection | the promises, votes and batches of a replica that lost its disk |
//! | turns | Calvin §5 | `turns.rs` | Turn, Agreement | the replica that may be frozen for a checkpoint |
//! | back-pressure | | `waits.rs` | | the node that is behind, so that this one waits |
//! | collection | Minerva §4 | `collection.rs` | Progress | the last epoch that every replica has applied |
//! | checkpoint transfer | Minerva §4 | `transfer.rs` | CheckpointRequest, CheckpointChunk, CheckpointAck, CheckpointGone | the state at an epoch |
//! | recovery | Minerva §4 | `recovery.rs` | | the decisions in the log |
//!
//! # How a protocol uses it
//!
//! The protocol's messages and timers are [`Message`] and [`Timer`], or are converted from them. It
//! passes each input to the function of that name here. It receives an `Event`, which it must
//! handle before it continues, and `Inputs::next_cut` returns the cuts that can be applied. The
//! protocol calls `Inputs::finish_epoch` when it has applied a cut, and `Inputs::confirm` when the
//! epoch is confirmed.
//!
//! # Invariants
//!
//! - A replica that may have forgotten its promises and votes sends none; see `greeting.rs` and
//!   `rejoin.rs`.
//! - A replica acknowledges only batches that are durable on it, and counts an acknowledgement
//!   once.
//! - A cut names only available batches; epoch n is the n-th decision.

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
use pangea_core::mutate;
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

/// A protocol whose inputs are ordered by this module.
pub trait Host: Protocol<Message: From<Message>, Timer: From<Timer>> {
    /// The batches that its sources replicate.
    type Batch: Batch;

    /// The settings, besides the batches, on which the outcome of an epoch depends. A cut contains
    /// those of its proposer, so that no replica applies it under different ones.
    type Rules: Rules;
}

/// The rules that cuts are proposed under: settings that determine the outcome of an epoch.
pub trait Rules:
    Clone + Debug + Default + PartialEq + Send + Serialize + DeserializeOwned + 'static
{
    /// Returns why a node with these rules can't apply an epoch whose cut was proposed under the
    /// rules `cut`, and how to fix it. Returns `None` if it can.
    fn refuses(&self, epoch: SnapshotVersion, cut: &Self) -> Option<String>;
}

/// A group of transactions of one source, in their order: an entry of the source's log.
pub trait Batch: Debug + Send + Sync + Sized {
    /// The source, whose log the batch is in.
    fn source(&self) -> NodeId;

    /// The number of the batch in that log.
    fn bid(&self) -> Bid;

    /// The number of its first transaction.
    fn first_sequence(&self) -> u64;

    /// The number after that of its last transaction.
    fn end_sequence(&self) -> u64;

    /// Whether a master created the batch under asynchronous replication. It counts only in cuts of
    /// its master term.
    fn is_of_reign(&self) -> bool {
        false
    }

    /// Decodes a batch, which may keep slices of `bytes`.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError>;

    /// Checks whether the source can have created this batch, apart from the checks of this module.
    ///
    /// # Errors
    /// Names the property that the batch can't have.
    fn check(&self) -> Result<(), DecodeError>;
}

/// The timers of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The current batch is old enough to be sent.
    Batch,
    /// The coordinator proposes a cut.
    Epoch,
    /// The clock of agreement ticks.
    Tick,
    /// The replica looks for missing batches.
    Fetch,
    /// The replica reports its progress to its peers.
    Progress,
    /// The replica repeats its `Rejoin` requests to its peers.
    Rejoin,
    /// The pause after a failed checkpoint has elapsed.
    Checkpoint,
    /// The delay of requests has elapsed. Only Calvin uses it.
    Held,
}

/// The settings of a protocol that its input log follows.
#[derive(Clone, Debug)]
pub(crate) struct Settings<R> {
    /// The interval at which the coordinator proposes cuts.
    pub epoch: Span,
    /// Whether batches are acknowledged to every replica, and not only to their source.
    pub ack_everyone: bool,
    /// A checkpoint is due when the log has grown by this number of bytes since the last one.
    pub checkpoint_bytes: u64,
    /// When a checkpoint that is due is taken.
    pub checkpoints: When,
    /// The approximate size of a chunk of a transferred checkpoint, in bytes.
    pub chunk_bytes: usize,
    /// A replica from which no message has arrived for this long is removed from the configuration.
    pub removal: Span,
    /// A replica is removed if the other replicas would retain more bytes of batches for it than
    /// this.
    pub behind_bytes: u64,
    /// The number of cuts, applied and persisted by a majority, that are retained for replicas that
    /// have not received them.
    pub cuts_kept: u64,
    /// The preferred master, if replication is asynchronous.
    pub master: Option<NodeId>,
    /// The rules that cuts are proposed under: settings that determine the outcome of an epoch.
    pub rules: R,
}

/// Deserializes a number that must be from `LEAST` to `MOST`. With a number outside this range a
/// node would start but not work.
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

/// Deserializes the number of transactions in a slice. It may not exceed the number in an epoch,
/// because such a slice would not divide it.
pub(crate) fn slice_txns<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<NonZeroUsize, D::Error> {
    let number = within::<1, 1_000_000, _, _>(deserializer)?;
    NonZeroUsize::new(number).ok_or_else(|| D::Error::custom("must be at least 1"))
}

/// Decodes the number of a batch, an epoch or a transaction.
pub(crate) fn number(from: &mut Reader<'_>, what: &'static str) -> Result<u64, DecodeError> {
    let number = from.varint(what)?;
    if number <= NUMBER_MAX { Ok(number) } else { Err(DecodeError::new(what)) }
}

/// Checks that `count` transactions of `source`, numbered from `first`, have valid names.
///
/// # Errors
/// Returns an error if a name would not be that of a transaction.
pub(crate) fn check_names(source: NodeId, first: u64, count: usize) -> Result<(), DecodeError> {
    let is_number = first.checked_add(count as u64).is_some_and(|end| end >> 48 == 0);
    if source.0 < 1 << 15 && is_number { Ok(()) } else { Err(DecodeError::new("batch sequence")) }
}

/// An event that the protocol has to handle.
pub(crate) enum Event<H: Host> {
    /// This replica may create batches.
    Ready,
    /// A peer returned a batch of this replica's own log, from before it lost its disk.
    OwnBatch(Arc<H::Batch>),
    /// A peer's checkpoint has arrived completely and is to be installed.
    Checkpoint(Incoming),
    /// A peer requests a checkpoint under this number: [`Inputs::send_checkpoint`].
    CheckpointAsked {
        /// The peer's number in the group.
        from: NodeId,
        transfer: u64,
    },
}

/// The state of one replica.
pub(crate) struct Inputs<H: Host> {
    /// This replica's number in the group: all replicas have these numbers in this module.
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
    /// `Some` while a replica that lost its disk is rejoining.
    pub rejoin: Option<Rejoin<H::Rules>>,
    pub collection: Collection,
    pub turns: Turns,
    pub transfer: Transfer,
    pub waits: Waits,
    pub counters: Counters,
}

/// The kinds of log records: the first byte of each.
pub(crate) mod kind {
    /// A batch of this replica or of a peer.
    pub const BATCH: u8 = 1;
    /// Changes of the state of agreement.
    pub const AGREEMENT: u8 = 2;
    /// The record of an epoch, in the protocol's encoding.
    pub const EPOCH: u8 = 3;
    /// The log identity of a replica.
    pub const BIRTH: u8 = 4;
    /// The state that a replica which lost its disk recovered from its peers.
    pub const REJOINED: u8 = 5;
    /// Batches of a replica that are discarded.
    pub const DISCARD: u8 = 6;
    /// A cut that was fixed before it is decided.
    pub const EARLY: u8 = 7;
    /// Early cuts from this epoch on, in records before this one, are void.
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
    /// Handles a message of a peer.
    pub(crate) fn on_message(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        message: Message,
    ) -> Option<Event<H>> {
        let is_of_rejoin = matches!(message, Message::Rejoin { .. } | Message::Recollection { .. });
        if !is_of_rejoin {
            // A rejoining replica does not count as heard from, so that nothing is retained for it.
            self.cut.heard_at[from.index()] = cx.now.at;
        }
        if let Err(refused) = message.check(self.topology.node_count()) {
            cx.mark(refused);
            return None;
        }
        let is_vote = matches!(message, Message::Agreement { .. });
        let is_taken = mutate!(VotesWhileRejoining: is_of_rejoin => is_of_rejoin || is_vote);
        if self.is_asking() && !is_taken {
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

    /// Handles the report that the log is durable up to `position`.
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

    /// Handles a new connection to a peer.
    pub(crate) fn on_peer_up(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        self.replication.is_up[peer.index()] = true;
        self.turns.forget_told(peer);
        if self.is_asking() {
            return self.ask(cx, peer);
        }
        self.meet(cx, peer);
    }

    /// Starts to communicate with a peer.
    fn meet(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        self.greet(cx, peer);
        self.say_again(cx, peer);
    }

    /// Repeats the messages to a peer that may have been lost with the connection.
    fn say_again(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        if self.greetings.is_ready {
            self.agreement_mut().on_peer_up(peer);
        }
        self.resend(cx, peer);
        self.resume_transfer(cx, peer);
        self.retry_barriers(cx, Some(peer));
    }

    /// Handles the loss of the connection to a peer.
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

    /// Logs the record of an epoch, in the protocol's encoding. A restart returns it to the
    /// protocol.
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

    /// Logs the record of an epoch that did not run on this node.
    pub(crate) fn log_handed_on(&mut self, cx: &mut Cx<'_, H>, record: Bytes) -> LogPosition {
        self.persist(cx, LogRecord::Epoch(record))
    }

    /// The node id of a replica of the group.
    pub(crate) fn node(&self, replica: NodeId) -> NodeId {
        self.group.node(replica)
    }

    pub(crate) fn agreement(&self) -> &Agreement<Cut<H::Rules>> {
        self.cut.agreement.as_ref().expect("a node starts with a restart")
    }

    pub(crate) fn agreement_mut(&mut self) -> &mut Agreement<Cut<H::Rules>> {
        self.cut.agreement.as_mut().expect("a node starts with a restart")
    }
}
