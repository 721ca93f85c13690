//! `pangea bench`: a cluster on this machine under load, measured, and then checked.
//!
//! ```text
//!   start --> load --> warm up --> measure --> let calls end --> check --> stop --> report
//! ```
//!
//! Nodes are processes of their own; the clients are tasks of this process, each with one call in
//! flight. What is counted is what ends within the measured time. A run that fails a check has no
//! throughput: none is printed and none is written.
//!
//! - [`usage`]: what the nodes and the load used of the machine, and what the protocol counted;
//! - [`faults`]: what happens to nodes while it is measured;
//! - [`check`]: whether the outcome is right;
//! - [`peer`]: the same with another database;
//! - [`scripted`]: the same with a user's own workload, from a SQL file;
//! - [`report`]: the tables and the JSON;
//! - [`sweep`]: many such runs, by a plan.

mod check;
mod faults;
mod peer;
mod report;
pub mod scripted;
mod sweep;
pub mod usage;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pangea_core::workload::{self, Workload};
use pangea_node::client::Client;
use pangea_node::log::Durability;

use crate::cluster::{Cluster, Place, Plan, Regions, durability, replicas};
use crate::drive::{self, Connection, Drive, Pace, Phase, Session, Stats};
use crate::failure::Failure;
use crate::protocol::{Setting, options_table};
use crate::script::{Define, Script};
use crate::sizes::Sizes;
use check::Checked;
use faults::{Fault, Happened};
use report::Report;
pub use sweep::{Size, memory_mb};
use usage::Usage;

/// What is measured may take this long at most: beyond it somebody mistook the unit.
const SECS_MAX: u64 = 86_400;
/// More clients than this are more than the connections take.
const CLIENTS_MAX: u32 = 65_536;
/// Transactions a second: one in ten seconds at least, for something to be measured.
const RATE_MIN: f64 = 0.1;
/// Beyond it the load is what would be measured.
const RATE_MAX: f64 = 1e6;
/// How long calls in flight may take when the load ends.
const END_DEADLINE: Duration = Duration::from_secs(30);
/// How often the progress bar moves.
const TICK: Duration = Duration::from_millis(200);

/// Measure a cluster on this machine under load, and check what it did.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea bench --workload ycsb-a --zipf 0.9
  pangea bench --workload tpcc-nopay --warehouses 8 --rtt 200 --clients 1024 --json tpcc.json
  pangea bench --workload tpcc --regions us-east,eu-west,ap-northeast
  pangea bench --workload ycsb-a --set minerva.solver=greedy --set minerva.epoch_ms=20
  pangea bench --workload smallbank --rate 2000 --rtt 100
  pangea bench --workload tpcc-nopay --via postgres --clients 300 --repeats 3
  pangea bench --workload workloads/shop.sql --define items=5000 --rtt 100
  pangea bench --peer galera --workload tpcc-nopay --own-region --clients 48
  pangea bench --workload ycsb-a --rate 500 --fault kill:coordinator@5+5
  pangea bench sweep plans/quick.toml

