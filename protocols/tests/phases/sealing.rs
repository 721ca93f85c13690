//! Batches of a member that is being removed.

use pangea_protocols::geogauss::{GeoGauss, Options};

use super::support::{ClusterOf, Fate};

/// A cluster whose third node has crashed and was removed: the leader, a member and that node.
fn with_one_away() -> (ClusterOf<GeoGauss>, [usize; 3]) {
    let options = Options { removal_ms: 1_000, ..Options::default() };
    let mut cluster = ClusterOf::<GeoGauss>::new(3, options);
    cluster.run_for(1_000);
    let leader = cluster.leader();
    let (member, away) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.crash(away);
    cluster.run_for(3_000);
    assert_eq!(cluster.members(leader), 2);
    (cluster, [leader, member, away])
}

/// Story: a replica that was away had batches of a peer after a gap, which it asked a checkpoint to
/// fill, when it reported on the seal that removed this peer. The checkpoint came after the report.
/// The replica then took these batches for complete, and merged epochs that the next view does not
/// contain.
#[test]
fn batches_after_a_gap_are_not_taken_after_the_report_on_a_seal() {
    let (mut cluster, [leader, cut, away]) = with_one_away();
    for _ in 0..5 {
        cluster.call(cut, "add x 1");
        cluster.call(leader, "add y 1");
        cluster.run_for(200);
    }
    // The others have dropped these batches.
    cluster.run_for(3_000);
    cluster.on_words(move |from, to, words| match words {
        words if words.starts_with("CheckpointChunk") => Fate::HoldBack,
        words if words.starts_with("Report") => Fate::HoldBack,
        words if words.starts_with("Batch") && (from, to) == (cut, leader) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.start(away);
    cluster.run_for(500);
    cluster.call(cut, "add x 1");
    cluster.run_for(100);
    assert!(cluster.mark(away, "streams.batch_after_gap") > 0);
    cluster.crash(cut);
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(away, "geogauss.checkpoint_installed"), 0);
    cluster.on_words(|_, _, words| match words {
        words if words.starts_with("Report") => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.release();
    cluster.run_for(1_000);
    assert_eq!(cluster.mark(away, "geogauss.checkpoint_installed"), 1);
    cluster.heal();
    cluster.run_for(3_000);
    cluster.start(cut);
    cluster.run_for(10_000);
    assert_eq!(cluster.members(leader), 3);
    assert_eq!(cluster.everywhere("x"), "5");
    assert_eq!(cluster.everywhere("y"), "5");
}

/// Story: a replica that was about to join, in place of a member that was gone, lost its disk
/// before its report arrived. It reported without the batches that it had acknowledged. A commit
/// that was on its disk and on that of the member was lost, although the member came back.
#[test]
fn a_replica_without_its_disk_does_not_report_on_a_seal_before_it_has_its_data() {
    let (mut cluster, [leader, gone, joins]) = with_one_away();
    // The leader lets it not join yet, and gets none of the batches.
    cluster.on_words(move |from, to, words| match words {
        words if words.starts_with("Progress") && from == joins => Fate::Lose,
        words if words.starts_with("Batch") && to == leader => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.start(joins);
    cluster.run_for(500);
    let ticket = cluster.call(gone, "add x 1");
    cluster.run_for(500);
    assert!(cluster.outcome(gone, ticket).is_some(), "it is on two disks");
    cluster.crash(gone);
    cluster.on_words(move |_, to, words| match words {
        words if words.starts_with("Report") => Fate::Lose,
        words if words.starts_with("Batch") && to == leader => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.run_for(2_000);
    assert!(cluster.mark(joins, "geogauss.sealed") > 1);
    cluster.crash(joins);
    cluster.replace(joins);
    cluster.on_words(move |_, _, words| match words {
        words if words.starts_with("Batch") => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.start(gone);
    cluster.run_for(3_000);
    cluster.heal();
    cluster.run_for(5_000);
    assert_eq!(cluster.members(leader), 3);
    assert_eq!(cluster.everywhere("x"), "1");
}
