//! The benchmark of another database: Galera, PostgreSQL or etcd, on loopback or in a lab.
//!
//! Clients, calls, phases, faults and statistics are the same as for a Pangea cluster; only the
//! servers differ. The servers run as long as the benchmark and are always stopped with it.

use std::collections::BTreeSet;
use std::time::Instant;

use pangea_baselines::{Baseline, Kind, Options};
use pangea_core::guarantee::Isolation;
use pangea_node::config::Tuning;
use pangea_node::log::Durability;

use super::check::{self as checks, Checked};
use super::environment::{self, BenchEnvironment};
use super::faults::{self, Fault, FaultEvent, Victims};
use super::measure::{Measured, Subject, drive_settings, measure_all};
use super::report::Report;
use super::usage_probe::UsageProbe;
use super::{Arguments, bar, scripted};
use crate::cluster::Plan;
use crate::failure::Failure;
use crate::load_generator::{self, AccessPoint, Drive};

/// With three servers, a majority remains when one is lost.
const PLACES_MIN: usize = 3;
/// Each client is a session, and each session is a process of PostgreSQL.
const CLIENTS_MAX: u32 = 4_000;
/// The memory of a server for its tables, in MB: enough for all loaded and inserted data.
const CACHE_MB: u32 = 2_048;

/// Checks that a baseline can run the workload, and returns the placement of its servers.
///
/// # Errors
/// The reason why it cannot.
pub fn check(arguments: &Arguments, kind: Kind) -> Result<Plan, Failure> {
    let plan = plan(arguments, kind)?;
    let (settings, options) = (arguments.workload_settings(), options(arguments, &plan)?);
    if arguments.script()?.is_some() {
        scripted::check_baseline(kind)?;
        kind.check_installed(&options)?;
    } else {
        if settings.long > 0 && arguments.names().0.starts_with("tpcc") {
            let message = format!("--long: {kind} has no procedure with many orders; leave it out");
            return Err(Failure::Usage(message));
        }
        kind.check(&arguments.workload()?, &settings, &options)?;
    }
    check_faults(arguments, kind, &plan)?;
    Ok(plan)
}

/// Starts a baseline, runs the workload on it, and stops it.
pub fn run(arguments: &Arguments, kind: Kind) -> Result<Report, Failure> {
    let plan = check(arguments, kind)?;
    let options = options(arguments, &plan)?;
    make_directory(arguments)?;
    let script = arguments.script()?;
    environment::on(arguments, &plan, |environment, signals| {
        let runtime = crate::runtime(1)?;
        let work = async {
            let mut baseline =
                Baseline::start(kind, &environment.places(&plan.regions), &options).await?;
            let mut theirs = BaselineTarget { environment, baseline: &mut baseline, plan: &plan };
            let measured = match &script {
                Some(script) => scripted::theirs(arguments, &mut theirs, script).await,
                None => measure(arguments, &mut theirs).await,
            };
            // If a server has ended, that is the cause of the failure, so report it first.
            let measured = measured.map_err(|failure| match baseline.is_running() {
                Ok(()) => failure,
                Err(ended) => Failure::failed(ended, failure),
            })?;
            baseline.stop().await?;
            Ok(Report::new(arguments, &plan, measured))
        };
        runtime.block_on(async {
            tokio::select! {
                done = work => done,
                () = signals.received() => Err(Failure::Interrupted("interrupted".to_owned())),
            }
        })
    })
}

/// Returns the placement of the servers: on loopback without any distance, or in a lab with the
/// requested distances.
fn plan(arguments: &Arguments, kind: Kind) -> Result<Plan, Failure> {
    let is_lab = arguments.environment.lab;
    let far = [("rtt", arguments.rtt.unwrap_or(0.0)), ("jitter", arguments.jitter)];
    if let Some((option, ms)) = far.into_iter().find(|(_, ms)| *ms != 0.0 && !is_lab) {
        return Err(Failure::Usage(format!(
            "--{option} {ms}: on loopback there is no distance between a baseline's servers: add \
             --lab, which requires root"
        )));
    }
    if let Some(error) = arguments.clocks.named().first() {
        return Err(Failure::Usage(format!(
            "--clock-{error}: the clocks of other systems are this machine's; leave it out"
        )));
    }
    let rtt = if is_lab { arguments.rtt } else { Some(0.0) };
    let plan = arguments.regions.plan(&arguments.protocol, rtt)?;
    let is_plain = |name: &String| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    if let Some(name) = plan.regions.iter().find(|name| !is_plain(name)) {
        let message = format!("region {name:?}: with --baseline, use letters, digits and -");
        return Err(Failure::Usage(message));
    }
    if plan.regions.len() < PLACES_MIN {
        return Err(Failure::Usage(format!("--baseline needs at least {PLACES_MIN} regions")));
    }
    if arguments.clients > CLIENTS_MAX {
        let message = format!(
            "--clients {}: with --baseline, every client has a session, and there are at most \
             {CLIENTS_MAX}",
            arguments.clients
        );
        return Err(Failure::Usage(message));
    }
    let (durability, jitter_ms) = (arguments.durability, arguments.jitter);
    let tuning = Tuning { workers: 0, ..plan.tuning };
    Ok(Plan { protocol: kind.name().to_owned(), durability, jitter_ms, tuning, ..plan })
}

