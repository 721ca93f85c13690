//! Mastership: its request, its beginning, and the effect of a checkpoint.

use pangea_core::partition::{Partitions, Rule};

use super::*;
use crate::calvin::forwarding::Requester;
use crate::inputs::Host as _;
use crate::streams::Bid;

impl Cluster {
    /// The nodes that the master asks to take its place.
    fn asked_to_lead(&mut self) -> Vec<u16> {
        let is_asked = |(_, to, message): (u16, u16, Message)| match message {
            Message::Inputs(inputs::Message::TransferLeadership { .. }) => Some(to),
            _ => None,
        };
        std::mem::take(&mut self.wire).into_iter().filter_map(is_asked).collect()
    }

    fn is_master(&self, node: usize) -> bool {
        self.nodes[node].calvin.state.inputs.accepts_requests()
    }

    fn last_epoch_of(&self, node: usize) -> SnapshotVersion {
        self.nodes[node].calvin.state.inputs.cut.applied
    }

    fn report_progress(&mut self, node: u16) {
        self.step(node, Input::Timer(Timer::Inputs(inputs::Timer::Progress)));
    }
}

/// A transaction that has read the row of a version on this timeline.
fn certified(at: SnapshotVersion, timeline: u64) -> Submission {
    let seen = ReadVersion::At(at);
    let points = vec![PointRead { table: TABLE, key: Key::from(&b"row"[..]), seen }];
    let reads = ReadSet { points, ranges: Vec::new() };
    let certified = Certified { reads, timeline, ..Certified::default() };
    Submission { ticket: Ticket(9), request: Request::serializable(Program::Certified(certified)) }
}

/// Only the first of two requests counts until it succeeded or its time is over. Else the master
/// would leave its place to two replicas at once.
/// The paper does not say how a master is chosen (Calvin §3.1.1).
#[test]
fn a_master_leaves_its_place_to_the_first_that_asks() {
    let mut cluster = Cluster::new();
    for from in [1, 2] {
        let message = Message::RequestMastership {};
        cluster.step(0, Input::Message { from: NodeId(from), message });
    }
    assert_eq!(cluster.asked_to_lead(), [1]);
    assert!(!cluster.is_master(0), "it accepts nothing more that its successor would not have");
}

/// The clients of requests that an earlier master accepted and that are void learn it from the
/// first cut of the next master term. It must not depend on a new request.
/// Calvin §3.1.1: after a failover the replicas agree on the last valid batch of the failed master.
#[test]
fn a_master_term_begins_with_a_cut_also_where_the_same_master_led_before() {
    let mut cluster = Cluster::new();
    cluster.nodes[1].act(|calvin, _| calvin.state.inputs.agreement_mut().campaign());
    cluster.wait(5);
    assert!(cluster.nodes[1].calvin.state.inputs.agreement().is_leader());
    assert!(!cluster.is_master(0));
    cluster.marks.clear();
    cluster.wait(1_500);
    assert!(cluster.is_master(0), "the preferred master leads again");
    assert!(cluster.marks.contains(&(0, "calvin.cut_fixed")));
}

/// A request waits on its replica as long as there is no master. The replica may go back to an
/// earlier version in the meantime.
/// Calvin §3.1.1: a failover makes batches after the last valid one void.
#[test]
fn what_waits_for_a_master_and_has_read_what_is_void_is_not_forwarded() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    let version = cluster.published()[1];
    cluster.step(1, Input::PeerDown(NodeId(0)));
    cluster.step(1, Input::Submit(vec![certified(version, 0)]));
    cluster.nodes[1].act(|_, cx| cx.store.retreat_to(version));
    cluster.step(1, Input::Submit(vec![certified(version, 1)]));
    assert_eq!(cluster.nodes[1].calvin.state.forwarding.len(), 2);
    cluster.wire.clear();
    cluster.step(1, Input::PeerUp(NodeId(0)));
    cluster.step(1, Input::Timer(Timer::Inputs(inputs::Timer::Tick)));
    let is_forward = |(_, _, it): &(u16, u16, Message)| matches!(it, Message::Forward { .. });
    assert!(!cluster.wire.iter().any(is_forward), "it may be a node of another cluster");
    cluster.nodes[1].hear_greeting(0);
    cluster.step(1, Input::Timer(Timer::Inputs(inputs::Timer::Tick)));
    let forwarded = cluster.wire.iter().map(|(_, _, message)| match message {
        Message::Forward { requests } => requests.len(),
        _ => 0,
    });
    assert_eq!(forwarded.sum::<usize>(), 1, "the one that was submitted last");
    let codes = cluster.replies[&1].iter().map(|outcome| match outcome {
        Outcome::Aborted(abort) => abort.code,
        Outcome::Committed { .. } => panic!("{outcome:?}"),
    });
    assert_eq!(codes.collect::<Vec<_>>(), [SqlState::SERIALIZATION_FAILURE]);
}

/// A checkpoint has the effects of the cuts that this replica had fixed up to its version.
/// Calvin §5: a checkpoint is the starting point of a recovery.
#[test]
fn a_checkpoint_takes_the_place_of_the_fixed_cuts_up_to_its_version() {
    let mut cluster = Cluster::new();
    let before = cluster.last_epoch_of(0);
    cluster.append(0, b"a");
    cluster.append(0, b"b");
    let last = cluster.last_epoch_of(0);
    assert_eq!(last, before.next().next(), "both have run early");
    cluster.nodes[0].act(|calvin, cx| {
        let inputs = &mut calvin.state.inputs;
        inputs.cut.applied = before.next();
        inputs.cut.confirm_applied();
        super::super::Calvin::on_installed(inputs, cx);
        let mastery = &inputs.extension.mastery;
        assert_eq!(mastery.early.iter().map(|early| early.epoch).collect::<Vec<_>>(), [last]);
    });
}