The nodes are processes on this machine, in a temporary directory that is removed at the end. The
exit code is 1 where a check fails, and then there is no throughput.")]
pub struct Arguments {
    /// What clients do: ycsb-a to ycsb-f, tpcc, tpcc-nopay (new-order and payment), smallbank,
    /// bank, calvin-micro, mako-micro or tiga-micro; or a file of your own, FILE.sql
    /// (docs/WORKLOADS.md)
    // Not required beside a subcommand, which is the one case in which it is not there.
    #[arg(long, value_name = "NAME", required = true)]
    workload: Option<String>,
    /// A variable of the SQL file's schema part, in place of what the file sets. Can be repeated
    #[arg(long = "define", value_name = "NAME=VALUE", value_delimiter = ',')]
    defines: Vec<Define>,
    /// In place of a cluster of ours: galera, postgres or etcd, started on loopback (docs/PEERS.md)
    #[arg(long, value_name = "NAME")]
    #[arg(conflicts_with_all = ["protocol", "rtt", "jitter", "via", "settings", "workers"])]
    #[arg(conflicts_with_all = ["keep", "faults"])]
    peer: Option<pangea_peers::Kind>,
    /// How much transactions of --peer postgres see of each other [default: read-committed]
    #[arg(long, value_name = "LEVEL", value_enum, requires = "peer")]
    isolation: Option<Isolation>,
    /// The commit protocol
    #[arg(long, value_name = "NAME", default_value = crate::protocol::NAMES[0])]
    protocol: String,
    /// How many regions, or the names of cloud regions: us-east,eu-west,...
    #[arg(long, value_name = "N|A,B,C", default_value = "3")]
    regions: Regions,
    /// Round trip between any two regions in ms [default: 50, or what is between named regions]
    #[arg(long, value_name = "MS")]
    rtt: Option<f64>,
    /// Messages are late by up to this much more, in ms
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter: f64,
    /// How clients call: native (our own protocol, any number of calls on a connection) or postgres
    /// (a session each, which calls procedures)
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Via::Native)]
    via: Via,
    /// Transactions a second in all regions, at random times, whatever is in flight (an open loop);
    /// latencies count from when a call was due
    #[arg(long, value_name = "PER_SEC", value_parser = rate)]
    rate: Option<f64>,
    /// Clients in all regions together, each with one call in flight; with --rate they take turns
    #[arg(long, value_name = "N", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENTS_MAX)))]
    clients: u32,
    /// How long to measure
    #[arg(long, value_name = "S", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SECS_MAX))]
    secs: u64,
    /// How often to measure; the report is of the run in the middle, with the spread of all
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// How long to work before that
    #[arg(long, value_name = "S", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=SECS_MAX))]
    warmup: u64,
    #[command(flatten)]
    sizes: Sizes,
    /// When a record is durable: fsync, os or memory
    #[arg(long, value_name = "WHEN", default_value = "fsync", value_parser = durability)]
    durability: Durability,
    /// Where the nodes' files go while it runs [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Leave the nodes' files and logs where they are
    #[arg(long)]
    keep: bool,
    /// A setting of the protocol, as in minerva.solver=greedy. Can be repeated
    #[arg(long = "set", value_name = "P.KEY=VALUE")]
    settings: Vec<Setting>,
    /// Threads of a node for data-parallel work, 0 for one a core [default: cores / nodes]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// What loads and clients draw from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Kill, cut off or slow down a region's node: kill:region-1@3+2 from 3 s of the measured time
    /// on for 2 s; cut:a/b@..; coordinator and follower are regions too. Several with commas
    #[arg(long = "fault", value_name = "WHAT:REGION@S+S", value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Write the results to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A benchmark, or many.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CommandLine {
    #[command(flatten)]
    one: Arguments,
    #[command(subcommand)]
    many: Option<Many>,
}

/// Many benchmarks.
#[derive(Debug, clap::Subcommand)]
enum Many {
    Sweep(sweep::Arguments),
}

/// How clients call.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// By our own protocol.
    Native,
    /// By PostgreSQL's.
    Postgres,
}

/// How much transactions see of each other.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// What has committed, statement by statement.
    ReadCommitted,
    /// Nothing that an order one after the other would not show.
    Serializable,
}

impl Arguments {
    /// The cluster that is asked for.
    ///
    /// # Errors
    /// When there is no such cluster.
    pub fn plan(&self) -> Result<Plan, Failure> {
        if let Some(peer) = self.peer {
            return Err(Failure::Usage(format!("--peer {peer} is for `pangea bench` alone")));
        }
        let protocol = &self.protocol;
        let plan = self.regions.plan(protocol, self.rtt)?;
        let plan = Plan {
            options: options_table(protocol, &self.settings)?,
            jitter_ms: self.jitter,
            durability: self.durability,
            workers: self.workers.unwrap_or(plan.workers),
            ..plan
        };
        plan.check()?;
        self.check_faults(&plan)?;
        Ok(plan)
    }

