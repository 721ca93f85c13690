//! `pangea sim`: clusters in virtual time, under faults, checked against their guarantees.

mod predict;
mod progress;
mod values;

use std::fs::File;
use std::io::BufWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pangea_core::partition::SHARDS_MAX;
use pangea_core::time::Span;
use pangea_core::topology::Replicas;
use pangea_core::workload;
use pangea_sim::clock::ClockBounds;
use pangea_sim::settings::NODES_MAX;
use pangea_sim::trace::Lines;
use pangea_sim::{
    Extent, Levels, RealTime, Report, Scenario, Settings, Shrunk, Simulator, Summary, record,
};

use pangea_sweep::plan_error::unknown;

use crate::failure::Failure;
use crate::protocol::{
    CheckTable, GuaranteeOf, NodesMin, ScaledDown, Setting, check_options, learner_names,
    options_table, partial_names, simulator_of, with_protocol,
};
use crate::say;
use crate::signals::Signals;
pub use predict::options as prediction_options;
use progress::Progress;
use values::{Faults, at_least_one, fault_names, faults, minutes, seeds};

/// The progress bar of the search for the smallest failing run.
const SHRINK_BAR: &str = "{pos} of at most {len} runs; smallest: {msg}";
/// The maximum number of runs of that search.
const SHRINK_RUNS_MAX: u64 = 1_000;
/// Arguments that a scenario sets in its file, and that a swarm draws. The isolation level is
/// another one, which a swarm may be given.
const IN_SCENARIOS: [&str; 18] = [
    "workload",
    "nodes",
    "partitions",
    "replicas_in",
    "non_voting",
    "learners",
    "caches",
    "clients",
    "ms",
    "lists",
    "accounts",
    "memory_bytes",
    "faults",
    "faults_max",
    "one_way_ms",
    "clock_offset_us",
    "clock_drift_ppm",
    "real_time",
];

/// The maximum number of shards if faults are simulated.
const SIMULATED_SHARDS_MAX: u16 = 8;

/// Arguments that do not apply to predictions.
const NOT_PREDICTED: [&str; 24] = [
    "seeds",
    "minutes",
    "swarm",
    "twice",
    "shrink",
    "scenario",
    "trace",
    "history",
    "nodes",
    "replicas_in",
    "non_voting",
    "learners",
    "ms",
    "lists",
    "accounts",
    "memory_bytes",
    "faults",
    "faults_max",
    "one_way_ms",
    "clock_offset_us",
    "clock_drift_ppm",
    "isolation",
    "real_time",
    "threads",
];

/// Run clusters in virtual time, under faults, and check what clients saw.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea sim --seed 7
  pangea sim --seed 7 --trace > trace.txt
  pangea sim --seeds 0..1000 --workload bank
  pangea sim --seeds 0..100 --protocol geogauss --isolation mixed
  pangea sim --seed 7 --history run.jsonl && pangea check run.jsonl
  pangea sim --seeds 0..100 --faults crash,partition --set minerva.solver=greedy
  pangea sim --seeds 0..100 --scenario scenarios/coordinator-dies.toml
  pangea sim --swarm --minutes 60
  pangea sim --swarm --seeds 0..1000 --twice
  pangea sim --swarm --seeds 5000..1000000 --minutes 60
  pangea sim --seed 7 --shrink small.toml
  pangea sim --predict --costs costs.toml --workload tpcc-nopay --clients 4000 --replicas 3,5,7

Some settings of the protocol are scaled down, so that a run of a few seconds includes checkpoints
and large epochs. The report lists all of them, and --set overrides them.

A swarm also draws everything else from the seed: the workload, the cluster, the faults and the
protocol's settings. It reports the marks of the protocol that no run has hit. --shrink reduces the
run of a failing seed as far as possible, and writes it as a scenario.

