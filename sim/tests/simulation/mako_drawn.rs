//! Settings for runs of Mako, also for those with planted bugs.

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::mako::{Mako, Options};
use pangea_sim::faults::{Fault, Role, Rule, Target};
use pangea_sim::{FaultKind, Settings};

pub const WORKLOADS: [&str; 9] = [
    "list-append",
    "bank",
    "ranges",
    "register",
    "long-fork",
    "write-skew",
    "smallbank",
    "tpcc",
    "ycsb-a",
];

/// Short runs of a workload without faults.
pub fn settings(seed: u64, workload: &str) -> Settings {
    let (workload, duration) = (workload.to_owned(), Span::from_ms(3_000));
    Settings { seed, workload, duration, faults: Vec::new(), ..Settings::default() }
}

/// All faults.
pub fn faults() -> Vec<FaultKind> {
    FaultKind::ALL.to_vec()
}

/// Settings with which a leader is suspected so early that short runs see several.
pub fn hasty() -> Options {
    Options { heartbeat_ms: 30, failure_ms: 200, ..Options::default() }
}

/// Limits that short runs reach.
fn low(dice: &mut fastrand::Rng, options: Options) -> Options {
    Options {
        checkpoint_bytes: [4_096, 20_000][dice.usize(..2)],
        chunk_bytes: [500, 5_000][dice.usize(..2)],
        behind_bytes: [4_096, 20_000][dice.usize(..2)],
        slice_txns: [1, 4, 64][dice.usize(..3)],
        ..options
    }
}

fn rule(at_ms: u64, lasts_ms: u64, fault: Fault) -> Rule {
    Rule { at_ms, lasts_ms, fault }
}

/// Runs in which nothing that the leader sends arrives any more, or nothing is sent to it, in turn
/// for each replica. It goes on to execute transactions of its clients.
pub fn deposed(seed: u64, workload: &str) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let mut rules = Vec::new();
    for round in 0..3 {
        let leader = if round == 0 { 0 } else { dice.u16(..3) };
        let others: Vec<u16> = (0..3).filter(|node| *node != leader).collect();
        let (from, to) = if dice.bool() { (vec![leader], others) } else { (others, vec![leader]) };
        let fault = Fault::Cut { from, to, one_way: dice.bool() };
        rules.push(rule(1_500 * round + dice.u64(100..600), dice.u64(400..1_400), fault));
    }
    let duration = Span::from_ms(5_000);
    let settings = Settings {
        rules: Some(rules),
        clients_per_node: 8,
        one_way_max: Span::from_ms([1, 20][dice.usize(..2)]),
        duration,
        ..settings(seed, workload)
    };
    (settings, hasty())
}

/// Runs in which a leader and then its successors fail, some of them before they have closed the
/// log.
pub fn several(seed: u64, workload: &str) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let nodes = [3, 5][dice.usize(..2)];
    let (mut rules, mut at_ms) = (Vec::new(), 200);
    for round in 0..8 {
        at_ms += dice.u64(20..700);
        let node = if round == 0 { Target::Node(0) } else { Target::Node(dice.u16(..nodes)) };
        let node = if dice.bool() { Target::Role(Role::Coordinator) } else { node };
        let after_effects = dice.u64(..20);
        let fault = match dice.u8(..4) {
            0 => Fault::Pause { node },
            _ => Fault::Crash { node, after_effects },
        };
        rules.push(rule(at_ms, dice.u64(20..900), fault));
    }
    let duration = Span::from_ms(6_000);
    let settings = Settings {
        rules: Some(rules),
        nodes: nodes.into(),
        clients_per_node: 6,
        one_way_max: Span::from_ms([1, 20, 60][dice.usize(..3)]),
        duration,
        ..settings(seed, workload)
    };
    let options = if dice.bool() { low(dice, hasty()) } else { hasty() };
    (settings, options)
}

