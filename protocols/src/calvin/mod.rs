//! Calvin: sequence first, then execute.
//!
//! From "Calvin: Fast Distributed Transactions for Partitioned Database Systems". Every replica is
//! a sequencer: it collects requests and creates a batch of them every 10 ms. The batches of all
//! sequencers are replicated and agreed on before any transaction runs, and that is their serial
//! order. Then every replica runs every transaction under locks that are granted strictly in that
//! order. All replicas therefore reach the same state, without deadlocks and without aborts for
//! conflicts. There is no commit protocol: once the order is durable, so is every outcome.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | reconnaissance | §3.2.1 | `sequencer.rs` | | the footprint of a transaction whose keys depend on data |
//! | warming | §4 | `warming.rs` | WarmRequest, WarmReply, ColdMapUpdate | the rows that it reads are in memory, or should be |
//! | sequencing | §3.1 | `sequencer.rs` | | a transaction's place in its sequencer's batches |
//! | replication | §3.1.1, synchronous | [`crate::streams`] | Batch, Ack, Fetch, Gone | f + 1 replicas have the batch |
//! | agreement | §3.1.1, synchronous | [`crate::inputs`] | Agreement | the batches of the epoch |
//! | forwarding | §3.1.1, asynchronous | `forwarding.rs` | Forward, ForwardAccepted, ForwardRejected | the master has accepted a request |
//! | early cuts | §3.1.1, asynchronous | `mastership.rs` | RequestMastership, TransferLeadership | the master's disk has the cuts that it runs |
//! | interleaving | §3.1 | `interleaving.rs` | | the serial order |
//! | sharding | §3.1, §3.2 | `shards.rs` | Subscribe, Unsubscribe, Slice, SliceChunk, SlicesDecided, RemoteResults, Resubscribe, ShardProgress, Truncated, GroupProgress, LookupRequest, LookupReply | the requests that a shard participates in, and remote rows |
//! | scheduling | §3.2 | `scheduler.rs` | | every outcome |
//! | checkpoints | §5 | `checkpoints.rs`, `checkpoint_turns.rs`, `frozen.rs` | CheckpointTurn, OutcomesRequest, Outcomes, Frozen | the state at an epoch |
//! | strict reads | | [`crate::inputs`] | BarrierRequest, Barrier | a cut proposed after the read arrived |
//! | greeting, rejoin | | [`crate::presence`], [`crate::inputs`] | Greeting, Rejoin, RejoinReply | no peer knows more of a replica's log than the replica |
//! | collection | | [`crate::inputs`], [`crate::streams`] | Progress | the last epoch that every replica has applied |
//! | digests | | [`crate::inputs`] | Digests | a replica whose rows differ from those of a majority |
//! | checkpoint transfer | | [`crate::inputs`], [`crate::transfer`], `checkpoints.rs` | CheckpointRequest, CheckpointChunk, CheckpointAck, CheckpointGone | the state at an epoch |
//! | recovery | §5 | `recovery.rs` | | the state, from a checkpoint and the inputs after it |
//! | stop | | [`crate::inputs`] | Stopping, MayStop, TransferLeadership | a checkpoint that any later program can continue from |
//!
//! The lifecycle of a transaction:
//!
//! ```text
//!   client    sequencer                   peers                  coordinator
//!     | submit  |                           |                       |
//!     |-------->| [reconnaissance]          |                       |
//!     |         | batch, 10 ms or 4 MB      |                       |
//!     |         |== Batch ================> |== Batch ============> | persisted by each
//!     |         | <---------------- Ack --> | ------------- Ack --> | f + 1 have it
//!     |         |                           |                       | every 10 ms:
//!     |         | <== agreement on the cut =|= agreement == cut === | a majority has it
//!     |         | runs the batches round robin, in order; so does every replica
//!     | <-------| outcome
//! ```
//!
//! # After each input
//!
//! `step` handles the input and then makes all progress that has become possible, in a fixed order:
//!
//! 1. `read_released` runs the reads that the input has released. They read a confirmed epoch and
//!    depend on no later call.
//! 2. `pace` sets the limits that the other groups' epochs impose on this group's log, before the
//!    next call may fix a cut. It proposes a cut at once if this group is behind.
//! 3. `lead` makes the master term follow agreement's leadership, and fixes and proposes a master's
//!    cuts. It runs before agreement is settled, so that its proposals leave in this step.
//! 4. `settle_agreement` persists and sends all that agreement has pending, and queues the decided
//!    cuts. It detects fixed cuts that another decision has made void.
//! 5. `note_void` rolls the store back if such a cut has run, before any epoch is confirmed or run
//!    on top of it.
//! 6. `confirm_epochs` confirms the early epochs that are now decided. Epochs are confirmed in
//!    order, so this precedes the execution of later ones, which may be confirmed as soon as they
//!    have run.
//! 7. `run_ready_epochs`, or `advance_shards` if tables are partitioned, runs the epochs whose
//!    inputs have arrived.
//! 8. `confirm_epochs` confirms epochs that were already decided when they ran, and announces newly
//!    sliced epochs as decided to the other shards, without waiting for another input.
//! 9. `end_rejoin` accepts requests again if the recovered data is now durable. It waits for a
//!    partly applied epoch to end.
//! 10. `propose_alone` proposes the next cut if this is the only replica and no cut is undecided.
//!     That is known only after all the others. A second `settle_agreement` persists the proposal
//!     in the same step.
//! 11. `advance_stop` takes the last checkpoint before a stop, once nothing is in flight.
//!
//! # Where this differs from the paper, and why
//!
//! - Tables may be partitioned or not. If each replica has all data, there are no remote reads, and
//!   a scheduler receives all batches.
//! - One agreement of the group decides the batches of all sequencers in an epoch. The paper runs
//!   one for each partition and epoch. The batches themselves are not sent through agreement. The
//!   same holds for asynchronous replication, only later.
//! - If each replica has all data, a transaction that leaves its footprint runs again in the same
//!   epoch, after the ones with which it was scheduled ([`pangea_core::exec::ordered`]). It is not
//!   sequenced again, which saves a second WAN round trip. All replicas do this identically.
//! - Ranges are locked too, so that scans see no phantoms; the paper does not cover ranges.
//! - A read-only transaction takes no place in the order. It runs where it arrived, at a version
//!   that contains all transactions acknowledged before it (`reads`).
//! - Interactive transactions are certified ([`pangea_core::txn::Certified`]): at their place in
//!   the order they commit if the versions that they read are still current.
//!
//! # Invariants
//!
//! - The shared part of the protocol maintains the invariants of [`crate::inputs`].
//! - The state after an epoch depends only on the state before it, the cut's batches and the code
//!   of the procedures. Therefore a cut names the code that it was proposed under ([`Rules`]).

