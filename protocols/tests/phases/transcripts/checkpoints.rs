//! Calvin's checkpoints in the paper's three modes, checkpoint turns, and recovery (Calvin §5).

use pangea_protocols::calvin::{Calvin, Checkpoints, Options};

use super::super::support::ClusterOf;
use super::super::support::words::{Timer, Transcribed};
use super::{assert_golden, commit, recorded};

/// The messages that every batch and every cut cause.
const USUAL: &[&str] = &["Batch", "Ack", "Agreement", "Progress"];

fn options(checkpoints: Checkpoints) -> Options {
    Options { checkpoints, checkpoint_bytes: 1, ..Calvin::by_hand() }
}

/// Calvin §5, the third mode: if the store has several versions of a row, a checkpoint is a scan of
/// one snapshot version.
#[test]
fn a_checkpoint_holds_one_version_while_later_epochs_run() {
    let mut cluster = recorded::<Calvin>(3, options(Checkpoints::Versions));
    cluster.transcript.watch(&[1]);
    cluster.transcript.hide(USUAL);
    cluster.set_writes_checkpoints(1, false);
    for _ in 0..3 {
        commit(&mut cluster, 0, "add x 1");
    }
    cluster.set_writes_checkpoints(1, true);
    assert_golden!(cluster);
}

/// Calvin §5, the second mode: a checkpoint captures a point of the serial order that is known
/// beforehand.
#[test]
fn with_zigzag_a_checkpoint_is_of_a_point_in_the_serial_order() {
    let mut cluster = recorded::<Calvin>(3, options(Checkpoints::Zigzag));
    cluster.transcript.watch(&[1]);
    cluster.transcript.hide(USUAL);
    cluster.set_writes_checkpoints(1, false);
    commit(&mut cluster, 0, "add x 1");
    cluster.transcript.pause("thirteen more epochs");
    for _ in 0..13 {
        commit(&mut cluster, 0, "add x 1");
    }
    cluster.transcript.start();
    for _ in 0..4 {
        commit(&mut cluster, 0, "add x 1");
    }
    cluster.set_writes_checkpoints(1, true);
    assert_golden!(cluster);
}

/// Calvin §5, the first mode: a replica is frozen for its checkpoint, and no client notices it. A
/// cut gives the replica its turn.
#[test]
fn a_frozen_replica_runs_no_epoch_and_its_clients_are_answered_with_outcomes_of_a_peer() {
    let mut cluster = recorded::<Calvin>(3, options(Checkpoints::Frozen));
    cluster.transcript.hide(USUAL);
    cluster.set_writes_checkpoints(0, false);
    commit(&mut cluster, 0, "add x 1");
    report(&mut cluster);
    commit(&mut cluster, 0, "get x; add x 1");
    cluster.call_declared(0, "get x; put y 1");
    cluster.batch(0);
    cluster.look(0, "get x");
    cluster.cut();
    cluster.set_writes_checkpoints(0, true);
    report(&mut cluster);
    commit(&mut cluster, 0, "add x 1");
    report(&mut cluster);
    commit(&mut cluster, 0, "add x 1");
    assert_golden!(cluster);
}

/// All nodes report their progress, and whether they want a turn.
fn report(cluster: &mut ClusterOf<Calvin>) {
    for id in 0..cluster.nodes.len() {
        cluster.fire(id, Timer::Progress);
    }
}

/// Calvin §5: the log contains inputs alone, and a recovery runs those after the checkpoint again.
#[test]
fn a_restart_runs_the_inputs_after_the_checkpoint_again() {
    let mut cluster = recorded::<Calvin>(3, options(Checkpoints::Versions));
    cluster.transcript.watch(&[1]);
    cluster.transcript.hide(USUAL);
    commit(&mut cluster, 0, "add x 1");
    cluster.set_writes_checkpoints(1, false);
    for (id, value) in [(2, "c1"), (0, "a1"), (0, "a2")] {
        cluster.call_declared(id, &format!("put x {value}"));
        cluster.batch(id);
    }
    cluster.cut();
    commit(&mut cluster, 0, "get x; put y 1");
    let before = cluster.nodes[1].runs.count();
    cluster.crash(1);
    cluster.start(1);
    cluster.settle();
    let runs = cluster.nodes[1].runs.count();
    cluster.transcript.note(1, || format!("has run {before} procedures, and {runs} again"));
    assert_golden!(cluster);
}
