//! Tests of the recommendation and its wording.

use super::*;

fn row(set: &[&str], guarantee: Guarantee, throughput_per_sec: f64, p50_ms: f64) -> Row {
    let region = |name: &str, more: f64| Region {
        name: name.to_owned(),
        p50_ms: p50_ms + more,
        p99_ms: 2.0 * p50_ms,
    };
    Row {
        protocol: "minerva".to_owned(),
        set: set.iter().map(|it| (*it).to_owned()).collect(),
        what: String::new(),
        guarantee,
        may_lose: false,
        is_measured: false,
        performance: Performance {
            throughput_per_sec,
            regions: vec![region("near", -10.0), region("far", 10.0)],
            aborted: 0.0,
            wan_bytes_per_txn: 500.0,
        },
        coordinator: None,
        loss: Some(Loss {
            region: "near".to_owned(),
            pauses_ms: vec![("far".to_owned(), 900.0)],
            lost_txns: 0,
            wrong: None,
        }),
        check: None,
        failed: None,
    }
}

const CLOSED: Need = Need { guarantee: Guarantee::Serializable, rate_per_sec: None };

use Guarantee::{Serializable, SnapshotIsolation, StrictSerializable};

#[test]
fn what_is_alike_is_decided_by_the_next_rule() {
    let plain = || row(&[], Serializable, 1_000.0, 100.0);
    let cases = [
        (row(&["a"], Serializable, 1_100.0, 200.0), 1, "more transactions come first"),
        (row(&["a"], Serializable, 1_020.0, 200.0), 0, "alike, and later"),
        (row(&["a"], Serializable, 980.0, 50.0), 1, "alike, and sooner"),
        (row(&["a"], StrictSerializable, 990.0, 101.0), 1, "alike, and stronger"),
        (row(&["a"], Serializable, 1_020.0, 99.0), 0, "alike in all: the default"),
        (row(&["a"], SnapshotIsolation, 9_000.0, 1.0), 0, "too weak"),
    ];
    for (other, expected, what) in cases {
        assert_eq!(advise(&[plain(), other], &CLOSED).take, Some(expected), "{what}");
    }
}

#[test]
fn a_rate_is_kept_up_with_and_then_the_median_decides() {
    let need = Need { rate_per_sec: Some(1_000.0), ..CLOSED };
    let slow = row(&[], Serializable, 1_000.0, 100.0);
    let soon = row(&["a"], Serializable, 960.0, 60.0);
    let late = row(&["b"], Serializable, 900.0, 10.0);
    let advice = advise(&[slow, soon, late], &need);
    assert_eq!((advice.take, advice.next), (Some(1), Some(0)));
}

#[test]
fn what_loses_or_fails_is_not_taken() {
    let mut loses = row(&["a"], Serializable, 9_000.0, 10.0);
    loses.loss.as_mut().unwrap().wrong = Some("one is gone".to_owned());
    let mut forgets = row(&["c"], Serializable, 9_000.0, 10.0);
    forgets.loss.as_mut().unwrap().lost_txns = 17;
    let mut lucky = row(&["d"], Serializable, 9_000.0, 10.0);
    lucky.may_lose = true;
    let mut fails = row(&["b"], Serializable, 9_000.0, 10.0);
    fails.check = Some(check(Err("replicas differ".to_owned())));
    let mut passes = row(&[], Serializable, 1_000.0, 100.0);
    passes.check = Some(check(Ok(100.0)));
    let rows = [loses.clone(), fails.clone(), passes, forgets.clone(), lucky.clone()];
    let advice = advise(&rows, &CLOSED);
    assert_eq!((advice.take, advice.next), (Some(2), None));
    assert_eq!(advice.sentences[1], "No other eligible choice is serializable.");
    let advice = advise(&[loses, fails, forgets], &CLOSED);
    assert_eq!(advice.take, None);
    assert!(advice.sentences[0].starts_with("Take none of these"), "{:?}", advice.sentences);
    let reasons = &advice.sentences[1];
    assert!(reasons.contains("one is gone") && reasons.contains("replicas differ"), "{reasons}");
    let loses = "c loses 17 acknowledged transactions when region near is lost";
    assert!(reasons.contains(loses), "{reasons}");
    let reasons = &advise(&[lucky], &CLOSED).sentences[1];
    let may_lose = "d may lose acknowledged transactions when a region is lost";
    assert!(reasons.contains(may_lose), "{reasons}");
}

fn check(measured: Result<f64, String>) -> Check {
    let performance =
        |throughput_per_sec: f64| Performance { throughput_per_sec, ..Performance::default() };
    Check {
        clients: 30,
        rate_per_sec: None,
        predicted: performance(110.0),
        predicted_pause_ms: 1_000.0,
        measured: measured.map(performance),
        measured_pause_ms: Some(900.0),
    }
}

