//! Sequencing (§3.1): requests are put into batches as they arrive, and none runs.
//!
//! The footprint of a transaction must be known before it is ordered. Most procedures determine it
//! from their arguments. For the others a reconnaissance runs them on the last epoch and keeps only
//! the footprint (§3.2.1). The scheduler checks later whether it was right.

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::optimistic;
use pangea_core::exec::{Overlay, check_size, is_footprint_declared};
use pangea_core::ids::{SnapshotVersion, Ticket, TxnId};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::{Cx, Request as Requested, Submission};
use pangea_core::txn::{Footprint, Outcome, Program};

use super::Calvin;
use super::batch::{Batch, Request, UnsequencedRequest};
use super::forwarding::{Requester, read_given_up};
use super::options::Reads;
use super::state::{InFlight, RetryableRequest};
use crate::inputs::{IN_FLIGHT_MAX, Timer, Waiter, not_rejoined, size, slots_stay};
use crate::request::unknown_procedure;

impl Calvin {
    /// Handles submissions from local clients.
    pub(super) fn on_submit(&mut self, cx: &mut Cx<'_, Self>, submissions: Vec<Submission>) {
        let mut reads = Vec::new();
        let line = cx.store.timeline();
        // With partitioned tables no client reads versions that may be rolled back.
        let is_divided = self.state.shards.is_some();
        let refusal = self.state.inputs.refusal();
        for Submission { ticket, request } in submissions {
            match request {
                Requested::Commit(Program::Certified(certified), _)
                    if !is_divided && certified.timeline != line =>
                {
                    cx.mark("calvin.read_given_up");
                    cx.reply(ticket, Outcome::Aborted(read_given_up()));
                }
                Requested::Commit(..) if self.state.inputs.is_rejoining() => {
                    cx.mark("calvin.refused_while_rejoining");
                    cx.reply(ticket, Outcome::Aborted(not_rejoined()));
                }
                Requested::Commit(..) if refusal.is_some() => {
                    cx.mark("inputs.refused_client");
                    let abort = refusal.clone().expect("it was checked above");
                    cx.reply(ticket, Outcome::Aborted(abort));
                }
                Requested::Move(_) => cx.reply(ticket, Outcome::Aborted(slots_stay())),
                Requested::Fresh => {
                    self.state.inputs.barriers.arrived.push(Waiter::Session(ticket))
                }
                Requested::Commit(program, _) => self.take(cx, ticket, program, &mut reads),
            }
        }
        self.dispatch(cx);
        if !reads.is_empty() {
            if self.must_wait() {
                self.queue_reads(cx, reads);
            } else {
                self.read_snapshot(cx, self.state.inputs.cut.applied, &reads);
            }
        }
        mutate!(FrozenReadsAtOnce: () => frozen_reads_at_once(self));
        if !self.state.inputs.barriers.arrived.is_empty() {
            self.state.inputs.request_barrier(cx);
        }
    }

