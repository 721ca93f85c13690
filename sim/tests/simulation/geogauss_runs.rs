//! GeoGauss, for a few seeds, without faults and with all of them.

use pangea_core::guarantee::Isolation;
use pangea_protocols::geogauss::{Ack, Conflicts, Execution, GeoGauss, MergeRule, Options};
use pangea_sim::check::model::Model;
use pangea_sim::check::recorded::check;
use pangea_sim::{FaultKind, Levels, Report, Settings, run};

use crate::geogauss_drawn::{default, drawn, settings};
use crate::runs::clean;

/// Each level, and all of them in one run.
fn all_levels() -> impl Iterator<Item = Levels> {
    Isolation::ALL.into_iter().map(Levels::from).chain([Levels::MIXED])
}

#[test]
fn geogauss_keeps_its_levels_and_loses_nothing_under_faults() {
    let mut marks = [
        "geogauss.epoch_replayed",
        "geogauss.half_epoch_ended",
        "geogauss.was_removed",
        "geogauss.joined",
    ]
    .map(|mark| (mark, 0));
    for isolation in all_levels() {
        for workload in ["list-append", "bank", "ranges", "register", "references", "tallies"] {
            for seed in 1_000..1_006 {
                let faults = FaultKind::ALL.to_vec();
                let settings = Settings { isolation, faults, ..settings(seed, workload) };
                let report = clean::<GeoGauss>(&settings, &default());
                marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
            }
        }
    }
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

#[test]
fn geogauss_is_serializable_where_all_transactions_are() {
    for workload in ["list-append", "bank", "ranges", "register", "write-skew", "index", "tpcc"] {
        for seed in 1_000..1_006 {
            clean::<GeoGauss>(&settings(seed, workload), &default());
        }
    }
}

/// Histories are held to the level that their transactions have asked for.
#[test]
fn geogauss_keeps_each_level_and_loses_no_update_at_any() {
    const WORKLOADS: [&str; 10] = [
        "list-append",
        "bank",
        "ranges",
        "long-fork",
        "smallbank",
        "tpcc",
        "calvin-micro",
        "references",
        "tallies",
        "ddl",
    ];
    for isolation in all_levels() {
        for workload in WORKLOADS {
            for seed in 1_000..1_003 {
                let settings = Settings { isolation, ..settings(seed, workload) };
                clean::<GeoGauss>(&settings, &default());
            }
        }
    }
}

#[test]
fn the_papers_merge_and_retries_without_an_order_keep_the_levels_too() {
    let merge = MergeRule::Claims;
    for conflicts in [Conflicts::Retry, Conflicts::Abort] {
        let options = Options { merge, conflicts, ..default() };
        for isolation in all_levels() {
            for workload in ["list-append", "bank"] {
                let settings = Settings { isolation, ..settings(1_000, workload) };
                clean::<GeoGauss>(&settings, &options);
            }
        }
    }
}

/// GeoGauss §4.1.5 validates reads at the source only, so an epoch in flight overwrites what it has
/// not seen: at none of the paper's levels does the bank keep its money. Its replicas agree, as
/// GeoGauss §4.3 says, because the errors that make them differ are mended.
#[test]
fn the_papers_validation_loses_updates_at_each_of_its_levels() {
    let levels = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Snapshot];
    for isolation in levels {
        // There are no caches.
        let options = Options { isolation, ack: Ack::Replicated, ..Options::paper() };
        let of = |seed, workload| {
            let isolation = Isolation::ReadCommitted.into();
            let settings = Settings { isolation, ..settings(seed, workload) };
            run::<GeoGauss>(&settings, &options).expect("the settings are accepted").violation
        };
        let lost = (1_000..1_100).find_map(|seed| of(seed, "bank"));
        let why = lost.expect("no run loses an update");
        assert_eq!(why.checker, "workload", "{}", why.story);
        (1_000..1_003).for_each(|seed| assert_eq!(of(seed, "register"), None));
    }
}

#[test]
fn a_program_that_waits_for_the_epochs_before_its_own_keeps_its_level() {
    let options = Options { execution: Execution::Synchronous, ..default() };
    for isolation in all_levels() {
        for workload in ["list-append", "bank"] {
            let settings = Settings { isolation, ..settings(1_000, workload) };
            let report = clean::<GeoGauss>(&settings, &options);
            assert!(report.counts.mark("geogauss.waits_for_earlier_epochs") > 0);
        }
    }
}

