//! The input files: the workload in one file, the regions in the other.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Args, Parser};
use pangea_core::guarantee::Guarantee;
use pangea_node::transport::ONE_WAY_MAX;
use pangea_sim::predict::REPLICAS;
use pangea_sweep::plan_error::unknown;
use serde::Deserialize;
use toml::{Spanned, Value};

use crate::bench;
use crate::cluster::RoundTrip;
use crate::failure::Failure;
use crate::regions;
use crate::sizes::Sizes;

/// The largest number of cores of a node, and the default.
const CORES_MAX: u16 = 1_024;
const CORES_DEFAULT: u16 = 8;
/// The limits of a benchmark for clients and for calls a second, in all regions.
const CLIENTS_MAX: f64 = 65_536.0;
const RATE_MAX: f64 = 1e6;
/// Clients of a region whose calls arrive at a rate. Calls are assigned to them round robin.
const CLIENTS_OF_RATE: u32 = 20;

/// The workload and its load.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The name of a workload or of an SQL file.
    pub workload: String,
    /// The workload's options, as arguments of `pangea bench`.
    pub options: Vec<String>,
    /// Clients of each region.
    pub clients: u32,
    /// Calls a second in each region, regardless of the number in flight.
    pub rate: Option<f64>,
    /// The weakest guarantee that is acceptable.
    pub guarantee: Guarantee,
}

/// The regions and their network.
#[derive(Clone, Debug, PartialEq)]
pub struct Places {
    /// The names of the regions.
    pub regions: Vec<String>,
    /// The round trip of each pair of regions.
    pub round_trips: Vec<RoundTrip>,
    /// Cores of each node.
    pub cores: u16,
    /// The bandwidth of a link between two nodes.
    pub bandwidth_mbit: Option<u64>,
}

/// The options of a benchmark.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    bench: bench::Arguments,
}

/// Parses the options of a benchmark from words.
///
/// # Errors
/// The message that the command line would print.
pub fn bench_of(words: &[String]) -> Result<bench::Arguments, Failure> {
    let line = Line::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Failure::Usage(first.strip_prefix("error: ").unwrap_or(first).to_owned())
    })?;
    Ok(line.bench)
}

fn read<T>(
    option: &str,
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, (usize, String)>,
) -> Result<T, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("--{option} {shown}: {error}")))?;
    parse(&text).map_err(|(line, message)| {
        Failure::Usage(format!("--{option} {shown}: line {line}: {message}"))
    })
}

/// Returns the line of a byte position in a text, from 1.
fn line_at(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

fn of_toml(text: &str) -> impl Fn(toml::de::Error) -> (usize, String) + '_ {
    |error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        (line, error.message().trim().replace('\n', " "))
    }
}

impl Work {
    /// Reads the file for a cluster of this number of regions.
    ///
    /// # Errors
    /// The problem with the file, and its line.
    pub fn read(path: &Path, regions: usize) -> Result<Self, Failure> {
        let work = read("workload", path, |text| Self::parse(text, regions))?;
        if crate::script::Script::is_named(&work.workload) {
            // A relative file name is resolved against the folder of the file that contains it.
            let beside = path.parent().map(|folder| folder.join(&work.workload));
            if let Some(beside) = beside.filter(|beside| beside.exists()) {
                return Ok(Self { workload: beside.display().to_string(), ..work });
            }
        }
        Ok(work)
    }

    fn parse(text: &str, regions: usize) -> Result<Self, (usize, String)> {
        let table: BTreeMap<String, Spanned<Value>> =
            toml::from_str(text).map_err(of_toml(text))?;
        let own = ["workload", "clients_per_region", "rate_per_region", "guarantee", "define"];
        let sizes = Sizes::augment_args(clap::Command::new("sizes"));
        let sizes: Vec<&str> = sizes.get_arguments().filter_map(clap::Arg::get_long).collect();
        let mut options = Vec::new();
        for (key, value) in &table {
            let line = line_at(text, value.span().start);
            let known = own.iter().chain(&sizes).copied();
            match value.get_ref() {
                _ if !known.clone().any(|it| it == key) => {
                    return Err((line, unknown("key", key, known)));
                }
                _ if own.contains(&key.as_str()) && key != "define" => {}
                Value::Boolean(true) => options.push(format!("--{key}")),
                Value::Boolean(false) => {}
                Value::String(word) => options.push(format!("--{key}={word}")),
                number @ (Value::Integer(_) | Value::Float(_)) => {
                    options.push(format!("--{key}={number}"));
                }
                _ => {
                    return Err((line, format!("{key} must be a number, a string, true or false")));
                }
            }
        }
        let line = |key: &str| table.get(key).map_or(1, |it| line_at(text, it.span().start));
        let word = |key: &str| match table.get(key).map(Spanned::get_ref) {
            None => Ok(None),
            Some(Value::String(word)) => Ok(Some(word.clone())),
            Some(other) => Err((line(key), format!("{key} must be a string, not {other}"))),
        };
        let workload = word("workload")?;
        let workload =
            workload.ok_or((1, "the workload is missing: add workload = \"...\"".to_owned()))?;
        let guarantee = match word("guarantee")? {
            None => Guarantee::Serializable,
            Some(name) => {
                let names = Guarantee::ALL.map(Guarantee::name);
                let found = Guarantee::ALL.into_iter().find(|it| it.name() == name);
                found.ok_or_else(|| (line("guarantee"), unknown("guarantee", &name, names)))?
            }
        };
        let (clients, rate) = load(&table, &line, regions)?;
        let work = Self { workload, options, clients, rate, guarantee };
        work.check(regions).map_err(|failure| {
            let text = failure.to_string();
            let named = table.keys().find(|key| text.contains(&format!("--{key}")));
            (line(named.map_or("workload", String::as_str)), text)
        })?;
        Ok(work)
    }