Runs are deterministic: the same seed and options give the same trace, byte for byte. Each failure
is printed with the command that replays it, and the exit code is then 1. Ctrl-C ends a swarm with
the results so far and exit code 130.")]
#[command(group = clap::ArgGroup::new("which"))]
pub struct Arguments {
    /// Commit protocol
    #[arg(long, value_name = "NAME", default_value = crate::protocol::NAMES[0])]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(crate::protocol::NAMES))]
    protocol: String,
    /// Run this seed; --seeds or --minutes run several
    #[arg(long, value_name = "N", group = "which")]
    #[arg(required_unless_present_any = ["seeds", "minutes", "predict"])]
    seed: Option<u64>,
    /// Run all of these seeds, excluding the last
    #[arg(long, value_name = "A..B", group = "which", value_parser = seeds)]
    seeds: Option<Range<u64>>,
    /// Run seeds one after the other, those of --seeds or from 0, for this many minutes (1.5, say)
    #[arg(long, value_name = "M", conflicts_with = "seed", value_parser = minutes)]
    minutes: Option<f64>,
    /// Draw all other options from the seed
    #[arg(long, conflicts_with_all = IN_SCENARIOS, conflicts_with = "scenario")]
    swarm: bool,
    /// Run each seed twice and check that both runs have the same trace
    #[arg(long, conflicts_with = "seed")]
    twice: bool,
    /// If the seed fails, search for the smallest run with the same failure and write it to this
    /// file
    #[arg(long, value_name = "FILE", requires = "seed")]
    shrink: Option<PathBuf>,
    /// Read all other options from this file: workload, cluster, faults
    #[arg(long, value_name = "FILE", conflicts_with_all = IN_SCENARIOS)]
    #[arg(conflicts_with = "isolation")]
    scenario: Option<PathBuf>,
    /// Print every event
    #[arg(long, conflicts_with = "seeds")]
    trace: bool,
    /// Write the operations and results of the clients to a file, for `pangea check`. Not available
    /// for bank, ddl, index, references, smallbank, tallies, TPC-C, YCSB and the micro workloads
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    history: Option<PathBuf>,
    /// Workload of the clients
    #[arg(long, value_name = "NAME")]
    #[arg(help = format!("Workload of the clients: {}", workload::NAMES.join(", ")))]
    #[arg(default_value_t = Settings::default().workload)]
    workload: String,
    /// Number of nodes, each in its own region
    #[arg(long, value_name = "N", default_value_t = Settings::default().nodes)]
    nodes: usize,
    /// Number of shards over which the tables are partitioned, each on its own node in each region;
    /// requires a protocol that supports it. --nodes is then the number of regions
    #[arg(long, value_name = "N", default_value_t = Settings::default().shards)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    partitions: u16,
    /// Regions with a replica of each shard: A,B/B,C is two shards; requires --partitions and
    /// --protocol tiga or mako [default: all regions]
    #[arg(long, value_name = "A,B/B,C")]
    replicas_in: Option<String>,
    /// Number of further regions with one non-voting replica each
    #[arg(help = format!(
        "Number of further regions with one non-voting replica each; requires --protocol {}",
        partial_names()
    ))]
    #[arg(long, value_name = "N", default_value_t = Settings::default().non_voting)]
    non_voting: usize,
    /// Give each shard a learner
    #[arg(help = format!(
        "Give each shard a learner in the region of its first replica; requires --protocol {}",
        learner_names()
    ))]
    #[arg(long)]
    learners: bool,
    /// Number of caches of each node; requires a protocol that has them
    #[arg(long, value_name = "N", default_value_t = Settings::default().caches)]
    caches: usize,
    /// Clients of each region; with --predict, of all regions together
    #[arg(long, value_name = "N", default_value_t = Settings::default().clients_per_node)]
    #[arg(value_parser = at_least_one)]
    clients: usize,
    /// Time during which clients work under faults, in ms
    #[arg(long, value_name = "MS", default_value_t = Settings::default().duration.us / 1_000)]
    ms: u64,
    /// list-append: lists in use at a time. register, long-fork, write-skew, cycle, ranges, chain:
    /// rows
    #[arg(long, value_name = "N", default_value_t = Settings::default().lists)]
    lists: u32,
    /// bank: accounts
    #[arg(long, value_name = "N", default_value_t = Settings::default().accounts)]
    accounts: u32,
    /// Kinds of faults that may happen [default: all]
    #[arg(long, value_name = "A,B,C|none", value_parser = faults)]
    #[arg(help = format!("Faults that may happen, of {}, or none [default: all]", fault_names()))]
    faults: Option<Faults>,
    /// Maximum number of faults
    #[arg(long, value_name = "N", default_value_t = Settings::default().faults_max)]
    faults_max: u64,
    /// Longest one-way delay between two regions, in ms
    #[arg(long, value_name = "MS", default_value_t = Settings::default().one_way_max.us / 1_000)]
    one_way_ms: u64,
    /// Maximum offset of a clock, in us
    #[arg(long, value_name = "US", default_value_t = Settings::default().clocks.offset_max.us)]
    clock_offset_us: u64,
    /// Maximum drift of a clock, in ppm
    #[arg(long, value_name = "PPM", default_value_t = Settings::default().clocks.drift_ppm_max)]
    clock_drift_ppm: u64,
    /// Memory of each node for rows, in bytes, as far as rows can be evicted [default: unlimited]
    #[arg(long, value_name = "N")]
    memory_bytes: Option<usize>,
    /// Isolation level that clients ask for and that the history is held to: read-committed,
    /// repeatable-read, snapshot-isolation or serializable; or several, of which each transaction
    /// draws one, or mixed for all. A protocol may give a stronger one. With --swarm, in place of
    /// drawn ones [default: serializable]
    #[arg(long, value_name = "A,B,C|mixed")]
    isolation: Option<Levels>,
    /// Operations that must respect real-time order: none; writes and strict reads (writes); or
    /// also read-only transactions (ordered) [default: ordered if the protocol guarantees it with
    /// these settings, otherwise writes]
    #[arg(long, value_name = "WHAT")]
    real_time: Option<RealTime>,
    /// Setting of the protocol, for example minerva.solver=greedy. Can be repeated
    #[arg(long = "set", value_name = "P.KEY=VALUE")]
    settings: Vec<Setting>,
    /// Plant this bug, which the checks must detect
    #[cfg(feature = "planted")]
    #[arg(long, value_name = "BUG")]
    planted: Option<pangea_core::planted::Bug>,
    /// Number of seeds that run in parallel [default: one per core]
    #[arg(long, value_name = "N", conflicts_with = "seed")]
    threads: Option<usize>,
    // Last, because its heading in the help applies to all options that follow.
    #[command(flatten)]
    predict: predict::Arguments,
}

