//! What goes wrong, and when it is right again.
//!
//! Each seed turns on some of the kinds of faults that the settings allow and draws how many happen
//! and when; whom they hit is drawn when they happen. All end when the world is healed.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Protocol;
use pangea_core::time::{Span, Timestamp};

use super::network::SLOWNESS_MAX;
use super::{Event, World};
use crate::dice::Dice;
use crate::settings::FaultKind;
use crate::trace::Outside;

/// A node that is to crash does so before one of its next effects, of so many at most.
const CRASH_EFFECTS_MAX: u64 = 60;
/// How long a node stays down: usually, and at worst.
const DOWN_US: (u64, u64) = (20_000, 1_000_000);
const DOWN_US_MAX: u64 = 3_000_000;
/// How long other faults last.
const LENGTH_US: (u64, u64) = (30_000, 3_000_000);
/// How long a node does nothing at most.
const PAUSE_US_MAX: u64 = 1_000_000;
/// How many times as long an fsync takes at most.
const DISK_SLOWNESS_MAX: u64 = 100;

/// A fault that begins.
pub(super) type Fault = FaultKind;

/// A fault that ends.
pub(super) enum Mend {
    /// These directions are open again.
    Unblock(Vec<(NodeId, NodeId)>),
    /// A link is as fast as it was.
    Link(NodeId, NodeId),
    /// A disk is as fast as it was.
    Disk(NodeId),
    /// No fault happens from now on.
    Heal,
}

/// The faults' generator and their end.
pub(super) struct Faults {
    pub(super) dice: Dice,
    heal_at: Timestamp,
}

impl Faults {
    pub(super) fn new(dice: Dice) -> Self {
        Self { dice, heal_at: Timestamp::default() }
    }
}

impl<P: Protocol> World<P> {
    /// Draws what will happen between now and `heal_at`.
    pub(super) fn plan_faults(&mut self, heal_at: Timestamp) {
        self.faults.heal_at = heal_at;
        let dice = &mut self.faults.dice;
        let allowed = &self.settings.faults;
        let mut kinds: Vec<FaultKind> =
            allowed.iter().copied().filter(|_| dice.chance(500)).collect();
        if kinds.is_empty() && !allowed.is_empty() {
            kinds.push(allowed[dice.index(allowed.len())]);
        }
        if !kinds.is_empty() {
            self.network.worsen();
        }
        let count = if kinds.is_empty() { 0 } else { dice.between(0, self.settings.faults_max) };
        for _ in 0..count {
            let kind = kinds[dice.index(kinds.len())];
            let at = Timestamp::from_us(dice.between(self.now.us, heal_at.us));
            self.queue.push(at, Event::Break(kind));
        }
        self.queue.push(heal_at, Event::Mend(Mend::Heal));
    }

    pub(super) fn on_break(&mut self, kind: Fault) {
        *self.counts.faults.entry(kind.name()).or_default() += 1;
        self.trace.event(self.now, Outside, "fault", [kind as u64, 0], || kind.name().to_owned());
        match kind {
            FaultKind::Crash => {
                let node = self.draw_node();
                self.arm_crash(node);
                if self.faults.dice.chance(250) {
                    let another = self.draw_node();
                    self.arm_crash(another);
                }
            }
            FaultKind::CoordinatorCrash => {
                let of =
                    |node: &super::Node<P>| node.running.as_ref()?.protocol.status().coordinator;
                let coordinator = self.nodes.iter().find_map(of);
                let node = coordinator.unwrap_or_else(|| self.draw_node());
                self.arm_crash(node);
            }
            FaultKind::FullStop => {
                for node in self.topology.clone().node_ids() {
                    let down = self.draw_down_time();
                    self.crash(node, down);
                }
            }
            FaultKind::Partition => self.partition(true),
            FaultKind::OneWay => self.partition(false),
            FaultKind::Flap => {
                if let Some((a, b)) = self.draw_pair() {
                    self.lose(a, b);
                }
            }
            FaultKind::SlowLink => self.slow_link(),
            FaultKind::SlowDisk => {
                let node = self.draw_node();
                let slowness = self.faults.dice.between(2, DISK_SLOWNESS_MAX);
                self.nodes[node.index()].disk_slowness = slowness;
                self.mend_later(Mend::Disk(node));
            }
            FaultKind::Pause => {
                let node = self.draw_node();
                let us = self.faults.dice.between(1_000, PAUSE_US_MAX);
                self.nodes[node.index()].pause = Span::from_us(us);
            }
        }
    }

