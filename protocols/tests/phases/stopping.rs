//! Stops in order: which node waits for which, so that no cut remains that was proposed and not
//! decided.

use pangea_core::protocol::{Input, Message as _, Protocol};
use pangea_protocols::calvin::{self, Calvin, Replication};
use pangea_protocols::minerva::Minerva;

use super::support::words::{Timer, Transcribed};
use super::support::{ClusterOf, Fate, by_hand};
use super::upgrade::{refused, rerun, run_some, start_newer, stop_in_order, two_shards};

fn may_stop<P: Transcribed>(cluster: &ClusterOf<P>, id: usize) -> bool {
    cluster.nodes[id].brain.as_ref().expect("the node runs").may_stop()
}

fn ask_to_stop<P: Transcribed>(cluster: &mut ClusterOf<P>, id: usize) {
    cluster.step(id, Input::Stop);
    cluster.settle();
}

/// The coordinator of a cluster of three, and the others.
fn roles<P: Transcribed>(cluster: &ClusterOf<P>) -> (usize, [usize; 2]) {
    let leader = cluster.leader();
    (leader, [(leader + 1) % 3, (leader + 2) % 3])
}

/// Asynchronous replication, with everything by hand.
fn asynchronous() -> calvin::Options {
    calvin::Options { replication: Replication::Asynchronous, ..Calvin::by_hand() }
}

/// The log of a leader for a follower, which replaces that of an earlier term.
fn is_log_of_leader<P: Protocol>(message: &P::Message) -> bool {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    // Agreement; of Sequence Paxos; between two replicas; `AcceptSync`.
    matches!(bytes[..], [6, 0, 0, _, _, 3, ..])
}

/// The coordinator has proposed a cut, of which the others know nothing yet, when they are asked to
/// stop. They once ended at once. So did the coordinator, later, without a majority. The next
/// program decided the cut, and could not run it.
#[test]
fn a_cut_that_was_proposed_is_decided_before_too_few_nodes_stay() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let leader = cluster.leader();
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        let is_of_it = move |from: usize, word: &str| from == leader && word == "Agreement";
        cluster.on_words(move |from, _, words| match is_of_it(from, words) {
            true => Fate::HoldBack,
            false => Fate::Deliver,
        });
        cluster.call_declared(leader, "add x 10");
        cluster.batch(leader);
        cluster.fire(leader, Timer::Epoch);
        let may_stop = |cluster: &ClusterOf<P>, id: usize| {
            cluster.nodes[id].brain.as_ref().expect("the node runs").may_stop()
        };
        for id in others {
            cluster.step(id, Input::Stop);
            cluster.settle();
            cluster.run_for(20);
        }
        assert!(!others.into_iter().any(|id| may_stop(&cluster, id)), "the cut is not decided");
        cluster.heal();
        cluster.run_for(500);
        for id in others {
            assert!(may_stop(&cluster, id), "the coordinator has released node {id}");
            cluster.crash(id);
        }
        // Its clients have not gone yet.
        cluster.call_declared(leader, "add x 100");
        cluster.batch(leader);
        cluster.fire(leader, Timer::Epoch);
        assert!(cluster.mark(leader, "inputs.sealed") > 0, "no cut can be decided");
        stop_in_order(&mut cluster, leader);
        start_newer(&mut cluster);
        for id in 0..3 {
            assert_eq!(refused(&cluster, id), None, "node {id}");
        }
        cluster.epoch();
        cluster.run_for(500);
        assert_eq!(
            cluster.everywhere("x"),
            "113",
            "what was not decided runs under the next program"
        );
    }
    of::<Minerva>(by_hand());
    of::<Minerva>(rerun());
    of::<Calvin>(Calvin::by_hand());
}

