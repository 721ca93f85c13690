//! The phases of the input log, which both protocols use. Minerva is the host here; Calvin's cuts
//! with a master or a turn are in `calvin.rs` and `checkpoints.rs`.

use std::num::NonZeroUsize;

use pangea_core::ids::NodeId;
use pangea_core::protocol::{Input, Request};
use pangea_protocols::minerva::{Minerva, Options};

use super::super::support::words::{self, Timer, Transcribed};
use super::super::support::{Cluster, Fate, by_hand, paper_by_hand};
use super::{assert_golden, commit, hold, isolate, recorded};

/// Minerva §3.3, Algorithm 2: a batch is available once f + 1 replicas have acknowledged it, and
/// its source broadcasts the proof of availability.
#[test]
fn a_batch_is_proven_available_once_it_is_durable_on_f_plus_1_replicas() {
    let mut cluster = recorded::<Minerva>(3, paper_by_hand());
    cluster.set_syncs(0, false);
    cluster.set_syncs(1, false);
    cluster.set_syncs(2, false);
    cluster.call(0, "put x 1");
    cluster.batch(0);
    cluster.set_syncs(0, true);
    cluster.set_syncs(1, true);
    cluster.set_syncs(2, true);
    assert_golden!(cluster);
}

/// Minerva §3.3 and Figure 4: a proof of availability covers a log up to a batch, without gaps.
#[test]
fn a_batch_behind_a_gap_is_available_only_with_those_before_it() {
    let mut cluster = recorded::<Minerva>(3, paper_by_hand());
    cluster.on_words(|_, _, message| match message {
        "Batch 0.1" => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.call(0, "put x 1");
    cluster.batch(0);
    cluster.call(0, "put y 1");
    cluster.batch(0);
    cluster.cut();
    cluster.heal();
    assert_golden!(cluster);
}

/// Minerva §3.3: a replica that has the proof of a batch, but not the batch, fetches it: from one
/// peer at a time here.
#[test]
fn a_missing_batch_is_fetched_from_one_peer_and_then_its_epoch_is_applied() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.hide(&["Agreement", "Progress"]);
    cluster.on_words(|_, to, message| match message {
        "Batch 0.1" if to == 2 => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.call(0, "put x 1");
    cluster.batch(0);
    cluster.cut();
    cluster.heal();
    cluster.run_for(60);
    assert_golden!(cluster);
}

/// Minerva §3.4, Algorithm 3: the coordinator proposes the heads that have proofs as a cut, and the
/// decided cut bounds the epoch.
#[test]
fn a_cut_names_the_available_head_of_each_log_and_the_nth_decision_is_epoch_n() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.call(0, "put x 1");
    cluster.batch(0);
    cluster.call(1, "put y 1");
    cluster.batch(1);
    cluster.on_words(|_, _, message| match message {
        "Batch 2.1" => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.call(2, "put z 1");
    cluster.batch(2);
    cluster.cut();
    cluster.transcript.hide(&["Batch", "Ack"]);
    cluster.heal();
    cluster.cut();
    cluster.cut();
    assert_golden!(cluster);
}

/// Minerva §4: the leader of agreement is the coordinator, and its successor continues to decide
/// cuts. A cut that a majority has accepted stays in its place.
#[test]
fn a_new_coordinator_decides_the_cut_and_the_batches_that_the_old_one_left() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.hide(&["Batch", "Ack", "Agreement", "Progress"]);
    let old = cluster.leader();
    let other = (old + 1) % 3;
    cluster.call(other, "put x 1");
    cluster.batch(other);
    hold(&mut cluster, "Agreement", old);
    cluster.cut();
    cluster.call(other, "add x 1");
    cluster.batch(other);
    cluster.crash(old);
    cluster.heal();
    cluster.run_for(1_000);
    cluster.cut();
    assert_golden!(cluster);
}

/// A strict read sees every transaction acknowledged anywhere before it began. Neither paper has
/// it: Minerva §3.4 gives the cut that it waits for.
#[test]
fn a_strict_read_waits_for_a_cut_that_was_proposed_after_it_arrived() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.hide(&["Batch", "Ack", "Agreement"]);
    let leader = cluster.leader();
    let reader = (leader + 1) % 3;
    hold(&mut cluster, "Agreement", reader);
    commit(&mut cluster, leader, "put x 1");
    cluster.submit(reader, Request::Fresh);
    cluster.settle();
    cluster.heal();
    cluster.cut();
    assert_golden!(cluster);
}

/// Not in the papers. A replica may have forgotten its promises; Minerva §3.4 relies on them.
#[test]
fn a_replica_takes_part_once_its_peers_know_no_more_of_it_than_it_does() {
    let mut cluster = Cluster::not_started(3, by_hand());
    cluster.transcript.start();
    cluster.start(0);
    cluster.settle();
    cluster.call(0, "put x 1");
    cluster.batch(0);
    cluster.start(1);
    cluster.settle();
    cluster.start(2);
    cluster.settle();
    cluster.batch(0);
    assert_golden!(cluster);
}

/// Not in the papers. Minerva §3.3 relies on f + 1 replicas that keep a batch; one that lost its
/// log and does not know it would not be one of them.
#[test]
fn a_replica_that_lost_its_log_stops_when_a_peer_greets_it() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.watch(&[1]);
    cluster.transcript.hide(&["Ack", "Agreement"]);
    commit(&mut cluster, 1, "put x 1");
    cluster.crash(1);
    cluster.lose_log(1);
    cluster.start(1);
    cluster.settle();
    assert_golden!(cluster);
}

/// Minerva §4: a replica fetches from its peers the batches that it lacks after a failure. The
/// promises and votes of a replica that lost its disk come from its peers, too.
#[test]
fn a_replica_that_lost_its_disk_takes_part_again_when_all_others_have_answered() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.pause("all nodes have committed");
    for id in 0..3 {
        commit(&mut cluster, id, "add x 1");
    }
    cluster.crash(2);
    cluster.transcript.start();
    cluster.transcript.hide(&["Agreement", "Progress", "a cut names a batch"]);
    cluster.on_words(|from, _, message| match message.starts_with("RejoinReply") && from == 1 {
        true => Fate::HoldBack,
        false => Fate::Deliver,
    });
    cluster.replace(2);
    cluster.settle();
    cluster.call(2, "add x 1");
    cluster.heal();
    cluster.run_for(100);
    commit(&mut cluster, 2, "add x 1");
    assert_golden!(cluster);
}

