//! A lockstep world for real replicas of any protocol: the test determines which messages are
//! delivered, lost or held back, when a disk syncs, when a batch is closed and when a cut is
//! proposed. Everything that happens can be recorded as text ([`transcript`]).

mod cost;
mod disk;
mod node;
pub mod transcript;
pub mod words;

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::key::Key;
use pangea_core::pool::Sequential;
use pangea_core::protocol::{
    Cx, Durable, Effect, Input, Message as _, Protocol, Request, Setup, Submission,
};
use pangea_core::store::{ColdMemory, RecordHeader, Store, Version};
use pangea_core::time::{ClockReading, Span, Timestamp};
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program};
use pangea_protocols::minerva::{Minerva, Options};

use super::script::{Runs, TABLE, newer_registry, program, registry};
pub use cost::StepCost;
pub use node::Node;
use transcript::Transcript;
use words::{Timer, Transcribed};

/// More deliveries than this in one call mean that replicas answer each other endlessly.
const DELIVERIES_MAX: usize = 100_000;

/// The fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Deliver,
    Lose,
    HoldBack,
}

type Rule<P> = Box<dyn Fn(NodeId, NodeId, &<P as Protocol>::Message) -> Fate>;
type Letter<P> = (NodeId, NodeId, <P as Protocol>::Message);

/// A cluster of Minerva.
pub type Cluster = ClusterOf<Minerva>;

/// A cluster, its network and its disks.
pub struct ClusterOf<P: Transcribed> {
    pub nodes: Vec<Node<P>>,
    pub rule: Rule<P>,
    /// Every message that was sent, whatever its fate.
    pub sent: Vec<Letter<P>>,
    wire: Vec<Letter<P>>,
    held_back: Vec<Letter<P>>,
    topology: Arc<Topology>,
    pub options: P::Options,
    /// The bytes of rows that a node keeps in memory, if that is limited.
    pub memory_bytes: Option<usize>,
    /// A key whose writes fail on all nodes, because each finds a later version there.
    pub poison: Option<Key>,
    pub transcript: Transcript,
    now: Timestamp,
    tickets: u64,
}

/// Minerva's options with which nothing happens that the test does not request.
pub fn by_hand() -> Options {
    Minerva::by_hand()
}

/// The paper's protocol, with the same property.
pub fn paper_by_hand() -> Options {
    Options { keep_uncommitted: false, ack_everyone: false, parallel_commit: false, ..by_hand() }
}

impl<P: Transcribed> ClusterOf<P> {
    /// Creates `n` nodes that are connected and have elected a coordinator.
    pub fn new(n: usize, options: P::Options) -> Self {
        let mut cluster = Self::not_started(n, options);
        cluster.start_all();
        cluster
    }

    /// Creates `n` nodes with empty disks, none of which runs.
    pub fn not_started(n: usize, options: P::Options) -> Self {
        Self::not_started_in(whole(n), options)
    }

    /// Creates the nodes of a topology with empty disks, none of which runs.
    pub fn not_started_in(topology: Topology, options: P::Options) -> Self {
        Self {
            nodes: (0..topology.node_count()).map(Node::new).collect(),
            rule: Box::new(|_, _, _| Fate::Deliver),
            sent: Vec::new(),
            wire: Vec::new(),
            held_back: Vec::new(),
            topology: Arc::new(topology),
            options,
            memory_bytes: None,
            poison: None,
            transcript: Transcript::default(),
            now: Timestamp::from_us(1),
            tickets: 0,
        }
    }

    /// Lets nodes draw other random numbers than those of other clusters.
    pub fn reseed(&mut self, seed: u64) {
        let nodes = self.nodes.iter_mut().zip(seed..);
        nodes.for_each(|(node, seed)| node.rng = fastrand::Rng::with_seed(seed));
    }

    /// Starts all nodes, and lets them elect a coordinator in each group.
    pub fn start_all(&mut self) {
        (0..self.nodes.len()).for_each(|id| self.start(id));
        self.run_for(2_000);
        self.leaders();
    }

