//! The merge of ready epochs, and the answers to clients (§4.1.1, lines 23 to 35; §4.1.3).
//!
//! ```text
//!   ready epoch --> merge of the write sets --> apply --> programs in order --> publish
//!                         |                                     |                 |
//!                         +--> lost: tried again, or an error   |                 v
//!                                                               +------------> answers
//! ```
//!
//! Programs that run in order come after the write sets, in rank order. Each sees the epoch's rows
//! as they are then, so it loses to nobody: its place in the order cost no round of agreement.

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::{self, Finished, Job as OrderedJob, ResultDetail};
use pangea_core::exec::{Change, is_bulk, writes_bytes};
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::{RecordHeader, Version};
use pangea_core::txn::{Abort, Outcome, Program, SqlState, Write};

use super::GeoGauss;
use super::batch::{Batch, TxnRecord, Work};
use super::deletions::hash_row;
use super::early::{MergedEpoch, read_lost};
use super::merge::{Before, Candidate, Fate, decide};
use super::rank::{Rank, RankInputs};
use super::recovery::EpochRecord;
use super::rules::{Rules, are_mixed, horizon_of, of_two_programs};
use super::state::{InFlight, Merged, State};
use crate::decisions::{Decisions, Ordered, WriteSetRef};
use crate::inputs::{self, refuses_clients, stopping};
use crate::streams::{BufferedBatch, Heads};

/// The result of a transaction of an epoch.
pub(super) enum Decision {
    /// Its writes are merged, and these are rows to which it has added.
    Merged(Vec<Write>),
    Lost(Abort),
    /// A row can't hold what it adds.
    Failed(Abort),
    Ran(Finished),
}

impl Decision {
    pub(super) fn is_commit(&self) -> bool {
        match self {
            Self::Merged(_) => true,
            Self::Lost(_) | Self::Failed(_) => false,
            Self::Ran(finished) => finished.outcome.is_ok(),
        }
    }
}

/// The transactions of an epoch, ordered by source, batch and position.
#[derive(Clone, Copy)]
struct Epoch<'a> {
    number: SnapshotVersion,
    records: &'a [&'a TxnRecord],
    /// Whether each transaction may have read an epoch that was rolled back.
    has_read_lost: &'a [bool],
    node_count: usize,
}

impl Epoch<'_> {
    fn rank(&self, i: usize) -> Rank {
        let rank = Rank::new(self.records[i].inputs, self.number, self.node_count);
        mutate!(TieByArrival: rank => rank.with_turn(i as u64))
    }
}

/// The hashes of deleted rows.
#[derive(Default)]
pub(super) struct Deleted {
    pub rows: Vec<u64>,
}

impl Deleted {
    /// Adds the row of a write, if it is a deletion.
    pub(super) fn note(&mut self, write: &Write) {
        if write.value.is_none() {
            self.rows.push(hash_row(write.table, &write.key));
        }
    }
}

impl GeoGauss {
    /// Merges the epochs that are ready, in order, and answers strict reads.
    pub(super) fn merge_ready(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.stops.is_over() || self.state.has_failed {
            return self.answer_fresh(cx);
        }
        self.confirm_ready(cx);
        let mut merged = 0;
        while !self.state.stops.is_over()
            && let Some((epoch, heads)) = self.state.next_ready()
            && (self.state.is_skipped(epoch) || self.state.may_merge(cx, epoch, &heads))
            && self.state.may_begin(cx, epoch)
        {
            if merged >= EPOCHS_IN_STEP_MAX {
                cx.mark("geogauss.epochs_in_steps");
                return cx.resume();
            }
            self.try_to_merge(cx, epoch, heads);
            merged += 1;
        }
        self.confirm_ready(cx);
        self.answer_fresh(cx);
    }

