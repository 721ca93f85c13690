//! Calvin with asynchronous replication: early answers of a master remain valid, unless another
//! replica becomes master.

use crate::runs::clean;
use pangea_core::ids::NodeId;
use pangea_core::time::Span;
use pangea_protocols::calvin::{Calvin, Checkpoints, Options, Replication};
use pangea_sim::faults::{Fault, Role, Rule, Target};
use pangea_sim::history::{CallKind, End};
use pangea_sim::{RealTime, Settings, drawn, run};

fn settings(seed: u64, workload: &str) -> Settings {
    let (workload, duration) = (workload.to_owned(), Span::from_ms(5_000));
    Settings { seed, workload, duration, real_time: RealTime::Ordered, ..Settings::default() }
}

fn options() -> Options {
    let replication = Replication::Asynchronous;
    Options { replication, checkpoint_bytes: 200_000, ..Options::default() }
}

/// Settings with only these faults.
fn quiet(settings: Settings, rules: Vec<Rule>) -> Settings {
    Settings { faults: Vec::new(), rules: Some(rules), ..settings }
}

#[test]
fn what_is_not_given_up_is_strictly_serializable_under_faults() {
    let (mut given_up, mut retreated, mut restored) = (0, 0, 0);
    for workload in ["list-append", "bank", "ranges", "register"] {
        for seed in 1_000..1_010 {
            let report = clean::<Calvin>(&settings(seed, workload), &options());
            given_up += report.counts.given_up;
            retreated += report.counts.mark("calvin.retreated");
            restored += report.counts.mark("calvin.early_cuts_again");
        }
    }
    assert!(given_up > 0 && retreated > 0, "{given_up} discarded, {retreated} times");
    assert!(restored > 0, "restarted masters find the epochs that they ran");
}

/// This mode may lose transactions at a failover, and at no other time.
#[test]
fn without_a_failover_nothing_is_given_up_and_everybody_is_answered() {
    for (workload, nodes) in [("list-append", 3), ("bank", 3), ("register", 5), ("tpcc", 2)] {
        for seed in 1_000..1_005 {
            let settings = Settings { nodes, ..settings(seed, workload) };
            let report = clean::<Calvin>(&quiet(settings, Vec::new()), &options());
            let counts = &report.counts;
            assert_eq!(
                (counts.given_up, counts.pins_lost, counts.ambiguous),
                (0, 0, 0),
                "{report}"
            );
            assert!(report.counts.mark("calvin.early_confirmed") > 0, "{report}");
            assert!(report.counts.mark("calvin.taken") > 0, "others forward requests: {report}");
        }
    }
}

/// A master that restarts soon finds the transactions that it has acknowledged on its disk, and
/// proposes them again. If no other replica took over in the meantime, none is lost: the checkers
/// excuse no loss then.
#[test]
fn a_master_that_crashes_and_is_soon_back_loses_nothing() {
    let (mut again, mut whole) = (0, 0);
    for seed in 0..120 {
        let node = Target::Role(Role::Coordinator);
        let crash = |at: u64| {
            let fault = Fault::Crash { node, after_effects: 7 * at + seed % 12 };
            Rule { at_ms: 400 * at, lasts_ms: 30, fault }
        };
        let rules = (1..10).map(crash).collect();
        let report = clean::<Calvin>(&quiet(settings(seed, "list-append"), rules), &options());
        assert!(report.counts.crashes > 5, "{report}");
        whole += u64::from(report.counts.given_up == 0);
        again += report.counts.mark("calvin.early_cuts_again");
    }
    assert!(again > 100, "{again} times a master led again, and its cuts could still be decided");
    // If another replica has taken over, it is not deposed again. In three of four runs none does.
    assert!(whole >= 80, "in {whole} of 120 runs no other replica took over");
}

/// The master is cut off for long, continues alone up to the limit of early cuts, and rejoins the
/// others, which have made progress. Then it is asked to lead again.
#[test]
fn a_master_that_is_cut_off_gives_up_what_nobody_else_has_and_takes_over_again() {
    for seed in 0..6 {
        let fault = Fault::Cut { from: vec![0], to: vec![1, 2], one_way: false };
        let rules = vec![Rule { at_ms: 1_000, lasts_ms: 4_000, fault }];
        let settings = Settings { duration: Span::from_ms(12_000), ..settings(seed, "register") };
        let report = clean::<Calvin>(&quiet(settings, rules), &options());
        assert!(report.counts.given_up > 0, "its clients were answered: {report}");
        assert!(report.counts.mark("calvin.retreated") > 0, "{report}");
        assert!(
            report.counts.mark("calvin.yielded") > 0,
            "the other master transfers mastership: {report}"
        );
        let at_master = report.history.operations.iter().filter(|it| it.node == NodeId(0));
        let late = at_master.filter(|it| it.invoked.us > 9_000_000).count();
        assert!(late > 0, "the master serves clients again: {report}");
    }
}

