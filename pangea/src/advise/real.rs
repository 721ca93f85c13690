//! Runs candidates on this machine: real nodes, with the regions' round trips emulated.
//!
//! One machine sustains less load than the regions' own nodes. Therefore the load is halved until
//! the simulator predicts that this machine's cores suffice. That load is both predicted and run.

use std::time::Duration;

use super::advice::{Check, Loss, Performance, Region, Row};
use super::predicted::{Candidate, Predictions, loss, performance};
use super::{Question, bar};
use crate::bench::{self, Measured, Size, memory_mb, scripted};
use crate::cluster::Cluster;
use crate::failure::Failure;

/// The largest acceptable utilization of the cores: above it, the cores determine the result.
const BUSY_MAX: f64 = 0.80;
/// The load is halved at most this number of times.
const HALVINGS_MAX: u32 = 16;
/// The time from the start of the measured time to the kill of a region, and the time that the
/// region stays down.
const KILL_AT_SECS: u64 = 2;
const KILLED_SECS: u64 = 6;
/// The measured time of a run with a killed region.
const KILL_RUN_SECS: u64 = KILL_AT_SECS + KILLED_SECS + 2;

/// The result of a run.
struct Ran {
    performance: Performance,
    /// The longest time without a commit, by region.
    pauses_ms: Vec<(String, f64)>,
}

/// Runs a finalist on real nodes and returns the result with the prediction for the same load.
/// Returns `None` if the machine does not have enough memory.
///
/// # Errors
/// On an interrupt. Failures on real nodes are returned in the check.
pub fn check(
    question: &Question<'_>,
    predictions: &Predictions<'_>,
    candidate: &Candidate,
) -> Result<Option<Check>, Failure> {
    let (mut clients, mut rate) = question.load();
    let bench = question.bench(candidate, clients, rate, &[])?;
    let regions = question.places.regions.len();
    let size = Size::of(&question.work.workload, bench.sizes(), regions);
    let (needed, free) = (size.needs(question.arguments.secs as f64).memory_mb, memory_mb());
    if needed > free {
        crate::warn(&format!(
            "not run on real nodes: {regions} nodes need about {needed:.0} MB of memory, but only \
             {free:.0} MB are free"
        ));
        return Ok(None);
    }
    let mut predicted = predictions.here(candidate, clients, rate)?;
    for _ in 0..HALVINGS_MAX {
        let cores = predicted.whole.servers.iter().find(|server| server.name == "cores");
        let is_least = rate.map_or(clients <= regions as u32, |rate| rate <= 1.0);
        if is_least || cores.is_none_or(|cores| cores.utilisation <= BUSY_MAX) {
            break;
        }
        match &mut rate {
            Some(rate) => *rate /= 2.0,
            None => clients = (clients / 2).max(regions as u32),
        }
        predicted = predictions.here(candidate, clients, rate)?;
    }
    let lost = loss(&predicted.lossy);
    let longest = |pauses: &[(String, f64)]| pauses.iter().map(|(_, ms)| *ms).fold(0.0, f64::max);
    let mut check = Check {
        clients,
        rate_per_sec: rate,
        predicted: performance(&predicted.whole),
        predicted_pause_ms: lost.as_ref().map_or(0.0, |lost| longest(&lost.pauses_ms)),
        measured: Ok(Performance::default()),
        measured_pause_ms: None,
    };
    let name = candidate.name();
    crate::warn(&format!(
        "running on real nodes: {name}, {clients} clients; then with a region killed"
    ));
    check.measured = run(question, candidate, clients, rate, None)?.map(|ran| ran.performance);
    if check.measured.is_ok()
        && let Some(lost) = &lost
    {
        match run(question, candidate, clients, rate, Some(&lost.region))? {
            Err(wrong) => check.measured = Err(format!("{} killed: {wrong}", lost.region)),
            Ok(ran) => check.measured_pause_ms = Some(longest(&survivors(&ran, &lost.region))),
        }
    }
    Ok(Some(check))
}

fn survivors(ran: &Ran, lost: &str) -> Vec<(String, f64)> {
    ran.pauses_ms.iter().filter(|(name, _)| name != lost).cloned().collect()
}

