//! A single replica, step by step: a later start replays its log under the rules that were agreed
//! on, or not at all.

mod backpressure;
mod failing;
mod forwarding;
mod handed_on;
mod large;
mod membership;
mod nonsense;
mod results;
mod sources;
mod strangers;
mod subscriptions;
mod turns;

use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TableId, Ticket};
use pangea_core::key::Key;
use pangea_core::partition::{Partitions, Rule};
use pangea_core::pool::Sequential;
use pangea_core::protocol::{Cx, Durable, Effect, Input, Protocol, Request, Setup, Submission};
use pangea_core::store::Store;
use pangea_core::time::{ClockReading, Span, Timestamp};
use pangea_core::topology::Topology;
use pangea_core::txn::{Context, Outcome, Procedure, Program, Registry, Stop};
use pangea_core::value::Value;

use super::shards::remote_results::RemoteResults;
use super::shards::slice::{CutId, Lineage, Slice};
use super::{Calvin, Message, Options};
use crate::inputs::{self, Rules as _};

const TABLE: TableId = TableId(7);

/// Appends its argument to the value of the only row.
struct Append(&'static str);

impl Procedure for Append {
    fn name(&self) -> &str {
        self.0
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let before = cx.get(TABLE, b"row")?;
        let mut row = before.map_or_else(Vec::new, |value| value.to_vec());
        row.extend(args);
        cx.put(TABLE, Key::from(&b"row"[..]), Value::copy_from(&row))?;
        Ok(row)
    }
}

/// The effects of a start: replies, log records, and the reason for a stop.
#[derive(Default)]
struct Did {
    replies: Vec<Outcome>,
    stopped: Option<String>,
    marks: Vec<&'static str>,
    sent: Vec<(NodeId, Message)>,
    /// The versions with which the reports of master terms begin, and these terms.
    master_terms: Vec<(SnapshotVersion, Option<(NodeId, u64)>)>,
}

struct Node {
    calvin: Calvin,
    store: Arc<Store>,
    log: Vec<(LogPosition, Bytes)>,
    rng: fastrand::Rng,
    now_us: u64,
}

impl Node {
    /// A cut of another group that was proposed under this node's code.
    fn cut_of_own_code(&self) -> CutId {
        CutId { code: self.calvin.state.inputs.settings.rules.code(), ..CutId::default() }
    }

    /// Starts it with a log and with a procedure of this name.
    fn start(log: Vec<(LogPosition, Bytes)>, name: &'static str, options: &Options) -> (Self, Did) {
        let topology = Topology::one_node_per_region("t", &["a"], Span::ZERO);
        Self::start_in(topology, log, name, options)
    }

    fn start_in(
        topology: Topology,
        log: Vec<(LogPosition, Bytes)>,
        name: &'static str,
        options: &Options,
    ) -> (Self, Did) {
        Self::start_as(0, topology, log, name, options)
    }

    fn start_as(
        me: u16,
        topology: Topology,
        log: Vec<(LogPosition, Bytes)>,
        name: &'static str,
        options: &Options,
    ) -> (Self, Did) {
        let procedure: Arc<dyn Procedure> = Arc::new(Append(name));
        Self::start_with(me, topology, log, vec![procedure], options)
    }

    fn start_with(
        me: u16,
        topology: Topology,
        log: Vec<(LogPosition, Bytes)>,
        procedures: Vec<Arc<dyn Procedure>>,
        options: &Options,
    ) -> (Self, Did) {
        let calvin = Calvin::new(Setup {
            me: NodeId(me),
            topology: Arc::new(topology),
            registry: Arc::new(Registry::new(procedures)),
            options: options.clone(),
        });
        let (store, rng) = (Arc::new(Store::new()), fastrand::Rng::with_seed(1 + u64::from(me)));
        let mut node = Self { calvin, store, log: log.clone(), rng, now_us: 1 };
        let durable = Durable { records: log, ..Durable::default() };
        let did = node.step(Input::Restart(durable));
        (node, did)
    }

    /// Takes a step, and those that follow from it on a disk that syncs at once.
    fn step(&mut self, input: Input<Calvin>) -> Did {
        let (mut did, mut inputs) = (Did::default(), vec![input]);
        while let Some(input) = inputs.pop() {
            let at = Timestamp::from_us(self.now_us);
            let now = ClockReading { at, uncertainty: Span::ZERO };
            let mut effects = Vec::new();
            let head = self.log.last().map_or(LogPosition(0), |(position, _)| *position);
            let (rng, store) = (&mut self.rng, &self.store);
            let mut cx = Cx::new(now, rng, store, &Sequential, head, &mut effects);
            self.calvin.step(&mut cx, input);
            self.calvin.invariants();
            let mut persisted = None;
            for effect in effects {
                match effect {
                    Effect::Persist { position, record } => {
                        self.log.push((position, record.concat().into()));
                        persisted = Some(position);
                    }
                    Effect::Reply { outcome, .. } => did.replies.push(outcome),
                    Effect::Stop { reason } => did.stopped = Some(reason),
                    Effect::Mark(name) => did.marks.push(name),
                    Effect::Send { to, message, .. } => did.sent.push((to, message)),
                    Effect::Resume => inputs.push(Input::Resume),
                    Effect::MasterTerm { from, master_term, .. } => {
                        did.master_terms.push((from, master_term));
                    }
                    _ => {}
                }
            }
            inputs.extend(persisted.map(Input::Durable));
        }
        did
    }

    /// Performs an action outside of a step.
    fn act(&mut self, act: impl FnOnce(&mut Calvin, &mut Cx<'_, Calvin>)) -> Did {
        let now = ClockReading { at: Timestamp::from_us(self.now_us), uncertainty: Span::ZERO };
        let mut effects = Vec::new();
        let head = self.log.last().map_or(LogPosition(0), |(position, _)| *position);
        let mut cx = Cx::new(now, &mut self.rng, &self.store, &Sequential, head, &mut effects);
        act(&mut self.calvin, &mut cx);
        self.calvin.invariants();
        let mut did = Did::default();
        for effect in effects {
            match effect {
                Effect::Persist { position, record } => {
                    self.log.push((position, record.concat().into()));
                }
                Effect::Reply { outcome, .. } => did.replies.push(outcome),
                Effect::Stop { reason } => did.stopped = Some(reason),
                _ => {}
            }
        }
        did
    }

    /// A replica of the group has greeted.
    fn hear_greeting(&mut self, replica: u16) {
        self.act(|calvin, _| _ = calvin.state.inputs.presence.note_greeting(NodeId(replica)));
    }

    fn append(&mut self, bytes: &[&'static [u8]]) -> Vec<Vec<u8>> {
        let did = self.step(Input::Submit(submit(bytes)));
        let result = |outcome: &Outcome| match outcome {
            Outcome::Committed { result, .. } => result.clone(),
            Outcome::Aborted(abort) => panic!("{abort:?}"),
        };
        did.replies.iter().map(result).collect()
    }
}

/// Calls that append these.
fn submit(bytes: &[&'static [u8]]) -> Vec<Submission> {
    let submission = |(i, bytes): (usize, &&'static [u8])| {
        let (procedure, args) =
            (pangea_core::ids::ProcedureId::of("append"), Bytes::from_static(bytes));
        let request = Request::serializable(Program::Call { procedure, args });
        Submission { ticket: Ticket(i as u64), request }
    };
    bytes.iter().enumerate().map(submission).collect()
}

/// Calvin §5: a replay of the logged inputs recovers the state.
#[test]
fn requests_are_run_in_their_order_and_run_again_by_the_next_start() {
    let options = Options::default();
    let (mut node, _) = Node::start(Vec::new(), "append", &options);
    assert_eq!(node.append(&[b"a", b"b"]), [b"a".to_vec(), b"ab".to_vec()]);
    assert_eq!(node.append(&[b"c"]), [b"abc"]);
    let version = node.store.published();
    assert_eq!(version, SnapshotVersion(2), "one epoch each");
    let (again, did) = Node::start(node.log.clone(), "append", &options);
    assert_eq!((did.stopped, did.replies), (None, Vec::new()), "no client waits for them any more");
    assert_eq!(again.store.published(), version);
    assert_eq!(again.store.digest(version), node.store.digest(version));
}

/// The rule is part of the decision and does not depend on the replica that applies it.
/// Calvin §3.2: the order of lock requests is the serial order of the sequencing layer.
#[test]
fn an_epoch_is_scheduled_as_its_cut_says_whatever_the_setting_is_now() {
    let options = Options { slice_txns: NonZeroUsize::MIN, ..Options::default() };
    let (mut node, _) = Node::start(Vec::new(), "append", &options);
    node.append(&[b"a", b"b", b"c"]);
    let version = node.store.published();
    let other = Options { slice_txns: NonZeroUsize::new(64).unwrap(), ..options };
    let (again, did) = Node::start(node.log.clone(), "append", &other);
    assert_eq!(did.stopped, None);
    assert_eq!(again.store.digest(version), node.store.digest(version));
}

/// Calvin §5 logs only the transactional input, so a replay needs the code that ran it.
#[test]
fn what_was_agreed_on_under_other_code_is_not_run() {
    let options = Options::default();
    let (mut node, _) = Node::start(Vec::new(), "append", &options);
    node.append(&[b"a"]);
    let (again, did) = Node::start(node.log.clone(), "append_otherwise", &options);
    let why = did.stopped.expect("the node stops");
    assert!(why.contains("epoch 1") && why.contains("stop it in order"), "{why}");
    assert_eq!(again.store.published(), SnapshotVersion::ZERO, "no epoch was run");
}

/// Messages that no correct node of another shard sends change no state, and are not answered.
/// The messages are those of Calvin §3.1 and §3.2.
#[test]
fn what_makes_no_sense_from_another_shard_is_passed_over() {
    let options = Options::default();
    let said = |node: &mut Node, from: u16, message: Message| {
        let did = node.step(Input::Message { from: NodeId(from), message });
        (did.marks, did.sent.len())
    };
    let (mut whole, _) = Node::start(Vec::new(), "append", &options);
    let kept = Message::ShardProgress {
        upto: SnapshotVersion(9),
        applied: SnapshotVersion(9),
        waits_for: None,
    };
    whole.hear_greeting(0);
    assert_eq!(said(&mut whole, 0, kept.clone()), (vec!["calvin.not_divided"], 0));

    let topology = Topology::one_node_per_region("t", &["a", "b"], Span::ZERO);
    let topology = topology.divided(Partitions::new(2, Rule::Hash { prefix_bytes: 8 }));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &options);
    let up = node.step(Input::PeerUp(NodeId(1)));
    assert_eq!((up.marks, up.sent.len()), (vec!["calvin.subscribed"], 1));
    let to_group = Message::Inputs(inputs::Message::BarrierRequest { token: 1 });
    assert_eq!(said(&mut node, 1, to_group), (vec!["calvin.not_of_the_group"], 0));
    node.hear_greeting(1);
    assert_eq!(said(&mut node, 2, kept), (vec!["calvin.not_to_its_own_shard"], 0));
    let slice = |epoch, shard| {
        let (epoch, shard) = (SnapshotVersion(epoch), ShardId(shard));
        Message::Slice { slice: Slice::new(epoch, shard, CutId::default(), Vec::new()) }
    };
    assert_eq!(said(&mut node, 1, slice(1, 0)), (vec!["calvin.slice_of_another"], 0));
    let again = vec!["calvin.slice_after_gap", "calvin.subscribed"];
    assert_eq!(said(&mut node, 1, slice(5, 1)), (again, 1));
    assert_eq!(
        said(&mut node, 1, slice(6, 1)),
        (vec!["calvin.slice_after_gap"], 0),
        "requested once"
    );
    assert_eq!(said(&mut node, 3, slice(6, 1)), (vec!["calvin.slice_after_unsubscribed"], 0));
    assert_eq!(said(&mut node, 1, slice(1, 1)), (vec![], 0));
    assert_eq!(said(&mut node, 1, slice(1, 1)), (vec!["calvin.slice_again"], 0));
    let results = Message::RemoteResults {
        results: RemoteResults::new((SnapshotVersion(1 << 40), Lineage::default()), &[]),
    };
    assert_eq!(said(&mut node, 1, results), (vec!["calvin.items_too_far_ahead"], 0));
}
