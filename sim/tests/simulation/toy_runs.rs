//! The simulator on a small protocol: a correct one passes, a broken one is caught.

use std::collections::BTreeSet;

use crate::toy::{Bug, ToyOptions, ToyProtocol};
use pangea_core::time::Span;
use pangea_core::workload::registers::Mix;
use pangea_sim::trace::Lines;
use pangea_sim::{
    Extent, FaultKind, RealTime, Report, Settings, Summary, run, run_seeds, run_swarm,
};

/// Enough to catch the rarest bug several times.
const SEEDS_PER_BUG: u64 = 60;

fn settings(seed: u64, workload: &str) -> Settings {
    let workload = workload.to_owned();
    let (duration, real_time) = (Span::from_ms(4_000), RealTime::Ordered);
    // The leader is always the same, so it tolerates neither the loss of the leader nor of a disk.
    // Any program runs what it finds in the log.
    let untolerated =
        [FaultKind::Destroy, FaultKind::DiskLoss, FaultKind::BitFlip, FaultKind::Upgrade];
    let faults = FaultKind::ALL.into_iter().filter(|kind| !untolerated.contains(kind)).collect();
    Settings { seed, workload, duration, real_time, faults, ..Settings::default() }
}

fn toy(settings: &Settings, bug: Bug) -> Report {
    run::<ToyProtocol>(settings, &ToyOptions { bug }).expect("the settings are valid")
}

/// It runs what it finds in the log, whatever program has proposed that.
#[test]
fn a_protocol_that_runs_the_transactions_of_an_earlier_program_is_caught() {
    let found = (0..40).any(|seed| {
        let faults = vec![FaultKind::Upgrade];
        let report = toy(&Settings { faults, ..settings(seed, "list-append") }, Bug::None);
        report.violation.is_some_and(|violation| violation.anomaly == "another program")
    });
    assert!(found);
}

#[test]
fn a_right_protocol_passes_under_faults() {
    let few = Mix::ALL.map(|mix| (mix.name(), 10));
    let others = [("list-append", 40), ("bank", 40), ("tpcc", 2), ("ycsb-a", 2)];
    for (workload, seeds) in others.into_iter().chain(few) {
        for seed in 0..seeds {
            let report = toy(&settings(seed, workload), Bug::None);
            assert!(report.violation.is_none(), "{report}");
            assert!(report.counts.committed > 0, "{report}");
        }
    }
}

#[test]
fn every_mistake_is_caught_by_the_check_that_is_there_for_it() {
    for (bug, expected) in [
        // Acknowledged entries that were lost show in a replica, or as a gap in the leader's log.
        (Bug::AckBeforeDurable, &["replicas", "panic"][..]),
        (Bug::LoseWrites, &["lost append"]),
        (Bug::SkipCertify, &["lost append"]),
        (Bug::CertifyWritesAlone, &["G2-item"]),
        (Bug::KeepAborted, &["G1a"]),
        (Bug::StaleFresh, &["G-single-realtime"]),
        (Bug::Reorder, &["replicas"]),
        (Bug::ForgetOrdered, &["workload"]),
        (Bug::NoCatchUp, &["liveness"]),
        (Bug::AnswerEarly, &["unreadable"]),
        (Bug::Nonsense, &["malformed"]),
        (Bug::OtherMembers, &["replicas"]),
    ] {
        let found: BTreeSet<&str> = (0..SEEDS_PER_BUG)
            .filter_map(|seed| toy(&settings(seed, "list-append"), bug).violation)
            .map(|violation| violation.anomaly)
            .collect();
        let is_caught = expected.iter().any(|anomaly| found.contains(anomaly));
        assert!(is_caught, "{bug:?} should show as {expected:?}, found {found:?}");
        println!("{bug:?} {found:?}");
    }
}

#[test]
fn every_mistake_shows_in_registers_and_rows_too() {
    for (bug, workload, expected) in [
        (Bug::LoseWrites, "register", &["lost write"][..]),
        (Bug::SkipCertify, "register", &["lost update"][..]),
        (Bug::KeepAborted, "register", &["G1a"][..]),
        (Bug::StaleFresh, "long-fork", &["G-single-realtime"][..]),
        (Bug::CertifyWritesAlone, "write-skew", &["G2-item"]),
        (Bug::CertifyWritesAlone, "cycle", &["G2-item", "G2-item-realtime"]),
        (Bug::CertifyWritesAlone, "ranges", &["G2", "G2-item"]),
    ] {
        let found: BTreeSet<&str> = (0..SEEDS_PER_BUG)
            .filter_map(|seed| toy(&settings(seed, workload), bug).violation)
            .map(|violation| violation.anomaly)
            .collect();
        println!("{bug:?} {workload} {found:?}");
        let is_caught = expected.iter().any(|anomaly| found.contains(anomaly));
        assert!(is_caught, "{bug:?} should show as {expected:?}, found {found:?}");
    }
}

