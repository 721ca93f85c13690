//! Mako: a leader executes transactions speculatively, and replicates their results behind it.
//!
//! From "Mako: Speculative Distributed Transactions with Geo-Replication" (OSDI 2025). A shard has
//! a leader, which executes transactions in memory, one after the other, without waiting for
//! replication. Their writes are visible to later transactions at once. The results are replicated
//! in the background, and a client is told of its transaction when a majority has it and everything
//! before it.
//!
//! ```text
//!   leader      execute | execute | execute ..        speculation: not visible to readers
//!                  `-- Append --> followers
//!                  <----- Ack -------'
//!               watermark: readers see it, clients are told
//! ```
//!
//! With several shards, each has a leader. Transactions over several, their locks, clocks and
//! watermarks (§4.2, §4.4) are in `shards.rs`.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | forwarding | §4.1 | `forwarding.rs` | Forward, Refused | that the leader has a transaction |
//! | outcomes | | `outcomes.rs` | | which transactions were executed |
//! | several shards | §4.2, §4.4, §5.2 | `shards.rs`, `across.rs` | Items, Watermark, Config, Ask, Fates, Ended | the outcome on all shards |
//! | slots that move | §6.2, B | `shards/placement.rs`, `shards/moves.rs`, `shards/migration.rs` | Move, Copy, Piece, Config | that slots are on their shard |
//! | locks | §4.2 | `locks.rs` | Items | that nobody else writes a row |
//! | clocks | §4.2, §6.1 | `clocks.rs` | Items | which logs an outcome rests on |
//! | execution | §4.2 | `execution.rs` | | the result, if the leader stays |
//! | versions | §4.2 | `versions.rs` | | the place in the serial order |
//! | streams | §4.3 | `streams.rs`, `log.rs` | Append, Ack | who has which part of the log |
//! | watermark and replay | §4.3, §4.4 | `watermark.rs` | Append | every outcome |
//! | epochs | §5.2 | `epochs.rs` | Agreement | who leads |
//! | suspicion | §5.2 | `suspicion.rs` | Agreement | that another leader is needed |
//! | links | | `links.rs` | Progress | that another replica hears more nodes |
//! | closing | §5.2 | `closing.rs` | Report, Fetch, Tail, Append, Ack | the log of the epochs before |
//! | rollback | §5.2 | `rollback.rs` | | the rows that readers may see |
//! | progress | §5.2 | `progress.rs` | Progress | who is alive |
//! | digests | | `digests.rs` | Digests | that replicas are equal |
//! | reads | §8 | `reads.rs` | FreshRequest, FreshReply | a snapshot with everything acknowledged |
//! | greeting | | `presence/`, `knowledge.rs` | Greeting | whether a replica has lost its log |
//! | lost disks | | `rejoin.rs`, `presence/` | Rejoin, RejoinReply | the promises of a replica |
//! | restart | | `recovery.rs` | | the log, and what was promised |
//! | checkpoints | | `checkpoint.rs`, `transfer/` | CheckpointRequest, CheckpointChunk | rows, and all that a restart needs |
//! | collection | | `collection.rs` | Progress | that no peer needs it |
//! | waits | | `waits.rs` | Progress | the nodes that this one waits for |
//! | stop | | `stop.rs` | Progress | that another replica leads |
//!
//! # A transaction
//!
//! A node names the transaction of its client and forwards it to the leader. The leader executes a
//! slice of transactions on all cores, at one version, and puts their outcomes and writes in an
//! entry of its log. It sends the entries of a batch to the other replicas. When a majority has the
//! batch on its disks, the versions in it are committed. The leader tells that with its next
//! message, and each replica publishes them. The node of the client finds the outcome in its own
//! log.
//!
//! # Invariants
//!
//! - A version names an entry, and all entries before it, in every log that has it.
//! - Readers see committed versions only, so no reader and no client sees what is rolled back.
//! - A replica takes part in no epoch before the last one of which it has heard.
//! - A majority has everything that is committed, in logs of its epoch or of later ones.
//! - A leader executes transactions when the log before is closed, and everything in it published.
//! - A transaction is executed once: every outcome that a node may ask for is known to the leader.
//!
//! # Differences from the paper
//!
//! - **Transactions of one shard never abort for a conflict.** They run in an order
//!   (`execution.rs`).
//! - **One stream.** An order on all cores leaves nothing to merge (`streams.rs`).
//! - **A client that has read, or was aborted, waits for the watermark, too.** Its result may rest
//!   on what is rolled back.
//! - **The end of an epoch is decided by agreement**, and not computed by each replica. A second
//!   leader could compute another one, from another majority.
//! - **Nothing is rolled back that is in the best log:** with one shard no transaction depends on
//!   what was lost elsewhere, and the clients of what is kept are answered.
//! - **Transactions are executed once over a failover**, and their clients do not notice it. In the
//!   paper they are abandoned.
//! - **Leaders have disks**, restarts and checkpoints; the paper has none.
//! - **Strict reads need no lease** (`reads.rs`).

