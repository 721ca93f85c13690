//! Nodes that are slow hold the others back within bounds, are named to clients that are refused,
//! and all goes on when they have caught up.

use crate::runs::clean;
use pangea_core::ids::NodeId;
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::Abort;
use pangea_protocols::calvin::{Calvin, Options};
use pangea_sim::faults::{Fault, PROCESSOR_TIMES_MAX, Rule, Target};
use pangea_sim::history::{End, Operation};
use pangea_sim::{Report, Settings};

/// No group, no log and no node is waited for that is further behind, but for what is told of it a
/// few times a second.
const BEHIND_MAX: u64 = 256 + 64;

/// So many clients that there is a request in most epochs, also when those that wait give up.
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

/// For 10 s nothing gets to the disks of these nodes.
fn stuck(nodes: &[u16]) -> Vec<Rule> {
    let fault = |node| Fault::StuckDisk { node: Target::Node(node) };
    nodes.iter().map(|&node| Rule { at_ms: 1_000, lasts_ms: 10_000, fault: fault(node) }).collect()
}

/// Requests that were refused, as some node is too far behind.
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

/// The node that is named, and how far behind it is.
fn named(abort: &Abort) -> (NodeId, u64) {
    let between = |before: &str, after: &str| {
        let (_, rest) = abort.message.split_once(before).expect(before);
        rest.split_once(after).expect(after).0.parse::<u64>().expect("a number")
    };
    (NodeId(between("(node ", ")") as u16), between("which is ", " epochs behind"))
}

/// When the last of the faults was over, and some seconds more.
fn recovered(report: &Report) -> Timestamp {
    let clients = report.settings.nodes * report.settings.clients_per_node;
    // Those after them load what is there before.
    let all = report.history.operations.iter().filter(|it| it.client < clients);
    let begun = all.map(|it| it.invoked).min().expect("clients asked for something");
    begun + Span::from_ms(14_000)
}

/// Asserts that those who were refused were told of one of these nodes, at these.
fn are_named(report: &Report, at: &[u16], slow: &[u16], what: &[&str]) {
    let (refused, recovered) = (refused(report), recovered(report));
    assert!(refused.len() > 100, "{} were refused: {report}", refused.len());
    for (operation, abort) in &refused {
        let (node, epochs) = named(abort);
        assert!(at.contains(&operation.node.0), "{} refuses: {abort}", operation.node);
        assert!(slow.contains(&node.0), "{abort}");
        assert!(what.iter().any(|what| abort.message.ends_with(what)), "{abort}");
        assert!((256..=BEHIND_MAX).contains(&epochs), "{abort}");
        assert!(operation.invoked < recovered, "all goes on: {abort}");
    }
    let is_after = |it: &&Operation| it.invoked >= recovered;
    let is_committed = |it: &&Operation| matches!(it.end, End::Committed { .. });
    let after = report.history.operations.iter().filter(is_after).filter(is_committed);
    assert!(after.count() > 300, "{report}");
}

/// No epoch of the other shard goes on without what this one has sequenced.
#[test]
fn a_shard_that_is_slow_as_a_whole_is_named_by_the_others_which_are_not_far_ahead() {
    let report = clean::<Calvin>(&settings(2, stuck(&[1, 3, 5])), &Options::default());
    assert!(report.counts.mark("inputs.waits_for_others") > 0, "{report}");
    // Nodes of the shard itself may name the one that coordinates it.
    let all = [0, 1, 2, 3, 4, 5];
    are_named(&report, &all, &[1, 3, 5], &["slices", "rows", "results", "cuts"]);
}

#[test]
fn replicas_that_acknowledge_nothing_are_named_by_the_one_that_waits_for_them() {
    let report = clean::<Calvin>(&settings(1, stuck(&[1, 2])), &Options::default());
    are_named(&report, &[0], &[1, 2], &["acknowledgements"]);
}

/// It told the others every 100 ms that it was there, and they kept for it what it had not run.
#[test]
fn a_replica_that_runs_slowly_for_long_is_removed_and_the_others_hold_little() {
    const BEHIND_BYTES: u64 = 20_000;
    let options = Options { behind_bytes: BEHIND_BYTES, ..Options::default() };
    // Its batches come one by one, as its cuts do.
    let narrow = |peer| Fault::NarrowLink { between: [peer, 1], bytes_per_ms: 10 };
    let slow = Fault::SlowProcessor { node: Target::Node(1), times: PROCESSOR_TIMES_MAX };
    let rule = |fault| Rule { at_ms: 1_000, lasts_ms: 12_000, fault };
    let rules = [slow, narrow(0), narrow(2)].map(rule).to_vec();
    let report = clean::<Calvin>(&settings(1, rules), &options);
    let held = &report.counts.batch_bytes_max;
    assert!(held[&0].max(held[&2]) < 10 * BEHIND_BYTES, "{held:?}: {report}");
    assert!(report.counts.mark("inputs.remove_straggler") > 0, "{report}");
    assert_eq!(report.counts.mark("inputs.remove_replica"), 0, "it is not silent: {report}");
    assert!(report.counts.mark("inputs.readmit_replica") > 0, "{report}");
    let committed = report.counts.committed;
    assert!(committed > 10_000, "the others go on: {report}");
}

/// One replica of three, and one shard's node of a region, stop nobody.
#[test]
fn nobody_is_refused_for_one_slow_node() {
    for shards in [1, 2] {
        let report = clean::<Calvin>(&settings(shards, stuck(&[1])), &Options::default());
        assert_eq!(refused(&report).len(), 0, "{report}");
    }
}
