//! `pangea bench`: runs a cluster on this machine under load, measures it, and then checks it.
//!
//! ```text
//!   start --> load --> warm up --> measure --> let calls finish --> check --> stop --> report
//! ```
//!
//! Nodes are separate processes. Clients are tasks of this process with one call in flight each; in
//! a lab, they run on threads within their regions. A transaction counts if it ends within the
//! measured time. If a run fails a check, no throughput is printed or written.
//!
//! - [`environment`]: the environment: loopback or a lab;
//! - [`measure`]: the phases;
//! - [`usage`]: the resources used by the nodes and the load, and the protocol's counters;
//!   [`probe`]: the times at which they are read;
//! - [`costs`]: the same for each transaction, by node, by link and by stage; [`stages`];
//! - [`waterfall`]: the latency breakdown of the median and the p99;
//! - [`faults`]: faults injected into nodes during the measured time;
//! - [`checkpoints`]: the times at which nodes write checkpoints;
//! - [`check`]: the checks of the result;
//! - [`peer`]: the benchmark of another database; [`process`]: with nodes in this process;
//! - [`scripted`]: the benchmark of a user's own workload, from an SQL file;
//! - [`report`]: the tables and the JSON;
//! - [`sweep`]: many of these runs, by a plan.

mod baseline;
mod check;
mod checkpoints;
mod costs;
mod environment;
mod faults;
mod measure;
mod process;
mod report;
pub mod scripted;
mod stages;
mod sweep;
pub mod usage;
mod usage_probe;
mod waterfall;

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pangea_core::guarantee::Isolation;
use pangea_core::partition::{Partitions, Rule, SHARDS_MAX};
use pangea_core::workload::{self, Workload};
use pangea_node::config::Tuning;
use pangea_node::log::Durability;

use crate::cluster::{
    ClockErrors, Cluster, DataLocation, Plan, Regions, ReplicaOptions, durability,
};
use crate::failure::Failure;
use crate::load_generator::ArrivalModel;
use crate::protocol::{AtLevel, Setting, options_table, partitioned_names, with_protocol};
use crate::script::{Define, Script};
use crate::sizes::Sizes;
use faults::Fault;
pub use measure::{Measured, measure};
use report::Report;
pub use sweep::{Size, memory_mb};

/// The longest measured time: a larger number is probably in the wrong unit.
const SECS_MAX: u64 = 86_400;
/// The largest number of clients that the connections support.
const CLIENTS_MAX: u32 = 65_536;
/// Transactions a second: at least one in ten seconds, so that there is something to measure.
const RATE_MIN: f64 = 0.1;
/// Above this rate, the load generator would be measured.
const RATE_MAX: f64 = 1e6;

/// Run a cluster on this machine under load, measure it, and check the result.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea bench --workload ycsb-a --zipf 0.9
  pangea bench --workload tpcc-nopay --warehouses 8 --rtt 200 --clients 1024 --json tpcc.json
  pangea bench --workload tpcc --regions us-east,eu-west,ap-northeast
  pangea bench --workload ycsb-a --set minerva.solver=greedy --set minerva.epoch_ms=20
  pangea bench --workload smallbank --rate 2000 --rtt 100
  pangea bench --workload tpcc-nopay --clients 2000 --stages
  pangea bench --workload ycsb-a --long 5 --long-times 20
  pangea bench --workload tpcc-nopay --via postgres --clients 300 --repeats 3
  pangea bench --workload tpcc --via process --regions us-east --durability memory --cores 1
  pangea bench --workload workloads/shop.sql --define items=5000 --rtt 100
  pangea bench --baseline galera --workload tpcc-nopay --own-region --clients 48
  sudo pangea bench --lab --rtt 100 --workload ycsb-a --via postgres --clients 600
  sudo pangea bench --lab --rtt 100 --workload ycsb-a --baseline etcd --fault kill:region-3@5+5
  pangea bench --workload ycsb-a --rate 500 --fault kill:coordinator@5+5
  pangea bench --protocol calvin --partitions 2 --workload calvin-micro --remote 10
  pangea bench --protocol geogauss --isolation snapshot-isolation --workload tpcc-nopay
  pangea bench sweep plans/quick.toml

