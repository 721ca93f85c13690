//! `pangea calibrate`: measures costs on this machine, for `pangea sim --predict`.
//!
//! It runs a benchmark whose nodes meter themselves. The CPU time of each thread is split by kind
//! of work, and a line through (size, time) is fitted for each kind. Reading the clock costs a few
//! percent of the throughput, and this overhead is included in the lines.

mod fit;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use pangea_core::protocol::{Message, Protocol};
use pangea_sim::predict::{Calibration, Costs};

use crate::bench::{self, Measured};
use crate::cluster::{Cluster, Plan};
use crate::failure::Failure;
use crate::protocol::{WithProtocol, with_protocol};
use fit::Counted;

/// Measure costs on this machine, for `pangea sim --predict`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(after_help = EXAMPLES)]
#[command(mut_args(|arg| {
    let is_refused = REFUSED.contains(&arg.get_id().as_str());
    if is_refused { arg.hide(true) } else { arg }
}))]
pub struct Arguments {
    /// Output file
    #[arg(long, value_name = "FILE", default_value = "costs.toml")]
    out: PathBuf,
    #[command(flatten)]
    bench: bench::Arguments,
}

/// Options of benchmarks that a calibration refuses.
const REFUSED: &[&str] = &["baseline", "isolation", "faults", "json", "stages"];

/// Examples, which replace those of the benchmark whose options it shares.
pub const EXAMPLES: &str = "Examples:
  pangea calibrate --workload tpcc-nopay --clients 4000 --out costs.toml
  pangea calibrate --workload ycsb-a --clients 2000 --secs 10
  pangea sim --predict --costs costs.toml --workload tpcc-nopay --replicas 3,5,7

Runs three node processes under the workload, as `pangea bench` does, and writes a file. For each
kind of step and work, the file has the fixed CPU time, the CPU time for each transaction, kilobyte
or effect, and the quality of the fit. Use the load that will be predicted, on an otherwise idle
machine.";

/// Measures costs and writes the file.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { bench, out } = arguments;
    if let Some(fault) = bench.first_fault() {
        let message = format!("--fault {fault}: its effects would be in every cost; leave it out");
        return Err(Failure::Usage(message));
    }
    bench.check_can_calibrate()?;
    let costs = measure(bench, bench.plan()?)?;
    let shown = out.display();
    std::fs::write(out, costs.to_toml())
        .map_err(|error| Failure::failed(format!("can't write {shown}"), error))?;
    let Calibration { txns_per_sec, cpu_us_per_txn, explained_percent, .. } = costs.calibration;
    crate::say(&format!(
        "{txns_per_sec:.0} transactions a second at {cpu_us_per_txn:.1} us each; \
         {explained_percent:.0} % of the nodes' CPU time is attributed; costs are in {shown}"
    ))
}

/// Measures the costs of a cluster with this plan under this load.
///
/// # Errors
/// Those of a benchmark, and if nothing was committed.
pub fn measure(bench: &bench::Arguments, plan: Plan) -> Result<Costs, Failure> {
    let plan = Plan { is_metered: true, ..plan };
    let (workload, settings) = (bench.workload()?, bench.workload_settings());
    let protocol = plan.protocol.clone();
    let messages = with_protocol(&protocol, MessageKinds)?;
    let runtime = crate::runtime(1)?;
    let work =
        async |cluster: &mut Cluster| bench::measure(bench, cluster, &workload, &settings).await;
    let measured = runtime.block_on(Cluster::run_while(plan, bench.place(), work))?;
    costs(bench, &protocol, &measured, messages)
}

/// The kinds of a protocol's messages.
pub struct MessageKinds;

impl WithProtocol for MessageKinds {
    type Output = &'static [&'static str];

    fn run<P: Protocol>(self) -> Self::Output {
        P::Message::KINDS
    }
}

fn costs(
    arguments: &bench::Arguments,
    protocol: &str,
    measured: &Measured,
    messages: &'static [&'static str],
) -> Result<Costs, Failure> {
    let run = measured.median();
    let used = &run.used;
    let committed = run.stats.all().count();
    let calls = committed + run.stats.aborts.values().sum::<u64>();
    if committed == 0 {
        let message = "nothing was committed in the measured time: increase --secs or --clients";
        return Err(Failure::Failed(message.to_owned()));
    }
    let nodes_us: f64 = used.node_cpu_us.iter().sum();
    let counted = Counted::of(&used.counters);
    let explained_us = counted.ns() / 1e3;
    let background_us = (nodes_us - explained_us).max(0.0) / calls as f64;
    let per_call = [("load_call", used.load_cpu_us / calls as f64), ("background", background_us)];
    let (workload, _) = arguments.names();
    let calibration = Calibration {
        date: date(),
        commit: commit(),
        machine: machine(),
        workload: workload.to_owned(),
        options: arguments.in_words(),
        protocol: protocol.to_owned(),
        txns_per_sec: rounded(committed as f64 / run.elapsed.as_secs_f64()),
        cpu_us_per_txn: rounded((nodes_us + used.load_cpu_us) / committed as f64),
        explained_percent: rounded(explained_us / nodes_us * 100.0),
    };
    // Acknowledgements and votes are not compressed, but they are small compared to batches.
    let wan = used.wan(|node| node);
    let wire_bytes_per_byte = match wan.bytes {
        0 => 1.0,
        plain => wan.wire_bytes as f64 / plain as f64,
    };
    Ok(Costs {
        calibration,
        fsync_us: counted.fsync_us(),
        wire_bytes_per_byte: (wire_bytes_per_byte * 1e4).round() / 1e4,
        lines: counted.lines(messages, &per_call, calls),
    })
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Today's date by the wall clock, in UTC.
fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Returns the date of a day since 1970-01-01, in the Gregorian calendar.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for len in months {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    (year, month, days + 1)
}

/// Returns the commit of this program: the value of `PANGEA_COMMIT` at build time. Otherwise it is
/// the commit of the git repository that contains the executable, if there is one.
pub fn commit() -> String {
    if let Some(built_from) = option_env!("PANGEA_COMMIT") {
        return built_from.to_owned();
    }
    let unknown = || format!("unknown, version {}", env!("CARGO_PKG_VERSION"));
    let Ok(program) = std::env::current_exe() else { return unknown() };
    let directory = program.parent().unwrap_or(Path::new("."));
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(["rev-parse", "--short=7", "HEAD"])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => unknown(),
    }
}

/// Returns the model of the processor and its number of cores.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_779), (2026, 11, 22));
    }
}
