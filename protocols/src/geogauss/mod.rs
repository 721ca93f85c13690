//! GeoGauss: multi-master optimistic concurrency control with a merge for each epoch.
//!
//! From "GeoGauss: A Multi-Master Geo-Replicated NewSQL Database". Every replica executes
//! transactions at once on its newest snapshot, and streams their write sets to its peers. Time is
//! divided into epochs of some milliseconds. When a replica has the write sets of an epoch from all
//! replicas, it merges them: a rule that depends on nothing else decides who commits. No agreement
//! is needed for an epoch, so a commit takes a single round trip.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | execution | §4.1.1, Algorithm 1 | `execution.rs`, `chains.rs`, `hot.rs` | | the read set and write set of a run |
//! | isolation | §4.1.5 | `isolation.rs`, `origin.rs` | | the rows to check |
//! | replication | §5.1 | [`crate::streams`] | Batch, Ack, Fetch, Gone | f + 1 replicas have the batch |
//! | epochs | §3, §4.1 | `epochs.rs`, `clock.rs` | Batch, Eof | all transactions of an epoch |
//! | order | §4.1.2, §4.3 | `rank.rs` | | the order within an epoch |
//! | merge | §4.1.2, Algorithm 2 | `merge.rs`, `adds.rs`, `deletions.rs`, `rules.rs` | | who commits |
//! | commit | §4.1.3, Algorithm 3 | `commit.rs`, `failure.rs` | | every outcome |
//! | caches | §5.2 | `cache.rs`, `caches.rs` | Keep, Kept, Collected, CacheRequest, CacheHead | that a batch survives its replica |
//! | early epochs | §5.2 | `early.rs`, `lineage.rs` | | what may still be rolled back |
//! | membership | §5.2 | `membership.rs`, `removal.rs`, `views.rs` | Agreement, Report | who has to end an epoch, and which batches of the others count |
//! | progress | | `progress.rs` | Progress | the batches that no replica needs, and who can join |
//! | greeting, rejoin | | [`crate::presence`], `knowledge.rs` | Greeting, Rejoin, RejoinReply | whether a replica has lost its log, and what it had sent |
//! | digests | | [`crate::digests`] | Digests | a replica whose rows differ from those of a majority |
//! | waits | | `waits.rs` | | the members for which the next epoch waits |
//! | relays | | `relays.rs` | Ends | what members that do not hear each other have ended |
//! | start | | `caught_up.rs` | | the batches that the peers had at the start |
//! | stop | | `stop.rs` | Stopping | a checkpoint that any later program can continue from |
//! | restart | | `recovery.rs` | | the epochs that are merged, or that have ended |
//! | checkpoints | | `checkpoint.rs`, [`crate::transfer`] | CheckpointRequest, CheckpointChunk, CheckpointAck, CheckpointGone | the state at an epoch |
//! | strict reads | | `reads.rs` | MembershipRequest, Membership | a snapshot with everything acknowledged |
//!
//! # Invariants
//!
//! - A replica adds nothing to an epoch that it has ended, and numbers of epochs only grow.
//! - The state after an epoch depends only on the state before it and the batches of the epoch.

mod adds;
pub mod batch;
mod cache;
mod caches;
mod caught_up;
mod chains;
mod checkpoint;
pub mod clock;
mod commit;
pub mod deletions;
mod early;
mod epochs;
mod execution;
#[cfg(test)]
mod exhaustive;
mod failure;
#[cfg(test)]
mod fuzz;
mod hot;
pub mod isolation;
mod knowledge;
mod lineage;
mod marks;
mod membership;
pub mod merge;
mod messages;
mod options;
mod origin;
mod progress;
pub mod rank;
mod reads;
mod recovery;
mod relays;
mod removal;
pub mod rules;
mod state;
mod stop;
#[cfg(test)]
mod tests;
pub mod views;
mod waits;

use pangea_core::guarantee::{Guarantee, Isolations, TortureSetting, Variant};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::protocol::{Cx, Input, ListedEpoch, Mark, Protocol, Setup, Status};
use pangea_core::topology::Topology;

use crate::inputs::Timer;
use crate::transfer;
use crate::{presence, streams};
use batch::Batch;
use cache::Cache;
use checkpoint::Configuration;
use knowledge::Known;
pub use merge::MergeRule;
use messages::HeardEnd;
pub use messages::Message;
pub use options::{Ack, Conflicts, Execution, Options, Validation};
use progress::Progress;
use state::State;
use views::ViewNumber;

/// A replica, or a cache of one.
pub struct GeoGauss {
    /// The state of the replica. A cache has it, too, and does not use it.
    state: State,
    cache: Option<Cache>,
}

impl streams::Host for GeoGauss {
    type Batch = Batch;
}

impl presence::Host for GeoGauss {
    type Memory = Known;
}

impl transfer::Host for GeoGauss {
    type Configuration = Configuration;
}

