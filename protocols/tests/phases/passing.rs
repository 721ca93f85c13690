//! Checkpoint transfers over connections that fail, and across restarts of a replica.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Input;
use pangea_protocols::minerva::{Message, Options};

use super::support::{Cluster, Fate, by_hand};
use super::transfer::behind_by_many_parts;

fn put(cluster: &mut Cluster, at: usize, key: &str, value: &str) {
    cluster.call(at, &format!("put {key} {value}"));
    cluster.batch(at);
    cluster.run_for(100);
}

/// The peer and the number of a node's last checkpoint request.
fn last_request(cluster: &Cluster, away: usize) -> (usize, u64) {
    let request = |(from, to, message): &(NodeId, NodeId, Message)| match message {
        message!(CheckpointRequest { transfer, .. }) if from.index() == away => {
            Some((to.index(), *transfer))
        }
        _ => None,
    };
    cluster.sent.iter().rev().find_map(request).expect("a checkpoint was requested")
}

/// Holds back the chunks from `index` on.
fn let_pass_before(cluster: &mut Cluster, index: u64) {
    cluster.rule = Box::new(move |_, _, message| match message {
        message!(CheckpointChunk { number, .. }) if number.index >= index => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.release();
}

/// Loses all messages between two nodes for a while. Chunks are held back afterwards as before.
fn disconnect_for(cluster: &mut Cluster, (a, b): (usize, usize), ms: u64) {
    let (first, second) = (NodeId(a as u16), NodeId(b as u16));
    cluster.rule = Box::new(move |from, to, _| match [from, to] {
        pair if pair == [first, second] || pair == [second, first] => Fate::Lose,
        _ => Fate::Deliver,
    });
    for input in [Input::PeerDown, Input::PeerUp] {
        let is_down = matches!(input(first), Input::PeerDown(_));
        cluster.step(a, input(second));
        cluster.step(b, input(first));
        if is_down {
            cluster.release();
            cluster.run_for(ms);
            cluster.rule = Box::new(|_, _, _| Fate::Deliver);
        }
    }
    cluster.settle();
}

fn assert_is_back(cluster: &mut Cluster, away: usize, requests: u64) {
    cluster.run_for(2_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.everywhere("key89"), "value-of-some-length");
    assert_eq!(cluster.mark(away, "transfer.checkpoint_requested"), requests);
}

/// Story: each run numbered its transfers from 1. A peer with a long inbox answered the requests of
/// the last run, twice, when the connection was already one with the next run. That run took the
/// chunks for its own, and then those of a later version.
#[test]
fn parts_that_an_earlier_run_asked_for_are_no_parts_of_what_this_one_takes() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    let (_, earlier) = last_request(&cluster, away);
    cluster.crash(away);
    cluster.start(away);
    cluster.run_for(1_000);
    assert_eq!(last_request(&cluster, away).0, peer);
    // The messages in the peer's inbox arrive in this order: the requests of the previous run, and
    // the messages of the present one.
    let ask = |cluster: &mut Cluster, transfer| {
        let message = message!(CheckpointRequest { transfer, index: 0 });
        cluster.step(peer, Input::Message { from: NodeId(away as u16), message });
        cluster.settle();
    };
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointRequest { .. }) | message!(CheckpointAck { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    ask(&mut cluster, earlier);
    ask(&mut cluster, earlier + 1);
    for n in 0..20 {
        cluster.call(peer, &format!("del key{n:02}"));
    }
    cluster.batch(peer);
    cluster.run_for(200);
    cluster.heal();
    cluster.run_for(2_000);
    assert_eq!(cluster.nodes[away].applied(), cluster.nodes[peer].applied());
    let keys = (0..90).map(|n| format!("key{n:02}"));
    let lost: Vec<String> =
        keys.filter(|key| cluster.value(away, key) != cluster.value(peer, key)).collect();
    assert_eq!(lost, [""; 0]);
    assert_eq!(cluster.everywhere("key89"), "value-of-some-length");
}

/// Story: the only peer that could help was unreachable for longer than the time-out. All received
/// chunks were discarded, although there was no other peer to ask.
#[test]
fn nothing_is_thrown_away_while_nobody_else_could_send_it() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    let_pass_before(&mut cluster, 5);
    cluster.crash(3 - away - peer);
    disconnect_for(&mut cluster, (away, peer), 15_000);
    cluster.run_for(2_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.mark(away, "transfer.checkpoint_requested"), 1);
    assert_eq!(cluster.mark(peer, "transfer.checkpoint_resumed"), 1);
}

/// Story: the duration of a connection loss was counted from the last chunk on.
#[test]
fn a_short_loss_of_a_slow_connection_is_a_short_loss() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    let_pass_before(&mut cluster, 5);
    cluster.run_for(40_000);
    disconnect_for(&mut cluster, (away, peer), 1_000);
    assert_is_back(&mut cluster, away, 1);
    assert_eq!(cluster.mark(peer, "transfer.checkpoint_resumed"), 1);
}

