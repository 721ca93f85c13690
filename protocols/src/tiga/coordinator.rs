//! The coordinator: every replica stamps the transactions of its clients and sends them to all
//! replicas (§3.1).
//!
//! ```text
//!   client    coordinator                  leader                     followers
//!     | submit  |                            |                            |
//!     |-------->| stamps it                  |                            |
//!     |         |== Submit ================> | persisted by each <========|
//!     |         |                            | in the log, cell by cell   |
//!     |         | <================ LogSync =|=========== LogSync ======> |
//!     |         | <==== Synced =============>|<================ Synced ==>|
//! ```
//!
//! A region may have a non-voting replica alone, which coordinates for its clients (§2, figure 8):
//! it gets the log, and counts nowhere.
//!
//! A coordinator has a copy of the data, too. It answers when the log up to the transaction is
//! committed and has been run here.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::exec::ordered::ShardOutcome;
use pangea_core::exec::{Overlay, declared_footprint, is_footprint_declared, optimistic};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::{Cx, Request as ClientRequest, Submission};
use pangea_core::time::Timestamp;
use pangea_core::txn::{Abort, Footprint, Outcome, Program};

use super::Tiga;
use super::commit::is_footprint_certain;
use super::fast_replies::RunResult;
use super::headroom::Headroom;
use super::log::ViewNumber;
use super::messages::Message;
use super::options::Path;
use super::quorum::{Replies, Sizes};
use super::shards::ByShard;
use super::stamp::{Issuer, Role, Stamp};
use super::state::State;
use super::transactions::{self, Stamped};
use crate::inputs::{not_rejoined, refuses_clients, slots_stay, stopping, too_many_in_flight};
use crate::request::{Request, check_program};

/// The transactions of this replica's clients.
pub(super) struct Coordinator {
    /// The number of the next transaction.
    pub next_sequence: u64,
    pub issuer: Issuer,
    pub in_flight: BTreeMap<TxnId, InFlight>,
    /// Those of which clients were told on the fast path, and that are not published here, with
    /// their cells.
    pub unsettled: BTreeMap<TxnId, SnapshotVersion>,
    /// Those of this step, which are sent at its end.
    pub unsent: Vec<Arc<Stamped>>,
    pub headroom: Headroom,
    /// With one shard: whether a super quorum's replies are expected before the logs.
    pub expects_replies: bool,
}

/// Which transactions in flight are sent again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Resend {
    /// All of them, to one node.
    AllTo(NodeId),
    /// Those that were last sent at this time or before, to all replicas of their shards.
    Before(Timestamp),
}

/// A transaction whose client waits.
pub(super) struct InFlight {
    pub ticket: Ticket,
    pub stamped: Arc<Stamped>,
    /// When it was stamped, and in which view.
    pub stamped_at: Timestamp,
    pub view: ViewNumber,
    /// When it was last sent.
    pub sent_at: Timestamp,
    /// The result of its run, if the cell was run here.
    pub result: Option<RunResult>,
    /// The same with several shards.
    pub outcome: Option<ShardOutcome>,
    pub tries: Tries,
    /// §3.4: the fast replies, if there is a fast path.
    pub replies: Option<Replies<RunResult>>,
    /// The same with several shards.
    pub by_shard: Option<ByShard>,
    /// Whether it should be in time, and so whether it tells if the headroom suffices.
    pub has_headroom: bool,
    /// Whether a replica got it too late.
    pub is_late: bool,
    /// Whether replies have committed it, and not the logs.
    pub is_by_replies: bool,
}

/// How often a transaction had to be stamped again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    /// Because it has left its footprint.
    pub left: u32,
    /// Since then, because it was late on some of its shards (§3.8).
    pub late: u32,
}

impl Coordinator {
    /// The coordinator of a node that has issued nothing.
    pub(super) fn new(me: NodeId) -> Self {
        Self {
            next_sequence: 1,
            issuer: Issuer::new(me, Role::Coordinator, Stamp::ZERO),
            in_flight: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            unsent: Vec::new(),
            headroom: Headroom::default(),
            expects_replies: false,
        }
    }
}

impl Tiga {
    pub(super) fn on_submit(&mut self, cx: &mut Cx<'_, Self>, submissions: Vec<Submission>) {
        for Submission { ticket, request } in submissions {
            match request {
                ClientRequest::Fresh => self.await_fresh(cx, ticket),
                ClientRequest::Move(_) => {
                    cx.reply(ticket, Outcome::Aborted(slots_stay()));
                }
                // Serializable is never less than what was asked for.
                ClientRequest::Commit(program, _) => self.accept(cx, ticket, program),
            }
        }
        self.ask_for_new_reads(cx);
    }