    /// Checks that a benchmark would accept the workload. An SQL file is checked later, when its
    /// path is known.
    fn check(&self, regions: usize) -> Result<(), Failure> {
        let bench = bench_of(&self.words(self.clients * regions as u32, None))?;
        match crate::script::Script::is_named(&self.workload) {
            true => Ok(()),
            false => bench.workload().map(drop),
        }
    }

    /// Returns the arguments of a benchmark of this workload with the given totals of clients or
    /// calls a second.
    pub fn words(&self, clients: u32, rate: Option<f64>) -> Vec<String> {
        let mut words = vec!["--workload".to_owned(), self.workload.clone()];
        words.extend(self.options.iter().cloned());
        words.extend(["--clients".to_owned(), clients.to_string()]);
        words.extend(rate.iter().flat_map(|rate| ["--rate".to_owned(), rate.to_string()]));
        words
    }
}

/// Reads the number of clients, or of calls a second, of each region.
fn load(
    table: &BTreeMap<String, Spanned<Value>>,
    line: &dyn Fn(&str) -> usize,
    regions: usize,
) -> Result<(u32, Option<f64>), (usize, String)> {
    let number = |key: &str| match table.get(key).map(Spanned::get_ref) {
        None => Ok(None),
        Some(Value::Integer(number)) => Ok(Some(*number as f64)),
        Some(Value::Float(number)) => Ok(Some(*number)),
        Some(other) => Err((line(key), format!("{key} must be a number, not {other}"))),
    };
    let within = |key: &str, value: f64, most: f64, is_whole: bool| {
        let least = if is_whole { 1.0 } else { 0.1 };
        let all = value * regions as f64;
        match value >= least && all <= most && !(is_whole && value.fract() != 0.0) {
            true => Ok(value),
            false => Err((
                line(key),
                format!(
                    "{key} = {value}: must be at least {least}, and at most {most} in all \
                     {regions} regions together"
                ),
            )),
        }
    };
    let (clients, rate) = ("clients_per_region", "rate_per_region");
    match (number(clients)?, number(rate)?) {
        (Some(_), Some(_)) => {
            let message = format!("only one of {clients} and {rate} can be set");
            Err((line(rate), message))
        }
        (Some(value), None) => Ok((within(clients, value, CLIENTS_MAX, true)? as u32, None)),
        (None, Some(value)) => Ok((CLIENTS_OF_RATE, Some(within(rate, value, RATE_MAX, false)?))),
        (None, None) => Err((1, format!("the load is missing: add {clients} = N or {rate} = N"))),
    }
}

/// Rows of round trips, each with its position in the file.
type Matrix = Spanned<Vec<Spanned<Vec<Spanned<f64>>>>>;

/// The format of the file of regions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    regions: Spanned<Vec<Spanned<String>>>,
    round_trips_ms: Option<Matrix>,
    cores: Option<Spanned<u16>>,
    bandwidth_mbit: Option<Spanned<u64>>,
}

