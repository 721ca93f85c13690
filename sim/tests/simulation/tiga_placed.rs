//! Settings for runs of Tiga whose leaders move, whose clocks are wild, or whose order relies on
//! clocks. Also for runs with planted bugs.

use std::collections::BTreeSet;

use pangea_core::time::Span;
use pangea_protocols::tiga::{Approach, Options, Ordering, Path};
use pangea_sim::Settings;
use pangea_sim::clock::ClockBounds;
use pangea_sim::faults::{Fault, Rule, Target};

use crate::tiga_drawn::settings;

/// The name of the second region of a simulated cluster.
pub const HOME: &str = "us-east";

fn rule(at_ms: u64, lasts_ms: u64, fault: Fault) -> Rule {
    Rule { at_ms, lasts_ms, fault }
}

/// The node of a shard in a region.
fn node(shards: u16, region: u16, shard: u16) -> Target {
    Target::Node(region * shards + shard)
}

/// Runs whose leaders lose their region for a moment, and come back to it.
pub fn moved(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let shards = [1, 2, 3][dice.usize(..3)];
    let leaders = [HOME, "auto", "rotated"][dice.usize(..3)].to_owned();
    let mut rules = Vec::new();
    for round in 0..2 {
        let (region, shard) = (dice.u16(..2), dice.u16(..shards));
        let crash = Fault::Crash { node: node(shards, region, shard), after_effects: 0 };
        rules.push(rule(1_000 + 3_000 * round + dice.u64(..500), dice.u64(50..700), crash));
    }
    let options = Options { leaders, move_ms: dice.u64(100..800), ..Options::default() };
    let duration = Span::from_ms(6_000);
    let one_way_max = Span::from_ms([10, 75][dice.usize(..2)]);
    let rules = Some(rules);
    let settings =
        Settings { shards, rules, duration, one_way_max, ..settings(seed, "list-append") };
    (settings, options)
}

/// Runs in which one node of the leaders' region is away at first, and all are well afterwards. A
/// message between two regions takes 25 ms.
pub fn moved_once(shards: u16) -> (Settings, Options) {
    let crash = Fault::Crash { node: node(shards, 1, 0), after_effects: 0 };
    let one_way = (0..3).map(|from| (0..3).map(|to| if from == to { 0 } else { 25 }).collect());
    let settings = Settings {
        shards,
        rules: Some(vec![rule(300, 50, crash)]),
        one_way: Some(one_way.collect()),
        clients_per_node: 8,
        duration: Span::from_ms(6_000),
        ..settings(7, "list-append")
    };
    let options = Options { leaders: HOME.to_owned(), move_ms: 2_000, ..Options::default() };
    (settings, options)
}

/// Runs whose first leaders are in a region that is 75 ms from the two others, which are 20 ms
/// apart.
pub fn remote(shards: u16) -> (Settings, Options) {
    let one_way = vec![vec![0, 75, 75], vec![75, 0, 20], vec![75, 20, 0]];
    let settings = Settings {
        shards,
        one_way: Some(one_way),
        clients_per_node: 8,
        duration: Span::from_ms(10_000),
        ..settings(8, "list-append")
    };
    (settings, Options { move_ms: 1_000, ..Options::default() })
}

