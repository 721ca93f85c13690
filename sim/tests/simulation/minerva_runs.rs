//! Minerva under faults, for a few seeds; `pangea sim --seeds` runs many.

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::runs::clean;
use pangea_core::time::Span;
use pangea_protocols::minerva::{Minerva, Options, Reads};
use pangea_sim::{RealTime, Settings};

fn settings(seed: u64, workload: &str) -> Settings {
    let workload = workload.to_owned();
    Settings { seed, workload, duration: Span::from_ms(5_000), ..Settings::default() }
}

/// Checkpoints are frequent enough that a run of seconds has some.
fn options() -> Options {
    Options { checkpoint_bytes: 100_000, ..Options::default() }
}

#[test]
fn minerva_is_serializable_and_loses_nothing_under_faults() {
    for workload in ["list-append", "bank"] {
        for seed in 1_000..1_012 {
            clean::<Minerva>(&settings(seed, workload), &options());
        }
    }
}

/// A crash would lose transactions that it acknowledges before its own disk has them.
#[test]
fn a_replica_that_is_alone_is_serializable_and_loses_nothing_under_faults() {
    for workload in ["list-append", "bank", "ranges", "tpcc"] {
        for seed in 1_000..1_010 {
            let settings = Settings { nodes: 1, ..settings(seed, workload) };
            clean::<Minerva>(&settings, &options());
        }
    }
}

#[test]
fn minerva_keeps_the_conditions_of_tpcc_under_faults() {
    clean::<Minerva>(&settings(1_000, "tpcc"), &options());
}

/// Counts the hits of a mark in runs of list-append and bank, none of which may have a violation.
fn marks_of_clean_runs(options: &Options, seeds: Range<u64>, mark: &str) -> u64 {
    let runs = seeds.flat_map(|seed| [(seed, "list-append"), (seed, "bank")]);
    runs.map(|(seed, workload)| {
        clean::<Minerva>(&settings(seed, workload), options).counts.mark(mark)
    })
    .sum()
}

#[test]
fn an_epoch_that_is_applied_in_slices_is_as_one_that_is_not() {
    let options = Options { slice_txns: NonZeroUsize::MIN, ..options() };
    let slices = marks_of_clean_runs(&options, 1_000..1_008, "minerva.epoch_in_slices");
    assert!(slices > 100, "{slices} slices are too few for a conclusion");
}

#[test]
fn a_replica_that_lacks_forgotten_cuts_comes_back() {
    let options = Options { cuts_kept: 10, ..options() };
    let skipped = marks_of_clean_runs(&options, 1_000..1_010, "inputs.cuts_skipped");
    assert!(skipped > 0, "no replica missed any");
}

#[test]
fn ordered_reads_are_strict_where_reads_are() {
    let options = Options { reads: Reads::Strict, ..options() };
    for seed in 1_000..1_006 {
        let settings = Settings { real_time: RealTime::Ordered, ..settings(seed, "list-append") };
        clean::<Minerva>(&settings, &options);
    }
}

#[test]
fn a_run_of_minerva_is_the_same_each_time() {
    for (seed, workload) in [(1, "list-append"), (2, "bank"), (3, "ycsb-a")] {
        let run = || clean::<Minerva>(&settings(seed, workload), &options());
        let (first, again) = (run(), run());
        assert_eq!((first.digest, first.events), (again.digest, again.events), "{first}");
        assert_eq!(first.history, again.history);
    }
}

/// Runs that found a bug, each with its story. The simulator may have changed since, so that they
/// no longer reach the same state. The invariants that they violated are the same.
#[test]
fn runs_that_found_a_bug_stay_clean() {
    let stories = [
        // A restarted node counted fewer decisions than it had applied. The leader had trimmed
        // these because they were applied everywhere, and sent later decisions as if they followed
        // directly.
        (8, "list-append"),
        // A batch that all members had applied was dropped from memory while a checkpoint without
        // it was written, and was then truncated from the log. A restart from that checkpoint
        // lacked it.
        (37, "list-append"),
        // A coordinator's proposal was lost with its leadership. When it was elected again, it
        // considered the cut still in flight and never proposed those heads again.
        (356, "list-append"),
        // A replica that had promised a ballot of its own when it crashed refused forever the lower
        // ballot of the leader that was elected in the meantime.
        (876, "bank"),
        // An installed checkpoint that skipped no local transaction caused a request for an
        // inverted range.
        (14, "bank"),
    ];
    for (seed, workload) in stories {
        clean::<Minerva>(&settings(seed, workload), &options());
    }
}

/// The temporary state is reset every epoch. Two runs of one source with the same base saw each
/// other's writes, but not across a restart, which was the bug. A restarted replica must lay the
/// writes of its in-flight transactions over the snapshot that they ran on. Found at seeds 58, 117
/// and 125.
#[test]
fn the_papers_protocol_is_serializable_under_faults_too() {
    for seed in [40, 58, 117, 125, 1_000, 1_001] {
        clean::<Minerva>(&settings(seed, "list-append"), &Options::paper());
    }
}
