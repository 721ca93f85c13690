//! Nodes of another cluster with the same names.

use std::cell::Cell;

use pangea_protocols::calvin::{self, Calvin, Replication};

use super::rejoin::{add, assert_all_run, busy, options};
use super::support::words::{Timer, Transcribed as _};
use super::support::{Cluster, ClusterOf, Fate};

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

/// A cluster whose node `id` has the directory of another cluster with the same names, and the
/// master of both. The foreign node does not reach the third node, so that it meets too few
/// strangers to stop. Of each greeting between it and the master only the first few are delivered,
/// if `are_few`.
fn with_a_foreign_node(are_few: bool) -> (ClusterOf<Calvin>, [usize; 2]) {
    let replication = Replication::Asynchronous;
    let options = || calvin::Options { replication, ..Calvin::by_hand() };
    let mut foreign = ClusterOf::<Calvin>::not_started(3, options());
    foreign.reseed(1_000);
    foreign.start_all();
    let master = foreign.leader();
    let (id, away) = ((master + 1) % 3, (master + 2) % 3);
    foreign.call_declared(id, "add x 5");
    (0..2).for_each(|_| foreign.epoch());
    foreign.run_for(500);
    foreign.crash(id);
    let mut cluster = ClusterOf::<Calvin>::new(3, options());
    assert_eq!(cluster.leader(), master);
    let ticket = cluster.call_declared(master, "add x 1");
    (0..2).for_each(|_| cluster.epoch());
    cluster.run_for(500);
    cluster.result(master, ticket);
    cluster.crash(id);
    let (node, other) = (&mut cluster.nodes[id], &foreign.nodes[id]);
    (node.log, node.checkpoint) = (other.log.clone(), other.checkpoint.clone());
    (node.head, node.synced) = (other.head, other.synced);
    let greetings = Cell::new(0);
    cluster.on_words(move |from, to, words| {
        let ends = [from, to];
        let is_greeting = ends.contains(&id) && words.starts_with("Greeting");
        greetings.set(greetings.get() + usize::from(is_greeting));
        match ends.contains(&id) && ends.contains(&away)
            || is_greeting && are_few && greetings.get() > 8
        {
            true => Fate::Lose,
            false => Fate::Deliver,
        }
    });
    cluster.start(id);
    cluster.disconnect(id, away);
    (cluster, [master, id])
}

/// Each of two nodes that know other logs of each other replies to each greeting with a greeting,
/// for ever and as fast as the link allows.
#[test]
fn strangers_do_not_greet_each_other_without_end() {
    let (mut cluster, [master, id]) = with_a_foreign_node(false);
    cluster.run_for(300);
    assert!(cluster.mark(master, "inputs.stranger") < 10);
    assert!(cluster.mark(id, "inputs.stranger") < 10);
}

/// A node of another cluster believes that the master of this one is its own, and forwards the
/// requests of its clients to it. The master runs them: `Forward` is not checked like the messages
/// of the input log.
#[test]
fn a_master_runs_nothing_for_a_node_of_another_cluster() {
    let (mut cluster, [master, id]) = with_a_foreign_node(true);
    cluster.run_for(300);
    assert!(cluster.mark(master, "inputs.stranger") > 0, "the master ignores it");
    assert_eq!(cluster.nodes[id].stopped, None, "it has met one stranger only");
    cluster.call_declared(id, "add x 100");
    cluster.run_for(100);
    for _ in 0..2 {
        cluster.batch(master);
        cluster.fire(master, Timer::Epoch);
        cluster.run_for(100);
    }
    assert_eq!(cluster.value(master, "x"), "1", "nobody of this cluster has added anything");
}