pub mod across;
mod checkpoint;
pub mod clocks;
mod closing;
mod collection;
mod digests;
pub mod epochs;
mod execution;
#[cfg(test)]
mod exhaustive;
mod forwarding;
#[cfg(test)]
mod fuzz;
mod knowledge;
mod latency;
mod links;
pub mod locks;
pub mod log;
mod marks;
mod messages;
mod options;
mod outcomes;
mod progress;
mod reads;
mod recovery;
mod rejoin;
mod rollback;
mod shards;
mod state;
mod stop;
mod streams;
mod suspicion;
pub mod versions;
mod waits;
mod watermark;

use std::sync::Arc;

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, TxnId};
use pangea_core::partition::Partitions;
use pangea_core::protocol::{Cx, Input, Mark, Protocol, Setup, Status, Words};
use pangea_core::topology::Topology;

use crate::presence::{self, RejoinTimer};
use closing::Report;
pub use epochs::Decided;
pub use messages::Message;
pub use options::{AckUnit, Leaders, Options, Reads};
use rejoin::Known;
use state::State;
use versions::Epoch;

/// A replica.
pub struct Mako {
    state: State,
}

/// The timers of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A batch is old enough.
    Batch,
    /// The clock of agreement ticks.
    Tick,
    /// The replica reports its progress to its peers.
    Progress,
    /// The replica repeats its `Rejoin` requests to its peers.
    Rejoin,
    /// A checkpoint may be tried again.
    Checkpoint,
    /// A transaction over several shards tries again, or a log has to be closed for others.
    Shards,
}

/// The timers that it has in common with protocols over an input log, for the tests of all.
impl From<crate::inputs::Timer> for Timer {
    fn from(timer: crate::inputs::Timer) -> Self {
        use crate::inputs::Timer as Of;
        match timer {
            Of::Batch | Of::Epoch | Of::Fetch => Self::Batch,
            Of::Tick => Self::Tick,
            Of::Progress => Self::Progress,
            Of::Rejoin => Self::Rejoin,
            Of::Checkpoint => Self::Checkpoint,
        }
    }
}

impl From<RejoinTimer> for Timer {
    fn from(_: RejoinTimer) -> Self {
        Self::Rejoin
    }
}

impl presence::Host for Mako {
    type Memory = Known;
}

impl Protocol for Mako {
    const NAME: &'static str = "mako";
    const PARTITIONED: bool = true;
    const PARTIAL: bool = true;
    const LEARNERS: bool = true;
    const REJOINS: bool = true;
    const WORDS: Words = options::WORDS;
    const MARKS: &'static [Mark] = marks::ALL;
    const TORTURE_SETTINGS: &'static [TortureSetting] = options::TORTURE_SETTINGS;
    const VARIANTS: &'static [Variant] = options::VARIANTS;

    type Message = Message;
    type Timer = Timer;
    type Options = Options;

    fn guarantee(options: &Options) -> Guarantee {
        options.guarantee()
    }

    fn warnings(options: &Options, topology: &Topology, _: NodeId) -> Vec<String> {
        options.warnings(topology)
    }

    fn drawn_options(rng: &mut fastrand::Rng) -> Options {
        Options::drawn(rng)
    }

    fn scaled_down_options() -> Options {
        Options::scaled_down()
    }