    /// Rejects requests that can't be accepted, adds reads to `reads` or lets them wait, and
    /// sequences the rest.
    fn take(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        program: Program,
        reads: &mut Vec<(Ticket, Program)>,
    ) {
        let is_divided = self.state.shards.is_some();
        if !is_divided && self.is_snapshot_read(&program) {
            return reads.push((ticket, program));
        }
        let sequencer = &self.state.sequencer;
        let batch_bytes = self.state.options.batch_bytes;
        let forwarding = &self.state.forwarding;
        let is_held = (!self.state.inputs.presence.is_ready
            && sequencer.current_bytes >= batch_bytes)
            || sequencer.is_full(batch_bytes)
            || forwarding.is_full(batch_bytes);
        let lookups = self.state.shards.as_ref().map_or(0, |shards| shards.lookups.len());
        let in_flight = sequencer.in_flight.len() - self.state.outcomes.answered;
        let waiting = in_flight + lookups + forwarding.len() + self.state.warming.len();
        if is_held || waiting >= IN_FLIGHT_MAX {
            cx.mark("calvin.too_many_in_flight");
            return cx.reply(ticket, Outcome::Aborted(self.too_many_in_flight()));
        }
        if let Some(refusal) = self.refusal() {
            cx.mark("calvin.refused_for_node");
            self.state.counters.txns_refused += 1;
            return cx.reply(ticket, Outcome::Aborted(refusal));
        }
        let (procedure, args) = match &program {
            Program::Call { procedure, args } => (*procedure, args),
            Program::Certified(certified) => {
                return match check_size(&certified.reads, &certified.writes) {
                    Ok(()) => {
                        cx.mark("calvin.certified");
                        let touched = || Footprint::of_run(&certified.reads, &certified.writes);
                        let shards = is_divided.then(|| self.concerned(&touched()));
                        let shards = shards.unwrap_or_default();
                        self.sequence(cx, ticket, UnsequencedRequest::new(program, shards));
                    }
                    Err(abort) => cx.reply(ticket, Outcome::Aborted(abort)),
                };
            }
        };
        let registry = self.state.registry.clone();
        let Some(code) = registry.procedure(procedure) else {
            return cx.reply(ticket, Outcome::Aborted(unknown_procedure(procedure)));
        };
        if is_divided {
            return self.look_up(cx, ticket, program, 0);
        }
        if code.is_read_only(args) {
            return self.state.inputs.await_fresh(cx, ticket, program);
        }
        let is_declared = is_footprint_declared(&registry, procedure, args);
        let found = (!is_declared).then(|| self.reconnoitre(cx, &program));
        let footprint = found.and_then(size::if_small);
        let request = UnsequencedRequest::new(program, ShardSet::default());
        self.sequence(cx, ticket, UnsequencedRequest { footprint, ..request });
    }

    /// Whether a program is read-only and may read the last epoch.
    fn is_snapshot_read(&self, program: &Program) -> bool {
        let Program::Call { procedure, args } = program else { return false };
        let code = self.state.registry.procedure(*procedure);
        let is_at_once = self.state.options.reads == Reads::Snapshot;
        let is_at_once = mutate!(StrictReadsAtOnce: is_at_once => true);
        is_at_once && code.is_some_and(|code| code.is_read_only(args))
    }

    /// §3.2.1: the footprint of a transaction if it ran now.
    fn reconnoitre(&mut self, cx: &mut Cx<'_, Self>, program: &Program) -> Footprint {
        cx.mark("calvin.reconnoitred");
        self.state.counters.txns_reconnoitred += 1;
        cx.begin_work();
        let (registry, applied) = (&self.state.registry, self.state.inputs.cut.applied);
        let nothing = Overlay::new();
        let found = optimistic::probe(registry, program, cx.store, applied, &nothing);
        cx.end_work(CpuStage::Probe, 1);
        found
    }

    /// Sequences a request, unless it is delayed first.
    pub(super) fn sequence(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        request: UnsequencedRequest,
    ) {
        if let Some(request) = self.delay_if_cold(cx, ticket, request) {
            self.put(cx, ticket, request);
        }
    }

    /// Puts a request into a batch, here or at the master.
    pub(super) fn put(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        request: UnsequencedRequest,
    ) {
        match self.state.inputs.is_asynchronous() {
            true => self.queue_for_master(cx, ticket, request),
            false => self.put_in_batch(cx, Requester::Client(ticket), request),
        }
    }

