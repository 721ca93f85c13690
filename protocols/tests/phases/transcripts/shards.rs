//! Calvin's phases between the nodes of a region, if tables are partitioned.
//!
//! There are two shards: s0 has the keys below "m", and s1 those from "m" on. In a cluster of one
//! region n0 is the replica of s0, and n1 that of s1. With three regions n2 and n3 are the next
//! region's, and so on.

use pangea_core::partition::{Partitions, Rule};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_protocols::calvin::{Calvin, Options, Replication};

use super::super::support::ClusterOf;
use super::super::support::Fate;
use super::super::support::words::{Timer, Transcribed};
use super::{assert_golden, commit, hold};

/// The messages within replication groups, and reports between shards.
const OF_GROUPS: &[&str] = &["Agreement", "Progress", "Ack", "Batch", "Greeting", "ShardProgress"];

fn partitioned(regions: &[&str], options: Options) -> ClusterOf<Calvin> {
    let starts = vec![b"m".to_vec()];
    let partitions = Partitions::new(2, Rule::Ranges { starts });
    let topology = Topology::one_node_per_region("test", regions, Span::from_ms(1));
    let mut cluster = ClusterOf::not_started_in(topology.divided(partitions), options);
    cluster.start_all();
    cluster.transcript.start();
    cluster.transcript.hide(&["Agreement", "Progress"]);
    cluster
}

fn in_one_region() -> ClusterOf<Calvin> {
    partitioned(&["a"], Calvin::by_hand())
}

/// Calvin §3.1: a sequencer sends to each scheduler the requests in which its shard participates.
#[test]
fn each_shard_is_sent_the_requests_of_an_epoch_that_it_participates_in() {
    let mut cluster = in_one_region();
    cluster.call_declared(0, "put a 1");
    cluster.call_declared(0, "put b 2; put z 2");
    cluster.call_declared(0, "put y 3");
    commit(&mut cluster, 1, "put z 4");
    assert_golden!(cluster);
}

/// Calvin §3.2, phases 1 to 5: every participant sends the rows that it has read to the active
/// participants; a passive one is then done.
#[test]
fn a_passive_participant_sends_its_rows_to_the_active_one_and_is_done() {
    let mut cluster = in_one_region();
    commit(&mut cluster, 0, "put a 7");
    hold(&mut cluster, "RemoteResults", 1);
    cluster.call_declared(1, "get a; add z 1");
    cluster.call_declared(1, "get z; put x 1");
    commit(&mut cluster, 1, "put y 1");
    cluster.heal();
    assert_golden!(cluster);
}

/// Calvin §3.2, phase 5: an active participant applies the writes of its own shard alone.
#[test]
fn every_active_participant_collects_all_rows_and_applies_its_own_writes() {
    let mut cluster = in_one_region();
    commit(&mut cluster, 0, "add b 1; add y 1");
    commit(&mut cluster, 1, "add b 10; add y 10; get c");
    cluster.call_declared(0, "get y; add b 100");
    cluster.call_declared(0, "get b; add z 1");
    cluster.batch(0);
    cluster.cut();
    assert_golden!(cluster);
}

/// Calvin §3.2 leaves the answer to the client open: the first shard that ran the transaction sends
/// its outcome to the shard that sequenced it.
#[test]
fn the_outcome_of_a_transaction_that_ran_elsewhere_is_sent_to_its_source() {
    let mut cluster = in_one_region();
    cluster.call_declared(0, "add z 5; get y");
    commit(&mut cluster, 0, "get a");
    assert_golden!(cluster);
}

/// Calvin §3.2.1: the reconnaissance of a dependent transaction reads on other shards, too.
#[test]
fn a_reconnaissance_asks_other_shards_for_the_rows_that_it_lacks() {
    let mut cluster = in_one_region();
    commit(&mut cluster, 1, "put p b");
    cluster.call(0, "follow p 1");
    cluster.settle();
    cluster.batch(0);
    cluster.cut();
    assert_golden!(cluster);
}

/// Calvin §3.2.1: a transaction restarts, on all shards alike, if its footprint is no longer the
/// one that the reconnaissance found. The transaction is looked up and sequenced again.
#[test]
fn a_footprint_violation_has_no_effect_on_any_shard_and_the_transaction_is_sequenced_again() {
    let mut cluster = in_one_region();
    commit(&mut cluster, 1, "put p b");
    cluster.call_declared(0, "put p c");
    cluster.batch(0);
    cluster.call(0, "follow p 1");
    cluster.settle();
    cluster.batch(0);
    cluster.cut();
    cluster.batch(0);
    cluster.cut();
    assert_golden!(cluster);
}

