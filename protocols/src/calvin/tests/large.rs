//! Transactions that are too large for two shards: each is rejected, identically on both, and later
//! ones continue. No message is larger than a frame, whatever a client does.

use pangea_core::ids::{ProcedureId, TxnId};
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Message as _;
use pangea_core::txn::{Footprint, LockMode, PointLock};

use super::super::batch::Request as Placed;
use super::super::options::Replication;
use super::super::{Message, Timer};
use super::*;

const MIB: usize = 1 << 20;
/// The maximum frame size of the nodes' transport.
const FRAME_BYTES: usize = 64 * MIB;

/// Keys below this are on the first shard.
const SECOND_SHARD: u8 = 128;

fn row(first: u8, number: u8) -> Key {
    Key::from(&[first, number][..])
}

fn lock(key: Key, mode: LockMode) -> PointLock {
    PointLock { table: TABLE, key, mode }
}

/// A row of each shard, which a test writes.
fn ends() -> [Key; 2] {
    [row(0, 255), row(255, 255)]
}

/// Writes rows of a megabyte. Arguments: the first byte of their keys, and their number.
struct Fill;

impl Procedure for Fill {
    fn name(&self) -> &str {
        "fill"
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let locks = (0..args[1]).map(|number| lock(row(args[0], number), LockMode::Write));
        Some(Footprint::new(locks.collect(), vec![]))
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let value = Value::copy_from(&vec![7; MIB]);
        (0..args[1]).try_for_each(|number| cx.put(TABLE, row(args[0], number), value.clone()))?;
        Ok(Vec::new())
    }
}

/// Reads rows that [`Fill`] wrote, and writes their number on both shards. It declares its
/// footprint or does not.
struct Count {
    is_declared: bool,
}

impl Procedure for Count {
    fn name(&self) -> &str {
        if self.is_declared { "count" } else { "look" }
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let reads = (0..args[1]).map(|number| lock(row(args[0], number), LockMode::Shared));
        let writes = ends().map(|key| lock(key, LockMode::Write));
        self.is_declared.then(|| Footprint::new(reads.chain(writes).collect(), vec![]))
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let mut count = 0;
        for number in 0..args[1] {
            count += u8::from(cx.get(TABLE, &row(args[0], number))?.is_some());
        }
        for key in ends() {
            cx.put(TABLE, key, Value::copy_from(&[count]))?;
        }
        Ok(vec![count])
    }
}

/// Writes this number of keys of a megabyte, on both shards.
struct Keys;

impl Procedure for Keys {
    fn name(&self) -> &str {
        "keys"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        for number in 0..args[0] {
            let first = if number % 2 == 0 { 0 } else { SECOND_SHARD };
            let key = [vec![first, number], vec![7; MIB]].concat();
            cx.put(TABLE, Key::from(&key[..]), Value::copy_from(b""))?;
        }
        Ok(Vec::new())
    }
}

fn procedures() -> Vec<Arc<dyn Procedure>> {
    let (declared, found) = (Count { is_declared: true }, Count { is_declared: false });
    vec![Arc::new(Fill), Arc::new(declared), Arc::new(found), Arc::new(Keys)]
}

fn submission(name: &str, args: Vec<u8>) -> Submission {
    let procedure = Registry::new(procedures()).id(name).unwrap();
    let request = Request::serializable(Program::Call { procedure, args: args.into() });
    Submission { ticket: Ticket(1), request }
}

/// The two nodes of a region.
struct Pair {
    nodes: Vec<Node>,
    wire: Vec<(u16, u16, Message)>,
    replies: Vec<Outcome>,
    marks: Vec<&'static str>,
    /// The lengths of the longest message and of the longest reply to a reconnaissance.
    longest: usize,
    longest_found: usize,
}

impl Pair {
    fn new() -> Self {
        Self::with(&Options::default())
    }

    fn with(options: &Options) -> Self {
        let mut pair = Self {
            nodes: Vec::new(),
            wire: Vec::new(),
            replies: Vec::new(),
            marks: Vec::new(),
            longest: 0,
            longest_found: 0,
        };
        for me in 0..2 {
            let (node, did) = start(me, Vec::new(), options);
            pair.nodes.push(node);
            pair.note(me, did);
        }
        pair.step(0, Input::PeerUp(NodeId(1)));
        pair.step(1, Input::PeerUp(NodeId(0)));
        pair
    }

    fn note(&mut self, node: u16, did: Did) {
        assert_eq!(did.stopped, None);
        self.wire.extend(did.sent.into_iter().map(|(to, message)| (node, to.0, message)));
        self.replies.extend(did.replies);
        self.marks.extend(did.marks);
    }

