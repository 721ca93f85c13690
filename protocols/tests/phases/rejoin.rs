//! A replica that lost its disk, and its replacement.

use pangea_core::ids::NodeId;
use pangea_core::protocol::{Input, Protocol, Request};
use pangea_core::txn::{Outcome, SqlState};
use pangea_protocols::minerva::{Message, Options, Timer};

use super::script::program;
use super::support::{Cluster, Fate, by_hand};

pub fn options() -> Options {
    Options { epoch_ms: 15, batch_ms: 5, ..by_hand() }
}

/// A cluster of `n` in which each node has committed twice.
pub fn busy(n: usize) -> Cluster {
    let mut cluster = Cluster::new(n, options());
    for id in (0..n).chain(0..n) {
        add(&mut cluster, id);
    }
    cluster
}

pub fn add(cluster: &mut Cluster, id: usize) {
    let ticket = cluster.call(id, "add x 1");
    cluster.run_for(60);
    assert_eq!(cluster.result(id, ticket), "");
}

pub fn assert_all_run(cluster: &Cluster) {
    let stopped: Vec<_> = cluster.nodes.iter().filter_map(|node| node.stopped.as_ref()).collect();
    assert!(stopped.is_empty(), "{stopped:?}");
}

/// The peers that the node waits for, according to its status.
fn waits_for(cluster: &Cluster, id: usize) -> Vec<NodeId> {
    let brain = cluster.nodes[id].brain.as_ref().expect("the node runs");
    brain.status().rejoin.expect("the node rejoins").missing
}

#[test]
fn a_replaced_node_holds_all_again_and_goes_on_with_its_numbers() {
    for (n, lost) in [(3, 0), (3, 1), (3, 2), (5, 1)] {
        let mut cluster = busy(n);
        let sent = cluster.counter(lost, "batches_sent");
        cluster.crash(lost);
        cluster.replace(lost);
        cluster.sent.clear();
        cluster.run_for(2_000);
        assert_eq!(cluster.mark(lost, "inputs.rejoined"), 1);
        assert!(!cluster.nodes[lost].is_replaced, "its next start is an ordinary one");
        add(&mut cluster, lost);
        let highest = cluster.sent.iter().filter_map(|(from, _, message)| match message {
            message!(Batch { bytes }) if from.index() == lost => {
                Some(u64::from_le_bytes(bytes[2..10].try_into().unwrap()))
            }
            _ => None,
        });
        assert_eq!(highest.max(), Some(sent + 1), "the next number, {n} nodes, {lost} lost");
        assert_all_run(&cluster);
        assert_eq!(cluster.everywhere("x"), (2 * n + 1).to_string());
        // The data of the other one is not needed.
        let other = (lost + 1) % n;
        cluster.crash(other);
        cluster.run_for(3_000);
        add(&mut cluster, lost);
        cluster.crash(lost);
        cluster.start(lost);
        cluster.start(other);
        cluster.run_for(3_000);
        assert_eq!(cluster.everywhere("x"), (2 * n + 2).to_string());
        assert_all_run(&cluster);
    }
}

#[test]
fn a_replaced_node_waits_for_all_others_and_says_nothing_meanwhile() {
    let mut cluster = busy(3);
    cluster.crash(1);
    cluster.crash(2);
    cluster.sent.clear();
    cluster.replace(1);
    let refused = cluster.call(1, "add x 1");
    let fresh = cluster.submit(1, Request::Fresh);
    cluster.run_for(5_000);
    assert_eq!(waits_for(&cluster, 1), [NodeId(2)]);
    let said = cluster.sent.iter().filter(|(from, _, _)| from.index() == 1);
    let is_question = |message: &Message| matches!(message, message!(Rejoin { .. }));
    assert!(said.clone().all(|(_, _, message)| is_question(message)), "{:?}", said.last());
    assert!(said.count() > 0);
    assert!(cluster.nodes[1].log.is_empty(), "there is no state to log yet");
    match cluster.outcome(1, refused) {
        Some(Outcome::Aborted(abort)) => assert_eq!(abort.code, SqlState::CANNOT_CONNECT_NOW),
        other => panic!("{other:?}"),
    }
    assert_eq!(cluster.fresh(1, fresh), None);
    cluster.start(2);
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(1, "inputs.rejoined"), 1);
    assert!(cluster.fresh(1, fresh).is_some(), "requests are only delayed");
    assert_eq!(cluster.everywhere("x"), "6");
    add(&mut cluster, 1);
    assert_all_run(&cluster);
}

