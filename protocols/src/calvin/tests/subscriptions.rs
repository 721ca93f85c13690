//! The subscriptions of nodes of another shard: what they are told besides slices and results.

use super::super::options::Replication;
use super::super::shards::{Outbound, Shards};
use super::*;

/// The node of the other shard in the same region.
const OTHER: NodeId = NodeId(1);

/// A node of the first of two shards, with asynchronous replication.
fn start() -> Node {
    let topology = Topology::one_node_per_region("t", &["a", "b"], Span::from_ms(1));
    let topology = topology.divided(Partitions::new(2, Rule::Hash { prefix_bytes: 8 }));
    let options = Options { replication: Replication::Asynchronous, ..Options::default() };
    Node::start_in(topology, Vec::new(), "append", &options).0
}

fn shards(node: &mut Node) -> &mut Shards {
    node.calvin.state.shards.as_mut().expect("tables are partitioned")
}

fn outbound(node: &mut Node) -> &mut Outbound {
    let stream = shards(node).streams.get_mut(&ShardId(1));
    &mut stream.expect("each other shard has a stream").outbound
}

/// The messages to a node that subscribes and has all slices and results up to these epochs.
fn subscribe(node: &mut Node, slices: u64, results: u64, is_continued: bool) -> Vec<Message> {
    let (slices, results) = (SnapshotVersion(slices), SnapshotVersion(results));
    let message = Message::Subscribe { slices, results, is_continued };
    let did = node.step(Input::Message { from: OTHER, message });
    did.sent.into_iter().filter(|(to, _)| *to == OTHER).map(|(_, message)| message).collect()
}

/// Outcomes of a transaction may be missing long after the slices of its epoch have arrived. Their
/// receiver would wait for them, and not take a checkpoint.
/// Calvin §3.2, phase 3: participants wait for the rows of others.
#[test]
fn a_node_is_told_that_its_slices_or_its_results_are_retained_no_more() {
    let mut node = start();
    outbound(&mut node).dropped = SnapshotVersion(4);
    let mut is_told = |slices, results| {
        let told = Message::Truncated { upto: SnapshotVersion(4) };
        subscribe(&mut node, slices, results, false).contains(&told)
    };
    assert!(!is_told(4, 4) && !is_told(5, 5));
    assert!(is_told(3, 3));
    assert!(is_told(5, 3), "a result of epoch 4 is missing");
    assert!(is_told(3, 5), "the slice of epoch 4 is missing");
}

/// Subscribers learn once that slices which were sent early are decided. A node whose backlog is
/// sent some messages at a time is no subscriber in between.
/// Calvin §3.1.1: the master sends its batches before they are agreed on.
#[test]
fn a_node_learns_behind_its_backlog_what_was_decided_meanwhile() {
    const LAST: SnapshotVersion = SnapshotVersion(9);
    let mut node = start();
    let cut = node.cut_of_own_code();
    shards(&mut node).message_bytes = 8;
    for epoch in (1..=LAST.0).map(SnapshotVersion) {
        let slice = Slice::new(epoch, ShardId(0), cut, Vec::new()).with_decided(false);
        outbound(&mut node).slices.insert(epoch, slice);
        shards(&mut node).records.insert(epoch, LogPosition(epoch.0));
    }
    let has_more = |messages: &[Message]| messages.contains(&Message::Resubscribe {});
    let mut messages = subscribe(&mut node, 0, 0, false);
    assert!(has_more(&messages));
    outbound(&mut node).slices.values_mut().for_each(|slice| slice.is_decided = true);
    let decided = Message::SlicesDecided { upto: LAST, name: cut.name };
    while has_more(&messages) {
        assert!(!messages.contains(&decided), "later slices may replace earlier ones");
        messages = subscribe(&mut node, 0, 0, true);
    }
    assert_eq!(messages.last(), Some(&decided));
}