    pub(super) fn merge_epoch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        number: SnapshotVersion,
        heads: Heads,
    ) {
        let state = &mut self.state;
        assert!(number > state.applied.epoch, "epochs are merged in order");
        let own_head = heads[state.me().index()];
        state.streams.note_reached(cx, &state.replica, Milestone::Ordered, own_head);
        state.streams.note_reached(cx, &state.replica, Milestone::Begun, own_head);
        let batches = state.batches_upto(&heads);
        let records: Vec<&TxnRecord> = batches.iter().flat_map(|batch| &batch.records).collect();
        let node_count = state.replica.topology.node_count();
        let has_read_lost = state.has_read_lost(cx, &batches);
        let epoch = Epoch { number, records: &records, has_read_lost: &has_read_lost, node_count };
        let mut decisions: Vec<Option<Decision>> = records.iter().map(|_| None).collect();
        let mut deleted = Deleted::default();
        let skipped = state.is_skipped(number).then_some(records.len() as u64);
        let ran = if skipped.is_some() {
            cx.mark("geogauss.epoch_skipped");
            decisions.fill_with(|| Some(Decision::Ran(inputs::skipped(number))));
            Vec::new()
        } else if are_mixed(&batches) {
            cx.mark("geogauss.epoch_of_two_programs");
            decisions.fill_with(|| Some(Decision::Lost(of_two_programs())));
            Vec::new()
        } else {
            state.merge_write_sets(cx, epoch, &mut decisions, &mut deleted);
            state.streams.note_reached(cx, &state.replica, Milestone::Validated, own_head);
            state.run_in_order(cx, epoch, &mut decisions, &mut deleted)
        };
        cx.begin_work();
        let record = state.record_of(epoch, &heads, &decisions, ran);
        let own = state.take_own(&records, decisions);
        state.doom_dependents(cx, &own, own_head);
        let horizon = horizon_of(number, &batches);
        let merged = Merged { epoch: number, heads, deleted: deleted.rows, horizon };
        state.applied.advance(merged.clone());
        // A replica that was removed adds nothing to the epochs of the others.
        state.epochs.skip_to(number.next());
        cx.store.publish(number);
        let merged = MergedEpoch { state: merged, record, own, skipped };
        match self.state.early {
            None => self.confirm(cx, merged),
            Some(_) => self.keep_early(cx, merged),
        }
        cx.end_work(CpuStage::Settle, records.len());
    }

    /// Answers the clients of this node whose transactions were in an epoch.
    pub(super) fn settle(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        own: Vec<(TxnId, Decision)>,
    ) {
        for (txn, decision) in own {
            // Nobody waits for a transaction from before a restart.
            let in_flight = self.state.execution.in_flight.pop_front_if(|it| it.txn == txn);
            let Some(InFlight { job, result, answered, .. }) = in_flight else { continue };
            if answered.is_some() {
                if !decision.is_commit() {
                    self.report_lost(cx, txn);
                }
                continue;
            }
            let outcome = match decision {
                Decision::Lost(abort) => {
                    self.try_again(cx, job, abort);
                    continue;
                }
                Decision::Merged(_) => Ok(result),
                Decision::Failed(abort) => Err(abort),
                Decision::Ran(finished) => finished.outcome,
            };
            let outcome = match outcome {
                Ok(result) => {
                    self.state.counters.txns_committed += 1;
                    Outcome::Committed { txn, version: epoch, result }
                }
                Err(abort) => {
                    self.state.counters.txns_aborted += 1;
                    Outcome::Aborted(abort)
                }
            };
            cx.reply(job.ticket, outcome);
        }
    }
}

/// After this number of epochs a step merges no other: a replica may learn of many at once.
const EPOCHS_IN_STEP_MAX: usize = 16;

/// The maximum number of versions removed from the store at a time, so that no step takes long.
const RECLAIM_VERSIONS_MAX: usize = 50_000;

/// The approximate maximum of write sets in an epoch's record, in bytes. Programs with writes above
/// it run again when the log is read, like bulk loads, and additions are computed again: a record
/// has a size limit, and an epoch has none.
const LOGGED_BYTES_MAX: usize = if cfg!(test) { 1 << 10 } else { 64 << 20 };

impl State {
    /// Whether all batches of an epoch were created under this replica's rules, or under rules that
    /// differ from each other. Otherwise it waits for the checkpoint of a peer that has merged it.
    fn may_merge(
        &mut self,
        cx: &mut Cx<'_, GeoGauss>,
        epoch: SnapshotVersion,
        heads: &Heads,
    ) -> bool {
        let batches = self.batches_upto(heads);
        let other = batches.iter().find(|batch| !self.rules.allow(batch));
        let other = other.filter(|_| !are_mixed(&batches));
        other.into_iter().for_each(|batch| self.refuse(cx, epoch, batch.rules));
        other.is_none()
    }

    /// Records that this replica can't merge an epoch.
    pub(super) fn refuse(&mut self, cx: &mut Cx<'_, GeoGauss>, epoch: SnapshotVersion, by: Rules) {
        if !self.is_refusing() {
            cx.mark("geogauss.epoch_refused");
            self.refused = Some((epoch, by));
        }
        if self.replica.topology.node_count() == 1 {
            self.refused().into_iter().for_each(|why| cx.stop(why));
        }
    }

