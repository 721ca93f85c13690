//! Minerva: epoch-based optimistic concurrency control, multi-leader, fully replicated.
//!
//! From "Epoch-based Optimistic Concurrency Control in Geo-replicated Databases". Every replica
//! executes transactions at once on its last snapshot and streams them to the others in batches.
//! Every few milliseconds the replicas agree on how far each one's stream counts: a cut, which is
//! an epoch. Then each replica for itself finds the largest set of transactions of the epoch that
//! don't conflict, applies their writes, and runs the rest again in one order. Nothing is aborted
//! for a conflict, and agreement carries a few bytes an epoch, whatever the load.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | local execution | §3.2, Algorithm 1 | `execution.rs` | | what a run read and wrote |
//! | replication | §3.3, Algorithm 2 | `replication.rs` | Batch, Ack, ProofOfAvailability, Fetch, Gone | f + 1 replicas have it |
//! | cut | §3.4, Algorithm 3 | `cut.rs` | Agreement | which batches are this epoch's |
//! | strict reads | | `barrier.rs` | BarrierRequest, Barrier | a cut proposed after the read came |
//! | greeting | | `greeting.rs` | Greeting | that nobody knows more of a replica than it does |
//! | rejoin | | `rejoin.rs` | Rejoin, Recollection | what a replica said whose disk is gone |
//! | chains | §3.2, §3.6 | `chains.rs` | | which runs stand or fall together |
//! | validation | §3.5 | `validation.rs` | | which are stale |
//! | conflict graph | §3.6, Algorithm 5 | `conflict_graph.rs` | | which can't both be valid |
//! | independent set | §3.6 | `independent_set.rs` | | which are valid |
//! | commit | §3.5, Algorithm 4 | `commit.rs` | | every outcome |
//! | where transactions meet | | `contended.rs` | | a key for each that ran again |
//! | high contention | §4 | `contention.rs` | | whether to execute at once |
//! | collection | §4 | `collection.rs` | Progress | what every replica has applied |
//! | checkpoint transfer | §4 | `transfer.rs` | CheckpointRequest, CheckpointChunk, CheckpointAck, CheckpointGone | the state at an epoch |
//! | recovery | §4 | `recovery.rs` | | what the log had decided |
//!
//! A transaction's way:
//!
//! ```text
//!   client    source                      peers                 coordinator
//!     | submit  |                           |                       |
//!     |-------->| runs on snapshot          |                       |
//!     |         | batch, 5 ms or 4 MB       |                       |
//!     |         |== Batch ================> |== Batch ============> | persisted by each
//!     |         | <---------------- Ack --> | ------------- Ack --> | f + 1 have it
//!     |         |                           |                       | every 15 ms:
//!     |         | <== agreement on the cut =|= agreement == cut === | a majority has it
//!     |         | validates, applies, runs the rest again; so does every replica
//!     | <-------| outcome
//! ```
//!
//! # Where this differs from the paper, and why
//!
//! - Range reads are validated and are in the conflict graph; the paper leaves them out (§3.7).
//! - Local transactions across an epoch boundary (switch `keep_uncommitted`), acknowledgements to
//!   everyone (`ack_everyone`), the parallel commit (`parallel_commit`), and a lone node's straight
//!   way to the ordered queue (`lone_in_order`) go beyond the paper and can each be switched off; a
//!   log without what a restart can run again (`rerun_on_restart`) can be switched on.
//! - With the temporary state reset every epoch, as in the paper, two runs of one source on
//!   different snapshots did not see each other's writes. The paper takes chains of one source to
//!   be free of conflicts; here such runs count as runs of different origins, so that they are not
//!   both valid if they conflict.
//! - A run that decided to abort is ordered and validated like any other before its client hears of
//!   it: what made it abort might not be committed.
//! - The configuration that a replica is removed from is the set that batches are kept for. Quorums
//!   stay those of the whole cluster, because a quorum that shrinks with each loss would count
//!   batches as safe that the next loss can take.
//! - Old cuts are forgotten although a replica lacks them, which then takes a checkpoint; see
//!   `collection.rs` and `transfer.rs`.
//! - The paper gives no rule for leaving the high-contention mode; see `contention.rs`.
//! - An interactive transaction can't be executed again: it is certified (see
//!   [`pangea_core::txn::Certified`]), and one that is invalid gets a second chance at its place in
//!   the ordered queue, where it aborts if something that it read has changed.
//!
//! # Invariants
//!
//! - A replica that may have forgotten what it said says nothing; see `greeting.rs`, `rejoin.rs`.
//! - A replica acknowledges what is durable on it, and counts an acknowledgement once.
//! - A cut names available batches only; epoch n is the n-th decision.
//! - The state after an epoch follows from the state before it and the cut's batches alone.

