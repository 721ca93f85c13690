//! The results of a benchmark, as tables and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use pangea_core::guarantee::Isolation;
use serde::Serialize;

use super::check::Checked;
use super::costs::Costs;
use super::faults::FaultEvent;
use super::measure::{Measured, Run};
use super::waterfall::{Runs, TracedTransactions, Waterfall};
use super::{Arguments, Via};
use crate::cluster::Plan;
use crate::load_generator::{Samples, Stats};
use crate::protocol::words_of;
use crate::script::Script;
use crate::table::numbers;

/// The full report. Latencies of transactions are in ms, from the call to its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Committed transactions a second, in all regions. If there are several runs, this and all
    /// following figures are those of the median run.
    pub throughput_per_sec: f64,
    /// The throughput of each run, in descending order.
    throughput_per_sec_of_runs: Vec<f64>,
    settings: Settings,
    committed: u64,
    latency_ms: Latency,
    regions: BTreeMap<String, Region>,
    transactions: BTreeMap<&'static str, Part>,
    aborts: BTreeMap<String, u64>,
    /// Aborts that no client saw because its session retried the transaction: by SQLSTATE, and for
    /// an SQL file by the kind of the transaction and SQLSTATE.
    retries: BTreeMap<String, u64>,
    /// Calls without an outcome; these occur only with faults.
    errors: BTreeMap<&'static str, u64>,
    /// The injected faults, and checkpoints if they are marked.
    faults: Vec<FaultEvent>,
    timeline: Timeline,
    /// The longest time in which a region committed no transaction.
    stalls_ms: BTreeMap<String, f64>,
    /// The delay between the due time and the actual time of calls. `shed` counts calls that were
    /// skipped because too many were in flight.
    late_ms: Latency,
    shed: u64,
    /// The results of first executions at the first node, as fractions of all transactions.
    shares: BTreeMap<&'static str, f64>,
    #[serde(flatten)]
    costs: Costs,
    /// The latency breakdown of the median and of the p99 transaction.
    waterfall: Waterfall,
    elapsed_secs: f64,
    load_secs: f64,
    check: Checked,
    /// The protocol's counters of each node in the measured time.
    counters: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Commits over the measured time.
#[derive(Clone, Debug, Serialize)]
struct Timeline {
    /// The length of the interval that each number covers.
    step_ms: f64,
    regions: BTreeMap<String, Vec<u32>>,
}

#[derive(Clone, Debug, Serialize)]
struct Settings {
    version: &'static str,
    workload: String,
    protocol: String,
    /// Whether `protocol` is the name of another database.
    is_peer: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    isolation: Option<String>,
    set: Vec<String>,
    regions: Vec<String>,
    /// The number of nodes of each region over which the tables are partitioned.
    partitions: usize,
    /// The names of the nodes, in order.
    #[serde(skip)]
    places: Vec<String>,
    rtt_ms_max: f64,
    /// The round trip from each region to the nearest majority.
    majority_ms: BTreeMap<String, f64>,
    jitter_ms: f64,
    /// The emulated errors of the nodes' clocks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clock_errors: Vec<String>,
    /// Whether the distances are those of a lab.
    lab: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth_mbit: Option<f64>,
    via: String,
    clients: u32,
    /// The rate of an open loop.
    rate_per_sec: Option<f64>,
    secs: u64,
    warmup_secs: u64,
    sizes: BTreeMap<&'static str, f64>,
    /// Variables of an SQL file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    define: Vec<String>,
    durability: String,
    workers: usize,
    cores: usize,
    seed: u64,
}

/// The figures of a region, in total and by kind of transaction.
#[derive(Clone, Debug, Serialize)]
struct Region {
    #[serde(flatten)]
    all: Part,
    transactions: BTreeMap<&'static str, Part>,
}

/// The figures of a group of transactions.
#[derive(Clone, Debug, Serialize)]
struct Part {
    throughput_per_sec: f64,
    committed: u64,
    latency_ms: Latency,
    /// The aborts that clients saw, by SQLSTATE.
    aborts: BTreeMap<String, u64>,
    /// The results of first executions, for the traced transactions.
    first_runs: Runs,
    /// The fraction of them that was re-executed because the first execution was not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    reexecuted: Option<f64>,
    /// All latencies in microseconds: an HdrHistogram, V2, in base64.
    hdr: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p95: f64,
    p99: f64,
    p999: f64,
    mean: f64,
    max: f64,
}

impl Latency {
    fn new(samples: &Samples) -> Self {
        Self {
            p50: samples.quantile_ms(0.50),
            p90: samples.quantile_ms(0.90),
            p95: samples.quantile_ms(0.95),
            p99: samples.quantile_ms(0.99),
            p999: samples.quantile_ms(0.999),
            mean: samples.mean_ms(),
            max: samples.max_ms(),
        }
    }
}

