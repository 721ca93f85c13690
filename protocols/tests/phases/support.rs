//! A lockstep world for real replicas: the test determines which messages are delivered, lost or
//! held back, when a disk syncs, when a batch is closed and when a cut is proposed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, Ticket};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::pool::Sequential;
use pangea_core::protocol::{
    Checkpoint, Cx, Durable, Effect, Input, Message as _, Protocol, Request, Setup, Submission,
};
use pangea_core::store::{Store, Version};
use pangea_core::time::{ClockReading, Span, Timestamp};
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program};
use pangea_protocols::minerva::{Message, Minerva, Options, Timer};

use super::script::{Runs, TABLE, program, registry};

/// More deliveries than this in one call mean that replicas answer each other endlessly.
const DELIVERIES_MAX: usize = 100_000;

/// The fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Deliver,
    Lose,
    HoldBack,
}

type Rule = Box<dyn Fn(NodeId, NodeId, &Message) -> Fate>;
type Letter = (NodeId, NodeId, Message);
type Row = (pangea_core::ids::TableId, Key, Version);

/// A cluster, its network and its disks.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub rule: Rule,
    /// Every message that was sent, whatever its fate.
    pub sent: Vec<Letter>,
    wire: Vec<Letter>,
    held_back: Vec<Letter>,
    topology: Arc<Topology>,
    pub options: Options,
    now: Timestamp,
    tickets: u64,
}

/// A node: the state that survives a crash, and the replica while it runs.
pub struct Node {
    pub brain: Option<Minerva>,
    pub store: Arc<Store>,
    pub log: Vec<(LogPosition, Bytes)>,
    pub synced: LogPosition,
    pub syncs: bool,
    pub writes_checkpoints: bool,
    /// Whether checkpoints can't be written.
    pub fails_checkpoints: bool,
    /// Whether it never resumes deferred work.
    pub is_slow: bool,
    pub checkpoint: Option<(Checkpoint, Vec<Row>)>,
    /// The number of procedure runs on this node.
    pub runs: Runs,
    pub marks: BTreeMap<&'static str, u64>,
    head: LogPosition,
    waiting: Vec<Effect<Minerva>>,
    writing: Option<(Checkpoint, Vec<Row>)>,
    wants_resume: bool,
    /// The reason why the node stopped itself.
    pub stopped: Option<String>,
    /// Whether its disk was lost and it has not rejoined yet.
    pub is_replaced: bool,
    timers: BTreeMap<Timer, Timestamp>,
    replies: BTreeMap<Ticket, Outcome>,
    fresh: BTreeMap<Ticket, SnapshotVersion>,
    rng: fastrand::Rng,
}

/// Options with which nothing happens that the test does not request.
pub fn by_hand() -> Options {
    const NEVER_MS: u64 = 1 << 40;
    Options { epoch_ms: NEVER_MS, batch_ms: NEVER_MS, removal_ms: NEVER_MS, ..Options::default() }
}

/// The paper's protocol, with the same property.
pub fn paper_by_hand() -> Options {
    Options { keep_uncommitted: false, ack_everyone: false, parallel_commit: false, ..by_hand() }
}

impl Cluster {
    /// Creates `n` nodes that are connected and have elected a coordinator.
    pub fn new(n: usize, options: Options) -> Self {
        let mut cluster = Self::not_started(n, options);
        (0..n).for_each(|id| cluster.start(id));
        cluster.run_for(2_000);
        cluster.leader();
        cluster
    }

    /// Creates `n` nodes with empty disks, none of which runs.
    pub fn not_started(n: usize, options: Options) -> Self {
        let regions = ["a", "b", "c", "d", "e"];
        let topology = Topology::one_node_per_region("test", &regions[..n], Span::from_ms(1));
        Self {
            nodes: (0..n).map(Node::new).collect(),
            rule: Box::new(|_, _, _| Fate::Deliver),
            sent: Vec::new(),
            wire: Vec::new(),
            held_back: Vec::new(),
            topology: Arc::new(topology),
            options,
            now: Timestamp::from_us(1),
            tickets: 0,
        }
    }

    /// The one coordinator that all running nodes know.
    pub fn leader(&self) -> usize {
        let running = self.nodes.iter().filter_map(|node| node.brain.as_ref());
        let leaders: Vec<_> = running.map(|brain| brain.status().coordinator).collect();
        let leader = leaders[0].expect("a coordinator is elected");
        assert!(leaders.iter().all(|known| *known == Some(leader)), "{leaders:?}");
        leader.index()
    }