    /// Why this replica can't continue, if its rules differ from those of an epoch. If a connected
    /// peer has merged the epoch, a checkpoint of it replaces the epoch here, and no operator has
    /// to act.
    pub(super) fn refused(&self) -> Option<String> {
        let is_merged = |epoch: SnapshotVersion| {
            let mut peers = self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]);
            peers.any(|peer| self.membership.progress[peer.index()].applied >= epoch)
        };
        let refused = self.refused.filter(|(epoch, _)| self.is_refusing() && !is_merged(*epoch));
        let (epoch, rules) = refused?;
        self.rules.refuses(&self.replica, epoch, &rules)
    }

    /// Whether this replica can't merge an epoch because its rules differ.
    pub(super) fn is_refusing(&self) -> bool {
        self.refused.is_some_and(|(epoch, _)| epoch > self.applied.epoch)
    }

    /// Why this replica accepts no requests, if it does not.
    pub(super) fn refusal(&self) -> Option<Abort> {
        self.refused().map(refuses_clients).or_else(|| self.stops.is_stopping().then(stopping))
    }

    /// The batches after those that are merged, up to these heads, in the order of their sources.
    pub(super) fn batches_upto(&self, heads: &Heads) -> Vec<Arc<Batch>> {
        let logs = self.streams.logs.iter().zip(self.applied.heads.iter().zip(heads));
        let logs = logs.filter(|(_, (from, upto))| from < upto);
        let slots = logs.flat_map(|(log, (from, upto))| log.slots.range(from.next()..=*upto));
        let slots = slots.map(|(_, slot)| slot);
        mutate!(TieByArrival: () => return in_order_of_arrival(slots));
        mutate!(LoserStopsClaiming: () => return in_order_of_arrival(slots));
        slots.map(|slot| slot.batch.clone()).collect()
    }

    /// The results of this replica's transactions of an epoch. They are decided, and nobody else
    /// reads their writes from the overlay.
    fn take_own(
        &mut self,
        records: &[&TxnRecord],
        decisions: Vec<Option<Decision>>,
    ) -> Vec<(TxnId, Decision)> {
        let me = self.me();
        let own = records.iter().zip(decisions).filter(|(it, _)| it.inputs.txn.node() == me);
        let own = own.map(|(record, decision)| {
            let txn = record.inputs.txn;
            if let Work::Merge { checks, .. } = &record.work {
                let writes = checks.writes.iter().map(|it| &it.write);
                self.execution.overlay.remove(txn, writes);
            }
            (txn, decision.expect("each transaction is decided"))
        });
        own.collect()
    }

    /// Removes the versions from the store that no reader of the confirmed epoch sees.
    pub(super) fn reclaim(&self, cx: &Cx<'_, GeoGauss>) {
        cx.store.reclaim_at_most(self.confirmed().epoch, RECLAIM_VERSIONS_MAX);
    }

    /// Whether each transaction of some batches may have read an epoch that was rolled back.
    fn has_read_lost(&self, cx: &mut Cx<'_, GeoGauss>, batches: &[Arc<Batch>]) -> Vec<bool> {
        let mut of_records = Vec::new();
        for batch in batches {
            let is_known = batch.base.is_none_or(|base| self.applied.lineages.has(base));
            let is_known = mutate!(LostReadCounts: is_known => true);
            if !is_known {
                cx.mark("geogauss.has_read_lost");
            }
            of_records.extend(batch.records.iter().map(|_| !is_known));
        }
        of_records
    }

    /// §4.1.2: merges the write sets and applies those of the transactions that commit.
    fn merge_write_sets(
        &mut self,
        cx: &mut Cx<'_, GeoGauss>,
        epoch: Epoch<'_>,
        decisions: &mut [Option<Decision>],
        deleted: &mut Deleted,
    ) {
        let records = epoch.records.iter().enumerate();
        let (places, mut candidates): (Vec<usize>, Vec<Candidate<'_>>) = records
            .filter_map(|(i, record)| {
                let Work::Merge { base, checks } = &record.work else { return None };
                if epoch.has_read_lost[i] {
                    decisions[i] = Some(Decision::Lost(read_lost()));
                    return None;
                }
                let txn = record.inputs.txn;
                Some((i, Candidate { txn, rank: epoch.rank(i), base: *base, checks }))
            })
            .unzip();
        mutate!(OwnPartFirst: () => own_part_first(self.me(), epoch, &places, &mut candidates));
        let version = self.applied.epoch;
        let (registry, deletions) = (&*self.registry, &self.applied.deletions);
        let before = Before { store: cx.store, version, deletions, registry };
        cx.begin_work();
        let verdict = decide(cx.pool, self.options.merge, before, &candidates);
        cx.end_work(CpuStage::Validate, candidates.len());
        cx.begin_work();
        let in_order = verdict.order.iter().map(|&i| epoch.records[places[i]]);
        let added = verdict.added.iter().map(|rows| &rows[..]);
        apply_merged(cx, epoch.number, in_order.zip(added), deleted);
        cx.end_work(CpuStage::Apply, verdict.order.len());
        for (i, added) in verdict.order.into_iter().zip(verdict.added) {
            decisions[places[i]] = Some(Decision::Merged(added));
        }
        for (place, fate) in places.into_iter().zip(verdict.fates) {
            decisions[place] = Some(match fate {
                Fate::Commits => continue,
                Fate::Lost(change) => {
                    cx.mark("geogauss.lost");
                    self.execution.hot.note_loss(change.table, &change.key, cx.now.at);
                    Decision::Lost(Change::into_abort(change))
                }
                Fate::Failed(abort) => {
                    cx.mark("geogauss.add_failed");
                    Decision::Failed(abort)
                }
                Fate::TooOld => {
                    cx.mark("geogauss.too_old");
                    Decision::Lost(too_old())
                }
            });
        }
    }

    /// Runs the programs of an epoch that every replica runs, in rank order. Returns their places
    /// in the order of their effects.
    fn run_in_order(
        &mut self,
        cx: &mut Cx<'_, GeoGauss>,
        epoch: Epoch<'_>,
        decisions: &mut [Option<Decision>],
        deleted: &mut Deleted,
    ) -> Vec<usize> {
        let jobs = epoch.records.iter().enumerate();
        let jobs = jobs.filter_map(|(i, record)| Some((i, in_order(record)?)));
        let (mut places, mut jobs): (Vec<usize>, Vec<OrderedJob<'_>>) = jobs.unzip();
        if jobs.is_empty() {
            return places;
        }
        if mutate!(InOrderBySource: true => self.me() != NodeId(0)) {
            places.sort_unstable_by_key(|&i| epoch.rank(i));
        }
        jobs.clear();
        jobs.extend(places.iter().filter_map(|&i| in_order(epoch.records[i])));
        cx.begin_work();
        let finished = self.execute(cx, epoch.number, &jobs);
        cx.end_work(CpuStage::Order, jobs.len());
        self.counters.txns_ordered += jobs.len() as u64;
        let passes: Vec<u32> = finished.iter().map(|it| it.passes).collect();
        for (&place, finished) in places.iter().zip(finished) {
            finished.writes.iter().for_each(|write| deleted.note(write));
            decisions[place] = Some(Decision::Ran(finished));
        }
        // Among those that ran together, one of a later pass came later.
        let mut ran: Vec<(u32, usize)> = passes.into_iter().zip(places).collect();
        ran.sort_by_key(|(pass, _)| *pass);
        ran.into_iter().map(|(_, place)| place).collect()
    }

    /// Runs programs at their place in the order.
    pub(super) fn execute(
        &self,
        cx: &Cx<'_, GeoGauss>,
        epoch: SnapshotVersion,
        jobs: &[OrderedJob<'_>],
    ) -> Vec<Finished> {
        let header = &|job: &OrderedJob<'_>| RecordHeader::new(job.txn);
        let (registry, detail) = (&self.registry, ResultDetail::Writes);
        ordered::execute(cx.pool, registry, cx.store, epoch, jobs, header, detail)
    }

    /// The record of the decisions, so that a restart does not have to find them again. `ran` are
    /// the places of the programs that ran in order.
    fn record_of(
        &self,
        epoch: Epoch<'_>,
        heads: &Heads,
        decisions: &[Option<Decision>],
        ran: Vec<usize>,
    ) -> Bytes {
        let is_merged = |it: &Option<Decision>| matches!(it, Some(Decision::Merged(_)));
        let added = decisions.iter().enumerate().filter_map(|(entry, it)| match it {
            Some(Decision::Merged(rows)) if epoch.records[entry].work.has_adds() => {
                let writes = Some(WriteSetRef::Here { writes: rows, args: &[] });
                Some((writes_bytes(rows), Ordered { entry, writes }))
            }
            _ => None,
        });
        let (sizes, mut added): (Vec<_>, Vec<_>) = added.unzip();
        let mut room = LOGGED_BYTES_MAX;
        // All of them or none: one depends on those before it.
        match room.checked_sub(sizes.iter().sum()) {
            Some(left) => room = left,
            None => added.clear(),
        }
        let logged = |entry: usize| {
            let Some(Decision::Ran(Finished { writes, .. })) = &decisions[entry] else {
                return None;
            };
            if writes.is_empty() {
                return None;
            }
            let record = epoch.records[entry];
            let bytes = writes_bytes(writes);
            let is_kept = !self.is_bulk(record) && bytes <= room;
            room -= if is_kept { bytes } else { 0 };
            let writes = WriteSetRef::Here { writes, args: args_of(record) };
            Some(Ordered { entry, writes: is_kept.then_some(writes) })
        };
        let ordered = added.into_iter().chain(ran.into_iter().filter_map(logged)).collect();
        let is_valid = decisions.iter().map(is_merged).collect();
        let decisions = Decisions { is_valid, ordered };
        let (heads, before) = (heads.clone(), self.applied.epoch);
        EpochRecord { epoch: epoch.number, before, heads, decisions }.encode()
    }

    fn is_bulk(&self, record: &TxnRecord) -> bool {
        match &record.work {
            Work::InOrder { program: Program::Call { procedure, args }, .. } => {
                is_bulk(&self.registry, *procedure, args)
            }
            Work::InOrder { .. } | Work::Merge { .. } => false,
        }
    }
}

/// Applies the changes of transactions that are merged, in rank order, each with the rows to which
/// it has added: of two changes of a row the later one wins.
pub(super) fn apply_merged<'a>(
    cx: &Cx<'_, GeoGauss>,
    epoch: SnapshotVersion,
    in_order: impl Iterator<Item = (&'a TxnRecord, &'a [Write])>,
    deleted: &mut Deleted,
) {
    let mut writes = Vec::new();
    for (record, added) in in_order {
        let header = RecordHeader::new(record.inputs.txn);
        for it in record.checks().writes.iter().map(|it| &it.write).chain(added) {
            deleted.note(it);
            let version = Version { version: epoch, header, value: it.value.clone() };
            writes.push((it.table, it.key.clone(), version));
        }
    }
    cx.store.apply_batch(cx.pool, epoch, writes);
}

/// The transaction as a job of the executor, if every replica runs it.
pub(super) fn in_order(record: &TxnRecord) -> Option<OrderedJob<'_>> {
    let Work::InOrder { program, footprint } = &record.work else { return None };
    Some(OrderedJob { txn: record.inputs.txn, program, footprint: footprint.as_ref() })
}