impl Arguments {
    /// Returns all settings except those of the protocol. `promised` is the real-time order that
    /// the protocol guarantees with its settings.
    fn settings(&self, promised: RealTime) -> Result<Settings, Failure> {
        let wrong = |message: String| Err(Failure::Usage(message));
        if self.non_voting > NODES_MAX - self.nodes.min(NODES_MAX) {
            let count = self.non_voting;
            return wrong(format!("--non-voting {count}: at most {NODES_MAX} regions in all"));
        }
        if !(1..=NODES_MAX).contains(&self.nodes) {
            return wrong(format!("--nodes {}: must be from 1 to {NODES_MAX}", self.nodes));
        }
        if !workload::NAMES.contains(&self.workload.as_str()) {
            return Err(Failure::Usage(unknown("workload", &self.workload, workload::NAMES)));
        }
        if self.history.is_some() && !workload::is_recorded(&self.workload) {
            let name = &self.workload;
            let message = format!(
                "--history: the format does not support histories of {name}; try list-append"
            );
            return Err(Failure::Usage(message));
        }
        if self.partitions > SIMULATED_SHARDS_MAX {
            let message = format!(
                "--partitions {}: at most {SIMULATED_SHARDS_MAX} if faults are simulated, and \
                 {SHARDS_MAX} with --predict",
                self.partitions
            );
            return Err(Failure::Usage(message));
        }
        let default = Settings::default();
        let replicas = self.replicas_in.as_ref().map(|text| {
            let regions = Settings { nodes: self.nodes, ..Settings::default() }.topology().regions;
            Replicas::parse(text, &regions)
                .map_err(|why| Failure::Usage(format!("--replicas-in: {why}")))
        });
        Ok(Settings {
            is_drawn: self.swarm,
            seed: self.seed.unwrap_or(default.seed),
            nodes: self.nodes,
            shards: self.partitions,
            replicas: replicas.transpose()?,
            non_voting: self.non_voting,
            learners: self.learners,
            caches: self.caches,
            workload: self.workload.clone(),
            clients_per_node: self.clients,
            lists: self.lists,
            accounts: self.accounts,
            duration: Span::from_ms(self.ms),
            faults: self.faults.as_ref().map_or(default.faults, |faults| faults.0.clone()),
            faults_max: self.faults_max,
            one_way_max: Span::from_ms(self.one_way_ms),
            clocks: ClockBounds {
                offset_max: Span::from_us(self.clock_offset_us),
                drift_ppm_max: self.clock_drift_ppm,
            },
            isolation: self.isolation.unwrap_or(default.isolation),
            given_levels: self.isolation.filter(|_| self.swarm),
            real_time: self.real_time.unwrap_or(promised),
            given: self.settings.iter().map(ToString::to_string).collect(),
            #[cfg(feature = "planted")]
            planted: self.planted,
            memory_bytes: self.memory_bytes,
            lines: if self.trace { Lines::Print } else { Lines::Off },
            ..default
        })
    }
}

