//! The watermark: how much of the log is committed, and what becomes visible with it (§4.3, §4.4).
//!
//! ```text
//!   versions     1   2   3   4   5   6   7
//!   leader       published   | executed and sent
//!   follower     published | in the log, not in the store
//!                          watermark
//! ```
//!
//! The leader counts who has which part of its log on the disk, and tells the others. They apply
//! the writes of what is committed, and nothing else: a follower never has to roll back. Results
//! are in the log, so a node answers its clients when the entry of their transaction is published
//! there. They then also see their writes.

use pangea_core::cpu_stage::CpuStage;
use pangea_core::ids::SnapshotVersion;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::Version;

use super::Mako;
use super::log::{Entry, Log, Logged};
use super::state::{Role, State};
use super::versions::Epoch;

/// After this number of writes a step applies no further entry.
pub(super) const STEP_WRITES_MAX: usize = 4_096;

/// The maximum number of versions removed from the store at a time, so that no step takes long.
pub(super) const RECLAIM_VERSIONS_MAX: usize = 50_000;

/// The progress of this replica.
#[derive(Debug)]
pub(super) struct Commit {
    /// How far the others have the log of this epoch on their disks, as they have told this
    /// replica as the leader.
    pub acked: Vec<Option<SnapshotVersion>>,
    /// The last epoch and version that each has told in this run.
    pub acked_ever: Vec<(Epoch, SnapshotVersion)>,
    /// The last version that is known to be committed, as far as this replica has the log.
    pub committed: SnapshotVersion,
    /// The last version that is in the store.
    pub executed: SnapshotVersion,
    /// The last version that readers see.
    pub published: SnapshotVersion,
    /// The last entry of the log that readers see, with all before it. With one shard it has the
    /// same version.
    pub floor: SnapshotVersion,
}

impl Commit {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            acked: vec![None; node_count],
            acked_ever: vec![Default::default(); node_count],
            committed: SnapshotVersion::ZERO,
            executed: SnapshotVersion::ZERO,
            published: SnapshotVersion::ZERO,
            floor: SnapshotVersion::ZERO,
        }
    }

    /// All versions up to this one are published, and of the log the entries up to `floor`.
    pub(super) fn move_to(&mut self, version: SnapshotVersion, floor: SnapshotVersion) {
        self.committed = self.committed.max(floor);
        (self.executed, self.published, self.floor) = (version, version, floor);
    }

    /// Passes the entries that are published. With several shards an entry that is not committed
    /// yet may be void, and have an earlier version than what is published.
    pub(super) fn advance_floor(&mut self, log: &Log) {
        let (published, committed) = (self.published, self.committed);
        let is_over = |it: &&Logged| it.entry.at() <= published && it.version() <= committed;
        while let Some(next) = log.next(self.floor).filter(is_over) {
            self.floor = next.version();
        }
    }
}

/// The version that a majority has, if each voter has the log up to one of these.
pub(super) fn commit_point(acked: &[Option<SnapshotVersion>]) -> Option<SnapshotVersion> {
    let mut acked = acked.to_vec();
    acked.sort_unstable();
    let majority = acked.len() / 2 + 1;
    let majority = mutate!(MakoOwnEntrySuffices: majority => 1);
    acked[acked.len() - majority]
}

impl Mako {
    /// Publishes committed entries, and answers the clients of this node.
    pub(super) fn advance_watermark(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.shards.is_some() {
            return self.advance_watermarks(cx);
        }
        if let Role::Leading(_) = self.state.role {
            let point = commit_point(&self.state.acked()).unwrap_or_default();
            let State { commit, log, .. } = &mut self.state;
            commit.committed = commit.committed.max(point.min(log.last()));
        }
        if self.publish_committed(cx, STEP_WRITES_MAX) {
            cx.mark("mako.applied_in_steps");
            cx.resume();
        }
    }

    /// Publishes committed entries, up to a number of writes. Returns whether something is left.
    pub(super) fn publish_committed(&mut self, cx: &mut Cx<'_, Self>, writes_max: usize) -> bool {
        let before = self.state.commit.published;
        let mut left = writes_max;
        while self.state.commit.published < self.state.visible() {
            if left == 0 {
                return true;
            }
            let State { log, commit, .. } = &self.state;
            let next = log.next(commit.published).expect("the log has what is committed");
            let entry = next.entry.clone();
            self.state.note_committed(cx, &entry);
            let State { commit, outcomes, .. } = &mut self.state;
            if commit.executed < entry.version {
                left = left.saturating_sub(entry.writes.len() + 1);
                apply(cx, &entry);
                commit.executed = entry.version;
            }
            cx.store.publish(entry.version);
            (commit.published, commit.floor) = (entry.version, entry.version);
            outcomes.note(&entry);
            if let Role::Leading(leading) = &mut self.state.role {
                entry.txns.iter().for_each(|executed| {
                    leading.taken.remove(&executed.txn);
                });
            }
            self.state.note_published(cx, &entry);
            self.answer_entry(cx, &entry);
            self.compare_digests(cx, entry.version);
        }
        if self.state.commit.published > before {
            cx.store.reclaim_at_most(cx.store.published(), RECLAIM_VERSIONS_MAX);
        }
        false
    }

    /// Answers the clients of this node whose transactions are in an entry.
    fn answer_entry(&mut self, cx: &mut Cx<'_, Self>, entry: &Entry) {
        let me = self.state.node;
        let own = entry.txns.iter().filter(|executed| executed.txn.node() == me);
        for executed in own {
            self.answer(cx, executed.txn, entry.version, executed.outcome.clone());
        }
    }
}

impl State {
    /// The last version of the log that readers may see.
    fn visible(&self) -> SnapshotVersion {
        mutate!(MakoReplayAboveWatermark: self.commit.committed => match self.role {
            Role::Following if self.has_log_of_epoch() => self.log.last(),
            _ => self.commit.committed,
        })
    }
}

/// §4.4: applies the writes of an entry, of each key the last one.
pub(super) fn apply(cx: &Cx<'_, Mako>, entry: &Entry) {
    let version = entry.at();
    let writes = entry.writes.iter().map(|(place, write)| {
        let header = entry.header(*place);
        let row = Version { version, header, value: write.value.clone() };
        (write.table, write.key.clone(), row)
    });
    cx.begin_work();
    cx.store.apply_batch(cx.pool, version, writes.collect());
    cx.end_work(CpuStage::Apply, entry.txns.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point_of(acked: &[Option<u64>]) -> Option<u64> {
        let acked: Vec<_> = acked.iter().map(|it| it.map(SnapshotVersion)).collect();
        commit_point(&acked).map(|version| version.0)
    }

    /// §4.3: an entry is replicated when a majority has it.
    #[test]
    fn a_version_is_committed_when_a_majority_has_it() {
        assert_eq!(point_of(&[Some(7)]), Some(7));
        assert_eq!(point_of(&[Some(7), Some(5)]), Some(5));
        assert_eq!(point_of(&[Some(7), Some(5), None]), Some(5));
        assert_eq!(point_of(&[Some(7), None, None]), None, "no majority has the log");
        assert_eq!(point_of(&[Some(7), Some(4), Some(5), Some(6)]), Some(5));
        assert_eq!(point_of(&[Some(7), Some(4), Some(5), Some(6), None]), Some(5));
    }
}
