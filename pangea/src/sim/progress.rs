//! The progress of a swarm.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pangea_sim::{Report, Summary};

/// The progress bar of a swarm.
const PROGRESS_BAR: &str = "{wide_bar} {pos}/{len} seeds, {msg}, {eta} left";
/// The progress bar of a swarm with a given duration.
const TIMED_BAR: &str = "{wide_bar} {pos}/{len} s, {msg}";
/// The refresh interval of the bar while no run ends.
const PROGRESS_TICK: Duration = Duration::from_millis(250);
/// The interval of progress messages if stderr is not a terminal.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

/// Reports the progress of a swarm on stderr: as a bar on a terminal, otherwise as an occasional
/// line. Reports every failure.
pub struct Progress {
    bar: ProgressBar,
    /// The total of seeds, or of seconds.
    all: u64,
    time: Option<Duration>,
    last_line: Mutex<Instant>,
}

impl Progress {
    /// Creates the progress of these seeds, or of this duration.
    pub fn new(seeds: &Range<u64>, time: Option<Duration>) -> Self {
        let (all, template) = match time {
            None => (seeds.end - seeds.start, PROGRESS_BAR),
            Some(time) => (time.as_secs(), TIMED_BAR),
        };
        let style = ProgressStyle::with_template(template).expect("the templates are constants");
        let bar = ProgressBar::new(all).with_style(style);
        bar.enable_steady_tick(PROGRESS_TICK);
        Self { bar, all, time, last_line: Mutex::new(Instant::now()) }
    }

    /// Updates the progress after each run.
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
        let mut last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bar.is_hidden() && last_line.elapsed() >= PROGRESS_PERIOD {
            *last_line = Instant::now();
            let (all, unit) = (self.all, if self.time.is_some() { "s" } else { "seeds" });
            crate::warn(&format!(
                "{position} of {all} {unit}, {of_time}{failed} failed, {rate:.1} a second"
            ));
        }
    }

    /// Removes the bar at the end.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
