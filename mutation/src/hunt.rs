//! Tries mutants: runs the checks that reach a mutant until one notices it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::checks::{Check, Runner, SIMULATOR};
use crate::places::Mutant;
use crate::process::{self, End};

/// The length of a process that runs several tests, in seconds.
const BATCH_SECS: f64 = 1.0;
/// A process is killed after so many times the time that it took without a mutant.
const SLOWER_MAX: f64 = 6.0;
/// That long it may run in any case, in seconds.
const PATIENCE_SECS: f64 = 8.0;
/// The number of checks that are remembered because they noticed a mutant.
const REMEMBERED_MAX: usize = 40;

/// The end of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "end")]
pub enum Outcome {
    /// A check failed.
    Killed {
        /// The check.
        by: String,
    },
    /// A check did not end.
    Timeout {
        /// The check, or the first of several.
        by: String,
    },
    /// All checks passed.
    Survived {
        /// Tests that reach the mutant and ran.
        tests: usize,
        /// Runs of the simulator that reach the mutant and were made.
        runs: usize,
    },
    /// No check reaches the mutant.
    NotReached,
}

/// A mutant with its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// The mutant.
    pub mutant: Mutant,
    /// Its end.
    pub outcome: Outcome,
    /// The time that its tests had, and again the runs of the simulator, in seconds.
    #[serde(default)]
    pub secs_each: u32,
}

/// Tries mutants, and appends each result to a file at once.
pub struct Hunt<'a> {
    /// Runs checks.
    pub runner: &'a Runner<'a>,
    /// All mutants.
    pub mutants: &'a [Mutant],
    /// All checks.
    pub checks: &'a [Check],
    /// The time for the tests of a mutant, and again for the runs of the simulator, in seconds.
    pub secs_each: u32,
    /// Checks that noticed a mutant lately; they run first.
    remembered: Mutex<VecDeque<usize>>,
}

impl<'a> Hunt<'a> {
    /// A hunt with these checks.
    pub fn new(
        runner: &'a Runner<'a>,
        mutants: &'a [Mutant],
        checks: &'a [Check],
        secs_each: u32,
    ) -> Self {
        Self { runner, mutants, checks, secs_each, remembered: Mutex::default() }
    }

    /// Tries the mutants with these numbers, until the time is over.
    ///
    /// # Errors
    /// If a check cannot be run, or a result not be written.
    pub fn try_all(
        &self,
        numbers: &[u32],
        until: Instant,
        jobs: usize,
        results: &Path,
    ) -> Result<BTreeMap<u32, Tried>, Failure> {
        let (next, tried) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let file = File::options().create(true).append(true).open(results);
        let file = Mutex::new(file.map_err(|error| Failure::new("the results", &error))?);
        let work = |worker: usize| -> Result<(), Failure> {
            while !self.runner.stop.is_set() && Instant::now() < until {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&number) = numbers.get(at) else { return Ok(()) };
                let started = Instant::now();
                let Some(outcome) = self.try_one(number, worker)? else { return Ok(()) };
                let mutant = self.mutants[number as usize].clone();
                let secs = started.elapsed().as_secs_f64();
                let word = format!("{outcome}");
                eprintln!("{:>4} of {}  {word}  {secs:.1} s  {mutant}", at + 1, numbers.len());
                let result = Tried { mutant, outcome, secs_each: self.secs_each };
                let line = serde_json::to_string(&result).expect("a result can be written");
                let mut file = file.lock().expect("no worker panics");
                writeln!(file, "{line}").map_err(|error| Failure::new("the results", &error))?;
                tried.lock().expect("no worker panics").insert(number, result);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let work = &work;
            let workers: Vec<_> =
                (0..jobs).map(|worker| scope.spawn(move || work(worker))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })?;
        Ok(tried.into_inner().expect("no worker panics"))
    }

