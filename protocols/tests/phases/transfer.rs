//! Collection and checkpoint transfer (Minerva §4).

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Input, Request};
use pangea_protocols::minerva::batch::{Batch, Bid};
use pangea_protocols::minerva::{Message, Options, Timer};

use super::support::{Cluster, Fate, by_hand, paper_by_hand};

/// Minerva §4: "a batch can be safely discarded only after it has been fully processed by the
/// entire cluster". It is retained while a member is down, and that member needs no checkpoint.
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

/// A replica that was removed and down for too long installs a checkpoint, and is readmitted.
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

    assert_eq!(cluster.members(here), 3, "the replica was readmitted");
}

/// Story: a replica whose transfer stalled installed the checkpoint of another peer. The first one
/// kept the old versions pinned for it as long as the connection lasted.
#[test]
fn a_transfer_that_is_no_longer_wanted_lets_its_versions_go() {
    let mut cluster = Cluster::new(3, by_hand());
    let megabyte = "v".repeat(1 << 20);
    for n in 0..20 {
        cluster.call(0, &format!("put k{n:02} {megabyte}"));
    }
    cluster.epoch();
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::Lose,
        _ => Fate::Deliver,
    });
    let request = message!(CheckpointRequest { transfer: 1, index: 0 });
    cluster.step(0, Input::Message { from: NodeId(1), message: request });
    cluster.settle();
    cluster.call(0, "put x 1");
    cluster.epoch();
    let applied = cluster.nodes[0].applied();
    assert!(cluster.nodes[0].store.oldest_pinned() < applied, "retained for the transfer");
    cluster.fire(1, Timer::Progress);
    assert_eq!(cluster.nodes[0].store.oldest_pinned(), applied);
}

/// Story: a member that applied a batch before it was durable there reported that it had the batch.
/// The other replicas dropped it, and when the member crashed no replica could return it.
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

/// A replica that is not a member does not hold down the watermark. Story: it dropped batches from
/// memory that its own disk did not have yet, and never acknowledged any later batch of that log.
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
    assert_eq!(cluster.value(removed, "x"), "1", "the node receives messages and applies epochs");
    cluster.sent.clear();
    cluster.nodes[removed].syncs = true;
    cluster.settle();
    let acknowledged = cluster.sent.iter().filter_map(|(from, _, message)| match message {
        message!(Ack { heads }) if from.index() == removed => Some(heads[source]),
        _ => None,
    });
    assert_eq!(acknowledged.max(), Some(Bid(1)));
}

/// Increments a key twenty times through a node, each in an epoch of its own.
fn add_twenty(cluster: &mut Cluster, at: usize) {
    for _ in 0..20 {
        cluster.call(at, "add x 1");
        cluster.batch(at);
        cluster.run_for(30);
    }
    cluster.run_for(500);
}

