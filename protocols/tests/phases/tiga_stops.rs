//! Tiga: nodes that stop in order leave nothing that the next program would have to run.

use pangea_core::protocol::{Input, Protocol as _};
use pangea_protocols::tiga::{Message, Tiga};

use super::support::words::Transcribed as _;
use super::support::{ClusterOf, Fate};
use super::upgrade::{refused, run_some, start_newer, stop_in_order};

fn may_stop(cluster: &ClusterOf<Tiga>, id: usize) -> bool {
    cluster.nodes[id].brain.as_ref().expect("the node runs").may_stop()
}

/// A cluster of three, its leader, and the others.
fn of_three() -> (ClusterOf<Tiga>, usize, [usize; 2]) {
    let cluster = run_some::<Tiga>(3, Tiga::by_hand());
    let leader = cluster.leader();
    (cluster, leader, [(leader + 1) % 3, (leader + 2) % 3])
}

/// Stops the nodes that still run, and starts all of them with another program.
fn upgrade(cluster: &mut ClusterOf<Tiga>) {
    for id in 0..cluster.nodes.len() {
        if cluster.nodes[id].brain.is_some() {
            stop_in_order(cluster, id);
        }
    }
    start_newer(cluster);
    for id in 0..cluster.nodes.len() {
        assert_eq!(refused(cluster, id), None, "node {id}");
    }
}

/// Story: each of two followers saw that the other one and the leader stayed, because they were
/// asked to stop at the same time. Both ended, and the leader had cells that nobody could commit.
#[test]
fn nodes_that_stop_at_the_same_time_do_not_leave_the_log_to_each_other() {
    let (mut cluster, leader, others) = of_three();
    cluster.rule = Box::new(move |from, _, message| match message {
        Message::LogSync { .. } if from.index() == leader => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    let ticket = cluster.call_declared(leader, "add x 10");
    cluster.run_for(100);
    assert!(cluster.outcome(leader, ticket).is_none(), "nobody else has its cell");
    others.into_iter().for_each(|id| cluster.step(id, Input::Stop));
    cluster.settle();
    cluster.run_for(500);
    assert!(!others.into_iter().any(|id| may_stop(&cluster, id)), "the leader needs one of them");
    cluster.heal();
    cluster.run_for(500);
    assert!(cluster.outcome(leader, ticket).is_some());
    upgrade(&mut cluster);
    assert_eq!(cluster.everywhere("x"), "13");
}

/// A node that is the only one to stop ends when the others know that, and does not wait for more.
#[test]
fn a_node_ends_when_the_nodes_that_stay_know_that_it_stops() {
    let (mut cluster, _, [stops, late]) = of_three();
    cluster.rule = Box::new(move |from, _, message| match message {
        Message::Progress { .. } if from.index() == late => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.step(stops, Input::Stop);
    cluster.settle();
    cluster.run_for(100);
    assert!(!may_stop(&cluster, stops), "one of the others may be about to stop, too");
    cluster.heal();
    cluster.run_for(20);
    assert!(may_stop(&cluster, stops));
    cluster.crash(stops);
    upgrade(&mut cluster);
    assert_eq!(cluster.everywhere("x"), "3");
}

/// A leader hands over and ends, and a follower does not hear of the view that begins. It once
/// ended when it was asked to, because the leader that it knew had gone, and added nothing more.
#[test]
fn a_node_that_has_missed_a_view_does_not_end_with_the_leader_of_the_one_before() {
    let (mut cluster, leader, [next, late]) = of_three();
    cluster.rule = Box::new(move |from, to, message| match message {
        Message::Presence(_) => Fate::Deliver,
        Message::Progress { .. } if from.index() == leader => Fate::Deliver,
        _ if to.index() == late => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.step(leader, Input::Stop);
    cluster.settle();
    cluster.run_for(200);
    assert!(may_stop(&cluster, leader), "another replica leads, and both know that this one stops");
    cluster.crash(leader);
    let ticket = cluster.call_declared(next, "add x 10");
    cluster.run_for(100);
    cluster.step(late, Input::Stop);
    cluster.settle();
    cluster.run_for(200);
    assert!(!may_stop(&cluster, late), "the new leader has a cell that needs two replicas");
    cluster.heal();
    cluster.run_for(1_000);
    assert!(cluster.outcome(next, ticket).is_some());
    upgrade(&mut cluster);
    assert_eq!(cluster.everywhere("x"), "13");
}
