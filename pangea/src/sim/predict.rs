//! `pangea sim --predict`: throughput and latency on given machines, from measured costs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pangea_core::time::Span;
use pangea_core::txn::Registry;
use pangea_core::workload::{self, Workload};
use pangea_sim::predict::{self, Cores, Costs, Latency, Loaded, Prediction, REPLICAS};
use pangea_sweep::{Needs, fingerprint};
use serde::Serialize;

use super::unless_interrupted;
use crate::bench::Size;
use crate::bench::scripted::not_simulated;
use crate::calibrate::MessageKinds;
use crate::cluster::{Plan, Regions};
use crate::failure::Failure;
use crate::protocol::{
    CheckTable, SupportsPartitions, check_options, options_table, simulator_of, with_protocol,
};
use crate::script::Script;
use crate::sizes::Sizes;
use crate::table::numbers;

/// The maximum number of cores, of a node or in total: a larger number is probably a mistake.
const CORES_MAX: i64 = 1_024;
/// The maximum bandwidth of a link, in megabits a second.
const BANDWIDTH_MBIT_MAX: u64 = 1_000_000;

/// The options of predictions.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "With --predict")]
pub struct Arguments {
    /// Predict throughput and latency from measured costs
    #[arg(long, requires = "costs", conflicts_with_all = super::NOT_PREDICTED)]
    pub predict: bool,
    /// Costs, as written by `pangea calibrate`
    #[arg(long, value_name = "FILE", requires = "predict")]
    costs: Option<PathBuf>,
    /// Number of replicas: 3 to 15, or 1; predict several with 3,5,7 [default: 3, or one in each
    /// named region]
    #[arg(long, value_name = "N,N,...", requires = "predict", value_delimiter = ',')]
    replicas: Vec<usize>,
    /// Cloud regions: us-east,eu-west,...; each prediction uses the first ones, one for each
    /// replica
    #[arg(long, value_name = "A,B,C", requires = "predict", conflicts_with = "matrix")]
    regions: Option<Regions>,
    /// CSV file with round trips in ms and names in the first line and column; each prediction uses
    /// the first ones
    #[arg(long, value_name = "FILE", requires = "predict")]
    matrix: Option<PathBuf>,
    /// Round trip between any two regions, in ms [default: 50, or the distance between the named
    /// regions]
    #[arg(long, value_name = "MS", requires = "predict", conflicts_with = "matrix")]
    rtt: Option<f64>,
    /// Round trip between two nodes of a region, in ms, with --partitions
    #[arg(long, value_name = "MS", default_value_t = 0.2, requires = "predict")]
    local_rtt: f64,
    /// Bandwidth of a link between two replicas, in Mbit/s [default: unlimited]
    #[arg(long, value_name = "MBIT", requires = "predict")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=BANDWIDTH_MBIT_MAX))]
    bandwidth: Option<u64>,
    /// Cores of each node; clients run on other machines [default: 8]
    #[arg(long, value_name = "N", requires = "predict", conflicts_with = "shared_cores")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=CORES_MAX))]
    cores: Option<u16>,
    /// Cores of a single machine that all nodes and clients share
    #[arg(long, value_name = "N", requires = "predict")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=CORES_MAX))]
    shared_cores: Option<u16>,
    /// Measured time, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, requires = "predict")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    secs: u64,
    /// Warm-up before the measured time, in seconds
    #[arg(long, value_name = "S", default_value_t = 5, requires = "predict")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=3_600))]
    warmup: u64,
    /// Print JSON instead of tables
    #[arg(long, requires = "predict")]
    json: bool,
    #[command(flatten)]
    sizes: Sizes,
}

impl Arguments {
    /// Returns the first option for the size of the workload that is given, if any.
    pub fn sizes_given(&self) -> Option<&'static str> {
        self.sizes.given()
    }
}

/// A prediction, with the options from other parts of the command line.
pub struct Predict<'a> {
    /// The options of predictions.
    pub arguments: &'a Arguments,
    /// The workload's name.
    pub workload: &'a str,
    /// Clients in all regions.
    pub clients: usize,
    /// The number of nodes of each region over which tables are partitioned.
    pub partitions: u16,
    /// The seed of all random choices.
    pub seed: u64,
    /// The protocol's settings.
    pub options: toml::Table,
}

