//! The checks: tests of `core` and `protocols`, and runs of the simulator. One recording run of
//! each tells which mutants it reaches.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::process::{self, End, Stop};
use crate::tree::Built;

/// Executables with tests, all of which are checks.
const TESTS: [&str; 3] = ["pangea_core", "pangea_protocols", "phases"];
/// The executable with runs of the simulator.
pub const SIMULATOR: &str = "mutants";
/// Its test that runs `PANGEA_RUN`.
const RUN: &str = "planted::named::a_run_has_a_name";

/// Tests that are no checks: fuzz targets write what fails into the corpus, some test the planted
/// bugs themselves, and some measure time, which a busy machine may lengthen.
const EXCLUDED: [&str; 3] = ["fuzz::", "planted::", "growth::"];

/// The longest time of a check. Longer ones are left out.
const CHECK_MAX: Duration = Duration::from_secs(20);

/// A check with its recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// The name of the executable.
    pub executable: String,
    /// The name of the test, or of the run of the simulator.
    pub name: String,
    /// The time that it took.
    pub secs: f64,
    /// The mutants that it reaches.
    pub reached: BTreeSet<u32>,
}

/// Runs checks in a build of the copy.
pub struct Runner<'a> {
    /// The build.
    pub built: &'a Built,
    /// A folder for outputs.
    pub work: PathBuf,
    /// Set by Ctrl-C.
    pub stop: Stop,
}

impl Runner<'_> {
    /// Returns a process that runs checks of one executable: any number of tests, or one run.
    pub fn command(&self, executable: &str, names: &[&str]) -> Result<Command, Failure> {
        let (path, folder) = self
            .built
            .executables
            .get(executable)
            .ok_or_else(|| Failure::text(&format!("cargo built no tests {executable}")))?;
        let mut command = Command::new(path);
        command.current_dir(folder).args(["--exact", "--test-threads", "1"]);
        match executable {
            SIMULATOR => command.arg(RUN).arg("--nocapture").env("PANGEA_RUN", names[0]),
            _ => command.args(names),
        };
        // The same cases each time, and none that a failure leaves for the next process.
        command.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.env("RUST_BACKTRACE", "0");
        Ok(command)
    }

    /// The checks: all tests, and so many runs of the simulator, spread over all kinds.
    fn names(&self, runs_max: usize) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut names = Vec::new();
        let output = |command: &mut Command| -> Result<String, Failure> {
            let output = command.output().map_err(|error| Failure::new("a test", &error))?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        for executable in TESTS {
            let listed =
                output(self.command(executable, &[])?.args(["--list", "--format", "terse"]))?;
            let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
            let tests = tests.filter(|name| !EXCLUDED.iter().any(|word| name.contains(word)));
            names.extend(tests.map(|name| (executable, name.to_owned())));
        }
        let listed = output(&mut self.command(SIMULATOR, &["list"])?)?;
        let runs = listed.lines().filter_map(|line| line.split_once("run: "));
        let runs: Vec<&str> = runs.map(|(_, name)| name).collect();
        let count = runs.len().min(runs_max);
        let spread = (0..count).map(|at| runs[at * runs.len() / count]);
        names.extend(spread.map(|name| (SIMULATOR, name.to_owned())));
        Ok(names)
    }

    /// Runs each check once, and records the mutants that it reaches. Those that fail or take too
    /// long without a mutant are left out, and named on stderr.
    ///
    /// # Errors
    /// If a check cannot be run.
    pub fn record(&self, jobs: usize, runs: usize) -> Result<Vec<Check>, Failure> {
        let names = self.names(runs)?;
        let (next, checks) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let record_all = |worker: usize| -> Result<(), Failure> {
            while let Some((executable, name)) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                let at = checks.lock().expect("no worker panics").len();
                if at.is_multiple_of(100) {
                    eprintln!("recording which mutants a check reaches: {at} of {}", names.len());
                }
                match self.record_one(executable, name, worker)? {
                    Ok(check) => checks.lock().expect("no worker panics").push(check),
                    Err(End::Stopped) => return Ok(()),
                    Err(end) => eprintln!("left out: {executable} {name}: {end:?}"),
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let record_all = &record_all;
            let workers: Vec<_> =
                (0..jobs).map(|worker| scope.spawn(move || record_all(worker))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })?;
        let mut checks = checks.into_inner().expect("no worker panics");
        let place = |check: &Check| names.iter().position(|(_, name)| *name == check.name);
        checks.sort_by_cached_key(place);
        Ok(checks)
    }

    fn record_one(
        &self,
        executable: &str,
        name: &str,
        worker: usize,
    ) -> Result<Result<Check, End>, Failure> {
        let numbers = self.work.join(format!("reached-{worker}"));
        let _ = fs::remove_file(&numbers);
        let mut command = self.command(executable, &[name])?;
        command.env("PANGEA_MUTANT", "record").env("PANGEA_MUTANT_REACHED", &numbers);
        let started = Instant::now();
        let end = process::run(&mut command, CHECK_MAX, &self.output(worker), &self.stop)
            .map_err(|error| Failure::new(name, &error))?;
        if end != End::Passed {
            return Ok(Err(end));
        }
        let secs = started.elapsed().as_secs_f64();
        let text = fs::read_to_string(&numbers).unwrap_or_default();
        let reached = text.lines().filter_map(|line| line.parse().ok()).collect();
        Ok(Ok(Check { executable: executable.to_owned(), name: name.to_owned(), secs, reached }))
    }

    /// The file with the output of a worker's last check.
    pub fn output(&self, worker: usize) -> PathBuf {
        self.work.join(format!("output-{worker}"))
    }
}

/// Reads or writes a recording.
pub fn load<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
