//! Links: a leader that some node does not hear makes way for one that all hear.
//!
//! ```text
//!   N x x x x x leader      R hears both, so it can lead for all. N's clients wait for that.
//!    \          /
//!     R --------
//! ```
//!
//! Each node tells whom it does not hear. If the manager knows a replica that is linked with more
//! nodes than the leader is, and that stays so for as long as a suspicion takes, it begins an epoch
//! of the one with the most links. The paper has no case in which a node hears some of the others
//! only.
//!
//! With several shards, the links of a shard are those between its replicas.

use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, ShardId};
use pangea_core::time::Timestamp;

use super::state::State;
use super::suspicion::View;

/// The links between the nodes, as far as one of them knows.
pub(super) struct Links {
    /// Whether that one hears each node.
    is_heard: Vec<bool>,
    /// The nodes that each one has told not to hear, if it is heard itself.
    deaf: Vec<Vec<NodeId>>,
}

impl Links {
    fn does_hear(&self, node: NodeId, other: NodeId) -> bool {
        !self.deaf[node.index()].contains(&other)
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.deaf.len() as u16).map(NodeId)
    }

    /// Whether somebody hears a node.
    fn is_alive(&self, node: NodeId) -> bool {
        let mut heard = self.nodes().filter(|other| self.is_heard[other.index()]);
        heard.any(|other| other == node || self.does_hear(other, node))
    }

    /// The number of the other nodes that live and have a link with this one.
    pub(super) fn count(&self, node: NodeId) -> usize {
        let is_linked = |other: &NodeId| {
            let both = self.does_hear(node, *other) && self.does_hear(*other, node);
            *other != node && both && self.is_alive(*other)
        };
        self.nodes().filter(is_linked).count()
    }
}

impl View {
    /// The links between the replicas, as they have told this node.
    pub(super) fn links(&self) -> Links {
        let deaf_to = |node: NodeId| match self.is_heard(node) {
            true => self.told_by(node).deaf_to.clone(),
            false => Vec::new(),
        };
        let deaf = self.topology.node_ids().map(deaf_to).collect();
        Links { is_heard: self.heard.clone(), deaf }
    }

    /// Whether a replica that may lead has more links than the leader.
    fn has_better(&self) -> bool {
        let Some(leader) = self.leader else { return false };
        let links = self.links();
        let most = self.fit().map(|node| links.count(node)).max();
        most > Some(links.count(leader))
    }
}

impl State {
    /// Whether a replica of a shard has had more links than the leader for long.
    pub(super) fn is_outdone(&self, shard: ShardId, now: Timestamp) -> bool {
        let patience = self.options.failure(self.replica.topology.round_trip_max());
        let since = self.epochs.outdone_since.get(&shard);
        since.is_some_and(|since| now.since(*since).us >= patience.us)
    }

    /// The manager notes in which shards a replica has more links than the leader.
    pub(super) fn note_links(&mut self, now: Timestamp, is_manager: bool) {
        let views = if is_manager { self.views(now) } else { Vec::new() };
        let before = &self.epochs.outdone_since;
        let since = |shard| before.get(&shard).copied().unwrap_or(now);
        let all = (0..).map(ShardId).zip(&views).filter(|(_, view)| view.has_better());
        let outdone: BTreeMap<_, _> = all.map(|(shard, _)| (shard, since(shard))).collect();
        self.epochs.outdone_since = outdone;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five nodes, of which node 0 knows what those that it hears have told.
    fn links(is_heard: [bool; 5], deaf: [&[u16]; 5]) -> [usize; 5] {
        let deaf = deaf.map(|all| all.iter().map(|node| NodeId(*node)).collect()).to_vec();
        let links = Links { is_heard: is_heard.to_vec(), deaf };
        [0, 1, 2, 3, 4].map(|node| links.count(NodeId(node)))
    }

    #[test]
    fn a_link_needs_both_ends_and_dead_nodes_have_none() {
        assert_eq!(links([true; 5], [&[]; 5]), [4; 5]);
        let one_way = links([true; 5], [&[], &[2], &[], &[], &[]]);
        assert_eq!(one_way, [4, 3, 3, 4, 4], "one direction is lost");
        let unheard = [true, true, true, true, false];
        let behind = links(unheard, [&[4], &[], &[], &[], &[]]);
        assert_eq!(behind[..4], [3, 4, 4, 4], "others hear node 4");
        let dead = links(unheard, [&[4], &[4], &[4], &[4], &[]]);
        assert_eq!(dead[..4], [3; 4], "nobody hears node 4");
    }
}
