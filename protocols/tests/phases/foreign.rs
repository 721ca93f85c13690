//! Nodes of another cluster with the same names, and messages that come before a greeting.

use std::cell::Cell;

use pangea_core::ids::NodeId;
use pangea_core::protocol::Input;
use pangea_protocols::calvin::{self, Calvin, Replication};
use pangea_protocols::minerva::Message;

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

/// Story: a batch of a running node of another cluster, which had connected by a wrong address,
/// overtook its greeting on the other lane. It was stored and committed, and an acknowledgement of
/// it stopped a sound node, which was said to have lost its log.
#[test]
fn what_overtakes_the_greeting_of_a_foreign_node_changes_nothing() {
    let mut foreign = Cluster::not_started(3, options());
    foreign.reseed(1_000);
    foreign.start_all();
    for id in [0, 0, 0, 1, 1, 1] {
        add(&mut foreign, id);
    }
    let last = |is_it: fn(&Message) -> bool| {
        let of_it = |(from, _, it): &&(NodeId, _, Message)| *from == NodeId(1) && is_it(it);
        foreign.sent.iter().rfind(of_it).expect("it was sent").2.clone()
    };
    let batch = last(|it| matches!(it, message!(Batch { .. })));
    let ack = last(|it| matches!(it, message!(Ack { .. })));
    let greeting = last(|it| matches!(it, message!(Greeting { .. })));
    let mut cluster = busy(3);
    cluster.crash(1);
    for id in [0, 2] {
        cluster.step(id, Input::PeerUp(NodeId(1)));
        for message in [batch.clone(), ack.clone()] {
            cluster.step(id, Input::Message { from: NodeId(1), message });
        }
    }
    cluster.run_for(500);
    assert_all_run(&cluster);
    for id in [0, 2] {
        cluster.step(id, Input::Message { from: NodeId(1), message: greeting.clone() });
        assert!(cluster.mark(id, "presence.stranger") > 0);
    }
    add(&mut cluster, 0);
    assert_eq!([0, 2].map(|id| cluster.value(id, "x")), ["7", "7"]);
    for id in [0, 2] {
        cluster.step(id, Input::PeerDown(NodeId(1)));
    }
    cluster.start(1);
    cluster.run_for(3_000);
    add(&mut cluster, 1);
    assert_all_run(&cluster);
    assert_eq!(cluster.everywhere("x"), "8");
}

/// Batches, acknowledgements and votes that overtake the greeting of a node of this cluster are not
/// repeated, and none is lost.
#[test]
fn what_overtakes_a_greeting_waits_for_it() {
    for id in 0..3 {
        let mut cluster = busy(3);
        let others = [(id + 1) % 3, (id + 2) % 3];
        cluster.on_words(move |from, _, words| match from == id && words.starts_with("Greeting") {
            true => Fate::HoldBack,
            false => Fate::Deliver,
        });
        others.into_iter().for_each(|other| cluster.reconnect(id, other));
        let ticket = cluster.call(id, "add x 1");
        cluster.run_for(60);
        assert_eq!(cluster.outcome(id, ticket), None);
        assert!(others.iter().all(|other| cluster.mark(*other, "presence.before_greeting") > 0));
        cluster.heal();
        cluster.run_for(200);
        assert_eq!(cluster.result(id, ticket), "");
        assert_eq!(cluster.everywhere("x"), "7");
        assert!(others.iter().all(|other| cluster.counter(*other, "batches_fetched") == 0));
        assert_all_run(&cluster);
    }
}

/// A replaced node ignores greetings as long as it asks. A peer that started in the meantime and
/// was not ready gave it no answer in this session: it replies to the greeting of the node.
#[test]
fn who_was_asked_too_early_greets_again() {
    let mut cluster = busy(3);
    let withhold = |cluster: &mut Cluster, answers: bool, greetings: bool| {
        cluster.on_words(move |from, to, words| match (from, to) {
            (2, 0) if answers && words.starts_with("RejoinReply") => Fate::HoldBack,
            (2, 1) if greetings && words.starts_with("Greeting") => Fate::HoldBack,
            _ => Fate::Deliver,
        });
    };
    cluster.crash(0);
    withhold(&mut cluster, true, false);
    cluster.replace(0);
    cluster.run_for(1_000);
    cluster.crash(1);
    withhold(&mut cluster, true, true);
    cluster.start(1);
    cluster.run_for(1_000);
    assert!(cluster.mark(1, "presence.rejoin_too_early") > 0);
    withhold(&mut cluster, false, true);
    cluster.release();
    cluster.run_for(100);
    assert_eq!(cluster.mark(0, "presence.rejoin_knows"), 1);
    cluster.heal();
    cluster.run_for(3_000);
    let waited = cluster.mark(0, "presence.before_greeting");
    add(&mut cluster, 1);
    cluster.run_for(1_000);
    assert_eq!(cluster.mark(0, "presence.before_greeting"), waited);
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

/// Story: each of two nodes that knew other logs of each other replied to each greeting with a
/// greeting, for ever and as fast as the link allowed.
#[test]
fn strangers_do_not_greet_each_other_without_end() {
    let (mut cluster, [master, id]) = with_a_foreign_node(false);
    cluster.run_for(300);
    assert!(cluster.mark(master, "presence.stranger") < 10);
    assert!(cluster.mark(id, "presence.stranger") < 10);
}

/// Story: a node of another cluster took the master of this one for its own, and forwarded the
/// requests of its clients to it. The master ran them: `Forward` was not checked like the messages
/// of the input log.
#[test]
fn a_master_runs_nothing_for_a_node_of_another_cluster() {
    let (mut cluster, [master, id]) = with_a_foreign_node(true);
    cluster.run_for(300);
    assert!(cluster.mark(master, "presence.stranger") > 0, "the master ignores it");
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
