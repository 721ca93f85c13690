//! Which replicas a coordinator removes and readmits.

use super::super::Timer;
use super::*;

/// The replicas that the first of three readmits, itself at the start, if the third is not a
/// member, and the others have reported these epochs.
fn readmitted(applied: [u64; 3]) -> Vec<NodeId> {
    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    for peer in [1, 2] {
        node.step(Input::PeerUp(NodeId(peer)));
    }
    let mut readmitted = Vec::new();
    node.act(|calvin, cx| {
        let inputs = &mut calvin.state.inputs;
        inputs.cut.is_member[2] = false;
        inputs.collection.applied = applied.map(SnapshotVersion).to_vec();
        readmitted = inputs.membership_changes(cx).1;
    });
    readmitted
}

/// A coordinator may be behind itself. What counts is the replica that has run the most.
#[test]
fn a_replica_is_readmitted_when_it_is_not_far_behind_the_most_advanced_one() {
    assert_eq!(readmitted([0, 900, 836]), [NodeId(2)]);
    assert_eq!(readmitted([0, 900, 835]), []);
    assert_eq!(readmitted([0, 0, 900]), [NodeId(2)], "it is the most advanced one");
    assert_eq!(readmitted([5, 900, 5]), [], "the coordinator is behind, too");
}

/// Story: a removed replica that was on its way back reported to the other shards what the members
/// had persisted. Its neighbour then dropped messages that it was missing itself.
#[test]
fn a_replica_that_is_no_member_reports_no_more_than_it_has() {
    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
    let topology = topology.divided(Partitions::new(2, Rule::Hash { prefix_bytes: 8 }));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    node.step(Input::PeerUp(NodeId(1)));
    node.act(|calvin, _| {
        let inputs = &mut calvin.state.inputs;
        inputs.cut.is_member[0] = false;
        inputs.collection.durable = vec![SnapshotVersion(9); 3];
    });
    let timer = Timer::Inputs(inputs::Timer::Progress);
    let sent = node.step(Input::Timer(timer)).sent.into_iter();
    let reported = sent.filter_map(|(_, message)| match message {
        Message::ShardProgress { upto, .. } => Some(upto),
        _ => None,
    });
    assert_eq!(reported.collect::<Vec<_>>(), [SnapshotVersion::ZERO]);
}
