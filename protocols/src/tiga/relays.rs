//! Nodes that do not hear each other, and that a third one hears (§3.7, §4; the paper has no such
//! case).
//!
//! ```text
//!   N x x x x x leader    R hears both. Each tells whom it does not hear. From then on R hands on
//!    \          /         to the leader what N submits, and to N the log as far as R has it.
//!     \        /
//!      R ------
//! ```
//!
//! - *Submitted transactions.* Each replica that gets a transaction from its coordinator sends it
//!   to the leader, if that has told that it does not hear the coordinator. The replica has it on
//!   its disk first: one that replaces the coordinator asks all nodes which numbers are in use, and
//!   a node that has handed one on must not forget it.
//! - *The log.* All replicas of a view have beginnings of one log, so any of them may send it. The
//!   first one that hears both does.
//! - *What is over.* A node that does not hear a coordinator is told which of its transactions are
//!   over. Otherwise it would keep their ids for as long.
//!
//! That is enough if a leader hears f others, and the leaders hear each other. Otherwise the view
//! manager chooses other leaders (`placement.rs`).

use std::collections::BTreeSet;

use bytes::Bytes;
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;

use super::Tiga;
use super::log::Position;
use super::messages::Message;
use super::state::State;

/// What the nodes hear of each other.
#[derive(Debug)]
pub(super) struct Relays {
    /// The nodes that each node has told not to hear.
    deaf: Vec<BTreeSet<NodeId>>,
    /// How much of the log each replica was sent that does not hear its leader.
    pub sent: Vec<Option<(Position, SnapshotVersion)>>,
}

impl Relays {
    pub(super) fn new(node_count: usize) -> Self {
        Self { deaf: vec![BTreeSet::new(); node_count], sent: vec![None; node_count] }
    }

    /// The connection to a node is lost or new: whom it hears is not known.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.deaf[node.index()].clear();
    }

    /// The nodes that a node has told not to hear.
    pub(super) fn unheard_by(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.deaf[node.index()].iter().copied()
    }

    /// A node has told whom it does not hear. Returns whether that is new.
    pub(super) fn note_told(&mut self, node: NodeId, deaf: Vec<NodeId>) -> bool {
        let deaf = deaf.into_iter().filter(|other| *other != node).collect();
        std::mem::replace(&mut self.deaf[node.index()], deaf) != self.deaf[node.index()]
    }
}

impl State {
    /// The nodes that this one does not hear.
    pub(super) fn unheard(&self, now: Timestamp) -> Vec<NodeId> {
        let peers = self.cluster.peers_of(self.node);
        peers.filter(|node| !self.is_heard(*node, now)).collect()
    }

    /// Whether a node hears another one, as far as this one knows.
    pub(super) fn does_hear(&self, node: NodeId, other: NodeId, now: Timestamp) -> bool {
        match node == self.node {
            true => self.is_heard(other, now),
            false => !self.relays.deaf[node.index()].contains(&other),
        }
    }

    /// Whether two nodes hear each other, as far as this one knows.
    pub(super) fn are_linked(&self, one: NodeId, other: NodeId, now: Timestamp) -> bool {
        self.does_hear(one, other, now) && self.does_hear(other, one, now)
    }

    /// Whether all nodes hear all others, as far as this one knows.
    pub(super) fn are_all_linked(&self, now: Timestamp) -> bool {
        let mut peers = self.cluster.peers_of(self.node);
        self.relays.deaf.iter().all(BTreeSet::is_empty) && peers.all(|it| self.is_heard(it, now))
    }

    /// Whether enough replicas of a node's shard have a link to it, so that it can lead.
    pub(super) fn can_be_followed(&self, node: NodeId, now: Timestamp) -> bool {
        let group = self.cluster.group(self.cluster.nodes[node.index()].shard);
        let voters = group.topology.voter_ids().map(|member| group.node(member));
        let others = voters.filter(|other| *other != node);
        let linked = others.filter(|other| self.are_linked(node, *other, now));
        linked.count() + 1 >= group.topology.majority()
    }

    /// Whether this replica hands on the log of its view to one that does not hear the leader.
    pub(super) fn hands_on_to(&self, node: NodeId, now: Timestamp) -> bool {
        let Some(leader) = self.leader() else { return false };
        let is_deaf = |node: NodeId| !self.does_hear(node, leader, now);
        if leader == self.node || leader == node || !self.is_up[node.index()] || !is_deaf(node) {
            return false;
        }
        let others = self.replica.group.nodes().iter().copied();
        let mut others = others.filter(|other| ![leader, node].contains(other));
        let first = others.find(|other| !is_deaf(*other) && self.are_linked(*other, node, now));
        self.is_normal() && self.is_whole() && first == Some(self.node)
    }

    /// The numbers below which the transactions of coordinators are over that a node does not hear.
    pub(super) fn others_done(&self, node: NodeId) -> Vec<(NodeId, u64)> {
        let unheard = self.relays.deaf[node.index()].iter().filter(|other| **other != self.node);
        unheard.map(|other| (*other, self.done.below_of(*other))).collect()
    }
}

impl Tiga {
    /// Transactions have arrived from their coordinator: hands them on to the leader, if that does
    /// not hear the coordinator.
    pub(super) fn hand_on(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, transactions: Bytes) {
        let State { node, is_up, .. } = &self.state;
        let Some(leader) = self.state.leader().filter(|leader| is_up[leader.index()]) else {
            return;
        };
        if [*node, from].contains(&leader) || self.state.does_hear(leader, from, cx.now.at) {
            return;
        }
        cx.mark("tiga.handed_on");
        cx.send_after(cx.log_head(), leader, Message::Submit { transactions });
    }

    /// Sends the log to the replicas that do not hear the leader and that this one serves.
    pub(super) fn hand_on_log(&mut self, cx: &mut Cx<'_, Self>) {
        for peer in self.state.replica.peers() {
            let node = self.state.replica.node(peer);
            let State { relays, log, commit, .. } = &self.state;
            let Some((after, told)) = relays.sent[peer.index()] else { continue };
            if !self.state.hands_on_to(node, cx.now.at) || after < log.base() {
                self.state.relays.sent[peer.index()] = None;
                continue;
            }
            let (last, closed) = (log.last(), commit.closed_upto(log.last()));
            if (after, told) == (last, closed) || after > last {
                continue;
            }
            cx.mark("tiga.log_handed_on");
            let message = Message::LogSync { suffix: log.suffix(after).encode(), closed };
            cx.send(node, message);
            self.state.relays.sent[peer.index()] = Some((last, closed));
        }
    }
}
