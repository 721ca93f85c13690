//! `--via process`: nodes in this process, and calls without sockets between clients and nodes.
//!
//! With one region and `--durability memory`, this measures only the engine, without client
//! protocol, replication or disk. Nodes of several regions communicate over loopback as usual.
//! Tables are loaded and checked by the native protocol.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_baselines::{cpu_us_by_thread, memory_bytes_peak};
use pangea_core::partition::Partitions;
use pangea_core::workload::{self, Workload};
use pangea_node::client::Client;
use pangea_node::config::Config;
use pangea_node::meter::Meter;
use pangea_node::running::{self, RunningNode};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::environment::BenchEnvironment;
use super::faults::{Fault, FaultEvent};
use super::measure::{Measured, Subject, drive_settings, load, measure_all};
use super::report::Report;
use super::stages::Threads;
use super::usage::{self, RUNTIME_THREADS, Usage};
use super::usage_probe::UsageProbe;
use super::{Arguments, Via, check as checks, checkpoints};
use crate::cluster::{Directory, Plan, replicas};
use crate::failure::Failure;
use crate::load_generator::{Connection, Drive, THREADS};
use crate::protocol::registry;
use crate::signals::Signals;

/// The time limit for nodes to elect their first coordinator.
const USABLE_DEADLINE: Duration = Duration::from_secs(30);

/// Restricts this thread, and all threads that it starts later, to this number of the available
/// cores.
///
/// # Errors
/// If fewer cores are available.
pub fn keep_to_cores(cores: usize) -> Result<(), Failure> {
    let cant = |error| Failure::failed("can't set the CPU affinity", error);
    let mine = sched_getaffinity(None).map_err(cant)?;
    let (mut fewer, mut found) = (CpuSet::new(), 0);
    for core in (0..CpuSet::MAX_CPU).filter(|&core| mine.is_set(core)).take(cores) {
        fewer.set(core);
        found += 1;
    }
    if found < cores {
        return Err(Failure::Usage(format!("--cores {cores}: only {found} are available")));
    }
    sched_setaffinity(None, &fewer).map_err(cant)
}

impl Arguments {
    /// Rejects options that make no sense for a calibration.
    ///
    /// # Errors
    /// If nodes are not separate processes, or an option would be ignored.
    pub fn check_can_calibrate(&self) -> Result<(), Failure> {
        let refused = if self.via == Via::Process {
            "--via process: costs are measured on separate node processes; leave it out"
        } else if self.json.is_some() {
            "--json: costs are written to --out; leave it out"
        } else if self.stages {
            "--stages: a calibration measures all kinds of a node's work separately; leave it out"
        } else {
            return Ok(());
        };
        Err(Failure::Usage(refused.to_owned()))
    }
}

/// Starts nodes in this process, runs the workload, and stops them.
pub fn run(arguments: &Arguments) -> Result<Report, Failure> {
    if let Some(cores) = arguments.cores {
        keep_to_cores(cores as usize)?;
    }
    // Only after the cores were chosen: by default a node has one worker for each core.
    let plan = arguments.own_plan()?;
    let (workload, settings) = (arguments.workload()?, arguments.workload_settings());
    let directory = Directory::new(&arguments.place())?;
    let configs = plan.configs(directory.path())?;
    let runtime = crate::runtime(1)?;
    let planned = (arguments, &plan);
    let measured = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let nodes = Nodes::start(&configs, plan.is_metered)?;
        let measured = tokio::select! {
            measured = measure(planned, &nodes, &configs, (&workload, &settings)) => measured,
            () = signals.received() => Err(Failure::Interrupted("interrupted".to_owned())),
        };
        let stopped = nodes.stop();
        let measured = measured?;
        stopped.map(|()| measured)
    });
    // The directory is removed whether or not the run succeeded.
    let removed = directory.close();
    let report = Report::new(arguments, &plan, measured?);
    removed.map(|()| report)
}

/// The running nodes.
struct Nodes(Vec<Box<dyn RunningNode>>);

impl Nodes {
    fn start(configs: &[Config], is_metered: bool) -> Result<Self, Failure> {
        let start = |config: &Config| {
            let meter = is_metered.then(Arc::<Meter>::default);
            let node = running::start(config, registry(), meter);
            node.map_err(|error| Failure::failed("a node can't start", error))
        };
        Ok(Self(configs.iter().map(start).collect::<Result<_, _>>()?))
    }

    fn stop(self) -> Result<(), Failure> {
        let mut stopped = Ok(());
        for node in self.0 {
            stopped = stopped.and(node.stop().map(drop).map_err(Failure::Failed));
        }
        stopped
    }
}