    /// Where the servers would run, ours or a peer's, if all that is asked for can be done.
    ///
    /// # Errors
    /// Why it can't.
    fn check(&self) -> Result<Plan, Failure> {
        match self.peer {
            Some(kind) => peer::check(self, kind),
            None => {
                if self.script()?.is_none() {
                    self.workload()?;
                }
                self.plan()
            }
        }
    }

    /// What is done to nodes first, where anything is.
    pub fn first_fault(&self) -> Option<impl std::fmt::Display> {
        self.faults.first()
    }

    /// The faults in their order.
    fn check_faults(&self, plan: &Plan) -> Result<Vec<Fault>, Failure> {
        let lost = self.faults.iter().find(|fault| fault.ends_sessions());
        let comes_back = Script::is_named(self.names().0);
        if let (Via::Postgres, Some(fault), false) = (self.via, lost, comes_back) {
            return Err(Failure::Usage(format!(
                "--fault {fault}: sessions of --via postgres don't outlive their node; take --via \
                 native, or another fault"
            )));
        }
        faults::check(&self.faults, plan, self.secs)
    }

    /// What clients do.
    ///
    /// # Errors
    /// When there is no such workload, or it is none to be measured.
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
        if is_of_histories(&workload) {
            let name = workload.name();
            let message = format!("{name}'s histories are checked by `pangea sim`, not here");
            return Err(Failure::Usage(message));
        }
        self.sizes.check(name)?;
        Ok(workload)
    }

    /// The options that say what is measured, as a command line has them.
    pub fn in_words(&self) -> String {
        let Self { clients, secs, .. } = self;
        let via = if self.via == Via::Native { "" } else { "--via postgres " };
        let rate = self.rate.map(|rate| format!("--rate {rate} ")).unwrap_or_default();
        let sizes = self.sizes.in_words(self.names().0);
        let rtt = self.rtt.map(|ms| format!("--rtt {ms} ")).unwrap_or_default();
        let set = self.settings.iter().map(|setting| format!(" --set {setting}"));
        format!(
            "{rtt}{via}{rate}--clients {clients} --secs {secs} {sizes}{}",
            set.collect::<String>()
        )
    }

    /// When clients call.
    fn pace(&self) -> Pace {
        match self.rate {
            Some(per_sec) => Pace::Open { per_sec },
            None => Pace::Closed { pause: Duration::ZERO },
        }
    }

    /// The workload's and the protocol's names.
    pub fn names(&self) -> (&str, &str) {
        let workload = self.workload.as_deref();
        (workload.expect("the command line asks for it"), &self.protocol)
    }

    /// What says how large it is.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// How large the workload is.
    pub fn workload_settings(&self) -> workload::Settings {
        self.sizes.settings(self.seed)
    }

    /// Where the nodes' files go.
    pub fn place(&self) -> Place {
        Place::Temporary { within: self.data_dir.clone(), keep: self.keep }
    }
}

/// Whether a workload is there for checkers of histories, which the simulator has.
fn is_of_histories(workload: &Workload) -> bool {
    matches!(workload, Workload::ListAppend(_) | Workload::Registers(_) | Workload::Catalog(_))
}

/// A rate that can be kept.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (RATE_MIN..=RATE_MAX).contains(&rate) => Ok(rate),
        _ => Err(format!("a rate is a number from {RATE_MIN} to {RATE_MAX}")),
    }
}

fn no_such_workload(name: &str, settings: &workload::Settings) -> String {
    let is_here = |name: &&str| {
        Workload::named(name, settings).is_ok_and(|workload| !is_of_histories(&workload))
    };
    let names: Vec<&str> = workload::NAMES.into_iter().filter(is_here).collect();
    format!("there is no workload {name:?} here; there are {}", names.join(", "))
}

/// Runs the benchmark, or many.
pub fn run(line: &CommandLine) -> Result<(), Failure> {
    match &line.many {
        Some(Many::Sweep(arguments)) => sweep::run(arguments),
        None => run_one(&line.one),
    }
}

