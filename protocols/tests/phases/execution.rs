//! Local execution (Minerva §3.2): uncommitted writes, and transactions that build on them. And
//! reads of a replica that executes nothing for a while (Calvin §5).

use pangea_core::ids::Ticket;
use pangea_core::protocol::{Input, Request, Submission};
use pangea_core::txn::Outcome;
use pangea_protocols::calvin::{self, Calvin, Checkpoints, Reads};
use pangea_protocols::minerva::Options;

use super::script::program;
use super::support::words::Transcribed;
use super::support::{Cluster, ClusterOf, by_hand, paper_by_hand};

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

/// The only replica of a cluster waits for its disk, and for no timer: neither for a batch that
/// was closed nor for a cut.
#[test]
fn who_is_alone_commits_at_once() {
    let mut cluster = Cluster::new(1, by_hand());
    let first = cluster.call(0, "add x 1");
    cluster.settle();
    assert_eq!(cluster.result(0, first), "");
    let second = cluster.call(0, "get x");
    cluster.settle();
    assert_eq!(cluster.result(0, second), "1");
}

fn is_refused(cluster: &Cluster, ticket: Ticket) -> bool {
    let outcome = cluster.outcome(0, ticket);
    let Some(Outcome::Aborted(abort)) = outcome else { return false };
    assert_eq!(abort.code.as_str(), "53000", "{abort}");
    true
}

/// A node that waits for its peers closes no batch, and takes no more than one batch holds.
#[test]
fn who_is_not_ready_takes_the_requests_of_one_batch() {
    let mut cluster = Cluster::not_started(3, Options { batch_bytes: 1_000, ..by_hand() });
    cluster.start(0);
    let mut put = || cluster.call(0, &format!("put x {}", "v".repeat(400)));
    let tickets = [put(), put(), put(), put()];
    let refused = tickets.map(|ticket| is_refused(&cluster, ticket));
    assert_eq!(refused, [false, false, true, true]);
}

/// The number of transactions in flight is limited on any node, however small they are.
#[test]
fn a_node_takes_no_more_transactions_than_the_limit() {
    const IN_FLIGHT_MAX: u64 = 400_000;
    let mut cluster = Cluster::new(3, by_hand());
    let program = program("script", "get x");
    let submission = |number| {
        let request = Request::serializable(program.clone());
        Submission { ticket: Ticket(number), request }
    };
    cluster.step(0, Input::Submit((1..=IN_FLIGHT_MAX).map(submission).collect()));
    assert_eq!(cluster.mark(0, "minerva.too_many_in_flight"), 0);
    let ticket = Ticket(IN_FLIGHT_MAX + 1);
    cluster.step(0, Input::Submit(vec![submission(ticket.0)]));
    assert!(is_refused(&cluster, ticket));
}

/// Calvin §5, the first mode: its peers answer for a replica that is frozen. A read there must see
/// what they have answered.
#[test]
fn a_snapshot_read_on_a_frozen_replica_is_answered_when_that_has_caught_up() {
    let options = calvin::Options {
        checkpoints: Checkpoints::Frozen,
        checkpoint_bytes: 1,
        reads: Reads::Snapshot,
        ..Calvin::by_hand()
    };
    let mut cluster = ClusterOf::<Calvin>::new(3, options);
    let frozen = cluster.leader();
    cluster.set_writes_checkpoints(frozen, false);
    cluster.call_declared(frozen, "add x 1");
    cluster.epoch();
    let ticket = cluster.call_declared(frozen, "get x; add x 1");
    cluster.epoch();
    assert_eq!(cluster.result(frozen, ticket), "1", "a peer has run it");
    assert_eq!(cluster.value(frozen, "x"), "1");
    let read = cluster.look(frozen, "get x");
    cluster.settle();
    assert!(cluster.outcome(frozen, read).is_none());
    cluster.set_writes_checkpoints(frozen, true);
    assert_eq!(cluster.result(frozen, read), "2");
}
