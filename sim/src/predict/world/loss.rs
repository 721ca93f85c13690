//! A region that is lost while the others work, and what is left of what it had acknowledged.
//!
//! Its node does nothing from that moment on: what waits in it, on its links and in its clients is
//! gone. The others hear that their connections ended, after the way from there. At the end every
//! survivor has to hold all that any node had acknowledged, the lost one included: the same rows at
//! the newest version that it had answered with.

use std::collections::VecDeque;

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Input, Protocol};
use pangea_core::store::Pin;
use pangea_core::workload::Snapshot;

use super::{Event, World};
use crate::predict::outcome::Survived;

/// Where the rows are held readable, for the comparison at the end: this often, and so many times.
const PIN_NS: u64 = 50_000_000;
const PINS: usize = 40;

/// What is known of a loss.
pub(super) struct Losing<P: Protocol> {
    /// The node that is lost, once it is.
    pub(super) node: Option<usize>,
    was_coordinator: bool,
    /// The newest version that each node has acknowledged a transaction with.
    pub(super) acknowledged: Vec<SnapshotVersion>,
    pins: VecDeque<Vec<Pin<P::Header>>>,
}

impl<P: Protocol> Losing<P> {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            node: None,
            was_coordinator: false,
            acknowledged: vec![SnapshotVersion::ZERO; nodes],
            pins: VecDeque::new(),
        }
    }
}

impl<P: Protocol> World<'_, P> {
    pub(super) fn is_lost(&self, node: usize) -> bool {
        self.losing.node == Some(node)
    }

    /// Keeps what is published now readable for a while.
    pub(super) fn pin(&mut self) {
        if self.settings.loss.is_none() || self.losing.node.is_some() {
            return;
        }
        self.losing.pins.push_back(self.nodes.iter().map(|node| node.store.pin()).collect());
        if self.losing.pins.len() > PINS {
            self.losing.pins.pop_front();
        }
        self.at(self.now_ns + PIN_NS, Event::Pin);
    }

    /// The node that coordinates, as far as one knows that is there.
    pub(super) fn coordinator(&self) -> Option<NodeId> {
        let there = (0..self.nodes.len()).filter(|node| !self.is_lost(*node));
        there.into_iter().find_map(|node| self.nodes[node].protocol.status().coordinator)
    }

    /// A region is gone.
    pub(super) fn lose(&mut self) {
        let loss = self.settings.loss.expect("somebody asked for it");
        let coordinator = self.coordinator().map(NodeId::index);
        let lost = loss.region.or(coordinator).unwrap_or(0);
        self.losing.node = Some(lost);
        self.losing.was_coordinator = coordinator == Some(lost);
        for peer in (0..self.nodes.len()).filter(|peer| *peer != lost) {
            let later = self.settings.one_way[lost][peer].us * 1_000;
            self.at(self.now_ns + later, Event::PeerLost(peer));
        }
    }

    /// A survivor notices.
    pub(super) fn notice(&mut self, peer: usize) {
        let lost = self.losing.node.expect("a region was lost");
        self.nodes[peer].inbox.peers.push_back(Input::PeerDown(NodeId(lost as u16)));
    }

    /// What came of the loss.
    pub(super) fn survived(&self) -> Option<Survived> {
        let lost = self.losing.node?;
        Some(Survived {
            region: self.settings.regions[lost].clone(),
            was_coordinator: self.losing.was_coordinator,
            wrong: self.wrong_after(lost),
        })
    }

    /// What is wrong with the survivors' rows.
    fn wrong_after(&self, lost: usize) -> Option<String> {
        let name = |node: usize| &self.settings.regions[node];
        let survivors: Vec<usize> = (0..self.nodes.len()).filter(|node| *node != lost).collect();
        for (node, acknowledged) in self.losing.acknowledged.iter().enumerate() {
            let digest = self.nodes[node].store.digest(*acknowledged);
            for survivor in survivors.iter().filter(|survivor| **survivor != node) {
                let store = &self.nodes[*survivor].store;
                // What a survivor has acknowledged lately may be on its way to the others.
                let is_there = store.published() >= *acknowledged;
                if node == lost && !is_there {
                    return Some(format!(
                        "{} had acknowledged up to {acknowledged}, and {} has come to {} only",
                        name(lost),
                        name(*survivor),
                        store.published()
                    ));
                }
                if is_there && store.digest(*acknowledged) != digest {
                    let (a, b) = (name(node), name(*survivor));
                    return Some(format!("{a} and {b} differ at {acknowledged}"));
                }
            }
        }
        let store = &self.nodes[survivors[0]].store;
        let rows = Snapshot::new(store, store.published());
        self.settings.workload.check(&rows).err().map(|violation| violation.to_string())
    }
}
