//! The loss of a region, and the check of the transactions that it had acknowledged.
//!
//! From that moment its node does nothing: its queues, messages in flight and clients are lost. The
//! other nodes notice that their connections ended after the one-way delay. At the end every
//! survivor must have all transactions that any node had acknowledged, including the lost one: the
//! same rows at the newest acknowledged version. Transactions that a master acknowledged before any
//! other node had them may be lost; their number is reported ([`crate::master_terms`]).

use std::collections::{BTreeMap, VecDeque};

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::protocol::{Input, Protocol};
use pangea_core::store::Pin;
use pangea_core::workload::Snapshot;

use super::{Event, World};
use crate::master_terms::{MasterHistories, MasterTerm};
use crate::predict::outcome::Survived;

/// The interval of pins, which keep rows readable for the comparison at the end, and the number of
/// pins retained.
const PIN_NS: u64 = 50_000_000;
const PINS: usize = 40;

/// The state of a loss.
pub(super) struct RegionLoss {
    /// The lost node, once it is lost.
    pub(super) node: Option<usize>,
    was_coordinator: bool,
    /// By node: the versions of acknowledged transactions, and the number of those that wrote.
    acknowledged: Vec<BTreeMap<SnapshotVersion, u64>>,
    histories: MasterHistories,
    pins: VecDeque<Vec<Pin>>,
}

impl RegionLoss {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            node: None,
            was_coordinator: false,
            acknowledged: vec![BTreeMap::new(); nodes],
            histories: MasterHistories::new(nodes),
            pins: VecDeque::new(),
        }
    }

    /// Records that a node has acknowledged a transaction.
    pub(super) fn on_answer(&mut self, node: NodeId, txn: TxnId, version: SnapshotVersion) {
        let count = self.acknowledged[node.index()].entry(version).or_default();
        // A read-only transaction has no number.
        *count += u64::from(txn.sequence() > 0);
    }

    /// Records a node's report of the master term of a shard's versions from one on.
    pub(super) fn on_master_term(
        &mut self,
        node: NodeId,
        (shard, from): (ShardId, SnapshotVersion),
        term: Option<MasterTerm>,
        is_final: bool,
    ) -> Result<(), String> {
        let Some(term) = term else {
            self.histories.on_start(node);
            return Ok(());
        };
        match self.histories.on_master_term(node, (shard, from), term, is_final) {
            None => Ok(()),
            Some(_) => {
                Err(format!("{node} confirmed {from}, but another node confirmed it differently"))
            }
        }
    }
}

impl<P: Protocol> World<'_, P> {
    pub(super) fn is_lost(&self, node: usize) -> bool {
        self.loss.node == Some(node)
    }

    /// Keeps the currently published versions readable for a while.
    pub(super) fn pin(&mut self) {
        if self.settings.loss.is_none() || self.loss.node.is_some() {
            return;
        }
        self.loss.pins.push_back(self.nodes.iter().map(|node| node.store.pin()).collect());
        if self.loss.pins.len() > PINS {
            self.loss.pins.pop_front();
        }
        self.at(self.now_ns + PIN_NS, Event::Pin);
    }

    /// Returns the coordinator as known to one of the remaining nodes.
    pub(super) fn coordinator(&self) -> Option<NodeId> {
        let there = (0..self.nodes.len()).filter(|node| !self.is_lost(*node));
        there.into_iter().find_map(|node| self.nodes[node].protocol.status().coordinator)
    }

    /// Loses a region.
    pub(super) fn lose(&mut self) {
        let loss = self.settings.loss.expect("a loss is set");
        let coordinator = self.coordinator().map(NodeId::index);
        let lost = loss.region.or(coordinator).unwrap_or(0);
        self.loss.node = Some(lost);
        self.loss.was_coordinator = coordinator == Some(lost);
        for peer in (0..self.nodes.len()).filter(|peer| *peer != lost) {
            let way = self.topology.one_way_between(NodeId(lost as u16), NodeId(peer as u16));
            self.at(self.now_ns + way.us * 1_000, Event::PeerLost(peer));
        }
    }

    /// Notifies a survivor of the loss.
    pub(super) fn notice(&mut self, peer: usize) {
        let lost = self.loss.node.expect("a region was lost");
        self.nodes[peer].inbox.peers.push_back(Input::PeerDown(NodeId(lost as u16)));
    }

    /// Returns the effect of the loss.
    pub(super) fn survived(&self) -> Option<Survived> {
        let lost = self.loss.node?;
        let of_lost = &self.loss.acknowledged[lost];
        let is_void = |version: &SnapshotVersion| self.is_void(lost, *version);
        let void = of_lost.iter().filter(|(version, _)| is_void(version));
        Some(Survived {
            region: self.settings.place(lost),
            was_coordinator: self.loss.was_coordinator,
            lost_txns: void.map(|(_, count)| count).sum(),
            wrong: self.wrong_after(lost),
        })
    }

    /// Whether the lost node ran a version before agreement that was never agreed on.
    fn is_void(&self, lost: usize, version: SnapshotVersion) -> bool {
        let histories = &self.loss.histories;
        let lines_then = histories.up_to(NodeId(lost as u16), version);
        let is_early = self.nodes[lost].protocol.confirmed().is_some_and(|upto| upto < version);
        is_early && (!self.has_come_to(lost, version) || histories.is_lost(version, &lines_then))
    }

    /// Whether a survivor has a version.
    fn has_come_to(&self, lost: usize, version: SnapshotVersion) -> bool {
        let others = self.nodes.iter().enumerate().filter(|(node, _)| *node != lost);
        others.map(|(_, node)| node.store.published()).any(|published| published >= version)
    }

    /// Returns an error in the survivors' rows, if any.
    fn wrong_after(&self, lost: usize) -> Option<String> {
        let name = |node: usize| self.settings.place(node);
        let survivors: Vec<usize> = (0..self.nodes.len()).filter(|node| *node != lost).collect();
        for (node, acknowledged) in self.loss.acknowledged.iter().enumerate() {
            let is_kept =
                |version: &&SnapshotVersion| node != lost || !self.is_void(lost, **version);
            let newest = acknowledged.keys().rev().find(is_kept);
            let newest = newest.copied().unwrap_or_default();
            let digest = self.nodes[node].store.digest(newest);
            for survivor in survivors.iter().filter(|survivor| **survivor != node) {
                let store = &self.nodes[*survivor].store;
                // Transactions that a survivor acknowledged recently may still be in flight to the
                // others.
                let is_there = store.published() >= newest;
                if node == lost && !is_there {
                    return Some(format!(
                        "{} had acknowledged up to {newest}, but {} has only reached {}",
                        name(lost),
                        name(*survivor),
                        store.published()
                    ));
                }
                if is_there && store.digest(newest) != digest {
                    let (a, b) = (name(node), name(*survivor));
                    return Some(format!("{a} and {b} differ at {newest}"));
                }
            }
        }
        let store = &self.nodes[survivors[0]].store;
        let rows = Snapshot::new(store, store.published());
        self.settings.workload.check(&rows).err().map(|violation| violation.to_string())
    }
}
