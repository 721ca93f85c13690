//! `pangea demo`: an interactive cluster over several regions, on this machine.
//!
//! - [`command`]: the commands besides SQL;
//! - [`controls`]: their execution;
//! - [`views`]: the tables that are shown;
//! - [`refusals`]: why nodes refuse each other, or an epoch;
//! - [`traffic`]: the light load of `--load`.

mod command;
mod controls;
mod refusals;
mod traffic;
mod views;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pangea_core::partition::{Partitions, Rule, SHARDS_MAX};
use pangea_node::client::Client;
use pangea_node::config::Tuning;

use crate::cluster::{ClockErrors, Cluster, DataLocation, Plan, ReplicaOptions};
use crate::failure::Failure;
use crate::protocol::{
    MayLoseCommits, OfferedLevels, Setting, options_table, partitioned_names, with_protocol,
};
use crate::regions;
use crate::say;
use crate::signals::{Interrupts, Signals};
use crate::sql::{AfterError, End, Prompt, Shell};
use controls::Controls;
use refusals::Refusals;
use traffic::{Kind, Traffic};

/// Small, because the log of a demo grows slowly and its files should be created quickly.
const LOG_SEGMENT_BYTES: u64 = 4 << 20;
/// The time limit for the first measured round trips; after it, the table shows those available.
const MEASURED_DEADLINE: Duration = Duration::from_millis(1_500);
/// The polling interval for them.
const MEASURED_POLL: Duration = Duration::from_millis(10);

/// Run a cluster over several regions on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea demo
  pangea demo --regions us-east,eu-central,au-southeast --load ycsb-a
  pangea demo --protocol calvin --partitions 2
  pangea demo --protocol calvin --set calvin.replication=asynchronous
  pangea demo --data-dir ./demo < /dev/null
  pangea demo < script

Each region has a real node process. Messages between regions are delayed like those between the
cloud regions of the same names. The prompt accepts SQL, and commands to kill nodes and cut links,
which \\help lists. Ctrl-C cancels the running statement; if there is none, it stops everything, as
do \\q, Ctrl-D, SIGTERM and the end of the terminal.

Without a terminal on stdin, the demo runs until SIGINT (Ctrl-C) or SIGTERM. It first runs the
contents of stdin as if they were typed: SQL, and the commands of \\help. A line waits for the
statement before it, but a command does not wait for a statement that takes longer than a second.
Errors are shown with their line number, and the final exit code is then 1. \\q stops the demo.")]
pub struct Arguments {
    /// Names of the regions, each of which gets a node
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', default_value = regions::DEFAULT)]
    #[arg(help = format!("Regions, each with one node, of: {}", regions::NAMES.join(", ")))]
    regions: Vec<String>,
    /// Commit protocol
    #[arg(long, value_name = "NAME", default_value = crate::protocol::NAMES[0])]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(crate::protocol::NAMES))]
    protocol: String,
    /// Number of nodes in each region over which the tables are partitioned
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(help = format!(
        "Partition the tables over this number of nodes in each region; requires --protocol {}",
        partitioned_names()
    ))]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    partitions: u16,
    #[command(flatten)]
    replicas: ReplicaOptions,
    /// Give each node a cache, a process that keeps its last batches; requires --protocol geogauss
    #[arg(long)]
    caches: bool,
    #[command(flatten)]
    clocks: ClockErrors,
    /// Setting of the protocol, for example calvin.epoch_ms=5. Can be repeated
    #[arg(long = "set", value_name = "P.KEY=VALUE")]
    settings: Vec<Setting>,
    /// Memory of each node for rows, in MiB; other rows are in a file [default: all rows in memory]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    memory_mb: Option<u64>,
    /// Directory for persistent data; existing data are used [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Run a light load in the background
    #[arg(long, value_name = "WORKLOAD", value_enum)]
    load: Option<Kind>,
}

