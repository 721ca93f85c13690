//! Digests: replicas compare the rows that they have published ([`crate::digests`]).
//!
//! A leader has run the transactions of an entry, and its followers have applied its writes. So a
//! wrong row of the leader reaches all others with the next entry that depends on it, unless the
//! row has had its turn before. A wrong row of a follower is found when the row is written, or in
//! its turn.
//!
//! An entry is compared when it is published. Later slices of a leader may be rolled back.
//!
//! With several shards, the replicas of a shard compare the versions of writes, in their order.
//! Entries with the same one are published together, and void ones nowhere.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;

use super::Mako;
use super::messages::Message;
use super::state::State;
use crate::digests::EpochDigest;

impl Mako {
    /// Compares a published entry with those of the peers. Stops this replica if its rows differ
    /// from those of a majority.
    pub(super) fn compare_digests(&mut self, cx: &mut Cx<'_, Self>, version: SnapshotVersion) {
        let State { digests, replica, .. } = &mut self.state;
        let why = digests.note_epoch(cx, replica, version);
        self.stop_if_differing(cx, why);
    }

    /// Compares published entries, of which these are the versions of the writes, in their order.
    pub(super) fn compare_all(
        &mut self,
        cx: &mut Cx<'_, Self>,
        mut versions: Vec<SnapshotVersion>,
    ) {
        versions.dedup();
        versions.into_iter().for_each(|version| self.compare_digests(cx, version));
    }

    /// Sends the digests of the entries since the last report to the peers.
    pub(super) fn send_digests(&mut self, cx: &mut Cx<'_, Self>) {
        let digests = self.state.digests.take_unsent();
        if digests.is_empty() {
            return;
        }
        for peer in self.state.replica.peers() {
            self.state.replica.send(cx, peer, Message::Digests { digests: digests.clone() });
        }
    }

    pub(super) fn on_digests(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        all: Vec<EpochDigest>,
    ) {
        let State { digests, replica, .. } = &mut self.state;
        let why = digests.on_digests(cx, replica, from, all);
        self.stop_if_differing(cx, why);
    }

    fn stop_if_differing(&mut self, cx: &mut Cx<'_, Self>, why: Option<String>) {
        if let Some(why) = why {
            // The others learn from them that this replica differs.
            self.send_digests(cx);
            cx.stop(why);
        }
    }
}
