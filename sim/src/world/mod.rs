//! One cluster in virtual time: nodes, network, disks, clocks, clients and faults in one event
//! loop.
//!
//! ```text
//!            +--------------------------- queue, by virtual time -----------------------------+
//!            v                                                                                |
//!   node:  inbox -> step (real protocol, real store) -> effects -> disk, network, timers, replies
//!   world: links (connect, lose, block), clients (invoke, think, give up), faults, the watch
//! ```
//!
//! A run has four phases. The workload is **loaded** without faults. Clients **work** while faults
//! come and go. The world is **healed** and clients continue. Clients stop and the world
//! **drains**: all submitted operations must end and all replicas must converge. Then the history
//! is checked.
//!
//! `node` runs protocol steps and carries effects out. `links` manages connections. `network`
//! decides when a message arrives. `clients` invokes operations and records results. `faults`
//! begins and ends faults. `losses` are repaired by a new node. `upgrade` restarts nodes with other
//! programs. `watch` advances the phases and compares replicas. `steps` limits how long a step is.

mod clients;
mod cold;
mod faults;
mod lineages;
mod links;
mod losses;
mod master_terms;
mod moves;
mod network;
mod node;
mod pool;
mod programs;
mod queue;
mod steps;
mod upgrade;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TableId};
use pangea_core::key::Key;
use pangea_core::partition::Partitions;
use pangea_core::protocol::{Checkpoint, Protocol};
use pangea_core::store::{Pin, Store};
use pangea_core::time::{Span, Timestamp};
use pangea_core::topology::Topology;
use pangea_core::txn::Registry;
use pangea_core::workload::{self, Workload};

use crate::check::{self, Violation};
use crate::disk::Rows;
use crate::history::History;
use crate::levels::Levels;
use crate::record::Recorded;
use crate::report::{Counts, Report};
use crate::rng::SimRng;
use crate::settings::Settings;
use crate::trace::{Outside, Trace};
use clients::{ClientEvent, Clients};
use faults::{FaultEnd, Faults};
use lineages::Lineages;
use master_terms::MasterTerms;
use network::{ConnectionId, Flight, Network};
use node::Node;
use queue::Queue;
use upgrade::Upgrade;

/// The maximum number of events in a run, far above any normal run, so that a livelock ends.
const EVENTS_MAX: u64 = 50_000_000;

/// Marks of replicas that need help, which none does without a fault.
const OF_TROUBLE: [&str; 2] = ["transfer.checkpoint_requested", "inputs.frozen_together"];

/// An event in virtual time.
enum Event<P: Protocol> {
    /// A node processes its next input.
    Step { node: NodeId, life: u64 },
    /// The effects of a node's last step are carried out.
    Effects { node: NodeId, life: u64 },
    /// A node's fsync ends.
    Fsync { node: NodeId, life: u64, position: LogPosition },
    /// A node's checkpoint has been written.
    Checkpointed { node: NodeId, life: u64, checkpoint: Checkpoint, rows: Rows, pin: Pin },
    /// A node's fetch from the cold store ends.
    Fetched { node: NodeId, life: u64, token: u64, keys: Vec<(TableId, Key)>, took: Span },
    /// A timer may be due.
    Timer { node: NodeId, life: u64, timer: P::Timer, setting: u64 },
    /// A node starts.
    Start { node: NodeId, life: u64 },
    /// A message arrives.
    Arrive(Flight),
    /// Stalled messages arrive.
    Flush { from: NodeId, to: NodeId },
    /// A blocked connection times out.
    KeepAlive { a: NodeId, b: NodeId, connection: ConnectionId },
    /// A node notices that a connection is lost.
    NoticeLoss { me: NodeId, peer: NodeId, connection: ConnectionId },
    /// An attempt to connect succeeds.
    Connect { a: NodeId, b: NodeId, attempt: u64 },
    /// Something happens at a client.
    Client(ClientEvent),
    /// A fault begins: the rule with this number.
    Break(usize),
    /// A connection is lost.
    Lose { a: NodeId, b: NodeId },
    /// Slots are to be moved, as the settings say under this number.
    Move(usize),
    /// A fault ends.
    FaultEnd(FaultEnd),
    /// The operator who upgrades the nodes looks after them.
    Operator,
    /// The watch checks progress.
    Watch,
}

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Loading,
    Working,
    Draining,
    Done,
}

