//! Mako over several shards, for a few seeds, without faults and with all that it knows.

use pangea_core::time::Span;
use pangea_protocols::mako::{Mako, Options};
use pangea_sim::trace::Lines;
use pangea_sim::{Settings, run};

use crate::mako_drawn::settings;
use crate::runs::clean;

/// Workloads whose transactions access rows of several shards.
const WORKLOADS: [&str; 8] =
    ["list-append", "bank", "ranges", "register", "long-fork", "write-skew", "smallbank", "tpcc"];

fn divided(seed: u64, workload: &str, shards: u16) -> Settings {
    Settings { shards, one_way_max: Span::from_ms(20), ..settings(seed, workload) }
}

#[test]
fn mako_over_shards_is_strictly_serializable_without_faults() {
    let mut marks = [
        "mako.coordinated",
        "mako.certified",
        "mako.attempt_failed",
        "mako.parked",
        "mako.dependent",
    ]
    .map(|mark| (mark, 0));
    for workload in WORKLOADS {
        for seed in 1_000..1_003 {
            let shards = [2, 3, 4][seed as usize % 3];
            let report = clean::<Mako>(&divided(seed, workload, shards), &Options::default());
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
        }
    }
    println!("{marks:?}");
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

/// `PANGEA_MAKO_SHARDS` has a workload, a number of shards, the first seed and the number of seeds,
/// as in `bank/2/1000+50`. Of a single one the trace is printed.
#[test]
fn given_runs_of_mako_over_shards_are_clean() {
    let Ok(given) = std::env::var("PANGEA_MAKO_SHARDS") else { return };
    let parts: Vec<&str> = given.split(['/', '+']).collect();
    let [workload, shards, first, count] = parts[..] else { panic!("{given}") };
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let mut failed = Vec::new();
    for seed in first..first + count {
        let lines = if count == 1 { Lines::Print } else { Lines::Off };
        let settings = Settings { lines, ..divided(seed, workload, shards.parse().unwrap()) };
        let report = run::<Mako>(&settings, &Options::default()).unwrap();
        if report.violation.is_some() {
            eprintln!("seed {seed}: {report}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
