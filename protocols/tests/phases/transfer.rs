//! Collection and checkpoint transfer (§4).

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Input, Request};
use pangea_protocols::minerva::batch::{Batch, Bid};
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

/// A member that applied a batch before its disk had it told that it had the batch; the others
/// dropped it, and when the member crashed nobody could give it back.
#[test]
fn a_batch_is_kept_until_it_is_durable_where_it_was_applied() {
    let mut cluster = Cluster::new(3, by_hand());
    let slow = (cluster.leader() + 1) % 3;
    let source = (cluster.leader() + 2) % 3;
    cluster.nodes[slow].syncs = false;
    cluster.call(source, "put x 1");
    cluster.epoch();
    assert_eq!(cluster.value(slow, "x"), "1", "applied before it is durable");
    for id in 0..3 {
        cluster.fire(id, Timer::Progress);
    }
    cluster.crash(slow);
    cluster.nodes[slow].syncs = true;
    for id in [source, cluster.leader()] {
        cluster.fire(id, Timer::Progress);
    }
    cluster.start(slow);
    cluster.run_for(2_000);
    assert_eq!(cluster.value(slow, "x"), "1");
    assert_eq!(cluster.counter(slow, "checkpoints_installed"), 0, "the batch was still there");
}

/// A replica that is not a member does not hold the watermark down. It dropped batches of its own
/// memory that its disk did not have yet, and never acknowledged anything of that log again.
#[test]
fn a_removed_replica_still_acknowledges_what_becomes_durable_later() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, ..by_hand() };
    let mut cluster = Cluster::new(3, options);
    let removed = (cluster.leader() + 1) % 3;
    let source = (cluster.leader() + 2) % 3;
    cluster.rule = Box::new(move |from, _, _| match from.index() == removed {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
    cluster.nodes[removed].syncs = false;
    cluster.run_for(1_500);
    cluster.call(source, "put x 1");
    cluster.batch(source);
    cluster.run_for(500);
    assert_eq!(cluster.members(removed), 2);
    assert_eq!(cluster.value(removed, "x"), "1", "it hears the others and applies");
    cluster.sent.clear();
    cluster.nodes[removed].syncs = true;
    cluster.settle();
    let acknowledged = cluster.sent.iter().filter_map(|(from, _, message)| match message {
        Message::Ack { heads } if from.index() == removed => Some(heads[source]),
        _ => None,
    });
    assert_eq!(acknowledged.max(), Some(Bid(1)));
}

/// A cluster, and the node in it that comes back and must take a checkpoint. Its request is on its
/// way, held back.
fn behind(options: Options) -> (Cluster, usize) {
    let mut cluster = Cluster::new(3, options);
    let away = (cluster.leader() + 1) % 3;
    let here = (away + 1) % 3;
    cluster.call(here, "put x 1");
    cluster.batch(here);
    cluster.run_for(100);
    cluster.crash(away);
    cluster.run_for(2_000);
    for _ in 0..20 {
        cluster.call(here, "add x 1");
        cluster.batch(here);
        cluster.run_for(30);
    }
    cluster.run_for(500);
    cluster.rule = Box::new(|_, _, message| match message {
        Message::CheckpointRequest => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.start(away);
    cluster.run_for(1_000);
    assert!(cluster.mark(away, "minerva.checkpoint_requested") > 0);
    (cluster, away)
}

/// Runs on the old state and runs on a peer's checkpoint did not see each other's writes. In one
/// batch, with one base, they would be taken for runs that did.
#[test]
fn a_peers_checkpoint_closes_the_current_batch() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, ..by_hand() };
    let (mut cluster, away) = behind(options);
    let old = cluster.nodes[away].applied();
    cluster.call(away, "get x; put y 1");
    cluster.sent.clear();
    cluster.heal();
    cluster.run_for(100);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    cluster.call(away, "get x; put z 1");
    cluster.batch(away);
    cluster.run_for(500);
    let own = cluster.sent.iter().filter_map(|(from, to, message)| match message {
        Message::Batch { bytes } if from.index() == away && to.index() == (away + 1) % 3 => {
            let batch = Batch::decode(bytes).expect("replicas send whole batches");
            Some((batch.records.len(), batch.base))
        }
        _ => None,
    });
    let own: Vec<(usize, SnapshotVersion)> = own.collect();
    assert_eq!(own.len(), 2, "{own:?}");
    assert_eq!(own[0], (1, old));
    assert!(own[1].0 == 1 && own[1].1 > old, "{own:?}");
    assert_eq!(cluster.everywhere("y"), "1");
}

/// A strict read waited for a cut that the checkpoint of a peer then jumped over. Where nobody
/// writes, no later cut ever came.
#[test]
fn a_strict_read_asks_again_when_a_checkpoint_jumps_over_its_cut() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, ..by_hand() };
    let (mut cluster, away) = behind(options);
    cluster.sent.clear();
    let read = cluster.submit(away, Request::Fresh);
    cluster.run_for(200);
    let is_told = |(_, to, message): &(NodeId, NodeId, Message)| {
        to.index() == away && matches!(message, Message::Barrier { .. })
    };
    assert!(cluster.sent.iter().any(is_told), "it waits for a cut");
    cluster.heal();
    cluster.run_for(1_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert!(cluster.fresh(away, read).is_some());
}
