//! `pangea advise`: recommends a protocol and its settings for a workload in given regions.
//!
//! ```text
//!   work, regions --> candidates: every protocol, with each of its variants
//!   costs ---------->   | predicted: the full load, with and without the loss of a region
//!                       v
//!                     ranked --> finalists --> a load that this machine sustains: predicted, and
//!                       |                        | run on real nodes, with and without a kill
//!                       v                        v
//!                     table, and three sentences that follow from the numbers
//! ```
//!
//! The protocols are those of [`crate::protocol::NAMES`]. Each protocol declares its own variants
//! and guarantees; this module knows no protocol by name. An SQL file cannot be simulated: each
//! candidate is then run on real nodes, and the report says so.
//!
//! - [`files`]: the user's input files;
//! - [`predicted`]: the candidates and their simulated performance;
//! - [`real`]: their performance on this machine;
//! - [`advice`]: the choice, as a function of the numbers;
//! - [`report`]: the table and the JSON.

mod advice;
mod files;
mod predicted;
mod real;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use pangea_sim::predict::Costs;

use crate::calibrate::{self, MessageKinds};
use crate::cluster::Plan;
use crate::failure::Failure;
use crate::protocol::{NAMES, NodesMin, with_protocol};
use crate::script::Script;
use advice::{Need, Row};
use files::{Places, Work};
use predicted::{Candidate, Candidates, Predictions};
use report::Report;

/// The measured time and the warm-up of an automatic calibration.
const CALIBRATE_SECS: u64 = 4;
const CALIBRATE_WARMUP_SECS: u64 = 2;
/// The largest number of clients, or of calls a second, of an automatic calibration: it need not
/// saturate the machine.
const CALIBRATE_LOAD_MAX: u32 = 300;

/// Recommend a protocol and its settings for a workload in given regions, with the reasons.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(after_help = "Examples:
  pangea advise --workload workloads/payments.toml --regions workloads/atlantic.toml
  pangea advise --workload w.toml --regions r.toml --costs costs.toml --finalists 1
  pangea advise --workload w.toml --regions r.toml --json > advice.json

Simulates every protocol and each of its variants over the round trips of --regions, with and
without the loss of a region. Then runs the best on real nodes on this machine, with the round trips
emulated and as much load as the machine supports. Without --costs, the costs are measured first.
An SQL file is not simulated, only run on real nodes. docs/ADVICE.md describes the files.")]
pub struct Arguments {
    /// TOML file with the workload and its load
    #[arg(long, value_name = "FILE")]
    workload: PathBuf,
    /// TOML file with the regions, their round trips and the cores of a node
    #[arg(long, value_name = "FILE")]
    regions: PathBuf,
    /// Costs of one protocol, as written by `pangea calibrate`; may be given once for each protocol
    /// [default: measure them for some seconds]
    #[arg(long, value_name = "FILE")]
    costs: Vec<PathBuf>,
    /// Protocols to choose from [default: all]
    #[arg(long = "protocol", value_name = "NAME,..", value_delimiter = ',')]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    protocols: Vec<String>,
    /// Number of best candidates to run on real nodes; 0 for none
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=5))]
    finalists: u8,
    /// Measured time of each run, in seconds, both simulated and real
    #[arg(long, value_name = "S", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    secs: u64,
    /// Warm-up before the measured time, in seconds
    #[arg(long, value_name = "S", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=3_600))]
    warmup: u64,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory for the nodes' files while they run [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

/// The parsed input.
struct Question<'a> {
    arguments: &'a Arguments,
    work: Work,
    places: Places,
    candidates: Vec<Candidate>,
    need: Need,
}

impl<'a> Question<'a> {
    /// Reads and validates the input.
    fn new(arguments: &'a Arguments) -> Result<Self, Failure> {
        let places = Places::read(&arguments.regions)?;
        let work = Work::read(&arguments.workload, places.regions.len())?;
        let names: Vec<String> = match arguments.protocols.is_empty() {
            true => NAMES.iter().map(|name| (*name).to_owned()).collect(),
            false => arguments.protocols.clone(),
        };
        let mut candidates = Vec::new();
        for name in &names {
            let (found, least) = (places.regions.len(), with_protocol(name, NodesMin)?);
            if found < least {
                let message =
                    format!("protocol {name} needs at least {least} regions, not {found}");
                return Err(Failure::Usage(message));
            }
            candidates.extend(with_protocol(name, Candidates)??);
        }
        let rate_per_sec = work.rate.map(|rate| rate * places.regions.len() as f64);
        let need = Need { guarantee: work.guarantee, rate_per_sec };
        let question = Self { arguments, work, places, candidates, need };
        // Validates the first real run, which detects impossible requests before any work is done.
        let (clients, rate) = question.load();
        let bench = question.bench(&question.candidates[0], clients, rate, &[])?;
        question.plan(&bench)?.check()?;
        bench.script()?;
        Ok(question)
    }

    /// Clients and calls a second in all regions.
    fn load(&self) -> (u32, Option<f64>) {
        (self.work.clients * self.places.regions.len() as u32, self.need.rate_per_sec)
    }

    /// Returns the protocols of the candidates, in order.
    fn protocols(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = self.candidates.iter().map(|it| it.protocol).collect();
        names.dedup();
        names
    }

