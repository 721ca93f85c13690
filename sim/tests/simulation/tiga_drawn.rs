//! Settings for runs of Tiga, also for those with planted bugs.

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::tiga::{Approach, Options, Path, Tiga};
use pangea_sim::clock::ClockBounds;
use pangea_sim::faults::{Fault, Rule, Target};
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

/// Runs in which nothing that the first leader sends arrives any more. It still hears the others,
/// and answers its clients on the fast path before anybody else has the log.
pub fn mute(seed: u64, workload: &str) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let fault = Fault::Cut { from: vec![0], to: vec![1, 2], one_way: true };
    let at_ms = dice.u64(300..1_500);
    let rules = Some(vec![Rule { at_ms, lasts_ms: 1_500, fault }]);
    let settings = Settings { rules, clients_per_node: 8, ..settings(seed, workload) };
    (settings, Options { path: Path::Super, ..Options::default() })
}

/// When the link of a run of [`cut_between`] is lost.
pub const CUT_AT_MS: u64 = 1_000;

/// Runs in which two nodes do not hear each other until the end, or one of them not the other.
pub fn cut_between(
    seed: u64,
    (nodes, shards): (u16, u16),
    (from, to): (u16, u16),
    one_way: bool,
) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let fault = Fault::Cut { from: vec![from], to: vec![to], one_way };
    let duration = Span::from_ms(7_000);
    let rules = Some(vec![Rule { at_ms: CUT_AT_MS, lasts_ms: 20_000, fault }]);
    let path = if dice.bool() { Path::Simple } else { Path::Super };
    let leaders = ["auto", "auto", "rotated"][dice.usize(..3)].to_owned();
    let settings = Settings {
        nodes: nodes.into(),
        shards,
        rules,
        duration,
        one_way_max: Span::from_ms(30),
        ..settings(seed, ["list-append", "bank"][dice.usize(..2)])
    };
    (settings, Options { path, leaders, ..Options::default() })
}

/// Runs of two shards in which a follower does not hear a leader in the first region. The replica
/// that hands on the log to it gets transactions of the other leader's node late.
pub fn cut_divided(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let (shard, region) = (dice.u16(..2), dice.u16(1..3));
    let place = |region: u16| 2 * region + shard;
    let cut = (place(0), place(region));
    let (settings, options) = cut_between(seed, (3, 2), cut, dice.bool());
    let slow = Fault::SlowLink { between: [1 - shard, place(3 - region)], times: dice.u64(5..30) };
    let mut rules = settings.rules.unwrap_or_default();
    rules.push(Rule { at_ms: CUT_AT_MS, lasts_ms: 20_000, fault: slow });
    let duration = Span::from_ms(6_000);
    (Settings { rules: Some(rules), duration, clients_per_node: 6, ..settings }, options)
}

/// Limits that short runs reach.
fn low(dice: &mut fastrand::Rng, options: Options) -> Options {
    Options {
        checkpoint_bytes: [4_096, 20_000][dice.usize(..2)],
        chunk_bytes: [500, 5_000][dice.usize(..2)],
        behind_bytes: [4_096, 20_000][dice.usize(..2)],
        ..options
    }
}