impl Protocol for GeoGauss {
    const NAME: &'static str = "geogauss";
    const REJOINS: bool = true;
    const CACHES: bool = true;
    const MARKS: &'static [Mark] = marks::ALL;
    const TORTURE_SETTINGS: &'static [TortureSetting] = options::TORTURE_SETTINGS;
    const VARIANTS: &'static [Variant] = options::VARIANTS;

    type Message = Message;
    type Timer = Timer;
    type Options = Options;

    fn isolations(options: &Options) -> Isolations {
        options.isolations()
    }

    fn guarantee(options: &Options) -> Guarantee {
        options.guarantee()
    }

    fn may_lose_commits(options: &Options) -> bool {
        options.ack != Ack::Replicated
    }

    fn may_lose_unnamed(options: &Options) -> bool {
        // A replica that is killed does not know which of its commits nobody had.
        Self::may_lose_commits(options)
    }

    fn warnings(options: &Options, topology: &Topology, me: NodeId) -> Vec<String> {
        options.warnings(topology.caches_of(me).count())
    }

    fn drawn_options(rng: &mut fastrand::Rng) -> Options {
        Options::drawn(rng)
    }

    fn scaled_down_options() -> Options {
        Options::scaled_down()
    }

    fn check_options(options: &Options, _: &Topology) -> Result<(), String> {
        options.check()
    }

    fn new(setup: Setup<Self>) -> Self {
        let cache = Cache::new(setup.me, &setup.topology);
        let me = setup.topology.home_of(setup.me).unwrap_or(setup.me);
        Self { state: State::new(Setup { me, ..setup }), cache }
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        if let Some(cache) = &mut self.cache {
            return cache.step(cx, input);
        }
        match input {
            Input::Restart(durable) => self.on_restart(cx, durable),
            Input::Submit(submissions) => self.on_submit(cx, submissions),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(Timer::Batch) => self.start_broadcast(cx, false),
            Input::Timer(Timer::Epoch) => self.on_epoch_timeout(cx),
            Input::Timer(Timer::Fetch) => {
                self.state.streams.on_fetch_timeout(cx, &self.state.replica);
                self.fetch_own(cx);
            }
            Input::Timer(Timer::Tick) => self.on_tick(cx),
            Input::Timer(Timer::Progress) => self.on_progress_timeout(cx),
            Input::Durable(position) => self.on_durable(cx, position),
            Input::PeerUp(peer) => self.on_peer_up(cx, peer),
            Input::PeerDown(peer) => self.on_peer_down(cx, peer),
            Input::Resume => self.run_queue(cx),
            Input::Timer(Timer::Rejoin) => {
                self.state.presence.on_rejoin_timeout(cx, &self.state.replica);
            }
            Input::Timer(Timer::Checkpoint) => self.state.checkpoints.rests = false,
            Input::Checkpointed(version) => self.on_checkpointed(cx, version),
            Input::CheckpointFailed(version) => self.on_checkpoint_failed(cx, version),
            Input::Stop => self.on_stop(cx),
            Input::Prefetched { .. } => unreachable!("GeoGauss fetches no rows"),
        }
        self.end_asking_caches(cx, false);
        self.settle_agreement(cx);
        self.follow_peers(cx);
        self.end_epoch_alone(cx);
        self.merge_ready(cx);
        self.end_rejoin(cx);
        self.run_queue(cx);
        self.checkpoint_if_due(cx);
        self.advance_stop(cx);
        self.feed_caches(cx);
    }

    fn status(&self) -> Status {
        self.cache.as_ref().map_or_else(|| self.state.status(), Cache::status)
    }

    fn confirmed(&self) -> Option<SnapshotVersion> {
        self.state.early.as_ref().map(|early| early.confirmed.epoch)
    }

    fn may_stop(&self) -> bool {
        self.cache.is_some() || self.state.stops.may_stop()
    }

    fn ends_alone(&self) -> bool {
        self.state.stops.ends_alone()
    }

    fn listed_epochs(&self) -> &[ListedEpoch] {
        &self.state.listed
    }

    fn agreed(&self) -> Option<(SnapshotVersion, u64)> {
        self.cache.is_none().then(|| self.state.agreed())
    }

    fn invariants(&self) {
        self.cache.iter().for_each(Cache::invariants);
        self.state.invariants();
    }
}

impl GeoGauss {
    fn on_message(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        if self.state.replica.topology.home_of(from).is_some() {
            return self.on_cache_message(cx, from, message);
        }
        if matches!(message, Message::Presence(_)) {
            self.handle(cx, from, message);
            for early in self.state.presence.take_admitted(from) {
                self.handle(cx, from, early);
            }
        } else if let Some(message) = self.state.presence.admit(cx, from, message) {
            self.handle(cx, from, message);
        }
    }

