//! What a benchmark found, as tables and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::Arguments;
use super::check::Checked;
use super::usage::Usage;
use crate::cluster::Plan;
use crate::drive::{Samples, Stats};
use crate::table::numbers;

/// A finished and checked run.
pub struct Run<'a> {
    /// What was asked for.
    pub arguments: &'a Arguments,
    /// The cluster.
    pub plan: &'a Plan,
    /// What the clients counted.
    pub stats: &'a Stats,
    /// In which time.
    pub elapsed: Duration,
    /// How long loading took.
    pub load_secs: f64,
    /// What was used meanwhile.
    pub used: Usage,
    /// What was found to be right.
    pub checked: Checked,
}

/// Everything that is reported. Times of transactions are in ms, from the call to its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Committed transactions a second, in all regions.
    pub throughput_per_sec: f64,
    settings: Settings,
    committed: u64,
    latency_ms: Latency,
    regions: BTreeMap<String, Part>,
    transactions: BTreeMap<&'static str, Part>,
    aborts: BTreeMap<String, u64>,
    /// How the first execution of each transaction fared, in shares of all, at the first node.
    shares: BTreeMap<&'static str, f64>,
    cpu_us_per_txn: BTreeMap<String, f64>,
    /// Cores that were busy, of the nodes and the load together.
    cores_used: f64,
    memory_mb: BTreeMap<String, f64>,
    wan_bytes_per_txn: f64,
    wan_bytes_per_txn_uncompressed: f64,
    wan_frames_per_txn: f64,
    elapsed_secs: f64,
    load_secs: f64,
    check: Checked,
    /// What the protocol counted at each node in the measured time.
    counters: BTreeMap<String, BTreeMap<String, u64>>,
}

#[derive(Clone, Debug, Serialize)]
struct Settings {
    version: &'static str,
    workload: String,
    protocol: String,
    set: Vec<String>,
    regions: Vec<String>,
    rtt_ms_max: f64,
    jitter_ms: f64,
    clients: u32,
    secs: u64,
    warmup_secs: u64,
    zipf: f64,
    rows: u64,
    warehouses: u32,
    durability: String,
    workers: usize,
    cores: usize,
    seed: u64,
}

/// A part of the transactions.
#[derive(Clone, Debug, Serialize)]
struct Part {
    throughput_per_sec: f64,
    committed: u64,
    latency_ms: Latency,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Latency {
    p50: f64,
    p95: f64,
    p99: f64,
    mean: f64,
    max: f64,
}

impl Latency {
    fn new(samples: &Samples) -> Self {
        Self {
            p50: samples.quantile_ms(0.50),
            p95: samples.quantile_ms(0.95),
            p99: samples.quantile_ms(0.99),
            mean: samples.mean_ms(),
            max: samples.max_ms(),
        }
    }
}

impl Part {
    fn new(samples: &Samples, seconds: f64) -> Self {
        let committed = samples.count();
        let throughput_per_sec = committed as f64 / seconds;
        Self { throughput_per_sec, committed, latency_ms: Latency::new(samples) }
    }
}

impl Settings {
    fn new(arguments: &Arguments, plan: &Plan) -> Self {
        let (zipf, rows, warehouses) = arguments.sizes.given_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            workload: arguments.workload.clone(),
            protocol: plan.protocol.clone(),
            set: arguments.settings.iter().map(ToString::to_string).collect(),
            regions: plan.regions.clone(),
            rtt_ms_max: plan.round_trip_ms_max(),
            jitter_ms: plan.jitter_ms,
            clients: arguments.clients,
            secs: arguments.secs,
            warmup_secs: arguments.warmup,
            zipf,
            rows,
            warehouses,
            durability: format!("{:?}", plan.durability).to_lowercase(),
            workers: plan.workers,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            seed: arguments.seed,
        }
    }
}

