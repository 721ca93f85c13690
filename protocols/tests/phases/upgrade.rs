//! Stops in order, and restarts with a program that has other procedures.
//!
//! The log once had procedures by their places in the sorted list of names. With one more, another
//! ran with the arguments of an acknowledged transaction, whose writes were lost.

use pangea_core::ids::NodeId;
use pangea_core::partition::{Partitions, Rule};
use pangea_core::protocol::Input;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_protocols::calvin::{self, Calvin, Replication};
use pangea_protocols::minerva::{Minerva, Options};

use super::support::words::{Timer, Transcribed};
use super::support::{ClusterOf, Fate, by_hand};

/// Minerva with a log that a restart executes again.
pub(super) fn rerun() -> Options {
    Options { rerun_on_restart: true, lone_in_order: true, ..by_hand() }
}

/// A cluster that has applied an increment of `x` in the ordered queue, if there is one.
pub(super) fn run_some<P: Transcribed>(n: usize, options: P::Options) -> ClusterOf<P> {
    let mut cluster = ClusterOf::<P>::new(n, options);
    (0..n).for_each(|id| _ = cluster.call_declared(id, "add x 1"));
    // A master receives those of its peers with their batches.
    (0..2).for_each(|_| cluster.epoch());
    cluster.run_for(500);
    assert_eq!(cluster.everywhere("x"), n.to_string());
    cluster
}

pub(super) fn stop_in_order<P: Transcribed>(cluster: &mut ClusterOf<P>, id: usize) {
    cluster.step(id, Input::Stop);
    cluster.settle();
    // Without a majority it waits for one.
    for _ in 0..35 {
        cluster.run_for(100);
        let brain = cluster.nodes[id].brain.as_ref().expect("the node runs");
        if brain.may_stop() {
            return cluster.crash(id);
        }
    }
    panic!("node {id} does not end");
}

/// Starts all nodes with more procedures.
pub(super) fn start_newer<P: Transcribed>(cluster: &mut ClusterOf<P>) {
    start_all(cluster, true);
}

/// Starts all nodes with the newer or the earlier program.
fn start_all<P: Transcribed>(cluster: &mut ClusterOf<P>, is_newer: bool) {
    for id in 0..cluster.nodes.len() {
        cluster.nodes[id].stopped = None;
        cluster.nodes[id].is_newer = is_newer;
        cluster.start(id);
    }
    cluster.run_for(3_000);
}

pub(super) fn refused<P: Transcribed>(cluster: &ClusterOf<P>, id: usize) -> Option<String> {
    let node = &cluster.nodes[id];
    let status = node.brain.as_ref().map(|brain| brain.status());
    node.stopped.clone().or(status.and_then(|status| status.refused))
}

fn continues<P: Transcribed>(mut cluster: ClusterOf<P>) {
    let n = cluster.nodes.len();
    start_newer(&mut cluster);
    for id in 0..n {
        assert_eq!(refused(&cluster, id), None);
        assert_eq!(cluster.nodes[id].runs.count(), 0, "nothing is executed again");
    }
    let ticket = cluster.call(0, "get x; add x 1");
    cluster.epoch();
    assert_eq!(cluster.result(0, ticket), n.to_string());
    assert_eq!(cluster.everywhere("x"), (n + 1).to_string());
}

#[test]
fn a_newer_program_continues_after_a_stop_in_order() {
    fn of<P: Transcribed>(n: usize, options: P::Options) {
        let mut cluster = run_some::<P>(n, options);
        (0..n).for_each(|id| stop_in_order(&mut cluster, id));
        continues(cluster);
    }
    for n in [1, 3] {
        of::<Minerva>(n, by_hand());
        of::<Minerva>(n, rerun());
        of::<Calvin>(n, Calvin::by_hand());
    }
}

/// The log has all writes, so that no code is needed.
#[test]
fn a_newer_program_replays_the_writes_in_the_log_of_a_killed_one() {
    for n in [1, 3] {
        let mut cluster = run_some::<Minerva>(n, by_hand());
        (0..n).for_each(|id| cluster.crash(id));
        continues(cluster);
    }
}

