//! Runs many seeds on all processors.

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pangea_core::guarantee::Isolation;
use pangea_core::partition::{Partitions, Rule};
use pangea_core::protocol::{Mark, Protocol};

use crate::check::Violation;
use crate::levels::Levels;
use crate::report::{Counts, Report, wrapped};
use crate::rng::SimRng;
use crate::settings::{RealTime, Settings};

/// A swarm stops after this number of failures.
const FAILURES_MAX: usize = 10;

/// The maximum number of seeds with an undecided history that are listed.
const UNDECIDED_NAMED: usize = 20;

/// Returns the settings and options of a seed's run.
pub type Plan<'a, P> = dyn Fn(u64) -> (Settings, <P as Protocol>::Options) + Sync + 'a;

/// The runs of a swarm and its time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The seeds; the end is excluded.
    pub seeds: Range<u64>,
    /// No run begins after this time.
    pub time: Option<Duration>,
    /// The number of concurrent runs.
    pub threads: usize,
    /// Whether each seed is run twice; both runs must give the same trace.
    pub is_twice: bool,
}

/// The findings of a swarm.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// All marks of the protocol.
    pub marks: &'static [Mark],
    /// The number of seeds that were run.
    pub seeds: u64,
    /// Virtual time, summed over all seeds, in µs.
    pub virtual_us: u64,
    /// Real time.
    pub elapsed: Duration,
    /// Event counts, summed over all seeds.
    pub counts: Counts,
    /// The first seeds for whose histories the checker could not decide whether they are correct.
    pub undecided: Vec<u64>,
    /// Whether each seed was run twice.
    pub is_twice: bool,
    /// Whether everything was drawn from the seeds.
    pub is_drawn: bool,
    /// The failed runs by seed, without their histories.
    pub failures: Vec<Report>,
}

/// Called after each run with the findings so far, and with the run's report if it failed.
pub type Watch<'a> = dyn FnMut(&Summary, Option<&Report>) + Send + 'a;

/// Workloads with increments of one statement, and with references.
const OF_LEVELS: [&str; 2] = ["calvin-micro", "references"];
/// The part of the seeds that have one of them.
const OF_LEVELS_PER_MILLE: u64 = 150;
/// The part of the seeds that have additions, if the protocol merges them.
const OF_ADDS_PER_MILLE: u64 = 60;

/// The part of the seeds with lists over several shards in which many transactions only append, by
/// a divisible program.
const OF_DIVISIBLE_PER_MILLE: u64 = 250;

/// Shard counts to draw from, if the protocol supports partitioned tables.
const DRAWN_SHARDS: [u16; 4] = [1, 1, 2, 3];

/// Returns settings and options that are all drawn from the seed.
pub fn drawn<P: Protocol>(seed: u64) -> (Settings, P::Options) {
    drawn_beside::<P>(seed, &toml::Table::new())
}

/// Returns settings and options that are drawn from the seed, except for the given settings of the
/// protocol. A drawn setting that is incompatible with them is dropped.
///
/// # Panics
/// If the protocol has no such setting, or rejects its value.
pub fn drawn_beside<P: Protocol>(seed: u64, given: &toml::Table) -> (Settings, P::Options) {
    let drawn = Settings::drawn(seed);
    let nodes = drawn.nodes.max(P::NODES_MIN);
    let shards =
        if P::PARTITIONED { DRAWN_SHARDS[SimRng::fork(seed, "shards", 0).index(4)] } else { 1 };
    let options = P::drawn_options(SimRng::fork(seed, "options", 0).rng());
    let topology = Settings { nodes, ..drawn.clone() }.topology();
    let fits = |options: &P::Options| P::check_options(options, &topology).is_ok();
    let options = if given.is_empty() { options } else { beside::<P>(&options, given, fits) };
    let divided = topology.divided(Partitions::new(shards, Rule::Everywhere));
    let shards = if P::check_options(&options, &divided).is_ok() { shards } else { 1 };
    let real_time = RealTime::promised_by(P::guarantee(&options));
    let workload = match drawn_workload::<P>(seed, &drawn, &options) {
        lists if lists == "list-append" && shards > 1 && draws_divisible(seed) => {
            "list-add".to_owned()
        }
        other => other,
    };
    let drawn = Settings { workload, ..drawn };
    let isolation = drawn_levels::<P>(seed, &drawn, &options);
    (Settings { nodes, shards, isolation, real_time, ..drawn }, options)
}

