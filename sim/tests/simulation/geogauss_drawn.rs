//! Settings for runs of GeoGauss, also for those with planted bugs.

use pangea_core::guarantee::Isolation;
use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::geogauss::{GeoGauss, Options};
use pangea_sim::{FaultKind, Settings};

const WORKLOADS: [&str; 8] =
    ["list-append", "bank", "ranges", "register", "long-fork", "smallbank", "tpcc", "ycsb-a"];

/// Short runs of a workload without faults.
pub fn settings(seed: u64, workload: &str) -> Settings {
    let workload = workload.to_owned();
    let duration = Span::from_ms(3_000);
    Settings { seed, workload, duration, faults: Vec::new(), ..Settings::default() }
}

/// Settings and options that are drawn from the seed.
pub fn drawn(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let isolation = Isolation::ALL[dice.usize(..4)].into();
    let workload = WORKLOADS[dice.usize(..WORKLOADS.len())];
    let settings = Settings {
        isolation,
        nodes: [3, 3, 5, 2, 4, 1][dice.usize(..6)],
        faults: FaultKind::ALL.to_vec(),
        faults_max: [6, 12, 30][dice.usize(..3)],
        one_way_max: Span::from_ms([1, 10, 75, 200][dice.usize(..4)]),
        duration: Span::from_ms(6_000),
        ..settings(seed, workload)
    };
    let options = if dice.bool() { Options::default() } else { GeoGauss::drawn_options(dice) };
    (settings, options)
}
