//! Tiga while two nodes do not hear each other, and the others hear both: everybody goes on.

use std::collections::BTreeMap;

use pangea_core::ids::NodeId;
use pangea_core::time::{Span, Timestamp};
use pangea_protocols::tiga::Tiga;
use pangea_sim::Report;
use pangea_sim::history::End;

use crate::runs::clean;
use crate::tiga_drawn::{CUT_AT_MS, cut_between, cut_divided};

/// By then the nodes have noticed that a link is lost, and other leaders lead if that is needed.
const PATIENCE: Span = Span::from_ms(3_000);

/// The longest time in which no client of a node that began an operation in it got an answer, while
/// a link was cut.
fn longest_wait(report: &Report, nodes: usize) -> (Span, NodeId) {
    let begin = report.history.operations.iter().map(|it| it.invoked).min().unwrap_or_default();
    let ends = begin + report.settings.duration;
    let from = begin + Span::from_ms(CUT_AT_MS);
    let mut answered: BTreeMap<NodeId, Vec<Timestamp>> = BTreeMap::new();
    for operation in &report.history.operations {
        if let (End::Committed { .. }, Some(ended)) = (&operation.end, operation.ended) {
            answered.entry(operation.node).or_default().push(ended);
        }
    }
    let of = |node: NodeId| {
        let mut times: Vec<Timestamp> = answered.remove(&node).unwrap_or_default();
        times.retain(|at| (from..ends).contains(at));
        times.extend([from, ends]);
        times.sort_unstable();
        let pauses = times.windows(2).map(|pair| pair[1].since(pair[0]));
        (pauses.max().unwrap_or_default(), node)
    };
    (0..nodes as u16).map(NodeId).map(of).max().unwrap_or_default()
}

/// Cuts the link of each pair of nodes, in both directions or also in each one.
fn all_go_on((nodes, shards): (u16, u16), directions: &[bool]) {
    let all = nodes * shards;
    for (a, b) in (0..all).flat_map(|a| (0..all).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        for one_way in directions.iter().copied() {
            if !one_way && a > b {
                continue;
            }
            let seed = u64::from(1_000 * a + 10 * b) + u64::from(one_way);
            let (settings, options) = cut_between(seed, (nodes, shards), (a, b), one_way);
            let report = clean::<Tiga>(&settings, &options);
            let (wait, node) = longest_wait(&report, all.into());
            assert!(wait < PATIENCE, "from {a} to {b}: {node} has waited for {wait}: {report}");
        }
    }
}

#[test]
fn three_replicas_go_on_without_any_one_link() {
    all_go_on((3, 1), &[false, true]);
}

#[test]
fn five_replicas_go_on_without_any_one_link() {
    all_go_on((5, 1), &[false]);
}

#[test]
fn two_shards_go_on_without_any_one_link() {
    all_go_on((3, 2), &[false, true]);
}

#[test]
fn a_follower_without_its_leader_gets_the_log_from_one_that_lacks_transactions() {
    let mut handed_on = 0;
    for seed in 0..10 {
        let (settings, options) = cut_divided(seed);
        handed_on += clean::<Tiga>(&settings, &options).counts.mark("tiga.log_handed_on");
    }
    assert!(handed_on > 0, "no log was handed on");
}
