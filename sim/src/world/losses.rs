//! Losses that a node does not recover from by itself: of the node for ever, of its disk, or of a
//! bit of its log.

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::Protocol;
use pangea_core::store::Store;
use pangea_core::time::Span;

use super::World;
use super::node::Node;
use crate::disk::Disk;

impl<P: Protocol> World<P> {
    /// Stops the node permanently. Skipped if its group would lose its majority, or if a node of
    /// the group has not begun, because the first start needs all nodes.
    pub(super) fn destroy(&mut self, id: NodeId) {
        let group = self.topology.group(self.topology.nodes[id.index()].shard);
        let is_gone = |node: &&NodeId| self.nodes[node.index()].is_destroyed;
        let voting = &group.nodes()[..group.topology.voter_count()];
        let gone = voting.iter().filter(is_gone).count();
        let has_begun = |node: &NodeId| self.nodes[node.index()].has_begun;
        if !group.nodes().iter().all(has_begun) {
            return;
        }
        if self.replicas().iter().any(|node| node.is_replaced || node.damaged.is_some())
            || self.topology.votes(id) && gone + group.topology.majority() >= voting.len()
        {
            return;
        }
        self.end_for_good(id);
        for cache in self.topology.clone().caches_of(id) {
            // Sometimes the region is lost, and not its node alone.
            if self.faults.dice.caches.chance(500) {
                self.end_for_good(cache);
            }
        }
    }

    fn end_for_good(&mut self, id: NodeId) {
        self.crash(id, Span::ZERO);
        let node = &mut self.nodes[id.index()];
        node.is_destroyed = true;
        // Invalidates the pending event that would start the node.
        node.life += 1;
    }

    /// Whether the cluster survives the loss of a node's disk. It cannot distinguish a node that
    /// lost its disk during the first start from one that has never started.
    fn can_lose_disk(&self, id: NodeId) -> bool {
        let is_whole = |node: &Node<P>| {
            node.has_begun && !node.is_destroyed && !node.is_replaced && node.damaged.is_none()
        };
        let group = self.topology.group(self.topology.place_of(id).shard);
        P::REJOINS && group.topology.faults_tolerated() > 0 && self.replicas().iter().all(is_whole)
    }

    /// Stops the node and discards its disk.
    pub(super) fn lose_disk(&mut self, id: NodeId, down: Span) {
        let is_cache = self.topology.home_of(id).is_some();
        if self.nodes[id.index()].is_destroyed || !is_cache && !self.can_lose_disk(id) {
            return;
        }
        self.crash(id, down);
        self.replace(id);
    }

    /// Stops the node and flips a durable bit of its log.
    pub(super) fn flip_bit(&mut self, id: NodeId, down: Span) {
        if !self.can_lose_disk(id) {
            return;
        }
        self.crash(id, down);
        let node = &mut self.nodes[id.index()];
        node.damaged = node.disk.flip_bit(&mut node.disk_dice);
    }

    /// The node starts and must detect that its log is damaged.
    pub(super) fn notice_damage(&mut self, id: NodeId, before: &[(LogPosition, Bytes)]) {
        match self.nodes[id.index()].disk.recover(Store::new()) {
            // The bit is in an unused place.
            Ok((durable, _)) if durable.records == before => {}
            Ok(_) => self.violate("disk", format!("{id} started from a damaged log")),
            Err(error) => {
                self.trace.event(self.now, id, "damaged", [0, 0], || error);
                self.replace(id);
            }
        }
    }

    /// Replaces the node by one with an empty disk.
    fn replace(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.index()];
        (node.disk, node.is_replaced) = (Disk::default(), true);
        self.counts.replaced += 1;
        self.master_terms.histories.on_disk_lost(id);
        self.trace.event(self.now, id, "replaced", [0, 0], String::new);
    }
}
