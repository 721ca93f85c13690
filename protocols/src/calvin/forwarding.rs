//! Asynchronous replication (§3.1.1): all requests are forwarded to the sequencer of one replica,
//! the master.
//!
//! ```text
//!   client    replica                      master
//!     | submit  |                             |
//!     |-------->| Forward(request) ---------> |   or it waits for a master here
//!     |         | <-------- ForwardAccepted   |   it is in the batch that is being collected
//!     |         | <================= Batch    |
//!     | <-------|  runs its epoch, when it is decided
//! ```
//!
//! The master's own clients are answered when its disk has the batch (`mastership.rs`). Clients of
//! other replicas are answered by these, when they have run the epoch themselves. A session
//! therefore finds its own writes there, and its acknowledged transactions can't be lost. The batch
//! contains the name that a replica gave to its request, so no outcome has to be sent.
//!
//! If the connection to the master is lost before it has replied to a request, the replica can't
//! know whether the master accepted it, and the client gets "outcome unknown". The same holds for
//! the client of a void request, which is detected once a cut of a later master term has run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pangea_core::exec::ordered::Finished;
use pangea_core::ids::{NodeId, SnapshotVersion, Ticket, TxnId};
use pangea_core::protocol::{Cx, FirstRun};
use pangea_core::txn::{Abort, Outcome, Program, ReadVersion, SqlState};

use super::batch::{Request, UnsequencedRequest, has_seen_what_is_final};
use super::messages::{Accepted, Message};
use super::state::{InFlight, RetryableRequest, WAITING_BATCHES_MAX};
use super::{Calvin, Cut};
use crate::agreement::Term;
use crate::inputs::{IN_FLIGHT_MAX, outcome_unknown, refuses_clients};
use crate::streams::Batch as _;

/// Requests in no batch of this replica, because another one is the master or none is.
#[derive(Default)]
pub(super) struct Forwarding {
    /// Requests that wait because no master is known.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Requests sent to a replica that has not replied yet.
    sent: BTreeMap<u64, (NodeId, Waiting)>,
    /// Whether the last reply was `ForwardRejected`. Then one request is sent as a probe for all.
    is_refused: bool,
    /// Requests that a master has accepted, with its term, and that have not run on this node.
    awaited: BTreeMap<u64, ForwardedRequest>,
    /// The last master term of which an epoch has run on this node.
    run: Term,
}

/// The client of a request that a master has accepted.
struct ForwardedRequest {
    term: Term,
    ticket: Ticket,
    /// If tables are partitioned, the request to repeat if it leaves its footprint.
    retryable: Option<RetryableRequest>,
}

/// The origin of a request that is put into a batch.
pub(super) enum Requester {
    /// A client of this node.
    Client(Ticket),
    /// Another replica, with its name for the request.
    Replica(NodeId, u64),
}

struct Waiting {
    ticket: Ticket,
    request: UnsequencedRequest,
    /// The timeline of the versions that it has read.
    line: u64,
}

impl Forwarding {
    /// The number of requests.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.sent.len() + self.awaited.len()
    }

    /// Whether the limit of waiting requests is reached.
    pub(super) fn is_full(&self, batch_bytes: usize) -> bool {
        self.waiting_bytes > WAITING_BATCHES_MAX * batch_bytes
    }

    /// Whether a client waits for the request that was sent under this name.
    pub(super) fn awaits(&self, token: u64) -> bool {
        self.awaited.contains_key(&token) || self.sent.contains_key(&token)
    }

    /// Removes the request that was sent under this name. Returns its client, and the program if it
    /// may have to be sequenced again.
    pub(super) fn take(&mut self, token: u64) -> Option<(Ticket, Option<RetryableRequest>)> {
        let awaited = self.awaited.remove(&token).map(|it| (it.ticket, it.retryable));
        awaited.or_else(|| {
            let (_, waiting) = self.sent.remove(&token)?;
            Some((waiting.ticket, RetryableRequest::of(&waiting.request)))
        })
    }

    fn push(&mut self, waiting: Waiting) {
        self.waiting_bytes += waiting.request.weight();
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.waiting_bytes -= waiting.request.weight();
        Some(waiting)
    }
}

/// Whether an interactive transaction has read a row of a version later than `upto`.
fn has_seen_after(program: &Program, upto: SnapshotVersion) -> bool {
    let Program::Certified(certified) = program else { return false };
    let is_later = |seen: &ReadVersion| matches!(seen, ReadVersion::At(version) if *version > upto);
    let points = certified.reads.points.iter().map(|read| &read.seen);
    let ranges = certified.reads.ranges.iter();
    let rows = ranges.flat_map(|read| read.rows.iter().map(|(_, seen)| seen));
    points.chain(rows).any(is_later)
}

