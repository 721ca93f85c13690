//! How far a swarm is.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pangea_sim::{Report, Summary};

/// How a swarm's progress looks at a terminal.
const PROGRESS_BAR: &str = "{wide_bar} {pos}/{len} seeds, {msg}, {eta} left";
/// How it looks where the time is given.
const TIMED_BAR: &str = "{wide_bar} {pos}/{len} s, {msg}";
/// How often it is drawn while no run ends.
const PROGRESS_TICK: Duration = Duration::from_millis(250);
/// How often it is told where there is no terminal.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

/// How far a swarm is, on stderr: a bar at a terminal, else a line now and then. And every failure.
pub struct Progress {
    bar: ProgressBar,
    /// Of seeds, or of seconds.
    all: u64,
    time: Option<Duration>,
    told: Mutex<Instant>,
}

impl Progress {
    /// Of these seeds, or of so much time.
    pub fn new(seeds: &Range<u64>, time: Option<Duration>) -> Self {
        let (all, template) = match time {
            None => (seeds.end - seeds.start, PROGRESS_BAR),
            Some(time) => (time.as_secs(), TIMED_BAR),
        };
        let style = ProgressStyle::with_template(template).expect("the templates are constants");
        let bar = ProgressBar::new(all).with_style(style);
        bar.enable_steady_tick(PROGRESS_TICK);
        Self { bar, all, time, told: Mutex::new(Instant::now()) }
    }

    /// After each run.
    pub fn on_run(&self, summary: &Summary, failure: Option<&Report>) {
        if let Some(report) = failure {
            self.bar.suspend(|| crate::warn(&report.to_string()));
        }
        let (seeds, failed) = (summary.seeds, summary.failures.len());
        let rate = seeds as f64 / summary.elapsed.as_secs_f64().max(1e-9);
        let position = self.time.map_or(seeds, |_| summary.elapsed.as_secs());
        self.bar.set_position(position);
        let of_time = self.time.map(|_| format!("{seeds} seeds, ")).unwrap_or_default();
        self.bar.set_message(format!("{of_time}{failed} failed, {rate:.1}/s"));
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bar.is_hidden() && told.elapsed() >= PROGRESS_PERIOD {
            *told = Instant::now();
            let (all, unit) = (self.all, if self.time.is_some() { "s" } else { "seeds" });
            crate::warn(&format!(
                "{position} of {all} {unit}, {of_time}{failed} failed, {rate:.1} a second"
            ));
        }
    }

    /// At the end.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
