//! Restart (§4, "Fault Tolerance") and checkpoints.

use pangea_core::ids::LogPosition;
use pangea_protocols::minerva::{Message, Options, Solver};

use super::support::{Cluster, Fate, by_hand};

/// §4: "without the need to re-execute all transactions".
#[test]
fn a_restart_applies_what_the_log_has_decided_and_runs_nothing_again() {
    let mut cluster = Cluster::new(3, by_hand());
    for _ in 0..3 {
        for id in 0..3 {
            cluster.call(id, "get x; add x 1");
        }
        cluster.epoch();
    }
    assert!(cluster.counter(1, "txns_conflicting") > 0, "some were executed again");
    let (applied, log) = (cluster.nodes[1].applied(), cluster.nodes[1].log.clone());
    let digest = cluster.nodes[1].store.digest(applied);
    for _ in 0..2 {
        cluster.crash(1);
        cluster.start(1);
        assert_eq!(cluster.nodes[1].applied(), applied);
        assert_eq!(cluster.nodes[1].store.digest(applied), digest);
        assert_eq!(cluster.nodes[1].runs.count(), 0);
        assert_eq!(cluster.nodes[1].log[..log.len()], log, "a restart adds to the log alone");
    }
    cluster.run_for(2_000);
    cluster.call(1, "add x 1");
    cluster.epoch();
    assert_eq!(cluster.everywhere("x"), "10");
}

/// Local transactions that were durable are still in flight, for others and for later local ones;
/// what was not durable is gone, and was never seen by anyone.
#[test]
fn what_was_durable_and_not_committed_commits_after_a_restart() {
    let mut cluster = Cluster::new(3, by_hand());
    let id = (cluster.leader() + 1) % 3;
    cluster.call(id, "add x 1");
    cluster.batch(id);
    cluster.nodes[id].syncs = false;
    cluster.call(id, "add x 100");
    cluster.batch(id);
    cluster.crash(id);
    cluster.nodes[id].syncs = true;
    cluster.start(id);
    cluster.run_for(1_000);
    let next = cluster.call(id, "get x; add x 10");
    cluster.epoch();
    assert_eq!(cluster.result(id, next), "1");
    assert_eq!(cluster.everywhere("x"), "11");
    assert_eq!(cluster.counter(id, "txns_valid"), 2, "the overlay was laid again");
}

/// A node that lost what it had acknowledged would give known numbers to new batches, and forget
/// its votes: it ends itself before it can.
#[test]
fn a_node_that_lost_its_log_does_not_take_part_again() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.call(1, "add x 1");
    cluster.epoch();
    cluster.crash(1);
    cluster.lose_log(1);
    cluster.start(1);
    cluster.run_for(100);
    let reason = cluster.nodes[1].stopped.clone().expect("it noticed");
    assert!(
        reason.contains("1 batches of this node's log") && reason.contains("has 0"),
        "{reason}"
    );
    assert!(cluster.nodes[0].stopped.is_none() && cluster.nodes[2].stopped.is_none());
}

/// An epoch that was proposed under other settings is not decided by new ones on some replicas.
#[test]
fn settings_do_not_change_under_an_epoch_that_is_not_applied_yet() {
    let mut cluster = Cluster::new(3, by_hand());
    let late = (cluster.leader() + 1) % 3;
    cluster.call(late, "add x 1");
    cluster.batch(late);
    cluster.crash(late);
    cluster.cut();
    cluster.options = Options { solver: Solver::Greedy, ..by_hand() };
    cluster.start(late);
    cluster.run_for(1_000);
    let reason = cluster.nodes[late].stopped.clone().expect("it noticed");
    assert!(reason.contains("other settings") && reason.contains("Exact"), "{reason}");
}

/// A node starts from its checkpoint and the rest of its log; what the checkpoint holds is cut off.
#[test]
fn a_restart_from_a_checkpoint_and_a_truncated_log_leads_to_the_same_state() {
    let mut cluster = Cluster::new(3, Options { checkpoint_bytes: 1, ..by_hand() });
    let id = (cluster.leader() + 1) % 3;
    for n in 0..5 {
        cluster.call(n % 3, "add x 1");
        cluster.epoch();
    }
    let (checkpoint, _) = cluster.nodes[id].checkpoint.clone().expect("it was due");
    assert!(checkpoint.version.0 >= 4);
    let first = cluster.nodes[id].log.first().map_or(LogPosition(u64::MAX), |(first, _)| *first);
    assert!(first > LogPosition(5), "the log was cut off below {first}");
    // Durable here alone, so not in the cut of the checkpoint that follows: it must outlast the
    // truncation.
    cluster.rule = Box::new(move |from, _, message| match message {
        Message::Batch { .. } if from.index() == id => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.call(id, "add x 1");
    cluster.batch(id);
    cluster.call((id + 1) % 3, "put y 1");
    cluster.epoch();
    let (later, _) = cluster.nodes[id].checkpoint.clone().expect("it was due");
    assert!(later.version > checkpoint.version);
    cluster.heal();
    let applied = cluster.nodes[id].applied();
    cluster.crash(id);
    cluster.start(id);
    assert_eq!(cluster.nodes[id].applied(), applied);
    assert_eq!(cluster.nodes[id].runs.count(), 0);
    cluster.run_for(1_000);
    cluster.epoch();
    assert_eq!(cluster.everywhere("x"), "6");
    assert_eq!(cluster.everywhere("y"), "1");
}