impl Calvin {
    /// Accepts a request for the master, whichever replica that is.
    pub(super) fn queue_for_master(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        request: UnsequencedRequest,
    ) {
        self.state.forwarding.push(Waiting { ticket, request, line: cx.store.timeline() });
    }

    /// Sends the waiting requests to the master's sequencer, if there is a master.
    pub(super) fn dispatch(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.forwarding.waiting.is_empty() || self.state.inputs.is_rejoining() {
            return;
        }
        if let Some(why) = self.state.inputs.refused() {
            return self.refuse_waiting(cx, &why);
        }
        if self.state.inputs.accepts_requests() {
            while let Some(Waiting { ticket, request, .. }) = self.next_to_go(cx, false) {
                self.put_in_batch(cx, Requester::Client(ticket), request);
            }
            return;
        }
        let inputs = &self.state.inputs;
        // The others wait until it has greeted: it may be a node of another cluster.
        let is_up = |master: &NodeId| inputs.presence.is_known(*master);
        let leader = inputs.agreement().leader().filter(|leader| *leader != inputs.replica.me);
        let Some(master) = leader.filter(is_up) else { return };
        let Forwarding { is_refused, sent, .. } = &self.state.forwarding;
        let is_refused = *is_refused;
        if is_refused && sent.values().any(|(to, _)| *to == master) {
            return;
        }
        let (mut requests, mut bytes) = (Vec::new(), 0);
        while let Some(waiting) = self.next_to_go(cx, true) {
            let size = waiting.request.weight();
            if bytes > 0 && bytes + size > self.state.options.batch_bytes {
                self.forward(cx, master, std::mem::take(&mut requests));
                bytes = 0;
            }
            bytes += size;
            let token = self.state.inputs.replica.next_token();
            let request = waiting.request.clone().placed(TxnId::default(), None);
            requests.push((token, request));
            self.state.forwarding.sent.insert(token, (master, waiting));
            if is_refused {
                break;
            }
        }
        self.forward(cx, master, requests);
    }

    /// Refuses the requests that wait for a master, because this replica has other procedures.
    fn refuse_waiting(&mut self, cx: &mut Cx<'_, Self>, why: &str) {
        while let Some(Waiting { ticket, .. }) = self.state.forwarding.pop() {
            cx.mark("inputs.refused_client");
            cx.reply(ticket, Outcome::Aborted(refuses_clients(why.to_owned())));
        }
    }

    /// The next request for the master, which is another replica or this one.
    fn next_to_go(&mut self, cx: &mut Cx<'_, Self>, is_forwarded: bool) -> Option<Waiting> {
        loop {
            let waiting = self.state.forwarding.pop()?;
            let is_same = cx.store.timeline() == waiting.line;
            if self.is_of_line(&waiting.request.program, is_same, is_forwarded) {
                return Some(waiting);
            }
            refuse_read(cx, waiting.ticket);
        }
    }

    fn forward(&self, cx: &mut Cx<'_, Self>, master: NodeId, requests: Vec<(u64, Request)>) {
        if !requests.is_empty() {
            cx.mark("calvin.forwarded");
            cx.send(self.state.inputs.node(master), Message::Forward { requests });
        }
    }

    /// Whether the versions that an interactive transaction has read are still on the store's
    /// timeline and, if it is forwarded, are final. Always true if tables are partitioned.
    fn is_of_line(&self, program: &Program, is_same: bool, is_final: bool) -> bool {
        let Program::Certified(_) = program else { return true };
        let is_void = !is_same || is_final && has_seen_after(program, self.confirmed());
        self.state.shards.is_some() || !is_void
    }