mod barrier;
pub mod batch;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod chains;
mod collection;
mod commit;
mod conflict_graph;
mod contended;
mod contention;
mod cut;
mod execution;
#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod fuzz;
mod given;
mod greeting;
mod header;
pub mod independent_set;
mod marks;
mod messages;
mod options;
mod recovery;
mod rejoin;
mod replication;
mod resolution;
mod state;
mod transfer;
mod validation;

use bytes::Bytes;
use pangea_core::choice::{Guarantee, Variant};
use pangea_core::codec::Writer;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::{Cx, Input, Mark, Protocol, Setup, Status};

use crate::agreement::Agreement;
use batch::Bid;
pub use header::Header;
pub use messages::Message;
pub use options::{Options, Reads, Solver};
use rejoin::Rejoined;
use resolution::Resolution;
use state::{Cut, ProposalName, State};

/// One replica.
pub struct Minerva {
    state: State,
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
}

/// What the first byte of a record of the log says.
mod kind {
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
}

/// A record for the log.
enum LogRecord<'a> {
    Batch(Bytes),
    Agreement(Bytes),
    Epoch(&'a Resolution<'a>),
    Birth(NodeId, u64),
    Rejoined(&'a Rejoined),
    Discard(NodeId, Bid),
}

impl Protocol for Minerva {
    const NAME: &'static str = "minerva";
    const NODES_MIN: usize = 1;
    const REJOINS: bool = true;
    const MARKS: &'static [Mark] = marks::ALL;
    const VARIANTS: &'static [Variant] = options::VARIANTS;

    type Header = Header;
    type Message = Message;
    type Timer = Timer;
    type Options = Options;

    fn guarantee(options: &Options) -> Guarantee {
        options.guarantee()
    }

    fn drawn_options(rng: &mut fastrand::Rng) -> Options {
        Options::drawn(rng)
    }

    fn new(setup: Setup<Self>) -> Self {
        Self { state: State::new(setup) }
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        match input {
            Input::Restart(durable) => self.on_restart(cx, durable),
            Input::Submit(submissions) => self.on_submit(cx, submissions),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(Timer::Batch) => self.start_broadcast(cx),
            Input::Timer(Timer::Epoch) => self.on_epoch_timeout(cx),
            Input::Timer(Timer::Tick) => self.on_tick(cx),
            Input::Timer(Timer::Fetch) => self.on_fetch_timeout(cx),
            Input::Timer(Timer::Progress) => self.on_progress_timeout(cx),
            Input::Timer(Timer::Rejoin) => self.on_rejoin_timeout(cx),
            Input::Durable(position) => self.on_durable(cx, position),
            Input::PeerUp(peer) => self.on_peer_up(cx, peer),
            Input::PeerDown(peer) => self.on_peer_down(cx, peer),
            Input::Checkpointed(version) => self.on_checkpointed(cx, version),
            Input::Resume => self.go_on(cx),
        }
        self.settle_agreement(cx);
        self.apply_ready_cuts(cx);
        self.end_rejoin(cx);
        if self.go_on_alone(cx) {
            self.settle_agreement(cx);
        }
    }

    fn status(&self) -> Status {
        let status = self.state.status();
        let rejoin = self.rejoining();
        let first_start = status.first_start.filter(|_| rejoin.is_none());
        Status { rejoin, first_start, ..status }
    }

    fn invariants(&self) {
        self.state.invariants();
    }
}

