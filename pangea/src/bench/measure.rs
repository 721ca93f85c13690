//! The phases of a benchmark, for a Pangea cluster and for a baseline.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pangea_core::ids::NodeId;
use pangea_core::workload::{self, Commits, Workload};
use pangea_node::client::Client;
use tokio::runtime::Handle;

use super::check::{self, Checked};
use super::checkpoints;
use super::environment::BenchEnvironment;
use super::faults::{self, Fault, FaultEvent, Victims};
use super::usage::{NodeCounters, Usage};
use super::usage_probe::UsageProbe;
use super::{Arguments, Via, bar};
use crate::cluster::{Cluster, replicas};
use crate::failure::Failure;
use crate::load_generator::{self, AccessPoint, Connection, Drive, Ended, Phase, Stats};

/// The time limit for calls in flight at the end of the load.
const END_DEADLINE: Duration = Duration::from_secs(30);
/// The update interval of the progress bar.
const TICK: Duration = Duration::from_millis(200);
/// The time limit for a client to reach a node's SQL address; a client that cannot tries again.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// The results of the measured runs and of the check after them.
pub struct Measured {
    /// One for each repeat, in descending order of throughput.
    pub runs: Vec<Run>,
    /// The duration of the load phase.
    pub load_secs: f64,
    pub(super) checked: Checked,
}

/// The result of one measured run.
pub struct Run {
    /// The clients' statistics.
    pub stats: Stats,
    /// The measured time.
    pub elapsed: Duration,
    /// The resources used during the measured time.
    pub used: Usage,
    /// The faults injected during the measured time.
    pub(super) happened: Vec<FaultEvent>,
}

impl Run {
    /// Returns committed transactions a second.
    pub fn throughput_per_sec(&self) -> f64 {
        self.stats.all().count() as f64 / self.elapsed.as_secs_f64()
    }
}

impl Measured {
    /// Collects the results of runs and of the check.
    pub(super) fn new(mut runs: Vec<Run>, load_secs: f64, checked: Checked) -> Self {
        runs.sort_by(|a, b| b.throughput_per_sec().total_cmp(&a.throughput_per_sec()));
        Self { runs, load_secs, checked }
    }

    /// Returns the run with the median throughput.
    pub fn median(&self) -> &Run {
        &self.runs[self.runs.len() / 2]
    }
}

/// Loads, warms up, measures and checks a cluster on loopback.
///
/// # Errors
/// If a node has ended, a call has no outcome, or a check fails.
pub async fn measure(
    arguments: &Arguments,
    cluster: &mut Cluster,
    workload: &Workload,
    settings: &workload::Settings,
) -> Result<Measured, Failure> {
    ours(arguments, &BenchEnvironment::loopback(), cluster, workload, settings).await
}

/// Does the same in any environment.
pub(super) async fn ours(
    arguments: &Arguments,
    environment: &BenchEnvironment,
    cluster: &mut Cluster,
    workload: &Workload,
    settings: &workload::Settings,
) -> Result<Measured, Failure> {
    let clients = cluster.clients().await?;
    cluster.usable(&clients).await?;
    let load_secs = load(workload, &clients).await?;
    replicas::settled(&clients).await?;
    let plan = &cluster.plan;
    let of_regions = environment.runtimes(plan.regions.len());
    let runtime = |node| of_regions[plan.region_of(node)].clone();
    let runtimes: Vec<Handle> = (0..clients.len()).map(runtime).collect();
    let homes = arguments.homes(plan)?;
    let connections = match arguments.via {
        Via::Native => native(environment, &runtimes, cluster, &clients).await?,
        Via::Postgres => {
            let access_points = cluster.members.iter().map(|member| {
                let mut config = Box::new(member.sql_config());
                config.connect_timeout(CONNECT_DEADLINE);
                let region = member.name().to_owned();
                AccessPoint::Postgres { config, region, procedures: workload.procedures() }
            });
            {
                let (all, clients) = (access_points.collect(), arguments.clients);
                load_generator::sessions(all, &runtimes, clients, homes.as_deref()).await?
            }
        }
        Via::Process => unreachable!("nodes in this process are measured by `process`"),
    };
    let drive = Drive::start(workload, &connections, &runtimes, &drive_settings(arguments, homes));
    let faults = faults::check(&arguments.faults, &cluster.plan, arguments.secs)?;
    let probe = UsageProbe::of_nodes(environment, cluster.process_handles(), &clients);
    let mut ours = PangeaTarget {
        environment,
        places: cluster.plan.places(),
        cluster,
        clients: &clients,
        watched: arguments.mark_checkpoints.then(|| Duration::from_secs(arguments.secs)),
    };
    let (runs, commits) = measure_all(arguments, drive, &faults, &mut ours, &probe).await?;
    let (partitions, of_nodes) = (&cluster.plan.partitions, cluster.plan.shards_of_nodes());
    let shards = (partitions, &of_nodes[..]);
    let checked = check::all(&clients, shards, workload, settings, commits).await?;
    Ok(Measured::new(runs, load_secs, checked))
}

