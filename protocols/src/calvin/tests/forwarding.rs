//! Three replicas with asynchronous replication, step by step.

mod mastership;

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::ids::{NodeId, SnapshotVersion, Ticket, TxnId};
use pangea_core::key::Key;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::{Input, Request, Submission};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{Certified, Outcome, PointRead, Program, ReadSet, ReadVersion, SqlState};

use super::super::Timer;
use super::super::batch::UnsequencedRequest;
use super::super::messages::Accepted;
use super::super::options::Replication;
use super::{Did, Message, Node, Options, TABLE, submit};
use crate::inputs;
use crate::replica::kind;

/// Three distant replicas: a message arrives when a test says so.
struct Cluster {
    nodes: Vec<Node>,
    wire: Vec<(u16, u16, Message)>,
    /// A node that is disconnected in both directions.
    away: Option<u16>,
    replies: BTreeMap<u16, Vec<Outcome>>,
    marks: Vec<(u16, &'static str)>,
    /// The nodes that reported that they don't know the master of this version.
    without_master: Vec<(u16, SnapshotVersion)>,
}

fn options() -> Options {
    Options { replication: Replication::Asynchronous, ..Options::default() }
}

impl Cluster {
    /// Creates the cluster; node 0 is the master.
    fn new() -> Self {
        let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
        let mut cluster = Self {
            nodes: Vec::new(),
            wire: Vec::new(),
            away: None,
            replies: BTreeMap::new(),
            marks: Vec::new(),
            without_master: Vec::new(),
        };
        for me in 0..3 {
            let (node, did) =
                Node::start_as(me, topology.clone(), Vec::new(), "append", &options());
            cluster.nodes.push(node);
            cluster.note(me, did);
        }
        cluster.connect_all();
        cluster.wait(200);
        assert!(cluster.nodes[0].calvin.state.inputs.accepts_requests(), "the node is the master");
        cluster
    }

    fn note(&mut self, node: u16, did: Did) {
        self.wire.extend(did.sent.into_iter().map(|(to, message)| (node, to.0, message)));
        self.replies.entry(node).or_default().extend(did.replies);
        self.marks.extend(did.marks.into_iter().map(|mark| (node, mark)));
        let unknown = did.master_terms.into_iter().filter(|(_, term)| term.is_none());
        self.without_master.extend(unknown.map(|(from, _)| (node, from)));
        assert_eq!(did.stopped, None);
    }

    /// Restarts node 0 with its log.
    fn start_again(&mut self) {
        self.start_with(0, &options());
    }

    /// Restarts a node with its log and these settings.
    fn start_with(&mut self, me: u16, options: &Options) {
        let place = usize::from(me);
        let (log, now_us) = (self.nodes[place].log.clone(), self.nodes[place].now_us);
        let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
        let (node, did) = Node::start_as(me, topology, log, "append", options);
        self.nodes[place] = Node { now_us, ..node };
        self.note(me, did);
    }

    /// Restarts all nodes with their logs and these settings.
    fn start_all(&mut self, options: &Options) {
        for node in 0..3 {
            self.start_with(node, options);
        }
    }

    fn connect_all(&mut self) {
        for (a, b) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            self.step(a, Input::PeerUp(NodeId(b)));
        }
    }

    /// Reconnects node 0.
    fn connect_again(&mut self) {
        for (a, b) in [(1, 0), (2, 0), (0, 1), (0, 2)] {
            if a != 0 {
                self.step(a, Input::PeerDown(NodeId(b)));
            }
            self.step(a, Input::PeerUp(NodeId(b)));
        }
    }

    fn step(&mut self, node: u16, input: Input<super::Calvin>) {
        let did = self.nodes[usize::from(node)].step(input);
        self.note(node, did);
    }

