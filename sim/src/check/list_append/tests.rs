//! Histories made by hand: each anomaly is caught by its name, and right ones pass.

mod brute_force;

use super::*;
use Fate::{Aborted, Happened, Unknown};

fn append(list: u64, value: u64) -> Did {
    Did::Append { list, value }
}

fn read(list: u64, values: &[u64]) -> Did {
    Did::Read { list, values: values.to_vec() }
}

/// Transactions without windows, numbered from 1.
fn txns(all: &[(Fate, &[Did])]) -> Vec<Txn> {
    let txn = |(index, (fate, did)): (usize, &(Fate, &[Did]))| Txn {
        id: index + 1,
        who: "by hand".to_owned(),
        fate: *fate,
        did: did.to_vec(),
        window: None,
        committed_at: None,
        read_at: None,
    };
    all.iter().enumerate().map(txn).collect()
}

fn found(txns: &[Txn], lists: &[(u64, &[u64])]) -> Result<(), (&'static str, String)> {
    let lists = lists.iter().map(|(list, values)| (*list, values.to_vec())).collect();
    check_txns(txns, &lists).map_err(|violation| (violation.anomaly, violation.story))
}

#[track_caller]
fn assert_found(expected: &str, words: &str, all: &[(Fate, &[Did])], lists: &[(u64, &[u64])]) {
    let (anomaly, story) = found(&txns(all), lists).expect_err(expected);
    assert_eq!(anomaly, expected, "{story}");
    assert!(story.contains(words), "{words:?} is not in: {story}");
}

#[test]
fn a_serial_history_passes() {
    let all: &[(Fate, &[Did])] = &[
        (Happened, &[append(1, 10), append(2, 20), append(1, 11)]),
        (Happened, &[read(1, &[10, 11]), append(1, 12), read(1, &[10, 11, 12]), read(3, &[])]),
        (Aborted, &[append(1, 13)]),
        (Unknown, &[append(2, 21)]),
        (Unknown, &[append(2, 22)]),
        (Happened, &[read(2, &[20]), read(1, &[10, 11, 12])]),
    ];
    assert_eq!(found(&txns(all), &[(1, &[10, 11, 12]), (2, &[20, 22])]), Ok(()));
    assert_eq!(found(&[], &[]), Ok(()));
}

#[test]
fn g0_two_appenders_in_different_orders_on_two_lists() {
    let all: &[(Fate, &[Did])] =
        &[(Happened, &[append(1, 10), append(2, 20)]), (Happened, &[append(1, 11), append(2, 21)])];
    assert_found("G0", "T1", all, &[(1, &[10, 11]), (2, &[21, 20])]);
    let torn: &[(Fate, &[Did])] =
        &[(Happened, &[append(1, 10), append(1, 11)]), (Happened, &[append(1, 12)])];
    assert_found("G0", "between two appends", torn, &[(1, &[10, 12, 11])]);
}

#[test]
fn g1a_a_read_of_an_aborted_append() {
    let all: &[(Fate, &[Did])] = &[(Aborted, &[append(1, 10)]), (Happened, &[read(1, &[10])])];
    assert_found("G1a", "which aborted", all, &[]);
    assert_found("G1a", "the final list 1", all, &[(1, &[10])]);
}

#[test]
fn g1b_a_read_that_ends_within_another_transaction() {
    let all: &[(Fate, &[Did])] =
        &[(Happened, &[append(1, 10), append(1, 11)]), (Happened, &[read(1, &[10])])];
    assert_found("G1b", "ends within the appends of T1", all, &[(1, &[10, 11])]);
}

#[test]
fn g1c_two_transactions_that_each_read_what_the_other_wrote() {
    let all: &[(Fate, &[Did])] = &[
        (Happened, &[append(1, 10), read(2, &[20])]),
        (Happened, &[append(2, 20), read(1, &[10])]),
    ];
    assert_found("G1c", "was read by T", all, &[(1, &[10]), (2, &[20])]);
}

#[test]
fn g_single_a_read_that_sees_half_of_a_transaction() {
    let all: &[(Fate, &[Did])] =
        &[(Happened, &[append(1, 10), append(2, 20)]), (Happened, &[read(1, &[10]), read(2, &[])])];
    assert_found("G-single", "without 20, appended by T1", all, &[(1, &[10]), (2, &[20])]);
}

#[test]
fn g_single_a_lost_update() {
    let all: &[(Fate, &[Did])] =
        &[(Happened, &[read(1, &[]), append(1, 10)]), (Happened, &[read(1, &[]), append(1, 11)])];
    assert_found("G-single", "T2", all, &[(1, &[10, 11])]);
}

#[test]
fn g2_item_write_skew() {
    let all: &[(Fate, &[Did])] =
        &[(Happened, &[read(1, &[]), append(2, 20)]), (Happened, &[read(2, &[]), append(1, 10)])];
    assert_found("G2-item", "2 transactions", all, &[(1, &[10]), (2, &[20])]);
}

#[test]
fn g2_item_a_long_fork() {
    let all: &[(Fate, &[Did])] = &[
        (Happened, &[append(1, 10)]),
        (Happened, &[append(2, 20)]),
        (Happened, &[read(1, &[10]), read(2, &[])]),
        (Happened, &[read(1, &[]), read(2, &[20])]),
    ];
    assert_found("G2-item", "4 transactions", all, &[(1, &[10]), (2, &[20])]);
}

