//! Upgrades: all nodes restart with a later version of their program ([`super::programs`]).
//!
//! ```text
//!   forward: each node stops, in order or as in a power failure, and starts with the new program,
//!      |     at once or when all have stopped
//!      +--> all run it, and none refuses an epoch for long
//!      +--> some refuse: what their error advises. Back: all start with the earlier program, which
//!           runs the epochs. Then all stop in order, and forward again
//! ```
//!
//! Nodes of two programs are connected here, which real nodes refuse: a stricter test of what each
//! makes of the other's cuts.
//!
//! If nodes stop in order, start when all have stopped, and nothing else fails in the meantime, no
//! node may refuse an epoch.

use pangea_core::ids::NodeId;
use pangea_core::protocol::{Input, Protocol};
use pangea_core::time::{Span, Timestamp};

use super::node::Node;
use super::{Event, World};
use crate::trace::Outside;

/// The interval at which the operator looks after the nodes.
const LOOK: Span = Span::from_ms(20);
/// The time limit for a stop in order. A master that has just stopped is replaced after seconds.
const STOP_MAX: Span = Span::from_ms(10_000);
/// How long the operator lets nodes run before concluding that they refuse or continue.
const PATIENCE: Span = Span::from_ms(3_000);
/// The downtime of a node that the operator restarts with the earlier program.
const DOWN: Span = Span::from_ms(20);
/// How long nothing may have failed before nodes stop, if every node must continue.
const CALM: Span = Span::from_ms(2_000);
/// The maximum number of times that the operator goes back to the earlier program.
const BACK_MAX: u32 = 3;

/// The upgrade in progress.
#[derive(Debug, Default)]
pub(super) struct Upgrade {
    /// The version of the program that nodes run, or are to run.
    program: u32,
    /// When each version from 1 on came.
    begun: Vec<Timestamp>,
    stage: Stage,
    kind: UpgradeKind,
    down: Span,
    /// The nodes that still have to be stopped.
    left: Vec<NodeId>,
    /// The nodes that have stopped, and wait for the others.
    held: Vec<NodeId>,
    /// Whether every node must continue with the new program.
    is_clean: bool,
    /// When the last node was restarted, or when no node refused an epoch.
    since: Timestamp,
    /// When the operator last stopped or restarted a node.
    acted: Timestamp,
    /// How often the operator went back to the earlier program.
    back: u32,
}

/// How the operator restarts nodes: see [`Fault::Upgrade`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UpgradeKind {
    is_in_order: bool,
    is_rolling: bool,
    is_after_all: bool,
}

impl Upgrade {
    /// When each version of the program from 1 on came.
    pub(super) fn begun(&self) -> &[Timestamp] {
        &self.begun
    }
}

impl UpgradeKind {
    pub(super) fn new(is_in_order: bool, is_rolling: bool, is_after_all: bool) -> Self {
        Self { is_in_order, is_rolling, is_after_all }
    }
}

/// The stage of an upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    None,
    /// Nodes restart with the new program, and then run it. A node that was disconnected may learn
    /// of an epoch that it refuses at any later time.
    Forward,
    /// All nodes run the earlier program again.
    Back,
}

impl<P: Protocol> World<P> {
    /// Begins an upgrade, unless one is in progress.
    pub(super) fn begin_upgrade(&mut self, kind: UpgradeKind, down: Span) {
        let is_first = self.upgrade.stage == Stage::None;
        if !is_first && !self.is_upgraded() {
            return;
        }
        let program = self.upgrade.program + 1;
        let mut begun = std::mem::take(&mut self.upgrade.begun);
        begun.push(self.now);
        let left = self.topology.node_ids().collect();
        let (since, acted) = (self.now, self.now);
        let is_clean = kind.is_in_order && kind.is_after_all && self.is_calm(kind);
        self.upgrade = Upgrade {
            program,
            begun,
            stage: Stage::Forward,
            kind,
            down,
            left,
            held: Vec::new(),
            is_clean,
            since,
            acted,
            back: 0,
        };
        if is_first {
            self.queue.push(self.now, Event::Operator);
        }
    }

    /// Whether nothing has failed lately, all nodes run, are connected and refuse nothing, and all
    /// shards stop at once if there are several: they have to end with the same epoch.
    fn is_calm(&self, kind: UpgradeKind) -> bool {
        let are_over = self.faults.are_over_for(CALM, self.now);
        let can_end = self.topology.partitions.shards() == 1 || !kind.is_rolling;
        can_end && are_over && self.replicas().iter().all(|node| self.is_in_place(node))
    }