The nodes run as processes on this machine, with their files in a temporary directory that is
removed at the end. If a check fails, the exit code is 1 and no throughput is reported.")]
pub struct Arguments {
    /// Workload: ycsb-a to ycsb-f, tpcc, tpcc-nopay (new-order and payment), tpcc-neworder,
    /// smallbank, bank, calvin-micro, mako-micro or tiga-micro; or a file of your own, FILE.sql
    /// (docs/WORKLOADS.md)
    // Not required with a subcommand, the only case in which it is missing.
    #[arg(long, value_name = "NAME", required = true)]
    workload: Option<String>,
    /// Value of a variable in the schema part of the SQL file, overriding the file's own value. Can
    /// be repeated
    #[arg(long = "define", value_name = "NAME=VALUE", value_delimiter = ',')]
    defines: Vec<Define>,
    /// Measure another database instead of Pangea: galera, postgres or etcd, started on loopback or
    /// in a lab (docs/BASELINES.md)
    #[arg(long, alias = "peer", value_name = "NAME")]
    #[arg(conflicts_with_all = ["protocol", "via", "settings", "workers", "keep"])]
    #[arg(conflicts_with_all = ["stages", "cores", "memory_mb", "cold_latency_ms"])]
    #[arg(conflicts_with_all = ["mark_checkpoints"])]
    baseline: Option<pangea_baselines::Kind>,
    /// Isolation level of transactions: read-committed, repeatable-read, snapshot-isolation or
    /// serializable. A protocol may give a stronger one [default: the protocol's own]. With
    /// --baseline postgres: read-committed or serializable [default: read-committed]
    #[arg(long, value_name = "LEVEL")]
    isolation: Option<Isolation>,
    /// Commit protocol
    #[arg(long, value_name = "NAME", default_value = crate::protocol::NAMES[0])]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(crate::protocol::NAMES))]
    protocol: String,
    /// Number of regions, or the names of cloud regions: us-east,eu-west,...
    #[arg(long, value_name = "N|A,B,C", default_value = "3")]
    regions: Regions,
    /// Round trip between any two regions, in ms [default: 50, or the distance between the named
    /// regions]
    #[arg(long, value_name = "MS")]
    rtt: Option<f64>,
    /// Maximum additional random delay of each message, in ms
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter: f64,
    #[command(flatten)]
    environment: environment::Options,
    #[command(flatten)]
    clocks: ClockErrors,
    /// Client protocol: native (Pangea's own, with any number of calls on a connection), postgres
    /// (one session for each client, which calls procedures) or process (nodes in this process,
    /// without sockets)
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Via::Native)]
    via: Via,
    /// Transactions a second in all regions, at random times, regardless of the number in flight
    /// (an open loop); latencies count from the time at which a call was due
    #[arg(long, value_name = "PER_SEC", value_parser = rate)]
    rate: Option<f64>,
    /// Clients in all regions together, each with one call in flight; with --rate, calls are
    /// assigned to clients round robin
    #[arg(long, value_name = "N", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENTS_MAX)))]
    clients: u32,
    /// Regions that have clients [default: all]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    clients_in: Vec<String>,
    /// Measured time, in seconds
    #[arg(long, value_name = "S", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SECS_MAX))]
    secs: u64,
    /// Number of measured runs; the report shows the median run, with the spread of all
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Warm-up before the measured time, in seconds
    #[arg(long, value_name = "S", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=SECS_MAX))]
    warmup: u64,
    /// Number of nodes in each region over which the tables are partitioned
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["baseline"])]
    #[arg(help = format!(
        "Partition the tables over this number of nodes in each region, each of which has the \
         clients of a region; requires --protocol {}",
        partitioned_names()
    ))]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    partitions: u16,
    #[command(flatten)]
    replicas: ReplicaOptions,
    /// Give each node a cache, a process that keeps its last batches; requires --protocol geogauss
    #[arg(long, conflicts_with_all = ["baseline", "lab"])]
    caches: bool,
    /// When a record counts as durable: fsync, os or memory
    #[arg(long, value_name = "WHEN", default_value = "fsync", value_parser = durability)]
    durability: Durability,
    /// Directory for the nodes' files during the run [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Do not remove the nodes' files and logs
    #[arg(long)]
    keep: bool,
    /// Setting of the protocol, for example minerva.solver=greedy. Can be repeated
    #[arg(long = "set", value_name = "P.KEY=VALUE")]
    settings: Vec<Setting>,
    /// Threads of each node for data-parallel work, 0 for one per core [default: cores / nodes]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Memory of each node for rows, in MiB; other rows are in a file [default: all rows in memory]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    memory_mb: Option<u64>,
    /// Minimum latency of rows that are not in memory, in ms, as of a slow or remote disk
    #[arg(long, value_name = "MS", default_value_t = 0, requires = "memory_mb")]
    cold_latency_ms: u64,
    /// With --via process: number of cores for nodes and clients together [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cores: Option<u32>,
    /// Seed of the loaded data and of the clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Report the nodes' CPU time by stage; reading the clock costs a few percent
    #[arg(long)]
    stages: bool,
    /// Kill, cut off or slow down a region's server: kill:region-1@3+2 acts from 3 s of the
    /// measured time, for 2 s; cut:a/b@.. cuts the link between two regions; coordinator (with tiga
    /// and baselines also leader) and follower also name regions. Separate several with commas
    #[arg(long = "fault", value_name = "WHAT:REGION@S+S", value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Report the times at which nodes wrote checkpoints, next to the faults; the frequency follows
    /// from their settings, such as --set minerva.checkpoint_bytes=50000000
    #[arg(long)]
    mark_checkpoints: bool,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    // Last: its heading holds for all that follows.
    #[command(flatten)]
    sizes: Sizes,
}