/// Adds the options of predictions to a command.
pub fn options(command: clap::Command) -> clap::Command {
    <Arguments as clap::Args>::augment_args(command)
}

impl super::Arguments {
    /// Returns the requested prediction.
    ///
    /// # Errors
    /// If a setting belongs to another protocol.
    pub fn prediction(&self) -> Result<Predict<'_>, Failure> {
        Ok(Predict {
            arguments: &self.predict,
            workload: &self.workload,
            clients: self.clients,
            partitions: self.partitions,
            seed: self.seed.unwrap_or(1),
            options: options_table(&self.protocol, &self.settings)?,
        })
    }

    /// Checks that the prediction is possible, without running it, and returns its estimated
    /// resources.
    ///
    /// # Errors
    /// The reason why it is not possible.
    pub fn check_prediction(&self) -> Result<Needs, Failure> {
        let prediction = self.prediction()?;
        let table = CheckTable(&prediction.options);
        let setting = |option| Failure::Usage(format!("--set: {option}"));
        with_protocol(&self.protocol, table)?.map_err(setting)?;
        prediction.workload()?;
        prediction.costs(with_protocol(&self.protocol, MessageKinds)?)?;
        prediction.check_local_rtt()?;
        let replicas = prediction.replicas()?;
        for replicas in &replicas {
            prediction.matrix(&self.protocol, *replicas)?;
        }
        let most = replicas.into_iter().max().expect("there is at least one");
        let secs = (self.predict.secs + self.predict.warmup) as f64;
        let needs = Size::of(&self.workload, self.predict.sizes, most).needs(secs);
        let costs = self.predict.costs.as_deref().and_then(|path| std::fs::read(path).ok());
        let inputs = costs.map_or(0, |bytes| fingerprint(&bytes));
        // The loads of the nodes are simulated one after the other on one core, each in about the
        // time that it would really take.
        let nodes = most as f64 * f64::from(self.partitions);
        Ok(Needs { secs: needs.secs + secs * nodes, inputs, ..needs })
    }
}

/// The distances of regions.
#[derive(Clone, Debug, PartialEq)]
struct Matrix {
    regions: Vec<String>,
    one_way: Vec<Vec<Span>>,
}

#[derive(Serialize)]
struct Json<'a> {
    note: &'static str,
    costs: &'a predict::Calibration,
    predictions: &'a [Prediction],
}

impl Predict<'_> {
    /// Runs the predictions and prints them.
    ///
    /// # Errors
    /// If a setting is invalid, or the simulation failed or was interrupted.
    pub fn run(self, protocol: &str) -> Result<(), Failure> {
        check_options(protocol, &self.options)?;
        if self.partitions > 1 && !with_protocol(protocol, SupportsPartitions)? {
            let message = format!("--partitions: {protocol} stores all rows on each node");
            return Err(Failure::Usage(message));
        }
        let (simulator, options) = (simulator_of(protocol)?, self.options.clone());
        self.check_local_rtt()?;
        let (workload, registry) = self.workload()?;
        let costs = self.costs(with_protocol(protocol, MessageKinds)?)?;
        let mut runs = Vec::new();
        for replicas in self.replicas()? {
            let Matrix { regions, one_way } = self.matrix(protocol, replicas)?;
            runs.push(predict::Settings {
                seed: self.seed,
                regions,
                partitions: workload.partitions(self.partitions),
                one_way,
                bandwidth_bits: self.arguments.bandwidth.map(|mbit| mbit * 1_000_000),
                clients: self.clients,
                pace: predict::ArrivalModel::Closed,
                loss: None,
                warmup: Span::from_ms(self.arguments.warmup * 1_000),
                duration: Span::from_ms(self.arguments.secs * 1_000),
                cores: self.cores(),
                workload: workload.clone(),
                registry: registry.clone(),
            });
        }
        let (is_table, calibrated) = (runs.len() > 1, costs.calibration.clone());
        let work = move || -> Result<Vec<Prediction>, String> {
            let loaded = Loaded::new(&workload, &registry)?;
            let run = |settings| {
                let prediction = simulator.predict(settings, &options, &costs, &loaded)?;
                if is_table {
                    let Prediction { replicas, throughput_per_sec, .. } = prediction;
                    crate::warn(&format!("{replicas} replicas: {throughput_per_sec:.0}/s"));
                }
                Ok(prediction)
            };
            runs.iter().map(run).collect()
        };
        let Some(predictions) = unless_interrupted(work)? else {
            return Err(Failure::Interrupted(
                "interrupted before the prediction was complete".to_owned(),
            ));
        };
        let predictions = predictions.map_err(Failure::Failed)?;
        if self.workload != calibrated.workload {
            crate::warn(&format!(
                "the costs were measured with {}, but {} is predicted: the costs of its \
                 transactions differ",
                calibrated.workload, self.workload
            ));
        }
        if self.arguments.json {
            let note = "predicted, not measured";
            let json = Json { note, costs: &calibrated, predictions: &predictions };
            let text = serde_json::to_string_pretty(&json).expect("numbers and names");
            return crate::say(&text);
        }
        crate::say(&self.in_words(&calibrated, &predictions))
    }
}