/// Runs the demo.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let plan = Plan::of_named_regions(&arguments.protocol, &arguments.regions)?;
    let plan = Plan {
        options: options_table(&arguments.protocol, &arguments.settings)?,
        tuning: Tuning {
            memory_mb: arguments.memory_mb,
            log_segment_bytes: LOG_SEGMENT_BYTES,
            stop_s: match arguments.data_dir {
                Some(_) => Tuning::default().stop_s,
                None => plan.tuning.stop_s,
            },
            ..plan.tuning
        },
        ..plan
    };
    let plan = match (arguments.partitions, arguments.load) {
        (1, _) => plan,
        (shards, Some(kind)) => plan.divided(kind.workload(1)?.partitions(shards)),
        (shards, None) => plan.divided(Partitions::new(shards, Rule::OF_WHOLE_KEY)),
    };
    let plan = arguments.replicas.apply(plan)?;
    let clock = arguments.clocks.config(1);
    let plan = Plan { caches: arguments.caches.into(), clock, ..plan };
    plan.check()?;
    crate::warn_all(&plan.warnings()?);
    let runtime = crate::runtime(1)?;
    let result = runtime.block_on(play(arguments, plan));
    // The thread that reads the terminal may still be waiting for a line.
    runtime.shutdown_background();
    result
}

async fn play(arguments: &Arguments, plan: Plan) -> Result<(), Failure> {
    let began = Instant::now();
    let mut signals = Signals::new()?;
    let place = match &arguments.data_dir {
        Some(path) => DataLocation::Kept(path.clone()),
        None => DataLocation::Temporary { within: None, keep: false },
    };
    let mut cluster = tokio::select! {
        cluster = Cluster::start(plan, place) => cluster?,
        () = signals.received() => return Ok(()),
    };
    let Signals { interrupts, ends } = &mut signals;
    let mut refusals = Refusals::of(&cluster);
    let played = tokio::select! {
        played = show(arguments, &mut cluster, began, interrupts) => played,
        () = ends.received() => Ok(()),
        never = refusals.tell() => match never {},
    };
    refusals.look();
    let played = played.map_err(|failure| cluster.explain(failure));
    played.and(cluster.stop().await)
}

/// Shows the cluster and runs its prompt until the user quits.
async fn show(
    arguments: &Arguments,
    cluster: &mut Cluster,
    began: Instant,
    interrupts: &mut Interrupts,
) -> Result<(), Failure> {
    let (clients, traffic) = tokio::select! {
        begun = begin(arguments, cluster, began) => begun?,
        () = interrupts.received() => return Ok(()),
    };
    let rates = Arc::new(Mutex::new(match traffic {
        Some(_) => "the load has just begun".to_owned(),
        None => "there is no load; start one with `pangea demo --load ycsb-a`".to_owned(),
    }));
    let mut clients = clients;
    clients.extend(cluster.clients_of_caches().await?);
    let controls = Controls::new(cluster, clients, rates.clone());
    let shell = controls.shell();
    let is_terminal = std::io::stdin().is_terminal();
    tokio::select! {
        played = prompt(controls, shell, interrupts) => played,
        shown = show_rates(traffic.as_ref(), &rates, is_terminal) => shown,
    }
}

/// Waits until the cluster is usable, prints how to connect to it, and starts the load.
async fn begin(
    arguments: &Arguments,
    cluster: &Cluster,
    began: Instant,
) -> Result<(Vec<Client>, Option<Traffic>), Failure> {
    let clients = cluster.clients().await?;
    cluster.usable(&clients).await?;
    let measured = measured_round_trips(&clients).await;
    let seconds = began.elapsed().as_secs_f64();
    let (protocol, count) = (&cluster.plan.protocol, cluster.plan.regions.len());
    let regions = if count == 1 { "region" } else { "regions" };
    let divided = match cluster.plan.shards() {
        1 => String::new(),
        shards => format!(" of {shards} partitions"),
    };
    say(&format!("{protocol} over {count} {regions}{divided}, ready in {seconds:.1} s\n"))?;
    if count == 2 {
        say(
            "With two regions, neither may fail: a majority needs both. Of three, one may fail.\n",
        )?;
    }
    say("Round trips in ms, emulated / measured:")?;
    say(&views::round_trips(&cluster.plan, &measured).to_string())?;
    say("")?;
    let names = cluster.members.iter().chain(&cluster.caches).map(|it| it.name().len());
    let width = names.max().unwrap_or_default().max(14);
    for member in &cluster.members {
        say(&format!("{:<width$} {}", member.name(), member.sql_url()))?;
    }
    for cache in &cluster.caches {
        let home = cluster.members[cache.config.me().cache_of.unwrap_or_default().index()].name();
        say(&format!("{:<width$} keeps the last batches of {home}", cache.name()))?;
    }
    say("")?;
    promises(cluster)?;
    let traffic = match arguments.load {
        Some(kind) => Some(Traffic::start(kind, cluster, &clients).await?),
        None => None,
    };
    Ok((clients, traffic))
}