    /// Starts a node from its disk.
    pub fn start(&mut self, id: usize) {
        let runs = Runs::default();
        let setup = Setup {
            me: NodeId(id as u16),
            topology: self.topology.clone(),
            registry: Arc::new(registry(&runs)),
            options: self.options.clone(),
        };
        let node = &mut self.nodes[id];
        assert!(node.brain.is_none());
        node.runs = runs;
        node.store = Arc::new(Store::new());
        let mut durable =
            Durable { checkpoint: None, records: node.log.clone(), is_replaced: node.is_replaced };
        if let Some((checkpoint, rows)) = &node.checkpoint {
            for (table, key, version) in rows.clone() {
                node.store.apply(table, key, version);
            }
            durable.checkpoint = Some(checkpoint.clone());
        }
        node.brain = Some(Minerva::new(setup));
        self.step(id, Input::Restart(durable));
        for peer in (0..self.nodes.len()).filter(|&peer| peer != id) {
            if self.nodes[peer].brain.is_some() {
                self.step(peer, Input::PeerUp(NodeId(id as u16)));
                self.step(id, Input::PeerUp(NodeId(peer as u16)));
            }
        }
    }

    /// Stops a node: unsynced records and messages in flight are lost.
    pub fn crash(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        node.brain = None;
        node.log.retain(|(position, _)| *position <= node.synced);
        node.head = node.synced;
        node.waiting.clear();
        node.writing = None;
        node.timers.clear();
        let me = NodeId(id as u16);
        self.wire.retain(|(from, to, _)| *from != me && *to != me);
        self.held_back.retain(|(from, to, _)| *from != me && *to != me);
        for peer in 0..self.nodes.len() {
            if self.nodes[peer].brain.is_some() {
                self.step(peer, Input::PeerDown(me));
            }
        }
    }

    /// Submits a script.
    pub fn call(&mut self, id: usize, script: &str) -> Ticket {
        self.submit(id, Request::Commit(program("script", script)))
    }

    /// Submits a read-only script.
    pub fn look(&mut self, id: usize, script: &str) -> Ticket {
        self.submit(id, Request::Commit(program("look", script)))
    }

    pub fn commit(&mut self, id: usize, program: Program) -> Ticket {
        self.submit(id, Request::Commit(program))
    }

