//! Phase 1: snapshot-based optimistic local execution (§3.2, Algorithm 1).
//!
//! A transaction runs where it arrived, at once, on the last epoch's snapshot with the uncommitted
//! writes of earlier local transactions over it. What it read, from which version, and what it
//! wrote goes into the current batch. In high-contention mode (§4) it is only probed.

use pangea_core::exec::optimistic::{self, Run};
use pangea_core::exec::{check_size, is_bulk, is_footprint_declared};
use pangea_core::ids::{ProcedureId, Ticket, TxnId};
use pangea_core::key::KeyRange;
use pangea_core::planted::{Bug, is_planted};
use pangea_core::pool::each;
use pangea_core::protocol::{Cx, Request, Submission};
use pangea_core::txn::{
    Abort, Certified, Footprint, Outcome, Program, ReadSet, Seen, SqlState, Write,
};
use pangea_core::work::Work;

use super::barrier::Waiter;
use super::batch::{How, TxnRecord};
use super::options::Reads;
use super::rejoin::not_rejoined;
use super::state::{Execution, InFlight, State};
use super::{Minerva, Timer};

/// More uncommitted local transactions than this are not taken: the cluster is not keeping up, or
/// this replica is cut off.
const IN_FLIGHT_MAX: usize = 400_000;

/// For fewer reads another worker is not woken.
const READS_MIN: usize = 4;

impl Minerva {
    /// Takes what clients want.
    pub(super) fn on_submit(&mut self, cx: &mut Cx<'_, Self>, submissions: Vec<Submission>) {
        let mut group = Vec::with_capacity(submissions.len());
        let mut reads = Vec::new();
        for Submission { ticket, request } in submissions {
            match request {
                Request::Commit(_) if self.state.rejoin.is_some() => {
                    cx.mark("minerva.refused_while_rejoining");
                    cx.reply(ticket, Outcome::Aborted(not_rejoined()));
                }
                Request::Fresh => self.state.barriers.arrived.push(Waiter::Session(ticket)),
                Request::Commit(program) if self.is_snapshot_read(&program) => {
                    reads.push((ticket, program));
                }
                Request::Commit(program) => self.sort_submission(cx, ticket, program, &mut group),
            }
        }
        if !reads.is_empty() {
            self.read_snapshot(cx, &reads);
        }
        if !group.is_empty() {
            self.execute(cx, group);
        }
        if !self.state.barriers.arrived.is_empty() {
            self.request_barrier(cx);
        }
    }

    /// Refuses what can't be taken, lets strict reads wait, probes what goes to the ordered queue,
    /// and leaves the rest in `group`.
    fn sort_submission(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        program: Program,
        group: &mut Vec<(Ticket, Program)>,
    ) {
        let is_held = !self.state.greetings.is_ready
            && self.state.execution.current_bytes >= self.state.options.batch_bytes;
        let is_full = self.state.execution.in_flight.len() + group.len() >= IN_FLIGHT_MAX;
        if is_held || is_full {
            cx.mark("minerva.too_many_in_flight");
            return cx.reply(ticket, Outcome::Aborted(too_many_in_flight()));
        }
        let (procedure, args) = match &program {
            Program::Call { procedure, args } => (procedure, args),
            Program::Certified(Certified { reads, writes }) => {
                return match check_size(reads, writes) {
                    Ok(()) => group.push((ticket, program)),
                    Err(abort) => cx.reply(ticket, Outcome::Aborted(abort)),
                };
            }
        };
        let registry = self.state.registry.clone();
        let Some(code) = registry.procedure(*procedure) else {
            let message = format!("no procedure has number {procedure}");
            let abort = Abort::new(SqlState::UNDEFINED_FUNCTION, message);
            return cx.reply(ticket, Outcome::Aborted(abort));
        };
        if self.state.options.reads == Reads::Strict && code.is_read_only(args) {
            self.await_fresh(cx, ticket, program);
        } else if self.goes_in_order(*procedure, args) {
            self.probe(cx, ticket, program);
        } else {
            group.push((ticket, program));
        }
    }

    /// Whether a call is not executed here and now, but at its place in the ordered queue alone.
    fn goes_in_order(&self, procedure: ProcedureId, args: &[u8]) -> bool {
        let State { registry, options, topology, contention, .. } = &self.state;
        let is_lone = options.lone_in_order && topology.node_count() == 1;
        contention.is_high()
            || is_bulk(registry, procedure, args)
            || is_lone && is_footprint_declared(registry, procedure, args)
    }

    /// Whether a program changes nothing and is content with the last epoch.
    fn is_snapshot_read(&self, program: &Program) -> bool {
        let Program::Call { procedure, args } = program else { return false };
        let code = self.state.registry.procedure(*procedure);
        self.state.options.reads == Reads::Snapshot && code.is_some_and(|it| it.is_read_only(args))
    }