    /// The one coordinator that all running nodes know.
    pub fn leader(&self) -> usize {
        let leaders = self.leaders();
        assert_eq!(leaders.len(), 1, "tables are not partitioned");
        leaders[0]
    }

    /// The coordinator of each group, which all its running nodes know.
    pub fn leaders(&self) -> Vec<usize> {
        let leader_of = |shard| {
            let group = self.topology.group(ShardId(shard));
            let nodes = group.nodes().iter().map(|node| &self.nodes[node.index()]);
            let running = nodes.filter_map(|node| node.brain.as_ref());
            let leaders: Vec<_> = running.map(|brain| brain.status().coordinator).collect();
            let leader = leaders[0].expect("a coordinator is elected");
            assert!(leaders.iter().all(|known| *known == Some(leader)), "{leaders:?}");
            leader.index()
        };
        (0..self.topology.partitions.shards()).map(leader_of).collect()
    }

    /// Starts a node from its disk.
    pub fn start(&mut self, id: usize) {
        self.transcript.act(|| format!("n{id} starts"));
        let runs = Runs::default();
        let procedures = if self.nodes[id].is_newer { newer_registry } else { registry };
        let setup = Setup {
            me: NodeId(id as u16),
            topology: self.topology.clone(),
            registry: Arc::new(procedures(&runs)),
            options: self.options.clone(),
        };
        let node = &mut self.nodes[id];
        assert!(node.brain.is_none());
        node.runs = runs;
        node.store = Arc::new(match self.memory_bytes {
            None => Store::new(),
            Some(bytes_max) => Store::with_cold(Box::new(ColdMemory::default()), bytes_max),
        });
        if let Some(key) = &self.poison {
            node.store.apply(TABLE, key.clone(), later_version());
        }
        let mut durable =
            Durable { checkpoint: None, records: node.log.clone(), is_replaced: node.is_replaced };
        if let Some((checkpoint, rows)) = &node.checkpoint {
            for (table, key, version) in rows.clone() {
                node.store.apply(table, key, version);
            }
            durable.checkpoint = Some(checkpoint.clone());
        }
        node.brain = Some(P::new(setup));
        self.step(id, Input::Restart(durable));
        for peer in (0..self.nodes.len()).filter(|&peer| peer != id) {
            if self.nodes[peer].brain.is_some() {
                self.step(peer, Input::PeerUp(NodeId(id as u16)));
                self.step(id, Input::PeerUp(NodeId(peer as u16)));
            }
        }
    }

    /// Submits a script.
    pub fn call(&mut self, id: usize, script: &str) -> Ticket {
        self.submit(id, Request::serializable(program("script", script)))
    }

    /// Submits a script whose keys are its footprint.
    pub fn call_declared(&mut self, id: usize, script: &str) -> Ticket {
        self.submit(id, Request::serializable(program("declared", script)))
    }

    /// Submits a read-only script.
    pub fn look(&mut self, id: usize, script: &str) -> Ticket {
        self.submit(id, Request::serializable(program("look", script)))
    }

    pub fn commit(&mut self, id: usize, program: Program) -> Ticket {
        self.submit(id, Request::serializable(program))
    }

