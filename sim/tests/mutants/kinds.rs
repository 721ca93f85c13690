//! Faults in a certain order, which drawn rules hardly give.

use pangea_core::time::Span;
use pangea_sim::Settings;
use pangea_sim::faults::{Fault, LaneName, Role, Rule, Target};
use pangea_sim::rng::SimRng;

/// The disk of one peer of `source` is stuck or its bulk lane from `source` is delayed. The bulk
/// lane to the other peer is delayed. Then the source is lost permanently, and the first peer
/// crashes.
pub fn ambush(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "ambush", 0);
    let source = dice.index(3) as u16;
    let (first, second) = match dice.chance(500) {
        true => ((source + 1) % 3, (source + 2) % 3),
        false => ((source + 2) % 3, (source + 1) % 3),
    };
    let (at_ms, node) = (dice.between(300, 2_000), Target::Node(first));
    let lost_ms = at_ms + dice.between(100, 600);
    let lane = LaneName::Bulk;
    let held = |to| Fault::HeldLane { from: source, to, lane };
    let first_fault = if dice.chance(500) { Fault::StuckDisk { node } } else { held(first) };
    vec![
        Rule { at_ms, lasts_ms: 1_500, fault: first_fault },
        Rule { at_ms, lasts_ms: 1_500, fault: held(second) },
        Rule { at_ms: lost_ms, lasts_ms: 0, fault: Fault::Destroy { node: Target::Node(source) } },
        Rule { at_ms: lost_ms, lasts_ms: 500, fault: Fault::Crash { node, after_effects: 1 } },
    ]
}

/// A node loses its disk three times: while the coordinator is paused, while its messages are lost,
/// or while a peer that it must ask is down and it crashes again before it has rejoined.
pub fn replaced(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "replaced", 0);
    let mut rules = Vec::new();
    for at_ms in [300, 2_000, 4_000] {
        let lost = dice.index(3) as u16;
        let peer = (lost + 1 + dice.index(2) as u16) % 3;
        let node = Target::Node(lost);
        let coordinator = Target::Role(Role::Coordinator);
        let loss_ms = at_ms + dice.between(50, 900);
        let down_ms = dice.between(20, 300);
        let loss = Rule { at_ms: loss_ms, lasts_ms: down_ms, fault: Fault::DiskLoss { node } };
        let before = match dice.index(3) {
            0 => vec![Rule { at_ms, lasts_ms: 1_200, fault: Fault::Pause { node: coordinator } }],
            1 => {
                let flap = Fault::Flap { between: [lost, peer], times: 8 };
                let lane = LaneName::Bulk;
                let held = Fault::HeldLane { from: lost, to: 3 - lost - peer, lane };
                let rule = |fault| Rule { at_ms, lasts_ms: 1_000, fault };
                vec![rule(flap), rule(held)]
            }
            _ => {
                let down = Fault::Crash { node: Target::Node(peer), after_effects: 1 };
                let again = Fault::Crash { node, after_effects: dice.between(0, 200) };
                let again_ms = loss_ms + down_ms + dice.between(0, 500);
                vec![
                    Rule { at_ms, lasts_ms: 1_300, fault: down },
                    Rule { at_ms: again_ms, lasts_ms: 100, fault: again },
                ]
            }
        };
        rules.extend(before);
        rules.push(loss);
    }
    rules.sort_by_key(|rule| rule.at_ms);
    rules
}

/// The coordinator crashes and is soon back, or a node is cut off from the others for a while.
pub fn masters(seed: u64) -> Vec<Rule> {
    // The former name, so that each seed draws the same as before.
    let mut dice = SimRng::fork(seed, "reigns", 0);
    let node = Target::Role(Role::Coordinator);
    let rule = |at: u64, dice: &mut SimRng| {
        let at_ms = 300 + 700 * at + dice.between(0, 300);
        let after_effects = dice.between(0, 100);
        match dice.index(3) {
            0 | 1 => {
                let fault = Fault::Crash { node, after_effects };
                Rule { at_ms, lasts_ms: dice.between(1, 60), fault }
            }
            _ => {
                let from = vec![dice.index(3) as u16];
                let to = (0..3).filter(|to| !from.contains(to)).collect();
                let fault = Fault::Cut { from, to, one_way: false };
                Rule { at_ms, lasts_ms: dice.between(300, 1_500), fault }
            }
        }
    };
    (0..5).map(|at| rule(at, &mut dice)).collect()
}

