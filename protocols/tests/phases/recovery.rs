//! Restart (Minerva §4, "Fault Tolerance") and checkpoints.

use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::Protocol as _;
use pangea_protocols::minerva::{Message, Options, Solver, Timer};

use super::support::{Cluster, Fate, by_hand};

/// Minerva §4: "without the need to re-execute all transactions".
#[test]
fn a_restart_applies_what_the_log_has_decided_and_runs_nothing_again() {
    assert_eq!(restart(by_hand()), 0);
}

/// An extension of the paper: the log contains the order in which the queue took effect, and not
/// its writes.
#[test]
fn a_restart_runs_the_ordered_queue_again_where_the_log_does_not_keep_its_writes() {
    let options = Options { rerun_on_restart: true, ..by_hand() };
    assert_eq!(restart(options), 6, "two of three in each of three epochs");
}

/// Restarts a node, some of whose transactions were re-executed, and returns how often a procedure
/// ran for that.
fn restart(options: Options) -> u64 {
    let mut cluster = Cluster::new(3, options);
    for _ in 0..3 {
        for id in 0..3 {
            cluster.call(id, "get x; add x 1");
        }
        cluster.epoch();
    }
    assert!(cluster.counter(1, "txns_conflicting") > 0, "some were re-executed");
    let (applied, log) = (cluster.nodes[1].applied(), cluster.nodes[1].log.clone());
    let digest = cluster.nodes[1].store.digest(applied);
    let runs = [(); 2].map(|()| {
        cluster.crash(1);
        cluster.start(1);
        assert_eq!(cluster.nodes[1].applied(), applied);
        assert_eq!(cluster.nodes[1].store.digest(applied), digest);
        assert_eq!(cluster.nodes[1].log[..log.len()], log, "a restart only appends to the log");
        cluster.nodes[1].runs.count()
    });
    assert_eq!(runs[0], runs[1]);
    cluster.run_for(2_000);
    cluster.call(1, "add x 1");
    cluster.epoch();
    assert_eq!(cluster.everywhere("x"), "10");
    runs[0]
}

/// The transactions that a restart would re-execute count towards the next checkpoint.
#[test]
fn a_checkpoint_is_due_by_what_a_restart_would_run_again() {
    let options = Options { checkpoint_bytes: 20_000, ..by_hand() };
    let [kept, rerun] = [false, true].map(|rerun_on_restart| {
        let mut cluster = Cluster::new(3, Options { rerun_on_restart, ..options.clone() });
        let script = format!("get x; put x {}", "1".repeat(200));
        let mut epochs = 0;
        while cluster.nodes[0].checkpoint.is_none() {
            (0..3).for_each(|id| _ = cluster.call(id, &script));
            cluster.epoch();
            epochs += 1;
        }
        assert_eq!(cluster.counter(0, "txns_conflicting"), 2 * epochs);
        epochs
    });
    // Logged writes are encoded relative to the arguments, which contain the values; re-executed
    // ones count with all their writes.
    assert!((kept / 2..=kept).contains(&rerun), "after {kept} epochs, and after {rerun}");
}

/// Local transactions that were durable are still in flight, for peers and for later local ones.
/// Those that were not durable are lost, and no node has ever seen them.
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
    assert_eq!(cluster.counter(id, "txns_valid"), 2, "the overlay was rebuilt");
}

/// A node that lost batches that it had acknowledged would reuse their numbers, and forget its
/// votes. It stops before it can.
#[test]
fn a_node_that_lost_its_log_does_not_take_part_again() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.call(1, "add x 1");
    cluster.epoch();
    cluster.crash(1);
    cluster.lose_log(1);
    cluster.start(1);
    cluster.run_for(100);
    let reason = cluster.nodes[1].stopped.clone().expect("the loss was noticed");
    assert!(reason.contains("an earlier start"), "{reason}");
    assert!(cluster.nodes[0].stopped.is_none() && cluster.nodes[2].stopped.is_none());
}

/// Story: a lost log was detected only by its batches. If the node had created as many new ones
/// before the first peer greeted it, the others took the new ones for the old. Now it creates none
/// before that, and sends no agreement messages.
#[test]
fn a_node_that_lost_its_log_makes_no_batches_before_a_peer_has_spoken() {
    let mut cluster = Cluster::new(3, by_hand());
    let lost = (cluster.leader() + 1) % 3;
    cluster.call(lost, "put x old");
    cluster.epoch();
    cluster.crash(lost);
    cluster.lose_log(lost);
    cluster.rule = Box::new(move |from, to, _| match from.index() == lost || to.index() == lost {
        true => Fate::HoldBack,
        false => Fate::Deliver,
    });
    cluster.sent.clear();
    cluster.start(lost);
    cluster.call(lost, "put x new");
    cluster.batch(lost);
    cluster.run_for(1_000);
    let is_said = |(from, _, message): &&(NodeId, NodeId, Message)| {
        let is_said = matches!(message, message!(Batch { .. }) | message!(Agreement { .. }));
        from.index() == lost && is_said
    };
    assert_eq!(cluster.sent.iter().filter(is_said).count(), 0);
    cluster.heal();
    cluster.run_for(1_000);
    let reason = cluster.nodes[lost].stopped.clone().expect("the loss was noticed");
    assert!(reason.contains("an earlier start"), "{reason}");
    assert_eq!(cluster.sent.iter().filter(is_said).count(), 0);
    assert_eq!(cluster.value((lost + 1) % 3, "x"), "old");
}