    /// Whether a node runs, has recovered its data, and is connected to all others.
    fn is_in_place(&self, node: &Node<P>) -> bool {
        let Some(running) = &node.running else { return node.is_destroyed };
        let others =
            self.replicas().iter().filter(|other| other.id != node.id && !other.is_destroyed);
        Self::is_up(node)
            && !Self::refuses(node)
            && running.protocol.status().rejoin.is_none()
            && others.into_iter().all(|other| self.network.is_connected(node.id, other.id))
    }

    /// A fault begins: an upgrade in progress may need the earlier program again.
    pub(super) fn note_disturbance(&mut self) {
        self.upgrade.is_clean = false;
    }

    /// Whether an upgrade is in progress.
    pub(super) fn is_upgrading(&self) -> bool {
        self.upgrade.stage != Stage::None && !self.is_upgraded()
    }

    /// When the operator last stopped or restarted a node. Stops in order, one after the other, may
    /// take longer than everything else.
    pub(super) fn operator_acted(&self) -> Timestamp {
        self.upgrade.acted
    }

    /// Whether all nodes run the newest program, and none refuses an epoch.
    fn is_upgraded(&self) -> bool {
        let is_done = |node: &Node<P>| {
            node.is_destroyed
                || node.program == self.upgrade.program
                    && node.stop_by.is_none()
                    && !Self::refuses(node)
        };
        self.upgrade.left.is_empty() && self.replicas().iter().all(is_done)
    }

    /// A node that crashed while it was being stopped, and has started with its former program.
    fn outdated(&self) -> Option<NodeId> {
        let is_outdated = |node: &&Node<P>| {
            let is_done = node.is_destroyed || node.program == self.upgrade.program;
            !is_done && node.stop_by.is_none()
        };
        self.replicas().iter().find(is_outdated).map(|node| node.id)
    }

    /// The operator's next look.
    pub(super) fn on_operator(&mut self) {
        self.end_stops();
        let outdated = self.outdated();
        match self.upgrade.stage {
            Stage::None => return,
            Stage::Forward if !self.upgrade.left.is_empty() => self.stop_next(),
            Stage::Forward if !self.upgrade.held.is_empty() => self.start_held(),
            Stage::Forward if self.is_upgraded() => self.upgrade.since = self.now,
            Stage::Forward if outdated.is_some() => {
                let (program, down) = (self.upgrade.program, self.upgrade.down);
                outdated.into_iter().for_each(|id| self.restart_with(id, program, down));
            }
            Stage::Forward if self.replicas().iter().any(|node| node.stop_by.is_some()) => {}
            Stage::Forward if self.has_waited() && self.replicas().iter().any(Self::refuses) => {
                self.go_back();
            }
            Stage::Back if self.has_waited() => {
                self.upgrade.stage = Stage::Forward;
                self.upgrade.kind = UpgradeKind::new(true, false, true);
                self.upgrade.is_clean = self.is_calm(self.upgrade.kind);
                self.upgrade.left = self.topology.node_ids().collect();
            }
            Stage::Forward | Stage::Back => {}
        }
        let is_stopping = !self.upgrade.left.is_empty() && !self.upgrade.kind.is_rolling;
        let look = match is_stopping {
            true => Span::from_us(self.faults.dice.upgrades.between(0, LOOK.us)),
            false => LOOK,
        };
        self.queue.push(self.now + look, Event::Operator);
    }

    fn has_waited(&self) -> bool {
        self.now.since(self.upgrade.since) >= PATIENCE
    }

    fn is_up(node: &Node<P>) -> bool {
        node.is_destroyed || node.running.is_some() && node.stop_by.is_none()
    }

    /// Ends the nodes that may end.
    fn end_stops(&mut self) {
        for id in self.topology.clone().node_ids() {
            let node = &self.nodes[id.index()];
            let Some(by) = node.stop_by else { continue };
            let may_stop = node.running.as_ref().map(|running| running.protocol.may_stop());
            self.counts.stops_in_order += u64::from(may_stop == Some(true));
            let is_over = may_stop.unwrap_or(true);
            if !is_over && self.now >= by && self.upgrade.is_clean {
                self.violate("stop", format!("{id} did not stop within {STOP_MAX}"));
            }
            if is_over || self.now >= by {
                self.end(id);
            }
        }
    }

