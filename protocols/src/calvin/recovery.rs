//! Restart, and what takes the place of a replica's state (§5): a checkpoint, and the inputs since.
//!
//! The log has every batch, and for each epoch that was run its cut. A restart runs them again, and
//! comes to the same state: nothing that a transaction wrote is in the log. What the procedures do
//! must then be what they did, or the state would differ from that of the other replicas; a cut
//! says under which code it was proposed, and another code refuses it.

use std::sync::Arc;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::{Cx, Durable};
use pangea_core::txn::Outcome;

use super::batch::{Batch, Bid, Request};
use super::state::InFlight;
use super::{Calvin, Cut};
use crate::inputs::{INTACT, Incoming, outcome_unknown};

/// What the log keeps of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EpochRecord {
    pub epoch: SnapshotVersion,
    pub cut: Cut,
}

impl EpochRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.epoch.0);
        let cut = postcard::to_stdvec(&self.cut).expect("a cut in memory can be encoded");
        out.put_bytes(&cut);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "epoch record";
        let from = &mut Reader::new(bytes);
        let epoch = SnapshotVersion(from.u64(WHAT)?);
        let cut = from.bytes(WHAT)?;
        let cut = postcard::from_bytes(cut).map_err(|_| DecodeError::new(WHAT))?;
        if !from.is_empty() {
            return Err(DecodeError::new(WHAT));
        }
        Ok(Self { epoch, cut })
    }
}

impl Calvin {
    /// The first input of every run.
    pub(super) fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        let mut found = self.state.inputs.on_restart(cx, durable);
        self.restore_in_flight();
        if !self.state.sequencer.in_flight.is_empty() {
            cx.mark("calvin.in_flight_restored");
        }
        for record in std::mem::take(&mut found.epochs) {
            let EpochRecord { epoch, cut } = EpochRecord::decode(&record).expect(INTACT);
            if epoch != self.state.inputs.cut.applied.next() {
                continue;
            }
            if !self.state.inputs.follows_rules(cx, epoch, &cut) {
                break;
            }
            cx.mark("calvin.epoch_replayed");
            self.begin_epoch(cx, epoch, cut);
            while self.state.running.is_some() {
                self.go_on(cx);
            }
        }
        self.state.inputs.start(cx, found);
    }

    /// Writes down that an epoch is run, so that a restart need not ask the others for it.
    pub(super) fn log_epoch(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion, cut: &Cut) {
        let record = EpochRecord { epoch, cut: cut.clone() };
        self.state.inputs.log_epoch(cx, epoch, record.encode().into());
    }

    /// Own batches beyond the applied cut are in flight.
    fn restore_in_flight(&mut self) {
        let inputs = &self.state.inputs;
        let applied = inputs.cut.heads[inputs.me.index()];
        let own = inputs.own_log().slots.range(applied.next()..);
        let requests = own.flat_map(|(_, slot)| &slot.batch.requests);
        self.state.sequencer.in_flight.extend(requests.map(InFlight::of_an_earlier_life));
    }

    /// A batch of this replica's own log came back. It will be run like any other, and nobody waits
    /// for it; what came after it may be in flight already.
    pub(super) fn on_own_batch(&mut self, batch: &Arc<Batch>) {
        let in_flight = &mut self.state.sequencer.in_flight;
        let first = batch.first_sequence;
        let later = in_flight.split_off(in_flight.partition_point(|it| it.txn.sequence() < first));
        in_flight.extend(batch.requests.iter().map(InFlight::of_an_earlier_life));
        in_flight.extend(later);
    }

    /// A peer's checkpoint takes the place of what this replica has.
    pub(super) fn on_checkpoint(&mut self, cx: &mut Cx<'_, Self>, incoming: Incoming<Self>) {
        // Rows that an epoch has half written would stay behind.
        while self.state.running.is_some() {
            self.go_on(cx);
        }
        if !self.state.inputs.is_of_use(cx, &incoming) {
            return;
        }
        self.forget_skipped(cx, incoming.head_of(self.state.inputs.me));
        self.state.inputs.install(cx, incoming);
    }

    /// Own requests up to `upto` have been run elsewhere; how they ended is not known here.
    fn forget_skipped(&mut self, cx: &mut Cx<'_, Self>, upto: Bid) {
        let inputs = &self.state.inputs;
        let applied = inputs.cut.heads[inputs.me.index()];
        let own = inputs.own_log().slots.range(applied.next()..);
        let skipped = own.take_while(|(bid, _)| **bid <= upto);
        let count: usize = skipped.map(|(_, slot)| slot.batch.requests.len()).sum();
        for waiting in self.state.sequencer.in_flight.drain(..count) {
            if let Some(ticket) = waiting.ticket {
                cx.mark("calvin.outcome_unknown");
                cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
            }
        }
    }
}

impl InFlight {
    /// Nobody waits for it here.
    fn of_an_earlier_life(request: &Request) -> Self {
        Self { txn: request.txn, ticket: None }
    }
}
