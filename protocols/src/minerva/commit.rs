//! Phase 4: deterministic validation and re-execution (§3.5, Algorithm 4).
//!
//! ```text
//!   batches of the cut --> chains --> stale? --> conflict graph --> independent set
//!                                       |                               |      |
//!                                       |              not in the set --+      +--> apply writes
//!                                       +--> ordered queue <------------+           |
//!                                              ^     |                              v
//!                              probed, certified     +--> run in (source, id) order, after
//!                              in order
//! ```
//!
//! Every replica computes the same result independently. The decisions are logged with the epoch,
//! the new snapshot is published, and the clients of this replica are answered. A client is
//! answered as soon as the epoch is applied. The epoch's cut is durable on a majority and its
//! batches on f + 1 replicas, so the outcome, which follows from them, can't be lost with this
//! node.

use std::sync::Arc;

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::{self, Finished, Job, ResultDetail};
use pangea_core::exec::{is_bulk, is_footprint_declared, writes_bytes};
use pangea_core::hash::HashSet;
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::pool::{Pool, Sequential};
use pangea_core::protocol::{Cx, ListedFate};
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::txn::{Footprint, Outcome, Program};

use super::batch::{Batch, ExecutionMode, TxnRecord};
use super::chains::{self, Chain, Entry, entries_of};
use super::conflict_graph::{self, ConflictGraph, Limit};
use super::conflict_keys::first_run;
use super::contention::Change;
use super::epoch_record::EpochRecord;
use super::header;
use super::independent_set::{self, Graph};
use super::options::Solver;
use super::state::Execution;
use super::validation::Validator;
use super::{Cut, Minerva};
use crate::decisions::{Decisions, Ordered, WriteSetRef};
use crate::inputs::{attempt, skipped};
use crate::replica::INTACT;

/// The approximate maximum of write sets in an epoch's record, in bytes. Writes above it are
/// re-executed when the log is read, like bulk loads: a record has a size limit, and an epoch has
/// none.
const LOGGED_BYTES_MAX: usize = 64 << 20;

/// The accounting of the ordered queue's writes in an epoch's record.
struct Logged {
    /// The bytes that may still be logged.
    room: usize,
    /// The bytes that were not logged: a restart re-executes their transactions.
    owed: usize,
}

/// The decisions on an epoch's transactions.
struct Verdict {
    /// For each entry, whether it commits as it was executed.
    is_valid: Vec<bool>,
    /// The number of stale optimistic transactions.
    stale: u64,
    /// The number of optimistic transactions whose chain is not in the independent set.
    conflicting: u64,
}

impl Verdict {
    fn valid(&self) -> usize {
        self.is_valid.iter().filter(|&&valid| valid).count()
    }

    fn optimistic(&self) -> usize {
        self.valid() + (self.stale + self.conflicting) as usize
    }
}

/// An epoch that is being applied. Each step runs at most `slice_txns` transactions of its ordered
/// queue, so that a large epoch does not delay the inputs of the next ones: batches,
/// acknowledgements, agreement.
pub(super) struct Commit {
    epoch: SnapshotVersion,
    cut: Cut,
    /// The batches of the epoch, ordered by source and then by number.
    batches: Vec<Arc<Batch>>,
    verdict: Verdict,
    /// The ordered queue, as positions among the epoch's entries.
    queue: Vec<usize>,
    /// The results of the queue so far.
    finished: Vec<Finished>,
}

impl Commit {
    fn is_done(&self) -> bool {
        self.finished.len() == self.queue.len()
    }

    /// The entries of the queue that run next, at most `len_max`.
    fn next_slice(&self, len_max: usize) -> Vec<Entry<'_>> {
        let queue = &self.queue[self.finished.len()..];
        let (mut first, mut batches) = (0, self.batches.iter());
        let mut batch = batches.next();
        let entry = |&i: &usize| {
            while let Some(passed) = batch.filter(|batch| i >= first + batch.records.len()) {
                first += passed.records.len();
                batch = batches.next();
            }
            let batch = batch.expect("the queue has the entries of the epoch, in order");
            Entry { record: &batch.records[i - first], base: batch.base }
        };
        queue[..queue.len().min(len_max)].iter().map(entry).collect()
    }
}