/// Runs in which one node is cut off until the others have forgotten what it lacks. It may still be
/// heard. Meanwhile the others restart from their checkpoints. Afterwards its own checkpoints may
/// fail, so that what it takes from a peer is in memory alone, and it crashes.
pub fn away(seed: u64, workload: &str) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let away = dice.u16(..3);
    let others: Vec<u16> = (0..3).filter(|node| *node != away).collect();
    let at_ms = dice.u64(200..800);
    let back_ms = at_ms + dice.u64(1_200..2_500);
    let rule = |at_ms, lasts_ms, fault| Rule { at_ms, lasts_ms, fault };
    let one_way = dice.bool();
    let cut = Fault::Cut { from: others.clone(), to: vec![away], one_way };
    let mut rules = vec![rule(at_ms, back_ms - at_ms, cut)];
    let mut crash_ms = at_ms + 400;
    for node in others {
        crash_ms += dice.u64(100..500);
        let (node, after_effects) = (Target::Node(node), dice.u64(..20));
        let crash = Fault::Crash { node, after_effects };
        if dice.u8(..3) > 0 && crash_ms < back_ms {
            rules.push(rule(crash_ms, 50, crash));
        }
    }
    let node = Target::Node(away);
    if dice.bool() {
        rules.push(rule(at_ms, 4_000, Fault::FailedCheckpoint { node }));
        let crash = Fault::Crash { node, after_effects: dice.u64(..20) };
        rules.push(rule(back_ms + dice.u64(100..1_000), 100, crash));
    }
    rules.sort_by_key(|rule| rule.at_ms);
    let path = if dice.bool() { Path::Simple } else { Path::Super };
    let options = low(dice, Options { path, retry_ms: 200, ..Options::default() });
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
    let rule = |at_ms, lasts_ms, fault| Rule { at_ms, lasts_ms, fault };
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
    let path = if dice.bool() { Path::Simple } else { Path::Super };
    let options = low(dice, Options { path, ..Options::default() });
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
        let fault = Fault::Upgrade { in_order, rolling, after_all };
        Rule { at_ms, lasts_ms: dice.u64(20..300), fault }
    };
    let rules = Some(vec![upgrade(800, dice), upgrade(9_000, dice)]);
    let path = if dice.bool() { Path::Simple } else { Path::Super };
    let options = low(dice, Options { path, ..Options::default() });
    let duration = Span::from_ms(16_000);
    let nodes = [3, 3, 5, 2, 1][dice.usize(..5)];
    (Settings { nodes, rules, duration, ..settings(seed, "list-append") }, options)
}

/// Runs in which all nodes are asked to stop at nearly the same time, several times. Most of them
/// have no transaction in flight then, so that they wait for nothing of their own.
pub fn stopped(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let fault = Fault::Upgrade { in_order: true, rolling: false, after_all: true };
    let rule = |at_ms| Rule { at_ms, lasts_ms: 50, fault: fault.clone() };
    let path = [Path::Simple, Path::Super][dice.usize(..2)];
    let leaders = ["auto", "rotated"][dice.usize(..2)].to_owned();
    let options = drawn_approach(Options { path, leaders, ..Options::default() }, dice);
    let settings = Settings {
        nodes: [3, 3, 4, 5][dice.usize(..4)],
        shards: [1, 1, 2, 3][dice.usize(..4)],
        clients_per_node: 1,
        one_way_max: Span::from_ms([10, 30, 75][dice.usize(..3)]),
        rules: Some([700, 4_000, 7_000, 10_000].map(rule).to_vec()),
        duration: Span::from_ms(12_000),
        ..settings(seed, ["list-append", "list-add"][dice.usize(..2)])
    };
    (settings, options)
}

/// The same with two shards. The node is cut off from the others of its shard, or from all nodes.
pub fn away_divided(seed: u64) -> (Settings, Options) {
    let (settings, options) = away(seed, "list-append");
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xa2);
    let (shard, is_from_all) = (dice.u16(..2), dice.bool());
    // Nodes 0, 2 and 4 have the first shard.
    let place = |node: u16| 2 * node + shard;
    let places = |nodes: Vec<u16>| -> Vec<u16> {
        let of_shard = nodes.iter().copied().map(place);
        if is_from_all {
            of_shard.chain(nodes.iter().map(|node| 2 * node + 1 - shard)).collect()
        } else {
            of_shard.collect()
        }
    };
    (on_shards(settings, place, places), drawn_approach(options, dice))
}

/// The approach of several shards is drawn, too.
pub fn drawn_approach(options: Options, dice: &mut fastrand::Rng) -> Options {
    let approach = [Approach::Auto, Approach::Preventive, Approach::Detective][dice.usize(..3)];
    Options { approach, ..options }
}

/// Moves faults to other nodes of a cluster of two shards. `places` are those of nodes that are cut
/// off from others.
pub fn on_shards(
    settings: Settings,
    place: impl Fn(u16) -> u16,
    places: impl Fn(Vec<u16>) -> Vec<u16>,
) -> Settings {
    let target = |node: Target| match node {
        Target::Node(node) => Target::Node(place(node)),
        other => other,
    };
    let rules = settings.rules.map(|rules| {
        let moved = |Rule { at_ms, lasts_ms, fault }| {
            let fault = match fault {
                Fault::Cut { from, to, one_way } => {
                    let to = to.into_iter().map(&place).collect();
                    Fault::Cut { from: places(from), to, one_way }
                }
                Fault::Crash { node, after_effects } => {
                    Fault::Crash { node: target(node), after_effects }
                }
                Fault::FailedCheckpoint { node } => Fault::FailedCheckpoint { node: target(node) },
                Fault::DiskLoss { node } => Fault::DiskLoss { node: target(node) },
                other => other,
            };
            Rule { at_ms, lasts_ms, fault }
        };
        rules.into_iter().map(moved).collect()
    });
    Settings { rules, shards: 2, ..settings }
}