/// Runs in which one node is cut off until the others have forgotten what it lacks. Meanwhile the
/// others restart from their checkpoints. Afterwards its own checkpoints may fail, so that what it
/// takes from a peer is in memory alone, and it crashes.
pub fn away(seed: u64, workload: &str) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let away = dice.u16(..3);
    let others: Vec<u16> = (0..3).filter(|node| *node != away).collect();
    let at_ms = dice.u64(200..800);
    let back_ms = at_ms + dice.u64(1_200..2_500);
    let cut = Fault::Cut { from: others.clone(), to: vec![away], one_way: dice.bool() };
    let mut rules = vec![rule(at_ms, back_ms - at_ms, cut)];
    let mut crash_ms = at_ms + 400;
    for node in others {
        crash_ms += dice.u64(100..500);
        let (node, after_effects) = (Target::Node(node), dice.u64(..20));
        if dice.u8(..3) > 0 && crash_ms < back_ms {
            rules.push(rule(crash_ms, 50, Fault::Crash { node, after_effects }));
        }
    }
    let node = Target::Node(away);
    if dice.bool() {
        rules.push(rule(at_ms, 4_000, Fault::FailedCheckpoint { node }));
        let crash = Fault::Crash { node, after_effects: dice.u64(..20) };
        rules.push(rule(back_ms + dice.u64(100..1_000), 100, crash));
    }
    rules.sort_by_key(|rule| rule.at_ms);
    let options = low(dice, hasty());
    let duration = Span::from_ms(5_000);
    let settings = Settings {
        rules: Some(rules),
        clients_per_node: 6,
        duration,
        lists: 60,
        ..settings(seed, workload)
    };
    (settings, options)
}

/// Runs in which one node does not hear the leader, another one loses its disk, and the leader
/// fails when that one is back: the first two do not have all that was committed.
pub fn replaced(seed: u64, workload: &str) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let leader = dice.u16(..3);
    let (late, lost) = ((leader + 1) % 3, (leader + 2) % 3);
    let (late, lost) = if dice.bool() { (late, lost) } else { (lost, late) };
    let mut rules = Vec::new();
    for round in 0..2 {
        let at_ms = 2_500 * round + dice.u64(200..800);
        let lost_ms = at_ms + dice.u64(50..400);
        let back_ms = lost_ms + dice.u64(20..80);
        let cut = Fault::Cut { from: vec![leader], to: vec![late], one_way: dice.bool() };
        let loss = Fault::DiskLoss { node: Target::Node(lost) };
        let after_effects = dice.u64(..20);
        let crash = Fault::Crash { node: Target::Node(leader), after_effects };
        rules.push(rule(at_ms, back_ms - at_ms, cut));
        rules.push(rule(lost_ms, back_ms - lost_ms, loss));
        rules.push(rule(back_ms + dice.u64(50..900), 1_200, crash));
    }
    rules.sort_by_key(|rule| rule.at_ms);
    let options = low(dice, hasty());
    let duration = Span::from_ms(6_000);
    let (rules, one_way_max) = (Some(rules), Span::from_ms(20));
    let settings =
        Settings { rules, one_way_max, clients_per_node: 6, duration, ..settings(seed, workload) };
    (settings, options)
}

/// Runs in which nodes stop in order, or are killed, and start with a later version of the program.
pub fn upgraded(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let upgrade = |at_ms, dice: &mut fastrand::Rng| {
        let (in_order, rolling, after_all) = (dice.u8(..4) > 0, dice.bool(), dice.bool());
        rule(at_ms, dice.u64(20..300), Fault::Upgrade { in_order, rolling, after_all })
    };
    let rules = Some(vec![upgrade(800, dice), upgrade(9_000, dice)]);
    let options = low(dice, Options::default());
    let duration = Span::from_ms(16_000);
    let nodes = [3, 3, 5, 2, 1][dice.usize(..5)];
    (Settings { nodes, rules, duration, ..settings(seed, "list-append") }, options)
}

/// Settings and options that are drawn from the seed.
pub fn drawn(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let workload = WORKLOADS[dice.usize(..WORKLOADS.len())];
    let settings = Settings {
        nodes: [3, 3, 5, 2, 4, 1][dice.usize(..6)],
        faults: faults(),
        faults_max: [6, 12, 30][dice.usize(..3)],
        one_way_max: Span::from_ms([1, 10, 75, 200][dice.usize(..4)]),
        duration: Span::from_ms(6_000),
        ..settings(seed, workload)
    };
    let non_voting = if settings.nodes >= 3 { [0, 0, 0, 2][dice.usize(..4)] } else { 0 };
    let options = if dice.bool() { Options::default() } else { Mako::drawn_options(dice) };
    let is_low = options == Options::default() && dice.bool();
    let options = if is_low { low(dice, options) } else { options };
    // More chunks would take too long for a run.
    let is_large = ["tpcc", "ycsb-a"].contains(&workload);
    let chunk_bytes = options.chunk_bytes.max(if is_large { 5_000 } else { 500 });
    (Settings { non_voting, ..settings }, Options { chunk_bytes, ..options })
}
