//! Tiga: the log of a shard, views, checkpoints, and replaced disks.

use pangea_core::key::Key;
use pangea_core::protocol::Input;
use pangea_core::txn::{Certified, Program, Write};
use pangea_core::value::Value;
use pangea_protocols::tiga::{Options, Path, Tiga};

use super::super::script::TABLE;
use super::super::support::words::Transcribed;
use super::super::support::{ClusterOf, Fate};
use super::{assert_golden, hold, isolate, recorded};

/// The messages that pass at fixed intervals.
const USUAL: &[&str] = &["Progress", "Agreement", "Digests"];

fn cluster(options: Options, watched: &[usize]) -> ClusterOf<Tiga> {
    let mut cluster = recorded::<Tiga>(3, options);
    cluster.transcript.watch(watched);
    cluster.transcript.hide(USUAL);
    cluster
}

/// Tiga §3.7: the leader adds a cell to its log when its time is over. It is committed when f + 1
/// replicas have it durably. Each replica finds that out itself, and the coordinator answers.
#[test]
fn a_cell_is_committed_when_f_plus_1_replicas_have_it_durably() {
    let mut cluster = cluster(Tiga::by_hand(), &[0, 1, 2]);
    cluster.call_declared(1, "put x 1");
    cluster.run_for(100);
    assert_golden!(cluster);
}

/// Tiga §3.4: a super quorum is equal, so the transaction commits before the log does.
#[test]
fn a_transaction_commits_by_equal_replies_before_the_log_does() {
    let options = Options { path: Path::Super, headroom_ms: Some(10), ..Tiga::by_hand() };
    let mut cluster = cluster(options, &[0, 1, 2]);
    cluster.transcript.pause("the window of hashes passes after a first transaction");
    cluster.call_declared(1, "put x 1");
    cluster.run_for(1_500);
    cluster.transcript.start();
    hold(&mut cluster, "Synced", 1);
    let (table, key) = (TABLE, Key::from(&b"x"[..]));
    let writes = vec![Write { table, key, value: Some(Value::copy_from(b"2")) }];
    cluster.commit(1, Program::Certified(Certified { writes, ..Certified::default() }));
    cluster.run_for(50);
    assert_eq!(cluster.mark(1, "tiga.fast_commit"), 1);
    assert_golden!(cluster);
}

/// Tiga §3.7: a follower that has the place of a transaction alone asks for it.
#[test]
fn a_follower_asks_for_a_transaction_of_which_it_has_the_place_alone() {
    let mut cluster = cluster(Tiga::by_hand(), &[2]);
    hold(&mut cluster, "Submit", 2);
    cluster.call_declared(0, "put x 1");
    cluster.run_for(200);
    assert_golden!(cluster);
}

/// Tiga §4: the log of a new view is the best one of f + 1 replicas.
#[test]
fn a_silent_leader_is_replaced_and_the_next_one_has_what_was_committed() {
    let mut cluster = cluster(Tiga::by_hand(), &[0, 1, 2]);
    let leader = cluster.leader();
    cluster.call_declared((leader + 1) % 3, "put x 1");
    cluster.run_for(50);
    cluster.transcript.pause("the transaction commits");
    cluster.run_for(50);
    cluster.transcript.start();
    isolate(&mut cluster, leader);
    cluster.run_for(1_500);
    assert_golden!(cluster);
}

/// Tiga §4, Algorithm 6 of its report: a replica that is too far behind takes a checkpoint, and
/// continues with the cells after it.
#[test]
fn a_replica_that_is_far_behind_takes_a_checkpoint_of_the_leader() {
    let options = Options { checkpoint_bytes: 4_096, behind_bytes: 4_096, ..Tiga::by_hand() };
    let mut cluster = cluster(options, &[2]);
    cluster.transcript.pause("many transactions commit without n2");
    isolate(&mut cluster, 2);
    for number in 0..150 {
        cluster.call_declared(0, &format!("put x {number}"));
        cluster.run_for(20);
    }
    cluster.transcript.start();
    cluster.transcript.hide(&[USUAL, &["Synced", "LogSync", "Submit"]].concat());
    cluster.heal();
    for node in [0, 1] {
        cluster.reconnect(node, 2);
    }
    cluster.run_for(1_000);
    assert_eq!(cluster.mark(2, "tiga.checkpoint_installed"), 1);
    assert_eq!(cluster.everywhere("x"), "149");
    assert_golden!(cluster);
}

/// Not in the paper: a replica without its disk counts in the first view that begins without its
/// report.
#[test]
fn a_replaced_node_counts_when_it_has_the_log_of_a_view_without_its_report() {
    let mut cluster = cluster(Tiga::by_hand(), &[2]);
    cluster.call_declared(0, "put x 1");
    cluster.run_for(100);
    cluster.transcript.hide(&[USUAL, &["Synced"]].concat());
    cluster.crash(2);
    cluster.replace(2);
    cluster.run_for(1_500);
    assert_eq!(cluster.mark(2, "tiga.rejoined"), 1);
    assert_golden!(cluster);
}

/// Not in the paper: a leader that is asked to stop lets another one lead first.
#[test]
fn a_leader_that_is_asked_to_stop_hands_over_and_takes_a_checkpoint() {
    let mut cluster = cluster(Tiga::by_hand(), &[0, 1, 2]);
    cluster.call_declared(0, "put x 1");
    cluster.run_for(100);
    let leader = cluster.leader();
    cluster.transcript.act(|| format!("n{leader} is asked to stop"));
    cluster.step(leader, Input::Stop);
    cluster.run_for(1_500);
    assert_eq!(cluster.mark(leader, "tiga.stop_over"), 1);
    assert_ne!(cluster.leader(), leader);
    assert_golden!(cluster);
}

/// A message of a peer that makes no sense changes nothing.
#[test]
fn what_no_replica_sends_is_refused_and_the_replica_continues() {
    use pangea_protocols::tiga::Message;

    let mut cluster = ClusterOf::<Tiga>::new(3, Tiga::by_hand());
    cluster.call_declared(0, "put x 1");
    cluster.run_for(100);
    let garbage = || bytes::Bytes::from_static(b"\x01\x01\xff\xff");
    let messages = [
        (Message::Submit { transactions: garbage() }, "tiga.malformed_transactions"),
        (Message::Found { transactions: garbage() }, "tiga.malformed_transactions"),
        (Message::LogSync { closed: Default::default(), suffix: garbage() }, "tiga.malformed_log"),
        (Message::Proposal { view: 1, proposal: garbage() }, "tiga.malformed_log"),
        (Message::StartView { suffix: garbage() }, "tiga.malformed_log"),
        (Message::ViewChange { view: 1, report: garbage() }, "tiga.malformed_log"),
        (Message::FastReplies { view: 1, replies: garbage() }, "tiga.malformed_fast_replies"),
        (Message::Synced { view: u64::MAX, upto: 1 }, "tiga.malformed_synced"),
    ];
    for (message, mark) in messages {
        for id in 0..3 {
            let (from, before) = ((id + 1) % 3, cluster.mark(id, mark));
            let from = pangea_core::ids::NodeId(from as u16);
            cluster.step(id, Input::Message { from, message: message.clone() });
            assert_eq!(cluster.mark(id, mark), before + 1, "{message:?}");
        }
    }
    cluster.on_words(|_, _, _| Fate::Deliver);
    cluster.call_declared(1, "put x 2");
    cluster.run_for(200);
    assert_eq!(cluster.everywhere("x"), "2");
}