/// A cluster, and its node that returns and must install a checkpoint. Its request is in flight,
/// held back.
pub fn behind(options: Options) -> (Cluster, usize) {
    let mut cluster = Cluster::new(3, options);
    let away = (cluster.leader() + 1) % 3;
    let here = (away + 1) % 3;
    cluster.call(here, "put x 1");
    cluster.batch(here);
    cluster.run_for(100);
    cluster.crash(away);
    cluster.run_for(2_000);
    add_twenty(&mut cluster, here);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointRequest { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.start(away);
    cluster.run_for(1_000);
    assert!(cluster.mark(away, "transfer.checkpoint_requested") > 0);
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
        message!(Batch { bytes }) if from.index() == away && to.index() == (away + 1) % 3 => {
            let batch = Batch::decode(bytes).expect("replicas send complete batches");
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

/// Story: a strict read waited for a cut that a peer's checkpoint then skipped. Without further
/// writes no later cut ever came.
#[test]
fn a_strict_read_asks_again_when_a_checkpoint_jumps_over_its_cut() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, ..by_hand() };
    let (mut cluster, away) = behind(options);
    cluster.sent.clear();
    let read = cluster.submit(away, Request::Fresh);
    cluster.run_for(200);
    let is_told = |(_, to, message): &(NodeId, NodeId, Message)| {
        to.index() == away && matches!(message, message!(Barrier { .. }))
    };
    assert!(cluster.sent.iter().any(is_told), "the node waits for a cut");
    cluster.heal();
    cluster.run_for(1_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert!(cluster.fresh(away, read).is_some());
}

/// Like [`behind`], with many small chunks. Also returns the peer that the node has requested them
/// from.
pub fn behind_by_many_parts() -> (Cluster, usize, usize) {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, chunk_bytes: 64, ..by_hand() };
    let (mut cluster, away) = behind(options);
    let peer = requests(&cluster, away).next().expect("a checkpoint was requested");
    for n in 0..90 {
        cluster.call(peer, &format!("put key{n:02} value-of-some-length"));
    }
    cluster.batch(peer);
    cluster.run_for(100);
    (cluster, away, peer)
}

/// Loses the chunks from `index` on.
fn cut_off_after(index: u64) -> (Cluster, usize, usize) {
    let (mut cluster, away, peer) = behind_by_many_parts();
    cluster.sent.clear();
    cluster.rule = Box::new(move |_, _, message| match message {
        message!(CheckpointChunk { number, .. }) if number.index >= index => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.release();
    (cluster, away, peer)
}

/// The peers that a node has requested a checkpoint from.
fn requests(cluster: &Cluster, away: usize) -> impl Iterator<Item = usize> {
    cluster.sent.iter().filter_map(move |(from, to, message)| match message {
        message!(CheckpointRequest { .. }) if from.index() == away => Some(to.index()),
        _ => None,
    })
}

/// The numbers of the chunks sent to a node.
fn parts(cluster: &Cluster, away: usize) -> Vec<u64> {
    let part = |(_, to, message): &(NodeId, NodeId, Message)| match message {
        message!(CheckpointChunk { number, .. }) if to.index() == away => Some(number.index),
        _ => None,
    };
    cluster.sent.iter().filter_map(part).collect()
}

fn assert_has_installed(cluster: &mut Cluster, away: usize) {
    cluster.run_for(1_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.everywhere("x"), "21");
    assert_eq!(cluster.everywhere("key89"), "value-of-some-length");
}

/// Story: a lost connection discarded all received chunks, so that over a link with frequent
/// failures no replica ever recovered.
#[test]
fn what_has_come_of_a_checkpoint_outlives_its_connection() {
    let (mut cluster, away, peer) = cut_off_after(5);
    cluster.run_for(5_000);
    assert_eq!(parts(&cluster, away).last(), Some(&20), "sixteen chunks are in flight");
    cluster.sent.clear();
    cluster.heal();
    cluster.reconnect(away, peer);
    assert_has_installed(&mut cluster, away);
    let parts = parts(&cluster, away);
    assert!(parts.len() > 16 && parts.iter().copied().eq(5..5 + parts.len() as u64), "{parts:?}");
    assert_eq!(cluster.mark(away, "transfer.checkpoint_requested"), 1);
}

#[test]
fn a_peer_that_started_anew_does_not_go_on_with_a_checkpoint() {
    let (mut cluster, away, peer) = cut_off_after(5);
    cluster.crash(peer);
    cluster.run_for(1_000);
    cluster.heal();
    cluster.start(peer);
    assert_has_installed(&mut cluster, away);
    assert_eq!(cluster.mark(peer, "transfer.checkpoint_forgotten"), 1);
    assert_eq!(cluster.mark(away, "transfer.checkpoint_requested"), 2);
}

#[test]
fn a_peer_that_does_not_come_back_is_replaced_by_another() {
    let (mut cluster, away, peer) = cut_off_after(5);
    cluster.crash(peer);
    cluster.heal();
    cluster.run_for(11_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.mark(away, "transfer.checkpoint_stalled"), 1);
    cluster.start(peer);
    assert_has_installed(&mut cluster, away);
}

/// The received chunks are lost with it.
#[test]
fn a_replica_that_crashes_while_it_takes_a_checkpoint_takes_another() {
    let (mut cluster, away, _) = cut_off_after(5);
    cluster.crash(away);
    cluster.run_for(500);
    cluster.heal();
    cluster.start(away);
    assert_has_installed(&mut cluster, away);
}

/// Story: on a slow link a retry after three seconds sent everything again after the chunks in
/// flight, and more was added than arrived.
#[test]
fn what_is_slow_to_come_is_not_asked_for_again() {
    let (mut cluster, away, _) = cut_off_after(0);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    for peer in (0..3).filter(|peer| *peer != away) {
        cluster.reconnect(away, peer);
    }
    cluster.sent.clear();
    cluster.run_for(50_000);
    assert_eq!(requests(&cluster, away).count(), 0);
    assert!(parts(&cluster, away).is_empty());
    cluster.heal();
    assert_has_installed(&mut cluster, away);
}

fn put_once(cluster: &mut Cluster, at: usize) {
    cluster.call(at, "put y 1");
    cluster.batch(at);
    cluster.run_for(100);
}

/// Whether a node retains versions before the last.
fn is_pinned(cluster: &Cluster, id: usize) -> bool {
    let node = &cluster.nodes[id];
    node.store.oldest_pinned() < node.applied()
}

#[test]
fn a_peer_that_is_gone_for_good_holds_nothing_back() {
    let (mut cluster, away, peer) = cut_off_after(5);
    cluster.crash(away);
    put_once(&mut cluster, peer);
    cluster.run_for(20_000);
    assert!(is_pinned(&cluster, peer), "the receiver may continue the transfer");
    cluster.run_for(15_000);
    assert!(!is_pinned(&cluster, peer));
}

/// They were in flight when the peers dropped them.
#[test]
fn a_checkpoint_is_called_off_when_the_batches_come_after_all() {
    let mut cluster = Cluster::new(3, by_hand());
    let behind = (cluster.leader() + 1) % 3;
    let source = (behind + 1) % 3;
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Batch { .. }) | message!(CheckpointChunk { .. }) if to.index() == behind => {
            Fate::HoldBack
        }
        _ => Fate::Deliver,
    });
    cluster.call(source, "put x 1");
    cluster.epoch();
    cluster.fire(source, Timer::Progress);
    for peer in (0..3).filter(|peer| *peer != behind) {
        assert_eq!(cluster.mark(behind, "transfer.checkpoint_requested"), 0);
        let gone = message!(Gone { source: NodeId(source as u16), first: Bid(2) });
        cluster.step(behind, Input::Message { from: NodeId(peer as u16), message: gone });
        cluster.settle();
    }
    assert_eq!(cluster.mark(behind, "transfer.checkpoint_requested"), 1);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.release();
    cluster.run_for(1_000);
    assert_eq!(cluster.everywhere("x"), "1");
    assert_eq!(cluster.mark(behind, "transfer.checkpoint_called_off"), 1);
    cluster.heal();
    assert_eq!(cluster.counter(behind, "checkpoints_installed"), 0);
}

