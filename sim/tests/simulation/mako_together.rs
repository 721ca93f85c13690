//! Settings for runs of Mako over several shards in which several leaders fail at once, or one of
//! many.

use pangea_core::time::Span;
use pangea_protocols::mako::Options;
use pangea_sim::Settings;
use pangea_sim::faults::{Fault, Target};

use crate::mako_divided::{WORKLOADS, divided, rule};
use crate::mako_drawn::hasty;

/// Runs in which several leaders fail at once: two of them, or all nodes of a region, which crash,
/// or are cut off. Some lose their disks, and clocks are wrong by seconds.
pub fn together(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let shards = [1, 2, 2, 3, 4][dice.usize(..5)];
    let (mut rules, mut at_ms) = (Vec::new(), 300);
    for _ in 0..4 {
        at_ms += dice.u64(100..1_400);
        let lasts_ms = dice.u64(50..1_300);
        let region = dice.u16(..3);
        let nodes: Vec<u16> = (region * shards..(region + 1) * shards).collect();
        if dice.u8(..4) == 0 {
            let others = (0..3 * shards).filter(|node| !nodes.contains(node)).collect();
            let one_way = dice.bool();
            let (from, to) = if dice.bool() { (nodes, others) } else { (others, nodes) };
            rules.push(rule(at_ms, lasts_ms, Fault::Cut { from, to, one_way }));
            continue;
        }
        let is_all = dice.bool();
        for node in nodes.into_iter().take(if is_all { 4 } else { 2 }) {
            let (node, after_effects) = (Target::Node(node), dice.u64(..20));
            let by_ms = [-3_000, -50, 50, 3_000][dice.usize(..4)];
            match dice.u8(..4) {
                0 => rules.push(rule(at_ms, lasts_ms, Fault::ClockJump { node, by_ms })),
                1 => rules.push(rule(at_ms, lasts_ms, Fault::LyingClock { node, by_ms })),
                _ => {}
            }
            let later_ms = at_ms + dice.u64(..60);
            let fault = match dice.u8(..8) {
                0 => Fault::DiskLoss { node },
                1 => Fault::Pause { node },
                _ => Fault::Crash { node, after_effects },
            };
            rules.push(rule(later_ms, lasts_ms, fault));
        }
    }
    rules.sort_by_key(|rule| rule.at_ms);
    let workload = WORKLOADS[dice.usize(..6)];
    let settings = Settings {
        rules: Some(rules),
        clients_per_node: [2, 6][dice.usize(..2)],
        one_way_max: Span::from_ms([1, 20, 60][dice.usize(..3)]),
        duration: Span::from_ms(6_000),
        ..divided(seed, workload, shards)
    };
    let options = match dice.u8(..3) {
        0 => Options { checkpoint_bytes: 8_192, chunk_bytes: 2_000, ..hasty() },
        1 => hasty(),
        _ => Options { slice_txns: 1, ..Options::default() },
    };
    (settings, options)
}

/// When the leader of the second shard fails in [`one_leader_fails`].
pub const KILL_MS: u64 = 1_500;

/// A run in which the leader of the second of three shards fails once, and many clients write
/// single rows and read several.
pub fn one_leader_fails(seed: u64) -> (Settings, Options) {
    let crash = Fault::Crash { node: Target::Node(1), after_effects: 0 };
    let settings = Settings {
        rules: Some(vec![rule(KILL_MS, 4_000, crash)]),
        clients_per_node: 80,
        lists: 400,
        one_way_max: Span::from_ms(10),
        duration: Span::from_ms(4_500),
        ..divided(seed, "long-fork", 3)
    };
    (settings, Options { heartbeat_ms: 50, failure_ms: 1_500, ..Options::default() })
}
