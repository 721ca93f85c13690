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
fn settings(seed: u64, (nodes, shards): (usize, u16), others: &[FaultKind]) -> Settings {
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
    let duration = Span::from_ms(12_000);
    let settings = Settings { seed, nodes, shards, workload, duration, ..Settings::default() };
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
    run_divided::<P>(options, (nodes, 1), others)
}

/// The same with this number of shards.
fn run_divided<P: Protocol>(
    options: &P::Options,
    size: (usize, u16),
    others: &[FaultKind],
) -> (u64, u64) {
    let seeds: u64 = std::env::var("PANGEA_UPGRADE_SEEDS").map_or(8, |n| n.parse().unwrap());
    let mut refused = 0;
    let mut undone = 0;
    for seed in 0..seeds {
        let Report { counts, .. } = clean::<P>(&settings(seed, size, others), options);
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

#[test]
fn a_master_that_acknowledges_early_is_upgraded() {
    let replication = calvin::Replication::Asynchronous;
    let little = calvin::Options { replication, ..calvin::Options::scaled_down() };
    let (refused, undone) = run::<Calvin>(&little, 3, &[]);
    assert!(refused > 0 && undone > 0, "what was not checkpointed is refused: {refused}, {undone}");
    // A master whose checkpoints fail stops with epochs that only its own log has.
    run::<Calvin>(&little, 3, &[CRASHES, &[FaultKind::FailedCheckpoint]].concat());
}

/// Each shard decides its part of an epoch on its own, perhaps under another program.
#[test]
fn partitioned_tables_are_upgraded() {
    for replication in [calvin::Replication::Synchronous, calvin::Replication::Asynchronous] {
        let little = calvin::Options { replication, ..calvin::Options::scaled_down() };
        let (refused, undone) = run_divided::<Calvin>(&little, (3, 2), &[]);
        assert!(refused > 0 && undone > 0, "what was not checkpointed is refused");
        run_divided::<Calvin>(&little, (3, 2), CRASHES);
        run_divided::<Calvin>(&little, (1, 2), &[]);
    }
}