/// Only so many nodes stop that the others go on: nobody waits for them to be idle.
#[test]
fn a_node_ends_while_enough_others_stay_and_propose() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let leader = cluster.leader();
        for id in [(leader + 1) % 3, leader] {
            cluster.step(id, Input::Stop);
            for _ in 0..20 {
                cluster.call_declared((leader + 2) % 3, "add x 1");
                (0..3).for_each(|id| cluster.step(id, Input::Timer(Timer::Batch.into())));
                cluster.step(leader, Input::Timer(Timer::Epoch.into()));
                cluster.run_for(1);
            }
            cluster.run_for(100);
            let brain = cluster.nodes[id].brain.as_ref().expect("the node runs");
            assert!(brain.may_stop(), "node {id} may end");
            cluster.reconnect(id, (leader + 2) % 3);
            cluster.crash(id);
            cluster.start(id);
            cluster.run_for(3_000);
        }
        cluster.epoch();
        assert_eq!(cluster.everywhere("x"), "43");
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// Nodes that stop lose their connections for a second, while a cut is not decided. They once ended
/// in the step in which no majority was connected.
#[test]
fn a_node_waits_for_a_majority_that_is_lost_for_a_second() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (leader, others) = roles(&cluster);
        cluster.on_words(|_, _, words| match words {
            "Agreement" => Fate::Lose,
            _ => Fate::Deliver,
        });
        cluster.call_declared(leader, "add x 10");
        cluster.batch(leader);
        cluster.fire(leader, Timer::Epoch);
        (0..3).for_each(|id| ask_to_stop(&mut cluster, id));
        let pairs = [(leader, others[0]), (leader, others[1]), (others[0], others[1])];
        pairs.into_iter().for_each(|(a, b)| cluster.disconnect(a, b));
        cluster.run_for(1_000);
        for id in 0..3 {
            assert!(!may_stop(&cluster, id), "the cut is not decided: node {id}, {leader} leads");
        }
        cluster.heal();
        pairs.into_iter().for_each(|(a, b)| cluster.reconnect(a, b));
        cluster.run_for(3_000);
        for id in 0..3 {
            assert!(may_stop(&cluster, id), "node {id}");
            cluster.crash(id);
        }
        start_newer(&mut cluster);
        for id in 0..3 {
            assert_eq!(refused(&cluster, id), None, "node {id}");
        }
        assert_eq!(cluster.everywhere("x"), "13");
    }
    of::<Minerva>(rerun());
    of::<Calvin>(Calvin::by_hand());
    of::<Calvin>(asynchronous());
}

/// A node was released, and another cut is decided while it writes its last checkpoint. The next
/// program of that node might not be able to run it.
#[test]
fn a_node_that_may_end_applies_first_what_was_decided_meanwhile() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (leader, others) = roles(&cluster);
        cluster.set_writes_checkpoints(others[0], false);
        ask_to_stop(&mut cluster, others[0]);
        cluster.run_for(100);
        assert!(cluster.mark(others[0], "inputs.stop_checkpoint") > 0, "it was released");
        let late = others[0];
        cluster.on_words(move |_, to, words| match to == late && words.starts_with("Batch") {
            true => Fate::HoldBack,
            false => Fate::Deliver,
        });
        cluster.call_declared(leader, "add x 10");
        cluster.batch(leader);
        cluster.fire(leader, Timer::Epoch);
        assert_eq!(cluster.value(leader, "x"), "13");
        assert_eq!(cluster.value(late, "x"), "3", "the batch is missing");
        cluster.set_writes_checkpoints(late, true);
        cluster.run_for(100);
        assert!(!may_stop(&cluster, late), "a decided cut is not applied");
        cluster.heal();
        cluster.run_for(100);
        assert!(may_stop(&cluster, late));
        assert_eq!(cluster.everywhere("x"), "13");
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// A node without peers ends nevertheless.
#[test]
fn a_node_waits_for_a_majority_for_seconds_only() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (leader, others) = roles(&cluster);
        for id in [leader, others[0]] {
            cluster.disconnect(id, others[1]);
            cluster.crash(id);
        }
        ask_to_stop(&mut cluster, others[1]);
        cluster.run_for(2_900);
        assert!(!may_stop(&cluster, others[1]));
        cluster.run_for(200);
        assert!(may_stop(&cluster, others[1]));
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// A node has been released and connects again, perhaps after its stop was announced, and before it
/// ends. It once counted as one that stays until its next announcement.
#[test]
fn a_node_that_connects_again_is_known_to_stop() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (leader, others) = roles(&cluster);
        ask_to_stop(&mut cluster, others[0]);
        cluster.run_for(100);
        assert!(may_stop(&cluster, others[0]));
        cluster.on_words(|_, _, words| match words.starts_with("Stopping") {
            true => Fate::Lose,
            false => Fate::Deliver,
        });
        cluster.reconnect(leader, others[0]);
        cluster.disconnect(leader, others[1]);
        cluster.call_declared(leader, "add x 10");
        cluster.batch(leader);
        cluster.fire(leader, Timer::Epoch);
        assert!(
            cluster.mark(leader, "inputs.sealed") > 0,
            "it would propose with a node that ends"
        );
        // In its next life it stays.
        cluster.crash(others[0]);
        cluster.start(others[0]);
        cluster.run_for(3_000);
        cluster.heal();
        cluster.reconnect(leader, others[1]);
        cluster.run_for(3_000);
        cluster.epoch();
        cluster.run_for(500);
        assert_eq!(cluster.everywhere("x"), "13");
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// A node of another program refuses an epoch, and votes. It once ended at once when it was to
/// stop, and the coordinator counted on its vote.
#[test]
fn a_node_that_refuses_an_epoch_waits_for_its_release() {
    let mut cluster = run_some::<Calvin>(3, Calvin::by_hand());
    let (leader, [other, newer]) = roles(&cluster);
    cluster.crash(newer);
    cluster.call_declared(leader, "add x 10");
    cluster.epoch();
    cluster.nodes[newer].is_newer = true;
    cluster.start(newer);
    cluster.run_for(100);
    assert!(refused(&cluster, newer).is_some(), "the epoch is of the earlier program");
    cluster.on_words(|_, _, words| match words.starts_with("MayStop") {
        true => Fate::HoldBack,
        false => Fate::Deliver,
    });
    ask_to_stop(&mut cluster, newer);
    cluster.run_for(100);
    assert!(!may_stop(&cluster, newer), "the coordinator may count on its vote");
    cluster.heal();
    assert!(may_stop(&cluster, newer));
    // It is not waited for.
    ask_to_stop(&mut cluster, other);
    ask_to_stop(&mut cluster, leader);
    cluster.run_for(500);
    assert!(may_stop(&cluster, other) && may_stop(&cluster, leader));
}

