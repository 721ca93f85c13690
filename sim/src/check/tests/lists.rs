//! Histories of lists made by hand: each anomaly is found by its name, and right histories pass.

use super::*;
use crate::check::list_append::{self, Lists};
use crate::check::observed::{Observed, Versions};
use crate::record::Outcome::{Aborted, Committed, Unknown};

/// An operation of a transaction on lists.
#[derive(Clone, Debug)]
enum Did {
    Append { list: u64, value: u64 },
    Read { list: u64, values: Vec<u64> },
}

fn append(list: u64, value: u64) -> Did {
    Did::Append { list, value }
}

fn read(list: u64, values: &[u64]) -> Did {
    Did::Read { list, values: values.to_vec() }
}

/// Transactions exempt from real-time order, numbered from 1.
fn txns(all: &[(Outcome, &[Did])]) -> Observed {
    let mut observed = Observed::default();
    for (outcome, did) in all {
        let Recorded { txns, names } = &mut observed.recorded;
        let op = |did: &Did| match did {
            Did::Append { list, value } => list_append::append(names, *list, *value),
            Did::Read { list, values } => list_append::read(names, *list, values),
        };
        let ops = did.iter().map(op).collect();
        let id = txns.len() + 1;
        txns.push(Txn { id, outcome: *outcome, ops, ..txn_by_hand() });
        observed.versions.push(Versions::default());
    }
    observed
}

fn found(observed: &Observed, lists: &[(u64, &[u64])]) -> Result<(), (&'static str, String)> {
    let lists: Lists = lists.iter().map(|(list, values)| (*list, values.to_vec())).collect();
    let mut observed = observed.clone();
    observed.add_final_lists(&lists, 1_000_000);
    let (_, held) = crate::check::hold(&observed, "list-append");
    held.map_err(|violation| (violation.anomaly, violation.story))
}

/// Applies real-time order to a transaction.
fn hold(observed: &mut Observed, at: usize, begin: i64, end: Option<i64>) {
    let txn = &mut observed.recorded.txns[at];
    (txn.begin, txn.end, txn.is_held) = (begin, end, true);
}

#[track_caller]
fn assert_found(expected: &str, words: &str, all: &[(Outcome, &[Did])], lists: &[(u64, &[u64])]) {
    let (anomaly, story) = found(&txns(all), lists).expect_err(expected);
    assert_eq!(anomaly, expected, "{story}");
    assert!(story.contains(words), "{words:?} does not occur in: {story}");
}

#[test]
fn a_serial_history_passes() {
    let all: &[(Outcome, &[Did])] = &[
        (Committed, &[append(1, 10), append(2, 20), append(1, 11)]),
        (Committed, &[read(1, &[10, 11]), append(1, 12), read(1, &[10, 11, 12]), read(3, &[])]),
        (Aborted, &[append(1, 13)]),
        (Unknown, &[append(2, 21)]),
        (Unknown, &[append(2, 22)]),
        (Committed, &[read(2, &[20]), read(1, &[10, 11, 12])]),
    ];
    assert_eq!(found(&txns(all), &[(1, &[10, 11, 12]), (2, &[20, 22])]), Ok(()));
    assert_eq!(found(&txns(&[]), &[]), Ok(()));
}

#[test]
fn g0_two_appenders_in_different_orders_on_two_lists() {
    let all: &[(Outcome, &[Did])] = &[
        (Committed, &[append(1, 10), append(2, 20)]),
        (Committed, &[append(1, 11), append(2, 21)]),
    ];
    assert_found("G0", "T1", all, &[(1, &[10, 11]), (2, &[21, 20])]);
    let torn: &[(Outcome, &[Did])] =
        &[(Committed, &[append(1, 10), append(1, 11)]), (Committed, &[append(1, 12)])];
    assert_found("G0", "between two appends", torn, &[(1, &[10, 12, 11])]);
}

#[test]
fn g1a_a_read_of_an_aborted_append() {
    let all: &[(Outcome, &[Did])] = &[(Aborted, &[append(1, 10)]), (Committed, &[read(1, &[10])])];
    assert_found("G1a", "which aborted", all, &[]);
    assert_found("G1a", "the final list 1", all, &[(1, &[10])]);
}

#[test]
fn g1b_a_read_that_ends_within_another_transaction() {
    let all: &[(Outcome, &[Did])] =
        &[(Committed, &[append(1, 10), append(1, 11)]), (Committed, &[read(1, &[10])])];
    assert_found("G1b", "ends within the appends of T1", all, &[(1, &[10, 11])]);
}