    fn new(setup: Setup<Self>) -> Self {
        Self { state: State::new(setup) }
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        match input {
            Input::Restart(durable) => self.on_restart(cx, durable),
            Input::Submit(submissions) => self.on_submit(cx, submissions),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(Timer::Batch) => self.on_batch_timeout(),
            Input::Timer(Timer::Tick) => self.on_tick(cx),
            Input::Timer(Timer::Progress) => self.on_progress_timeout(cx),
            Input::Timer(Timer::Rejoin) => {
                self.state.presence.on_rejoin_timeout(cx, &self.state.replica);
            }
            Input::Timer(Timer::Checkpoint) => self.state.checkpoints.rests = false,
            Input::Timer(Timer::Shards) => self.on_shards_timeout(),
            Input::Resume => {}
            Input::Durable(position) => self.on_durable(cx, position),
            Input::PeerUp(peer) => self.on_peer_up(cx, peer),
            Input::PeerDown(peer) => self.on_peer_down(cx, peer),
            Input::Stop => self.on_stop(cx),
            Input::Checkpointed(version) => self.on_checkpointed(cx, version),
            Input::CheckpointFailed(version) => self.on_checkpoint_failed(cx, version),
            Input::Prefetched { .. } => unreachable!("Mako fetches no rows"),
        }
        self.settle_agreement(cx);
        self.advance_closing(cx);
        self.advance_watermark(cx);
        self.send_forwards(cx);
        self.ask_for_new_reads(cx);
        self.run_slices(cx);
        self.advance_shards(cx);
        self.send_log(cx);
        self.answer_fresh(cx);
        self.end_rejoin(cx);
        self.checkpoint_if_due(cx);
        self.advance_stop(cx);
    }

    fn status(&self) -> Status {
        self.state.status()
    }

    fn may_stop(&self) -> bool {
        self.state.stop.is_some_and(|stop| stop.may_end)
    }

    fn partitions_at(&self, version: SnapshotVersion) -> Result<Option<Arc<Partitions>>, String> {
        self.state.shards.as_ref().map_or(Ok(None), |shards| shards.partitions_at(version))
    }

    fn invariants(&self) {
        self.state.invariants();
    }
}

impl Mako {
    fn on_message(&mut self, cx: &mut Cx<'_, Self>, node: NodeId, message: Message) {
        if let Err(refused) = message.check(self.state.node_count) {
            return cx.mark(refused);
        }
        let Some(from) = self.state.replica.group.member(node) else {
            return self.handle_of_other_shard(cx, node, message);
        };
        if matches!(message, Message::Presence(_)) {
            self.handle(cx, from, message);
            for early in self.state.presence.take_admitted(from) {
                self.handle(cx, from, early);
            }
        } else if let Some(message) = self.state.presence.admit(cx, from, message) {
            self.handle(cx, from, message);
        }
    }

    /// Handles a message of a replica, which is known by its number among them.
    fn handle(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        use presence::Message as Of;
        let is_of_rejoin =
            matches!(message, Message::Presence(Of::Rejoin { .. } | Of::RejoinReply { .. }));
        if !is_of_rejoin {
            // A rejoining replica does not count as heard.
            self.state.epochs.heard_at[from.index()] = cx.now.at;
            if self.state.presence.is_asking() {
                return cx.mark("presence.not_while_rejoining");
            }
        }
        match message {
            Message::Presence(message) => {
                presence::on_message(self, cx, from, message);
            }
            Message::Transfer(message) => self.on_transfer(cx, from, message),
            Message::Agreement { bytes } => self.on_agreement(cx, from, &bytes),
            Message::Progress { .. } => self.on_progress(cx, from, message),
            Message::Digests { digests } => self.on_digests(cx, from, digests),
            Message::Append { .. }
            | Message::Ack { .. }
            | Message::Report { .. }
            | Message::Fetch { .. }
            | Message::Tail { .. } => self.handle_log(cx, from, message),
            message => {
                let node = self.state.replica.node(from);
                self.handle_divided(cx, node, message);
            }
        }
    }

