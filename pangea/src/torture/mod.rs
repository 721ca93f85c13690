//! `pangea torture`: runs a cluster on this machine under SQL clients and faults, and checks the
//! clients' observations against the consistency guarantee.
//!
//! ```text
//!   start --> tables --> clients work under faults --> heal --> let clients finish
//!         --> every region commits --> replicas identical? --> read everything --> stop --> check
//! ```
//!
//! Nodes are separate processes, and clients use PostgreSQL's protocol. All faults are healed
//! before the end, so that every operation can finish.
//!
//! - [`work`]: the clients' transactions, as SQL;
//! - [`levels`]: the isolation levels of sessions;
//! - [`clients`]: the clients, and the meaning of errors;
//! - [`history`]: the record of operations and results, in the format of docs/HISTORY.md;
//! - [`nemesis`]: the faults;
//! - [`checkpoints`]: the frequency and the number of the nodes' checkpoints;
//! - [`failovers`]: the acknowledged transactions that a failover may discard;
//! - [`last`]: the end of a run.

mod checkpoints;
mod clients;
mod failovers;
mod history;
mod last;
mod levels;
mod nemesis;
mod work;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pangea_core::partition::{Partitions, Rule, SHARDS_MAX};
use pangea_node::config::Tuning;
use pangea_node::log::Durability;
use pangea_sim::Levels;

use crate::check::check_file;
use crate::cluster::{
    ClockErrors, Cluster, DataLocation, Plan, Regions, ReplicaOptions, durability,
};
use crate::failure::Failure;
use crate::protocol::{
    MayLoseCommits, MayLoseUnnamed, Setting, options_table, partitioned_names, with_protocol,
};
use crate::say;
use checkpoints::Checkpoints;
use clients::Clients;
use failovers::{Discards, Failovers};
use history::History;
use nemesis::{Fault, Nemesis, Programs};

/// A larger number is probably in the wrong unit: a history of weeks does not fit in memory.
const SECS_MAX: u64 = 86_400;
/// The maximum number of caches of a node: each is a process.
const CACHES_MAX: i64 = 3;
/// The maximum number of clients of a region.
const CLIENTS_MAX: u64 = 256;
/// The time limit for clients to finish after all faults are healed.
const END_DEADLINE: Duration = Duration::from_secs(60);
/// The update interval of the progress bar.
const TICK: Duration = Duration::from_millis(200);
/// The progress bar.
const PROGRESS_BAR: &str = "{wide_bar} {pos}/{len} s, {msg}";
/// Small enough that a segment is full within seconds, so that checkpoints truncate the log.
const LOG_SEGMENT_BYTES: u64 = 128 << 10;

/// Kill, stop and cut off nodes under SQL clients, and check what the clients saw.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea torture
  pangea torture --secs 600 --seed 7 --history run.jsonl
  pangea torture --faults kill,pause --regions us-east,eu-west,ap-northeast
  pangea torture --protocol calvin --partitions 2 --rtt 20
  pangea torture --protocol geogauss --isolation mixed --caches 1
  pangea torture --regions 5 --rtt 20 --clients 8 --set minerva.solver=greedy

The nodes run as processes on this machine, with their files in a temporary directory that is
removed at the end. Clients in every region append to lists, write registers, and insert, delete and
scan rows, as autocommit statements and as BEGIN .. COMMIT, half of them with strict reads. At the
end all faults are healed, every region must commit, all replicas must be identical, and the results
that clients saw must be strictly serializable, except that snapshot reads may return past states.
Transactions of weaker isolation levels are held to their own level, and lose no increment that one
statement makes.
With settings that may lose acknowledged transactions at a failover, such as
calvin.replication=asynchronous, these have an unknown outcome if the nodes' logs show that another
master replaced theirs; all others must survive. Values of geogauss.ack other than replicated
are refused: a node that is killed can't tell which of its commits nobody else had.

Nodes take checkpoints every few seconds: the protocol's setting checkpoint_bytes is scaled down,
and --set overrides it. Calvin's kind of checkpoints (calvin.checkpoints) is drawn from the seed,
unless --set specifies it.