#[test]
fn a_newer_program_refuses_what_a_killed_one_has_yet_to_execute_again() {
    fn of<P: Transcribed>(n: usize, options: P::Options) {
        let mut cluster = run_some::<P>(n, options);
        (0..n).for_each(|id| cluster.crash(id));
        start_newer(&mut cluster);
        for id in 0..n {
            let why = refused(&cluster, id).expect("it can't continue");
            assert!(why.contains(&format!("(node {id})")), "{why}");
            assert!(why.contains("epoch 1") && why.contains("stop it in order"), "{why}");
            assert_eq!(cluster.nodes[id].runs.count(), 0, "nothing was executed otherwise");
            assert_eq!(cluster.value(id, "x"), "", "nothing was applied otherwise");
        }
        // What the message advises.
        for id in 0..n {
            cluster.crash(id);
            cluster.nodes[id].stopped = None;
            cluster.nodes[id].is_newer = false;
            cluster.start(id);
        }
        cluster.run_for(3_000);
        assert_eq!(cluster.everywhere("x"), n.to_string(), "nothing is lost");
        (0..n).for_each(|id| stop_in_order(&mut cluster, id));
        continues(cluster);
    }
    for n in [1, 3] {
        of::<Minerva>(n, rerun());
        of::<Calvin>(n, Calvin::by_hand());
    }
}

/// Two nodes have applied an epoch with the earlier program, and one has not.
#[test]
fn a_newer_program_takes_a_checkpoint_of_a_peer_in_place_of_an_epoch_of_other_code() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let late = (cluster.leader() + 1) % 3;
        cluster.crash(late);
        cluster.run_for(2_000);
        let other = (cluster.leader() + 1) % 3;
        let other = if other == late { (other + 1) % 3 } else { other };
        cluster.call(other, "add x 1");
        cluster.batch(other);
        cluster.cut();
        cluster.run_for(500);
        assert_eq!(cluster.value(other, "x"), "4");
        (0..3).filter(|id| *id != late).for_each(|id| stop_in_order(&mut cluster, id));
        start_newer(&mut cluster);
        assert_eq!(cluster.mark(late, "inputs.checkpoint_installed"), 1);
        assert_eq!(refused(&cluster, late), None, "it has a peer's checkpoint");
        assert_eq!(cluster.everywhere("x"), "4");
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// The checkpoint of one node that stopped in order is enough for all.
#[test]
fn newer_programs_continue_from_the_checkpoint_of_the_only_node_that_stopped_in_order() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        stop_in_order(&mut cluster, 0);
        [1, 2].into_iter().for_each(|id| cluster.crash(id));
        start_newer(&mut cluster);
        for id in [1, 2] {
            assert_eq!(cluster.mark(id, "inputs.epoch_refused"), 1);
            assert_eq!(cluster.nodes[id].runs.count(), 0);
        }
        let ticket = cluster.call(1, "get x; add x 1");
        cluster.epoch();
        assert_eq!(cluster.result(1, ticket), "3");
        assert_eq!(cluster.everywhere("x"), "4");
    }
    of::<Minerva>(rerun());
    of::<Calvin>(Calvin::by_hand());
}

/// Requests to a node that can't apply an epoch get an error, and reads its last state.
#[test]
fn a_node_that_waits_for_a_checkpoint_refuses_requests() {
    let mut cluster = run_some::<Calvin>(3, Calvin::by_hand());
    (0..3).for_each(|id| cluster.crash(id));
    start_newer(&mut cluster);
    let ticket = cluster.call(1, "add x 1");
    let outcome = format!("{:?}", cluster.outcome(1, ticket));
    assert!(outcome.contains("57P03") && outcome.contains("epoch 1"), "{outcome}");
}