    fn step(&mut self, node: u16, input: Input<Calvin>) {
        let did = self.nodes[usize::from(node)].step(input);
        self.note(node, did);
    }

    /// Lets 10 ms pass and delivers all messages.
    fn tick(&mut self) {
        for node in 0..2 {
            self.nodes[usize::from(node)].now_us += 10_000;
            for timer in [
                Timer::Inputs(inputs::Timer::Tick),
                Timer::Inputs(inputs::Timer::Batch),
                Timer::Inputs(inputs::Timer::Epoch),
                Timer::Inputs(inputs::Timer::Fetch),
                Timer::Inputs(inputs::Timer::Progress),
            ] {
                self.step(node, Input::Timer(timer));
            }
        }
        while !self.wire.is_empty() {
            for (from, to, message) in std::mem::take(&mut self.wire) {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                assert!(bytes.len() < FRAME_BYTES, "a message of {} bytes", bytes.len());
                self.longest = self.longest.max(bytes.len());
                if let Message::LookupReply { .. } = message {
                    self.longest_found = self.longest_found.max(bytes.len());
                }
                self.step(to, Input::Message { from: NodeId(from), message });
            }
        }
    }

    /// The outcome of a call on a node.
    fn call(&mut self, node: u16, name: &str, args: Vec<u8>) -> Outcome {
        self.step(node, Input::Submit(vec![submission(name, args)]));
        for _ in 0..100 {
            if let Some(outcome) = self.replies.pop() {
                assert!(self.replies.is_empty(), "a client is answered once");
                return outcome;
            }
            self.tick();
        }
        panic!("{name} does not end");
    }

    fn commits(&mut self, node: u16, name: &str, args: Vec<u8>) -> Vec<u8> {
        match self.call(node, name, args) {
            Outcome::Committed { result, .. } => result,
            Outcome::Aborted(abort) => panic!("{abort:?}"),
        }
    }

    /// Checks that a call is rejected as too large, and that both nodes continue.
    fn is_refused(&mut self, node: u16, name: &str, args: Vec<u8>, mark: &str) -> String {
        let before = self.marks.iter().filter(|it| **it == mark).count();
        let Outcome::Aborted(abort) = self.call(node, name, args) else {
            panic!("the transaction commits")
        };
        assert_eq!(abort.code.as_str(), "54000", "{abort:?}");
        assert!(abort.detail.is_some() && abort.hint.is_some(), "{abort:?}");
        let after = self.marks.iter().filter(|it| **it == mark).count();
        assert_eq!(after - before, 1, "{mark}");
        for node in 0..2 {
            assert_eq!(self.commits(node, "count", vec![1, 3]), [0], "the cluster continues");
        }
        abort.message
    }

    /// Restarts both nodes and checks that they reach the same state.
    fn start_again(&mut self) {
        (0..20).for_each(|_| self.tick());
        for me in 0..2 {
            let Node { log, store, now_us, .. } = &self.nodes[usize::from(me)];
            let (version, now_us) = (store.published(), *now_us);
            let digest = store.digest(version);
            let (again, did) = start(me, log.clone(), &Options::default());
            assert_eq!((again.store.published(), did.stopped.clone()), (version, None));
            assert_eq!(again.store.digest(version), digest, "node {me}");
            self.nodes[usize::from(me)] = Node { now_us, ..again };
            self.note(me, did);
        }
        self.wire.clear();
        self.step(0, Input::PeerUp(NodeId(1)));
        self.step(1, Input::PeerUp(NodeId(0)));
    }
}

fn start(me: u16, log: Vec<(LogPosition, Bytes)>, options: &Options) -> (Node, Did) {
    let rule = Rule::Ranges { starts: vec![vec![SECOND_SHARD]] };
    let partitions = Partitions::new(2, Rule::Everywhere).with(TABLE, rule);
    let topology = Topology::one_node_per_region("t", &["eu"], Span::ZERO).divided(partitions);
    Node::start_with(me, topology, log, procedures(), options)
}

/// Story: rows that were too large for a frame were sent again with each connection, and neither
/// shard made progress any more.
/// Calvin §3.2, phase 3: rows are sent to every active participant.
#[test]
fn rows_that_are_too_many_to_be_sent_are_a_refusal_on_all_shards() {
    let mut pair = Pair::new();
    pair.commits(0, "fill", vec![200, 25]);
    for node in 0..2 {
        let message = pair.is_refused(node, "count", vec![200, 25], "calvin.part_too_large");
        assert!(
            message.contains("shard 1 would have to send at least 25166064 bytes"),
            "{message}"
        );
        assert_eq!(
            pair.commits(node, "count", vec![200, 23]),
            [23],
            "rows within the limit are sent"
        );
    }
    assert!(pair.longest > 23 * MIB && pair.longest < 25 * MIB, "{}", pair.longest);
    pair.start_again();
    assert_eq!(pair.commits(1, "count", vec![200, 20]), [20]);
}

