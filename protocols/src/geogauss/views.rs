//! Views: which replicas have to end an epoch, and which batches of the others count (§5.2).
//!
//! In the paper, Raft agrees on the replicas that are alive, and does not say up to which epoch a
//! removed one counts. Here it takes two decisions of agreement:
//!
//! ```text
//!   leader                          each member of the next view
//!     | Seal(out: C, joining: D) ---> |   takes no more batches of C, ends no epoch that it has
//!     |                               |   not reserved before, and reports both, durably
//!     | <--- Report(C ended 7, mine reserved up to 107)
//!     |  all have reported
//!     | View(members: A, B, D from 108; C counts up to 7) --> everybody
//! ```
//!
//! An epoch is merged only when its batches are on f + 1 replicas, so a majority contains one that
//! has them. Therefore the last epoch that any reporter has from a sealed replica covers all that
//! anybody has merged. Later epochs of it count nowhere. A replica that joins begins after all
//! epochs that a member of the earlier view may still end without it.
//!
//! The batches of a replica between two removals are a *life* of it, named by the view in which it
//! joined. Numbers of batches that did not count are not used again. A replica that lost its disk
//! does not know which epochs it has ended, so it ends no other one: its life ends, too, and it
//! begins a new one, in the same view if it has recovered its data by then.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use serde::{Deserialize, Serialize};

use crate::messages::NUMBER_MAX;
use crate::streams::Bid;

/// The number of a view, from 1 on.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ViewNumber(pub u64);

/// A set of replicas that have to end each epoch, and how the others ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The number of the view.
    pub number: ViewNumber,
    /// One for each replica.
    pub lives: Vec<Life>,
}

/// The part that a replica has in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// The view in which it joined last.
    pub joined: ViewNumber,
    /// The first epoch that it has to end.
    pub first: SnapshotVersion,
    /// The last batch that counts of its earlier lives.
    pub before: Bid,
    /// Its batches are numbered from the one after this.
    pub head: Bid,
    /// The end of the life; `None` for a member.
    pub ended: Option<Ended>,
}

/// The end of a life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ended {
    /// The last epoch in which the batches of the replica count.
    pub epoch: SnapshotVersion,
    /// The last batch that counts.
    pub last: Bid,
}

/// A decision that prepares a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The view that it ends.
    pub of: ViewNumber,
    /// The members whose lives end.
    pub out: Vec<NodeId>,
    /// The replicas that begin a new life.
    pub joining: Vec<NodeId>,
}

/// The report of a member of the next view on a seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The last epoch that the member may end before the next view.
    pub reserved: SnapshotVersion,
    /// The last batch that the member has ever created.
    pub head: Bid,
    /// For each replica whose life does not go on in the next view, the last epoch of it that has
    /// ended in the batches that are durable here.
    pub ended: Vec<Ended>,
}

/// A decision of agreement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Prepares a view.
    Seal(Seal),
    /// The view after a seal, which is named by the number of its decision.
    View {
        /// The number.
        seal: u64,
        /// The view.
        view: View,
    },
}

impl Change {
    /// Whether a replica of a group of `node_count` could propose it.
    pub fn is_sound(&self, node_count: usize) -> bool {
        match self {
            Self::Seal(Seal { out, joining, .. }) => {
                let mut nodes = out.iter().chain(joining);
                out.len() + joining.len() <= 2 * node_count
                    && nodes.all(|it| it.index() < node_count)
            }
            Self::View { view, .. } => view.is_sound(node_count),
        }
    }
}

impl View {
    /// Whether a group of `node_count` could have this view.
    pub fn is_sound(&self, node_count: usize) -> bool {
        let is_epoch = |epoch: SnapshotVersion| epoch.0 <= NUMBER_MAX;
        let is_bid = |bid: Bid| bid.0 <= NUMBER_MAX;
        let is_life = |life: &Life| {
            is_epoch(life.first)
                && life.first > SnapshotVersion::ZERO
                && is_bid(life.head)
                && life.before <= life.head
                && life.ended.is_none_or(|it| is_epoch(it.epoch) && is_bid(it.last))
        };
        self.number.0 <= NUMBER_MAX
            && self.lives.len() == node_count
            && self.lives.iter().all(is_life)
            && self.members().count() > node_count / 2
    }

