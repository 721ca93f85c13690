//! Replay: entries that are in the log and not published, on each replica of a shard (§4.4).
//!
//! A follower applies entries in the order of the versions of their writes, up to the version that
//! all shards have. That is not the order of the log: a transaction over several shards may have an
//! earlier version than entries before it. Each entry says up to where the log is closed, so the
//! follower knows when nothing is missing.
//!
//! ```text
//!   log        5: writes at 5 | 6: at 6 | 8: at 4, closed 4 | 9: at 9, closed 9
//!   applied    4, 5, 6, 9
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::ids::SnapshotVersion;
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::super::Mako;
use super::super::log::{Entry, Log};
use super::super::state::State;
use super::super::versions::{Epoch, epoch_of};
use super::super::watermark::{RECLAIM_VERSIONS_MAX, STEP_WRITES_MAX, apply};

/// The entries of the log that are not published and not void.
#[derive(Debug, Default)]
pub(in super::super) struct Replay {
    /// By the version of their writes, and by their own.
    entries: BTreeMap<(SnapshotVersion, SnapshotVersion), Arc<Entry>>,
    /// The entries of these versions have the last closed versions of the epochs before.
    cuts: BTreeMap<SnapshotVersion, Arc<Entry>>,
    /// The last epoch whose cut is in effect.
    pub last_cut: Epoch,
}

impl Replay {
    /// An entry follows those of the log.
    pub fn insert(&mut self, entry: &Arc<Entry>, published: SnapshotVersion) {
        if entry.at() > published {
            self.entries.insert((entry.at(), entry.version), entry.clone());
        }
        if entry.cut().is_some() {
            self.cuts.insert(entry.version, entry.clone());
        }
    }

    /// Begins again with the entries of a log.
    pub fn rebuild(&mut self, log: &Log, published: SnapshotVersion) {
        // What is published of an epoch is what its cut has left.
        *self = Self { last_cut: epoch_of(published), ..Self::default() };
        log.entries().for_each(|logged| self.insert(&logged.entry, published));
    }

    /// Takes the entries whose writes are up to a version, in their order.
    pub fn take_upto(&mut self, version: SnapshotVersion) -> impl Iterator<Item = Arc<Entry>> {
        let later = self.entries.split_off(&(version.next(), SnapshotVersion::ZERO));
        std::mem::replace(&mut self.entries, later).into_values()
    }

    /// The first entry, if its writes are up to a version.
    fn first_upto(&self, version: SnapshotVersion) -> Option<&Arc<Entry>> {
        let ((at, _), entry) = self.entries.first_key_value()?;
        (*at <= version).then_some(entry)
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values()
    }

    /// Removes the entries that are not kept, and returns them.
    pub fn retain(&mut self, is_kept: impl Fn(&Entry) -> bool) -> Vec<Arc<Entry>> {
        self.entries.extract_if(.., |_, entry| !is_kept(entry)).map(|(_, entry)| entry).collect()
    }

    /// Takes the first cut up to an entry of the log.
    pub fn take_cut(&mut self, upto: SnapshotVersion) -> Option<Arc<Entry>> {
        let first = self.cuts.first_entry().filter(|first| *first.key() <= upto)?;
        Some(first.remove())
    }
}

impl Mako {
    /// A follower applies and publishes what all shards have, as far as its own log says that
    /// nothing is missing.
    pub(super) fn follow_stable(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.has_log_of_epoch() {
            return;
        }
        let committed = self.state.commit.committed;
        self.void_upto(cx, committed);
        let closed = self.state.log.closed_at(committed);
        let shards = self.shards();
        let stable = shards.stable;
        if shards.replay.last_cut < epoch_of(stable) {
            // The cut says which entries of the epochs before are void.
            return;
        }
        let stable = mutate!(MakoReplayAboveClosed: stable.min(closed) => {
            stable.max(closed)
        });
        if self.apply_upto(cx, stable, STEP_WRITES_MAX) {
            cx.mark("mako.applied_in_steps");
            cx.resume();
        }
    }

    /// Applies and publishes entries whose writes are up to a version, up to a number of writes.
    /// Returns whether some are left.
    pub(super) fn apply_upto(
        &mut self,
        cx: &mut Cx<'_, Self>,
        stable: SnapshotVersion,
        writes_max: usize,
    ) -> bool {
        let State { commit, shards, outcomes, log, .. } = &mut self.state;
        let Some(shards) = shards else { return false };
        if stable <= commit.published {
            return false;
        }
        let (mut left, mut upto) = (writes_max, stable);
        let mut versions = Vec::new();
        while let Some(entry) = shards.replay.first_upto(stable).cloned() {
            if left == 0 {
                upto = SnapshotVersion(entry.at().0 - 1);
                break;
            }
            // All entries of one version are published together.
            for entry in shards.replay.take_upto(entry.at()) {
                left = left.saturating_sub(entry.writes.len() + 1);
                apply(cx, &entry);
                versions.push(entry.at());
                outcomes.note(&entry);
            }
        }
        if upto > commit.published {
            cx.store.publish(upto);
            (commit.published, commit.executed) = (upto, upto);
            commit.advance_floor(log);
            self.compare_all(cx, versions);
            let unneeded = self.shards().retention.unneeded(cx.now.at, upto);
            cx.store.reclaim_at_most(unneeded, RECLAIM_VERSIONS_MAX);
        }
        upto < stable
    }
}
