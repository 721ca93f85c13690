//! A peer's checkpoint takes the place of what this replica has (§4).

use pangea_core::protocol::Cx;
use pangea_core::txn::Outcome;

use super::Minerva;
use super::batch::Bid;
use crate::inputs::{Incoming, outcome_unknown};

impl Minerva {
    /// Makes it this replica's state.
    pub(super) fn on_checkpoint(&mut self, cx: &mut Cx<'_, Self>, incoming: Incoming) {
        // Rows that an epoch has half applied would stay behind.
        while self.state.commit.is_some() {
            self.go_on(cx);
        }
        // Runs on what is here now and runs on what comes did not see each other.
        self.start_broadcast(cx);
        if !self.state.inputs.is_of_use(cx, &incoming) {
            return;
        }
        self.forget_skipped(cx, incoming.head_of(self.state.inputs.me));
        self.state.inputs.install(cx, incoming);
        self.rebuild_overlay();
    }

    /// Local transactions up to `upto` have committed or aborted elsewhere; how, is not known here.
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
