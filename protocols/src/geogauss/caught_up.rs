//! A replica that has started creates no batch before it has those that its peers knew then.
//!
//! Some of them may have been created under other rules (`rules.rs`), because all nodes were killed
//! and then started with other settings or another program. The replica could not merge its own
//! epochs before those. If it created some all the same, then under the earlier rules they would be
//! the next ones that nobody can merge.
//!
//! ```text
//!   start --> each connected peer has reported --> has all batches of then --> runs programs
//!                                                     | one of other rules: clients wait
//! ```

use pangea_core::protocol::Cx;

use super::GeoGauss;
use super::batch::Batch;
use super::membership::Membership;
use super::rules::are_mixed;
use super::state::State;
use crate::streams::Heads;

/// How far a replica is since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum CaughtUp {
    /// Not all connected peers have reported.
    #[default]
    Unheard,
    /// The batches that were known when they had.
    Upto(Heads),
    /// It has these batches.
    Done,
}

impl State {
    /// Whether this replica may create batches.
    pub(super) fn has_caught_up(&mut self, cx: &mut Cx<'_, GeoGauss>) -> bool {
        if self.execution.caught_up == CaughtUp::Unheard {
            let mut peers = self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]);
            if peers.all(|peer| self.streams.has_reported[peer.index()]) {
                let known = self.streams.logs.iter().map(|log| log.bounds.last_upto(log.known));
                self.execution.caught_up = CaughtUp::Upto(known.collect());
            }
        }
        // Batches that do not count in the view of the others are not merged.
        let Membership { view, progress, .. } = &self.membership;
        let is_view_known = progress.iter().all(|it| it.view <= view.number);
        if let CaughtUp::Upto(heads) = &self.execution.caught_up
            && is_view_known
            && self.streams.has(heads)
            && !self.has_foreign()
        {
            cx.mark("geogauss.caught_up");
            self.execution.caught_up = CaughtUp::Done;
        }
        self.execution.caught_up == CaughtUp::Done
    }

    /// Whether an epoch that nobody has merged has a batch of other rules. If all of its batches
    /// are here, this replica refuses it (`commit.rs`).
    fn has_foreign(&self) -> bool {
        let merged = self.membership.progress.iter().map(|it| it.applied).max();
        let unmerged = || {
            let logs = self.streams.logs.iter().zip(&self.applied.heads);
            let slots = logs.flat_map(|(log, head)| log.slots.range(head.next()..));
            let batches = slots.map(|(_, slot)| &*slot.batch);
            batches.filter(|it| merged.is_none_or(|merged| it.epoch > merged))
        };
        let first = unmerged().filter(|it| !self.rules.allow(it)).min_by_key(|it| it.epoch);
        first.is_some_and(|first| {
            let of_epoch: Vec<&Batch> = unmerged().filter(|it| it.epoch == first.epoch).collect();
            !are_mixed(&of_epoch)
        })
    }
}
