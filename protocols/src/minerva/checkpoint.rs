//! Replaces the state of this replica by a peer's checkpoint (§4).

use pangea_core::protocol::Cx;
use pangea_core::txn::Outcome;

use super::Minerva;
use super::batch::Bid;
use crate::inputs::{Incoming, outcome_unknown};

impl Minerva {
    /// Installs a peer's checkpoint.
    pub(super) fn on_checkpoint(&mut self, cx: &mut Cx<'_, Self>, incoming: Incoming) {
        // The rows of a partly applied epoch would remain.
        while self.state.commit.is_some() {
            self.resume_epoch(cx);
        }
        // Runs on the present state and runs on the new one did not see each other's writes.
        self.start_broadcast(cx);
        if !self.state.inputs.is_of_use(cx, &incoming) {
            return;
        }
        self.forget_skipped(cx, incoming.configuration().head_of(self.state.inputs.me()));
        self.state.inputs.install(cx, incoming);
        self.rebuild_overlay();
    }

    /// Drops local transactions up to `upto`: they have committed or aborted on other replicas, and
    /// their outcomes are unknown here.
    fn forget_skipped(&mut self, cx: &mut Cx<'_, Self>, upto: Bid) {
        let skipped = self.state.inputs.own_unapplied().take_while(|(bid, _)| *bid <= upto);
        let count: usize = skipped.map(|(_, batch)| batch.records.len()).sum();
        for in_flight in self.state.execution.in_flight.drain(..count) {
            if let Some(ticket) = in_flight.ticket {
                cx.mark("minerva.outcome_unknown");
                cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
            }
        }
    }
}