    /// Delivers all messages in flight, and those that follow from them.
    fn deliver(&mut self) {
        while !self.wire.is_empty() {
            for (from, to, message) in std::mem::take(&mut self.wire) {
                if ![from, to].iter().any(|node| Some(*node) == self.away) {
                    self.step(to, Input::Message { from: NodeId(from), message });
                }
            }
        }
    }

    /// Lets `ticks` of 10 ms pass.
    fn wait(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.tick();
            self.deliver();
        }
    }

    /// Lets 10 ms pass without a message.
    fn tick(&mut self) {
        for node in 0..3 {
            self.nodes[usize::from(node)].now_us += 10_000;
            for timer in [
                Timer::Inputs(inputs::Timer::Tick),
                Timer::Inputs(inputs::Timer::Batch),
                Timer::Inputs(inputs::Timer::Epoch),
                Timer::Inputs(inputs::Timer::Fetch),
            ] {
                self.step(node, Input::Timer(timer));
            }
        }
    }

    /// A client of a node appends a value, in a batch that is closed at once.
    fn append(&mut self, node: u16, bytes: &'static [u8]) {
        self.step(node, Input::Submit(submit(&[bytes])));
        self.step(node, Input::Timer(Timer::Inputs(inputs::Timer::Batch)));
    }

    fn results(&self, node: u16) -> Vec<Vec<u8>> {
        let result = |outcome: &Outcome| match outcome {
            Outcome::Committed { result, .. } => Some(result.clone()),
            Outcome::Aborted(_) => None,
        };
        self.replies[&node].iter().filter_map(result).collect()
    }

    fn unknown(&self, node: u16) -> usize {
        let is_unknown = |outcome: &&Outcome| match outcome {
            Outcome::Aborted(abort) => abort.code == SqlState::OUTCOME_UNKNOWN,
            Outcome::Committed { .. } => false,
        };
        self.replies[&node].iter().filter(is_unknown).count()
    }

    fn published(&self) -> Vec<SnapshotVersion> {
        self.nodes.iter().map(|node| node.store.published()).collect()
    }

    fn assert_equal(&self) {
        let digest =
            |node: &Node| (node.store.published(), node.store.digest(node.store.published()));
        let all: Vec<_> = self.nodes.iter().map(digest).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    }
}

/// Calvin §3.1.1, asynchronous: the master runs an epoch without waiting for another replica.
#[test]
fn the_master_answers_before_anybody_else_has_heard_of_it_and_the_others_follow() {
    let mut cluster = Cluster::new();
    let before = cluster.published()[0];
    cluster.append(0, b"a");
    assert_eq!(cluster.results(0), [b"a"], "no message has been delivered yet");
    assert_eq!(cluster.published(), [before.next(), before, before]);
    assert_eq!(cluster.nodes[0].calvin.state.inputs.cut.confirmed.epoch, before);
    cluster.wait(5);
    cluster.assert_equal();
    let confirmed = cluster.nodes[0].calvin.state.inputs.cut.confirmed.epoch;
    assert_eq!(confirmed, cluster.published()[1], "the epoch is decided");
}

/// Calvin §3.1.1: every replica forwards its requests to the master at once.
#[test]
fn a_request_goes_to_the_master_and_is_answered_where_it_came_when_it_is_run_there() {
    let mut cluster = Cluster::new();
    cluster.append(1, b"a");
    assert!(
        cluster.wire.iter().any(|(_, to, it)| *to == 0 && matches!(it, Message::Forward { .. }))
    );
    cluster.wait(1);
    cluster.append(0, b"b");
    assert_eq!(cluster.results(0), [b"ab"], "the master has run both epochs");
    assert_eq!(
        cluster.nodes[1].calvin.state.forwarding.len(),
        usize::from(cluster.results(1).is_empty())
    );
    cluster.wait(5);
    assert_eq!((cluster.results(1), cluster.unknown(1)), (vec![b"a".to_vec()], 0));
    cluster.assert_equal();
}

