//! Draws rules from a seed.

use pangea_core::protocol::{Mark, Rarity};
use pangea_core::time::Span;

use super::{
    CLOCK_MS_MAX, CLOCK_RATE_PPM_MAX, DISK_TIMES_MAX, Fault, FaultKind, LINK_TIMES_MAX, LaneName,
    PROCESSOR_TIMES_MAX, Role, Rule, Target,
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
/// The range of the time for which a clock has a wrong rate, in ms.
const RATE_MS: (u64, u64) = (500, 6_000);
/// The range of the bandwidth of a narrow link.
const NARROW_BYTES_PER_MS: (u64, u64) = (100, 10_000);

/// Kinds that were added later, and the divisor of `faults_max` for them.
const LATER: &[FaultKind] = &[FaultKind::FailedCheckpoint];
const LATER_SHARE: u64 = 4;

/// Kinds that were added last.
const NEWEST: &[FaultKind] = &[FaultKind::CrashAfterMark, FaultKind::Quiet, FaultKind::Upgrade];
/// The most of each in a run. Of the waits for a mark, most last until the end of the run.
const MARKS_MAX: u64 = 12;
const QUIET_MAX: u64 = 3;
/// How many of a thousand runs have an upgrade.
const UPGRADES_PER_MILLE: u64 = 150;
/// The most disks that are lost besides those among the usual faults.
const LOSSES_MAX: u64 = 3;
/// How often a node counts a usual mark before it crashes, at most.
const MARK_TIMES: u64 = 5;
/// The number of effects between a mark and the crash, at most.
const MARK_EFFECTS_MAX: u64 = 20;

/// Kinds for protocols whose order depends on clocks.
const OF_TIME: &[FaultKind] =
    &[FaultKind::ClockRate, FaultKind::ClockFreeze, FaultKind::LateMessages];

/// The generators of a run's faults. Kinds that were added later have their own, so that a seed
/// still draws the same faults of the older kinds.
#[derive(Debug)]
pub struct Dice {
    /// Draws most kinds.
    pub usual: SimRng,
    /// Draws the first kind that was added.
    pub later: SimRng,
    /// Draws everything that was added after that.
    pub newest: SimRng,
    /// Draws upgrades.
    pub upgrades: SimRng,
    /// Draws faults of caches.
    pub caches: SimRng,
    /// Draws the kinds for protocols whose order depends on clocks.
    pub of_time: SimRng,
}

impl Dice {
    /// The generators of a seed.
    pub fn of(seed: u64) -> Self {
        Self {
            usual: SimRng::fork(seed, "faults", 0),
            later: SimRng::fork(seed, "later faults", 0),
            newest: SimRng::fork(seed, "newest faults", 0),
            upgrades: SimRng::fork(seed, "upgrades", 0),
            caches: SimRng::fork(seed, "caches", 0),
            of_time: SimRng::fork(seed, "faults of time", 0),
        }
    }
}

/// Returns the kinds to draw from. Kinds for protocols whose order depends on clocks are left out
/// for other protocols, unless all others are excluded.
pub fn kinds_for(allowed: &[FaultKind], needs_clocks: bool) -> Vec<FaultKind> {
    let is_of_time = |kind: &FaultKind| OF_TIME.contains(kind);
    let are_wanted = needs_clocks || allowed.iter().all(is_of_time);
    allowed.iter().copied().filter(|kind| are_wanted || !is_of_time(kind)).collect()
}

/// Draws crashes and lost disks of caches, one for about every other cache.
pub fn draw_for_caches(dice: &mut Dice, caches: &[u16], duration: Span) -> Vec<Rule> {
    let dice = &mut dice.caches;
    let mut rules = Vec::new();
    for &cache in caches {
        let node = Target::Node(cache);
        let fault = match dice.chance(500) {
            true => Fault::Crash { node, after_effects: dice.between(0, 100) },
            false => Fault::DiskLoss { node },
        };
        let at_ms = dice.between(0, duration.us / 1_000);
        let lasts_ms = dice.between(20, 2_000);
        rules.extend(dice.chance(500).then_some(Rule { at_ms, lasts_ms, fault }));
    }
    rules
}

/// Draws the rules of a run: at most `faults_max` faults of some of the allowed kinds, and a few of
/// the kinds that were added later. All of them end before `duration`.
pub fn draw(
    dice: &mut Dice,
    allowed: &[FaultKind],
    faults_max: u64,
    nodes: usize,
    duration: Span,
    marks: &[Mark],
) -> Vec<Rule> {
    let Dice { usual, later, newest, upgrades, of_time, .. } = dice;
    let (timed, allowed): (Vec<FaultKind>, Vec<FaultKind>) =
        allowed.iter().copied().partition(|kind| OF_TIME.contains(kind));
    let is_newest = |kind: &FaultKind| NEWEST.contains(kind);
    let (last, others): (Vec<FaultKind>, Vec<FaultKind>) =
        allowed.iter().copied().partition(is_newest);
    let (new, old): (Vec<FaultKind>, Vec<FaultKind>) =
        others.iter().copied().partition(|kind| LATER.contains(kind));
    let mut kinds: Vec<FaultKind> = old.iter().copied().filter(|_| usual.chance(500)).collect();
    if kinds.is_empty() && !old.is_empty() {
        kinds.push(old[usual.index(old.len())]);
    }
    let mut rules = draw_of(usual, &kinds, faults_max, nodes, duration);
    let is_drawn = |_: &FaultKind| old.is_empty() || later.chance(500);
    let kinds: Vec<FaultKind> = new.into_iter().filter(is_drawn).collect();
    rules.extend(draw_of(later, &kinds, faults_max.div_ceil(LATER_SHARE), nodes, duration));
    // A lost disk finds more than most faults.
    if allowed.contains(&FaultKind::DiskLoss) && allowed.len() > 1 && newest.chance(300) {
        let most = faults_max.min(LOSSES_MAX);
        rules.extend(draw_of(newest, &[FaultKind::DiskLoss], most, nodes, duration));
    }
    for kind in last {
        if kind == FaultKind::Upgrade {
            if faults_max > 0 && (others.is_empty() || upgrades.chance(UPGRADES_PER_MILLE)) {
                rules.extend(draw_one(upgrades, kind, nodes, duration));
            }
            continue;
        }
        if others.is_empty() || newest.chance(500) {
            rules.extend(draw_newest(newest, kind, faults_max, nodes, duration, marks));
        }
    }
    let is_drawn = |_: &FaultKind| allowed.is_empty() || of_time.chance(500);
    let kinds: Vec<FaultKind> = timed.into_iter().filter(is_drawn).collect();
    rules.extend(draw_of(of_time, &kinds, faults_max, nodes, duration));
    rules.sort_by_key(|rule| rule.at_ms);
    rules
}

/// Draws faults of one of the newest kinds.
fn draw_newest(
    dice: &mut SimRng,
    kind: FaultKind,
    faults_max: u64,
    nodes: usize,
    duration: Span,
    marks: &[Mark],
) -> Vec<Rule> {
    if kind == FaultKind::Quiet {
        return draw_of(dice, &[kind], faults_max.min(QUIET_MAX), nodes, duration);
    }
    let rare = marks.iter().filter(|mark| matches!(mark.rarity, Rarity::Rare(_)));
    let any = marks.iter().filter(|mark| !matches!(mark.rarity, Rarity::Never(_)));
    let (rare, any): (Vec<&Mark>, Vec<&Mark>) = (rare.collect(), any.collect());
    if any.is_empty() {
        return Vec::new();
    }
    let all_ms = duration.us / 1_000;
    let count = dice.between(0, faults_max.min(MARKS_MAX));
    let rule = |_| {
        let is_rare = !rare.is_empty() && dice.chance(700);
        let among = if is_rare { &rare } else { &any };
        let mark = among[dice.index(among.len())];
        // A rare mark is hit once, if at all.
        let is_rare = matches!(mark.rarity, Rarity::Rare(_));
        let times = if is_rare { 1 } else { dice.between(1, MARK_TIMES) };
        let node = Target::Node(dice.index(nodes) as u16);
        let node = dice.chance(250).then_some(node);
        let after_effects = dice.between(0, MARK_EFFECTS_MAX);
        let at_ms = dice.between(0, all_ms / 2);
        let lasts_ms = dice.between(DOWN_MS.0, DOWN_MS.1).min(all_ms - at_ms);
        let mark = mark.name.to_owned();
        Rule { at_ms, lasts_ms, fault: Fault::CrashAfterMark { node, mark, times, after_effects } }
    };
    (0..count).map(rule).collect()
}

/// Draws one fault of a kind, in the first half of the run.
fn draw_one(dice: &mut SimRng, kind: FaultKind, nodes: usize, duration: Span) -> Option<Rule> {
    let all_ms = duration.us / 1_000;
    let at_ms = dice.between(0, all_ms / 2);
    let (fault, lasts_ms) = draw_fault(dice, kind, nodes)?;
    Some(Rule { at_ms, lasts_ms: lasts_ms.min(all_ms - at_ms), fault })
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
        FaultKind::Partition
        | FaultKind::OneWay
        | FaultKind::Partial
        | FaultKind::Flap
        | FaultKind::SlowLink
        | FaultKind::NarrowLink
        | FaultKind::HeldLane
        | FaultKind::LateMessages => (draw_of_link(dice, kind, nodes), length_ms),
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
        FaultKind::Quiet => (Fault::Quiet {}, length_ms),
        FaultKind::Upgrade => {
            let (in_order, rolling) = (dice.chance(500), dice.chance(500));
            // Not drawn, so that the draws of kept seeds remain as they are.
            let after_all = in_order && down_ms.is_multiple_of(2);
            (Fault::Upgrade { in_order, rolling, after_all }, down_ms.min(DOWN_MS.1))
        }
        FaultKind::CrashAfterMark => unreachable!("a mark is drawn with it"),
        FaultKind::ClockFreeze => (Fault::ClockFreeze { node }, length_ms),
        FaultKind::ClockRate => {
            let ppm = draw_either_way(dice, CLOCK_RATE_PPM_MAX);
            (Fault::ClockRate { node, ppm }, dice.between(RATE_MS.0, RATE_MS.1))
        }
        FaultKind::ClockJump => {
            let by_ms = draw_either_way(dice, CLOCK_MS_MAX);
            (Fault::ClockJump { node, by_ms }, length_ms)
        }
        FaultKind::LyingClock => {
            let by_ms = draw_either_way(dice, CLOCK_MS_MAX);
            (Fault::LyingClock { node, by_ms }, length_ms)
        }
    })
}

