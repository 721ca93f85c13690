//! Local execution (Minerva §3.2): uncommitted writes, and transactions that build on them.

use super::support::{Cluster, by_hand, paper_by_hand};

#[test]
fn a_reader_of_a_local_predecessor_that_committed_as_executed_is_valid_across_epochs() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.call(0, "add x 1");
    cluster.batch(0);
    let reader = cluster.call(0, "get x; add x 1");
    cluster.cut();
    cluster.epoch();
    assert_eq!(cluster.result(0, reader), "1");
    assert_eq!(cluster.everywhere("x"), "2");
    assert_eq!(cluster.counter(1, "txns_valid"), 2);
    assert_eq!(cluster.counter(1, "txns_stale"), 0);
}

/// Minerva §3.6: "the transaction in the second batch must be derived from the previous consistent
/// snapshot, so it is treated the same as stale transactions".
#[test]
fn without_uncommitted_writes_kept_a_dependency_across_epochs_is_stale() {
    let mut cluster = Cluster::new(3, paper_by_hand());
    cluster.call(0, "add x 1");
    cluster.batch(0);
    let reader = cluster.call(0, "get x; add x 1");
    cluster.cut();
    cluster.epoch();
    assert_eq!(cluster.result(0, reader), "1");
    assert_eq!(cluster.everywhere("x"), "2");
    assert_eq!(cluster.counter(1, "txns_stale"), 1);
}

/// Story: a run that read a deletion by an invalidated transaction was considered lost, and its
/// writes were hidden from later runs. But the key was absent anyway, and so the run was valid.
/// Both it and a later run incremented the same number, and one increment was lost.
#[test]
fn a_run_that_read_the_deletion_of_an_invalidated_one_is_not_overlooked_by_later_runs() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.call(0, "put gone 1; put count 0");
    cluster.epoch();
    // Two transactions of node 1 outweigh the one of node 0 that deletes, so that one is
    // re-executed.
    cluster.call(1, "put hot 1");
    cluster.call(1, "add hot 1");
    cluster.call(0, "get hot; del gone");
    cluster.batch(0);
    let first = cluster.call(0, "get gone; add count 1");
    cluster.batch(1);
    cluster.cut();
    assert_eq!(cluster.counter(0, "txns_conflicting"), 1, "the deletion was re-executed");
    cluster.call(0, "add count 1");
    cluster.epoch();
    assert_eq!(cluster.result(0, first), "-");
    assert_eq!(cluster.everywhere("count"), "2");
}

/// Minerva §3.5: "any transaction that depends on a previously invalidated transaction, even across
/// epochs, is recursively marked as stale".
#[test]
fn what_read_the_work_of_an_invalidated_transaction_is_stale_epochs_later() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.call(1, "put hot 1");
    cluster.call(1, "add hot 1");
    cluster.call(0, "get hot; put x 1");
    cluster.batch(0);
    let second = cluster.call(0, "get x; put y 1");
    cluster.batch(1);
    let third = {
        // In a separate batch, and an epoch after the second one.
        cluster.cut();
        cluster.batch(0);
        let third = cluster.call(0, "get y; put z 1");
        cluster.cut();
        third
    };
    cluster.epoch();
    assert_eq!(cluster.result(0, second), "1");
    assert_eq!(cluster.result(0, third), "1");
    assert_eq!(
        cluster.mark(0, "minerva.doomed"),
        1,
        "the second transaction is known to be invalid"
    );
    assert_eq!(cluster.counter(2, "txns_conflicting"), 1);
    assert_eq!(cluster.counter(2, "txns_stale"), 2);
    assert_eq!(cluster.everywhere("z"), "1");
}

/// A run that ends in an abort is validated like any other: the writes that it read might not
/// commit.
#[test]
fn a_client_hears_of_an_abort_only_when_what_it_rests_on_is_decided() {
    let mut cluster = Cluster::new(3, by_hand());
    let aborted = cluster.call(0, "get x; abort");
    cluster.batch(0);
    assert!(cluster.outcome(0, aborted).is_none());
    cluster.cut();
    let outcome = format!("{:?}", cluster.outcome(0, aborted));
    assert!(outcome.contains("P0001"), "{outcome}");
    assert_eq!(cluster.counter(0, "txns_valid"), 1);
}
