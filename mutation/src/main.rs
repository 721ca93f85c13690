//! Mutation testing: changes the code that decides in many small ways, and counts the changes that
//! no check notices.
//!
//! 1. [`places`] finds the mutants: a changed operator, condition or number, or a call that is left
//!    out.
//! 2. [`tree`] copies the repository with all mutants in it, each behind a switch ([`rewrite`]), so
//!    that one build has all of them. Mutants that do not compile are left out.
//! 3. [`checks`] runs each test of `core` and `protocols`, and short runs of the simulator, and
//!    records the mutants that each reaches.
//! 4. [`hunt`] runs for each mutant the checks that reach it, in processes of their own with a
//!    limit of time, until one fails.
//! 5. [`report`] has the table by file, and the list of survivors.
//!
//! Everything is kept in `mutation` of cargo's target folder until the code changes, so a second
//! call goes on where the first ended.

mod checks;
mod hunt;
mod places;
mod process;
mod report;
mod rewrite;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::checks::{Check, Runner};
use crate::hunt::{Hunt, Tried};
use crate::places::Mutant;
use crate::process::Stop;
use crate::tree::{Built, Tree};

/// Changes the code of the phases, the executors and the store in many small ways (mutants), and
/// lists the changes that no test and no run of the simulator notices.
///
/// All mutants are in one build of a copy, each behind a switch. Results are kept in
/// target/mutation until the code changes: the next call goes on where this one ended. The table by
/// file and the survivors are printed, and written to target/mutation/report.md.
#[derive(Debug, Parser)]
#[command(
    name = "./mutate",
    after_help = "\
Examples:
  ./mutate --sample 200                           # mutants of all files
  ./mutate --file core/src/store/chain.rs         # all mutants of one file
  ./mutate --file protocols/src/inputs --minutes 30
  ./mutate --file core/src/exec --list            # only lists them
  ./mutate --only core/src/exec/certify.rs:120:9  # all mutants at one place, with the failures

Exit code: 0 after a report, 2 if the copy can't be built or run, 130 after Ctrl-C (with a report of
the mutants tried until then)."
)]
struct Args {
    /// Only mutants of this file or folder; can be repeated.
    #[arg(long, value_name = "PATH")]
    file: Vec<String>,
    /// Only so many mutants, spread over all files.
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Draws the order of the mutants, and so the sample.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Stops after so many minutes, without the build.
    #[arg(long, value_name = "M")]
    minutes: Option<u64>,
    /// Mutants that are tried at a time.
    #[arg(
        long,
        value_name = "J",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    jobs: u16,
    /// The time for the tests of a mutant, and again for the runs of the simulator.
    #[arg(long, value_name = "SECS", default_value_t = 20)]
    secs_each: u32,
    /// Only so many different runs of the simulator, spread over all kinds.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    runs: usize,
    /// Only the mutants at this place, with the output of the check that notices each.
    #[arg(long, value_name = "FILE:LINE[:COLUMN]")]
    only: Option<String>,
    /// Lists the mutants and ends.
    #[arg(long)]
    list: bool,
    /// Forgets the results of earlier calls.
    #[arg(long)]
    again: bool,
}

/// The reason why there is no report.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    fn new(what: &str, error: &dyn fmt::Display) -> Self {
        Self(format!("{what}: {error}"))
    }

    fn text(what: &str) -> Self {
        Self(what.to_owned())
    }
}

/// The build and the recording, as long as the code is the same.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    digest: String,
    /// `--runs` of the recording.
    runs: usize,
    built: Built,
    checks: Vec<Check>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(Failure(why)) => {
            eprintln!("./mutate: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate is in a folder");
    let work = target_directory(root)?.join("mutation");
    fs::create_dir_all(&work).map_err(|error| Failure::new("target", &error))?;
    let tree = Tree::read(root, &work)?;
    let chosen = chosen(&tree, args);
    if args.list {
        chosen.iter().for_each(|&number| println!("{}", tree.mutants[number as usize]));
        return Ok(ExitCode::SUCCESS);
    }
    if chosen.is_empty() {
        return Err(Failure::text("there are no mutants there; --list lists all"));
    }
    let stop = Stop::on_interrupt().map_err(|error| Failure::new("Ctrl-C", &error))?;
    let Some(state) = state(&tree, &work, args, &stop)? else { return Ok(ExitCode::from(130)) };
    let is_built = |number: &u32| !state.built.left_out.contains(number);
    let chosen: Vec<u32> = chosen.into_iter().filter(is_built).collect();
    let runner = Runner { built: &state.built, work: work.clone(), stop: stop.clone() };
    process::limit_memory().map_err(|error| Failure::new("memory", &error))?;
    let hunt = Hunt::new(&runner, &tree.mutants, &state.checks, args.secs_each);
    if args.only.is_some() {
        return show(&hunt, &chosen);
    }

    let results = work.join("results.jsonl");
    let mut tried = earlier(&results, &tree.mutants, args.secs_each);
    let left: Vec<u32> =
        chosen.iter().copied().filter(|number| !tried.contains_key(number)).collect();
    eprintln!("{} mutants, {} of them tried before", chosen.len(), chosen.len() - left.len());
    let minutes = args.minutes.unwrap_or(60 * 24 * 365);
    let until = Instant::now() + Duration::from_secs(minutes * 60);
    tried.extend(hunt.try_all(&left, until, usize::from(args.jobs), &results)?);

    let of_chosen = chosen.iter().filter_map(|number| tried.get(number));
    let built = (0..tree.mutants.len() as u32).filter(is_built);
    let built = built.filter(|&number| tree.decides(&tree.mutants[number as usize]));
    let mutants = built.map(|number| &tree.mutants[number as usize]);
    let text = report::report(mutants, of_chosen);
    let path = work.join("report.md");
    fs::write(&path, &text).map_err(|error| Failure::new("the report", &error))?;
    println!("{text}");
    eprintln!("also in {}", path.display());
    Ok(if stop.is_set() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// Returns cargo's target folder.
fn target_directory(root: &Path) -> Result<PathBuf, Failure> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|error| Failure::new("can't run cargo", &error))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::new("cargo metadata", &error))?;
    let folder = metadata["target_directory"].as_str();
    folder.map(PathBuf::from).ok_or_else(|| Failure::text("cargo has no target folder"))
}