/// Returns a measured row for each candidate, for workloads that cannot be simulated.
///
/// # Errors
/// On an interrupt, or if the file cannot be run.
pub fn rows(question: &Question<'_>) -> Result<Vec<Row>, Failure> {
    let bar = bar(question.candidates.len(), "measure");
    let (clients, rate) = question.load();
    let mut rows = Vec::with_capacity(question.candidates.len());
    for candidate in &question.candidates {
        bar.set_message(candidate.what);
        rows.push(row(question, candidate, clients, rate)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Measures a candidate twice, the second time with a region killed. If a run fails, only this
/// candidate is disqualified.
fn row(
    question: &Question<'_>,
    candidate: &Candidate,
    clients: u32,
    rate: Option<f64>,
) -> Result<Row, Failure> {
    let mut row = Row {
        protocol: candidate.protocol.to_owned(),
        set: candidate.settings.iter().map(ToString::to_string).collect(),
        what: candidate.what.to_owned(),
        guarantee: candidate.guarantee,
        may_lose: candidate.may_lose,
        is_measured: true,
        performance: Performance::default(),
        coordinator: None,
        loss: None,
        check: None,
        failed: None,
    };
    match run(question, candidate, clients, rate, None)? {
        Ok(whole) => row.performance = whole.performance,
        Err(wrong) => return Ok(Row { failed: Some(wrong), ..row }),
    }
    // The region to kill, whichever region coordinates; if the protocol does not prefer a region,
    // any will do.
    let region = question.places.nearest_to_all().to_owned();
    row.loss = Some(match run(question, candidate, clients, rate, Some(&region))? {
        // The checks at the end of the run have verified all that was acknowledged.
        Ok(ran) => Loss { pauses_ms: survivors(&ran, &region), region, lost_txns: 0, wrong: None },
        Err(wrong) => Loss { region, pauses_ms: Vec::new(), lost_txns: 0, wrong: Some(wrong) },
    });
    Ok(row)
}

/// Runs a candidate once, with or without a killed region. The inner result is an error if the run
/// failed.
fn run(
    question: &Question<'_>,
    candidate: &Candidate,
    clients: u32,
    rate: Option<f64>,
    killed: Option<&str>,
) -> Result<Result<Ran, String>, Failure> {
    let secs = killed.map_or(question.arguments.secs, |_| KILL_RUN_SECS);
    let mut more = vec!["--secs".to_owned(), secs.to_string()];
    more.extend(["--warmup".to_owned(), question.arguments.warmup.to_string()]);
    if let Some(region) = killed {
        let fault = format!("kill:{region}@{KILL_AT_SECS}+{KILLED_SECS}");
        more.extend(["--fault".to_owned(), fault]);
    }
    let bench = question.bench(candidate, clients, rate, &more)?;
    let plan = question.plan(&bench)?;
    let script = bench.script()?;
    let runtime = crate::runtime(1)?;
    let measured =
        runtime.block_on(Cluster::run_while(plan, bench.place(), async |cluster: &mut Cluster| {
            match &script {
                Some(script) => scripted::measure(&bench, cluster, script).await,
                None => {
                    let (workload, settings) = (bench.workload()?, bench.workload_settings());
                    bench::measure(&bench, cluster, &workload, &settings).await
                }
            }
        }));
    match measured {
        Ok(measured) => Ok(Ok(ran(&measured, &question.places.regions))),
        Err(Failure::Failed(what)) => Ok(Err(what)),
        Err(other) => Err(other),
    }
}

fn ran(measured: &Measured, names: &[String]) -> Ran {
    let run = measured.median();
    let ms = |pause: Duration| pause.as_secs_f64() * 1e3;
    let region = |(at, name): (usize, &String)| {
        let samples = run.stats.of_region(at);
        let (p50_ms, p99_ms) = (samples.quantile_ms(0.50), samples.quantile_ms(0.99));
        Region { name: name.clone(), p50_ms, p99_ms }
    };
    let pause = |(at, name): (usize, &String)| {
        (name.clone(), ms(run.stats.timeline.longest_pause(at, run.elapsed)))
    };
    let committed = run.stats.all().count() as f64;
    let aborted = run.stats.aborts.values().sum::<u64>() as f64;
    Ran {
        performance: Performance {
            throughput_per_sec: run.throughput_per_sec(),
            regions: names.iter().enumerate().map(region).collect(),
            aborted: aborted / (aborted + committed).max(1.0),
            wan_bytes_per_txn: run.used.wan(|node| node).wire_bytes as f64 / committed.max(1.0),
        },
        pauses_ms: names.iter().enumerate().map(pause).collect(),
    }
}
