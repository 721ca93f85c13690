//! Replicas that run epochs more slowly than they arrive: the data retained for them is bounded.
//! And checkpoints that can't be written, for which no data is retained.

use std::num::NonZeroUsize;

use pangea_core::txn::Outcome;
use pangea_protocols::minerva::Options;

use super::support::{Cluster, Fate, by_hand};

/// The bytes that may be retained for a replica. A round here is a kilobyte, and it takes 128
/// epochs.
const BEHIND_BYTES: u64 = 100_000;
/// The actual maximum, including the bytes that arrive until the limit is noticed.
const HELD_MAX: u64 = 2 * BEHIND_BYTES;

fn options() -> Options {
    let slice_txns = NonZeroUsize::MIN;
    let behind_bytes = BEHIND_BYTES;
    Options { behind_bytes, slice_txns, epoch_ms: 15, batch_ms: 5, ..by_hand() }
}

/// One round: a batch and a cut and, if `is_long`, so much work that a replica which defers work
/// stops making progress. Returns the maximum bytes of batches that any of these replicas had
/// during it.
fn round(cluster: &mut Cluster, sources: [usize; 2], is_long: bool) -> u64 {
    for id in sources {
        let calls = if is_long { 3 } else { 1 };
        for _ in 0..calls {
            cluster.call(id, "add hot 1");
        }
        cluster.call(id, &format!("put k{id} {}", "v".repeat(100)));
    }
    cluster.run_for(15);
    let held = sources.map(|id| cluster.counter(id, "batch_bytes_held"));
    held.into_iter().max().unwrap_or_default()
}

