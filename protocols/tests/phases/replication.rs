//! Asynchronous replication (Minerva §3.3): acknowledged, available and fetched batches.

use bytes::Bytes;
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Input;
use pangea_protocols::minerva::batch::{Batch, Bid};
use pangea_protocols::minerva::{Message, Options, Timer};

use super::support::{Cluster, Fate, by_hand, paper_by_hand};

fn named(bytes: &Bytes) -> (usize, u64) {
    let batch = Batch::decode(bytes).expect("replicas send complete batches");
    (batch.source.index(), batch.bid.0)
}

/// The last proof that a node broadcast.
fn proof_of(cluster: &Cluster, id: usize) -> Option<u64> {
    let proofs = cluster.sent.iter().filter_map(|(from, _, message)| match message {
        message!(ProofOfAvailability { head }) if from.index() == id => Some(head.0),
        _ => None,
    });
    proofs.last()
}

/// The heads of a node's applied epoch, according to its progress report.
fn heads_of(cluster: &mut Cluster, id: usize) -> Vec<Bid> {
    cluster.fire(id, Timer::Progress);
    let progress = cluster.sent.iter().rev().find_map(|(from, _, message)| match message {
        message!(Progress { heads, .. }) if from.index() == id => Some(heads.clone()),
        _ => None,
    });
    progress.expect("progress was just reported")
}

fn batches(cluster: &mut Cluster, id: usize, count: usize) {
    for n in 0..count {
        cluster.call(id, &format!("put k{id}.{n} 1"));
        cluster.batch(id);
    }
}

/// Minerva §3.3: a batch is durable on a replica before it is acknowledged, and before it is sent.
#[test]
fn a_batch_is_acknowledged_and_sent_only_when_it_is_durable() {
    let mut cluster = Cluster::new(3, by_hand());
    let is_about_it = |message: &Message| match message {
        message!(Ack { heads }) => heads[0] >= Bid(1),
        message!(Batch { .. }) => true,
        _ => false,
    };
    let count = |cluster: &Cluster, id: usize| {
        let from = |(from, _, m): &&(NodeId, NodeId, Message)| from.index() == id && is_about_it(m);
        cluster.sent.iter().filter(from).count()
    };
    cluster.nodes.iter_mut().for_each(|node| node.syncs = false);
    cluster.call(0, "put x 1");
    cluster.batch(0);
    assert_eq!(count(&cluster, 0), 0, "the batch is not durable at its source");
    cluster.nodes[0].syncs = true;
    cluster.settle();
    assert_eq!(count(&cluster, 0), 4, "the batch and an acknowledgement to each replica");
    assert_eq!((count(&cluster, 1), count(&cluster, 2)), (0, 0));
    cluster.nodes[1].syncs = true;
    cluster.settle();
    assert_eq!((count(&cluster, 1), count(&cluster, 2)), (2, 0));
    cluster.nodes[2].syncs = true;
    cluster.cut();
    assert_eq!(cluster.everywhere("x"), "1");
}