#[test]
fn a_swarm_tells_each_failure_with_the_command_that_repeats_it() {
    let (mut reported, mut runs) = (String::new(), 0);
    let mut watch = |summary: &Summary, failure: Option<&Report>| {
        runs += 1;
        assert_eq!(summary.seeds, runs);
        failure.iter().for_each(|report| reported += &report.to_string());
    };
    let base = settings(0, "list-append");
    let options = ToyOptions { bug: Bug::Reorder };
    let summary = run_seeds::<ToyProtocol>(0..8, 2, &base, &options, &mut watch).unwrap();
    assert_eq!(summary.seeds, runs);
    assert!(!summary.failures.is_empty(), "{summary}");
    for failure in &summary.failures {
        let command = failure.replay_command();
        assert!(
            reported.contains(&command) && summary.to_string().contains(&command),
            "{reported}"
        );
        let again = toy(&failure.settings, Bug::Reorder);
        assert_eq!(again.violation, failure.violation, "{command} repeats it");
    }
    let summary = run_seeds::<ToyProtocol>(0..8, 2, &base, &ToyOptions::default(), &mut |_, _| {});
    let summary = summary.unwrap();
    assert_eq!((summary.seeds, summary.failures.len()), (8, 0), "{summary}");
    let nowhere = run_seeds::<ToyProtocol>(8..8, 2, &base, &options, &mut |_, _| {});
    assert!(nowhere.unwrap_err().why.contains("no seeds"));
}

#[test]
fn a_swarm_that_breaks_off_tells_what_it_has_found() {
    let plan = |seed| {
        let workload = if seed < 8 { "list-append" } else { "chess" };
        (settings(seed, workload), ToyOptions { bug: Bug::Reorder })
    };
    let extent = Extent { seeds: 0..u64::MAX, time: None, threads: 1, is_twice: false };
    let broken = run_swarm::<ToyProtocol>(extent, &plan, &mut |_, _| {}).unwrap_err();
    assert!(broken.why.contains("seed 8") && broken.why.contains("chess"), "{broken}");
    assert_eq!(broken.summary.seeds, 8);
    assert!(!broken.summary.failures.is_empty(), "{}", broken.summary);
}

#[test]
fn settings_that_do_not_exist_are_refused() {
    let refused = run::<ToyProtocol>(&settings(0, "chess"), &ToyOptions::default()).unwrap_err();
    assert!(refused.contains("chess"), "{refused}");
}

#[test]
fn faults_of_every_kind_happen_and_one_that_is_off_does_not() {
    for kind in FaultKind::ALL {
        let one = Settings { faults: vec![kind], ..settings(1, "bank") };
        let reports: Vec<Report> =
            (0..5).map(|seed| toy(&Settings { seed, ..one.clone() }, Bug::None)).collect();
        let count: u64 = reports.iter().flat_map(|report| report.counts.faults.values()).sum();
        assert!(count > 0, "{} happens", kind.name());
        for report in reports {
            let may_stop = kind == FaultKind::Destroy;
            assert!(report.violation.is_none_or(|it| may_stop && it.checker == "liveness"));
            assert!(report.counts.faults.keys().all(|&name| name == kind.name()), "{kind}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_with_and_without_lines() {
    for seed in 0..5 {
        let first = toy(&settings(seed, "list-append"), Bug::None);
        let again = toy(&settings(seed, "list-append"), Bug::None);
        let kept = Settings { lines: Lines::Keep, ..settings(seed, "list-append") };
        let kept = [toy(&kept, Bug::None), toy(&kept, Bug::None)];
        assert_eq!((first.digest, first.events), (again.digest, again.events));
        assert_eq!((first.digest, first.events), (kept[0].digest, kept[0].events));
        assert_eq!(first.history, again.history);
        assert_eq!(kept[0].lines.len() as u64, kept[0].events);
        assert_eq!(kept[0].lines, kept[1].lines);
        let other = toy(&settings(seed + 100, "list-append"), Bug::None);
        assert_ne!(first.digest, other.digest);
    }
}
