//! One node, from its data directory to its event loop.
//!
//! A start opens the data directory, loads the newest readable checkpoint and reads the log. Only
//! then does it accept network traffic and give the protocol its first input. A stop closes the
//! network first, so that peers continue without this node. It then answers all waiting requests,
//! and closes the log, the checkpoints and the data directory. An unrequested end (a disk failure,
//! a bug in the protocol) follows the same path, with a reason.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::{Durable, Protocol, Setup};
use pangea_core::store::Store;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::Registry;
use pangea_protocols::UnknownProtocol;

use crate::checkpoint::{CheckpointEvent, CheckpointEvents, Checkpointer, LoadError, load};
use crate::clock::ClockConfig;
use crate::cold::{cold_threads_of, new_store};
use crate::config::{ConfigError, Tuning};
use crate::data_dir::{DataDir, DataDirError, HeadFile, Identity};
use crate::disk::{CountedDisk, Disk, DiskError, OsDisk, Syncs};
use crate::driver::{Closed, Driver, Handle, Inbox, Network, Parts, Reachability, Shared, Stopped};
use crate::log::{Durability, Log, LogError, LogEvent, LogEvents, LogOptions, remove_if_there};
use crate::meter::Meter;
use crate::panics::caught;
use crate::pool::ThreadedPool;
pub use crate::start_report::StartReport;
use crate::start_report::settings_of;
use pangea_sql::engine::Engine;
use pangea_sql::history::{History, TICK};
use pangea_sql::session::now as sql_now;

/// A node's configuration, except how to reach its peers.
#[derive(Clone, Debug)]
pub struct NodeOptions<P: Protocol> {
    /// The node's id.
    pub me: NodeId,
    /// The cluster.
    pub topology: Arc<Topology>,
    /// The procedures that programs may call.
    pub registry: Arc<Registry>,
    /// The protocol's settings.
    pub protocol: P::Options,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The condition under which a record counts as durable.
    pub durability: Durability,
    /// The keys of the configuration with a number.
    pub tuning: Tuning,
    /// Whether the node replaces one of the same id that lost its data.
    pub is_replaced: bool,
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Meter that records the cost of operations, if metering is on.
    pub meter: Option<Arc<Meter>>,
    /// The quality of the clock.
    pub clock: ClockConfig,
}

impl<P: Protocol> NodeOptions<P> {
    /// The default options for a node of a cluster.
    pub fn new(
        me: NodeId,
        topology: Arc<Topology>,
        registry: Arc<Registry>,
        data_dir: PathBuf,
    ) -> Self {
        Self {
            me,
            topology,
            registry,
            protocol: P::Options::default(),
            data_dir,
            durability: Durability::default(),
            tuning: Tuning::default(),
            is_replaced: false,
            disk: Arc::new(OsDisk),
            meter: None,
            clock: ClockConfig::default(),
        }
    }
}

/// The reason why a node did not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration names a protocol that does not exist.
    Protocol(UnknownProtocol),
    /// The protocol's settings are invalid.
    Config(ConfigError),
    /// The protocol needs more nodes than the cluster has.
    TooFewNodes {
        /// The protocol.
        protocol: &'static str,
        /// The minimum number of nodes.
        least: usize,
        /// The number of nodes of the cluster.
        found: usize,
    },
    /// The protocol does not support these settings in this cluster.
    Settings(String),
    /// The protocol does not support partitioned tables, and the cluster's nodes have several
    /// shards.
    NotDivided {
        /// The protocol.
        protocol: &'static str,
    },
    /// The node must fetch all its state from other replicas, but it is the only one.
    NobodyToFetchFrom,
    /// The data directory can't be used.
    DataDir(DataDirError),
    /// No usable checkpoint.
    Checkpoint(LoadError),
    /// The log can't be used.
    Log(LogError),
    /// The network could not be started.
    Network(String),
    /// The protocol could not restart from the state on disk.
    Restart(String),
    /// The operating system could not create threads.
    Threads(String),
}

/// The name of the event loop's thread.
const DRIVER: &str = "driver";
/// The name of the thread that retains snapshots.
const HISTORIAN: &str = "history";

