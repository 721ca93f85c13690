//! The event loop, from the clients' first call to the end of the measured time.

mod clients;
mod loss;
mod summary;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId, RegionId, ShardId, SnapshotVersion};
use pangea_core::protocol::{
    Cx, Durable, Effect, Input, Lane, Message, Protocol, Setup, Submission,
};
use pangea_core::time::{ClockReading, Span, Timestamp};
use pangea_core::topology::{NodePlace, Topology};
use pangea_core::txn::Outcome;

use super::costs::Costs;
use super::machine::{Machine, ThreadId};
use super::node::{Node, Threads};
use super::outcome::Prediction;
use super::rows::Loaded;
use super::steps::{ModelPool, StepCost};
use super::{ArrivalModel, Cores, NODES_MAX, Settings};
use crate::clock::Clock;
use clients::{Client, Commits};
use loss::RegionLoss;

/// The time limit for agreement on a coordinator.
const USABLE_NS_MAX: u64 = 60_000_000_000;
/// The interval of checks for agreement on a coordinator.
const LOOK_NS: u64 = 50_000_000;
/// The maximum lateness of a timer.
const TIMER_LATE_US_MAX: u64 = 200;
/// The clock uncertainty, as in a node.
const UNCERTAINTY: Span = Span::from_ms(10);
/// The duration of a checkpoint, which is not modelled but must end.
const CHECKPOINT_NS: u64 = 1_000_000_000;
/// The size of a frame's header.
const FRAME_BYTES: f64 = 16.0;

/// The continuation of a thread's job.
enum Then<P: Protocol> {
    /// The event loop's step has ended.
    Step(usize),
    /// A group of records was written, up to this position.
    Logged(usize, LogPosition),
    /// A frame was sent.
    Sent(Frame<P>),
    /// A frame was received.
    Received(Frame<P>),
    /// Requests were read.
    Requested(usize, Vec<(usize, Submission)>),
    /// Answers were written.
    Answered(Vec<(usize, bool)>),
    /// Clients have their answers, and call again.
    Called(Vec<(usize, bool)>),
    /// No continuation, for example a part of a step on the pool.
    Nothing,
}

struct Frame<P: Protocol> {
    from: usize,
    to: usize,
    lane: Lane,
    wire_bytes: f64,
    message: P::Message,
}

enum Event<P: Protocol> {
    /// A time slice ends on a machine.
    Slice(usize, ThreadId),
    /// A frame reaches the sender's thread.
    Due(Frame<P>),
    /// An fsync ends.
    Fsync(usize, LogPosition),
    /// A timer may be due.
    Timer,
    Checkpointed(usize, SnapshotVersion),
    /// The check whether the cluster is usable.
    Look,
    /// A client makes its first call.
    Begin(usize),
    /// A call of a region arrives, in an open loop.
    Arrive(usize),
    /// The published versions are pinned for a while.
    Pin,
    /// A region is lost.
    Lose,
    /// A survivor notices the loss.
    PeerLost(usize),
    /// The measurement begins; earlier counts are discarded.
    Measure,
    End,
}

/// Total work up to a moment.
#[derive(Clone, Default)]
struct Done {
    machines_ns: Vec<u64>,
    loops_ns: Vec<u64>,
    fsync_ns: Vec<u64>,
    wire_bytes: f64,
    counters: BTreeMap<String, u64>,
}

struct World<'a, P: Protocol> {
    settings: &'a Settings,
    costs: &'a Costs,
    topology: Arc<Topology>,
    now_ns: u64,
    events: u64,
    sequence: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    due: Vec<Option<Event<P>>>,
    free: Vec<usize>,
    machines: Vec<Machine<Then<P>>>,
    nodes: Vec<Node<P>>,
    clients: Vec<Client>,
    /// The clients' own thread, if it shares the nodes' machine.
    load: Option<ThreadId>,
    answered: Vec<(usize, bool)>,
    /// The time at which the link between two nodes is free, by lane.
    link_free_ns: BTreeMap<(usize, usize, Lane), u64>,
    rng: fastrand::Rng,
    tickets: u64,
    wire_bytes: f64,
    measured_from: Option<Done>,
    latencies_us: Vec<Vec<u32>>,
    commits: Vec<Commits>,
    aborted: u64,
    /// By region: clients without a call in flight, in an open loop.
    idle: Vec<Vec<usize>>,
    in_flight: Vec<usize>,
    loss: RegionLoss,
    is_over: bool,
}