pub mod batch;
mod checkpoint_turns;
mod checkpoints;
mod cuts;
mod forwarding;
mod frozen;
#[cfg(test)]
mod fuzz;
mod interleaving;
mod marks;
mod mastership;
mod messages;
mod options;
mod recovery;
mod scheduler;
mod sequencer;
mod shards;
mod state;
#[cfg(test)]
mod tests;
mod warming;

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};
use pangea_core::protocol::{Cx, Input, ListedEpoch, Mark, Protocol, Setup, Status};
use pangea_core::topology::Topology;

use crate::inputs::{self, Event};
use checkpoint_turns::PeerTurnState;
use messages::Accepted;
pub use messages::Message;
pub use options::{Checkpoints, Options, Reads, Replication, Rules};
pub use shards::remote_results::RemoteResult;
use state::State;

/// The timers of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// One of the input log.
    Inputs(inputs::Timer),
    /// The delay of requests has elapsed.
    Delay,
}

/// A replica.
pub struct Calvin {
    state: State,
}

impl Protocol for Calvin {
    const NAME: &'static str = "calvin";
    const NODES_MIN: usize = 1;
    const REJOINS: bool = true;
    const PARTITIONED: bool = true;
    const MARKS: &'static [Mark] = marks::ALL;
    const TORTURE_SETTINGS: &'static [TortureSetting] = options::TORTURE_SETTINGS;
    const VARIANTS: &'static [Variant] = options::VARIANTS;

    type Message = Message;
    type Timer = Timer;
    type Options = Options;

    fn guarantee(options: &Options) -> Guarantee {
        options.guarantee()
    }

    fn may_lose_commits(options: &Options) -> bool {
        options.replication == Replication::Asynchronous
    }

    fn drawn_options(rng: &mut fastrand::Rng) -> Options {
        Options::drawn(rng)
    }

    fn scaled_down_options() -> Options {
        Options::scaled_down()
    }

    fn check_options(options: &Options, topology: &Topology) -> Result<(), String> {
        options.check(topology)
    }