    pub fn submit(&mut self, id: usize, request: Request) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.transcript
            .act(|| format!("a client of n{id} {}: {ticket}", words::submitted(&request)));
        self.step(id, Input::Submit(vec![Submission { ticket, request }]));
        ticket
    }

    /// Closes the current batch of a node, and delivers all messages.
    pub fn batch(&mut self, id: usize) {
        self.fire(id, Timer::Batch);
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

    /// Lets the coordinator of each group propose a cut, and delivers all messages.
    pub fn cut(&mut self) {
        for leader in self.leaders() {
            self.fire(leader, Timer::Epoch);
        }
    }

    /// Fires a timer of a node, and delivers all messages.
    pub fn fire(&mut self, id: usize, timer: Timer) {
        self.transcript.act(|| format!("n{id} {}", words::timer(timer)));
        self.step(id, Input::Timer(timer.into()));
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
                Fate::Deliver | Fate::Lose => self.withhold(from, to, &message, "lost"),
                Fate::HoldBack => {
                    self.withhold(from, to, &message, "held back");
                    self.held_back.push((from, to, message));
                }
            }
        }
        panic!("replicas exchange messages without end");
    }

    /// Puts the messages that were held back on the wire again; the rule is applied again.
    pub fn release(&mut self) {
        self.transcript.act(|| "the messages that were held back go on".to_owned());
        let held_back = std::mem::take(&mut self.held_back);
        for (from, to, message) in &held_back {
            self.withhold(*from, *to, message, "goes on");
        }
        self.wire.extend(held_back);
        self.settle();
    }

    /// Delivers every message from now on.
    pub fn heal(&mut self) {
        self.rule = Box::new(|_, _, _| Fate::Deliver);
        self.release();
    }

    /// Applies a rule to messages by their words, from now on.
    pub fn on_words(&mut self, rule: impl Fn(usize, usize, &str) -> Fate + 'static) {
        self.rule =
            Box::new(move |from, to, message| rule(from.index(), to.index(), &P::message(message)));
    }

    /// Breaks a connection.
    pub fn disconnect(&mut self, a: usize, b: usize) {
        self.transcript.act(|| format!("n{a} and n{b} lose their connection"));
        self.step(a, Input::PeerDown(NodeId(b as u16)));
        self.step(b, Input::PeerDown(NodeId(a as u16)));
    }

    /// Breaks a connection, with the loss of its messages in flight, and restores it.
    pub fn reconnect(&mut self, a: usize, b: usize) {
        self.transcript.act(|| format!("n{a} and n{b} connect again"));
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
        self.transcript.act(|| format!("{ms} ms pass"));
        for _ in 0..ms {
            self.now = self.now + Span::from_ms(1);
            for id in 0..self.nodes.len() {
                let is_due =
                    |(timer, at): (&P::Timer, &Timestamp)| (*at <= self.now).then_some(*timer);
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

    /// Performs one step of one node, and its effects.
    pub fn step(&mut self, id: usize, input: Input<P>) {
        let node = &mut self.nodes[id];
        if node.stopped.is_some() {
            return;
        }
        let now = ClockReading { at: self.now, uncertainty: Span::ZERO };
        let mut effects = Vec::new();
        let mut cx = Cx::new(now, &mut node.rng, &node.store, &Sequential, node.head, &mut effects);
        let brain = node.brain.as_mut().expect("only a running node takes steps");
        let before = (node.store.published(), node.store.timeline());
        match &mut node.cost {
            Some(cost) => cost.add(|| brain.step(&mut cx, input)),
            None => brain.step(&mut cx, input),
        }
        brain.invariants();
        self.note_epochs(id, before);
        effects.into_iter().for_each(|effect| self.carry_out(id, effect));
    }

    /// Measures the steps of all nodes from now on.
    pub fn measure(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.cost = Some(StepCost::default()));
    }

    /// Records that readers of a node see another epoch than before, or another timeline.
    fn note_epochs(&mut self, id: usize, (before, timeline): (SnapshotVersion, u64)) {
        let node = &self.nodes[id];
        let (now, is_same) = (node.applied(), node.store.timeline() == timeline);
        if !self.transcript.is_on() || now == before && is_same {
            return;
        }
        let which = match (is_same, before.next() == now) {
            (true, true) => "has",
            (true, false) => "passes over epochs and has",
            (false, _) => "rolls back and has",
        };
        self.transcript
            .note(id, || format!("{which} {}", words::state::<P>(now, &node.state(now))));
    }

    /// Records that a record was persisted.
    fn note_record(&mut self, id: usize, record: &Bytes) {
        if !self.transcript.is_on() {
            return;
        }
        let (name, batch) = words::record::<P>(record);
        self.transcript.note(id, || format!("persists {name}"));
        if let Some(batch) = batch {
            let shard = self.topology.nodes[id].shard;
            let txns = || words::transactions::<P>(&batch);
            self.transcript.list(id, &format!("{shard} {name}"), txns);
        }
    }

    fn withhold(&mut self, from: NodeId, to: NodeId, message: &P::Message, fate: &str) {
        if self.transcript.is_on() {
            let ends = (from.index(), to.index());
            self.transcript.withhold(ends, fate, &P::message(message));
        }
    }

    /// Puts a message on the wire, if it survives its encoding.
    fn send(&mut self, id: usize, to: NodeId, message: P::Message) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(P::Message::decode(&bytes.into()).as_ref(), Ok(&message));
        self.transcript.send(id, to.index(), || P::message(&message));
        self.sent.push((NodeId(id as u16), to, message.clone()));
        self.wire.push((NodeId(id as u16), to, message));
    }

    fn carry_out(&mut self, id: usize, effect: Effect<P>) {
        let node = &mut self.nodes[id];
        let text = &mut self.transcript;
        match effect {
            // No effect is carried out after a stop.
            _ if node.stopped.is_some() => {}
            Effect::Send { after, .. } | Effect::Reply { after, .. } if after > node.synced => {
                node.waiting.push(effect);
            }
            Effect::Send { to, message, .. } => self.send(id, to, message),
            Effect::Reply { ticket, outcome, first_run, .. } => {
                let answer = || words::outcome::<P>(&outcome, &first_run);
                text.note(id, || format!("answers {ticket}: {}", answer()));
                assert!(
                    node.replies.insert(ticket, outcome).is_none(),
                    "a ticket is answered twice"
                );
            }
            Effect::Persist { position, record } => {
                assert_eq!(position.0, node.head.0 + 1, "records are numbered without gaps");
                let record: Bytes = record.concat().into();
                node.head = position;
                node.log.push((position, record.clone()));
                self.note_record(id, &record);
            }
            Effect::SetTimer { timer, at } => {
                node.timers.insert(timer, at);
            }
            Effect::Resume => node.wants_resume = true,
            Effect::Prefetch { token, keys } => {
                assert!(self.memory_bytes.is_some(), "all rows are in memory");
                text.note(id, || format!("fetches rows: {}", words::keys_of(&keys)));
                node.fetches.push((token, keys));
            }
            Effect::ClearTimer(timer) => {
                node.timers.remove(&timer);
            }
            Effect::Fresh { ticket, version } => {
                text.note(id, || format!("answers {ticket}: read {}", P::version(version)));
                node.fresh.insert(ticket, version);
            }
            Effect::Checkpoint { checkpoint, pin, .. } => {
                text.note(id, || words::begun_checkpoint::<P>(checkpoint.version));
                node.writing = Some((checkpoint, pin));
            }
            Effect::Truncate(first) => {
                text.note(id, || format!("truncates its log before record {}", first.0));
                node.log.retain(|(position, _)| *position >= first);
            }
            Effect::Rejoined => {
                text.note(id, || "has rejoined".to_owned());
                node.is_replaced = false;
            }
            Effect::MasterTerm { shard, from, master_term, is_final } => {
                text.note(id, || words::master_term((shard, from), master_term, is_final));
            }
            Effect::Lineage { .. } | Effect::LostCommit { .. } => {}
            Effect::Lost { after, versions, acknowledged } => {
                text.note(id, || words::lost(after, versions, acknowledged));
            }
            Effect::Stop { reason } => {
                text.note(id, || format!("stops: {reason}"));
                node.stopped = Some(reason);
            }
            Effect::Mark(name) => {
                words::mark::<P>(name).into_iter().for_each(|when| text.mark(id, when));
                *node.marks.entry(name).or_default() += 1;
            }
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
        let digest = |node: &Node<P>| (node.applied(), node.store.digest(node.applied()));
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

/// A version after all that a test writes.
fn later_version() -> Version {
    let header = RecordHeader::new(TxnId::new(NodeId(0), 1));
    Version { version: SnapshotVersion(1 << 40), header, value: None }
}

/// A topology of `n` regions with one node each.
fn whole(n: usize) -> Topology {
    let names: Vec<String> = ('a'..='z').take(n).map(String::from).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Topology::one_node_per_region("test", &names, Span::from_ms(1))
}
