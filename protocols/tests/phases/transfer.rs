//! Collection and checkpoint transfer (§4).

use pangea_core::ids::NodeId;
use pangea_core::protocol::Input;
use pangea_protocols::minerva::{Message, Options, Timer};

use super::support::{Cluster, Fate, by_hand};

/// §4: "a batch can be safely discarded only after it has been fully processed by the entire
/// cluster": while a member is away it is kept, and that member needs no checkpoint.
#[test]
fn batches_are_kept_for_a_member_that_is_away() {
    let mut cluster = Cluster::new(3, by_hand());
    let away = (cluster.leader() + 1) % 3;
    let here = (away + 1) % 3;
    cluster.crash(away);
    cluster.run_for(500);
    for _ in 0..5 {
        cluster.call(here, "add x 1");
        cluster.epoch();
        cluster.run_for(250);
    }
    cluster.start(away);
    cluster.run_for(2_000);
    assert_eq!(cluster.everywhere("x"), "5");
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 0);
}

/// A replica that was removed and away too long takes a checkpoint, and is taken back.
#[test]
fn a_replica_that_was_away_too_long_takes_a_checkpoint_from_a_peer() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, batch_ms: 5, ..by_hand() };
    let mut cluster = Cluster::new(3, options);
    let away = (cluster.leader() + 1) % 3;
    let here = (away + 1) % 3;
    cluster.call(here, "put gone 1");
    cluster.run_for(100);
    cluster.crash(away);
    cluster.run_for(2_000);
    cluster.call(here, "del gone; put x 1");
    for _ in 0..20 {
        cluster.call(here, "add x 1");
        cluster.run_for(30);
    }
    cluster.run_for(500);
    cluster.start(away);
    assert_eq!(cluster.value(away, "gone"), "1");
    cluster.run_for(5_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.everywhere("x"), "21");
    assert_eq!(cluster.everywhere("gone"), "");
    let ticket = cluster.call(away, "get x; add x 1");
    cluster.run_for(100);
    assert_eq!(cluster.result(away, ticket), "21");

    assert_eq!(cluster.members(here), 3, "it was taken back");
}

/// A replica whose transfer stalled took the checkpoint from another peer. The first one kept the
/// old versions pinned for it as long as the connection lasted.
#[test]
fn a_transfer_that_is_no_longer_wanted_lets_its_versions_go() {
    let mut cluster = Cluster::new(3, by_hand());
    let megabyte = "v".repeat(1 << 20);
    for n in 0..20 {
        cluster.call(0, &format!("put k{n:02} {megabyte}"));
    }
    cluster.epoch();
    cluster.rule = Box::new(|_, _, message| match message {
        Message::CheckpointChunk { .. } => Fate::Lose,
        _ => Fate::Deliver,
    });
    let request = Message::CheckpointRequest;
    cluster.step(0, Input::Message { from: NodeId(1), message: request });
    cluster.settle();
    cluster.call(0, "put x 1");
    cluster.epoch();
    let applied = cluster.nodes[0].applied();
    assert!(cluster.nodes[0].store.oldest_pinned() < applied, "kept for the transfer");
    cluster.fire(1, Timer::Progress);
    assert_eq!(cluster.nodes[0].store.oldest_pinned(), applied);
}
