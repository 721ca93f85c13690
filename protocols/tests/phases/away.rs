//! A replica that was down for longer than agreement retains cuts.

use std::collections::BTreeSet;

use pangea_core::ids::NodeId;
use pangea_protocols::minerva::{Message, Options};

use super::support::{Cluster, Fate, by_hand};

const CUTS_KEPT: u64 = 8;

/// Batches are retained for an unreachable replica however long that lasts; only cuts are
/// truncated.
fn options() -> Options {
    Options { epoch_ms: 15, batch_ms: 5, cuts_kept: CUTS_KEPT, ..by_hand() }
}

/// Commits `add x 1` this number of times, each in a separate cut.
fn commit(cluster: &mut Cluster, at: usize, times: u64) {
    for _ in 0..times {
        let ticket = cluster.call(at, "add x 1");
        cluster.run_for(30);
        assert_eq!(cluster.result(at, ticket), "");
    }
}

/// A cluster that has truncated cuts which one of its nodes has not received. The caller starts
/// that node, which will receive no checkpoint.
fn forgetful(choose: impl Fn(usize) -> usize) -> (Cluster, usize) {
    forgetful_under(options(), choose)
}

fn forgetful_under(options: Options, choose: impl Fn(usize) -> usize) -> (Cluster, usize) {
    let mut cluster = Cluster::new(3, options);
    let away = choose(cluster.leader());
    let here = (away + 1) % 3;
    commit(&mut cluster, here, 3);
    cluster.crash(away);
    cluster.run_for(1_000);
    commit(&mut cluster, here, 100);
    cluster.run_for(200);
    assert!(cluster.mark(here, "inputs.cuts_forgotten") > 0);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::Lose,
        _ => Fate::Deliver,
    });
    (cluster, away)
}

fn follower(leader: usize) -> usize {
    (leader + 1) % 3
}

/// Asserts that it has skipped cuts, has later ones, and has applied none of these.
fn assert_waits(cluster: &Cluster, away: usize, value: &str) {
    assert_eq!(cluster.value(away, "x"), value);
    assert!(cluster.mark(away, "inputs.cut_waits_for_checkpoint") > 0);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 0);
}

/// From now on no message is lost; lost ones are repeated in new sessions.
fn heal(cluster: &mut Cluster) {
    cluster.heal();
    let running = |id: &usize| cluster.nodes[*id].brain.is_some();
    let running: Vec<usize> = (0..cluster.nodes.len()).filter(running).collect();
    for (n, a) in running.iter().enumerate() {
        running[..n].iter().for_each(|b| cluster.reconnect(*a, *b));
    }
}

fn assert_is_back(cluster: &mut Cluster, away: usize, value: u64) {
    heal(cluster);
    cluster.run_for(5_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.everywhere("x"), value.to_string());
    commit(cluster, away, 1);
    cluster.run_for(200);
    assert_eq!(cluster.everywhere("x"), (value + 1).to_string());
}

#[test]
fn a_replica_that_lacks_cuts_which_are_forgotten_comes_back_by_a_checkpoint() {
    let (mut cluster, away) = forgetful(follower);
    cluster.sent.clear();
    cluster.start(away);
    cluster.run_for(1_000);
    assert_eq!(cluster.mark(away, "inputs.cuts_skipped"), 1);
    assert_waits(&cluster, away, "3");
    // The synchronisation contained the retained cuts and no more, at some 40 bytes a cut.
    let is_told = |(_, to, message): &(NodeId, NodeId, Message)| match message {
        message!(Agreement { bytes }) if to.index() == away => Some(bytes.len()),
        _ => None,
    };
    let largest = cluster.sent.iter().filter_map(is_told).max().expect("the client is answered");
    assert!((CUTS_KEPT as usize * 20..CUTS_KEPT as usize * 80).contains(&largest), "{largest}");
    assert_is_back(&mut cluster, away, 103);
}

/// The checkpoint ends before the cuts that the replica received in the meantime. These are not
/// sent again.
#[test]
fn a_replica_that_lacks_cuts_goes_on_from_the_checkpoint_with_those_that_it_has() {
    let (mut cluster, away) = forgetful(follower);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.start(away);
    cluster.run_for(500);
    commit(&mut cluster, (away + 1) % 3, 5);
    assert_waits(&cluster, away, "3");
    cluster.heal();
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.everywhere("x"), "108");
}

