//! The members for which the next epoch waits: operators and clients are told their names.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Cx, WaitsFor};
use pangea_core::time::{Span, Timestamp};

use super::GeoGauss;
use super::batch::Batch;
use super::state::State;
use crate::streams::SourceLog;

/// A member is late if the next epoch has waited for this long, plus two round trips and epochs.
const PATIENCE: Span = Span::from_ms(500);

/// A replica refuses requests if this number of batches of one source wait to be merged.
const BEHIND_MAX: u64 = 256;

/// What the next epoch waits for.
#[derive(Default)]
pub(super) struct Waits {
    /// The next epoch, and since when it has waited.
    since: Option<(SnapshotVersion, Timestamp)>,
    /// The late members.
    pub late: Vec<WaitsFor>,
}

impl Waits {
    /// The next epoch has waited for so much less, because this replica was busy.
    pub(super) fn excuse(&mut self, late: Span) {
        self.since = self.since.map(|(epoch, since)| (epoch, since + late));
    }

    /// The member for which too many requests wait already, so that new ones are refused.
    pub(super) fn refuses(&self) -> Option<&WaitsFor> {
        self.late.iter().find(|late| late.epochs >= BEHIND_MAX)
    }
}

impl State {
    /// The members that have not ended an epoch, and those that have not acknowledged its batches.
    fn missing_for(&self, epoch: SnapshotVersion) -> Vec<(NodeId, &'static str)> {
        let members: Vec<NodeId> = self.membership.view.members().collect();
        let unended = members.iter().filter(|node| self.ended(**node) < epoch);
        let unended: Vec<_> = unended.map(|node| (*node, "end of an epoch")).collect();
        if !unended.is_empty() {
            return unended;
        }
        let lacks = |node: &&NodeId| {
            let heads = self.streams.durable[node.index()].iter();
            heads.zip(&self.streams.logs).any(|(head, log)| *head < log.received)
        };
        members.iter().filter(lacks).map(|node| (*node, "acknowledgements")).collect()
    }
}

impl State {
    /// The members that have not ended the next epoch, if that has waited for so long.
    pub(super) fn laggards(&self, cx: &Cx<'_, GeoGauss>, patience: Span) -> Vec<NodeId> {
        let waited = self.waits.since.filter(|(_, since)| cx.now.at.since(*since) >= patience);
        let Some((epoch, _)) = waited else { return Vec::new() };
        let members = self.membership.view.members();
        members.filter(|node| *node != self.me() && self.ended(*node) < epoch).collect()
    }
}

impl GeoGauss {
    /// Finds the members for which the next epoch has waited for long.
    pub(super) fn note_waits(&mut self, cx: &mut Cx<'_, Self>) {
        let state = &self.state;
        let next = state.first_early().or_else(|| state.next_epoch());
        let since = next.map(|next| match state.waits.since {
            Some((epoch, since)) if epoch == next => (epoch, since),
            _ => (next, cx.now.at),
        });
        let round_trip = state.replica.topology.round_trip_max().us;
        let patience = PATIENCE.us + 2 * (round_trip + state.options.epoch().us);
        let late = since.filter(|(_, since)| cx.now.at.since(*since).us >= patience);
        let late = late.map_or_else(Vec::new, |(epoch, _)| {
            let unmerged = state.streams.logs.iter().zip(&state.confirmed().heads);
            let last = |log: &SourceLog<Batch>| log.bounds.last_upto(log.received).0;
            let unmerged = unmerged.map(|(log, head)| last(log).saturating_sub(head.0));
            let epochs = unmerged.max().unwrap_or_default();
            let of = |(node, what): (NodeId, &str)| WaitsFor {
                node: state.replica.node(node),
                what: what.to_owned(),
                epochs,
            };
            state.missing_for(epoch).into_iter().map(of).collect()
        });
        if !late.is_empty() && state.waits.late.is_empty() {
            cx.mark("geogauss.waits_for_node");
        }
        self.state.waits.since = since;
        self.state.waits.late = late;
    }
}