#[test]
fn incompatible_orders_of_one_list() {
    let all: &[(Fate, &[Did])] = &[
        (Happened, &[append(1, 10)]),
        (Happened, &[append(1, 11)]),
        (Happened, &[read(1, &[11, 10])]),
    ];
    assert_found("incompatible orders", "[11, 10]", all, &[(1, &[10, 11])]);
}

#[test]
fn an_acknowledged_append_that_is_gone_is_lost() {
    let all: &[(Fate, &[Did])] = &[(Happened, &[append(1, 10)])];
    assert_found("lost append", "acknowledged", all, &[]);
    let unknown: &[(Fate, &[Did])] = &[(Unknown, &[append(1, 10), append(2, 20)])];
    assert_eq!(found(&txns(unknown), &[]), Ok(()));
    assert_found("lost append", "kept in part", unknown, &[(2, &[20])]);
}

#[test]
fn an_append_that_took_place_twice_is_duplicated() {
    let all: &[(Fate, &[Did])] = &[(Unknown, &[append(1, 10)]), (Happened, &[append(1, 11)])];
    assert_found("duplicated append", "T1", all, &[(1, &[10, 11, 10])]);
}

#[test]
fn values_from_nowhere_and_on_the_wrong_list_are_garbage() {
    let all: &[(Fate, &[Did])] = &[(Happened, &[append(1, 10)])];
    assert_found("garbage", "99", all, &[(1, &[10, 99])]);
    assert_found("garbage", "the final list 2", all, &[(1, &[10]), (2, &[10])]);
}

#[test]
fn a_transaction_sees_its_own_appends() {
    let all: &[(Fate, &[Did])] = &[(Happened, &[append(1, 10), read(1, &[])])];
    assert_found("internal", "without its own", all, &[(1, &[10])]);
}

#[test]
fn a_stale_read_is_serializable_and_not_strictly_so() {
    let all: &[(Fate, &[Did])] = &[(Happened, &[append(1, 10)]), (Happened, &[read(1, &[])])];
    let mut stale = txns(all);
    let lists: &[(u64, &[u64])] = &[(1, &[10])];
    assert_eq!(found(&stale, lists), Ok(()));
    stale[0].window = Some((100, 200));
    assert_eq!(found(&stale, lists), Ok(()), "the reader is not held to real time");
    stale[1].window = Some((150, 300));
    assert_eq!(found(&stale, lists), Ok(()), "at the same time");
    stale[1].window = Some((201, 300));
    let (anomaly, story) = found(&stale, lists).unwrap_err();
    assert_eq!(anomaly, "G-single-realtime", "{story}");
    assert!(story.contains("ended before the beginning of T2"), "{story}");
}

#[test]
fn real_time_order_goes_through_transactions_in_between_and_never_from_open_ones() {
    let all: &[(Fate, &[Did])] = &[
        (Happened, &[append(1, 10)]),
        (Happened, &[append(9, 90)]),
        (Happened, &[append(8, 80)]),
        (Happened, &[append(1, 11)]),
    ];
    let mut four = txns(all);
    for (txn, window) in four.iter_mut().zip([(0, 10), (20, 30), (40, 50), (60, 70)]) {
        txn.window = Some(window);
    }
    let backwards: &[(u64, &[u64])] = &[(1, &[11, 10]), (8, &[80]), (9, &[90])];
    assert_eq!(found(&four, backwards).unwrap_err().0, "G0-realtime");
    four[0].window = Some((0, u64::MAX));
    four[0].fate = Unknown;
    assert_eq!(found(&four, backwards), Ok(()), "an open one may take place at any time");
}

#[test]
fn versions_that_disagree_with_what_readers_saw_are_caught() {
    let all: &[(Fate, &[Did])] = &[
        (Happened, &[append(1, 10)]),
        (Happened, &[append(1, 11)]),
        (Happened, &[read(1, &[10])]),
    ];
    let versions = |first, second, at| {
        let mut three = txns(all);
        three[0].committed_at = Some(first);
        three[1].committed_at = Some(second);
        three[2].read_at = Some(at);
        found(&three, &[(1, &[10, 11])]).map_err(|(anomaly, _)| anomaly)
    };
    assert_eq!(versions(5, 6, 5), Ok(()));
    assert_eq!(versions(5, 6, 4), Err("wrong snapshot"), "it holds what is of later");
    assert_eq!(versions(5, 6, 6), Err("wrong snapshot"), "it lacks what is of its time");
    assert_eq!(versions(7, 6, 7), Err("version order"));
}

/// Found by trying every order: two appends of one transaction were in the final list the other way
/// round, and nothing was said.
#[test]
fn g0_a_transaction_whose_own_appends_are_out_of_order() {
    let all: &[(Fate, &[Did])] = &[(Happened, &[append(1, 10), append(1, 11)])];
    assert_found("G0", "out of the order of T1", all, &[(1, &[11, 10])]);
}

/// Found by trying every order: of an own append that was read twice, one was taken for another's.
#[test]
fn an_own_append_is_read_once_and_at_the_end() {
    let all: &[(Fate, &[Did])] = &[(Happened, &[append(1, 10), read(1, &[10, 10])])];
    assert_found("internal", "elsewhere", all, &[(1, &[10])]);
}

/// Found by trying every order: what a read had missed was looked for behind its own appends only.
#[test]
fn g_single_a_lost_update_whose_writer_reads_after_it_wrote() {
    let all: &[(Fate, &[Did])] =
        &[(Happened, &[append(1, 10)]), (Happened, &[append(1, 11), read(1, &[11])])];
    assert_found("G-single", "without 10", all, &[(1, &[10, 11])]);
}
