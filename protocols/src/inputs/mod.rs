//! The input log: the same batches in the same order on every replica, whatever they contain.
//!
//! Each source streams its batches to its peers ([`crate::streams`]). Every few milliseconds the
//! coordinator proposes a head for each stream. A vector of heads that agreement decides is a cut,
//! and the n-th cut is epoch n. The protocol that embeds this module (`Host`) determines how an
//! epoch's transactions run: Minerva executes them before the cut and validates, Calvin executes
//! them after it.
//!
//! ```text
//!   Minerva, Calvin          how an epoch's transactions run
//!        |
//!   inputs                   cuts, strict reads, progress, back-pressure, checkpoints, recovery
//!        |
//!   streams  presence  transfer  agreement
//!        |
//!   replica                  connections, and the log
//! ```
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | replication | Minerva §3.3, Algorithm 2 | [`crate::streams`] | Batch, Ack, ProofOfAvailability, Fetch, Gone | f + 1 replicas have the batch |
//! | cut | Minerva §3.4, Algorithm 3 | `cut.rs` | Agreement | the batches of the epoch |
//! | strict reads | | `barrier.rs` | BarrierRequest, Barrier | a cut proposed after the read arrived |
//! | greeting | | [`crate::presence`], `greeting.rs` | Greeting | no peer knows more of a replica's log than the replica |
//! | rejoin | | [`crate::presence`], `rejoin.rs` | Rejoin, RejoinReply | the promises, votes and batches of a replica that lost its disk |
//! | back-pressure | | `backpressure.rs` | | the node that is behind, so that this one waits |
//! | collection | Minerva §4 | `collection.rs` | Progress | the last epoch that every replica has applied |
//! | digests | | [`crate::digests`] | Digests | a replica whose rows differ from those of a majority |
//! | checkpoint transfer | Minerva §4 | [`crate::transfer`], `checkpoint.rs` | CheckpointRequest, CheckpointChunk, CheckpointAck, CheckpointGone | the state at an epoch |
//! | recovery | Minerva §4 | `recovery.rs` | | the decisions in the log |
//! | stop | | `stop.rs` | Stopping, MayStop, TransferLeadership | a checkpoint that any later program can continue from |
//!
//! # How a protocol uses it
//!
//! The protocol's messages and timers are [`Message`] and [`Timer`], or are converted from them. It
//! passes each input to the function of that name here. It receives an `Event`, which it must
//! handle before it continues, and `Inputs::next_cut` returns the cuts that can be applied. The
//! protocol calls `Inputs::finish_epoch` when it has applied a cut, and `Inputs::confirm` when the
//! epoch is confirmed. Rules that it adds to the cuts are functions of `Host`.
//!
//! # Invariants
//!
//! - A replica that may have forgotten its promises and votes sends none; see [`crate::presence`].
//! - A cut names only available batches; epoch n is the n-th decision.

mod backpressure;
mod barrier;
mod checkpoint;
mod collection;
mod cut;
mod digests;
mod errors;
mod failure;
mod greeting;
mod host;
pub(crate) mod marks;
mod messages;
mod reads;
mod recovery;
mod rejoin;
pub(crate) mod size;
mod state;
mod stop;

use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::agreement::Agreement;
use crate::checkpoints::Checkpoints;
use crate::digests::Digests;
use crate::presence::{self, Presence, RejoinTimer};
use crate::replica::{Replica, kind};
use crate::streams::{self, FetchTimer, Streams};
use crate::transfer::{self, Transfer};
use backpressure::Backpressure;
use barrier::Barriers;
use state::{Collection, Counters, CutState, EpochPacing};

pub(crate) use backpressure::{BEHIND_MAX, MissingInput};
pub(crate) use barrier::Waiter;
pub(crate) use checkpoint::Configuration;
pub(crate) use checkpoint::Incoming;
#[cfg(test)]
pub(crate) use collection::Meta;
pub(crate) use collection::PROGRESS;
pub(crate) use cut::{EPOCH_COUNTS_AS, STEP_TXNS_MAX};
pub(crate) use errors::{
    IN_FLIGHT_MAX, not_rejoined, other_code, outcome_unknown, refuses_clients, slots_stay,
    stopping, too_far_behind, too_many_in_flight,
};
pub use failure::SkippedEpochs;
pub(crate) use failure::{Skips, attempt, failed, skipped};
#[cfg(test)]
pub(crate) use greeting::{decode_evidence, knowledge};
pub(crate) use host::Host;
pub use host::Rules;
pub use messages::Message;
pub(crate) use recovery::ProtocolRecord;
pub(crate) use rejoin::{RejoinState, Target};
#[cfg(test)]
pub(crate) use rejoin::{decode_rejoin_state, recollection};
pub use state::{Cut, MasterTerm, ProposalName};
pub(crate) use stop::OtherLogs;
use stop::Stops;

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
}

