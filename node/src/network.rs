//! A node on the real network: transport events become inputs, and clients' requests are answered.

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::key::KeyRange;
use pangea_core::protocol::{Lane, Protocol};
use pangea_core::store::{Pin, PinError, Store};
use pangea_core::topology::Topology;
use pangea_core::txn::{Program, Registry, Scan};
use pangea_core::workload::{Snapshot, Workload};
use pangea_sql::engine::{Engine, NodeInfo, Unavailable};
use xxhash_rust::xxh3::Xxh3;

use crate::client::{
    Answer as ClientAnswer, ClientCall, ClientQuery, ClientReply, Pinned, Query, Row,
};
use crate::config::Config;
use crate::config::wording::nodes_in_words;
use crate::driver::{Answer, Handle, Network};
use crate::meter::Meter;
use crate::node::{Node, NodeOptions, StartError};
use crate::remote_rows::RemoteShards;
use crate::transport::{
    Compression, Likeness, REFUSED, REFUSES, Transport, TransportConfig, TransportError,
    TransportEvent,
};

/// The maximum number of rows in one answer, even if the client requests more.
const ROWS_MAX: usize = 10_000;
/// The maximum size of an answer's rows, so that it fits a frame.
const ROWS_BYTES_MAX: usize = 4 << 20;

impl<P: Protocol> Node<P> {
    /// Starts the configured node on the real network.
    ///
    /// # Errors
    /// When the protocol's settings are invalid, its state on disk can't be used, or its address is
    /// in use.
    pub fn start(config: &Config, registry: Arc<Registry>) -> Result<Self, StartError> {
        Self::start_metered(config, registry, None)
    }

    /// Like [`Node::start`], with a meter that records the cost of each operation.
    ///
    /// # Errors
    /// The errors of [`Node::start`].
    pub fn start_metered(
        config: &Config,
        registry: Arc<Registry>,
        meter: Option<Arc<Meter>>,
    ) -> Result<Self, StartError> {
        assert_eq!(config.protocol, P::NAME, "the configuration is for this protocol");
        let protocol = config.checked_options::<P>().map_err(StartError::Config)?;
        let topology = Arc::new(config.topology());
        let data_dir = config.data_dir.clone();
        let options = NodeOptions::<P> {
            protocol,
            durability: config.durability,
            tuning: config.tuning,
            clock: config.clock,
            is_replaced: config.is_replaced,
            meter: meter.clone(),
            ..NodeOptions::new(config.node, topology, registry, data_dir)
        };
        Self::start_on(options, |handle| connect(config, handle, meter))
    }
}

/// Opens the node's port and dials its peers.
fn connect<P: Protocol>(
    config: &Config,
    handle: &Handle<P>,
    meter: Option<Arc<Meter>>,
) -> Result<Arc<dyn Network>, String> {
    let options: P::Options = config.protocol_options().map_err(|error| error.to_string())?;
    let peers = config.nodes.iter().filter(|node| node.id != config.node);
    let transport_config = TransportConfig {
        cluster: config.cluster.clone(),
        protocol: P::NAME,
        fingerprint: fingerprint(handle.registry(), &options, handle.topology()),
        likeness: Likeness::of(
            handle.registry(),
            &handle.about().settings,
            nodes_of(handle.topology()),
        ),
        me: config.node,
        topology: Arc::new(config.topology()),
        listen: config.me().peer,
        peers: peers.map(|node| (node.id, node.peer)).collect(),
        wan: config.emulated_wan(),
        meter,
        compression: Compression::default(),
    };
    let on_event = {
        let handle = handle.clone();
        move |event| on_event(&handle, event)
    };
    let topology = handle.topology();
    let group = topology.group(topology.place_of(config.node).shard).topology;
    let (majority, count) = (group.majority(), group.voter_count());
    let of_shard = match topology.partitions.shards() {
        1 => String::new(),
        shards => format!(" of its shard, and one node of each of the other {} shards", shards - 1),
    };
    let NodeInfo { release, code, procedures, .. } = handle.about();
    tracing::info!(
        "release {release}, code {code}, {} procedures: {}",
        procedures.len(),
        procedures.join(" ")
    );
    match topology.home_of(config.node) {
        Some(home) => tracing::info!(
            "this node is a cache: it keeps the last batches of {}, and has no tables",
            topology.node_name(home)
        ),
        None => tracing::info!(
            "writes wait until a majority is connected: {majority} of {count} nodes{of_shard}"
        ),
    }
    let region = RemoteShards::of(config, topology)
        .map_err(|error| format!("can't start a thread for reading other shards: {error}"))?;
    region.into_iter().for_each(|region| handle.knows_remote_shards(region));
    let transport = Transport::start(transport_config, Arc::new(on_event));
    let transport = transport.map_err(|error| match error {
        TransportError::Listen { address, error } => {
            let id = config.node.0;
            format!("peer = \"{address}\" of node {id}: can't listen on this address: {error}")
        }
        other => other.to_string(),
    })?;
    Ok(Arc::new(transport))
}