    pub(super) fn on_mend(&mut self, mend: Mend) {
        match mend {
            Mend::Unblock(directions) => {
                directions.into_iter().for_each(|(from, to)| self.unblock(from, to));
            }
            Mend::Link(a, b) => self.network.set_slowness(a, b, 1),
            Mend::Disk(node) => self.nodes[node.index()].disk_slowness = 1,
            Mend::Heal => {
                self.trace.event(self.now, Outside, "healed", [0, 0], String::new);
                self.network.heal();
                self.nodes.iter_mut().for_each(|node| node.crash_after = None);
            }
        }
    }

    fn arm_crash(&mut self, node: NodeId) {
        let effects = self.faults.dice.between(0, CRASH_EFFECTS_MAX);
        self.nodes[node.index()].crash_after = Some(effects);
    }

    /// Cuts some nodes off from the others, both ways or one way.
    fn partition(&mut self, is_both_ways: bool) {
        let nodes = self.nodes.len();
        if nodes < 2 {
            return;
        }
        let inside = self.faults.dice.between(1, (1 << nodes) - 2);
        let is_inside = |node: NodeId| inside >> node.0 & 1 == 1;
        let ids = || self.topology.node_ids();
        let pairs = ids().flat_map(|a| ids().map(move |b| (a, b)));
        let is_cut = |&(a, b): &(NodeId, NodeId)| match is_both_ways {
            true => is_inside(a) != is_inside(b),
            false => is_inside(a) && !is_inside(b),
        };
        let cut: Vec<(NodeId, NodeId)> = pairs.filter(is_cut).collect();
        for &(from, to) in &cut {
            self.block(from, to);
        }
        self.trace.event(self.now, Outside, "partition", [inside, cut.len() as u64], || {
            format!("{cut:?}")
        });
        self.mend_later(Mend::Unblock(cut));
    }

    fn slow_link(&mut self) {
        if let Some((a, b)) = self.draw_pair() {
            let slowness = self.faults.dice.between(2, SLOWNESS_MAX);
            self.network.set_slowness(a, b, slowness);
            self.mend_later(Mend::Link(a, b));
        }
    }

    fn mend_later(&mut self, mend: Mend) {
        let length = Span::from_us(self.faults.dice.between(LENGTH_US.0, LENGTH_US.1));
        let at = (self.now + length).min(self.faults.heal_at).max(self.now);
        self.queue.push(at, Event::Mend(mend));
    }

    /// How long a node that stops now stays down. All are up when the world is healed.
    pub(super) fn draw_down_time(&mut self) -> Span {
        let dice = &mut self.faults.dice;
        let most = if dice.chance(100) { DOWN_US_MAX } else { DOWN_US.1 };
        let down = Span::from_us(dice.between(DOWN_US.0, most));
        let left = self.faults.heal_at.since(self.now);
        down.min(left).max(Span::from_us(1))
    }

    fn draw_node(&mut self) -> NodeId {
        NodeId(self.faults.dice.index(self.nodes.len()) as u16)
    }

    fn draw_pair(&mut self) -> Option<(NodeId, NodeId)> {
        let nodes = self.nodes.len();
        if nodes < 2 {
            return None;
        }
        let a = self.draw_node();
        let apart = self.faults.dice.between(1, nodes as u64 - 1) as usize;
        Some((a, NodeId(((a.index() + apart) % nodes) as u16)))
    }
}
