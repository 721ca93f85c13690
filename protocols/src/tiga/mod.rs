//! Tiga: transactions are ordered by timestamps in the near future.
//!
//! From "Tiga: Accelerating Geo-Distributed Transactions with Synchronized Clocks". A coordinator
//! gives each transaction a timestamp, here called its [`Stamp`](stamp::Stamp), at which the
//! transaction should have arrived everywhere. Replicas keep it until their clocks have passed the
//! stamp, and take transactions in the order of their stamps. If it arrives in time everywhere, it
//! commits after one round trip. If it is late at a shard, the leader of the shard raises its
//! stamp, and all leaders must move it.
//!
//! ```text
//!                stamped 10                     clock passes 10
//!   coordinator  --+--------------------------------:-----------
//!   leader a       `--> [.. 7][10 T]   (waits)      :  at the head: ready --+--> released
//!   leader b       `-------> [10 T][12 ..]          :  at the head: ready --+--> released
//!                            by stamp               :         they tell each other
//! ```
//!
//! Each shard has n = 2f + 1 replicas, of which one is the leader. A transaction is committed on a
//! shard by one of two quorums. If a leader fails, another one rebuilds the log:
//!
//! ```text
//!   leader    ready --+-- result, stamp, prefix -->  coordinator
//!   follower  ready --+-- stamp, prefix ---------->    fast: a super quorum is equal
//!                     |
//!   leader    released, in the log -- synced ----->    slow: f + 1 have it in their logs
//!   follower  in the log ------------ synced ----->
//!
//!   new leader  <-- reports of f + 1: their logs, and what they accepted beyond them
//! ```
//!
//! Several shards have the order with watermarks. With the detective approach their leaders release
//! transactions first, and their logs show whether they agree. Then divisible transactions have a
//! fast path over all of their shards.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | coordinators | §3.1 | `coordinator.rs`, `transactions.rs`, `delays.rs` | Submit | a stamp, and who waits for it |
//! | headroom | §3.1, figure 13 | `headroom.rs` | FastReplies | how late stamps have to be |
//! | clocks | §3.1, §5.7 | `clocks.rs` | Progress | how far this clock is from the others |
//! | stamps | §3.1 | `stamp.rs`, `ceiling.rs` | | a place in the serial order |
//! | arrival, expiry and release | §3.2, §3.3, Algorithm 1 | `order.rs` | | the stamp on this shard |
//! | timestamp agreement | §3.5, §3.6 | `timestamp_agreement.rs` | Stamped, Ready | one stamp on all shards |
//! | watermarks | §6 | `watermarks.rs` | Stamped, Watermark | that nothing will come before a stamp |
//! | bounded clocks | §6 | `bounds.rs` | | the same, from clocks |
//! | notices | §3.5 | `notices.rs` | Notices | the stamps and promises of other leaders |
//! | detection | §3.8 | `shards/detection.rs` | Items, Close | whether all logs have one stamp |
//! | several shards | | `shards.rs` | Committed, Subscribe, Unsubscribe, Resubscribe, Items, Truncated, Outcome, LookupRequest, LookupReply | the outcome on all shards |
//! | cells | | `cells.rs`, `leading.rs`, `strides.rs` | | the transactions of a version |
//! | fast path | §3.4 | `fast_path.rs`, `fast_replies.rs` | FastReplies | the result, after one round trip |
//! | fast path over shards | §3.4, §3.8 | `shards/fast_commit.rs` | FastReplies, Close, Closed | the result, after one round trip |
//! | prefix hashes | §3.4, report App. D | `hashes.rs` | | equal transactions before one |
//! | quorums, commit point | §3.4, §3.7 | `quorum.rs` | | that it is committed on a shard |
//! | log synchronization | §3.7 | `log.rs`, `log_sync.rs` | LogSync, Synced, Fetch, Found | f + 1 replicas have the log |
//! | relays | | `relays.rs` | Submit, LogSync, Progress | that a node without a link to a leader goes on |
//! | commit | §3.7 | `commit.rs` | | every outcome |
//! | views | §4 | `views.rs`, `decided.rs`, `placement.rs` | Agreement, View | who leads |
//! | distance and load | §3.8 | `proximity.rs` | Progress | where leaders are near the clients |
//! | view change | §4 | `view_change.rs`, `verification.rs` | ViewChange, Prepare, Prepared, Proposal, StartView | with which logs |
//! | the log of a new leader | §3.7, §4 | `rebuild.rs` | | everything that may be committed |
//! | progress | | `progress.rs`, `pace.rs` | Progress | who is alive, and what has to be sent again |
//! | greeting | | `presence/`, `knowledge.rs` | Greeting | whether a replica has lost its log |
//! | nodes of two programs | | `programs.rs` | Progress | whether a cell may be run |
//! | lost disks | | `rejoin.rs`, `presence/` | Rejoin, RejoinReply | the stamps and promises of a replica |
//! | strict reads | | `reads.rs` | FreshRequest, FreshReply | a snapshot with everything acknowledged |
//! | restart | §4 | `recovery.rs` | | the log, and what was promised |
//! | checkpoints | §4, report Alg. 6 | `checkpoint.rs`, `transfer/` | CheckpointRequest, CheckpointChunk | rows, and all that a restart needs |
//! | collection | | `collection.rs`, `done.rs` | Progress | that no peer needs it |
//! | digests | | `progress.rs` | Digests | that replicas are equal |
//! | waits | | `waits.rs` | Progress | the nodes that this one waits for |
//! | stop | | `stop.rs` | Progress | that another replica leads, or that nothing is left |
//!
//! The queue and its floors are in [`pangea_core::exec::timed`], because they know no messages.
//!
//! # The rules
//!
//! 1. *Accepted.* A leader accepts a transaction above the floors of its footprint. If the stamp is
//!    too small, the leader raises it to just above the floor.
//! 2. *Ready.* A transaction is ready when the clock has passed its stamp and no pending one with a
//!    smaller stamp conflicts with it. Its floors are raised at this moment, before it runs, so
//!    that nothing that conflicts can come before it any more.
//! 3. *Moved.* A leader that hears a larger stamp of a pending transaction moves it there. Stamps
//!    only grow. If the transaction was ready, its run is void.
//! 4. *Released.* With `heads`, when all of its leaders have it ready at one stamp. With
//!    `watermarks`, when all have told their stamps, and nobody accepts anything below the largest.
//! 5. *Committed.* On the fast path, a super quorum with the leader has the transaction at one
//!    stamp and after the same transactions. With several shards, a super quorum of each of them
//!    has it at the coordinator's stamp, and all other shards have closed its cell. On the slow
//!    path, f + 1 replicas have it durably in the log of one view. In both cases the leader's
//!    result counts, and leaders of all shards have one stamp.
//! 6. *Recovered.* A new leader asks f + 1 replicas. It takes the longest log of the newest view,
//!    and the unsynced transactions that ⌈f/2⌉ + 1 of them accepted in time at one stamp, in this
//!    view, above all conflicting ones of the log and above the closed stamp.
//! 7. *Floor of a view.* Its leader accepts nothing at or below the promises, closed stamps and
//!    reads of the reports, and says so in its log.
//!
//! # Invariants
//!
//! - No transaction is pending at or below a floor of its footprint, unless it is ready itself.
//! - A ready transaction is at the head until it is released or moves.
//! - A transaction is released at one stamp on all shards.
//! - Transactions that conflict are released in the order of their stamps, on each shard.
//! - The logs of one view are beginnings of its leader's log.
//! - A committed transaction is in the logs of all later views, at its stamp, and depends on the
//!   same transactions as before.
//!
//! # Differences from the paper
//!
//! Published forms of the protocol tell stamps at different moments. `exhaustive.rs` visits every
//! order of events in small cases, and finds the first three of the following errors, and those of
//! replication.
//!
//! - **A stamp that was raised is told at once.** In Algorithm 1, leaders tell stamps after the
//!   execution only. Then two leaders can wait for each other forever: T1 is late at one shard and
//!   is raised behind T2 there, and is before T2 at the other shard. Each leader waits for the word
//!   of the other on the transaction that the other has second.
//! - **Readiness is told at the head only, and not on arrival or expiry.** §3.8 says that leaders
//!   agree before the execution. If they do so while other transactions are before, a transaction
//!   can be released although one before it on another shard has not begun to be agreed on. A chain
//!   of such transactions contradicts real time. The agreement before the execution is right if
//!   *ready* takes the place of *executed*.
//! - **With bounded clocks, stamps are exchanged.** §6 omits all coordination between leaders. A
//!   transaction that is late on one shard then has different stamps, and two transactions run in
//!   opposite orders on two shards.
//! - **A stamp is raised to just above the floor**, and not to the clock. A clock that is ahead
//!   would keep rows unusable until the other clocks reach it.
//! - **Equal stamps do not exist**, because each issuer has its own.
//! - **Floors are kept for a time only**, and for ranges, too.
//! - **`watermarks` is new**: it needs no second round, and its stamps agree with real time.
//! - **The log is an order for each key**, and not a list by timestamps. A follower keeps unsynced
//!   transactions that commute with later ones of the leader's log, and a new leader recovers them.
//!   By §3.7 and §4 they would be lost although a super quorum has replied: see `rebuild.rs`.
//! - **A prefix hash covers dependencies of dependencies**, and transactions of a bounded time. The
//!   report's hashes of keys cover the direct ones alone. A client could then have a result that
//!   was computed from a transaction that no log has: see `hashes.rs`.
//! - **The leader's fast reply does not count as its log**: see `quorum.rs`.
//! - **Floors and closed stamps outlive a leader**: see `rebuild.rs`. Readers leave no entry.
//! - **The logs with which a view begins are one decision** of all shards. In the paper, each
//!   leader begins when it has verified its log, and a second failure could leave a transaction in
//!   the log of one shard alone: see `verification.rs`.
//! - **Entries are revoked, and not runs** (§3.5, §3.8). With the detective approach a transaction
//!   that has different stamps in the logs of its shards is void on all of them, and gets another
//!   number and stamp. The paper's leaders agree in up to two rounds, and run it again.
//! - **Several shards run a cell when all of their logs are committed up to it.** Rows of other
//!   shards that they read can't be lost then: see `shards.rs`. Leaders promise when one of them
//!   asks (`notices.rs`), so an idle cluster exchanges no watermarks.