impl Predict<'_> {
    fn costs(&self, messages: &'static [&'static str]) -> Result<Costs, Failure> {
        let path = self.arguments.costs.as_deref().expect("--predict requires --costs");
        let wrong = |error: String| Failure::Usage(format!("--costs {}: {error}", path.display()));
        let text = std::fs::read_to_string(path)
            .map_err(|error| wrong(format!("{error}; `pangea calibrate` writes this file")))?;
        Costs::parse(&text, messages).map_err(wrong)
    }

    fn workload(&self) -> Result<(Workload, Arc<Registry>), Failure> {
        if Script::is_named(self.workload) {
            return Err(not_simulated(self.workload));
        }
        let workload = Workload::named(self.workload, &self.arguments.sizes.settings(self.seed));
        let workload = workload.map_err(|error| Failure::Usage(error.to_string()))?;
        self.arguments.sizes.check(self.workload)?;
        if self.clients == 0 {
            return Err(Failure::Usage("--clients 0: must be at least 1".to_owned()));
        }
        Ok((workload, Arc::new(Registry::new(workload::procedures()))))
    }

    fn cores(&self) -> Cores {
        match (self.arguments.shared_cores, self.arguments.cores) {
            (Some(cores), _) => Cores::Shared(cores.into()),
            (None, cores) => Cores::Each(cores.unwrap_or(8).into()),
        }
    }

    fn replicas(&self) -> Result<Vec<usize>, Failure> {
        let mut all = self.arguments.replicas.clone();
        if all.is_empty() {
            all.push(match &self.arguments.regions {
                Some(Regions::Named(names)) => names.len(),
                Some(Regions::Count(count)) => *count,
                None => *REPLICAS.start(),
            });
        }
        // A single replica is the baseline for comparisons, and the nodes of one region may share
        // the tables.
        let is_fit = |count: usize| {
            let is_few = count == 1 || self.partitions > 1 && count > 0;
            REPLICAS.contains(&count) || is_few && count < *REPLICAS.start()
        };
        match all.iter().find(|count| !is_fit(**count)) {
            None => Ok(all),
            Some(count) => {
                let (least, most) = (REPLICAS.start(), REPLICAS.end());
                let message = format!("--replicas {count}: must be 1, or from {least} to {most}");
                Err(Failure::Usage(message))
            }
        }
    }

    /// Returns the distances of the first regions, one for each replica.
    fn matrix(&self, protocol: &str, replicas: usize) -> Result<Matrix, Failure> {
        let too_few = |option: &str, found: usize| {
            let message = format!("--replicas {replicas}: {option} has {found} regions");
            Err(Failure::Usage(message))
        };
        let regions = match (&self.arguments.matrix, &self.arguments.regions) {
            (Some(path), _) => {
                let mut matrix = read_matrix(path)?;
                if matrix.regions.len() < replicas {
                    return too_few("--matrix", matrix.regions.len());
                }
                matrix.regions.truncate(replicas);
                matrix.one_way.truncate(replicas);
                matrix.one_way.iter_mut().for_each(|row| row.truncate(replicas));
                return Ok(self.with_local(matrix));
            }
            (None, Some(Regions::Named(names))) if names.len() < replicas => {
                return too_few("--regions", names.len());
            }
            (None, Some(Regions::Named(names))) => Regions::Named(names[..replicas].to_vec()),
            (None, Some(Regions::Count(_)) | None) => Regions::Count(replicas),
        };
        let plan = regions.plan(protocol, self.arguments.rtt)?;
        plan.check()?;
        Ok(self.with_local(Matrix::of(&plan)))
    }

    /// Adds the distance between nodes of one region.
    fn with_local(&self, mut matrix: Matrix) -> Matrix {
        if self.partitions > 1 {
            let local = one_way(self.arguments.local_rtt);
            matrix.one_way.iter_mut().enumerate().for_each(|(region, row)| row[region] = local);
        }
        matrix
    }

    fn check_local_rtt(&self) -> Result<(), Failure> {
        match self.arguments.local_rtt {
            ms if (0.0..=1_000.0).contains(&ms) => Ok(()),
            ms => Err(Failure::Usage(format!("--local-rtt {ms}: must be from 0 to 1000"))),
        }
    }

    fn in_words(&self, costs: &predict::Calibration, all: &[Prediction]) -> String {
        let cores = match self.cores() {
            Cores::Each(cores) => format!("{cores} cores per node"),
            Cores::Shared(cores) => format!("{cores} shared cores"),
        };
        let (workload, clients) = (self.workload, self.clients);
        let mut text = String::new();
        match all {
            [one] => text.push_str(&details(one)),
            all => {
                let mut table = numbers(&[
                    "replicas",
                    "txn/s",
                    "p50 ms",
                    "p95 ms",
                    "p99 ms",
                    "CPU us",
                    "WAN bytes",
                    "loop",
                    "limit",
                ]);
                for one in all {
                    let Latency { p50, p95, p99 } = one.latency_ms;
                    let busy = one.servers.iter().find(|server| server.name == "event loop");
                    table.add_row([
                        one.replicas.to_string(),
                        format!("{:.0}", one.throughput_per_sec),
                        format!("{p50:.1}"),
                        format!("{p95:.1}"),
                        format!("{p99:.1}"),
                        format!("{:.1}", one.cpu_us_per_txn),
                        format!("{:.0}", one.wan_bytes_per_txn),
                        format!("{:.0} %", busy.map_or(0.0, |it| it.utilisation) * 100.0),
                        one.bottleneck.clone(),
                    ]);
                }
                let _ = writeln!(text, "{table}\n");
            }
        }
        let _ = write!(
            text,
            "predicted, not measured: {workload}, {clients} clients, {cores}; costs of {} on {}, \
             {}, commit {}",
            costs.workload, costs.machine, costs.date, costs.commit
        );
        text
    }
}

