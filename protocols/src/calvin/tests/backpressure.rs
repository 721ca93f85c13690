//! Back-pressure that names the slow node: a node that is the only one of its group, and another
//! one that does not send its messages.

use pangea_core::txn::{Abort, Certified, ReadSet, Write};

use super::super::Timer;
use super::*;

/// A node of the first of `shards` shards, each of which has one replica.
fn start(shards: u16) -> Node {
    let topology = Topology::one_node_per_region("t", &["eu"], Span::ZERO);
    let topology = topology.divided(Partitions::new(shards, Rule::Hash { prefix_bytes: 8 }));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    for other in 1..shards {
        node.step(Input::PeerUp(NodeId(other)));
    }
    node
}

/// A transaction that writes a row of the first shard only.
fn write(node: &Node) -> Vec<Submission> {
    let partitions = &node.calvin.state.shards.as_ref().unwrap().partitions;
    let mut keys = (0u8..=255).map(|byte| Key::from(&[byte; 8][..]));
    let key = keys.find(|key| partitions.shard_of(TABLE, key) == Some(ShardId(0))).unwrap();
    let writes = vec![Write { table: TABLE, key, value: Some(Value::copy_from(b"v")) }];
    let certified = Certified { reads: ReadSet::default(), writes, ..Certified::default() };
    let request = Request::serializable(Program::Certified(certified));
    vec![Submission { ticket: Ticket(node.now_us), request }]
}

/// The outcomes of requests, and the marks.
#[derive(Default)]
struct Seen {
    committed: usize,
    refused: Vec<Abort>,
    marks: Vec<&'static str>,
}

impl Seen {
    fn marked(&self, name: &str) -> usize {
        self.marks.iter().filter(|mark| **mark == name).count()
    }
}

/// Lets `times` intervals of 10 ms pass, with a request in each.
fn go_on(node: &mut Node, times: u64, seen: &mut Seen) {
    for time in 0..times {
        node.now_us += 10_000;
        let mut inputs =
            vec![Input::Submit(write(node)), Input::Timer(Timer::Inputs(inputs::Timer::Batch))];
        inputs.push(Input::Timer(Timer::Inputs(inputs::Timer::Epoch)));
        if time % 10 == 9 {
            inputs.push(Input::Timer(Timer::Inputs(inputs::Timer::Progress)));
        }
        for input in inputs {
            note(node.step(input), seen);
        }
    }
}

fn note(did: Did, seen: &mut Seen) {
    seen.marks.extend(did.marks);
    for outcome in did.replies {
        match outcome {
            Outcome::Committed { .. } => seen.committed += 1,
            Outcome::Aborted(abort) => seen.refused.push(abort),
        }
    }
}

/// Another shard sends empty slices up to an epoch.
fn send_slices(node: &mut Node, from: u16, upto: u64, seen: &mut Seen) {
    let first =
        node.calvin.state.shards.as_ref().unwrap().streams[&ShardId(from)].inbound.upto.0 + 1;
    let cut = node.cut_of_own_code();
    for epoch in first..=upto {
        let slice = Slice::new(SnapshotVersion(epoch), ShardId(from), cut, Vec::new());
        let message = Message::Slice { slice };
        note(node.step(Input::Message { from: NodeId(from), message }), seen);
    }
}

fn late(node: &Node) -> Vec<(NodeId, String, u64)> {
    let late = node.calvin.status().waits_for;
    late.into_iter().map(|late| (late.node, late.what, late.epochs)).collect()
}

/// Calvin §6.2: a slow node makes the other nodes slow, too.
#[test]
fn requests_are_refused_in_the_name_of_a_shard_that_is_far_behind_until_it_has_caught_up() {
    let (mut node, mut seen) = (start(2), Seen::default());
    go_on(&mut node, 70, &mut seen);
    assert_eq!(seen.marked("inputs.waits_for_node"), 1, "the node is frozen for half a second");
    assert_eq!(late(&node), [(NodeId(1), "slices".to_owned(), 70)]);
    go_on(&mut node, 330, &mut seen);
    assert_eq!(
        node.calvin.state.inputs.last_decided(),
        SnapshotVersion(256),
        "the limit is reached"
    );
    assert!(seen.marked("inputs.waits_for_others") > 0);
    assert_eq!(seen.marked("inputs.waits_for_node"), 1, "the report is made once");
    assert_eq!(
        (seen.committed, seen.refused.len()),
        (0, 140),
        "at most 256 epochs, and some requests wait"
    );
    let Abort { code, message, detail, hint } = &seen.refused[0];
    assert_eq!(code.as_str(), "53000");
    assert_eq!(
        message,
        "this node waits for eu.1 (node 1), which is 256 epochs behind with slices"
    );
    let detail = detail.as_deref().unwrap();
    assert!(detail.starts_with("It is the node of shard 1 in region eu."), "{detail}");
    assert!(hint.is_some());
    assert_eq!(node.calvin.status().counters["txns_refused"], 140);

    send_slices(&mut node, 1, 256, &mut seen);
    let taken = 400 - 140;
    for _ in 0..20 {
        node.now_us += 10_000;
        note(node.step(Input::Timer(Timer::Inputs(inputs::Timer::Epoch))), &mut seen);
        let last = node.calvin.state.inputs.last_decided().0;
        send_slices(&mut node, 1, last, &mut seen);
    }
    assert_eq!(seen.committed, taken, "no request is lost");
    note(node.step(Input::Timer(Timer::Inputs(inputs::Timer::Progress))), &mut seen);
    assert_eq!(late(&node), []);
    go_on(&mut node, 1, &mut seen);
    let last = node.calvin.state.inputs.last_decided().0;
    send_slices(&mut node, 1, last, &mut seen);
    assert_eq!((seen.committed, seen.refused.len()), (taken + 1, 140), "all requests are answered");
}

/// A node that sends nothing because it waits for another is not to blame.
/// Calvin §6.2: a slow node makes the other nodes slow, too.
#[test]
fn the_node_is_named_for_which_the_one_between_waits() {
    let (mut node, mut seen) = (start(3), Seen::default());
    let kept = |waits_for: Option<u16>| Message::ShardProgress {
        upto: SnapshotVersion::ZERO,
        applied: SnapshotVersion::ZERO,
        waits_for: waits_for.map(NodeId),
    };
    let named = |node: &mut Node, seen: &mut Seen, waits_for| {
        node.step(Input::Message { from: NodeId(1), message: kept(waits_for) });
        let last = node.calvin.state.inputs.last_decided().0;
        send_slices(node, 2, last, seen);
        go_on(node, 10, seen);
        late(node).into_iter().map(|(node, ..)| node).collect::<Vec<_>>()
    };
    go_on(&mut node, 70, &mut seen);
    assert_eq!(named(&mut node, &mut seen, None), [NodeId(1)]);
    assert_eq!(named(&mut node, &mut seen, Some(2)), [NodeId(2)]);
    assert_eq!(named(&mut node, &mut seen, Some(0)), [NodeId(0)], "this node itself");
    assert_eq!(named(&mut node, &mut seen, Some(900)), [NodeId(1)], "no such node");
    assert_eq!(seen.refused, [], "more than the actual lag");
}
