//! Minerva's own phases: execution before the order is known, and validation after it.

use pangea_protocols::minerva::{Minerva, Options};

use super::super::support::{by_hand, paper_by_hand};
use super::{assert_golden, commit, hold, recorded};

/// The messages that every batch and every cut cause.
const USUAL: &[&str] = &["Batch", "Ack", "ProofOfAvailability", "Agreement"];

/// Minerva §3.2, Algorithm 1: a local execution reads its source's uncommitted writes above the
/// last snapshot.
#[test]
fn a_transaction_runs_at_once_on_the_snapshot_and_the_uncommitted_writes_of_its_source() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.watch(&[0, 1]);
    cluster.transcript.hide(USUAL);
    commit(&mut cluster, 0, "put x 1");
    cluster.call(0, "get x; put y 2");
    cluster.call(0, "get x; get y; del x");
    cluster.call(0, "get x; put z 3");
    cluster.call(1, "get x; get y");
    cluster.look(0, "get x; get y");
    cluster.batch(0);
    cluster.batch(1);
    assert_golden!(cluster);
}

/// Minerva §3.2, §3.5 and Figure 3: a chain is valid or invalid as a whole, even if it spans
/// several batches of one epoch.
#[test]
fn transactions_that_read_each_others_writes_are_valid_or_invalid_together() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.watch(&[0, 1]);
    cluster.transcript.hide(USUAL);
    cluster.call(0, "put a 1");
    cluster.call(0, "put b 1");
    cluster.batch(0);
    cluster.call(0, "get a; put c 1");
    for _ in 0..3 {
        cluster.call(1, "add c 10");
    }
    cluster.epoch();
    assert_golden!(cluster);
}

/// Minerva §3.5: a transaction is stale if it read a version that an earlier epoch replaced.
#[test]
fn a_transaction_that_read_a_superseded_version_is_stale_and_runs_again() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.watch(&[1, 2]);
    cluster.transcript.hide(USUAL);
    hold(&mut cluster, "Agreement", 2);
    commit(&mut cluster, 1, "put x 5");
    cluster.call(2, "get x; add x 1");
    cluster.call(2, "add x 10");
    cluster.call(2, "put y 1");
    cluster.heal();
    cluster.batch(2);
    cluster.cut();
    assert_golden!(cluster);
}

/// Minerva §3.5: a transaction is stale if it read a write of an invalid one, also one of an
/// earlier epoch.
#[test]
fn a_transaction_that_read_the_write_of_an_invalid_one_is_stale_in_a_later_epoch() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.watch(&[0]);
    cluster.transcript.hide(USUAL);
    cluster.call(1, "put hot 1");
    cluster.call(1, "add hot 1");
    cluster.call(0, "get hot; put x 1");
    cluster.batch(0);
    cluster.batch(1);
    cluster.call(0, "get x; put y 1");
    cluster.cut();
    cluster.batch(0);
    cluster.cut();
    assert_golden!(cluster);
}

/// Minerva §3.6, Algorithm 5 and Figure 5: the chain of five is heavier than either neighbour, and
/// of three chains in a row the middle one is left out.
#[test]
fn the_independent_set_of_chains_with_the_most_transactions_is_valid() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.watch(&[0]);
    cluster.transcript.hide(USUAL);
    cluster.call(0, "put h 1");
    for _ in 0..5 {
        cluster.call(1, "add h 10");
    }
    cluster.call(2, "put h 3");
    cluster.call(0, "get a; put a 4");
    cluster.call(1, "get a; get b; put a 5; put b 5");
    cluster.call(2, "get b; put c 6");
    cluster.epoch();
    assert_golden!(cluster);
}

/// Minerva §3.5, Algorithm 4: the source and the number of an invalid transaction determine its
/// place in the re-execution.
#[test]
fn invalid_transactions_run_again_in_the_order_of_their_sources() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.hide(USUAL);
    cluster.call(2, "get x; put x 20");
    cluster.call(1, "get x; put x 10");
    cluster.call(1, "get x; put x 11");
    cluster.call(0, "get x; put x 0");
    cluster.epoch();
    assert_golden!(cluster);
}