#[test]
fn g1c_two_transactions_that_each_read_what_the_other_wrote() {
    let all: &[(Outcome, &[Did])] = &[
        (Committed, &[append(1, 10), read(2, &[20])]),
        (Committed, &[append(2, 20), read(1, &[10])]),
    ];
    assert_found("G1c", "was read by T", all, &[(1, &[10]), (2, &[20])]);
}

#[test]
fn g_single_a_read_that_sees_half_of_a_transaction() {
    let all: &[(Outcome, &[Did])] = &[
        (Committed, &[append(1, 10), append(2, 20)]),
        (Committed, &[read(1, &[10]), read(2, &[])]),
    ];
    assert_found("G-single", "without 20, appended by T1", all, &[(1, &[10]), (2, &[20])]);
}

#[test]
fn lost_update_two_that_read_one_version_and_appended() {
    let all: &[(Outcome, &[Did])] =
        &[(Committed, &[read(1, &[]), append(1, 10)]), (Committed, &[read(1, &[]), append(1, 11)])];
    assert_found("lost update", "T2", all, &[(1, &[10, 11])]);
}

#[test]
fn g2_item_write_skew() {
    let all: &[(Outcome, &[Did])] =
        &[(Committed, &[read(1, &[]), append(2, 20)]), (Committed, &[read(2, &[]), append(1, 10)])];
    assert_found("G2-item", "2 transactions", all, &[(1, &[10]), (2, &[20])]);
}

#[test]
fn g_nonadjacent_a_long_fork() {
    let all: &[(Outcome, &[Did])] = &[
        (Committed, &[append(1, 10)]),
        (Committed, &[append(2, 20)]),
        (Committed, &[read(1, &[10]), read(2, &[])]),
        (Committed, &[read(1, &[]), read(2, &[20])]),
    ];
    assert_found("G-nonadjacent", "4 transactions", all, &[(1, &[10]), (2, &[20])]);
}

#[test]
fn incompatible_orders_of_one_list() {
    let all: &[(Outcome, &[Did])] = &[
        (Committed, &[append(1, 10)]),
        (Committed, &[append(1, 11)]),
        (Committed, &[read(1, &[11, 10])]),
    ];
    assert_found("incompatible orders", "[11, 10]", all, &[(1, &[10, 11])]);
}

#[test]
fn an_acknowledged_append_that_is_gone_is_lost() {
    let all: &[(Outcome, &[Did])] = &[(Committed, &[append(1, 10)])];
    assert_found("lost append", "acknowledged", all, &[]);
    let unknown: &[(Outcome, &[Did])] = &[(Unknown, &[append(1, 10), append(2, 20)])];
    assert_eq!(found(&txns(unknown), &[]), Ok(()));
    assert_found("lost append", "partly visible", unknown, &[(2, &[20])]);
}

#[test]
fn an_append_that_took_place_twice_is_duplicated() {
    let all: &[(Outcome, &[Did])] = &[(Unknown, &[append(1, 10)]), (Committed, &[append(1, 11)])];
    assert_found("duplicated append", "T1", all, &[(1, &[10, 11, 10])]);
}

#[test]
fn values_from_nowhere_and_on_the_wrong_list_are_garbage() {
    let all: &[(Outcome, &[Did])] = &[(Committed, &[append(1, 10)])];
    assert_found("garbage", "99", all, &[(1, &[10, 99])]);
    assert_found("garbage", "the final list 2", all, &[(1, &[10]), (2, &[10])]);
}

#[test]
fn a_transaction_sees_its_own_appends() {
    let all: &[(Outcome, &[Did])] = &[(Committed, &[append(1, 10), read(1, &[])])];
    assert_found("internal", "without its own", all, &[(1, &[10])]);
}

#[test]
fn a_stale_read_is_serializable_and_not_strictly_so() {
    let all: &[(Outcome, &[Did])] = &[(Committed, &[append(1, 10)]), (Committed, &[read(1, &[])])];
    let mut stale = txns(all);
    let lists: &[(u64, &[u64])] = &[(1, &[10])];
    assert_eq!(found(&stale, lists), Ok(()));
    hold(&mut stale, 0, 100, Some(200));
    assert_eq!(found(&stale, lists), Ok(()), "the reader has no real-time order");
    hold(&mut stale, 1, 150, Some(300));
    assert_eq!(found(&stale, lists), Ok(()), "at the same time");
    hold(&mut stale, 1, 201, Some(300));
    let (anomaly, story) = found(&stale, lists).unwrap_err();
    assert_eq!(anomaly, "G-single-realtime", "{story}");
    assert!(story.contains("ended before the beginning of T2"), "{story}");
}

