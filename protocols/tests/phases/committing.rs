//! Chains, validation, conflict graph, commit (Minerva §3.5, §3.6).

use pangea_core::key::Key;
use pangea_core::txn::{Certified, Outcome, PointRead, Program, ReadSet, ReadVersion, Write};
use pangea_core::value::Value;

use super::script::TABLE;
use super::support::{Cluster, Fate, by_hand};

/// Minerva Figure 3: dependent transactions of two batches are one chain, merged across batches. A
/// conflict with any one of them invalidates the chain as a whole.
#[test]
fn a_chain_across_batches_stands_or_falls_as_one() {
    let mut cluster = Cluster::new(3, by_hand());
    let scripts = ["put a 1", "put b 1", "get a; add b 1", "put d 1", "put e 1"];
    for script in scripts {
        cluster.call(0, script);
    }
    cluster.batch(0);
    let sixth = cluster.call(0, "get a; get b; get e; put f 1");
    cluster.call(0, "put g 1");
    cluster.batch(0);
    // Six that depend on each other outweigh the chain of five (1, 2, 3, 5, 6).
    for _ in 0..6 {
        cluster.call(1, "add f 1");
    }
    cluster.epoch();
    assert_eq!(cluster.counter(2, "txns_conflicting"), 5);
    assert_eq!(
        cluster.counter(2, "txns_valid"),
        8,
        "the independent transactions 4 and 7, and those of the chain of six"
    );
    assert_eq!(cluster.result(0, sixth), "1 2 1");
    assert_eq!(cluster.everywhere("f"), "1", "the chain was executed after the valid ones");
}

/// Minerva Figure 5: the heavy chain of five wins over both of its neighbours. Of three in a row,
/// of which the middle one conflicts with both others, the middle one is left out.
#[test]
fn the_heaviest_set_of_chains_without_conflict_is_valid() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.call(0, "put h 1");
    for _ in 0..5 {
        cluster.call(1, "add h 10");
    }
    cluster.call(2, "put h 3");
    let fourth = cluster.call(0, "get a; put a 4");
    let fifth = cluster.call(1, "get a; get b; put a 5; put b 5");
    cluster.call(2, "get b; put c 6");
    cluster.epoch();
    assert_eq!(cluster.counter(0, "txns_valid"), 7);
    assert_eq!(cluster.counter(0, "txns_conflicting"), 3);
    assert_eq!(cluster.result(0, fourth), "-", "valid as executed");
    assert_eq!(cluster.result(1, fifth), "4 -", "re-executed after the valid ones");
    // The valid 50, then the re-executed ones: node 0 writes 1, and after it node 2 writes 3.
    assert_eq!(cluster.everywhere("h"), "3");
}

/// Minerva §3.5: a read of a version "superseded by a committed update prior to the current epoch".
#[test]
fn a_read_of_a_superseded_epoch_is_stale_and_its_client_gets_the_result_of_the_second_run() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.call(0, "put x 1");
    cluster.epoch();
    let behind = (cluster.leader() + 1) % 3;
    let other = (behind + 1) % 3;
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Agreement { .. }) if to.index() == behind => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.call(other, "put x 5");
    cluster.epoch();
    let late = cluster.call(behind, "get x; add x 1");
    cluster.heal();
    cluster.epoch();
    assert_eq!(cluster.result(behind, late), "5");
    assert_eq!(cluster.counter(other, "txns_stale"), 1);
    assert_eq!(cluster.everywhere("x"), "6");
}

/// An extension of Minerva §3.7, which does not cover range queries: a row that appears in a range
/// is a conflict within an epoch, and makes a run stale across epochs.
#[test]
fn a_row_that_appears_in_a_range_is_noticed() {
    let mut cluster = Cluster::new(3, by_hand());
    let scan = cluster.call(0, "scan a n; put z 1");
    cluster.call(1, "put m 1");
    cluster.call(1, "add m 1");
    cluster.epoch();
    assert_eq!(cluster.counter(2, "txns_conflicting"), 1);
    assert_eq!(cluster.result(0, scan), "m=2");
    let scan = cluster.call(0, "scan a m; put z 2");
    cluster.call(1, "put m 9");
    cluster.epoch();
    assert_eq!(cluster.result(0, scan), "", "the end of a range is exclusive");
    assert_eq!(cluster.counter(2, "txns_conflicting"), 1);
}