/// Story: a replica that ran epochs more slowly than they arrived kept reporting to its peers. They
/// retained every batch that it had not applied, until they ran out of memory.
#[test]
fn a_replica_that_runs_slowly_is_removed_and_goes_on_from_a_checkpoint() {
    let mut cluster = Cluster::new(3, options());
    let leader = cluster.leader();
    let (slow, here) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.nodes[slow].is_slow = true;
    cluster.rule = Box::new(|_, _, message| match message {
        message!(CheckpointChunk { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    let held = (0..400).map(|_| round(&mut cluster, [leader, here], true)).max();
    assert!(held < Some(HELD_MAX), "{held:?} bytes are held");
    assert!(cluster.mark(leader, "inputs.remove_straggler") > 0);
    assert_eq!(cluster.members(here), 2);

    // Its backlog is at the limit: its clients are informed.
    let ticket = cluster.call(slow, "put z 1");
    let Some(Outcome::Aborted(abort)) = cluster.outcome(slow, ticket) else { panic!("refused") };
    assert_eq!(abort.code.as_str(), "53000");
    let itself = format!("(node {slow}), which is");
    assert!(abort.message.contains(&itself), "{abort}");
    assert!(abort.message.ends_with("epochs behind with execution"), "{abort}");

    cluster.heal();
    cluster.nodes[slow].is_slow = false;
    cluster.run_for(2_000);
    assert_eq!(
        cluster.counter(slow, "checkpoints_installed"),
        1,
        "the replica ran no epoch of its backlog"
    );
    assert_eq!(cluster.members(here), 3, "the replica was readmitted");
    let ticket = cluster.call(slow, "put z 1");
    cluster.run_for(1_000);
    assert_eq!(cluster.result(slow, ticket), "");
    assert_eq!(cluster.everywhere("z"), "1");
}

/// The coordinator retains batches for itself as for any other replica.
#[test]
fn a_coordinator_that_runs_slowly_removes_itself_and_leads_on() {
    let mut cluster = Cluster::new(3, options());
    let leader = cluster.leader();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    cluster.nodes[leader].is_slow = true;
    let held = (0..400).map(|_| round(&mut cluster, others, true)).max();
    assert!(held < Some(HELD_MAX), "{held:?} bytes are held");
    assert!(cluster.mark(leader, "inputs.remove_straggler") > 0);
    assert!(cluster.counter(leader, "checkpoints_installed") > 0);
    assert_eq!(cluster.leader(), leader);
    cluster.nodes[leader].is_slow = false;
    cluster.run_for(3_000);
    assert_eq!(cluster.members(others[0]), 3);
    cluster.everywhere("hot");
}

/// Story: batches after a peer's checkpoint were retained for the replica that installed it, as
/// long as it made any progress.
#[test]
fn no_more_is_kept_for_a_replica_that_falls_behind_a_checkpoint_again_and_again() {
    let mut cluster = Cluster::new(3, options());
    let leader = cluster.leader();
    let (slow, here) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.nodes[slow].is_slow = true;
    let mut most = 0;
    for n in 0..1_500 {
        most = most.max(round(&mut cluster, [leader, here], true));
        if n % 3 == 0 {
            cluster.nodes[slow].is_slow = false;
            cluster.resume(slow);
            cluster.nodes[slow].is_slow = true;
        }
    }
    assert!(most < HELD_MAX, "{most} bytes are held");
    assert!(cluster.counter(slow, "checkpoints_installed") > 1);
    cluster.nodes[slow].is_slow = false;
    cluster.run_for(3_000);
    assert_eq!(cluster.members(here), 3);
    cluster.everywhere("hot");
}

/// No replica is removed for being a few epochs behind, however large these are.
#[test]
fn a_replica_that_is_a_few_epochs_behind_stays() {
    let mut cluster = Cluster::new(3, options());
    let leader = cluster.leader();
    let (slow, here) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.nodes[slow].is_slow = true;
    round(&mut cluster, [leader, here], true);
    for n in 0..20 {
        cluster.call(here, &format!("put large{n} {}", "v".repeat(BEHIND_BYTES as usize)));
        round(&mut cluster, [leader, here], false);
    }
    cluster.run_for(500);
    assert_eq!(cluster.members(here), 3);
    let ticket = cluster.call(slow, "put z 1");
    assert!(cluster.outcome(slow, ticket).is_none(), "its clients are not refused");
    cluster.nodes[slow].is_slow = false;
    cluster.run_for(1_000);
    assert_eq!(cluster.result(slow, ticket), "");
    assert_eq!(cluster.counter(slow, "checkpoints_installed"), 0);
}

/// Story: a checkpoint that could not be written was retried at the same version, which was
/// retained for it. No later version could be reclaimed.
#[test]
fn a_checkpoint_that_fails_is_followed_by_one_of_a_later_version() {
    let options = Options { checkpoint_bytes: 4_096, epoch_ms: 15, batch_ms: 5, ..by_hand() };
    let mut cluster = Cluster::new(3, options);
    cluster.nodes[0].fails_checkpoints = true;
    let work = |cluster: &mut Cluster, rounds: u64| {
        for _ in 0..rounds {
            round(cluster, [0, 1], false);
        }
    };
    work(&mut cluster, 200);
    assert_eq!(cluster.counter(0, "checkpoints_failed"), 1, "the request waits");
    assert_eq!(cluster.counter(0, "checkpoint_writing"), 0);
    let failed_at = cluster.nodes[0].applied();
    work(&mut cluster, 300);
    assert_eq!(cluster.counter(0, "checkpoints_failed"), 2, "the request is retried");
    assert!(cluster.nodes[0].checkpoint.is_none());
    let records = cluster.nodes[0].log.len();
    cluster.nodes[0].fails_checkpoints = false;
    work(&mut cluster, 350);
    let (checkpoint, _) = cluster.nodes[0].checkpoint.as_ref().expect("the request is accepted");
    assert!(checkpoint.version > failed_at);
    assert!(cluster.nodes[0].log.len() < records, "the log is truncated");
    assert!(cluster.counter(1, "checkpoints_failed") == 0);
    cluster.crash(0);
    cluster.start(0);
    cluster.run_for(2_000);
    cluster.everywhere("hot");
}