/// Draws a fault of a link, of a kind that needs peers.
fn draw_of_link(dice: &mut SimRng, kind: FaultKind, nodes: usize) -> Fault {
    match kind {
        FaultKind::Partition => draw_cut(dice, nodes, false),
        FaultKind::OneWay => draw_cut(dice, nodes, true),
        FaultKind::Partial => {
            let [a, b] = draw_pair(dice, nodes);
            Fault::Cut { from: vec![a], to: vec![b], one_way: false }
        }
        FaultKind::Flap => {
            let times = dice.between(1, FLAPS_MAX);
            Fault::Flap { between: draw_pair(dice, nodes), times }
        }
        FaultKind::SlowLink => {
            let times = dice.between(2, LINK_TIMES_MAX);
            Fault::SlowLink { between: draw_pair(dice, nodes), times }
        }
        FaultKind::NarrowLink => {
            let bytes_per_ms = dice.between(NARROW_BYTES_PER_MS.0, NARROW_BYTES_PER_MS.1);
            Fault::NarrowLink { between: draw_pair(dice, nodes), bytes_per_ms }
        }
        FaultKind::HeldLane => {
            let [from, to] = draw_pair(dice, nodes);
            let lane = if dice.chance(500) { LaneName::Bulk } else { LaneName::Control };
            Fault::HeldLane { from, to, lane }
        }
        FaultKind::LateMessages => {
            let [from, to] = draw_pair(dice, nodes);
            Fault::LateMessages { from, to }
        }
        _ => unreachable!("{kind} is not a fault of a link"),
    }
}

/// Draws a number other than 0, up to `most` in either direction.
fn draw_either_way(dice: &mut SimRng, most: u64) -> i64 {
    let size = dice.between(1, most) as i64;
    if dice.chance(500) { size } else { -size }
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