/// A node is cut off until it lacks what its peers have forgotten, and its checkpoints fail from
/// then on, so that what it takes from a peer is in memory alone. Then the source of later batches
/// reaches only this node with them, this node crashes, and the source loses its disk.
pub fn behind(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "behind", 0);
    let (behind, source, third) = three(&mut dice);
    let at_ms = dice.between(100, 800);
    let away_ms = dice.between(1_000, 1_500);
    let back_ms = at_ms + away_ms;
    let held_ms = back_ms + dice.between(100, 700);
    let crash_ms = held_ms + dice.between(50, 600);
    let loss_ms = crash_ms + dice.between(0, 200);
    let cut = Fault::Cut { from: vec![behind], to: vec![source, third], one_way: false };
    let node = Target::Node(behind);
    let held = Fault::HeldLane { from: source, to: third, lane: LaneName::Bulk };
    let crash = Fault::Crash { node, after_effects: dice.between(0, 3) };
    let loss = Fault::DiskLoss { node: Target::Node(source) };
    vec![
        Rule { at_ms, lasts_ms: away_ms, fault: cut },
        Rule { at_ms, lasts_ms: 5_000, fault: Fault::FailedCheckpoint { node } },
        Rule { at_ms: held_ms, lasts_ms: 1_500, fault: held },
        Rule { at_ms: crash_ms, lasts_ms: dice.between(50, 300), fault: crash },
        Rule { at_ms: loss_ms, lasts_ms: dice.between(50, 300), fault: loss },
    ]
}

/// Clients pause. All nodes restart and take the checkpoint that a restart owes, restart again, now
/// from checkpoints alone, and one of them loses its disk.
pub fn quiet(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "quiet", 0);
    let begin_ms = dice.between(500, 1_500);
    let node = Target::Node(dice.index(3) as u16);
    let mut rule = |after: u64, lasts_ms, fault| Rule {
        at_ms: begin_ms + after + dice.between(0, 200),
        lasts_ms,
        fault,
    };
    vec![
        rule(0, 3_500, Fault::Quiet {}),
        rule(800, 100, Fault::FullStop {}),
        rule(1_800, 100, Fault::FullStop {}),
        rule(2_600, 100, Fault::DiskLoss { node }),
    ]
}

/// A node is cut off until it is no longer a member, while another one restarts, and it may restart
/// on its way back.
pub fn removed(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "removed", 0);
    let (away, first, second) = three(&mut dice);
    let at_ms = dice.between(100, 500);
    let lasts_ms = dice.between(2_000, 3_500);
    let cut = Fault::Cut { from: vec![away], to: vec![first, second], one_way: false };
    let mut rules = vec![Rule { at_ms, lasts_ms, fault: cut }];
    for node in [first, second, away] {
        let crash = Fault::Crash { node: Target::Node(node), after_effects: dice.between(0, 100) };
        let at_ms = at_ms + dice.between(1_200, lasts_ms + 500);
        rules.extend(dice.chance(700).then_some(Rule { at_ms, lasts_ms: 100, fault: crash }));
    }
    rules.sort_by_key(|rule| rule.at_ms);
    rules
}

/// One node after the other is cut off until it is removed, and comes back. Others crash when they
/// have learnt of that.
pub fn cut_off(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "cut-off", 0);
    let mut rules = Vec::new();
    for at_ms in [300, 2_300, 4_300] {
        let (away, first, second) = three(&mut dice);
        let lasts_ms = dice.between(700, 1_500);
        let cut = Fault::Cut { from: vec![away], to: vec![first, second], one_way: false };
        rules.push(Rule { at_ms, lasts_ms, fault: cut });
        let marks = ["geogauss.sealed", "geogauss.view_entered", "geogauss.eof_sent"];
        let mark = marks[dice.index(3)].to_owned();
        let after_effects = dice.between(0, 10);
        let crash = Fault::CrashAfterMark { node: None, mark, times: 1, after_effects };
        let at_ms = at_ms + dice.between(0, lasts_ms);
        rules.push(Rule { at_ms, lasts_ms: dice.between(1, 300), fault: crash });
    }
    rules
}

/// A node is cut off until it is removed, while clients pause. Then they go on, and it has nothing
/// to wait for.
pub fn left_idle(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "left-idle", 0);
    let mut rules = Vec::new();
    for at_ms in [300, 3_300, 6_300] {
        let (away, first, second) = three(&mut dice);
        let cut = Fault::Cut { from: vec![away], to: vec![first, second], one_way: false };
        let lasts_ms = dice.between(1_200, 1_600);
        rules.push(Rule { at_ms, lasts_ms, fault: Fault::Quiet {} });
        rules.push(Rule { at_ms: at_ms + 300, lasts_ms: 2_000, fault: cut });
    }
    rules
}

