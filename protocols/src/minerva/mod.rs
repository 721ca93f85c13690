//! Minerva: epoch-based optimistic concurrency control, multi-leader, fully replicated.
//!
//! From "Epoch-based Optimistic Concurrency Control in Geo-replicated Databases". Every replica
//! executes transactions at once on its last snapshot and streams them to its peers in batches.
//! Every few milliseconds the replicas agree on a head for each stream: a cut, which defines an
//! epoch. Then each replica independently finds the largest set of transactions of the epoch that
//! do not conflict, applies their writes, and re-executes the others in one order. No transaction
//! is aborted for a conflict, and agreement transfers a few bytes for each epoch, whatever the
//! load.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | local execution | §3.2, Algorithm 1 | `execution.rs` | | the read set and write set of a run |
//! | replication | §3.3, Algorithm 2 | [`crate::streams`] | Batch, Ack, ProofOfAvailability, Fetch, Gone | f + 1 replicas have the batch |
//! | cut | §3.4, Algorithm 3 | [`crate::inputs`] | Agreement | the batches of the epoch |
//! | chains | §3.2, §3.6 | `chains.rs` | | the runs that are valid only together |
//! | validation | §3.5 | `validation.rs` | | the stale chains |
//! | conflict graph | §3.6, Algorithm 5 | `conflict_graph.rs` | | the chains that cannot both be valid |
//! | independent set | §3.6 | `independent_set.rs` | | the valid chains |
//! | commit | §3.5, Algorithm 4 | `commit.rs` | | every outcome |
//! | contended keys | | `conflict_keys.rs` | | a key for each transaction that was re-executed |
//! | high contention | §4 | `contention.rs` | | whether to execute optimistically |
//! | strict reads | | [`crate::inputs`] | BarrierRequest, Barrier | a cut proposed after the read arrived |
//! | greeting, rejoin | | [`crate::presence`], [`crate::inputs`] | Greeting, Rejoin, RejoinReply | no peer knows more of a replica's log than the replica |
//! | collection | §4 | [`crate::inputs`], [`crate::streams`] | Progress | the last epoch that every replica has applied |
//! | digests | | [`crate::inputs`] | Digests | a replica whose rows differ from those of a majority |
//! | checkpoint transfer | §4 | [`crate::inputs`], [`crate::transfer`], `checkpoint.rs` | CheckpointRequest, CheckpointChunk, CheckpointAck, CheckpointGone | the state at an epoch |
//! | recovery | §4 | [`crate::inputs`], `recovery.rs` | | the decisions in the log |
//! | stop | | [`crate::inputs`] | Stopping, MayStop, TransferLeadership | a checkpoint that any later program can continue from |
//!
//! The lifecycle of a transaction:
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
//! - Range reads are validated and are in the conflict graph; the paper does not cover ranges
//!   (§3.7).
//! - Local transactions across an epoch boundary (switch `keep_uncommitted`), acknowledgements to
//!   all replicas (`ack_everyone`), the parallel commit (`parallel_commit`), and the direct path of
//!   a single node to the ordered queue (`lone_in_order`) are extensions of the paper and can each
//!   be switched off. A log without writes that a restart can re-execute (`rerun_on_restart`) can
//!   be switched on.
//! - If the temporary state is reset every epoch, as in the paper, two runs of one source on
//!   different snapshots did not see each other's writes. The paper assumes that chains of one
//!   source are free of conflicts. Here such runs count as runs of different origins, so that they
//!   are not both valid if they conflict.
//! - A run that ended in an abort is ordered and validated like any other before its client is
//!   answered: the writes that made it abort might not be committed.
//! - The configuration that a replica is removed from is the set for which batches are retained.
//!   Quorums remain those of the whole cluster. A quorum that shrinks with each loss would count
//!   batches as safe that the next loss can take.
//! - Old cuts are truncated even if a replica needs them, which then installs a checkpoint; see
//!   [`crate::inputs`].
//! - The paper gives no rule for leaving the high-contention mode; see `contention.rs`.
//! - An interactive transaction can't be re-executed: it is certified (see
//!   [`pangea_core::txn::Certified`]). An invalid one gets a second chance at its place in the
//!   ordered queue, where it aborts if something that it read has changed.
//!
//! # Invariants
//!
//! - The shared part of the protocol maintains the invariants of [`crate::inputs`].
//! - The state after an epoch depends only on the state before it and the cut's batches.