/// Reads a scenario's file, and returns it with the protocol's settings that it contains.
fn read_scenario(path: &Path, protocol: &str) -> Result<(Scenario, toml::Table), Failure> {
    let wrong = |error: String| wrong_scenario(path, &error);
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let scenario = Scenario::read(&text, crate::protocol::NAMES).map_err(wrong)?;
    let own = scenario.protocols.get(protocol).and_then(toml::Value::as_table);
    let own = own.cloned().unwrap_or_default();
    with_protocol(protocol, CheckTable(&own))?.map_err(|option| {
        let line = scenario.line_of_option(protocol, &option.key);
        wrong(line.map_or(option.to_string(), |line| format!("line {line}: {option}")))
    })?;
    Ok((scenario, own))
}

fn wrong_scenario(path: &Path, why: &str) -> Failure {
    Failure::Usage(format!("--scenario {}: {why}", path.display()))
}

/// Runs the simulation.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.predict.predict {
        return arguments.prediction()?.run(&arguments.protocol);
    }
    if let Some(option) = arguments.predict.sizes_given() {
        return Err(Failure::Usage(format!("--{option} requires --predict")));
    }
    let read = |path: &PathBuf| read_scenario(path, &arguments.protocol);
    let scenario = arguments.scenario.as_ref().map(read).transpose()?;
    let own = scenario.iter().flat_map(|(_, own)| own.clone());
    let given = options_table(&arguments.protocol, &arguments.settings)?;
    let options = match arguments.swarm {
        true => given,
        false => {
            let scaled_down = with_protocol(&arguments.protocol, ScaledDown)?;
            scaled_down.into_iter().chain(own).chain(given).collect()
        }
    };
    let guarantee = with_protocol(&arguments.protocol, GuaranteeOf(&options))??;
    let settings = arguments.settings(RealTime::promised_by(guarantee))?;
    let settings = match (&arguments.scenario, scenario) {
        (Some(path), Some((scenario, _))) => {
            let settings = Settings { scenario: Some(path.display().to_string()), ..settings };
            scenario.apply(settings).map_err(|why| wrong_scenario(path, &why))?
        }
        _ => settings,
    };
    simulate(arguments, settings, options)
}