/// Epochs that no other replica had are undone, and never run again.
/// Calvin §3.1.1: after a failover the replicas agree on the last valid batch of the failed master.
#[test]
fn a_deposed_master_goes_back_and_what_it_had_answered_is_never_sequenced_again() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    cluster.away = Some(0);
    cluster.append(0, b"b");
    cluster.append(0, b"c");
    assert_eq!(cluster.results(0), [b"a".to_vec(), b"ab".to_vec(), b"abc".to_vec()]);
    cluster.wire.clear();
    cluster.wait(400);
    cluster.append(1, b"d");
    cluster.append(2, b"e");
    cluster.wait(5);
    let both: Vec<_> = [cluster.results(1), cluster.results(2)].concat();
    assert!(both.contains(&b"ade".to_vec()) || both.contains(&b"aed".to_vec()), "{both:?}");
    cluster.away = None;
    for (a, b) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        cluster.step(a, Input::PeerDown(NodeId(b)));
        cluster.step(a, Input::PeerUp(NodeId(b)));
    }
    cluster.wait(60);
    assert!(cluster.marks.contains(&(0, "calvin.retreated")), "{:?}", cluster.published());
    assert_eq!(cluster.nodes[0].store.timeline(), 1);
    cluster.append(0, b"f");
    cluster.wait(100);
    let last = cluster.results(0).pop().expect("the request was answered");
    assert_eq!(last.len(), 4, "a, d, e and f: {last:?}");
    assert!(!last.contains(&b'b') && !last.contains(&b'c'), "{last:?}");
    cluster.assert_equal();
}

/// The log of a crashed master contains cuts that it had fixed and answered.
/// Calvin §3.1.1: no other master has ordered anything, so these batches are valid.
#[test]
fn a_master_that_starts_again_proposes_what_it_had_answered() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    cluster.append(0, b"b");
    assert_eq!(cluster.results(0).pop().unwrap(), b"ab");
    // No message about that has left it.
    cluster.wire.clear();
    let before = cluster.nodes[0].store.published();
    cluster.start_again();
    assert!(cluster.marks.contains(&(0, "calvin.early_restored")));
    assert!(
        cluster.nodes[0].store.published() < before,
        "the epoch does not run before its cut is confirmed"
    );
    cluster.connect_again();
    cluster.wait(100);
    assert!(cluster.marks.contains(&(0, "calvin.leads_again")));
    cluster.append(0, b"c");
    assert_eq!(cluster.results(0).pop().unwrap(), b"abc", "the run is valid");
    cluster.wait(5);
    cluster.assert_equal();
    assert_eq!(cluster.nodes[0].store.timeline(), 0, "no epoch was discarded");
}

/// The record of a discarded cut names the first epoch that is discarded, and the log is read so.
#[test]
fn a_restart_does_not_restore_the_first_of_the_cuts_that_it_gave_up() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    cluster.away = Some(0);
    cluster.append(0, b"b");
    cluster.wire.clear();
    cluster.wait(400);
    cluster.append(1, b"c");
    cluster.wait(5);
    assert_eq!(cluster.results(1), [b"ac"], "another master has continued without it");
    cluster.away = None;
    cluster.connect_again();
    // It learns what was decided.
    let has_given_up = |cluster: &Cluster| cluster.marks.contains(&(0, "calvin.early_given_up"));
    while !has_given_up(&cluster) {
        for (from, to, message) in std::mem::take(&mut cluster.wire) {
            cluster.step(to, Input::Message { from: NodeId(from), message });
        }
        if cluster.wire.is_empty() && !has_given_up(&cluster) {
            cluster.tick();
        }
    }
    // It crashes when that is durable, and the epoch that it runs instead is not.
    cluster.wire.clear();
    cluster.marks.clear();
    let log = &mut cluster.nodes[0].log;
    let is_given_up = |(_, record): &(_, Bytes)| record[0] == kind::GIVEN_UP;
    let last = log.iter().rposition(is_given_up).expect("it is in the log");
    log.truncate(last + 1);
    cluster.start_again();
    assert!(!cluster.marks.contains(&(0, "calvin.early_restored")), "the cut is void");
    cluster.connect_again();
    cluster.wait(200);
    cluster.append(1, b"d");
    cluster.wait(20);
    assert_eq!(cluster.results(1).pop().unwrap(), b"acd");
    cluster.assert_equal();
}