/// Minerva §4: replicas report their progress, and drop a batch that all of them have applied.
#[test]
fn a_batch_is_dropped_once_every_member_has_reported_its_epoch() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.hide(&["Agreement", "Ack"]);
    cluster.transcript.watch(&[0]);
    hold(&mut cluster, "Agreement", 2);
    commit(&mut cluster, 0, "put x 1");
    cluster.heal();
    let ask = |cluster: &mut Cluster| {
        cluster.transcript.act(|| "n1 asks n0 for batch 0.1".to_owned());
        let message = words::fetch::<Minerva>(NodeId(0), 1);
        cluster.step(0, Input::Message { from: NodeId(1), message });
        cluster.settle();
    };
    cluster.transcript.watch(&[]);
    for id in [1, 0] {
        cluster.fire(id, Timer::Progress);
    }
    ask(&mut cluster);
    for id in [2, 0] {
        cluster.fire(id, Timer::Progress);
    }
    ask(&mut cluster);
    assert_golden!(cluster);
}

/// Minerva §4: a log is truncated up to the low watermark. Only the state of a peer helps a replica
/// that needs truncated batches.
#[test]
fn a_replica_whose_batches_are_truncated_takes_a_checkpoint_from_a_peer() {
    let options = Options { removal_ms: 1_000, chunk_bytes: 64, ..by_hand() };
    let mut cluster = recorded::<Minerva>(3, options);
    cluster.transcript.hide(&["Agreement", "Progress", "Ack"]);
    cluster.transcript.watch(&[1, 2]);
    commit(&mut cluster, 0, "put gone 1");
    cluster.crash(1);
    cluster.transcript.pause("n1 is removed, and its batches are truncated");
    cluster.run_for(1_200);
    cluster.cut();
    for script in ["del gone", "put a 1", "put b 2", "put c 3", "put d 4"] {
        commit(&mut cluster, 0, script);
    }
    cluster.run_for(300);
    hold(&mut cluster, "CheckpointChunk", 1);
    cluster.transcript.start();
    cluster.start(1);
    cluster.run_for(300);
    commit(&mut cluster, 0, "add a 1; del b");
    cluster.heal();
    cluster.run_for(100);
    cluster.cut();
    assert_golden!(cluster);
}

/// Minerva §4: agreement decides the configuration, too. Changes of the configuration are in cuts.
#[test]
fn a_silent_replica_is_removed_by_a_cut_and_readmitted_by_another() {
    let options = Options { removal_ms: 1_000, ..Minerva::by_hand() };
    let mut cluster = recorded::<Minerva>(3, options);
    cluster.transcript.hide(&["Agreement", "Progress", "Ack", "Batch", "Greeting"]);
    cluster.transcript.watch(&[0, 2]);
    isolate(&mut cluster, 2);
    cluster.run_for(1_200);
    cluster.cut();
    cluster.heal();
    for peer in 0..2 {
        cluster.reconnect(peer, 2);
    }
    cluster.run_for(200);
    cluster.cut();
    assert_golden!(cluster);
}

/// Minerva has no back-pressure; its transactions wait for the global commit (Minerva §4). Here a
/// replica whose backlog has grown too large refuses its own clients, and names itself.
#[test]
fn a_replica_with_too_large_a_backlog_refuses_its_clients() {
    let slice_txns = NonZeroUsize::MIN;
    let times = Options { epoch_ms: 15, batch_ms: 5, ..by_hand() };
    let mut cluster = recorded::<Minerva>(3, Options { behind_bytes: 50_000, slice_txns, ..times });
    cluster.transcript.watch(&[1]);
    cluster.transcript.pause("n1 runs epochs more slowly than they arrive");
    cluster.nodes[1].is_slow = true;
    hold(&mut cluster, "CheckpointChunk", 1);
    let value = "v".repeat(100);
    for _ in 0..300 {
        for id in [0, 2] {
            (0..3).for_each(|_| _ = cluster.call(id, "add hot 1"));
            cluster.call(id, &format!("put k{id} {value}"));
        }
        cluster.run_for(15);
    }
    cluster.transcript.start();
    cluster.call(1, "put x 1");
    assert_golden!(cluster);
}