/// Runs one seed, or many.
fn simulate(
    arguments: &Arguments,
    settings: Settings,
    options: toml::Table,
) -> Result<(), Failure> {
    let (nodes, name) = (settings.nodes, &arguments.protocol);
    let least = with_protocol(name, NodesMin)?;
    if nodes < least {
        let message = format!("--nodes {nodes}: protocol {name:?} needs at least {least} nodes");
        return Err(Failure::Usage(message));
    }
    // This rejects invalid settings. Settings drawn from the seed never override the given ones.
    check_options(name, &options)?;
    let simulator = simulator_of(name)?;
    let (drawer, fixed) = (simulator.clone(), simulator.complete(&options));
    let plan = move |seed| match settings.is_drawn {
        true => {
            let (drawn, options) = drawer.drawn_beside(seed, &options);
            (settings.beside_drawn(drawn), options)
        }
        false => (Settings { seed, ..settings.clone() }, fixed.clone()),
    };
    if let Some(seed) = arguments.seed {
        return run_one(arguments, &simulator, plan(seed));
    }
    let seeds = arguments.seeds.clone().unwrap_or(0..u64::MAX);
    let time = arguments.minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes));
    run_many(arguments, simulator, seeds, time, plan)
}

fn run_one(
    arguments: &Arguments,
    simulator: &Arc<dyn Simulator>,
    (settings, options): (Settings, toml::Table),
) -> Result<(), Failure> {
    let (seed, of_run) = (settings.seed, options.clone());
    // The file is created before the run, which may take long, so that an unwritable file is found
    // first.
    let history = arguments.history.as_ref().map(|path| create(path).map(|file| (path, file)));
    let history = history.transpose()?;
    let runner = simulator.clone();
    let run = move || runner.run(&settings, &of_run).map_err(Failure::Usage);
    let Some(report) = unless_interrupted(run)? else {
        return Err(Failure::Interrupted(format!(
            "interrupted before the run of seed {seed} ended"
        )));
    };
    let report = report?;
    say(&report.to_string())?;
    if let Some((path, file)) = history {
        write_history(&report, path, file)?;
    }
    match &report.violation {
        None => match &arguments.shrink {
            Some(path) => say(&format!(
                "  shrink      seed {seed} passes: nothing to shrink, and {} was not written",
                path.display()
            )),
            None => Ok(()),
        },
        Some(violation) => {
            let mut violation = violation.to_string();
            let mut replay = report.replay_command();
            if let Some(path) = &arguments.shrink {
                (violation, replay) =
                    shrink_to(arguments, simulator.clone(), path, (report.clone(), options))?;
            }
            Err(Failure::Failed(format!("{violation}; replay with: {replay}")))
        }
    }
}

/// Shrinks a failed run, writes the smallest one to a file, and returns its failure and the command
/// that repeats it.
fn shrink_to(
    arguments: &Arguments,
    simulator: Arc<dyn Simulator>,
    path: &Path,
    (report, options): (Report, toml::Table),
) -> Result<(String, String), Failure> {
    let table = options.clone();
    let bar = ProgressBar::new(SHRINK_RUNS_MAX)
        .with_style(ProgressStyle::with_template(SHRINK_BAR).expect("the template is a constant"));
    let shown = bar.clone();
    let run = move || {
        let watch = &mut |runs: u64, smallest: &Settings| {
            shown.set_position(runs);
            shown.set_message(size(smallest));
        };
        simulator.shrink(report, &options, SHRINK_RUNS_MAX, watch)
    };
    let shrunk = unless_interrupted(run)?;
    bar.finish_and_clear();
    let Some(Shrunk { report, runs }) = shrunk else {
        return Err(Failure::Interrupted(
            "interrupted before the smallest failing run was found".to_owned(),
        ));
    };
    let text = Scenario::text(&report.settings, &arguments.protocol, &table);
    let shown = path.display();
    std::fs::write(path, text)
        .map_err(|error| Failure::failed(format!("can't write {shown}"), error))?;
    say(&format!(
        "\nsmallest of {runs} runs: {}, {} events; written to {shown}\n{report}",
        size(&report.settings),
        report.events
    ))?;
    let scenario = Some(shown.to_string());
    let of_file = Settings { scenario, given: Vec::new(), ..report.settings };
    let violation = report.violation.expect("only failing runs are kept").to_string();
    Ok((violation, of_file.replay_command(&arguments.protocol) + " --trace"))
}