/// Calvin §3.1 sends each slice once. Here slices, rows and outcomes are retained until the
/// receiver has them on disk, so a lost connection loses none.
#[test]
fn a_shard_that_connects_again_is_sent_what_it_lacks_and_no_more() {
    let mut cluster = in_one_region();
    commit(&mut cluster, 0, "put a 7");
    hold(&mut cluster, "Slice of", 1);
    commit(&mut cluster, 0, "put z 1");
    commit(&mut cluster, 0, "get a; add z 1");
    cluster.on_words(|_, _, _| Fate::Deliver);
    cluster.reconnect(0, 1);
    for id in 0..2 {
        cluster.fire(id, Timer::Progress);
    }
    cluster.reconnect(0, 1);
    assert_golden!(cluster);
}

/// Calvin §5: a restart runs the inputs again. Those of other shards are in the node's own log, and
/// it asks for the later ones.
#[test]
fn a_shard_that_restarts_runs_its_epochs_again_with_the_logged_rows_of_the_others() {
    let mut cluster = in_one_region();
    commit(&mut cluster, 0, "put a 7");
    commit(&mut cluster, 1, "get a; add z 1");
    cluster.crash(1);
    cluster.call_declared(0, "get a; add z 1");
    cluster.batch(0);
    cluster.fire(0, Timer::Epoch);
    cluster.start(1);
    cluster.settle();
    cluster.fire(1, Timer::Epoch);
    assert_golden!(cluster);
}

/// Calvin §3.1: all sequencers advance to the next epoch together. A group without requests follows
/// the others.
#[test]
fn a_group_without_requests_follows_the_others_with_empty_cuts() {
    let mut cluster = in_one_region();
    cluster.call_declared(0, "put a 1");
    cluster.batch(0);
    cluster.fire(0, Timer::Epoch);
    cluster.fire(1, Timer::Epoch);
    assert_golden!(cluster);
}

/// Calvin §6.2: a slow node makes the other nodes slow, too. Here clients are refused after 256
/// epochs, in the name of that node.
#[test]
fn a_client_is_refused_when_another_node_is_too_far_behind() {
    let mut cluster = partitioned(&["a"], Options { epoch_ms: 10, ..Calvin::by_hand() });
    cluster.transcript.pause("n1 is down, and n0 has made as many cuts as it may");
    cluster.crash(1);
    for n in 0..600 {
        cluster.call_declared(0, &format!("put a {n}"));
        cluster.run_for(10);
    }
    cluster.transcript.start();
    cluster.call_declared(0, "put a 1");
    assert_golden!(cluster);
}

/// Calvin §3.1.1, asynchronous: the masters of a region run an epoch together, before another
/// region has heard of it. An outcome elsewhere waits until the cuts of all groups are decided.
#[test]
fn a_region_of_masters_runs_an_epoch_early_and_confirms_it_when_all_cuts_are_decided() {
    let options = Options { replication: Replication::Asynchronous, ..Calvin::by_hand() };
    let mut cluster = partitioned(&["a", "b", "c"], options);
    cluster.transcript.hide(&["Agreement", "Progress", "Ack", "Batch"]);
    cluster.transcript.watch(&[0, 1]);
    cluster.on_words(|from, to, _| match from / 2 == to / 2 {
        true => Fate::Deliver,
        false => Fate::HoldBack,
    });
    cluster.call_declared(0, "put a 1; add z 1");
    cluster.batch(0);
    cluster.cut();
    cluster.heal();
    assert_golden!(cluster);
}

/// Calvin §3.1.1: the nodes of a region agree after a failover, too: another shard may have run an
/// epoch with the failed master's slice.
#[test]
fn a_shard_that_ran_an_epoch_on_a_void_slice_rolls_back_and_runs_the_decided_one() {
    let options = Options { replication: Replication::Asynchronous, ..Calvin::by_hand() };
    let mut cluster = partitioned(&["a", "b", "c"], options);
    cluster.transcript.hide(OF_GROUPS);
    cluster.transcript.watch(&[0, 1]);
    // The group of s0 is n0, n2 and n4.
    cluster.transcript.act(|| "n0 is cut off from its group".to_owned());
    cluster.on_words(|from, to, _| match (from % 2, to % 2) == (0, 0) && [from, to].contains(&0) {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
    cluster.call_declared(0, "put a 1; add z 1");
    cluster.batch(0);
    cluster.transcript.pause("n2 and n4 elect a master, which fixes another cut");
    cluster.run_for(4_000);
    cluster.transcript.start();
    cluster.heal();
    cluster.reconnect(0, 2);
    cluster.reconnect(0, 4);
    cluster.run_for(100);
    assert_golden!(cluster);
}

/// Calvin §8 leaves to the future that another replica sends the remote reads of a lost node: here
/// a node subscribes to another region's.
#[test]
fn a_shard_subscribes_in_another_region_when_the_node_of_its_own_is_lost() {
    let mut cluster = partitioned(&["a", "b", "c"], Calvin::by_hand());
    cluster.transcript.hide(OF_GROUPS);
    cluster.transcript.watch(&[1, 2]);
    cluster.crash(0);
    cluster.run_for(1_000);
    commit(&mut cluster, 1, "get a; put y 1");
    assert_golden!(cluster);
}
