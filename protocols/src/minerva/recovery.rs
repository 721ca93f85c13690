//! Restart (§4, "Fault Tolerance"): applies the decisions in the log.
//!
//! Local transactions that were durable and not committed are still in flight. No client waits for
//! them on this replica any more, but they will commit, and their writes are in the temporary state
//! again.

use std::sync::Arc;

use pangea_core::mutate;
use pangea_core::protocol::{Cx, Durable};

use super::Minerva;
use super::batch::{Batch, TxnRecord};
use super::epoch_record::EpochRecord;
use super::execution::dependencies;
use super::state::InFlight;
use crate::inputs::Rules as _;
use crate::replica::INTACT;

impl Minerva {
    /// Handles the first input of every run.
    pub(super) fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        let mut found = self.state.inputs.on_restart(cx, durable);
        self.state.listed = self.state.inputs.listed_in_checkpoint();
        let applied = self.state.inputs.cut.applied;
        for (_, record) in std::mem::take(&mut found.epochs) {
            let resolution = EpochRecord::decode(&record).expect(INTACT);
            if resolution.epoch > applied {
                self.state.logged.insert(resolution.epoch, resolution);
            }
        }
        self.restore_in_flight();
        if !self.state.execution.in_flight.is_empty() {
            cx.mark("minerva.in_flight_restored");
        }
        self.replay_logged_epochs(cx);
        self.rebuild_overlay();
        self.state.inputs.start(cx, found);
    }

    /// Restores the transactions of local batches after the applied cut as in flight.
    fn restore_in_flight(&mut self) {
        let own = self.state.inputs.own_unapplied();
        let records = own.flat_map(|(_, batch)| &batch.records);
        self.state.execution.in_flight.extend(records.map(InFlight::of_an_earlier_life));
        let bases = self.state.inputs.own_unapplied().map(|(_, batch)| batch.base);
        self.state.execution.former_base = bases.max().unwrap_or_default();
    }

    /// Handles a batch of this replica's own log that a peer returned. It will commit like any
    /// other, and no client waits for it. Later batches may already be in flight.
    pub(super) fn on_own_batch(&mut self, batch: &Arc<Batch>) {
        let in_flight = &mut self.state.execution.in_flight;
        let first = batch.first_sequence;
        let later = in_flight.split_off(in_flight.partition_point(|it| it.txn.sequence() < first));
        in_flight.extend(batch.records.iter().map(InFlight::of_an_earlier_life));
        in_flight.extend(later);
        let former_base = &mut self.state.execution.former_base;
        *former_base = batch.base.max(*former_base);
    }

    /// Applies the epochs that the log has decided, without waiting for agreement. A record with
    /// all writes of its epoch can be applied by any program; one that asks for transactions to be
    /// executed again needs the code that executed them first.
    fn replay_logged_epochs(&mut self, cx: &mut Cx<'_, Self>) {
        while let Some(resolution) = self.state.logged.get(&self.state.inputs.cut.applied.next()) {
            let (epoch, cut) = (resolution.epoch, resolution.cut.clone());
            let executes_again = resolution.decisions.ordered.iter().any(|it| it.writes.is_none());
            let is_other = cut.rules.code() != self.state.inputs.settings.rules.code();
            if mutate!(OtherCodeRuns: executes_again && is_other => false) {
                self.state.inputs.refuse(cx, epoch, cut.rules.code());
                // A peer's checkpoint replaces this epoch, and perhaps later ones.
                return self.state.logged.clear();
            }
            self.begin_epoch(cx, epoch, cut);
        }
    }
}

impl InFlight {
    /// A transaction from before a restart, for which no client waits.
    fn of_an_earlier_life(record: &TxnRecord) -> Self {
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