/// A cluster with its clients and faults.
pub struct World<P: Protocol> {
    settings: Settings,
    options: P::Options,
    /// The levels of the clients' transactions: the weakest that the protocol offers and that are
    /// as strong as those they ask for.
    levels: Levels,
    topology: Arc<Topology>,
    registry: Arc<Registry>,
    workload: Workload,
    now: Timestamp,
    phase: Phase,
    queue: Queue<Event<P>>,
    nodes: Vec<Node<P>>,
    network: Network,
    clients: Clients,
    faults: Faults,
    upgrade: Upgrade,
    history: History,
    trace: Trace,
    counts: Counts,
    digests: BTreeMap<(ShardId, SnapshotVersion), (NodeId, u64)>,
    /// What replicas agree on besides rows: see [`Protocol::agreed`].
    agreed: BTreeMap<(ShardId, SnapshotVersion), (NodeId, u64)>,
    moves: moves::Moves,
    watch: watch::Watch,
    master_terms: MasterTerms,
    lineages: Lineages,
    /// The whole history in the recorded form, once the run has ended.
    recorded: Option<Recorded>,
    violation: Option<Violation>,
}

impl<P: Protocol> World<P> {
    /// Creates a cluster whose nodes are about to start.
    ///
    /// # Errors
    /// If the settings or options are invalid.
    pub fn new(settings: &Settings, options: &P::Options) -> Result<Self, String> {
        let workload = settings.workload().map_err(|error| error.to_string())?;
        let seed = settings.seed;
        let mut topology = drawn_topology(settings);
        if settings.shards > 1 {
            if !P::PARTITIONED {
                return Err(format!("protocol {:?} does not support partitioned tables", P::NAME));
            }
            topology = settings.placed(topology, workload.partitions(settings.shards))?;
        } else {
            topology = settings.placed(topology, Partitions::default())?;
        }
        let Some(levels) = settings.isolation.granted(P::isolations(options)) else {
            let (name, level) = (P::NAME, settings.isolation);
            return Err(format!("protocol {name:?} does not offer {level} with these settings"));
        };
        topology.check_caches(P::NAME, P::CACHES)?;
        topology.check_replicas(P::NAME, P::PARTIAL)?;
        topology.check_learners(P::NAME, P::LEARNERS)?;
        P::check_options(options, &topology)?;
        faults::check_marks::<P>(settings.rules.iter().flatten())?;
        let topology = Arc::new(topology);
        let nodes = topology.all_ids().map(|id| Node::new(id, settings)).collect();
        let mut world = Self {
            settings: settings.clone(),
            options: options.clone(),
            levels,
            registry: programs::registry_of(0, settings),
            now: Timestamp::default(),
            phase: Phase::Loading,
            queue: Queue::new(),
            nodes,
            network: Network::new(&topology, SimRng::fork(seed, "network", 0)),
            clients: Clients::new(settings, &workload, &topology),
            faults: Faults::new(seed),
            upgrade: Upgrade::default(),
            history: History::default(),
            trace: Trace::new(settings.lines),
            counts: Counts::default(),
            digests: BTreeMap::new(),
            agreed: BTreeMap::new(),
            watch: watch::Watch::default(),
            moves: moves::Moves::default(),
            lineages: Lineages::new(topology.all_ids().count()),
            master_terms: MasterTerms::new(topology.all_ids().count(), settings.shards > 1),
            recorded: None,
            violation: None,
            topology,
            workload,
        };
        for id in world.topology.all_ids() {
            // Nodes start one after the other within a moment, as in a real cluster.
            let at = world.now + Span::from_us(u64::from(id.0) * 1_000);
            world.queue.push(at, Event::Start { node: id, life: 0 });
        }
        world.queue.push(world.now, Event::Watch);
        Ok(world)
    }