    fn new(setup: Setup<Self>) -> Self {
        Self { state: State::new(setup) }
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        let inputs = &mut self.state.inputs;
        let is_resumed = matches!(input, Input::Resume);
        match input {
            Input::Restart(durable) => self.on_restart(cx, durable),
            Input::Submit(submissions) => self.on_submit(cx, submissions),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(Timer::Inputs(timer)) => self.on_timer(cx, timer),
            Input::Timer(Timer::Delay) => self.on_delay_timeout(cx),
            Input::Prefetched { token, took } => self.on_fetched(cx, token, took),
            Input::Durable(position) => inputs.on_durable(cx, position),
            Input::PeerUp(peer) => self.on_up(cx, peer),
            Input::PeerDown(peer) => self.on_down(cx, peer),
            Input::Checkpointed(version) => {
                let before = inputs.extension.turns.frozen();
                inputs.on_checkpointed(cx, version);
                self.note_frozen(cx, before);
            }
            Input::CheckpointFailed(version) => inputs.on_checkpoint_failed(cx, version),
            Input::Stop => {
                inputs.on_stop(cx);
                self.end_batch(cx);
            }
            Input::Resume => self.resume_epoch(cx),
        }
        self.make_progress(cx, is_resumed);
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

    fn confirmed(&self) -> Option<SnapshotVersion> {
        Some(self.state.inputs.cut.confirmed.epoch)
    }

    fn agreed(&self) -> Option<(SnapshotVersion, u64)> {
        Some(self.state.inputs.cut.confirmed.digest())
    }

    fn invariants(&self) {
        self.state.invariants();
    }
}

/// The nodes that a message is for.
#[derive(Clone, Copy)]
enum Addressee {
    /// Replicas of the sender's shard.
    Group,
    /// Nodes of other shards.
    Shards,
    /// Either.
    AnyNode,
}

impl Addressee {
    fn of(message: &Message) -> Self {
        match message {
            Message::Inputs(_)
            | Message::RequestMastership {}
            | Message::CheckpointTurn { .. }
            | Message::Forward { .. }
            | Message::ForwardAccepted { .. }
            | Message::ForwardRejected { .. }
            | Message::GroupProgress { .. } => Self::Group,
            Message::Subscribe { .. }
            | Message::Unsubscribe {}
            | Message::Slice { .. }
            | Message::SliceChunk { .. }
            | Message::SlicesDecided { .. }
            | Message::Resubscribe {}
            | Message::RemoteResults { .. }
            | Message::ShardProgress { .. }
            | Message::Sealed { .. }
            | Message::Truncated { .. }
            | Message::Frozen { .. }
            | Message::LookupRequest { .. }
            | Message::LookupReply { .. } => Self::Shards,
            Message::WarmRequest { .. }
            | Message::WarmReply { .. }
            | Message::ColdMapUpdate { .. }
            | Message::OutcomesRequest { .. }
            | Message::Outcomes { .. } => Self::AnyNode,
        }
    }
}

/// The sender of a message.
#[derive(Clone, Copy)]
enum Sender {
    /// A replica of this node's shard, by its number in the group.
    Replica(NodeId),
    /// A node of another shard.
    Shard(ShardId),
}

/// The value that is agreed on.
type Cut = inputs::Cut<Rules>;

impl Calvin {
    fn on_up(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let inputs = &mut self.state.inputs;
        match inputs.replica.group.member(peer) {
            Some(replica) => {
                inputs.on_peer_up(cx, replica);
                self.lose_sent(cx, replica);
                // The replica may have lost the last report.
                self.state.shards.iter_mut().for_each(|shards| shards.group_progress_sent = None);
            }
            None => self.on_shard_node_up(cx, peer),
        }
        self.send_cold_map_to(cx, peer);
    }

    fn on_timer(&mut self, cx: &mut Cx<'_, Self>, timer: inputs::Timer) {
        let inputs = &mut self.state.inputs;
        match timer {
            inputs::Timer::Batch => self.end_batch(cx),
            inputs::Timer::Epoch => {
                inputs.on_epoch_timeout(cx);
                self.report_lag(cx);
            }
            inputs::Timer::Tick => {
                inputs.on_tick(cx);
                self.dispatch(cx);
            }
            inputs::Timer::Fetch => inputs.on_fetch_timeout(cx),
            inputs::Timer::Progress => {
                let of_epochs = self.awaited_of_others();
                self.state.inputs.on_progress_timeout(cx, of_epochs);
                self.send_shard_progress(cx);
                self.send_sealed(cx, false);
                self.send_group_progress(cx);
                self.replace_unreachable_sources(cx);
                if self.state.inputs.has_turn() {
                    // Other replicas may have reported that they are no longer frozen, and no epoch
                    // may follow.
                    self.checkpoint_if_due(cx);
                }
                self.request_outcomes(cx);
                self.send_cold_map(cx);
            }
            inputs::Timer::Rejoin => inputs.on_rejoin_timeout(cx),
            inputs::Timer::Checkpoint => {
                inputs.on_checkpoint_timeout();
                self.checkpoint_if_due(cx);
            }
        }
    }