    /// Assigns a request its name and its place in the batch.
    pub(super) fn put_in_batch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        asker: Requester,
        request: UnsequencedRequest,
    ) {
        cx.mark("calvin.sequenced");
        let inputs = &mut self.state.inputs;
        let txn = TxnId::new(inputs.replica.me, inputs.streams.next_sequence);
        inputs.streams.next_sequence += 1;
        let sequencer = &mut self.state.sequencer;
        let is_first = sequencer.current.is_empty();
        sequencer.current_bytes += request.weight();
        let (ticket, origin) = match asker {
            Requester::Client(ticket) => (Some(ticket), None),
            Requester::Replica(replica, token) => (None, Some((replica, token))),
        };
        let retryable = ticket.and_then(|_| RetryableRequest::of(&request));
        sequencer.current.push(request.placed(txn, origin));
        let mut in_flight = InFlight::new(txn, ticket, retryable);
        in_flight.term = inputs
            .extension
            .mastery
            .master_term
            .map(|master_term| master_term.term)
            .unwrap_or_default();
        sequencer.in_flight.push_back(in_flight);
        self.state.counters.txns_local += 1;
        ticket.into_iter().for_each(|ticket| cx.named(ticket, txn.sequence()));
        if self.state.sequencer.current_bytes >= self.state.options.batch_bytes {
            cx.mark("calvin.batch_full");
            self.end_batch(cx);
        } else if is_first {
            cx.set_timer(Timer::Batch.into(), self.state.options.epoch());
        }
    }

    /// Removes a local request that has run, possibly before earlier ones. Returns its client, and
    /// the program if it may have to be sequenced again, or `None` if it is not in flight.
    pub(super) fn take_in_flight(
        &mut self,
        sequence: u64,
    ) -> Option<Option<(Ticket, Option<RetryableRequest>)>> {
        let in_flight = &mut self.state.sequencer.in_flight;
        let at = in_flight.binary_search_by_key(&sequence, |it| it.txn.sequence()).ok()?;
        in_flight[at].is_over = true;
        let (ticket, retryable) = (in_flight[at].ticket.take(), in_flight[at].retryable.take());
        while let Some(over) = in_flight.pop_front_if(|first| first.is_over) {
            self.state.outcomes.answered -= usize::from(over.is_answered);
        }
        Some(ticket.map(|ticket| (ticket, retryable)))
    }

    /// Ends the sequencer's epoch: the collected requests become a batch.
    pub(super) fn end_batch(&mut self, cx: &mut Cx<'_, Self>) {
        cx.clear_timer(Timer::Batch.into());
        if !self.state.inputs.presence.is_ready {
            return;
        }
        if self.state.inputs.is_asynchronous() && !self.state.inputs.may_fix() {
            if !self.state.sequencer.current.is_empty() {
                cx.set_timer(Timer::Batch.into(), self.state.options.epoch());
            }
            return;
        }
        let requests = std::mem::take(&mut self.state.sequencer.current);
        let bytes = std::mem::take(&mut self.state.sequencer.current_bytes);
        let batch_bytes = self.state.options.batch_bytes;
        for requests in size::split_batches(requests, bytes, batch_bytes, Request::weight) {
            self.send_batch(cx, requests);
        }
    }

    fn send_batch(&mut self, cx: &mut Cx<'_, Self>, requests: Vec<Request>) {
        let first = requests.first().expect("a batch holds a request").txn;
        let batch = Batch {
            source: self.state.inputs.replica.me,
            bid: self.state.inputs.own_log().received.next(),
            first_sequence: first.sequence(),
            is_of_master: self.state.inputs.is_asynchronous(),
            requests,
        };
        cx.begin_work();
        let bytes = batch.encode();
        cx.end_work(CpuStage::Encode, bytes.len());
        self.state.inputs.broadcast(cx, batch, bytes);
    }

    /// Runs read-only programs on an epoch and answers at once.
    fn read_snapshot(
        &self,
        cx: &mut Cx<'_, Self>,
        at: SnapshotVersion,
        reads: &[(Ticket, Program)],
    ) {
        let nothing = Overlay::new();
        self.state.inputs.read_snapshot(cx, &self.state.registry, &nothing, at, reads);
    }

    /// Runs the reads that need not wait any more. They waited for a decided cut, and do not see
    /// epochs that a master has run early.
    pub(super) fn read_released(&mut self, cx: &mut Cx<'_, Self>) {
        let mut reads = self.state.inputs.take_released(cx);
        reads.append(&mut self.take_waiting_reads());
        if !reads.is_empty() {
            self.read_snapshot(cx, self.state.inputs.cut.confirmed.epoch, &reads);
        }
    }
}

fn frozen_reads_at_once(calvin: &mut Calvin) {
    if calvin.is_frozen() {
        calvin.state.inputs.barriers.release_arrived();
    }
}
