//! Settings for runs of Tiga, also for those with planted bugs.

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::tiga::{Options, Path, Tiga};
use pangea_sim::clock::ClockBounds;
use pangea_sim::faults::{Fault, Rule};
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

/// The faults of a protocol that takes no checkpoints yet: nodes keep their program.
pub fn faults() -> Vec<FaultKind> {
    FaultKind::ALL.iter().copied().filter(|kind| *kind != FaultKind::Upgrade).collect()
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
    (settings, options)
}

/// The same with several shards.
pub fn drawn_divided(seed: u64) -> (Settings, Options) {
    let (settings, options) = drawn(seed);
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xd1);
    let nodes = [3, 3, 2, 1, 4][dice.usize(..5)];
    (Settings { shards: [2, 2, 3][dice.usize(..3)], nodes, ..settings }, options)
}