    fn on_down(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let inputs = &mut self.state.inputs;
        match inputs.replica.group.member(peer) {
            Some(replica) => {
                inputs.on_peer_down(cx, replica);
                self.lose_sent(cx, replica);
                self.forget_outcome_requests(cx, replica);
            }
            None => self.on_shard_node_down(cx, peer),
        }
        self.on_warmer_down(cx, peer);
    }

    /// Makes all progress that an input has made possible. The chapter explains the order ("After
    /// each input"); the numbers are its.
    fn make_progress(&mut self, cx: &mut Cx<'_, Self>, is_resumed: bool) {
        self.read_released(cx); // 1
        self.pace(cx); // 2
        self.lead(cx); // 3
        self.state.inputs.settle_agreement(cx); // 4
        self.note_void(cx); // 5
        self.confirm_epochs(cx); // 6
        match self.state.shards {
            None => self.run_ready_epochs(cx), // 7
            Some(_) => self.advance_shards(cx, is_resumed),
        }
        self.confirm_epochs(cx); // 8
        if self.state.running.is_none() {
            self.state.inputs.end_rejoin(cx); // 9
        }
        if self.propose_alone(cx) {
            self.state.inputs.settle_agreement(cx); // 10
        }
        self.advance_stops(cx); // 11
    }

    /// Makes progress with stops in order.
    fn advance_stops(&mut self, cx: &mut Cx<'_, Self>) {
        let State { inputs, sequencer, forwarding, shards, running, .. } = &mut self.state;
        let is_settled = sequencer.in_flight.is_empty()
            && forwarding.len() == 0
            && shards.as_ref().is_none_or(|shards| shards.lookups.len() == 0);
        let others = shards.as_ref().map(shards::Shards::other_logs);
        inputs.advance_stops(cx, (is_settled, running.is_some()), others);
        if inputs.is_stopping() {
            self.send_sealed(cx, true);
            self.send_shard_progress(cx);
        }
    }

    /// Hands a message to its phase, if it has the right sender: a replica of this node's group, or
    /// a node of another shard.
    fn on_message(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        let sender = self.sender(from);
        let Sender::Replica(replica) = sender else {
            return self.handle(cx, (from, sender), message);
        };
        if matches!(message, Message::Inputs(inputs::Message::Presence(_))) {
            self.handle(cx, (from, sender), message);
            for early in self.state.inputs.presence.take_admitted(replica) {
                self.handle(cx, (from, sender), early);
            }
        } else if let Some(message) = self.state.inputs.presence.admit(cx, replica, message) {
            self.handle(cx, (from, sender), message);
        }
    }

    fn handle(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (from, sender): (NodeId, Sender),
        message: Message,
    ) {
        match (Addressee::of(&message), sender) {
            (Addressee::Group, Sender::Replica(replica)) => {
                self.on_group_message(cx, replica, message);
            }
            (Addressee::Shards, Sender::Shard(shard)) => {
                self.on_shard_message(cx, (from, shard), message);
            }
            (Addressee::AnyNode, _) => self.on_message_of_any(cx, from, message),
            (Addressee::Group, Sender::Shard(_)) => cx.mark("calvin.not_of_the_group"),
            (Addressee::Shards, Sender::Replica(_)) => cx.mark(self.not_to_a_shard()),
        }
    }

    /// The input log, and asynchronous replication.
    fn on_group_message(&mut self, cx: &mut Cx<'_, Self>, replica: NodeId, message: Message) {
        match message {
            Message::Inputs(message) => {
                let event = self.state.inputs.on_message(cx, replica, message);
                self.on_event(cx, event);
            }
            Message::RequestMastership {} | Message::CheckpointTurn { .. } => {
                self.on_log_message(cx, replica, message)
            }
            Message::Forward { requests } => self.on_forward(cx, replica, requests),
            Message::ForwardAccepted { accepted: Accepted { term, tokens } } => {
                self.on_forward_accepted(cx, term, &tokens);
            }
            Message::ForwardRejected { tokens } => {
                self.on_forward_rejected(cx, replica, &tokens);
            }
            Message::GroupProgress { least, most } => match self.state.shards.is_some() {
                true => self.on_group_progress(least, most),
                false => cx.mark(self.not_to_a_shard()),
            },
            message => unreachable!("{message:?} is not for the group"),
        }
    }

