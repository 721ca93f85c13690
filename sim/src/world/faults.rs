//! Carries out rules: begins and ends faults.

use std::collections::BTreeMap;

use pangea_core::ids::NodeId;
use pangea_core::protocol::{Lane, Protocol};
use pangea_core::time::{Span, Timestamp};

use super::network::LANES;
use super::upgrade::UpgradeKind;
use super::{Event, World};
use crate::clock::STANDSTILL_PPM;
use crate::faults::{self, Dice, Fault, FaultKind, Role, Rule, Target};
use crate::trace::Outside;

/// The end of a fault.
pub(super) enum FaultEnd {
    /// Unblocks these lanes of these directions.
    Unblock(Vec<(NodeId, NodeId)>, Vec<Lane>),
    /// Restores the speed of a link.
    SlowLink(NodeId, NodeId),
    /// Restores the bandwidth of a link.
    NarrowLink(NodeId, NodeId),
    /// Restores the speed of a disk.
    SlowDisk(NodeId),
    /// Lets fsyncs end again.
    StuckDisk(NodeId),
    /// Frees space on a disk.
    FullDisk(NodeId),
    /// Lets checkpoints be written again.
    FailedCheckpoint(NodeId),
    /// Restores the speed of a processor.
    SlowProcessor(NodeId),
    /// Restores the clock's previous error.
    Clock { node: NodeId, by_us: i64, is_known: bool },
    /// Restores the rate of a clock.
    ClockRate(NodeId),
    /// Messages of a direction are no longer late.
    LateMessages(NodeId, NodeId),
    /// Lets clients begin transactions.
    Quiet,
    /// Ends all faults.
    Heal,
}

/// The rules of a run, and a generator for the choices that they leave open.
pub(super) struct Faults {
    pub(super) dice: Dice,
    pub(super) rules: Vec<Rule>,
    heal_at: Timestamp,
    waits: Vec<MarkWait>,
    /// The number of active faults that keep clients from beginning anything.
    quiet: u32,
    /// When the last fault that began has ended, or ends.
    calm_from: Timestamp,
}

/// A crash that waits for a mark.
struct MarkWait {
    node: Option<NodeId>,
    mark: String,
    times: u64,
    /// How often each node has counted the mark.
    counted: BTreeMap<NodeId, u64>,
    after_effects: u64,
    down: Span,
}

impl MarkWait {
    /// Counts a mark of a node, and returns whether the node is to crash.
    fn count(&mut self, id: NodeId, mark: &str) -> bool {
        if self.mark != mark || self.node.is_some_and(|node| node != id) {
            return false;
        }
        let counted = self.counted.entry(id).or_default();
        *counted += 1;
        *counted >= self.times
    }
}

impl Faults {
    pub(super) fn new(seed: u64) -> Self {
        let (dice, heal_at) = (Dice::of(seed), Timestamp::default());
        let calm_from = Timestamp::default();
        Self { dice, rules: Vec::new(), heal_at, waits: Vec::new(), quiet: 0, calm_from }
    }

    fn wait_for(
        &mut self,
        (mark, times): (String, u64),
        node: Option<NodeId>,
        after_effects: u64,
        down: Span,
    ) {
        let counted = BTreeMap::new();
        self.waits.push(MarkWait { node, mark, times, counted, after_effects, down });
    }

    /// Whether nothing has failed for this long, and nothing waits to fail.
    pub(super) fn are_over_for(&self, span: Span, now: Timestamp) -> bool {
        self.waits.is_empty() && now >= self.calm_from + span
    }

    /// Whether clients begin nothing.
    pub(super) fn are_clients_quiet(&self) -> bool {
        self.quiet > 0
    }
}

/// Checks that the protocol has all marks that faults wait for.
///
/// # Errors
/// The mark that it does not have.
pub(super) fn check_marks<'a, P: Protocol>(
    mut rules: impl Iterator<Item = &'a Rule>,
) -> Result<(), String> {
    rules.try_for_each(|rule| {
        let Fault::CrashAfterMark { mark, .. } = &rule.fault else { return Ok(()) };
        let is_known = P::MARKS.iter().any(|it| it.name == mark);
        let why = || format!("a fault waits for {mark:?}, which is not a mark of {}", P::NAME);
        is_known.then_some(()).ok_or_else(why)
    })
}

