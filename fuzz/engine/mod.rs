//! The fuzzer behind the tests named `fuzz`: it feeds almost valid bytes to the decoders of
//! external input.
//!
//! ```text
//!   seeds: valid encodings --+                +--> new outcome: into the pool
//!                            v                |
//!                          pool --> change --> mend --> look
//!                            ^                |
//!   corpus: found inputs ----+                +--> panic, too much memory, no end: into the corpus
//! ```
//!
//! - **change** flips, inserts, cuts, repeats and splices bytes, and inserts edge-case numbers;
//! - **mend** corrects lengths and checksums, most of the time, so that a changed input passes
//!   these checks and reaches the code after them;
//! - **look** is the target's: it decodes the input, checks invariants, and returns an outcome.
//!   Inputs with a new outcome are changed further. This replaces the coverage feedback of
//!   instrumented fuzzers, and needs only stable Rust.
//!
//! The invariants for every input are: no panic; peak memory within the target's limit for its
//! length; an end within [`INPUT_MAX`]. An input that violates one is minimized and stored in
//! `fuzz/corpus/<target>/`, where every later run begins.
//!
//! `cargo test` runs the corpus and [`INPUTS_BY_DEFAULT`] inputs, the same ones each time. With
//! `FUZZ_SECS` a target runs for that time, from a seed that it prints and that `FUZZ_SEED` can
//! set.
//!
//! These files are included by path in several crates' tests: they are only for tests, and two of
//! the crates may use neither files nor clocks.

mod mutate;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fastrand::Rng;

/// The number of inputs of a target if no time is given: usually some tenths of a second.
const INPUTS_BY_DEFAULT: u64 = 20_000;

/// The time limit if no time is given, so that slow targets run fewer inputs.
const TIME_BY_DEFAULT: Duration = Duration::from_secs(2);

/// The seed if no time is given.
const SEED_BY_DEFAULT: u64 = 7;

/// The time after which an input counts as endless. It is far above the few milliseconds of an
/// input, even on a busy machine.
const INPUT_MAX: Duration = Duration::from_secs(20);

/// The interval between checks for endless inputs.
const WATCH: Duration = Duration::from_millis(500);

/// The maximum number of inputs in the pool. Above it a new input replaces another.
const POOL_MAX: usize = 2_000;

/// The maximum number of changes to one input. They are few, so that most of the input stays valid.
const CHANGES_MAX: usize = 5;

/// The maximum number of attempts to minimize a found input.
const SHRINK_TRIES: usize = 2_000;

/// The result of a target for an input. Equal numbers mean equivalent outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The input was decoded, wholly or to its end.
    Taken(u64),
    /// The input was refused.
    Refused(u64),
}

impl Outcome {
    /// An input that was decoded; outcomes are equivalent if their `what` prints the same text.
    pub fn taken(what: impl std::fmt::Debug) -> Self {
        Self::Taken(fingerprint(&format!("{what:?}")))
    }

    /// An input that was refused for this reason.
    pub fn refused(why: impl std::fmt::Debug) -> Self {
        Self::Refused(fingerprint(&format!("{why:?}")))
    }
}