    /// Handles a message that nodes of all shards send each other.
    fn handle_divided(&mut self, cx: &mut Cx<'_, Self>, node: NodeId, message: Message) {
        match message {
            Message::Forward { epoch, below, requests } => {
                self.on_forward(cx, node, (Epoch(epoch), below), &requests);
            }
            Message::Refused { epoch, txn, abort } => {
                self.on_refused(cx, (node, Epoch(epoch)), TxnId::from_bits(txn), &abort);
            }
            Message::FreshRequest { token } => self.on_fresh_request(cx, node, token),
            Message::FreshReply { token, version } => {
                self.on_fresh_reply(cx, node, (token, version))
            }
            Message::Items { epoch, items } => self.on_items(cx, node, Epoch(epoch), &items),
            Message::Ended { txn, version, committed, result } => {
                self.on_ended(cx, (TxnId::from_bits(txn), version), committed, &result);
            }
            Message::Watermark { epoch, version } => {
                self.on_watermark(node, Epoch(epoch), version);
            }
            Message::Config { config, closed, moved } => {
                self.on_config(cx, node, (&config, closed, Epoch(moved)));
            }
            Message::Copy { epoch, after } => self.on_copy(cx, node, (Epoch(epoch), &after)),
            Message::Piece { epoch, piece } => self.on_piece(cx, node, Epoch(epoch), &piece),
            Message::Move { token, moves } => self.on_move(cx, node, (token, &moves)),
            Message::MoveRefused { token, epoch, abort } => {
                self.on_move_refused(cx, (token, epoch), &abort);
            }
            Message::Ask { epoch, txns } => self.on_ask(cx, node, (Epoch(epoch), &txns)),
            Message::Fates { epoch, fates } => self.on_fates(cx, node, (Epoch(epoch), &fates)),
            _ => cx.mark("mako.not_of_this_shard"),
        }
    }

    /// Handles a message about the log.
    fn handle_log(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        match message {
            Message::Append { epoch, end, after, committed, stable, entries } => {
                let epoch = (Epoch(epoch), end);
                self.on_append(cx, from, epoch, (after, committed, stable), &entries);
            }
            Message::Ack { epoch, upto } => self.on_ack(cx, from, (Epoch(epoch), upto)),
            Message::Report { epoch, log_epoch, last, published, is_whole, is_again } => {
                let report = Report { rank: (Epoch(log_epoch), last), published, is_whole };
                self.on_report(cx, from, (Epoch(epoch), is_again), report);
            }
            Message::Fetch { epoch, after } => self.on_fetch(cx, from, (Epoch(epoch), after)),
            Message::Tail { epoch, after, entries } => {
                self.on_tail(cx, from, (Epoch(epoch), after), &entries);
            }
            Message::Presence(_)
            | Message::Transfer(_)
            | Message::Agreement { .. }
            | Message::Progress { .. }
            | Message::Forward { .. }
            | Message::Refused { .. }
            | Message::FreshRequest { .. }
            | Message::FreshReply { .. }
            | Message::Digests { .. }
            | Message::Items { .. }
            | Message::Ended { .. }
            | Message::Watermark { .. }
            | Message::Config { .. }
            | Message::Ask { .. }
            | Message::Fates { .. }
            | Message::Copy { .. }
            | Message::Piece { .. }
            | Message::Move { .. }
            | Message::MoveRefused { .. } => unreachable!("handled before"),
        }
    }

    /// Records are on the disk.
    fn on_durable(&mut self, cx: &Cx<'_, Self>, position: LogPosition) {
        self.state.synced = position;
        let State { log, commit, .. } = &mut self.state;
        let before = log.durable().unwrap_or(commit.floor);
        if log.on_durable(position)
            && let Some(upto) = log.durable()
        {
            self.state.note_durable(cx, (before, upto));
        }
    }

    /// Both lanes to a peer are connected: messages sent earlier may be lost.
    fn on_peer_up(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        let Some(peer) = self.state.replica.group.member(node) else {
            return self.note_other(cx, node, true);
        };
        let State { replica, presence, digests, .. } = &mut self.state;
        replica.is_up[peer.index()] = true;
        digests.forget(peer);
        presence.forget_session(peer);
        self.end_session(peer);
        let State { replica, presence, .. } = &mut self.state;
        if presence.is_asking() {
            return presence.ask(cx, replica, peer);
        }
        // The rest follows when the peer has greeted: it may be a node of another cluster.
        presence::greet(self, cx, peer);
    }

    /// The connection to a peer is lost.
    fn on_peer_down(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        let Some(peer) = self.state.replica.group.member(node) else {
            return self.note_other(cx, node, false);
        };
        let State { replica, presence, transfer, .. } = &mut self.state;
        replica.is_up[peer.index()] = false;
        transfer.pause(peer, cx.now.at);
        presence.forget_session(peer);
        self.end_session(peer);
    }

    /// What a peer was sent, or has told for this session, does not count any more.
    fn end_session(&mut self, peer: NodeId) {
        let State { reports, sent, epochs, adopting, .. } = &mut self.state;
        (reports[peer.index()], sent[peer.index()]) = (None, None);
        if epochs.current.leader == peer {
            *adopting = None;
        }
    }
}