    /// Refuses a transaction, answers it from a snapshot if it only reads, or stamps it.
    fn accept(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket, program: Program) {
        if let Some(abort) = self.refusal(cx, &program) {
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        if self.read_snapshot(cx, ticket, &program) {
            return;
        }
        if self.state.is_divided() {
            return self.look_up(cx, ticket, program, 0);
        }
        let footprint = self.found_footprint(cx, &program);
        self.stamp(cx, (ticket, Tries::default()), program, (footprint, ShardSet::default()));
    }

    /// §3.1: gives a transaction its stamp.
    pub(super) fn stamp(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (ticket, tries): (Ticket, Tries),
        program: Program,
        (footprint, shards): (Option<Footprint>, ShardSet),
    ) {
        let now = self.state.clock_us(cx);
        let by_shard = self.state.no_replies_of_shards(&program, footprint.is_some(), shards);
        let wants_replies = by_shard.is_some() || self.wants_replies(&program);
        let delay = self.time_to_arrive(shards, wants_replies, cx.now.at);
        let headroom = self.state.headroom_for(shards, wants_replies, tries.late);
        let delay = delay + headroom.unwrap_or(0);
        let replies = self.state.no_replies();
        let me = self.state.node;
        let view = self.state.views.view.number;
        self.state.proximity.note_begun();
        let coordinator = &mut self.state.coordinator;
        let txn = TxnId::new(me, coordinator.next_sequence);
        coordinator.next_sequence += 1;
        let stamp = coordinator.issuer.issue(now.saturating_add_signed(delay));
        cx.named(ticket, txn.sequence());
        let request = Request { txn, program, footprint, shards, origin: None };
        let stamped = Arc::new(Stamped { stamp, code: self.state.code, request });
        coordinator.unsent.push(stamped.clone());
        let sent_at = cx.now.at;
        let (result, outcome) = (None, None);
        let in_flight = InFlight {
            ticket,
            stamped,
            stamped_at: sent_at,
            view,
            sent_at,
            result,
            outcome,
            tries,
            replies,
            by_shard,
            has_headroom: headroom.is_some(),
            is_late: false,
            is_by_replies: false,
        };
        coordinator.in_flight.insert(txn, in_flight);
    }

    fn refusal(&self, cx: &mut Cx<'_, Self>, program: &Program) -> Option<Abort> {
        if self.state.stop.is_some() {
            return Some(stopping());
        }
        if self.state.rejoining().is_some() {
            return Some(not_rejoined());
        }
        if let Some(why) = self.state.refused() {
            return Some(refuses_clients(why));
        }
        let looked_up = self.state.shards.as_ref().map_or(0, |shards| shards.lookups.len());
        if self.state.coordinator.is_full(looked_up) {
            cx.mark("tiga.too_many_in_flight");
            return Some(too_many_in_flight(None, &self.state.replica.topology));
        }
        check_program(&self.state.registry, program).err()
    }

    /// Answers a transaction that only reads from the last published cell, once that has all that
    /// clients of this replica were told of. Returns whether it only reads.
    fn read_snapshot(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket, program: &Program) -> bool {
        let Program::Call { procedure, args } = program else { return false };
        let code = self.state.registry.procedure(*procedure);
        if !code.is_some_and(|code| code.is_read_only(args)) {
            return false;
        }
        // The rows of other shards are not here.
        let is_here = || {
            let declared = declared_footprint(&self.state.registry, *procedure, args);
            let own = ShardSet::one(self.state.shard);
            declared.is_some_and(|declared| self.concerned(&declared) == own)
        };
        if self.state.is_divided() && !is_here() {
            return false;
        }
        self.state.waiting_reads.push((ticket, program.clone()));
        self.answer_reads(cx);
        true
    }

    /// Answers the reads for which enough is published.
    pub(super) fn answer_reads(&mut self, cx: &mut Cx<'_, Self>) {
        let (at, nothing) = (cx.store.published(), Overlay::new());
        if at < self.state.told_version.max(self.state.shown_version) {
            if !self.state.waiting_reads.is_empty() {
                cx.mark("tiga.read_waits");
            }
            return;
        }
        // They take no place in the order, so they have no names.
        let txn = TxnId::new(self.state.node, 0);
        for (ticket, program) in std::mem::take(&mut self.state.waiting_reads) {
            cx.mark("tiga.read_only");
            let run = optimistic::run(&self.state.registry, &program, cx.store, at, &nothing);
            let outcome = match run.result {
                Ok(result) => Outcome::Committed { txn, version: at, result },
                Err(abort) => Outcome::Aborted(abort),
            };
            cx.reply(ticket, outcome);
        }
    }

    /// The footprint of a program that does not declare it, as a run on a snapshot finds it. If it
    /// is too large to be sent, it is left out.
    fn found_footprint(&self, cx: &Cx<'_, Self>, program: &Program) -> Option<Footprint> {
        let Program::Call { procedure, args } = program else { return None };
        let registry = &self.state.registry;
        if is_footprint_declared(registry, *procedure, args) {
            return None;
        }
        let (at, nothing) = (cx.store.published(), Overlay::new());
        let found = optimistic::probe(registry, program, cx.store, at, &nothing);
        let txn = TxnId::new(self.state.node, 0);
        let request = Request {
            txn,
            program: program.clone(),
            footprint: Some(found),
            shards: ShardSet::default(),
            origin: None,
        };
        request.is_small().then_some(request.footprint).flatten()
    }

    /// §6: whether the stamp of a transaction of one shard should leave the time for replies. If
    /// the program may leave its footprint, the leader does not reply before the logs commit.
    fn wants_replies(&self, program: &Program) -> bool {
        let State { coordinator, options, registry, .. } = &self.state;
        let is_quicker = coordinator.expects_replies && is_footprint_certain(registry, program);
        self.state.has_hashes() && (options.path == Path::Super || is_quicker)
    }

    /// §3.1: by how much a stamp is in the future, in microseconds: a transaction has arrived at
    /// the leader then, and on the fast path at a super quorum.
    fn time_to_arrive(&self, shards: ShardSet, wants_replies: bool, now: Timestamp) -> i64 {
        let views = &self.state.views;
        let shards = if shards.is_empty() { ShardSet::one(self.state.shard) } else { shards };
        let leaders = shards.iter().filter_map(|shard| views.leader_of(shard));
        let to_leader = leaders.map(|leader| self.delay_to(leader, now)).max().unwrap_or(0);
        if !wants_replies {
            return to_leader;
        }
        let to_quorums = shards.iter().map(|shard| self.delay_to_super_quorum(shard, now));
        to_quorums.max().unwrap_or(0).max(to_leader)
    }

    /// How long a message to each of the nearest super quorum of a shard takes.
    fn delay_to_super_quorum(&self, shard: ShardId, now: Timestamp) -> i64 {
        let group = &self.state.groups[usize::from(shard.0)];
        let mut delays: Vec<i64> = group.iter().map(|node| self.delay_to(*node, now)).collect();
        delays.sort_unstable();
        delays[Sizes::of(delays.len()).super_quorum() - 1]
    }

    /// How long a transaction takes to a replica: if that does not hear this node, another replica
    /// of its shard hands the transaction on.
    fn delay_to(&self, node: NodeId, now: Timestamp) -> i64 {
        let State { cluster, node: here, .. } = &self.state;
        let direct = self.delay_of_link(node);
        if node == *here || self.state.are_linked(*here, node, now) {
            return direct;
        }
        let shard = |node: NodeId| cluster.nodes[node.index()].shard;
        let is_relay = |other: &NodeId| {
            shard(*other) == shard(node)
                && ![*here, node].contains(other)
                && self.state.are_linked(*here, *other, now)
        };
        let relays = cluster.node_ids().filter(is_relay);
        let by = |relay: NodeId| {
            self.delay_of_link(relay) + cluster.one_way_between(relay, node).us as i64 + FLUSH_US
        };
        relays.map(by).min().map_or(direct, |by_relay| by_relay.max(direct))
    }

    /// How long a message to a node takes, by both clocks, in microseconds: negative if its clock
    /// is behind by more.
    fn delay_of_link(&self, node: NodeId) -> i64 {
        let State { cluster, node: here, delays, .. } = &self.state;
        if node == *here {
            return 0;
        }
        let configured = cluster.one_way_between(*here, node).us as i64;
        delays.to(node.index()).unwrap_or(configured).clamp(-MOST_DELAY_US, MOST_DELAY_US)
    }

    /// Sends the transactions of this step to all replicas of their shards, and takes them itself.
    pub(super) fn send_submits(&mut self, cx: &mut Cx<'_, Self>) {
        let unsent = std::mem::take(&mut self.state.coordinator.unsent);
        if unsent.is_empty() {
            return;
        }
        let last = unsent.iter().map(|stamped| stamped.stamp.us()).max().unwrap_or_default();
        self.state.raise_ceiling(cx, last);
        self.send_transactions(cx, &unsent, None);
        self.ask_to_close(cx, &unsent);
        cx.reached(Milestone::Batched, self.state.coordinator.next_sequence);
    }

    /// Sends the transactions in flight again to one node, or to all nodes those that were last
    /// sent before a time.
    pub(super) fn submit_again(&mut self, cx: &mut Cx<'_, Self>, to: Resend) {
        let now = cx.now.at;
        let in_flight = self.state.coordinator.in_flight.values_mut();
        let all: Vec<Arc<Stamped>> = match to {
            Resend::AllTo(_) => in_flight.map(|it| it.stamped.clone()).collect(),
            Resend::Before(time) => in_flight
                .filter(|it| it.sent_at <= time)
                .map(|it| {
                    it.sent_at = now;
                    it.stamped.clone()
                })
                .collect(),
        };
        if all.is_empty() {
            return;
        }
        cx.mark("tiga.submitted_again");
        let to = match to {
            Resend::AllTo(node) => Some(node),
            Resend::Before(_) => None,
        };
        self.send_transactions(cx, &all, to);
    }

    /// Sends transactions to the replicas of their shards, or to one node only. This node is one of
    /// them.
    fn send_transactions(
        &mut self,
        cx: &mut Cx<'_, Self>,
        all: &[Arc<Stamped>],
        to: Option<NodeId>,
    ) {
        let last = all.iter().map(|stamped| stamped.stamp.us()).max().unwrap_or_default();
        let State { ceiling, coordinator, .. } = &self.state;
        let after = ceiling.record(last, coordinator.next_sequence);
        for shard in (0..self.state.cluster.partitions.shards()).map(ShardId) {
            let is_of = |node: &NodeId| self.state.cluster.nodes[node.index()].shard == shard;
            if to.is_some_and(|to| !is_of(&to)) {
                continue;
            }
            let of_shard = all.iter().filter(|stamped| stamped.concerns(shard));
            let of_shard: Vec<Arc<Stamped>> = of_shard.cloned().collect();
            if of_shard.is_empty() {
                continue;
            }
            let parts = transactions::encode_in_parts(&of_shard);
            for node in self.state.cluster.node_ids().filter(is_of) {
                if node != self.state.node && to.is_none_or(|to| to == node) {
                    for transactions in &parts {
                        let message = Message::Submit { transactions: transactions.clone() };
                        cx.send_after(after, node, message);
                    }
                }
            }
            if to.is_none() && shard == self.state.shard {
                let bytes = transactions::encode(of_shard.iter().map(|stamped| &**stamped));
                self.take_transactions(cx, of_shard.into_iter(), bytes);
            }
        }
    }

    /// Sends transactions again that have waited for too long: a message may have been lost.
    pub(super) fn retry_late(&mut self, cx: &mut Cx<'_, Self>) {
        let patience = self.state.options.retry(self.state.replica.topology.round_trip_max());
        if let Some(us) = cx.now.at.us.checked_sub(patience.us) {
            self.submit_again(cx, Resend::Before(Timestamp::from_us(us)));
        }
    }

    /// Answers the clients of the transactions of a cell that is committed and has been run here.
    pub(super) fn answer_cell(
        &mut self,
        cx: &mut Cx<'_, Self>,
        version: SnapshotVersion,
        own: &[TxnId],
    ) {
        for txn in own {
            self.state.coordinator.unsettled.remove(txn);
            let in_flight = self.state.coordinator.in_flight.get_mut(txn);
            // One that was answered on the fast path is in flight no more.
            if let Some(result) = in_flight.map(|it| it.result.take().expect("the cell was run")) {
                self.answer(cx, *txn, version, result);
            }
        }
    }

    /// Answers the client of a committed transaction.
    pub(super) fn answer(
        &mut self,
        cx: &mut Cx<'_, Self>,
        txn: TxnId,
        version: SnapshotVersion,
        result: RunResult,
    ) {
        let Some(done) = self.state.coordinator.in_flight.remove(&txn) else { return };
        self.state.note_arrival(cx.now.at, &done);
        let counters = &mut self.state.counters;
        let outcome = match result {
            Ok(result) => {
                counters.txns_committed += 1;
                Outcome::Committed { txn, version, result }
            }
            Err(abort) => {
                counters.txns_aborted += 1;
                Outcome::Aborted(abort)
            }
        };
        cx.reply(done.ticket, outcome);
    }
}

/// How long a replica needs until a transaction that it hands on is on its disk, in microseconds.
const FLUSH_US: i64 = 5_000;

/// No measured delay counts as longer than this, in microseconds.
const MOST_DELAY_US: i64 = 1_000_000;