/// One benchmark, or many.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CommandLine {
    #[command(flatten)]
    one: Arguments,
    #[command(subcommand)]
    many: Option<BenchCommand>,
}

/// Many benchmarks.
#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    Sweep(sweep::Arguments),
}

/// The client protocol.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Pangea's native protocol.
    Native,
    /// PostgreSQL's protocol.
    Postgres,
    /// Direct calls within the process of the nodes.
    Process,
}

impl Arguments {
    /// Returns the requested cluster.
    ///
    /// # Errors
    /// If the options do not describe a valid cluster.
    pub fn plan(&self) -> Result<Plan, Failure> {
        if let Some(baseline) = self.baseline {
            return Err(Failure::Usage(format!(
                "--baseline {baseline} is only for `pangea bench`"
            )));
        }
        if self.environment.lab {
            let message = "--lab is only for `pangea bench`: here the nodes emulate the distances";
            return Err(Failure::Usage(message.to_owned()));
        }
        self.own_plan()
    }

    /// Returns the cluster of a benchmark, which may be in a lab.
    fn own_plan(&self) -> Result<Plan, Failure> {
        let protocol = &self.protocol;
        let plan = self.regions.plan(protocol, self.rtt)?;
        let plan = match self.partitions {
            1 => plan,
            _ if self.via == Via::Process => {
                let message = "--partitions: nodes of partitioned tables are separate processes; \
                               leave out --via process";
                return Err(Failure::Usage(message.to_owned()));
            }
            shards if self.script()?.is_some() => {
                plan.divided(Partitions::new(shards, Rule::OF_WHOLE_KEY))
            }
            shards => plan.divided(self.workload()?.partitions(shards)),
        };
        if self.via == Via::Process && !self.replicas.are_default() {
            let message = "--replicas-in, --non-voting, --learners: such nodes are separate \
                           processes; leave out --via process";
            return Err(Failure::Usage(message.to_owned()));
        }
        let plan = self.replicas.apply(plan)?;
        if self.caches && self.via == Via::Process {
            let message = "--caches: caches are separate processes; leave out --via process";
            return Err(Failure::Usage(message.to_owned()));
        }
        let plan = Plan {
            options: self.options()?.0,
            caches: self.caches.into(),
            jitter_ms: self.jitter,
            clock: self.clocks.config(self.seed),
            durability: self.durability,
            is_metered: self.stages,
            tuning: Tuning {
                workers: self.workers.unwrap_or(plan.tuning.workers),
                memory_mb: self.memory_mb,
                cold_latency_ms: self.cold_latency_ms,
                ..plan.tuning
            },
            ..plan
        };
        plan.check()?;
        self.homes(&plan)?;
        faults::check(&self.faults, &plan, self.secs)?;
        process::check(self, plan)
    }

