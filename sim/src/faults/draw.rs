//! Draws rules from a seed.

use pangea_core::time::Span;

use super::{
    CLOCK_MS_MAX, DISK_TIMES_MAX, Fault, FaultKind, LINK_TIMES_MAX, LaneName, PROCESSOR_TIMES_MAX,
    Role, Rule, Target,
};
use crate::rng::SimRng;

/// The maximum number of effects that a node still carries out before it crashes.
const CRASH_EFFECTS_MAX: u64 = 60;
/// The downtime of a node: the usual range and the maximum, in ms.
const DOWN_MS: (u64, u64) = (20, 1_000);
const DOWN_MS_MAX: u64 = 3_000;
/// The range of the durations of other faults, in ms.
const LENGTH_MS: (u64, u64) = (30, 3_000);
/// The maximum length of a pause, in ms.
const PAUSE_MS_MAX: u64 = 2_000;
/// The maximum number of losses of a flapping connection.
const FLAPS_MAX: u64 = 8;
/// The range of the bandwidth of a narrow link.
const NARROW_BYTES_PER_MS: (u64, u64) = (100, 10_000);

/// Kinds that were added later, and the divisor of `faults_max` for them.
const LATER: &[FaultKind] = &[FaultKind::FailedCheckpoint];
const LATER_SHARE: u64 = 4;

/// Draws the rules of a run: at most `faults_max` faults of some of the allowed kinds, all of which
/// end before `duration`. Kinds that were added later are drawn from `later`, and fewer of them, so
/// that a seed still draws the same faults of the older kinds.
pub fn draw(
    (dice, later): (&mut SimRng, &mut SimRng),
    allowed: &[FaultKind],
    faults_max: u64,
    nodes: usize,
    duration: Span,
) -> Vec<Rule> {
    let (new, old): (Vec<FaultKind>, Vec<FaultKind>) =
        allowed.iter().copied().partition(|kind| LATER.contains(kind));
    let mut kinds: Vec<FaultKind> = old.iter().copied().filter(|_| dice.chance(500)).collect();
    if kinds.is_empty() && !old.is_empty() {
        kinds.push(old[dice.index(old.len())]);
    }
    let mut rules = draw_of(dice, &kinds, faults_max, nodes, duration);
    let is_drawn = |_: &FaultKind| old.is_empty() || later.chance(500);
    let kinds: Vec<FaultKind> = new.into_iter().filter(is_drawn).collect();
    rules.extend(draw_of(later, &kinds, faults_max.div_ceil(LATER_SHARE), nodes, duration));
    rules.sort_by_key(|rule| rule.at_ms);
    rules
}

/// Draws at most `faults_max` faults of these kinds.
fn draw_of(
    dice: &mut SimRng,
    kinds: &[FaultKind],
    faults_max: u64,
    nodes: usize,
    duration: Span,
) -> Vec<Rule> {
    let count = if kinds.is_empty() { 0 } else { dice.between(0, faults_max) };
    let all_ms = duration.us / 1_000;
    let rule = |_| {
        let kind = kinds[dice.index(kinds.len())];
        let at_ms = dice.between(0, all_ms);
        let (fault, lasts_ms) = draw_fault(dice, kind, nodes)?;
        Some(Rule { at_ms, lasts_ms: lasts_ms.min(all_ms - at_ms), fault })
    };
    (0..count).filter_map(rule).collect()
}

/// Draws a fault of a kind and its duration. Returns `None` for faults of links in a cluster of one
/// node.
fn draw_fault(dice: &mut SimRng, kind: FaultKind, nodes: usize) -> Option<(Fault, u64)> {
    if kind.needs_peers() && nodes < 2 {
        return None;
    }
    let node = Target::Node(dice.index(nodes) as u16);
    let after_effects = dice.between(0, CRASH_EFFECTS_MAX);
    let down_ms = {
        let most = if dice.chance(100) { DOWN_MS_MAX } else { DOWN_MS.1 };
        dice.between(DOWN_MS.0, most)
    };
    let length_ms = dice.between(LENGTH_MS.0, LENGTH_MS.1);
    let mut by_ms = || {
        let size = dice.between(1, CLOCK_MS_MAX) as i64;
        if dice.chance(500) { size } else { -size }
    };
    Some(match kind {
        FaultKind::Crash => (Fault::Crash { node, after_effects }, down_ms),
        FaultKind::CoordinatorCrash => {
            let node = Target::Role(Role::Coordinator);
            (Fault::Crash { node, after_effects }, down_ms)
        }
        FaultKind::Destroy => (Fault::Destroy { node }, 0),
        FaultKind::DiskLoss => (Fault::DiskLoss { node }, down_ms),
        FaultKind::BitFlip => (Fault::BitFlip { node }, down_ms),
        FaultKind::FullStop => (Fault::FullStop {}, down_ms),
        FaultKind::Partition => (draw_cut(dice, nodes, false), length_ms),
        FaultKind::OneWay => (draw_cut(dice, nodes, true), length_ms),
        FaultKind::Partial => {
            let [a, b] = draw_pair(dice, nodes);
            (Fault::Cut { from: vec![a], to: vec![b], one_way: false }, length_ms)
        }
        FaultKind::Flap => {
            let times = dice.between(1, FLAPS_MAX);
            (Fault::Flap { between: draw_pair(dice, nodes), times }, length_ms)
        }
        FaultKind::SlowLink => {
            let times = dice.between(2, LINK_TIMES_MAX);
            (Fault::SlowLink { between: draw_pair(dice, nodes), times }, length_ms)
        }
        FaultKind::NarrowLink => {
            let bytes_per_ms = dice.between(NARROW_BYTES_PER_MS.0, NARROW_BYTES_PER_MS.1);
            (Fault::NarrowLink { between: draw_pair(dice, nodes), bytes_per_ms }, length_ms)
        }
        FaultKind::HeldLane => {
            let [from, to] = draw_pair(dice, nodes);
            let lane = if dice.chance(500) { LaneName::Bulk } else { LaneName::Control };
            (Fault::HeldLane { from, to, lane }, length_ms)
        }
        FaultKind::SlowDisk => {
            (Fault::SlowDisk { node, times: dice.between(2, DISK_TIMES_MAX) }, length_ms)
        }
        FaultKind::StuckDisk => (Fault::StuckDisk { node }, length_ms),
        FaultKind::FullDisk => (Fault::FullDisk { node }, down_ms),
        FaultKind::Pause => (Fault::Pause { node }, dice.between(1, PAUSE_MS_MAX)),
        FaultKind::SlowProcessor => {
            (Fault::SlowProcessor { node, times: dice.between(2, PROCESSOR_TIMES_MAX) }, length_ms)
        }
        FaultKind::FailedCheckpoint => (Fault::FailedCheckpoint { node }, length_ms),
        FaultKind::ClockJump => (Fault::ClockJump { node, by_ms: by_ms() }, length_ms),
        FaultKind::LyingClock => (Fault::LyingClock { node, by_ms: by_ms() }, length_ms),
    })
}

/// Draws a cut between some nodes and all other nodes.
fn draw_cut(dice: &mut SimRng, nodes: usize, one_way: bool) -> Fault {
    let inside = dice.between(1, (1 << nodes) - 2);
    let (from, to) = (0..nodes as u16).partition(|node| inside >> node & 1 == 1);
    Fault::Cut { from, to, one_way }
}

fn draw_pair(dice: &mut SimRng, nodes: usize) -> [u16; 2] {
    let a = dice.index(nodes);
    let apart = dice.between(1, nodes as u64 - 1) as usize;
    [a as u16, ((a + apart) % nodes) as u16]
}