/// A node that never had a batch has still voted.
#[test]
fn a_node_that_lost_its_votes_alone_does_not_vote_again() {
    let mut cluster = Cluster::new(3, by_hand());
    let lost = (cluster.leader() + 1) % 3;
    cluster.crash(lost);
    cluster.lose_log(lost);
    cluster.start(lost);
    cluster.run_for(500);
    assert!(cluster.nodes[lost].stopped.is_some());
}

/// With durability "os" or "memory", a power loss truncates the end of the log.
#[test]
fn a_node_that_lost_the_end_of_its_log_does_not_take_part_again() {
    // One loses its last batch, one all of its promises. The first byte of a record is its kind: 2
    // is a change of the state of agreement.
    for has_batches in [true, false] {
        let mut cluster = Cluster::new(3, by_hand());
        let lost = (cluster.leader() + 1) % 3;
        let mut reported = "made promises";
        let mut first = cluster.nodes[lost].log.iter().position(|(_, record)| record[0] == 2);
        if has_batches {
            reported = "2 batches of this node's log, but this node has only 1";
            cluster.call(lost, "put x 1");
            cluster.batch(lost);
            first = Some(cluster.nodes[lost].log.len());
            cluster.call(lost, "put x 2");
            cluster.batch(lost);
        }
        cluster.crash(lost);
        let first = cluster.nodes[lost].log[first.expect("the node has voted")].0;
        cluster.lose_records_from(lost, first);
        cluster.start(lost);
        cluster.run_for(500);
        let reason = cluster.nodes[lost].stopped.clone().expect("the loss was noticed");
        assert!(reason.contains(reported), "{reason}");
    }
}

/// A first start needs more than half of a node's peers, so that no two first starts of it can both
/// succeed: all of three, four of five.
#[test]
fn a_first_start_waits_for_enough_peers_and_then_goes_at_once() {
    for (nodes, late) in [(3, 2), (5, 3)] {
        let mut cluster = Cluster::not_started(nodes, by_hand());
        (0..late).for_each(|id| cluster.start(id));
        cluster.run_for(3_000);
        for id in 0..late {
            assert_eq!(cluster.mark(id, "presence.ready"), 0, "{late} of {nodes} do not suffice");
            assert_eq!(cluster.nodes[id].log.iter().filter(|(_, r)| r[0] != 4).count(), 0);
        }
        cluster.start(late);
        cluster.settle();
        for id in 0..=late {
            assert_eq!(cluster.mark(id, "presence.ready"), 1, "without waiting");
        }
        cluster.run_for(1_000);
        let ticket = cluster.call(0, "put x 1");
        cluster.batch(0);
        let leader = (0..=late).find(|&id| {
            cluster.nodes[id]
                .brain
                .as_ref()
                .is_some_and(|brain| brain.status().coordinator == Some(NodeId(id as u16)))
        });
        cluster.fire(leader.expect("a coordinator is elected"), Timer::Epoch);
        assert_eq!(cluster.result(0, ticket), "");
    }
}

/// Every node of a new cluster crashes at every moment of its first start, and it still comes up.
#[test]
fn a_first_start_that_is_interrupted_is_gone_on_with() {
    for (id, steps) in (0..3).flat_map(|id| (0..6).map(move |steps| (id, steps))) {
        let mut cluster = Cluster::not_started(3, by_hand());
        (0..3).for_each(|id| cluster.start(id));
        cluster.deliver(steps);
        cluster.crash(id);
        cluster.settle();
        cluster.start(id);
        cluster.run_for(2_000);
        cluster.call(id, "put x 1");
        cluster.epoch();
        assert_eq!(cluster.everywhere("x"), "1", "node {id} after {steps} deliveries");
    }
}

/// A restart waits for no more peers than a commit needs.
#[test]
fn a_restart_goes_on_with_one_peer_of_two() {
    let mut cluster = Cluster::new(3, by_hand());
    let down = (cluster.leader() + 1) % 3;
    let again = (cluster.leader() + 2) % 3;
    cluster.crash(down);
    cluster.crash(again);
    cluster.start(again);
    cluster.run_for(2_000);
    let ticket = cluster.call(again, "put x 1");
    cluster.epoch();
    assert_eq!(cluster.result(again, ticket), "");
}

/// An epoch proposed under other settings is not applied under new ones on some replicas.
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
    let reason = cluster.nodes[late].stopped.clone().expect("the difference was noticed");
    assert!(reason.contains("settings that differ") && reason.contains("Exact"), "{reason}");
}

/// A node starts from its checkpoint and the rest of its log, which is truncated below the
/// checkpoint.
#[test]
fn a_restart_from_a_checkpoint_and_a_truncated_log_leads_to_the_same_state() {
    let mut cluster = Cluster::new(3, Options { checkpoint_bytes: 1, ..by_hand() });
    let id = (cluster.leader() + 1) % 3;
    for n in 0..5 {
        cluster.call(n % 3, "add x 1");
        cluster.epoch();
    }
    let (checkpoint, _) = cluster.nodes[id].checkpoint.clone().expect("a checkpoint was due");
    assert!(checkpoint.version.0 >= 4);
    let first = cluster.nodes[id].log.first().map_or(LogPosition(u64::MAX), |(first, _)| *first);
    assert!(first > LogPosition(5), "the log was truncated below {first}");
    // Durable only on this node, so not in the cut of the next checkpoint: it must survive the
    // truncation.
    cluster.rule = Box::new(move |from, _, message| match message {
        message!(Batch { .. }) if from.index() == id => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.call(id, "add x 1");
    cluster.batch(id);
    cluster.call((id + 1) % 3, "put y 1");
    cluster.epoch();
    let (later, _) = cluster.nodes[id].checkpoint.clone().expect("a checkpoint was due");
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