fn details(one: &Prediction) -> String {
    let mut regions = numbers(&["region", "txn/s", "p50 ms", "p95 ms", "p99 ms"]);
    let mut add = |name: &str, rate: f64, Latency { p50, p95, p99 }: Latency| {
        let ms = [p50, p95, p99].map(|ms| format!("{ms:.1}"));
        let cells = [vec![name.to_owned(), format!("{rate:.0}")], ms.to_vec()].concat();
        regions.add_row(cells);
    };
    for region in &one.regions {
        add(&region.name, region.throughput_per_sec, region.latency_ms);
    }
    add("all", one.throughput_per_sec, one.latency_ms);
    let percent = |of: f64| format!("{:.1} %", of * 100.0);
    let shares = one.shares.iter().map(|(name, share)| format!("{} {name}", percent(*share)));
    let servers = one.servers.iter().map(|server| {
        format!("{} {} ({})", server.name, percent(server.utilisation), server.region)
    });
    let list = |parts: Vec<String>| parts.join(", ");
    let mut text = format!("{regions}\n\n");
    let _ = writeln!(text, "  aborts       {}", one.aborted);
    let _ = writeln!(text, "  executions   {}", list(shares.collect()));
    let _ = writeln!(text, "  cpu a txn    {:.1} us, all nodes together", one.cpu_us_per_txn);
    let _ = writeln!(text, "  WAN          {:.0} bytes a txn", one.wan_bytes_per_txn);
    let _ = writeln!(text, "  busy         {}", list(servers.collect()));
    let _ = writeln!(text, "  limited by   {}", one.bottleneck);
    text
}

