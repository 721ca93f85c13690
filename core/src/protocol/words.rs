//! The words of a protocol for what every protocol has, in the tables and messages of tools.

use crate::latency::Milestone;

/// The number of stages of a transaction's lifecycle: until the event loop takes it, until its run
/// at its source ends, until each [`Milestone`], and until the answer.
pub const STAGES: usize = Milestone::ALL.len() + 3;

/// The words of a protocol. They are those of its paper, so that one thing has one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// The node in [`super::Status::coordinator`].
    pub coordinator: &'static str,
    /// The transactions of a snapshot version.
    pub epoch: &'static str,
    /// What a transaction waits for in each stage, in at most 34 letters. A stage that the protocol
    /// does not report is not shown.
    pub stages: [&'static str; STAGES],
}

impl Words {
    /// The words of protocols that order batches by epochs.
    pub const OF_EPOCHS: Self = Self {
        coordinator: "coordinator",
        epoch: "epoch",
        stages: [
            "waits for the event loop",
            "runs at its source",
            "waits for its batch to close",
            "batch to the log, fsync",
            "batch on enough replicas",
            "its place in the order is decided",
            "waits for preceding epochs",
            "validation, valid writes",
            "run in order, end of epoch",
        ],
    };
}

impl Default for Words {
    fn default() -> Self {
        Self::OF_EPOCHS
    }
}