    /// Handles requests that another replica forwards to the master.
    pub(super) fn on_forward(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        requests: Vec<(u64, Request)>,
    ) {
        let is_divided = self.state.shards.is_some();
        let is_sound = |(_, request): &(u64, Request)| {
            has_seen_what_is_final(&request.program)
                && request.shards.is_empty() != is_divided
                && request.is_small()
        };
        if !requests.iter().all(is_sound) {
            return cx.mark("calvin.malformed_forward");
        }
        let node = self.state.inputs.node(from);
        let sequencer = &self.state.sequencer;
        let is_full = sequencer.in_flight.len() + requests.len() > IN_FLIGHT_MAX
            || sequencer.is_full(self.state.options.batch_bytes);
        let master_term = self
            .state
            .inputs
            .extension
            .mastery
            .master_term
            .filter(|_| self.state.inputs.accepts_requests_of(from));
        let Some(master_term) = master_term.filter(|_| !is_full) else {
            cx.mark("calvin.not_taken");
            let tokens = requests.into_iter().map(|(token, _)| token).collect();
            return cx.send(node, Message::ForwardRejected { tokens });
        };
        let tokens = requests.iter().map(|(token, _)| *token).collect();
        for (token, request) in requests {
            self.put_in_batch(cx, Requester::Replica(from, token), request.unplaced(0));
        }
        cx.send(
            node,
            Message::ForwardAccepted { accepted: Accepted { term: master_term.term, tokens } },
        );
    }

    /// Handles the master's reply that it has accepted requests of this replica.
    pub(super) fn on_forward_accepted(
        &mut self,
        cx: &mut Cx<'_, Self>,
        term: Term,
        tokens: &[u64],
    ) {
        cx.mark("calvin.taken");
        let forwarding = &mut self.state.forwarding;
        let was_refused = std::mem::take(&mut forwarding.is_refused);
        for token in tokens {
            // The request may have run before this reply arrived.
            let Some((_, waiting)) = forwarding.sent.remove(token) else { continue };
            let (ticket, retryable) = (waiting.ticket, RetryableRequest::of(&waiting.request));
            let is_named = || self.state.shards.as_ref().is_some_and(|it| it.names(*token));
            if term < forwarding.run && !is_named() {
                answer_void(cx, ticket);
            } else {
                forwarding.awaited.insert(*token, ForwardedRequest { term, ticket, retryable });
            }
        }
        if was_refused {
            self.dispatch(cx);
        }
    }

    /// Handles the reply of a replica that has not accepted requests of this one. They wait for the
    /// next dispatch.
    pub(super) fn on_forward_rejected(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        tokens: &[u64],
    ) {
        cx.mark("calvin.not_taken");
        let forwarding = &mut self.state.forwarding;
        forwarding.is_refused = true;
        for token in tokens {
            match forwarding.sent.remove(token) {
                Some((to, waiting)) if to == from => forwarding.push(waiting),
                Some(other) => {
                    forwarding.sent.insert(*token, other);
                }
                None => {}
            }
        }
    }

    /// Answers the clients of requests that may be lost with a connection: it is unknown whether
    /// they arrived.
    pub(super) fn lose_sent(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let sent = &mut self.state.forwarding.sent;
        let lost: Vec<u64> =
            sent.iter().filter(|(_, (to, _))| *to == peer).map(|(token, _)| *token).collect();
        for token in lost {
            if let Some((_, waiting)) = sent.remove(&token) {
                cx.mark("calvin.outcome_unknown");
                cx.reply(waiting.ticket, Outcome::Aborted(outcome_unknown()));
            }
        }
    }

    /// Answers the clients of all forwarded requests after a checkpoint was installed. Skipped
    /// epochs may contain them, even if the master's reply to them is still in flight.
    pub(super) fn forget_forwarded(&mut self, cx: &mut Cx<'_, Self>) {
        let forwarding = &mut self.state.forwarding;
        let awaited = std::mem::take(&mut forwarding.awaited).into_values();
        let sent = std::mem::take(&mut forwarding.sent).into_values();
        let tickets = awaited.map(|it| it.ticket).chain(sent.map(|(_, it)| it.ticket));
        for ticket in tickets {
            cx.mark("calvin.outcome_unknown");
            cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
        }
    }

    /// Does the master's work, if this replica is the master or was until now.
    pub(super) fn lead(&mut self, cx: &mut Cx<'_, Self>) {
        let inputs = &mut self.state.inputs;
        let current = &self.state.sequencer.current;
        let first =
            current.first().map_or(inputs.streams.next_sequence, |first| first.txn.sequence());
        inputs.extension.mastery.has_collected = !current.is_empty();
        let before = inputs.extension.mastery.master_term;
        inputs.update_master_term(cx, first);
        let master_term = inputs.extension.mastery.master_term;
        if !inputs.is_asynchronous() {
            return;
        }
        match master_term {
            None => self.requeue_collected(cx),
            Some(master_term) if before.is_none_or(|before| before.term != master_term.term) => {
                let in_flight = &mut self.state.sequencer.in_flight;
                let collected = in_flight.iter_mut().filter(|it| it.txn.sequence() >= first);
                collected.for_each(|it| it.term = master_term.term);
            }
            Some(_) => {}
        }
        if self.state.inputs.accepts_requests() {
            self.dispatch(cx);
        }
        self.state.inputs.fix_and_propose(cx, false);
    }