The seed determines the clients' operations and the order of faults, but real processes run
differently each time. If a check fails, the exit code is 1 and the history is kept. Ctrl-C stops
everything; the file of --history then has the history so far, without the final reads.")]
pub struct Arguments {
    /// Time during which clients work under faults, in seconds
    #[arg(long, value_name = "S", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SECS_MAX))]
    secs: u64,
    /// Seed of the faults and of the clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Kinds of faults that may happen, of kill, pause, cut and full-stop, and with --upgrade-to
    /// also upgrade, full-upgrade and stop-upgrade, or none [default: all; with --durability
    /// memory, pause and cut]
    #[arg(long, value_name = "A,B,C|none", value_delimiter = ',')]
    faults: Vec<String>,
    /// Program with which nodes are started again after SIGKILL, in turn or all at once, or after a
    /// stop in order: another release of pangea. The next upgrade goes back to this program
    #[arg(long, value_name = "FILE")]
    upgrade_to: Option<PathBuf>,
    /// Number of regions, or the names of cloud regions: us-east,eu-west,...
    #[arg(long, value_name = "N|A,B,C", default_value = "3")]
    regions: Regions,
    /// Round trip between any two regions, in ms [default: 50, or the distance between the named
    /// regions]
    #[arg(long, value_name = "MS")]
    rtt: Option<f64>,
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
    /// Caches of each node, which are killed and paused as well; requires --protocol geogauss
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=CACHES_MAX))]
    caches: u16,
    /// Clients of each node
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=CLIENTS_MAX))]
    clients: u64,
    /// Commit protocol
    #[arg(long, value_name = "NAME", default_value = crate::protocol::NAMES[0])]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(crate::protocol::NAMES))]
    protocol: String,
    /// Isolation level of the clients' sessions: read-committed, snapshot-isolation (SQL's
    /// REPEATABLE READ; SQL has no name for the level repeatable-read) or serializable; or several,
    /// of which each session draws one, or mixed for all [default: drawn from the seed, of those
    /// that the protocol offers]
    #[arg(long, value_name = "A,B,C|mixed")]
    isolation: Option<Levels>,
    #[command(flatten)]
    clocks: ClockErrors,
    /// Setting of the protocol, for example minerva.solver=greedy. Can be repeated
    #[arg(long = "set", value_name = "P.KEY=VALUE")]
    settings: Vec<Setting>,
    /// When a record counts as durable: fsync, os, or memory, which is lost when a process is
    /// killed. With memory, full-stop makes the check fail, as it must, and kill is rejected
    #[arg(long, value_name = "WHEN", default_value = "fsync", value_parser = durability)]
    durability: Durability,
    /// Memory of each node for rows, in MiB; other rows are in a file [default: all rows in memory]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    memory_mb: Option<u64>,
    /// Write the operations and results of the clients to this file, for `pangea check`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Directory for the nodes' files during the run [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Do not remove the nodes' files and logs
    #[arg(long)]
    keep: bool,
}