impl Part {
    fn new(samples: &Samples, seconds: f64, aborts: BTreeMap<String, u64>, runs: Runs) -> Self {
        let committed = samples.count();
        Self {
            throughput_per_sec: committed as f64 / seconds,
            committed,
            latency_ms: Latency::new(samples),
            aborts,
            first_runs: runs,
            reexecuted: runs.share_again(),
            hdr: samples.to_hdr(),
        }
    }
}

/// The data from which the groups are computed.
struct Parts<'a> {
    stats: &'a Stats,
    traces: &'a TracedTransactions,
    seconds: f64,
}

impl Parts<'_> {
    fn of(&self, samples: &Samples, region: Option<usize>, label: Option<&str>) -> Part {
        let aborts = self.stats.aborts_seen(region, label);
        Part::new(samples, self.seconds, aborts, self.traces.runs(region, label))
    }

    fn by_label(
        &self,
        of: &BTreeMap<&'static str, Samples>,
        region: Option<usize>,
    ) -> BTreeMap<&'static str, Part> {
        let part = |(label, samples): (&&'static str, &Samples)| {
            (*label, self.of(samples, region, Some(*label)))
        };
        of.iter().map(part).collect()
    }

    fn region(&self, index: usize) -> Region {
        let all = self.of(&self.stats.of_region(index), Some(index), None);
        let transactions = self.by_label(&self.stats.regions[index], Some(index));
        Region { all, transactions }
    }
}

impl Settings {
    /// Returns the number of things in each region, and the number of partitions, as text.
    fn places_in_words(&self, thing: &str, of: &str) -> String {
        let count = count(self.regions.len(), thing);
        match self.partitions {
            1 => count,
            partitions => format!("{count} {of} {partitions} partitions"),
        }
    }

    fn is_script(&self) -> bool {
        Script::is_named(&self.workload)
    }

    fn new(arguments: &Arguments, plan: &Plan) -> Self {
        let (workload, _) = arguments.names();
        let sizes = arguments.sizes.concerning(workload);
        // Clients of an SQL file always use PostgreSQL sessions.
        let via = if Script::is_named(workload) { Via::Postgres } else { arguments.via };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            workload: workload.to_owned(),
            protocol: plan.protocol.clone(),
            is_peer: arguments.baseline.is_some(),
            isolation: granted_level(arguments).map(|level| level.to_string()),
            set: arguments.settings.iter().map(ToString::to_string).collect(),
            regions: plan.regions.clone(),
            partitions: plan.shards(),
            places: plan.places(),
            rtt_ms_max: plan.round_trip_ms_max(),
            majority_ms: plan.regions.iter().cloned().zip(plan.majority_round_trips_ms()).collect(),
            jitter_ms: plan.jitter_ms,
            clock_errors: arguments.clocks.named(),
            lab: arguments.environment.lab,
            bandwidth_mbit: arguments.environment.bandwidth,
            via: format!("{via:?}").to_lowercase(),
            clients: arguments.clients,
            rate_per_sec: arguments.rate,
            secs: arguments.secs,
            warmup_secs: arguments.warmup,
            sizes: sizes.map(|size| (size.option, size.value)).collect(),
            define: arguments.defines.iter().map(ToString::to_string).collect(),
            durability: format!("{:?}", plan.durability).to_lowercase(),
            workers: plan.tuning.workers,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            seed: arguments.seed,
        }
    }
}

/// The level that transactions get, if one was asked for.
fn granted_level(arguments: &Arguments) -> Option<Isolation> {
    match arguments.baseline {
        Some(_) => arguments.isolation,
        None => arguments.options().expect("the options were checked before the run").1,
    }
}