pub mod batch;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod chains;
mod checkpoint;
mod commit;
mod conflict_graph;
mod conflict_keys;
mod contention;
mod epoch_record;
mod execution;
#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod fuzz;
pub mod header;
pub mod independent_set;
mod marks;
mod messages;
mod options;
mod recovery;
mod state;
mod validation;

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Input, ListedEpoch, Mark, Protocol, Setup, Status};

pub use crate::inputs::Timer;
use crate::inputs::{Configuration, EPOCH_COUNTS_AS, Event, Host, RejoinState, STEP_TXNS_MAX};
use crate::{inputs, presence, streams, transfer};
use batch::Batch;
use contention::Change;
pub use messages::Message;

pub use options::{Options, Reads, Rules, Solver};
use state::State;

/// A replica.
pub struct Minerva {
    state: State,
}

impl Protocol for Minerva {
    const NAME: &'static str = "minerva";
    const NODES_MIN: usize = 1;
    const REJOINS: bool = true;
    const MARKS: &'static [Mark] = marks::ALL;
    const TORTURE_SETTINGS: &'static [TortureSetting] = options::TORTURE_SETTINGS;
    const VARIANTS: &'static [Variant] = options::VARIANTS;

    type Message = Message;
    type Timer = Timer;
    type Options = Options;

    fn guarantee(options: &Options) -> Guarantee {
        options.guarantee()
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
        let inputs = &mut self.state.inputs;
        match input {
            Input::Restart(durable) => self.on_restart(cx, durable),
            Input::Submit(submissions) => self.on_submit(cx, submissions),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(Timer::Batch) => self.start_broadcast(cx),
            Input::Timer(Timer::Epoch) => inputs.on_epoch_timeout(cx),
            Input::Timer(Timer::Tick) => {
                inputs.on_tick(cx);
                self.on_tick(cx);
            }
            Input::Timer(Timer::Fetch) => inputs.on_fetch_timeout(cx),
            Input::Timer(Timer::Progress) => inputs.on_progress_timeout(cx, Vec::new()),
            Input::Timer(Timer::Rejoin) => inputs.on_rejoin_timeout(cx),
            Input::Timer(Timer::Checkpoint) => {
                inputs.on_checkpoint_timeout();
                inputs.checkpoint_if_due(cx);
            }
            Input::Durable(position) => inputs.on_durable(cx, position),
            Input::PeerUp(peer) => inputs.on_peer_up(cx, peer),
            Input::PeerDown(peer) => inputs.on_peer_down(cx, peer),
            Input::Checkpointed(version) => inputs.on_checkpointed(cx, version),
            Input::CheckpointFailed(version) => inputs.on_checkpoint_failed(cx, version),
            Input::Stop => {
                inputs.on_stop(cx);
                self.start_broadcast(cx);
            }
            Input::Resume => self.resume_epoch(cx),
            Input::Prefetched { .. } => unreachable!("Minerva fetches no rows"),
        }
        self.read_released(cx);
        self.state.inputs.settle_agreement(cx);
        self.apply_ready_cuts(cx);
        self.end_rejoin(cx);
        if self.propose_alone(cx) {
            self.state.inputs.settle_agreement(cx);
        }
        self.advance_stops(cx);
    }

    fn status(&self) -> Status {
        self.state.status()
    }

    fn listed_epochs(&self) -> &[ListedEpoch] {
        &self.state.listed
    }

    fn may_stop(&self) -> bool {
        self.state.inputs.may_stop()
    }

