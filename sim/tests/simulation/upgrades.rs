//! Nodes that restart with a later version of their program: nothing is lost, and no epoch runs
//! with other code than on the nodes that have run it.

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::calvin::{self, Calvin};
use pangea_protocols::minerva::{self, Minerva};
use pangea_sim::faults::{Fault, Rule};
use pangea_sim::{FaultKind, Report, Settings};

use crate::runs::clean;

/// A run with an upgrade of each of two kinds, and perhaps with other faults.
fn settings(seed: u64, nodes: usize, others: &[FaultKind]) -> Settings {
    let upgrade = |at_ms, in_order, rolling| Rule {
        at_ms,
        lasts_ms: 100,
        fault: Fault::Upgrade { in_order, rolling },
    };
    let (first, second) = (seed % 4, seed / 4 % 4);
    let rules = vec![
        upgrade(300, first % 2 == 0, first / 2 == 0),
        upgrade(8_000, second % 2 == 0, second / 2 == 0),
    ];
    let workload = ["list-append", "bank"][(seed % 2) as usize].to_owned();
    let settings =
        Settings { seed, nodes, workload, duration: Span::from_ms(12_000), ..Settings::default() };
    match others {
        [] => Settings { rules: Some(rules), ..settings },
        _ => {
            let faults = [others, &[FaultKind::Upgrade]].concat();
            Settings { faults, faults_max: 8, ..settings }
        }
    }
}

/// Runs seeds, and returns the sum of their counts.
fn run<P: Protocol>(options: &P::Options, nodes: usize, others: &[FaultKind]) -> (u64, u64) {
    let seeds: u64 = std::env::var("PANGEA_UPGRADE_SEEDS").map_or(8, |n| n.parse().unwrap());
    let mut refused = 0;
    let mut undone = 0;
    for seed in 0..seeds {
        let Report { counts, .. } = clean::<P>(&settings(seed, nodes, others), options);
        refused += counts.mark("inputs.epoch_refused");
        undone += counts.upgrades_undone;
    }
    (refused, undone)
}

const CRASHES: &[FaultKind] =
    &[FaultKind::Crash, FaultKind::FullStop, FaultKind::Partial, FaultKind::DiskLoss];

#[test]
fn minerva_is_upgraded() {
    let little = minerva::Options::scaled_down();
    run::<Minerva>(&little, 1, &[]);
    run::<Minerva>(&little, 3, &[]);
    run::<Minerva>(&little, 3, CRASHES);
    let rerun = minerva::Options { rerun_on_restart: true, ..little };
    let (refused, undone) = run::<Minerva>(&rerun, 3, &[]);
    assert!(refused > 0 && undone > 0, "what must run again is refused: {refused}, {undone}");
}

#[test]
fn calvin_is_upgraded() {
    let little = calvin::Options::scaled_down();
    let (refused, undone) = run::<Calvin>(&little, 1, &[]);
    assert!(refused > 0 && undone > 0, "what was not checkpointed is refused: {refused}, {undone}");
    run::<Calvin>(&little, 3, &[]);
    run::<Calvin>(&little, 3, CRASHES);
}