impl Places {
    /// Reads the file.
    ///
    /// # Errors
    /// The problem with the file, and its line.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        read("regions", path, Self::parse)
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let file: File = toml::from_str(text).map_err(of_toml(text))?;
        let names: Vec<String> =
            file.regions.get_ref().iter().map(|it| it.get_ref().clone()).collect();
        for (at, name) in file.regions.get_ref().iter().enumerate() {
            let line = line_at(text, name.span().start);
            let name = name.get_ref();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || !name.chars().all(is_plain) || name.parse::<f64>().is_ok() {
                let message = format!(
                    "{name:?} is not a region name: use letters, digits, - and _, and not a number"
                );
                return Err((line, message));
            }
            if names[..at].contains(name) {
                return Err((line, format!("region {name:?} is listed twice")));
            }
        }
        let count = names.len();
        if !REPLICAS.contains(&count) {
            let line = line_at(text, file.regions.span().start);
            let (least, most) = (REPLICAS.start(), REPLICAS.end());
            return Err((line, format!("{count} regions; there must be from {least} to {most}")));
        }
        let round_trips = match &file.round_trips_ms {
            Some(matrix) => matrix_of(text, &names, matrix)?,
            None => known_matrix(line_at(text, file.regions.span().start), &names)?,
        };
        let cores = file.cores.as_ref().map_or(CORES_DEFAULT, |cores| *cores.get_ref());
        if !(1..=CORES_MAX).contains(&cores) {
            let line = file.cores.map_or(1, |cores| line_at(text, cores.span().start));
            return Err((line, format!("cores = {cores}: must be from 1 to {CORES_MAX}")));
        }
        if let Some(none) = file.bandwidth_mbit.as_ref().filter(|it| *it.get_ref() == 0) {
            let line = line_at(text, none.span().start);
            return Err((line, "bandwidth_mbit = 0: omit it for no limit".to_owned()));
        }
        let bandwidth_mbit = file.bandwidth_mbit.map(Spanned::into_inner);
        Ok(Self { regions: names, round_trips, cores, bandwidth_mbit })
    }

    /// Returns the region with the smallest sum of distances to all others. Protocols place the
    /// coordinator there.
    pub fn nearest_to_all(&self) -> &str {
        let distance =
            |a: &String| -> f64 { self.regions.iter().map(|b| self.round_trip_ms(a, b)).sum() };
        let nearest = self.regions.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        nearest.expect("there are regions")
    }

    /// Returns the round trip between two regions.
    pub fn round_trip_ms(&self, a: &str, b: &str) -> f64 {
        let is_it = |trip: &&RoundTrip| trip.between == [a, b] || trip.between == [b, a];
        self.round_trips.iter().find(is_it).map_or(0.0, |trip| trip.ms)
    }
}

/// Returns the round trips of a symmetric matrix with one row and one column for each region.
fn matrix_of(
    text: &str,
    names: &[String],
    matrix: &Matrix,
) -> Result<Vec<RoundTrip>, (usize, String)> {
    let ms_max = 2.0 * ONE_WAY_MAX.us as f64 / 1_000.0;
    let (rows, count) = (matrix.get_ref(), names.len());
    if rows.len() != count {
        let (line, found) = (line_at(text, matrix.span().start), rows.len());
        return Err((line, format!("round_trips_ms has {found} rows for {count} regions")));
    }
    let mut trips = Vec::new();
    for (a, row) in rows.iter().enumerate() {
        let line = line_at(text, row.span().start);
        let (row, from) = (row.get_ref(), &names[a]);
        if row.len() != count {
            let found = row.len();
            let message = format!("the row of {from} has {found} round trips for {count} regions");
            return Err((line, message));
        }
        for (b, cell) in row.iter().enumerate() {
            let (ms, to) = (*cell.get_ref(), &names[b]);
            let line = line_at(text, cell.span().start);
            if !(0.0..=ms_max).contains(&ms) {
                let message = format!("{from} to {to}: {ms} ms; must be from 0 to {ms_max}");
                return Err((line, message));
            }
            if a == b && ms != 0.0 {
                return Err((line, format!("{from} to itself: {ms} ms; must be 0")));
            }
            if b < a {
                let back = *rows[b].get_ref()[a].get_ref();
                if back != ms {
                    let message = format!(
                        "{from} to {to} is {ms} ms, but {to} to {from} is {back} ms: round trips \
                         must be symmetric"
                    );
                    return Err((line, message));
                }
                trips.push(RoundTrip { between: [to.clone(), from.clone()], ms });
            }
        }
    }
    Ok(trips)
}

