//! Mako: execution, streams, the watermark, epochs, checkpoints, and replaced disks.

use pangea_core::ids::NodeId;
use pangea_core::protocol::{Input, Request};
use pangea_core::txn::Outcome;
use pangea_protocols::mako::{Mako, Message, Options};

use super::super::support::words::Transcribed;
use super::super::support::{ClusterOf, Fate};
use super::{assert_golden, hold, isolate, recorded};

/// The messages that pass at fixed intervals.
const USUAL: &[&str] = &["Progress", "Agreement", "Digests"];

fn cluster(options: Options, watched: &[usize]) -> ClusterOf<Mako> {
    let mut cluster = recorded::<Mako>(3, options);
    cluster.transcript.watch(watched);
    cluster.transcript.hide(USUAL);
    cluster
}

/// Mako §4.1, §4.3, §4.4: any node takes a transaction, and the leader executes it at once. It is
/// committed when a majority has the entry on its disks. The followers apply it then, and not
/// before, and the node of the client answers.
#[test]
fn an_entry_is_committed_and_applied_when_a_majority_has_it_durably() {
    let mut cluster = cluster(Mako::by_hand(), &[0, 1, 2]);
    let other = (cluster.leader() + 1) % 3;
    cluster.call(other, "put x 1");
    cluster.run_for(50);
    assert_golden!(cluster);
}

/// Mako §4.2: later transactions read speculative writes, and nobody is told of either while no
/// majority has them. A transaction that aborts or only reads waits, too, because it has read them.
#[test]
fn speculative_rows_are_read_by_transactions_and_shown_to_nobody() {
    let mut cluster = cluster(Mako::by_hand(), &[0, 1, 2]);
    let leader = cluster.leader();
    hold(&mut cluster, "Ack", leader);
    cluster.call(leader, "put x 1");
    let second = cluster.call(leader, "add x 1");
    let read = cluster.look(leader, "get x");
    let aborted = cluster.call(leader, "get x; abort");
    cluster.run_for(20);
    assert_eq!(cluster.outcome(leader, second), None);
    assert_eq!(cluster.value(leader, "x"), "", "readers see committed rows");
    cluster.heal();
    cluster.run_for(20);
    assert_eq!(cluster.result(leader, read), "2");
    assert!(matches!(cluster.outcome(leader, aborted), Some(Outcome::Aborted(_))));
    assert_golden!(cluster);
}

/// Mako §4.3: what is executed while a batch is being replicated waits until the batch has grown,
/// or for `batch_ms`.
#[test]
fn a_batch_grows_while_another_one_is_being_replicated() {
    let mut cluster = cluster(Options { batch_ms: 5, ..Mako::by_hand() }, &[]);
    let leader = cluster.leader();
    cluster.transcript.watch(&[leader]);
    hold(&mut cluster, "Ack", leader);
    for number in 0..3 {
        cluster.call(leader, &format!("put k{number} 1"));
    }
    cluster.run_for(10);
    cluster.heal();
    assert_golden!(cluster);
}

/// Mako §5.2: the next leader takes the best log of a majority, and everything in it is committed.
#[test]
fn a_silent_leader_is_replaced_and_the_next_one_has_what_was_committed() {
    let mut cluster = cluster(Mako::by_hand(), &[0, 1, 2]);
    let leader = cluster.leader();
    cluster.call((leader + 1) % 3, "put x 1");
    cluster.run_for(50);
    isolate(&mut cluster, leader);
    cluster.run_for(2_500);
    assert_golden!(cluster);
}

/// Mako §5.2: rows that no majority has are rolled back. Mako abandons their transactions; here
/// the next leader executes them, and their clients do not notice.
#[test]
fn a_leader_that_was_replaced_rolls_back_and_hands_its_transactions_to_the_next_one() {
    let mut cluster = cluster(Mako::by_hand(), &[]);
    let leader = cluster.leader();
    cluster.transcript.watch(&[leader]);
    isolate(&mut cluster, leader);
    let lost = cluster.call(leader, "put x 1");
    let seen = cluster.look(leader, "get x");
    cluster.run_for(2_500);
    assert_eq!(cluster.outcome(leader, lost), None, "no majority has it");
    cluster.heal();
    for other in (0..3).filter(|other| *other != leader) {
        cluster.reconnect(leader, other);
    }
    cluster.run_for(500);
    assert_eq!(cluster.mark(leader, "mako.rolled_back"), 1);
    assert_ne!(cluster.leader(), leader);
    assert!(matches!(cluster.outcome(leader, lost), Some(Outcome::Committed { .. })));
    assert_eq!(cluster.result(leader, seen), "1");
    assert_eq!(cluster.everywhere("x"), "1");
    assert_golden!(cluster);
}