/// The message once named the last of these epochs.
#[test]
fn a_master_names_the_first_epoch_that_it_can_no_longer_run() {
    let replication = Replication::Asynchronous;
    let options = calvin::Options { replication, ..Calvin::by_hand() };
    let mut cluster = ClusterOf::<Calvin>::new(3, options);
    let master = cluster.leader();
    cluster.rule = Box::new(|_, _, _| Fate::Lose);
    for script in ["add x 1", "add x 2", "add x 3"] {
        cluster.call_declared(master, script);
        cluster.batch(master);
    }
    assert_eq!(cluster.value(master, "x"), "6", "the master runs epochs early");
    cluster.heal();
    (0..3).for_each(|id| cluster.crash(id));
    start_newer(&mut cluster);
    let why = refused(&cluster, master).expect("it can't run them");
    assert!(why.contains("can't run epoch 1:") && why.matches("(code ").count() == 2, "{why}");
    // Story: beside two nodes with the new program, the advice was to stop all and go back.
    let (_, code) = why.split_once("by a program (code ").expect("the code of the epoch");
    let (code, _) = code.split_once(')').expect("the code of the epoch");
    assert!(why.contains(&format!("start the program of code {code} on this node")), "{why}");
}

/// The only node of a cluster had a batch in its log that no cut contained. It proposed none before
/// another batch came, so that a stop waited for its transactions in vain.
#[test]
fn a_node_alone_runs_at_once_what_it_finds_in_its_log() {
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(1, options);
        cluster.call_declared(0, "add x 10");
        cluster.step(0, Input::Timer(Timer::Batch.into()));
        // The batch is durable, and the node fails before it hears of that.
        cluster.nodes[0].synced = cluster.nodes[0].head;
        cluster.crash(0);
        cluster.start(0);
        stop_in_order(&mut cluster, 0);
        start_newer(&mut cluster);
        assert_eq!((refused(&cluster, 0), cluster.value(0, "x").as_str()), (None, "11"));
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
}

/// Two shards, each of which has one node: keys from "m" on are those of n1.
pub(super) fn two_shards() -> ClusterOf<Calvin> {
    let partitions = Partitions::new(2, Rule::Ranges { starts: vec![b"m".to_vec()] });
    let topology = Topology::one_node_per_region("test", &["a"], Span::from_ms(1));
    let mut cluster = ClusterOf::not_started_in(topology.divided(partitions), Calvin::by_hand());
    cluster.start_all();
    cluster
}

/// Two shards, whose nodes have begun epoch 1, of which neither has the other's slice. Either both
/// have decided their parts, or n0 alone.
fn divided(are_both_decided: bool) -> ClusterOf<Calvin> {
    let mut cluster = two_shards();
    cluster.on_words(|_, _, _| Fate::Lose);
    cluster.call_declared(0, "add a 1");
    cluster.call_declared(1, "add z 1");
    for id in 0..=usize::from(are_both_decided) {
        cluster.batch(id);
        cluster.fire(id, Timer::Epoch);
    }
    assert_eq!((cluster.value(0, "a"), cluster.value(1, "z")), (String::new(), String::new()));
    cluster.heal();
    (0..2).for_each(|id| cluster.crash(id));
    cluster
}

/// After a kill one shard had decided an epoch under the earlier program, and another decided it
/// under the new one: no program ran it.
#[test]
fn an_epoch_whose_cuts_are_of_two_programs_runs_nothing_and_stops_nobody() {
    let mut cluster = divided(false);
    start_newer(&mut cluster);
    for id in 0..2 {
        assert_eq!(refused(&cluster, id), None);
        assert_eq!(cluster.mark(id, "calvin.epoch_of_two_programs"), 1);
        assert_eq!(
            cluster.nodes[id].runs.count(),
            0,
            "its transactions were acknowledged to nobody"
        );
    }
    let ticket = cluster.call_declared(1, "add a 10; add z 10");
    cluster.epoch();
    cluster.run_for(500);
    cluster.result(1, ticket);
    assert_eq!((cluster.value(0, "a"), cluster.value(1, "z")), ("10".into(), "10".into()));
    // Both find the same in their logs.
    for is_newer in [true, false] {
        (0..2).for_each(|id| cluster.crash(id));
        start_all(&mut cluster, is_newer);
        for id in 0..2 {
            let refuses = refused(&cluster, id).is_some_and(|why| why.contains("run epoch 2:"));
            assert_eq!(refuses, !is_newer, "epoch 2 is of the newer program, epoch 1 of both");
        }
    }
}