/// Story: batches that a failover had made void were put into a cut when replication was set back
/// to synchronous right after it. Transactions that a client had seen as lost came back.
/// Calvin §3.1.1: batches after the last valid one are void in both modes of replication.
#[test]
fn what_a_failover_gave_up_is_not_sequenced_by_synchronous_replication() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    cluster.away = Some(0);
    cluster.append(0, b"b");
    assert_eq!(cluster.results(0).pop().unwrap(), b"ab", "the request was answered");
    cluster.wire.clear();
    cluster.wait(400);
    cluster.append(1, b"c");
    cluster.wait(5);
    assert_eq!(cluster.results(1), [b"ac"], "another master has continued without it");
    cluster.away = None;
    cluster.wire.clear();
    cluster.start_all(&Options::default());
    cluster.connect_all();
    cluster.wait(400);
    cluster.append(0, b"d");
    cluster.wait(20);
    assert_eq!(cluster.results(0).pop().unwrap(), b"acd");
    cluster.append(1, b"e");
    cluster.wait(20);
    assert_eq!(cluster.results(1).pop().unwrap(), b"acde");
    cluster.assert_equal();
}

/// The cuts that the master had fixed and answered are proposed under the new setting, or
/// discarded. Story: requests of the new run were taken for void along with them, and their epoch
/// had no client to answer.
/// The paper does not say how to change the mode of replication (Calvin §3.1.1).
#[test]
fn what_is_left_of_a_master_term_harms_nobody_when_replication_is_synchronous_again() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    cluster.append(0, b"b");
    cluster.wire.clear();
    cluster.start_all(&Options::default());
    assert!(cluster.marks.contains(&(0, "calvin.early_restored")));
    cluster.connect_all();
    for node in 0..3 {
        cluster.append(node, b"c");
    }
    cluster.wait(400);
    for node in 0..3 {
        let answers = cluster.results(node);
        assert!(answers.last().is_some_and(|last| last.ends_with(b"c")), "{node}: {answers:?}");
        assert_eq!(cluster.unknown(node), 0);
    }
    cluster.assert_equal();
}

/// Story: a batch from a synchronous run that no cut contained, and that a master term then
/// skipped, was still expected to run when replication was synchronous again.
/// The paper does not say how to change the mode of replication (Calvin §3.1.1).
#[test]
fn what_a_master_term_has_passed_over_is_waited_for_by_nobody() {
    let mut cluster = Cluster::new();
    cluster.start_all(&Options::default());
    cluster.connect_all();
    cluster.wait(200);
    cluster.append(1, b"x");
    cluster.wire.clear();
    cluster.start_all(&options());
    cluster.connect_all();
    cluster.wait(400);
    cluster.append(0, b"a");
    cluster.wait(20);
    let result = cluster.results(0).pop().expect("the master answers");
    cluster.start_all(&Options::default());
    cluster.connect_all();
    cluster.wait(400);
    cluster.append(1, b"b");
    cluster.wait(20);
    assert_eq!(cluster.results(1).pop(), Some([&result[..], b"b"].concat()));
    assert!(cluster.nodes[1].calvin.state.sequencer.in_flight.is_empty(), "no epoch is left");
    cluster.assert_equal();
}