/// Predicts the behaviour of a cluster.
///
/// # Errors
/// If the cluster never becomes usable, a node stops, or the settings are not supported.
pub fn predict<P: Protocol>(
    settings: &Settings,
    options: &P::Options,
    costs: &Costs,
    loaded: &Loaded,
) -> Result<Prediction, String> {
    if settings.partitions.shards() > 1 && settings.loss.is_some() {
        return Err(
            "the loss of a region can only be predicted for unpartitioned tables".to_owned()
        );
    }
    if settings.nodes() > NODES_MAX {
        return Err(format!("{} nodes exceed the limit of {NODES_MAX}", settings.nodes()));
    }
    let mut world = World::<P>::new(settings, options, costs, loaded);
    for index in 0..world.nodes.len() {
        world.step(index, Input::Restart(Durable::default()), Vec::new());
        for peer in world.topology.peers_of(NodeId(index as u16)) {
            world.nodes[index].inbox.peers.push_back(Input::PeerUp(peer));
        }
    }
    world.at(LOOK_NS, Event::Look);
    while !world.is_over {
        world.serve();
        let Reverse((at, _, slot)) = world.queue.pop().expect("the end event is always queued");
        assert!(at >= world.now_ns, "virtual time only increases");
        world.now_ns = at;
        world.events += 1;
        world.free.push(slot);
        let event = world.due[slot].take().expect("an event occurs once");
        world.handle(event)?;
    }
    Ok(world.outcome())
}

/// The cluster: each region has a node for each shard.
fn topology_of(settings: &Settings) -> Topology {
    let (count, shards) = (settings.nodes(), settings.partitions.shards());
    let place =
        |node: u16| NodePlace { region: RegionId(node / shards), shard: ShardId(node % shards) };
    Topology {
        cluster: "prediction".to_owned(),
        regions: settings.regions.clone(),
        nodes: (0..count as u16).map(place).collect(),
        caches: Vec::new(),
        non_voting: 0,
        one_way: settings.one_way.clone(),
        partitions: settings.partitions.clone(),
    }
}

impl<'a, P: Protocol> World<'a, P> {
    fn new(
        settings: &'a Settings,
        options: &P::Options,
        costs: &'a Costs,
        loaded: &Loaded,
    ) -> Self {
        let (count, topology) = (settings.nodes(), Arc::new(topology_of(settings)));
        let (machine_count, cores) = match settings.cores {
            Cores::Each(cores) => (count, cores),
            Cores::Shared(cores) => (1, cores),
        };
        let mut machines: Vec<_> = (0..machine_count).map(|_| Machine::new(cores)).collect();
        let workers = settings.workers();
        let node = |id: NodeId| {
            let machine = id.index() % machine_count;
            let threads = Threads::spawn(&mut machines[machine], machine, count, workers);
            let setup = Setup {
                me: id,
                topology: topology.clone(),
                registry: settings.registry.clone(),
                options: options.clone(),
            };
            let place = topology.nodes[id.index()];
            let store = Arc::new(loaded.store(&topology.partitions, place.shard));
            let pool = ModelPool::new(workers);
            Node::new(id, P::new(setup), store, pool, settings.seed, threads)
        };
        let nodes: Vec<_> = topology.node_ids().map(node).collect();
        let load = matches!(settings.cores, Cores::Shared(_)).then(|| machines[0].spawn());
        Self {
            settings,
            costs,
            now_ns: 0,
            events: 0,
            sequence: 0,
            queue: BinaryHeap::new(),
            due: Vec::new(),
            free: Vec::new(),
            machines,
            nodes,
            clients: (0..settings.clients).map(|it| Client::new(settings, it, it)).collect(),
            load,
            answered: Vec::new(),
            link_free_ns: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(settings.seed),
            tickets: 0,
            wire_bytes: 0.0,
            measured_from: None,
            latencies_us: vec![Vec::new(); settings.regions.len()],
            commits: vec![Commits::default(); settings.regions.len()],
            aborted: 0,
            idle: vec![Vec::new(); count],
            in_flight: vec![0; count],
            loss: RegionLoss::new(count),
            is_over: false,
            topology,
        }
    }