    fn handle(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        use presence::Message as Of;
        let is_of_rejoin =
            matches!(message, Message::Presence(Of::Rejoin { .. } | Of::RejoinReply { .. }));
        if let Err(refused) = message.check(self.state.replica.topology.node_count()) {
            return cx.mark(refused);
        }
        if !is_of_rejoin {
            // A rejoining replica does not count as heard from.
            self.note_heard(cx, from);
            if self.state.presence.is_asking() {
                return cx.mark("presence.not_while_rejoining");
            }
        }
        let State { streams, replica, transfer, .. } = &mut self.state;
        match message {
            Message::Keep { .. }
            | Message::Kept { .. }
            | Message::Collected { .. }
            | Message::CacheRequest { .. }
            | Message::CacheHead { .. } => cx.mark("geogauss.cache_of_another"),
            Message::Streams(message) => self.on_stream_message(cx, from, message),
            Message::Presence(message) => {
                if presence::on_message(self, cx, from, message) {
                    // The peers may not have heard of the epochs that it has ended.
                    self.send_eof_to_all(cx);
                }
            }
            Message::Transfer(message) => match transfer.on_message(cx, replica, from, message) {
                Some(transfer::Event::Checkpoint(incoming)) => {
                    streams.forget_gone();
                    self.on_checkpoint(cx, incoming);
                }
                Some(transfer::Event::Asked { from, transfer }) => {
                    self.send_checkpoint(cx, (from, transfer));
                }
                Some(transfer::Event::Lost) => self.retry_transfer(cx),
                None => {}
            },
            Message::Eof { through, reached, last, view } => {
                let own = &mut self.state.epochs.own_ends[from.index()];
                *own = through.max(*own);
                let is_heard = true;
                self.on_eof(cx, HeardEnd { source: from, through, reached, last, view, is_heard });
                self.relay_end(cx, from);
            }
            Message::Ends { ends } => self.on_ends(cx, from, ends),
            Message::Agreement { bytes } => self.on_agreement(cx, from, &bytes),
            Message::Report { seal, report } => self.on_report(cx, from, seal, &report),
            Message::Progress { applied, durable, view, decision, life, may_join, heads } => {
                let (view, life) = (ViewNumber(view), ViewNumber(life));
                let progress = Progress { applied, durable, view, decision, life, may_join };
                self.on_progress(cx, from, progress, heads);
            }
            Message::Stopping { is_settled } => self.state.stops.on_stopping(from, is_settled),
            Message::Digests { digests } => {
                let State { digests: own, replica, .. } = &mut self.state;
                let why = own.on_digests(cx, replica, from, digests);
                self.stop_if_differing(cx, why);
            }
            Message::MembershipRequest { token, joined } => {
                self.on_membership_request(cx, from, (token, ViewNumber(joined)));
            }
            Message::Membership { token, is_member, known } => {
                self.on_membership(cx, from, (token, is_member, known));
            }
        }
    }

    fn on_stream_message(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        message: streams::Message,
    ) {
        if let streams::Message::Ack { heads } = &message {
            self.note_own_found(heads[self.state.me().index()]);
        }
        if let streams::Message::Batch { bytes } = &message
            && self.state.is_after_end(bytes)
        {
            return cx.mark("geogauss.batch_after_end");
        }
        let is_of_sender =
            matches!(&message, streams::Message::Batch { bytes } if Batch::is_of(from, bytes));
        let State { streams, replica, .. } = &mut self.state;
        match streams.on_message(cx, replica, from, message) {
            None if is_of_sender => self.relay_batch(cx, from),
            Some(streams::Event::Gone { source, first }) => {
                self.retry_transfer(cx);
                let State { streams, replica, .. } = &mut self.state;
                streams.fetch_elsewhere(cx, replica, source, first);
            }
            // It counts like any other, and no client waits for it.
            Some(streams::Event::OwnBatch(_)) | None => {}
        }
    }

    /// The log is durable up to `position`.
    fn on_durable(&mut self, cx: &mut Cx<'_, Self>, position: LogPosition) {
        self.state.note_reserved(position);
        self.state.checkpoints.on_durable(position);
        self.state.streams.acknowledge(cx, &self.state.replica, position);
        self.announce_view(cx);
    }

    /// Both lanes to a peer are connected: messages sent earlier may be lost.
    fn on_peer_up(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        if self.state.replica.topology.home_of(peer).is_some() {
            return self.on_cache_up(cx, peer);
        }
        let State { replica, presence, stops, digests, .. } = &mut self.state;
        replica.is_up[peer.index()] = true;
        stops.forget(peer);
        digests.forget(peer);
        presence.forget_session(peer);
        if presence.is_asking() {
            return presence.ask(cx, replica, peer);
        }
        // The rest follows when the peer has greeted: it may be a node of another cluster.
        presence::greet(self, cx, peer);
    }

    /// The connection to a peer is lost.
    fn on_peer_down(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        if self.state.replica.topology.home_of(peer).is_some() {
            return self.on_cache_down(peer);
        }
        let State { replica, presence, transfer, .. } = &mut self.state;
        replica.is_up[peer.index()] = false;
        presence.forget_session(peer);
        transfer.pause(peer, cx.now.at);
    }
}