/// Re-executed transactions run in the order of their sources, and then of their ids (Minerva
/// §3.5).
#[test]
fn what_is_executed_again_runs_in_the_order_of_sources() {
    let mut cluster = Cluster::new(3, by_hand());
    let scripts = ["get x; put x 0", "get x; put x 1", "get x; put x 2"];
    let mut tickets = Vec::new();
    for (id, script) in scripts.iter().enumerate().rev() {
        tickets.push((id, cluster.call(id, script)));
    }
    cluster.epoch();
    let results: Vec<_> = tickets.iter().map(|(id, t)| cluster.result(*id, *t)).collect();
    // Ties go to the lowest id: node 0's is valid. Then node 1's is re-executed, then node 2's.
    assert_eq!(results, ["1", "0", "-"]);
    assert_eq!(cluster.everywhere("x"), "2");
}

/// An interactive transaction that is left out of the set and still current at its place commits as
/// it was executed. Transactions that read its writes are valid then, and stay in the temporary
/// state.
#[test]
fn what_read_the_work_of_a_certified_transaction_that_wins_in_order_is_not_doomed() {
    let mut cluster = Cluster::new(3, by_hand());
    let key = Key::from(&b"a"[..]);
    let read = PointRead { table: TABLE, key: key.clone(), seen: ReadVersion::Absent };
    let reads = ReadSet { points: vec![read], ranges: Vec::new() };
    let writes = vec![Write { table: TABLE, key, value: Some(Value::copy_from(b"7")) }];
    // Two dependent transactions that read the key outweigh the one that writes it.
    cluster.call(1, "get a; put p 1");
    cluster.call(1, "get p; put q 1");
    let certified =
        cluster.commit(0, Program::Certified(Certified { reads, writes, ..Certified::default() }));
    cluster.batch(0);
    cluster.batch(1);
    let reader = cluster.call(0, "get a; add x 10");
    cluster.cut();
    assert_eq!(cluster.counter(2, "txns_conflicting"), 1, "the transaction was invalid");
    let next = cluster.call(0, "add x 1");
    cluster.epoch();
    assert!(matches!(cluster.outcome(0, certified), Some(Outcome::Committed { .. })));
    assert_eq!(cluster.result(0, reader), "7");
    assert!(matches!(cluster.outcome(0, next), Some(Outcome::Committed { .. })));
    assert_eq!(cluster.mark(0, "minerva.doomed"), 0);
    assert_eq!(cluster.everywhere("x"), "11", "no update is lost");
}

/// An interactive transaction can't be re-executed: it aborts, and its error names the key and the
/// winner.
#[test]
fn a_certified_transaction_that_loses_names_the_key_and_the_winner() {
    let mut cluster = Cluster::new(3, by_hand());
    let key = Key::from(&b"x"[..]);
    let read = PointRead { table: TABLE, key: key.clone(), seen: ReadVersion::Absent };
    let reads = ReadSet { points: vec![read], ranges: Vec::new() };
    let writes = vec![Write { table: TABLE, key, value: Some(Value::copy_from(b"mine")) }];
    let certified = || {
        Program::Certified(Certified {
            reads: reads.clone(),
            writes: writes.clone(),
            ..Certified::default()
        })
    };
    let winner = cluster.call(0, "put x 1");
    let loser = cluster.commit(1, certified());
    let other = cluster.call(1, "put y 1");
    cluster.epoch();
    let Some(Outcome::Committed { txn, .. }) = cluster.outcome(0, winner).cloned() else {
        panic!("the winner commits");
    };
    let Some(Outcome::Aborted(abort)) = cluster.outcome(1, loser).cloned() else {
        panic!("the loser aborts");
    };
    assert_eq!(abort.code.as_str(), "40001");
    let detail = abort.detail.expect("the detail names the reason");
    assert!(detail.contains("\"x\"") && detail.contains(&txn.to_string()), "{detail}");
    assert_eq!(cluster.result(1, other), "");
    assert_eq!(cluster.everywhere("x"), "1");
    // One that finds a change on arrival loses at its place in the order.
    let late = cluster.commit(2, certified());
    cluster.epoch();
    let outcome = format!("{:?}", cluster.outcome(2, late));
    assert!(outcome.contains("40001") && outcome.contains(&txn.to_string()), "{outcome}");
    assert_eq!(cluster.mark(2, "minerva.certified_in_order"), 1);
}

/// Story: a bug in the footprint of one procedure stopped every replica when a transaction was
/// re-executed.
#[test]
fn a_procedure_whose_footprint_panics_stops_no_replica() {
    let mut cluster = Cluster::new(3, by_hand());
    let trapped = cluster.call(0, "trap; get x; put x 1");
    cluster.call(1, "put x 5");
    cluster.call(1, "add x 1");
    cluster.epoch();
    assert_eq!(cluster.result(0, trapped), "6");
    assert_eq!(cluster.everywhere("x"), "1");
}
