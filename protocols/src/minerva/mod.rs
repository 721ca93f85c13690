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
//! | replication | §3.3, Algorithm 2 | [`crate::inputs`] | Batch, Ack, ProofOfAvailability, Fetch, Gone | f + 1 replicas have it |
//! | cut | §3.4, Algorithm 3 | [`crate::inputs`] | Agreement | which batches are this epoch's |
//! | chains | §3.2, §3.6 | `chains.rs` | | which runs stand or fall together |
//! | validation | §3.5 | `validation.rs` | | which are stale |
//! | conflict graph | §3.6, Algorithm 5 | `conflict_graph.rs` | | which can't both be valid |
//! | independent set | §3.6 | `independent_set.rs` | | which are valid |
//! | commit | §3.5, Algorithm 4 | `commit.rs` | | every outcome |
//! | where transactions meet | | `contended.rs` | | a key for each that ran again |
//! | high contention | §4 | `contention.rs` | | whether to execute at once |
//! | collection, checkpoint transfer | §4 | [`crate::inputs`], `checkpoint.rs` | Progress, Checkpoint.. | the state at an epoch |
//! | recovery | §4 | [`crate::inputs`], `recovery.rs` | | what the log had decided |
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
//!   [`crate::inputs`].
//! - The paper gives no rule for leaving the high-contention mode; see `contention.rs`.
//! - An interactive transaction can't be executed again: it is certified (see
//!   [`pangea_core::txn::Certified`]), and one that is invalid gets a second chance at its place in
//!   the ordered queue, where it aborts if something that it read has changed.
//!
//! # Invariants
//!
//! - What the replicas have in common holds to those of [`crate::inputs`].
//! - The state after an epoch follows from the state before it and the cut's batches alone.

pub mod batch;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod chains;
mod checkpoint;
mod commit;
mod conflict_graph;
mod contended;
mod contention;
mod execution;
#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod fuzz;
mod given;
pub mod header;
pub mod independent_set;
mod marks;
mod options;
mod recovery;
mod resolution;
mod state;
mod validation;

use pangea_core::choice::{Guarantee, TortureSetting, Variant};
use pangea_core::protocol::{Cx, Input, Mark, Protocol, Setup, Status};

use crate::inputs::{Event, Host};
pub use crate::inputs::{Message, Timer};
use batch::Batch;
use contention::Change;

pub use options::{Options, Reads, Rules, Solver};
use state::State;

/// One replica.
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
            Input::Message { from, message } => {
                let event = inputs.on_message(cx, from, message);
                self.on_event(cx, event);
            }
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
            Input::Resume => self.go_on(cx),
            Input::Fetched { .. } | Input::Timer(Timer::Held) => {
                unreachable!("nothing is fetched, and nobody held")
            }
        }
        self.read_released(cx);
        self.state.inputs.settle_agreement(cx);
        self.apply_ready_cuts(cx);
        self.end_rejoin(cx);
        if self.go_on_alone(cx) {
            self.state.inputs.settle_agreement(cx);
        }
    }

    fn status(&self) -> Status {
        self.state.status()
    }

    fn invariants(&self) {
        self.state.invariants();
    }
}

impl Host for Minerva {
    type Batch = Batch;
    type Rules = Rules;
}

/// What is agreed on.
type Cut = crate::inputs::Cut<Rules>;

impl Minerva {
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

    /// §4: looks whether it is time to try optimistic execution again.
    fn on_tick(&mut self, cx: &mut Cx<'_, Self>) {
        let State { contention, options, .. } = &mut self.state;
        if contention.on_tick(options, cx.now.at) == Change::Left {
            cx.mark("minerva.high_contention_left");
        }
    }

    /// The only replica of a cluster waits for nobody: what is there goes on at once, and what
    /// comes meanwhile goes on together when that is done. Returns whether something was proposed.
    fn go_on_alone(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        if !self.state.inputs.is_idle_alone() {
            return false;
        }
        let own = self.state.inputs.own_log();
        if own.durable == own.held && !self.state.execution.current.is_empty() {
            self.start_broadcast(cx);
        }
        self.state.inputs.propose(cx);
        self.state.inputs.cut.undecided() > 0
    }

    /// Applies the cuts whose batches are all here, in order.
    fn apply_ready_cuts(&mut self, cx: &mut Cx<'_, Self>) {
        while self.state.commit.is_none() {
            let Some((epoch, cut)) = self.state.inputs.next_cut(cx) else { return };
            self.begin_epoch(cx, epoch, cut);
        }
    }

    /// Takes requests again once this replica holds what was reported of it.
    fn end_rejoin(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.commit.is_none() && self.state.inputs.end_rejoin(cx) {
            self.rebuild_overlay();
        }
    }
}