/// A replica that skips epochs can't know who was the master in them, and reports that.
/// Calvin §5: a checkpoint is the starting point of a recovery.
#[test]
fn who_installs_a_checkpoint_says_that_it_does_not_know_the_master() {
    for options in [options(), Options::default()] {
        let mut cluster = Cluster::new();
        cluster.start_all(&options);
        cluster.connect_all();
        cluster.wait(400);
        cluster.away = Some(2);
        cluster.append(0, b"a");
        cluster.wait(20);
        let last = cluster.last_epoch_of(0);
        assert!(cluster.last_epoch_of(2) < last);
        // It is not sent the cuts again, as if the others had forgotten them.
        cluster.away = None;
        cluster.without_master.clear();
        cluster.marks.clear();
        cluster.nodes[2].act(|calvin, _| calvin.state.inputs.want_checkpoint(last));
        for node in [0, 1, 2] {
            cluster.report_progress(node);
            cluster.deliver();
        }
        assert!(cluster.marks.contains(&(2, "inputs.checkpoint_installed")));
        let is_asynchronous = options.replication == Replication::Asynchronous;
        let unknown = is_asynchronous.then_some((2, last));
        assert_eq!(cluster.without_master, Vec::from_iter(unknown));
    }
}

/// Its fixed cuts may be void, and only a master may run epochs that are not decided.
/// Calvin §3.1.1: after a failover the replicas agree on the last valid batch of the failed master.
#[test]
fn a_master_that_starts_again_runs_nothing_that_is_undecided_before_it_leads_again() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    cluster.append(0, b"b");
    cluster.wire.clear();
    let last = cluster.published()[0];
    cluster.start_again();
    assert!(cluster.marks.contains(&(0, "calvin.early_restored")));
    cluster.connect_again();
    for _ in 0..100 {
        for (from, to, message) in std::mem::take(&mut cluster.wire) {
            cluster.step(to, Input::Message { from: NodeId(from), message });
            assert!(cluster.is_master(0) || cluster.published()[0] < last);
        }
        cluster.tick();
        assert!(cluster.is_master(0) || cluster.published()[0] < last);
    }
    assert!(cluster.is_master(0));
    assert!(cluster.published().iter().all(|version| *version >= last));
}

/// It can't learn which cuts were decided in place of those that it had fixed. Until it has a
/// checkpoint, its readers would see void epochs.
/// Calvin §3.1.1: after a failover the replicas agree on the last valid batch of the failed master.
#[test]
fn a_master_that_lacks_forgotten_cuts_goes_back_before_it_has_a_checkpoint() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    let valid = cluster.published()[1];
    cluster.away = Some(0);
    cluster.append(0, b"b");
    assert_eq!(cluster.published()[0], valid.next(), "it is the master");
    cluster.wire.clear();
    cluster.wait(400);
    cluster.append(1, b"c");
    cluster.wait(5);
    for node in [1, 2] {
        cluster.nodes[node].act(|calvin, _| {
            let inputs = &mut calvin.state.inputs;
            let decided = inputs.cut.confirmed.epoch;
            assert!(inputs.agreement_mut().compact(decided.0));
        });
    }
    cluster.away = None;
    cluster.connect_again();
    while !cluster.marks.contains(&(0, "inputs.cuts_skipped")) {
        for (from, to, message) in std::mem::take(&mut cluster.wire) {
            cluster.step(to, Input::Message { from: NodeId(from), message });
        }
        cluster.tick();
    }
    assert_eq!(cluster.published()[0], valid);
    assert_eq!(cluster.nodes[0].store.timeline(), 1);
    for node in [1, 2, 0] {
        cluster.report_progress(node);
        cluster.deliver();
    }
    assert!(cluster.marks.contains(&(0, "inputs.checkpoint_installed")));
    cluster.wait(20);
    cluster.assert_equal();
}

/// It is from a run with asynchronous replication. Its epoch contains or passes over requests of
/// that run alone.
/// The paper does not say how to change the mode of replication (Calvin §3.1.1).
#[test]
fn a_cut_that_is_left_over_from_a_master_makes_no_later_request_of_a_shard_void() {
    let topology = Topology::one_node_per_region("t", &["a"], Span::ZERO);
    let topology = topology.divided(Partitions::new(2, Rule::Hash { prefix_bytes: 8 }));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    let did = node.act(|calvin, cx| {
        for Submission { ticket, request } in submit(&[b"a", b"b"]) {
            let Request::Commit(program, _) = request else { panic!("{ticket} is a call") };
            let request = UnsequencedRequest::new(program, ShardSet::default());
            calvin.put_in_batch(cx, Requester::Client(ticket), request);
            calvin.end_batch(cx);
        }
        let term = calvin.state.inputs.agreement().term();
        let master_term = Some(inputs::MasterTerm { term, first: 1 });
        let heads = vec![Bid(1)];
        let cut = inputs::Cut { heads, master_term, ..inputs::Cut::default() };
        calvin.answer_void_requests(cx, &cut);
    });
    assert_eq!(did.replies.len(), 1, "the batch up to which the cut goes is void");
    let in_flight = &node.calvin.state.sequencer.in_flight;
    assert_eq!(in_flight.iter().map(|it| it.ticket).collect::<Vec<_>>(), [Some(Ticket(1))]);
}
