//! The fuzzer behind the tests called `fuzz`: bytes that are nearly right, for whatever decodes
//! bytes from outside.
//!
//! ```text
//!   seeds: valid encodings --+                +--> new outcome: into the pool
//!                            v                |
//!                          pool --> change --> mend --> look
//!                            ^                |
//!   corpus: found inputs ----+                +--> panic, too much memory, no end: into the corpus
//! ```
//!
//! - **change** flips, inserts, cuts, repeats and splices bytes, and puts numbers where they hurt;
//! - **mend** makes lengths and checksums right again, most of the time, so that a change gets past
//!   them and reaches what lies behind;
//! - **look** is the target's: it decodes, checks what must hold, and says what came of it. Inputs
//!   with an outcome that was not seen before are changed further. That stands in for the coverage
//!   which instrumented fuzzers go by, and needs nothing but stable Rust.
//!
//! What must hold of every input: no panic; no more memory at a time than the target's limit for
//! its length; an end within [`INPUT_MAX`]. An input that breaks it is made smaller, and kept in
//! `fuzz/corpus/<target>/`, from where every later run begins.
//!
//! `cargo test` looks at the corpus and at [`INPUTS_BY_DEFAULT`] inputs, the same ones each time.
//! With `FUZZ_SECS` a target runs for so long, from a seed that it prints and that `FUZZ_SEED`
//! gives again.
//!
//! The files here are part of several crates' tests, by path: what they share is for tests alone,
//! and two of the crates may know neither files nor clocks.

mod mutate;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fastrand::Rng;

/// Inputs of a target where no time is given: most often some tenths of a second.
const INPUTS_BY_DEFAULT: u64 = 20_000;

/// A target that is slow looks at fewer inputs.
const TIME_BY_DEFAULT: Duration = Duration::from_secs(2);

/// The seed where no time is given.
const SEED_BY_DEFAULT: u64 = 7;

/// An input that takes longer is as bad as one that never ends. Far above what a machine that is
/// busy with other work makes of a millisecond.
const INPUT_MAX: Duration = Duration::from_secs(20);

/// How often it is looked whether an input takes too long.
const WATCH: Duration = Duration::from_millis(500);

/// Inputs that are changed further. Beyond it one that is there gives way.
const POOL_MAX: usize = 2_000;

/// Changes to one input. Few, so that most of it stays right.
const CHANGES_MAX: usize = 5;

/// Tries to make a found input smaller.
const SHRINK_TRIES: usize = 2_000;

/// What a target made of an input. The number stands for the outcome: equal ones are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It was decoded, wholly or to its end.
    Taken(u64),
    /// It was refused.
    Refused(u64),
}

impl Outcome {
    /// Decoded into something that is alike where `what` prints alike.
    pub fn taken(what: impl std::fmt::Debug) -> Self {
        Self::Taken(fingerprint(&format!("{what:?}")))
    }

    /// Refused for this reason.
    pub fn refused(why: impl std::fmt::Debug) -> Self {
        Self::Refused(fingerprint(&format!("{why:?}")))
    }
}

/// Digits are left out: where an error is says little, and there would be no end of outcomes.
fn fingerprint(text: &str) -> u64 {
    let bytes = text.bytes().filter(|byte| !byte.is_ascii_digit());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// How large something is, roughly: outcomes that differ in it are not alike.
pub fn size(count: usize) -> u32 {
    count.checked_ilog2().map_or(0, |log| log + 1)
}

/// What decodes bytes, and what must hold of it.
#[derive(Clone)]
pub struct Target {
    /// The name of its folder in the corpus.
    pub name: &'static str,
    /// Valid encodings.
    pub seeds: Vec<Vec<u8>>,
    /// Makes lengths and checksums right, in place.
    pub mend: fn(&mut [u8]),
    /// Decodes, and panics where something that must hold does not.
    pub look: fn(&[u8]) -> Outcome,
    /// The memory that an input may take at a time beside what its length allows.
    pub bytes_max: usize,
    /// The memory that each byte of an input may take.
    pub bytes_per_byte: usize,
}

/// The input that is being looked at, and since when.
type Current = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

/// Runs a target over its corpus and over changed inputs.
///
/// # Panics
/// When an input breaks what must hold. It is in the corpus then.
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
    // A thread of its own, since one that hangs can't be ended.
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

/// How many inputs came to what.
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

    /// What the target makes of an input, or what is wrong with that.
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

    /// Makes a found input smaller, keeps it, and says where.
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

/// The inputs that were found before, in the order of their names.
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

/// A panic of a target is caught and told once: where an input is made smaller there are many.
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