/// A coordinator ends with a cut that only its log has, and the others elect another, which stops
/// at once. It once released the last node before that one had replaced its log, so that the first
/// coordinator and this node decided the cut again.
#[test]
fn nobody_ends_before_a_cut_of_an_earlier_term_is_replaced() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (first, [second, third]) = roles(&cluster);
        cluster.call_declared(first, "add x 10");
        cluster.batch(first);
        cluster.on_words(|_, _, words| match words {
            "Agreement" => Fate::Lose,
            _ => Fate::Deliver,
        });
        cluster.fire(first, Timer::Epoch);
        assert!(cluster.mark(first, "inputs.cut_proposed") > 0);
        cluster.crash(first);
        cluster.rule = Box::new(|_, _, message| match is_log_of_leader::<P>(message) {
            true => Fate::HoldBack,
            false => Fate::Deliver,
        });
        cluster.run_for(3_000);
        let leads = cluster.leader();
        let other = second + third - leads;
        ask_to_stop(&mut cluster, other);
        ask_to_stop(&mut cluster, leads);
        cluster.run_for(500);
        assert!(!may_stop(&cluster, other) && !may_stop(&cluster, leads));
        cluster.heal();
        cluster.run_for(500);
        assert!(may_stop(&cluster, other) && may_stop(&cluster, leads));
        [leads, other].into_iter().for_each(|id| cluster.crash(id));
        for id in [first, other] {
            cluster.nodes[id].is_newer = true;
            cluster.start(id);
        }
        cluster.run_for(3_000);
        for id in [first, other] {
            assert_eq!(refused(&cluster, id), None, "node {id}");
        }
        cluster.epoch();
        assert_eq!(
            (cluster.value(first, "x"), cluster.value(other, "x")),
            ("13".into(), "13".into())
        );
    }
    of::<Minerva>(rerun());
    of::<Calvin>(Calvin::by_hand());
}

/// The others once waited until the absence of the coordinator was noticed: for an asynchronous
/// master, which takes no requests of its peers while it stops, for seconds.
#[test]
fn a_coordinator_that_stops_leaves_its_place_to_a_node_that_stays() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (first, others) = roles(&cluster);
        ask_to_stop(&mut cluster, first);
        cluster.run_for(50);
        let next = cluster.leader();
        assert!(others.contains(&next), "less time than an election takes has passed");
        cluster.run_for(50);
        assert!(may_stop(&cluster, first));
        // A master that was not preferred makes sure that no other campaigns.
        cluster.run_for(1_000);
        let ticket = cluster.call_declared(others[0], "add x 10");
        // A master receives it with a batch of the other.
        (0..2).for_each(|_| cluster.epoch());
        cluster.run_for(50);
        cluster.result(others[0], ticket);
        for id in 0..3 {
            // No node has a loss to warn of.
            let lost = cluster.mark(id, "calvin.early_given_up");
            assert_eq!((lost, cluster.nodes[id].store.timeline()), (0, 0));
        }
        // It neither asks for its place again, nor gets it.
        cluster.run_for(20_000);
        assert_ne!(cluster.leader(), first);
        cluster.crash(first);
        others.into_iter().for_each(|id| ask_to_stop(&mut cluster, id));
        cluster.run_for(500);
        assert!(others.into_iter().all(|id| may_stop(&cluster, id)));
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
    of::<Calvin>(asynchronous());
}

