//! Calvin's checkpoint modes: all give the same results, across crashes and lost disks.

use crate::runs::clean;
use pangea_core::time::Span;
use pangea_protocols::calvin::{Calvin, Checkpoints, Options, Replication};
use pangea_sim::faults::{Fault, Rule, Target};
use pangea_sim::{FaultKind, RealTime, Settings, run};

const MODES: [Checkpoints; 3] = [Checkpoints::Versions, Checkpoints::Frozen, Checkpoints::Zigzag];

fn options(checkpoints: Checkpoints) -> Options {
    Options { checkpoints, checkpoint_bytes: 30_000, chunk_bytes: 5_000, ..Options::default() }
}

fn settings(seed: u64) -> Settings {
    let duration = Span::from_ms(4_000);
    Settings { seed, duration, real_time: RealTime::Ordered, ..Settings::default() }
}

#[test]
fn replicas_that_crash_and_lose_their_disks_come_back_in_each_mode() {
    use FaultKind::*;
    let faults = vec![Crash, CoordinatorCrash, FullStop, DiskLoss, StuckDisk, Partition];
    for mode in MODES {
        let mut replayed = 0;
        for seed in 0..6 {
            let settings = Settings { faults: faults.clone(), faults_max: 15, ..settings(seed) };
            let report = clean::<Calvin>(&settings, &options(mode));
            replayed += report.counts.mark("calvin.epoch_replayed");
            assert!(report.counts.checkpoints > 0, "{mode:?}, seed {seed}");
        }
        assert!(replayed > 0, "{mode:?}: no transaction was rerun");
    }
}

#[test]
fn where_nothing_is_wrong_one_replica_stands_still_at_a_time_and_its_clients_are_answered() {
    for shards in [1, 2] {
        for seed in 0..4 {
            let settings = Settings { faults: Vec::new(), shards, ..settings(seed) };
            let report = clean::<Calvin>(&settings, &options(Checkpoints::Frozen));
            let count = |mark: &str| report.counts.mark(mark);
            assert!(count("inputs.frozen") > 1, "{shards} shards, seed {seed}: {report}");
            assert!(count("calvin.answered_for") > 0, "{shards} shards, seed {seed}");
            assert_eq!(count("inputs.frozen_together"), 0, "{shards} shards, seed {seed}");
            if shards == 1 {
                assert_eq!(count("inputs.turn_lost"), 0, "seed {seed}");
            }
        }
    }
}

/// A checkpoint that could not be written was retried at its version until it succeeded. A replica
/// that was frozen for it stayed frozen as long, and no other replica got the checkpoint turn.
#[test]
fn a_replica_whose_checkpoints_fail_goes_on_and_takes_others_later() {
    for mode in MODES {
        for shards in [1, 2] {
            let fault = Fault::FailedCheckpoint { node: Target::Node(1) };
            let rules = vec![Rule { at_ms: 300, lasts_ms: 8_000, fault }];
            let duration = Span::from_ms(15_000);
            let settings = Settings { rules: Some(rules), duration, shards, ..settings(3) };
            let report = clean::<Calvin>(&settings, &options(mode));
            let failed = report.counts.mark("checkpoints.failed");
            assert!((1..=3).contains(&failed), "{mode:?}, {shards} shards: {report}");
            let asked = report.counts.mark("checkpoints.begun");
            assert!(report.counts.checkpoints > 4, "{mode:?}, {shards} shards, {asked} requested");
        }
    }
}

/// While a replica writes a slow checkpoint, its peers must not retain an unbounded amount of data
/// for it.
#[test]
fn a_replica_that_stands_still_loses_its_turn_before_much_is_kept_for_it() {
    let options = Options { behind_bytes: 4_096, ..options(Checkpoints::Frozen) };
    let settings = Settings { faults: Vec::new(), ..settings(1) };
    let report = clean::<Calvin>(&settings, &options);
    assert!(report.counts.mark("inputs.turn_lost") > 0, "{report}");
    assert_eq!(report.counts.mark("inputs.remove_straggler"), 0, "{report}");
    assert!(report.counts.checkpoints > 2, "{report}");
}

#[test]
fn a_node_alone_and_a_pair_take_frozen_checkpoints_and_go_on() {
    for nodes in [1, 2] {
        let settings = Settings { nodes, faults: Vec::new(), ..settings(nodes as u64) };
        let report = clean::<Calvin>(&settings, &options(Checkpoints::Frozen));
        assert!(report.counts.mark("inputs.frozen") > 1, "{nodes} nodes: {report}");
        let answered = report.counts.mark("calvin.answered_for");
        assert_eq!(answered > 0, nodes > 1, "there is no other replica to query: {report}");
    }
}

/// States that a master may roll back to are not overwritten before they are decided. A checkpoint
/// contains only decided epochs, while values are evicted and fetched again.
#[test]
fn a_master_that_overwrites_can_go_back() {
    use FaultKind::*;
    let faults = vec![CoordinatorCrash, Partition, Partial, Crash];
    let replication = Replication::Asynchronous;
    let options = Options { replication, ..options(Checkpoints::Zigzag) };
    let (mut retreated, mut checkpoints) = (0, 0);
    for seed in 0..12 {
        let memory_bytes = (seed % 2 == 0).then_some(1_000);
        let faults = faults.clone();
        let settings = Settings { faults, faults_max: 15, memory_bytes, ..settings(seed) };
        let report = clean::<Calvin>(&settings, &options);
        retreated += report.counts.mark("calvin.retreated");
        checkpoints += report.counts.checkpoints;
    }
    assert!(retreated > 0 && checkpoints > 0, "{retreated} rollbacks, {checkpoints} checkpoints");
}

/// Rows are fetched for the node that will run the transaction, even if another one is frozen.
#[test]
fn values_that_are_not_in_memory_are_read_and_overwritten_in_each_mode() {
    for mode in MODES {
        for shards in [1, 2] {
            let settings = Settings { memory_bytes: Some(1_000), shards, ..settings(7) };
            let report = clean::<Calvin>(&settings, &options(mode));
            let count = |mark: &str| report.counts.mark(mark);
            assert!(count("calvin.held") > 0, "{mode:?}, {shards} shards: {report}");
        }
    }
}

#[test]
fn a_frozen_master_is_refused_with_the_reason() {
    let replication = Replication::Asynchronous;
    let options = Options { replication, ..options(Checkpoints::Frozen) };
    let Err(error) = run::<Calvin>(&settings(1), &options) else {
        panic!("the settings are valid")
    };
    assert!(error.to_string().contains("no other replica can answer while"), "{error}");
}

/// A replica whose next checkpoint was due before it had caught up kept its checkpoint turn, was
/// frozen at each epoch, and never caught up with the others.
#[test]
fn a_replica_stands_still_once_in_a_turn() {
    let (settings, options) = pangea_sim::drawn::<Calvin>(55);
    let settings = Settings { shards: 2, ..settings };
    let options = Options { checkpoints: Checkpoints::Frozen, checkpoint_bytes: 10_000, ..options };
    clean::<Calvin>(&settings, &options);
}