/// A replica that was down for less receives the cuts.
#[test]
fn a_replica_that_lacks_cuts_which_are_kept_takes_no_checkpoint() {
    let mut cluster = Cluster::new(3, options());
    let away = follower(cluster.leader());
    cluster.crash(away);
    cluster.run_for(1_000);
    commit(&mut cluster, (away + 1) % 3, CUTS_KEPT);
    cluster.start(away);
    cluster.run_for(2_000);
    assert_eq!(cluster.everywhere("x"), CUTS_KEPT.to_string());
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 0);
    assert_eq!(cluster.mark(away, "inputs.cuts_skipped"), 0);
}

/// Its log then begins with cuts that do not follow the ones that it has applied.
#[test]
fn a_replica_that_crashes_while_it_lacks_cuts_still_knows_that_it_does() {
    let (mut cluster, away) = forgetful(follower);
    cluster.start(away);
    cluster.run_for(1_000);
    assert_waits(&cluster, away, "3");
    for _ in 0..2 {
        cluster.crash(away);
        cluster.run_for(100);
        cluster.start(away);
        commit(&mut cluster, (away + 1) % 3, 3);
        assert_waits(&cluster, away, "3");
    }
    assert_eq!(cluster.mark(away, "inputs.cuts_skipped"), 3, "at each start");
    assert_is_back(&mut cluster, away, 109);
}

/// It is down again, for so long that its retained cuts end before those of its peers begin.
#[test]
fn a_replica_that_lacks_cuts_twice_takes_a_checkpoint_from_behind_the_second_gap() {
    let (mut cluster, away) = forgetful(follower);
    cluster.start(away);
    cluster.run_for(500);
    assert_eq!(cluster.mark(away, "inputs.cuts_skipped"), 1);
    cluster.rule = Box::new(move |from, to, message| match message {
        message!(Agreement { .. }) if from.index() == away || to.index() == away => Fate::Lose,
        message!(CheckpointChunk { .. }) => Fate::Lose,
        _ => Fate::Deliver,
    });
    commit(&mut cluster, (away + 1) % 3, 50);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::Lose,
        _ => Fate::Deliver,
    });
    for peer in [(away + 1) % 3, (away + 2) % 3] {
        cluster.reconnect(away, peer);
    }
    cluster.run_for(500);
    assert_eq!(cluster.mark(away, "inputs.cuts_skipped"), 2);
    assert_waits(&cluster, away, "3");
    assert_is_back(&mut cluster, away, 153);
}

/// The replica nearest to all others leads. Its proposals do not depend on the epoch that it has
/// applied.
#[test]
fn a_replica_that_lacks_cuts_can_be_the_coordinator() {
    let (mut cluster, away) = forgetful(|leader| leader);
    cluster.start(away);
    cluster.run_for(2_000);
    assert_eq!(cluster.leader(), away, "otherwise, another case is tested");
    let here = (away + 1) % 3;
    commit(&mut cluster, here, 5);
    assert_waits(&cluster, away, "3");
    // Another coordinator follows, which has everything.
    cluster.crash((away + 2) % 3);
    cluster.run_for(500);
    commit(&mut cluster, here, 5);
    cluster.start((away + 2) % 3);
    assert_is_back(&mut cluster, away, 113);
}

