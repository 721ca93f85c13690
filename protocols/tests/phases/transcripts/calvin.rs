//! Calvin's phases where each replica has all data: the order first, and then execution.

use pangea_core::protocol::Protocol;
use pangea_protocols::calvin::{Calvin, Options, Replication};

use super::super::support::words::{Timer, Transcribed};
use super::super::support::{ClusterOf, Fate};
use super::{assert_golden, commit, hold, isolate, recorded};

/// The messages that every batch and every cut cause.
const USUAL: &[&str] = &["Batch", "Ack", "Agreement"];

fn asynchronous() -> Options {
    Options { replication: Replication::Asynchronous, ..Calvin::by_hand() }
}

/// Calvin §3.1: a sequencer compiles the requests of an epoch into a batch.
#[test]
fn a_sequencer_collects_requests_into_a_batch_and_runs_none_of_them() {
    let mut cluster = recorded::<Calvin>(3, Calvin::by_hand());
    cluster.transcript.watch(&[0]);
    cluster.call_declared(0, "put x 1");
    cluster.call_declared(0, "add x 1");
    cluster.batch(0);
    cluster.call_declared(0, "get x; put y 1");
    assert_golden!(cluster);
}

/// Calvin §3.1.1, synchronous: the sequencers of a group agree on the batches of each epoch.
#[test]
fn an_epoch_runs_when_f_plus_1_replicas_have_its_batches_and_a_majority_its_cut() {
    let mut cluster = recorded::<Calvin>(3, Calvin::by_hand());
    cluster.call_declared(0, "add x 1");
    cluster.batch(0);
    cluster.call_declared(2, "add x 10");
    cluster.batch(2);
    cluster.cut();
    assert_golden!(cluster);
}

/// Calvin §3.1: every scheduler takes the batches of an epoch from each sequencer in turn, so all
/// find the same serial order.
#[test]
fn the_serial_order_takes_the_batches_of_the_sequencers_round_robin() {
    let mut cluster = recorded::<Calvin>(3, Calvin::by_hand());
    cluster.transcript.hide(USUAL);
    for (id, value) in [(2, "c1"), (2, "c2"), (0, "a1"), (0, "a2"), (0, "a3"), (1, "b1")] {
        cluster.call_declared(id, &format!("get x; put x {value}"));
        cluster.batch(id);
    }
    cluster.cut();
    assert_golden!(cluster);
}

/// Calvin §3.2: a lock is granted to transactions in their serial order.
#[test]
fn locks_are_granted_in_the_serial_order_and_every_replica_reaches_the_same_state() {
    let mut cluster = recorded::<Calvin>(3, Calvin::by_hand());
    cluster.transcript.hide(USUAL);
    cluster.call_declared(1, "add x 1; get y");
    cluster.call_declared(1, "get x; add y 1");
    cluster.call_declared(0, "get y; add x 10");
    cluster.call(2, "get x; abort");
    cluster.epoch();
    assert_golden!(cluster);
}

/// Calvin §3.2.1: a reconnaissance finds the footprint of a transaction, which restarts if its
/// footprint has changed: in the same epoch here.
#[test]
fn a_dependent_transaction_is_reconnoitred_and_restarts_if_its_footprint_has_changed() {
    let mut cluster = recorded::<Calvin>(3, Calvin::by_hand());
    cluster.transcript.watch(&[0, 1]);
    cluster.transcript.hide(USUAL);
    commit(&mut cluster, 0, "put p a");
    cluster.call(1, "follow p 1");
    cluster.batch(1);
    cluster.cut();
    cluster.call(1, "follow p 2");
    cluster.call_declared(0, "put p b");
    cluster.batch(0);
    cluster.batch(1);
    cluster.cut();
    assert_golden!(cluster);
}

/// Calvin §4: a sequencer delays a request for cold rows while the replicas warm them.
#[test]
fn a_request_for_a_cold_row_enters_a_batch_once_every_replica_has_fetched_the_row() {
    let mut cluster = with_cold_row();
    cluster.call_declared(0, "get x; put z 1");
    cluster.call_declared(0, "put y 1");
    cluster.batch(0);
    cluster.fetch(0);
    cluster.fetch(1);
    cluster.batch(0);
    cluster.cut();
    assert_golden!(cluster);
}

/// Calvin §4.1: a transaction waits for the disk while it runs if the predicted latency is too
/// short.
#[test]
fn a_request_for_a_cold_row_waits_no_longer_than_the_disk_was_predicted_to_need() {
    let mut cluster = with_cold_row();
    cluster.transcript.pause("one fetch is measured");
    cluster.call_declared(0, "get x; put z 1");
    cluster.fetch(0);
    cluster.fetch(1);
    cluster.batch(0);
    cluster.cut();
    for _ in 0..8 {
        cluster.evict(1);
    }
    cluster.fire(1, Timer::Progress);
    cluster.transcript.start();
    cluster.call_declared(0, "get x; put z 2");
    cluster.fetch(0);
    cluster.run_for(10);
    cluster.batch(0);
    cluster.cut();
    cluster.fetch(1);
    assert_golden!(cluster);
}