/// Story: a master that accepted no requests for a while was sent all waiting requests each time
/// that it replied so.
/// Calvin §3.1.1: requests are forwarded to the master.
#[test]
fn where_nothing_is_taken_one_request_asks_for_all() {
    let mut cluster = Cluster::new();
    cluster.step(1, Input::Submit(submit(&[b"a", b"b", b"c"])));
    let forwarded = |cluster: &mut Cluster| -> Vec<u64> {
        let wire = std::mem::take(&mut cluster.wire).into_iter();
        let requests = wire.filter_map(|(_, _, message)| match message {
            Message::Forward { requests } => Some(requests),
            _ => None,
        });
        requests.flatten().map(|(token, _)| token).collect()
    };
    let tokens = forwarded(&mut cluster);
    assert_eq!(tokens.len(), 3);
    let refusal = Message::ForwardRejected { tokens };
    cluster.step(1, Input::Message { from: NodeId(0), message: refusal });
    cluster.step(1, Input::Timer(Timer::Inputs(inputs::Timer::Tick)));
    cluster.step(1, Input::Timer(Timer::Inputs(inputs::Timer::Tick)));
    let tokens = forwarded(&mut cluster);
    assert_eq!(tokens.len(), 1, "until the question is answered");
    let term = cluster.nodes[0]
        .calvin
        .state
        .inputs
        .extension
        .mastery
        .master_term
        .expect("the node is the master")
        .term;
    cluster.step(
        1,
        Input::Message {
            from: NodeId(0),
            message: Message::ForwardAccepted { accepted: Accepted { term, tokens } },
        },
    );
    assert_eq!(forwarded(&mut cluster).len(), 2, "the other replicas");
}

/// Story: a master that is too far ahead creates no batches, and collected requests without a
/// limit.
/// Calvin §3.1.1: the master creates all batches.
#[test]
fn a_master_that_can_make_no_batches_takes_no_more_than_some_of_them_hold() {
    const LARGE: &[u8] = &[7; 1_000];
    let options = Options { batch_bytes: 1_024, ..options() };
    let mut cluster = Cluster::new();
    cluster.start_with(0, &options);
    cluster.connect_again();
    cluster.wait(100);
    cluster.away = Some(0);
    for _ in 0..300 {
        cluster.append(0, b"a");
    }
    assert!(!cluster.nodes[0].calvin.state.inputs.may_fix(), "too many cuts are undecided");
    cluster.wire.clear();
    for _ in 0..40 {
        cluster.step(0, Input::Submit(submit(&[LARGE])));
    }
    let collected = cluster.nodes[0].calvin.state.sequencer.current_bytes;
    assert!((16_000..20_000).contains(&collected), "{collected} bytes");
    assert!(cluster.marks.contains(&(0, "calvin.too_many_in_flight")));
    let program = Program::Call {
        procedure: pangea_core::ids::ProcedureId::of("append"),
        args: bytes::Bytes::from_static(LARGE),
    };
    let request =
        UnsequencedRequest::new(program, ShardSet::default()).placed(TxnId::default(), None);
    let forward = Message::Forward { requests: vec![(1, request)] };
    cluster.step(0, Input::Message { from: NodeId(1), message: forward });
    assert!(cluster.marks.contains(&(0, "calvin.not_taken")));
}

/// Story: it deposed the replica that had led in the meantime, because its own log knew of no
/// other. The epochs that that replica had run early were lost, too.
/// Calvin §3.1.1: the other replicas agree without the failed master.
#[test]
fn a_master_that_was_away_for_long_does_not_depose_the_one_that_took_its_place() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    cluster.away = Some(0);
    cluster.wait(400);
    let takes =
        |node: &u16| cluster.nodes[usize::from(*node)].calvin.state.inputs.accepts_requests();
    let other = [1, 2].into_iter().find(takes).expect("another master");
    cluster.away = None;
    cluster.start_again();
    cluster.connect_again();
    cluster.append(other, b"b");
    assert_eq!(cluster.results(other).pop().unwrap(), b"ab");
    cluster.deliver();
    cluster.wait(20);
    assert!(!cluster.marks.contains(&(0, "calvin.leads_again")));
    assert!(!cluster.marks.iter().any(|(_, mark)| *mark == "calvin.early_given_up"));
    cluster.append(0, b"c");
    cluster.wait(20);
    assert_eq!(cluster.results(0).pop().unwrap(), b"abc");
    cluster.assert_equal();
}

