//! Settings for runs of GeoGauss, also for those with planted bugs.

use pangea_core::guarantee::Isolation;
use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::geogauss::{Ack, GeoGauss, Options};
use pangea_sim::faults::{Fault, Rule};
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
    let options = if dice.bool() { default() } else { GeoGauss::drawn_options(dice) };
    (settings, options)
}

/// The defaults for runs of seconds, in which replicas are idle sooner.
pub fn default() -> Options {
    Options { idle_ms: 200, ..Options::default() }
}

/// Options of runs in which caches acknowledge.
pub fn cached() -> Options {
    Options { ack: Ack::Cached, ..default() }
}

/// Runs with a cache for each of three nodes. What one node sends is lost until it is removed, but
/// its cache can be reached. It still hears the ends of the others' epochs, and answers its clients
/// before anybody else has their transactions.
pub fn mute(seed: u64, workload: &str) -> Settings {
    let away = (seed % 3) as u16;
    let others = || (0..3).filter(|node| *node != away);
    let to = others().chain(others().map(|node| node + 3)).collect();
    let fault = Fault::Cut { from: vec![away], to, one_way: true };
    let rules = Some(vec![Rule { at_ms: 500, lasts_ms: 1_500, fault }]);
    Settings { rules, caches: 1, ..settings(seed, workload) }
}