/// Minerva Lemma 3.1: f + 1 replicas; each counts once, however often it acknowledges.
#[test]
fn a_replica_that_acknowledges_again_counts_once() {
    let mut cluster = Cluster::new(5, by_hand());
    cluster.rule = Box::new(|from, to, message| match message {
        message!(Batch { .. }) if from.index() == 0 && to.index() != 1 => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.call(0, "put x 1");
    cluster.batch(0);
    let heads = vec![Bid(1), Bid(0), Bid(0), Bid(0), Bid(0)];
    for id in 0..5 {
        for _ in 0..3 {
            let message = message!(Ack { heads: heads.clone() });
            cluster.step(id, Input::Message { from: NodeId(1), message });
        }
    }
    let before = cluster.nodes[1].applied();
    cluster.cut();
    assert_eq!(cluster.value(1, "x"), "", "two of five replicas have the batch; three are needed");
    cluster.heal();
    cluster.cut();
    assert_eq!(cluster.everywhere("x"), "1");
    assert!(cluster.nodes[1].applied() > before);
}

/// A batch that another replica sends says nothing about the disk of its source, which may have
/// been lost since.
/// Minerva Lemma 3.1: f + 1 replicas have it.
#[test]
fn a_batch_from_another_replica_is_not_acknowledged_by_its_source() {
    let mut cluster = Cluster::new(5, by_hand());
    let leader = cluster.leader();
    let (source, other) = ((leader + 1) % 5, (leader + 2) % 5);
    cluster.rule = Box::new(move |from, to, message| match message {
        message!(Ack { .. }) if from.index() == source => Fate::Lose,
        message!(Batch { .. }) if from.index() == source && to.index() != other => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.call(source, "put x 1");
    cluster.batch(source);
    let batch = cluster.sent.iter().rev().find_map(|(_, _, message)| match message {
        message!(Batch { bytes }) => Some(bytes.clone()),
        _ => None,
    });
    let message = message!(Batch { bytes: batch.expect("the batch was sent") });
    cluster.step(leader, Input::Message { from: NodeId(other as u16), message });
    cluster.settle();
    cluster.cut();
    assert_eq!(cluster.value(leader, "x"), "", "two of five replicas are known to have it");
    cluster.heal();
    cluster.reconnect(source, leader);
    cluster.cut();
    assert_eq!(cluster.value(leader, "x"), "1");
}

/// Minerva Figure 4 (left): B5 has its acknowledgements, B3 and B4 do not: no proof after B2.
#[test]
fn a_proof_of_availability_covers_a_prefix_without_gaps() {
    let mut cluster = Cluster::new(3, paper_by_hand());
    cluster.rule = Box::new(|_, _, message| match message {
        message!(Batch { bytes }) if matches!(named(bytes), (0, 3 | 4)) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    batches(&mut cluster, 0, 5);
    assert_eq!(proof_of(&cluster, 0), Some(2));
    assert!(cluster.mark(1, "streams.batch_after_gap") > 0);
    cluster.heal();
    assert_eq!(proof_of(&cluster, 0), Some(5));
}

/// Minerva Figure 4 (right) and Lemma 3.2: the cut is {2, 3, 5}, and a replica that is missing a
/// batch below it fetches that batch from another one.
#[test]
fn the_cut_of_figure_4_is_applied_by_a_replica_that_must_fetch_a_batch_of_it() {
    let mut cluster = Cluster::new(3, paper_by_hand());
    cluster.rule = Box::new(|from, to, message| match message {
        message!(Batch { bytes }) => match (named(bytes), to.index()) {
            ((0, 3 | 4), _) => Fate::HoldBack,
            ((2, 4), 0) if from.index() == 2 => Fate::Lose,
            _ => Fate::Deliver,
        },
        _ => Fate::Deliver,
    });
    batches(&mut cluster, 0, 5);
    batches(&mut cluster, 1, 3);
    batches(&mut cluster, 2, 5);
    cluster.cut();
    let expected = [Bid(2), Bid(3), Bid(5)];
    assert_eq!(heads_of(&mut cluster, 1), expected);
    assert_eq!(cluster.nodes[0].applied(), SnapshotVersion(cluster.nodes[1].applied().0 - 1));
    cluster.run_for(500);
    assert_eq!(heads_of(&mut cluster, 0), expected);
    assert!(cluster.counter(1, "batches_fetched") > 0);
    assert_eq!(cluster.everywhere("k2.3"), "1");
    assert_eq!(cluster.value(0, "k0.2"), "", "after the cut");
}

/// Story: in the paper's variant a batch is acknowledged only to its source. A replica without its
/// own batches never learned which others had it, and when the source was lost it waited forever.
#[test]
fn an_idle_replica_fetches_the_batch_of_a_source_that_is_gone() {
    let mut cluster = Cluster::new(3, paper_by_hand());
    let idle = (cluster.leader() + 1) % 3;
    let gone = (cluster.leader() + 2) % 3;
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Batch { .. }) if to.index() == idle => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.call(gone, "put x 1");
    cluster.epoch();
    cluster.crash(gone);
    cluster.rule = Box::new(|_, _, _| Fate::Deliver);
    cluster.run_for(1_000);
    assert_eq!(cluster.value(idle, "x"), "1");
}

/// Story: a batch of 24 MB took longer to arrive than the next fetch of it. Each fetch sent it
/// again, until the connection was reset because too much was queued.
#[test]
fn a_batch_that_does_not_come_is_asked_for_less_and_less_often() {
    let mut cluster = Cluster::new(3, paper_by_hand());
    let idle = (cluster.leader() + 1) % 3;
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Batch { .. }) if to.index() == idle => Fate::Lose,
        _ => Fate::Deliver,
    });
    let source = (cluster.leader() + 2) % 3;
    cluster.call(source, "put x 1");
    cluster.epoch();
    cluster.crash(source);
    let mut asked_in = |ms| {
        let before = cluster.mark(idle, "streams.fetch");
        cluster.run_for(ms);
        cluster.mark(idle, "streams.fetch") - before
    };
    let (first, second, third) = (asked_in(500), asked_in(500), asked_in(4_000));
    assert!(first > second && second > 0, "{first}, then {second}");
    assert!(third > 0, "the batch is still requested");
    cluster.rule = Box::new(|_, _, _| Fate::Deliver);
    cluster.run_for(4_000);
    assert_eq!(cluster.value(idle, "x"), "1");
}

/// Story: at a round trip of 200 ms connections with windows of 4 MB were full under skewed YCSB-A.
/// A batch that took longer than usual was fetched and arrived again, queued after the batches of
/// another source. It delayed those, which were fetched as well. Half of the traffic to one region
/// was duplicate, and the region fell six seconds behind.
#[test]
fn a_batch_that_is_on_its_way_from_its_source_is_not_asked_for() {
    let mut cluster = Cluster::new(3, paper_by_hand());
    let idle = (cluster.leader() + 1) % 3;
    let source = (cluster.leader() + 2) % 3;
    cluster.call(source, "put x 1");
    cluster.epoch();
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Batch { .. }) if to.index() == idle => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.call(source, "put x 2");
    cluster.epoch();
    let asked = |cluster: &Cluster| cluster.mark(idle, "streams.fetch");
    cluster.run_for(90);
    assert_eq!(asked(&cluster), 0, "the source sent a batch a moment ago");
    cluster.run_for(400);
    assert!(asked(&cluster) > 0, "the source is silent, and another replica has the batch");
}

/// Only this replica creates entries of its own log.
#[test]
fn an_entry_of_the_own_log_is_not_taken_from_another() {
    let mut cluster = Cluster::new(3, by_hand());
    let batch = |bid, first_sequence| {
        let (source, base) = (NodeId(0), SnapshotVersion(0));
        Batch { source, bid: Bid(bid), base, first_sequence, records: Vec::new() }.encode()
    };
    let message = message!(Batch { bytes: batch(1, 1) });
    cluster.step(0, Input::Message { from: NodeId(1), message });
    assert_eq!(cluster.mark(0, "streams.own_batch_from_another"), 1);
    let ticket = cluster.call(0, "put x 1");
    cluster.epoch();
    assert_eq!(cluster.result(0, ticket), "");
    assert_eq!(cluster.everywhere("x"), "1");
}

/// Messages in flight when a connection was lost are repeated when it is restored.
#[test]
fn what_a_lost_connection_took_with_it_is_sent_again() {
    for options in [by_hand(), paper_by_hand()] {
        let mut cluster = Cluster::new(3, options);
        let leader = cluster.leader();
        let (source, other) = ((leader + 1) % 3, (leader + 2) % 3);
        cluster.crash(other);
        cluster.rule = Box::new(move |from, to, message| match message {
            message!(Agreement { .. }) => Fate::Deliver,
            _ if from.index() == leader || to.index() == leader => Fate::HoldBack,
            _ => Fate::Deliver,
        });
        cluster.call(source, "put x 1");
        cluster.epoch();
        assert_eq!(cluster.value(source, "x"), "");
        cluster.rule = Box::new(|_, _, _| Fate::Deliver);
        cluster.reconnect(leader, source);
        cluster.cut();
        assert_eq!(cluster.value(source, "x"), "1");
    }
}

/// A sync covers the records written before it began: batches that arrived during it are not
/// acknowledged yet.
#[test]
fn an_acknowledgement_covers_what_was_synced_and_no_more() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.nodes[1].syncs = false;
    batches(&mut cluster, 0, 3);
    cluster.sent.clear();
    let acknowledged = |cluster: &Cluster| {
        let heads = cluster.sent.iter().filter_map(|(from, _, message)| match message {
            message!(Ack { heads }) if from.index() == 1 => Some(heads[0].0),
            _ => None,
        });
        heads.max()
    };
    for head in 1..=3 {
        cluster.sync_one(1);
        assert_eq!(acknowledged(&cluster), Some(head));
    }
}