/// Story: epochs that were logged while the local checkpoint of an installed state was written were
/// not counted as durable afterwards. Without further writes, a replaced node never finished its
/// rejoin.
#[test]
fn what_was_logged_after_a_peers_checkpoint_counts_once_that_is_durable() {
    let (mut cluster, away, peer) = cut_off_after(5);
    cluster.nodes[away].writes_checkpoints = false;
    cluster.heal();
    cluster.reconnect(away, peer);
    cluster.run_for(100);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    cluster.call(peer, "put y 1");
    cluster.batch(peer);
    cluster.run_for(100);
    assert_eq!(cluster.value(away, "y"), "1");
    cluster.nodes[away].writes_checkpoints = true;
    cluster.sent.clear();
    cluster.run_for(500);
    let progress = cluster.sent.iter().rev().find_map(|(from, _, message)| match message {
        message!(Progress { applied, durable, .. }) if from.index() == away => {
            Some((*applied, *durable))
        }
        _ => None,
    });
    let (applied, durable) = progress.expect("progress is reported");
    assert_eq!(durable, applied);
}

/// Like [`a_peers_checkpoint_closes_the_current_batch`], before the replica is ready. Story: then
/// no batch was closed, and runs before and after the checkpoint were taken for runs that saw each
/// other's writes.
#[test]
fn runs_before_and_after_a_peers_checkpoint_are_apart_where_no_batch_can_be_closed() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, ..paper_by_hand() };
    let mut cluster = Cluster::new(5, options);
    let away = (cluster.leader() + 1) % 5;
    let peer = (away + 1) % 5;
    cluster.call(peer, "put x 1");
    cluster.batch(peer);
    cluster.run_for(200);
    cluster.crash(away);
    cluster.run_for(2_000);
    for _ in 0..20 {
        cluster.call(peer, "add y 1");
        cluster.batch(peer);
        cluster.run_for(200);
    }
    // It reaches one other node, which is not enough to be ready.
    let holds = |holds_parts: bool| {
        move |from: NodeId, to: NodeId, message: &Message| {
            let pair = [from.index(), to.index()];
            match message {
                _ if pair.contains(&away) && !pair.contains(&peer) => Fate::Lose,
                message!(CheckpointChunk { .. }) if holds_parts => Fate::HoldBack,
                _ => Fate::Deliver,
            }
        }
    };
    cluster.rule = Box::new(holds(true));
    cluster.start(away);
    cluster.run_for(1_000);
    cluster.call(away, "add x 1");
    cluster.run_for(100);
    cluster.rule = Box::new(holds(false));
    cluster.release();
    cluster.run_for(1_000);
    cluster.call(away, "add x 1");
    cluster.heal();
    for other in (0..5).filter(|other| *other != away) {
        cluster.reconnect(away, other);
    }
    cluster.run_for(2_000);
    cluster.batch(away);
    cluster.run_for(2_000);
    assert_eq!(cluster.everywhere("x"), "3");
}