/// Story: chunk 0 is always small. It reset the patience that the later chunks had increased.
#[test]
fn a_link_on_which_every_part_is_slow_is_waited_for_longer_each_time() {
    let (mut cluster, away, _) = behind_by_many_parts();
    let_pass_before(&mut cluster, 1);
    cluster.run_for(400_000);
    assert_eq!(cluster.mark(away, "transfer.checkpoint_stalled"), 2);
}

/// Cuts a node off while the others commit `writes` transactions, and connects it again.
fn lose_batches(cluster: &mut Cluster, away: usize, writes: u64) {
    let me = NodeId(away as u16);
    let others = [(away + 1) % 3, (away + 2) % 3];
    cluster.rule = Box::new(move |from, to, _| match from == me || to == me {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
    for id in others {
        cluster.step(away, Input::PeerDown(NodeId(id as u16)));
        cluster.step(id, Input::PeerDown(me));
    }
    cluster.release();
    (0..writes).for_each(|_| put(cluster, others[0], "y", "1"));
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    for id in others {
        cluster.step(away, Input::PeerUp(NodeId(id as u16)));
        cluster.step(id, Input::PeerUp(me));
    }
    cluster.settle();
}

/// No batches are retained for a node outside the configuration. Those sent while the connection
/// was lost are no longer available when the checkpoint, which ends before them, has arrived.
#[test]
fn a_checkpoint_that_outlives_its_connection_is_of_use() {
    let (mut cluster, away, _) = behind_by_many_parts();
    let_pass_before(&mut cluster, 5);
    lose_batches(&mut cluster, away, 20);
    cluster.heal();
    assert_is_back(&mut cluster, away, 1);
}

/// Sixteen chunks pass, then the connection is lost for three seconds, and so on.
#[test]
fn a_removed_node_comes_back_over_a_link_that_fails_every_so_often() {
    let (mut cluster, away, _) = behind_by_many_parts();
    let_pass_before(&mut cluster, 5);
    for _ in 0..100 {
        lose_batches(&mut cluster, away, 30);
        let passed = std::rc::Rc::new(std::cell::Cell::new(0));
        cluster.rule = Box::new(move |_, _, message| match message {
            message!(CheckpointChunk { .. }) if passed.replace(passed.get() + 1) >= 16 => {
                Fate::HoldBack
            }
            _ => Fate::Deliver,
        });
        cluster.release();
        cluster.run_for(1_000);
        if cluster.nodes[away].applied() == cluster.nodes[(away + 1) % 3].applied() {
            return;
        }
    }
    panic!(
        "the node took {} unnecessary checkpoints",
        cluster.counter(away, "checkpoints_installed")
    );
}

/// Story: a chunk arrived every 70 s, after those that were sent before it. All received chunks
/// were discarded each time, and sixteen more were queued after those in flight.
#[test]
fn a_peer_that_is_the_only_one_is_not_asked_again_for_what_it_is_sending() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    cluster.crash(3 - away - peer);
    let_pass_before(&mut cluster, 0);
    for _ in 0..30 {
        cluster.run_for(70_000);
        let is_over = std::cell::Cell::new(false);
        cluster.rule = Box::new(move |_, _, message| match message {
            message!(CheckpointChunk { .. }) if is_over.replace(true) => Fate::HoldBack,
            _ => Fate::Deliver,
        });
        cluster.release();
        let_pass_before(&mut cluster, 0);
    }
    assert_eq!(cluster.mark(away, "transfer.checkpoint_requested"), 1);
}

/// The applied and durable epochs in a node's last progress report.
fn last_progress(cluster: &Cluster, node: usize) -> (u64, u64) {
    let progress = |(from, _, message): &(NodeId, NodeId, Message)| match message {
        message!(Progress { applied, durable, .. }) if from.index() == node => {
            Some((applied.0, durable.0))
        }
        _ => None,
    };
    cluster.sent.iter().rev().find_map(progress).expect("progress is reported")
}

/// Story: while its own checkpoint of a peer's state was written, a node installed another one from
/// a peer. Without further writes it never wrote a checkpoint of that. Its state was never durable,
/// and a replaced node never finished its rejoin.
#[test]
fn a_second_checkpoint_from_a_peer_becomes_its_own_where_nobody_writes() {
    let (mut cluster, away, _) = behind_by_many_parts();
    cluster.nodes[away].writes_checkpoints = false;
    cluster.heal();
    cluster.run_for(1_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    lose_batches(&mut cluster, away, 30);
    cluster.heal();
    cluster.run_for(2_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 2);
    cluster.nodes[away].writes_checkpoints = true;
    cluster.run_for(60_000);
    let (applied, durable) = last_progress(&cluster, away);
    assert_eq!(durable, applied);
}

/// Story: a removed replica installs a checkpoint, after which it is missing so much that the fetch
/// takes longer than half a minute, over a link that is never lost. The batches retained for it
/// were dropped half a minute after the last chunk, however busily it fetched, and it began again.
#[test]
fn what_a_removed_node_fetches_behind_its_checkpoint_is_kept_as_long_as_it_gets_on() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, chunk_bytes: 64, ..by_hand() };
    let mut cluster = Cluster::new(3, options);
    let away = (cluster.leader() + 1) % 3;
    let here = (away + 1) % 3;
    put(&mut cluster, here, "x", "1");
    cluster.crash(away);
    cluster.run_for(2_000);
    (0..100).for_each(|_| put(&mut cluster, here, "y", "1"));
    // The number of batches that may still pass.
    let passing = std::rc::Rc::new(std::cell::Cell::new(0));
    let rule = |passing: &std::rc::Rc<std::cell::Cell<u64>>, holds_parts: bool| {
        let passing = passing.clone();
        move |_: NodeId, to: NodeId, message: &Message| match message {
            message!(CheckpointChunk { number, .. }) if number.index >= 5 && holds_parts => {
                Fate::HoldBack
            }
            message!(Batch { .. }) if to.index() == away && passing.get() == 0 => Fate::Lose,
            message!(Batch { .. }) if to.index() == away => {
                passing.set(passing.get() - 1);
                Fate::Deliver
            }
            _ => Fate::Deliver,
        }
    };
    cluster.rule = Box::new(rule(&passing, true));
    (0..5).for_each(|n| put(&mut cluster, here, &format!("key{n}"), &"v".repeat(64)));
    cluster.start(away);
    cluster.run_for(1_000);
    (0..250).for_each(|n| put(&mut cluster, here, "z", &n.to_string()));
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 0);
    cluster.rule = Box::new(rule(&passing, false));
    cluster.release();
    cluster.run_for(1_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.members(here), 2);
    for _ in 0..60 {
        passing.set(3);
        cluster.run_for(1_000);
    }
    cluster.heal();
    cluster.run_for(5_000);
    assert_eq!(cluster.everywhere("z"), "249");
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
}

/// A node takes the checkpoint of another peer when the first one stalls. The chunks of the first
/// arrive nevertheless, with the number that is next. They are of another version.
#[test]
fn parts_of_a_peer_that_was_given_up_are_no_parts_of_what_another_sends() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    let other = 3 - away - peer;
    let_pass_before(&mut cluster, 5);
    put(&mut cluster, other, "key89", "another-value");
    cluster.run_for(61_000);
    assert_eq!(last_request(&cluster, away).0, other);
    cluster.rule = Box::new(move |from, _, message| match message {
        message!(CheckpointChunk { .. }) if from.index() == other => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.release();
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 0);
    assert!(cluster.mark(away, "transfer.unexpected_chunk") > 0);
    cluster.heal();
    cluster.run_for(2_000);
    assert_eq!(cluster.mark(away, "transfer.checkpoint_requested"), 2);
    assert_eq!(cluster.everywhere("key89"), "another-value");
}