    /// The first view, with all replicas.
    pub fn first(node_count: usize) -> Self {
        let number = ViewNumber(1);
        let first = SnapshotVersion(1);
        Self {
            number,
            lives: vec![
                Life { joined: number, first, before: Bid(0), head: Bid(0), ended: None };
                node_count
            ],
        }
    }

    /// Whether a replica is a member.
    pub fn has(&self, node: NodeId) -> bool {
        self.lives[node.index()].ended.is_none()
    }

    /// The members.
    pub fn members(&self) -> impl Iterator<Item = NodeId> {
        let lives = (0..).map(NodeId).zip(&self.lives);
        lives.filter(|(_, life)| life.ended.is_none()).map(|(node, _)| node)
    }

    /// Whether an epoch waits for a replica.
    pub fn waits_for(&self, node: NodeId, epoch: SnapshotVersion) -> bool {
        let Life { first, ended, .. } = self.lives[node.index()];
        ended.is_none() && epoch >= first
    }

    /// Whether a seal can follow this view: it removes members, lets others join, and leaves
    /// enough. One that does neither takes the place of an earlier one.
    pub fn allows(&self, seal: &Seal) -> bool {
        let is_node = |node: &NodeId| node.index() < self.lives.len();
        let Seal { of, out, joining } = seal;
        let are_nodes = out.iter().chain(joining).all(is_node);
        are_nodes
            && *of == self.number
            && out.iter().all(|node| self.has(*node))
            && joining.iter().all(|node| !self.has(*node) || out.contains(node))
            && self.next_members(seal).len() > self.lives.len() / 2
    }

    /// The members after a seal: all of them have to report.
    pub fn next_members(&self, seal: &Seal) -> Vec<NodeId> {
        let stays = |node: &NodeId| !seal.out.contains(node);
        let nodes = (0..self.lives.len() as u16).map(NodeId);
        let is_next = |node: &NodeId| self.has(*node) && stays(node) || seal.joining.contains(node);
        nodes.filter(is_next).collect()
    }

    /// Whether the life of a replica goes on after a seal.
    pub fn is_continued(&self, node: NodeId, seal: &Seal) -> bool {
        self.has(node) && !seal.out.contains(&node)
    }