    fn ends_alone(&self) -> bool {
        self.state.inputs.ends_alone()
    }

    fn agreed(&self) -> Option<(SnapshotVersion, u64)> {
        Some(self.state.inputs.cut.confirmed.digest())
    }

    fn invariants(&self) {
        self.state.invariants();
    }
}

impl streams::Host for Minerva {
    type Batch = Batch;
}

impl presence::Host for Minerva {
    type Memory = RejoinState<Rules>;
}

impl transfer::Host for Minerva {
    type Configuration = Configuration;
}

impl Host for Minerva {
    type Rules = Rules;
    type Extension = ();
}

/// The value that is agreed on.
type Cut = crate::inputs::Cut<Rules>;

impl Minerva {
    fn on_message(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        if matches!(message, Message::Inputs(inputs::Message::Presence(_))) {
            self.handle(cx, from, message);
            for early in self.state.inputs.presence.take_admitted(from) {
                self.handle(cx, from, early);
            }
        } else if let Some(message) = self.state.inputs.presence.admit(cx, from, message) {
            self.handle(cx, from, message);
        }
    }

    fn handle(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        let Message::Inputs(message) = message;
        let event = self.state.inputs.on_message(cx, from, message);
        self.on_event(cx, event);
    }

    fn on_event(&mut self, cx: &mut Cx<'_, Self>, event: Option<Event<Self>>) {
        match event {
            None => {}
            Some(Event::Ready) => self.start_broadcast(cx),
            Some(Event::OwnBatch(batch)) => self.on_own_batch(&batch),
            Some(Event::Checkpoint(incoming)) => self.on_checkpoint(cx, incoming),
            Some(Event::CheckpointAsked { from, transfer }) => {
                self.state.inputs.send_checkpoint(cx, (from, transfer), bytes::Bytes::new());
            }
        }
    }

    /// §4: tries optimistic execution again when the hold time has elapsed.
    fn on_tick(&mut self, cx: &mut Cx<'_, Self>) {
        let State { contention, options, .. } = &mut self.state;
        if contention.on_tick(options, cx.now.at) == Change::Left {
            cx.mark("minerva.high_contention_left");
        }
    }

    /// Continues at once if this is the only replica of a cluster, because it waits for no other.
    /// Requests that arrive in the meantime form the next batch. Returns whether a cut was
    /// proposed.
    fn propose_alone(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        if !self.state.inputs.is_idle_alone() {
            return false;
        }
        let own = self.state.inputs.own_log();
        if own.durable == own.received && !self.state.execution.current.is_empty() {
            self.start_broadcast(cx);
        }
        self.state.inputs.propose(cx);
        self.state.inputs.cut.undecided() > 0
    }

    /// Applies the cuts whose batches have all arrived, in order, until [`STEP_TXNS_MAX`] stops it.
    fn apply_ready_cuts(&mut self, cx: &mut Cx<'_, Self>) {
        let mut begun = 0;
        while self.state.commit.is_none() {
            let Some((epoch, cut)) = self.state.inputs.next_cut(cx) else { return };
            if mutate!(StepsUnbounded: begun >= STEP_TXNS_MAX => false) {
                cx.mark("minerva.cuts_in_steps");
                return cx.resume();
            }
            begun += EPOCH_COUNTS_AS + self.begin_epoch(cx, epoch, cut);
        }
    }

    /// Makes progress with stops in order.
    fn advance_stops(&mut self, cx: &mut Cx<'_, Self>) {
        let State { inputs, execution, commit, .. } = &mut self.state;
        let is_settled = execution.in_flight.is_empty();
        inputs.advance_stops(cx, (is_settled, commit.is_some()), None);
    }

    /// Accepts requests again once the reported data is durable on this replica.
    fn end_rejoin(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.commit.is_none() && self.state.inputs.end_rejoin(cx) {
            self.rebuild_overlay();
        }
    }
}