#[test]
fn where_finalists_fail_the_next_are_tried_until_one_passes_or_none_is_left() {
    let rate = |at: usize| 1_000.0 - 100.0 * at as f64;
    let all =
        || -> Vec<Row> { (0..5).map(|at| row(&["a"], Serializable, rate(at), 100.0)).collect() };
    let tried = |passing: &[usize], finalists| {
        let (mut rows, mut tried) = (all(), Vec::new());
        while let Some(at) = next_to_try(&rows, &CLOSED, &tried, finalists) {
            let passes = passing.contains(&at);
            let failed = || Err("replicas differ".to_owned());
            rows[at].check = Some(check(if passes { Ok(100.0) } else { failed() }));
            tried.push(at);
        }
        (tried, advise(&rows, &CLOSED))
    };
    for (passing, finalists, expected, take) in [
        (&[0, 1, 2, 3, 4][..], 0, vec![], Some(0)),
        (&[0, 1], 2, vec![0, 1], Some(0)),
        (&[1], 2, vec![0, 1], Some(1)),
        (&[3], 2, vec![0, 1, 2, 3], Some(3)),
        (&[4], 1, vec![0, 1, 2, 3, 4], Some(4)),
        (&[], 2, vec![0, 1, 2, 3, 4], None),
    ] {
        let (tried, advice) = tried(passing, finalists);
        assert_eq!((&tried, advice.take), (&expected, take), "{passing:?} of {finalists}");
        let says_none = advice.sentences[0].ends_with("and passes its checks on real nodes.");
        assert_eq!(says_none, take.is_none(), "{:?}", advice.sentences);
    }
}

#[test]
fn a_row_that_could_not_be_run_is_not_taken_where_others_failed() {
    let mut broken = row(&["a"], Serializable, 100.0, 100.0);
    broken.check = Some(check(Err("replicas differ".to_owned())));
    let rows = [broken, row(&["b"], Serializable, 90.0, 100.0)];
    let advice = advise(&rows, &CLOSED);
    assert_eq!(advice.take, None);
    assert!(advice.sentences[1].contains("could not be run here"), "{:?}", advice.sentences);
    assert_eq!(advise(&rows[1..], &CLOSED).take, Some(0), "no other row failed");
}

#[test]
fn a_row_that_could_not_be_measured_is_not_taken() {
    let failed = Some("replicas differ".to_owned());
    let broken = Row { failed, ..row(&["a"], Serializable, 0.0, 0.0) };
    let measured = Row { is_measured: true, ..row(&[], Serializable, 10.0, 9.0) };
    let advice = advise(&[broken.clone(), measured], &CLOSED);
    assert_eq!(advice.take, Some(1));
    let reasons = &advise(&[broken], &CLOSED).sentences[1];
    assert!(reasons.contains("failed on real nodes (replicas differ)"), "{reasons}");
}

#[test]
fn sentences_follow_from_the_numbers() {
    let mut take = row(&[], Serializable, 1_000.0, 100.0);
    let mut next = row(&["minerva.solver=greedy"], Serializable, 900.0, 120.0);
    take.check = Some(check(Ok(100.0)));
    next.check = Some(check(Ok(100.0)));
    let rows = [next, take];
    let [which, why, expect] = advise(&rows, &CLOSED).sentences;
    assert_eq!(
        which,
        "Take minerva: it is serializable and commits 1000 transactions a second, with medians \
         from 90 ms in near to 110 ms in far."
    );
    assert_eq!(
        why,
        "The next best, minerva with minerva.solver=greedy, has 10 % fewer transactions, 20 % \
         longer medians."
    );
    assert_eq!(
        expect,
        "When near is lost, the other regions commit nothing for 0.9 s (0.9 s when \
         measured), and no acknowledged transaction is lost; with 30 clients on this machine, 110 \
         transactions a second were predicted and 100 were measured (+10 %)."
    );
}

#[test]
fn a_real_run_that_turns_the_order_around_is_said() {
    let mut take = row(&[], Serializable, 1_000.0, 100.0);
    let mut next = row(&["a"], StrictSerializable, 900.0, 100.0);
    take.check = Some(check(Ok(100.0)));
    next.check = Some(check(Ok(115.0)));
    let [_, why, expect] = advise(&[take.clone(), next], &CLOSED).sentences;
    assert!(why.ends_with("has 10 % fewer transactions and is strict-serializable."), "{why}");
    assert!(expect.contains("the next best was faster"), "{expect}");
    // Measured bytes are compared, if known.
    let bytes = |row: &mut Row, predicted, sent| {
        row.performance.wan_bytes_per_txn = predicted;
        let measured = row.check.as_mut().unwrap().measured.as_mut();
        measured.unwrap().wan_bytes_per_txn = sent;
    };
    let mut next = row(&["a"], Serializable, 1_000.0, 100.0);
    next.check = Some(check(Ok(100.0)));
    bytes(&mut take, 200.0, 100.0);
    bytes(&mut next, 100.0, 150.0);
    let [_, why, _] = advise(&[take.clone(), next.clone()], &CLOSED).sentences;
    assert!(why.ends_with("has 50 % more bytes between regions (measured)."), "{why}");
    next.check.as_mut().unwrap().clients = 15;
    let [_, why, _] = advise(&[take.clone(), next], &CLOSED).sentences;
    assert!(why.ends_with("has 50 % fewer bytes between regions."), "as predicted: {why}");
    take.check.as_mut().unwrap().rate_per_sec = Some(99.6);
    let [_, _, expect] = advise(&[take.clone()], &CLOSED).sentences;
    let load = "; at 100 calls a second on this machine, 110 transactions a second";
    assert!(expect.contains(load), "{expect}");
    take.check = None;
    let [_, _, expect] = advise(&[take], &CLOSED).sentences;
    assert!(expect.ends_with("this is predicted and was not run on real nodes."), "{expect}");
}