mod bounds;
mod ceiling;
pub mod cells;
mod checkpoint;
mod clocks;
mod collection;
mod commit;
mod coordinator;
mod decided;
mod delays;
mod done;
#[cfg(test)]
mod exhaustive;
mod fast_path;
mod fast_replies;
#[cfg(test)]
mod fuzz;
pub mod hashes;
mod headroom;
mod knowledge;
mod leading;
mod log;
mod log_sync;
mod marks;
mod messages;
mod notices;
mod options;
pub mod order;
mod pace;
mod placement;
mod programs;
mod progress;
mod proximity;
pub mod quorum;
mod reads;
pub mod rebuild;
mod recovery;
mod rejoin;
mod relays;
mod shards;
pub mod stamp;
mod state;
mod stop;
mod strides;
pub mod timestamp_agreement;
mod transactions;
pub mod verification;
mod view_change;
mod views;
mod waits;
pub mod watermarks;

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Cx, Input, Mark, Protocol, Setup, Status, Words};
use pangea_core::topology::Topology;
use pangea_core::txn::CodeDigest;

use crate::presence::{self, RejoinTimer};
pub use decided::Decided;
use decided::View;
pub use log::Suffix;
use log::{Position, ViewNumber};
pub use messages::Message;
pub use options::{Approach, Options, Ordering, Path};
use rejoin::Known;
use state::State;