    /// Returns the nodes that have clients, if not all have.
    ///
    /// # Errors
    /// If `--clients-in` names a region that does not exist.
    fn homes(&self, plan: &Plan) -> Result<Option<Vec<usize>>, Failure> {
        let homes = plan.homes_in(&self.clients_in);
        homes.map_err(|why| Failure::Usage(format!("--clients-in: {why}")))
    }

    /// Returns the settings of the protocol, and the isolation level if one was asked for.
    ///
    /// # Errors
    /// If the protocol has no such setting, or offers no such level.
    pub fn options(&self) -> Result<(toml::Table, Option<Isolation>), Failure> {
        let options = options_table(&self.protocol, &self.settings)?;
        let Some(wanted) = self.isolation else { return Ok((options, None)) };
        let at_level = with_protocol(&self.protocol, AtLevel(&options, wanted))?;
        let (options, granted) = at_level.map_err(|failure| match failure {
            Failure::Usage(message) => Failure::Usage(format!("--isolation {wanted}: {message}")),
            other => other,
        })?;
        Ok((options, Some(granted)))
    }

    /// Checks all options and returns the placement of the servers, Pangea's or a baseline's.
    ///
    /// # Errors
    /// The first option that is not possible, and why.
    fn check(&self) -> Result<Plan, Failure> {
        let plan = match self.baseline {
            Some(kind) => baseline::check(self, kind)?,
            None => {
                if self.script()?.is_none() {
                    self.workload()?;
                }
                self.own_plan()?
            }
        };
        environment::check(self, &plan)?;
        Ok(plan)
    }

    /// Returns the first fault, if any.
    pub fn first_fault(&self) -> Option<impl std::fmt::Display> {
        self.faults.first()
    }

    /// Returns the workload.
    ///
    /// # Errors
    /// If the workload does not exist or is not for benchmarks.
    pub fn workload(&self) -> Result<Workload, Failure> {
        let settings = self.workload_settings();
        let (name, _) = self.names();
        if Script::is_named(name) {
            return Err(scripted::not_simulated(name));
        }
        let workload = Workload::named(name, &settings);
        let workload = workload.map_err(|error| match workload::NAMES.contains(&name) {
            true => Failure::Usage(error.to_string()),
            false => Failure::Usage(no_such_workload(name, &settings)),
        })?;
        if workload.is_of_histories() {
            let name = workload.name();
            let message = format!("{name}'s histories are checked by `pangea sim`, not here");
            return Err(Failure::Usage(message));
        }
        self.sizes.check(name)?;
        Ok(workload)
    }

    /// Returns the options that determine the measurement, as on a command line.
    pub fn in_words(&self) -> String {
        let Self { clients, secs, .. } = self;
        let via = match self.via {
            Via::Native => "",
            Via::Postgres => "--via postgres ",
            Via::Process => "--via process ",
        };
        let rate = self.rate.map(|rate| format!("--rate {rate} ")).unwrap_or_default();
        let sizes = self.sizes.in_words(self.names().0);
        let rtt = self.rtt.map(|ms| format!("--rtt {ms} ")).unwrap_or_default();
        let set = self.settings.iter().map(|setting| format!(" --set {setting}"));
        let level = self.isolation.map(|level| format!("--isolation {level} "));
        let level = level.unwrap_or_default();
        format!(
            "{rtt}{via}{level}{rate}--clients {clients} --secs {secs} {sizes}{}",
            set.collect::<String>()
        )
    }

    /// Returns the times at which clients call.
    fn pace(&self) -> ArrivalModel {
        match self.rate {
            Some(per_sec) => ArrivalModel::Open { per_sec },
            None => ArrivalModel::Closed { pause: Duration::ZERO },
        }
    }

    /// Returns the names of the workload and of the protocol.
    pub fn names(&self) -> (&str, &str) {
        let workload = self.workload.as_deref();
        (workload.expect("the command line requires it"), &self.protocol)
    }

    /// Returns the other database that is measured, and its number of clients.
    pub fn baseline(&self) -> Option<(pangea_baselines::Kind, u32)> {
        self.baseline.map(|kind| (kind, self.clients))
    }