/// Each shard once ended with an epoch of its own, so that another one had epochs that no node of
/// the next program could run.
#[test]
fn shards_end_with_the_same_epoch() {
    let mut cluster = two_shards();
    ask_to_stop(&mut cluster, 0);
    cluster.run_for(1_000);
    assert!(!may_stop(&cluster, 0), "the other shard may begin an epoch");
    let ticket = cluster.call_declared(1, "add z 1");
    cluster.epoch();
    cluster.run_for(500);
    cluster.result(1, ticket);
    ask_to_stop(&mut cluster, 1);
    cluster.run_for(1_000);
    for id in 0..2 {
        assert!(may_stop(&cluster, id), "node {id}");
    }
    (0..2).for_each(|id| cluster.crash(id));
    start_newer(&mut cluster);
    assert_eq!((refused(&cluster, 0), refused(&cluster, 1)), (None, None));
    assert_eq!(cluster.value(1, "z"), "1");
}

/// A shard whose others do not stop ends nevertheless.
#[test]
fn a_shard_waits_for_the_others_for_seconds_only() {
    let mut cluster = two_shards();
    ask_to_stop(&mut cluster, 0);
    cluster.run_for(3_500);
    assert!(may_stop(&cluster, 0));
}

/// The message that leaves the leadership is lost, or its receiver can't lead yet. The coordinator
/// once proposed nothing any more, and never asked again.
#[test]
fn a_coordinator_that_stops_goes_on_until_another_leads() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (first, others) = roles(&cluster);
        cluster.on_words(|_, _, words| match words {
            "TransferLeadership" => Fate::Lose,
            _ => Fate::Deliver,
        });
        ask_to_stop(&mut cluster, first);
        cluster.run_for(300);
        assert!(!may_stop(&cluster, first), "nobody leads in its place yet");
        let ticket = cluster.call_declared(others[0], "add x 10");
        cluster.epoch();
        cluster.run_for(50);
        cluster.result(others[0], ticket);
        cluster.heal();
        cluster.run_for(1_000);
        assert_ne!(cluster.leader(), first, "it asks again");
        assert!(may_stop(&cluster, first));
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// Story: a node that was stopped when a majority had gone reported a stop in order, although its
/// last epochs might be undecided.
#[test]
fn a_node_that_stops_without_a_majority_says_so() {
    fn of<P: Transcribed>(options: impl Fn() -> P::Options) {
        let ends_alone = |cluster: &ClusterOf<P>, id: usize| {
            cluster.nodes[id].brain.as_ref().expect("the node runs").ends_alone()
        };
        let mut cluster = run_some::<P>(3, options());
        (0..3).for_each(|id| ask_to_stop(&mut cluster, id));
        cluster.run_for(3_000);
        for id in 0..3 {
            assert!(may_stop(&cluster, id) && !ends_alone(&cluster, id), "node {id}");
            cluster.crash(id);
        }
        let mut cluster = run_some::<P>(3, options());
        let (leader, others) = roles(&cluster);
        cluster.crash(leader);
        cluster.crash(others[0]);
        ask_to_stop(&mut cluster, others[1]);
        cluster.run_for(1_000);
        assert!(!may_stop(&cluster, others[1]), "the others may return");
        cluster.run_for(5_000);
        assert!(may_stop(&cluster, others[1]) && ends_alone(&cluster, others[1]));
    }
    of::<Minerva>(by_hand);
    of::<Calvin>(Calvin::by_hand);
    of::<Calvin>(asynchronous);
}