impl Arguments {
    fn plan(&self) -> Result<Plan, Failure> {
        let plan = self.regions.plan(&self.protocol, self.rtt)?;
        let plan = match self.partitions {
            1 => plan,
            shards => plan.divided(Partitions::new(shards, Rule::OF_WHOLE_KEY)),
        };
        let plan = self.replicas.apply(plan)?;
        let plan = Plan {
            options: options_table(&self.protocol, &self.settings)?,
            durability: self.durability,
            tuning: Tuning {
                memory_mb: self.memory_mb,
                log_segment_bytes: LOG_SEGMENT_BYTES,
                // Only a program with other procedures needs the checkpoint of a stop.
                stop_s: match self.upgrade_to {
                    Some(_) => Tuning::default().stop_s,
                    None => plan.tuning.stop_s,
                },
                ..plan.tuning
            },
            caches: self.caches,
            clock: self.clocks.config(self.seed),
            ..plan
        };
        plan.check()?;
        if with_protocol(&self.protocol, MayLoseUnnamed(&plan.options))?? {
            return Err(Failure::Usage(format!(
                "with these settings of {}, acknowledged commits can be lost with a node that is \
                 killed, and no log names them: their loss can't be told from a bug. Use \
                 {0}.ack=replicated",
                self.protocol
            )));
        }
        let plan = checkpoints::often(plan, self.seed)?;
        if plan.regions.len() < 2 {
            // With one region, nothing could be observed while its node is down.
            let message = "--regions: a torture needs at least 2 regions";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok(plan)
    }

    /// The programs of the nodes.
    fn programs(&self) -> Result<Programs, Failure> {
        let absolute = |path: &PathBuf| {
            std::fs::canonicalize(path).map_err(|error| {
                Failure::Usage(format!("--upgrade-to {}: {error}", path.display()))
            })
        };
        Ok(Programs::new(self.upgrade_to.as_ref().map(absolute).transpose()?))
    }

    fn faults(&self) -> Result<Vec<Fault>, Failure> {
        let all = <Fault as clap::ValueEnum>::value_variants();
        let is_memory = self.durability == Durability::Memory;
        if self.faults.is_empty() {
            let is_possible = |fault: &&Fault| {
                let is_survived = !is_memory || !fault.ends_processes();
                let has_program = self.upgrade_to.is_some() || !fault.is_upgrade();
                is_survived && has_program && !fault.is_on_request()
            };
            return Ok(all.iter().filter(is_possible).copied().collect());
        }
        if self.faults == ["none"] {
            return Ok(Vec::new());
        }
        if self.faults.iter().any(|word| word == "none") {
            let message = "--faults: none can't be combined with faults: it means that no fault \
                           happens";
            return Err(Failure::Usage(message.to_owned()));
        }
        let fault = |word: &String| {
            let found = all.iter().find(|fault| fault.name() == *word).copied();
            found.ok_or_else(|| {
                let names = all.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(", ");
                Failure::Usage(format!(
                    "--faults: there is no fault {word:?}; expected {names}, or none"
                ))
            })
        };
        let faults: Vec<Fault> = self.faults.iter().map(fault).collect::<Result<_, _>>()?;
        self.check_faults(&faults).map(|()| faults)
    }

    /// Checks that the cluster can have these faults.
    fn check_faults(&self, faults: &[Fault]) -> Result<(), Failure> {
        let is_memory = self.durability == Durability::Memory;
        if let Some(upgrade) = faults.iter().find(|fault| fault.is_upgrade())
            && self.upgrade_to.is_none()
        {
            let name = upgrade.name();
            let message = format!("--faults {name}: the other program is missing: --upgrade-to");
            return Err(Failure::Usage(message));
        }
        if is_memory && faults.iter().any(|it| *it == Fault::Kill || it.is_upgrade()) {
            return Err(Failure::Usage(
                "--faults kill --durability memory: a killed node would lose transactions that it \
                 acknowledged, and the other nodes would not readmit it; run it without kill, or \
                 with --durability os or fsync"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// Runs the torture.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (plan, faults) = (arguments.plan()?, arguments.faults()?);
    crate::warn_all(&plan.warnings()?);
    let levels =
        levels::of_sessions(arguments.isolation, (&plan.protocol, &plan.options), arguments.seed)?;
    check_flips(&plan, &faults)?;
    let programs = arguments.programs()?;
    if arguments.faults.is_empty() && arguments.durability == Durability::Memory {
        crate::warn(
            "Faults are limited to pause and cut: with --durability memory, a killed node loses \
             all data.",
        );
    }
    let (path, temporary) = match &arguments.history {
        Some(path) => (path.clone(), None),
        None => {
            let file = tempfile::Builder::new().prefix("pangea-").suffix(".jsonl").tempfile();
            let cant = |error| Failure::failed("can't create a temporary file", error);
            let file = file.map_err(cant)?.into_temp_path();
            (file.to_path_buf(), Some(file))
        }
    };
    let cant = |error| Failure::failed(format!("can't write {}", path.display()), error);
    let history = Arc::new(History::new(File::create(&path).map_err(cant)?));
    let runtime = crate::runtime(1)?;
    let place =
        DataLocation::Temporary { within: arguments.data_dir.clone(), keep: arguments.keep };
    let work = async |cluster: &mut Cluster| {
        torture((arguments, levels), cluster, (&faults, programs), &history).await
    };
    let played = runtime.block_on(Cluster::run_while(plan, place, work));
    // Clients that are still waiting for a response are dropped with the runtime.
    drop(runtime);
    let checked = history.flush().map_err(cant).and(played).and_then(|(summary, discards)| {
        say(&summary)?;
        if let Some(mut discards) = discards {
            say(&discards.excuse_in(&path, &history)?)?;
        }
        // The name of a temporary file is of no use, because the file will be removed.
        let name = match &temporary {
            Some(_) => "the history".to_owned(),
            None => path.display().to_string(),
        };
        check_file(name, path.clone(), None)
    });
    let is_empty = std::fs::metadata(&path).is_ok_and(|file| file.len() == 0);
    if let (Err(Failure::Failed(_)), Some(temporary), false) = (&checked, temporary, is_empty) {
        keep(&path, temporary);
    }
    checked
}

/// Checks that a majority can decide which node has a flipped bit.
fn check_flips(plan: &Plan, faults: &[Fault]) -> Result<(), Failure> {
    #[cfg(feature = "planted")]
    if faults.contains(&Fault::Flip) && (0..plan.shards()).any(|shard| plan.voters_of(shard) < 3) {
        let message = "--faults flip: at least 3 regions are needed: of 2 nodes that differ, \
                       neither can know which is right, and both stop";
        return Err(Failure::Usage(message.to_owned()));
    }
    let _ = (plan, faults);
    Ok(())
}

/// Retains the history if the run failed.
fn keep(path: &Path, temporary: tempfile::TempPath) {
    match temporary.keep() {
        Ok(_) => crate::warn(&format!("the history is in {}", path.display())),
        Err(error) => crate::warn(&format!("the history can't be kept: {error}")),
    }
}

/// Runs everything and returns the report. With settings that may lose acknowledged transactions,
/// also returns which of them may be lost.
async fn torture(
    (arguments, levels): (&Arguments, Levels),
    cluster: &mut Cluster,
    (faults, programs): (&[Fault], Programs),
    history: &Arc<History>,
) -> Result<(String, Option<Discards>), Failure> {
    let places = create_tables(cluster).await?;
    let may_lose = with_protocol(&cluster.plan.protocol, MayLoseCommits(&cluster.plan.options))??;
    let failovers = may_lose.then(|| Failovers::watch(cluster, history));

    let each = usize::try_from(arguments.clients).expect("few clients");
    let used = first_used(faults);
    let clients = Clients::start(history, (&places, used), (each, levels), arguments.seed);
    let (began, length) = (Instant::now(), Duration::from_secs(arguments.secs));
    let bar = bar(arguments.secs);
    let tell = |what: &str| {
        let line = format!("{:>8} ms  {what}", began.elapsed().as_millis());
        bar.suspend(|| crate::warn(&line));
    };
    let mut checkpoints = Checkpoints::of(&cluster.members);
    let mut nemesis = Nemesis::new(cluster, faults, programs, arguments.seed, tell);
    tokio::select! {
        done = nemesis.run(began + length) => done?,
        () = show(&bar, history, began, &mut checkpoints) => {}
    }
    nemesis.heal().await?;
    if !arguments.faults.is_empty() && !faults.is_empty() && nemesis.is_idle() {
        let (names, secs) = (arguments.faults.join(","), arguments.secs);
        return Err(Failure::Failed(format!(
            "check failed: no fault of --faults {names} happened within {secs} s; run it for \
             longer (--secs)"
        )));
    }
    let done = nemesis.done();
    drop(nemesis);
    bar.finish_and_clear();

    let met = clients.end(END_DEADLINE).await?;
    let natives = cluster.clients().await?;
    let (version, digest) =
        last::settle(&places, &natives, &cluster.plan.shards_of_nodes()).await?;
    checkpoints.look();
    let counts = history.counts();
    last::read_all(history, &places).await?;
    let increments = last::count_increments(history, &places, may_lose).await?;
    let last_reads = history.counts().committed - counts.committed;
    if counts.committed == 0 {
        return Err(Failure::Failed("nothing was committed".to_owned()));
    }
    let discards = failovers.map(|failovers| failovers.discards(history)).transpose()?;
    let (nodes, caches) = (places.len(), with_caches(cluster));
    let summary = format!(
        "{} over {nodes} nodes{caches}, {} s, seed {}\n  isolation   {levels}\n  \
         faults      {done}\n  clients     {}: {} committed, {} aborted ({} conflicts), \
         {} unknown, {} connections lost\n  checkpoints {}\n  \
         replicas    identical at {version}, digest {digest}; everything was read again, by \
         {last_reads} transactions\n  increments  {increments}",
        cluster.plan.protocol,
        arguments.secs,
        arguments.seed,
        each * (nodes - used),
        counts.committed,
        counts.aborted,
        met.conflicts,
        counts.unknown,
        met.connections_lost,
        checkpoints.summary(&cluster.plan),
    );
    Ok((summary, discards))
}

/// The number of caches, for the report.
fn with_caches(cluster: &Cluster) -> String {
    match cluster.caches.len() {
        0 => String::new(),
        caches => format!(" with {caches} caches"),
    }
}

/// Creates the tables, and returns the nodes as clients see them.
async fn create_tables(cluster: &Cluster) -> Result<Vec<clients::Place>, Failure> {
    let natives = cluster.clients().await?;
    cluster.usable(&natives).await?;
    let place = |member: &crate::cluster::Member| clients::Place {
        region: member.name().to_owned(),
        sql: member.sql_config(),
    };
    let places: Vec<clients::Place> = cluster.members.iter().map(place).collect();
    last::create_tables(&places[0], work::SCHEMA).await?;
    // From here on, every new session on any node sees the tables.
    cluster.usable(&natives).await?;
    Ok(places)
}

/// Returns the index of the first node that clients use.
fn first_used(faults: &[Fault]) -> usize {
    #[cfg(feature = "planted")]
    if faults.contains(&Fault::Flip) {
        return nemesis::UNUSED + 1;
    }
    let _ = faults;
    0
}

/// Creates a progress bar on stderr, if that is a terminal.
fn bar(secs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(PROGRESS_BAR).expect("the template is a constant");
    ProgressBar::new(secs).with_style(style)
}

/// Updates the progress bar and records new checkpoints, forever.
async fn show(bar: &ProgressBar, history: &History, began: Instant, checkpoints: &mut Checkpoints) {
    loop {
        checkpoints.look();
        bar.set_position(began.elapsed().as_secs());
        let history::Counts { committed, aborted, unknown } = history.counts();
        bar.set_message(format!("{committed} committed, {aborted} aborted, {unknown} unknown"));
        tokio::time::sleep(TICK).await;
    }
}