impl<P: Protocol> World<P> {
    /// Draws or takes the rules, and schedules them between now and `heal_at`.
    pub(super) fn plan_faults(&mut self, heal_at: Timestamp) {
        self.faults.heal_at = heal_at;
        let (settings, nodes) = (&self.settings, self.topology.node_count());
        let (dice, most) = (&mut self.faults.dice, settings.faults_max);
        let caches: Vec<u16> = self.topology.all_ids().skip(nodes).map(|it| it.0).collect();
        // Rules are drawn even if they are given, so that drawn and given rules make the same run.
        let kinds = faults::kinds_for(&settings.faults, P::NEEDS_CLOCKS);
        let drawn = faults::draw(dice, &kinds, most, nodes, settings.duration, P::MARKS);
        let of_caches = faults::draw_for_caches(dice, &caches, settings.duration);
        let of_caches = if settings.faults.is_empty() { Vec::new() } else { of_caches };
        let drawn = drawn.into_iter().chain(of_caches).collect();
        self.faults.rules = settings.rules.clone().unwrap_or(drawn);
        if !self.faults.rules.is_empty() {
            self.network.worsen();
        }
        for (index, rule) in self.faults.rules.iter().enumerate() {
            let at = self.now + Span::from_ms(rule.at_ms);
            self.queue.push(at.min(heal_at), Event::Break(index));
        }
        self.queue.push(heal_at, Event::FaultEnd(FaultEnd::Heal));
    }

    pub(super) fn on_break(&mut self, index: usize) {
        let Rule { lasts_ms, fault, .. } = self.faults.rules[index].clone();
        let kind = fault.kind(self.topology.node_count());
        if kind != FaultKind::CrashAfterMark {
            // That kind counts when a node crashes, which may be never.
            *self.counts.faults.entry(kind.name()).or_default() += 1;
        }
        let numbers = [kind as u64, lasts_ms];
        self.trace.event(self.now, Outside, "fault", numbers, || format!("{fault:?}"));
        let ends = (self.now + Span::from_ms(lasts_ms)).min(self.faults.heal_at).max(self.now);
        if !matches!(kind, FaultKind::Upgrade | FaultKind::Quiet) {
            self.faults.calm_from = self.faults.calm_from.max(ends);
            self.note_disturbance();
        }
        if let Some(end) = self.break_now(fault, ends) {
            self.queue.push(ends, Event::FaultEnd(end));
        }
    }

    /// Begins a fault that lasts until `ends`, and returns the event that ends it, unless it ends
    /// by itself.
    fn break_now(&mut self, fault: Fault, ends: Timestamp) -> Option<FaultEnd> {
        match fault {
            Fault::Crash { node, after_effects } => {
                let node = self.target(node);
                self.nodes[node.index()].crash_after = Some((after_effects, ends.since(self.now)));
                None
            }
            Fault::Destroy { node } => {
                let node = self.target(node);
                self.destroy(node);
                None
            }
            Fault::DiskLoss { node } => {
                let node = self.target(node);
                self.lose_disk(node, ends.since(self.now));
                None
            }
            Fault::BitFlip { node } => {
                let node = self.target(node);
                self.flip_bit(node, ends.since(self.now));
                None
            }
            Fault::FullStop {} => {
                for node in self.topology.clone().all_ids() {
                    let down = self.faults.dice.usual.between(0, ends.since(self.now).us);
                    self.crash(node, Span::from_us(down));
                }
                None
            }
            Fault::CrashAfterMark { node, mark, times, after_effects } => {
                let node = node.map(|node| self.target(node));
                self.faults.wait_for((mark, times), node, after_effects, ends.since(self.now));
                None
            }
            Fault::Quiet {} => {
                self.faults.quiet += 1;
                Some(FaultEnd::Quiet)
            }
            Fault::Upgrade { in_order, rolling, after_all } => {
                let kind = UpgradeKind::new(in_order, rolling, after_all);
                self.begin_upgrade(kind, ends.since(self.now));
                None
            }
            fault => self.break_link(fault, ends),
        }
    }

