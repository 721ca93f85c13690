//! Running a plan: all points once, then all once more, so that a machine that grows slower or
//! faster meanwhile does not favour one of them.

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

/// Where a sweep's files go, and what is done about those that are there.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory: `runs/`, `figures/` and `report.html`.
    pub out: PathBuf,
    /// Whether results that are there count.
    pub resume: bool,
}

/// How a sweep ended that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Runs with results, those from before too.
    pub done: usize,
    /// Runs that failed.
    pub failed: usize,
    /// Runs that somebody's Ctrl-C left out.
    pub left: usize,
    /// The report.
    pub report: PathBuf,
}

/// Why a sweep could not go on.
#[derive(Debug)]
pub enum SweepError {
    /// There are results, and nobody said whether to go on.
    NotEmpty(PathBuf),
    /// Files can't be read or written.
    Io(PathBuf, io::Error),
}

impl fmt::Display for SweepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEmpty(path) => write!(
                f,
                "{} has results already: --resume goes on with them, --out takes another place",
                path.display()
            ),
            Self::Io(path, error) => write!(f, "can't use {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for SweepError {}

/// One run to be made.
struct Turn<'a> {
    point: &'a Point,
    key: String,
    repeat: u32,
}

/// The runs in their order: every point once, then again. Points with the same options are one.
fn turns<'a>(plan: &Plan, points: &'a [Point], facts: &Facts) -> Vec<Turn<'a>> {
    let mut turns = Vec::new();
    for repeat in 0..plan.repeats {
        let mut seen = BTreeSet::new();
        for point in points {
            let key = point.key(&facts.build);
            if seen.insert(key.clone()) {
                turns.push(Turn { point, key, repeat });
            }
        }
    }
    turns
}

/// What would be run, and how long it would take.
pub fn outline(plan: &Plan, checked: &Checked, bench: &dyn Bench, facts: &Facts) -> String {
    let turns = turns(plan, &checked.points, facts);
    let mut lines: Vec<String> = turns
        .iter()
        .filter(|turn| turn.repeat == 0)
        .map(|turn| format!("  {}", bench.command(turn.point)))
        .collect();
    lines.insert(0, summary(plan, checked, turns.len()));
    lines.join("\n")
}

/// How many runs there are, and how long they take.
fn summary(plan: &Plan, checked: &Checked, runs: usize) -> String {
    let secs = checked.secs(plan.repeats);
    let time = match secs {
        secs if secs < 120.0 => format!("{secs:.0} seconds"),
        secs => format!("{:.0} minutes", secs / 60.0),
    };
    let memory = checked.needs.iter().map(|need| need.memory_mb).fold(0.0, f64::max);
    format!(
        "{}: {runs} runs ({} of each), about {time}, {memory:.0} MB at most",
        plan.title, plan.repeats
    )
}

/// Runs a plan that was checked, and writes its report.
///
/// # Errors
/// When files can't be read or written. What was run until then is kept.
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
    let mut results = Results::open(&runs).map_err(at(&runs))?;
    if !results.is_empty() && !settings.resume {
        return Err(SweepError::NotEmpty(runs));
    }
    let turns = turns(plan, &checked.points, facts);
    let bar = bar(turns.len());
    bar.suspend(|| eprintln!("{}", summary(plan, checked, turns.len())));
    let mut is_interrupted = false;
    for (at_turn, turn) in turns.iter().enumerate() {
        bar.set_position(at_turn as u64);
        bar.set_message(turn.point.to_string());
        if is_interrupted || results.find(&turn.key, turn.repeat).is_some() {
            continue;
        }
        match take(turn, bench, &runs) {
            Some(entry) => {
                bar.suspend(|| eprintln!("{}", line(at_turn + 1, turns.len(), turn, &entry)));
                results.keep(at_turn + 1, entry).map_err(at(&runs))?;
            }
            None => is_interrupted = true,
        }
    }
    bar.finish_and_clear();
    let found = |turn: &&Turn<'_>| results.find(&turn.key, turn.repeat).is_some();
    let entries = turns.iter().filter_map(|turn| results.find(&turn.key, turn.repeat));
    let failed = entries.filter(|entry| entry.failure.is_some()).count();
    let there = turns.iter().filter(found).count();
    let report = report::write(plan, checked, &results, facts, &settings.out);
    Ok(Finished {
        done: there - failed,
        failed,
        left: turns.len() - there,
        report: report.map_err(at(&settings.out))?,
    })
}

/// Makes a run. Nothing where it was interrupted.
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
            // It may not have come to writing anything.
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

/// What is said of a run that has ended.
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
