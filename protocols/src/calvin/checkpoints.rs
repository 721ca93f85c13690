//! Checkpoints (§5), in one of three modes.
//!
//! | `checkpoints` | what the store keeps | when | what goes on meanwhile |
//! |---|---|---|---|
//! | `versions` | every version that a reader may need | as it is due | everything |
//! | `zigzag` | one version, two around a point | at the next point | everything |
//! | `frozen` | every version that a reader may need | in turn | all but running epochs |
//!
//! What is written is the state as of an epoch, in each of them, in the same files: a restart does
//! not care, and the mode can be another one then.
//!
//! The points of `zigzag` are the epochs of numbers that all replicas know, so they are places in
//! the global serial order that were said before. When an epoch has been run that is one, every
//! version up to it is in the store and what readers of it see has not been overwritten yet
//! ([`pangea_core::store`], `point.rs`). From there on writers keep it as the "before" version.
//! Over several shards transactions of later epochs may have written by then: theirs are "after"
//! versions, beside it.

use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::Cx;

use super::Calvin;
use super::options::Checkpoints;

impl Calvin {
    /// Asks for a checkpoint of the epoch that was just run, if the log has grown enough and the
    /// mode has it so.
    pub(super) fn checkpoint_if_due(&mut self, cx: &mut Cx<'_, Self>) {
        let before = self.state.inputs.turns.frozen();
        self.state.inputs.checkpoint_if_due(cx);
        self.note_frozen(cx, before);
    }

    /// Before an epoch is run: where one version of a record is kept, its writes take the place of
    /// what no reader needs any more, and what a master never goes back to.
    pub(super) fn let_overwrite(&self, cx: &mut Cx<'_, Self>) {
        if self.state.options.checkpoints == Checkpoints::Zigzag {
            let inputs = &self.state.inputs;
            cx.store.overwrite(match is_planted(Bug::OverwrittenUndecided) {
                true => inputs.cut.applied,
                false => inputs.mastery.confirmed.epoch,
            });
        }
    }
}