impl Network for Transport {
    fn send(&self, to: NodeId, lane: Lane, frame: Bytes) {
        self.send(to, lane, frame);
    }

    fn finish(&self) {
        self.finish();
    }

    fn stop(&self) {
        self.stop();
    }
}

/// A hash of the procedures' ids and code, the protocol's settings and the partitioning. Replicas
/// would diverge if any of these differed between nodes.
fn fingerprint(registry: &Registry, options: &impl std::fmt::Debug, topology: &Topology) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&registry.code().0.to_le_bytes());
    hash.update(format!("{options:?}").as_bytes());
    if topology.partitions.shards() > 1 {
        hash.update(partitions_of(topology).as_bytes());
    }
    topology.caches.iter().for_each(|home| hash.update(&home.0.to_le_bytes()));
    if topology.non_voting > 0 {
        hash.update(&topology.non_voting.to_le_bytes());
    }
    hash.digest()
}

/// Describes which node has which rows.
fn partitions_of(topology: &Topology) -> String {
    let shards: Vec<u16> = topology.nodes.iter().map(|node| node.shard.0).collect();
    format!("{shards:?} {}", topology.partitions)
}

/// Describes what the nodes are, as lines: which rows they have, which have no vote, and the homes
/// of caches.
fn nodes_of(topology: &Topology) -> String {
    let mut lines = partitions_of(topology);
    if topology.non_voting > 0 {
        let silent = nodes_in_words(topology.voter_count()..=topology.node_count() - 1);
        lines += &format!("\n`votes = false` of {silent}");
    }
    if !topology.caches.is_empty() {
        let homes: Vec<u16> = topology.caches.iter().map(|home| home.0).collect();
        lines += &format!("\n`cache_of` of caches: {homes:?}");
    }
    lines
}

fn on_event<P: Protocol>(handle: &Handle<P>, event: TransportEvent) {
    match event {
        TransportEvent::PeerUp(peer) => {
            tracing::info!("connected to {}", handle.topology().node_name(peer));
            handle.inbox().on_peer_up(peer);
        }
        TransportEvent::PeerDown(peer) => handle.inbox().on_peer_down(peer),
        TransportEvent::Frame { from, bytes, .. } => handle.inbox().on_frame(from, &bytes),
        TransportEvent::Submit(calls) => submit(handle, calls),
        TransportEvent::Query(ClientQuery { query, reply }) => answer(handle, query, reply),
        TransportEvent::Trouble { peer, address, reason } => match peer {
            Some(peer) => {
                let name = handle.topology().node_name(peer);
                tracing::warn!("{name} at {address}: {reason}");
                // Only one of two nodes connects to the other.
                if [REFUSES, REFUSED].iter().any(|words| reason.starts_with(words)) {
                    handle.inbox().on_peer_refusal(peer, reason);
                }
            }
            None => tracing::warn!("{address}: {reason}"),
        },
        TransportEvent::Panicked(reason) => {
            handle.inbox().fail(format!("the node stopped: {reason}"));
        }
    }
}

/// Submits a client's calls, and sends the outcomes back as they arrive.
fn submit<P: Protocol>(handle: &Handle<P>, calls: Vec<ClientCall>) {
    let mut programs = Vec::with_capacity(calls.len());
    for ClientCall { procedure: name, args, reply } in calls {
        let Some(procedure) = handle.registry().id(&name) else {
            reply.refuse(format!("unknown procedure {name:?}"));
            continue;
        };
        let receive = Answer::new(move |outcome| match outcome {
            Ok(outcome) => reply.outcome(outcome),
            Err(Unavailable { reason }) => reply.unavailable(reason),
        });
        programs.push((Program::Call { procedure, args }, receive));
    }
    handle.submit_many(programs);
}