    /// The view after a seal on which all of its members have reported.
    ///
    /// # Panics
    /// If the seal does not follow this view, or a report is missing.
    pub fn next(&self, seal: &Seal, reports: &[(NodeId, Report)]) -> Self {
        assert!(self.allows(seal), "the seal is of this view");
        let has_reported = |node: &NodeId| reports.iter().any(|(from, _)| from == node);
        let members = self.next_members(seal);
        let have_reported = mutate!(ViewByMajority: members.iter().all(has_reported) => true);
        assert!(have_reported, "all members of the next view have reported");
        let number = ViewNumber(self.number.0 + 1);
        let reserved = reports.iter().map(|(_, report)| report.reserved);
        let reserved = mutate!(JoinsTooEarly: reserved.max() => reserved.min());
        let first = reserved.unwrap_or_default().next();
        let life = |(node, life): (NodeId, &Life)| {
            if self.is_continued(node, seal) {
                return *life;
            }
            let found = reports.iter().map(|(_, report)| report.ended[node.index()]);
            let found = mutate!(LifeEndsTooEarly: found.max() => found.min());
            let found = found.unwrap_or_default();
            // It was cut before: only batches that are not on f + 1 replicas may be missing now.
            let ended = life.ended.map_or(found, |before| found.min(before));
            if !seal.joining.contains(&node) {
                return Life { ended: Some(ended), ..*life };
            }
            let own = reports.iter().find(|(from, _)| *from == node);
            let head = own.map_or(ended.last, |(_, report)| report.head.max(ended.last));
            Life { joined: number, first, before: ended.last, head, ended: None }
        };
        Self { number, lives: (0..).map(NodeId).zip(&self.lives).map(life).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(reserved: u64, ended: [u64; 3]) -> Report {
        let end = |epoch| Ended { epoch: SnapshotVersion(epoch), last: Bid(10 * epoch) };
        let ended = ended.map(end).to_vec();
        Report { reserved: SnapshotVersion(reserved), head: Bid(99), ended }
    }

    fn nodes(nodes: &[u16]) -> Vec<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn seal(of: u64, out: &[u16], joining: &[u16]) -> Seal {
        Seal { of: ViewNumber(of), out: nodes(out), joining: nodes(joining) }
    }

    #[test]
    fn a_removed_replica_counts_up_to_the_last_epoch_that_any_reporter_has() {
        let view = View::first(3);
        let seal = seal(1, &[2], &[]);
        assert_eq!(view.next_members(&seal), nodes(&[0, 1]));
        let reports = [(NodeId(0), report(107, [0, 0, 6])), (NodeId(1), report(120, [0, 0, 7]))];
        let next = view.next(&seal, &reports);
        assert_eq!(next.number, ViewNumber(2));
        assert!(next.members().eq(nodes(&[0, 1])));
        let ended = Some(Ended { epoch: SnapshotVersion(7), last: Bid(70) });
        assert_eq!(next.lives[2].ended, ended);
        assert!(!next.waits_for(NodeId(2), SnapshotVersion(5)));
    }

    #[test]
    fn a_replica_that_joins_begins_after_all_reserved_epochs_in_a_new_life() {
        let reports = [(NodeId(0), report(107, [0, 0, 6])), (NodeId(1), report(120, [0, 0, 7]))];
        let view = View::first(3).next(&seal(1, &[2], &[]), &reports);
        let back = seal(2, &[], &[2]);
        let all: Vec<_> = [300, 350, 50].into_iter().zip(0..).collect();
        let of = |&(reserved, node): &(u64, u16)| (NodeId(node), report(reserved, [0, 0, 5]));
        let reports = all.iter().map(of);
        let next = view.next(&back, &reports.collect::<Vec<_>>());
        let first = SnapshotVersion(351);
        let before = Bid(50);
        let life = Life { joined: ViewNumber(3), first, before, head: Bid(99), ended: None };
        assert_eq!(next.lives[2], life);
        assert!(next.waits_for(NodeId(2), first));
        assert!(!next.waits_for(NodeId(2), SnapshotVersion(350)));
        assert_eq!(next.lives[0], view.lives[0], "the others go on");
    }

    #[test]
    fn a_life_that_has_ended_is_cut_again_and_never_extended() {
        let ended = |view: &View| view.lives[2].ended.unwrap().epoch.0;
        let five = View::first(5);
        let report = |reserved: u64, of: u64| {
            let end = Ended { epoch: SnapshotVersion(of), last: Bid(of) };
            Report { reserved: SnapshotVersion(reserved), head: Bid(9), ended: vec![end; 5] }
        };
        let reports = |of: &[u64], from: &[u16]| -> Vec<_> {
            let from = from.iter().copied().map(NodeId);
            from.zip(of.iter().map(|of| report(100, *of))).collect()
        };
        let view = five.next(&seal(1, &[2], &[]), &reports(&[7, 5, 5, 5], &[0, 1, 3, 4]));
        assert_eq!(ended(&view), 7);
        let less = view.next(&seal(2, &[0], &[]), &reports(&[5, 5, 6], &[1, 3, 4]));
        assert_eq!(ended(&less), 6, "node 0 alone had epoch 7, which nobody can have merged");
        let more = view.next(&seal(2, &[0], &[]), &reports(&[8, 8, 8], &[1, 3, 4]));
        assert_eq!(ended(&more), 7);
    }

    #[test]
    fn a_replica_without_its_disk_ends_its_life_and_begins_another_in_one_view() {
        let view = View::first(2);
        let anew = seal(1, &[1], &[1]);
        assert!(view.allows(&anew), "two of two are left");
        let reports = [(NodeId(0), report(107, [0, 7, 0])), (NodeId(1), report(0, [0, 6, 0]))];
        let life = view.next(&anew, &reports).lives[1];
        let (joined, first) = (ViewNumber(2), SnapshotVersion(108));
        assert_eq!(life, Life { joined, first, before: Bid(70), head: Bid(99), ended: None });
    }

    #[test]
    fn a_seal_that_makes_no_sense_is_refused() {
        let view = View::first(3);
        for wrong in
            [seal(2, &[2], &[]), seal(1, &[], &[2]), seal(1, &[3], &[]), seal(1, &[1, 2], &[])]
        {
            assert!(!view.allows(&wrong), "{wrong:?}");
        }
        assert!(view.allows(&seal(1, &[2], &[])));
    }
}
