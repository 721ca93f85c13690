//! Collection: entries that a replica forgets, and those kept for peers.
//!
//! An entry is forgotten when it is published here, a durable checkpoint of this replica contains
//! it, and no peer needs it that is only a little behind. For a peer that is further behind than
//! `behind_bytes` nothing is kept: it takes a checkpoint (`checkpoint.rs`). Decisions are forgotten
//! when all voters have taken them.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;

use super::Mako;
use super::shards::Shards;
use super::state::State;
use crate::streams::Bid;

impl State {
    /// The last version that all peers have published, and that no transfer needs.
    fn needed_by_none(&self) -> SnapshotVersion {
        let least = self.replica.peers().map(|peer| self.epochs.told[peer.index()].published);
        let least = least.min().unwrap_or(self.commit.floor);
        let retained = self.transfer.least_retained(0);
        retained.map_or(least, |Bid(version)| least.min(SnapshotVersion(version)))
    }
}

impl Mako {
    /// Forgets what nobody needs.
    pub(super) fn collect(&mut self) {
        let State { commit, saved, log, options, .. } = &self.state;
        let upto = commit.floor.min(*saved);
        let retained = self.state.transfer.least_retained(0).map(|Bid(bid)| SnapshotVersion(bid));
        let of_size = log.too_old(options.behind_bytes, upto.min(retained.unwrap_or(upto)));
        let upto = self.state.needed_by_none().min(upto).max(of_size);
        let upto = self.state.log.last_upto(upto);
        if upto > log.base() && log.contains(upto) {
            self.state.log.forget(upto);
        }
        let decisions = |node: NodeId| match node == self.state.replica.me {
            true => self.state.durable_decisions(),
            false => self.state.epochs.told[node.index()].decisions,
        };
        let taken = self.state.replica.topology.voter_ids().map(decisions).min();
        if self.state.replica.votes() && self.state.presence.is_ready {
            let agreement = self.state.epochs.driver.agreement_mut();
            // The last ones say who leads.
            // With several shards, an epoch has as many decisions, and one.
            let of_epoch = |shards: &Shards| shards.groups.len() as u64 + 1;
            let kept = DECISIONS_KEPT * self.state.shards.as_deref().map_or(1, of_epoch);
            agreement.trim(taken.unwrap_or(0).saturating_sub(kept));
        }
    }

    /// Ends the transfers of peers that have not come back.
    pub(super) fn stop_abandoned(&mut self, cx: &Cx<'_, Self>) {
        let State { transfer, replica, log, options, epochs, .. } = &mut self.state;
        let is_member = |peer: usize| epochs.told[peer].published >= log.base();
        let members: Vec<bool> = (0..replica.topology.node_count()).map(is_member).collect();
        let behind_bytes = options.behind_bytes;
        let is_too_much = |heads: &[Bid]| {
            heads.iter().any(|Bid(bid)| log.bytes_after(SnapshotVersion(*bid)) > behind_bytes)
        };
        transfer.stop_abandoned(replica, cx.now.at, &members, is_too_much);
    }
}

/// The last decisions that are kept.
const DECISIONS_KEPT: u64 = 8;