#[test]
fn an_acknowledgement_that_was_lost_is_said_again() {
    for options in [by_hand(), paper_by_hand()] {
        let mut cluster = Cluster::new(3, options);
        let leader = cluster.leader();
        let (other, down) = ((leader + 1) % 3, (leader + 2) % 3);
        cluster.crash(down);
        cluster.rule = Box::new(|_, _, message| match message {
            message!(Ack { .. }) => Fate::Lose,
            _ => Fate::Deliver,
        });
        cluster.call(leader, "put x 1");
        cluster.epoch();
        assert_eq!(cluster.value(leader, "x"), "");
        cluster.rule = Box::new(|_, _, _| Fate::Deliver);
        cluster.reconnect(leader, other);
        cluster.cut();
        assert_eq!(cluster.value(other, "x"), "1");
    }
}

/// Story: after a restart the acknowledgements of a peer are unknown, and all batches not yet
/// collected were sent to it at once. Now the rest is fetched by the peers that are missing it.
#[test]
fn a_resend_is_limited_and_the_rest_is_fetched() {
    let mut cluster = Cluster::new(3, by_hand());
    let (source, behind) = (0, 1);
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Batch { .. }) if to.index() == behind => Fate::Lose,
        _ => Fate::Deliver,
    });
    let megabyte = "v".repeat(1 << 20);
    for n in 0..20 {
        cluster.call(source, &format!("put k{n:02} {megabyte}"));
        cluster.batch(source);
    }
    cluster.rule = Box::new(|_, _, _| Fate::Deliver);
    cluster.sent.clear();
    cluster.reconnect(source, behind);
    let resent = cluster.sent.iter().filter_map(|(from, to, message)| match message {
        message!(Batch { bytes }) if (from.index(), to.index()) == (source, behind) => {
            Some(bytes.len())
        }
        _ => None,
    });
    let resent: usize = resent.sum();
    // Its arguments contain the value, and so does its write set.
    let batch = 2 * megabyte.len();
    assert!((8 << 20..=(8 << 20) + 2 * batch).contains(&resent), "{resent} bytes");
    cluster.run_for(1_000);
    cluster.cut();
    assert_eq!(cluster.everywhere("k19"), megabyte);
}

