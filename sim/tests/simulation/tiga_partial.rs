//! Tiga with replicas of each shard in some of the regions, and with replicas that have no vote.

use pangea_core::ids::{NodeId, RegionId};
use pangea_core::topology::Replicas;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::minerva::Minerva;
use pangea_protocols::tiga::{Options, Tiga};
use pangea_sim::history::End;
use pangea_sim::{Settings, run};

use crate::runs::clean;
use crate::tiga_drawn::{WORKLOADS, cut_from_voters, settings};
use crate::tiga_partial_drawn::{
    away_partial, drawn_non_voting, drawn_partial, replaced_partial, upgraded_partial,
};

/// Replicas in the regions of these numbers.
fn replicas(of: &[&[u16]]) -> Option<Replicas> {
    let regions = |of: &&[u16]| of.iter().copied().map(RegionId).collect();
    Some(Replicas::new(of.iter().map(regions).collect()).unwrap())
}

#[test]
fn regions_that_lack_shards_are_serializable_without_faults() {
    for (seed, workload) in (1_000..).zip(WORKLOADS) {
        let (two, three) =
            (replicas(&[&[0, 1, 2], &[1, 2, 3]]), replicas(&[&[0, 1, 2], &[3], &[1, 3, 4]]));
        let two = Settings { nodes: 4, shards: 2, replicas: two, ..settings(seed, workload) };
        let three = Settings { nodes: 5, shards: 3, replicas: three, ..settings(seed, workload) };
        for settings in [two, three] {
            let report = clean::<Tiga>(&settings, &Options::default());
            assert!(report.counts.mark("tiga.outcome_sent") > 0, "{report}");
        }
    }
}

/// Seeds with a story: in 148 all nodes were down for an upgrade when the simulator looked for the
/// last version, and in 570 they had not run their logs again. It compared rows with those nodes.
/// In 1170 nodes that stop waited for three seconds only, and shards were 400 ms apart.
#[test]
fn drawn_runs_of_regions_that_lack_shards_are_clean() {
    for seed in (0..30).chain([148, 570, 1_170]) {
        let (settings, options) = drawn_partial(seed);
        clean::<Tiga>(&settings, &options);
    }
}

#[test]
fn a_node_of_a_region_that_lacks_shards_takes_a_checkpoint_or_replaces_its_disk() {
    let marks = ["tiga.checkpoint_installed", "tiga.rejoined", "tiga.rows_truncated"];
    let mut marks = marks.map(|mark| (mark, 0));
    for seed in 0..10 {
        for (settings, options) in [away_partial(seed), replaced_partial(seed)] {
            let report = clean::<Tiga>(&settings, &options);
            marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
        }
    }
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

#[test]
fn nodes_of_regions_that_lack_shards_continue_with_another_program() {
    let mut stops = 0;
    for seed in 0..10 {
        let (settings, options) = upgraded_partial(seed);
        stops += clean::<Tiga>(&settings, &options).counts.stops_in_order;
    }
    assert!(stops > 15, "{stops} nodes have stopped in order");
}

#[test]
fn drawn_runs_with_non_voting_replicas_are_clean() {
    for seed in 0..20 {
        let (settings, options) = drawn_non_voting(seed);
        clean::<Tiga>(&settings, &options);
    }
}

#[test]
fn replicas_without_a_vote_save_no_commit_of_a_leader_that_fails_with_them() {
    for seed in 0..6 {
        let (settings, options) = cut_from_voters(seed);
        let report = clean::<Tiga>(&settings, &options);
        assert!(report.counts.mark("tiga.view_proposed") > 1, "{report}");
    }
}

/// Of three regions the voting replicas are in the first two. A client of the third one commits
/// through the node there.
#[test]
fn a_region_without_a_vote_commits_for_its_clients_and_leads_nothing() {
    for shards in [1, 2] {
        let settings = Settings { nodes: 2, shards, non_voting: 1, ..settings(3, "list-append") };
        let report = clean::<Tiga>(&settings, &Options::default());
        let gateway = NodeId(2 * shards);
        let own = report.history.operations.iter().filter(|it| it.node == gateway);
        assert!(own.filter(|it| matches!(it.end, End::Committed { .. })).count() > 10, "{report}");
    }
    let settings = Settings { non_voting: 1, ..settings(1, "list-append") };
    let why = run::<Minerva>(&settings, &Default::default()).err().unwrap();
    assert!(why.contains("id = 3 has `votes = false`; all nodes of protocol \"minerva\""), "{why}");
}

#[test]
fn a_protocol_that_needs_all_shards_in_each_region_refuses_others() {
    let settings = Settings {
        shards: 2,
        replicas: replicas(&[&[0, 1, 2], &[1]]),
        ..settings(1, "list-append")
    };
    let why = run::<Calvin>(&settings, &Default::default()).err().unwrap();
    assert!(why.contains("\"eu-west\" has no node with shard = 1; protocol \"calvin\""), "{why}");
    let settings = Settings { shards: 3, ..settings };
    let why = run::<Tiga>(&settings, &Options::default()).err().unwrap();
    assert_eq!(why, "there are replicas of 2 shards, and 3 partitions");
}