/// A replica.
pub struct Tiga {
    state: State,
}

/// The timers of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The next cell is over.
    Release,
    /// The clock of agreement ticks.
    Tick,
    /// The replica reports its progress to its peers.
    Progress,
    /// The replica repeats its `Rejoin` requests to its peers.
    Rejoin,
    /// A checkpoint may be tried again.
    Checkpoint,
}

/// The timers that it has in common with protocols over an input log, for the tests of all.
impl From<crate::inputs::Timer> for Timer {
    fn from(timer: crate::inputs::Timer) -> Self {
        use crate::inputs::Timer as Of;
        match timer {
            Of::Batch | Of::Epoch | Of::Fetch => Self::Release,
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

impl presence::Host for Tiga {
    type Memory = Known;
}

impl Protocol for Tiga {
    const NAME: &'static str = "tiga";
    const NEEDS_CLOCKS: bool = true;
    const PARTITIONED: bool = true;
    const PARTIAL: bool = true;
    const REJOINS: bool = true;
    const WORDS: Words = options::WORDS;
    const MARKS: &'static [Mark] = marks::ALL;
    const TORTURE_SETTINGS: &'static [TortureSetting] = options::TORTURE_SETTINGS;
    const VARIANTS: &'static [Variant] = options::VARIANTS;

    type Message = Message;
    type Timer = Timer;
    type Options = Options;

    fn guarantee(_: &Options) -> Guarantee {
        Options::guarantee()
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

    fn check_options(options: &Options, topology: &Topology) -> Result<(), String> {
        options.check(topology)
    }

    fn new(setup: Setup<Self>) -> Self {
        Self { state: State::new(setup) }
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        self.note_step(cx);
        if Self::is_event(&input) {
            self.wake(cx);
        }
        match input {
            Input::Restart(durable) => self.on_restart(cx, durable),
            Input::Submit(submissions) => self.on_submit(cx, submissions),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(Timer::Release) | Input::Resume => {}
            Input::Timer(Timer::Tick) => self.on_tick(cx),
            Input::Timer(Timer::Progress) => self.on_progress_timeout(cx),
            Input::Timer(Timer::Rejoin) => {
                self.state.presence.on_rejoin_timeout(cx, &self.state.replica);
            }
            Input::Durable(position) => self.on_durable(cx, position),
            Input::PeerUp(peer) => self.on_peer_up(cx, peer),
            Input::PeerDown(peer) => self.on_peer_down(cx, peer),
            Input::Stop => self.on_stop(cx),
            Input::Timer(Timer::Checkpoint) => self.state.checkpoints.rests = false,
            Input::Checkpointed(version) => self.on_checkpointed(cx, version),
            Input::CheckpointFailed(version) => self.on_checkpoint_failed(cx, version),
            Input::Prefetched { .. } => unreachable!("Tiga fetches no rows"),
        }
        self.settle_agreement(cx);
        self.send_submits(cx);
        self.append_arrived(cx);
        self.lead_if_durable(cx);
        self.advance_view_change(cx);
        self.release(cx);
        self.reply_ready(cx);
        self.send_log(cx);
        self.hand_on_log(cx);
        self.send_replies(cx);
        self.advance_commit(cx);
        self.answer_reads(cx);
        self.answer_fresh(cx);
        self.end_rejoin(cx);
        self.refuse_foreign(cx);
        self.checkpoint_if_due(cx);
        self.advance_stop(cx);
        self.state.published = cx.store.published();
    }

    fn status(&self) -> Status {
        self.state.status()
    }

    fn may_stop(&self) -> bool {
        self.state.stop.as_ref().is_some_and(|stop| stop.may_end)
    }

    fn ends_alone(&self) -> bool {
        self.state.stop.as_ref().is_some_and(|stop| stop.is_alone)
    }

    fn agreed(&self) -> Option<(SnapshotVersion, u64)> {
        Some(self.state.agreed())
    }

    fn invariants(&self) {
        self.state.invariants();
    }
}

impl Tiga {
    fn on_message(&mut self, cx: &mut Cx<'_, Self>, node: NodeId, message: Message) {
        if let Err(refused) = message.check(self.state.cluster.node_count()) {
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

    /// Handles a message of a replica of this shard, which is known by its number among them.
    fn handle(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        let node = self.state.replica.node(from);
        use presence::Message as Of;
        let is_of_rejoin =
            matches!(message, Message::Presence(Of::Rejoin { .. } | Of::RejoinReply { .. }));
        if !is_of_rejoin {
            // A rejoining replica does not count as heard.
            self.state.views.note_heard(node, cx.now.at);
            if self.state.presence.is_asking() {
                return cx.mark("presence.not_while_rejoining");
            }
        }
        match message {
            Message::Presence(message) => {
                presence::on_message(self, cx, from, message);
            }
            Message::LogSync { suffix, closed } => self.on_log_sync(cx, (&suffix, closed)),
            Message::Synced { view, upto } => {
                self.on_synced(from, ViewNumber(view), Position(upto));
            }
            Message::Agreement { bytes } => self.on_agreement(cx, from, &bytes),
            Message::ViewChange { view, report } => {
                self.on_view_change(cx, from, ViewNumber(view), &report);
            }
            Message::StartView { suffix } => self.on_start_view(cx, &suffix),
            Message::Prepare { view, transactions } => {
                self.on_prepare(cx, from, ViewNumber(view), transactions);
            }
            Message::Prepared { view } => self.on_prepared(from, ViewNumber(view)),
            Message::Transfer(message) => self.on_transfer(cx, from, message),
            Message::Digests { digests } => self.on_digests(cx, from, digests),
            message => self.handle_of_any_shard(cx, node, message),
        }
    }

    /// Handles a message of a replica of another shard.
    fn handle_of_other_shard(&mut self, cx: &mut Cx<'_, Self>, node: NodeId, message: Message) {
        self.state.views.note_heard(node, cx.now.at);
        let is_of_delivery = matches!(
            message,
            Message::Subscribe { .. }
                | Message::Unsubscribe {}
                | Message::Resubscribe { .. }
                | Message::Truncated { .. }
                | Message::Committed { .. }
                | Message::Items { .. }
                | Message::LookupRequest { .. }
        );
        let is_asking = self.state.presence.is_asking();
        if is_asking && !is_of_delivery {
            return cx.mark("presence.not_while_rejoining");
        }
        self.handle_of_any_shard(cx, node, message);
    }

    /// Handles a message that nodes of all shards send to each other.
    fn handle_of_any_shard(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        match message {
            Message::Submit { transactions } => self.on_transactions(cx, from, transactions),
            Message::Fetch { txns } => self.on_fetch(cx, from, &txns),
            Message::Found { transactions } => self.on_found(cx, transactions),
            Message::Proposal { view, proposal } => {
                self.on_proposal(cx, from, ViewNumber(view), &proposal);
            }
            Message::View { view, leaders, is_detective, started, base, log } => {
                let view = View { number: ViewNumber(view), leaders, is_detective };
                let start = (ViewNumber(started), ViewNumber(base), log);
                self.on_view(cx, from, view, start);
            }
            Message::Progress { .. } => self.on_progress(cx, from, message),
            Message::FastReplies { view, replies } => {
                self.on_fast_replies(cx, from, ViewNumber(view), &replies);
            }
            Message::Close { view, cell, is_answered } => {
                self.on_close(cx, from, (ViewNumber(view), cell), is_answered);
            }
            Message::Closed { view, cell } => self.on_closed(cx, from, ViewNumber(view), cell),
            Message::FreshRequest { token } => self.on_fresh_request(cx, from, token),
            Message::FreshReply { token, view, leads, version: end, told } => {
                let answer = reads::Answer { view: ViewNumber(view), leads, end, told };
                self.on_fresh_reply(cx, from, (token, answer));
            }
            message => self.handle_between_shards(cx, from, message),
        }
    }

    /// Handles a message between nodes of different shards.
    fn handle_between_shards(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        match message {
            Message::Notices { view, notices } => {
                self.on_notices(cx, from, ViewNumber(view), notices);
            }
            Message::Subscribe { kept, has } => {
                self.on_subscribe(cx, from, (SnapshotVersion(kept), has));
            }
            Message::Resubscribe { has } => self.on_resubscribe(cx, from, has),
            Message::Truncated { upto } => self.on_truncated(cx, from, upto),
            Message::Unsubscribe {} => self.on_unsubscribe(from),
            Message::Committed { view, through, cells, listed } => {
                let through = (ViewNumber(view), SnapshotVersion(through));
                self.on_committed(from, through, (&cells, SnapshotVersion(listed)));
            }
            Message::Items { items } => self.on_items(cx, from, &items),
            Message::Outcome { version, result } => self.on_outcome(cx, version, &result),
            Message::LookupRequest { token, keys } => {
                Self::on_lookup_request(cx, from, token, &keys);
            }
            Message::LookupReply { token, rows } => {
                self.on_lookup_reply(cx, from, token, rows);
            }
            Message::Submit { .. }
            | Message::Fetch { .. }
            | Message::Found { .. }
            | Message::Proposal { .. }
            | Message::View { .. }
            | Message::Progress { .. }
            | Message::FreshRequest { .. }
            | Message::FreshReply { .. }
            | Message::Close { .. }
            | Message::Closed { .. }
            | Message::Presence(_)
            | Message::Transfer(_)
            | Message::Digests { .. }
            | Message::LogSync { .. }
            | Message::Synced { .. }
            | Message::Agreement { .. }
            | Message::ViewChange { .. }
            | Message::StartView { .. }
            | Message::Prepare { .. }
            | Message::Prepared { .. }
            | Message::FastReplies { .. } => cx.mark("tiga.message_of_another_shard"),
        }
    }

    /// Both lanes to a peer are connected: messages sent earlier may be lost.
    fn on_peer_up(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        (self.state.is_up[node.index()], self.state.has_left[node.index()]) = (true, false);
        self.state.views.told[node.index()].forget_end();
        self.state.delays.forget(node.index());
        self.state.relays.forget(node);
        self.state.pace.forget(node);
        self.state.clocks.forget(node);
        let Some(peer) = self.state.replica.group.member(node) else {
            return self.on_other_shard_up(cx, node);
        };
        let State { replica, presence, digests, .. } = &mut self.state;
        replica.is_up[peer.index()] = true;
        digests.forget(peer);
        presence.forget_session(peer);
        if presence.is_asking() {
            return presence.ask(cx, replica, peer);
        }
        // The rest follows when the peer has greeted: it may be a node of another cluster.
        presence::greet(self, cx, peer);
    }

    /// The connection to a peer is lost.
    fn on_peer_down(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        (self.state.is_up[node.index()], self.state.stop_known_by[node.index()]) = (false, false);
        self.state.relays.forget(node);
        self.state.pace.forget(node);
        // It may come back with another program.
        let told = &mut self.state.views.told[node.index()];
        self.state.has_left[node.index()] |= told.is_leaving;
        told.forget_stop();
        told.kept.code = CodeDigest::default();
        let Some(peer) = self.state.replica.group.member(node) else {
            return self.on_other_shard_down(cx, node);
        };
        let State { replica, presence, leading, transfer, .. } = &mut self.state;
        replica.is_up[peer.index()] = false;
        transfer.pause(peer, cx.now.at);
        presence.forget_session(peer);
        if let Some(leading) = leading {
            leading.sent[peer.index()] = None;
        }
    }
}