    /// Tries one mutant; `None` after Ctrl-C.
    ///
    /// # Errors
    /// If a check cannot be run.
    pub fn try_one(&self, number: u32, worker: usize) -> Result<Option<Outcome>, Failure> {
        let batches = self.batches(number);
        if batches.is_empty() {
            return Ok(Some(Outcome::NotReached));
        }
        let (mut tests, mut runs) = (0, 0);
        for batch in &batches {
            let first = &self.checks[batch[0]];
            let names: Vec<&str> =
                batch.iter().map(|&check| self.checks[check].name.as_str()).collect();
            let secs: f64 = batch.iter().map(|&check| self.checks[check].secs).sum();
            let mut command = self.runner.command(&first.executable, &names)?;
            command.env("PANGEA_MUTANT", number.to_string());
            let limit = Duration::from_secs_f64(secs * SLOWER_MAX + PATIENCE_SECS);
            let output = self.runner.output(worker);
            let end = process::run(&mut command, limit, &output, &self.runner.stop);
            match end.map_err(|error| Failure::new(&first.name, &error))? {
                End::Passed if first.executable == SIMULATOR => runs += 1,
                End::Passed => tests += batch.len(),
                End::Stopped => return Ok(None),
                End::TimedOut => {
                    self.remember(batch[0]);
                    return Ok(Some(Outcome::Timeout { by: first.name.clone() }));
                }
                End::Failed => {
                    let by = failed(&fs::read_to_string(output).unwrap_or_default());
                    let check = batch.iter().copied().find(|&check| by == self.checks[check].name);
                    self.remember(check.unwrap_or(batch[0]));
                    let by = if check.is_some() { by } else { first.name.clone() };
                    return Ok(Some(Outcome::Killed { by }));
                }
            }
        }
        Ok(Some(Outcome::Survived { tests, runs }))
    }

    /// The checks that reach a mutant: those that noticed others lately, then tests, then runs.
    fn batches(&self, number: u32) -> Vec<Vec<usize>> {
        let reaches = |check: &usize| self.checks[*check].reached.contains(&number);
        let is_test = |check: &usize| self.checks[*check].executable != SIMULATOR;
        let all: Vec<usize> = (0..self.checks.len()).filter(reaches).collect();
        let (mut tests, runs): (Vec<_>, Vec<_>) = all.into_iter().partition(is_test);
        tests.sort_by(|&a, &b| self.checks[a].secs.total_cmp(&self.checks[b].secs));
        let (tests, runs) = (self.affordable(tests), self.affordable(runs));
        let remembered = self.remembered.lock().expect("no worker panics").clone();
        let rank = |check: &usize| remembered.iter().position(|it| it == check);
        let place = |check: &usize| rank(check).unwrap_or(usize::MAX);
        let (mut first, mut tests): (Vec<_>, Vec<_>) =
            tests.into_iter().partition(|check| rank(check).is_some());
        first.sort_by_key(place);
        tests.sort_by_key(|&check| &self.checks[check].executable);
        let mut runs = runs;
        runs.sort_by_key(place);
        let mut batches: Vec<Vec<usize>> = Vec::new();
        for check in first.into_iter().chain(tests) {
            let secs = |batch: &Vec<usize>| -> f64 {
                batch.iter().map(|&check| self.checks[check].secs).sum()
            };
            let own = &self.checks[check];
            let fits = |batch: &&mut Vec<usize>| {
                self.checks[batch[0]].executable == own.executable
                    && secs(batch) + own.secs <= BATCH_SECS
            };
            match batches.last_mut().filter(fits) {
                Some(batch) => batch.push(check),
                None => batches.push(vec![check]),
            }
        }
        batches.extend(runs.into_iter().map(|run| vec![run]));
        batches
    }

    /// The first checks that fit into the time, and one at least.
    fn affordable(&self, mut checks: Vec<usize>) -> Vec<usize> {
        let mut secs = 0.0;
        let count = checks.iter().take_while(|&&check| {
            let is_affordable = secs < f64::from(self.secs_each);
            secs += self.checks[check].secs;
            is_affordable
        });
        let count = count.count();
        checks.truncate(count);
        checks
    }

    fn remember(&self, check: usize) {
        let mut remembered = self.remembered.lock().expect("no worker panics");
        remembered.retain(|&it| it != check);
        remembered.push_front(check);
        remembered.truncate(REMEMBERED_MAX);
    }
}

/// The name of the test that failed, from the output of its process.
fn failed(output: &str) -> String {
    let line = output.lines().find(|line| line.starts_with("test ") && line.ends_with("FAILED"));
    let name = line.and_then(|line| line.strip_prefix("test ")?.split(" - ").next());
    let name = name.and_then(|name| name.split(" ... ").next());
    name.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_that_failed_is_found() {
        let output = "running 2 tests\ntest a::b ... ok\ntest a::c ... FAILED\n";
        assert_eq!(failed(output), "a::c");
        assert_eq!(failed("test a::d - should panic ... FAILED"), "a::d");
        assert_eq!(failed(""), "");
    }
}