/// Returns the settings of the load generator. `homes` are the nodes that have clients, if not all
/// have.
pub(super) fn drive_settings(
    arguments: &Arguments,
    homes: Option<Vec<usize>>,
) -> load_generator::Settings {
    let (clients, seed, pace) = (arguments.clients, arguments.seed, arguments.pace());
    load_generator::Settings { clients, homes, seed, pace }
}

/// Opens a native connection for the clients of each node. In a lab, the connection is created in
/// the node's region.
async fn native(
    environment: &BenchEnvironment,
    runtimes: &[Handle],
    cluster: &Cluster,
    clients: &[Client],
) -> Result<Vec<Vec<Connection>>, Failure> {
    if !environment.is_lab() {
        return Ok(clients.iter().map(|it| vec![Connection::Native(it.clone())]).collect());
    }
    let mut all = Vec::with_capacity(clients.len());
    for (member, runtime) in cluster.members.iter().zip(runtimes) {
        let (address, name) = (member.config.me().peer, member.config.cluster.clone());
        let connected = runtime.spawn(async move { Client::connect(address, &name).await }).await;
        let connected = connected.expect("connecting does not panic");
        let cant = |error| Failure::failed(member.name(), error);
        all.push(vec![Connection::Native(connected.map_err(cant)?)]);
    }
    Ok(all)
}

/// The servers under test: Pangea's or a baseline's.
pub(super) trait Subject {
    /// Injects the faults into the servers; their times count from the start of the measured time,
    /// `began`.
    async fn harm(&mut self, faults: &[Fault], began: Instant) -> Result<Vec<FaultEvent>, Failure>;

    /// Returns the nodes whose clients' calls may end without an outcome because of these events.
    fn hit(&self, happened: &[FaultEvent]) -> BTreeSet<usize> {
        happened.iter().flat_map(|it| it.nodes()).copied().collect()
    }
}

/// A Pangea cluster under test.
pub(super) struct PangeaTarget<'a> {
    pub(super) environment: &'a BenchEnvironment,
    /// The names of the nodes.
    pub(super) places: Vec<String>,
    pub(super) cluster: &'a mut Cluster,
    pub(super) clients: &'a [Client],
    /// The time during which the nodes are polled for checkpoints.
    pub(super) watched: Option<Duration>,
}

impl Subject for PangeaTarget<'_> {
    async fn harm(&mut self, faults: &[Fault], began: Instant) -> Result<Vec<FaultEvent>, Failure> {
        let Some(lasts) = self.watched else { return faults::run(faults, self, began).await };
        let (clients, places) = (self.clients, self.places.clone());
        let watch = checkpoints::watch(clients, &places, (began, lasts));
        let (happened, seen) = tokio::join!(faults::run(faults, self, began), watch);
        let mut all = happened?;
        all.extend(seen);
        all.sort_by(FaultEvent::by_time);
        Ok(all)
    }
}

impl Victims for PangeaTarget<'_> {
    fn names(&self) -> &[String] {
        &self.places
    }

    fn region_of(&self, node: usize) -> usize {
        self.cluster.plan.region_of(node)
    }

    async fn coordinator(&mut self) -> Result<usize, Failure> {
        faults::coordinator(self.clients).await
    }

    async fn kill(&mut self, node: usize) -> Result<(), Failure> {
        self.cluster.members[node].kill().await;
        Ok(())
    }

    async fn start(&mut self, node: usize) -> Result<(), Failure> {
        self.cluster.members[node].start().await?;
        faults::taken_back(&self.clients[node]).await
    }

    fn pause(&mut self, node: usize) {
        self.cluster.members[node].pause();
    }

    fn resume(&mut self, node: usize) {
        self.cluster.members[node].resume();
    }

    async fn cut(&mut self, one: usize, other: usize) -> Result<(), Failure> {
        if self.environment.is_lab() {
            let plan = &self.cluster.plan;
            let [one, other] = [one, other].map(|node| &plan.regions[plan.region_of(node)]);
            return self.environment.cut(one, other);
        }
        // Each end blocks the messages that it sends.
        for (from, to) in [(one, other), (other, one)] {
            let client = &self.clients[from];
            let cut = client.cut(NodeId(to as u16)).await;
            cut.map_err(|error| Failure::failed(client.region(), error))?;
        }
        Ok(())
    }

    async fn heal(&mut self) -> Result<(), Failure> {
        if self.environment.is_lab() {
            return self.environment.heal();
        }
        for client in self.clients {
            let healed = client.heal().await;
            healed.map_err(|error| Failure::failed(client.region(), error))?;
        }
        Ok(())
    }
}