/// The records that it then logs do not follow the ones on its disk.
#[test]
fn a_replica_that_crashes_before_a_peers_checkpoint_is_its_own_takes_another() {
    let (mut cluster, away) = forgetful(follower);
    cluster.nodes[away].writes_checkpoints = false;
    cluster.start(away);
    cluster.heal();
    cluster.run_for(1_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    commit(&mut cluster, (away + 1) % 3, 5);
    assert_eq!(cluster.value(away, "x"), "108");
    cluster.crash(away);
    cluster.nodes[away].writes_checkpoints = true;
    cluster.run_for(100);
    cluster.start(away);
    assert_eq!(cluster.value(away, "x"), "3");
    assert_is_back(&mut cluster, away, 108);
    assert_eq!(cluster.mark(away, "inputs.cuts_skipped"), 2, "at each start");
}

/// Story: in the paper's mode, runs of one source on one epoch see each other. A replica that had
/// crashed came to that epoch again, from a peer's checkpoint of an earlier one, and later runs did
/// not see the former ones: both added to the same value.
#[test]
fn a_replica_that_applies_an_epoch_again_sees_its_former_runs_on_it() {
    let as_in_paper = Options {
        keep_uncommitted: false,
        ack_everyone: false,
        parallel_commit: false,
        ..options()
    };
    let (mut cluster, away) = forgetful_under(as_in_paper, follower);
    let (here, other) = ((away + 1) % 3, (away + 2) % 3);
    cluster.nodes[away].writes_checkpoints = false;
    cluster.start(away);
    cluster.heal();
    cluster.run_for(1_000);
    assert_eq!(cluster.value(away, "x"), "103");
    // One peer does not hear of the epoch of those runs, and sends the checkpoint: nothing is known
    // of the progress of the other. No epoch follows.
    cluster.rule = Box::new(move |from, to, message| match (from.index(), to.index(), message) {
        (_, to, message!(Agreement { .. })) if to == here => Fate::Lose,
        (from, _, message!(Batch { .. })) if from == away => Fate::Lose,
        (from, to, message!(Progress { .. })) if from == other && to == away => Fate::Lose,
        _ => Fate::Deliver,
    });
    commit(&mut cluster, other, 1);
    assert_eq!(cluster.value(here, "x"), "103");
    for is_again in [false, true] {
        if is_again {
            cluster.crash(away);
            cluster.start(away);
            assert_eq!(cluster.value(away, "x"), "3");
            cluster.run_for(100);
        }
        assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
        assert_eq!(cluster.value(away, "x"), "104");
        cluster.call(away, "add x 1");
        cluster.run_for(30);
    }
    cluster.nodes[away].writes_checkpoints = true;
    heal(&mut cluster);
    cluster.run_for(5_000);
    assert_eq!(cluster.everywhere("x"), "106");
}

/// One replica is missing cuts, and then another is down: the epochs that the first has not applied
/// are not on a majority.
#[test]
fn cuts_are_kept_that_only_one_replica_has_applied() {
    let (mut cluster, away) = forgetful(follower);
    let (here, other) = ((away + 1) % 3, (away + 2) % 3);
    cluster.start(away);
    cluster.run_for(1_000);
    cluster.crash(other);
    cluster.run_for(1_000);
    commit(&mut cluster, here, 50);
    assert_waits(&cluster, away, "3");
    cluster.crash(away);
    cluster.start(other);
    cluster.run_for(2_000);
    assert_eq!(cluster.value(other, "x"), "153");
    assert_eq!(cluster.mark(other, "inputs.cuts_skipped"), 0);
    cluster.start(away);
    assert_is_back(&mut cluster, away, 153);
}

/// Neither replica could continue without the other: one is missing old cuts, and the other is
/// missing later ones that, of all running replicas, only the first has.
#[test]
fn two_replicas_that_were_away_in_turn_have_it_all_together() {
    let (mut cluster, away) = forgetful(follower);
    let (here, other) = ((away + 1) % 3, (away + 2) % 3);
    cluster.start(away);
    cluster.run_for(1_000);
    cluster.crash(other);
    cluster.run_for(1_000);
    commit(&mut cluster, here, 50);
    cluster.crash(here);
    cluster.start(other);
    cluster.run_for(2_000);
    assert_waits(&cluster, away, "3");
    heal(&mut cluster);
    cluster.run_for(5_000);
    assert_eq!([away, other].map(|id| cluster.value(id, "x")), ["153", "153"]);
    assert_eq!([away, other].map(|id| cluster.counter(id, "checkpoints_installed")), [1, 0]);
    cluster.start(here);
    assert_is_back(&mut cluster, away, 153);
}

/// It is missing batches too, so that any checkpoint would advance it, but not past the gap.
#[test]
fn a_replica_that_lacks_cuts_asks_no_peer_that_lacks_them_too() {
    let mut cluster = Cluster::new(5, Options { removal_ms: 1_000, ..options() });
    let away = (cluster.leader() + 1) % 5;
    let (slow, here) = ((away + 1) % 5, (away + 2) % 5);
    commit(&mut cluster, here, 3);
    for (id, times) in [(away, 20), (slow, 100)] {
        cluster.crash(id);
        cluster.run_for(2_000);
        commit(&mut cluster, here, times);
    }
    cluster.run_for(200);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.start(slow);
    cluster.start(away);
    cluster.sent.clear();
    // It switches to the next peer when no chunk arrives, and waits twice as long.
    cluster.run_for(200_000);
    assert_eq!([away, slow].map(|id| cluster.value(id, "x")), ["3", "23"]);
    assert_eq!([away, slow].map(|id| cluster.mark(id, "inputs.cuts_skipped")), [1, 1]);
    let asked = cluster.sent.iter().filter_map(|(from, to, message)| match message {
        message!(CheckpointRequest { .. }) if from.index() == away => Some(to.index()),
        _ => None,
    });
    let asked: BTreeSet<usize> = asked.collect();
    let can_help: BTreeSet<usize> = (0..5).filter(|id| ![away, slow].contains(id)).collect();
    assert_eq!(asked, can_help);
    assert_is_back(&mut cluster, away, 123);
}