/// The others do not hear a node, which hears them. It crashes, perhaps more than once, before it
/// knows that it was removed. For nodes that answer before others have their batches.
pub fn mute(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "mute", 0);
    let nodes = three(&mut dice);
    let (away, ..) = nodes;
    let mut rules = vec![unheard_by(nodes)];
    for at_ms in [550, 1_200] {
        let node = Target::Node(away);
        let fault = Fault::Crash { node, after_effects: dice.between(0, 10) };
        let at_ms = at_ms + dice.between(0, 600);
        rules.push(Rule { at_ms, lasts_ms: dice.between(20, 300), fault });
    }
    rules
}

/// A node is not heard until it is removed, and hears the others.
pub fn unheard(seed: u64) -> Vec<Rule> {
    vec![unheard_by(three(&mut SimRng::fork(seed, "unheard", 0)))]
}

fn unheard_by((away, first, second): (u16, u16, u16)) -> Rule {
    let fault = Fault::Cut { from: vec![away], to: vec![first, second], one_way: true };
    Rule { at_ms: 500, lasts_ms: 1_500, fault }
}

/// The batches of a node reach one of four others, whose own batches reach all. Then both are gone,
/// and the other three go on without them.
pub fn told_to_one(seed: u64) -> Vec<Rule> {
    let mut dice = SimRng::fork(seed, "told-to-one", 0);
    let nodes: Vec<u16> = (0..5).map(|node| (node + seed as u16) % 5).collect();
    let (source, reader, others) = (nodes[0], nodes[1], &nodes[2..]);
    let mut rules = Vec::new();
    for at_ms in [500, 4_000] {
        let held = |to: &u16| Fault::HeldLane { from: source, to: *to, lane: LaneName::Bulk };
        let held = others.iter().map(|to| Rule { at_ms, lasts_ms: 2_000, fault: held(to) });
        rules.extend(held);
        let at_ms = at_ms + dice.between(30, 300);
        let crash = Fault::Crash { node: Target::Node(source), after_effects: 0 };
        rules.push(Rule { at_ms, lasts_ms: 2_500, fault: crash });
        let at_ms = at_ms + dice.between(0, 60);
        let cut = Fault::Cut { from: vec![reader], to: others.to_vec(), one_way: false };
        rules.push(Rule { at_ms, lasts_ms: 2_000, fault: cut });
    }
    rules
}

/// Draws an order of three nodes.
fn three(dice: &mut SimRng) -> (u16, u16, u16) {
    let first = dice.index(3) as u16;
    let (next, other) = ((first + 1) % 3, (first + 2) % 3);
    if dice.chance(500) { (first, next, other) } else { (first, other, next) }
}

/// Nodes that are near each other serve many clients. One connection is cut, and the other replica
/// still sends its batches. If the cut node lacks the coordinator, it gets all cuts at once when
/// the world is healed.
pub fn severed(any: Settings) -> Settings {
    let (a, b) = [(0, 1), (0, 2), (1, 2)][(any.seed % 3) as usize];
    let fault = Fault::Cut { from: vec![a], to: vec![b], one_way: false };
    let rules = Some(vec![Rule { at_ms: 500, lasts_ms: 2_000, fault }]);
    let one_way_max = Span::from_ms(10);
    Settings { rules, clients_per_node: 30, lists: 300, one_way_max, ..any }
}

/// All nodes are killed, and then start with the next program.
pub fn killed(any: Settings) -> Settings {
    let fault = Fault::Upgrade { in_order: false, rolling: false, after_all: true };
    let rules = Some(vec![Rule { at_ms: 1_000, lasts_ms: 100, fault }]);
    Settings { rules, duration: Span::from_ms(6_000), ..any }
}

/// All nodes stop in order, at once or one after the other, and then start with the next program.
pub fn upgraded(any: Settings) -> Settings {
    let rolling = any.seed.is_multiple_of(2);
    let fault = Fault::Upgrade { in_order: true, rolling, after_all: true };
    let rules = Some(vec![Rule { at_ms: 1_000, lasts_ms: 100, fault }]);
    Settings { rules, duration: Span::from_ms(6_000), ..any }
}
