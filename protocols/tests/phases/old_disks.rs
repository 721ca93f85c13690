//! Old copies of disks: of a node that was replaced, and of a peer of one.

use pangea_protocols::geogauss::{GeoGauss, Options};
use pangea_protocols::minerva::Timer;

use super::rejoin::{add, assert_all_run, busy};
use super::support::ClusterOf;

/// The replaced node may return, with all of its state.
#[test]
fn who_was_replaced_does_not_take_part_any_more() {
    let mut cluster = busy(3);
    cluster.crash(1);
    let log = cluster.nodes[1].log.clone();
    cluster.replace(1);
    cluster.run_for(2_000);
    add(&mut cluster, 1);
    cluster.crash(1);
    cluster.lose_log(1);
    cluster.restore_log(1, log);
    cluster.start(1);
    cluster.run_for(1_000);
    let reason = cluster.nodes[1].stopped.clone().expect("the loss was noticed");
    assert!(reason.contains("an earlier start"), "{reason}");
}

/// Nothing was written since the node was replaced, so its identity alone tells that its disk is
/// the old one. One peer may be wrong about that, but the node does nothing without the other.
#[test]
fn who_was_replaced_waits_for_those_who_may_know_it() {
    let mut cluster = busy(3);
    cluster.run_for(1_000);
    cluster.crash(1);
    let log = cluster.nodes[1].log.clone();
    cluster.replace(1);
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(1, "inputs.rejoined"), 1);
    cluster.crash(1);
    cluster.lose_log(1);
    cluster.restore_log(1, log);
    cluster.crash(2);
    let ready = cluster.mark(1, "presence.ready");
    cluster.start(1);
    let ticket = cluster.call(0, "add x 1");
    cluster.run_for(3_000);
    cluster.batch(0);
    cluster.fire(0, Timer::Epoch);
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(1, "presence.ready"), ready);
    assert_eq!(cluster.outcome(0, ticket), None, "nobody helps to decide it");
    cluster.start(2);
    cluster.run_for(3_000);
    let reason = cluster.nodes[1].stopped.clone().expect("the loss was noticed");
    assert!(reason.contains("an earlier start"), "{reason}");
}

/// Story: node 1 was replaced and has started again since. Node 2 got a copy of its disk from
/// before that, so it knew the former log of node 1. Two nodes knew the present one, so node 2
/// alone was to blame, and stopped for what it had forgotten. Node 1 stopped as well, and advised
/// to replace it: the cluster stood still, and no operator who followed both messages would have
/// got it back, because of three nodes two must remember.
#[test]
fn an_old_copy_of_one_disk_stops_no_other_node_that_was_replaced() {
    let mut cluster = busy(3);
    let old = cluster.nodes[2].log.clone();
    cluster.crash(1);
    cluster.replace(1);
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(1, "inputs.rejoined"), 1);
    add(&mut cluster, 2);
    cluster.crash(1);
    cluster.start(1);
    cluster.run_for(3_000);
    add(&mut cluster, 1);
    assert_all_run(&cluster);
    cluster.crash(2);
    cluster.restore_log(2, old);
    cluster.nodes[2].checkpoint = None;
    cluster.start(2);
    cluster.run_for(3_000);
    let reason = cluster.nodes[2].stopped.as_deref().expect("it has forgotten batches");
    assert!(reason.contains("restored from an old copy"), "{reason}");
    cluster.crash(2);
    assert_eq!(cluster.nodes[1].stopped, None, "its log is the one that the others know");
    add(&mut cluster, 0);
}

/// Node 2 has no clients, so it sends no batches. But it ends the epochs of the others: after a
/// return to an old disk it would add transactions to epochs that they have merged.
#[test]
fn an_idle_replica_of_geogauss_on_an_old_copy_of_its_disk_is_noticed() {
    let mut cluster = ClusterOf::<GeoGauss>::new(3, Options::default());
    let commit = |cluster: &mut ClusterOf<GeoGauss>, name: &str| {
        cluster.call(0, &format!("add {name} 1"));
        cluster.run_for(1_000);
        assert_eq!(cluster.everywhere(name), "1");
    };
    commit(&mut cluster, "x");
    let old = cluster.nodes[2].log.clone();
    // It reserves epochs for some seconds at a time.
    cluster.run_for(20_000);
    commit(&mut cluster, "y");
    cluster.crash(2);
    cluster.restore_log(2, old);
    cluster.start(2);
    cluster.run_for(1_000);
    let reason = cluster.nodes[2].stopped.as_deref().expect("the loss was noticed");
    assert!(reason.contains("has heard that this node ended epoch"), "{reason}");
    assert!(reason.contains("restored from an old copy"), "{reason}");
}