impl Minerva {
    /// Begins `epoch`, whose batches have all arrived. Returns the number of its transactions.
    pub(super) fn begin_epoch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: Cut,
    ) -> usize {
        let batches = self.state.inputs.batches_of(&cut);
        let txns = batches.iter().map(|batch| batch.records.len()).sum();
        let begun = attempt(cx, |cx| self.decide_epoch(cx, epoch, cut, batches));
        self.state.inputs.note_attempt(cx, epoch, begun);
        txns
    }

    /// Runs the next transactions of the ordered queue, and ends the epoch after the last ones.
    pub(super) fn resume_epoch(&mut self, cx: &mut Cx<'_, Self>) {
        let epoch = self.state.inputs.cut.applied.next();
        let resumed = attempt(cx, |cx| self.run_queue(cx));
        self.state.inputs.note_attempt(cx, epoch, resumed);
    }

    fn decide_epoch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: Cut,
        batches: Vec<Arc<Batch>>,
    ) {
        assert_eq!(epoch, self.state.inputs.cut.applied.next(), "epochs are applied in order");
        assert!(self.state.commit.is_none(), "one epoch is applied at a time");
        if let Some(resolution) = self.state.logged.remove(&epoch) {
            return self.replay(cx, &cut, &batches, resolution);
        }
        let own_head = cut.heads[self.state.inputs.replica.me.index()];
        self.state.inputs.note_reached(cx, Milestone::Begun, own_head);
        let entries = entries_of(&batches);
        let fate = ListedFate::Skipped { txns: entries.len() as u64 };
        self.state.inputs.note_listed(&mut self.state.listed, epoch, fate);
        cx.begin_work();
        let verdict = match self.state.inputs.is_skipped(cx, epoch) {
            true => Verdict { is_valid: vec![false; entries.len()], stale: 0, conflicting: 0 },
            false => self.filter_conflicts(cx, epoch, &entries),
        };
        cx.end_work(CpuStage::Validate, verdict.optimistic());
        cx.begin_work();
        let parallel = self.state.options.parallel_commit;
        let pool: &dyn Pool = if parallel { cx.pool } else { &Sequential };
        apply_valid(cx.store, pool, epoch, &entries, &verdict.is_valid);
        cx.end_work(CpuStage::Apply, verdict.valid());
        self.state.inputs.note_reached(cx, Milestone::Validated, own_head);
        let queue: Vec<usize> = (0..entries.len()).filter(|&i| !verdict.is_valid[i]).collect();
        let in_order = |pair: &[usize]| entries[pair[0]].record.txn < entries[pair[1]].record.txn;
        assert!(queue.windows(2).all(in_order), "entries are sorted by source and id");
        let finished = Vec::with_capacity(queue.len());
        self.state.commit = Some(Commit { epoch, cut, batches, verdict, queue, finished });
        self.run_queue(cx);
    }

    fn run_queue(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(mut commit) = self.state.commit.take() else { return };
        let slice = commit.next_slice(self.state.options.slice_txns.get());
        cx.begin_work();
        let finished = match self.state.inputs.is_skipped(cx, commit.epoch) {
            true => slice.iter().map(|_| skipped(commit.epoch)).collect(),
            false => self.run_slice(cx, commit.epoch, &slice),
        };
        cx.end_work(CpuStage::Order, slice.len());
        commit.finished.extend(finished);
        if !commit.is_done() {
            cx.mark("minerva.epoch_in_slices");
            cx.resume();
            self.state.commit = Some(commit);
            return;
        }
        let Commit { epoch, cut, batches, verdict, queue, finished } = commit;
        cx.begin_work();
        let entries = entries_of(&batches);
        self.count(cx, entries.len(), &verdict, &finished);
        let mut outcomes: Vec<Option<Finished>> = entries.iter().map(|_| None).collect();
        for (&i, finished) in queue.iter().zip(finished) {
            outcomes[i] = Some(finished);
        }
        self.log_epoch(cx, epoch, &cut, &entries, queue, &outcomes, verdict.is_valid);
        self.end_epoch(cx, epoch, &cut, &entries, outcomes);
        cx.end_work(CpuStage::Settle, entries.len());
    }

    /// Ends an epoch whose writes are all in the store: makes them visible and answers the waiting
    /// clients.
    fn end_epoch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: &Cut,
        entries: &[Entry<'_>],
        outcomes: Vec<Option<Finished>>,
    ) {
        self.finish_epoch(cx, epoch, cut);
        self.settle_in_flight(cx, epoch, entries, outcomes);
        self.see_former_runs(epoch);
        self.state.inputs.release_barriers(cx, cut);
        self.read_released(cx);
        // Now, while the epoch's writes are still in the processor's caches.
        self.state.inputs.reclaim(cx);
    }

    /// Logs the decisions, so that a restart does not have to compute them again.
    #[expect(clippy::too_many_arguments, reason = "the fields of a record")]
    fn log_epoch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: &Cut,
        entries: &[Entry<'_>],
        queue: Vec<usize>,
        outcomes: &[Option<Finished>],
        is_valid: Vec<bool>,
    ) {
        // The order in which they took effect: among those that ran together, a transaction of a
        // later pass came later.
        let mut in_effect = queue;
        let pass = |&i: &usize| (outcomes[i].as_ref().map(|finished| finished.passes), i);
        for slice in in_effect.chunks_mut(self.state.options.slice_txns.get()) {
            mutate!(LoggedInQueueOrder: slice.sort_by_key(pass) => ());
        }
        let in_effect = mutate!(EpochNotLogged: in_effect => Vec::new());
        let mut logged = Logged { room: LOGGED_BYTES_MAX, owed: 0 };
        let ordered = in_effect
            .iter()
            .filter_map(|&i| self.logged_writes(entries[i].record, i, outcomes, &mut logged));
        let decisions = Decisions { ordered: ordered.collect(), is_valid };
        let resolution = EpochRecord { epoch, cut: cut.clone(), decisions };
        let mut record = Vec::new();
        resolution.encode(&mut record);
        self.state.inputs.log_epoch(cx, epoch, record.into());
        self.state.inputs.replica.owe(logged.owed);
    }

    /// The part of an ordered queue's entry that is logged.
    fn logged_writes<'a>(
        &self,
        record: &'a TxnRecord,
        entry: usize,
        outcomes: &'a [Option<Finished>],
        logged: &mut Logged,
    ) -> Option<Ordered<'a>> {
        let finished = outcomes[entry].as_ref().expect("each entry of the queue was run");
        if finished.writes.is_empty() {
            return None;
        }
        let is_bulk = self.is_bulk(record);
        let bytes = writes_bytes(&finished.writes);
        let is_kept = !is_bulk && !self.state.options.rerun_on_restart && bytes <= logged.room;
        if is_kept {
            logged.room -= bytes;
        } else if !is_bulk {
            logged.owed += bytes;
        }
        let wrote = || WriteSetRef::Here { writes: &finished.writes, args: record.args() };
        Some(Ordered { entry, writes: is_kept.then(wrote) })
    }

    /// Whether a transaction writes far more than its arguments contain.
    fn is_bulk(&self, record: &TxnRecord) -> bool {
        match &record.program {
            Program::Call { procedure, args } => is_bulk(&self.state.registry, *procedure, args),
            Program::Certified(_) => false,
        }
    }

    /// §3.6, Algorithm 5, `FilterConflicts`.
    fn filter_conflicts(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        entries: &[Entry<'_>],
    ) -> Verdict {
        let options = &self.state.options;
        let pool: &dyn Pool = if options.parallel_commit { cx.pool } else { &Sequential };
        let chains = chains::build(entries, options.keep_uncommitted);
        let validator = Validator {
            store: cx.store,
            before: SnapshotVersion(epoch.0 - 1),
            in_epoch: entries.iter().map(|entry| entry.record.txn).collect(),
            keep_uncommitted: options.keep_uncommitted,
        };
        let optimistic: usize = chains.iter().map(|chain| chain.members.len()).sum();
        cx.begin_work();
        let is_stale = validator.stale(pool, entries, &chains);
        cx.end_work(CpuStage::Stale, optimistic);
        let mut candidates: Vec<usize> = (0..chains.len()).filter(|&c| !is_stale[c]).collect();
        mutate!(OwnChainsFirst: () => own_chains_first(self, &chains, &mut candidates));
        mutate!(ModeDecides: () => if self.state.contention.is_high() { candidates.clear() });
        cx.begin_work();
        let limit = Limit(options.conflicts_max);
        let ConflictGraph { vertices, edges } =
            conflict_graph::build(pool, entries, &chains, &candidates, limit);
        cx.end_work(CpuStage::Graph, optimistic);
        if vertices.len() < candidates.len() {
            cx.mark("minerva.crowded");
        }
        let weights = vertices.iter().map(|&c| chains[c].members.len() as u64).collect();
        self.state.counters.graph_edges += edges.len() as u64;
        cx.begin_work();
        let graph = Graph::new(weights, edges);
        let solution = match options.solver {
            Solver::Exact => independent_set::exact(&graph, options.solver_nodes_max),
            Solver::Greedy => independent_set::greedy(&graph),
        };
        cx.end_work(CpuStage::Solve, optimistic);
        if options.solver == Solver::Exact && !solution.proven {
            self.state.counters.solver_unproven += 1;
            cx.mark("minerva.solver_unproven");
        }
        let mut is_valid = vec![false; entries.len()];
        for &vertex in &solution.chosen {
            for &member in &chains[vertices[vertex as usize]].members {
                is_valid[member] = true;
            }
        }
        let size = |c: usize| chains[c].members.len() as u64;
        let stale = (0..chains.len()).filter(|&c| is_stale[c]).map(size).sum();
        let valid = is_valid.iter().filter(|&&valid| valid).count() as u64;
        Verdict { is_valid, stale, conflicting: optimistic as u64 - stale - valid }
    }

    /// Runs a part of the ordered queue, in the order of source priority, which is the source's
    /// number, and id.
    fn run_slice(
        &self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        slice: &[Entry<'_>],
    ) -> Vec<Finished> {
        let footprints: Vec<Option<Footprint>> =
            slice.iter().map(|entry| self.footprint_of_run(entry.record)).collect();
        let jobs: Vec<Job<'_>> = slice
            .iter()
            .zip(&footprints)
            .map(|(entry, found)| {
                let record = entry.record;
                let given = match &record.how {
                    ExecutionMode::Ordered { footprint } => footprint.as_ref(),
                    ExecutionMode::Executed { .. }
                    | ExecutionMode::Certified
                    | ExecutionMode::CertifiedInOrder => None,
                };
                Job {
                    txn: record.txn,
                    program: &record.program,
                    footprint: given.or(found.as_ref()),
                }
            })
            .collect();
        let header = &|job: &Job<'_>| header_in_order(job.txn, job.program);
        let (registry, detail) = (&self.state.registry, ResultDetail::Writes);
        ordered::execute(cx.pool, registry, cx.store, epoch, &jobs, header, detail)
    }

    /// The footprint that a run at the source found; `None` if the arguments determine it.
    fn footprint_of_run(&self, record: &TxnRecord) -> Option<Footprint> {
        let (ExecutionMode::Executed { reads, writes }, Program::Call { procedure, args }) =
            (&record.how, &record.program)
        else {
            return None;
        };
        (!is_footprint_declared(&self.state.registry, *procedure, args))
            .then(|| Footprint::of_run(reads, writes))
    }

    fn count(
        &mut self,
        cx: &mut Cx<'_, Self>,
        entries: usize,
        verdict: &Verdict,
        finished: &[Finished],
    ) {
        let valid = verdict.is_valid.iter().filter(|&&valid| valid).count() as u64;
        let optimistic = valid + verdict.stale + verdict.conflicting;
        let reexecuted = optimistic - valid;
        let counters = &mut self.state.counters;
        counters.txns_valid += valid;
        counters.txns_stale += verdict.stale;
        counters.txns_conflicting += verdict.conflicting;
        counters.txns_ordered += entries as u64 - optimistic;
        counters.reexecution_restarts +=
            finished.iter().map(|f| u64::from(f.passes.saturating_sub(1))).sum::<u64>();
        if finished.iter().any(|finished| finished.passes > 1) {
            cx.mark("minerva.second_pass");
        }
        if verdict.stale > 0 {
            cx.mark("minerva.stale");
        }
        if verdict.conflicting > 0 {
            cx.mark("minerva.conflicting");
        }
        let now = cx.now.at;
        let change =
            self.state.contention.on_epoch(&self.state.options, now, optimistic, reexecuted);
        if change == Change::Entered {
            self.state.counters.high_contention_entered += 1;
            cx.mark("minerva.high_contention_entered");
        }
    }

    /// Applies an epoch according to the decisions in the log.
    fn replay(
        &mut self,
        cx: &mut Cx<'_, Self>,
        cut: &Cut,
        batches: &[Arc<Batch>],
        resolution: EpochRecord<'_>,
    ) {
        cx.mark("minerva.epoch_replayed");
        let entries = entries_of(batches);
        let epoch = resolution.epoch;
        assert_eq!(
            resolution.decisions.is_valid.len(),
            entries.len(),
            "the record has the batches of its epoch"
        );
        let fate = resolution.decisions.fate_if_listed();
        self.state.inputs.note_listed(&mut self.state.listed, epoch, fate);
        apply_valid(cx.store, cx.pool, epoch, &entries, &resolution.decisions.is_valid);
        for Ordered { entry, writes } in resolution.decisions.ordered {
            let record = entries[entry].record;
            let Some(logged) = writes else {
                let finished = self.run_slice(cx, epoch, &entries[entry..=entry]);
                if !self.is_bulk(record) {
                    let bytes = finished.iter().map(|finished| writes_bytes(&finished.writes));
                    self.state.inputs.replica.owe(bytes.sum());
                }
                continue;
            };
            let header = header_in_order(record.txn, &record.program);
            for write in logged.read(record.args()).expect(INTACT) {
                let version = Version { version: epoch, header, value: write.value };
                cx.store.apply(write.table, write.key, version);
            }
        }
        let outcomes = entries.iter().map(|_| None).collect();
        self.end_epoch(cx, epoch, cut, &entries, outcomes);
    }

    /// Advances the applied epoch: its writes are all in the store.
    fn finish_epoch(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion, cut: &Cut) {
        self.state.inputs.finish_epoch(cx, epoch, cut);
        cx.store.publish(epoch);
        self.state.inputs.confirm(cx, epoch, cut);
        if !self.state.options.keep_uncommitted {
            // §3.2: the temporary state is reset to the new snapshot; runs on it start a batch.
            self.start_broadcast(cx);
            self.state.execution.overlay.clear();
        }
        self.state.inputs.checkpoint_if_due(cx);
    }

    /// Removes committed local transactions from the temporary state and answers their clients.
    fn settle_in_flight(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        entries: &[Entry<'_>],
        outcomes: Vec<Option<Finished>>,
    ) {
        let me = self.state.inputs.replica.me;
        let mut invalid = HashSet::default();
        let own = entries.iter().map(|entry| entry.record.txn).find(|txn| txn.node() == me);
        for (entry, finished) in entries.iter().zip(outcomes) {
            let record = entry.record;
            self.state.counters.txns_committed += 1;
            if record.txn.node() != me {
                continue;
            }
            let Some(in_flight) = self.state.execution.in_flight.pop_front() else {
                panic!(
                    "transaction {} committed on its node, but is not in flight there",
                    record.txn
                );
            };
            assert_eq!(in_flight.txn, record.txn, "local transactions commit in their order");
            let is_earlier = |read: &TxnId| own.is_some_and(|first| *read < first);
            if in_flight.is_doomed {
                cx.mark("minerva.cascade");
            } else if finished.is_none() && in_flight.dependencies.iter().any(is_earlier) {
                cx.mark("minerva.valid_across_epochs");
            }
            if let Some((_, writes)) = record.learned() {
                self.state.execution.overlay.remove(record.txn, writes);
                if finished.as_ref().is_some_and(|finished| !is_as_executed(record, finished)) {
                    invalid.insert(record.txn);
                }
            }
            let Some(ticket) = in_flight.ticket else { continue };
            let first_run = first_run(cx, record, finished.is_some());
            let result = match finished {
                Some(finished) => mutate!(FirstAnswerKept: finished.outcome => in_flight.result),
                None => in_flight.result,
            };
            if result.is_err() {
                self.state.counters.txns_aborted += 1;
            }
            let outcome = match result {
                Ok(result) => Outcome::Committed { txn: record.txn, version: epoch, result },
                Err(abort) => Outcome::Aborted(abort),
            };
            cx.reply_of_run(ticket, outcome, first_run);
        }
        if !invalid.is_empty() && self.state.options.keep_uncommitted {
            self.doom_dependents(cx, invalid);
        }
    }

    /// An extension of the paper (a): transactions that read the writes of an invalidated one will
    /// be stale. Their own writes are removed from the temporary state now, so that no further run
    /// builds on them. They must be certain to become stale: later runs don't see the removed
    /// writes, and runs of one source don't conflict.
    fn doom_dependents(&mut self, cx: &mut Cx<'_, Self>, mut doomed: HashSet<TxnId>) {
        let head = self.state.inputs.cut.heads[self.state.inputs.replica.me.index()];
        let own = &self.state.inputs.streams.logs[self.state.inputs.replica.me.index()];
        let sent = own.slots.range(head.next()..).flat_map(|(_, slot)| &slot.batch.records);
        let Execution { overlay, in_flight, current, .. } = &mut self.state.execution;
        for (in_flight, record) in in_flight.iter_mut().zip(sent.chain(&*current)) {
            assert_eq!(
                in_flight.txn, record.txn,
                "in-flight transactions are those in sent and unsent batches"
            );
            if in_flight.is_doomed || !in_flight.dependencies.iter().any(|d| doomed.contains(d)) {
                continue;
            }
            cx.mark("minerva.doomed");
            in_flight.is_doomed = true;
            doomed.insert(in_flight.txn);
            let (_, writes) =
                record.learned().expect("only executed transactions have dependencies");
            overlay.remove(record.txn, writes);
        }
    }
}

/// Whether a transaction did in the ordered queue exactly what its local readers saw: then they are
/// valid, and must not be doomed.
fn is_as_executed(record: &TxnRecord, finished: &Finished) -> bool {
    let is_certified = matches!(record.program, Program::Certified(_));
    mutate!(DoomedTooMuch: is_certified && finished.outcome.is_ok() => false)
}

/// The header of a write in the ordered queue. A call may have written something else than in its
/// first execution; a certified transaction has not.
fn header_in_order(txn: TxnId, program: &Program) -> RecordHeader {
    match program {
        Program::Call { .. } => {
            mutate!(ExecutedAgainUnmarked: header::reexecuted(txn) => header::as_executed(txn))
        }
        Program::Certified(_) => header::as_executed(txn),
    }
}

/// §3.5, Algorithm 4, line 4: applies the write sets of valid transactions as they were executed.
pub(super) fn apply_valid(
    store: &Store,
    pool: &dyn Pool,
    epoch: SnapshotVersion,
    entries: &[Entry<'_>],
    is_valid: &[bool],
) {
    let valid = entries.iter().zip(is_valid).filter(|(_, valid)| **valid);
    let writes = valid.flat_map(|(entry, _)| {
        let (_, writes) = entry.record.learned().expect("only optimistic runs are valid");
        let header = header::as_executed(entry.record.txn);
        writes.iter().map(move |write| {
            let version = Version { version: epoch, header, value: write.value.clone() };
            (write.table, write.key.clone(), version)
        })
    });
    store.apply_batch(pool, epoch, writes.collect());
}

fn own_chains_first(minerva: &Minerva, chains: &[Chain], vertices: &mut [usize]) {
    vertices.sort_by_key(|&c| chains[c].origin.source != minerva.state.inputs.replica.me);
}
