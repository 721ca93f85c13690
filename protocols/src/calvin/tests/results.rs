//! The outcome of a transaction that ran on another shard, which may arrive long after its epoch.

use pangea_core::exec::ordered::ShardOutcome;
use pangea_core::txn::{Certified, ReadSet, Write};

use super::super::Timer;
use super::super::shards::remote_results::{RemoteResult, RemoteResults};
use super::*;

/// The shard that runs it, and one that does not participate.
const RUNS: u16 = 1;
const OTHER: u16 = 2;

/// A node of the first of three shards that has run an epoch in which one of its requests is only
/// for the second one; and the messages that it then sends to the others.
fn awaiting() -> (Node, Did) {
    let topology = Topology::one_node_per_region("t", &["eu"], Span::ZERO);
    let topology = topology.divided(Partitions::new(3, Rule::Hash { prefix_bytes: 8 }));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    for other in [RUNS, OTHER] {
        node.step(Input::PeerUp(NodeId(other)));
    }
    let partitions = &node.calvin.state.shards.as_ref().unwrap().partitions;
    let mut keys = (0u8..=255).map(|byte| Key::from(&[byte; 8][..]));
    let key = keys.find(|key| partitions.shard_of(TABLE, key) == Some(ShardId(RUNS))).unwrap();
    let writes = vec![Write { table: TABLE, key, value: Some(Value::copy_from(b"v")) }];
    let certified = Certified { reads: ReadSet::default(), writes, timeline: 0 };
    let request = Request::Commit(Program::Certified(certified));
    node.step(Input::Submit(vec![Submission { ticket: Ticket(7), request }]));
    node.now_us += 10_000;
    node.step(Input::Timer(Timer::Inputs(inputs::Timer::Batch)));
    node.step(Input::Timer(Timer::Inputs(inputs::Timer::Epoch)));
    let last = node.calvin.state.inputs.last_decided().0;
    assert!(last > 0, "the epoch is decided");
    for (other, epoch) in [RUNS, OTHER].into_iter().flat_map(|it| (1..=last).map(move |e| (it, e)))
    {
        let epoch = SnapshotVersion(epoch);
        let slice = Slice::new(epoch, ShardId(other), node.cut_of_own_code(), Vec::new());
        let did =
            node.step(Input::Message { from: NodeId(other), message: Message::Slice { slice } });
        assert_eq!(did.replies, []);
    }
    assert_eq!(node.calvin.confirmed(), SnapshotVersion(last), "the transaction ran on this node");
    let progress = node.step(Input::Timer(Timer::Inputs(inputs::Timer::Progress)));
    (node, progress)
}

/// The epoch of the request and its lineage.
fn awaited(node: &Node) -> (SnapshotVersion, Lineage) {
    let local = node.calvin.state.shards.as_ref().unwrap().local_requests.values().next().unwrap();
    (local.epoch, local.confirmed.expect("its epoch was confirmed"))
}

fn missed(node: &mut Node, from: u16, upto: SnapshotVersion) -> Vec<Outcome> {
    let message = Message::Truncated { upto };
    let did = node.step(Input::Message { from: NodeId(from), message });
    assert!(did.marks.contains(&"calvin.missed"), "{:?}", did.marks);
    did.replies
}

/// Story: a shard was informed that it need not retain the epoch, and replied after the next
/// reconnect that it had not retained the outcome.
/// Calvin §3.2, phase 5: active participants run the transaction, and its source may be none.
#[test]
fn who_has_yet_to_tell_a_result_is_to_keep_its_epoch() {
    let (mut node, did) = awaiting();
    let (epoch, line) = awaited(&node);
    let kept = |did: &Did, of: u16| {
        let progress = did.sent.iter().filter(|(to, _)| *to == NodeId(of));
        let progress = progress.filter_map(|(_, message)| match message {
            Message::ShardProgress { upto, .. } => Some(*upto),
            _ => None,
        });
        progress.last().expect("each shard is notified")
    };
    assert_eq!(kept(&did, RUNS), SnapshotVersion(epoch.0 - 1));
    assert!(kept(&did, OTHER) >= epoch, "no result is awaited");
    node.step(Input::PeerDown(NodeId(RUNS)));
    let did = node.step(Input::PeerUp(NodeId(RUNS)));
    let asked = did.sent.iter().find_map(|(_, message)| match message {
        Message::Subscribe { results, .. } => Some(*results),
        _ => None,
    });
    assert_eq!(
        asked,
        Some(SnapshotVersion(epoch.0 - 1)),
        "the outcomes requested are those announced"
    );

    let row =
        node.calvin.state.shards.as_ref().unwrap().local_requests.keys().next().copied().unwrap();
    let results = RemoteResults::new(
        (epoch, line),
        &[RemoteResult::Outcome(row, ShardOutcome::Ran(Ok(Vec::new())))],
    );
    let did = node
        .step(Input::Message { from: NodeId(RUNS), message: Message::RemoteResults { results } });
    assert!(matches!(did.replies[..], [Outcome::Committed { .. }]), "{:?}", did.replies);
    let did = node.step(Input::Timer(Timer::Inputs(inputs::Timer::Progress)));
    assert!(kept(&did, RUNS) >= epoch, "the outcome arrived");
}

/// Story: every missing outcome was reported as unknown, and a checkpoint was installed for no
/// reason.
/// Calvin §3.2, phase 5: active participants run the transaction, and its source may be none.
#[test]
fn a_shard_that_has_dropped_what_was_run_takes_away_its_own_results_alone() {
    let (mut node, _) = awaiting();
    let (epoch, _) = awaited(&node);
    assert_eq!(missed(&mut node, OTHER, epoch), [], "the other replica will announce it");
    assert!(!node.calvin.state.inputs.wants_checkpoint());
    let lost = missed(&mut node, RUNS, epoch);
    let [Outcome::Aborted(abort)] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!(*abort, crate::inputs::outcome_unknown());
    assert!(!node.calvin.state.inputs.wants_checkpoint(), "all of the epoch ran on this node");
}

/// Epochs that did not run here are another matter: only a checkpoint has them.
/// Calvin §5: a checkpoint is the starting point of a recovery.
#[test]
fn who_lacks_what_it_has_not_run_wants_a_checkpoint() {
    let (mut node, _) = awaiting();
    let (epoch, _) = awaited(&node);
    assert_eq!(missed(&mut node, OTHER, epoch.next()), []);
    assert!(node.calvin.state.inputs.wants_checkpoint());
}