/// Returns the size of a run, for humans.
fn size(settings: &Settings) -> String {
    let faults = settings.rules.as_ref().map_or(settings.faults_max as usize, Vec::len);
    let Settings { nodes, clients_per_node, duration, .. } = settings;
    format!("{faults} faults, {nodes} nodes, {clients_per_node} clients per node, {duration}")
}

fn create(path: &Path) -> Result<File, Failure> {
    let shown = path.display();
    let cant = |error| Failure::Usage(format!("--history: can't write {shown}: {error}"));
    File::create(path).map_err(cant)
}

fn write_history(report: &Report, path: &Path, file: File) -> Result<(), Failure> {
    let what = || format!("can't write {}", path.display());
    let Some(recorded) = &report.recorded else {
        crate::warn(&format!("{}: a response in the history can't be decoded", what()));
        return Ok(());
    };
    let mut output = BufWriter::new(file);
    record::write::write(recorded, &mut output).map_err(|error| Failure::failed(what(), error))
}

fn run_many(
    arguments: &Arguments,
    simulator: Arc<dyn Simulator>,
    seeds: Range<u64>,
    time: Option<Duration>,
    plan: impl Fn(u64) -> (Settings, toml::Table) + Send + Sync + 'static,
) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (threads, all) = (arguments.threads.unwrap_or(cores), seeds.end - seeds.start);
    let so_far = Arc::new(Mutex::new(Summary::default()));
    let progress = Arc::new(Progress::new(&seeds, time));
    let extent = Extent { seeds, time, threads, is_twice: arguments.twice };
    let (latest, shown) = (so_far.clone(), progress.clone());
    let run = move || {
        let watch = &mut |summary: &Summary, failure: Option<&Report>| {
            shown.on_run(summary, failure);
            summary.clone_into(&mut latest.lock().unwrap_or_else(PoisonError::into_inner));
        };
        simulator.run_swarm(extent, &plan, watch)
    };
    let ended = unless_interrupted(run)?;
    progress.end();
    let Some(summary) = ended else {
        let summary = so_far.lock().unwrap_or_else(PoisonError::into_inner).clone();
        say(&summary.to_string())?;
        let (failed, seeds) = (summary.failures.len(), summary.seeds);
        let of_all = if time.is_some() { String::new() } else { format!(" of {all}") };
        return Err(Failure::Interrupted(format!(
            "interrupted after {seeds}{of_all} seeds, of which {failed} failed"
        )));
    };
    let (summary, broken_off) = match summary {
        Ok(summary) => (summary, None),
        Err(broken) => (broken.summary, Some(broken.why)),
    };
    if summary.seeds > 0 {
        say(&summary.to_string())?;
    }
    let Some(first) = summary.failures.first() else {
        return broken_off.map_or(Ok(()), |why| Err(Failure::Usage(why)));
    };
    let replay = first.replay_command();
    let (failed, seeds) = (summary.failures.len(), summary.seeds);
    let is_early = time.is_none() && seeds < all;
    let stopped = match broken_off {
        Some(why) => format!("aborted after {seeds} seeds: {why}; "),
        None if is_early => format!("stopped after {seeds} of {all} seeds: "),
        None => String::new(),
    };
    Err(Failure::Failed(format!(
        "{stopped}{failed} of {seeds} seeds failed; replay the first with: {replay}"
    )))
}

/// Runs some work on a separate thread. If a signal arrives first, the thread is abandoned and ends
/// with the process.
pub fn unless_interrupted<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Failure> {
    let runtime = crate::runtime(1)?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let work = move || drop(sender.send(work()));
        let thread = std::thread::Builder::new().name("work".to_owned()).spawn(work);
        thread.map_err(|error| Failure::failed("can't start a thread", error))?;
        tokio::select! {
            done = receiver => match done {
                Ok(done) => Ok(Some(done)),
                Err(_) => Err(Failure::Failed("the worker thread panicked".to_owned())),
            },
            () = signals.received() => Ok(None),
        }
    })
}

#[cfg(test)]
mod tests;
