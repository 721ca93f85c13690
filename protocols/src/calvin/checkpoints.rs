//! Checkpoints (§5), in one of three modes.
//!
//! | `checkpoints` | versions that the store keeps | when it is taken | what continues |
//! |---|---|---|---|
//! | `versions` | every version that a reader may need | when it is due | everything |
//! | `zigzag` | one version, two around a point | at the next point | everything |
//! | `frozen` | every version that a reader may need | when the replica has the turn | everything except execution |
//!
//! In each mode the checkpoint contains the state at an epoch, in the same file format. A restart
//! does not depend on the mode, so the mode can be changed then.
//!
//! The points of `zigzag` are epochs with numbers that all replicas know, so they are pre-specified
//! points in the global serial order. When the epoch of a point has run, every version up to it is
//! in the store, and no version that its readers see has been overwritten yet
//! ([`pangea_core::store`], `point.rs`). From then on writers preserve it as the "before" version.
//! With several shards, transactions of later epochs may have written by then: their versions are
//! "after" versions, next to it.

use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::Calvin;
use super::options::Checkpoints;

impl Calvin {
    /// Requests a checkpoint of the epoch that has just run, if the log has grown enough and the
    /// mode allows it.
    pub(super) fn checkpoint_if_due(&mut self, cx: &mut Cx<'_, Self>) {
        let before = self.state.inputs.extension.turns.frozen();
        self.state.inputs.checkpoint_if_due(cx);
        self.note_frozen(cx, before);
    }

    /// Called before an epoch runs. If the store has one version of each record, the epoch's writes
    /// overwrite the versions that no reader needs and to which no master rolls back.
    pub(super) fn overwrite_unneeded(&self, cx: &mut Cx<'_, Self>) {
        if self.state.options.checkpoints == Checkpoints::Zigzag {
            let inputs = &self.state.inputs;
            let kept = inputs.cut.confirmed.epoch;
            cx.store.overwrite(mutate!(OverwrittenUndecided: kept => inputs.cut.applied));
        }
    }
}