    /// Runs read-only programs on the applied epoch and answers at once: a snapshot version is
    /// final and survives any f losses.
    pub(super) fn read_snapshot(&mut self, cx: &mut Cx<'_, Self>, reads: &[(Ticket, Program)]) {
        cx.mark("minerva.snapshot_read");
        let nothing = pangea_core::exec::Overlay::new();
        let overlay = match is_planted(Bug::SnapshotSeesUncommitted) {
            true => &self.state.execution.overlay,
            false => &nothing,
        };
        let (registry, applied, store) = (&*self.state.registry, self.state.cut.applied, cx.store);
        let parts = cx.pool.workers().min(reads.len() / READS_MIN).max(1);
        let part_len = reads.len().div_ceil(parts);
        cx.begin_work();
        let runs = each(cx.pool, parts, |part| {
            let reads = reads.chunks(part_len).nth(part).unwrap_or_default();
            let run = |program| optimistic::run(registry, program, store, applied, overlay);
            reads.iter().map(|(_, program)| run(program)).collect::<Vec<_>>()
        });
        cx.end_work(Work::Execute, reads.len());
        for ((ticket, _), run) in reads.iter().zip(runs.into_iter().flatten()) {
            let outcome = match run.result {
                Ok(_) if !run.writes.is_empty() => Outcome::Aborted(Abort::new(
                    SqlState::INTERNAL_ERROR,
                    "a procedure that is declared read-only wrote",
                )),
                Ok(result) => {
                    // It takes no place in the order, so it has no name of its own.
                    let txn = TxnId::new(self.state.me, 0);
                    Outcome::Committed { txn, version: applied, result }
                }
                Err(abort) => Outcome::Aborted(abort),
            };
            cx.reply(*ticket, outcome);
        }
    }

    /// Algorithm 1, ExecuteTransaction.
    fn execute(&mut self, cx: &mut Cx<'_, Self>, group: Vec<(Ticket, Program)>) {
        cx.mark("minerva.executed");
        let first = self.state.execution.next_sequence;
        let name = |i: usize| TxnId::new(self.state.me, first + i as u64);
        let named: Vec<_> = group.iter().enumerate().map(|(i, (_, p))| (name(i), p)).collect();
        cx.begin_work();
        let runs = optimistic::run_group(
            cx.pool,
            &self.state.registry,
            &named,
            cx.store,
            self.state.cut.applied,
            &mut self.state.execution.overlay,
        );
        cx.end_work(Work::Execute, named.len());
        for ((ticket, program), run) in group.into_iter().zip(runs) {
            self.append_run(cx, ticket, program, run);
        }
    }

    fn append_run(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket, program: Program, run: Run) {
        if let (Program::Certified(_), Err(_)) = (&program, &run.result) {
            // It saw something that has changed here. Whether what changed it is valid is not known
            // yet; in the ordered queue it is, and the answer names a winner that has committed.
            cx.mark("minerva.certified_in_order");
            let how = How::CertifiedInOrder;
            let weight = weight_of(&program, &how);
            return self.append(cx, Some(ticket), TxnPlan { program, how, weight }, Ok(Vec::new()));
        }
        let how = match &program {
            Program::Certified(_) => {
                cx.mark("minerva.certified");
                How::Certified
            }
            Program::Call { .. } => How::Executed { reads: run.reads, writes: run.writes },
        };
        let weight = weight_of(&program, &how);
        self.append(cx, Some(ticket), TxnPlan { program, how, weight }, run.result);
    }

    /// §4: probes a program for its footprint and puts it in the current batch unexecuted.
    fn probe(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket, program: Program) {
        let Program::Call { procedure, args } = &program else {
            panic!("certified transactions carry their footprint");
        };
        let is_declared = is_footprint_declared(&self.state.registry, *procedure, args);
        let footprint = (!is_declared).then(|| {
            cx.begin_work();
            let found = optimistic::probe(
                &self.state.registry,
                &program,
                cx.store,
                self.state.cut.applied,
                &self.state.execution.overlay,
            );
            cx.end_work(Work::Probe, 1);
            found
        });
        cx.mark("minerva.probed");
        let how = How::Ordered { footprint };
        let weight = weight_of(&program, &how);
        self.append(cx, Some(ticket), TxnPlan { program, how, weight }, Ok(Vec::new()));
    }