    /// Delivery between shards.
    fn on_shard_message(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (from, shard): (NodeId, ShardId),
        message: Message,
    ) {
        match message {
            Message::Subscribe { slices, results, is_continued } => {
                self.on_subscribe(cx, from, (slices, results), is_continued);
            }
            Message::Unsubscribe {} => self.on_unsubscribe(from, shard),
            Message::Slice { slice } => self.on_slice(cx, from, slice),
            Message::SliceChunk { chunk } => self.on_slice_chunk(cx, from, chunk),
            Message::SlicesDecided { upto, name } => self.on_slices_decided(cx, from, upto, name),
            Message::Resubscribe {} => self.on_resubscribe(cx, from),
            Message::RemoteResults { results } => self.on_remote_results(cx, shard, results),
            Message::Sealed { at, is_sealed } => self.on_sealed(from, at, is_sealed),
            Message::ShardProgress { upto, applied, waits_for } => {
                self.on_shard_progress(from, (upto, applied), waits_for);
            }
            Message::Truncated { upto } => self.on_truncated(cx, from, upto),
            Message::Frozen { at } => self.on_source_frozen(cx, from, at),
            Message::LookupRequest { token, keys } => {
                self.on_lookup_request(cx, from, token, &keys);
            }
            Message::LookupReply { token, rows } => {
                self.on_lookup_reply(cx, shard, token, rows);
            }
            message => unreachable!("{message:?} is not for other shards"),
        }
    }

    /// Warming and checkpoints.
    fn on_message_of_any(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        match message {
            Message::WarmRequest { token, keys } => self.on_warm_request(cx, from, token, keys),
            Message::WarmReply { token, took } => self.on_warm_reply(cx, from, token, took),
            Message::ColdMapUpdate { map } => self.on_cold_map_update(from, map),
            Message::OutcomesRequest { after, is_wanted } => {
                self.on_outcomes_request(cx, from, after, is_wanted);
            }
            Message::Outcomes { outcomes } => self.on_outcomes(cx, from, &outcomes),
            message => unreachable!("{message:?} is not for any node"),
        }
    }

    /// Handles a message of a peer about mastership or checkpoint turns. It counts as one of the
    /// input log.
    fn on_log_message(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        let inputs = &mut self.state.inputs;
        let checked = message.check(inputs.replica.topology.node_count());
        if !inputs.may_handle(cx, from, checked, (false, false)) {
            return;
        }
        match message {
            Message::RequestMastership {} => inputs.on_request_mastership(cx, from),
            Message::CheckpointTurn { wants, is_frozen, known } => {
                inputs.on_checkpoint_turn(cx, from, wants, PeerTurnState { is_frozen, known });
            }
            message => unreachable!("{message:?} is about neither mastership nor turns"),
        }
    }

    /// The relation of a node to this one.
    fn sender(&self, node: NodeId) -> Sender {
        match (self.state.inputs.replica.group.member(node), &self.state.shards) {
            (Some(replica), _) => Sender::Replica(replica),
            (None, Some(shards)) => Sender::Shard(shards.shard_of(node)),
            (None, None) => unreachable!("without partitions all nodes are of one group"),
        }
    }

    /// The mark of a message between shards that comes from a replica of this one.
    fn not_to_a_shard(&self) -> &'static str {
        match self.state.shards {
            Some(_) => "calvin.not_to_its_own_shard",
            None => "calvin.not_divided",
        }
    }

    fn on_event(&mut self, cx: &mut Cx<'_, Self>, event: Option<Event<Self>>) {
        match event {
            None => {}
            Some(Event::Ready) => self.end_batch(cx),
            Some(Event::OwnBatch(batch)) => self.on_own_batch(&batch),
            Some(Event::Checkpoint(incoming)) => self.on_checkpoint(cx, incoming),
            Some(Event::CheckpointAsked { from, transfer }) => {
                let handed_on = self.kept_for_others();
                self.state.inputs.send_checkpoint(cx, (from, transfer), handed_on);
            }
        }
    }

    /// Continues at once if this is the only replica of a cluster, because it waits for no other.
    /// Requests that arrive in the meantime form the next batch. Returns whether a cut was
    /// proposed.
    fn propose_alone(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        if self.state.shards.is_some() || !self.state.inputs.is_idle_alone() {
            return false;
        }
        let own = self.state.inputs.own_log();
        if own.durable == own.received && !self.state.sequencer.current.is_empty() {
            self.end_batch(cx);
        }
        self.state.inputs.propose(cx);
        self.state.inputs.cut.undecided() > 0
    }
}