/// Whether lists over several shards have transactions that only append.
fn draws_divisible(seed: u64) -> bool {
    SimRng::fork(seed, "list-add", 0).chance(OF_DIVISIBLE_PER_MILLE)
}

/// Replaces the workload of some seeds by one with conditions that weak levels could violate, if
/// the protocol offers several levels, or by one with additions.
fn drawn_workload<P: Protocol>(seed: u64, drawn: &Settings, options: &P::Options) -> String {
    let mut dice = SimRng::fork(seed, "workload", 0);
    let has_levels = P::isolations(options).offered().count() > 1;
    if has_levels && dice.chance(OF_LEVELS_PER_MILLE) {
        return OF_LEVELS[dice.index(OF_LEVELS.len())].to_owned();
    }
    let merges_adds = P::isolations(options).adds_at(Isolation::ReadCommitted);
    match merges_adds && SimRng::fork(seed, "additions", 0).chance(OF_ADDS_PER_MILLE) {
        true => "tallies".to_owned(),
        false => drawn.workload.clone(),
    }
}

/// Draws a level that the protocol offers and at which the workload's conditions hold, or all of
/// them.
fn drawn_levels<P: Protocol>(seed: u64, drawn: &Settings, options: &P::Options) -> Levels {
    let workload = drawn.workload().expect("drawn workloads are known");
    let weakest = workload.weakest_level();
    let offered = P::isolations(options).offered();
    let enough: Vec<Isolation> = offered.filter(|level| *level >= weakest).collect();
    let at = SimRng::fork(seed, "isolation", 0).index(enough.len() + 1);
    let one = enough.get(at).map(|level| Levels::from(*level));
    one.or_else(|| Levels::of(enough.into_iter())).expect("the strongest level is enough")
}

/// Combines drawn and given settings. If they are incompatible, one drawn setting is reset to its
/// default, or all are if that does not suffice.
fn beside<P: Protocol>(
    drawn: &P::Options,
    given: &toml::Table,
    fits: impl Fn(&P::Options) -> bool,
) -> P::Options {
    let table = |options: &P::Options| {
        toml::Table::try_from(options).expect("options can be written as TOML")
    };
    let with_given = |table: toml::Table| -> P::Options {
        let all: toml::Table = table.into_iter().chain(given.clone()).collect();
        all.try_into().expect("the given options were parsed before")
    };
    let (drawn, default) = (table(drawn), table(&P::Options::default()));
    let one_by_default = default.iter().map(|(key, value)| {
        let one = (key.clone(), value.clone());
        with_given(drawn.clone().into_iter().chain([one]).collect())
    });
    let mut all = std::iter::once(with_given(drawn.clone())).chain(one_by_default);
    all.find(fits).unwrap_or_else(|| with_given(default.clone()))
}

/// The error of a swarm that ended early because a plan was invalid.
#[derive(Clone, Debug)]
pub struct SwarmAborted {
    /// The reason and its seed.
    pub why: String,
    /// The findings until then.
    pub summary: Summary,
}

impl fmt::Display for SwarmAborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for SwarmAborted {}

/// Runs every seed of `seeds` with the same settings, on `threads` threads.
///
/// # Errors
/// If the settings are invalid or the range is empty.
pub fn run_seeds<P: Protocol>(
    seeds: Range<u64>,
    threads: usize,
    settings: &Settings,
    options: &P::Options,
    watch: &mut Watch<'_>,
) -> Result<Summary, Box<SwarmAborted>> {
    let plan = |seed| (Settings { seed, ..settings.clone() }, options.clone());
    run_swarm::<P>(Extent { seeds, time: None, threads, is_twice: false }, &plan, watch)
}