/// The same as [`replaced`] with two shards.
pub fn replaced_divided(seed: u64) -> (Settings, Options) {
    let (settings, options) = replaced(seed, "list-append");
    let shard = (seed % 2) as u16;
    let place = |node: u16| 2 * node + shard;
    let settings = on_shards(settings, place, |nodes| nodes.into_iter().map(place).collect());
    (settings, drawn_approach(options, &mut fastrand::Rng::with_seed(seed ^ 0xa3)))
}

/// The same as [`upgraded`] with several shards.
pub fn upgraded_divided(seed: u64) -> (Settings, Options) {
    let (settings, options) = upgraded(seed);
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xd1);
    let (nodes, shards) = ([3, 3, 2, 1][dice.usize(..4)], [2, 2, 3][dice.usize(..3)]);
    (Settings { shards, nodes, ..settings }, drawn_approach(options, dice))
}

/// Runs with three voting replicas and two others. In turn, a voting one is cut off from the other
/// two, and then fails: as the leader, it had only the others.
pub fn cut_from_voters(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let rule = |at_ms, lasts_ms, fault| Rule { at_ms, lasts_ms, fault };
    let mut rules = Vec::new();
    for leader in [0, 1, 2] {
        let at_ms = 1_200 * u64::from(leader) + dice.u64(200..500);
        let others = (0..3).filter(|node| *node != leader).collect();
        let cut = Fault::Cut { from: vec![leader], to: others, one_way: dice.bool() };
        let crash_ms = at_ms + dice.u64(30..250);
        rules.push(rule(at_ms, 1_100, cut));
        let crash = Fault::Crash { node: Target::Node(leader), after_effects: dice.u64(..20) };
        rules.push(rule(crash_ms, 1_000, crash));
    }
    let settings = Settings {
        rules: Some(rules),
        non_voting: 2,
        clients_per_node: 6,
        one_way_max: Span::from_ms(10),
        duration: Span::from_ms(5_000),
        ..settings(seed, "list-append")
    };
    (settings, Options::default())
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
        clocks: ClockBounds {
            offset_max: Span::from_us([0, 5_000, 500_000][dice.usize(..3)]),
            drift_ppm_max: 200,
        },
        duration: Span::from_ms(6_000),
        ..settings(seed, workload)
    };
    let options = if dice.bool() { Options::default() } else { Tiga::drawn_options(dice) };
    let is_low = options == Options::default() && dice.bool();
    let options = if is_low { low(dice, options) } else { options };
    // More chunks would take too long for a run.
    let is_large = ["tpcc", "ycsb-a"].contains(&workload);
    let chunk_bytes = options.chunk_bytes.max(if is_large { 5_000 } else { 500 });
    let options = Options { chunk_bytes, ..options };
    (settings, options)
}

/// Runs of several shards whose leaders do not agree before the release, with the fast path. Many
/// transactions are divided over their shards.
pub fn drawn_fast(seed: u64) -> (Settings, Options) {
    let (settings, options) = drawn_divided(seed);
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xfa);
    let nodes = [3, 3, 5][dice.usize(..3)];
    let workload = ["list-add", "list-add", "tiga-micro"][dice.usize(..3)].to_owned();
    let options = Options {
        path: Path::Super,
        approach: [Approach::Detective, Approach::Detective, Approach::Auto][dice.usize(..3)],
        leaders: ["rotated", "auto"][dice.usize(..2)].to_owned(),
        colocation_ms: dice.u64(..40),
        ..options
    };
    let clients_per_node = [2, 6][dice.usize(..2)];
    (Settings { nodes, workload, clients_per_node, ..settings }, options)
}

/// The same with several shards.
pub fn drawn_divided(seed: u64) -> (Settings, Options) {
    let (settings, options) = drawn(seed);
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xd1);
    let (nodes, shards) = ([3, 3, 2, 1, 4][dice.usize(..5)], [2, 2, 3][dice.usize(..3)]);
    (Settings { shards, nodes, ..settings }, drawn_approach(options, dice))
}
