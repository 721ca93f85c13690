//! Shared code of tests of whole runs.

use pangea_core::protocol::Protocol;
use pangea_sim::trace::Lines;
use pangea_sim::{Report, Settings, run};

/// Runs settings that must pass: no violation, and at least one commit.
pub fn clean<P: Protocol>(settings: &Settings, options: &P::Options) -> Report {
    let report = run::<P>(settings, options).unwrap();
    assert!(report.violation.is_none(), "{options:?}: {report}");
    assert!(report.counts.committed > 0, "{report}");
    report
}

/// Runs the kind of runs and the seeds that an environment variable has, as in `drawn/1000+50`. The
/// trace of a single one is printed.
pub fn drawn_seeds<P: Protocol>(
    variable: &str,
    default: &str,
    draw: impl Fn(&str, u64) -> (Settings, P::Options),
) {
    let given = std::env::var(variable).unwrap_or(default.to_owned());
    let parts: Vec<&str> = given.split(['/', '+']).collect();
    let [kind, first, count] = parts[..] else { panic!("{given}") };
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let mut failed = Vec::new();
    for seed in first..first + count {
        let lines = if count == 1 { Lines::Print } else { Lines::Off };
        let (settings, options) = draw(kind, seed);
        let report = run::<P>(&Settings { lines, ..settings }, &options).unwrap();
        if report.violation.is_some() {
            eprintln!("seed {seed}: {options:?}: {report}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