#[test]
fn an_epoch_whose_cuts_are_all_of_the_earlier_program_is_run_by_that_program_alone() {
    let mut cluster = divided(true);
    start_newer(&mut cluster);
    for id in 0..2 {
        let why = refused(&cluster, id).expect("it can't run the epoch");
        assert!(why.contains("can't run epoch 1:"), "{why}");
        assert_eq!(cluster.nodes[id].runs.count(), 0);
    }
    (0..2).for_each(|id| cluster.crash(id));
    start_all(&mut cluster, false);
    assert_eq!((cluster.value(0, "a"), cluster.value(1, "z")), ("1".into(), "1".into()));
    (0..2).for_each(|id| stop_in_order(&mut cluster, id));
    start_newer(&mut cluster);
    assert_eq!((refused(&cluster, 0), refused(&cluster, 1)), (None, None));
    assert_eq!((cluster.value(0, "a"), cluster.value(1, "z")), ("1".into(), "1".into()));
}

/// Before the shards of a new program knew each other's slices of an epoch of the earlier one, they
/// once decided the next epoch. The earlier program stopped there without a checkpoint of the epoch
/// that it had run, and the new one refused that epoch again: neither could ever continue.
#[test]
fn shards_propose_nothing_after_an_epoch_of_another_program() {
    let mut cluster = divided(true);
    cluster.on_words(|_, _, _| Fate::Lose);
    for id in 0..2 {
        cluster.nodes[id].is_newer = true;
        cluster.start(id);
    }
    cluster.run_for(100);
    cluster.call_declared(0, "add a 10");
    cluster.call_declared(1, "add z 10");
    for id in 0..2 {
        cluster.batch(id);
        cluster.fire(id, Timer::Epoch);
    }
    cluster.heal();
    cluster.reconnect(0, 1);
    cluster.run_for(3_000);
    for id in 0..2 {
        let why = refused(&cluster, id).expect("it can't run the epoch");
        assert!(why.contains("can't run epoch 1:"), "{why}");
        assert_eq!(cluster.nodes[id].stopped, None, "it can still be stopped in order");
        assert!(cluster.mark(id, "inputs.other_program_first") > 0);
    }
    for is_newer in [false, true] {
        (0..2).for_each(|id| stop_in_order(&mut cluster, id));
        start_all(&mut cluster, is_newer);
        cluster.epoch();
    }
    assert_eq!((refused(&cluster, 0), refused(&cluster, 1)), (None, None));
    assert_eq!((cluster.value(0, "a"), cluster.value(1, "z")), ("11".into(), "11".into()));
}

