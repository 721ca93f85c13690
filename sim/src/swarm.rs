//! Many seeds, on every processor.

use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pangea_core::protocol::Protocol;

use crate::report::{Counts, Report};
use crate::settings::Settings;

/// Failures after which a swarm stops: more say nothing new.
const FAILURES_MAX: usize = 10;
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(5);

/// What a swarm found.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds that were run.
    pub seeds: u64,
    /// Virtual time, of all seeds.
    pub virtual_us: u64,
    /// Real time.
    pub elapsed: Duration,
    /// What happened how often.
    pub counts: Counts,
    /// The runs that failed, without their histories, in the order of their seeds.
    pub failures: Vec<Report>,
}

/// Runs every seed of `seeds` on `threads` threads, and prints to `out` how far it is and, for each
/// failure, what it was and the command that repeats it.
///
/// # Errors
/// When the settings ask for something that there is not, or the range is empty.
pub fn run_seeds<P: Protocol>(
    seeds: Range<u64>,
    threads: usize,
    settings: &Settings,
    options: &P::Options,
    out: &mut (dyn Write + Send),
) -> Result<Summary, String> {
    if seeds.is_empty() {
        return Err(format!("no seeds in {}..{}", seeds.start, seeds.end));
    }
    let next = AtomicU64::new(seeds.start);
    let shared = Mutex::new(Swarm { summary: Summary::default(), out, told: Instant::now() });
    let error = Mutex::new(None);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            // Options may be sent to a thread, not shared between them.
            let options = options.clone();
            let (next, shared, error, seeds) = (&next, &shared, &error, &seeds);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let settings = Settings { seed, ..settings.clone() };
                    match crate::run::<P>(&settings, &options) {
                        Ok(report) => {
                            let mut swarm = shared.lock().expect("no thread panics with it");
                            if swarm.add(report, began, seeds) >= FAILURES_MAX {
                                next.store(seeds.end, Ordering::Relaxed);
                            }
                        }
                        Err(why) => {
                            *error.lock().expect("no thread panics with it") = Some(why);
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Some(why) = error.into_inner().expect("no thread panicked with it") {
        return Err(why);
    }
    let mut summary = shared.into_inner().expect("no thread panicked with it").summary;
    summary.elapsed = began.elapsed();
    summary.failures.sort_by_key(|report| report.settings.seed);
    Ok(summary)
}

struct Swarm<'a> {
    summary: Summary,
    out: &'a mut (dyn Write + Send),
    told: Instant,
}

impl Swarm<'_> {
    /// Adds a run, and returns how many have failed.
    fn add(&mut self, mut report: Report, began: Instant, seeds: &Range<u64>) -> usize {
        let summary = &mut self.summary;
        summary.seeds += 1;
        summary.virtual_us += report.virtual_time.us;
        summary.counts.add(&report.counts);
        let mut line = String::new();
        if report.violation.is_some() {
            line = format!("{report}\n");
            report.history.operations.clear();
            summary.failures.push(report);
        }
        if self.told.elapsed() >= PROGRESS {
            self.told = Instant::now();
            let rate = summary.seeds as f64 / began.elapsed().as_secs_f64();
            let (done, all) = (summary.seeds, seeds.end - seeds.start);
            let failed = summary.failures.len();
            line += &format!("{done} of {all} seeds, {failed} failed, {rate:.1} a second\n");
        }
        // A reader of the progress that has gone away must not end the swarm.
        let _ = self.out.write_all(line.as_bytes());
        summary.failures.len()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let virtual_s = self.virtual_us as f64 / 1e6;
        let real_s = self.elapsed.as_secs_f64().max(1e-9);
        let (seeds, rate, times) = (self.seeds, self.seeds as f64 / real_s, virtual_s / real_s);
        write!(f, "{seeds} seeds in {real_s:.1} s ({rate:.1} a second): ")?;
        writeln!(f, "{virtual_s:.0} s of virtual time, {times:.0} times real time")?;
        writeln!(f, "{}", self.counts)?;
        write!(f, "  verdict     {} of {seeds} seeds failed", self.failures.len())?;
        let replay = |report: &Report| write!(f, "\n  replay      {}", report.replay_command());
        self.failures.iter().try_for_each(replay)
    }
}