/// Three nodes, of which n1 has evicted the row x from memory. Calvin §4.2: it tells the others.
fn with_cold_row() -> ClusterOf<Calvin> {
    let mut cluster = ClusterOf::<Calvin>::not_started(3, Calvin::by_hand());
    cluster.memory_bytes = Some(1);
    cluster.start_all();
    // A short value is never evicted.
    commit(&mut cluster, 0, "put x a-value-that-is-not-short");
    cluster.transcript.start();
    cluster.transcript.hide(&["Batch", "Ack", "Agreement", "Progress"]);
    cluster.evict(1);
    cluster.fire(1, Timer::Progress);
    cluster
}

/// Calvin §3.2: a read-only transaction needs no lock and no place in the order here. By default it
/// sees everything acknowledged before it began, so it waits for a cut.
#[test]
fn a_read_only_program_takes_no_place_in_the_order_and_waits_for_a_cut() {
    let mut cluster = recorded::<Calvin>(3, Calvin::by_hand());
    cluster.transcript.hide(USUAL);
    hold(&mut cluster, "Agreement", 1);
    commit(&mut cluster, 0, "put x 1");
    cluster.look(1, "get x");
    cluster.settle();
    cluster.heal();
    cluster.cut();
    assert_golden!(cluster);
}

/// Calvin §3.1.1, asynchronous: the master runs an epoch without waiting for another replica.
#[test]
fn the_master_runs_an_epoch_when_its_own_disk_has_the_batch_and_the_cut() {
    let mut cluster = recorded::<Calvin>(3, asynchronous());
    cluster.call_declared(0, "add x 1");
    cluster.set_syncs(0, false);
    cluster.batch(0);
    cluster.on_words(|_, _, _| Fate::HoldBack);
    cluster.set_syncs(0, true);
    cluster.heal();
    assert_golden!(cluster);
}

/// Calvin §3.1.1, asynchronous: every replica forwards its requests to the master at once.
#[test]
fn a_request_is_forwarded_to_the_master_and_answered_where_it_arrived() {
    let mut cluster = recorded::<Calvin>(3, asynchronous());
    cluster.transcript.hide(&["Ack", "Agreement"]);
    cluster.call_declared(1, "add x 1");
    cluster.call_declared(0, "add x 10");
    cluster.settle();
    cluster.batch(0);
    assert_golden!(cluster);
}

/// Calvin §3.1.1: after a failover the replicas agree on the last valid batch of the failed master.
#[test]
fn a_deposed_master_rolls_back_the_epochs_that_were_not_agreed_on() {
    let mut cluster = recorded::<Calvin>(3, asynchronous());
    cluster.transcript.hide(&["Ack", "Agreement", "Progress", "Greeting"]);
    cluster.call_declared(0, "put x 1");
    cluster.batch(0);
    isolate(&mut cluster, 0);
    cluster.call_declared(0, "put x 2");
    cluster.batch(0);
    cluster.transcript.pause("n1 and n2 elect a master");
    cluster.run_for(4_000);
    let master = cluster.nodes[1].brain.as_ref().and_then(|brain| brain.status().coordinator);
    let master = master.expect("a master is elected").index();
    cluster.transcript.start();
    cluster.call_declared(master, "add x 10");
    cluster.batch(master);
    cluster.heal();
    for peer in [1, 2] {
        cluster.reconnect(0, peer);
    }
    cluster.run_for(60);
    assert_golden!(cluster);
}

/// Calvin §3.1.1 has one designated master. Here it hands over without a loss: the new one takes
/// over when all requests that the old one accepted are decided.
#[test]
fn mastership_goes_to_the_preferred_master_when_nothing_is_undecided() {
    let mut cluster = recorded::<Calvin>(3, asynchronous());
    cluster.transcript.hide(&["Ack", "Agreement", "Progress", "Greeting"]);
    cluster.transcript.pause("n0 was down, and follows another master");
    cluster.crash(0);
    cluster.run_for(4_000);
    let master = cluster.leader();
    cluster.on_words(|_, _, message| match message {
        "RequestMastership" => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.start(0);
    cluster.run_for(1_200);
    cluster.transcript.start();
    cluster.call_declared(master, "put x 1");
    cluster.heal();
    cluster.call_declared(master, "add x 10");
    cluster.batch(master);
    cluster.run_for(20);
    cluster.batch(0);
    assert_golden!(cluster);
}