impl Report {
    /// Compiles the report.
    pub fn new(arguments: &Arguments, plan: &Plan, measured: Measured) -> Self {
        let throughput_per_sec_of_runs =
            measured.runs.iter().map(Run::throughput_per_sec).collect();
        let Run { stats, elapsed, used, happened } = measured.median();
        let (used, elapsed) = (used.clone(), *elapsed);
        let seconds = elapsed.as_secs_f64();
        let all = stats.all();
        let places = plan.places();
        let costs =
            Costs::new((&places, &|node| plan.region_of(node)), &used, all.count(), seconds);
        let traces = TracedTransactions::new(&used.traces, &stats.traced_calls);
        let parts = Parts { stats, traces: &traces, seconds };
        let regions: Vec<Region> = (0..places.len()).map(|index| parts.region(index)).collect();
        let transactions = parts.by_label(&stats.by_label(), None);
        let names = || places.iter().cloned();
        let by_region = |values: &[f64]| names().zip(values.iter().copied()).collect();
        let pause = |region| stats.timeline.longest_pause(region, elapsed).as_secs_f64() * 1e3;
        let pauses: Vec<f64> = (0..places.len()).map(pause).collect();
        let commits = |(region, name)| (name, stats.timeline.commits(region, elapsed));
        Self {
            throughput_per_sec: all.count() as f64 / seconds,
            throughput_per_sec_of_runs,
            settings: Settings::new(arguments, plan),
            committed: all.count(),
            latency_ms: Latency::new(&all),
            regions: names().zip(regions).collect(),
            transactions,
            aborts: stats.aborts.clone(),
            retries: stats.retries.clone(),
            errors: stats.errors.counts.clone(),
            faults: happened.clone(),
            timeline: Timeline {
                step_ms: stats.timeline.step.as_secs_f64() * 1e3,
                regions: names().enumerate().map(commits).collect(),
            },
            stalls_ms: by_region(&pauses),
            late_ms: Latency::new(&stats.late),
            shed: stats.shed,
            shares: shares(&used.counters[0]),
            costs,
            waterfall: traces
                .waterfall(words_of(&plan.protocol), |quantile| all.quantile_ms(quantile)),
            elapsed_secs: seconds,
            load_secs: measured.load_secs,
            check: measured.checked,
            counters: names().zip(used.counters.into_iter().map(of_protocol)).collect(),
        }
    }

    /// Returns the report as JSON.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a report is numbers and names");
        text.push('\n');
        text
    }
}

/// Returns a node's counters without its CPU meters, which are reported by stage.
fn of_protocol(mut counters: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    counters.retain(|name, _| !name.starts_with(pangea_node::meter::COUNTERS));
    counters
}

/// Returns the results of first executions, if the protocol counts them.
fn shares(counters: &BTreeMap<String, u64>) -> BTreeMap<&'static str, f64> {
    const KINDS: [(&str, &str); 4] = [
        ("valid", "txns_valid"),
        ("stale", "txns_stale"),
        ("conflicting", "txns_conflicting"),
        ("ordered", "txns_ordered"),
    ];
    if !KINDS.iter().all(|(_, counter)| counters.contains_key(*counter)) {
        return BTreeMap::new();
    }
    let count = |name: &str| counters[name] as f64;
    let all: f64 = KINDS.iter().map(|(_, counter)| count(counter)).sum();
    if all == 0.0 {
        return BTreeMap::new();
    }
    let mut shares: BTreeMap<&'static str, f64> =
        KINDS.iter().map(|&(share, counter)| (share, count(counter) / all)).collect();
    shares.insert("re-executed", shares["stale"] + shares["conflicting"]);
    shares
}

/// If a smaller fraction of the load completed while calls were waiting, the load exceeded the
/// capacity.
const KEPT_UP: f64 = 0.95;

/// Returns a number of things as text, in the singular or plural.
pub(super) fn count(many: usize, thing: &str) -> String {
    format!("{many} {thing}{}", if many == 1 { "" } else { "s" })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_parts(f)?;
        let Settings { workload, protocol, clients, rtt_ms_max, isolation, .. } = &self.settings;
        self.fmt_limit(f)?;
        let level = isolation.as_ref().map_or(String::new(), |level| format!(" at {level}"));
        let joined = |parts: Vec<String>| {
            if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
        };
        let percent = |of: f64| format!("{:.2} %", of * 100.0);
        let share = |name| percent(self.shares.get(name).copied().unwrap_or(0.0));
        let finished = self.committed + self.aborts.values().sum::<u64>();
        let aborts = self.aborts.iter().map(|(code, count)| {
            format!("{code} {count} ({})", percent(*count as f64 / finished as f64))
        });
        writeln!(f, "  aborts       {}", joined(aborts.collect()))?;
        if !self.retries.is_empty() || self.settings.is_script() {
            let retries = self.retries.iter().map(|(what, count)| format!("{what} {count}"));
            let retries = joined(retries.collect());
            writeln!(f, "  retried      {retries}, invisible to clients")?;
        }
        self.fmt_faults(f)?;
        if let Some(rate) = self.settings.rate_per_sec {
            let Latency { p50, p99, .. } = self.late_ms;
            let shed = self.shed;
            let ended = self.throughput_per_sec * finished as f64 / self.committed.max(1) as f64;
            let behind = match ended < rate * KEPT_UP {
                true => ": it did not keep up, and the latencies are only of calls that ended",
                false => "",
            };
            writeln!(
                f,
                "  offered      {rate}/s, of which {ended:.0}/s ended{behind}; calls were made \
                 {p50:.1} ms late (p99 {p99:.1} ms), {shed} were not made"
            )?;
        }
        if !self.settings.is_peer && !self.shares.is_empty() {
            writeln!(
                f,
                "  executions   {} valid, {} re-executed ({} stale, {} conflicting), {} ordered",
                share("valid"),
                share("re-executed"),
                share("stale"),
                share("conflicting"),
                share("ordered")
            )?;
        }
        write!(f, "{}{}", self.costs, self.waterfall)?;
        self.fmt_check(f)?;
        if let [most, .., least] = &self.throughput_per_sec_of_runs[..] {
            let runs = self.throughput_per_sec_of_runs.len();
            writeln!(
                f,
                "  runs         {runs}, from {least:.0} to {most:.0} transactions a second"
            )?;
        }
        let load = match self.settings.rate_per_sec {
            Some(rate) => format!("{rate} calls a second"),
            None => format!("{clients} clients"),
        };
        writeln!(
            f,
            "{workload} on {protocol}{level}: {:.0} transactions a second, p50 {:.1} ms, p99 \
             {:.1} ms ({}, {rtt_ms_max} ms, {load})",
            self.throughput_per_sec,
            self.latency_ms.p50,
            self.latency_ms.p99,
            self.settings.places_in_words("region", "of"),
        )
    }
}

