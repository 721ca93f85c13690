//! Phase 1: snapshot-based optimistic local execution (§3.2, Algorithm 1).
//!
//! A transaction runs where it arrived, at once, on the last epoch's snapshot with the uncommitted
//! writes of earlier local transactions over it. Its reads with their versions, and its writes, are
//! added to the current batch. In high-contention mode (§4) it is only probed.

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::optimistic::{self, Run};
use pangea_core::exec::{Overlay, check_size, is_bulk, is_footprint_declared};
use pangea_core::ids::{ProcedureId, SnapshotVersion, Ticket, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Request, Submission};
use pangea_core::txn::{Abort, Certified, Outcome, Program, ReadSet, ReadVersion};

use super::batch::{ExecutionMode, TxnRecord};
use super::options::Reads;
use super::state::{Execution, InFlight, State};
use super::{Batch, Minerva, Timer};
use crate::inputs::{
    IN_FLIGHT_MAX, Waiter, not_rejoined, size, slots_stay, too_far_behind, too_many_in_flight,
};
use crate::request::unknown_procedure;

impl Minerva {
    /// Handles submissions from local clients.
    pub(super) fn on_submit(&mut self, cx: &mut Cx<'_, Self>, submissions: Vec<Submission>) {
        let mut group = Vec::with_capacity(submissions.len());
        let mut reads = Vec::new();
        let refusal = self.state.inputs.refusal();
        for Submission { ticket, request } in submissions {
            match request {
                Request::Commit(..) if self.state.inputs.is_rejoining() => {
                    cx.mark("minerva.refused_while_rejoining");
                    cx.reply(ticket, Outcome::Aborted(not_rejoined()));
                }
                Request::Commit(..) if refusal.is_some() => {
                    cx.mark("inputs.refused_client");
                    let abort = refusal.clone().expect("it was checked above");
                    cx.reply(ticket, Outcome::Aborted(abort));
                }
                Request::Fresh => self.state.inputs.barriers.arrived.push(Waiter::Session(ticket)),
                Request::Move(_) => cx.reply(ticket, Outcome::Aborted(slots_stay())),
                Request::Commit(program, _) if self.is_snapshot_read(&program) => {
                    reads.push((ticket, program));
                }
                Request::Commit(program, _) => {
                    self.sort_submission(cx, ticket, program, &mut group)
                }
            }
        }
        if !reads.is_empty() {
            self.read_snapshot(cx, &reads);
        }
        if !group.is_empty() {
            self.execute(cx, group);
        }
        if !self.state.inputs.barriers.arrived.is_empty() {
            mutate!(FreshWithoutCut: () => fresh_without_cut(&mut self.state));
            self.state.inputs.request_barrier(cx);
        }
    }

    /// Runs the reads that need not wait any more.
    pub(super) fn read_released(&mut self, cx: &mut Cx<'_, Self>) {
        let reads = self.state.inputs.take_released(cx);
        if !reads.is_empty() {
            self.read_snapshot(cx, &reads);
        }
    }