impl Matrix {
    fn of(plan: &Plan) -> Self {
        let row = |a: &String| {
            let one_way = |b: &String| one_way(plan.round_trip_ms(a, b));
            plan.regions.iter().map(one_way).collect()
        };
        let one_way = plan.regions.iter().map(row).collect();
        Self { regions: plan.regions.clone(), one_way }
    }
}

fn one_way(round_trip_ms: f64) -> Span {
    Span::from_us((round_trip_ms * 500.0) as u64)
}

/// Reads round trips: names in the first line and in the first column, in the same order.
fn read_matrix(path: &Path) -> Result<Matrix, Failure> {
    let wrong = |error: String| Failure::Usage(format!("--matrix {}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    parse_matrix(&text).map_err(wrong)
}

fn parse_matrix(text: &str) -> Result<Matrix, String> {
    /// The protocol's timers do not support longer round trips; a node has the same limit.
    const ROUND_TRIP_MS_MAX: f64 = 4_000.0;
    let cells = |line: &str| line.split(',').map(|it| it.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or("the file is empty; expected region,a,b,c")?;
    let regions: Vec<String> = cells(header).into_iter().skip(1).collect();
    if let Some(name) = regions.iter().enumerate().find(|(at, it)| regions[..*at].contains(it)) {
        return Err(format!("line 1: region {:?} is listed twice", name.1));
    }
    let mut delays = Vec::new();
    for (at, line) in lines {
        let at = at + 1;
        let row = cells(line);
        let expected = regions
            .get(delays.len())
            .ok_or_else(|| format!("line {at}: expected {} lines of round trips", regions.len()))?;
        if row[0] != *expected {
            return Err(format!("line {at}: expected region {expected:?}, found {:?}", row[0]));
        }
        if row.len() != regions.len() + 1 {
            let (found, expected) = (row.len() - 1, regions.len());
            return Err(format!("line {at}: expected {expected} round trips, found {found}"));
        }
        let read = |cell: &String| match cell.parse::<f64>() {
            Ok(ms) if (0.0..=ROUND_TRIP_MS_MAX).contains(&ms) => Ok(one_way(ms)),
            _ => Err(format!(
                "line {at}: {cell:?} is not a round trip from 0 to {ROUND_TRIP_MS_MAX} ms"
            )),
        };
        delays.push(row[1..].iter().map(read).collect::<Result<Vec<_>, _>>()?);
    }
    if delays.len() != regions.len() {
        let (found, expected) = (delays.len(), regions.len());
        return Err(format!("expected {expected} lines of round trips, found {found}"));
    }
    Ok(Matrix { regions, one_way: delays })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_read_with_halves_as_ways() {
        let matrix = parse_matrix("x,a,b\na,0,80\n\nb, 90 ,0\n").unwrap();
        assert_eq!(matrix.regions, ["a", "b"]);
        assert_eq!(matrix.one_way[0][1], Span::from_ms(40));
        assert_eq!(matrix.one_way[1][0], Span::from_ms(45));
    }

    #[test]
    fn a_wrong_matrix_is_refused_by_its_line() {
        for (text, word) in [
            ("", "empty"),
            ("x,a,a\na,0,1\na,1,0", "twice"),
            ("x,a,b\na,0,1\n", "expected 2 lines"),
            ("x,a,b\na,0,1\nb,1\n", "line 3: expected 2 round trips, found 1"),
            ("x,a,b\nb,0,1\na,1,0\n", "line 2: expected region \"a\""),
            ("x,a,b\na,0,-1\nb,1,0\n", "line 2: \"-1\""),
            ("x,a,b\na,0,NaN\nb,1,0\n", "line 2: \"NaN\""),
            ("x,a\na,0\nb,0\n", "line 3: expected 1 lines"),
        ] {
            let error = parse_matrix(text).unwrap_err();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }
}