/// Story: keys were not counted. A few transactions with long keys made a batch larger than any
/// frame. It closed every connection on which it was sent, was sent again on the next, and no
/// transaction of its source ever committed.
#[test]
fn a_batch_is_as_small_as_it_should_be_however_long_the_keys_are() {
    let mut cluster = Cluster::new(3, Options { batch_bytes: 100_000, ..by_hand() });
    let key = "k".repeat(10_000);
    for n in 0..50 {
        cluster.call(0, &format!("put {n}{key} 1"));
    }
    let scan = |n: u64| format!("scan 0 z; put x {n}");
    (0..50).for_each(|n| _ = cluster.call(0, &scan(n)));
    cluster.epoch();
    let sizes = cluster.sent.iter().filter_map(|(_, _, message)| match message {
        message!(Batch { bytes }) => Some(bytes.len()),
        _ => None,
    });
    // One transaction may be larger than that.
    assert!(sizes.max().unwrap() < 600_000);
    assert_eq!(cluster.everywhere("x"), "49");
}

/// Story: in the paper's variant only the source learns who has its batches. Two of five nodes, the
/// sources of two batches, were lost right after a cut. Each survivor lacked one of the batches,
/// and no survivor knew that another one had it. A replica asked only peers that it knew to have a
/// batch, so all three waited until somebody wrote again.
#[test]
fn survivors_that_were_told_nothing_ask_everyone_for_missing_batches() {
    let mut cluster = Cluster::new(5, paper_by_hand());
    let first = cluster.leader();
    let [second, x, y, z] = [1, 2, 3, 4].map(|n| (first + n) % 5);
    cluster.rule = Box::new(move |from, to, message| match message {
        message!(Batch { .. }) if from.index() == first && ![y, z].contains(&to.index()) => {
            Fate::HoldBack
        }
        message!(Batch { .. }) if from.index() == second && ![x, first].contains(&to.index()) => {
            Fate::HoldBack
        }
        _ => Fate::Deliver,
    });
    for (source, script) in [(first, "put a 1"), (second, "put b 1")] {
        cluster.call(source, script);
        cluster.batch(source);
    }
    let before = cluster.nodes[x].applied();
    cluster.cut();
    cluster.crash(first);
    cluster.crash(second);
    for survivor in [x, y, z] {
        assert_eq!(cluster.nodes[survivor].applied(), before, "a batch of the cut is missing");
    }
    cluster.heal();
    cluster.run_for(3_000);
    for survivor in [x, y, z] {
        let values = ["a", "b"].map(|key| cluster.value(survivor, key));
        assert_eq!(values, ["1", "1"], "on node {survivor}");
    }
}