fn run_one(arguments: &Arguments) -> Result<(), Failure> {
    let report = match (arguments.script()?, arguments.peer) {
        (Some(script), _) => scripted::run(arguments, &script)?,
        (None, Some(kind)) => peer::run(arguments, kind)?,
        (None, None) => run_cluster(arguments)?,
    };
    if let Some(path) = &arguments.json {
        let written = std::fs::write(path, report.to_json());
        let cant = |error| Failure::failed(format!("can't write {}", path.display()), error);
        written.map_err(cant)?;
    }
    print!("{report}");
    Ok(())
}

/// Runs the benchmark of a cluster of ours.
fn run_cluster(arguments: &Arguments) -> Result<Report, Failure> {
    let plan = arguments.plan()?;
    let settings = arguments.workload_settings();
    let workload = arguments.workload()?;
    // One thread: clients then never wake each other across cores.
    let runtime = crate::runtime(1)?;
    let work =
        async |cluster: &mut Cluster| measure(arguments, cluster, &workload, &settings).await;
    let run = async |cluster: &mut Cluster| {
        let measured = work(cluster).await?;
        Ok(Report::new(arguments, &cluster.plan, measured))
    };
    runtime.block_on(Cluster::run_while(plan, arguments.place(), run))
}

/// What came of measuring, and of the check after it.
pub struct Measured {
    /// Once for each repeat, the quickest first.
    pub runs: Vec<Run>,
    /// How long loading took.
    pub load_secs: f64,
    checked: Checked,
}

/// What came of measuring once.
pub struct Run {
    /// What the clients counted.
    pub stats: Stats,
    /// In which time.
    pub elapsed: Duration,
    /// What was used meanwhile.
    pub used: Usage,
    /// What went wrong meanwhile, on purpose.
    happened: Vec<Happened>,
}

impl Run {
    /// Committed transactions a second.
    pub fn throughput_per_sec(&self) -> f64 {
        self.stats.all().count() as f64 / self.elapsed.as_secs_f64()
    }
}

impl Measured {
    /// The run in the middle, by its throughput.
    pub fn median(&self) -> &Run {
        &self.runs[self.runs.len() / 2]
    }
}

/// Loads, warms up, measures and checks.
///
/// # Errors
/// When a node is gone, a call has no answer, or a check fails.
pub async fn measure(
    arguments: &Arguments,
    cluster: &mut Cluster,
    workload: &Workload,
    settings: &workload::Settings,
) -> Result<Measured, Failure> {
    let clients = cluster.clients().await?;
    cluster.usable(&clients).await?;
    let load_secs = load(workload, &clients).await?;
    replicas::settled(&clients).await?;
    // The load stays with its regions, and the measured clients with theirs.
    let (count, seed, pace) = (arguments.clients, arguments.seed, arguments.pace());
    let drive_settings = drive::Settings { clients: count, seed, pace };
    let connections = connections(arguments, cluster, &clients, workload).await?;
    let drive = Drive::start(workload, &connections, &drive_settings);
    let faults = arguments.check_faults(&cluster.plan)?;
    let mut ours = Ours { cluster, clients: &clients, faults: &faults };
    let mut runs = measure_all(arguments, &drive, &mut ours).await?;
    let committed = drive.end(END_DEADLINE).await?;
    let checked = check::all(&clients, workload, settings, committed).await?;
    runs.sort_by(|a, b| b.throughput_per_sec().total_cmp(&a.throughput_per_sec()));
    Ok(Measured { runs, load_secs, checked })
}

/// What is measured: servers, ours or a peer's.
trait Subject {
    /// What was used so far, and which aborts there were since this was last asked that no client
    /// saw, by SQLSTATE.
    async fn used(&mut self) -> Result<(Usage, BTreeMap<String, u64>), Failure>;

    /// Lets happen to the servers what is to happen, from when the measured time begins.
    async fn harm(&mut self, began: Instant) -> Result<Vec<Happened>, Failure>;

    /// Whether anything is to happen to them.
    fn is_harmed(&self) -> bool;

