//! Simulated clients: each invokes one call after the other and records the results.
//!
//! A client whose node does not answer in time stops waiting and continues. The operation stays
//! open until its answer arrives. A client whose node stops is notified, and cannot know how its
//! transaction ended.

use std::collections::BTreeMap;

use pangea_core::exec::optimistic::{self, Recorded, Run};
use pangea_core::exec::{Overlay, checked_reads};
use pangea_core::guarantee::Isolation;
use pangea_core::ids::{NodeId, RegionId, SnapshotVersion, Ticket};
use pangea_core::key::Key;
use pangea_core::protocol::{Input, Protocol, Request, Submission};
use pangea_core::store::Pin;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{Certified, Outcome, Program, SqlState};
use pangea_core::workload::{Call, Client as Seat, Generator, Workload};

use super::{Event, Phase, World};
use crate::clock::Clock;
use crate::history::{CallKind, End, OpId, Operation};
use crate::rng::SimRng;
use crate::settings::Settings;
use crate::trace::AtClient;

/// The delay between a client and a node of its region.
const LOCAL_US: u64 = 150;
/// The maximum think time between two calls, and within an interactive transaction.
const THINK_US_MAX: u64 = 30_000;
/// The range of the time after which a client stops waiting.
const PATIENCE_US: (u64, u64) = (500_000, 4_000_000);
/// The range of the time that a client waits after a refusal.
const BACKOFF_US: (u64, u64) = (10_000, 200_000);

/// An event at a client.
pub(super) enum ClientEvent {
    /// The client begins its next operation.
    Next { client: usize },
    /// An operation reaches its node.
    Reached { op: OpId },
    /// An interactive transaction commits.
    Commit { op: OpId },
    /// A result reaches the client.
    Ended { op: OpId, end: End },
    /// The client stops waiting unless it has a result.
    Patience { client: usize, op: OpId },
}

/// All clients.
pub(super) struct Clients {
    list: Vec<Client>,
    tickets: u64,
    prepared: BTreeMap<OpId, Prepared>,
    /// What the node of a program that only reads had told its clients when the program arrived.
    floors: BTreeMap<OpId, Promised>,
    /// The number of operations that have not ended.
    pub(super) open: usize,
}

struct Client {
    generator: Generator,
    home: NodeId,
    waits_for: Option<OpId>,
    was_refused: bool,
    dice: SimRng,
}

/// The newest version of which a node has told any client in this life.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promised {
    /// The store's timeline then: a node may discard what it has told.
    timeline: u64,
    version: SnapshotVersion,
}

/// An interactive transaction that has run on a snapshot and has no answer yet.
struct Prepared {
    life: u64,
    pin: Pin,
    certified: Certified,
    result: Vec<u8>,
}

impl Clients {
    pub(super) fn new(settings: &Settings, workload: &Workload, topology: &Topology) -> Self {
        let count = settings.regions() * settings.clients_per_node;
        // The clients of a region are assigned to its nodes round robin; those of a region without
        // nodes to the nearest ones.
        let home = |index: usize| {
            let region = RegionId((index % settings.regions()) as u16);
            let distance = |of: RegionId| {
                let (from, to) = (usize::from(region.0), usize::from(of.0));
                (of != region, topology.one_way[from][to], of)
            };
            let inhabited = topology.nodes.iter().map(|place| place.region);
            let nearest = inhabited.min_by_key(|of| distance(*of)).expect("a cluster has nodes");
            let nodes: Vec<NodeId> = topology.nodes_in(nearest).collect();
            nodes[index / settings.regions() % nodes.len()]
        };
        let list = (0..count).map(|index| Client {
            generator: workload.generator(Seat::new(
                index as u32,
                count as u32,
                settings.regions() as u32,
            )),
            home: home(index),
            waits_for: None,
            was_refused: false,
            dice: SimRng::fork(settings.seed, "client", index as u64),
        });
        Self {
            list: list.collect(),
            tickets: 0,
            prepared: BTreeMap::new(),
            floors: BTreeMap::new(),
            open: 0,
        }
    }