    /// Rejects requests that can't be accepted, lets strict reads wait, probes requests for the
    /// ordered queue, and adds the others to `group`.
    fn sort_submission(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        program: Program,
        group: &mut Vec<(Ticket, Program)>,
    ) {
        let is_held = !self.state.inputs.presence.is_ready
            && self.state.execution.current_bytes >= self.state.options.batch_bytes;
        let is_full = self.state.execution.in_flight.len() + group.len() >= IN_FLIGHT_MAX;
        if is_held || is_full {
            cx.mark("minerva.too_many_in_flight");
            let inputs = &self.state.inputs;
            let abort = too_many_in_flight(inputs.waits.late.first(), &inputs.replica.topology);
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        if let Some(late) = &self.state.inputs.waits.backlog {
            cx.mark("minerva.refused_behind");
            let abort = too_far_behind(late, &self.state.inputs.replica.topology);
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        let (procedure, args) = match &program {
            Program::Call { procedure, args } => (procedure, args),
            Program::Certified(Certified { reads, writes, .. }) => {
                return match check_size(reads, writes) {
                    Ok(()) => group.push((ticket, program)),
                    Err(abort) => cx.reply(ticket, Outcome::Aborted(abort)),
                };
            }
        };
        let registry = self.state.registry.clone();
        let Some(code) = registry.procedure(*procedure) else {
            return cx.reply(ticket, Outcome::Aborted(unknown_procedure(*procedure)));
        };
        if self.state.options.reads == Reads::Strict && code.is_read_only(args) {
            self.state.inputs.await_fresh(cx, ticket, program);
        } else if self.goes_in_order(*procedure, args) {
            self.probe(cx, ticket, program);
        } else {
            group.push((ticket, program));
        }
    }

    /// Whether a call is not executed now, but only at its place in the ordered queue.
    fn goes_in_order(&self, procedure: ProcedureId, args: &[u8]) -> bool {
        let State { registry, options, inputs, contention, .. } = &self.state;
        let is_lone = options.lone_in_order && inputs.replica.topology.node_count() == 1;
        contention.is_high()
            || is_bulk(registry, procedure, args)
            || is_lone && is_footprint_declared(registry, procedure, args)
    }

    /// Whether a program is read-only and may read the last epoch.
    fn is_snapshot_read(&self, program: &Program) -> bool {
        let Program::Call { procedure, args } = program else { return false };
        let code = self.state.registry.procedure(*procedure);
        self.state.options.reads == Reads::Snapshot && code.is_some_and(|it| it.is_read_only(args))
    }

    /// Runs read-only programs on the applied epoch and answers at once.
    pub(super) fn read_snapshot(&mut self, cx: &mut Cx<'_, Self>, reads: &[(Ticket, Program)]) {
        let nothing = Overlay::new();
        let overlay = mutate!(SnapshotSeesUncommitted: &nothing => &self.state.execution.overlay);
        let at = self.state.inputs.cut.applied;
        let at = mutate!(ReadsGoBack: at => reads_go_back(cx, at));
        self.state.inputs.read_snapshot(cx, &self.state.registry, overlay, at, reads);
    }

    /// §3.2, Algorithm 1, `ExecuteTransaction`.
    fn execute(&mut self, cx: &mut Cx<'_, Self>, group: Vec<(Ticket, Program)>) {
        cx.mark("minerva.executed");
        let first = self.state.inputs.streams.next_sequence;
        let name = |i: usize| TxnId::new(self.state.inputs.replica.me, first + i as u64);
        let named: Vec<_> = group.iter().enumerate().map(|(i, (_, p))| (name(i), p)).collect();
        cx.begin_work();
        let runs = optimistic::run_group(
            cx.pool,
            &self.state.registry,
            &named,
            cx.store,
            self.state.inputs.cut.applied,
            &mut self.state.execution.overlay,
        );
        cx.end_work(CpuStage::Execute, named.len());
        for ((ticket, program), run) in group.into_iter().zip(runs) {
            self.append_run(cx, ticket, program, run);
        }
    }

    fn append_run(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket, program: Program, run: Run) {
        if let (Program::Certified(_), Err(_)) = (&program, &run.result) {
            // It read something that has changed on this replica. It is not known yet whether the
            // change is valid. In the ordered queue it is, and the answer names a winner that has
            // committed.
            cx.mark("minerva.certified_in_order");
            let how = ExecutionMode::CertifiedInOrder;
            let weight = weight_of(&program, &how);
            return self.append(cx, Some(ticket), TxnPlan { program, how, weight }, Ok(Vec::new()));
        }
        let how = match &program {
            Program::Certified(_) => {
                cx.mark("minerva.certified");
                ExecutionMode::Certified
            }
            Program::Call { .. } => {
                ExecutionMode::Executed { reads: run.reads, writes: run.writes }
            }
        };
        let weight = weight_of(&program, &how);
        self.append(cx, Some(ticket), TxnPlan { program, how, weight }, run.result);
    }

    /// §4: probes a program for its footprint and adds it to the current batch unexecuted.
    fn probe(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket, program: Program) {
        let Program::Call { procedure, args } = &program else {
            panic!("certified transactions have a footprint");
        };
        let is_declared = is_footprint_declared(&self.state.registry, *procedure, args);
        let found = (!is_declared).then(|| {
            cx.begin_work();
            let found = optimistic::probe(
                &self.state.registry,
                &program,
                cx.store,
                self.state.inputs.cut.applied,
                &self.state.execution.overlay,
            );
            cx.end_work(CpuStage::Probe, 1);
            found
        });
        cx.mark("minerva.probed");
        let footprint = found.and_then(size::if_small);
        let how = ExecutionMode::Ordered { footprint };
        let weight = weight_of(&program, &how);
        self.append(cx, Some(ticket), TxnPlan { program, how, weight }, Ok(Vec::new()));
    }

    /// Rebuilds the overlay from the writes in flight, for a snapshot that was not reached epoch by
    /// epoch.
    pub(super) fn rebuild_overlay(&mut self) {
        let own = &self.state.inputs.streams.logs[self.state.inputs.replica.me.index()];
        let head = self.state.inputs.cut.heads[self.state.inputs.replica.me.index()];
        let (keep, applied) = (self.state.options.keep_uncommitted, self.state.inputs.cut.applied);
        // If the temporary state is reset every epoch, only writes of runs on this epoch belong to
        // it.
        let is_visible = |base| keep || base == applied;
        let Execution { overlay, in_flight, current, current_base, .. } = &mut self.state.execution;
        overlay.clear();
        let sent = own.slots.range(head.next()..).map(|(_, slot)| &slot.batch);
        let sent = sent.flat_map(|batch| batch.records.iter().map(|record| (record, batch.base)));
        let unsent = current.iter().map(|record| (record, *current_base));
        for ((record, base), in_flight) in sent.chain(unsent).zip(&*in_flight) {
            assert_eq!(
                record.txn, in_flight.txn,
                "in-flight transactions are those in sent and unsent batches"
            );
            if let Some((_, writes)) = record.learned()
                && is_visible(base)
                && !in_flight.is_doomed
            {
                overlay.insert(record.txn, writes);
            }
        }
    }

    /// Shows the writes of runs from before a restart to the next runs, if the temporary state is
    /// reset every epoch and both are on this epoch: runs of one source on one epoch don't
    /// conflict, because they see each other.
    pub(super) fn see_former_runs(&mut self, epoch: SnapshotVersion) {
        let former_base = self.state.execution.former_base;
        if self.state.options.keep_uncommitted || epoch > former_base {
            return;
        }
        if self.state.inputs.own_unapplied().any(|(_, batch)| batch.base == epoch) {
            self.rebuild_overlay();
        }
    }

    /// Assigns a transaction its name and its place in the current batch.
    fn append(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Option<Ticket>,
        plan: TxnPlan,
        result: Result<Vec<u8>, Abort>,
    ) {
        let execution = &mut self.state.execution;
        let inputs = &mut self.state.inputs;
        let txn = TxnId::new(inputs.replica.me, inputs.streams.next_sequence);
        inputs.streams.next_sequence += 1;
        let record = TxnRecord { txn, program: plan.program, how: plan.how };
        let dependencies = record.learned().map(|(r, _)| dependencies(r)).unwrap_or_default();
        if !dependencies.is_empty() {
            cx.mark("minerva.read_local");
        }
        let is_first = execution.current.is_empty();
        execution.current_base = inputs.cut.applied;
        execution.current.push(record);
        execution.current_bytes += plan.weight;
        execution.in_flight.push_back(InFlight {
            txn,
            ticket,
            result,
            dependencies,
            is_doomed: false,
        });
        self.state.counters.txns_local += 1;
        if let Some(ticket) = ticket {
            cx.named(ticket, txn.sequence());
        }
        if self.state.execution.current_bytes >= self.state.options.batch_bytes {
            cx.mark("minerva.batch_full");
            self.start_broadcast(cx);
        } else if is_first {
            cx.set_timer(Timer::Batch, self.state.options.batch());
        }
    }

    /// Closes the current batch and sends it.
    pub(super) fn start_broadcast(&mut self, cx: &mut Cx<'_, Self>) {
        cx.clear_timer(Timer::Batch);
        if !self.state.inputs.presence.is_ready {
            return;
        }
        let records = std::mem::take(&mut self.state.execution.current);
        let bytes = std::mem::take(&mut self.state.execution.current_bytes);
        let batch_bytes = self.state.options.batch_bytes;
        let weigh = |record: &TxnRecord| weight_of(&record.program, &record.how);
        for records in size::split_batches(records, bytes, batch_bytes, weigh) {
            self.broadcast(cx, records);
        }
    }

    fn broadcast(&mut self, cx: &mut Cx<'_, Self>, records: Vec<TxnRecord>) {
        let first = records.first().expect("a batch has a transaction").txn;
        let batch = Batch {
            source: self.state.inputs.replica.me,
            bid: self.state.inputs.own_log().received.next(),
            base: self.state.execution.current_base,
            first_sequence: first.sequence(),
            records,
        };
        cx.begin_work();
        let bytes = batch.encode();
        cx.end_work(CpuStage::Encode, bytes.len());
        self.state.inputs.broadcast(cx, batch, bytes);
    }
}

/// A transaction to be added to the batch, and its approximate size there in bytes.
struct TxnPlan {
    program: Program,
    how: ExecutionMode,
    weight: usize,
}

/// The local writers whose values a run depends on, each once. Writers whose deletions it saw are
/// not included: the key may be absent without them, and then the run is valid.
pub(super) fn dependencies(reads: &ReadSet) -> Vec<TxnId> {
    let points = reads.points.iter().map(|read| read.seen);
    let rows = reads.ranges.iter().flat_map(|read| read.rows.iter().map(|(_, seen)| *seen));
    let value_writer = |seen| match seen {
        ReadVersion::Local(writer) => Some(writer),
        ReadVersion::LocalDeleted(_)
        | ReadVersion::Absent
        | ReadVersion::At(_)
        | ReadVersion::Present => None,
    };
    let mut writers: Vec<TxnId> = points.chain(rows).filter_map(value_writer).collect();
    writers.sort_unstable();
    writers.dedup();
    writers
}

/// The approximate size of a transaction in a batch, in bytes. Values that the arguments contain
/// count twice, because it is not known yet whether they do.
fn weight_of(program: &Program, how: &ExecutionMode) -> usize {
    match how {
        ExecutionMode::Executed { reads, writes } => {
            size::program_bytes(program, None) + size::sets_bytes(reads, writes)
        }
        ExecutionMode::Ordered { footprint } => size::program_bytes(program, footprint.as_ref()),
        ExecutionMode::Certified | ExecutionMode::CertifiedInOrder => {
            size::program_bytes(program, None)
        }
    }
}

fn fresh_without_cut(state: &mut State) {
    if state.execution.in_flight.is_empty() {
        state.inputs.barriers.release_arrived();
    }
}

fn reads_go_back(cx: &Cx<'_, Minerva>, at: SnapshotVersion) -> SnapshotVersion {
    let before = SnapshotVersion(at.0.saturating_sub(1));
    cx.store.pin_at(before).map_or(at, |pin| pin.version())
}