/// Says which isolation level transactions have, and whether commits can be lost.
fn promises(cluster: &Cluster) -> Result<(), Failure> {
    let (protocol, options) = (&cluster.plan.protocol[..], &cluster.plan.options);
    let offered = with_protocol(protocol, OfferedLevels(options))??;
    if offered.offered().count() > 1 {
        let level = offered.default_level();
        say(&format!("Transactions are {level}, unless they ask for another level.\n"))?;
    }
    if with_protocol(protocol, MayLoseCommits(options))?? {
        say("With these settings, the last commits of a region can be lost with it.\n")?;
    }
    Ok(())
}

/// Executes commands from the terminal, or from a script on stdin, until told to quit.
async fn prompt(
    controls: Controls<'_>,
    shell: Shell,
    interrupts: &mut Interrupts,
) -> Result<(), Failure> {
    let mut prompt = Prompt::new(controls, shell, interrupts, AfterError::GoOn)?;
    if prompt.is_terminal() {
        say("\\help lists the commands besides SQL. \\q or Ctrl-C stops everything.")?;
    }
    match (prompt.run().await?, prompt.is_terminal()) {
        (End::Interrupted, true) => say("Stopping: Ctrl-C, and no statement to cancel.")?,
        (End::NoMore { had_lines }, false) => {
            if had_lines {
                crate::warn("The script has ended. The demo runs until SIGINT or SIGTERM.");
            }
            prompt.interrupted().await;
        }
        (End::Quit | End::Interrupted | End::NoMore { .. }, _) => {}
    }
    match prompt.failed() {
        0 => Ok(()),
        1 => Err(Failure::Failed("one line of the script failed".to_owned())),
        failed => Err(Failure::Failed(format!("{failed} lines of the script failed"))),
    }
}

/// Shows the rates of the load: in the title of the terminal, where they do not disturb the prompt,
/// or on stdout if stdin is not a terminal.
async fn show_rates(
    traffic: Option<&Traffic>,
    latest: &Mutex<String>,
    is_terminal: bool,
) -> Result<(), Failure> {
    let Some(traffic) = traffic else { std::future::pending().await };
    loop {
        let rates = traffic.rates().await;
        if is_terminal {
            show_title(&rates);
        } else {
            say(&rates)?;
        }
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = rates;
    }
}

/// Sets the terminal's title.
fn show_title(title: &str) {
    let mut stdout = std::io::stdout().lock();
    // Errors are ignored: a closed terminal shows nothing.
    let _ = write!(stdout, "\x1b]0;{title}\x07").and_then(|()| stdout.flush());
}

/// Returns the shortest measured round trips in ms, `[from][to]`. Returns when all are known or the
/// time limit has passed.
async fn measured_round_trips(clients: &[Client]) -> Vec<Vec<Option<f64>>> {
    let began = Instant::now();
    loop {
        let measured = views::measure(clients).await;
        let is_there = |from: usize, to: usize| from == to || measured[from][to].is_some();
        let all = 0..clients.len();
        let is_complete = all.clone().all(|from| all.clone().all(|to| is_there(from, to)));
        if is_complete || began.elapsed() > MEASURED_DEADLINE {
            return measured;
        }
        tokio::time::sleep(MEASURED_POLL).await;
    }
}