    fn at(&mut self, ns: u64, event: Event<P>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.due.push(None);
            self.due.len() - 1
        });
        self.due[slot] = Some(event);
        self.sequence += 1;
        self.queue.push(Reverse((ns.max(self.now_ns), self.sequence, slot)));
    }

    fn now(&self) -> Timestamp {
        Clock::origin() + Span::from_us(self.now_ns / 1_000)
    }

    /// Starts all work that can start: steps of event loops, and slices on cores.
    fn serve(&mut self) {
        let now = self.now();
        for index in 0..self.nodes.len() {
            if self.is_lost(index) {
                continue;
            }
            if !self.nodes[index].is_busy
                && let Some((input, released)) = self.nodes[index].next_input(now)
            {
                self.step(index, input, released);
            }
            self.collect(index);
        }
        if let Some(load) = self.load
            && self.machines[0].is_idle(load)
            && !self.answered.is_empty()
        {
            let answered = std::mem::take(&mut self.answered);
            let ns = self.cost("load_call", answered.len() as f64);
            self.machines[0].give(load, ns, Then::Called(answered));
        }
        for machine in 0..self.machines.len() {
            while let Some(slice) = self.machines[machine].begin(self.now_ns) {
                self.at(slice.until_ns, Event::Slice(machine, slice.thread));
            }
        }
    }

    /// Starts the jobs of threads that process their whole queue at once.
    fn collect(&mut self, index: usize) {
        let machine = self.nodes[index].threads.machine;
        let (requests, answers) =
            (self.nodes[index].threads.requests, self.nodes[index].threads.answers);
        if !self.nodes[index].requests.is_empty() && self.machines[machine].is_idle(requests) {
            let calls = std::mem::take(&mut self.nodes[index].requests);
            let ns = self.cost("client_request", calls.len() as f64);
            self.machines[machine].give(requests, ns, Then::Requested(index, calls));
        }
        if !self.nodes[index].answers.is_empty() && self.machines[machine].is_idle(answers) {
            let answered = std::mem::take(&mut self.nodes[index].answers);
            let count = answered.len() as f64;
            let (ns, rest_ns) = (self.cost("client_answer", count), self.cost("background", count));
            let rest = self.nodes[index].threads.rest;
            self.machines[machine].give(rest, rest_ns, Then::Nothing);
            self.machines[machine].give(answers, ns, Then::Answered(answered));
        }
        let log = &mut self.nodes[index].log;
        if !log.is_busy && log.bytes > 0 {
            log.is_busy = true;
            let (bytes, head) = (std::mem::take(&mut log.bytes), log.head);
            let (thread, ns) =
                (self.nodes[index].threads.log, self.cost("log_write", bytes as f64));
            self.machines[machine].give(thread, ns, Then::Logged(index, head));
        }
    }

    fn cost(&self, kind: &str, size: f64) -> u64 {
        self.costs.line(kind).cost_ns(1.0, size) as u64
    }

    /// Runs the protocol now, and occupies its thread for the cost of the step.
    fn step(&mut self, index: usize, input: Input<P>, released: Vec<Effect<P>>) {
        let now = ClockReading { at: self.now(), uncertainty: UNCERTAINTY };
        let node = &mut self.nodes[index];
        assert!(!node.is_busy && node.effects.is_empty(), "one step at a time");
        let cost = StepCost::new(self.costs, &node.pool);
        let (kind, size) = input.kind();
        cost.charge("turn", if kind == "submit" { size as f64 } else { 0.0 });
        cost.charge(kind, size as f64);
        let mut effects = released;
        let head = node.log_head;
        let mut cx =
            Cx::new(now, &mut node.rng, &node.store, &node.pool, head, &mut effects).metered(&cost);
        node.protocol.step(&mut cx, input);
        node.log_head = cx.log_head();
        let mut others = 0;
        for effect in &effects {
            match effect {
                Effect::Send { message, after, .. } if *after <= node.durable => {
                    cost.charge("effect_send", message.payload_bytes() as f64);
                }
                _ => others += 1,
            }
        }
        if others > 0 {
            cost.charge("effects", f64::from(others));
        }
        let total = cost.total();
        node.effects = effects;
        node.is_busy = true;
        let machine = &mut self.machines[node.threads.machine];
        machine.give(node.threads.event_loop, total.own_ns as u64, Then::Step(index));
        let share = total.pool_ns / node.threads.pool.len().max(1) as f64;
        if share >= 1.0 {
            for &thread in &node.threads.pool {
                machine.give(thread, share as u64, Then::Nothing);
            }
        }
    }

    fn handle(&mut self, event: Event<P>) -> Result<(), String> {
        match event {
            Event::Slice(machine, thread) => {
                if let Some(then) = self.machines[machine].end(thread) {
                    self.follow(then)?;
                }
            }
            // Messages in flight from or to a lost region do not arrive.
            Event::Due(frame) if self.is_lost(frame.from) || self.is_lost(frame.to) => {}
            Event::Due(frame) => {
                let threads = &self.nodes[frame.from].threads;
                let (machine, thread) =
                    (threads.machine, threads.senders[frame.to][frame.lane as usize]);
                let ns = self.cost("send", frame.wire_bytes);
                self.machines[machine].give(thread, ns, Then::Sent(frame));
            }
            Event::Fsync(index, position) => {
                let node = &mut self.nodes[index];
                node.synced = position;
                node.log.is_busy = false;
            }
            Event::Timer => {}
            Event::Checkpointed(index, version) => {
                self.nodes[index].inbox.peers.push_back(Input::Checkpointed(version));
            }
            Event::Look => self.look()?,
            Event::Begin(client) => self.call(vec![(client, true)]),
            Event::Arrive(region) => self.arrive(region),
            Event::Pin => self.pin(),
            Event::Lose => self.lose(),
            Event::PeerLost(peer) => self.notice(peer),
            Event::Measure => {
                self.latencies_us.iter_mut().for_each(Vec::clear);
                self.commits.fill(Commits::begin(self.now_ns));
                self.aborted = 0;
                self.measured_from = Some(self.done());
            }
            Event::End => self.is_over = true,
        }
        Ok(())
    }

    /// Starts the clients once every node knows the coordinator.
    fn look(&mut self) -> Result<(), String> {
        let is_usable = |node: &Node<P>| {
            let status = node.protocol.status();
            status.first_start.is_none() && status.coordinator.is_some()
        };
        if !self.nodes.iter().all(is_usable) {
            if self.now_ns > USABLE_NS_MAX {
                return Err(
                    "the replicas did not agree on a coordinator within a minute".to_owned()
                );
            }
            self.at(self.now_ns + LOOK_NS, Event::Look);
            return Ok(());
        }
        self.start_clients();
        self.pin();
        let measured_ns = self.now_ns + self.settings.warmup.us * 1_000;
        self.at(measured_ns, Event::Measure);
        if let Some(loss) = self.settings.loss {
            self.at(measured_ns + loss.at.us * 1_000, Event::Lose);
        }
        self.at(measured_ns + self.settings.duration.us * 1_000, Event::End);
        Ok(())
    }

    fn follow(&mut self, then: Then<P>) -> Result<(), String> {
        match then {
            // The pending work of a lost node has no effect.
            Then::Step(node) | Then::Logged(node, _) | Then::Requested(node, _)
                if self.is_lost(node) => {}
            Then::Sent(frame) | Then::Received(frame) if self.is_lost(frame.to) => {}
            Then::Step(index) => {
                let node = &mut self.nodes[index];
                node.is_busy = false;
                for effect in std::mem::take(&mut node.effects) {
                    self.effect(index, effect)?;
                }
            }
            Then::Logged(index, position) => {
                let ns = self.costs.fsync_ns(self.rng.f64());
                self.nodes[index].log.fsync_busy_ns += ns;
                self.at(self.now_ns + ns, Event::Fsync(index, position));
            }
            Then::Sent(frame) => {
                let threads = &self.nodes[frame.to].threads;
                let (machine, thread) =
                    (threads.machine, threads.readers[frame.from][frame.lane as usize]);
                let ns = self.cost("receive", frame.wire_bytes);
                self.machines[machine].give(thread, ns, Then::Received(frame));
            }
            Then::Received(Frame { from, to, message, .. }) => {
                let input = Input::Message { from: NodeId(from as u16), message };
                self.nodes[to].inbox.peers.push_back(input);
            }
            Then::Requested(index, calls) => {
                let node = &mut self.nodes[index];
                for (client, submission) in calls {
                    node.waiting.insert(submission.ticket, client);
                    node.inbox.submissions.push(submission);
                }
            }
            Then::Answered(answered)
                if answered.iter().any(|(it, _)| self.is_lost(self.clients[*it].node)) => {}
            Then::Answered(answered) if self.load.is_some() => self.answered.extend(answered),
            Then::Answered(answered) | Then::Called(answered) => self.deliver_answers(answered),
            Then::Nothing => {}
        }
        Ok(())
    }

    fn effect(&mut self, index: usize, effect: Effect<P>) -> Result<(), String> {
        let node = &mut self.nodes[index];
        match effect {
            Effect::Send { after, .. }
            | Effect::Reply { after, .. }
            | Effect::Checkpoint { after, .. }
                if after > node.durable =>
            {
                node.pending_effects.entry(after).or_default().push(effect);
            }
            Effect::Send { to, message, .. } => self.transmit(index, to.index(), message),
            Effect::Reply { ticket, outcome, .. } => {
                let client = node.waiting.remove(&ticket).expect("a ticket is answered once");
                let is_committed = matches!(outcome, Outcome::Committed { .. });
                node.answers.push((client, is_committed));
                if let Outcome::Committed { txn, version, .. } = outcome {
                    self.loss.on_answer(NodeId(index as u16), txn, version);
                }
            }
            Effect::Persist { position, record } => {
                let bytes: usize = record.iter().map(bytes::Bytes::len).sum();
                node.log.bytes += bytes as u64;
                node.log.head = position;
            }
            Effect::SetTimer { timer, at } => {
                // Timers fire late, like a sleeping thread that wakes up, so that nodes never tick
                // in step.
                let late = Span::from_us(self.rng.u64(0..=TIMER_LATE_US_MAX));
                node.timers.insert(timer, at + late);
                let due_ns = (at + late).since(Clock::origin()).us * 1_000;
                self.at(due_ns, Event::Timer);
            }
            Effect::ClearTimer(timer) => drop(node.timers.remove(&timer)),
            Effect::Resume => node.wants_resume = true,
            Effect::Fresh { .. } => return Err("a strict read that no client requested".to_owned()),
            Effect::Checkpoint { checkpoint, pin, .. } => {
                pin.end();
                let at = self.now_ns + CHECKPOINT_NS;
                self.at(at, Event::Checkpointed(index, checkpoint.version));
            }
            Effect::Stop { reason } => return Err(format!("{} stopped: {reason}", node.id)),
            Effect::Prefetch { .. } => return Err("all rows are in memory".to_owned()),
            Effect::MasterTerm { shard, from, master_term, is_final } => {
                self.loss.on_master_term(
                    NodeId(index as u16),
                    (shard, from),
                    master_term,
                    is_final,
                )?;
            }
            Effect::Truncate(_)
            | Effect::Mark(_)
            | Effect::Lineage { .. }
            | Effect::Lost { .. }
            | Effect::LostCommit { .. }
            | Effect::Rejoined => {}
        }
        Ok(())
    }

    fn transmit(&mut self, from: usize, to: usize, message: P::Message) {
        let (lane, payload) = (message.lane(), message.payload_bytes());
        let body = match payload {
            0 => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                bytes.len() as f64
            }
            payload => payload as f64,
        };
        let wire_bytes = match lane {
            Lane::Control => body,
            Lane::Bulk => body * self.costs.wire_bytes_per_byte,
        };
        if self.settings.region_of(from) != self.settings.region_of(to) {
            self.wire_bytes += wire_bytes + FRAME_BYTES;
        }
        let passing_ns = self
            .settings
            .bandwidth_bits
            .map_or(0.0, |bits| (wire_bytes + FRAME_BYTES) * 8.0 * 1e9 / bits as f64);
        let free = self.link_free_ns.entry((from, to, lane)).or_default();
        *free = (*free).max(self.now_ns) + passing_ns as u64;
        let way = self.topology.one_way_between(NodeId(from as u16), NodeId(to as u16));
        let due = *free + way.us * 1_000;
        self.at(due, Event::Due(Frame { from, to, lane, wire_bytes, message }));
    }
}
