//! The replica of another shard from which a node gets its messages, and those that it takes from
//! the others.

use super::super::Timer;
use super::*;

/// The replicas of the other shard: that of the node's own region, and the others.
const OWN: u16 = 1;
const SECOND: u16 = 3;
const THIRD: u16 = 5;

/// A replica that is further behind than this is left: 64 epochs, and those of 10 ms in two
/// intervals of progress reports.
const STRAGGLES: u64 = 64 + 20;

/// A node of the first of two shards in three regions, which has run nothing.
fn start() -> Node {
    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
    let topology = topology.divided(Partitions::new(2, Rule::Hash { prefix_bytes: 8 }));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    for other in [OWN, SECOND, THIRD] {
        node.step(Input::PeerUp(NodeId(other)));
    }
    assert_eq!(source(&node), OWN);
    node
}

fn source(node: &Node) -> u16 {
    node.calvin.state.shards.as_ref().unwrap().streams[&ShardId(1)].inbound.source.0
}

/// The source of a node after these replicas have reported their last epochs.
fn source_after(reports: &[(u16, u64)]) -> u16 {
    let mut node = start();
    for (from, applied) in reports {
        let (upto, applied) = (SnapshotVersion::ZERO, SnapshotVersion(*applied));
        let message = Message::ShardProgress { upto, applied, waits_for: None };
        node.step(Input::Message { from: NodeId(*from), message });
    }
    node.step(Input::Timer(Timer::Inputs(inputs::Timer::Progress)));
    source(&node)
}

/// Calvin §6.2: a slow node makes the other nodes slow, too.
#[test]
fn a_source_is_left_that_is_far_behind_the_others_and_holds_this_node_up() {
    assert_eq!(source_after(&[(OWN, 0), (SECOND, STRAGGLES)]), OWN, "it is not far behind");
    assert_eq!(source_after(&[(OWN, 0), (SECOND, STRAGGLES + 1)]), SECOND);
    assert_eq!(source_after(&[(OWN, 1), (SECOND, 1_000)]), OWN, "it is ahead of this node");
}

/// A frozen source is left for a replica that still has the epochs after those of this node.
#[test]
fn a_replica_that_reported_nothing_or_dropped_no_more_than_this_node_has_run_can_be_a_source() {
    let source_if_dropped = |upto: Option<u64>| {
        let mut node = start();
        if let Some(upto) = upto.map(SnapshotVersion) {
            let message = Message::Truncated { upto };
            node.step(Input::Message { from: NodeId(SECOND), message });
        }
        let message = Message::Frozen { at: SnapshotVersion(9) };
        node.step(Input::Message { from: NodeId(OWN), message });
        source(&node)
    };
    assert_eq!(source_if_dropped(None), SECOND);
    assert_eq!(source_if_dropped(Some(0)), SECOND);
    assert_eq!(source_if_dropped(Some(1)), THIRD, "the first epoch is missing there");
}

/// A slice of a decided cut is the same on all replicas. One of a cut that is not decided may be
/// replaced, and only the source sends the replacement.
#[test]
fn another_replica_than_the_source_brings_only_the_next_slice_that_is_decided() {
    let mut node = start();
    let cut = node.cut_of_own_code();
    let mut upto = |from, epoch, is_decided| {
        let slice = Slice::new(SnapshotVersion(epoch), ShardId(1), cut, Vec::new());
        let message = Message::Slice { slice: slice.with_decided(is_decided) };
        node.step(Input::Message { from: NodeId(from), message });
        let inbound = &node.calvin.state.shards.as_ref().unwrap().streams[&ShardId(1)].inbound;
        (inbound.upto.0, inbound.decided.0)
    };
    assert_eq!(upto(SECOND, 1, false), (0, 0), "it is not decided");
    assert_eq!(upto(SECOND, 2, true), (0, 0), "it is not the next one");
    assert_eq!(upto(SECOND, 1, true), (1, 1));
    assert_eq!(upto(OWN, 2, false), (2, 1));
    assert_eq!(upto(SECOND, 3, true), (2, 1), "it follows one that is not decided");
}

/// The chunks of one replica do not complete those of another, which may have another cut.
#[test]
fn chunks_of_a_slice_are_taken_from_the_source_alone() {
    let mut node = start();
    let cut = node.cut_of_own_code();
    let slice = Slice::new(SnapshotVersion(1), ShardId(1), cut, Vec::new()).with_decided(true);
    let chunks = slice.messages(8);
    assert!(chunks.len() > 1, "it is sent in chunks");
    let mut hear = |from| {
        let mut marks = Vec::new();
        for message in chunks.clone() {
            marks.extend(node.step(Input::Message { from: NodeId(from), message }).marks);
        }
        let inbound = &node.calvin.state.shards.as_ref().unwrap().streams[&ShardId(1)].inbound;
        (inbound.upto.0, marks.contains(&"calvin.slice_after_unsubscribed"))
    };
    assert_eq!(hear(SECOND), (0, true));
    assert_eq!(hear(OWN), (1, false));
}