/// Returns the round trips between cloud regions that are known by name.
fn known_matrix(line: usize, names: &[String]) -> Result<Vec<RoundTrip>, (usize, String)> {
    let mut trips = Vec::new();
    for (at, b) in names.iter().enumerate() {
        if !regions::NAMES.contains(&b.as_str()) {
            let message = unknown("cloud region", b, regions::NAMES);
            return Err((
                line,
                format!("{message}. Other regions need round_trips_ms = [[..], ..]"),
            ));
        }
        for a in &names[..at] {
            let ms = regions::round_trip_ms(a, b).expect("both are known");
            trips.push(RoundTrip { between: [a.clone(), b.clone()], ms });
        }
    }
    Ok(trips)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_a_workload_with_its_options_and_a_load() {
        let text = "workload = \"smallbank\"\ncustomers = 500\nclients_per_region = 20\n";
        let work = Work::parse(text, 3).unwrap();
        assert_eq!(work.options, ["--customers=500"]);
        assert_eq!((work.clients, work.rate), (20, None));
        let text = "workload = \"tpcc\"\ntiny = true\nrate_per_region = 12.5\n\
                    guarantee = \"strict-serializable\"\n";
        let work = Work::parse(text, 3).unwrap();
        assert_eq!((work.options, work.rate), (vec!["--tiny".to_owned()], Some(12.5)));
        assert_eq!(work.guarantee, Guarantee::StrictSerializable);
    }

    #[test]
    fn wrong_work_is_refused_by_its_line() {
        let smallbank = "workload = \"smallbank\"\n";
        for (text, line, said) in [
            ("clients_per_region = 5\n".to_owned(), 1, "the workload is missing"),
            ("workload = \"smalbank\"\nclients_per_region = 5".to_owned(), 1, "smalbank"),
            (smallbank.to_owned(), 1, "the load is missing"),
            (format!("{smallbank}clients_per_regoin = 5"), 2, "\"clients_per_region\"?"),
            (format!("{smallbank}clients_per_region = 0"), 2, "must be at least"),
            (format!("{smallbank}clients_per_region = 1.5"), 2, "must be at least"),
            (format!("{smallbank}clients_per_region = 60000"), 2, "65536 in all 3 regions"),
            (format!("{smallbank}rate_per_region = 1e6"), 2, "must be at least"),
            (format!("{smallbank}\nclients_per_region = 5\nrate_per_region = 1"), 4, "one of"),
            (format!("{smallbank}clients_per_region = \"5\""), 2, "must be a number"),
            (format!("{smallbank}clients_per_region = 5\nwarehouses = 2"), 3, "does not apply to"),
            (format!("{smallbank}clients_per_region = 5\nhot = -1"), 3, "--hot"),
            (format!("{smallbank}guarantee = \"serialisable\""), 2, "\"serializable\"?"),
            (format!("{smallbank}clients_per_region = "), 2, ""),
        ] {
            let (found, message) = Work::parse(&text, 3).unwrap_err();
            assert!(found == line && message.contains(said), "{text}: {found} {message}");
        }
    }

    #[test]
    fn regions_have_a_matrix_or_are_known() {
        let text = "regions = [\"a\", \"b\", \"c\"]\ncores = 4\n\
                    round_trips_ms = [[0, 10, 20.5], [10, 0, 30], [20.5, 30, 0]]\n";
        let places = Places::parse(text).unwrap();
        assert_eq!((places.cores, places.round_trip_ms("c", "a")), (4, 20.5));
        let text = "regions = [\"us-east\", \"eu-west\", \"ap-northeast\"]";
        assert_eq!(Places::parse(text).unwrap().round_trip_ms("us-east", "eu-west"), 68.0);
    }

    #[test]
    fn wrong_regions_are_refused_by_their_line() {
        let abc = "regions = [\"a\", \"b\", \"c\"]\n";
        for (text, line, said) in [
            ("regions = [\"a\",\n\"b\",\n\"a\"]\n".to_owned(), 3, "region \"a\" is listed twice"),
            ("regions = [\"a\", \"b\"]\n".to_owned(), 1, "2 regions; there must be from 3 to 15"),
            ("regions = [\"a\", \"b\", \"3\"]\n".to_owned(), 1, "is not a region name"),
            (abc.to_owned(), 1, "Other regions need round_trips_ms"),
            (format!("{abc}round_trip = 4"), 2, "unknown field `round_trip`"),
            (format!("{abc}round_trips_ms = [[0, 1, 2]]"), 2, "1 rows for 3 regions"),
            (
                format!("{abc}round_trips_ms = [\n[0, 1, 2],\n[1, 0],\n[2, 3, 0]]"),
                4,
                "the row of b has 2 round trips",
            ),
            (
                format!("{abc}round_trips_ms = [\n[0, 1, 2],\n[1, 0, 3],\n[2, 4, 0]]"),
                5,
                "c to b is 4 ms, but b to c is 3 ms",
            ),
            (
                format!("{abc}round_trips_ms = [\n[5, 1, 2],\n[1, 0, 3],\n[2, 3, 0]]"),
                3,
                "a to itself",
            ),
            (
                format!("{abc}round_trips_ms = [\n[0, -1, 2],\n[-1, 0, 3],\n[2, 3, 0]]"),
                3,
                "from 0 to",
            ),
            (format!("{abc}cores = 0\nround_trips_ms = [[0,1,1],[1,0,1],[1,1,0]]"), 2, "1 to"),
        ] {
            let (found, message) = Places::parse(&text).unwrap_err();
            assert!(found == line && message.contains(said), "{text}: {found} {message}");
        }
    }
}
