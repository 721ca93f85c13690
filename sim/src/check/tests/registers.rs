//! Histories of registers and rows made by hand, in the form of files: each anomaly is found by its
//! name, under the models that rule it out and under no other.

use crate::check::model::Model;
use crate::check::recorded::{Verdict, check};
use crate::record::read::read;

use Model::{ReadCommitted, RepeatableRead, Serializable, SnapshotIsolation, StrictSerializable};

const ALL: &[Model] = &Model::ALL;
const ABOVE_READ_COMMITTED: &[Model] =
    &[RepeatableRead, SnapshotIsolation, Serializable, StrictSerializable];

/// One line of a history: outcome and level, begin and end, operations.
type Line<'a> = (&'a str, (i64, i64), &'a str);

fn verdict(lines: &[Line<'_>], model: Model) -> Verdict {
    let line = |(outcome, (begin, end), ops): &Line<'_>| {
        let (outcome, more) = match *outcome {
            "final" => ("committed", r#""final":true,"#.to_owned()),
            outcome => match outcome.split_once(' ') {
                Some((outcome, level)) => (outcome, format!(r#""level":"{level}","#)),
                None => (outcome, String::new()),
            },
        };
        let ops = ops.replace('\n', "");
        let times = format!(r#""begin":{begin},"end":{end}"#);
        format!(r#"{{"client":1,{times},"outcome":"{outcome}",{more}"ops":[{ops}]}}"#)
    };
    let text = lines.iter().map(line).collect::<Vec<_>>().join("\n");
    let recorded = read(&mut text.as_bytes(), &mut |_| {}).expect("well formed");
    check(&recorded, model, "test")
}

/// Asserts that the anomaly is found by its name under these models, with these words, and under no
/// others.
#[track_caller]
fn assert_found(lines: &[Line<'_>], anomaly: &str, words: &str, models: &[Model]) {
    for model in Model::ALL {
        match verdict(lines, model) {
            Verdict::Broken(found) => {
                assert!(models.contains(&model), "{model}: {found}");
                assert_eq!(found.anomaly, anomaly, "{model}: {found}");
                assert!(
                    found.story.contains(words),
                    "{model}: {words:?} does not occur in {found}"
                );
            }
            Verdict::Holds => assert!(!models.contains(&model), "{model}: no anomaly was found"),
            Verdict::Open => panic!("{model}: an open end"),
        }
    }
}

/// Transactions that all run at the same time.
fn together<'a>(ops: &[&'a str]) -> Vec<Line<'a>> {
    ops.iter().map(|ops| ("committed", (0, 100), *ops)).collect()
}

/// Transactions that run one after the other.
fn in_turn<'a>(ops: &[&'a str]) -> Vec<Line<'a>> {
    (0..).zip(ops).map(|(at, ops)| ("committed", (10 * at, 10 * at + 5), *ops)).collect()
}

#[test]
fn a_serial_history_holds_under_every_model() {
    let lines = in_turn(&[
        r#"{"write":{"key":"x","value":1}},{"insert":{"key":5,"value":"a"}}"#,
        r#"{"read":{"key":"x","value":1}},{"write":{"key":"x","value":2}},
           {"read":{"key":"x","value":2}}"#,
        r#"{"scan":{"from":0,"to":10,"rows":[[5,"a"]]}},{"delete":{"key":5}},
           {"read":{"key":5,"value":null}}"#,
        r#"{"scan":{"from":0,"to":10,"rows":[]}},{"read":{"key":"x","value":2}},
           {"read":{"key":"y","value":null}}"#,
        r#"{"write":{"key":"x","value":3}}"#,
        r#"{"write":{"key":"x","value":4}}"#,
        r#"{"read":{"key":"x","value":4}}"#,
    ]);
    assert_found(&lines, "", "", &[]);
    assert_found(&[], "", "", &[]);
}

#[test]
fn g0_two_writers_in_different_orders_on_two_keys() {
    // Reads before writes determine the orders of x and y.
    let mut lines = together(&[
        r#"{"write":{"key":"x","value":1}},{"write":{"key":"y","value":1}}"#,
        r#"{"write":{"key":"x","value":2}},{"write":{"key":"y","value":2}}"#,
    ]);
    lines.push((
        "final",
        (200, 210),
        r#"{"read":{"key":"x","value":1}},{"read":{"key":"y","value":2}}"#,
    ));
    assert_found(&lines, "G0", "before", ALL);
}