/// Hint for the operator about damaged data.
const WAY_BACK: &str = "pangea start --replace moves the data aside and fetches everything from \
                        the other nodes; if there are none, restore a copy of the data directory";

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::TooFewNodes { protocol, least, found } => write!(
                f,
                "[[nodes]]: protocol {protocol:?} needs at least {least} nodes, and 3 to tolerate \
                 the loss of one; the cluster has {found}"
            ),
            Self::NotDivided { protocol } => write!(
                f,
                "[[nodes]]: protocol {protocol:?} stores all rows on each node; remove `shard`"
            ),
            Self::Settings(reason) => f.write_str(reason),
            Self::NobodyToFetchFrom => f.write_str(
                "--replace fetches everything from the other nodes with the same rows, but there \
                 are none. Restore a copy of the data directory, or start with an empty one",
            ),
            Self::DataDir(error) => error.fmt(f),
            Self::Checkpoint(error) if error.is_damage() => write!(f, "{error}. {WAY_BACK}"),
            Self::Log(error) if error.is_damage() => write!(f, "{error}. {WAY_BACK}"),
            Self::Checkpoint(error) => error.fmt(f),
            Self::Log(error) => error.fmt(f),
            Self::Network(reason) | Self::Restart(reason) => f.write_str(reason),
            Self::Threads(reason) => write!(f, "can't start a thread: {reason}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<DataDirError> for StartError {
    fn from(error: DataDirError) -> Self {
        Self::DataDir(error)
    }
}

impl From<LoadError> for StartError {
    fn from(error: LoadError) -> Self {
        Self::Checkpoint(error)
    }
}

impl From<LogError> for StartError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

impl From<DiskError> for StartError {
    fn from(error: DiskError) -> Self {
        Self::Threads(error.to_string())
    }
}

/// A running node. Dropping it stops the node at once, as a crash does.
pub struct Node<P: Protocol> {
    handle: Handle<P>,
    driver: Option<JoinHandle<()>>,
    /// The thread that retains recent snapshots, if retention is configured.
    historian: Option<JoinHandle<()>>,
    /// The state found on disk at the start, for the operator.
    report: StartReport,
}

impl<P: Protocol> fmt::Debug for Node<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({}, {})", P::NAME, self.handle.me())
    }
}

/// Creates the handle of a node.
fn handle_of<P: Protocol>(
    options: &NodeOptions<P>,
    inbox: &Arc<Inbox<P>>,
    store: &Arc<Store>,
    queries: ThreadedPool,
) -> Handle<P> {
    Handle::new(Shared {
        me: options.me,
        inbox: inbox.clone(),
        store: store.clone(),
        registry: options.registry.clone(),
        topology: options.topology.clone(),
        durability: options.durability,
        settings: settings_of(&options.protocol),
        isolations: P::isolations(&options.protocol),
        history: History::new(options.tuning.history()),
        remote_shards: OnceLock::new(),
        fresh_at: Mutex::new(None),
        queries,
    })
}

/// Creates the thread pool for data-parallel work.
fn pool_of<P: Protocol>(options: &NodeOptions<P>) -> Result<ThreadedPool, StartError> {
    ThreadedPool::new(options.tuning.workers)
        .map_err(|error| StartError::Threads(error.to_string()))
}

