//! Execution over shards: cells that are committed on all shards run in order (§3.3).
//!
//! Each shard runs the transactions that it has a part in, in the order of their stamps, with the
//! executor of [`pangea_core::exec::ordered::Sharded`]. A shard that only reads for a transaction
//! sends its rows to those that write. These all run the program, with the same result. The shards
//! of a divisible program exchange nothing: none of them receives, retains or logs rows for it.

use std::collections::BTreeMap;

use pangea_core::codec::{Reader, Writer};
use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::{Ended, Job, Served, ShardOutcome};
use pangea_core::ids::{ShardId, SnapshotVersion, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::RecordHeader;
use pangea_core::txn::Program;

use super::super::Tiga;
use super::super::coordinator::InFlight;
use super::super::log::{Log, Position};
use super::super::messages::Message;
use super::super::state::State;
use super::detection::encode_txns;
use super::{Received, Shards};
use crate::remote_results::RemoteResult;
use crate::replica::kind;

/// No further cell is begun while this number of transactions has not ended, because requesting all
/// locks of a cell is one step.
const PENDING_MAX: usize = 16_384;

/// After this number of transactions a step passes no further cell to the executor.
const SCHEDULED_MAX: usize = 64;

/// The maximum number of transactions that a step runs on each worker.
const STEP_TXNS_MAX: usize = 32;

impl Tiga {
    /// Passes the cells that are committed on all shards to the executor.
    pub(super) fn schedule(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.missed_rows().is_some() {
            // The checkpoint that it takes contains all cells that are begun.
            return;
        }
        let State { shards, log, commit, transactions, registry, cluster, foreign, .. } =
            &mut self.state;
        let Some(shards) = shards else { return };
        let through = shards.through(log, commit);
        let (mut count, before, mut revoked) = (0, shards.scheduled, Vec::new());
        cx.begin_work();
        while shards.scheduled < commit.committed && shards.sharded.len() < PENDING_MAX {
            let next = Position(shards.scheduled.0 + 1);
            let cell = log.cell(next);
            if cell.version > through || foreign.contains_key(&next) {
                break;
            }
            if count >= SCHEDULED_MAX {
                cx.resume();
                break;
            }
            let void = shards.void_in(cell, transactions);
            for (txn, _) in cell.txns.iter().filter(|(txn, _)| !void.contains(txn)) {
                let stamped = transactions.get(*txn).expect("the log has what this replica has");
                let request = &stamped.request;
                let home = cluster.nodes[txn.node().index()].shard;
                let program = (&request.program, request.footprint.as_ref());
                shards.sharded.push(registry, cell.version, *txn, home, program);
            }
            count += cell.txns.len();
            if !void.is_empty() {
                revoked.push((cell.version, void));
            }
            let rows = shards.received.get(&cell.version).into_iter().flat_map(|it| &it.rows);
            for ((shard, txn), reads) in rows {
                shards.sharded.receive(*txn, *shard, reads.clone());
            }
            shards.scheduled = next;
        }
        cx.end_work(CpuStage::Lock, count);
        let begun = before.0 + 1..=shards.scheduled.0;
        let cells = begun.map(|at| self.state.log.cell(Position(at)));
        self.state.note_reached(cx, Milestone::Begun, cells);
        revoked.iter().for_each(|(version, void)| self.revoke(cx, *version, void));
    }

    /// Runs some of the transactions that are ready.
    pub(super) fn run_ready(&mut self, cx: &mut Cx<'_, Self>) {
        let registry = self.state.registry.clone();
        let header = &|job: &Job<'_>| RecordHeader::new(job.txn);
        let most = STEP_TXNS_MAX * cx.pool.workers();
        let shards = self.shards();
        if shards.sharded.is_ready() {
            cx.begin_work();
            let (served, ended) =
                shards.sharded.advance(cx.pool, &registry, cx.store, header, most);
            cx.end_work(CpuStage::Order, served.len() + ended.len());
            if self.shards().sharded.is_ready() {
                cx.mark("tiga.run_in_steps");
                cx.resume();
            }
            self.serve(cx, served);
            self.take_ended(cx, ended);
        }
        self.note_executed(cx);
    }

    /// Sends rows to the shards that run the transactions.
    fn serve(&mut self, cx: &mut Cx<'_, Self>, served: Vec<Served>) {
        let mut by_shard: BTreeMap<(ShardId, SnapshotVersion), Vec<RemoteResult>> = BTreeMap::new();
        for Served { txn, version, to, part } in served {
            for shard in to.iter() {
                let items = by_shard.entry((shard, version)).or_default();
                items.push(RemoteResult::Reads(txn, part.clone()));
            }
        }
        for (of, items) in by_shard {
            cx.mark("tiga.served");
            self.send_for_cell(cx, of, None, &items);
        }
    }

    /// Notes the outcomes of transactions of this node, and sends those of others whose shards do
    /// not run them.
    fn take_ended(&mut self, cx: &mut Cx<'_, Self>, ended: Vec<Ended>) {
        let (node, here) = (self.state.node, self.state.shard);
        for Ended { txn, version, active, outcome } in ended {
            let home = self.state.cluster.nodes[txn.node().index()].shard;
            if txn.node() == node {
                if let Some(own) = self.state.coordinator.in_flight.get_mut(&txn) {
                    own.outcome = Some(outcome).filter(|it| *it != ShardOutcome::Served);
                }
            } else if active.iter().next() == Some(here) && !active.contains(home) {
                self.shards().outcomes.insert(txn, (version, outcome));
                self.send_outcome(cx, txn);
            }
        }
    }

    /// Sends the outcome of a transaction to its coordinator, if that is subscribed to this node.
    pub(in super::super) fn send_outcome(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId) {
        let home = self.state.cluster.nodes[txn.node().index()].shard;
        let Some(shards) = &self.state.shards else { return };
        let Some((version, outcome)) = shards.outcomes.get(&txn) else { return };
        let is_subscribed = |shard| shards.streams[shard].subscribers.contains(&txn.node());
        if home != self.state.shard && is_subscribed(&home) {
            cx.mark("tiga.outcome_sent");
            let mut result = Vec::new();
            RemoteResult::Outcome(txn, outcome.clone()).encode(&mut result);
            cx.send(txn.node(), Message::Outcome { version: *version, result: result.into() });
        }
    }

    /// The outcome of a transaction of this node arrives from a shard that has run it.
    pub(in super::super) fn on_outcome(
        &mut self,
        cx: &mut Cx<'_, Self>,
        version: SnapshotVersion,
        bytes: &[u8],
    ) {
        let from = &mut Reader::new(bytes);
        let Ok(RemoteResult::Outcome(txn, outcome)) = RemoteResult::decode(from) else {
            return cx.mark("tiga.malformed_items");
        };
        if self.state.coordinator.in_flight.contains_key(&txn) {
            self.state.told_version = self.state.told_version.max(version);
        }
        self.end_divided(cx, txn, version, outcome);
    }

    /// Answers the clients of the transactions of a cell that have run here.
    pub(super) fn answer_ran(
        &mut self,
        cx: &mut Cx<'_, Self>,
        version: SnapshotVersion,
        own: &[TxnId],
    ) {
        for txn in own {
            let in_flight = self.state.coordinator.in_flight.get_mut(txn);
            if let Some(outcome) = in_flight.and_then(|own| own.outcome.take()) {
                self.end_divided(cx, *txn, version, outcome);
            }
        }
    }

    /// Answers the client of a transaction, or orders it again if it has left its footprint.
    pub(super) fn end_divided(
        &mut self,
        cx: &mut Cx<'_, Self>,
        txn: TxnId,
        version: SnapshotVersion,
        outcome: ShardOutcome,
    ) {
        match outcome {
            ShardOutcome::Ran(result) => self.answer(cx, txn, version, result),
            ShardOutcome::Served => {}
            ShardOutcome::FootprintViolated => {
                let Some(done) = self.state.coordinator.in_flight.remove(&txn) else { return };
                cx.mark("tiga.left_footprint");
                let InFlight { ticket, stamped, tries, .. } = done;
                let program: Program = stamped.request.program.clone();
                self.look_up(cx, ticket, program, tries.left + 1);
                // It is sent by the next step.
                cx.resume();
            }
            ShardOutcome::Void => self.stamp_again(cx, txn),
        }
    }

    /// Notes how far the cells have been run, and logs the rows of other shards for them.
    fn note_executed(&mut self, cx: &mut Cx<'_, Self>) {
        let State { shards, log, commit, replica, synced, .. } = &mut self.state;
        let Some(shards) = shards else { return };
        let oldest = shards.sharded.oldest();
        let before = commit.executed;
        while commit.executed < shards.scheduled {
            let next = Position(commit.executed.0 + 1);
            if oldest.is_some_and(|oldest| oldest <= log.version_at(next)) {
                break;
            }
            commit.executed = next;
        }
        let version = log.version_at(commit.executed);
        if commit.executed > before {
            let later = shards.received.split_off(&version.next());
            let used = std::mem::replace(&mut shards.received, later);
            shards.forget_sizes(version);
            let is_new = |version: &SnapshotVersion| *version > shards.kept;
            if used.keys().any(is_new) {
                let none = BTreeMap::new();
                let logged = mutate!(ReceivedForgotten: &used => &none);
                let record = encode_received(log.needed_base(), version, logged);
                let record = replica.persist(cx, &kind::RECEIVED, record.into());
                shards.logging.push_back((version, record));
            }
            let rows = used.values().flat_map(|of_cell| &of_cell.rows);
            rows.for_each(|((_, txn), _)| shards.sharded.forget(*txn));
            shards.used.extend(used);
        }
        while let Some((upto, _)) = shards.logging.pop_front_if(|(_, at)| *at <= *synced) {
            shards.logged = shards.logged.max(upto);
        }
        if shards.logging.is_empty() {
            shards.logged = shards.logged.max(version);
        }
        shards.keep_logged(log);
    }
}

impl Shards {
    /// Needs nothing more up to the last cell whose rows are durable here. Behind a checkpoint of a
    /// peer, which is in memory alone, nothing is.
    pub(in super::super) fn keep_logged(&mut self, log: &Log) {
        let is_durable = log.needed_base() == Position(0);
        if mutate!(KeptBehindCheckpoint: is_durable => true) {
            self.need_only_after(self.kept.max(self.logged));
        }
    }
}

/// Encodes the rows of other shards for cells up to a version, which a restart can use if its log
/// begins at a base or after it. See `restore_received`.
pub(super) fn encode_received(
    base: Position,
    upto: SnapshotVersion,
    received: &Received,
) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_varint(base.0);
    out.put_varint(upto.0);
    for (version, of_cell) in received {
        for (shard, places) in &of_cell.places {
            out.put_varint(version.0);
            out.put_u16(shard.0);
            out.put_u8(1);
            encode_txns(places, &mut out);
        }
        for ((shard, txn), reads) in &of_cell.rows {
            out.put_varint(version.0);
            out.put_u16(shard.0);
            out.put_u8(0);
            out.put_u64(txn.to_bits());
            reads.encode(&mut out);
        }
    }
    out
}
