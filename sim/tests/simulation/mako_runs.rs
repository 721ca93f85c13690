//! Mako with one shard, for a few seeds, without faults and with all that it knows.

use pangea_protocols::mako::{Mako, Options, Reads};
use pangea_sim::trace::Lines;
use pangea_sim::{Settings, run};

use crate::mako_drawn::{
    WORKLOADS, away, deposed, drawn, faults, replaced, settings, several, upgraded,
};
use crate::runs::clean;

#[test]
fn mako_is_strictly_serializable_without_faults() {
    for workload in WORKLOADS {
        for seed in 1_000..1_003 {
            clean::<Mako>(&settings(seed, workload), &Options::default());
        }
    }
}

#[test]
fn mako_keeps_its_guarantee_and_loses_nothing_under_faults() {
    let mut marks = ["mako.leads", "mako.rolled_back"].map(|mark| (mark, 0));
    for workload in ["list-append", "bank", "ranges", "register"] {
        for seed in 1_000..1_008 {
            let settings = Settings { faults: faults(), ..settings(seed, workload) };
            let reads = [Reads::Strict, Reads::Snapshot][seed as usize % 2];
            let report = clean::<Mako>(&settings, &Options { reads, ..Options::default() });
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
        }
    }
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

/// Mako §5.2: a leader that was replaced rolls back what it has executed, and answers nobody. Its
/// clients are answered by the log of the next one.
#[test]
fn a_leader_that_was_replaced_answers_nobody() {
    let mut marks =
        ["mako.rolled_back", "mako.forwarded_again", "mako.known_transaction"].map(|it| (it, 0));
    for workload in ["list-append", "bank"] {
        for seed in 1_000..1_012 {
            let (settings, options) = deposed(seed, workload);
            let report = clean::<Mako>(&settings, &options);
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
        }
    }
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

/// Mako §5.2: "If a shard fails during the steps of closing an old epoch, the CM will initiate a
/// further configuration change".
#[test]
fn leaders_that_fail_one_after_the_other_lose_nothing() {
    let mut fetched = 0;
    for workload in ["list-append", "bank"] {
        for seed in 1_000..1_012 {
            let (settings, options) = several(seed, workload);
            fetched += clean::<Mako>(&settings, &options).counts.mark("mako.log_adopted");
        }
    }
    assert!(fetched > 0, "no log is closed");
}

/// `PANGEA_MAKO_SEEDS` has the first seed and the number of seeds, as in `1000+500`. Of a single
/// one the trace is printed.
#[test]
fn drawn_runs_of_mako_are_clean() {
    let given = std::env::var("PANGEA_MAKO_SEEDS").unwrap_or("0+40".to_owned());
    let (first, count) = given.split_once('+').expect("a seed and a number");
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let mut failed = Vec::new();
    for seed in first..first + count {
        let aimed = match seed % 10 {
            1 => Some(away(seed, "list-append")),
            3 => Some(replaced(seed, "list-append")),
            5 => Some(upgraded(seed)),
            7 => Some(deposed(seed, "list-append")),
            9 => Some(several(seed, "list-append")),
            _ => None,
        };
        for (settings, options) in [drawn(seed)].into_iter().chain(aimed) {
            let lines = if count == 1 { Lines::Print } else { Lines::Off };
            let report = run::<Mako>(&Settings { lines, ..settings }, &options).unwrap();
            if report.violation.is_some() {
                eprintln!("seed {seed}: {options:?}: {report}");
                failed.push(seed);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Low limits: replicas take checkpoints all the time, and one that was away for a moment takes
/// that of a peer.
#[test]
fn replicas_of_mako_that_were_away_continue_from_checkpoints() {
    let mut marks = ["checkpoints.begun", "mako.checkpoint_installed"].map(|mark| (mark, 0));
    let mut compared = 0;
    for workload in ["list-append", "bank", "ranges"] {
        for seed in 2_000..2_012 {
            let (settings, options) = away(seed, workload);
            let report = clean::<Mako>(&settings, &options);
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
            compared += report.counts.digests_compared;
        }
    }
    println!("{marks:?}, {compared} digests compared");
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
    assert!(compared > 1_000, "{compared} digests compared");
}

#[test]
fn a_node_of_mako_that_lost_its_disk_counts_again_in_a_new_epoch() {
    let mut rejoined = 0;
    for workload in ["list-append", "bank"] {
        for seed in 3_000..3_010 {
            let (settings, options) = replaced(seed, workload);
            rejoined += clean::<Mako>(&settings, &options).counts.mark("mako.rejoined");
        }
    }
    assert!(rejoined > 10, "{rejoined} nodes have rejoined");
}

#[test]
fn nodes_of_mako_stop_in_order_and_continue_with_another_program() {
    let (mut stops, mut undone) = (0, 0);
    for seed in 4_000..4_008 {
        let (settings, options) = upgraded(seed);
        let report = clean::<Mako>(&settings, &options);
        stops += report.counts.stops_in_order;
        undone += report.counts.upgrades_undone;
    }
    println!("{stops} nodes have stopped in order, {undone} upgrades were undone");
    assert!(stops > 15, "{stops} nodes have stopped in order");
}

/// A replica without a vote that lost its disk waited for an epoch that nobody had to begin (72).
#[test]
fn seeds_of_swarms_of_mako_that_failed_are_clean() {
    for (settings, options) in [72].map(drawn) {
        clean::<Mako>(&settings, &options);
    }
}