/// Mako §8: a strict read waits for an entry that was made after the question.
#[test]
fn a_strict_read_waits_for_an_entry_that_was_made_after_it() {
    let mut cluster = cluster(Mako::by_hand(), &[0, 1, 2]);
    let other = (cluster.leader() + 1) % 3;
    let read = cluster.submit(other, Request::Fresh);
    cluster.run_for(20);
    assert!(cluster.fresh(other, read).is_some());
    assert_golden!(cluster);
}

/// Not in the paper: a replica that is too far behind takes a checkpoint, and continues with the
/// entries after it.
#[test]
fn a_replica_that_is_far_behind_takes_a_checkpoint_of_the_leader() {
    let options = Options { checkpoint_bytes: 4_096, behind_bytes: 4_096, ..Mako::by_hand() };
    let mut cluster = cluster(options, &[]);
    let leader = cluster.leader();
    let away = (leader + 1) % 3;
    cluster.transcript.pause("many transactions commit without one replica");
    isolate(&mut cluster, away);
    for number in 0..200 {
        cluster.call(leader, &format!("put x {number}; put y {number}"));
        cluster.run_for(10);
    }
    cluster.transcript.start();
    cluster.transcript.watch(&[away]);
    cluster.heal();
    for other in (0..3).filter(|other| *other != away) {
        cluster.reconnect(away, other);
    }
    cluster.run_for(1_000);
    assert_eq!(cluster.mark(away, "mako.checkpoint_installed"), 1);
    assert_eq!(cluster.everywhere("x"), "199");
    assert_golden!(cluster);
}

/// Not in the paper: a replica without its disk counts when it has the log of an epoch that began
/// without its report.
#[test]
fn a_replaced_node_counts_when_it_has_the_log_of_an_epoch_without_its_report() {
    let mut cluster = cluster(Mako::by_hand(), &[2]);
    cluster.call(0, "put x 1");
    cluster.run_for(100);
    cluster.crash(2);
    cluster.replace(2);
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(2, "mako.rejoined"), 1);
    assert_eq!(cluster.everywhere("x"), "1");
    assert_golden!(cluster);
}

/// Not in the paper: a leader that is asked to stop lets another one lead first.
#[test]
fn a_leader_that_is_asked_to_stop_hands_over_and_takes_a_checkpoint() {
    let mut cluster = cluster(Mako::by_hand(), &[0, 1, 2]);
    cluster.call(0, "put x 1");
    cluster.run_for(100);
    let leader = cluster.leader();
    cluster.transcript.act(|| format!("n{leader} is asked to stop"));
    cluster.step(leader, Input::Stop);
    cluster.run_for(2_000);
    assert_eq!(cluster.mark(leader, "mako.stop_over"), 1);
    assert_ne!(cluster.leader(), leader);
    assert_golden!(cluster);
}

/// A message of a peer that makes no sense changes nothing.
#[test]
fn nonsense_of_a_peer_is_refused_and_the_replica_continues() {
    let mut cluster = ClusterOf::<Mako>::new(3, Mako::by_hand());
    cluster.call(0, "put x 1");
    cluster.run_for(100);
    let (leader, epoch) = (cluster.leader(), cluster.counter(0, "epoch"));
    let follower = (leader + 1) % 3;
    let garbage = || bytes::Bytes::from_static(b"\x01\x01\xff\xff");
    let (after, committed) = (Default::default(), Default::default());
    let entries = garbage();
    let append =
        Message::Append { epoch, end: after, after, committed, stable: committed, entries };
    let messages = [
        (
            leader,
            Message::Forward { epoch, below: 1, requests: garbage() },
            "mako.malformed_transactions",
        ),
        (follower, append, "mako.malformed_log"),
        (leader, Message::Tail { epoch, after, entries: garbage() }, "mako.malformed_log"),
        (
            follower,
            Message::Refused { epoch, txn: 1, abort: garbage() },
            "mako.malformed_transactions",
        ),
        (leader, Message::Ack { epoch: u64::MAX, upto: after }, "mako.malformed_log"),
    ];
    for (id, message, mark) in messages {
        let from = if id == leader { follower } else { leader };
        let before = cluster.mark(id, mark);
        let input = Input::Message { from: NodeId(from as u16), message: message.clone() };
        cluster.step(id, input);
        assert_eq!(cluster.mark(id, mark), before + 1, "{message:?}");
    }
    cluster.on_words(|_, _, _| Fate::Deliver);
    cluster.call(follower, "put x 2");
    cluster.run_for(200);
    assert_eq!(cluster.everywhere("x"), "2");
}
