//! Many drawn runs of Tiga of one kind, as the tests make them for a few seeds.
//!
//! ```sh
//! cargo run --release -p pangea-sim --example tiga_swarm -- wild 0..1000
//! cargo run --release -p pangea-sim --example tiga_swarm -- wild 36      # prints the trace
//! ```
//!
//! Without arguments it lists the kinds. It prints each failure, and then how many there were. The
//! exit code is 1 if there were any.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pangea_protocols::tiga::Tiga;
use pangea_sim::trace::Lines;
use pangea_sim::{Settings, run};

#[path = "../tests/simulation/tiga_drawn.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod tiga_drawn;
#[path = "../tests/simulation/tiga_kinds.rs"]
mod tiga_kinds;
#[path = "../tests/simulation/tiga_partial_drawn.rs"]
mod tiga_partial_drawn;
#[path = "../tests/simulation/tiga_placed.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod tiga_placed;

use tiga_kinds::{Draw, KINDS};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match arguments.as_slice() {
        [kind, seeds] => kind_of(kind).zip(range(seeds)),
        _ => None,
    };
    let Some((drawn, (first, end))) = parsed else {
        eprintln!("usage: tiga_swarm KIND FIRST..END, or KIND SEED. The kinds:");
        for (name, _, meaning) in KINDS {
            eprintln!("  {name:17} {meaning}");
        }
        return ExitCode::from(2);
    };
    let (next, done) = (AtomicU64::new(first), AtomicU64::new(0));
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let (settings, options) = drawn(seed);
            let lines = if end - first == 1 { Lines::Print } else { Lines::Off };
            let report = run::<Tiga>(&Settings { lines, ..settings }, &options)
                .expect("the settings are possible");
            if report.violation.is_some() || report.counts.committed == 0 {
                eprintln!("seed {seed}: {options:?}: {report}");
                failed.lock().expect("no thread panics").push(seed);
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(100) {
                eprintln!("{done} of {} seeds", end - first);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut failed = failed.into_inner().expect("no thread panics");
    failed.sort_unstable();
    let of = end - first;
    println!("{}: {} of {of} seeds failed {failed:?}", arguments[0], failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn kind_of(given: &str) -> Option<Draw> {
    KINDS.iter().find(|(name, ..)| *name == given).map(|(_, drawn, _)| *drawn)
}

/// The first seed, and the one after the last.
fn range(text: &str) -> Option<(u64, u64)> {
    let (first, end) = match text.split_once("..") {
        Some((first, end)) => (first.parse().ok()?, end.parse().ok()?),
        None => (text.parse().ok()?, text.parse::<u64>().ok()?.checked_add(1)?),
    };
    (first < end).then_some((first, end))
}
