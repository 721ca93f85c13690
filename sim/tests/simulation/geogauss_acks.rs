//! GeoGauss with acknowledgements that may be lost (§5.2).

use pangea_core::time::Span;
use pangea_protocols::geogauss::{Ack, GeoGauss, Options};
use pangea_sim::faults::{Fault, Rule, Target};
use pangea_sim::{FaultKind, Report, Settings};

use crate::geogauss_drawn::{cached, default, drawn, mute, settings};
use crate::runs::clean;

/// Runs a workload with rules, or with drawn faults.
fn run_with(seed: u64, workload: &str, rules: Option<Vec<Rule>>) -> Report {
    let faults = if rules.is_some() { Vec::new() } else { FaultKind::ALL.to_vec() };
    let settings = Settings { faults, rules, ..settings(seed, workload) };
    clean::<GeoGauss>(&settings, &Options { ack: Ack::Merged, ..default() })
}

#[test]
fn without_a_removal_no_acknowledgement_is_lost() {
    for workload in ["list-append", "bank", "ranges", "register", "tpcc"] {
        for seed in 1_000..1_003 {
            let calm = run_with(seed, workload, Some(Vec::new()));
            assert!(calm.counts.mark("geogauss.merged_early") > 0, "{calm}");
            assert_eq!(calm.counts.given_up, 0, "{calm}");
            let node = Target::Node((seed % 3) as u16);
            let fault = Fault::Crash { node, after_effects: 3 };
            let rules = vec![Rule { at_ms: 700, lasts_ms: 50, fault }];
            let restarted = run_with(seed, workload, Some(rules));
            assert_eq!(restarted.counts.given_up, 0, "{restarted}");
        }
    }
}

/// A replica that is cut off has the ends of the others' epochs, and answers its own clients before
/// anybody else has their transactions.
#[test]
fn a_replica_that_is_removed_loses_its_last_acknowledgements_and_rolls_them_back() {
    let (mut lost, mut retreated) = (0, 0);
    for seed in 1_000..1_020 {
        let away = (seed % 3) as u16;
        let others = (0..3).filter(|node| *node != away).collect();
        // What it sends is lost, and it still hears the others.
        let fault = Fault::Cut { from: vec![away], to: others, one_way: true };
        let rules = vec![Rule { at_ms: 500, lasts_ms: 1_500, fault }];
        let report = run_with(seed, "list-append", Some(rules));
        lost += report.counts.given_up;
        retreated += report.counts.mark("geogauss.retreated");
    }
    assert!(lost > 0 && retreated > 0, "{lost} lost, {retreated} times");
}

/// The final rows of these workloads show how many transactions have committed. So what a node
/// tells of its acknowledged commits must be exact, if it has not stopped since.
#[test]
fn a_node_tells_which_of_its_acknowledged_commits_are_lost_and_of_no_others() {
    let mut told = 0;
    for workload in ["smallbank", "tallies", "tpcc", "ycsb-a"] {
        for seed in 1_000..1_010 {
            let away = (seed % 3) as u16;
            let others = (0..3).filter(|node| *node != away).collect();
            let fault = Fault::Cut { from: vec![away], to: others, one_way: true };
            let rules = vec![Rule { at_ms: 500, lasts_ms: 1_500, fault }];
            let report = run_with(seed, workload, Some(rules));
            told += report.counts.mark("geogauss.acknowledged_lost");
            run_with(seed, workload, None);
        }
    }
    assert!(told > 0, "no commit was lost");
}

#[test]
fn replicas_do_not_differ_whatever_is_lost() {
    for workload in ["list-append", "bank", "ranges", "register", "long-fork"] {
        for seed in 1_000..1_010 {
            run_with(seed, workload, None);
        }
    }
}

#[test]
fn drawn_runs_with_early_epochs_are_clean() {
    for seed in 6_000..6_040 {
        let (settings, options) = drawn(seed);
        let settings = Settings { duration: Span::from_ms(4_000), ..settings };
        clean::<GeoGauss>(&settings, &Options { ack: Ack::Merged, ..options });
    }
}

/// Runs with a cache for each replica.
fn run_cached(seed: u64, workload: &str, rules: Option<Vec<Rule>>) -> Report {
    let faults = if rules.is_some() { Vec::new() } else { FaultKind::ALL.to_vec() };
    let settings = Settings { faults, rules, caches: 1, ..settings(seed, workload) };
    clean::<GeoGauss>(&settings, &cached())
}

#[test]
fn what_is_in_a_cache_survives_the_removal_of_its_replica() {
    let (mut asked, mut found) = (0, 0);
    for seed in 1_000..1_020 {
        let report = clean::<GeoGauss>(&mute(seed, "list-append"), &cached());
        assert_eq!(report.counts.given_up, 0, "{report}");
        asked += report.counts.mark("geogauss.caches_asked");
        found += report.counts.mark("geogauss.batch_of_cache");
    }
    assert!(asked > 0 && found > 0, "{asked} times, {found} batches");
}

/// It comes back without its disk, and its cache has what nobody else has.
#[test]
fn what_is_in_a_cache_survives_the_disk_of_its_replica() {
    for seed in 1_000..1_015 {
        let away = (seed % 3) as u16;
        let mut cut = mute(seed, "list-append").rules.unwrap().remove(0);
        cut.lasts_ms = 120;
        let fault = Fault::DiskLoss { node: Target::Node(away) };
        let loss = Rule { at_ms: 600, lasts_ms: 300, fault };
        let report = run_cached(seed, "list-append", Some(vec![cut, loss]));
        assert_eq!(report.counts.given_up, 0, "{report}");
    }
}

#[test]
fn with_a_region_the_acknowledgements_of_its_cache_can_be_lost() {
    let mut lost = 0;
    for seed in 1_000..1_020 {
        let away = (seed % 3) as u16;
        let others = (0..3).filter(|node| *node != away).collect();
        // The cache is cut off, too.
        let fault = Fault::Cut { from: vec![away], to: others, one_way: true };
        let rules = vec![Rule { at_ms: 500, lasts_ms: 3_500, fault }];
        lost += run_cached(seed, "list-append", Some(rules)).counts.given_up;
    }
    assert!(lost > 0, "no acknowledgement was lost");
}

#[test]
fn caches_that_fail_harm_nobody() {
    for workload in ["list-append", "bank", "ranges", "register", "long-fork"] {
        for seed in 1_000..1_010 {
            run_cached(seed, workload, None);
        }
    }
}

#[test]
fn drawn_runs_with_caches_are_clean() {
    for seed in 7_000..7_040 {
        let (settings, options) = drawn(seed);
        let duration = Span::from_ms(4_000);
        let settings = Settings { caches: 1 + (seed % 2) as usize, duration, ..settings };
        clean::<GeoGauss>(&settings, &Options { ack: Ack::Cached, ..options });
    }
}
