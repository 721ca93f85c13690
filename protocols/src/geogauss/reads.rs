//! Strict reads: a snapshot with everything that was acknowledged anywhere before.
//!
//! An epoch is merged when all replicas have ended it, so also this one. What was acknowledged
//! before a read arrived is therefore in an epoch that this replica had ended then. The read waits
//! until these epochs are merged here.

use pangea_core::ids::{SnapshotVersion, Ticket};
use pangea_core::protocol::Cx;

use super::GeoGauss;

impl GeoGauss {
    /// A strict read arrives.
    pub(super) fn await_fresh(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket) {
        cx.mark("geogauss.strict_read");
        let ended = SnapshotVersion(self.state.epochs.open.0 - 1);
        self.state.fresh.push((ended, ticket));
    }

    /// Answers the strict reads whose epochs are merged.
    pub(super) fn answer_fresh(&mut self, cx: &mut Cx<'_, Self>) {
        let merged = self.state.merged_through();
        let version = self.state.applied.epoch;
        self.state.fresh.retain(|(epoch, ticket)| {
            let waits = *epoch > merged;
            if !waits {
                cx.fresh(*ticket, version);
            }
            waits
        });
    }
}
