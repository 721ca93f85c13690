//! Tiga with one shard, for a few seeds, without faults and with all that it knows.

use pangea_protocols::tiga::{Options, Path, Tiga};
use pangea_sim::Settings;

use crate::runs::clean;
use crate::tiga_drawn::{
    WORKLOADS, away, drawn, faults, mute, replaced, settings, stopped, upgraded,
};

#[test]
fn tiga_is_serializable_without_faults() {
    for workload in WORKLOADS {
        for seed in 1_000..1_003 {
            clean::<Tiga>(&settings(seed, workload), &Options::default());
        }
    }
}

#[test]
fn tiga_keeps_its_guarantee_and_loses_nothing_under_faults() {
    let mut marks = ["tiga.fetch", "tiga.view_started"].map(|mark| (mark, 0));
    for workload in ["list-append", "bank", "ranges", "register"] {
        for seed in 1_000..1_010 {
            let settings = Settings { faults: faults(), ..settings(seed, workload) };
            let report = clean::<Tiga>(&settings, &Options::default());
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
        }
    }
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

#[test]
fn transactions_commit_on_the_fast_path_and_survive_their_leader() {
    let options = Options { path: Path::Super, ..Options::default() };
    let mut marks = ["tiga.fast_commit", "tiga.retreated", "tiga.recovered"].map(|mark| (mark, 0));
    for workload in ["list-append", "bank", "register", "smallbank"] {
        for seed in 1_000..1_016 {
            let settings = Settings { faults: faults(), ..settings(seed, workload) };
            let report = clean::<Tiga>(&settings, &options);
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
        }
    }
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

#[test]
fn what_only_fast_replies_have_committed_is_in_the_next_view() {
    let mut recovered = 0;
    for workload in ["list-append", "bank"] {
        for seed in 1_000..1_010 {
            let (settings, options) = mute(seed, workload);
            recovered += clean::<Tiga>(&settings, &options).counts.mark("tiga.recovered");
        }
    }
    assert!(recovered > 0, "no view begins with transactions that are in no log");
}

/// More of them: `sim/examples/tiga_swarm.rs`.
#[test]
fn drawn_runs_of_tiga_are_clean() {
    for seed in 0..40 {
        let (settings, options) = drawn(seed);
        clean::<Tiga>(&settings, &options);
    }
}

/// Low limits: replicas take checkpoints all the time, and one that was away for a moment takes
/// that of a peer.
#[test]
fn replicas_that_were_away_continue_from_checkpoints() {
    let names = [
        "checkpoints.begun",
        "tiga.checkpoint_installed",
        "tiga.outcome_unknown",
        "tiga.record_after_gap",
    ];
    let mut marks = names.map(|mark| (mark, 0));
    let mut compared = 0;
    for workload in ["list-append", "bank", "ranges"] {
        for seed in 2_000..2_020 {
            let (settings, options) = away(seed, workload);
            let report = clean::<Tiga>(&settings, &options);
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
            compared += report.counts.digests_compared;
        }
    }
    println!("{marks:?}, {compared} digests compared");
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
    assert!(compared > 1_000, "{compared} digests compared");
}

#[test]
fn a_node_that_lost_its_disk_counts_again_when_it_has_the_log_of_a_new_view() {
    let mut rejoined = 0;
    for workload in ["list-append", "bank"] {
        for seed in 3_000..3_015 {
            let (settings, options) = replaced(seed, workload);
            rejoined += clean::<Tiga>(&settings, &options).counts.mark("tiga.rejoined");
        }
    }
    assert!(rejoined > 15, "{rejoined} nodes have rejoined");
}

#[test]
fn nodes_stop_in_order_and_continue_with_another_program() {
    let (mut stops, mut undone) = (0, 0);
    for seed in 4_000..4_008 {
        let (settings, options) = upgraded(seed);
        let report = clean::<Tiga>(&settings, &options);
        stops += report.counts.stops_in_order;
        undone += report.counts.upgrades_undone;
    }
    println!("{stops} nodes have stopped in order, {undone} upgrades were undone");
    assert!(stops > 15, "{stops} nodes have stopped in order");
}

/// Story: nodes that were asked to stop at the same time had not heard of each other, and each of
/// them left the rest of the log to the others. Too few were left to commit it, and the next
/// program refused it (3, 8, 14, 18, and 60 with one shard).
#[test]
fn nodes_that_stop_at_nearly_the_same_time_leave_nothing_to_the_next_program() {
    let mut stops = 0;
    for seed in (0..20).chain([60]) {
        let (settings, options) = stopped(seed);
        stops += clean::<Tiga>(&settings, &options).counts.stops_in_order;
    }
    assert!(stops > 200, "{stops} nodes have stopped in order");
}

/// A replaced node answered strict reads of others (10155, 10245). A checkpoint lacked a
/// transaction that its leader was about to add to the log, because its coordinator had restarted
/// (10288). When nodes stopped one after the other, the last ones added cells that too few were
/// left to commit (10213, 10581). A new leader waited for transactions that all others had
/// forgotten (20077). Followers had accepted a transaction at a later stamp than that of the log,
/// which they did not have yet (30256). A leader that had restarted began its view a second time
/// (10286). A node that was about to end was chosen as the leader (50037). Followers accepted
/// transactions in time after their leader had ended, and the next program recovered them (60341).
/// A leader took transactions although the other replica took part in nothing more (3306, 3762).
#[test]
fn seeds_of_swarms_that_failed_are_clean() {
    let drawn = [10_245, 10_288, 10_286, 30_256].map(drawn);
    let upgraded = [10_213, 10_581, 20_077, 50_037, 60_341, 3_306, 3_762].map(upgraded);
    let aimed = upgraded.into_iter().chain([replaced(10_155, "list-append")]);
    for (settings, options) in drawn.into_iter().chain(aimed) {
        clean::<Tiga>(&settings, &options);
    }
}