/// The messages about the last epoch are lost with a connection. The shards would then wait for
/// each other for seconds.
#[test]
fn a_shard_says_again_that_it_begins_no_more_epochs() {
    let mut cluster = two_shards();
    cluster.on_words(|_, _, words| match words.starts_with("Sealed") {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
    (0..2).for_each(|id| ask_to_stop(&mut cluster, id));
    cluster.run_for(300);
    assert!(!may_stop(&cluster, 0) && !may_stop(&cluster, 1));
    cluster.heal();
    cluster.run_for(500);
    assert!(may_stop(&cluster, 0) && may_stop(&cluster, 1));
}

/// The release is lost, and the node announces its stop as before.
#[test]
fn a_node_that_announces_its_stop_again_is_released_again() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (_, others) = roles(&cluster);
        cluster.on_words(|_, _, words| match words.starts_with("MayStop") {
            true => Fate::Lose,
            false => Fate::Deliver,
        });
        ask_to_stop(&mut cluster, others[0]);
        cluster.run_for(50);
        assert!(!may_stop(&cluster, others[0]));
        cluster.heal();
        cluster.run_for(300);
        assert!(may_stop(&cluster, others[0]));
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// A node that was released may end when its transactions are decided, before the coordinator hears
/// of that.
#[test]
fn a_coordinator_proposes_no_cut_that_needs_the_vote_of_a_node_that_it_has_released() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (leader, [stopping, staying]) = roles(&cluster);
        cluster.call_declared(stopping, "add x 10");
        cluster.batch(stopping);
        ask_to_stop(&mut cluster, stopping);
        cluster.on_words(|_, _, words| match words.starts_with("Stopping") {
            true => Fate::Lose,
            false => Fate::Deliver,
        });
        cluster.fire(leader, Timer::Epoch);
        assert!(may_stop(&cluster, stopping), "enough others stay");
        cluster.disconnect(leader, staying);
        cluster.call_declared(leader, "add x 100");
        cluster.batch(leader);
        let before = cluster.mark(leader, "inputs.cut_proposed");
        cluster.fire(leader, Timer::Epoch);
        assert_eq!(cluster.mark(leader, "inputs.cut_proposed"), before);
        assert!(cluster.mark(leader, "inputs.sealed") > 0);
        // In its next life it stays.
        cluster.crash(stopping);
        cluster.start(stopping);
        cluster.heal();
        cluster.reconnect(leader, staying);
        cluster.run_for(3_000);
        cluster.epoch();
        cluster.run_for(500);
        assert_eq!(cluster.everywhere("x"), "113");
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// The others go on while a node writes its last checkpoint, which therefore lacks epochs that it
/// has applied. Its next program could not run those.
#[test]
fn a_node_that_applied_epochs_while_it_wrote_its_last_checkpoint_takes_another() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (leader, [stopping, _]) = roles(&cluster);
        cluster.set_writes_checkpoints(stopping, false);
        ask_to_stop(&mut cluster, stopping);
        cluster.run_for(100);
        cluster.call_declared(leader, "add x 10");
        cluster.batch(leader);
        cluster.fire(leader, Timer::Epoch);
        assert_eq!(cluster.value(stopping, "x"), "13");
        cluster.set_writes_checkpoints(stopping, true);
        cluster.run_for(100);
        assert!(may_stop(&cluster, stopping));
        assert_eq!(cluster.mark(stopping, "inputs.stop_checkpoint"), 2);
        cluster.crash(stopping);
        cluster.nodes[stopping].is_newer = true;
        cluster.start(stopping);
        cluster.run_for(100);
        assert_eq!(refused(&cluster, stopping), None);
        assert_eq!(cluster.value(stopping, "x"), "13");
    }
    of::<Minerva>(rerun());
    of::<Calvin>(Calvin::by_hand());
}

/// The last node is not released, because the coordinator ends. It knows that nobody is left for
/// whom it could wait.
#[test]
fn a_node_says_that_it_waits_for_nobody_before_it_ends() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let (leader, [first, last]) = roles(&cluster);
        cluster.on_words(move |_, to, words| match to == last && words.starts_with("MayStop") {
            true => Fate::Lose,
            false => Fate::Deliver,
        });
        [first, last, leader].into_iter().for_each(|id| ask_to_stop(&mut cluster, id));
        for id in [first, leader] {
            assert!(may_stop(&cluster, id), "node {id}");
            cluster.crash(id);
        }
        cluster.run_for(1);
        assert!(may_stop(&cluster, last), "it does not wait for seconds");
        let brain = cluster.nodes[last].brain.as_ref().expect("the node runs");
        assert!(!brain.ends_alone(), "no cut is undecided");
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}