impl<P: Protocol> Node<P> {
    /// Starts a node on the network that `connect` creates. The network delivers peers' messages to
    /// the handle's [inbox](Handle::inbox).
    ///
    /// # Errors
    /// When its state on disk can't be used, or the network can't be started.
    pub fn start_on(
        mut options: NodeOptions<P>,
        connect: impl FnOnce(&Handle<P>) -> Result<Arc<dyn Network>, String>,
    ) -> Result<Self, StartError> {
        check_nodes::<P>(&options.topology)?;
        P::check_options(&options.protocol, &options.topology).map_err(StartError::Settings)?;
        let syncs = Arc::new(Syncs::default());
        options.disk = Arc::new(CountedDisk::new(options.disk, syncs.clone()));
        if options.is_replaced && is_alone(&options) {
            return Err(StartError::NobodyToFetchFrom);
        }
        let data_dir = take_data_dir(&options)?;
        let replacement = Replacement::of(&options, data_dir.as_ref())?;
        let (pool, queries) = (pool_of(&options)?, pool_of(&options)?);
        let heard = Reachability::new(options.me, options.topology.clone()).in_words(&P::WORDS);
        let inbox = Arc::new(Inbox::new(heard, LogPosition(0)));
        let store = new_store(&options, data_dir.as_ref(), &inbox)?;
        let mut opened = open_all(&options, data_dir.as_ref(), &store, &inbox)?;
        opened.durable.is_replaced = replacement.is_replaced;
        opened.report.add(replacement.line, &options);
        inbox.on_durable(opened.head);
        let handle = handle_of(&options, &inbox, &store, queries);
        let head = data_dir.as_ref().map(|dir| dir.head_file(&options.disk));
        let protocol = P::new(Setup {
            me: options.me,
            topology: options.topology,
            registry: options.registry,
            options: options.protocol,
        });
        let network = connect(&handle).map_err(StartError::Network)?;
        let cold_threads = cold_threads_of(&store, &inbox)?;
        let parts = Parts {
            protocol,
            me: options.me,
            durable: opened.durable,
            log_head: opened.head,
            store,
            inbox,
            log: opened.log,
            checkpointer: opened.checkpointer,
            cold_threads,
            network: network.clone(),
            pool,
            on_rejoined: replacement.on_rejoined,
            meter: options.meter,
            syncs,
            stop_within: Span::from_ms(options.tuning.stop_s * 1_000),
            clock: options.clock,
        };
        let ((ready, is_ready), ended) = (channel(), handle.inbox().clone());
        let run = move || {
            // The directory stays locked until the driver's files are closed.
            let _data_dir = data_dir;
            run_driver(parts, &ready);
            note_head(head, &ended);
        };
        let thread = std::thread::Builder::new().name(DRIVER.to_owned()).spawn(run);
        let driver = thread.map(Some).map_err(|error| {
            network.stop();
            StartError::Threads(error.to_string())
        })?;
        let mut node = Self { handle, driver, historian: None, report: opened.report };
        node.historian = remember(node.handle.clone())?;
        // The store has recovered the state of the last process once the first step is done.
        if is_ready.recv().is_err() {
            node.join();
            return Err(StartError::Restart(node.handle.inbox().closed_because()));
        }
        Ok(node)
    }

    /// The handle for requests to the node.
    pub fn handle(&self) -> &Handle<P> {
        &self.handle
    }

    /// The report on the state found on disk at the start.
    pub fn report(&self) -> &StartReport {
        &self.report
    }

    /// Waits until the node has ended, because it was stopped or because it failed.
    ///
    /// # Errors
    /// The reason of the failure.
    pub fn wait(self) -> Result<(), String> {
        self.wait_stopped().map(drop)
    }

    /// Like [`Self::wait`], and returns whether the node has written its last checkpoint.
    ///
    /// # Errors
    /// The reason of the failure.
    pub fn wait_stopped(mut self) -> Result<Stopped, String> {
        let closed = self.handle.inbox().wait_closed();
        self.join();
        match closed {
            Closed::Requested(stopped) => Ok(stopped),
            Closed::Failed(reason) => Err(reason),
        }
    }

    /// Stops the node in order ([`Handle::stop`]) and waits for it: none of its threads and open
    /// files remain.
    ///
    /// # Errors
    /// The reason, if it had failed before.
    pub fn stop(self) -> Result<(), String> {
        self.handle.stop();
        self.wait()
    }

    fn join(&mut self) {
        for thread in [self.driver.take(), self.historian.take()].into_iter().flatten() {
            // Panics are caught inside the threads.
            let _ = thread.join();
        }
    }
}

impl<P: Protocol> Drop for Node<P> {
    fn drop(&mut self) {
        self.handle.stop_now();
        self.join();
    }
}

/// Retains recent snapshots on a separate thread until the node ends, if retention is configured.
fn remember<P: Protocol>(handle: Handle<P>) -> Result<Option<JoinHandle<()>>, StartError> {
    if handle.past().retention().time.is_zero() {
        return Ok(None);
    }
    let keep = |handle: &Handle<P>| {
        while !handle.inbox().wait_closed_for(TICK) {
            handle.past().tick(handle.store(), sql_now());
        }
    };
    let run = move || {
        let failed = |reason| handle.inbox().fail(format!("the node stopped: {reason}"));
        caught(HISTORIAN, || keep(&handle), failed);
    };
    let thread = std::thread::Builder::new().name(HISTORIAN.to_owned()).spawn(run);
    thread.map(Some).map_err(|error| StartError::Threads(error.to_string()))
}