impl Report {
    /// Writes the results of the checks.
    fn fmt_check(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Checked { digest, version, workload: facts } = &self.check;
        let at = version.map(|version| format!(" at v{version}")).unwrap_or_default();
        let replicas = self.settings.places_in_words("replica", "of each of");
        writeln!(f, "  check        {replicas} identical{at}: {digest}")?;
        writeln!(f, "               {facts}")
    }

    /// Writes the times that no commit can beat, if the regions are apart.
    fn fmt_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { regions, majority_ms, rtt_ms_max, .. } = &self.settings;
        if *rtt_ms_max == 0.0 {
            return Ok(());
        }
        let trips = regions.iter().map(|name| format!("{name} {:.1} ms", majority_ms[name]));
        let trips: Vec<String> = trips.collect();
        writeln!(f, "  limit        {}: round trips to a majority", trips.join(", "))
    }

    /// Writes the injected faults and their effects.
    fn fmt_faults(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            let what = if fault.is_fault() { "fault" } else { "seen" };
            writeln!(f, "  {what:<12} {fault}")?;
        }
        if !self.faults.is_empty() {
            let pauses = self.stalls_ms.iter().map(|(name, ms)| format!("{name} {ms:.0} ms"));
            let pauses: Vec<String> = pauses.collect();
            writeln!(f, "  pauses       at most {} without a commit", pauses.join(", "))?;
            let errors = self.errors.iter().map(|(what, count)| format!("{count} {what}"));
            let errors: Vec<String> = errors.collect();
            if !errors.is_empty() {
                writeln!(f, "  no outcome   {}", errors.join(", "))?;
            }
        }
        Ok(())
    }

    fn fmt_parts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = |what| {
            [
                what,
                "txn/s",
                "committed",
                "p50 ms",
                "p90 ms",
                "p95 ms",
                "p99 ms",
                "p99.9 ms",
                "max ms",
                "aborted",
                "re-run %",
            ]
        };
        let row = |name: &str, part: &Part| {
            let Latency { p50, p90, p95, p99, p999, max, .. } = part.latency_ms;
            let mut cells = vec![
                name.to_owned(),
                format!("{:.0}", part.throughput_per_sec),
                part.committed.to_string(),
            ];
            cells.extend([p50, p90, p95, p99, p999, max].map(|ms| format!("{ms:.1}")));
            cells.push(part.aborts.values().sum::<u64>().to_string());
            cells.push(part.reexecuted.map_or("-".to_owned(), |it| format!("{:.1}", it * 100.0)));
            cells
        };
        let mut regions = numbers(&header(match self.settings.partitions {
            1 => "region",
            _ => "node",
        }));
        for name in &self.settings.places {
            regions.add_row(row(name, &self.regions[name].all));
        }
        let mut transactions = numbers(&header("transaction"));
        for (name, part) in &self.transactions {
            transactions.add_row(row(name, part));
        }
        writeln!(f, "{regions}\n\n{transactions}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_everything_that_was_ordered() {
        let counters = [
            ("txns_valid", 60),
            ("txns_stale", 20),
            ("txns_conflicting", 10),
            ("txns_ordered", 10),
            ("epochs", 99),
        ];
        let shares = shares(&counters.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!(shares["valid"], 0.6);
        assert!((shares["re-executed"] - 0.3).abs() < 1e-9);
        assert!(super::shares(&BTreeMap::new()).is_empty());
    }
}
