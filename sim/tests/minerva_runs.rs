//! Minerva under faults, for a few seeds; `pangea sim --seeds` runs many.

use pangea_core::time::Span;
use pangea_protocols::minerva::{Minerva, Options, Reads};
use pangea_sim::{RealTime, Settings, run};

fn settings(seed: u64, workload: &str) -> Settings {
    let workload = workload.to_owned();
    Settings { seed, workload, duration: Span::from_ms(5_000), ..Settings::default() }
}

/// Checkpoints so often that a run of seconds has some.
fn options() -> Options {
    Options { checkpoint_bytes: 100_000, ..Options::default() }
}

#[test]
fn minerva_is_serializable_and_loses_nothing_under_faults() {
    for workload in ["list-append", "bank"] {
        for seed in 1_000..1_012 {
            let report = run::<Minerva>(&settings(seed, workload), &options()).unwrap();
            assert!(report.violation.is_none(), "{report}");
            assert!(report.counts.committed > 0, "{report}");
        }
    }
}

#[test]
fn minerva_keeps_the_conditions_of_tpcc_under_faults() {
    let report = run::<Minerva>(&settings(1_000, "tpcc"), &options()).unwrap();
    assert!(report.violation.is_none(), "{report}");
}

#[test]
fn ordered_reads_are_strict_where_reads_are() {
    let options = Options { reads: Reads::Strict, ..options() };
    for seed in 1_000..1_006 {
        let settings = Settings { real_time: RealTime::Ordered, ..settings(seed, "list-append") };
        let report = run::<Minerva>(&settings, &options).unwrap();
        assert!(report.violation.is_none(), "{report}");
    }
}

#[test]
fn a_run_of_minerva_is_the_same_each_time() {
    for (seed, workload) in [(1, "list-append"), (2, "bank"), (3, "ycsb-a")] {
        let run = || run::<Minerva>(&settings(seed, workload), &options()).unwrap();
        let (first, again) = (run(), run());
        assert_eq!((first.digest, first.events), (again.digest, again.events), "{first}");
        assert_eq!(first.history, again.history);
    }
}