/// Answers a client's query. Long reads of the store run on the client's own thread.
fn answer<P: Protocol>(handle: &Handle<P>, query: Query, reply: ClientReply) {
    fn send<T>(reply: ClientReply, answer: Result<T, Unavailable>, of: fn(T) -> ClientAnswer) {
        match answer {
            Ok(value) => reply.send(&of(value)),
            Err(Unavailable { reason }) => reply.unavailable(reason),
        }
    }
    match query {
        Query::Status => handle.status_with(|it| send(reply, it, ClientAnswer::Status)),
        Query::Fresh => handle.fresh_with(|it| send(reply, it, ClientAnswer::Fresh)),
        Query::LatencySamples => {
            reply.send(&ClientAnswer::LatencySamples(handle.inbox().latency().take()))
        }
        Query::Digest { version } => with_pin(handle, version, reply, |pin| {
            let (version, digest) = (pin.version(), pin.store().digest(pin.version()));
            ClientAnswer::Digest { version, digest }
        }),
        Query::Table { table, version, start, end, direction, rows_max } => {
            with_pin(handle, version, reply, |pin| {
                let scan = Scan { table, range: KeyRange { start, end }, direction };
                let rows_max = (rows_max as usize).clamp(1, ROWS_MAX);
                rows(pin.store(), &scan, pin.version(), rows_max)
            });
        }
        Query::Pin { version } => match handle.store().pin_at(version) {
            Ok(pin) => reply.hold(Box::new(pin)),
            Err(PinError::Unpublished { .. }) => {
                reply.send(&ClientAnswer::Pinned(Pinned::NotReached));
            }
            Err(PinError::Reclaimed { oldest }) => {
                reply.send(&ClientAnswer::Pinned(Pinned::Reclaimed(oldest)));
            }
        },
        Query::Unpin { pin } => reply.release(pin),
        Query::Check { workload, settings, commits } => {
            let workload = match Workload::named(&workload, &settings) {
                Err(error) => return reply.refuse(error.to_string()),
                Ok(workload) => workload,
            };
            with_pin(handle, None, reply, |pin| {
                let version = pin.version();
                let rows = Snapshot::new(pin.store(), version);
                let verdict = workload.check(&rows).and_then(|report| {
                    if let Some(commits) = &commits {
                        workload.check_commits(&report, &rows, commits)?;
                    }
                    Ok(report.to_string())
                });
                ClientAnswer::Checked { version, verdict: verdict.map_err(|it| it.to_string()) }
            });
        }
        Query::Links | Query::Cut { .. } | Query::Heal | Query::SetLink { .. } => {
            reply.refuse("the transport answers these queries");
        }
    }
}

/// Runs `look` on a version that is pinned in the meantime.
fn with_pin<P: Protocol>(
    handle: &Handle<P>,
    version: Option<SnapshotVersion>,
    reply: ClientReply,
    look: impl FnOnce(&Pin) -> ClientAnswer,
) {
    let store = handle.store();
    let pin = match version {
        None => Ok(store.pin()),
        Some(version) => store.pin_at(version),
    };
    match pin {
        Err(error) => reply.refuse(error.to_string()),
        Ok(pin) => {
            let answer = look(&pin);
            if pin.is_lost() {
                return reply.refuse("the snapshot was replaced, or discarded by a failover");
            }
            reply.send(&answer);
        }
    }
}

fn rows(
    store: &Store,
    Scan { table, range, direction }: &Scan,
    at: SnapshotVersion,
    rows_max: usize,
) -> ClientAnswer {
    use std::ops::ControlFlow::{Break, Continue};
    let (mut rows, mut bytes, mut is_end) = (Vec::new(), 0, true);
    store.scan(*table, range, *direction, at, |key, version| {
        let Some(value) = &version.value else { return Continue(()) };
        if rows.len() >= rows_max || bytes >= ROWS_BYTES_MAX {
            is_end = false;
            return Break(());
        }
        bytes += key.len() + value.len();
        rows.push(Row { key: key.to_vec(), version: version.version, value: value.to_vec() });
        Continue(())
    });
    ClientAnswer::Rows { rows, is_end }
}