/// Warms up, measures the requested number of repeats, and lets the clients finish. Returns the
/// runs and all commits since the clients started.
///
/// # Errors
/// If a call has no outcome, in any phase, unless a fault excuses it.
pub(super) async fn measure_all(
    arguments: &Arguments,
    drive: Drive,
    faults: &[Fault],
    subject: &mut impl Subject,
    probe: &UsageProbe<'_>,
) -> Result<(Vec<Run>, Commits), Failure> {
    work(&drive, arguments.warmup, "warm up").await;
    let mut hit = BTreeSet::new();
    let mut runs = Vec::with_capacity(arguments.repeats as usize);
    for repeat in 0..arguments.repeats {
        let name = match arguments.repeats {
            1 => "measure".to_owned(),
            repeats => format!("{} of {repeats}", repeat + 1),
        };
        let run = measure_once(&drive, (arguments.secs, &name), faults, subject, probe).await?;
        hit.extend(subject.hit(&run.happened));
        check::has_measured(&run.stats, &hit)?;
        runs.push(run);
    }
    let Ended { commits, errors } = drive.end(END_DEADLINE).await?;
    check::each_has_an_outcome(&errors, &hit)?;
    Ok((runs, commits))
}

/// Measures for this number of seconds; `name` labels the progress bar. The order of the reads at
/// both ends is explained in [`super::usage_probe`].
async fn measure_once(
    drive: &Drive,
    (secs, name): (u64, &str),
    faults: &[Fault],
    subject: &mut impl Subject,
    probe: &UsageProbe<'_>,
) -> Result<Run, Failure> {
    let may_be_silent = !faults.is_empty();
    // Earlier aborts belong to no run.
    drop(probe.retried());
    let before = probe.read()?;
    drive.enter(Phase::Measured);
    let began = Instant::now();
    let measured = async {
        work(drive, secs, name).await;
        let elapsed = began.elapsed();
        let mut stats = drive.take_stats();
        drive.enter(Phase::Unmeasured);
        let after = probe.read();
        stats.add_retries(probe.retried());
        // Calls that ended between the lines above belong to no run.
        drop(drive.take_stats());
        (elapsed, stats, after, probe.ask(may_be_silent).await)
    };
    // The nodes are queried when the measured time begins. The faults may outlast it.
    let (counters, ended, happened) =
        tokio::join!(probe.ask(may_be_silent), measured, subject.harm(faults, began));
    let (elapsed, stats, after, counters_after) = ended;
    let (mut before, mut after, happened) = (before, after?, happened?);
    let [counters, counters_after] = NodeCounters::pairs(counters?, counters_after?);
    before.add(counters);
    after.add(counters_after);
    Ok(Run { stats, elapsed, used: after.since(&before), happened })
}

/// Loads the tables and returns the seconds that it took.
pub(super) async fn load(workload: &Workload, clients: &[Client]) -> Result<f64, Failure> {
    let began = Instant::now();
    let bar = bar("{prefix:>8} {wide_bar} {pos}/{len} calls", "load");
    load_generator::load_tables(workload, clients, |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })
    .await?;
    bar.finish_and_clear();
    Ok(began.elapsed().as_secs_f64())
}

/// Lets the clients run and shows their rate.
async fn work(drive: &Drive, secs: u64, name: &str) {
    let bar = bar("{prefix:>8} {wide_bar} {pos}/{len} s {msg}", name);
    bar.set_length(secs);
    let (began, end) = (Instant::now(), Duration::from_secs(secs));
    while let Some(left) = end.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        tokio::time::sleep(TICK.min(left)).await;
        let seconds = began.elapsed().as_secs_f64();
        bar.set_position(seconds as u64);
        let committed: u64 = drive.committed().iter().sum();
        if committed > 0 {
            bar.set_message(format!("{:.0}/s", committed as f64 / seconds));
        }
    }
    bar.finish_and_clear();
}