impl Minerva {
    fn on_message(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        let is_of_rejoin = matches!(message, Message::Rejoin { .. } | Message::Recollection { .. });
        if !is_of_rejoin {
            // For one that only asks nothing is kept.
            self.state.cut.heard_at[from.index()] = cx.now.at;
        }
        if let Err(refused) = message.check(self.state.topology.node_count()) {
            return cx.mark(refused);
        }
        let is_vote = matches!(message, Message::Agreement { .. });
        if self.is_asking() && !is_of_rejoin && !(is_vote && is_planted(Bug::VotesWhileRejoining)) {
            return cx.mark("minerva.not_while_rejoining");
        }
        match message {
            Message::Rejoin { nonce, birth } => self.on_rejoin(cx, from, nonce, birth),
            Message::Recollection { nonce, birth, known } => {
                self.on_recollection(cx, from, (nonce, birth), &known);
            }
            Message::Greeting { birth, yours, batches, promise } => {
                self.on_greeting(cx, from, (birth, yours), batches, promise);
            }
            Message::Batch { bytes } => self.on_batch(cx, from, bytes),
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
            Message::BarrierRequest { token } => self.on_barrier_request(from, token),
            Message::Barrier { token, incarnation, nonce } => {
                self.on_barrier(cx, token, ProposalName { proposer: from, incarnation, nonce });
            }
            Message::CheckpointRequest { transfer, index } => {
                self.on_checkpoint_request(cx, from, transfer, index);
            }
            Message::CheckpointChunk { transfer, index, is_last, payload } => {
                self.on_checkpoint_chunk(cx, from, (transfer, index), is_last, &payload);
            }
            Message::CheckpointAck { transfer, index } => {
                self.on_checkpoint_ack(cx, from, transfer, index);
            }
            Message::CheckpointGone { transfer } => self.on_checkpoint_gone(cx, from, transfer),
        }
    }

    fn on_durable(&mut self, cx: &mut Cx<'_, Self>, position: LogPosition) {
        self.acknowledge(cx, position);
        let cut = &mut self.state.cut;
        while let Some((epoch, _)) = cut.epoch_records.pop_front_if(|(_, at)| *at <= position) {
            cut.logged = epoch;
            if cut.installed.is_none() {
                cut.durable = epoch;
            }
        }
    }

    fn on_peer_up(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        self.state.replication.is_up[peer.index()] = true;
        if self.is_asking() {
            return self.ask(cx, peer);
        }
        self.meet(cx, peer);
    }

    /// Begins to talk to a peer.
    fn meet(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        self.greet(cx, peer);
        self.say_again(cx, peer);
    }

    /// What was on its way to a peer is lost.
    fn say_again(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        if self.state.greetings.is_ready {
            self.agreement_mut().on_peer_up(peer);
        }
        self.resend(cx, peer);
        self.resume_transfer(cx, peer);
        self.retry_barriers(cx, Some(peer));
    }

    fn on_peer_down(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        self.state.replication.is_up[peer.index()] = false;
        self.pause_transfers(peer, cx.now.at);
        self.retry_barriers(cx, Some(peer));
    }

    /// Appends a record to the log.
    fn persist(&mut self, cx: &mut Cx<'_, Self>, record: LogRecord<'_>) -> LogPosition {
        let (kind, payload): (&'static [u8], Bytes) = match record {
            LogRecord::Batch(bytes) => (&[kind::BATCH], bytes),
            LogRecord::Agreement(bytes) => (&[kind::AGREEMENT], bytes),
            LogRecord::Epoch(resolution) => {
                let mut out = Vec::new();
                resolution.encode(&mut out);
                (&[kind::EPOCH], out.into())
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
        self.state.collection.owe(payload.len());
        cx.persist(vec![Bytes::from_static(kind), payload])
    }

    fn agreement(&self) -> &Agreement<Cut> {
        self.state.cut.agreement.as_ref().expect("the first input is the restart")
    }

    fn agreement_mut(&mut self) -> &mut Agreement<Cut> {
        self.state.cut.agreement.as_mut().expect("the first input is the restart")
    }
}