/// Returns the numbers of the mutants to try, in an order whose every beginning is spread over all
/// files by their numbers of mutants.
fn chosen(tree: &Tree, args: &Args) -> Vec<u32> {
    let is_at = |mutant: &Mutant, place: &str| {
        let Mutant { file, line, column, .. } = mutant;
        place == format!("{file}:{line}") || place == format!("{file}:{line}:{column}")
    };
    let is_in = |mutant: &Mutant, path: &String| {
        let path = path.trim_start_matches("./").trim_end_matches('/');
        mutant.file == path || mutant.file.starts_with(&format!("{path}/"))
    };
    let mut by_file: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (number, mutant) in tree.mutants.iter().enumerate() {
        let is_chosen = args.file.is_empty() || args.file.iter().any(|path| is_in(mutant, path));
        let is_chosen = is_chosen && tree.decides(mutant);
        if is_chosen && args.only.as_ref().is_none_or(|place| is_at(mutant, place)) {
            by_file.entry(&mutant.file).or_default().push(number as u32);
        }
    }
    let mut dice = fastrand::Rng::with_seed(args.seed);
    let mut order: Vec<(f64, u32)> = Vec::new();
    for mut numbers in by_file.into_values() {
        dice.shuffle(&mut numbers);
        let (count, offset) = (numbers.len() as f64, dice.f64());
        let place = |at: usize| (at as f64 + offset) / count;
        order.extend(numbers.into_iter().enumerate().map(|(at, number)| (place(at), number)));
    }
    if args.list {
        order.sort_by_key(|&(_, number)| number);
    } else {
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }
    order.truncate(args.sample.unwrap_or(usize::MAX));
    order.into_iter().map(|(_, number)| number).collect()
}

/// Returns the build and the recording of this code; `None` after Ctrl-C. If the code changed,
/// forgets the results.
fn state(tree: &Tree, work: &Path, args: &Args, stop: &Stop) -> Result<Option<State>, Failure> {
    let (path, results) = (work.join("state.json"), work.join("results.jsonl"));
    let known: Option<State> =
        checks::load(&path).filter(|it: &State| it.digest == tree.digest && it.runs == args.runs);
    if known.is_none() || args.again {
        let _ = fs::remove_file(&results);
    }
    if let Some(state) = known {
        return Ok(Some(state));
    }
    let jobs = usize::from(args.jobs);
    eprintln!("building {} mutants", tree.mutants.len());
    let built = tree.build(jobs);
    if stop.is_set() {
        return Ok(None);
    }
    let built = built?;
    let runner = Runner { built: &built, work: work.to_owned(), stop: stop.clone() };
    let checks = runner.record(jobs, args.runs)?;
    if stop.is_set() {
        return Ok(None);
    }
    let state = State { digest: tree.digest.clone(), runs: args.runs, built, checks };
    let text = serde_json::to_vec(&state).expect("the state can be written");
    fs::write(&path, text).map_err(|error| Failure::new("the state", &error))?;
    Ok(Some(state))
}

/// Reads the results of earlier calls. A mutant that survived for less time is tried again.
fn earlier(results: &Path, mutants: &[Mutant], secs_each: u32) -> BTreeMap<u32, Tried> {
    let text = fs::read_to_string(results).unwrap_or_default();
    // A line that was not written to its end is tried again.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Tried>(line).ok());
    let is_final = |tried: &Tried| {
        !matches!(tried.outcome, hunt::Outcome::Survived { .. }) || tried.secs_each >= secs_each
    };
    let numbered = lines.filter(is_final).filter_map(|tried| {
        let number = mutants.iter().position(|mutant| *mutant == tried.mutant)?;
        Some((number as u32, tried))
    });
    numbered.collect()
}

/// Tries a few mutants, and prints the output of the check that notices each.
fn show(hunt: &Hunt<'_>, chosen: &[u32]) -> Result<ExitCode, Failure> {
    for &number in chosen {
        let Some(outcome) = hunt.try_one(number, 0)? else { return Ok(ExitCode::from(130)) };
        println!("{}\n{outcome}", hunt.mutants[number as usize]);
        if matches!(outcome, hunt::Outcome::Killed { .. } | hunt::Outcome::Timeout { .. }) {
            println!("{}", fs::read_to_string(hunt.runner.output(0)).unwrap_or_default());
        }
    }
    Ok(ExitCode::SUCCESS)
}