/// Returns the median latency of writes of clients in the master's region, in µs.
fn median_at_master(replication: Replication, shards: u16) -> u64 {
    let far = vec![vec![0, 100, 100], vec![100, 0, 100], vec![100, 100, 0]];
    let of_shards = Settings { shards, ..settings(3, "bank") };
    let settings = Settings { one_way: Some(far), clients_per_node: 12, ..of_shards };
    let report =
        clean::<Calvin>(&quiet(settings, Vec::new()), &Options { replication, ..options() });
    let writes = report.history.operations.iter().filter(|it| {
        let is_committed = matches!(it.end, End::Committed { .. });
        is_committed && it.how == CallKind::Ordered && it.node.0 < shards && it.call.label != "load"
    });
    let wait = |it: &pangea_sim::history::Operation| Some(it.ended?.since(it.invoked).us);
    let writes = writes.filter(|it| !it.call.is_read_only);
    let mut waits: Vec<u64> = writes.filter_map(wait).collect();
    waits.sort_unstable();
    assert!(waits.len() > 20, "{report}");
    waits[waits.len() / 2]
}

/// Figure 2 of the paper, as one assertion.
#[test]
fn the_master_answers_without_a_round_trip_to_other_regions() {
    for shards in [1, 2] {
        let synchronous = median_at_master(Replication::Synchronous, shards);
        let asynchronous = median_at_master(Replication::Asynchronous, shards);
        assert!(synchronous > 200_000, "a round trip takes 200 ms: {synchronous} us");
        assert!(asynchronous < 80_000, "{asynchronous} us, {shards} shards");
    }
}

#[test]
fn a_run_is_the_same_each_time() {
    let run = || clean::<Calvin>(&settings(4, "list-append"), &options());
    let (first, again) = (run(), run());
    assert_eq!((first.digest, first.events), (again.digest, again.events), "{first}");
    assert_eq!(first.history, again.history);
}

/// Seed 1698: a former leader, which had not been notified of its successor, took a checkpoint. It
/// continued to number its cuts by its own log of agreement, which differed from that of the
/// others.
#[test]
fn a_stale_master_does_not_go_on_with_its_old_log() {
    let (settings, options) = drawn::<Calvin>(1_698);
    let (replication, checkpoints) = (Replication::Asynchronous, Checkpoints::Versions);
    let options = Options { replication, checkpoints, ..options };
    clean::<Calvin>(&Settings { shards: 1, is_drawn: false, ..settings }, &options);
}

/// Seed 466: a replica rolled back, and then ran epochs of the same master term that it had known
/// before. It did not report the term again, and its answers counted as discarded.
#[test]
fn a_replica_that_went_back_says_whose_its_versions_are() {
    let (settings, options) = drawn::<Calvin>(466);
    let options = Options { replication: Replication::Asynchronous, ..options };
    clean::<Calvin>(&Settings { shards: 1, is_drawn: false, ..settings }, &options);
}

#[test]
fn a_master_of_a_region_that_there_is_not_is_refused() {
    let options = Options { master_region: "nowhere".to_owned(), ..options() };
    let why = run::<Calvin>(&settings(1, "bank"), &options).unwrap_err();
    assert!(why.contains("\"nowhere\""), "{why}");
}

/// Two shards, each with a master of its own.
fn divided(seed: u64, workload: &str) -> Settings {
    Settings { shards: 2, ..settings(seed, workload) }
}

#[test]
fn divided_tables_are_strictly_serializable_but_for_what_is_given_up() {
    let (mut given_up, mut went_back, mut void) = (0, 0, 0);
    for workload in ["list-append", "bank", "ranges", "register", "write-skew"] {
        for seed in 1_000..1_006 {
            let report = clean::<Calvin>(&divided(seed, workload), &options());
            assert!(report.counts.mark("calvin.served") > 0, "{report}");
            given_up += report.counts.given_up;
            went_back += report.counts.mark("calvin.went_back");
            void += report.counts.mark("calvin.slice_void");
        }
    }
    assert!(given_up > 0 && went_back > 0 && void > 0, "{given_up}, {went_back}, {void}");
}