/// Story: only peers were readmitted. A coordinator that had been removed, and led again before the
/// interim one had readmitted it, was never a member again.
#[test]
fn a_coordinator_that_was_removed_takes_itself_back() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, batch_ms: 5, ..by_hand() };
    let mut cluster = Cluster::new(3, options);
    let away = cluster.leader();
    let here = (away + 1) % 3;
    cluster.crash(away);
    cluster.run_for(3_000);
    for _ in 0..100 {
        cluster.call(here, "add x 1");
        cluster.run_for(30);
    }
    cluster.run_for(500);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.start(away);
    cluster.run_for(3_000);
    assert_eq!(cluster.leader(), away, "otherwise, another case is tested");
    assert_eq!(cluster.members(here), 2);
    cluster.heal();
    cluster.run_for(10_000);
    assert_eq!(cluster.everywhere("x"), "100");
    assert_eq!(cluster.members(away), 3);
}

/// Story: sixteen chunks were in flight, whatever their size. With large rows, or with the largest
/// `chunk_bytes`, that is more than may be queued for a connection. It was closed, restored, sent
/// sixteen chunks, and so on.
#[test]
fn a_checkpoint_of_large_rows_does_not_fill_the_connection() {
    let mut cluster = Cluster::new(3, by_hand());
    let megabyte = "v".repeat(1 << 20);
    for n in 0..30 {
        cluster.call(0, &format!("put k{n:02} {megabyte}"));
    }
    cluster.epoch();
    cluster.sent.clear();
    let request = message!(CheckpointRequest { transfer: 1, index: 0 });
    cluster.step(0, Input::Message { from: NodeId(1), message: request });
    let parts = cluster.sent.iter().filter_map(|(_, _, message)| match message {
        message!(CheckpointChunk { payload, .. }) => Some(payload.len()),
        _ => None,
    });
    let on_its_way: usize = parts.sum();
    assert!((8 << 20..10 << 20).contains(&on_its_way), "{on_its_way}");
}

/// A restart after a checkpoint of a peer that never became durable needs the cuts since the last
/// durable epoch. Two nodes have installed such checkpoints when all stop and the third is lost for
/// good: each then has batches that the other is missing, and both still have the cuts.
#[test]
fn cuts_are_kept_until_the_checkpoint_that_covers_them_is_durable() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, ..by_hand() };
    let (mut cluster, first) = behind(options);
    let lost = cluster.leader();
    // The first one is missing batches of this one only.
    let second = (first + 1) % 3;
    cluster.crash(second);
    cluster.run_for(2_000);
    add_twenty(&mut cluster, lost);
    assert_eq!(cluster.value(lost, "x"), "41");
    [first, second].iter().for_each(|id| cluster.set_writes_checkpoints(*id, false));
    cluster.heal();
    cluster.run_for(1_000);
    cluster.start(second);
    cluster.run_for(3_000);
    assert_eq!(cluster.everywhere("x"), "41");
    for id in [first, second] {
        assert_eq!(cluster.counter(id, "checkpoints_installed"), 1);
    }

    (0..3).for_each(|id| cluster.crash(id));
    for id in [first, second] {
        cluster.nodes[id].writes_checkpoints = true;
        cluster.start(id);
    }
    cluster.run_for(10_000);
    for id in [first, second] {
        assert_eq!(cluster.value(id, "x"), "41");
    }
}

/// Nothing is retained for a log that is lost. What the replaced node needs it asks for anew.
#[test]
fn a_transfer_ends_with_the_disk_of_its_receiver() {
    let (mut cluster, away, peer) = cut_off_after(5);
    cluster.crash(away);
    put_once(&mut cluster, peer);
    assert!(is_pinned(&cluster, peer), "the receiver may continue the transfer");
    cluster.rule = Box::new(|_, _, message| match message {
        message!(RejoinReply { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.replace(away);
    cluster.run_for(100);
    assert!(!is_pinned(&cluster, peer));
    cluster.heal();
    cluster.run_for(3_000);
    assert_eq!(cluster.everywhere("y"), "1");
}
