//! How a checkpoint passes over connections that fail, and from one life of a replica to the next.

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

/// Whom a node has asked for a checkpoint last, and under which number.
fn last_request(cluster: &Cluster, away: usize) -> (usize, u64) {
    let request = |(from, to, message): &(NodeId, NodeId, Message)| match message {
        Message::CheckpointRequest { transfer, .. } if from.index() == away => {
            Some((to.index(), *transfer))
        }
        _ => None,
    };
    cluster.sent.iter().rev().find_map(request).expect("it has asked")
}

/// The parts from `index` on are held back.
fn let_pass_before(cluster: &mut Cluster, index: u64) {
    cluster.rule = Box::new(move |_, _, message| match message {
        Message::CheckpointChunk { number, .. } if number.index >= index => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.release();
}

/// Nothing passes between two nodes for a while. Parts are held back afterwards as before.
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
    assert_eq!(cluster.mark(away, "inputs.checkpoint_requested"), requests);
}

/// Each run numbered its transfers from 1. A peer whose inbox was long answered what the last run
/// had asked, twice, when the connection was already one with the next run, which took the parts
/// for its own, and then those of a later version.
#[test]
fn parts_that_an_earlier_run_asked_for_are_no_parts_of_what_this_one_takes() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    let (_, earlier) = last_request(&cluster, away);
    cluster.crash(away);
    cluster.start(away);
    cluster.run_for(1_000);
    assert_eq!(last_request(&cluster, away).0, peer);
    // What the peer had in its inbox comes in this order: the requests of the run before, and what
    // the run that is there now has said.
    let ask = |cluster: &mut Cluster, transfer| {
        let message = Message::CheckpointRequest { transfer, index: 0 };
        cluster.step(peer, Input::Message { from: NodeId(away as u16), message });
        cluster.settle();
    };
    cluster.rule = Box::new(|_, _, message| match message {
        Message::CheckpointRequest { .. } | Message::CheckpointAck { .. } => Fate::HoldBack,
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

/// The only one that could help was away for longer than another is waited with. All that had come
/// was thrown away, although there was nobody else to ask.
#[test]
fn nothing_is_thrown_away_while_nobody_else_could_send_it() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    let_pass_before(&mut cluster, 5);
    cluster.crash(3 - away - peer);
    disconnect_for(&mut cluster, (away, peer), 15_000);
    cluster.run_for(2_000);
    assert_eq!(cluster.counter(away, "checkpoints_installed"), 1);
    assert_eq!(cluster.mark(away, "inputs.checkpoint_requested"), 1);
    assert_eq!(cluster.mark(peer, "inputs.checkpoint_resumed"), 1);
}

/// How long the connection is lost was counted from the last part on.
#[test]
fn a_short_loss_of_a_slow_connection_is_a_short_loss() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    let_pass_before(&mut cluster, 5);
    cluster.run_for(40_000);
    disconnect_for(&mut cluster, (away, peer), 1_000);
    assert_is_back(&mut cluster, away, 1);
    assert_eq!(cluster.mark(peer, "inputs.checkpoint_resumed"), 1);
}

/// Part 0 is always small. It took back the patience that was learned with what came after it.
#[test]
fn a_link_on_which_every_part_is_slow_is_waited_for_longer_each_time() {
    let (mut cluster, away, _) = behind_by_many_parts();
    let_pass_before(&mut cluster, 1);
    cluster.run_for(400_000);
    assert_eq!(cluster.mark(away, "inputs.checkpoint_stalled"), 2);
}

/// Cuts a node off while the others commit, so often, and connects it again.
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
        Message::CheckpointChunk { .. } => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    for id in others {
        cluster.step(away, Input::PeerUp(NodeId(id as u16)));
        cluster.step(id, Input::PeerUp(me));
    }
    cluster.settle();
}

/// A node that is not in the configuration has no batches kept for it. Those that were sent while
/// the connection was lost are gone when the checkpoint is there, which ends before them.
#[test]
fn a_checkpoint_that_outlives_its_connection_is_of_use() {
    let (mut cluster, away, _) = behind_by_many_parts();
    let_pass_before(&mut cluster, 5);
    lose_batches(&mut cluster, away, 20);
    cluster.heal();
    assert_is_back(&mut cluster, away, 1);
}

/// Sixteen parts pass, then the connection is lost for three seconds, and so on.
#[test]
fn a_removed_node_comes_back_over_a_link_that_fails_every_so_often() {
    let (mut cluster, away, _) = behind_by_many_parts();
    let_pass_before(&mut cluster, 5);
    for _ in 0..100 {
        lose_batches(&mut cluster, away, 30);
        let passed = std::rc::Rc::new(std::cell::Cell::new(0));
        cluster.rule = Box::new(move |_, _, message| match message {
            Message::CheckpointChunk { .. } if passed.replace(passed.get() + 1) >= 16 => {
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
    panic!("it took {} checkpoints in vain", cluster.counter(away, "checkpoints_installed"));
}

/// A part comes every 70 s, after those that were sent before it. What had come was thrown away
/// each time, and sixteen more were put behind those that were on their way.
#[test]
fn a_peer_that_is_the_only_one_is_not_asked_again_for_what_it_is_sending() {
    let (mut cluster, away, peer) = behind_by_many_parts();
    cluster.crash(3 - away - peer);
    let_pass_before(&mut cluster, 0);
    for _ in 0..30 {
        cluster.run_for(70_000);
        let is_over = std::cell::Cell::new(false);
        cluster.rule = Box::new(move |_, _, message| match message {
            Message::CheckpointChunk { .. } if is_over.replace(true) => Fate::HoldBack,
            _ => Fate::Deliver,
        });
        cluster.release();
        let_pass_before(&mut cluster, 0);
    }
    assert_eq!(cluster.mark(away, "inputs.checkpoint_requested"), 1);
}

/// The epochs applied and durable that a node has told of last.
fn last_progress(cluster: &Cluster, node: usize) -> (u64, u64) {
    let progress = |(from, _, message): &(NodeId, NodeId, Message)| match message {
        Message::Progress { applied, durable, .. } if from.index() == node => {
            Some((applied.0, durable.0))
        }
        _ => None,
    };
    cluster.sent.iter().rev().find_map(progress).expect("it tells how far it is")
}

/// While its own checkpoint of a peer's state was written, it took another one from a peer. Where
/// nobody wrote any more, it never made a checkpoint of that: what it had was never durable, and a
/// replaced node never had its place again.
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

/// A removed replica takes a checkpoint, behind which it lacks so much that it takes it longer than
/// half a minute to fetch it, over a link that is never lost. What was kept for it was dropped half
/// a minute after the last part of the checkpoint, however busily it fetched, and it began again.
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
    // So many batches may still pass.
    let passing = std::rc::Rc::new(std::cell::Cell::new(0));
    let rule = |passing: &std::rc::Rc<std::cell::Cell<u64>>, holds_parts: bool| {
        let passing = passing.clone();
        move |_: NodeId, to: NodeId, message: &Message| match message {
            Message::CheckpointChunk { number, .. } if number.index >= 5 && holds_parts => {
                Fate::HoldBack
            }
            Message::Batch { .. } if to.index() == away && passing.get() == 0 => Fate::Lose,
            Message::Batch { .. } if to.index() == away => {
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
