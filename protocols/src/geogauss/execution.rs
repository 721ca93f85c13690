//! Local execution (§4.1.1, Algorithm 1, lines 1 to 21).
//!
//! A transaction runs where it arrived, on the newest snapshot that is merged there. Without writes
//! it is answered at once. Otherwise its writes, and the checks of its isolation level, are
//! added to the open epoch: the two happen in one step, so that no write set misses the end of its
//! epoch.
//!
//! ```text
//!   client --> queue --> run on the newest snapshot --> batch of the open epoch
//!                ^                                          |
//!                +------------ lost, tried again <-- merge <+
//!                                    |
//!                                    +--> after some attempts: run by every replica, in order
//! ```
//!
//! A step runs a limited number of programs, so that the end of an epoch is never late because of
//! the node's own work.

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::optimistic::{self, Run};
use pangea_core::exec::{Overlay, adds_bytes, declared_footprint, is_bulk, is_footprint_declared};
use pangea_core::guarantee::Isolation;
use pangea_core::ids::{SnapshotVersion, Ticket, TxnId};
use pangea_core::mutate;
use pangea_core::pool::map;
use pangea_core::protocol::{Cx, Request, Submission};
use pangea_core::txn::{Abort, Certified, Footprint, Outcome, Program, SqlState};

use super::batch::{Batch, TxnRecord, Work};
use super::chains::run_at;
use super::early::read_lost;
use super::isolation::{self, Checks};
use super::options::{Conflicts, Execution, Validation};
use super::origin;
use super::rank::RankInputs;
use super::state::{InFlight, Job, State};
use super::{GeoGauss, Timer};
use crate::inputs::{
    IN_FLIGHT_MAX, not_rejoined, size, slots_stay, too_far_behind, too_many_in_flight,
};
use crate::request::check_program;

/// How a transaction is added to an epoch.
struct Planned {
    job: Job,
    start: SnapshotVersion,
    work: Work,
    result: Vec<u8>,
    weight: usize,
}

impl GeoGauss {
    /// Handles submissions from local clients.
    pub(super) fn on_submit(&mut self, cx: &mut Cx<'_, Self>, submissions: Vec<Submission>) {
        for Submission { ticket, request } in submissions {
            match request {
                Request::Fresh => self.await_fresh(cx, ticket),
                Request::Move(_) => cx.reply(ticket, Outcome::Aborted(slots_stay())),
                Request::Commit(program, level) => self.accept(cx, ticket, program, level),
            }
        }
        self.ask_for_new_reads(cx);
        self.run_queue(cx);
    }

