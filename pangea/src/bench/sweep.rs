//! `pangea bench sweep`: many benchmarks by a plan, and a report of the results.
//!
//! Plans, figures and reports are in `pangea-sweep`. This module provides the parts that it does
//! not know: the available options, the resources that a run needs, and the run itself. Each run is
//! a process of this binary. Therefore the crash of a run affects no other run, and each measured
//! process is fresh.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use clap::{Args, Parser};
use pangea_baselines::Kind;
use pangea_core::workload::tpcc::Scale;
use pangea_sweep::{
    Bench, Checked, Choice, Engine, Facts, Needs, Plan, Point, Settings, Stop, fingerprint,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::report::count;
use crate::calibrate::{commit, machine};
use crate::failure::Failure;
use crate::script::Script;
use crate::signals::Signals;
use crate::sizes::Sizes;
use crate::{bench, cluster, sim};

/// Options of `pangea sim` that a prediction accepts in addition to its own.
const OF_SIM: [&str; 5] = ["workload", "protocol", "clients", "seed", "partitions"];
/// The length of the end of a failed run's output that is reported.
const LAST_WORDS_LEN: usize = 2_000;

/// Run many benchmarks by a plan, and plot the results.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(after_help = "Examples:
  pangea bench sweep plans/quick.toml
  pangea bench sweep plans/figure-6.toml --dry-run
  pangea bench sweep plans/figure-6.toml --out figure-6 --resume

Writes report.html, figures/*.svg and *.png, and runs/*.json to the directory. The whole plan is
checked before anything starts. Ctrl-C ends the current run and writes the report of the others;
--resume continues. The exit code is 1 if a run failed. docs/SWEEPS.md describes plans.")]
pub struct Arguments {
    /// TOML file with the plan
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Directory for the results and the report
    #[arg(long, value_name = "DIR", default_value = "sweep-out")]
    out: PathBuf,
    /// Keep the results of an earlier sweep and run only the missing points
    #[arg(long)]
    resume: bool,
    /// Print the runs and their estimated duration, without running them
    #[arg(long)]
    dry_run: bool,
    /// Directory for the nodes' files during a run [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// The options of a benchmark at a point of a plan.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct RealLine {
    #[command(flatten)]
    bench: bench::Arguments,
}

/// The options of a prediction at a point of a plan.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct PredictedLine {
    #[command(flatten)]
    sim: sim::Arguments,
}

/// Runs a plan.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = arguments.plan.display();
    let text = std::fs::read_to_string(&arguments.plan)
        .map_err(|error| Failure::Usage(format!("can't read the plan {path}: {error}")))?;
    let wrong = |wrong: pangea_sweep::PlanError| Failure::Usage(format!("{path}: {wrong}"));
    let plan = Plan::parse(&text).map_err(wrong)?;
    if let Some(line) = line_of_former_option(&plan) {
        let now = "peer is now baseline; the former name still works";
        crate::warn(&format!("pangea: {path}: line {line}: {now}"));
    }
    let facts = facts(arguments)?;
    let runtime = crate::runtime(1)?;
    let signals = {
        let _guard = runtime.enter();
        Signals::new()?
    };
    let data_dir = arguments.data_dir.clone();
    let mut processes = Processes { runtime, signals, data_dir };
    let checked = Checked::new(&plan, &processes, &facts).map_err(wrong)?;
    if arguments.dry_run {
        return crate::say(&pangea_sweep::outline(&plan, &checked, &processes, &facts));
    }
    let settings = Settings { out: arguments.out.clone(), resume: arguments.resume };
    let finished = pangea_sweep::run(&plan, &checked, &mut processes, &facts, &settings);
    let finished = finished.map_err(|error| match error {
        pangea_sweep::SweepError::NotEmpty(_) => Failure::Usage(error.to_string()),
        pangea_sweep::SweepError::Io(..) => Failure::Failed(error.to_string()),
    })?;
    let pangea_sweep::Finished { done, failed, left, report } = finished;
    crate::say(&format!("{}; the report is {}", count(done, "run"), report.display()))?;
    match (left, failed) {
        (0, 0) => Ok(()),
        (0, failed) => {
            Err(Failure::Failed(format!("{} failed; the report says why", count(failed, "run"))))
        }
        (left, _) => Err(Failure::Interrupted(format!(
            "interrupted: {} left; --resume continues",
            count(left, "run")
        ))),
    }
}

fn facts(arguments: &Arguments) -> Result<Facts, Failure> {
    let program = std::env::current_exe().and_then(std::fs::read);
    let program = program.map_err(|error| Failure::failed("can't read this program", error))?;
    let Arguments { plan, out, .. } = arguments;
    Ok(Facts {
        machine: machine(),
        memory_mb: memory_mb(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(),
        build: format!("{:016x}", fingerprint(&program)),
        command: format!("pangea bench sweep {} --out {}", plan.display(), out.display()),
    })
}

/// Returns the available memory, if the system reports it; otherwise infinity.
pub fn memory_mb() -> f64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.map_or(f64::INFINITY, |kib| kib * 1_024.0 / 1e6)
}

/// Runs points as processes of this binary.
struct Processes {
    runtime: tokio::runtime::Runtime,
    signals: Signals,
    data_dir: Option<PathBuf>,
}

impl Bench for Processes {
    fn choices(&self) -> Vec<Choice> {
        choices()
    }

    fn check(&self, point: &Point) -> Result<Needs, String> {
        check(point)
    }

    fn run(&mut self, point: &Point, json: &Path) -> Result<(), Stop> {
        let Self { runtime, signals, data_dir } = self;
        let mut words = words(point);
        if point.engine == Engine::Real {
            words.extend(["--json".to_owned(), json.display().to_string()]);
            words.extend(
                data_dir.iter().flat_map(|directory| {
                    ["--data-dir".to_owned(), directory.display().to_string()]
                }),
            );
        }
        let output = runtime.block_on(child(&words, signals))?;
        match point.engine {
            Engine::Real => Ok(()),
            Engine::Predicted => std::fs::write(json, output)
                .map_err(|error| Stop::Failed(format!("can't write {}: {error}", json.display()))),
        }
    }

    fn command(&self, point: &Point) -> String {
        format!("pangea {}", words(point).join(" "))
    }
}

/// Returns every option that a plan can set.
fn choices() -> Vec<Choice> {
    let of = |command: clap::Command, engine| {
        let options = command.get_arguments().flat_map(|option| {
            // Former names of options are hidden aliases.
            let names = option.get_all_aliases().unwrap_or_default().into_iter();
            let is_flag = !option.get_action().takes_values();
            let choice = |name: &str| Choice { name: name.to_owned(), is_flag, engine };
            option.get_long().into_iter().chain(names).map(choice).collect::<Vec<_>>()
        });
        options.collect::<Vec<_>>()
    };
    let mut all = of(bench::Arguments::augment_args(clap::Command::new("bench")), Engine::Real);
    let predicted = sim::prediction_options(clap::Command::new("sim"));
    all.extend(of(predicted, Engine::Predicted));
    all.extend(OF_SIM.map(|name| Choice {
        name: name.to_owned(),
        is_flag: false,
        engine: Engine::Predicted,
    }));
    // A plan sets protocol settings by their own names.
    all.retain(|choice| choice.name != "set");
    all
}

/// Returns the first line of a plan that sets an option by its former name.
fn line_of_former_option(plan: &Plan) -> Option<usize> {
    let steps = plan.axes.iter().flat_map(|axis| &axis.steps);
    let bound = plan.base.iter().chain(steps.flat_map(|step| &step.bound));
    let former = bound.filter(|bound| ["peer", "real.peer"].contains(&bound.name.as_str()));
    former.map(|bound| bound.line).min()
}

/// Returns the command line of a point.
fn words(point: &Point) -> Vec<String> {
    let mut words = match point.engine {
        Engine::Real => vec!["bench".to_owned()],
        Engine::Predicted => ["sim", "--predict", "--json"].map(str::to_owned).into(),
    };
    let mut arguments = point.arguments();
    if let Some(former) = arguments.iter_mut().find(|word| word.as_str() == "--peer") {
        "--baseline".clone_into(former);
    }
    if point.engine == Engine::Predicted {
        // `pangea sim` has --replicas for a number of regions; names have the same option.
        let regions = arguments.iter().position(|word| word == "--regions");
        if let Some(at) = regions.filter(|at| arguments[at + 1].parse::<usize>().is_ok()) {
            "--replicas".clone_into(&mut arguments[at]);
        }
    }
    words.extend(arguments);
    words
}

fn check(point: &Point) -> Result<Needs, String> {
    let words = words(point);
    let arguments = &words[1..];
    match point.engine {
        Engine::Real => {
            let line = RealLine::try_parse_from(arguments).map_err(|error| first_line(&error))?;
            let plan = line.bench.check().map_err(|failure| failure.to_string())?;
            let (workload, _) = line.bench.names();
            let needs = needs(&line.bench, &plan);
            // The fingerprint of the file makes its results invalid when the file changes.
            let file = Script::is_named(workload).then(|| std::fs::read(workload).ok()).flatten();
            let inputs = file.map_or(needs.inputs, |bytes| fingerprint(&bytes));
            Ok(Needs { inputs, ..needs })
        }
        Engine::Predicted => {
            let line = PredictedLine::try_parse_from(arguments);
            let line = line.map_err(|error| first_line(&error))?;
            line.sim.check_prediction().map_err(|failure| failure.to_string())
        }
    }
}

/// Returns the estimated resources of a benchmark.
pub fn needs(bench: &bench::Arguments, plan: &cluster::Plan) -> Needs {
    let (workload, _) = bench.names();
    let size = Size::of(workload, bench.sizes, plan.regions.len());
    let mut size = Size { nodes: plan.shards() as f64, ..size };
    if let Some(memory_mb) = plan.tuning.memory_mb {
        // Keys are always in memory, and their size is not reported. The same amount again is
        // enough for most workloads.
        size.data_mb = size.data_mb.min(2.0 * memory_mb as f64 * size.nodes);
    }
    // Data grow through all repeats.
    let secs = (bench.warmup + bench.secs * u64::from(bench.repeats)) as f64;
    match bench.baseline() {
        Some((kind, clients)) => {
            size.needs_of_baseline(kind, clients, plan.round_trip_ms_max(), secs)
        }
        None => size.needs(secs),
    }
}

/// Returns the message of a command-line error, without the usage.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// The estimated size of a workload's data.
pub struct Size {
    /// The data of one replica.
    data_mb: f64,
    /// The time to load all replicas.
    load_secs: f64,
    replicas: f64,
    /// The number of nodes over which each replica is partitioned.
    nodes: f64,
    /// The growth of one replica for each second of load.
    growth_mb_per_sec: f64,
}

impl Size {
    /// A warehouse of TPC-C in memory, with its indexes and versions. Measured: 8 warehouses took
    /// 1,830 MB a node, and 2 of them 600 MB.
    const WAREHOUSE_MB: f64 = 210.0;
    /// A YCSB row of 1 KB. Measured: 100,000 rows took 460 MB a node, and 20,000 of them 350 MB.
    const ROW_MB: f64 = 0.0014;
    /// A node without data, including the load in flight.
    const NODE_MB: f64 = 330.0;
    /// The time of one core to load three replicas of a warehouse, on the machine where that was
    /// measured.
    const WAREHOUSE_SECS: f64 = 3.3;
    /// Starting, electing a coordinator, checking and stopping.
    const AROUND_SECS: f64 = 4.0;

    /// A server of a baseline without data.
    const PEER_MB: f64 = 400.0;
    /// A session of PostgreSQL, which is a process.
    const SESSION_MB: f64 = 3.0;
    /// The ratio of a baseline's load time to Pangea's: rows are sent as text, through one server.
    const PEER_LOAD: f64 = 2.5;
    /// The increase of that ratio for each millisecond of the round trip in a lab.
    const PEER_LOAD_PER_MS: f64 = 0.01;

    /// Estimates the size from a workload's name and options.
    pub fn of(workload: &str, sizes: Sizes, replicas: usize) -> Self {
        let settings = sizes.settings(0);
        let replicas = replicas as f64;
        let rows = settings.rows as f64;
        let (data_mb, load_secs, growth_mb_per_sec) = match workload.split('-').next() {
            Some("tpcc") => {
                let part = f64::from(settings.scale.items) / f64::from(Scale::FULL.items);
                let warehouses = f64::from(settings.warehouses) * part;
                (warehouses * Self::WAREHOUSE_MB, warehouses * Self::WAREHOUSE_SECS, 10.0)
            }
            Some("ycsb") => (rows * Self::ROW_MB, rows * 1.5e-5, 0.0),
            Some("calvin") => {
                let rows = rows * f64::from(settings.shards);
                let row_mb = Self::ROW_MB / 1_000.0 * f64::from(settings.payload + 400);
                (rows * row_mb, rows * 1.5e-5, 0.0)
            }
            _ => (rows * 3e-4, 1.0, 0.0),
        };
        let load_secs = load_secs * replicas / 3.0;
        Self { data_mb, load_secs, replicas, nodes: 1.0, growth_mb_per_sec }
    }

    /// Returns the resources of a run of this duration.
    pub fn needs(&self, secs: f64) -> Needs {
        let nodes_mb = Self::NODE_MB * self.nodes;
        let replica_mb = nodes_mb + self.data_mb + self.growth_mb_per_sec * secs;
        Needs {
            memory_mb: replica_mb * self.replicas,
            secs: Self::AROUND_SECS + self.load_secs + secs,
            inputs: 0,
        }
    }

    /// Returns the resources of a run of a baseline.
    fn needs_of_baseline(&self, kind: Kind, clients: u32, rtt_ms: f64, secs: f64) -> Needs {
        // Starting, copying files to every server, checking and stopping.
        let (around_secs, session_mb) = match kind {
            Kind::Galera => (25.0, 0.5),
            Kind::Postgres => (15.0, Self::SESSION_MB),
            Kind::Etcd => (10.0, 0.0),
        };
        let load = Self::PEER_LOAD + Self::PEER_LOAD_PER_MS * rtt_ms;
        let server_mb = Self::PEER_MB + self.data_mb + self.growth_mb_per_sec * secs;
        Needs {
            memory_mb: server_mb * self.replicas + session_mb * f64::from(clients),
            secs: around_secs + load * self.load_secs + secs,
            inputs: 0,
        }
    }
}

/// Runs this binary to completion and returns its stdout. If a signal interrupts this command, the
/// child is interrupted first.
async fn child(words: &[String], signals: &mut Signals) -> Result<Vec<u8>, Stop> {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| Stop::Failed(format!("{what}: {error}"));
    let program =
        std::env::current_exe().map_err(|error| failed("can't find this program", &error))?;
    let child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A Ctrl-C reaches only this process, which forwards it once.
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| failed("can't start this program", &error))?;
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let mut ended = std::pin::pin!(output(&mut child));
    let (status, stdout, stderr) = tokio::select! {
        ended = &mut ended => ended,
        () = signals.received() => {
            if let Some(pid) = pid {
                // This fails only if the child has already exited, and its exit status does not
                // matter now.
                let _ = kill_process(pid, Signal::INT);
            }
            let _ = ended.await;
            return Err(Stop::Interrupted);
        }
    };
    match status {
        Ok(status) if status.success() => Ok(stdout),
        Ok(status) => {
            let text = String::from_utf8_lossy(&stderr);
            let own = text.lines().rev().find_map(|line| line.strip_prefix("pangea: "));
            let words = own.map_or_else(|| format!("it ended with {status}"), str::to_owned);
            Err(Stop::Failed(words.chars().take(LAST_WORDS_LEN).collect()))
        }
        Err(error) => Err(failed("can't wait for the run", &error)),
    }
}

/// Returns the output and the exit status of a process.
async fn output(child: &mut Child) -> (std::io::Result<ExitStatus>, Vec<u8>, Vec<u8>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let stdout = stdout.as_mut().expect("the output is a pipe");
    let stderr = stderr.as_mut().expect("the output is a pipe");
    // Output that cannot be read is ignored: only the exit status matters.
    let _ = tokio::join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
    (child.wait().await, out, err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::MessageKinds;
    use crate::protocol::with_protocol;
    use pangea_sim::predict::costs::{Costs, Line, Unit, kinds, unit_of};

    fn facts() -> Facts {
        Facts {
            machine: String::new(),
            memory_mb: 20_000.0,
            version: String::new(),
            commit: String::new(),
            build: String::new(),
            command: String::new(),
        }
    }

    /// Checks plans without running anything.
    struct Looking;

    impl Bench for Looking {
        fn choices(&self) -> Vec<Choice> {
            choices()
        }

        fn check(&self, point: &Point) -> Result<Needs, String> {
            check(point)
        }

        fn run(&mut self, _: &Point, _: &Path) -> Result<(), Stop> {
            panic!("nothing is run")
        }

        fn command(&self, point: &Point) -> String {
            words(point).join(" ")
        }
    }

    /// Costs with the same value everywhere.
    fn every_cost(protocol: &str) -> String {
        let messages = with_protocol(protocol, MessageKinds).unwrap();
        let line = |kind: &str| {
            let grows = unit_of(kind) != Some(Unit::Nothing);
            let per_unit_ns = if grows { 1_000.0 } else { 0.0 };
            Line { fixed_ns: 1_000.0, per_unit_ns, samples: 9, ..Line::default() }
        };
        let lines = kinds(messages).map(|kind| (kind.to_owned(), line(kind))).collect();
        let fsync_us = vec![100.0, 200.0, 300.0];
        Costs { fsync_us, wire_bytes_per_byte: 1.0, lines, ..Costs::default() }.to_toml()
    }

    fn checked(text: &str) -> Result<Checked, String> {
        let plan = Plan::parse(text).map_err(|wrong| wrong.to_string())?;
        Checked::new(&plan, &Looking, &facts()).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn the_plans_that_are_ready_can_be_run() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plans");
        let scratch = tempfile::tempdir().unwrap();
        // In the format of `pangea calibrate`.
        let costs_of = |protocol| {
            let path = scratch.path().join(format!("{protocol}.toml"));
            std::fs::write(&path, every_cost(protocol)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (minerva, calvin) = (costs_of("minerva"), costs_of("calvin"));
        let mut count = 0;
        for file in std::fs::read_dir(&directory).expect("there are plans") {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "toml") {
                continue;
            }
            // Replaces each file of costs in the plan, whatever its name.
            let text = std::fs::read_to_string(&path).unwrap();
            let text: Vec<&str> = (text.split('"'))
                .map(|piece| match piece.strip_prefix("costs-") {
                    Some(name) if name.starts_with("calvin") => calvin.as_str(),
                    Some(_) => minerva.as_str(),
                    None => piece,
                })
                .collect();
            let text = text.join("\"");
            let points = checked(&text).map(|checked| checked.points.len());
            assert!(points.as_ref().is_ok_and(|count| *count > 0), "{path:?}: {points:?}");
            count += 1;
        }
        assert!(count >= 9, "a plan for each figure, and a quick one: {count}");
    }

    #[test]
    fn values_are_refused_as_on_a_command_line_with_the_line_of_the_plan() {
        for (lines, said) in [
            ("workload = 'chess'", "line 3: there is no workload \"chess\"; expected one of"),
            ("workload = 'bank'\nrtt = 99999", "line 4: --rtt 99999: must be from 0"),
            ("workload = 'bank'\nsecs = 0", "line 4: invalid value '0' for '--secs <S>'"),
            ("workload = 'bank'\nzipf = 0.9", "line 4: --zipf does not apply to --workload bank"),
            ("workload = 'bank'\nminerva.speed = 9", "line 4: --set: unknown field `speed`"),
            (
                "workload = 'bank'\nclient = 9",
                "line 4: there is no option \"client\"; did you mean",
            ),
            ("workload = 'bank'\nfault = 'kill:x@1+1'", "line 4: --fault kill:x@1+1: there is no"),
            ("workload = 'tpcc'\nwarehouses = 100", "of memory, but only 20000 MB are free"),
            ("workload = 'bank'\nset = 'minerva.epoch_ms=1'", "there is no option \"set\""),
            (
                "workload = 'bank'\ncosts = 'c'",
                "line 4: --costs is an option of pangea sim --predict",
            ),
        ] {
            let error = checked(&format!("title = 'T'\n[base]\n{lines}\n")).unwrap_err();
            assert!(error.contains(said), "{lines}: {error}");
        }
    }

    #[test]
    fn a_baseline_is_one_of_a_sweep_where_it_has_the_workload() {
        let plan = |baseline: &str, workload: &str| {
            let base = format!("workload = '{workload}'\nregions = 3\nbaseline = '{baseline}'");
            checked(&format!("title = 'T'\n[base]\n{base}\n")).map(|checked| checked.points.len())
        };
        assert_eq!(plan("postgres", "ycsb-a"), Ok(1));
        let refused = plan("etcd", "tpcc-nopay").unwrap_err();
        assert!(refused.contains("etcd does not run tpcc-nopay;"), "{refused}");
    }

    #[test]
    fn the_former_name_of_an_option_is_noticed_and_replaced() {
        let plan = |option: &str| {
            let text = format!("title = 'T'\n[base]\nworkload = 'ycsb-a'\n{option} = 'etcd'\n");
            let plan = Plan::parse(&text).unwrap();
            let points = pangea_sweep::points::expand(&plan).unwrap();
            (line_of_former_option(&plan), words(&points[0]).join(" "))
        };
        let expected = "bench --baseline etcd --workload ycsb-a".to_owned();
        assert_eq!(plan("baseline"), (None, expected.clone()));
        assert_eq!(plan("peer"), (Some(4), expected.clone()));
        assert_eq!(plan("real.peer"), (Some(4), expected));
        let series = "title = 'T'\n[base]\nworkload = 'ycsb-a'\n[[series]]\nname = 'etcd'\n\
                      peer = 'etcd'\n";
        assert_eq!(line_of_former_option(&Plan::parse(series).unwrap()), Some(6));
    }

    #[test]
    fn each_partition_is_a_node_that_takes_memory() {
        let of = |options: &str| {
            let line = format!("--workload ycsb-a --protocol calvin --rows 100000 {options}");
            let line = RealLine::try_parse_from(line.split_whitespace()).unwrap();
            needs(&line.bench, &line.bench.check().unwrap()).memory_mb
        };
        let more = of("--partitions 3") - of("");
        assert!((more - 2.0 * 3.0 * Size::NODE_MB).abs() < 1.0, "{more} MB more");
        let limited = of("--partitions 2 --memory-mb 10") - of("--memory-mb 10");
        assert!((limited - 3.0 * (Size::NODE_MB + 20.0)).abs() < 1.0, "{limited} MB more");
    }

    #[test]
    fn a_prediction_has_replicas_where_a_benchmark_has_regions() {
        let text = "title = 'T'\n[base]\nworkload = 'bank'\nregions = 5\n[sweep]\n\
                    engine = ['real', 'predicted']\n";
        let points = pangea_sweep::points::expand(&Plan::parse(text).unwrap()).unwrap();
        assert_eq!(words(&points[0]).join(" "), "bench --regions 5 --workload bank");
        let predicted = "sim --predict --json --replicas 5 --workload bank";
        assert_eq!(words(&points[1]).join(" "), predicted);
    }
}