/// Runs the event loop to its end, and turns a panic of the protocol into a failure of the node.
/// Signals `ready` when the first step is done.
fn run_driver<P: Protocol>(parts: Parts<P>, ready: &Sender<()>) {
    let (inbox, network) = (parts.inbox.clone(), parts.network.clone());
    let run = || {
        let driver = Driver::new(parts);
        // The thread that starts the node may no longer be waiting.
        let _ = ready.send(());
        driver.run();
    };
    caught(DRIVER, run, |reason| {
        inbox.fail(format!("the node stopped: {reason}"));
        network.stop();
    });
}

/// Notes how far the log of a node that was stopped is durable.
fn note_head<P: Protocol>(head: Option<HeadFile>, inbox: &Inbox<P>) {
    if let Some(head) = head.filter(|_| inbox.is_stopping()) {
        head.write(inbox.durable());
    }
}

fn check_nodes<P: Protocol>(topology: &Topology) -> Result<(), StartError> {
    let (protocol, least, found) = (P::NAME, P::NODES_MIN, topology.node_count());
    if found < least {
        return Err(StartError::TooFewNodes { protocol, least, found });
    }
    topology.check_caches(protocol, P::CACHES).map_err(StartError::Settings)?;
    topology.check_replicas(protocol, P::PARTIAL).map_err(StartError::Settings)?;
    topology.check_learners(protocol, P::LEARNERS).map_err(StartError::Settings)?;
    match topology.partitions.shards() == 1 || P::PARTITIONED {
        true => Ok(()),
        false => Err(StartError::NotDivided { protocol }),
    }
}

/// Whether no other node has the same rows.
fn is_alone<P: Protocol>(options: &NodeOptions<P>) -> bool {
    let shard = options.topology.place_of(options.me).shard;
    options.topology.group(shard).nodes().len() == 1
}

fn take_data_dir<P: Protocol>(options: &NodeOptions<P>) -> Result<Option<DataDir>, StartError> {
    if options.durability == Durability::Memory {
        return Ok(None);
    }
    let topology = &options.topology;
    let regions = topology.node_ids().map(|node| topology.place_name(node)).collect();
    let (cluster, protocol) = (topology.cluster.clone(), P::NAME.to_owned());
    let divided = Some(&topology.partitions).filter(|partitions| partitions.shards() > 1);
    let partitions = divided.map(ToString::to_string);
    let voters = (topology.non_voting > 0).then_some(topology.voter_count());
    let identity = Identity { cluster, protocol, node: options.me, regions, partitions, voters };
    let open = || DataDir::open(&options.disk, &options.data_dir, &identity);
    match open() {
        Err(DataDirError::Damaged { path, reason }) if options.is_replaced => {
            let aside = path.with_extension("damaged");
            tracing::warn!(
                "{} is damaged: {reason}; it was renamed to {}",
                path.display(),
                aside.display()
            );
            let renamed = options.disk.rename(&path, &aside);
            renamed.map_err(|error| DataDirError::Disk(DiskError::new("rename", &path)(error)))?;
            Ok(Some(open()?))
        }
        opened => Ok(Some(opened?)),
    }
}

/// The tasks of a node that replaces one that lost its data.
struct Replacement {
    is_replaced: bool,
    /// Message for the operator.
    line: Option<String>,
    on_rejoined: Box<dyn FnMut() -> Result<(), DiskError> + Send>,
}

impl Replacement {
    fn of<P: Protocol>(
        options: &NodeOptions<P>,
        data_dir: Option<&DataDir>,
    ) -> Result<Self, StartError> {
        let Some(data_dir) = data_dir else {
            let on_rejoined = Box::new(|| Ok(()));
            return Ok(Self { is_replaced: options.is_replaced, line: None, on_rejoined });
        };
        let disk = options.disk.clone();
        let mut line = None;
        if options.is_replaced {
            let aside = data_dir.replace(disk.as_ref()).map_err(DataDirError::from)?;
            line = aside.map(|aside| format!("the previous data was moved to {}", aside.display()));
            line.iter().for_each(|line| tracing::info!("{line}"));
        }
        let is_replaced = data_dir.is_replaced(disk.as_ref()).map_err(DataDirError::from)?;
        if is_replaced {
            tracing::info!(
                "this node fetches its data from the other nodes, all of which must be running"
            );
        }
        let path = data_dir.replaced();
        let on_rejoined = Box::new(move || remove_if_there(disk.as_ref(), &path));
        Ok(Self { is_replaced, line, on_rejoined })
    }
}