/// Runs whose clocks are wild: they jump forward by an hour or back over a restart by a quarter of
/// one, or stand still.
pub fn wild(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let (nodes, shards) = ([3, 3, 2, 5][dice.usize(..4)], [1, 2, 3][dice.usize(..3)]);
    let (mut rules, mut behind) = (Vec::new(), BTreeSet::new());
    for _ in 0..dice.u64(1..4) {
        let (at_ms, place) = (dice.u64(1..3_000), dice.u16(..nodes * shards));
        let node = Target::Node(place);
        let by_ms = [3_600_000, 3_600_000, 20_000, 1_500, -900_000][dice.usize(..5)];
        // Twice that would be before the origin of simulated clocks, which would stand still.
        let by_ms = if by_ms < 0 && !behind.insert(place) { 1_500 } else { by_ms };
        let fault = match dice.u8(..4) {
            0 => Fault::ClockFreeze { node },
            1 => Fault::ClockJump { node, by_ms },
            _ => Fault::LyingClock { node, by_ms },
        };
        rules.push(rule(at_ms, dice.u64(100..3_000), fault));
        // A clock that has gone back does so when its node starts.
        if by_ms < 0 || dice.bool() {
            let crash = Fault::Crash { node, after_effects: 0 };
            rules.push(rule(at_ms + dice.u64(50..1_000), dice.u64(10..400), crash));
        }
    }
    rules.sort_by_key(|rule| rule.at_ms);
    let options = Options {
        leaders: ["auto", "rotated"][dice.usize(..2)].to_owned(),
        path: [Path::Simple, Path::Super][dice.usize(..2)],
        ..Options::default()
    };
    let workload = ["list-append", "bank", "register"][dice.usize(..3)];
    let settings = Settings {
        nodes: nodes.into(),
        shards,
        rules: Some(rules),
        one_way_max: Span::from_ms([10, 75][dice.usize(..2)]),
        duration: Span::from_ms(6_000),
        ..settings(seed, workload)
    };
    (settings, options)
}

/// Runs of several shards with the order that relies on clocks, whose bound is right or wrong. The
/// bound is on the difference of two clocks.
pub fn bounded(seed: u64, is_right: bool) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let (nodes, shards) = ([3, 3, 2, 1][dice.usize(..4)], [2, 2, 3][dice.usize(..3)]);
    let bound_ms = [2, 20, 100][dice.usize(..3)];
    // A drift of ten seconds is more than the clocks of such runs have.
    let drift_us = 10 * 200;
    let offset_us = Span::from_ms(bound_ms).us / 2 - drift_us.min(500 * bound_ms);
    let mut rules = Vec::new();
    for _ in 0..dice.u64(0..4) {
        let (at_ms, node) = (dice.u64(200..3_000), Target::Node(dice.u16(..nodes * shards)));
        let after_effects = dice.u64(..20);
        rules.push(match dice.u8(..3) {
            0 => rule(at_ms, dice.u64(50..800), Fault::Crash { node, after_effects }),
            1 => rule(at_ms, dice.u64(100..800), Fault::Pause { node }),
            _ => rule(at_ms, 1, Fault::ClockJump { node, by_ms: dice.i64(-300..300) }),
        });
    }
    for node in (0..nodes * shards).filter(|_| !is_right).map(Target::Node) {
        rules.push(rule(dice.u64(1..500), 1, Fault::LyingClock { node, by_ms: dice.i64(0..400) }));
    }
    rules.sort_by_key(|rule| rule.at_ms);
    let options = Options {
        leaders: ["auto", "rotated"][dice.usize(..2)].to_owned(),
        order: Ordering::Bounded,
        clock_error_ms: bound_ms,
        ..Options::default()
    };
    let workload = ["list-append", "list-append", "register"][dice.usize(..3)];
    let settings = Settings {
        nodes: nodes.into(),
        shards,
        rules: Some(rules),
        clients_per_node: 6,
        lists: [5, 20][dice.usize(..2)],
        one_way_max: Span::from_ms([1, 10, 75][dice.usize(..3)]),
        clocks: ClockBounds { offset_max: Span::from_us(offset_us), drift_ppm_max: 200 },
        duration: Span::from_ms(4_000),
        ..settings(seed, workload)
    };
    (settings, options)
}

/// Runs of two shards whose leaders are 40 ms apart, with good clocks and without faults.
pub fn apart(order: Ordering) -> (Settings, Options) {
    let one_way = (0..3).map(|from| (0..3).map(|to| if from == to { 0 } else { 40 }).collect());
    let options = Options {
        leaders: "rotated".to_owned(),
        approach: Approach::Preventive,
        order,
        clock_error_ms: 2,
        ..Options::default()
    };
    let clocks = ClockBounds { offset_max: Span::from_us(100), drift_ppm_max: 10 };
    let one_way = Some(one_way.collect());
    (Settings { shards: 2, one_way, clocks, ..settings(5, "register") }, options)
}
