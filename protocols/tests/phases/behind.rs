//! Batches that a node has after a peer's checkpoint that it has not yet written to its own disk,
//! and that a crash leaves behind a gap.

use pangea_core::ids::{NodeId, Ticket};
use pangea_core::protocol::Input;
use pangea_protocols::minerva::Options;

use super::rejoin::assert_all_run;
use super::support::{Cluster, Fate, by_hand};
use super::transfer::behind;

/// A node has installed a checkpoint from a peer that is now cut off, and has not written its own.
/// The source of the missing batches commits one more with it. Returns both, and the ticket of the
/// waiting client.
fn behind_a_peers_checkpoint() -> (Cluster, usize, usize, Ticket) {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, ..by_hand() };
    let (mut cluster, away) = behind(options);
    cluster.nodes[away].writes_checkpoints = false;
    cluster.heal();
    cluster.run_for(1_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    let source = (away + 1) % 3;
    let third = (away + 2) % 3;
    cluster.rule = Box::new(move |from, to, _| match [from.index(), to.index()].contains(&third) {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
    for id in [away, source] {
        cluster.step(id, Input::PeerDown(NodeId(third as u16)));
        cluster.step(third, Input::PeerDown(NodeId(id as u16)));
    }
    cluster.run_for(5_000);
    let ticket = cluster.call(source, "put z 1");
    cluster.batch(source);
    cluster.run_for(500);
    (cluster, away, source, ticket)
}

/// Story: a replica acknowledged batches after a peer's checkpoint before that checkpoint was on
/// its own disk. After a crash these batches were behind a gap. When their source lost its disk,
/// the replica discarded them as acknowledged by no replica. One disk was lost, and with it a
/// transaction that a client had seen as committed.
#[test]
fn what_was_acknowledged_behind_a_peers_checkpoint_outlives_its_sources_disk() {
    let (mut cluster, away, source, ticket) = behind_a_peers_checkpoint();
    let is_told = cluster.outcome(source, ticket).is_some();
    cluster.crash(away);
    cluster.crash(source);
    // The checkpoint is delayed.
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.nodes[away].writes_checkpoints = true;
    cluster.start(away);
    cluster.run_for(1_000);
    cluster.replace(source);
    cluster.run_for(1_000);
    assert_all_run(&cluster);
    cluster.heal();
    cluster.run_for(10_000);
    assert_all_run(&cluster);
    assert!(!is_told || cluster.everywhere("z") == "1");
}

#[test]
fn what_came_behind_a_peers_checkpoint_is_acknowledged_when_that_is_this_nodes_own() {
    let (mut cluster, away, source, ticket) = behind_a_peers_checkpoint();
    assert!(cluster.outcome(source, ticket).is_none());
    cluster.nodes[away].writes_checkpoints = true;
    cluster.run_for(500);
    assert_eq!(cluster.result(source, ticket), "");
}

/// Story: a replaced node fetched the last batches of its own log after a peer's checkpoint, and
/// crashed before its own checkpoint was written. These batches were then behind a gap, and it
/// fetched those before them from a peer that still had them. Its transactions were in flight in
/// the wrong order.
#[test]
fn own_batches_that_come_in_two_lives_are_in_flight_in_their_order() {
    let mut cluster = Cluster::new(3, by_hand());
    let away = (cluster.leader() + 1) % 3;
    let peer = (away + 1) % 3;
    for _ in 0..3 {
        cluster.call(away, "add x 1");
        cluster.epoch();
    }
    // All replicas have applied these, and drop them.
    cluster.run_for(500);
    cluster.call(away, "add x 1");
    cluster.batch(away);
    cluster.crash(away);
    cluster.nodes[away].writes_checkpoints = false;
    cluster.replace(away);
    cluster.run_for(3_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert!(cluster.mark(away, "streams.own_batch_fetched") > 0);
    cluster.crash(away);
    cluster.nodes[away].writes_checkpoints = true;
    // After reading its log, this one has all of them again.
    cluster.crash(peer);
    cluster.start(peer);
    cluster.run_for(1_000);
    cluster.start(away);
    cluster.run_for(5_000);
    cluster.cut();
    cluster.run_for(2_000);
    assert_all_run(&cluster);
    assert_eq!(cluster.everywhere("x"), "4");
}