    /// Returns the options for the size of the workload.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Returns the settings of the workload, including its size.
    pub fn workload_settings(&self) -> workload::Settings {
        self.sizes.settings(self.seed)
    }

    /// Returns the directory for the nodes' files.
    pub fn place(&self) -> DataLocation {
        DataLocation::Temporary { within: self.data_dir.clone(), keep: self.keep }
    }
}

/// Parses a rate within the limits.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (RATE_MIN..=RATE_MAX).contains(&rate) => Ok(rate),
        _ => Err(format!("must be a number from {RATE_MIN} to {RATE_MAX}")),
    }
}

fn no_such_workload(name: &str, settings: &workload::Settings) -> String {
    let is_here = |name: &&str| {
        Workload::named(name, settings).is_ok_and(|workload| !workload.is_of_histories())
    };
    pangea_sweep::plan_error::unknown("workload", name, workload::NAMES.into_iter().filter(is_here))
}

/// Runs one benchmark or many.
pub fn run(line: &CommandLine) -> Result<(), Failure> {
    match &line.many {
        Some(BenchCommand::Sweep(arguments)) => sweep::run(arguments),
        None => run_one(&line.one),
    }
}

fn run_one(arguments: &Arguments) -> Result<(), Failure> {
    let plan = arguments.check()?;
    let (needed, free) = (sweep::needs(arguments, &plan).memory_mb, memory_mb());
    if needed > free {
        return Err(Failure::Usage(format!(
            "this needs about {needed:.0} MB of memory, but only {free:.0} MB are free: use fewer \
             regions or less data"
        )));
    }
    if arguments.baseline.is_none() {
        crate::warn_all(&plan.warnings()?);
    }
    if let Some(path) = &arguments.json {
        make_way(path)?;
    }
    let report = match (arguments.baseline, arguments.via) {
        (Some(kind), _) => baseline::run(arguments, kind)?,
        (None, Via::Process) => process::run(arguments)?,
        (None, Via::Native | Via::Postgres) => run_cluster(arguments)?,
    };
    // Written first, because the reader of stdout may be gone.
    if let Some(path) = &arguments.json {
        let cant = |error| Failure::failed(format!("can't write {}", path.display()), error);
        std::fs::write(path, report.to_json()).map_err(cant)?;
    }
    crate::say(report.to_string().trim_end())
}

/// Verifies that results can be written, before the run. Removes the results of an earlier run,
/// which could be mistaken for those of this run if it fails. A device or a link, as `/dev/stdout`,
/// is left alone.
fn make_way(path: &Path) -> Result<(), Failure> {
    let found = std::fs::symlink_metadata(path);
    let made = match found.is_ok_and(|found| !found.is_file()) {
        true => std::fs::OpenOptions::new().append(true).create(true).open(path).map(|_| ()),
        false => std::fs::File::create(path).and_then(|_| std::fs::remove_file(path)),
    };
    made.map_err(|error| Failure::failed(format!("can't write {}", path.display()), error))
}

/// Runs the benchmark of a Pangea cluster.
fn run_cluster(arguments: &Arguments) -> Result<Report, Failure> {
    let (plan, script) = (arguments.own_plan()?, arguments.script()?);
    environment::on(arguments, &plan, |environment, signals| {
        // One thread, so that clients never wake each other across cores.
        let runtime = crate::runtime(1)?;
        let run = async |cluster: &mut Cluster| {
            let measured = match &script {
                Some(script) => scripted::ours(arguments, environment, cluster, script).await?,
                None => {
                    let (workload, settings) =
                        (arguments.workload()?, arguments.workload_settings());
                    measure::ours(arguments, environment, cluster, &workload, &settings).await?
                }
            };
            Ok(Report::new(arguments, &cluster.plan, measured))
        };
        let plan = Plan { placements: environment.placements(), ..plan.clone() };
        runtime.block_on(Cluster::run_until(signals, plan, arguments.place(), run))
    })
}

/// Creates a progress bar on stderr, if that is a terminal.
fn bar(template: &str, name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates are constants");
    ProgressBar::new(0).with_style(style).with_prefix(name.to_owned())
}

#[cfg(test)]
mod tests;