    /// Rejects a request that can't be accepted, and queues any other.
    fn accept(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        program: Program,
        level: Isolation,
    ) {
        if !self.state.has_life() {
            cx.mark("geogauss.refused_while_removed");
            let abort = if self.state.is_rejoining() { not_rejoined() } else { not_a_member() };
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        if let Some(abort) = self.state.refusal() {
            cx.mark("geogauss.refused_client");
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        if let Some(late) = self.state.waits.refuses() {
            cx.mark("geogauss.too_far_behind");
            let abort = too_far_behind(late, &self.state.replica.topology);
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        let execution = &self.state.execution;
        if execution.in_flight.len() + execution.queue.len() >= IN_FLIGHT_MAX {
            cx.mark("geogauss.too_many_in_flight");
            let abort = too_many_in_flight(None, &self.state.replica.topology);
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        if let Err(abort) = check_program(&self.state.registry, &program) {
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        let since = self.state.present_epoch(cx);
        let level = match self.state.options.validation {
            Validation::Merge => level,
            Validation::Origin => self.state.options.isolation,
        };
        self.state.execution.queue.push_back(Job {
            ticket,
            program,
            level,
            attempt: 0,
            is_slow: false,
            since,
        });
    }

    /// Runs the next transactions of the queue.
    pub(super) fn run_queue(&mut self, cx: &mut Cx<'_, Self>) {
        // A replica that was removed goes on when it has joined again, and one that may not end
        // this epoch in the next view.
        let State { execution, .. } = &self.state;
        if execution.queue.is_empty() || !self.state.is_member() || !self.state.may_add(cx) {
            return;
        }
        if self.state.is_refusing() {
            return self.refuse_queue(cx);
        }
        if !self.state.has_caught_up(cx) {
            return;
        }
        let may_run = self.runnable(cx);
        let queue = &mut self.state.execution.queue;
        let count = may_run.min(self.state.options.slice_txns.get());
        if count == 0 {
            return;
        }
        let jobs: Vec<Job> = queue.drain(..count).collect();
        if may_run > count {
            cx.mark("geogauss.queue_in_slices");
            cx.resume();
        }
        // After a lost disk, batches that only a cache had come back later than the numbers.
        let next = self.state.streams.own(&self.state.replica).next_sequence;
        self.state.streams.next_sequence = self.state.streams.next_sequence.max(next);
        self.state.execution.last_run_from = self.state.streams.next_sequence;
        let start = self.state.present_epoch(cx);
        let (in_order, optimistic): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| self.goes_in_order(cx, job));
        let at = self.state.applied.epoch;
        let State { registry, options, execution, .. } = &self.state;
        let nothing = Overlay::new();
        let store = cx.store;
        cx.begin_work();
        let runs = map(cx.pool, &optimistic, |_, job| {
            let is_chained = options.chains_at(job.level);
            let overlay = if is_chained { &execution.overlay } else { &nothing };
            let is_call = matches!(job.program, Program::Call { .. });
            let code = (&**registry, options);
            is_call.then(|| run_at(job.level, code, &job.program, (store, at), overlay))
        });
        cx.end_work(CpuStage::Execute, optimistic.len());
        for (job, run) in optimistic.into_iter().zip(runs) {
            match run {
                Some(run) => {
                    let run = self.chained(cx, &job, run);
                    self.end_run(cx, job, start, run);
                }
                None => self.append_certified(cx, job, start),
            }
        }
        in_order.into_iter().for_each(|job| self.append_in_order(cx, job, start, None));
    }

    /// Refuses the requests that arrived before this replica knew that it can't go on.
    fn refuse_queue(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(refusal) = self.state.refusal() else { return };
        for job in std::mem::take(&mut self.state.execution.queue) {
            cx.mark("geogauss.refused_client");
            self.state.counters.txns_aborted += 1;
            cx.reply(job.ticket, Outcome::Aborted(refusal.clone()));
        }
    }

    /// The number of programs of the queue that may be run: all, unless they wait for the epochs
    /// before their own.
    fn runnable(&mut self, cx: &mut Cx<'_, Self>) -> usize {
        let Some(first) = self.state.execution.queue.front() else { return 0 };
        if self.state.options.execution == Execution::Asynchronous {
            return self.state.execution.queue.len();
        }
        let before = SnapshotVersion(first.since.0 - 1);
        if before >= self.state.epochs.open && self.state.membership.may_end(before) {
            // The others have to end them, too.
            cx.mark("geogauss.waits_for_earlier_epochs");
            self.end_epoch(cx, before);
        }
        let merged = self.state.merged_through();
        self.state.execution.queue.iter().take_while(|job| job.since <= merged.next()).count()
    }

    /// Whether every replica runs a program, because it has lost too often, is about to lose, or
    /// writes too much.
    fn goes_in_order(&self, cx: &mut Cx<'_, Self>, job: &Job) -> bool {
        let Program::Call { procedure, args } = &job.program else { return false };
        let State { options, registry, execution, .. } = &self.state;
        if job.is_slow || is_bulk(registry, *procedure, args) {
            return true;
        }
        if options.conflicts != Conflicts::InOrder {
            return false;
        }
        let declared = || declared_footprint(registry, *procedure, args);
        let is_hot = |it: Footprint| execution.hot.has_locked(&it, cx.now.at);
        let is_about_to_lose = !execution.hot.is_empty() && declared().is_some_and(is_hot);
        if is_about_to_lose {
            cx.mark("geogauss.hot");
        }
        is_about_to_lose || job.attempt >= options.attempts_optimistic
    }

    /// Whether a program depends on rows that it did not find, although it wrote nothing: at the
    /// serializable level a row that it would have changed may have been inserted since its base.
    fn is_search(&self, job: &Job) -> bool {
        let Program::Call { procedure, args } = &job.program else { return false };
        let code = self.state.registry.procedure(*procedure);
        let is_reader = code.is_none_or(|code| code.is_read_only(args));
        job.level == Isolation::Serializable && !is_reader
    }

    /// §4.1.1, Algorithm 1, lines 4 to 21: answers a transaction that only read, and adds any other
    /// to the open epoch.
    fn end_run(&mut self, cx: &mut Cx<'_, Self>, job: Job, start: SnapshotVersion, mut run: Run) {
        let at = self.state.applied.epoch;
        let result = match std::mem::replace(&mut run.result, Ok(Vec::new())) {
            Ok(result) => result,
            // It has no effect, and its reads are of one snapshot.
            Err(abort) => {
                self.state.counters.txns_aborted += 1;
                return cx.reply(job.ticket, Outcome::Aborted(abort));
            }
        };
        if run.is_reader() && !self.is_search(&job) {
            cx.mark("geogauss.read_only");
            // It takes no place in the order, so it has no name.
            let txn = TxnId::new(self.state.me(), 0);
            return cx.reply(job.ticket, Outcome::Committed { txn, version: at, result });
        }
        let may_be_hot = self.state.options.conflicts == Conflicts::InOrder
            && !self.state.execution.hot.is_empty();
        let found = may_be_hot.then(|| run.footprint());
        let checks = match self.state.options.validation {
            Validation::Merge => {
                let changes = (run.writes, run.adds);
                isolation::checks(job.level, run.reads, run.guards, changes)
            }
            // Nothing has changed since it ran.
            Validation::Origin => origin::unchecked(run.writes),
        };
        if may_be_hot && self.state.execution.hot.has_any(&checks, cx.now.at) {
            cx.mark("geogauss.hot");
            return self.append_in_order(cx, job, start, found);
        }
        if checks.has_adds() {
            cx.mark("geogauss.adds");
        }
        let weight = weight_of(&checks);
        let work = Work::Merge { base: at, checks };
        self.append(cx, Planned { job, start, work, result, weight });
    }

    /// Adds an interactive transaction to the open epoch.
    fn append_certified(&mut self, cx: &mut Cx<'_, Self>, mut job: Job, start: SnapshotVersion) {
        cx.mark("geogauss.certified");
        // It can't be run again, so nobody needs it after this.
        let empty = Program::Certified(Certified::default());
        let Program::Certified(certified) = std::mem::replace(&mut job.program, empty) else {
            panic!("calls are run");
        };
        if self.state.early.is_some() && certified.timeline != cx.store.timeline() {
            cx.mark("geogauss.read_lost");
            self.state.counters.txns_aborted += 1;
            return cx.reply(job.ticket, Outcome::Aborted(read_lost()));
        }
        let newest = self.state.applied.epoch;
        let base = mutate!(CertifiedOnNewest: certified.at.min(newest) => newest);
        let checks = match self.state.options.validation {
            Validation::Merge => isolation::certified(job.level, certified),
            Validation::Origin => {
                let change = origin::validate(job.level, &certified, cx.store, newest);
                if let Some(change) = change {
                    cx.mark("geogauss.lost_at_origin");
                    return self.try_again(cx, job, change.into_abort());
                }
                origin::unchecked(certified.writes)
            }
        };
        let weight = weight_of(&checks);
        let work = Work::Merge { base, checks };
        self.append(cx, Planned { job, start, work, result: Vec::new(), weight });
    }

    /// Adds a program to the open epoch that every replica will run. `found` is its footprint if it
    /// was run.
    fn append_in_order(
        &mut self,
        cx: &mut Cx<'_, Self>,
        job: Job,
        start: SnapshotVersion,
        found: Option<Footprint>,
    ) {
        cx.mark("geogauss.in_order");
        let Program::Call { procedure, args } = &job.program else {
            panic!("an interactive transaction can't be run");
        };
        let registry = &self.state.registry;
        let is_declared = is_footprint_declared(registry, *procedure, args);
        // Without a footprint it runs alone. To find that of a large program would take as long as
        // the program itself, and make this replica late once more.
        let is_large = job.is_slow || is_bulk(registry, *procedure, args);
        let probe = |cx: &mut Cx<'_, Self>| {
            cx.begin_work();
            let (registry, at) = (&self.state.registry, self.state.applied.epoch);
            let found = optimistic::probe(registry, &job.program, cx.store, at, &Overlay::new());
            cx.end_work(CpuStage::Probe, 1);
            found
        };
        let is_probed = found.is_none() && !is_declared && !is_large;
        let found = if is_probed { Some(probe(cx)) } else { found.filter(|_| !is_declared) };
        let footprint = found.and_then(size::if_small);
        let weight = size::program_bytes(&job.program, footprint.as_ref());
        let work = Work::InOrder { program: job.program.clone(), footprint };
        self.append(cx, Planned { job, start, work, result: Vec::new(), weight });
    }

    /// Assigns a transaction its name and its place in the open epoch.
    fn append(&mut self, cx: &mut Cx<'_, Self>, planned: Planned) {
        self.enter_epoch(cx);
        let Planned { job, start, work, result, weight } = planned;
        let me = self.state.me();
        let streams = &mut self.state.streams;
        let txn = TxnId::new(me, streams.next_sequence);
        streams.next_sequence += 1;
        let since = cx.now.at.since(self.state.epochs.opened_at).us;
        let offset_us = u32::try_from(since).unwrap_or(u32::MAX);
        let epoch = self.state.epochs.open;
        let execution = &mut self.state.execution;
        let (attempt, start) = execution.rank_after_heads(epoch, &work, (job.attempt, start));
        let inputs = RankInputs { txn, attempt, start, offset_us };
        if let Work::Merge { checks, .. } = &work
            && self.state.options.chains
        {
            execution.overlay.insert(txn, checks.writes.iter().map(|it| &it.write));
        }
        let is_first = execution.current.is_empty();
        execution.current.push(TxnRecord { inputs, work });
        execution.current_bytes += weight;
        if job.attempt == 0 {
            self.state.counters.txns_local += 1;
        }
        cx.named(job.ticket, txn.sequence());
        let in_flight = InFlight { txn, epoch, attempt, start, job, result, answered: None };
        execution.in_flight.push_back(in_flight);
        if execution.current_bytes >= self.state.options.batch_bytes {
            cx.mark("geogauss.batch_full");
            self.start_broadcast(cx, false);
        } else if is_first {
            cx.set_timer(Timer::Batch, self.state.options.batch());
        }
    }

    /// Closes the current batch and sends it. Without transactions, only the last one of an epoch
    /// is sent.
    pub(super) fn start_broadcast(&mut self, cx: &mut Cx<'_, Self>, is_last: bool) {
        cx.clear_timer(Timer::Batch);
        let records = std::mem::take(&mut self.state.execution.current);
        self.state.execution.current_bytes = 0;
        if records.is_empty() && !is_last {
            return;
        }
        self.broadcast(cx, self.state.epochs.open, is_last, records);
    }

    /// Sends a batch of this replica.
    pub(super) fn broadcast(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        is_last: bool,
        records: Vec<TxnRecord>,
    ) {
        let base = self.state.unconfirmed_base();
        let State { replica, streams, membership, rules, .. } = &mut self.state;
        let next = streams.next_sequence;
        let first_sequence = records.first().map_or(next, |record| record.inputs.txn.sequence());
        let bid = streams.own(replica).received.next();
        let (source, view, rules) = (replica.me, membership.view.number, *rules);
        let has_read = records.iter().any(|it| matches!(it.work, Work::Merge { .. }));
        let base = base.filter(|_| has_read);
        let batch =
            Batch { source, bid, epoch, is_last, view, base, rules, first_sequence, records };
        membership.own_head = membership.own_head.max(bid);
        cx.begin_work();
        let bytes = batch.encode();
        cx.end_work(CpuStage::Encode, bytes.len());
        streams.broadcast(cx, replica, batch, bytes);
    }

    /// This replica was late. Perhaps it was the programs of the last step that ran some: if they
    /// are run again, then in order.
    pub(super) fn suspect_last_run(&mut self, cx: &mut Cx<'_, Self>) {
        let execution = &mut self.state.execution;
        let from = execution.last_run_from;
        let last = execution.in_flight.iter_mut().filter(|it| it.txn.sequence() >= from);
        last.for_each(|it| it.job.is_slow = true);
        cx.mark("geogauss.late_itself");
    }

    /// Runs a program again that has lost, if it can be run and its client wants that.
    pub(super) fn try_again(&mut self, cx: &mut Cx<'_, Self>, job: Job, lost: Abort) {
        self.state.counters.txns_lost += 1;
        let can_run = matches!(job.program, Program::Call { .. });
        if !can_run || self.state.options.conflicts == Conflicts::Abort {
            self.state.counters.txns_aborted += 1;
            return cx.reply(job.ticket, Outcome::Aborted(lost));
        }
        cx.mark("geogauss.tried_again");
        self.state.counters.txns_retried += 1;
        let attempt = job.attempt.saturating_add(1);
        let since = self.state.present_epoch(cx);
        self.state.execution.queue.push_back(Job { attempt, since, ..job });
    }
}

/// The approximate size of a transaction in a batch, in bytes.
fn weight_of(checks: &Checks) -> usize {
    const WRITE_BYTES: usize = 16;
    let value = |it: &isolation::CheckedWrite| it.write.value.as_ref().map_or(0, |it| it.len());
    let write = |it: &isolation::CheckedWrite| WRITE_BYTES + it.write.key.len() + value(it);
    let writes_bytes = checks.writes.iter().map(write).sum::<usize>();
    size::sets_bytes(&checks.reads, &[]) + writes_bytes + adds_bytes(&checks.adds)
}

/// The error while this replica is removed from the cluster.
fn not_a_member() -> Abort {
    Abort::new(SqlState::CANNOT_CONNECT_NOW, "this node was removed and is about to join again")
        .with_detail("The other nodes had not heard from it for some time.")
        .with_hint("Use another node, or try again later.")
}