    /// Begins a fault of a link, or else of a node.
    fn break_link(&mut self, fault: Fault, ends: Timestamp) -> Option<FaultEnd> {
        match fault {
            Fault::Cut { from, to, one_way } => Some(self.cut(&from, &to, one_way)),
            Fault::Flap { between: [a, b], times } => {
                let each = ends.since(self.now).us / times.max(1);
                for time in 0..times {
                    let at = self.now + Span::from_us(each * time);
                    self.queue.push(at, Event::Lose { a: NodeId(a), b: NodeId(b) });
                }
                None
            }
            Fault::SlowLink { between: [a, b], times } => {
                self.network.set_slowness(NodeId(a), NodeId(b), times);
                Some(FaultEnd::SlowLink(NodeId(a), NodeId(b)))
            }
            Fault::NarrowLink { between: [a, b], bytes_per_ms } => {
                self.network.set_width(NodeId(a), NodeId(b), Some(bytes_per_ms));
                Some(FaultEnd::NarrowLink(NodeId(a), NodeId(b)))
            }
            Fault::HeldLane { from, to, lane } => {
                let (from, to, lane) = (NodeId(from), NodeId(to), Lane::from(lane));
                self.network.block(from, to, lane);
                Some(FaultEnd::Unblock(vec![(from, to)], vec![lane]))
            }
            Fault::LateMessages { from, to } => {
                let (from, to) = (NodeId(from), NodeId(to));
                self.network.set_late(from, to, true);
                Some(FaultEnd::LateMessages(from, to))
            }
            fault => self.break_node(fault, ends),
        }
    }

    /// A cut that names no cache is one between regions.
    fn cut(&mut self, from: &[u16], to: &[u16], one_way: bool) -> FaultEnd {
        let topology = self.topology.clone();
        let is_cache = |node: &u16| topology.home_of(NodeId(*node)).is_some();
        let names_cache = from.iter().chain(to).any(is_cache);
        let with_caches = |nodes: &[u16]| -> Vec<u16> {
            let caches = nodes.iter().flat_map(|node| topology.caches_of(NodeId(*node)));
            let caches = caches.map(|cache| cache.0).filter(|_| !names_cache);
            nodes.iter().copied().chain(caches).collect()
        };
        let (from, to) = (&with_caches(from)[..], &with_caches(to)[..]);
        let ways = |from: &[u16], to: &[u16]| {
            let pairs = from.iter().flat_map(|&a| to.iter().map(move |&b| (a, b)));
            pairs.map(|(a, b)| (NodeId(a), NodeId(b))).collect::<Vec<_>>()
        };
        let mut cut = ways(from, to);
        if !one_way {
            cut.extend(ways(to, from));
        }
        for &(from, to) in &cut {
            self.block(from, to);
        }
        FaultEnd::Unblock(cut, LANES.to_vec())
    }

    /// Begins a fault of a node's disk, processor or clock.
    fn break_node(&mut self, fault: Fault, ends: Timestamp) -> Option<FaultEnd> {
        match fault {
            Fault::SlowDisk { node, times } => {
                let node = self.target(node);
                self.nodes[node.index()].disk_slowness = times;
                Some(FaultEnd::SlowDisk(node))
            }
            Fault::StuckDisk { node } => {
                let node = self.target(node);
                self.nodes[node.index()].stuck_disks += 1;
                Some(FaultEnd::StuckDisk(node))
            }
            Fault::FullDisk { node } => {
                let node = self.target(node);
                self.nodes[node.index()].disk_full_until = Some(ends);
                Some(FaultEnd::FullDisk(node))
            }
            Fault::FailedCheckpoint { node } => {
                let node = self.target(node);
                self.nodes[node.index()].failing_checkpoints += 1;
                Some(FaultEnd::FailedCheckpoint(node))
            }
            Fault::Pause { node } => {
                let node = self.target(node);
                self.nodes[node.index()].pause = ends.since(self.now);
                None
            }
            Fault::SlowProcessor { node, times } => {
                let node = self.target(node);
                self.nodes[node.index()].processor_slowness = times;
                Some(FaultEnd::SlowProcessor(node))
            }
            Fault::ClockJump { node, by_ms } => Some(self.break_clock(node, by_ms, true)),
            Fault::LyingClock { node, by_ms } => Some(self.break_clock(node, by_ms, false)),
            Fault::ClockRate { node, ppm } => Some(self.break_rate(node, ppm)),
            Fault::ClockFreeze { node } => Some(self.break_rate(node, STANDSTILL_PPM)),
            Fault::Crash { .. }
            | Fault::Destroy { .. }
            | Fault::DiskLoss { .. }
            | Fault::BitFlip { .. }
            | Fault::FullStop {}
            | Fault::CrashAfterMark { .. }
            | Fault::Quiet {}
            | Fault::Upgrade { .. }
            | Fault::Cut { .. }
            | Fault::Flap { .. }
            | Fault::SlowLink { .. }
            | Fault::NarrowLink { .. }
            | Fault::HeldLane { .. }
            | Fault::LateMessages { .. } => unreachable!("not a fault of a node"),
        }
    }