    /// Ends a node: it restarts with the new program, perhaps when all have ended.
    fn end(&mut self, id: NodeId) {
        if !self.upgrade.kind.is_after_all {
            return self.restart_with(id, self.upgrade.program, self.upgrade.down);
        }
        self.crash(id, Span::ZERO);
        // Invalidates the pending event that would start the node.
        self.nodes[id.index()].life += 1;
        self.upgrade.held.push(id);
        (self.upgrade.since, self.upgrade.acted) = (self.now, self.now);
    }

    /// Starts the nodes that wait for the others, if all have ended.
    fn start_held(&mut self) {
        if self.replicas().iter().all(|node| node.stop_by.is_none()) {
            let (program, down) = (self.upgrade.program, self.upgrade.down);
            let held = std::mem::take(&mut self.upgrade.held);
            held.into_iter().for_each(|id| self.restart_with(id, program, down));
        }
    }

    /// Stops the next node, or all of them.
    fn stop_next(&mut self) {
        let is_there = |node: &Node<P>| Self::is_up(node) || self.upgrade.held.contains(&node.id);
        if self.upgrade.kind.is_rolling && !self.replicas().iter().all(is_there) {
            // After a fault, a node may be down for long, or for ever.
            if !self.has_waited() {
                return;
            }
        }
        let left = self.upgrade.left.len() as u64;
        let count = match self.upgrade.kind {
            UpgradeKind { is_rolling: true, .. } => 1,
            // The operator's signals arrive at slightly different times.
            UpgradeKind { is_in_order: true, .. } => {
                self.faults.dice.upgrades.between(1, left) as usize
            }
            UpgradeKind { .. } => left as usize,
        };
        let next: Vec<NodeId> = self.upgrade.left.drain(..count).collect();
        for id in next {
            if self.upgrade.kind.is_in_order && self.is_running(id) {
                self.nodes[id.index()].stop_by = Some(self.now + STOP_MAX);
                self.input(id, Input::Stop);
            } else {
                self.end(id);
            }
        }
        (self.upgrade.since, self.upgrade.acted) = (self.now, self.now);
    }

    /// Restarts a node, which may have stopped, with a version of the program.
    fn restart_with(&mut self, id: NodeId, program: u32, down: Span) {
        let (is_running, at) = (self.is_running(id), self.now + down);
        self.crash(id, down);
        let node = &mut self.nodes[id.index()];
        node.program = program;
        if !is_running && !node.is_destroyed {
            // It may be down because of another fault, which has also scheduled its start.
            let life = node.life;
            self.queue.push(at, Event::Start { node: id, life });
        }
        (self.upgrade.since, self.upgrade.acted) = (self.now, self.now);
    }

    /// Starts all nodes with the earlier program.
    fn go_back(&mut self) {
        if std::mem::take(&mut self.upgrade.is_clean) {
            let refused =
                self.replicas().iter().find(|node| Self::refuses(node)).map(|node| node.id);
            let story = format!("{refused:?} refuses an epoch although all nodes stopped in order");
            return self.violate("upgrade", story);
        }
        self.upgrade.back += 1;
        if self.upgrade.back > BACK_MAX {
            let story = "nodes refuse epochs although their errors' advice was followed";
            self.violate("upgrade", story.to_owned());
        }
        self.trace.event(self.now, Outside, "back", [0, 0], String::new);
        self.counts.upgrades_undone += 1;
        self.upgrade.stage = Stage::Back;
        let program = self.upgrade.program - 1;
        for id in self.topology.clone().node_ids() {
            self.restart_with(id, program, DOWN);
        }
    }

    /// Whether a node refuses an epoch, or has stopped for it.
    fn refuses(node: &Node<P>) -> bool {
        match &node.running {
            Some(running) => running.protocol.status().refused.is_some(),
            None => !node.is_destroyed && node.has_refused,
        }
    }

    /// A node stops itself. It may, if it refuses an epoch of another program.
    pub(super) fn on_stopped(&mut self, id: NodeId, reason: &str) {
        let node = &self.nodes[id.index()];
        if !Self::refuses(node) {
            return self.violate("stop", format!("{id} stopped: {reason}"));
        }
        self.crash(id, Span::ZERO);
        let node = &mut self.nodes[id.index()];
        node.has_refused = true;
        // Invalidates the pending event that would start the node: only the operator does.
        node.life += 1;
    }
}
