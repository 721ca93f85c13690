//! Digests of confirmed epochs ([`crate::digests`]).

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;

use super::messages::Message;
use super::{Host, Inputs};
use crate::digests::EpochDigest;

impl<H: Host> Inputs<H> {
    /// Digests an epoch that is confirmed now.
    pub(super) fn digest_epoch(&mut self, cx: &mut Cx<'_, H>, epoch: SnapshotVersion) {
        let why = self.digests.note_epoch(cx, &self.replica, epoch);
        self.stop_if_differing(cx, why);
    }

    /// Sends the digests of the epochs since the last report to the peers.
    pub(super) fn send_digests(&mut self, cx: &mut Cx<'_, H>) {
        let digests = self.digests.take_unsent();
        if digests.is_empty() {
            return;
        }
        for peer in self.replica.peers() {
            self.replica.send(cx, peer, Message::Digests { digests: digests.clone() });
        }
    }

    /// Handles the digests of a peer.
    pub(super) fn on_digests(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        digests: Vec<EpochDigest>,
    ) {
        let why = self.digests.on_digests(cx, &self.replica, from, digests);
        self.stop_if_differing(cx, why);
    }

    fn stop_if_differing(&mut self, cx: &mut Cx<'_, H>, why: Option<String>) {
        if let Some(why) = why {
            // The others learn from them that this replica differs.
            self.send_digests(cx);
            cx.stop(why);
        }
    }
}