#[test]
fn divided_tables_give_nothing_up_without_a_failover() {
    for (workload, nodes, shards) in [("list-append", 3, 2), ("bank", 3, 3), ("tpcc", 2, 2)] {
        for seed in 1_000..1_004 {
            let settings = Settings { nodes, shards, ..settings(seed, workload) };
            let report = clean::<Calvin>(&quiet(settings, Vec::new()), &options());
            let counts = &report.counts;
            assert_eq!((counts.given_up, counts.ambiguous), (0, 0), "{report}");
            for mark in ["calvin.early_slice", "calvin.early_confirmed", "calvin.taken"] {
                assert!(report.counts.mark(mark) > 0, "{mark}: {report}");
            }
        }
    }
}

/// One shard's master, cut off from all other regions, continues with the node of the other shard
/// in its region up to the limit of early cuts. Then another replica becomes master, and the node
/// of the other shard must roll back too, although its own master was not deposed.
#[test]
fn a_neighbour_goes_back_with_a_master_that_is_deposed() {
    let mut void = 0;
    for seed in 0..4 {
        let fault = Fault::Cut { from: vec![0], to: vec![2, 3, 4, 5], one_way: false };
        let rules = vec![Rule { at_ms: 1_500, lasts_ms: 4_000, fault }];
        let settings = Settings { duration: Span::from_ms(10_000), ..divided(seed, "register") };
        let report = clean::<Calvin>(&quiet(settings, rules), &options());
        assert!(report.counts.given_up > 0, "its clients were answered: {report}");
        for mark in ["calvin.early_given_up", "calvin.slice_void", "calvin.went_back"] {
            assert!(report.counts.mark(mark) > 0, "{mark}: {report}");
        }
        void += report.counts.mark("calvin.items_of_another_line");
    }
    assert!(void > 0, "no rows of void slices were received");
}

/// The whole region of both masters is cut off, and rejoins the others, which have made progress.
#[test]
fn a_region_of_masters_that_is_cut_off_gives_up_what_nobody_else_has() {
    for seed in 0..4 {
        let fault = Fault::Cut { from: vec![0, 1], to: vec![2, 3, 4, 5], one_way: false };
        let rules = vec![Rule { at_ms: 1_500, lasts_ms: 4_000, fault }];
        let settings = Settings { duration: Span::from_ms(12_000), ..divided(seed, "bank") };
        let report = clean::<Calvin>(&quiet(settings, rules), &options());
        assert!(report.counts.given_up > 0, "{report}");
        assert!(report.counts.mark("calvin.went_back") > 0, "{report}");
        assert!(
            report.counts.mark("calvin.yielded") > 0,
            "the replicas are requested to lead again: {report}"
        );
        let late = |it: &&pangea_sim::history::Operation| {
            it.node.0 < 2 && it.invoked.us > 9_000_000 && it.ended.is_some()
        };
        assert!(report.history.operations.iter().any(|it| late(&it)), "{report}");
    }
}

/// The node of the other shard has run epochs that only the master's disk had, and the master
/// recovers them.
#[test]
fn a_master_of_a_shard_that_crashes_and_is_soon_back_loses_nothing() {
    let (mut again, mut whole) = (0, 0);
    for seed in 0..10 {
        let node = Target::Node(u16::from(seed % 2 == 0));
        let crash = |at: u64| {
            let fault = Fault::Crash { node, after_effects: 7 * at + seed };
            Rule { at_ms: 1_000 + 400 * at, lasts_ms: 30, fault }
        };
        let settings = divided(seed, "list-append");
        let report = clean::<Calvin>(&quiet(settings, (1..8).map(crash).collect()), &options());
        assert!(report.counts.crashes > 4, "{report}");
        whole += u64::from(report.counts.given_up == 0);
        again += report.counts.mark("calvin.early_cuts_again");
    }
    assert!(again > 5, "{again} times a master led again, and its cuts could still be decided");
    assert!(whole >= 4, "in {whole} of 10 runs no other replica took over");
}

/// The region continues without its master, which is lost with its disk.
#[test]
fn a_master_of_a_shard_may_be_lost_for_good() {
    for seed in 0..4 {
        let fault = Fault::Destroy { node: Target::Node(0) };
        let rules = vec![Rule { at_ms: 2_000, lasts_ms: 1_000, fault }];
        let settings = Settings { duration: Span::from_ms(8_000), ..divided(seed, "bank") };
        let report = clean::<Calvin>(&quiet(settings, rules), &options());
        let late = |it: &&pangea_sim::history::Operation| {
            it.node == NodeId(1) && it.invoked.us > 7_000_000 && it.ended.is_some()
        };
        assert!(report.history.operations.iter().any(|it| late(&it)), "{report}");
    }
}

#[test]
fn a_run_with_divided_tables_is_the_same_each_time() {
    let run = || clean::<Calvin>(&divided(4, "list-append"), &options());
    let (first, again) = (run(), run());
    assert_eq!((first.digest, first.events), (again.digest, again.events), "{first}");
    assert_eq!(first.history, again.history);
}