#[test]
fn real_time_order_goes_through_transactions_in_between_and_never_from_open_ones() {
    let all: &[(Outcome, &[Did])] = &[
        (Committed, &[append(1, 10)]),
        (Committed, &[append(9, 90)]),
        (Committed, &[append(8, 80)]),
        (Committed, &[append(1, 11)]),
    ];
    let mut four = txns(all);
    for (at, (begin, end)) in [(0, 10), (20, 30), (40, 50), (60, 70)].into_iter().enumerate() {
        hold(&mut four, at, begin, Some(end));
    }
    let backwards: &[(u64, &[u64])] = &[(1, &[11, 10]), (8, &[80]), (9, &[90])];
    assert_eq!(found(&four, backwards).unwrap_err().0, "G0-realtime");
    hold(&mut four, 0, 0, None);
    four.recorded.txns[0].outcome = Unknown;
    assert_eq!(found(&four, backwards), Ok(()), "an open transaction may take effect at any time");
}

/// A transaction of unknown outcome begins when its client sent it, and takes place then or at any
/// later time.
#[test]
fn what_an_unknown_one_gave_is_not_seen_before_it_began_and_may_come_late() {
    let all: &[(Outcome, &[Did])] = &[(Committed, &[read(1, &[10])]), (Unknown, &[append(1, 10)])];
    let lists: &[(u64, &[u64])] = &[(1, &[10])];
    let mut seen = txns(all);
    hold(&mut seen, 0, 0, Some(50));
    hold(&mut seen, 1, 50, None);
    assert_eq!(found(&seen, lists), Ok(()), "the two may be concurrent");
    hold(&mut seen, 1, 51, None);
    let (anomaly, story) = found(&seen, lists).unwrap_err();
    assert_eq!(anomaly, "G1c-realtime", "{story}");
    hold(&mut seen, 1, 51, Some(60));
    assert_eq!(
        found(&seen, lists).unwrap_err().0,
        "G1c-realtime",
        "an end does not constrain the order"
    );
    // Its client stopped waiting long before a reader began that did not see it yet.
    let mut late = txns(&[(Unknown, &[append(1, 10)]), (Committed, &[read(1, &[])])]);
    hold(&mut late, 1, 100, Some(110));
    for end in [None, Some(20)] {
        hold(&mut late, 0, 0, end);
        assert_eq!(found(&late, lists), Ok(()), "{end:?}");
    }
    late.recorded.txns[0].outcome = Committed;
    assert_eq!(found(&late, lists).unwrap_err().0, "G-single-realtime");
}

#[test]
fn versions_that_disagree_with_what_readers_saw_are_caught() {
    let all: &[(Outcome, &[Did])] = &[
        (Committed, &[append(1, 10)]),
        (Committed, &[append(1, 11)]),
        (Committed, &[read(1, &[10])]),
    ];
    let versions = |first, second, at| {
        let mut three = txns(all);
        three.versions[0].committed_at = Some(first);
        three.versions[1].committed_at = Some(second);
        three.versions[2].read_at = Some(at);
        found(&three, &[(1, &[10, 11])]).map_err(|(anomaly, _)| anomaly)
    };
    assert_eq!(versions(5, 6, 5), Ok(()));
    assert_eq!(versions(5, 6, 4), Err("wrong snapshot"), "it contains a later value");
    assert_eq!(versions(5, 6, 6), Err("wrong snapshot"), "it lacks a value of its version");
    assert_eq!(versions(7, 6, 7), Err("version order"));
}

/// Found by trying every order: two appends of one transaction were swapped in the final list, and
/// the checker reported no anomaly.
#[test]
fn g0_a_transaction_whose_own_appends_are_out_of_order() {
    let all: &[(Outcome, &[Did])] = &[(Committed, &[append(1, 10), append(1, 11)])];
    assert_found("G0", "not in the order of T1", all, &[(1, &[11, 10])]);
}

/// Found by trying every order: if an own append was read twice, one was taken for another
/// transaction's.
#[test]
fn an_own_append_is_read_once_and_at_the_end() {
    let all: &[(Outcome, &[Did])] = &[(Committed, &[append(1, 10), read(1, &[10, 10])])];
    assert_found("internal", "in another place", all, &[(1, &[10])]);
}

/// Found by trying every order: values that a read had missed were searched only after its own
/// appends.
#[test]
fn lost_update_whose_writer_reads_after_it_wrote() {
    let all: &[(Outcome, &[Did])] =
        &[(Committed, &[append(1, 10)]), (Committed, &[append(1, 11), read(1, &[11])])];
    assert_found("lost update", "without 10", all, &[(1, &[10, 11])]);
}
