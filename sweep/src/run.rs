//! Runs a plan in rounds: each round runs all points once. Therefore a machine whose speed changes
//! over time does not favour a point.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use crate::bench::{Bench, Facts, Stop};
use crate::check::Checked;
use crate::measure;
use crate::options::Engine;
use crate::plan::Plan;
use crate::points::Point;
use crate::report;
use crate::results::{Entry, Results, from_prediction};
use crate::tune;

/// The location of a sweep's files, and the treatment of existing ones.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory: `runs/`, `figures/` and `report.html`.
    pub out: PathBuf,
    /// Whether existing results are used.
    pub resume: bool,
}

/// The summary of a completed sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Runs with results, including those from before.
    pub done: usize,
    /// Runs that failed.
    pub failed: usize,
    /// Runs that were skipped because of Ctrl-C.
    pub left: usize,
    /// The path of the report.
    pub report: PathBuf,
}

/// The reason why a sweep could not continue.
#[derive(Debug)]
pub enum SweepError {
    /// There are results, but `resume` is not set.
    NotEmpty(PathBuf),
    /// Files could not be read or written.
    Io(PathBuf, io::Error),
}

impl fmt::Display for SweepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEmpty(path) => write!(
                f,
                "{} already has results: continue with --resume, or use another directory with \
                 --out",
                path.display()
            ),
            Self::Io(path, error) => write!(f, "can't use {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for SweepError {}

/// One scheduled run.
struct Turn<'a> {
    point: &'a Point,
    key: String,
    repeat: u32,
}

/// Returns the runs of a round, in the order of the plan. Points with the same options share a run.
fn turns<'a>(
    points: impl IntoIterator<Item = &'a Point>,
    repeat: u32,
    build: &str,
) -> Vec<Turn<'a>> {
    let mut seen = BTreeSet::new();
    let turns = points.into_iter().map(|point| Turn { point, key: point.key(build), repeat });
    turns.filter(|turn| seen.insert(turn.key.clone())).collect()
}

/// Describes the runs and their estimated duration, without running them.
pub fn outline(plan: &Plan, checked: &Checked, bench: &dyn Bench, facts: &Facts) -> String {
    let turns = turns(&checked.points, 0, &facts.build);
    let commands = turns.iter().map(|turn| format!("  {}", bench.command(turn.point)));
    let summary = summary(plan, checked, facts);
    std::iter::once(summary).chain(commands).collect::<Vec<_>>().join("\n")
}

/// Returns the number of runs and their duration, as text.
fn summary(plan: &Plan, checked: &Checked, facts: &Facts) -> String {
    let secs = checked.secs(plan);
    let time = match secs {
        secs if secs < 120.0 => format!("{secs:.0} seconds"),
        secs => format!("{:.0} minutes", secs / 60.0),
    };
    let memory = checked.needs.iter().map(|need| need.memory_mb).fold(0.0, f64::max);
    let runs = tune::runs(plan, &checked.points, None, &facts.build);
    let each = match &plan.tune[..] {
        [] => format!("{} of each", plan.repeats),
        tuned => format!("one of each, then {} of the best {}", plan.repeats, tuned.join(" and ")),
    };
    format!("{}: {runs} runs ({each}), about {time}, {memory:.0} MB at most", plan.title)
}

/// Runs a checked plan and writes its report.
///
/// # Errors
/// If files cannot be read or written. Earlier results are retained.
pub fn run(
    plan: &Plan,
    checked: &Checked,
    bench: &mut dyn Bench,
    facts: &Facts,
    settings: &Settings,
) -> Result<Finished, SweepError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| SweepError::Io(path, error)
    };
    let runs = settings.out.join("runs");
    let results = Results::open(&runs).map_err(at(&runs))?;
    let mut results = results.with_tuned(tune::tuned(plan, &checked.points, &facts.build));
    if !results.is_empty() && !settings.resume {
        return Err(SweepError::NotEmpty(runs));
    }
    let all = tune::runs(plan, &checked.points, None, &facts.build);
    let bar = bar(all);
    bar.suspend(|| eprintln!("{}", summary(plan, checked, facts)));
    let (mut done, mut failed, mut is_interrupted) = (0, 0, false);
    for repeat in 0..tune::rounds(plan) {
        let round = tune::of_round(plan, &checked.points, &results, &facts.build, repeat);
        for turn in turns(round, repeat, &facts.build) {
            let number = done + failed + 1;
            bar.set_position(number as u64 - 1);
            bar.set_message(turn.point.to_string());
            if results.find(&turn.key, repeat).is_none() && !is_interrupted {
                match take(&turn, bench, &runs) {
                    Some(entry) => {
                        bar.suspend(|| eprintln!("{}", line(number, all, &turn, &entry)));
                        results.keep(entry).map_err(at(&runs))?;
                    }
                    None => is_interrupted = true,
                }
            }
            match results.find(&turn.key, repeat) {
                Some(entry) if entry.failure.is_some() => failed += 1,
                Some(_) => done += 1,
                None => {}
            }
        }
    }
    bar.finish_and_clear();
    let left = if is_interrupted { (all - done - failed).max(1) } else { 0 };
    let report = report::write(plan, checked, &results, facts, &settings.out);
    Ok(Finished { done, failed, left, report: report.map_err(at(&settings.out))? })
}

/// Runs a point. Returns `None` if the run was interrupted.
fn take(turn: &Turn<'_>, bench: &mut dyn Bench, runs: &Path) -> Option<Entry> {
    let json = runs.join("running.part");
    let began = Instant::now();
    let outcome = bench.run(turn.point, &json);
    let (results, failure) = match outcome {
        Ok(()) => match read(turn.point.engine, &json) {
            Ok(results) => (Some(results), None),
            Err(why) => (None, Some(why)),
        },
        Err(Stop::Failed(why)) => (None, Some(why)),
        Err(Stop::Interrupted) => {
            // The run may not have written a file.
            let _ = std::fs::remove_file(&json);
            return None;
        }
    };
    let _ = std::fs::remove_file(&json);
    Some(Entry {
        key: turn.key.clone(),
        repeat: turn.repeat,
        engine: turn.point.engine,
        command: bench.command(turn.point),
        ended: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        took_secs: (began.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        failure,
        results,
    })
}

fn read(engine: Engine, json: &Path) -> Result<serde_json::Value, String> {
    let text = std::fs::read(json).map_err(|error| format!("it wrote no results: {error}"))?;
    let value = serde_json::from_slice(&text);
    let value = value.map_err(|error| format!("its results can't be read: {error}"))?;
    match engine {
        Engine::Real => Ok(value),
        Engine::Predicted => from_prediction(value).ok_or("it has no prediction".to_owned()),
    }
}

/// Returns the message about a run that has ended.
fn line(number: usize, of: usize, turn: &Turn<'_>, entry: &Entry) -> String {
    let found = |path| entry.results.as_ref().and_then(|results| measure::find(results, path));
    let what = match (&entry.failure, found("throughput_per_sec"), found("latency_ms.p50")) {
        (Some(why), _, _) => format!("failed: {why}"),
        (None, Some(rate), Some(p50)) => format!("{rate:.0}/s, p50 {p50:.1} ms"),
        (None, _, _) => "done".to_owned(),
    };
    format!("{number:>4}/{of} {}: {what}", turn.point)
}

fn bar(runs: usize) -> ProgressBar {
    let template = "{wide_bar} {pos}/{len} runs, {eta} left  {msg}";
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    ProgressBar::new(runs as u64).with_style(style)
}