/// Rejects faults that are not possible with a baseline.
fn check_faults(arguments: &Arguments, kind: Kind, plan: &Plan) -> Result<(), Failure> {
    let faults = faults::check(&arguments.faults, plan, arguments.secs)?;
    if let Some(cut) = faults.iter().find(|fault| fault.is_cut() && !arguments.environment.lab) {
        return Err(Failure::Usage(format!(
            "--fault {cut}: on loopback a baseline has no links that could be cut: add --lab, \
             which requires root"
        )));
    }
    if let Some(fault) = faults.iter().find(|it| kind == Kind::Galera && it.is_of_a_role()) {
        let regions = plan.regions.join(", ");
        return Err(Failure::Usage(format!(
            "--fault {fault}: Galera's servers all have the same role: name one of {regions}"
        )));
    }
    Ok(())
}

/// Creates the parent directory of the baseline's files.
fn make_directory(arguments: &Arguments) -> Result<(), Failure> {
    let Some(path) = &arguments.data_dir else { return Ok(()) };
    let made = std::fs::create_dir_all(path);
    made.map_err(|error| Failure::failed(format!("can't use {}", path.display()), error))
}

fn options(arguments: &Arguments, plan: &Plan) -> Result<Options, Failure> {
    let durability = match arguments.durability {
        Durability::Fsync => pangea_baselines::Durability::Fsync,
        Durability::Os => pangea_baselines::Durability::Os,
        Durability::Memory => {
            let message = "--durability memory: with --baseline, expected fsync or os".to_owned();
            return Err(Failure::Usage(message));
        }
    };
    let isolation = match arguments.isolation {
        None | Some(Isolation::ReadCommitted) => pangea_baselines::Isolation::ReadCommitted,
        Some(Isolation::Serializable) => pangea_baselines::Isolation::Serializable,
        Some(level) => {
            let message = format!(
                "--isolation {level}: with --baseline, expected read-committed or serializable"
            );
            return Err(Failure::Usage(message));
        }
    };
    Ok(Options {
        durability,
        isolation,
        sessions: arguments.clients,
        within: arguments.data_dir.clone(),
        cache_mb: CACHE_MB,
        round_trip_ms: plan.round_trip_ms_max().ceil() as u32,
        ..Options::default()
    })
}

/// Loads, warms up, measures and checks.
async fn measure(
    arguments: &Arguments,
    theirs: &mut BaselineTarget<'_>,
) -> Result<Measured, Failure> {
    let (workload, settings) = (arguments.workload()?, arguments.workload_settings());
    let began = Instant::now();
    let bar = bar("{prefix:>8} {wide_bar} {pos}/{len} calls", "load");
    let progress = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    theirs.baseline.load(&workload, progress).await?;
    bar.finish_and_clear();
    let load_secs = began.elapsed().as_secs_f64();
    let regions = theirs.plan.regions.len();
    let runtimes = theirs.environment.runtimes(regions);
    let access_point = |region| AccessPoint::Baseline(theirs.baseline.access(&workload, region));
    let access_points = (0..regions).map(access_point).collect();
    let (homes, clients) = (arguments.homes(theirs.plan)?, arguments.clients);
    let connections =
        load_generator::sessions(access_points, &runtimes, clients, homes.as_deref()).await?;
    let drive = Drive::start(&workload, &connections, &runtimes, &drive_settings(arguments, homes));
    let faults = faults::check(&arguments.faults, theirs.plan, arguments.secs)?;
    let probe = UsageProbe::of_baseline(theirs.environment, theirs.baseline);
    let (runs, commits) = measure_all(arguments, drive, &faults, theirs, &probe).await?;
    drop(connections);
    let checked = theirs.baseline.check(&workload, &settings, &commits).await;
    let checked = checked.map_err(|error| checks::failed_check(&error))?;
    let digest = format!("{:016x}", checked.digest);
    let checked = Checked { digest, version: None, workload: checked.facts };
    Ok(Measured::new(runs, load_secs, checked))
}

/// The servers of a baseline under test.
pub(super) struct BaselineTarget<'a> {
    pub(super) environment: &'a BenchEnvironment,
    pub(super) baseline: &'a mut Baseline,
    pub(super) plan: &'a Plan,
}

impl Subject for BaselineTarget<'_> {
    async fn harm(&mut self, faults: &[Fault], began: Instant) -> Result<Vec<FaultEvent>, Failure> {
        faults::run(faults, self, began).await
    }

    /// Returns all regions: the leader serves the clients of every region, and servers without a
    /// leader reject calls.
    fn hit(&self, happened: &[FaultEvent]) -> BTreeSet<usize> {
        let regions = if happened.is_empty() { 0 } else { self.plan.regions.len() };
        (0..regions).collect()
    }
}

impl Victims for BaselineTarget<'_> {
    fn names(&self) -> &[String] {
        &self.plan.regions
    }

    async fn coordinator(&mut self) -> Result<usize, Failure> {
        let leader = self.baseline.leader().await?;
        leader.ok_or_else(|| {
            Failure::Failed("the fault needs a leader, and no server is one".to_owned())
        })
    }

    async fn kill(&mut self, node: usize) -> Result<(), Failure> {
        Ok(self.baseline.kill(node).await?)
    }

    async fn start(&mut self, node: usize) -> Result<(), Failure> {
        Ok(self.baseline.start_again(node).await?)
    }

    fn pause(&mut self, node: usize) {
        self.baseline.pause(node);
    }

    fn resume(&mut self, node: usize) {
        self.baseline.resume(node);
    }

    async fn cut(&mut self, one: usize, other: usize) -> Result<(), Failure> {
        self.environment.cut(&self.plan.regions[one], &self.plan.regions[other])
    }

    async fn heal(&mut self) -> Result<(), Failure> {
        self.environment.heal()
    }
}