    /// Runs to the end or to the first violation, and checks the results that clients observed.
    pub fn run(mut self) -> Report {
        while self.violation.is_none() && self.phase != Phase::Done {
            let (at, event) = self.queue.pop().expect("the watch event is always queued");
            assert!(at >= self.now, "virtual time only increases");
            self.now = at;
            self.handle(event);
            if self.trace.events() > EVENTS_MAX {
                self.violate("liveness", format!("more than {EVENTS_MAX} events"));
            }
        }
        if self.violation.is_none() {
            self.violation = self.check_history();
        }
        self.report()
    }

    fn handle(&mut self, event: Event<P>) {
        match event {
            Event::Step { node, life } => self.on_step(node, life),
            Event::Effects { node, life } => self.on_effects(node, life),
            Event::Fsync { node, life, position } => self.on_fsync(node, life, position),
            Event::Checkpointed { node, life, checkpoint, rows, pin } => {
                self.on_checkpoint_read((node, life), &rows, pin);
                self.on_checkpointed(node, life, checkpoint, rows);
            }
            Event::Fetched { node, life, token, keys, took } => {
                self.on_fetched(node, life, token, &keys, took);
            }
            Event::Timer { node, life, timer, setting } => {
                self.on_timer(node, life, timer, setting);
            }
            Event::Start { node, life } => self.on_start(node, life),
            Event::Arrive(flight) => self.on_arrive(&flight),
            Event::Flush { from, to } => self.on_flush(from, to),
            Event::KeepAlive { a, b, connection } => self.on_keep_alive(a, b, connection),
            Event::NoticeLoss { me, peer, connection } => self.on_notice_loss(me, peer, connection),
            Event::Connect { a, b, attempt } => self.on_connect(a, b, attempt),
            Event::Client(event) => self.on_client(event),
            Event::Break(rule) => self.on_break(rule),
            Event::Lose { a, b } => self.lose(a, b),
            Event::Move(index) => self.on_move(index),
            Event::FaultEnd(end) => self.on_fault_end(end),
            Event::Operator => self.on_operator(),
            Event::Watch => self.on_watch(),
        }
    }

    fn check_history(&mut self) -> Option<Violation> {
        let shards = (0..self.topology.partitions.shards()).map(ShardId);
        let stores: Vec<_> = shards.map(|shard| self.store_of(shard)).collect();
        let at = stores.iter().map(|store| store.published()).min().expect("there is a shard");
        let snapshots: Vec<_> =
            stores.iter().map(|store| workload::Snapshot::new(store, at)).collect();
        let each = snapshots.iter().map(|snapshot| snapshot as &dyn workload::Rows);
        let partitions = match self.partitions_at(at) {
            Ok(partitions) => partitions,
            Err(why) => return Some(Violation::new("moves", "forgotten placement", why)),
        };
        let rows = workload::Divided::new(&partitions, each.collect());
        let real_time = self.settings.real_time;
        let kept = self.surviving_history();
        let checked = check::history(&self.workload, &kept, &rows, real_time);
        let sound = self.check_end(&kept, &rows);
        self.recorded = checked.recorded;
        self.counts.undecided += u64::from(checked.is_open);
        let lost = self.lineages.lost(&self.history).count();
        let lost = (lost > 0 && !self.settings.may_lose).then(|| {
            let story = format!("{lost} answers are from versions that were rolled back");
            Violation::new("lost answers", "lost answers", story)
        });
        sound
            .err()
            .or_else(|| self.check_strays(&partitions))
            .or(lost)
            .or(checked.violation)
            .or_else(|| self.check_marks())
    }

