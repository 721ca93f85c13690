//! Epochs that can't be merged, and those that the operator has listed to be skipped.
//!
//! All replicas merge the same epochs, so a bug that one of them triggers stops every replica, and
//! again after every restart. The setting `skip_epochs` is the way past it, as with the other
//! protocols. The record of an epoch says that it was skipped. Before it is merged, a record of its
//! number is durable, so that a restart without the list skips it, too.

use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::{Cx, ListedEpoch, ListedFate, Protocol};

use super::GeoGauss;
use super::state::State;
use crate::inputs::{attempt, failed};
use crate::streams::Heads;

impl State {
    /// Whether the next epoch may be merged: a restart would skip it and the ones before it, if
    /// this run does.
    pub(super) fn may_begin(&mut self, cx: &mut Cx<'_, GeoGauss>, next: SnapshotVersion) -> bool {
        if self.options.skip_epochs.contains(next) && !self.skips.contains(next) {
            self.skips.log(cx, &mut self.replica, next);
        }
        self.skips.are_durable(self.streams.synced) && !self.has_failed
    }

    /// Whether an epoch is skipped: the operator has listed it, or had when an earlier run met it.
    pub(super) fn is_skipped(&self, epoch: SnapshotVersion) -> bool {
        self.options.skip_epochs.contains(epoch) || self.skips.contains(epoch)
    }

    /// Records what became of an epoch that the operator lists or listed to be skipped.
    pub(super) fn note_listed(&mut self, epoch: SnapshotVersion, fate: ListedFate) {
        if !self.is_skipped(epoch) {
            return;
        }
        let is_listed = self.options.skip_epochs.contains(epoch);
        let fate = match fate {
            ListedFate::Skipped { txns } if !is_listed => ListedFate::SkippedBefore { txns },
            fate => fate,
        };
        self.listed.push(ListedEpoch { epoch, fate });
    }
}

impl GeoGauss {
    /// Merges an epoch, and stops the replica if that fails.
    pub(super) fn try_to_merge(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        heads: Heads,
    ) {
        if let Err(why) = attempt(cx, |cx| self.merge_epoch(cx, epoch, heads)) {
            self.state.has_failed = true;
            let replica = &self.state.replica;
            cx.stop(failed(replica, <Self as Protocol>::NAME, epoch, &why));
        }
    }
}