impl From<FetchTimer> for Timer {
    fn from(_: FetchTimer) -> Self {
        Self::Fetch
    }
}

impl From<RejoinTimer> for Timer {
    fn from(_: RejoinTimer) -> Self {
        Self::Rejoin
    }
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
    /// Epochs whose transactions are all aborted.
    pub skipped: SkippedEpochs,
    /// The rules that cuts are proposed under: settings that determine the outcome of an epoch.
    pub rules: R,
}

impl<R> Settings<R> {
    /// The number of epochs, and their size in bytes, for which data is retained for a replica that
    /// is not a member.
    pub(crate) fn retained_max(&self) -> (u64, u64) {
        (self.cuts_kept, self.behind_bytes)
    }
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
    pub replica: Replica,
    pub settings: Settings<H::Rules>,
    pub streams: Streams<H>,
    pub presence: Presence<H>,
    pub transfer: Transfer<H>,
    pub cut: CutState<H::Rules>,
    pub pace: EpochPacing,
    pub barriers: Barriers,
    /// `Some` while a replica that lost its disk is recovering its data.
    pub target: Option<rejoin::Target>,
    pub collection: Collection,
    pub checkpoints: Checkpoints,
    pub stops: Stops,
    pub waits: Backpressure,
    pub digests: Digests,
    /// The skipped epochs that the log names.
    pub skips: Skips,
    /// Whether an epoch could not be applied. The replica then applies no more, and stops.
    pub has_failed: bool,
    pub counters: Counters,
    /// The state of the rules that the protocol adds.
    pub extension: H::Extension,
}

impl<H: Host> Inputs<H> {
    /// Handles a message of a peer. The protocol has passed it to [`Presence::admit`], if it is not
    /// about identities, and handles those of [`Presence::take_admitted`] next, if it is.
    pub(crate) fn on_message(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        message: Message,
    ) -> Option<Event<H>> {
        use presence::Message as Of;
        let is_of_rejoin =
            matches!(message, Message::Presence(Of::Rejoin { .. } | Of::RejoinReply { .. }));
        let is_vote = matches!(message, Message::Agreement { .. });
        let checked = message.check(self.replica.topology.node_count());
        if !self.may_handle(cx, from, checked, (is_of_rejoin, is_vote)) {
            return None;
        }
        match message {
            Message::Streams(message) => {
                let event = self.streams.on_message(cx, &mut self.replica, from, message)?;
                return self.on_stream_event(cx, event);
            }
            Message::Presence(message) => {
                let is_ready = presence::on_message(self, cx, from, message);
                return is_ready.then_some(Event::Ready);
            }
            Message::Transfer(message) => {
                let event = self.transfer.on_message(cx, &self.replica, from, message)?;
                return self.on_transfer_event(cx, event);
            }
            Message::Agreement { bytes } => self.on_agreement(cx, from, &bytes),
            Message::Progress { applied, durable, heads } => {
                self.on_progress(cx, from, applied, durable, heads);
            }
            Message::Digests { digests } => self.on_digests(cx, from, digests),
            Message::Stopping { is_settled, is_over } => {
                self.on_stopping(from, is_settled, is_over);
            }
            Message::MayStop { term, last } => self.on_may_stop(term, last),
            Message::TransferLeadership { term } => self.on_transfer_leadership(cx, from, term),
            Message::BarrierRequest { token } => self.on_barrier_request(from, token),
            Message::Barrier { token, incarnation, nonce, term } => {
                let name = ProposalName { proposer: from, incarnation, nonce };
                self.on_barrier(cx, token, name, term);
            }
        }
        None
    }

    /// Notes that a peer was heard from. Returns whether its message is handled: it passed its
    /// check, and a replica that asks its peers for their knowledge ignores all other messages.
    pub(crate) fn may_handle(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        checked: Result<(), &'static str>,
        (is_of_rejoin, is_vote): (bool, bool),
    ) -> bool {
        if !is_of_rejoin {
            // A rejoining replica does not count as heard from, so that nothing is retained for it.
            self.cut.heard_at[from.index()] = cx.now.at;
        }
        if let Err(refused) = checked {
            cx.mark(refused);
            return false;
        }
        let is_ignored = self.presence.is_asking() && !is_of_rejoin;
        let is_ignored = mutate!(VotesWhileRejoining: is_ignored => is_ignored && !is_vote);
        if is_ignored {
            cx.mark("presence.not_while_rejoining");
        }
        !is_ignored
    }