/// Runs all seeds as planned, on several threads. `watch` is called after each run, by one thread
/// at a time.
///
/// # Errors
/// If a plan is invalid or the range is empty.
pub fn run_swarm<P: Protocol>(
    extent: Extent,
    plan: &Plan<'_, P>,
    watch: &mut Watch<'_>,
) -> Result<Summary, Box<SwarmAborted>> {
    let Extent { seeds, time, threads, is_twice } = extent;
    let summary = Summary { marks: P::MARKS, is_twice, ..Summary::default() };
    if seeds.is_empty() {
        let why = format!("no seeds in {}..{}", seeds.start, seeds.end);
        return Err(Box::new(SwarmAborted { why, summary }));
    }
    let next = AtomicU64::new(seeds.start);
    let began = Instant::now();
    let is_stopped = AtomicBool::new(false);
    let is_over = || {
        let is_late = time.is_some_and(|time| began.elapsed() >= time);
        is_late || is_stopped.load(Ordering::Relaxed)
    };
    let shared = Mutex::new(Swarm { summary, watch, began });
    let error = Mutex::new(None::<String>);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (next, shared, error, seeds) = (&next, &shared, &error, &seeds);
            let (is_stopped, is_over) = (&is_stopped, &is_over);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || is_over() {
                        return;
                    }
                    let (settings, options) = plan(seed);
                    match run_and_repeat::<P>(&settings, &options, is_twice) {
                        Ok(report) => {
                            let mut swarm =
                                shared.lock().expect("no thread panics while it holds the lock");
                            if swarm.add(report) >= FAILURES_MAX {
                                is_stopped.store(true, Ordering::Relaxed);
                            }
                        }
                        Err(why) => {
                            let why = format!("seed {seed}: {why}");
                            error
                                .lock()
                                .expect("no thread panics while it holds the lock")
                                .get_or_insert(why);
                            is_stopped.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let mut summary =
        shared.into_inner().expect("no thread panicked while it held the lock").summary;
    summary.failures.sort_by_key(|report| report.settings.seed);
    match error.into_inner().expect("no thread panicked while it held the lock") {
        Some(why) => Err(Box::new(SwarmAborted { why, summary })),
        None => Ok(summary),
    }
}

/// Runs a seed, and runs it again if `is_twice`.
fn run_and_repeat<P: Protocol>(
    settings: &Settings,
    options: &P::Options,
    is_twice: bool,
) -> Result<Report, String> {
    let mut report = crate::run::<P>(settings, options)?;
    if is_twice && report.violation.is_none() {
        let again = crate::run::<P>(settings, options)?;
        let (first, second) = ((report.events, report.digest), (again.events, again.digest));
        if first != second {
            let story = format!(
                "the first run of the seed had a trace of {} events, digest {:016x}, but the \
                 second one of {}, {:016x}",
                first.0, first.1, second.0, second.1
            );
            report.violation = Some(Violation::new("simulator", "not repeatable", story));
        }
    }
    Ok(report)
}

struct Swarm<'a, 'b> {
    summary: Summary,
    watch: &'a mut Watch<'b>,
    began: Instant,
}

impl Swarm<'_, '_> {
    /// Adds a run, and returns the number of failures so far.
    fn add(&mut self, mut report: Report) -> usize {
        let summary = &mut self.summary;
        summary.seeds += 1;
        summary.is_drawn |= report.settings.is_drawn;
        summary.virtual_us += report.virtual_time.us;
        summary.elapsed = self.began.elapsed();
        summary.counts.add(&report.counts);
        if report.counts.undecided > 0 && summary.undecided.len() < UNDECIDED_NAMED {
            summary.undecided.push(report.settings.seed);
        }
        let has_failed = report.violation.is_some();
        if has_failed {
            report.history.operations.clear();
            report.recorded = None;
            summary.failures.push(report);
        }
        let failure = if has_failed { summary.failures.last() } else { None };
        (self.watch)(summary, failure);
        summary.failures.len()
    }
}

impl Summary {
    /// Returns the protocol's marks that no run has hit.
    pub fn never_hit(&self) -> impl Iterator<Item = &'static Mark> {
        self.marks.iter().filter(|mark| !self.counts.marks.contains_key(mark.name))
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
        let never_hit: Vec<&str> = self.never_hit().map(|mark| mark.name).collect();
        // Other runs have one kind of workload and of faults, which hits few marks.
        if self.is_drawn && !never_hit.is_empty() {
            writeln!(f, "  never hit   {}", wrapped(&never_hit.join(", ")))?;
        }
        if !self.undecided.is_empty() {
            let each: Vec<String> = self.undecided.iter().map(u64::to_string).collect();
            writeln!(f, "  undecided   seeds {}", wrapped(&each.join(", ")))?;
        }
        write!(f, "  verdict     {} of {seeds} seeds failed", self.failures.len())?;
        if self.is_twice {
            write!(f, "; each was run twice")?;
        }
        let replay = |report: &Report| write!(f, "\n  replay      {}", report.replay_command());
        self.failures.iter().try_for_each(replay)
    }
}