/// Loads, warms up, measures and checks.
async fn measure(
    (arguments, plan): (&Arguments, &Plan),
    nodes: &Nodes,
    configs: &[Config],
    (workload, settings): (&Workload, &workload::Settings),
) -> Result<Measured, Failure> {
    let mut clients = Vec::new();
    for config in configs {
        let client = Client::connect(config.me().peer, &config.cluster).await;
        clients.push(client.map_err(|error| Failure::failed(&config.me().region, error))?);
    }
    let usable = tokio::time::timeout(USABLE_DEADLINE, replicas::settled(&clients)).await;
    usable
        .map_err(|_| Failure::Failed("the nodes did not reach agreement in time".to_owned()))??;
    let load_secs = load(workload, &clients).await?;
    replicas::settled(&clients).await?;
    let connections: Vec<Vec<Connection>> =
        nodes.0.iter().map(|node| vec![Connection::InProcess(node.requests())]).collect();
    let runtimes = BenchEnvironment::loopback().runtimes(connections.len());
    let homes = arguments.homes(plan)?;
    let drive = Drive::start(workload, &connections, &runtimes, &drive_settings(arguments, homes));
    let probe = UsageProbe::new(used, &clients);
    let places = configs.iter().map(|config| config.me().region.clone()).collect();
    let watched = arguments.mark_checkpoints.then(|| Duration::from_secs(arguments.secs));
    let mut ours = InProcessTarget { places, clients: &clients, watched };
    let (runs, commits) = measure_all(arguments, drive, &[], &mut ours, &probe).await?;
    let checked = checks::all(
        &clients,
        (&Partitions::default(), &vec![0; clients.len()]),
        workload,
        settings,
        commits,
    )
    .await?;
    Ok(Measured::new(runs, load_secs, checked))
}

/// Returns the resources used by the nodes and by the load, which share this process.
fn used() -> Result<Usage, Failure> {
    let process = usage::process(None)?;
    let by_thread = cpu_us_by_thread(std::process::id());
    // The runtime's threads belong to the load: they run the open loop and the progress bar.
    let is_load = |name: &str| [THREADS, RUNTIME_THREADS].iter().any(|it| name.starts_with(it));
    let of_load = by_thread.iter().filter(|(name, _)| is_load(name));
    let load_cpu_us: f64 = of_load.map(|(_, us)| us).sum();
    let threads = Threads { sql_us: 0.0, ..usage::threads(std::process::id()) };
    Ok(Usage {
        node_cpu_us: vec![(process.cpu_us - load_cpu_us).max(0.0)],
        load_cpu_us,
        threads: vec![threads],
        node_memory_bytes: vec![process.memory_bytes],
        node_memory_bytes_peak: memory_bytes_peak(std::process::id()).into_iter().collect(),
        ..Usage::default()
    })
}

/// The nodes of this process under test. They have no faults, only checkpoints.
struct InProcessTarget<'a> {
    /// The names of the nodes.
    places: Vec<String>,
    clients: &'a [Client],
    /// The time during which the nodes are polled for checkpoints.
    watched: Option<Duration>,
}

impl Subject for InProcessTarget<'_> {
    async fn harm(&mut self, faults: &[Fault], began: Instant) -> Result<Vec<FaultEvent>, Failure> {
        assert!(faults.is_empty(), "faults of nodes in one process are rejected");
        match self.watched {
            Some(lasts) => Ok(checkpoints::watch(self.clients, &self.places, (began, lasts)).await),
            None => Ok(Vec::new()),
        }
    }
}

/// Rejects options that nodes in this process do not support.
///
/// # Errors
/// The option and the remedy.
pub fn check(arguments: &Arguments, plan: Plan) -> Result<Plan, Failure> {
    let is_process = arguments.via == Via::Process;
    match arguments.faults.first() {
        _ if arguments.cores.is_some() && !is_process => {
            Err(Failure::Usage("--cores requires --via process".to_owned()))
        }
        _ if arguments.environment.lab && is_process => Err(Failure::Usage(
            "--lab: nodes in one process can't be in different regions; leave out --via process"
                .to_owned(),
        )),
        Some(fault) if is_process => Err(Failure::Usage(format!(
            "--fault {fault}: nodes in one process can't fail separately; leave out --via process"
        ))),
        _ => Ok(plan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_kept_to_one_core_and_more_than_there_are_is_refused() {
        // In a separate thread, so that other tests keep their cores.
        let kept = || {
            keep_to_cores(1).unwrap();
            sched_getaffinity(None).unwrap().count()
        };
        assert_eq!(std::thread::spawn(kept).join().unwrap(), 1);
        let refused = keep_to_cores(CpuSet::MAX_CPU).unwrap_err();
        assert!(refused.to_string().contains("are available"), "{refused}");
    }
}