    fn break_clock(&mut self, node: Target, by_ms: i64, is_known: bool) -> FaultEnd {
        let (node, by_us) = (self.target(node), by_ms * 1_000);
        self.nodes[node.index()].clock.shift(by_us, is_known);
        FaultEnd::Clock { node, by_us: -by_us, is_known }
    }

    fn break_rate(&mut self, node: Target, ppm: i64) -> FaultEnd {
        let node = self.target(node);
        self.set_clock_rate(node, ppm);
        FaultEnd::ClockRate(node)
    }

    pub(super) fn on_fault_end(&mut self, end: FaultEnd) {
        match end {
            FaultEnd::Unblock(directions, lanes) => {
                for (from, to) in directions {
                    lanes.iter().for_each(|&lane| self.unblock(from, to, lane));
                }
            }
            FaultEnd::SlowLink(a, b) => self.network.set_slowness(a, b, 1),
            FaultEnd::NarrowLink(a, b) => self.network.set_width(a, b, None),
            FaultEnd::SlowDisk(node) => self.nodes[node.index()].disk_slowness = 1,
            FaultEnd::StuckDisk(node) => {
                let node = &mut self.nodes[node.index()];
                node.stuck_disks -= 1;
                if let Some((life, position)) = node.held_fsync.take_if(|_| node.stuck_disks == 0) {
                    let id = node.id;
                    self.on_fsync(id, life, position);
                }
            }
            FaultEnd::FullDisk(node) => self.nodes[node.index()].disk_full_until = None,
            FaultEnd::FailedCheckpoint(node) => self.nodes[node.index()].failing_checkpoints -= 1,
            FaultEnd::SlowProcessor(node) => self.nodes[node.index()].processor_slowness = 1,
            FaultEnd::Clock { node, by_us, is_known } => {
                self.nodes[node.index()].clock.shift(by_us, is_known);
            }
            FaultEnd::ClockRate(node) => self.set_clock_rate(node, 0),
            FaultEnd::LateMessages(from, to) => self.network.set_late(from, to, false),
            FaultEnd::Heal => {
                self.trace.event(self.now, Outside, "healed", [0, 0], String::new);
                self.network.heal();
                self.nodes.iter_mut().for_each(|node| node.crash_after = None);
                self.faults.waits.clear();
            }
            FaultEnd::Quiet => self.faults.quiet -= 1,
        }
    }

    /// Counts a mark of a node. The node is about to crash if a fault has waited for that.
    pub(super) fn on_mark(&mut self, id: NodeId, mark: &'static str) {
        *self.counts.marks.entry(mark).or_default() += 1;
        let (mut due, waits) = (None, &mut self.faults.waits);
        waits.retain_mut(|wait| {
            let is_due = wait.count(id, mark);
            due = if is_due { Some((wait.after_effects, wait.down)) } else { due };
            !is_due
        });
        let Some((after_effects, down)) = due else { return };
        let kind = FaultKind::CrashAfterMark;
        *self.counts.faults.entry(kind.name()).or_default() += 1;
        self.trace.event(self.now, id, "after mark", [after_effects, down.us], || mark.to_owned());
        self.nodes[id.index()].crash_after = Some((after_effects, down));
    }

    fn target(&self, target: Target) -> NodeId {
        match target {
            Target::Node(node) => NodeId(node),
            Target::Role(Role::Coordinator) => {
                let of =
                    |node: &super::Node<P>| node.running.as_ref()?.protocol.status().coordinator;
                self.nodes.iter().find_map(of).unwrap_or(NodeId(0))
            }
        }
    }

    /// Limits a time to the time until the world is healed, when all nodes are up.
    pub(super) fn within_faults(&self, time: Span) -> Span {
        time.min(self.faults.heal_at.since(self.now)).max(Span::from_us(1))
    }
}
