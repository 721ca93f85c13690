//! Stragglers delay other nodes only within bounds and are named in errors of refused requests, and
//! service resumes once they have caught up.

use crate::runs::clean;
use pangea_core::ids::NodeId;
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::Abort;
use pangea_protocols::calvin::{Calvin, Options};
use pangea_sim::faults::{Fault, PROCESSOR_TIMES_MAX, Rule, Target};
use pangea_sim::history::{End, Operation};
use pangea_sim::{Report, Settings};

/// The maximum lag of a group, log or node in epochs: the limit of 256, plus the inaccuracy of
/// progress reports, which arrive a few times a second.
const BEHIND_MAX: u64 = 256 + 64;

/// There are enough clients for a request in most epochs, even if waiting clients stop waiting.
fn settings(shards: u16, rules: Vec<Rule>) -> Settings {
    Settings {
        seed: 5,
        workload: "bank".to_owned(),
        shards,
        accounts: 50,
        clients_per_node: 120,
        duration: Span::from_ms(15_000),
        faults: Vec::new(),
        rules: Some(rules),
        one_way_max: Span::from_ms(20),
        ..Settings::default()
    }
}

/// The disks of these nodes are stuck for 10 s.
fn stuck(nodes: &[u16]) -> Vec<Rule> {
    let fault = |node| Fault::StuckDisk { node: Target::Node(node) };
    nodes.iter().map(|&node| Rule { at_ms: 1_000, lasts_ms: 10_000, fault: fault(node) }).collect()
}

/// Returns the requests that were refused because a node is too far behind.
fn refused(report: &Report) -> Vec<(&Operation, &Abort)> {
    let mut refused = Vec::new();
    for operation in &report.history.operations {
        if let End::Aborted(abort) = &operation.end
            && abort.code.as_str() == "53000"
        {
            refused.push((operation, abort));
        }
    }
    refused
}

/// Returns the node that is named, and its lag in epochs.
fn named(abort: &Abort) -> (NodeId, u64) {
    let between = |before: &str, after: &str| {
        let (_, rest) = abort.message.split_once(before).expect(before);
        rest.split_once(after).expect(after).0.parse::<u64>().expect("a number")
    };
    (NodeId(between("(node ", ")") as u16), between("which is ", " epochs behind"))
}

/// Returns the time some seconds after the end of the last fault.
fn recovered(report: &Report) -> Timestamp {
    let clients = report.settings.nodes * report.settings.clients_per_node;
    // Clients with higher numbers load the initial data.
    let all = report.history.operations.iter().filter(|it| it.client < clients);
    let begun = all.map(|it| it.invoked).min().expect("clients sent requests");
    begun + Span::from_ms(14_000)
}

/// Asserts that requests were refused only at nodes `at`, and that each error names one of the
/// nodes `slow`.
fn are_named(report: &Report, at: &[u16], slow: &[u16], what: &[&str]) {
    let (refused, recovered) = (refused(report), recovered(report));
    assert!(refused.len() > 100, "{} were refused: {report}", refused.len());
    for (operation, abort) in &refused {
        let (node, epochs) = named(abort);
        assert!(at.contains(&operation.node.0), "{} refuses: {abort}", operation.node);
        assert!(slow.contains(&node.0), "{abort}");
        assert!(what.iter().any(|what| abort.message.ends_with(what)), "{abort}");
        assert!((256..=BEHIND_MAX).contains(&epochs), "{abort}");
        assert!(operation.invoked < recovered, "all requests are answered: {abort}");
    }
    let is_after = |it: &&Operation| it.invoked >= recovered;
    let is_committed = |it: &&Operation| matches!(it.end, End::Committed { .. });
    let after = report.history.operations.iter().filter(is_after).filter(is_committed);
    assert!(after.count() > 300, "{report}");
}

/// No epoch of the other shard can run without the requests that this shard has sequenced.
#[test]
fn a_shard_that_is_slow_as_a_whole_is_named_by_the_others_which_are_not_far_ahead() {
    let report = clean::<Calvin>(&settings(2, stuck(&[1, 3, 5])), &Options::default());
    assert!(report.counts.mark("inputs.waits_for_others") > 0, "{report}");
    // Nodes of the shard itself may name its coordinator.
    let all = [0, 1, 2, 3, 4, 5];
    let what = ["slices", "rows", "results", "cuts", "acknowledgements"];
    are_named(&report, &all, &[1, 3, 5], &what);
}

#[test]
fn replicas_that_acknowledge_nothing_are_named_by_the_one_that_waits_for_them() {
    let report = clean::<Calvin>(&settings(1, stuck(&[1, 2])), &Options::default());
    are_named(&report, &[0], &[1, 2], &["acknowledgements"]);
}

/// A replica whose processor and links are slow reports every 100 ms that it is alive.
fn with_a_slow_replica(seed: u64, behind_bytes: u64) -> Report {
    let options = Options { behind_bytes, ..Options::default() };
    // Its batches arrive one by one, as its cuts do.
    let narrow = |peer| Fault::NarrowLink { between: [peer, 1], bytes_per_ms: 10 };
    let slow = Fault::SlowProcessor { node: Target::Node(1), times: PROCESSOR_TIMES_MAX };
    let rule = |fault| Rule { at_ms: 1_000, lasts_ms: 12_000, fault };
    let rules = [slow, narrow(0), narrow(2)].map(rule).to_vec();
    clean::<Calvin>(&Settings { seed, ..settings(1, rules) }, &options)
}

/// How much is retained depends on the load of each seed, because nobody is removed before it is
/// some seconds behind. So a run with a limit is compared with one of the same seed without.
#[test]
fn a_replica_that_runs_slowly_for_long_is_removed_and_the_others_hold_less() {
    let retained = |report: &Report| {
        let of_node = &report.counts.batch_bytes_max;
        of_node[&0].max(of_node[&2])
    };
    let (mut limited, mut unlimited) = (0, 0);
    for seed in [2, 3, 6] {
        let report = with_a_slow_replica(seed, 20_000);
        assert!(report.counts.mark("inputs.remove_straggler") > 0, "{report}");
        assert_eq!(report.counts.mark("inputs.remove_replica"), 0, "it is not silent: {report}");
        assert!(report.counts.mark("inputs.readmit_replica") > 0, "{report}");
        assert!(report.counts.committed > 10_000, "the other nodes continue: {report}");
        limited += retained(&report);
        let report = with_a_slow_replica(seed, 1 << 30);
        assert_eq!(report.counts.mark("inputs.remove_straggler"), 0, "{report}");
        unlimited += retained(&report);
    }
    assert!(limited < unlimited, "{limited} bytes with a limit, {unlimited} without");
}

/// One slow replica of three, or one shard's slow node of a region, blocks no other node.
#[test]
fn nobody_is_refused_for_one_slow_node() {
    for shards in [1, 2] {
        let report = clean::<Calvin>(&settings(shards, stuck(&[1])), &Options::default());
        assert_eq!(refused(&report).len(), 0, "{report}");
    }
}