/// Digits are ignored: the position of an error carries little information, and would make the
/// number of outcomes unlimited.
fn fingerprint(text: &str) -> u64 {
    let bytes = text.bytes().filter(|byte| !byte.is_ascii_digit());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The order of magnitude of a count, so that outcomes of different sizes differ.
pub fn size(count: usize) -> u32 {
    count.checked_ilog2().map_or(0, |log| log + 1)
}

/// A decoder and its invariants.
#[derive(Clone)]
pub struct Target {
    /// The name of its directory in the corpus.
    pub name: &'static str,
    /// Valid encodings.
    pub seeds: Vec<Vec<u8>>,
    /// Corrects lengths and checksums in place.
    pub mend: fn(&mut [u8]),
    /// Decodes an input, and panics if an invariant is violated.
    pub look: fn(&[u8]) -> Outcome,
    /// The peak memory that an input may use in addition to the allowance for its length.
    pub bytes_max: usize,
    /// The memory that each byte of an input may use.
    pub bytes_per_byte: usize,
}

/// The input that is running, and its start time.
type Current = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

/// Runs a target over its corpus and over changed inputs.
///
/// # Panics
/// When an input violates an invariant. It has then been added to the corpus.
pub fn run(target: Target) {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let secs = variable("FUZZ_SECS");
    let since_epoch =
        || std::time::UNIX_EPOCH.elapsed().expect("it is past 1970").as_nanos() as u64;
    let by_default = if secs.is_some() { since_epoch() } else { SEED_BY_DEFAULT };
    let seed = variable("FUZZ_SEED").unwrap_or(by_default);
    println!("{}: FUZZ_SEED={seed}", target.name);
    let current = Current::default();
    let (done, is_done) = mpsc::channel();
    let name = target.name;
    let (watched, budget) = (current.clone(), secs.map(Duration::from_secs));
    // A separate thread, because a thread that hangs can't be ended.
    let worker = std::thread::spawn(move || {
        let mut fuzzer = Fuzzer::new(target, seed, current);
        let found = fuzzer.run(budget);
        drop(done);
        found
    });
    while let Err(mpsc::RecvTimeoutError::Timeout) = is_done.recv_timeout(WATCH) {
        let input = watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((since, input)) = input
            && since.elapsed() > INPUT_MAX
        {
            let path = keep(name, &input);
            panic!("{name}: no end after {INPUT_MAX:?}: {}", path.display());
        }
    }
    let _: () = is_done.recv().unwrap_or(());
    match worker.join().expect("the fuzzer itself does not panic") {
        Ok(tally) => tally.print(name),
        Err(found) => panic!("{name}: {found}"),
    }
}

/// The counts of inputs by result.
#[derive(Default)]
struct Tally {
    taken: u64,
    refused: u64,
    outcomes: BTreeSet<Outcome>,
}

impl Tally {
    fn print(&self, name: &str) {
        let Self { taken, refused, outcomes } = self;
        println!("{name}: {taken} taken, {refused} refused, {} outcomes", outcomes.len());
        assert!(*taken > 0 && *refused > 0, "{name}: the inputs are all right or all wrong");
    }
}

struct Fuzzer {
    target: Target,
    rng: Rng,
    pool: Vec<Vec<u8>>,
    tally: Tally,
    current: Current,
}

impl Fuzzer {
    fn new(target: Target, seed: u64, current: Current) -> Self {
        silence_panics();
        let rng = Rng::with_seed(seed);
        Self { target, rng, pool: Vec::new(), tally: Tally::default(), current }
    }

    fn run(&mut self, budget: Option<Duration>) -> Result<Tally, String> {
        for (path, input) in corpus(self.target.name) {
            let looked = self.look(&input);
            looked.map_err(|what| format!("{}: {what}", path.display()))?;
            self.pool.push(input);
        }
        for seed in self.target.seeds.clone() {
            let outcome = self.look(&seed).map_err(|what| format!("a seed: {what}: {seed:?}"))?;
            if let Outcome::Refused(_) = outcome {
                return Err(format!("a seed is refused: {seed:?}"));
            }
            self.pool.push(seed);
        }
        let started = Instant::now();
        let mut count = 0;
        let inputs = if budget.is_some() { u64::MAX } else { INPUTS_BY_DEFAULT };
        let budget = budget.unwrap_or(TIME_BY_DEFAULT);
        while count < inputs && started.elapsed() < budget {
            count += 1;
            let input = self.next_input();
            let is_new = match self.look(&input) {
                Ok(outcome) => self.tally.outcomes.insert(outcome),
                Err(what) => return Err(self.keep_smallest(input, &what)),
            };
            if is_new && self.pool.len() < POOL_MAX {
                self.pool.push(input);
            } else if is_new {
                let at = self.rng.usize(..POOL_MAX);
                self.pool[at] = input;
            }
        }
        Ok(std::mem::take(&mut self.tally))
    }

    fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.pool[self.rng.usize(..self.pool.len())].clone();
        for _ in 0..self.rng.usize(1..=CHANGES_MAX) {
            mutate::change(&mut input, &self.pool, &mut self.rng);
        }
        if self.rng.u8(..8) != 0 {
            (self.target.mend)(&mut input);
        }
        input
    }

    /// The target's outcome for an input, or the violated invariant.
    fn look(&mut self, input: &[u8]) -> Result<Outcome, String> {
        let set = |to| *self.current.lock().unwrap_or_else(PoisonError::into_inner) = to;
        set(Some((Instant::now(), input.to_vec())));
        let mut outcome = Err("it did not return".to_owned());
        let memory = allocation_counter::measure(|| {
            IS_SILENT.set(true);
            let looked = catch_unwind(AssertUnwindSafe(|| (self.target.look)(input)));
            IS_SILENT.set(false);
            outcome = looked.map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                text.unwrap_or("a panic without words").to_owned()
            });
        });
        set(None);
        let outcome = outcome?;
        let limit = self.target.bytes_max + self.target.bytes_per_byte * input.len();
        if memory.bytes_max > limit as u64 {
            let took = memory.bytes_max;
            return Err(format!("{took} bytes of memory for {} of input", input.len()));
        }
        match outcome {
            Outcome::Taken(_) => self.tally.taken += 1,
            Outcome::Refused(_) => self.tally.refused += 1,
        }
        Ok(outcome)
    }

    /// Minimizes and stores a found input, and returns a description with its path.
    fn keep_smallest(&mut self, mut input: Vec<u8>, what: &str) -> String {
        let mut tries = SHRINK_TRIES;
        let mut part = input.len() / 2;
        while part > 0 && tries > 0 {
            let mut at = 0;
            while at < input.len() && tries > 0 {
                let mut smaller = input.clone();
                smaller.drain(at..smaller.len().min(at + part));
                let mut mended = smaller.clone();
                (self.target.mend)(&mut mended);
                let fails = [mended, smaller]
                    .into_iter()
                    .find(|it| it.len() < input.len() && self.look(it).is_err());
                match fails {
                    Some(smaller) => input = smaller,
                    None => at += part,
                }
                tries -= 1;
            }
            part /= 2;
        }
        format!("{what}: {}", keep(self.target.name, &input).display())
    }
}

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target)
}

/// The stored inputs, in the order of their names.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(files) = fs::read_dir(folder(target)) else { return Vec::new() };
    let mut paths: Vec<_> = files.map(|file| file.expect("it can be listed").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("it can be read"))).collect()
}

/// Writes an input to the corpus.
fn keep(target: &str, input: &[u8]) -> PathBuf {
    let folder = folder(target);
    fs::create_dir_all(&folder).expect("the corpus can be written");
    let path = folder.join(format!("found-{:016x}", fingerprint(&format!("{input:x?}"))));
    fs::write(&path, input).expect("the corpus can be written");
    path
}

thread_local!(static IS_SILENT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

/// Silences the target's panics, which are caught and reported once; minimizing an input causes
/// many.
fn silence_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_SILENT.get() {
                before(info);
            }
        }));
    });
}
