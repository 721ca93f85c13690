//! Mako over several shards, for a few seeds, without faults and with all that it knows.

use pangea_protocols::mako::{Mako, Options};

use crate::mako_divided::{
    WORKLOADS, crowded, deposed, divided, drawn, flapping, grouped, several,
};
use crate::mako_together::together;
use crate::runs::{clean, drawn_seeds};

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

#[test]
fn mako_over_shards_survives_contention() {
    for seed in 1_000..1_006 {
        let (settings, options) = crowded(seed);
        clean::<Mako>(&settings, &options);
    }
}

/// A shard that has not heard how a transaction has ended asks its coordinator.
#[test]
fn mako_over_shards_survives_lost_messages() {
    let mut late = 0;
    for seed in 1_000..1_006 {
        let (settings, options) = flapping(seed);
        late += clean::<Mako>(&settings, &options).counts.mark("mako.attempt_late");
    }
    assert!(late > 0, "no message is lost");
}

/// Mako §5.2: transactions that depend on what a failed leader has lost are void on all shards.
#[test]
fn mako_over_shards_loses_nothing_when_leaders_are_replaced() {
    let mut marks = ["mako.rolled_back", "mako.void"].map(|mark| (mark, 0));
    for seed in 1_000..1_010 {
        let (settings, options) = deposed(seed);
        let report = clean::<Mako>(&settings, &options);
        marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
    }
    println!("{marks:?}");
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

/// Mako §6.1: shards share entries of clocks. A transaction then waits for shards on which it does
/// not depend, and those may fail, too.
#[test]
fn mako_over_shards_is_right_with_groups_of_shards() {
    for seed in 2_000..2_006 {
        let (settings, options) = grouped(seed);
        clean::<Mako>(&settings, &options);
    }
}

/// Mako §5.2: transactions whose coordinator fails end on all shards alike.
#[test]
fn mako_over_shards_ends_what_hangs() {
    let mut marks = ["mako.installed_late", "mako.dropped_late"].map(|mark| (mark, 0));
    for seed in 1_000..1_012 {
        let (settings, options) = several(seed);
        let report = clean::<Mako>(&settings, &options);
        marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
    }
    println!("{marks:?}");
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

/// A follower applied entries of the epoch before that the cut had made void, because it knew the
/// version that all shards had in the next epoch, but had not received the cut (1,007).
///
/// An attempt whose program read rows of another shard one after the other was given up before its
/// last answer arrived, each time, so the transaction never ended (8).
///
/// Transactions of two coordinators refused each other without end, because they rested for less
/// time than an attempt takes (79 and 131 of those that are drawn).
#[test]
fn seeds_of_mako_over_shards_that_failed_are_clean() {
    for (settings, options) in [1_001, 1_005, 1_006, 1_007].map(deposed) {
        clean::<Mako>(&settings, &options);
    }
    for (settings, options) in [8, 1_001, 1_003, 1_010, 1_011].map(several) {
        clean::<Mako>(&settings, &options);
    }
    for (settings, options) in [79, 131].map(drawn) {
        clean::<Mako>(&settings, &options);
    }
}

/// `PANGEA_MAKO_SHARDS=together/1000+50` runs others.
#[test]
fn drawn_runs_of_mako_over_shards_are_clean() {
    drawn_seeds::<Mako>("PANGEA_MAKO_SHARDS", "drawn/0+20", |kind, seed| match kind {
        "crowded" => crowded(seed),
        "deposed" => deposed(seed),
        "several" => several(seed),
        "flapping" => flapping(seed),
        "together" => together(seed),
        "grouped" => grouped(seed),
        "drawn" => drawn(seed),
        workload => {
            let shards = [2, 3, 4][seed as usize % 3];
            (divided(seed, workload, shards), Options::default())
        }
    });
}