    /// The client index of loads in the history, which no client has.
    pub(super) fn loader(&self) -> usize {
        self.list.len()
    }
}

impl<P: Protocol> World<P> {
    /// Submits the calls that load the workload, distributed over all nodes.
    pub(super) fn start_load(&mut self) {
        for (index, call) in self.workload.load_calls().into_iter().enumerate() {
            let node = NodeId((index % self.topology.node_count()) as u16);
            let loader = self.clients.loader();
            let level = self.levels.strongest();
            let op = self.invoke(loader, node, (CallKind::Ordered, level), call);
            self.submit(op);
        }
    }

    /// Starts all clients.
    pub(super) fn start_clients(&mut self) {
        for client in 0..self.clients.list.len() {
            self.client_next(client, THINK_US_MAX);
        }
    }

    pub(super) fn on_client(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Next { client } => self.on_next(client),
            ClientEvent::Reached { op } => self.on_reached(op),
            ClientEvent::Commit { op } => self.on_commit(op),
            ClientEvent::Ended { op, end } => self.on_end(op, end),
            ClientEvent::Patience { client, op } => {
                if self.clients.list[client].waits_for == Some(op) {
                    self.counts.gave_up_waiting += 1;
                    self.clients.list[client].waits_for = None;
                    self.client_next(client, THINK_US_MAX);
                }
            }
        }
    }

    fn client_next(&mut self, client: usize, wait_us_max: u64) {
        let wait = Span::from_us(self.clients.list[client].dice.between(0, wait_us_max));
        self.queue.push(self.now + wait, Event::Client(ClientEvent::Next { client }));
    }

    fn on_next(&mut self, index: usize) {
        if self.phase != Phase::Working {
            return;
        }
        if self.faults.are_clients_quiet() {
            return self.client_next(index, THINK_US_MAX);
        }
        let nodes = self.topology.node_count();
        let client = &mut self.clients.list[index];
        assert!(client.waits_for.is_none(), "a client has one operation at a time");
        let now = Clock::origin() + Span::from_us(self.now.us);
        let call = client.generator.next(client.dice.rng(), now);
        let how = match self.settings.shards {
            1 => draw_how(&call, &mut client.dice),
            // A session would read only one shard.
            _ => CallKind::Ordered,
        };
        let level = self.levels.draw(&mut client.dice);
        let roams = client.dice.chance(if client.was_refused { 500 } else { 30 });
        let node = if roams { NodeId(client.dice.index(nodes) as u16) } else { client.home };
        let delay = client.dice.delay(LOCAL_US);
        let patience = client.dice.between(PATIENCE_US.0, PATIENCE_US.1);
        let op = self.invoke(index, node, (how, level), call);
        self.clients.list[index].waits_for = Some(op);
        let reached = self.now + Span::from_us(delay);
        self.queue.push(reached, Event::Client(ClientEvent::Reached { op }));
        let impatient = self.now + Span::from_us(patience);
        self.queue.push(impatient, Event::Client(ClientEvent::Patience { client: index, op }));
    }

    fn invoke(
        &mut self,
        client: usize,
        node: NodeId,
        (how, level): (CallKind, Isolation),
        call: Call,
    ) -> OpId {
        self.clients.open += 1;
        let (invoked, ended, end) = (self.now, None, End::Open);
        let operation = Operation { client, node, how, level, call, invoked, ended, end };
        let op = self.history.invoke(operation);
        let numbers = [op.0 as u64, u64::from(node.0)];
        let call = &self.history[op].call;
        self.trace.event(self.now, AtClient(client), "invoke", numbers, || {
            format!("{how:?} {} at {node}, {level}", call.label)
        });
        op
    }

    fn on_reached(&mut self, op: OpId) {
        let node = self.history[op].node;
        // Sessions read the local store and are refused while it is incomplete.
        let reads_store = matches!(self.history[op].how, CallKind::Snapshot | CallKind::Certified);
        let is_replaced = self.nodes[node.index()].is_replaced;
        let is_stopping = self.nodes[node.index()].stop_by.is_some();
        if !self.is_running(node) || is_stopping || (reads_store && is_replaced) {
            self.send_outcome(op, End::Refused);
            return;
        }
        match self.history[op].how {
            CallKind::Ordered => self.submit(op),
            CallKind::Strict => self.submit_request(op, Request::Fresh),
            CallKind::Snapshot => self.read_now(op),
            CallKind::Certified => self.prepare(op),
        }
    }

    fn submit(&mut self, op: OpId) {
        let program = self.program(op);
        self.submit_request(op, Request::Commit(program, self.history[op].level));
    }

    /// A ticket that no request has.
    pub(super) fn next_ticket(&mut self) -> Ticket {
        self.clients.tickets += 1;
        Ticket(self.clients.tickets)
    }

    fn submit_request(&mut self, op: OpId, request: Request) {
        let id = self.history[op].node;
        let ticket = self.next_ticket();
        let running = self.nodes[id.index()].running.as_mut();
        running.expect("the caller has checked that the node runs").waiting.insert(ticket, op);
        if matches!(self.history[op].how, CallKind::Ordered | CallKind::Strict) {
            self.note_floor(op);
        }
        self.trace.event(self.now, id, "submit", [ticket.0, op.0 as u64], String::new);
        self.input(id, Input::Submit(vec![Submission { ticket, request }]));
    }

    fn program(&self, op: OpId) -> Program {
        let call = &self.history[op].call;
        let procedure =
            self.registry.id(call.procedure).expect("workloads only call procedures that exist");
        Program::Call { procedure, args: call.args.clone() }
    }

    /// Runs an operation on the newest snapshot of its node.
    fn run_on_snapshot(&self, op: OpId) -> (Pin, Run) {
        let store = self.nodes[self.history[op].node.index()]
            .store()
            .expect("the caller has checked that the node runs");
        let pin = store.pin();
        let overlay = Overlay::new();
        let program = self.program(op);
        let level = self.history[op].level;
        // As sessions do: the strictest level checks all reads and needs no guards.
        let guards = level != Isolation::Serializable;
        let recorded = Recorded { guards, adds: P::isolations(&self.options).adds_at(level) };
        let (registry, at) = (&self.registry, pin.version());
        let run = optimistic::run_recording(registry, &program, store, at, &overlay, recorded);
        (pin, run)
    }

    /// Notes what a node has told its clients when a program arrives that only reads. Sessions read
    /// the store past the protocol, which may have told of more: a frozen replica is answered for.
    fn note_floor(&mut self, op: OpId) {
        let Operation { node, call, .. } = &self.history[op];
        let running = self.nodes[node.index()].running.as_ref();
        if let Some(running) = running.filter(|_| call.is_read_only) {
            self.clients.floors.insert(op, running.told);
        }
    }

    /// Checks that a program that only reads is not answered from a state before one that the node
    /// had told a client of, unless the node has rolled back since. Notes the answer's version.
    fn check_told(&mut self, id: NodeId, op: OpId, version: SnapshotVersion) {
        let floor = self.clients.floors.remove(&op).unwrap_or_default();
        let running = self.nodes[id.index()].running.as_mut();
        let running = running.expect("the node runs, because it answers");
        let timeline = running.store.timeline();
        if running.told.timeline != timeline {
            running.told = Promised { timeline, version: SnapshotVersion::ZERO };
        }
        running.told.version = running.told.version.max(version);
        if floor.timeline == timeline && version < floor.version {
            let story = format!(
                "T{} at {id} only reads, and was answered from {version}, although {id} had told a \
                 client of {} before",
                op.0, floor.version
            );
            self.violate("reads go back", story);
        }
    }

    fn read_now(&mut self, op: OpId) {
        let (pin, run) = self.run_on_snapshot(op);
        assert!(run.is_reader(), "a program that is declared read-only has written");
        let version = pin.version();
        self.check_told(self.history[op].node, op, version);
        self.note_answer(self.history[op].node, op, version);
        let end = match run.result {
            Ok(result) => End::Read { version, result },
            Err(abort) => End::Aborted(abort),
        };
        self.send_outcome(op, end);
    }

    fn prepare(&mut self, op: OpId) {
        let (pin, run) = self.run_on_snapshot(op);
        let life = self.nodes[self.history[op].node.index()].life;
        match run.result {
            Ok(result) => {
                let (at, timeline) = (pin.version(), pin.timeline());
                let Run { reads, guards, writes, adds, .. } = run;
                let is_changed = |table, key: &Key| {
                    writes.iter().any(|write| (write.table, &write.key) == (table, key))
                        || adds.iter().any(|add| (add.table, &add.key) == (table, key))
                };
                let reads = checked_reads(self.history[op].level, reads, guards, is_changed);
                let certified = Certified { reads, writes, adds, at, timeline };
                self.clients.prepared.insert(op, Prepared { life, pin, certified, result });
                let think = Span::from_us(self.think(op));
                self.queue.push(self.now + think, Event::Client(ClientEvent::Commit { op }));
            }
            Err(abort) => self.send_outcome(op, End::Aborted(abort)),
        }
    }

    fn think(&mut self, op: OpId) -> u64 {
        let client = self.history[op].client;
        self.clients.list[client].dice.between(0, THINK_US_MAX)
    }

    fn on_commit(&mut self, op: OpId) {
        let Operation { node, client, .. } = self.history[op];
        let prepared = &self.clients.prepared[&op];
        let version = prepared.pin.version();
        if self.alive(node, prepared.life).is_none() {
            self.clients.prepared.remove(&op);
            self.send_outcome(op, End::Refused);
            return;
        }
        if self.clients.prepared[&op].pin.is_lost() {
            // The session detects the loss and starts over.
            self.counts.pins_lost += 1;
            self.clients.prepared.remove(&op);
            return self.send_outcome(op, End::Refused);
        }
        self.check_pinned(op);
        let Certified { writes, adds, .. } = &self.clients.prepared[&op].certified;
        let only_reads = writes.is_empty() && adds.is_empty();
        if only_reads && self.clients.list[client].dice.chance(500) {
            // A transaction that read one snapshot and wrote no row is serializable as it is.
            let prepared =
                self.clients.prepared.remove(&op).expect("the operation was found above");
            self.check_told(node, op, version);
            self.note_answer(node, op, version);
            self.send_outcome(op, End::Read { version, result: prepared.result });
            return;
        }
        let certified = self.clients.prepared[&op].certified.clone();
        let program = Program::Certified(certified);
        self.submit_request(op, Request::Commit(program, self.history[op].level));
    }

    /// Checks that a pinned snapshot is unchanged, despite later writes and garbage collection.
    fn check_pinned(&mut self, op: OpId) {
        let Prepared { pin, result, .. } = &self.clients.prepared[&op];
        let (program, nothing) = (self.program(op), Overlay::new());
        let again = optimistic::run(&self.registry, &program, pin.store(), pin.version(), &nothing);
        if again.result.as_ref() != Ok(result) {
            let (version, node) = (pin.version(), self.history[op].node);
            self.violate("pins", format!("T{} at {node} found that {version} had changed", op.0));
        }
    }

    /// Handles a node's answer to a commit.
    pub(super) fn answer(&mut self, id: NodeId, ticket: Ticket, outcome: Outcome) {
        if self.answer_move((id, ticket), &outcome) {
            return;
        }
        let Some(op) = self.take_waiting(id, ticket) else { return };
        if self.history[op].how == CallKind::Strict {
            self.violate(
                "replies",
                format!("{id} answered {ticket}, a strict read, with an outcome"),
            );
            return;
        }
        let prepared = self.clients.prepared.remove(&op);
        let end = match outcome {
            Outcome::Committed { txn, version, result } => {
                self.check_told(id, op, version);
                self.note_answer(id, op, version);
                let result = prepared.map_or(result, |prepared| prepared.result);
                End::Committed { txn, version, result }
            }
            Outcome::Aborted(abort) if abort.code == SqlState::OUTCOME_UNKNOWN => End::Ambiguous,
            Outcome::Aborted(abort) => {
                if self.settings.shards > 1 {
                    // The transaction may be re-executed and then commit.
                    let running = self.nodes[id.index()].running.as_ref();
                    let version = running
                        .expect("the node runs, because it answers")
                        .protocol
                        .status()
                        .version;
                    self.note_answer(id, op, version);
                }
                End::Aborted(abort)
            }
        };
        self.send_outcome(op, end);
    }

    /// Handles a node's answer to a strict read.
    pub(super) fn answer_fresh(&mut self, id: NodeId, ticket: Ticket, version: SnapshotVersion) {
        let Some(op) = self.take_waiting(id, ticket) else { return };
        self.trace.event(self.now, id, "fresh", [ticket.0, version.0], String::new);
        let store = self.nodes[id.index()].store().expect("the node runs, because it answers");
        if store.published() < version {
            self.violate(
                "replies",
                format!("{id} reported {version} as fresh before it published it"),
            );
            return;
        }
        self.read_now(op);
    }

    fn take_waiting(&mut self, id: NodeId, ticket: Ticket) -> Option<OpId> {
        let running =
            self.nodes[id.index()].running.as_mut().expect("the node runs, because it answers");
        let op = running.waiting.remove(&ticket);
        if op.is_none() {
            self.violate("replies", format!("{id} answered {ticket}, which is not pending"));
        }
        op
    }

    /// Ends a submitted operation whose node stopped.
    pub(super) fn lose_operation(&mut self, op: OpId) {
        self.clients.prepared.remove(&op);
        self.clients.floors.remove(&op);
        let end = match self.history[op].how {
            CallKind::Ordered | CallKind::Certified => End::Ambiguous,
            CallKind::Strict | CallKind::Snapshot => End::Refused,
        };
        self.send_outcome(op, end);
    }

    /// Sends a result to the client, or the notice that there will be no answer.
    fn send_outcome(&mut self, op: OpId, end: End) {
        let client = self.clients.list.get_mut(self.history[op].client);
        let delay = Span::from_us(client.map_or(0, |client| client.dice.delay(LOCAL_US)));
        self.queue.push(self.now + delay, Event::Client(ClientEvent::Ended { op, end }));
    }

    fn on_end(&mut self, op: OpId, end: End) {
        let index = self.history[op].client;
        let was_refused = matches!(end, End::Refused | End::Ambiguous);
        let number = match &end {
            End::Committed { version, .. } | End::Read { version, .. } => version.0,
            End::Open | End::Aborted(_) | End::Refused | End::Ambiguous => 0,
        };
        self.trace
            .event(self.now, AtClient(index), "told", [op.0 as u64, number], || format!("{end:?}"));
        if index == self.clients.loader() && !matches!(end, End::Committed { .. }) {
            self.violate("load", format!("a load ended in {end:?}"));
        }
        self.clients.open -= 1;
        self.history.end(op, self.now, end);
        let Some(client) = self.clients.list.get_mut(index) else { return };
        client.was_refused = was_refused;
        if client.waits_for == Some(op) {
            client.waits_for = None;
            let backoff = client.dice.between(BACKOFF_US.0, BACKOFF_US.1);
            self.client_next(index, if was_refused { backoff } else { THINK_US_MAX });
        }
    }
}

/// Draws the path of a call; every kind of call uses all paths that allow it.
fn draw_how(call: &Call, dice: &mut SimRng) -> CallKind {
    match (call.is_read_only, dice.between(0, 9)) {
        (true, 0..=2) => CallKind::Strict,
        (true, 3..=5) => CallKind::Snapshot,
        (_, 6..=7) => CallKind::Certified,
        _ => CallKind::Ordered,
    }
}
