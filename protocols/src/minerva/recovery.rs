//! Restart (§4, "Fault Tolerance"): from the checkpoint and the log, through the normal phases.
//!
//! ```text
//!   checkpoint at epoch c --> batches and decisions of the log, in order
//!                         --> epochs c+1 .. that the log had resolved: applied as it says
//!                         --> agreement catches up, missing batches are fetched, and so on
//! ```
//!
//! Local transactions that were durable and not committed are still in flight: nobody waits for
//! them here any more, but they will commit, and their writes are in the temporary state again.

use pangea_core::codec::Reader;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::{Cx, Durable};

use std::sync::Arc;

use super::batch::{Batch, Bid, TxnRecord};
use super::collection::{Meta, PROGRESS};
use super::execution::dependencies;
use super::rejoin::Rejoined;
use super::replication::FETCH;
use super::resolution::Resolution;
use super::state::{InFlight, Slot};
use super::{Minerva, Timer, kind};
use crate::agreement::{self, Agreement, Record};

/// Why what the log holds can be read.
pub(super) const INTACT: &str = "the driver checked the record";

impl Minerva {
    /// The first input of every run.
    pub(super) fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        assert!(self.state.cut.agreement.is_none(), "a node restarts once in each run");
        let mut agreement_records = Vec::new();
        let mut agreement_from = LogPosition(0);
        let mut was_ready = durable.checkpoint.is_some();
        let is_known = |record: &[u8]| matches!(record[0], kind::AGREEMENT | kind::REJOINED);
        if let Some(checkpoint) = &durable.checkpoint {
            let meta = Meta::decode(&checkpoint.meta).expect("the driver checked the checkpoint");
            agreement_from = meta.log_head;
            self.install_meta(&meta);
            agreement_records = meta.agreement;
            self.state.cut.applied = checkpoint.version;
            self.state.cut.durable = checkpoint.version;
            if cx.store.published() < checkpoint.version {
                cx.store.publish(checkpoint.version);
            }
        }
        for (position, record) in durable.records {
            was_ready |= is_known(&record);
            self.read_record(position, &record, agreement_from, &mut agreement_records);
        }
        self.finish_logs();
        self.restore_in_flight();
        if !self.state.execution.in_flight.is_empty() {
            cx.mark("minerva.in_flight_restored");
        }
        self.replay_logged_epochs(cx);
        self.rebuild_overlay();
        let applied = self.state.cut.applied.0;
        let agreement =
            Agreement::new(self.state.me, &self.state.topology, agreement_records, applied);
        self.state.cut.agreement = Some(agreement);
        self.state.cut.last_proposal.proposer = self.state.me;
        self.state.cut.last_proposal.incarnation = cx.rng.u64(..);
        self.state.cut.heard_at.fill(cx.now.at);
        self.begin_greetings(cx, was_ready, durable.is_replaced);
        cx.set_timer(Timer::Tick, agreement::TICK);
        cx.set_timer(Timer::Epoch, self.state.options.epoch());
        cx.set_timer(Timer::Progress, PROGRESS);
        cx.set_timer(Timer::Fetch, FETCH);
    }

    /// Takes over what a checkpoint holds beside the tables.
    pub(super) fn install_meta(&mut self, meta: &Meta) {
        self.state.cut.heads.clone_from(&meta.heads);
        self.state.cut.is_member.clone_from(&meta.is_member);
        self.state.greetings.births.clone_from(&meta.births);
        for (source, log) in self.state.replication.logs.iter_mut().enumerate() {
            log.skip_to(meta.heads[source]);
        }
        for (log, next_sequence) in self.state.replication.logs.iter_mut().zip(&meta.sequences) {
            log.next_sequence = log.next_sequence.max(*next_sequence);
        }
        if let Some(target) = &meta.rejoin {
            self.aim_at(target.clone());
        }
        let execution = &mut self.state.execution;
        execution.next_sequence = execution.next_sequence.max(meta.next_sequence);
    }

    fn read_record(
        &mut self,
        position: LogPosition,
        record: &bytes::Bytes,
        agreement_from: LogPosition,
        agreement_records: &mut Vec<Record<super::state::Cut>>,
    ) {
        // The next restart has to read it again, however often this node is killed before it has
        // written as much anew.
        self.state.collection.owe(record.len());
        let (&kind, _) = record.split_first().expect(INTACT);
        let payload = record.slice(1..);
        match kind {
            kind::BATCH => {
                let batch = Batch::decode(&payload).expect(INTACT);
                let log = &mut self.state.replication.logs[batch.source.index()];
                let bid = batch.bid;
                log.insert(bid, Slot { bytes: payload, batch: Arc::new(batch), position });
            }
            kind::AGREEMENT if position <= agreement_from && !is_planted(Bug::BoundaryReplayed) => {
            }
            kind::AGREEMENT => {
                let records: Vec<Record<_>> = postcard::from_bytes(&payload).expect(INTACT);
                agreement_records.extend(records);
            }
            kind::EPOCH => {
                let resolution = Resolution::decode(&payload).expect(INTACT);
                if resolution.epoch > self.state.cut.applied {
                    self.state.logged.insert(resolution.epoch, resolution);
                }
            }
            // A checkpoint that was written after it says how far that led.
            kind::REJOINED if position <= agreement_from => {}
            kind::REJOINED => {
                let rejoined = Rejoined::decode(&payload).expect(INTACT);
                self.state.greetings.births = rejoined.births;
                self.state.execution.next_sequence = rejoined.next_sequence;
                agreement_records.extend(rejoined.agreement);
                self.aim_at(rejoined.target);
            }
            kind::DISCARD => {
                let from = &mut Reader::new(&payload);
                let node = NodeId(from.u16("discard").expect(INTACT));
                let after = Bid(from.u64("discard").expect(INTACT));
                self.state.replication.logs[node.index()].discard_after(after);
            }
            kind::BIRTH => {
                let from = &mut Reader::new(&payload);
                let node = NodeId(from.u16("birth").expect(INTACT));
                self.state.greetings.births[node.index()] = from.u64("birth").expect(INTACT);
            }
            other => panic!("record {position} has the unknown kind {other}"),
        }
    }

    /// Everything that was read from the log is durable.
    fn finish_logs(&mut self) {
        let me = self.state.me.index();
        for (source, log) in self.state.replication.logs.iter_mut().enumerate() {
            log.durable = log.held;
            self.state.replication.durable[me][source] = log.held;
        }
        let own = self.state.own_log().slots.values();
        let next = own.map(|slot| slot.batch.end_sequence()).max();
        let execution = &mut self.state.execution;
        if !is_planted(Bug::NumbersReused) {
            execution.next_sequence = execution.next_sequence.max(next.unwrap_or(0));
        }
    }

    /// Own batches beyond the applied cut are in flight.
    pub(super) fn restore_in_flight(&mut self) {
        let applied = self.state.cut.heads[self.state.me.index()];
        let own = self.state.own_log().slots.range(applied.next()..);
        let batches: Vec<Arc<Batch>> = own.map(|(_, slot)| slot.batch.clone()).collect();
        let execution = &mut self.state.execution;
        let records = batches.iter().flat_map(|batch| &batch.records);
        execution.in_flight.extend(records.map(InFlight::of_an_earlier_life));
    }

    /// The epochs that the log had resolved come first, without waiting for agreement.
    fn replay_logged_epochs(&mut self, cx: &mut Cx<'_, Self>) {
        while let Some(resolution) = self.state.logged.get(&self.state.cut.applied.next()) {
            let (epoch, cut) = (resolution.epoch, resolution.cut.clone());
            self.begin_epoch(cx, epoch, cut);
        }
        self.state.cut.durable = self.state.cut.applied;
    }
}

impl InFlight {
    /// Nobody waits for it here.
    pub(super) fn of_an_earlier_life(record: &TxnRecord) -> Self {
        let learned = record.learned();
        Self {
            txn: record.txn,
            ticket: None,
            result: Ok(Vec::new()),
            dependencies: learned.map(|(r, _)| dependencies(r)).unwrap_or_default(),
            is_doomed: false,
        }
    }
}

impl super::state::SourceLog {
    /// Everything up to `head` is part of the state: its batches are not needed here.
    pub(super) fn skip_to(&mut self, head: super::batch::Bid) {
        self.collect(head);
        self.held = self.held.max(head);
        self.durable = self.durable.max(head);
        self.known = self.known.max(head);
        self.advance_held();
    }
}