/// Minerva does not say how a client learns why its transaction was late: here the answer names a
/// key that the first run read or wrote, and that another transaction wrote.
#[test]
fn the_answer_to_a_transaction_that_ran_again_names_the_contended_key() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.watch(&[0, 2]);
    cluster.transcript.hide(USUAL);
    cluster.call(0, "put p 1; add q 1");
    cluster.call(0, "add q 1");
    cluster.call(2, "put o 1; add q 5");
    cluster.epoch();
    assert_golden!(cluster);
}

/// Minerva §4: in high-contention mode a probe finds the footprint of a transaction, which then
/// runs in the ordered queue only.
#[test]
fn under_high_contention_a_transaction_is_probed_and_runs_only_at_its_place() {
    let options = Options { high_contention_ms: 0, ..by_hand() };
    let mut cluster = recorded::<Minerva>(3, options);
    cluster.transcript.watch(&[1]);
    cluster.transcript.hide(USUAL);
    for _ in 0..2 {
        for id in 0..3 {
            cluster.call(id, "add hot 1");
            cluster.call(id, "add hot 1");
        }
        cluster.epoch();
    }
    cluster.call(1, "get hot; add hot 1");
    cluster.batch(1);
    cluster.cut();
    assert_golden!(cluster);
}

/// Minerva §3.7 leaves range queries open. Here a row that appears in a range is a conflict within
/// an epoch, and makes a run stale across epochs.
#[test]
fn a_run_that_read_a_range_is_invalid_if_a_row_appears_in_it() {
    let mut cluster = recorded::<Minerva>(3, by_hand());
    cluster.transcript.watch(&[0, 2]);
    cluster.transcript.hide(USUAL);
    cluster.call(0, "scan a n; put z 1");
    cluster.call(1, "put m 1");
    cluster.call(1, "add m 1");
    cluster.batch(0);
    cluster.batch(1);
    cluster.cut();
    hold(&mut cluster, "Agreement", 2);
    commit(&mut cluster, 1, "put b 3");
    cluster.call(2, "scan a n; put z 2");
    cluster.heal();
    cluster.batch(2);
    cluster.cut();
    assert_golden!(cluster);
}

/// Minerva §4: a restart applies the epochs of the persisted log, and does not run all their
/// transactions again.
#[test]
fn a_restart_applies_the_decided_epochs_of_its_log_after_the_checkpoint() {
    let options = Options { checkpoint_bytes: 1, ..by_hand() };
    let mut cluster = recorded::<Minerva>(3, options);
    cluster.transcript.watch(&[1]);
    cluster.transcript.hide(USUAL);
    hold(&mut cluster, "Agreement", 1);
    commit(&mut cluster, 0, "put x 1");
    cluster.call(2, "put z 1");
    cluster.batch(2);
    cluster.heal();
    cluster.set_writes_checkpoints(1, false);
    cluster.call(0, "get x; put x 7");
    cluster.call(0, "put w 1");
    cluster.call(2, "add x 1");
    cluster.call(2, "add x 1");
    cluster.call(2, "add x 1");
    cluster.batch(0);
    cluster.batch(2);
    cluster.cut();
    cluster.call(1, "get x; put y 1");
    cluster.batch(1);
    cluster.crash(1);
    cluster.start(1);
    cluster.settle();
    cluster.cut();
    assert_golden!(cluster);
}

/// Minerva §3.6: without the extension `keep_uncommitted`, a transaction that read an uncommitted
/// write of an earlier epoch is stale.
#[test]
fn in_the_papers_protocol_a_read_of_a_predecessor_of_an_earlier_epoch_is_stale() {
    let mut cluster = recorded::<Minerva>(3, paper_by_hand());
    cluster.transcript.watch(&[0]);
    cluster.transcript.hide(USUAL);
    cluster.call(0, "add x 1");
    cluster.batch(0);
    cluster.call(0, "get x; add x 1");
    cluster.cut();
    cluster.cut();
    assert_golden!(cluster);
}