    /// Attempts that clients made again since this was last asked, by kind and SQLSTATE.
    fn retried(&mut self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}

/// A cluster of ours.
struct Ours<'a> {
    cluster: &'a mut Cluster,
    clients: &'a [Client],
    faults: &'a [Fault],
}

impl Subject for Ours<'_> {
    async fn used(&mut self) -> Result<(Usage, BTreeMap<String, u64>), Failure> {
        Ok((Usage::read(self.cluster, self.clients).await?, BTreeMap::new()))
    }

    async fn harm(&mut self, began: Instant) -> Result<Vec<Happened>, Failure> {
        faults::run(self.faults, self.cluster, self.clients, began).await
    }

    fn is_harmed(&self) -> bool {
        !self.faults.is_empty()
    }
}

/// Warms up, and measures as often as it is asked for.
async fn measure_all(
    arguments: &Arguments,
    drive: &Drive,
    subject: &mut impl Subject,
) -> Result<Vec<Run>, Failure> {
    work(drive, arguments.warmup, "warm up").await;
    let mut runs = Vec::with_capacity(arguments.repeats as usize);
    for repeat in 0..arguments.repeats {
        let name = match arguments.repeats {
            1 => "measure".to_owned(),
            repeats => format!("{} of {repeats}", repeat + 1),
        };
        let (before, _) = subject.used().await?;
        // What was done again before belongs to no run.
        drop(subject.retried());
        drive.enter(Phase::Measured);
        let began = Instant::now();
        let measured = async {
            work(drive, arguments.secs, &name).await;
            let elapsed = began.elapsed();
            let stats = drive.take_stats();
            drive.enter(Phase::Unmeasured);
            (elapsed, stats)
        };
        let ((elapsed, mut stats), happened) = tokio::join!(measured, subject.harm(began));
        let happened = happened?;
        let (after, undone) = subject.used().await?;
        stats.retries = subject.retried();
        for (code, count) in undone {
            *stats.aborts.entry(code).or_default() += count;
        }
        // Of what ended between the two lines above nobody wants to know.
        drop(drive.take_stats());
        check::each_has_an_outcome(&stats, subject.is_harmed())?;
        runs.push(Run { stats, elapsed, used: after.since(&before), happened });
    }
    Ok(runs)
}

/// What the clients of each region call through.
async fn connections(
    arguments: &Arguments,
    cluster: &Cluster,
    clients: &[Client],
    workload: &Workload,
) -> Result<Vec<Vec<Connection>>, Failure> {
    if arguments.via == Via::Native {
        let native = |client: &Client| vec![Connection::Native(client.clone())];
        return Ok(clients.iter().map(native).collect());
    }
    let procedures = workload.procedures();
    let mut all: Vec<Vec<Connection>> = Vec::with_capacity(cluster.members.len());
    for (region, member) in cluster.members.iter().enumerate() {
        let (config, mut sessions) = (member.sql_config(), Vec::new());
        // Clients are dealt over the regions in turn.
        let count = (arguments.clients as usize + clients.len() - 1 - region) / clients.len();
        for _ in 0..count.max(1) {
            let session = Session::open(&config, member.region(), &procedures).await?;
            sessions.push(Connection::Postgres(session));
        }
        all.push(sessions);
    }
    Ok(all)
}

/// Makes the tables, and says how many seconds that took.
async fn load(workload: &Workload, clients: &[Client]) -> Result<f64, Failure> {
    let began = Instant::now();
    let bar = bar("{prefix:>8} {wide_bar} {pos}/{len} calls", "load");
    drive::load_tables(workload, clients, |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })
    .await?;
    bar.finish_and_clear();
    Ok(began.elapsed().as_secs_f64())
}

/// Lets clients work, and shows their rate.
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

/// A progress bar on stderr, where that is a terminal.
fn bar(template: &str, name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates are constants");
    ProgressBar::new(0).with_style(style).with_prefix(name.to_owned())
}

#[cfg(test)]
mod tests;