    /// Checks the final rows by themselves and against the acknowledged commits.
    fn check_end(&self, kept: &History, rows: &dyn workload::Rows) -> Result<(), Violation> {
        let report = self.workload.check(rows).map_err(|violation| {
            Violation::new("workload", "final state", violation.to_string())
        })?;
        check::commits::check_numbers(kept)?;
        programs::check(self.upgrade.begun(), kept, rows)?;
        let told = self.told_history(kept);
        check::commits::check_rows(&self.workload, told.as_ref().unwrap_or(kept), rows, &report)
    }

    /// Returns a mark that no run should hit: a replica received an invalid message, or needed help
    /// although nothing had failed.
    fn check_marks(&self) -> Option<Violation> {
        let is_hit = |name: &&&str| self.counts.mark(name) > 0;
        // With drawn faults, of which there may be none, limits are so low that a slow link is
        // trouble enough.
        let is_calm = self.faults.rules.is_empty() && self.settings.faults.is_empty();
        let trouble = if is_calm { OF_TROUBLE.iter().find(is_hit).copied() } else { None };
        let name = self.counts.nonsense().or(trouble)?;
        let count = self.counts.mark(name);
        Some(Violation::new("mark", name, format!("hit {count} times, which no run may")))
    }

    /// The nodes with tables.
    fn replicas(&self) -> &[Node<P>] {
        &self.nodes[..self.topology.node_count()]
    }

    /// Returns a store of a shard; by now all of its nodes that were not destroyed are identical.
    fn store_of(&self, shard: ShardId) -> &Store {
        let is_of = |node: &&Node<P>| self.topology.nodes[node.id.index()].shard == shard;
        let store = self.replicas().iter().filter(is_of).find_map(|node| node.store());
        store.expect("each shard has a running node")
    }

    /// Records the first violation, which ends the run.
    fn violate(&mut self, checker: &'static str, story: String) {
        let violation = Violation::new(checker, checker, story);
        self.trace.event(self.now, Outside, "violation", [0, 0], || violation.to_string());
        self.violation.get_or_insert(violation);
    }

    fn report(mut self) -> Report {
        self.counts.count_operations(&self.history);
        let discarded = self.master_terms.given_up(&self.history).count();
        self.counts.given_up = (discarded + self.lineages.lost(&self.history).count()) as u64;
        Report {
            rules: self.faults.rules,
            virtual_time: self.now.since(Timestamp::default()),
            events: self.trace.events(),
            digest: self.trace.digest(),
            counts: self.counts,
            recorded: self.recorded.or_else(|| {
                let real_time = self.settings.real_time;
                check::observe(&self.workload, &self.history, None, real_time)
                    .ok()?
                    .map(|observed| observed.recorded)
            }),
            history: self.history,
            violation: self.violation,
            lines: self.trace.into_lines(),
            ..Report::outline::<P>(&self.settings, &self.options)
        }
    }
}

/// Draws the distances between regions; the two directions may differ a little.
fn drawn_topology(settings: &Settings) -> Topology {
    let mut dice = SimRng::fork(settings.seed, "topology", 0);
    let mut topology = settings.topology();
    if let Some(matrix) = &settings.one_way {
        let row = |row: &Vec<u64>| row.iter().map(|&ms| Span::from_ms(ms)).collect();
        topology.one_way = matrix.iter().map(row).collect();
        return topology;
    }
    let most = settings.one_way_max.us.max(1);
    let regions = topology.regions.len();
    for a in 0..regions {
        for b in a + 1..regions {
            let there = dice.between(most / 20, most);
            let back = there + dice.between(0, there / 10);
            topology.one_way[a][b] = Span::from_us(there);
            topology.one_way[b][a] = Span::from_us(back);
        }
    }
    topology
}