/// A question that is asked again is the same question: nothing is forgotten a second time. Each
/// end of an earlier log is a record.
#[test]
fn a_question_that_is_asked_again_ends_the_earlier_life_once() {
    let mut cluster = busy(3);
    cluster.crash(1);
    cluster.rule = Box::new(|from, _, message| match message {
        message!(RejoinReply { .. }) if from == NodeId(2) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.sent.clear();
    cluster.replace(1);
    cluster.run_for(400);
    assert_eq!(cluster.mark(2, "presence.rejoin_answered"), 1);
    let log = cluster.nodes[2].log.len();
    cluster.run_for(3_000);
    assert!(cluster.mark(2, "presence.rejoin_answered") > 4);
    assert_eq!(cluster.nodes[2].log.len(), log);
    cluster.heal();
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(1, "inputs.rejoined"), 1);
    add(&mut cluster, 1);
    assert_all_run(&cluster);
}

#[test]
fn of_three_that_two_forget_is_too_many() {
    let mut cluster = busy(3);
    cluster.crash(1);
    cluster.crash(2);
    cluster.replace(1);
    cluster.replace(2);
    cluster.run_for(5_000);
    for (id, other) in [(1, 2), (2, 1)] {
        let brain = cluster.nodes[id].brain.as_ref().unwrap();
        let rejoin = brain.status().rejoin.expect("the node waits");
        // Only the third remembers.
        assert_eq!((rejoin.missing, rejoin.needed), (vec![], 2));
        assert_eq!(rejoin.forgetful, [NodeId(other)]);
        assert!(cluster.nodes[id].log.is_empty());
    }
}

#[test]
fn of_five_two_may_forget_at_once() {
    let mut cluster = busy(5);
    for lost in [0, 3] {
        cluster.crash(lost);
    }
    cluster.run_for(2_000);
    add(&mut cluster, 1);
    for lost in [0, 3] {
        cluster.replace(lost);
    }
    cluster.run_for(5_000);
    for lost in [0, 3] {
        assert!(cluster.mark(lost, "presence.peer_forgot_too") > 0);
        assert_eq!(cluster.mark(lost, "inputs.rejoined"), 1);
        add(&mut cluster, lost);
    }
    assert_eq!(cluster.everywhere("x"), "13");
    assert_all_run(&cluster);
}

/// A batch that is behind a gap on the only node that has it is acknowledged by no replica. Its
/// number is used again, and the two must not be confused.
#[test]
fn what_was_sent_behind_a_gap_is_forgotten_with_the_life_that_sent_it() {
    let mut cluster = Cluster::new(3, by_hand());
    let lost = (cluster.leader() + 1) % 3;
    let (near, far) = ((lost + 1) % 3, (lost + 2) % 3);
    cluster.call(lost, "add x 1");
    cluster.epoch();
    // Of the next two batches one peer receives only the second, and the other none.
    for (value, loses) in [("add x 10", vec![near, far]), ("add x 100", vec![far])] {
        cluster.rule = Box::new(move |from, to, message| {
            let is_batch = matches!(message, message!(Batch { .. }));
            match is_batch && from.index() == lost && loses.contains(&to.index()) {
                true => Fate::Lose,
                false => Fate::Deliver,
            }
        });
        cluster.call(lost, value);
        cluster.batch(lost);
    }
    assert_eq!(cluster.mark(near, "streams.batch_after_gap"), 1);
    cluster.crash(lost);
    cluster.heal();
    cluster.replace(lost);
    cluster.run_for(2_000);
    assert_eq!(cluster.mark(near, "streams.orphans_dropped"), 1);
    assert_eq!(cluster.mark(lost, "inputs.rejoined"), 1);
    for _ in 0..3 {
        cluster.call(lost, "add x 1000");
        cluster.epoch();
    }
    assert_eq!(cluster.everywhere("x"), "3001");
    // It is forgotten permanently.
    cluster.crash(near);
    cluster.start(near);
    cluster.run_for(2_000);
    assert_eq!(cluster.everywhere("x"), "3001");
    assert_all_run(&cluster);
}

/// A batch that one peer has may be available, and no other node can send it.
#[test]
fn a_replaced_node_fetches_its_own_batches_and_they_commit() {
    let mut cluster = Cluster::new(3, by_hand());
    let lost = (cluster.leader() + 1) % 3;
    let far = (lost + 2) % 3;
    cluster.rule = Box::new(move |from, to, message| {
        let is_batch = matches!(message, message!(Batch { .. }));
        match is_batch && from.index() == lost && to.index() == far {
            true => Fate::Lose,
            false => Fate::Deliver,
        }
    });
    for _ in 0..3 {
        cluster.call(lost, "add x 1");
        cluster.batch(lost);
    }
    cluster.crash(lost);
    cluster.heal();
    cluster.replace(lost);
    cluster.run_for(1_000);
    assert_eq!(cluster.mark(lost, "streams.own_batch_fetched"), 3);
    cluster.call(lost, "add x 1");
    cluster.epoch();
    cluster.run_for(1_000);
    cluster.cut();
    assert_eq!(cluster.everywhere("x"), "4");
    assert_all_run(&cluster);
}

/// It stops after each delivery during the rejoin, and is started like any node.
#[test]
fn a_rejoin_that_is_interrupted_is_gone_on_with() {
    for steps in 0..40 {
        let mut cluster = busy(3);
        cluster.crash(1);
        cluster.replace(1);
        cluster.deliver(steps);
        cluster.crash(1);
        cluster.start(1);
        cluster.run_for(2_000);
        assert!(!cluster.nodes[1].is_replaced, "after {steps} deliveries");
        add(&mut cluster, 1);
        assert_eq!(cluster.everywhere("x"), "7", "after {steps} deliveries");
        assert_all_run(&cluster);
    }
}

#[test]
fn an_answer_to_an_earlier_question_says_nothing() {
    let mut cluster = busy(3);
    cluster.crash(1);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(RejoinReply { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.sent.clear();
    cluster.replace(1);
    cluster.run_for(100);
    let is_answer = |message: &Message| matches!(message, message!(RejoinReply { .. }));
    let answers: Vec<_> = cluster.sent.drain(..).filter(|(_, _, said)| is_answer(said)).collect();
    assert_eq!(answers.len(), 2);
    cluster.crash(1);
    cluster.start(1);
    for (from, _, message) in answers {
        cluster.step(1, Input::Message { from, message });
    }
    assert_eq!(cluster.mark(1, "presence.recollection_late"), 2);
    assert_eq!(waits_for(&cluster, 1), [NodeId(0), NodeId(2)]);
    cluster.heal();
    cluster.run_for(2_000);
    assert_eq!(cluster.mark(1, "inputs.rejoined"), 1);
}

/// Story: a lost promise let a former leader decide an entry that the next one had not seen.
#[test]
fn a_replaced_node_keeps_what_it_promised() {
    let mut cluster = busy(3);
    let old = cluster.leader();
    let (voter, new) = ((old + 1) % 3, (old + 2) % 3);
    // The next one is elected only by the voter, and the old one does not learn of it.
    cluster.rule = Box::new(move |from, to, _| match from.index() == old || to.index() == old {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
    cluster.run_for(3_000);
    let lead = |cluster: &Cluster, id: usize| {
        let brain = cluster.nodes[id].brain.as_ref().unwrap();
        brain.status().coordinator
    };
    assert_ne!(lead(&cluster, voter), Some(NodeId(old as u16)), "another node leads");
    cluster.crash(voter);
    cluster.heal();
    cluster.replace(voter);
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(voter, "inputs.rejoined"), 1);
    add(&mut cluster, new);
    add(&mut cluster, old);
    add(&mut cluster, voter);
    assert_eq!(cluster.everywhere("x"), "9");
    assert_all_run(&cluster);
}

#[test]
fn what_is_no_answer_is_refused() {
    let mut cluster = busy(3);
    cluster.crash(1);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(RejoinReply { .. }) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.replace(1);
    cluster.sent.clear();
    cluster.run_for(600);
    let question = cluster.sent.iter().find_map(|(_, _, message)| match message {
        message!(Rejoin { nonce, .. }) => Some(*nonce),
        _ => None,
    });
    let nonce = question.expect("the node queries its peers");
    for known in [&b"x"[..], &[3, 1, 1, 1, 5, 1, 9]] {
        let message = message!(RejoinReply { nonce, log_identity: 4, known: known.into() });
        cluster.step(1, Input::Message { from: NodeId(0), message });
    }
    let nobody = message!(RejoinReply { nonce, log_identity: 0, known: Default::default() });
    cluster.step(1, Input::Message { from: NodeId(0), message: nobody });
    assert_eq!(cluster.mark(1, "presence.malformed_recollection"), 3);
    cluster.step(
        0,
        Input::Message { from: NodeId(1), message: message!(Rejoin { nonce, log_identity: 0 }) },
    );
    assert_eq!(cluster.mark(0, "presence.malformed_rejoin"), 1);
    assert_eq!(waits_for(&cluster, 1), [NodeId(0), NodeId(2)]);
}

/// Story: a strict read was requested from a coordinator that had been replaced, was asking its
/// peers and ignored other messages. It led again. The requester saw no other coordinator, and the
/// read waited forever.
#[test]
fn a_strict_read_that_asked_a_coordinator_which_asked_others_is_not_forgotten() {
    let mut cluster = busy(3);
    let lost = cluster.leader();
    let (near, far) = ((lost + 1) % 3, (lost + 2) % 3);
    // No election, so that the peers know no other coordinator.
    cluster.crash(far);
    cluster.crash(lost);
    cluster.replace(lost);
    let fresh = cluster.submit(near, Request::Fresh);
    cluster.settle();
    assert!(cluster.mark(lost, "presence.not_while_rejoining") > 0, "the answer was ignored");
    cluster.start(far);
    cluster.run_for(5_000);
    assert!(cluster.fresh(near, fresh).is_some());
    assert_all_run(&cluster);
}

/// A node that is not ready may have lost its log too, and does not know yet.
#[test]
fn who_is_not_ready_gives_no_answer() {
    let mut cluster = busy(3);
    (0..3).for_each(|id| cluster.crash(id));
    cluster.start(0);
    cluster.replace(1);
    cluster.run_for(2_000);
    assert!(cluster.mark(0, "presence.rejoin_too_early") > 0);
    assert_eq!(waits_for(&cluster, 1), [NodeId(0), NodeId(2)]);
    cluster.start(2);
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(1, "inputs.rejoined"), 1);
    cluster.commit(1, program("script", "add x 1"));
    cluster.fire(1, Timer::Batch);
    cluster.run_for(500);
    assert_eq!(cluster.everywhere("x"), "7");
}

/// Story: after a power failure of both nodes one had lost its disk, and waited for the answer of
/// the other, which waited for its greeting.
#[test]
fn who_can_not_become_ready_without_those_that_ask_answers_them() {
    for (n, lost) in [(2, vec![0]), (2, vec![1]), (4, vec![0, 3])] {
        let mut cluster = busy(n);
        // All replicas have all batches.
        cluster.run_for(1_000);
        (0..n).for_each(|id| cluster.crash(id));
        for id in 0..n {
            match lost.contains(&id) {
                true => cluster.replace(id),
                false => cluster.start(id),
            }
        }
        cluster.run_for(5_000);
        for id in 0..n {
            assert_eq!(cluster.mark(id, "inputs.rejoined"), u64::from(lost.contains(&id)));
            add(&mut cluster, id);
        }
        assert_eq!(cluster.everywhere("x"), (3 * n).to_string());
        assert_all_run(&cluster);
    }
}

/// Only a rejoining node may have the batches that it received since.
#[test]
fn a_batch_that_only_a_node_on_its_way_back_holds_keeps_its_number() {
    let mut cluster = Cluster::new(5, by_hand());
    let leader = cluster.leader();
    let others: Vec<usize> = (0..5).filter(|id| *id != leader).collect();
    let (back, lost, third) = (others[0], others[1], others[2]);
    for id in 0..5 {
        cluster.call(id, "add x 1");
    }
    cluster.epoch();
    let hampers = move |from: usize, to: usize, message: &Message| match message {
        message!(Fetch { source, .. }) => from == back && source.index() == third,
        message!(CheckpointRequest { .. }) => from == back,
        message!(Batch { .. }) => to == back && from != lost,
        _ => false,
    };
    cluster.crash(back);
    cluster.rule = Box::new(move |from, to, message| {
        if hampers(from.index(), to.index(), message) { Fate::Lose } else { Fate::Deliver }
    });
    cluster.replace(back);
    cluster.run_for(1_000);
    assert_eq!(cluster.mark(back, "presence.rejoin_knows"), 1);
    assert_eq!(cluster.mark(back, "inputs.rejoined"), 0);
    // Only the first node receives a batch of the second, and the second is lost.
    cluster.rule = Box::new(move |from, to, message| match message {
        message!(Batch { .. }) if from.index() == lost && to.index() != back => Fate::Lose,
        _ if hampers(from.index(), to.index(), message) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.call(lost, "add x 10");
    cluster.batch(lost);
    cluster.crash(lost);
    cluster.rule = Box::new(move |from, to, message| match message {
        message!(Rejoin { .. }) | message!(RejoinReply { .. }) => Fate::Deliver,
        _ if [(back, lost), (lost, back)].contains(&(from.index(), to.index())) => Fate::Lose,
        _ if hampers(from.index(), to.index(), message) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.replace(lost);
    cluster.run_for(2_000);
    assert!(cluster.mark(lost, "presence.peer_forgot_too") > 0);
    cluster.rule = Box::new(|_, _, _| Fate::Deliver);
    cluster.reconnect(back, lost);
    cluster.run_for(5_000);
    assert_all_run(&cluster);
    assert_eq!(cluster.mark(back, "inputs.rejoined"), 1);
    assert_eq!(cluster.mark(lost, "inputs.rejoined"), 1);
    cluster.cut();
    cluster.run_for(1_000);
    assert_eq!(cluster.everywhere("x"), "15");
}

/// Whether a message would help a node to get the missing batches of another.
fn brings(node: usize, of: usize, from: NodeId, to: NodeId, message: &Message) -> bool {
    match message {
        message!(Fetch { source, .. }) => from.index() == node && source.index() == of,
        message!(CheckpointRequest { .. }) => from.index() == node,
        message!(Batch { .. }) => to.index() == node && from.index() == of,
        _ => false,
    }
}

/// Five nodes, of which the coordinator was replaced and coordinates again. It is missing the
/// batches of the third node after it.
fn coordinator_on_its_way_back() -> (Cluster, usize) {
    let mut cluster = Cluster::new(5, by_hand());
    let c = cluster.leader();
    let a = (c + 3) % 5;
    for id in 0..5 {
        cluster.call(id, "add x 1");
    }
    cluster.epoch();
    cluster.crash(c);
    cluster.rule =
        Box::new(
            move |from, to, message| {
                if brings(c, a, from, to, message) { Fate::Lose } else { Fate::Deliver }
            },
        );
    cluster.replace(c);
    let leads = |cluster: &Cluster| {
        let brain = cluster.nodes[c].brain.as_ref().expect("the node runs");
        brain.status().coordinator == Some(NodeId(c as u16))
    };
    (0..30).for_each(|_| {
        if !leads(&cluster) {
            cluster.run_for(1_000)
        }
    });
    assert_eq!(cluster.leader(), c, "the node leads again");
    assert_eq!(cluster.mark(c, "inputs.rejoined"), 0);
    (cluster, c)
}

/// A leader that is rejoining counts the vote of a follower that is then lost. The transaction that
/// it acknowledged to a client is decided, whoever leads next.
#[test]
fn a_vote_for_a_leader_on_its_way_back_outlives_who_gave_it() {
    let (mut cluster, c) = coordinator_on_its_way_back();
    let [x, y, a, b] = [1, 2, 3, 4].map(|n| (c + n) % 5);
    let hampers = move |from, to, message: &Message| brings(c, a, from, to, message);
    let ticket = cluster.call(y, "add x 10");
    cluster.batch(y);
    // For now only one follower receives the cut.
    cluster.rule = Box::new(move |from, to, message| match message {
        message!(Agreement { .. }) if from.index() == c && to.index() != x => Fate::HoldBack,
        _ if hampers(from, to, message) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.fire(c, Timer::Epoch);
    cluster.crash(x);
    cluster.rule = Box::new(move |from, to, message| match message {
        message!(Rejoin { .. }) | message!(RejoinReply { .. }) => Fate::Deliver,
        _ if [(c, x), (x, c)].contains(&(from.index(), to.index())) => Fate::Lose,
        message!(Agreement { .. }) if from.index() == c => Fate::HoldBack,
        _ if hampers(from, to, message) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.replace(x);
    cluster.run_for(50);
    cluster.rule = Box::new(move |from, to, message| match message {
        _ if [(c, x), (x, c)].contains(&(from.index(), to.index())) => Fate::Lose,
        message!(Agreement { .. }) if from.index() == c && to.index() != y => Fate::Lose,
        _ if hampers(from, to, message) => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.release();
    cluster.run_for(50);
    assert!(matches!(cluster.outcome(y, ticket), Some(Outcome::Committed { .. })));
    // Those two do not reach the others.
    cluster.rule = Box::new(move |from, to, message| {
        let inside = |id: NodeId| [c, y].contains(&id.index());
        let is_cut = inside(from) != inside(to);
        if is_cut || hampers(from, to, message) { Fate::Lose } else { Fate::Deliver }
    });
    cluster.run_for(4_000);
    cluster.call(b, "add x 100");
    cluster.batch(b);
    for id in [a, b, x] {
        cluster.fire(id, Timer::Epoch);
    }
    cluster.run_for(500);
    cluster.rule = Box::new(|_, _, _| Fate::Deliver);
    for one in [c, y] {
        for other in [a, b, x] {
            cluster.reconnect(one, other);
        }
    }
    cluster.run_for(5_000);
    assert_all_run(&cluster);
    cluster.everywhere("x");
}

/// Small messages have a separate lane, on which one may be late.
#[test]
fn a_greeting_that_an_answer_has_overtaken_stops_nobody() {
    let mut cluster = busy(3);
    cluster.crash(1);
    cluster.rule = Box::new(|_, to, message| match message {
        message!(Greeting { .. }) if to.index() == 1 => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.replace(1);
    cluster.run_for(30);
    assert_eq!(cluster.mark(1, "presence.rejoin_knows"), 1);
    cluster.heal();
    cluster.run_for(1_000);
    assert!(cluster.mark(1, "presence.greeting_late") > 0);
    assert_all_run(&cluster);
}
