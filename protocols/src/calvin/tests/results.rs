//! The outcome of a transaction that ran on another shard, which may arrive long after its epoch.

use pangea_core::exec::ordered::ShardOutcome;
use pangea_core::txn::{Certified, PointRead, ReadSet, ReadVersion, Write};

use super::super::Timer;
use super::super::recovery::ShardEpochRecord;
use super::super::shards::remote_results::{RemoteResult, RemoteResults};
use super::*;

/// The shard that runs it, and one that does not participate.
const RUNS: u16 = 1;
const OTHER: u16 = 2;

/// A transaction that writes a row of one shard and has read an absent row of another.
fn certified(node: &Node, reads: Option<u16>, writes: u16) -> Submission {
    let partitions = &node.calvin.state.shards.as_ref().unwrap().partitions;
    let key_on = |shard| {
        let mut keys = (0u8..=255).map(|byte| Key::from(&[byte; 8][..]));
        keys.find(|key| partitions.shard_of(TABLE, key) == Some(ShardId(shard))).unwrap()
    };
    let point = |shard| PointRead { table: TABLE, key: key_on(shard), seen: ReadVersion::Absent };
    let reads = ReadSet { points: reads.map(point).into_iter().collect(), ranges: Vec::new() };
    let value = Some(Value::copy_from(b"v"));
    let writes = vec![Write { table: TABLE, key: key_on(writes), value }];
    let request = Request::serializable(Program::Certified(Certified {
        reads,
        writes,
        ..Certified::default()
    }));
    Submission { ticket: Ticket(7), request }
}

fn start() -> Node {
    let topology = Topology::one_node_per_region("t", &["eu"], Span::ZERO);
    let topology = topology.divided(Partitions::new(3, Rule::Hash { prefix_bytes: 8 }));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    for other in [RUNS, OTHER] {
        node.step(Input::PeerUp(NodeId(other)));
    }
    node
}

/// Decides an epoch with these requests, and returns it.
fn decide(node: &mut Node, requests: Vec<Submission>) -> SnapshotVersion {
    node.step(Input::Submit(requests));
    node.now_us += 10_000;
    node.step(Input::Timer(Timer::Inputs(inputs::Timer::Batch)));
    node.step(Input::Timer(Timer::Inputs(inputs::Timer::Epoch)));
    let last = node.calvin.state.inputs.last_decided();
    assert!(last.0 > 0, "the epoch is decided");
    last
}

/// A shard sends its empty slices of the epochs up to this one. Returns the replies to clients.
fn send_slices(node: &mut Node, from: u16, upto: SnapshotVersion) -> Vec<Outcome> {
    let cut = node.cut_of_own_code();
    let slice = |epoch| Slice::new(SnapshotVersion(epoch), ShardId(from), cut, Vec::new());
    let slices: Vec<Slice> = (1..=upto.0).map(slice).collect();
    let send = |slice| {
        let message = Message::Slice { slice };
        node.step(Input::Message { from: NodeId(from), message }).replies
    };
    slices.into_iter().flat_map(send).collect()
}

/// A node of the first of three shards that has run an epoch in which one of its requests is only
/// for the second one; and the messages that it then sends to the others.
fn awaiting() -> (Node, Did) {
    let mut node = start();
    let request = certified(&node, None, RUNS);
    let last = decide(&mut node, vec![request]);
    for other in [RUNS, OTHER] {
        assert_eq!(send_slices(&mut node, other, last), []);
    }
    assert_eq!(node.calvin.confirmed(), last, "the transaction ran on this node");
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

/// The shard may drop the result before this node has run the epoch, which needs nothing more of
/// that shard then.
/// Calvin §3.2, phase 5: active participants run the transaction, and its source may be none.
#[test]
fn a_result_that_was_dropped_before_its_epoch_ran_here_is_unknown() {
    let mut node = start();
    let request = certified(&node, None, RUNS);
    let last = decide(&mut node, vec![request]);
    assert_eq!(send_slices(&mut node, RUNS, last), []);
    assert_eq!(missed(&mut node, RUNS, last), []);
    let replies = send_slices(&mut node, OTHER, last);
    assert_eq!(node.calvin.confirmed(), last, "the transaction ran on this node");
    assert_eq!(replies, [Outcome::Aborted(crate::inputs::outcome_unknown())]);
}

/// A result may have arrived for a transaction of an epoch that a peer's checkpoint then skips.
/// Its client was promised nothing yet.
/// Calvin §5: a checkpoint is the starting point of a recovery.
#[test]
fn a_checkpoint_takes_away_results_of_the_epochs_that_it_skips() {
    let mut node = start();
    // The second one waits for the check of its read, and the epoch does not end.
    let requests = vec![certified(&node, None, RUNS), certified(&node, Some(OTHER), 0)];
    let last = decide(&mut node, requests);
    for other in [RUNS, OTHER] {
        assert_eq!(send_slices(&mut node, other, last), []);
    }
    let shards = node.calvin.state.shards.as_ref().unwrap();
    assert_eq!((shards.scheduled_upto, shards.local_requests.len()), (last, 2));
    let txn = *shards.local_requests.keys().next().unwrap();
    let names = [shards.own[&last].cut.name, node.cut_of_own_code().name];
    let line = Lineage::of([names[0], names[1], names[1]].into_iter());
    let outcome = RemoteResult::Outcome(txn, ShardOutcome::Ran(Ok(Vec::new())));
    let results = RemoteResults::new((last, line), &[outcome]);
    let message = Message::RemoteResults { results };
    let did = node.step(Input::Message { from: NodeId(RUNS), message });
    assert_eq!(did.replies, [], "the epoch has not run");
    assert_eq!(node.calvin.state.shards.as_ref().unwrap().results.len(), 1);
    let did = node.act(|calvin, cx| {
        let dropped = [RUNS, OTHER].map(|shard| (ShardId(shard), last)).to_vec();
        let of_shards = ShardEpochRecord { dropped, ..ShardEpochRecord::default() };
        calvin.retain_handed_on(cx, vec![(last, Bytes::new(), of_shards)]);
        let cut = &mut calvin.state.inputs.cut;
        cut.applied = last;
        cut.waiting.clear();
        cut.confirm_applied();
        calvin.move_shards(cx);
    });
    let unknown = Outcome::Aborted(crate::inputs::outcome_unknown());
    assert_eq!(did.replies, [unknown.clone(), unknown]);
    assert!(node.calvin.state.shards.as_ref().unwrap().results.is_empty());
}