    /// Re-queues the collected requests for the next master: the master term has ended before they
    /// were in a batch.
    fn requeue_collected(&mut self, cx: &mut Cx<'_, Self>) {
        let sequencer = &mut self.state.sequencer;
        sequencer.current_bytes = 0;
        let collected = std::mem::take(&mut sequencer.current);
        let Some(first) = collected.first() else { return };
        cx.mark("calvin.put_back");
        let first = first.txn.sequence();
        let at = sequencer.in_flight.partition_point(|it| it.txn.sequence() < first);
        let in_flight = sequencer.in_flight.split_off(at);
        for (request, waiting) in collected.into_iter().zip(in_flight) {
            assert_eq!(request.txn, waiting.txn, "collected requests are in flight, in order");
            // A peer's request had a name, and the peer will find that it is void.
            let tries = waiting.retryable.map_or(0, |retryable| retryable.tries);
            if let Some(ticket) = waiting.ticket {
                self.queue_for_master(cx, ticket, request.unplaced(tries));
            }
        }
    }

    /// Handles fixed cuts that became void after they were returned: rolls back the store, and the
    /// running epoch with it.
    pub(super) fn note_void(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(from) = self.state.inputs.take_void() else { return };
        if self.state.shards.is_some() {
            return self.void_own(cx, from);
        }
        let upto = SnapshotVersion(from.0 - 1).min(self.state.inputs.cut.applied);
        self.state.inputs.retreat(cx, upto);
        self.state.running.take_if(|running| running.epoch() > upto);
        self.refuse_void_reads(cx, upto);
    }

    /// Rejects the requests in no batch yet that have read versions after this one. Those are void,
    /// and other versions get their numbers.
    fn refuse_void_reads(&mut self, cx: &mut Cx<'_, Self>, upto: SnapshotVersion) {
        let sequencer = &mut self.state.sequencer;
        let is_void = |request: &Request| has_seen_after(&request.program, upto);
        let void: BTreeSet<TxnId> =
            sequencer.current.iter().filter(|it| is_void(it)).map(|it| it.txn).collect();
        if void.is_empty() {
            return;
        }
        sequencer.current.retain(|request| !void.contains(&request.txn));
        sequencer.current_bytes = sequencer.current.iter().map(Request::weight).sum();
        let mut tickets = Vec::new();
        sequencer.in_flight.retain(|waiting| {
            let stays = !void.contains(&waiting.txn);
            if !stays {
                tickets.extend(waiting.ticket);
            }
            stays
        });
        tickets.into_iter().for_each(|ticket| refuse_read(cx, ticket));
    }

    /// Confirms epochs that ran early and are decided now.
    pub(super) fn confirm_epochs(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.shards.is_some() {
            return self.confirm_divided(cx);
        }
        while let Some((epoch, cut)) = self.state.inputs.take_confirmed(cx) {
            self.log_epoch(cx, epoch, &cut);
            self.state.inputs.release_barriers(cx, &cut);
            self.checkpoint_if_due(cx);
            self.read_released(cx);
        }
    }

    /// After an epoch of a master term has run, answers the clients of forwarded requests that ran
    /// in it, and of requests that are now known to be void.
    pub(super) fn settle_forwarded(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (version, cut): (SnapshotVersion, &Cut),
        finished: Vec<(u64, TxnId, Finished)>,
    ) {
        for (token, txn, finished) in finished {
            if let Some((ticket, _)) = self.state.forwarding.take(token) {
                self.answer(cx, ticket, (txn, version), finished);
            }
        }
        let Some(master_term) = cut.master_term else { return };
        if !self.state.inputs.is_asynchronous() {
            let end = self.end_of_own(cut);
            return self.skip_void(cx, end);
        }
        self.state.forwarding.run = master_term.term;
        let mut void = Vec::new();
        self.state.forwarding.awaited.retain(|_, awaited| {
            let stays = awaited.term >= master_term.term;
            if !stays {
                void.push(awaited.ticket);
            }
            stays
        });
        let in_flight = &mut self.state.sequencer.in_flight;
        while let Some(waiting) = in_flight.pop_front_if(|first| first.term < master_term.term) {
            void.extend(waiting.ticket);
        }
        void.into_iter().for_each(|ticket| answer_void(cx, ticket));
    }