/// Each of the transactions updates what the one before it has updated. The last one ends before
/// the first one begins.
#[test]
fn g0_realtime_the_end_of_a_chain_before_its_beginning() {
    let mut lines = vec![
        (
            "committed",
            (60, 90),
            r#"{"read":{"key":1,"value":null}},{"write":{"key":1,"value":"a"}}"#,
        ),
        (
            "committed",
            (0, 100),
            r#"{"read":{"key":1,"value":"a"}},{"read":{"key":2,"value":null}},
               {"write":{"key":1,"value":"b"}},{"write":{"key":2,"value":"b"}}"#,
        ),
        (
            "committed",
            (0, 100),
            r#"{"read":{"key":2,"value":"b"}},{"read":{"key":3,"value":null}},
               {"write":{"key":2,"value":"c"}},{"write":{"key":3,"value":"c"}}"#,
        ),
        ("committed", (0, 50), r#"{"read":{"key":3,"value":"c"}},{"write":{"key":3,"value":"d"}}"#),
    ];
    let words = "it ended before the beginning of T1";
    assert_found(&lines, "G0-realtime", words, &[StrictSerializable]);
    lines[0].1 = (40, 90);
    assert_found(&lines, "", "", &[]);
}

#[test]
fn g1a_a_read_of_what_an_aborted_transaction_wrote() {
    let mut lines = together(&[r#"{"read":{"key":"x","value":1}}"#]);
    lines.push(("aborted", (0, 100), r#"{"write":{"key":"x","value":1}}"#));
    assert_found(&lines, "G1a", "which aborted", ALL);
    lines[1].0 = "unknown";
    assert_found(&lines, "", "", &[]);
}

#[test]
fn g1b_a_read_of_what_its_writer_replaced() {
    let lines = together(&[
        r#"{"write":{"key":"x","value":1}},{"write":{"key":"x","value":2}}"#,
        r#"{"read":{"key":"x","value":1}}"#,
    ]);
    assert_found(&lines, "G1b", "itself replaced", ALL);
}

#[test]
fn g1c_two_transactions_that_each_read_what_the_other_wrote() {
    let lines = together(&[
        r#"{"write":{"key":"x","value":1}},{"read":{"key":"y","value":1}}"#,
        r#"{"write":{"key":"y","value":1}},{"read":{"key":"x","value":1}}"#,
    ]);
    assert_found(&lines, "G1c", "which was read by T", ALL);
}

#[test]
fn internal_a_transaction_that_does_not_see_what_it_wrote() {
    let lines = together(&[r#"{"write":{"key":"x","value":1}},{"read":{"key":"x","value":null}}"#]);
    assert_found(&lines, "internal", "although it had left 1", ALL);
    let early = together(&[r#"{"read":{"key":"x","value":1}},{"write":{"key":"x","value":1}}"#]);
    assert_found(&early, "internal", "only wrote later", ALL);
    let scan = together(&[
        r#"{"insert":{"key":1,"value":7}},{"delete":{"key":1}},{"scan":{"rows":[[1,7]]}}"#,
    ]);
    assert_found(&scan, "internal", "although it had left nothing", ALL);
}

#[test]
fn garbage_a_value_that_nobody_wrote() {
    let lines = together(&[r#"{"read":{"key":"x","value":9}}"#]);
    assert_found(&lines, "garbage", "no transaction wrote it", ALL);
    let scan = together(&[r#"{"scan":{"rows":[[1,7]]}}"#]);
    assert_found(&scan, "garbage", "7", ALL);
}

#[test]
fn lost_update_two_that_read_one_version_and_both_replaced_it() {
    let lines = together(&[
        r#"{"write":{"key":"x","value":1}}"#,
        r#"{"read":{"key":"x","value":1}},{"write":{"key":"x","value":2}}"#,
        r#"{"read":{"key":"x","value":1}},{"write":{"key":"x","value":3}}"#,
    ]);
    assert_found(&lines, "lost update", "T3", ABOVE_READ_COMMITTED);
}

#[test]
fn lost_write_the_final_state_is_older_than_an_acknowledged_write() {
    let mut lines = together(&[
        r#"{"write":{"key":"x","value":1}}"#,
        r#"{"read":{"key":"x","value":1}},{"write":{"key":"x","value":2}}"#,
    ]);
    lines.push(("final", (200, 210), r#"{"read":{"key":"x","value":1}}"#));
    for model in ABOVE_READ_COMMITTED {
        let Verdict::Broken(found) = verdict(&lines, *model) else { panic!("{model}") };
        assert_eq!(found.anomaly, "lost write", "{found}");
    }
    let Verdict::Broken(found) = verdict(&lines, ReadCommitted) else {
        panic!("a violation is found")
    };
    assert_eq!(found.anomaly, "G1c", "{found}");
    let mut gone = together(&[r#"{"write":{"key":"x","value":1}}"#]);
    gone.push(("final", (200, 210), r#"{"read":{"key":"x","value":null}}"#));
    assert_found(&gone, "lost write", "the final value is nothing", ALL);
}

#[test]
fn g_single_a_read_that_sees_half_of_a_transaction() {
    let lines = together(&[
        r#"{"write":{"key":"x","value":1}},{"write":{"key":"y","value":1}}"#,
        r#"{"read":{"key":"x","value":1}},{"read":{"key":"y","value":null}}"#,
    ]);
    assert_found(&lines, "G-single", "it read \"y\" before 1 was written", ABOVE_READ_COMMITTED);
}

#[test]
fn g_single_a_read_that_is_not_repeatable() {
    let lines = together(&[
        r#"{"write":{"key":"x","value":1}}"#,
        r#"{"read":{"key":"x","value":null}},{"read":{"key":"x","value":1}}"#,
    ]);
    assert_found(&lines, "G-single", "before 1 was written", ABOVE_READ_COMMITTED);
}

#[test]
fn g_nonadjacent_a_long_fork() {
    let lines = together(&[
        r#"{"write":{"key":"x","value":1}}"#,
        r#"{"write":{"key":"y","value":1}}"#,
        r#"{"read":{"key":"x","value":1}},{"read":{"key":"y","value":null}}"#,
        r#"{"read":{"key":"x","value":null}},{"read":{"key":"y","value":1}}"#,
    ]);
    assert_found(&lines, "G-nonadjacent", "4 transactions", ABOVE_READ_COMMITTED);
}

#[test]
fn g2_item_write_skew() {
    let lines = together(&[
        r#"{"read":{"key":"x","value":null}},{"write":{"key":"y","value":1}}"#,
        r#"{"read":{"key":"y","value":null}},{"write":{"key":"x","value":1}}"#,
    ]);
    let models = &[RepeatableRead, Serializable, StrictSerializable];
    assert_found(&lines, "G2-item", "2 transactions", models);
}

#[test]
fn g2_write_skew_by_phantoms() {
    // Each counts the doctors on call and adds itself to the list of those who left.
    let lines = together(&[
        r#"{"scan":{"from":10,"to":20,"rows":[]}},{"insert":{"key":11,"value":1}}"#,
        r#"{"scan":{"from":10,"to":20,"rows":[]}},{"insert":{"key":12,"value":2}}"#,
    ]);
    let words = "its scan of 10..20 did not find row 12, inserted with 2 by T2";
    assert_found(&lines, "G2", words, &[Serializable, StrictSerializable]);
}

#[test]
fn g_single_a_row_that_turns_up_between_two_scans() {
    let lines = together(&[
        r#"{"scan":{"rows":[]}},{"scan":{"rows":[[11,1]]}}"#,
        r#"{"insert":{"key":11,"value":1}}"#,
    ]);
    let models = &[SnapshotIsolation, Serializable, StrictSerializable];
    assert_found(&lines, "G-single", "did not find row 11", models);
}

#[test]
fn g_single_a_deleted_row_that_a_scan_still_finds() {
    let lines = together(&[
        r#"{"insert":{"key":11,"value":1}}"#,
        r#"{"read":{"key":11,"value":1}},{"delete":{"key":11}},{"write":{"key":12,"value":2}}"#,
        r#"{"scan":{"rows":[[11,1],[12,2]]}}"#,
    ]);
    assert_found(
        &lines,
        "G-single",
        "it read 11 before it was deleted by T2",
        ABOVE_READ_COMMITTED,
    );
}

/// Asserts the anomaly of a history of mixed levels, or that there is none. Levels are named by
/// their first words.
#[track_caller]
fn assert_mixed(levels: &[&str], ops: &[&str], anomaly: &str) {
    let name = |level: &str| match level {
        "committed" => "committed read-committed",
        "repeatable" => "committed repeatable-read",
        "snapshot" => "committed snapshot-isolation",
        _ => "committed serializable",
    };
    let lines: Vec<Line<'_>> = levels
        .iter()
        .map(|level| name(level))
        .zip(ops)
        .map(|(outcome, ops)| (outcome, (0, 100), *ops))
        .collect();
    let found = match verdict(&lines, Model::Mixed) {
        Verdict::Broken(violation) => violation.anomaly,
        Verdict::Holds => "",
        Verdict::Open => "open",
    };
    assert_eq!(found, anomaly, "{levels:?}");
}

#[test]
fn write_skew_is_excused_where_one_of_the_two_has_the_snapshot_level() {
    let items = [
        r#"{"read":{"key":"x","value":null}},{"write":{"key":"y","value":1}}"#,
        r#"{"read":{"key":"y","value":null}},{"write":{"key":"x","value":1}}"#,
    ];
    let scans = [
        r#"{"scan":{"from":10,"to":20,"rows":[]}},{"insert":{"key":11,"value":1}}"#,
        r#"{"scan":{"from":10,"to":20,"rows":[]}},{"insert":{"key":12,"value":2}}"#,
    ];
    for (levels, item, scan) in [
        (["serializable", "serializable"], "G2-item", "G2"),
        (["serializable", "snapshot"], "", ""),
        (["snapshot", "snapshot"], "", ""),
        (["serializable", "repeatable"], "G2-item", ""),
        (["repeatable", "repeatable"], "G2-item", ""),
        (["repeatable", "snapshot"], "", ""),
        (["serializable", "committed"], "", ""),
    ] {
        assert_mixed(&levels, &items, item);
        assert_mixed(&levels, &scans, scan);
    }
}

#[test]
fn an_update_is_lost_by_read_committed_alone() {
    let ops = [
        r#"{"write":{"key":"x","value":1}}"#,
        r#"{"read":{"key":"x","value":1}},{"write":{"key":"x","value":2}}"#,
        r#"{"read":{"key":"x","value":1}},{"write":{"key":"x","value":3}}"#,
    ];
    assert_mixed(&["committed", "committed", "committed"], &ops, "");
    assert_mixed(&["committed", "committed", "snapshot"], &ops, "");
    assert_mixed(&["committed", "repeatable", "snapshot"], &ops, "lost update");
    let seen = [&ops[..], &[r#"{"read":{"key":"x","value":3}}"#]].concat();
    assert_mixed(&["committed", "snapshot", "committed", "serializable"], &seen, "");
}

#[test]
fn half_of_a_transaction_is_seen_by_read_committed_alone() {
    let ops = [
        r#"{"write":{"key":"x","value":1}},{"write":{"key":"y","value":1}}"#,
        r#"{"read":{"key":"x","value":1}},{"read":{"key":"y","value":null}}"#,
    ];
    for reader in ["repeatable", "snapshot", "serializable"] {
        assert_mixed(&["committed", reader], &ops, "G-single");
    }
    assert_mixed(&["serializable", "committed"], &ops, "");
}

#[test]
fn real_time_leaves_all_levels_and_enters_those_that_promise_it() {
    fn lines<'a>(writer: &'a str, reader: &'a str) -> [Line<'a>; 2] {
        [
            (writer, (0, 10), r#"{"write":{"key":"x","value":1}}"#),
            (
                reader,
                (20, 30),
                r#"{"read":{"key":"x","value":null}},{"write":{"key":"y","value":1}}"#,
            ),
        ]
    }
    let levels = ["read-committed", "repeatable-read", "snapshot-isolation", "serializable"];
    for writer in levels.map(|level| format!("committed {level}")) {
        for reader in levels.map(|level| format!("committed {level}")) {
            let is_broken = reader == "committed serializable";
            let verdict = verdict(&lines(&writer, &reader), Model::Mixed);
            assert_eq!(verdict != Verdict::Holds, is_broken, "{writer}, {reader}: {verdict:?}");
        }
        assert_ne!(verdict(&lines(&writer, "committed"), Model::Mixed), Verdict::Holds);
    }
}

#[test]
fn a_stale_read_is_serializable_and_not_strictly_so() {
    let lines =
        in_turn(&[r#"{"write":{"key":"x","value":1}}"#, r#"{"read":{"key":"x","value":null}}"#]);
    let words = "ended before the beginning of T2";
    assert_found(&lines, "G-single-realtime", words, &[StrictSerializable]);
}

/// A transaction of unknown outcome begins when its client sent it, and takes place then or at any
/// later time.
#[test]
fn what_an_unknown_one_gave_is_not_seen_before_it_began_and_may_come_late() {
    let seen = |begin, end| {
        [
            ("committed", (0, 50), r#"{"read":{"key":"x","value":1}}"#),
            ("unknown", (begin, end), r#"{"write":{"key":"x","value":1}}"#),
        ]
    };
    assert_found(&seen(50, 60), "", "", &[]);
    assert_found(&seen(51, 60), "G1c-realtime", "before", &[StrictSerializable]);
    let late = |outcome| {
        [
            (outcome, (0, 20), r#"{"write":{"key":"x","value":1}}"#),
            ("committed", (100, 110), r#"{"read":{"key":"x","value":null}}"#),
            ("final", (200, 210), r#"{"read":{"key":"x","value":1}}"#),
        ]
    };
    assert_found(&late("unknown"), "", "", &[]);
    assert_found(&late("committed"), "G-single-realtime", "T2", &[StrictSerializable]);
}

#[test]
fn the_order_of_blind_writes_follows_from_real_time() {
    let lines = in_turn(&[
        r#"{"write":{"key":"x","value":1}}"#,
        r#"{"write":{"key":"x","value":2}}"#,
        r#"{"read":{"key":"x","value":1}}"#,
    ]);
    assert_found(&lines, "G-single-realtime", "inferred", &[StrictSerializable]);
}

#[test]
fn what_is_found_gone_was_never_there_or_was_deleted() {
    // T3 follows the row's insertion, because it read y, and therefore also its deletion.
    let lines = together(&[
        r#"{"insert":{"key":1,"value":7}},{"write":{"key":"y","value":1}}"#,
        r#"{"delete":{"key":1}},{"write":{"key":"z","value":1}}"#,
        r#"{"read":{"key":"y","value":1}},{"scan":{"to":9,"rows":[]}},
           {"read":{"key":"z","value":null}}"#,
    ]);
    // It saw the deletion but not z.
    assert_found(
        &lines,
        "G-single",
        "inferred",
        &[SnapshotIsolation, Serializable, StrictSerializable],
    );
}

/// Found by drawn seed 1180 of GeoGauss, at the snapshot level. If T1 found no row 17, it and T2
/// did not see each other's writes, and no more than that.
#[test]
fn a_delete_of_unknown_outcome_may_have_found_no_row() {
    let with = |outcome| {
        [
            (outcome, (0, 90), r#"{"write":{"key":16,"value":1}},{"delete":{"key":17}}"#),
            (
                "committed",
                (0, 20),
                r#"{"scan":{"from":16,"to":18,"rows":[]}},{"insert":{"key":17,"value":2}}"#,
            ),
            (
                "committed",
                (0, 30),
                r#"{"scan":{"from":16,"to":18,"rows":[[16,1],[17,2]]}},
                   {"write":{"key":17,"value":3}}"#,
            ),
        ]
    };
    assert_found(&with("unknown"), "G-single", "", &[Serializable, StrictSerializable]);
    let models = &[SnapshotIsolation, Serializable, StrictSerializable];
    assert_found(&with("committed"), "G-single", "", models);
}

#[test]
fn what_a_delete_of_unknown_outcome_does_not_explain_is_found() {
    let lines = [
        ("unknown", (0, 90), r#"{"write":{"key":16,"value":1}},{"delete":{"key":17}}"#),
        ("committed", (0, 20), r#"{"insert":{"key":18,"value":2}},{"write":{"key":19,"value":3}}"#),
        (
            "committed",
            (0, 30),
            r#"{"scan":{"from":16,"to":20,"rows":[[16,1],[19,3]]}},{"write":{"key":20,"value":4}}"#,
        ),
    ];
    let models = &[SnapshotIsolation, Serializable, StrictSerializable];
    assert_found(&lines, "G-single", "", models);
}