impl Report {
    /// Puts a run's numbers in order.
    pub fn new(run: Run<'_>) -> Self {
        let Run { arguments, plan, stats, elapsed, load_secs, used, checked } = run;
        let seconds = elapsed.as_secs_f64();
        let all = stats.all();
        let per_txn = |amount: f64| amount / all.count() as f64;
        let names = || plan.regions.iter().cloned();
        let by_region = |values: &[f64]| names().zip(values.iter().copied()).collect();
        let cpu: Vec<f64> = used.node_cpu_us.iter().map(|&us| per_txn(us)).collect();
        let mut cpu_us_per_txn: BTreeMap<String, f64> = by_region(&cpu);
        cpu_us_per_txn.insert("load".to_owned(), per_txn(used.load_cpu_us));
        let cpu_us: f64 = used.node_cpu_us.iter().sum::<f64>() + used.load_cpu_us;
        let memory: Vec<f64> =
            used.node_memory_bytes.iter().map(|&bytes| bytes as f64 / 1e6).collect();
        let region = |(index, name)| (name, Part::new(&stats.of_region(index), seconds));
        let transaction =
            |(&label, samples): (&&'static str, &Samples)| (label, Part::new(samples, seconds));
        Self {
            throughput_per_sec: all.count() as f64 / seconds,
            settings: Settings::new(arguments, plan),
            committed: all.count(),
            latency_ms: Latency::new(&all),
            regions: names().enumerate().map(region).collect(),
            transactions: stats.by_label().iter().map(transaction).collect(),
            aborts: stats.aborts.clone(),
            shares: shares(&used.counters[0]),
            cpu_us_per_txn,
            cores_used: cpu_us / 1e6 / seconds,
            memory_mb: by_region(&memory),
            wan_bytes_per_txn: per_txn(used.wan_bytes as f64),
            wan_bytes_per_txn_uncompressed: per_txn(used.wan_bytes_uncompressed as f64),
            wan_frames_per_txn: per_txn(used.wan_frames as f64),
            elapsed_secs: seconds,
            load_secs,
            check: checked,
            counters: names().zip(used.counters).collect(),
        }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a report is numbers and names");
        text.push('\n');
        text
    }
}

/// How the first execution of each transaction fared, from a protocol that counts it.
fn shares(counters: &BTreeMap<String, u64>) -> BTreeMap<&'static str, f64> {
    const KINDS: [(&str, &str); 4] = [
        ("valid", "txns_valid"),
        ("stale", "txns_stale"),
        ("conflicting", "txns_conflicting"),
        ("ordered", "txns_ordered"),
    ];
    let count = |name: &str| counters.get(name).copied().unwrap_or(0) as f64;
    let all: f64 = KINDS.iter().map(|(_, counter)| count(counter)).sum();
    if all == 0.0 {
        return BTreeMap::new();
    }
    let mut shares: BTreeMap<&'static str, f64> =
        KINDS.iter().map(|&(share, counter)| (share, count(counter) / all)).collect();
    shares.insert("re-executed", shares["stale"] + shares["conflicting"]);
    shares
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_parts(f)?;
        let Settings { workload, protocol, clients, rtt_ms_max, regions, .. } = &self.settings;
        let joined = |parts: Vec<String>| {
            if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
        };
        let each = |values: &BTreeMap<String, f64>, unit: &str| {
            joined(values.iter().map(|(name, value)| format!("{name} {value:.0}{unit}")).collect())
        };
        let percent = |of: f64| format!("{:.2} %", of * 100.0);
        let shares = self.shares.iter().map(|(name, share)| format!("{} {name}", percent(*share)));
        let finished = self.committed + self.aborts.values().sum::<u64>();
        let aborts = self.aborts.iter().map(|(code, count)| {
            format!("{code} {count} ({})", percent(*count as f64 / finished as f64))
        });
        writeln!(f, "  aborts       {}", joined(aborts.collect()))?;
        writeln!(f, "  executions   {}", joined(shares.collect()))?;
        writeln!(f, "  cpu a txn    {}", each(&self.cpu_us_per_txn, " us"))?;
        writeln!(f, "  cores busy   {:.2} of {}", self.cores_used, self.settings.cores)?;
        writeln!(f, "  memory       {}", each(&self.memory_mb, " MB"))?;
        writeln!(
            f,
            "  wide area    {:.0} bytes a txn ({:.0} before compression), {:.2} frames",
            self.wan_bytes_per_txn, self.wan_bytes_per_txn_uncompressed, self.wan_frames_per_txn
        )?;
        let Checked { digest, version, workload: facts } = &self.check;
        writeln!(f, "  check        {} replicas equal at v{version}: {digest}", regions.len())?;
        writeln!(f, "               {facts}")?;
        writeln!(
            f,
            "{workload} on {protocol}: {:.0} transactions a second, p50 {:.1} ms, p99 {:.1} ms ({} \
             regions, {rtt_ms_max} ms, {clients} clients)",
            self.throughput_per_sec,
            self.latency_ms.p50,
            self.latency_ms.p99,
            regions.len(),
        )
    }
}

impl Report {
    fn fmt_parts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = |what| [what, "txn/s", "committed", "p50 ms", "p95 ms", "p99 ms", "max ms"];
        let row = |name: &str, part: &Part| {
            let Latency { p50, p95, p99, max, .. } = part.latency_ms;
            let mut cells = vec![
                name.to_owned(),
                format!("{:.0}", part.throughput_per_sec),
                part.committed.to_string(),
            ];
            cells.extend([p50, p95, p99, max].map(|ms| format!("{ms:.1}")));
            cells
        };
        let mut regions = numbers(&header("region"));
        for name in &self.settings.regions {
            regions.add_row(row(name, &self.regions[name]));
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