#[test]
fn transactions_of_a_node_that_write_the_same_rows_are_chained() {
    for isolation in [Isolation::ReadCommitted, Isolation::Serializable].map(Levels::from) {
        let mut marks = ["geogauss.chained", "geogauss.not_chained"].map(|mark| (mark, 0));
        for workload in ["bank", "list-append", "register", "tpcc"] {
            for seed in 1_000..1_003 {
                let settings = Settings { isolation, ..settings(seed, workload) };
                let report = clean::<GeoGauss>(&settings, &default());
                marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
            }
        }
        assert!(marks.iter().all(|(_, hits)| *hits > 0), "{isolation}: {marks:?}");
    }
}

#[test]
fn additions_of_all_regions_to_one_row_commit_in_one_epoch() {
    let run = |level: Isolation, options: &Options| {
        let mut marks = ["geogauss.adds", "geogauss.add_failed"].map(|mark| (mark, 0));
        for seed in 1_000..1_006 {
            let settings = settings(seed, "tallies");
            let settings = Settings {
                isolation: level.into(),
                lists: 3,
                clients_per_node: 6,
                faults: FaultKind::ALL.to_vec(),
                ..settings
            };
            let report = clean::<GeoGauss>(&settings, options);
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
        }
        marks
    };
    let claims = Options { merge: MergeRule::Claims, ..default() };
    let mut failed = 0;
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
        for options in [default(), claims.clone()] {
            let [(_, adds), (_, failures)] = run(level, &options);
            assert!(adds > 0, "{level}");
            failed += failures;
        }
    }
    assert!(failed > 0, "a row could hold each addition");
    // The first committer wins at the snapshot level, also of additions.
    let without = Options { deltas: false, ..default() };
    for (level, options) in [(Isolation::Snapshot, default()), (Isolation::ReadCommitted, without)]
    {
        assert_eq!(run(level, &options).map(|(_, hits)| hits), [0, 0], "{level}");
    }
}

/// The snapshot level permits write skew, so a history of it is not serializable.
#[test]
fn write_skew_is_possible_at_the_snapshot_level() {
    let skewed = |seed| {
        let isolation = Isolation::Snapshot;
        let settings = Settings { isolation: isolation.into(), ..settings(seed, "write-skew") };
        let Report { violation, recorded, .. } = run::<GeoGauss>(&settings, &default()).unwrap();
        assert_eq!(violation, None);
        let recorded = recorded.expect("registers have histories");
        let verdict = check(&recorded, Model::Serializable, "write-skew");
        verdict.into_result().is_err_and(|found| found.anomaly.starts_with("G2"))
    };
    assert!((1_000..1_020).any(skewed), "no run has the anomaly");
}

#[test]
fn a_replica_that_is_alone_waits_for_nobody() {
    for workload in ["list-append", "bank"] {
        let settings = Settings { nodes: 1, ..settings(1_000, workload) };
        clean::<GeoGauss>(&settings, &default());
    }
}

/// Seeds that found a bug:
/// - 1: a replica without its disk waited for a batch that did not count in the view of its peers.
/// - 3: a strict read asked again before it could have an answer.
/// - 37, 114: a batch was in an epoch that had not been reserved, and a restart went back.
/// - 64: one epoch had batches of two programs after a kill, and no program could merge it.
/// - 96, 178: a batch that was not synced yet was missing in a report.
/// - 439: a replica that had been removed and had joined again, without knowing, read an old state.
/// - 561, 612, 651, 776: seals waited for replicas that were gone, and who joined had to be ahead.
/// - 620: a replica in an earlier view took acknowledgements for some of batches that do not count.
/// - 626: the end of an earlier life of a replica was missing, and its epochs were merged.
/// - 1004, 1116: nodes that were stopped in order left epochs for another program.
/// - 1028: epochs after a peer's checkpoint were replayed without it.
/// - 1129, 1389, 1546: a replica had refused a batch of a view that it entered later, and never got
///   it.
/// - 1180: a checker took a delete of unknown outcome for one that had found a row.
/// - 1297: a replica was asked for its epochs before it was ready, and did not tell them later.
/// - 1435: a seal waited for the report of a replica that had lost its disk.
/// - 1552: a replica without its disk took batches of its earlier life that did not count.
/// - 1691: agreement refused a message, by a mark that was not among those of the protocol.
const SEEDS: [u64; 25] = [
    1, 3, 37, 64, 96, 114, 178, 439, 561, 612, 620, 626, 651, 776, 1_004, 1_028, 1_116, 1_129,
    1_180, 1_297, 1_389, 1_435, 1_546, 1_552, 1_691,
];

#[test]
fn seeds_that_found_a_bug_in_geogauss_stay_clean() {
    for seed in SEEDS.into_iter().chain(5_000..5_020) {
        let (settings, options) = drawn(seed);
        let options = Options { ack: Ack::Replicated, ..options };
        clean::<GeoGauss>(&settings, &options);
    }
}