/// The epochs that a master had run early were void, because the others went on under another
/// program. The master forgot none of them: its log grew for ever, and after its next restart it
/// refused an epoch that nobody could run.
#[test]
fn a_master_forgets_the_epochs_of_another_program_when_others_are_decided() {
    let replication = Replication::Asynchronous;
    let options = calvin::Options { replication, ..Calvin::by_hand() };
    let mut cluster = ClusterOf::<Calvin>::new(3, options);
    let master = cluster.leader();
    let others = [(master + 1) % 3, (master + 2) % 3];
    cluster.rule = Box::new(move |from, to, _| match [from, to].map(NodeId::index) {
        ends if ends.contains(&master) => Fate::Lose,
        _ => Fate::Deliver,
    });
    others.iter().for_each(|id| cluster.disconnect(master, *id));
    cluster.run_for(5_000);
    others.iter().for_each(|id| stop_in_order(&mut cluster, *id));
    for script in ["add x 1", "add x 2", "add x 3"] {
        cluster.call_declared(master, script);
        cluster.batch(master);
    }
    assert_eq!(cluster.value(master, "x"), "6", "the master runs epochs early");
    cluster.crash(master);
    cluster.heal();
    for id in others {
        cluster.nodes[id].is_newer = true;
        cluster.start(id);
    }
    cluster.run_for(5_000);
    let next = cluster.leader();
    cluster.call_declared(next, "add x 10");
    for _ in 0..2 {
        cluster.batch(next);
        cluster.fire(next, Timer::Epoch);
        cluster.run_for(500);
    }
    assert_eq!(cluster.value(next, "x"), "10");
    for _ in 0..2 {
        cluster.nodes[master].is_newer = true;
        cluster.start(master);
        cluster.run_for(1_000);
        let found = (cluster.value(master, "x"), refused(&cluster, master));
        assert_eq!(found, ("10".to_owned(), None));
        assert_eq!(cluster.mark(master, "calvin.early_given_up"), 1);
        cluster.crash(master);
    }
}

/// Story: the node that was to lead lacked an epoch of the earlier program, and took the checkpoint
/// of a peer. Until that had arrived, which may take minutes, it led and proposed nothing, and the
/// others, who could go on, followed it.
#[test]
fn a_node_that_waits_for_a_checkpoint_holds_up_nobody_who_does_not() {
    fn withhold<P: Transcribed>(cluster: &mut ClusterOf<P>, is_left: bool) {
        cluster.on_words(move |_, _, words| match words {
            _ if words.starts_with("CheckpointChunk") => Fate::HoldBack,
            "TransferLeadership" if !is_left => Fate::Lose,
            _ => Fate::Deliver,
        });
    }
    fn of<P: Transcribed>(options: P::Options) {
        let mut cluster = run_some::<P>(3, options);
        let late = cluster.leader();
        let others = [(late + 1) % 3, (late + 2) % 3];
        cluster.crash(late);
        cluster.run_for(2_000);
        cluster.call_declared(others[0], "add x 1");
        cluster.batch(others[0]);
        cluster.cut();
        cluster.run_for(500);
        assert_eq!(cluster.value(others[0], "x"), "4");
        others.into_iter().for_each(|id| stop_in_order(&mut cluster, id));
        withhold(&mut cluster, false);
        start_newer(&mut cluster);
        assert!(cluster.mark(late, "transfer.checkpoint_requested") > 0);
        cluster.run_for(10_000);
        let leader = cluster.leader();
        if leader != late {
            // It does not seek to lead, but is elected.
            cluster.crash(leader);
            cluster.run_for(3_000);
            cluster.start(leader);
            cluster.run_for(1_000);
        }
        assert_eq!(cluster.leader(), late);
        // It asks another to lead, and asks again after a while.
        (0..10).for_each(|_| cluster.fire(late, Timer::Epoch));
        assert_eq!(cluster.mark(late, "inputs.leadership_left"), 1);
        cluster.run_for(1_000);
        withhold(&mut cluster, true);
        let ticket = cluster.call_declared(others[0], "add x 10");
        for _ in 0..2 {
            cluster.epoch();
            cluster.run_for(500);
        }
        let leader = cluster.leader();
        let outcome = cluster.outcome(others[0], ticket);
        let waits = cluster.mark(leader, "inputs.other_program_first");
        assert!(
            outcome.is_some(),
            "{leader} leads, {late} needs a checkpoint, {waits} not proposed"
        );
        assert_eq!(cluster.value(others[1], "x"), "14");
        // It leads again when it has caught up.
        cluster.heal();
        (0..20).for_each(|_| cluster.run_for(1_000));
        assert_eq!(cluster.leader(), late);
        assert_eq!(cluster.everywhere("x"), "14");
    }
    of::<Minerva>(by_hand());
    of::<Calvin>(Calvin::by_hand());
    let replication = Replication::Asynchronous;
    of::<Calvin>(calvin::Options { replication, ..Calvin::by_hand() });
}
