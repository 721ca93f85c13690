//! The checkpoints of a replica, and the epochs that survive its restart.
//!
//! ```text
//!   last checkpoint      durable        logged        applied
//!   ------|-----------------|--------------|-------------|-----> epochs
//!          records in the log that are durable   not yet
//! ```
//!
//! A state that was installed from a peer is in no record of the log. Until a checkpoint of this
//! replica contains it, no epoch after it survives a restart.

use std::collections::VecDeque;

use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::protocol::Mark;
use pangea_core::time::Span;

use crate::marks::mark;
use crate::replica::Replica;

/// The marks of this component, which its owner makes.
pub(crate) const MARKS: &[Mark] = &[
    mark("checkpoints.begun", "a checkpoint is requested from the driver"),
    mark("checkpoints.failed", "a checkpoint was not written"),
];

/// The pause after a failed checkpoint, most likely for lack of disk space, before the next one.
pub(crate) const REST: Span = Span::from_ms(5_000);

/// The checkpoints of this replica.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// The last epoch that survives a restart of this node.
    pub durable: SnapshotVersion,
    /// The last epoch whose record is durable on this node. It may build on an installed
    /// checkpoint.
    pub logged: SnapshotVersion,
    /// The last checkpoint installed from a peer, until a local checkpoint contains it.
    pub installed: Option<SnapshotVersion>,
    /// Epochs whose record is not durable yet, and the position of that record.
    pub records: VecDeque<(SnapshotVersion, LogPosition)>,
    /// The checkpoint that is being written.
    writing: Option<InProgress>,
    /// Whether the last checkpoint failed so recently that it is too early for another.
    pub rests: bool,
    /// The version of the last checkpoint of this node.
    pub last: SnapshotVersion,
}

/// A checkpoint that is being written.
struct InProgress {
    version: SnapshotVersion,
    /// The first log record that is needed in addition to it.
    first_needed: LogPosition,
    /// The bytes that had been counted towards it.
    bytes: u64,
}

impl Checkpoints {
    /// Starts from a checkpoint of this version, after a restart.
    pub(crate) fn start_from(&mut self, version: SnapshotVersion) {
        (self.durable, self.last) = (version, version);
    }

    /// Whether a checkpoint is being written.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether the log has grown by enough bytes for a checkpoint and none is being written.
    pub(crate) fn is_due(&self, replica: &Replica, bytes: u64) -> bool {
        replica.bytes_since_checkpoint >= bytes && !self.is_writing() && !self.rests
    }

    /// The record of an epoch is in the log, at this position.
    pub(crate) fn note_record(&mut self, epoch: SnapshotVersion, position: LogPosition) {
        self.records.push_back((epoch, position));
    }

    /// The log is durable up to `position`.
    pub(crate) fn on_durable(&mut self, position: LogPosition) {
        while let Some((epoch, _)) = self.records.pop_front_if(|(_, at)| *at <= position) {
            self.logged = epoch;
            if self.installed.is_none() {
                self.durable = epoch;
            }
        }
    }

    /// A checkpoint was requested. `first_needed` is the first log record that is needed in
    /// addition to it.
    pub(crate) fn begin(
        &mut self,
        replica: &mut Replica,
        version: SnapshotVersion,
        first_needed: LogPosition,
    ) {
        assert!(!self.is_writing(), "one checkpoint is written at a time");
        let bytes = std::mem::take(&mut replica.bytes_since_checkpoint);
        self.writing = Some(InProgress { version, first_needed, bytes });
    }

    /// A checkpoint of a peer was installed. The log does not lead to its version: only a local
    /// checkpoint makes it durable.
    pub(crate) fn note_installed(&mut self, replica: &mut Replica, version: SnapshotVersion) {
        self.installed = Some(version);
        replica.bytes_since_checkpoint = u64::MAX;
    }

    /// A checkpoint failed. The replica continues as after a successful one, and takes another, of
    /// a later version, after [`REST`]. Until then its memory and that of its peers grows, because
    /// it is frozen or retains the pinned version. Returns whether it was requested in this run.
    pub(crate) fn on_failed(&mut self, replica: &mut Replica, version: SnapshotVersion) -> bool {
        let Some(InProgress { version: requested, bytes, .. }) = self.writing.take() else {
            return false;
        };
        assert_eq!(requested, version, "one checkpoint is written at a time");
        replica.bytes_since_checkpoint = replica.bytes_since_checkpoint.saturating_add(bytes);
        self.rests = true;
        true
    }

    /// A checkpoint is durable. Returns the first log record that is needed in addition to it, if
    /// it was requested in this run.
    pub(crate) fn on_written(&mut self, version: SnapshotVersion) -> Option<LogPosition> {
        let InProgress { version: requested, first_needed, .. } = self.writing.take()?;
        assert_eq!(requested, version, "one checkpoint is written at a time");
        self.last = version;
        if self.installed.is_none_or(|installed| installed <= version) {
            self.installed = None;
            self.durable = self.durable.max(version).max(self.logged);
        }
        Some(first_needed)
    }
}

/// The initial byte count towards the first checkpoint after a start. All logs grow at the same
/// rate, so without an offset all replicas would write their checkpoints at the same time. The
/// offset staggers them.
pub(crate) fn turn_of(me: NodeId, count: usize, checkpoint_bytes: u64) -> u64 {
    let after = (count - 1).saturating_sub(me.index());
    checkpoint_bytes / count as u64 * after as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_take_their_first_checkpoints_one_after_the_other() {
        let left = |count: usize, bytes| -> Vec<u64> {
            let nodes = (0..count as u16).map(NodeId);
            nodes.map(|node| bytes - turn_of(node, count, bytes)).collect()
        };
        assert_eq!(left(1, 300), [300], "a single node waits for no other");
        assert_eq!(left(3, 300), [100, 200, 300]);
        assert!(
            left(3, u64::MAX).iter().all(|&left| left > u64::MAX / 4),
            "the sum does not overflow"
        );
    }

    #[test]
    fn no_epoch_after_an_installed_checkpoint_is_durable_before_a_checkpoint_of_this_replica() {
        use pangea_core::time::Span;
        use pangea_core::topology::Topology;
        let topology = Topology::one_node_per_region("test", &["a", "b", "c"], Span::ZERO);
        let group = std::sync::Arc::new(topology).group(pangea_core::ids::ShardId(0));
        let mut replica = Replica::new(NodeId(0), group);
        let mut checkpoints = Checkpoints::default();
        let epoch = SnapshotVersion;
        checkpoints.note_record(epoch(1), LogPosition(10));
        checkpoints.note_record(epoch(2), LogPosition(20));
        checkpoints.on_durable(LogPosition(19));
        assert_eq!(checkpoints.durable, epoch(1));
        checkpoints.note_installed(&mut replica, epoch(7));
        assert!(checkpoints.is_due(&replica, 1 << 30));
        checkpoints.begin(&mut replica, epoch(7), LogPosition(15));
        checkpoints.note_record(epoch(8), LogPosition(30));
        checkpoints.on_durable(LogPosition(30));
        assert_eq!((checkpoints.durable, checkpoints.logged), (epoch(1), epoch(8)));
        assert_eq!(checkpoints.on_written(epoch(7)), Some(LogPosition(15)));
        assert_eq!(checkpoints.durable, epoch(8));
        assert_eq!(checkpoints.on_written(epoch(7)), None, "one of an earlier run");
    }
}