    /// The sequence number below which this node's requests are in batches that a cut covers. If
    /// replication is synchronous, a cut of a master term is left over from an earlier run. The
    /// requests that such cuts contain or skip are from that run, too; the skipped ones are void.
    /// It says nothing about requests of this run.
    fn end_of_own(&self, cut: &Cut) -> u64 {
        let inputs = &self.state.inputs;
        let last = inputs.own_log().slots.get(&cut.heads[inputs.replica.me.index()]);
        last.map_or(0, |slot| slot.batch.end_sequence())
    }

    /// The same if tables are partitioned, once an epoch of a master term is confirmed: requests
    /// that earlier masters have accepted and no cut contains are void.
    pub(super) fn answer_void_requests(&mut self, cx: &mut Cx<'_, Self>, cut: &Cut) {
        let Some(master_term) = cut.master_term else { return };
        if !self.state.inputs.is_asynchronous() {
            let end = self.end_of_own(cut);
            let void = self.void_in_flight(|it| it.txn.sequence() < end);
            return void.into_iter().for_each(|ticket| answer_void(cx, ticket));
        }
        if std::mem::replace(&mut self.state.forwarding.run, master_term.term) == master_term.term {
            return;
        }
        let Some(shards) = &self.state.shards else { return };
        let mut void = Vec::new();
        self.state.forwarding.awaited.retain(|token, awaited| {
            let stays = awaited.term >= master_term.term || shards.names(*token);
            if !stays {
                void.push(awaited.ticket);
            }
            stays
        });
        let collected = self.state.sequencer.current.first().map(|first| first.txn.sequence());
        let is_batched = |it: &InFlight| collected.is_none_or(|first| it.txn.sequence() < first);
        void.extend(self.void_in_flight(|it| it.term < master_term.term && is_batched(it)));
        void.into_iter().for_each(|ticket| answer_void(cx, ticket));
    }

    /// Ends the requests in flight for which `is_it` returns true and that no cut of a partitioned
    /// cluster contains. Returns their clients.
    fn void_in_flight(&mut self, is_it: impl Fn(&InFlight) -> bool) -> Vec<Ticket> {
        let Some(shards) = &self.state.shards else { return Vec::new() };
        let me = self.state.inputs.node(self.state.inputs.replica.me);
        let is_named =
            |it: &InFlight| shards.local_requests.contains_key(&TxnId::new(me, it.txn.sequence()));
        let in_flight = &mut self.state.sequencer.in_flight;
        let mut void = Vec::new();
        for waiting in in_flight.iter_mut().filter(|it| is_it(it) && !is_named(it)) {
            waiting.is_over = true;
            void.extend(waiting.ticket.take());
        }
        while in_flight.pop_front_if(|first| first.is_over).is_some() {}
        void
    }

    /// Drops this node's requests before `sequence` that did not run. They are void, because a
    /// later one ran.
    pub(super) fn skip_void(&mut self, cx: &mut Cx<'_, Self>, sequence: u64) {
        let in_flight = &mut self.state.sequencer.in_flight;
        while let Some(first) = in_flight.pop_front_if(|first| first.txn.sequence() < sequence) {
            first.ticket.into_iter().for_each(|ticket| answer_void(cx, ticket));
        }
    }

    /// Answers a client with the outcome of its transaction.
    pub(super) fn answer(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        (txn, version): (TxnId, SnapshotVersion),
        finished: Finished,
    ) {
        let outcome = match finished.outcome {
            Ok(result) => Outcome::Committed { txn, version, result },
            Err(abort) => {
                self.state.counters.txns_aborted += 1;
                Outcome::Aborted(abort)
            }
        };
        let first_run = match finished.passes {
            1 => FirstRun::Absent,
            _ => FirstRun::Invalidated(None),
        };
        cx.reply_of_run(ticket, outcome, first_run);
    }
}

fn answer_void(cx: &mut Cx<'_, Calvin>, ticket: Ticket) {
    cx.mark("calvin.void");
    cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
}

/// Rejects an interactive transaction whose reads are void, or may become so.
fn refuse_read(cx: &mut Cx<'_, Calvin>, ticket: Ticket) {
    cx.mark("calvin.read_given_up");
    cx.reply(ticket, Outcome::Aborted(read_given_up()));
}

/// The error for that.
pub(super) fn read_given_up() -> Abort {
    Abort::new(
        SqlState::SERIALIZATION_FAILURE,
        "could not serialize access: the transaction read a discarded state",
    )
    .with_detail(
        "The master failed over, and the transactions that it had not replicated were discarded.",
    )
    .with_hint("The transaction might succeed if retried.")
}