/// Calvin §3.2.1: a reconnaissance reads on other shards.
#[test]
fn a_reconnaissance_is_answered_in_parts() {
    let mut pair = Pair::new();
    pair.commits(1, "fill", vec![200, 25]);
    assert_eq!(pair.commits(0, "look", vec![200, 20]), [20]);
    assert!(pair.marks.contains(&"calvin.looked"));
    assert!(pair.longest_found < 2 * MIB + 100, "{}", pair.longest_found);
    pair.is_refused(0, "look", vec![200, 25], "calvin.part_too_large");
    let message = pair.is_refused(0, "keys", vec![33], "calvin.looked_too_far");
    assert!(message.contains("reads and writes"), "{message}");
}

/// Story: its batch could not be sent to any peer, and neither could later ones.
/// Calvin §3.2.1: the read/write set of a reconnaissance is sequenced with the transaction.
#[test]
fn a_footprint_that_is_too_large_to_be_sent_is_a_refusal() {
    let mut pair = Pair::new();
    let mut args = vec![0; 23 * MIB];
    args[0] = 28;
    let message = pair.is_refused(1, "keys", args.clone(), "calvin.footprint_too_large");
    assert!(message.contains("its arguments and the keys of its footprint"), "{message}");
    args[0] = 20;
    pair.commits(1, "keys", args);
    pair.start_again();
    pair.commits(0, "keys", vec![2]);
}

/// Story: the backlog of another shard's node was sent by whole epochs, whatever their size. A
/// connection was closed when more was queued than it may have, and the next one began with the
/// same epoch.
/// Calvin §3.1: a sequencer sends to each scheduler the requests in which its shard participates.
#[test]
fn an_epoch_that_is_much_is_sent_some_messages_at_a_time() {
    for replication in [Replication::Synchronous, Replication::Asynchronous] {
        let options = Options { batch_bytes: 1_024, replication, ..Options::default() };
        let mut pair = Pair::with(&options);
        (0..50).for_each(|_| pair.tick());
        for (me, other) in [(0, 1), (1, 0)] {
            pair.step(me, Input::PeerDown(NodeId(other)));
        }
        let args = [vec![200, 0], vec![0; 300]].concat();
        let calls = (0..100).map(|_| submission("count", args.clone())).collect();
        pair.step(0, Input::Submit(calls));
        pair.step(0, Input::Timer(Timer::Inputs(inputs::Timer::Epoch)));
        pair.wire.clear();
        pair.marks.clear();
        pair.step(0, Input::PeerUp(NodeId(1)));
        pair.step(1, Input::PeerUp(NodeId(0)));
        // A message has two batches, and four messages are sent at a time.
        let mut most: usize = 0;
        while !pair.wire.is_empty() {
            for (from, to, message) in std::mem::take(&mut pair.wire) {
                pair.step(to, Input::Message { from: NodeId(from), message });
                most = most.max(pair.wire.iter().map(|(_, _, it)| it.payload_bytes()).sum());
            }
        }
        let times = pair.marks.iter().filter(|mark| **mark == "calvin.more").count();
        assert!(times >= 3 && most <= 5 * 2_048, "{times} times, {most} bytes at once");
        (0..50).for_each(|_| pair.tick());
        assert_eq!(pair.replies.len(), 100);
        assert!(pair.replies.iter().all(|it| matches!(it, Outcome::Committed { .. })));
    }
}

/// Calvin §3.1.1: requests are forwarded to the master.
#[test]
fn a_request_that_another_replica_forwards_is_looked_at_too() {
    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
    let options = Options { replication: Replication::Asynchronous, ..Options::default() };
    let (mut node, _) = Node::start_as(0, topology, Vec::new(), "append", &options);
    node.step(Input::PeerUp(NodeId(1)));
    node.hear_greeting(1);
    let mut marks = |keys: u8| {
        let locks = (0..keys).map(|number| {
            let key = [vec![number], vec![7; MIB]].concat();
            lock(Key::from(&key[..]), LockMode::Write)
        });
        let request = Placed {
            txn: TxnId::default(),
            program: Program::Call { procedure: ProcedureId::of("append"), args: Bytes::new() },
            footprint: Some(Footprint::new(locks.collect(), vec![])),
            shards: ShardSet::default(),
            origin: None,
        };
        let message = Message::Forward { requests: vec![(1, request)] };
        node.step(Input::Message { from: NodeId(1), message }).marks
    };
    assert!(marks(47).contains(&"calvin.not_taken"));
    assert!(marks(48).contains(&"calvin.malformed_forward"));
}