    /// Lays the writes of what is in flight over a snapshot that was not reached epoch by epoch.
    pub(super) fn rebuild_overlay(&mut self) {
        let own = &self.state.replication.logs[self.state.me.index()];
        let head = self.state.cut.heads[self.state.me.index()];
        let (keep, applied) = (self.state.options.keep_uncommitted, self.state.cut.applied);
        // Where the temporary state is reset every epoch, only what ran on this epoch belongs to
        // it.
        let is_visible = |base| keep || base == applied;
        let Execution { overlay, in_flight, current, current_base, .. } = &mut self.state.execution;
        overlay.clear();
        let sent = own.slots.range(head.next()..).map(|(_, slot)| &slot.batch);
        let sent = sent.flat_map(|batch| batch.records.iter().map(|record| (record, batch.base)));
        let unsent = current.iter().map(|record| (record, *current_base));
        for ((record, base), in_flight) in sent.chain(unsent).zip(&*in_flight) {
            assert_eq!(record.txn, in_flight.txn, "in flight is what is sent and what is not yet");
            if let Some((_, writes)) = record.learned()
                && is_visible(base)
                && !in_flight.is_doomed
            {
                overlay.insert(record.txn, writes);
            }
        }
    }

    /// Gives a transaction its name and its place in the current batch.
    fn append(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Option<Ticket>,
        plan: TxnPlan,
        result: Result<Vec<u8>, Abort>,
    ) {
        let execution = &mut self.state.execution;
        let txn = TxnId::new(self.state.me, execution.next_sequence);
        execution.next_sequence += 1;
        let record = TxnRecord { txn, program: plan.program, how: plan.how };
        let dependencies = record.learned().map(|(r, _)| dependencies(r)).unwrap_or_default();
        if !dependencies.is_empty() {
            cx.mark("minerva.read_local");
        }
        let is_first = execution.current.is_empty();
        execution.current_base = self.state.cut.applied;
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
}

/// A transaction on its way into the batch, and about how many bytes it will take there.
struct TxnPlan {
    program: Program,
    how: How,
    weight: usize,
}

/// The local writers without whose values a run is stale, each once. Not those whose deletions it
/// saw: the key may be gone without them, and then the run is valid.
pub(super) fn dependencies(reads: &ReadSet) -> Vec<TxnId> {
    let points = reads.points.iter().map(|read| read.seen);
    let rows = reads.ranges.iter().flat_map(|read| read.rows.iter().map(|(_, seen)| *seen));
    let value_writer = |seen| match seen {
        Seen::Local(writer) => Some(writer),
        Seen::LocalDeleted(_) | Seen::Absent | Seen::At(_) => None,
    };
    let mut writers: Vec<TxnId> = points.chain(rows).filter_map(value_writer).collect();
    writers.sort_unstable();
    writers.dedup();
    writers
}

fn too_many_in_flight() -> Abort {
    let message = format!("more than {IN_FLIGHT_MAX} transactions wait to be committed");
    Abort::new(SqlState::INSUFFICIENT_RESOURCES, message)
        .with_detail("The cluster is not keeping up, or this node can't reach a majority.")
        .with_hint("Try again later.")
}

/// No less than a transaction takes in a batch: a frame has a limit. A value that the arguments
/// hold counts twice, for whether they do is not known yet.
pub(super) fn weight_of(program: &Program, how: &How) -> usize {
    /// What is beside a key: its table, version and lengths.
    const KEY_BYTES: usize = 32;
    let range = |range: &KeyRange| {
        2 * KEY_BYTES + range.start.len() + range.end.as_ref().map_or(0, |end| end.len())
    };
    let sets = |reads: &ReadSet, writes: &[Write]| {
        let points: usize = reads.points.iter().map(|read| KEY_BYTES + read.key.len()).sum();
        let rows = reads.ranges.iter().flat_map(|range| &range.rows);
        let rows: usize = rows.map(|(key, _)| KEY_BYTES + key.len()).sum();
        let ranges: usize = reads.ranges.iter().map(|read| range(&read.range)).sum();
        let value = |write: &Write| write.value.as_ref().map_or(0, |value| value.len());
        let writes: usize =
            writes.iter().map(|write| KEY_BYTES + write.key.len() + value(write)).sum();
        points + rows + ranges + writes
    };
    match (program, how) {
        (Program::Certified(certified), _) => sets(&certified.reads, &certified.writes),
        (Program::Call { args, .. }, How::Executed { reads, writes }) => {
            args.len() + sets(reads, writes)
        }
        (Program::Call { args, .. }, How::Ordered { footprint }) => {
            let touched = |footprint: &Footprint| {
                let points = footprint.points.iter().map(|lock| KEY_BYTES + lock.key.len());
                let ranges = footprint.ranges.iter().map(|lock| range(&lock.range));
                points.sum::<usize>() + ranges.sum::<usize>()
            };
            args.len() + footprint.as_ref().map_or(0, touched)
        }
        (Program::Call { .. }, How::Certified | How::CertifiedInOrder) => {
            panic!("a call is executed or ordered")
        }
    }
}