    pub fn submit(&mut self, id: usize, request: Request) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.step(id, Input::Submit(vec![Submission { ticket, request }]));
        ticket
    }

    /// Closes the current batch of a node, and delivers all messages.
    pub fn batch(&mut self, id: usize) {
        self.step(id, Input::Timer(Timer::Batch));
        self.settle();
    }

    /// Closes all current batches, and lets the coordinator propose a cut.
    pub fn epoch(&mut self) {
        for id in 0..self.nodes.len() {
            if self.nodes[id].brain.is_some() {
                self.batch(id);
            }
        }
        self.cut();
    }

    /// Lets the coordinator propose a cut, and delivers all messages.
    pub fn cut(&mut self) {
        let leader = self.leader();
        self.fire(leader, Timer::Epoch);
    }

    /// Fires a timer of a node, and delivers all messages.
    pub fn fire(&mut self, id: usize, timer: Timer) {
        self.step(id, Input::Timer(timer));
        self.settle();
    }

    /// Delivers and syncs until nothing more happens.
    pub fn settle(&mut self) {
        for _ in 0..DELIVERIES_MAX {
            let has_synced = (0..self.nodes.len()).fold(false, |any, id| any | self.sync(id));
            if self.wire.is_empty() {
                let has_resumed =
                    (0..self.nodes.len()).fold(false, |any, id| any | self.resume(id));
                if has_synced || has_resumed {
                    continue;
                }
                return;
            }
            let (from, to, message) = self.wire.remove(0);
            match (self.rule)(from, to, &message) {
                Fate::Deliver if self.nodes[to.index()].brain.is_some() => {
                    self.step(to.index(), Input::Message { from, message });
                }
                Fate::Deliver | Fate::Lose => {}
                Fate::HoldBack => self.held_back.push((from, to, message)),
            }
        }
        panic!("replicas exchange messages without end");
    }

    /// Puts the messages that were held back on the wire again; the rule is applied again.
    pub fn release(&mut self) {
        self.wire.append(&mut self.held_back);
        self.settle();
    }

    /// Delivers every message from now on.
    pub fn heal(&mut self) {
        self.rule = Box::new(|_, _, _| Fate::Deliver);
        self.release();
    }

    /// Breaks a connection, with the loss of its messages in flight, and restores it.
    pub fn reconnect(&mut self, a: usize, b: usize) {
        let (first, second) = (NodeId(a as u16), NodeId(b as u16));
        self.held_back.retain(|(from, to, _)| {
            (*from, *to) != (first, second) && (*from, *to) != (second, first)
        });
        for input in [Input::PeerDown, Input::PeerUp] {
            self.step(a, input(second));
            self.step(b, input(first));
        }
        self.settle();
    }

    /// Lets time pass, with timers, deliveries and syncs.
    pub fn run_for(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now = self.now + Span::from_ms(1);
            for id in 0..self.nodes.len() {
                let is_due =
                    |(timer, at): (&Timer, &Timestamp)| (*at <= self.now).then_some(*timer);
                let due: Vec<_> = self.nodes[id].timers.iter().filter_map(is_due).collect();
                for timer in due {
                    if self.nodes[id].timers.remove(&timer).is_some() {
                        self.step(id, Input::Timer(timer));
                    }
                }
            }
            self.settle();
        }
    }

    /// Makes a node's whole log durable, if its disk syncs.
    fn sync(&mut self, id: usize) -> bool {
        let node = &mut self.nodes[id];
        if node.brain.is_none() || !node.syncs {
            return false;
        }
        if node.writes_checkpoints
            && let Some((checkpoint, rows)) = node.writing.take()
        {
            let version = checkpoint.version;
            if node.fails_checkpoints {
                self.step(id, Input::CheckpointFailed(version));
                return true;
            }
            node.checkpoint = Some((checkpoint, rows));
            self.step(id, Input::Checkpointed(version));
            return true;
        }
        if node.synced == node.head {
            return false;
        }
        node.synced = node.head;
        let position = node.synced;
        let waiting = std::mem::take(&mut node.waiting);
        waiting.into_iter().for_each(|effect| self.carry_out(id, effect));
        self.step(id, Input::Durable(position));
        true
    }

    /// Replaces a node that does not run by one with an empty disk, and starts it.
    pub fn replace(&mut self, id: usize) {
        self.lose_log(id);
        self.nodes[id].is_replaced = true;
        self.start(id);
    }

    /// Empties the disk of a node that does not run.
    pub fn lose_log(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        assert!(node.brain.is_none(), "the node is not running");
        node.stopped = None;
        node.log.clear();
        node.checkpoint = None;
        (node.head, node.synced) = (LogPosition(0), LogPosition(0));
    }

    /// Restores an earlier disk of a node that does not run.
    pub fn restore_log(&mut self, id: usize, log: Vec<(LogPosition, Bytes)>) {
        let node = &mut self.nodes[id];
        (node.head, node.synced) = (LogPosition(log.len() as u64), LogPosition(log.len() as u64));
        node.log = log;
    }

    /// Removes the records from a position on from the disk of a node that does not run.
    pub fn lose_records_from(&mut self, id: usize, first: LogPosition) {
        let node = &mut self.nodes[id];
        assert!(node.brain.is_none(), "the node is not running");
        node.log.retain(|(position, _)| *position < first);
        node.head = LogPosition(first.0 - 1);
        node.synced = node.head;
    }

    /// Syncs every disk, and delivers at most `count` messages.
    pub fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            (0..self.nodes.len()).for_each(|id| _ = self.sync(id));
            if self.wire.is_empty() {
                return;
            }
            let (from, to, message) = self.wire.remove(0);
            self.step(to.index(), Input::Message { from, message });
        }
    }

    /// Lets a node continue deferred work, if it has any.
    pub fn resume(&mut self, id: usize) -> bool {
        let node = &mut self.nodes[id];
        let can = node.brain.is_some() && !node.is_slow;
        let is_due = can && std::mem::take(&mut node.wants_resume);
        if is_due {
            self.step(id, Input::Resume);
        }
        is_due
    }

    /// Makes one more record of a node durable.
    pub fn sync_one(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        assert!(node.synced < node.head, "there is one");
        node.synced = LogPosition(node.synced.0 + 1);
        let position = node.synced;
        let waiting = std::mem::take(&mut node.waiting);
        waiting.into_iter().for_each(|effect| self.carry_out(id, effect));
        self.step(id, Input::Durable(position));
    }

    /// Performs one step of one node, and its effects.
    pub fn step(&mut self, id: usize, input: Input<Minerva>) {
        let node = &mut self.nodes[id];
        if node.stopped.is_some() {
            return;
        }
        let now = ClockReading { at: self.now, uncertainty: Span::ZERO };
        let mut effects = Vec::new();
        let mut cx = Cx::new(now, &mut node.rng, &node.store, &Sequential, node.head, &mut effects);
        let brain = node.brain.as_mut().expect("only a running node takes steps");
        brain.step(&mut cx, input);
        brain.invariants();
        effects.into_iter().for_each(|effect| self.carry_out(id, effect));
    }

    fn carry_out(&mut self, id: usize, effect: Effect<Minerva>) {
        let node = &mut self.nodes[id];
        match effect {
            // No effect is carried out after a stop.
            _ if node.stopped.is_some() => {}
            Effect::Send { after, .. } | Effect::Reply { after, .. } if after > node.synced => {
                node.waiting.push(effect);
            }
            Effect::Send { to, message, .. } => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                assert_eq!(Message::decode(&bytes.into()).as_ref(), Ok(&message));
                self.sent.push((NodeId(id as u16), to, message.clone()));
                self.wire.push((NodeId(id as u16), to, message));
            }
            Effect::Reply { ticket, outcome, .. } => {
                assert!(
                    node.replies.insert(ticket, outcome).is_none(),
                    "a ticket is answered twice"
                );
            }
            Effect::Persist { position, record } => {
                assert_eq!(position.0, node.head.0 + 1, "records are numbered without gaps");
                node.head = position;
                node.log.push((position, record.concat().into()));
            }
            Effect::SetTimer { timer, at } => {
                node.timers.insert(timer, at);
            }
            Effect::Resume => node.wants_resume = true,
            Effect::Prefetch { .. } => panic!("all rows are in memory"),
            Effect::ClearTimer(timer) => {
                node.timers.remove(&timer);
            }
            Effect::Fresh { ticket, version } => {
                node.fresh.insert(ticket, version);
            }
            Effect::Checkpoint { checkpoint, .. } => {
                let rows = node.rows(checkpoint.version);
                node.writing = Some((checkpoint, rows));
            }
            Effect::Truncate(first) => node.log.retain(|(position, _)| *position >= first),
            Effect::Rejoined => node.is_replaced = false,
            Effect::MasterTerm { .. } => panic!("there is no master"),
            Effect::Stop { reason } => node.stopped = Some(reason),
            Effect::Mark(name) => *node.marks.entry(name).or_default() += 1,
        }
    }

    pub fn outcome(&self, id: usize, ticket: Ticket) -> Option<&Outcome> {
        self.nodes[id].replies.get(&ticket)
    }

    /// The result of a script that committed.
    pub fn result(&self, id: usize, ticket: Ticket) -> String {
        match self.outcome(id, ticket) {
            Some(Outcome::Committed { result, .. }) => String::from_utf8_lossy(result).into(),
            other => panic!("{ticket} is not committed: {other:?}"),
        }
    }

    /// The version that a strict read may use, once there is one.
    pub fn fresh(&self, id: usize, ticket: Ticket) -> Option<SnapshotVersion> {
        self.nodes[id].fresh.get(&ticket).copied()
    }

    /// The value of a key on a node as of its last epoch; empty if there is none.
    pub fn value(&self, id: usize, key: &str) -> String {
        let store = &self.nodes[id].store;
        let found = store.read(TABLE, key.as_bytes(), store.published());
        let value = found.and_then(|found| found.value);
        value.map_or(String::new(), |value| String::from_utf8_lossy(&value).into())
    }

    /// The value of a key, which must be the same on all nodes. Asserts that all nodes are
    /// identical.
    pub fn everywhere(&self, key: &str) -> String {
        let digest = |node: &Node| (node.applied(), node.store.digest(node.applied()));
        let first = digest(&self.nodes[0]);
        assert!(self.nodes.iter().all(|node| digest(node) == first), "replicas differ");
        self.value(0, key)
    }

    pub fn counter(&self, id: usize, name: &str) -> u64 {
        let brain = self.nodes[id].brain.as_ref().expect("the node runs");
        brain.status().counters[name]
    }

    /// The number of nodes in the configuration.
    pub fn members(&self, id: usize) -> usize {
        self.nodes[id].brain.as_ref().expect("the node runs").status().members.len()
    }

    pub fn mark(&self, id: usize, name: &str) -> u64 {
        self.nodes[id].marks.get(name).copied().unwrap_or(0)
    }
}

impl Node {
    fn new(id: usize) -> Self {
        Self {
            brain: None,
            store: Arc::default(),
            log: Vec::new(),
            synced: LogPosition(0),
            syncs: true,
            writes_checkpoints: true,
            fails_checkpoints: false,
            is_slow: false,
            checkpoint: None,
            runs: Runs::default(),
            marks: BTreeMap::new(),
            head: LogPosition(0),
            waiting: Vec::new(),
            writing: None,
            wants_resume: false,
            stopped: None,
            is_replaced: false,
            timers: BTreeMap::new(),
            replies: BTreeMap::new(),
            fresh: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(id as u64),
        }
    }

    /// The last epoch applied.
    pub fn applied(&self) -> SnapshotVersion {
        self.store.published()
    }

    fn rows(&self, at: SnapshotVersion) -> Vec<Row> {
        let mut rows = Vec::new();
        for table in self.store.table_ids() {
            let all = KeyRange::all();
            self.store.scan(table, &all, Direction::Forward, at, |key, version| {
                rows.extend(version.value.is_some().then(|| (table, key.clone(), version.clone())));
                ControlFlow::Continue(())
            });
        }
        rows
    }
}
