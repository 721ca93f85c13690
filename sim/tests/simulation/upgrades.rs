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
    let upgrade = |at_ms, kind| {
        let (in_order, rolling, after_all) = (kind % 2 == 0, kind / 2 == 0, false);
        Rule { at_ms, lasts_ms: 100, fault: Fault::Upgrade { in_order, rolling, after_all } }
    };
    let rules = vec![upgrade(300, seed % 4), upgrade(8_000, seed / 4 % 4)];
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

/// When the second upgrade begins. The first one has ended then.
const SECOND_MS: u64 = 9_000;

/// A new coordinator released a node that could not finish its transactions without it.
const KEPT: [u64; 1] = [16];

/// Runs in which all nodes stop in order, with clients, and start when all have stopped. A run in
/// which a node continues to refuse an epoch fails.
fn run_in_order<P: Protocol>(options: &P::Options, (nodes, shards): (usize, u16)) {
    let seeds: u64 = std::env::var("PANGEA_UPGRADE_SEEDS").map_or(8, |n| n.parse().unwrap());
    for seed in (0..seeds).chain(KEPT) {
        let rule = |at_ms, rolling| Rule {
            at_ms,
            lasts_ms: 100,
            fault: Fault::Upgrade { in_order: true, rolling, after_all: true },
        };
        // Shards have to end with the same epoch, so all must stop at once.
        let may_roll = shards == 1;
        let rules = Some(vec![
            rule(700, may_roll && seed % 2 == 0),
            rule(SECOND_MS, may_roll && seed / 2 % 2 == 0),
        ]);
        let duration = Span::from_ms(SECOND_MS + 6_000);
        let any = Settings { rules, nodes, duration, ..settings(seed, (nodes, shards), &[]) };
        let counts = clean::<P>(&any, options).counts;
        // A node that stopped early refuses epochs until it has a peer's checkpoint.
        assert_eq!(counts.upgrades_undone, 0, "{seed}");
        assert_eq!(
            counts.stops_in_order,
            2 * nodes as u64 * u64::from(shards),
            "all stop in order, twice: {seed}"
        );
    }
}

/// The last coordinator once left a cut that was proposed and not decided. The next program decided
/// it, and could not run it.
#[test]
fn every_program_continues_after_all_nodes_have_stopped_in_order() {
    for nodes in [1, 3, 5] {
        let little = minerva::Options::scaled_down();
        run_in_order::<Minerva>(&little, (nodes, 1));
        run_in_order::<Minerva>(&minerva::Options { rerun_on_restart: true, ..little }, (nodes, 1));
        for replication in [calvin::Replication::Synchronous, calvin::Replication::Asynchronous] {
            let little = calvin::Options { replication, ..calvin::Options::scaled_down() };
            run_in_order::<Calvin>(&little, (nodes, 1));
        }
    }
}

/// Each shard once stopped at an epoch of its own, and left the others with epochs that no program
/// but theirs could run.
#[test]
fn every_program_continues_after_all_shards_have_stopped_in_order() {
    for size in [(1, 2), (3, 2), (3, 3)] {
        for replication in [calvin::Replication::Synchronous, calvin::Replication::Asynchronous] {
            let little = calvin::Options { replication, ..calvin::Options::scaled_down() };
            run_in_order::<Calvin>(&little, size);
        }
    }
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