    fn on_stream_event(
        &mut self,
        cx: &mut Cx<'_, H>,
        event: streams::Event<H>,
    ) -> Option<Event<H>> {
        match event {
            streams::Event::OwnBatch(batch) => return Some(Event::OwnBatch(batch)),
            streams::Event::Gone { source, first } => {
                self.retry_transfer(cx);
                self.streams.fetch_elsewhere(cx, &self.replica, source, first);
            }
        }
        None
    }

    fn on_transfer_event(
        &mut self,
        cx: &mut Cx<'_, H>,
        event: transfer::Event<H>,
    ) -> Option<Event<H>> {
        match event {
            transfer::Event::Checkpoint(incoming) => {
                self.streams.forget_gone();
                Some(Event::Checkpoint(incoming))
            }
            transfer::Event::Asked { from, transfer } => {
                Some(Event::CheckpointAsked { from, transfer })
            }
            transfer::Event::Lost => {
                self.retry_transfer(cx);
                None
            }
        }
    }

    /// Handles the report that the log is durable up to `position`.
    pub(crate) fn on_durable(&mut self, cx: &mut Cx<'_, H>, position: LogPosition) {
        self.streams.acknowledge(cx, &self.replica, position);
        self.checkpoints.on_durable(position);
    }

    /// Looks for batches that are missing.
    pub(crate) fn on_fetch_timeout(&mut self, cx: &mut Cx<'_, H>) {
        self.streams.on_fetch_timeout(cx, &self.replica);
    }

    /// Repeats the requests of a replica that lost its disk.
    pub(crate) fn on_rejoin_timeout(&self, cx: &mut Cx<'_, H>) {
        self.presence.on_rejoin_timeout(cx, &self.replica);
    }

    /// Sends a batch of this replica to its peers.
    pub(crate) fn broadcast(&mut self, cx: &mut Cx<'_, H>, batch: H::Batch, bytes: Bytes) {
        self.streams.broadcast(cx, &mut self.replica, batch, bytes);
    }

    /// Handles a new connection to a peer.
    pub(crate) fn on_peer_up(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        self.replica.is_up[peer.index()] = true;
        self.digests.forget(peer);
        self.presence.forget_session(peer);
        H::on_peer_up(self, peer);
        if self.presence.is_asking() {
            return self.presence.ask(cx, &self.replica, peer);
        }
        // The rest follows when the peer has greeted: it may be a node of another cluster.
        presence::greet(self, cx, peer);
    }

    /// Handles the loss of the connection to a peer.
    pub(crate) fn on_peer_down(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        self.replica.is_up[peer.index()] = false;
        self.presence.forget_session(peer);
        self.transfer.pause(peer, cx.now.at);
        self.retry_barriers(cx, Some(peer));
    }

    /// Logs the record of an epoch, in the protocol's encoding. A restart returns it to the
    /// protocol.
    pub(crate) fn log_epoch(
        &mut self,
        cx: &mut Cx<'_, H>,
        epoch: SnapshotVersion,
        record: Bytes,
    ) -> LogPosition {
        let position = self.replica.persist(cx, &kind::EPOCH, record);
        self.checkpoints.note_record(epoch, position);
        position
    }

    /// Logs the record of an epoch that did not run on this node.
    pub(crate) fn log_handed_on(&mut self, cx: &mut Cx<'_, H>, record: Bytes) -> LogPosition {
        self.replica.persist(cx, &kind::EPOCH, record)
    }

    /// This replica's number in the group.
    pub(crate) fn me(&self) -> NodeId {
        self.replica.me
    }

    /// The node id of a replica of the group.
    pub(crate) fn node(&self, replica: NodeId) -> NodeId {
        self.replica.node(replica)
    }

    /// This replica's own log.
    pub(crate) fn own_log(&self) -> &streams::SourceLog<H::Batch> {
        self.streams.own(&self.replica)
    }

    pub(crate) fn agreement(&self) -> &Agreement<Cut<H::Rules>> {
        self.cut.driver.agreement()
    }

    pub(crate) fn agreement_mut(&mut self) -> &mut Agreement<Cut<H::Rules>> {
        self.cut.driver.agreement_mut()
    }
}
