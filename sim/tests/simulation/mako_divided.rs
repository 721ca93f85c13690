//! Settings for runs of Mako over several shards, also for those with planted bugs.
//!
//! The nodes of a region are numbered one after the other: node 0 leads the first shard, and node 1
//! the second, as long as nothing fails.

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::mako::{Mako, Options};
use pangea_sim::Settings;
use pangea_sim::faults::{Fault, Rule, Target};

use crate::mako_drawn::{faults, hasty, settings};

/// Workloads whose transactions access rows of several shards.
pub const WORKLOADS: [&str; 8] =
    ["list-append", "bank", "ranges", "register", "long-fork", "write-skew", "smallbank", "tpcc"];

/// Short runs without faults.
pub fn divided(seed: u64, workload: &str, shards: u16) -> Settings {
    Settings { shards, one_way_max: Span::from_ms(20), ..settings(seed, workload) }
}

/// A fault.
pub fn rule(at_ms: u64, lasts_ms: u64, fault: Fault) -> Rule {
    Rule { at_ms, lasts_ms, fault }
}

/// Many clients of few rows, without faults.
pub fn crowded(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let workload = WORKLOADS[dice.usize(..WORKLOADS.len())];
    let settings = Settings {
        clients_per_node: [4, 8][dice.usize(..2)],
        lists: [2, 4, 8][dice.usize(..3)],
        accounts: [3, 6, 12][dice.usize(..3)],
        one_way_max: Span::from_ms([1, 20, 75][dice.usize(..3)]),
        ..divided(seed, workload, [2, 2, 3, 4][dice.usize(..4)])
    };
    let options = Options { slice_txns: [1, 4, 64][dice.usize(..3)], ..Options::default() };
    (settings, options)
}

/// Runs in which nothing that the leader of a shard sends arrives any more, or nothing is sent to
/// it. It goes on to execute transactions of its clients.
pub fn deposed(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let shards = [2, 3][dice.usize(..2)];
    let mut rules = Vec::new();
    for round in 0..3 {
        let leader = match round {
            0 => dice.u16(..shards),
            _ => dice.u16(..3 * shards),
        };
        // Of its own shard only, or of all.
        let is_all = dice.bool();
        let is_other = |node: &u16| *node != leader && (is_all || node % shards == leader % shards);
        let others: Vec<u16> = (0..3 * shards).filter(is_other).collect();
        let (from, to) = if dice.bool() { (vec![leader], others) } else { (others, vec![leader]) };
        let fault = Fault::Cut { from, to, one_way: dice.bool() };
        rules.push(rule(1_500 * round + dice.u64(100..600), dice.u64(400..1_400), fault));
    }
    let workload = ["list-append", "list-append", "bank"][dice.usize(..3)];
    let settings = Settings {
        rules: Some(rules),
        clients_per_node: 8,
        one_way_max: Span::from_ms([1, 20][dice.usize(..2)]),
        duration: Span::from_ms(5_000),
        ..divided(seed, workload, shards)
    };
    (settings, hasty())
}

/// The same, with shards that share entries of clocks (Mako §6.1).
pub fn grouped(seed: u64) -> (Settings, Options) {
    let (settings, options) = deposed(seed);
    let clock_groups = if seed.is_multiple_of(3) { 2 } else { 1 };
    (settings, Options { clock_groups, ..options })
}

/// Runs in which leaders fail one after the other, or soon after they have certified a transaction:
/// other shards may not have heard of it.
pub fn several(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let shards = [2, 3][dice.usize(..2)];
    let (mut rules, mut at_ms) = (Vec::new(), 200);
    for round in 0..7 {
        at_ms += dice.u64(20..900);
        let node = Target::Node(match round {
            0 | 1 => dice.u16(..shards),
            _ => dice.u16(..3 * shards),
        });
        let after_effects = dice.u64(..20);
        let fault = match dice.u8(..6) {
            0 => Fault::Pause { node },
            1 | 2 => {
                let mark = ["mako.certified", "mako.coordinated", "mako.log_adopted"];
                let mark = mark[dice.usize(..3)].to_owned();
                let node = dice.bool().then_some(node);
                Fault::CrashAfterMark { node, mark, times: dice.u64(1..20), after_effects }
            }
            _ => Fault::Crash { node, after_effects },
        };
        rules.push(rule(at_ms, dice.u64(20..900), fault));
    }
    let workload = ["list-append", "list-append", "bank", "ranges"][dice.usize(..4)];
    let settings = Settings {
        rules: Some(rules),
        clients_per_node: 6,
        one_way_max: Span::from_ms([1, 20, 60][dice.usize(..3)]),
        duration: Span::from_ms(6_000),
        ..divided(seed, workload, shards)
    };
    let options = match dice.bool() {
        true => Options { checkpoint_bytes: 8_192, chunk_bytes: 2_000, ..hasty() },
        false => hasty(),
    };
    (settings, options)
}

/// Runs in which the connections between leaders are lost, so that one does not hear how a
/// transaction has ended.
pub fn flapping(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let shards = [2, 3][dice.usize(..2)];
    let mut rules = Vec::new();
    for round in 0..4 {
        let (one, other) = (dice.u16(..shards), dice.u16(..3 * shards));
        if one != other {
            let fault = Fault::Flap { between: [one, other], times: dice.u64(2..12) };
            rules.push(rule(800 * round + dice.u64(..400), dice.u64(300..900), fault));
        }
    }
    let workload = ["list-append", "list-append", "bank"][dice.usize(..3)];
    let settings = Settings {
        rules: Some(rules),
        clients_per_node: 6,
        one_way_max: Span::from_ms([1, 20][dice.usize(..2)]),
        duration: Span::from_ms(4_000),
        ..divided(seed, workload, shards)
    };
    (settings, Options::default())
}

/// Settings and options that are drawn from the seed.
pub fn drawn(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let workload = WORKLOADS[dice.usize(..WORKLOADS.len())];
    let settings = Settings {
        nodes: [3, 3, 3, 5, 2, 4, 1][dice.usize(..7)],
        faults: faults(),
        faults_max: [6, 12, 30][dice.usize(..3)],
        one_way_max: Span::from_ms([1, 10, 75, 200][dice.usize(..4)]),
        duration: Span::from_ms(6_000),
        ..divided(seed, workload, [2, 2, 3, 4][dice.usize(..4)])
    };
    let options = if dice.bool() { Options::default() } else { Mako::drawn_options(dice) };
    // More chunks would take too long for a run.
    let is_large = ["tpcc", "ycsb-a"].contains(&workload);
    let chunk_bytes = options.chunk_bytes.max(if is_large { 5_000 } else { 500 });
    (settings, Options { chunk_bytes, ..options })
}
