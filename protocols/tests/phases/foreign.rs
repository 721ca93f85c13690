//! Nodes of another cluster with the same names.

use super::rejoin::{add, assert_all_run, busy, options};
use super::support::Cluster;

/// Story: a node of another cluster with the same names, or one with its directory, was taken for
/// the peer: both ignored each other's greetings alone. The others took its checkpoint, and lost
/// all their rows.
#[test]
fn a_node_of_another_cluster_changes_nothing_and_stops() {
    let mut foreign = Cluster::not_started(3, options());
    foreign.reseed(1_000);
    foreign.start_all();
    for _ in 0..50 {
        add(&mut foreign, 1);
    }
    foreign.crash(1);
    let mut cluster = busy(3);
    let before = cluster.everywhere("x");
    cluster.crash(1);
    let own = std::mem::replace(&mut cluster.nodes[1].log, foreign.nodes[1].log.clone());
    let synced = cluster.nodes[1].synced;
    (cluster.nodes[1].head, cluster.nodes[1].synced) =
        (foreign.nodes[1].head, foreign.nodes[1].synced);
    let checkpoint =
        std::mem::replace(&mut cluster.nodes[1].checkpoint, foreign.nodes[1].checkpoint.clone());
    cluster.start(1);
    cluster.run_for(5_000);
    let reason = cluster.nodes[1].stopped.as_deref().expect("it belongs to another cluster");
    assert!(reason.contains("another cluster with the same name"), "{reason}");
    assert_eq!([0, 2].map(|id| cluster.value(id, "x")), [before.clone(), before]);
    add(&mut cluster, 0);
    // Its own directory is found again.
    cluster.crash(1);
    let node = &mut cluster.nodes[1];
    (node.log, node.checkpoint, node.stopped) = (own, checkpoint, None);
    (node.head, node.synced) = (synced, synced);
    cluster.start(1);
    cluster.run_for(3_000);
    assert_all_run(&cluster);
    assert_eq!(cluster.everywhere("x"), "7");
}