/// The arguments of a program that runs in order.
pub(super) fn args_of(record: &TxnRecord) -> &[u8] {
    match &record.work {
        Work::InOrder { program: Program::Call { args, .. }, .. } => args,
        Work::InOrder { .. } | Work::Merge { .. } => &[],
    }
}

/// The error of a transaction whose snapshot is older than the horizon.
fn too_old() -> Abort {
    let message = "could not serialize access: the transaction is open for too long";
    Abort::new(SqlState::SERIALIZATION_FAILURE, message)
        .with_detail("Deletions since its snapshot are not remembered any more.")
        .with_hint("Use shorter transactions, or raise geogauss.horizon_ms.")
}

fn in_order_of_arrival<'a>(
    slots: impl Iterator<Item = &'a BufferedBatch<Batch>>,
) -> Vec<Arc<Batch>> {
    let mut slots: Vec<_> = slots.collect();
    slots.sort_by_key(|slot| slot.position);
    slots.into_iter().map(|slot| slot.batch.clone()).collect()
}

fn own_part_first(
    me: NodeId,
    epoch: Epoch<'_>,
    places: &[usize],
    candidates: &mut [Candidate<'_>],
) {
    let own = places.iter().zip(candidates).filter(|(_, it)| it.txn.node() == me);
    for (place, candidate) in own {
        let inputs = RankInputs { attempt: u8::MAX, ..epoch.records[*place].inputs };
        candidate.rank = Rank::new(inputs, epoch.number, epoch.node_count);
    }
}