    /// Returns the benchmark of a candidate.
    fn bench(
        &self,
        candidate: &Candidate,
        clients: u32,
        rate: Option<f64>,
        more: &[String],
    ) -> Result<crate::bench::Arguments, Failure> {
        let mut words = self.work.words(clients, rate);
        let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
        add("--regions", self.places.regions.join(","));
        add("--rtt", "0".to_owned());
        add("--protocol", candidate.protocol.to_owned());
        add("--seed", self.arguments.seed.to_string());
        candidate.settings.iter().for_each(|setting| add("--set", setting.to_string()));
        if let Some(path) = &self.arguments.data_dir {
            add("--data-dir", path.display().to_string());
        }
        words.extend(more.iter().cloned());
        files::bench_of(&words)
    }

    /// Returns the cluster of that benchmark, with the round trips of the regions.
    fn plan(&self, bench: &crate::bench::Arguments) -> Result<Plan, Failure> {
        Ok(Plan { round_trips: self.places.round_trips.clone(), ..bench.plan()? })
    }
}

/// Reads the files and prints the recommendation.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let question = Question::new(arguments)?;
    let report = match Script::is_named(&question.work.workload) {
        true => {
            if !arguments.costs.is_empty() {
                let message = "--costs: an SQL file is run on real nodes, and nothing is \
                               predicted; leave it out";
                return Err(Failure::Usage(message.to_owned()));
            }
            let name = &question.work.workload;
            crate::warn(&format!(
                "{name} is an SQL file, which the simulator does not run: every row is measured on \
                 this machine, at the given load, which is not reduced"
            ));
            Report::new(&question, real::rows(&question)?, BTreeMap::new())
        }
        false => predicted_and_checked(&question)?,
    };
    match arguments.json {
        true => crate::say(report.to_json().trim_end()),
        false => crate::say(report.to_string().trim_end()),
    }
}

fn predicted_and_checked(question: &Question<'_>) -> Result<Report, Failure> {
    let costs = costs(question)?;
    let predictions = Predictions::new(question, &costs)?;
    let mut rows: Vec<Row> = predictions.rows()?;
    let finalists = usize::from(question.arguments.finalists);
    let mut tried = Vec::new();
    while let Some(at) = advice::next_to_try(&rows, &question.need, &tried, finalists) {
        rows[at].check = real::check(question, &predictions, &question.candidates[at])?;
        tried.push(at);
    }
    let calibrations = costs.iter().map(|(name, costs)| (*name, costs.calibration.clone()));
    Ok(Report::new(question, rows, calibrations.collect()))
}

/// Returns the costs of every protocol, from files or measured now.
fn costs(question: &Question<'_>) -> Result<BTreeMap<&'static str, Arc<Costs>>, Failure> {
    let mut all = BTreeMap::new();
    for path in &question.arguments.costs {
        let shown = path.display();
        let wrong = |error: String| Failure::Usage(format!("--costs {shown}: {error}"));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let name = calibrated_protocol(&text).map_err(wrong)?;
        let known = question.protocols().into_iter().find(|known| *known == name);
        let known = known.ok_or_else(|| {
            wrong(format!("protocol {name} is not among the protocols to choose from"))
        })?;
        let costs = Costs::parse(&text, with_protocol(known, MessageKinds)?).map_err(wrong)?;
        let of = &costs.calibration.workload;
        if *of != question.work.workload {
            let workload = &question.work.workload;
            crate::warn(&format!(
                "--costs {shown}: the costs were measured with {of}, but {workload} is predicted: \
                 the costs of its transactions differ"
            ));
        }
        all.insert(known, Arc::new(costs));
    }
    for name in question.protocols() {
        if !all.contains_key(name) {
            all.insert(name, Arc::new(calibrated(question, name)?));
        }
    }
    Ok(all)
}

fn calibrated_protocol(text: &str) -> Result<String, String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| error.message().replace('\n', " "))?;
    let name = table.get("calibration").and_then(|it| it.get("protocol")?.as_str());
    name.map(str::to_owned).ok_or_else(|| "[calibration] has no protocol".to_owned())
}

/// Measures the costs of a protocol under this workload, for some seconds.
fn calibrated(question: &Question<'_>, name: &str) -> Result<Costs, Failure> {
    let (clients, rate) = question.load();
    let clients = clients.min(CALIBRATE_LOAD_MAX);
    let rate = rate.map(|rate| rate.min(f64::from(CALIBRATE_LOAD_MAX)));
    let load = match rate {
        Some(rate) => format!("{rate} calls a second"),
        None => format!("{clients} clients"),
    };
    crate::warn(&format!(
        "no --costs of {name}: measuring them for {CALIBRATE_SECS} s with {load} (`pangea \
         calibrate` measures for longer)"
    ));
    let plain = question.candidates.iter().find(|it| it.protocol == name);
    let plain = plain.expect("every protocol has a candidate with its defaults");
    let secs = [("--secs", CALIBRATE_SECS), ("--warmup", CALIBRATE_WARMUP_SECS)];
    let more: Vec<String> =
        secs.iter().flat_map(|(name, secs)| [(*name).to_owned(), secs.to_string()]).collect();
    let bench = question.bench(plain, clients, rate, &more)?;
    let plan = question.plan(&bench)?;
    calibrate::measure(&bench, plan)
}

/// Creates a progress bar on stderr, if that is a terminal.
fn bar(steps: usize, prefix: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>8} {wide_bar} {pos}/{len} {msg}");
    let style = style.expect("the template is a constant");
    ProgressBar::new(steps as u64).with_style(style).with_prefix(prefix.to_owned())
}