/// Story: an interactive transaction that had read void versions stayed in the batch that was being
/// collected. Other versions got the same numbers, and it was taken to have read those.
/// Calvin §3.1.1: a failover makes batches after the last valid one void.
#[test]
fn what_has_read_what_is_void_comes_into_no_batch() {
    let mut cluster = Cluster::new();
    cluster.append(0, b"a");
    cluster.wait(5);
    cluster.append(0, b"b");
    let early = cluster.nodes[0].store.published();
    let read = |at| {
        let seen = ReadVersion::At(at);
        let points = vec![PointRead { table: TABLE, key: Key::from(&b"row"[..]), seen }];
        let reads = ReadSet { points, ranges: Vec::new() };
        let certified = Certified { reads, writes: Vec::new(), ..Certified::default() };
        Submission {
            ticket: Ticket(9),
            request: Request::serializable(Program::Certified(certified)),
        }
    };
    let before = SnapshotVersion(early.0 - 1);
    cluster.step(0, Input::Submit(vec![read(early), read(before)]));
    assert_eq!(cluster.nodes[0].calvin.state.sequencer.current.len(), 2);
    let did = cluster.nodes[0].act(|calvin, cx| {
        calvin.state.inputs.discard_undecided(cx);
        calvin.note_void(cx);
    });
    let code = |outcome: &Outcome| match outcome {
        Outcome::Aborted(abort) => abort.code,
        Outcome::Committed { .. } => panic!("{outcome:?}"),
    };
    let codes: Vec<_> = did.replies.iter().map(code).collect();
    assert_eq!(codes, [SqlState::SERIALIZATION_FAILURE], "only the first");
    assert_eq!(cluster.nodes[0].calvin.state.sequencer.current.len(), 1);
}

/// Epochs skipped by a peer's checkpoint may contain a request of which the master's reply has not
/// arrived yet. Story: its client waited until the next failover.
/// Calvin §3.1.1 has the forwarding, and Calvin §5 the checkpoint.
#[test]
fn a_checkpoint_leaves_no_client_waiting_for_what_it_skipped() {
    let mut cluster = Cluster::new();
    cluster.append(1, b"a");
    assert_eq!(cluster.nodes[1].calvin.state.forwarding.len(), 1);
    let did = cluster.nodes[1].act(|calvin, cx| calvin.forget_forwarded(cx));
    assert_eq!(did.replies.len(), 1);
    assert_eq!(cluster.nodes[1].calvin.state.forwarding.len(), 0);
    cluster.wait(5);
    assert_eq!(cluster.results(1).len(), 0, "the request is not answered again");
    cluster.assert_equal();
}

/// A cut fixed after a peer's checkpoint that is not durable on this node could not be found in its
/// place by a restart.
/// Calvin §3.1.1: the batches of a master are valid in the order in which it fixed them.
#[test]
fn no_replica_is_master_before_its_disk_holds_what_a_checkpoint_brought() {
    let mut cluster = Cluster::new();
    cluster.nodes[0].act(|calvin, _| {
        let inputs = &mut calvin.state.inputs;
        inputs.checkpoints.installed = Some(inputs.cut.applied);
        inputs.streams.has_skipped = true;
    });
    cluster.away = Some(0);
    cluster.wait(400);
    cluster.away = None;
    cluster.connect_again();
    cluster.wait(1_500);
    assert!(!cluster.nodes[0].calvin.state.inputs.accepts_requests());
    cluster.nodes[0].act(|calvin, _| {
        calvin.state.inputs.checkpoints.installed = None;
        calvin.state.inputs.streams.has_skipped = false;
    });
    cluster.wait(1_500);
    assert!(cluster.nodes[0].calvin.state.inputs.accepts_requests());
}