/// Opens the state on disk. The cold file can fail only by a panic, and has then reported the
/// reason.
fn open_all<P: Protocol>(
    options: &NodeOptions<P>,
    data_dir: Option<&DataDir>,
    store: &Store,
    inbox: &Arc<Inbox<P>>,
) -> Result<OpenedStorage, StartError> {
    let open = || open_durable(options, data_dir, store, inbox);
    catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|panic| match inbox.closed_because() {
        reason if reason.is_empty() => resume_unwind(panic),
        reason => Err(StartError::Restart(reason)),
    })
}

/// The opened storage: the state read from disk, and the writers.
struct OpenedStorage {
    log: Log,
    checkpointer: Option<Checkpointer>,
    durable: Durable,
    head: LogPosition,
    report: StartReport,
}

fn open_durable<P: Protocol>(
    options: &NodeOptions<P>,
    data_dir: Option<&DataDir>,
    store: &Store,
    inbox: &Arc<Inbox<P>>,
) -> Result<OpenedStorage, StartError> {
    let disk = &options.disk;
    let log_options = LogOptions {
        dir: data_dir.map(DataDir::log).unwrap_or_default(),
        durability: options.durability,
        segment_bytes: options.tuning.log_segment_bytes,
        meter: options.meter.clone(),
    };
    let (log, recovered) = Log::open(disk.clone(), &log_options, log_events(inbox))?;
    let Some(data_dir) = data_dir else {
        let (durable, head) = (Durable::default(), LogPosition(0));
        let lines = vec!["this node stores nothing on disk".to_owned()];
        let report = StartReport { lines, ..StartReport::default() };
        return Ok(OpenedStorage { log, checkpointer: None, durable, head, report });
    };
    let dir = data_dir.checkpoints();
    let loaded = load(disk, &dir, P::NAME, recovered.mark.checkpoint, store)?;
    if recovered.head.0 == 0
        && let Some(checkpoint) = &loaded.checkpoint
    {
        let (dir, checkpoint) = (log_options.dir, checkpoint.version);
        return Err(StartError::Log(LogError::Gone { dir, checkpoint }));
    }
    let report = StartReport::of(&recovered, &loaded);
    let head_file = data_dir.head_file(disk);
    let report = report.compared(&recovered, head_file.read(), is_alone(options));
    report.log();
    let events = checkpoint_events(inbox, head_file);
    let checkpointer = Checkpointer::start(disk.clone(), dir, P::NAME, events)?;
    let head = recovered.head;
    let (checkpoint, records) = (loaded.checkpoint, recovered.records);
    let durable = Durable { checkpoint, records, is_replaced: false };
    Ok(OpenedStorage { log, checkpointer: Some(checkpointer), durable, head, report })
}

/// Reports the results of checkpoints to the protocol, and logs when they start to fail.
fn checkpoint_events<P: Protocol>(inbox: &Arc<Inbox<P>>, head: HeadFile) -> CheckpointEvents {
    let (inbox, is_failing) = (inbox.clone(), AtomicBool::new(false));
    Arc::new(move |event| match event {
        CheckpointEvent::Written(version) => {
            head.write(inbox.durable());
            if is_failing.swap(false, Ordering::Relaxed) {
                tracing::info!("checkpoints are written again");
            }
            inbox.on_checkpointed(version);
        }
        CheckpointEvent::Failed { version, reason } => {
            if !is_failing.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "checkpoint failed: {reason}. Until a checkpoint is written (retried every \
                     few seconds), the log and the time of a restart grow"
                );
            }
            inbox.on_checkpoint_failed(version);
        }
        CheckpointEvent::Panicked(reason) => inbox.fail(format!("the node stopped: {reason}")),
    })
}

fn log_events<P: Protocol>(inbox: &Arc<Inbox<P>>) -> LogEvents {
    let inbox = inbox.clone();
    Arc::new(move |event| match event {
        LogEvent::Durable(position) => inbox.on_durable(position),
        LogEvent::Failed(error) => {
            inbox.fail(format!(
                "the node stopped: {error}. No acknowledged data is lost; the outcome of requests \
                 in flight is unknown"
            ));
        }
    })
}
